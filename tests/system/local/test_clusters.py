"""Clusters of three real nodes: killed, restarted, without one of three ZooKeepers, and still every write is there."""

from __future__ import annotations

import json
import os
import signal
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from isthmus.node.local import directory as places
from isthmus.node.local import supervisor_client
from isthmus.node.local.clusters import LocalClusters
from isthmus.node.local.topology import parse_topology

THREE = "[clusters.a]\nzookeepers = 3\n[clusters.a.replication]\npartitions = 6\n" + "".join(
    f'[[clusters.a.nodes]]\nname = "a-{number}"\n' for number in (1, 2, 3)
)


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    """A directory; every process that runs in it at the end is stopped."""
    yield tmp_path / "clusters"
    supervisor_client.stop(tmp_path / "clusters")


def about(url: str) -> dict[str, Any]:
    """A JSON document."""
    with urllib.request.urlopen(url, timeout=10) as response:
        found: dict[str, Any] = json.load(response)
        return found


def eventually(condition: Callable[[], object], what: str, seconds: float = 60) -> None:
    """Wait until it holds; a node that does not answer is asked again."""
    deadline = time.monotonic() + seconds
    said = ""
    while True:
        try:
            if condition():
                return
        except OSError as error:
            said = f" ({error})"
        assert time.monotonic() < deadline, f"never: {what}{said}"
        time.sleep(0.2)


def put(url: str, key: str) -> bool:
    """True when the write was acknowledged."""
    request = urllib.request.Request(f"{url}/buckets/b/keys/{key}", key.encode(), method="PUT")
    try:
        with urllib.request.urlopen(request, timeout=70) as response:
            return bool(response.status == 204)
    except urllib.error.HTTPError as error:
        error.close()
        return False


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_three_nodes_and_three_zookeepers_outlive_the_loss_of_one_of_each(tmp_path: Path, directory: Path) -> None:
    """With a ZooKeeper and a leader of partitions killed, writes are acknowledged again within seconds; both return,
    every replica is in sync again, also after a graceful restart, and any node has every acknowledged write."""
    clusters = LocalClusters(parse_topology(THREE, tmp_path / "t.toml"), directory)
    nodes = {node["name"]: node for node in clusters.up(120)["clusters"]["a"]["nodes"]}
    written = [f"key-{number}" for number in range(40) if put(nodes["a-1"]["http"], f"key-{number}")]
    assert len(written) == 40
    servers = clusters.status()["clusters"]["a"]["zookeepers"]
    os.kill(servers[1]["pid"], signal.SIGKILL)

    def leaders() -> dict[str, int]:
        return {node["name"]: node["leaders"] for node in about(f"{nodes['a-1']['admin']}/admin/cluster")["nodes"]}

    eventually(lambda: leaders() == {"a-1": 2, "a-2": 2, "a-3": 2}, "each leads two partitions")
    places.stop_node(directory, "a-2", kill=True)

    def written_again(key: str) -> bool:
        if put(nodes["a-3"]["http"], key):
            written.append(key)
            return True
        return False

    for number in range(40, 60):
        eventually(lambda number=number: written_again(f"key-{number}"), f"key-{number} acknowledged")  # type: ignore[misc]

    def cluster() -> dict[str, Any]:
        return about(f"{nodes['a-1']['admin']}/admin/cluster")

    eventually(lambda: cluster()["replicas"]["in_sync"] == 12, "two in sync of each")
    assert clusters.status()["clusters"]["a"]["nodes"][1]["reason"] == "killed on request"
    places.start_node(directory, "a-2")
    eventually(lambda: cluster()["replicas"]["in_sync"] == 18, "all in sync")
    clusters.restart_node("a-3", 60)
    eventually(lambda: cluster()["replicas"]["in_sync"] == 18, "all in sync after a restart")
    for name in nodes:
        for key in written:
            with urllib.request.urlopen(f"{nodes[name]['http']}/buckets/b/keys/{key}", timeout=70) as response:
                assert response.read() == key.encode(), (name, key)
    began = time.monotonic()
    assert clusters.down()
    assert time.monotonic() - began < 40
