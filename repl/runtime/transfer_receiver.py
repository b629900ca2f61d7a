"""Receives rows of a leader's store for copies beyond the log: state transfer (docs/protocol.md R-FAR).

Each effect of the core is one piece of work in a thread, and ends in one event; only then the core asks for the next.
The order here makes a crash harmless: the mark is durable before the first row; the rows are durable before the log
begins at the round's end; that is durable before the store records it as applied.
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
from isthmus.repl.runtime.port import EventSink
from isthmus.repl.runtime.storage import Storage
from isthmus.repl.store.port import AppliedPosition, Store, TransferMark
from isthmus.repl.telemetry import Sample

log = structlog.get_logger(__name__)

TAKE_THREADS: Final = 2
"""Partitions whose rows are written at the same time. Most of the time goes into reading the row that a key has."""

DRAIN_POLL_S: Final = 0.005
"""Pause between checks whether all committed entries are applied."""

REFUSED_PAUSE_S: Final = 1.0
"""Pause before a damaged chunk is requested again: a leader that makes it wrongly each time must not fill the link and
the node's log. Short compared with a round."""

PROGRESS_LOG_MS: Final = 10_000
"""Least time between two log events about the progress of a transfer."""


class _Progress:
    """Progress of one partition's transfer, until a round ends."""

    def __init__(self, now_ms: int, position: int) -> None:
        self.began_ms = self.logged_ms = now_ms
        self.began_at = position
        self.chunks = 0
        self.bytes = 0


