"""Several nodes of one cluster, end to end: client -> leader -> followers -> answer, with nodes that fail."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest

from isthmus.repl.isr import effects as fx
from isthmus.repl.isr.messages import AppendEntries, Message
from isthmus.repl.model.errors import IsthmusError, NotReady, OutcomeUnknown, Retryable
from isthmus.repl.model.keys import Key, key_hash
from isthmus.repl.model.objects import Content, decode_object
from isthmus.repl.model.requests import WriteRequest
from isthmus.repl.transport.port import LinkMessage
from tests.support.memory_links import is_entries
from tests.support.runtime_cluster import Cluster, Node, eventually
from tests.support.waiting import PATIENCE_S

ClusterFactory = Callable[..., AbstractAsyncContextManager[Cluster]]


def key(name: bytes) -> Key:
    return Key(b"default", b"b", name)


async def put(member: Node, name: bytes, value: bytes) -> None:
    await member.coordinator.write(WriteRequest(key(name), Content(value)))


def stored_values(member: Node, name: bytes, partition: int = 0) -> list[bytes]:
    """The values that a node's own store has of a key."""
    data = member.runtime.store.object(partition, b"b", name)
    return [] if data is None else sorted(s.value for s in decode_object(data).live)


def log_of(member: Node, partition: int = 0) -> list[tuple[int, int, bytes]]:
    """The durable log of a node, as far as it reaches back."""
    log = member.runtime.replog
    entries = log.read(partition, log.start_of(partition), log.leo(partition), 1 << 30)
    return [(entry.epoch, entry.offset, entry.wire) for entry in entries]


def fill(member: Node, free_bytes: int = 1000) -> None:
    """Let a node's disk be full from now on."""
    member.disk.free = free_bytes
    member.runtime.replog._writer.check_space()
    assert not member.runtime.replog.has_space(0)


async def test_a_write_is_on_every_replica(tmp_path: Path, start_cluster: ClusterFactory) -> None:
    """Three nodes, four partitions: every acknowledged write arrives in the stores and logs of all, equal."""

    async with start_cluster(tmp_path, partitions=4) as t:
        for n in range(40):
            await put(t.members["n1"], b"%d" % n, b"v%d" % n)
        for partition in range(4):
            await t.level(partition)
            logs = [log_of(member, partition) for member in t.members.values()]
            assert logs[0] == logs[1] == logs[2]
            assert len(logs[0]) > 1
        for n in range(40):
            partition = (key_hash(b"b", b"%d" % n) >> 44) * 4 >> 20
            assert all(stored_values(member, b"%d" % n, partition) == [b"v%d" % n] for member in t.members.values())
        assert not any(member.failures for member in t.members.values())


async def test_acknowledged_writes_survive_the_leaders_death(tmp_path: Path, start_cluster: ClusterFactory) -> None:
    """Writes continue while leaders are killed one after another, and every acknowledged one is read afterwards."""

    async with start_cluster(tmp_path) as t:
        acked: list[bytes] = []
        stop = asyncio.Event()

        async def client(prefix: bytes) -> None:
            n = 0
            while not stop.is_set():
                name = b"%s-%d" % (prefix, n)
                n += 1
                member = t.leader()
                if member is None:
                    await asyncio.sleep(0.01)
                    continue
                try:
                    await asyncio.wait_for(put(member, name, b"v"), 5)
                except (IsthmusError, TimeoutError):
                    continue
                acked.append(name)

        clients = [asyncio.create_task(client(b"c%d" % i)) for i in range(3)]
        for _ in range(2):
            before = len(acked)
            await eventually(lambda before=before: len(acked) > before + 30)
            leader = await t.led()
            await t.kill(leader.node)
            await eventually(lambda: t.leader() is not None)
            await t.open(leader.node)
            await t.settled()
        stop.set()
        await asyncio.gather(*clients)
        await t.level()
        assert len(acked) > 60
        leader = await t.led()
        for name in acked:
            assert await leader.coordinator.get(key(name)) is not None, name
        logs = [log_of(member) for member in t.members.values()]
        assert logs[0] == logs[1] == logs[2]


