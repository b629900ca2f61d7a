"""Routes: which partition a key belongs to, which node leads it, and how long a request waits for that to be known.

The whole map of the cluster, of partitions that are not here too, taken from the records as this node last saw them. It
may be behind: a node that no longer leads refuses, definitely, and whoever was refused asks again here, for
a bounded moment, so that clients need not see every change of leader. What is asked of whom is
`repl.coordinator.coordinator`'s story.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Final

from isthmus.repl.model.errors import BadInput, Fenced, NotLeader, NotReady
from isthmus.repl.model.keys import partition_index
from isthmus.repl.model.record import PartitionRecord

LEADER_WAIT_S: Final = 1.0
"""How long a request waits for a leader that serves before it is refused. A hand-over takes a few round trips, an
election after a node's end begins when its session is over, seconds later: the first is hidden, the second is not,
since what waits takes memory. A guess in between."""

LOOK_AGAIN_S: Final = 0.05
"""Pause before a node that refused is asked again when no news came: it leads by the record, and is not ready yet."""

MOVING: Final = (NotLeader, NotReady, Fenced)
"""Definite refusals that pass by themselves as soon as the partition has a leader that serves."""


UNREAD: Final = -1
"""Stands for the id of a partition whose record this node could never read, and which it therefore does not know."""


class UnknownBucketType(BadInput):
    """No such bucket type in this cluster."""

    reason = "unknown-bucket-type"


class RoutingTable:
    """The map of the cluster's partitions, and those who wait for it to change. Belongs to the event loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._types: dict[bytes, tuple[int, ...]] = {}
        self._incomplete: frozenset[bytes] = frozenset()
        self._unread = 0
        self._leaders: dict[int, str] = {}
        self._sleepers: set[asyncio.Future[None]] = set()

    def learn(self, records: Mapping[int, PartitionRecord], unread: Collection[int] = ()) -> None:
        """Take the records as they are now, all of them; `unread` are those that exist and could never be read."""
        types: dict[bytes, list[PartitionRecord]] = {}
        for record in records.values():
            types.setdefault(record.bucket_type.encode(), []).append(record)
        self._types = {name: _by_index(found) for name, found in types.items()}
        self._incomplete = frozenset(name for name, found in self._types.items() if UNREAD in found)
        self._unread = len(unread)
        self._leaders = {r.partition: r.leader.node for r in records.values() if r.leader is not None}
        self.wake()

    def known_types(self) -> frozenset[bytes] | None:
        """The bucket types of this cluster; None where it is not known whether there are more."""
        return None if self._unread or not self._types else frozenset(self._types)

    def check(self, bucket_type: bytes) -> None:
        """Raises UnknownBucketType when there is none of this name, NotReady when that is not known."""
        self.places(bucket_type)

    def places(self, bucket_type: bytes) -> Sequence[int]:
        """The ids of the type's partitions, by index, UNREAD where one is not known. Raises UnknownBucketType,
        NotReady."""
        found = self._types.get(bucket_type)
        if found is None:
            raise self._unknown(bucket_type)
        return found

    def partitions(self, bucket_type: bytes) -> Sequence[int]:
        """The ids of all the type's partitions, by index. Raises UnknownBucketType, NotReady."""
        found = self.places(bucket_type)
        if bucket_type in self._incomplete:
            raise unread_refusal()
        return found

    def partition_of(self, bucket_type: bytes, hash64: int) -> int:
        """The id of the partition that holds keys of this hash. Raises UnknownBucketType, NotReady."""
        found = self.places(bucket_type)
        partition = found[partition_index(hash64, len(found))]
        if partition == UNREAD:
            raise unread_refusal()
        return partition

    def leader(self, partition: int) -> str | None:
        """The node that leads by the newest record seen; None when none does."""
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
        """Something changed: whoever waits looks again."""
        for sleeper in self._sleepers:
            _finish(sleeper)
        self._sleepers.clear()

    async def changed(self, timeout_s: float) -> None:
        """Return when the routes change, or after `timeout_s`."""
        sleeper: asyncio.Future[None] = self._loop.create_future()
        self._sleepers.add(sleeper)
        timer = self._loop.call_later(timeout_s, _finish, sleeper)
        try:
            await sleeper
        finally:
            timer.cancel()
            self._sleepers.discard(sleeper)

    async def settle(
        self, results: list[object], ask_again: Callable[[Sequence[int]], Awaitable[Sequence[object]]]
    ) -> None:
        """Ask again for the items of `results` that were refused because leadership moves, until none is left or
        LEADER_WAIT_S is over. `ask_again(slots)` brings one result a slot, in order."""
        slots = [slot for slot, result in enumerate(results) if isinstance(result, MOVING)]
        end = self._loop.time() + LEADER_WAIT_S
        while slots and (left := end - self._loop.time()) > 0:
            await self.changed(min(left, LOOK_AGAIN_S))
            for slot, result in zip(slots, await ask_again(slots), strict=True):
                results[slot] = result
            slots = [slot for slot in slots if isinstance(results[slot], MOVING)]


def _by_index(records: Sequence[PartitionRecord]) -> tuple[int, ...]:
    """The ids of one type's partitions. Where records contradict each other none of them is gone by."""
    found = {record.index: record.partition for record in records}
    counts = {record.partition_count for record in records}
    if len(counts) > 1 or len(found) < len(records):
        return (UNREAD,)
    return tuple(found.get(index, UNREAD) for index in range(*counts))


def unread_refusal() -> NotReady:
    """Of what concerns a partition that is UNREAD."""
    return NotReady(
        "the partition is not known to this node: its record in the metastore cannot be read, see `isthmus cluster "
        "status`; other nodes may know it"
    )


def _finish(sleeper: asyncio.Future[None]) -> None:
    if not sleeper.done():
        sleeper.set_result(None)
