"""The tables that Spark sees: their columns, and how rows of the store become columns of Arrow.

Frames are decoded whole: one call of msgpack for all key rows of a frame, arrays for the rest, so that a row costs a
few microseconds. A row that cannot be read is a row of the table all the same, with its names, `fault` saying what is
wrong, and nothing in the other columns: damage is data here, not a crash.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import msgpack
import numpy as np
import pyarrow as pa
from pyspark.sql import types as t
from pyspark.sql.pandas.types import to_arrow_schema
from xxhash import xxh64_intdigest

from aae.row_wire import Head, Rows, View
from repl.model.entry import KEY_ROW_VERSION, decode_key_row
from repl.model.errors import BadInput, CodecError, IsthmusError
from repl.model.keys import HASH_SEED
from repl.model.objects import Object, Sibling, decode_object
from repl.model.vclock import MAX_OFFSET, OFFSET_BITS, decode_clock
from repl.store.rows import BUCKET_END, SEGMENT_BYTES, split_tail

TIME_MAX_MS: Final = 253_402_300_799_999
"""The end of the year 9999: later times, which no clock of ours writes, are shown as this."""

_ENTRY: Final = t.StructType(
    [
        t.StructField("actor", t.BinaryType()),
        t.StructField("epoch", t.IntegerType()),
        t.StructField("offset", t.LongType()),
        t.StructField("timestamp_s", t.LongType()),
    ]
)
_PAIRS: Final = t.MapType(t.StringType(), t.StringType())
_CONTENT: Final = t.StructType(
    [
        t.StructField("value", t.BinaryType()),
        t.StructField("content_type", t.StringType()),
        t.StructField("content_encoding", t.StringType()),
        t.StructField("metadata", _PAIRS),
        t.StructField("indexes", _PAIRS),
        t.StructField("links", t.ArrayType(t.ArrayType(t.BinaryType()))),
        t.StructField("last_modified", t.TimestampType()),
        t.StructField("tombstone", t.BooleanType()),
        t.StructField("vtag", t.StringType()),
        t.StructField("actor", t.BinaryType()),
        t.StructField("epoch", t.IntegerType()),
        t.StructField("offset", t.LongType()),
    ]
)

KEY_COLUMNS: Final[Mapping[str, t.DataType]] = {
    "bucket_type": t.StringType(),
    "bucket": t.BinaryType(),
    "key": t.BinaryType(),
    "clock": t.BinaryType(),
    "clock_hash": t.LongType(),
    "object_hash": t.LongType(),
    "segment": t.IntegerType(),
    "last_modified": t.TimestampType(),
    "size": t.LongType(),
    "siblings": t.IntegerType(),
    "tombstone": t.BooleanType(),
    "change_offset": t.LongType(),
    "partition": t.LongType(),
    "apply_epoch": t.IntegerType(),
    "apply_offset": t.LongType(),
    "fault": t.StringType(),
}
"""Columns of the view `keys`. `clock`: its canonical bytes, equal where clocks are equal; `clock_hash`: their
`xxhash64`, as Spark computes it; `object_hash`: xxh64 (seed 0) of the object's canonical bytes; hashes are signed as
Spark's are. `change_offset`: of the key's latest change in its partition of this cluster. `partition`, `apply_epoch`,
`apply_offset`: what the row is as of. `fault`: null when the row is sound."""

ENTRY_COLUMNS: Final[Mapping[str, t.DataType]] = {"clock_entries": t.ArrayType(_ENTRY)}
"""Known in both views, chosen by the option `columns`: the clock taken apart, the counter as epoch and offset."""

OBJECT_COLUMNS: Final[Mapping[str, t.DataType]] = {
    "value": t.BinaryType(),
    "content_type": t.StringType(),
    "metadata": _PAIRS,
    "contents": t.ArrayType(_CONTENT),
    "object": t.BinaryType(),
}
"""What the view `objects` has besides: value, content type and metadata of the latest sibling that is no tombstone,
all siblings, and the object's canonical bytes, which `df.write.format("isthmus")` takes back as they are."""

_KNOWN: Final[Mapping[View, Mapping[str, t.DataType]]] = {
    View.KEYS: {**KEY_COLUMNS, **ENTRY_COLUMNS},
    View.OBJECTS: {**KEY_COLUMNS, **ENTRY_COLUMNS, **OBJECT_COLUMNS},
}

