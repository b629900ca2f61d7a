"""Which keys the store surely does not hold, so that a write of a new one looks nothing up.

To find out that a key is not there was a third of what the event loop spends on it. Here is a byte for each of SLOTS
slots. The name of every key row is noted under its hash before the row is written, and never taken back: a slot that is
empty proves that no row of such a name is there; one that is taken proves nothing, and LevelDB is asked. Thus it is
never wrong about an absent key, at worst of no use.

A store that is opened reads the names that are there, a slice at once and one behind each checkpoint; what is written
meanwhile is noted all the while. Until it has seen all, or where they are too many, nothing is proven. Threads: a note
is one assignment of one byte, which another's cannot undo.
"""

from __future__ import annotations

from contextlib import closing
from itertools import islice
from typing import TYPE_CHECKING, Final

from isthmus.repl.model.errors import IsthmusError
from isthmus.repl.store import rows

if TYPE_CHECKING:
    from isthmus.repl.store.row_source import Source

SLOTS: Final = 8 << 20
"""Bytes of memory, of which the kernel gives what is used. With a million keys an eighth of the absent ones is looked
up all the same, with four million four in ten; beyond that it fades, and nothing is dearer than without it."""

SLOT_MASK: Final = SLOTS - 1

LEARN_ROWS: Final = 50_000
"""Names read when a store is opened, and behind each checkpoint: some 50 ms of a thread beside the loop."""

LEARNED_MAX: Final = SLOTS // 2
"""A store that has more key rows when it is opened is not read through: too few slots would stay empty."""


class KeyExistenceFilter:
    """Of one store. `slots[hash(name) & SLOT_MASK]` is set for every key row that was ever written, as far as `whole`;
    the hash is Python's own, since nothing of this outlives the process."""

    __slots__ = ("_learned", "_next", "slots", "whole")

    def __init__(self) -> None:
        self.slots = bytearray(SLOTS)
        self.whole = False
        """True when an empty slot proves something."""
        self._next: bytes | None = rows.KEY_TAG
        self._learned = 0

    def note(self, name: bytes) -> None:
        """A key row of this name is about to be written."""
        self.slots[hash(name) & SLOT_MASK] = 1

    def learn(self, source: Source) -> None:
        """Note the next rows that are there, if not all are known; one thread at a time. What cannot be read is not
        reported here: who reads it meets it."""
        if self._next is None:
            return
        last, count, slots = self._next, 0, self.slots
        try:
            with closing(source.names(self._next, rows.after_prefix(rows.KEY_TAG))) as names:
                for last in islice(names, LEARN_ROWS):
                    slots[hash(last) & SLOT_MASK] = 1
                    count += 1
        except IsthmusError:
            self._next = None
            return
        self._learned += count
        self.whole = count < LEARN_ROWS
        self._next = None if self.whole or self._learned > LEARNED_MAX else last + b"\0"
