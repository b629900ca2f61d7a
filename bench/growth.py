"""How costs grow: with keys, partitions, queues, clusters in a mesh, sizes of objects, and nodes.

    python -m bench.growth [--only KIND ...] [--json] [--most 1000000] [--limit 60] [--dir DIR]

Each kind is measured at several sizes, each with new clusters in a directory that is removed, and prints a table in
Markdown: one row a size, then how many times the smallest size's number the largest size has. Objects have 1 KB and
fresh keys where nothing else is said, and every write is synced. The cost is the CPU time of the nodes, without
ZooKeeper and the load generator. A kind ends with a note at the first size that fails, that the free memory does not
carry, or that would begin after KIND_LIMIT_S. What was not measured is unknown.

    keys         one node; cost at that fill, memory, restart after SIGKILL, trees, backup
    partitions   three nodes, three replicas; 32 and 512 clients that know the leaders
    queues       one node, nobody fetches; every queue offers every change, then only one of them does
    clusters     one node of 4 partitions each; every cluster fetches from every other, clients write to one
    objects      1 + 1 nodes, until the second cluster has all
    nodes        one cluster, three replicas; loads as for partitions
    virtual      nodes of one cluster in virtual time, without load (`bench.virtual_nodes`); only with --only virtual
"""

from __future__ import annotations

import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

import click
import psutil

from bench.figures import cpu_time, machine
from bench.loadgen import LEADER, SPREAD, VALUE_BYTES, Phase, Result
from bench.nodes import ONE_CLUSTER, REPOSITORY, TWO_CLUSTERS, BenchFailed, LoadProcess, Nodes
from isthmus.config.loader import FILE_BYTES_MAX
from isthmus.node.cli.exit_codes import CommandFailed, Exit
from isthmus.node.local import directory as places
from isthmus.queues.queue_documents import DEFINITIONS_MAX
from isthmus.repl.model.errors import IsthmusError

KEYS_LEAST: Final = 100_000
KEYS_MOST: Final = 1_000_000
PARTITIONS: Final = (12, 48, 192, 768)
QUEUES: Final = (1, 10, 100, 1_000)
CLUSTERS: Final = (2, 4, 8, 16)
OBJECT_BYTES: Final = (100, 1_000, 100_000, 10_000_000, 40_000_000)
NODES: Final = (3, 9, 27)
VIRTUAL_NODES: Final = (3, 9, 27, 100, 300)

LOAD_S: Final = 10.0
"""Most seconds of one load, but for the filling of a store, of which --limit decides."""

PART_COUNT: Final = 20_000
"""Objects of the last part of a store, whose cost is measured at that fill: some seconds of single PUTs."""

READ_COUNT: Final = 50_000
LOAD_COUNT: Final = 200_000
"""Objects of a load that LOAD_S ends: more than nodes on two cores take in that time."""

MESH_COUNT: Final = 20_000
"""Objects written to one cluster of a mesh; with 16 clusters 320,000 are stored."""

OBJECT_TOTAL_BYTES: Final = 1_000_000_000
"""Bytes written at one size of object: bounds the disk that a row takes, some four times as much."""

IN_FLIGHT_BYTES: Final = 40_000_000
"""Bytes of the objects that clients send at a time; two of 40 MB would be more than a node takes."""

FEW_CONNECTIONS: Final = 32
MANY_CONNECTIONS: Final = 512
BATCH_CONNECTIONS: Final = 8
BATCH_OBJECTS: Final = 100

MESH_PARTITIONS: Final = 4
USUAL_PARTITIONS: Final = 12
REPLICAS: Final = 3

QUEUE_LIMIT: Final = 1_000
"""References in memory of each queue: a thousand queues hold a million, some 300 MB. Others wait in the store."""

SETTLE_S: Final = 2.0
"""Idle time before a measurement, in which the work of the previous one ends."""

IDLE_S: Final = 10.0
UP_TIMEOUT_S: Final = 300.0
"""Time for the start of clusters; 768 partitions, and sixteen clusters, take longest."""

