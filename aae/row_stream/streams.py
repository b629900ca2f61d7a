"""Streams of rows from this node's copies: one snapshot each, a frame at a time, in a thread of their own.

A stream holds one snapshot and one frame; the next frame is read when the last one has gone, so a slow reader costs no
memory. All streams of a node share one thread: what they take from the loop that serves writes is that of one, however
many there are. More than STREAMS_MAX are refused; a reader then asks another node, or again. What is asked and sent is
`aae.row_stream.wire`'s, who holds which copy `aae.row_stream.plan`'s.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from itertools import islice
from time import perf_counter, process_time, sleep, thread_time
from typing import Final, NamedTuple

from isthmus.aae.row_stream.wire import (
    FRAME_BYTES,
    FRAME_ROWS_MAX,
    OBJECT_BYTES_MAX,
    ChangesAsked,
    Consistency,
    Head,
    Rows,
    RowsAsked,
    RowView,
    SkippedTo,
    Tail,
    encode_frame,
    encode_head,
    encode_passed,
    encode_tail,
)
from isthmus.aae.trees.throttle import TreeThrottle
from isthmus.repl.model.entry import decode_key_row
from isthmus.repl.model.errors import BadInput, IsthmusError, NotLeader, NotReady, Overloaded
from isthmus.repl.store.port import AppliedPosition, Snapshot, Store
from isthmus.repl.store.rows import bucket_head, segment_name
from isthmus.repl.telemetry import Family, Sample

STREAMS_MAX: Final = 16
"""Streams open on a node at once. Each holds a frame of about 1 MB, and a moment of the store, whose old tables stay on
disk until it is let go."""

HELP: Final[Mapping[str, Family]] = {
    "isthmus_row_streams": Family("Streams of rows to batch jobs that are open now.", "streams", "full-sync"),
    "isthmus_row_stream_rows_total": Family("Rows sent on streams of rows.", "rows", "full-sync"),
    "isthmus_row_stream_bytes_total": Family("Bytes sent on streams of rows.", "bytes", "full-sync"),
}
"""Name -> what it counts (see repl.telemetry)."""

SAMPLE_ROWS: Final = 1_000
"""Rows of a partition that are counted to estimate how many it has: a millisecond, and 3 % off as a rule."""


ESTIMATE_KEPT_S: Final = 5.0
"""How long an estimate is told again: each task of a batch job asks for a plan, and a node may have many copies."""


SLICE_ROWS: Final = 256
"""Rows that the thread reads at once: a third of a millisecond. A request has a dozen turns in the interpreter, each of
which may have to wait for the thread's; that it meets one slice costs little, to meet a frame's all costs ten times."""

FRAME_SLICES: Final = FRAME_ROWS_MAX // SLICE_ROWS

SLICE_OBJECTS: Final = 64
"""Objects likewise."""

REST_MIN_S: Final = 0.001
"""A shorter rest is put off until more is due: to fall asleep and wake takes a tenth of this."""


class LocalReplica(NamedTuple):
    """A copy on this node, of the segments [first, end). `leads`: and serves; `whole`: its rows are those of its
    applied offset."""

    bucket_type: bytes
    partition: int
    segments: tuple[int, int]
    leads: bool
    whole: bool


class RowStreams:
    """Opens streams. `held(partition)` is this node's copy, None when it has none; `confirm(partition)` returns when
    its leader may be read as committed, or raises Retryable."""

    def __init__(
        self,
        store: Store,
        *,
        cluster: bytes,
        cluster_name: str,
        node: str,
        held: Callable[[int], LocalReplica | None],
        confirm: Callable[[int], Awaitable[None]],
    ) -> None:
        self._store = store
        self._cluster = cluster
        self._cluster_name = cluster_name
        self._node = node
        self._held = held
        self._confirm = confirm
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="rows")
        self._counting = ThreadPoolExecutor(1, thread_name_prefix="rows-estimates")
        """Counts some rows for plans, which must not wait for the frames of all streams."""
        self._pace = TreeThrottle()
        self._slice_began_s = 0.0
        self._due_s = 0.0
        """Rest that was put off."""
        self._stopping = False
        self._estimates: dict[LocalReplica, tuple[float, int | None]] = {}
        self.running = 0
        self.rows_sent = 0
        self.bytes_sent = 0

    def metrics(self) -> Iterator[Sample]:
        """What Prometheus is shown."""
        yield "isthmus_row_streams", {}, self.running
        yield "isthmus_row_stream_rows_total", {}, self.rows_sent
        yield "isthmus_row_stream_bytes_total", {}, self.bytes_sent

    def stop(self) -> None:
        """The node is stopping: streams end at their next frame, cut off, so that their readers ask another node."""
        self._stopping = True

    async def close(self) -> None:
        """All streams are let go of; the store may be closed then."""
        for thread in (self._thread, self._counting):
            await asyncio.get_running_loop().run_in_executor(None, thread.shutdown)

    async def rows(self, asked: RowsAsked) -> AsyncGenerator[bytes, None]:
        """The frames of a stream, opened. Raises BadInput, Retryable, LocalFault."""
        held = self._copy(asked.bucket_type, asked.partition)
        first, end = held.segments
        if not first <= asked.first <= asked.end <= end:
            raise BadInput(
                f"partition {asked.partition} has segments {first} to {end}, not {asked.first} to {asked.end}: "
                "plan anew"
            )
        if asked.consistency is Consistency.COMMITTED:
            if not held.leads:
                raise NotLeader(f"this node does not lead partition {asked.partition}")
            await self._confirm(asked.partition)
        return await self._opened(
            asked.partition, asked.first, asked.end, lambda snapshot: _frames(snapshot, asked, self._rest)
        )

    async def changes(self, asked: ChangesAsked) -> AsyncGenerator[bytes, None]:
        """The frames of a stream of changes, opened. Raises NotReady when this copy is not applied as far."""
        self._copy(asked.bucket_type, asked.partition)
        applied = self._store.applied(asked.partition).offset
        if applied < asked.end:
            raise NotReady(f"this copy of partition {asked.partition} is applied to {applied}, not to {asked.end}")
        return await self._opened(
            asked.partition, asked.first, asked.end, lambda snapshot: _changed(self._store, snapshot, asked, self._rest)
        )

    def estimate(self, held: LocalReplica) -> int | None:
        """About how many rows a copy has; exact when there are few. In a thread. None when it cannot be read."""
        first, end = held.segments
        count, last = 0, first
        try:
            with (
                closing(self._store.far.snapshot(held.partition)) as snapshot,
                closing(snapshot.key_pages(segment_name(first), end, SAMPLE_ROWS, FRAME_BYTES)) as pages,
            ):
                for names, _ in pages:
                    count += len(names)
                    last = int.from_bytes(names[-1][:3], "big")
                    if count >= SAMPLE_ROWS:
                        return count * (end - first) // (last + 1 - first)
        except IsthmusError:
            return None
        return count

    async def estimates(self, held: list[LocalReplica]) -> list[int | None]:
        """The same of many; of one that was looked at a moment ago as it was then."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._counting, lambda: [self._known_estimate(one) for one in held])

    def _known_estimate(self, held: LocalReplica) -> int | None:
        """In the thread."""
        kept_s, known = self._estimates.get(held, (-ESTIMATE_KEPT_S, None))
        now_s = perf_counter()
        if now_s - kept_s < ESTIMATE_KEPT_S:
            return known
        found = self.estimate(held)
        self._estimates = {one: kept for one, kept in self._estimates.items() if now_s - kept[0] < ESTIMATE_KEPT_S}
        self._estimates[held] = (now_s, found)
        return found

    def _next(self, frames: Iterator[Rows | SkippedTo]) -> tuple[int, bytes]:
        """In the thread: how many rows the next frame has, and its bytes; none at the end."""
        self._slice_began_s = perf_counter()
        found = next(frames, None)
        if found is None:
            return 0, b""
        data = encode_passed(found) if isinstance(found, SkippedTo) else encode_frame(found)
        self._rest()
        return (0 if isinstance(found, SkippedTo) else len(found.names)), data

    def _rest(self) -> None:
        """In the thread, after a slice."""
        now_s = perf_counter()
        self._due_s += self._pace.rest_s(now_s - self._slice_began_s, now_s, process_time() - thread_time())
        if self._due_s >= REST_MIN_S:
            sleep(self._due_s)
            self._due_s = 0.0
        self._slice_began_s = perf_counter()

    def applied(self, partition: int) -> AppliedPosition:
        """How far a copy is applied."""
        return self._store.applied(partition)

    def _copy(self, bucket_type: bytes, partition: int) -> LocalReplica:
        held = self._held(partition)
        if held is None or held.bucket_type != bucket_type:
            raise NotReady(
                f"this node has no copy of partition {partition} of that bucket type: ask another, or plan anew"
            )
        if not held.whole:
            raise NotReady(f"the copy of partition {partition} on this node is being filled")
        return held

    async def _opened(
        self, partition: int, first: int, end: int, read: Callable[[Snapshot], Iterator[Rows | SkippedTo]]
    ) -> AsyncGenerator[bytes, None]:
        if self._stopping:
            raise NotReady("this node is stopping")
        if self.running >= STREAMS_MAX:
            raise Overloaded(f"{STREAMS_MAX} streams of rows are open on this node, which is its limit")
        self.running += 1
        loop = asyncio.get_running_loop()
        try:
            snapshot = await loop.run_in_executor(self._thread, self._store.far.snapshot, partition)
        except BaseException:
            self.running -= 1
            raise
        as_of = snapshot.end
        head = Head(
            self._cluster, self._cluster_name, self._node, partition, first, end, as_of.epoch, as_of.offset
        )  # fmt: skip
        return self._streamed(head, snapshot, read(snapshot))

    async def _streamed(
        self, head: Head, snapshot: Snapshot, frames: Iterator[Rows | SkippedTo]
    ) -> AsyncGenerator[bytes, None]:
        """Owns the snapshot and the place among the streams."""
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
            # In the thread, behind a frame that may be under way there: one thread at a time uses a snapshot.
            self._thread.submit(_let_go, frames, snapshot)


