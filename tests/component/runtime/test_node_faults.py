"""A node with a faulty disk, store or program in a cluster whose other nodes continue."""

from __future__ import annotations

import asyncio
import errno
import re
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest
import structlog

from isthmus.node.services.readiness import replicas_not_ready
from isthmus.node.services.replica_query import facts_of
from isthmus.repl.isr import effects as fx
from isthmus.repl.isr import events as ev
from isthmus.repl.isr.messages import AppendAck, AppendEntries
from isthmus.repl.isr.pair_stream import StreamAck, StreamGroup
from isthmus.repl.isr.replica_state import ReplicaOptions
from isthmus.repl.isr.states import Failed
from isthmus.repl.model.errors import IsthmusError, StorageShort
from isthmus.repl.model.objects import Content
from isthmus.repl.model.requests import WriteRequest
from isthmus.repl.replog.frames import RUN_HEADER_BYTES
from isthmus.repl.replog.log import RESERVE_BYTES
from isthmus.repl.runtime import isr_changes
from isthmus.repl.shortage import DescriptorReserve
from isthmus.repl.transport.port import LinkMessage
from tests.component.runtime.test_several_nodes import all_joined, fill, key, put, stored_values
from tests.support.memory_links import is_entries
from tests.support.runtime_cluster import Cluster, Node, eventually
from tests.support.waiting import PATIENCE_S

ClusterFactory = Callable[..., AbstractAsyncContextManager[Cluster]]


@pytest.mark.parametrize("away", [False, True])
async def test_a_followers_slow_store_costs_no_memory(
    tmp_path: Path, start_cluster: ClusterFactory, monkeypatch: pytest.MonkeyPatch, away: bool
) -> None:
    """While a follower's store hangs, its memory stays within its window, also when it was away and has to catch up;
    the leader continues, and afterwards the follower applies everything, read back from its log."""

    async with start_cluster(tmp_path, window_bytes=400_000) as t:
        leader = await t.led()
        slow = t.followers()[0]
        if away:
            await t.kill(slow.node)
            for n in range(60):
                await put(leader, b"%d" % n, b"x" * 50_000)
            for node in t.members:
                t.network.cut(slow.node, node)
            slow = await t.open(slow.node)
        store = slow.runtime.store
        commit, held_up = store.commit, asyncio.Event()
        loop = asyncio.get_running_loop()

        def waits(prepared: object) -> None:
            asyncio.run_coroutine_threadsafe(held_up.wait(), loop).result()
            commit(prepared)

        monkeypatch.setattr(store, "commit", waits)
        monkeypatch.setattr(store, "takes_at_once", lambda _prepared: False)
        if away:
            t.network.heal()
        else:
            for n in range(60):
                await put(leader, b"%d" % n, b"x" * 50_000)
        await eventually(lambda: slow.partition().replica.high_watermark > 55)
        assert slow.partition().replica.applied < 10
        assert slow.runtime._storage.window.held_bytes < 600_000
        held_up.set()
        await t.level()
        assert all(stored_values(slow, b"%d" % n) == [b"x" * 50_000] for n in range(60))
        assert slow.runtime._storage.window.held_bytes == 0


async def test_uncommitted_entries_of_a_follower_are_bounded_by_its_own_window(
    tmp_path: Path, start_cluster: ClusterFactory
) -> None:
    """While commits wait for another replica, a follower with a smaller window drops durable entries from memory and
    reads them back from its log."""

    async def put_one_more(leader: Node, writes: list[asyncio.Task[None]]) -> None:
        before = leader.partition().replica.leo
        writes.append(asyncio.create_task(put(leader, b"one more", b"x")))
        await eventually(lambda: leader.partition().replica.leo > before)

    async with start_cluster(tmp_path) as t:
        leader = await t.led()
        small, other = (member.node for member in t.followers())
        await t.kill(small)
        tiny = await t.open(small, window_bytes=100_000)
        await t.level()
        t.network.lost = lambda sender, _to, _partition, message: (
            sender == other and isinstance(message, AppendAck | StreamAck)
        )
        writes = [asyncio.create_task(put(leader, b"%d" % n, b"x" * 50_000)) for n in range(12)]
        await eventually(lambda: tiny.partition().replica.durable >= leader.partition().replica.leo > 12)
        await put_one_more(leader, writes)
        await eventually(lambda: tiny.partition().replica.durable >= leader.partition().replica.leo > 13)
        assert tiny.partition().replica.applied < 5
        assert tiny.runtime._storage.window.held_bytes < 200_000
        t.network.lost = lambda _sender, _to, _partition, _message: False
        await asyncio.gather(*writes)
        await t.level()
        assert stored_values(tiny, b"11") == [b"x" * 50_000]
        assert tiny.runtime._storage.window.held_bytes == 0


