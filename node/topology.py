"""A topology file: clusters on this machine, from which each node's own config file is made.

    [clusters.east]                      zookeeper_port, and any section of a node's file but [node]
    [[clusters.east.nodes]]              name, http, admin
    [[clusters.east.queues]]             as in a node's file
    [[clusters.east.sink.peers]]         cluster, queue: becomes the URLs of that cluster's nodes

What a section may hold is not known here: the generated file of each node goes through `config.loading`, and its
faults are told at the place in the topology that they come from. All faults are reported at once. Nothing is
started here; `node.local` does that.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

from config.loading import FILE_BYTES_MAX, ConfigError, Fault, load_text
from config.positions import KeyPath, line_of_keys
from config.rules import PORT_MAX, check_name, parse_address
from config.settings import Address
from config.texts import shown
from node.toml_writing import toml_document

CLUSTER_KEYS: Final = ("zookeeper_port", "nodes")
NODE_KEYS: Final = ("name", "http", "admin")
PEER_KEYS: Final = ("cluster", "queue")
SECTIONS: Final = ("listen", "metastore", "replication", "limits", "queues", "sink", "log")
"""Sections of a node's file that a cluster may have. [node] is what the topology itself says."""

OWN_KEYS: Final[Mapping[str, tuple[str, ...]]] = {
    "listen": ("http", "admin"),
    "metastore": ("hosts", "embedded_port", "linger"),
}
"""Keys of these sections that the topology itself gives: addresses stand at the nodes, the ZooKeeper is ours."""

RESERVED_NAMES: Final = re.compile(r"(supervisor|spec|state|ports|clusters)(\..*)?|zookeeper-.*")
"""Names of other things in DIR, where each node has a folder of its name."""

LOOPBACK: Final = ("127.0.0.1", "localhost")
"""Hosts that addresses may have: these clusters are for this machine alone."""

ANY_PORT: Final = 0

PLACEHOLDER_PORT: Final = 1
"""Stands in a peer's URL while a file is checked whose ports are chosen at start."""


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class NodePlan:
    """One node: its unique name and its addresses, of port ANY_PORT when chosen at start."""

    name: str
    http: Address
    admin: Address


@dataclass(frozen=True, slots=True)
class PeerPlan:
    """What a cluster's sinks fetch: a queue of another cluster."""

    cluster: str
    queue: str


@dataclass(frozen=True, slots=True)
class ClusterPlan:
    """One cluster; `sections` are the parsed tables that its nodes' files get as they are."""

    name: str
    zookeeper_port: int
    nodes: tuple[NodePlan, ...]
    peers: tuple[PeerPlan, ...]
    sections: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Topology:
    """A checked topology file."""

    path: Path
    clusters: Mapping[str, ClusterPlan]

    def purposes(self) -> dict[str, int]:
        """Every port that the clusters need, by purpose ("east-1.http", "east-1.admin", "zookeeper-east"), with the
        one that the file gives or ANY_PORT."""
        ports = {}
        for cluster in self.clusters.values():
            ports[zookeeper_name(cluster.name)] = cluster.zookeeper_port
            for node in cluster.nodes:
                ports[f"{node.name}.http"] = node.http.port
                ports[f"{node.name}.admin"] = node.admin.port
        return ports

    def node_text(self, cluster: ClusterPlan, node: NodePlan, ports: Mapping[str, int]) -> str:
        """The config file of `node`, with the ports of `purposes` as they were chosen. Its data lies in "data", beside
        the file."""
        sections = {name: cluster.sections.get(name, {}) for name in SECTIONS}
        listen = {
            **sections["listen"],
            "http": str(Address(node.http.host, ports[f"{node.name}.http"])),
            "admin": str(Address(node.admin.host, ports[f"{node.name}.admin"])),
        }
        metastore = {**sections["metastore"], "hosts": f"127.0.0.1:{ports[zookeeper_name(cluster.name)]}"}
        peers = [
            {"url": f"http://{Address(peer.http.host, ports[f'{peer.name}.http'])}", "queue": plan.queue}
            for plan in cluster.peers
            for peer in self.clusters[plan.cluster].nodes
        ]
        whole = {
            "node": {"name": node.name, "cluster": cluster.name, "data_dir": "data"},
            **sections,
            "listen": listen,
            "metastore": metastore,
            "queues": cluster.sections.get("queues", []),
            "sink": {**sections["sink"], "peers": peers},
        }
        return f"# Made from {self.path.name}; changes belong there.\n{toml_document(whole)}"


