"""Giving rows to followers that are far (docs/protocol.md R-FAR): one snapshot a round, a chunk for each question.

The core says whom to answer (`repl.isr.state_transfer`); here chunks are read in a thread and go in the catch-up lane,
one at a time, since the follower asks for the next one when it has written the last; while it writes, the next is read
ahead. While it takes them, and then until it is in sync, the log is pinned at the round's end, so that the rest is
there when the rows are; the pin dies when nothing is heard for PIN_MS, and `repl.replog` bounds what it may cost.
Nothing here decides who is in sync.

A row of the copy that is missing or damaged can be given to nobody, and to pass over it would make a copy that lacks it
and is called in sync: the follower waits, and the row is reported to who mends rows (docs/protocol.md R-MEND). The
process, which serves all other rows, goes on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Final

import structlog

from isthmus.repl.isr import effects as fx
from isthmus.repl.isr.epochs import cut, epoch_at
from isthmus.repl.isr.messages import FollowRejected, FollowRejection, TransferMetadata, TransferRequest, TransferRows
from isthmus.repl.model.errors import Corruption, DamagedRow, LocalFault
from isthmus.repl.model.ports import TimeSource
from isthmus.repl.runtime.partition import Partition
from isthmus.repl.store.port import REAPED, Snapshot, StateChunk, Store, TransferChunk
from isthmus.repl.telemetry import Sample
from isthmus.repl.transport.port import Links

log = structlog.get_logger(__name__)

CHUNK_BYTES: Final = 1_000_000
"""Most bytes of one chunk, one row at least: what a follower takes of memory here, and there."""

PIN_MS: Final = 60_000
"""A round, its snapshot and its pin end when the follower asks for nothing and acknowledges nothing for this long:
several times a session's time-out, and longer than any single chunk."""

ROOM_POLL_S: Final = 0.02
"""Pause before a full catch-up lane is looked at again."""

ROOM_WAIT_S: Final = 5.0
"""How long a chunk waits for a full lane; then it is dropped, and the follower asks again."""

UNREADABLE_PAUSE_S: Final = 5.0
"""How long a follower waits for an answer after a row that cannot be read was met: rows are mended within seconds where
another replica or another cluster has them, and a question each time would fill the log."""

READ_THREADS: Final = 1
"""One follower's chunks at a time are read: rows come from all over the disk, and live work goes before."""


class _Round:
    """One follower's. `snapshot` and `ahead` belong to the thread while `task` runs."""

    def __init__(self) -> None:
        self.snapshot: Snapshot | None = None
        self.ahead: tuple[int, TransferChunk] | None = None
        """The snapshot's chunk from an offset on, read before it is asked for."""
        self.asked: TransferRequest | None = None
        self.task: asyncio.Task[None] | None = None
        self.sent_all = False
        self.heard_ms = 0
        self.leo = 0
        self.end = 0


