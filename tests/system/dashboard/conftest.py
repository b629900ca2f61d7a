"""Fixtures: a browser, and a pair of clusters for a module."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from isthmus.node.local import supervisor_client
from tests.support.dashboard_browser import browser, open_page
from tests.system.fullsync.clusters import Clusters, eventually

PAIR = """\
[clusters.east.limits]
object_size = "100KB"
[clusters.east.replication]
factor = 3
min_isr = 2
partitions = 6
balance = false
write_buffer_size = "4MB"
block_cache_size = "4MB"
[[clusters.east.nodes]]
name = "east-1"
rack = "a"
[[clusters.east.nodes]]
name = "east-2"
rack = "b"
[[clusters.east.nodes]]
name = "east-3"
rack = "c"
[[clusters.east.nodes]]
name = "east-4"
rack = "a"
[[clusters.east.queues]]
name = "to-west"
[[clusters.east.sink.peers]]
cluster = "west"
queue = "to-east"
[[clusters.east.fullsync]]
cluster = "west"
queue = "to-west"
auto = 0
[clusters.west.replication]
partitions = 4
write_buffer_size = "4MB"
block_cache_size = "4MB"
[[clusters.west.nodes]]
name = "west-1"
[[clusters.west.queues]]
name = "to-east"
[[clusters.west.sink.peers]]
cluster = "east"
queue = "to-west"
"""


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Clusters]:
    """East of four nodes, three of which hold each partition, and west of one; each fetches from the other, and east
    has compared. East takes smaller objects than west. Tests of a module share it, and leave it as they found it."""
    directory = tmp_path_factory.mktemp("pair")
    try:
        clusters = Clusters(directory, PAIR)
        eventually(lambda: clusters.check(node="east-1")["verdict"] == "in-sync", "east is proven up to date")
        yield clusters
    finally:
        supervisor_client.stop(directory)
