"""Sends rows of the store to followers beyond the log: state transfer (docs/protocol.md R-FAR).

A round reads one snapshot. The follower asks for each chunk when it has written the last one; a thread reads it, and
reads the next one ahead. Chunks go in the catch-up lane. During a round, and then until the follower is in sync, the
log is pinned at the round's end, so that the rest is there once the rows are. The pin ends when the follower neither
asks nor acknowledges for PIN_MS; `repl.replog` bounds its cost. The core decides whom to answer
(`repl.isr.state_transfer`), and who is in sync.

A missing or damaged row cannot be sent, and skipping it would make a copy that lacks it and counts as in sync: the
follower waits, and the row is reported to be mended (docs/protocol.md R-MEND). The process keeps serving other rows.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Final

import structlog

from isthmus.repl.isr import effects as fx
from isthmus.repl.isr.epochs import cut, epoch_at
from isthmus.repl.isr.messages import FollowRejected, FollowRejection, TransferMetadata, TransferRequest, TransferRows
from isthmus.repl.model.errors import Corruption, DamagedRow, LocalFault, StorageShort
from isthmus.repl.model.ports import DamageListener, TimeSource
from isthmus.repl.runtime.partition import Partition
from isthmus.repl.runtime.port import EventSink
from isthmus.repl.store.port import REAPED, Snapshot, StateChunk, Store, TransferChunk
from isthmus.repl.telemetry import Sample
from isthmus.repl.transport.port import Links
from isthmus.repl.unforeseen import unforeseen

log = structlog.get_logger(__name__)

CHUNK_BYTES: Final = 1_000_000
"""Most bytes of one chunk, at least one row: the memory that a follower costs here, and there."""

PIN_MS: Final = 60_000
"""A round, its snapshot and its pin end when the follower neither asks nor acknowledges for this long: several session
timeouts, and longer than any single chunk."""

LANE_POLL_S: Final = 0.02
"""Pause between checks of a full catch-up lane."""

LANE_WAIT_S: Final = 5.0
"""How long a chunk waits for a full lane before it is dropped; the follower asks again."""

UNREADABLE_PAUSE_S: Final = 5.0
"""Pause after a row that cannot be read: rows are mended within seconds where another replica or cluster has them, and
reporting each retry would fill the node's log."""

READ_THREADS: Final = 1
"""Chunks are read for one follower at a time: rows come from all over the disk, and live work has precedence."""


class _Round:
    """One follower's transfer. `snapshot` and `ahead` belong to the thread while `task` runs."""

    def __init__(self) -> None:
        self.snapshot: Snapshot | None = None
        self.ahead: tuple[int, TransferChunk] | None = None
        """(position, chunk) read ahead of its request."""
        self.request: TransferRequest | None = None
        """The newest request that is not answered."""
        self.task: asyncio.Task[None] | None = None
        self.sent_all = False
        """The follower was sent the snapshot's last chunk of metadata."""
        self.active_ms = 0
        """When the follower last asked or acknowledged."""
        self.leo = 0
        """The follower's log end, as last acknowledged."""
        self.end = 0
        """The snapshot's applied offset: where the log is pinned."""

    def drop_snapshot(self) -> None:
        """The next chunk is read from a new one."""
        if self.snapshot is not None:
            self.snapshot.close()
            self.snapshot = self.ahead = None


