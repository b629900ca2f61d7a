"""The tables that Spark sees: their columns, and the conversion of stored rows to Arrow columns."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import types as t
from pyspark.sql.pandas.types import to_arrow_schema
from xxhash import xxh64_intdigest

from isthmus.aae.reconcile.key_rows import KeyRows, bucket_ends, one_by_one, parsed
from isthmus.aae.row_stream.blobs import Blobs, Places
from isthmus.aae.row_stream.wire import Head, Rows, RowView, why_no_object
from isthmus.repl.model.errors import BadInput, CodecError, IsthmusError
from isthmus.repl.model.keys import HASH_SEED
from isthmus.repl.model.objects import Object, Sibling, decode_object
from isthmus.repl.model.vclock import MAX_OFFSET, OFFSET_BITS, decode_clock
from isthmus.repl.store.rows import BUCKET_END, SEGMENT_BYTES, split_tail

TIME_MAX_MS: Final = 253_402_300_799_999
"""The end of the year 9999; later times are shown as this."""

_ENTRY: Final = t.StructType(
    [
        t.StructField("actor", t.BinaryType()),
        t.StructField("epoch", t.IntegerType()),
        t.StructField("offset", t.LongType()),
        t.StructField("timestamp_s", t.LongType()),
    ]
)
_PAIRS: Final = t.MapType(t.StringType(), t.StringType())
_LISTS: Final = t.MapType(t.StringType(), t.ArrayType(t.StringType()))
_CONTENT: Final = t.StructType(
    [
        t.StructField("value", t.BinaryType()),
        t.StructField("content_type", t.StringType()),
        t.StructField("content_encoding", t.StringType()),
        t.StructField("metadata", _PAIRS),
        t.StructField("indexes", _LISTS),
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
"""Columns of the view `keys`. `clock`: canonical bytes, equal where clocks are equal; `clock_hash`: their `xxhash64` as
Spark computes it; `object_hash`: xxh64 (seed 0) of the object's canonical bytes; hashes are signed. `change_offset`: of
the key's newest change in its partition of this cluster. `partition`, `apply_epoch`, `apply_offset`: the applied
position at which the row was read. `fault`: null for a valid row."""

ENTRY_COLUMNS: Final[Mapping[str, t.DataType]] = {"clock_entries": t.ArrayType(_ENTRY)}
"""Optional columns of both views: the clock's entries, with the counter split into epoch and offset."""

OBJECT_COLUMNS: Final[Mapping[str, t.DataType]] = {
    "value": t.BinaryType(),
    "content_type": t.StringType(),
    "metadata": _PAIRS,
    "contents": t.ArrayType(_CONTENT),
    "object": t.BinaryType(),
}
"""Further columns of the view `objects`: value, content type and metadata of the newest sibling that is not a
tombstone, all siblings, and the object's canonical bytes, which `df.write.format("isthmus")` accepts."""

TEXT_COLUMNS: Final = ("bucket", "key", "value")
"""Bytes that are text in most clusters: strings with the option `text`, or where the requested schema says so."""

_KNOWN: Final[Mapping[RowView, Mapping[str, t.DataType]]] = {
    RowView.KEYS: {**KEY_COLUMNS, **ENTRY_COLUMNS},
    RowView.OBJECTS: {**KEY_COLUMNS, **ENTRY_COLUMNS, **OBJECT_COLUMNS},
}

_DEFAULT: Final[Mapping[RowView, Sequence[str]]] = {
    RowView.KEYS: tuple(KEY_COLUMNS),
    RowView.OBJECTS: (*KEY_COLUMNS, *OBJECT_COLUMNS),
}


def schema_of(view: RowView, columns: Sequence[str] = (), *, text: bool = False) -> t.StructType:
    """The schema of a view, reduced to `columns` in their order if given, with strings for TEXT_COLUMNS if `text`.
    Raises BadInput."""
    known = _KNOWN[view]
    names = list(columns or _DEFAULT[view])
    unknown = [name for name in names if name not in known]
    if unknown or len(set(names)) < len(names):
        raise BadInput(f"option columns: {', '.join(unknown) or 'a name twice'}; view {view} has {', '.join(known)}")
    kinds = {**known, **(dict.fromkeys(TEXT_COLUMNS, t.StringType()) if text else {})}
    return t.StructType([t.StructField(name, kinds[name]) for name in names])


