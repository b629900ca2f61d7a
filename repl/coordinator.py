"""The coordinator: a client's request -> the leader's entries -> one answer per item.

Requests that arrive in one turn of the event loop are taken together, partition by partition: the cost of a
write is the wake-up, not the object. For each it reads what the key holds now (the newest unapplied entry first: a
leader reads its own writes), makes the new object and encodes it once. The core decides whether the entries may be
appended; an item is answered when its entry is applied.

An answer that appends nothing because of an unapplied entry waits for that entry (docs/protocol.md R-WAIT).
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import Executor
from itertools import islice
from typing import Final, NamedTuple, cast

from repl.model.entry import (
    EntryKind,
    decode_key_row,
    make_entry,
)
from repl.model.errors import (
    BadInput,
    Corruption,
    IsthmusError,
    NotLeader,
    NotReady,
    OutcomeUnknown,
)
from repl.model.keys import Key, key_hash, partition_index
from repl.model.requests import PushItem, PushOutcome, PushResult, WriteRequest, Written
from repl.partition import Partition, PendingGroup, Waiter
from repl.proposal import Proposal, WriteLimits
from repl.runtime import Runtime
from repl.telemetry import Sample

LIST_BATCH_KEYS: Final = 1_000
"""Keys read from the store at a time for a listing: about 2 ms of the reading thread."""


SWEEP_S: Final = 0.25
"""How often requests without an answer are looked through for those that have waited too long."""


class UnknownBucketType(BadInput):
    """No such bucket type in this cluster."""

    reason = "unknown-bucket-type"


class _Item(NamedTuple):
    """One item of a request on its way to a partition."""

    request: WriteRequest | PushItem
    hash64: int
    waiter: Waiter
    slot: int


class Coordinator:
    """The cluster's data as the faces see it: `repl.model.ports.KeyValue` and `CursorWriter`."""

    def __init__(
        self,
        runtime: Runtime,
        *,
        read_pool: Executor,
        limits: WriteLimits,
        key_limit_bytes: int,
        request_timeout_ms: int,
    ) -> None:
        self._runtime = runtime
        self._loop = asyncio.get_running_loop()
        self._read_pool = read_pool
        self._limits = limits
        self._key_limit_bytes = key_limit_bytes
        self._timeout_s = request_timeout_ms / 1000
        self._inbox: dict[int, list[_Item]] = {}
        self._waiting: dict[Waiter, float] = {}
        self._sweeper: asyncio.TimerHandle | None = None
        self._scheduled = False
        self._types: dict[bytes, list[Partition]] = {}
        self._request_prefix = os.urandom(6)
        self._request_count = 0
        self.counts = {"put": 0, "get": 0, "delete": 0, "push": 0, "refused": 0, "unknown": 0}

    def learn_partitions(self) -> None:
        """Take the map of partitions from the runtime; call after attaching."""
        types: dict[bytes, list[Partition]] = {}
        for partition in self._runtime.partitions.values():
            types.setdefault(partition.bucket_type, []).append(partition)
        for partitions in types.values():
            partitions.sort(key=lambda p: p.index)
            assert [p.index for p in partitions] == list(range(partitions[0].partition_count))
        self._types = types

    # -- reads ----------------------------------------------------------------------------------------

    async def get(self, key: Key) -> bytes | None:
        """See KeyValue.get. The only member of the guard is this leader, so its applied state is
        committed and needs no probe (R-READ)."""
        self.counts["get"] += 1
        hash64 = key_hash(key.bucket, key.key)
        partition = self._partition(key.bucket_type, hash64)
        self._check_ready(partition)
        return self._runtime.store.object(partition.id, key.bucket, key.key)

    def _check_ready(self, partition: Partition) -> None:
        replica = partition.replica
        if not replica.ready:
            record = replica.record
            leader = record.leader.node if record is not None and record.leader is not None else None
            if leader is not None and leader != self._runtime.node:
                raise NotLeader(f"partition {partition.id} is led by {leader}", leader)
            raise NotReady(f"partition {partition.id} has no serving leader: {replica.reason}")

    def _partition(self, bucket_type: bytes, hash64: int) -> Partition:
        partitions = self._types.get(bucket_type)
        if partitions is None:
            if not self._types:
                raise NotReady("the partitions are not known here yet: the node is starting")
            raise UnknownBucketType(
                f"bucket type {bucket_type.decode(errors='replace')!r} does not exist: "
                f"known are {', '.join(t.decode() for t in sorted(self._types))}"
            )
        return partitions[partition_index(hash64, len(partitions))]

    async def list_keys(self, bucket_type: bytes, bucket: bytes) -> AsyncIterator[list[bytes]]:
        """See KeyValue.list_keys."""
        async for rows in self._list(bucket_type, bucket):
            live = [key for _, key, row in rows if not decode_key_row(row).tombstone]
            if live:
                yield live

    async def list_buckets(self, bucket_type: bytes) -> AsyncIterator[list[bytes]]:
        """See KeyValue.list_buckets. Reads every key row: a listing for people, not for programs."""
        seen: set[bytes] = set()
        async for rows in self._list(bucket_type, None):
            fresh = {b for b, _, row in rows if b not in seen and not decode_key_row(row).tombstone}
            seen |= fresh
            if fresh:
                yield sorted(fresh)

    async def _list(self, bucket_type: bytes, bucket: bytes | None) -> AsyncIterator[list[tuple[bytes, bytes, bytes]]]:
        if bucket_type not in self._types:
            self._partition(bucket_type, 0)
        for partition in self._types[bucket_type]:
            self._check_ready(partition)
            rows = self._runtime.store.list_keys(partition.id, bucket, None)
            try:
                while True:
                    batch = await self._loop.run_in_executor(self._read_pool, _take, rows)
                    if not batch:
                        break
                    yield batch
            finally:
                close: Callable[[], None] | None = getattr(rows, "close", None)
                if close is not None:
                    close()

    # -- writes ---------------------------------------------------------------------------------------

    async def write(self, request: WriteRequest) -> Written:
        """See KeyValue.write."""
        (result,) = await self._submit((request,))
        if isinstance(result, Written):
            return result
        assert isinstance(result, IsthmusError)
        raise result

    async def write_batch(self, requests: Sequence[WriteRequest]) -> list[Written | IsthmusError]:
        """See KeyValue.write_batch."""
        return cast("list[Written | IsthmusError]", await self._submit(requests))

    async def push(self, items: Sequence[PushItem]) -> list[PushResult]:
        """See KeyValue.push."""
        results: list[PushResult] = []
        for result in await self._submit(items):
            if isinstance(result, PushResult):
                results.append(result)
            elif isinstance(result, BadInput | Corruption):
                results.append(PushResult(PushOutcome.REJECTED, result))
            else:
                results.append(PushResult(PushOutcome.FAILED, cast(IsthmusError, result)))
        self.counts["push"] += len(items)
        return results

    async def write_cursor(self, partition: int, queue: bytes, payload: bytes) -> int:
        """See CursorWriter.write_cursor."""
        place = self._runtime.partitions[partition]
        self._check_ready(place)
        entry = make_entry(
            EntryKind.CURSOR,
            place.replica.epoch,
            place.replica.leo,
            request_id=self._request_id(),
            origin=self._runtime.cluster_uuid,
            time_ms=self._runtime.time.wall_ms(),
            key=queue,
            payload=payload,
        )
        refused = self._runtime.append(place, (entry,))
        if refused is not None:
            raise refused
        waiter = Waiter(self._loop.create_future(), 1)
        waiter.remaining = 1
        place.groups.append(PendingGroup(entry.offset + 1, waiter, (0,)))
        self._expect(waiter)
        (error,) = await waiter.future
        if isinstance(error, IsthmusError):
            raise error
        return entry.offset

    def soft_cursor(self, partition: int, queue: bytes, payload: bytes) -> None:
        """See CursorWriter.soft_cursor."""
        self._runtime.soft_cursor(partition, queue, payload)

    def _submit(self, requests: Sequence[WriteRequest | PushItem]) -> asyncio.Future[list[object]]:
        """Put each item into its partition's inbox; the future brings all answers, in order."""
        waiter = Waiter(self._loop.create_future(), len(requests))
        inbox = self._inbox
        touched: set[int] = set()
        for slot, request in enumerate(requests):
            key = request.key
            try:
                self._check_key(key)
                hash64 = key_hash(key.bucket, key.key)
                partition = self._partition(key.bucket_type, hash64)
            except IsthmusError as error:
                waiter.results[slot] = error
                continue
            items = inbox.get(partition.id)
            if items is None:
                items = inbox[partition.id] = []
            items.append(_Item(request, hash64, waiter, slot))
            touched.add(partition.id)
        if not touched:
            waiter.future.set_result(waiter.results)
            return waiter.future
        # One count an inbox: `_drain` releases a request once for each partition that it touches.
        waiter.remaining = len(touched)
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._drain)
        self._expect(waiter)
        return waiter.future

    def _expect(self, waiter: Waiter) -> None:
        """Let `waiter` expire in time. One sweep for all: a timer a request costs more than its expiry is worth."""
        self._waiting[waiter] = self._loop.time() + self._timeout_s
        if self._sweeper is None:
            self._sweeper = self._loop.call_later(SWEEP_S, self._sweep)

    def _sweep(self) -> None:
        """Forget who has an answer, and tell who has waited too long that the outcome is unknown."""
        now = self._loop.time()
        self._waiting = {w: deadline for w, deadline in self._waiting.items() if not w.future.done()}
        for waiter in [w for w, deadline in self._waiting.items() if deadline <= now]:
            del self._waiting[waiter]
            self.counts["unknown"] += sum(not isinstance(r, IsthmusError) for r in waiter.results)
            error = OutcomeUnknown(f"no outcome within {self._timeout_s:g} s: the write may yet take effect")
            waiter.future.set_result([r if isinstance(r, IsthmusError) else error for r in waiter.results])
        self._sweeper = self._loop.call_later(SWEEP_S, self._sweep) if self._waiting else None

    def _check_key(self, key: Key) -> None:
        limit = self._key_limit_bytes
        if not key.bucket or not key.key:
            raise BadInput("bucket and key must not be empty")
        if len(key.bucket) > limit or len(key.key) > limit:
            raise BadInput(f"bucket or key is longer than limits.key_bytes ({limit} bytes)")

    def _drain(self) -> None:
        """Take what arrived in this loop turn, partition by partition."""
        self._scheduled = False
        inbox, self._inbox = self._inbox, {}
        for partition_id, items in inbox.items():
            self._propose(self._runtime.partitions[partition_id], items)

    def _propose(self, partition: Partition, items: list[_Item]) -> None:
        """Make entries of `items` and append them together; note who waits for what."""
        waiting: dict[int, tuple[Waiter, list[int], int]] = {}
        try:
            self._check_ready(partition)
        except IsthmusError as error:
            self._refuse(items, error)
            return
        runtime = self._runtime
        proposal = Proposal(
            partition,
            runtime.store,
            runtime.cluster_uuid,
            self._limits,
            self._request_id(),
            runtime.time.wall_ms(),
        )
        for item in items:
            request = item.request
            try:
                if isinstance(request, PushItem):
                    answer, end = proposal.push(request, item.hash64)
                else:
                    answer, end = proposal.write(request, item.hash64)
            except IsthmusError as error:
                answer, end = error, 0
            item.waiter.results[item.slot] = answer
            mine = waiting.get(id(item.waiter))
            if mine is None:
                waiting[id(item.waiter)] = (item.waiter, [item.slot], end)
            else:
                mine[1].append(item.slot)
                if end > mine[2]:
                    waiting[id(item.waiter)] = (mine[0], mine[1], end)
        self.counts["put"] += proposal.put_count
        self.counts["delete"] += proposal.delete_count
        if proposal.entries:
            refused = self._runtime.append(partition, proposal.entries)
            if refused is not None:
                self._refuse(items, refused)
                return
            partition.pending_rows.update(proposal.fresh)
        groups = [PendingGroup(end, waiter, slots) for waiter, slots, end in waiting.values() if end]
        for waiter, _, end in waiting.values():
            if not end:
                waiter.release()
        if groups:
            groups.sort(key=_group_end)
            _insert_groups(partition, groups)

    def _refuse(self, items: list[_Item], error: IsthmusError) -> None:
        """Nothing of `items` was appended: a definite refusal for each."""
        self.counts["refused"] += len(items)
        for waiter in {id(item.waiter): item.waiter for item in items}.values():
            for item in items:
                if item.waiter is waiter:
                    waiter.results[item.slot] = error
            waiter.release()

    def _request_id(self) -> bytes:
        self._request_count += 1
        return self._request_prefix + self._request_count.to_bytes(6, "big")

    def metrics(self) -> list[Sample]:
        """Items asked for since start, by kind."""
        return [("isthmus_requests_total", {"kind": kind}, count) for kind, count in self.counts.items()]


def _group_end(group: PendingGroup) -> int:
    return group.end


def _insert_groups(partition: Partition, groups: list[PendingGroup]) -> None:
    """Keep `partition.groups` in order of `end`; an answer that waits for an older entry goes before."""
    queue = partition.groups
    if not queue or queue[-1].end <= groups[0].end:
        queue.extend(groups)
        return
    merged = sorted((*queue, *groups), key=_group_end)
    queue.clear()
    queue.extend(merged)


def _take(rows: Iterator[tuple[bytes, bytes, bytes]]) -> list[tuple[bytes, bytes, bytes]]:
    return list(islice(rows, LIST_BATCH_KEYS))
