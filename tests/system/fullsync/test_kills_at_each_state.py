"""A node killed at any state of an exchange: no check is in sync while keys are missing, and a later one repairs them.

The managing node sends its requests to the other cluster through a proxy of the test, which holds one request back: so
the exchange is in the intended state when a process is killed with SIGKILL.
"""

from __future__ import annotations

import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from isthmus.node.local import directory as places
from tests.system.fullsync.clusters import BUCKETS, Clusters, drop_queues, eventually, fill, topology

STATES = {
    "root-compare": ("/trees/roots", 1),
    "root-confirm": ("/trees/roots", 2),
    "branch-compare": ("/trees/leaves", 1),
    "branch-confirm": ("/trees/leaves", 2),
    "clock-compare": ("/trees/clocks", 1),
    "clock-confirm": ("/trees/clocks", 2),
}
"""State -> the request that is under way in it: its path, and its number among such requests of a run."""

MISSING = 60
REPAIRS_A_SECOND = 15
"""Slow enough that the state `repair` lasts some seconds."""


class QuestionHold:
    """The request to hold back, shared by all proxies."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._path, self._left = "", 0
        self.reached, self.released = threading.Event(), threading.Event()
        self.released.set()

    def at(self, path: str, number: int) -> None:
        """Hold the `number`-th request to this path from now on."""
        with self._lock:
            self._path, self._left = path, number
        self.reached.clear()
        self.released.clear()

    def passing(self, path: str) -> None:
        """A request arrives at a proxy; wait if it is the one to hold."""
        with self._lock:
            if not path.startswith(self._path) or not self._left:
                return
            self._left -= 1
            if self._left:
                return
        self.reached.set()
        self.released.wait(60)


class HoldingProxy:
    """A proxy in front of a node's client listener that forwards requests about trees."""

    def __init__(self, hold: QuestionHold) -> None:
        self.target = ""
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                hold.passing(self.path)
                question = urllib.request.Request(proxy.target + self.path, body, method="POST")
                question.add_header("Content-Type", self.headers["Content-Type"])
                try:
                    with urllib.request.urlopen(question, timeout=30) as answer:
                        status, reply, kind = answer.status, answer.read(), answer.headers["Content-Type"]
                except urllib.error.HTTPError as error:
                    with error:
                        status, reply, kind = error.code, error.read(), error.headers["Content-Type"]
                except OSError:
                    self.close_connection = True  # like the node that is gone
                    return
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(reply)))
                with suppress(OSError):  # the client may have been killed
                    self.end_headers()
                    self.wfile.write(reply)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def close(self) -> None:
        """Stop and wait."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture
def hold() -> QuestionHold:
    """A hold on no request yet."""
    return QuestionHold()


@pytest.fixture
def proxies(hold: QuestionHold) -> Iterator[list[HoldingProxy]]:
    """Two proxies, for two nodes."""
    found = [HoldingProxy(hold), HoldingProxy(hold)]
    yield found
    hold.released.set()
    for proxy in found:
        proxy.close()


def result_times(clusters: Clusters) -> set[int]:
    """Start times of the checks whose results the managing node has."""
    (peer,) = clusters.admin("east-1", "/admin/fullsync?results=200")["peers"]
    return {result["began_ms"] for result in peer["results"]}


def state(clusters: Clusters) -> str:
    """The state of the managing node's running check."""
    running = clusters.admin("east-1", "/admin/fullsync")["running"]
    return "" if running is None else str(running["state"])


def begun(clusters: Clusters, hold: QuestionHold, wanted: str) -> None:
    """Begin checks until one is at the wanted state: a node that has just restarted may not answer the others yet, and
    a check in which a live node does not answer ends as incomplete."""
    deadline = time.monotonic() + 60
    while state(clusters) != wanted or not (wanted == "repair" or hold.reached.is_set()):
        assert time.monotonic() < deadline, (
            wanted,
            clusters.admin("east-1", "/admin/fullsync")["peers"][0]["results"][:3],
        )
        if not state(clusters):
            if wanted != "repair":
                hold.at(*STATES[wanted])
            clusters.admin("east-1", "/admin/fullsync/run", {"peer": "west", "kind": "all"})
        time.sleep(0.02)


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("victim", ["east-1", "east-2", "west-1"])
def test_a_kill_at_any_state_makes_no_false_proof_and_nothing_is_missed(
    directory: Path, hold: QuestionHold, proxies: list[HoldingProxy], victim: str
) -> None:
    """The managing node, a node that leads beside it, the node of the other cluster that answers: killed at each state
    of an exchange. The check that was under way is not in sync, a later one repairs all that is missing, and nothing
    else has another clock than before."""
    urls = ",".join(proxy.url for proxy in proxies)
    text = topology().replace(
        'pause = "300ms"\nrepair_rate_limit = 0',
        f'pause = "200ms"\ntimeout = "10s"\nurls = "{urls}"\nname = "west"\nrepair_rate_limit = {REPAIRS_A_SECOND}',
    )
    clusters = Clusters(directory, text)
    for proxy, node in zip(proxies, ("west-1", "west-2"), strict=True):
        proxy.target = clusters.nodes[node]["http"]
    clocks = fill(clusters, 30)
    clusters.suspend_sinks(True)
    missing = [(BUCKETS[n % 5], f"missing {n}") for n in range(MISSING)]
    for n, name in enumerate(missing):
        clusters.put("east", *name, f"missing {n}", node=1 + n % 3)
    drop_queues(clusters, "east", "to-west")
    for wanted in (*STATES, "repair"):
        before = result_times(clusters)
        begun(clusters, hold, wanted)
        places.stop_node(directory, victim, kill=True)
        hold.released.set()
        if victim != "east-1":
            eventually(lambda: not state(clusters), "the check ends", 90)
        places.start_node(directory, victim)
        (peer,) = clusters.admin("east-1", "/admin/fullsync?results=200")["peers"]
        new = [result["verdict"] for result in peer["results"] if result["began_ms"] not in before]
        assert "in-sync" not in new, (wanted, new)
        assert new or victim == "east-1"
    clusters.suspend_sinks(False)
    clusters.in_sync()
    for name in (*missing, *clocks):
        here = clusters.read("east", *name)
        assert here == clusters.read("west", *name)
        assert here is not None
        assert name not in clocks or here[1] == clocks[name]
