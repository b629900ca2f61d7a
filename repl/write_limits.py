"""Limits of one write: the node's own and its bucket's, refused above the one, reported above the other. Pure.

A bucket's properties can only be stricter than `limits` of the node's file, for those are what other nodes and the
window take. Pushes are reported and never refused for their siblings: what another cluster has must be kept.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from repl.model.errors import BadInput, TooLarge
from repl.model.keys import Key
from repl.model.properties import Properties


class TooManySiblings(BadInput):
    """The write would leave more siblings than limits.siblings; read, resolve, and write with the context."""

    reason = "too-many-siblings"


INTEGERS_BYTES: Final = 64
"""By how much two entries of one object may differ in length: seven integers (epoch, offset twice, previous offset,
time, hash of the leaf) that take one to nine bytes each, and a request id's place."""


class WriteLimits(NamedTuple):
    """Limits of one write, from the settings."""

    object_bytes: int
    sibling_count: int
    entry_bytes: int
    """Longest entry, so the largest object with all its siblings, that other nodes take."""

    object_warn_bytes: int = 0
    """Larger values are reported; 0: none."""

    sibling_warn_count: int = 0
    """Objects with more siblings are reported; 0: none."""

    @property
    def made_bytes(self) -> int:
        """Longest entry of an object that is made here, by a write or a merge. Any cluster with the same settings then
        takes it as a push: there the entry differs by its integers alone."""
        return self.entry_bytes - INTEGERS_BYTES


class Warned(NamedTuple):
    """An object that was taken although it is above what is sound: `what` is "object-size" or "siblings"."""

    what: str
    key: Key
    found: int
    limit: int


def check_size(size: int, key: Key, limits: WriteLimits, properties: Properties, warned: list[Warned]) -> None:
    """Raises TooLarge for a value above a limit; one above the warning goes into `warned`."""
    limit, name = limits.object_bytes, "limits.object_size"
    if 0 < properties.max_object_bytes < limit:
        limit, name = properties.max_object_bytes, f"max_object_size of bucket {key.bucket!r}"
    if size > limit:
        raise TooLarge(f"value of {size} bytes, {name} is {limit}")
    warn = properties.warn_object_bytes or limits.object_warn_bytes
    if 0 < warn < size:
        warned.append(Warned("object-size", key, size, warn))


def check_siblings(
    count: int, key: Key, limits: WriteLimits, properties: Properties, warned: list[Warned]
) -> TooManySiblings | None:
    """The refusal of an object with that many siblings; None, and as `note_siblings`, when it is within the limits."""
    limit, name = limits.sibling_count, "limits.siblings"
    if 0 < properties.max_siblings < limit:
        limit, name = properties.max_siblings, f"max_siblings of bucket {key.bucket!r}"
    if count > limit:
        return TooManySiblings(
            f"the write would make {count} siblings, {name} is {limit}: read the key and write with its X-Riak-Vclock"
        )
    note_siblings(count, key, limits, properties, warned)
    return None


def note_siblings(count: int, key: Key, limits: WriteLimits, properties: Properties, warned: list[Warned]) -> None:
    """An object with more siblings than the warning goes into `warned`."""
    warn = properties.warn_siblings or limits.sibling_warn_count
    if 0 < warn < count:
        warned.append(Warned("siblings", key, count, warn))
