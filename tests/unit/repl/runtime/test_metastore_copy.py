"""`repl.runtime.metastore_copy`: the content of a copy, when it is saved, and its adoption by an empty metastore."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from isthmus.repl.metastore.codecs import encode_record
from isthmus.repl.metastore.counters import ID_MARGIN, PARTITIONS_COUNTER, StoredCounter
from isthmus.repl.metastore.port import Versioned
from isthmus.repl.model.errors import BadInput, LocalFault, WrongIdentity
from isthmus.repl.model.record import Incarnation, Member, PartitionRecord, PartitionStatus, Registration
from isthmus.repl.runtime import metastore_copy
from isthmus.repl.runtime.metastore_copy import (
    CopyKeeper,
    MetastoreCopy,
    adopt,
    check_known,
    load_copy,
    plan_adoption,
    read_documents,
)
from isthmus.repl.storage.identity import NodeIdentity
from tests.support.memory_metastore import MemoryEnsemble, MemoryMetastore
from tests.support.waiting import eventually

UUID, OTHER = b"u" * 16, b"o" * 16
HELD = {0: [7, 5], 1: [7, 2]}
"""Partition -> [gen, epoch seen] of the directory."""

IDENTITY: dict[str, Any] = {"cluster_uuid": UUID, "node": "n1", "spare": 9, "partitions": HELD, "left": {4: [11, 1]}}


class Clock:
    """A wall clock that does not advance."""

    def wall_ms(self) -> int:
        return 1_000

    now_ms = wall_ms


def record(partition: int, epoch: int = 3) -> PartitionRecord:
    """An online partition of the type `orders`."""
    return PartitionRecord(
        partition=partition,
        bucket_type="orders",
        index=partition,
        partition_count=2,
        replicas=("n1", "n2"),
        epoch=epoch,
        status=PartitionStatus.ONLINE,
        leader=Incarnation("n1", 44),
        isr=frozenset({Member("n1", 7), Member("n2", 8)}),
    )


@asynccontextmanager
async def started_metastore() -> AsyncIterator[MemoryMetastore]:
    """A new metastore."""
    metastore = MemoryMetastore(MemoryEnsemble())
    await metastore.start(lambda _: None)
    yield metastore


async def filled(metastore: MemoryMetastore) -> None:
    """Two partitions, an option, a queue's state, a counter, and the nodes' registrations."""
    await metastore.cluster_uuid(UUID)
    await metastore.create_records([record(0), record(1)])
    await metastore.put("/options", b'{"v":1}', None)
    await metastore.put("/queues/q/owner", b"{}", None)
    await metastore.register(Registration("n1", 0, True, log_ids={0: 7}, spare_log_id=9, id=1))
    await metastore.claim("/controller", b"n1")
    assert await metastore.allocate_log_id() == 1


async def test_a_metastore_copy_holds_every_document_and_no_registration() -> None:
    """The copy has records and all values at any depth; not the uuid, ephemeral nodes, or the remains of
    registrations."""

    async with started_metastore() as metastore:
        await filled(metastore)
        await metastore.put("/something/quite/new", b"x", None)
        assert set(await read_documents(metastore)) == {
            "/p/0",
            "/p/1",
            "/options",
            "/queues/q/owner",
            "/gen",
            "/node-ids/1",
            "/something/quite/new",
        }


async def test_the_copy_follows_the_metastore_and_stays_when_records_disappear(tmp_path: Path) -> None:
    """A change is in the next copy; a metastore that has fewer records than the copy does not replace it."""

    async with started_metastore() as metastore:
        await filled(metastore)
        keeper = CopyKeeper(metastore, tmp_path, UUID, Clock())  # type: ignore[arg-type]
        await keeper.copy()
        copy = load_copy(tmp_path)
        assert copy is not None
        assert (copy.cluster_uuid, copy.at_ms, copy.partitions) == (UUID, 1_000, {0, 1})
        await metastore.put("/sink/limits", b"{}", None)
        await keeper.copy()
        assert "/sink/limits" in load_copy(tmp_path).documents  # type: ignore[union-attr]

        async def forgot(empty: MemoryMetastore) -> None:
            await empty.cluster_uuid(UUID)
            await empty.create_records([record(0)])
            second = CopyKeeper(empty, tmp_path, UUID, Clock())  # type: ignore[arg-type]
            second.start()
            await asyncio.sleep(0)
            await second.copy()
            await second.stop()

        other = MemoryMetastore(MemoryEnsemble())
        await other.start(lambda _: None)
        await forgot(other)
        assert load_copy(tmp_path).partitions == {0, 1}  # type: ignore[union-attr]


async def test_a_record_that_changes_has_no_other_document_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each node of a large cluster copies after every election: then it asks for the records alone. A document that
    changes is in the next copy all the same, and so is one that is new."""
    monkeypatch.setattr(metastore_copy, "INTERVAL_S", 0.01)
    asked: list[str] = []

    async with started_metastore() as metastore:
        await filled(metastore)
        get = metastore.get

        async def counted(path: str) -> Versioned | None:
            asked.append(path)
            return await get(path)

        monkeypatch.setattr(metastore, "get", counted)
        keeper = CopyKeeper(metastore, tmp_path, UUID, Clock())  # type: ignore[arg-type]
        keeper.start()
        try:
            await eventually(lambda: documents(tmp_path).keys() >= {"/options", "/p/0"}, "the first copy")
            asked.clear()
            changed = replace((await metastore.records())[0], epoch=4)
            await metastore.write_record(changed)
            await eventually(lambda: documents(tmp_path)["/p/0"] == encode_record(changed), "the record")
            assert asked == []
            await metastore.put("/options", b'{"v":2}', 0)
            await metastore.put("/sink/limits", b"{}", None)
            await eventually(
                lambda: {"/options": b'{"v":2}', "/sink/limits": b"{}"}.items() <= documents(tmp_path).items(), "both"
            )
        finally:
            await keeper.stop()


