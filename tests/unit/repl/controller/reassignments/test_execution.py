"""The controller carries out orders, a few moves at a time, and the next controller completes them."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import replace

import pytest

from isthmus.config.dynamic_options import MIN_ISR, MOVES_AT_ONCE
from isthmus.repl.controller import controller, reassigner
from isthmus.repl.controller.bucket_types import DefaultType
from isthmus.repl.controller.dynamic_options import OPTIONS_PATH, change_option
from isthmus.repl.controller.leader_balancer import BalanceOptions
from isthmus.repl.controller.placement import BadReplicaMap
from isthmus.repl.controller.reassignment_orders import ORDERS_PATH, Placement, change_placement, encode_placement
from isthmus.repl.controller.reassignment_progress import ReassignmentKind
from isthmus.repl.controller.reassignments import ReassignmentRequest, cancel, planned, submit, undrain
from isthmus.repl.controller.stored_setting import Setting
from isthmus.repl.metastore.port import VersionConflict, Versioned
from isthmus.repl.model.record import Incarnation, Member, PartitionRecord
from tests.support.controller_cluster import Cluster, eventually, running
from tests.support.memory_metastore import WriteFault

pytestmark = pytest.mark.virtual_time

SIX = DefaultType(partition_count=6, factor=3, min_isr=2, settle_ms=0)


def changing(cluster: Cluster) -> list[PartitionRecord]:
    """The records that are changing, as the controller has read them."""
    return [record for record in cluster.records.values() if record.adding or record.removing]


async def finish_move(cluster: Cluster, record: PartitionRecord) -> None:
    """Acts as a leader after its live newcomers have caught up; one of the staying replicas leads afterwards."""
    if record.leader is None or not {*record.adding} <= {node.name for node in cluster.living}:
        return
    leads = record.leader.node if record.leader.node in record.staying else record.staying[0]
    done = replace(
        record,
        replicas=record.staying,
        adding=(),
        before=(),
        removing=(),
        isr=frozenset(Member(node, 50 + int(node[1:])) for node in record.staying),
        leader=Incarnation(leads, cluster.nodes[leads].session_id),
    )
    with suppress(VersionConflict):
        await cluster.living[0].metastore.write_record(done)


async def end_all(cluster: Cluster, most: int = 99) -> int:
    """Completes all changes, one after the other; returns the maximal number in progress at once."""
    seen = 0
    async with asyncio.timeout(15):
        while cluster.living[0].controller.placement.orders:
            found = changing(cluster)
            seen = max(seen, len(found))
            assert len(found) <= most
            for record in found:
                await finish_move(cluster, record)
            await asyncio.sleep(0.002)
    return seen


@pytest.fixture(autouse=True)
def _without_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Polling is too slow to matter: every effect follows from an event."""
    monkeypatch.setattr(controller, "POLL_MS", 60_000)


async def test_no_more_partitions_change_at_a_time_than_the_option_allows() -> None:
    """Two at a time of six; the order ends in the history with all of them."""

    async with running(SIX, 1, 2, 3) as cluster:
        await eventually(cluster.online)
        metastore = cluster.living[0].metastore
        await change_option(metastore, MOVES_AT_ONCE, None, Setting(2, "ann", 1))
        await cluster.add(4)
        await eventually(lambda: cluster.living[0].controller.options.number(MOVES_AT_ONCE) == 2)
        plan, number = await submit(
            metastore, ReassignmentRequest(ReassignmentKind.REPLACE, nodes=("n3", "n4")), None, "ann", 5
        )
        assert (len(plan.moves), number) == (6, 1)
        await eventually(lambda: changing(cluster))
        assert await end_all(cluster, most=2) == 2
        (ended,) = cluster.living[0].controller.placement.ended
        assert (ended.outcome, ended.moved, ended.partition_count, ended.by) == ("done", 6, 6, "ann")
        assert all(set(r.replicas) == {"n1", "n2", "n4"} for r in cluster.records.values())


