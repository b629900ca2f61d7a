"""Files that hold trees between a clean stop and the next start.

A file has the partition, the replica's log generation (gen), the offset of its tree, and a checksum. It is removed as
soon as it is read, so that an outdated tree is never loaded. A file that is damaged, or of another generation or
offset, is dropped, and the tree is rebuilt from the key store (docs/protocol.md R-TREE).
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import msgpack
import structlog
from xxhash import xxh64_digest

from isthmus.aae.trees.tree import BRANCH_COUNT, LEAF_COUNT, HashTree
from isthmus.repl.model.errors import CodecError, LocalFault
from isthmus.repl.model.keys import SEGMENT_COUNT

log = structlog.get_logger(__name__)

_MAGIC: Final = b"ISTR2\n"
_SUM_BYTES: Final = 8

FILE_BYTES_MAX: Final = 8 * LEAF_COUNT * BRANCH_COUNT + 64 * 1024
"""Size of a tree of all segments; a longer file is not a tree."""


def save_tree(directory: Path, partition: int, log_id: int, offset: int, tree: HashTree) -> None:
    """Write a partition's tree at `offset` durably. Raises LocalFault."""
    body: bytes = msgpack.packb([partition, log_id, offset, tree.dump()])
    path = _path(directory, partition)
    fresh = path.with_suffix(".new")
    try:
        directory.mkdir(exist_ok=True)
        with fresh.open("wb") as file:
            file.write(_MAGIC + body + xxh64_digest(_MAGIC + body))
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(path)
    except OSError as error:
        raise LocalFault(f"cannot write {path}: {error.strerror}") from error


def load_and_remove_tree(
    directory: Path, partition: int, log_id: int, offset: int, segments: tuple[int, int] = (0, SEGMENT_COUNT)
) -> HashTree | None:
    """The saved tree of `partition` if it has this generation, offset and range of segments; its file is removed in
    any case. Raises LocalFault when it cannot be removed."""
    path = _path(directory, partition)
    try:
        with path.open("rb") as file:
            data = file.read(FILE_BYTES_MAX + 1)
        path.unlink()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise LocalFault(f"cannot take {path}: {error.strerror}") from error
    try:
        found, found_log_id, found_offset, tree = _decoded(data, segments)
    except CodecError as error:
        log.warning("trees.file_damaged", partition=partition, error=str(error))
        return None
    if (found, found_log_id, found_offset) != (partition, log_id, offset):
        log.info("trees.file_stale", partition=partition, saved_at=found_offset, applied=offset)
        return None
    return tree


def remove_trees(directory: Path) -> None:
    """Remove all saved trees: they are outdated once an entry is applied. Raises LocalFault."""
    try:
        for name in os.listdir(directory):  # not `glob`: from Python 3.13 on it hides what cannot be read
            if name.endswith(".tree"):
                (directory / name).unlink()
    except FileNotFoundError:
        return
    except OSError as error:
        raise LocalFault(f"cannot remove saved trees in {directory}: {error.strerror}") from error


def _decoded(data: bytes, segments: tuple[int, int]) -> tuple[int, int, int, HashTree]:
    body, checksum = data[:-_SUM_BYTES], data[-_SUM_BYTES:]
    if len(data) > FILE_BYTES_MAX or not body.startswith(_MAGIC) or xxh64_digest(body) != checksum:
        raise CodecError("not a tree file, or damaged")
    try:
        raw = msgpack.unpackb(
            body[len(_MAGIC) :], strict_map_key=False, max_map_len=BRANCH_COUNT, max_bin_len=8 * LEAF_COUNT
        )
    except (ValueError, TypeError, msgpack.exceptions.UnpackException) as error:  # TypeError: a key that has no hash
        raise CodecError(f"not a tree file: {error}") from error
    match raw:
        case [int(partition), int(log_id), int(offset), dict(branches)]:
            return partition, log_id, offset, HashTree.load(branches, *segments)
    raise CodecError("not a tree file: not partition, generation, offset and branches")


def _path(directory: Path, partition: int) -> Path:
    return directory / f"{partition}.tree"
