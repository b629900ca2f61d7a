"""Lag of a queue on this node, by partition: in seconds, objects and bytes.

Measured from the cursor and the store's time marks, not from the times of the waiting rows: a key that keeps changing
moves to a newer row each time, and would always look young. A value that is unknown, or could not be read in time, is
None, never a guess. `node.services.replication_lag` combines the nodes of a cluster.

Seconds of all queues are read first, then objects, then bytes, so that a queue with much to count takes no other one's
seconds. A reading that runs out of time begins the next one with the queue at which it ended.

There is one computation, and everything that shows a lag reads its answer: `isthmus lag`, `check lag`, `status`, the
findings, `gaps`, positions of queues, the dashboard and `/metrics`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Executor
from typing import Final, NamedTuple

import msgspec
from msgspec import structs

from isthmus.config.text import quantity
from isthmus.queues.object_reader import read_changes, size_of
from isthmus.queues.queue_server import QueueServer
from isthmus.queues.window import Window
from isthmus.repl.model.errors import IsthmusError, NotReady
from isthmus.repl.store.port import Change, DamagedChange, Store
from isthmus.repl.unforeseen import unforeseen

FIRST_ROWS: Final = 64
"""Rows of the change index read for the seconds of a partition: the first one that waits is enough, and is among these
unless a filter leaves many out."""

STEP_ROWS: Final = 4_096
"""Rows of the change index read at once, to count them."""

ROWS_MAX: Final = 50_000
"""Rows read in one partition to count what waits; beyond it the count is unknown: 0.1 s of the read pool."""

SIZES_MAX: Final = 10_000
"""Objects of one partition whose sizes are added up; beyond it bytes are unknown: each costs a read of the store."""

TIMEOUT_S: Final = 1.5
"""How long one request about all queues may take here: the node that gathers the answers waits for 2 s
(`node.services.cluster_query`). Each partition with waiting changes takes several turns of the loop, which last a
second and more while objects of 100 MB are merged; otherwise the whole request takes some 10 ms."""

LEAST_S: Final = 0.2
"""How long a reading may take at least, though it waited for the one before until its own time was nearly over. Both
together end before the node that gathers the answers stops waiting."""


class PartitionLag(msgspec.Struct, frozen=True):
    """The lag of a queue in one partition that this node leads; null: not known."""

    partition: int
    bucket_type: str
    seconds: float | None
    """Age of the oldest change that is not acknowledged; 0: nothing waits."""
    objects: int | None
    """Keys whose newest change is not acknowledged."""
    bytes: int | None
    """Size of these objects."""
    in_flight: int
    cursor: int
    applied: int


class QueueLag(msgspec.Struct, frozen=True, kw_only=True):
    """The lag of a queue on this node."""

    queue: str
    cluster: str | None
    """Name of the cluster that owns it; null: none does."""
    uuid: str | None
    reason: str
    """Why it does not serve everything, or why a value is not known; "" for none."""
    held: dict[str, str] = {}
    """Bucket type -> why changes of it alone wait; a node of an earlier version reports none."""
    partitions: list[PartitionLag]
    ledger_off: int = 0
    """Changes that disappeared without being accounted for; a node of an earlier version reports none."""


class OldestWaiting(NamedTuple):
    """Since when the oldest waiting change of a partition waits, in ms, as read when the cursor was at `cursor`. While
    the cursor stays there, the change still waits."""

    cursor: int
    since_ms: int


class QueueReading(NamedTuple):
    """What a reading found of a queue: its partitions, and how many of them could not be read in time: their seconds
    (`late`), or else only their objects or bytes (`uncounted`). `failures`: why the reading of a partition failed."""

    partitions: list[PartitionLag]
    late: int
    uncounted: int
    failures: list[str]

    def why_unread(self) -> list[str]:
        """A sentence for each kind of value that could not be read."""
        found = ((self.late, ""), (self.uncounted, "keys and bytes of "))
        return [
            f"{what}{quantity(count, 'partition')} could not be read within {TIMEOUT_S} s: the node is busy"
            for count, what in found
            if count
        ] + self.failures


class LagMemory:
    """What the readings of one node remember: the oldest waiting change of each partition, and where the last one ran
    out of time."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, int], OldestWaiting] = {}
        self._first = ""

    async def read(
        self, queues: Mapping[str, QueueServer], store: Store, pool: Executor, wall_ms: int, by_s: float
    ) -> dict[str, QueueReading]:
        """The lags of all queues in the partitions led here. `by_s`: the loop's time after which values that were not
        read stay None; seconds that were read before and still hold are kept."""
        names = list(queues)
        if self._first in queues:
            at = names.index(self._first)
            names = [*names[at:], *names[:at]]
        readings = [
            (name, _Reading(window, store, pool, wall_ms))
            for name in names
            for window in list(queues[name].machine.windows.values())
        ]
        self._first = ""
        for step in (_Reading.read_seconds, _Reading.count_objects, _Reading.add_sizes):
            for name, reading in readings:
                if reading.failure:
                    continue
                try:
                    async with asyncio.timeout_at(by_s):
                        await step(reading)
                except TimeoutError:
                    reading.uncounted = True
                    self._first = self._first or name
                except Exception as error:  # noqa: BLE001 -- see _Reading.end
                    reading.end(name, error)
        known: dict[tuple[str, int], OldestWaiting] = {}
        for name, reading in readings:
            place = name, reading.window.partition
            try:
                oldest = reading.remembered(self._known.get(place))
            except Exception as error:  # noqa: BLE001 -- see _Reading.end
                reading.end(name, error)
                continue
            if oldest is not None:
                known[place] = oldest
        self._known = known
        found = {}
        for name in queues:
            of_queue = [reading for owner, reading in readings if owner == name]
            late = sum(each.shown.seconds is None and each.uncounted for each in of_queue)
            uncounted = sum(each.uncounted for each in of_queue) - late
            failures = list(dict.fromkeys(each.failure for each in of_queue if each.failure))
            found[name] = QueueReading([each.shown for each in of_queue], late, uncounted, failures)
        return found