def documents(directory: Path) -> dict[str, bytes]:
    """The documents of the copy in a directory."""
    copy = load_copy(directory)
    return {} if copy is None else dict(copy.documents)


async def copied() -> MetastoreCopy:
    """A copy of a filled metastore."""
    metastore = MemoryMetastore(MemoryEnsemble())
    await metastore.start(lambda _: None)
    await filled(metastore)
    return MetastoreCopy(UUID, 1_000, await read_documents(metastore))


@pytest.mark.parametrize("planted", [None, OTHER], ids=["empty", "a uuid of a node that was refused"])
async def test_an_adopted_metastore_elects_no_leader_without_an_operator(planted: bytes | None) -> None:
    """All documents are restored and the uuid is the directory's. Records have no leader and wait for `reseed`; the
    next log id is above all earlier ones."""

    async with started_metastore() as metastore:
        if planted is not None:
            await metastore.cluster_uuid(planted)
        copy = await copied()
        adoption = await plan_adoption(metastore, IDENTITY, copy, node="n1", by="ann")
        assert adoption.bucket_types == {"orders": 2}
        assert adoption.found_uuid == ("" if planted is None else planted.hex())
        assert await metastore.records() == {}, "a plan writes nothing"
        await adopt(metastore, adoption)
        assert await metastore.cluster_uuid(b"x" * 16) == UUID
        found = await metastore.records()
        assert {r.status for r in found.values()} == {PartitionStatus.OFFLINE}
        assert [(r.leader, r.overtaken, r.replicas) for _, r in sorted(found.items())] == [
            (None, 5, ("n1", "n2")),
            (None, 3, ("n1", "n2")),
        ]
        assert "adopted by ann" in found[0].reason
        assert await metastore.allocate_log_id() > ID_MARGIN + 11
        assert {p: v for p, v in (await read_documents(metastore)).items() if p in ("/options", "/queues/q/owner")} == {
            p: copy.documents[p] for p in ("/options", "/queues/q/owner")
        }


