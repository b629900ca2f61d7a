"""Controllers of several nodes: one of them is active; its requests and their answers, and how fast a cluster comes
online."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Any

import msgpack
import pytest
from structlog.testing import capture_logs

from isthmus.repl.controller import controller
from isthmus.repl.controller.bucket_types import DefaultType
from isthmus.repl.controller.contact import ALONE_MS
from isthmus.repl.controller.reachability import UNREACHED_MS
from isthmus.repl.controller.suspicion import HoldTimes, Suspicions
from isthmus.repl.isr import effects as fx
from isthmus.repl.model.errors import BadInput, Corruption
from isthmus.repl.model.record import PartitionRecord, PartitionStatus, Registration
from tests.support.controller_cluster import Cluster, FakeNode, eventually, running
from tests.support.memory_metastore import WriteFault
from tests.support.virtual_time import LoopTime

pytestmark = pytest.mark.virtual_time

SMALL = DefaultType(partition_count=4, factor=3, settle_ms=0)


@pytest.fixture(autouse=True)
def _without_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Polling is too slow to matter: every effect follows from an event."""
    monkeypatch.setattr(controller, "POLL_MS", 60_000)


async def test_one_of_several_decides_and_all_know_which() -> None:
    """One node holds the claim; each node passes its readings on and shows the controller's name."""

    async with running(SMALL, 1, 2, 3) as cluster:
        await eventually(cluster.online)
        assert cluster.decides() == ["n1"]
        await eventually(lambda: [n.controller.controller for n in cluster.living] == ["n1"] * 3)
        await eventually(lambda: all(set(n.registrations) == {"n1", "n2", "n3"} for n in cluster.living))


async def test_another_takes_over_when_the_session_of_the_one_that_decided_ends() -> None:
    """Its ephemeral node is deleted, the others see it, and one of them claims; its partitions get other leaders soon
    after."""

    async with running(SMALL, 1, 2, 3) as cluster:
        await eventually(cluster.online)
        await cluster.nodes["n1"].die()
        await eventually(lambda: len(cluster.decides()) == 1)
        assert cluster.decides()[0] in ("n2", "n3")
        await eventually(lambda: cluster.online() and not cluster.leads()["n1"])


async def test_a_node_that_nobody_can_dial_is_given_no_leadership(monkeypatch: pytest.MonkeyPatch) -> None:
    """R-REACHED: the leaderships of a node that has ended go to those that can be dialled, though another one has as
    few, as long a log, and its session."""
    monkeypatch.setattr(controller, "POLL_MS", 1_000)

    async with running(replace(SMALL, partition_count=12, factor=4), 1, 2, 3, 4) as cluster:
        await eventually(lambda: cluster.online() and set(cluster.leads().values()) == {3})
        cluster.nodes["n3"].undialled = True
        await asyncio.sleep(UNREACHED_MS / 1000 + 2)
        await cluster.nodes["n2"].die()
        await eventually(lambda: cluster.online() and not cluster.leads()["n2"])
        assert cluster.leads()["n3"] == 3


async def test_a_node_that_cannot_read_the_records_any_more_says_so() -> None:
    """The metastore answers and has gone back: what the node knows is of before, until it can read again."""

    async def gone_back() -> Mapping[int, PartitionRecord]:
        raise Corruption("metastore-rollback: /isthmus/p/0 is at version 2, this process has seen version 3")

    async with running(SMALL, 1, 2, 3) as cluster:
        await eventually(cluster.online)
        seen = cluster.nodes["n2"].controller
        assert seen.outdated_why == ""
        reads, seen.metastore.records = seen.metastore.records, gone_back  # type: ignore[method-assign]
        await cluster.nodes["n3"].die()
        await eventually(lambda: seen.outdated_why.startswith("metastore-rollback"))
        seen.metastore.records = reads  # type: ignore[method-assign]
        seen.wake()
        await eventually(lambda: seen.outdated_why == "")


async def test_every_node_counts_the_partitions_without_a_leader() -> None:
    """If the only replicas of partitions die, each remaining node counts these in its metrics."""

    async with running(DefaultType(partition_count=4, factor=1, settle_ms=300), 1, 2, 3) as cluster:
        await eventually(cluster.online)
        lost = cluster.leads()["n2"]
        assert lost

        def offline() -> set[float]:
            return {
                value
                for node in cluster.living
                for name, _, value in node.controller.samples()
                if name == "isthmus_partitions_offline"
            }

        assert offline() == {0}
        await cluster.nodes["n2"].die()
        await eventually(lambda: offline() == {lost})