_DEFAULT: Final[Mapping[View, Sequence[str]]] = {
    View.KEYS: tuple(KEY_COLUMNS),
    View.OBJECTS: (*KEY_COLUMNS, *OBJECT_COLUMNS),
}


def schema_of(view: View, columns: Sequence[str] = ()) -> t.StructType:
    """The table of a view, with `columns` alone, in their order, when there are any. Raises BadInput."""
    known = _KNOWN[view]
    names = list(columns or _DEFAULT[view])
    unknown = [name for name in names if name not in known]
    if unknown or len(set(names)) < len(names):
        raise BadInput(f"option columns: {', '.join(unknown) or 'a name twice'}; view {view} has {', '.join(known)}")
    return t.StructType([t.StructField(name, known[name]) for name in names])


def check_schema(view: View, schema: t.StructType) -> None:
    """Raises BadInput when a schema that was asked for has other columns or types than the view."""
    for field in schema.fields:
        wanted = _KNOWN[view].get(field.name)
        if wanted is None:
            raise BadInput(f"view {view} has no column {field.name!r}; it has {', '.join(_KNOWN[view])}")
        if field.dataType != wanted:
            raise BadInput(f"column {field.name} is {wanted.simpleString()}, not {field.dataType.simpleString()}")


_FAULT: Final = "fault"


class Columns:
    """Makes record batches of frames, for one schema."""

    def __init__(self, bucket_type: str, schema: t.StructType) -> None:
        self._bucket_type = bucket_type
        self._arrow: pa.Schema = to_arrow_schema(schema, timezone="UTC")
        self._names = tuple(schema.fieldNames())
        self._objects = not OBJECT_COLUMNS.keys().isdisjoint(self._names)

    def batch(self, head: Head, rows: Rows) -> pa.RecordBatch:
        """The rows of a frame. Raises CodecError for names that are none."""
        frame = _Frame(self._bucket_type, head, rows, self._objects)
        made = {name: _MAKERS[name](frame, self._arrow.field(name).type) for name in self._names if name != _FAULT}
        if _FAULT in self._names:  # last: the others say what is wrong
            made[_FAULT] = _faults(frame, self._arrow.field(_FAULT).type)
        return pa.RecordBatch.from_arrays([made[name] for name in self._names], schema=self._arrow)


class _Frame:
    """A frame, decoded as far as its columns need."""

    def __init__(self, bucket_type: str, head: Head, rows: Rows, objects: bool) -> None:
        self.bucket_type = bucket_type
        self.head = head
        self.names = rows.names
        self.count = len(rows.names)
        self.data: Sequence[bytes] = rows.objects
        self.faults: list[str | None] | None = None
        columns = _columns(rows.key_rows)
        if columns is None:
            columns, self.faults = _one_by_one(rows.key_rows)
        self.columns: list[Sequence[Any]] = columns
        self.objects: list[Object | None] = self._objects() if objects or rows.objects else []
        self._tails: tuple[list[bytes], list[bytes]] | None = None

    def tails(self) -> tuple[list[bytes], list[bytes]]:
        """Buckets and keys."""
        if self._tails is None:
            parts = [name[SEGMENT_BYTES:].partition(BUCKET_END) for name in self.names]
            heads = [head for head, _, _ in parts]
            doubled = {head for head in set(heads) if b"\0" in head}
            if doubled:  # rare: each zero byte of a bucket is written as two
                buckets = {head: split_tail(head + BUCKET_END)[0] for head in doubled}
                heads = [buckets.get(head, head) for head in heads]
            if not all(end for _, end, _ in parts):
                raise CodecError("a row's name has no bucket")
            self._tails = heads, [key for _, _, key in parts]
        return self._tails

    def _objects(self) -> list[Object | None]:
        found: list[Object | None] = []
        for at, (data, hash64) in enumerate(zip(self.data, self.columns[_HASH], strict=True)):
            fault = ""
            obj = None
            if not data:
                fault = "the key row has no object"
            elif hash64 is not None and xxh64_intdigest(data) != hash64:
                fault = "the object is not what its key row says: its hash differs"
            try:
                obj = decode_object(data) if data else None
            except IsthmusError as error:
                fault = fault or str(error)
            if fault:
                self.note(at, fault)
            found.append(obj)
        return found

    def note(self, at: int, fault: str) -> None:
        """What is wrong with a row; the first fault stays."""
        if self.faults is None:
            self.faults = [None] * self.count
        self.faults[at] = self.faults[at] or fault


