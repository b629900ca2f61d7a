"""Samples of a node's log, store and replicas, for the metrics of `repl.telemetry.HELP`.

Each replica counts as one of three: `leader`, `isr` (a follower that the record has in sync, under its gen) or `osr`
(any other).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Final, NamedTuple

from isthmus.repl.isr.effects import ReplicaRole
from isthmus.repl.model.record import PartitionRecord
from isthmus.repl.replog.port import Replog
from isthmus.repl.runtime.metastore_effects import ROLLED_BACK
from isthmus.repl.runtime.partition import Partition
from isthmus.repl.store.port import Store
from isthmus.repl.telemetry import Sample

LEADER: Final = "leader"
ISR: Final = "isr"
OSR: Final = "osr"
PARTS: Final = (LEADER, ISR, OSR)
"""Labels of replicas in metrics and in `isthmus cluster telemetry`."""


class ReplogSizes(NamedTuple):
    """Sums and maxima over the logs of some replicas: entries held, and entries not applied."""

    replicas: int = 0
    entries: int = 0
    entries_max: int = 0
    unapplied: int = 0
    unapplied_max: int = 0

    def merged(self, other: ReplogSizes) -> ReplogSizes:
        """Sizes over the replicas of both."""
        return ReplogSizes(
            self.replicas + other.replicas,
            self.entries + other.entries,
            max(self.entries_max, other.entries_max),
            self.unapplied + other.unapplied,
            max(self.unapplied_max, other.unapplied_max),
        )


def part_of(partition: Partition) -> str:
    """One of PARTS."""
    replica = partition.replica
    if partition.leads:
        return LEADER
    return ISR if replica.record is not None and replica.member in replica.record.isr else OSR


def replog_sizes(partitions: Iterable[Partition], replog: Replog) -> dict[tuple[bytes, str], ReplogSizes]:
    """Log sizes by (bucket type, part)."""
    found: dict[tuple[bytes, str], ReplogSizes] = {}
    for partition in partitions:
        key = (partition.bucket_type, part_of(partition))
        leo = partition.replica.leo
        held = max(0, leo - replog.start_of(partition.id))
        unapplied = max(0, leo - partition.replica.applied)
        found[key] = found.get(key, ReplogSizes()).merged(ReplogSizes(1, held, held, unapplied, unapplied))
    return found


def worst_isr(records: Iterable[PartitionRecord]) -> PartitionRecord | None:
    """The partition closest to losing its min-ISR; among equals the one with the fewest replicas in sync."""
    return min(records, key=lambda r: (len(r.isr) - r.effective_min_isr, len(r.isr), r.partition), default=None)


def led_records(partitions: Iterable[Partition]) -> dict[bytes, list[PartitionRecord]]:
    """Bucket type -> the records of its partitions that this node leads."""
    led: dict[bytes, list[PartitionRecord]] = {}
    for partition in partitions:
        if partition.leads and partition.replica.record is not None:
            led.setdefault(partition.bucket_type, []).append(partition.replica.record)
    return led


def under_replicated(led: Mapping[bytes, Collection[PartitionRecord]]) -> int:
    """How many of `led_records` have a replica out of sync."""
    return sum(len(r.isr) < len(r.replicas) for records in led.values() for r in records)


def oldest_waits_ms(partitions: Iterable[Partition], now_ms: int) -> dict[bytes, int]:
    """Bucket type -> for how long the oldest entry appended by a leader here has waited to apply; 0: none waits."""
    oldest: dict[bytes, int] = {}
    for partition in partitions:
        if partition.leads:
            appended_ms = partition.timestamps.oldest_append_ms()
            waits_ms = 0 if appended_ms is None else now_ms - appended_ms
            oldest[partition.bucket_type] = max(waits_ms, oldest.get(partition.bucket_type, 0))
    return oldest


def _replica_samples(partitions: Collection[Partition]) -> list[Sample]:
    """Replicas by role, and how far the led partitions are from losing their min-ISR."""
    replicas = [partition.replica for partition in partitions]
    samples: list[Sample] = [
        ("isthmus_partitions", {"role": role.value}, sum(r.role is role for r in replicas)) for role in ReplicaRole
    ]
    samples += [
        ("isthmus_partitions_ready", {}, sum(r.ready for r in replicas)),
        ("isthmus_partitions_following", {}, sum(r.following for r in replicas)),
        ("isthmus_partitions_far", {}, sum(r.transfer_position is not None for r in replicas)),
        ("isthmus_partitions_rolled_back", {}, sum(r.reason.startswith(ROLLED_BACK) for r in replicas)),
    ]
    led = led_records(partitions)
    samples.append(("isthmus_partitions_under_replicated", {}, under_replicated(led)))
    samples.append(("isthmus_unclean_elections", {}, sum(r.lineage for records in led.values() for r in records)))
    for bucket_type, records in led.items():
        worst = worst_isr(records)
        assert worst is not None
        labels = {"bucket_type": bucket_type.decode()}
        samples.append(("isthmus_isr_worst_members", labels, len(worst.isr)))
        samples.append(("isthmus_isr_worst_min_isr", labels, worst.effective_min_isr))
    return samples


def _replog_samples(partitions: Collection[Partition], replog: Replog, now_ms: int) -> list[Sample]:
    """Log sizes by bucket type and part, and the age of the oldest unapplied batch by bucket type."""
    samples: list[Sample] = []
    for (bucket_type, part), sizes in replog_sizes(partitions, replog).items():
        labels = {"bucket_type": bucket_type.decode(), "part": part}
        samples += [
            ("isthmus_replog_replicas", labels, sizes.replicas),
            ("isthmus_replog_entries_average", labels, sizes.entries / sizes.replicas),
            ("isthmus_replog_entries_max", labels, sizes.entries_max),
            ("isthmus_replog_unapplied_entries_average", labels, sizes.unapplied / sizes.replicas),
            ("isthmus_replog_unapplied_entries_max", labels, sizes.unapplied_max),
        ]
    samples += [
        ("isthmus_replicate_oldest_seconds", {"bucket_type": bucket_type.decode()}, waits_ms / 1000)
        for bucket_type, waits_ms in oldest_waits_ms(partitions, now_ms).items()
    ]
    return samples


def _storage_samples(replog: Replog, store: Store) -> list[Sample]:
    """Sizes and fsyncs of log and store."""
    stats = replog.stats()
    return [
        ("isthmus_storage_free_bytes", {}, stats.free_bytes),
        *([] if stats.free_inodes is None else [("isthmus_storage_free_inodes", {}, stats.free_inodes)]),
        ("isthmus_replog_size_bytes", {}, stats.size_bytes),
        ("isthmus_replog_files", {}, stats.file_count),
        ("isthmus_replog_written_entries_total", {}, stats.entries_written),
        ("isthmus_replog_batches_total", {}, stats.batches_written),
        ("isthmus_replog_fsyncs_total", {}, stats.fsync_count),
        ("isthmus_replog_fsync_seconds_total", {}, stats.fsync_seconds),
        ("isthmus_store_size_bytes", {}, store.size_bytes()),
    ]


def samples(partitions: Collection[Partition], replog: Replog, store: Store, now_ms: int) -> list[Sample]:
    """All samples of this module."""
    return [
        *_replica_samples(partitions),
        *_replog_samples(partitions, replog, now_ms),
        *_storage_samples(replog, store),
    ]