def zookeeper_name(cluster: str) -> str:
    """Name of the child, folder and port of a cluster's ZooKeeper."""
    return f"zookeeper-{cluster}"


def load_topology(path: Path) -> Topology:
    """The topology in a file. Raises ConfigError with every fault, also when the file cannot be read."""
    try:
        raw = path.read_bytes()
        if len(raw) > FILE_BYTES_MAX:
            raise ConfigError(str(path), [Fault("", 0, f"is larger than {FILE_BYTES_MAX} bytes; that is no topology")])
        text = raw.decode("utf-8-sig")
    except OSError as error:
        raise ConfigError(str(path), [Fault("", 0, f"cannot be read: {error.strerror}")]) from error
    except UnicodeDecodeError as error:
        raise ConfigError(str(path), [Fault("", 0, "is not UTF-8; save the file as UTF-8")]) from error
    return parse_topology(text, path)


def parse_topology(text: str, path: Path) -> Topology:
    """The topology in a text. Raises ConfigError with every fault, in the order of its lines."""
    text = text.replace("\r\n", "\n")
    try:
        values = tomllib.loads(text)
        lines = line_of_keys(text)
    except (ValueError, RecursionError) as error:  # tomllib's own errors are ValueErrors
        raise ConfigError(str(path), [Fault("", 0, f"not TOML: {error or 'nested too deeply'}")]) from None
    reader = _Reader(path, lines)
    topology = reader.topology(values)
    reader.check_relations(topology)
    reader.check_node_files(topology)
    if reader.faults:
        raise ConfigError(str(path), sorted(reader.faults, key=lambda fault: (fault.line, fault.path)))
    return topology


