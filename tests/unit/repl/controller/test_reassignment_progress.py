"""The progress of ordered changes of placement, and the records that are written next."""

from __future__ import annotations

from dataclasses import replace

from isthmus.repl.controller.reassignment_plan import PlanningNode, ReplicaMove
from isthmus.repl.controller.reassignment_progress import (
    ReassignmentKind,
    ReassignmentOrder,
    ReassignmentStage,
    due,
    outcome,
    paused,
    progress,
    replanned,
    wanted,
)
from isthmus.repl.isr.membership import too_few_in_sync
from isthmus.repl.model.record import Incarnation, Member, PartitionRecord, PartitionStatus, Registration

REPLICAS = ("n1", "n2", "n3")
HERE = {f"n{number}": Registration(f"n{number}", number, True, spare_log_id=1) for number in range(1, 7)}


def online(partition: int = 0, replicas: tuple[str, ...] = REPLICAS) -> PartitionRecord:
    return PartitionRecord(
        partition,
        "t",
        partition,
        9,
        replicas,
        3,
        PartitionStatus.ONLINE,
        Incarnation(replicas[0], 1),
        isr=frozenset(Member(node, 1) for node in replicas),
        min_isr=2,
    )


def an_order(
    *moves: ReplicaMove, number: int = 1, kind: ReassignmentKind = ReassignmentKind.SPREAD, cancelled_by: str = ""
) -> ReassignmentOrder:
    return ReassignmentOrder(number, kind, "t", "ann", 5, moves, cancelled_by)


SWAP = ReplicaMove(0, REPLICAS, ("n1", "n2", "n4"))


def stage(order: ReassignmentOrder, record: PartitionRecord) -> ReassignmentStage:
    return progress(order, order.moves[0], {record.partition: record}, HERE).stage


def test_a_move_goes_from_waiting_to_done_by_the_record() -> None:
    """Begun in one write, the newcomer outside the ISR; copying until it is in sync; then the leader ends it."""
    order = an_order(SWAP)
    record = online()
    assert stage(order, record) is ReassignmentStage.WAITING
    (begun,) = due([order], {0: record}, HERE, 4)
    assert begun.replicas == ("n1", "n2", "n3", "n4")
    assert (begun.adding, begun.removing, begun.isr) == (("n4",), ("n3",), record.isr)
    assert (begun.factor, begun.staying) == (3, SWAP.after)
    assert stage(order, begun) is ReassignmentStage.COPYING
    assert list(due([order], {0: begun}, HERE, 4)) == []
    joined = replace(begun, isr=begun.isr | {Member("n4", 1)})
    assert stage(order, joined) is ReassignmentStage.IN_SYNC
    ended = replace(joined, replicas=joined.staying, adding=(), removing=())
    assert stage(order, ended) is ReassignmentStage.DONE
    assert outcome(order, {0: ended}, HERE) == "done"
    assert outcome(order, {0: joined}, HERE) == ""
    shrunk = wanted(record, ("n1", "n2"), "x")
    assert (shrunk.adding, shrunk.removing) == ((), ("n3",))
    assert stage(an_order(ReplicaMove(0, REPLICAS, ("n1", "n2"))), shrunk) is ReassignmentStage.REMOVING


def test_a_cancelled_move_goes_back_by_the_same_rule() -> None:
    """Newcomers become the leaving replicas, and the leaving ones stay; completed moves stay, and waiting ones are not
    begun."""
    begun = wanted(online(), SWAP.after, "x")
    order = an_order(SWAP, cancelled_by="bob")
    (back,) = due([order], {0: begun}, HERE, 0)
    assert (back.adding, back.removing, back.staying) == ((), ("n4",), REPLICAS)
    assert stage(order, back) is ReassignmentStage.RETURNING
    assert list(due([order], {0: back}, HERE, 4)) == []
    assert outcome(order, {0: online()}, HERE) == "cancelled"
    assert stage(order, replace(online(), replicas=SWAP.after)) is ReassignmentStage.DONE
    assert list(due([order], {0: online()}, HERE, 4)) == []
    grown = wanted(online(), (*REPLICAS, "n4", "n5"), "x")
    assert (grown.factor, grown.adding) == (3, ("n4", "n5"))
    returned = wanted(grown, REPLICAS, "x")
    assert (returned.factor, returned.adding, returned.removing) == (3, (), ("n4", "n5"))


def test_a_newcomer_that_is_replaced_counts_for_no_factor() -> None:
    """A factor is raised, and the newcomer is lost and replaced: until the change ends min-ISR is that of the smaller
    factor, and the partition accepts writes with its old replicas (I-FACTOR)."""
    one = replace(online(replicas=("n1",)), min_isr=2)
    raised = wanted(one, ("n1", "n2"), "x")
    elsewhere = wanted(raised, ("n1", "n3"), "x")
    assert (elsewhere.adding, elsewhere.removing) == (("n3",), ("n2",))
    for record in (one, raised, elsewhere, wanted(elsewhere, ("n1",), "x")):
        assert (record.factor, record.effective_min_isr) == (1, 1)
        assert not too_few_in_sync(record)
    five = wanted(online(), (*REPLICAS, "n4", "n5"), "x")
    assert wanted(five, (*REPLICAS, "n6", "n7"), "x").factor == 3
    moved = wanted(wanted(online(), SWAP.after, "x"), ("n1", "n2", "n5"), "x")
    assert (moved.factor, moved.adding, moved.removing) == (3, ("n5",), ("n3", "n4"))


