"""Requests between append and answer: writes that wait until they are applied, reads until leadership is confirmed.

A request may touch several partitions. `BatchResult` is its outcome; each partition's share of it is a `PendingBatch`,
held by the partition's `Waiters` until its entries are applied or leadership ends. `RequestTimeouts` answers requests
that waited too long. Belongs to the event loop; `repl.runtime.latency` measures how long entries took.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from typing import Final

from isthmus.repl.model.errors import Corruption, Fenced, IsthmusError, OutcomeUnknown, TimedOut

SWEEP_S: Final = 0.25
"""How often unanswered requests are checked for expiry: one timer for all, since a timer for each request costs more
than its expiry is worth."""


class BatchResult:
    """The outcome of one request over one or more partitions.

    `results[slot]` is filled when an item is decided; `future` is done once all of the request's batches are.
    A batch that fails overwrites its slots, except that an item that was refused stays definite: nothing was written.
    """

    __slots__ = ("future", "remaining", "results")

    def __init__(self, future: asyncio.Future[list[object]], size: int) -> None:
        self.future = future
        self.results: list[object] = [None] * size
        self.remaining = 0
        """Batches that are not decided yet."""

    def release(self) -> None:
        """Count one batch as decided; the last one completes the future."""
        self.remaining -= 1
        if self.remaining == 0 and not self.future.done():
            self.future.set_result(self.results)

    def preset(self, slots: Iterable[int], refusal: IsthmusError | None) -> None:
        """Set what these items are answered if time runs out before they are appended; None: once they may be."""
        for slot in slots:
            self.results[slot] = refusal

    def fail(self, slots: Iterable[int], error: IsthmusError) -> None:
        """Decide one batch with the same error for all of its `slots`."""
        unknown = isinstance(error, OutcomeUnknown)
        for slot in slots:
            found = self.results[slot]
            if unknown and isinstance(found, IsthmusError):
                self.results[slot] = Fenced(
                    f"nothing was written; leadership ended before a refusal was certain: {found}"
                )
            else:
                self.results[slot] = error
        self.release()


class PendingBatch:
    """The items of one request in one partition, which wait until all entries below `end` are applied."""

    __slots__ = ("end", "result", "slots")

    def __init__(self, end: int, result: BatchResult, slots: Sequence[int]) -> None:
        self.end = end
        self.result = result
        self.slots = slots


_END: Final = attrgetter("end")


class Waiters:
    """Writes and reads of one partition that wait for an answer."""

    __slots__ = ("_batches", "_reads", "_token")

    def __init__(self) -> None:
        self._batches: deque[PendingBatch] = deque()
        """In order of `end`."""
        self._reads: dict[int, asyncio.Future[None]] = {}
        """Committed reads that the core has not confirmed yet, by token."""
        self._token = 0

    @property
    def idle(self) -> bool:
        """True when no request waits."""
        return not self._batches and not self._reads

    # -- writes -------------------------------------------------------------------------------------------

    def add(self, batches: list[PendingBatch]) -> None:
        """Keep batches until they are applied; one that waits for an older entry goes before newer ones."""
        if len(batches) > 1:
            batches.sort(key=_END)
        queue = self._batches
        if not queue or queue[-1].end <= batches[0].end:
            queue.extend(batches)
            return
        merged = sorted((*queue, *batches), key=_END)
        queue.clear()
        queue.extend(merged)

    def applied(self, end: int) -> None:
        """Answer all batches that waited for entries below `end`."""
        queue = self._batches
        while queue and queue[0].end <= end:
            queue.popleft().result.release()

    def fail_above(self, end: int, error: IsthmusError) -> None:
        """Answer batches that wait for entries at or above `end` with `error`; the others wait on."""
        kept: deque[PendingBatch] = deque()
        for batch in self._batches:
            if batch.end <= end:
                kept.append(batch)
            else:
                batch.result.fail(batch.slots, error)
        self._batches = kept

    def drop_answered(self, committed_end: int) -> int:
        """Drop batches whose requests were answered meanwhile. Returns how many of their items are not committed."""
        late = 0
        kept: deque[PendingBatch] = deque()
        for batch in self._batches:
            if not batch.result.future.done():
                kept.append(batch)
            elif batch.end > committed_end and not batch.result.future.cancelled():
                late += len(batch.slots)
        self._batches = kept
        return late

    # -- reads --------------------------------------------------------------------------------------------

    def add_read(self) -> tuple[int, asyncio.Future[None]]:
        """A token for the core, and the future that its answer completes."""
        self._token += 1
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._reads[self._token] = future
        return self._token, future

    def reads_confirmed(self, tokens: Iterable[int]) -> None:
        """Let these reads be served from the applied state."""
        for token in tokens:
            future = self._reads.pop(token, None)
            if future is not None and not future.done():
                future.set_result(None)

    def reads_refused(self, tokens: Iterable[int], error: IsthmusError) -> None:
        """Answer these reads with `error`."""
        for token in tokens:
            future = self._reads.pop(token, None)
            if future is not None and not future.done():
                future.set_exception(error)

    def refuse_all_reads(self, error: IsthmusError) -> None:
        """Answer all reads with `error`: the process is stopping."""
        self.reads_refused(tuple(self._reads), error)


class RequestTimeouts:
    """Answers requests whose outcome does not come in time. `on_expired` is called after some were answered so."""

    def __init__(self, timeout_ms: int, on_expired: Callable[[], None]) -> None:
        self._on_expired = on_expired
        self._loop = asyncio.get_running_loop()
        self._timeout_s = timeout_ms / 1000
        self._deadlines: dict[BatchResult, float] = {}
        self._timer: asyncio.TimerHandle | None = None

    def add(self, result: BatchResult) -> None:
        """Start the timeout of a request."""
        self._deadlines[result] = self._loop.time() + self._timeout_s
        if self._timer is None:
            self._timer = self._loop.call_later(SWEEP_S, self._sweep)

    def _sweep(self) -> None:
        """Forget answered requests, and answer those that have waited too long."""
        now = self._loop.time()
        self._deadlines = {result: at for result, at in self._deadlines.items() if not result.future.done()}
        expired = [result for result, at in self._deadlines.items() if at <= now]
        for result in expired:
            del self._deadlines[result]
            result.future.set_result([self._expired(item) for item in result.results])
        if expired:
            self._on_expired()
        self._timer = self._loop.call_later(SWEEP_S, self._sweep) if self._deadlines else None

    def _expired(self, result: object) -> IsthmusError:
        """The error for an item that would have been answered by `result`. A refusal is kept, unless it needs a
        confirmation of leadership that has not come (R-COND, R-FORGED). A push is not refused for good because of
        entries that may still be dropped (R-WAIT)."""
        if isinstance(result, Corruption):
            return TimedOut(f"nothing was confirmed within {self._timeout_s:g} s, and nothing was written: {result}")
        if isinstance(result, IsthmusError):
            if not result.needs_confirmation:
                return result
            why = f"leadership could not be confirmed, so this refusal is not certain: {result}"
            return TimedOut(f"no outcome within {self._timeout_s:g} s, and nothing was written: {why}")
        return OutcomeUnknown(f"no outcome within {self._timeout_s:g} s: the write may yet take effect")
