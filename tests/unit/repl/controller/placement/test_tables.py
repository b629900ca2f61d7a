"""Placement: the published tables of both ways, evenness, limits, refusals."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isthmus.repl.controller.placement import chained, computed, placed, rack_sequence
from isthmus.repl.model.errors import BadInput
from tests.support.samples import share

FOUR_RACKS = {node: f"rack-{'abcd'[node // 3]}" for node in range(12)}
THREE_RACKS = {0: "rack-a", 1: "rack-b", 2: "rack-b", 3: "rack-c", 4: "rack-c", 5: "rack-c"}

TWELVE = """
0 4 8 9 | 4 8 9 1 | 8 9 1 5 | 9 1 5 6 | 1 5 6 10 | 5 6 10 2 |
6 10 2 3 | 10 2 3 7 | 2 3 7 11 | 3 7 11 0 | 7 11 0 4 | 11 0 4 8
"""
SIX = "3 2 0 | 2 0 4 | 0 4 1 | 4 1 5 | 1 5 3 | 5 3 2"

TABLE = "012 123 234 340 401 023 134 240 301 412 034 140 201 312 423 012"
"""Five nodes, three replicas: the table of Fluvio's page on replica assignment."""


def test_the_published_table_is_reproduced() -> None:
    """Five nodes, three replicas, sixteen partitions: gaps 0, 1, 2, repeated."""
    assert " ".join("".join(nodes) for nodes in computed(16, 3, "01234")) == TABLE


def test_a_run_continues_where_the_last_one_ended() -> None:
    """From index 9 on, partition 0 gets the replicas of index 9 in one long run."""
    assert computed(7, 3, "01234", 9) == computed(16, 3, "01234")[9:]


def test_one_replica_goes_round_robin() -> None:
    """RF 1 over two nodes."""
    assert computed(4, 1, ["n1", "n2"]) == (("n1",), ("n2",), ("n1",), ("n2",))


@pytest.mark.parametrize(("factor", "nodes"), [(3, "ab"), (0, "ab"), (1, "")])
def test_too_few_nodes_are_refused(factor: int, nodes: str) -> None:
    """Replicas of one partition are on different nodes, so there must be enough of them."""
    with pytest.raises(BadInput, match=f"a replication factor of {factor} needs"):
        computed(1, factor, nodes)


@settings(deadline=None, derandomize=True, max_examples=share(100))
@given(st.integers(1, 40), st.integers(1, 9), st.integers(0, 100), st.data())
def test_replicas_are_distinct_and_spread_evenly(
    partition_count: int, node_count: int, start: int, data: st.DataObject
) -> None:
    """No node is twice in a set; the numbers of leaderships, and of replicas, differ by at most one turn."""
    factor = data.draw(st.integers(1, node_count))
    nodes = [f"n{i}" for i in range(node_count)]
    sets = computed(partition_count, factor, nodes, start)
    assert all(len(set(replicas)) == factor for replicas in sets)
    leads = Counter(replicas[0] for replicas in sets)
    assert max(leads[n] for n in nodes) - min(leads[n] for n in nodes) <= 1
    if partition_count % node_count == 0 and start % node_count == 0:
        holds = Counter(node for replicas in sets for node in replicas)
        assert len({holds[n] for n in nodes}) == 1


def read(table: str) -> tuple[tuple[int, ...], ...]:
    """The sets of a table."""
    return tuple(tuple(map(int, each.split())) for each in table.split("|"))


def test_four_equal_racks_are_read_in_diagonals() -> None:
    """Twelve nodes in four racks, four replicas: the published sequence and the whole map."""
    assert rack_sequence(FOUR_RACKS) == (0, 4, 8, 9, 1, 5, 6, 10, 2, 3, 7, 11)
    assert placed(12, 4, FOUR_RACKS) == read(TWELVE)


def test_equal_racks_share_leaders_and_followers_alike() -> None:
    """The counts below the published map: three leaders and nine followers a rack, one leader a node."""
    sets = placed(12, 4, FOUR_RACKS)
    assert Counter(FOUR_RACKS[each[0]] for each in sets) == dict.fromkeys(FOUR_RACKS.values(), 3)
    assert Counter(FOUR_RACKS[node] for each in sets for node in each[1:]) == dict.fromkeys(FOUR_RACKS.values(), 9)
    assert all(len({FOUR_RACKS[node] for node in each}) == 4 for each in sets)


