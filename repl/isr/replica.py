"""One replica of one partition: the state machine, and the only entry point of this package.

`step(event, now_ms)` takes one fact and returns what is to be done about it, in order; `deadline_ms()` says when
a Tick is due. Same events, same times: same effects. It decides; it does nothing itself.

The transitions, all of them (what a role does between them stands in the role's own module):

    Idle      -> Follower    the record names another node's process as leader, in an epoch that is durable here
    Idle      -> Candidate   the record nominates this process (node, inc) in an epoch that is durable here and
                             that neither this log nor an earlier process has been in, and means this log
                             (gen): append the epoch's BARRIER
    Candidate -> Leader      the record says Online with this process in that epoch (a controller heard
                             Promoted, which was sent only after the barrier was durable)
    Follower  -> Idle        the record names another leader or none, or another epoch; the session is over
    Candidate -> Idle        the nomination was withdrawn or overtaken; the session is over; told to resign
    Leader    -> Resigning   told to resign or to hand over, or its own disk is too slow: nothing new is appended
    Resigning -> Leader      the hand-over did not happen in time, and the process is not leaving
    Leader, Resigning -> Idle  the record no longer names this process in this epoch; the session is over: what is
                             appended and not committed becomes UNKNOWN
    Follower  -> Follower    far: rows of the leader's store come instead of entries (`state_transfer.py`)
    Follower  -> Quarantined the leader contradicts what is committed here: this copy alone is left untouched
    Quarantined -> Idle      the record no longer names this node: the copy is one of those that are left behind
    any       -> Failed      log, store or identity could not be written: first step down, then believe nothing, until
                             there is a new process (docs/protocol.md H20, H34)

Whatever a recovered log holds above the applied offset counts as uncommitted until a leader says otherwise, or the
BARRIER of a new epoch of its own commits: leadership is never resumed (H11, R-INC). A record is ignored unless newer
than the known one, refused when its epoch is below the durable one (H32). A message counts only in its epoch (R-FENCE).

Changing roles: what a replica becomes, what it gives up with the role before, and why it may refuse to.

What a role does while it lasts stands in `follower.py`, `candidate.py` and `leader.py`.

`View` is what the runtime may read at any time; it changes nothing.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Final, NamedTuple, assert_never

from isthmus.repl.isr import effects as fx
from isthmus.repl.isr import events as ev
from isthmus.repl.isr import messages as ms
from isthmus.repl.isr import state_transfer as far
from isthmus.repl.isr.candidate import PROMOTED_REPEAT_MS, Candidate, objection
from isthmus.repl.isr.effects import ReplicaRole
from isthmus.repl.isr.epochs import EpochTable, last_epoch, with_epoch
from isthmus.repl.isr.follower import Follower
from isthmus.repl.isr.follower_tracker import FollowerStatus, views
from isthmus.repl.isr.lag_detector import CHECKS, AckLagTracker
from isthmus.repl.isr.leader import Leader, Leadership, ResigningLeader, closest, refusal
from isthmus.repl.isr.membership import WRITE_REPEAT_MS, guard
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
from isthmus.repl.isr.states import Failed, Idle, Quarantined, State
from isthmus.repl.model.errors import NotLeader, NotReady, OutOfStorage
from isthmus.repl.model.record import Incarnation, Member, PartitionRecord, PartitionStatus

__all__ = ["LEAVING", "SLOW_HAND_OVER_MS", "SUSPICION_PAUSE_MS", "Replica", "ReplicaRole", "Roles", "Suspicion", "View"]


class View:
    """The readable half of `Replica`."""

    def __init__(self, standing: ReplicaState) -> None:
        self._standing = standing
        self._state: State = Idle()

    @property
    def partition(self) -> int:
        """The partition's id."""
        return self._standing.partition

    @property
    def member(self) -> Member:
        """This copy, as ISR and ELR name it."""
        return self._standing.member

    @property
    def options(self) -> ReplicaOptions:
        """The numbers that it goes by."""
        return self._standing.options

    @property
    def record(self) -> PartitionRecord | None:
        """The newest record that was believed; None before the first one of a session."""
        return self._standing.record

    @property
    def epoch_seen(self) -> int:
        """The highest epoch that is durable here."""
        return self._standing.epoch_seen

    @property
    def epoch_table(self) -> EpochTable:
        """Where each epoch begins in the log, appended entries included."""
        return self._standing.table

    @property
    def role(self) -> ReplicaRole:
        """What the replica is."""
        return self._state.role

    @property
    def epoch(self) -> int:
        """The epoch that it leads, stands or follows in; otherwise the highest one it has heard of."""
        state = self._state
        return self._standing.epoch_wanted if isinstance(state, Idle | Quarantined | Failed) else state.epoch

    @property
    def leo(self) -> int:
        """First free offset of the log."""
        return self._standing.progress.leo

    @property
    def durable(self) -> int:
        """First offset that is not known to be durable."""
        return self._standing.progress.durable

    @property
    def hw(self) -> int:
        """First offset that is not known to be committed."""
        return self._standing.progress.hw

    @property
    def applied(self) -> int:
        """First offset that is not applied."""
        return self._standing.progress.applied

    @property
    def ready(self) -> bool:
        """True while client writes and committed reads are served."""
        return isinstance(self._state, Leader) and self._state.ready

    @property
    def confirms_alone(self) -> bool:
        """True when a Read would be answered in the same step: nobody else may be elected, and all that is committed
        is applied."""
        state, standing = self._state, self._standing
        if not isinstance(state, Leader) or not state.ready or standing.progress.applied < standing.progress.hw:
            return False
        record = standing.known
        alone = len(record.isr) == 1 and standing.member in record.isr and not record.elr
        return alone and state.reads.round is None and (state.pending is None or not state.pending.adds)

    @property
    def following(self) -> bool:
        """True while it takes what its leader sends."""
        return isinstance(self._state, Follower) and self._state.following

    @property
    def reason(self) -> str:
        """Why the state is what it is: "code: sentence"."""
        standing = self._standing
        if standing.far is not None and isinstance(self._state, Follower) and not self._state.diverged:
            return far.why(standing.far, self._state.leader, standing.far_rounds)
        return why(self._state, standing)

    @property
    def reassigning(self) -> str:
        """What a change of this partition's replicas waits for, as its leader knows; "" when none is under way here."""
        state = self._state
        return why_reassigning(state, self._standing) if isinstance(state, Leadership) else ""

    @property
    def far_position(self) -> int | None:
        """Below which offset rows are here, of a copy that is far; None of any other."""
        copy = self._standing.far
        return None if copy is None else copy.position

    @property
    def unfounded(self) -> bool:
        """Its store has rows of entries that its log does not hold (H36)."""
        return self._standing.unfounded

    def why_out(self, now_ms: int) -> dict[str, str]:
        """Why replicas are out of the ISR and what they wait for, as this leader knows; empty when it does not lead."""
        state, standing = self._state, self._standing
        if not isinstance(state, Leadership):
            return {}
        in_sync = {member.node for member in standing.known.isr}
        found = {node: state.pauses.why(node, now_ms) for node in standing.known.replicas if node not in in_sync}
        return {node: why for node, why in found.items() if why}

    def taken_out(self, node: str) -> str:
        """The code of the reason for which this leader took a node out of the ISR; "" when it did not."""
        state = self._state
        return state.pauses.reasons.get(node, ("", 0))[0] if isinstance(state, Leadership) else ""

    def followers(self) -> list[FollowerStatus]:
        """The followers as this leader sees them; empty when it does not lead."""
        state = self._state
        if not isinstance(state, Leadership):
            return []
        return views(iter(state.peers.values()), state.acked, self._standing.known.isr)

    def deadline_ms(self) -> int | None:
        """When the next Tick is due, on the clock of `now_ms`; None while nothing is timed."""
        match self._state:
            case Leadership() as leadership:
                return leadership.deadline_ms(self._standing)
            case Follower() as follower:
                return follower.deadline_ms()
            case Candidate(announce_at_ms=announce_at_ms):
                return announce_at_ms
            case _:
                return None