def check_schema(view: RowView, schema: t.StructType) -> None:
    """Raises BadInput for a requested schema with other columns or types than the view's."""
    for field in schema.fields:
        wanted = _KNOWN[view].get(field.name)
        if wanted is None:
            raise BadInput(f"view {view} has no column {field.name!r}; it has {', '.join(_KNOWN[view])}")
        if field.dataType != wanted and not (field.name in TEXT_COLUMNS and field.dataType == t.StringType()):
            or_text = " or string" if field.name in TEXT_COLUMNS else ""
            raise BadInput(
                f"column {field.name} is {wanted.simpleString()}{or_text}, not {field.dataType.simpleString()}"
            )


_FAULT: Final = "fault"

_APART: Final = OBJECT_COLUMNS.keys() - {"object"}
"""Columns for which objects are decoded."""


class Columns:
    """Makes record batches of one schema from frames. `not_utf8`: what a string column has for other bytes: `fail`
    raises BadInput, `null` has null and the row a fault."""

    def __init__(self, bucket_type: str, schema: t.StructType, not_utf8: str = "fail") -> None:
        self._bucket_type = bucket_type
        self._strict = not_utf8 == "fail"
        self._arrow: pa.Schema = to_arrow_schema(schema, timezone="UTC")
        self._names = tuple(schema.fieldNames())
        self._objects = not _APART.isdisjoint(self._names)

    def batch(self, head: Head, rows: Rows) -> pa.RecordBatch:
        """The rows of a frame. Raises CodecError for invalid names, BadInput for a string that is not UTF-8."""
        frame = _Frame(self._bucket_type, head, rows, self._objects)
        frame.strict = self._strict
        made = {name: _MAKERS[name](frame, self._arrow.field(name).type) for name in self._names if name != _FAULT}
        if _FAULT in self._names:  # last: the others say what is wrong
            made[_FAULT] = _faults(frame, self._arrow.field(_FAULT).type)
        return pa.RecordBatch.from_arrays([made[name] for name in self._names], schema=self._arrow)


class _Frame:
    """A frame, decoded as far as its columns need."""

    def __init__(self, bucket_type: str, head: Head, rows: Rows, objects: bool) -> None:
        self.bucket_type = bucket_type
        self.head = head
        self.names = Blobs.of(rows.names)
        self.count = len(rows.names)
        self.data = Blobs.of(rows.objects)
        self.faults: list[str | None] | None = None
        self.key_rows = Blobs.of(rows.key_rows)
        self.fields: KeyRows | None = parsed(self.key_rows)
        self.slow: list[Sequence[Any]] = []
        """The fields one by one, where a row is damaged."""
        if self.fields is None:
            self.slow, self.faults = one_by_one(self.key_rows)
        self.strict = True
        """Whether bytes that are not UTF-8 are an error where text is wanted."""
        self.objects: list[Object | None] = self._objects(objects) if rows.objects else [None] * self.count
        self._tails: tuple[pa.Array, pa.Array] | None = None

    def column(self, at: int) -> Any:
        """A field of all key rows: an array of numpy, or a list with None in it. Not of clocks."""
        return self.slow[at] if self.fields is None else self.fields[at + 1]

    def clocks(self) -> pa.Array:
        """The clocks."""
        if self.fields is None:
            return pa.array(self.slow[_CLOCK], pa.binary())
        places = np.column_stack((self.fields.clock_first, self.fields.clock_end)).ravel()
        return _cut(self.key_rows.data, places, 0, 2)

    def tails(self) -> tuple[pa.Array, pa.Array]:
        """Buckets and keys."""
        if self._tails is None:
            ends, names = bucket_ends(self.names), self.names
            if ends is None:  # rare: a zero byte in a bucket, or no names
                pairs = [split_tail(name[SEGMENT_BYTES:]) for name in names]
                buckets, keys = zip(*pairs, strict=True)
                self._tails = pa.array(buckets, pa.binary()), pa.array(keys, pa.binary())
            else:
                parts = (names.places[:-1] + SEGMENT_BYTES, ends, ends + len(BUCKET_END), names.places[1:])
                places = np.column_stack(parts).ravel()
                self._tails = _cut(names.data, places, 0, 4), _cut(names.data, places, 2, 4)
        return self._tails

    def _objects(self, apart: bool) -> list[Object | None]:
        """The objects, decoded if `apart`; the faults of all objects are recorded in any case."""
        found: list[Object | None] = []
        hashes, sizes = self.column(_HASH), self.column(_SIZE)
        for at, (data, hash64) in enumerate(zip(self.data, hashes, strict=True)):
            fault = ""
            obj = None
            if not data:
                fault = why_no_object(sizes[at])
            elif hash64 is not None and xxh64_intdigest(data) != hash64:
                fault = "the object does not match its key row: its hash differs"
            if data and (apart or fault):
                try:
                    obj = decode_object(data)
                except IsthmusError as error:
                    fault = fault or str(error)
            if fault:
                self.note(at, fault)
            found.append(obj)
        return found

    def as_wanted(self, name: str, column: pa.Array, kind: pa.DataType) -> pa.Array:
        """A column of bytes as it is, or as text. Raises BadInput."""
        if not pa.types.is_string(kind):
            return column
        made, wrong = as_text(column)
        if wrong:
            buckets, keys = self.tails()
            if self.strict:
                raise BadInput(not_utf8_error(name, buckets[wrong[0]].as_py(), keys[wrong[0]].as_py()))
            for at in wrong:
                self.note(at, f"{name} is not UTF-8: {_hex(column[at].as_py())}")
        return made

    def note(self, at: int, fault: str) -> None:
        """Record the fault of a row; the first one stays."""
        if self.faults is None:
            self.faults = [None] * self.count
        self.faults[at] = self.faults[at] or fault


