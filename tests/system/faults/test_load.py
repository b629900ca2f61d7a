"""The clients of the fault tests record the true history, also at a server that misbehaves on purpose."""

from __future__ import annotations

import http.server
import random
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from isthmus.node.local.ports import free_port
from tests.support.waiting import wait_until
from tests.system.faults import load
from tests.system.faults.linearizability import Kind, NotLinearizable, Outcome, check
from tests.system.faults.load import Broken, Connection, History, Load, NodeAddress, NotSent, read_all

Answer = tuple[int, dict[str, str], bytes]


class FakeRegister(http.server.ThreadingHTTPServer):
    """Keys with siblings, a count as clock, and requests that end badly when `mishap` says so: "refuse", "unknown"
    before or after the effect, "cut" before or after, or "lie": acknowledged without effect."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.lock = threading.Lock()
        self.count = 0
        self.values: dict[str, list[tuple[int, bytes]]] = {}
        self.seen: set[str] = set()
        self.mishap: Callable[[], str] = lambda: ""

    @property
    def place(self) -> NodeAddress:
        """The address for clients."""
        return NodeAddress("register", "127.0.0.1", self.server_port)


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: FakeRegister

    def do_GET(self) -> None:
        """Return the siblings of a key."""
        with self.server.lock:
            values = [value for _, value in self.server.values.get(self.path, [])]
        if len(values) < 2:
            self._answer(200 if values else 404, b"".join(values))
            return
        parts = b"".join(b"--x\r\nContent-Type: text/plain\r\n\r\n%b\r\n" % value for value in values)
        self._answer(300, parts + b"--x--\r\n", "multipart/mixed; boundary=x")

    def do_PUT(self) -> None:
        """One write, which may end in a mishap."""
        body = self.rfile.read(int(self.headers["Content-Length"]))
        mishap = self.server.mishap()
        if mishap == "cut before":
            self.close_connection = True
            return
        if mishap == "refuse":
            self._answer(503, b"not now")
            return
        with self.server.lock:
            request_id = self.headers["X-Isthmus-Request-Id"]
            if mishap not in ("lie", "unknown before") and request_id not in self.server.seen:
                self.server.seen.add(request_id)
                self.server.count += 1
                seen = int(self.headers.get("X-Riak-Vclock", "0"))
                kept = [(place, value) for place, value in self.server.values.get(self.path, []) if place > seen]
                self.server.values[self.path] = [*kept, (self.server.count, body)]
        if mishap == "cut after":
            self.close_connection = True
        else:
            self._answer(504 if mishap.startswith("unknown") else 204, b"")

    def _answer(self, status: int, body: bytes, content_type: str = "text/plain") -> None:
        self.send_response(status)
        self.send_header("X-Riak-Vclock", str(self.server.count))
        self.send_header("Content-Type", content_type)
        if status != 204:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Silence."""


@pytest.fixture
def register(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeRegister]:
    """A running register, and clients that try again at once."""
    monkeypatch.setattr(load, "PAUSE_S", 0.001)
    server = FakeRegister()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


WRITES = 100
"""A machine that is busy may make none in the time that is enough for hundreds."""


def recorded(register: FakeRegister, clients: int = 1, seconds: float = 0.6) -> History:
    """The history that clients record in `seconds`, or until they have made `WRITES`, with a last read of every key."""
    history = History()
    keys = ["a", "b"]
    running = Load([register.place], keys, history, random.Random(5), clients=clients, pause_s=0.001)
    running.start()
    time.sleep(seconds)
    wait_until(lambda: sum(op.kind is Kind.WRITE for of in list(history.keys.values()) for op in list(of)) >= WRITES)
    running.stop()
    register.mishap = lambda: ""
    read_all([register.place], keys, history, random.Random(6), 5)
    return history


def test_a_load_on_an_honest_register_is_linearizable(register: FakeRegister) -> None:
    """Honest mishaps are recorded with their true outcome: the history passes."""
    chance = random.Random(7)
    kinds = ["", "", "", "", "refuse", "unknown before", "unknown after", "cut before", "cut after"]
    register.mishap = lambda: chance.choice(kinds)
    history = recorded(register)
    operations = [op for key in history.keys.values() for op in key]
    assert {op.outcome for op in operations if op.kind is Kind.WRITE} >= {Outcome.OK}
    assert history.counts["PUT 504"]
    assert history.counts["PUT broken"]
    assert history.counts["PUT 503"]
    assert history.counts["PUT 204"] == len(history.acknowledged)
    for of_key in history.keys.values():
        check(of_key)


def test_an_acknowledgement_without_effect_is_found(register: FakeRegister) -> None:
    """A register that forgets one acknowledged write in ten is caught by the last reads or before."""
    chance = random.Random(8)
    register.mishap = lambda: "lie" if chance.random() < 0.1 else ""
    history = recorded(register)
    for of_key in history.keys.values():
        with pytest.raises(NotLinearizable):
            check(of_key)


def test_a_refused_write_is_refused_only_if_every_try_was(register: FakeRegister) -> None:
    """Refusals all along make a refused write; one unknown try among them makes it unknown."""
    register.mishap = lambda: "refuse"
    history = recorded(register, seconds=0.3)
    assert {op.outcome for of in history.keys.values() for op in of if op.kind is Kind.WRITE} == {Outcome.REFUSED}
    chance = random.Random(9)
    register.mishap = lambda: chance.choice(["cut after", "refuse"])
    history = recorded(register, seconds=0.3)
    assert Outcome.UNKNOWN in {op.outcome for of in history.keys.values() for op in of if op.kind is Kind.WRITE}


def test_only_what_was_never_sent_is_definite(register: FakeRegister) -> None:
    """Without a listener a request is known not to have been sent; after a cut connection it is unknown."""
    nowhere = Connection(NodeAddress("nowhere", "127.0.0.1", free_port(set())))
    with pytest.raises(NotSent):
        nowhere.request("PUT", "/x", {}, b"1")
    register.mishap = lambda: "cut before"
    with pytest.raises(Broken):
        Connection(register.place).request("PUT", "/x", {"X-Isthmus-Request-Id": "1"}, b"1")


def test_gaps_without_an_acknowledged_write_count_from_edge_to_edge() -> None:
    """The longest gap includes the time before the first write and after the last, of all keys or of one."""
    history = History(acknowledged=[(2_000_000_000, "a"), (3_000_000_000, "b"), (3_500_000_000, "a")])
    assert history.longest_gap_s(0, 4_000_000_000) == 2.0
    assert history.longest_gap_s(1_500_000_000, 4_000_000_000) == 1.0
    assert history.longest_gap_s(1_500_000_000, 4_000_000_000, "b") == 1.5
