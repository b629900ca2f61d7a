"""An unreadable record or registration affects only its own partition or node."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from structlog.testing import capture_logs

from isthmus.repl.controller import controller
from isthmus.repl.controller.bucket_properties import (
    PROPERTIES_PATH,
    PropertyCache,
    PropertyScope,
    change_properties,
)
from isthmus.repl.controller.bucket_types import DefaultType
from isthmus.repl.controller.dynamic_options import OPTIONS_DOCUMENT, OptionSettings
from isthmus.repl.controller.reassigner import ELECTION_MS, Reassigner
from isthmus.repl.controller.reassignments import PlanningInput
from isthmus.repl.controller.stored_setting import Setting
from isthmus.repl.metastore.codecs import encode_record
from isthmus.repl.metastore.port import Versioned
from isthmus.repl.metastore.watched_document import DocumentEvents, WatchedDocument
from isthmus.repl.model.errors import LocalFault, Unreadable
from isthmus.repl.model.record import PartitionRecord, PartitionStatus
from tests.support.controller_cluster import eventually, running
from tests.support.memory_metastore import MemoryEnsemble, MemoryMetastore

pytestmark = pytest.mark.virtual_time

SMALL = DefaultType(partition_count=4, factor=3, settle_ms=0)


@pytest.fixture(autouse=True)
def _quick_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(controller, "POLL_MS", 200)


def overwrite(ensemble: MemoryEnsemble, path: str, value: bytes) -> bytes:
    """Writes as an operator's shell would; returns the previous value."""
    found = ensemble.read(path)
    assert found is not None
    ensemble.set(path, value, found[1].version)
    return found[0]


@pytest.mark.parametrize("value", [b"", b"{", b'{"v":99}', b"[" * 100_000, b"x" * 900_000])
async def test_one_unreadable_record_stops_one_partition(value: bytes) -> None:
    """If a record is damaged, newer or huge, the other partitions are elected when their leader dies, and that one
    after its repair. Each node logs the record once, with its last value."""

    async with running(SMALL, 1, 2, 3) as cluster:
        await eventually(cluster.online)
        one = cluster.nodes["n1"].controller
        dying = next(r.leader.node for r in one.records.values() if r.leader and r.leader.node != "n1")
        mine = [p for p, r in one.records.items() if r.leader and r.leader.node == dying]
        damaged = mine[0]
        with capture_logs() as logs:
            was = overwrite(cluster.ensemble, f"/p/{damaged}", value)
            living = [node for node in cluster.living if node.name != dying]
            await eventually(lambda: all(n.controller.unread.partitions == {damaged} for n in living))
            await cluster.nodes[dying].die()
            await eventually(
                lambda: all(
                    r.status is PartitionStatus.ONLINE and r.leader is not None and r.leader.node != dying
                    for p, r in one.records.items()
                    if p != damaged
                )
            )
            await asyncio.sleep(0.5)
        found = cluster.ensemble.read(f"/p/{damaged}")
        assert found is not None
        assert found[0] == value
        told = [e for e in logs if e["event"] == "controller.document_unreadable" and e["last"] == was.decode()]
        assert 2 <= len(told) <= 3
        assert {each["path"] for each in told} == {f"/p/{damaged}"}
        assert {each["last_version"] for each in told} == {found[1].version - 1}
        assert list(one.unread.samples()) == [("isthmus_metastore_unreadable_documents", {}, 1)]
        overwrite(cluster.ensemble, f"/p/{damaged}", told[0]["last"].encode())
        await eventually(lambda: not one.unread.why)
        await eventually(lambda: (r := one.records[damaged]).leader is not None and r.leader.node != dying)


async def test_a_registration_that_cannot_be_read_is_no_live_node() -> None:
    """The registration is ignored: partitions led by the node get other leaders, and the unreadable path is
    reported."""

    async with running(SMALL, 1, 2, 3) as cluster:
        await eventually(cluster.online)
        overwrite(cluster.ensemble, "/nodes/n2", b'{"v":99}')
        one = cluster.nodes["n1"].controller
        await eventually(lambda: "version 99" in one.unread.why.get("/nodes/n2", ""))
        await eventually(lambda: cluster.online() and not cluster.leads()["n2"])


async def test_nothing_is_planned_while_a_partition_is_not_known() -> None:
    """A process that never read a record neither creates a bucket type a second time nor plans without that partition;
    one that has read it uses the last value."""

    ensemble = MemoryEnsemble()
    knows, new = MemoryMetastore(ensemble), MemoryMetastore(ensemble)
    for each in (knows, new):
        await each.start(lambda _state: None)
    records = [PartitionRecord(p, "default", p, 2, ("n1",), min_isr=1, reason="new") for p in (0, 1)]
    assert await knows.create_records(records)
    assert len(await knows.records()) == 2
    overwrite(ensemble, "/p/1", b"{}")
    assert (await PlanningInput.read(knows)).records.keys() == {0, 1}
    with pytest.raises(Unreadable, match="/p/1"):
        await PlanningInput.read(new)
    assert (await new.records()).keys() == {0}
    overwrite(ensemble, "/p/1", encode_record(records[1]))
    assert (await PlanningInput.read(new)).records.keys() == {0, 1}
    assert not new.unreadable


def test_an_election_that_does_not_end_holds_up_others_for_a_while_only() -> None:
    """The limit counts from the begin of the election, over all its nominations; such a node can be drained."""
    moving = Reassigner(MemoryMetastore())
    record = PartitionRecord(7, "default", 0, 1, ("n1",), min_isr=1, reason="new")
    stands = replace(record, status=PartitionStatus.CANDIDATE_FOUND)
    assert moving.see({7: record}, 1_000) == ELECTION_MS
    assert moving.see({7: stands}, 1_000 + ELECTION_MS - 5) == 5
    assert not moving.overdue
    moving.see({7: replace(stands, epoch=3)}, 1_000 + ELECTION_MS)
    assert moving.overdue == {7}
    moving.see({7: replace(record, status=PartitionStatus.ONLINE)}, 40_000)
    assert not moving.overdue


async def test_a_refused_read_stops_no_watched_document(monkeypatch: pytest.MonkeyPatch) -> None:
    """ZooKeeper refuses reads of one document for a while: the property cache and the controller's documents keep their
    last values, and are updated as soon as the read succeeds."""

    metastore = MemoryMetastore()
    await metastore.start(lambda _state: None)
    get = metastore.get

    async def refused(path: str) -> Versioned | None:
        raise LocalFault(f"ZooKeeper at zk:1 refuses a read of {path}: NoAuthError()")

    book = PropertyCache(metastore)
    await book.start()
    document = WatchedDocument(metastore, OPTIONS_DOCUMENT, OptionSettings(), DocumentEvents("a"))
    setting = Setting(True, "ann", 1)
    with monkeypatch.context() as patched:
        patched.setattr(metastore, "get", refused)
        book._document.on_hint(PROPERTIES_PATH)
        await document.refresh()
        await asyncio.sleep(0.1)
    assert metastore.get == get
    assert not document.readable
    await change_properties(metastore, PropertyScope("notes"), {"last_write_wins": setting})
    book._document.on_hint(PROPERTIES_PATH)
    document.expire()
    await document.refresh()
    assert document.readable
    await eventually(lambda: book.of_type(b"notes").of(b"b").last_write_wins)
    await book.stop()
