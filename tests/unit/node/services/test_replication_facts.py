"""Claims about the partitions that a node reports to lead."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from isthmus.node.services.replication_facts import ReplicationFacts
from isthmus.queues.sink_shares import KeyRange, TypeShare


def facts_of(*partitions: tuple[int, bytes, int, int, bool]) -> tuple[ReplicationFacts, dict[int, Any]]:
    """Facts of a node with replicas (id, bucket type, index, partition count, leads and serves)."""
    found = {
        number: SimpleNamespace(
            id=number, bucket_type=name, index=index, partition_count=count, replica=SimpleNamespace(ready=ready)
        )
        for number, name, index, count, ready in partitions
    }
    nothing: Any = None
    runtime: Any = SimpleNamespace(partitions=found)
    return ReplicationFacts(runtime, nothing, nothing, nothing, nothing, nothing), found


def test_a_share_has_the_partitions_that_the_node_leads_and_serves_now() -> None:
    """By bucket type; one of which it only follows partitions is named with none; it changes with leadership."""
    facts, partitions = facts_of(
        (1, b"default", 0, 3, True),
        (2, b"default", 1, 3, False),
        (3, b"default", 2, 3, True),
        (9, b"maps", 0, 1, False),
    )
    assert facts.led_share() == {b"default": TypeShare(3, 0b101), b"maps": TypeShare(1, 0)}
    partitions[1].replica.ready, partitions[9].replica.ready = False, True
    assert facts.led_share() == {b"default": TypeShare(3, 0b100), b"maps": TypeShare(1, 1)}


def test_the_keys_of_a_partition_are_known_by_its_number_among_those_of_its_type() -> None:
    """Not by its id; unknown for a partition without a replica here."""
    facts, _ = facts_of((7, b"default", 2, 12, False))
    assert facts.key_range(7) == KeyRange(2, 12)
    assert facts.key_range(8) is None
