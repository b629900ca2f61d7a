"""The controller spreads leaderships evenly: when it starts, how many it moves at once, and when it stops."""

from __future__ import annotations

import asyncio
import re
import struct
from collections import Counter
from dataclasses import replace

import msgpack
import pytest

from isthmus.repl.controller import controller
from isthmus.repl.controller.bucket_types import BucketTypeSpec, DefaultType, create_bucket_type
from isthmus.repl.controller.leader_balancer import REST_MAX_MS, REST_MIN_MS, BalanceOptions, LeaderBalancer
from isthmus.repl.controller.node_loads import METHOD as LOADS
from isthmus.repl.metastore.port import VersionConflict
from isthmus.repl.model.errors import NotReady
from isthmus.repl.model.record import Incarnation, Member, PartitionRecord, PartitionStatus
from tests.support.controller_cluster import Cluster, FakeNode, eventually, running
from tests.support.replica_builders import registered

pytestmark = pytest.mark.virtual_time

TWELVE = DefaultType(partition_count=12, factor=3, min_isr=2, settle_ms=0)
QUICK = BalanceOptions(delay_ms=30, moves=4, cool_down_ms=0, timeout_ms=1_000)
OFF = QUICK._replace(automatic=False)


@pytest.fixture(autouse=True)
def _without_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Polling is too slow to matter: every effect follows from an event."""
    monkeypatch.setattr(controller, "POLL_MS", 60_000)


def balancing_of(cluster: Cluster) -> LeaderBalancer:
    """The balancer of the controller."""
    (name,) = cluster.decides()
    return cluster.nodes[name].balancer


def now_ms(cluster: Cluster) -> int:
    return cluster.living[0].controller._time.now_ms()


def even(cluster: Cluster, *nodes: str) -> bool:
    """True if all partitions are online and these nodes lead equally many, with a difference of at most one."""
    counts = [cluster.leads()[node] for node in nodes]
    return cluster.online() and sum(counts) == 12 and max(counts) - min(counts) <= 1


def sees_imbalance(cluster: Cluster) -> bool:
    """True if all partitions are online and the controller has seen the imbalance."""
    return cluster.online() and len(balancing_of(cluster).status(now_ms(cluster))["plan"]) == 4


async def in_sync_again(node: FakeNode) -> None:
    """Acts as leaders after a follower has caught up: takes it into the ISR."""
    async with asyncio.timeout(10):
        for partition in sorted(await node.metastore.records()):
            while True:
                record = (await node.metastore.records())[partition]
                member = Member(node.name, 50 + node.number)
                try:
                    await node.metastore.write_record(replace(record, isr=record.isr | {member}))
                except VersionConflict:
                    continue
                break


async def come_back(cluster: Cluster, number: int) -> FakeNode:
    """Kills a node, waits until others lead, and starts it again, in sync."""
    await eventually(cluster.online)
    await cluster.nodes[f"n{number}"].die()
    await eventually(lambda: cluster.online() and not cluster.leads()[f"n{number}"])
    (again,) = await cluster.add(number)
    await in_sync_again(again)
    return again


async def test_leaderships_return_to_a_node_that_came_back() -> None:
    """The numbers are 4/4/4, then 6/6 without the third node, and 4/4/4 again, with two moves from each of the others
    and no further move."""

    async with running(TWELVE, 1, 2, 3, balance=QUICK) as cluster:
        await eventually(lambda: even(cluster, "n1", "n2", "n3"))
        assert not any(node.handed_over for node in cluster.living)
        await come_back(cluster, 3)
        await eventually(lambda: even(cluster, "n1", "n2", "n3"))
        moved = [target for node in cluster.living for _, target in node.handed_over]
        assert moved == ["n3"] * 4
        balancing = balancing_of(cluster)
        await eventually(lambda: balancing.run is not None and balancing.run.outcome == "balanced")
        samples = {(name, labels.get("outcome", "")): value for name, labels, value in balancing.samples()}
        assert samples["isthmus_leader_moves_total", "done"] == 4
        assert samples["isthmus_leader_imbalance", ""] == 0


async def test_leaderships_are_balanced_for_each_bucket_type() -> None:
    """Three partitions of one bucket type are led by two nodes, and three of another so that all nodes lead two: each
    type is spread by itself, and the status and the metrics show both."""

    six = DefaultType(partition_count=3, factor=3, min_isr=2, settle_ms=0)
    async with running(six, 1, 2, 3, balance=OFF) as cluster:
        await eventually(cluster.online)
        one = cluster.living[0]
        await create_bucket_type(one.metastore, BucketTypeSpec("notes", 3, 3), dry_run=False)
        await eventually(lambda: cluster.online() and len(one.controller.records) == 6)
        led = dict(zip(sorted(one.controller.records), ("n1", "n1", "n2", "n3", "n3", "n2"), strict=True))
        for partition, record in (await one.metastore.records()).items():
            leader = Incarnation(led[partition], cluster.nodes[led[partition]].session_id)
            await one.metastore.write_record(replace(record, leader=leader, epoch=record.epoch + 1))
        balancing = balancing_of(cluster)
        skew = {"imbalance": 2, "leaders": {"n1": 2, "n2": 1, "n3": 0}}
        await eventually(lambda: balancing.status(now_ms(cluster))["bucket_types"]["default"] == skew)
        assert balancing.status(now_ms(cluster))["imbalance"] == 0
        assert [
            (labels["bucket_type"], value)
            for name, labels, value in balancing.samples()
            if name == "isthmus_leader_type_imbalance" and labels["bucket_type"] == "notes"
        ] == [("notes", 2)]
        balancing.begin("ann")
        await eventually(lambda: balancing.status(now_ms(cluster))["state"] == "balanced")
        after = balancing.status(now_ms(cluster))
        assert [each["imbalance"] for each in after["bucket_types"].values()] == [0, 0]
        assert after["imbalance"] == 0


async def test_the_balancer_is_idle_once_leaderships_are_even() -> None:
    """I-BAL-QUIET: without a change of membership, nothing is moved in many passes."""

    async with running(TWELVE, 1, 2, 3, balance=QUICK._replace(delay_ms=0)) as cluster:
        await come_back(cluster, 2)
        await eventually(lambda: even(cluster, "n1", "n2", "n3"))
        before = [list(node.handed_over) for node in cluster.living]
        for _ in range(50):
            cluster.nodes[cluster.decides()[0]].controller.wake()
            await asyncio.sleep(0.004)
        assert [node.handed_over for node in cluster.living] == before


async def test_leaders_are_even_over_those_that_live() -> None:
    """With one of three nodes dead for good the other two lead six partitions each, whichever were elected at first."""

    async with running(TWELVE, 1, 2, 3, balance=QUICK) as cluster:
        await eventually(cluster.online)
        await cluster.nodes["n3"].die()
        await eventually(lambda: cluster.online() and even(cluster, "n1", "n2"))
        crowded = cluster.nodes["n1"]
        for partition, record in sorted((await crowded.metastore.records()).items()):
            if record.leader is not None and record.leader.node == "n2" and partition % 2:
                gone = replace(record, status=PartitionStatus.ELECTION, leader=None, preferred="n1")
                await crowded.metastore.write_record(gone)
        await eventually(lambda: cluster.online() and even(cluster, "n1", "n2"))
        assert cluster.leads()["n3"] == 0


async def test_few_move_at_a_time_and_none_while_one_is_elected() -> None:
    """I-BAL-SAFE: never more than `moves` hand-overs are in progress, and none begins during an election."""

    most = Counter[str]()
    async with running(TWELVE, 1, 2, 3, balance=OFF._replace(moves=2)) as cluster:
        await come_back(cluster, 1)
        balancing = balancing_of(cluster)
        ask_for = balancing._ask_for

        def asking(move, at_ms):  # type: ignore[no-untyped-def]
            electing = sum(r.status is not PartitionStatus.ONLINE for r in balancing._records.values())
            most["electing"] = max(most["electing"], electing)
            ask_for(move, at_ms)
            most["moving"] = max(most["moving"], len(balancing._moving))

        balancing._ask_for = asking  # type: ignore[method-assign]
        await eventually(lambda: sees_imbalance(cluster))
        balancing.begin("me@here")
        await eventually(lambda: even(cluster, "n1", "n2", "n3"))
        assert most == {"moving": 2, "electing": 0}


async def test_off_means_that_only_operators_move_leaderships() -> None:
    """With `replication.balance = false` leaderships stay uneven, with a reason, until an operator starts the
    balancing, which then runs at once."""

    async with running(TWELVE, 1, 2, 3, balance=OFF._replace(cool_down_ms=60_000)) as cluster:
        await come_back(cluster, 3)
        balancing = balancing_of(cluster)
        await eventually(lambda: sees_imbalance(cluster))
        await asyncio.sleep(0.1)
        status = balancing.status(now_ms(cluster))
        assert "replication.balance is off" in status["reason"]
        assert status["imbalance"] >= 2
        assert {move["to"] for move in status["plan"]} == {"n3"}
        assert status["run"] is None
        balancing.begin("me@here")
        status = balancing.status(now_ms(cluster))
        assert (status["state"], status["reason"]) == ("leadership-balancing", "0 done, 0 under way, 4 to go")
        async with asyncio.timeout(10):
            while not balancing._moving:  # for a few turns of the loop
                await asyncio.sleep(0)
        assert balancing.status(now_ms(cluster))["reason"] == "0 done, 4 under way, 0 to go"
        await eventually(lambda: even(cluster, "n1", "n2", "n3"))
        await eventually(lambda: balancing.run is not None and balancing.run.outcome == "balanced")
        run = balancing.status(now_ms(cluster))["run"]
        assert (run["by"], run["done"], run["failed"]) == ("me@here", 4, 0)
        assert [move["state"] for move in run["moves"]] == ["done"] * 4


async def test_a_partition_with_a_new_leader_stays_for_a_while() -> None:
    """H46: a newly elected leader is not moved automatically before its cool-down; leaderships that are older are moved
    at once."""

    async with running(TWELVE, 1, 2, 3, balance=QUICK._replace(cool_down_ms=60_000)) as cluster:
        await eventually(lambda: even(cluster, "n1", "n2", "n3"))
        epochs = {partition: record.epoch for partition, record in cluster.records.items()}
        await come_back(cluster, 1)
        elected = {p for p, record in cluster.records.items() if record.epoch > epochs[p]}
        await eventually(lambda: even(cluster, "n1", "n2", "n3"))
        moved = {partition for node in cluster.living for partition, _ in node.handed_over}
        assert len(moved) == 4
        assert not moved & elected


async def test_nothing_moves_by_itself_when_all_have_new_leaders() -> None:
    """H46: a controller that has just seen every partition elected leaves them uneven until the cool-down is over."""

    async with running(TWELVE, 1, 2, 3, balance=QUICK._replace(cool_down_ms=60_000)) as cluster:
        await come_back(cluster, 3)
        balancing = balancing_of(cluster)
        await eventually(lambda: "got their leaders just now" in balancing.reason)
        assert sees_imbalance(cluster)
        assert not any(node.handed_over for node in cluster.living)
        assert balancing.run is None


async def test_a_refused_move_is_not_tried_again_at_once() -> None:
    """A leader that refuses costs one try; others are moved instead, and the run reports why it ended short."""

    async with running(TWELVE, 1, 2, 3, balance=OFF._replace(cool_down_ms=60_000)) as cluster:
        await come_back(cluster, 3)
        await eventually(lambda: sees_imbalance(cluster))
        cluster.nodes["n1"].unwilling = True
        balancing = balancing_of(cluster)
        balancing.begin("me@here")
        await eventually(lambda: balancing.run is not None and balancing.run.outcome != "")
        run = balancing.run
        assert run is not None
        assert {move.source for move, why in run.ended if why} == {"n1"}
        assert {why for _, why in run.ended if why} == {"it will not"}
        tried = Counter(move for move, _ in run.ended)
        assert max(tried.values()) == 1
        assert run.outcome != "balanced"


async def test_nothing_begins_during_an_election_or_a_leave() -> None:
    """A manual run is refused with the obstacle; automatic balancing waits until it is over."""

    async with running(TWELVE, 1, 2, 3, balance=QUICK) as cluster:
        await eventually(cluster.online)
        balancing = balancing_of(cluster)
        await cluster.nodes["n2"].register(active=False)
        await eventually(lambda: "leaving" in balancing.reason)
        with pytest.raises(NotReady, match="n2 is leaving"):
            balancing.begin("me@here")


async def test_a_new_controller_plans_again() -> None:
    """The controller dies amid the moves: another one detects the imbalance and completes it."""

    async with running(TWELVE, 1, 2, 3, balance=QUICK._replace(moves=1)) as cluster:
        await come_back(cluster, 3)
        await eventually(lambda: any(node.handed_over for node in cluster.living))
        first = cluster.nodes[cluster.decides()[0]]
        await first.die()
        rest = [node.name for node in cluster.living]
        await eventually(lambda: len(cluster.decides()) == 1 and even(cluster, *rest))


class Look:
    """A balancer alone, given records as the controller reads them."""

    def __init__(self, options: BalanceOptions = QUICK) -> None:
        self.asked: list[tuple[int, str]] = []
        self.drained: frozenset[str] = frozenset()
        self.balancer = LeaderBalancer(
            node="n9",
            links=self,
            own=self,
            options=options,
            wake=lambda: None,  # type: ignore[arg-type]
        )
        nodes = ("n1", "n2", "n3")
        self.registrations = {node: registered(node, at, at) for at, node in enumerate(nodes, 1)}
        self.members = frozenset(Member(node, at) for at, node in enumerate(nodes, 1))
        base = PartitionRecord(0, "default", 0, 6, nodes, epoch=3, isr=self.members, min_isr=2, version=3)
        online = replace(base, status=PartitionStatus.ONLINE)
        self.records = {
            p: replace(online, partition=p, index=p, leader=self.leader(("n1", "n2")[p % 2])) for p in range(6)
        }

    def leader(self, node: str) -> Incarnation:
        """The session of a node."""
        return Incarnation(node, self.registrations[node].session_id)

    async def request(self, node: str, method: str, body: bytes, timeout_ms: int) -> bytes:
        """See RequestLinks: begins every hand-over; no node is busy."""
        if method == LOADS:
            return struct.pack("<d", 0.0)
        partition, _epoch, target, _timeout_ms = msgpack.unpackb(body)
        self.asked.append((partition, target))
        return b""

    async def until(self, now_ms: int, to_ms: int) -> int:
        """Look each 100 ms of a pretended clock; returns when it asked for a hand-over first, 0 if never."""
        while now_ms < to_ms:
            self.balancer.look(self.records, self.registrations, now_ms, busy=False, drained=self.drained)
            await asyncio.sleep(0.001)
            if self.asked:
                return now_ms
            now_ms += 100
        return 0

    def give_way(self, now_ms: int) -> None:
        """n3 gives way with two partitions, which the controller is deciding upon."""
        led = self.records
        record = replace(
            led[0],
            status=PartitionStatus.ELECTION,
            leader=None,
            isr=frozenset(),
            elr=self.members,
            tried=frozenset({"n3"}),
            preferred="n1",
            reason="n3 gives way to n1: it reaches none of its followers",
        )
        self.records = {**led, 0: record, 2: replace(record, partition=2, index=2)}
        self.balancer.look(self.records, self.registrations, now_ms, busy=True)
        self.records = led


async def test_a_node_that_gave_way_is_given_no_leadership_for_a_while() -> None:
    """It leads nothing, and the others could give it two partitions: it is left out for a minute, and the reason and
    its end are shown; then it is asked for again (R-REACHED)."""
    look = Look()
    assert await look.until(0, 5_000) > 0
    look = Look()
    look.give_way(1_000)
    assert await look.until(1_000, 61_000) == 0
    status = look.balancer.status(60_900)
    assert status["state"] == "uneven"
    assert re.search("n3 gave way as a leader, and is given none for another [0-9]+ s", status["reason"])
    assert await look.until(61_000, 66_000) >= 61_000
    assert {target for _, target in look.asked} == {"n3"}


async def test_each_further_time_the_rest_is_twice_as_long_up_to_a_limit() -> None:
    """A node that gives way with several partitions at once rests once; one that did well for long begins anew."""
    look = Look()
    at_ms, length_ms = 1_000, REST_MIN_MS
    for _ in range(8):
        look.give_way(at_ms)
        look.give_way(at_ms + 10)
        assert look.balancer._resting(at_ms + length_ms - 1) == {"n3": at_ms + length_ms}
        assert look.balancer._resting(at_ms + length_ms) == {}
        at_ms += length_ms
        length_ms = min(REST_MAX_MS, 2 * length_ms)
    assert length_ms == REST_MAX_MS
    at_ms += 2 * REST_MAX_MS
    look.balancer.look(look.records, look.registrations, at_ms, busy=True)
    look.give_way(at_ms)
    assert look.balancer._resting(at_ms) == {"n3": at_ms + REST_MIN_MS}


BY_LOAD = QUICK._replace(by_load=True)


def leads_alone(cluster: Cluster) -> str:
    """The node that leads all twelve partitions; "" if several lead."""
    leads = +cluster.leads()
    return next(iter(leads)) if cluster.online() and len(leads) == 1 and sum(leads.values()) == 12 else ""


async def test_leaders_gather_on_one_node_while_the_load_is_low_and_spread_as_it_grows() -> None:
    """Eight of twelve leaderships move to a node that leads four; the status says why; once its loop is busy all three
    lead four each. A node that is killed and comes back meanwhile moves none."""

    async with running(TWELVE, 1, 2, 3, balance=BY_LOAD) as cluster:
        await eventually(lambda: even(cluster, "n1", "n2", "n3"))
        await eventually(lambda: leads_alone(cluster), timeout_s=60)
        assert sum(len(node.handed_over) for node in cluster.living) == 8
        balancing = balancing_of(cluster)
        await eventually(lambda: balancing.status(now_ms(cluster))["state"] == "balanced")
        status = balancing.status(now_ms(cluster))
        assert status["goal"] == {
            "by_load": True,
            "nodes": 1,
            "reason": "all nodes together were busy for 0% of a core",
            "busy": {"n1": 0.0, "n2": 0.0, "n3": 0.0},
        }
        assert sorted(status["leaders"].values()) == [0, 0, 12]
        assert status["imbalance"] == 0
        leader = cluster.nodes[leads_alone(cluster)]
        leader.busy = 0.8
        await eventually(lambda: even(cluster, "n1", "n2", "n3"), timeout_s=60)
        goal = balancing_of(cluster).status(now_ms(cluster))["goal"]
        assert (goal["nodes"], goal["reason"]) == (3, f"{leader.name} was busy for 80% of a core")


async def test_a_gathered_leader_that_dies_is_followed_by_another_one() -> None:
    """All partitions get leaders, which gather again; when the node is back, nothing moves."""

    async with running(TWELVE, 1, 2, 3, balance=BY_LOAD) as cluster:
        await eventually(lambda: leads_alone(cluster), timeout_s=60)
        first = leads_alone(cluster)
        again = await come_back(cluster, int(first[1:]))
        await eventually(lambda: leads_alone(cluster) and leads_alone(cluster) != first, timeout_s=60)
        await asyncio.sleep(120)
        assert leads_alone(cluster) not in ("", again.name)
        assert again.handed_over == []


@pytest.mark.parametrize("drained", [{"n1"}, {"n1", "n2"}])
async def test_a_new_controller_moves_leaders_off_drained_nodes(drained: set[str]) -> None:
    """It finds all leaders on them, and one or two nodes that may lead."""
    look = Look(BY_LOAD)
    look.drained = frozenset(drained)
    look.records = {p: replace(record, leader=look.leader("n1")) for p, record in look.records.items()}
    assert await look.until(0, 10_000) > 0
    assert not {target for _, target in look.asked} & drained


async def test_leaders_that_were_gathered_are_not_uneven_to_a_new_controller() -> None:
    """Before it knows the loads it plans no move, also for an operator, and says why."""
    look = Look(BY_LOAD)
    look.records = {p: replace(record, leader=look.leader("n1")) for p, record in look.records.items()}
    look.balancer.look(look.records, look.registrations, 0, busy=False)
    status = look.balancer.status(0)
    assert (status["state"], status["plan"], status["imbalance"]) == ("balanced", [], 0)
    assert (status["goal"]["nodes"], status["goal"]["reason"]) == (1, "the loads of all nodes are not known yet")
    look.balancer.begin("ann")
    assert await look.until(0, 5_000) == 0


async def test_refused_moves_turn_the_gathering_to_no_other_node() -> None:
    """A node that does not hand over keeps what it leads; the others' leaderships go where they began to go, once."""

    async with running(TWELVE, 1, 2, 3, balance=BY_LOAD._replace(cool_down_ms=60_000)) as cluster:
        await eventually(lambda: even(cluster, "n1", "n2", "n3"))
        cluster.nodes["n2"].unwilling = True
        await asyncio.sleep(600)
        assert {node.name: len(node.handed_over) for node in cluster.living} == {"n1": 0, "n2": 0, "n3": 4}
        cluster.nodes["n2"].unwilling = False
        await eventually(lambda: leads_alone(cluster) == "n1", timeout_s=4_000)
        assert cluster.nodes["n1"].handed_over == []


async def test_leaders_stay_even_beside_a_node_of_an_earlier_version() -> None:
    """It tells no load, so that it may be busy; the reason names it."""

    async with running(TWELVE, 1, 2, 3, balance=BY_LOAD) as cluster:
        await eventually(lambda: even(cluster, "n1", "n2", "n3"))
        (controller,) = cluster.decides()
        earlier = next(node for node in cluster.living if node.name != controller)
        earlier.earlier = True
        balancing_of(cluster)._loads.forget()
        await asyncio.sleep(120)
        assert even(cluster, "n1", "n2", "n3")
        goal = balancing_of(cluster).status(now_ms(cluster))["goal"]
        assert (goal["nodes"], goal["reason"]) == (3, f"the load of {earlier.name} is not known")
        assert goal["busy"][earlier.name] is None
