"""A small durable value in two slot files, one of which is always complete, whenever the power fails.

The older slot is overwritten and synced, and only then counts as the newer one; a torn write leaves the other slot.
Used for values that must be durable before they are acted on and are too small for the log: a node's identity and
epochs, a store's durable floors. Each slot: magic, sequence number, length, xxh64 of the rest, then msgpack.
"""

from __future__ import annotations

import os
import struct
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import msgpack
from xxhash import xxh64_intdigest

from isthmus.repl.model.errors import Corruption, LocalFault, StorageShort
from isthmus.repl.shortage import DESCRIPTORS, is_shortage

_MAGIC: Final = b"ISLT"
_HEAD: Final = struct.Struct(">4sQIQ")

SLOT_BYTES_MAX: Final = 16 * 1024 * 1024
"""Largest value. A greater length in a file is damage, and nothing is allocated for it."""


def sync_directory(directory: Path) -> None:
    """Make the directory's entries durable (a new file's name is data of its directory: docs/protocol.md H37). Raises
    StorageShort when it cannot be opened now, OSError."""
    try:
        fd = DESCRIPTORS.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        if is_shortage(error):
            raise StorageShort(f"directory {directory} cannot be opened: {error.strerror}") from error
        raise
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


class SlotFile:
    """The value named `name` in `directory`, in files `NAME.0` and `NAME.1`. Not thread-safe.

    Files that were written stay open, so that later writes need no descriptor."""

    def __init__(self, directory: Path, name: str) -> None:
        self._directory = directory
        self._paths = (directory / f"{name}.0", directory / f"{name}.1")
        self._sequence = 0
        self._open: dict[Path, int] = {}
        self._closers: dict[Path, Callable[[], object]] = {}
        self._named = False
        """The directory's names of both files are on disk."""

    def read(self) -> Any:
        """The newest complete value, None before the first write. Raises Corruption when both files exist and neither
        is complete."""
        best: tuple[int, Any] | None = None
        existing = 0
        for path in self._paths:
            try:
                with path.open("rb") as file:
                    data = file.read(SLOT_BYTES_MAX + _HEAD.size + 1)
            except FileNotFoundError:
                continue
            except OSError as error:
                raise LocalFault(f"cannot read {path}: {error.strerror}") from error
            existing += 1
            found = _decode(data)
            if found is not None and (best is None or found[0] > best[0]):
                best = found
        if best is None:
            if existing == len(self._paths):
                raise Corruption(
                    f"{self._paths[0]} and its twin are both damaged; restore the directory, or start with an empty one"
                )
            return None
        self._sequence = best[0]
        return best[1]

    def write(self, value: Any) -> None:
        """Write a value; durable on return. Raises StorageShort when there is no descriptor, inode or space now, also
        for the sync, and LocalFault when the disk fails. The previous value is kept: the next write overwrites and
        syncs the same slot, all of it, so that nothing rests on a sync that failed (docs/protocol.md H34)."""
        sequence = self._sequence + 1
        path = self._paths[sequence % 2]
        body: bytes = msgpack.packb(value)
        assert len(body) <= SLOT_BYTES_MAX
        seed = sequence.to_bytes(8, "big") + len(body).to_bytes(4, "big")
        data = _HEAD.pack(_MAGIC, sequence, len(body), xxh64_intdigest(seed + body)) + body
        try:
            fd = self._overwritten(path, data)
            os.fsync(fd)
            if not self._named:
                sync_directory(self._directory)
                self._named = all(each.exists() for each in self._paths)
        except OSError as error:
            kind = StorageShort if is_shortage(error) else LocalFault
            raise kind(f"cannot write {path}: {error.strerror}") from error
        self._sequence = sequence

    def _overwritten(self, path: Path, data: bytes) -> int:
        """The descriptor of the slot with `data`, unsynced. An error leaves a torn slot, as a crash does: the other one
        has the value, and this one is written again."""
        fd = self._descriptor_of(path)
        written = os.pwrite(fd, data, 0)
        while written < len(data):  # the next call says why
            written += os.pwrite(fd, data[written:], written)
        os.ftruncate(fd, len(data))
        return fd

    def _descriptor_of(self, path: Path) -> int:
        """The open file; another one is opened where somebody has put a new file in its place."""
        fd = self._open.get(path)
        if fd is not None:
            try:
                if os.path.samestat(path.stat(), os.fstat(fd)):
                    return fd
            except FileNotFoundError:
                pass
            del self._open[path]
            self._closers.pop(path)()
            self._named = False
        fd = self._open[path] = DESCRIPTORS.open(path, os.O_WRONLY | os.O_CREAT)
        self._closers[path] = weakref.finalize(self, os.close, fd)
        return fd

    def close(self) -> None:
        """Close the files; they are opened again by the next write."""
        for closer in self._closers.values():
            closer()
        self._open.clear()
        self._closers.clear()


def _decode(data: bytes) -> tuple[int, Any] | None:
    if len(data) < _HEAD.size:
        return None
    magic, sequence, length, checksum = _HEAD.unpack_from(data)
    body = data[_HEAD.size :]
    if magic != _MAGIC or len(body) != length:
        return None
    seed = sequence.to_bytes(8, "big") + length.to_bytes(4, "big")
    if xxh64_intdigest(seed + body) != checksum:
        return None
    return sequence, msgpack.unpackb(body, strict_map_key=False)
