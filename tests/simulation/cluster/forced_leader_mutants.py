"""Deliberate defects of forced elections (docs/protocol.md R-FORCE), each of which the simulator must catch.

`mutants.py` lists the mixes of faults and the invariants.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from isthmus.repl.controller import unclean_election
from isthmus.repl.controller.election import Decision, ProposeRecord, elect
from isthmus.repl.isr import messages as ms
from isthmus.repl.isr.effects import Effects
from isthmus.repl.isr.follower import Follower
from isthmus.repl.isr.replica import Replica
from isthmus.repl.model.record import Incarnation, PartitionRecord, PartitionStatus, Registration

Patch = pytest.MonkeyPatch


def _forces(patch: Patch, what: Callable[[PartitionRecord, PartitionRecord], PartitionRecord]) -> None:
    sound = unclean_election.forced
    patch.setattr(unclean_election, "forced", lambda record, *given: what(record, sound(record, *given)))


def forces_in_the_old_epoch(patch: Patch) -> None:
    """A forced leader acts in the epoch of the one that is gone (against R-FORCE, I-EPOCH-ONE)."""
    _forces(patch, lambda record, made: replace(made, epoch=record.epoch))


def forces_without_a_lineage(patch: Patch) -> None:
    """The record does not show that an election was unclean (against R-FORCE)."""
    _forces(patch, lambda record, made: replace(made, lineage=record.lineage))


def forces_beside_the_old_guard(patch: Patch) -> None:
    """The previously electable replicas may still be elected beside the forced one (against R-FORCE)."""
    _forces(patch, lambda record, made: replace(made, elr=record.isr | record.elr))


def lets_a_controller_force(
    record: PartitionRecord, registrations: dict[str, Registration], *args: Any, **options: Any
) -> Decision:
    """A controller forces a leader without an operator's order (against R-FORCE)."""
    decision = elect(record, registrations, *args, **options)
    there = [name for name in record.replicas if name in registrations]
    if record.status is not PartitionStatus.OFFLINE or isinstance(decision, ProposeRecord) or not there:
        return decision
    name, found = there[0], registrations[there[0]]
    copy = unclean_election.ReplicaReport(name, 0, 0, 0, 0, 0, found.log_id_of(record.partition))
    return ProposeRecord(unclean_election.forced(record, copy, Incarnation(name, found.session_id), (), 0, "forced"))


def gives_up_what_its_leader_lacks(patch: Patch) -> None:
    """A follower drops entries that are committed here and missing at its leader (against R-TRUNC, R-FORCE)."""
    sound = Follower.on_follow_accepted

    def accepted(self: Follower, message: ms.FollowAccepted, state: Any, effects: Effects) -> None:
        progress = state.progress
        progress.hw, progress.applied = min(progress.hw, message.common), min(progress.applied, message.common)
        sound(self, message, state, effects)

    patch.setattr(Follower, "on_follow_accepted", accepted)


def counts_for_what_its_leader_lacks(patch: Patch) -> None:
    """A replica with a committed entry acknowledges to a leader that lacks it (against R-FORCE)."""
    sound = Follower.on_follow_accepted

    def accepted(self: Follower, message: ms.FollowAccepted, state: Any, effects: Effects) -> None:
        sound(self, message, state, effects)
        if self.diverged:
            self.diverged = ""
            self.acknowledge(state, effects)

    patch.setattr(Follower, "on_follow_accepted", accepted)


def forgets_what_it_replays(patch: Patch) -> None:
    """A replica whose rows must be replayed takes none of the replayed entries for committed (against R-FORCE, H36)."""
    sound = Replica.__init__

    def made(self: Replica, *args: Any, committed: int = 0, **given: Any) -> None:
        del committed
        sound(self, *args, **given)

    patch.setattr(Replica, "__init__", made)


def keeps_a_divergence_to_itself(patch: Patch) -> None:
    """A replica whose leader contradicts it keeps sending FollowRequests, and never reports the divergence (against
    R-FORCE)."""
    patch.setattr(Replica, "_quarantine_if", lambda *_given: None)
