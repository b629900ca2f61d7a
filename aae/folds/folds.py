"""Folds: questions and acts over all keys of a partition, a page at a time, by the node that leads it.

A page reads a bounded number of rows, from where the last one ended, and says where the next one begins; nobody holds
anything between two pages. So whoever asks sees how far it is, and stops it by asking no more. A page is as of its own
moment. What a row must be like stands in the scope, what is made of it in the kind. Rows are read in a thread; what a
kind does with what it found (references, tombstones) it does on the event loop. Who asks all: `aae.folds.fold_rpc`.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Generator, Sequence
from concurrent.futures import Executor
from contextlib import closing
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, NamedTuple, Protocol

from xxhash import xxh64_intdigest

from isthmus.aae.exchange.local import Led
from isthmus.repl.model.entry import KeyRow, decode_key_row
from isthmus.repl.model.errors import CodecError, NotLeader, Overloaded
from isthmus.repl.model.keys import Key, key_hash, segment_of
from isthmus.repl.store.port import Snapshot, Store
from isthmus.repl.store.rows import bucket_head

ROWS_MAX: Final = 20_000
"""Rows that one page reads at most: about 50 ms of a core."""

FOUND_MAX: Final = 2_000
"""Keys that one page names or acts upon at most."""


READS_AT_ONCE: Final = 1
"""Pages that are read at once: one of a node's two reading threads stays for listings, queues and exchanges."""

UNREADABLE: Final = "a damaged key row was passed over; the node mends it, or: isthmus fold repair-keys --mend"
"""Why a page leaves a key out, in its `refused`."""

WAITING_MAX: Final = 32
"""Pages that wait for their turn, some seconds in all; one more is told to come back."""


class FoldKind(StrEnum):
    """What is made of the rows of a scope."""

    LIST_BUCKETS = "list-buckets"
    FIND_KEYS = "find-keys"
    FIND_TOMBS = "find-tombs"
    OBJECT_STATS = "object-stats"
    REPL_KEYS = "repl-keys"
    REPAIR_KEYS = "repair-keys"
    REAP_TOMBS = "reap-tombs"
    ERASE_KEYS = "erase-keys"


ACTS: Final = frozenset({FoldKind.REPL_KEYS, FoldKind.REPAIR_KEYS, FoldKind.REAP_TOMBS, FoldKind.ERASE_KEYS})
"""Kinds that change something, and so can be tried dry first."""


class FoldScope(NamedTuple):
    """Which rows count; None: any. Segments [first, end) of 2^20; keys [key_from, key_to) in byte order; last modified
    in [since_ms, before_ms). `siblings_over`, `size_over`: for find-keys, either is enough."""

    bucket: bytes | None = None
    key_from: bytes | None = None
    key_to: bytes | None = None
    segments: tuple[int, int] | None = None
    since_ms: int = 0
    before_ms: int = 0
    siblings_over: int | None = None
    size_over: int | None = None


class FoldCursor(NamedTuple):
    """Behind which row a page begins: one of a segment, by its name in the key store (b"": with its first row); in
    scopes of one bucket without segments, a key, but for repair-keys."""

    segment: int = 0
    name: bytes = b""


class FoldRequest(NamedTuple):
    """One page of one partition. `queue` is for repl-keys; with `dry` nothing is changed."""

    kind: FoldKind
    scope: FoldScope
    place: FoldCursor = FoldCursor()
    queue: str = ""
    dry: bool = False


class FoldMatch(NamedTuple):
    """A key that a fold names, and why if it is not plain."""

    bucket: bytes
    key: bytes
    siblings: int
    size_bytes: int
    modified_ms: int
    note: str = ""


@dataclass(slots=True)
class Page:
    """What a page found. `next` is None after the last one. `done`: what was acted upon; `refused`: what was not, by
    reason, and what was left out as UNREADABLE. The counters are for object-stats (and list-buckets, by bucket); sizes
    by powers of two, as the exponent."""

    next: FoldCursor | None = None
    scanned: int = 0
    matched: int = 0
    found: list[FoldMatch] = field(default_factory=list)
    done: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    buckets: Counter[bytes] = field(default_factory=Counter)
    objects: int = 0
    tombstones: int = 0
    bytes: int = 0
    sizes: Counter[int] = field(default_factory=Counter)
    siblings: Counter[int] = field(default_factory=Counter)