_Maker = Callable[[_Frame, pa.DataType], pa.Array]

_CLOCK: Final = 0
_HASH: Final = 1
_MODIFIED: Final = 2
_SIZE: Final = 3
_SIBLINGS: Final = 4
_TOMBSTONE: Final = 5
_OFFSET: Final = 6

_ARRAY_32: Final = b"\xdd"
_ROW_TYPES: Final = (bytes, int, int, int, int, bool, int)
_LIMITS: Final = ((_HASH, 1 << 64), (_MODIFIED, 1 << 63), (_SIZE, 1 << 63), (_SIBLINGS, 1 << 31), (_OFFSET, 1 << 63))


def _columns(key_rows: Sequence[bytes]) -> list[Sequence[Any]] | None:
    """The fields of all key rows, field by field, in one call; None when one of them is not as it should be."""
    joined = _ARRAY_32 + len(key_rows).to_bytes(4, "big") + b"".join(key_rows)
    try:
        raw = msgpack.unpackb(joined, use_list=False, max_map_len=0, max_ext_len=0)
        versions, *columns = zip(*raw, strict=True)
    except (ValueError, TypeError, msgpack.exceptions.UnpackException, RecursionError):
        return None
    if set(versions) != {KEY_ROW_VERSION} or len(columns) != len(_ROW_TYPES):
        return None
    if any(set(map(type, column)) != {kind} for column, kind in zip(columns, _ROW_TYPES, strict=True)):
        return None
    if any(min(columns[at]) < 0 or max(columns[at]) >= limit for at, limit in _LIMITS):
        return None
    return list(columns)


def _one_by_one(key_rows: Sequence[bytes]) -> tuple[list[Sequence[Any]], list[str | None]]:
    found: list[Sequence[Any]] = []
    faults: list[str | None] = []
    for data in key_rows:
        row: tuple[Any, ...] | None = None
        fault = None
        try:
            row = tuple(decode_key_row(data))
            if any(not 0 <= row[at] < limit for at, limit in _LIMITS):
                row, fault = None, "a number of the key row is out of range"
        except IsthmusError as error:
            fault = str(error)
        found.append(row if row is not None else (None,) * len(_ROW_TYPES))
        faults.append(fault)
    return list(zip(*found, strict=True)), faults


def _hashes(values: Sequence[int | None]) -> pa.Array:
    """Unsigned 64 bits as Spark's signed ones."""
    if None in values:
        return pa.array([None if v is None else v - (v >> 63 << 64) for v in values], pa.int64())
    return pa.array(np.array(values, dtype=np.uint64).view(np.int64))


def _times(values: Sequence[int | None], kind: pa.DataType) -> pa.Array:
    """Milliseconds as timestamps in microseconds."""
    if None in values:
        return pa.array([None if v is None else min(v, TIME_MAX_MS) * 1000 for v in values], pa.int64()).cast(kind)
    return pa.array(np.minimum(np.array(values, dtype=np.int64), TIME_MAX_MS) * 1000).cast(kind)


def _integers(values: Sequence[int | None], kind: pa.DataType) -> pa.Array:
    return pa.array(values, kind)


def _segments(frame: _Frame, kind: pa.DataType) -> pa.Array:
    heads = np.frombuffer(b"".join([name[:SEGMENT_BYTES] for name in frame.names]), dtype=np.uint8)
    if len(heads) != SEGMENT_BYTES * frame.count:
        raise CodecError("a row's name is too short to have a segment")
    parts = heads.reshape(-1, SEGMENT_BYTES).astype(np.int32)
    return pa.array(parts[:, 0] << 16 | parts[:, 1] << 8 | parts[:, 2], kind)


def _clock_hash(frame: _Frame, _: pa.DataType) -> pa.Array:
    clocks = frame.columns[_CLOCK]
    return _hashes([None if clock is None else xxh64_intdigest(clock, HASH_SEED) for clock in clocks])