class TransferSender:
    """State transfers from this node to all followers."""

    def __init__(
        self, links: Links, store: Store, time: TimeSource, events: EventSink, damage_listener: DamageListener
    ) -> None:
        """`damage_listener` gets rows that could not be read."""
        self._links = links
        self._store = store
        self._time = time
        self._events = events
        self._damage_listener = damage_listener
        self._loop = asyncio.get_running_loop()
        self._pool = ThreadPoolExecutor(READ_THREADS, thread_name_prefix="transfer")
        self._rounds: dict[tuple[int, str], _Round] = {}
        self.rounds_begun = 0
        self.rows_sent = 0
        self.bytes_sent = 0
        self.rows_unreadable = 0

    def answer(self, partition: Partition, effect: fx.SendTransferChunk) -> None:
        """Send the requested chunk soon; a newer request replaces one that waits."""
        request = effect.asked
        if effect.table is not None:
            message = TransferMetadata(request.epoch, request.nonce, request.position, b"", b"", 1, effect.table, b"")
            self._links.send(effect.to, partition.id, message, live=False)
            return
        key = (partition.id, effect.to)
        round_ = self._rounds.get(key)
        if round_ is None:
            round_ = self._rounds[key] = _Round()
        round_.request, round_.active_ms = request, self._time.now_ms()
        if round_.task is None:
            round_.task = self._loop.create_task(self._run(partition, effect.to, round_))

    async def _run(self, partition: Partition, to: str, round_: _Round) -> None:
        try:
            while (request := round_.request) is not None:
                round_.request = None
                if _stale(partition, request):
                    continue
                try:
                    chunk = await self._loop.run_in_executor(self._pool, self._read, partition.id, round_, request)
                except Corruption as error:
                    await self._unreadable(partition.id, to, round_, error)
                    continue
                if chunk is None:
                    refused = FollowRejected(request.epoch, request.nonce, FollowRejection.AHEAD, partition.log_start)
                    self._links.send(to, partition.id, refused, live=False)
                    continue
                if not _stale(partition, request) and await self._lane_free(to):
                    self._send(partition, to, round_, request, chunk)
                    if isinstance(chunk, TransferChunk) and round_.request is None:
                        with suppress(Corruption):  # reported when it is requested
                            await self._loop.run_in_executor(self._pool, self._read_ahead, round_, chunk.upto)
        except StorageShort as error:  # as if the answer had been lost: the follower asks again
            log.warning("transfer.short", partition=partition.id, peer=to, error=str(error))
            round_.drop_snapshot()  # the store may have been opened again
        except (LocalFault, OSError) as error:
            self._events.fail(error)
        except Exception as bug:  # as if the answer had been lost
            unforeseen.exception("transfer.send_bug", bug, partition=partition.id, peer=to)
            round_.drop_snapshot()
        finally:
            round_.task = None

    async def _unreadable(self, partition: int, to: str, round_: _Round, error: Corruption) -> None:
        """Report the row and pause; a new snapshot then has the row as it was mended."""
        self.rows_unreadable += 1
        log.error("transfer.row_unreadable", partition=partition, peer=to, error=str(error))
        round_.drop_snapshot()
        self._damage_listener.on_damaged_row(partition, error.segment if isinstance(error, DamagedRow) else None)
        await asyncio.sleep(UNREADABLE_PAUSE_S)

    def _read(self, partition: int, round_: _Round, request: TransferRequest) -> TransferChunk | StateChunk | None:
        """Read the requested chunk, in the thread: from this round's snapshot, or from a new one that goes on at the
        follower's position where the request belongs to another round. None where a tombstone was reaped at or above
        that position: no row shows it, so the follower must begin with an empty copy (R-REAP)."""
        snapshot = round_.snapshot
        other = snapshot is not None and request.end not in (0, snapshot.end.offset)
        if snapshot is None or other or request.position > snapshot.end.offset or (round_.sent_all and not request.end):
            if snapshot is not None:
                snapshot.close()
                round_.snapshot = round_.ahead = None
            snapshot = self._store.transfers.snapshot(partition)
            if 0 < request.position <= self._store.cursor(partition, REAPED).entry_offset:
                snapshot.close()
                return None
            round_.snapshot = snapshot
            round_.sent_all, round_.ahead = False, None
            round_.end = snapshot.end.offset
            self.rounds_begun += 1
            log.info("transfer.round_begins", partition=partition, position=request.position, end=round_.end)
        if request.end == snapshot.end.offset == request.position and not other:
            return snapshot.state(request.after, CHUNK_BYTES)
        ahead, round_.ahead = round_.ahead, None
        if ahead is not None and ahead[0] == request.position:
            return ahead[1]
        return snapshot.rows(request.position, CHUNK_BYTES)

    def _read_ahead(self, round_: _Round, position: int) -> None:
        """Read the next chunk, in the thread, while the follower writes the last one."""
        if round_.snapshot is not None and position < round_.snapshot.end.offset:
            round_.ahead = (position, round_.snapshot.rows(position, CHUNK_BYTES))

    def _send(
        self, partition: Partition, to: str, round_: _Round, request: TransferRequest, chunk: TransferChunk | StateChunk
    ) -> None:
        assert round_.snapshot is not None
        end = round_.snapshot.end
        table = partition.replica.epoch_table
        message: TransferRows | TransferMetadata
        if isinstance(chunk, TransferChunk):
            epoch = end.epoch if chunk.upto == end.offset else epoch_at(table, chunk.upto - 1)
            message = TransferRows(
                request.epoch, request.nonce, request.position, chunk.upto, epoch, end.offset, chunk.rows
            )
            self.rows_sent += chunk.row_count
        else:
            round_.sent_all = chunk.done
            done = int(chunk.done)
            at_end = cut(table, end.offset)
            message = TransferMetadata(
                request.epoch, request.nonce, end.offset, request.after, chunk.last, done, at_end, chunk.rows
            )
        self.bytes_sent += len(chunk.rows)
        self._links.send(to, partition.id, message, live=False)

    async def _lane_free(self, to: str) -> bool:
        deadline = self._loop.time() + LANE_WAIT_S
        while not self._links.catch_up_room(to):
            if self._loop.time() >= deadline:
                return False
            await asyncio.sleep(LANE_POLL_S)
        return True

    def end_rounds(self, partitions: Mapping[int, Partition]) -> Mapping[int, int]:
        """End the rounds of followers that are in sync, silent, or led by others; returns the first offset that each
        partition's log must keep."""
        now_ms = self._time.now_ms()
        pins: dict[int, int] = {}
        for key, round_ in list(self._rounds.items()):
            partition = partitions[key[0]]
            view = next((f for f in partition.replica.followers() if f.node == key[1]), None)
            if view is not None and view.leo > round_.leo:
                round_.leo, round_.active_ms = view.leo, now_ms
            silent = now_ms - round_.active_ms > PIN_MS
            if round_.task is None and (silent or not partition.leads or (view is not None and view.in_sync)):
                if silent:
                    log.warning(
                        "transfer.pin_dropped",
                        partition=key[0],
                        peer=key[1],
                        advice="where followers are merely slow, raise the option replication.catch.up.rate",
                    )
                self._close(key)
            elif round_.snapshot is not None:
                pins[key[0]] = min(pins.get(key[0], round_.end), max(round_.end, round_.leo))
        return pins

    def _close(self, key: tuple[int, str]) -> None:
        snapshot = self._rounds.pop(key).snapshot
        if snapshot is not None:
            snapshot.close()

    def busy(self, partition: int) -> bool:
        """See InFlightWork."""
        return any(key[0] == partition for key in self._rounds)

    def stop(self) -> None:
        """Send nothing more, and close all snapshots. Blocks until the chunk being read is done."""
        for round_ in self._rounds.values():
            if round_.task is not None:
                round_.task.cancel()
        self._pool.shutdown(wait=True, cancel_futures=True)
        for key in list(self._rounds):
            self._close(key)

    def metrics(self) -> list[Sample]:
        """Rounds begun, rows and bytes sent, unreadable rows."""
        return [
            ("isthmus_far_rounds_begun_total", {}, self.rounds_begun),
            ("isthmus_far_rows_sent_total", {}, self.rows_sent),
            ("isthmus_far_bytes_sent_total", {}, self.bytes_sent),
            ("isthmus_far_rows_unreadable_total", {}, self.rows_unreadable),
        ]


def _stale(partition: Partition, request: TransferRequest) -> bool:
    """True when the leadership that got the request is over."""
    return not partition.leads or partition.replica.epoch != request.epoch
