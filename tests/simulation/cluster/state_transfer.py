"""State transfer in a process: sends rows of its store, and receives those of others.

As in the product: a leader reads one snapshot per round; the receiver marks its replica before the first row, and
starts its log at the round's end before its store's applied offset is set to it. Each step takes a while, in which the
process may die, or lose its directory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgpack

from isthmus.repl.isr import effects as fx
from isthmus.repl.isr import events as ev
from isthmus.repl.isr import messages as ms
from isthmus.repl.isr.epochs import cut, epoch_at
from isthmus.repl.isr.replica import ReplicaRole
from isthmus.repl.model.entry import Entry, decode_entry
from tests.simulation.cluster.disk import SimStore
from tests.simulation.cluster.disk_writers import Start

if TYPE_CHECKING:
    from tests.simulation.cluster.process import Process

CHUNK_ROWS = 3
"""Rows of a chunk: a round takes several."""

PIN_MS = 60_000
"""How long a round pins the log without a message from its receiver."""

STATE_CHUNKS = 2
"""Number of chunks of transfer metadata."""


class Snapshot:
    """A snapshot of a store; `end` is its applied offset."""

    def __init__(self, store: SimStore) -> None:
        self.end = store.applied
        self.epoch = store.history[-1].epoch if store.history else 0
        self.rows = sorted(store.latest.values(), key=lambda entry: entry.offset)
        self.reaped = store.reaped
        self.sent_all = False
        self.heard_ms = 0


class StateTransfers:
    """The state transfers of one process."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self.simulation = process.simulation
        self.snapshots: dict[tuple[int, str], Snapshot] = {}
        self._ending: dict[int, fx.FinishTransfer] = {}
        self._under_way: Counter[int] = Counter()

    def found(self, store: SimStore) -> ev.TransferStored | None:
        """The transfer mark found at a start."""
        return store.transfer

    def perform(self, partition: int, effect: fx.Effect) -> None:
        """Carry out the core's effects, after a delay."""
        if isinstance(effect, fx.SendTransferChunk):
            self.simulation.after(self.simulation.rng.randint(1, 8), self._send, partition, effect)
            return
        work: dict[type, Callable[..., None]] = {
            fx.BeginTransfer: self._go,
            fx.InstallRows: self._rows,
            fx.InstallMetadata: self._state,
            fx.FinishTransfer: self._end,
        }
        self._under_way[partition] += 1
        self.simulation.after(self.process.store.disk_ms(1, 8), work[type(effect)], partition, effect)

    def busy(self, partition: int) -> bool:
        """True while rows of a partition are being written."""
        return self._under_way[partition] > 0 or partition in self._ending

    # -- giving ---------------------------------------------------------------------------------

    def snapshot(self, partition: int) -> Snapshot:
        """The store's present state."""
        return Snapshot(self.process.node.disk.stores[partition])

    def _send(self, partition: int, effect: fx.SendTransferChunk) -> None:
        process, asked = self.process, effect.asked
        replica = process.replicas.get(partition)
        leads = (
            replica is not None
            and replica.role in (ReplicaRole.LEADER, ReplicaRole.RESIGNING)
            and replica.epoch == asked.epoch
        )
        if not process.alive or process.paused or not leads or not process.holds_directory():
            return
        message: ms.Message
        if effect.table is not None:
            self.simulation.counts["far_without_rows"] += 1
            message = ms.TransferMetadata(asked.epoch, asked.nonce, asked.position, b"", b"", 1, effect.table, b"")
        else:
            message = self._chunk(partition, effect.to, asked)
        self.simulation.network.send(process, effect.to, partition, message)

    def _chunk(self, partition: int, to: str, asked: ms.TransferRequest) -> ms.Message:
        key = (partition, to)
        of = self.snapshots.get(key)
        other = of is not None and asked.end not in (0, of.end)
        if of is None or other or asked.position > of.end or (of.sent_all and not asked.end):
            of = self.snapshot(partition)
            if self.lacks_a_reap(of, asked.position):
                self.simulation.counts["far_lacks_a_reap"] += 1
                self.snapshots.pop(key, None)
                start = self.process.node.disk.logs[partition].start
                return ms.FollowRejected(asked.epoch, asked.nonce, ms.FollowRejection.AHEAD, start)
            self.snapshots[key] = of
            self.simulation.counts["far_rounds_begun"] += 1
        of.heard_ms = self.simulation.now_ms
        table = self.process.replicas[partition].epoch_table
        if asked.end == of.end == asked.position and not other:
            rows, last, of.sent_all = self.state(of, asked.after)
            done = int(of.sent_all)
            return ms.TransferMetadata(
                asked.epoch, asked.nonce, of.end, asked.after, last, done, cut(table, of.end), rows
            )
        rows = [entry for entry in of.rows if entry.offset >= asked.position]
        upto = rows[CHUNK_ROWS].offset if len(rows) > CHUNK_ROWS else of.end
        epoch = of.epoch if upto == of.end else epoch_at(table, upto - 1)
        wires = msgpack.packb([entry.wire for entry in rows if entry.offset < upto])
        return ms.TransferRows(asked.epoch, asked.nonce, asked.position, upto, epoch, of.end, wires)

    def state(self, _of: Snapshot, after: bytes) -> tuple[bytes, bytes, bool]:
        """(transfer metadata behind the name `after`; its last name; whether it is complete)."""
        number = int(after or b"0") + 1
        return b"state", b"%d" % number, number == STATE_CHUNKS

    def lacks_a_reap(self, of: Snapshot, position: int) -> bool:
        """Whether a replica that has the rows below `position` may have a key that was reaped since (R-REAP)."""
        return 0 < position <= of.reaped

    def pin(self, partition: int) -> int | None:
        """The offset from which followers that take rows here, or are not in sync yet, need the log."""
        ends = {f.node: f.leo for f in self.process.replicas[partition].followers() if not f.in_sync}
        pins = [
            max(of.end, ends.get(node, 0))
            for (who, node), of in self.snapshots.items()
            if who == partition and self.simulation.now_ms - of.heard_ms < PIN_MS
        ]
        return min(pins, default=None)

    # -- taking ---------------------------------------------------------------------------------

    def _store(self, partition: int) -> SimStore | None:
        process = self.process
        if not process.alive or not process.store.obeyed():
            return None
        return process.node.disk.stores[partition]

    def _go(self, partition: int, effect: fx.BeginTransfer) -> None:
        store = self._store(partition)
        if store is None:
            return
        if self.process.store.asked(partition):
            self.simulation.after(3, self._go, partition, effect)
            return
        self.simulation.checkers.on_transfer_begin(self.process, partition)
        store.begin_transfer(empty=effect.empty)
        self.simulation.counts["far_emptied" if not store.latest else "far_marked"] += 1
        self._notify_applied(partition, store)

    def _notify_applied(self, partition: int, store: SimStore, after: bytes = b"") -> None:
        self._under_way[partition] -= 1
        assert store.transfer is not None
        mark = store.transfer
        self.process.post(partition, ev.TransferStored(mark.position, mark.epoch, mark.whole, after))

    def _rows(self, partition: int, effect: fx.InstallRows) -> None:
        store = self._store(partition)
        if store is not None:
            entries: list[Entry] = [decode_entry(wire) for wire in msgpack.unpackb(effect.rows)]
            self.simulation.counts["far_rows"] += len(entries)
            store.install(entries, effect.upto, effect.upto_epoch)
            self._notify_applied(partition, store)

    def _state(self, partition: int, effect: fx.InstallMetadata) -> None:
        store = self._store(partition)
        if store is not None:
            assert store.transfer is not None
            store.transfer = ev.TransferStored(store.transfer.position, store.transfer.epoch, False)
            self._notify_applied(partition, store, effect.last)

    def _end(self, partition: int, effect: fx.FinishTransfer) -> None:
        self._under_way[partition] -= 1
        if self._store(partition) is not None:
            self._ending[partition] = effect
            self.process.tails[partition].clear()
            self.process.log.ask(partition, Start(effect.end, effect.table))

    def log_restarted(self, partition: int) -> None:
        """The START of a round's end is durable."""
        self.simulation.after(self.process.store.disk_ms(1, 8), self._finish, partition)

    def _finish(self, partition: int) -> None:
        store = self._store(partition)
        effect = self._ending.pop(partition)
        if store is not None:
            committed = self.simulation.checkers.left_far(self.process, partition, effect.end, store.latest)
            store.finish_far(committed)
            self.simulation.counts["far_rounds"] += 1
            self.process.post(partition, ev.TransferFinished(effect.end, effect.table))
