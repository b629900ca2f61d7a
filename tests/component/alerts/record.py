"""Record the metrics of clusters with faults, for the tests of the alert rules.

    python -m tests.component.alerts.record [CASE ...]

Each case starts real nodes in this process, with real listeners and a metastore in memory. It scrapes `/metrics` of all
of them once a second, makes a fault, and scrapes on. `records/CASE.json` keeps the series that the rules use. Record a
case again when its rule uses another metric, or when the product's metrics of the fault change.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import re
import sys
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from itertools import groupby
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

from prometheus_client.parser import text_string_to_metric_families

from isthmus.config.loader import load_file
from isthmus.node.daemon import Node
from isthmus.node.local import dev_certificates
from isthmus.node.local.ports import free_port
from isthmus.node.observability.service_manager import ServiceManager
from isthmus.repl.metastore.port import Metastore
from isthmus.repl.model.vclock import OFFSET_BITS
from isthmus.repl.replog.files import SystemFiles
from isthmus.repl.runtime import disk_full as disk_full_policy
from isthmus.repl.security.tls import NodeName
from isthmus.repl.shortage import DESCRIPTORS
from isthmus.repl.unforeseen import unforeseen
from tests.support.link_nodes import Proxy
from tests.support.memory_metastore import MemoryEnsemble, MemoryMetastore

RECORDS: Final = Path(__file__).parent / "records"
RULES: Final = Path(__file__).parents[3] / "deploy" / "prometheus" / "isthmus-alerts.yml"

SCRAPE_S: Final = 1.0
BEFORE_COUNT: Final = 5
"""Scrapes of the healthy clusters."""

REQUEST_S: Final = 15.0
"""Longest wait for an answer: longer than a node's own time-out for a write."""

START_S: Final = 60.0
WRITE_EVERY_S: Final = 0.1
QUEUE: Final = "to-west"

SETTINGS: Final = """\
[node]
name = "{node}"
id = {number}
cluster = "{cluster}"
data_dir = "{node}"
[listen]
http = "127.0.0.1:{http}"
admin = "127.0.0.1:{admin}"
cluster = "127.0.0.1:{links}"
[metastore]
hosts = "127.0.0.1:1"
{more}"""

SOURCE: Final = f'[[queues]]\nname = "{QUEUE}"\n'


def replicated(factor: int, min_isr: int) -> str:
    """The section of a node's file."""
    return f"[replication]\npartitions = 4\nfactor = {factor}\nmin_isr = {min_isr}\n"


def sink_of(url: str, discover: str = "false") -> str:
    """The sections of a node that fetches from `url`, and from the other nodes of its cluster if it discovers them."""
    return f'[sink]\ndiscover = {discover}\npoll = "1s"\n[[sink.peers]]\nurl = "{url}"\nqueue = "{QUEUE}"\n'


def fullsync_with(url: str) -> str:
    """The section of a node that compares with the cluster at `url`, 24 times a day."""
    return f'[[fullsync]]\nname = "west"\nurls = "{url}"\nqueue = "{QUEUE}"\n'


async def http(port: int, method: str, path: str, body: bytes = b"", kind: str = "text/plain") -> tuple[int, bytes]:
    """(status, body) of an answer. Raises OSError, TimeoutError."""
    async with asyncio.timeout(REQUEST_S):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            head = (
                f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nConnection: close\r\nContent-Type: {kind}\r\n"
            )
            writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
            answer = await reader.read()
        finally:
            writer.close()
    head, _, found = answer.partition(b"\r\n\r\n")  # type: ignore[assignment]
    if not answer:
        raise ConnectionError("closed without an answer")
    return int(answer.split(None, 2)[1]), found


class RecordedNode(Node):
    """A node whose metastore is in memory. `memory` is its session."""

    def __init__(self, file: Path, ensemble: MemoryEnsemble) -> None:
        super().__init__(load_file(file), file, ServiceManager({}))
        self._ensemble = ensemble

    async def _connect_metastore(self) -> Metastore:
        self.memory = MemoryMetastore(self._ensemble)
        self._metastore = self.memory
        await self.memory.start(self._on_session)
        return self.memory


