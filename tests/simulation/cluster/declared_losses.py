"""Losses declared by forcing a leader, so that the checks still cover everything else (R-FORCE).

From the forced election on, the partition's history ends where the forced replica's log did: entries beyond may be
gone, everything below may not. A replica that knows of committed entries beyond has diverged: it keeps them, and is
neither followed, elected nor read (I-DIVERGED). The election itself makes a new epoch, increments the lineage, and
leaves one electable replica (I-FORCED).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from isthmus.repl.controller.unclean_election import ReplicaReport
from isthmus.repl.isr.membership import guard
from isthmus.repl.isr.replica import Replica, ReplicaRole
from isthmus.repl.model.record import Member, PartitionRecord
from tests.simulation.cluster.invariants import PartitionHistory, Violation

if TYPE_CHECKING:
    from tests.simulation.cluster.checkers import Checkers
    from tests.simulation.cluster.nodes import Node
    from tests.simulation.cluster.process import Process

DIVERGED = "committed-divergence"
"""Start of the reason that a replica reports when its leader lacks entries that are committed here."""


@dataclass(slots=True)
class ForcedElection:
    """One forced election. `end`: the forced replica has all committed entries below. `past`: the history up to the
    election."""

    lineage: int
    chosen: Member
    end: int
    past: PartitionHistory
    diverged: set[Member] = field(default_factory=set)
    """Replicas that know of committed entries beyond `end`."""
    earlier: dict[Member, PartitionHistory] = field(default_factory=dict)
    """The past of those of them that had another one already."""


class Declarations:
    """The declared losses of one simulation; each partition's newest forced election counts."""

    def __init__(self, checkers: Checkers) -> None:
        self._checkers = checkers
        self._shown: dict[tuple[int, int, Member], int] = {}
        self.acts: dict[int, ForcedElection] = {}
        """Forced elections by partition; empty in most simulations."""
        self.unfounded: set[tuple[str, int]] = set()
        """(node, partition) where a replica was forced whose store had rows of entries that its log had lost."""

    def shown(self, record: PartitionRecord, copy: ReplicaReport) -> None:
        """An operator was shown a replica, and is about to force it on this version of the record."""
        member = Member(copy.node, copy.log_id)
        self._shown[record.partition, record.version, member] = min(copy.leo, self._has(member, record.partition))

    def _has(self, member: Member, partition: int) -> int:
        """The offset up to which a replica has all committed entries, whatever happens to its machine."""
        node = self._checkers.simulation.nodes[member.node]
        if node.disk.log_ids[partition] != member.log_id or partition not in node.disk.logs:
            return 0
        return min(self._checkers.agreed(node, partition), self._checkers.kept(node.disk.logs[partition]))

    # -- the record -----------------------------------------------------------------------------

    def record_changed(self, before: PartitionRecord, after: PartitionRecord) -> bool:
        """A record was written; True when that was such an act."""
        act = self.acts.get(after.partition)
        if act is not None and act.diverged & guard(after):
            raise Violation("I-DIVERGED", f"{sorted(act.diverged & guard(after))} may be elected by {after}")
        led = before.leader is not None
        if after.lineage == before.lineage and (led or guard(after) <= guard(before)):
            return False
        if after.epoch <= before.epoch or after.lineage != before.lineage + 1 or len(guard(after)) != 1:
            raise Violation(
                "I-FORCED",
                f"epoch {before.epoch} -> {after.epoch}, lineage {before.lineage} -> {after.lineage}, "
                f"guard {sorted(guard(after))}",
            )
        (chosen,) = guard(after)
        process = self._checkers.simulation.nodes[chosen.node].current
        replica = None if process is None else process.replicas.get(after.partition)
        if replica is not None and replica.unfounded:
            self._checkers.simulation.counts["forced_unfounded"] += 1
            self.unfounded.add((chosen.node, after.partition))
        self._declare(before, after, chosen)
        return True

    def _declare(self, before: PartitionRecord, after: PartitionRecord, chosen: Member) -> None:
        partition, counts = after.partition, self._checkers.simulation.counts
        shown, end = self._shown.get((partition, before.version, chosen)), self._has(chosen, partition)
        if shown is None:
            raise Violation("I-FORCED", f"{chosen} is forced, and no operator ordered that")
        if end < shown:
            raise Violation("I-FORCED", f"{chosen} was shown with all below {shown}, and has only what is below {end}")
        history = self._checkers.history(partition)
        past = replace(history, committed=list(history.committed), acked=dict(history.acked))
        history.acked = {request: offset for request, offset in history.acked.items() if offset < end}
        history.acked_end, history.read_end = min(history.acked_end, end), min(history.read_end, end)
        del history.committed[end:]
        before_that = self.acts.get(partition)
        self.acts[partition] = act = ForcedElection(after.lineage, chosen, end, past)
        if before_that is not None:
            act.earlier = {m: before_that.earlier.get(m, before_that.past) for m in before_that.diverged}
        self._compare(act, partition)
        counts["forced"] += 1
        counts["declared_lost"] += len(past.acked) - len(history.acked)
        counts["diverged"] += len(act.diverged)

    def _compare(self, act: ForcedElection, partition: int) -> None:
        """Note which replicas have committed entries beyond the forced one."""
        act.diverged.clear()
        for node in self._checkers.simulation.holders(partition):
            hws = [
                process.replicas[partition].high_watermark
                for process in node.processes
                if partition in process.replicas
            ]
            if max(node.disk.committed(partition), *hws, 0) > act.end:
                act.diverged.add(Member(node.name, node.disk.log_ids[partition]))

    # -- replicas -------------------------------------------------------------------------------

    def quarantines(self, node: Node, partition: int) -> bool:
        """True for a replica whose history differs from the partition's."""
        act = self.acts.get(partition)
        return act is not None and Member(node.name, node.disk.log_ids[partition]) in act.diverged

    def judge(self, node: Node, partition: int) -> PartitionHistory:
        """The history that a replica is checked against."""
        if partition in self.acts and self.quarantines(node, partition):
            act, member = self.acts[partition], Member(node.name, node.disk.log_ids[partition])
            return act.earlier.get(member, act.past)
        return self._checkers.history(partition)

    def attached(self, node: Node, partition: int) -> None:
        """A process starts from a replica's disk: commits that it knew of but had not applied are forgotten."""
        act = self.acts.get(partition)
        if act is not None and node.disk.committed(partition) <= act.end:
            act.diverged.discard(Member(node.name, node.disk.log_ids[partition]))

    def renamed(self, node: Node, partition: int, before: int) -> None:
        """A replica has another log id than `before` after a power loss; it keeps its own history."""
        act = self.acts.get(partition)
        if act is not None and Member(node.name, before) in act.diverged:
            member = Member(node.name, node.disk.log_ids[partition])
            act.diverged.add(member)
            act.earlier[member] = act.earlier.get(Member(node.name, before), act.past)

    def hw_moved(self, process: Process, partition: int, replica: Replica) -> None:
        """A follower learns of commits: until it learns of the forced election, the commits of its old leader."""
        act, known = self.acts.get(partition), replica.record
        if act is None or known is None or known.lineage >= act.lineage or replica.high_watermark <= act.end:
            return
        member = Member(process.node.name, process.node.disk.log_ids[partition])
        if member == act.chosen:  # it had more in the end than was shown of it
            history = self._checkers.history(partition)
            if len(history.committed) == act.end:
                history.committed.extend(act.past.committed[act.end : replica.high_watermark])
                act.end = replica.high_watermark
                self._compare(act, partition)
            act.diverged.discard(member)
        else:
            act.diverged.add(member)

    def acknowledges(self, process: Process, partition: int) -> None:
        """A follower acknowledges: its known leader counts on it from now on."""
        act, known = self.acts.get(partition), process.replicas[partition].record
        if act is None or known is None or known.lineage < act.lineage:
            return
        if self.quarantines(process.node, partition):
            raise Violation("I-DIVERGED", f"{process.name} acknowledges, and has another past than its leader")

    def role(self, process: Process, partition: int, role: ReplicaRole, reason: str) -> bool:
        """A core took a role; True when that is its quarantine."""
        if not self.quarantines(process.node, partition):
            return False
        if role in (ReplicaRole.CANDIDATE, ReplicaRole.LEADER, ReplicaRole.RESIGNING):
            raise Violation("I-DIVERGED", f"{process.name} has another past, and is {role}")
        if role is ReplicaRole.FAILED and reason.startswith(DIVERGED):
            self._checkers.simulation.counts["quarantined"] += 1
            return True
        return False

    def not_in_sync(self, process: Process, partition: int) -> str:
        """The fault of a diverged replica; empty when it reports its divergence and has stopped."""
        replica = process.replicas[partition]
        if replica.role is ReplicaRole.FAILED and replica.reason.startswith(DIVERGED):
            return ""
        return f"{process.name} has another past and is {replica.role}, {replica.reason}"
