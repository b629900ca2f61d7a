"""A topology file: clusters on this machine, from which each node's own config file is made.

    secure = true                        TLS and tokens on every listener, made by `node.local.dev_certificates`
    [clusters.east]                      zookeepers, zookeeper_port, and any section of a node's file but [node]
    [[clusters.east.nodes]]              name, id, rack, http, admin, cluster
    [[clusters.east.queues]]             as in a node's file
    [[clusters.east.sink.peers]]         cluster, queue: becomes the URLs of that cluster's nodes

The generated config file of each node goes through `config.loader`; its faults are reported at the place in the
topology that they come from, all at once. The result is `node.local.topology_model`.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

from isthmus.config.loader import FILE_BYTES_MAX, ConfigError, Fault, load_text
from isthmus.config.settings import Address
from isthmus.config.text import no_such, shown
from isthmus.config.toml_lines import KeyPath, line_of_keys
from isthmus.config.validation import PORT_MAX, check_name, check_name_or_none, parse_address
from isthmus.node.local.topology_model import (
    ANY_PORT,
    AUTHORITY,
    CLIENT,
    LISTENERS,
    LOCAL_HOST,
    SECTIONS,
    SECURITY,
    ClusterPlan,
    NodePlan,
    PeerPlan,
    Topology,
)

CLUSTER_KEYS: Final = ("zookeepers", "zookeeper_port", "nodes")
NODE_KEYS: Final = ("name", "id", "rack", *LISTENERS)
PEER_KEYS: Final = ("cluster", "queue")

OWN_KEYS: Final[Mapping[str, tuple[str, ...]]] = {
    "listen": LISTENERS,
    "metastore": ("hosts", "embedded_port", "linger"),
}
"""Keys of these sections that are made from the topology: addresses are set at the nodes, ZooKeepers are generated."""

RESERVED_NAMES: Final = re.compile(r"(supervisor|spec|state|ports|clusters|security)(\..*)?|zookeeper-.*")
"""Names of other files in DIR, where each node has a folder of its name."""

LOOPBACK: Final = (LOCAL_HOST, "localhost")
"""Hosts that addresses may have: these clusters run on this machine only."""

ZOOKEEPER_COUNTS: Final = (1, 3)
"""One server is lost when it is killed, until it is back; three outlive the loss of one."""

ID_MAX: Final = 2**31 - 1
"""The range of `node.id` in a node's file."""

PLACEHOLDER_PORT: Final = 1
"""Port in a peer's URL while a file is checked whose ports are chosen at start."""


T = TypeVar("T")


def load_topology(path: Path) -> Topology:
    """The topology in a file. Raises ConfigError with every fault, also when the file cannot be read."""
    try:
        raw = path.read_bytes()
        if len(raw) > FILE_BYTES_MAX:
            raise ConfigError(
                str(path), [Fault("", 0, f"has more than {FILE_BYTES_MAX} bytes, too many for a topology")]
            )
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
    reader = _TopologyReader(path, lines)
    topology = reader.topology(values)
    reader.check_relations(topology)
    reader.check_node_files(topology)
    if reader.faults:
        raise ConfigError(str(path), sorted(reader.faults, key=lambda fault: (fault.line, fault.path)))
    return topology