class RecordedCluster:
    """Nodes of one cluster, by name."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name = name
        self.folder = folder
        self.ensemble = MemoryEnsemble()
        self.ports: dict[str, tuple[int, int, int]] = {}
        self.nodes: dict[str, RecordedNode] = {}
        self._served: dict[str, asyncio.Task[int]] = {}
        folder.mkdir()

    @property
    def url(self) -> str:
        """The first node's client listener."""
        return f"http://127.0.0.1:{next(iter(self.ports.values()))[0]}"

    def define(self, node: str, more: str) -> None:
        """Write the node's file. It has ports of its own, and keeps them."""
        if node not in self.ports:
            taken = {port for ports in self.ports.values() for port in ports}
            found: list[int] = []
            while len(found) < 3:
                found.append(free_port(taken | set(found)))
            self.ports[node] = (found[0], found[1], found[2])
        client, admin, links = self.ports[node]
        number = list(self.ports).index(node) + 1
        text = SETTINGS.format(
            node=node, number=number, cluster=self.name, http=client, admin=admin, links=links, more=more
        )
        (self.folder / f"{node}.toml").write_text(text)

    async def start(self, *names: str) -> None:
        """Start these nodes together."""
        for name in names:
            self.nodes[name] = RecordedNode(self.folder / f"{name}.toml", self.ensemble)
        await asyncio.gather(*(self.nodes[name].start() for name in names))
        for name in names:
            self._served[name] = asyncio.create_task(self.nodes[name].serve())

    async def ready(self) -> None:
        """Wait until all nodes serve all their replicas."""
        async with asyncio.timeout(START_S):
            while not all(node.ready()[0] and node.services.runtime.partitions for node in self.nodes.values()):
                await asyncio.sleep(0.05)

    async def stop(self, *names: str) -> None:
        """Stop these nodes, one after the other."""
        for name in names:
            self.nodes.pop(name).request_stop("the recording wants it")
            await self._served.pop(name)

    async def post(self, at: str, path: str, /, **body: object) -> dict[str, Any]:
        """An act of an operator at node `at`."""
        status, answer = await http(self.ports[at][1], "POST", path, json.dumps(body).encode(), "application/json")
        assert status < 300, (path, status, answer)
        found: dict[str, Any] = json.loads(answer)
        return found

    async def put(self, node: str, key: str, value: bytes, bucket_type: str = "default") -> int:
        """Write at `node`; the status."""
        path = f"/types/{bucket_type}/buckets/b/keys/{key}"
        return (await http(self.ports[node][0], "PUT", path, value))[0]


