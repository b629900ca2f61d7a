"""Spark tasks of a seed: read a range of one cluster's objects and push it into another with its clocks.

A task reads one stream from any replica and pushes it batch by batch; rows never leave the task. It returns a row per
chunk with the outcomes of the objects and the offsets of what it read. The error of a chunk is in its row; pushing a
chunk again changes nothing. The driver is `seed`.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final, NamedTuple

import msgpack
import pyarrow as pa
from xxhash import xxh64_intdigest

from isthmus.aae.reconcile.client import Pusher, TaskRate
from isthmus.aae.reconcile.compare_range import SideSpec, error_line, plan_of
from isthmus.aae.reconcile.key_rows import one_by_one, parsed
from isthmus.aae.reconcile.row_reader import RangeStream, RangeUnreadable, wait_for_ranges
from isthmus.aae.reconcile.row_writer import BATCH_BYTES, pushed, send_all
from isthmus.aae.row_stream.blobs import Blobs
from isthmus.aae.row_stream.wire import Consistency, Rows, RowsRequest, RowView, why_no_object
from isthmus.repl.model.errors import IsthmusError
from isthmus.repl.store.rows import SEGMENT_BYTES, split_tail

BATCH_ITEMS: Final = 500
"""Objects of one push; the data source's writes have as many."""

NAMED_MAX: Final = 20
"""Damaged and rejected objects per chunk that are named."""

ROW: Final = "struct<chunk:int, result:string>"
_ROW: Final = pa.struct([pa.field("chunk", pa.int32()), pa.field("result", pa.string())])


class SeedJob(NamedTuple):
    """Parameters that all chunks of a seed share. `rows_per_second`: a task's share, 0: no limit."""

    source: SideSpec
    target: SideSpec
    rows_per_second: float
    give_up_after_s: int


class SeedChunk(NamedTuple):
    """The segments [first, end) of a partition of the source."""

    number: int
    partition: int
    first: int
    end: int


def encode_chunk(chunk: SeedChunk) -> bytes:
    """Encode a chunk for a task."""
    packed: bytes = msgpack.packb(chunk)
    return packed


def copies(job: SeedJob) -> Callable[[pa.Array], pa.Array]:
    """A function from chunks (`encode_chunk`) to ROW."""

    def copy(chunks: pa.Array) -> pa.Array:
        found = [SeedChunk(*msgpack.unpackb(one)) for one in chunks.to_pylist()]
        return pa.array([{"chunk": one.number, "result": json.dumps(copied(job, one))} for one in found], _ROW)

    return copy


def copied(job: SeedJob, chunk: SeedChunk) -> dict[str, Any]:
    """Copy a chunk: {"chunk", "error", "rows", "bytes", "outcomes", "damaged", "named", "pieces"}. With a (one-line)
    error the rest describes what was copied nevertheless."""
    outcomes: Counter[str] = Counter()
    named: list[str] = []
    result: dict[str, Any] = {"chunk": chunk.number, "error": "", "rows": 0, "bytes": 0, "damaged": 0, "pieces": []}
    stream = None
    try:
        stream = _stream(job, chunk)
        pusher = Pusher(job.target.urls, job.target.credentials)
        push = partial(pushed, pusher, job.source.cluster)
        pace = TaskRate(job.rows_per_second)
        kind = job.source.bucket_type.encode()
        try:
            for _, rows in stream.frames():
                for items in _batches(kind, rows, result, named):
                    send_all(items, push, job.give_up_after_s, outcomes, named)
                result["rows"] += len(rows.names)
                pace.wait_for(len(rows.names))
        finally:
            pusher.close()
    except IsthmusError as error:
        result["error"] = error_line(error)
    if stream is not None:
        result["pieces"] = [[one.partition, one.epoch, one.offset, one.rows] for one in stream.pieces]
    return result | {"outcomes": dict(outcomes), "named": named[:NAMED_MAX]}


def _stream(job: SeedJob, chunk: SeedChunk) -> RangeStream:
    """Raises RangeUnreadable, PeerFault."""
    side = job.source
    ask = partial(plan_of, side)
    wanted = (chunk.first, chunk.end)
    _, ranges = wait_for_ranges(ask, wanted, 1, Consistency.ANY, job.give_up_after_s)
    if [(one.partition, one.first, one.end) for one in ranges] != [(chunk.partition, *wanted)]:
        raise RangeUnreadable(
            f"partition {chunk.partition}, segments {chunk.first} to {chunk.end}: the partitions have changed since"
            " the seed was planned; begin a new seed"
        )
    asked = RowsRequest(side.bucket_type.encode(), chunk.partition, *wanted, view=RowView.OBJECTS)
    return RangeStream(asked, ranges[0], side.credentials, give_up_after_s=job.give_up_after_s, ask=ask)


def _batches(kind: bytes, rows: Rows, result: dict[str, Any], named: list[str]) -> Iterator[list[list[Any]]]:
    """Batches to push of a frame: all objects that match their rows."""
    items: list[list[Any]] = []
    size = 0
    for name, data, fault in zip(rows.names, rows.objects, _faults(rows), strict=True):
        bucket, key = split_tail(name[SEGMENT_BYTES:])
        result["bytes"] += len(data)
        if fault:
            result["damaged"] += 1
            if len(named) < NAMED_MAX:
                named.append(f"{bucket!r}/{key!r}: {fault}"[:300])
            continue
        items.append([kind, bucket, key, data])
        size += len(data)
        if len(items) >= BATCH_ITEMS or size > BATCH_BYTES:
            yield items
            items, size = [], 0
    if items:
        yield items


def _faults(rows: Rows) -> Iterator[str]:
    """The fault of each row's object, "" for none."""
    key_rows = Blobs.of(rows.key_rows)
    fields = parsed(key_rows)
    hashes: list[int | None]
    sizes: list[int | None]
    faults: list[str | None]
    if fields is not None:
        hashes, sizes, faults = fields.hash64.tolist(), fields.size.tolist(), [None] * len(key_rows)
    else:
        columns, faults = one_by_one(key_rows)
        hashes, sizes = list(columns[1]), list(columns[3])
    for data, hash64, size, fault in zip(rows.objects, hashes, sizes, faults, strict=True):
        if fault:
            yield fault
        elif not data:
            yield why_no_object(size)
        elif xxh64_intdigest(data) != hash64:
            yield "the object does not match its key row: its hash differs"
        else:
            yield ""
