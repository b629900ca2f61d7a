"""Bucket types created by operators: chained placements, ids that are never reused, and refusals."""

from __future__ import annotations

import asyncio

import pytest

from isthmus.repl.controller.bucket_types import BucketTypeExists, BucketTypeSpec, DefaultType, create_bucket_type
from isthmus.repl.controller.dynamic_options import read_options
from isthmus.repl.controller.placement import BadReplicaMap, computed, placed
from isthmus.repl.controller.stored_setting import Setting
from isthmus.repl.model.errors import BadInput
from tests.support.controller_cluster import Cluster, eventually, running

pytestmark = pytest.mark.virtual_time

SMALL = DefaultType(partition_count=4, factor=3, settle_ms=0)


def sets(cluster: Cluster, name: str) -> list[tuple[int, ...]]:
    """The node numbers of a bucket type's partitions."""
    found = sorted((r.index, r.replicas) for r in cluster.records.values() if r.bucket_type == name)
    return [tuple(int(node[1:]) for node in replicas) for _, replicas in found]


def ids(cluster: Cluster, name: str) -> list[int]:
    """The partition ids of a bucket type."""
    return sorted(p for p, r in cluster.records.items() if r.bucket_type == name)


async def make(cluster: Cluster, wanted: BucketTypeSpec, *, dry_run: bool = False) -> str:
    """Creates the type at a node that is not the controller; returns the outcome."""
    outcome, _ = await create_bucket_type(cluster.living[-1].metastore, wanted, dry_run=dry_run)
    return outcome


async def test_placements_are_chained_and_ids_go_on() -> None:
    """Each computed type begins where the last one ended; a dry run and a file advance nothing; all types come
    online."""

    async with running(SMALL, 1, 2, 3) as cluster:
        await eventually(cluster.online)
        assert await make(cluster, BucketTypeSpec("notes", 2, 2), dry_run=True) == "valid"
        assert await make(cluster, BucketTypeSpec("notes", 2, 2)) == "created"
        by_hand = BucketTypeSpec("hand", 1, 1, replica_map=((3,),))
        assert await make(cluster, by_hand) == "created"
        assert await make(cluster, BucketTypeSpec("more", 3, 3)) == "created"
        await eventually(lambda: len(cluster.records) == 10 and cluster.online())
        assert sets(cluster, "notes") == list(computed(2, 2, [1, 2, 3], 4))
        assert sets(cluster, "hand") == [(3,)]
        assert sets(cluster, "more") == list(computed(3, 3, [1, 2, 3], 6))
        assert [ids(cluster, name) for name in ("default", "notes", "hand", "more")] == [
            [0, 1, 2, 3],
            [4, 5],
            [6],
            [7, 8, 9],
        ]


async def test_min_isr_of_a_new_type_is_its_own_or_the_clusters() -> None:
    """A given value is the type's own setting from the beginning; its effect is clamped, the stored value is not."""

    async with running(SMALL, 1, 2, 3) as cluster:
        await eventually(cluster.online)
        await make(cluster, BucketTypeSpec("own", 1, 2, min_isr=Setting(9, "ann", 5)))
        await make(cluster, BucketTypeSpec("plain", 1, 3))
        await eventually(lambda: len(cluster.records) == 6 and cluster.online())
        found = {r.bucket_type: (r.min_isr, r.effective_min_isr) for r in cluster.records.values()}
        assert found == {"default": (2, 2), "own": (9, 2), "plain": (2, 2)}
        assert (await read_options(cluster.living[0].metastore)).types == {
            "own": {"replication.min.isr": Setting(9, "ann", 5)}
        }


async def test_racks_count_unless_they_are_to_be_ignored() -> None:
    """Racks are used by default if there are any; `computed` ignores them; rack-aware without racks is refused."""

    cluster = Cluster(SMALL)
    try:
        racks = {0: "a", 1: "b", 2: "b", 3: "c"}
        for number, rack in racks.items():
            await cluster.node(number, rack).start()
        await eventually(cluster.online)
        chain = 4
        await make(cluster, BucketTypeSpec("auto", 4, 3))
        await make(cluster, BucketTypeSpec("aware", 4, 3, "rack-aware"))
        await make(cluster, BucketTypeSpec("plain", 4, 3, "computed"))
        await eventually(lambda: len(cluster.records) == 16 and cluster.online())
        assert sets(cluster, "auto") == list(placed(4, 3, racks, start_index=chain))
        assert sets(cluster, "aware") == list(placed(4, 3, racks, start_index=chain + 4))
        assert sets(cluster, "plain") == list(computed(4, 3, [0, 1, 2, 3], chain + 8))
    finally:
        await cluster.stop()
    async with running(SMALL, 1, 2, 3) as plain:
        await eventually(plain.online)
        with pytest.raises(BadInput, match="no node has a rack"):
            await make(plain, BucketTypeSpec("aware", 1, 1, "rack-aware"))


async def test_an_impossible_type_is_refused_and_an_existing_one_is_reported() -> None:
    """Too few nodes, unknown nodes, and another shape or map under the same name are refused; the same request again
    changes nothing."""

    async with running(SMALL, 1, 2, 3) as cluster:
        await eventually(cluster.online)
        with pytest.raises(BadInput, match="needs as many nodes"):
            await make(cluster, BucketTypeSpec("wide", 1, 4))
        with pytest.raises(BadReplicaMap, match="node id 9"):
            await make(cluster, BucketTypeSpec("hand", 1, 1, replica_map=((9,),)))
        assert await make(cluster, BucketTypeSpec("notes", 2, 2)) == "created"
        await eventually(lambda: len(cluster.records) == 6)
        there = tuple(sets(cluster, "notes"))
        assert await make(cluster, BucketTypeSpec("notes", 2, 2)) == "exists"
        assert await make(cluster, BucketTypeSpec("notes", 2, 2, replica_map=there)) == "exists"
        with pytest.raises(BucketTypeExists, match="2 partitions of 2 replicas"):
            await make(cluster, BucketTypeSpec("notes", 3, 2))
        with pytest.raises(BucketTypeExists, match="placed otherwise"):
            await make(cluster, BucketTypeSpec("notes", 2, 2, replica_map=there[::-1]))
        assert len(await cluster.living[0].metastore.records()) == 6


async def test_two_who_make_the_same_type_at_once_make_one() -> None:
    """One creates it, the other finds it."""

    async with running(SMALL, 1, 2, 3) as cluster:
        await eventually(cluster.online)
        wanted = BucketTypeSpec("notes", 3, 2)
        found = await asyncio.gather(
            *(create_bucket_type(node.metastore, wanted, dry_run=False) for node in cluster.living)
        )
        assert sorted(outcome for outcome, _ in found) == ["created", "exists", "exists"]
        assert len({replica_map for _, replica_map in found}) == 1
        assert len(await cluster.living[0].metastore.records()) == 7