def _clock_entries(frame: _Frame, kind: pa.DataType) -> pa.Array:
    found: list[list[dict[str, Any]] | None] = []
    for at, clock in enumerate(frame.columns[_CLOCK]):
        try:
            entries = None if clock is None else decode_clock(clock)
        except CodecError as error:
            frame.note(at, str(error))
            entries = None
        found.append(
            None
            if entries is None
            else [
                {"actor": a, "epoch": c >> OFFSET_BITS, "offset": c & MAX_OFFSET, "timestamp_s": min(s, (1 << 63) - 1)}
                for a, c, s in entries
            ]
        )
    return pa.array(found, kind)


def _latest(obj: Object | None) -> Sibling | None:
    live = obj.live if obj is not None else ()
    return max(live, key=lambda sibling: (sibling.last_modified_ms, sibling.dot)) if live else None


def _text(raw: bytes) -> str:
    """Names and headers are bytes here and text there; what is not UTF-8 is shown with replacements."""
    return raw.decode("utf-8", "replace")


def _pairs(pairs: Iterable[tuple[bytes, bytes]]) -> list[tuple[str, str]]:
    return list({_text(name): _text(value) for name, value in pairs}.items())


def _content(sibling: Sibling) -> dict[str, Any]:
    return {
        "value": None if sibling.tombstone else sibling.value,
        "content_type": _text(sibling.content_type),
        "content_encoding": _text(sibling.content_encoding),
        "metadata": _pairs(sibling.metadata),
        "indexes": _pairs(sibling.indexes),
        "links": [list(link) for link in sibling.links],
        "last_modified": min(sibling.last_modified_ms, TIME_MAX_MS) * 1000,
        "tombstone": sibling.tombstone,
        "vtag": sibling.vtag,
        "actor": sibling.dot[0],
        "epoch": sibling.dot[1] >> OFFSET_BITS,
        "offset": sibling.dot[1] & MAX_OFFSET,
    }


def _latest_of(of: Callable[[Sibling], Any]) -> _Maker:
    """A column of the latest sibling."""

    def make(frame: _Frame, kind: pa.DataType) -> pa.Array:
        latest = map(_latest, frame.objects)
        return pa.array([None if one is None else of(one) for one in latest], kind)

    return make


def _contents(frame: _Frame, kind: pa.DataType) -> pa.Array:
    found = [None if obj is None else [_content(one) for one in obj.siblings] for obj in frame.objects]
    return pa.array(found, kind)


def _field(at: int, make: Callable[[Sequence[Any], pa.DataType], pa.Array]) -> _Maker:
    """A column that is a field of the key row."""
    return lambda frame, kind: make(frame.columns[at], kind)


def _same(of: Callable[[_Frame], Any]) -> _Maker:
    """A column with one value."""
    return lambda frame, kind: pa.repeat(pa.scalar(of(frame), kind), frame.count)


def _faults(frame: _Frame, kind: pa.DataType) -> pa.Array:
    return pa.nulls(frame.count, kind) if frame.faults is None else pa.array(frame.faults, kind)


_MAKERS: Final[Mapping[str, _Maker]] = {
    "bucket_type": _same(lambda frame: frame.bucket_type),
    "bucket": lambda frame, kind: pa.array(frame.tails()[0], kind),
    "key": lambda frame, kind: pa.array(frame.tails()[1], kind),
    "clock": _field(_CLOCK, lambda values, kind: pa.array(values, kind)),
    "clock_hash": _clock_hash,
    "object_hash": _field(_HASH, lambda values, _: _hashes(values)),
    "segment": _segments,
    "last_modified": _field(_MODIFIED, _times),
    "size": _field(_SIZE, _integers),
    "siblings": _field(_SIBLINGS, _integers),
    "tombstone": _field(_TOMBSTONE, lambda values, kind: pa.array(values, kind)),
    "change_offset": _field(_OFFSET, _integers),
    "partition": _same(lambda frame: frame.head.partition),
    "apply_epoch": _same(lambda frame: frame.head.epoch),
    "apply_offset": _same(lambda frame: frame.head.offset),
    "clock_entries": _clock_entries,
    "value": _latest_of(lambda sibling: sibling.value),
    "content_type": _latest_of(lambda sibling: _text(sibling.content_type)),
    "metadata": _latest_of(lambda sibling: _pairs(sibling.metadata)),
    "contents": _contents,
    "object": lambda frame, kind: pa.array([data or None for data in frame.data], kind),
}
