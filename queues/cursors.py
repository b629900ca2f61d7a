"""A queue's cursor in one partition: values and encodings of CURSOR entries and soft cursors.

A CURSOR entry contains the whole state: where to start, and under which owner version. Acknowledgements move a soft
cursor. A soft cursor carries the offset of the CURSOR entry under which it was made, and the lineage of the partition.
It is valid only with that entry, in that lineage, and only moves the cursor forward. So a late soft cursor undoes no
command, and refers to the entries that it was made for (docs/protocol.md R-SOFT). Without a soft cursor the position in
the CURSOR entry is in effect, never the end of the log. A state with neither command nor gaps, and a soft cursor of
lineage 0, are written as version 1, which every version of the program reads.
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
"""Version of a state without command and gaps."""

SOFT_VERSION: Final = 2
PLAIN_SOFT_VERSION: Final = 1
"""Version of a soft cursor of lineage 0."""

NO_OWNER: Final = b""


@dataclass(frozen=True, slots=True)
class CursorState:
    """Content of a CURSOR entry.

    All changes below `cursor` are acknowledged or in a gap. `owner` (16-byte cluster uuid, or empty) may fetch under
    `owner_version` (0: no owner yet). `command_version`: the newest cursor command that the partition has executed
    (`queues.queue_documents`; 0: none). `gaps` are not offered."""

    cursor: int = 0
    owner_version: int = 0
    owner: bytes = NO_OWNER
    command_version: int = 0
    gaps: Gaps = ()


@dataclass(frozen=True, slots=True)
class CursorPosition:
    """A queue's position in a partition: offset (`base`) and state of the last CURSOR entry, and the current cursor."""

    base: int
    state: CursorState
    cursor: int


def encode_state(state: CursorState) -> bytes:
    """Payload of a CURSOR entry: msgpack [version, cursor, owner version, owner uuid], and from version 2 on
    [..., command version, gaps]."""
    plain = (state.cursor, state.owner_version, state.owner)
    if not state.command_version and not state.gaps:
        first: bytes = msgpack.packb((PLAIN_VERSION, *plain))
        return first
    whole: bytes = msgpack.packb((CURSOR_VERSION, *plain, state.command_version, packed(state.gaps)))
    return whole


def decode_state(payload: bytes) -> CursorState:
    """The state in a CURSOR entry's payload. Raises CodecError."""
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
    return replace(state, command_version=fields[4], gaps=unpacked(fields[5]))


def encode_soft(base: int, cursor: int, lineage: int) -> bytes:
    """A soft cursor: msgpack [version, offset of the CURSOR entry it was made under, cursor], and from version 2 on
    [..., lineage of the leadership under which it was made]."""
    plain = (base, cursor)
    packed_soft: bytes = msgpack.packb((SOFT_VERSION, *plain, lineage) if lineage else (PLAIN_SOFT_VERSION, *plain))
    return packed_soft


def decode_soft(payload: bytes) -> tuple[int, int, int]:
    """(base, cursor, lineage) of a soft cursor. Raises CodecError."""
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
    """A queue's position by the rows of a store, in a partition of `lineage`; None if no CURSOR entry was ever applied.

    A soft cursor of another lineage is ignored: its offsets may now belong to other entries. Raises CodecError."""
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
