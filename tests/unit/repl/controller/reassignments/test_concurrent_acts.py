"""Operators' orders about placements and options, with lost answers and concurrent commands (R-ORDER)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from isthmus.config.dynamic_options import MIN_ISR
from isthmus.repl.controller.bucket_types import BucketTypeSpec, create_bucket_type
from isthmus.repl.controller.dynamic_options import OPTIONS_PATH, change_option
from isthmus.repl.controller.reassignment_orders import (
    ORDERS_PATH,
    FinishedOrder,
    Placement,
    change_placement,
    read_placement,
)
from isthmus.repl.controller.reassignment_plan import ReplicaMove
from isthmus.repl.controller.reassignment_progress import ReassignmentKind
from isthmus.repl.controller.reassignments import (
    Changed,
    ReassignmentRequest,
    StillNeeded,
    cancel,
    remove_node,
    submit,
    undrain,
)
from isthmus.repl.controller.stored_setting import Setting
from isthmus.repl.metastore.liveness import IDS_PATH
from isthmus.repl.metastore.port import Metastore, Unavailable, Versioned
from isthmus.repl.model.errors import NotReady, OutcomeUnknown
from isthmus.repl.model.record import Incarnation, Member, PartitionRecord, PartitionStatus, Registration
from tests.support.memory_metastore import MemoryEnsemble, MemoryMetastore, WriteFault

pytestmark = pytest.mark.virtual_time

Act = Callable[[Metastore], Awaitable[object]]


class RacingMetastore(MemoryMetastore):
    """Before the second and later reads of a document, a concurrent change is made once."""

    def __init__(self, ensemble: MemoryEnsemble) -> None:
        super().__init__(ensemble)
        self.reads: dict[str, int] = {}
        self.meanwhile: dict[tuple[str, int], Callable[[], Awaitable[object]]] = {}

    async def get(self, path: str) -> Versioned | None:
        """See the port."""
        number = self.reads[path] = self.reads.get(path, 0) + 1
        act = self.meanwhile.pop((path, number), None)
        if act is not None:
            await act()
        return await super().get(path)


def registration(node: str) -> Registration:
    """The registration of a node with one number in its name."""
    number = int(node[1:])
    return Registration(node, 0, True, id=number, spare_log_id=number + 50)


def record(partition: int, *replicas: str) -> PartitionRecord:
    """Online, all in sync."""
    return PartitionRecord(
        partition=partition,
        bucket_type="default",
        index=partition,
        partition_count=2,
        replicas=replicas,
        isr=frozenset(Member(node, 9) for node in replicas),
        min_isr=1,
        epoch=1,
        status=PartitionStatus.ONLINE,
        leader=Incarnation(replicas[0], 1),
    )


@asynccontextmanager
async def two_operators(*live: str) -> AsyncIterator[tuple[RacingMetastore, MemoryMetastore]]:
    """An operator's metastore and another one's, with these nodes alive."""
    ensemble = MemoryEnsemble()
    mine, others = RacingMetastore(ensemble), MemoryMetastore(ensemble)
    for metastore in (mine, others):
        await metastore.start(lambda _state: None)
    for node in live:
        await others.register(registration(node))
    yield mine, others
    await mine.stop()
    await others.stop()


def finished_first_order(placement: Placement, outcome: str) -> Placement:
    """Moves the first order to the history, as the controller does."""
    o = placement.orders[0]
    return placement.with_ended(
        FinishedOrder(o.number, o.kind, o.title, o.by, o.at_ms, 9, outcome, 0, len(o.moves)),
    )


async def order(metastore: Metastore, kind: ReassignmentKind = ReassignmentKind.SPREAD) -> None:
    """One more order of one move."""
    moves = [ReplicaMove(0, ("n1",), ("n2",))]
    await change_placement(metastore, lambda p: p.with_order(kind, "t", "ann", p.next_number, moves))


async def test_undraining_is_done_though_its_answer_is_lost() -> None:
    """If our own lost write has undrained a node, the answer is not that it was never drained."""

    async with two_operators() as (mine, others):
        await order(others, ReassignmentKind.DRAIN)
        await change_placement(others, lambda p: p.with_drained(["n1"], "ann", 1))
        mine.meanwhile[ORDERS_PATH, 2] = lambda: change_placement(
            others, lambda p: finished_first_order(p, "cancelled")
        )
        mine.spoil(WriteFault.ANSWER_LOST)
        assert await undrain(mine, ["n1"], "bob") == [1]
        assert not (await read_placement(others)).drained


@pytest.mark.parametrize("fault", [None, WriteFault.ANSWER_LOST])
async def test_undraining_one_node_leaves_the_drain_of_another_as_it_is(fault: WriteFault | None) -> None:
    """They were drained together: the moves of the one are reverted, and those of the other continue; otherwise it
    would stay drained, with replicas that no order moves."""

    async with two_operators() as (mine, others):
        moves = [
            ReplicaMove(0, ("n1", "n4"), ("n3", "n4")),
            ReplicaMove(1, ("n2", "n4"), ("n3", "n4")),
            ReplicaMove(2, ("n1", "n2"), ("n3", "n4")),
        ]
        await change_placement(others, lambda p: p.with_order(ReassignmentKind.DRAIN, "drain n1, n2", "ann", 5, moves))
        await change_placement(others, lambda p: p.with_drained(["n1", "n2"], "ann", 5))
        mine.spoil(*filter(None, [fault]))
        assert await undrain(mine, ["n1"], "bob") == [2]
        left = await read_placement(others)
        assert left.drained.keys() == {"n2"}
        goes_on, back = left.orders
        assert (goes_on.number, goes_on.cancelled_by, goes_on.moves) == (1, "", (moves[1],))
        assert (back.number, back.cancelled_by, back.moves) == (2, "bob", (moves[0], moves[2]))
        assert (back.title, back.by) == ("drain n1", "ann")
        assert await undrain(mine, ["n2"], "bob") == [1, 2]


async def test_undraining_a_node_cancels_no_drain_of_another_that_it_shares_partitions_with() -> None:
    """It is among the replicas before and after, so no replica is moved off it."""

    async with two_operators() as (mine, others):
        moves = [ReplicaMove(0, ("n1", "n2"), ("n1", "n3"))]
        await change_placement(others, lambda p: p.with_order(ReassignmentKind.DRAIN, "drain n2", "ann", 5, moves))
        await change_placement(others, lambda p: p.with_drained(["n1", "n2"], "ann", 5))
        assert await undrain(mine, ["n1"], "bob") == []
        assert not (await read_placement(others)).orders[0].cancelled_by


async def test_a_cancelled_order_whose_answer_is_lost_is_cancelled_though_it_is_over_by_then() -> None:
    """The outcome is not unknown, and the next order is not cancelled by mistake."""

    async with two_operators() as (mine, others):

        async def goes_on() -> None:
            await change_placement(others, lambda p: finished_first_order(p, "cancelled"))
            await order(others)

        for number in (1, None):
            await order(others) if number else None
            mine.reads.clear()
            mine.meanwhile[ORDERS_PATH, 2] = goes_on
            mine.spoil(WriteFault.ANSWER_LOST)
            found = await cancel(mine, number, "bob")
            assert (found.number, found.cancelled_by) == (number or 2, "bob")
            (left,) = (await read_placement(others)).orders
            assert not left.cancelled_by


async def test_a_node_that_comes_back_while_it_is_removed_stays_drained() -> None:
    """It was not removed, so its record is kept: it gets no replicas and leads nothing, as ordered."""

    async with two_operators() as (mine, others):
        back = MemoryMetastore(others._memory.ensemble)
        await back.start(lambda _state: None)
        await back.register(registration("n3"))
        await back.stop()
        await change_placement(others, lambda p: p.with_drained(["n3"], "ann", 1))

        async def comes() -> None:
            await others.register(replace(registration("n3"), log_ids={4: 60}))

        delete = mine.delete

        async def late(path: str, version: int) -> None:
            await comes()
            await delete(path, version)

        mine.delete = late  # type: ignore[method-assign]
        with pytest.raises(NotReady, match="n3 was not removed"):
            await remove_node(mine, "n3", "bob", dry_run=False)
        assert "n3" in (await read_placement(others)).drained


async def test_a_node_that_registers_during_its_removal_is_reported_as_back() -> None:
    """It has recorded its log ids again by itself, and stays drained."""

    async with two_operators("n1") as (mine, others):
        back = MemoryMetastore(others._memory.ensemble)
        await back.start(lambda _state: None)
        await back.register(registration("n3"))
        await back.stop()
        await change_placement(others, lambda p: p.with_drained(["n3"], "ann", 1))
        delete = mine.delete

        async def then_back(path: str, version: int) -> None:
            await delete(path, version)
            await others.register(registration("n3"))

        mine.delete = then_back  # type: ignore[method-assign]
        with pytest.raises(StillNeeded, match="n3 has just come back"):
            await remove_node(mine, "n3", "bob", dry_run=False)
        assert "n3" in (await read_placement(others)).drained


async def test_a_partly_removed_node_is_not_reported_as_unchanged() -> None:
    """Its registration is deleted, then the metastore is unreachable: the outcome is unknown, and repeating the command
    completes it."""

    async with two_operators() as (mine, others):
        back = MemoryMetastore(others._memory.ensemble)
        await back.start(lambda _state: None)
        await back.register(registration("n3"))
        await back.stop()
        await change_placement(others, lambda p: p.with_drained(["n3"], "ann", 1))
        delete = mine.delete

        async def then_cut(path: str, version: int) -> None:
            await delete(path, version)
            mine.disconnect()

        mine.delete = then_cut  # type: ignore[method-assign]
        with pytest.raises(OutcomeUnknown, match="do it again"):
            await remove_node(mine, "n3", "bob", dry_run=False)
        mine.reconnect()
        mine.delete = delete  # type: ignore[method-assign]
        await remove_node(mine, "n3", "bob", dry_run=False)
        assert not (await read_placement(others)).drained
        assert not await others.children(IDS_PATH)


async def test_an_order_gives_nothing_to_a_node_that_was_drained_since_it_was_planned() -> None:
    """The plan is outdated by then; the operator has to plan again."""

    async with two_operators("n3") as (mine, others):
        await others.create_records([record(0, "n1"), record(1, "n2")])
        mine.meanwhile[ORDERS_PATH, 2] = lambda: change_placement(others, lambda p: p.with_drained(["n3"], "ann", 1))
        with pytest.raises(Changed, match="n3 was drained"):
            await submit(mine, ReassignmentRequest(ReassignmentKind.REPLACE, nodes=("n1", "n3")), None, "bob", 5)
        assert not (await read_placement(others)).orders


async def test_a_node_is_not_drained_by_a_plan_that_does_not_know_what_was_ordered_for_it_meanwhile() -> None:
    """Otherwise it would be drained and still get the replica."""

    async with two_operators("n3") as (mine, others):
        await others.create_records([record(0, "n1"), record(1, "n2")])
        meanwhile = ReassignmentRequest(ReassignmentKind.REPLACE, nodes=("n1", "n3"))
        mine.meanwhile[ORDERS_PATH, 2] = lambda: submit(others, meanwhile, None, "ann", 4)
        with pytest.raises(Changed, match="order 1"):
            await submit(mine, ReassignmentRequest(ReassignmentKind.DRAIN, nodes=("n3",)), None, "bob", 5)
        assert not (await read_placement(others)).drained


@pytest.mark.parametrize("what", ["cancelled", "over", "elsewhere", "done"])
async def test_a_node_is_not_drained_by_a_plan_that_takes_a_move_off_it_for_granted(what: str) -> None:
    """The plan omits a partition that another order moves off the node. If that order is cancelled meanwhile, ends
    without the move, or is redirected to this node, the partition would stay there for good."""

    async with two_operators("n1", "n2", "n3") as (mine, others):
        await others.create_records([record(0, "n3"), record(1, "n2")])
        await submit(
            others,
            ReassignmentRequest(ReassignmentKind.REPLACE, nodes=("n2" if what == "elsewhere" else "n3", "n1")),
            None,
            "ann",
            4,
        )

        async def meanwhile() -> None:
            if what == "elsewhere":  # n1 stays away, and n3 is chosen
                moves = (ReplicaMove(1, ("n2",), ("n3",)),)
                await change_placement(others, lambda p: p.with_changed(replace(p.orders[0], moves=moves)))
            elif what == "done":
                await change_placement(others, lambda p: finished_first_order(p, "done"))
            else:
                await cancel(others, None, "ann")
            if what == "over":
                await change_placement(others, lambda p: finished_first_order(p, "cancelled"))

        mine.meanwhile[ORDERS_PATH, 2] = meanwhile
        drain = submit(mine, ReassignmentRequest(ReassignmentKind.DRAIN, nodes=("n3",)), None, "bob", 5)
        if what == "done":
            await drain
        else:
            with pytest.raises(Changed, match="order 1"):
                await drain
        assert bool((await read_placement(others)).drained) is (what == "done")


async def carried_out(metastore: Metastore) -> None:
    """The first order is completed: its first move's replicas are the wanted ones, and it has ended."""
    move = (await read_placement(metastore)).orders[0].moves[0]
    before = (await metastore.records())[move.partition]
    await metastore.write_record(replace(record(move.partition, *move.after), version=before.version))
    await change_placement(metastore, lambda p: finished_first_order(p, "done"))


