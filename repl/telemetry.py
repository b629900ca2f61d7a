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
    "isthmus_partitions": "Partitions on this node, by role of the replica.",
    "isthmus_partitions_ready": "Partitions that this node leads and serves.",
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
}
"""Name -> what it counts."""
