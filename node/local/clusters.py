"""Clusters on this machine: started from a topology, and stopped. Used by `isthmus local` and the demo.

One supervisor (`node.local.supervisor_client`) owns all ZooKeepers and nodes of a directory. Beside the supervisor's
files the directory has `NODE/node.toml` (made from the topology), `NODE/node.log`, `NODE/data`, `zookeeper-CLUSTER/`
(of an ensemble `zookeeper-CLUSTER-1/` and so on), `ports.json` (chosen ports, for later starts), `clusters.json` (the
clusters and their addresses) and, with `secure = true`, `security/` (certificates and tokens). ZooKeepers are always
restarted; nodes only on request, since a node that a user kills should stay down. `node.local.directory` shows the
status, and stops and starts single nodes.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from isthmus.node.local import dev_certificates, supervisor_client
from isthmus.node.local import directory as local_directory
from isthmus.node.local.child_process import ChildSpec, Restart
from isthmus.node.local.ports import PortAllocator
from isthmus.node.local.process_id import ProcessId
from isthmus.node.local.supervisor import Spec
from isthmus.node.local.topology_model import ANY_PORT, LOCAL_HOST, SECURITY, ClusterPlan, NodePlan, Topology
from isthmus.repl.metastore import embedded_zookeeper
from isthmus.repl.metastore.java import Java, find_java
from isthmus.repl.model.errors import LocalFault
from isthmus.repl.security.tls import NodeName
from isthmus.repl.storage.identity import ADOPT

OWNER_LINGER_MS: Final = 5_000
"""How long clusters outlive their owner when it is killed: long enough not to race the owner's own stop."""

SET_UP_TIMEOUT_S: Final = 60.0
"""How long an `up` waits for another one in the same directory to choose ports, write files and start the supervisor,
which takes about a second; then it fails."""

NODE_RANK: Final = 1
"""Nodes stop before ZooKeepers, which have rank 0."""


