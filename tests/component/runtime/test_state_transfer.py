"""Followers that the log does not reach any more take rows of the store, and come back in sync (R-FAR)."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from itertools import count, islice
from pathlib import Path
from random import Random
from typing import Any

import pytest
from structlog.testing import capture_logs

from isthmus.repl.isr import follower
from isthmus.repl.isr.events import Event, Received
from isthmus.repl.isr.messages import Message, TransferMetadata, TransferRows
from isthmus.repl.isr.replica_state import ReplicaOptions
from isthmus.repl.model.errors import IsthmusError
from isthmus.repl.model.keys import Key, key_hash, partition_index, segment_of
from isthmus.repl.model.objects import Content
from isthmus.repl.model.record import PartitionRecord
from isthmus.repl.model.requests import WriteRequest
from isthmus.repl.runtime import transfer_receiver, transfer_sender
from isthmus.repl.runtime.partition import Partition
from isthmus.repl.store import rows
from isthmus.repl.store.leveldb import plyvel
from isthmus.repl.store.port import Store
from isthmus.repl.store.rows import CHANGE_TAG, KEY_TAG
from tests.component.runtime.test_several_nodes import fill
from tests.support.fullsync_fakes import lone_repair
from tests.support.memory_metastore import MemoryMetastore
from tests.support.runtime_cluster import Cluster, Node, eventually

ClusterFactory = Callable[..., AbstractAsyncContextManager[Cluster]]

SMALL = {"log_size_bytes": 60_000, "log_file_bytes": 20_000, "checkpoint_interval_ms": 30}
"""A log that is trimmed after a hundred writes or so."""


async def put(member: Node, name: bytes, value: bytes) -> None:
    await member.coordinator.write(WriteRequest(Key(b"default", b"b", name), Content(value)))


def rows_of(store: Store, partition: int = 0) -> tuple[object, ...]:
    """All rows of a replica: change index, keys, objects, cursors and requests."""
    snapshot = store.transfers.snapshot(partition)
    try:
        chunk = snapshot.rows(0, 1 << 30)
        state = snapshot.state(b"", 1 << 30)
        listed = [(k.bucket, k.key, k.row) for k in store.list_keys(partition, None, None)]
        return snapshot.end, chunk.rows, state.rows, listed
    finally:
        snapshot.close()


async def same_everywhere(cluster: Cluster) -> None:
    """All replicas are in sync, level, and hold the same rows."""
    await cluster.level()
    found = [rows_of(member.runtime.store) for member in cluster.members.values()]
    assert found[0] == found[1] == found[2]
    assert not any(member.failures for member in cluster.members.values())


@pytest.fixture(autouse=True)
def asks_again_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """A follower that gets no rows asks again after half a second, not five."""
    monkeypatch.setattr(follower, "TRANSFER_REPEAT_MS", 500)


async def trimmed_beyond(leader: Node, offset: int) -> None:
    """Write until the leader's log begins above `offset`."""
    for n in range(2_000):
        if leader.runtime.replog.start_of(0) > offset:
            return
        await put(leader, b"fill-%d" % (n % 40), b"x" * 400)
    raise AssertionError("the log is not trimmed")


@asynccontextmanager
async def load(cluster: Cluster):  # type: ignore[no-untyped-def]
    """Clients write all the while."""
    stop = asyncio.Event()
    acked: list[bytes] = []

    async def client(prefix: bytes) -> None:
        n = 0
        while not stop.is_set():
            n += 1
            leader = cluster.leader()
            try:
                if leader is not None:
                    name = b"%s-%d" % (prefix, n % 30)
                    await asyncio.wait_for(put(leader, name, b"%d" % n), 5)
                    acked.append(name)
            except (IsthmusError, TimeoutError):
                pass
            await asyncio.sleep(0.005)

    tasks = [asyncio.create_task(client(b"c%d" % i)) for i in range(2)]
    try:
        yield acked
    finally:
        stop.set()
        await asyncio.gather(*tasks)


def names_in(partition: int) -> Iterator[bytes]:
    """Keys that lie in one of two partitions, without end."""
    names = (b"key-%d" % number for number in count())
    return (name for name in names if partition_index(key_hash(b"b", name), 2) == partition)


