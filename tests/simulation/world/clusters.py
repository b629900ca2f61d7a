"""The clusters of a world: which nodes, which queues, sinks and full-syncs between them, and each node's file."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, NamedTuple

from tests.simulation.world import riak
from tests.simulation.world.credentials import Credentials, Trust
from tests.simulation.world.disk import WorldDisk
from tests.simulation.world.ensemble import Ensemble
from tests.simulation.world.machine import VirtualMachine
from tests.simulation.world.node import ADMIN_PORT, CLUSTER_PORT, HTTP_PORT, WorldNode

if TYPE_CHECKING:
    from tests.simulation.world.kernel import Kernel
    from tests.simulation.world.network import Network

NAMES = ("east", "west", "south")

ANY = ("any", "any")

FILTERS = (
    "buckettype:default",
    "!buckettype:default",
    "!buckettype:newest",
    "!buckettype:last, !buckettype:announced",
    "bucketname:things",
    "!bucketname:local",
    "any, !bucketprefix:loc",
    "block_rtq",
)
"""Of queues, in worlds where not everything is replicated everywhere. Clients write to the buckets things and local."""

TEMPLATE = """\
[node]
name = "{name}"
cluster = "{cluster}"
id = {number}
data_dir = "data"
[listen]
http = "{address}:{http}"
admin = "{address}:{admin}"
cluster = "{address}:{port}"
[metastore]
hosts = "metastore.{cluster}:2181"
[replication]
partitions = {partitions}
factor = {factor}
balance_by = "{balance_by}"
log_file_size = "{log_file_size}"
log_batch_size = "64KB"
log_size = "1MB"
removed_copy_grace = "10s"
checkpoint_interval = "10s"
[log]
format = "json"
"""


class Shape(NamedTuple):
    """What a world is made of; all of it follows from its seed unless a caller chooses."""

    nodes: tuple[int, ...] = (3, 3)
    """Nodes of each cluster."""
    partitions: int = 3
    one_way: bool = False
    """The last cluster only receives."""
    filters: tuple[str, str] = ("any", "any")
    """The filters of the first cluster's queues, and of those of the others."""
    compared: str = "*"
    """The bucket types that full-syncs compare."""
    bulky: bool = False
    """Values are large and logs small: logs are trimmed within a minute."""
    rollback: bool = False
    """Metastores may go back to an earlier state."""
    tokens: bool = False
    """Listeners need tokens."""
    tls: bool = False
    """Listeners and links have TLS, too."""
    gathered: bool = False
    """Leaders stand on as few nodes as carry the load; else always on all."""
    riak: bool = False
    """A Riak is beside the first cluster; it speaks no TLS."""

    @classmethod
    def drawn(cls, random: Random) -> Shape:
        """A shape by chance: two clusters mostly, each of one to three nodes."""
        clusters = random.choice((2, 2, 2, 3))
        nodes = tuple(random.choice((1, 2, 3, 3)) for _ in range(clusters))
        return cls(nodes, random.choice((1, 2, 3)), random.random() < 0.2)

    def with_features(self, random: Random) -> Shape:
        """The shape with settings other than the defaults, by chance: about half of all worlds have some."""
        filters, compared = random.sample(FILTERS, 2), random.choice(("default", "default,announced"))
        one_filter = random.random() < 0.5
        draws = [random.random() for _ in range(6)]
        return self._replace(
            filters=((filters[0], "any") if one_filter else (filters[0], filters[1])) if draws[0] < 0.25 else ANY,
            compared=compared if draws[1] < 0.12 else "*",
            bulky=draws[2] < 0.12,
            rollback=draws[3] < 0.15,
            tokens=draws[4] < 0.2,
            tls=draws[4] < 0.2 and draws[5] < 0.4,
        )

    @property
    def partial(self) -> bool:
        """Not everything is replicated or compared."""
        return self.filters != ANY or self.compared != "*"

    def filter_of(self, cluster: str) -> str:
        """The filter of a cluster's queues."""
        return self.filters[0 if cluster == NAMES[0] else 1]


