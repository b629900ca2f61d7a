"""Row layout of the store: encoding of the keys and values of each kind of row. Pure.

A row's key begins with a tag, one byte for each kind, and the partition, so the rows of one kind and partition are
contiguous. `repl.store.leveldb` reads and writes the rows. The layout is on disk: `docs/formats.md` describes it, and
any change of it needs a new FORMAT_VERSION.

    f                                   -> version, cluster uuid                   one a database
    a | partition                       -> epoch, offset, newest time mark         applied
    o | partition | bucket | key        -> canonical object bytes                  in key order
    k | partition | segment | bucket | key -> key row                              in segment order
    n                                   -> zeros                                   keeps objects apart
    c | partition | offset              -> kind, hash, time, origin, bucket, key   in order of change
    t | partition | second              -> offset                                  time marks
    q | partition | queue               -> offset, payload of a CURSOR entry
    r | partition | offset              -> key hash, request id                    requests of the last offsets
    s | partition | queue               -> soft cursor
    x | partition                       -> kind, epoch, position                   the transfer mark
    FF                                  -> nothing                                 the end
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import Final, NamedTuple

from isthmus.repl.model.errors import Corruption
from isthmus.repl.store.port import Change

FORMAT_VERSION: Final = 2
"""Version of everything described here; a database of another version is refused at open."""

FORMAT_KEY: Final = b"f"
END_KEY: Final = b"\xff"
"""The last row, always present. plyvel's iterators end in the same way at the end of the database and at a damaged
table. Every range is followed by a row, so an iterator that reaches no further row has met damage."""

SEPARATOR_KEY: Final = b"n"
SEPARATOR: Final = bytes(4096)
"""The separator: a row between all small rows and the objects, as long as a block of LevelDB's tables (its default).

LevelDB ends a block behind the row that makes it long enough, so without it the rows before an object of 50 MB share
its block, and each scan or read of one of them reads and checks 50 MB. It is written with each large object: a table
that has such an object has the separator before it, when it is written and, since both are merged together, later."""

LARGE_OBJECT_BYTES: Final = 32 * 1024
"""Objects from which on the separator is written with them: eight blocks, so that a separator costs an eighth of the
object at most, and a block that a scan reads in vain is never much longer. A guess."""

APPLIED_TAG: Final = b"a"
OBJECT_TAG: Final = b"o"
KEY_TAG: Final = b"k"
CHANGE_TAG: Final = b"c"
MARK_TAG: Final = b"t"
CURSOR_TAG: Final = b"q"
SOFT_TAG: Final = b"s"
REQUEST_TAG: Final = b"r"
TRANSFER_TAG: Final = b"x"

ORIGIN_BYTES: Final = 16
"""An origin is a cluster's uuid."""

SEGMENT_BYTES: Final = 3
"""A segment of 2^20 takes 20 bits."""

BUCKET_END: Final = b"\0\1"
"""Ends a bucket inside a row's key. A zero byte of the bucket itself is written as 00 FF, so this pair never
occurs in it, no two (bucket, key) pairs share bytes, and rows sort as (bucket, key) do."""

_ZERO: Final = b"\0"
_ZERO_WRITTEN: Final = b"\0\xff"

U32: Final = struct.Struct(">I")
U64: Final = struct.Struct(">Q")
CHANGE_HEAD: Final = struct.Struct(">BQQ")
"""kind, key hash, leader's time in ms; the origin and the key follow."""

_CHANGE_KEY_AT: Final = CHANGE_HEAD.size + ORIGIN_BYTES
_FORMAT: Final = struct.Struct(">H16s")
_APPLIED: Final = struct.Struct(">IQq")
_MARK: Final = struct.Struct(">BIQ")

NO_MARK: Final = -1
"""`newest_mark_s` of a partition that has no time mark yet."""


class StoredPosition(NamedTuple):
    """A partition's applied position: all entries below `offset` are applied, the last of them from `epoch`.

    `newest_mark_s`: the second of the newest time mark. A replica that continues from this position sets its next
    marks at the same seconds."""

    epoch: int
    offset: int
    newest_mark_s: int


START: Final = StoredPosition(0, 0, NO_MARK)
"""The position of a partition without entries."""


class Prefixes(NamedTuple):
    """The key prefixes of a partition's rows, by kind."""

    object: bytes
    key: bytes
    change: bytes
    mark: bytes
    cursor: bytes
    soft: bytes
    request: bytes
    applied: bytes


def prefixes(partition: int) -> Prefixes:
    """The row key prefixes of `partition` (0 .. 2^32 - 1)."""
    number = U32.pack(partition)
    return Prefixes(
        OBJECT_TAG + number,
        KEY_TAG + number,
        CHANGE_TAG + number,
        MARK_TAG + number,
        CURSOR_TAG + number,
        SOFT_TAG + number,
        REQUEST_TAG + number,
        APPLIED_TAG + number,
    )


