"""Real nodes and real ZooKeepers: two-nodes.toml unchanged, and a single node with its embedded metastore."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest

from isthmus.node.local import supervisor_client
from isthmus.node.local.clusters import LocalClusters
from isthmus.node.local.ports import free_port
from isthmus.node.local.probe import NodeProbe
from isthmus.node.local.topology import load_topology

SAMPLE = Path(__file__).parents[3] / "config" / "samples" / "two-nodes.toml"

T = TypeVar("T")


def eventually(attempt: Callable[[], T | None], what: str, seconds: float = 40) -> T:
    """The first answer that is not None or false; connections that fail meanwhile are tried again."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            if found := attempt():
                return found
        except OSError as error:
            what = f"{what} ({error})" if "(" not in what else what
        assert time.monotonic() < deadline, f"never came: {what}"
        time.sleep(0.05)


def put(url: str, value: bytes) -> int:
    with urllib.request.urlopen(urllib.request.Request(url, value, method="PUT"), timeout=10) as response:
        return int(response.status)


def get(url: str) -> bytes | None:
    try:
        with urllib.request.urlopen(url, timeout=10) as response:
            body: bytes = response.read()
            return body
    except urllib.error.HTTPError as error:
        error.close()
        return None


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    """A directory; every process that runs in it at the end is stopped."""
    yield tmp_path / "clusters"
    supervisor_client.stop(tmp_path / "clusters")


@pytest.mark.timeout(180)
def test_two_clusters_replicate_both_ways_and_outlive_a_killed_zookeeper(directory: Path) -> None:
    """After `up` a write on either side reaches the other. A ZooKeeper killed with -9 comes back by its supervisor on
    the same port; no node restarts, every partition stays online, and writes still reach the other side (H31)."""
    clusters = LocalClusters(load_topology(SAMPLE), directory)
    nodes = {node["name"]: node for each in clusters.up(120)["clusters"].values() for node in each["nodes"]}
    east, west = nodes["east-1"]["http"], nodes["west-1"]["http"]
    for number, (source, sink) in enumerate(((east, west), (west, east))):
        key = f"/buckets/b/keys/before-{number}"
        assert put(source + key, b"v") == 204
        assert eventually(lambda sink=sink, key=key: get(sink + key), key) == b"v"  # type: ignore[misc]
    victim = clusters.status()["clusters"]["east"]["zookeepers"][0]["pid"]
    os.kill(victim, signal.SIGKILL)
    port = int(clusters.status()["clusters"]["east"]["zookeepers"][0]["address"].rpartition(":")[2])

    def back() -> bool:
        from isthmus.repl.metastore import embedded_zookeeper

        (zookeeper,) = clusters.status()["clusters"]["east"]["zookeepers"]
        return zookeeper["restarts"] == 1 and zookeeper["pid"] != victim and embedded_zookeeper.serves(port)

    eventually(back, "the ZooKeeper again")
    key = "/buckets/b/keys/after"
    assert put(east + key, b"v") == 204
    assert eventually(lambda: get(west + key), key) == b"v"

    def online() -> bool:
        status = clusters.status()["clusters"]
        found = [node for each in status.values() for node in each["nodes"]]
        assert [node["pid"] for node in found] == [nodes[name]["pid"] for name in ("east-1", "west-1")]
        return all(node["online"] == "12 of 12 online" for node in found)

    eventually(online, "an answer of both nodes, which have all partitions online")
    os.kill(nodes["east-1"]["pid"], signal.SIGKILL)
    clusters.restart_node("east-1", 60)
    assert get(east + key) == b"v"


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_a_single_node_finds_its_embedded_zookeeper_again(tmp_path: Path) -> None:
    """A node without metastore hosts brings its own ZooKeeper. Killed and started again it finds the same one and all
    that it acknowledged; stopped gracefully it takes the ZooKeeper along."""
    ports = {"http": free_port(set()), "admin": free_port(set())}
    file = tmp_path / "node.toml"
    file.write_text(
        '[node]\nname = "n1"\ncluster = "solo"\ndata_dir = "data"\n'
        f'[listen]\nhttp = "127.0.0.1:{ports["http"]}"\nadmin = "127.0.0.1:{ports["admin"]}"\n'
    )
    urls = {name: f"http://127.0.0.1:{port}" for name, port in ports.items()}

    def start() -> subprocess.Popen[bytes]:
        with (tmp_path / "node.log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "isthmus.node.cli.main", "node", "run", str(file)],
                cwd=supervisor_client.PACKAGE_ROOT, stdout=log, stderr=log,
            )  # fmt: skip
        with NodeProbe(urls["http"], urls["admin"]) as probe:
            eventually(lambda: probe.online().complete or process.poll() is not None, "the node")
        assert process.poll() is None, (tmp_path / "node.log").read_text()
        return process

    def zookeeper() -> dict[str, Any]:
        state = json.loads((tmp_path / "data" / "metastore" / "state.json").read_bytes())
        child: dict[str, Any] = state["children"]["zookeeper"]
        return child

    node = start()
    try:
        assert put(f"{urls['http']}/buckets/b/keys/k", b"v") == 204
        first = zookeeper()["process"]
        node.kill()
        node.wait()
        node = start()
        assert zookeeper()["process"] == first
        assert get(f"{urls['http']}/buckets/b/keys/k") == b"v"
        node.terminate()
        assert node.wait(60) == 0
        assert zookeeper()["state"] == "stopped"
        assert not supervisor_client.recorded_children(tmp_path / "data" / "metastore")
    finally:
        if node.poll() is None:
            node.kill()
            node.wait()
        supervisor_client.release_embedded(tmp_path / "data")
