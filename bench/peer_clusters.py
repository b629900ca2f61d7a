"""The systems that `bench.peers` compares: clusters of Isthmus, etcd and NATS on loopback.

A system starts in an empty directory on free ports, and stops all its processes. The servers of etcd and NATS come from
the packages of the distribution and run with default settings, except where a constant gives the reason.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Final, NamedTuple

import psutil

from bench import nats_load
from bench.figures import CpuTime, cpu_time
from bench.nodes import BenchFailed, LoadProcess, Nodes
from isthmus.node.local import supervisor_client
from isthmus.node.local.child_process import ChildSpec, Restart
from isthmus.node.local.ports import free_port
from isthmus.node.local.process_id import ProcessId
from isthmus.node.local.supervisor import Spec
from isthmus.repl.http.client import session

CLUSTER_A: Final = "cluster A"
CLUSTER_B: Final = "cluster B"
ZOOKEEPER: Final = "ZooKeeper"

HOST: Final = "127.0.0.1"
UP_TIMEOUT_S: Final = 90.0
"""Time limit for the start of servers and the election of their leaders, which take seconds on an idle machine."""

READY_POLL_S: Final = 0.2
DRAIN_TIMEOUT_S: Final = 180.0
DRAIN_POLL_S: Final = 0.05
REQUEST_TIMEOUT_S: Final = 5.0
VERSION_TIMEOUT_S: Final = 10.0
OWNER_LINGER_MS: Final = 2_000
"""Time after which servers stop when the benchmark was killed."""

DAEMON_DIRECTORIES: Final = ("/usr/sbin", "/usr/local/sbin")
"""Directories of servers that are not on the PATH of every user."""


class System(ABC):
    """The servers of one system. `clusters`: their process ids, by cluster."""

    def __init__(self) -> None:
        self.clusters: dict[str, list[int]] = {}
        self.notes: tuple[str, ...] = ()
        """Sentences to print after the figures."""

    @property
    @abstractmethod
    def title(self) -> str:
        """Name, version and shape, for reports."""

    @abstractmethod
    def start(self, directory: Path) -> None:
        """Start all servers and wait until they accept writes. Raises BenchFailed, LocalFault."""

    @abstractmethod
    def stop(self) -> None:
        """Stop all servers, also after a failed start."""

    @abstractmethod
    def load(self) -> LoadProcess:
        """A load generator whose clients are spread over the nodes of cluster A."""

    @abstractmethod
    def drain(self) -> None:
        """Wait until cluster B has all objects that A acknowledged. Raises BenchFailed on time-out."""

    def cpu(self) -> dict[str, CpuTime]:
        """CPU time of each cluster so far, all threads included. Raises BenchFailed when a process has ended."""
        try:
            return {name: _sum(cpu_time(pid) for pid in pids) for name, pids in self.clusters.items()}
        except psutil.Error as error:
            raise BenchFailed(f"{self.title}: {error}") from error


def _sum(times: Iterable[CpuTime]) -> CpuTime:
    user, system = zip(*times, strict=True)
    return CpuTime(sum(user), sum(system))


class Running:
    """Context manager that starts a system and stops it."""

    def __init__(self, system: System, directory: Path) -> None:
        self._system = system
        self._directory = directory

    def __enter__(self) -> System:
        try:
            self._system.start(self._directory)
        except BaseException:
            self._system.stop()
            raise
        return self._system

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._system.stop()


# --- Isthmus ---


class Isthmus(System):
    """Two clusters of `nodes` nodes; every node is a replica of every partition. B fetches from A. `even`: leaders are
    always on all nodes."""

    def __init__(self, nodes: int, partitions: int, *, even: bool = False) -> None:
        super().__init__()
        self._even = even
        self._nodes_a_cluster = nodes
        self._partitions = partitions
        self._running: Nodes | None = None

    @property
    def title(self) -> str:
        """Nodes and partitions."""
        where = ", leaders on all nodes" if self._even else ""
        return f"Isthmus {self._nodes_a_cluster} + {self._nodes_a_cluster}, {self._partitions} partitions{where}"

    @property
    def nodes(self) -> Nodes:
        """The running nodes."""
        assert self._running is not None
        return self._running

    def names(self, cluster: str) -> list[str]:
        """Names of the nodes of cluster "a" or "b"."""
        return [f"{cluster}{number}" for number in range(1, self._nodes_a_cluster + 1)]

    def urls(self, cluster: str) -> list[str]:
        """HTTP URLs of the nodes of cluster "a" or "b"."""
        return [self.nodes.http[name] for name in self.names(cluster)]

    def start(self, directory: Path) -> None:
        """Start both clusters and wait until every partition is online."""
        self._running = Nodes(self.topology(), directory)
        self._running.__enter__()
        pids = self._running.pids
        self.clusters = {
            CLUSTER_A: [pids[name] for name in self.names("a")],
            CLUSTER_B: [pids[name] for name in self.names("b")],
            ZOOKEEPER: [pid for name, pid in pids.items() if name.startswith("zookeeper")],
        }
        for cluster in "ab":
            self._running.wait_settled(f"{cluster}1")

    def topology(self) -> str:
        """The topology in the form that `isthmus local` reads."""
        lines = []
        for cluster in "ab":
            lines += [f'[[clusters.{cluster}.nodes]]\nname = "{name}"' for name in self.names(cluster)]
            lines += [f"[clusters.{cluster}.replication]", f"partitions = {self._partitions}"]
            lines += [f"factor = {self._nodes_a_cluster}", f"min_isr = {min(2, self._nodes_a_cluster)}"]
            lines += ['balance_by = "count"'] if self._even else []
        lines += ["[[clusters.a.queues]]", 'name = "to-b"']
        lines += ["[[clusters.b.sink.peers]]", 'cluster = "a"', 'queue = "to-b"']
        return "\n".join(lines) + "\n"

    def stop(self) -> None:
        """Stop both clusters."""
        if self._running is not None:
            self._running.__exit__(None, None, None)

    def load(self) -> LoadProcess:
        """A load generator for HTTP."""
        return LoadProcess(*self.urls("a"))

    def leading(self) -> int:
        """How many nodes of A lead."""
        leaders = self.nodes.admin["a1"].get("/admin/leaders")["leaders"]
        return sum(count > 0 for count in leaders.values())

    def drain(self) -> None:
        """Wait until the queues of all nodes of A are empty."""
        for name in self.names("a"):
            self.nodes.wait_drained(name, DRAIN_TIMEOUT_S, DRAIN_POLL_S)


# --- etcd and NATS ---


class Program(NamedTuple):
    """A server program that must be installed."""

    name: str
    package: str
    """Name of the Debian package."""

    def path(self) -> str | None:
        """Path of the executable; None when it is not installed."""
        return shutil.which(self.name, path=os.pathsep.join((os.environ.get("PATH", ""), *DAEMON_DIRECTORIES)))

    def version(self) -> tuple[int, ...]:
        """The installed version. Raises BenchFailed when the program prints none."""
        path = self.path()
        assert path is not None
        try:
            done = subprocess.run([path, "--version"], capture_output=True, timeout=VERSION_TIMEOUT_S, check=False)
        except (OSError, subprocess.SubprocessError) as error:
            raise BenchFailed(f"{self.name} printed no version: {error}") from error
        return parse_version((done.stdout + done.stderr).decode(errors="replace"))


def parse_version(text: str) -> tuple[int, ...]:
    """The first dotted number in a text. Raises BenchFailed without one."""
    found = re.search(r"\d+(\.\d+)+", text)
    if found is None:
        raise BenchFailed(f"no version in {text[:80]!r}")
    return tuple(int(part) for part in found[0].split("."))


ETCD: Final = Program("etcd", "etcd-server")
NATS: Final = Program("nats-server", "nats-server")


class Servers:
    """Processes under a supervisor, which also stops them when the benchmark is killed."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._ports: set[int] = set()
        self._children: list[ChildSpec] = []

    def port(self) -> int:
        """A free port, different from all earlier ones."""
        port = free_port(self._ports)
        self._ports.add(port)
        return port

    def add(self, name: str, *argv: str) -> None:
        """Add a server. It is not restarted when it exits."""
        log = str(self._directory / f"{name}.log")
        self._children.append(ChildSpec(name, argv, str(self._directory), log, restart=Restart.NEVER))

    def start(self) -> None:
        """Start all servers. Raises LocalFault."""
        supervisor_client.launch(
            self._directory, Spec(tuple(self._children), ProcessId.of(os.getpid()), OWNER_LINGER_MS)
        )

    def stop(self) -> None:
        """Stop all servers."""
        supervisor_client.stop(self._directory)

    def pids(self) -> dict[str, int]:
        """Process ids by name. Raises BenchFailed, with the last line of its log, when a server is not running."""
        state = supervisor_client.running_state(self._directory)
        found: dict[str, int] = {}
        for child in self._children:
            process = None if state is None else state["children"][child.name]["process"]
            if process is None:
                raise BenchFailed(f"{child.name} exited: {supervisor_client.last_line(Path(child.log))}")
            found[child.name] = int(process["pid"])
        return found

    def wait(self, ready: Callable[[], object], what: str) -> None:
        """Wait until `ready()` is true; OSError and ValueError count as false. Raises BenchFailed on time-out, and when
        a server exits."""
        deadline_s = time.monotonic() + UP_TIMEOUT_S
        last = ""
        while True:
            try:
                if ready():
                    return
            except (OSError, ValueError) as error:
                last = f": {error}"
            self.pids()
            if time.monotonic() > deadline_s:
                raise BenchFailed(f"{what} not within {UP_TIMEOUT_S:.0f} s{last}")
            time.sleep(READY_POLL_S)