class LocalClusters:
    """The clusters of one topology in one directory. As a context manager it stops them at the end.

    `restart_nodes`: nodes that die are restarted. `auto_ports`: free ports replace those of the file. `owned`:
    everything ends when this process is killed, until `keep` is called.
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

    def up(
        self,
        timeout_s: float = local_directory.READY_TIMEOUT_S,
        on_progress: Callable[[str], None] | None = None,
        *,
        wait: bool = True,
    ) -> dict[str, Any]:
        """Start what does not run and return once every partition is online, without `wait` at once:
        {"clusters": {NAME: {"nodes": [{"name", "http", "admin", "pid"}]}}}, http and admin as base URLs.

        Nodes that were added to the topology start beside those that run. `on_progress` receives a line whenever it
        changes. Raises LocalFault, with the failing child's last output and its log; then everything is stopped, unless
        a supervisor ran before. ZooKeepers that lost their data go on, so that they can be filled again.
        """
        with _exclusive_setup(self.directory):
            state = supervisor_client.running_state(self.directory)
            spec = self._prepare(supervisor_client.recorded_children(self.directory), state)
            if state is None:
                supervisor_client.launch(self.directory, spec)
            elif running_commands(state) != _commands_of(spec.children):
                for child in spec.children:
                    supervisor_client.ask(self.directory, {"do": "add", "child": child.to_json()})
        try:
            if state is not None:
                self._start_again(spec)
            if wait:
                nodes = local_directory.nodes_of(self.directory)
                local_directory.wait_online(self.directory, nodes, timeout_s, on_progress)
        except LocalFault as error:
            if ADOPT in str(error) and not self._owned:
                raise LocalFault(f"{error}. {self._kept_for_adoption()}") from error
            if state is None:
                supervisor_client.stop(self.directory)
            raise
        except BaseException:
            if state is None:
                supervisor_client.stop(self.directory)
            raise
        return local_directory.describe(self.directory)

    def _kept_for_adoption(self) -> str:
        """Stop the nodes, which refuse ZooKeepers without data, and leave these running; what to do next."""
        nodes = local_directory.nodes_of(self.directory)
        for node in nodes:
            local_directory.stop_node(self.directory, node.name)
        file = self.directory / nodes[0].name / "node.toml"
        return (
            f"The ZooKeepers go on running, for `{ADOPT} {file}` (a file of each cluster whose data is lost). Then "
            "`isthmus local up --no-wait` starts the nodes again, and `isthmus cluster reseed` completes it; `isthmus "
            f"local down --dir {self.directory}` stops everything"
        )

    def _start_again(self, spec: Spec) -> None:
        if spec.owner is not None:
            command = {"do": "own", "owner": spec.owner.to_json(), "linger_ms": spec.linger_ms}
            supervisor_client.ask(self.directory, command)
        for child in spec.children:
            supervisor_client.ask(self.directory, {"do": "start", "child": child.name})

    def down(self) -> bool:
        """Stop everything; data and ports stay. False when nothing ran."""
        return supervisor_client.stop(self.directory)

    def status(self) -> dict[str, Any]:
        """See `node.local.directory.status_of`."""
        return local_directory.status_of(self.directory)

    def restart_node(
        self, name: str, timeout_s: float | None = local_directory.READY_TIMEOUT_S, *, kill: bool = False
    ) -> None:
        """See `node.local.directory.restart_node`."""
        local_directory.restart_node(self.directory, name, timeout_s, kill=kill)

    def keep(self) -> None:
        """Let the clusters outlive this process."""
        supervisor_client.ask(self.directory, {"do": "own", "owner": None, "linger_ms": 0})

    # --- setting up ---

    def _prepare(self, ours: Mapping[str, ProcessId], state: dict[str, Any] | None) -> Spec:
        """Choose ports, write files, and return the supervisor's spec. Raises LocalFault when another topology runs, or
        when the embedded ZooKeeper or a Java is not installed."""
        embedded_zookeeper.find_jars()
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            ports = self._ports(ours)
        except OSError as error:
            raise LocalFault(f"cannot use {self.directory} for clusters: {error}") from error
        if state is None:
            self._check_ports_free(ports, ours)  # before the Java is asked for its version, which takes long
        java = find_java()
        texts = {
            node.name: self.topology.node_text(cluster, node, ports)
            for cluster in self.topology.clusters.values()
            for node in cluster.nodes
        }
        for cluster in self.topology.clusters.values():
            self._check_zookeepers(cluster)
        children = self._children(self.topology, ports, java)
        grown = state is not None and running_commands(state) != _commands_of(children)
        if state is not None and grown and not self._has_only_grown(running_commands(state), ports, java):
            raise LocalFault(
                f"{self.directory} runs another topology, or the same with other ports or other software: "
                f"take it down first (`isthmus local down --dir {self.directory}`; its data is kept)"
            )
        if grown:
            self._check_ports_free(ports, ours)
        self._write_files(texts, ports)
        self._make_secure()
        me = ProcessId.of(os.getpid()) if self._owned else None
        return Spec(tuple(children), me, OWNER_LINGER_MS)

    def _children(self, topology: Topology, ports: Mapping[str, int], java: Java) -> list[ChildSpec]:
        """ZooKeepers, then nodes."""
        children: list[ChildSpec] = []
        for cluster in topology.clusters.values():
            children += self._zookeeper_children(cluster, ports, java)
        for cluster in topology.clusters.values():
            children += [self._node_child(n.name, topology.node_text(cluster, n, ports)) for n in cluster.nodes]
        return children

    def _has_only_grown(self, running: Mapping[str, str], ports: Mapping[str, int], java: Java) -> bool:
        """True when this topology runs without some of its nodes. Those are started; the files of the others, which may
        name them as peers, are read at their next start."""
        clusters = {
            name: replace(cluster, nodes=tuple(node for node in cluster.nodes if node.name in running))
            for name, cluster in self.topology.clusters.items()
        }
        before = {
            name: replace(cluster, peers=tuple(peer for peer in cluster.peers if clusters[peer.cluster].nodes))
            for name, cluster in clusters.items()
            if cluster.nodes
        }
        smaller = replace(self.topology, clusters=before)
        return bool(before) and _commands_of(self._children(smaller, ports, java)) == running

    def _ports(self, ours: Mapping[str, ProcessId]) -> dict[str, int]:
        wanted = self.topology.ports()
        fixed = {} if self._auto_ports else {port.purpose: port.number for port in wanted if port.number != ANY_PORT}
        in_use = [port.purpose for port in wanted if port.child in ours]
        free = PortAllocator(self.directory).ports(
            [port.purpose for port in wanted if port.purpose not in fixed], in_use=in_use, taken=fixed.values()
        )
        return {**fixed, **free}

    def _check_ports_free(self, ports: Mapping[str, int], ours: Mapping[str, ProcessId]) -> None:
        for port in self.topology.ports():
            if port.child not in ours:
                embedded_zookeeper.check_port_free(
                    ports[port.purpose],
                    port.purpose,
                    "stop what holds it, such as clusters of another --dir, or use --auto-ports",
                )

    def _check_zookeepers(self, cluster: ClusterPlan) -> None:
        """Refuse another number of ZooKeepers: the new servers would start empty beside the old ones' data, which holds
        the cluster's records."""
        names = {server.name for server in cluster.zookeepers}
        for name in (f"zookeeper-{cluster.name}", f"zookeeper-{cluster.name}-1"):
            if name not in names and (self.directory / name).exists() and name not in self._all_zookeepers():
                raise LocalFault(
                    f"{cluster.name} was set up with another number of ZooKeepers: {self.directory / name} holds its "
                    f"records; keep the number, or name another directory"
                )

    def _all_zookeepers(self) -> set[str]:
        return {server.name for cluster in self.topology.clusters.values() for server in cluster.zookeepers}

    def _zookeeper_children(self, cluster: ClusterPlan, ports: Mapping[str, int], java: Java) -> list[ChildSpec]:
        ensemble = ensemble_of(cluster, ports)
        return [
            supervisor_client.zookeeper_child(
                server.name, self.directory / server.name, ports[server.name], java, ensemble=ensemble
            )
            for server in cluster.zookeepers
        ]

    def _node_child(self, name: str, text: str) -> ChildSpec:
        file = self.directory / name / "node.toml"
        return ChildSpec(
            name=name,
            argv=supervisor_client.node_command(file),
            cwd=str(supervisor_client.PACKAGE_ROOT),
            log=str(local_directory.node_log(self.directory, name)),
            env=supervisor_client.package_environment(),
            restart=self._restart,
            rank=NODE_RANK,
            reads=hashlib.sha256(text.partition("\n")[2].encode()).hexdigest()[
                :16
            ],  # without the comment that names the topology
            stop_timeout_ms=local_directory.NODE_STOP_TIMEOUT_MS,
        )

    def _write_files(self, texts: Mapping[str, str], ports: Mapping[str, int]) -> None:
        set_up: dict[str, Any] = {}
        try:
            for cluster in self.topology.clusters.values():
                for server in cluster.zookeepers:
                    embedded_zookeeper.prepare(
                        self.directory / server.name, ports[server.name], ensemble_of(cluster, ports)
                    )
                set_up[cluster.name] = self._write_cluster(cluster, texts, ports)
            replace_file(self.directory / "clusters.json", json.dumps({"clusters": set_up}, indent=1))
        except OSError as error:
            raise LocalFault(f"cannot set up clusters in {self.directory}: {error}") from error

    def _make_secure(self) -> None:
        if self.topology.secure:
            clusters = self.topology.clusters.values()
            names = [NodeName(cluster.name, node.name) for cluster in clusters for node in cluster.nodes]
            dev_certificates.ensure(self.directory / SECURITY, names)

    def _write_cluster(
        self, cluster: ClusterPlan, texts: Mapping[str, str], ports: Mapping[str, int]
    ) -> dict[str, Any]:
        for node in cluster.nodes:
            (self.directory / node.name).mkdir(exist_ok=True)
            replace_file(self.directory / node.name / "node.toml", texts[node.name])
        return {
            "zookeepers": [
                {"name": server.name, "address": f"{LOCAL_HOST}:{ports[server.name]}"} for server in cluster.zookeepers
            ],
            "nodes": [node_document(node, ports, self.topology.scheme) for node in cluster.nodes],
        }


