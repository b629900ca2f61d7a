"""The comparison with other systems: how it evaluates samples, and which systems it runs."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import cast

import pytest
from click.testing import CliRunner

from bench import peer_clusters, peers
from bench.figures import CpuTime
from bench.loadgen import LEADER, SPREAD, Phase, Result
from bench.nodes import BenchFailed, LoadProcess
from bench.peer_clusters import CLUSTER_A, CLUSTER_B, Isthmus, Program, Servers, System, parse_version
from bench.peers import (
    BATCHES,
    SINGLES,
    THREE,
    THREE_EVEN,
    THREE_MANY,
    Comparison,
    LagSample,
    Sample,
    figure_of,
    installed,
)  # fmt: skip
from isthmus.node.local.topology import parse_topology


def sample(a_s: float, b_s: float | None = None, objects: int = 100_000, seconds: float = 10.0) -> Sample:
    """A round in which the clusters used the given CPU seconds."""
    cpu = {CLUSTER_A: CpuTime(a_s, 0.0), "ZooKeeper": CpuTime(50.0, 0.0), peers.GENERATOR: CpuTime(9.0, 0.0)}
    if b_s is not None:
        cpu[CLUSTER_B] = CpuTime(0.0, b_s)
    return Sample("a system", Result(objects, seconds, 1.0, 2.0, 3.0, 4.0, {}), seconds + 1.0, cpu, 0.5)


def test_cost_is_of_both_clusters_and_of_nothing_else() -> None:
    """ZooKeeper and the load generator are not part of it; it is scaled to 100,000 objects."""
    assert sample(3.0, 2.0, objects=50_000).cost == pytest.approx(10.0)
    assert sample(3.0).cost == pytest.approx(3.0)


def test_the_round_with_the_median_cost_is_shown_with_all_others_beside() -> None:
    """Cost and rate are of one round; rate counts the time until the second cluster has everything."""
    rounds = [sample(9.0, 0.0), sample(20.0, 20.0), sample(2.0, 1.0)]
    cost = figure_of(THREE, SINGLES[0], rounds)
    assert cost.values["cpu_s_per_100k_all_nodes"] == pytest.approx(9.0)
    assert [cost.values[f"round_{number}_cost"] for number in (1, 2, 3)] == pytest.approx([9.0, 40.0, 3.0])
    assert cost.rate == pytest.approx(100_000 / 11)


def test_systems_are_compared_round_by_round() -> None:
    """The median of the rounds' quotients: cluster A against etcd, both clusters for more partitions."""
    comparison = Comparison(1.0, 1, LEADER, None)
    comparison.samples = {
        (THREE, SINGLES[0]): [sample(10.0, 90.0), sample(30.0, 70.0), sample(40.0, 60.0)],
        ("etcd", SINGLES[0]): [sample(10.0), sample(20.0), sample(10.0)],
        (THREE_MANY, SINGLES[0]): [sample(55.0, 55.0), sample(60.0, 60.0), sample(50.0, 50.0)],
        (THREE_EVEN, SINGLES[0]): [sample(50.0, 150.0, seconds=20.0), *[sample(100.0, 100.0, seconds=20.0)] * 2],
        (THREE, BATCHES): [sample(1.0, 1.0)],
        ("nats", BATCHES): [sample(2.0, 3.0)],
    }
    compared = {figure.work: figure for figure in comparison.figures() if " against " in figure.work}
    assert {work: figure.measured for work, figure in compared.items()} == pytest.approx(
        {
            "isthmus-3 against etcd: PUT, 32 clients": 1.5,
            "isthmus-3 against isthmus-3-even: PUT, 32 clients": 2.0,
            "isthmus-3-48 against isthmus-3: PUT, 32 clients": 1.1,
            "isthmus-3 against nats: batches of 100, 8 clients": 0.4,
        }
    )
    assert [figure.target for figure in compared.values()] == [
        peers.AGAINST_ETCD[SINGLES[0]], peers.FASTER_THAN_EVEN[SINGLES[0]], peers.MORE_PARTITIONS, None
    ]  # fmt: skip
    values = compared["isthmus-3 against etcd: PUT, 32 clients"].values
    assert (values["least"], values["most"]) == pytest.approx((1.0, 4.0))


def test_lags_are_compared_round_by_round() -> None:
    """With leaders where the load needs them against leaders on all nodes, at the median and at p99."""
    comparison = Comparison(1.0, 1, LEADER, None)
    comparison.lags = {
        THREE: [LagSample("a", 9, 1.0, 2.0, 30.0, 0, 0, 0, 0, {}, 1.0)],
        THREE_EVEN: [LagSample("b", 9, 1.0, 4.0, 20.0, 0, 0, 0, 0, {}, 1.0)],
    }
    compared = {figure.work: figure for figure in comparison.figures() if " against " in figure.work}
    assert {work: figure.measured for work, figure in compared.items()} == pytest.approx(
        {"isthmus-3 against isthmus-3-even: lag p50": 0.5, "isthmus-3 against isthmus-3-even: lag p99": 1.5}
    )
    assert [one.target is not None and one.target.reached(one.measured or 0) for one in compared.values()] == [
        True, False
    ]  # fmt: skip


class FakeSystem(System):
    """A system of this process. It is its own load generator, and stores the phases."""

    title = "a system"

    def __init__(self) -> None:
        super().__init__()
        self.clusters = {CLUSTER_A: [os.getpid()]}
        self.pid = os.getpid()
        self.phases: list[Phase] = []

    def start(self, directory: Path) -> None:
        pass

    def stop(self) -> None:
        pass

    def load(self) -> LoadProcess:
        return cast(LoadProcess, contextlib.nullcontext(self))

    def drain(self) -> None:
        pass

    def run(self, phase: Phase) -> Result:
        self.phases.append(phase)
        return Result(100, 1.0, 1.0, 2.0, 3.0, 4.0, {}, 7)


