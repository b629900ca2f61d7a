"""Deliberate defects of R-SUSPECT, each of which the simulator must catch; see `mutants.py`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any

import pytest

from isthmus.repl.controller.election import Decision, ProposeRecord, elect
from isthmus.repl.controller.suspicion import Suspicions
from isthmus.repl.model.record import Incarnation, Member, PartitionRecord, PartitionStatus, Registration
from tests.simulation.cluster.suspicions import SuspectingMetastore, SuspectingProcess, SuspicionSimulation

Patch = pytest.MonkeyPatch


def _without(patch: Patch, rule: str) -> None:
    """Ignore one of the rules that forbid a suspicion."""
    sound = Suspicions._forbidden

    def forbidden(self: Suspicions, node: str, session: Any, now_ms: int) -> str:
        found = sound(self, node, session, now_ms)
        return "" if found == rule else found

    patch.setattr(Suspicions, "_forbidden", forbidden)


def suspects_by_a_time_out(patch: Patch) -> None:
    """A broken connection and a dial without an answer count as much as a refused dial."""

    def refuses(self: SuspicionSimulation, dialler: str, to: str) -> bool:
        return not self.network.both_open(dialler, to) or all(each.paused for each in self.nodes[to].processes)

    sound = SuspectingProcess._dialled

    def dialled(self: SuspectingProcess, peer: str) -> None:
        simulation = self.simulation
        assert isinstance(simulation, SuspicionSimulation)
        truly = simulation.refuses(self.node.name, peer)
        dials = self.alive and not self.paused and peer not in self.links
        if dials and not truly and refuses(simulation, self.node.name, peer):
            self.refused(peer)
        sound(self, peer)

    patch.setattr(SuspectingProcess, "_dialled", dialled)


def suspects_what_it_never_reached(patch: Patch) -> None:
    """A refused dial suffices, although no connection with that session was ever established."""
    _without(patch, "unreached")


def suspects_the_young(patch: Patch) -> None:
    """A session that has just begun may be suspected: a storm of false suspicions never settles."""
    _without(patch, "young")


def suspects_while_alone(patch: Patch) -> None:
    """A node without any connection suspects all others."""
    _without(patch, "isolated")


def ends_another_session(patch: Patch) -> None:
    """The request ends any registration under the name when it arrives, also the next process's."""
    sound = SuspectingMetastore._arrive_end

    def arrive(self: SuspectingMetastore, asker: str, name: str, session_id: int, life: int) -> None:
        known = self.registrations.get(name)
        sound(self, asker, name, session_id if known is None else known.session_id, life)

    patch.setattr(SuspectingMetastore, "_arrive_end", arrive)


def elects_outside_the_guard(
    record: PartitionRecord, registrations: Mapping[str, Registration], *args: Any, **options: Any
) -> Decision:
    """When the leader is suspected, any registered replica takes its place, in sync or not."""
    guard = {member.node for member in record.isr | record.elr}
    others = sorted(node for node in record.replicas if node in registrations and node not in guard)
    if record.status is PartitionStatus.ELECTION and others:
        node = others[0]
        return ProposeRecord(
            replace(
                record,
                epoch=record.epoch + 1,
                status=PartitionStatus.CANDIDATE_FOUND,
                candidate=Incarnation(node, registrations[node].session_id),
                isr=record.isr | {Member(node, registrations[node].log_id_of(record.partition))},
            )
        )
    return elect(record, registrations, *args, **options)


def believes_in_the_suspected(
    record: PartitionRecord, registrations: Mapping[str, Registration], *args: Any, **options: Any
) -> Decision:
    """A leader whose node is registered again still counts as the leader, in its new session."""
    leader = record.leader
    if record.status is PartitionStatus.ONLINE and leader is not None and leader.node in registrations:
        session_id = registrations[leader.node].session_id
        if session_id != leader.session_id:
            return ProposeRecord(replace(record, leader=Incarnation(leader.node, session_id)))
    return elect(record, registrations, *args, **options)


PatchedDefects = Collection[tuple[Callable[[Patch], None], tuple[str, ...]]]

PATCHED: PatchedDefects = (
    (suspects_by_a_time_out, ("I-SUSPECT-PROOF",)),
    (suspects_what_it_never_reached, ("I-SUSPECT-REACHED",)),
    (suspects_the_young, ("I-SUSPECT-RATE",)),
    (suspects_while_alone, ("I-SUSPECT-ALONE",)),
    (ends_another_session, ("I-SUSPECT-RATE",)),
)
"""Defects, and the invariants by which they may be noticed."""

DECIDED: Collection[tuple[Callable[..., Decision], tuple[str, ...]]] = (
    (elects_outside_the_guard, ("I-FORCED", "I-MIN-GUARD", "I-SOME-GUARD", "I-COMMIT-RULE", "I-GUARD-COMPLETE")),
    (believes_in_the_suspected, ("I-EPOCH-ONE", "I-EPOCH-MONO")),
)