async def suspecting(cluster: Cluster, hold_ms: int = 0) -> None:
    """All nodes are connected; sessions known for at least `hold_ms` may be suspected."""
    await eventually(lambda: all(node.registrations.keys() == cluster.nodes.keys() for node in cluster.living))
    for node in cluster.living:
        suspicions = node.peers.suspicions = Suspicions(node.name, HoldTimes(min_ms=hold_ms, max_ms=hold_ms))
        suspicions.learn(node.registrations, LoopTime().now_ms())
        for other in cluster.nodes:
            if other != node.name:
                node.peers.link_changed(other, True)


async def kill(node: FakeNode) -> None:
    """The process is gone while its session lives; dials of the other nodes are refused."""
    node.deaf = True
    assert node.controller._task is not None
    node.controller._task.cancel()
    for other in node.cluster.living:
        other.peers.link_changed(node.name, False)
        other.peers.dial_refused(node.name)


@pytest.mark.parametrize("victim", ["n1", "n2"])
async def test_a_killed_node_is_replaced_though_its_session_lives(victim: str) -> None:
    """This includes the controller: another node gets the claim, and all partitions of the dead node get other leaders,
    while the metastore still has its session. The log has one line about it (R-SUSPECT)."""

    async with running(SMALL, 1, 2, 3) as cluster:
        await eventually(lambda: cluster.online() and cluster.leads()[victim])
        await suspecting(cluster)
        with capture_logs() as logs:
            await kill(cluster.nodes[victim])
            await eventually(lambda: cluster.online() and not cluster.leads()[victim])
        assert len(cluster.decides()) == 1
        assert [e["peer"] for e in logs if e["event"] == "controller.node_suspected"] == [victim]
        reasons = {e["reason"] for e in logs if e["event"] == "controller.decided" and e["status"] == "election"}
        assert f"{victim} is gone: its address refuses connections" in reasons
        assert all(len(record.isr) == 2 for record in cluster.records.values())
        await cluster.nodes[victim].metastore.stop()


async def test_a_session_that_must_not_be_suspected_is_left_to_its_end() -> None:
    """A refused dial to a node whose session is young changes nothing."""

    async with running(SMALL, 1, 2, 3) as cluster:
        await eventually(lambda: cluster.online() and cluster.leads()["n1"])
        await suspecting(cluster, 60_000)
        before = cluster.leads()
        await kill(cluster.nodes["n1"])
        await asyncio.sleep(0.1)
        assert cluster.leads() == before
        await cluster.nodes["n1"].metastore.stop()
        await eventually(lambda: cluster.online() and not cluster.leads()["n1"])


async def test_a_controller_whose_registration_was_ended_lets_another_decide() -> None:
    """Its session and its claim live, but no candidate could report to it; after it registers again, it may become
    active again."""

    async with running(SMALL, 1, 2, 3) as cluster:
        await eventually(cluster.online)
        first, second = cluster.nodes["n1"], cluster.nodes["n2"]
        assert await second.metastore.end_registration("n1", first.session_id)
        await eventually(lambda: len(cluster.decides()) == 1 and cluster.decides() != ["n1"])
        await first.register()
        await eventually(lambda: cluster.online() and all(len(r.isr) >= 2 for r in cluster.records.values()))
        assert len(cluster.decides()) == 1


async def test_a_controller_that_reaches_no_other_node_lets_another_decide(monkeypatch: pytest.MonkeyPatch) -> None:
    """The controller reaches the metastore, so its session and its claim live, but candidates could not report to it.
    While it is cut off it leaves the claim to others; if no node takes it, it becomes active again (R-CONTACT)."""
    monkeypatch.setattr(controller, "POLL_MS", 2_000)
    async with running(SMALL, 1, 2, 3) as cluster:
        await eventually(cluster.online)
        first = cluster.nodes["n1"]
        first.deaf = True  # requests to it fail; it goes on
        for other in ("n2", "n3"):
            first.peers.link_changed(other, False)
            cluster.nodes[other].peers.link_changed("n1", False)
        with capture_logs() as logs:
            await eventually(lambda: cluster.decides() in (["n2"], ["n3"]), ALONE_MS / 1000 + 5)
            await asyncio.sleep(3 * ALONE_MS / 1000)
            assert len(cluster.decides()) == 1
            assert not first.controller.decides
            assert [each["event"] for each in logs].count("controller.alone") == 1
            for node in cluster.living:
                await node.controller.resign()
            await eventually(lambda: first.controller.decides)
        first.deaf = False


