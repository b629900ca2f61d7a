"""Three real nodes, a real ZooKeeper, clients that write and read, and injected faults.

The checks after each act are in `tests.system.faults.campaign`; the faults, in `tests.system.faults.nemeses`. The same
with any number of acts at random: `python -m tests.system.faults --kills 200`.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import pytest

from tests.support.samples import WHOLE
from tests.system.faults.campaign import Campaign, fault_context
from tests.system.faults.cluster import FaultCluster
from tests.system.faults.load import Connection, path_of
from tests.system.faults.nemeses import NEMESES
from tests.system.faults.nemesis import FaultContext

TRIM_TIMEOUT_S: Final = 120.0


def play(context: FaultContext, names: Sequence[str]) -> None:
    """Run these acts in this order, and all checks after each and at the end."""
    campaign = Campaign(context)
    for name in names:
        campaign.run_fault(name)
    campaign.finish()
    assert all(result.acknowledged for result in campaign.results)


def played(directory: Path, names: Sequence[str], seed: int) -> None:
    """Run `play` on a cluster that has everything that these acts need."""
    with fault_context(directory, names, seed=seed) as context:
        play(context, names)


def write_until_trimmed(cluster: FaultCluster) -> None:
    """Write until no node has the first file of its log any more: how much a load writes depends on the machine."""
    connection = Connection(cluster.places[0])
    first_files = [node.data_dir / "log" / f"{1:016}.log" for node in cluster.nodes.values()]
    deadline = time.monotonic() + TRIM_TIMEOUT_S
    try:
        while any(path.exists() for path in first_files):
            assert time.monotonic() < deadline, f"never trimmed: {[str(path) for path in first_files if path.exists()]}"
            for number in range(12):
                connection.request("PUT", path_of(f"fill{number}"), {"Content-Type": "text/plain"}, b"x" * 20_000)
            time.sleep(0.1)
    finally:
        connection.close()


@pytest.mark.timeout(200)
def test_killed_and_paused_nodes_lose_nothing(tmp_path: Path) -> None:
    """After kill -9 of a node, a pause of a node beyond its session, and kill -9 of all at once, histories are
    linearizable, no acknowledged write is lost, no operator is needed, and the replicas end equal. A quick run does the
    last alone."""
    played(tmp_path, ["kill", "pause", "kill-all"] if WHOLE else ["kill-all"], seed=1)


@pytest.mark.root
@pytest.mark.network
@pytest.mark.timeout(150)
def test_nodes_that_do_not_reach_each_other_or_the_metastore(tmp_path: Path) -> None:
    """One direction between two nodes is lost, then all between one node and the rest, ZooKeeper included."""
    played(tmp_path, ["cut-one-way", "isolate"], seed=3)


@pytest.mark.root
@pytest.mark.disks
@pytest.mark.timeout(150)
def test_a_full_disk_affects_no_other_node(tmp_path: Path) -> None:
    """A node whose disk is full for a while is in sync again once there is space."""
    played(tmp_path, ["disk-full"], seed=4)


@pytest.mark.root
@pytest.mark.strace
@pytest.mark.timeout(150)
def test_a_sync_that_fails_and_syncs_that_are_slow(tmp_path: Path) -> None:
    """A node with a failed sync ends and comes back; one with slow syncs does not stop the others for good."""
    played(tmp_path, ["sync-error", "slow-disk"], seed=5)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_restarted_nodes_whose_logs_were_trimmed_find_where_they_agree(tmp_path: Path) -> None:
    """Logs hold a few seconds, each trimmed at another offset: killed nodes follow again from the remaining entries."""
    small = 'log_size = "1MB"\nlog_file_size = "128KB"\nlog_batch_size = "128KB"\ncheckpoint_interval = "2s"'
    names = ["kill-twice", "pause", "kill-all", "kill", "kill-all"]
    with fault_context(tmp_path, names, seed=6, settings={"replication": small}) as context:
        write_until_trimmed(context.cluster)
        play(context, names)


@pytest.mark.slow
@pytest.mark.root
@pytest.mark.network
@pytest.mark.disks
@pytest.mark.strace
@pytest.mark.timeout(200)
@pytest.mark.parametrize("name", NEMESES)
def test_each_nemesis(tmp_path: Path, name: str) -> None:
    """One act of each kind, on a cluster of its own."""
    played(tmp_path, [name], seed=len(name))


@pytest.mark.slow
@pytest.mark.root
@pytest.mark.network
@pytest.mark.disks
@pytest.mark.strace
@pytest.mark.timeout(1500)
def test_forty_acts_at_random(tmp_path: Path) -> None:
    """Any act after any other, on one cluster."""
    with fault_context(tmp_path, NEMESES, seed=1) as context:
        campaign = Campaign(context)
        for _ in range(40):
            campaign.run_fault(context.chance.choice(list(NEMESES)))
        campaign.finish()