async def follower_of(cluster: Cluster) -> Node:
    leader = await cluster.led()
    return next(member for member in cluster.members.values() if member is not leader)


async def test_a_follower_away_until_the_log_is_gone_comes_back_in_sync(
    tmp_path: Path, start_cluster: ClusterFactory
) -> None:
    """The missed changes arrive as rows, deleted change rows included, and the follower's log begins where the transfer
    round ended."""

    async with start_cluster(tmp_path, **SMALL) as t:
        leader = await t.led()
        for n in range(30):
            await put(leader, b"k%d" % n, b"old")
        await t.level()
        away = await follower_of(t)
        end = away.partition().replica.leo
        await t.kill(away.node)
        leader = await t.led()
        for n in range(0, 30, 2):
            await put(leader, b"k%d" % n, b"new")
        await trimmed_beyond(leader, end)
        back = await t.open(away.node)
        await same_everywhere(t)
        assert back.runtime.replog.start_of(0) > end
        assert back.partition().replica.transfer_position is None
        assert back.runtime._transfer_receiver.rounds >= 1


@pytest.mark.logs_errors("storage.follower_stops", "storage.full")
async def test_a_follower_that_the_log_is_trimmed_under_takes_rows(
    tmp_path: Path, start_cluster: ClusterFactory
) -> None:
    """A follower that stays connected and accepts nothing, since its disk is full, recovers once there is space,
    without a FollowRequest: its leader notices that the log begins above it when it cannot continue sending."""

    async with start_cluster(tmp_path, options=ReplicaOptions(max_time_lag_ms=1_500), **SMALL) as t:
        leader, full = await t.led(), await follower_of(t)
        await put(leader, b"k", b"v")
        await t.level()
        fill(full)
        await trimmed_beyond(leader, full.partition().replica.leo)
        begins_at = full.partition().replica.leo
        await eventually(lambda: full.partition().replica.transfer_position is not None)
        refused = full.runtime._disk_full.refused_count
        await eventually(lambda: full.runtime._disk_full.refused_count > refused)
        assert full.partition().replica.transfer_position == begins_at, "rows need room, too"
        full.disk.free = None
        full.runtime.replog.has_space(0)
        await same_everywhere(t)
        assert full.runtime._transfer_receiver.rounds >= 1


async def test_a_replaced_data_directory_comes_back_in_sync_under_load(
    tmp_path: Path, start_cluster: ClusterFactory
) -> None:
    """A node that lost everything takes all rows while clients write, restarts, and is elected like any other."""

    async with start_cluster(tmp_path, **SMALL) as t:
        lost = await follower_of(t)
        await t.kill(lost.node)
        leader = await t.led()
        await trimmed_beyond(leader, lost.partition().replica.leo)
        shutil.rmtree(tmp_path / lost.node)
        async with load(t) as acked:
            await t.open(lost.node)
            await eventually(lambda: len((t.leader() or leader).partition().replica.record.isr) == 3)  # type: ignore[union-attr]
            before = len(acked)
            await eventually(lambda: len(acked) > before + 20)
        await same_everywhere(t)
        await t.kill(lost.node)
        await t.open(lost.node)
        await same_everywhere(t)