@pytest.mark.parametrize(("options", "clients"), [([], LEADER), (["--clients", "spread"], SPREAD)])
def test_all_phases_have_clients_of_the_kind_that_the_output_names(
    options: list[str], clients: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clients know leaders unless the option names the other kind, in the warm-up, too. The JSON and the title of the
    table name the kind, and figures of our clusters the number of forwarded requests."""
    system = FakeSystem()
    monkeypatch.setattr(peers, "ENTRIES", {"isthmus-1": peers.Entry(lambda _: system)})
    monkeypatch.setattr(peers, "SETTLE_S", 0.0)
    monkeypatch.setattr(peers.signal, "signal", lambda *_: None)
    printed = CliRunner().invoke(peers.main, ["--rounds", "1", "--json", *options])
    assert printed.exit_code == 0, printed.output
    document = json.loads(printed.stdout)
    assert document["clients"] == clients
    assert [figure["values"]["requests_forwarded"] for figure in document["figures"]] == [7.0] * len(peers.WORKS)
    assert [phase.clients for phase in system.phases] == [clients] * (1 + len(peers.WORKS))
    table = CliRunner().invoke(peers.main, ["--rounds", "1", *options])
    assert f"peers, clients {clients}, sharing 1 on " in table.output


def test_a_short_run_takes_turns_load_by_load(monkeypatch: pytest.MonkeyPatch) -> None:
    """All systems are up at once; each round has every load on every one, in alternating order."""
    order: list[tuple[str, str, int]] = []

    class Named(FakeSystem):
        def __init__(self, name: str) -> None:
            super().__init__()
            self.name = name

        def run(self, phase: Phase) -> Result:
            order.append((self.name, phase.kind, phase.connections))
            return super().run(phase)

    entries = {name: peers.Entry(lambda _, name=name: Named(name)) for name in (THREE, "etcd")}  # type: ignore[misc]
    monkeypatch.setattr(peers, "ENTRIES", entries)
    monkeypatch.setattr(peers, "SETTLE_S", 0.0)
    monkeypatch.setattr(peers.signal, "signal", lambda *_: None)
    printed = CliRunner().invoke(peers.main, ["--short", "--json"])
    assert printed.exit_code == 0, printed.output
    works = [(work.kind, work.connections) for work in peers.WORKS]
    assert [(kind, count) for name, kind, count in order[2:] if name == THREE] == works * peers.SHORT_ROUNDS
    assert [name for name, _, _ in order[2:6]] == [THREE, "etcd", "etcd", THREE]
    ratios = [one for one in json.loads(printed.stdout)["figures"] if "against" in one["work"]]
    assert len(ratios) == len(peers.WORKS)


def test_a_server_that_is_not_installed_is_named_with_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    """The system is left out with a remark; when none is left, the command fails with it."""
    missing = Program("no-such-server", "its-package")
    entries = {**peers.ENTRIES, "etcd": peers.ENTRIES["etcd"]._replace(needs=missing)}
    monkeypatch.setattr(peers, "ENTRIES", entries)
    note = "etcd is skipped: no-such-server is not installed (Debian: apt-get install its-package)"
    assert installed(["isthmus-1", "etcd"]) == (["isthmus-1"], [note])
    monkeypatch.setattr(peers.signal, "signal", lambda *_: None)
    outcome = CliRunner().invoke(peers.main, ["--only", "etcd"])
    assert outcome.exit_code == 1
    assert note in outcome.output


def test_a_termination_ends_the_usual_way() -> None:
    """SIGTERM leaves through the context managers, which stop servers and remove data."""
    with pytest.raises(SystemExit) as left:
        peers._terminated(15, None)
    assert left.value.code == 143


@pytest.mark.parametrize(
    ("printed", "version"),
    [
        ("nats-server: v2.9.10\n", (2, 9, 10)),
        ("etcd Version: 3.4.23\nGit SHA: Not provided\nGo Version: go1.19.8\n", (3, 4, 23)),
        ("nats-server: v2.10.0-beta.1\n", (2, 10, 0)),
    ],
)
def test_versions_are_read_as_servers_print_them(printed: str, version: tuple[int, ...]) -> None:
    """The first dotted number; NATS 2.10 is later than 2.9."""
    assert parse_version(printed) == version
    assert parse_version("v2.10") > parse_version("v2.9.10")
    with pytest.raises(BenchFailed):
        parse_version("unknown")


@pytest.mark.parametrize("nodes", [1, 3])
def test_the_topology_of_our_clusters_is_what_the_figures_name(nodes: int) -> None:
    """It has the given number of nodes per side, all of them replicas, and the given number of partitions."""
    topology = parse_topology(Isthmus(nodes, 48).topology(), Path("bench.toml"))
    assert {name: len(cluster.nodes) for name, cluster in topology.clusters.items()} == {"a": nodes, "b": nodes}
    ports = dict.fromkeys((port.purpose for port in topology.ports()), 1)
    for cluster in topology.clusters.values():
        text = topology.node_text(cluster, cluster.nodes[0], ports)
        assert "partitions = 48" in text
        assert f"factor = {nodes}" in text


def test_ports_of_servers_differ(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No two servers get one port: those that were given out are named when a further one is chosen."""
    monkeypatch.setattr(peer_clusters, "free_port", lambda taken: 20_000 + len(taken))
    servers = Servers(tmp_path)
    assert [servers.port() for _ in range(3)] == [20_000, 20_001, 20_002]