def as_text(column: pa.Array) -> tuple[pa.Array, list[int]]:
    """A column of bytes as strings, and the places of those that are not UTF-8, which are null."""
    try:
        return column.cast(pa.string()), []
    except pa.ArrowInvalid:
        pass
    texts: list[str | None] = []
    wrong: list[int] = []
    for at, data in enumerate(column.to_pylist()):
        try:
            texts.append(None if data is None else data.decode())
        except UnicodeDecodeError:
            texts.append(None)
            wrong.append(at)
    return pa.array(texts, pa.string()), wrong


def not_utf8_error(name: str, bucket: bytes, key: bytes) -> str:
    """The message for a column that is not text, of this key."""
    return (
        f"column {name} of bucket {_hex(bucket)}, key {_hex(key)} is not UTF-8: read it as binary, without text = true,"
        f" or set not_utf8 = null"
    )


BYTES_SHOWN: Final = 64
"""Bytes of a name or value that a message has."""


def _hex(data: bytes) -> str:
    return f"0x{data[:BYTES_SHOWN].hex()}{'...' if len(data) > BYTES_SHOWN else ''}"


_Maker = Callable[[_Frame, pa.DataType], pa.Array]

_CLOCK: Final = 0
_HASH: Final = 1
_MODIFIED: Final = 2
_SIZE: Final = 3
_SIBLINGS: Final = 4
_TOMBSTONE: Final = 5
_OFFSET: Final = 6


def _cut(data: bytes, places: Places, first: int, every: int) -> pa.Array:
    """Every `every`-th of the strings between neighbouring places, from number `first` on."""
    ends = places.astype(np.int32)
    whole = pa.Array.from_buffers(pa.binary(), len(ends) - 1, [None, pa.py_buffer(ends), pa.py_buffer(data)])
    return whole.take(pa.array(np.arange(first, len(ends) - 1, every, dtype=np.int32)))


def _hashes(values: Any) -> pa.Array:
    """Unsigned 64 bits as Spark's signed ones."""
    if isinstance(values, np.ndarray):
        return pa.array(values.view(np.int64))
    return pa.array([None if v is None else v - (v >> 63 << 64) for v in values], pa.int64())


def _times(values: Any, kind: pa.DataType) -> pa.Array:
    """Milliseconds as timestamps in microseconds."""
    if isinstance(values, np.ndarray):
        return pa.array(np.minimum(values, TIME_MAX_MS) * 1000).cast(kind)
    return pa.array([None if v is None else min(v, TIME_MAX_MS) * 1000 for v in values], pa.int64()).cast(kind)


def _plain(values: Any, kind: pa.DataType) -> pa.Array:
    return pa.array(values, kind)


