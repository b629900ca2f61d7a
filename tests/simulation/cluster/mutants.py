"""Deliberate defects of the core, the election and the shell, each of which the simulator must catch.

A defect that no seed catches means that a check or a fault is missing here. Each is a function that injects the defect
by patching the product's class; its first line names the wrong behaviour and the rule that it breaks. `DEFECTS` lists
the invariants that may catch it, and the mix of faults.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple, cast

import pytest

from isthmus.repl.controller import election
from isthmus.repl.controller.election import Decision, NoAction, ProposeRecord, elect
from isthmus.repl.isr import effects as fx
from isthmus.repl.isr import events as ev
from isthmus.repl.isr import leader, state_transfer
from isthmus.repl.isr import messages as ms
from isthmus.repl.isr.candidate import Candidate
from isthmus.repl.isr.epochs import epoch_at
from isthmus.repl.isr.follower import Follower
from isthmus.repl.isr.lag_detector import AckLagTracker
from isthmus.repl.isr.leader import Leader, ResigningLeader
from isthmus.repl.isr.read_index import ReadIndex
from isthmus.repl.isr.replica import _EARLY, Replica
from isthmus.repl.isr.states import TRANSITIONS, Idle
from isthmus.repl.model.record import Incarnation, Member, PartitionRecord, PartitionStatus, Registration
from tests.simulation.cluster import forced_leader_mutants as forcing
from tests.simulation.cluster import reassignment_mutants as moving
from tests.simulation.cluster.disk_writers import LogWriter
from tests.simulation.cluster.fault_mixes import (
    cuts,
    last_resorts,
    losses,
    moves,
    pauses,
    redirects,
    settings,
    storms,
    unattended,
)
from tests.simulation.cluster.metastore import SimMetastore
from tests.simulation.cluster.nodes import Node
from tests.simulation.cluster.plan import Plan
from tests.simulation.cluster.process import Process
from tests.simulation.cluster.state_transfer import StateTransfers

Patch = pytest.MonkeyPatch

# -- truncation, fencing, identity ------------------------------------------------------------------------------------


def truncates_to_its_hw(patch: Patch) -> None:
    """A follower truncates its log to its high watermark (against R-TRUNC, H1)."""
    sound = Follower.on_follow_accepted

    def accepted(self: Follower, message: ms.FollowAccepted, state: Any, effects: fx.Effects) -> None:
        progress = state.progress
        sound(self, message._replace(common=min(message.common, max(progress.hw, state.log_start))), state, effects)

    patch.setattr(Follower, "on_follow_accepted", accepted)


def truncates_nothing(patch: Patch) -> None:
    """A follower keeps entries that contradict its leader, and appends over them (against R-TRUNC, H4)."""
    accepts, appends = Follower.on_follow_accepted, Follower.on_append_entries

    def accepted(self: Follower, message: ms.FollowAccepted, state: Any, effects: fx.Effects) -> None:
        accepts(self, message._replace(common=state.progress.leo), state, effects)

    def append(self: Follower, message: ms.AppendEntries, state: Any, effects: fx.Effects, now_ms: int) -> None:
        leo = state.progress.leo
        if message.start <= leo:
            fresh = tuple(entry for entry in message.entries if entry.offset >= leo)
            message = message._replace(start=leo, before=epoch_at(state.epoch_table, leo - 1), entries=fresh)
        appends(self, message, state, effects, now_ms)

    patch.setattr(Follower, "on_follow_accepted", accepted)
    patch.setattr(Follower, "on_append_entries", append)


def takes_any_epoch(patch: Patch) -> None:
    """A message counts whatever its epoch (against R-FENCE)."""
    sound = Replica._receive

    def receive(self: Replica, node: str, message: ms.Message, effects: fx.Effects, now_ms: int) -> None:
        if not isinstance(message, ms.StaleEpoch):
            message = message._replace(epoch=self._state.highest_epoch)
        sound(self, node, message, effects, now_ms)

    patch.setattr(Replica, "_receive", receive)


def takes_any_nonce(patch: Patch) -> None:
    """A late answer to a FollowRequest counts (against R-NONCE, H5)."""
    sound = Follower.on_follow_accepted

    def accepted(self: Follower, message: ms.FollowAccepted, state: Any, effects: fx.Effects) -> None:
        self.following = False
        sound(self, message._replace(nonce=self.nonce), state, effects)

    patch.setattr(Follower, "on_follow_accepted", accepted)


def keeps_the_gen_of_a_lost_log(patch: Patch) -> None:
    """A replica that lost its data comes back under its old log id (against R-GEN)."""
    sound = Node.replace_disk

    def replace_disk(self: Node) -> None:
        before = dict(self.disk.log_ids)
        patch.setattr(Node, "take_new_log_id", lambda node, each: node.disk.log_ids.setdefault(each, before[each]))
        sound(self)

    patch.setattr(Node, "replace_disk", replace_disk)


def counts_acknowledgements_of_any_log(patch: Patch) -> None:
    """A leader counts a node's acknowledgements for the member in sync, whatever the log id (against R-GEN)."""
    sound = Leader.on_append_ack

    def acknowledged(self: Leader, node: str, ack: ms.AppendAck, state: Any, effects: fx.Effects, now_ms: int) -> None:
        sound(self, node, ack, state, effects, now_ms)
        for member in state.known_record.isr:
            if member.node == node:
                self.acked[member] = max(ack.durable, self.acked.get(member, 0))

    patch.setattr(Leader, "on_append_ack", acknowledged)


