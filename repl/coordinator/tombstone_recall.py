"""Recall: writes tombstones of reaped keys once more, when full-sync finds that another cluster has an older value.

The clock of a reaped key is remembered (`repl.store.reaped_keys`), so the leader can write the tombstone again, and
every queue offers it. `repl.coordinator.tombstone_reaper` removes it again, by the rules of every tombstone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final

import msgpack
import structlog

from isthmus.repl.coordinator.reads import not_led
from isthmus.repl.coordinator.routing import RoutingTable
from isthmus.repl.coordinator.tombstone_writes import TombstoneWrites
from isthmus.repl.model.errors import CodecError, IsthmusError, NotLeader, OutcomeUnknown, Retryable
from isthmus.repl.model.keys import Key, key_hash
from isthmus.repl.runtime.runtime import Runtime
from isthmus.repl.runtime.waiters import BatchResult, PendingBatch
from isthmus.repl.telemetry import Sample
from isthmus.repl.transport.port import Links
from isthmus.repl.unforeseen import unforeseen

log = structlog.get_logger(__name__)

RECALL: Final = "kv.recall"
"""The request to the leaders' node: msgpack [[bucket type, bucket, key], ...] -> [true where the tombstone was written
once more, ...]."""

RECALLS_AT_ONCE: Final = 500
"""Most keys of one RECALL request, as many as full-sync repairs at once; longer ones are refused."""


def _is_key(raw: object) -> bool:
    return isinstance(raw, list) and len(raw) == len(Key._fields) and all(type(one) is bytes for one in raw)


class TombstoneRecall:
    """Recalls tombstones of any partition, at any node. Belongs to the event loop."""

    def __init__(
        self, runtime: Runtime, writes: TombstoneWrites, *, links: Links, routes: RoutingTable, request_timeout_ms: int
    ) -> None:
        self._runtime = runtime
        self._writes = writes
        self._links = links
        self._routes = routes
        self._timeout_ms = request_timeout_ms
        self.recalled_count = 0

    async def recall(self, keys: Sequence[Key]) -> set[Key]:
        """Write the tombstones of reaped keys once more (`ReapBatch.recall`), at any node; returns those that were
        written and applied. The others are here, are forgotten, or could not be written now, which is logged: the next
        check finds them again."""
        groups: dict[str, list[Key]] = {}
        for key in keys:
            partition_id = self._routes.partition_of(key.bucket_type, key_hash(key.bucket, key.key))
            partition = self._runtime.partitions.get(partition_id)
            if partition is not None and partition.replica.ready:
                groups.setdefault("", []).append(key)
                continue
            refused = not_led(self._runtime, self._routes, partition_id)
            if isinstance(refused, NotLeader) and refused.leader is not None:
                groups.setdefault(refused.leader, []).append(key)
        done: set[Key] = set()
        for node, group in groups.items():
            for at in range(0, len(group), RECALLS_AT_ONCE):
                part = group[at : at + RECALLS_AT_ONCE]
                try:
                    written = await (self._recall_at(node, part) if node else self._recall_here(part))
                except IsthmusError as error:
                    log.info("reap.not_recalled", peer=node, count=len(part), reason=error.reason, error=str(error))
                except Exception as error:
                    unforeseen.exception("reap.recall_bug", error, peer=node)
                else:
                    done.update(key for key, yes in zip(part, written, strict=True) if yes)
        return done

    async def _recall_at(self, node: str, keys: Sequence[Key]) -> list[bool]:
        body = msgpack.packb([list(key) for key in keys])
        answer = msgpack.unpackb(await self._links.request(node, RECALL, body, self._timeout_ms))
        if not isinstance(answer, list) or len(answer) != len(keys) or not all(type(one) is bool for one in answer):
            raise CodecError(f"node {node} sent an invalid answer to {RECALL}")
        return answer

    async def _recall_here(self, keys: Sequence[Key]) -> list[bool]:
        """Recall keys of partitions that are led here, and wait until they are applied. Raises Retryable,
        OutcomeUnknown."""
        written = [False] * len(keys)
        result = BatchResult(asyncio.get_running_loop().create_future(), len(keys))
        by_partition: dict[int, list[int]] = {}
        for at, key in enumerate(keys):
            partition_id = self._routes.partition_of(key.bucket_type, key_hash(key.bucket, key.key))
            by_partition.setdefault(partition_id, []).append(at)
        for partition_id, places in by_partition.items():
            partition = self._runtime.partitions.get(partition_id)
            if partition is None or not partition.replica.ready:
                continue
            reaps = self._writes.batch(partition)
            mine = []
            for at in places:
                try:
                    if reaps.recall(keys[at], key_hash(keys[at].bucket, keys[at].key)):
                        mine.append(at)
                except IsthmusError as error:
                    log.info("reap.not_recalled", partition=partition_id, reason=error.reason, error=str(error))
                except Exception as error:
                    unforeseen.exception("reap.recall_bug", error, partition=partition_id)
            if not mine:
                continue
            try:
                self._writes.append(partition, reaps.batch)
            except Retryable as error:
                log.info("reap.not_recalled", partition=partition_id, reason=error.reason, error=str(error))
                continue
            self.recalled_count += len(mine)
            result.remaining += 1
            partition.waiters.add([PendingBatch(reaps.batch.next_offset, result, mine)])
            for at in mine:
                written[at] = True
        if result.remaining:
            try:
                async with asyncio.timeout(self._timeout_ms / 1000):
                    found = await result.future
            except TimeoutError:
                raise OutcomeUnknown("tombstones that are written once more are not applied in time") from None
            written = [yes and not isinstance(found[at], IsthmusError) for at, yes in enumerate(written)]
        return written

    async def _serve(self, _node: str, body: bytes) -> bytes:
        try:
            match msgpack.unpackb(body, max_array_len=RECALLS_AT_ONCE):
                case [*raw] if all(_is_key(one) for one in raw):
                    keys = [Key(*one) for one in raw]
                case _:
                    raise CodecError(f"not a {RECALL} request")
        except (ValueError, msgpack.exceptions.UnpackException) as error:
            raise CodecError(f"not a {RECALL} request: {error}") from error
        packed: bytes = msgpack.packb(await self._recall_here(keys))
        return packed

    def request_handlers(self) -> Mapping[str, Callable[[str, bytes], Awaitable[bytes]]]:
        """Handlers of requests from other nodes, by method."""
        return {RECALL: self._serve}

    def metrics(self) -> list[Sample]:
        """Samples of recalled tombstones."""
        return [("isthmus_reap_recalled_total", {}, self.recalled_count)]