class FoldActions(Protocol):
    """What folds that act need. Each returns how many keys it took and why others were refused."""

    async def push(self, queue: str, keys: Sequence[Key]) -> tuple[int, Counter[str]]:
        """References at the lowest priority, waiting for room."""

    async def reap(self, keys: Sequence[Key]) -> tuple[int, Counter[str]]:
        """Take tombstones away, where every queue has passed them."""

    async def mend(self, partition: int, keys: Sequence[tuple[bytes, bytes]]) -> tuple[int, Counter[str]]:
        """Fetch the damaged rows of these (bucket, key) again, from another replica."""

    async def erase(self, keys: Sequence[tuple[Key, bytes]]) -> tuple[int, Counter[str]]:
        """Delete keys, each with the clock that was found: what was written since stays, as a sibling."""


class Folds:
    """Answers for the partitions led here. `led(partition)` is None for others."""

    def __init__(
        self,
        store: Store,
        *,
        led: Callable[[int], tuple[bytes, Led] | None],
        hands: FoldActions,
        read_pool: Executor,
    ) -> None:
        self._store = store
        self._led = led
        self._hands = hands
        self._pool = read_pool
        self.on_damaged: Callable[[int, int | None], None] = lambda _partition, _segment: None
        """Called with the partition and segment of a key row that is damaged. Set by whoever mends rows."""
        self._turns = asyncio.Semaphore(READS_AT_ONCE)
        self._waiting = 0

    async def page(self, partition: int, asked: FoldRequest) -> Page:
        """One page. Raises NotLeader, Overloaded, Corruption, LocalFault, and what acting raises."""
        led = self._led(partition)
        if led is None:
            raise NotLeader(f"this node does not lead partition {partition}")
        bucket_type, place = led
        if asked.kind is FoldKind.REPL_KEYS:
            await self._hands.push(asked.queue, ())  # a queue that is not there is told of at once, and dry, too
        page, rows, damaged = await self._in_turn(place, asked)
        if self._led(partition) is None:  # and the copy that was read may have been going already
            raise NotLeader(f"partition {partition} moved from this node while its rows were read")
        for segment in damaged:
            self.on_damaged(partition, segment)
        if asked.dry or not (rows or page.found):
            return page
        keys = [Key(bucket_type, found.bucket, found.key) for found, _ in rows]
        acting: Awaitable[tuple[int, Counter[str]]]
        match asked.kind:
            case FoldKind.REPL_KEYS:
                acting = self._hands.push(asked.queue, keys)
            case FoldKind.REPAIR_KEYS:
                acting = self._hands.mend(partition, [(found.bucket, found.key) for found in page.found])
            case FoldKind.REAP_TOMBS:
                acting = self._hands.reap(keys)
            case FoldKind.ERASE_KEYS:
                acting = self._hands.erase([(key, row.clock) for key, (_, row) in zip(keys, rows, strict=True)])
            case _:
                return page
        page.done, refused = await acting
        page.refused.update(refused)
        return page

    async def _in_turn(self, led: Led, asked: FoldRequest) -> tuple[Page, list[tuple[FoldMatch, KeyRow]], set[int]]:
        if self._waiting >= WAITING_MAX:
            raise Overloaded(f"{WAITING_MAX} pages of folds wait on this node; ask again")
        self._waiting += 1
        try:
            async with self._turns:
                return await asyncio.get_running_loop().run_in_executor(self._pool, self._read, led, asked)
        finally:
            self._waiting -= 1

    def _read(self, led: Led, asked: FoldRequest) -> tuple[Page, list[tuple[FoldMatch, KeyRow]], set[int]]:
        """In a thread: the page, the rows that are to be acted upon, and segments with a row that is damaged."""
        page = Page()
        acts: list[tuple[FoldMatch, KeyRow]] = []
        damaged: set[int] = set()
        last = asked.place
        with (
            closing(self._store.far.snapshot(led.partition)) as snapshot,
            closing(self._rows(led, asked, snapshot)) as rows,
        ):
            for place, bucket, key, data in rows:
                if page.scanned >= ROWS_MAX or len(page.found) + len(acts) >= FOUND_MAX:
                    page.next = last
                    break
                last = place
                page.scanned += 1
                try:
                    row = decode_key_row(data)
                except CodecError:  # its times are not known
                    if not _named(asked.scope, bucket, key):
                        continue
                    if asked.kind is FoldKind.REPAIR_KEYS:
                        page.matched += 1
                        page.found.append(FoldMatch(bucket, key, 0, 0, 0, "its key row cannot be read"))
                    else:
                        page.refused[UNREADABLE] += 1
                        damaged.add(segment_of(key_hash(bucket, key)))
                    continue
                if _within(asked.scope, bucket, key, row):
                    self._take(asked, page, acts, snapshot, bucket, key, row)
        return page, acts, damaged

    def _rows(
        self, led: Led, asked: FoldRequest, snapshot: Snapshot
    ) -> Generator[tuple[FoldCursor, bytes, bytes, bytes], None, None]:
        """The rows behind the page's place, each with its own: (place, bucket, key, encoded key row)."""
        scope, place = asked.scope, asked.place
        # A listing is of objects: a key whose object is lost is not in it.
        if scope.bucket is not None and scope.segments is None and asked.kind is not FoldKind.REPAIR_KEYS:
            for one in self._store.list_keys(led.partition, scope.bucket, _behind(scope, place)):
                if scope.key_to is not None and one.key >= scope.key_to:
                    return
                yield FoldCursor(0, one.key), one.bucket, one.key, one.row
            return
        first, end = led.segments
        if scope.segments is not None:
            first, end = max(first, scope.segments[0]), min(end, scope.segments[1])
        first = max(first, place.segment)
        if first >= end:
            return
        for segment, bucket, key, row in snapshot.key_rows(first, end):
            name = bucket_head(bucket) + key
            if segment != place.segment or name > place.name:  # a segment may have more rows than a page
                yield FoldCursor(segment, name), bucket, key, row

    def _take(
        self,
        asked: FoldRequest,
        page: Page,
        acts: list[tuple[FoldMatch, KeyRow]],
        snapshot: Snapshot,
        bucket: bytes,
        key: bytes,
        row: KeyRow,
    ) -> None:
        found = FoldMatch(bucket, key, row.sibling_count, row.size_bytes, row.last_modified_ms)
        match asked.kind:
            case FoldKind.LIST_BUCKETS:
                if not row.tombstone:
                    page.buckets[bucket] += 1
                    page.matched += 1
            case FoldKind.FIND_KEYS:
                if not row.tombstone and _large(asked.scope, row):
                    page.found.append(found)
                    page.matched += 1
            case FoldKind.FIND_TOMBS:
                if row.tombstone:
                    page.found.append(found)
                    page.matched += 1
            case FoldKind.OBJECT_STATS:
                _count(page, row)
            case FoldKind.REPAIR_KEYS:
                note = _damage(snapshot, bucket, key, row)
                page.matched += 1
                if note:
                    page.found.append(found._replace(note=note))
            case FoldKind.REAP_TOMBS | FoldKind.ERASE_KEYS | FoldKind.REPL_KEYS:
                if asked.kind is FoldKind.REPL_KEYS or row.tombstone == (asked.kind is FoldKind.REAP_TOMBS):
                    acts.append((found, row))
                    page.matched += 1


