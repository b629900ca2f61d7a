"""Plans do not change unnoticed: fixed inputs, and the expected digest of the plan of each request."""

from __future__ import annotations

import pytest

from isthmus.repl.controller.placement import computed
from isthmus.repl.controller.reassignment_orders import Placement
from isthmus.repl.controller.reassignment_progress import ReassignmentKind
from isthmus.repl.controller.reassignments import PlanningInput, ReassignmentRequest, plan_of
from isthmus.repl.model.record import Incarnation, Member, PartitionRecord, Registration

NODES = ("n1", "n2", "n3", "n4", "n5")
NEW_NODE = "n6"


def records_of(bucket_type: str, first: int, count: int, factor: int) -> list[PartitionRecord]:
    """The partitions of a bucket type on NODES; every fifth has a replica out of sync."""
    found = []
    for index, replicas in enumerate(computed(count, factor, NODES)):
        in_sync = replicas[:-1] if index % 5 == 4 else replicas
        isr = frozenset(Member(node, 1) for node in in_sync)
        leader = Incarnation(replicas[0], 1)
        found.append(PartitionRecord(first + index, bucket_type, index, count, tuple(replicas), leader=leader, isr=isr))
    return found


def planning_input() -> PlanningInput:
    """Two bucket types on five nodes in three racks, and a sixth node without replicas."""
    records = [*records_of("default", 0, 16, 3), *records_of("notes", 16, 7, 2)]
    registrations = {
        node: Registration(node, 5, True, "", "", {}, 50, "", number, f"rack{number % 3}")
        for number, node in enumerate((*NODES, NEW_NODE))
    }
    return PlanningInput(Placement(), {record.partition: record for record in records}, registrations, 1)


@pytest.mark.parametrize(
    ("request_", "move_count", "digest"),
    [
        (ReassignmentRequest(ReassignmentKind.SPREAD), 12, "2465905cae618177"),
        (ReassignmentRequest(ReassignmentKind.SPREAD, "notes", ignore_racks=True), 2, "735b827b5396295c"),
        (ReassignmentRequest(ReassignmentKind.DRAIN, nodes=("n2", "n4")), 20, "9f0ef7817a0a545d"),
        (ReassignmentRequest(ReassignmentKind.REPLACE, nodes=("n3", NEW_NODE)), 13, "77128bcdaf59e820"),
        (ReassignmentRequest(ReassignmentKind.FACTOR, "default", factor=4), 16, "d86b653ad4013de6"),
        (ReassignmentRequest(ReassignmentKind.FACTOR, "default", factor=1), 16, "054eeebd35593762"),
    ],
    ids=["spread", "spread-one-type", "drain", "replace", "more-replicas", "fewer-replicas"],
)
def test_equal_inputs_give_the_plan_that_they_always_gave(
    request_: ReassignmentRequest, move_count: int, digest: str
) -> None:
    """An operator orders a plan by its digest, perhaps from a node of another version. A change of the digest here is
    a change of the plans: intended, or a mistake in a refactoring."""
    plan = plan_of(request_, planning_input())
    assert (len(plan.moves), plan.digest) == (move_count, digest)