class _TopologyReader:
    """Walks the parsed file and collects faults; wrong values are left out of the topology that it builds."""

    def __init__(self, path: Path, lines: Mapping[KeyPath, int]) -> None:
        self._path = path
        self._lines = lines
        self.faults: list[Fault] = []

    def topology(self, values: dict[str, Any]) -> Topology:
        self._unknown(values, (), ("clusters", "secure"))
        secure = values.get("secure", False)
        if type(secure) is not bool:
            self._fault(("secure",), f"{shown(secure)} is neither true nor false")
        clusters = self._table(values.get("clusters", {}), ("clusters",))
        if not clusters and not self.faults:
            self._fault((), "no clusters; write [clusters.NAME] and its nodes below")
        plans = {}
        for name, value in clusters.items():
            self._checked(partial(check_name, name), ("clusters", name))
            plans[name] = plan = self._cluster(name, self._table(value, ("clusters", name)))
            for number, node in enumerate(plan.nodes):
                if secure is True and node.name in (AUTHORITY, CLIENT):
                    what = f"{shown(node.name)} is the name of another certificate in {SECURITY}"
                    self._fault(("clusters", name, "nodes", number, "name"), what)
        return Topology(self._path, plans, secure is True)

    def _cluster(self, name: str, values: dict[str, Any]) -> ClusterPlan:
        where: KeyPath = ("clusters", name)
        self._unknown(values, where, (*CLUSTER_KEYS, *SECTIONS))
        zookeepers = values.get("zookeepers", ZOOKEEPER_COUNTS[0])
        if type(zookeepers) is not int or zookeepers not in ZOOKEEPER_COUNTS:
            counts = " or ".join(map(str, ZOOKEEPER_COUNTS))
            self._fault((*where, "zookeepers"), f"{shown(zookeepers)}: a cluster has {counts} ZooKeepers")
            zookeepers = ZOOKEEPER_COUNTS[0]
        port = self._number(values, where, "zookeeper_port", ANY_PORT, PORT_MAX)
        if port != ANY_PORT and zookeepers > 1:
            self._fault(
                (*where, "zookeeper_port"), f"is one server's; leave it out, {zookeepers} servers have chosen ports"
            )
        nodes = [
            self._node(number, self._table(value, (*where, "nodes", number)), (*where, "nodes", number))
            for number, value in enumerate(self._tables(values.get("nodes", []), (*where, "nodes")))
        ]
        if not nodes and not isinstance(values.get("nodes"), str | int | float | dict):
            self._fault(where, f"no nodes; write [[clusters.{name}.nodes]] with a name below")
        sections = {key: value for key, value in values.items() if key in SECTIONS}
        for section in ("listen", "metastore", "replication", "sink"):
            sections[section] = dict(self._table(sections.get(section, {}), (*where, section)))
        for section in ("queues", "fullsync"):
            sections[section] = self._tables(sections.get(section, []), (*where, section))
        for section, keys in OWN_KEYS.items():
            for key in keys:
                if key in sections[section]:
                    self._fault((*where, section, key), "does not belong into a topology, which gives it itself")
        sink = sections["sink"]
        peers = self._tables(sink.pop("peers", []), (*where, "sink", "peers"))
        plans = [self._peer(peer, (*where, "sink", "peers", number)) for number, peer in enumerate(peers)]
        return ClusterPlan(name, port, zookeepers, tuple(nodes), tuple(plans), sections)

    def _node(self, position: int, values: dict[str, Any], where: KeyPath) -> NodePlan:
        self._unknown(values, where, NODE_KEYS)
        name = self._text(values, where, "name", "")
        if name:
            self._checked(partial(check_name, name), (*where, "name"))
            if RESERVED_NAMES.fullmatch(name):
                self._fault((*where, "name"), f"{shown(name)} is the name of something else in the directory")
        else:
            self._fault((*where, "name"), "missing; every node needs a name of its own")
        rack = self._text(values, where, "rack", "")
        return NodePlan(
            name,
            self._number(values, where, "id", position, ID_MAX),
            self._checked(partial(check_name_or_none, rack), (*where, "rack")) or "",
            {listener: self._address(values, where, listener) for listener in LISTENERS},
        )

    def _number(self, values: dict[str, Any], where: KeyPath, key: str, default: int, most: int) -> int:
        value = values.get(key, default)
        if type(value) is int and 0 <= value <= most:
            return value
        self._fault((*where, key), f"{shown(value)} is not a whole number from 0 to {most}")
        return default

    def _address(self, values: dict[str, Any], where: KeyPath, key: str) -> Address:
        text = self._text(values, where, key, f"{LOCAL_HOST}:{ANY_PORT}")
        address = self._checked(partial(parse_address, text), (*where, key)) or Address(LOCAL_HOST, ANY_PORT)
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
        """Report names, ids and ports that occur twice, replicas without a node, racks on some nodes only, unknown
        peers, and queues that two clusters fetch."""
        names: dict[str, KeyPath] = {}
        ports: dict[int, KeyPath] = {}
        fetchers: dict[PeerPlan, str] = {}
        for cluster in topology.clusters.values():
            where: KeyPath = ("clusters", cluster.name)
            for server in cluster.zookeepers:
                self._once(server.name, names, where, "the ZooKeeper's name")
                self._once(server.port or None, ports, (*where, "zookeeper_port"), "port")
            ids: dict[int, KeyPath] = {}
            for number, node in enumerate(cluster.nodes):
                here: KeyPath = (*where, "nodes", number)
                self._once(node.name or None, names, (*here, "name"), "name")
                self._once(node.id, ids, (*here, "id"), "id")
                for listener, address in node.addresses.items():
                    self._once(address.port or None, ports, (*here, listener), "port")
            self._check_placing(cluster, where)
            for number, peer in enumerate(cluster.peers):
                self._check_peer(topology, cluster, peer, (*where, "sink", "peers", number), fetchers)
            self._check_compared(topology, cluster, where)

    def _check_placing(self, cluster: ClusterPlan, where: KeyPath) -> None:
        replication = cluster.sections["replication"]
        factor = replication.get("factor")
        count = len(cluster.nodes)
        if isinstance(factor, int) and factor > count:
            self._fault(
                (*where, "replication", "factor"), f"{factor} replicas need as many nodes; the cluster has {count}"
            )
        racked = [node for node in cluster.nodes if node.rack]
        if racked and not replication.get("ignore_rack_assignment"):
            for number, node in enumerate(cluster.nodes):
                if not node.rack:
                    message = f"missing: {racked[0].name} has one, so every node of the cluster needs one"
                    self._fault((*where, "nodes", number, "rack"), message)

    def _once(self, value: Any, seen: dict[Any, KeyPath], where: KeyPath, noun: str) -> None:
        if value is None:
            return
        if value in seen:
            self._fault(where, f"{noun} {value} is given to {_dotted(seen[value])} already")
        seen.setdefault(value, where)

    def _check_peer(
        self, topology: Topology, cluster: ClusterPlan, peer: PeerPlan, where: KeyPath, fetchers: dict[PeerPlan, str]
    ) -> None:
        if peer.cluster == cluster.name:
            self._fault((*where, "cluster"), "a cluster does not fetch from itself; name another one")
            return
        source = topology.clusters.get(peer.cluster)
        if source is None:
            self._fault((*where, "cluster"), no_such("cluster", peer.cluster, list(topology.clusters)))
            return
        offered = [queue.get("name") for queue in source.sections["queues"] if isinstance(queue, dict)]
        if peer.queue not in offered:
            names = [name for name in offered if isinstance(name, str)]
            self._fault((*where, "queue"), no_such(f"queue in cluster {peer.cluster}", peer.queue, names))
        if fetchers.setdefault(peer, cluster.name) != cluster.name:
            self._fault(
                (*where, "queue"), f"cluster {fetchers[peer]} fetches it already; each cluster needs its own queue"
            )

    def _check_compared(self, topology: Topology, cluster: ClusterPlan, where: KeyPath) -> None:
        """Report a [[fullsync]] with its own cluster, or without URLs for a cluster that is not in this file."""
        for number, table in enumerate(cluster.sections["fullsync"]):
            named = table.get("cluster") if isinstance(table, dict) else None
            if not isinstance(named, str) or not named:
                continue
            here: KeyPath = (*where, "fullsync", number)
            if named == cluster.name:
                self._fault(here, "a cluster is not compared with itself; name another one")
            elif named not in topology.clusters and "urls" not in table:
                known = no_such("cluster of this file", named, list(topology.clusters))
                self._fault(here, f"{known}; one that is elsewhere needs name and urls")

    def check_node_files(self, topology: Topology) -> None:
        """Report what the config loader finds in the nodes' files.

        A node with a fault (a name or a port that occurs twice) may get the addresses of another one. Addresses that
        are generated are then not judged, since what is found there is not in the topology."""
        judged = not any(_of_node(fault) for fault in self.faults)
        ports = {port.purpose: port.number or PLACEHOLDER_PORT + number for number, port in enumerate(topology.ports())}
        for cluster in topology.clusters.values():
            reachable = [
                (number, plan)
                for number, plan in enumerate(cluster.peers)
                if plan.cluster in topology.clusters and plan.cluster != cluster.name
            ]
            checked = replace(cluster, peers=tuple(plan for _, plan in reachable))
            peer_paths: list[KeyPath] = [
                ("clusters", cluster.name, "sink", "peers", number)
                for number, plan in reachable
                for _ in topology.clusters[plan.cluster].nodes
            ]
            for number, node in enumerate(cluster.nodes):
                try:
                    load_text(topology.node_text(checked, node, ports), self._path)
                except ConfigError as error:
                    for fault in error.faults:
                        if judged or not _has_generated_addresses(fault):
                            self._fault(self._origin(fault.path, cluster.name, number, peer_paths), fault.message)

    def _origin(self, path: str, cluster: str, node: int, peers: list[KeyPath]) -> KeyPath:
        """The key of the topology that a key of a generated file comes from."""
        match _keys(path):
            case ("node", "cluster"):
                return ("clusters", cluster)
            case ("node", *rest):
                return ("clusters", cluster, "nodes", node, *rest)
            case ("listen", "http" | "admin" | "cluster" as key):
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
                self._fault((*where, key), no_such("key", key, list(known)))

    def _fault(self, where: KeyPath, message: str) -> None:
        """Report a fault, unless this key or the table or list around it has one already."""
        path = _dotted(where)
        around = {_dotted(where[:depth]) for depth in range(3, len(where))}  # not the cluster's own: clusters.NAME
        if any(fault.path == path or fault.path in around for fault in self.faults):
            return
        at = where
        while at and at not in self._lines:
            at = at[:-1]
        self.faults.append(Fault(path, self._lines.get(at, 1), message))


def _of_node(fault: Fault) -> bool:
    """Whether a fault of the topology is one of a node."""
    return re.match(r"clusters\..+\.nodes\[", fault.path) is not None


def _has_generated_addresses(fault: Fault) -> bool:
    """Whether the value of a fault in a node's file has addresses that come from nodes of the topology."""
    match _keys(fault.path):
        case ("listen", "http" | "admin" | "cluster") | ("sink", "peers", int(), "url") | ("fullsync", int(), "urls"):
            return True
        case _:
            return False


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