LEAVING: Final = "resigned: this process is leaving"
"""Why a process that was told to resign leads and stands no more."""


SUSPICION_PAUSE_MS: Final = 2_000
"""Least time between two synced reads because of records that are older than what is known: most are late watches, and
each costs the metastore a sync."""


class Suspicion(NamedTuple):
    """A synced read under way: below `version` of `lineage`, what it brings is from before the metastore went back."""

    nonce: int
    version: int
    lineage: int
    again_at_ms: int


class Roles(View):
    """The transitions of `Replica`. `_epoch_floor` is the highest epoch that this log has been in, or that this process
    or an earlier one has followed or stood in; `_newest` the newest record that was believed, also in an earlier
    session of this process; `_suspicion` the synced read that is to tell whether the metastore went back behind it."""

    def __init__(self, standing: ReplicaState) -> None:
        super().__init__(standing)
        self._epoch_floor = max(standing.epoch_seen, last_epoch(standing.table))
        self._rolled_back_lineage: int | None = None
        """Of records that are not believed, whatever their epoch: the metastore went back, and that is certain."""
        self._newest: PartitionRecord | None = None
        self._suspicion: Suspicion | None = None
        self._told_to_resign = False

    def must_replay(self, epoch: int, end: int) -> None:
        """The store was found to have applied all below `end`, the last entry in `epoch`, and may lack rows of it."""
        self._standing.found = (epoch, end)

    def reconfigure(self, options: ReplicaOptions, now_ms: int) -> None:
        """Go by other numbers from now on, also where something was timed by the old ones."""
        state = self._state
        self._standing.options = options
        if isinstance(state, Leadership):
            state.stalls.look_by(now_ms + options.max_time_lag_ms // CHECKS)

    def _leave_idle(self, record: PartitionRecord, now_ms: int) -> None:
        """Stand, or follow, if the record asks for it."""
        standing = self._standing
        member, leader = standing.member, record.leader
        if record.status is PartitionStatus.CANDIDATE_FOUND:
            if record.candidate is not None and record.candidate == standing.me:
                if record.epoch <= self._epoch_floor and not self._told_to_resign:
                    # Of this session it was made after that had begun, and epochs never come again. (Who was told to
                    # resign may have stood in it: that one's own nomination.)
                    self._went_back(record, used_before(record.epoch, self._epoch_floor))
                else:
                    self._stand(record.epoch)
        elif leader is not None and leader.node != member.node and member.node in record.replicas:
            self._epoch_floor = max(self._epoch_floor, record.epoch)
            follower = Follower(record.epoch, leader.node, added=member.node in record.adding)
            self._become(follower, f"led: by {leader.node} in epoch {record.epoch}")
            follower.ask(standing, now_ms)

    def _stand(self, epoch: int) -> None:
        """Idle -> Candidate, unless there is an objection; then nothing is sent. Offsets of entries that the log lost,
        and the store has rows of, are none of other entries: barriers stand there, too (H36)."""
        standing = self._standing
        if self._told_to_resign:
            objected: str | None = LEAVING
        else:
            objected = objection(standing)
        if objected is not None:
            self._object(objected)
            return
        first = barrier = standing.progress.leo
        if standing.found is not None and standing.unfounded:
            barrier = max(first, standing.found[1])
        self._epoch_floor = epoch
        standing.table = with_epoch(standing.table, epoch, first)
        standing.progress.leo = barrier + 1
        self._become(Candidate(epoch, barrier), f"nominated: by the record of epoch {epoch}")
        standing.effects.extend(fx.AppendBarrier(epoch, offset) for offset in range(first, barrier + 1))

    def _lead(self, now_ms: int) -> None:
        """Candidate -> Leader."""
        candidate, standing = self._state, self._standing
        assert isinstance(candidate, Candidate)
        durable = standing.progress.durable
        assert durable > candidate.barrier, "elected before the barrier was durable"
        leader = Leader(candidate.epoch, candidate.barrier, AckLagTracker.since(now_ms), {standing.member: durable})
        self._become(leader, f"elected: in epoch {candidate.epoch}")
        for node, hello in candidate.early.items():
            leader.greet(node, hello, standing, now_ms)
        leader.judge(standing, now_ms)
        self._advance(leader, now_ms)

    def _leave(self, reason: str) -> None:
        """Any role -> Idle; a copy in quarantine stays there."""
        state, standing = self._state, self._standing
        if isinstance(state, Idle | Quarantined | Failed):
            return
        self._become(Idle(), reason)
        if isinstance(state, Leadership):
            standing.effects.insert(-1, fx.SteppedDown(state.epoch, standing.progress.hw, reason))
            state.reads.refuse(standing, NotLeader.reason)

    def _fail(self, reason: str) -> None:
        """Anything -> Failed, by way of Idle."""
        self._leave(reason)
        self._become(Failed(reason), reason)

    def _step_failed(self, event: ev.Event) -> None:
        """What was committed before may still reach the store, and its clients; nothing else counts any more."""
        standing = self._standing
        match event:
            case ev.AppliedTo(end):
                standing.progress.applied_to(end)
            case ev.Append(entries=entries):
                standing.effects.append(fx.AppendRefused(OutOfStorage.reason, len(entries)))
            case ev.ReadRequested(token):
                standing.effects.append(fx.ReadRefused((token,), NotReady.reason))
            case _:
                pass

    def _quarantine_if(self, reason: str) -> None:
        """Follower -> Quarantined, when there is a reason."""
        if reason:
            self._leave(reason)
            self._become(Quarantined(reason), reason)

    def _resign(self, target: str | None, deadline_ms: int | None, reason: str, now_ms: int) -> None:
        """Leader -> Resigning; of a process that leaves (no deadline) also Candidate -> Idle, for good."""
        state, standing = self._state, self._standing
        if isinstance(state, Candidate) and deadline_ms is None:
            self._leave(reason)
        elif isinstance(state, ResigningLeader) and deadline_ms is None:
            state.deadline_at_ms, state.target = None, target
        elif isinstance(state, Leader):
            if deadline_ms is not None:
                target = target or closest(state, standing.known, standing.member.node)
                if target is None or all(m.node != target for m in standing.known.isr - {standing.member}):
                    return
            kept = {field.name: getattr(state, field.name) for field in fields(Leader)}
            resigning = ResigningLeader(**kept, target=target, deadline_at_ms=deadline_ms, why=reason)
            self._become(resigning, reason)
            resigning.reads.refuse(standing, NotReady.reason)
            self._want(resigning, now_ms)

    def _lead_on(self, state: ResigningLeader) -> None:
        """Resigning -> Leader: the hand-over did not happen."""
        kept = {field.name: getattr(state, field.name) for field in fields(Leader)}
        self._become(Leader(**kept), "hand-over not done in time: leads on")

    def _become(self, state: State, reason: str) -> None:
        self._state = state
        self._standing.effects.append(fx.RoleChanged(state.role, self.epoch, reason))

    def _advance(self, leadership: Leadership, now_ms: int) -> None:
        leadership.advance(self._standing, now_ms)
        self._want(leadership, now_ms)

    def _want(self, leadership: Leadership, now_ms: int) -> None:
        """Let a leadership ask for a conditional write, where one may be wanted: not on the way of a write."""
        record = self._standing.known
        quiet = len(record.isr) == len(record.replicas) and not (leadership.stalled or leadership.lagging or record.elr)
        if not quiet or isinstance(leadership, ResigningLeader) or record.adding or record.removing:
            step = leadership.want(self._standing, now_ms)
            if step is not None:
                why = f"hands over to {step.target}: this node is to be no replica any more"
                self._resign(step.target, now_ms + HAND_OVER_MS, why, now_ms)

    def _object(self, reason: str) -> None:
        if isinstance(self._state, Idle):
            self._state.objection = reason

    def _suspect(self, now_ms: int) -> None:
        """A record came that is older than one that was believed: ask for the one that stands, at most once in a
        while."""
        standing, newest = self._standing, self._newest
        assert newest is not None
        asked = self._suspicion
        if asked is None or now_ms >= asked.again_at_ms:
            nonce = standing.next_nonce()
            self._suspicion = Suspicion(nonce, newest.version, newest.lineage, now_ms + SUSPICION_PAUSE_MS)
            standing.effects.append(fx.ReadRecordSync(nonce))

    def _went_back(self, record: PartitionRecord, reason: str) -> None:
        """The metastore went back behind this process, for certain: of this lineage nothing is believed any more."""
        self._rolled_back_lineage = record.lineage
        self._disbelieve(record, max(self._epoch_floor, self._standing.epoch_wanted), reason)
        self._standing.record = None

    def _disbelieve(self, record: PartitionRecord, epoch: int, reason: str) -> None:
        """Leave what `record` is not to be believed about, and say so in the record, for whoever does not know better
        (H32). The write is on its version: if a server of the metastore merely lags, it is refused, and nothing is
        lost but this role. Where an operator went on without this copy, it has no say."""
        member = self._standing.member
        self._leave(reason)
        self._object(reason)
        if record.overtaken:
            self._rolled_back_lineage = record.lineage
        elif not record.lineage or member in guard(record):
            self._standing.effects.append(fx.WriteRecord(overtaken(record, epoch, member.node)))


SLOW_HAND_OVER_MS: Final = 10_000
"""How long a leader with a slow disk tries to hand over before it leads on; its writes are slow either way."""


class Replica(Roles):
    """One replica. Built from what recovery found; never built twice in one process for one log.

    `leo` and `epoch_table` are the recovered log's, `durable` the first offset of it that a power loss may
    still take, `log_start` its first entry; `applied` is the store's offset (or its floor while rows are
    replayed), `committed` how far this very log is known to be, by what was applied before; `epoch_seen`, who
    led or stood in it (`epoch_owner`) and `gen` come from the data directory's identity. `nonce_base`, random and below
    2^62, keeps the nonces of this process apart from those of earlier ones. `options` may be replaced (`reconfigure`).
    """

    def __init__(
        self,
        partition: int,
        node: str,
        gen: int,
        leo: int,
        epoch_table: EpochTable,
        applied: int,
        epoch_seen: int,
        options: ReplicaOptions,
        durable: int,
        log_start: int = 0,
        nonce_base: int = 0,
        far: ev.TransferStored | None = None,
        committed: int = 0,
        epoch_owner: Incarnation | None = None,
    ) -> None:
        assert max(0, committed) <= durable <= leo
        assert options.window_entries > 0
        standing = ReplicaState(
            partition=partition,
            member=Member(node, gen),
            progress=LogProgress(leo=leo, durable=durable, hw=max(applied, committed), applied=applied),
            table=epoch_table,
            log_start=log_start,
            options=options,
            epoch_seen=epoch_seen,
            epoch_wanted=epoch_seen,
            epoch_owner=epoch_owner,
            nonce=nonce_base,
            far=None if far is None else StateTransfer(far.position, far.epoch, far.whole),
        )
        super().__init__(standing)

    # -- the one input --------------------------------------------------------------------------

    def step(self, event: ev.Event, now_ms: int) -> list[fx.Effect]:
        """Take one fact at `now_ms` (monotonic); returns what is to be done, in order."""
        standing = self._standing
        effects: list[fx.Effect] = []
        standing.effects = effects
        if isinstance(self._state, Failed):
            self._step_failed(event)
            return effects
        match event:  # those of the way of a write first
            case ev.Append():
                self._append(event, now_ms)
            case ev.Persisted():
                self._persisted(event.end, now_ms)
            case ev.AppliedTo():
                self._applied_to(event.end, now_ms)
            case ev.Received(node, message):
                self._receive(node, message, now_ms)
            case ev.ReadRequested(token):
                self._read(token, now_ms)
            case ev.RecordSeen(record) | ev.WriteConfirmed(record):
                self._see(record, now_ms)
            case ev.WriteRefused(base_version, current):
                self._see(current, now_ms)
                self._refused(base_version, now_ms)
            case ev.WriteOutcomeUnknown(base_version):
                self._undecided(base_version, now_ms)
            case ev.RecordSynced(nonce, record):
                self._synced(nonce, record, now_ms)
            case ev.EpochPersisted(epoch):
                standing.epoch_seen = max(standing.epoch_seen, epoch)
                self._follow_record(now_ms)
            case ev.SessionStarted(inc):
                if standing.inc is not None and standing.inc != inc:
                    self._session_over()
                standing.inc = inc
                standing.replay()
                self._follow_record(now_ms)
            case ev.SessionExpired():
                self._session_over()
            case ev.LinkUp(node):
                if isinstance(self._state, Follower) and self._state.leader == node:
                    self._state.link(True, standing, now_ms)
            case ev.LinkDown(node):
                self._link_down(node, now_ms)
            case ev.Truncated(to_offset):
                standing.truncating -= 1
                self._persisted(to_offset, now_ms)
            case ev.Trimmed(start):
                standing.log_start = max(standing.log_start, start)
            case ev.GenRenewed(gen):
                standing.renewed(gen)
                if isinstance(self._state, Follower):
                    self._state.ask(standing, now_ms)
            case ev.TransferStored() | ev.TransferFinished():
                far.told(standing, event)
                if isinstance(self._state, Follower):
                    self._state.ask(standing, now_ms)
            case ev.PersistFailed(reason):
                self._fail(f"disk-failed: {reason}")
            case ev.Resign(heir):
                self._told_to_resign = True
                self._resign(heir, None, LEAVING, now_ms)
            case ev.TransferLeadership(target, deadline_ms):
                self._resign(target, deadline_ms, f"hands over to {target or 'another member'}", now_ms)
            case ev.Tick():
                self._tick(now_ms)
            case _:
                assert_never(event)
        return effects

    # -- the metastore --------------------------------------------------------------------------

    def _see(self, record: PartitionRecord, now_ms: int) -> None:
        """Believe `record` if it is newer than the known one and contradicts nothing that is durable here. An older one
        is late, as a rule; whether the metastore went back behind this process a synced read tells."""
        standing = self._standing
        assert record.partition == standing.partition
        newest = self._newest
        if newest is not None and record.version < newest.version and record.lineage <= newest.lineage:
            self._suspect(now_ms)
        known = standing.record
        if known is not None and record.version <= known.version and record.lineage <= known.lineage:
            return
        if record.epoch < standing.epoch_wanted or record.lineage == self._rolled_back_lineage:
            self._disbelieve(record, standing.epoch_wanted, rolled_back(record.epoch, standing.epoch_wanted))
            return
        owner, noted = record.owner, standing.epoch_owner
        if record.epoch == standing.epoch_wanted and owner is not None and noted is not None and owner != noted:
            self._went_back(record, another_leader(record.epoch, noted, owner))
            return
        standing.record = record
        if newest is None or (record.lineage, record.version) >= (newest.lineage, newest.version):
            self._newest = record
        self._object("")
        if record.epoch > standing.epoch_wanted or (record.leader is not None and noted is None):
            standing.epoch_wanted, standing.epoch_owner = record.epoch, owner
            standing.effects.append(fx.PersistEpoch(record.epoch, owner))
        if isinstance(self._state, Leadership):
            self._state.record_moved(record)
        self._follow_record(now_ms)

    def _synced(self, nonce: int, record: PartitionRecord, now_ms: int) -> None:
        """A record read after a sync: what a read waits for whose leadership is to be sure. One that is older than
        what was known when it was asked for proves that the metastore went back."""
        standing, asked = self._standing, self._suspicion
        if asked is not None and nonce == asked.nonce:
            self._suspicion = None
            if record.version < asked.version and record.lineage <= asked.lineage and standing.epoch_wanted:
                self._went_back(record, older_version(record, asked.version))
                return
        self._see(record, now_ms)
        state = self._state
        if isinstance(state, Leadership):
            members = state.electable(standing.known)
            state.reads.synced(nonce, record, standing, state.epoch, members, now_ms)

    def _follow_record(self, now_ms: int) -> None:
        """Make the transitions that the known record, the session and the durable epoch ask for."""
        standing = self._standing
        record, me, node = standing.record, standing.me, standing.member.node
        if record is None:
            return
        match self._state:
            case Candidate(epoch=epoch):
                if record.epoch == epoch and record.leader == me:
                    self._lead(now_ms)
                elif record.epoch != epoch or record.candidate != me:
                    self._leave(f"withdrawn: {why_idle(record, me, node)}")
            case Leadership() as leadership:
                if record.epoch != leadership.epoch or record.leader != me:
                    self._leave(f"replaced: {why_idle(record, me, node)}")
                else:
                    self._advance(leadership, now_ms)
            case Follower() as follower if not follower.named(record, standing, now_ms):
                self._leave(why_idle(record, me, node))
            case Quarantined() if node not in record.replicas:
                self._become(Idle(), why_idle(record, me, node))
            case _:
                pass
        if isinstance(self._state, Idle) and record.epoch == standing.epoch_seen:
            self._leave_idle(record, now_ms)

    def _session_over(self) -> None:
        """Another session is another process to everybody else: give up what this one held, and read anew."""
        self._standing.inc = None
        self._leave("session-expired: the metastore ended this process's session")
        self._standing.record = None

    def _refused(self, base_version: int, now_ms: int) -> None:
        state = self._state
        if isinstance(state, Leadership) and state.pending is not None and state.pending.base_version == base_version:
            state.refused_as_it_stands(self._standing, now_ms)

    def _undecided(self, base_version: int, now_ms: int) -> None:
        """The write on `base_version` is as undecided as before: the same bytes again in a while."""
        state = self._state
        if isinstance(state, Leadership) and state.pending is not None and state.pending.base_version == base_version:
            state.pending.repeat_at_ms = now_ms + WRITE_REPEAT_MS

    # -- other replicas -------------------------------------------------------------------------

    def _receive(self, node: str, message: ms.Message, now_ms: int) -> None:
        """Take a message of this epoch; of a lower one tell the sender so, of a higher one read the record."""
        standing, state = self._standing, self._state
        if isinstance(message, ms.StaleEpoch):
            if message.epoch > standing.epoch_wanted:
                standing.hint(now_ms)
            return
        if message.epoch != standing.epoch_wanted:
            if message.epoch > standing.epoch_wanted:
                standing.hint(now_ms)
            else:
                standing.effects.append(fx.Send(node, ms.StaleEpoch(standing.epoch_wanted)))
            return
        match message:
            case ms.LeadershipCheck(epoch, nonce):
                durable = standing.progress.durable if self.following else 0
                standing.effects.append(fx.Send(node, ms.LeadershipCheckOk(epoch, standing.member.gen, nonce, durable)))
            case ms.AppendEntries() if isinstance(state, Follower) and state.leader == node:
                state.take(message, standing, now_ms)
            case ms.FollowAccepted() if isinstance(state, Follower) and state.leader == node:
                state.accepted(message, standing)
                self._quarantine_if(state.diverged)
            case ms.FollowRejected() if isinstance(state, Follower) and state.leader == node:
                state.refused(message, standing, now_ms)
                self._quarantine_if(state.diverged)
            case ms.TransferRows() | ms.TransferMetadata() if isinstance(state, Follower) and state.leader == node:
                far.came(message, standing)
            case ms.TransferRequest() if isinstance(state, Leadership):
                state.far_asked(node, message, standing)
            case ms.AppendAck() if isinstance(state, Leadership):
                state.acknowledged(node, message, standing, now_ms)
                self._want(state, now_ms)
            case ms.AppendRejected() if isinstance(state, Leadership):
                state.missed(node, message, standing, now_ms)
            case ms.FollowRequest() if isinstance(state, Leadership | Candidate):
                state.greet(node, message, standing, now_ms)
            case ms.LeadershipCheckOk() if isinstance(state, Leadership):
                members = state.electable(standing.known)
                state.reads.answered(node, message, standing, state.epoch, members, now_ms)
                if state.reassignment.answered(node, message):
                    self._want(state, now_ms)
            case _:
                pass  # said to the role that this replica had, or will have

    def _link_down(self, node: str, now_ms: int) -> None:
        state = self._state
        if isinstance(state, Leadership | Candidate):
            state.link_down(node)
        elif isinstance(state, Follower) and state.leader == node:
            state.link(False, self._standing, now_ms)

    # -- the log --------------------------------------------------------------------------------

    def _append(self, event: ev.Append, now_ms: int) -> None:
        """Take a batch into the log, or refuse all of it with nothing done."""
        assert event.entries
        state, standing = self._state, self._standing
        if isinstance(state, Leader):
            refused = refusal(state, standing, event)
        else:
            refused = NotReady.reason if isinstance(state, Candidate | ResigningLeader) else NotLeader.reason
        if refused is not None:
            standing.effects.append(fx.AppendRefused(refused, len(event.entries)))
            return
        assert isinstance(state, Leader)
        before = standing.progress.leo
        standing.progress.leo += len(event.entries)
        standing.effects.append(fx.Persist(event.entries))
        state.appended(before, standing, now_ms)

    def _persisted(self, end: int, now_ms: int) -> None:
        standing, state = self._standing, self._state
        if standing.truncating:
            return  # said of the log as it was before the cut
        standing.progress.persisted(end)
        if isinstance(state, Leadership):
            state.acked[standing.member] = standing.progress.durable
            self._advance(state, now_ms)
        elif isinstance(state, Follower):
            state.persisted(standing)
        elif (
            isinstance(state, Candidate) and state.announce_at_ms is None and standing.progress.durable > state.barrier
        ):
            self._announce(now_ms)

    def _applied_to(self, end: int, now_ms: int) -> None:
        standing, state = self._standing, self._state
        standing.applied_to(end)
        if isinstance(state, Leadership):
            if not state.ready and standing.progress.applied > state.barrier:
                state.ready = True
                standing.effects.append(fx.LeadershipReady(state.epoch))  # it may yet lead on
            state.reads.applied(standing)
            if isinstance(state, ResigningLeader):
                self._want(state, now_ms)

    def _read(self, token: int, now_ms: int) -> None:
        """Take a committed read, or refuse it."""
        state, standing = self._state, self._standing
        if isinstance(state, Leader) and state.ready:
            state.reads.ask(token, standing, state.epoch, state.electable(standing.known), now_ms)
        else:
            reason = NotReady.reason if isinstance(state, Leadership | Candidate) else NotLeader.reason
            standing.effects.append(fx.ReadRefused((token,), reason))

    # -- writes and timers ----------------------------------------------------------------------

    def _announce(self, now_ms: int) -> None:
        candidate, standing = self._state, self._standing
        assert isinstance(candidate, Candidate)
        assert standing.inc is not None
        candidate.announce_at_ms = now_ms + PROMOTED_REPEAT_MS
        member = standing.member
        standing.effects.append(fx.Promoted(candidate.epoch, member.node, standing.inc, member.gen))

    def _tick(self, now_ms: int) -> None:
        standing = self._standing
        match self._state:
            case Candidate(announce_at_ms=int(due_ms)) if due_ms <= now_ms:
                self._announce(now_ms)
            case Follower() as follower:
                follower.tick(standing, now_ms)
            case Leadership() as leadership:
                slow = leadership.tick(standing, now_ms)
                if isinstance(leadership, ResigningLeader):
                    deadline_ms = leadership.deadline_at_ms
                    if deadline_ms is not None and deadline_ms <= now_ms and not leadership.given_up:
                        self._lead_on(leadership)
                elif slow:
                    self._resign(None, now_ms + SLOW_HAND_OVER_MS, "hands over: its own disk is too slow", now_ms)
                if isinstance(self._state, Leadership):
                    self._want(self._state, now_ms)
            case _:
                pass
