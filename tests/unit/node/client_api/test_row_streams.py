"""POST /batch/push: valid bodies and an outcome for each item, without a cluster."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest

from isthmus.config.settings import LimitSettings
from isthmus.node.client_api.row_streams import PUSHES_MAX, RowRoutes
from isthmus.repl.model.keys import Key
from isthmus.repl.model.objects import Content, Object, Sibling, decode_object, encode_object, write
from isthmus.repl.model.this_node import ThisNode
from isthmus.repl.model.vclock import EMPTY, actor_of

UUID = b"\x01" * 16
OBJECT = encode_object(write(None, EMPTY, Content(b"v"), (actor_of(b"\x02" * 16, 1), 1), 1_000))


def pushes(client_api: Any, **limits: int) -> RowRoutes:
    """The routes, beside the others of an application."""
    nobody: Any = None
    return RowRoutes(
        nobody, nobody, nobody, client_api.kv, LimitSettings(**limits), client_api.app, ThisNode("n1", "east", UUID)
    )


def test_each_item_of_a_push_has_its_outcome(client_api: Any) -> None:
    """A malformed item is rejected at its position; the others are pushed."""
    pushes(client_api)
    items = [[b"default", b"b", b"k", OBJECT], [b"default", b"b"], [b"default", b"", b"k", OBJECT], "x"]
    answer = client_api.call("POST", "/batch/push", msgpack.packb([1, None, items]))
    told = msgpack.unpackb(answer.body)
    assert [outcome for outcome, _ in told] == ["applied", "rejected", "rejected", "rejected"]
    assert client_api.kv.object(b"b", b"k") is not None


def test_hidden_metadata_are_stored_and_shown_to_no_client(client_api: Any) -> None:
    """An object of another cluster has a pair whose name begins with NUL: headers, JSON and batches leave it out, and
    no client can write one."""
    pushes(client_api)
    shown, hidden = (b"colour", b"red"), (b"\0riak", b"secret")
    sibling = Sibling((b"a" * 20, 1), 1_000, False, b"v", b"text/plain", metadata=(hidden, shown))
    payload = encode_object(Object(((b"a" * 20, 1, 1),), (sibling,)))
    client_api.call("POST", "/batch/push", msgpack.packb([1, None, [[b"default", b"b", b"k", payload]]]))
    assert decode_object(client_api.kv.objects[Key(b"default", b"b", b"k")]).siblings[0].metadata == (hidden, shown)
    got = client_api.call("POST", "/batch/get", msgpack.packb([["default", "b", "k"]]))
    as_json = client_api.call("GET", "/buckets/b/keys/k", headers={"accept": "application/json"})
    alone = client_api.call("GET", "/buckets/b/keys/k")
    assert b"red" in got.body
    assert alone.headers["x-riak-meta-colour"] == "red"
    for answer in (got, as_json, alone):
        assert b"secret" not in answer.body
        assert "secret" not in str(answer.headers)
    extras = ["", [["\0riak", "mine"]], [], []]
    told = client_api.call("POST", "/batch/put", msgpack.packb([["default", "b", "k2", "v", "a/b", None, extras]]))
    assert msgpack.unpackb(told.body)[0][0] == 400


@pytest.mark.parametrize(
    "rows",
    [
        [[b"default", b"b", b"k", [[None] * 60] * 60]] * 64,
        [[[]] * 60] * 64,
    ],
)
def test_a_push_cannot_ask_for_more_elements_than_its_items_need(client_api: Any, rows: list[Any]) -> None:
    """A body of many tiny nested elements is refused while it is read, not after it has filled memory, and its place
    among the pushes is free again."""
    routes = pushes(client_api, batch_items=64)
    for _ in range(PUSHES_MAX + 1):
        answer = client_api.call("POST", "/batch/push", msgpack.packb([1, None, rows]))
        assert (answer.status, answer.reason) == (400, "bad-msgpack")
        assert b"more elements" in answer.body
    assert routes.pushes == 0
    whole = [[b"default", b"b", b"k%d" % at, OBJECT] for at in range(64)]
    assert client_api.call("POST", "/batch/push", msgpack.packb([1, UUID, whole])).status == 200
    many = client_api.call("POST", "/batch/push", msgpack.packb([1, UUID, [*whole, whole[0]]]))
    assert (many.status, many.reason) == (400, "bad-msgpack")
