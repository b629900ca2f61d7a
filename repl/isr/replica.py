"""One replica of one partition: the value machine, and the only door of this room.

`step(event, now_ms)` takes one fact and returns what is to be done about it, in order; `deadline_ms()` says when
a Tick is due. Same events, same times: same effects. It decides; it does nothing itself.

The transitions, all of them:

    Idle      -> Candidate   the record nominates this process (node, inc) in an epoch that is durable here and
                             that neither this log nor an earlier process has been in, and means this log
                             (gen): append the epoch's BARRIER
    Candidate -> Leader      the record says Online with this process in that epoch (a controller heard
                             Promoted, which was sent only after the barrier was durable)
    Candidate -> Idle        the nomination was withdrawn or overtaken; the session is over; told to resign
    Leader    -> Resigning   told to resign: nothing new is appended
    Leader, Resigning
              -> Idle        the record no longer names this process in this epoch; the session is over: what
                             is appended and not committed becomes UNKNOWN
    any       -> Failed      log, store or identity could not be written: first step down, then believe nothing
                             (docs/protocol.md H20, H34). There is no way back but a new process.

Whatever a recovered log holds above the applied offset counts as uncommitted until a BARRIER of a new
epoch commits: leadership is never resumed (H11, R-INC). A record is ignored when it is not newer than
the known one, and refused when its epoch is below the one that was made durable here (H32). Other members
of the ISR simply hold the commit back until they acknowledge.
"""

from __future__ import annotations

from typing import Final, assert_never

from repl.isr import effects as fx
from repl.isr import events as ev
from repl.isr.candidate import PROMOTED_REPEAT_MS, Candidate, objection
from repl.isr.effects import Role
from repl.isr.epochs import EpochTable, last_epoch, with_epoch
from repl.isr.leader import WRITE_ANSWER_MS, WRITE_REPEAT_MS, Leader, PendingWrite, Resigning, refusal, wanted_record
from repl.isr.progress import Progress
from repl.isr.reasons import rolled_back, why, why_idle
from repl.isr.states import Failed, Idle, State
from repl.model.errors import NotLeader, NotReady, OutOfStorage
from repl.model.record import Incarnation, Member, PartitionRecord, PartitionStatus

__all__ = ["Replica", "Role"]

LEAVING: Final = "resigned: this process is leaving"
"""Why a process that was told to resign leads and stands no more."""


