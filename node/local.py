"""Clusters on this machine: brought up from a topology, shown, taken down; what `isthmus local` and the demo use.

One supervisor (`node.supervisor`) owns all ZooKeepers and nodes of a directory. In it are, beside the supervisor's
own files: `NODE/node.toml` (made from the topology), `NODE/node.log`, `NODE/data`, `zookeeper-CLUSTER/`,
`ports.json` (ports that were chosen, kept for the next time) and `clusters.json` (what is set up here).
ZooKeepers are always restarted; nodes only when asked for, since who kills one wants to see it dead.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from node import supervisor
from node.children import ChildSpec, ChildState, Restart
from node.ports import PortBook
from node.processes import ProcessId
from node.readiness import NodeProbe
from node.supervision import Spec
from node.topology import ANY_PORT, ClusterPlan, NodePlan, Topology, zookeeper_name
from repl.metastore import embedded
from repl.metastore.java import find_java
from repl.model.errors import LocalFault

UP_TIMEOUT_S: Final = 60.0
"""How long `up` waits for every partition; it takes about 4 s on a quiet machine."""

POLL_S: Final = 0.1
"""How often `up` looks."""

NODE_STOP_TIMEOUT_MS: Final = 30_000
"""How long a node may take to stop gracefully: it finishes requests, then syncs log and store."""

OWNER_LINGER_MS: Final = 5_000
"""How long clusters that belong to a process outlive it when it is killed: long enough not to race its own stop."""

NODE_RANK: Final = 1
"""Nodes stop before ZooKeepers, which have rank 0."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a node of a directory is."""

    cluster: str
    name: str
    http: str
    admin: str


class LocalClusters:
    """The clusters of one topology in one directory. As a context manager it takes them down at the end.

    With `restart_nodes` a node that dies is restarted; with `auto_ports` the file's ports give way to free ones; with
    `owned` everything ends by itself when this process is killed (`keep` revokes that).
    """

    def __init__(
        self,
        topology: Topology,
        directory: Path,
        restart_nodes: bool = False,
        auto_ports: bool = True,
        *,
        owned: bool = False,
    ) -> None:
        self.topology = topology
        self.directory = directory.absolute()
        self._restart = Restart.ALWAYS if restart_nodes else Restart.NEVER
        self._auto_ports = auto_ports
        self._owned = owned

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.down()

    def up(self, timeout_s: float = UP_TIMEOUT_S, on_progress: Callable[[str], None] | None = None) -> dict[str, Any]:
        """Start what does not run and return once every partition is Online:
        {"clusters": {NAME: {"nodes": [{"name", "http", "admin", "pid"}]}}}, http and admin as base URLs.

        `on_progress` is given one line whenever it changes. Raises LocalFault, with the failing child's last words and
        its log; unless some of it ran before, all is stopped then."""
        state = supervisor.running_state(self.directory)
        spec = self._prepare(supervisor.recorded_children(self.directory), state)
        if state is None:
            supervisor.launch(self.directory, spec)
        try:
            if state is not None:
                self._start_again(spec)
            wait_online(self.directory, places_of(self.directory), timeout_s, on_progress)
        except BaseException:
            if state is None:
                supervisor.stop(self.directory)
            raise
        return described(self.directory)

    def _start_again(self, spec: Spec) -> None:
        if spec.owner is not None:
            command = {"do": "own", "owner": spec.owner.to_json(), "linger_ms": spec.linger_ms}
            supervisor.ask(self.directory, command)
        for child in spec.children:
            supervisor.ask(self.directory, {"do": "start", "child": child.name})

    def down(self) -> bool:
        """Stop everything; data and ports are kept. False when nothing ran."""
        return supervisor.stop(self.directory)

    def status(self) -> dict[str, Any]:
        """See `status_of`."""
        return status_of(self.directory)

    def restart_node(self, name: str, timeout_s: float = UP_TIMEOUT_S) -> None:
        """See the function of this name."""
        restart_node(self.directory, name, timeout_s)

    def keep(self) -> None:
        """Let the clusters outlive this process."""
        supervisor.ask(self.directory, {"do": "own", "owner": None, "linger_ms": 0})

    # --- setting up ---

    def _prepare(self, ours: Mapping[str, ProcessId], state: dict[str, Any] | None) -> Spec:
        """Ports, files and the supervisor's spec. Raises LocalFault when the directory runs something else."""
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            ports = self._ports(ours)
        except OSError as error:
            raise LocalFault(f"cannot use {self.directory} for clusters: {error}") from error
        texts = {
            node.name: self.topology.node_text(cluster, node, ports)
            for cluster in self.topology.clusters.values()
            for node in cluster.nodes
        }
        java = find_java()
        children: list[ChildSpec] = []
        for cluster in self.topology.clusters.values():
            name = zookeeper_name(cluster.name)
            children.append(supervisor.zookeeper_child(name, self.directory / name, ports[name], java))
        for name, text in texts.items():
            children.append(self._node_child(name, text))
        if state is not None and digests(state) != {child.name: child.digest() for child in children}:
            raise LocalFault(
                f"{self.directory} runs another topology, or the same with other ports or other software: "
                f"take it down first (`isthmus local down --dir {self.directory}`; its data is kept)"
            )
        if state is None:
            self._check_ports_free(ports, ours)
        self._write_files(texts, ports)
        me = ProcessId.of(os.getpid()) if self._owned else None
        return Spec(tuple(children), me, OWNER_LINGER_MS)

    def _ports(self, ours: Mapping[str, ProcessId]) -> dict[str, int]:
        wanted = self.topology.purposes()
        fixed = {} if self._auto_ports else {purpose: port for purpose, port in wanted.items() if port != ANY_PORT}
        in_use = [purpose for purpose in wanted if child_of(purpose) in ours]
        free = PortBook(self.directory).ports(
            [purpose for purpose in wanted if purpose not in fixed], in_use=in_use, taken=fixed.values()
        )
        return {**fixed, **free}

    def _check_ports_free(self, ports: Mapping[str, int], ours: Mapping[str, ProcessId]) -> None:
        for purpose, port in ports.items():
            if child_of(purpose) not in ours:
                embedded.check_port_free(port, f"{purpose} (or use --auto-ports)")

    def _node_child(self, name: str, text: str) -> ChildSpec:
        file = self.directory / name / "node.toml"
        return ChildSpec(
            name=name,
            argv=supervisor.node_command(file),
            cwd=str(supervisor.HOUSE),
            log=str(self.directory / name / "node.log"),
            env=supervisor.house_environment(),
            restart=self._restart,
            rank=NODE_RANK,
            reads=hashlib.sha256(text.encode()).hexdigest()[:16],
            stop_timeout_ms=NODE_STOP_TIMEOUT_MS,
        )

    def _write_files(self, texts: Mapping[str, str], ports: Mapping[str, int]) -> None:
        places: dict[str, Any] = {}
        try:
            for cluster in self.topology.clusters.values():
                name = zookeeper_name(cluster.name)
                embedded.prepare(self.directory / name, ports[name])
                places[cluster.name] = self._write_cluster(cluster, texts, ports)
            write_whole(self.directory / "clusters.json", json.dumps({"clusters": places}, indent=1))
        except OSError as error:
            raise LocalFault(f"cannot set up clusters in {self.directory}: {error}") from error

    def _write_cluster(
        self, cluster: ClusterPlan, texts: Mapping[str, str], ports: Mapping[str, int]
    ) -> dict[str, Any]:
        def url(node: NodePlan, listener: str, host: str) -> str:
            return f"http://{host}:{ports[f'{node.name}.{listener}']}"

        for node in cluster.nodes:
            (self.directory / node.name).mkdir(exist_ok=True)
            write_whole(self.directory / node.name / "node.toml", texts[node.name])
        return {
            "zookeeper": f"{embedded.HOST}:{ports[zookeeper_name(cluster.name)]}",
            "nodes": [
                {
                    "name": node.name,
                    "http": url(node, "http", node.http.host),
                    "admin": url(node, "admin", node.admin.host),
                }
                for node in cluster.nodes
            ],
        }


