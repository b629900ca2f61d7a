"""A node's log, store and replicas in numbers: the samples of `repl.telemetry.HELP` that `repl.runtime` knows."""

from __future__ import annotations

from collections.abc import Collection

from repl.isr.effects import Role
from repl.partition import Partition
from repl.replog.port import Replog
from repl.rollback_alarm import ROLLED_BACK
from repl.store.port import Store
from repl.telemetry import Sample


def replica_samples(partitions: Collection[Partition]) -> list[Sample]:
    """Of the replicas here, by role, and how safe those are that this node leads."""
    replicas = [partition.replica for partition in partitions]
    samples: list[Sample] = [
        ("isthmus_partitions", {"role": role.value}, sum(r.role is role for r in replicas)) for role in Role
    ]
    samples += [
        ("isthmus_partitions_ready", {}, sum(r.ready for r in replicas)),
        ("isthmus_partitions_following", {}, sum(r.following for r in replicas)),
        ("isthmus_partitions_rolled_back", {}, sum(r.reason.startswith(ROLLED_BACK) for r in replicas)),
        ("isthmus_replog_unapplied_entries", {}, sum(max(0, r.leo - r.applied) for r in replicas)),
    ]
    led = [r.record for r in replicas if r.role in (Role.LEADER, Role.RESIGNING) and r.record is not None]
    samples.append(("isthmus_partitions_under_replicated", {}, sum(len(r.isr) < len(r.replicas) for r in led)))
    samples.append(("isthmus_unclean_elections", {}, sum(r.lineage for r in led)))
    if led:
        worst = min(led, key=lambda r: (len(r.isr) - r.effective_min_isr, len(r.isr)))
        samples.append(("isthmus_isr_worst_members", {}, len(worst.isr)))
        samples.append(("isthmus_isr_worst_min_isr", {}, worst.effective_min_isr))
    return samples


def storage_samples(replog: Replog, store: Store) -> list[Sample]:
    """Of log and store."""
    stats = replog.stats()
    return [
        ("isthmus_replog_size_bytes", {}, stats.size_bytes),
        ("isthmus_replog_files", {}, stats.file_count),
        ("isthmus_replog_written_entries_total", {}, stats.entries_written),
        ("isthmus_replog_batches_total", {}, stats.batches_written),
        ("isthmus_replog_fsyncs_total", {}, stats.fsync_count),
        ("isthmus_replog_fsync_seconds_total", {}, stats.fsync_seconds),
        ("isthmus_store_size_bytes", {}, store.size_bytes()),
    ]