@pytest.mark.parametrize("by_file", [False, True], ids=["factor", "file"])
@pytest.mark.parametrize(
    ("before", "after", "of_cluster", "of_type", "number", "what"),
    [
        (3, 2, None, None, 1, "An acknowledged write may be on one disk alone"),
        (2, 3, None, None, 2, f"({MIN_ISR} is not set: one less than there are replicas, 1 at least)"),
        (1, 3, None, None, 2, f"({MIN_ISR} is not set: one less than there are replicas, 1 at least)"),
        (2, 1, None, None, 1, "partitions would have one replica"),
        (3, 2, 2, None, 2, "That is all replicas: while one of them is away, writes are refused"),
        (3, 2, 3, None, 2, f"({MIN_ISR} is set to 3 for the cluster)"),
        (2, 3, 3, 1, 1, "An acknowledged write may be on one disk alone"),
        (2, 3, 1, 3, 3, f"({MIN_ISR} is set to 3 for this bucket type)"),
    ],
)
async def test_the_min_isr_that_a_plan_announces_is_the_one_that_comes_to_be(
    before: int, after: int, of_cluster: int | None, of_type: int | None, number: int, what: str, *, by_file: bool
) -> None:
    """The note of the plan has the min-ISR of the records after the order, and explains it, whether the number of
    replicas rises or falls, by the factor or by a file, with the option set or not."""

    async with running(DefaultType(partition_count=2, factor=before, settle_ms=0), 1, 2, 3) as cluster:
        await eventually(cluster.online)
        metastore = cluster.living[0].metastore
        for bucket_type, value in ((None, of_cluster), ("default", of_type)):
            if value is not None:
                await change_option(metastore, MIN_ISR, bucket_type, Setting(value, "ann", 1))
        expected = {(after, number)}
        wish = ReassignmentRequest(ReassignmentKind.FACTOR, "default", after)
        if by_file:
            places = [(*r.replicas, *({*cluster.nodes} - {*r.replicas}))[:after] for r in cluster.records.values()]
            wish = ReassignmentRequest(ReassignmentKind.FILE, "default", places=tuple(places))
        plan, _ = await submit(metastore, wish, None, "ann", 5)
        notes = [note for note in plan.notes if "min-ISR" in note]
        assert len(notes) == 1, plan.notes
        where = f"bucket type default, {before} to {after} replica{'s' * (after > 1)}: min-ISR is {number} then"
        assert notes[0].startswith(where)
        assert what in " ".join(plan.notes)
        await eventually(lambda: changing(cluster))
        await end_all(cluster)
        await eventually(lambda: {(len(r.replicas), r.effective_min_isr) for r in cluster.records.values()} == expected)


async def test_a_plan_notes_an_unknown_min_isr_only_if_replica_counts_change() -> None:
    """The plan does not guess from a damaged document of options; an order that only moves replicas has no such
    note."""

    async with running(DefaultType(partition_count=2, factor=2, settle_ms=100), 1, 2, 3) as cluster:
        await eventually(cluster.online)
        metastore = cluster.living[0].metastore
        moved = await planned(metastore, ReassignmentRequest(ReassignmentKind.DRAIN, nodes=("n3",)))
        assert moved.moves
        assert not any("min-ISR" in note for note in moved.notes)
        await metastore.put(OPTIONS_PATH, b"damaged", None)
        changed = await planned(metastore, ReassignmentRequest(ReassignmentKind.FACTOR, "default", 3))
        assert any("min-ISR is not known, since the options" in note for note in changed.notes)


