"""Entries of the replicated log, and the key row that each carries.

A leader makes an entry once; its bytes (`wire`) are what the log appends and what followers will
append. Besides the object it carries everything that applying it would otherwise have to look up:
the key's segment (in its hash), the change of its tree leaf, the offset of the key's previous change,
and the finished key row. Rows are absolute, so applying an entry twice does no harm.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final, NamedTuple

import msgpack
from xxhash import xxh64_intdigest

from isthmus.repl.model.errors import CodecError
from isthmus.repl.model.keys import hashed_bytes
from isthmus.repl.model.objects import Summary
from isthmus.repl.model.vclock import MAX_EPOCH, MAX_OFFSET

ENTRY_VERSION: Final = 1
KEY_ROW_VERSION: Final = 1

NO_OFFSET: Final = -1
"""`previous_offset` of a key that has no change row yet."""


_pack: Final = msgpack.Packer().pack  # one for all: see repl.model.vclock


class EntryKind(IntEnum):
    """What an entry does when it is applied."""

    DATA = 1
    """Stores an object (a tombstone is an object)."""
    BARRIER = 2
    """The first entry of an epoch; changes no row but the applied offset."""
    CONFIG = 3
    """A data option of the partition, applied in order by all replicas; nothing makes one yet."""
    CURSOR = 4
    """Moves a queue's cursor by a rule or an operator's act; payload: its state."""
    REAP = 5
    """Removes the tombstone that was written at `previous_offset` (`repl.coordinator.tombstone_reaper`)."""
    LEAVING = 6
    """As DATA, of a tombstone: it stays, and will be reaped once everybody has been told so by this entry."""


class Entry(NamedTuple):
    """One entry. `previous_offset` is NO_OFFSET or the key's last change; for DATA `row` is the
    encoded KeyRow after this entry and `payload` the canonical object bytes; for REAP `row` is that of the tombstone
    which goes, empty in logs of older versions; for CURSOR `key` is
    the queue's name and `payload` its state. `origin` is the 16-byte uuid of the cluster that made the
    change; `time_ms` the leader's wall clock; `flags` is reserved, 0. `wire` is the encoded whole.
    """

    kind: int
    epoch: int
    offset: int
    flags: int
    request_id: bytes
    origin: bytes
    time_ms: int
    key_hash: int
    leaf_change: int
    previous_offset: int
    bucket: bytes
    key: bytes
    row: bytes
    payload: bytes
    wire: bytes


class KeyRow(NamedTuple):
    """The key store's row of a key: its object's summary and the offset of its latest change."""

    clock: bytes
    hash64: int
    last_modified_ms: int
    size_bytes: int
    sibling_count: int
    tombstone: bool
    offset: int


def make_entry(
    kind: EntryKind,
    epoch: int,
    offset: int,
    *,
    request_id: bytes,
    origin: bytes,
    time_ms: int,
    key_hash: int = 0,
    leaf_change: int = 0,
    previous_offset: int = NO_OFFSET,
    bucket: bytes = b"",
    key: bytes = b"",
    row: bytes = b"",
    payload: bytes = b"",
) -> Entry:
    """A new entry, encoded once."""
    wire: bytes = _pack(
        (
            ENTRY_VERSION,
            int(kind),
            epoch,
            offset,
            0,
            request_id,
            origin,
            time_ms,
            key_hash,
            leaf_change,
            previous_offset,
            bucket,
            key,
            row,
            payload,
        )
    )
    return Entry(
        kind, epoch, offset, 0, request_id, origin, time_ms, key_hash, leaf_change,
        previous_offset, bucket, key, row, payload, wire,
    )  # fmt: skip


CHANGES: Final = frozenset((int(EntryKind.DATA), int(EntryKind.LEAVING)))
"""Kinds that store an object."""

_KINDS: Final = frozenset(kind.value for kind in EntryKind)

_ENTRY_TYPES: Final = (
    int, int, int, int, int, bytes, bytes, int, int, int, int, bytes, bytes, bytes, bytes,
)  # fmt: skip

_FIELDS_MAX: Final = 32
"""Most items of a list that is believed while decoding: room is made for a list before its items are seen, and lists
may nest. An entry has 15."""


def decode_entry(wire: bytes) -> Entry:
    """The entry in `wire`. Raises CodecError for anything that `make_entry` would not write."""
    try:
        raw = msgpack.unpackb(wire, use_list=False, max_array_len=_FIELDS_MAX, max_map_len=0, max_ext_len=0)
    except (ValueError, msgpack.exceptions.UnpackException, RecursionError) as error:
        raise CodecError(f"not a log entry: {error}") from error
    if type(raw) is not tuple or not raw:
        raise CodecError("not a log entry: no list at the top")
    if raw[0] != ENTRY_VERSION:
        raise CodecError(f"log entry of version {raw[0]!r}, this program reads {ENTRY_VERSION}")
    if tuple(map(type, raw)) != _ENTRY_TYPES:
        raise CodecError("not a log entry: fields of a wrong type or number")
    _, kind, epoch, offset, _, _, _, _, _, _, previous_offset, _, _, _, _ = raw
    if not 0 < epoch <= MAX_EPOCH or not 0 <= offset <= MAX_OFFSET:
        raise CodecError("not a log entry: epoch or offset out of range")
    if kind not in _KINDS:
        raise CodecError(f"log entry of unknown kind {kind}")
    if not NO_OFFSET <= previous_offset < offset:
        raise CodecError("not a log entry: its previous change is not before it")
    return Entry._make((*raw[1:], wire))


def encode_key_row(summary: Summary, offset: int) -> bytes:
    """A key row's bytes: msgpack [version, clock, hash, modified, size, siblings, tombstone, offset]."""
    packed: bytes = _pack((KEY_ROW_VERSION, *summary, offset))
    return packed


