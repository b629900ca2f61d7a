"""Reads of keys: from the leader of each partition, here or elsewhere, at the requested isolation.

A committed read returns applied state once the runtime has confirmed the leadership (docs/protocol.md R-READ); with one
replica that needs no wait. A batch is confirmed once per partition. An uncommitted read returns the newest entry of
this leader, applied or not, without a confirmation; the entry may be taken back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, cast

from isthmus.repl.coordinator.forwarding import LeaderForwarder
from isthmus.repl.coordinator.kv_rpc import LATER
from isthmus.repl.coordinator.routing import MOVING, UNREAD, RoutingTable, unread_refusal
from isthmus.repl.coordinator.upcoming_leadership import UpcomingLeaderships
from isthmus.repl.model.errors import IsthmusError, NotLeader, NotReady, Overloaded
from isthmus.repl.model.keys import Key, key_hash, partition_index
from isthmus.repl.model.requests import ForwardedRead, Isolation, PendingRead
from isthmus.repl.runtime.partition import Partition
from isthmus.repl.runtime.runtime import Runtime
from isthmus.repl.runtime.waiters import BatchResult
from isthmus.repl.telemetry import Sample
from isthmus.repl.unforeseen import unforeseen

ANSWER_BYTES: Final = 8 * 1024 * 1024
"""Most bytes of values in one answer to another node, except for a single larger object. Both nodes hold as much memory
for each request under way between them."""

TURN_KEYS: Final = 256
"""Keys read in one turn of the event loop: about a millisecond."""


def answer_bytes(entry_bytes: int) -> int:
    """Most bytes of values in one answer to another node, for entries of at most `entry_bytes`."""
    return min(ANSWER_BYTES, entry_bytes // 2)


def not_led(runtime: Runtime, routes: RoutingTable, partition_id: int) -> IsthmusError | None:
    """The refusal of a partition that this node does not serve now; None if it does."""
    partition = runtime.partitions.get(partition_id)
    if partition is not None and partition.replica.ready:
        return None
    if partition_id == UNREAD:
        return unread_refusal()
    leader = routes.leader(partition_id)
    if leader is not None and leader != runtime.node:
        return NotLeader(f"partition {partition_id} is led by {leader}", leader)
    why = "no leader is known" if partition is None else partition.replica.reason
    return NotReady(f"partition {partition_id} has no serving leader: {why}")


def another_actor(partition: Partition) -> NotReady:
    """The refusal of entries with dots while a partition takes another actor, which takes as long as an election."""
    return NotReady(
        f"partition {partition.id}: another cluster holds writes of this one that its log lacks; nothing is written "
        "until it has a new actor"
    )


def _needs_confirmation(result: object) -> bool:
    return isinstance(result, IsthmusError) and result.needs_confirmation


def confirm_refusals(runtime: Runtime, partition: Partition, slots: Sequence[tuple[BatchResult, int]]) -> None:
    """Hold back the refusals among the answers of `slots` that need confirmation, until a committed read would be
    answered. If that read fails, its error replaces them."""
    held = [(waiter, slot) for waiter, slot in slots if _needs_confirmation(waiter.results[slot])]
    for waiter, _ in held:
        waiter.remaining += 1

    def decided(confirmed: asyncio.Future[None]) -> None:
        error = confirmed.exception()
        for waiter, slot in held:
            if error is not None and _needs_confirmation(waiter.results[slot]):
                waiter.results[slot] = error
            waiter.release()

    runtime.committed(partition).add_done_callback(decided)


class Reads:
    """Reads of keys. Belongs to the event loop."""

    def __init__(
        self,
        runtime: Runtime,
        routes: RoutingTable,
        upcoming: UpcomingLeaderships,
        forwarder: LeaderForwarder,
        default: Isolation,
        answer_bytes: int,
    ) -> None:
        """`answer_bytes`: most bytes of values in one answer to another node."""
        self._runtime = runtime
        self._routes = routes
        self._upcoming = upcoming
        self._forwarder = forwarder
        self._default = default
        self._defaults: Mapping[bytes, Isolation] = {}
        self._answer_bytes = answer_bytes
        self.counts = dict.fromkeys(Isolation, 0)

    def set_defaults(self, default: Isolation, of_types: Mapping[bytes, Isolation]) -> None:
        """Set the isolation of reads that name none: by bucket type, `default` for all others."""
        self._default, self._defaults = default, of_types

    def start(self, key: Key, isolation: Isolation | None) -> bytes | PendingRead | None:
        """As KeyValue.read if this node leads the key and the read need not wait; otherwise the coroutine that reads
        it."""
        bucket_type, bucket, name = key
        isolation = isolation or self._defaults.get(bucket_type, self._default)
        self.counts[isolation] += 1
        partition_ids = self._routes.known_partition_ids(bucket_type)
        if not partition_ids:
            return self._read_anywhere(key, isolation)
        index = partition_index(key_hash(bucket, name), len(partition_ids))
        partition = self._runtime.partitions.get(partition_ids[index])
        if partition is None or not partition.replica.ready:
            return self._read_anywhere(key, isolation)
        try:
            if isolation is Isolation.COMMITTED:
                confirmed = self._runtime.committed(partition)
                if not confirmed.done():
                    return self._read_confirmed(partition, key, confirmed)
                confirmed.result()
            return self._read(partition, key, isolation)
        except MOVING:
            return self._read_anywhere(key, isolation)

    async def _read_confirmed(
        self, partition: Partition, key: Key, confirmed: asyncio.Future[None]
    ) -> bytes | ForwardedRead | None:
        """A committed read of a partition that this node leads, once it is confirmed."""
        try:
            await confirmed
            return self._read(partition, key, Isolation.COMMITTED)
        except MOVING:
            pass
        return await self._read_anywhere(key, Isolation.COMMITTED)

    async def _read_anywhere(self, key: Key, isolation: Isolation) -> bytes | ForwardedRead | None:
        """A read from whichever node leads the key, after a bounded wait for a leader."""
        asked: dict[int, str] = {}
        (result,) = await self._ask_until_led((key,), isolation, 1, asked)
        if isinstance(result, IsthmusError):
            raise result
        payload = cast("bytes | None", result)
        return ForwardedRead(payload, asked[0]) if asked else payload

    async def get_batch(
        self, keys: Sequence[Key], isolation: Isolation | None, room_bytes: int, waits: bool
    ) -> list[object]:
        """See KeyValue.get_batch."""
        if isolation is None:
            theirs = {self._defaults.get(key.bucket_type, self._default) for key in keys}
            isolation = theirs.pop() if len(theirs) == 1 else Isolation.COMMITTED
        self.counts[isolation] += len(keys)
        ask = self._ask_until_led if waits else self._ask
        results = await ask(keys, isolation, room_bytes)
        full = Overloaded(f"the answer has reached its limit of {room_bytes} bytes: ask again for the rest")
        first = True
        for slot, result in enumerate(results):
            size = len(result) if type(result) is bytes else 0
            if result is LATER or (size > room_bytes and not first):
                results[slot] = full
            else:
                room_bytes -= size
                first = first and not size
        return results

    def samples(self) -> Iterator[Sample]:
        """Keys read since start, by isolation."""
        for isolation, count in self.counts.items():
            yield "isthmus_reads_total", {"isolation": isolation.value}, count

    async def _ask_until_led(
        self, keys: Sequence[Key], isolation: Isolation, room_bytes: int, asked: dict[int, str] | None = None
    ) -> list[object]:
        """As `_ask`, for a bounded time until each key has a leader. `asked` is right for a single key only."""
        results = await self._ask(keys, isolation, room_bytes, asked)

        async def ask_again(slots: Sequence[int]) -> list[object]:
            left = room_bytes - sum(len(r) for r in results if type(r) is bytes)
            return await self._ask([keys[slot] for slot in slots], isolation, left, asked)

        await self._routes.retry_moving(results, ask_again)
        return results

    async def _ask(
        self, keys: Sequence[Key], isolation: Isolation, room_bytes: int, asked: dict[int, str] | None = None
    ) -> list[object]:
        """Read each key from its leader: the payload, None, an error, or LATER if the answer is full. Sets `asked`:
        slot -> the other node that was asked."""
        results: list[object] = [None] * len(keys)
        here: list[tuple[int, int]] = []
        away: dict[str, list[int]] = {}
        elsewhere: dict[int, str | None] = {}
        for slot, key in enumerate(keys):
            try:
                partition_id = self._routes.partition_of(key.bucket_type, key_hash(key.bucket, key.key))
                if partition_id not in elsewhere:
                    refused = not_led(self._runtime, self._routes, partition_id)
                    elsewhere[partition_id] = refused.leader if isinstance(refused, NotLeader) else None
            except IsthmusError as error:
                results[slot] = error
                continue
            except Exception as error:  # noqa: BLE001 -- see repl.unforeseen
                results[slot] = unforeseen.exception("read.bug", error)
                continue
            node = elsewhere[partition_id]
            if node is None:
                here.append((slot, partition_id))
            else:
                away.setdefault(node, []).append(slot)
        if asked is not None:
            asked.clear()
            asked.update((slot, node) for node, slots in away.items() for slot in slots)
        share = room_bytes // max(1, len(away))
        forwarded = [
            self._forwarder.get(node, [keys[slot] for slot in slots], isolation, max(1, share))
            for node, slots in away.items()
        ]
        found = await asyncio.gather(self._local(keys, here, isolation, room_bytes, results), *forwarded)
        for slots, answers in zip(away.values(), found[1:], strict=True):
            for slot, answer in zip(slots, answers, strict=True):
                results[slot] = answer
        return results

    async def serve(self, keys: Sequence[Key], isolation: Isolation) -> list[object]:
        """The answer to another node's read: partitions that are not led here, nor soon, are refused, and keys after
        the first are LATER once the answer is full."""
        results: list[object] = [None] * len(keys)
        here: list[tuple[int, int]] = []
        for slot, key in enumerate(keys):
            try:
                here.append((slot, self._routes.partition_of(key.bucket_type, key_hash(key.bucket, key.key))))
            except IsthmusError as error:
                results[slot] = error
            except Exception as error:  # noqa: BLE001 -- see repl.unforeseen
                results[slot] = unforeseen.exception("read.bug", error)
        partitions = {partition_id for _, partition_id in here}
        waits = [self._upcoming.wait(self._runtime.partitions.get(partition_id)) for partition_id in partitions]
        upcoming = [wait for wait in waits if wait is not None]
        if upcoming:
            await asyncio.wait(upcoming)  # does not cancel them: others may wait for the same
        await self._local(keys, here, isolation, self._answer_bytes, results)
        return results

    async def _local(
        self,
        keys: Sequence[Key],
        slots: Sequence[tuple[int, int]],
        isolation: Isolation,
        room_bytes: int,
        results: list[object],
    ) -> list[object]:
        """Read the (slot, partition) pairs of `slots` here into `results`; a partition that is not led here is
        refused."""
        first = True
        refused: dict[int, IsthmusError | None] = {}
        asked: dict[int, asyncio.Future[None]] = {}
        for partition_id in {partition_id for _, partition_id in slots}:
            try:
                refused[partition_id] = not_led(self._runtime, self._routes, partition_id)
                if refused[partition_id] is None and isolation is Isolation.COMMITTED:
                    asked[partition_id] = self._runtime.committed(self._runtime.partitions[partition_id])
            except Exception as error:  # noqa: BLE001 -- see repl.unforeseen
                refused[partition_id] = unforeseen.exception("read.bug", error, partition=partition_id)
        for partition_id, confirmed in asked.items():
            try:
                await confirmed
            except IsthmusError as error:
                refused[partition_id] = error
            except Exception as error:  # noqa: BLE001 -- see repl.unforeseen
                refused[partition_id] = unforeseen.exception("read.bug", error, partition=partition_id)
        for count, (slot, partition_id) in enumerate(slots, 1):
            if not count % TURN_KEYS:
                await asyncio.sleep(0)
            try:
                refusal = refused[partition_id]
                if refusal is not None:
                    raise refusal
                if room_bytes <= 0:
                    results[slot] = LATER
                    continue
                payload = self._read(self._led(partition_id), keys[slot], isolation)
                if payload is not None:
                    fits = len(payload) <= room_bytes or first
                    first = False
                    room_bytes -= len(payload)
                    if not fits:
                        room_bytes = 0
                        results[slot] = LATER
                        continue
                results[slot] = payload
            except IsthmusError as failed:
                results[slot] = failed
            except Exception as error:  # noqa: BLE001 -- see repl.unforeseen
                results[slot] = unforeseen.exception("read.bug", error, partition=partition_id)
        return results

    def _led(self, partition_id: int) -> Partition:
        refused = not_led(self._runtime, self._routes, partition_id)
        if refused is not None:
            raise refused
        return self._runtime.partitions[partition_id]

    def _read(self, partition: Partition, key: Key, isolation: Isolation) -> bytes | None:
        if isolation is Isolation.UNCOMMITTED:
            entry = partition.unapplied.pending_rows.get((key.bucket, key.key))
            if entry is not None:
                return entry.payload or None  # a REAP entry has none
        return self._runtime.store.object(partition.id, key.bucket, key.key)