async def test_an_unregistered_node_and_one_that_resigns_suspect_nobody() -> None:
    """A node that takes no part ends no other node's registration."""

    async with running(SMALL, 1, 2, 3) as cluster:
        await eventually(cluster.online)
        await suspecting(cluster)
        cluster.nodes["n2"].registered = False
        await cluster.nodes["n3"].controller.resign()
        for name in ("n2", "n3"):
            peers = cluster.nodes[name].peers
            peers.link_changed("n1", False)
            peers.dial_refused("n1")
            assert peers.suspicions is not None
            assert peers.suspicions.suspects()
        await asyncio.sleep(0.1)
        assert set(cluster.nodes["n1"].registrations) == {"n1", "n2", "n3"}


async def test_a_controller_whose_session_expired_decides_no_more_and_may_come_again() -> None:
    """It learns the active controller from the claim itself, not from memory."""

    async with running(SMALL, 1, 2, 3) as cluster:
        await eventually(cluster.online)
        first = cluster.nodes["n1"]
        first.metastore.expire()
        await eventually(lambda: len(cluster.decides()) == 1)
        await first.register()
        await eventually(lambda: len(cluster.decides()) == 1 and cluster.online())
        for node in cluster.living:
            assert node.controller.decides == (node.controller.controller == node.name)


async def test_a_node_that_resigns_lets_another_decide_and_still_reads() -> None:
    """A node resigns before it hands over its leaderships: another controller must elect their successors, and it must
    see them."""

    async with running(SMALL, 1, 2, 3) as cluster:
        await eventually(cluster.online)
        first = cluster.nodes["n1"]
        await first.controller.resign()
        await eventually(lambda: cluster.decides() in (["n2"], ["n3"]))
        await eventually(lambda: first.controller.controller == cluster.decides()[0])
        await first.register(active=False)
        await eventually(lambda: not first.registrations["n1"].active)
        assert not first.controller.decides


async def test_records_are_read_before_registrations() -> None:
    """H29: registrations are read after records, so a registration that is missing was missing when the record was
    read, or disappeared later."""

    class RecordingNode(FakeNode):
        def __init__(self, cluster: Cluster, number: int) -> None:
            super().__init__(cluster, number, "")
            self.order: list[str] = []
            records, registrations = self.metastore.records, self.metastore.registrations

            async def read_records() -> Mapping[int, PartitionRecord]:
                self.order.append("records")
                return await records()

            async def read_registrations(*, sync: bool = True) -> Mapping[str, Registration]:
                self.order.append("registrations")
                return await registrations(sync=sync)

            self.metastore.records = read_records  # type: ignore[method-assign]
            self.metastore.registrations = read_registrations  # type: ignore[method-assign]

    async with running(DefaultType(2, 1, settle_ms=0)) as cluster:
        node = cluster.nodes["n1"] = RecordingNode(cluster, 1)
        await node.start()
        await eventually(cluster.online)
        assert len(node.order) >= 4
        assert node.order[0] == "records"
        assert ("registrations", "registrations") not in pairwise(node.order)


async def test_a_promotion_is_decided_upon_without_another_read() -> None:
    """Nothing in the metastore has changed since the nomination was read, so the promotion costs one write."""

    async with running(DefaultType(1, 3, settle_ms=0), 1, 2, 3) as cluster:
        await eventually(cluster.online)
        decides = cluster.nodes[cluster.decides()[0]]
        for node in cluster.living:
            node.mute = True
        record = decides.controller.records[0]
        assert record.leader is not None
        gone = replace(record, status=PartitionStatus.ELECTION, leader=None, preferred=record.leader.node)
        await decides.metastore.write_record(gone)
        await eventually(lambda: decides.controller.records[0].candidate is not None)
        await asyncio.sleep(0.05)
        reads = 0
        records = decides.metastore.records

        async def counted() -> Mapping[int, PartitionRecord]:
            nonlocal reads
            reads += 1
            return await records()

        written = asyncio.Event()
        write_record = decides.metastore.write_record

        async def write(*args: Any, **kwargs: Any) -> PartitionRecord:
            assert reads == 0
            written.set()
            return await write_record(*args, **kwargs)

        decides.metastore.records = counted  # type: ignore[method-assign]
        decides.metastore.write_record = write  # type: ignore[method-assign]
        found = decides.controller.records[0]
        assert found.candidate is not None
        candidate = cluster.nodes[found.candidate.node]
        candidate.inbox.promoted(
            0, fx.Promoted(found.epoch, candidate.name, candidate.session_id, 50 + candidate.number)
        )
        await asyncio.wait_for(written.wait(), 5)
        await eventually(cluster.online)


