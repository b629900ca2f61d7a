"""A topology file becomes nodes' files that load, or a list of all that is wrong with it."""

from __future__ import annotations

from pathlib import Path

import pytest

from isthmus.config.loader import ConfigError, load_text
from isthmus.node.local.topology import load_topology, parse_topology

SAMPLE = Path(__file__).parents[5] / "config" / "samples" / "two-nodes.toml"

NODE = '[[clusters.a.nodes]]\nname = "a-1"\n'


B_OFFERS = """[clusters.b]
queues = [{name = "to_a"}]
[[clusters.b.nodes]]
name = "b-1"
"""


def faults(text: str) -> list[tuple[str, int, str]]:
    """(key path, line, message) of everything that is wrong."""
    with pytest.raises(ConfigError) as caught:
        parse_topology(text, Path("t.toml"))
    return [tuple(fault) for fault in caught.value.faults]  # type: ignore[misc]


def test_the_sample_replicates_both_ways() -> None:
    """two-nodes.toml: each cluster's node fetches the other's queue at the other's address, and every file loads."""
    topology = load_topology(SAMPLE)
    loaded = {}
    for cluster in topology.clusters.values():
        for node in cluster.nodes:
            ports = {port.purpose: port.number or 4000 + at for at, port in enumerate(topology.ports())}
            text = topology.node_text(cluster, node, ports)
            loaded[node.name] = load_text(text, Path("/x/node.toml"))
    east, west = loaded["east-1"], loaded["west-1"]
    assert [queue.name for queue in east.queues] == ["to-west"]
    assert [(peer.url, peer.queue) for peer in west.sink.peers] == [(f"http://{east.listen.http}", "to-west")]
    assert [(peer.url, peer.queue) for peer in east.sink.peers] == [(f"http://{west.listen.http}", "to-east")]
    assert east.metastore.hosts == "127.0.0.1:18097" != west.metastore.hosts
    assert (east.node.cluster, east.node.data_dir) == ("east", Path("/x/data"))


def test_the_larger_sample_has_three_nodes_a_cluster() -> None:
    """two-clusters.toml has three replicas, of which two must hold a write; every node has a number and three addresses
    of its own, and every sink has all nodes of the other cluster."""
    topology = load_topology(SAMPLE.with_name("two-clusters.toml"))
    ports = {port.purpose: port.number or 4000 + at for at, port in enumerate(topology.ports())}
    assert len(set(ports.values())) == len(ports) == 2 + 6 * 3
    west = topology.clusters["west"]
    for position, node in enumerate(topology.clusters["east"].nodes):
        loaded = load_text(topology.node_text(topology.clusters["east"], node, ports), Path("/x/node.toml"))
        assert (loaded.node.name, loaded.node.id, loaded.node.rack) == (f"east-{position + 1}", position, "")
        assert (loaded.replication.factor, loaded.replication.min_isr) == (3, 2)
        assert loaded.metastore.session_timeout_ms >= 6000
        assert loaded.listen.cluster.port == ports[f"east-{position + 1}.cluster"]
        assert [peer.url for peer in loaded.sink.peers] == [
            f"http://{peer.address('http', ports)}" for peer in west.nodes
        ]


def test_ids_racks_and_factor_are_the_files_or_follow_from_the_nodes() -> None:
    """An id is the position unless given, a rack is in its node's file, and the factor is the number of nodes, at most
    three, unless given."""
    text = "[clusters.a]\n" + "".join(
        f'[[clusters.a.nodes]]\nname = "a-{number}"\nrack = "r{number % 2}"\n' for number in range(4)
    )
    for more, factor, first_id in (("", 3, 0), ("[clusters.a.replication]\nfactor = 2\n", 2, 0), ("id = 7\n", 3, 7)):
        replaced = text.replace('rack = "r0"\n', f'rack = "r0"\n{more}', 1) if more[:2] == "id" else text + more
        topology = parse_topology(replaced, Path("t.toml"))
        cluster = topology.clusters["a"]
        ports = {port.purpose: 4000 + at for at, port in enumerate(topology.ports())}
        loaded = [load_text(topology.node_text(cluster, node, ports), Path("/x/node.toml")) for node in cluster.nodes]
        assert [each.node.id for each in loaded] == [first_id, 1, 2, 3]
        assert [each.node.rack for each in loaded] == ["r0", "r1", "r0", "r1"]
        assert {each.replication.factor for each in loaded} == {factor}
    single = parse_topology(f"[clusters.a]\n{NODE}", Path("t.toml"))
    ports = {port.purpose: 4000 + at for at, port in enumerate(single.ports())}
    node_file = single.node_text(single.clusters["a"], single.clusters["a"].nodes[0], ports)
    assert load_text(node_file, Path("/x/node.toml")).replication.factor == 1