@pytest.mark.parametrize(
    ("kind", "nodes"),
    [
        (ReassignmentKind.DRAIN, ("n3",)),  # nothing was to be moved by the plan
        (ReassignmentKind.DRAIN, ("n1",)),  # partition 0 was
        (ReassignmentKind.REPLACE, ("n1", "n2")),
    ],
)
async def test_a_plan_is_refused_if_an_order_was_given_and_carried_out_since(
    kind: ReassignmentKind, nodes: tuple[str, ...]
) -> None:
    """The replicas in the plan are elsewhere by then: a drained node would keep replicas that the other order gave it,
    and a move from a node without the partition would be refused later."""

    async with two_operators("n1", "n2", "n3") as (mine, others):
        await others.create_records([record(0, "n1"), record(1, "n2")])

        async def meanwhile() -> None:
            request = ReassignmentRequest(ReassignmentKind.REPLACE, nodes=("n1", "n3"))
            await submit(others, request, None, "ann", 4)
            await carried_out(others)

        mine.meanwhile[ORDERS_PATH, 2] = meanwhile
        with pytest.raises(Changed, match="order 1 was given and has ended"):
            await submit(mine, ReassignmentRequest(kind, nodes=nodes), None, "bob", 5)
        left = await read_placement(others)
        assert not left.orders
        assert not left.drained


