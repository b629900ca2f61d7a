"""Riak's fetch on a live node: the answers to a Riak, and the refusals with their messages."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import pytest

from isthmus.node.client_api.queue_fetch import QueueRoutes
from isthmus.node.http.application import SMALL_BODY_BYTES, HttpApplication
from isthmus.node.http.durations import RequestDurations
from isthmus.repl.model.errors import Overloaded
from isthmus.repl.model.objects import Object, Sibling, encode_object
from isthmus.repl.riak.tree_hash import leaf_hash, segment_id
from tests.support.open_access import EVERYBODY
from tests.support.riak_decoder import Answer, decode_answer
from tests.support.threaded_node import ThreadedNode, running_node

QUEUES = """
[[queues]]
name = "to-riak"
riak_fetch = true
filter = "bucketname:b"
[[queues]]
name = "to-west"
"""

JSON = {"content-type": "application/json"}


class NodeClient:
    def __init__(self, node: ThreadedNode) -> None:
        self.node = node

    def ask(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        *,
        admin: bool = False,
    ) -> tuple[int, str, bytes]:
        """Status, content type or the refusal's reason, body."""
        connection = http.client.HTTPConnection("127.0.0.1", self.node.admin if admin else self.node.http, timeout=20)
        connection.request(method, path, body, {"content-type": "text/plain", **(headers or {})})
        answer = connection.getresponse()
        what = answer.headers["x-isthmus-reason"] or answer.headers["content-type"] or ""
        found = answer.status, what, answer.read()
        connection.close()
        return found

    def popped(self) -> Answer | None:
        status, kind, body = self.ask("GET", "/queuename/to-riak?object_format=internal")
        assert (status, kind) == (200, "application/octet-stream")
        return decode_answer(body)

    def next(self) -> Answer:
        """The next change, which must come at once: the first fetch waits until the queue has its owner."""
        found = self.popped()
        assert isinstance(found, Answer)
        return found


@pytest.fixture(scope="module")
def caller(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeClient]:
    directory: Path = tmp_path_factory.mktemp("riak")
    with running_node(directory, QUEUES) as node:
        yield NodeClient(node)


def test_a_riak_gets_objects_and_tombstones_in_its_own_form(caller: NodeClient) -> None:
    """The answers are a value with metadata, a large value, and a tombstone; then the one byte of an empty queue."""
    key = "/buckets/b/keys/k"
    headers = {"x-riak-meta-colour": "red", "x-riak-index-age_int": "7"}
    assert caller.ask("PUT", key, b"one", headers)[0] == 204
    found = caller.next()
    assert (found.tombstone, found.bucket_type, found.bucket, found.key) == (False, b"", b"b", b"k")
    (sibling,) = found.siblings
    assert (sibling.value, sibling.deleted) == (b"one", False)
    assert sibling.metadata[b"content-type"] == b"text/plain"
    assert sibling.metadata[b"X-Riak-Meta"] == [(b"X-Riak-Meta-colour", b"red")]
    assert sibling.metadata[b"index"] == [(b"age_int", 7)]
    ((actor, (counter, _)),) = found.clock
    assert sibling.metadata[b"dot"][0] == actor
    assert sibling.metadata[b"dot"][1][0] == counter
    large = b"x" * 900_000
    assert caller.ask("PUT", "/buckets/b/keys/large", large)[0] == 204
    assert caller.next().siblings[0].value == large
    assert caller.ask("DELETE", key)[0] == 204
    gone = caller.next()
    assert (gone.tombstone, gone.key, gone.siblings[0].deleted) == (True, b"k", True)
    assert gone.tombstone_clock == gone.clock
    assert caller.ask("GET", "/queuename/to-riak")[1:] == ("application/octet-stream", b"\0")


