"""The leader: what it refuses, what its followers' acknowledgements commit, who is in sync, what it has written.

State and decisions; `replica.py` makes the transitions. What is sent to each follower is `follower_tracker.py`'s,
committed reads are `read_index.py`'s, who is too slow `lag_detector.py`'s. A leader that resigns keeps all of it until
the record names it no longer: while its write is undecided it commits and repeats, and takes nothing new. Rules that
are cited by name stand in docs/protocol.md.

The leader that is to go: at a stop, when asked to hand over, or when its own disk is too slow.

It is a leader in all but this: it appends nothing new, and once all is applied, and so answered, has
itself taken out of the record. While that write is undecided it commits and repeats.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar

from isthmus.repl.isr import state_transfer
from isthmus.repl.isr.effects import ReplicaRole, Send, SendTransferChunk, WriteRecord
from isthmus.repl.isr.epochs import common_prefix
from isthmus.repl.isr.events import Append
from isthmus.repl.isr.follower_tracker import RESEND_MS, FollowerProgress
from isthmus.repl.isr.give_way import GiveWay, Solitude
from isthmus.repl.isr.lag_detector import CHECKS, AckLagTracker, RejoinBackoff
from isthmus.repl.isr.membership import (
    WRITE_ANSWER_MS,
    WRITE_REPEAT_MS,
    PendingRecordWrite,
    drop_members,
    maximal_isr,
    too_few_in_sync,
    with_member,
)
from isthmus.repl.isr.messages import (
    AppendAck,
    AppendRejected,
    FollowAccepted,
    FollowRejected,
    FollowRejection,
    FollowRequest,
    TransferRequest,
)
from isthmus.repl.isr.read_index import ReadIndex
from isthmus.repl.isr.reassignment import LeaderHandOver, Reassignment, ReassignmentFinished
from isthmus.repl.isr.replica_state import ReplicaState
from isthmus.repl.model.errors import Fenced, NotReady, Overloaded, TooFewInSync
from isthmus.repl.model.record import Member, PartitionRecord, PartitionStatus


@dataclass(slots=True)
class Leadership:
    """What a leader knows of its epoch. `acked`: how far each member said, in this epoch, that it holds the
    log durably, the leader itself included; who never said anything holds nothing. `stalled`, `lagging`: members of
    the ISR that are to leave it, the latter the furthest first and never below min-ISR. `rows_below`: how far
    followers are that take rows."""

    role: ClassVar[ReplicaRole] = ReplicaRole.LEADER

    epoch: int
    barrier: int
    stalls: AckLagTracker
    acked: dict[Member, int] = field(default_factory=dict)
    peers: dict[str, FollowerProgress] = field(default_factory=dict)
    reads: ReadIndex = field(default_factory=ReadIndex)
    pending: PendingRecordWrite | None = None
    ready: bool = False
    stalled: frozenset[Member] = frozenset()
    lagging: tuple[Member, ...] = ()
    pauses: RejoinBackoff = field(default_factory=RejoinBackoff)
    reassignment: Reassignment = field(default_factory=Reassignment)
    rows_below: dict[str, int] = field(default_factory=dict)
    solitude: Solitude = field(default_factory=Solitude)
    ticked_ms: int = 0

    # -- committing -----------------------------------------------------------------------------

    def committed_end(self, record: PartitionRecord, durable: int) -> int | None:
        """Entries below the answer are committed under the confirmed `record`; None when nothing may be decided.

        R-COMMIT: all of the maximal ISR must have acknowledged, the confirmed ISR must have min-ISR
        members, nobody outside it may be electable, and never past what is durable here. Entries of
        earlier epochs are committed together with this epoch's barrier, never before it.
        """
        if too_few_in_sync(record) or record.elr:
            return None
        end, acked = durable, self.acked
        for member in self.maximal(record):
            at = acked.get(member, 0)
            if at < end:
                end = at
        return end if end > self.barrier else None

    def maximal(self, record: PartitionRecord) -> frozenset[Member]:
        """The ISR that commits go by: the confirmed one, and whom an undecided write may have added."""
        return record.isr if self.pending is None else maximal_isr(record, self.pending.adds)

    def electable(self, record: PartitionRecord) -> frozenset[Member]:
        """Everybody who may be elected, for all that this leader knows."""
        return self.maximal(record) | record.elr

    def advance(self, standing: ReplicaState, now_ms: int) -> None:
        """Move hw as far as the commit rule allows, and let the followers know."""
        progress = standing.progress
        end = self.committed_end(standing.known, progress.durable)
        if end is not None and end > progress.hw:
            standing.commit(end)
            self.stalls.settled(end)
            for peer in self.peers.values():
                peer.news(now_ms)

    # -- followers ------------------------------------------------------------------------------

    def greet(self, node: str, hello: FollowRequest, standing: ReplicaState, now_ms: int) -> None:
        """A follower asks to follow: find where the logs agree and send it on from there (R-TRUNC)."""
        before = self.peers.get(node)
        late = before is not None and before.linked and before.member.gen > hello.gen  # gens rise
        if node not in standing.known.replicas or late:
            return
        progress = standing.progress
        member = Member(node, hello.gen)
        if hello.durable < self.acked.get(member, 0):
            refused = FollowRejected(self.epoch, hello.nonce, FollowRejection.REGRESSED, standing.log_start)
            standing.effects.append(Send(node, refused))
            return
        common = common_prefix(standing.table, progress.leo, hello.table, hello.leo)
        refusal = state_transfer.horizon(member in self.electable(standing.known), common, hello.rounds, standing)
        if refusal is not None:
            self.peers.pop(node, None)
            standing.effects.append(Send(node, FollowRejected(self.epoch, hello.nonce, refusal, standing.log_start)))
            return
        seq = before.seq if before is not None else 0
        again_at_ms = now_ms + RESEND_MS  # should its first AppendAck be lost, and there be nothing else to say
        peer = FollowerProgress(
            member, common, common, seq=seq, acked_seq=seq, rewound_seq=seq, again_at_ms=again_at_ms
        )
        self.peers[node] = peer
        self.rows_below.pop(node, None)
        ok = FollowAccepted(self.epoch, hello.nonce, common, progress.hw, progress.leo)
        standing.effects.append(Send(node, ok))
        peer.pump(standing, self.epoch, member in standing.known.isr, now_ms)

    def far_asked(self, node: str, asked: TransferRequest, standing: ReplicaState) -> None:
        """A follower that is far asks for the next chunk; or did, before it said FollowRequest: what is sent to it goes
        on."""
        if node not in standing.known.replicas:
            return
        electable = Member(node, asked.gen) in self.electable(standing.known)
        later = not self.ready and node not in self.rows_below
        refusal = state_transfer.serve(node, asked, electable, standing, later=later)
        if refusal is None and standing.effects and isinstance(standing.effects[-1], SendTransferChunk):
            self.rows_below[node] = asked.position
            self.solitude.hear()
        if refusal is not None:
            self.rows_below.pop(node, None)
            standing.effects.append(Send(node, FollowRejected(self.epoch, asked.nonce, refusal, standing.log_start)))

    def acknowledged(self, node: str, ack: AppendAck, standing: ReplicaState, now_ms: int) -> None:
        """A follower says what it has; only of the gen that said FollowRequest, and only what this leader has, too."""
        peer = self.peers.get(node)
        if peer is None or peer.member.gen != ack.gen or ack.leo > standing.progress.leo:
            return
        self.solitude.hear()
        member = peer.member
        if ack.durable > self.acked.get(member, 0):
            self.acked[member] = ack.durable
        peer.acknowledged(ack, standing, now_ms)
        self.advance(standing, now_ms)
        in_sync = member in standing.known.isr
        peer.pump(standing, self.epoch, in_sync, now_ms)

    def missed(self, node: str, nack: AppendRejected, standing: ReplicaState, now_ms: int) -> None:
        """A follower lacks what lies before an AppendEntries."""
        peer = self.peers.get(node)
        if peer is not None and peer.member.gen == nack.gen:
            peer.missed(nack)
            peer.pump(standing, self.epoch, peer.member in standing.known.isr, now_ms)

    def appended(self, leo_before: int, standing: ReplicaState, now_ms: int) -> None:
        """Entries were appended here: send them to whoever keeps up."""
        self.stalls.appended(leo_before, standing.options.max_time_lag_ms, now_ms)
        isr = standing.known.isr
        for peer in self.peers.values():
            peer.pump(standing, self.epoch, peer.member in isr, now_ms)

    def link_down(self, node: str) -> None:
        """What is under way to `node` may be lost; it will say FollowRequest again."""
        peer = self.peers.get(node)
        if peer is not None:
            peer.linked = False

    def record_moved(self, record: PartitionRecord) -> None:
        """The record has another version: what was undecided is decided, and who is no replica any more is sent
        nothing."""
        self.pending = None
        self.pauses.confirmed({member.node for member in record.isr})
        for node in [node for node in self.peers if node not in record.replicas]:
            del self.peers[node]

    def behind(self, leo: int) -> dict[str, str]:
        """How far each follower is that this leader has heard of, for people."""
        told = {node: f"takes rows, has those below {position:,}" for node, position in self.rows_below.items()}
        for node, peer in self.peers.items():
            told[node] = f"{max(0, leo - peer.leo):,} entries behind" if peer.linked else "not connected"
        return told

    # -- who is in sync -------------------------------------------------------------------------

    def judge(self, standing: ReplicaState, now_ms: int) -> bool:
        """Look who of the ISR owes too much; True when it is this leader's own disk that is too slow (H19)."""
        record, progress, options = standing.known, standing.progress, standing.options
        limit_ms = options.max_time_lag_ms
        self.stalls.forgive(now_ms)
        owing = False
        slow: set[Member] = set()
        for member in record.isr:
            acked = self.acked.get(member, 0)
            owed_ms = self.stalls.owed_ms(acked, progress.leo, now_ms)
            owing = owing or acked < progress.leo
            if member == standing.member:
                if owed_ms > limit_ms // 2:
                    self.stalls.check_at_ms = now_ms + limit_ms // CHECKS
                    return True
            elif owed_ms > limit_ms:
                slow.add(member)
        self.stalled = frozenset(slow)
        self.lagging = self._far_behind(standing)
        self.stalls.check_at_ms = now_ms + limit_ms // CHECKS if owing else None
        return False

    def _far_behind(self, standing: ReplicaState) -> tuple[Member, ...]:
        """Members that may hold everything and are too far behind with what they know to be committed, the furthest
        first (Fluvio's lagging follower)."""
        floor = standing.progress.hw - standing.options.max_record_lag
        behind = [p for p in self.peers.values() if p.member in standing.known.isr and 0 <= p.hw < floor]
        return tuple(peer.member for peer in sorted(behind, key=lambda peer: peer.hw))

    def _leaving(self, record: PartitionRecord) -> dict[Member, str]:
        """Who is to leave the ISR as `record` has it now, and why: a stall also below min-ISR, a lag only as long as
        enough stay."""
        leaving = dict.fromkeys(sorted(self.stalled & record.isr), "stalled")
        spare = len(record.isr) - len(leaving) - record.effective_min_isr
        lagging = [member for member in self.lagging if member in record.isr and member not in leaving]
        return leaving | dict.fromkeys(lagging[: max(0, spare)], "lags")

    def _joining(self, standing: ReplicaState, now_ms: int) -> FollowerProgress | None:
        """A follower out of sync that has caught up (H17) and owes nothing old, if the time of one has come."""
        record, progress = standing.known, standing.progress
        patience_ms = standing.options.max_time_lag_ms // 2
        floor = max(progress.hw, self.barrier + 1)
        for node, peer in self.peers.items():
            member = peer.member
            if member in record.isr or node not in record.replicas or not peer.linked:
                continue
            acked = self.acked.get(member, 0)
            if acked < floor or self.stalls.owed_ms(acked, progress.leo, now_ms) > patience_ms:
                continue
            if peer.hw < progress.hw - standing.options.max_record_lag // 2:
                continue
            if self.pauses.allow(node, now_ms, needed=too_few_in_sync(record)):
                return peer
        return None

    # -- conditional writes ---------------------------------------------------------------------

    def want(self, standing: ReplicaState, now_ms: int) -> LeaderHandOver | None:
        """Ask for the next conditional write, if one is wanted, one at a time; returns to whom leadership is to go
        for a change of replicas, if that is next.

        First an ELR that is no longer needed is emptied, since nothing is committed before (H22); then who stalls or
        lags leaves, before anything is applied without it; then who has caught up joins; then a change of replicas
        ends (R-RF), unless this leader is about to go anyhow.
        """
        if self.pending is not None:
            return None
        record = standing.known
        if record.elr and not too_few_in_sync(record):
            self.write(replace(record, elr=frozenset()), standing, now_ms)
            return None
        leaving = self._leaving(record)
        if leaving:
            self.stalled, self.lagging = frozenset(), ()
            for member in leaving:
                self.pauses.leaves(member.node, now_ms, leaving[member])
            why = ", ".join(f"{member.node} {reason}" for member, reason in leaving.items())
            self.write(
                replace(drop_members(record, frozenset(leaving)), reason=f"out of sync: {why}"), standing, now_ms
            )
            return None
        peer = self._joining(standing, now_ms)
        if peer is not None:
            joined = replace(with_member(record, peer.member), reason="")
            self.pauses.joins(peer.member.node, now_ms)
            self.write(joined, standing, now_ms, needs=(peer.member,), adds=joined.isr)
            return None
        way = self._alone(standing, now_ms) if self.role is ReplicaRole.LEADER else None
        if way is not None:
            self.write(way.record, standing, now_ms, needs=(way.to,))
            return None
        if not (record.adding or record.removing) or self.role is not ReplicaRole.LEADER:
            return None
        step = self.reassignment.next(standing, self.epoch, self.barrier, self.acked, now_ms)
        if isinstance(step, ReassignmentFinished):
            self.write(step.record, standing, now_ms, needs=step.needs)
            return None
        return step

    def _alone(self, standing: ReplicaState, now_ms: int) -> GiveWay | None:
        """Whether it is time to give way, since no follower is heard of (R-GIVE-WAY)."""
        leo = standing.progress.leo
        keeps_up = any(peer.linked and peer.leo >= leo for peer in self.peers.values())
        return self.solitude.look(standing.known, standing.member, self.acked, keeps_up=keeps_up, now_ms=now_ms)

    def write(
        self,
        record: PartitionRecord,
        standing: ReplicaState,
        now_ms: int,
        needs: tuple[Member, ...] = (),
        adds: frozenset[Member] = frozenset(),
    ) -> None:
        """Ask for a conditional write; none may be under way."""
        self.pending = PendingRecordWrite(record, now_ms + WRITE_ANSWER_MS, needs, adds)
        standing.effects.append(WriteRecord(record, needs))

    def refused_as_it_stands(self, standing: ReplicaState, now_ms: int) -> None:
        """The write was refused though the version, as far as is known, has not moved. Where it depended on a
        registration, that is not what it was; a copy of the write may still be under way, so whom it adds
        counts on until another write on the same version, which changes nothing, is decided (R-AMBIG)."""
        pending = self.pending
        assert pending is not None
        if pending.needs:
            if pending.adds:
                self.pauses.is_refused(pending.needs[0].node, now_ms)
            else:
                self.reassignment.refused(now_ms)
            pending.record, pending.needs = standing.known, ()
        pending.repeat_at_ms = now_ms + WRITE_REPEAT_MS

    def repeat(self, standing: ReplicaState, now_ms: int) -> None:
        """Send the undecided write again when its time has come."""
        pending = self.pending
        if pending is not None and pending.repeat_at_ms <= now_ms:
            pending.repeat_at_ms = now_ms + WRITE_ANSWER_MS
            standing.effects.append(WriteRecord(pending.record, pending.needs))

    # -- time -----------------------------------------------------------------------------------

    def deadline_ms(self, standing: ReplicaState) -> int | None:
        """When something is due."""
        due_ms = self.stalls.check_at_ms
        for peer in self.peers.values():
            again_ms = peer.again_at_ms
            if again_ms is not None and (due_ms is None or again_ms < due_ms):
                due_ms = again_ms
        if self.pending is not None and (due_ms is None or self.pending.repeat_at_ms < due_ms):
            due_ms = self.pending.repeat_at_ms
        look_at_ms = self.solitude.look_at_ms
        if look_at_ms is not None and self.pending is None and (due_ms is None or look_at_ms < due_ms):
            due_ms = look_at_ms
        current = self.reads.round
        if current is not None and (due_ms is None or current.repeat_at_ms < due_ms):
            due_ms = current.repeat_at_ms
        if self.pending is None:
            isr = standing.known.isr
            absent = [node for node, peer in self.peers.items() if peer.member not in isr]
            for at_ms in (self.pauses.next_ms(absent, self.ticked_ms), self.reassignment.deadline_ms(self.ticked_ms)):
                if at_ms is not None and (due_ms is None or at_ms < due_ms):
                    due_ms = at_ms
        return due_ms

    def tick(self, standing: ReplicaState, now_ms: int) -> bool:
        """Do what is due; True when this leader should hand over because its own disk is too slow."""
        slow = False
        self.ticked_ms = now_ms
        if self.stalls.check_at_ms is not None and self.stalls.check_at_ms <= now_ms:
            slow = self.judge(standing, now_ms)
        isr = standing.known.isr
        for peer in self.peers.values():
            if peer.again_at_ms is not None and peer.again_at_ms <= now_ms:
                peer.again(standing, self.epoch, peer.member in isr, now_ms)
        self.repeat(standing, now_ms)
        self.reads.tick(standing, self.epoch, now_ms)
        self.reassignment.tick(standing, self.epoch, now_ms)
        return slow


