"""Folds: passes over the keys of a partition that list, count or change them, one page at a time.

The partition's leader reads a page: a bounded number of rows from where the previous page ended. It returns a cursor
and keeps no state between pages, so a caller sees the progress, and stops by sending no further request. Each page
reads its own snapshot. FoldScope selects the rows, FoldKind what is done with them. Rows are read in a thread; acts
(references, tombstones) run on the event loop.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import closing
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, NamedTuple, Protocol

from xxhash import xxh64_intdigest

from isthmus.aae.ports import LedPartition, LocalReplicas
from isthmus.aae.riak_trees.columns import leaves_of
from isthmus.repl.model.entry import KeyRow, decode_key_row
from isthmus.repl.model.errors import CodecError, Corruption, IsthmusError, NotLeader, Overloaded
from isthmus.repl.model.keys import Key, key_hash, segment_of
from isthmus.repl.model.ports import DamageListener
from isthmus.repl.model.vclock import Clock, decode_clock
from isthmus.repl.riak.tree_hash import segment_id
from isthmus.repl.store.port import Snapshot, Store
from isthmus.repl.store.rows import bucket_head
from isthmus.repl.unforeseen import unforeseen

ROWS_MAX: Final = 20_000
"""Rows read for one page: about 50 ms of a core."""

FOUND_MAX: Final = 2_000
"""Keys that one page returns or acts upon."""


READS_AT_ONCE: Final = 1
"""Pages read concurrently: one of a node's two reading threads stays free for listings, queues and exchanges."""

UNREADABLE: Final = "a damaged key row was passed over; the node mends it, or: isthmus fold repair-keys --mend"
"""Why a page left out a key; a key of its `refused`."""

WAITING_MAX: Final = 32
"""Pages that wait for the reader, some seconds in all; further ones are refused."""


class FoldKind(StrEnum):
    """Action of a fold on the rows of its scope."""

    LIST_BUCKETS = "list-buckets"
    FIND_KEYS = "find-keys"
    FIND_TOMBS = "find-tombs"
    OBJECT_STATS = "object-stats"
    REPL_KEYS = "repl-keys"
    REPAIR_KEYS = "repair-keys"
    REAP_TOMBS = "reap-tombs"
    ERASE_KEYS = "erase-keys"
    TOMB_CLOCKS = "tomb-clocks"
    """As find-tombs, with their clocks. This and the next ones are for Riak's tools; nodes of earlier versions refuse
    them."""
    KEY_STATS = "key-stats"
    """As object-stats, but tombstones are objects, too, and sizes are by powers of ten."""
    KEY_CLOCKS = "key-clocks"
    """All keys with their clocks, tombstones too."""
    RIAK_TREE = "riak-tree"
    """The leaves of the tree that a Riak would have of the keys, tombstones too."""


ACTS: Final = frozenset({FoldKind.REPL_KEYS, FoldKind.REPAIR_KEYS, FoldKind.REAP_TOMBS, FoldKind.ERASE_KEYS})
"""Kinds that change something, and therefore have a dry run."""


class RiakSegments(NamedTuple):
    """Segments of a Riak's tree with 2^bits leaves."""

    bits: int
    segments: tuple[int, ...]


class RiakTreeShape(NamedTuple):
    """A tree of a Riak with 2^bits leaves; `hash_iv`: what is hashed before each clock."""

    bits: int
    hash_iv: int | None = None


class FoldScope(NamedTuple):
    """The rows that a fold reads; None: all. Segments [first, end) of 2^20; keys [key_from, key_to) in byte order; last
    modified in [since_ms, before_ms), 0: no bound. `siblings_over`, `size_over`: of find-keys; either suffices.
    `riak_segments`: only keys that a Riak has in these; nodes of earlier versions refuse a scope that has it."""

    bucket: bytes | None = None
    key_from: bytes | None = None
    key_to: bytes | None = None
    segments: tuple[int, int] | None = None
    since_ms: int = 0
    before_ms: int = 0
    siblings_over: int | None = None
    size_over: int | None = None
    riak_segments: RiakSegments | None = None


