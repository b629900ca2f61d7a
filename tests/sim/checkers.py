"""Every named invariant, looked at after every event; what is expensive, after every so many and at restarts.

The checks are `repl.isr.invariants`; here is what they are fed: the disks, the metastore and the history as the
world knows them, never what the core believes of itself, except for the few checks that are about that.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING

from repl.isr import effects as fx
from repl.isr import events as ev
from repl.isr import invariants
from repl.isr.invariants import History
from repl.isr.membership import guard
from repl.isr.replica import Role
from repl.model.entry import Entry
from repl.model.record import Member, PartitionRecord, PartitionStatus

if TYPE_CHECKING:
    from tests.sim.process import Process
    from tests.sim.world import World

DEEP_EVERY = 400
"""Whole logs are scanned after every so many events of cores, and at every start."""


class Checkers:
    """The eyes of one world."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.histories: defaultdict[int, History] = defaultdict(History)
        """All that happened to each partition."""
        self._views: dict[tuple[str, int], tuple[int | None, PartitionRecord]] = {}
        self._hws: dict[tuple[str, int], int] = {}
        self._epochs_seen: dict[tuple[str, int, int], int] = {}
        self._steps = 0
        self.disks_replaced = False
        """A disk was replaced on purpose: the promise of a single replica no longer holds."""

    # -- the metastore --------------------------------------------------------------------------

    def record_changed(self, before: PartitionRecord, after: PartitionRecord) -> None:
        """The metastore took a conditional write."""
        invariants.epoch_mono(before, after)
        invariants.leader_in_isr(after)
        partition = after.partition
        gens = {name: node.disk.gens[partition] for name, node in self.world.nodes.items()}
        if not self.disks_replaced:
            invariants.some_guard(after, gens)
        self.world.counts[f"status_{after.status}"] += 1
        if before.leader is not None and after.leader is None and after.reason.endswith("resigned"):
            self.world.counts["resigned"] += 1

    # -- processes ------------------------------------------------------------------------------

    def booted(self, process: Process) -> None:
        """A process recovered its directory."""
        for partition, replica in process.replicas.items():
            self._hws[process.name, partition] = replica.hw
            self._deep(process, partition)

    def appended(self, process: Process, partition: int, entries: Sequence[Entry]) -> None:
        """A process made entries as a leader, and hands them to the log."""
        history = self.histories[partition]
        who = process.me()
        assert who is not None
        for entry in entries:
            invariants.epoch_one(history, entry.epoch, who)
            invariants.dot_unique(history, entry)
        invariants.no_false_nack(history, entries)
        if process.holds_directory():
            seen = process.node.disk.epochs_seen[partition]
            invariants.epoch_seen_mono(0, seen, entries[-1].epoch)

    def refused(self, partition: int, entries: Sequence[Entry]) -> None:
        """A client was told that these will never take effect."""
        self.histories[partition].refused.update(entry.request_id for entry in entries)

    def stepped(self, process: Process, partition: int, event: ev.Event, effects: Sequence[fx.Effect]) -> None:
        """A core took an event; nothing of what it asks for has been done yet."""
        replica = process.replicas[partition]
        self._steps += 1
        self._check_view(process, partition)
        self._check_commit(process, partition)
        if isinstance(event, ev.RecordSeen) and replica.record is not event.record:
            self.world.counts["old_record_ignored"] += 1
        undecided = process.undecided[partition]
        for effect in effects:
            if isinstance(effect, fx.WriteRecord):
                invariants.write_one(undecided, effect.record)
                self.world.counts["write_repeated"] += any(other is effect.record for other in undecided)
        if process.holds_directory():
            self._check_log(process, partition)
            if replica.ready:  # a committed read would be served at this moment
                self.world.counts["reads"] += 1
                history = self.histories[partition]
                invariants.read_lin(history, history.acked_end, process.node.disk.stores[partition].applied)
            if self._steps % DEEP_EVERY == 0:
                self._deep(process, partition)

    def _check_view(self, process: Process, partition: int) -> None:
        """What a process believes of the record only moves forward; its epochs also over sessions."""
        record = process.replicas[partition].record
        if record is None:
            return
        key = (process.name, partition)
        known = self._views.get(key)
        if known is None or known[1] is not record:
            if known is not None and known[0] == process.session.inc:
                invariants.epoch_mono(known[1], record)
            self._views[key] = (process.session.inc, record)
            undecided = process.undecided[partition]
            if undecided:
                process.undecided[partition] = [other for other in undecided if other.version >= record.version]

    def _check_commit(self, process: Process, partition: int) -> None:
        """When hw moved: by the commit rule, and to what nobody decided otherwise."""
        replica = process.replicas[partition]
        before = self._hws[process.name, partition]
        if replica.hw == before:
            return
        self._hws[process.name, partition] = replica.hw
        history = self.histories[partition]
        log = process.node.disk.logs[partition]
        who, record = process.me(), replica.record
        assert who is not None
        assert record is not None
        barriers = [offset for epoch, offset in replica.epoch_table if epoch == replica.epoch]
        invariants.commit_rule(
            record,
            next(iter(process.undecided[partition]), None),
            who,
            {Member(process.node.name, process.node.disk.gens[partition]): log.synced},
            barriers[0] if barriers else replica.leo,
            replica.hw,
        )
        for offset in range(max(before, log.start), replica.hw):
            invariants.commit_agree(history, offset, process.entry(partition, offset))
        self.world.counts["commits"] += 1

    def _check_log(self, process: Process, partition: int) -> None:
        """Cheap looks at the directory that the process holds."""
        replica, history = process.replicas[partition], self.histories[partition]
        disk = process.node.disk
        log = disk.logs[partition]
        invariants.apply_order(history, log.start, replica.applied, replica.hw, log.synced, replica.leo)
        if self._in_guard(process, partition):
            start = max(log.start, len(history.committed) - 3)
            invariants.guard_complete(history, start, log.read(start, log.synced) if log.synced > start else ())
        key = (process.node.name, partition, disk.gens[partition])
        seen = disk.epochs_seen[partition]
        invariants.epoch_seen_mono(self._epochs_seen.get(key, 0), seen, log.entries[-1].epoch if log.entries else 0)
        self._epochs_seen[key] = seen

    def _in_guard(self, process: Process, partition: int) -> bool:
        member = Member(process.node.name, process.node.disk.gens[partition])
        return member in guard(self.world.metastore.records[partition])

    def _deep(self, process: Process, partition: int) -> None:
        """Scan the whole log."""
        history, log = self.histories[partition], process.node.disk.logs[partition]
        invariants.epoch_asc(log.start, log.entries)
        invariants.log_leader(history, log.entries)
        invariants.no_false_nack(history, log.entries)
        if self._in_guard(process, partition):
            invariants.guard_complete(history, log.start, log.durable())
        table = tuple(row for row in process.replicas[partition].epoch_table if row[1] < log.end)
        invariants.table_derived(table, log.start, log.entries)

    # -- clients --------------------------------------------------------------------------------

    def applied(self, partition: int, entries: Sequence[Entry]) -> None:
        """Entries go into the store."""
        history = self.histories[partition]
        invariants.no_false_nack(history, entries)
        for entry in entries:
            invariants.applied_rows(history, entry.offset, entry)

    def acknowledged(self, process: Process, partition: int, request_id: bytes, offset: int) -> None:
        """A client was told that its request took effect."""
        invariants.ack(self.histories[partition], request_id, offset, process.replicas[partition].applied)

    # -- the end --------------------------------------------------------------------------------

    def unwell(self) -> str:
        """What keeps the world from being well; empty when nothing does."""
        for partition, record in self.world.metastore.records.items():
            if record.status is not PartitionStatus.ONLINE or record.leader is None:
                return f"partition {partition} is {record.status}: {record.reason}"
            process = self.world.nodes[record.leader.node].current
            if process is None or record.leader != process.me() or process.stopping:
                return f"partition {partition} is led by {record.leader}, which is not the process there"
            replica = process.replicas[partition]
            log = process.node.disk.logs[partition]
            if replica.role is not Role.LEADER or not replica.ready:
                return f"partition {partition}: {replica.role}, {replica.reason}"
            ends = {replica.leo, replica.durable, replica.hw, replica.applied, log.end, log.synced}
            if len(ends) > 1:
                return f"partition {partition} has not come to rest: {sorted(ends)}"
            if record.isr != {Member(record.leader.node, process.node.disk.gens[partition])} or record.elr:
                return f"partition {partition}: in sync {sorted(record.isr)}, eligible {sorted(record.elr)}"
        return ""

    def final(self) -> None:
        """Everything that was ever acknowledged is in the state, once."""
        for partition, history in self.histories.items():
            node = self.world.nodes[self.world.metastore.records[partition].replicas[0]]
            invariants.acks_kept(history, node.disk.stores[partition].rows)
            self.world.counts["committed"] += len(history.committed)
