"""A checked topology: clusters, their nodes and ZooKeepers, the ports that they need, and nodes' config files.

Values only: `node.local.topology` reads them from a file, `node.local.clusters` starts them. A node's config file is
made from its cluster's sections and from names, ids, addresses, ZooKeepers and the nodes of other clusters.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import tomli_w

from isthmus.config.settings import Address

SECTIONS: Final = (
    "listen",
    "metastore",
    "replication",
    "transport",
    "limits",
    "source",
    "queues",
    "sink",
    "riak",
    "fullsync",
    "reconcile",
    "log",
)
"""Sections of a node's file that a cluster may have; [node] is made from the topology."""

LISTENERS: Final = ("http", "admin", "cluster")
"""A node's listeners, each of which has an address."""

LOCAL_HOST: Final = "127.0.0.1"

ANY_PORT: Final = 0

SECURITY: Final = "security"
"""Folder of DIR with the certificates and tokens of clusters with `secure`."""

AUTHORITY: Final = "ca"
CLIENT: Final = "client"
"""Names of certificates in that folder that belong to no node; no node may have them."""

ROLES: Final = ("read", "write", "operate", "replicate", "admin")
"""Keys of [tokens]."""

FACTOR_MOST: Final = 3
"""Replicas of a partition unless the file says otherwise: as many as there are nodes, up to the usual three."""


@dataclass(frozen=True, slots=True)
class Port:
    """A port that a child needs; `number` is the file's, or ANY_PORT when one is chosen at start. The `purpose` names
    it in `ports.json`."""

    purpose: str
    child: str
    number: int


@dataclass(frozen=True, slots=True)
class NodePlan:
    """One node: its unique name, its number in its cluster, its rack ("" for none) and its addresses by listener, of
    port ANY_PORT when chosen at start."""

    name: str
    id: int
    rack: str
    addresses: Mapping[str, Address]

    def ports(self) -> Iterator[Port]:
        """Its listeners' ports: "east-1.http", "east-1.admin", "east-1.cluster"."""
        for listener in LISTENERS:
            yield Port(f"{self.name}.{listener}", self.name, self.addresses[listener].port)

    def address(self, listener: str, ports: Mapping[str, int]) -> Address:
        """The address of a listener, with the chosen ports."""
        return Address(self.addresses[listener].host, ports[f"{self.name}.{listener}"])


@dataclass(frozen=True, slots=True)
class ZooKeeperPlan:
    """One ZooKeeper server: its name and client port; a member of an ensemble also has ports for the other members."""

    name: str
    port: int
    in_ensemble: bool

    def ports(self) -> Iterator[Port]:
        """The client port has the server's name as its purpose."""
        yield Port(self.name, self.name, self.port)
        if self.in_ensemble:
            yield Port(f"{self.name}.quorum", self.name, ANY_PORT)
            yield Port(f"{self.name}.election", self.name, ANY_PORT)


@dataclass(frozen=True, slots=True)
class PeerPlan:
    """A queue of another cluster that a cluster's sinks fetch."""

    cluster: str
    queue: str


@dataclass(frozen=True, slots=True)
class ClusterPlan:
    """One cluster; `sections` are the parsed tables that its nodes' files get as they are."""

    name: str
    zookeeper_port: int
    zookeeper_count: int
    nodes: tuple[NodePlan, ...]
    peers: tuple[PeerPlan, ...]
    sections: Mapping[str, Any]

    @property
    def zookeepers(self) -> tuple[ZooKeeperPlan, ...]:
        """A lone server, or the members of an ensemble."""
        if self.zookeeper_count == 1:
            return (ZooKeeperPlan(f"zookeeper-{self.name}", self.zookeeper_port, False),)
        return tuple(
            ZooKeeperPlan(f"zookeeper-{self.name}-{number}", ANY_PORT, True)
            for number in range(1, self.zookeeper_count + 1)
        )

    def hosts(self, ports: Mapping[str, int]) -> str:
        """Addresses of the ZooKeepers: "127.0.0.1:PORT,..."."""
        return ",".join(f"{LOCAL_HOST}:{ports[server.name]}" for server in self.zookeepers)


@dataclass(frozen=True, slots=True)
class Topology:
    """A checked topology file."""

    path: Path
    clusters: Mapping[str, ClusterPlan]
    secure: bool = False
    """TLS and tokens on every listener, from the folder SECURITY."""

    @property
    def scheme(self) -> str:
        """Scheme of the nodes' URLs."""
        return "https" if self.secure else "http"

    def ports(self) -> tuple[Port, ...]:
        """Every port that the clusters need."""
        found: list[Port] = []
        for cluster in self.clusters.values():
            for server in cluster.zookeepers:
                found += server.ports()
            for node in cluster.nodes:
                found += node.ports()
        return tuple(found)

    def node_text(self, cluster: ClusterPlan, node: NodePlan, ports: Mapping[str, int]) -> str:
        """The config file of `node`, with the ports (by purpose) as they were chosen. Its data lies in "data", beside
        the file."""
        sections = {name: cluster.sections.get(name, {}) for name in SECTIONS}
        replication = dict(sections["replication"])
        if replication.setdefault("factor", 0) == 0:
            replication["factor"] = min(FACTOR_MOST, len(cluster.nodes))
        peers = [
            {
                "url": f"{self.scheme}://{peer.address('http', ports)}",
                "queue": plan.queue,
                **self._peer_credentials(plan),
            }
            for plan in cluster.peers
            for peer in self.clusters[plan.cluster].nodes
        ]
        rack = {"rack": node.rack} if node.rack else {}
        whole = {
            "node": {"name": node.name, "id": node.id, **rack, "cluster": cluster.name, "data_dir": "data"},
            **sections,
            "listen": {
                **sections["listen"],
                **{listener: str(node.address(listener, ports)) for listener in LISTENERS},
            },
            "metastore": {**sections["metastore"], "hosts": cluster.hosts(ports)},
            "replication": replication,
            "queues": cluster.sections.get("queues", []),
            "sink": {**sections["sink"], "peers": peers},
            "fullsync": [self._fullsync_table(one, ports) for one in cluster.sections.get("fullsync", [])],
            **self._tls_sections(node),
        }
        filled = {name: section for name, section in whole.items() if section != {}}
        return f"# Made from {self.path.name}; changes belong there.\n{tomli_w.dumps(filled)}"

    def _fullsync_table(self, table: Any, ports: Mapping[str, int]) -> Any:
        """A [[fullsync]] table, with the URLs of its cluster's nodes where that is in this file."""
        named = table.get("cluster") if isinstance(table, dict) else None
        other = self.clusters.get(named) if isinstance(named, str) else None
        if other is None or "urls" in table:
            return table
        urls = ",".join(f"{self.scheme}://{node.address('http', ports)}" for node in other.nodes)
        token = {"token_file": f"../{SECURITY}/replicate.token"} if self.secure else {}
        return {"name": other.name, **token, **table, "urls": urls}

    def _peer_credentials(self, plan: PeerPlan) -> dict[str, str]:
        """Cluster that a sink expects at a peer, and the token that it sends."""
        if not self.secure:
            return {}
        return {"cluster": plan.cluster, "token_file": f"../{SECURITY}/replicate.token"}

    def _tls_sections(self, node: NodePlan) -> dict[str, Any]:
        if not self.secure:
            return {}
        pair = {"certificate": f"../{SECURITY}/{node.name}.crt", "key": f"../{SECURITY}/{node.name}.key"}
        return {
            "tls": {**pair, "authority": f"../{SECURITY}/ca.crt"},
            "tokens": {role: f"../{SECURITY}/{role}.token" for role in ROLES},
        }
