"""Unsafe recovery on running nodes: a forced leader, and a metastore re-seeded from the replicas."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs

from isthmus.node.admin_api.partitions import PartitionsAdmin
from isthmus.node.http.application import HttpApplication
from isthmus.node.http.durations import RequestDurations
from isthmus.node.services.cluster_query import ClusterQuery
from isthmus.node.services.replica_query import REPLICAS, ReplicaResponder
from isthmus.repl.controller.dynamic_options import change_option
from isthmus.repl.controller.election import ASK_MS
from isthmus.repl.controller.stored_setting import Setting
from isthmus.repl.controller.unclean_election import ReplicaReport, most_complete
from isthmus.repl.isr.replica_state import ReplicaOptions
from isthmus.repl.model.errors import NotReady
from isthmus.repl.model.keys import Key
from isthmus.repl.model.objects import Content, decode_object
from isthmus.repl.model.record import PartitionStatus
from isthmus.repl.model.requests import WriteRequest
from isthmus.repl.model.vclock import actor_of
from isthmus.repl.runtime.metastore_effects import ROLLED_BACK
from isthmus.repl.store.leveldb import LevelStore
from tests.component.runtime.test_replica_removal import change, changed, fully_removed
from tests.support.open_access import EVERYBODY
from tests.support.runtime_cluster import UUID, Cluster, Node, eventually

ClusterFactory = Callable[..., AbstractAsyncContextManager[Cluster]]


async def put(member: Node, name: bytes) -> None:
    """Write one object."""
    await member.coordinator.write(WriteRequest(Key(b"default", b"b", name), Content(b"v")))


async def ask(cluster: Cluster, member: Node, path: str, wish: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    """The answer of a node's admin API."""

    def query_of(of: Node) -> ClusterQuery:
        async def request(node: str, method: str, body: bytes, _timeout_ms: int) -> bytes:
            if node not in cluster.members:
                raise NotReady(node)
            return await query_of(cluster.members[node]).request_handlers()[method](of.node, body)

        query = ClusterQuery(of.node, SimpleNamespace(request=request))
        query.serve(REPLICAS, ReplicaResponder(of.runtime))
        return query

    face = HttpApplication(EVERYBODY, RequestDurations())
    services = SimpleNamespace(controller=member.controller, query=query_of(member))
    PartitionsAdmin(services, face.router)  # type: ignore[arg-type]
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": json.dumps(wish).encode(), "more_body": False}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    await face({"method": "POST", "raw_path": path.encode(), "headers": [], "query_string": b""}, receive, send)
    body = b"".join(message.get("body", b"") for message in sent[1:])
    return sent[0]["status"], json.loads(body) if sent[0]["status"] < 400 else {"text": body.decode()}


async def test_an_incomplete_replica_leads_only_when_an_operator_forces_it(
    tmp_path: Path, start_cluster: ClusterFactory
) -> None:
    """Both members in sync are gone: the partition is offline until the third replica is forced; the plan is shown
    first, and the election is logged, counted, and begins a new epoch (R-FORCE)."""

    async with start_cluster(tmp_path, options=ReplicaOptions(max_time_lag_ms=1_500)) as t:
        leader = await t.led()
        await put(leader, b"one")
        last = t.followers()[0]
        t.network.isolate(last.node)
        await put(leader, b"two")
        status, refused = await ask(t, leader, "/admin/partitions/0/force-leader", {"node": last.node})
        assert (status, "nothing to force" in refused["text"]) == (409, True)
        for node in [node for node in t.members if node != last.node]:
            await t.kill(node)
        await eventually(lambda: last.controller.records[0].status is PartitionStatus.OFFLINE)
        before = last.controller.records[0]
        path = "/admin/partitions/0/force-leader"
        status, plan = await ask(t, last, path, {"node": last.node, "dry_run": True})
        assert (status, plan["outcome"], plan["version"]) == (200, "would be ordered", before.version)
        assert [row["node"] for row in plan["replicas"] if row["leo"] is None] == sorted(
            {"n1", "n2", "n3"} - {last.node}
        )
        assert any("did not answer" in note for note in plan["notes"])
        assert last.controller.records[0] == before
        status, _ = await ask(t, last, path, {"node": last.node, "version": plan["version"] - 1})
        assert status == 409
        with capture_logs() as logs:
            status, done = await ask(t, last, path, {"node": last.node, "version": plan["version"], "by": "ann"})
        assert (status, done["lineage"], done["epoch"]) == (200, 1, before.epoch + 1)
        assert [each["by"] for each in logs if each["event"] == "UNCLEAN_ELECTION"] == ["ann"]
        await eventually(lambda: last.partition().leads)
        assert last.coordinator.lineage(0) == 1
        samples = {name: value for name, _, value in last.runtime.metrics() if name == "isthmus_unclean_elections"}
        assert samples == {"isthmus_unclean_elections": 1}
        assert not last.partition().replica.ready, "min-ISR is 2"
        await change_option(last.metastore, "replication.min.isr", None, Setting(1, "ann", 1))
        await eventually(lambda: last.partition().replica.ready)
        await put(last, b"three")
        assert last.runtime.store.object(0, b"b", b"one") is not None
        assert last.runtime.store.object(0, b"b", b"two") is None


