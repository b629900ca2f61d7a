"""Chunks of rows for a state transfer, as bytes. Pure; described in `docs/formats.md`.

A chunk is the xxh64 of the rest (8 bytes) and a msgpack list. For keys: offset, change row, key row and object of each
key, in the order of offsets. For metadata: name and value of each row, the name without its partition. Frames have
checksums of their own, but both sides keep chunks outside of frames, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import msgpack
from xxhash import xxh64_digest

from isthmus.repl.model.entry import decode_key_row
from isthmus.repl.model.errors import Corruption, DamagedChunk, IsthmusError
from isthmus.repl.store import rows

CHECKSUM_BYTES: Final = 8

ROW_BYTES: Final = 64
"""Approximate bytes of a row in a chunk besides its three values: numbers, lengths, the change row's head."""

STATE_TAGS: Final = tuple(sorted((rows.MARK_TAG, rows.CURSOR_TAG, rows.SOFT_TAG, rows.REQUEST_TAG)))
"""Kinds of metadata rows, in the order in which they are transferred."""


class TransferRow(NamedTuple):
    """One key: the offset of its latest change, and its three rows' values."""

    offset: int
    change: bytes
    key_row: bytes
    object: bytes

    def place(self) -> tuple[int, bytes]:
        """`rows.change_place` of its change row. Raises DamagedChunk."""
        try:
            return rows.change_place(self.offset, self.change)
        except Corruption as error:
            raise DamagedChunk(str(error)) from error


_ROW_TYPES: Final = (int, bytes, bytes, bytes)


def encode(items: Sequence[tuple[Any, ...]]) -> bytes:
    """Encode a chunk."""
    body: bytes = msgpack.packb(items)
    return xxh64_digest(body) + body


def _decode(chunk: bytes) -> list[Any]:
    body = chunk[CHECKSUM_BYTES:]
    if chunk[:CHECKSUM_BYTES] != xxh64_digest(body):
        raise DamagedChunk("a chunk of rows fails its checksum")
    try:
        items = msgpack.unpackb(body)
    except (ValueError, msgpack.exceptions.UnpackException, RecursionError) as error:
        raise DamagedChunk(f"a chunk of rows is not msgpack: {error}") from error
    if type(items) is not list:
        raise DamagedChunk("a chunk of rows is not a list")
    return items


def decode_rows(chunk: bytes) -> list[TransferRow]:
    """Decode a chunk of keys. Raises DamagedChunk."""
    found = []
    before = -1
    for item in _decode(chunk):
        if type(item) is not list or tuple(map(type, item)) != _ROW_TYPES or item[0] <= before:
            raise DamagedChunk("a chunk of rows has one of a wrong shape")
        before = item[0]
        found.append(TransferRow._make(item))
    return found


def decode_one(chunk: bytes) -> TransferRow:
    """Decode a chunk of exactly one key. Raises DamagedChunk."""
    found = decode_rows(chunk)
    if len(found) != 1:
        raise DamagedChunk(f"a chunk of {len(found)} rows where one is expected")
    return found[0]


def offset_seen(key_row: bytes | None) -> int | None:
    """The offset in a key row that may be damaged; None when it cannot be decoded."""
    try:
        return None if key_row is None else decode_key_row(key_row).offset
    except IsthmusError:
        return None


def decode_state(chunk: bytes) -> list[tuple[bytes, bytes]]:
    """Decode a chunk of metadata: (name, value) of each row. Raises DamagedChunk."""
    found = []
    for item in _decode(chunk):
        match item:
            case [bytes(name), bytes(value)] if name[:1] in STATE_TAGS:
                found.append((name, value))
            case _:
                raise DamagedChunk("a chunk of state has a row of a wrong shape")
    return found
