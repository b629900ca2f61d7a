"""Requests for streams of rows, and the frames of a stream. Pure.

A stream is one range of segments of one partition, read from one snapshot. Rows are sent as they are stored, many per
frame, which costs the node little; the reader makes columns of them (`aae.reconcile.arrow_rows`). A stream begins with
a head that has its offset, and ends with a tail that counts the rows; a stream without a tail is incomplete.

    frame = length (4 bytes, big-endian), msgpack list
    head  = [1, cluster uuid, cluster name, node, partition, first, end, epoch, offset]
    rows  = [2, names, key rows]            or, of whole objects,  [2, names, key rows, objects]
    tail  = [3, rows]
    skipped to = [4, name]                  no further requested row up to the one of this name
    names, key rows, objects = two fields each: the strings concatenated, their lengths (`aae.row_stream.blobs`)
    name  = segment (3 bytes), bucket with its end, key, as in the store's row
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from enum import StrEnum
from typing import Any, Final, NamedTuple

import msgpack

from isthmus.aae.row_stream.blobs import Blobs, lengths_of
from isthmus.repl.model.errors import CodecError
from isthmus.repl.model.keys import SEGMENT_COUNT

VERSION: Final = 2
"""Version of requests for rows and of their streams. In version 1 the strings of a frame were lists."""

PUSH_VERSION: Final = 1
"""Version of pushes."""

ROWS_PATH: Final = "/rows"
CHANGES_PATH: Final = "/rows/changes"
PLAN_PATH: Final = "/rows/plan"
QUEUES_PATH: Final = "/rows/queues"
PUSH_PATH: Final = "/batch/push"

MEDIA_TYPE: Final = "application/msgpack"

REQUEST_BYTES_MAX: Final = 256 * 1024
"""Largest request: it has some names."""

NAME_BYTES_MAX: Final = 128 * 1024
"""Longest bucket, prefix or name of a row; a bucket's zero bytes are doubled in it."""

FRAME_ROWS_MAX: Final = 4_096
"""Rows of a frame: about 0.5 MB, and 3 ms of a node's thread."""

FRAME_BYTES: Final = 1024 * 1024
"""A frame ends with the row that exceeds this."""

FRAME_BYTES_MAX: Final = 128 * 1024 * 1024
"""Longest frame that is read, whatever `limits.object_size` a cluster has: a reader's memory limit."""

OBJECT_BYTES_MAX: Final = FRAME_BYTES_MAX - 2 * FRAME_BYTES
"""Largest object that is sent: its frame does not exceed FRAME_BYTES_MAX. For a larger one only the row is sent; see
`why_no_object`."""

FIELDS_MAX: Final = 16
"""Fields of a frame; the head has most."""

COUNT_MAX: Final = 1 << 63

LENGTH: Final = struct.Struct(">I")

HEAD: Final = 1
ROWS: Final = 2
TAIL: Final = 3
SKIPPED_TO: Final = 4


class RowView(StrEnum):
    """The data that is read for each key."""

    KEYS = "keys"
    OBJECTS = "objects"


class Consistency(StrEnum):
    """Which replica may serve a stream."""

    ANY = "any"
    """Any replica, as far as it has applied."""
    COMMITTED = "committed"
    """The leader's, after it has confirmed its leadership: includes all writes acknowledged before."""


class RowsRequest(NamedTuple):
    """Request the rows of segments [first, end) of a partition, behind the row `after` (b"": from the first one);
    `bucket` b"": all, `prefix`: of its keys; last modified in [since_ms, before_ms), 0: no bound."""

    bucket_type: bytes
    partition: int
    first: int
    end: int
    view: RowView = RowView.KEYS
    bucket: bytes = b""
    prefix: bytes = b""
    since_ms: int = 0
    before_ms: int = 0
    after: bytes = b""
    consistency: Consistency = Consistency.ANY


class ChangesRequest(NamedTuple):
    """Request the keys of a partition whose newest change is at an offset in [first, end); `view` as in RowsRequest."""

    bucket_type: bytes
    partition: int
    first: int
    end: int
    view: RowView = RowView.KEYS


class Head(NamedTuple):
    """Segments [first, end) of a stream (of changes: offsets), and its position: all below `offset`."""

    cluster: bytes
    cluster_name: str
    node: str
    partition: int
    first: int
    end: int
    epoch: int
    offset: int


class Rows(NamedTuple):
    """Names and key rows as stored; `objects` is empty in RowView.KEYS. Received ones are `Blobs`."""

    names: Sequence[bytes]
    key_rows: Sequence[bytes]
    objects: Sequence[bytes]


class SkippedTo(NamedTuple):
    """The stream has passed the row of this name; no row since the last frame was requested."""

    name: bytes


class Tail(NamedTuple):
    """The stream is complete: it had this number of rows."""

    rows: int


Frame = Head | Rows | SkippedTo | Tail


def encode_rows_request(request: RowsRequest) -> bytes:
    return _pack([VERSION, *request])