@pytest.mark.parametrize("kind", [ReassignmentKind.DRAIN, ReassignmentKind.REPLACE])
async def test_an_order_whose_answer_is_lost_is_not_given_again_once_it_is_carried_out(kind: ReassignmentKind) -> None:
    """The order is recognized by its entry in the history, and not taken for another operator's."""

    async with two_operators("n1", "n2", "n3") as (mine, others):
        await others.create_records([record(0, "n1"), record(1, "n2")])
        mine.meanwhile[ORDERS_PATH, 3] = lambda: carried_out(others)
        mine.spoil(WriteFault.ANSWER_LOST)
        nodes = ("n1",) if kind is ReassignmentKind.DRAIN else ("n1", "n3")
        if kind is ReassignmentKind.DRAIN:  # otherwise the first write would be that of the counter of partitions
            await create_bucket_type(others, BucketTypeSpec("notes", 1, 1), dry_run=False)
        _, number = await submit(mine, ReassignmentRequest(kind, nodes=nodes), None, "bob", 5)
        assert number == 1
        left = await read_placement(others)
        assert (left.orders, left.next_number) == ((), 2)


async def test_a_drain_whose_answer_is_lost_is_not_repeated_after_it_was_taken_back() -> None:
    """Its order is cancelled: with the drain mark set again, the node would be drained and keep its replicas."""

    async with two_operators("n1", "n2", "n3") as (mine, others):
        await create_bucket_type(others, BucketTypeSpec("notes", 3, 2), dry_run=False)
        mine.meanwhile[ORDERS_PATH, 3] = lambda: undrain(others, ["n1"], "ann")
        mine.spoil(WriteFault.ANSWER_LOST)
        await submit(mine, ReassignmentRequest(ReassignmentKind.DRAIN, nodes=("n1",)), None, "bob", 5)
        left = await read_placement(others)
        assert not left.drained
        assert [order.cancelled_by for order in left.orders] == ["ann"]


