"""A tree on disk between a clean stop and the next start, and never longer.

A file names the partition, the copy (gen) and the offset that its tree is of, and ends in a checksum. It is
removed as soon as it is read, so that whatever happens next, no older tree is ever believed; one that is damaged, of
another copy or of another offset is thrown away and the tree built anew from the key store (docs/protocol.md R-TREE).
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
"""A tree of all segments; a longer file is none of ours."""


def save_tree(directory: Path, partition: int, gen: int, offset: int, tree: HashTree) -> None:
    """Write the tree of `partition` as applied up to `offset`, durably. Raises LocalFault."""
    body: bytes = msgpack.packb([partition, gen, offset, tree.dump()])
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


def take_tree(
    directory: Path, partition: int, gen: int, offset: int, segments: tuple[int, int] = (0, SEGMENT_COUNT)
) -> HashTree | None:
    """The saved tree of `partition`, if there is one of this copy, offset and range of segments; the file is gone
    afterwards, whatever was in it. Raises LocalFault when it cannot be removed."""
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
        found, found_gen, found_offset, tree = _decoded(data, segments)
    except CodecError as error:
        log.warning("trees.file_damaged", partition=partition, error=str(error))
        return None
    if (found, found_gen, found_offset) != (partition, gen, offset):
        log.info("trees.file_stale", partition=partition, saved_at=found_offset, applied=offset)
        return None
    return tree


def forget_trees(directory: Path) -> None:
    """Remove every saved tree: what is on disk is of no use once anything is applied. Raises LocalFault."""
    try:
        for path in directory.glob("*.tree"):
            path.unlink()
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
    except (ValueError, msgpack.exceptions.UnpackException) as error:
        raise CodecError(f"not a tree file: {error}") from error
    match raw:
        case [int(partition), int(gen), int(offset), dict(branches)]:
            return partition, gen, offset, HashTree.load(branches, *segments)
    raise CodecError("not a tree file: its parts are others")


def _path(directory: Path, partition: int) -> Path:
    return directory / f"{partition}.tree"