def acts_before_its_epoch_is_durable(patch: Patch) -> None:
    """A replica becomes a candidate in an epoch that is not durable yet (against H27)."""
    sound = Replica._follow_record

    def follow(self: Replica, effects: fx.Effects, now_ms: int) -> None:
        self._state.epoch_seen = self._state.highest_epoch
        sound(self, effects, now_ms)

    patch.setattr(Replica, "_follow_record", follow)


def believes_old_records(patch: Patch) -> None:
    """Any record is news, however old (against H32 and the version rule)."""
    sound = Replica._see

    def see(self: Replica, record: PartitionRecord, effects: fx.Effects, now_ms: int) -> None:
        state = self._state
        if state.record is not None and record.version < state.record.version:
            state.record = None
            state.highest_epoch = min(state.highest_epoch, record.epoch)
        sound(self, record, effects, now_ms)

    patch.setattr(Replica, "_see", see)


def nominates_in_its_own_epoch(patch: Patch) -> None:
    """A leader that resigns makes its successor the candidate of the epoch that it led itself (against R-NOMINATE)."""
    sound = ResigningLeader._resigned

    def resigned(self: ResigningLeader, record: PartitionRecord, node: str, target: str | None) -> PartitionRecord:
        return replace(sound(self, record, node, target), epoch=record.epoch)

    patch.setattr(ResigningLeader, "_resigned", resigned)


def resumes_leadership(patch: Patch) -> None:
    """A process takes up the leadership of an earlier session of its node (against R-INC, H11)."""
    patch.setitem(cast(Any, TRANSITIONS), (Idle, Leader), "a defect: else the table of transitions catches it at once")
    sound = Replica._follow_record

    def follow(self: Replica, effects: fx.Effects, now_ms: int) -> None:
        state, record = self._state, self._state.record
        if (
            isinstance(self._role_state, Idle)
            and record is not None
            and record.leader is not None
            and record.leader.node == state.member.node
            and state.incarnation is not None
            and record.epoch == state.epoch_seen
        ):
            state.record = replace(record, leader=state.incarnation)
            durable = state.progress.durable
            leader = Leader(
                record.epoch, self.leo - 1, AckLagTracker.since(now_ms), {state.member: durable}, ready=True
            )
            self._become(leader, "resumed", effects)
        sound(self, effects, now_ms)

    patch.setattr(Replica, "_follow_record", follow)


# -- commit and apply -------------------------------------------------------------------------------------------------