def test_three_zookeepers_are_all_named_to_the_nodes() -> None:
    """With `zookeepers = 3` a cluster has three servers of three ports each, and every node knows all of them."""
    topology = parse_topology(f"[clusters.a]\nzookeepers = 3\n{NODE}", Path("t.toml"))
    ports = {port.purpose: 4000 + at for at, port in enumerate(topology.ports())}
    cluster = topology.clusters["a"]
    assert [server.name for server in cluster.zookeepers] == [f"zookeeper-a-{number}" for number in (1, 2, 3)]
    assert len(ports) == 3 * 3 + 3
    loaded = load_text(topology.node_text(cluster, cluster.nodes[0], ports), Path("/x/node.toml"))
    assert loaded.metastore.hosts == ",".join(f"127.0.0.1:{ports[server.name]}" for server in cluster.zookeepers)


def test_sections_and_every_node_of_a_peer_reach_the_files() -> None:
    """Sections of a cluster are copied unchanged into each node's file; a peer cluster of two nodes becomes two
    URLs."""
    topology = parse_topology(
        """
        [clusters.a]
        replication = {partitions = 4, durability = "async"}
        log.level = "debug"
        [clusters.a.sink]
        workers = 3
        peers = [{cluster = "b", queue = "q"}]
        [[clusters.a.nodes]]
        name = "a-1"
        [[clusters.b.nodes]]
        name = "b-1"
        [[clusters.b.nodes]]
        name = "b-2"
        [[clusters.b.queues]]
        name = "q"
        queue_limit = 5
        """,
        Path("t.toml"),
    )
    ports = {port.purpose: 4000 + number for number, port in enumerate(topology.ports())}
    cluster = topology.clusters["a"]
    settings_ = load_text(topology.node_text(cluster, cluster.nodes[0], ports), Path("/x/node.toml"))
    assert (settings_.replication.partitions, settings_.replication.durability) == (4, "async")
    assert (settings_.log.level, settings_.sink.workers) == ("debug", 3)
    assert [peer.url for peer in settings_.sink.peers] == [
        f"http://127.0.0.1:{ports[f'{name}.http']}" for name in ("b-1", "b-2")
    ]


