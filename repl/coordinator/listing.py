"""Listings: the live keys of a bucket, or the buckets of a type, over all partitions, wherever they are led.

`keys` and `buckets` list partitions one after the other, each as it was committed when its turn came. A partition led
here is streamed from one snapshot. One that is led elsewhere comes in pages, each committed when it was read; after a
change of leader the next leader continues where the last one stopped. Memory holds one batch at a time.

`in_order` merges all partitions by name. Each is read in pages, wherever it is led, and a page goes on behind a name,
so the listing can be continued at any later time. Memory holds a page of each partition, ORDERED_BYTES in all.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import aclosing, closing
from heapq import heapify, heappop, heapreplace
from itertools import accumulate, islice
from typing import Final

from isthmus.repl.coordinator.forwarding import LeaderForwarder
from isthmus.repl.coordinator.kv_rpc import ListAsk, ListPage, ListPosition
from isthmus.repl.coordinator.reads import not_led
from isthmus.repl.coordinator.routing import LEADER_WAIT_S, LOOK_AGAIN_S, MOVING, RoutingTable
from isthmus.repl.model.entry import decode_key_row
from isthmus.repl.model.errors import CodecError, Corruption, NotLeader
from isthmus.repl.runtime.runtime import Runtime
from isthmus.repl.store.port import ListedKey, Store

BATCH_KEYS: Final = 1_000
"""Keys read from the store at a time: about 2 ms of the reading thread."""

PAGE_BYTES: Final = 256 * 1024
"""Most bytes of buckets and keys in a page for another node: far below the limit of a message."""

ORDERED_BYTES: Final = 16 * 1024 * 1024
"""Most bytes of names that an ordered listing holds, shared by its partitions: as large as 64 pages. A page has at
least one name."""

FEW_KEYS: Final = 8
"""Keys that a page of an ordered listing has beside twice its share: shares of few keys vary most."""

ORDERED_PAGES_AT_ONCE: Final = 8
"""First pages of an ordered listing that are asked for together: with 64 partitions, eight round trips instead of 64,
and no node gets all requests in one moment."""


class Listing:
    """Listings over the cluster. Belongs to the event loop; `read_pool` reads the store."""

    def __init__(self, runtime: Runtime, routes: RoutingTable, forwarder: LeaderForwarder, read_pool: Executor) -> None:
        self._runtime = runtime
        self._routes = routes
        self._forwarder = forwarder
        self._read_pool = read_pool
        self._loop = asyncio.get_running_loop()

    async def keys(self, bucket_type: bytes, bucket: bytes) -> AsyncGenerator[list[bytes], None]:
        """See KeyValue.list_keys."""
        for partition_id in self._routes.partitions(bucket_type):
            async with aclosing(self._names(partition_id, bucket)) as batches:
                async for names in batches:
                    if names:
                        yield names

    async def buckets(self, bucket_type: bytes) -> AsyncGenerator[list[bytes], None]:
        """See KeyValue.list_buckets. Reads every key row: a listing for people, not for programs."""
        seen: set[bytes] = set()
        for partition_id in self._routes.partitions(bucket_type):
            async with aclosing(self._names(partition_id, None)) as batches:
                async for names in batches:
                    fresh = set(names) - seen
                    seen |= fresh
                    if fresh:
                        yield sorted(fresh)

    async def in_order(
        self, bucket_type: bytes, bucket: bytes | None, prefix: bytes, after: bytes, wanted: int | None
    ) -> AsyncGenerator[list[bytes], None]:
        """See KeyValue.list_in_order."""
        partition_ids = self._routes.partitions(bucket_type)
        limit = BATCH_KEYS
        if wanted is not None:
            # A bucket may be in all partitions. Keys are spread evenly: twice the share is seldom too little.
            share = wanted if bucket is None else 2 * -(-wanted // len(partition_ids)) + FEW_KEYS
            limit = min(limit, share)
        page_bytes = max(1, min(PAGE_BYTES, ORDERED_BYTES // len(partition_ids)))
        start: ListPosition | None = None
        if after:
            start = (after, None) if bucket is None else (bucket, after)
        sources = [
            _OrderedNames(ListAsk(partition_id, bucket, start, prefix, limit, page_bytes))
            for partition_id in partition_ids
        ]
        for first in range(0, len(sources), ORDERED_PAGES_AT_ONCE):
            await self._fill_all(sources[first : first + ORDERED_PAGES_AT_ONCE])
        heap = [(source.names[0], number) for number, source in enumerate(sources) if source.names]
        heapify(heap)
        last, left = after, wanted
        batch: list[bytes] = []
        while heap and left != 0:
            name, number = heap[0]
            if name > last:
                batch.append(name)
                last = name
                if left is not None:
                    left -= 1
                    if left == 0:
                        break
            source = sources[number]
            source.at += 1
            if source.at == len(source.names):
                await self._fill(source)
            if source.names:
                heapreplace(heap, (source.names[source.at], number))
            else:
                heappop(heap)
            if len(batch) >= BATCH_KEYS:
                yield batch
                batch = []
        if batch:
            yield batch

    async def _fill_all(self, sources: Sequence[_OrderedNames]) -> None:
        """Fill several at once; after an error, none is left under way."""
        filling = [asyncio.ensure_future(self._fill(source)) for source in sources]
        try:
            await asyncio.gather(*filling)
        finally:
            for task in filling:
                task.cancel()
            await asyncio.gather(*filling, return_exceptions=True)

    async def _fill(self, source: _OrderedNames) -> None:
        """Replace the names by the next ones; none after the last page. Waits for a leader at most LEADER_WAIT_S at a
        time."""
        source.names, source.at = [], 0
        end = 0.0
        while source.ask is not None and not source.names:
            try:
                page = await self._ordered_page(source.ask)
            except MOVING:
                now = self._loop.time()
                end = end or now + LEADER_WAIT_S
                if now >= end:
                    raise
                await self._routes.changed(min(end - now, LOOK_AGAIN_S))
                continue
            end = 0.0
            source.names = page.names
            source.ask = None if page.after is None else source.ask._replace(after=page.after)

    async def _ordered_page(self, ask: ListAsk) -> ListPage:
        refused = not_led(self._runtime, self._routes, ask.partition)
        if isinstance(refused, NotLeader) and refused.leader is not None:
            return await self._forwarder.page(refused.leader, ask)
        return await self.serve(ask)

    async def serve(self, ask: ListAsk) -> ListPage:
        """One page of a partition led here. Raises Retryable."""
        await self._confirm(ask.partition)
        if ask.limit:
            return await self._loop.run_in_executor(self._read_pool, _read_page, self._runtime.store, ask)
        async with aclosing(self._stream(ask, PAGE_BYTES)) as pages:
            async for page in pages:
                return page
        return ListPage([], None)

    async def _names(self, partition_id: int, bucket: bytes | None) -> AsyncGenerator[list[bytes], None]:
        """The names of one partition from its leader; waits for a leader at most LEADER_WAIT_S at a time."""
        after: ListPosition | None = None
        end = 0.0
        while True:
            ask = ListAsk(partition_id, bucket, after)
            try:
                refused = not_led(self._runtime, self._routes, partition_id)
                if isinstance(refused, NotLeader) and refused.leader is not None:
                    page = await self._forwarder.page(refused.leader, ask)
                else:
                    await self._confirm(partition_id)
                    break
            except MOVING:
                now = self._loop.time()
                end = end or now + LEADER_WAIT_S
                if now >= end:
                    raise
                await self._routes.changed(min(end - now, LOOK_AGAIN_S))
                continue
            end = 0.0
            yield page.names
            after = page.after
            if after is None:
                return
        async with aclosing(self._stream(ask)) as pages:
            async for page in pages:
                yield page.names

    async def _confirm(self, partition_id: int) -> None:
        refused = not_led(self._runtime, self._routes, partition_id)
        if refused is not None:
            raise refused
        await self._runtime.committed(self._runtime.partitions[partition_id])

    async def _stream(self, ask: ListAsk, page_bytes: int | None = None) -> AsyncGenerator[ListPage, None]:
        """Pages of this node's rows, from one snapshot; reading stops when the generator is closed. With `page_bytes`
        only the first page, cut to that size."""
        rows = self._runtime.store.list_keys(ask.partition, ask.bucket, ask.after)
        try:
            while True:
                batch = await self._loop.run_in_executor(self._read_pool, _take, rows)
                if batch:
                    yield _page(batch, ask.bucket, page_bytes)
                if len(batch) < BATCH_KEYS or page_bytes is not None:
                    return
        finally:
            close = getattr(rows, "close", None)
            if close is not None:
                close()


class _OrderedNames:
    """The names of one partition in an ordered listing, page by page."""

    __slots__ = ("ask", "at", "names")

    def __init__(self, ask: ListAsk) -> None:
        self.ask: ListAsk | None = ask
        """The next page; None after the last."""
        self.names: list[bytes] = []
        self.at = 0
        """The first name that is not merged yet."""


def _read_page(store: Store, ask: ListAsk) -> ListPage:
    """A page of an ordered listing: at most `limit` names, and it ends soon after `page_bytes` or BATCH_KEYS rows. In
    a listing of buckets, each bucket is read up to its first live key. Runs in a thread."""
    partition, bucket, after, prefix, limit, page_bytes = ask
    names: list[bytes] = []
    rows_read = size = 0
    while True:
        skips = False
        with closing(store.list_keys(partition, bucket, after, prefix)) as rows:  # type: ignore[type-var]
            for listed in rows:
                rows_read += 1
                after = (listed.bucket, listed.key)
                if not _is_tombstone(listed):
                    name = listed.bucket if bucket is None else listed.key
                    names.append(name)
                    size += len(name)
                    if bucket is None:
                        after, skips = (name, None), True
                if len(names) >= limit or size >= page_bytes or rows_read >= BATCH_KEYS:
                    return ListPage(names, after)
                if skips:
                    break
        if not skips:
            return ListPage(names, None)


def _take(rows: Iterator[ListedKey]) -> list[ListedKey]:
    return list(islice(rows, BATCH_KEYS))


def _page(batch: list[ListedKey], bucket: bytes | None, page_bytes: int | None) -> ListPage:
    """The live names of a batch: keys of a bucket, or buckets, each once."""
    last_page = len(batch) < BATCH_KEYS
    if page_bytes is not None:
        sizes = accumulate(len(listed.bucket) + len(listed.key) for listed in batch)
        count = max(1, sum(size <= page_bytes for size in sizes))
        last_page = last_page and count == len(batch)
        batch = batch[:count]
    live = [listed for listed in batch if not _is_tombstone(listed)]
    names = list(dict.fromkeys(listed.bucket if bucket is None else listed.key for listed in live))
    last = batch[-1]
    return ListPage(names, None if last_page else (last.bucket, last.key))


def _is_tombstone(listed: ListedKey) -> bool:
    """Raises Corruption, which names the key: it is not known whether the key has a value, so a listing would be wrong
    with it and without it."""
    try:
        return decode_key_row(listed.row).tombstone
    except CodecError as error:
        raise Corruption(
            f"the key row of {listed.bucket!r}/{listed.key!r} cannot be read: {error};"
            " `isthmus fold repair-keys --mend` fetches it again"
        ) from error
