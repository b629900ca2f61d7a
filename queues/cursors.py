"""Bytes of a queue's cursor in one partition: what a CURSOR entry carries and what travels softly.

A CURSOR entry holds the whole state (replaying it is absolute): where to start, and under which owner version. What
an acknowledgement moves is soft: it carries the offset of the CURSOR entry under which it was made and the lineage of
the partition, and counts only on top of that entry, in that lineage, and only forward, so that a late soft state can
undo no decision and speaks of no entries but those it was made over (docs/protocol.md R-SOFT). An unknown cursor means
the last CURSOR entry, never "now". A state with neither decree nor gaps, and a soft cursor of a partition that nobody
was ever forced to lead, are written as version 1, which every version of the program reads. The story goes on in
`queues.window`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final

import msgpack

from isthmus.queues.gaps import Gaps, packed, unpacked
from isthmus.repl.model.errors import CodecError
from isthmus.repl.model.vclock import MAX_OFFSET
from isthmus.repl.store.port import Cursor

CURSOR_VERSION: Final = 2
PLAIN_VERSION: Final = 1
"""Of a state without decree and gaps."""

SOFT_VERSION: Final = 2
PLAIN_SOFT_VERSION: Final = 1
"""Of lineage 0."""

NO_OWNER: Final = b""


@dataclass(frozen=True, slots=True)
class CursorState:
    """What a CURSOR entry decides: all changes below `cursor` are settled; `owner` (16-byte cluster uuid, or empty)
    may fetch from here on under `owner_version` (0: nobody yet). `decree` is the newest act of an operator that it
    obeys (`queues.queue_documents`; 0: none), `gaps` what is not offered."""

    cursor: int = 0
    owner_version: int = 0
    owner: bytes = NO_OWNER
    decree: int = 0
    gaps: Gaps = ()


@dataclass(frozen=True, slots=True)
class CursorPosition:
    """Where a queue stands in a partition: the last CURSOR entry's `base` offset and state, and the cursor that
    holds."""

    base: int
    state: CursorState
    cursor: int


def encode_state(state: CursorState) -> bytes:
    """Payload of a CURSOR entry: msgpack [version, cursor, owner version, owner uuid], and from version 2 on
    [..., decree, gaps]."""
    plain = (state.cursor, state.owner_version, state.owner)
    if not state.decree and not state.gaps:
        first: bytes = msgpack.packb((PLAIN_VERSION, *plain))
        return first
    whole: bytes = msgpack.packb((CURSOR_VERSION, *plain, state.decree, packed(state.gaps)))
    return whole


def decode_state(payload: bytes) -> CursorState:
    """The state in a CURSOR entry's payload. Raises CodecError when it is not one."""
    fields = _fields(payload, "cursor entry")
    version = fields[0] if fields else None
    if version not in (PLAIN_VERSION, CURSOR_VERSION):
        raise CodecError(f"cursor entry of version {version!r:.40}, this program reads up to {CURSOR_VERSION}")
    types = (int, int, int, bytes) if version == PLAIN_VERSION else (int, int, int, bytes, int, tuple)
    if tuple(map(type, fields)) != types:
        raise CodecError("not a cursor entry: fields of a wrong type or number")
    state = CursorState(*fields[1:4])
    if not 0 <= state.cursor <= MAX_OFFSET or state.owner_version < 0 or len(state.owner) not in (0, 16):
        raise CodecError("not a cursor entry: a field is out of range")
    if version == PLAIN_VERSION:
        return state
    if fields[4] < 0:
        raise CodecError("not a cursor entry: a field is out of range")
    return replace(state, decree=fields[4], gaps=unpacked(fields[5]))


def encode_soft(base: int, cursor: int, lineage: int) -> bytes:
    """A soft cursor: msgpack [version, offset of the CURSOR entry it was made under, cursor], and from version 2 on
    [..., lineage of the leadership under which it was made]."""
    plain = (base, cursor)
    packed_soft: bytes = msgpack.packb((SOFT_VERSION, *plain, lineage) if lineage else (PLAIN_SOFT_VERSION, *plain))
    return packed_soft


def decode_soft(payload: bytes) -> tuple[int, int, int]:
    """(base, cursor, lineage) of a soft cursor. Raises CodecError when it is not one."""
    fields = _fields(payload, "soft cursor")
    version = fields[0] if fields else None
    if version not in (PLAIN_SOFT_VERSION, SOFT_VERSION):
        raise CodecError(f"soft cursor of version {version!r:.40}, this program reads up to {SOFT_VERSION}")
    if tuple(map(type, fields)) != (int,) * (3 if version == PLAIN_SOFT_VERSION else 4):
        raise CodecError("not a soft cursor: fields of a wrong type or number")
    base, cursor, lineage = fields[1], fields[2], 0 if version == PLAIN_SOFT_VERSION else fields[3]
    if not 0 <= base <= MAX_OFFSET or not 0 <= cursor <= MAX_OFFSET:
        raise CodecError("not a soft cursor: an offset is out of range")
    if version == SOFT_VERSION and lineage < 1:
        raise CodecError("not a soft cursor: its lineage is out of range")
    return base, cursor, lineage


def position_of(rows: Cursor, lineage: int) -> CursorPosition | None:
    """Where the rows of a store put the queue, in a partition of that lineage; None when no CURSOR entry was ever
    applied. A soft cursor of another lineage passes entries that may be gone, and others may stand in their places.
    Raises CodecError."""
    if rows.entry is None:
        return None
    state = decode_state(rows.entry)
    cursor = state.cursor
    if rows.soft is not None:
        base, soft, made_in = decode_soft(rows.soft)
        if base == rows.entry_offset and made_in == lineage:
            cursor = max(cursor, soft)
    return CursorPosition(rows.entry_offset, state, cursor)


def _fields(payload: bytes, what: str) -> tuple[Any, ...]:
    try:
        raw = msgpack.unpackb(payload, use_list=False, max_map_len=0, max_ext_len=0)
    except (ValueError, msgpack.exceptions.UnpackException, RecursionError) as error:
        raise CodecError(f"not a {what}: {error}") from error
    if type(raw) is not tuple:
        raise CodecError(f"not a {what}: no list at the top")
    fields: tuple[Any, ...] = raw
    return fields
