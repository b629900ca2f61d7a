"""Stream the rows of this node's replicas from one snapshot each, a frame at a time.

A stream holds one snapshot and one frame; it reads the next frame when the last one was sent, so a slow reader costs no
memory. All streams of a node share one thread, which bounds what they take from the event loop. Beyond STREAMS_MAX a
stream is refused; its reader tries another node, or retries.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from itertools import islice
from typing import Final, NamedTuple, Protocol

from isthmus.aae.row_stream.wire import (
    FRAME_BYTES,
    FRAME_ROWS_MAX,
    OBJECT_BYTES_MAX,
    ChangesRequest,
    Consistency,
    Head,
    Rows,
    RowsRequest,
    RowView,
    SkippedTo,
    Tail,
    encode_frame,
    encode_head,
    encode_skipped_to,
    encode_tail,
)
from isthmus.aae.trees.throttle import TreeThrottle
from isthmus.repl.machine import machine
from isthmus.repl.model.entry import decode_key_row
from isthmus.repl.model.errors import BadInput, IsthmusError, NotLeader, NotReady, Overloaded
from isthmus.repl.model.this_node import ThisNode
from isthmus.repl.store.port import AppliedPosition, Snapshot, Store
from isthmus.repl.store.rows import bucket_head, segment_name
from isthmus.repl.telemetry import Family, Sample
from isthmus.repl.unforeseen import unforeseen

STREAMS_MAX: Final = 16
"""Streams open on a node. Each holds a frame of about 1 MB and a snapshot, which keeps old tables on disk."""

HELP: Final[Mapping[str, Family]] = {
    "isthmus_row_streams": Family("Streams of rows to batch jobs that are open now.", "streams", "full-sync"),
    "isthmus_row_stream_rows_total": Family("Rows sent on streams of rows.", "rows", "full-sync"),
    "isthmus_row_stream_bytes_total": Family("Bytes sent on streams of rows.", "bytes", "full-sync"),
}
"""Metric name -> description (see repl.telemetry)."""

SAMPLE_ROWS: Final = 1_000
"""Rows of a partition that are counted to estimate its total: a millisecond, and 3 % off as a rule."""


ESTIMATE_KEPT_S: Final = 5.0
"""How long an estimate is reused: each task of a batch job requests a plan, and a node may have many replicas."""


SLICE_ROWS: Final = 256
"""Rows that the thread reads between two sleeps: a third of a millisecond. A request takes the interpreter's lock a
dozen times and may wait for the thread each time; waiting for a whole frame would take ten times as long."""

FRAME_SLICES: Final = FRAME_ROWS_MAX // SLICE_ROWS

SLICE_OBJECTS: Final = 64
"""Objects read between two sleeps."""

REST_MIN_S: Final = 0.001
"""Shorter sleeps are added up until they reach this: a sleep and wake-up costs a tenth of it."""


class LocalReplica(NamedTuple):
    """A replica on this node, of the segments [first, end). `leads`: and serves requests; `whole`: has all rows below
    its applied offset."""

    bucket_type: bytes
    partition: int
    segments: tuple[int, int]
    leads: bool
    whole: bool


class StreamReplicas(Protocol):
    """The replicas on this node whose rows can be streamed."""

    def stream_replica(self, partition: int) -> LocalReplica | None:
        """The replica of a partition; None if there is none."""

    def stream_replicas(self, bucket_type: bytes) -> Sequence[LocalReplica]:
        """All replicas of a bucket type."""

    async def confirm(self, partition: int) -> None:
        """Return once this node is known to lead the partition still. Raises Retryable."""


class RowStreams:
    """Opens streams."""

    def __init__(
        self,
        store: Store,
        this: ThisNode,
        replicas: StreamReplicas,
    ) -> None:
        self._store = store
        self._cluster = this.cluster_uuid
        self._cluster_name = this.cluster
        self._node = this.name
        self._replicas = replicas
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="rows")
        self._estimating = ThreadPoolExecutor(1, thread_name_prefix="rows-estimates")
        """Counts rows for plans, which must not wait for the frames of all streams."""
        self._throttle = TreeThrottle()
        self._slice_began_s = 0.0
        self._deferred_sleep_s = 0.0
        """Sleep that was put off."""
        self._stopping = False
        self._estimates: dict[LocalReplica, tuple[float, int | None]] = {}
        self.running = 0
        self.rows_sent = 0
        self.bytes_sent = 0

    def metrics(self) -> Iterator[Sample]:
        """For Prometheus."""
        yield "isthmus_row_streams", {}, self.running
        yield "isthmus_row_stream_rows_total", {}, self.rows_sent
        yield "isthmus_row_stream_bytes_total", {}, self.bytes_sent

    def stop(self) -> None:
        """End all streams at their next frame, incomplete, so that their readers try another node."""
        self._stopping = True

    async def close(self) -> None:
        """Wait until all streams are released; the store may be closed then."""
        for thread in (self._thread, self._estimating):
            await asyncio.get_running_loop().run_in_executor(None, thread.shutdown)

    async def rows(self, request: RowsRequest) -> AsyncGenerator[bytes, None]:
        """Open a stream of rows: an iterator of frames. Raises BadInput, Retryable, LocalFault."""
        replica = self._find(request.bucket_type, request.partition)
        first, end = replica.segments
        if not first <= request.first <= request.end <= end:
            raise BadInput(
                f"partition {request.partition} has segments {first} to {end}, not {request.first} to {request.end}: "
                "request a new plan"
            )
        if request.consistency is Consistency.COMMITTED:
            if not replica.leads:
                raise NotLeader(f"this node does not lead partition {request.partition}")
            await self._replicas.confirm(request.partition)
        return await self._open(
            request.partition, request.first, request.end, lambda snapshot: _row_frames(snapshot, request, self._rest)
        )

    async def changes(self, request: ChangesRequest) -> AsyncGenerator[bytes, None]:
        """Open a stream of changes. Raises NotReady when this replica is not applied as far."""
        self._find(request.bucket_type, request.partition)
        applied = self._store.applied(request.partition).offset
        if applied < request.end:
            raise NotReady(
                f"this replica of partition {request.partition} is applied to {applied}, not to {request.end}"
            )
        return await self._open(
            request.partition,
            request.first,
            request.end,
            lambda snapshot: _change_frames(self._store, snapshot, request, self._rest),
        )

    def estimate(self, replica: LocalReplica) -> int | None:
        """In a thread: approximate number of a replica's rows, exact for few; None if it cannot be read."""
        first, end = replica.segments
        count, last = 0, first
        try:
            with (
                closing(self._store.transfers.snapshot(replica.partition)) as snapshot,
                closing(snapshot.key_pages(segment_name(first), end, SAMPLE_ROWS, FRAME_BYTES)) as pages,
            ):
                for names, _ in pages:
                    count += len(names)
                    last = int.from_bytes(names[-1][:3], "big")
                    if count >= SAMPLE_ROWS:
                        return count * (end - first) // (last + 1 - first)
        except IsthmusError:
            return None
        except Exception as error:  # the other replicas have theirs
            unforeseen.exception("row_stream.estimate_bug", error, partition=replica.partition)
            return None
        return count

    async def estimates(self, replica: list[LocalReplica]) -> list[int | None]:
        """The estimates of many replicas; recent ones are reused."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._estimating, lambda: [self._cached_estimate(one) for one in replica])

    def _cached_estimate(self, replica: LocalReplica) -> int | None:
        """In the thread."""
        kept_s, known = self._estimates.get(replica, (-ESTIMATE_KEPT_S, None))
        now_s = machine().perf_s()
        if now_s - kept_s < ESTIMATE_KEPT_S:
            return known
        found = self.estimate(replica)
        self._estimates = {one: kept for one, kept in self._estimates.items() if now_s - kept[0] < ESTIMATE_KEPT_S}
        self._estimates[replica] = (now_s, found)
        return found

    def _next(self, frames: Iterator[Rows | SkippedTo]) -> tuple[int, bytes]:
        """In the thread: (number of rows, bytes) of the next frame; b"" at the end."""
        self._slice_began_s = machine().perf_s()
        found = next(frames, None)
        if found is None:
            return 0, b""
        data = encode_skipped_to(found) if isinstance(found, SkippedTo) else encode_frame(found)
        self._rest()
        return (0 if isinstance(found, SkippedTo) else len(found.names)), data

    def _rest(self) -> None:
        """In the thread: sleep after a slice."""
        now_s = machine().perf_s()
        self._deferred_sleep_s += self._throttle.rest_s(
            now_s - self._slice_began_s, now_s, machine().process_cpu_s() - machine().cpu_s()
        )
        if self._deferred_sleep_s >= REST_MIN_S:
            machine().sleep(self._deferred_sleep_s)
            self._deferred_sleep_s = 0.0
        self._slice_began_s = machine().perf_s()

    def applied(self, partition: int) -> AppliedPosition:
        """A replica's applied position."""
        return self._store.applied(partition)

    def _find(self, bucket_type: bytes, partition: int) -> LocalReplica:
        replica = self._replicas.stream_replica(partition)
        if replica is None or replica.bucket_type != bucket_type:
            raise NotReady(
                f"this node has no replica of partition {partition} of that bucket type: "
                "try another node, or request a new plan"
            )
        if not replica.whole:
            raise NotReady(f"the replica of partition {partition} on this node is being filled")
        return replica

    async def _open(
        self, partition: int, first: int, end: int, read: Callable[[Snapshot], Iterator[Rows | SkippedTo]]
    ) -> AsyncGenerator[bytes, None]:
        if self._stopping:
            raise NotReady("this node is stopping")
        if self.running >= STREAMS_MAX:
            raise Overloaded(f"{STREAMS_MAX} streams of rows are open on this node, which is its limit")
        self.running += 1
        loop = asyncio.get_running_loop()
        try:
            snapshot = await loop.run_in_executor(self._thread, self._store.transfers.snapshot, partition)
        except BaseException:
            self.running -= 1
            raise
        as_of = snapshot.end
        head = Head(
            self._cluster, self._cluster_name, self._node, partition, first, end, as_of.epoch, as_of.offset
        )  # fmt: skip
        return self._stream(head, snapshot, read(snapshot))

    async def _stream(
        self, head: Head, snapshot: Snapshot, frames: Iterator[Rows | SkippedTo]
    ) -> AsyncGenerator[bytes, None]:
        """Owns the snapshot and the count of running streams."""
        loop = asyncio.get_running_loop()
        sent = 0
        try:
            yield encode_head(head)
            while True:
                if self._stopping:
                    raise NotReady("this node is stopping")
                count, data = await loop.run_in_executor(self._thread, self._next, frames)
                if not data:
                    break
                yield data
                sent += count
                self.rows_sent += count
                self.bytes_sent += len(data)
            yield encode_tail(Tail(sent))
        finally:
            self.running -= 1
            # In the thread, behind a frame that it may be reading: only one thread at a time may use a snapshot.
            loop.run_in_executor(self._thread, _release, frames, snapshot)


