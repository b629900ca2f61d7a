"""What callers on this node wait for of one partition: writes until they are applied, reads until they are confirmed.

Kept when the core says so, broken with an error that says what became of it when leadership ends. It decides neither;
`repl.runtime.runtime` calls it with the core's effects. How long it took is `repl.runtime.metrics`' affair.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping
from typing import Final

from isthmus.repl.isr import effects as fx
from isthmus.repl.model.errors import (
    Fenced,
    NotLeader,
    NotReady,
    OutcomeUnknown,
    OutOfStorage,
    Overloaded,
    Retryable,
    TooFewInSync,
)
from isthmus.repl.runtime.partition import Partition, PendingBatch

REFUSALS: Final[Mapping[str, type[Retryable]]] = {
    cls.reason: cls for cls in (Fenced, TooFewInSync, Overloaded, OutOfStorage, NotReady, NotLeader)
}
"""The core's reasons for refusing -> the error that a caller sees."""


def refusal(partition: Partition, reason: str) -> Retryable:
    """The error for the core's refusal."""
    message = f"partition {partition.id}: {reason} ({partition.reason})"
    if reason == NotLeader.reason:
        record = partition.replica.record
        return NotLeader(message, record.leader.node if record is not None and record.leader is not None else None)
    return REFUSALS.get(reason, NotReady)(message)


class Waiters:
    """Of all partitions of a node."""

    def __init__(self) -> None:
        self._token = 0
        self.kept: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """What a read gets that waits for nothing."""
        self.kept.set_result(None)

    # -- writes ---------------------------------------------------------------------------------------

    def applied(self, partition: Partition, end: int) -> None:
        """All below `end` is applied: answer who waited for it."""
        groups = partition.groups
        while groups and groups[0].end <= end:
            groups.popleft().waiter.release()

    def stepped_down(self, partition: Partition, effect: fx.SteppedDown) -> None:
        """Leadership is over: what is committed will yet be answered, of the rest nobody here knows."""
        error = OutcomeUnknown(f"partition {partition.id}: leadership of epoch {effect.epoch} ended: {effect.reason}")
        kept: deque[PendingBatch] = deque()
        for group in partition.groups:
            if group.end <= effect.unknown_from:
                kept.append(group)
                continue
            for slot in group.slots:
                group.waiter.results[slot] = error
            group.waiter.release()
        partition.groups = kept
        partition.pending_rows.clear()

    # -- reads ------------------------------------------------------------------------------------------

    def read(self, partition: Partition) -> tuple[int, asyncio.Future[None]]:
        """A token for the core, and what its answer will be told to."""
        self._token += 1
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        partition.reads[self._token] = future
        return self._token, future

    def read_ready(self, partition: Partition, tokens: tuple[int, ...]) -> None:
        """These reads may be served from what is applied."""
        for token in tokens:
            future = partition.reads.pop(token, None)
            if future is not None and not future.done():
                future.set_result(None)

    def read_refused(self, partition: Partition, tokens: tuple[int, ...], reason: str) -> None:
        """These reads cannot be served as committed."""
        for token in tokens:
            future = partition.reads.pop(token, None)
            if future is not None and not future.done():
                future.set_exception(refusal(partition, reason))

    def break_all(self, partition: Partition) -> None:
        """The process is leaving: no answer will come any more."""
        self.read_refused(partition, tuple(partition.reads), NotReady.reason)
