"""Replicas move from node to node while clients write; removed ones are deleted, once it is safe (R-RF, R-CLEAR)."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Collection
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from pathlib import Path

import pytest

from isthmus.repl.metastore.port import Ambiguous, VersionConflict
from isthmus.repl.model.keys import Key
from isthmus.repl.model.objects import Content
from isthmus.repl.model.record import PartitionRecord, Registration
from isthmus.repl.model.requests import WriteRequest
from isthmus.repl.storage.identity import NodeIdentity
from tests.support.runtime_cluster import Cluster, Node, eventually

ClusterFactory = Callable[..., AbstractAsyncContextManager[Cluster]]


def record_of(cluster: Cluster) -> PartitionRecord:
    """The newest record that any node has read."""
    return max((member.controller.records[0] for member in cluster.members.values()), key=lambda record: record.version)


async def change(cluster: Cluster, adding: tuple[str, ...] = (), removing: tuple[str, ...] = ()) -> None:
    """Change a record's replicas as a reassignment does."""
    while True:
        record = await next(iter(cluster.members.values())).metastore.synced_record(0)
        replicas = tuple(dict.fromkeys((*record.replicas, *adding)))
        wanted = replace(record, replicas=replicas, adding=adding, removing=removing)
        try:
            await next(iter(cluster.members.values())).metastore.write_record(wanted, ())
        except VersionConflict:
            continue
        return


async def changed(cluster: Cluster, *nodes: str) -> None:
    """Wait until a change has ended with these replicas, all in sync."""

    def done() -> bool:
        record = record_of(cluster)
        over = not record.adding and not record.removing and {*record.replicas} == {*nodes}
        return over and {member.node for member in record.isr} == {*nodes}

    await eventually(done)


async def write(cluster: Cluster, count: int, prefix: bytes = b"k") -> None:
    leader = await cluster.led()
    for n in range(count):
        request = WriteRequest(Key(b"default", b"b", prefix + b"-%d" % n), Content(b"v" * 50))
        await leader.coordinator.write(request)


def other_nodes(cluster: Cluster) -> tuple[str, str]:
    """(the node without a replica, a follower)."""
    record = record_of(cluster)
    (spare,) = {*cluster.members} - {*record.replicas}
    assert record.leader is not None
    leader = record.leader.node
    return spare, next(node for node in record.replicas if node != leader)


def fully_removed(member: Node) -> bool:
    """Wait until no replica, row, log or log id of the partition is left."""
    gone = 0 not in member.runtime.partitions and not member.identity.condemned()
    return gone and 0 not in member.identity.partitions() and member.runtime.replog.leo(0) == 0


async def test_a_moved_replica_leaves_nothing_behind_and_comes_back_as_another(
    tmp_path: Path, start_cluster: ClusterFactory
) -> None:
    """The replica is shown with its reason until it is deleted; one created there later has another log id and catches
    up."""

    async with start_cluster(tmp_path, 4, removed_grace_ms=4_000) as t:
        await write(t, 30)
        newcomer, leaver = other_nodes(t)
        left = t.members[leaver]
        log_id = left.partition().replica.member.log_id
        await change(t, (newcomer,), (leaver,))
        await changed(t, *({*t.members} - {leaver}))
        await eventually(
            lambda: (
                left.partition().removed
                and "removed: this node is no longer a replica" in left.partition().reason
                and left.identity.partitions() == [0]
            )
        )
        await write(t, 10)
        await eventually(lambda: fully_removed(left))
        store = left.runtime.store
        assert list(store.list_keys(0, None, None)) == []
        assert (store.applied(0).offset, store.transfers.marks()) == (0, {})
        assert left.identity.log_ids()[0] != log_id
        await change(t, (leaver,), ())
        await changed(t, *t.members)
        await t.level()
        assert left.partition().replica.member.log_id == left.identity.log_ids()[0] != log_id
        assert len(list(left.runtime.store.list_keys(0, None, None))) == 30


async def test_a_replica_is_recreated_although_its_deletion_was_not_registered(
    tmp_path: Path, start_cluster: ClusterFactory
) -> None:
    """The registration that follows a replica's condemnation fails, so it still has the old log id while the replica is
    deleted. When the record names the node again meanwhile, the registration gives it no credit: the new replica has
    another log id."""

    async with start_cluster(tmp_path, 4, removed_grace_ms=200) as t:
        await write(t, 30)
        newcomer, leaver = other_nodes(t)
        left = t.members[leaver]
        log_id = left.partition().replica.member.log_id
        register, failures, named_again = left.metastore.register, [], False

        async def failing(registration: Registration, takes: Collection[int] | None = None) -> int:
            if not left.identity.condemned() or named_again:
                return await register(registration, takes)
            failures.append(registration.log_ids.get(0))
            raise Ambiguous("the answer is missing")

        left.metastore.register = failing  # type: ignore[method-assign]
        await change(t, (newcomer,), (leaver,))
        await changed(t, *({*t.members} - {leaver}))
        await eventually(lambda: bool(failures))
        assert (await left.metastore.registrations())[leaver].log_id_of(0) == log_id
        await change(t, (leaver,), ())
        await eventually(lambda: leaver in left.controller.records[0].replicas)
        named_again = True
        await changed(t, *t.members)
        await t.level()
        copy = left.partition().replica.member
        assert copy.log_id == left.identity.log_ids()[0] != log_id
        assert (await left.metastore.registrations())[leaver].log_id_of(0) == copy.log_id
        assert len(list(left.runtime.store.list_keys(0, None, None))) == 30