SETTLED_TIMEOUT_S: Final = 60.0
DRAIN_TIMEOUT_S: Final = 60.0
COMMAND_TIMEOUT_S: Final = 600.0
SOCKET_TIMEOUT_S: Final = 5.0
POLL_S: Final = 0.05
STATUS_RUNS: Final = 3
STATUS_CODES: Final = (Exit.OK, Exit.DIFFERS, Exit.UNAVAILABLE)
"""Codes with a report: all is well, a problem, something is unknown."""

VIRTUAL_TIMEOUT_S: Final = 7_200.0
"""Time for one size of virtual nodes: 300 take some ten minutes of one core."""

VIRTUAL: Final = "virtual"

KIND_LIMIT_S: Final = 900.0
"""No size of a kind begins later than this after the first. --most adds to it."""

MEMORY_SPARE_MB: Final = 2_000
"""Memory that stays free for others."""

Values = dict[str, float | None]
"""Column -> number; None is unknown."""

FAULTS: Final = (BenchFailed, CommandFailed, IsthmusError, OSError, psutil.Error, subprocess.SubprocessError)
"""Errors that end a kind, whose earlier rows stand."""


# --- sizes ---


def key_sizes(most: int) -> tuple[int, ...]:
    """Powers of ten from KEYS_LEAST to `most`."""
    sizes = [KEYS_LEAST]
    while sizes[-1] * 10 <= most:
        sizes.append(sizes[-1] * 10)
    return tuple(sizes)


def scaled(sizes: Sequence[int], scale: float, least: int) -> tuple[int, ...]:
    """The sizes times `scale`, none below `least`, each once."""
    return tuple(sorted({max(least, round(size * scale)) for size in sizes}))


def connections_of(object_bytes: int) -> int:
    """Clients that write objects of this size: fewer for large ones, since a node refuses bodies beyond its limit."""
    return max(1, min(FEW_CONNECTIONS, IN_FLIGHT_BYTES // max(1, object_bytes)))


# --- rows ---


class Loaded(NamedTuple):
    """A load, the CPU seconds of the measured nodes, and how long they were behind at its end."""

    result: Result
    cpu_s: float
    behind_s: float

    @property
    def cost(self) -> float:
        """CPU seconds per 100,000 objects."""
        return self.cpu_s * 100_000 / self.result.objects

    @property
    def rate(self) -> float:
        """Objects a second until all were where they belong."""
        return self.result.objects / max(1e-9, self.result.seconds + self.behind_s)


class Row(NamedTuple):
    """The measurement at one size."""

    size: int
    values: Values
    load_average: float
    """Load average of one minute at the start."""


def shown(value: float | None) -> str:
    """A number with three digits or all before the point; "unknown" for None."""
    if value is None:
        return "unknown"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def grown(rows: Sequence[Row]) -> Values:
    """Each column of the largest size divided by the one of the smallest; unknown where either is, or where that is
    zero."""
    found: Values = {}
    for column, last in rows[-1].values.items():
        first = rows[0].values.get(column)
        found[column] = last / first if last is not None and first else None
    return found


def table(kind: str, rows: Sequence[Row]) -> list[str]:
    """The lines of a Markdown table."""
    columns = list(dict.fromkeys(column for row in rows for column in row.values))
    cells = [[kind, *columns, "load average before"], ["---"] * (len(columns) + 2)]
    cells += [
        [f"{row.size:,}", *(shown(row.values.get(one)) for one in columns), shown(row.load_average)] for row in rows
    ]
    if len(rows) > 1:
        times = grown(rows)
        ratios = [f"× {shown(times[one])}" if times.get(one) is not None else "unknown" for one in columns]
        cells.append([f"× {shown(rows[-1].size / rows[0].size)}", *ratios, ""])
    return [f"| {' | '.join(line)} |" for line in cells]


class MetastoreCounts(NamedTuple):
    """What a ZooKeeper has counted since its start: requests (pings included), and transactions (sessions included)."""

    requests: int
    writes: int


def parse_counts(text: str) -> MetastoreCounts | None:
    """The counts in ZooKeeper's answer to `srvr`; None when it has none."""
    found = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in text.splitlines())}
    try:
        return MetastoreCounts(int(found["Received"]), int(found["Zxid"], 16) & 0xFFFF_FFFF)
    except (KeyError, ValueError):
        return None


