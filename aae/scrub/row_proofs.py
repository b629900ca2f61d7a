"""Predicates over rows that prove which one is damaged; used by `aae.scrub.row_repair`.

A key row is inconsistent if it cannot be decoded, differs from the row that its object yields, or has an offset whose
change row is of another key. Reads one snapshot only. A `tail` is bucket and key as encoded in a row's name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from typing import Final

from isthmus.aae.trees.tree_builder import row_leaf
from isthmus.repl.model.entry import encode_key_row
from isthmus.repl.model.errors import BadInput, CodecError, Corruption
from isthmus.repl.model.objects import summarize_encoded
from isthmus.repl.store import row_codec
from isthmus.repl.store.port import Change, DamagedChange, Snapshot, Store
from isthmus.repl.store.rows import SEGMENT_BYTES, change_place, split_tail

ROWS_MAX: Final = 5_000
"""Rows of a segment that can be repaired, about 1 MB without objects: reached at 5 billion keys in a tree."""


def segment_rows(snapshot: Snapshot, segment: int) -> dict[bytes, bytes]:
    """{tail: key row} of a segment. Raises BadInput for more than ROWS_MAX."""
    with closing(snapshot.segments([(segment, segment + 1)])) as parts:
        rows = {name[SEGMENT_BYTES:]: row for name, row in next(parts)}
    if len(rows) > ROWS_MAX:
        raise BadInput(f"segment {segment} has {len(rows)} rows, {ROWS_MAX} at most are repaired")
    return rows


def newest_changes(store: Store, partition: int, tails: Iterable[bytes]) -> dict[bytes, Change]:
    """{tail: change row} of those keys that have one. Reads the whole change index; skips damaged rows."""
    wanted = {split_tail(tail): tail for tail in tails}
    found: dict[bytes, Change] = {}
    offset = 0
    while True:
        try:
            changes: Sequence[Change] = store.changes(partition, offset, 1_000)
            if not changes:
                return found
            offset = changes[-1].offset + 1
        except DamagedChange as error:
            changes, offset = error.before, error.offset + 1
        for change in changes:
            tail = wanted.get((change.bucket, change.key))
            if tail is not None:
                found[tail] = change


def key_row_of(data: bytes, offset: int) -> bytes:
    """The key row of an encoded object that was stored at `offset`. Raises CodecError."""
    return encode_key_row(summarize_encoded(data), offset)


def is_consistent(snapshot: Snapshot, tail: bytes, row: bytes) -> bool:
    """True if the key row matches its object and the change row at its offset is of the same key."""
    offset = row_codec.offset_seen(row)
    if offset is None or snapshot.named_object(tail) is None:
        return False
    try:
        found = row_codec.decode_one(snapshot.rows(offset, 1).rows)
    except Corruption:  # the change row is damaged
        return False
    return row_tail(found) == tail and matches_object(found)


def matches_object(row: row_codec.TransferRow) -> bool:
    """True if the key row is the one that its object yields."""
    try:
        return key_row_of(row.object, row.offset) == row.key_row
    except CodecError:
        return False


def row_tail(row: row_codec.TransferRow) -> bytes:
    """The tail of a row's key, read from its change row."""
    return change_place(row.offset, row.change)[1]


def fold_rows(rows: Mapping[bytes, bytes]) -> int | None:
    """The leaf of a segment with these rows; None if one cannot be decoded."""
    leaf = 0
    try:
        for tail, row in rows.items():
            leaf ^= row_leaf(*split_tail(tail), row)
    except Corruption:
        return None
    return leaf
