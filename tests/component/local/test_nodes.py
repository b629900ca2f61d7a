"""Single nodes of running clusters: stopped, killed, started, restarted; and messages about those that keep failing."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from isthmus.node.cli.local import PROGRESS_INTERVAL_S, StartProgress
from isthmus.node.cli.main import main
from isthmus.node.local import directory as places
from isthmus.node.local import supervisor_client
from isthmus.node.local.clusters import LocalClusters
from isthmus.node.local.probe import Online
from isthmus.node.local.topology import load_topology, parse_topology
from isthmus.repl.model.errors import BadInput, LocalFault
from tests.support.waiting import wait_until

SAMPLES = Path(__file__).parents[3] / "config" / "samples"
TWO = SAMPLES / "two-nodes.toml"


def node_of(directory: Path, name: str) -> dict[str, Any]:
    """A node's entry in `status`."""
    (found,) = (
        node
        for cluster in places.status_of(directory)["clusters"].values()
        for node in cluster["nodes"]
        if node["name"] == name
    )
    return dict(found)


def test_clusters_of_three_nodes_come_up_with_addresses_of_their_own(directory: Path) -> None:
    """two-clusters.toml: six nodes, no port twice, each node configured with its own; the next `up` has the same
    ports."""
    clusters = LocalClusters(load_topology(SAMPLES / "two-clusters.toml"), directory)
    lines: list[str] = []
    up = clusters.up(50, lines.append)
    names = {name: [node["name"] for node in cluster["nodes"]] for name, cluster in up["clusters"].items()}
    assert names == {name: [f"{name}-{number}" for number in (1, 2, 3)] for name in ("east", "west")}
    assert lines[-1] == "east: 3 of 3 nodes ready, west: 3 of 3 nodes ready"
    set_up = places.clusters_of(directory)
    addresses = [
        node[listener].removeprefix("http://")
        for cluster in set_up.values()
        for node in cluster["nodes"]
        for listener in ("http", "admin", "cluster")
    ] + [server["address"] for cluster in set_up.values() for server in cluster["zookeepers"]]
    assert len(set(addresses)) == len(addresses) == 6 * 3 + 2
    clusters.down()
    assert clusters.up(50) != up, "other processes"
    assert places.clusters_of(directory) == set_up


def test_a_stopped_node_stays_down_and_a_started_one_serves(directory: Path) -> None:
    """stop-node is graceful or by SIGKILL, also where dead nodes are revived; start-node waits until it serves, and
    changes nothing on a live node."""
    LocalClusters(load_topology(TWO), directory, restart_nodes=True).up(30)
    first = node_of(directory, "east-1")["pid"]
    places.stop_node(directory, "east-1", kill=True)
    time.sleep(0.3)  # longer than the pause before a restart
    stopped = node_of(directory, "east-1")
    assert (stopped["state"], stopped["pid"], stopped["reason"]) == ("stopped", None, "killed on request")
    assert stopped["online"] is None
    places.start_node(directory, "east-1")
    started = node_of(directory, "east-1")
    assert (started["state"], started["online"]) == ("running", "12 of 12 online")
    assert started["pid"] not in (first, None)
    places.start_node(directory, "east-1")
    assert node_of(directory, "east-1")["pid"] == started["pid"]
    places.stop_node(directory, "east-1")
    assert node_of(directory, "east-1")["reason"] == "stopped"
    with pytest.raises(BadInput, match=r'no such node: "east1"; did you mean "east-1"\?'):
        places.stop_node(directory, "east1")


@pytest.mark.timing
def test_kill_means_sigkill(directory: Path) -> None:
    """restart-node --kill9 sends no SIGTERM: a node that ignores it ends at once, and a new one serves."""
    LocalClusters(load_topology(TWO), directory).up(30)
    stubborn = node_of(directory, "east-1")["pid"]
    os.kill(stubborn, signal.SIGSTOP)  # SIGTERM would wait until the process continues
    began = time.monotonic()
    places.restart_node(directory, "east-1", 30, kill=True)
    assert time.monotonic() - began < 15 < places.NODE_STOP_TIMEOUT_MS / 1000
    assert node_of(directory, "east-1")["pid"] not in (stubborn, None)


def test_waiting_for_one_node_asks_nothing_of_the_others(directory: Path) -> None:
    """A node is restarted while another is down, and without waiting when requested; a delay is reported with its
    reason."""
    LocalClusters(load_topology(TWO), directory).up(30)
    places.stop_node(directory, "west-1")
    places.restart_node(directory, "east-1", 30)
    (directory / "east-1" / "data").mkdir(exist_ok=True)
    (directory / "east-1" / "data" / "slow").touch()
    places.restart_node(directory, "east-1", None)
    with pytest.raises(LocalFault, match=r"east-1: 0 of 12 online, not ready: 12 partitions are not served"):
        places.restart_node(directory, "east-1", 5)
    (directory / "east-1" / "data" / "slow").rename(directory / "east-1" / "data" / "behind")
    with pytest.raises(LocalFault, match=r"east-1: 12 of 12 online, 3 replicas not in sync"):
        places.restart_node(directory, "east-1", 5)


