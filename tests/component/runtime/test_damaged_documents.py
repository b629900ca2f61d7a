"""When a document of the metastore cannot be read, a node keeps serving, names the document, and waits."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from isthmus.repl.isr import effects as fx
from isthmus.repl.model.errors import LocalFault
from tests.component.runtime.test_replica_removal import change, changed, fully_removed, other_nodes, write
from tests.support.memory_metastore import MemoryEnsemble
from tests.support.runtime_cluster import Cluster, eventually

ClusterFactory = Callable[..., AbstractAsyncContextManager[Cluster]]


def overwrite(ensemble: MemoryEnsemble, path: str, value: bytes) -> bytes:
    """Write a znode as an operator's shell would; returns the previous bytes."""
    found = ensemble.read(path)
    assert found is not None
    ensemble.set(path, value, found[1].version)
    return found[0]


def logged(logs: list, event: str, path: str) -> bool:
    return any(each["event"] == event and path in each["error"] for each in logs)


async def test_a_damaged_log_id_counter_stops_no_node(tmp_path: Path, start_cluster: ClusterFactory) -> None:
    """A replica that needs another log id waits for it, and names the damaged document; everything else works."""

    async with start_cluster(tmp_path) as t:
        await write(t, 3)
        await t.level()
        doubted = t.followers()[0]
        before = doubted.partition().replica.member
        was = overwrite(t.ensemble, "/gen", b"not a number")
        with capture_logs() as logs:
            doubted.runtime._perform(doubted.partition(), [fx.NewLogIdentity("a test doubts it")], 0)
            await eventually(lambda: logged(logs, "identity.gen_waits", "/gen"))
            await write(t, 3, b"more")
        assert not doubted.failures
        overwrite(t.ensemble, "/gen", was)
        await eventually(lambda: doubted.partition().replica.member != before)


async def test_a_damaged_record_stops_no_node_about_to_delete_a_replica(
    tmp_path: Path, start_cluster: ClusterFactory
) -> None:
    """An unreadable record does not mean that a replica is to be deleted: it stays until the record says so."""

    async with start_cluster(tmp_path, 4, removed_grace_ms=4_000) as t:
        await write(t, 5)
        newcomer, leaver = other_nodes(t)
        await change(t, adding=(newcomer,), removing=(leaver,))
        stay = {*t.members} - {leaver}
        await changed(t, *stay)
        left = t.members[leaver]
        with capture_logs() as logs:
            was = overwrite(t.ensemble, "/p/0", b"{")
            await eventually(lambda: logged(logs, "clearing.waits", "/p/0"))
        assert not left.failures
        assert not fully_removed(left)
        overwrite(t.ensemble, "/p/0", was)
        await eventually(lambda: fully_removed(left))


async def test_a_refusing_metastore_stops_no_node_that_creates_a_replica(
    tmp_path: Path, start_cluster: ClusterFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A registration that ZooKeeper refuses (its rights, its quota) is tried again: the disk has done nothing wrong."""

    async with start_cluster(tmp_path, 4) as t:
        await write(t, 5)
        newcomer, leaver = other_nodes(t)
        member = t.members[newcomer]
        register, refused = member.registrar.register, []

        async def refuse() -> int:
            if len(refused) < 2:
                refused.append(True)
                raise LocalFault("ZooKeeper at zk:1 refuses writing /replicas: NoAuthError()")
            return await register()

        monkeypatch.setattr(member.registrar, "register", refuse)
        await change(t, adding=(newcomer,), removing=(leaver,))
        await changed(t, *({*t.members} - {leaver}))
        assert len(refused) == 2
        assert not member.failures


@pytest.mark.logs_errors("controller.document_unreadable")
async def test_a_node_comes_up_beside_a_record_that_cannot_be_read(
    tmp_path: Path, start_cluster: ClusterFactory
) -> None:
    """The node's replica of that partition waits; once the record is repaired it continues, under its old log id."""

    async with start_cluster(tmp_path) as t:
        await write(t, 10)
        await t.level()
        gone = t.followers()[0].node
        log_id = t.members[gone].identity.log_ids()[0]
        await t.kill(gone)
        was = overwrite(t.ensemble, "/p/0", b'{"v":99}')
        back = await t.open(gone)
        await eventually(lambda: "version 99" in back.controller.unread.why.get("/p/0", ""))
        await asyncio.sleep(0.5)
        assert not back.runtime.partitions
        assert not back.failures
        overwrite(t.ensemble, "/p/0", was)
        await eventually(lambda: back.ready)
        assert back.identity.log_ids()[0] == log_id
        await write(t, 10, b"more")
        await t.level()


@pytest.mark.parametrize(
    ("field", "value"),
    [("epoch", 1 << 40), ("partition_count", 1 << 62), ("bucket_type", "\ud800"), ("reason", "\ud800")],
)
@pytest.mark.logs_errors("controller.document_unreadable")
async def test_a_record_with_a_number_or_text_that_cannot_be_is_unreadable(
    tmp_path: Path, start_cluster: ClusterFactory, field: str, value: object
) -> None:
    """The record is reported, nothing is decided by it, no process ends because of it, and after its repair everything
    is as before."""

    async with start_cluster(tmp_path) as t:
        await write(t, 3)
        found = t.ensemble.read("/p/0")
        assert found is not None
        was = overwrite(t.ensemble, "/p/0", json.dumps({**json.loads(found[0]), field: value}).encode())
        named = field if isinstance(value, int) else "not a partition record"
        await eventually(lambda: all(named in h.controller.unread.why.get("/p/0", "") for h in t.members.values()))
        await write(t, 3, b"more")
        overwrite(t.ensemble, "/p/0", was)
        await eventually(lambda: not any(h.controller.unread.why for h in t.members.values()))
        await write(t, 3, b"most")
        assert not any(member.failures for member in t.members.values())