def _commit_rule(patch: Patch, rule: Callable[[Leader, PartitionRecord, int], int | None]) -> None:
    patch.setattr(Leader, "committed_end", rule)


def commits_what_is_durable_here(patch: Patch) -> None:
    """A leader commits without its followers' acknowledgements (against R-COMMIT)."""
    _commit_rule(patch, lambda self, record, durable: durable if durable > self.barrier else None)


def commits_below_min_isr(patch: Patch) -> None:
    """A leader commits with fewer than min-ISR members in sync (against R-ELR, H9)."""
    sound = Leader.committed_end
    _commit_rule(patch, lambda self, record, durable: sound(self, replace(record, min_isr=1), durable))


def commits_beside_the_elr(patch: Patch) -> None:
    """A leader commits while a replica outside the ISR is electable (against R-ELR)."""
    sound = Leader.committed_end
    _commit_rule(patch, lambda self, record, durable: sound(self, replace(record, elr=frozenset()), durable))


def commits_without_proposed_members(patch: Patch) -> None:
    """A leader ignores the members that its undecided write may have added (against R-MAX)."""
    patch.setattr(Leader, "maximal", lambda self, record: record.isr)


def commits_before_the_stalled_are_out(patch: Patch) -> None:
    """A leader leaves a stalled member out before the metastore has confirmed it (against ISR before apply)."""
    sound = Leader.committed_end

    def rule(self: Leader, record: PartitionRecord, durable: int) -> int | None:
        stay = record.isr - self.stalled
        if self.pending_write is not None and self.pending_write.record.isr < record.isr:
            stay = self.pending_write.record.isr
        return sound(self, replace(record, isr=stay), durable)

    _commit_rule(patch, rule)


def commits_before_the_barrier(patch: Patch) -> None:
    """A leader takes older epochs' entries for committed before its barrier is (against R-COMMIT, H17)."""

    def persisted(self: Replica, end: int, effects: fx.Effects, now_ms: int) -> None:
        sound(self, end, effects, now_ms)
        if isinstance(self._role_state, Candidate) and (committed := self._state.commit(self.durable)):
            effects.append(fx.Apply(committed))

    sound = Replica._persisted
    patch.setattr(Replica, "_persisted", persisted)


def believes_its_tail(patch: Patch) -> None:
    """A restarted replica takes all of its log for committed (against H1)."""
    sound = Replica.__init__

    def init(self: Replica, **found: Any) -> None:
        sound(self, **found)
        progress = self._state.progress
        progress.hw = max(progress.hw, progress.durable)

    patch.setattr(Replica, "__init__", init)


def applies_what_its_leader_has(patch: Patch) -> None:
    """A follower takes every received entry for committed (against R-COMMIT)."""
    sound = Follower.on_append_entries

    def append(self: Follower, message: ms.AppendEntries, state: Any, effects: fx.Effects, now_ms: int) -> None:
        sound(self, message._replace(hw=message.leo), state, effects, now_ms)

    patch.setattr(Follower, "on_append_entries", append)


def acknowledges_what_is_written(patch: Patch) -> None:
    """A follower acknowledges entries that are not synced (against R-FSYNC)."""
    sound = Follower.acknowledge

    def acknowledge(self: Follower, state: Any, effects: fx.Effects) -> None:
        kept = state.progress.durable
        state.progress.durable = state.progress.leo
        sound(self, state, effects)
        state.progress.durable = kept

    patch.setattr(Follower, "acknowledge", acknowledge)


def keeps_what_it_refuses(patch: Patch) -> None:
    """A leader refuses a batch as too much, and appends it (against I-NO-FALSE-NACK)."""
    sound = _EARLY[ev.Append]

    def append(self: Replica, event: ev.Append, now_ms: int) -> fx.Effects | None:
        effects = sound(self, event, now_ms)
        if effects == [fx.AppendRefused("overloaded", len(event.entries))]:
            self._state.progress.leo += len(event.entries)
            effects.append(fx.Persist(event.entries))
        return effects

    patch.setitem(_EARLY, ev.Append, append)