def _release(frames: Iterator[Rows | SkippedTo], snapshot: Snapshot) -> None:
    close = getattr(frames, "close", None)
    if close is not None:
        close()
    snapshot.close()


def _row_frames(snapshot: Snapshot, request: RowsRequest, rest: Callable[[], None]) -> Iterator[Rows | SkippedTo]:
    """Frames of the requested rows. A SkippedTo frame follows a full frame's worth of filtered rows: others need the
    thread, and a reader that receives nothing takes the node for dead."""
    start = request.after + b"\0" if request.after else segment_name(request.first)
    start = max(start, segment_name(request.first))
    head = bucket_head(request.bucket) + request.prefix if request.bucket else b""
    with closing(snapshot.key_pages(start, request.end, SLICE_ROWS, FRAME_BYTES // FRAME_SLICES)) as pages:
        while True:
            names: list[bytes] = []
            key_rows: list[bytes] = []
            slices = 0
            for page in islice(pages, FRAME_SLICES):
                kept = _filter_page(request, head, *page) or page
                names += kept[0]
                key_rows += kept[1]
                slices += 1
                if slices < FRAME_SLICES:
                    rest()
            if not slices:
                return
            if not names:
                yield SkippedTo(page[0][-1])
            elif request.view is RowView.KEYS:
                yield Rows(names, key_rows, ())
            else:
                yield from _with_objects(snapshot, names, key_rows, rest)


def _filter_page(
    request: RowsRequest, head: bytes, names: list[bytes], rows: list[bytes]
) -> tuple[list[bytes], list[bytes]] | None:
    """(names, rows) that pass the request's filter; None: all. Rows whose time cannot be decoded pass."""
    if not head and not request.since_ms and not request.before_ms:
        return None
    places = [at for at, name in enumerate(names) if name.startswith(head, 3)] if head else range(len(names))
    if request.since_ms or request.before_ms:
        before_ms = request.before_ms or 1 << 63
        places = [at for at in places if request.since_ms <= _modified_ms(rows[at], request.since_ms) < before_ms]
    return [names[at] for at in places], [rows[at] for at in places]


def _modified_ms(row: bytes, unknown: int) -> int:
    try:
        return decode_key_row(row).last_modified_ms
    except IsthmusError:
        return unknown


def _with_objects(
    snapshot: Snapshot, names: list[bytes], key_rows: list[bytes], rest: Callable[[], None]
) -> Iterator[Rows]:
    """Frames of rows with objects, each of about FRAME_BYTES. An object that is missing or larger than OBJECT_BYTES_MAX
    is b""."""
    first, size = 0, 0
    objects: list[bytes] = []
    for at, name in enumerate(names):
        data = snapshot.named_object(name[3:]) or b""
        if len(data) > OBJECT_BYTES_MAX:
            data = b""
        objects.append(data)
        size += len(data) + len(name) + len(key_rows[at])
        if size > FRAME_BYTES:
            yield Rows(names[first : at + 1], key_rows[first : at + 1], objects)
            first, size, objects = at + 1, 0, []
        elif at % SLICE_OBJECTS == SLICE_OBJECTS - 1:
            rest()
    if objects:
        yield Rows(names[first:], key_rows[first:], objects)


CHANGES_READ: Final = 1_024
"""Change rows that are read at once."""


def _change_frames(
    store: Store, snapshot: Snapshot, request: ChangesRequest, rest: Callable[[], None]
) -> Iterator[Rows]:
    """Frames of the keys whose newest change is in the range. A key that changed again later is in the range of its new
    change."""
    at = request.first
    while at < request.end:
        found = store.changes(request.partition, at, CHANGES_READ)
        names: list[bytes] = []
        key_rows: list[bytes] = []
        for change in found:
            if change.offset >= request.end:
                break
            name = segment_name(change.key_hash >> 44) + bucket_head(change.bucket) + change.key
            row = snapshot.named_key_row(name)
            if row is not None and _offset_of(row) in (change.offset, None):
                names.append(name)
                key_rows.append(row)
        if names:
            if request.view is RowView.KEYS:
                yield Rows(names, key_rows, ())
            else:
                yield from _with_objects(snapshot, names, key_rows, rest)
        if len(found) < CHANGES_READ:
            return
        at = found[-1].offset + 1


def _offset_of(row: bytes) -> int | None:
    """None for a row that cannot be decoded: it is sent like others, and its reader finds the damage."""
    try:
        return decode_key_row(row).offset
    except IsthmusError:
        return None