@pytest.mark.timeout(120)
@pytest.mark.parametrize("seed", range(3))
async def test_a_transfer_that_is_cut_anywhere_goes_on(
    tmp_path: Path, start_cluster: ClusterFactory, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The receiver is killed, the sender loses its leadership, chunks are lost: the replicas end equal anyway."""
    monkeypatch.setattr(transfer_sender, "CHUNK_BYTES", 1_500)
    random = Random(seed)

    async with start_cluster(tmp_path, **SMALL) as t:
        taker = await follower_of(t)
        await t.kill(taker.node)
        leader = await t.led()
        for n in range(100):
            await put(leader, b"k%d" % n, b"v" * random.randint(1, 400))
        await trimmed_beyond(leader, taker.partition().replica.leo)
        chunks = 0

        def lost(_sender: str, to: str, _partition: int, message: Message) -> bool:
            nonlocal chunks
            if to == taker.node and isinstance(message, TransferRows | TransferMetadata):
                chunks += 1
                return random.random() < 0.02
            return False

        t.network.lost = lost
        member = await t.open(taker.node)
        for cut in range(6):
            seen = chunks
            goal = seen + random.randint(1, 12)

            def went_on(goal: int = goal) -> bool:
                return chunks >= goal or len(t.followers()) == 2

            await eventually(went_on)
            if len(t.followers()) == 2:
                break
            if cut % 3 == 2:
                giver = await t.led()
                t.network.isolate(giver.node)
                t.network.heal()
            else:
                await t.kill(taker.node)
                member = await t.open(taker.node)
        await same_everywhere(t)
        assert member.partition().replica.transfer_position is None


async def test_a_log_that_is_gone_costs_no_rows_where_the_others_reach_back(
    tmp_path: Path, start_cluster: ClusterFactory
) -> None:
    """The store of that replica is complete: its log begins again at the applied offset, under another log id."""

    async with start_cluster(tmp_path, checkpoint_interval_ms=30) as t:
        hurt = await follower_of(t)
        leader = await t.led()
        for n in range(50):
            await put(leader, b"k%d" % n, b"v")
        await t.level()
        log_id = hurt.partition().replica.member.log_id
        applied = hurt.partition().replica.applied
        await t.kill(hurt.node)
        for path in (tmp_path / hurt.node / "log").iterdir():
            path.unlink()
        back = await t.open(hurt.node)
        await same_everywhere(t)
        assert back.partition().replica.member.log_id != log_id
        assert back.runtime.replog.start_of(0) == applied
        assert (await t.led()).runtime._transfer_sender.rows_sent == 0


async def test_a_replica_that_lost_its_log_is_not_in_sync_under_its_old_log_id(
    tmp_path: Path, start_cluster: ClusterFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between two transfer rounds the record still has the replica's former log id, while its log is as long as the
    others' and its rows are marked as in transfer: `Cluster.level` waits until the record has the new one."""
    written = asyncio.Event()
    write_record = MemoryMetastore.write_record

    async def held(metastore: MemoryMetastore, record: PartitionRecord, *needs: Any, **unmoved: Any) -> PartitionRecord:
        await written.wait()
        return await write_record(metastore, record, *needs, **unmoved)

    monkeypatch.setattr(MemoryMetastore, "write_record", held)
    written.set()
    async with start_cluster(tmp_path, checkpoint_interval_ms=30) as t:
        hurt = await follower_of(t)
        await put(await t.led(), b"k", b"v")
        await t.level()
        await t.kill(hurt.node)
        for path in (tmp_path / hurt.node / "log").iterdir():
            path.unlink()
        written.clear()
        back = await t.open(hurt.node)
        replica = back.partition().replica
        leader = (await t.led()).partition().replica
        await eventually(lambda: replica.leo == replica.applied == leader.applied)
        assert len(leader.record.isr) == 3
        assert replica.member not in leader.record.isr
        with pytest.raises(AssertionError, match="not within"):
            await t.level(timeout_s=0.2)
        written.set()
        await same_everywhere(t)
        assert replica.member in (await t.led()).partition().replica.record.isr


async def test_a_replica_that_waits_for_rows_does_not_pin_the_log_of_others(
    tmp_path: Path, start_cluster: ClusterFactory
) -> None:
    """While the rows of one partition do not come, the log of the node that waits for them stays within its size, for
    all that is written to the other partition; also after a restart."""

    async with start_cluster(tmp_path, partitions=2, **SMALL) as t:
        mine, other = names_in(0), names_in(1)
        leader = await t.led()
        for name in islice(mine, 60):
            await put(leader, name, b"x" * 400)
        await t.level()
        away = await follower_of(t)
        end = away.partition().replica.leo
        await t.kill(away.node)
        while (await t.led()).runtime.replog.start_of(0) <= end:
            await put(await t.led(), next(mine), b"x" * 1_000)
        t.network.lost = lambda _sender, _to, partition, message: partition == 0 and isinstance(message, TransferRows)
        for _ in range(2):
            back = await t.open(away.node)
            await eventually(
                lambda: back in t.followers(1) and back.partition().replica.transfer_position is not None  # noqa: B023
            )
            for name in islice(other, 300):
                await put(await t.led(1), name, b"y" * 400)
            leo = (await t.led(1)).partition(1).replica.leo
            await eventually(lambda: back.partition(1).replica.applied >= leo)  # noqa: B023
            await eventually(lambda: back.runtime.replog.stats().size_bytes < 100_000)  # noqa: B023
            assert back.partition().replica.transfer_position is not None
            await t.kill(away.node)
        t.network.lost = lambda _sender, _to, _partition, _message: False
        await t.open(away.node)
        await same_everywhere(t)


async def test_a_lost_store_is_refilled_from_the_leader(tmp_path: Path, start_cluster: ClusterFactory) -> None:
    """The replica's log begins above the first entry, so the rows cannot be rebuilt here: the replica gets another log
    id and all rows of its leader."""

    async with start_cluster(tmp_path, **SMALL) as t:
        hurt = await follower_of(t)
        leader = await t.led()
        await trimmed_beyond(leader, 50)
        await t.level()
        await eventually(lambda: hurt.runtime.replog.start_of(0) > 0)
        log_id = hurt.partition().replica.member.log_id
        await t.kill(hurt.node)
        shutil.rmtree(tmp_path / hurt.node / "store")
        back = await t.open(hurt.node)
        await same_everywhere(t)
        assert back.partition().replica.member.log_id != log_id
        assert back.runtime.store.object(0, b"b", b"fill-1") is not None


@pytest.mark.logs_errors("transfer.chunk_refused")
async def test_a_damaged_chunk_is_asked_for_again_and_the_last_one_too(
    tmp_path: Path, start_cluster: ClusterFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Chunks of rows and of metadata have a checksum: a chunk that fails it is ignored and requested again, also the
    last one of a round, and the receiving node continues."""
    monkeypatch.setattr(transfer_receiver, "REFUSED_PAUSE_S", 0.05)
    damaged: list[str] = []

    async with start_cluster(tmp_path, **SMALL) as t:
        leader = await t.led()
        await put(leader, b"k", b"v")
        await t.level()
        away = await follower_of(t)
        end = away.partition().replica.leo
        await t.kill(away.node)
        await trimmed_beyond(await t.led(), end)
        back = await t.open(away.node)
        step = back.runtime._receiver._events.feed

        def damages(partition: Partition, event: Event) -> None:
            if isinstance(event, Received) and isinstance(event.message, TransferRows | TransferMetadata):
                message = event.message
                name = f"{type(message).__name__} {getattr(message, 'done', '')}"
                if name not in damaged and message.rows:
                    damaged.append(name)
                    rows = bytes((message.rows[0] ^ 1, *message.rows[1:]))
                    event = Received(event.node, message._replace(rows=rows))
            step(partition, event)

        back.runtime._receiver._events.feed = damages
        await same_everywhere(t)
        assert damaged == ["TransferRows ", "TransferMetadata 1"]
        assert back.runtime._transfer_receiver.chunks_refused == 2


@pytest.mark.parametrize("change_too", [False, True], ids=["key row", "key row and a change row"])
async def test_a_replica_with_an_unreadable_row_is_complete_in_the_end(
    tmp_path: Path, start_cluster: ClusterFactory, monkeypatch: pytest.MonkeyPatch, change_too: bool
) -> None:
    """A key row names the change row that a key's new rows replace. Where the key row is damaged, that change is found
    in the replica's index. Where a change row is damaged, too, the index does not have it: the replica begins again
    without rows, and does not take its own damage for a damaged chunk of the leader, which it would request for
    ever."""
    monkeypatch.setattr(transfer_receiver, "REFUSED_PAUSE_S", 0.05)

    async with start_cluster(tmp_path, **SMALL) as t:
        leader = await t.led()
        for n in range(20):
            await put(leader, b"k%d" % n, b"old")
        await t.level()
        away = await follower_of(t)
        end = away.partition().replica.leo
        await t.kill(away.node)
        (place,) = (tmp_path / away.node).rglob("rows")
        driver = plyvel.DB(str(place))
        (name,) = [name for name in driver.iterator(include_value=False, prefix=KEY_TAG) if name.endswith(b"k7")]
        driver.put(name, b"spoiled")
        if change_too:
            ((name, _),) = [one for one in driver.iterator(prefix=CHANGE_TAG) if one[1].endswith(b"k3")]
            driver.put(name, b"x")
        driver.close()
        await put(await t.led(), b"k7", b"new")
        await trimmed_beyond(await t.led(), end)
        with capture_logs() as logs:
            back = await t.open(away.node)
            await same_everywhere(t)
        unreadable = [one["error"] for one in logs if one["event"] == "transfer.own_row_unreadable"]
        assert len(unreadable) == change_too
        assert all("names no bucket" in error for error in unreadable)
        assert back.runtime._transfer_receiver.chunks_refused == 0
        again = [one["reason"] for one in logs if one["event"] == "transfer.begins" and one["again"]]
        assert any("a row here cannot be read" in reason for reason in again) == change_too


async def test_the_reason_of_a_repeated_state_transfer_is_shown(tmp_path: Path, start_cluster: ClusterFactory) -> None:
    """A replica shows why it takes rows again for as long as it does (replication.far.horizon.min.transfer.rounds)."""

    async with start_cluster(tmp_path, **SMALL) as t:
        leader = await t.led()
        for n in range(20):
            await put(leader, b"k%d" % n, b"old")
        await t.level()
        away = await follower_of(t)
        end = away.partition().replica.leo
        await t.kill(away.node)
        await trimmed_beyond(await t.led(), end)
        back = await t.open(away.node)
        shown: list[str] = []
        count = back.runtime._transfer_receiver._note_progress

        def counted(partition: Partition, rows: bytes, upto: int, end: int) -> None:
            count(partition, rows, upto, end)
            shown.append(partition.transfer_note)

        back.runtime._transfer_receiver._note_progress = counted  # type: ignore[method-assign]
        await same_everywhere(t)
        assert any("; round 2 of at least 2" in said for said in shown), "why it takes rows once more is shown"


@pytest.mark.logs_errors("transfer.row_unreadable")
async def test_a_row_that_the_leader_cannot_give_does_not_end_it(
    tmp_path: Path, start_cluster: ClusterFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An object that is missing in the leader's store, or a change row that names no key, is reported with its segment
    where it has one; the leader continues all its other work, the follower waits instead of leaving the row out, and
    has it once it is repaired."""
    monkeypatch.setattr(transfer_sender, "UNREADABLE_PAUSE_S", 0.05)

    async with start_cluster(tmp_path, **SMALL) as t:
        leader = await t.led()
        for n in range(20):
            await put(leader, b"k%d" % n, b"v")
        await t.level()
        away = await follower_of(t)
        end = away.partition().replica.leo
        await t.kill(away.node)
        leader = await t.led()
        await trimmed_beyond(leader, end)
        reported = leader.damaged
        driver = leader.runtime.store._db  # type: ignore[attr-defined]
        serving = leader.runtime._transfer_sender
        tag = rows.OBJECT_TAG, rows.CHANGE_TAG
        (name,) = [one for one in driver.iterator(include_value=False, prefix=tag[0]) if one.endswith(b"fill-7")]
        kept = driver.get(name)
        driver.delete(name)
        back = await t.open(away.node)
        await eventually(lambda: serving.rows_unreadable >= 2)
        assert set(reported) == {(0, segment_of(key_hash(b"b", b"fill-7")))}
        driver.put(name, kept)
        await same_everywhere(t)

        end = back.partition().replica.leo
        await t.kill(away.node)
        await trimmed_beyond(leader, end)
        (name, kept) = [one for one in driver.iterator(prefix=tag[1]) if one[1].endswith(b"fill-7")][-1]
        driver.put(name, b"x")
        reported.clear()
        serving.rows_unreadable = 0
        back_again = await t.open(away.node)
        await eventually(lambda: serving.rows_unreadable >= 2)
        assert set(reported) == {(0, None)}
        await put(leader, b"k3", b"the leader goes on")
        with ThreadPoolExecutor(1) as pool:
            mending = lone_repair(leader.runtime.store, pool)
            for segment in await mending.unreadable_segments(0, 10):
                assert (await mending.repair_segment(0, segment)).keys == ((b"b", b"fill-7"),)
        offset = rows.decode_u64(name[5:])
        await eventually(lambda: back_again.runtime.store.applied(0).offset > offset)
        (row,) = back_again.runtime.store.changes(0, offset, 1)
        assert (row.offset, row.key) == (offset, b"fill-7")
        assert back_again.runtime.store.changes(0, 0, 999) == leader.runtime.store.changes(0, 0, 999)
