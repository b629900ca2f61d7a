"""Deliberate defects of how replicas change (docs/protocol.md R-RF), each of which the simulator must catch (H21).

`mutants.py` lists the mixes of faults and the invariants.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from isthmus.repl.controller.election import Decision, ProposeRecord, elect
from isthmus.repl.isr import reassignment
from isthmus.repl.isr.effects import Effects
from isthmus.repl.isr.reassignment import DurabilityCheck, Reassignment
from isthmus.repl.model.record import PartitionRecord
from tests.simulation.cluster.replicas import ReplicaManager

Patch = pytest.MonkeyPatch


def removes_without_asking(patch: Patch) -> None:
    """A leader takes the ISR as proof of its members' data (against R-RF, H21)."""
    sound = Reassignment._send_checks

    def send_checks(self: Reassignment, check: DurabilityCheck, effects: Effects, epoch: int) -> None:
        check.missing.clear()
        sound(self, check, effects, epoch)

    patch.setattr(Reassignment, "_send_checks", send_checks)


def _overlooks(patch: Patch, what: Callable[[PartitionRecord], PartitionRecord]) -> None:
    sound = reassignment.obstacle
    patch.setattr(reassignment, "obstacle", lambda record, stay: sound(what(record), stay))


def removes_beside_the_elr(patch: Patch) -> None:
    """A leader removes replicas while a replica outside the ISR is electable, and too few stay (against R-RF)."""
    _overlooks(patch, lambda record: replace(record, elr=frozenset(), min_isr=1))


def removes_before_newcomers_are_in_sync(patch: Patch) -> None:
    """A leader does not wait for joining replicas to be in sync (against R-RF)."""
    _overlooks(patch, lambda record: replace(record, adding=()))


def removes_below_min_isr(patch: Patch) -> None:
    """A leader removes replicas although too few of the remaining ones are in sync (against R-RF, H21)."""
    _overlooks(patch, lambda record: replace(record, min_isr=1))


def removes_itself(patch: Patch) -> None:
    """A leader that is to go ends the change itself (against R-RF)."""
    sound = Reassignment.next

    def step(self: Reassignment, state: Any, *given: Any) -> Any:
        found = sound(self, state, *given)
        if isinstance(found, reassignment.LeaderHandOver):
            stay = reassignment.remaining_members(state.known_record)
            return reassignment._finished(state.known_record, stay, stay)
        return found

    patch.setattr(Reassignment, "next", step)


def counts_a_newcomer_that_goes(patch: Patch) -> None:
    """A newcomer that is replaced before the change ends counts for the factor of before (against I-FACTOR)."""
    patch.setattr(PartitionRecord, "factor", property(lambda r: len(r.replicas) - max(len(r.adding), len(r.removing))))


def forgets_who_is_a_newcomer(patch: Patch) -> None:
    """A newcomer that was to go and is wanted again counts as a replica that was there before (against I-FACTOR)."""

    def replicas_before(record: PartitionRecord) -> tuple[str, ...]:
        return tuple(node for node in record.replicas if node not in record.adding)

    patch.setattr(PartitionRecord, "replicas_before", property(replicas_before))


def never_ends_a_change(patch: Patch) -> None:
    """A change of replicas is begun and never ended."""
    patch.setattr(Reassignment, "next", lambda *_given: None)


def lets_a_controller_remove(record: PartitionRecord, *args: Any, **options: Any) -> Decision:
    """A controller finishes a reassignment by the metastore's state alone (against R-RF)."""
    if record.removing and {*record.adding} <= {member.node for member in record.isr}:
        stay = frozenset(member for member in record.isr if member.node not in record.removing)
        if stay and (record.leader is None or record.leader.node not in record.removing):
            return ProposeRecord(replace(record, replicas=record.staying, isr=stay, adding=(), removing=()))
    return elect(record, *args, **options)


def deletes_what_is_still_to_go(patch: Patch) -> None:
    """A process deletes its replica when it learns that it will be removed, not when it has read that it was (against
    R-RF)."""
    sound = ReplicaManager.seen

    def seen(self: ReplicaManager, record: PartitionRecord) -> None:
        sound(self, record)
        if self.process.node.name in record.removing and record.partition in self.process.replicas:
            self.condemn(record.partition)

    patch.setattr(ReplicaManager, "seen", seen)


def goes_on_following_where_it_is_none(patch: Patch) -> None:
    """A removed replica keeps its role, and is never deleted."""
    patch.setattr(ReplicaManager, "_removed", lambda _self, _partition: False)