async def test_a_follower_that_was_away_catches_up_from_the_log(tmp_path: Path, start_cluster: ClusterFactory) -> None:
    """A restarted follower gets the entries that it missed, read from the leader's files if they have left memory, and
    rejoins."""

    async with start_cluster(tmp_path) as t:
        leader = await t.led()
        away = t.followers()[0].node
        await t.kill(away)
        for n in range(30):
            await asyncio.gather(*(put(leader, b"%d-%d" % (n, i), b"x" * 20_000) for i in range(10)))
        read_back = leader.runtime._sender.entries_read_back
        leader.links._catch_up_limit_bytes = 500_000  # less than one message
        assert t.leader() is leader
        await t.open(away)
        await t.level()
        assert leader.runtime._sender.entries_read_back >= read_back + 300
        assert stored_values(t.members[away], b"29-9") == [b"x" * 20_000]
        assert log_of(t.members[away]) == log_of(leader)


@pytest.mark.logs_errors("metastore.registration_lost")
async def test_uncommitted_entries_of_a_lost_leader_are_truncated(
    tmp_path: Path, start_cluster: ClusterFactory
) -> None:
    """A cut-off leader appended entries that no other replica has: its clients get UNKNOWN, the next leader's entries
    replace them in its log, durably, and all replicas are equal again, also after another restart."""

    async with start_cluster(tmp_path) as t:
        old = await t.led()
        await put(old, b"before", b"1")
        t.network.isolate(old.node)
        orphans = [asyncio.create_task(put(old, b"orphan-%d" % n, b"x")) for n in range(5)]
        await eventually(
            lambda: (
                old.partition().replica.leo == old.partition().replica.durable > 2 and old.partition().replica.leo >= 7
            )
        )
        tail = [offset for epoch, offset, _ in log_of(old) if epoch == 1][-1]
        old.metastore.expire()
        old.runtime.session_expired()
        for outcome in await asyncio.gather(*orphans, return_exceptions=True):
            assert isinstance(outcome, OutcomeUnknown)
        new = await t.led()
        assert new is not old
        await put(new, b"after", b"2")
        t.network.heal()
        old.runtime.session_started(await old.registrar.register())
        await t.level()
        assert log_of(old) == log_of(new)
        assert stored_values(old, b"after") == [b"2"]
        assert stored_values(old, b"orphan-0") == stored_values(new, b"orphan-0") == []
        assert [epoch for epoch, offset, _ in log_of(old) if offset == tail] in ([], [2])
        name = old.node
        await t.kill(name)
        again = await t.open(name)
        assert again.runtime.replog.recovered()[0].damage == ""
        await t.level()
        assert log_of(again) == log_of(new)


async def test_committed_reads_ask_whether_it_still_leads(tmp_path: Path, start_cluster: ClusterFactory) -> None:
    """A leader that others have replaced serves no committed read; the others' leader does, with the newest value."""

    async with start_cluster(tmp_path) as t:
        old = await t.led()
        await put(old, b"k", b"old")
        t.network.isolate(old.node)
        old.metastore.disconnect()
        stale = old.runtime.committed(old.partition())
        t.ensemble.end_session(old.metastore._memory.current)
        new = await t.led_by_another(old)
        data = await new.coordinator.get(key(b"k"))
        clock = decode_object(data).clock
        await new.coordinator.write(WriteRequest(key(b"k"), Content(b"new"), clock))
        assert not stale.done() or stale.exception() is not None
        old.runtime.session_expired()
        with pytest.raises(Retryable):
            await asyncio.wait_for(stale, PATIENCE_S)
        assert stored_values(old, b"k") == [b"old"]
        assert [s.value for s in decode_object(await new.coordinator.get(key(b"k"))).live] == [b"new"]


