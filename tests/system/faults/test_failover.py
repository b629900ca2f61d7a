"""How long real processes take to replace a leader that was killed, and one that was frozen (docs/protocol.md
R-SUSPECT)."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from isthmus.repl.controller.suspicion import HOLD_MIN_MS
from tests.system.faults.campaign import fault_context
from tests.system.faults.cluster import PARTITIONS, SESSION_MS, FaultCluster
from tests.system.faults.load import Broken, Connection, NotSent, path_of

KEY = "k0"


def first_write_s(cluster: FaultCluster, name: str, timeout_s: float) -> float:
    """Seconds until a write of KEY at node `name` succeeds; each attempt has 300 ms."""
    began_s = time.monotonic()
    while time.monotonic() - began_s < timeout_s:
        connection = Connection(cluster.nodes[name].place, 0.3)
        try:
            if connection.request("PUT", path_of(KEY), {"Content-Type": "text/plain"}, b"x").status < 300:
                return time.monotonic() - began_s
        except (Broken, NotSent):
            pass
        finally:
            connection.close()
        time.sleep(0.01)
    raise AssertionError(f"no write was acknowledged within {timeout_s} s")


@pytest.mark.slow
@pytest.mark.timeout(150)
def test_a_killed_leader_is_replaced_before_its_session_ends_and_a_frozen_one_is_not(tmp_path: Path) -> None:
    """All leaderships of a killed node move within half a session, though its session lasts, and the log and the
    counter of the node that suspected it show why. A frozen node keeps its leaderships until its session ends, and no
    node suspects it."""
    with fault_context(tmp_path, []) as context:
        cluster = context.cluster
        time.sleep(HOLD_MIN_MS / 1000)
        victim, *others = sorted(cluster.nodes)
        assert victim in cluster.leaders().values()
        began_s = time.monotonic()
        cluster.nodes[victim].kill()
        while victim in (leaders := cluster.leaders()).values() or len(leaders) < PARTITIONS:
            assert time.monotonic() - began_s < SESSION_MS / 2000
            time.sleep(0.02)
        assert first_write_s(cluster, others[0], SESSION_MS / 1000) < SESSION_MS / 1000
        assert sum(cluster.nodes[name].metric("isthmus_nodes_suspected_total") or 0 for name in others) == 1
        assert any("controller.node_suspected" in cluster.nodes[name].log.read_text() for name in others)

        cluster.start(cluster.nodes[victim])
        cluster.wait_until_healthy(60)
        leaders = cluster.leaders()
        frozen = next(name for name in others if name in leaders.values())
        began_s = time.monotonic()
        cluster.nodes[frozen].send(signal.SIGSTOP)
        try:
            while frozen in cluster.leaders().values():
                assert time.monotonic() - began_s < 3 * SESSION_MS / 1000
                time.sleep(0.02)
            assert time.monotonic() - began_s > SESSION_MS / 2000
        finally:
            cluster.nodes[frozen].send(signal.SIGCONT)
        assert sum(cluster.nodes[name].metric("isthmus_nodes_suspected_total") or 0 for name in cluster.nodes) == 1