@pytest.mark.logs_errors("UNCLEAN_ELECTION")
async def test_a_forced_leader_writes_as_another_actor(tmp_path: Path, start_cluster: ClusterFactory) -> None:
    """R-ACTOR: what the forced copy lacks may be in other clusters, under the actor that wrote it. The next write has
    another actor, so its clock does not claim to have seen the lost ones; the entries of the earlier one stay."""

    async with start_cluster(tmp_path, options=ReplicaOptions(max_time_lag_ms=1_500)) as t:
        await change_option((await t.led()).metastore, "replication.min.isr", None, Setting(1, "ann", 1))
        leader = await t.led()
        await put(leader, b"one")
        await t.level()
        last = t.followers()[0]
        t.network.isolate(last.node)
        await put(leader, b"one")
        for node in [node for node in t.members if node != last.node]:
            await t.kill(node)
        await eventually(lambda: last.controller.records[0].status is PartitionStatus.OFFLINE)
        await force(t, last, last)
        await put(last, b"one")
        incarnation = last.controller.records[0].incarnation
        assert incarnation
        kept = last.runtime.store.object(0, b"b", b"one")
        assert kept is not None
        found = decode_object(kept)
        assert [actor for actor, _, _ in found.clock] == [actor_of(UUID, 0), actor_of(UUID, 0, incarnation)]
        assert len(found.siblings) == 2, "written without a context, beside the value that the forced copy has"


async def diverged(t: Cluster, boot_id: str = "boot-1") -> Node:
    """A node whose replica alone holds writes acknowledged before a leader was forced."""
    await change_option((await t.led()).metastore, "replication.min.isr", None, Setting(1, "ann", 1))
    leader = await t.led()
    await put(leader, b"one")
    await t.level()
    last, other = t.followers()
    for member in (last, other):
        t.network.isolate(member.node)
    await put(leader, b"two")
    await t.kill(leader.node)
    t.network.heal()
    await force(t, last, last)
    await put(last, b"three")
    back = await t.open(leader.node, boot_id=boot_id)
    await eventually(lambda: back.partition().reason.startswith("committed-divergence"))
    return back


async def force(t: Cluster, asked: Node, chosen: Node) -> None:
    """Force a replica of an offline partition as an operator, and wait until it leads."""
    await eventually(lambda: asked.controller.records[0].status is PartitionStatus.OFFLINE)
    path = "/admin/partitions/0/force-leader"
    status, plan = await ask(t, asked, path, {"node": chosen.node, "dry_run": True})
    assert status == 200, plan
    status, done = await ask(t, asked, path, {"node": chosen.node, "version": plan["version"], "by": "ann"})
    assert status == 200, done
    await eventually(lambda: chosen.partition().replica.ready)


@pytest.mark.parametrize("boot_id", ["boot-1", "boot-2"], ids=["killed", "power_lost"])
@pytest.mark.logs_errors("UNCLEAN_ELECTION", "isr.role")
async def test_a_quarantined_replica_is_removed_and_recreated_while_all_serve(
    tmp_path: Path, start_cluster: ClusterFactory, boot_id: str
) -> None:
    """The replica that alone holds writes acknowledged before a leader was forced stays unchanged, and follows no
    leader, also where its rows were to be replayed; once it is unassigned it is deleted without a restart, and assigned
    again it is filled from its leader (H36)."""

    async with start_cluster(tmp_path, options=ReplicaOptions(max_time_lag_ms=1_500), removed_grace_ms=500) as t:
        back = await diverged(t, boot_id)
        log_id = back.partition().replica.member.log_id
        assert back.runtime.store.object(0, b"b", b"two") is not None
        await change(t, (), (back.node,))
        await eventually(lambda: fully_removed(back))
        await change(t, (back.node,), ())
        await changed(t, *t.members)
        await t.level()
        assert back.partition().replica.member.log_id != log_id
        assert back.runtime.store.object(0, b"b", b"three") is not None
        assert back.runtime.store.object(0, b"b", b"two") is None


