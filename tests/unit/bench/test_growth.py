"""The measurements of growth: sizes, topologies, tables, and where a kind ends."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from bench import growth
from bench.growth import (
    Kind,
    Lab,
    Loaded,
    MetastoreCounts,
    Row,
    Values,
    cluster_topology,
    connections_of,
    grown,
    key_sizes,
    mesh_topology,
    parse_counts,
    queue_topology,
    queues_in_a_file,
    run,
    scaled,
    shown,
    table,
)
from bench.loadgen import Result
from bench.nodes import BenchFailed
from isthmus.config.loader import FILE_BYTES_MAX
from isthmus.node.local.topology import parse_topology

FILE = Path("bench.toml")


def loaded(objects: int, cpu_s: float, behind_s: float = 0.0) -> Loaded:
    """A load of ten seconds."""
    return Loaded(Result(objects, 10.0, 1.0, 2.0, 3.0, 4.0, {}), cpu_s, behind_s)


def test_keys_grow_by_powers_of_ten_up_to_the_most() -> None:
    """A million unless more are wanted; a number between two powers does not add one."""
    assert key_sizes(1_000_000) == (100_000, 1_000_000)
    assert key_sizes(9_999_999) == (100_000, 1_000_000)
    assert key_sizes(10_000_000) == (100_000, 1_000_000, 10_000_000)
    assert key_sizes(100_000) == (100_000,)


def test_a_scale_makes_sizes_smaller_and_none_occurs_twice() -> None:
    """No size is below the least one, and at scale 1 all stay as they are."""
    assert scaled((12, 48, 192, 768), 0.01, 1) == (1, 2, 8)
    assert scaled((2, 4, 8, 16), 0.01, 2) == (2,)
    assert scaled((3, 9), 1.0, 3) == (3, 9)


def test_large_objects_have_few_clients() -> None:
    """The bytes under way are bounded, down to one client."""
    assert [connections_of(size) for size in growth.OBJECT_BYTES] == [32, 32, 32, 4, 1]


def test_a_cost_is_per_100_000_objects_and_a_rate_counts_the_time_behind() -> None:
    """Both refer to the objects that were taken."""
    assert loaded(50_000, 4.0).cost == pytest.approx(8.0)
    assert loaded(50_000, 4.0).rate == pytest.approx(5_000)
    assert loaded(50_000, 4.0, 15.0).rate == pytest.approx(2_000)


@pytest.mark.parametrize(
    ("value", "text"), [(None, "unknown"), (0.0, "0"), (1.2345, "1.23"), (123.4, "123"), (12_345.6, "12,346")]
)
def test_a_number_is_shown_with_three_digits_or_all_before_the_point(value: float | None, text: str) -> None:
    """What was not measured is unknown, never a number."""
    assert shown(value) == text


def test_a_table_has_a_row_a_size_and_how_the_largest_compares_with_the_smallest() -> None:
    """A column that a row lacks is unknown there, and so is a ratio with a number that is unknown or zero."""
    rows = [Row(12, {"CPU": 2.0, "idle": 0.0, "start": None}, 0.5), Row(48, {"CPU": 3.0, "idle": 1.0, "MB": 9.0}, 1.5)]
    assert table("partitions", rows) == [
        "| partitions | CPU | idle | start | MB | load average before |",
        "| --- | --- | --- | --- | --- | --- |",
        "| 12 | 2 | 0 | unknown | unknown | 0.5 |",
        "| 48 | 3 | 1 | unknown | 9 | 1.5 |",
        "| × 4 | × 1.5 | unknown | unknown | unknown |  |",
    ]
    assert grown(rows) == {"CPU": 1.5, "idle": None, "MB": None}
    assert len(table("partitions", rows[:1])) == 3


def test_counts_of_the_metastore_are_read_from_its_answer() -> None:
    """Writes are the lower half of the transaction id, whose upper half is the epoch; another answer has no counts."""
    text = "Zookeeper version: 3.9.3\nLatency min/avg/max: 0/0.3/5\nReceived: 120\nSent: 119\nZxid: 0x30000001f\n"
    assert parse_counts(text) == MetastoreCounts(120, 31)
    assert parse_counts("srvr is not executed because it is not in the whitelist.") is None


@pytest.mark.parametrize("partitions", growth.PARTITIONS)
def test_a_cluster_can_have_every_number_of_partitions(partitions: int) -> None:
    """The settings take all of them, for three nodes and for nine."""
    for count in growth.NODES:
        (cluster,) = parse_topology(cluster_topology(count, partitions), FILE).clusters.values()
        assert len(cluster.nodes) == count
        assert cluster.sections["replication"]["partitions"] == partitions


@pytest.mark.parametrize("count", growth.QUEUES)
def test_a_node_can_have_every_number_of_queues(count: int) -> None:
    """The settings take all of them; either all queues offer the changes of the load, or the first alone."""
    for all_offer in (True, False):
        (cluster,) = parse_topology(queue_topology(count, all_offer=all_offer), FILE).clusters.values()
        filters = [queue["filter"] for queue in cluster.sections["queues"]]
        assert len(filters) == count
        assert filters.count("any") == (count if all_offer else 1)


def test_the_size_of_a_file_limits_the_number_of_queues() -> None:
    """As many tables as are named fit, and one more does not."""
    names = [f'[[queues]]\nname = "q{number:05}"\n' for number in range(queues_in_a_file() + 1)]
    assert len("".join(names[:-1])) <= FILE_BYTES_MAX < len("".join(names))


@pytest.mark.parametrize("count", [2, 4])
def test_every_cluster_of_a_mesh_fetches_from_every_other(count: int) -> None:
    """Each has a queue for each other cluster, and is the only one that fetches it."""
    clusters = parse_topology(mesh_topology(count), FILE).clusters
    assert len(clusters) == count
    for name, cluster in clusters.items():
        assert {(peer.cluster, peer.queue) for peer in cluster.peers} == {
            (other, f"to-{name}") for other in clusters if other != name
        }
        assert len(cluster.sections["queues"]) == count - 1


def kind_of(fails_at: int | None = None, memory_mb: float = 0.0) -> Kind:
    """A kind of four sizes that does nothing."""

    def measure(_: Lab, size: int) -> Values:
        if size == fails_at:
            raise BenchFailed("the nodes\ndo not start")
        return {"CPU": float(size)}

    return Kind("things", (1, 2, 4, 8), 1, measure, lambda size: memory_mb * size)


def test_a_kind_ends_at_the_size_that_fails_and_says_why(tmp_path: Path) -> None:
    """Earlier rows stand; no larger size is tried."""
    lab = Lab(tmp_path)
    assert [row.size for row in run("things", kind_of(fails_at=4), lab)] == [1, 2]
    assert lab.notes == ["things: stopped at 4: the nodes do not start"]


def test_a_kind_ends_before_a_size_that_the_memory_does_not_carry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some memory stays free for others."""
    lab = Lab(tmp_path)
    free_mb = growth.MEMORY_SPARE_MB + 5_000

    class Memory:
        available = free_mb * 1_000_000

    monkeypatch.setattr(growth.psutil, "virtual_memory", Memory)
    assert [row.size for row in run("things", kind_of(memory_mb=1_500.0), lab)] == [1, 2]
    assert lab.notes == ["things: stopped before 4, since 7,000 MB of memory are free"]


