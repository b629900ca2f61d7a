"""Lag of a queue on this node, by partition: in seconds, objects and bytes.

Measured from the cursor and the store's time marks, not from the times of the waiting rows: a key that keeps changing
moves to a newer row each time, and would always look young. A value that is unknown, or could not be read in time, is
None, never a guess. `node.services.replication_lag` combines the nodes of a cluster.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import Executor
from typing import Any, Final, NamedTuple

from isthmus.queues.object_reader import read_changes, size_of
from isthmus.queues.queue_server import QueueServer
from isthmus.queues.window import Window
from isthmus.repl.store.port import Change, DamagedChange, Store

STEP_ROWS: Final = 4_096
"""Rows of the change index read at once."""

ROWS_MAX: Final = 50_000
"""Rows read in one partition to count what waits; beyond it the count is unknown: 0.1 s of the read pool."""

SIZES_MAX: Final = 10_000
"""Objects of one partition whose sizes are added up; beyond it bytes are unknown: each costs a read of the store."""

TIMEOUT_S: Final = 1.5
"""How long one request about all queues may take here: the node that gathers the answers waits for 2 s
(`node.services.cluster_query`). Each partition with waiting changes takes several turns of the loop, which last a
second and more while objects of 100 MB are merged; otherwise the whole request takes some 10 ms."""


class Pending(NamedTuple):
    """Rows of a partition's change index that are not acknowledged: the first SIZES_MAX of them, and the total (None:
    too many to count, or a damaged row among them)."""

    rows: Sequence[Change]
    total: int | None


class Lags(NamedTuple):
    """One dict per partition: {"partition", "bucket_type", "seconds", "objects", "bytes", "in_flight", "cursor",
    "applied"}, where `objects` are keys whose newest change is not acknowledged; and how many partitions could not be
    read in time (`late`)."""

    partitions: list[dict[str, Any]]
    late: int


async def lags(queue: QueueServer, store: Store, pool: Executor, wall_ms: int, by_s: float) -> Lags:
    """The lags of the partitions led here. `by_s`: the loop's time after which values that were not read stay None."""
    rows = []
    late = 0
    for window in list(queue.machine.windows.values()):
        try:
            async with asyncio.timeout_at(by_s):
                rows.append(await _lag(window, store, pool, wall_ms))
        except TimeoutError:
            late += 1
            rows.append(_head(window) | dict.fromkeys(("seconds", "objects", "bytes")))
    return Lags(rows, late)


def _head(window: Window) -> dict[str, Any]:
    """The lag of a partition where nothing waits."""
    return {
        "partition": window.partition,
        "bucket_type": window.bucket_type.decode(errors="backslashreplace"),
        "seconds": 0.0,
        "objects": 0,
        "bytes": 0,
        "in_flight": window.in_flight_count,
        "cursor": window.advance(),
        "applied": window.applied,
    }


async def _lag(window: Window, store: Store, pool: Executor, wall_ms: int) -> dict[str, Any]:
    loop = asyncio.get_running_loop()
    cursor, contiguous = window.advance(), window.contiguous
    in_memory = window.unacknowledged_count()
    shown = _head(window)
    if contiguous and not in_memory:
        return shown
    pending = await _pending(window, cursor, store, pool)
    # Changes that were acknowledged during the read do not count.
    cursor = window.advance()
    shown |= {"cursor": cursor, "in_flight": window.in_flight_count}
    if pending.total == 0:
        return shown
    below, above = await loop.run_in_executor(pool, store.seconds_around, window.partition, cursor)
    first_ms = pending.rows[0].time_ms if pending.rows else None
    # In a contiguous window the cursor is the place of a change, whose second is that of the time mark before it. Else
    # the change there is not known: nothing above is older than the next mark, or than the first row that is left.
    second = below if contiguous else above
    since_ms = None if second is None else second * 1000
    if first_ms is not None and (second is None or first_ms // 1000 <= second):
        since_ms = first_ms
    shown["seconds"] = None if since_ms is None else max(0, wall_ms - since_ms) / 1000
    # Objects and bytes come from the same read, if it was complete: memory has changed since.
    shown["objects"] = in_memory if pending.total is None and contiguous else pending.total
    shown["bytes"] = None
    if pending.total is not None and pending.total == len(pending.rows):
        shown["bytes"] = await loop.run_in_executor(pool, _sizes, store, window, pending.rows)
    return shown


async def _pending(window: Window, cursor: int, store: Store, pool: Executor) -> Pending:
    """Rows from `cursor` on that are offered and not settled: read in the pool, selected here."""
    loop = asyncio.get_running_loop()
    found: dict[tuple[bytes, bytes], Change] = {}  # a key that changes meanwhile has a second row
    read = 0
    offset = cursor
    while read < ROWS_MAX:
        damaged = False
        try:
            rows: Sequence[Change] = await loop.run_in_executor(pool, read_changes, store, window, offset, STEP_ROWS)
        except DamagedChange as error:  # an unknown number of rows behind it wait, too
            rows, damaged = error.before, True
        for row in window.unsettled(rows):
            found.setdefault((row.bucket, row.key), row)
        if damaged:
            break
        if len(rows) < STEP_ROWS:
            return Pending(list(found.values())[:SIZES_MAX], len(found))
        read += len(rows)
        offset = rows[-1].offset + 1
    return Pending(list(found.values())[:SIZES_MAX], None)


def _sizes(store: Store, window: Window, rows: Sequence[Change]) -> int | None:
    """Bytes of the objects as they are now; None (not known) with a damaged key row among them."""
    sizes = [size_of(store, window, row) for row in rows]
    known = [size for size in sizes if size is not None]
    return sum(known) if len(known) == len(sizes) else None
