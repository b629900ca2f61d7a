"""Placement commands by several operators at once, with lost and late writes, and the invariants afterwards (R-ORDER).

The rules and the metastore's are the real ones; a fake leader completes any change whose newcomers live. All delays
come from the seed, in virtual time, so a seed always gives the same run. For a longer run: `STORIES=500 pytest
tests/unit/repl/controller/reassignments/test_random_acts.py`.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from random import Random
from typing import TypeVar

import pytest

from isthmus.repl.controller.bucket_types import BucketTypeSpec, create_bucket_type
from isthmus.repl.controller.reassigner import Reassigner
from isthmus.repl.controller.reassignment_orders import ORDERS_PATH, read_placement
from isthmus.repl.controller.reassignment_progress import ReassignmentKind
from isthmus.repl.controller.reassignments import ReassignmentRequest, cancel, planned, submit, undrain
from isthmus.repl.metastore.port import Ambiguous, Precondition, VersionConflict
from isthmus.repl.model.errors import IsthmusError
from isthmus.repl.model.record import Incarnation, Member, PartitionRecord, PartitionStatus, Registration
from tests.support.memory_metastore import MemoryEnsemble, MemoryMetastore, MemoryTree, WriteFault

pytestmark = pytest.mark.virtual_time

T = TypeVar("T")

STORIES = int(os.environ.get("STORIES", "10"))
OVERTAKEN = [13, 38, 53, 58, 63, 77, 89, 90]
"""Stories in which an order was given and carried out while another one was planned, which was then given all the same:
a drained node kept what the first order had brought, or the second order was refused by the controller."""

SEEDS = sorted({*range(STORIES), *OVERTAKEN})
NODES = [f"n{number}" for number in range(1, 6)]
USUAL = [
    "create",
    "create",
    "create",
    ReassignmentKind.DRAIN,
    ReassignmentKind.DRAIN,
    ReassignmentKind.SPREAD,
    ReassignmentKind.REPLACE,
    ReassignmentKind.FACTOR,
]
TAKING_BACK = ["cancel", "cancel", "undrain", "undrain"]
ACTS = 6
"""Of each operator."""


class FaultyTree(MemoryTree):
    """A metastore tree with delays that loses or postpones some writes."""

    def __init__(self, ensemble: MemoryEnsemble, on_change: Callable[[str], None], rng: Random, share: float) -> None:
        super().__init__(ensemble, on_change)
        self._rng, self._share = rng, share

    async def _turn(self) -> None:
        await asyncio.sleep(self._rng.choice([0.0, self._rng.random() * 0.002]))
        await super()._turn()

    async def _write(self, write: Callable[[], T]) -> T:
        if self._rng.random() < self._share:
            self.faults.append(self._rng.choice(list(WriteFault)))
            asyncio.get_running_loop().call_later(self._rng.random() * 0.02, self.deliver_late)
        return await super()._write(write)


class OperatedCluster:
    """Five nodes, their metastore, and the operators."""

    def __init__(self, seed: int, *, takes_back: bool) -> None:
        self.rng = Random(seed)
        self.share = self.rng.choice([0.0, 0.1, 0.3])
        self.takes_back = takes_back
        """Operators cancel orders and undrain nodes, too."""
        self.ensemble = MemoryEnsemble()
        self.last_acts = asyncio.Event()

    async def joined(self, *, faulty: bool = True) -> MemoryMetastore:
        """One more session."""
        metastore = MemoryMetastore(self.ensemble)
        if faulty:
            metastore._memory = FaultyTree(self.ensemble, metastore._changed, self.rng, self.share)
        await metastore.start(lambda _state: None)
        return metastore

    async def in_a_thread(self, work: Callable[..., T], *inputs: object) -> T:
        """Replaces `asyncio.to_thread`: others act meanwhile, for a random time."""
        await asyncio.sleep(self.rng.choice([0.0, 0.005, 0.05]))
        return work(*inputs)

    async def run(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """All of it, to the end."""
        monkeypatch.setattr(asyncio, "to_thread", self.in_a_thread)
        self.well = await self.joined(faulty=False)
        for number, node in enumerate(NODES, 1):
            session = await self.joined(faulty=False)
            await session.register(Registration(node, 0, True, id=number, spare_log_id=50 + number))
        await create_bucket_type(self.well, BucketTypeSpec("default", 3, 2), dry_run=False)
        async with asyncio.timeout(15), asyncio.TaskGroup() as tasks:
            for carries_out in (self.leaders, self.controller):
                tasks.create_task(carries_out())
            await asyncio.gather(*(self.operator(number) for number in range(4)))
            await asyncio.sleep(0.03)  # what is late arrives
            self.last_acts.set()

    async def over(self) -> bool:
        """Nothing is ordered, and nothing changes."""
        records = (await self.well.records()).values()
        quiet = all(r.status is PartitionStatus.ONLINE and not r.adding and not r.removing for r in records)
        return self.last_acts.is_set() and quiet and not (await read_placement(self.well)).orders

    async def leaders(self) -> None:
        """Elect and end changes, sooner or later."""
        while not await self.over():
            for record in (await self.well.records()).values():
                if record.adding or record.removing:
                    ordered_ones = (await read_placement(self.well)).pending()
                    assert record.partition in ordered_ones, f"{record} changes, and nobody has ordered it"
                if self.rng.random() < 0.3:
                    with suppress(VersionConflict):
                        await self.well.write_record(_gone_on(record))
            await asyncio.sleep(0.001)

    async def controller(self) -> None:
        """Carries out what is ordered, as `repl.controller.controller` does."""
        metastore, now_ms = await self.joined(), 0
        moving = Reassigner(metastore)
        while not await self.over():
            now_ms += 100
            with suppress(Ambiguous, VersionConflict):
                placement, records = await read_placement(metastore), await metastore.records()
                seen = (placement, records, await metastore.registrations())
                await moving.look(*seen, now_ms, now_ms)
                for record in moving.writes(*seen, self.rng.choice([1, 2, 9])):
                    assert placement.version is not None
                    await metastore.write_record(record, unmoved=[Precondition(ORDERS_PATH, placement.version)])
            await asyncio.sleep(0.001)

    async def operator(self, number: int) -> None:
        """Issues random commands and ignores refusals."""
        metastore = await self.joined()
        for act in range(ACTS):
            await asyncio.sleep(self.rng.random() * 0.01)
            with suppress(IsthmusError):
                await self.act(metastore, 1_000 * number + act)

    async def act(self, metastore: MemoryMetastore, at_ms: int) -> None:
        """Issues one command; `at_ms` is unique."""
        rng, node = self.rng, self.rng.choice(NODES)
        kinds = sorted({record.bucket_type for record in (await self.well.records()).values()})
        match rng.choice([*USUAL, *TAKING_BACK] if self.takes_back else USUAL):
            case "create":
                wanted = BucketTypeSpec(f"t{at_ms}", rng.randint(1, 3), rng.randint(1, 2))
                await create_bucket_type(metastore, wanted, dry_run=False)
                return
            case "cancel":
                await cancel(metastore, rng.choice([None, rng.randint(1, 8)]), "ann")
                return
            case "undrain":
                await undrain(metastore, [node], "ann")
                return
            case ReassignmentKind.REPLACE:
                wish = ReassignmentRequest(ReassignmentKind.REPLACE, nodes=(node, rng.choice(NODES)))
            case ReassignmentKind.FACTOR:
                wish = ReassignmentRequest(ReassignmentKind.FACTOR, rng.choice(kinds), rng.randint(1, 3))
            case kind:
                wish = ReassignmentRequest(
                    ReassignmentKind(kind), nodes=(node,) if kind == ReassignmentKind.DRAIN else ()
                )
        digest = (await planned(metastore, wish)).digest if rng.random() < 0.5 else None
        await asyncio.sleep(rng.random() * 0.005)
        await submit(metastore, wish, digest, "ann", at_ms)


def _gone_on(record: PartitionRecord) -> PartitionRecord:
    """The next step of a record: elected, or with the wanted replicas."""
    leader = Incarnation(record.staying[0], 1)
    if record.status is not PartitionStatus.ONLINE:
        return replace(record, status=PartitionStatus.ONLINE, epoch=record.epoch + 1, leader=leader)
    isr = frozenset(Member(node, 50 + int(node[1:])) for node in record.staying)
    return replace(record, replicas=record.staying, adding=(), removing=(), before=(), isr=isr, leader=leader)


@pytest.mark.parametrize("seed", SEEDS)
async def test_a_drained_node_holds_nothing_once_all_orders_are_over(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This holds for any creations, orders and moves besides the drain, in any order, with any lost answers."""
    cluster = OperatedCluster(seed, takes_back=False)

    await cluster.run(monkeypatch)
    drained = (await read_placement(cluster.well)).drained.keys()
    held = {node for record in (await cluster.well.records()).values() for node in record.replicas}
    assert not held & drained


@pytest.mark.parametrize("seed", SEEDS)
async def test_every_order_ends_and_leaves_no_change_behind(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if orders are cancelled and nodes undrained at any moment, no partition keeps changing without an order, and
    no order is refused because of an unknown change."""
    cluster = OperatedCluster(seed, takes_back=True)

    await cluster.run(monkeypatch)
    assert all(ended.outcome != "refused" for ended in (await read_placement(cluster.well)).ended)
