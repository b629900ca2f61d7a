"""The leader: append admission, the commit rule, in-sync membership, and conditional writes of the record.

State and rules; `replica.py` makes the transitions. `follower_tracker.py` decides what each follower is sent,
`read_index.py` confirms committed reads, and `lag_detector.py` measures how old missing acknowledgements are.

A `ResigningLeader` wraps the `Leader` that it was. It goes on committing and repeating its pending write, but refuses
appends. Once all entries are applied, and so answered, it writes itself out of the record. It leads on with the same
`Leader` when a hand-over misses its deadline.

The rule names (R-COMMIT, H17) are defined in docs/protocol.md.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar

from isthmus.repl.isr import state_transfer
from isthmus.repl.isr.effects import Effects, ReplicaRole, StreamEntries, WriteRecord
from isthmus.repl.isr.epochs import common_prefix
from isthmus.repl.isr.events import Append, RunAcknowledged
from isthmus.repl.isr.follower_tracker import RESEND_MS, FollowerProgress
from isthmus.repl.isr.give_way import GiveWay, IsolationCheck
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
from isthmus.repl.model.record import Incarnation, Member, PartitionRecord, PartitionStatus
from isthmus.repl.model.vclock import MAX_EPOCH


@dataclass(slots=True)
class Leader:
    """The leader of `epoch`, whose first entry is at `barrier`; `ready` once the barrier is applied.

    `acked`: the durable end that each member acknowledged in this epoch, the leader included; absent means 0.
    `followers` receive log entries, by node. `transfer_positions`: progress of followers under state transfer, by node.
    `stalled` and `lagging`: members that must leave the ISR; the lagging ones, furthest behind first, leave only while
    min-ISR members stay.
    """

    role: ClassVar[ReplicaRole] = ReplicaRole.LEADER

    epoch: int
    barrier: int
    ack_lag: AckLagTracker
    acked: dict[Member, int] = field(default_factory=dict)
    followers: dict[str, FollowerProgress] = field(default_factory=dict)
    last_seqs: dict[str, int] = field(default_factory=dict)
    """Node -> number of the last AppendEntries that it was sent in this epoch, of nodes that are no followers now."""
    reads: ReadIndex = field(default_factory=ReadIndex)
    pending_write: PendingRecordWrite | None = None
    ready: bool = False
    stalled: frozenset[Member] = frozenset()
    lagging: tuple[Member, ...] = ()
    rejoin_backoff: RejoinBackoff = field(default_factory=RejoinBackoff)
    reassignment: Reassignment = field(default_factory=Reassignment)
    transfer_positions: dict[str, int] = field(default_factory=dict)
    isolation: IsolationCheck = field(default_factory=IsolationCheck)
    unlinked: bool = True
    """No follower is connected. True at first: none has sent its FollowRequest yet."""
    ticked_ms: int = 0

    # -- appending and committing ---------------------------------------------------------------

    def refusal(self, append: Append, state: ReplicaState) -> str | None:
        """Return the code with which `append` is refused, or None when it may be appended.

        The window counts entries that are appended and not applied. It limits the memory of a stalled partition and
        keeps the uncommitted tail of the log below `window_entries`. A batch that does not fit is refused whole, so a
        batch must not be larger than the window.
        """
        progress = state.progress
        if not self.ready:
            return NotReady.reason
        if append.epoch != self.epoch or not progress.follows(self.epoch, append.entries):
            return Fenced.reason
        if too_few_in_sync(state.known_record):
            return TooFewInSync.reason
        if progress.leo - progress.applied + len(append.entries) > state.options.window_entries:
            return Overloaded.reason
        return None

    def appended(self, leo_before: int, state: ReplicaState, effects: Effects, now_ms: int) -> None:
        """Send newly appended entries to the followers that keep up."""
        self.ack_lag.appended(leo_before, state.options.max_time_lag_ms, now_ms)
        isr, leo = state.known_record.isr, state.progress.leo
        streamed: list[tuple[str, int]] = []
        for node, follower in self.followers.items():
            in_sync = follower.member in isr
            if in_sync and node in state.stream_nodes and follower.joins(state, leo_before, self.barrier):
                streamed.append((node, follower.join))
                follower.next = leo
            else:
                follower.leave(leo_before, now_ms)
                follower.send_entries(state, effects, self.epoch, in_sync, now_ms)
        if streamed:
            effects.append(StreamEntries(tuple(streamed), self.epoch, leo_before, leo))

    def committed_end(self, record: PartitionRecord, durable: int) -> int | None:
        """Return the offset below which entries are committed under the confirmed `record`; None for no change.

        R-COMMIT: every member of the maximal ISR has acknowledged, the confirmed ISR has at least min-ISR members, no
        replica outside the ISR is electable, and the entries are durable here. Entries of earlier epochs are committed
        together with this epoch's barrier, never before it.
        """
        if too_few_in_sync(record) or record.elr:
            return None
        end, acked = durable, self.acked
        for member in record.isr if self.pending_write is None else self.maximal(record):
            at = acked.get(member, 0)
            if at < end:
                end = at
        return end if end > self.barrier else None

    def maximal(self, record: PartitionRecord) -> frozenset[Member]:
        """The members that must acknowledge a commit: the confirmed ISR and members that the pending write may add."""
        return record.isr if self.pending_write is None else maximal_isr(record, self.pending_write.adds)

    def electable(self, record: PartitionRecord) -> frozenset[Member]:
        """All members that may be elected, as far as this leader knows."""
        return self.maximal(record) | record.elr

    def advance(self, state: ReplicaState, now_ms: int) -> int:
        """Move the high watermark as far as the commit rule allows, and schedule its announcement to followers; returns
        the end below which entries are to be applied now, 0 when it did not move."""
        end = self.committed_end(state.known_record, state.progress.durable)
        if end is None or not state.commit(end):
            return 0
        self.ack_lag.acknowledged_by_all(end)
        for follower in self.followers.values():
            if not follower.join or follower.held:
                follower.schedule_hw(now_ms)
        return end

    def settled(self, record: PartitionRecord) -> bool:
        """True when there is no reason to write the confirmed `record`: the usual case, with each write."""
        if self.stalled or self.lagging or self.isolation.check_at_ms is not None:
            return False
        if len(record.isr) != len(record.replicas) or record.elr or record.adding or record.removing:
            return False
        return not self.unlinked or len(record.isr) == 1

    # -- followers ------------------------------------------------------------------------------

    def on_follow_request(
        self, node: str, request: FollowRequest, state: ReplicaState, effects: Effects, now_ms: int
    ) -> None:
        """Accept a follower where the logs agree and send it the entries from there (R-TRUNC), or reject it."""
        before = self.followers.get(node)
        late = before is not None and before.linked and before.member.log_id > request.log_id  # log ids rise
        if node not in state.known_record.replicas or late:
            return
        progress = state.progress
        member = Member(node, request.log_id)
        if request.durable < self.acked.get(member, 0):
            self._reject(node, request.nonce, FollowRejection.REGRESSED, state, effects)
            return
        common = common_prefix(state.epoch_table, progress.leo, request.table, request.leo)
        electable = member in self.electable(state.known_record)
        rejection = state_transfer.log_rejection(electable, common, request.rounds, state)
        if rejection is not None:
            self._forget(node)
            self._reject(node, request.nonce, rejection, state, effects)
            return
        # Above all numbers of before: a late answer to one of those must not count as an answer to what is sent now.
        seq = 1 + (before.seq if before is not None else self.last_seqs.pop(node, -1))
        resend_at_ms = now_ms + RESEND_MS  # in case its first AppendAck is lost and nothing else is to be sent
        follower = FollowerProgress(
            member, common, common, seq=seq, acked_seq=seq, rewound_seq=seq, resend_at_ms=resend_at_ms
        )
        self.followers[node] = follower
        self.unlinked = False
        self.transfer_positions.pop(node, None)
        effects.send(node, FollowAccepted(self.epoch, request.nonce, common, progress.hw, progress.leo))
        follower.send_entries(state, effects, self.epoch, member in state.known_record.isr, now_ms)

    def on_transfer_request(self, node: str, request: TransferRequest, state: ReplicaState, effects: Effects) -> None:
        """Serve a follower under state transfer its next chunk, or reject it.

        The request may be older than the follower's FollowRequest; its log entries are sent as before then.
        """
        if node not in state.known_record.replicas:
            return
        electable = Member(node, request.log_id) in self.electable(state.known_record)
        later = not self.ready and node not in self.transfer_positions
        answer = state_transfer.serve(node, request, electable, state, later=later)
        if isinstance(answer, FollowRejection):
            self.transfer_positions.pop(node, None)
            self._reject(node, request.nonce, answer, state, effects)
        elif answer is not None:
            effects.append(answer)
            self.transfer_positions[node] = request.position
            self.unlinked = False
            self.isolation.contacted()

    def _reject(self, node: str, nonce: int, rejection: FollowRejection, state: ReplicaState, effects: Effects) -> None:
        effects.send(node, FollowRejected(self.epoch, nonce, rejection, state.log_start))

    def on_append_ack(self, node: str, ack: AppendAck, state: ReplicaState, effects: Effects, now_ms: int) -> None:
        """Record what a follower holds, commit, and send it more.

        Counts only under the log id of its FollowRequest, and only up to this leader's own log end."""
        follower = self.followers.get(node)
        if follower is None or follower.member.log_id != ack.log_id or ack.leo > state.progress.leo:
            return
        self.isolation.contacted()
        self.unlinked = False
        member = follower.member
        if ack.durable > self.acked.get(member, 0):
            self.acked[member] = ack.durable
        follower.on_append_ack(ack, state, now_ms)
        effects.apply(self.advance(state, now_ms))
        in_sync = member in state.known_record.isr
        follower.send_entries(state, effects, self.epoch, in_sync, now_ms)

    def on_append_rejected(
        self, node: str, rejected: AppendRejected, state: ReplicaState, effects: Effects, now_ms: int
    ) -> None:
        """Resend from the end of a follower's log: it lacks entries before an AppendEntries."""
        follower = self.followers.get(node)
        if follower is not None and follower.member.log_id == rejected.log_id:
            follower.leave(state.progress.leo, now_ms)
            follower.on_append_rejected(rejected)
            self.unlinked = False
            in_sync = follower.member in state.known_record.isr
            follower.send_entries(state, effects, self.epoch, in_sync, now_ms)

    # -- streams --------------------------------------------------------------------------------

    def joined(self, node: str, join: int) -> FollowerProgress | None:
        """The follower on `node` if it takes the stream under `join`."""
        follower = self.followers.get(node)
        return follower if follower is not None and follower.join == join else None

    def on_stream_ack(self, event: RunAcknowledged) -> bool:
        """Record that a run is durable at its node; False when its join is over."""
        follower, end = self.followers.get(event.node), event.end
        if follower is None or follower.join != event.join:
            return False
        self.isolation.contacted()
        self.unlinked = False
        follower.stream_durable(end)
        if end > self.acked.get(follower.member, 0):
            self.acked[follower.member] = end
        return True

    def stream_closed(self, node: str, state: ReplicaState, effects: Effects, now_ms: int) -> None:
        """The stream to `node` is over: send what it has not acknowledged by AppendEntries."""
        follower = self.followers.get(node)
        if follower is not None and follower.join:
            self.stream_left(node, follower.join, state, effects, now_ms)

    def stream_left(self, node: str, join: int, state: ReplicaState, effects: Effects, now_ms: int) -> None:
        """The follower on `node` takes nothing more under `join`: send it by AppendEntries."""
        follower = self.joined(node, join)
        if follower is not None:
            follower.leave(state.progress.leo, now_ms)
            follower.send_entries(state, effects, self.epoch, follower.member in state.known_record.isr, now_ms)

    def send_head(self, node: str, state: ReplicaState, effects: Effects) -> None:
        """Send an AppendEntries without entries to a follower that takes the stream, or to which nothing is under way.

        Entries of the stream may be on their way to it: the message is about those that it acknowledged."""
        follower = self.followers.get(node)
        if follower is not None and (follower.join or follower.next <= follower.leo):
            effects.send(node, follower.head(state, self.epoch, follower.leo, follower.leo))

    def link_down(self, node: str, state: ReplicaState, now_ms: int) -> None:
        """Stop sending to `node` until its next FollowRequest: messages in flight may be lost."""
        follower = self.followers.get(node)
        if follower is not None:
            follower.leave(state.progress.leo, now_ms)
            follower.linked = False
        self.unlinked = not any(each.linked for each in self.followers.values())

    def _forget(self, node: str) -> None:
        """Send `node` nothing until its next FollowRequest; the numbers of its AppendEntries go on then."""
        follower = self.followers.pop(node, None)
        if follower is not None:
            self.last_seqs[node] = follower.seq

    def record_changed(self, record: PartitionRecord, leo: int, now_ms: int) -> None:
        """The record has another version: the pending write is decided, and removed replicas receive no more.

        Followers outside the ISR leave their streams; the others learn the version from an AppendEntries."""
        self.pending_write = None
        self.rejoin_backoff.confirmed({member.node for member in record.isr})
        for node in [node for node in self.followers if node not in record.replicas]:
            self._forget(node)
        for follower in self.followers.values():
            if follower.join:
                if follower.member in record.isr:
                    follower.schedule_hw(now_ms)
                else:
                    follower.leave(leo, now_ms)

    def lag_texts(self, leo: int) -> dict[str, str]:
        """How far each known follower is behind, for people."""
        texts = {node: f"takes rows, has those below {end:,}" for node, end in self.transfer_positions.items()}
        for node, follower in self.followers.items():
            behind = f"{max(0, leo - follower.leo):,} entries behind"
            texts[node] = behind if follower.linked else "not connected"
        return texts

    # -- who is in sync -------------------------------------------------------------------------

    def check_lag(self, state: ReplicaState, now_ms: int) -> bool:
        """Detect ISR members whose acknowledgements lag; True when this leader's own disk is too slow (H19)."""
        record, progress, options = state.known_record, state.progress, state.options
        limit_ms = options.max_time_lag_ms
        self.ack_lag.discount_pause(now_ms)
        outstanding = False
        slow: set[Member] = set()
        for member in record.isr:
            acked = self.acked.get(member, 0)
            lag_ms = self.ack_lag.lag_ms(acked, progress.leo, now_ms)
            outstanding = outstanding or acked < progress.leo
            if member == state.member:
                if lag_ms > limit_ms // 2:
                    self.ack_lag.check_at_ms = now_ms + limit_ms // CHECKS
                    return True
            elif lag_ms > limit_ms:
                slow.add(member)
        self.stalled = frozenset(slow)
        self.lagging = self._behind_in_hw(state)
        self.ack_lag.check_at_ms = now_ms + limit_ms // CHECKS if outstanding else None
        return False

    def _behind_in_hw(self, state: ReplicaState) -> tuple[Member, ...]:
        """Members whose high watermark is too far behind, the furthest first (Fluvio's lagging follower)."""
        floor = state.progress.hw - state.options.max_record_lag
        isr = state.known_record.isr
        behind = [each for each in self.followers.values() if each.member in isr and 0 <= each.hw < floor]
        return tuple(follower.member for follower in sorted(behind, key=lambda each: each.hw))

    def _to_drop(self, record: PartitionRecord) -> dict[Member, str]:
        """Member that must leave the ISR of `record` -> reason.

        A stalled member leaves even below min-ISR; a lagging one only while enough members stay."""
        dropped = dict.fromkeys(sorted(self.stalled & record.isr), "stalled")
        spare = len(record.isr) - len(dropped) - record.effective_min_isr
        lagging = [member for member in self.lagging if member in record.isr and member not in dropped]
        return dropped | dict.fromkeys(lagging[: max(0, spare)], "lags")

    def _joining(self, state: ReplicaState, now_ms: int) -> FollowerProgress | None:
        """Return a follower that may join the ISR now: caught up (H17), without old lag, its back-off over."""
        record, progress = state.known_record, state.progress
        max_lag_ms = state.options.max_time_lag_ms // 2
        floor = max(progress.hw, self.barrier + 1)
        for node, follower in self.followers.items():
            member = follower.member
            if member in record.isr or node not in record.replicas or not follower.linked:
                continue
            acked = self.acked.get(member, 0)
            if acked < floor or self.ack_lag.lag_ms(acked, progress.leo, now_ms) > max_lag_ms:
                continue
            if follower.hw < progress.hw - state.options.max_record_lag // 2:
                continue
            if self.rejoin_backoff.allows(node, now_ms, needed=too_few_in_sync(record)):
                return follower
        return None

    def closest(
        self, record: PartitionRecord, node: str, preferred: str | None = None, reached: Collection[str] = ()
    ) -> str | None:
        """Return the ISR member other than `node` that should lead next, or None when there is none.

        Members that stay replicas come before those that are removed, those that this node `reached` before others
        (R-REACHED), then the one that acknowledged most, then `preferred`."""
        others = [m for m in record.isr if m.node != node and m in self.acked]
        if not others:
            return None

        def rank(m: Member) -> tuple[bool, bool, int, bool, str]:
            return m.node not in record.removing, m.node in reached, self.acked[m], m.node == preferred, m.node

        return max(others, key=rank).node

    # -- conditional writes ---------------------------------------------------------------------

    def request_write(self, state: ReplicaState, effects: Effects, now_ms: int) -> LeaderHandOver | None:
        """Request the next conditional write, if any and none is pending.

        Membership comes first, then giving way when isolated, then the next step of a reassignment (R-RF). Returns a
        LeaderHandOver when that step is to hand leadership over.
        """
        if self.request_membership_write(state, effects, now_ms):
            return None
        way = self._give_way(state, now_ms)
        if way is not None:
            self.write(way.record, effects, now_ms, needs=(way.to,))
            return None
        record = state.known_record
        if not (record.adding or record.removing):
            return None
        step = self.reassignment.next(state, effects, self.epoch, self.barrier, self.acked, now_ms)
        if isinstance(step, ReassignmentFinished):
            self.write(step.record, effects, now_ms, needs=step.needs)
            return None
        return step

    def request_membership_write(self, state: ReplicaState, effects: Effects, now_ms: int) -> bool:
        """Request the next change of ISR or ELR; True when a write is pending now.

        Order: empty an ELR that is no longer needed, since nothing is committed before (H22); remove stalled and
        lagging members, before anything is applied without them; add a member that caught up.
        """
        if self.pending_write is not None:
            return True
        record = state.known_record
        if record.elr and not too_few_in_sync(record):
            self.write(replace(record, elr=frozenset()), effects, now_ms)
            return True
        dropped = self._to_drop(record)
        if dropped:
            self.stalled, self.lagging = frozenset(), ()
            for member in dropped:
                self.rejoin_backoff.leaves(member.node, now_ms, dropped[member])
            why = ", ".join(f"{member.node} {reason}" for member, reason in dropped.items())
            left = replace(drop_members(record, frozenset(dropped)), reason=f"out of sync: {why}")
            self.write(left, effects, now_ms)
            return True
        follower = self._joining(state, now_ms)
        if follower is not None:
            joined = replace(with_member(record, follower.member), reason="")
            self.rejoin_backoff.joins(follower.member.node, now_ms)
            self.write(joined, effects, now_ms, needs=(follower.member,), adds=joined.isr)
            return True
        return False

    def _give_way(self, state: ReplicaState, now_ms: int) -> GiveWay | None:
        """Return the record that lets another member lead when no follower is in contact (R-GIVE-WAY)."""
        record, leo = state.known_record, state.progress.leo
        powerless = too_few_in_sync(record) or (self.unlinked and len(record.isr) > 1 < record.effective_min_isr)
        keeps_up = any(follower.linked and follower.leo >= leo for follower in self.followers.values())
        return self.isolation.check(
            record,
            state.member,
            self.acked,
            powerless=powerless,
            keeps_up=keeps_up,
            now_ms=now_ms,
            unlinked=self.unlinked,
            reached=state.reached,
        )

    def write(
        self,
        record: PartitionRecord,
        effects: Effects,
        now_ms: int,
        needs: tuple[Member, ...] = (),
        adds: frozenset[Member] = frozenset(),
    ) -> None:
        """Request a conditional write; none may be pending. `needs`, `adds`: see PendingRecordWrite."""
        self.pending_write = PendingRecordWrite(record, now_ms + WRITE_ANSWER_MS, needs, adds)
        effects.append(WriteRecord(record, needs))

    def has_pending_write(self, base_version: int) -> bool:
        """True when a write on `base_version` is pending."""
        return self.pending_write is not None and self.pending_write.base_version == base_version

    def write_outcome_unknown(self, now_ms: int) -> None:
        """Repeat the pending write in a while."""
        assert self.pending_write is not None
        self.pending_write.repeat_at_ms = now_ms + WRITE_REPEAT_MS

    def write_refused(self, state: ReplicaState, now_ms: int) -> None:
        """Handle a refused write although the record's version, as far as is known, has not changed.

        Where the write depended on a registration, that registration differs. A copy of the write may still be in
        flight, so members that it adds keep counting until another write on the same version, which changes nothing, is
        decided (R-AMBIG)."""
        pending = self.pending_write
        assert pending is not None
        if pending.needs:
            if pending.adds:
                self.rejoin_backoff.not_registered(pending.needs[0].node, now_ms)
            else:
                self.reassignment.write_refused(now_ms)
            pending.record, pending.needs = state.known_record, ()
        pending.repeat_at_ms = now_ms + WRITE_REPEAT_MS

    def repeat_write(self, effects: Effects, now_ms: int) -> None:
        """Repeat the pending write when it is due."""
        pending = self.pending_write
        if pending is not None and pending.repeat_at_ms <= now_ms:
            pending.repeat_at_ms = now_ms + WRITE_ANSWER_MS
            effects.append(WriteRecord(pending.record, pending.needs))

    # -- time -----------------------------------------------------------------------------------

    def deadline_ms(self, state: ReplicaState) -> int | None:
        """When `tick` is due; None while nothing is timed."""
        due_ms = self.ack_lag.check_at_ms
        for follower in self.followers.values():
            resend_ms = follower.resend_at_ms
            if resend_ms is not None and (due_ms is None or resend_ms < due_ms):
                due_ms = resend_ms
        pending = self.pending_write
        if pending is not None and (due_ms is None or pending.repeat_at_ms < due_ms):
            due_ms = pending.repeat_at_ms
        check_at_ms = self.isolation.check_at_ms
        if check_at_ms is not None and pending is None and (due_ms is None or check_at_ms < due_ms):
            due_ms = check_at_ms
        current = self.reads.round
        if current is not None and (due_ms is None or current.repeat_at_ms < due_ms):
            due_ms = current.repeat_at_ms
        if pending is None:
            isr = state.known_record.isr
            out = (node for node, follower in self.followers.items() if follower.member not in isr)
            backoff_ms = self.rejoin_backoff.next_ms(out, self.ticked_ms)
            for at_ms in (backoff_ms, self.reassignment.deadline_ms(self.ticked_ms)):
                if at_ms is not None and (due_ms is None or at_ms < due_ms):
                    due_ms = at_ms
        return due_ms

    def tick(self, state: ReplicaState, effects: Effects, now_ms: int) -> bool:
        """Do what is due; True when this leader should hand over because its own disk is too slow."""
        slow = False
        self.ticked_ms = now_ms
        if self.ack_lag.check_at_ms is not None and self.ack_lag.check_at_ms <= now_ms:
            slow = self.check_lag(state, now_ms)
        isr = state.known_record.isr
        for follower in self.followers.values():
            if follower.resend_at_ms is not None and follower.resend_at_ms <= now_ms:
                follower.resend(state, effects, self.epoch, follower.member in isr, now_ms)
        self.repeat_write(effects, now_ms)
        self.reads.tick(effects, self.epoch, now_ms)
        self.reassignment.tick(effects, self.epoch, now_ms)
        return slow


