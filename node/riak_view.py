"""This node and its cluster in the words of Riak's /stats and preflist. From records, registrations and counts.

Every number is what it says, of the metastore as this node last read it; what cannot be said truly is left out. The
face that shows it is `node.http.riak_views`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from node.http.program import program_version
from repl.creation import DEFAULT_TYPE
from repl.model.errors import NotReady
from repl.model.keys import Key, key_hash, partition_index
from repl.model.record import PartitionRecord, Registration
from repl.routes import UnknownBucketType
from repl.telemetry import Sample

if TYPE_CHECKING:
    from node.parts import Parts

Records = Mapping[int, PartitionRecord]


class RiakView:
    """See `node.http.riak_views.Sights`."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    def stats(self) -> Mapping[str, object]:
        """See Sights.stats."""
        controller = self._parts.controller
        name = self._parts.settings.node.name
        return stats_of(name, controller.records, controller.registrations, self._parts.coordinator.metrics())

    def preflist(self, key: Key) -> Sequence[Mapping[str, object]]:
        """See Sights.preflist."""
        return preflist_of(key, self._parts.controller.records)

    def check_type(self, bucket_type: bytes) -> None:
        """See Sights.check_type."""
        self._parts.coordinator.routes.check(bucket_type)


def stats_of(
    node: str, records: Records, registrations: Mapping[str, Registration], samples: Iterable[Sample]
) -> dict[str, object]:
    """Riak's statistics that have a meaning here, by its names. `samples`: the coordinator's."""
    asked = {labels["kind"]: count for name, labels, count in samples if name == "isthmus_requests_total"}
    members = sorted({*registrations, *(name for record in records.values() for name in record.replicas)})
    leads = Counter(record.leader.node for record in records.values() if record.leader is not None)
    owned = ",".join(f"{{'{name}',{leads[name]}}}" for name in members)
    return {
        "isthmus_version": program_version(),
        "nodename": node,
        "ring_members": members,
        "connected_nodes": [name for name in members if name in registrations and name != node],
        "ring_num_partitions": len(records),
        "ring_creation_size": sum(record.bucket_type == DEFAULT_TYPE for record in records.values()),
        "ring_ownership": f"[{owned}]",
        "riak_kv_vnodes_running": sum(node in record.replicas for record in records.values()),
        "storage_backend": "leveldb",
        "node_gets_total": asked["get"],
        "node_puts_total": asked["put"],
    }


def preflist_of(key: Key, records: Records) -> Sequence[dict[str, object]]:
    """The replicas of a key's partition, the leader first. Raises UnknownBucketType, NotReady."""
    wanted = [record for record in records.values() if record.bucket_type.encode() == key.bucket_type]
    if not records:
        raise NotReady("the partitions are not known here yet")
    if not wanted:
        raise UnknownBucketType(f"bucket type {key.bucket_type.decode(errors='replace')!r} does not exist")
    index = partition_index(key_hash(key.bucket, key.key), wanted[0].partition_count)
    for record in wanted:
        if record.index == index:
            led_by = None if record.leader is None else record.leader.node
            holders = sorted(record.replicas, key=lambda name: name != led_by)
            return [{"partition": record.partition, "node": name, "primary": True} for name in holders]
    raise NotReady(f"partition {index} of the bucket type is not known here yet")