def after_prefix(prefix: bytes) -> bytes:
    """The least bytes above everything that begins with `prefix` (which is not all 0xFF)."""
    kept = prefix.rstrip(b"\xff")
    return kept[:-1] + bytes((kept[-1] + 1,))


def bucket_head(bucket: bytes) -> bytes:
    """The encoding of a bucket in a row's key, with its terminator; the key follows unencoded."""
    return bucket_start(bucket) + BUCKET_END


def bucket_start(prefix: bytes) -> bytes:
    """The encoding of the first bytes of a bucket: all buckets that begin with them, and no others, begin with it."""
    return prefix.replace(_ZERO, _ZERO_WRITTEN)


def split_tail(tail: bytes) -> tuple[bytes, bytes]:
    """(bucket, key) of the bytes `bucket_head(bucket) + key`. Raises Corruption."""
    head, end, key = tail.partition(BUCKET_END)
    if not end:
        raise Corruption(f"a row of the store names no bucket: {tail[:64].hex()}")
    if _ZERO in head:
        head = head.replace(_ZERO_WRITTEN, _ZERO)
    return head, key


def segment_name(segment: int) -> bytes:
    """The encoding of a segment (0 .. 2^20) in a key row's key."""
    return segment.to_bytes(SEGMENT_BYTES, "big")


def encode_format(cluster_uuid: bytes) -> bytes:
    """The format row: version, cluster uuid (16 bytes)."""
    assert len(cluster_uuid) == ORIGIN_BYTES
    return _FORMAT.pack(FORMAT_VERSION, cluster_uuid)


def decode_format(value: bytes) -> tuple[int, bytes]:
    """(version, cluster uuid) of a format row. Raises Corruption."""
    if len(value) != _FORMAT.size:
        raise Corruption(f"the store's format row has {len(value)} bytes, {_FORMAT.size} expected")
    version, cluster_uuid = _FORMAT.unpack(value)
    return version, cluster_uuid


def encode_position(position: StoredPosition) -> bytes:
    """The applied row's value."""
    return _APPLIED.pack(*position)


def decode_position(value: bytes) -> StoredPosition:
    """The position in an applied row. Raises Corruption."""
    if len(value) != _APPLIED.size:
        raise Corruption(f"an applied row of the store has {len(value)} bytes, {_APPLIED.size} expected")
    return StoredPosition(*_APPLIED.unpack(value))


class MarkKind(IntEnum):
    """State of a partition's rows in a state transfer."""

    EMPTYING = 0
    """The rows are being deleted."""
    WHOLE = 1
    """The rows are the effect of exactly all entries below the position."""
    PARTIAL = 2
    """The rows are those whose latest change is below the position, in some later state."""


def encode_mark(kind: MarkKind, epoch: int, position: int) -> bytes:
    """Value of a transfer mark's row."""
    return _MARK.pack(kind, epoch, position)


def decode_mark(value: bytes) -> tuple[MarkKind, int, int]:
    """(kind, epoch, position) of a transfer mark. Raises Corruption."""
    if len(value) != _MARK.size or value[0] > max(MarkKind):
        raise Corruption(
            f"a transfer mark of the store has {len(value)} bytes, {_MARK.size} expected, or no known kind"
        )
    kind, epoch, position = _MARK.unpack(value)
    return MarkKind(kind), epoch, position


def change_place(offset: int, value: bytes) -> tuple[int, bytes]:
    """(key hash, encoded bucket and key) of the change row at `offset`, to build row keys without decoding the names.
    Raises Corruption."""
    tail = value[_CHANGE_KEY_AT:]
    if BUCKET_END not in tail:
        raise Corruption(f"the change row of offset {offset} names no bucket: {value[:64].hex()}")
    return CHANGE_HEAD.unpack_from(value)[1], tail


def decode_change(offset: int, value: bytes) -> Change:
    """The change row at `offset`. Raises Corruption."""
    if len(value) < _CHANGE_KEY_AT:
        raise Corruption(f"the change row of offset {offset} has only {len(value)} bytes")
    kind, key_hash, time_ms = CHANGE_HEAD.unpack_from(value)
    bucket, key = split_tail(value[_CHANGE_KEY_AT:])
    return Change(offset, kind, key_hash, value[CHANGE_HEAD.size : _CHANGE_KEY_AT], time_ms, bucket, key)


def decode_cursor(value: bytes) -> tuple[int, bytes]:
    """(offset of the CURSOR entry, its payload) of a cursor row. Raises Corruption."""
    return decode_u64(value[: U64.size]), value[U64.size :]


def decode_u32(value: bytes) -> int:
    """A number of four bytes: a partition. Raises Corruption."""
    if len(value) != U32.size:
        raise Corruption(f"a row of the store has {len(value)} bytes where {U32.size} are expected")
    number: int = U32.unpack(value)[0]
    return number


def decode_u64(value: bytes) -> int:
    """A number of eight bytes: an offset or a second. Raises Corruption."""
    if len(value) != U64.size:
        raise Corruption(f"a row of the store has {len(value)} bytes where {U64.size} are expected")
    number: int = U64.unpack(value)[0]
    return number
