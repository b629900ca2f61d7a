"""Computed placement: the published table, evenness, limits."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from repl.isr.placement import computed
from repl.model.errors import BadInput

TABLE = "012 123 234 340 401 023 134 240 301 412 034 140 201 312 423 012"
"""Five nodes, three replicas: the table of Fluvio's page on replica assignment."""


def test_the_published_table_is_reproduced() -> None:
    """Five nodes, three replicas, sixteen partitions: gaps 0, 1, 2 and round again."""
    assert " ".join("".join(nodes) for nodes in computed(16, 3, "01234")) == TABLE


def test_a_run_continues_where_the_last_one_ended() -> None:
    """From index 9 on partition 0 gets what index 9 gets in one long run."""
    assert computed(7, 3, "01234", 9) == computed(16, 3, "01234")[9:]


def test_one_replica_goes_round_robin() -> None:
    """RF 1 over two nodes."""
    assert computed(4, 1, ["n1", "n2"]) == (("n1",), ("n2",), ("n1",), ("n2",))


@pytest.mark.parametrize(("factor", "nodes"), [(3, "ab"), (0, "ab"), (1, "")])
def test_too_few_nodes_are_refused(factor: int, nodes: str) -> None:
    """Replicas of one partition are on different nodes, so there must be enough of them."""
    with pytest.raises(BadInput, match=f"a replication factor of {factor} needs"):
        computed(1, factor, nodes)


@settings(deadline=None, derandomize=True, max_examples=100)
@given(st.integers(1, 40), st.integers(1, 9), st.integers(0, 100), st.data())
def test_replicas_are_distinct_and_spread_evenly(
    partition_count: int, node_count: int, start: int, data: st.DataObject
) -> None:
    """No node twice in a set; each leads, and holds, as many as the others, give or take one turn."""
    factor = data.draw(st.integers(1, node_count))
    nodes = [f"n{i}" for i in range(node_count)]
    sets = computed(partition_count, factor, nodes, start)
    assert all(len(set(replicas)) == factor for replicas in sets)
    leads = Counter(replicas[0] for replicas in sets)
    assert max(leads[n] for n in nodes) - min(leads[n] for n in nodes) <= 1
    if partition_count % node_count == 0 and start % node_count == 0:
        holds = Counter(node for replicas in sets for node in replicas)
        assert len({holds[n] for n in nodes}) == 1