class _Reader:
    """Walks the parsed file and gathers faults; what is wrong is left out of the topology that it builds."""

    def __init__(self, path: Path, lines: Mapping[KeyPath, int]) -> None:
        self._path = path
        self._lines = lines
        self.faults: list[Fault] = []

    def topology(self, values: dict[str, Any]) -> Topology:
        self._unknown(values, (), ("clusters",))
        clusters = self._table(values.get("clusters", {}), ("clusters",))
        if not clusters and not self.faults:
            self._fault((), "no clusters; write [clusters.NAME] and its nodes below")
        plans = {}
        for name, value in clusters.items():
            self._checked(partial(check_name, name), ("clusters", name))
            plans[name] = self._cluster(name, self._table(value, ("clusters", name)))
        return Topology(self._path, plans)

    def _cluster(self, name: str, values: dict[str, Any]) -> ClusterPlan:
        where: KeyPath = ("clusters", name)
        self._unknown(values, where, (*CLUSTER_KEYS, *SECTIONS))
        port = values.get("zookeeper_port", ANY_PORT)
        if type(port) is not int or not ANY_PORT <= port <= PORT_MAX:
            self._fault((*where, "zookeeper_port"), f"{shown(port)} is not a port; a port is a number up to {PORT_MAX}")
            port = ANY_PORT
        nodes = [
            self._node(self._table(value, (*where, "nodes", number)), (*where, "nodes", number))
            for number, value in enumerate(self._tables(values.get("nodes", []), (*where, "nodes")))
        ]
        if not nodes and not isinstance(values.get("nodes"), str | int | float | dict):
            self._fault(where, f"no nodes; write [[clusters.{name}.nodes]] with a name below")
        sections = {key: value for key, value in values.items() if key in SECTIONS}
        for section, keys in OWN_KEYS.items():
            for key in keys:
                if key in self._table(sections.get(section, {}), (*where, section)):
                    self._fault((*where, section, key), "does not belong into a topology, which gives it itself")
        sink = dict(self._table(sections.get("sink", {}), (*where, "sink")))
        peers = self._tables(sink.pop("peers", []), (*where, "sink", "peers"))
        sections["sink"] = sink
        plans = [self._peer(peer, (*where, "sink", "peers", number)) for number, peer in enumerate(peers)]
        return ClusterPlan(name, port, tuple(nodes), tuple(plans), sections)

    def _node(self, values: dict[str, Any], where: KeyPath) -> NodePlan:
        self._unknown(values, where, NODE_KEYS)
        name = self._text(values, where, "name", "")
        if name:
            self._checked(partial(check_name, name), (*where, "name"))
            if RESERVED_NAMES.fullmatch(name):
                self._fault((*where, "name"), f"{shown(name)} is the name of something else in the directory")
        else:
            self._fault((*where, "name"), "missing; every node needs a name of its own")
        return NodePlan(name, self._address(values, where, "http"), self._address(values, where, "admin"))

    def _address(self, values: dict[str, Any], where: KeyPath, key: str) -> Address:
        text = self._text(values, where, key, f"127.0.0.1:{ANY_PORT}")
        address = self._checked(partial(parse_address, text), (*where, key)) or Address("127.0.0.1", ANY_PORT)
        if address.host not in LOOPBACK:
            self._fault((*where, key), f"{shown(text)}: these clusters are for this machine; write 127.0.0.1:PORT")
        return address

    def _peer(self, values: Any, where: KeyPath) -> PeerPlan:
        table = self._table(values, where)
        self._unknown(table, where, PEER_KEYS)
        for key in PEER_KEYS:
            if key not in table:
                self._fault((*where, key), "missing; a peer is a cluster of this file and a queue that it has")
        return PeerPlan(*(self._text(table, where, key, "") for key in PEER_KEYS))

    # --- relations ---

    def check_relations(self, topology: Topology) -> None:
        """Names and ports that occur twice, peers that do not exist, queues that two clusters want."""
        names: dict[str, KeyPath] = {}
        ports: dict[int, KeyPath] = {}
        takers: dict[PeerPlan, str] = {}
        for cluster in topology.clusters.values():
            where: KeyPath = ("clusters", cluster.name)
            self._once(cluster.zookeeper_port, ports, (*where, "zookeeper_port"), "port")
            for number, node in enumerate(cluster.nodes):
                here: KeyPath = (*where, "nodes", number)
                self._once(node.name, names, (*here, "name"), "name")
                self._once(node.http.port, ports, (*here, "http"), "port")
                self._once(node.admin.port, ports, (*here, "admin"), "port")
            for number, peer in enumerate(cluster.peers):
                self._check_peer(topology, cluster, peer, (*where, "sink", "peers", number), takers)

    def _once(self, value: Any, seen: dict[Any, KeyPath], where: KeyPath, noun: str) -> None:
        if value == ANY_PORT:
            return
        if value in seen:
            self._fault(where, f"{noun} {value} is given to {_dotted(seen[value])} already")
        seen.setdefault(value, where)

    def _check_peer(
        self, topology: Topology, cluster: ClusterPlan, peer: PeerPlan, where: KeyPath, takers: dict[PeerPlan, str]
    ) -> None:
        if peer.cluster == cluster.name:
            self._fault((*where, "cluster"), "a cluster does not fetch from itself; name another one")
            return
        source = topology.clusters.get(peer.cluster)
        if source is None:
            self._fault((*where, "cluster"), _no_such("cluster", peer.cluster, list(topology.clusters)))
            return
        queues = source.sections.get("queues", [])
        offered = [queue.get("name") for queue in queues if isinstance(queue, dict)] if isinstance(queues, list) else []
        if peer.queue not in offered:
            names = [name for name in offered if isinstance(name, str)]
            self._fault((*where, "queue"), _no_such(f"queue in cluster {peer.cluster}", peer.queue, names))
        if takers.setdefault(peer, cluster.name) != cluster.name:
            self._fault(
                (*where, "queue"), f"cluster {takers[peer]} fetches it already; each cluster needs its own queue"
            )

    def check_node_files(self, topology: Topology) -> None:
        """What the loader of node files finds in the files that would be made."""
        ports = {
            purpose: port or PLACEHOLDER_PORT + number
            for number, (purpose, port) in enumerate(topology.purposes().items())
        }
        for cluster in topology.clusters.values():
            reachable = [
                (number, plan)
                for number, plan in enumerate(cluster.peers)
                if plan.cluster in topology.clusters and plan.cluster != cluster.name
            ]
            checked = replace(cluster, peers=tuple(plan for _, plan in reachable))
            places: list[KeyPath] = [
                ("clusters", cluster.name, "sink", "peers", number)
                for number, plan in reachable
                for _ in topology.clusters[plan.cluster].nodes
            ]
            for number, node in enumerate(cluster.nodes):
                try:
                    load_text(topology.node_text(checked, node, ports), self._path)
                except ConfigError as error:
                    for fault in error.faults:
                        self._fault(self._origin(fault.path, cluster.name, number, places), fault.message)

    def _origin(self, path: str, cluster: str, node: int, peers: list[KeyPath]) -> KeyPath:
        """Where in the topology a key of a generated file comes from."""
        match _keys(path):
            case ("node", "cluster"):
                return ("clusters", cluster)
            case ("node", *rest):
                return ("clusters", cluster, "nodes", node, *rest)
            case ("listen", "http" | "admin" as key):
                return ("clusters", cluster, "nodes", node, key)
            case ("sink", "peers", int(number), *rest):
                return (*peers[number], *rest)
            case rest:
                return ("clusters", cluster, *rest)

    # --- values ---

    def _table(self, value: Any, where: KeyPath) -> dict[str, Any]:
        if isinstance(value, dict):
            return value
        self._fault(where, f"{shown(value)} where a table belongs; write [{_dotted(where)}] and its keys below")
        return {}

    def _tables(self, value: Any, where: KeyPath) -> list[Any]:
        if isinstance(value, list):
            return value
        self._fault(where, f"{shown(value)} where a list belongs; write [[{_dotted(where)}]], in double brackets")
        return []

    def _text(self, values: dict[str, Any], where: KeyPath, key: str, default: str) -> str:
        value = values.get(key, default)
        if isinstance(value, str):
            return value
        self._fault((*where, key), f"{shown(value)} is not a text; write it in quotes")
        return default

    def _checked(self, check: Callable[[], T], where: KeyPath) -> T | None:
        try:
            return check()
        except ValueError as error:
            self._fault(where, str(error))
            return None

    def _unknown(self, values: dict[str, Any], where: KeyPath, known: tuple[str, ...]) -> None:
        for key in values:
            if key not in known:
                self._fault((*where, key), _no_such("key", key, list(known)))

    def _fault(self, where: KeyPath, message: str) -> None:
        """Report unless this place, or the table or list around it, has a fault already: this would be another view."""
        path = _dotted(where)
        around = {_dotted(where[:depth]) for depth in range(3, len(where))}  # not the cluster's own: clusters.NAME
        if any(fault.path == path or fault.path in around for fault in self.faults):
            return
        at = where
        while at and at not in self._lines:
            at = at[:-1]
        self.faults.append(Fault(path, self._lines.get(at, 1), message))


def _no_such(noun: str, name: str, known: list[str]) -> str:
    close = get_close_matches(name.lower(), known, n=1, cutoff=0.6)
    if close:
        return f'no such {noun}: {shown(name)}; did you mean "{close[0]}"?'
    return f"no such {noun}: {shown(name)}; known here: {', '.join(known) or 'none'}"


def _dotted(where: KeyPath) -> str:
    text = ""
    for part in where:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            text += f".{part}" if text else part
    return text


def _keys(path: str) -> KeyPath:
    """A dotted path of the loader ("sink.peers[1].url") in parts."""
    pieces = re.findall(r'"(?:[^"\\]|\\.)*"|[^.\[\]]+|\[\d+\]', path)
    return tuple(int(piece[1:-1]) if piece.startswith("[") else piece for piece in pieces)