async def test_a_stopping_node_takes_writes_until_its_withdrawal_is_noted(
    tmp_path: Path, start_cluster: ClusterFactory
) -> None:
    """The metastore is slow to note that the node is leaving; its leaderships serve meanwhile."""

    async with start_cluster(tmp_path) as t:
        leader = await t.led()
        await leader.controller.stop()
        leader.metastore.hold()
        leaving = asyncio.create_task(leader.runtime.resign(60))
        await asyncio.sleep(0.01)
        await asyncio.wait_for(put(leader, b"k", b"v"), PATIENCE_S)
        assert not leaving.done()
        leader.metastore.release()
        await leaving
        assert leader.partition().replica.role not in (fx.ReplicaRole.LEADER, fx.ReplicaRole.RESIGNING)


async def test_a_stopping_node_hands_over_first(tmp_path: Path, start_cluster: ClusterFactory) -> None:
    """A graceful stop moves leadership to a member in sync before the process goes: no election waits for a session,
    and nothing that was written is unknown."""

    async with start_cluster(tmp_path) as t:
        leader = await t.led()
        writes = [asyncio.create_task(put(leader, b"%d" % n, b"v")) for n in range(20)]
        await asyncio.sleep(0)
        await leader.controller.resign()
        await leader.runtime.resign(10)
        assert leader.partition().replica.role not in (fx.ReplicaRole.LEADER, fx.ReplicaRole.RESIGNING)
        assert not (await leader.metastore.registrations())[leader.node].active
        outcomes = await asyncio.gather(*writes, return_exceptions=True)
        assert not any(isinstance(outcome, OutcomeUnknown) for outcome in outcomes)
        new = await t.led_by_another(leader)
        for n, outcome in enumerate(outcomes):
            if outcome is None:
                assert await new.coordinator.get(key(b"%d" % n)) is not None
        with pytest.raises(NotReady):
            await leader.runtime.committed(leader.partition())


async def test_replicas_are_created_where_records_assign_them_while_running(
    tmp_path: Path, start_cluster: ClusterFactory
) -> None:
    """Running nodes hold no partition until a bucket type is created; then each creates its replicas under the spare
    log id that it had registered, and the ISR of the records names exactly those."""

    async with start_cluster(tmp_path, 3, partitions=6, factor=2, min_isr=1) as t:
        members = t.members
        records = members["n1"].controller.records
        for partition, record in records.items():
            assert {m.node for m in record.isr} == set(record.replicas)
            for member in record.isr:
                assert members[member.node].identity.spare == member.log_id
                assert members[member.node].partition(partition).replica.member == member
            assert all(partition not in members[n].runtime.partitions for n in members if n not in record.replicas)
        registrations = await members["n1"].metastore.registrations()
        assert all(registrations[n].log_ids == members[n].identity.log_ids() for n in members)
        for n in range(30):
            await put(members["n2"], b"%d" % n, b"v")
        for n in range(30):
            assert await members["n3"].coordinator.get(key(b"%d" % n)) is not None


async def test_messages_that_are_lost_cost_time_only(tmp_path: Path, start_cluster: ClusterFactory) -> None:
    """Every fifth message with entries is lost on a connection that stays up; all replicas become equal anyway."""

    async with start_cluster(tmp_path) as t:
        leader = await t.led()
        count = 0

        def lossy(_sender: str, _to: str, _partition: int, message: Message) -> bool:
            nonlocal count
            if not is_entries(message):
                return False
            count += 1
            return count % 5 == 0

        t.network.lost = lossy
        outcomes = await asyncio.gather(*(put(leader, b"%d" % n, b"v") for n in range(50)))
        assert outcomes == [None] * 50
        for n in range(4):
            await put(leader, b"again-%d" % n, b"v")
        t.network.lost = lambda _sender, _to, _partition, _message: False
        await t.level()
        assert count > 5
        logs = [log_of(member) for member in t.members.values()]
        assert logs[0] == logs[1] == logs[2]


