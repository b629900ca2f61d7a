"""GET /cluster/routes, and the header that names the leader in answers to forwarded requests."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest

from isthmus.repl.model.conditions import ConditionFailed

K = "/buckets/b/keys/k"
HERE = "n2.example:8098"


def test_pollers_get_the_document_only_when_it_has_changed(client_api: Any) -> None:
    """The answer is 200 with a tag; it is 304 without body while the client sends the current tag, in any form."""
    document = client_api.routes
    found = client_api.call("GET", "/cluster/routes")
    assert (found.status, found.body, found.headers["content-type"]) == (200, b'{"v":0}', "application/json")
    tag = found.headers["etag"]
    for sent in (tag, f"W/{tag}", f'"other", {tag}', "*"):
        same = client_api.call("GET", "/cluster/routes", headers={"if-none-match": sent})
        assert (same.status, same.body, same.headers["etag"]) == (304, b"", tag), sent
    document.tag, document.body = "two", b'{"v":1,"version":2}'
    newer = client_api.call("GET", "/cluster/routes", headers={"if-none-match": tag})
    assert (newer.status, newer.body) == (200, document.body)
    assert newer.headers["etag"] != tag


def test_answers_to_forwarded_requests_name_the_leader(client_api: Any) -> None:
    """Reads and writes of one object, found or not, and batches of writes; nothing is named for requests that this node
    decided, or when the leader's address is unknown."""

    def leaders() -> list[str | None]:
        item = [b"default", b"b", b"k2", b"v"]
        answers = [
            client_api.call("GET", "/buckets/b/keys/absent"),
            client_api.put(K, b"v"),
            client_api.call("GET", K),
            client_api.call("HEAD", K),
            client_api.call("PUT", K + "?returnbody=true", b"v", {"content-type": "a/b"}),
            client_api.call("POST", "/buckets/b/keys", b"v", {"content-type": "a/b"}),
            client_api.call("DELETE", K),
            client_api.call("DELETE", K),
            client_api.call("POST", "/batch/put", msgpack.packb([item, item])),
        ]
        assert [answer.status for answer in answers] == [404, 204, 200, 200, 300, 201, 204, 404, 200]
        return [answer.headers.get("x-isthmus-leader") for answer in answers]

    assert leaders() == [None] * 9
    client_api.kv.objects.clear()
    client_api.kv.leader = "n2"
    assert leaders() == [HERE] * 9
    client_api.kv.objects.clear()
    client_api.kv.leader = "hidden"
    assert leaders() == [None] * 9


@pytest.mark.parametrize("method", ["GET", "PUT"])
def test_refusals_by_another_leader_name_it(client_api: Any, method: str) -> None:
    """A client learns the leader from its refusal as well as from its answer."""
    client_api.kv.fail = ConditionFailed("another version")
    assert "x-isthmus-leader" not in client_api.call(method, K, b"v", {"content-type": "a/b"}).headers
    client_api.kv.fail.leader = "n2"
    assert client_api.call(method, K, b"v", {"content-type": "a/b"}).headers["x-isthmus-leader"] == HERE


def test_a_batch_with_several_leaders_names_none(client_api: Any) -> None:
    """The header is for all items of a batch, so a batch whose items were decided at different nodes has none."""
    leaders = iter(["n2", "n2", "n3", "n2"])
    write = client_api.kv._write

    async def written(request: Any) -> Any:
        client_api.kv.leader = next(leaders)
        return await write(request)

    client_api.kv._write = written
    items = [[b"default", b"b", b"k%d" % n, b"v"] for n in range(2)]
    same = client_api.call("POST", "/batch/put", msgpack.packb(items))
    assert same.headers["x-isthmus-leader"] == HERE
    other = client_api.call("POST", "/batch/put", msgpack.packb(items))
    assert "x-isthmus-leader" not in other.headers
