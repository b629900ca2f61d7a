"""Waits for leaderships that this node is about to take up.

A node that forwards items learns of a new leader from the same record as that leader itself, and so before the barrier
of the new epoch is applied there. Items that arrive meanwhile wait for it instead of being refused: a refusal would
cost a pause at the node that forwards (`repl.coordinator.routing.LOOK_AGAIN_S`).
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final

from isthmus.repl.runtime.partition import Partition

WAIT_S: Final = 0.25
"""Longest wait for one leadership, from the first item that waits: some fsyncs and round trips of a loaded cluster.
Items for other partitions that came in the same request wait, too, so a leader that cannot commit its barrier must not
hold up items for longer; after this time they are refused at once."""


@dataclass(slots=True)
class _Wait:
    """The wait for the leadership of `epoch`; `over` is done when it begins or ends, or after WAIT_S."""

    epoch: int
    over: asyncio.Future[None]


class UpcomingLeaderships:
    """One wait for each partition. Belongs to the event loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._waits: dict[int, _Wait] = {}
        """Partition -> the newest wait, also one whose time is over."""

    def wait(self, partition: Partition | None) -> asyncio.Future[None] | None:
        """Done when this node serves `partition`, when its leadership ends, or after WAIT_S, as where a candidate gives
        up; None where there is nothing to wait for."""
        if partition is None or not partition.replica.about_to_lead:
            return None
        wait = self._waits.get(partition.id)
        if wait is None or wait.epoch != partition.replica.epoch:
            wait = self._waits[partition.id] = _Wait(partition.replica.epoch, self._loop.create_future())
            self._loop.call_later(WAIT_S, _end, wait.over)
        return None if wait.over.done() else wait.over

    def end(self, partition: int) -> None:
        """This node serves the partition now, or its leadership has ended."""
        wait = self._waits.pop(partition, None)
        if wait is not None:
            _end(wait.over)


def _end(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