async def test_many_partitions_are_online_again_soon_after_a_node_is_lost() -> None:
    """64 partitions, a third of them without a leader at once: no step waits for a poll, and each node gets one
    request."""

    async with running(DefaultType(64, 3, settle_ms=0), 1, 2, 3) as cluster:
        await eventually(cluster.online)
        assert max(cluster.leads().values()) - min(cluster.leads().values()) <= 1
        before = cluster.requests.copy()
        lost = cluster.nodes["n2"]
        led = cluster.leads()["n2"]
        began = asyncio.get_running_loop().time()
        await lost.die()
        await eventually(lambda: cluster.online() and not cluster.leads()["n2"])
        took_s = asyncio.get_running_loop().time() - began
        asked = cluster.requests - before
        assert led >= 21
        assert asked["n1", "n3", "status"] <= 4
        assert took_s < 3.0, "two looks of 2 s each would be a poll"
        leads = cluster.leads()
        assert leads["n1"] + leads["n3"] == 64
        assert abs(leads["n1"] - leads["n3"]) <= 2, "equal logs: leaders spread evenly"


async def test_the_smallest_lag_is_asked_for_and_wins() -> None:
    """The follower with the longest log is elected, for any ids and loads."""

    async with running(DefaultType(6, 3, settle_ms=0), 1, 2, 3) as cluster:
        await eventually(cluster.online)
        cluster.nodes["n3"].leo = dict.fromkeys(range(6), 9)
        cluster.nodes["n2"].leo = dict.fromkeys(range(6), 8)
        await cluster.nodes["n1"].die()
        await eventually(lambda: cluster.online() and not cluster.leads()["n1"])
        assert cluster.leads() == {"n2": 2, "n3": 4}


async def test_each_election_asks_again() -> None:
    """Answers of the last election do not count in the next one."""

    async with running(DefaultType(1, 5, settle_ms=0), 1, 2, 3, 4, 5) as cluster:
        await eventually(lambda: cluster.online() and cluster.leads()["n1"])
        await cluster.nodes["n1"].controller.resign()
        await eventually(lambda: cluster.decides() and cluster.decides() != ["n1"])
        cluster.nodes["n3"].leo = {0: 9}
        await cluster.nodes["n1"].die()
        await eventually(lambda: cluster.online() and cluster.leads()["n3"])
        cluster.nodes["n4"].leo = {0: 20}
        await cluster.nodes["n3"].die()
        await eventually(lambda: cluster.online() and not cluster.leads()["n3"])
        assert cluster.leads() == {"n4": 1}


async def test_a_silent_member_is_awaited_for_the_query_time_only() -> None:
    """A node is registered but cut off from the controller: the other member is nominated after half a second."""

    async with running(DefaultType(3, 3, settle_ms=0), 1, 2, 3) as cluster:
        await eventually(cluster.online)
        decides = cluster.nodes[cluster.decides()[0]]
        other, lost = (node for node in cluster.living if node is not decides)
        decides.leo = dict.fromkeys(range(3), 1)
        other.deaf = True
        other.leo = dict.fromkeys(range(3), 99)
        began = asyncio.get_running_loop().time()
        await lost.die()
        await eventually(lambda: cluster.online() and not cluster.leads()[lost.name])
        assert 0.4 < asyncio.get_running_loop().time() - began < 3.0
        assert cluster.leads()[decides.name] == 2
        other.deaf = False


