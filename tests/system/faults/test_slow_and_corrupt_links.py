"""Faults that this machine's network cannot inject: a follower with high latency, and corrupted bytes."""

from __future__ import annotations

import random
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

from tests.system.faults.campaign import compare_copies, fault_context
from tests.system.faults.cluster import cluster_address
from tests.system.faults.linearizability import check
from tests.system.faults.load import History, Load, read_all
from tests.system.faults.nemesis import FaultContext
from tests.system.faults.proxy import Proxy
from tests.system.faults.replica_faults import wait_rounds

KEYS: Final = [f"k{number}" for number in range(12)]
WATCH_S: Final = 20.0
DELAY_S: Final = 0.5
LEADS_TIMEOUT_S: Final = 60.0


@contextmanager
def behind_a_proxy(context: FaultContext) -> Iterator[Proxy]:
    """The other nodes reach n1 through a proxy, which can disturb the traffic between n3 and n1 for partitions that n1
    leads; n1 leads at least one."""
    cluster, node = context.cluster, context.cluster.nodes["n1"]
    node.kill()
    net, _, number = node.address.rpartition(".")
    host = f"{net}.{int(number) % 200 + 20}"
    listen = f'[listen]\nadvertise = "{host}"\n'
    node.config.write_text(node.config.read_text().replace("[listen]\n", listen))
    ports = [int(port) for port in re.findall(r'^(?:http|admin|cluster) = ".*:(\d+)"$', node.config.read_text(), re.M)]
    assert int(cluster_address(node).rpartition(":")[2]) in ports
    with Proxy(host, node.address, ports, b"n3") as proxy:
        cluster.start(node)
        cluster.wait_until_healthy(100)
        deadline = time.monotonic() + LEADS_TIMEOUT_S
        while "n1" not in cluster.leaders().values():
            assert time.monotonic() < deadline, "n1 leads nothing"
            time.sleep(0.2)
        assert proxy.hurt_connections
        yield proxy


@pytest.mark.slow
@pytest.mark.timeout(250)
def test_a_follower_half_a_second_away_stays_in_sync_or_leaves_once(tmp_path: Path) -> None:
    """All traffic between n1 and n3 is delayed by 500 ms: every key is written all the while, and the ISR of no
    partition changes more than once."""
    with fault_context(tmp_path, ["kill"], seed=5) as context, behind_a_proxy(context) as proxy:
        cluster = context.cluster
        history = History()
        load = Load(cluster.places, KEYS, history, random.Random(1))
        load.start()
        seen: dict[int, list[object]] = {}
        try:
            proxy.delay_s, since_ns = DELAY_S, time.monotonic_ns()
            ended = time.monotonic() + WATCH_S
            while time.monotonic() < ended:
                for row in (cluster.nodes["n2"].ask("/admin/partitions") or {"partitions": []})["partitions"]:
                    states = seen.setdefault(row["partition"], [])
                    if not states or states[-1] != sorted(row["isr"]):
                        states.append(sorted(row["isr"]))
                time.sleep(0.2)
        finally:
            load.stop()
        late = since_ns + round(WATCH_S / 2 * 1e9)
        assert {key for at, key in history.acknowledged if at > since_ns} == set(KEYS)
        assert sum(at > late for at, _ in history.acknowledged) > 20, "writes go on"
        context.timeline.note(f"ISRs: {seen}")
        assert all(len(states) <= 2 for states in seen.values()), f"the ISR goes back and forth: {seen}"
        proxy.delay_s = 0.0
        cluster.wait_until_healthy(100)
        read_all(cluster.places, KEYS, history, random.Random(2), 20)
        for operations in history.keys.values():
            check(operations)


@pytest.mark.slow
@pytest.mark.timeout(250)
def test_rows_that_are_damaged_on_their_way_are_asked_for_again(tmp_path: Path) -> None:
    """Some bits that n1 sends to a node with an empty disk are flipped: the damaged chunks are rejected, the node is in
    sync in the end, and the replicas are equal."""
    with fault_context(tmp_path, ["replaced-disk"], seed=6) as context, behind_a_proxy(context) as proxy:
        cluster, node = context.cluster, context.cluster.nodes["n3"]
        context.fill(8)
        node.kill()
        context.empty(node)
        proxy.flips_left = 4
        cluster.start(node)
        wait_rounds(context, node)
        cluster.wait_until_healthy(100)
        assert proxy.flips_left == 0
        assert cluster.ended == []
        cluster.wait_applied(20)
        for process in cluster.processes:
            process.kill()
        compare_copies(cluster)