def test_a_kind_ends_when_its_time_is_over(tmp_path: Path) -> None:
    """No size begins after the limit."""
    lab = Lab(tmp_path)
    assert run("things", kind_of(), lab, limit_s=-1.0) == []
    assert lab.notes == ["things: stopped before 1, after -1 s"]


def test_the_json_has_null_for_what_is_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has a list of rows for each chosen kind, the notes, and the scale; nothing stays in the directory."""
    monkeypatch.setattr(growth.signal, "signal", lambda *_: None)
    kind = kind_of()._replace(measure=lambda _, size: {"CPU": None if size == 8 else 1.0})
    monkeypatch.setattr(growth, "kinds", lambda _: {"keys": kind, "queues": kind, "nodes": kind})
    options = ["--json", "--only", "queues", "--only", "nodes", "--dir", str(tmp_path)]
    printed = CliRunner().invoke(growth.main, options)
    assert printed.exit_code == 0, printed.output
    document = json.loads(printed.stdout)
    assert document["scale"] == 1.0
    assert list(document["tables"]) == ["queues", "nodes"]
    rows = document["tables"]["nodes"]
    assert [(row["size"], row["values"]["CPU"]) for row in rows] == [(1, 1.0), (2, 1.0), (4, 1.0), (8, None)]
    assert any("no setting limits their number" in note for note in document["notes"])
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("options", "measured"), [((), ["keys"]), (("--only", "virtual"), ["virtual"])])
def test_nodes_in_virtual_time_are_measured_when_asked_for(
    options: tuple[str, ...], measured: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """They take as long as the other kinds together."""
    monkeypatch.setattr(growth.signal, "signal", lambda *_: None)
    monkeypatch.setattr(growth, "kinds", lambda _: {"keys": kind_of(), growth.VIRTUAL: kind_of()})
    printed = CliRunner().invoke(growth.main, ["--json", *options])
    assert printed.exit_code == 0, printed.output
    assert list(json.loads(printed.stdout)["tables"]) == measured


def test_a_kind_without_any_row_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """The code is 1, and the note is printed."""
    monkeypatch.setattr(growth.signal, "signal", lambda *_: None)
    monkeypatch.setattr(growth, "kinds", lambda _: {"keys": kind_of(fails_at=1)})
    printed = CliRunner().invoke(growth.main, ["--only", "keys"])
    assert printed.exit_code == 1
    assert "keys: stopped at 1: the nodes do not start" in printed.stdout
