"""Pushes of keys that were reaped here so long ago that their clocks are forgotten (docs/protocol.md R-REAP).

The most recently reaped keys are remembered with the clock of their tombstone (`repl.store.reaped_keys`): a push whose
clock this one descends is stale, as if the tombstone were still stored. An older reaped key is recognised by the push
alone: the key is absent here, but the push's clock contains a write of this cluster. Either the key was written again
elsewhere, over the tombstone; or the push was fetched before the tombstone arrived there, and would bring the deleted
value back (I-NO-RESURRECT). The tombstone was acknowledged before it was reaped, so a second fetch of the key returns
its current version. So the first push is refused as retryable, the sink does not acknowledge it, and the next push is
accepted.

A pushed tombstone of such a key, or of a key that was never stored here, is not stored: it would have to be reaped once
more, and would circulate in a mesh. Values that its clock descends may still arrive late, from a slow worker or a third
cluster. So a REAP entry makes every replica remember its clock, unless the remembered clock already covers it. Pure.
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
    """The offset that an entry is to have, and when it was made."""

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
    """Refused pushes of one partition. They are lost at a restart, so each may be refused once more."""

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