@pytest.mark.logs_errors("UNCLEAN_ELECTION", "isr.role")
async def test_a_quarantined_replica_is_forced_only_after_its_node_restarted(
    tmp_path: Path, start_cluster: ClusterFactory
) -> None:
    """A quarantined replica may be the only one left; without a restart it would never accept the nomination, so
    forcing it is refused with the remedy."""

    async with start_cluster(tmp_path, options=ReplicaOptions(max_time_lag_ms=1_500)) as t:
        back = await diverged(t)
        for node in [node for node in t.members if node != back.node]:
            await t.kill(node)
        await eventually(lambda: back.controller.records[0].status is PartitionStatus.OFFLINE)
        status, refused = await ask(t, back, "/admin/partitions/0/force-leader", {"node": back.node})
        assert (status, "until its process is started again" in refused["text"]) == (409, True)
        await t.kill(back.node)
        back = await t.open(back.node)
        await eventually(lambda: 0 in back.controller.records)
        await force(t, back, back)
        assert back.runtime.store.object(0, b"b", b"two") is not None


async def test_a_replica_in_state_transfer_is_not_forced(tmp_path: Path, start_cluster: ClusterFactory) -> None:
    """The replica's data is incomplete, whatever is left of its log: it would decline the nomination, and the partition
    would wait for it. Among others it is never the most complete (R-FORCE)."""

    async with start_cluster(tmp_path) as t:
        leader = await t.led()
        await put(leader, b"one")
        await t.level()
        last = t.followers()[0].node
        for node in list(t.members):
            await t.kill(node)
        store = LevelStore.open(
            tmp_path / last / "store",
            cluster_uuid=UUID,
            write_buffer_bytes=1_000_000,
            block_cache_bytes=1_000_000,
            boot_id="boot-1",
        )
        store.transfers.begin(0, empty=True)
        store.close()
        member = await t.open(last)
        await eventually(lambda: 0 in member.controller.records)
        await eventually(lambda: member.controller.records[0].status is not PartitionStatus.ONLINE)
        before = member.controller.records[0]
        status, refused = await ask(t, member, "/admin/partitions/0/force-leader", {"node": last})
        assert (status, "in a state transfer" in refused["text"]) == (409, True)
        assert member.controller.records[0].lineage == before.lineage
    far = ReplicaReport("n1", 3, 3, 1_000, 900, 900, 7, transfers=True)
    whole = ReplicaReport("n2", 2, 2, 10, 10, 10, 8)
    assert most_complete([far, whole]) == whole


@pytest.mark.logs_errors("METASTORE_ROLLBACK", "UNCLEAN_ELECTION")
async def test_a_metastore_that_went_back_is_refused_until_it_is_reseeded(
    tmp_path: Path, start_cluster: ClusterFactory
) -> None:
    """No node leads by an old record; after a re-seed all acknowledged writes are served, and no log id is used twice
    (H32)."""

    async with start_cluster(tmp_path, partitions=2) as t:
        first = await t.led()
        old = dict(await first.metastore.records())
        await put(first, b"one")
        await t.kill(first.node)
        member = next(iter(t.members.values()))
        for partition in (0, 1):
            await t.led(partition)
        await eventually(
            lambda: all(
                r.epoch > old[p].epoch
                for p, r in member.controller.records.items()
                if old[p].leader and old[p].leader.node == first.node
            )
        )
        await put(member, b"two")
        await t.open(first.node)
        await t.settled()
        for partition in (0, 1):
            await t.level(partition)
        moved = [p for p, r in (await member.metastore.records()).items() if r.epoch > old[p].epoch]
        assert moved
        for partition, now in (await member.metastore.records()).items():
            await member.metastore.write_record(replace(old[partition], version=now.version))

        def refusing() -> bool:
            return all(h.partition(p).reason.startswith(ROLLED_BACK) for h in t.members.values() for p in moved)

        await eventually(refusing)
        status, plan = await ask(t, member, "/admin/cluster/reseed", {"dry_run": True})
        assert status == 200
        assert [each["partition"] for each in plan["partitions"]] == moved
        log_ids = [h.partition(0).replica.member.log_id for h in t.members.values()]
        counter = await member.metastore.get("/gen")
        assert counter is not None
        await member.metastore.put("/gen", b"1", counter.version)
        status, done = await ask(t, member, "/admin/cluster/reseed", {"by": "ann"})
        assert status == 200
        assert [each["outcome"] for each in done["partitions"]] == ["ordered"] * len(moved)
        for partition in (0, 1):
            await t.led(partition)
            await t.level(partition)
        assert await member.metastore.allocate_log_id() > max(log_ids)
        for name in (b"one", b"two"):
            assert await member.coordinator.get(Key(b"default", b"b", name)) is not None
        assert all(member.controller.records[p].lineage == 1 for p in moved)
        await put(member, b"three")
        status, again = await ask(t, member, "/admin/cluster/reseed", {"by": "ann"})
        assert again["partitions"] == []