async def test_soft_cursors_reach_a_follower_that_only_takes_the_stream(
    tmp_path: Path, start_cluster: ClusterFactory
) -> None:
    """A restarted follower that lacks nothing joins the stream without any AppendEntries, and gets the soft cursors
    nevertheless; entries that streams carry count as sent."""
    async with start_cluster(tmp_path) as t:
        leader = await t.led()
        await put(leader, b"k", b"v")
        await t.level()
        name = t.followers()[0].node
        await t.kill(name)
        again = await t.open(name)
        await eventually(lambda: again.partition().replica.following)
        await put(leader, b"k2", b"v")
        sent = {metric: value for metric, _, value in leader.runtime.metrics()}
        leader.runtime.soft_cursor(0, b"to-west", b"\x01")
        await eventually(lambda: again.runtime.store.cursor(0, b"to-west").soft == b"\x01")
        await put(leader, b"k3", b"v")
        now = {metric: value for metric, _, value in leader.runtime.metrics()}
        name_of_sent = "isthmus_replicate_sent_entries_total"
        assert now[name_of_sent] - sent[name_of_sent] == 2


async def test_soft_cursors_survive_a_change_of_leader(tmp_path: Path, start_cluster: ClusterFactory) -> None:
    """A queue's cursor reaches the followers' stores within a second, even without writes; at a hand-over its newest
    value is in the next leader's store before that serves."""

    async with start_cluster(tmp_path) as t:
        leader = await t.led()
        await put(leader, b"k", b"v")
        leader.runtime.soft_cursor(0, b"to-west", b"\x01")
        others = [member for member in t.members.values() if member is not leader]
        await eventually(lambda: all(h.runtime.store.cursor(0, b"to-west").soft == b"\x01" for h in others))
        leader.runtime.soft_cursor(0, b"to-west", b"\x02")
        seen: list[bytes | None] = []

        class CursorListener:
            """Reads the cursor as soon as the new leader serves."""

            def __init__(self, member: Node) -> None:
                self.member = member

            def applied(self, applied: object) -> None:
                """Ignored."""

            def leadership(self, partition: int, leading: bool, _applied: int) -> None:
                """A leader begins."""
                if leading:
                    seen.append(self.member.runtime.store.cursor(partition, b"to-west").soft)

        for member in others:
            member.runtime.listeners.add(CursorListener(member))
        leader.runtime.hand_over(leader.partition(), None, 5_000)
        await t.led_by_another(leader)
        assert seen == [b"\x02"]


async def test_an_election_does_not_wait_for_busy_threads(tmp_path: Path, start_cluster: ClusterFactory) -> None:
    """The loop's own threads are few, and shared: silent peers of another cluster, or a plan of many partitions, occupy
    them for seconds. The new epoch, which everything waits for, still becomes durable."""

    async with start_cluster(tmp_path) as t:
        leader = await t.led()
        await t.level()
        loop, free = asyncio.get_running_loop(), threading.Event()
        pool = ThreadPoolExecutor(1)
        loop.set_default_executor(pool)
        busy = [loop.run_in_executor(None, free.wait) for _ in range(2)]
        try:
            leader.runtime.hand_over(leader.partition(), None, 5_000)
            await t.led_by_another(leader)
        finally:
            free.set()
            await asyncio.gather(*busy)


def stream_groups(member: Node, direction: str) -> float:
    """How many groups of streams a node has sent or received."""
    samples = member.runtime.metrics()
    return sum(
        v for name, labels, v in samples if name == "isthmus_stream_groups_total" and direction in labels.values()
    )


def all_joined(leader: Node, partition: int = 0) -> bool:
    """True when every follower of the partition takes the stream to its node."""
    state = leader.partition(partition).replica._leader
    return state is not None and len(state.followers) == 2 and all(each.join for each in state.followers.values())


