"""Names of a cluster's metrics, with their units, and the numbers behind them at this moment.

A sample is (name, labels, value). Names ending in `_total` only rise; those ending in `_duration_seconds` are
histograms, whose samples end in `_bucket` (with the label `le`), `_count` and `_sum`; all others are gauges. What
people read of each is in HELP; a metric that has no line there fails a test. Prometheus itself is the roof's affair
(`node.metrics`), and docs/metrics.md lists them all.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

Sample = tuple[str, Mapping[str, str], float]

HELP: Final[Mapping[str, str]] = {
    "isthmus_requests_total": "Items asked of this node, by kind.",
    "isthmus_reads_total": "Keys read through this node, by isolation.",
    "isthmus_refusals_total": "Items refused for now, by reason.",
    "isthmus_writes_above_warning_total": "Writes taken although above a warning's limit, by what is above it.",
    "isthmus_reaps_total": "Tombstones removed by this node as a leader.",
    "isthmus_reap_restated_total": "Tombstones of other clusters that it wrote once more as ours, to be reaped later.",
    "isthmus_reap_announced_total": "Tombstones of which it told other clusters that they are about to be reaped.",
    "isthmus_reap_told_total": "Tombstones of which another cluster told that it is about to reap them.",
    "isthmus_reap_waiting": "Tombstones of partitions led here that are known and may not be removed yet.",
    "isthmus_forwarded_items_total": "Items forwarded to the node that leads their partition, by method.",
    "isthmus_partitions": "Partitions on this node, by role of the replica.",
    "isthmus_partitions_ready": "Partitions that this node leads and serves.",
    "isthmus_partitions_following": "Partitions that this node follows, taking what their leaders send.",
    "isthmus_partitions_rolled_back": "Partitions whose record is older than what this node has seen (H32).",
    "isthmus_partitions_under_replicated": "Partitions led here with a replica out of sync.",
    "isthmus_unclean_elections": "Unclean elections that an operator has ordered of the partitions led here, ever.",
    "isthmus_isr_worst_members": "Members in sync of the partition led here that is closest to its min-ISR.",
    "isthmus_isr_worst_min_isr": "The min-ISR in force for that partition at this moment.",
    "isthmus_isr_shrunk_total": "Members that left the ISRs led here, by reason: stalled, lags, removed, gone.",
    "isthmus_isr_expanded_total": "Followers that had caught up and joined the ISRs led here.",
    "isthmus_copies_deleted_total": "Copies deleted here since no record named them any more.",
    "isthmus_leader_moves_total": "Leaderships that balancing moved, from this node as the controller, by outcome.",
    "isthmus_move_orders": "Orders of placement that are not over, told by the controller alone.",
    "isthmus_moves": "Partitions of these orders, by how far their move is, told by the controller alone.",
    "isthmus_metastore_unreadable_documents": "Records and registrations in the metastore that cannot be read.",
    "isthmus_move_orders_ended_total": "Orders that were over, noted by this node as the controller, by outcome.",
    "isthmus_leader_imbalance": "Leaderships of the busiest node above the idlest, told by the controller alone.",
    "isthmus_leader_type_imbalance": "The same of one bucket type's leaderships.",
    "isthmus_leader_balancing": "1 while leaderships are being moved, told by the controller alone.",
    "isthmus_replicate_duration_seconds": "Time of entries from the append at their leader until applied there.",
    "isthmus_replicate_failures_total": "Entries refused before the append, lost to a leadership, or answered 504 "
    "before they were committed (timed-out), by reason.",
    "isthmus_replicate_oldest_seconds": "For how long the oldest entry appended by a leader here has waited to apply.",
    "isthmus_replicate_batches_total": "Batches appended here as a leader and applied.",
    "isthmus_replicate_sent_entries_total": "Entries sent to followers.",
    "isthmus_replicate_read_back_entries_total": "Entries read back from the log for followers.",
    "isthmus_replicate_dropped_messages_total": "Messages to other nodes that found no connection or no room.",
    "isthmus_replicate_strange_messages_total": "Messages of other nodes for partitions that are not here.",
    "isthmus_far_rounds_begun_total": "Transfer rounds of rows that this node began to give to followers that are far.",
    "isthmus_far_rows_sent_total": "Rows given to them.",
    "isthmus_far_bytes_sent_total": "Bytes given to them.",
    "isthmus_far_rows_unreadable_total": "Rows that could not be given since they are missing or damaged here.",
    "isthmus_far_rounds_taken_total": "Transfer rounds of rows that this node has taken whole.",
    "isthmus_far_bytes_taken_total": "Bytes of rows taken.",
    "isthmus_far_chunks_refused_total": "Chunks of rows that were not what their sender made.",
    "isthmus_partitions_far": "Partitions of this node that take rows of their leader's store.",
    "isthmus_storage_full": "1 while the log's disk has no room.",
    "isthmus_storage_refused_forwards_total": "Messages with entries that a follower could not take for lack of room.",
    "isthmus_replog_replicas": "Replicas here, by their part: leader, isr (follower in sync) or osr (one that is not).",
    "isthmus_replog_entries_average": "Entries in the log of such a replica, on average.",
    "isthmus_replog_entries_max": "Entries in the longest of these logs.",
    "isthmus_replog_unapplied_entries_average": "Entries of such a replica's log that are not applied, on average.",
    "isthmus_replog_unapplied_entries_max": "The most entries that are not applied of any of them.",
    "isthmus_replog_size_bytes": "Size of the node's log files.",
    "isthmus_replog_files": "Number of the node's log files.",
    "isthmus_replog_written_entries_total": "Entries written to the log.",
    "isthmus_replog_batches_total": "Group commits.",
    "isthmus_replog_fsyncs_total": "Syncs of log files.",
    "isthmus_replog_fsync_seconds_total": "Time spent in syncs of log files.",
    "isthmus_apply_duration_seconds": "Time of entries from being known as committed until they are in the store.",
    "isthmus_apply_steps_total": "Batches written to the store.",
    "isthmus_apply_entries_total": "Entries applied to the store.",
    "isthmus_unapplied_bytes": "Bytes of entries held in memory until they are applied.",
    "isthmus_store_size_bytes": "Approximate size of the store on disk.",
    "isthmus_links": "Connections with other nodes of the cluster, by who dialled them.",
    "isthmus_link_frames_total": "Frames between this node and the others of its cluster, by lane and direction.",
    "isthmus_link_bytes_total": "Bytes of those frames.",
    "isthmus_link_waiting_bytes": "Bytes that wait to be written to other nodes of the cluster, by lane.",
    "isthmus_link_faults_total": "Connections closed, and messages dropped, for a fault, by reason.",
    "isthmus_link_round_trip_seconds": "Last measured round trip to another node of the cluster.",
}
"""Name -> what it counts."""
