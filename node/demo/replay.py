"""Replays histories into a cluster over its HTTP API: several connections, each key strictly in order.

Every write carries the causal context that its key was read with, so a replay makes no siblings. Failures of a killed
or restarting node are retried with back-off at the cluster's next node (`node.demo.client.ObjectWrite`). Nothing here
prints.
"""

from __future__ import annotations

import itertools
import threading
import time
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent import futures
from contextlib import closing
from typing import Final

from isthmus.node.demo.client import FailoverClient, ObjectWrite, Stopped
from isthmus.node.demo.history import DemoHistory, HistoryOperation
from isthmus.repl.model.errors import IsthmusError

CONNECTIONS: Final = 8
"""Connections over which keys are spread. One write waits for an fsync, so a few are needed to fill a group commit;
more only add threads to this process."""


class HistoryReplay:
    """One replay of `histories`, one after the other, into the cluster whose nodes are at `urls`.

    `rate` is operations a second, 0 as fast as possible. `start` returns at once; `wait` raises the first failure.
    """

    def __init__(self, urls: Sequence[str], histories: Sequence[DemoHistory], rate: float) -> None:
        self._histories = histories
        self._interval_s = 1 / rate if rate > 0 else 0.0
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        self._clients = [FailoverClient(urls, self._stopping, number) for number in range(CONNECTIONS)]
        self._shares: list[futures.Future[None]] = []
        self._started_s = self._done_s = 0.0
        self.total_count = sum(len(history.operations) for history in histories)
        self.done: Counter[str] = Counter()
        """Operations done: "puts", "deletes", and "bytes" of values."""
        self.longest_pause_s = 0.0
        """Longest time between two operations done, one after the other, by whichever connections."""

    def start(self) -> None:
        """Begin; the work is done in threads of this process."""
        self._started_s = self._done_s = time.monotonic()
        pool = futures.ThreadPoolExecutor(CONNECTIONS, "replay")
        self._shares = [pool.submit(self._replay_share, number) for number in range(CONNECTIONS)]
        pool.shutdown(wait=False)

    @property
    def done_count(self) -> int:
        """Operations acknowledged so far."""
        return self.done["puts"] + self.done["deletes"]

    @property
    def elapsed_s(self) -> float:
        """Seconds from the start to the newest acknowledged operation."""
        return self._done_s - self._started_s

    def failures(self) -> Counter[str]:
        """Attempts that failed and were repeated, by kind."""
        return sum((client.failures for client in self._clients), Counter())

    def wait(self, timeout_s: float) -> bool:
        """Wait at most `timeout_s`; True when all is done. Raises the first failure."""
        ended, running = futures.wait(self._shares, timeout_s, futures.FIRST_EXCEPTION)
        for share in ended:
            share.result()
        return not running

    def stop(self) -> None:
        """Start no further request; running ones end when they are answered or their node goes."""
        self._stopping.set()

    def _operations(self) -> Iterator[tuple[DemoHistory, HistoryOperation]]:
        for history in self._histories:
            yield from zip(itertools.repeat(history), history.operations, strict=False)

    def _replay_share(self, number: int) -> None:
        """Replay the keys of one connection, each operation not before its time."""
        with closing(self._clients[number]) as client:
            for place, (history, operation) in enumerate(self._operations()):
                if zlib.crc32(history.bucket + operation.key) % CONNECTIONS == number:
                    due_s = self._started_s + place * self._interval_s
                    if self._stopping.wait(max(0.0, due_s - time.monotonic())):
                        return
                    try:
                        self._perform(client, history, operation)
                    except Stopped:
                        return
                    except IsthmusError as error:
                        key = operation.key.decode(errors="backslashreplace")
                        raise type(error)(f"{history.title}, {key!r}: {error}") from error

    def _perform(self, client: FailoverClient, history: DemoHistory, operation: HistoryOperation) -> None:
        value = None if operation.token is None else history.value(operation.token)
        client.retrying(ObjectWrite(history.bucket, operation.key, value).attempt)
        with self._lock:
            before_s, self._done_s = self._done_s, time.monotonic()
            self.longest_pause_s = max(self.longest_pause_s, self._done_s - before_s)
            self.done["deletes" if value is None else "puts"] += 1
            self.done["bytes"] += len(value or b"")
