"""Positions of queues, joined from all nodes: each partition's from its leader."""

from __future__ import annotations

from isthmus.node.services.queue_positions import positions_of
from isthmus.node.services.replication_lag import NodeLags
from isthmus.queues.lag import PartitionLag, QueueLag
from isthmus.repl.model.record import Incarnation
from tests.unit.node.services.test_cluster_status import record


def queue(name: str, uuid: str | None, cursors: dict[int, int], reason: str = "") -> QueueLag:
    """A node's answer about a queue."""
    parts = [PartitionLag(number, "default", 0.0, 0, 0, 0, cursor, cursor) for number, cursor in cursors.items()]
    return QueueLag(queue=name, cluster=uuid and "west", uuid=uuid, reason=reason, partitions=parts)


def test_each_position_is_that_of_the_partitions_leader() -> None:
    """What another node says of a partition does not count; a leader that does not answer leaves it unknown; a queue
    that nobody owns is left out."""
    records = {number: record(number, leader=Incarnation(node, 1)) for number, node in enumerate("abc")}
    answers = {
        "a": NodeLags([queue("q", "ff", {0: 7, 1: 3}, "suspended by ann"), queue("free", None, {0: 1})], []),
        "b": NodeLags([queue("q", "ff", {1: 9})], []),
        "c": None,
    }
    (row,) = positions_of(answers, records)
    assert (row["queue"], row["uuid"], row["cluster"]) == ("q", "ff", "west")
    assert row["partitions"] == {"0": 7, "1": 9, "2": None}
    assert "suspended by ann" in row["reason"]