class Recording:
    """The clusters of a case, and the scrapes of them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.clusters: list[RecordedCluster] = []
        self.fault_at = 0
        self.scrapes: list[dict[str, float]] = []
        self.proxies: list[Proxy] = []
        self._load: list[asyncio.Task[None]] = []
        self._began_s = time.time()

    async def cluster(self, name: str, nodes: int = 1, *more: str) -> RecordedCluster:
        """A cluster of so many nodes that serve, with these sections in their files."""
        cluster = RecordedCluster(name, self.folder / name)
        names = [f"n{number}" for number in range(1, nodes + 1)]
        for node in names:
            cluster.define(node, "".join(more))
        self.clusters.append(cluster)
        await cluster.start(*names)
        await cluster.ready()
        return cluster

    async def pair(self, *more: str, through: Callable[[str], str] = str, west: str = "") -> Any:
        """Cluster east with a queue, and west, which fetches from it; a change has crossed."""
        east = await self.cluster("east", 1, replicated(1, 1), SOURCE, *more)
        other = await self.cluster("west", 1, replicated(1, 1), west, sink_of(through(east.url)))
        assert await east.put("n1", "first", b"v") == 204
        async with asyncio.timeout(START_S):
            while (await http(other.ports["n1"][0], "GET", "/types/default/buckets/b/keys/first"))[0] != 200:
                await asyncio.sleep(0.1)
        return east, other

    async def proxied(self, port: int) -> Proxy:
        """A proxy before a port."""
        proxy = Proxy(port)
        await proxy.start()
        self.proxies.append(proxy)
        return proxy

    def load(self, cluster: RecordedCluster, *, bucket_type: str = "default") -> None:
        """Clients that write at all nodes that live, from now on."""

        async def write(client: int) -> None:
            count = 0
            while True:
                count += 1
                for node in list(cluster.nodes):
                    with contextlib.suppress(OSError, TimeoutError):
                        await cluster.put(node, f"k{client}-{count}", b"v%d" % count, bucket_type)
                await asyncio.sleep(WRITE_EVERY_S)

        self._load += [asyncio.create_task(write(client)) for client in range(3)]

    async def healthy(self) -> None:
        """Scrape before the fault."""
        await self.scrape(BEFORE_COUNT)
        self.fault_at = len(self.scrapes)

    async def scrape(self, count: int) -> None:
        """Scrape every node that was ever started this many times."""
        for _ in range(count):
            targets = [(cluster, node) for cluster in self.clusters for node in cluster.ports]
            found = await asyncio.gather(*(self._scraped(cluster, node) for cluster, node in targets))
            self.scrapes.append({name: value for part in found for name, value in part.items()})
            await asyncio.sleep(SCRAPE_S)

    async def _scraped(self, cluster: RecordedCluster, node: str) -> dict[str, float]:
        target = {"job": "isthmus", "cluster": cluster.name, "instance": f"{cluster.name}-{node}:8099"}
        peers = {
            f"http://127.0.0.1:{port}": f"http://{other.name}-{name}:8098"
            for other in self.clusters
            for name, ports in other.ports.items()
            for port in (ports[0], *(proxy.port for proxy in self.proxies))
        }
        try:
            status, text = await http(cluster.ports[node][1], "GET", "/metrics")
            assert status == 200, text
        except (OSError, TimeoutError):
            return {series("up", target): 0}
        found: dict[str, float] = {series("up", target): 1}
        for family in text_string_to_metric_families(text.decode()):
            for sample in family.samples:
                labels = {name: peers.get(value, value) for name, value in sample.labels.items()}
                value = float(sample.value)
                if math.isnan(value):
                    continue  # not known: as if it were not there
                if "_timestamp_seconds" in sample.name:
                    value -= self._began_s  # promtool's clock begins at 0
                found[series(sample.name, {**labels, **target})] = int(value) if value.is_integer() else round(value, 3)
        return found

    async def close(self) -> None:
        """End everything."""
        for task in self._load:
            task.cancel()
        await asyncio.gather(*self._load, return_exceptions=True)
        for cluster in reversed(self.clusters):
            await cluster.stop(*list(cluster.nodes))
        for proxy in self.proxies:
            await proxy.stop()

    def document(self, case: str, fault: str, wanted: Iterable[str]) -> dict[str, Any]:
        """The record: series -> runs of [value, how often]; null where a node did not answer."""
        names = sorted({name for scrape in self.scrapes for name in scrape})
        kept = set(wanted)
        return {
            "case": case,
            "fault": fault,
            "fault_at": self.fault_at,
            "series": {
                name: [[value, len(list(run))] for value, run in groupby(one.get(name) for one in self.scrapes)]
                for name in names
                if name.partition("{")[0] in kept
            },
        }


def series(name: str, labels: Mapping[str, str]) -> str:
    """A series in Prometheus' notation."""
    return name + "{" + ",".join(f'{key}="{value}"' for key, value in sorted(labels.items())) + "}"


def recorded_metrics() -> set[str]:
    """Names of the metrics that the rules use, but for what the nodes judge themselves (`node.services.finding_codes`):
    rules on findings are tested on series that are made for them."""
    used = {"up", *re.findall(r"\bisthmus_[a-z_]+", RULES.read_text())}
    return used - {"isthmus_findings", "isthmus_findings_reporter"}


# -- faults of nodes --------------------------------------------------------------------------------------------------


@contextmanager
def free_space(cluster: RecordedCluster, node: str, free_bytes: int) -> Iterator[None]:
    """The disk of a node's log reports so much free space."""
    real, folder = SystemFiles.free_bytes, cluster.folder / node

    def measured(files: SystemFiles, directory: Path) -> int:
        return free_bytes if directory.is_relative_to(folder) else real(files, directory)

    with patch.object(SystemFiles, "free_bytes", measured):
        yield


@contextmanager
def stalled_logs(nodes: Iterable[RecordedNode]) -> Iterator[None]:
    """The disks of these nodes' logs write nothing for the block."""
    go_on = threading.Event()

    def stall(tail: Any) -> None:
        write = tail.write

        def waits(*runs: Any, **how: Any) -> Any:
            go_on.wait()
            return write(*runs, **how)

        tail.write = waits

    for node in nodes:
        stall(node.services.replog._writer._tail)
    try:
        yield
    finally:
        go_on.set()