class TransferReceiver:
    """State transfers to all copies of this node."""

    def __init__(
        self,
        store: Store,
        storage: Storage,
        time: TimeSource,
        events: EventSink,
    ) -> None:
        self._store = store
        self._storage = storage
        self._time = time
        self._events = events
        self._loop = asyncio.get_running_loop()
        self._pool = ThreadPoolExecutor(TAKE_THREADS, thread_name_prefix="transfer-take")
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._restarts: dict[int, asyncio.Future[None]] = {}
        """Partition -> done when its log is durable at the round's end."""
        self._progress: dict[int, _Progress] = {}
        self._reasons: dict[int, str] = {}
        """Partition -> why it needs another round, shown while that lasts."""
        self.rounds = 0
        self.chunks_refused = 0
        self.bytes_taken = 0

    def perform(
        self, partition: Partition, effect: fx.BeginTransfer | fx.InstallRows | fx.InstallMetadata | fx.FinishTransfer
    ) -> None:
        """Carry out an effect; no other one of this partition is under way."""
        self._tasks[partition.id] = self._loop.create_task(self._perform(partition, effect))

    async def _perform(
        self, partition: Partition, effect: fx.BeginTransfer | fx.InstallRows | fx.InstallMetadata | fx.FinishTransfer
    ) -> None:
        try:
            match effect:
                case fx.BeginTransfer(empty, reason, again):
                    await self._begin(partition, empty, reason, again=again)
                case fx.InstallRows(rows, upto, epoch, end):
                    self._note_progress(partition, rows, upto, end)
                    await self._install_rows(partition, rows, upto, epoch)
                case fx.InstallMetadata(rows, after, last):
                    self._note_progress(partition, rows, 0, 0)
                    await self._install(partition, last, self._install_metadata, partition.id, rows, after)
                case fx.FinishTransfer():
                    await self._end(partition, effect)
        except (IsthmusError, OSError) as error:
            self._events.fail(error)
        except Exception as bug:  # noqa: BLE001 - nothing says which rows are here
            self._events.quarantine(partition, bug)

    async def _begin(self, partition: Partition, empty: bool, reason: str, *, again: bool) -> None:
        mending = self._storage.mending
        while (  # noqa: ASYNC110 - rare, and short
            partition.unapplied.submitted > partition.replica.applied or partition.id in mending
        ):
            await asyncio.sleep(DRAIN_POLL_S)
        applied = partition.replica.applied
        log.warning("transfer.begins", partition=partition.id, applied=applied, empty=empty, again=again, reason=reason)
        partition.transfer_note = ""
        self._reasons[partition.id] = f"; {reason}" if again else ""
        mark = await self._loop.run_in_executor(
            self._pool, lambda: self._store.transfers.begin(partition.id, empty=empty)
        )
        self._storage.abandon(partition)
        self._storage.replay.passed(partition.id, 1 << 63)
        self._stored(partition, mark, b"")

    async def _install_rows(self, partition: Partition, rows: bytes, upto: int, epoch: int) -> None:
        """Install a chunk; where an own row that it replaces cannot be read, begin again with an empty copy."""
        try:
            await self._install(partition, b"", self._store.transfers.install_rows, partition.id, rows, upto, epoch)
        except DamagedRow as error:
            log.error("transfer.own_row_unreadable", partition=partition.id, error=str(error))
            await self._begin(partition, True, f"a row here cannot be read: {error}", again=True)

    async def _install(
        self, partition: Partition, after: bytes, install: Callable[..., TransferMark], *given: object
    ) -> None:
        try:
            mark = await self._loop.run_in_executor(self._pool, install, *given)
        except DamagedChunk as error:
            await self._refuse(partition, error)
        else:
            self._stored(partition, mark, after)

    async def _refuse(self, partition: Partition, error: IsthmusError) -> None:
        """A chunk arrived damaged: nothing of it was installed, and the core requests it again."""
        self.chunks_refused += 1
        log.error("transfer.chunk_refused", partition=partition.id, error=str(error))
        await asyncio.sleep(REFUSED_PAUSE_S)
        self._stored(partition, self._store.transfers.marks()[partition.id], b"")

    def _install_metadata(self, partition: int, rows: bytes, after: bytes) -> TransferMark:
        return self._store.transfers.install_state(partition, rows, first=not after)

    async def _end(self, partition: Partition, effect: fx.FinishTransfer) -> None:
        loop, transfers = self._loop, self._store.transfers
        if effect.rows:
            try:
                await loop.run_in_executor(self._pool, self._install_metadata, partition.id, effect.rows, effect.after)
            except DamagedChunk as error:
                await self._refuse(partition, error)
                return
        await loop.run_in_executor(self._pool, transfers.sync)
        durable = self._restarts[partition.id] = loop.create_future()
        self._storage.restart(partition, effect.end, effect.table)
        await durable
        await loop.run_in_executor(
            self._pool, transfers.finish, partition.id, AppliedPosition(effect.epoch, effect.end)
        )
        self.rounds += 1
        self._reasons.pop(partition.id, None)
        progress = self._progress.pop(partition.id, None)
        chunks, size = (progress.chunks, progress.bytes) if progress else (0, 0)
        log.warning("transfer.round_ends", partition=partition.id, applied=effect.end, chunks=chunks, bytes=size)
        self._events.dispatch(partition, ev.TransferFinished(effect.end, effect.table))

    def log_restarted(self, partition: int) -> bool:
        """A partition's log was cut or restarted; True when that was the restart at a round's end."""
        durable = self._restarts.pop(partition, None)
        if durable is None:
            return False
        if not durable.done():
            durable.set_result(None)
        return True

    def _stored(self, partition: Partition, mark: TransferMark, after: bytes) -> None:
        self._events.dispatch(partition, ev.TransferStored(mark.position, mark.epoch, mark.whole, after))

    def _note_progress(self, partition: Partition, rows: bytes, upto: int, end: int) -> None:
        now_ms = self._time.now_ms()
        progress = self._progress.get(partition.id)
        if progress is None:
            progress = self._progress[partition.id] = _Progress(now_ms, partition.replica.transfer_position or 0)
        progress.chunks += 1
        progress.bytes += len(rows)
        self.bytes_taken += len(rows)
        elapsed_ms = now_ms - progress.began_ms
        left = ""
        if end and upto > progress.began_at and elapsed_ms:
            left_s = elapsed_ms * (end - upto) // (upto - progress.began_at) // 1000
            left = f", about {left_s} s left"
        again = self._reasons.get(partition.id, "")
        partition.transfer_note = (
            f"{quantity(progress.bytes, 'byte')} in {quantity(progress.chunks, 'chunk')}{left}{again}"
        )
        if now_ms - progress.logged_ms >= PROGRESS_LOG_MS:
            progress.logged_ms = now_ms
            log.info("transfer.takes", partition=partition.id, progress=partition.reason)

    def busy(self, partition: int) -> bool:
        """See InFlightWork."""
        task = self._tasks.get(partition)
        return task is not None and not task.done()

    def stop(self) -> None:
        """Install nothing more. Blocks until the chunk being written is done."""
        for task in self._tasks.values():
            task.cancel()
        self._pool.shutdown(wait=True, cancel_futures=True)

    def metrics(self) -> list[Sample]:
        """Rounds and bytes received, chunks refused."""
        return [
            ("isthmus_far_rounds_taken_total", {}, self.rounds),
            ("isthmus_far_bytes_taken_total", {}, self.bytes_taken),
            ("isthmus_far_chunks_refused_total", {}, self.chunks_refused),
        ]
