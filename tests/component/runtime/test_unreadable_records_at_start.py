"""A node that never read one partition's record, since it was damaged when the node came up, serves all others."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from isthmus.config.loader import load_file
from isthmus.node.observability.service_manager import ServiceManager
from isthmus.node.services import cluster_status
from isthmus.repl.coordinator.routing import RoutingTable, UnknownBucketType
from isthmus.repl.model.errors import NotReady
from isthmus.repl.model.keys import Key, key_hash, partition_index
from tests.component.runtime.test_damaged_documents import overwrite
from tests.component.runtime.test_start_and_stop import eventually, file_of
from tests.support.memory_metastore import MemoryEnsemble, MemoryMetastore
from tests.support.metastore_clients import a_record
from tests.support.threaded_node import NodeInMemory


def key_of(index: int, count: int) -> Key:
    """A key of that partition."""
    names = (b"%d" % number for number in range(1000))
    return next(Key(b"default", b"b", n) for n in names if partition_index(key_hash(b"b", n), count) == index)


@pytest.mark.logs_errors("controller.document_unreadable")
async def test_keys_of_other_partitions_are_routed_and_a_repaired_record_is_used(tmp_path: Path) -> None:
    """One partition's keys are refused with the reason, and status names it; after the record's repair everything works
    as before."""
    ensemble = MemoryEnsemble()

    class EnsembleNode(NodeInMemory):
        async def _connect_metastore(self) -> MemoryMetastore:
            self._metastore = metastore = MemoryMetastore(ensemble)
            await metastore.start(self._on_session)
            return metastore

    file = file_of(tmp_path)

    async def up() -> tuple[NodeInMemory, asyncio.Task[int]]:
        node = EnsembleNode(load_file(file), file, ServiceManager({}))
        await node.start()
        return node, asyncio.create_task(node.serve())

    node, served = await up()

    async def ready() -> bool:
        return node.ready()[0]

    async def led() -> bool:
        place = node.services.runtime.partitions.get(0)
        return place is not None and place.replica.ready

    async def knows() -> bool:
        return not node.services.controller.unread.why and node.ready()[0]

    await eventually(ready)
    node.request_stop("again")
    await served
    was = overwrite(ensemble, "/p/1", b"{")
    node, served = await up()
    await eventually(led)
    routes = node.services.coordinator.routes

    def partition_of(index: int) -> int:
        return routes.partition_of(b"default", key_hash(b"b", key_of(index, 2).key))

    assert partition_of(0) == 0
    with pytest.raises(NotReady, match="its record in the metastore cannot be read"):
        partition_of(1)
    reads = await node.services.coordinator.get_batch([key_of(0, 2), key_of(1, 2)], None, 1000)
    assert [type(each) is NotReady for each in reads] == [False, True]
    (problem,) = cluster_status.problems(
        node.services.controller.records,
        node.services.controller.registrations,
        "",
        unread=node.services.controller.unread.why,
    )
    assert "/p/1" in problem
    assert "this node has never read it and refuses requests for its keys" in problem
    overwrite(ensemble, "/p/1", was)
    await eventually(knows)
    assert partition_of(1) == 1
    node.request_stop("the test is over")
    await served


async def test_a_bucket_type_with_unreadable_records_is_not_called_unknown() -> None:
    """The bucket type may be the one whose record is damaged: a definite "unknown bucket type" would make clients give
    up."""

    routes = RoutingTable()
    record = a_record(0)
    routes.learn({0: record}, {7})
    with pytest.raises(NotReady, match="records of 1 partitions"):
        routes.partitions(b"maps")
    routes.learn({0: record})
    with pytest.raises(UnknownBucketType):
        routes.partitions(b"maps")


async def test_records_that_contradict_each_other_route_nothing() -> None:
    """With another number of partitions a key would be written where no later read looks for it."""

    routes = RoutingTable()
    one, two = a_record(0), a_record(1)
    routes.learn({0: one, 1: replace(two, partition_count=2)})
    with pytest.raises(NotReady):
        routes.partition_of(b"default", 0)
    routes.learn({0: one, 1: replace(two, index=0)})
    with pytest.raises(NotReady):
        routes.partition_of(b"default", 0)