def decode_rows_request(data: bytes) -> RowsRequest:
    """Raises CodecError."""
    match _unpack_request(data):
        case [
            bytes(kind), int(partition), int(first), int(end), str(view), bytes(bucket), bytes(prefix), int(since_ms),
            int(before_ms), bytes(after), str(consistency),
        ] if (
            kind
            and partition >= 0
            and 0 <= first <= end <= SEGMENT_COUNT
            and 0 <= min(since_ms, before_ms) <= max(since_ms, before_ms) < COUNT_MAX
            and max(len(bucket), len(prefix), len(after)) <= NAME_BYTES_MAX
        ):  # fmt: skip
            try:
                return RowsRequest(
                    kind, partition, first, end, RowView(view), bucket, prefix, since_ms, before_ms, after,
                    Consistency(consistency),
                )  # fmt: skip
            except ValueError as error:
                raise CodecError(f"not a question for rows: {error}") from error
    raise CodecError(
        "not a question for rows: type, partition, segments, view, bucket, prefix, times, place, isolation"
    )


def encode_changes_request(request: ChangesRequest) -> bytes:
    return _pack([VERSION, *request])


def decode_changes_request(data: bytes) -> ChangesRequest:
    """Raises CodecError."""
    match _unpack_request(data):
        case [bytes(kind), int(partition), int(first), int(end), str(view)] if (
            kind and partition >= 0 and 0 <= first <= end < COUNT_MAX
        ):
            try:
                return ChangesRequest(kind, partition, first, end, RowView(view))
            except ValueError as error:
                raise CodecError(f"not a question for changes: {error}") from error
    raise CodecError("not a question for changes: type, partition, offsets [first, end), view")


def why_no_object(size_bytes: int | None) -> str:
    """Why a row came without its object, by the size in its key row."""
    if size_bytes is not None and size_bytes > OBJECT_BYTES_MAX:
        return f"the object has {size_bytes} bytes, batch jobs read at most {OBJECT_BYTES_MAX} of one"
    return "the key row has no object"


def encode_head(head: Head) -> bytes:
    return _framed([HEAD, *head])


def encode_frame(rows: Rows) -> bytes:
    parts: list[Any] = [ROWS]
    for strings in rows:
        if strings:
            parts += (b"".join(strings), lengths_of(strings))
    return _framed(parts)


def encode_skipped_to(skipped: SkippedTo) -> bytes:
    return _framed([SKIPPED_TO, *skipped])


def encode_tail(tail: Tail) -> bytes:
    return _framed([TAIL, *tail])


def decode_frame(data: bytes) -> Frame:
    """Decode a frame without its length. Raises CodecError."""
    try:
        raw = msgpack.unpackb(data, max_array_len=FIELDS_MAX, max_map_len=0, max_ext_len=0)
    except (ValueError, msgpack.exceptions.UnpackException, RecursionError) as error:
        raise CodecError(f"not a frame of rows: {error}") from error
    match raw:
        case [2, names, name_lengths, key_rows, row_lengths, *rest] if len(rest) in (0, 2):
            rows = Rows(
                Blobs.parsed(names, name_lengths),
                Blobs.parsed(key_rows, row_lengths),
                Blobs.parsed(*rest) if rest else (),
            )
            if FRAME_ROWS_MAX >= len(rows.names) == len(rows.key_rows) > 0 and (
                not rest or len(rows.objects) == len(rows.names)
            ):
                return rows
        case [1, bytes(cluster), str(name), str(node), *numbers] if len(cluster) == 16 and len(numbers) == 5:
            if all(type(number) is int and 0 <= number < COUNT_MAX for number in numbers):
                return Head(cluster, name, node, *numbers)
        case [3, int(count)] if 0 <= count < COUNT_MAX:
            return Tail(count)
        case [4, bytes(name)] if name:
            return SkippedTo(name)
    raise CodecError("not a frame of rows: neither head, rows, mark nor tail")


class Frames:
    """Splits the bytes of a stream into frames."""

    def __init__(self) -> None:
        self._pieces = bytearray()

    def feed(self, data: bytes) -> Iterator[Frame]:
        """The frames that are complete now. Raises CodecError."""
        pieces = self._pieces
        pieces += data
        at = 0
        while len(pieces) - at >= LENGTH.size:
            (size,) = LENGTH.unpack_from(pieces, at)
            if size > FRAME_BYTES_MAX:
                raise CodecError(f"a frame of {size} bytes, at most {FRAME_BYTES_MAX} are read")
            if len(pieces) - at - LENGTH.size < size:
                break
            at += LENGTH.size
            frame = bytes(memoryview(pieces)[at : at + size])
            at += size
            yield decode_frame(frame)
        del pieces[:at]


def _framed(parts: Sequence[Any]) -> bytes:
    packed = _pack(parts)
    return LENGTH.pack(len(packed)) + packed


def _pack(parts: Sequence[Any]) -> bytes:
    packed: bytes = msgpack.packb(parts)
    return packed


def _unpack_request(data: bytes) -> list[Any]:
    if len(data) > REQUEST_BYTES_MAX:
        raise CodecError(f"a question of {len(data)} bytes, at most {REQUEST_BYTES_MAX} are read")
    try:
        raw = msgpack.unpackb(data, max_array_len=32, max_map_len=0, max_ext_len=0)
    except (ValueError, msgpack.exceptions.UnpackException, RecursionError) as error:
        raise CodecError(f"not a question for rows: {error}") from error
    if not isinstance(raw, list) or not raw or raw[0] != VERSION:
        raise CodecError(f"not a question for rows in form {VERSION}")
    return raw[1:]