def _segments(frame: _Frame, kind: pa.DataType) -> pa.Array:
    places = frame.names.places
    if int(np.diff(places).min(initial=SEGMENT_BYTES)) < SEGMENT_BYTES:
        raise CodecError("a row's name is too short to have a segment")
    data = np.frombuffer(frame.names.data, np.uint8).astype(np.int32)
    at = places[:-1]
    return pa.array(data[at] << 16 | data[at + 1] << 8 | data[at + 2], kind)


def _clock_hash(frame: _Frame, _: pa.DataType) -> pa.Array:
    clocks = frame.clocks()
    hashes = [0 if clock is None else xxh64_intdigest(clock, HASH_SEED) for clock in clocks.to_pylist()]
    made = _hashes(np.array(hashes, np.uint64))
    return pc.if_else(clocks.is_valid(), made, None) if clocks.null_count else made


def _clock_entries(frame: _Frame, kind: pa.DataType) -> pa.Array:
    found: list[list[dict[str, Any]] | None] = []
    for at, clock in enumerate(frame.clocks().to_pylist()):
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
    """Bytes as text; invalid UTF-8 is replaced."""
    return raw.decode("utf-8", "replace")


def _pairs(pairs: Iterable[tuple[bytes, bytes]]) -> list[tuple[str, str]]:
    return list({_text(name): _text(value) for name, value in pairs}.items())


def _lists(pairs: Iterable[tuple[bytes, bytes]]) -> list[tuple[str, list[str]]]:
    found: dict[str, list[str]] = {}
    for name, value in pairs:
        found.setdefault(_text(name), []).append(_text(value))
    return list(found.items())


def _content(sibling: Sibling) -> dict[str, Any]:
    return {
        "value": None if sibling.tombstone else sibling.value,
        "content_type": _text(sibling.content_type),
        "content_encoding": _text(sibling.content_encoding),
        "metadata": _pairs(sibling.shown_metadata),
        "indexes": _lists(sibling.indexes),
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


_values: Final = _latest_of(lambda sibling: sibling.value)


def _contents(frame: _Frame, kind: pa.DataType) -> pa.Array:
    found = [None if obj is None else [_content(one) for one in obj.siblings] for obj in frame.objects]
    return pa.array(found, kind)


def _field(at: int, make: Callable[[Any, pa.DataType], pa.Array] = _plain) -> _Maker:
    """A column that is a field of the key row."""
    return lambda frame, kind: make(frame.column(at), kind)


def _object(frame: _Frame, kind: pa.DataType) -> pa.Array:
    """The objects' bytes; null for a missing one."""
    places = frame.data.places
    if int(np.diff(places).min(initial=1)) == 0:
        return pa.array([data or None for data in frame.data], kind)
    return _cut(frame.data.data, places, 0, 1)


def _same(of: Callable[[_Frame], Any]) -> _Maker:
    """A column with one value."""
    return lambda frame, kind: pa.repeat(pa.scalar(of(frame), kind), frame.count)


def _faults(frame: _Frame, kind: pa.DataType) -> pa.Array:
    return pa.nulls(frame.count, kind) if frame.faults is None else pa.array(frame.faults, kind)


_MAKERS: Final[Mapping[str, _Maker]] = {
    "bucket_type": _same(lambda frame: frame.bucket_type),
    "bucket": lambda frame, kind: frame.as_wanted("bucket", frame.tails()[0], kind),
    "key": lambda frame, kind: frame.as_wanted("key", frame.tails()[1], kind),
    "clock": lambda frame, _: frame.clocks(),
    "clock_hash": _clock_hash,
    "object_hash": _field(_HASH, lambda values, _: _hashes(values)),
    "segment": _segments,
    "last_modified": _field(_MODIFIED, _times),
    "size": _field(_SIZE),
    "siblings": _field(_SIBLINGS),
    "tombstone": _field(_TOMBSTONE),
    "change_offset": _field(_OFFSET),
    "partition": _same(lambda frame: frame.head.partition),
    "apply_epoch": _same(lambda frame: frame.head.epoch),
    "apply_offset": _same(lambda frame: frame.head.offset),
    "clock_entries": _clock_entries,
    "value": lambda frame, kind: frame.as_wanted("value", _values(frame, pa.binary()), kind),
    "content_type": _latest_of(lambda sibling: _text(sibling.content_type)),
    "metadata": _latest_of(lambda sibling: _pairs(sibling.shown_metadata)),
    "contents": _contents,
    "object": _object,
}