def test_with_hashes_an_answer_has_the_place_of_the_key_in_a_riaks_trees(caller: NodeClient) -> None:
    """`internal_aaehash`: segment and leaf hash behind the first two bytes; all else is as in `internal`."""
    assert caller.ask("PUT", "/buckets/b/keys/hashed", b"v")[0] == 204
    body = caller.ask("GET", "/queuename/to-riak?object_format=internal_aaehash")[2]
    found = decode_answer(body[:2] + body[10:])
    assert found is not None
    clock = tuple((actor, counter, time_s) for actor, (counter, time_s) in found.clock)
    hashes = segment_id(b"default", b"b", b"hashed"), leaf_hash(b"default", b"b", b"hashed", clock)
    assert body[2:10] == b"".join(number.to_bytes(4, "big") for number in hashes)


def test_the_queue_is_listed_with_its_owner_and_nothing_waits(caller: NodeClient) -> None:
    """`GET /admin/queues` shows the setting and the queue's owner."""
    assert caller.ask("PUT", "/buckets/b/keys/listed", b"v")[0] == 204
    assert caller.next().key == b"listed"
    rows = json.loads(caller.ask("GET", "/admin/queues", admin=True)[2])["queues"]
    (row,) = [one for one in rows if one["name"] == "to-riak"]
    assert (row["riak_fetch"], row["owner"]["cluster"], row["waiting"]) == (True, "riak", 0)


@pytest.mark.parametrize(
    ("method", "path", "status", "reason", "words"),
    [
        ("GET", "/queuename/to-west", 501, "not-implemented", b"riak_fetch = true"),
        ("GET", "/queuename/nobody", 404, "unknown-queue", b"to-riak"),
        (
            "GET",
            "/queuename/to-riak?object_format=json",
            400,
            "bad-query",
            b"internal and internal_aaehash are answered",
        ),
        ("HEAD", "/queuename/to-riak", 405, "method-not-allowed", b""),
        ("PUT", "/queuename/to-riak", 405, "method-not-allowed", b"GET"),
    ],
)
def test_refused_requests_name_their_reason(
    caller: NodeClient, method: str, path: str, status: int, reason: str, words: bytes
) -> None:
    """The refusal has its status and a valid form; nothing leaves the queue."""
    assert caller.ask("PUT", "/buckets/b/keys/stays", b"v")[0] == 204
    got = caller.ask(method, path, b"{}" if method == "PUT" else None)
    assert got[:2] == (status, reason)
    assert words in got[2]
    assert caller.next().key == b"stays"


def test_a_queue_registered_or_set_for_a_riak_is_one(caller: NodeClient) -> None:
    """The setting is changed through the admin listener, and back; a value that is not a boolean is refused."""
    wish = {"name": "later", "from": "now", "riak_fetch": True}
    body = json.dumps(wish).encode()
    assert caller.ask("POST", "/admin/queues/register", body, JSON, admin=True)[0] == 200
    assert caller.ask("GET", "/queuename/later") == (200, "application/octet-stream", b"\0")
    for value, status, fetched in ((False, 200, 501), (True, 200, 200), ("yes", 400, 200)):
        body = json.dumps({"riak_fetch": value}).encode()
        answer = caller.ask("POST", "/admin/queues/later/set", body, JSON, admin=True)
        assert answer[0] == status, answer
        assert caller.ask("GET", "/queuename/later")[0] == fetched


@pytest.mark.parametrize("size", [70_000, 20])
async def test_an_answer_that_cannot_be_sent_is_refused_before_its_change_is_forgotten(size: int) -> None:
    """When the memory for bodies is used up a large answer raises Overloaded, which puts the change back; a small one
    is sent."""
    app = HttpApplication(EVERYBODY, RequestDurations())
    routes = QueueRoutes(cast("Any", None), cast("Any", None), app)
    stored = Object(((b"a", 1, 1),), (Sibling((b"a", 1), 1_000, tombstone=False, value=bytes(size)),))
    item = 1, 0, 1, b"default", b"b", b"k", b"o" * 16, 0, encode_object(stored)
    app.budget.used_bytes = app.budget.limit_bytes
    if size > SMALL_BODY_BYTES:
        with pytest.raises(Overloaded):
            await routes._riak_answer(item, hashes=False)
    else:
        assert decode_answer(await routes._riak_answer(item, hashes=False)) is not None
