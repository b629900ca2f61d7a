"""The alarm of a metastore that lost what it had confirmed, or was restored from an older copy (docs/protocol.md H32).

The core refuses such a record by itself and says so in its reason; here it is told to people, once a partition.
"""

from __future__ import annotations

from typing import Final

import structlog

from repl.partition import Partition

log = structlog.get_logger(__name__)

ROLLED_BACK: Final = "metastore-rollback"
"""Code of the core's reason."""


class RollbackAlarm:
    """Remembers of which partitions it has been told."""

    def __init__(self) -> None:
        self._told: set[int] = set()

    def look(self, partition: Partition) -> None:
        """A record of the partition was seen."""
        reason = partition.replica.reason
        if not reason.startswith(ROLLED_BACK):
            self._told.discard(partition.id)
        elif partition.id not in self._told:
            self._told.add(partition.id)
            log.error("METASTORE_ROLLBACK", partition=partition.id, reason=reason)
