"""Creation of bucket types: its time, its nodes, and that nothing is created twice."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from isthmus.repl.controller.bucket_types import (
    SETTLE_TURNS_MAX,
    DefaultType,
    DefaultTypeCreation,
    PlacementDiffers,
)
from isthmus.repl.controller.dynamic_options import OptionSettings
from isthmus.repl.controller.placement import BadReplicaMap, computed, placed
from isthmus.repl.controller.reassignment_orders import change_placement
from isthmus.repl.controller.stored_setting import Setting
from isthmus.repl.metastore.counters import CHAIN_COUNTER, PARTITIONS_COUNTER
from isthmus.repl.model.errors import Corruption, NotReady, OutcomeUnknown
from isthmus.repl.model.record import Member, PartitionStatus, Registration
from tests.support.controller_cluster import Cluster, eventually, running
from tests.support.memory_metastore import MemoryMetastore, WriteFault

pytestmark = pytest.mark.virtual_time

FILE = DefaultType(partition_count=4, factor=3, from_file=True)


def registered(*numbers: int, **changes: object) -> dict[str, Registration]:
    """Registrations of nodes that could hold replicas."""
    made = (Registration(f"n{n}", 100 + n, True, spare_log_id=50 + n, id=n) for n in numbers)
    return {r.node: r for r in made} | {}


def names(*numbers: int) -> tuple[str, ...]:
    """The names of nodes."""
    return tuple(f"n{number}" for number in numbers)


async def counter(metastore: MemoryMetastore, path: str) -> int | None:
    """The next value of a counter in the metastore."""
    found = await metastore.get(path)
    return None if found is None else int(json.loads(found.value)["next"])


async def test_the_default_bucket_type_waits_for_as_many_nodes_as_it_has_replicas() -> None:
    """The reason has the number of missing nodes; with the last one the type is placed, and first replicas lead."""

    async with running(DefaultType(partition_count=6, factor=3, settle_ms=0), 1) as cluster:
        first = cluster.nodes["n1"].controller
        await eventually(lambda: first.waiting == "waits for 2 more nodes: replication.factor is 3")
        await cluster.add(2)
        await eventually(lambda: first.waiting == "waits for 1 more node: replication.factor is 3")
        assert not first.records
        await cluster.add(3)
        await eventually(cluster.online)
        assert not first.waiting
        sets = [record.replicas for _, record in sorted(cluster.records.items())]
        assert sets == [names(*each) for each in computed(6, 3, [1, 2, 3])]
        for record in cluster.records.values():
            assert record.leader is not None
            assert record.leader.node == record.replicas[0], "the first of each set leads at first"
            assert record.isr == {Member(f"n{n}", 50 + n) for n in (1, 2, 3)}
            assert (record.bucket_type, record.partition_count, record.min_isr) == ("default", 6, 2)
        assert await counter(cluster.nodes["n1"].metastore, CHAIN_COUNTER.path) == 6
        assert await counter(cluster.nodes["n1"].metastore, PARTITIONS_COUNTER.path) == 6


async def test_nodes_that_start_together_all_get_their_share() -> None:
    """The placement waits until no further node has arrived for a while: the first three of five do not hold all
    replicas."""

    async with running(DefaultType(partition_count=10, factor=3, settle_ms=1_500), 1, 2, 3) as cluster:
        await eventually(lambda: "more nodes: 3 are here" in cluster.nodes["n1"].controller.waiting)
        await asyncio.sleep(0.1)
        await cluster.add(4)
        await asyncio.sleep(0.1)
        await cluster.add(5)
        await eventually(cluster.online)
        assert cluster.leads() == dict.fromkeys(names(1, 2, 3, 4, 5), 2)


def test_settling_has_an_end() -> None:
    """A node that keeps leaving and returning cannot delay the placement for ever."""
    founding = DefaultTypeCreation(DefaultType(4, 1, settle_ms=100), "n1")
    now_ms = 0
    while founding.look(registered(1, *([2] if now_ms % 100 else [])), now_ms):
        now_ms += 50
        assert now_ms <= 100 * SETTLE_TURNS_MAX
    assert now_ms == 100 * SETTLE_TURNS_MAX


def test_a_node_that_is_alone_by_design_is_not_kept_waiting() -> None:
    """With factor 1 and no settling time, the type is placed at the first look."""
    founding = DefaultTypeCreation(DefaultType(4, 1, settle_ms=0), "n1")
    assert founding.look(registered(7), 123) == 0
    assert founding.reason == ""


def test_nodes_that_leave_or_have_no_log_id_yet_do_not_count() -> None:
    """A replica there could not be elected."""
    leaving = Registration("n2", 1, False, spare_log_id=52, id=2)
    unsettled = Registration("n3", 1, True, id=3)
    founding = DefaultTypeCreation(DefaultType(4, 2, settle_ms=0), "n1")
    assert founding.look({**registered(1), "n2": leaving, "n3": unsettled}, 0) is None
    assert founding.reason == "waits for 1 more node: replication.factor is 2"


async def test_nodes_that_are_drained_hold_nothing_of_the_first_bucket_type_either() -> None:
    """A node that was drained before the first bucket type exists is shown as missing, and the placement waits for
    another one; with that one, the type is placed without the drained node."""

    async with running(DefaultType(partition_count=6, factor=2, settle_ms=0), 1) as cluster:
        one = cluster.nodes["n1"]
        await change_placement(one.metastore, lambda p: p.with_drained(["n2", "n9"], "ann", 1))
        await eventually(lambda: "n2" in one.controller.placement.drained)
        await cluster.add(2)
        await eventually(lambda: "n2" in one.controller.registrations)
        await eventually(lambda: "(n2 drained: `isthmus node drain NODE --undo`)" in one.controller.waiting)
        await cluster.add(3)
        await eventually(cluster.online)
        assert {node for record in cluster.records.values() for node in record.replicas} == {"n1", "n3"}


async def test_a_node_drained_just_before_the_first_bucket_type_is_written_gets_none_of_it() -> None:
    """The drain is written between the read of the drained nodes and the write of the records."""

    metastore = MemoryMetastore()
    await metastore.start(lambda _state: None)
    founding, create = DefaultTypeCreation(DefaultType(4, 1, settle_ms=0), "n1"), metastore.create_records

    async def late(*records_and_values: Any, **unmoved: Any) -> bool:
        await change_placement(metastore, lambda p: p.with_drained(["n2"], "ann", 1))
        return await create(*records_and_values, **unmoved)

    metastore.create_records = late  # type: ignore[method-assign]
    assert not await founding.found(metastore, registered(1, 2), 5)
    assert not await metastore.records()
    metastore.create_records = create  # type: ignore[method-assign]
    assert await founding.found(metastore, registered(1, 2), 5)
    assert {node for record in (await metastore.records()).values() for node in record.replicas} == {"n1"}
    await metastore.stop()


async def test_racks_on_some_nodes_only_stop_the_placing_with_a_reason() -> None:
    """It waits until the last node has its rack, or racks are ignored."""

    async with running(DefaultType(partition_count=4, factor=2, settle_ms=0)) as cluster:
        for number, rack in ((0, "a"), (1, "")):
            await cluster.node(number, rack).start()
        await eventually(lambda: "node ids 1 have no rack" in cluster.nodes["n0"].controller.waiting)
        assert "replication.ignore_rack_assignment" in cluster.nodes["n0"].controller.waiting
    racks = {"n0": Registration("n0", 1, True, spare_log_id=1, id=0, rack="a"), **registered(1)}
    assert DefaultTypeCreation(DefaultType(4, 2, ignore_racks=True, settle_ms=0), "n1").look(racks, 0) == 0


async def test_racks_are_placed_by() -> None:
    """Registrations have ids and racks; the placement is the rack-aware one."""

    async with running(DefaultType(partition_count=6, factor=3, settle_ms=300)) as cluster:
        racks = {0: "a", 1: "b", 2: "b", 3: "c", 4: "c", 5: "c"}
        for number, rack in racks.items():
            await cluster.node(number, rack).start()
        await eventually(cluster.online)
        sets = [record.replicas for _, record in sorted(cluster.records.items())]
        assert sets == [names(*each) for each in placed(6, 3, racks)]


async def test_a_computed_placement_starts_where_the_last_one_ended() -> None:
    """The index is kept in the metastore, for any controller: at 9 partition 0 is on 4, 1, 2."""

    cluster = Cluster(DefaultType(partition_count=2, factor=3, settle_ms=300))
    for number in range(5):
        cluster.node(number)
    started = cluster.nodes["n0"]
    await started.metastore.start(lambda _state: None)
    await started.metastore.put(CHAIN_COUNTER.path, b'{"v":1,"next":9}', None)
    await started.metastore.put(PARTITIONS_COUNTER.path, b'{"v":1,"next":40}', None)
    for node in cluster.living:
        await node.start()
    await eventually(cluster.online)
    assert [r.replicas for _, r in sorted(cluster.records.items())] == [names(4, 1, 2), names(0, 3, 4)]
    assert sorted(cluster.records) == [40, 41], "ids are not used again"
    assert await counter(started.metastore, CHAIN_COUNTER.path) == 11
    await cluster.stop()


async def test_an_operators_placement_is_waited_for_and_then_used() -> None:
    """With placement = "file" nothing is placed automatically; assigned partitions come online and do not advance the
    index."""

    async with running(FILE, 0, 1, 2) as cluster:
        one = cluster.nodes["n1"].controller
        await eventually(lambda: one.waiting.startswith("waits for an operator: replication.placement is"))
        assert await one.assign("default", ((2, 0), (1, 2)), validate_only=True) == "valid"
        assert not await cluster.nodes["n1"].metastore.records()
        assert await one.assign("default", ((2, 0), (1, 2)), validate_only=False) == "created"
        await eventually(cluster.online)
        assert [r.replicas for _, r in sorted(cluster.records.items())] == [names(2, 0), names(1, 2)]
        assert cluster.leads() == {"n1": 1, "n2": 1}
        assert {r.min_isr for r in cluster.records.values()} == {1}
        assert one.waiting == ""
        assert await counter(cluster.nodes["n1"].metastore, CHAIN_COUNTER.path) is None


async def test_an_existing_bucket_type_is_not_placed_again() -> None:
    """The same placement is reported as existing; another one is refused; another bucket type gets ids of its own."""

    async with running(FILE, 0, 1, 2) as cluster:
        one, other = cluster.nodes["n1"].controller, cluster.nodes["n2"].controller
        await eventually(lambda: len(one.registrations) == len(other.registrations) == 3)
        assert await one.assign("t", ((0, 1), (1, 2)), validate_only=False) == "created"
        assert await other.assign("t", ((0, 1), (1, 2)), validate_only=False) == "exists"
        assert await other.assign("t", ((0, 1), (1, 2)), validate_only=True) == "exists"
        for differs in (((1, 0), (1, 2)), ((0, 1),), ((0, 1), (1, 2), (2, 0))):
            with pytest.raises(PlacementDiffers, match="bucket type 't' has 2 partitions"):
                await other.assign("t", differs, validate_only=False)
        with pytest.raises(BadReplicaMap, match="node id 7"):
            await one.assign("u", ((0, 7),), validate_only=True)
        assert await other.assign("u", ((0,),), validate_only=False) == "created"
        await eventually(lambda: sorted(one.records) == [0, 1, 2])
        assert (one.records[2].bucket_type, one.records[2].index, one.records[2].partition_count) == ("u", 0, 1)


async def test_two_who_create_at_once_do_not_make_the_same_partitions() -> None:
    """Ids come from a counter that is written with the records: the later writer reads again and takes the next ids."""

    async with running(FILE, 0, 1, 2) as cluster:
        controllers = [node.controller for node in cluster.living]
        await eventually(lambda: all(len(c.registrations) == 3 for c in controllers))
        outcomes = await asyncio.gather(
            *(c.assign(f"t{i}", ((0, 1), (1, 2)), validate_only=False) for i, c in enumerate(controllers)),
            *(c.assign("same", ((0, 1),), validate_only=False) for c in controllers),
        )
        assert sorted(outcomes) == ["created"] * 4 + ["exists"] * 2
        await eventually(lambda: cluster.online() and len(cluster.records) == 7)
        kinds = sorted((r.bucket_type, r.index) for r in cluster.records.values())
        assert kinds == [("same", 0), *((f"t{i}", index) for i in range(3) for index in range(2))]


async def test_an_assignment_without_the_metastore_is_refused_or_unknown() -> None:
    """If the metastore is not reached, nothing was created. If the write has no answer the outcome is unknown, and a
    repetition is safe."""

    async with running(FILE, 0, 1, 2) as cluster:
        node = cluster.nodes["n1"]
        await eventually(lambda: len(node.registrations) == 3)
        node.metastore.disconnect()
        with pytest.raises(NotReady, match="nothing was created"):
            await node.controller.assign("t", ((0, 1),), validate_only=False)
        node.metastore.reconnect()
        node.metastore.spoil(WriteFault.ANSWER_LOST)
        with pytest.raises(OutcomeUnknown, match="may have been created"):
            await node.controller.assign("t", ((0, 1),), validate_only=False)
        assert await node.controller.assign("t", ((0, 1),), validate_only=False) == "exists"


@pytest.mark.parametrize("value", [b"", b"[]", b'{"v":2,"next":1}', b'{"v":1,"next":-1}', b'{"v":1,"next":true}'])
async def test_a_damaged_counter_is_reported(value: bytes) -> None:
    """Nothing is placed on a guess."""

    async with running(FILE, 0, 1, 2) as cluster:
        node = cluster.nodes["n1"]
        await eventually(lambda: len(node.registrations) == 3)
        await node.metastore.put(PARTITIONS_COUNTER.path, value, None)
        with pytest.raises(Corruption, match="/placement/partitions"):
            await node.controller.assign("t", ((0, 1),), validate_only=False)


def test_min_isr_is_one_less_than_the_factor_unless_it_is_set() -> None:
    """A set value is written as it is, from 1; the record clamps it to its replicas."""
    unset = OptionSettings()
    assert [unset.min_isr("default", factor) for factor in (1, 2, 3, 5)] == [1, 1, 2, 4]
    for value, wanted in ((3, 3), (0, 1), (-4, 1), (99, 99)):
        chosen = unset.with_setting("replication.min.isr", None, Setting(value, "somebody", 1))
        assert {chosen.min_isr("default", factor) for factor in (1, 3, 5)} == {wanted}


async def test_new_partitions_begin_in_election_with_all_replicas_in_sync() -> None:
    """Before any election they have epoch 0, no leader, and the first replica preferred."""

    cluster = Cluster(FILE)
    for number in (0, 1):
        cluster.node(number).mute = True
    for node in cluster.living:
        await node.start()
    one = cluster.nodes["n0"].controller
    await eventually(lambda: len(one.registrations) == 2)
    assert await one.assign("t", ((1, 0),), validate_only=False) == "created"
    await eventually(lambda: one.records and one.records[0].status is PartitionStatus.CANDIDATE_FOUND)
    record = one.records[0]
    assert record.candidate is not None
    assert (record.candidate.node, record.epoch, record.reason) == ("n1", 1, "waits for n1 to promote itself")
    await cluster.stop()
