"""A queue's cursor in one partition: values and encodings of CURSOR entries and soft cursors.

A CURSOR entry contains the whole state: where to start, and under which owner version. Acknowledgements move a soft
cursor. A soft cursor carries the offset of the CURSOR entry under which it was made, and the lineage of the partition.
It is valid only with that entry, in that lineage, and only moves the cursor forward. So a late soft cursor undoes no
command, and refers to the entries that it was made for (docs/protocol.md R-SOFT). Without a soft cursor the position in
the CURSOR entry is in effect, never the end of the log. A state with neither command nor gaps, and a soft cursor of
lineage 0, are written as version 1, which every version of the program reads.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final, TypeVar

import msgspec
from msgspec import Meta, Struct

from isthmus.queues.gaps import GAPS_MAX, Gaps, QueueGap
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

T = TypeVar("T")
Offset = Annotated[int, Meta(ge=0, le=MAX_OFFSET)]
Count = Annotated[int, Meta(ge=0)]


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


class _PlainState(Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=PLAIN_VERSION):
    cursor: Offset
    owner_version: Count
    owner: bytes


class _State(_PlainState, frozen=True, array_like=True, forbid_unknown_fields=True, tag=CURSOR_VERSION):
    command_version: Count
    gaps: Annotated[tuple[QueueGap, ...], Meta(max_length=GAPS_MAX)]


_STATE: Final = msgspec.msgpack.Decoder(_PlainState | _State)


def encode_state(state: CursorState) -> bytes:
    """Payload of a CURSOR entry: msgpack [version, cursor, owner version, owner uuid], and from version 2 on
    [..., command version, gaps]."""
    plain = (state.cursor, state.owner_version, state.owner)
    more = state.command_version or state.gaps
    return msgspec.msgpack.encode(_State(*plain, state.command_version, state.gaps) if more else _PlainState(*plain))


def decode_state(payload: bytes) -> CursorState:
    """The state in a CURSOR entry's payload. Raises CodecError."""
    found = _decoded(_STATE, payload, f"cursor entry of version {PLAIN_VERSION} to {CURSOR_VERSION}")
    if len(found.owner) not in (0, 16):
        raise CodecError(f"not a cursor entry: its owner has {len(found.owner)} bytes, not 16")
    if not isinstance(found, _State):
        return CursorState(found.cursor, found.owner_version, found.owner)
    if not all(gap.start < gap.end for gap in found.gaps):
        raise CodecError("not a cursor entry: a gap ends before it begins")
    return CursorState(found.cursor, found.owner_version, found.owner, found.command_version, found.gaps)


class _PlainSoft(Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=PLAIN_SOFT_VERSION):
    base: Offset
    cursor: Offset


class _Soft(_PlainSoft, frozen=True, array_like=True, forbid_unknown_fields=True, tag=SOFT_VERSION):
    lineage: Annotated[int, Meta(ge=1)]


_SOFT: Final = msgspec.msgpack.Decoder(_PlainSoft | _Soft)


def encode_soft(base: int, cursor: int, lineage: int) -> bytes:
    """A soft cursor: msgpack [version, offset of the CURSOR entry it was made under, cursor], and from version 2 on
    [..., lineage of the leadership under which it was made]."""
    return msgspec.msgpack.encode(_Soft(base, cursor, lineage) if lineage else _PlainSoft(base, cursor))


def decode_soft(payload: bytes) -> tuple[int, int, int]:
    """(base, cursor, lineage) of a soft cursor. Raises CodecError."""
    found = _decoded(_SOFT, payload, f"soft cursor of version {PLAIN_SOFT_VERSION} to {SOFT_VERSION}")
    return found.base, found.cursor, found.lineage if isinstance(found, _Soft) else 0


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


def _decoded(decoder: msgspec.msgpack.Decoder[T], payload: bytes, what: str) -> T:
    try:
        return decoder.decode(payload)
    except ValueError as error:
        raise CodecError(f"not a {what}: {error}") from error