@pytest.mark.logs_errors("clearing.bug")
async def test_a_condemnation_that_could_not_be_noted_is_noted_by_a_later_turn(
    tmp_path: Path, start_cluster: ClusterFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The decision stands: the replica is gone from the node, is not opened by a record that names it meanwhile, and is
    deleted and created again once the note is made."""

    async with start_cluster(tmp_path, 4, removed_grace_ms=200) as t:
        await write(t, 5)
        newcomer, leaver = other_nodes(t)
        left = t.members[leaver]
        log_id = left.partition().replica.member.log_id
        condemn, tried = left.identity.condemn, threading.Event()

        def bad(*_: int) -> None:
            tried.set()
            raise RuntimeError("made up by a test")

        monkeypatch.setattr(left.identity, "condemn", bad)
        await change(t, (newcomer,), (leaver,))
        await changed(t, *({*t.members} - {leaver}))
        await eventually(tried.is_set)
        await change(t, (leaver,), ())
        await eventually(lambda: leaver in left.controller.records[0].replicas)
        assert 0 not in left.runtime.partitions
        assert left.identity.partitions() == [0]
        monkeypatch.setattr(left.identity, "condemn", condemn)
        await changed(t, *t.members)
        await t.level()
        assert left.partition().replica.member.log_id != log_id


async def test_a_replica_reassigned_within_the_grace_time_is_kept(
    tmp_path: Path, start_cluster: ClusterFactory
) -> None:
    """Within the grace time it is the same replica: same log id, same rows, nothing is copied again."""

    async with start_cluster(tmp_path, 4) as t:
        await write(t, 20)
        newcomer, leaver = other_nodes(t)
        left = t.members[leaver]
        log_id, leo = left.partition().replica.member.log_id, left.partition().replica.leo
        await change(t, (newcomer,), (leaver,))
        await changed(t, *({*t.members} - {leaver}))
        await eventually(lambda: left.partition().removed)
        await change(t, (leaver,), (newcomer,))
        await changed(t, *({*t.members} - {newcomer}))
        replica = left.partition().replica
        assert replica.member.log_id == log_id
        assert replica.leo >= leo
        assert left.runtime.replog.start_of(0) == 0
        await eventually(lambda: "removed" not in left.partition().reason)


async def test_a_replica_reassigned_during_its_deletion_is_recreated_afterwards(
    tmp_path: Path, start_cluster: ClusterFactory
) -> None:
    """No replica is created on the log that is about to be deleted, however long noting the deletion takes."""
    noting, slow = threading.Event(), threading.Event()

    async with start_cluster(tmp_path, 4, removed_grace_ms=200) as t:
        await write(t, 20)
        newcomer, leaver = other_nodes(t)
        left = t.members[leaver]
        old_log_id = left.partition().replica.member.log_id
        condemn = left.identity.condemn

        def slowly(partition: int, log_id: int) -> None:
            noting.set()
            assert slow.wait(60)
            condemn(partition, log_id)

        left.identity.condemn = slowly  # type: ignore[method-assign]
        await change(t, (newcomer,), (leaver,))
        await changed(t, *({*t.members} - {leaver}))
        await eventually(noting.is_set)
        await change(t, (leaver,), ())
        await eventually(lambda: leaver in left.controller.records[0].replicas)
        await asyncio.sleep(0.1)
        assert 0 not in left.runtime.partitions
        slow.set()
        await changed(t, *t.members)
        await t.level()
        assert left.partition().replica.member.log_id == left.identity.log_ids()[0] != old_log_id
        assert len(list(left.runtime.store.list_keys(0, None, None))) == 20


async def test_a_leader_that_is_to_go_hands_over_and_goes(tmp_path: Path, start_cluster: ClusterFactory) -> None:
    """Clients that retry see no failed write while the leader itself is replaced."""

    async with start_cluster(tmp_path, 4, removed_grace_ms=500) as t:
        await write(t, 10)
        newcomer, _ = other_nodes(t)
        old = await t.led()
        acked = 0
        await change(t, (newcomer,), (old.node,))
        task = asyncio.create_task(changed(t, *({*t.members} - {old.node})))
        while not task.done():
            asker = t.members[newcomer]
            request = WriteRequest(Key(b"default", b"b", b"a-%d" % acked), Content(b"v"))
            await asker.coordinator.write(request)
            acked += 1
        await task
        assert acked > 0
        await eventually(lambda: fully_removed(old))
        leader = await t.led()
        assert len(list(leader.runtime.store.list_keys(0, None, None))) == 10 + acked


async def test_a_deletion_that_was_cut_short_goes_on_at_the_next_start(
    tmp_path: Path, start_cluster: ClusterFactory
) -> None:
    """A replica that the identity file marks as condemned never receives entries again, however much of it is left
    after a kill."""

    async with start_cluster(tmp_path, 4, removed_grace_ms=600_000) as t:
        await write(t, 30)
        newcomer, leaver = other_nodes(t)
        await change(t, (newcomer,), (leaver,))
        await changed(t, *({*t.members} - {leaver}))
        await eventually(lambda: t.members[leaver].partition().removed)
        await t.kill(leaver)
        identity = NodeIdentity.open(tmp_path / leaver)
        log_id = identity.log_ids()[0]
        identity.condemn(0, log_id + 1_000)  # killed right after the note, before anything was deleted
        identity.close(clean=False)
        left = await t.open(leaver)
        assert 0 not in left.runtime.partitions
        await eventually(lambda: fully_removed(left))
        assert list(left.runtime.store.list_keys(0, None, None)) == []
        await change(t, (leaver,), ())
        await changed(t, *t.members)
        await t.level()
        assert left.identity.log_ids()[0] == log_id + 1_000


async def test_a_removed_replica_is_still_there_after_a_restart(tmp_path: Path, start_cluster: ClusterFactory) -> None:
    """The grace time begins again; the replica is shown, does not prevent readiness, and may be assigned again."""

    async with start_cluster(tmp_path, 4) as t:
        await write(t, 20)
        newcomer, leaver = other_nodes(t)
        await change(t, (newcomer,), (leaver,))
        await changed(t, *({*t.members} - {leaver}))
        await eventually(lambda: t.members[leaver].partition().removed)
        log_id = t.members[leaver].partition().replica.member.log_id
        await t.kill(leaver)
        left = await t.open(leaver)
        await eventually(lambda: left.partition().removed and "its copy here is deleted in" in left.partition().reason)
        await change(t, (leaver,), ())
        await changed(t, *t.members)
        assert left.partition().replica.member.log_id == log_id


async def test_after_a_power_loss_a_removed_replica_drops_rows_that_need_replay(
    tmp_path: Path, start_cluster: ClusterFactory
) -> None:
    """The removed replica could not learn which of its entries are committed (H36): it drops its rows, and takes them
    from the leader later."""

    async with start_cluster(tmp_path, 4) as t:
        await write(t, 20)
        newcomer, leaver = other_nodes(t)
        await change(t, (newcomer,), (leaver,))
        await changed(t, *({*t.members} - {leaver}))
        await eventually(lambda: t.members[leaver].partition().removed)
        await t.kill(leaver)
        left = await t.open(leaver, boot_id="boot-2")
        await eventually(lambda: left.partition().removed)
        assert list(left.runtime.store.list_keys(0, None, None)) == []
        await eventually(lambda: not left.runtime.store.needs_replay())
        await change(t, (leaver,), ())
        await changed(t, *t.members)
        await t.level()
        assert len(list(left.runtime.store.list_keys(0, None, None))) == 20


def test_notes_of_deleted_replicas_keep_log_id_and_epochs(tmp_path: Path) -> None:
    """The next replica has the noted log id and the epochs of the deleted one; a restored directory forgets the log id,
    since a replica may have been created with it after the backup."""
    identity = NodeIdentity.open(tmp_path)
    identity.adopt(b"u" * 16, "n1", "boot", {3: 7, 4: 7}, spare=9)
    identity.note_epochs({3: (5, None)})
    identity.condemn(3, 12)
    identity.note_epochs({3: (6, None)})  # requested before the replica was condemned: nothing to note any more
    assert (identity.partitions(), identity.condemned(), identity.log_ids()) == ([4], [3], {3: 12, 4: 7})
    identity.deleted(3)
    identity.close(clean=False)
    identity = NodeIdentity.open(tmp_path)
    assert (identity.partitions(), identity.condemned(), identity.log_ids()) == ([4], [], {3: 12, 4: 7})
    identity.note_log_ids({3: 12})
    found = identity.partition(3)
    assert found is not None
    assert (found.log_id, found.epoch_seen) == (12, 5)
    identity.condemn(3, 13)
    identity.deleted(3)
    identity.renew("restored")
    assert identity.log_ids() == {4: 7}
    assert identity.spare == 0
    identity.close(clean=False)
