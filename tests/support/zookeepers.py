"""Real ZooKeeper servers, and the metastores that the contract tests run on."""

from __future__ import annotations

import asyncio
import itertools
import random
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest
from kazoo.client import KazooClient
from kazoo.handlers.threading import KazooTimeoutError

from isthmus.node.local.ports import free_port
from isthmus.repl.metastore import embedded_zookeeper
from isthmus.repl.metastore.java import find_java
from isthmus.repl.metastore.port import Metastore
from isthmus.repl.metastore.zookeeper import ZooKeeperMetastore
from tests.simulation.world import ensemble as simulated
from tests.support.memory_metastore import MemoryEnsemble, MemoryMetastore
from tests.support.waiting import PATIENCE_S, wait_until


class Server:
    """A ZooKeeper process of one directory and port, to be stopped, killed, frozen and started again."""

    def __init__(
        self,
        directory: Path,
        command: Callable[[Path, int], list[str]] | None = None,
        ensemble: Sequence[embedded_zookeeper.EnsembleMember] = (),
        number: int = 0,
    ) -> None:
        self.port = ensemble[number].client_port if ensemble else free_port(set())
        self.directory = directory
        self.hosts = f"{embedded_zookeeper.HOST}:{self.port}"
        self.ensemble = ensemble
        self._command = command or (
            lambda path, port: embedded_zookeeper.zookeeper_command(
                find_java(), embedded_zookeeper.find_jars(), path, port, quorum=bool(ensemble)
            )
        )
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it and wait until it serves."""
        self.launch()
        self.wait()

    def launch(self) -> None:
        embedded_zookeeper.prepare(self.directory, self.port, self.ensemble)
        with (self.directory / "out").open("ab") as out:
            self.process = subprocess.Popen(
                self._command(self.directory, self.port), cwd=self.directory, stdout=out, stderr=subprocess.STDOUT
            )

    def wait(self) -> None:
        process = self.process
        assert process is not None
        embedded_zookeeper.wait_until_serving(
            self.directory, self.port, 40, lambda: None if process.poll() is None else f"exit {process.poll()}"
        )

    def send(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def freeze(self) -> None:
        """SIGSTOP; returns when every thread has stopped. Until the thread that receives the signal is scheduled, the
        others keep answering."""
        self.send(signal.SIGSTOP)
        assert self.process is not None
        tasks = Path(f"/proc/{self.process.pid}/task")
        wait_until(lambda: all(_stands_still(task) for task in tasks.iterdir()), "it stands still")

    def kill(self) -> None:
        self.send(signal.SIGKILL)
        assert self.process is not None
        self.process.wait(PATIENCE_S)

    def close(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.kill()


def _stands_still(task: Path) -> bool:
    try:
        return (task / "stat").read_text().rpartition(")")[2].split()[0] == "T"
    except (FileNotFoundError, ProcessLookupError):  # a thread that ended meanwhile
        return True


class Ensemble:
    """Three ZooKeepers that vote."""

    def __init__(self, directory: Path) -> None:
        ports: list[int] = []
        while len(ports) < 9:
            ports.append(free_port(set(ports)))
        members = [embedded_zookeeper.EnsembleMember(n + 1, *ports[3 * n : 3 * n + 3]) for n in range(3)]
        self.servers = [Server(directory / str(n), None, members, n) for n in range(3)]
        self.hosts = ",".join(server.hosts for server in self.servers)

    def start(self) -> None:
        """Start those that do not run; returns when all serve."""
        for server in self.servers:
            if server.process is None or server.process.poll() is not None:
                server.launch()
        for server in self.servers:
            server.wait()

    def leader(self) -> Server:
        """The one that leads now."""
        (leader,) = (server for server in self.servers if b"Mode: leader" in ask(server.port))
        return leader

    def close(self) -> None:
        for server in self.servers:
            server.close()


def ask(port: int) -> bytes:
    """A server's answer to `srvr`."""
    with socket.create_connection((embedded_zookeeper.HOST, port), 5) as sock:
        sock.sendall(b"srvr")
        answer = b""
        while piece := sock.recv(4096):
            answer += piece
        return answer


@pytest.fixture
def ensemble(tmp_path: Path) -> Iterator[Ensemble]:
    """Three servers to which one test may do harm."""
    three = Ensemble(tmp_path)
    try:
        three.start()
        yield three
    finally:
        three.close()


