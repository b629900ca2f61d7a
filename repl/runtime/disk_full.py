"""A disk without room: what a follower no longer takes, and when a leader offers its place to others (H38).

A leader refuses what it cannot append, and reads go on. A follower drops what it cannot append and so acknowledges
nothing, until its leader has taken it out of the ISR; that it lives on is what lets an operator free some space. The
log keeps a reserve, so barriers and what was accepted still fit.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

import structlog

from isthmus.repl.replog.log import RESERVE_BYTES
from isthmus.repl.replog.port import Replog
from isthmus.repl.runtime.partition import Partition
from isthmus.repl.telemetry import Sample

log = structlog.get_logger(__name__)

ROOM_WANTED: Final = f"{RESERVE_BYTES >> 20} MiB must stay free"
"""For people: what a disk with some space left lacks."""

HAND_OVER_AFTER_MS: Final = 10_000
"""How long a leader waits for room before it offers its leaderships to members in sync: an operator's or a trimming's
quick relief comes first, since the others' disks are often as full. Once each time that the disk fills up."""

HAND_OVER_MS: Final = 5_000
"""How long each such attempt lasts before the leader leads on, refusing writes."""

TROUBLE: Final = (
    f"out-of-storage: the log's disk is full, what the leader sends is not taken: free space ({ROOM_WANTED})"
)


LEADER_TROUBLE: Final = f"out-of-storage: the log's disk is full, writes are refused: free space ({ROOM_WANTED})"


class DiskFullPolicy:
    """What a node remembers of its log's disk."""

    def __init__(self, replog: Replog) -> None:
        self._replog = replog
        self._since_ms: int | None = None
        self.refused_count = 0
        """Forwards of leaders that were not taken."""

    def refuses(self, partition: Partition, size_bytes: int) -> bool:
        """True when entries of a leader cannot be taken now; the partition then says so."""
        if self._replog.has_room(size_bytes):
            return False
        self.refused_count += 1
        if partition.trouble != TROUBLE:
            partition.trouble = TROUBLE
            log.error("storage.follower_stops", partition=partition.id, bytes=size_bytes)
        return True

    def look(self, partitions: Collection[Partition], now_ms: int) -> list[Partition]:
        """Look at the disk, once a second; returns the partitions whose leadership should go to somebody else now. What
        is seen is a second old: an idle log hears of a disk that others fill by being asked."""
        self._replog.look_at_space()
        if self._replog.has_room(0):
            if self._since_ms is not None:
                self._since_ms = None
                log.info("storage.room_again")
            for partition in partitions:
                partition.trouble = ""
                partition.handed_over_full = False
            return []
        if self._since_ms is None:
            self._since_ms = now_ms
            log.error("storage.full", advice="free space on the disk of node.data_dir")
        for partition in partitions:
            if partition.leads:
                partition.trouble = LEADER_TROUBLE
            elif partition.replica.following:
                partition.trouble = TROUBLE
        if now_ms - self._since_ms < HAND_OVER_AFTER_MS:
            return []
        chosen = [
            partition
            for partition in partitions
            if partition.replica.ready
            and not partition.handed_over_full
            and any(follower.in_sync for follower in partition.replica.followers())
        ]
        for partition in chosen:
            partition.handed_over_full = True
        return chosen

    def metrics(self) -> list[Sample]:
        """What a full disk has cost."""
        return [
            ("isthmus_storage_full", {}, self._since_ms is not None),
            ("isthmus_storage_refused_forwards_total", {}, self.refused_count),
        ]
