"""Names, units and help texts of the metrics.

A sample is (name, labels, value). Names ending in `_total` only rise; those ending in `_duration_seconds` are
histograms, whose samples end in `_bucket` (with the label `le`), `_count` and `_sum`; all others are gauges. A metric
without a line in HELP fails a test. `node.observability.metrics` exports them to Prometheus, and docs/metrics.md is
generated from HELP.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

Sample = tuple[str, Mapping[str, str], float]


class Family(NamedTuple):
    """The definition of a metric: its help text, its unit, its section in docs/metrics.md, and its label names."""

    meaning: str
    unit: str
    section: str
    labels: tuple[str, ...] = ()


HELP: Final[Mapping[str, Family]] = {
    "isthmus_requests_total": Family("Items asked of this node, by kind.", "items", "clients", ("kind",)),
    "isthmus_reads_total": Family("Keys read through this node, by isolation.", "keys", "clients", ("isolation",)),
    "isthmus_refusals_total": Family("Items refused for now, by reason.", "items", "clients", ("reason",)),
    "isthmus_writes_above_warning_total": Family(
        "Writes taken although above a warning's limit, by what is above it.", "items", "clients", ("what",)
    ),
    "isthmus_reaps_total": Family("Tombstones removed by this node as a leader.", "tombstones", "clients"),
    "isthmus_reap_restated_total": Family(
        "Tombstones of other clusters that it wrote once more as ours, to be reaped later.", "tombstones", "clients"
    ),
    "isthmus_reap_announced_total": Family(
        "Tombstones of which it told other clusters that they are about to be reaped.", "tombstones", "clients"
    ),
    "isthmus_reap_told_total": Family(
        "Tombstones of which another cluster told that it is about to reap them.", "tombstones", "clients"
    ),
    "isthmus_reap_waiting": Family(
        "Tombstones of partitions led here that are known and may not be removed yet.", "tombstones", "clients"
    ),
    "isthmus_forwarded_items_total": Family(
        "Items forwarded to the node that leads their partition, by method.", "items", "clients", ("method",)
    ),
    "isthmus_partitions": Family(
        "Partitions on this node, by role of the replica.", "partitions", "partitions", ("role",)
    ),
    "isthmus_partitions_ready": Family("Partitions that this node leads and serves.", "partitions", "partitions"),
    "isthmus_partitions_following": Family(
        "Partitions that this node follows, taking what their leaders send.", "partitions", "partitions"
    ),
    "isthmus_partitions_rolled_back": Family(
        "Partitions whose record is older than what this node has seen (H32).", "partitions", "partitions"
    ),
    "isthmus_partitions_under_replicated": Family(
        "Partitions led here with a replica out of sync.", "partitions", "partitions"
    ),
    "isthmus_unclean_elections": Family(
        "Unclean elections that an operator has ordered of the partitions led here, ever.", "elections", "partitions"
    ),
    "isthmus_isr_worst_members": Family(
        "Members in sync of the partition led here that is closest to its min-ISR.",
        "replicas",
        "partitions",
        ("bucket_type",),
    ),
    "isthmus_isr_worst_min_isr": Family(
        "The min-ISR in force for that partition at this moment.", "replicas", "partitions", ("bucket_type",)
    ),
    "isthmus_isr_shrunk_total": Family(
        "Members that left the ISRs led here, by reason: stalled, lags, removed, gone.",
        "members",
        "partitions",
        ("reason",),
    ),
    "isthmus_isr_expanded_total": Family(
        "Followers that had caught up and joined the ISRs led here.", "members", "partitions"
    ),
    "isthmus_copies_deleted_total": Family(
        "Copies deleted here since no record named them any more.", "copies", "partitions"
    ),
    "isthmus_leader_moves_total": Family(
        "Leaderships that balancing moved, from this node as the controller, by outcome.",
        "moves",
        "partitions",
        ("outcome",),
    ),
    "isthmus_move_orders": Family(
        "Orders of placement that are not over, told by the controller alone.", "orders", "partitions"
    ),
    "isthmus_moves": Family(
        "Partitions of these orders, by how far their move is, told by the controller alone.",
        "partitions",
        "partitions",
        ("stage",),
    ),
    "isthmus_metastore_unreadable_documents": Family(
        "Records and registrations in the metastore that cannot be read.", "documents", "partitions"
    ),
    "isthmus_move_orders_ended_total": Family(
        "Orders that were over, noted by this node as the controller, by outcome.", "orders", "partitions", ("outcome",)
    ),
    "isthmus_leader_imbalance": Family(
        "Leaderships of the busiest node above the idlest, told by the controller alone.", "leaderships", "partitions"
    ),
    "isthmus_leader_type_imbalance": Family(
        "The same of one bucket type's leaderships.", "leaderships", "partitions", ("bucket_type",)
    ),
    "isthmus_leader_balancing": Family(
        "1 while leaderships are being moved, told by the controller alone.", "0 or 1", "partitions"
    ),
    "isthmus_replicate_duration_seconds": Family(
        "Time of entries from the append at their leader until applied there.",
        "seconds",
        "replication",
        ("bucket_type", "kind"),
    ),
    "isthmus_replicate_failures_total": Family(
        "Entries refused before the append, lost to a leadership, or answered 504 before they were "
        "committed (timed-out), by reason.",
        "entries",
        "replication",
        ("bucket_type", "kind", "reason"),
    ),
    "isthmus_replicate_oldest_seconds": Family(
        "For how long the oldest entry appended by a leader here has waited to apply.",
        "seconds",
        "replication",
        ("bucket_type",),
    ),
    "isthmus_replicate_batches_total": Family(
        "Batches appended here as a leader and applied.", "batches", "replication"
    ),
    "isthmus_replicate_sent_entries_total": Family("Entries sent to followers.", "entries", "replication"),
    "isthmus_replicate_read_back_entries_total": Family(
        "Entries read back from the log for followers.", "entries", "replication"
    ),
    "isthmus_replicate_dropped_messages_total": Family(
        "Messages to other nodes that found no connection or no room.", "messages", "replication"
    ),
    "isthmus_replicate_strange_messages_total": Family(
        "Messages of other nodes for partitions that are not here.", "messages", "replication"
    ),
    "isthmus_far_rounds_begun_total": Family(
        "Transfer rounds of rows that this node began to give to followers that are far.", "rounds", "far horizon"
    ),
    "isthmus_far_rows_sent_total": Family("Rows given to them.", "rows", "far horizon"),
    "isthmus_far_bytes_sent_total": Family("Bytes given to them.", "bytes", "far horizon"),
    "isthmus_far_rows_unreadable_total": Family(
        "Rows that could not be given since they are missing or damaged here.", "rows", "far horizon"
    ),
    "isthmus_far_rounds_taken_total": Family(
        "Transfer rounds of rows that this node has taken whole.", "rounds", "far horizon"
    ),
    "isthmus_far_bytes_taken_total": Family("Bytes of rows taken.", "bytes", "far horizon"),
    "isthmus_far_chunks_refused_total": Family(
        "Chunks of rows that were not what their sender made.", "chunks", "far horizon"
    ),
    "isthmus_partitions_far": Family(
        "Partitions of this node that take rows of their leader's store.", "partitions", "partitions"
    ),
    "isthmus_storage_full": Family("1 while the log's disk has no room.", "0 or 1", "logs and store"),
    "isthmus_storage_refused_forwards_total": Family(
        "Messages with entries that a follower could not take for lack of room.", "messages", "logs and store"
    ),
    "isthmus_replog_replicas": Family(
        "Replicas here, by their part: leader, isr (follower in sync) or osr (one that is not).",
        "replicas",
        "logs and store",
        ("bucket_type", "part"),
    ),
    "isthmus_replog_entries_average": Family(
        "Entries in the log of such a replica, on average.", "entries", "logs and store", ("bucket_type", "part")
    ),
    "isthmus_replog_entries_max": Family(
        "Entries in the longest of these logs.", "entries", "logs and store", ("bucket_type", "part")
    ),
    "isthmus_replog_unapplied_entries_average": Family(
        "Entries of such a replica's log that are not applied, on average.",
        "entries",
        "logs and store",
        ("bucket_type", "part"),
    ),
    "isthmus_replog_unapplied_entries_max": Family(
        "The most entries that are not applied of any of them.", "entries", "logs and store", ("bucket_type", "part")
    ),
    "isthmus_replog_size_bytes": Family("Size of the node's log files.", "bytes", "logs and store"),
    "isthmus_replog_files": Family("Number of the node's log files.", "files", "logs and store"),
    "isthmus_replog_written_entries_total": Family("Entries written to the log.", "entries", "logs and store"),
    "isthmus_replog_batches_total": Family("Group commits.", "batches", "logs and store"),
    "isthmus_replog_fsyncs_total": Family("Syncs of log files.", "syncs", "logs and store"),
    "isthmus_replog_fsync_seconds_total": Family("Time spent in syncs of log files.", "seconds", "logs and store"),
    "isthmus_apply_duration_seconds": Family(
        "Time of entries from being known as committed until they are in the store.",
        "seconds",
        "replication",
        ("bucket_type", "kind"),
    ),
    "isthmus_apply_steps_total": Family("Batches written to the store.", "batches", "replication"),
    "isthmus_apply_entries_total": Family("Entries applied to the store.", "entries", "replication"),
    "isthmus_unapplied_bytes": Family(
        "Bytes of entries held in memory until they are applied.", "bytes", "replication"
    ),
    "isthmus_store_size_bytes": Family("Approximate size of the store on disk.", "bytes", "logs and store"),
    "isthmus_links": Family(
        "Connections with other nodes of the cluster, by who dialled them.",
        "connections",
        "between nodes",
        ("dialled",),
    ),
    "isthmus_link_frames_total": Family(
        "Frames between this node and the others of its cluster, by lane and direction.",
        "frames",
        "between nodes",
        ("direction", "lane"),
    ),
    "isthmus_link_bytes_total": Family("Bytes of those frames.", "bytes", "between nodes", ("direction", "lane")),
    "isthmus_link_waiting_bytes": Family(
        "Bytes that wait to be written to other nodes of the cluster, by lane.", "bytes", "between nodes", ("lane",)
    ),
    "isthmus_link_faults_total": Family(
        "Connections closed, and messages dropped, for a fault, by reason.", "faults", "between nodes", ("reason",)
    ),
    "isthmus_link_round_trip_seconds": Family(
        "Last measured round trip to another node of the cluster.", "seconds", "between nodes", ("node",)
    ),
}
"""Name -> what it counts."""
