"""Mending for copies that have nobody to ask."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from concurrent.futures import Executor

from isthmus.aae.scrub.row_repair import RowRepair
from isthmus.repl.model.errors import NotReady
from isthmus.repl.store.port import Store


async def nobody(node: str, method: str, body: bytes, timeout_ms: int) -> bytes:
    """There is no other node."""
    raise NotReady(f"no connection to {node}")


async def nowhere(partition: int, segment: int) -> dict[str, dict[bytes, bytes]]:
    """There is no other cluster."""
    return {}


def alone(
    store: Store, pool: Executor, request: Callable[[str, str, bytes, int], Awaitable[bytes]] = nobody
) -> RowRepair:
    """The mending of a copy without replicas, and without a tree of its own."""

    async def mend(partition: int, chunk: bytes, seen: bytes | None, upto: int) -> bool:
        return store.far.mend(partition, chunk, seen, upto)

    async def drop_change(partition: int, offset: int, seen: bytes) -> bool:
        return store.far.drop_change(partition, offset, seen)

    return RowRepair(
        store,
        others=lambda _: [],
        request=request,
        mend=mend,
        drop_change=drop_change,
        own=bytes(16),
        leaf_of=lambda _partition, _segment: None,
        elsewhere=nowhere,
        pool=pool,
    )
