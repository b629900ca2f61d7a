"""The definitions of metrics, which docs/metrics.md is generated from, against a running node's metrics."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Final

import pytest
from prometheus_client.parser import text_string_to_metric_families

from isthmus.config.loader import load_file
from isthmus.node.daemon import METRICS
from isthmus.node.local.ports import free_port
from isthmus.node.observability.metrics import kind_of
from isthmus.node.observability.service_manager import ServiceManager
from isthmus.node.services.container import MetastoreSession
from isthmus.repl.model.keys import Key
from isthmus.repl.model.objects import Content
from isthmus.repl.model.requests import WriteRequest
from tests.support.threaded_node import NodeInMemory
from tests.support.waiting import PATIENCE_S

SETTINGS: Final = """\
[node]
name = "n1"
cluster = "east"
data_dir = "data"
[listen]
http = "127.0.0.1:{0}"
admin = "127.0.0.1:{1}"
cluster = "127.0.0.1:{2}"
[metastore]
hosts = "127.0.0.1:1"
[replication]
partitions = 2
factor = 1
[[queues]]
name = "to-west"
[sink]
[[sink.peers]]
url = "http://127.0.0.1:9"
queue = "to-east"
"""


async def read_exposition(directory: Path) -> str:
    """The exposition of a node that serves and has taken a write."""
    file = directory / "node.toml"
    taken: set[int] = set()
    for _ in range(3):
        taken.add(free_port(taken))
    file.write_text(SETTINGS.format(*taken))
    node = NodeInMemory(load_file(file), file, ServiceManager({}))
    await node.start()
    served = asyncio.create_task(node.serve())
    try:
        async with asyncio.timeout(PATIENCE_S):
            while not node.ready()[0]:
                await asyncio.sleep(0.01)
        await node.services.coordinator.write(WriteRequest(Key(b"default", b"b", b"k"), Content(b"v")))
        async with asyncio.timeout(PATIENCE_S):
            while True:
                text = (await node.exposition()).decode()
                if "isthmus_lag_unknown{" in text and "\nisthmus_lag_objects" in text and "} NaN" not in text:
                    return text
                await asyncio.sleep(0.1)  # until the queue has read its place
    finally:
        node.request_stop("the test is over")
        await served


@pytest.fixture(scope="module")
def exposition(tmp_path_factory: pytest.TempPathFactory) -> str:
    """See `read_exposition`."""
    return asyncio.run(read_exposition(tmp_path_factory.mktemp("node")))


def test_units_of_metrics_fit_their_names() -> None:
    """Each definition has a meaning and a unit, and the unit is in the name exactly where it is seconds or bytes."""
    for name, family in METRICS.items():
        assert family.meaning, name
        assert family.unit, name
        for unit in ("seconds", "bytes"):
            assert (family.unit == unit) == (unit in name.split("_")), name


def test_a_running_node_shows_what_is_defined(exposition: str) -> None:
    """Each family of a running node has the type and the labels of its definition; every node shows most families."""
    families = {f.name: f for f in text_string_to_metric_families(exposition) if f.name.startswith("isthmus_")}
    seen = set()
    for family in families.values():
        name = family.name if family.name in METRICS else f"{family.name}_total"
        assert family.type == ("histogram" if name.endswith("_duration_seconds") else kind_of(name)[1]), name
        for sample in family.samples:
            assert sample.labels.keys() - {"le"} == set(METRICS[name].labels), name
        seen.add(name)
    assert len(seen) > 0.7 * len(METRICS), METRICS.keys() - seen


def test_the_lag_of_each_queue_shows(exposition: str) -> None:
    """The values equal those of `isthmus lag`: no cluster has fetched, so one object of known age and size waits, for
    no known cluster. The sink's peer does not answer: the sink's metrics are unknown, and absent."""
    families = {f.name: f for f in text_string_to_metric_families(exposition)}
    values = {
        name: [
            (sample.labels["side"], sample.labels["peer_cluster"], sample.value) for sample in families[name].samples
        ]
        for name in ("isthmus_lag_objects", "isthmus_lag_unknown")
    }
    assert values == {"isthmus_lag_objects": [("source", "", 1.0)], "isthmus_lag_unknown": [("source", "", 0.0)]}
    (seconds,) = families["isthmus_lag_seconds"].samples
    assert 0 <= seconds.value < 2 * PATIENCE_S
    (size,) = families["isthmus_lag_bytes"].samples
    assert size.value > 0


def test_the_session_with_the_metastore_shows(exposition: str) -> None:
    """The metric is 1 on a serving node, and 0 on one without a connection to its metastore."""
    assert "\nisthmus_metastore_connected 1.0\n" in exposition
    session = MetastoreSession()
    assert list(session.samples()) == [("isthmus_metastore_connected", {}, False)]


def test_replication_is_timed_in_histograms(exposition: str) -> None:
    """A node that took a write shows its replication and its apply, by kind, in buckets that end in all of them."""
    families = {f.name: f for f in text_string_to_metric_families(exposition)}
    for name in ("isthmus_replicate_duration_seconds", "isthmus_apply_duration_seconds"):
        samples = {
            (sample.name.removeprefix(name), sample.labels.get("le")): sample.value
            for sample in families[name].samples
            if sample.labels["kind"] == "write"
        }
        assert samples["_bucket", "+Inf"] == samples["_count", None] == 1
        assert samples["_sum", None] >= 0