# --- what is in a directory, whoever set it up ---


def clusters_of(directory: Path) -> dict[str, Any]:
    """What `clusters.json` says: {NAME: {"zookeeper", "nodes": [{"name", "http", "admin"}]}}. Raises LocalFault."""
    path = directory / "clusters.json"
    try:
        clusters: dict[str, Any] = json.loads(path.read_bytes())["clusters"]
    except FileNotFoundError as error:
        raise LocalFault(f"no clusters are set up in {directory} (`isthmus local up` does that)") from error
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise LocalFault(f"{path} cannot be used ({error}); `isthmus local up` writes it anew") from error
    return clusters


def places_of(directory: Path) -> list[Place]:
    """Every node that is set up in `directory`. Raises LocalFault."""
    return [
        Place(name, node["name"], node["http"], node["admin"])
        for name, cluster in clusters_of(directory).items()
        for node in cluster["nodes"]
    ]


def described(directory: Path) -> dict[str, Any]:
    """What `up` returns. Raises LocalFault."""
    processes = supervisor.recorded_children(directory)
    clusters: dict[str, Any] = {}
    for place in places_of(directory):
        process = processes.get(place.name)
        clusters.setdefault(place.cluster, {"nodes": []})["nodes"].append(
            {
                "name": place.name,
                "http": place.http,
                "admin": place.admin,
                "pid": None if process is None else process.pid,
            }
        )
    return {"clusters": clusters}