def metastore_counts(nodes: Nodes) -> MetastoreCounts | None:
    """The counts of the only ZooKeeper; None when it does not answer."""
    (address,) = nodes.zookeepers.values()
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host, int(port)), SOCKET_TIMEOUT_S) as asked:
            asked.sendall(b"srvr")
            text = b"".join(iter(lambda: asked.recv(65_536), b""))
    except OSError:
        return None
    return parse_counts(text.decode("utf-8", "replace"))


# --- topologies ---


def cluster_topology(nodes: int, partitions: int) -> str:
    """One cluster, whose partitions have three replicas."""
    lines = [f'[[clusters.bench.nodes]]\nname = "n{number}"' for number in range(1, nodes + 1)]
    lines += ["[clusters.bench.replication]", f"partitions = {partitions}", f"factor = {REPLICAS}", "min_isr = 2"]
    return "\n".join(lines) + "\n"


def queue_topology(queues: int, *, all_offer: bool) -> str:
    """One node with queues of which all, or only the first, offer what the load writes."""
    tables = []
    for number in range(queues):
        rule = "any" if all_offer or not number else "bucketname:other"
        tables.append(
            f'[[clusters.bench.queues]]\nname = "q{number}"\nfilter = "{rule}"\nqueue_limit = {QUEUE_LIMIT}\n'
        )
    return ONE_CLUSTER + "".join(tables)


def mesh_names(clusters: int) -> list[str]:
    """Names of the clusters of a mesh, and of the node of each."""
    return [f"c{number}" for number in range(1, clusters + 1)]


def mesh_topology(clusters: int) -> str:
    """Clusters of one node, each of which fetches from all others."""
    names = mesh_names(clusters)
    lines = []
    for name in names:
        lines += [f"[clusters.{name}.replication]", f"partitions = {MESH_PARTITIONS}"]
        lines += [f'[[clusters.{name}.nodes]]\nname = "{name}"']
        for other in names:
            if other != name:
                lines += [f'[[clusters.{name}.queues]]\nname = "to-{other}"']
                lines += [f'[[clusters.{name}.sink.peers]]\ncluster = "{other}"\nqueue = "to-{name}"']
    return "\n".join(lines) + "\n"


def queues_in_a_file() -> int:
    """How many queues a node's config file can have: its size is the only limit."""
    return FILE_BYTES_MAX // len('[[queues]]\nname = "q00000"\n')


# --- measuring ---


