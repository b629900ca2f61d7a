"""A cluster of real processes with a real ZooKeeper, each in a network namespace of its own if there is a network.

A process that ends by itself is restarted, as a supervisor would, and its end is recorded. All processes end with this
one, however it ends. The faults are in `tests.system.faults.nemeses`.
"""

from __future__ import annotations

import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Final, NamedTuple, Self

from isthmus.node.local.ports import free_port
from isthmus.repl.metastore import embedded_zookeeper
from isthmus.repl.metastore.java import find_java
from tests.system.faults import shifted_clock
from tests.system.faults.load import Broken, Connection, NodeAddress, NotSent
from tests.system.faults.network import Network

REPOSITORY: Final = Path(__file__).resolve().parents[3]

CLUSTER: Final = "lab"
SESSION_MS: Final = 4_000
"""The shortest session that a busy machine can keep: tests that wait for its end should not take long."""

PARTITIONS: Final = 4
RESTART_PAUSE_S: Final = 0.3
LOOK_S: Final = 0.05
STOP_TIMEOUT_S: Final = 30.0
TOLD_AFTER_S: Final = 3.0
"""After this time the timeline names the problems that a cluster still has."""

UP_TIMEOUT_S: Final = 60.0

KILLED: Final = -signal.SIGKILL


class UnexpectedExit(NamedTuple):
    """A process that ended while it should have run."""

    name: str
    code: int
    at_s: float


@dataclass
class Timeline:
    """Log of events with their time in seconds since the start."""

    show: bool = False
    began_ns: int = field(default_factory=time.monotonic_ns)
    lines: list[str] = field(default_factory=list)

    def note(self, line: str) -> None:
        """Add one line."""
        self.lines.append(f"{self.now_s():8.2f} {line}")
        if self.show:
            print(self.lines[-1], flush=True)

    def now_s(self) -> float:
        """Seconds since the beginning."""
        return (time.monotonic_ns() - self.began_ns) / 1e9


class ClusterProcess:
    """One process of the cluster; it runs unless a nemesis stopped it."""

    def __init__(
        self, name: str, directory: Path, argv: Sequence[str], address: str, environ: Mapping[str, str]
    ) -> None:
        self.name = name
        self.directory = directory
        self.address = address
        self._argv = argv
        self._environ = environ
        self.popen: subprocess.Popen[bytes] | None = None
        self.wanted = False
        """Whether the process is restarted when it ends."""
        self.started_s = 0.0

    @property
    def log(self) -> Path:
        """The file of the process's output."""
        return self.directory / "out.log"

    @property
    def pid(self) -> int:
        """The process id of the last start."""
        assert self.popen is not None
        return self.popen.pid

    @property
    def running(self) -> bool:
        """Whether the process exists, paused or not."""
        return self.popen is not None and self.popen.poll() is None

    def start(self) -> None:
        """Start it."""
        assert not self.running
        with self.log.open("ab") as out:
            self.popen = subprocess.Popen(
                ["setpriv", "--pdeathsig", "SIGKILL", "--", *self._argv],
                cwd=self.directory,
                env={**os.environ, **self._environ},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
            )
        self.wanted = True
        self.started_s = time.monotonic()

    def send(self, number: signal.Signals) -> None:
        """Send a signal, if it still runs."""
        if self.popen is not None:
            self.popen.send_signal(number)

    def kill(self) -> None:
        """SIGKILL; it stays away until it is started."""
        self.wanted = False
        self.send(signal.SIGKILL)
        if self.popen is not None:
            self.popen.wait(STOP_TIMEOUT_S)

    def terminate(self, timeout_s: float = STOP_TIMEOUT_S) -> int:
        """SIGTERM, and its exit code. Raises subprocess.TimeoutExpired."""
        self.wanted = False
        self.send(signal.SIGTERM)
        assert self.popen is not None
        return self.popen.wait(timeout_s)