@pytest.fixture(scope="session")
def shared_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One ZooKeeper for the tests of a folder that do not harm it; they run in one process."""
    server = Server(tmp_path_factory.mktemp("zookeeper"))
    server.start()
    yield server
    server.close()


@pytest.fixture
def make_server(tmp_path: Path) -> Iterator[Callable[[Callable[[Path, int], list[str]] | None], Server]]:
    """Starts a ZooKeeper that one test may hurt, by a command line of its own if need be."""
    servers: list[Server] = []

    def make(command: Callable[[Path, int], list[str]] | None) -> Server:
        servers.append(Server(tmp_path / "zookeeper", command))
        servers[-1].start()
        return servers[-1]

    yield make
    for server in servers:
        server.close()


@pytest.fixture
def own_server(make_server: Callable[[None], Server]) -> Server:
    """A ZooKeeper server that one test may stop or kill."""
    return make_server(None)


class MemoryClients:
    """Clients of one memory tree."""

    def __init__(self) -> None:
        self._ensemble = MemoryEnsemble()

    def client(self) -> Metastore:
        return MemoryMetastore(self._ensemble)

    async def expire(self, client: Metastore) -> None:
        assert isinstance(client, MemoryMetastore)
        client.expire()


class _LoopEvents:
    """Events of a simulated ensemble on the running loop: messages arrive in its next turn, timers in time."""

    def __init__(self) -> None:
        self.random = random.Random("contract")
        self._loop = asyncio.get_running_loop()

    @property
    def now_ns(self) -> int:
        return int(self._loop.time() * 1e9)

    def at(self, delay_ns: int, callback: Callable[[], object], _machine: object = None) -> asyncio.Handle:
        if delay_ns < 10_000_000:
            return self._loop.call_soon(callback)
        return self._loop.call_later(delay_ns / 1e9, callback)


class EnsembleClients:
    """Clients of one simulated ensemble, whose servers lag behind, with the product's code above its sessions."""

    def __init__(self, lag_ms: float = 0) -> None:
        self._lag_ms = lag_ms
        self._ensemble: simulated.Ensemble | None = None
        self._names = itertools.count(1)

    def client(self) -> ZooKeeperMetastore:
        if self._ensemble is None:
            self._ensemble = simulated.Ensemble(_LoopEvents())
        name = f"n{next(self._names)}"
        self._ensemble.lag(name, self._lag_ms)
        return ZooKeeperMetastore(
            "simulated:2181",
            "/test",
            "east",
            session_timeout_ms=4000,
            connect_timeout_ms=10_000,
            session=self._ensemble.session_of(SimpleNamespace(name=name)),
        )

    async def expire(self, client: Metastore) -> None:
        """End the client's session behind its back."""
        assert isinstance(client, ZooKeeperMetastore)
        assert isinstance(client._link, simulated.EnsembleSession)
        assert self._ensemble is not None
        self._ensemble.expire(client._link.node)


EXPIRE_S = 3.0
EXPIRE_TRIES = 10


class ZooKeeperClients:
    """Clients of one root in a real ZooKeeper."""

    _roots = itertools.count()

    def __init__(self, server: Server, session_timeout_ms: int = 4000) -> None:
        self._hosts = server.hosts
        self._root = f"/test/{next(self._roots)}"
        self._session_timeout_ms = session_timeout_ms

    def client(self) -> ZooKeeperMetastore:
        return ZooKeeperMetastore(
            self._hosts,
            self._root,
            "east",
            session_timeout_ms=self._session_timeout_ms,
            connect_timeout_ms=10_000,
        )

    async def expire(self, client: Metastore) -> None:
        """End the client's session behind its back: another connection of the same session closes it. The client, whose
        connection ends with that, connects again and may take the session back first; then it is tried once more."""
        assert isinstance(client, ZooKeeperMetastore)
        identity = client._link._client.client_id

        def closes_session() -> bool:
            double = KazooClient(hosts=self._hosts, client_id=identity)
            try:
                double.start(timeout=EXPIRE_S)
            except KazooTimeoutError:
                return False
            double.stop()
            double.close()
            return True

        for _ in range(EXPIRE_TRIES):
            if await asyncio.to_thread(closes_session):
                return
        raise AssertionError(f"the session was not to be had in {EXPIRE_TRIES} tries")


@pytest.fixture(params=["memory", "simulated", "lagging", "zookeeper"])
def clients(request: pytest.FixtureRequest) -> MemoryClients | EnsembleClients | ZooKeeperClients:
    """Each test of the contract runs on all of them."""
    if request.param == "memory":
        return MemoryClients()
    if request.param == "simulated":
        return EnsembleClients()
    if request.param == "lagging":
        return EnsembleClients(20)
    return ZooKeeperClients(request.getfixturevalue("shared_server"))


@pytest.fixture
def zookeeper_clients(shared_server: Server) -> ZooKeeperClients:
    """A root of its own in the shared ZooKeeper."""
    return ZooKeeperClients(shared_server)