class Etcd(System):
    """One cluster of three nodes; a write is on the disks of two of them before the response."""

    NODES: Final = 3
    QUOTA_BYTES: Final = 8 << 30
    """The largest quota that etcd recommends. With the default of 2 GB it rejects writes during a long run."""

    def __init__(self, clients_a_connection: int) -> None:
        super().__init__()
        self._clients_a_connection = clients_a_connection
        self._version = ETCD.version()
        self._servers: Servers | None = None
        self._addresses: list[str] = []

    @property
    def title(self) -> str:
        """Version and nodes."""
        return f"etcd {_dotted(self._version)}, {self.NODES} nodes{_sharing(self._clients_a_connection)}"

    def start(self, directory: Path) -> None:
        """Start three nodes and wait until each reports that it is healthy."""
        path = ETCD.path()
        assert path is not None
        directory.mkdir(parents=True, exist_ok=True)
        servers = self._servers = Servers(directory)
        names = [f"etcd{number}" for number in range(1, self.NODES + 1)]
        peers = {name: f"http://{HOST}:{servers.port()}" for name in names}
        self._addresses = [f"{HOST}:{servers.port()}" for _ in names]
        for name, address in zip(names, self._addresses, strict=True):
            options = {
                "name": name,
                "data-dir": str(directory / name),
                "listen-peer-urls": peers[name],
                "initial-advertise-peer-urls": peers[name],
                "listen-client-urls": f"http://{address}",
                "advertise-client-urls": f"http://{address}",
                "initial-cluster": ",".join(f"{peer}={url}" for peer, url in peers.items()),
                "initial-cluster-state": "new",
                "quota-backend-bytes": str(self.QUOTA_BYTES),
                "log-level": "error",
            }
            servers.add(name, path, *(f"--{option}={value}" for option, value in options.items()))
        servers.start()
        for address in self._addresses:
            servers.wait(partial(_healthy, address), f"etcd at {address} is healthy")
        self.clusters = {CLUSTER_A: list(servers.pids().values())}

    def stop(self) -> None:
        """Stop all nodes."""
        if self._servers is not None:
            self._servers.stop()

    def load(self) -> LoadProcess:
        """A load generator for gRPC."""
        arguments = (str(self._clients_a_connection),)
        return LoadProcess(*self._addresses, arguments=arguments, module="bench.etcd_load")

    def drain(self) -> None:
        """Return at once: there is no second cluster."""