def node_document(node: NodePlan, ports: Mapping[str, int], scheme: str = "http") -> dict[str, str]:
    """A node in `clusters.json`: base URLs of `http` and `admin`, the address of `cluster`."""
    return {
        "name": node.name,
        "http": f"{scheme}://{node.address('http', ports)}",
        "admin": f"{scheme}://{node.address('admin', ports)}",
        "cluster": str(node.address("cluster", ports)),
    }


def ensemble_of(cluster: ClusterPlan, ports: Mapping[str, int]) -> tuple[embedded_zookeeper.EnsembleMember, ...]:
    """The members of a cluster's ensemble; none for a single server."""
    return tuple(
        embedded_zookeeper.EnsembleMember(
            number, ports[server.name], ports[f"{server.name}.quorum"], ports[f"{server.name}.election"]
        )
        for number, server in enumerate(cluster.zookeepers, 1)
        if server.in_ensemble
    )


def _commands_of(children: Iterable[ChildSpec]) -> dict[str, str]:
    return {child.name: child.digest() for child in children}


def running_commands(state: Mapping[str, Any]) -> dict[str, str]:
    """Hashes of the commands that a supervisor runs, by child."""
    return {name: child["command"] for name, child in state["children"].items()}


@contextmanager
def _exclusive_setup(directory: Path) -> Iterator[None]:
    """Hold the lock for setting up this directory: two at once would overwrite each other's ports and files. Raises
    LocalFault after SET_UP_TIMEOUT_S."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        lock = os.open(directory / "supervisor.up", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise LocalFault(f"cannot use {directory} for clusters: {error}") from error
    try:
        deadline = time.monotonic() + SET_UP_TIMEOUT_S
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError as error:
                if time.monotonic() >= deadline:
                    raise LocalFault(f"another process is setting up clusters in {directory}: try again") from error
                time.sleep(0.05)
        yield
    finally:
        os.close(lock)


def replace_file(path: Path, text: str) -> None:
    """Replace a file in one step."""
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_text(text)
    temporary.replace(path)
