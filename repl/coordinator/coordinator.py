"""The coordinator: takes client requests at any node, and returns one answer per item.

It takes all requests of one turn of the event loop together, partition by partition: a write costs a wake-up, not an
object. `repl.coordinator.write_batch` makes their entries; the core decides whether they may be appended; an item is
answered once its entry is applied. An answer without an entry waits for the unapplied entry that it depends on
(docs/protocol.md R-WAIT).

Items of partitions that are led elsewhere are forwarded to their leader once (`repl.coordinator.forwarding`; the leader
answers by `repl.coordinator.forwarded_requests`). Items of partitions that this node is about to lead wait for that
(`repl.coordinator.upcoming_leadership`). Items that were refused because leadership moves are retried for a bounded
time (`repl.coordinator.routing`).
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from typing import Final, NamedTuple, cast

import structlog

from isthmus.repl.coordinator.forwarded_requests import DirectHandler, ForwardedRequests, Handler
from isthmus.repl.coordinator.forwarding import LeaderForwarder
from isthmus.repl.coordinator.listing import Listing
from isthmus.repl.coordinator.reads import Reads, another_actor, answer_bytes, confirm_refusals, not_led
from isthmus.repl.coordinator.round_gate import RoundGate
from isthmus.repl.coordinator.routing import RoutingTable
from isthmus.repl.coordinator.upcoming_leadership import UpcomingLeaderships
from isthmus.repl.coordinator.write_batch import (
    APPLIED,
    ForgedClock,
    UnreplicatedCheck,
    Warned,
    WriteBatch,
    WriteLimits,
)
from isthmus.repl.log_limit import LogLimit
from isthmus.repl.model.entry import EntryKind, make_entry
from isthmus.repl.model.errors import (
    BadInput,
    Corruption,
    InternalError,
    IsthmusError,
    NotReady,
    OutcomeUnknown,
    Retryable,
    clear_traceback,
)
from isthmus.repl.model.keys import Key, key_hash, partition_index
from isthmus.repl.model.ports import AppliedEntries
from isthmus.repl.model.properties import PropertySource
from isthmus.repl.model.record import PartitionRecord
from isthmus.repl.model.requests import (
    ForwardedRead,
    Isolation,
    PendingRead,
    PushItem,
    PushOutcome,
    PushResult,
    WriteRequest,
    WriteResult,
)
from isthmus.repl.runtime.partition import Partition
from isthmus.repl.runtime.runtime import Runtime
from isthmus.repl.runtime.waiters import BatchResult, PendingBatch, RequestTimeouts
from isthmus.repl.store.request_dedup import request_name
from isthmus.repl.telemetry import Sample
from isthmus.repl.transport.port import Links
from isthmus.repl.unforeseen import observes, unforeseen

log = structlog.get_logger(__name__)


class CoordinatorMetrics:
    """Counts of items since start.

    `kinds` has the items by request, and `refused` and `unknown` over all requests. A forwarded item counts at the node
    that got it from the client; puts and deletes count at the leader, which decides them.
    """

    def __init__(self) -> None:
        self.kinds = dict.fromkeys(("put", "get", "delete", "push", "repeated", "refused", "unknown"), 0)
        self._refusals: Counter[str] = Counter()
        self._warned = Counter({"object-size": 0, "siblings": 0})
        self._log_limit = LogLimit()

    def failed(self, error: IsthmusError) -> None:
        """Count an item whose answer is `error`."""
        if isinstance(error, Retryable):
            self.kinds["refused"] += 1
            self._refusals[error.reason] += 1
        elif isinstance(error, OutcomeUnknown):
            self.kinds["unknown"] += 1

    def answered(self, results: Iterable[object]) -> None:
        """Count the errors among the answers to a request."""
        for result in results:
            if isinstance(result, IsthmusError):
                self.failed(result)

    @observes("metrics.bug")
    def count_batch(self, batch: WriteBatch) -> None:
        """Count the items of a batch."""
        self.kinds["put"] += batch.put_count
        if batch.delete_count:
            self.kinds["delete"] += batch.delete_count
        if batch.repeated_count:
            self.kinds["repeated"] += batch.repeated_count
        if batch.warned:
            self._warn(batch.warned)

    def _warn(self, found: Sequence[Warned]) -> None:
        """Count objects above a warning, and log one of each kind now and then."""
        for what, key, size, limit in found:
            self._warned[what] += 1
            if (suppressed := self._log_limit.due(what)) is not None:
                log.warning(
                    "write.above_warning",
                    what=what,
                    bucket_type=key.bucket_type.decode(errors="replace"),
                    bucket=repr(key.bucket),
                    key=repr(key.key),
                    found=size,
                    warning_limit=limit,
                    suppressed=suppressed,
                )

    def samples(self) -> Iterator[Sample]:
        """See `repl.telemetry`."""
        for kind, count in self.kinds.items():
            yield "isthmus_requests_total", {"kind": kind}, count
        for reason, count in self._refusals.items():
            yield "isthmus_refusals_total", {"reason": reason}, count
        for what, count in self._warned.items():
            yield "isthmus_writes_above_warning_total", {"what": what}, count


_new: Final = tuple.__new__
"""Makes a named tuple of all its fields, in order, at half the cost of its own constructor."""


class _LocalPart(NamedTuple):
    """The items of a request for one partition: their slots, and the hashes of their keys."""

    requests: Sequence[WriteRequest | PushItem]
    waiter: BatchResult
    slots: list[int]
    hashes: list[int]


class _RemotePart(NamedTuple):
    """The items of a request for another node, and their slots."""

    requests: list[WriteRequest | PushItem]
    slots: list[int]


class CoordinatorSettings(NamedTuple):
    """Limits of requests."""

    writes: WriteLimits
    key_limit_bytes: int
    request_timeout_ms: int
    read_isolation: str
    """Of reads that name none, while no dynamic option is set."""


class Coordinator:
    """Implements `repl.model.ports.KeyValue` and `CursorWriter`; a listener of applied entries."""

    def __init__(
        self,
        runtime: Runtime,
        settings: CoordinatorSettings,
        *,
        links: Links,
        read_pool: Executor,
        properties: PropertySource,
        unreplicated: UnreplicatedCheck,
        on_ahead: Callable[[Partition, int], bool],
    ) -> None:
        """`on_ahead`: whether the partition takes another actor, since a push names this counter of its current one
        (`repl.runtime.actor_renewal`)."""
        limits, request_timeout_ms = settings.writes, settings.request_timeout_ms
        self._runtime = runtime
        self._loop = asyncio.get_running_loop()
        self._limits = limits
        self._properties = properties
        self._key_limit_bytes = settings.key_limit_bytes
        self.routes = RoutingTable()
        self._upcoming = UpcomingLeaderships()
        self._forwarder = LeaderForwarder(
            links, request_timeout_ms=request_timeout_ms, body_limit_bytes=limits.entry_bytes
        )
        self._reads = Reads(
            runtime,
            self.routes,
            self._upcoming,
            self._forwarder,
            Isolation(settings.read_isolation),
            answer_bytes(limits.entry_bytes),
        )
        self._listing = Listing(runtime, self.routes, self._forwarder, read_pool)
        self._forwarded = ForwardedRequests(self, self._reads, self._listing, answer_bytes(limits.entry_bytes))
        self._inbox: dict[int, list[_LocalPart]] = {}
        self._timeouts = RequestTimeouts(request_timeout_ms, self._drop_answered)
        self._pending_requests: dict[int, dict[bytes, int]] = {}
        """Partition -> name of a request (`repl.store.request_dedup`) -> offset of its entry: proposed here, not
        applied."""
        self._gate = RoundGate(runtime.rounds, self._loop, self._take)
        self._unreplicated = unreplicated
        self._on_ahead = on_ahead
        self._metrics = CoordinatorMetrics()
        runtime.listeners.add(self)

    # -- events of the node ---------------------------------------------------------------------------

    def learn_records(self, records: Mapping[int, PartitionRecord], unread: Collection[int] = ()) -> None:
        """Take over the partition records whenever they change; see RoutingTable.learn."""
        self.routes.learn(records, unread)

    def set_read_isolation(self, default: Isolation, of_types: Mapping[bytes, Isolation]) -> None:
        """Set the isolation of reads that name none: by bucket type, `default` for all others."""
        self._reads.set_defaults(default, of_types)

    def applied(self, applied: Sequence[AppliedEntries]) -> None:
        """See `repl.model.ports.ApplyListener`: the store remembers the requests from now on."""
        for partition, entries, _ in applied:
            pending = self._pending_requests.get(partition)
            if pending:
                for entry in entries:
                    if entry.request_id:
                        pending.pop(request_name(entry.key_hash, entry.request_id), None)

    def leadership(self, partition: int, leading: bool, applied_offset: int) -> None:  # noqa: ARG002
        """See `repl.model.ports.ApplyListener`: pending entries are dropped, or another leader applies them."""
        self._pending_requests.pop(partition, None)
        self._upcoming.end(partition)
        if leading:
            self.routes.wake()

    def request_handlers(self) -> dict[str, Handler]:
        """Handlers of requests from other nodes, by method: they serve partitions led here, and forward nothing."""
        return self._forwarded.handlers()

    def direct_handlers(self) -> dict[str, DirectHandler]:
        """As `request_handlers`, of the methods that are served without a task."""
        return self._forwarded.direct_handlers()

    # -- reads ----------------------------------------------------------------------------------------

    async def get(self, key: Key, isolation: Isolation | None = None) -> bytes | None:
        """See KeyValue.get."""
        found = await self.read(key, isolation)
        return found.payload if isinstance(found, ForwardedRead) else found

    async def read(self, key: Key, isolation: Isolation | None = None) -> bytes | ForwardedRead | None:
        """See KeyValue.read."""
        found = self.start_read(key, isolation)
        return found if found is None or isinstance(found, bytes) else await found

    def start_read(self, key: Key, isolation: Isolation | None = None) -> bytes | PendingRead | None:
        """As `read` if this node leads the key and the read need not wait; otherwise the coroutine that reads it."""
        self._metrics.kinds["get"] += 1
        try:
            found = self._reads.start(key, isolation)
        except IsthmusError as error:
            self._metrics.failed(error)
            raise
        return found if found is None or isinstance(found, bytes) else self._finish_read(found)

    async def _finish_read(self, read: PendingRead) -> bytes | ForwardedRead | None:
        """The result of a read that waits; an error is counted."""
        try:
            return await read
        except IsthmusError as error:
            self._metrics.failed(error)
            raise

    async def get_batch(
        self, keys: Sequence[Key], isolation: Isolation | None, room_bytes: int, *, waits: bool = True
    ) -> list[bytes | IsthmusError | None]:
        """See KeyValue.get_batch."""
        self._metrics.kinds["get"] += len(keys)
        results = await self._reads.get_batch(keys, isolation, room_bytes, waits)
        self._metrics.answered(results)
        return cast("list[bytes | IsthmusError | None]", results)

    def list_keys(self, bucket_type: bytes, bucket: bytes) -> AsyncIterator[list[bytes]]:
        """See KeyValue.list_keys."""
        return self._listing.keys(bucket_type, bucket)

    def list_buckets(self, bucket_type: bytes) -> AsyncIterator[list[bytes]]:
        """See KeyValue.list_buckets."""
        return self._listing.buckets(bucket_type)

    def list_in_order(
        self, bucket_type: bytes, bucket: bytes | None, prefix: bytes, after: bytes, wanted: int | None
    ) -> AsyncIterator[list[bytes]]:
        """See KeyValue.list_in_order."""
        return self._listing.in_order(bucket_type, bucket, prefix, after, wanted)

    # -- writes ---------------------------------------------------------------------------------------

    async def write(self, request: WriteRequest) -> WriteResult:
        """See KeyValue.write."""
        return await self.finish_write(request, await self.start_write(request))

    def start_write(self, request: WriteRequest) -> asyncio.Future[list[object]]:
        """The future of a list with the one result: as `_submit`, in one stretch for a partition that is led here. Any
        other result than a WriteResult is for `finish_write`."""
        bucket_type, bucket, name = request[0]
        limit = self._key_limit_bytes
        partition_ids = self.routes.known_partition_ids(bucket_type)
        if not partition_ids or not (0 < len(bucket) <= limit and 0 < len(name) <= limit):
            return self._submit((request,))
        hash64 = key_hash(bucket, name)
        partition = partition_ids[partition_index(hash64, len(partition_ids))]
        led = self._runtime.partitions.get(partition)
        if led is None or not led.replica.ready:
            return self._submit((request,))
        waiter = BatchResult(self._loop.create_future(), 1)
        waiter.remaining = 1
        self._enqueue(partition, _new(_LocalPart, ((request,), waiter, [0], [hash64])))
        self._timeouts.add(waiter)
        return waiter.future

    async def finish_write(self, request: WriteRequest, results: list[object]) -> WriteResult:
        """The result of a write that was started; raises as `write`."""
        (result,) = results
        if not isinstance(result, WriteResult):
            await self._retry_moving((request,), results)
            (result,) = results
            if isinstance(result, IsthmusError):
                raise result
            assert isinstance(result, WriteResult)
        return result

    async def write_batch(self, requests: Sequence[WriteRequest]) -> list[WriteResult | IsthmusError]:
        """See KeyValue.write_batch."""
        results = await self._submit(requests)
        await self._retry_moving(requests, results)
        return cast("list[WriteResult | IsthmusError]", results)

    async def push(self, items: Sequence[PushItem]) -> list[PushResult]:
        """See KeyValue.push."""
        self._metrics.kinds["push"] += len(items)
        answers = await self._submit(items)
        if answers.count(APPLIED) == len(answers):
            return cast("list[PushResult]", answers)
        await self._retry_moving(items, answers)
        results: list[PushResult] = []
        for answer in answers:
            if isinstance(answer, PushResult):
                results.append(answer)
            elif isinstance(answer, BadInput | Corruption | InternalError):
                results.append(PushResult(PushOutcome.REJECTED, answer))
            else:
                results.append(PushResult(PushOutcome.FAILED, cast(IsthmusError, answer)))
        return results

    async def _retry_moving(self, requests: Sequence[WriteRequest | PushItem], results: list[object]) -> None:
        """Retry, for a bounded time, the items that were refused because leadership moves; then count the errors."""

        async def ask_again(slots: Sequence[int]) -> list[object]:
            return await self._submit([requests[slot] for slot in slots])

        await self.routes.retry_moving(results, ask_again)
        self._metrics.answered(results)

    async def write_cursor(self, partition: int, queue: bytes, payload: bytes) -> int:
        """See CursorWriter.write_cursor."""
        refused: IsthmusError | None = not_led(self._runtime, self.routes, partition)
        if refused is not None:
            raise refused
        led = self._runtime.partitions[partition]
        entry = make_entry(
            EntryKind.CURSOR,
            led.replica.epoch,
            led.replica.leo,
            request_id=b"",
            origin=self._runtime.cluster_uuid,
            time_ms=self._runtime.time.wall_ms(),
            key=queue,
            payload=payload,
        )
        refused = self._runtime.append(led, (entry,), self._runtime.time.now_ms())
        if refused is not None:
            raise refused
        waiter = BatchResult(self._loop.create_future(), 1)
        waiter.remaining = 1
        led.waiters.add([PendingBatch(entry.offset + 1, waiter, (0,))])
        self._timeouts.add(waiter)
        (error,) = await waiter.future
        if isinstance(error, IsthmusError):
            raise error
        return entry.offset

    def soft_cursor(self, partition: int, queue: bytes, payload: bytes) -> None:
        """See CursorWriter.soft_cursor."""
        self._runtime.soft_cursor(partition, queue, payload)

    def lineage(self, partition: int) -> int:
        """See CursorWriter.lineage."""
        record = self._runtime.partitions[partition].replica.record
        return 0 if record is None else record.lineage

    def submit_here(self, requests: Sequence[WriteRequest | PushItem]) -> asyncio.Future[list[object]]:
        """See `repl.coordinator.forwarded_requests.LocalWrites`."""
        return self._submit(requests, forward=False)

    def _submit(
        self, requests: Sequence[WriteRequest | PushItem], *, forward: bool = True
    ) -> asyncio.Future[list[object]]:
        """Put each item into its partition's inbox, or forward it; the future has all answers, in order."""
        waiter = BatchResult(self._loop.create_future(), len(requests))
        inbox, routes, partitions = self._inbox, self.routes, self._runtime.partitions
        targets: dict[int, _LocalPart | _RemotePart | IsthmusError] = {}
        away: dict[str, _RemotePart] = {}
        limit = self._key_limit_bytes
        of_type: bytes | None = None
        partition_ids: Sequence[int] = ()
        posted: list[_LocalPart] = []
        waiting: list[_LocalPart] = []
        # `_take` releases a request once for each of its partitions, a forwarded part once.
        for slot, request in enumerate(requests):
            try:
                bucket_type, bucket, name = request[0]
                if not (0 < len(bucket) <= limit and 0 < len(name) <= limit):
                    raise self._bad_key(bucket, name)
                if bucket_type != of_type:
                    of_type, partition_ids = bucket_type, routes.partition_ids(bucket_type)
                hash64 = key_hash(bucket, name)
                partition = partition_ids[partition_index(hash64, len(partition_ids))]
                target = targets.get(partition)
                if target is None:
                    led = partitions.get(partition)
                    if led is not None and led.replica.ready:
                        target = _LocalPart(requests, waiter, [], [])
                        inbox.setdefault(partition, []).append(target)
                        posted.append(target)
                        waiter.remaining += 1
                    else:
                        target = self._target_elsewhere(partition, away if forward else None, requests, waiter)
                        if type(target) is _LocalPart:
                            waiting.append(target)
                    targets[partition] = target
            except IsthmusError as error:
                waiter.results[slot] = clear_traceback(error)
                continue
            except Exception as error:  # noqa: BLE001 -- see repl.unforeseen
                waiter.results[slot] = unforeseen.exception("request.bug", error)
                continue
            if type(target) is _LocalPart:
                target.slots.append(slot)
                target.hashes.append(hash64)
            elif type(target) is _RemotePart:
                target.requests.append(request)
                target.slots.append(slot)
            else:
                waiter.results[slot] = target
        for local in waiting:
            waiter.preset(local.slots, NotReady("the partition's next leader was not ready in time"))
        waiter.remaining += len(away)  # before the first is sent: one that cannot be is decided at once
        for node, part in away.items():
            self._forward(node, part, waiter)
        if not waiter.remaining:
            if not waiter.future.done():
                waiter.future.set_result(waiter.results)
            return waiter.future
        if posted:
            self._gate.arrived(sum([len(part.slots) for part in posted]))
        self._timeouts.add(waiter)
        return waiter.future

    def _target_elsewhere(
        self,
        partition: int,
        away: dict[str, _RemotePart] | None,
        requests: Sequence[WriteRequest | PushItem],
        waiter: BatchResult,
    ) -> _LocalPart | _RemotePart | IsthmusError:
        """The target of items whose partition is not served here: its leader, this node once it serves the partition,
        or a refusal."""
        leader = self.routes.leader(partition)
        if away is not None and leader is not None and leader != self._runtime.node:
            return away.setdefault(leader, _RemotePart([], []))
        upcoming = self._upcoming.wait(self._runtime.partitions.get(partition))
        if upcoming is not None:
            part = _LocalPart(requests, waiter, [], [])
            waiter.remaining += 1
            upcoming.add_done_callback(lambda _: self._post(partition, part))
            return part
        refused = not_led(self._runtime, self.routes, partition)
        assert refused is not None
        return refused

    def _post(self, partition: int, part: _LocalPart) -> None:
        """Put a part that waited into the inbox, or refuse it if the partition is still not served here. One that was
        answered meanwhile was refused, and must not be appended."""
        if part.waiter.future.done():
            return
        refused = not_led(self._runtime, self.routes, partition)
        if refused is not None:
            _refuse((part,), refused)
            return
        part.waiter.preset(part.slots, None)
        self._enqueue(partition, part)

    def _enqueue(self, partition: int, part: _LocalPart) -> None:
        """Put a part into the inbox of a partition that is served here."""
        self._inbox.setdefault(partition, []).append(part)
        self._gate.arrived(len(part.slots))

    def _forward(self, node: str, part: _RemotePart, waiter: BatchResult) -> None:
        def done(answers: list[object]) -> None:
            for slot, answer in zip(part.slots, answers, strict=True):
                waiter.results[slot] = answer
            waiter.release()

        try:
            if isinstance(part.requests[0], WriteRequest):
                self._forwarder.write(node, cast("list[WriteRequest]", part.requests), done)
            else:
                self._forwarder.push(node, cast("list[PushItem]", part.requests), done)
        except Exception as error:  # noqa: BLE001 -- nothing says whether some of it was sent
            unknown = unforeseen.exception("forwarding.failed", error, peer=node)
            waiter.fail(part.slots, OutcomeUnknown(str(unknown)))

    def _bad_key(self, bucket: bytes, name: bytes) -> BadInput:
        if not bucket or not name:
            return BadInput("bucket and key must not be empty")
        return BadInput(f"bucket or key is longer than limits.key_size ({self._key_limit_bytes} bytes)")

    def _take(self) -> None:
        """Take what arrived, partition by partition, as one group with one time."""
        inbox, self._inbox = self._inbox, {}
        time = self._runtime.time
        wall_ms, now_ms = time.wall_ms(), time.now_ms()
        with self._runtime.replog.grouped():
            for partition_id, shares in inbox.items():
                try:
                    self._append_batch(partition_id, shares, wall_ms, now_ms)
                except Exception as error:  # noqa: BLE001 -- raised before anything was appended
                    _refuse(shares, unforeseen.exception("write.batch_bug", error, partition=partition_id))

    def _append_batch(self, partition_id: int, shares: list[_LocalPart], wall_ms: int, now_ms: int) -> None:
        """Make the entries of all items and append them together; register who waits for which offset. Raises only
        what was raised before anything was appended."""
        refused: IsthmusError | None = not_led(self._runtime, self.routes, partition_id)
        if refused is not None:
            _refuse(shares, refused)
            return
        runtime = self._runtime
        partition = runtime.partitions[partition_id]
        if partition.overtaken_actor == partition.actor:
            _refuse(shares, another_actor(partition))
            return
        batch = WriteBatch(
            partition,
            runtime.store,
            runtime.cluster_uuid,
            self._limits,
            self._properties.of_type(partition.bucket_type),
            wall_ms,
            self._pending_requests.get(partition.id, {}),
            self._unreplicated,
        )
        pending: list[PendingBatch] = []
        for requests, waiter, slots, hashes in shares:
            end = batch.add_items(requests, slots, hashes, waiter.results)
            pending.append(PendingBatch(end, waiter, slots))
        self._metrics.count_batch(batch)
        if batch.ahead_counter and self._on_ahead(partition, batch.ahead_counter):
            again = another_actor(partition)
            for _, waiter, slots, _ in shares:
                for slot in slots:
                    if isinstance(waiter.results[slot], ForgedClock):
                        waiter.results[slot] = again
        try:
            if batch.entries:
                refused = runtime.append(partition, batch.entries, now_ms)
                if refused is not None:
                    _refuse(shares, refused)
                    return
                partition.unapplied.add_pending_rows(batch.new_rows)
                if batch.new_requests:
                    self._pending_requests.setdefault(partition.id, {}).update(batch.new_requests)
            if batch.needs_confirmation:
                confirm_refusals(runtime, partition, [(share.waiter, slot) for share in shares for slot in share.slots])
        except Exception as bug:  # noqa: BLE001 -- some of it may be appended, and later writes be misjudged
            runtime.quarantine(partition, bug)
            unknown = f"partition {partition_id}: its copy here stopped while this was appended"
            _refuse(shares, OutcomeUnknown(unknown))
            return
        waiting = [each for each in pending if each.end]
        if len(waiting) < len(pending):
            for each in pending:
                if not each.end:
                    each.result.release()
        if waiting:
            partition.waiters.add(waiting)

    def _drop_answered(self) -> None:
        """Drop batches of requests that timed out; their entries that are not committed count as failed. A batch
        without an entry of its own is in no window, so apply alone would not drop it."""
        runtime = self._runtime
        for partition in runtime.partitions.values():
            late = partition.waiters.drop_answered(partition.replica.high_watermark)
            if late:
                runtime.latency.timed_out(partition, late, runtime.time.now_ms())

    # -- telemetry ------------------------------------------------------------------------------------

    def metrics(self) -> list[Sample]:
        """Samples of items since start: by kind, forwarded, refused by reason; reads by isolation."""
        return [*self._metrics.samples(), *self._reads.samples(), *self._forwarder.samples()]


def _refuse(shares: Sequence[_LocalPart], error: IsthmusError) -> None:
    """Answer each item with a definite refusal: nothing was appended."""
    for share in shares:
        share.waiter.fail(share.slots, error)
