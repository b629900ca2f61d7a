"""A filter that proves the absence of keys, so that a write of a new key needs no lookup.

Finding out that a key is absent took a third of the event loop's time for its write. The filter has one byte for each
of SLOTS slots. The name of every key row is noted under its hash before the row is written, and never removed: an empty
slot proves that no such row exists; a set one proves nothing, and LevelDB is asked.

A store that is opened reads its key names, one part at once and one after each checkpoint; new rows are noted
meanwhile. Until all are read, or where there are too many, nothing is proven. Threads: noting is one assignment of one
byte, which another thread's cannot undo.
"""

from __future__ import annotations

import mmap
from contextlib import closing
from itertools import islice
from typing import TYPE_CHECKING, Final

from isthmus.repl.model.errors import IsthmusError
from isthmus.repl.store import rows

if TYPE_CHECKING:
    from isthmus.repl.store.row_source import Source

SLOTS: Final = 8 << 20
"""Bytes of memory; the kernel provides only used pages. With a million keys an eighth of the absent ones is still
looked up, with four million four in ten; beyond that the filter loses its use, at no cost."""

SLOT_MASK: Final = SLOTS - 1

LEARN_ROWS: Final = 50_000
"""Names read when a store is opened, and after each checkpoint: some 50 ms of a thread beside the loop."""

LEARNED_MAX: Final = SLOTS // 2
"""The key names of a larger store are not read: too few slots would stay empty."""


class KeyExistenceFilter:
    """Filter of one store. `slots[hash(name) & SLOT_MASK]` is set for every key row ever written, once `whole`; the
    hash is Python's own, since the filter lives only as long as the process."""

    __slots__ = ("_learned", "_next", "slots", "whole")

    def __init__(self) -> None:
        self.slots: Final = mmap.mmap(-1, SLOTS, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        """Zeros that take memory by pages, when they are written; a bytearray would write all of them at once."""
        self.whole = False
        """True when an empty slot proves the absence of its keys."""
        self._next: bytes | None = rows.KEY_TAG
        self._learned = 0

    def note(self, name: bytes) -> None:
        """Note a key row before it is written."""
        self.slots[hash(name) & SLOT_MASK] = 1

    def learn(self, source: Source) -> None:
        """Note the next existing rows, until all are; one thread at a time. Read errors end this without a report: the
        next reader of the row gets them."""
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