async def test_adopted_partition_ids_are_never_given_again() -> None:
    """R-DOT: the counter of partition ids is far above all that the copy and the directory know, since bucket types may
    have been made after the copy. Without records the counter is left: `default` is made again under its old ids
    (H41)."""

    async with started_metastore() as metastore:
        copy = await copied()
        await adopt(metastore, await plan_adoption(metastore, IDENTITY, copy, node="n1", by="ann"))
        assert (await PARTITIONS_COUNTER.read(metastore)).next == ID_MARGIN + 2
    async with started_metastore() as metastore:
        held = {**IDENTITY, "partitions": {**HELD, 40: [7, 2]}}
        counted = {**copy.documents, PARTITIONS_COUNTER.path: PARTITIONS_COUNTER.encode(StoredCounter(30))}
        for documents, above in ((counted, 41), ({**counted, PARTITIONS_COUNTER.path: b'{"v":1,"next":90}'}, 90)):
            adoption = await plan_adoption(metastore, held, copy._replace(documents=documents), node="n1", by="ann")
            assert PARTITIONS_COUNTER.decode(Versioned(adoption.documents[PARTITIONS_COUNTER.path], 1)).next == (
                ID_MARGIN + above
            )
        bare = {path: value for path, value in copy.documents.items() if not path.startswith("/p/")}
        adoption = await plan_adoption(metastore, IDENTITY, copy._replace(documents=bare), node="n1", by="ann")
        assert PARTITIONS_COUNTER.path not in adoption.documents


async def test_an_adoption_that_was_cut_off_is_finished_by_doing_it_again() -> None:
    """Records of an unfinished adoption, even another operator's, are not refused."""

    async with started_metastore() as metastore:
        adoption = await plan_adoption(metastore, IDENTITY, await copied(), node="n1", by="ann")
        await metastore.put("/p/1", adoption.documents["/p/1"], None)
        again = await plan_adoption(metastore, IDENTITY, await copied(), node="n1", by="bob")
        await adopt(metastore, again)
        assert set(await metastore.records()) == {0, 1}


async def test_a_metastore_in_use_is_not_adopted() -> None:
    """A metastore with records or a live node is in use, by this cluster or by another."""

    async with started_metastore() as metastore:
        await filled(metastore)
        with pytest.raises(BadInput, match=r"of this cluster already, and n1 use it"):
            await plan_adoption(metastore, IDENTITY, await copied(), node="n1", by="ann")
        metastore.expire()
        with pytest.raises(BadInput, match="of this cluster already, and has 2 partition records"):
            await plan_adoption(metastore, IDENTITY, await copied(), node="n1", by="ann")
        with pytest.raises(BadInput, match=f"of another cluster .{UUID.hex()}., and has 2"):
            await plan_adoption(metastore, {**IDENTITY, "cluster_uuid": OTHER}, None, node="n1", by="ann")


async def test_without_a_copy_the_losses_are_reported() -> None:
    """In a directory of an earlier release the uuid and the counter are written, and all losses are named."""

    async with started_metastore() as metastore:
        adoption = await plan_adoption(metastore, IDENTITY, None, node="n1", by="ann")
        assert set(adoption.documents) == {"/gen"}
        told = " ".join(adoption.lost)
        for word in ("partitions held here (0, 1)", "removed_copy_grace", "bucket types other than default", "owners"):
            assert word in told
        whole = await plan_adoption(
            metastore, {**IDENTITY, "partitions": {**HELD, 8: [7, 1]}}, await copied(), node="n1", by="a"
        )
        assert any("records of partitions 8, " in sentence for sentence in whole.lost)


def test_a_directory_with_copies_is_never_advised_to_be_emptied(tmp_path: Path) -> None:
    """With an empty metastore, or one of another uuid, the message recommends adoption."""
    identity = NodeIdentity.open(tmp_path)
    try:
        identity.check_metastore("east", empty=True)  # a new directory accepts any metastore
        identity.adopt(UUID, "n1", "boot", {0: 7})
        for refuse in (
            lambda: identity.check_metastore("east", empty=True),
            lambda: identity.check_cluster(OTHER, "east"),
        ):
            with pytest.raises(WrongIdentity, match="isthmus cluster adopt") as refused:
                refuse()
            assert "do not empty the directory, it holds 1 copy" in str(refused.value)
    finally:
        identity.close(clean=True)
    with pytest.raises(LocalFault, match="belongs to no cluster"):
        check_known(tmp_path, None)
