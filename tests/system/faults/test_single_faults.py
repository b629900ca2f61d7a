"""What a cluster of real processes shows while one fault lasts, and not only after it: who leads, who is in sync, what
clients are told. That nothing is lost meanwhile is `test_cluster_bears_faults.py`'s, with the same faults.
"""

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
from tests.system.faults.campaign import SHORT_LOG, staged
from tests.system.faults.cluster import PARTITIONS, SESSION_MS, Lab, cluster_address
from tests.system.faults.linearizability import check
from tests.system.faults.load import BUCKET, Connection, History, Load, Reply, path_of, read_all
from tests.system.faults.nemeses import SYNCS, injected

KEYS: Final = [f"k{number}" for number in range(12)]


def until(claim: str, condition: Callable[[], object], timeout_s: float) -> None:
    """Return once the condition holds."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"never: {claim}"
        time.sleep(0.1)


def isr_by_partition(lab: Lab, name: str) -> dict[int, set[str]]:
    """Who is in sync, as one node says."""
    answer = lab.nodes[name].ask("/admin/partitions")
    return {} if answer is None else {row["partition"]: set(row["isr"]) for row in answer["partitions"]}


def put(lab: Lab, name: str, key: str, value: str) -> Reply:
    """One write at one node."""
    connection = Connection(lab.nodes[name].place)
    try:
        return connection.request("PUT", path_of(key), {"Content-Type": "text/plain"}, value.encode())
    finally:
        connection.close()


@pytest.mark.slow
@pytest.mark.root
@pytest.mark.network
@pytest.mark.timeout(150)
def test_a_one_way_cut_that_is_never_healed_costs_a_member_and_nothing_else(tmp_path: Path) -> None:
    """What n1 sends to n2 is lost for good: who follows over the cut leaves the ISR, in both directions, writes of
    every key go on, and nobody loses a leadership."""
    with staged(tmp_path, ["cut-one-way"]) as stage:
        lab, network = stage.lab, stage.network
        assert network is not None
        leaders = lab.leaders()
        assert set(leaders.values()) == {"n1", "n2", "n3"}
        network.drop("n1", "n2")
        history = History()
        load = Load(lab.places, KEYS, history, random.Random(1))
        load.start()
        try:
            alone = {p: {"n1", "n2", "n3"} - ({"n1", "n2"} - {leader}) for p, leader in leaders.items()}
            alone |= {p: {"n1", "n2", "n3"} for p, leader in leaders.items() if leader == "n3"}
            until("the followers over the cut are out", lambda: isr_by_partition(lab, "n3") == alone, 20)
            time.sleep(2 * SESSION_MS / 1000)
        finally:
            load.stop()
        assert lab.leaders() == leaders
        since_ns = load.ended_ns - 5_000_000_000
        assert {key for at, key in history.acknowledged if at > since_ns} == set(KEYS)
        read_all([lab.nodes["n3"].place], KEYS, history, random.Random(2), 20)
        for operations in history.keys.values():
            check(operations)


@pytest.mark.slow
@pytest.mark.root
@pytest.mark.network
@pytest.mark.timeout(150)
def test_a_leader_cut_off_from_its_followers_gives_way_though_its_clients_are_cut_off_too(tmp_path: Path) -> None:
    """It reaches ZooKeeper alone. No write reaches it, so nobody lags; still all of its partitions have another leader
    and take writes at the other nodes within 30 s, and when the cut ends all replicas are in sync."""
    with staged(tmp_path, ["cut"]) as stage:
        lab, network = stage.lab, stage.network
        assert network is not None
        for key in KEYS:
            assert put(lab, "n1", key, "before").status == 204
        assert set(lab.leaders().values()) == {"n1", "n2", "n3"}
        for other in ("n2", "n3"):
            network.cut("n1", other)
        refused = set(KEYS)

        def all_written() -> bool:
            refused.difference_update([key for key in sorted(refused) if put(lab, "n2", key, "during").status == 204])
            return not refused

        until("another node leads", all_written, 30)
        assert "n1" not in {row["leader"] for row in (lab.nodes["n2"].ask("/admin/partitions") or {})["partitions"]}
        network.heal()
        lab.wait_well(30)


@pytest.mark.root
@pytest.mark.disks
@pytest.mark.timeout(100)
def test_a_node_with_a_full_disk_refuses_writes_and_answers_reads(tmp_path: Path) -> None:
    """With less free than the log's reserve a lone node says `out-of-storage`, goes on reading, and takes writes again
    once there is space, all without a new process."""
    with staged(tmp_path, ["disk-full"], nodes=1) as stage:
        lab, disk = stage.lab, stage.disks["n1"]
        assert put(lab, "n1", "before", "x").status == 204
        disk.fill(RESERVE_BYTES // 2)
        replies: list[Reply] = []

        def refused() -> bool:
            replies.append(put(lab, "n1", f"big{len(replies)}", "x" * 1_000_000))
            return replies[-1].status != 204

        until("a full disk is noticed", refused, 30)
        assert replies[-1].reason == "503 out-of-storage"
        reader = Connection(lab.nodes["n1"].place)
        assert reader.request("GET", path_of("before"), {}).body == b"x"
        reader.close()
        disk.free()
        until("it takes writes again", lambda: put(lab, "n1", "after", "x").status == 204, 20)
        assert lab.ended == []


@pytest.mark.slow
@pytest.mark.root
@pytest.mark.strace
@pytest.mark.timeout(150)
def test_a_leader_with_a_slow_disk_hands_over_and_takes_nobody_out(tmp_path: Path) -> None:
    """When each of its syncs takes 2 s, a leader under load gives up all that it leads, and both others are in sync in
    all of it."""
    with staged(tmp_path, ["slow-disk"]) as stage:
        lab = stage.lab
        history = History()
        load = Load(lab.places, KEYS, history, random.Random(1))
        load.start()
        try:
            with injected(lab.nodes["n1"], SYNCS, "delay_enter=2000000"):
                until("n1 leads nothing", lambda: "n1" not in (lab.leaders() or {0: "n1"}).values(), 30)
                assert all({"n2", "n3"} <= members for members in isr_by_partition(lab, "n2").values())
        finally:
            load.stop()
        lab.wait_well(100)
        read_all(lab.places, KEYS, history, random.Random(2), 20)
        for operations in history.keys.values():
            check(operations)


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_a_metastore_from_yesterday_is_not_believed(tmp_path: Path) -> None:
    """With ZooKeeper restored from before an election, restarted nodes serve nothing of those partitions and say why;
    with its newest state they serve all that was acknowledged in them. (The others went on from yesterday's record,
    which was right for them.)"""
    with staged(tmp_path, ["kill"]) as stage:
        lab = stage.lab
        data = lab.zookeeper.directory / "data"
        yesterday, today = data.with_name("yesterday"), data.with_name("today")
        lab.zookeeper.kill()
        shutil.copytree(data, yesterday)
        lab.start(lab.zookeeper)
        lab.wait_well(60)
        moved = [partition for partition, leader in lab.leaders().items() if leader == "n1"]
        lab.nodes["n1"].kill()
        until("n1 leads nothing", lambda: "n1" not in (lab.leaders() or {0: "n1"}).values(), 30)
        lab.start(lab.nodes["n1"])
        lab.wait_well(100)
        history = History()
        load = Load(lab.places, KEYS, history, random.Random(1))
        load.start()
        time.sleep(2)
        load.stop()
        _with_data(lab, data, yesterday, today)
        until("it is noticed", lambda: _rolled_back(lab) >= set(moved), 60)
        until("all nodes answer", lambda: all(node.ask("/admin/partitions") for node in lab.nodes.values()), 60)
        keys = [key for key in KEYS if partition_index(key_hash(BUCKET.encode(), key.encode()), PARTITIONS) in moved]
        assert {put(lab, name, key, "too late").status for key in keys for name in ("n2", "n3")} == {503}
        assert any("METASTORE_ROLLBACK" in node.log.read_text() for node in lab.nodes.values())
        _with_data(lab, data, today, yesterday)
        history.keys = {key: history.keys[key] for key in keys}
        read_all(lab.places, keys, history, random.Random(2), 60)
        for operations in history.keys.values():
            check(operations)


def _rolled_back(lab: Lab) -> set[int]:
    """Partitions that some node does not serve because the metastore went back."""
    answers = [node.ask("/admin/partitions") for node in lab.nodes.values()]
    rows = [row for answer in answers if answer is not None for row in answer["partitions"]]
    return {row["partition"] for row in rows if "metastore-rollback" in str(row["reason"])}


def _with_data(lab: Lab, data: Path, fresh: Path, aside: Path) -> None:
    """Everything is killed, and starts again with other data below ZooKeeper."""
    for process in reversed(lab.processes):
        process.wanted = False
        process.send(signal.SIGKILL)
    for process in lab.processes:
        process.kill()
    data.rename(aside)
    fresh.rename(data)
    for process in lab.processes:
        lab.start(process)


@pytest.mark.slow
@pytest.mark.root
@pytest.mark.network
@pytest.mark.timeout(200)
def test_rows_come_over_a_slow_link_while_clients_write(tmp_path: Path) -> None:
    """A node with an empty disk behind links of 8 Mbit/s, under load, is in sync before anybody mends them: its rounds
    end, at most three a partition, and nothing that was acknowledged is missing."""
    with staged(tmp_path, ["replaced-disk", "slow-link"]) as stage:
        lab, network = stage.lab, stage.network
        assert network is not None
        node = lab.nodes["n3"]
        node.kill()
        stage.fill(4)
        stage.empty(node)
        for name in ("n1", "n2"):
            network.slow(name, "8mbit")
        history = History()
        load = Load(lab.places, KEYS, history, random.Random(1))
        load.start()
        try:
            lab.start(node)
            lab.wait_well(100)
            rounds = node.metric("isthmus_far_rounds_taken_total")
        finally:
            load.stop()
        assert rounds is not None
        assert PARTITIONS <= rounds <= 3 * PARTITIONS
        network.heal()
        read_all(lab.places, KEYS, history, random.Random(2), 20)
        for operations in history.keys.values():
            check(operations)


@pytest.mark.slow
@pytest.mark.timeout(150)
def test_a_strangers_node_at_a_known_address_is_refused_and_harms_nothing(tmp_path: Path) -> None:
    """A node whose address, as the cluster knows it, is that of another cluster's node: that one is dialled and refused
    as `wrong-cluster`, writes go on, and with its right address the node is in sync again."""
    with staged(tmp_path, ["readdressed"]) as stage:
        lab, node = stage.lab, stage.lab.nodes["n2"]
        assert put(lab, "n1", "ours", "x").status == 204
        stranger = lab.stranger(node)
        stranger.start()
        until("the stranger is there", lambda: stranger.ask("/admin/cluster"), 60)
        node.kill()
        host, _, _ = cluster_address(stranger).rpartition(":")
        wrong = f'[listen]\nadvertise = "{host}"\n'
        node.config.write_text(node.config.read_text().replace("[listen]\n", wrong))
        lab.start(node)
        others = [lab.nodes[name] for name in ("n1", "n3")]
        try:
            until("it is refused", lambda: any("wrong-cluster" in each.log.read_text() for each in others), 30)
            assert put(lab, "n1", "ours", "y").status in (204, 503)
            node.kill()
            lab.readdress(node)
            lab.start(node)
            lab.wait_well(60)
        finally:
            stranger.kill()
        assert {put(lab, name, "ours", name).status for name in lab.nodes} == {204}


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_follower_that_stands_still_amid_its_rows_does_not_hold_the_log_for_ever(tmp_path: Path) -> None:
    """While a follower that takes rows is paused for longer than its pin lives, its leaders' logs stay bounded, with an
    hour between two checkpoints, and are trimmed past it; when it goes on, it takes what is new and is in sync."""
    rarely = SHORT_LOG.replace('checkpoint_interval = "1s"', 'checkpoint_interval = "1h"')
    assert rarely != SHORT_LOG
    with staged(tmp_path, ["replaced-disk"], settings={"replication": rarely}) as stage:
        lab, node = stage.lab, stage.lab.nodes["n3"]
        stage.fill(8)
        node.kill()
        stage.empty(node)
        stage.tell("/admin/options/replication.catch.up.rate/set", {"value": "500KB", "by": "tests"})
        lab.start(node)
        until("rows come", lambda: node.metric("isthmus_far_bytes_taken_total"), 30)
        node.send(signal.SIGSTOP)
        ended = time.monotonic() + PIN_MS / 1000 + 10
        sizes: list[float] = []
        while time.monotonic() < ended:
            stage.fill(1, without=node)
            sizes += [lab.nodes[name].metric("isthmus_replog_size_bytes") or 0 for name in ("n1", "n2")]
            time.sleep(0.5)
        told = [lab.nodes[name].log.read_text() for name in ("n1", "n2")]
        assert any("far.pin_dropped" in log for log in told)
        assert len(sizes) > 20
        assert max(sizes) < 6_000_000, "1 MB, as much again for pins, two files, and what is written in a checkpoint"
        stage.fill(3, without=node)
        node.send(signal.SIGCONT)
        stage.tell("/admin/options/replication.catch.up.rate/unset", {"by": "tests"})
        lab.wait_well(100)
