"""A full disk, or another shortage: followers drop entries, and leaders hand over leadership (docs/protocol.md H38).

Short may be the bytes of the log's disk, its inodes, write access to it, or file descriptors (`repl.shortage`). A
leader refuses writes that it cannot append, and serves reads. A follower drops entries that it cannot append and so
acknowledges nothing, until its leader takes it out of the ISR; its process keeps running so that an operator can free
space. The log keeps a reserve: half of it for accepted entries, the rest for barriers. A replica whose disk does not
even take a barrier accepts no nomination, and the controller nominates another one.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

import structlog

from isthmus.repl.model.entry import Entry, EntryKind
from isthmus.repl.model.errors import OutOfStorage
from isthmus.repl.replog.log import RESERVE_BYTES
from isthmus.repl.replog.port import Replog
from isthmus.repl.runtime.partition import Partition
from isthmus.repl.runtime.unapplied import wire_bytes
from isthmus.repl.shortage import DESCRIPTORS, DescriptorReserve, open_file_count, warnings_of
from isthmus.repl.store.port import Store
from isthmus.repl.telemetry import Sample

log = structlog.get_logger(__name__)

FREE_SPACE_ADVICE: Final = f"{RESERVE_BYTES >> 20} MiB must stay free"
"""For operators: a disk with a little free space counts as full, too."""

HAND_OVER_AFTER_MS: Final = 10_000
"""How long a leader waits for space before it hands over leadership: an operator or a trim may help sooner, and the
other nodes' disks are often as full."""

HAND_OVER_MS: Final = 5_000
"""Timeout of each such hand-over; then the leader leads on and refuses writes."""

FULL: Final = f"the log's disk is full: free space ({FREE_SPACE_ADVICE})"
"""The shortage when nothing else is short."""


class DiskFullPolicy:
    """Whether the log's disk is full or something else short, since when, and which leaderships were offered to other
    nodes because of it."""

    def __init__(self, replog: Replog, store: Store, descriptors: DescriptorReserve = DESCRIPTORS) -> None:
        self._replog = replog
        self._store = store
        self._descriptors = descriptors
        self._since_ms: int | None = None
        self._nearly = False
        """A warning was logged and still holds."""
        self._handed_over: set[int] = set()
        """Partitions whose leadership was offered to others; once each time that the disk fills up."""
        self.refused_count = 0
        """Messages with entries or rows that were dropped."""

    def has_space(self, size_bytes: int) -> bool:
        """True when `refuses` is False for all partitions."""
        return not self._descriptors.short and not self._store.shortage and self._replog.has_space(size_bytes)

    @property
    def shortage(self) -> str:
        """What is short, as a clause with advice; to be asked when `has_space` is False."""
        if self._descriptors.short:
            return (
                f"no files can be opened (the limit is {self._descriptors.limit}): close connections, or raise "
                "the limit of open files of the process or of the machine"
            )
        return self._store.shortage or self._replog.shortage or FULL

    @property
    def leader_trouble(self) -> str:
        """The reason of a replica that leads."""
        return f"{OutOfStorage.reason}: writes are refused, {self.shortage}"

    @property
    def follower_trouble(self) -> str:
        """The reason of a replica that follows."""
        return f"{OutOfStorage.reason}: what the leader sends is not taken, {self.shortage}"

    def refuses(self, partition: Partition, size_bytes: int) -> bool:
        """True when entries from a leader cannot be appended now; the partition's reason then says so."""
        if self.has_space(size_bytes):
            return False
        self.refused_count += 1
        trouble = self.follower_trouble
        if not partition.disk_trouble:
            log.error("storage.follower_stops", partition=partition.id, bytes=size_bytes, why=self.shortage)
        partition.disk_trouble = trouble
        return True

    def refuses_entries(self, partition: Partition, entries: Sequence[Entry]) -> bool:
        """As `refuses`; barriers are taken from the reserve, since a leader serves nothing until its own is
        committed."""
        if all(entry.kind == EntryKind.BARRIER for entry in entries) and self.takes_barriers:
            return False
        return self.refuses(partition, wire_bytes(entries))

    def check(self, partitions: Collection[Partition], now_ms: int) -> list[Partition]:
        """Measure the disk and count descriptors, once a second; returns the partitions whose leadership should be
        handed over now. Measuring is how an idle log learns that other processes filled the disk."""
        self._replog.refresh_free_space()
        self._descriptors.look()
        self._warn()
        if self.has_space(0):
            if self._since_ms is not None:
                self._since_ms = None
                log.info("storage.room_again")
            self._handed_over.clear()
            for partition in partitions:
                partition.disk_trouble = ""
            return []
        if self._since_ms is None:
            self._since_ms = now_ms
            log.error("storage.full", why=self.shortage)
        for partition in partitions:
            if partition.leads:
                partition.disk_trouble = self.leader_trouble
            elif partition.replica.following:
                partition.disk_trouble = self.follower_trouble
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

    def _warn(self) -> None:
        """Log once that descriptors or inodes will soon be short."""
        descriptors, inodes = self._descriptors, self._replog.stats().free_inodes
        nearly = warnings_of(descriptors.limit, descriptors.reached, 0, inodes)
        if nearly and not self._nearly:
            log.warning("storage.nearly_short", why="; ".join(nearly))
        self._nearly = bool(nearly)

    @property
    def takes_barriers(self) -> bool:
        """True while the log's disk takes at least barriers."""
        return not self._store.shortage and self._replog.has_space_for_barriers()

    def metrics(self) -> list[Sample]:
        """Whether something is short, and how many messages were dropped because of it."""
        return [
            ("isthmus_storage_full", {}, self._since_ms is not None),
            ("isthmus_storage_refused_forwards_total", {}, self.refused_count),
            ("isthmus_open_files_limit", {}, self._descriptors.limit),
            ("isthmus_open_files_borrowed_total", {}, self._descriptors.borrowed_count),
            *([] if (count := open_file_count()) is None else [("isthmus_open_files", {}, count)]),
        ]
