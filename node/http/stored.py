"""Stored object bytes -> clock and siblings, without the checks that bytes from strangers need.

What `KeyValue.get` returns was made by `encode_object` and checked when it came in; taking its fields costs a third of
`decode_object`. Bytes that do not even have the shape are corruption, said so, never shown.
"""

from __future__ import annotations

from typing import NamedTuple

import msgpack

from repl.model.errors import Corruption
from repl.model.objects import OBJECT_VERSION, Sibling


class Stored(NamedTuple):
    """An object as its faces show it: the encoded clock and the siblings in order of their dots."""

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
        siblings = tuple([Sibling((row[0], row[1]), *row[2:]) for row in rows])
    except (ValueError, TypeError, IndexError, msgpack.exceptions.UnpackException) as error:
        raise Corruption(f"stored bytes are not an object: {error}") from error
    if version != OBJECT_VERSION or not siblings:
        raise Corruption(f"a stored object of version {version!r}, this program reads {OBJECT_VERSION}")
    return Stored(clock, siblings)
