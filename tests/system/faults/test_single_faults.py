"""The state of a cluster of real processes during one fault, and not only after it: leaders, ISRs, and answers to
clients. `test_campaign.py` checks that nothing is lost, with the same faults."""

from __future__ import annotations

import random
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from isthmus.repl.model.keys import key_hash, partition_index
from isthmus.repl.replog.log import RESERVE_BYTES
from isthmus.repl.runtime.transfer_sender import PIN_MS
from tests.system.faults.campaign import SHORT_LOG, WELL_TIMEOUT_S, fault_context
from tests.system.faults.cluster import PARTITIONS, SESSION_MS, FaultCluster, cluster_address
from tests.system.faults.linearizability import check
from tests.system.faults.load import BUCKET, Connection, History, Load, Reply, path_of, read_all
from tests.system.faults.nemeses import SYNCS, injected

KEYS: Final = [f"k{number}" for number in range(12)]


def eventually(claim: str, condition: Callable[[], object], timeout_s: float) -> None:
    """Return once the condition holds."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"never: {claim}"
        time.sleep(0.1)


def isr_by_partition(cluster: FaultCluster, name: str) -> dict[int, set[str]]:
    """ISR of each partition as one node reports it."""
    answer = cluster.nodes[name].ask("/admin/partitions")
    return {} if answer is None else {row["partition"]: set(row["isr"]) for row in answer["partitions"]}


def put(cluster: FaultCluster, name: str, key: str, value: str) -> Reply:
    """Write one object at one node."""
    connection = Connection(cluster.nodes[name].place)
    try:
        return connection.request("PUT", path_of(key), {"Content-Type": "text/plain"}, value.encode())
    finally:
        connection.close()


@pytest.mark.slow
@pytest.mark.root
@pytest.mark.network
@pytest.mark.timeout(150)
def test_a_one_way_cut_that_is_never_healed_costs_a_member_and_nothing_else(tmp_path: Path) -> None:
    """Packets from n1 to n2 are lost for good: a follower across the cut leaves the ISR, in either direction, writes of
    every key continue, and no node loses a leadership."""
    with fault_context(tmp_path, ["cut-one-way"]) as context:
        cluster, network = context.cluster, context.network
        assert network is not None
        leaders = cluster.leaders()
        assert set(leaders.values()) == {"n1", "n2", "n3"}
        network.drop("n1", "n2")
        history = History()
        load = Load(cluster.places, KEYS, history, random.Random(1))
        load.start()
        try:
            alone = {p: {"n1", "n2", "n3"} - ({"n1", "n2"} - {leader}) for p, leader in leaders.items()}
            alone |= {p: {"n1", "n2", "n3"} for p, leader in leaders.items() if leader == "n3"}
            eventually("the followers over the cut are out", lambda: isr_by_partition(cluster, "n3") == alone, 20)
            time.sleep(2 * SESSION_MS / 1000)
        finally:
            load.stop()
        assert cluster.leaders() == leaders
        since_ns = load.ended_ns - 5_000_000_000
        assert {key for at, key in history.acknowledged if at > since_ns} == set(KEYS)
        read_all([cluster.nodes["n3"].place], KEYS, history, random.Random(2), 20)
        for operations in history.keys.values():
            check(operations)


@pytest.mark.slow
@pytest.mark.root
@pytest.mark.network
@pytest.mark.timeout(300)
@pytest.mark.parametrize("decides", [True, False])
def test_a_leader_cut_off_from_its_followers_gives_way_though_its_clients_are_cut_off_too(
    tmp_path: Path, decides: bool
) -> None:
    """A leader reaches ZooKeeper alone. No write reaches it, so no follower lags; still all of its partitions get
    another leader and take writes at the other nodes (after some 15 s on an idle machine), and after the cut all
    replicas are in sync. The same holds when the cut-off node has the active controller (R-CONTACT)."""
    with fault_context(tmp_path, ["cut"]) as context:
        cluster, network = context.cluster, context.network
        assert network is not None
        for key in KEYS:
            assert put(cluster, "n1", key, "before").status == 204
        assert set(cluster.leaders().values()) == {"n1", "n2", "n3"}
        controller = (cluster.nodes["n1"].ask("/admin/cluster") or {})["controller"]
        alone = controller if decides else next(name for name in cluster.nodes if name != controller)
        others = [name for name in cluster.nodes if name != alone]
        for other in others:
            network.cut(alone, other)
        refused = set(KEYS)

        def all_written() -> bool:
            refused.difference_update(
                [key for key in sorted(refused) if put(cluster, others[0], key, "during").status == 204]
            )
            return not refused

        eventually("another node leads", all_written, 90)
        seen = (cluster.nodes[others[0]].ask("/admin/partitions") or {})["partitions"]
        assert alone not in {row["leader"] for row in seen}
        network.heal()
        cluster.wait_until_healthy(WELL_TIMEOUT_S)


@pytest.mark.root
@pytest.mark.disks
@pytest.mark.timeout(100)
def test_a_node_with_a_full_disk_refuses_writes_and_answers_reads(tmp_path: Path) -> None:
    """With less free space than the log's reserve a single node answers writes with `out-of-storage`, serves reads, and
    takes writes again once there is space, without a restart."""
    with fault_context(tmp_path, ["disk-full"], nodes=1) as context:
        cluster, disk = context.cluster, context.disks["n1"]
        assert put(cluster, "n1", "before", "x").status == 204
        disk.fill(RESERVE_BYTES // 2)
        replies: list[Reply] = []

        def refused() -> bool:
            replies.append(put(cluster, "n1", f"big{len(replies)}", "x" * 1_000_000))
            return replies[-1].status != 204

        eventually("a full disk is noticed", refused, 30)
        assert replies[-1].reason == "503 out-of-storage"
        reader = Connection(cluster.nodes["n1"].place)
        assert reader.request("GET", path_of("before"), {}).body == b"x"
        reader.close()
        disk.free()
        eventually("it takes writes again", lambda: put(cluster, "n1", "after", "x").status == 204, 20)
        assert cluster.ended == []


@pytest.mark.slow
@pytest.mark.root
@pytest.mark.strace
@pytest.mark.timeout(150)
def test_a_leader_with_a_slow_disk_hands_over_and_removes_no_member(tmp_path: Path) -> None:
    """When each sync takes 2 s, a leader under load gives up all of its partitions, and both others stay in the ISRs of
    all of them."""
    with fault_context(tmp_path, ["slow-disk"]) as context:
        cluster = context.cluster
        history = History()
        load = Load(cluster.places, KEYS, history, random.Random(1))
        load.start()
        try:
            with injected(cluster.nodes["n1"], SYNCS, "delay_enter=2000000"):
                eventually("n1 leads nothing", lambda: "n1" not in (cluster.leaders() or {0: "n1"}).values(), 30)
                assert all({"n2", "n3"} <= members for members in isr_by_partition(cluster, "n2").values())
        finally:
            load.stop()
        cluster.wait_until_healthy(100)
        read_all(cluster.places, KEYS, history, random.Random(2), 20)
        for operations in history.keys.values():
            check(operations)


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_a_metastore_restored_from_an_old_backup_is_refused(tmp_path: Path) -> None:
    """With ZooKeeper restored from before an election, restarted nodes do not serve those partitions and report why;
    with its newest state they serve all acknowledged writes. (The other partitions continued from the old record, which
    was still valid for them.)"""
    with fault_context(tmp_path, ["kill"]) as context:
        cluster = context.cluster
        data = cluster.zookeeper.directory / "data"
        yesterday, today = data.with_name("yesterday"), data.with_name("today")
        cluster.zookeeper.kill()
        shutil.copytree(data, yesterday)
        cluster.start(cluster.zookeeper)
        cluster.wait_until_healthy(60)
        moved = [partition for partition, leader in cluster.leaders().items() if leader == "n1"]
        cluster.nodes["n1"].kill()
        eventually("n1 leads nothing", lambda: "n1" not in (cluster.leaders() or {0: "n1"}).values(), 30)
        cluster.start(cluster.nodes["n1"])
        cluster.wait_until_healthy(100)
        history = History()
        load = Load(cluster.places, KEYS, history, random.Random(1))
        load.start()
        time.sleep(2)
        load.stop()
        _with_data(cluster, data, yesterday, today)
        eventually("it is noticed", lambda: _rolled_back(cluster) >= set(moved), 60)
        eventually(
            "all nodes answer", lambda: all(node.ask("/admin/partitions") for node in cluster.nodes.values()), 60
        )
        keys = [key for key in KEYS if partition_index(key_hash(BUCKET.encode(), key.encode()), PARTITIONS) in moved]
        assert {put(cluster, name, key, "too late").status for key in keys for name in ("n2", "n3")} == {503}
        assert any("METASTORE_ROLLBACK" in node.log.read_text() for node in cluster.nodes.values())
        _with_data(cluster, data, today, yesterday)
        history.keys = {key: history.keys[key] for key in keys}
        read_all(cluster.places, keys, history, random.Random(2), 60)
        for operations in history.keys.values():
            check(operations)


def _rolled_back(cluster: FaultCluster) -> set[int]:
    """Partitions that some node does not serve because the metastore went back."""
    answers = [node.ask("/admin/partitions") for node in cluster.nodes.values()]
    rows = [row for answer in answers if answer is not None for row in answer["partitions"]]
    return {row["partition"] for row in rows if "metastore-rollback" in str(row["reason"])}


def _with_data(cluster: FaultCluster, data: Path, fresh: Path, aside: Path) -> None:
    """Kill everything, and start it again with other data of ZooKeeper."""
    for process in reversed(cluster.processes):
        process.wanted = False
        process.send(signal.SIGKILL)
    for process in cluster.processes:
        process.kill()
    data.rename(aside)
    fresh.rename(data)
    for process in cluster.processes:
        cluster.start(process)


@pytest.mark.slow
@pytest.mark.root
@pytest.mark.network
@pytest.mark.timeout(200)
def test_rows_come_over_a_slow_link_while_clients_write(tmp_path: Path) -> None:
    """A node with an empty disk behind links of 8 Mbit/s, under load, is in sync before the links are restored: its
    rounds end, at most three a partition, and no acknowledged write is missing."""
    with fault_context(tmp_path, ["replaced-disk", "slow-link"]) as context:
        cluster, network = context.cluster, context.network
        assert network is not None
        node = cluster.nodes["n3"]
        node.kill()
        context.fill(4)
        context.empty(node)
        for name in ("n1", "n2"):
            network.slow(name, "8mbit")
        history = History()
        load = Load(cluster.places, KEYS, history, random.Random(1))
        load.start()
        try:
            cluster.start(node)
            cluster.wait_until_healthy(100)
            rounds = node.metric("isthmus_far_rounds_taken_total")
        finally:
            load.stop()
        assert rounds is not None
        assert PARTITIONS <= rounds <= 3 * PARTITIONS
        network.heal()
        read_all(cluster.places, KEYS, history, random.Random(2), 20)
        for operations in history.keys.values():
            check(operations)


@pytest.mark.slow
@pytest.mark.timeout(150)
def test_a_foreign_node_at_a_known_address_is_refused(tmp_path: Path) -> None:
    """A node is registered with the address of another cluster's node: that node is dialled and refused as
    `wrong-cluster`, writes continue, and with its right address the node is in sync again."""
    with fault_context(tmp_path, ["readdressed"]) as context:
        cluster, node = context.cluster, context.cluster.nodes["n2"]
        assert put(cluster, "n1", "ours", "x").status == 204
        stranger = cluster.foreign_node(node)
        stranger.start()
        eventually("the stranger is there", lambda: stranger.ask("/admin/cluster"), 60)
        node.kill()
        host, _, _ = cluster_address(stranger).rpartition(":")
        wrong = f'[listen]\nadvertise = "{host}"\n'
        node.config.write_text(node.config.read_text().replace("[listen]\n", wrong))
        cluster.start(node)
        others = [cluster.nodes[name] for name in ("n1", "n3")]
        try:
            eventually("it is refused", lambda: any("wrong-cluster" in each.log.read_text() for each in others), 30)
            assert put(cluster, "n1", "ours", "y").status in (204, 503)
            node.kill()
            cluster.readdress(node)
            cluster.start(node)
            cluster.wait_until_healthy(60)
        finally:
            stranger.kill()
        assert {put(cluster, name, "ours", name).status for name in cluster.nodes} == {204}


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_follower_paused_in_a_state_transfer_does_not_pin_the_log_for_ever(tmp_path: Path) -> None:
    """While a follower that takes rows is paused for longer than its pin lives, its leaders' logs stay bounded, with an
    hour between two checkpoints, and are trimmed past it; after the pause it takes the new entries and is in sync
    (R-FAR)."""
    rarely = SHORT_LOG.replace('checkpoint_interval = "1s"', 'checkpoint_interval = "1h"')
    assert rarely != SHORT_LOG
    with fault_context(tmp_path, ["replaced-disk"], settings={"replication": rarely}) as context:
        cluster, node = context.cluster, context.cluster.nodes["n3"]
        context.fill(8)
        node.kill()
        context.empty(node)
        context.request_admin("/admin/options/replication.catch.up.rate/set", {"value": "500KB", "by": "tests"})
        cluster.start(node)
        eventually("rows come", lambda: node.metric("isthmus_far_bytes_taken_total"), 30)
        node.send(signal.SIGSTOP)
        ended = time.monotonic() + PIN_MS / 1000 + 10
        sizes: list[float] = []
        while time.monotonic() < ended:
            context.fill(1, without=node)
            sizes += [cluster.nodes[name].metric("isthmus_replog_size_bytes") or 0 for name in ("n1", "n2")]
            time.sleep(0.5)
        told = [cluster.nodes[name].log.read_text() for name in ("n1", "n2")]
        assert any("transfer.pin_dropped" in log for log in told)
        assert len(sizes) > 20
        assert max(sizes) < 6_000_000, "1 MB, as much again for pins, two files, and what is written in a checkpoint"
        context.fill(3, without=node)
        node.send(signal.SIGCONT)
        context.request_admin("/admin/options/replication.catch.up.rate/unset", {"by": "tests"})
        cluster.wait_until_healthy(100)