async def test_the_node_that_decides_shows_moves_in_its_metrics() -> None:
    """While an order is open its partitions are counted by stage, only by the controller; afterwards the finished order
    is counted."""

    async with running(SIX, 1, 2, 3) as cluster:
        await eventually(cluster.online)
        metastore = cluster.living[0].metastore
        await cluster.add(4)
        (name,) = cluster.decides()
        samples = cluster.nodes[name].controller.moving.samples

        def shown() -> dict[tuple[str, ...], float]:
            return {(metric, *labels.values()): value for metric, labels, value in samples()}

        await submit(metastore, ReassignmentRequest(ReassignmentKind.REPLACE, nodes=("n3", "n4")), None, "ann", 5)
        await eventually(lambda: shown().get(("isthmus_moves", "copying")) == 4)
        assert shown()["isthmus_moves", "waiting"] == 2
        assert shown()["isthmus_move_orders",] == 1
        assert not [s for n in cluster.living if n.name != name for s in n.controller.moving.samples()]
        await end_all(cluster)
        await eventually(lambda: shown()["isthmus_move_orders",] == 0)
        assert shown()["isthmus_move_orders_ended_total", "done"] == 1
        assert not any(value for (metric, *_), value in shown().items() if metric == "isthmus_moves")


async def test_an_order_outlives_the_node_that_carried_it_out() -> None:
    """The controller dies in the middle: the next one begins the remaining moves, and none is begun twice."""

    async with running(SIX, 1, 2, 3) as cluster:
        await eventually(cluster.online)
        await cluster.add(4)
        (name,) = cluster.decides()
        first = cluster.nodes[name]
        await submit(first.metastore, ReassignmentRequest(ReassignmentKind.REPLACE, nodes=(name, "n4")), None, "ann", 5)
        await eventually(lambda: len(changing(cluster)) == 4)
        await first.die()
        await eventually(lambda: cluster.decides() and cluster.online())
        await end_all(cluster)
        assert all(name not in r.replicas and len(r.replicas) == 3 for r in cluster.records.values())


async def test_a_move_whose_beginning_comes_late_does_not_begin_once_its_order_is_cancelled() -> None:
    """The write that begins the move arrives after its order went to the history as cancelled: otherwise the change
    would be made without an order (R-ORDER)."""

    async with running(DefaultType(partition_count=1, factor=3, min_isr=2, settle_ms=0), 1, 2, 3) as cluster:
        await eventually(cluster.online)
        await cluster.add(4)
        (name,) = cluster.decides()
        decides, other = cluster.nodes[name], next(node for node in cluster.living if node.name != name)
        decides.metastore.spoil(WriteFault.LATE)
        _, number = await submit(
            other.metastore, ReassignmentRequest(ReassignmentKind.REPLACE, nodes=("n3", "n4")), None, "ann", 5
        )
        await eventually(lambda: not decides.metastore._memory.faults)
        await cancel(other.metastore, number, "ann")
        await eventually(lambda: decides.controller.placement.ended)
        assert decides.controller.placement.ended[0].outcome == "cancelled"
        decides.metastore.deliver_late()
        assert not any(r.adding or r.removing for r in (await other.metastore.records()).values())


async def test_nothing_is_begun_by_orders_that_cannot_be_read_any_more() -> None:
    """Values read before may be outdated; the document is read again from time to time, and then the order
    continues."""

    async with running(SIX, 1, 2, 3) as cluster:
        await eventually(cluster.online)
        one = cluster.nodes["n1"].metastore
        await change_option(one, MOVES_AT_ONCE, None, Setting(1, "ann", 1))
        await cluster.add(4)
        await eventually(lambda: all(n.controller.options.number(MOVES_AT_ONCE) == 1 for n in cluster.living))
        await submit(one, ReassignmentRequest(ReassignmentKind.REPLACE, nodes=("n3", "n4")), None, "ann", 5)
        await eventually(lambda: len(changing(cluster)) == 1)
        (name,) = cluster.decides()
        found, decides = await one.get(ORDERS_PATH), cluster.nodes[name].metastore
        assert found is not None
        version = await one.put(ORDERS_PATH, b'{"v":2}', found.version)
        get, reads = decides.get, []

        async def counted(path: str) -> Versioned | None:
            reads.append(path)
            return await get(path)

        decides.get = counted  # type: ignore[method-assign]
        await finish_move(cluster, changing(cluster)[0])
        await eventually(lambda: not changing(cluster))
        await asyncio.sleep(0.3)
        assert not changing(cluster)
        assert reads.count(ORDERS_PATH) <= 3
        await one.put(ORDERS_PATH, found.value, version)
        await end_all(cluster)
        assert all(set(r.replicas) == {"n1", "n2", "n4"} for r in cluster.records.values())


