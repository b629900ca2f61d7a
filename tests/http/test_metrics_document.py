"""docs/metrics.md against the metrics that a node knows, and against what a running one shows."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Final, NamedTuple

import pytest
from prometheus_client.parser import text_string_to_metric_families

from config.loading import load_file
from node.daemon import Node
from node.metrics import kind_of
from node.ports import free_port
from repl.metastore.memory import MemoryMetastore
from repl.metastore.port import Metastore
from repl.model.keys import Key
from repl.model.objects import Content
from repl.model.requests import WriteRequest

DOCUMENT: Final = Path(__file__).parents[2] / "docs" / "metrics.md"

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


class Row(NamedTuple):
    """A line of the table."""

    kind: str
    labels: frozenset[str]
    meaning: str
    unit: str


def documented() -> dict[str, Row]:
    """The table of docs/metrics.md, by name. A name stands in it once."""
    found: dict[str, Row] = {}
    for line in DOCUMENT.read_text().splitlines():
        if line.startswith("| `isthmus_"):
            name, kind, labels, meaning, unit = (cell.strip() for cell in line.strip().strip("|").split("|"))
            assert name.strip("`") not in found, name
            found[name.strip("`")] = Row(kind, frozenset(re.findall(r"`(\w+)`", labels)), meaning, unit)
    return found


class NodeInMemory(Node):
    """A whole node in this process, but for ZooKeeper."""

    async def _connect_metastore(self) -> Metastore:
        metastore = MemoryMetastore()
        self._metastore = metastore
        await metastore.start(self._on_session)
        return metastore


async def shown(directory: Path) -> tuple[dict[str, str], str]:
    """The help texts of a node that serves and has taken a write, and its exposition."""
    file = directory / "node.toml"
    taken: set[int] = set()
    for _ in range(3):
        taken.add(free_port(taken))
    file.write_text(SETTINGS.format(*taken))
    node = NodeInMemory(load_file(file), file)
    await node.start()
    served = asyncio.create_task(node.serve())
    try:
        async with asyncio.timeout(20):
            while not node.ready()[0]:
                await asyncio.sleep(0.01)
        await node.coordinator.write(WriteRequest(Key(b"default", b"b", b"k"), Content(b"v")))
        return dict(node.metrics.help_texts), node.metrics.render().decode()
    finally:
        node.request_stop("the test is over")
        await served


@pytest.fixture(scope="module")
def exposition(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, str], str]:
    """See `shown`."""
    return asyncio.run(shown(tmp_path_factory.mktemp("node")))


def test_the_document_has_every_metric_and_no_other(exposition: tuple[dict[str, str], str]) -> None:
    """The table of docs/metrics.md names what a node knows, with the node's own words and units that fit the names."""
    texts, _ = exposition
    rows = documented()
    missing = [f"| `{name}` | {kind_of(name)[1]} | | {texts[name]} | |" for name in sorted(texts.keys() - rows.keys())]
    assert not missing, "docs/metrics.md lacks:\n" + "\n".join(missing)
    assert not rows.keys() - texts.keys()
    assert {name: row.meaning for name, row in rows.items()} == texts
    for name, row in rows.items():
        assert row.kind == ("histogram" if name.endswith("_duration_seconds") else kind_of(name)[1]), name
        for unit in ("seconds", "bytes"):
            assert (row.unit == unit) == (unit in name.split("_")), name
        assert row.unit, name


def test_a_running_node_shows_what_the_document_says(exposition: tuple[dict[str, str], str]) -> None:
    """Each family of a node that runs has the type and the labels of its line; most families are shown by any node."""
    _, text = exposition
    rows = documented()
    families = {f.name: f for f in text_string_to_metric_families(text) if f.name.startswith("isthmus_")}
    seen = set()
    for family in families.values():
        name = family.name if family.name in rows else f"{family.name}_total"
        row = rows[name]
        assert family.type == row.kind, name
        for sample in family.samples:
            assert sample.labels.keys() - {"le"} == row.labels, name
        seen.add(name)
    assert len(seen) > 0.7 * len(rows), rows.keys() - seen


def test_replication_is_timed_in_histograms(exposition: tuple[dict[str, str], str]) -> None:
    """A node that took a write shows its replication and its apply, by kind, in buckets that end in all of them."""
    _, text = exposition
    families = {f.name: f for f in text_string_to_metric_families(text)}
    for name in ("isthmus_replicate_duration_seconds", "isthmus_apply_duration_seconds"):
        samples = {
            (sample.name.removeprefix(name), sample.labels.get("le")): sample.value
            for sample in families[name].samples
            if sample.labels["kind"] == "write"
        }
        assert samples["_bucket", "+Inf"] == samples["_count", None] == 1
        assert samples["_sum", None] >= 0
