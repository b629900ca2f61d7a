"""Decode the key rows of a frame column by column with numpy: some dozens of calls for thousands of rows.

A key row is a msgpack list of eight fields (`repl.model.entry.encode_key_row`). All rows are read in parallel: one
index per row, which advances by the size of its current field. One invalid row makes the result None; the caller then
decodes row by row to find it. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from isthmus.aae.row_stream.blobs import Blobs, Places
from isthmus.repl.model.entry import KEY_ROW_VERSION, decode_key_row
from isthmus.repl.model.errors import IsthmusError
from isthmus.repl.store.rows import BUCKET_END, SEGMENT_BYTES

Unsigned = npt.NDArray[np.uint64]
Bytes = npt.NDArray[np.uint8]

PAD: Final = bytes(16)
"""Behind the last row, so that eight bytes can be read wherever one may."""

_LIST_OF_8: Final = 0x98
_FALSE: Final = 0xC2
_TRUE: Final = 0xC3

_NONE: Final = 255


def _widths(kinds: dict[int, int], small: bool) -> npt.NDArray[np.uint8]:
    """First byte of a field -> bytes that say its value or length; _NONE where it begins none."""
    table = np.full(256, _NONE, np.uint8)
    if small:
        table[:0x80] = 0
    for first, width in kinds.items():
        table[first] = width
    return table


_NUMBER: Final = _widths({0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8}, small=True)
_BINARY: Final = _widths({0xC4: 1, 0xC5: 2, 0xC6: 4}, small=False)

SIGNED_MAX: Final = (1 << 63) - 1
SIBLINGS_MAX: Final = (1 << 31) - 1


class KeyRows(NamedTuple):
    """The fields of all rows of a frame. Clock n is data[clock_first[n]:clock_end[n]]; the bytes of row n before
    same_end[n] depend on its object only, and are equal in every replica of the same object."""

    clock_first: Places
    clock_end: Places
    hash64: Unsigned
    modified_ms: npt.NDArray[np.int64]
    size: npt.NDArray[np.int64]
    siblings: npt.NDArray[np.int64]
    tombstone: npt.NDArray[np.bool_]
    offset: npt.NDArray[np.int64]
    same_end: Places


class _FieldReader:
    """Reads field by field of all rows. `sound` becomes False at the first invalid field."""

    def __init__(self, rows: Blobs) -> None:
        padded = np.frombuffer(rows.data + PAD, np.uint8)
        self.bytes: Bytes = padded
        self.eights = np.lib.stride_tricks.sliding_window_view(padded, 8)
        self.last = len(rows.data)
        self.at: Places = rows.places[:-1].copy()
        self.sound = True

    def first(self) -> Bytes:
        """The byte at each index; moves behind it."""
        found: Bytes = self.bytes[self.at]
        self.at += 1
        return found

    def numbers(self, kinds: Any) -> Unsigned:
        """The number at each index, of these kinds; moves behind it."""
        first = self.first()
        widths = kinds[first]
        if (widths == _NONE).any():
            self.sound = False
            return np.zeros(len(first), np.uint64)
        raw = self.eights[self.at].view(">u8")[:, 0].astype(np.uint64)
        long = widths != 0
        found = np.where(long, raw >> ((8 - np.maximum(widths, 1)) * np.uint64(8)), first)
        self.move(widths.astype(np.int64))
        return found

    def signed(self, limit: int = SIGNED_MAX) -> npt.NDArray[np.int64]:
        """As `numbers`, with an upper limit."""
        found = self.numbers(_NUMBER)
        if len(found) and int(found.max()) > limit:
            self.sound = False
        return found.astype(np.int64)

    def move(self, by: npt.NDArray[np.int64]) -> None:
        """Move the indexes; beyond the last byte is invalid."""
        self.at += by
        if len(self.at) and (int(self.at.max()) > self.last or int(self.at.min()) < 0):
            self.sound = False
            self.at[:] = 0


def parsed(rows: Blobs) -> KeyRows | None:
    """All rows; None if one of them is invalid."""
    if not len(rows) or int(np.diff(rows.places).min()) < len(KeyRows._fields):
        return None
    reader = _FieldReader(rows)
    if (reader.first() != _LIST_OF_8).any() or (reader.first() != KEY_ROW_VERSION).any():
        return None
    lengths = reader.numbers(_BINARY)
    if not reader.sound or int(lengths.max()) > reader.last:
        return None
    clock_first = reader.at.copy()
    reader.move(lengths.astype(np.int64))
    clock_end = reader.at.copy()
    hash64 = reader.numbers(_NUMBER)
    modified_ms, size, siblings = reader.signed(), reader.signed(), reader.signed(SIBLINGS_MAX)
    flags = reader.first()
    same_end = reader.at.copy()
    offset = reader.signed()
    ends = bool((reader.at == rows.places[1:]).all())
    if not reader.sound or not ends or ((flags != _FALSE) & (flags != _TRUE)).any():
        return None
    return KeyRows(
        clock_first, clock_end, hash64, modified_ms, size, siblings, flags == _TRUE, offset, same_end
    )  # fmt: skip


def bucket_ends(names: Blobs) -> Places | None:
    """Index of each bucket's end (its key begins BUCKET_END later); None if a name has none, or a bucket contains a
    zero byte, which is escaped."""
    data = np.frombuffer(names.data + PAD, np.uint8)
    zeros = np.flatnonzero(data[: len(names.data)] == BUCKET_END[0])
    first = names.places[:-1] + SEGMENT_BYTES
    if int((names.places[1:] - first).min(initial=0)) < 0:
        return None
    at = np.searchsorted(zeros, first)
    if len(at) and int(at.max()) >= len(zeros):
        return None
    ends: Places = zeros[at]
    if (ends + len(BUCKET_END) > names.places[1:]).any() or (data[ends + 1] != BUCKET_END[1]).any():
        return None
    return ends


_LIMITS: Final = ((1, 1 << 64), (2, 1 << 63), (3, 1 << 63), (4, 1 << 31), (6, 1 << 63))
"""Index of a number in a decoded row, and its upper limit."""


def one_by_one(rows: Sequence[bytes]) -> tuple[list[Sequence[Any]], list[str | None]]:
    """(clock, hash, modified, size, siblings, tombstone and offset of all rows; the fault of each row). Rows that
    cannot be decoded have None."""
    found: list[Sequence[Any]] = []
    faults: list[str | None] = []
    for data in rows:
        row: tuple[Any, ...] | None = None
        fault = None
        try:
            row = tuple(decode_key_row(data))
            if any(not 0 <= row[at] < limit for at, limit in _LIMITS):
                row, fault = None, "a number of the key row is out of range"
        except IsthmusError as error:
            fault = str(error)
        found.append(row if row is not None else (None,) * 7)
        faults.append(fault)
    return list(zip(*found, strict=True)), faults