async def test_a_drain_whose_answer_is_lost_is_not_refused_for_what_was_done_after_it() -> None:
    """Nothing was to be moved: only the drain mark shows that it is done."""

    async with two_operators("n1", "n2", "n3") as (mine, others):
        await create_bucket_type(others, BucketTypeSpec("notes", 1, 1), dry_run=False)
        (placed,) = (await others.records()).values()
        (held,) = placed.replicas
        empty, other = sorted({"n1", "n2", "n3"} - {held})

        async def meanwhile() -> None:
            request = ReassignmentRequest(ReassignmentKind.REPLACE, nodes=(held, other))
            await submit(others, request, None, "ann", 4)
            await carried_out(others)

        mine.meanwhile[ORDERS_PATH, 3] = meanwhile
        mine.spoil(WriteFault.ANSWER_LOST)
        await submit(mine, ReassignmentRequest(ReassignmentKind.DRAIN, nodes=(empty,)), None, "bob", 5)
        assert (await read_placement(others)).drained.keys() == {empty}


async def test_a_bucket_type_is_not_placed_on_a_node_that_is_drained_at_that_very_moment() -> None:
    """The drain is written between the read of the drained nodes and the write of the records: the placement is
    computed again without the node."""

    async with two_operators("n1", "n2", "n3") as (mine, others):
        create = mine.create_records

        async def late(*records_and_values: Any, **unmoved: Any) -> bool:
            mine.create_records = create  # type: ignore[method-assign]
            await submit(others, ReassignmentRequest(ReassignmentKind.DRAIN, nodes=("n3",)), None, "ann", 4)
            return await create(*records_and_values, **unmoved)

        mine.create_records = late  # type: ignore[method-assign]
        assert (await create_bucket_type(mine, BucketTypeSpec("notes", 3, 2), dry_run=False))[0] == "created"
        placed = (await others.records()).values()
        assert {node for each in placed for node in each.replicas} == {"n1", "n2"}
        assert {"n3"} == (await read_placement(others)).drained.keys()


