"""Sessions with a real ZooKeeper: clients paused and starved, metastores that are away; only expired sessions end."""

from __future__ import annotations

import asyncio
import contextlib
import json
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from isthmus.repl.metastore.port import SessionState, Unavailable
from isthmus.repl.metastore.zookeeper import ZooKeeperMetastore
from isthmus.repl.model.record import Registration
from tests.support.link_nodes import Proxy
from tests.support.metastore_clients import a_record
from tests.support.waiting import PATIENCE_S, eventually


class ClientProcess:
    """A `client_process` and the lines that it has printed."""

    def __init__(self, hosts: str, session_ms: int, busy_s: float) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.metastore_client_process", hosts, str(session_ms), str(busy_s)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.lines: list[dict[str, Any]] = []
        self._news: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._news.put(json.loads(line))
        self._news.put(None)

    def next(self, key: str, seconds: float = 2 * PATIENCE_S) -> Any:
        """The next line with this key; those before it are passed over (and kept in `lines`)."""
        deadline = time.monotonic() + seconds
        while True:
            line = self._news.get(timeout=max(0.01, deadline - time.monotonic()))
            assert line is not None, f"ended after {self.lines}"
            self.lines.append(line)
            if key in line:
                return line[key]

    def states(self) -> list[str]:
        return [line["state"] for line in self.lines if "state" in line]

    def tell(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def close(self) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        try:
            self.process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._reader.join()
        self.process.stdout.close()


@pytest.fixture
def client_process(request: pytest.FixtureRequest, shared_server: Any) -> Iterator[ClientProcess]:
    """A started client; parametrized by (session ms, busy s)."""
    session_ms, busy_s = request.param
    client = ClientProcess(shared_server.hosts, session_ms, busy_s)
    yield client
    client.close()


@pytest.mark.parametrize("client_process", [(1500, 0)], indirect=True)
def test_a_client_paused_beyond_its_session_gets_one_expiry_event(client_process: ClientProcess) -> None:
    """After SIGSTOP for longer than the session, `expired` is reported exactly once, then `connected`, and the node's
    next registration has a higher inc, under the same id."""
    before = client_process.next("inc")
    client_process.process.send_signal(signal.SIGSTOP)
    time.sleep(3.5)  # the pause is the fault; the server's clock must run out
    client_process.process.send_signal(signal.SIGCONT)
    after = client_process.next("inc")
    assert after > before
    states = client_process.states()
    assert states.count("expired") == 1
    assert states[-1] == "connected"


@pytest.mark.slow
@pytest.mark.parametrize("client_process", [(4000, 8)], indirect=True)
def test_a_saturated_loop_and_a_busy_thread_cost_no_session(client_process: ClientProcess) -> None:
    """The driver's own thread keeps pinging while loop and workers are busy for two session time-outs."""
    session_id = client_process.next("inc")
    client_process.tell()
    client_process.next("busy")
    assert client_process.states() == ["connected"], session_id


async def test_a_server_that_takes_a_connection_and_never_answers_ends_no_session(shared_server: Any) -> None:
    """A starting server may behave like this: the client connects again long before its session is over."""

    proxy = Proxy(shared_server.port)
    await proxy.start()
    client = ZooKeeperMetastore(proxy.address, "/silent", "east", session_timeout_ms=9000, connect_timeout_ms=15_000)
    states: list[SessionState] = []
    await client.start(states.append)
    session_id = await client.register(Registration("n1", 0, True, id=3))
    proxy.swallows = True
    proxy.cut()
    await eventually(lambda: proxy.swallowed, "swallowed")
    proxy.swallows = False
    await eventually(lambda: len(states) == 3, "connected again")
    assert states == [SessionState.CONNECTED, SessionState.SUSPENDED, SessionState.CONNECTED]
    assert (await client.registrations())["n1"].session_id == session_id
    await client.stop()
    await proxy.stop()


async def test_a_server_whose_machine_is_gone_ends_no_session(
    shared_server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server sends no answer, not even a refusal: the next server is tried while the session still lives."""
    states: list[SessionState] = []
    # The order in which the driver tries servers: after the one that it lost comes the other.
    monkeypatch.setattr("random.shuffle", lambda hosts: hosts.sort(key=lambda host: host[-1] == gone_port))

    async def run() -> None:
        proxy = Proxy(shared_server.port)
        await proxy.start()
        hosts = f"127.0.0.1:{gone_port},{proxy.address}"
        client = ZooKeeperMetastore(hosts, "/gone", "east", session_timeout_ms=9000, connect_timeout_ms=15_000)
        await client.start(states.append)
        session_id = await client.register(Registration("n1", 0, True, id=3))
        await asyncio.sleep(1.5)  # it sends no more than an idle client does
        proxy.cut()
        await eventually(lambda: len(states) == 3, "connected again")
        assert states == [SessionState.CONNECTED, SessionState.SUSPENDED, SessionState.CONNECTED]
        assert (await client.registrations())["n1"].session_id == session_id
        await client.stop()
        await proxy.stop()

    with socket.create_server(("127.0.0.1", 0), backlog=0) as gone, contextlib.ExitStack() as waiting:
        gone_port = gone.getsockname()[1]
        for _ in range(2):  # a server that does not accept it: the kernel admits no other connection
            one = waiting.enter_context(socket.socket())
            one.setblocking(False)
            one.connect_ex(("127.0.0.1", gone_port))
        await run()


@pytest.mark.slow
async def test_a_metastore_away_for_longer_than_a_session_ends_none(own_server: Any) -> None:
    """The ensemble times sessions, and not while it is down: a client that reconnects afterwards keeps registration and
    claim, and gets `suspended`, never `expired` (H31)."""

    client = ZooKeeperMetastore(own_server.hosts, "/x", "east", session_timeout_ms=3000, connect_timeout_ms=9000)
    states: list[SessionState] = []
    await client.start(states.append)
    session_id = await client.register(Registration("n1", 0, True, id=3))
    assert await client.claim("/controller", b"n1")
    await client.create_records([a_record(3)])
    record = (await client.records())[3]
    own_server.kill()
    down = time.monotonic()
    await eventually(lambda: states[-1] is SessionState.SUSPENDED, "suspended")
    while time.monotonic() < down + 4:
        for call in (client.records(), client.synced_record(3), client.write_record(record)):
            with pytest.raises(Unavailable):
                await call
        await asyncio.sleep(0.2)
    await asyncio.to_thread(own_server.start)
    await eventually(lambda: states[-1] is SessionState.CONNECTED, "connected again")
    assert states == [SessionState.CONNECTED, SessionState.SUSPENDED, SessionState.CONNECTED]
    assert (await client.registrations())["n1"].session_id == session_id
    assert await client.register(Registration("n1", 0, True, id=3)) == session_id
    assert await client.claim("/controller", b"n1")
    assert (await client.write_record(record)).version == record.version + 1
    await client.stop()