@pytest.mark.logs_errors("storage.follower_stops", "storage.full")
async def test_a_follower_with_a_full_disk_stops_acknowledging_and_recovers(
    tmp_path: Path, start_cluster: ClusterFactory
) -> None:
    """H38: a follower whose disk is full accepts no entries, keeps running and shows the reason; the leader continues
    without it; when there is space again it catches up."""

    async with start_cluster(tmp_path, options=ReplicaOptions(max_time_lag_ms=1_500)) as t:
        leader = await t.led()
        full = t.followers()[0]
        fill(full)
        for n in range(5):
            await put(leader, b"%d" % n, b"v")
        record = leader.partition().replica.record
        assert full.node not in {m.node for m in record.isr}
        assert not full.partition().serves
        assert full.partition().reason.startswith("out-of-storage")
        assert not full.failures
        full.disk.free = None
        full.runtime.replog.has_space(0)
        await eventually(lambda: full.runtime.replog.has_space(0))
        await t.level()
        await eventually(lambda: full.partition().serves)  # the disk's fault has cleared at its next check
        assert stored_values(full, b"4") == [b"v"]


@pytest.mark.logs_errors("storage.follower_stops", "storage.full")
async def test_a_leader_that_changes_the_isr_leaves_a_trace(
    tmp_path: Path, start_cluster: ClusterFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A member that stalls is removed from the ISR: the leader logs and counts it with the reason, and shows, while the
    node is out, why, since when, and how long its back-off is; its return is logged and counted, too."""
    logged: list[tuple[str, str, str]] = []
    for name in ("info", "warning"):

        def note(event: str, **fields: object) -> None:
            if event.startswith("isr."):
                logged.append((event, str(fields["peer"]), str(fields["reason"])))

        monkeypatch.setattr(isr_changes.log, name, note)

    def counted(member: Node) -> dict[tuple[str, ...], float]:
        found = [each for each in member.runtime.metrics() if each[0].startswith(("isthmus_isr_s", "isthmus_isr_e"))]
        return {(name, *labels.values()): value for name, labels, value in found}

    async with start_cluster(tmp_path, options=ReplicaOptions(max_time_lag_ms=1_500)) as t:
        leader = await t.led()
        out = t.followers()[0]
        replica, time = leader.partition().replica, leader.runtime.time
        assert replica.why_out(time.now_ms()) == {}
        assert set(counted(leader).values()) == {0}
        fill(out)
        await put(leader, b"k", b"v")
        (told,) = facts_of(replica, "leads", time.now_ms()).out.items()
        assert told[0] == out.node
        assert re.fullmatch(r"stalled, taken out \d s ago; waits out its back-off of 5 s, \d s left", told[1]), told
        assert counted(leader)["isthmus_isr_shrunk_total", "stalled"] == 1
        out.disk.free = None
        out.runtime.replog.has_space(0)
        await t.level()
        await eventually(lambda: len(leader.partition().replica.record.isr) == 3)
        assert replica.why_out(time.now_ms()) == {}
        assert counted(leader)["isthmus_isr_expanded_total",] == 1
        assert counted(leader)["isthmus_isr_shrunk_total", "stalled"] == 1
        assert logged == [("isr.shrunk", out.node, "stalled"), ("isr.expanded", out.node, "caught up")]
        await t.kill(out.node)
        await eventually(lambda: counted(leader)["isthmus_isr_shrunk_total", "gone"] == 1)
        assert logged[2:] == [("isr.shrunk", out.node, "gone")]


@pytest.mark.logs_errors("storage.full")
async def test_a_disk_that_fills_without_writes_is_reported_at_once(
    tmp_path: Path, start_cluster: ClusterFactory
) -> None:
    """H38: leader and follower report it within a second or two, not with the next write, and clear it when there is
    space again."""

    async with start_cluster(tmp_path) as t:
        leader = await t.led()
        await put(leader, b"k", b"v")
        await t.level()
        for member in (leader, t.followers()[0]):
            member.disk.free = 0
            await eventually(lambda member=member: member.partition().reason.startswith("out-of-storage"))
            assert ("isthmus_storage_free_bytes", {}, 0) in member.runtime.metrics()
            member.disk.free = None
            await eventually(lambda member=member: not member.partition().reason.startswith("out-of-storage"))


@pytest.mark.logs_errors("storage.follower_stops", "storage.full")
async def test_a_leader_with_a_full_disk_refuses_writes_and_hands_over(
    tmp_path: Path, start_cluster: ClusterFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """H38: a leader whose disk is full refuses writes, answers reads, and after a while hands over to a member in
    sync."""

    monkeypatch.setattr("isthmus.repl.runtime.disk_full.HAND_OVER_AFTER_MS", 0)
    async with start_cluster(tmp_path) as t:
        leader = await t.led()
        await put(leader, b"k", b"v")
        fill(leader)
        error = leader.runtime.append(leader.partition(), _an_entry(leader), leader.runtime.time.now_ms())
        assert error is not None
        assert error.reason == "out-of-storage"
        assert await leader.coordinator.get(key(b"k")) is not None
        await eventually(lambda: leader.partition().reason.startswith("out-of-storage"))
        new = await t.led_by_another(leader)
        await put(new, b"k2", b"v")
        assert not leader.failures


@pytest.mark.parametrize(("what", "words"), [
    ("inodes", "3 free inodes"), ("read-only", "mounted read-only"), ("descriptors", "no files can be opened"),
    ("store", "the store cannot create a file"),
])  # fmt: skip
@pytest.mark.logs_errors("storage.full")
async def test_whatever_is_short_is_refused_handed_over_and_recovered_from(
    tmp_path: Path, start_cluster: ClusterFactory, monkeypatch: pytest.MonkeyPatch, what: str, words: str
) -> None:
    """H38: a leader that is short of anything refuses writes with the reason, answers reads and hands over; once it is
    not short any more, it takes part again. No node ends."""
    monkeypatch.setattr("isthmus.repl.runtime.disk_full.HAND_OVER_AFTER_MS", 2_000)
    monkeypatch.setattr("isthmus.repl.isr.lag_detector.REJOIN_MIN_MS", 200)
    async with start_cluster(tmp_path) as t:
        leader = await t.led()
        await put(leader, b"k", b"v")
        await t.level()
        descriptors = DescriptorReserve()
        leader.runtime._disk_full._descriptors = descriptors
        monkeypatch.setattr(descriptors, "look", lambda: None)

        def set_short(short: bool) -> None:
            match what:
                case "inodes":
                    leader.disk.inodes = 3 if short else None
                case "read-only":
                    leader.disk.mounted_read_only = short
                case "descriptors":
                    descriptors.short = short
                case _:
                    store = leader.runtime.store
                    monkeypatch.setattr(
                        store, "shortage", "the store cannot create a file: Disk quota" if short else ""
                    )

        set_short(True)
        await eventually(lambda: words in leader.partition().reason)
        assert leader.partition().reason.startswith("out-of-storage")
        error = leader.runtime.append(leader.partition(), _an_entry(leader), leader.runtime.time.now_ms())
        assert error is not None
        assert error.reason == "out-of-storage"
        assert words in str(error)
        assert await leader.coordinator.get(key(b"k")) is not None
        new = await t.led_by_another(leader)
        await put(new, b"k2", b"v")
        assert words in leader.partition().reason
        set_short(False)
        await t.level()
        await eventually(lambda: leader.partition().serves)
        assert stored_values(leader, b"k2") == [b"v"]
        assert not any(member.failures for member in t.members.values())


@pytest.mark.logs_errors("storage.full", "storage.follower_stops")
async def test_a_leader_whose_log_is_refused_in_the_middle_of_a_write_hands_over_and_comes_back(
    tmp_path: Path, start_cluster: ClusterFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half of a write is in the log when the quota ends: the write waits, and its own log and store stand still; the
    leader refuses others with the reason, answers reads, and hands over although it cannot apply what it has appended.
    The new leader commits that, and the node takes part again once it can write. No node ends (H38)."""
    monkeypatch.setattr("isthmus.repl.runtime.disk_full.HAND_OVER_AFTER_MS", 500)
    async with start_cluster(tmp_path) as t:
        leader = await t.led()
        await put(leader, b"k", b"v")
        await t.level()
        leader.disk.refuse = errno.EDQUOT
        waits = asyncio.create_task(put(leader, b"half", b"v" * 3_000))
        await eventually(lambda: "raise the quota" in leader.partition().reason)
        assert leader.partition().reason.startswith("out-of-storage")
        error = leader.runtime.append(leader.partition(), _an_entry(leader), leader.runtime.time.now_ms())
        assert error is not None
        assert error.reason == "out-of-storage"
        assert await leader.coordinator.get(key(b"k")) is not None
        new = await t.led_by_another(leader)
        await put(new, b"k2", b"v")
        assert stored_values(new, b"half") == [b"v" * 3_000]
        leader.disk.refuse = 0
        await t.level()
        await eventually(lambda: leader.partition().serves)
        assert stored_values(leader, b"k2") == [b"v"]
        assert stored_values(leader, b"half") == [b"v" * 3_000]
        assert not any(member.failures for member in t.members.values())
        await asyncio.gather(waits, return_exceptions=True)


async def test_an_epoch_that_cannot_be_written_now_is_written_later(
    tmp_path: Path, start_cluster: ClusterFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node without a descriptor or an inode for its identity waits for it; it does not end, and does nothing in the
    epoch before it is durable (R-SHORT)."""
    monkeypatch.setattr("isthmus.repl.runtime.patience.RETRY_S", 0.05)
    async with start_cluster(tmp_path) as t:
        leader = await t.led()
        waits = t.followers()[0]
        note, refused = waits.identity.note_epochs, [0]

        def short(epochs: object) -> None:
            refused[0] += 1
            if refused[0] < 4:
                raise StorageShort("cannot write identity.1: Too many open files")
            note(epochs)  # type: ignore[arg-type]

        monkeypatch.setattr(waits.identity, "note_epochs", short)
        await t.kill(leader.node)
        new = await t.led_by_another(leader)
        await put(new, b"k", b"v")
        await eventually(lambda: stored_values(waits, b"k") == [b"v"])
        assert refused[0] >= 4
        assert waits.identity.partition(0).epoch_seen == new.partition().replica.record.epoch  # type: ignore[union-attr]
        assert not waits.failures


async def test_a_write_waits_for_the_file_that_the_store_needs(
    tmp_path: Path, start_cluster: ClusterFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An accepted write is applied once the store can create its file: the loop is not blocked meanwhile, and new
    writes are refused."""
    async with start_cluster(tmp_path) as t:
        leader = await t.led()
        store, loop = leader.runtime.store, asyncio.get_running_loop()
        commit, there = store.commit, asyncio.Event()

        def short(prepared: object, *, patient: bool = True) -> None:
            if not there.is_set():
                store.shortage = "the store cannot create a file: Too many open files"
                if not patient:
                    raise StorageShort(store.shortage)
                asyncio.run_coroutine_threadsafe(there.wait(), loop).result()
            commit(prepared)  # type: ignore[arg-type]

        monkeypatch.setattr(store, "commit", short)
        monkeypatch.setattr(store, "takes_at_once", lambda _prepared: True)
        writing = asyncio.create_task(put(leader, b"k", b"v"))
        await eventually(lambda: store.shortage != "")
        error = leader.runtime.append(leader.partition(), _an_entry(leader), leader.runtime.time.now_ms())
        assert error is not None
        assert "the store cannot create a file" in str(error)
        assert not writing.done()
        there.set()
        await writing
        await put(leader, b"k2", b"v")
        assert not leader.failures


async def test_a_checkpoint_that_is_short_is_made_later(
    tmp_path: Path, start_cluster: ClusterFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The checkpointer goes on, and the floors follow once there is a descriptor again."""
    monkeypatch.setattr("isthmus.repl.runtime.applier.SHORT_PAUSE_S", 0.05)
    async with start_cluster(tmp_path, checkpoint_interval_ms=100) as t:
        leader = await t.led()
        tries = [0]
        sync_file = leader.runtime.store._disk.sync_file  # type: ignore[attr-defined]

        def short(path: Path) -> None:
            tries[0] += 1
            if tries[0] < 4:
                raise OSError(errno.EMFILE, "Too many open files")
            sync_file(path)

        monkeypatch.setattr(leader.runtime.store._disk, "sync_file", short)  # type: ignore[attr-defined]
        await put(leader, b"k", b"v")
        leo = leader.partition().replica.leo
        await eventually(lambda: leader.runtime.store.durable_floor(0) >= leo)
        assert tries[0] >= 4
        assert not leader.failures


@pytest.mark.logs_errors("storage.full")  # by each node that looks at its disk meanwhile
async def test_without_space_for_writes_a_cluster_still_elects_leaders(
    tmp_path: Path, start_cluster: ClusterFactory
) -> None:
    """H38: with less than half of the reserve free on every disk a killed leader has a successor, which answers reads
    and refuses writes; no node ends."""
    async with start_cluster(tmp_path) as t:
        leader = await t.led()
        await put(leader, b"k", b"v")
        await t.level()
        for member in t.members.values():
            fill(member, RESERVE_BYTES // 8)
        await t.kill(leader.node)
        new = await t.led_by_another(leader)
        assert await new.coordinator.get(key(b"k")) is not None
        error = new.runtime.append(new.partition(), _an_entry(new), new.runtime.time.now_ms())
        assert error is not None
        assert error.reason == "out-of-storage"
        assert not any(member.failures for member in t.members.values())


@pytest.mark.logs_errors("storage.full")
async def test_a_disk_without_space_for_a_barrier_is_passed_over(tmp_path: Path, start_cluster: ClusterFactory) -> None:
    """H38: a node whose disk is completely full declines nominations and keeps running; the controller nominates the
    next one, which serves."""
    async with start_cluster(tmp_path, min_isr=1) as t:
        leader = await t.led()
        await put(leader, b"k", b"v")
        await t.level()
        full, other = t.followers()
        fill(full, 0)
        await eventually(lambda: full.partition().reason.startswith("out-of-storage"))
        await t.kill(leader.node)
        assert await t.led_by_another(leader) is other
        await put(other, b"k2", b"v")
        assert not full.failures


def _an_entry(member: Node) -> list:
    entries = member.runtime.replog.read(0, 0, 2, 1 << 20)
    return entries[-1:]


async def test_a_regressed_replica_takes_a_new_log_id(tmp_path: Path, start_cluster: ClusterFactory) -> None:
    """NewLogIdentity: the new log id is durable and registered before the core is notified; the replica joins again
    under it."""

    async with start_cluster(tmp_path) as t:
        leader = await t.led()
        await put(leader, b"k", b"v")
        await t.level()
        doubted = t.followers()[0]
        before = doubted.partition().replica.member
        doubted.runtime._perform(doubted.partition(), [fx.NewLogIdentity("a test doubts it")], 0)
        await eventually(lambda: doubted.partition().replica.member != before)
        after = doubted.partition().replica.member
        assert doubted.identity.log_ids()[0] == after.log_id
        assert (await doubted.metastore.registrations())[doubted.node].log_ids[0] == after.log_id
        await put(leader, b"k2", b"v")

        def joined() -> bool:
            record = leader.partition().replica.record
            return record is not None and after in record.isr and before not in record.isr

        await eventually(joined)


@pytest.mark.parametrize("streams", [True, False])
async def test_forwards_are_cut_to_messages_of_bounded_size(
    tmp_path: Path, start_cluster: ClusterFactory, streams: bool
) -> None:
    """A batch of several megabytes goes in messages of about one each, of one entry at least, in one go, by streams and
    by AppendEntries."""

    patient = ReplicaOptions(max_time_lag_ms=60_000)  # no leader hands over because a sync takes long
    async with start_cluster(tmp_path, options=patient, takes_streams=streams) as t:
        leader = await t.led()
        await t.level()
        await put(leader, b"joins", b"v")
        if streams:
            await eventually(lambda: all_joined(leader))
        await t.level()
        assert all_joined(leader) is streams
        sizes: list[int] = []

        def watch(sender: str, _to: str, _partition: int, message: LinkMessage) -> bool:
            if sender == leader.node and is_entries(message):
                assert isinstance(message, StreamGroup) is streams
                if isinstance(message, StreamGroup):
                    sizes.append(sum(len(run.encoded) - RUN_HEADER_BYTES - 4 * run.entry_count for run in message.runs))
                elif isinstance(message, AppendEntries):
                    sizes.append(sum(len(entry.wire) for entry in message.entries))
            return False

        t.network.lost = watch
        requests = [WriteRequest(key(b"%d" % n), Content(b"x" * 300_000)) for n in range(8)]
        requests.append(WriteRequest(key(b"one"), Content(b"x" * 990_000)))
        results = await leader.coordinator.write_batch(requests)
        assert not any(isinstance(result, IsthmusError) for result in results)
        assert max(sizes) <= 1_000_000
        assert len(sizes) == 8, sizes
        await t.level()


@pytest.mark.parametrize("bug_in", ["Received", "AppliedTo", "RunReceived", "RunCommitted", "Persisted"])
@pytest.mark.logs_errors("isr.role", "runtime.bug")
async def test_an_internal_error_stops_one_replica_only(
    tmp_path: Path,
    start_cluster: ClusterFactory,
    monkeypatch: pytest.MonkeyPatch,
    bug_in: str,
) -> None:
    """When a core violates an invariant its replica stops and reports it; the node's other replicas and the other nodes
    continue."""

    async with start_cluster(tmp_path, partitions=2, options=ReplicaOptions(max_time_lag_ms=1_500)) as t:
        hurt = next(member for member in t.members.values() if not member.partition(0).replica.ready)
        replica = hurt.partition(0).replica
        step = replica.step

        def bad(event: ev.Event, now_ms: int) -> list[fx.Effect]:
            assert type(event).__name__ != bug_in, "made up by a test"
            return step(event, now_ms)

        monkeypatch.setattr(replica, "step", bad)
        await eventually(lambda: t.leader(0) is not None and t.leader(1) is not None)
        leader = t.leader(0)
        assert leader is not None
        leader.runtime.soft_cursor(0, b"q", b"1")
        await asyncio.gather(*(put(leader, b"first-%d" % n, b"v") for n in range(9)))
        async with asyncio.timeout(
            PATIENCE_S
        ):  # one group may hold all of them, and an event of streams comes with the next one
            more = count()
            while replica.role is not fx.ReplicaRole.FAILED:
                await put(leader, b"more-%d" % next(more), b"v")
        monkeypatch.undo()
        assert "made up by a test" in hurt.partition(0).reason
        assert not hurt.failures

        def why_not() -> str:
            return replicas_not_ready(hurt.node, hurt.controller.records, hurt.runtime.partitions, "")

        await eventually(lambda: hurt.partition(1).serves and why_not().startswith("1 partition is not served, "))
        assert "partition 0: disk-failed: bug: made up" in why_not()
        await asyncio.gather(*(put(leader, b"%d" % n, b"v") for n in range(20)))
        hurt.runtime.partitions[0].replica._role_state = Failed("known to the test")


@pytest.mark.logs_errors("isr.role", "runtime.bug")
async def test_a_leader_stopped_by_an_internal_error_is_replaced(
    tmp_path: Path, start_cluster: ClusterFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process keeps its session, so it registers that this replica must not be counted on; after a restart the node
    is in sync under its old log id (R-ALONE)."""

    async with start_cluster(tmp_path, partitions=2) as t:
        hurt = await t.led(0)
        await put(hurt, b"before", b"v")
        replica = hurt.partition(0).replica
        log_id, step, session_id = replica.member.log_id, replica.step, hurt.registrar.session_id

        def bad(event: ev.Event, now_ms: int) -> list[fx.Effect]:
            assert not isinstance(event, ev.Received), "made up by a test"
            return step(event, now_ms)

        monkeypatch.setattr(replica, "step", bad)
        hurt.runtime.soft_cursor(0, b"q", b"1")
        await eventually(lambda: replica.role is fx.ReplicaRole.FAILED)
        monkeypatch.undo()
        other = await t.led_by_another(hurt)
        for n in range(9):
            await put(other, b"after-%d" % n, b"v")
        assert hurt.registrar.session_id == session_id
        assert not hurt.failures
        await eventually(lambda: hurt.partition(1).serves)
        hurt.runtime.partitions[0].replica._role_state = Failed("known to the test")
        await t.kill(hurt.node)
        again = await t.open(hurt.node)
        await t.level()
        assert again.partition(0).replica.member.log_id == log_id
        assert all(
            stored_values(again, b"after-%d" % n, 0) + stored_values(again, b"after-%d" % n, 1) == [b"v"]
            for n in range(9)
        )


async def test_a_failed_periodic_step_is_repeated_a_second_later(
    tmp_path: Path, start_cluster: ClusterFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The work done once a second, on cursors, pins, replicas and the disk, is repeated after a fault in it."""

    monkeypatch.setattr("isthmus.repl.runtime.runtime.SOFT_CURSOR_INTERVAL_MS", 20)
    async with start_cluster(tmp_path, 1, factor=1, min_isr=1) as t:
        member = t.members["n1"]
        look, looks = member.runtime._disk_full.check, []

        def bad(*given: object) -> object:
            looks.append(given)
            assert len(looks) > 1, "made up by a test"
            return look(*given)  # type: ignore[arg-type]

        monkeypatch.setattr(member.runtime._disk_full, "check", bad)
        with structlog.testing.capture_logs() as lines:
            await eventually(lambda: len(looks) > 2)
        assert [line["event"] for line in lines if line["log_level"] == "error"] == ["runtime.second_failed"]


@pytest.mark.logs_errors("METASTORE_ROLLBACK")
async def test_a_metastore_rollback_is_reported_once(
    tmp_path: Path, start_cluster: ClusterFactory, capsys: pytest.CaptureFixture[str]
) -> None:
    """H32: records older than this node's durable state are rejected, leaders step down, and the alarm is raised once
    per replica, with a metric beside it."""

    async with start_cluster(tmp_path, 1, factor=1, min_isr=1) as t:
        member = t.members["n1"]
        record = member.partition().replica.record
        await member.controller.stop()
        assert record is not None
        old = replace(record, epoch=0, version=record.version + 1)
        for version in range(3):
            member.runtime.records_seen({0: replace(old, version=record.version + 1 + version)})
        assert not member.partition().replica.ready
        assert member.partition().reason.startswith("metastore-rollback")
        samples = {name: value for name, labels, value in member.runtime.metrics() if not labels}
        assert samples["isthmus_partitions_rolled_back"] == 1
    assert capsys.readouterr().out.count("METASTORE_ROLLBACK") == 1


def test_a_node_reports_why_it_is_not_ready() -> None:
    """Without records the reason says why there are none; with records that name this node, it lists the replicas that
    are still to be made."""
    assert replicas_not_ready("n1", {}, {}, "waits for 1 more node") == (
        "no partitions are known yet: waits for 1 more node"
    )