class LagReadings:
    """Readings of this node's lags, one at a time, which all who ask share. Belongs to the event loop.

    Whoever asks during a reading shares the next one, which begins when this one has ended: no number is older than the
    request for it, so that a change that was acknowledged to its client before is never called sent. A reading that
    began a little earlier is enough only for a caller that says so (`read`).
    """

    def __init__(self, take: Callable[[float], Awaitable[list[QueueLag]]]) -> None:
        """`take`: reads the lags of all queues; its argument is the loop's time by which it must end."""
        self._take = take
        self._newest: _SharedReading | None = None
        self._stopped = False

    async def read(self, fresh_ms: int = 0) -> list[QueueLag]:
        """The lags of all queues, as of the request, or as of a reading that began less than `fresh_ms` before. Raises
        what the reading raises, and NotReady once they are stopped. A reader that is cancelled ends no reading of
        others."""
        if self._stopped:
            raise NotReady("the queues of this node have stopped")
        newest = self._newest
        if newest is None or not newest.is_good(asyncio.get_running_loop().time() - fresh_ms / 1000):
            newest = self._newest = _SharedReading(self._take, newest)
        return await asyncio.shield(newest.task)

    async def stop(self) -> None:
        """End the readings, and begin no other one: the store is closed next."""
        self._stopped = True
        while self._newest is not None:
            newest, self._newest = self._newest, None
            ending = [*newest.before, newest.task]
            for task in ending:
                task.cancel()
            await asyncio.gather(*ending, return_exceptions=True)


class _SharedReading:
    """A reading that waits for the one before, runs, or is done."""

    def __init__(self, take: Callable[[float], Awaitable[list[QueueLag]]], previous: _SharedReading | None) -> None:
        loop = asyncio.get_running_loop()
        self._take = take
        self._asked_s = loop.time()
        self._began_s: float | None = None
        self.before: list[asyncio.Task[list[QueueLag]]] = []
        """The reading that must end first, if there is one."""
        if previous is not None and not previous.task.done():
            self.before.append(previous.task)
        self.task: asyncio.Task[list[QueueLag]] = loop.create_task(self._run())
        self.task.add_done_callback(lambda done: done.cancelled() or done.exception())  # nobody may wait for it

    def is_good(self, after_s: float) -> bool:
        """Whether no number of it is older than the loop's time `after_s`: it has yet to begin, or began later."""
        if self.task.done() and (self.task.cancelled() or self.task.exception() is not None):
            return False
        return self._began_s is None or self._began_s > after_s

    async def _run(self) -> list[QueueLag]:
        if self.before:
            await asyncio.wait(self.before)
            self.before = []
        self._began_s = asyncio.get_running_loop().time()
        return await self._take(max(self._asked_s + TIMEOUT_S, self._began_s + LEAST_S))


def _unread(window: Window) -> PartitionLag:
    """The lag of a partition of which nothing was read yet."""
    return PartitionLag(
        partition=window.partition,
        bucket_type=window.bucket_type.decode(errors="backslashreplace"),
        seconds=None,
        objects=None,
        bytes=None,
        in_flight=window.in_flight_count,
        cursor=window.cursor,
        applied=window.applied,
    )