class WorldCluster:
    """One cluster: its nodes and its metastore."""

    def __init__(self, name: str, number: int, ensemble: Ensemble) -> None:
        self.name = name
        self.number = number
        self.ensemble = ensemble
        self.nodes: dict[str, WorldNode] = {}
        self.receives_from: tuple[str, ...] = ()
        """Clusters whose queues its sinks fetch."""
        self.credentials: Credentials | None = None

    def address(self, number: int) -> str:
        """The address of its node `number`, from 1 on."""
        return f"10.{self.number}.{number >> 8}.{number & 255}"

    @property
    def running(self) -> list[WorldNode]:
        """Its nodes with a process."""
        return [node for node in self.nodes.values() if node.running]


def make_clusters(kernel: Kernel, network: Network, directory: Path, shape: Shape) -> dict[str, WorldCluster]:
    """The clusters of a world, with their nodes' files written; nothing runs yet."""
    clusters: dict[str, WorldCluster] = {}
    trust = Trust()
    for number, name in enumerate(NAMES[: len(shape.nodes)], start=1):
        made = clusters[name] = WorldCluster(name, number, Ensemble(kernel))
        if shape.tokens:
            made.credentials = Credentials(name, directory / "people" / name, trust, tls=shape.tls)
    names = list(clusters)
    for name, cluster in clusters.items():
        others = [each for each in names if each != name]
        if shape.one_way and len(names) > 1:
            others = [each for each in others if each != names[-1]]  # it offers nothing
        cluster.receives_from = tuple(others)
    for (name, cluster), count in zip(clusters.items(), shape.nodes, strict=True):
        receivers = [each.name for each in clusters.values() if name in each.receives_from]
        for number in range(1, count + 1):
            node = add_node(kernel, network, directory, cluster, number)
            text = _file(cluster, node, number, count, receivers, clusters, shape)
            node.file.write_text(text)
    return clusters


def add_node(
    kernel: Kernel,
    network: Network,
    directory: Path,
    cluster: WorldCluster,
    number: int,
) -> WorldNode:
    """A machine with an empty directory."""
    name = f"{cluster.name}-{number}"
    machine = VirtualMachine(kernel, network, name, cluster.address(number))
    place = directory / name
    place.mkdir()
    disk = WorldDisk(machine.wait_for_disk)
    node = cluster.nodes[name] = WorldNode(machine, cluster.name, name, place, cluster.ensemble, disk)
    node.credentials = cluster.credentials
    if cluster.credentials is not None:
        cluster.credentials.furnish(place, name, machine.address)
    return node


def _file(
    cluster: WorldCluster,
    node: WorldNode,
    number: int,
    count: int,
    receivers: list[str],
    clusters: dict[str, WorldCluster],
    shape: Shape,
) -> str:
    text = TEMPLATE.format(
        name=node.name,
        cluster=cluster.name,
        number=number,
        address=node.machine.address,
        http=HTTP_PORT,
        admin=ADMIN_PORT,
        port=CLUSTER_PORT,
        partitions=shape.partitions,
        factor=count,
        balance_by="load" if shape.gathered else "count",
        log_file_size="64KB" if shape.bulky else "256KB",
    )
    if cluster.credentials is not None:
        text += cluster.credentials.settings()
    for receiver in receivers:
        text += f'[[queues]]\nname = "{receiver}"\nfilter = "{shape.filter_of(cluster.name)}"\nlease = "5s"\n'
    for source in cluster.receives_from:
        url = f"{node.scheme}://{clusters[source].address(1)}:{HTTP_PORT}"
        text += f'[[sink.peers]]\nurl = "{url}"\nqueue = "{cluster.name}"\ncluster = "{source}"\n'
        text += _token_file(clusters[source])
    for receiver in receivers:
        urls = f"{node.scheme}://{clusters[receiver].address(1)}:{HTTP_PORT}"
        text += (
            f'[[fullsync]]\nname = "{receiver}"\nurls = "{urls}"\nqueue = "{receiver}"\n'
            f'cluster = "{receiver}"\nauto = 24\nbucket_types = "{shape.compared}"\n'
        ) + _token_file(clusters[receiver])
        both = cluster.name in clusters[receiver].receives_from and receiver in cluster.receives_from
        if both and shape.filter_of(cluster.name) == shape.filter_of(receiver):
            text += f'bidirectional = true\npeer_queue = "{cluster.name}"\n'
    if shape.riak and cluster.name == NAMES[0]:
        text += riak.settings_of(riak.ADDRESS)
    return text


def _token_file(cluster: WorldCluster) -> str:
    """What nodes of other clusters show to a cluster."""
    return "" if cluster.credentials is None else f'token_file = "{cluster.credentials.file("replicate")}"\n'
