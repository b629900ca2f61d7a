"""Entries as a leader would make them, and the expected contents of a store after them."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from isthmus.repl.model.entry import NO_OFFSET, Entry, EntryKind, encode_key_row, leaf, make_entry
from isthmus.repl.model.keys import key_hash
from isthmus.repl.model.objects import Summary
from isthmus.repl.store import rows
from isthmus.repl.store.batch import fill
from isthmus.repl.store.leveldb import LevelStore, plyvel
from isthmus.repl.store.memory_index import MemoryIndexes
from isthmus.repl.store.port import PartitionStep
from isthmus.repl.store.positions import PositionTable

CLUSTER = bytes(range(16))
BOOT = "first-boot"
START_MS = 1_700_000_000_000
WINDOW_OFFSETS = 12
"""Small enough that most histories outgrow it."""


def open_store(directory: Path, **options: object) -> LevelStore:
    """A LevelStore with settings fit for tests, each of which may be given."""
    settings: dict[str, object] = {
        "cluster_uuid": CLUSTER,
        "write_buffer_bytes": 64 * 1024,
        "block_cache_bytes": 1024 * 1024,
        "boot_id": BOOT,
        "request_window_offsets": WINDOW_OFFSETS,
    }
    return LevelStore.open(directory, **{**settings, **options})  # type: ignore[arg-type]


class History:
    """One partition's log: makes entries with rising offsets that name their key's previous change."""

    def __init__(self, partition: int = 3) -> None:
        self.partition = partition
        self.entries: list[Entry] = []
        self.latest: dict[tuple[bytes, bytes], Entry] = {}
        self.epoch = 1
        self.time_ms = START_MS

    def put(self, bucket: bytes, key: bytes, payload: bytes, *, time_ms: int | None = None) -> Entry:
        """A DATA entry."""
        self.time_ms = self.time_ms + 7 if time_ms is None else time_ms
        before = self.latest.get((bucket, key))
        offset = len(self.entries)
        row = encode_key_row(Summary(b"clock-%d" % offset, offset, self.time_ms, len(payload), 1, False), offset)
        leaf_change = leaf(bucket, key, b"clock-%d" % offset, offset, tombstone=False)
        if before is not None:
            leaf_change ^= leaf(bucket, key, b"clock-%d" % before.offset, before.offset, tombstone=False)
        entry = make_entry(
            EntryKind.DATA,
            self.epoch,
            offset,
            request_id=b"r%d" % offset if offset % 3 else b"",
            origin=CLUSTER,
            time_ms=self.time_ms,
            key_hash=key_hash(bucket, key),
            leaf_change=leaf_change,
            previous_offset=NO_OFFSET if before is None else before.offset,
            bucket=bucket,
            key=key,
            row=row,
            payload=payload,
        )
        self.latest[(bucket, key)] = entry
        self.entries.append(entry)
        return entry

    def plain(self, kind: EntryKind, *, key: bytes = b"", payload: bytes = b"") -> Entry:
        """An entry that changes no key; a BARRIER begins an epoch."""
        if kind is EntryKind.BARRIER:
            self.epoch += 1
        entry = make_entry(
            kind, self.epoch, len(self.entries), request_id=b"", origin=CLUSTER, time_ms=self.time_ms,
            key=key, payload=payload,
        )  # fmt: skip
        self.entries.append(entry)
        return entry

    def step(self, from_offset: int, to_offset: int | None = None) -> PartitionStep:
        """The entries [from, to) as an apply step."""
        return PartitionStep(self.partition, self.entries[from_offset:to_offset])


class ExpectedRows:
    """The rows that an undisturbed database would hold."""

    def __init__(self) -> None:
        self.rows = {rows.FORMAT_KEY: rows.encode_format(CLUSTER), rows.END_KEY: b""}
        self._progress = PositionTable({}, {}, trusted=True)
        self._remembered = MemoryIndexes(WINDOW_OFFSETS)

    def put(self, name: bytes, value: bytes) -> None:
        """A row is written."""
        self.rows[name] = value

    def delete(self, name: bytes) -> None:
        """A row is deleted."""
        self.rows.pop(name, None)

    def write(self, steps: Iterable[PartitionStep]) -> None:
        """As in a store."""
        fill(self, list(steps), self._progress, rows.prefixes, self._remembered)


def stored_rows(directory: Path) -> dict[bytes, bytes]:
    """Every row of the closed store in `directory`."""
    db = plyvel.DB(os.fspath(directory / "rows"))
    try:
        with db.iterator() as found:
            return dict(found)
    finally:
        db.close()


def chunks(history: History, size: int) -> Iterator[PartitionStep]:
    """The whole history in steps of `size` entries."""
    for at in range(0, len(history.entries), size):
        yield history.step(at, at + size)