@pytest.mark.logs_errors("METASTORE_ROLLBACK", "UNCLEAN_ELECTION")
async def test_an_absent_member_is_not_elected_by_a_rolled_back_record(
    tmp_path: Path, start_cluster: ClusterFactory
) -> None:
    """The absent member has not seen the epochs that the metastore forgot, and by the old record it is in sync: it
    would lead without the entries acknowledged since. One replica that has seen them is enough: its mark in the record
    warns all others, also when that replica is gone (H32)."""

    async with start_cluster(tmp_path, min_isr=1) as t:
        first = await t.led()
        await t.level()
        old = (await first.metastore.records())[0]
        away = next(name for name in t.members if name != first.node)
        await t.kill(away)
        await t.kill(first.node)
        member = await t.led()
        await eventually(lambda: member.controller.records[0].epoch > old.epoch)
        await put(member, b"two")
        now = (await member.metastore.records())[0]
        await member.metastore.write_record(replace(old, version=now.version))
        await eventually(lambda: member.controller.records[0].overtaken == now.epoch)
        await t.kill(member.node)
        for name in (away, first.node):
            await t.open(name)

        def refused(name: str) -> bool:
            record = t.members[name].controller.records.get(0)
            place = t.members[name].runtime.partitions.get(0)
            return record is not None and place is not None and place.reason.startswith(ROLLED_BACK)

        await eventually(lambda: all(refused(name) for name in (away, first.node)))
        await asyncio.sleep(2 * ASK_MS / 1000)  # the duration of an election that waits for no node
        for name in (away, first.node):
            record = t.members[name].controller.records[0]
            assert (record.status, record.overtaken) == (PartitionStatus.OFFLINE, now.epoch)
            assert t.members[name].partition().reason.startswith(ROLLED_BACK)
        member = await t.open(member.node)
        await eventually(lambda: len(member.controller.registrations) == 3 and 0 in member.controller.records)
        _, done = await ask(t, member, "/admin/cluster/reseed", {})
        assert [(each["outcome"], each["node"]) for each in done["partitions"]] == [("ordered", member.node)]
        await t.led()
        assert await member.coordinator.get(Key(b"default", b"b", b"two")) is not None
        assert member.controller.records[0].overtaken == 0


@pytest.mark.logs_errors("METASTORE_ROLLBACK", "UNCLEAN_ELECTION")
async def test_a_partition_with_silent_replicas_is_not_reseeded(tmp_path: Path, start_cluster: ClusterFactory) -> None:
    """A re-seed waits for silent replicas, which may hold more, unless it is ordered without them."""

    async with start_cluster(tmp_path) as t:
        first = await t.led()
        old = (await first.metastore.records())[0]
        await t.kill(first.node)
        member = await t.led()
        now = (await member.metastore.records())[0]
        await member.metastore.write_record(replace(old, version=now.version))
        await eventually(lambda: all(h.partition().reason.startswith(ROLLED_BACK) for h in t.members.values()))
        _, left = await ask(t, member, "/admin/cluster/reseed", {})
        assert [each["outcome"] for each in left["partitions"]] == ["left"]
        assert f"{first.node} did not answer" in left["partitions"][0]["reason"]
        _, done = await ask(t, member, "/admin/cluster/reseed", {"incomplete": True})
        assert [each["outcome"] for each in done["partitions"]] == ["ordered"], done["partitions"][0]["reason"]
        await t.led()