def test_a_node_in_a_crash_loop_is_shown_with_its_last_line(directory: Path) -> None:
    """With automatic restarts, a node that dies again and again is shown with its last output; `up` reports it, too."""
    clusters = LocalClusters(load_topology(TWO), directory, restart_nodes=True)
    clusters.up(30)
    assert node_of(directory, "east-1")["last_words"] == ""
    (directory / "east-1" / "data").mkdir()
    (directory / "east-1" / "data" / "broken").touch()
    places.restart_node(directory, "east-1", None)

    def given_up() -> dict[str, Any] | None:
        node = node_of(directory, "east-1")
        return node if node["failures"] >= supervisor_client.START_TRIES and node["state"] == "waiting" else None

    node = wait_until(given_up)
    assert (node["reason"], node["last_words"]) == ("exit code 1", "isthmus: the data directory is another node's")
    with pytest.raises(LocalFault, match=r"east-1 does not come up \(exit code 1\): .*another node's"):
        clusters.up(30)


def test_the_commands_for_single_nodes(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """stop-node, start-node and restart-node: JSON of where the nodes are, names checked, status shown by exit code."""

    def run(verb: str, *arguments: object) -> tuple[int, str, str]:
        code = main(["local", verb, *map(str, arguments), "--dir", str(directory)])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    LocalClusters(load_topology(TWO), directory).up(30)
    code, out, _ = run("stop-node", TWO, "west-1", "--kill9", "-o", "json")
    assert (code, json.loads(out)["clusters"]["west"]["nodes"][0]["pid"]) == (0, None)
    code, out, _ = run("status", "-o", "json")
    assert code == 1
    assert json.loads(out)["clusters"]["west"]["nodes"][0]["reason"] == "killed on request"
    code, out, _ = run("start-node", TWO, "west-1", "-o", "json")
    assert code == 0
    pid = json.loads(out)["clusters"]["west"]["nodes"][0]["pid"]
    code, out, _ = run("restart-node", TWO, "west-1", "--kill9", "--no-wait", "-o", "json")
    assert json.loads(out)["clusters"]["west"]["nodes"][0]["pid"] not in (None, pid)
    for verb in ("stop-node", "start-node", "restart-node"):
        code, out, err = run(verb, TWO, "wets-1")
        assert (code, out) == (2, "")
        assert 'did you mean "west-1"?' in err


def test_three_zookeepers_run_as_one_ensemble_and_stay_three(tmp_path: Path, directory: Path) -> None:
    """Each member's files name all three and its own number; another number of servers for the same directory, which
    would lack records, is refused."""
    text = '[clusters.a]\nzookeepers = 3\n[[clusters.a.nodes]]\nname = "a-1"\n'
    clusters = LocalClusters(parse_topology(text, tmp_path / "t.toml"), directory)
    clusters.up(30)
    servers = clusters.status()["clusters"]["a"]["zookeepers"]
    assert [server["name"] for server in servers] == ["zookeeper-a-1", "zookeeper-a-2", "zookeeper-a-3"]
    configs = [(directory / server["name"] / "zoo.cfg").read_text() for server in servers]
    assert all(config.count("\nserver.") == 3 for config in configs)
    assert [(directory / server["name"] / "data" / "myid").read_text() for server in servers] == ["1\n", "2\n", "3\n"]
    clusters.down()
    fewer = LocalClusters(parse_topology(text.replace("3", "1", 1), tmp_path / "t.toml"), directory)
    with pytest.raises(LocalFault, match="another number of ZooKeepers"):
        fewer.up(30)


def test_progress_in_a_log_is_a_line_now_and_then(capsys: pytest.CaptureFixture[str]) -> None:
    """When standard error is not a terminal, states in quick succession make one line."""
    now = [0.0]
    progress = StartProgress(lambda: now[0])
    for second in range(11):
        now[0] = second * PROGRESS_INTERVAL_S / 5
        progress.show(f"state {second}")
    assert capsys.readouterr().err == "state 5\nstate 10\n"


def test_the_reason_of_a_node_is_cut_between_words() -> None:
    """A long reason is shortened where a word ends, and shows that it was."""
    place = places.LocalNode("east", "e1", "http://h:1", "http://h:2")
    text = "not ready: no partitions are known yet: waits for 2 more nodes: replication.factor is 3, and one is here"
    line = places._progress([place], {"e1": Online(caught_up=False, complete=False, text=text)}, lambda _: False)
    assert line == "east: 0 of 1 nodes ready (e1 not ready: no partitions are known yet: waits for 2 more nodes: ...)"
