"""Listings: the live keys of a bucket, or the buckets of a type, over all partitions, wherever they are led.

Partitions are listed one after the other, each as it was committed when its turn came. A partition led here is streamed
from one snapshot. One that is led elsewhere comes in pages, each committed when it was read; after a change of leader
the next leader continues where the last one stopped. Memory holds one batch at a time.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator
from concurrent.futures import Executor
from contextlib import aclosing
from itertools import accumulate, islice
from typing import Final

from isthmus.repl.coordinator.forwarding import LeaderForwarder
from isthmus.repl.coordinator.kv_rpc import ListAsk, ListPage
from isthmus.repl.coordinator.reads import not_led
from isthmus.repl.coordinator.routing import LEADER_WAIT_S, LOOK_AGAIN_S, MOVING, RoutingTable
from isthmus.repl.model.entry import decode_key_row
from isthmus.repl.model.errors import CodecError, Corruption, NotLeader
from isthmus.repl.runtime.runtime import Runtime
from isthmus.repl.store.port import ListedKey

BATCH_KEYS: Final = 1_000
"""Keys read from the store at a time: about 2 ms of the reading thread."""

PAGE_BYTES: Final = 256 * 1024
"""Most bytes of buckets and keys in a page for another node: far below the limit of a message."""

Name = tuple[bytes, bytes]
"""(bucket, key)."""


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

    async def serve(self, ask: ListAsk) -> ListPage:
        """One page of a partition led here. Raises Retryable."""
        await self._confirm(ask.partition)
        async with aclosing(self._stream(ask, PAGE_BYTES)) as pages:
            async for page in pages:
                return page
        return ListPage([], None)

    async def _names(self, partition_id: int, bucket: bytes | None) -> AsyncGenerator[list[bytes], None]:
        """The names of one partition from its leader; waits for a leader at most LEADER_WAIT_S at a time."""
        after: Name | None = None
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
