"""Leaderships come back to a node that comes back, by hand-overs that writers do not notice."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import msgpack
import pytest

from isthmus.repl.controller.leader_balancer import BalanceOptions
from isthmus.repl.isr.effects import ReplicaRole
from isthmus.repl.isr.replica_state import ReplicaOptions
from isthmus.repl.model.errors import BadInput, Fenced, NotLeader, NotReady
from isthmus.repl.model.keys import Key
from isthmus.repl.model.objects import Content
from isthmus.repl.model.requests import WriteRequest
from isthmus.repl.runtime.handover import LeadershipTransfer, encode
from tests.support.memory_links import is_entries
from tests.support.runtime_cluster import Cluster, Node, eventually
from tests.support.waiting import PATIENCE_S

ClusterFactory = Callable[..., AbstractAsyncContextManager[Cluster]]

QUICK = BalanceOptions(delay_ms=100, moves=4, cool_down_ms=0, timeout_ms=3_000)


def led_counts(t: Cluster) -> Counter[str]:
    """How many partitions each node leads and serves."""
    return Counter(
        {member.node: sum(p.replica.ready for p in member.runtime.partitions.values()) for member in t.members.values()}
    )


def key(name: bytes) -> Key:
    return Key(b"default", b"b", name)


async def test_leaders_end_even_after_a_node_came_back_under_load(
    tmp_path: Path, start_cluster: ClusterFactory
) -> None:
    """Three nodes, six partitions: one is killed, three and three; it is back, two each, while clients of every node
    write on and not one write fails; all that was answered is read afterwards, from any node."""

    async with start_cluster(tmp_path, partitions=6, balance=QUICK) as t:
        await eventually(lambda: led_counts(t) == {"n1": 2, "n2": 2, "n3": 2})
        await t.kill("n3")
        await eventually(lambda: led_counts(t) == {"n1": 3, "n2": 3})
        stop = asyncio.Event()
        written: list[bytes] = []

        async def client(member: Node) -> None:
            n = 0
            while not stop.is_set():
                name = b"%s-%d" % (member.node.encode(), n)
                await member.coordinator.write(WriteRequest(key(name), Content(b"v")))
                written.append(name)
                n += 1

        clients = [asyncio.create_task(client(member)) for member in t.members.values()]
        await t.open("n3", balance=QUICK)
        await eventually(lambda: led_counts(t) == {"n1": 2, "n2": 2, "n3": 2} or any(c.done() for c in clients))
        stop.set()
        await asyncio.gather(*clients)
        assert led_counts(t) == {"n1": 2, "n2": 2, "n3": 2}
        for member in t.members.values():
            for name in written[:: max(1, len(written) // 20)]:
                assert await member.coordinator.get(key(name)) is not None


async def test_a_leader_refuses_what_would_make_its_writers_wait(tmp_path: Path, start_cluster: ClusterFactory) -> None:
    """A hand-over is refused with the reason when its epoch differs, its target is out of sync, not connected or too
    far behind, or the node does not lead; the leader keeps leading (I-BAL-SAFE)."""

    async with start_cluster(tmp_path, options=ReplicaOptions(max_time_lag_ms=60_000)) as t:
        leader = await t.led()
        target, other = t.followers()
        epoch = leader.partition().replica.epoch
        at_leader, at_target = LeadershipTransfer(leader.runtime), LeadershipTransfer(target.runtime)
        with pytest.raises(NotLeader):
            await at_target.answer("x", encode(0, epoch, other.node, 1_000))
        with pytest.raises(NotLeader):
            await at_leader.answer("x", encode(7, epoch, target.node, 1_000))
        with pytest.raises(Fenced):
            await at_leader.answer("x", encode(0, epoch + 1, target.node, 1_000))
        with pytest.raises(NotReady, match="not in sync"):
            await at_leader.answer("x", encode(0, epoch, "n9", 1_000))
        for body in (b"\xc1", msgpack.packb([0, epoch, target.node]), msgpack.packb([0, -1, target.node, 5])):
            with pytest.raises(BadInput):
                await at_leader.answer("x", body)
        t.network.lost = lambda _sender, to, _partition, message: to == target.node and is_entries(message)
        writes = [
            asyncio.create_task(leader.coordinator.write(WriteRequest(key(b"%d" % n), Content(b"v"))))
            for n in range(1_100)
        ]
        await eventually(lambda: leader.partition().replica.leo > 1_100)
        with pytest.raises(NotReady, match="lacks 1100 entries"):
            await at_leader.answer("x", encode(0, epoch, target.node, 1_000))
        assert leader.partition().replica.role is ReplicaRole.LEADER
        t.network.lost = lambda _sender, _to, _partition, _message: False
        await asyncio.gather(*writes)
        await t.level()
        assert await at_leader.answer("x", encode(0, epoch, target.node, 3_000)) == b""
        assert await t.led_by_another(leader) is target


async def test_any_node_answers_for_the_one_that_controls(tmp_path: Path, start_cluster: ClusterFactory) -> None:
    """A node without the active controller forwards to it: status requests, and an operator's moves."""

    manual = QUICK._replace(automatic=False)
    async with start_cluster(tmp_path, partitions=6, balance=manual) as t:
        await eventually(lambda: led_counts(t) == {"n1": 2, "n2": 2, "n3": 2})
        await t.kill("n3")
        await eventually(lambda: led_counts(t) == {"n1": 3, "n2": 3})
        again = await t.open("n3", balance=manual)
        asker = again.leader_balance
        await eventually(lambda: again.controller.controller == "n1")
        async with asyncio.timeout(PATIENCE_S):
            while len((status := await asker.status())["plan"]) < 2:
                await asyncio.sleep(0.01)
        assert status["controller"] == "n1"
        assert (status["state"], status["imbalance"], status["run"]) == ("uneven", 3, None)
        assert {move["to"] for move in status["plan"]} == {"n3"}
        status = await asker.balance("ann@ops")
        async with asyncio.timeout(PATIENCE_S):
            while not status["run"]["outcome"]:
                await asyncio.sleep(0.01)
                status = await asker.status()
        assert (status["run"]["by"], status["run"]["outcome"], status["run"]["done"]) == ("ann@ops", "balanced", 2)
        assert status["leaders"] == {"n1": 2, "n2": 2, "n3": 2}
        with pytest.raises(NotReady, match="does not control"):
            await asker.answer("n2", b"")
