"""Routing: the partition of a key, the node that leads it, and the wait for a leader.

The table covers all partitions of the cluster, as of the records that this node read last. It may be outdated: a node
that no longer leads refuses, definitely, and the refused items are retried for a bounded time, so that clients do not
notice every change of leader. `repl.coordinator.coordinator` decides where a request goes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Final

from isthmus.repl.model.errors import BadInput, Fenced, NotLeader, NotReady
from isthmus.repl.model.keys import partition_index
from isthmus.repl.model.record import PartitionRecord
from isthmus.repl.ordered_set import OrderedSet

LEADER_WAIT_S: Final = 1.0
"""How long a request waits for a serving leader before it is refused. A hand-over takes a few round trips and is hidden
from clients. An election after a node's end begins seconds later, when its session is over, and is not hidden, since
waiting requests take memory. A guess in between."""

LOOK_AGAIN_S: Final = 0.05
"""Pause before a node that refused is asked again, if no record changed: it may have known less than this node. A node
that is about to lead does not refuse at first (`repl.coordinator.upcoming_leadership`)."""

MOVING: Final = (NotLeader, NotReady, Fenced)
"""Definite refusals that end by themselves once the partition has a serving leader."""


UNREAD: Final = -1
"""Stands for the id of a partition whose record this node could never read."""


class UnknownBucketType(BadInput):
    """No such bucket type in this cluster."""

    reason = "unknown-bucket-type"


class RoutingTable:
    """The partitions of the cluster, and the tasks that wait for a change of them. Belongs to the event loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._types: dict[bytes, tuple[int, ...]] = {}
        self._incomplete: frozenset[bytes] = frozenset()
        self._unread = 0
        self._leaders: dict[int, str] = {}
        self._waiting: OrderedSet[asyncio.Future[None]] = OrderedSet()

    def learn(self, records: Mapping[int, PartitionRecord], unread: Collection[int] = ()) -> None:
        """Take over all records as they are now; `unread` are those that exist and could never be read."""
        types: dict[bytes, list[PartitionRecord]] = {}
        for record in records.values():
            types.setdefault(record.bucket_type.encode(), []).append(record)
        self._types = {name: _by_index(found) for name, found in types.items()}
        self._incomplete = frozenset(name for name, found in self._types.items() if UNREAD in found)
        self._unread = len(unread)
        self._leaders = {r.partition: r.leader.node for r in records.values() if r.leader is not None}
        self.wake()

    def known_types(self) -> frozenset[bytes] | None:
        """The bucket types of this cluster; None if there may be more."""
        return None if self._unread or not self._types else frozenset(self._types)

    def check(self, bucket_type: bytes) -> None:
        """Raises UnknownBucketType if there is no such bucket type, NotReady if that is not known."""
        self.partition_ids(bucket_type)

    def partition_ids(self, bucket_type: bytes) -> Sequence[int]:
        """The ids of the type's partitions, by index; UNREAD for an unknown one. Raises UnknownBucketType,
        NotReady."""
        found = self._types.get(bucket_type)
        if found is None:
            raise self._unknown(bucket_type)
        return found

    def known_partition_ids(self, bucket_type: bytes) -> Sequence[int]:
        """As `partition_ids`; none instead of an error."""
        return self._types.get(bucket_type, ())

    def partitions(self, bucket_type: bytes) -> Sequence[int]:
        """The ids of all the type's partitions, by index. Raises UnknownBucketType, NotReady."""
        found = self.partition_ids(bucket_type)
        if bucket_type in self._incomplete:
            raise unread_refusal()
        return found

    def partition_of(self, bucket_type: bytes, hash64: int) -> int:
        """The id of the partition that holds keys of this hash. Raises UnknownBucketType, NotReady."""
        found = self.partition_ids(bucket_type)
        partition = found[partition_index(hash64, len(found))]
        if partition == UNREAD:
            raise unread_refusal()
        return partition

    def leader(self, partition: int) -> str | None:
        """The node that leads by the newest record; None if there is none."""
        return self._leaders.get(partition)

    def _unknown(self, bucket_type: bytes) -> BadInput | NotReady:
        shown = bucket_type.decode(errors="replace")
        if not self._types:
            return NotReady(f"the partitions of bucket type {shown!r} are not known here yet")
        if self._unread:
            return NotReady(
                f"whether there is a bucket type {shown!r} is not known here: the records of {self._unread} partitions "
                "in the metastore cannot be read, see `isthmus cluster status`"
            )
        known = ", ".join(t.decode() for t in sorted(self._types))
        return UnknownBucketType(f"bucket type {shown!r} does not exist: known are {known}")

    # -- waiting --------------------------------------------------------------------------------------

    def wake(self) -> None:
        """Wake the tasks that wait in `changed`."""
        for future in self._waiting:
            _finish(future)
        self._waiting.clear()

    async def changed(self, timeout_s: float) -> None:
        """Return when the routes change, or after `timeout_s`."""
        future: asyncio.Future[None] = self._loop.create_future()
        self._waiting.add(future)
        timer = self._loop.call_later(timeout_s, _finish, future)
        try:
            await future
        finally:
            timer.cancel()
            self._waiting.discard(future)

    async def retry_moving(
        self, results: list[object], ask_again: Callable[[Sequence[int]], Awaitable[Sequence[object]]]
    ) -> None:
        """Retry the items of `results` that were refused because leadership moves, until none is left or LEADER_WAIT_S
        is over. `ask_again(slots)` returns one result per slot, in order."""
        slots = [slot for slot, result in enumerate(results) if isinstance(result, MOVING)]
        end = self._loop.time() + LEADER_WAIT_S
        while slots and (left := end - self._loop.time()) > 0:
            await self.changed(min(left, LOOK_AGAIN_S))
            for slot, result in zip(slots, await ask_again(slots), strict=True):
                results[slot] = result
            slots = [slot for slot in slots if isinstance(results[slot], MOVING)]


def _by_index(records: Sequence[PartitionRecord]) -> tuple[int, ...]:
    """The ids of one type's partitions, by index. If records contradict each other, none of them is used."""
    found = {record.index: record.partition for record in records}
    counts = {record.partition_count for record in records}
    if len(counts) > 1 or len(found) < len(records):
        return (UNREAD,)
    return tuple(found.get(index, UNREAD) for index in range(*counts))


def unread_refusal() -> NotReady:
    """The refusal of requests for a partition that is UNREAD."""
    return NotReady(
        "the partition is not known to this node: its record in the metastore cannot be read, see `isthmus cluster "
        "status`; other nodes may know it"
    )


def _finish(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