async def test_writes_of_several_partitions_travel_in_streams(tmp_path: Path, start_cluster: ClusterFactory) -> None:
    """Once followers have joined, concurrent writes to four partitions take fewer groups than writes, and no
    AppendEntries with entries; commits reach idle followers; logs are equal, and idle streams become silent."""

    async with start_cluster(tmp_path, partitions=4) as t:
        client = t.members["n1"]
        await asyncio.gather(*(put(client, b"join-%d" % n, b"v") for n in range(40)))
        for partition in range(4):
            await eventually(lambda p=partition: all_joined(t.leader(p) or client, p))
        sent = sum(stream_groups(member, "sent") for member in t.members.values())
        received = sum(stream_groups(member, "received") for member in t.members.values())
        by_message: list[Message] = []

        def watch(_sender: str, _to: str, _partition: int, message: LinkMessage) -> bool:
            if isinstance(message, AppendEntries) and message.entries:
                by_message.append(message)
            return False

        t.network.lost = watch
        for n in range(5):
            await asyncio.gather(*(put(client, b"k-%d-%d" % (n, i), b"v") for i in range(40)))
        for partition in range(4):
            await t.level(partition)
            logs = [log_of(member, partition) for member in t.members.values()]
            assert logs[0] == logs[1] == logs[2]
        assert by_message == []

        def groups(direction: str, before: float) -> float:
            return sum(stream_groups(member, direction) for member in t.members.values()) - before

        async def silent() -> bool:
            before = groups("sent", sent)
            await asyncio.sleep(0.3)
            return groups("sent", sent) == groups("received", received) == before

        await eventually(silent, "the last commits have reached the followers, and nothing else is sent")
        assert 10 <= groups("sent", sent) < 400
        assert all(member.runtime._streams.streams_ended == 0 for member in t.members.values())


async def test_a_node_of_an_older_version_takes_part_without_streams(
    tmp_path: Path, start_cluster: ClusterFactory
) -> None:
    """The node follows and leads by AppendEntries beside nodes that use streams among themselves, and uses streams once
    it runs the new version."""

    async with start_cluster(tmp_path) as t:
        await t.kill("n3")
        older = await t.open("n3", takes_streams=False)
        await t.settled()
        await t.level()
        for name in ("n1", "n3"):
            leader = await t.led()
            if leader.node != name:
                await eventually(lambda: t.leader() is not None)
                leader.runtime.hand_over(leader.partition(), name, 5_000)
                leader = await t.led_by_another(leader)
            assert leader.node == name
            await asyncio.gather(*(put(leader, b"%s-%d" % (name.encode(), n), b"v") for n in range(20)))
            await t.level()
        assert stream_groups(t.members["n1"], "sent") > 0
        assert stream_groups(t.members["n2"], "received") > 0
        assert stream_groups(older, "sent") == stream_groups(older, "received") == 0
        logs = [log_of(member) for member in t.members.values()]
        assert logs[0] == logs[1] == logs[2]
        await t.kill("n3")
        newer = await t.open("n3")
        await t.settled()
        leader = await t.led()
        await t.level()
        await put(leader, b"after", b"v")
        await eventually(lambda: stream_groups(newer, "received") + stream_groups(newer, "sent") > 0)
        await t.level()


async def test_a_follower_restarted_under_load_joins_its_streams_again(
    tmp_path: Path, start_cluster: ClusterFactory
) -> None:
    """Writes continue while the follower is away and when it is back; it gets the missed entries by AppendEntries,
    joins its stream, and every acknowledged write is in its store."""

    async with start_cluster(tmp_path) as t:
        leader = await t.led()
        away = t.followers()[0].node
        acked: list[bytes] = []
        stop = asyncio.Event()

        async def client(number: int) -> None:
            n = 0
            while not stop.is_set():
                name = b"%d-%d" % (number, n)
                n += 1
                try:
                    await asyncio.wait_for(put(leader, name, b"v"), 8)
                except (IsthmusError, TimeoutError):
                    continue
                acked.append(name)

        clients = [asyncio.create_task(client(number)) for number in range(3)]
        await eventually(lambda: all_joined(leader))
        await t.kill(away)
        before = len(acked)
        await eventually(lambda: len(acked) > before + 20)
        back = await t.open(away)
        await eventually(lambda: all_joined(leader) and stream_groups(back, "received") > 20)
        stop.set()
        await asyncio.gather(*clients)
        assert t.leader() is leader
        await t.level()
        assert log_of(back) == log_of(leader)[-len(log_of(back)) :]
        assert all(stored_values(back, name) == [b"v"] for name in acked)
