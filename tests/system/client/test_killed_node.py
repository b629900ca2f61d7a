"""A client of real nodes, of which one is killed and one is paused: each update takes effect exactly once."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from isthmus.client import Client
from tests.system.local.real_nodes import Client as Http
from tests.system.local.real_nodes import RealNode, eventually, real_clusters

TABLES = "[replication]\nfactor = 3\nmin_isr = 2\npartitions = 6\n"
THREADS = 4
COUNTERS = 6


class Counting:
    """Threads that update counters, and log each update in a list of its own key, until they are stopped."""

    def __init__(self, urls: list[str]) -> None:
        self.client = Client(urls, timeout_s=60)
        self.done = [0] * COUNTERS
        self.failures: list[BaseException] = []
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(number,)) for number in range(THREADS)]

    def __enter__(self) -> Counting:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join()
        self.client.close()

    def _run(self, number: int) -> None:
        at = number
        try:
            while not self._stopping.is_set():
                at = (at + 1) % COUNTERS
                self.client.update("counters", f"c{at}", lambda count: count + 1, default=0)
                with self._lock:
                    self.done[at] += 1
                self.client.put("log", f"{number}-{at}-{self.done[at]}", b"x" * 100)
        except BaseException as error:  # noqa: BLE001 - the test judges it
            self.failures.append(error)

    def count(self) -> int:
        """Updates that were acknowledged."""
        return sum(self.done)


def further(counting: Counting, updates: int) -> Callable[[], bool]:
    """Whether this many more updates were acknowledged."""
    target = counting.count() + updates
    return lambda: counting.count() >= target or bool(counting.failures)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_updates_take_effect_once_while_nodes_are_killed_and_paused(tmp_path: Path) -> None:
    """kill -9 of a leader and its return, then SIGSTOP of another one for longer than its session: no call fails, and
    every counter is the number of its acknowledged updates."""
    with real_clusters(tmp_path, {"a": 3}) as (server, clusters):
        nodes: list[RealNode] = clusters["a"]
        http = Http()
        for node in nodes:
            node.write(f"127.0.0.1:{server.port}", TABLES)
            node.start()
        eventually(lambda: all(http.online(node) for node in nodes), "the cluster is online")
        with Counting([http.url(node) for node in nodes]) as counting:
            eventually(further(counting, 50), "updates")
            killed = nodes[0]
            killed.send(signal.SIGKILL)
            assert killed.process is not None
            killed.process.wait(10)
            eventually(further(counting, 50), "updates without a node")
            killed.start()
            eventually(lambda: all(http.online(node) for node in nodes), "the node is back")
            paused = nodes[1]
            paused.send(signal.SIGSTOP)
            try:
                eventually(further(counting, 50), "updates beside a node that stands still")
                time.sleep(2)
            finally:
                paused.send(signal.SIGCONT)
            eventually(further(counting, 50), "updates after it")
            eventually(lambda: all(http.online(node) for node in nodes), "the paused node is back")
        assert not counting.failures
        with Client([http.url(node) for node in nodes]) as client:
            found = client.get_many("counters", [f"c{at}" for at in range(COUNTERS)])
            assert [each.value if each else 0 for each in found] == counting.done