async def test_a_candidate_that_stays_silent_is_followed_by_the_next() -> None:
    """The response timer fires in the running controller, and the next candidate leads."""

    cluster = Cluster(DefaultType(1, 3, settle_ms=0))
    for number in (1, 2, 3):
        cluster.node(number).mute = number == 1
    for node in cluster.living:
        await node.start()
    await eventually(cluster.online)
    assert cluster.records[0].epoch == 2
    assert not cluster.leads()["n1"]
    await cluster.stop()


@pytest.mark.parametrize("faults", [[WriteFault.REQUEST_LOST], [WriteFault.ANSWER_LOST] * 3, [WriteFault.LATE] * 2])
async def test_writes_of_unknown_fate_are_decided_by_what_is_read(faults: list[WriteFault]) -> None:
    """R-AMBIG: no write is assumed to have succeeded or failed; the cluster still comes online."""

    async with running(SMALL, 1, 2, 3) as cluster:
        await eventually(cluster.online)
        for node in cluster.living:
            if node.controller.decides:
                node.metastore.spoil(*faults)
        victim = next(node for node in cluster.living if not node.controller.decides)
        await victim.die()
        await eventually(lambda: cluster.online() and not cluster.leads()[victim.name])
        for node in cluster.living:
            node.metastore.deliver_late()
        await eventually(cluster.online)


async def test_an_outage_of_the_metastore_is_survived() -> None:
    """While nothing can be read nothing is decided; afterwards the controller continues by itself."""

    async with running(SMALL, 1, 2, 3) as cluster:
        await eventually(cluster.online)
        for node in cluster.living:
            node.metastore.disconnect()
        await cluster.nodes["n3"].die()
        await asyncio.sleep(0.05)
        for node in cluster.living:
            node.metastore.reconnect()
        await eventually(lambda: cluster.online() and not cluster.leads()["n3"])


async def test_a_bug_in_one_pass_does_not_end_the_controller(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node that holds the claim without acting would leave its cluster without elections."""

    async with running(SMALL, 1, 2, 3) as cluster:
        await eventually(cluster.online)
        decides = cluster.nodes[cluster.decides()[0]]
        on_records = decides.on_records
        calls = 0

        def broken(records: Mapping[int, PartitionRecord], unread: Collection[int]) -> None:
            nonlocal calls
            calls += 1
            assert calls > 1, "a bug"
            on_records(records, unread)

        monkeypatch.setattr(decides, "on_records", broken)
        learn = decides.controller._promotions.learn
        passes = 0

        def not_learnt(*given: Any) -> None:
            nonlocal passes
            passes += 1
            assert passes > 1, "another bug"
            learn(*given)

        monkeypatch.setattr(decides.controller._promotions, "learn", not_learnt)
        monkeypatch.setattr(controller, "POLL_MS", 200)
        victim = next(node for node in cluster.living if node is not decides)
        with capture_logs() as logs:
            await victim.die()
            await eventually(lambda: cluster.online() and not cluster.leads()[victim.name])
        assert {"controller.bug", "controller.observer_bug"} <= {each["event"] for each in logs}


async def test_hostile_requests_are_refused() -> None:
    """Malformed statuses and promotions change nothing, and are refused with BadInput."""

    async with running(SMALL, 1, 2, 3) as cluster:
        await eventually(cluster.online)
        handlers = cluster.nodes["n1"].controller.request_handlers()
        assert set(handlers) == {"status", "promoted"}
        for body in (b"", b"\xc1", b"\xff" * 9, *map(msgpack.packb, (None, 7, {}, ["x"], [-1], [True], [[0]]))):
            with pytest.raises(BadInput):
                await handlers["status"]("n2", body)
        known = cluster.records[0]
        wrong = [
            7,
            [7],
            [[0, 1, "n2", 1]],
            [[0, 1, "n3", 1, 53]],
            [[0, -1, "n2", 1, 52]],
            [["0", 1, "n2", 1, 52]],
            [[0, 1, "n2", 1, None]],
        ]
        for value in wrong:
            with pytest.raises(BadInput):
                await handlers["promoted"]("n2", msgpack.packb(value))
        assert await handlers["promoted"]("n2", msgpack.packb([[99, 1, "n2", 1, 52]])) == b""
        assert msgpack.unpackb(await handlers["status"]("n2", msgpack.packb([0, 1])), strict_map_key=False) == {
            0: [1, 0],
            1: [1, 0],
        }
        assert cluster.records[0] == known
