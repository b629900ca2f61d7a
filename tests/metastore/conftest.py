"""Real ZooKeepers for the tests of this room, and the two worlds that the contract runs on."""

from __future__ import annotations

import asyncio
import itertools
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from kazoo.client import KazooClient

from node.ports import free_port
from repl.metastore import embedded
from repl.metastore.java import find_java
from repl.metastore.memory import MemoryEnsemble, MemoryMetastore
from repl.metastore.port import Metastore
from repl.metastore.zookeeper import ZooKeeperMetastore


class Server:
    """A ZooKeeper process of one directory and port, to be stopped, killed, frozen and started again."""

    def __init__(self, directory: Path, command: Callable[[Path, int], list[str]] | None = None) -> None:
        self.port = free_port(set())
        self.directory = directory
        self.hosts = f"{embedded.HOST}:{self.port}"
        self._command = command or (
            lambda path, port: embedded.zookeeper_command(find_java(), embedded.find_jars(), path, port)
        )
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        embedded.prepare(self.directory, self.port)
        with (self.directory / "out").open("ab") as out:
            self.process = subprocess.Popen(
                self._command(self.directory, self.port), cwd=self.directory, stdout=out, stderr=subprocess.STDOUT
            )
        process = self.process
        embedded.wait_until_serving(
            self.directory, self.port, 40, lambda: None if process.poll() is None else f"exit {process.poll()}"
        )

    def send(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def kill(self) -> None:
        self.send(signal.SIGKILL)
        assert self.process is not None
        self.process.wait(10)

    def close(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.kill()


@pytest.fixture(scope="module")
def shared_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One ZooKeeper for the tests of a module that do not hurt it."""
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
    """A ZooKeeper that one test may hurt."""
    return make_server(None)


class MemoryWorld:
    """Clients of one memory tree."""

    def __init__(self) -> None:
        self._ensemble = MemoryEnsemble()

    def client(self) -> Metastore:
        return MemoryMetastore(self._ensemble)

    async def expire(self, client: Metastore) -> None:
        assert isinstance(client, MemoryMetastore)
        client.expire()


class ZooKeeperWorld:
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
        """End the client's session behind its back: another connection of the same session closes it."""
        assert isinstance(client, ZooKeeperMetastore)
        identity = client._link._client.client_id

        def close_session() -> None:
            double = KazooClient(hosts=self._hosts, client_id=identity)
            double.start()
            double.stop()
            double.close()

        await asyncio.to_thread(close_session)


@pytest.fixture(params=["memory", "zookeeper"])
def world(request: pytest.FixtureRequest) -> MemoryWorld | ZooKeeperWorld:
    """Each claim of the contract holds on both."""
    if request.param == "memory":
        return MemoryWorld()
    return ZooKeeperWorld(request.getfixturevalue("shared_server"))


@pytest.fixture
def real_world(shared_server: Server) -> ZooKeeperWorld:
    """A root of its own in the shared ZooKeeper."""
    return ZooKeeperWorld(shared_server)
