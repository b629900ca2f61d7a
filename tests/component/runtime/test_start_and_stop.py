"""The life of a node beside its metastore: sessions that end while it comes up, a ZooKeeper that does not end."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import requests

from isthmus.config.loader import load_file
from isthmus.node import daemon
from isthmus.node.daemon import Node
from isthmus.node.local import supervisor_client
from isthmus.node.local.ports import free_port
from isthmus.node.observability.service_manager import ServiceManager
from isthmus.repl.controller.controller import CLAIM_PATH
from isthmus.repl.model.errors import Corruption, LocalFault
from isthmus.repl.model.record import Registration
from isthmus.repl.runtime import registration as registering
from isthmus.repl.storage.identity import NodeIdentity
from tests.support.memory_metastore import MemoryMetastore
from tests.support.threaded_node import SETTINGS, NodeInMemory
from tests.support.waiting import PATIENCE_S, eventually


class NodeWithExpiringSession(NodeInMemory):
    """A node whose session ends while its queues start, as may happen in a long start."""

    def _build_apis(self) -> None:
        super()._build_apis()
        begin = self.services.queues.start

        async def begin_late() -> None:
            await begin()
            self._metastore.expire()
            await asyncio.sleep(0.1)

        self.services.queues.start = begin_late


def file_of(directory: Path) -> Path:
    """A config file with ports of its own."""
    taken: set[int] = set()
    while len(taken) < 3:
        taken.add(free_port(taken))
    file = directory / "node.toml"
    file.write_text(SETTINGS.format(*taken, ""))
    return file


async def test_a_registration_that_the_metastore_refuses_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a node whose session ended would keep running, but not take part again until it was restarted."""
    monkeypatch.setattr(registering, "RETRY_MS", 10)

    node: Node = NodeInMemory(load_file(file_of(tmp_path)), tmp_path / "node.toml", ServiceManager({}))
    await node.start()
    served = asyncio.create_task(node.serve())
    metastore = node._metastore
    assert isinstance(metastore, MemoryMetastore)
    register, refusals = metastore.register, [LocalFault("ZooKeeper refuses"), Corruption("no standing")]

    async def refused(registration: Registration, takes: Collection[int] | None = None) -> int:
        if refusals:
            raise refusals.pop()
        return await register(registration, takes)

    async def serves_again() -> bool:
        return node.services.registrar.session_id != before and node.ready()[0]

    metastore.register = refused  # type: ignore[method-assign]
    before = node.services.registrar.session_id
    try:
        metastore.expire()
        await eventually(serves_again)
    finally:
        node.request_stop("the test is over")
        await served


async def test_a_session_that_ends_while_the_node_comes_up_is_followed_by_another(tmp_path) -> None:
    """The node registers again, although it did not serve yet when the session of its registration ended."""

    node: Node = NodeWithExpiringSession(load_file(file_of(tmp_path)), tmp_path / "node.toml", ServiceManager({}))
    await node.start()
    served = asyncio.create_task(node.serve())
    try:

        async def registered() -> bool:
            return "n1" in await node._metastore.registrations()

        await eventually(registered)
    finally:
        node.request_stop("the test is over")
        await served


async def answer(url: str, path: str) -> tuple[int, bytes]:
    """Status and body of a GET."""
    found = await asyncio.to_thread(requests.get, url + path, timeout=5)
    return found.status_code, found.content


@asynccontextmanager
async def serving(directory: Path) -> AsyncIterator[Node]:
    """A node that serves its partitions, until the end of the block."""
    node: Node = NodeInMemory(load_file(file_of(directory)), directory / "node.toml", ServiceManager({}))
    await node.start()
    served = asyncio.create_task(node.serve())

    async def ready() -> bool:
        return node.ready()[0]

    try:
        await eventually(ready)
        yield node
    finally:
        node.request_stop("the test is over")
        await served


async def test_a_deleted_registration_is_created_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The znode of a node whose session lives is deleted: the node notices, registers with another inc, leads and
    serves again without a restart, and counts and logs the event (H28)."""
    lost: list[str] = []
    monkeypatch.setattr(registering.log, "error", lambda _event, **fields: lost.append(fields["cause"]))

    async with serving(tmp_path) as node:
        metastore, before = node._metastore, node.services.registrar.session_id
        assert isinstance(metastore, MemoryMetastore)
        found = metastore._memory.ensemble.read("/nodes/n1")
        assert found is not None
        metastore._memory.ensemble.delete("/nodes/n1", found[1].version)

        async def serves_again() -> bool:
            return node.services.registrar.session_id not in (0, before) and node.ready()[0]

        await eventually(serves_again)
        assert (await metastore.registrations())["n1"].session_id == node.services.registrar.session_id
        status, _ = await answer(node.services.http_url, "/readyz")
        assert status == 200
        _, metrics = await answer(node.services.admin_url, "/metrics")
        assert b'isthmus_registrations_lost_total{cause="removed"} 1.0' in metrics
    assert lost == ["removed"]


async def test_a_node_whose_name_is_taken_reports_it_and_returns_when_the_other_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second process with the same node.name takes over. The first one does not take the name back, so they do not
    alternate: it takes no part, decides nothing, and /readyz, the status, the metrics and the log show why. When the
    other one has ended it registers again and serves. A session that expires meanwhile makes no difference."""
    monkeypatch.setattr(registering, "RETRY_MS", 10)
    lost: list[str] = []
    monkeypatch.setattr(registering.log, "error", lambda _event, **fields: lost.append(fields["cause"]))

    async with serving(tmp_path) as node:
        metastore = node._metastore
        assert isinstance(metastore, MemoryMetastore)
        second = MemoryMetastore(metastore._memory.ensemble)
        await second.start(lambda _state: None)
        theirs = await second.register(Registration("n1", 0, True, admin_url="http://elsewhere:9", id=1))

        async def out() -> bool:
            return node.services.registrar.session_id == 0 and not node.services.controller.decides

        await eventually(out)
        status, body = await answer(node.services.http_url, "/readyz")
        assert status == 503
        assert b"another process is registered as node n1" in body
        assert b"http://elsewhere:9" in body
        _, told = await answer(node.services.admin_url, "/admin/cluster")
        cluster = json.loads(told)
        assert cluster["registered"] is False
        assert "this node, n1, is not registered: another process" in cluster["problems"][0]
        _, metrics = await answer(node.services.admin_url, "/metrics")
        assert b"isthmus_registered 0.0" in metrics
        metastore.expire()
        await asyncio.sleep(0.1)  # ten attempts: none takes the name back
        assert {name: found.session_id for name, found in (await second.registrations()).items()} == {"n1": theirs}
        assert await second.get(CLAIM_PATH) is None
        await second.stop()

        async def serves_again() -> bool:
            return node.services.registrar.session_id > theirs and node.ready()[0]

        await eventually(serves_again)
        assert node.services.registrar.why == ""
        assert (await metastore.registrations())["n1"].admin_url == node.services.admin_url
    assert lost == ["taken"]


