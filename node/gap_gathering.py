"""The gaps of a queue on all nodes, as full-sync needs them (`aae.healing.Gaps`): asked for, and closed once proven.

Joins floors that do not know each other. A node that does not answer has its gaps looked at the next time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from aae.healing import Gap
from node.queue_gathering import QueueGathering
from queues.steering import Act
from repl.controller import Controller
from repl.model.ports import TimeSource


class ClusterGaps:
    """Asks `gathering`; `controller` knows the nodes, and of which bucket type a partition is. `waiting`: see Gaps."""

    def __init__(
        self,
        gathering: QueueGathering,
        controller: Controller,
        node: str,
        time: TimeSource,
        waiting: Callable[[str], int],
    ) -> None:
        self._gathering = gathering
        self._controller = controller
        self._node = node
        self._time = time
        self.waiting = waiting

    async def seen(self, queue: str) -> Sequence[Gap]:
        """See Gaps. Raises UnknownQueue."""
        found = await self._gathering.gather(self._nodes(), "gaps", name=queue)
        rows = {row["id"]: row for one in found.values() for row in one or ()}
        return [
            Gap(row["id"], self._bucket_type(row), row["from_ms"], row["upto_ms"])
            for row in rows.values()
            if row["partition"] is None or row["partition"] in self._controller.records
        ]

    async def close(self, queue: str, ids: Sequence[str], upto_ms: int, by: str, reason: str) -> int:
        """See Gaps. Raises UnknownQueue, Retryable, OutcomeUnknown."""
        act = Act(by, self._time.wall_ms(), reason)
        found = await self._gathering.gather(
            self._nodes(), "close", name=queue, ids=list(ids), upto_ms=upto_ms, **act._asdict()
        )
        return sum(one or 0 for one in found.values())

    def _nodes(self) -> set[str]:
        return {self._node, *self._controller.registrations}

    def _bucket_type(self, row: dict[str, Any]) -> str | None:
        partition = row["partition"]
        return None if partition is None else self._controller.records[partition].bucket_type