# -- members ----------------------------------------------------------------------------------------------------------


def drops_members_for_good(patch: Patch) -> None:
    """A member that leaves the ISR ceases to be electable, however few stay (against R-ELR, H9)."""

    def drop(record: PartitionRecord, gone: frozenset[Member]) -> PartitionRecord:
        return replace(record, isr=record.isr - gone)

    patch.setattr(leader, "drop_members", drop)
    patch.setattr(election, "drop_members", drop)


def joins_before_it_has_caught_up(patch: Patch) -> None:
    """A follower joins the ISR without having caught up (against H17)."""

    def joining(self: Leader, state: Any, now_ms: int) -> Any:
        record = state.known_record
        return next((p for p in self.followers.values() if p.member not in record.isr and p.linked), None)

    patch.setattr(Leader, "_joining", joining)


# -- conditional writes -----------------------------------------------------------------------------------------------


def forgets_an_undecided_write(patch: Patch) -> None:
    """A write without an answer never was (against R-AMBIG, H14)."""

    def forget(self: Replica, _base_version: int, _now_ms: int) -> None:
        if self._leader is not None:
            self._leader.pending_write = None

    patch.setattr(Replica, "_write_outcome_unknown", forget)


def never_repeats_a_write(patch: Patch) -> None:
    """A write without an answer is waited for, for ever (against R-AMBIG, H14)."""

    def repeat(self: Leader, _effects: fx.Effects, now_ms: int) -> None:
        if self.pending_write is not None and self.pending_write.repeat_at_ms <= now_ms:
            self.pending_write.repeat_at_ms = now_ms + 10**9

    patch.setattr(Leader, "repeat_write", repeat)


def forgets_a_refused_write(patch: Patch) -> None:
    """A refused write is taken to have no duplicate under way (against R-AMBIG and R-MAX)."""
    patch.setattr(Leader, "write_refused", lambda self, state, now_ms: setattr(self, "pending_write", None))


# -- reads ------------------------------------------------------------------------------------------------------------


def reads_without_asking(patch: Patch) -> None:
    """A leader serves reads without confirming its leadership (against R-READ, H24)."""
    sound = ReadIndex.request

    def request(
        self: ReadIndex,
        token: int,
        state: Any,
        effects: fx.Effects,
        epoch: int,
        members: frozenset[Member],
        now_ms: int,
    ) -> None:
        sound(self, token, state, effects, epoch, members & {state.member}, now_ms)

    patch.setattr(ReadIndex, "request", request)


def reads_before_the_barrier(patch: Patch) -> None:
    """A new leader serves reads while its log is still being applied (against R-READ)."""
    sound = Replica._lead

    def lead(self: Replica, candidate: Candidate, effects: fx.Effects, now_ms: int) -> None:
        sound(self, candidate, effects, now_ms)
        if isinstance(self._role_state, Leader):
            self._role_state.ready = True
            effects.append(fx.LeadershipReady(self.epoch))

    patch.setattr(Replica, "_lead", lead)


# -- election ---------------------------------------------------------------------------------------------------------


def elects_in_an_old_epoch(record: PartitionRecord, *args: Any, **options: Any) -> Decision:
    """A nomination without a new epoch (against I-EPOCH-ONE)."""
    decision = elect(record, *args, **options)
    if isinstance(decision, ProposeRecord) and decision.record.epoch > max(1, record.epoch):
        return ProposeRecord(replace(decision.record, epoch=record.epoch))
    return decision


def takes_the_node_for_the_leader(
    record: PartitionRecord, registrations: Mapping[str, Registration], *args: Any, **options: Any
) -> Decision:
    """Another session of the leader's node counts as the leader (against R-INC)."""
    if record.status is PartitionStatus.ONLINE and record.leader is not None and record.leader.node in registrations:
        return NoAction("its node is there")
    return elect(record, registrations, *args, **options)