@dataclass
class Lab:
    """What all measurements share. `scale` makes loads and pauses shorter, to try the program out."""

    directory: Path
    limit_s: float = 60.0
    scale: float = 1.0
    notes: list[str] = field(default_factory=list)

    def note(self, sentence: str) -> None:
        """Print a sentence after the tables, once."""
        if sentence not in self.notes:
            self.notes.append(sentence)

    def count(self, count: int) -> int:
        """A number of objects of a load."""
        return max(BATCH_OBJECTS, int(count * self.scale))

    def seconds(self, seconds: float) -> float:
        """The duration of a load, or of an idle time."""
        return max(0.5, seconds * self.scale)

    @contextmanager
    def nodes(self, topology: str) -> Iterator[tuple[Nodes, float]]:
        """Running clusters, and the seconds from the command until all partitions were online; ZooKeepers are a part of
        it. Their data is removed at the end."""
        with tempfile.TemporaryDirectory(prefix="growth-", dir=self.directory, ignore_cleanup_errors=True) as place:
            began_s = time.perf_counter()
            with Nodes(topology, Path(place) / "clusters", UP_TIMEOUT_S) as nodes:
                yield nodes, time.perf_counter() - began_s

    def load(
        self,
        what: str,
        nodes: Nodes,
        load: LoadProcess,
        names: Sequence[str],
        phase: Phase,
        after: Callable[[], None] = lambda: None,
    ) -> Loaded:
        """Run a load and then `after`, and measure the nodes `names` until both have ended."""
        time.sleep(self.seconds(SETTLE_S))
        results: list[Result] = []
        behind_s = 0.0

        def work() -> None:
            nonlocal behind_s
            results.append(load.run(phase))
            accepted_s = time.perf_counter()
            after()
            behind_s = time.perf_counter() - accepted_s

        cpu = nodes.measured(work)
        (result,) = results
        for status, count in result.failed.items():
            self.note(f"{what}: {count:,} objects with status {status}, beside {result.objects:,} that were taken")
        return Loaded(result, sum(cpu[name].total for name in names), behind_s)

    def puts(self, connections: int, first: int = 0, clients: str = SPREAD) -> Phase:
        """Single PUTs of fresh keys for LOAD_S."""
        return Phase(
            "put",
            first,
            self.count(LOAD_COUNT),
            connections=connections,
            limit_s=self.seconds(LOAD_S),
            clients=clients,
        )

    def idle(self, nodes: Nodes, names: Sequence[str]) -> float:
        """Percent of a core that all these nodes together use without load."""
        time.sleep(self.seconds(SETTLE_S))
        seconds = self.seconds(IDLE_S)
        cpu = nodes.measured(lambda: time.sleep(seconds))
        return 100 * sum(cpu[name].total for name in names) / seconds


def most_resident_mb(nodes: Nodes, names: Sequence[str]) -> float:
    """Resident memory of the node that has most."""
    return max(nodes.resident_mb(name) for name in names)


def isthmus(*arguments: str) -> tuple[float, subprocess.CompletedProcess[str]]:
    """Run a command of the product; its seconds, the start of the interpreter included, and what it printed."""
    command = [sys.executable, "-m", "isthmus.node.cli.main", *arguments]
    began_s = time.perf_counter()
    done = subprocess.run(
        command, cwd=REPOSITORY, capture_output=True, text=True, timeout=COMMAND_TIMEOUT_S, check=False
    )
    return time.perf_counter() - began_s, done


