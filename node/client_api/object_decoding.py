"""Decoding of stored object bytes into clock and siblings, without the checks that foreign bytes need.

The bytes of `KeyValue.get` were made by `encode_object` and checked when they arrived; taking their fields costs a
third of `decode_object`. Bytes of another shape are corruption and raise an error.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import msgpack

from isthmus.repl.model.errors import Corruption
from isthmus.repl.model.objects import OBJECT_VERSION, Sibling

_new: Final = tuple.__new__
"""Makes a named tuple of all its fields, in order, at half the cost of its own constructor."""

_FIELDS: Final = len(Sibling._fields)


class Stored(NamedTuple):
    """A stored object: the encoded clock and the siblings in order of their dots."""

    clock: bytes
    siblings: tuple[Sibling, ...]

    @property
    def deleted(self) -> bool:
        """True when every sibling is a tombstone: the key reads as absent."""
        return all(s.tombstone for s in self.siblings)


def read_stored(payload: bytes) -> Stored:
    """The object in canonical bytes from our own store. Raises Corruption when they are not."""
    try:
        version, clock, rows = msgpack.unpackb(payload, use_list=False)
        siblings = tuple([_new(Sibling, (row[:2], *row[2:])) for row in rows])
    except (ValueError, TypeError, IndexError, msgpack.exceptions.UnpackException) as error:
        raise Corruption(f"stored bytes are not an object: {error}") from error
    for sibling in siblings:
        if len(sibling) != _FIELDS:
            raise Corruption(f"stored bytes are not an object: a sibling of {len(sibling)} fields")
    if version != OBJECT_VERSION or not siblings:
        raise Corruption(f"a stored object of version {version!r}, this program reads {OBJECT_VERSION}")
    return _new(Stored, (clock, siblings))