@pytest.mark.parametrize(
    ("text", "path", "line", "part"),
    [
        ("", "", 1, "no clusters"),
        ("[cluster.a]\n" + NODE, "cluster", 1, 'did you mean "clusters"?'),
        ("clusters = 3", "clusters", 1, "3 where a table belongs"),
        ("[clusters.a]", "clusters.a", 1, "no nodes"),
        ("[clusters.a]\nnodes = 3", "clusters.a.nodes", 2, "in double brackets"),
        ("[clusters.a]\nnodes = [3]", "clusters.a.nodes[0]", 2, "where a table belongs"),
        (f'[clusters."a b"]\n{NODE}', "clusters.a b", 1, "is not a name"),
        (f"[clusters.a]\nzookeper_port = 3\n{NODE}", "clusters.a.zookeper_port", 2, '"zookeeper_port"'),
        (f"[clusters.a]\nzookeeper_port = 70000\n{NODE}", "clusters.a.zookeeper_port", 2, "from 0 to 65535"),
        ("[[clusters.a.nodes]]\n", "clusters.a.nodes[0].name", 1, "missing"),
        (f"{NODE}htp = 1\n", "clusters.a.nodes[0].htp", 3, 'did you mean "http"?'),
        (f'{NODE}http = "127.0.0.1"\n', "clusters.a.nodes[0].http", 3, "HOST:PORT"),
        (f'{NODE}http = "0.0.0.0:80"\n', "clusters.a.nodes[0].http", 3, "this machine"),
        (f"{NODE}http = 80\n", "clusters.a.nodes[0].http", 3, "in quotes"),
        (f'{NODE}{NODE}', "clusters.a.nodes[1].name", 4, "clusters.a.nodes[0].name already"),
        (
            f'{NODE}http = "127.0.0.1:80"\nadmin = "127.0.0.1:80"\n',
            "clusters.a.nodes[0].admin",
            4,
            "port 80 is given to clusters.a.nodes[0].http already",
        ),
        ('[[clusters.a.nodes]]\nname = "zookeeper-a"\n', "clusters.a.nodes[0].name", 2, "something else"),
        ('[[clusters.a.nodes]]\nname = "state.json"\n', "clusters.a.nodes[0].name", 2, "something else"),
        (f"{NODE}[clusters.a.listen]\nhttp = 3\n", "clusters.a.listen.http", 4, "gives it itself"),
        (f'{NODE}[clusters.a.metastore]\nhosts = "x:1"\n', "clusters.a.metastore.hosts", 4, "gives it itself"),
        (f"{NODE}[clusters.a.node]\nx = 3\n", "clusters.a.node", 3, 'did you mean "nodes"?'),
        (f"{NODE}[clusters.a.limits]\nobject_sise = 3\n", "clusters.a.limits.object_sise", 4, '"object_size"'),
        (f"{NODE}[[clusters.a.queues]]\nname = 'a b'\n", "clusters.a.queues[0].name", 4, "is not a name"),
        (f"{NODE}[[clusters.a.sink.peers]]\nqueue = 'q'\n", "clusters.a.sink.peers[0].cluster", 3, "missing"),
        (
            f"{NODE}[[clusters.a.sink.peers]]\ncluster = 'a'\nqueue = 'q'\n",
            "clusters.a.sink.peers[0].cluster",
            4,
            "from itself",
        ),
        (
            f"{NODE}[[clusters.a.sink.peers]]\ncluster = 'aa'\nqueue = 'q'\n",
            "clusters.a.sink.peers[0].cluster",
            4,
            'did you mean "a"?',
        ),
        (
            f"{NODE}[clusters.a]\nsink = {{peers = [{{cluster = 'b', queue = 'to-a'}}]}}\n" + B_OFFERS,
            "clusters.a.sink.peers[0].queue",
            4,
            'did you mean "to_a"?',
        ),
        (f"[clusters.a]\nzookeepers = 2\n{NODE}", "clusters.a.zookeepers", 2, "1 or 3"),
        (
            f"[clusters.a]\nzookeepers = 3\nzookeeper_port = 7\n{NODE}",
            "clusters.a.zookeeper_port",
            3,
            "one server's",
        ),
        (
            f"[clusters.a]\nzookeepers = 3\n{NODE}[[clusters.a-1.nodes]]\nname = 'b'\n",
            "clusters.a-1",
            5,
            "zookeeper-a-1 is given",
        ),
        (f"{NODE}id = -1\n", "clusters.a.nodes[0].id", 3, "whole number"),
        (f"{NODE}id = 1\n[[clusters.a.nodes]]\nname = 'b'\n", "clusters.a.nodes[1].id", 4, "id 1 is given"),
        (f"{NODE}rack = 'r'\n[[clusters.a.nodes]]\nname = 'b'\n", "clusters.a.nodes[1].rack", 4, "a-1 has one"),
        (f"{NODE}rack = 'a rack'\n", "clusters.a.nodes[0].rack", 3, "rack"),
        (f"{NODE}cluster = '1.2.3.4:5'\n", "clusters.a.nodes[0].cluster", 3, "this machine"),
        (f"{NODE}[clusters.a.listen]\ncluster = 3\n", "clusters.a.listen.cluster", 4, "gives it itself"),
        (f"{NODE}[clusters.a.replication]\nfactor = 2\n", "clusters.a.replication.factor", 4, "the cluster has 1"),
        (f"{NODE}[clusters.a.replication]\nmin_isr = 2\n", "clusters.a.replication.min_isr", 4, "(1)"),
        (f"{NODE}[clusters.a]\nreplication = 3\n", "clusters.a.replication", 4, "a table belongs"),
        ("[clusters.a\n", "", 0, "not TOML"),
    ],
)  # fmt: skip
def test_a_fault_is_reported_with_key_path_line_and_remedy(text: str, path: str, line: int, part: str) -> None:
    """Each fault of a topology is found at its place."""
    assert [(found[0], found[1]) for found in faults(text)] == [(path, line)]
    assert part in faults(text)[0][2]


