"""A cluster that changes while it serves: more nodes and fewer, more replicas and fewer, each process new, one by one.

Real nodes, a real ZooKeeper, and clients that write, read and retry; their histories must be linearizable.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from isthmus.repl.http.client import session
from tests.support.waiting import wait_until
from tests.system.faults.campaign import READ_TIMEOUT_S, WELL_TIMEOUT_S, compare_copies, fault_context
from tests.system.faults.cluster import ClusterNode, FaultCluster
from tests.system.faults.linearizability import Kind, Outcome, check
from tests.system.faults.load import History, Load, read_all

KEYS = [f"k{number}" for number in range(12)]
CALM_S = 1.0
MOVES_S = 90.0
"""How long an order may take on a busy machine; it takes some seconds."""


def admin(node: ClusterNode, method: str, path: str, wish: dict[str, Any] | None = None) -> dict[str, Any]:
    """Send an operator's request to a node, which must answer 200."""
    with session() as client:
        url = f"http://{node.admin.host}:{node.admin.port}{path}"
        reply = client.request(method, url, json=wish, timeout=20)
    assert reply.status_code == 200, f"{path}: {reply.text}"
    found: dict[str, Any] = reply.json()
    return found


def ordered(cluster: FaultCluster, path: str, wish: dict[str, Any]) -> None:
    """Order something at the first node, and return when it is done."""
    node = next(iter(cluster.nodes.values()))
    number = admin(node, "POST", path, {**wish, "by": "a test"})["order"]
    assert number is not None
    cluster.timeline.note(f"order {number}: {path} {wish}")
    deadline = time.monotonic() + MOVES_S
    while True:
        shown = admin(node, "GET", "/admin/moves")
        outcome = next((each["outcome"] for each in shown["ended"] if each["order"] == number), None)
        if outcome is not None:
            assert outcome == "done"
            cluster.timeline.note(f"order {number} is done")
            return
        assert time.monotonic() < deadline, f"order {number} takes too long: {shown['orders']}"
        time.sleep(0.1)


def held(cluster: FaultCluster) -> dict[str, int]:
    """How many replicas each node has."""
    node = next(iter(cluster.nodes.values()))
    return {row["name"]: row["replicas"] for row in admin(node, "GET", "/admin/nodes")["nodes"]}


def is_gone(cluster: FaultCluster, name: str) -> bool:
    """Whether every node has seen that a stopped one is no longer registered."""
    return all(
        row["state"] != "live"
        for node in cluster.nodes.values()
        for row in admin(node, "GET", "/admin/nodes")["nodes"]
        if row["name"] == name
    )


def under_load(cluster: FaultCluster, chance: random.Random, act: Callable[[], None]) -> History:
    """Clients of the first three nodes write and read while `act` runs. Every write succeeds within its client's
    retries, and the history of each key is linearizable, with a last read of it at each node."""
    history = History()
    places = cluster.places[:3]
    load = Load(places, KEYS, history, chance, pause_s=0.01)
    load.start()
    try:
        time.sleep(CALM_S)
        act()
        time.sleep(CALM_S)
        until_ns = time.monotonic_ns()
    finally:
        load.stop()
    read_all(places, KEYS, history, chance, READ_TIMEOUT_S)
    operations = [op for key in KEYS for op in history.keys[key]]
    failed = [op for op in operations if op.kind is Kind.WRITE and op.outcome is not Outcome.OK]
    assert not [op for op in failed if op.answered_ns < until_ns], "a write failed though its client tried it again"
    assert not history.surprises, "\n".join(history.surprises[:10])
    assert len(history.acknowledged) > 100
    for key in KEYS:
        check(history.keys[key])
    cluster.timeline.note(f"{len(history.acknowledged)} writes acknowledged")
    return history


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_growth_from_three_to_five_nodes_and_back_under_load(tmp_path: Path) -> None:
    """Two nodes join, the replicas are spread, five of each partition, then three, then both nodes are drained, stopped
    and removed. Clients write and read all the while; their histories are linearizable, and the replicas end equal."""
    with fault_context(tmp_path, [], seed=11) as context:
        cluster = context.cluster

        def grow_and_shrink() -> None:
            factor = "/admin/bucket-types/default/replication-factor"
            for name in ("n4", "n5"):
                cluster.add(name)
            wait_until(lambda: len(held(cluster)) == 5, "both have joined", WELL_TIMEOUT_S)
            ordered(cluster, "/admin/moves", {"kind": "spread"})
            wait_until(lambda: max(held(cluster).values()) - min(held(cluster).values()) <= 1, "an even spread")
            ordered(cluster, factor, {"replication_factor": 5})
            wait_until(lambda: set(held(cluster).values()) == {4}, "five replicas of each partition")
            ordered(cluster, factor, {"replication_factor": 3})
            ordered(cluster, "/admin/nodes/drain", {"nodes": ["n4", "n5"]})
            for name in ("n4", "n5"):
                wait_until(lambda name=name: held(cluster)[name] == 0, f"{name} is empty")  # type: ignore[misc]
                node = cluster.nodes[name]
                node.terminate()
                cluster.remove(name)
                wait_until(lambda name=name: is_gone(cluster, name), f"{name} is seen as stopped")  # type: ignore[misc]
                admin(cluster.nodes["n1"], "POST", f"/admin/nodes/{name}/remove", {"by": "a test"})
            wait_until(lambda: held(cluster) == {"n1": 4, "n2": 4, "n3": 4}, "both are removed")
            cluster.wait_until_healthy(WELL_TIMEOUT_S)

        under_load(cluster, context.chance, grow_and_shrink)
        cluster.wait_applied(READ_TIMEOUT_S)
        for process in cluster.processes:
            process.kill()
        compare_copies(cluster)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_rolling_restart_fails_no_write_of_a_client_that_retries(tmp_path: Path) -> None:
    """Each node is stopped gracefully and started again once all is in sync; twice in turn."""
    with fault_context(tmp_path, [], seed=12) as context:
        cluster = context.cluster

        def roll() -> None:
            for _ in range(2):
                for node in cluster.nodes.values():
                    assert node.terminate() == 0
                    cluster.start(node)
                    cluster.wait_until_healthy(WELL_TIMEOUT_S)

        under_load(cluster, context.chance, roll)