class TransferSender:
    """Of one node. `fail` takes a disk that cannot be read."""

    def __init__(self, links: Links, store: Store, time: TimeSource, fail: Callable[[Exception], None]) -> None:
        self.on_damaged: Callable[[int, int | None], None] = lambda _partition, _segment: None
        """Receives the partition and, where it is known, the segment of a row that could not be given."""
        self._links = links
        self._store = store
        self._time = time
        self._fail = fail
        self._loop = asyncio.get_running_loop()
        self._pool = ThreadPoolExecutor(READ_THREADS, thread_name_prefix="far")
        self._rounds: dict[tuple[int, str], _Round] = {}
        self.rounds_begun = 0
        self.rows_sent = 0
        self.bytes_sent = 0
        self.rows_unreadable = 0

    def answer(self, partition: Partition, effect: fx.SendTransferChunk) -> None:
        """Send the chunk that was asked for, soon; a newer question takes the place of one that waits."""
        asked = effect.asked
        if effect.table is not None:
            message = TransferMetadata(asked.epoch, asked.nonce, asked.position, b"", b"", 1, effect.table, b"")
            self._links.send(effect.to, partition.id, message, live=False)
            return
        key = (partition.id, effect.to)
        found = self._rounds.get(key)
        if found is None:
            found = self._rounds[key] = _Round()
        found.asked, found.heard_ms = asked, self._time.now_ms()
        if found.task is None:
            found.task = self._loop.create_task(self._run(partition, effect.to, found))

    async def _run(self, partition: Partition, to: str, of: _Round) -> None:
        try:
            while (asked := of.asked) is not None:
                of.asked = None
                if _stale(partition, asked):
                    continue
                try:
                    chunk = await self._loop.run_in_executor(self._pool, self._read, partition.id, of, asked)
                except Corruption as error:
                    await self._unreadable(partition.id, to, of, error)
                    continue
                if chunk is None:
                    refused = FollowRejected(asked.epoch, asked.nonce, FollowRejection.AHEAD, partition.log_start)
                    self._links.send(to, partition.id, refused, live=False)
                    continue
                if not _stale(partition, asked) and await self._room(to):
                    self._send(partition, to, of, asked, chunk)
                    if isinstance(chunk, TransferChunk) and of.asked is None:
                        with suppress(Corruption):  # told when it is asked for
                            await self._loop.run_in_executor(self._pool, self._read_ahead, of, chunk.upto)
        except (LocalFault, OSError) as error:
            self._fail(error)
        finally:
            of.task = None

    async def _unreadable(self, partition: int, to: str, of: _Round, error: Corruption) -> None:
        """Give nothing for a while; then a new snapshot has the row as it was mended."""
        self.rows_unreadable += 1
        log.error("far.row_unreadable", partition=partition, follower=to, error=str(error))
        if of.snapshot is not None:
            of.snapshot.close()
            of.snapshot = of.ahead = None
        self.on_damaged(partition, error.segment if isinstance(error, DamagedRow) else None)
        await asyncio.sleep(UNREADABLE_PAUSE_S)

    def _read(self, partition: int, of: _Round, asked: TransferRequest) -> TransferChunk | StateChunk | None:
        """In the thread: the chunk that was asked for, of this round's snapshot or, where it was of another, of a new
        round's, which goes on from the follower's position. None where a tombstone was reaped at or above that: no row
        tells it, so the follower must begin with an empty copy (R-REAP)."""
        snapshot = of.snapshot
        other = snapshot is not None and asked.end not in (0, snapshot.end.offset)
        if snapshot is None or other or asked.position > snapshot.end.offset or (of.sent_all and not asked.end):
            if snapshot is not None:
                snapshot.close()
                of.snapshot = of.ahead = None
            snapshot = self._store.far.snapshot(partition)
            if 0 < asked.position <= self._store.cursor(partition, REAPED).entry_offset:
                snapshot.close()
                return None
            of.snapshot = snapshot
            of.sent_all, of.ahead = False, None
            of.end = snapshot.end.offset
            self.rounds_begun += 1
            log.info("far.round_begins", partition=partition, position=asked.position, end=of.end)
        if asked.end == snapshot.end.offset == asked.position and not other:
            return snapshot.state(asked.after, CHUNK_BYTES)
        ahead, of.ahead = of.ahead, None
        if ahead is not None and ahead[0] == asked.position:
            return ahead[1]
        return snapshot.rows(asked.position, CHUNK_BYTES)

    def _read_ahead(self, of: _Round, position: int) -> None:
        """In the thread, while the follower writes what it was sent: what it will ask for next."""
        if of.snapshot is not None and position < of.snapshot.end.offset:
            of.ahead = (position, of.snapshot.rows(position, CHUNK_BYTES))

    def _send(
        self, partition: Partition, to: str, of: _Round, asked: TransferRequest, chunk: TransferChunk | StateChunk
    ) -> None:
        assert of.snapshot is not None
        end = of.snapshot.end
        table = partition.replica.epoch_table
        message: TransferRows | TransferMetadata
        if isinstance(chunk, TransferChunk):
            epoch = end.epoch if chunk.upto == end.offset else epoch_at(table, chunk.upto - 1)
            message = TransferRows(asked.epoch, asked.nonce, asked.position, chunk.upto, epoch, end.offset, chunk.rows)
            self.rows_sent += chunk.row_count
        else:
            of.sent_all = chunk.done
            done = int(chunk.done)
            at_end = cut(table, end.offset)
            message = TransferMetadata(
                asked.epoch, asked.nonce, end.offset, asked.after, chunk.last, done, at_end, chunk.rows
            )
        self.bytes_sent += len(chunk.rows)
        self._links.send(to, partition.id, message, live=False)

    async def _room(self, to: str) -> bool:
        deadline = self._loop.time() + ROOM_WAIT_S
        while not self._links.catch_up_room(to):
            if self._loop.time() >= deadline:
                return False
            await asyncio.sleep(ROOM_POLL_S)
        return True

    def look(self, partitions: Mapping[int, Partition]) -> Mapping[int, int]:
        """End the rounds of followers that are in sync, or silent, or led by others; returns from where on the log of
        each partition is needed."""
        now_ms = self._time.now_ms()
        pins: dict[int, int] = {}
        for key, found in list(self._rounds.items()):
            partition = partitions[key[0]]
            view = next((f for f in partition.replica.followers() if f.node == key[1]), None)
            if view is not None and view.leo > found.leo:
                found.leo, found.heard_ms = view.leo, now_ms
            silent = now_ms - found.heard_ms > PIN_MS
            if found.task is None and (silent or not partition.leads or (view is not None and view.in_sync)):
                if silent:
                    log.warning(
                        "far.pin_dropped",
                        partition=key[0],
                        peer=key[1],
                        advice="where followers are merely slow, raise the option replication.catch.up.rate",
                    )
                self._close(key)
            elif found.snapshot is not None:
                pins[key[0]] = min(pins.get(key[0], found.end), max(found.end, found.leo))
        return pins

    def _close(self, key: tuple[int, str]) -> None:
        snapshot = self._rounds.pop(key).snapshot
        if snapshot is not None:
            snapshot.close()

    def busy(self, partition: int) -> bool:
        """True while a round of a partition is not ended."""
        return any(key[0] == partition for key in self._rounds)

    def stop(self) -> None:
        """Send nothing more, and let go of the store. Blocks until the chunk that is being read is there."""
        for found in self._rounds.values():
            if found.task is not None:
                found.task.cancel()
        self._pool.shutdown(wait=True, cancel_futures=True)
        for key in list(self._rounds):
            self._close(key)

    def metrics(self) -> list[Sample]:
        """What was given."""
        return [
            ("isthmus_far_rounds_begun_total", {}, self.rounds_begun),
            ("isthmus_far_rows_sent_total", {}, self.rows_sent),
            ("isthmus_far_bytes_sent_total", {}, self.bytes_sent),
            ("isthmus_far_rows_unreadable_total", {}, self.rows_unreadable),
        ]


def _stale(partition: Partition, asked: TransferRequest) -> bool:
    return not partition.leads or partition.replica.epoch != asked.epoch