@dataclass(slots=True)
class ResigningLeader:
    """A leader that refuses appends, drains, and then writes itself out of the record.

    `target`, an ISR member, takes over if it can. At `deadline_at_ms` the attempt ends and `leader` leads on; None for
    a process that is leaving: then the closest member takes over. `why` completes the record's reason. `sessions`: node
    -> the session id under which it is registered, as far as is known.
    """

    role: ClassVar[ReplicaRole] = ReplicaRole.RESIGNING

    leader: Leader
    target: str | None = None
    deadline_at_ms: int | None = None
    why: str = "resigned"
    sessions: Mapping[str, int] = field(default_factory=dict)

    @property
    def epoch(self) -> int:
        """The epoch that it leads."""
        return self.leader.epoch

    @property
    def gave_up(self) -> bool:
        """True once the record without this leader was sent: it may be decided at any time."""
        pending = self.leader.pending_write
        return pending is not None and pending.record.leader is None

    def request_write(self, state: ReplicaState, effects: Effects, now_ms: int) -> None:
        """Request the record without a leader once all entries are applied here and acknowledged by the target. A
        leader whose disk takes nothing does not wait for its own apply: the target has them, and commits them.

        It nominates the target if that one's session is known (R-NOMINATE). Before that, request membership changes,
        since draining may need them."""
        leader, progress, record = self.leader, state.progress, state.known_record
        target = self.target
        if self.deadline_at_ms is None:
            target = leader.closest(record, state.member.node, self.target, state.reached)
        complete = target is None or any(
            m.node == target and leader.acked.get(m, 0) == progress.leo for m in record.isr
        )
        drained = progress.applied == progress.leo or (state.disk_full and target is not None)
        if leader.pending_write is not None or not drained or not complete:
            leader.request_membership_write(state, effects, now_ms)
            return
        leader.write(self._resigned(record, state.member.node, target), effects, now_ms)

    def _resigned(self, record: PartitionRecord, node: str, target: str | None) -> PartitionRecord:
        """The record without this leader: `target` is the candidate of the next epoch, or a controller elects."""
        reason = f"{node} {self.why}"
        if target is not None and target in self.sessions and record.epoch < MAX_EPOCH:
            return replace(
                record,
                epoch=record.epoch + 1,
                status=PartitionStatus.CANDIDATE_FOUND,
                leader=None,
                candidate=Incarnation(target, self.sessions[target]),
                tried=frozenset({target}),
                preferred=None,
                reason=f"{reason}: waits for {target} to promote itself",
            )
        return replace(
            record,
            status=PartitionStatus.ELECTION,
            leader=None,
            candidate=None,
            tried=frozenset(),
            preferred=target,
            reason=reason,
        )

    def deadline_ms(self, state: ReplicaState) -> int | None:
        """When a tick is due: the leader's deadline, or the end of the attempt."""
        due_ms = self.leader.deadline_ms(state)
        if self.deadline_at_ms is not None and not self.gave_up:
            return self.deadline_at_ms if due_ms is None else min(due_ms, self.deadline_at_ms)
        return due_ms