def test_all_faults_are_reported_at_once_in_the_order_of_lines() -> None:
    """Faults of the topology itself and of the sections that nodes get come in one list, none twice."""
    found = faults(
        """[clusters.a]
zookeeper_port = "x"
[clusters.a.log]
level = "loud"
[[clusters.a.nodes]]
name = "a-1"
[[clusters.a.nodes]]
name = "a-2"
[clusters.a.sink]
wokers = 1
[[clusters.a.sink.peers]]
cluster = "b"
queue = "q"
"""
    )
    assert [(path, line) for path, line, _ in found] == [
        ("clusters.a.zookeeper_port", 2),
        ("clusters.a.log.level", 4),
        ("clusters.a.sink.wokers", 10),
        ("clusters.a.sink.peers[0].cluster", 12),
    ]


@pytest.mark.parametrize(
    ("east", "west", "fault"),
    [
        ('name = "x-1"', 'name = "x-1"', ("clusters.west.nodes[0].name", "name x-1 is given to")),
        (
            'name = "east-1"\nhttp = "127.0.0.1:80"',
            'name = "west-1"\nhttp = "127.0.0.1:80"',
            ("clusters.west.nodes[0].http", "port 80 is given to"),
        ),
    ],
)
def test_a_name_or_port_of_two_clusters_is_one_fault(east: str, west: str, fault: tuple[str, str]) -> None:
    """The addresses that the nodes' files would get from it are in no file, so nothing is said about them; other faults
    of the sections are still reported."""
    both = "".join(
        f'[clusters.{name}]\nqueues = [{{name = "q"}}]\nfullsync = [{{cluster = "{other}", queue = "q"}}]\n'
        f'sink = {{wokers = 1, peers = [{{cluster = "{other}", queue = "q"}}]}}\n[[clusters.{name}.nodes]]\n{node}\n'
        for name, other, node in (("east", "west", east), ("west", "east", west))
    )
    found = [(path, message) for path, _, message in faults(both) if not path.endswith(".wokers")]
    assert [path for path, _ in found] == [fault[0]]
    assert fault[1] in found[0][1]
    assert len(faults(both)) == 3


def test_one_queue_for_two_clusters_is_refused() -> None:
    """Each of two sink clusters on one queue would get only a part, so the second one is a fault."""
    text = '[[clusters.a.nodes]]\nname="a-1"\n[[clusters.a.queues]]\nname="q"\n' + "".join(
        f'[[clusters.{name}.nodes]]\nname="{name}-1"\n[[clusters.{name}.sink.peers]]\ncluster="a"\nqueue="q"\n'
        for name in "bc"
    )
    assert [(path, message.split()[:3]) for path, _, message in faults(text)] == [
        ("clusters.c.sink.peers[0].queue", ["cluster", "b", "fetches"])
    ]


def test_a_file_that_cannot_be_read_is_one_fault(tmp_path: Path) -> None:
    """Missing, a directory, not UTF-8, too large: one sentence that names the file."""
    (tmp_path / "latin").write_bytes(b"\xe9")
    (tmp_path / "large").write_bytes(b"#" * 1_000_001)
    for name, part in [("none", "cannot be read"), ("", "cannot be read"), ("latin", "UTF-8"), ("large", "more than")]:
        with pytest.raises(ConfigError, match=part):
            load_topology(tmp_path / name)
