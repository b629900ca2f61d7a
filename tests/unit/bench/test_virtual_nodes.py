"""`bench.virtual_nodes`: what three nodes cost in virtual time."""

from __future__ import annotations

from bench.virtual_nodes import Values, stages, usual_partitions


def test_three_nodes_start_die_and_return() -> None:
    """All stages have figures: a leader that dies is replaced by an election for each partition that it led, and leads
    as many again after its return."""
    found: Values = {}
    for stage in stages(3, 6):
        assert not stage.keys() & found.keys()
        found |= stage
    assert found["partitions"] == 6
    assert 0 < found["virtual s until all serve"] < 10
    assert found["a leader's death: partitions it led"] == found["a return: hand-overs"] == 2
    assert found["a leader's death: metastore writes"] > 2
    assert found["a leader's death: virtual s until all are led"] < 1
    assert found["watches of a node"] > 6
    assert found["frames of it"] > 0
    assert all(found[name] > 0 for name in found if "CPU" in name and "death" not in name)


def test_partitions_are_three_a_node_up_to_as_many_as_any_measurement_has() -> None:
    """Placements are then those of usual clusters."""
    assert [usual_partitions(nodes) for nodes in (3, 27, 100, 300)] == [9, 81, 300, 768]
