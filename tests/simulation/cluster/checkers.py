"""Checks every named invariant after every event; expensive checks run after every so many events and at restarts.

The checks are `tests.simulation.cluster.invariants`; this module passes them their input: the disks, the metastore and
the history of the simulation, never the core's own view of itself, except for the few checks of that view.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from isthmus.repl.isr import effects as fx
from isthmus.repl.isr import events as ev
from isthmus.repl.isr import messages as ms
from isthmus.repl.isr.membership import guard
from isthmus.repl.isr.replica import Replica, ReplicaRole
from isthmus.repl.model.entry import Entry
from isthmus.repl.model.record import Member, PartitionRecord, PartitionStatus
from tests.simulation.cluster import invariants
from tests.simulation.cluster.declared_losses import Declarations
from tests.simulation.cluster.disk import effect_of
from tests.simulation.cluster.invariants import PartitionHistory, Violation

if TYPE_CHECKING:
    from tests.simulation.cluster.disk import SimLog
    from tests.simulation.cluster.nodes import Node
    from tests.simulation.cluster.process import Process
    from tests.simulation.cluster.simulator import ClusterSimulation

DEEP_EVERY = 700
"""Whole logs are scanned after every so many events of cores, and at every start."""

LEADS = (ReplicaRole.LEADER, ReplicaRole.RESIGNING)


class Checkers:
    """The eyes of one simulation."""

    def __init__(self, simulation: ClusterSimulation) -> None:
        self.simulation = simulation
        self.histories: dict[int, PartitionHistory] = {}
        """The history of each partition."""
        self._views: dict[tuple[str, int], PartitionRecord | None] = {}
        self._hws: dict[tuple[str, int], int] = {}
        self._epochs_seen: dict[tuple[str, int, int], int] = {}
        self._refused_versions: dict[tuple[str, int], int] = {}
        self._lost_ends: dict[tuple[str, int, int], int] = {}
        """(node, partition, log id) -> end of that log when it was lost."""
        self._answered: dict[tuple[str, int], tuple[int, dict[Member, int]]] = {}
        """(process, partition) -> hw when the current record arrived, and the members' reports of their replicas
        since."""
        self._notified: set[tuple[str, int]] = set()
        """(process, partition) pairs that the upper layers know as leading."""
        self.declared = Declarations(self)
        self._began: dict[int, tuple[str, ...]] = {}
        """partition -> its replicas when no change of them was under way last."""
        self._steps = 0
        self.beyond_promise = False
        """Data is lost beyond the promise, on purpose: electable replicas may lack entries."""

    def history(self, partition: int) -> PartitionHistory:
        """The history of a partition."""
        found = self.histories.get(partition)
        if found is None:
            found = self.histories[partition] = PartitionHistory()
        return found

    # -- the metastore --------------------------------------------------------------------------

    def record_changed(self, before: PartitionRecord, after: PartitionRecord) -> None:
        """The metastore took a conditional write."""
        invariants.epoch_mono(before, after)
        invariants.leader_in_isr(after)
        invariants.moved(before, after)
        partition = after.partition
        if not (before.adding or before.removing):
            self._began[partition] = before.replicas
        invariants.factor_in_force(self._began[partition], after)
        if not self.declared.record_changed(before, after):
            invariants.min_guard(before, after)
        if not self.beyond_promise:
            log_ids = {name: self.simulation.nodes[name].disk.log_ids[partition] for name in after.replicas}
            invariants.some_guard(after, log_ids)
        if before.isr != after.isr or before.elr != after.elr:
            self.guard_complete(partition)
        self._count_change(before, after)

    def _count_change(self, before: PartitionRecord, after: PartitionRecord) -> None:
        counts = self.simulation.counts
        if before.status is not after.status:
            counts[f"status_{after.status}"] += 1
        if before.leader is not None and after.leader is None and after.preferred is not None:
            counts["handed_over"] += 1
        if after.epoch > before.epoch:
            counts["elections"] += 1
            if after.candidate is not None and after.candidate.node not in {m.node for m in after.isr}:
                counts["elr_elected"] += 1
        if before.isr - after.isr:
            counts["shrinks"] += 1
        if after.isr - before.isr:
            counts["expands"] += 1
        if after.elr - before.elr:
            counts["elr_joined"] += 1
        if before.elr and not after.elr:
            counts["elr_cleared"] += 1
        if after.replicas != before.replicas:
            counts["replicas_added" if len(after.replicas) > len(before.replicas) else "replicas_removed"] += 1
        if before.adding and not after.adding and after.replicas == before.replicas:
            counts["change_cancelled" if after.removing else "replicas_joined"] += 1
        if after.min_isr != before.min_isr:
            counts["min_isr_changed"] += 1
        if after == before:
            counts["write_without_change"] += 1

    # -- disks ----------------------------------------------------------------------------------

    def attached(self, process: Process, partition: int) -> None:
        """A process created a replica from its directory."""
        self._hws[process.name, partition] = process.replicas[partition].high_watermark
        self._answered[process.name, partition] = (0, {})
        self.declared.attached(process.node, partition)
        self._views.pop((process.name, partition), None)
        self._notified.discard((process.name, partition))
        self._deep(process, partition)

    def condemned(self, node: Node, partition: int) -> None:
        """A replica is about to be deleted: it must not be electable (I-CLEARED). A former leader that is paused and
        has its acknowledgement may still count it."""
        self._lost_ends[node.name, partition, node.disk.log_ids[partition]] = self.kept(node.disk.logs[partition])
        invariants.cleared(
            self.simulation.metastore.records[partition], Member(node.name, node.disk.log_ids[partition])
        )

    def data_lost(self, node: Node) -> None:
        """A machine is about to lose its logs, or their log ids."""
        for partition, log in node.disk.logs.items():
            if partition in node.disk.condemned:
                continue
            self._lost_ends[node.name, partition, node.disk.log_ids[partition]] = self.kept(log)

    def disk_changed(self, node: Node) -> None:
        """A machine lost data, or data of uncertain presence."""
        for partition in node.partitions:
            record = self.simulation.metastore.records[partition]
            if not self.beyond_promise:
                log_ids = {name: self.simulation.nodes[name].disk.log_ids[partition] for name in record.replicas}
                invariants.some_guard(record, log_ids)
            self.guard_complete(partition)

    def guard_complete(self, partition: int) -> None:
        """Every electable replica has all committed entries on disk."""
        if self.beyond_promise:
            return
        history = self.history(partition)
        decided = len(history.committed)
        for member in guard(self.simulation.metastore.records[partition]):
            disk = self.simulation.nodes[member.node].disk
            if disk.log_ids[partition] != member.log_id or partition not in disk.logs:
                continue
            log = disk.logs[partition]
            end = self.kept(log)
            if end < decided or (end > decided and decided and log.start < decided) or end == decided:
                start = max(log.start, decided - 3)
                invariants.guard_complete(history, start, log.read(start, end) if end > start else ())

    def kept(self, log: SimLog) -> int:
        """The part of a log that an acknowledgement may rest on."""
        return log.end if self.simulation.plan.asynchronous else log.synced

    def agreed(self, node: Node, partition: int) -> int:
        """The offset up to which a log agrees with the committed entries."""
        log, decided = node.disk.logs[partition], self.history(partition).committed
        end = min(log.end, len(decided))
        while end > log.start and log.entries[end - 1 - log.start].wire != decided[end - 1].wire:
            end -= 1
        return end

    # -- state transfers ------------------------------------------------------------------------

    def on_transfer_begin(self, process: Process, partition: int) -> None:
        """A replica is about to be marked for a transfer: no record counts on it (I-FAR-GUARD)."""
        member = Member(process.node.name, process.node.disk.log_ids[partition])
        if member in guard(self.simulation.metastore.records[partition]) and not self.beyond_promise:
            raise Violation("I-FAR-GUARD", f"{member} may be elected, and its rows are about to be replaced")

    def left_far(self, process: Process, partition: int, end: int, latest: dict[int, Entry]) -> Sequence[Entry]:
        """A transfer round is complete: the replica is exactly the effect of the committed entries below its end.
        Returns that."""
        decided = self.history(partition).committed
        wanted = effect_of(decided[:end])
        if end > len(decided) or {k: e.wire for k, e in latest.items()} != {k: e.wire for k, e in wanted.items()}:
            raise Violation(
                "I-FAR-COMMITTED",
                f"{process.name} is done at {end} of {len(decided)} with {sorted(e.offset for e in latest.values())}, "
                f"the latest changes are {sorted(e.offset for e in wanted.values())}",
            )
        return decided[:end]

    # -- entries in logs ----------------------------------------------------------------------

    def appended(self, process: Process, partition: int, entries: Sequence[Entry], made_here: bool) -> None:
        """A process passes entries to its log: a leader's own, or those that a leader sent."""
        history = self.history(partition)
        if made_here:
            who = process.me()
            assert who is not None
            for entry in entries:
                invariants.epoch_one(history, entry.epoch, who)
                invariants.dot_unique(history, entry)
            invariants.no_false_nack(history, entries)
        else:
            self.simulation.counts["entries_copied"] += len(entries)
            invariants.log_leader(history, entries)
        invariants.log_match(history, self._epoch_below(process, partition, entries[0].offset), entries)
        if process.holds_directory():
            seen = process.node.disk.epochs_seen[partition]
            invariants.epoch_seen_mono(0, seen, entries[-1].epoch)

    def _epoch_below(self, process: Process, partition: int, offset: int) -> int | None:
        """The epoch of the entry before `offset` in a process's log, None where that is trimmed."""
        if offset == 0:
            return 0
        mine, log = process.tails[partition].get(offset - 1), process.node.disk.logs[partition]
        if mine is not None:
            return mine.epoch
        return log.entries[offset - 1 - log.start].epoch if log.start < offset <= log.end else None

    def refused(self, partition: int, entries: Sequence[Entry]) -> None:
        """A client got the answer that these will never take effect."""
        self.history(partition).refused.update(entry.request_id for entry in entries)

    # -- every step -----------------------------------------------------------------------------

    def stepped(self, process: Process, partition: int, event: ev.Event, effects: Sequence[fx.Effect]) -> None:
        """A core took an event; none of its effects has been carried out yet."""
        replica = process.replicas[partition]
        self._steps += 1
        key = (process.name, partition)
        view = self._views.get(key)
        record = replica.record
        if record is not view:
            self._check_view(process, partition, view, record)
        if type(event) is ev.Received and type(event.message) is ms.LeadershipCheckOk:
            said = event.message
            answered = self._answered[key][1]
            member = Member(event.node, said.log_id)
            answered[member] = max(said.durable, answered.get(member, 0))
        if type(event) is ev.TransferFinished:
            self._hws[key] = replica.high_watermark
        elif replica.high_watermark != self._hws[key]:
            self.declared.hw_moved(process, partition, replica)
            self._check_hw(process, partition, replica)
        far = replica.transfer_position is not None
        if type(event) is ev.WriteRefused and event.current.version == event.base_version:
            self._refused_versions[key] = event.base_version
        for effect in effects:
            kind = type(effect)
            if kind is fx.WriteRecord:
                self._check_write(process, partition, effect.record)
            elif kind is fx.Truncate:
                self._check_truncate(process, partition, effect)
            elif kind is fx.RoleChanged:
                self._check_role(process, partition, event, effect)
            elif kind is fx.LeadershipReady:
                self._notified.add(key)
            elif kind is fx.SteppedDown:
                self._notified.discard(key)
            elif kind is fx.Send and far and type(effect.message) is ms.AppendAck:
                raise Violation("I-FAR-NO-ACK", f"{process.name} acknowledges, and its copy is far")
            elif kind is fx.Send and type(effect.message) in (
                ms.FollowAccepted,
                ms.FollowRejected,
                ms.AppendRejected,
                ms.StaleEpoch,
            ):
                self._count_message(effect.message)
            elif kind is fx.Send and self.declared.acts and type(effect.message) is ms.AppendAck:
                self.declared.acknowledges(process, partition)
        if replica.ready != (key in self._notified) and replica.role is not ReplicaRole.RESIGNING:
            raise Violation("I-TOLD", f"{process.name} as {replica.role.value} has told {key in self._notified}")
        if process.holds_directory():
            self._check_log(process, partition, replica)
            if self._steps % DEEP_EVERY == 0 and not any(type(effect) is fx.Truncate for effect in effects):
                self._deep(process, partition)

    def _count_message(self, message: ms.Message) -> None:
        name = type(message).__name__
        if isinstance(message, ms.FollowRejected):
            name += f"_{message.refusal}"
        self.simulation.counts[name] += 1

    def _check_view(
        self, process: Process, partition: int, known: PartitionRecord | None, record: PartitionRecord | None
    ) -> None:
        """A process's known record only moves forward; it starts again with a session."""
        self._views[process.name, partition] = record
        self._answered[process.name, partition] = (process.replicas[partition].high_watermark, {})
        if record is None:
            return
        if known is not None:
            invariants.epoch_mono(known, record)
        undecided = process.undecided[partition]
        if undecided:
            process.undecided[partition] = [other for other in undecided if other.version >= record.version]

    def _check_write(self, process: Process, partition: int, record: PartitionRecord) -> None:
        """A process sends a conditional write."""
        undecided = process.undecided[partition]
        if any(other is record for other in undecided):
            self.simulation.counts["write_repeated"] += 1
            return
        refused = self._refused_versions.get((process.name, partition)) == record.version
        known = process.replicas[partition].record
        if known is not None and {*known.replicas} - {*record.replicas}:
            floor, answered = self._answered[process.name, partition]
            invariants.asked_before_removing(record.isr, process.node.name, answered, floor)
        invariants.write_one(undecided, record, known if refused else None)

    def _check_truncate(self, process: Process, partition: int, effect: fx.Truncate) -> None:
        """A follower drops the end of its log."""
        disk = process.node.disk
        self.simulation.counts["truncations"] += 1
        if process.holds_directory():
            before = self._hws[process.name, partition]
            invariants.trunc_safe(effect.to_offset, before, disk.stores[partition].applied, disk.logs[partition].start)

    def _check_role(self, process: Process, partition: int, event: ev.Event, effect: fx.RoleChanged) -> None:
        """A core changed its role."""
        counts = self.simulation.counts
        counts[f"role_{effect.role}"] += 1
        if self.declared.role(process, partition, effect.role, effect.reason):
            return
        if effect.role in LEADS:
            who = process.me()
            assert who is not None
            invariants.epoch_one(self.history(partition), effect.epoch, who)
        elif effect.role is ReplicaRole.FAILED and type(event) is not ev.PersistFailed:
            raise Violation("I-TRUNC-SAFE", f"{process.name} believes nobody any more: {effect.reason}")

    def _check_hw(self, process: Process, partition: int, replica: Replica) -> None:
        """A change of hw: a leader's follows the commit rule and its entries match the committed ones; a follower's
        stays within them."""
        key = (process.name, partition)
        before = self._hws[key]
        history = self.declared.judge(process.node, partition)
        if replica.high_watermark < before:
            raise Violation("I-APPLY", f"hw of {process.name} fell from {before} to {replica.high_watermark}")
        self._hws[key] = replica.high_watermark
        if replica.role in LEADS:
            self._check_commit(process, partition, replica, before)
        elif replica.high_watermark > len(history.committed):
            raise Violation(
                "I-APPLY", f"{process.name} takes {replica.high_watermark} for committed of {len(history.committed)}"
            )
        elif not process.holds_directory() and replica.high_watermark <= process.node.disk.logs[partition].start:
            return  # the log there continued without it, and was trimmed
        else:
            end = replica.high_watermark
            entry = process.read_log(partition, end - 1, end)[0]
            if entry.wire != history.committed[end - 1].wire:
                raise Violation("I-APPLY", f"{process.name} takes {entry.epoch}.{entry.offset} for committed")

    def _check_commit(self, process: Process, partition: int, replica: Replica, before: int) -> None:
        """A leader commits: checked against the members' disks, not against the leader's own view of them."""
        who, record, end = process.me(), replica.record, replica.high_watermark
        assert who is not None
        assert record is not None
        history = self.history(partition)
        start = max(before, process.node.disk.logs[partition].start)
        if start >= end:  # it lost its directory, and the log there continued and was trimmed
            assert not process.holds_directory()
            invariants.apply_order(history, 0, 0, end, end, end)
            return
        entries = process.read_log(partition, start, end)
        undecided = process.undecided[partition]
        held = {}
        for member in invariants.maximal(record, undecided):
            disk = self.simulation.nodes[member.node].disk
            if (
                disk.log_ids[partition] != member.log_id or partition not in disk.logs
            ):  # its later losses are checked elsewhere
                held[member] = self._lost_ends.get((member.node, partition, member.log_id), 0)
                continue
            log = disk.logs[partition]
            last = log.entries[end - 1 - log.start] if log.start < end <= log.end else None
            same = last is not None and last.wire == entries[-1].wire
            noted = disk.epochs_seen[partition] >= replica.epoch
            held[member] = self.kept(log) if noted and (same or end <= log.start) else 0
        barriers = [offset for epoch, offset in replica.epoch_table if epoch == replica.epoch]
        barrier = barriers[0] if barriers else replica.leo
        invariants.commit_rule(record, undecided, who, held, barrier, end)
        for entry in entries:
            invariants.commit_agree(history, entry.offset, entry)
        self.simulation.counts["commits"] += 1
        self.guard_complete(partition)

    def _check_log(self, process: Process, partition: int, replica: Replica) -> None:
        """Cheap checks of the directory that the process holds."""
        history = self.declared.judge(process.node, partition) if self.declared.acts else self.history(partition)
        disk = process.node.disk
        if replica.transfer_position is None:
            invariants.apply_order(
                history,
                disk.logs[partition].start,
                replica.applied,
                replica.high_watermark,
                replica.durable,
                replica.leo,
            )
        seen = disk.epochs_seen[partition]
        key = (process.node.name, partition, disk.log_ids[partition])
        if self._epochs_seen.get(key, 0) != seen:
            invariants.epoch_seen_mono(self._epochs_seen.get(key, 0), seen, disk.logs[partition].last_epoch())
            self._epochs_seen[key] = seen

    def _deep(self, process: Process, partition: int) -> None:
        """Scan the whole log."""
        history, log = self.history(partition), process.node.disk.logs[partition]
        replica = process.replicas[partition]
        invariants.epoch_asc(log.start, log.entries)
        invariants.log_leader(history, log.entries)
        invariants.no_false_nack(history, log.entries)
        invariants.log_match(history, None, log.entries)
        member = Member(process.node.name, process.node.disk.log_ids[partition])
        if member in guard(self.simulation.metastore.records[partition]) and not self.beyond_promise:
            kept = log.read(log.start, self.kept(log)) if self.kept(log) > log.start else ()
            invariants.guard_complete(history, log.start, kept)
        if not process.log.truncates(partition) and replica.transfer_position is None:
            table = tuple(row for row in replica.epoch_table if row[1] < log.end)
            invariants.table_derived(table, log.start, log.entries)

    # -- clients --------------------------------------------------------------------------------

    def applied(self, process: Process, partition: int, entries: Sequence[Entry]) -> None:
        """Entries go into the store."""
        history = self.declared.judge(process.node, partition)
        invariants.no_false_nack(history, entries)
        for entry in entries:
            invariants.applied_rows(history, entry.offset, entry)

    def acknowledged(self, process: Process, partition: int, request_id: bytes, offset: int) -> None:
        """A client got the answer that its request took effect."""
        history = self.declared.judge(process.node, partition)
        invariants.ack(history, request_id, offset, process.replicas[partition].applied)

    def read_begins(self, partition: int) -> int:
        """The offset up to which a read that begins now must see all entries."""
        history = self.history(partition)
        return max(history.acked_end, history.read_end)

    def read_served(self, process: Process, partition: int, least: int) -> None:
        """A read is served from the state applied at this moment."""
        self.simulation.counts["reads_served"] += 1
        if self.declared.quarantines(process.node, partition):
            raise Violation("I-DIVERGED", f"{process.name} serves a read, and has another past")
        applied = process.replicas[partition].applied
        if process.holds_directory():
            applied = process.node.disk.stores[partition].applied
        invariants.read_lin(self.history(partition), least, applied)

    # -- the end --------------------------------------------------------------------------------

    def not_in_sync(self, writing: bool = False) -> str:
        """The reason why the simulation is not healthy; empty when it is. While clients write (`writing`) logs grow, so
        that only the ISRs are checked."""
        for partition, record in self.simulation.metastore.records.items():
            found = self._not_in_sync(partition, record, writing)
            if found:
                return f"partition {partition}: {found}"
        return ""

    def _not_in_sync(self, partition: int, record: PartitionRecord, writing: bool) -> str:
        if record.status is not PartitionStatus.ONLINE or record.leader is None:
            return f"{record.status}: {record.reason}"
        leader = self.simulation.nodes[record.leader.node].current
        if leader is None or record.leader != leader.me() or leader.stopping:
            return f"led by {record.leader}, which is not the process there"
        leads = leader.replicas[partition]
        if leads.role is not ReplicaRole.LEADER or not leads.ready:
            return f"{leader.name} is {leads.role}, {leads.reason}"
        if record.elr:
            return f"eligible though not in sync: {sorted(record.elr)}"
        if record.adding or record.removing:
            return f"a change of replicas does not end: {leads.reassigning}"
        for name in record.replicas:
            node = self.simulation.nodes[name]
            process = node.current
            if process is None:
                return f"{name} does not run"
            if partition not in process.replicas:
                return f"{name} has not made its copy"
            if self.declared.quarantines(node, partition):
                stands = self.declared.not_in_sync(process, partition)
                if stands:
                    return stands
                continue
            replica, log = process.replicas[partition], node.disk.logs[partition]
            store = node.disk.stores[partition]
            ends = (
                replica.leo,
                replica.durable,
                replica.high_watermark,
                replica.applied,
                log.end,
                self.kept(log),
                store.applied,
            )
            if not writing and any(end != leads.leo for end in ends):
                return f"{name} is at {ends} of {leads.leo}: {replica.role}, {replica.reason}"
        left = [
            n.name for n in self.simulation.nodes.values() if partition in n.disk.logs and n.name not in record.replicas
        ]
        if left and not writing:
            return f"copies are left at {left}"
        sound = [n for n in record.replicas if not self.declared.quarantines(self.simulation.nodes[n], partition)]
        in_sync = {Member(n, self.simulation.nodes[n].disk.log_ids[partition]) for n in sound}
        if record.isr != in_sync:
            return f"in sync are {sorted(record.isr)}, not {sorted(in_sync)}; {leads.reason}"
        return ""

    def final(self) -> None:
        """Every acknowledged entry is in every state, once; no client waits for an answer."""
        for partition, record in self.simulation.metastore.records.items():
            history = self.history(partition)
            for name in record.replicas:
                node = self.simulation.nodes[name]
                store = node.disk.stores[partition]
                assert node.current is not None
                if Member(name, node.disk.log_ids[partition]) in record.isr:
                    invariants.acks_kept(history, store.history)
                    if store.beyond and (name, partition) not in self.declared.unfounded:
                        rows = sorted(f"{entry.epoch}.{entry.offset}" for entry in store.beyond.values())
                        raise Violation("I-APPLY", f"{name} has rows of {rows}, which no log has")
                waiting = [token for token, read in node.current.reads.items() if read[0] == partition]
                if waiting:
                    raise Violation("I-CONVERGE", f"reads {waiting} of partition {partition} at {name} got no answer")
            self.simulation.counts["committed"] += len(history.committed)
