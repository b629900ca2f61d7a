"""Actions of full-sync and folds on this cluster: enqueue references, reap tombstones, delete keys.

Joins packages that do not know each other: `aae` defines what it needs (`aae.scheduling.check.Repairs`,
`aae.folds.folds.FoldActions`), `queues` and `repl` implement it. Nothing here decides.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from typing import Final

from isthmus.aae.folds.folds import FoldActions
from isthmus.aae.scheduling.check import QueueFull, Repairs
from isthmus.aae.scrub.row_repair import RowRepair
from isthmus.queues.queue_server import QueueServer
from isthmus.queues.service import QueueService
from isthmus.queues.window_rules import BULK_PRIORITIES, FOLD, FULL_SYNC
from isthmus.repl.coordinator.tombstone_reaper import Reaper
from isthmus.repl.coordinator.tombstone_recall import TombstoneRecall
from isthmus.repl.model.errors import CodecError, IsthmusError
from isthmus.repl.model.keys import Key
from isthmus.repl.model.objects import TOMBSTONE
from isthmus.repl.model.ports import KeyValue, TimeSource
from isthmus.repl.model.requests import WriteRequest
from isthmus.repl.model.vclock import decode_clock

ROOM_WAIT_MS: Final = 30_000
"""How long references of full-sync wait for free queue space before the push is refused: no client waits for it."""

FOLD_ROOM_WAIT_MS: Final = 5_000
"""The same of a fold, for whose page a client waits: as long as a push by hand, and well within the 20 s of the command
line (`node.cli.node_listener.ANSWER_TIMEOUT_S`), so that the refusal names the queue."""


class RepairQueue(Repairs):
    """References of full-sync (`aae.scheduling.check.Repairs`), and of folds: bulk references of two priorities."""

    def __init__(self, queues: QueueService, recall: TombstoneRecall, time: TimeSource) -> None:
        self._queues = queues
        self._recall = recall
        self._time = time

    def key_filter(self, queue: str, bucket_type: bytes) -> Callable[[bytes, bytes], bool] | None:
        """See Repairs. A queue without real-time replication is for repairs alone, and takes every key."""
        rules = self._queues.named(queue).filter
        if rules.accepts_all_repairs(bucket_type):
            return None
        known: dict[bytes, bool] = {}

        def wanted(bucket: bytes, _key: bytes) -> bool:
            included = known.get(bucket)
            if included is None:
                included = rules.includes(bucket_type, bucket)
                if len(known) < BUCKETS_REMEMBERED:
                    known[bucket] = included
            return included

        return wanted

    def waiting(self, queue: str) -> int:
        """See Repairs, and `aae.scheduling.gap_healing.Gaps`."""
        bulk = self._queues.named(queue).machine.bulk_queues[BULK_PRIORITIES.index(FULL_SYNC)]
        return bulk.waiting_count + bulk.in_flight_count

    async def recall(self, keys: Sequence[Key]) -> Collection[Key]:
        """See Repairs."""
        return await self._recall.recall(keys)

    def refused_count(self, queue: str) -> int:
        """See Repairs."""
        return self._queues.named(queue).machine.bulk_queues[BULK_PRIORITIES.index(FULL_SYNC)].counts.outcomes[3]

    async def push(self, queue: str, keys: Sequence[Key]) -> int:
        """See Repairs."""
        return await self._pushed(queue, keys, FULL_SYNC, ROOM_WAIT_MS)

    async def push_last(self, queue: str, keys: Sequence[Key]) -> int:
        """As `push`, at fold priority."""
        return await self._pushed(queue, keys, FOLD, FOLD_ROOM_WAIT_MS)

    async def _pushed(self, queue: str, keys: Sequence[Key], priority: int, wait_ms: int) -> int:
        served: QueueServer = self._queues.named(queue)
        fitting = [key for key in keys if self._fits(served, key)]
        taken = await served.push(fitting, priority, self._time.now_ms() + wait_ms)
        if taken < len(fitting):
            raise QueueFull(f"queue {queue} took {taken} of {len(fitting)} references and is full", taken)
        return taken

    @staticmethod
    def _fits(served: QueueServer, key: Key) -> bool:
        return served.filter.accepts_repairs(key.bucket_type, key.bucket)


BUCKETS_REMEMBERED: Final = 10_000
"""Buckets for which the decision of a filter is cached."""

REAPS_AT_ONCE: Final = 16
"""Tombstones that a fold has reaped in one turn of the event loop: some milliseconds."""


class FoldActionsImpl(FoldActions):
    """Actions of folds (`aae.folds.folds.FoldActions`)."""

    def __init__(self, repairs: RepairQueue, reaper: Reaper, kv: KeyValue, row_repair: RowRepair) -> None:
        self._repairs = repairs
        self._reaper = reaper
        self._kv = kv
        self._row_repair = row_repair

    async def push(self, queue: str, keys: Sequence[Key]) -> tuple[int, Counter[str]]:
        """See FoldActions."""
        taken = await self._repairs.push_last(queue, keys)
        left = len(keys) - taken
        return taken, Counter({f"the filter of queue {queue} leaves it out": left} if left else {})

    async def reap(self, keys: Sequence[Key]) -> tuple[int, Counter[str]]:
        """See FoldActions."""
        done = 0
        refused: Counter[str] = Counter()
        errors: list[IsthmusError] = []
        for at, key in enumerate(keys, 1):
            try:
                reaped = await self._reaper.ask(key)
            except IsthmusError as error:  # earlier keys were reaped and count all the same
                refused[f"{error.reason}: {error}"] += 1
                errors.append(error)
            else:
                if reaped.outcome == "reaped":
                    done += 1
                else:
                    refused[reaped.reason or reaped.outcome] += 1
            if at % REAPS_AT_ONCE == 0:
                await asyncio.sleep(0)  # reaping a key that is led here does not wait
        if errors and len(errors) == len(keys):
            raise errors[-1]  # the fault is none of the keys': the fold is retried
        return done, refused

    async def repair(self, partition: int, keys: Sequence[tuple[bytes, bytes]]) -> tuple[int, Counter[str]]:
        """See FoldActions."""
        return await self._row_repair.repair_keys(partition, keys)

    async def erase(self, keys: Sequence[tuple[Key, bytes]]) -> tuple[int, Counter[str]]:
        """See FoldActions."""
        writes: list[WriteRequest] = []
        refused: Counter[str] = Counter()
        for key, clock in keys:
            try:
                writes.append(WriteRequest(key, TOMBSTONE, decode_clock(clock)))
            except CodecError as error:  # the clock of a damaged key row
                refused[f"{error.reason}: {error}"] += 1
        answers = await self._kv.write_batch(writes) if writes else []
        refused.update(f"{a.reason}: {a}" for a in answers if isinstance(a, IsthmusError))
        return len(keys) - refused.total(), refused