async def test_a_node_that_stays_away_gets_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A dead newcomer is waited for, then another node is chosen for its replicas."""
    monkeypatch.setattr(reassigner, "REPLAN_MS", 100)

    async with running(SIX, 1, 2, 3) as cluster:
        await eventually(cluster.online)
        await cluster.add(4, 5)
        one = cluster.nodes["n1"]
        await eventually(lambda: len(one.controller.registrations) == 5)
        plan, _ = await submit(
            one.metastore, ReassignmentRequest(ReassignmentKind.FACTOR, "default", 4), None, "ann", 5
        )
        assert {node for move in plan.moves for node in move.adds} == {"n4", "n5"}
        await eventually(lambda: changing(cluster))
        await cluster.nodes["n5"].die()
        await eventually(
            lambda: all("n5" not in move.after for order in one.controller.placement.orders for move in order.moves)
        )
        await end_all(cluster)
        assert all(set(r.replicas) == {"n1", "n2", "n3", "n4"} for r in cluster.records.values())


async def test_a_drained_node_is_led_from_elsewhere_and_gets_no_new_bucket_type() -> None:
    """Its leaderships are handed over although its replicas cannot be moved yet; after the drain is undone it gets its
    share again."""
    balance = BalanceOptions(delay_ms=0, moves=4, cool_down_ms=0, timeout_ms=1_000)

    async with running(SIX, 1, 2, 3, balance=balance) as cluster:
        await eventually(lambda: cluster.online() and cluster.leads()["n2"] == 2)
        one = cluster.nodes["n1"]
        await change_placement(one.metastore, lambda p: p.with_drained(["n2"], "ann", 1))
        await eventually(lambda: cluster.online() and cluster.leads()["n2"] == 0)
        await eventually(lambda: sorted(cluster.leads().values()) == [3, 3] or cluster.leads()["n1"] == 3)
        with pytest.raises(BadReplicaMap, match="node id 2, which no live node has"):
            await one.controller.assign("notes", ((1, 2), (2, 3)), validate_only=True)
        await undrain(one.metastore, ["n2"], "ann")
        await eventually(lambda: cluster.online() and cluster.leads()["n2"] == 2)


async def test_a_node_that_never_could_read_what_is_drained_moves_no_leadership() -> None:
    """As the controller, it does not take an unreadable document for an empty list of drained nodes."""
    balance = BalanceOptions(delay_ms=0, moves=4, cool_down_ms=0, timeout_ms=1_000)

    async with running(SIX, 1, 2, 3, balance=balance) as cluster:
        await eventually(lambda: cluster.online() and cluster.leads()["n2"] == 2)
        metastore = cluster.nodes["n1"].metastore
        await change_placement(metastore, lambda p: p.with_drained(["n2"], "ann", 1))
        await eventually(lambda: cluster.online() and sorted(cluster.leads().values()) == [3, 3])
        found = await metastore.get(ORDERS_PATH)
        assert found is not None
        version = await metastore.put(ORDERS_PATH, b'{"v":2}', found.version)
        (late,) = await cluster.add(4)
        for node in cluster.living[:3]:
            await node.controller.resign()
        await eventually(lambda: late.controller.decides)
        await asyncio.sleep(0.2)
        assert cluster.leads()["n2"] == 0
        await late.metastore.put(ORDERS_PATH, encode_placement(Placement()), version)
        await eventually(lambda: cluster.online() and cluster.leads()["n2"] == 2)
