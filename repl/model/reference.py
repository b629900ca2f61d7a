"""What a source queue offers to a sink: a change, by reference or whole.

A reference names the key and the clock of the change, and carries one of: nothing (`to_fetch`: the
object is read when it is served), the whole object, or a whole tombstone (always whole).
"""

from __future__ import annotations

from enum import IntEnum


class ReferenceKind(IntEnum):
    """What a reference carries."""

    TO_FETCH = 0
    OBJECT = 1
    TOMBSTONE = 2
    LEAVING = 3
    """A tombstone that is about to be reaped where it comes from; empty: to be read."""
