"""Replays histories into a cluster over its HTTP API: several connections, each key strictly in order.

Every write carries the causal context that its key was read with, so a replay makes no siblings. Failures of a killed
or restarting node (refused connections, 503, 504 with an unknown outcome) are retried with back-off at the cluster's
next node: the same write, with the same context and request id, so that it takes effect once. The cluster remembers
request ids for a limited time; so after an unknown outcome the key is read once more, and written again where the lost
write has taken effect beside the repeated one. Nothing here prints.
"""

from __future__ import annotations

import queue
import threading
import time
import uuid
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Final

from isthmus.node.demo.client import ObjectWriter, RetryPolicy, Transient
from isthmus.node.demo.history import DemoHistory, HistoryOperation
from isthmus.repl.model.errors import IsthmusError

CONNECTIONS: Final = 8
"""Connections over which keys are spread. One write waits for an fsync, so a few are needed to fill a group commit;
more only add threads to this process."""

AHEAD_COUNT: Final = 64
"""Operations queued for one connection before the reader of the history waits; they hold no values."""


_Lane = queue.Queue[tuple[DemoHistory, HistoryOperation] | None]


class HistoryReplay:
    """One replay of `histories`, one after the other, into the cluster whose nodes are at `urls`.

    `rate` is operations a second, 0 as fast as possible. `start` returns at once; `wait` raises what went wrong.
    """

    def __init__(
        self, urls: Sequence[str], histories: Sequence[DemoHistory], rate: float, connections: int = CONNECTIONS
    ) -> None:
        self._urls = urls
        self._histories = histories
        self._interval_s = 1 / rate if rate > 0 else 0.0
        self._lanes: list[_Lane] = [queue.Queue(AHEAD_COUNT) for _ in range(connections)]
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        self._fault: Exception | None = None
        self._threads: list[threading.Thread] = []
        self._started_s = 0.0
        self._ended_s = 0.0
        self.total_count = 0
        self.done: Counter[str] = Counter()
        """Operations done: "puts", "deletes", and "bytes" of values."""
        self.longest_pause_s = 0.0
        """Longest time between two operations done, one after the other, by whichever connections."""
        self._done_s = 0.0
        self.failures: Counter[str] = Counter()
        """Attempts that failed and were repeated, by `Transient.kind`."""

    def start(self) -> None:
        """Begin; the work is done in threads of this process."""
        self.total_count = sum(history.count() for history in self._histories)
        self._started_s = time.monotonic()
        self._threads = [
            threading.Thread(
                target=self._guarded, args=(partial(self._work, number, lane),), name=f"replay-{number}", daemon=True
            )
            for number, lane in enumerate(self._lanes)
        ]
        self._threads.append(
            threading.Thread(target=self._guarded, args=(self._feed,), name="replay-feed", daemon=True)
        )
        for thread in self._threads:
            thread.start()

    @property
    def done_count(self) -> int:
        """Operations acknowledged so far."""
        return self.done["puts"] + self.done["deletes"]

    @property
    def elapsed_s(self) -> float:
        """Seconds since the start, or what the whole replay took."""
        return (self._ended_s or time.monotonic()) - self._started_s

    @property
    def running(self) -> bool:
        """True while there is work under way."""
        return any(thread.is_alive() for thread in self._threads)

    def wait(self, timeout_s: float) -> bool:
        """Wait at most `timeout_s`; True when all is done. Raises the first fault of any thread."""
        deadline_s = time.monotonic() + timeout_s
        for thread in self._threads:
            thread.join(max(0.0, deadline_s - time.monotonic()))
        if self._fault is not None:
            raise self._fault
        if self.running:
            return False
        self._ended_s = self._ended_s or time.monotonic()
        return True

    def stop(self) -> None:
        """Start no further request; running ones end when they are answered or their node goes."""
        self._stopping.set()

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:  # noqa: BLE001 - kept for `wait`, which raises it
            self._fault = self._fault or error
            self._stopping.set()

    def _feed(self) -> None:
        due_s = time.monotonic()
        for history, operation in self._all():
            if self._interval_s:
                due_s += self._interval_s
                if self._stopping.wait(max(0.0, due_s - time.monotonic())):
                    return
            lane = self._lanes[zlib.crc32(history.bucket + operation.key) % len(self._lanes)]
            if not self._enqueue(lane, (history, operation)):
                return
        for lane in self._lanes:
            self._enqueue(lane, None)

    def _all(self) -> Iterator[tuple[DemoHistory, HistoryOperation]]:
        for history in self._histories:
            for operation in history.operations():
                yield history, operation

    def _enqueue(self, lane: _Lane, item: tuple[DemoHistory, HistoryOperation] | None) -> bool:
        while not self._stopping.is_set():
            try:
                lane.put(item, timeout=0.5)
            except queue.Full:
                continue
            return True
        return False

    def _work(self, number: int, lane: _Lane) -> None:
        client = ObjectWriter(self._urls, number)
        try:
            while not self._stopping.is_set():
                try:
                    item = lane.get(timeout=0.5)
                except queue.Empty:
                    continue
                if item is None:
                    return
                self._perform(client, *item)
        finally:
            client.close()

    def _perform(self, client: ObjectWriter, history: DemoHistory, operation: HistoryOperation) -> None:
        value = None if operation.token is None else history.value(operation.token)
        policy = RetryPolicy(self._stopping)
        write: _Write | None = None
        while True:
            try:
                if write is None:
                    write = _Write(client, history.bucket, operation.key, value)
                write.attempt(client)
                break
            except Transient as failure:
                with self._lock:
                    self.failures[failure.kind] += 1
                client.next_node()
                if not policy.wait(failure):
                    return
                if isinstance(failure, TookEffectTwice):
                    write = None
            except IsthmusError as error:
                key = operation.key.decode(errors="backslashreplace")
                raise type(error)(f"{history.title}, {key!r}: {error}") from error
        now_s = time.monotonic()
        with self._lock:
            self.longest_pause_s = max(self.longest_pause_s, now_s - (self._done_s or self._started_s))
            self._done_s = now_s
            self.done["deletes" if value is None else "puts"] += 1
            self.done["bytes"] += len(value or b"")


class TookEffectTwice(Transient):
    """A lost write took effect beside its repetition: the key has siblings, and must be written over them."""

    def __init__(self) -> None:
        super().__init__("unknown", "a write of unknown outcome took effect beside its repetition")


class _Write:
    """One write of a key, with the context that was read and a request id, for any number of attempts."""

    def __init__(self, client: ObjectWriter, bucket: bytes, key: bytes, value: bytes | None) -> None:
        """Read the key's context. Raises Transient, BadInput."""
        self._bucket, self._key, self._value = bucket, key, value
        self._request_id = uuid.uuid4().hex
        seen = client.get(bucket, key)
        self._clock = seen.clock
        self._unnecessary = value is None and seen.sibling_count == 0
        self._outcome_unknown = False

    def attempt(self, client: ObjectWriter) -> None:
        """Send it once. Raises Transient, BadInput; TookEffectTwice when the key must be read and written again."""
        if self._unnecessary:
            return
        try:
            if self._value is None:
                client.delete(self._bucket, self._key, self._clock, self._request_id)
            else:
                client.put(self._bucket, self._key, self._value, self._clock, self._request_id)
            if self._outcome_unknown and client.get(self._bucket, self._key).sibling_count != (self._value is not None):
                raise TookEffectTwice
        except Transient as failure:
            self._outcome_unknown = self._outcome_unknown or failure.unknown
            raise