def brings_the_silent_online(
    record: PartitionRecord, registrations: Mapping[str, Registration], *args: Any, **options: Any
) -> Decision:
    """A candidate becomes leader before it has reported anything."""
    if record.status is PartitionStatus.CANDIDATE_FOUND and record.candidate is not None:
        return ProposeRecord(replace(record, status=PartitionStatus.ONLINE, leader=record.candidate, candidate=None))
    return elect(record, registrations, *args, **options)


def elects_anybody(
    record: PartitionRecord, registrations: Mapping[str, Registration], *args: Any, **options: Any
) -> Decision:
    """Any registered replica may lead, in sync or not (an unclean election)."""
    there = frozenset(
        Member(n, registrations[n].log_id_of(record.partition)) for n in record.replicas if n in registrations
    )
    if record.status is PartitionStatus.ELECTION and there:
        candidate = max(there)
        return ProposeRecord(
            replace(
                record,
                epoch=record.epoch + 1,
                status=PartitionStatus.CANDIDATE_FOUND,
                candidate=Incarnation(candidate.node, registrations[candidate.node].session_id),
                isr=there,
            )
        )
    return elect(record, registrations, *args, **options)


# -- the shell and the metastore --------------------------------------------------------------------------------------


def reports_durable_before_the_sync(patch: Patch) -> None:
    """The log's writer reports written entries as durable (against R-FSYNC)."""

    def write(self: LogWriter) -> None:
        batch = list(self.unwritten)
        sound(self)
        if self.process.holds_directory():
            self.report_durable(batch, {})

    sound = LogWriter._write
    patch.setattr(LogWriter, "_write", write)


def never_reports_a_trim(patch: Patch) -> None:
    """The core is not notified of the log's new start."""
    patch.setattr(Process, "report_trimmed", lambda self, partition: None)


def answers_when_appended(patch: Patch) -> None:
    """A client gets success before its entry is applied (against I-ACK)."""
    sound = Process._step

    def step(self: Process, partition: int, event: ev.Event) -> Any:
        effects = sound(self, partition, event)
        if isinstance(event, ev.Persisted):
            self._answer(partition, event.end)
        return effects

    patch.setattr(Process, "_step", step)


def writes_unconditionally(patch: Patch) -> None:
    """The metastore does not check versions."""
    sound = SimMetastore._store

    def store(self: SimMetastore, record: PartitionRecord, needs: Any) -> Any:
        return sound(self, replace(record, version=self.records[record.partition].version), needs)

    patch.setattr(SimMetastore, "_store", store)


# -- rows instead of entries ------------------------------------------------------------------------------------------


def sends_rows_of_now(patch: Patch) -> None:
    """A leader reads a round's chunks from the store's present state, not from a snapshot of the round's start (against
    R-FAR)."""
    sound = StateTransfers._chunk

    def chunk(self: StateTransfers, partition: int, to: str, asked: ms.TransferRequest) -> ms.Message:
        of = self.snapshots.get((partition, to))
        if of is not None:
            of.rows = self.snapshot(partition).rows
        return sound(self, partition, to, asked)

    patch.setattr(StateTransfers, "_chunk", chunk)


def forgets_that_it_is_far(patch: Patch) -> None:
    """A process ignores the transfer mark of its store when it starts (against R-FAR)."""

    def found(_self: StateTransfers, _store: Any) -> None:
        return None

    patch.setattr(StateTransfers, "found", found)


def skips_to_the_end(patch: Patch) -> None:
    """A follower takes a round for complete when its first rows have arrived (against R-FAR)."""
    sound = state_transfer._install_rows

    def install(transfer: Any, message: ms.TransferRows, effects: fx.Effects) -> None:
        sound(transfer, message._replace(upto=message.end), effects)

    patch.setattr(state_transfer, "_install_rows", install)


