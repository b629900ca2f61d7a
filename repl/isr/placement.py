"""Placement: which nodes hold which partition of a new bucket type.

Three ways, all Fluvio's (its pages on replica assignment): computed, a round robin with gaps; rack-aware, in three
stages; and a replica map that an operator wrote (`replica_map.py` reads it). The first node of each set is the one to
lead it at first. A run continues at the index at which the last one ended, so that bucket types made one after the
other stay balanced together. Pure; who asks and who writes the records is `repl.creation`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

from repl.model.errors import BadInput

T = TypeVar("T")

ReplicaMap = tuple[tuple[int, ...], ...]
"""Per partition, from 0 on, the ids of the nodes that hold it; the first leads at first."""


def placed(
    partition_count: int,
    replication_factor: int,
    racks: Mapping[int, str],
    *,
    ignore_racks: bool = False,
    start_index: int = 0,
) -> ReplicaMap:
    """Place new partitions on the nodes of `racks` (node id -> its rack, "" when it has none).

    Without any rack, or with `ignore_racks`, the racks do not matter. Raises BadInput when some nodes have a rack and
    others have none, or when there are fewer nodes than replicas to place.
    """
    nodes = sorted(racks)
    without = [str(node) for node in nodes if not racks[node]]
    if ignore_racks or len(without) == len(nodes):
        return computed(partition_count, replication_factor, nodes, start_index)
    if without:
        names = ", ".join(without)
        raise BadInput(
            f"node ids {names} have no rack while others have one: give every node its rack (node.rack), or place "
            "without regard to racks (`bucket-type create --placement computed`, `partition plan "
            "--ignore-rack-assignment`, replication.ignore_rack_assignment)"
        )
    return chained(partition_count, replication_factor, rack_sequence(racks), start_index)


def computed(
    partition_count: int, replication_factor: int, nodes: Sequence[T], start_index: int = 0
) -> tuple[tuple[T, ...], ...]:
    """Round robin over `nodes`, so that leaders and replicas are spread evenly; after each full turn the followers move
    one place further from their leader (a gap), so that one node's load does not always fall to the same neighbours.

    `start_index` is one past the last index of the run before. Raises BadInput when there are fewer nodes than
    replicas to place.
    """
    node_count = _enough(replication_factor, nodes)
    gap_count = node_count - replication_factor + 1
    sets: list[tuple[T, ...]] = []
    for index in range(start_index, start_index + partition_count):
        turn, first = divmod(index, node_count)
        gap = turn % gap_count
        followers = (nodes[(first + gap + step) % node_count] for step in range(1, replication_factor))
        sets.append((nodes[first], *followers))
    return tuple(sets)


def rack_sequence(racks: Mapping[int, str]) -> tuple[int, ...]:
    """The nodes in an order in which neighbours stand in different racks as far as the racks allow.

    Stage 1: a row of node ids for each rack, the largest rack first, equals by name. Stage 2: read in diagonals:
    diagonal i takes from row r its element i + r, counted round within the row's own length; what was taken before is
    skipped.
    """
    rows: dict[str, list[int]] = {}
    for node in sorted(racks):
        rows.setdefault(racks[node], []).append(node)
    matrix = [rows[rack] for rack in sorted(rows, key=lambda rack: (-len(rows[rack]), rack))]
    diagonals = range(len(matrix[0]) if matrix else 0)
    read = [row[(diagonal + number) % len(row)] for diagonal in diagonals for number, row in enumerate(matrix)]
    return tuple(dict.fromkeys(read))


def chained(
    partition_count: int, replication_factor: int, sequence: Sequence[T], start_index: int = 0
) -> tuple[tuple[T, ...], ...]:
    """Stage 3: each partition's replicas are consecutive in `sequence`, beginning one place after the partition before.
    Raises BadInput when there are fewer nodes than replicas to place."""
    node_count = _enough(replication_factor, sequence)
    return tuple(
        tuple(sequence[(index + step) % node_count] for step in range(replication_factor))
        for index in range(start_index, start_index + partition_count)
    )


def _enough(replication_factor: int, nodes: Sequence[T]) -> int:
    if not 1 <= replication_factor <= len(nodes):
        needs = f"a replication factor of {replication_factor} needs as many nodes, and at least one"
        raise BadInput(f"{needs}: there are {len(nodes)}")
    return len(nodes)
