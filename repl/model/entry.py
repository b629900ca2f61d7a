"""Entries of the replicated log, and the key row that each carries.

A leader encodes an entry once; the log and the followers append these bytes (`wire`). Besides the object, an entry
carries everything that applying it would otherwise look up: the key's hash, from which its segment follows, the change
of its tree leaf, the offset of the key's previous change, and the finished key row. Rows are absolute, so an entry may
be applied twice.
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
"""`previous_offset` of a key without a change row."""


_pack: Final = msgpack.Packer().pack  # shared: see repl.model.vclock


class EntryKind(IntEnum):
    """Effect of applying an entry."""

    DATA = 1
    """Stores an object (a tombstone is an object)."""
    BARRIER = 2
    """The first entry of an epoch; only the applied offset changes."""
    CONFIG = 3
    """A data option of the partition, applied in order by all replicas; not created by any code yet."""
    CURSOR = 4
    """Moves a queue's cursor by a rule or an operator's command; the payload is the cursor's state."""
    REAP = 5
    """Removes the tombstone written at `previous_offset` (`repl.coordinator.tombstone_reaper`)."""
    LEAVING = 6
    """DATA with a tombstone that is announced to other clusters and reaped afterwards."""


class Entry(NamedTuple):
    """One entry; `wire` is its encoding.

    `previous_offset` is the key's last change or NO_OFFSET. DATA: `row` is the encoded KeyRow after this entry,
    `payload` the canonical object bytes. REAP: `row` is that of the removed tombstone, empty in logs of older versions.
    CURSOR: `key` is the queue's name, `payload` the cursor's state. `origin` is the 16-byte uuid of the cluster that
    made the change, `time_ms` the leader's wall clock. `flags` is reserved, 0.
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
    """A key's row in the store: the summary of its object and the offset of its latest change."""

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
    """Return a new entry, encoded once."""
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
"""Maximum list length that the decoder accepts: msgpack allocates a list before it reads the items, and lists may nest.
An entry has 15 items."""


def decode_entry(wire: bytes) -> Entry:
    """Return the entry in `wire`. Raises CodecError for anything that `make_entry` would not write."""
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
    return tuple.__new__(Entry, (*raw[1:], wire))  # Entry._make checks the length again


def encode_key_row(summary: Summary, offset: int) -> bytes:
    """Encode a key row: msgpack [version, clock, hash, modified, size, siblings, tombstone, offset]."""
    packed: bytes = _pack((KEY_ROW_VERSION, *summary, offset))
    return packed


def row_is_tombstone(row: bytes, offset: int) -> bool:
    """Return the tombstone flag of a key row that `encode_key_row` wrote for `offset`, without decoding it.

    The flag is the byte before the last field, whose length follows from its value. For code that handles every change.
    """
    if offset < 1 << 7:
        return row[-2] == 0xC3
    if offset < 1 << 16:
        return row[-3 if offset < 1 << 8 else -4] == 0xC3
    return row[-6 if offset < 1 << 32 else -10] == 0xC3


_ROW_TYPES: Final = (int, bytes, int, int, int, int, bool, int)


def decode_key_row(data: bytes) -> KeyRow:
    """Return the key row in `data`. Raises CodecError."""
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
    """Return a key's 64-bit contribution to its tree leaf: xxh64 of key, canonical clock and object hash.

    It is 0 for a tombstone: for readers a deleted key equals one that was reaped or never written (docs/protocol.md
    R-TREE).
    """
    if tombstone:
        return 0
    return xxh64_intdigest(hashed_bytes(bucket, key) + clock + hash64.to_bytes(8, "big"))