def test_unequal_racks_are_read_by_size() -> None:
    """Six nodes in racks of three, two and one: the published sequence, map and counts."""
    assert rack_sequence(THREE_RACKS) == (3, 2, 0, 4, 1, 5)
    sets = placed(6, 3, THREE_RACKS)
    assert sets == read(SIX)
    assert Counter(THREE_RACKS[each[0]] for each in sets) == {"rack-c": 3, "rack-b": 2, "rack-a": 1}
    followers = Counter(THREE_RACKS[node] for each in sets for node in each[1:])
    assert followers == {"rack-c": 6, "rack-b": 4, "rack-a": 2}


def test_a_run_over_racks_continues_where_the_last_one_ended() -> None:
    """The chain continues for both kinds of placement."""
    assert placed(7, 4, FOUR_RACKS, start_index=5) == placed(12, 4, FOUR_RACKS)[5:]


def test_racks_on_some_nodes_only_are_refused() -> None:
    """Either every node has a rack or none has; the error names nodes without one; with the flag, racks are ignored."""
    racks = {0: "a", 1: "", 2: "b", 3: ""}
    with pytest.raises(BadInput, match="node ids 1, 3 have no rack"):
        placed(4, 2, racks)
    assert placed(4, 2, racks, ignore_racks=True) == computed(4, 2, [0, 1, 2, 3])
    assert placed(4, 2, FOUR_RACKS, ignore_racks=True) == computed(4, 2, range(12))
    assert placed(4, 2, dict.fromkeys(range(4), "")) == computed(4, 2, range(4))


def test_more_replicas_than_nodes_are_refused_over_racks_too() -> None:
    """One replica is allowed, seven on six nodes are not."""
    assert placed(2, 1, THREE_RACKS) == ((3,), (2,))
    for factor in (0, 7):
        with pytest.raises(BadInput, match=f"a replication factor of {factor} needs"):
            placed(1, factor, THREE_RACKS)
    with pytest.raises(BadInput, match="needs"):
        placed(1, 1, {})


@settings(deadline=None, derandomize=True, max_examples=share(150))
@given(st.lists(st.integers(1, 5), min_size=1, max_size=5), st.integers(0, 100), st.data())
def test_any_racks_are_placed_evenly_and_never_twice_on_a_node(
    sizes: list[int], start: int, data: st.DataObject
) -> None:
    """Every node is in the sequence once; over whole turns all nodes lead, and hold, equally many."""
    nodes = data.draw(st.permutations(range(sum(sizes))))
    racks = {node: f"r{rack}" for rack, size in enumerate(sizes) for node in [nodes.pop() for _ in range(size)]}
    assert sorted(rack_sequence(racks)) == sorted(racks)
    factor = data.draw(st.integers(1, len(racks)))
    turns = data.draw(st.integers(1, 3))
    sets = placed(turns * len(racks), factor, racks, start_index=start)
    assert all(len(set(each)) == factor for each in sets)
    assert set(Counter(each[0] for each in sets).values()) == {turns}
    assert set(Counter(node for each in sets for node in each).values()) == {turns * factor}
    part = chained(data.draw(st.integers(1, 40)), factor, rack_sequence(racks), start)
    leads = Counter(each[0] for each in part)
    assert max(leads[node] for node in racks) - min(leads[node] for node in racks) <= 1


@settings(deadline=None, derandomize=True, max_examples=share(60))
@given(st.integers(2, 5), st.integers(1, 5), st.integers(0, 50), st.data())
def test_equal_racks_never_hold_two_replicas_of_one_partition(
    rack_count: int, size: int, start: int, data: st.DataObject
) -> None:
    """With at least as many racks as replicas, the loss of a rack costs each partition one replica."""
    racks = {node: f"r{node // size}" for node in range(rack_count * size)}
    factor = data.draw(st.integers(1, rack_count))
    for each in placed(len(racks), factor, racks, start_index=start):
        assert len({racks[node] for node in each}) == factor