def _behind(scope: FoldScope, place: FoldCursor) -> tuple[bytes, bytes] | None:
    """Behind which (bucket, key) a listing resumes."""
    assert scope.bucket is not None
    if place.name:
        return scope.bucket, place.name
    start = (scope.key_from or b"")[:-1]  # less than `key_from`, and little lies between
    return (scope.bucket, start) if start else None


def _named(scope: FoldScope, bucket: bytes, key: bytes) -> bool:
    return (
        (scope.bucket is None or bucket == scope.bucket)
        and (scope.key_from is None or key >= scope.key_from)
        and (scope.key_to is None or key < scope.key_to)
        and (scope.segments is None or scope.segments[0] <= segment_of(key_hash(bucket, key)) < scope.segments[1])
    )


def _within(scope: FoldScope, bucket: bytes, key: bytes, row: KeyRow) -> bool:
    return (
        _named(scope, bucket, key)
        and row.last_modified_ms >= scope.since_ms
        and (not scope.before_ms or row.last_modified_ms < scope.before_ms)
    )


def _large(scope: FoldScope, row: KeyRow) -> bool:
    if scope.siblings_over is None and scope.size_over is None:
        return True
    return (scope.siblings_over is not None and row.sibling_count > scope.siblings_over) or (
        scope.size_over is not None and row.size_bytes > scope.size_over
    )


def _count(page: Page, row: KeyRow) -> None:
    page.matched += 1
    if row.tombstone:
        page.tombstones += 1
        return
    page.objects += 1
    page.bytes += row.size_bytes
    page.sizes[row.size_bytes.bit_length()] += 1
    page.siblings[row.sibling_count] += 1


def _damage(snapshot: Snapshot, bucket: bytes, key: bytes, row: KeyRow) -> str:
    data = snapshot.object(bucket, key)
    if data is None:
        return "the key row has no object"
    if xxh64_intdigest(data) != row.hash64:
        return "the object is not what its key row says: its hash differs"
    return ""