def test_a_leaving_newcomer_is_a_newcomer_again_when_reassigned() -> None:
    """It must join the ISR before the change ends, and does not count for the factor before (I-FACTOR)."""
    one = replace(online(replicas=("n1",)), min_isr=2)
    raised = wanted(one, ("n1", "n2"), "x")
    for turned in (wanted(raised, ("n1",), "x"), wanted(raised, ("n1", "n3"), "x")):
        again = wanted(turned, ("n1", "n2"), "x")
        assert again.adding == ("n2",)
        assert (again.factor, again.staying) == (1, ("n1", "n2"))
    kept = wanted(wanted(online(), ("n1", "n2"), "x"), REPLICAS, "x")
    assert (kept.adding, kept.removing, kept.before) == ((), (), ())


def test_no_more_than_so_many_are_under_way_and_the_oldest_order_goes_first() -> None:
    """With the option at two, two of four are in progress, and one more begins when one is done; with 0 none begins,
    and those in progress continue."""
    first = an_order(*(ReplicaMove(p, REPLICAS, ("n1", "n2", "n4")) for p in (0, 1)))
    second = an_order(*(ReplicaMove(p, REPLICAS, ("n1", "n2", "n5")) for p in (2, 3)), number=2)
    records = {p: online(p) for p in range(4)}
    assert [record.partition for record in due([first, second], records, HERE, 3)] == [0, 1, 2]
    assert list(due([first, second], records, HERE, 0)) == []
    records[0] = wanted(records[0], SWAP.after, "x")
    assert [record.partition for record in due([first, second], records, HERE, 2)] == [1]


def test_nothing_begins_where_or_while_the_cluster_is_not_well() -> None:
    """No move begins during an election, without a leader, below min-ISR, or towards a node that is away; each case has
    a reason."""
    order = an_order(SWAP)
    short = replace(online(), isr=frozenset({Member("n1", 1)}))
    offline = replace(online(), status=PartitionStatus.OFFLINE, leader=None, reason="waits for n1")
    for record, here, why in (
        (short, HERE, "too few"),
        (offline, HERE, "waits for n1"),
        (online(), {n: r for n, r in HERE.items() if n != "n4"}, "n4, which is gone"),
        (online(), {**HERE, "n4": replace(HERE["n4"], active=False)}, "n4, which is leaving"),
    ):
        assert list(due([order], {0: record}, here, 4)) == []
        found = progress(order, SWAP, {0: record}, here)
        assert found.stage is ReassignmentStage.WAITING
        assert why in found.reason
    elected = replace(online(7), status=PartitionStatus.ELECTION, leader=None)
    assert list(due([order], {0: online(), 7: elected}, HERE, 4)) == []
    assert paused({7: elected}) == "partition 7 is being elected"
    assert [r.partition for r in due([order], {0: online(), 7: offline}, HERE, 4)] == [0]
    assert [r.partition for r in due([order], {0: online(), 7: elected}, HERE, 4, overdue=[7])] == [0]


def test_replicas_changed_by_others_are_left_alone() -> None:
    """Replicas that differ from the order's, and a missing partition, end the move as refused."""
    order = an_order(SWAP)
    strange = online(0, ("n1", "n5", "n6"))
    assert stage(order, strange) is ReassignmentStage.REFUSED
    assert list(due([order], {0: strange}, HERE, 4)) == []
    assert outcome(order, {0: strange}, HERE) == "refused"
    assert progress(order, SWAP, {}, HERE).stage is ReassignmentStage.REFUSED


def test_replicas_on_an_absent_node_are_planned_again() -> None:
    """A computed plan chooses another node, for waiting moves and for moves in progress; a plan with nodes named by an
    operator waits."""
    there = {node: PlanningNode("", node != "n4") for node in HERE}
    here = {node: found for node, found in HERE.items() if node != "n4"}
    records = {0: wanted(online(), SWAP.after, "x"), 1: online(1)}
    order = an_order(SWAP, ReplicaMove(1, REPLICAS, ("n1", "n2", "n4")), kind=ReassignmentKind.DRAIN)
    there["n3"] = PlanningNode("", False)
    changed = replanned(order, records, here, there, {"n4"})
    assert [set(move.after) & {"n5", "n6"} != set() for move in changed.moves] == [True, True]
    assert all(move.before == REPLICAS and "n4" not in move.after for move in changed.moves)
    (elsewhere, *_) = due([changed], records, here, 4)
    assert (elsewhere.factor, set(elsewhere.removing)) == (3, {"n3", "n4"})
    named = replace(order, kind=ReassignmentKind.FILE)
    assert replanned(named, records, here, there, {"n4"}) == named
