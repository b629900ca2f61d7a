"""The metastore never holds data: a cluster of three real nodes under load, and every znode of its ensemble read."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from kazoo.client import KazooClient

from isthmus.node.local import supervisor_client
from isthmus.node.local.clusters import LocalClusters
from isthmus.node.local.topology import parse_topology

TOPOLOGY: Final = """
[clusters.east]
[clusters.east.replication]
factor = 3
min_isr = 2
write_buffer_size = "8MB"
block_cache_size = "8MB"
log_size = "256MB"
log_file_size = "16MB"
[[clusters.east.nodes]]
name = "east-1"
[[clusters.east.nodes]]
name = "east-2"
[[clusters.east.nodes]]
name = "east-3"
[[clusters.east.queues]]
name = "to-nowhere"
"""

RECORD_BYTES_MAX: Final = 1000
"""The fields that a partition's record may have while there is no fault: none of its lists grows with the data."""

WRITES: Final = 300


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    """A directory; every process that runs in it at the end is stopped."""
    yield tmp_path / "clusters"
    supervisor_client.stop(tmp_path / "clusters")


def put(url: str, value: bytes, seconds: float = 20) -> None:
    """Write until it is acknowledged: leaders may still be moving."""
    deadline = time.monotonic() + seconds
    request = urllib.request.Request(url, value, {"Content-Type": "text/plain"}, method="PUT")
    while True:
        try:
            with urllib.request.urlopen(request, timeout=10):
                return
        except urllib.error.HTTPError as error:
            error.close()
            if error.code not in (503, 504) or time.monotonic() > deadline:
                raise
        time.sleep(0.1)


def every_znode(hosts: str) -> dict[str, bytes]:
    """All znodes of the ensemble except ZooKeeper's own."""
    client = KazooClient(hosts=hosts)
    client.start(20)
    found: dict[str, bytes] = {}

    def walk(path: str) -> None:
        value, _ = client.get(path)
        found[path] = value
        for name in client.get_children(path):
            if f"{path}/{name}" != "//zookeeper":
                walk(f"{path.rstrip('/')}/{name}")

    try:
        walk("/")
    finally:
        client.stop()
        client.close()
    return found


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_no_znode_holds_a_key_or_a_value(directory: Path) -> None:
    """After writes through every node no znode's path or bytes contain a key, bucket or value of them, plain or as JSON
    escapes; the records of partitions stay small, and all znodes are far below ZooKeeper's limit."""
    clusters = LocalClusters(parse_topology(TOPOLOGY, directory / "topology.toml"), directory)
    up = clusters.up(150)["clusters"]["east"]
    urls = [node["http"] for node in up["nodes"]]
    assert len(urls) == 3
    for number in range(WRITES):
        put(f"{urls[number % 3]}/buckets/zebra-bucket/keys/zebra-key-{number}", b"zebra-value-%d" % number * 20)
    znodes = every_znode(clusters.status()["clusters"]["east"]["zookeepers"][0]["address"])
    records = {path: value for path, value in znodes.items() if path.rpartition("/")[0].endswith("/east/p")}
    assert len(records) == 12
    assert all(json.loads(value)["leader"] for value in records.values())
    for path, value in znodes.items():
        for word in (b"zebra", b"zebra".hex().encode(), b"emVicm"):
            assert word not in path.encode() + value.lower() + value, path
    assert max(map(len, records.values())) < RECORD_BYTES_MAX
    assert sum(map(len, znodes.values())) < 50_000