async def healthy(at: Recording) -> None:
    """None: three nodes and one that fetches from them, under load, with full-sync."""
    west = await at.cluster("west", 1, replicated(1, 1))
    east = await at.cluster("east", 3, replicated(3, 2), SOURCE, fullsync_with(west.url))
    await west.stop("n1")
    west.define("n1", replicated(1, 1) + sink_of(east.url, "true"))
    await west.start("n1")
    await west.ready()
    await east.post("n1", "/admin/fullsync/run", kind="all")
    at.load(east)
    await at.scrape(5)
    await at.healthy()
    await at.scrape(15)


async def node_down(at: Recording) -> None:
    """One of three nodes is stopped."""
    east = await at.cluster("east", 3, replicated(3, 2))
    at.load(east)
    await at.healthy()
    await east.stop("n3")
    await at.scrape(12)


async def writes_refused(at: Recording) -> None:
    """Two of three nodes are stopped: one replica is in sync, and min-ISR is 2."""
    east = await at.cluster("east", 3, replicated(3, 2))
    at.load(east)
    await at.healthy()
    await east.stop("n2", "n3")
    await at.scrape(15)


async def stalled_followers(at: Recording) -> None:
    """The disks of two followers hang."""
    east = await at.cluster("east", 3, replicated(3, 2))
    at.load(east)
    await at.healthy()
    with stalled_logs([east.nodes["n2"], east.nodes["n3"]]):
        await at.scrape(40)


async def partition_offline(at: Recording) -> None:
    """Both nodes that hold replicas are stopped; a third one is up."""
    east = await with_spare_node(at)
    await at.healthy()
    await east.stop("n2", "n1")
    await at.scrape(10)


async def unclean_election(at: Recording) -> None:
    """The node whose replicas were in sync last is lost; an operator forces the other one's to lead."""
    east = await with_spare_node(at)
    await at.healthy()
    await east.stop("n2")
    await at.scrape(3)
    assert await east.put("n1", "lost", b"v") == 204
    await east.stop("n1")
    await at.scrape(3)
    await east.start("n2")
    await at.scrape(3)
    for partition in range(4):
        path = f"/admin/partitions/{partition}/force-leader"
        async with asyncio.timeout(START_S):
            while True:
                plan = await east.post("n3", path, node="n2", dry_run=True)
                with contextlib.suppress(AssertionError):
                    await east.post("n3", path, node="n2", version=plan["version"])
                    break
                await asyncio.sleep(0.5)
    await at.scrape(8)


async def with_spare_node(at: Recording) -> RecordedCluster:
    """Nodes n1 and n2 with all replicas, and n3 without any."""
    east = await at.cluster("east", 2, replicated(2, 1))
    east.define("n3", replicated(2, 1))
    await east.start("n3")
    async with asyncio.timeout(START_S):
        while len(east.nodes["n3"].services.controller.records) < 4:
            await asyncio.sleep(0.1)
    return east


async def metastore_unreachable(at: Recording) -> None:
    """The connection to the metastore breaks, and the session lives on."""
    east = await at.cluster("east", 1, replicated(1, 1))
    at.load(east)
    await at.healthy()
    east.nodes["n1"].memory.disconnect()
    await at.scrape(8)
    east.nodes["n1"].memory.reconnect()


async def not_registered(at: Recording) -> None:
    """Another process registers under the node's name."""
    east = await at.cluster("east", 1, replicated(1, 1))
    await at.healthy()
    found = east.ensemble.read("/nodes/n1")
    assert found is not None
    east.ensemble.delete("/nodes/n1", found[1].version)
    east.ensemble.create("/nodes/n1", found[0], east.ensemble.new_session())
    await at.scrape(10)


async def document_unreadable(at: Recording) -> None:
    """A partition's record is overwritten by hand."""
    east = await at.cluster("east", 1, replicated(1, 1))
    await at.healthy()
    found = east.ensemble.read("/p/0")
    assert found is not None
    east.ensemble.set("/p/0", b"written by hand", found[1].version)
    await at.scrape(8)