class FoldCursor(NamedTuple):
    """The last row of the previous page: its segment, and its name in the key store (b"": none yet). With a bucket and
    without segments the name is a key, except for repair-keys."""

    segment: int = 0
    name: bytes = b""


class FoldRequest(NamedTuple):
    """One page of one partition. `queue` is for repl-keys, `tree` for riak-tree; `dry`: change nothing."""

    kind: FoldKind
    scope: FoldScope
    cursor: FoldCursor = FoldCursor()
    queue: str = ""
    dry: bool = False
    tree: RiakTreeShape | None = None


class FoldMatch(NamedTuple):
    """A key that a fold returns; `note`: what is wrong with it; `clock`: encoded, of tomb-clocks and key-clocks."""

    bucket: bytes
    key: bytes
    siblings: int
    size_bytes: int
    modified_ms: int
    note: str = ""
    clock: bytes = b""


@dataclass(slots=True)
class Page:
    """Result of a page. `next` is None after the last one. `done`: number of keys acted upon; `refused`: number of
    others by reason. The counters are for object-stats and key-stats (`buckets` for list-buckets); `sizes` by powers of
    two or of ten, as the exponent."""

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
    leaves: Mapping[int, int] = field(default_factory=dict)
    """Of riak-tree: leaf -> what the page's keys change it by."""


class FoldActions(Protocol):
    """Acts of folds. Each returns how many keys it took, and how many it refused by reason."""

    async def push(self, queue: str, keys: Sequence[Key]) -> tuple[int, Counter[str]]:
        """Enqueue references at fold priority, waiting for capacity."""

    async def reap(self, keys: Sequence[Key]) -> tuple[int, Counter[str]]:
        """Remove tombstones that every queue has passed."""

    async def repair(self, partition: int, keys: Sequence[tuple[bytes, bytes]]) -> tuple[int, Counter[str]]:
        """Repair the damaged rows of these (bucket, key)."""

    async def erase(self, keys: Sequence[tuple[Key, bytes]]) -> tuple[int, Counter[str]]:
        """Delete keys, each with the clock that was read: a later write stays, as a sibling."""