@dataclass(slots=True)
class Leader(Leadership):
    """It leads: appends, and after its barrier is applied serves clients."""


def refusal(leader: Leader, standing: ReplicaState, append: Append) -> str | None:
    """The code with which `append` is refused, or None when it may be appended.

    The window counts what is appended and not applied, which bounds the memory of a stalled partition
    and keeps the log's uncommitted tail below `window_entries`; a batch that does not fit is refused
    whole, so batches must not be larger than the window.
    """
    progress = standing.progress
    if not leader.ready:
        return NotReady.reason
    if append.epoch != leader.epoch or not progress.follows(leader.epoch, append.entries):
        return Fenced.reason
    if too_few_in_sync(standing.known):
        return TooFewInSync.reason
    if progress.leo - progress.applied + len(append.entries) > standing.options.window_entries:
        return Overloaded.reason
    return None


@dataclass(slots=True)
class ResigningLeader(Leadership):
    """It is to go: appends nothing new, drains, and then has itself taken out of the record. `target`, a member in
    sync, takes over if it can; `deadline_at_ms` ends the attempt and it leads on, None for a process that leaves: then
    whoever is closest will do as well."""

    role: ClassVar[ReplicaRole] = ReplicaRole.RESIGNING

    target: str | None = None
    deadline_at_ms: int | None = None
    why: str = "resigned"

    def want(self, standing: ReplicaState, now_ms: int) -> LeaderHandOver | None:
        """The record without a leader, once everything that was appended is applied, and so answered, and on the
        target; before that whatever a leader wants, since draining may need it."""
        progress, record = standing.progress, standing.known
        target = self.target if self.deadline_at_ms is not None else self._heir(record, standing.member.node)
        held = target is None or any(m.node == target and self.acked.get(m, 0) == progress.leo for m in record.isr)
        if self.pending is not None or progress.applied != progress.leo or not held:
            return Leadership.want(self, standing, now_ms)
        gone = replace(
            record,
            status=PartitionStatus.ELECTION,
            leader=None,
            candidate=None,
            tried=frozenset(),
            preferred=target,
            reason=f"{standing.member.node} {self.why}",
        )
        self.write(gone, standing, now_ms)
        return None

    def _heir(self, record: PartitionRecord, node: str) -> str | None:
        """The target if nobody is closer, or else who is."""
        return closest(self, record, node, self.target)

    @property
    def given_up(self) -> bool:
        """True once the record without this leader has been sent: it may be decided at any time."""
        return self.pending is not None and self.pending.record.leader is None

    def deadline_ms(self, standing: ReplicaState) -> int | None:
        """See Leadership; and the end of the attempt."""
        due_ms = Leadership.deadline_ms(self, standing)
        if self.deadline_at_ms is not None and not self.given_up:
            return self.deadline_at_ms if due_ms is None else min(due_ms, self.deadline_at_ms)
        return due_ms


def closest(leadership: Leadership, record: PartitionRecord, node: str, wish: str | None = None) -> str | None:
    """The member in sync, other than `node`, that is not to go and has acknowledged most, among equals the one that is
    wished for; None when there is none."""
    others = [m for m in record.isr if m.node != node and m in leadership.acked]
    if not others:
        return None
    return max(others, key=lambda m: (m.node not in record.removing, leadership.acked[m], m.node == wish, m.node)).node
