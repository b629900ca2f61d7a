"""Clusters that were put back to an earlier state by no command, and learn it from another cluster (R-ACTOR)."""

from __future__ import annotations

import copy
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from isthmus.node.services.cluster_status import unclean_elections
from isthmus.repl.clock import SystemTime
from isthmus.repl.coordinator.write_batch import ForgedClock
from isthmus.repl.metastore.counters import ID_MARGIN, PARTITIONS_COUNTER
from isthmus.repl.metastore.port import Ambiguous
from isthmus.repl.model.keys import Key
from isthmus.repl.model.objects import Content, decode_object, encode_object, write
from isthmus.repl.model.record import PartitionRecord
from isthmus.repl.model.requests import PushItem, PushOutcome, WriteRequest
from isthmus.repl.model.vclock import MAX_EPOCH, actor_of, decode_clock, pack_counter
from isthmus.repl.runtime import actor_renewal, held_counters
from isthmus.repl.runtime.actor_renewal import ActorRenewal, ClusterWitness, explained
from isthmus.repl.runtime.partition import Partition
from tests.support.memory_metastore import MemoryEnsemble
from tests.support.runtime_cluster import UUID, Cluster, Node, eventually

NodeFactory = Callable[..., AbstractAsyncContextManager[Node]]
ClusterFactory = Callable[..., AbstractAsyncContextManager[Cluster]]
Witness = Callable[[Node], ClusterWitness]

WEST = b"west-cluster-016"


async def put(member: Node, name: bytes, value: bytes = b"v") -> bytes:
    """Write an object blindly; its encoded clock."""
    return (await member.coordinator.write(WriteRequest(Key(b"default", b"b", name), Content(value)))).clock


@pytest.fixture
def witness() -> Iterator[Callable[[Node], ClusterWitness]]:
    """Makes a node's witness, wired as in `node.services.container`."""
    pool = ThreadPoolExecutor(1)

    def made(member: Node) -> ClusterWitness:
        found = ClusterWitness(member.runtime, member.metastore, SystemTime(), pool)
        member.coordinator._on_ahead = found.renewal.pushed
        return found

    yield made
    pool.shutdown()


def snapshot_of(ensemble: MemoryEnsemble) -> MemoryEnsemble:
    """The metastore as it is now, without its sessions."""
    found = MemoryEnsemble()
    found.zxid, found._sessions, found._nodes = ensemble.zxid, ensemble._sessions, copy.deepcopy(ensemble._nodes)
    return found


def lost_write(member: Node, partition: Partition, name: Key) -> PushItem:
    """A write of the partition's current actor that its log lacks, over what it has of the key."""
    made_at = pack_counter(partition.replica.epoch, partition.replica.leo + 500)
    kept = decode_object(member.runtime.store.object(partition.id, name.bucket, name.key) or b"")
    obj = write(kept, kept.clock, Content(b"lost"), (partition.actor, made_at), 1_700_000_000_000)
    return PushItem(name, WEST, encode_object(obj))


@pytest.mark.parametrize(
    ("counter", "is_explained"),
    [
        ((2, 0), True),  # below the log's start: nothing is known of it
        ((1, 12), True),
        ((2, 12), False),  # the entry at this offset is of another epoch
        ((2, 20), True),
        ((1, 20), False),
        ((2, 29), True),
        ((2, 30), False),  # beyond the log's end
        ((3, 5), False),  # of a higher epoch
        ((MAX_EPOCH, 0), False),
    ],
)
def test_a_counter_is_explained_by_the_entry_that_the_log_has(counter: tuple[int, int], is_explained: bool) -> None:
    """A dot names an epoch and an offset: the log has that entry, or the partition has lost it."""
    assert explained(pack_counter(*counter), 2, ((1, 8), (2, 15)), 10, 30) is is_explained


@pytest.mark.parametrize("restarted", [False, True], ids=["in one epoch", "after another start"])
@pytest.mark.logs_errors("actor.renewed")
async def test_a_cluster_put_back_by_snapshots_writes_as_another_actor(
    tmp_path: Path, start_node: NodeFactory, witness: Witness, restarted: bool
) -> None:
    """Data directory and metastore are put back together. The other cluster tells what it holds; a write that was made
    meanwhile is kept, no further one has the old actor, and each partition that lost nothing keeps its actor."""

    ensemble = MemoryEnsemble()
    async with start_node(tmp_path / "now", ensemble) as east:
        await put(east, b"k")
    shutil.copytree(tmp_path / "now", tmp_path / "then")
    snapshot = snapshot_of(ensemble)
    async with start_node(tmp_path / "now", ensemble) as east:
        lost = decode_clock(await put(east, b"k"))
        lost = decode_clock(await put(east, b"k")) if restarted else lost
        route = east.coordinator.routes
        (partition,) = {int.from_bytes(actor[16:20], "big") for actor, _, _ in lost}
        assert route.leader(partition) == "n1"
    if restarted:  # its epochs rise above those of the lost time
        for _ in range(3):
            async with start_node(tmp_path / "then", snapshot):
                pass
    async with start_node(tmp_path / "then", snapshot) as east:
        renewal = witness(east).renewal
        others = {p: east.controller.records[p] for p in east.controller.records if p != partition}
        renewal.learn({actor: counter for actor, counter, _ in lost}, "west")
        fresh = decode_clock(await put(east, b"k", b"since"))
        await eventually(lambda: renewal.count == 1)
        record = east.controller.records[partition]
        await eventually(lambda: east.controller.records[partition].incarnation != 0)
        record = east.controller.records[partition]
        assert actor_of(UUID, partition, record.incarnation) in {actor for actor, _, _ in fresh}
        assert {a: c for a, c, _ in fresh}[actor_of(UUID, partition)] < lost[0][1]
        assert [(made.partition, made.cluster) for made in renewal.renewals] == [(partition, "west")]
        assert all(east.controller.records[p].incarnation == 0 for p in others)
        assert unclean_elections(east.controller.records) == {}, "no operator went on without a copy"
        renewal.learn({actor: counter for actor, counter, _ in lost}, "west")
        await put(east, b"k")
        assert renewal.count == 1, "counters of an earlier incarnation say nothing about this one"
        await renewal.stop()


