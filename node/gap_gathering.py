"""The gaps of queues on all nodes, as full-sync needs them (`aae.healing.Gaps`): asked for, and closed once proven.

Joins packages that do not know each other. A node that does not answer has its gaps looked at the next time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from aae.healing import Gap
from node.queue_gathering import QueueGathering
from queues.registry import SourceQueues
from queues.steering import Act
from repl.controller import Controller
from repl.model.ports import TimeSource


class ClusterGaps:
    """Asks `gathering`; `controller` knows the nodes, and of which bucket type a partition is; `queues` the owners and
    filters. `waiting`: see Gaps."""

    def __init__(
        self,
        gathering: QueueGathering,
        controller: Controller,
        queues: SourceQueues,
        node: str,
        time: TimeSource,
        waiting: Callable[[str], int],
    ) -> None:
        self._gathering = gathering
        self._controller = controller
        self._queues = queues
        self._node = node
        self._time = time
        self.waiting = waiting
        self._types: tuple[object, int, list[str]] = (None, 0, [])

    def bucket_types(self, queue: str) -> list[str]:
        """Bucket types of this cluster of which changes or repairs may go into the queue. Raises UnknownQueue."""
        takes = self._queues.named(queue).filter.takes
        return sorted(name for name in self._known_types() if takes(name.encode()))

    def sent(self) -> list[dict[str, Any]]:
        """What goes out in real time: {"queue", "cluster", "uuid", "bucket_types"} of each queue that somebody owns."""
        found = []
        for name in self._queues.machines():
            queue = self._queues.named(name)
            owner = queue.word.owner
            if owner is None or not owner.cluster:
                continue
            types = sorted(one for one in self._known_types() if queue.filter.may_offer(one.encode()))
            found.append({"queue": name, "cluster": owner.name, "uuid": owner.cluster.hex(), "bucket_types": types})
        return found

    def compared(self, queue: str, cluster: bytes | None, bucket_types: Sequence[str]) -> dict[str, list[str]]:
        """Queue -> those of `bucket_types` of which comparisons with `cluster` (None: the owner of `queue`) prove that
        nothing is missing that the queue let out, when repairs go by `queue`: queues of that cluster, and as far as the
        filter of `queue` lets out as much. Nothing when there is no queue of this name."""
        machines = self._queues.machines()
        if queue not in machines:
            return {}
        repairs = self._queues.named(queue)
        wanted = cluster or self._owner(queue)
        found = {}
        for name in machines:
            owner = self._owner(name)
            if owner != wanted if owner is not None else name != queue:
                continue
            other = self._queues.named(name).filter
            types = [one for one in bucket_types if repairs.filter.covers(other, one.encode())]
            if types:
                found[name] = types
        return found

    async def seen(self, queue: str, cluster: bytes | None) -> Sequence[Gap]:
        """See Gaps. Raises UnknownQueue."""
        self._queues.named(queue)
        compared = self.compared(queue, cluster, self._known_types())
        found = await self._gathering.gather(self._nodes(), "gaps")
        rows = {(row["queue"], row["id"]): row for one in found.values() for row in one or ()}
        gaps = [
            Gap(row["id"], row["queue"], self._types_of(row), row["from_ms"], row["upto_ms"])
            for row in rows.values()
            if row["queue"] in compared and (row["partition"] is None or row["partition"] in self._controller.records)
        ]
        return [gap for gap in gaps if gap.bucket_types <= set(compared[gap.queue])]

    async def close(self, queue: str, ids: Sequence[str], upto_ms: int, by: str, reason: str) -> int:
        """See Gaps. Raises UnknownQueue, Retryable, OutcomeUnknown."""
        act = Act(by, self._time.wall_ms(), reason)
        found = await self._gathering.gather(
            self._nodes(), "close", name=queue, ids=list(ids), upto_ms=upto_ms, **act._asdict()
        )
        return sum(one or 0 for one in found.values())

    def _owner(self, queue: str) -> bytes | None:
        owner = self._queues.named(queue).word.owner
        return owner.cluster if owner is not None and owner.cluster else None

    def _known_types(self) -> list[str]:
        """Of this cluster, made from each reading of the records once: whoever reaps asks for every key."""
        records = self._controller.records
        read, count, found = self._types
        if read is not records or count != len(records):
            found = sorted({record.bucket_type for record in records.values()})
            self._types = (records, len(records), found)
        return found

    def _nodes(self) -> set[str]:
        return {self._node, *self._controller.registrations}

    def _types_of(self, row: dict[str, Any]) -> frozenset[str]:
        """Of which something may be missing: what was lost of a lower priority may be of any that the queue takes."""
        partition = row["partition"]
        if partition is not None:
            return frozenset({self._controller.records[partition].bucket_type})
        return frozenset(self.bucket_types(row["queue"]))