async def metastore_rolled_back(at: Recording) -> None:
    """The metastore is restored from a copy that is older than the last elections."""
    east = await at.cluster("east", 1, replicated(1, 1))
    await at.healthy()
    older = east.ensemble.copied()
    await east.stop("n1")
    await east.start("n1")
    await east.ready()
    await at.scrape(2)
    await east.stop("n1")
    east.ensemble.go_back(older)
    await east.start("n1")
    await at.scrape(8)


async def disk_full(at: Recording) -> None:
    """100 MB are free on one of three disks."""
    east = await at.cluster("east", 3, replicated(3, 2))
    at.load(east)
    await at.healthy()
    with free_space(east, "n3", 100_000_000):
        await at.scrape(25)


async def disk_nearly_full(at: Recording) -> None:
    """900 MB are free on one of three disks."""
    east = await at.cluster("east", 3, replicated(3, 2))
    at.load(east)
    await at.healthy()
    with free_space(east, "n3", 900_000_000):
        await at.scrape(8)


async def open_files_nearly_short(at: Recording) -> None:
    """Nine tenths of the file descriptors of a node's process are open."""
    await at.cluster("east", 1, replicated(1, 1))
    await at.healthy()
    with patch.object(disk_full_policy, "open_file_count", lambda: 9 * DESCRIPTORS.limit // 10):
        await at.scrape(5)


async def inodes_nearly_short(at: Recording) -> None:
    """1,000 files can still be created on one of three disks."""
    east = await at.cluster("east", 3, replicated(3, 2))
    short = east.folder / "n3"
    free = {"n3": 1_000_000}

    def measured(_files: SystemFiles, directory: Path) -> int:
        return free["n3"] if directory.is_relative_to(short) else 1_000_000

    with patch.object(SystemFiles, "free_inodes", measured):
        await asyncio.sleep(2)
        await at.healthy()
        free["n3"] = 1_000
        await asyncio.sleep(2)
        await at.scrape(5)


async def unforeseen_errors(at: Recording) -> None:
    """A step that a node repeats each second fails twice by a defect."""
    east = await at.cluster("east", 1, replicated(1, 1))
    await at.healthy()
    failures = iter(range(2))

    def fails(*_: object) -> list[object]:
        if next(failures, None) is not None:
            raise KeyError("a defect")
        return []

    runtime = east.nodes["n1"].services.runtime
    with patch.dict(unforeseen._counts), patch.object(runtime._disk_full, "check", fails):
        await at.scrape(5)


async def actors_renewed(at: Recording) -> None:
    """West tells a counter of one partition of east that east's log lacks."""
    east = await at.cluster("east", 1, replicated(1, 1))
    await at.healthy()
    services = east.nodes["n1"].services
    place = next(iter(services.runtime.partitions.values()))
    services.witness.renewal.learn({place.actor: place.replica.epoch << OFFSET_BITS | 1_000_000}, "west")
    await at.scrape(8)


# -- faults between clusters ------------------------------------------------------------------------------------------


async def link_cut(at: Recording) -> None:
    """Connections from west to east are refused, for longer than east keeps a queue in memory."""
    east = await at.cluster("east", 1, replicated(1, 1), SOURCE)
    proxy = await at.proxied(east.ports["n1"][0])
    await at.cluster("west", 1, replicated(1, 1), sink_of(f"http://127.0.0.1:{proxy.port}"))
    at.load(east)
    await at.scrape(3)
    await at.healthy()
    await proxy.stop()
    await at.scrape(75)


async def queue_throttled(at: Recording) -> None:
    """Serving is limited to one change a second, while hundreds wait."""
    east, _ = await at.pair()
    await at.healthy()
    await east.post("n1", f"/admin/queues/{QUEUE}/throttle", objects_per_second=1)
    for number in range(300):
        assert await east.put("n1", f"k{number}", b"v") == 204
    await at.scrape(100)


async def queue_suspended(at: Recording) -> None:
    """An operator suspends serving."""
    east, _ = await at.pair()
    at.load(east)
    await at.healthy()
    await east.post("n1", f"/admin/queues/{QUEUE}/suspend", what=["serving"], reason="maintenance")
    await at.scrape(10)


async def publishing_suspended(at: Recording) -> None:
    """An operator suspends publishing."""
    east, _ = await at.pair()
    await at.healthy()
    await east.post("n1", f"/admin/queues/{QUEUE}/suspend", what=["publishing"], reason="a bulk load")
    await at.scrape(8)


async def fullsync_late(at: Recording) -> None:
    """The last check that ended in sync began five hours ago, of 24 a day."""
    west = await at.cluster("west", 1, replicated(1, 1))
    east = await at.cluster("east", 1, replicated(1, 1), SOURCE, fullsync_with(west.url))
    peer = east.nodes["n1"].services.fullsync.scheduler.peers["west"]
    await east.post("n1", "/admin/fullsync/run", kind="all")
    async with asyncio.timeout(START_S):
        while not peer.history.proven_ms:
            await asyncio.sleep(0.1)
    await at.healthy()
    for name in peer.history.proven_ms:
        peer.history.proven_ms[name] -= 5 * 3_600_000
    await at.scrape(8)


async def fullsync_never(at: Recording) -> None:
    """The compared cluster has never answered."""
    await at.cluster("east", 1, replicated(1, 1), SOURCE, fullsync_with("http://127.0.0.1:9"))
    await at.scrape(5)


# -- certificates -----------------------------------------------------------------------------------------------------


async def certified(at: Recording, days: float) -> None:
    """A node with a certificate that is valid for so long."""
    folder = at.folder / "security"
    dev_certificates.make_certificates(folder, [NodeName("east", "n1")], days=days)
    files = f'certificate = "{folder}/n1.crt"\nkey = "{folder}/n1.key"\nauthority = "{folder}/ca.crt"\n'
    tls = f'[tls]\n{files}http = "allow"\nadmin = "allow"\n'
    await at.cluster("east", 1, replicated(1, 1), tls)
    await at.scrape(5)


async def certificate_valid(at: Recording) -> None:
    """None: a certificate is valid for a year."""
    await certified(at, 365)


async def certificate_expires(at: Recording) -> None:
    """A certificate is valid for ten days."""
    await certified(at, 10)


async def certificate_expires_now(at: Recording) -> None:
    """A certificate is valid for one day."""
    await certified(at, 1)


async def audit_lines_lost(at: Recording) -> None:
    """The audit log is on a full disk, and an operator sets an option."""
    east = await at.cluster("east", 1, replicated(1, 1))
    path = "/admin/options/replication.max.time.lag.millis/set"
    await east.post("n1", path, value=4_000)
    await at.healthy()
    journal = east.nodes["n1"].services.journal
    (file,) = journal.directory.glob("0*.jsonl")
    file.unlink()
    file.symlink_to("/dev/full")
    journal._acts.close()
    await east.post("n1", path, value=5_000)
    await at.scrape(5)


CASES: Final[Mapping[str, Callable[[Recording], Awaitable[None]]]] = {
    function.__name__.replace("_", "-"): function
    for function in (
        healthy, node_down, writes_refused, stalled_followers, partition_offline, unclean_election,
        metastore_unreachable, not_registered, document_unreadable, metastore_rolled_back, disk_full, disk_nearly_full,
        open_files_nearly_short, inodes_nearly_short, unforeseen_errors, actors_renewed,
        link_cut, queue_throttled, queue_suspended, publishing_suspended,
        fullsync_late, fullsync_never, certificate_valid,
        certificate_expires, certificate_expires_now, audit_lines_lost,
    )
}  # fmt: skip
"""Case -> function that makes its fault; its docstring names the fault."""


@asynccontextmanager
async def recording() -> AsyncIterator[Recording]:
    """A recording in a folder of its own."""
    with tempfile.TemporaryDirectory() as folder:
        made = Recording(Path(folder))
        try:
            yield made
        finally:
            await made.close()


async def record(case: str) -> dict[str, Any]:
    """The record of a case."""
    async with recording() as at:
        await CASES[case](at)
        return at.document(case, (CASES[case].__doc__ or "").strip(), recorded_metrics())


def main(names: list[str]) -> None:
    """Record these cases, or all."""
    for case in names or CASES:
        found = asyncio.run(record(case))
        lines = [f"  {json.dumps(name)}: {json.dumps(runs)}" for name, runs in found.pop("series").items()]
        head = ",\n".join(f" {json.dumps(key)}: {json.dumps(value)}" for key, value in found.items())
        text = "{\n" + head + ',\n "series": {\n' + ",\n".join(lines) + "\n }\n}\n"
        (RECORDS / f"{case}.json").write_text(text)
        sys.stderr.write(f"{case}: {len(lines)} series\n")


if __name__ == "__main__":
    main(sys.argv[1:])
