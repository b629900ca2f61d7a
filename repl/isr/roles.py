"""Changing roles: what a replica becomes, what it gives up with the role before, and why it may refuse to.

The middle of `Replica`: `view.py` is what may be read, `replica.py` says which event leads here, and lists all
transitions. What a role does while it lasts stands in `follower.py`, `candidate.py` and `leader.py`.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Final, NamedTuple

from repl.isr import effects as fx
from repl.isr import events as ev
from repl.isr.candidate import Candidate, objection
from repl.isr.epochs import last_epoch, with_epoch
from repl.isr.follower import Follower
from repl.isr.leader import Leader, Leadership
from repl.isr.membership import guard
from repl.isr.options import Options
from repl.isr.reasons import overtaken, used_before
from repl.isr.reassigning import HAND_OVER_MS
from repl.isr.resigning import Resigning, closest
from repl.isr.stalls import CHECKS, Stalls
from repl.isr.standing import Standing
from repl.isr.states import Failed, Idle, Quarantined, State
from repl.isr.view import View
from repl.model.errors import NotLeader, NotReady, OutOfStorage
from repl.model.record import PartitionRecord, PartitionStatus

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

    def __init__(self, standing: Standing) -> None:
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

    def reconfigure(self, options: Options, now_ms: int) -> None:
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
        leader = Leader(candidate.epoch, candidate.barrier, Stalls.since(now_ms), {standing.member: durable})
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
                standing.effects.append(fx.Refused(OutOfStorage.reason, len(entries)))
            case ev.Read(token):
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
        elif isinstance(state, Resigning) and deadline_ms is None:
            state.deadline_at_ms, state.target = None, target
        elif isinstance(state, Leader):
            if deadline_ms is not None:
                target = target or closest(state, standing.known, standing.member.node)
                if target is None or all(m.node != target for m in standing.known.isr - {standing.member}):
                    return
            kept = {field.name: getattr(state, field.name) for field in fields(Leader)}
            resigning = Resigning(**kept, target=target, deadline_at_ms=deadline_ms, why=reason)
            self._become(resigning, reason)
            resigning.reads.refuse(standing, NotReady.reason)
            self._want(resigning, now_ms)

    def _lead_on(self, state: Resigning) -> None:
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
        if not quiet or isinstance(leadership, Resigning) or record.adding or record.removing:
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
            standing.effects.append(fx.SyncRecord(nonce))

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
