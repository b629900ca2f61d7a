"""Placement of a new bucket type: which nodes hold which partition, computed or from an operator's replica map.

There are three ways, all Fluvio's (its pages on replica assignment): computed, a round robin with gaps; rack-aware, in
three stages; and a replica map that an operator wrote. The first node of each set leads at first. A run starts at the
index at which the last one ended, so that bucket types made one after the other stay balanced together.

The form of a replica map is Fluvio's replica assignment file: {"partitions": [{"id": 0, "replicas": [0, 1, 2]}, ...]}.
All faults of a map are reported together. Fluvio's page asks for positive integers but names node 0: here an id is a
whole number from 0. Pure: `node.cli.partition` opens the files, `repl.controller.bucket_types` writes the records.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final, TypeVar

from isthmus.repl.model.errors import BadInput

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
    """The nodes in an order in which neighbours are in different racks as far as the racks allow.

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


MAP_BYTES_MAX: Final = 512 * 1000
"""Largest text of a replica map; a larger one is refused. 1,024 partitions with seven replicas have about 60 KB."""

PARTITIONS_MAX: Final = 1024
"""Most partitions of one bucket type: its records are made in one write of the metastore, which takes 1 MB."""

REPLICAS_MAX: Final = 7
"""Most replicas of one partition: each write waits for all in sync, and more than seven add no safety."""

NODE_ID_MAX: Final = 2**31 - 1
"""Largest node id, as in a node's config."""

FAULTS_SHOWN: Final = 20
"""Faults that are reported of one map; a file of another kind would otherwise fill the screen."""

FORM: Final = '{"partitions": [{"id": 0, "replicas": [0, 1, 2]}, ...]}'


class BadReplicaMap(BadInput):
    """A replica map breaks its criteria. `faults` has one sentence each: where, what, what would be right."""

    reason = "bad-replica-map"

    def __init__(self, faults: Sequence[str]) -> None:
        shown = list(faults[:FAULTS_SHOWN])
        if len(faults) > FAULTS_SHOWN:
            shown.append(f"and {len(faults) - FAULTS_SHOWN} faults more")
        super().__init__("; ".join(shown))
        self.faults = tuple(shown)


def parse_replica_map(text: str | bytes) -> ReplicaMap:
    """The map in a file's text. Raises BadReplicaMap."""
    return checked_replica_map(read_document(text))


def read_document(text: str | bytes) -> object:
    """The JSON value in a file's text, bounded, no key twice. Raises BadReplicaMap."""
    if len(text) > MAP_BYTES_MAX:
        raise BadReplicaMap([f"the map has {len(text)} bytes, at most {MAP_BYTES_MAX} are read"])
    try:
        found: object = json.loads(text, object_pairs_hook=_once_each)
    except _Repeated as error:
        raise BadReplicaMap([f"the map names {error} twice in one object: once is right"]) from error
    except (ValueError, RecursionError) as error:
        raise BadReplicaMap([f"the map is not JSON ({error}): the form is {FORM}"]) from error
    return found


def checked_replica_map(document: object) -> ReplicaMap:
    """The map in a JSON value. Raises BadReplicaMap with all broken criteria."""
    if not isinstance(document, dict) or set(document) != {"partitions"}:
        raise BadReplicaMap([f"the map is not an object with the single key partitions: the form is {FORM}"])
    partitions = document["partitions"]
    if not isinstance(partitions, list) or not partitions:
        raise BadReplicaMap([f"partitions is not a list with at least one partition: the form is {FORM}"])
    if len(partitions) > PARTITIONS_MAX:
        raise BadReplicaMap([f"partitions has {len(partitions)} elements, at most {PARTITIONS_MAX} are right"])
    faults: list[str] = []
    found = tuple(_replicas(index, each, faults) for index, each in enumerate(partitions))
    counts = [_replica_count(each) for each in partitions]
    first = next((index for index, count in enumerate(counts) if count), 0)
    faults += [
        f"partitions[{index}].replicas has {count} elements where partitions[{first}] has {counts[first]}: "
        "all must have the same number"
        for index, count in enumerate(counts)
        if count and count != counts[first]
    ]
    if faults:
        raise BadReplicaMap(faults)
    return found


def check_nodes(replica_map: ReplicaMap, live: Collection[int]) -> None:
    """Refuse a map that names nodes which are not among `live`. Raises BadReplicaMap."""
    known = ", ".join(str(node) for node in sorted(live)) or "none"
    faults = [
        f"partitions[{index}].replicas[{place}] is node id {node}, which no live node has; live are {known}"
        for index, replicas in enumerate(replica_map)
        for place, node in enumerate(replicas)
        if node not in live
    ]
    if faults:
        raise BadReplicaMap(faults)


def replica_map_document(replica_map: ReplicaMap) -> dict[str, Any]:
    """The JSON value of a map, which `parse_replica_map` reads."""
    return {"partitions": [{"id": index, "replicas": list(replicas)} for index, replicas in enumerate(replica_map)]}


def _replicas(index: int, value: object, faults: list[str]) -> tuple[int, ...]:
    """The replicas of the element at `index`; appends its faults to `faults`."""
    where = f"partitions[{index}]"
    if not isinstance(value, dict) or set(value) != {"id", "replicas"}:
        faults.append(f'{where} is not an object with the keys id and replicas: {{"id": {index}, "replicas": [0, 1]}}')
        return ()
    found = value["id"]
    if type(found) is not int or found != index:
        rule = "ids start at 0" if index == 0 else "ids go up by one without gaps"
        faults.append(f"{where}.id is {found!r:.40} where {index} is right: {rule}")
    replicas = value["replicas"]
    if not isinstance(replicas, list) or not replicas:
        faults.append(f"{where}.replicas is {replicas!r:.40}: a list of at least one node id is right")
        return ()
    if len(replicas) > REPLICAS_MAX:
        faults.append(f"{where}.replicas has {len(replicas)} elements, at most {REPLICAS_MAX} are right")
        replicas = replicas[:FAULTS_SHOWN]  # later faults of it would not be shown
    wrong = [place for place, node in enumerate(replicas) if type(node) is not int or not 0 <= node <= NODE_ID_MAX]
    faults += [
        f"{where}.replicas[{place}] is {replicas[place]!r:.40}: a node id is a whole number from 0 to {NODE_ID_MAX}"
        for place in wrong
    ]
    faults += [
        f"{where}.replicas[{place}] is node id {node} once more: replicas are on different nodes"
        for place, node in enumerate(replicas)
        if place not in wrong and node in [each for each in replicas[:place] if type(each) is int]
    ]
    return tuple(replicas)


def _replica_count(value: object) -> int:
    replicas = value.get("replicas") if isinstance(value, dict) else None
    return len(replicas) if isinstance(replicas, list) else 0


class _Repeated(ValueError):
    """A key is there twice in one JSON object."""


def _once_each(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        keys = [key for key, _ in pairs]
        raise _Repeated(next(f"{key!r:.40}" for key in keys if keys.count(key) > 1))
    return found