def row_says_tombstone(row: bytes, offset: int) -> bool:
    """The tombstone flag of a key row that `encode_key_row` wrote for `offset`, without decoding it: the flag is the
    byte before the last field, whose length follows from its value. For paths that see every change."""
    if offset < 1 << 7:
        return row[-2] == 0xC3
    if offset < 1 << 16:
        return row[-3 if offset < 1 << 8 else -4] == 0xC3
    return row[-6 if offset < 1 << 32 else -10] == 0xC3


_ROW_TYPES: Final = (int, bytes, int, int, int, int, bool, int)


def decode_key_row(data: bytes) -> KeyRow:
    """The key row in `data`. Raises CodecError when it is not one."""
    try:
        raw = msgpack.unpackb(data, use_list=False, max_map_len=0, max_ext_len=0)
    except (ValueError, msgpack.exceptions.UnpackException, RecursionError) as error:
        raise CodecError(f"not a key row: {error}") from error
    if type(raw) is not tuple or tuple(map(type, raw)) != _ROW_TYPES:
        raise CodecError("not a key row: fields of a wrong type or number")
    if raw[0] != KEY_ROW_VERSION:
        raise CodecError(f"key row of version {raw[0]!r}, this program reads {KEY_ROW_VERSION}")
    if raw[2] < 0 or raw[3] < 0 or raw[4] < 0 or raw[5] < 0 or raw[7] < 0:
        raise CodecError("not a key row: a number below 0")
    return KeyRow(*raw[1:])


def leaf(bucket: bytes, key: bytes, clock: bytes, hash64: int, *, tombstone: bool) -> int:
    """A key's 64-bit contribution to its tree leaf: xxh64 of key, canonical clock and object hash; 0 of a tombstone,
    since a deleted key and one that was reaped, or never was, are the same to readers (docs/protocol.md R-TREE)."""
    if tombstone:
        return 0
    return xxh64_intdigest(hashed_bytes(bucket, key) + clock + hash64.to_bytes(8, "big"))
