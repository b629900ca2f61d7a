"""Names of a cluster's metrics, with their units, and the numbers behind them at this moment.

A sample is (name, labels, value). Names ending in `_total` only rise. What people read of each is in HELP; a
metric that has no line there fails a test. Prometheus itself is the roof's affair (`node.metrics`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

Sample = tuple[str, Mapping[str, str], float]

HELP: Final[Mapping[str, str]] = {
    "isthmus_requests_total": "Items asked of this node, by kind.",
    "isthmus_reads_total": "Keys read through this node, by isolation.",
    "isthmus_refusals_total": "Items refused for now, by reason.",
    "isthmus_forwarded_items_total": "Items forwarded to the node that leads their partition, by method.",
    "isthmus_partitions": "Partitions on this node, by role of the replica.",
    "isthmus_partitions_ready": "Partitions that this node leads and serves.",
    "isthmus_partitions_following": "Partitions that this node follows, taking what their leaders send.",
    "isthmus_partitions_rolled_back": "Partitions whose record is older than what this node has seen (H32).",
    "isthmus_partitions_under_replicated": "Partitions led here with a replica out of sync.",
    "isthmus_unclean_elections": "Unclean elections that an operator has ordered of the partitions led here, ever.",
    "isthmus_isr_worst_members": "Members in sync of the partition led here that is closest to its min-ISR.",
    "isthmus_isr_worst_min_isr": "The min-ISR of that partition.",
    "isthmus_leader_moves_total": "Leaderships that balancing moved, from this node as the controller, by outcome.",
    "isthmus_leader_imbalance": "Leaderships of the busiest node above the idlest, told by the controller alone.",
    "isthmus_leader_balancing": "1 while leaderships are being moved, told by the controller alone.",
    "isthmus_replicate_total": "Batches appended here as a leader and applied.",
    "isthmus_replicate_seconds_total": "Time from append to apply of these batches.",
    "isthmus_replicate_refused_total": "Batches refused before anything was appended, by reason.",
    "isthmus_replicate_unknown_total": "Batches whose leadership ended before they were committed.",
    "isthmus_replicate_sent_entries_total": "Entries sent to followers.",
    "isthmus_replicate_read_back_entries_total": "Entries read back from the log for followers.",
    "isthmus_replicate_dropped_messages_total": "Messages to other nodes that found no connection or no room.",
    "isthmus_replicate_strange_messages_total": "Messages of other nodes for partitions that are not here.",
    "isthmus_storage_full": "1 while the log's disk has no room.",
    "isthmus_storage_refused_forwards_total": "Messages with entries that a follower could not take for lack of room.",
    "isthmus_replog_unapplied_entries": "Entries that are appended and not applied, over all partitions.",
    "isthmus_replog_size_bytes": "Size of the node's log files.",
    "isthmus_replog_files": "Number of the node's log files.",
    "isthmus_replog_written_entries_total": "Entries written to the log.",
    "isthmus_replog_batches_total": "Group commits.",
    "isthmus_replog_fsyncs_total": "Syncs of log files.",
    "isthmus_replog_fsync_seconds_total": "Time spent in syncs of log files.",
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
