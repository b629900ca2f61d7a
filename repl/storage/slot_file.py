"""A small durable value in two slot files, one of which is always complete, whenever the power fails.

The older slot is overwritten and synced, and only then counts as the newer one; a torn write leaves the other slot.
Used for values that must be durable before they are acted on and are too small for the log: a node's identity and
epochs, a store's durable floors. Each slot: magic, sequence number, length, xxh64 of the rest, then msgpack.
"""

from __future__ import annotations

import errno
import os
import struct
from pathlib import Path
from typing import Any, Final

import msgpack
from xxhash import xxh64_intdigest

from isthmus.repl.model.errors import Corruption, LocalFault

_MAGIC: Final = b"ISLT"
_HEAD: Final = struct.Struct(">4sQIQ")

SLOT_BYTES_MAX: Final = 16 * 1024 * 1024
"""Largest value. A greater length in a file is damage, and nothing is allocated for it."""


def sync_directory(directory: Path) -> None:
    """Make the directory's entries durable (a new file's name is data of its directory: docs/protocol.md H37)."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


class SlotFile:
    """The value named `name` in `directory`, in files `NAME.0` and `NAME.1`. Not thread-safe."""

    def __init__(self, directory: Path, name: str) -> None:
        self._directory = directory
        self._paths = (directory / f"{name}.0", directory / f"{name}.1")
        self._sequence = 0

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
        """Write a value; durable on return. Raises LocalFault when the disk fails; the previous value is then kept."""
        sequence = self._sequence + 1
        path = self._paths[sequence % 2]
        body: bytes = msgpack.packb(value)
        assert len(body) <= SLOT_BYTES_MAX
        seed = sequence.to_bytes(8, "big") + len(body).to_bytes(4, "big")
        data = _HEAD.pack(_MAGIC, sequence, len(body), xxh64_intdigest(seed + body)) + body
        try:
            new = not path.exists()
            fd = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
            try:
                if os.write(fd, data) != len(data):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                os.ftruncate(fd, len(data))
                os.fsync(fd)
            finally:
                os.close(fd)
            if new:
                sync_directory(self._directory)
        except OSError as error:
            raise LocalFault(f"cannot write {path}: {error.strerror}") from error
        self._sequence = sequence


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
