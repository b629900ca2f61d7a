"""Pushes of keys that were reaped here so long ago that their clocks are forgotten (docs/protocol.md R-REAP).

The last ones are remembered with the clock that their tombstone had (`repl.store.reaped_keys`): what that has seen is
from before and says nothing new, as if the tombstone were still there. Of older ones only a sign is left: a push of a
key that is not here, but whose clock has seen a write of ours, is of a key that was reaped here. Either it was written
anew elsewhere, over the tombstone; or it was fetched before the tombstone got there, and would bring the deleted value
back (I-NO-RESURRECT). The tombstone was acknowledged before it was reaped, so whoever fetches the key again gets what
is not stale: the first push is refused as retryable, the sink does not acknowledge it, and what then comes is taken.

A tombstone of such a key, or one that leaves elsewhere of a key that never was here, is not stored: it would only have
to be reaped once more, and go round in a mesh. But values that it has seen may still come late, from a slow worker or a
third cluster, so a REAP entry of its own makes every replica remember its clock, unless it tells of no delete that is
not remembered. Pure.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from isthmus.repl.model.entry import Entry, EntryKind, encode_key_row, make_entry
from isthmus.repl.model.errors import TooLarge
from isthmus.repl.model.keys import Key
from isthmus.repl.model.objects import Object, Summary
from isthmus.repl.model.vclock import CLOCK_ENTRIES_MAX, Clock, covers, encode_clock, merge

REFUSED_MAX: Final = 10_000
"""Refused pushes of one partition that are remembered; beyond it the oldest is forgotten, and refused once more."""


class EntryHeader(NamedTuple):
    """Where an entry is to stand, and when it was made."""

    epoch: int
    offset: int
    time_ms: int


def reap_entry(stamp: EntryHeader, own: bytes, key: Key, hash64: int, previous_offset: int, gone: Summary) -> Entry:
    """A REAP entry: the tombstone `gone`, written at `previous_offset`, goes, and its clock is remembered. With
    NO_OFFSET there is none here; the clock is all."""
    return make_entry(
        EntryKind.REAP,
        stamp.epoch,
        stamp.offset,
        request_id=b"",
        origin=own,
        time_ms=stamp.time_ms,
        key_hash=hash64,
        previous_offset=previous_offset,
        bucket=key.bucket,
        key=key.key,
        row=encode_key_row(gone, max(0, previous_offset)),
    )


def gone_with(last: Clock, tombstone: Object) -> bytes | None:
    """The encoded clock to remember of a key whose last tombstone had seen `last` (() where that is not known), once
    another is pushed; None when this knows of no other delete. A restated one has a longer clock, and no more. Raises
    TooLarge for a clock that nobody could read again."""
    if all(covers(last, sibling.dot) for sibling in tombstone.siblings):
        return None
    seen = merge(last, tombstone.clock)
    if len(seen) > CLOCK_ENTRIES_MAX:
        raise TooLarge(f"the delete's vector clock would have {len(seen)} entries, at most {CLOCK_ENTRIES_MAX}")
    return encode_clock(seen)


class ReapedPushes:
    """Of one partition. A node that begins anew remembers nothing, and refuses once more."""

    __slots__ = ("_refused",)

    def __init__(self) -> None:
        self._refused: dict[tuple[int, int], None] = {}

    def comes_again(self, key_hash: int, object_hash: int) -> bool:
        """Whether this very push was refused before; it is noted otherwise."""
        name = (key_hash, object_hash)
        if name in self._refused:
            del self._refused[name]
            return True
        if len(self._refused) >= REFUSED_MAX:
            del self._refused[next(iter(self._refused))]
        self._refused[name] = None
        return False
