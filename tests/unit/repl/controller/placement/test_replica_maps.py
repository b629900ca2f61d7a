"""Replica maps that operators write: each criterion has its own fault, with its place."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isthmus.repl.controller.placement import (
    FAULTS_SHOWN,
    MAP_BYTES_MAX,
    PARTITIONS_MAX,
    BadReplicaMap,
    check_nodes,
    checked_replica_map,
    parse_replica_map,
    placed,
    replica_map_document,
)
from tests.support.samples import share


def a_map(*sets: Any) -> dict[str, Any]:
    """The document of these replica sets, with sequential ids."""
    return {"partitions": [{"id": index, "replicas": each} for index, each in enumerate(sets)]}


def faults_of(document: Any) -> list[str]:
    """The faults of the document."""
    with pytest.raises(BadReplicaMap) as refused:
        checked_replica_map(document)
    return list(refused.value.faults)


def test_the_published_file_is_taken() -> None:
    """It has two partitions and three replicas, with node 0 among them although the page says positive."""
    text = """{
        "partitions": [{
                "id": 0,
                "replicas": [0, 1, 2]
            },
            {
                "id": 1,
                "replicas": [1, 2, 0]
            }
        ]
    }"""
    assert parse_replica_map(text) == ((0, 1, 2), (1, 2, 0))


@pytest.mark.parametrize(
    ("document", "fault"),
    [
        ({"partitions": [{"id": 1, "replicas": [0]}]}, "partitions[0].id is 1 where 0 is right: ids start at 0"),
        (
            {"partitions": [{"id": 0, "replicas": [0]}, {"id": 2, "replicas": [0]}]},
            "partitions[1].id is 2 where 1 is right: ids go up by one without gaps",
        ),
        (
            {"partitions": [{"id": 0, "replicas": [0]}, {"id": 0, "replicas": [0]}]},
            "partitions[1].id is 0 where 1 is right: ids go up by one without gaps",
        ),
        ({"partitions": [{"id": False, "replicas": [0]}]}, "partitions[0].id is False where 0 is right"),
        (a_map([0], []), "partitions[1].replicas is []: a list of at least one node id is right"),
        (a_map(3), "partitions[0].replicas is 3: a list of at least one node id is right"),
        (a_map([0, 1], [0]), "partitions[1].replicas has 1 elements where partitions[0] has 2: all must have"),
        (a_map([0, 1, 0]), "partitions[0].replicas[2] is node id 0 once more: replicas are on different nodes"),
        (a_map([0, -1]), "partitions[0].replicas[1] is -1: a node id is a whole number from 0"),
        (a_map([1.0]), "partitions[0].replicas[0] is 1.0: a node id is a whole number from 0"),
        (a_map([True]), "partitions[0].replicas[0] is True: a node id is a whole number from 0"),
        (a_map(["n1"]), "partitions[0].replicas[0] is 'n1': a node id is a whole number from 0"),
        (a_map([2**31]), "partitions[0].replicas[0] is 2147483648: a node id is a whole number from 0"),
        (a_map(list(range(8))), "partitions[0].replicas has 8 elements, at most 7 are right"),
        ({"partitions": [[0, 1]]}, "partitions[0] is not an object with the keys id and replicas"),
        (
            {"partitions": [{"id": 0, "replicas": [0], "rack": 1}]},
            "partitions[0] is not an object with the keys id and",
        ),
        ({"partitions": []}, "partitions is not a list with at least one partition"),
        ({"partitions": {}}, "partitions is not a list with at least one partition"),
        ({}, "the map is not an object with the single key partitions"),
        ([], "the map is not an object with the single key partitions"),
        (a_map(*[[0]] * (PARTITIONS_MAX + 1)), "partitions has 1025 elements, at most 1024 are right"),
    ],
)
def test_each_criterion_has_its_own_fault(document: Any, fault: str) -> None:
    """There is one fault, with its position and the valid value."""
    found = faults_of(document)
    assert len(found) == 1
    assert found[0].startswith(fault)


def test_no_fault_hides_another_one() -> None:
    """A repeated node is reported although another id of its list is invalid, and unequal lengths are although the
    first partition's list is broken: all faults at once."""
    broken = [
        {"id": 1, "replicas": []},
        {"id": 1, "replicas": [1, 1, -3]},
        {"id": 3, "replicas": [0, 1]},
        {"id": 3, "replicas": [2, 1, 0]},
    ]
    assert faults_of({"partitions": broken}) == [
        "partitions[0].id is 1 where 0 is right: ids start at 0",
        "partitions[0].replicas is []: a list of at least one node id is right",
        "partitions[1].replicas[2] is -3: a node id is a whole number from 0 to 2147483647",
        "partitions[1].replicas[1] is node id 1 once more: replicas are on different nodes",
        "partitions[2].id is 3 where 2 is right: ids go up by one without gaps",
        "partitions[2].replicas has 2 elements where partitions[1] has 3: all must have the same number",
    ]
    many = faults_of(a_map([0, 1, 2, 3, 4, 5, 6, 7, 7, True]))
    assert [fault.removeprefix("partitions[0]") for fault in many] == [
        ".replicas has 10 elements, at most 7 are right",
        ".replicas[9] is True: a node id is a whole number from 0 to 2147483647",
        ".replicas[8] is node id 7 once more: replicas are on different nodes",
    ]