class ClusterNode(ClusterProcess):
    """One node of the cluster."""

    def __init__(
        self,
        name: str,
        directory: Path,
        argv: Sequence[str],
        address: str,
        environ: Mapping[str, str],
        ports: tuple[int, int],
        data_dir: Path,
    ) -> None:
        super().__init__(name, directory, argv, address, environ)
        self.place = NodeAddress(name, address, ports[0])
        self.admin = NodeAddress(name, address, ports[1])
        self.data_dir = data_dir

    @property
    def config(self) -> Path:
        """The node's config file."""
        return self.directory / "node.toml"

    @property
    def environ(self) -> dict[str, str]:
        """The environment of the node's process."""
        return {**os.environ, **self._environ}

    def metric(self, name: str) -> float | None:
        """The sum of a metric's samples, None while the node does not answer."""
        connection = Connection(self.admin, 2.0)
        try:
            reply = connection.request("GET", "/metrics", {})
        except (NotSent, Broken):
            return None
        finally:
            connection.close()
        lines = (line for line in reply.body.decode().splitlines() if line.startswith((f"{name} ", f"{name}{{")))
        return sum(float(line.rpartition(" ")[2]) for line in lines) if reply.status == 200 else None

    def ask(self, path: str, timeout_s: float = 2.0) -> dict[str, Any] | None:
        """An admin answer; None when it does not give one."""
        connection = Connection(self.admin, timeout_s)
        try:
            reply = connection.request("GET", path, {})
            return dict(json.loads(reply.body)) if reply.status == 200 else None
        except (NotSent, Broken, ValueError):
            return None
        finally:
            connection.close()

    def ready(self) -> str:
        """Empty when it serves all that it should, else why not."""
        connection = Connection(self.place, 2.0)
        try:
            reply = connection.request("GET", "/readyz", {})
        except (NotSent, Broken) as error:
            return f"{self.name} {'runs, but' if self.running else 'is down:'} {error}"
        finally:
            connection.close()
        return "" if reply.status == 200 else f"{self.name}: {reply.body[:200].decode(errors='replace').strip()}"


