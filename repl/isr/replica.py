"""One replica of one partition: the protocol state machine, and the only entry point of this package.

`step(event, now_ms)` takes one event and returns the effects to carry out, in order; nothing else changes a replica.
`deadline_ms()` is when a Tick is due. The same events at the same times give the same effects. The core decides; the
runtime acts. `states.py` lists the transitions between roles; the rules within a role are in the role's module.

Entries of a recovered log above the applied offset count as uncommitted until a leader reports otherwise, or the
BARRIER of this replica's own new epoch commits them: leadership is never resumed (H11, R-INC). A record is ignored
unless it is newer than the known one, and refused when its epoch is below the durable one (H32). A message counts only
in its epoch (R-FENCE).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple, assert_never

from isthmus.repl.isr import effects as fx
from isthmus.repl.isr import events as ev
from isthmus.repl.isr import messages as ms
from isthmus.repl.isr import state_transfer
from isthmus.repl.isr.candidate import PROMOTED_REPEAT_MS, Candidate, objection
from isthmus.repl.isr.effects import NOTHING, Effects, ReplicaRole, at_most_apply
from isthmus.repl.isr.epochs import EpochTable, last_epoch, with_epoch
from isthmus.repl.isr.follower import Follower
from isthmus.repl.isr.follower_tracker import FollowerStatus, follower_statuses
from isthmus.repl.isr.lag_detector import CHECKS, AckLagTracker
from isthmus.repl.isr.leader import Leader, ResigningLeader
from isthmus.repl.isr.membership import guard
from isthmus.repl.isr.pair_stream import Commit, SentRun
from isthmus.repl.isr.reasons import (
    another_leader,
    older_version,
    overtaken,
    rolled_back,
    used_before,
    why,
    why_idle,
    why_reassigning,
)
from isthmus.repl.isr.reassignment import HAND_OVER_MS
from isthmus.repl.isr.replica_state import LogProgress, ReplicaOptions, ReplicaState, StateTransfer
from isthmus.repl.isr.states import TRANSITIONS, Failed, Idle, Quarantined, RoleState
from isthmus.repl.model.errors import NotLeader, NotReady, OutOfStorage
from isthmus.repl.model.record import Incarnation, Member, PartitionRecord, PartitionStatus

__all__ = ["LEAVING", "ROLLBACK_CHECK_PAUSE_MS", "SLOW_HAND_OVER_MS", "Replica", "ReplicaRole"]

LEAVING: Final = "resigned: this process is leaving"
"""Reason of a replica whose process is stopping: it no longer leads or accepts nominations."""

ROLLBACK_CHECK_PAUSE_MS: Final = 2_000
"""Minimum interval between two synced reads that outdated records trigger: most are late watches, and each read costs
the metastore a sync."""

SLOW_HAND_OVER_MS: Final = 10_000
"""How long a leader with a slow disk tries to hand over before it leads on; its writes are slow either way."""


class RollbackCheck(NamedTuple):
    """A synced read in progress that finds out whether the metastore went back.

    It did if the read returns a version below `version` of `lineage`."""

    nonce: int
    version: int
    lineage: int
    again_at_ms: int


class Replica:
    """One replica. Built from what recovery found; never built twice in one process for one log.

    `leo` and `epoch_table` are the recovered log's, `durable` the first offset of it that a power loss may still take,
    `log_start` its first entry. `applied` is the store's offset (or its floor while rows are replayed), `committed` the
    end below which this very log is known to be committed, since it was applied before. `epoch_seen`, its leader or
    candidate (`epoch_owner`) and the `log_id` come from the identity in the data directory. `nonce_base`, random
    and below 2^62, keeps the nonces of this process apart from those of earlier ones.
    """

    def __init__(
        self,
        partition: int,
        node: str,
        log_id: int,
        leo: int,
        epoch_table: EpochTable,
        applied: int,
        epoch_seen: int,
        options: ReplicaOptions,
        durable: int,
        log_start: int = 0,
        nonce_base: int = 0,
        transfer: ev.TransferStored | None = None,
        committed: int = 0,
        epoch_owner: Incarnation | None = None,
    ) -> None:
        assert max(0, committed) <= durable <= leo
        assert options.window_entries > 0
        self._state = ReplicaState(
            partition=partition,
            member=Member(node, log_id),
            progress=LogProgress(leo=leo, durable=durable, hw=max(applied, committed), applied=applied),
            epoch_table=epoch_table,
            log_start=log_start,
            options=options,
            epoch_seen=epoch_seen,
            highest_epoch=epoch_seen,
            epoch_owner=epoch_owner,
            nonce=nonce_base,
            transfer=None if transfer is None else StateTransfer(transfer.position, transfer.epoch, transfer.whole),
        )
        self._role_state: RoleState = Idle()
        self._leader: Leader | None = None
        """The leader's state, also while it resigns; None in other roles. Only `_become` sets it."""
        self._epoch_floor = max(epoch_seen, last_epoch(epoch_table))
        """The highest epoch of this log, and of this and earlier processes as followers or candidates."""
        self._newest_record: PartitionRecord | None = None
        """The newest record accepted in any session of this process."""
        self._rolled_back_lineage: int | None = None
        """The metastore certainly went back: records of this lineage are refused, whatever their epoch."""
        self._rollback_check: RollbackCheck | None = None
        self._leaving = False

    # -- what the runtime may read at any time --------------------------------------------------

    @property
    def partition(self) -> int:
        """The partition's id."""
        return self._state.partition

    @property
    def member(self) -> Member:
        """This copy as ISR and ELR name it."""
        return self._state.member

    @property
    def options(self) -> ReplicaOptions:
        """The options in force."""
        return self._state.options

    @property
    def record(self) -> PartitionRecord | None:
        """The newest accepted record; None before the first one of a session."""
        return self._state.record

    @property
    def epoch_seen(self) -> int:
        """The highest epoch that is durable here."""
        return self._state.epoch_seen

    @property
    def epoch_table(self) -> EpochTable:
        """Where each epoch begins in the log, appended entries included."""
        return self._state.epoch_table

    @property
    def role(self) -> ReplicaRole:
        """The current role."""
        return self._role_state.role

    @property
    def epoch(self) -> int:
        """The epoch of the current role; without one, the highest epoch received."""
        role_state = self._role_state
        if isinstance(role_state, Idle | Quarantined | Failed):
            return self._state.highest_epoch
        return role_state.epoch

    @property
    def leo(self) -> int:
        """First free offset of the log."""
        return self._state.progress.leo

    @property
    def durable(self) -> int:
        """First offset that is not known to be durable."""
        return self._state.progress.durable

    @property
    def high_watermark(self) -> int:
        """First offset that is not known to be committed."""
        return self._state.progress.hw

    @property
    def applied(self) -> int:
        """First offset that is not applied."""
        return self._state.progress.applied

    @property
    def ready(self) -> bool:
        """True while client writes and committed reads are served."""
        return isinstance(self._role_state, Leader) and self._role_state.ready

    @property
    def about_to_lead(self) -> bool:
        """True from the nomination of this replica until it is ready, or gives up."""
        role_state = self._role_state
        return isinstance(role_state, Candidate) or (isinstance(role_state, Leader) and not role_state.ready)

    @property
    def confirms_alone(self) -> bool:
        """True when a ReadRequested would be answered in the same step.

        No other member is electable, and everything committed is applied."""
        leader, state = self._role_state, self._state
        if not isinstance(leader, Leader) or not leader.ready or state.progress.applied < state.progress.hw:
            return False
        record = state.known_record
        alone = len(record.isr) == 1 and state.member in record.isr and not record.elr
        pending = leader.pending_write
        return alone and leader.reads.round is None and (pending is None or not pending.adds)

    @property
    def following(self) -> bool:
        """True while it takes the entries of its leader."""
        return isinstance(self._role_state, Follower) and self._role_state.following

    @property
    def reason(self) -> str:
        """Why the replica is in its state: "code: sentence"."""
        return why(self._role_state, self._state)

    @property
    def reassigning(self) -> str:
        """Why a change of the partition's replicas waits, as its leader knows; "" for no change, or no leader."""
        return why_reassigning(self._leader, self._state) if self._leader is not None else ""

    @property
    def transfer_position(self) -> int | None:
        """The offset below which a copy under state transfer has rows; None without a transfer."""
        transfer = self._state.transfer
        return None if transfer is None else transfer.position

    @property
    def unfounded(self) -> bool:
        """True while the store has rows of entries that the log lost (H36)."""
        return self._state.store_beyond_log

    def why_out(self, now_ms: int) -> dict[str, str]:
        """Node -> why it is out of the ISR and what it waits for, as this leader knows; empty when it does not lead."""
        leader, state = self._leader, self._state
        if leader is None:
            return {}
        record = state.known_record
        in_sync = {member.node for member in record.isr}
        found = {node: leader.rejoin_backoff.why_out(node, now_ms) for node in record.replicas if node not in in_sync}
        return {node: reason for node, reason in found.items() if reason}

    def taken_out(self, node: str) -> str:
        """The code of the reason why this leader took `node` out of the ISR; "" when it did not."""
        leader = self._leader
        return leader.rejoin_backoff.reasons.get(node, ("", 0))[0] if leader is not None else ""

    def followers(self) -> list[FollowerStatus]:
        """The followers as this leader sees them, by name; empty when it does not lead."""
        leader = self._leader
        if leader is None:
            return []
        return follower_statuses(iter(leader.followers.values()), leader.acked, self._state.known_record.isr)

    def deadline_ms(self) -> int | None:
        """When the next Tick is due, on the clock of `now_ms`; None while nothing is timed."""
        match self._role_state:
            case Leader() | ResigningLeader() as leading:
                return leading.deadline_ms(self._state)
            case Follower() as follower:
                return follower.deadline_ms()
            case Candidate(announce_at_ms=announce_at_ms):
                return announce_at_ms
            case _:
                return None

    def stream_commit(self, node: str, run: SentRun) -> Commit:
        """See `pair_stream.StreamLeader`."""
        leader = self._leader
        if leader is None or leader.joined(node, run.join) is None:
            return Commit.LEFT
        return Commit.YES if self._state.progress.hw >= run.end else Commit.NOT_YET

    def stream_durable(self, nonce: int) -> int:
        """See `pair_stream.StreamFollower`."""
        follower = self._role_state
        if isinstance(follower, Follower) and follower.following and follower.nonce == nonce:
            return self._state.progress.durable
        return -1

    # -- the input ------------------------------------------------------------------------------

    def step(self, event: ev.Event, now_ms: int) -> Effects:
        """Take one event at `now_ms` (monotonic); returns the effects to carry out, in order, which nobody changes."""
        early = _EARLY.get(type(event))
        if early is not None:
            found = early(self, event, now_ms)
            if found is not None:
                return found
        return self._step_usual(event, now_ms)

    def _step_usual(self, event: ev.Event, now_ms: int) -> Effects:
        """`step`, where there is no early exit."""
        effects = Effects()
        state = self._state
        if isinstance(self._role_state, Failed):
            self._step_failed(event, effects)
            return effects
        match event:
            case ev.Persisted():
                self._persisted(event.end, effects, now_ms)
            case ev.AppliedTo():
                self._applied_to(event.end, effects, now_ms)
            case ev.Received(node, message):
                self._receive(node, message, effects, now_ms)
            case ev.ReadRequested(token):
                self._read(token, effects, now_ms)
            case ev.RecordSeen(record) | ev.WriteConfirmed(record):
                self._see(record, effects, now_ms)
            case ev.WriteRefused(base_version, current):
                self._see(current, effects, now_ms)
                self._write_refused(base_version, now_ms)
            case ev.WriteOutcomeUnknown(base_version):
                self._write_outcome_unknown(base_version, now_ms)
            case ev.RecordSynced(nonce, record):
                self._record_synced(nonce, record, effects, now_ms)
            case ev.EpochPersisted(epoch):
                state.epoch_seen = max(state.epoch_seen, epoch)
                self._follow_record(effects, now_ms)
            case ev.SessionStarted(session_id):
                if state.session_id is not None and state.session_id != session_id:
                    self._session_over(effects)
                state.session_id = session_id
                state.reapply_committed(effects)
                self._follow_record(effects, now_ms)
            case ev.SessionExpired():
                self._session_over(effects)
            case ev.LinkUp(node):
                if isinstance(self._role_state, Follower) and self._role_state.leader == node:
                    self._role_state.send_request(state, effects, now_ms)
            case ev.LinkDown(node):
                self._link_down(node, effects, now_ms)
            case ev.StreamOpened(node):
                state.stream_nodes.add(node)
            case ev.StreamClosed(node):
                state.stream_nodes.discard(node)
                if self._leader is not None:
                    self._leader.stream_closed(node, state, effects, now_ms)
            case ev.RunLeft(node, join):
                if self._leader is not None:
                    self._leader.stream_left(node, join, state, effects, now_ms)
            case ev.RunHeld(node, join):
                follower = None if self._leader is None else self._leader.joined(node, join)
                if follower is not None:
                    follower.held = True
                    follower.schedule_hw(now_ms)
            case ev.HeadWanted(node):
                if self._leader is not None:
                    self._leader.send_head(node, state, effects)
            case ev.Truncated(to_offset):
                state.pending_truncations -= 1
                self._persisted(to_offset, effects, now_ms)
            case ev.Trimmed(start):
                state.log_start = max(state.log_start, start)
            case ev.LogIdentityRenewed(log_id):
                state.take_log_id(log_id)
                if isinstance(self._role_state, Follower):
                    self._role_state.send_request(state, effects, now_ms)
            case ev.TransferStored() | ev.TransferFinished():
                state_transfer.on_stored(state, event)
                if isinstance(self._role_state, Follower):
                    self._role_state.send_request(state, effects, now_ms)
            case ev.OptionsChanged(options):
                state.options = options
                if self._leader is not None:
                    self._leader.ack_lag.check_by(now_ms + options.max_time_lag_ms // CHECKS)
            case ev.DiskFull(full):
                state.disk_full = full
            case ev.NodesReached(nodes):
                state.reached = nodes
            case ev.RowsMissing(epoch, end):
                state.store_end = (epoch, end)
            case ev.PersistFailed(reason):
                self._fail(f"disk-failed: {reason}", effects)
            case ev.Resign(heir, sessions):
                self._leaving = True
                self._resign(heir, None, LEAVING, effects, now_ms, sessions)
            case ev.TransferLeadership(target, deadline_ms, sessions):
                reason = f"hands over to {target or 'another member'}"
                self._resign(target, deadline_ms, reason, effects, now_ms, sessions)
            case ev.Tick():
                self._tick(effects, now_ms)
            case ev.Append() | ev.RunReceived() | ev.RunCommitted() | ev.RunAcknowledged() | ev.RunAnnounced():
                raise AssertionError("`_EARLY` has all of their rules")
            case _:
                assert_never(event)
        return effects

    def _step_failed(self, event: ev.Event, effects: Effects) -> None:
        """Handle an event of a failed replica: committed entries are still applied, all else is refused."""
        match event:
            case ev.AppliedTo(end):
                self._state.progress.applied_to(end)
            case ev.ReadRequested(token):
                effects.append(fx.ReadRefused((token,), NotReady.reason))
            case _:
                pass

    # -- records --------------------------------------------------------------------------------

    def _see(self, record: PartitionRecord, effects: Effects, now_ms: int) -> None:
        """Accept `record` if it is newer than the known one and consistent with what is durable here.

        An older record is usually just late; a synced read finds out whether the metastore went back."""
        state = self._state
        assert record.partition == state.partition
        newest = self._newest_record
        if newest is not None and record.version < newest.version and record.lineage <= newest.lineage:
            self._check_rollback(newest, effects, now_ms)
        known = state.record
        if known is not None and record.version <= known.version and record.lineage <= known.lineage:
            return
        if record.epoch < state.highest_epoch or record.lineage == self._rolled_back_lineage:
            reason = rolled_back(record.epoch, state.highest_epoch)
            self._refuse_record(record, state.highest_epoch, reason, effects)
            return
        owner, noted = record.owner, state.epoch_owner
        if record.epoch == state.highest_epoch and owner is not None and noted is not None and owner != noted:
            self._rolled_back(record, another_leader(record.epoch, noted, owner), effects)
            return
        state.record = record
        if newest is None or (record.lineage, record.version) >= (newest.lineage, newest.version):
            self._newest_record = record
        self._object("")
        if record.epoch > state.highest_epoch or (record.leader is not None and noted is None):
            state.highest_epoch, state.epoch_owner = record.epoch, owner
            effects.append(fx.PersistEpoch(record.epoch, owner))
        if self._leader is not None:
            self._leader.record_changed(record, state.progress.leo, now_ms)
        self._follow_record(effects, now_ms)

    def _check_rollback(self, newest: PartitionRecord, effects: Effects, now_ms: int) -> None:
        """Start a synced read, since a record older than `newest` arrived; one per ROLLBACK_CHECK_PAUSE_MS."""
        check = self._rollback_check
        if check is None or now_ms >= check.again_at_ms:
            nonce = self._state.next_nonce()
            again_at_ms = now_ms + ROLLBACK_CHECK_PAUSE_MS
            self._rollback_check = RollbackCheck(nonce, newest.version, newest.lineage, again_at_ms)
            effects.append(fx.ReadRecordSync(nonce))

    def _record_synced(self, nonce: int, record: PartitionRecord, effects: Effects, now_ms: int) -> None:
        """Handle a record read after a sync: it confirms committed reads, or proves that the metastore went back."""
        state, check = self._state, self._rollback_check
        if check is not None and nonce == check.nonce:
            self._rollback_check = None
            if record.version < check.version and record.lineage <= check.lineage and state.highest_epoch:
                self._rolled_back(record, older_version(record, check.version), effects)
                return
        self._see(record, effects, now_ms)
        leader = self._leader
        if leader is not None:
            members = leader.electable(state.known_record)
            leader.reads.on_record_synced(nonce, record, state, effects, leader.epoch, members, now_ms)

    def _rolled_back(self, record: PartitionRecord, reason: str, effects: Effects) -> None:
        """Refuse this record and all others of its lineage: the metastore certainly went back."""
        self._rolled_back_lineage = record.lineage
        self._refuse_record(record, max(self._epoch_floor, self._state.highest_epoch), reason, effects)
        self._state.record = None

    def _refuse_record(self, record: PartitionRecord, epoch: int, reason: str, effects: Effects) -> None:
        """Leave the current role, and mark `record` as overtaken for replicas that cannot know better (H32).

        The write is conditional on the record's version: if a metastore server merely lags, the write fails, and only
        this role is lost. A copy without which an operator went on does not write."""
        member = self._state.member
        self._leave(reason, effects)
        self._object(reason)
        if record.overtaken:
            self._rolled_back_lineage = record.lineage
        elif not record.lineage or member in guard(record):
            effects.append(fx.WriteRecord(overtaken(record, epoch, member.node)))

    def _object(self, reason: str) -> None:
        if isinstance(self._role_state, Idle):
            self._role_state.objection = reason

    def _session_over(self, effects: Effects) -> None:
        """Leave the current role and forget the record: for all others, the next session is another process."""
        self._state.session_id = None
        self._leave("session-expired: the metastore ended this process's session", effects)
        self._state.record = None

    def _write_refused(self, base_version: int, now_ms: int) -> None:
        leader = self._leader
        if leader is not None and leader.has_pending_write(base_version):
            leader.write_refused(self._state, now_ms)

    def _write_outcome_unknown(self, base_version: int, now_ms: int) -> None:
        """Repeat the pending write in a while if it is the one on `base_version`."""
        leader = self._leader
        if leader is not None and leader.has_pending_write(base_version):
            leader.write_outcome_unknown(now_ms)

    # -- transitions ----------------------------------------------------------------------------

    def _follow_record(self, effects: Effects, now_ms: int) -> None:
        """Make the transitions that the known record, the session and the durable epoch require."""
        state = self._state
        record, me, node = state.record, state.incarnation, state.member.node
        if record is None:
            return
        match self._role_state:
            case Candidate(epoch=epoch) as candidate:
                if record.epoch == epoch and record.leader == me:
                    self._lead(candidate, effects, now_ms)
                elif record.epoch != epoch or record.candidate != me:
                    self._leave(f"withdrawn: {why_idle(record, me, node)}", effects)
            case Leader() | ResigningLeader() as leading:
                if record.epoch != leading.epoch or record.leader != me:
                    self._leave(f"replaced: {why_idle(record, me, node)}", effects)
                else:
                    self._advance(effects, now_ms)
            case Follower() as follower if not follower.continues_under(record, state, effects, now_ms):
                self._leave(why_idle(record, me, node), effects)
            case Quarantined() if node not in record.replicas:
                self._become(Idle(), why_idle(record, me, node), effects)
            case _:
                pass
        if isinstance(self._role_state, Idle) and record.epoch == state.epoch_seen:
            self._leave_idle(record, effects, now_ms)

    def _leave_idle(self, record: PartitionRecord, effects: Effects, now_ms: int) -> None:
        """Idle -> Candidate or Follower, if the record asks for it."""
        state = self._state
        member, leader = state.member, record.leader
        if record.status is PartitionStatus.CANDIDATE_FOUND:
            if record.candidate is None or record.candidate != state.incarnation:
                return
            if record.epoch <= self._epoch_floor and not self._leaving:
                # Made after this session began, so the epoch is used twice. (A leaving process may have been candidate
                # in this epoch: then it is its own nomination.)
                self._rolled_back(record, used_before(record.epoch, self._epoch_floor), effects)
            else:
                self._become_candidate(record.epoch, effects)
        elif leader is not None and leader.node != member.node and member.node in record.replicas:
            self._epoch_floor = max(self._epoch_floor, record.epoch)
            follower = Follower(record.epoch, leader.node, being_added=member.node in record.adding)
            self._become(follower, f"led: by {leader.node} in epoch {record.epoch}", effects)
            follower.send_request(state, effects, now_ms)

    def _become_candidate(self, epoch: int, effects: Effects) -> None:
        """Idle -> Candidate, unless there is an objection; then nothing is sent.

        Offsets of entries that the log lost and the store applied are not reused: they get barriers, too (H36)."""
        state = self._state
        objected = LEAVING if self._leaving else objection(state)
        if objected is not None:
            self._object(objected)
            return
        first = barrier = state.progress.leo
        if state.store_end is not None and state.store_beyond_log:
            barrier = max(first, state.store_end[1])
        self._epoch_floor = epoch
        state.epoch_table = with_epoch(state.epoch_table, epoch, first)
        state.progress.leo = barrier + 1
        self._become(Candidate(epoch, barrier), f"nominated: by the record of epoch {epoch}", effects)
        effects.extend(fx.AppendBarrier(epoch, offset) for offset in range(first, barrier + 1))

    def _lead(self, candidate: Candidate, effects: Effects, now_ms: int) -> None:
        """Candidate -> Leader."""
        state = self._state
        durable = state.progress.durable
        assert durable > candidate.barrier, "elected before the barrier was durable"
        leader = Leader(candidate.epoch, candidate.barrier, AckLagTracker.since(now_ms), {state.member: durable})
        self._become(leader, f"elected: in epoch {candidate.epoch}", effects)
        for node, request in candidate.early_requests.items():
            leader.on_follow_request(node, request, state, effects, now_ms)
        leader.check_lag(state, now_ms)
        self._advance(effects, now_ms)

    def _resign(
        self,
        target: str | None,
        deadline_ms: int | None,
        reason: str,
        effects: Effects,
        now_ms: int,
        sessions: Mapping[str, int],
    ) -> None:
        """Leader -> Resigning; for a process that leaves (no deadline) also Candidate -> Idle, for good."""
        role_state, state = self._role_state, self._state
        if isinstance(role_state, Candidate) and deadline_ms is None:
            self._leave(reason, effects)
        elif isinstance(role_state, ResigningLeader) and deadline_ms is None:
            role_state.deadline_at_ms, role_state.target, role_state.sessions = None, target, sessions
        elif isinstance(role_state, Leader):
            if deadline_ms is not None:
                record = state.known_record
                target = target or role_state.closest(record, state.member.node)
                if target is None or all(m.node != target for m in record.isr - {state.member}):
                    return
            self._become(ResigningLeader(role_state, target, deadline_ms, reason, sessions), reason, effects)
            role_state.reads.refuse_all(effects, NotReady.reason)
            self._request_write(effects, now_ms)

    def _leave(self, reason: str, effects: Effects) -> None:
        """Any role -> Idle; a copy in quarantine stays there."""
        leader = self._leader
        if isinstance(self._role_state, Idle | Quarantined | Failed):
            return
        if leader is not None:
            effects.append(fx.SteppedDown(leader.epoch, self._state.progress.hw, reason))
        self._become(Idle(), reason, effects)
        if leader is not None:
            leader.reads.refuse_all(effects, NotLeader.reason)

    def _quarantine_if(self, reason: str, effects: Effects) -> None:
        """Follower -> Quarantined, when there is a reason."""
        if reason:
            self._leave(reason, effects)
            self._become(Quarantined(reason), reason, effects)

    def _fail(self, reason: str, effects: Effects) -> None:
        """Any role -> Failed, by way of Idle."""
        self._leave(reason, effects)
        self._become(Failed(reason), reason, effects)

    def _become(self, role_state: RoleState, reason: str, effects: Effects) -> None:
        made = type(self._role_state), type(role_state)
        assert made in TRANSITIONS, f"no transition from {made[0].__name__} to {made[1].__name__}"
        self._role_state = role_state
        match role_state:
            case Leader():
                self._leader = role_state
            case ResigningLeader(leader):
                self._leader = leader
            case _:
                self._leader = None
        effects.append(fx.RoleChanged(role_state.role, self.epoch, reason))

    # -- messages -------------------------------------------------------------------------------

    def _receive(self, node: str, message: ms.Message, effects: Effects, now_ms: int) -> None:
        """Handle a message of this epoch; answer one of a lower epoch, and refresh the record for a higher one."""
        state, role_state = self._state, self._role_state
        epoch = state.highest_epoch
        if message.epoch != epoch:
            if message.epoch > epoch:
                state.refresh_record(effects, now_ms)
            elif not isinstance(message, ms.StaleEpoch):
                effects.send(node, ms.StaleEpoch(epoch))
        elif isinstance(message, ms.LeadershipCheck):
            durable = state.progress.durable if self.following else 0
            effects.send(node, ms.LeadershipCheckOk(epoch, state.member.log_id, message.nonce, durable))
        elif self._leader is not None:
            self._receive_as_leader(self._leader, node, message, effects, now_ms)
        elif isinstance(role_state, Follower):
            if role_state.leader == node:
                self._receive_as_follower(role_state, message, effects, now_ms)
        elif isinstance(role_state, Candidate) and isinstance(message, ms.FollowRequest):
            role_state.on_follow_request(node, message, state)

    def _receive_as_leader(self, leader: Leader, node: str, message: ms.Message, effects: Effects, now_ms: int) -> None:
        state = self._state
        match message:
            case ms.AppendAck():
                leader.on_append_ack(node, message, state, effects, now_ms)
                self._request_write(effects, now_ms)
            case ms.AppendRejected():
                leader.on_append_rejected(node, message, state, effects, now_ms)
            case ms.FollowRequest():
                leader.on_follow_request(node, message, state, effects, now_ms)
            case ms.TransferRequest():
                leader.on_transfer_request(node, message, state, effects)
            case ms.LeadershipCheckOk():
                members = leader.electable(state.known_record)
                leader.reads.on_check_ok(node, message, state, effects, leader.epoch, members, now_ms)
                if leader.reassignment.on_check_ok(node, message):
                    self._request_write(effects, now_ms)
            case _:
                pass  # for another role that this replica had in this epoch

    def _receive_as_follower(self, follower: Follower, message: ms.Message, effects: Effects, now_ms: int) -> None:
        state = self._state
        match message:
            case ms.AppendEntries():
                follower.on_append_entries(message, state, effects, now_ms)
            case ms.FollowAccepted():
                follower.on_follow_accepted(message, state, effects)
                self._quarantine_if(follower.diverged, effects)
            case ms.FollowRejected():
                follower.on_follow_rejected(message, state, effects, now_ms)
                self._quarantine_if(follower.diverged, effects)
            case ms.TransferRows() | ms.TransferMetadata():
                state_transfer.on_chunk(message, state, effects)
            case _:
                pass  # for another role that this replica had in this epoch

    def _link_down(self, node: str, effects: Effects, now_ms: int) -> None:
        role_state = self._role_state
        if self._leader is not None:
            self._leader.link_down(node, self._state, now_ms)
            self._request_write(effects, now_ms)
        elif isinstance(role_state, Candidate):
            role_state.link_down(node)
        elif isinstance(role_state, Follower) and role_state.leader == node:
            role_state.link_down(self._state, now_ms)

    # -- what comes with each write, before all other events ------------------------------------------

    def _persisted_early(self, event: ev.Persisted, now_ms: int) -> Effects | None:
        """Persisted, where it can only commit; None, without any change, otherwise.

        So it is for a settled leader, and for a follower whose newest entries came by the stream, which acknowledges
        them."""
        role_state, state = self._role_state, self._state
        progress = state.progress
        if state.pending_truncations:
            return None
        if isinstance(role_state, Leader):
            if not role_state.settled(state.known_record):
                return None
            progress.persisted(event.end)
            role_state.acked[state.member] = progress.durable
            return at_most_apply(role_state.advance(state, now_ms))
        if not isinstance(role_state, Follower):
            return None
        if role_state.stream_from is None or progress.durable < role_state.stream_from:
            return None
        progress.persisted(event.end)
        return at_most_apply(role_state.advance(state)) if role_state.leader_hw > progress.hw else NOTHING

    def _applied_early(self, event: ev.AppliedTo, _now_ms: int) -> Effects | None:
        """AppliedTo, where it has no effect; None, without any change, otherwise."""
        role_state, state = self._role_state, self._state
        if state.store_end is not None:
            return None
        if isinstance(role_state, Leader):
            if not role_state.ready or role_state.reads.confirmed:
                return None
        elif not isinstance(role_state, Follower):
            return None
        state.progress.applied_to(event.end)
        return NOTHING

    def _run_received(self, event: ev.RunReceived, now_ms: int) -> Effects:
        follower, state, epoch = self._role_state, self._state, event.epoch
        if (
            not isinstance(follower, Follower)
            or follower.leader != event.node
            or epoch != state.highest_epoch
            or not follower.on_stream_run(epoch, event.start, event.count, state, now_ms)
        ):
            return NOTHING
        effects = Effects()
        effects.append(fx.RunAccepted(follower.nonce))
        return effects

    def _run_committed(self, event: ev.RunCommitted, _now_ms: int) -> Effects:
        follower = self._role_state
        if isinstance(follower, Follower) and follower.following and follower.nonce == event.nonce:
            return at_most_apply(follower.learn_commit(event.end, self._state))
        return NOTHING

    def _run_acknowledged(self, event: ev.RunAcknowledged, now_ms: int) -> Effects:
        leader, state = self._leader, self._state
        if leader is None or not leader.on_stream_ack(event):
            return NOTHING
        end = leader.advance(state, now_ms)
        if leader is self._role_state and leader.settled(state.known_record):
            return at_most_apply(end)
        effects = Effects()
        effects.apply(end)
        self._request_write(effects, now_ms)
        return effects

    def _run_announced(self, event: ev.RunAnnounced, _now_ms: int) -> Effects:
        follower = None if self._leader is None else self._leader.joined(event.node, event.join)
        if follower is not None and event.end > follower.hw:
            follower.hw = event.end
        return NOTHING

    # -- the log --------------------------------------------------------------------------------

    def _append(self, event: ev.Append, now_ms: int) -> Effects:
        """Append a batch, or refuse all of it without any effect."""
        assert event.entries
        role_state, state = self._role_state, self._state
        effects = Effects()
        if isinstance(role_state, Leader):
            refused = role_state.refusal(event, state)
        elif isinstance(role_state, Failed):
            refused = OutOfStorage.reason
        else:
            refused = NotReady.reason if isinstance(role_state, Candidate | ResigningLeader) else NotLeader.reason
        if refused is not None:
            effects.append(fx.AppendRefused(refused, len(event.entries)))
            return effects
        assert isinstance(role_state, Leader)
        before = state.progress.leo
        state.progress.leo += len(event.entries)
        effects.append(fx.Persist(event.entries))
        role_state.appended(before, state, effects, now_ms)
        return effects

    def _persisted(self, end: int, effects: Effects, now_ms: int) -> None:
        state, role_state = self._state, self._role_state
        if state.pending_truncations:
            return  # this report means the log before its truncation
        before = state.progress.durable
        state.progress.persisted(end)
        if self._leader is not None:
            self._leader.acked[state.member] = state.progress.durable
            self._advance(effects, now_ms)
        elif isinstance(role_state, Follower):
            role_state.persisted(before, state, effects)
        elif isinstance(role_state, Candidate) and role_state.announces_at(state.progress.durable):
            self._announce(role_state, effects, now_ms)

    def _applied_to(self, end: int, effects: Effects, now_ms: int) -> None:
        state, leader = self._state, self._leader
        state.applied_to(end)
        if leader is not None:
            if not leader.ready and state.progress.applied > leader.barrier:
                leader.ready = True
                effects.append(fx.LeadershipReady(leader.epoch))  # also while it resigns: it may lead on
            leader.reads.applied(state, effects)
            if isinstance(self._role_state, ResigningLeader):
                self._request_write(effects, now_ms)

    def _read(self, token: int, effects: Effects, now_ms: int) -> None:
        """Start a committed read, or refuse it."""
        role_state, state = self._role_state, self._state
        if isinstance(role_state, Leader) and role_state.ready:
            members = role_state.electable(state.known_record)
            role_state.reads.request(token, state, effects, role_state.epoch, members, now_ms)
        else:
            waits = isinstance(role_state, Leader | ResigningLeader | Candidate)
            effects.append(fx.ReadRefused((token,), NotReady.reason if waits else NotLeader.reason))

    # -- commits, record writes and timers ------------------------------------------------------

    def _advance(self, effects: Effects, now_ms: int) -> None:
        """Commit what the leader may commit, then request a record write if one is due."""
        assert self._leader is not None
        effects.apply(self._leader.advance(self._state, now_ms))
        self._request_write(effects, now_ms)

    def _request_write(self, effects: Effects, now_ms: int) -> None:
        """Let the leader request a conditional write of the record, if there may be a reason for one."""
        leading, state = self._role_state, self._state
        if isinstance(leading, ResigningLeader):
            leading.request_write(state, effects, now_ms)
            return
        assert isinstance(leading, Leader)
        if leading.settled(state.known_record):
            return
        hand_over = leading.request_write(state, effects, now_ms)
        if hand_over is not None:
            reason = f"hands over to {hand_over.target}: this node is to be removed from the replicas"
            self._resign(hand_over.target, now_ms + HAND_OVER_MS, reason, effects, now_ms, {})

    def _announce(self, candidate: Candidate, effects: Effects, now_ms: int) -> None:
        state = self._state
        assert state.session_id is not None
        candidate.announce_at_ms = now_ms + PROMOTED_REPEAT_MS
        member = state.member
        effects.append(fx.Promoted(candidate.epoch, member.node, state.session_id, member.log_id))

    def _tick(self, effects: Effects, now_ms: int) -> None:
        state = self._state
        match self._role_state:
            case Candidate(announce_at_ms=int(due_ms)) as candidate if due_ms <= now_ms:
                self._announce(candidate, effects, now_ms)
            case Follower() as follower:
                follower.tick(state, effects, now_ms)
            case Leader() as leader:
                if leader.tick(state, effects, now_ms):
                    reason = "hands over: its own disk is too slow"
                    self._resign(None, now_ms + SLOW_HAND_OVER_MS, reason, effects, now_ms, {})
                self._request_write(effects, now_ms)
            case ResigningLeader(leader) as resigning:
                leader.tick(state, effects, now_ms)
                deadline_ms = resigning.deadline_at_ms
                if deadline_ms is not None and deadline_ms <= now_ms and not resigning.gave_up:
                    self._become(leader, "hand-over not done in time: leads on", effects)
                self._request_write(effects, now_ms)
            case _:
                pass


_EARLY: Final[dict[type[ev.Event], Callable[[Replica, Any, int], Effects | None]]] = {
    ev.Append: Replica._append,
    ev.Persisted: Replica._persisted_early,
    ev.AppliedTo: Replica._applied_early,
    ev.RunReceived: Replica._run_received,
    ev.RunCommitted: Replica._run_committed,
    ev.RunAcknowledged: Replica._run_acknowledged,
    ev.RunAnnounced: Replica._run_announced,
}
"""The events that come with each write -> their rules. Those of Persisted and AppliedTo know the usual case alone: they
return None, without any change, where `_step_usual` has to take the event."""