def _let_go(frames: Iterator[Rows | SkippedTo], snapshot: Snapshot) -> None:
    close = getattr(frames, "close", None)
    if close is not None:
        close()
    snapshot.close()


def _frames(snapshot: Snapshot, asked: RowsAsked, rest: Callable[[], None]) -> Iterator[Rows | SkippedTo]:
    """What was asked for; a mark where as many rows as a frame has were passed over: the thread is everybody's, and a
    reader that hears nothing takes the node for dead."""
    start = asked.after + b"\0" if asked.after else segment_name(asked.first)
    start = max(start, segment_name(asked.first))
    head = bucket_head(asked.bucket) + asked.prefix if asked.bucket else b""
    with closing(snapshot.key_pages(start, asked.end, SLICE_ROWS, FRAME_BYTES // FRAME_SLICES)) as pages:
        while True:
            names: list[bytes] = []
            key_rows: list[bytes] = []
            slices = 0
            for page in islice(pages, FRAME_SLICES):
                kept = _kept(asked, head, *page) or page
                names += kept[0]
                key_rows += kept[1]
                slices += 1
                if slices < FRAME_SLICES:
                    rest()
            if not slices:
                return
            if not names:
                yield SkippedTo(page[0][-1])
            elif asked.view is RowView.KEYS:
                yield Rows(names, key_rows, ())
            else:
                yield from _with_objects(snapshot, names, key_rows, rest)


def _kept(
    asked: RowsAsked, head: bytes, names: list[bytes], rows: list[bytes]
) -> tuple[list[bytes], list[bytes]] | None:
    """The rows that were asked for; None: all of them. Of one whose time cannot be read it is not known: it stays."""
    if not head and not asked.since_ms and not asked.before_ms:
        return None
    places = [at for at, name in enumerate(names) if name.startswith(head, 3)] if head else range(len(names))
    if asked.since_ms or asked.before_ms:
        before_ms = asked.before_ms or 1 << 63
        places = [at for at in places if asked.since_ms <= _modified_ms(rows[at], asked.since_ms) < before_ms]
    return [names[at] for at in places], [rows[at] for at in places]


def _modified_ms(row: bytes, unknown: int) -> int:
    try:
        return decode_key_row(row).last_modified_ms
    except IsthmusError:
        return unknown


def _with_objects(
    snapshot: Snapshot, names: list[bytes], key_rows: list[bytes], rest: Callable[[], None]
) -> Iterator[Rows]:
    """Frames of whole objects, each of about FRAME_BYTES. An object that is missing, or larger than OBJECT_BYTES_MAX,
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
"""Change rows that are looked up at once."""


def _changed(store: Store, snapshot: Snapshot, asked: ChangesAsked, rest: Callable[[], None]) -> Iterator[Rows]:
    """The keys changed in the range and not since, as they are in the snapshot. A row that changed behind the range
    stands there in the index, and comes with the range in which it now is."""
    at = asked.first
    while at < asked.end:
        found = store.changes(asked.partition, at, CHANGES_READ)
        names: list[bytes] = []
        key_rows: list[bytes] = []
        for change in found:
            if change.offset >= asked.end:
                break
            name = segment_name(change.key_hash >> 44) + bucket_head(change.bucket) + change.key
            row = snapshot.named_key_row(name)
            if row is not None and _offset_of(row) in (change.offset, None):
                names.append(name)
                key_rows.append(row)
        if names:
            if asked.view is RowView.KEYS:
                yield Rows(names, key_rows, ())
            else:
                yield from _with_objects(snapshot, names, key_rows, rest)
        if len(found) < CHANGES_READ:
            return
        at = found[-1].offset + 1


def _offset_of(row: bytes) -> int | None:
    """None of a row that cannot be read: it is told of like any other, and whoever reads it sees what is wrong."""
    try:
        return decode_key_row(row).offset
    except IsthmusError:
        return None