class _Reading:
    """The reading of one partition, in three steps."""

    def __init__(self, window: Window, store: Store, pool: Executor, wall_ms: int) -> None:
        self.window = window
        self.shown = _unread(window)
        self.uncounted = False
        """Whether a step ran out of time."""
        self.failure = ""
        """Why the reading ended early: what was not read until then stays unknown."""
        self._store = store
        self._pool = pool
        self._wall_ms = wall_ms
        self._oldest: OldestWaiting | None = None
        self._found: dict[tuple[bytes, bytes], Change] = {}  # a key that changes meanwhile has a second row
        self._offset = 0
        self._rows_read = 0
        self._is_whole = False
        """Whether all rows were read."""
        self._is_done = False
        """Whether no further row can be read or is needed."""

    async def read_seconds(self) -> None:
        """How long the oldest change waits. Every value is known then if nothing waits."""
        window = self.window
        cursor, contiguous = window.advance(), window.contiguous
        in_memory = window.unacknowledged_count()
        if contiguous and not in_memory:
            self._end_empty()
            return
        self.shown = structs.replace(self.shown, cursor=cursor, objects=in_memory if contiguous else None)
        self._offset = cursor
        while not (self._found or self._is_done):
            await self._page(min(FIRST_ROWS, STEP_ROWS))
        # Changes that were acknowledged during the read do not count.
        cursor = window.advance()
        rows = self._still_waiting()
        if self._is_whole and not rows:
            self._end_empty()
            return
        self.shown = structs.replace(self.shown, cursor=cursor, in_flight=window.in_flight_count)
        below, above = await asyncio.get_running_loop().run_in_executor(
            self._pool, self._store.seconds_around, window.partition, cursor
        )
        first_ms = rows[0].time_ms if rows else None
        # In a contiguous window the cursor is the place of a change, whose second is that of the time mark before it.
        # Else the change there is not known: nothing above is older than the next mark, or than the first row that is
        # left.
        second = below if contiguous else above
        since_ms = None if second is None else second * 1000
        if first_ms is not None and (second is None or first_ms // 1000 <= second):
            since_ms = first_ms
        if since_ms is not None:
            self._oldest = OldestWaiting(cursor, since_ms)
            self._show_seconds(since_ms)

    async def count_objects(self) -> None:
        """How many keys wait, as far as ROWS_MAX allows."""
        while not self._is_done:
            await self._page(STEP_ROWS)
        if not self._is_whole:
            return
        rows = self._still_waiting()
        if rows:
            self.shown = structs.replace(self.shown, objects=len(rows), in_flight=self.window.in_flight_count)
        else:
            self._end_empty()

    async def add_sizes(self) -> None:
        """Bytes of these objects, of the same read, if it was complete."""
        rows = self._still_waiting()
        if self._is_whole and 0 < len(rows) <= SIZES_MAX:
            loop = asyncio.get_running_loop()
            self.shown = structs.replace(self.shown, objects=len(rows))
            size = await loop.run_in_executor(self._pool, _sizes, self._store, self.window, rows)
            self.shown = structs.replace(self.shown, bytes=size)

    def remembered(self, before: OldestWaiting | None) -> OldestWaiting | None:
        """The oldest waiting change, as read now; or as read `before`, where it could not be read now and the cursor
        has not moved since: then it counts now, too."""
        if self._oldest is None and before is not None and self.uncounted and self.shown.seconds is None:
            if before.cursor != self.window.advance():
                return None
            self._show_seconds(before.since_ms)
            return before
        return self._oldest

    def end(self, queue: str, error: Exception) -> None:
        """End this reading, and no other one, with what a step raised."""
        if isinstance(error, IsthmusError):  # such as a disk that fails
            self.failure = str(error)
        else:
            at = self.window.partition
            self.failure = str(unforeseen.exception("queue.lag_failed", error, queue=queue, partition=at))

    async def _page(self, limit: int) -> None:
        """Read on: rows that are offered and not settled are kept. Read in the pool, selected here."""
        loop = asyncio.get_running_loop()
        try:
            rows: Sequence[Change] = await loop.run_in_executor(
                self._pool, read_changes, self._store, self.window, self._offset, limit
            )
        except DamagedChange as error:
            rows = error.before
            if self.window.passes_over(error.offset):
                self._offset = error.offset + 1
            else:  # an unknown number of rows behind it wait, too
                self._is_done = True
        else:
            self._rows_read += len(rows)
            self._is_whole = len(rows) < limit
            self._is_done = self._is_whole or self._rows_read >= ROWS_MAX
            if rows:
                self._offset = rows[-1].offset + 1
        for row in self.window.unsettled(rows):
            self._found.setdefault((row.bucket, row.key), row)

    def _still_waiting(self) -> list[Change]:
        return self.window.unsettled(list(self._found.values()))

    def _end_empty(self) -> None:
        cursor = self.window.advance()
        self.shown = structs.replace(_unread(self.window), seconds=0.0, objects=0, bytes=0, cursor=cursor)
        self._found = {}
        self._oldest = None
        self._is_whole = self._is_done = True

    def _show_seconds(self, since_ms: int) -> None:
        """0 is what a partition says in which nothing waits, so that a clock that stepped back must not give it."""
        self.shown = structs.replace(self.shown, seconds=max(1, self._wall_ms - since_ms) / 1000)


def _sizes(store: Store, window: Window, rows: Sequence[Change]) -> int | None:
    """Bytes of the objects as they are now; None (not known) with a damaged key row among them."""
    sizes = [size_of(store, window, row) for row in rows]
    known = [size for size in sizes if size is not None]
    return sum(known) if len(known) == len(sizes) else None
