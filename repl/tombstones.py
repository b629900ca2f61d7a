"""Tombstones that may go, and when: what `repl.reaping` remembers of them (pure)."""

from __future__ import annotations

from typing import NamedTuple

from repl.model.properties import TypeProperties


class Tombstone(NamedTuple):
    """A key that was deleted: since which offset, when (wall clock), whether by this cluster, and whether it is about
    to be reaped here, or in a cluster that told so."""

    bucket: bytes
    key: bytes
    offset: int
    deleted_ms: int
    ours: bool
    leaving: bool


def due_at_ms(kind: TypeProperties, found: Tombstone) -> int | None:
    """From when on a tombstone may be reaped; None: not by itself. One that leaves elsewhere leaves here."""
    properties = kind.of(found.bucket)
    if found.leaving and properties.repl_reap:
        return 0
    return None if properties.reap_after_ms is None else found.deleted_ms + properties.reap_after_ms