def test_all_faults_are_reported_together_up_to_a_limit() -> None:
    """A file with many faults can be corrected at once; a file of another kind gives a bounded number of faults."""
    found = faults_of({"partitions": [{"id": 1, "replicas": [0, 0]}, {"id": 1, "replicas": [-1]}]})
    assert [fault.split(" ")[0] for fault in found] == [
        "partitions[0].id",
        "partitions[0].replicas[1]",
        "partitions[1].replicas[0]",
        "partitions[1].replicas",
    ]
    many = faults_of(a_map(*[[-1]] * 100))
    assert len(many) == FAULTS_SHOWN + 1
    assert many[-1] == "and 80 faults more"


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("{", "the map is not JSON"),
        (b"\xff\xfe{", "the map is not JSON"),
        ("[" * 100_000, "the map is not JSON"),
        ('{"partitions": [], "partitions": []}', "the map names 'partitions' twice"),
        ('{"partitions": [{"id": 0, "id": 0, "replicas": [0]}]}', "the map names 'id' twice"),
        (" " * (MAP_BYTES_MAX + 1), "the map has 512001 bytes"),
    ],
)
def test_a_malformed_map_is_refused(text: str | bytes, fault: str) -> None:
    """Hostile or broken text is one sentence."""
    with pytest.raises(BadReplicaMap) as refused:
        parse_replica_map(text)
    assert len(refused.value.faults) == 1
    assert str(refused.value).startswith(fault)


def test_nodes_that_do_not_live_are_refused() -> None:
    """Each position that names one is reported, with the live nodes."""
    check_nodes(((0, 1), (1, 0)), {0, 1, 2})
    with pytest.raises(BadReplicaMap) as refused:
        check_nodes(((0, 7), (8, 0)), {2, 0, 1})
    assert refused.value.faults == (
        "partitions[0].replicas[1] is node id 7, which no live node has; live are 0, 1, 2",
        "partitions[1].replicas[0] is node id 8, which no live node has; live are 0, 1, 2",
    )
    with pytest.raises(BadReplicaMap, match="live are none"):
        check_nodes(((0,),), ())


@settings(deadline=None, derandomize=True, max_examples=share(60))
@given(st.integers(1, 60), st.integers(1, 7), st.integers(0, 9), st.integers(0, 100))
def test_every_computed_placement_is_a_right_map(partitions: int, factor: int, more: int, start: int) -> None:
    """The output of the plan is accepted by the assignment, and parsed to the same placement."""
    found = placed(partitions, factor, dict.fromkeys(range(factor + more), ""), start_index=start)
    assert parse_replica_map(json.dumps(replica_map_document(found))) == found
