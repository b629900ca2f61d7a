"""Taking rows of a leader's store, for copies that are far (docs/protocol.md R-FAR).

Each of the core's effects is one piece of work in a thread, and ends in one event; the core asks for the next only
then. The order that makes a crash harmless is here: the mark is durable before the first row; the rows are durable
before the log begins at the round's end; that is durable before the store says that it is applied so far.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import structlog

from isthmus.config.text import quantity
from isthmus.repl.isr import effects as fx
from isthmus.repl.isr import events as ev
from isthmus.repl.model.errors import DamagedChunk, DamagedRow, IsthmusError
from isthmus.repl.model.ports import TimeSource
from isthmus.repl.runtime.partition import Partition
from isthmus.repl.runtime.storage import Storage
from isthmus.repl.store.port import AppliedPosition, FarMark, Store
from isthmus.repl.telemetry import Sample

log = structlog.get_logger(__name__)

TAKE_THREADS: Final = 2
"""Partitions whose rows are written at once. Looking up the row that a key has takes most of the time, and the disk."""

DRAIN_POLL_S: Final = 0.005
"""Pause before it is looked again whether all that was committed is applied."""

REFUSED_PAUSE_S: Final = 1.0
"""Pause before a chunk that was damaged is asked for once more: one that its leader makes wrongly each time must not
fill the way and the log. Short against a round."""

TOLD_EVERY_MS: Final = 10_000
"""How often the log of the node says how far a round is."""


class _Tally:
    """What came of one partition since it began to take rows."""

    def __init__(self, now_ms: int, position: int) -> None:
        self.began_ms = self.told_ms = now_ms
        self.began_at = position
        self.rows = 0
        self.bytes = 0


class TransferReceiver:
    """Of one node. `step` feeds a core; `fail` ends the process."""

    def __init__(
        self,
        store: Store,
        storage: Storage,
        time: TimeSource,
        step: Callable[[Partition, ev.Event], None],
        fail: Callable[[Exception], None],
    ) -> None:
        self._store = store
        self._storage = storage
        self._time = time
        self._step = step
        self._fail = fail
        self._loop = asyncio.get_running_loop()
        self._pool = ThreadPoolExecutor(TAKE_THREADS, thread_name_prefix="far-take")
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._restarts: dict[int, asyncio.Future[None]] = {}
        self._tallies: dict[int, _Tally] = {}
        self._reasons: dict[int, str] = {}
        """Partition -> why it takes rows once more, shown as long as it does."""
        self.rounds = 0
        self.chunks_refused = 0
        self.bytes_taken = 0

    def perform(
        self, partition: Partition, effect: fx.BeginTransfer | fx.InstallRows | fx.InstallMetadata | fx.FinishTransfer
    ) -> None:
        """Carry out an effect; the core has none of this partition under way."""
        self._tasks[partition.id] = self._loop.create_task(self._perform(partition, effect))

    async def _perform(
        self, partition: Partition, effect: fx.BeginTransfer | fx.InstallRows | fx.InstallMetadata | fx.FinishTransfer
    ) -> None:
        try:
            match effect:
                case fx.BeginTransfer(empty, reason, again):
                    await self._begin(partition, empty, reason, again=again)
                case fx.InstallRows(rows, upto, epoch, end):
                    self._count(partition, rows, upto, end)
                    await self._install_rows(partition, rows, upto, epoch)
                case fx.InstallMetadata(rows, after, last):
                    self._count(partition, rows, 0, 0)
                    await self._install(partition, last, self._install_state, partition.id, rows, after)
                case fx.FinishTransfer():
                    await self._end(partition, effect)
        except (IsthmusError, OSError) as error:
            self._fail(error)

    async def _begin(self, partition: Partition, empty: bool, reason: str, *, again: bool) -> None:
        mending = self._storage.mending
        while (  # noqa: ASYNC110 - rare, and short
            partition.unapplied.submitted > partition.replica.applied or partition.id in mending
        ):
            await asyncio.sleep(DRAIN_POLL_S)
        applied = partition.replica.applied
        log.warning("far.begins", partition=partition.id, applied=applied, empty=empty, again=again, reason=reason)
        partition.far = ""
        self._reasons[partition.id] = f"; {reason}" if again else ""
        mark = await self._loop.run_in_executor(self._pool, lambda: self._store.far.begin(partition.id, empty=empty))
        self._storage.abandon(partition)
        self._storage.replay.passed(partition.id, 1 << 63)
        self._told(partition, mark, b"")

    async def _install_rows(self, partition: Partition, rows: bytes, upto: int, epoch: int) -> None:
        """Where the rows here do not tell which of them a new row replaces, the copy begins again without rows."""
        try:
            await self._install(partition, b"", self._store.far.install_rows, partition.id, rows, upto, epoch)
        except DamagedRow as error:
            log.error("far.own_row_unreadable", partition=partition.id, error=str(error))
            await self._begin(partition, True, f"a row here cannot be read: {error}", again=True)

    async def _install(
        self, partition: Partition, after: bytes, install: Callable[..., FarMark], *given: object
    ) -> None:
        try:
            mark = await self._loop.run_in_executor(self._pool, install, *given)
        except DamagedChunk as error:
            await self._refuse(partition, error)
        else:
            self._told(partition, mark, after)

    async def _refuse(self, partition: Partition, error: IsthmusError) -> None:
        """A chunk is not what its leader made: nothing of it was taken, and the core asks for it once more."""
        self.chunks_refused += 1
        log.error("far.chunk_refused", partition=partition.id, error=str(error))
        await asyncio.sleep(REFUSED_PAUSE_S)
        self._told(partition, self._store.far.marks()[partition.id], b"")

    def _install_state(self, partition: int, rows: bytes, after: bytes) -> FarMark:
        return self._store.far.install_state(partition, rows, first=not after)

    async def _end(self, partition: Partition, effect: fx.FinishTransfer) -> None:
        loop, far = self._loop, self._store.far
        if effect.rows:
            try:
                await loop.run_in_executor(self._pool, self._install_state, partition.id, effect.rows, effect.after)
            except DamagedChunk as error:
                await self._refuse(partition, error)
                return
        await loop.run_in_executor(self._pool, far.sync)
        durable = self._restarts[partition.id] = loop.create_future()
        self._storage.restart(partition, effect.end, effect.table)
        await durable
        await loop.run_in_executor(self._pool, far.finish, partition.id, AppliedPosition(effect.epoch, effect.end))
        self.rounds += 1
        self._reasons.pop(partition.id, None)
        tally = self._tallies.pop(partition.id, None)
        rows, size = (tally.rows, tally.bytes) if tally else (0, 0)
        log.warning("far.round_ends", partition=partition.id, applied=effect.end, chunks=rows, bytes=size)
        self._step(partition, ev.TransferFinished(effect.end, effect.table))
        self._storage.flush()

    def log_restarted(self, partition: int) -> bool:
        """The log reports a cut: True when it was the START of a round's end."""
        durable = self._restarts.pop(partition, None)
        if durable is None:
            return False
        if not durable.done():
            durable.set_result(None)
        return True

    def _told(self, partition: Partition, mark: FarMark, after: bytes) -> None:
        self._step(partition, ev.TransferStored(mark.position, mark.epoch, mark.whole, after))
        self._storage.flush()

    def _count(self, partition: Partition, rows: bytes, upto: int, end: int) -> None:
        now_ms = self._time.now_ms()
        tally = self._tallies.get(partition.id)
        if tally is None:
            tally = self._tallies[partition.id] = _Tally(now_ms, partition.replica.far_position or 0)
        tally.rows += 1
        tally.bytes += len(rows)
        self.bytes_taken += len(rows)
        elapsed_ms = now_ms - tally.began_ms
        left = ""
        if end and upto > tally.began_at and elapsed_ms:
            left_s = elapsed_ms * (end - upto) // (upto - tally.began_at) // 1000
            left = f", about {left_s} s left"
        again = self._reasons.get(partition.id, "")
        partition.far = f"{quantity(tally.bytes, 'byte')} in {quantity(tally.rows, 'chunk')}{left}{again}"
        if now_ms - tally.told_ms >= TOLD_EVERY_MS:
            tally.told_ms = now_ms
            log.info("far.takes", partition=partition.id, progress=partition.reason)

    def busy(self, partition: int) -> bool:
        """True while a piece of work of a partition is under way."""
        task = self._tasks.get(partition)
        return task is not None and not task.done()

    def stop(self) -> None:
        """Take nothing more. Blocks until what is being written is written."""
        for task in self._tasks.values():
            task.cancel()
        self._pool.shutdown(wait=True, cancel_futures=True)

    def metrics(self) -> list[Sample]:
        """What was taken."""
        return [
            ("isthmus_far_rounds_taken_total", {}, self.rounds),
            ("isthmus_far_bytes_taken_total", {}, self.bytes_taken),
            ("isthmus_far_chunks_refused_total", {}, self.chunks_refused),
        ]
