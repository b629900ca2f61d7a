"""Checks and reads a database before it is opened as a store: cluster, format, positions.

Pure but for the reads it asks of its `Source`. Every refusal is one sentence that names the directory
and says what to do; `damaged` is that sentence for stored bytes that are not what they should be.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from isthmus.repl.model.errors import Corruption, LocalFault, WrongIdentity
from isthmus.repl.storage.slot_file import SlotFile
from isthmus.repl.store import rows
from isthmus.repl.store.checkpoint import FLOORS_NAME, Disk, Floors, encode_floors
from isthmus.repl.store.memory_index import MemoryIndexes
from isthmus.repl.store.positions import PositionTable
from isthmus.repl.store.reaped_keys import GONE, decode_gone
from isthmus.repl.store.row_source import Source

ROWS_NAME: Final = "rows"
"""The database's directory within the store's."""


def damaged(what: str, directory: Path) -> Corruption:
    """The store's bytes are damaged, and nothing else is known to help."""
    return Corruption(
        f"the store in {directory} is damaged ({what}): stop the node, move the directory away (it alone: the rest of "
        "node.data_dir stays) and start again to rebuild it from other replicas; where this node held the only one, "
        "restore the directory from a backup"
    )


def check_identity(
    source: Source, directory: Path, cluster_uuid: bytes, floors: Floors | None, *, is_empty: bool
) -> bool:
    """True for a store of this cluster, False for a database that is new. Raises WrongIdentity, LocalFault."""
    value = source.get(rows.FORMAT_KEY)
    if value is None:
        if floors is not None and floors.positions:
            raise damaged("its rows are gone, although its floors are above 0", directory)
        if not is_empty:
            raise WrongIdentity(f"the database in {directory} is not a store: give the node a directory of its own")
        return False
    if floors is None:
        raise damaged(f"it has rows, but {FLOORS_NAME}.0 and {FLOORS_NAME}.1 are missing", directory)
    version, found_uuid = rows.decode_format(value)
    if version != rows.FORMAT_VERSION:
        raise LocalFault(
            f"the store in {directory} has format {version}, this program reads {rows.FORMAT_VERSION}: "
            "start the release that wrote it"
        )
    if found_uuid != cluster_uuid:
        raise WrongIdentity(
            f"the store in {directory} belongs to cluster {found_uuid.hex()}, this node to {cluster_uuid.hex()}: "
            "give the node a directory of its own"
        )
    return True


def found_progress(source: Source, directory: Path, floors: Floors, *, trusted: bool) -> PositionTable:
    """The partitions as the applied rows and the floors have them. Raises Corruption, LocalFault."""
    at = len(rows.APPLIED_TAG)
    found = list(source.scan(rows.APPLIED_TAG, rows.after_prefix(rows.APPLIED_TAG)))
    try:
        positions = {rows.decode_u32(name[at:]): rows.decode_position(value) for name, value in found}
        in_transfer = found_marks(source)
        trusted_floors = {p: floor for p, floor in floors.positions.items() if p not in in_transfer}
        return PositionTable(positions, trusted_floors, trusted=trusted)
    except Corruption as error:
        raise damaged(str(error), directory) from error


def found_marks(source: Source) -> dict[int, tuple[rows.MarkKind, int, int]]:
    """Partition -> its transfer mark. Raises Corruption, LocalFault."""
    at = len(rows.TRANSFER_TAG)
    found = source.scan(rows.TRANSFER_TAG, rows.after_prefix(rows.TRANSFER_TAG))
    return {rows.decode_u32(name[at:]): rows.decode_mark(value) for name, value in found}


def found_remembered(source: Source, directory: Path, progress: PositionTable, offset_count: int) -> MemoryIndexes:
    """The remembered requests and reaped keys of all partitions. Those that a replay will bring again are left to it.
    Raises Corruption."""
    remembered = MemoryIndexes(offset_count)
    try:
        for partition in progress.applied_offsets():
            read_remembered(source, remembered, partition, progress.next(partition).offset)
        remembered.names.learn(source)
    except Corruption as error:
        raise damaged(str(error), directory) from error
    return remembered


def read_remembered(source: Source, remembered: MemoryIndexes, partition: int, end: int) -> None:
    """Remember what a partition's entries below `end` left of requests and reaped keys. Raises as the source does."""
    prefixes = rows.prefixes(partition)
    prefix = prefixes.request
    window = remembered.requests.of(partition)
    for name, value in source.scan(prefix, prefix + rows.U64.pack(end)):
        window.add(rows.decode_u64(name[len(prefix) :]), value)
    prefix = prefixes.cursor + GONE
    for _, value in source.scan(prefix, prefix + rows.U64.pack(end)):
        offset, payload = rows.decode_cursor(value)
        remembered.reaped.of(partition).add(offset, *decode_gone(payload))


def is_empty(db: Any) -> bool:
    """True for a database without a row."""
    with db.iterator(include_value=False) as names:
        return next(names, None) is None


def make_new(db: Any, directory: Path, cluster_uuid: bytes, slots: SlotFile, floors: Floors, disk: Disk) -> None:
    """First floors, then the row that makes the database a store; both durable. Raises OSError, LocalFault."""
    disk.write_slot(slots, encode_floors(floors))
    with db.write_batch(sync=True) as batch:
        batch.put(rows.FORMAT_KEY, rows.encode_format(cluster_uuid))
        batch.put(rows.END_KEY, b"")
    disk.sync_directory(directory / ROWS_NAME)
    disk.sync_directory(directory)
