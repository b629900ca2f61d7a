"""Kinds of references that a source queue offers to a sink.

A reference names the key and the clock of a change. It carries nothing (`to_fetch`: the object is read when it is
served), the object, or a tombstone (never read later).
"""

from __future__ import annotations

from enum import IntEnum


class ReferenceKind(IntEnum):
    """Content of a reference."""

    TO_FETCH = 0
    OBJECT = 1
    TOMBSTONE = 2
    LEAVING = 3
    """A tombstone that is about to be reaped in its cluster of origin; empty: to be read."""