class FaultCluster:
    """`count` nodes and their ZooKeeper below `directory`. Use as a context manager; `up` starts them."""

    def __init__(
        self,
        directory: Path,
        count: int = 3,
        *,
        network: Network | None = None,
        timeline: Timeline | None = None,
        data_dirs: Mapping[str, Path] | None = None,
        settings: Mapping[str, str] | None = None,
        movable_clocks: bool = False,
        cluster: str = CLUSTER,
    ) -> None:
        """`settings`: lines for sections of every node's file, by section. `data_dirs`: where not below `directory`.
        `cluster`: its name; of another one than CLUSTER, all names of hosts and nodes begin with it.
        With `movable_clocks` each node reads its wall clock's offset from a file (`set_clock`)."""
        self.timeline = timeline or Timeline()
        self.network = network
        self.cluster = cluster
        prefix = "" if cluster == CLUSTER else f"{cluster}-"
        self.ended: list[UnexpectedExit] = []
        self._settings = dict(settings or {})
        self._taken: set[int] = set()
        self._loopback = self._new_loopback()
        """Without a network: an address of its own, so that no other process takes the port of a node that is down."""
        self.partition_count = PARTITIONS
        """Partitions of all bucket types that a healthy cluster has; more once bucket types are made."""
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._watcher = threading.Thread(target=self._watch, name="lab", daemon=True)
        self._movable_clocks = movable_clocks
        self._directory = directory
        self._count = count
        self.zookeeper = self._zookeeper(f"{prefix}zookeeper", directory / "zookeeper")
        self.nodes = {
            name: self._node(
                name, number, directory / name, (data_dirs or {}).get(name, directory / name / "data"), count
            )
            for number, name in enumerate(f"{prefix}n{number}" for number in range(1, count + 1))
        }

    @property
    def processes(self) -> list[ClusterProcess]:
        """All of them, ZooKeeper first."""
        return [self.zookeeper, *self.nodes.values()]

    @property
    def places(self) -> list[NodeAddress]:
        """The addresses for clients."""
        return [node.place for node in self.nodes.values()]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.close()

    def up(self) -> None:
        """Start everything and wait until all of it serves."""
        self.timeline.note(f"begun at {datetime.now(UTC):%H:%M:%S.%f} UTC")
        self.zookeeper.start()
        deadline = time.monotonic() + UP_TIMEOUT_S
        while not serves(self.zookeeper.address, self._zookeeper_port):
            assert time.monotonic() < deadline, f"ZooKeeper does not serve: {last_words(self.zookeeper)}"
            time.sleep(LOOK_S)
        for node in self.nodes.values():
            node.start()
        self._watcher.start()
        self.wait_until_healthy(UP_TIMEOUT_S)

    def close(self) -> None:
        """Kill everything that runs."""
        self._closing.set()
        if self._watcher.is_alive():
            self._watcher.join()
        for process in reversed(self.processes):
            process.kill()

    def add(self, name: str) -> ClusterNode:
        """Start one more node of the cluster; it holds nothing until partitions are assigned to it."""
        directory = self._directory / name
        made = self._node(name, len(self.nodes), directory, directory / "data", self._count)
        made.start()
        with self._lock:
            self.nodes = {**self.nodes, name: made}
        return made

    def remove(self, name: str) -> None:
        """Kill a node, and remove it from the cluster."""
        with self._lock:
            gone = self.nodes[name]
            self.nodes = {other: node for other, node in self.nodes.items() if other != name}
        gone.kill()

    def start(self, process: ClusterProcess) -> None:
        """Start a process that was killed; nothing if it runs."""
        with self._lock:
            if not process.running:
                process.start()

    def wait_until_healthy(self, timeout_s: float) -> float:
        """Seconds until every node serves and every partition has a leader and all replicas in sync. Raises
        AssertionError with the first problem."""
        began_s = time.monotonic()
        told = ""
        while True:
            why = self.health_problem()
            waited_s = time.monotonic() - began_s
            if not why:
                return waited_s
            assert waited_s < timeout_s, f"not healthy after {timeout_s:.0f} s: {why}"
            if waited_s > TOLD_AFTER_S and why != told:
                self.timeline.note(f"not healthy yet: {why}")
                told = why
            time.sleep(0.1)

    def health_problem(self) -> str:
        """The first problem that is found; empty when the cluster is healthy."""
        for node in self.nodes.values():
            if not node.running:
                return f"{node.name} is down"
        views: dict[str, dict[int, dict[str, Any]]] = {}
        for node in self.nodes.values():
            answer = node.ask("/admin/partitions")
            if answer is None:
                return f"{node.name} does not answer"
            views[node.name] = {row["partition"]: row for row in answer["partitions"]}
            if len(views[node.name]) != self.partition_count:
                return f"{node.name} knows {len(views[node.name])} partitions"
        for name, view in views.items():
            for partition, row in view.items():
                missing = [
                    f"{other}: {views[other][partition]['reason']}" for other in views if other not in row["isr"]
                ]
                if row["leader"] is None or missing:
                    where = f"to {name} partition {partition} has leader {row['leader']}"
                    return f"{where}, out of sync are {missing}"
        return next((why for node in self.nodes.values() if (why := node.ready())), "")

    def wait_applied(self, timeout_s: float) -> None:
        """Return once every replica has applied the same offset of its partition, the end of its log. Raises
        AssertionError."""
        deadline = time.monotonic() + timeout_s
        while True:
            offsets: dict[int, set[int | None]] = {}
            for row in (next(iter(self.nodes.values())).ask("/admin/partitions") or {"partitions": []})["partitions"]:
                ends = (end for replica in row["replica_states"] for end in (replica["applied"], replica["leo"]))
                offsets[row["partition"]] = {*ends}
            if len(offsets) == self.partition_count and all(len(of) == 1 and None not in of for of in offsets.values()):
                return
            assert time.monotonic() < deadline, f"applied offsets and ends stay different: {offsets}"
            time.sleep(0.1)

    def leaders(self) -> dict[int, str]:
        """Partition -> its leader, from the first node that answers."""
        for node in self.nodes.values():
            answer = node.ask("/admin/partitions")
            if answer is not None:
                return {row["partition"]: row["leader"] for row in answer["partitions"] if row["leader"] is not None}
        return {}

    def readdress(self, node: ClusterNode) -> None:
        """Let a node that is down live at another address and other ports from its next start on."""
        assert not node.running
        if self.network is not None:
            self.network.readdress(node.name)
            address = self.network.hosts[node.name].address
        else:
            address = self._new_loopback()
        http, admin, cluster = self._port(), self._port(), self._port()
        listen = f'http = "{address}:{http}"\nadmin = "{address}:{admin}"\ncluster = "{address}:{cluster}"'
        node.config.write_text(re.sub(r"(?<=\[listen\]\n)(\w+ = .*\n)+", f"{listen}\n", node.config.read_text()))
        node.address = address
        node.place, node.admin = NodeAddress(node.name, address, http), NodeAddress(node.name, address, admin)

    def foreign_node(self, node: ClusterNode) -> ClusterNode:
        """A node of another cluster, of the same name. It listens for its fellows where a node that is down does, or at
        the same port of another loopback address."""
        directory = node.directory.with_name(f"stranger-of-{node.name}-{self._port()}")
        listens = cluster_address(node)
        if node.running:
            listens = f"{self._new_loopback()}:{listens.rpartition(':')[2]}"
        return self._node(node.name, 0, directory, directory / "data", 1, "stranger", listens)

    def set_clock(self, node: ClusterNode, offset_s: int) -> None:
        """Move a node's wall clock."""
        assert self._movable_clocks
        shifted_clock.move(node.directory / "clock", offset_s)

    @staticmethod
    def _new_loopback() -> str:
        return "127." + ".".join(str(random.SystemRandom().randrange(1, 255)) for _ in range(3))

    # -- making it ------------------------------------------------------------------------------------------

    def _host(self, name: str) -> tuple[list[str], str]:
        if self.network is None:
            return [], self._loopback
        host = self.network.hosts[name]
        return host.command(), host.address

    def _port(self) -> int:
        port = free_port(self._taken)
        self._taken.add(port)
        return port

    def _zookeeper(self, name: str, directory: Path) -> ClusterProcess:
        command, address = self._host(name)
        self._zookeeper_port = self._port()
        embedded_zookeeper.prepare(directory, self._zookeeper_port)
        config = directory / "zoo.cfg"
        config.write_text(config.read_text().replace(embedded_zookeeper.HOST, address))
        java = embedded_zookeeper.zookeeper_command(
            find_java(), embedded_zookeeper.find_jars(), directory, self._zookeeper_port
        )
        return ClusterProcess(name, directory, [*command, *java], address, {})

    def _node(
        self,
        name: str,
        number: int,
        directory: Path,
        data_dir: Path,
        count: int,
        cluster: str = "",
        cluster_listens: str = "",
    ) -> ClusterNode:
        command, address = self._host(name)
        ports = self._port(), self._port()
        listens = (*(f"{address}:{port}" for port in ports), cluster_listens or f"{address}:{self._port()}")
        directory.mkdir(parents=True, exist_ok=True)
        cluster = cluster or self.cluster
        sections = {
            "node": f'name = "{name}"\ncluster = "{cluster}"\nid = {number + 1}\ndata_dir = "{data_dir}"',
            "listen": "\n".join(
                f'{key} = "{where}"' for key, where in zip(("http", "admin", "cluster"), listens, strict=True)
            ),
            "metastore": (
                f'hosts = "{self.zookeeper.address}:{self._zookeeper_port}"\nsession_timeout = "{SESSION_MS}ms"'
            ),
            "replication": f"factor = {count}\nmin_isr = {min(2, count)}\npartitions = {PARTITIONS}",
        }
        for section, lines in self._settings.items():
            sections[section] = f"{sections.get(section, '')}\n{lines}"
        config = directory / "node.toml"
        config.write_text("\n".join(f"[{section}]\n{lines}\n" for section, lines in sections.items()))
        argv = [*command, sys.executable, "-m", "isthmus.node.cli.main"]
        if self._movable_clocks:
            shifted_clock.move(directory / "clock", 0)
            argv[-1:] = ["tests.system.faults.shifted_clock", str(directory / "clock")]
        argv += ["node", "run", str(config)]
        environ = {"PYTHONUNBUFFERED": "1", "PYTHONPATH": str(REPOSITORY)}
        return ClusterNode(name, directory, argv, address, environ, ports, data_dir)

    def _watch(self) -> None:
        """Restart processes that ended. (In this thread: a child is killed when the thread that started it ends.)"""
        due_s: dict[str, float] = {}
        while not self._closing.wait(LOOK_S):
            with self._lock:
                for process in self.processes:
                    if not process.wanted or process.running:
                        due_s.pop(process.name, None)
                    elif process.name not in due_s:
                        due_s[process.name] = time.monotonic() + RESTART_PAUSE_S
                        self._note_end(process)
                    elif time.monotonic() >= due_s[process.name]:
                        process.start()

    def _note_end(self, process: ClusterProcess) -> None:
        assert process.popen is not None
        code = process.popen.returncode
        self.ended.append(UnexpectedExit(process.name, code, self.timeline.now_s()))
        self.timeline.note(f"{process.name} ended by itself with {code}: {last_words(process)}")


def cluster_address(node: ClusterNode) -> str:
    """The address at which a node listens for other nodes of its cluster."""
    (found,) = re.findall(r'^cluster = "(.*:\d+)"$', node.config.read_text(), re.MULTILINE)
    return str(found)


def last_words(process: ClusterProcess) -> str:
    """The last line of a process's log."""
    lines = process.log.read_bytes()[-4000:].decode(errors="replace").strip().splitlines() or [""]
    return lines[-1][:300]


def serves(address: str, port: int) -> bool:
    """Whether a ZooKeeper answers at this port."""
    try:
        with socket.create_connection((address, port), 1.0) as sock:
            sock.sendall(b"srvr")
            return sock.recv(64).startswith(b"Zookeeper version")
    except OSError:
        return False
