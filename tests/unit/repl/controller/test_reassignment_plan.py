"""Plans of replica placements: the rules that every plan keeps, and how little it copies."""

from __future__ import annotations

import random
from collections import Counter
from itertools import combinations, product
from time import process_time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isthmus.repl.controller.placement import computed
from isthmus.repl.controller.reassignment_plan import AssignmentDraft, PlanningNode, PlanRefused, ReplicaMove
from isthmus.repl.model.record import Incarnation, Member, PartitionRecord


def nodes(count: int) -> list[str]:
    return [f"n{number}" for number in range(count)]


def sites(names: list[str], racks: int = 0) -> dict[str, PlanningNode]:
    return {name: PlanningNode(f"r{number % racks}" if racks else "", True) for number, name in enumerate(names)}


def a_record(partition: int, replicas: tuple[str, ...], in_sync: set[str] | None = None) -> PartitionRecord:
    held = set(replicas) if in_sync is None else in_sync
    leader = next((node for node in replicas if node in held), None)
    return PartitionRecord(
        partition,
        "t",
        partition,
        partition + 1,
        replicas,
        leader=None if leader is None else Incarnation(leader, 1),
        isr=frozenset(Member(node, 1) for node in held),
    )


def records(count: int, factor: int, names: list[str]) -> list[PartitionRecord]:
    return [a_record(number, replicas) for number, replicas in enumerate(computed(count, factor, names))]


@st.composite
def planning_inputs(draw: st.DrawFn) -> tuple[list[PartitionRecord], dict[str, PlanningNode]]:
    """Some partitions, placed randomly on some of the nodes, with some replicas out of sync."""
    names = nodes(draw(st.integers(2, 7)))
    factor = draw(st.integers(1, min(4, len(names))))
    found = []
    for partition in range(draw(st.integers(1, 9))):
        replicas = tuple(draw(st.permutations(names))[:factor])
        in_sync = set(replicas[: draw(st.integers(1, factor))])
        found.append(a_record(partition, replicas, in_sync))
    return found, sites(names, draw(st.sampled_from([0, 0, 2, 3])))


def after(board: AssignmentDraft, given_records: list[PartitionRecord]) -> dict[int, tuple[str, ...]]:
    """The replicas of each partition by the plan."""
    moves = {move.partition: move.after for move in board.moves()}
    return {record.partition: moves.get(record.partition, record.replicas) for record in given_records}


def load(placed: dict[int, tuple[str, ...]]) -> Counter[str]:
    return Counter(node for replicas in placed.values() for node in replicas)


@given(planning_inputs(), st.integers(1, 6))
def test_a_replication_factor_is_reached_with_the_fewest_copies(
    ground: tuple[list[PartitionRecord], dict[str, PlanningNode]], factor: int
) -> None:
    """Growing keeps all replicas; shrinking adds nothing and keeps the leader, and preferably members in sync."""
    found, there = ground
    board = AssignmentDraft(found, there)
    if factor > len(there):
        with pytest.raises(PlanRefused, match=f"replication factor of {factor} needs as many nodes"):
            board.factor(factor)
        return
    board.factor(factor)
    for record in found:
        replicas = after(board, found)[record.partition]
        assert len(set(replicas)) == len(replicas) == factor
        if factor >= len(record.replicas):
            assert set(record.replicas) <= set(replicas)
        else:
            assert set(replicas) <= set(record.replicas)
            assert record.leader is not None
            assert record.leader.node in replicas
            in_sync = {member.node for member in record.isr}
            assert len(in_sync & set(replicas)) == min(len(in_sync), factor)


@given(planning_inputs(), st.integers(0, 6))
def test_a_drained_node_gives_all_and_the_others_keep_theirs(
    ground: tuple[list[PartitionRecord], dict[str, PlanningNode]], which: int
) -> None:
    """There is one copy for each of its replicas, of exactly the partitions that it held."""
    found, there = ground
    gone = sorted(there)[which % len(there)]
    board = AssignmentDraft(found, there)
    if max(len(r.replicas) for r in found if gone in r.replicas or r is found[0]) > len(there) - 1 and any(
        gone in r.replicas for r in found
    ):
        with pytest.raises(PlanRefused):
            board.vacate([gone])
        return
    board.vacate([gone])
    for move in board.moves():
        assert move.removes == (gone,)
        assert len(move.adds) == 1
    assert {move.partition for move in board.moves()} == {r.partition for r in found if gone in r.replicas}