def sends_rows_to_a_counted_member(patch: Patch) -> None:
    """A leader lets an electable replica take rows, which drops its log (against R-FAR)."""
    rejects, serves = state_transfer.log_rejection, state_transfer.serve

    def log_rejection(electable: bool, common: int, rounds: int, state: Any) -> Any:
        found = rejects(False, common, rounds, state)
        return ms.FollowRejection.BEYOND_LOG if electable and state.progress.leo - common > 3 else found

    def serve(node: str, request: ms.TransferRequest, _electable: bool, state: Any, *, later: bool) -> Any:
        return serves(node, request, False, state, later=later)

    patch.setattr(state_transfer, "log_rejection", log_rejection)
    patch.setattr(state_transfer, "serve", serve)


class Defect(NamedTuple):
    """`put_in` patches it; or `decide` is it. `names`: how the violation may begin. `plan`: the mix, the drawn one
    without. `seed`: tried first, because it catches the defect soonest."""

    put_in: Callable[[Patch], None] | None
    names: tuple[str, ...]
    plan: Callable[[], Plan] | None = None
    decide: Callable[..., Decision] = elect
    seed: int = 0


COMMIT = ("I-COMMIT-RULE", "I-GUARD-COMPLETE", "I-COMMIT-AGREE")
LOGS = ("I-LOG", "I-DOT", "I-EPOCH-ASC", "I-TABLE", "I-APPLY", "I-TRUNC-SAFE", "I-CONVERGE")

FAR = ("I-FAR-COMMITTED", "I-FAR-GUARD")

