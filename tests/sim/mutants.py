"""Deliberate defects of the core and of the election, each of which the simulator must catch.

A defect that no seed catches means that a check or a fault is missing here. Every class says in its first
line what it does wrong; the test says by which invariants that may be noticed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from repl.isr import effects as fx
from repl.isr import events as ev
from repl.isr.candidate import Candidate
from repl.isr.election import Decision, Keep, Write, elect
from repl.isr.leader import Leader, Leadership, Resigning
from repl.isr.replica import Replica
from repl.isr.states import Idle
from repl.model.errors import Overloaded
from repl.model.record import PartitionRecord, PartitionStatus, Registration

NEVER_MS = 10**12


class AppliesBeforeDurable(Replica):
    """Has entries applied as soon as they are appended."""

    def _append(self, event: ev.Append) -> None:
        before = self._progress.leo
        super()._append(event)
        if self._progress.leo > before:
            self._progress.hw = self._progress.leo
            self._effects.append(fx.Apply(self._progress.leo))


class ResumesLeadership(Replica):
    """Takes up a leadership that an earlier session of its node had (against R-INC)."""

    def _follow_record(self, now_ms: int) -> None:
        record, me = self.record, self._me()
        if (
            isinstance(self._state, Idle)
            and record is not None
            and record.leader is not None
            and record.leader.node == self.member.node
            and me is not None
            and record.epoch == self.epoch_seen
        ):
            self.record = replace(record, leader=me)
            leader = Leader(record.epoch, self.leo - 1, {self.member: self.durable}, None, True)
            self._become(leader, "resumed")
        super()._follow_record(now_ms)


class ForgetsUndecidedWrite(Replica):
    """Never repeats a write whose answer was lost (against R-AMBIG)."""

    def _repeat_write(self, base_version: int, at_ms: int) -> None:
        super()._repeat_write(base_version, NEVER_MS)


class TakesUndecidedForRefused(Replica):
    """Goes on leading when its resignation came back undecided, though it may yet happen (against R-AMBIG)."""

    def _repeat_write(self, base_version: int, at_ms: int) -> None:
        state = self._state
        if isinstance(state, Resigning):
            self._state = Leader(state.epoch, state.barrier, state.acked, None, state.ready)


class CommitsBeforeBarrier(Replica):
    """Takes what is durable for committed as soon as it is nominated."""

    def _persisted(self, end: int, now_ms: int) -> None:
        super()._persisted(end, now_ms)
        if isinstance(self._state, Candidate) and self._progress.durable > self._progress.hw:
            self._progress.hw = self._progress.durable
            self._effects.append(fx.Apply(self._progress.hw))


class TrustsRecoveredTail(Replica):
    """Takes all of a recovered log for committed, though nobody may have been told so."""

    def __init__(self, **found: Any) -> None:
        super().__init__(**found)
        self._progress.hw = max(self._progress.hw, self._progress.durable)


class BelievesOldRecords(Replica):
    """Takes any record for news, however old (against H32 and the version rule)."""

    def _see(self, record: PartitionRecord, now_ms: int) -> None:
        if self.record is not None and record.version < self.record.version:
            self.record = None
            self._epoch_wanted = min(self._epoch_wanted, record.epoch)
        super()._see(record, now_ms)


class ServesBeforeBarrierApplied(Replica):
    """Serves reads and writes as soon as it is elected, while its log is still being applied."""

    def _lead(self, now_ms: int) -> None:
        super()._lead(now_ms)
        assert isinstance(self._state, Leader)
        self._state.ready = True


class ActsBeforeEpochIsDurable(Replica):
    """Stands for an epoch that its disk has not noted yet (against H27 and the wait for EpochPersisted)."""

    def _follow_record(self, now_ms: int) -> None:
        self.epoch_seen = self._epoch_wanted
        super()._follow_record(now_ms)


class AppendsWhatItRefuses(Replica):
    """Refuses a batch as too much for its window, and keeps it all the same."""

    def _append(self, event: ev.Append) -> None:
        super()._append(event)
        if self._effects == [fx.Refused(Overloaded.reason, len(event.entries))]:
            self._progress.leo += len(event.entries)
            self._effects.append(fx.Persist(event.entries))


class CommitsWithoutBeingInSync(Replica):
    """Commits by what it appended, not by what the in-sync members hold durably."""

    def _advance(self, now_ms: int) -> None:
        state = self._state
        assert isinstance(state, Leadership)
        if self._progress.leo > self._progress.hw:
            self._progress.hw = self._progress.leo
            self._effects.append(fx.Apply(self._progress.hw))
        self._want(now_ms)


def elect_in_old_epoch(record: PartitionRecord, *args: Any, **options: Any) -> Decision:
    """Nominates without a new epoch."""
    decision = elect(record, *args, **options)
    if isinstance(decision, Write) and decision.record.epoch > max(1, record.epoch):
        return Write(replace(decision.record, epoch=record.epoch))
    return decision


def elect_by_node(
    record: PartitionRecord, registrations: Mapping[str, Registration], *args: Any, **options: Any
) -> Decision:
    """Takes a leader's node for the leader: another session of it will do (against R-INC)."""
    if record.status is PartitionStatus.ONLINE and record.leader is not None and record.leader.node in registrations:
        return Keep("its node is there")
    return elect(record, registrations, *args, **options)


def elect_unheard(
    record: PartitionRecord, registrations: Mapping[str, Registration], *args: Any, **options: Any
) -> Decision:
    """Brings a candidate online that said nothing yet."""
    if record.status is PartitionStatus.CANDIDATE_FOUND and record.candidate is not None:
        return Write(replace(record, status=PartitionStatus.ONLINE, leader=record.candidate, candidate=None))
    return elect(record, registrations, *args, **options)
