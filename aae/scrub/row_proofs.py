"""Is a key row what its object says, and what do rows add up to? Proofs for whoever mends rows
(`aae.scrub.row_repair`).

A row contradicts itself when it cannot be read, is not what its object would make it, or names an offset whose change
is of another key. Reads of one snapshot only. A name here is bucket and key as they stand in a row's name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from typing import Final

from isthmus.aae.trees.tree_builder import leaf_of_row
from isthmus.repl.model.entry import encode_key_row
from isthmus.repl.model.errors import BadInput, CodecError, Corruption
from isthmus.repl.model.objects import summarize_encoded
from isthmus.repl.store import row_codec
from isthmus.repl.store.port import Change, DamagedChange, Snapshot, Store
from isthmus.repl.store.rows import SEGMENT_BYTES, change_place, split_tail

ROWS_MAX: Final = 5_000
"""Rows of a segment that are mended: about 1 MB without objects, and 5 billion keys in a tree. Larger ones are left."""


def rows_of(snapshot: Snapshot, segment: int) -> dict[bytes, bytes]:
    """The key rows of a segment, by name. Raises BadInput for more than ROWS_MAX."""
    with closing(snapshot.segments([(segment, segment + 1)])) as parts:
        rows = {name[SEGMENT_BYTES:]: row for name, row in next(parts)}
    if len(rows) > ROWS_MAX:
        raise BadInput(f"segment {segment} has {len(rows)} rows, {ROWS_MAX} at most are mended")
    return rows


def newest_changes(store: Store, partition: int, tails: Iterable[bytes]) -> dict[bytes, Change]:
    """The change row of each of these keys that has one: reads the whole change index, past damaged rows."""
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


def made_of(data: bytes, offset: int) -> bytes:
    """The key row of an object that was stored at `offset`. Raises CodecError."""
    return encode_key_row(summarize_encoded(data), offset)


def is_complete(snapshot: Snapshot, tail: bytes, row: bytes) -> bool:
    """Whether a key row is what its object says, and the change at its offset is the key's."""
    offset = row_codec.offset_seen(row)
    if offset is None or snapshot.named_object(tail) is None:
        return False
    try:
        found = row_codec.decode_one(snapshot.rows(offset, 1).rows)
    except Corruption:  # another key's, which is damaged itself
        return False
    return tail_of(found) == tail and says_so(found)


def says_so(row: row_codec.TransferRow) -> bool:
    """Whether a key row is what its object says."""
    try:
        return made_of(row.object, row.offset) == row.key_row
    except CodecError:
        return False


def tail_of(row: row_codec.TransferRow) -> bytes:
    """Of which key a row is."""
    return change_place(row.offset, row.change)[1]


def fold(rows: Mapping[bytes, bytes]) -> int | None:
    """What the rows make their leaf; None when one cannot be read."""
    leaf = 0
    try:
        for tail, row in rows.items():
            leaf ^= leaf_of_row(*split_tail(tail), row)
    except Corruption:
        return None
    return leaf