class Folds:
    """Reads pages of the partitions that this node leads."""

    def __init__(
        self,
        store: Store,
        *,
        replicas: LocalReplicas,
        actions: FoldActions,
        damage_listener: DamageListener,
        read_pool: Executor,
    ) -> None:
        """`damage_listener` gets damaged key rows."""
        self._store = store
        self._replicas = replicas
        self._actions = actions
        self._pool = read_pool
        self._damage_listener = damage_listener
        self._reads = asyncio.Semaphore(READS_AT_ONCE)
        self._waiting = 0

    async def page(self, partition: int, request: FoldRequest) -> Page:
        """One page. Raises NotLeader, Overloaded, Corruption, LocalFault, and the errors of an act."""
        led = self._replicas.led_partition(partition)
        if led is None:
            raise NotLeader(f"this node does not lead partition {partition}")
        bucket_type, partition_led = led
        if request.kind is FoldKind.REPL_KEYS:
            await self._actions.push(request.queue, ())  # raises for an unknown queue, also in a dry run
        page, rows, damaged = await self._read_in_turn(partition_led, request, bucket_type)
        if self._replicas.led_partition(partition) is None:  # the replica may have been removed while it was read
            raise NotLeader(f"partition {partition} moved from this node while its rows were read")
        for segment in damaged:
            self._damage_listener.on_damaged_row(partition, segment)
        if request.dry or not (rows or page.found):
            return page
        keys = [Key(bucket_type, found.bucket, found.key) for found, _ in rows]
        acting: Awaitable[tuple[int, Counter[str]]]
        match request.kind:
            case FoldKind.REPL_KEYS:
                acting = self._actions.push(request.queue, keys)
            case FoldKind.REPAIR_KEYS:
                acting = self._actions.repair(partition, [(found.bucket, found.key) for found in page.found])
            case FoldKind.REAP_TOMBS:
                acting = self._actions.reap(keys)
            case FoldKind.ERASE_KEYS:
                acting = self._actions.erase([(key, row.clock) for key, (_, row) in zip(keys, rows, strict=True)])
            case _:
                return page
        page.done, refused = await acting
        page.refused.update(refused)
        return page

    async def _read_in_turn(
        self, led: LedPartition, request: FoldRequest, bucket_type: bytes
    ) -> tuple[Page, list[tuple[FoldMatch, KeyRow]], set[int]]:
        if self._waiting >= WAITING_MAX:
            raise Overloaded(f"{WAITING_MAX} pages of folds wait on this node; ask again")
        self._waiting += 1
        try:
            async with self._reads:
                return await asyncio.get_running_loop().run_in_executor(
                    self._pool, self._read, led, request, bucket_type
                )
        finally:
            self._waiting -= 1

    def _read(
        self, led: LedPartition, request: FoldRequest, bucket_type: bytes
    ) -> tuple[Page, list[tuple[FoldMatch, KeyRow]], set[int]]:
        """In a thread: (page, rows to act upon, segments with a damaged row)."""
        page = Page()
        acts: list[tuple[FoldMatch, KeyRow]] = []
        damaged: set[int] = set()
        last = request.cursor
        chosen = _riak_filter(request.scope.riak_segments, bucket_type)
        found_max = FOUND_MAX if request.tree is None else ROWS_MAX
        with (
            closing(self._store.transfers.snapshot(led.partition)) as snapshot,
            closing(self._rows(led, request, snapshot)) as rows,
        ):
            for place, bucket, key, data in rows:
                if page.scanned >= ROWS_MAX or len(page.found) + len(acts) >= found_max:
                    page.next = last
                    break
                last = place
                page.scanned += 1
                if chosen is not None and not chosen(bucket, key):
                    continue
                try:
                    row = decode_key_row(data)
                except CodecError:  # its times are unknown
                    if not _in_key_range(request.scope, bucket, key):
                        continue
                    if request.kind is FoldKind.REPAIR_KEYS:
                        page.matched += 1
                        page.found.append(FoldMatch(bucket, key, 0, 0, 0, "its key row cannot be read"))
                    else:
                        page.refused[UNREADABLE] += 1
                        damaged.add(segment_of(key_hash(bucket, key)))
                    continue
                try:
                    if _in_scope(request.scope, bucket, key, row):
                        self._process(request, page, acts, snapshot, bucket, key, row)
                except IsthmusError:
                    raise
                except Exception as error:  # noqa: BLE001 -- the other rows are read all the same
                    bug = unforeseen.exception("fold.row_failed", error, partition=led.partition, fold=request.kind)
                    page.refused[f"{bug.reason}: {bug}"] += 1
        if request.tree is not None:
            _hash(page, request.tree, bucket_type)
        return page, acts, damaged

    def _rows(
        self, led: LedPartition, request: FoldRequest, snapshot: Snapshot
    ) -> Generator[tuple[FoldCursor, bytes, bytes, bytes], None, None]:
        """(cursor, bucket, key, encoded key row) of the rows behind the request's cursor."""
        scope, place = request.scope, request.cursor
        # repair-keys reads key rows, since a listing omits keys whose object is lost.
        if scope.bucket is not None and scope.segments is None and request.kind is not FoldKind.REPAIR_KEYS:
            for one in self._store.list_keys(led.partition, scope.bucket, _resume_after(scope, place)):
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

    def _process(
        self,
        request: FoldRequest,
        page: Page,
        acts: list[tuple[FoldMatch, KeyRow]],
        snapshot: Snapshot,
        bucket: bytes,
        key: bytes,
        row: KeyRow,
    ) -> None:
        found = FoldMatch(bucket, key, row.sibling_count, row.size_bytes, row.last_modified_ms)
        match request.kind:
            case FoldKind.LIST_BUCKETS:
                if not row.tombstone:
                    page.buckets[bucket] += 1
                    page.matched += 1
            case FoldKind.FIND_KEYS:
                if not row.tombstone and _large(request.scope, row):
                    page.found.append(found)
                    page.matched += 1
            case FoldKind.FIND_TOMBS:
                if row.tombstone:
                    page.found.append(found)
                    page.matched += 1
            case FoldKind.TOMB_CLOCKS:
                if row.tombstone:
                    page.found.append(found._replace(clock=row.clock))
                    page.matched += 1
            case FoldKind.KEY_CLOCKS | FoldKind.RIAK_TREE:
                page.found.append(found._replace(clock=row.clock))
                page.matched += 1
            case FoldKind.OBJECT_STATS:
                _count(page, row)
            case FoldKind.KEY_STATS:
                _count_key(page, row)
            case FoldKind.REPAIR_KEYS:
                note = _damage_note(snapshot, bucket, key, row)
                page.matched += 1
                if note:
                    page.found.append(found._replace(note=note))
            case FoldKind.REAP_TOMBS | FoldKind.ERASE_KEYS | FoldKind.REPL_KEYS:
                if request.kind is FoldKind.REPL_KEYS or row.tombstone == (request.kind is FoldKind.REAP_TOMBS):
                    acts.append((found, row))
                    page.matched += 1