@pytest.mark.logs_errors("metastore.registration_lost")
async def test_a_node_whose_name_is_taken_closes_its_connections_and_dials_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other nodes know this one by its name only: each dial would end the connection of the process that has the name.
    So it closes its own, also where its session had ended before, and dials again once it is registered (H28)."""
    monkeypatch.setattr(registering, "RETRY_MS", 10)
    dials, open_now = 0, 0

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal dials, open_now
        dials, open_now = dials + 1, open_now + 1
        try:
            while await reader.read(1000):
                pass
        finally:
            open_now -= 1
            writer.close()

    async def dialled() -> bool:
        return open_now > 0

    async def closed() -> bool:
        return not node.services.registrar.registered and open_now == 0

    other = await asyncio.start_server(accept, "127.0.0.1", 0)
    address = "{}:{}".format(*other.sockets[0].getsockname())
    async with other, serving(tmp_path) as node:
        metastore = node._metastore
        assert isinstance(metastore, MemoryMetastore)
        n2 = MemoryMetastore(metastore._memory.ensemble)
        await n2.start(lambda _state: None)
        await n2.register(Registration("n2", 0, True, cluster_address=address, id=2))
        await eventually(dialled)
        for ends_before in (False, True):
            second = MemoryMetastore(metastore._memory.ensemble)
            await second.start(lambda _state: None)
            await second.register(Registration("n1", 0, True, id=1))
            if ends_before:
                node.services.registrar.expired()
            await eventually(closed)
            before = dials
            await asyncio.sleep(0.3)
            assert dials == before
            await second.stop()
            await eventually(dialled)
            assert node.services.registrar.registered
        await n2.stop()


async def test_a_stop_while_no_zookeeper_answers_does_not_wait_for_it(tmp_path: Path) -> None:
    """Ctrl-C at a node that waits for its metastore ends it at once and cleanly, not after `connect_timeout`."""

    async def scenario() -> int:
        life = asyncio.create_task(
            daemon.run_node(Node(load_file(file_of(tmp_path)), tmp_path / "node.toml", ServiceManager({})))
        )
        await asyncio.sleep(0.3)
        assert not life.done()
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)
        async with asyncio.timeout(PATIENCE_S):
            return await life

    assert await scenario() == 0
    NodeIdentity.open(tmp_path / "data").close(clean=False)


async def test_a_stop_while_the_embedded_zookeeper_comes_up_does_not_wait_for_it(tmp_path: Path, monkeypatch) -> None:
    """Ctrl-C at a node whose own ZooKeeper does not serve yet ends the node at once and cleanly, and leaves no
    process."""
    java = tmp_path / "jdk" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text("""#!/bin/sh\n[ "$1" = -version ] && { echo 'version "17.0.1"' >&2; exit; }\nexec sleep 60\n""")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "jdk"))
    file = file_of(tmp_path)
    file.write_text(re.sub(r"(?m)^hosts = .*$", "", file.read_text()))
    metastore = tmp_path / "data" / "metastore"

    async def scenario() -> int:
        life = asyncio.create_task(daemon.run_node(Node(load_file(file), file, ServiceManager({}))))
        async with asyncio.timeout(PATIENCE_S):
            while not supervisor_client.recorded_children(metastore):
                await asyncio.sleep(0.02)
        assert not life.done()
        os.kill(os.getpid(), signal.SIGINT)
        async with asyncio.timeout(PATIENCE_S):
            return await life

    assert await scenario() == 0
    assert not supervisor_client.recorded_children(metastore)
    assert supervisor_client.running_state(metastore) is None
    NodeIdentity.open(tmp_path / "data").close(clean=False)


async def test_a_zookeeper_that_does_not_end_makes_no_unclean_stop(tmp_path, monkeypatch) -> None:
    """A node's data is completely written before it stops its embedded ZooKeeper: a fault in that stop does not mark
    the directory as after a crash."""

    def refused(_: object) -> None:
        raise LocalFault("the supervisor does not answer within 90 s")

    monkeypatch.setattr(daemon.supervisor_client, "release_embedded", refused)

    node = NodeInMemory(load_file(file_of(tmp_path)), tmp_path / "node.toml", ServiceManager({}))
    await node.start()
    node._embedded = True
    node.request_stop("the test is over")
    with pytest.raises(LocalFault, match="does not answer"):
        await node.serve()
    identity = NodeIdentity.open(tmp_path / "data")
    assert identity.clean
    identity.close(clean=True)