@pytest.mark.parametrize("first", [True, False])
async def test_a_node_is_not_drained_by_a_plan_that_does_not_know_the_newest_bucket_type(first: bool) -> None:
    """Otherwise the node would be drained, all its moves would be done, and it would hold the new type's replicas for
    good. The same holds for the first bucket type."""

    async with two_operators("n1", "n2", "n3") as (mine, others):
        if not first:
            await create_bucket_type(others, BucketTypeSpec("old", 3, 2), dry_run=False)
        wanted = BucketTypeSpec("notes", 3, 2)
        mine.meanwhile[ORDERS_PATH, 2] = lambda: create_bucket_type(others, wanted, dry_run=False)
        drain = ReassignmentRequest(ReassignmentKind.DRAIN, nodes=("n3",))
        with pytest.raises(Changed, match="bucket type"):
            await submit(mine, drain, None, "bob", 5)
        assert not (await read_placement(others)).drained
        plan, _ = await submit(mine, drain, None, "bob", 5)
        kinds = {(await others.records())[move.partition].bucket_type for move in plan.moves}
        assert kinds == ({"notes"} if first else {"old", "notes"})


async def test_a_written_option_is_not_reported_as_unchanged() -> None:
    """The connection breaks just after the metastore confirmed the write."""

    async with two_operators() as (mine, others):

        async def gone() -> None:
            raise Unavailable("no connection to the metastore")

        mine.meanwhile[OPTIONS_PATH, 2] = gone
        found = await change_option(mine, MIN_ISR, None, Setting(2, "ann", 1))
        assert found.min_isr("default", 5) == 2
        assert await change_option(others, MIN_ISR, None, Setting(2, "ann", 1)) == found