class Replica:
    """One replica. Built from what recovery found; never built twice in one process for one log.

    `leo` and `epoch_table` are the recovered log's, `durable` the first offset of it that a power loss may
    still take; `applied` is the store's offset (or its floor while rows are replayed); `epoch_seen` and `gen`
    come from the data directory's identity; `window_entries` bounds what is appended and not applied.
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
        window_entries: int,
        durable: int,
    ) -> None:
        assert 0 <= durable <= leo
        assert window_entries > 0
        self.partition = partition
        self.member = Member(node, gen)
        self.epoch_table = epoch_table
        self.record: PartitionRecord | None = None
        """The newest record that was believed; None before the first one of a session."""
        self.epoch_seen = epoch_seen
        """The highest epoch that is durable here."""
        self._epoch_wanted = epoch_seen
        self._epoch_floor = max(epoch_seen, last_epoch(epoch_table))
        self._progress = Progress(leo=leo, durable=durable, hw=applied, applied=applied)
        self._window_entries = window_entries
        self._state: State = Idle()
        self._inc: int | None = None
        self._told_to_resign = False
        self._effects: list[fx.Effect] = []

    # -- what a shell may read ------------------------------------------------------------------

    @property
    def role(self) -> Role:
        """What the replica is."""
        return self._state.role

    @property
    def epoch(self) -> int:
        """The epoch that it leads or stands in; otherwise the highest one it has heard of."""
        state = self._state
        return self._epoch_wanted if isinstance(state, Idle | Failed) else state.epoch

    @property
    def leo(self) -> int:
        """First free offset of the log."""
        return self._progress.leo

    @property
    def durable(self) -> int:
        """First offset that is not known to be durable."""
        return self._progress.durable

    @property
    def hw(self) -> int:
        """First offset that is not known to be committed."""
        return self._progress.hw

    @property
    def applied(self) -> int:
        """First offset that is not applied."""
        return self._progress.applied

    @property
    def ready(self) -> bool:
        """True while client writes and committed reads are served."""
        return isinstance(self._state, Leader) and self._state.ready

    @property
    def reason(self) -> str:
        """Why the state is what it is: "code: sentence"."""
        return why(self._state, self.record, self._me(), self.member.node)

    def deadline_ms(self) -> int | None:
        """When the next Tick is due, on the clock of `now_ms`; None while nothing is timed."""
        match self._state:
            case Candidate(announce_at_ms=announce_at_ms):
                return announce_at_ms
            case Leader(pending=pending) | Resigning(pending=pending):
                return None if pending is None else pending.repeat_at_ms
            case _:
                return None

    # -- the one input --------------------------------------------------------------------------

    def step(self, event: ev.Event, now_ms: int) -> list[fx.Effect]:
        """Take one fact at `now_ms` (monotonic); returns what is to be done, in order."""
        if isinstance(self._state, Failed):
            return self._step_failed(event)
        effects: list[fx.Effect] = []
        self._effects = effects
        match event:  # the three of the way of a write first
            case ev.Append():
                self._append(event)
            case ev.Persisted():
                self._persisted(event.end, now_ms)
            case ev.AppliedTo():
                self._applied_to(event.end, now_ms)
            case ev.RecordSeen(record) | ev.WriteConfirmed(record):
                self._see(record, now_ms)
            case ev.WriteRefused(base_version, current):
                self._see(current, now_ms)
                self._repeat_write(base_version, now_ms + WRITE_REPEAT_MS)
            case ev.WriteUndecided(base_version):
                self._repeat_write(base_version, now_ms + WRITE_REPEAT_MS)
            case ev.EpochPersisted(epoch):
                self.epoch_seen = max(self.epoch_seen, epoch)
                self._follow_record(now_ms)
            case ev.SessionStarted(inc):
                if self._inc is not None and self._inc != inc:
                    self._session_over()
                self._inc = inc
                self._follow_record(now_ms)
            case ev.SessionExpired():
                self._session_over()
            case ev.PersistFailed(reason):
                self._fail(reason)
            case ev.Resign():
                self._resign(now_ms)
            case ev.Tick():
                self._tick(now_ms)
            case _:
                assert_never(event)
        return effects

    def _step_failed(self, event: ev.Event) -> list[fx.Effect]:
        """What was committed before may still reach the store, and its clients; nothing else counts any more."""
        if isinstance(event, ev.AppliedTo):
            self._progress.applied_to(event.end)
        return [fx.Refused(OutOfStorage.reason, len(event.entries))] if isinstance(event, ev.Append) else []

    # -- the metastore --------------------------------------------------------------------------

    def _see(self, record: PartitionRecord, now_ms: int) -> None:
        """Believe `record` if it is newer than the known one and not older than what is durable here."""
        assert record.partition == self.partition
        if self.record is not None and record.version <= self.record.version:
            return
        if record.epoch < self._epoch_wanted:
            reason = rolled_back(record.epoch, self._epoch_wanted)
            self._leave(reason)
            self._object(reason)
            return
        self.record = record
        self._object("")
        if record.epoch > self._epoch_wanted:
            self._epoch_wanted = record.epoch
            self._effects.append(fx.PersistEpoch(record.epoch))
        if isinstance(self._state, Leader | Resigning):
            self._state.pending = None  # the version has moved: what was undecided is decided
        self._follow_record(now_ms)

    def _follow_record(self, now_ms: int) -> None:
        """Make the transitions that the known record, the session and the durable epoch ask for."""
        record = self.record
        if record is None:
            return
        me = self._me()
        match self._state:
            case Idle():
                nominated = record.status is PartitionStatus.CANDIDATE_FOUND and record.candidate == me
                if nominated and record.epoch == self.epoch_seen:
                    self._stand(record.epoch)
            case Candidate(epoch=epoch):
                if record.epoch == epoch and record.leader == me:
                    self._lead(now_ms)
                elif record.epoch != epoch or record.candidate != me:
                    self._leave(f"withdrawn: {why_idle(record, me, self.member.node)}")
            case Leader() | Resigning() as leadership:
                if record.epoch != leadership.epoch or record.leader != me:
                    self._leave(f"replaced: {why_idle(record, me, self.member.node)}")
                else:
                    self._advance(now_ms)
            case _:
                pass

    def _session_over(self) -> None:
        """Another session is another process to everybody else: give up what this one held, and read anew."""
        self._inc = None
        self._leave("session-expired: the metastore ended this process's session")
        self.record = None

    def _repeat_write(self, base_version: int, at_ms: int) -> None:
        """The write on `base_version` is as undecided as before: the same bytes again at `at_ms`."""
        if isinstance(self._state, Leader | Resigning):
            pending = self._state.pending
            if pending is not None and pending.base_version == base_version:
                pending.repeat_at_ms = at_ms

    # -- the roles ------------------------------------------------------------------------------

    def _stand(self, epoch: int) -> None:
        """Idle -> Candidate, unless there is an objection; then nothing is sent."""
        if self._told_to_resign:
            objected: str | None = LEAVING
        else:
            objected = objection(self._known(), self.member, self._epoch_floor, self._progress)
        if objected is not None:
            self._object(objected)
            return
        progress = self._progress
        barrier = progress.leo
        self._epoch_floor = epoch
        self.epoch_table = with_epoch(self.epoch_table, epoch, barrier)
        progress.leo += 1
        self._become(Candidate(epoch, barrier), f"nominated: by the record of epoch {epoch}")
        self._effects.append(fx.AppendBarrier(epoch, barrier))

    def _lead(self, now_ms: int) -> None:
        """Candidate -> Leader."""
        candidate = self._state
        assert isinstance(candidate, Candidate)
        assert self._progress.durable > candidate.barrier, "elected before the barrier was durable"
        leader = Leader(candidate.epoch, candidate.barrier, {self.member: self._progress.durable})
        self._become(leader, f"elected: in epoch {candidate.epoch}")
        self._advance(now_ms)

    def _leave(self, reason: str) -> None:
        """Candidate, Leader or Resigning -> Idle."""
        state = self._state
        if isinstance(state, Idle | Failed):
            return
        if isinstance(state, Leader | Resigning):
            self._effects.append(fx.SteppedDown(state.epoch, self._progress.hw, reason))
        self._become(Idle(), reason)

    def _fail(self, reason: str) -> None:
        """Anything -> Failed, by way of Idle."""
        self._leave(f"disk-failed: {reason}")
        self._become(Failed(f"disk-failed: {reason}"), reason)

    def _resign(self, now_ms: int) -> None:
        """Leader -> Resigning, Candidate -> Idle; and never stand again in this process."""
        self._told_to_resign = True
        match self._state:
            case Candidate():
                self._leave(LEAVING)
            case Leader() as leader:
                resigning = Resigning(leader.epoch, leader.barrier, leader.acked, leader.pending, leader.ready)
                self._become(resigning, LEAVING)
                self._want(now_ms)
            case _:
                pass

    def _become(self, state: State, reason: str) -> None:
        self._state = state
        self._effects.append(fx.RoleChanged(state.role, self.epoch, reason))

    # -- the log --------------------------------------------------------------------------------

    def _append(self, event: ev.Append) -> None:
        """Take a batch into the log, or refuse all of it with nothing done."""
        assert event.entries
        state = self._state
        if isinstance(state, Leader):
            refused = refusal(state, self._known(), self._progress, self._window_entries, event)
        else:
            refused = NotReady.reason if isinstance(state, Candidate | Resigning) else NotLeader.reason
        if refused is not None:
            self._effects.append(fx.Refused(refused, len(event.entries)))
            return
        self._progress.leo += len(event.entries)
        self._effects.append(fx.Persist(event.entries))

    def _persisted(self, end: int, now_ms: int) -> None:
        self._progress.persisted(end)
        state = self._state
        if isinstance(state, Leader | Resigning):
            state.acked[self.member] = self._progress.durable
            self._advance(now_ms)
        elif isinstance(state, Candidate) and state.announce_at_ms is None and self._progress.durable > state.barrier:
            self._announce(now_ms)

    def _advance(self, now_ms: int) -> None:
        """Move hw as far as the commit rule allows, and ask for what follows from it."""
        leadership, record = self._state, self._known()
        assert isinstance(leadership, Leader | Resigning)
        end = leadership.committed_end(record, self._progress.durable)
        if end is not None and end > self._progress.hw:
            self._progress.hw = end
            self._effects.append(fx.Apply(end))
        if record.elr or isinstance(leadership, Resigning):
            self._want(now_ms)

    def _applied_to(self, end: int, now_ms: int) -> None:
        self._progress.applied_to(end)
        state = self._state
        if isinstance(state, Leader):
            if not state.ready and self._progress.applied > state.barrier:
                state.ready = True
                self._effects.append(fx.LeadershipReady(state.epoch))
        elif isinstance(state, Resigning):
            self._want(now_ms)

    # -- writes and timers ----------------------------------------------------------------------

    def _want(self, now_ms: int) -> None:
        """Ask for the next conditional write; one at a time."""
        leadership = self._state
        assert isinstance(leadership, Leader | Resigning)
        if leadership.pending is None:
            wanted = wanted_record(leadership, self._known(), self._progress, self.member.node)
            if wanted is not None:
                leadership.pending = PendingWrite(wanted, now_ms + WRITE_ANSWER_MS)
                self._effects.append(fx.WriteRecord(wanted))

    def _announce(self, now_ms: int) -> None:
        candidate = self._state
        assert isinstance(candidate, Candidate)
        assert self._inc is not None
        candidate.announce_at_ms = now_ms + PROMOTED_REPEAT_MS
        self._effects.append(fx.Promoted(candidate.epoch, self.member.node, self._inc, self.member.gen))

    def _tick(self, now_ms: int) -> None:
        match self._state:
            case Candidate(announce_at_ms=int(due_ms)) if due_ms <= now_ms:
                self._announce(now_ms)
            case Leader(pending=PendingWrite() as write) | Resigning(pending=PendingWrite() as write) if (
                write.repeat_at_ms <= now_ms
            ):
                write.repeat_at_ms = now_ms + WRITE_ANSWER_MS
                self._effects.append(fx.WriteRecord(write.record))
            case _:
                pass

    # -- small facts ----------------------------------------------------------------------------

    def _object(self, reason: str) -> None:
        if isinstance(self._state, Idle):
            self._state.objection = reason

    def _me(self) -> Incarnation | None:
        return None if self._inc is None else Incarnation(self.member.node, self._inc)

    def _known(self) -> PartitionRecord:
        assert self.record is not None
        return self.record
