"""The readiness of this node's replicas, the answer of /readyz."""

from __future__ import annotations

from collections.abc import Mapping

from isthmus.config.text import quantity
from isthmus.repl.model.record import PartitionRecord
from isthmus.repl.runtime.partition import Partition


def replicas_not_ready(
    node: str, records: Mapping[int, PartitionRecord], partitions: Mapping[int, Partition], waiting: str
) -> str:
    """Why not every replica that `records` assign to `node` leads and serves, or follows; "" when all do. `waiting` is
    the reason for no records at all, if known."""
    if not records:
        return f"no partitions are known yet: {waiting or 'the metastore is being read'}"
    missing = [p for p, record in records.items() if node in record.replicas and p not in partitions]
    if missing:
        return f"{_are(len(missing))} still to be made here, partition {missing[0]} is one"
    idle = [partition for partition in partitions.values() if not partition.serves and not partition.removed]
    if idle:
        return f"{_are(len(idle))} not served, partition {idle[0].id}: {idle[0].reason}"
    return ""


def _are(number: int) -> str:
    return f"{quantity(number, 'partition')} {'is' if number == 1 else 'are'}"
