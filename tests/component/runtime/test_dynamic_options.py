"""Dynamic options of nodes that serve: a new value reaches replicas, reads and connections, on all nodes and at
once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest

from isthmus.config.settings import NodeSettings, ReplicationSettings, Settings
from isthmus.node.services.live_options import EffectiveOptions, LiveOptions
from isthmus.repl.controller.dynamic_options import OptionSettings, change_option
from isthmus.repl.controller.stored_setting import Setting
from isthmus.repl.isr.effects import ReplicaRole
from isthmus.repl.model.errors import OutcomeUnknown, TooFewInSync
from isthmus.repl.model.keys import Key
from isthmus.repl.model.objects import Content
from isthmus.repl.model.record import PartitionRecord
from isthmus.repl.model.requests import Isolation, WriteRequest
from isthmus.repl.transport.lanes import RateCap
from tests.support.runtime_cluster import Cluster, Node, eventually
from tests.support.waiting import PATIENCE_S

ClusterFactory = Callable[..., AbstractAsyncContextManager[Cluster]]

SETTINGS = Settings(
    NodeSettings("n1", "east", Path("data")),
    replication=ReplicationSettings(max_record_lag_count=77, window_entries=500),
    origins={"replication.max_record_lag": "n1.toml:7"},
)


def chosen(value: int | str) -> Setting:
    """A setting as an operator makes it."""
    return Setting(value, "ann", 1)


def live(member: Node) -> tuple[EffectiveOptions, RateCap]:
    """The options of a node, applied to its parts; the cap of its connections."""
    options, cap = EffectiveOptions(SETTINGS), RateCap(100_000_000)
    member.options_listeners.append(LiveOptions(options, member.runtime, member.coordinator, cap).apply)
    return options, cap


async def put(member: Node, name: bytes) -> None:
    """Write one object."""
    await member.coordinator.write(WriteRequest(Key(b"default", b"b", name), Content(b"v")))


def test_the_nearer_setting_counts() -> None:
    """The order is bucket type, cluster, file, default; relations between numbers hold whatever is set."""
    options = EffectiveOptions(SETTINGS)
    settings = OptionSettings()
    lag, near = "replication.max.record.lag", "replication.max.near.sync.message.lag"
    assert options.effective(lag, "default", settings) == (77, "file")
    assert options.effective("replication.max.time.lag.millis", "default", settings) == (3_000, "default")
    settings = settings.with_setting(lag, None, chosen(100))
    assert options.effective(lag, "default", settings) == (100, "cluster")
    settings = settings.with_setting(lag, "notes", chosen(200))
    assert options.effective(lag, "notes", settings) == (200, "bucket type")
    assert options.effective(lag, "default", settings) == (100, "cluster")
    settings = settings.with_setting(near, None, chosen(10))
    assert options.effective(near, "default", settings) == (500, "cluster"), "the window's entries must be in reach"
    settings = settings.with_setting("election.response.min.millis", None, chosen(20_000))
    assert options.effective("election.response.max.millis", None, settings) == (20_000, "default")


async def test_options_reach_replicas_reads_and_connections_of_every_node(
    tmp_path: Path, start_cluster: ClusterFactory
) -> None:
    """A change at one node is in force at all nodes without a restart, and no longer once it is unset."""

    async with start_cluster(tmp_path, partitions=2) as t:
        there = {node: live(member) for node, member in t.members.items()}
        metastore = t.members["n2"].metastore
        for name, value in (
            ("replication.far.horizon.min.transfer.rounds", 5),
            ("replication.max.time.lag.millis", 1_234),
            ("replication.catch.up.rate", 64_000),
            ("read.isolation.default", "uncommitted"),
        ):
            await change_option(metastore, name, None, chosen(value))
        await change_option(metastore, "read.isolation.default", "notes", chosen("committed"))

        def everywhere(lag_ms: int) -> bool:
            replicas = [p.replica for h in t.members.values() for p in h.runtime.partitions.values()]
            return len(replicas) == 6 and {r.options.max_time_lag_ms for r in replicas} == {lag_ms}

        await eventually(lambda: everywhere(1_234))
        assert {p.replica.options.min_transfer_rounds for p in t.members["n3"].runtime.partitions.values()} == {5}
        await eventually(lambda: {cap._rate for _, cap in there.values()} == {64_000})
        await eventually(
            lambda: all(
                (h.coordinator._reads._default, dict(h.coordinator._reads._defaults))
                == (Isolation.UNCOMMITTED, {b"notes": Isolation.COMMITTED})
                for h in t.members.values()
            )
        )
        await put(t.members["n1"], b"k")
        assert await t.members["n3"].coordinator.get(Key(b"default", b"b", b"k")) is not None
        assert sum(h.coordinator._reads.counts[Isolation.UNCOMMITTED] for h in t.members.values()) >= 1
        await change_option(metastore, "replication.max.time.lag.millis", None, None)
        await eventually(lambda: everywhere(3_000))


async def test_a_shorter_stall_limit_counts_for_a_stall_that_is_under_way(
    tmp_path: Path, start_cluster: ClusterFactory
) -> None:
    """With a limit of an hour a silent follower stays in sync; set to 1.5 s it leaves the ISR soon, and writes
    succeed."""

    async with start_cluster(tmp_path) as t:
        for member in t.members.values():
            live(member)
        metastore = t.members["n1"].metastore
        await change_option(metastore, "replication.max.time.lag.millis", None, chosen(3_600_000))
        leader = await t.led()
        await eventually(lambda: leader.partition().replica.options.max_time_lag_ms == 3_600_000)
        silent = t.followers()[0].node
        t.network.lost = lambda sender, to, _partition, _message: silent in (sender, to)
        writing = asyncio.create_task(put(leader, b"k"))
        await asyncio.sleep(0.5)
        assert not writing.done()
        await change_option(metastore, "replication.max.time.lag.millis", None, chosen(1_500))
        await asyncio.wait_for(writing, PATIENCE_S)
        record = leader.partition().replica.record
        assert record is not None
        assert silent not in {member.node for member in record.isr}


async def test_raising_min_isr_counts_at_once_and_lowering_it_lets_writes_through(
    tmp_path: Path, start_cluster: ClusterFactory
) -> None:
    """With one of three nodes gone, min-ISR 3 refuses writes and 2 accepts them; no node is restarted, no epoch
    changes."""

    async with start_cluster(tmp_path) as t:
        leader = await t.led()
        gone = t.followers()[0]
        await t.kill(gone.node)
        await eventually(lambda: len(record_of(leader).isr) == 2)
        await put(leader, b"two")
        epoch = record_of(leader).epoch
        await change_option(leader.metastore, "replication.min.isr", None, chosen(3))
        await eventually(lambda: record_of(leader).min_isr == 3)
        with pytest.raises((TooFewInSync, OutcomeUnknown)):
            await put(leader, b"three")
        await change_option(leader.metastore, "replication.min.isr", None, chosen(2))
        await eventually(lambda: record_of(leader).min_isr == 2)
        await put(leader, b"four")
        assert (record_of(leader).epoch, leader.partition().replica.role) == (epoch, ReplicaRole.LEADER)


def record_of(member: Node) -> PartitionRecord:
    """The record that a replica uses."""
    record = member.partition().replica.record
    assert record is not None
    return record