DEFECTS = (
    Defect(truncates_to_its_hw, (*COMMIT, *LOGS), storms(), seed=13),
    Defect(truncates_nothing, (*COMMIT, *LOGS), storms()),
    Defect(takes_any_epoch, (*COMMIT, *LOGS, "I-READ-LIN"), pauses, seed=22),
    Defect(takes_any_nonce, (*COMMIT, *LOGS), storms(repeated=0.3, overtaken=0.4), seed=2),
    Defect(keeps_the_gen_of_a_lost_log, (*COMMIT, "I-EPOCH-MONO"), losses()),
    Defect(counts_acknowledgements_of_any_log, COMMIT, unattended, seed=4),
    Defect(acts_before_its_epoch_is_durable, ("I-EPOCH-MONO", "I-COMMIT-RULE"), None),
    Defect(believes_old_records, ("I-EPOCH-MONO", "I-EPOCH-ONE"), None),
    Defect(nominates_in_its_own_epoch, ("I-EPOCH-ONE", "I-CONVERGE"), storms()),
    Defect(resumes_leadership, ("I-EPOCH-ONE", "I-READ-LIN", "I-DOT"), storms(), seed=1),
    Defect(commits_what_is_durable_here, ("I-COMMIT-RULE",), seed=1),
    Defect(commits_below_min_isr, ("I-COMMIT-RULE",), settings, seed=2),
    Defect(commits_beside_the_elr, ("I-COMMIT-RULE",), settings, seed=4),
    Defect(commits_without_proposed_members, ("I-COMMIT-RULE",), storms(), seed=2),
    Defect(commits_before_the_stalled_are_out, ("I-COMMIT-RULE",), storms(), seed=20),
    Defect(commits_before_the_barrier, ("I-COMMIT-RULE", "I-APPLY"), storms()),
    Defect(believes_its_tail, ("I-APPLY", "I-TRUNC-SAFE"), storms()),
    Defect(applies_what_its_leader_has, ("I-APPLY",), seed=1),
    Defect(acknowledges_what_is_written, COMMIT, seed=1),
    Defect(keeps_what_it_refuses, ("I-NO-FALSE-NACK",), seed=2),
    Defect(drops_members_for_good, ("I-MIN-GUARD",), storms(), seed=2),
    Defect(joins_before_it_has_caught_up, COMMIT, storms(), seed=7),
    Defect(forgets_an_undecided_write, ("I-WRITE-ONE", "I-COMMIT-RULE"), storms(store_lost=0.4)),
    Defect(never_repeats_a_write, ("I-CONVERGE",), storms(store_lost=0.3), seed=1),
    Defect(forgets_a_refused_write, ("I-WRITE-ONE", "I-COMMIT-RULE"), storms(store_held=0.4), seed=52),
    Defect(reads_without_asking, ("I-READ-LIN",), cuts(), seed=1),
    Defect(reads_before_the_barrier, ("I-READ-LIN",), storms(), seed=3),
    Defect(None, ("I-EPOCH", "I-CONVERGE"), None, elects_in_an_old_epoch, seed=1),
    Defect(None, ("I-CONVERGE",), None, takes_the_node_for_the_leader, seed=1),
    Defect(None, ("elected before the barrier was durable", "I-CONVERGE"), None, brings_the_silent_online),
    Defect(None, ("I-MIN-GUARD", "I-SOME-GUARD", *COMMIT), storms(), elects_anybody),
    Defect(reports_durable_before_the_sync, COMMIT, None),
    Defect(never_reports_a_trim, ("I-CONVERGE",), losses(harsh_trims=True, trims=0.9), seed=3),
    Defect(sends_rows_of_now, (*FAR, "I-CONVERGE"), losses(harsh_trims=True, trims=0.9)),
    Defect(forgets_that_it_is_far, (*FAR, *LOGS, *COMMIT), losses(harsh_trims=True, trims=0.9), seed=2),
    Defect(skips_to_the_end, FAR, losses(harsh_trims=True, trims=0.9)),
    Defect(sends_rows_to_a_counted_member, (*FAR, *COMMIT), storms()),
    Defect(moving.removes_without_asking, ("I-REMOVE-ASKED",), moves(), seed=4),
    Defect(moving.removes_beside_the_elr, ("I-REMOVE",), moves(min_isr=3), seed=20),
    Defect(moving.removes_before_newcomers_are_in_sync, ("I-REMOVE", "I-FACTOR"), moves(), seed=12),
    Defect(moving.removes_below_min_isr, ("I-REMOVE", "I-MIN-GUARD"), moves(min_isr=3), seed=20),
    Defect(moving.removes_itself, ("I-REMOVE",), moves(), seed=7),
    Defect(moving.counts_a_newcomer_that_goes, ("I-FACTOR",), redirects(factor=1, min_isr=2)),
    Defect(moving.forgets_who_is_a_newcomer, ("I-FACTOR",), redirects(factor=1, min_isr=2)),
    Defect(moving.never_ends_a_change, ("I-CONVERGE",), moves(), seed=4),
    Defect(None, ("I-REMOVE", "I-MIN-GUARD"), moves(min_isr=3), moving.lets_a_controller_remove, seed=7),
    Defect(moving.deletes_what_is_still_to_go, ("I-CLEARED",), moves(), seed=4),
    Defect(moving.goes_on_following_where_it_is_none, ("I-CONVERGE",), moves(), seed=4),
    Defect(forcing.forces_in_the_old_epoch, ("I-FORCED",), last_resorts()),
    Defect(forcing.forces_without_a_lineage, ("I-FORCED",), last_resorts()),
    Defect(forcing.forces_beside_the_old_guard, ("I-FORCED",), last_resorts()),
    Defect(None, ("I-FORCED",), last_resorts(), forcing.lets_a_controller_force),
    Defect(forcing.gives_up_what_its_leader_lacks, ("I-TRUNC-SAFE", "I-APPLY"), last_resorts()),
    Defect(forcing.counts_for_what_its_leader_lacks, ("I-DIVERGED",), last_resorts(), seed=5),
    Defect(forcing.forgets_what_it_replays, ("I-DIVERGED",), last_resorts(gap_ms=250, write_gap_ms=20), seed=32),
    Defect(forcing.keeps_a_divergence_to_itself, ("I-CONVERGE",), last_resorts(), seed=5),
    Defect(answers_when_appended, ("I-ACK",), None),
    Defect(writes_unconditionally, ("I-EPOCH-MONO", "I-EPOCH-ONE", "I-COMMIT-RULE"), seed=1),
)
