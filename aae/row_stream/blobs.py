"""Many byte strings in one buffer, with their lengths. Pure.

The format of rows on the wire: a node joins what it read, and a batch job makes columns of the joined bytes without
splitting them (`aae.reconcile.arrow_rows`). Also usable as a sequence of bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, Final, overload

import numpy as np
import numpy.typing as npt

from isthmus.repl.model.errors import CodecError

LENGTHS: Final = "<u4"
"""Lengths on the wire: 32 bits, little-endian, the byte order of the machines that read them."""

LENGTH_BYTES: Final = 4

Places = npt.NDArray[np.int64]


class Blobs(Sequence[bytes]):
    """`data` holds `len(self)` strings; string n is [places[n], places[n + 1])."""

    __slots__ = ("data", "places")

    def __init__(self, data: bytes, places: Places) -> None:
        self.data = data
        self.places = places

    @staticmethod
    def of(items: Sequence[bytes]) -> Blobs:
        """A sequence as Blobs."""
        if isinstance(items, Blobs):
            return items
        return Blobs(b"".join(items), _places(np.fromiter(map(len, items), np.int64, len(items))))

    @staticmethod
    def parsed(data: object, lengths: object) -> Blobs:
        """Decode two fields of a frame. Raises CodecError."""
        if not isinstance(data, bytes) or not isinstance(lengths, bytes) or len(lengths) % LENGTH_BYTES:
            raise CodecError("not joined strings: bytes and their lengths")
        places = _places(np.frombuffer(lengths, LENGTHS))
        if places[-1] != len(data):
            raise CodecError(f"joined strings of {places[-1]} bytes, {len(data)} came")
        return Blobs(data, places)

    @overload
    def __getitem__(self, at: int) -> bytes: ...
    @overload
    def __getitem__(self, at: slice) -> list[bytes]: ...
    def __getitem__(self, at: int | slice) -> bytes | list[bytes]:
        if isinstance(at, slice):
            return [self[one] for one in range(*at.indices(len(self)))]
        count = len(self)
        if not -count <= at < count:
            raise IndexError(at)
        at %= count
        return self.data[self.places[at] : self.places[at + 1]]

    def __len__(self) -> int:
        return len(self.places) - 1

    def __iter__(self) -> Iterator[bytes]:
        data = self.data
        places: list[int] = self.places.tolist()
        return (data[start:end] for start, end in pairwise(places))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]


def lengths_of(items: Sequence[bytes]) -> bytes:
    """The lengths as encoded on the wire."""
    return np.fromiter(map(len, items), LENGTHS, len(items)).tobytes()


def _places(lengths: npt.NDArray[Any]) -> Places:
    places = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=places[1:])
    return places