def _resume_after(scope: FoldScope, place: FoldCursor) -> tuple[bytes, bytes] | None:
    """The (bucket, key) behind which a listing resumes."""
    assert scope.bucket is not None
    if place.name:
        return scope.bucket, place.name
    start = (scope.key_from or b"")[:-1]  # a little below `key_from`
    return (scope.bucket, start) if start else None


def _in_key_range(scope: FoldScope, bucket: bytes, key: bytes) -> bool:
    return (
        (scope.bucket is None or bucket == scope.bucket)
        and (scope.key_from is None or key >= scope.key_from)
        and (scope.key_to is None or key < scope.key_to)
        and (scope.segments is None or scope.segments[0] <= segment_of(key_hash(bucket, key)) < scope.segments[1])
    )


def _riak_filter(chosen: RiakSegments | None, bucket_type: bytes) -> Callable[[bytes, bytes], bool] | None:
    """Whether a Riak has (bucket, key) in one of these segments; None: no matter where."""
    if chosen is None:
        return None
    leaves, segments = (1 << chosen.bits) - 1, frozenset(chosen.segments)
    return lambda bucket, key: segment_id(bucket_type, bucket, key) & leaves in segments


def _hash(page: Page, tree: RiakTreeShape, bucket_type: bytes) -> None:
    """Put the leaves of a tree in the place of the keys that a page has found."""
    keys: list[tuple[bytes, bytes]] = []
    clocks: list[Clock] = []
    for one in page.found:
        try:
            clocks.append(decode_clock(one.clock))
        except CodecError:
            page.refused[UNREADABLE] += 1
            continue
        keys.append((one.bucket, one.key))
    page.leaves = leaves_of(bucket_type, keys, clocks, tree.bits, tree.hash_iv)
    page.found = []


def _in_scope(scope: FoldScope, bucket: bytes, key: bytes, row: KeyRow) -> bool:
    return (
        _in_key_range(scope, bucket, key)
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


def _count_key(page: Page, row: KeyRow) -> None:
    page.matched += 1
    page.tombstones += row.tombstone
    page.objects += 1
    page.bytes += row.size_bytes
    page.sizes[len(str(row.size_bytes)) - 1] += 1
    page.siblings[row.sibling_count] += 1


def _damage_note(snapshot: Snapshot, bucket: bytes, key: bytes, row: KeyRow) -> str:
    try:
        data = snapshot.object(bucket, key)
    except Corruption as error:
        return f"its object cannot be read: {error}"
    if data is None:
        return "the key row has no object"
    if xxh64_intdigest(data) != row.hash64:
        return "the object does not match its key row: its hash differs"
    return ""
