"""The life of a node beside its metastore: sessions that end while it comes up, a ZooKeeper that does not end."""

from __future__ import annotations

import asyncio
import os
import re
import signal
from pathlib import Path

import pytest

from config.loading import load_file
from node import daemon, supervisor
from node.daemon import Node
from node.ports import free_port
from repl.identity import Identity
from repl.metastore.memory import MemoryMetastore
from repl.model.errors import Corruption, LocalFault
from repl.model.record import Registration
from tests.http.living import SETTINGS, NodeInMemory


class ComingUp(NodeInMemory):
    """A node whose session ends while its queues start, as those of a long start may."""

    def _make_faces(self) -> None:
        super()._make_faces()
        begin = self.queues.start

        async def begin_late() -> None:
            await begin()
            self._metastore.expire()
            await asyncio.sleep(0.1)

        self.queues.start = begin_late


def file_of(directory: Path) -> Path:
    """A config file with ports of its own."""
    taken: set[int] = set()
    while len(taken) < 3:
        taken.add(free_port(taken))
    file = directory / "node.toml"
    file.write_text(SETTINGS.format(*taken, ""))
    return file


async def until(condition) -> None:
    """Returns once `condition` holds."""
    async with asyncio.timeout(5):
        while not await condition():
            await asyncio.sleep(0.02)


def test_a_registration_that_the_metastore_refuses_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a session ended the node would else live on, and never take part again until somebody restarts it."""
    monkeypatch.setattr(daemon, "REGISTER_RETRY_MS", 10)

    async def story() -> None:
        node: Node = NodeInMemory(load_file(file_of(tmp_path)))
        await node.start()
        served = asyncio.create_task(node.serve())
        metastore = node._metastore
        assert isinstance(metastore, MemoryMetastore)
        register, refusals = metastore.register, [LocalFault("ZooKeeper refuses"), Corruption("no standing")]

        async def refused(registration: Registration) -> int:
            if refusals:
                raise refusals.pop()
            return await register(registration)

        async def serves_again() -> bool:
            return node.registrar.inc != before and node.ready()[0]

        metastore.register = refused  # type: ignore[method-assign]
        before = node.registrar.inc
        try:
            metastore.expire()
            await until(serves_again)
        finally:
            node.request_stop("the test is over")
            await served

    asyncio.run(story())


def test_a_session_that_ends_while_the_node_comes_up_is_followed_by_another(tmp_path) -> None:
    """The node registers anew, though it did not serve yet when the session in which it had registered was over."""

    async def story() -> None:
        node: Node = ComingUp(load_file(file_of(tmp_path)))
        await node.start()
        served = asyncio.create_task(node.serve())
        try:

            async def registered() -> bool:
                return "n1" in await node._metastore.registrations()

            await until(registered)
        finally:
            node.request_stop("the test is over")
            await served

    asyncio.run(story())


def test_a_stop_while_no_zookeeper_answers_does_not_wait_for_it(tmp_path: Path) -> None:
    """Ctrl-C at a node that waits for its metastore ends it at once and cleanly, not after `connect_timeout`."""

    async def story() -> int:
        life = asyncio.create_task(daemon._run(load_file(file_of(tmp_path))))
        await asyncio.sleep(0.3)
        assert not life.done()
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)
        async with asyncio.timeout(10):
            return await life

    assert asyncio.run(story()) == 0
    Identity.open(tmp_path / "data").close(clean=False)


def test_a_stop_while_the_embedded_zookeeper_comes_up_does_not_wait_for_it(tmp_path: Path, monkeypatch) -> None:
    """Ctrl-C at a node whose own ZooKeeper does not serve yet ends it at once and cleanly, and leaves no process."""
    java = tmp_path / "jdk" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text("""#!/bin/sh\n[ "$1" = -version ] && { echo 'version "17.0.1"' >&2; exit; }\nexec sleep 60\n""")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "jdk"))
    file = file_of(tmp_path)
    file.write_text(re.sub(r"(?m)^hosts = .*$", "", file.read_text()))
    metastore = tmp_path / "data" / "metastore"

    async def story() -> int:
        life = asyncio.create_task(daemon._run(load_file(file)))
        async with asyncio.timeout(10):
            while not supervisor.recorded_children(metastore):
                await asyncio.sleep(0.02)
        assert not life.done()
        os.kill(os.getpid(), signal.SIGINT)
        async with asyncio.timeout(10):
            return await life

    assert asyncio.run(story()) == 0
    assert not supervisor.recorded_children(metastore)
    assert supervisor.running_state(metastore) is None
    Identity.open(tmp_path / "data").close(clean=False)


def test_a_zookeeper_that_does_not_end_makes_no_unclean_stop(tmp_path, monkeypatch) -> None:
    """What a node holds was written to the end when its stop comes to the embedded ZooKeeper: a fault there does not
    leave the directory as a crash would."""

    def refused(_: object) -> None:
        raise LocalFault("the supervisor does not answer within 90 s")

    monkeypatch.setattr(daemon.supervisor, "release_embedded", refused)

    async def story() -> None:
        node = NodeInMemory(load_file(file_of(tmp_path)))
        await node.start()
        node._embedded = True
        node.request_stop("the test is over")
        with pytest.raises(LocalFault, match="does not answer"):
            await node.serve()

    asyncio.run(story())
    identity = Identity.open(tmp_path / "data")
    assert identity.clean
    identity.close(clean=True)
