"""Both sides of a range joined on their rows' bytes: what is equal is counted, what differs is decoded.

A key row without its last field, the offset, says of an object only what every copy of it says: where clusters are
equal so are these bytes, and no row needs to be taken apart. Runs in a task; keeps the names and rows of one chunk.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from isthmus.aae.reconcile.compare_range import RangeRows, ReadPoint, Runs, SideSpec, decoded, frames_of
from isthmus.aae.reconcile.key_rows import parsed
from isthmus.aae.row_stream.blobs import Blobs
from isthmus.aae.row_stream.wire import Rows

FIRST_OFFSET: Final = b"\0"
"""Makes a whole row of one without its offset."""


class Joined(NamedTuple):
    """`same` keys have equal rows on both sides; `left` and `right` have all others. Rows read of each side, bytes of
    both."""

    same: int
    left: RangeRows
    right: RangeRows
    left_rows: int
    right_rows: int


class _Side(NamedTuple):
    """Name -> row without its offset; rows that cannot be read are in `damaged`, whole."""

    rows: dict[bytes, bytes]
    damaged: dict[bytes, bytes]
    as_of: list[ReadPoint]
    bytes: int


def joined(left: SideSpec, right: SideSpec, runs: Runs) -> Joined:
    """The rows of some ranges. Raises as `looks.read_runs`."""
    mine, theirs = _read(left, runs), _read(right, runs)
    others = theirs.rows
    differing = {name for name, row in mine.rows.items() if others.get(name) != row}
    same = len(mine.rows) - len(differing)
    differing |= others.keys() - mine.rows.keys()
    damaged = mine.damaged.keys() | theirs.damaged.keys()
    # A row beside a damaged one is no match, whatever it says.
    same -= sum(name in mine.rows and name not in differing for name in damaged)
    differing |= damaged
    counts = [len(side.rows) + len(side.damaged) for side in (mine, theirs)]
    return Joined(same, _taken(mine, differing), _taken(theirs, differing), counts[0], counts[1])


def _read(side: SideSpec, runs: Runs) -> _Side:
    found = _Side({}, {}, [], 0)
    size = 0
    for rows in frames_of(side, runs, found.as_of):
        size += _take(found, rows)
    return found._replace(bytes=size)


def _take(found: _Side, rows: Rows) -> int:
    """A frame's rows; their bytes."""
    names, key_rows = Blobs.of(rows.names), Blobs.of(rows.key_rows)
    fields = parsed(key_rows)
    if fields is not None:
        data = key_rows.data
        starts, ends = key_rows.places[:-1].tolist(), fields.same_end.tolist()
        found.rows.update(zip(names, (data[start:end] for start, end in zip(starts, ends, strict=True)), strict=True))
    else:
        for name, row in zip(names, key_rows, strict=True):
            end = _same_end(row)
            if end is None:
                found.damaged[name] = row
            else:
                found.rows[name] = row[:end]
    return len(names.data) + len(key_rows.data)


def _same_end(row: bytes) -> int | None:
    """Where the offset of a row begins; None when it cannot be read."""
    fields = parsed(Blobs.of([row]))
    return None if fields is None else int(fields.same_end[0])


def _taken(side: _Side, names: Iterable[bytes]) -> RangeRows:
    """Some rows as a look wants them."""
    sound = [name for name in names if name in side.rows]
    hurt = [name for name in names if name in side.damaged]
    rows = dict(decoded(sound, [side.rows[name] + FIRST_OFFSET for name in sound]))
    rows.update(decoded(hurt, [side.damaged[name] for name in hurt]))
    return RangeRows(rows, side.as_of, side.bytes)