def status_of(directory: Path) -> dict[str, Any]:
    """What runs in `directory`: {"supervisor": PID or None, "clusters": {NAME: {"zookeeper": {...}, "nodes": [...]}}}.

    Each process has name, state, pid, restarts, reason and log; a node also http, admin and online (what
    `node.readiness` says of it), a ZooKeeper its address. Raises LocalFault when nothing is set up there."""
    directory = directory.absolute()
    clusters = clusters_of(directory)
    state = supervisor.running_state(directory)
    boss = None if state is None else ProcessId.from_json(state["supervisor"])
    children = _unsupervised(directory) if state is None else state["children"]
    shown: dict[str, Any] = {}
    for name, cluster in clusters.items():
        nodes = []
        for node in cluster["nodes"]:
            child = _child_status(node["name"], children)
            with NodeProbe(node["http"], node["admin"]) as probe:
                online = probe.online().text if child["state"] == ChildState.RUNNING else None
            nodes.append({**child, **node, "online": online})
        zookeeper = {**_child_status(zookeeper_name(name), children), "address": cluster["zookeeper"]}
        shown[name] = {"zookeeper": zookeeper, "nodes": nodes}
    return {"supervisor": None if boss is None else boss.pid, "clusters": shown}


def restart_node(directory: Path, name: str, timeout_s: float = UP_TIMEOUT_S) -> None:
    """Start a node that is dead, restart one that runs (gracefully); returns once it serves. Raises LocalFault."""
    directory = directory.absolute()
    places = {place.name: place for place in places_of(directory)}
    if name not in places:
        raise LocalFault(f"no node {name!r} in {directory}; there are {', '.join(places)}")
    timeout = supervisor.ASK_TIMEOUT_S + NODE_STOP_TIMEOUT_MS / 1000
    try:
        supervisor.ask(directory, {"do": "restart", "child": name}, timeout)
    except supervisor.NotRunning as error:
        raise LocalFault(f"nothing runs in {directory}: `isthmus local up` starts its clusters") from error
    wait_online(directory, [places[name]], timeout_s, None)


def wait_online(
    directory: Path, places: list[Place], timeout_s: float, on_progress: Callable[[str], None] | None
) -> None:
    """Return once every node of `places` is ready with all partitions online. Raises LocalFault when one cannot, with
    the last line of its log, or when `timeout_s` is over."""
    deadline = time.monotonic() + timeout_s
    waiting = {place.name: (place, NodeProbe(place.http, place.admin)) for place in places}
    told: dict[str, str] = {place.name: "starting" for place in places}
    line = ""
    while True:
        for name, (_, probe) in list(waiting.items()):
            online = probe.online()
            told[name] = online.text
            if online.complete:
                probe.close()
                del waiting[name]
        now = ", ".join(f"{name}: {text}" for name, text in told.items())
        if on_progress is not None and now != line:
            on_progress(now)
        line = now
        if not waiting:
            return
        _check_children(directory, waiting)
        if time.monotonic() >= deadline:
            name = next(iter(waiting))
            log = directory / name / "node.log"
            words = supervisor.last_line(log)
            raise LocalFault(f"not online within {timeout_s:g} s: {now}; {name} last said: {words} (its log: {log})")
        time.sleep(POLL_S)


def _check_children(directory: Path, waiting: Mapping[str, tuple[Place, NodeProbe]]) -> None:
    """Raises LocalFault when a child that is waited for, or its ZooKeeper, will not come up."""
    clusters = {place.cluster for place, _ in waiting.values()}
    for name in (*map(zookeeper_name, clusters), *waiting):
        trouble = supervisor.child_trouble(directory, name)
        if trouble is None:
            continue
        if name in waiting:
            log = directory / name / "node.log"
            words = supervisor.last_line(log)
        else:
            log = embedded.log_file(directory / name)
            words = embedded.last_complaint(directory / name)
        raise LocalFault(f"{name} does not come up ({trouble}): {words} (its log: {log})")


def _unsupervised(directory: Path) -> dict[str, Any]:
    """What a killed supervisor left running, in the form of a supervisor's state."""
    reason = "its supervisor is gone; `isthmus local up` takes it over, `isthmus local down` stops it"
    return {
        name: {"state": ChildState.RUNNING, "process": process.to_json(), "restarts": 0, "reason": reason, "log": ""}
        for name, process in supervisor.recorded_children(directory).items()
    }


def _child_status(name: str, children: Mapping[str, Any]) -> dict[str, Any]:
    child = children.get(name)
    if child is None:
        return {"name": name, "state": ChildState.STOPPED, "pid": None, "restarts": 0, "reason": "", "log": ""}
    process = child["process"]
    pid = None if process is None else process["pid"]
    return {"name": name, "pid": pid, **{key: child[key] for key in ("state", "restarts", "reason", "log")}}


def digests(state: Mapping[str, Any]) -> dict[str, str]:
    """The commands that a supervisor's state shows, by child."""
    return {name: child["command"] for name, child in state["children"].items()}


def child_of(purpose: str) -> str:
    """The child that a port of `Topology.purposes` belongs to."""
    return purpose.removesuffix(".http").removesuffix(".admin")


def write_whole(path: Path, text: str) -> None:
    """Replace a file in one step."""
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_text(text)
    temporary.replace(path)
