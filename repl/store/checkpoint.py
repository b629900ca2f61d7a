"""Checkpoints: the durable floors of a store, and the syncs that move them.

LevelDB is written without sync, and does not sync its old `.log` when it switches memtables: after a power loss the
there may be applied rows above missing ones (docs/protocol.md H36). So a checkpoint takes each partition's written
position, syncs every existing `.log`, then the directory, and only then writes those positions as the durable floors.
A log that is gone by then was compacted into tables, which LevelDB syncs; a newer log holds only later rows.

The floors are in two slot files beside the database (`repl.storage.slot_file`), with the boot id under which the rows
were last known to be complete, and whether the store was closed cleanly. This module knows files, not LevelDB.
"""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from isthmus.repl.model.errors import Corruption, LocalFault, StorageShort
from isthmus.repl.shortage import DESCRIPTORS, is_shortage, lacks_descriptors
from isthmus.repl.storage.slot_file import SlotFile, sync_directory
from isthmus.repl.store.rows import StoredPosition

FLOORS_VERSION: Final = 1
"""Version of the value in the slots; another one is refused at open."""

FLOORS_NAME: Final = "floors"
"""The slots are `floors.0` and `floors.1` in the store's directory."""

PROBE_NAME: Final = "probe"
"""A file beside the slots that is there only while the disk is tried."""


@dataclass(frozen=True, slots=True)
class Floors:
    """Content of the slots: the durable floors by partition, and how the store was last closed."""

    boot_id: str
    clean: bool
    positions: dict[int, StoredPosition] = field(default_factory=dict)


class Disk:
    """The durable operations of a checkpoint, in an order that matters. All raise OSError or LocalFault, and
    StorageShort where nothing was synced or written."""

    def sync_file(self, path: Path) -> None:
        """Sync a file's bytes and length."""
        try:
            descriptor = DESCRIPTORS.open(path, os.O_RDONLY)
        except OSError as error:
            if is_shortage(error):
                raise StorageShort(f"{path} cannot be opened: {error.strerror}") from error
            raise
        try:
            os.fdatasync(descriptor)
        finally:
            os.close(descriptor)

    def sync_directory(self, path: Path) -> None:
        """Sync a directory's names."""
        sync_directory(path)

    def probe(self, directory: Path, size_bytes: int) -> None:
        """Raise StorageShort if a file of `size_bytes` cannot be created, written and synced now; OSError."""
        path = directory / PROBE_NAME
        try:
            descriptor = DESCRIPTORS.open(path, os.O_WRONLY | os.O_CREAT)
            try:
                os.posix_fallocate(descriptor, 0, size_bytes)
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
                path.unlink()
        except OSError as error:
            if is_shortage(error):
                raise StorageShort(f"{path} cannot be written: {error.strerror}") from error
            raise

    def write_slot(self, slots: SlotFile, value: Any) -> None:
        """Write a value to the older slot, durably."""
        slots.write(value)


def encode_floors(floors: Floors) -> tuple[Any, ...]:
    """Encode the slots' value: version, boot id, clean, rows of (partition, epoch, offset, newest time mark)."""
    rows = [(partition, *position) for partition, position in sorted(floors.positions.items())]
    return FLOORS_VERSION, floors.boot_id, floors.clean, rows


def decode_floors(value: Any) -> Floors:
    """Decode the slots' value. Raises Corruption, LocalFault for another version."""
    match value:
        case [int(version), *_] if version != FLOORS_VERSION:
            raise LocalFault(f"the store's floors are of version {version}, this program reads {FLOORS_VERSION}")
        case [_, str(boot_id), bool(clean), list(rows)]:
            positions = {}
            for row in rows:
                match row:
                    case [int(partition), int(epoch), int(offset), int(newest_mark_s)]:
                        positions[partition] = StoredPosition(epoch, offset, newest_mark_s)
                    case _:
                        raise Corruption("the store's floors have a row of a wrong shape")
            return Floors(boot_id, clean, positions)
    raise Corruption("the store's floors have a wrong shape")


def read_floors(slots: SlotFile) -> Floors | None:
    """The floors in the slots, None before the first write. Raises Corruption, LocalFault."""
    value = slots.read()
    return None if value is None else decode_floors(value)


def sync_rows(disk: Disk, rows_directory: Path) -> None:
    """Sync everything that was written before to the database in `rows_directory`. Raises OSError when a sync failed
    (then no later one proves anything of these files), and StorageShort when one could not begin: it may be begun
    again."""
    try:
        # not `glob`, which from Python 3.13 on takes a directory that it cannot read for an empty one
        for name in sorted(name for name in os.listdir(rows_directory) if name.endswith(".log")):
            with suppress(FileNotFoundError):  # compacted into a synced table since it was listed
                disk.sync_file(rows_directory / name)
        disk.sync_directory(rows_directory)
    except OSError as error:
        if lacks_descriptors(error):  # also for the listing
            raise StorageShort(f"the store cannot be synced now: {error}") from error
        raise