def measure_keys(lab: Lab, size: int) -> Values:
    """Fill a node, measure the last parts, kill it, and measure its restart, its trees and its backup."""
    what = f"keys, {size:,}"
    part = min(PART_COUNT, size // 10)
    first = size - 2 * part
    limit_s = lab.limit_s * max(1.0, size / 1_000_000)
    with lab.nodes(ONE_CLUSTER) as (nodes, _):
        with LoadProcess(nodes.http["node"]) as filler:  # keeps the clock of each key, so that it ends before the rest
            filled = filler.run(Phase("batch", 0, first, 0, BATCH_CONNECTIONS, BATCH_OBJECTS, limit_s=limit_s)).objects
        if filled < first:
            lab.note(f"{what}: {filled:,} of {first:,} keys were written within {limit_s:.0f} s of filling")
        with LoadProcess(nodes.http["node"]) as load:
            batch = Phase("batch", first, part, 0, BATCH_CONNECTIONS, BATCH_OBJECTS, limit_s=lab.limit_s)
            batches = lab.load(what, nodes, load, ["node"], batch)
            single = Phase("put", first + part, part, connections=FEW_CONNECTIONS, limit_s=lab.limit_s)
            puts = lab.load(what, nodes, load, ["node"], single)
            read = Phase("get", 0, min(READ_COUNT, filled), filled, connections=FEW_CONNECTIONS, limit_s=lab.limit_s)
            gets = lab.load(what, nodes, load, ["node"], read)
        values: Values = {
            "keys stored": filled + batches.result.objects + puts.result.objects,
            "CPU s per 100,000 in batches": batches.cost,
            "CPU s per 100,000 PUTs": puts.cost,
            "CPU s per 100,000 GETs": gets.cost,
            "GET p50 ms": gets.result.p50_ms,
            "resident MB": nodes.resident_mb("node"),
        }
        return values | _restarted(nodes) | _backed_up(lab, what, nodes)


def _restarted(nodes: Nodes) -> Values:
    """Kill the node after its load, start it, wait for its trees, and rebuild them."""
    places.stop_node(nodes.directory, "node", kill=True)
    began_s = time.perf_counter()
    places.start_node(nodes.directory, "node", None)
    places.wait_online(nodes.directory, places.nodes_of(nodes.directory), UP_TIMEOUT_S)
    ready_s = time.perf_counter() - began_s
    nodes.refresh()
    ready_cpu_s = cpu_time(nodes.pids["node"]).total
    trees_s: float | None = None
    while time.perf_counter() - began_s < UP_TIMEOUT_S:
        built = nodes.trees_built("node")
        if built and None not in built.values():
            trees_s = time.perf_counter() - began_s
            break
        time.sleep(POLL_S)
    values: Values = {
        "s until ready after SIGKILL": ready_s,
        "CPU s of it": ready_cpu_s,
        "s until it has trees": trees_s,
        "s of a rebuild of trees": None,
        "resident MB after it": None,
    }
    if trees_s is not None:
        began_s = time.perf_counter()
        nodes.rebuild_trees("node", UP_TIMEOUT_S, POLL_S)
        values["s of a rebuild of trees"] = time.perf_counter() - began_s
    values["resident MB after it"] = nodes.resident_mb("node")
    return values


def _backed_up(lab: Lab, what: str, nodes: Nodes) -> Values:
    """Back up the running node; the seconds are those that the backup states."""
    target = nodes.directory / "backup"
    _, done = isthmus("backup", "create", str(nodes.directory / "node" / "node.toml"), str(target), "-o", "json")
    if done.returncode:
        lab.note(f"{what}: the backup ended with code {done.returncode}: {done.stderr.strip()[-200:]}")
        return {"s of a backup": None, "backup MB": None}
    made = json.loads(done.stdout)
    return {"s of a backup": (made["ended_ms"] - made["begun_ms"]) / 1_000, "backup MB": made["bytes"] / 1e6}


def _measure_cluster(lab: Lab, what: str, names: list[str], partitions: int, more: Callable[[Nodes], Values]) -> Values:
    """Start one cluster, and measure it idle and under loads; then `more`."""
    with lab.nodes(cluster_topology(len(names), partitions)) as (nodes, up_s):
        started = metastore_counts(nodes)
        settled_s: float | None = None
        began_s = time.perf_counter()
        try:
            nodes.wait_settled(names[0], SETTLED_TIMEOUT_S)
            settled_s = time.perf_counter() - began_s
        except BenchFailed as error:
            lab.note(f"{what}: {error}")
        before, before_s = metastore_counts(nodes), time.perf_counter()
        idle = lab.idle(nodes, names)
        after, idle_s = metastore_counts(nodes), time.perf_counter() - before_s
        values: Values = {}
        with LoadProcess(*(nodes.http[name] for name in names)) as load:
            for number, connections in enumerate((FEW_CONNECTIONS, MANY_CONNECTIONS)):
                phase = lab.puts(connections, number * LOAD_COUNT, LEADER)
                loaded = lab.load(f"{what}, {connections} clients", nodes, load, names, phase)
                values[f"CPU s per 100,000 PUTs, {connections} clients"] = loaded.cost
                values[f"PUT/s, {connections} clients"] = loaded.rate
        values["MB of the largest node"] = most_resident_mb(nodes, names)
        values["idle node, % of a core"] = idle / len(names)
        values["s until online, first start"] = up_s
        values["s until leaders rest"] = settled_s
        values["metastore writes of the start"] = None if started is None else float(started.writes)
        for column, at in (("metastore requests/s, idle", 0), ("metastore writes/s, idle", 1)):
            values[column] = (after[at] - before[at]) / idle_s if before and after else None
        return values | more(nodes)


def measure_partitions(lab: Lab, size: int) -> Values:
    """Three nodes that share `size` partitions."""
    names = [f"n{number}" for number in range(1, 4)]

    def restarted(nodes: Nodes) -> Values:
        for name in names:
            places.stop_node(nodes.directory, name)
        began_s = time.perf_counter()
        for name in names:
            places.start_node(nodes.directory, name, None)
        places.wait_online(nodes.directory, places.nodes_of(nodes.directory), UP_TIMEOUT_S)
        return {"s until online after a stop of all": time.perf_counter() - began_s}

    return _measure_cluster(lab, f"partitions, {size}", names, size, restarted)


def measure_nodes(lab: Lab, size: int) -> Values:
    """A cluster of `size` nodes."""
    what = f"nodes, {size}"
    names = [f"n{number}" for number in range(1, size + 1)]

    def status(nodes: Nodes) -> Values:
        seconds = []
        for _ in range(STATUS_RUNS):
            took_s, done = isthmus("status", "--admin", nodes.admin_urls[names[0]], "-o", "json")
            if done.returncode not in STATUS_CODES or not json.loads(done.stdout)["clusters"][0]["answers"]:
                lab.note(f"{what}: isthmus status ended with code {done.returncode}: {done.stderr.strip()[-200:]}")
                return {"s of isthmus status": None}
            seconds.append(took_s)
        return {"s of isthmus status": statistics.median(seconds)}

    return _measure_cluster(lab, what, names, USUAL_PARTITIONS, status)


def measure_virtual_nodes(_lab: Lab, size: int) -> Values:
    """A cluster of `size` nodes in virtual time, in a process of its own, which ends with its memory."""
    command = [sys.executable, "-m", "bench.virtual_nodes", "--json", str(size)]
    done = subprocess.run(
        command, cwd=REPOSITORY, capture_output=True, text=True, timeout=VIRTUAL_TIMEOUT_S, check=False
    )
    if done.returncode:
        raise BenchFailed(f"{' '.join(command[1:])} ended with code {done.returncode}: {done.stderr.strip()[-200:]}")
    values: Values = json.loads(done.stdout)
    return values


def measure_queues(lab: Lab, size: int) -> Values:
    """One node with `size` queues that nobody fetches from."""
    values: Values = {}
    for all_offer, offer in ((True, "all offer"), (False, "one offers")):
        with lab.nodes(queue_topology(size, all_offer=all_offer)) as (nodes, up_s):
            idle = lab.idle(nodes, ["node"])
            with LoadProcess(nodes.http["node"]) as load:
                what = f"queues, {size}, {offer}"
                loaded = lab.load(what, nodes, load, ["node"], lab.puts(FEW_CONNECTIONS))
            values[f"CPU s per 100,000 PUTs, {offer}"] = loaded.cost
            values[f"PUT/s, {offer}"] = loaded.rate
            values[f"resident MB, {offer}"] = nodes.resident_mb("node")
            values[f"idle before, % of a core, {offer}"] = idle
            values[f"s until online, {offer}"] = up_s
    return values


def measure_clusters(lab: Lab, size: int) -> Values:
    """A mesh of `size` clusters; clients write to the first."""
    what = f"clusters, {size}"
    names = mesh_names(size)
    behind: list[str] = []
    with lab.nodes(mesh_topology(size)) as (nodes, up_s):

        def drain() -> None:
            try:
                nodes.wait_drained(names[0], DRAIN_TIMEOUT_S)
            except BenchFailed as error:
                behind.append(f"{what}: {error}")

        idle = lab.idle(nodes, names)
        with LoadProcess(nodes.http[names[0]]) as load:
            phase = Phase("put", 0, lab.count(MESH_COUNT), connections=FEW_CONNECTIONS, limit_s=lab.seconds(LOAD_S))
            loaded = lab.load(what, nodes, load, names, phase, drain)
        for sentence in behind:
            lab.note(sentence)
        return {
            "CPU s per 100,000 PUTs until all have them": None if behind else loaded.cost,
            "PUT/s until all have them": None if behind else loaded.rate,
            "PUT/s accepted": loaded.result.objects / max(1e-9, loaded.result.seconds),
            "s behind at the end": None if behind else loaded.behind_s,
            "idle, % of a core, all": idle,
            "idle node, % of a core": idle / size,
            "MB of the largest node": most_resident_mb(nodes, names),
            "s until online": up_s,
        }


def measure_objects(lab: Lab, size: int) -> Values:
    """Objects of `size` bytes from one cluster to another."""
    connections = connections_of(size)
    count = max(connections, int(min(LOAD_COUNT, OBJECT_TOTAL_BYTES // size) * lab.scale))
    with lab.nodes(TWO_CLUSTERS) as (nodes, _), LoadProcess(nodes.http["a"]) as load:
        phase = Phase("put", 0, count, connections=connections, limit_s=lab.seconds(2 * LOAD_S), value_bytes=size)
        what = f"objects, {size:,} bytes"
        loaded = lab.load(what, nodes, load, ["a", "b"], phase, lambda: _drain_to_b(nodes))
        stored_mb = loaded.result.objects * size / 1e6
        return {
            "clients": connections,
            "CPU ms per MB": 1_000 * loaded.cpu_s / stored_mb,
            "CPU ms per object": 1_000 * loaded.cpu_s / loaded.result.objects,
            "MB/s": loaded.rate * size / 1e6,
            "PUT p50 ms": loaded.result.p50_ms,
            "s behind at the end": loaded.behind_s,
            "MB of the larger node": most_resident_mb(nodes, ["a", "b"]),
        }


def _drain_to_b(nodes: Nodes) -> None:
    nodes.wait_drained("a", DRAIN_TIMEOUT_S)


# --- kinds ---


class Kind(NamedTuple):
    """One thing that grows."""

    title: str
    sizes: tuple[int, ...]
    least: int
    """The smallest size to which --scale shrinks one."""
    measure: Callable[[Lab, int], Values]
    memory_mb: Callable[[int], float]
    """Guess of the memory of all processes at a size, on the safe side."""


def kinds(most: int) -> dict[str, Kind]:
    """All kinds, in the order in which they run."""
    return {
        "keys": Kind("keys on one node", key_sizes(most), 1_000, measure_keys, lambda size: 600 + size / 1_000),
        "partitions": Kind("partitions on three nodes", PARTITIONS, 1, measure_partitions, lambda size: 900 + 3 * size),
        "queues": Kind("queues on one node", QUEUES, 1, measure_queues, lambda size: 500 + 2 * size),
        "clusters": Kind("clusters in a mesh", CLUSTERS, 2, measure_clusters, lambda size: size * (250 + 5 * size)),
        "objects": Kind(
            "bytes of an object, 1 + 1 nodes", OBJECT_BYTES, 1, measure_objects, lambda size: 700 + size / 20_000
        ),
        "nodes": Kind("nodes of a cluster", NODES, REPLICAS, measure_nodes, lambda size: 300 + 250 * size),
        VIRTUAL: Kind(
            "nodes in virtual time", VIRTUAL_NODES, REPLICAS, measure_virtual_nodes, lambda size: 300 + 20 * size
        ),
    }


def run(name: str, kind: Kind, lab: Lab, limit_s: float = KIND_LIMIT_S) -> list[Row]:
    """Measure a kind at all its sizes, until one fails, the memory does not carry it, or the time is over."""
    rows: list[Row] = []
    began_s = time.monotonic()
    for size in scaled(kind.sizes, lab.scale, kind.least):
        free_mb = psutil.virtual_memory().available / 1e6
        if time.monotonic() - began_s > limit_s:
            lab.note(f"{name}: stopped before {size:,}, after {limit_s:.0f} s")
            break
        if free_mb < kind.memory_mb(size) + MEMORY_SPARE_MB:
            lab.note(f"{name}: stopped before {size:,}, since {free_mb:,.0f} MB of memory are free")
            break
        print(f"{name}: {size:,}", file=sys.stderr)
        load_average = os.getloadavg()[0]
        try:
            values = kind.measure(lab, size)
        except FAULTS as error:
            lab.note(f"{name}: stopped at {size:,}: {' '.join(str(error).split()) or type(error).__name__}")
            break
        rows.append(Row(size, values, load_average))
    return rows


KINDS: Final = tuple(kinds(KEYS_MOST))


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--only", multiple=True, type=click.Choice(KINDS), help="Measure this kind; can be repeated.")
@click.option(
    "--most",
    default=KEYS_MOST,
    show_default=True,
    type=click.IntRange(KEYS_LEAST, 100_000_000),
    help="Most keys on one node; 10000000 takes 25 GB of disk and a quarter of an hour.",
)
@click.option(
    "--limit", "limit_s", default=60.0, show_default=True, help="Most seconds of filling for each million keys."
)
@click.option("--scale", default=1.0, hidden=True, type=click.FloatRange(0.0, 1.0, min_open=True))
@click.option(
    "--dir",
    "directory",
    type=click.Path(path_type=Path),
    help="Directory of the data; its disk determines the cost of an fsync.",
)
def main(as_json: bool, only: tuple[str, ...], most: int, limit_s: float, scale: float, directory: Path | None) -> None:
    """Measure how costs grow with keys, partitions, queues, clusters, sizes of objects, and nodes."""
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    where = machine()
    if directory is not None:
        directory.mkdir(parents=True, exist_ok=True)
    tables: dict[str, list[Row]] = {}
    with tempfile.TemporaryDirectory(prefix="isthmus-bench-", dir=directory) as place:
        lab = Lab(Path(place).absolute(), limit_s, scale)
        for name, kind in kinds(most).items():
            if name in only or not (only or name == VIRTUAL):
                more_s = 2 * limit_s * most / 1_000_000 if name == "keys" else 0.0
                tables[name] = run(name, kind, lab, KIND_LIMIT_S + more_s)
    if "queues" in tables:
        lab.note(
            f"queues: a node's file has {FILE_BYTES_MAX:,} bytes at most, enough for {queues_in_a_file():,} queues of "
            f"short names; no setting limits their number, and {DEFINITIONS_MAX} can be registered at run time"
        )
    _report(where, tables, lab, as_json)
    if not all(tables.values()):
        raise SystemExit(1)


def _document(row: Row) -> dict[str, Any]:
    values = {column: None if value is None else float(f"{value:.6g}") for column, value in row.values.items()}
    return {"size": row.size, "values": values, "load_average": round(row.load_average, 2)}


def _report(where: Mapping[str, Any], tables: Mapping[str, Sequence[Row]], lab: Lab, as_json: bool) -> None:
    if as_json:
        found = {name: [_document(row) for row in rows] for name, rows in tables.items()}
        document = {"bench": "growth", "machine": dict(where), "scale": lab.scale, "tables": found, "notes": lab.notes}
        print(json.dumps(document, ensure_ascii=False))
        return
    scale = "" if lab.scale == 1 else f"; tried out at {lab.scale:g} of the usual size, not for comparison"
    print(
        f"growth on {where['cores']} × {where['processor']}, Python {where['python']}, objects of {VALUE_BYTES:,} bytes"
        f"{scale}"
    )
    titles = kinds(KEYS_MOST)
    for name, rows in tables.items():
        if rows:
            print("", *table(titles[name].title, rows), sep="\n")
    if lab.notes:
        print("", *lab.notes, sep="\n")


if __name__ == "__main__":
    main()
