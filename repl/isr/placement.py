"""Placement: which nodes hold which partition of a new bucket type.

Computed: round robin over the nodes, so that leaders (the first of each set) and replicas are spread evenly;
after each full turn the followers move one place further from their leader, so that one node's load
does not always fall to the same neighbours. Pure; whoever asks writes the records.
"""

from __future__ import annotations

from collections.abc import Sequence

from repl.model.errors import BadInput


def computed(
    partition_count: int, replication_factor: int, nodes: Sequence[str], start_index: int = 0
) -> tuple[tuple[str, ...], ...]:
    """The replicas of each partition, the first being the one to lead it at first.

    `start_index` is the index at which the last run ended, one past its last partition, so that
    bucket types made one after the other stay balanced together. Source of the rule: Fluvio's computed
    replica assignment. Raises BadInput when there are fewer nodes than replicas to place.
    """
    node_count = len(nodes)
    if not 1 <= replication_factor <= node_count:
        raise BadInput(
            f"a replication factor of {replication_factor} needs as many nodes, and at least one: {node_count} are live"
        )
    gap_count = node_count - replication_factor + 1
    sets: list[tuple[str, ...]] = []
    for index in range(start_index, start_index + partition_count):
        turn, first = divmod(index, node_count)
        gap = turn % gap_count
        followers = (nodes[(first + gap + step) % node_count] for step in range(1, replication_factor))
        sets.append((nodes[first], *followers))
    return tuple(sets)
