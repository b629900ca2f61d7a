"""A full disk of the log: followers drop entries, and leaders hand over leadership (docs/protocol.md H38).

A leader refuses writes that it cannot append, and serves reads. A follower drops entries that it cannot append and so
acknowledges nothing, until its leader takes it out of the ISR; its process keeps running so that an operator can free
space. The log keeps a reserve: half of it for accepted entries, the rest for barriers. A replica whose disk does not
even take a barrier accepts no nomination, and the controller nominates another one.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

import structlog

from isthmus.repl.model.entry import Entry, EntryKind
from isthmus.repl.replog.log import RESERVE_BYTES
from isthmus.repl.replog.port import Replog
from isthmus.repl.runtime.partition import Partition
from isthmus.repl.runtime.unapplied import wire_bytes
from isthmus.repl.telemetry import Sample

log = structlog.get_logger(__name__)

FREE_SPACE_ADVICE: Final = f"{RESERVE_BYTES >> 20} MiB must stay free"
"""For operators: a disk with a little free space counts as full, too."""

HAND_OVER_AFTER_MS: Final = 10_000
"""How long a leader waits for space before it hands over leadership: an operator or a trim may help sooner, and the
other nodes' disks are often as full."""

HAND_OVER_MS: Final = 5_000
"""Timeout of each such hand-over; then the leader leads on and refuses writes."""

FOLLOWER_TROUBLE: Final = (
    f"out-of-storage: the log's disk is full, what the leader sends is not taken: free space ({FREE_SPACE_ADVICE})"
)

LEADER_TROUBLE: Final = f"out-of-storage: the log's disk is full, writes are refused: free space ({FREE_SPACE_ADVICE})"


class DiskFullPolicy:
    """Whether the log's disk is full, since when, and which leaderships were offered to other nodes because of it."""

    def __init__(self, replog: Replog) -> None:
        self._replog = replog
        self._since_ms: int | None = None
        self._handed_over: set[int] = set()
        """Partitions whose leadership was offered to others; once each time that the disk fills up."""
        self.refused_count = 0
        """Messages with entries or rows that were dropped."""

    def has_space(self, size_bytes: int) -> bool:
        """True when `refuses` is False for all partitions."""
        return self._replog.has_space(size_bytes)

    def refuses(self, partition: Partition, size_bytes: int) -> bool:
        """True when entries from a leader cannot be appended now; the partition's reason then says so."""
        if self.has_space(size_bytes):
            return False
        self.refused_count += 1
        if partition.disk_trouble != FOLLOWER_TROUBLE:
            partition.disk_trouble = FOLLOWER_TROUBLE
            log.error("storage.follower_stops", partition=partition.id, bytes=size_bytes)
        return True

    def refuses_entries(self, partition: Partition, entries: Sequence[Entry]) -> bool:
        """As `refuses`; barriers are taken from the reserve, since a leader serves nothing until its own is
        committed."""
        if all(entry.kind == EntryKind.BARRIER for entry in entries) and self._replog.has_space_for_barriers():
            return False
        return self.refuses(partition, wire_bytes(entries))

    def check(self, partitions: Collection[Partition], now_ms: int) -> list[Partition]:
        """Measure the disk, once a second; returns the partitions whose leadership should be handed over now. Measuring
        is how an idle log learns that other processes filled the disk."""
        self._replog.refresh_free_space()
        takes_barriers = self._replog.has_space_for_barriers()
        for partition in partitions:
            partition.replica.set_disk_full(not takes_barriers)
        if self._replog.has_space(0):
            if self._since_ms is not None:
                self._since_ms = None
                log.info("storage.room_again")
            self._handed_over.clear()
            for partition in partitions:
                partition.disk_trouble = ""
            return []
        if self._since_ms is None:
            self._since_ms = now_ms
            log.error("storage.full", advice="free space on the disk of node.data_dir")
        for partition in partitions:
            if partition.leads:
                partition.disk_trouble = LEADER_TROUBLE
            elif partition.replica.following:
                partition.disk_trouble = FOLLOWER_TROUBLE
        if now_ms - self._since_ms < HAND_OVER_AFTER_MS:
            return []
        chosen = [
            partition
            for partition in partitions
            if partition.replica.ready
            and partition.id not in self._handed_over
            and any(follower.in_sync for follower in partition.replica.followers())
        ]
        self._handed_over.update(partition.id for partition in chosen)
        return chosen

    def metrics(self) -> list[Sample]:
        """Whether the disk is full, and how many messages were dropped because of it."""
        return [
            ("isthmus_storage_full", {}, self._since_ms is not None),
            ("isthmus_storage_refused_forwards_total", {}, self.refused_count),
        ]
