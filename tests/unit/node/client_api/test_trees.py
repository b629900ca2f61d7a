"""Requests of another cluster's full-sync: what it asks this cluster to send."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from types import SimpleNamespace
from typing import Any

from isthmus.aae.exchange import wire
from isthmus.aae.exchange.wire import RepairRequest
from isthmus.node.client_api.trees import TreeRoutes
from isthmus.repl.model.keys import Key
from isthmus.repl.model.this_node import ThisNode


class FakeRepairs:
    """Queues that note, in order, what is recalled and pushed."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, list[Key]]] = []

    async def recall(self, keys: Sequence[Key]) -> Collection[Key]:
        """See Repairs."""
        self.calls.append(("recall", list(keys)))
        return keys[:1]

    async def push(self, queue: str, keys: Sequence[Key]) -> int:
        """See Repairs."""
        self.calls.append((f"push {queue}", list(keys)))
        return len(keys)


async def test_a_request_to_repair_recalls_the_tombstones_of_reaped_keys_first() -> None:
    """A key may be ahead here by a tombstone that was reaped: there is something to send once it is written again. Keys
    that exist are queued all the same."""
    repairs, handlers = FakeRepairs(), {}
    router = SimpleNamespace(add=lambda _method, path, handler: handlers.__setitem__(path, handler))
    api: Any = SimpleNamespace(router=router)
    TreeRoutes(SimpleNamespace(), repairs, api, ThisNode("n1", "west", b"c" * 16), wall_ms=lambda: 0)  # type: ignore[arg-type]
    asked = RepairRequest("to-east", b"default", ((b"b", b"reaped"), (b"b", b"here")))

    async def body(_limit_bytes: int, _what: str) -> bytes:
        return wire.encode_repair_request(asked)

    reply = await handlers["/trees/repair"](SimpleNamespace(body=body, query={}))
    assert wire.decode_repair_response(wire.decode_peer_response(reply.body).body) == 2
    keys = [Key(b"default", *name) for name in asked.names]
    assert repairs.calls == [("recall", keys), ("push to-east", keys)]