def _healthy(address: str) -> bool:
    with session() as http:
        return bool(http.get(f"http://{address}/health", timeout=REQUEST_TIMEOUT_S).json()["health"] == "true")


class Nats(System):
    """Two clusters of three nodes: a stream with three replicas in A, and its mirror with three replicas in B.

    The nodes of B connect to A as leaf nodes. Each cluster is a JetStream domain.
    """

    NODES: Final = 3
    STREAM: Final = "KV_bench"
    SYNCED_SINCE: Final = (2, 10)
    """First version that can sync before an acknowledgement. Earlier versions sync every two minutes."""

    FILE_BYTES: Final = 8 << 30
    MEMORY_BYTES: Final = 1 << 30

    def __init__(self, clients_a_connection: int) -> None:
        super().__init__()
        self._clients_a_connection = clients_a_connection
        self._version = NATS.version()
        self._synced = self._version >= self.SYNCED_SINCE
        self._servers: Servers | None = None
        self._addresses: dict[str, list[str]] = {}
        if not self._synced:
            since = _dotted(self.SYNCED_SINCE)
            text = f"{_dotted(self._version)} acknowledges before it syncs; `sync always` came with {since}"
            self.notes = (f"NATS {text}. Its figures are without fsync, all others with it.",)

    @property
    def title(self) -> str:
        """Version, replicas, and whether writes are synced."""
        sync = "sync always" if self._synced else "NO fsync"
        shape = f"R{self.NODES} mirrored to R{self.NODES}, {sync}{_sharing(self._clients_a_connection)}"
        return f"NATS {_dotted(self._version)}, {shape}"

    def start(self, directory: Path) -> None:
        """Start both clusters and create the stream and its mirror."""
        path = NATS.path()
        assert path is not None
        directory.mkdir(parents=True, exist_ok=True)
        servers = self._servers = Servers(directory)
        leaf_ports = [servers.port() for _ in range(self.NODES)]
        names: dict[str, list[str]] = {"a": [], "b": []}
        for cluster in names:
            route_ports = [servers.port() for _ in range(self.NODES)]
            self._addresses[cluster] = [f"{HOST}:{servers.port()}" for _ in range(self.NODES)]
            for number in range(self.NODES):
                name = f"nats-{cluster}{number + 1}"
                names[cluster].append(name)
                leaf: dict[str, Any] = {"listen": f"{HOST}:{leaf_ports[number]}"}
                if cluster == "b":
                    leaf = {"remotes": [{"urls": [f"nats-leaf://{HOST}:{port}" for port in leaf_ports]}]}
                config = self._config(directory / name, name, cluster, number, route_ports, leaf)
                file = directory / f"{name}.conf"
                file.write_text(json.dumps(config, indent=1))  # the server also reads JSON
                servers.add(name, path, "-c", str(file))
        servers.start()
        create = f"$JS.API.STREAM.CREATE.{self.STREAM}"
        subjects = [f"{nats_load.SUBJECT.decode()}.>"]
        servers.wait(lambda: self._created("a", create, {"subjects": subjects}), "the stream of NATS")
        mirror = {"mirror": {"name": self.STREAM, "external": {"api": "$JS.a.API", "deliver": ""}}}
        servers.wait(lambda: self._created("b", create, mirror), "the mirror of NATS")
        pids = servers.pids()
        self.clusters = {
            CLUSTER_A: [pids[name] for name in names["a"]],
            CLUSTER_B: [pids[name] for name in names["b"]],
        }

    def _config(
        self, store: Path, name: str, cluster: str, number: int, route_ports: list[int], leaf: Mapping[str, Any]
    ) -> dict[str, Any]:
        jetstream: dict[str, Any] = {
            "store_dir": str(store),
            "domain": cluster,
            "max_memory_store": self.MEMORY_BYTES,
            "max_file_store": self.FILE_BYTES,
        }
        if self._synced:
            jetstream["sync_interval"] = "always"
        return {
            "listen": self._addresses[cluster][number],
            "server_name": name,
            "jetstream": jetstream,
            "cluster": {
                "name": cluster,
                "listen": f"{HOST}:{route_ports[number]}",
                "routes": [f"nats://{HOST}:{port}" for port in route_ports],
            },
            "leafnodes": dict(leaf),
        }

    def _created(self, cluster: str, subject: str, part: Mapping[str, Any]) -> bool:
        """Create a stream in the form of a key-value bucket; True when it exists. Raises OSError, ValueError while the
        cluster is not ready."""
        config = {
            "name": self.STREAM,
            "storage": "file",
            "num_replicas": self.NODES,
            "max_msgs_per_subject": 1,
            "retention": "limits",
            **part,
        }
        answer = nats_load.request(self._addresses[cluster][0], subject, config, REQUEST_TIMEOUT_S)
        if "error" in answer:
            raise ValueError(answer["error"].get("description", answer["error"]))
        return True

    def stop(self) -> None:
        """Stop both clusters."""
        if self._servers is not None:
            self._servers.stop()

    def load(self) -> LoadProcess:
        """A load generator for the protocol of NATS."""
        arguments = (str(self._clients_a_connection),)
        return LoadProcess(*self._addresses["a"], arguments=arguments, module="bench.nats_load")

    def drain(self) -> None:
        """Wait until the mirror has the last message of the stream."""
        deadline_s = time.monotonic() + DRAIN_TIMEOUT_S
        wanted: int | None = None
        there = 0
        while time.monotonic() < deadline_s:
            try:
                wanted = self._last_sequence("a") if wanted is None else wanted
                there = self._last_sequence("b")
            except (OSError, ValueError):
                there = 0
            if wanted is not None and there >= wanted:
                return
            time.sleep(DRAIN_POLL_S)
        raise BenchFailed(f"the mirror of NATS has {there} of {wanted} messages after {DRAIN_TIMEOUT_S:.0f} s")

    def _last_sequence(self, cluster: str) -> int:
        subject = f"$JS.API.STREAM.INFO.{self.STREAM}"
        answer = nats_load.request(self._addresses[cluster][0], subject, None, REQUEST_TIMEOUT_S)
        if "error" in answer:
            raise ValueError(answer["error"])
        return int(answer["state"]["last_seq"])


def _sharing(clients: int) -> str:
    return f", {clients} clients a connection" if clients > 1 else ""


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))