async def test_counters_that_the_log_has_change_nothing(
    tmp_path: Path, start_node: NodeFactory, witness: Witness
) -> None:
    """A healthy cluster is told its own newest dots, and those of other clusters, after a restart, too."""

    ensemble = MemoryEnsemble()
    held: dict[bytes, int] = {}
    for turn in range(3):
        async with start_node(tmp_path, ensemble) as east:
            renewal = witness(east).renewal
            renewal.learn(held, "west")
            for number in range(20):
                for actor, counter, _ in decode_clock(await put(east, b"k%d of %d" % (number, turn))):
                    held[actor] = max(counter, held.get(actor, 0))
            renewal.learn({**held, actor_of(WEST, 0): 1 << 63}, "west")
            await put(east, b"k of %d" % turn)
            assert renewal.count == 0
            assert {record.incarnation for record in east.controller.records.values()} == {0}


@pytest.mark.logs_errors("actor.renewed")
async def test_a_new_leader_learns_what_was_told_before(
    tmp_path: Path, start_cluster: ClusterFactory, witness: Witness
) -> None:
    """Followers are told; once one of them leads, it takes another actor before it writes for long."""

    async with start_cluster(tmp_path) as t:
        leader = await t.led()
        await put(leader, b"k")
        await t.level()
        renewals = [witness(member).renewal for member in t.followers()]
        for renewal in renewals:
            renewal.learn({actor_of(UUID, 0): pack_counter(1, 900)}, "west")
        assert not any(renewal.count for renewal in renewals)
        await t.kill(leader.node)
        await eventually(lambda: any(renewal.count for renewal in renewals))
        await eventually(lambda: (led := t.leader()) is not None and led.partition().actor != actor_of(UUID, 0))
        for renewal in renewals:
            await renewal.stop()


@pytest.mark.logs_errors("actor.renewed")
async def test_a_push_that_names_a_lost_write_is_taken_once_the_actor_is_another(
    tmp_path: Path, start_node: NodeFactory, witness: Witness
) -> None:
    """The push is not refused for good, so no dead letter is made of what the lost time wrote: it waits for the new
    actor, and is stored. Counters that are ahead again within a minute are refused as forged."""

    async with start_node(tmp_path, MemoryEnsemble()) as east:
        renewal = witness(east).renewal
        await put(east, b"k")
        partition = next(p for p in east.runtime.partitions.values() if p.replica.leo > 1)
        row = next(iter(east.runtime.store.key_rows(partition.id, 0, 1 << 20)))
        name = Key(b"default", b"b", row[2])
        (result,) = await east.coordinator.push([lost_write(east, partition, name)])
        assert result.outcome is PushOutcome.APPLIED
        assert renewal.count == 1
        data = east.runtime.store.object(partition.id, b"b", name.key)
        assert data is not None
        assert [sibling.value for sibling in decode_object(data).siblings] == [b"lost"], "its writer had seen the other"
        (again,) = await east.coordinator.push([lost_write(east, partition, name)])
        assert again.outcome is PushOutcome.REJECTED
        assert isinstance(again.error, ForgedClock)
        assert renewal.count == 1
        await renewal.stop()


