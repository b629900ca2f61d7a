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
    "isthmus_requests_total": Family("Items requested from this node, by kind.", "items", "clients", ("kind",)),
    "isthmus_reads_total": Family("Keys read through this node, by isolation.", "keys", "clients", ("isolation",)),
    "isthmus_refusals_total": Family("Items refused as retryable, by reason.", "items", "clients", ("reason",)),
    "isthmus_writes_above_warning_total": Family(
        "Writes accepted above a warning limit, by the limit.", "items", "clients", ("what",)
    ),
    "isthmus_reaps_total": Family("Tombstones removed by this node as a leader.", "tombstones", "clients"),
    "isthmus_reap_restated_total": Family(
        "Tombstones of other clusters, rewritten as this cluster's so that it may reap them.", "tombstones", "clients"
    ),
    "isthmus_reap_announced_total": Family(
        "Tombstones announced to other clusters before removal.", "tombstones", "clients"
    ),
    "isthmus_reap_told_total": Family("Tombstones whose removal another cluster announced.", "tombstones", "clients"),
    "isthmus_reap_recalled_total": Family(
        "Tombstones written once more after their removal, since another cluster still had the deleted value.",
        "tombstones",
        "clients",
    ),
    "isthmus_reap_waiting": Family(
        "Known tombstones, of partitions led here, that may not be removed yet.", "tombstones", "clients"
    ),
    "isthmus_forwarded_items_total": Family(
        "Items forwarded to the node that leads their partition, by method.", "items", "clients", ("method",)
    ),
    "isthmus_partitions": Family(
        "Partitions on this node, by role of the replica.", "partitions", "partitions", ("role",)
    ),
    "isthmus_partitions_ready": Family("Partitions that this node leads and serves.", "partitions", "partitions"),
    "isthmus_partitions_following": Family(
        "Partitions that this node follows and whose leader sends it entries.", "partitions", "partitions"
    ),
    "isthmus_partitions_rolled_back": Family(
        "Partitions whose record is older than one that this node has seen (H32).", "partitions", "partitions"
    ),
    "isthmus_partitions_under_replicated": Family(
        "Partitions led here with a replica out of sync.", "partitions", "partitions"
    ),
    "isthmus_unclean_elections": Family(
        "Unclean elections, ordered by operators, in the history of the partitions led here.", "elections", "partitions"
    ),
    "isthmus_actors_renewed_total": Family(
        "Partitions that took another actor, since another cluster holds writes of theirs that their log lacks.",
        "partitions",
        "partitions",
    ),
    "isthmus_isr_worst_members": Family(
        "Members in sync of the partition led here that is closest to its min-ISR.",
        "replicas",
        "partitions",
        ("bucket_type",),
    ),
    "isthmus_isr_worst_min_isr": Family(
        "Current min-ISR of the partition that isthmus_isr_worst_members reports.",
        "replicas",
        "partitions",
        ("bucket_type",),
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
        "Replicas deleted on this node because no record assigned them to it.", "copies", "partitions"
    ),
    "isthmus_leader_moves_total": Family(
        "Leadership moves by the leader balancer of this node as the controller, by outcome.",
        "moves",
        "partitions",
        ("outcome",),
    ),
    "isthmus_move_orders": Family(
        "Unfinished placement orders; reported by the controller only.", "orders", "partitions"
    ),
    "isthmus_moves": Family(
        "Partitions of these orders, by the state of their move; reported by the controller only.",
        "partitions",
        "partitions",
        ("stage",),
    ),
    "isthmus_metastore_connected": Family(
        "1 while this node has a connection with the metastore.", "0 or 1", "partitions"
    ),
    "isthmus_metastore_unreadable_documents": Family(
        "Records and registrations in the metastore that cannot be read.", "documents", "partitions"
    ),
    "isthmus_partitions_offline": Family(
        "Partitions of the cluster that are not online, by the records that this node has read.",
        "partitions",
        "partitions",
    ),
    "isthmus_move_orders_ended_total": Family(
        "Placement orders that ended while this node was the controller, by outcome.",
        "orders",
        "partitions",
        ("outcome",),
    ),
    "isthmus_leader_nodes": Family(
        "Nodes that are to lead, as many as the load needs; reported by the controller only.", "nodes", "partitions"
    ),
    "isthmus_leader_imbalance": Family(
        "Difference between the most and the fewest leaderships of the nodes that are to lead; reported by the "
        "controller only.",
        "leaderships",
        "partitions",
    ),
    "isthmus_leader_type_imbalance": Family(
        "Difference between the most and the fewest leaderships of the nodes that are to lead, in one bucket type.",
        "leaderships",
        "partitions",
        ("bucket_type",),
    ),
    "isthmus_leader_balancing": Family(
        "1 while leaderships are being moved; reported by the controller only.", "0 or 1", "partitions"
    ),
    "isthmus_replicate_duration_seconds": Family(
        "Time of entries from the append at their leader until they are applied there.",
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
        "Messages to other nodes dropped for lack of a connection or of buffer space.", "messages", "replication"
    ),
    "isthmus_replicate_strange_messages_total": Family(
        "Messages of other nodes for partitions without a replica on this node.", "messages", "replication"
    ),
    "isthmus_far_rounds_begun_total": Family(
        "Transfer rounds that this node began to send to followers beyond the log.", "rounds", "far horizon"
    ),
    "isthmus_far_rows_sent_total": Family("Rows sent in transfer rounds.", "rows", "far horizon"),
    "isthmus_far_bytes_sent_total": Family("Bytes sent in transfer rounds.", "bytes", "far horizon"),
    "isthmus_far_rows_unreadable_total": Family(
        "Rows not sent because they are missing or damaged on this node.", "rows", "far horizon"
    ),
    "isthmus_far_rounds_taken_total": Family(
        "Transfer rounds that this node has received completely.", "rounds", "far horizon"
    ),
    "isthmus_far_bytes_taken_total": Family("Bytes of rows received in transfer rounds.", "bytes", "far horizon"),
    "isthmus_far_chunks_refused_total": Family(
        "Chunks of rows refused because they arrived damaged; they are requested again.", "chunks", "far horizon"
    ),
    "isthmus_partitions_far": Family(
        "Partitions of this node that receive rows of their leader's store.", "partitions", "partitions"
    ),
    "isthmus_storage_full": Family(
        "1 while writes are refused: the log's disk is full, or inodes, write access or file descriptors are short.",
        "0 or 1",
        "logs and store",
    ),
    "isthmus_storage_free_bytes": Family(
        "Free space of the log's disk, as last measured; at 128 MiB the disk counts as full.", "bytes", "logs and store"
    ),
    "isthmus_storage_free_inodes": Family(
        "Files that can still be created on the log's disk; at 128 writes are refused. Absent where the file system "
        "sets no limit.",
        "inodes",
        "logs and store",
    ),
    "isthmus_open_files": Family("File descriptors that this process has open.", "descriptors", "logs and store"),
    "isthmus_open_files_limit": Family(
        "Limit of open files of this process (RLIMIT_NOFILE).", "descriptors", "logs and store"
    ),
    "isthmus_open_files_borrowed_total": Family(
        "File descriptors taken from the reserve because no other was left.", "descriptors", "logs and store"
    ),
    "isthmus_storage_refused_forwards_total": Family(
        "Messages with entries that this node refused as a follower because its disk is full.",
        "messages",
        "logs and store",
    ),
    "isthmus_replog_replicas": Family(
        "Replicas on this node, by part: leader, isr (follower in sync) or osr (follower out of sync).",
        "replicas",
        "logs and store",
        ("bucket_type", "part"),
    ),
    "isthmus_replog_entries_average": Family(
        "Mean number of entries in the logs of these replicas.", "entries", "logs and store", ("bucket_type", "part")
    ),
    "isthmus_replog_entries_max": Family(
        "Number of entries in the longest log of these replicas.", "entries", "logs and store", ("bucket_type", "part")
    ),
    "isthmus_replog_unapplied_entries_average": Family(
        "Mean number of unapplied entries in the logs of these replicas.",
        "entries",
        "logs and store",
        ("bucket_type", "part"),
    ),
    "isthmus_replog_unapplied_entries_max": Family(
        "Largest number of unapplied entries of one of these replicas.",
        "entries",
        "logs and store",
        ("bucket_type", "part"),
    ),
    "isthmus_replog_size_bytes": Family("Size of the node's log files.", "bytes", "logs and store"),
    "isthmus_replog_files": Family("Number of the node's log files.", "files", "logs and store"),
    "isthmus_replog_written_entries_total": Family("Entries written to the log.", "entries", "logs and store"),
    "isthmus_replog_batches_total": Family("Group commits.", "batches", "logs and store"),
    "isthmus_replog_fsyncs_total": Family(
        "Syncs of log files, without those of preallocation.", "syncs", "logs and store"
    ),
    "isthmus_replog_fsync_seconds_total": Family(
        "Time spent in syncs of log files, without those of preallocation.", "seconds", "logs and store"
    ),
    "isthmus_apply_duration_seconds": Family(
        "Time of entries from commit, as known on this node, until they are in the store.",
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
        "Connections with other nodes of the cluster, by the side that dialled.",
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
    "isthmus_stream_groups_total": Family(
        "Groups of replication streams: the log runs of all partitions that a node replicates together to another "
        "node, and announcements of commits.",
        "groups",
        "between nodes",
        ("direction",),
    ),
    "isthmus_stream_restarts_total": Family(
        "Replication streams that this node ended and began again on a standing connection: a group or an "
        "acknowledgement was lost or late.",
        "streams",
        "between nodes",
    ),
    "isthmus_link_faults_total": Family(
        "Connections closed, and messages dropped, for a fault, by reason.", "faults", "between nodes", ("reason",)
    ),
    "isthmus_link_round_trip_seconds": Family(
        "Last measured round trip to another node of the cluster.", "seconds", "between nodes", ("node",)
    ),
}
"""Metric name -> its definition."""