@given(planning_inputs())
def test_an_even_spread_is_even_and_lessens_no_partitions_racks(
    ground: tuple[list[PartitionRecord], dict[str, PlanningNode]],
) -> None:
    """Without racks the numbers of replicas differ by at most one; with racks no partition is in fewer racks than
    possible."""
    found, there = ground
    board = AssignmentDraft(found, there)
    board.spread()
    placed = after(board, found)
    racks = {site.rack for site in there.values()}
    for record in found:
        replicas = placed[record.partition]
        assert len(set(replicas)) == len(record.replicas)
        if racks != {""}:
            assert len({there[node].rack for node in replicas}) == min(len(replicas), len(racks))
    if racks == {""}:
        counted = [load(placed)[node] for node in there]
        assert max(counted) - min(counted) <= 1


@pytest.mark.parametrize("seed", range(12))
def test_an_even_spread_copies_as_little_as_brute_force(seed: int) -> None:
    """No placement that is as even has fewer copies."""
    chance = random.Random(seed)
    names = nodes(chance.randint(3, 4))
    factor = chance.randint(1, 2)
    found = [a_record(p, tuple(chance.sample(names[: chance.randint(factor, len(names))], factor))) for p in range(4)]
    board = AssignmentDraft(found, sites(names))
    board.spread()
    copies = sum(len(move.adds) for move in board.moves())
    total = 4 * factor

    def even(placed: tuple[tuple[str, ...], ...]) -> bool:
        counted = Counter(node for replicas in placed for node in replicas)
        return all(total // len(names) <= counted[node] <= -(-total // len(names)) for node in names)

    least = min(
        sum(len(set(new) - set(record.replicas)) for new, record in zip(placed, found, strict=True))
        for placed in product(list(combinations(names, factor)), repeat=4)
        if even(placed)
    )
    assert copies == least


def test_nodes_that_were_added_take_their_share_of_all_partitions() -> None:
    """Three nodes become five: 36 replicas end 8, 7, 7, 7, 7, fourteen are copied, and no partition moves two while
    another moves none."""
    found = records(12, 3, nodes(3))
    board = AssignmentDraft(found, sites(nodes(5)))
    board.spread()
    assert sorted(board.loads().values()) == [7, 7, 7, 7, 8]
    assert sum(len(move.adds) for move in board.moves()) == 14
    assert len(board.moves()) == 12


def test_other_bucket_types_decide_between_equals() -> None:
    """A new replica goes to the node with the fewest of its bucket type, and among those to the one with the fewest of
    others."""
    board = AssignmentDraft([a_record(0, ("n0",))], sites(nodes(4)), elsewhere={"n1": 5, "n2": 1, "n3": 9})
    board.factor(2)
    assert board.moves() == [ReplicaMove(0, ("n0",), ("n0", "n2"))]


def test_one_node_replaces_another_place_by_place() -> None:
    """Only the positions of the old node change; a node that holds a partition already, or would cost it a rack, is
    refused."""
    found = records(6, 2, nodes(3))
    board = AssignmentDraft(found, sites(nodes(4)))
    board.replace("n1", "n3")
    assert all((move.adds, move.removes) == (("n3",), ("n1",)) for move in board.moves())
    assert len(board.moves()) == sum("n1" in record.replicas for record in found)
    with pytest.raises(PlanRefused, match="n2 holds partition"):
        AssignmentDraft(found, sites(nodes(4))).replace("n1", "n2")
    racked = {"n0": PlanningNode("a", True), "n1": PlanningNode("b", True), "n2": PlanningNode("a", True)}
    with pytest.raises(PlanRefused, match="fewer racks"):
        AssignmentDraft([a_record(0, ("n0", "n1"))], racked).replace("n1", "n2")
    AssignmentDraft([a_record(0, ("n0", "n1"))], racked, ignore_racks=True).replace("n1", "n2")
    with pytest.raises(PlanRefused, match="n3 have no rack"):
        AssignmentDraft(found, {**racked, "n3": PlanningNode("", True)})


def test_earlier_orders_count_as_done() -> None:
    """A partition that is moving to another node is not counted at its old one."""
    found = [a_record(0, ("n0",)), a_record(1, ("n0",))]
    board = AssignmentDraft(found, sites(nodes(2)), pending={0: ("n1",)})
    board.spread()
    assert board.moves() == []


@pytest.mark.timing
@pytest.mark.parametrize("racks", [0, 5])
def test_a_plan_for_a_thousand_partitions_on_fifty_nodes_takes_no_longer_than_two_seconds(racks: int) -> None:
    """Even the largest: three nodes become fifty, and every replica but a few moves."""
    there, found = sites(nodes(50), racks), records(1_000, 3, nodes(3))
    began_s = process_time()
    board = AssignmentDraft(found, there)
    board.spread()
    passed_s = process_time() - began_s
    assert max(board.loads().values()) - min(board.loads().values()) <= 1
    assert passed_s < 2.0 * 2, "twice, for a machine that has other work"