@pytest.mark.logs_errors("actor.renewed")
@pytest.mark.parametrize("stale", ["no leader", "another epoch"])
async def test_a_renewal_that_meets_a_change_of_leadership_ends_the_refusals(
    tmp_path: Path, start_node: NodeFactory, witness: Witness, stale: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The record names no leader, or another epoch than this node leads in, when it is read for the renewal. Nobody
    tells the counter again; the partition takes another actor all the same, and writes."""

    monkeypatch.setattr(actor_renewal, "ATTEMPT_S", 0.01)
    async with start_node(tmp_path, MemoryEnsemble()) as east:
        renewal = witness(east).renewal
        lost = decode_clock(await put(east, b"k"))
        sound, asked = east.metastore.synced_record, 0

        async def synced_record(partition: int) -> PartitionRecord:
            nonlocal asked
            asked += 1
            record = await sound(partition)
            if asked > 1:
                return record
            return replace(record, leader=None) if stale == "no leader" else replace(record, epoch=record.epoch + 1)

        monkeypatch.setattr(east.metastore, "synced_record", synced_record)
        renewal.learn({actor: counter + 100 for actor, counter, _ in lost}, "west")
        await eventually(lambda: asked > 0)
        await put(east, b"k")
        assert renewal.count == 1
        await renewal.stop()


@pytest.mark.logs_errors("actor.renewed")
async def test_a_renewal_whose_outcome_was_unknown_is_named(
    tmp_path: Path, start_node: NodeFactory, witness: Witness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The metastore took the record, and its answer was lost: the finding names the partition, and is counted once."""

    monkeypatch.setattr(actor_renewal, "ATTEMPT_S", 0.01)
    async with start_node(tmp_path, MemoryEnsemble()) as east:
        renewal = witness(east).renewal
        lost = decode_clock(await put(east, b"k"))
        sound = east.metastore.write_record

        async def write_record(record: PartitionRecord, *rest: Any, **named: Any) -> PartitionRecord:
            written = await sound(record, *rest, **named)
            if record.incarnation and record.candidate is None and record.leader is None:
                raise Ambiguous("the connection broke")
            return written

        monkeypatch.setattr(east.metastore, "write_record", write_record)
        renewal.learn({actor: counter + 100 for actor, counter, _ in lost}, "west")
        await eventually(lambda: renewal.count == 1)
        await put(east, b"k")
        assert [made.cluster for made in renewal.renewals] == ["west"]
        await renewal.stop()


@pytest.mark.logs_errors("actor.renewed", "partition_ids.raised")
async def test_partition_ids_that_another_cluster_knows_are_not_given_again(
    tmp_path: Path, start_node: NodeFactory, witness: Witness
) -> None:
    """R-DOT: a bucket type made in the lost time is unknown here; the other cluster has writes of its partitions."""

    async with start_node(tmp_path, MemoryEnsemble()) as east:
        renewal: ActorRenewal = witness(east).renewal
        renewal.learn({actor_of(UUID, 3): 1 << 50}, "west")
        before = (await PARTITIONS_COUNTER.read(east.metastore)).next
        renewal.learn({actor_of(UUID, (1 << 32) - 1): 1 << 50}, "west")  # forged: no id would be left above it
        renewal.learn({actor_of(UUID, before + 6): 1 << 50}, "west")

        async def advanced() -> bool:
            return (await PARTITIONS_COUNTER.read(east.metastore)).next != before

        await eventually(advanced, "the counter advances")
        assert (await PARTITIONS_COUNTER.read(east.metastore)).next == before + 7 + ID_MARGIN
        await renewal.stop()


async def test_held_counters_are_those_of_all_rows_stored(
    tmp_path: Path, start_node: NodeFactory, witness: Witness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counters of another cluster's actors, by what is applied now and, after a restart, by what was stored before;
    of this cluster's actors none."""
    monkeypatch.setattr(held_counters, "PASS_ROWS", 4)

    def pushed(number: int, partition: int) -> PushItem:
        actor = actor_of(WEST, partition)
        obj = write(None, (), Content(b"%d" % number), (actor, pack_counter(1, number)), 1_700_000_000_000)
        return PushItem(Key(b"default", b"b", b"k%d" % number), WEST, encode_object(obj))

    ensemble = MemoryEnsemble()
    wanted = {actor_of(WEST, 7): pack_counter(1, 39), actor_of(WEST, 8): pack_counter(1, 38)}
    async with start_node(tmp_path, ensemble) as east:
        held = witness(east).held_counters
        results = await east.coordinator.push([pushed(number, 8 - number % 2) for number in range(1, 40)])
        assert {result.outcome for result in results} == {PushOutcome.APPLIED}
        await put(east, b"k39")  # a clock of two actors
        await put(east, b"own")
        assert held.of(WEST) == wanted
        assert held.of(UUID) == {}
        assert held.passes == 0
    async with start_node(tmp_path, ensemble) as east:
        held = witness(east).held_counters
        assert held.of(WEST) == {}
        held.start()
        await eventually(lambda: held.passes == 1)
        assert held.of(WEST) == wanted
        await held.stop()


@pytest.mark.logs_errors("actor.renewed")
async def test_made_up_actors_hide_no_loss(tmp_path: Path, start_node: NodeFactory, witness: Witness) -> None:
    """Counters of actors that no partition here has are not kept, however many a cluster names: a lost write that is
    named after them still shows."""

    async with start_node(tmp_path, MemoryEnsemble()) as east:
        renewal = witness(east).renewal
        renewal.learn({actor_of(UUID, 0, made_up): 1 << 50 for made_up in range(1, 70_000)}, "west")
        assert renewal.count == 0
        lost = pack_counter(east.partition().replica.epoch, 900)
        renewal.learn({east.partition().actor: lost}, "west")
        await eventually(lambda: renewal.count == 1)
        await renewal.stop()
