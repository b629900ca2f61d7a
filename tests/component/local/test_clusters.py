"""Clusters on this machine, started and stopped, with fake nodes and ZooKeepers."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from isthmus.node.cli.main import main
from isthmus.node.local import clusters as local
from isthmus.node.local import directory as places
from isthmus.node.local import supervisor_client
from isthmus.node.local.clusters import LocalClusters
from isthmus.node.local.ports import free_port
from isthmus.node.local.process_id import ProcessId, wait_gone
from isthmus.node.local.topology import load_topology, parse_topology
from isthmus.repl.model.errors import BadInput, LocalFault
from tests.support.waiting import PATIENCE_S, wait_until

SAMPLE = Path(__file__).parents[3] / "config" / "samples" / "two-nodes.toml"


def clusters(directory: Path, **options: Any) -> LocalClusters:
    return LocalClusters(load_topology(SAMPLE), directory, **options)


def pids(result: dict[str, Any]) -> dict[str, int]:
    return {node["name"]: node["pid"] for each in result["clusters"].values() for node in each["nodes"]}


def test_up_returns_where_the_nodes_are_and_is_idempotent(directory: Path) -> None:
    """The form of the answer is fixed; a second `up` changes nothing; after `down` everything is gone, and the next
    `up` has the same ports."""
    lines: list[str] = []
    first = clusters(directory).up(30, lines.append)
    assert set(first) == {"clusters"}
    assert list(first["clusters"]) == ["east", "west"]
    (east,) = first["clusters"]["east"]["nodes"]
    assert list(east) == ["name", "http", "admin", "pid"]
    assert east["http"].startswith("http://127.0.0.1:")
    assert lines[-1] == "east: 1 of 1 nodes ready, west: 1 of 1 nodes ready"
    assert clusters(directory).up(30) == first
    processes = [ProcessId.of(pid) for pid in pids(first).values()]
    assert clusters(directory).down()
    assert not any(process is not None and process.alive() for process in processes)
    assert not clusters(directory).down()
    again = clusters(directory).up(30)
    assert again["clusters"]["east"]["nodes"][0]["http"] == east["http"]
    assert pids(again) != pids(first)


def test_fixed_ports_that_are_taken_are_reported_before_anything_starts(directory: Path) -> None:
    """The file's own port, held by a stranger: one line that names port, node and the way out."""
    chosen: dict[str, int] = {}

    def of_our_own(found: re.Match[str]) -> str:
        chosen[found[0]] = free_port(set(chosen.values()))
        return str(chosen[found[0]])

    topology = parse_topology(re.sub(r"\b18\d{3}\b", of_our_own, SAMPLE.read_text()), SAMPLE)
    port = chosen["18099"]  # of east-1's admin listener
    with (
        socket.create_server(("127.0.0.1", port)),
        pytest.raises(LocalFault, match=rf"port {port} on 127.0.0.1, for east-1\.admin, cannot .*--auto-ports$"),
    ):
        LocalClusters(topology, directory, auto_ports=False).up(30)
    assert supervisor_client.running_state(directory) is None


def test_a_node_that_cannot_start_is_reported_with_its_last_output(directory: Path) -> None:
    """The error has the last line of the node's log and the log's name; started processes are stopped."""
    (directory / "west-1" / "data").mkdir(parents=True)
    (directory / "west-1" / "data" / "broken").touch()
    with pytest.raises(LocalFault, match=r"west-1 .*exit code 1.*another node's .*west-1/node\.log") as caught:
        clusters(directory).up(30)
    assert "\n" not in str(caught.value)
    assert supervisor_client.running_state(directory) is None
    assert supervisor_client.recorded_children(directory) == {}


def test_zookeepers_that_lost_their_data_go_on_so_that_they_can_be_filled_again(directory: Path) -> None:
    """Where a node refuses an empty metastore, the nodes are stopped and the ZooKeepers run: the message names the
    commands that follow. After the adoption the next `up` starts the nodes beside the same ZooKeepers, without `wait`
    at once."""
    forgotten = directory / "east-1" / "data" / "forgotten"
    forgotten.parent.mkdir(parents=True)
    forgotten.touch()
    with pytest.raises(LocalFault, match=r"`isthmus cluster adopt [^`]*east-1/node\.toml`") as caught:
        clusters(directory).up(30)
    assert "--no-wait" in str(caught.value)
    left = supervisor_client.recorded_children(directory)
    assert set(left) == {"zookeeper-east", "zookeeper-west"}
    forgotten.unlink()
    result = clusters(directory).up(30, wait=False)
    assert all(pids(result).values())
    places.wait_online(directory, places.nodes_of(directory), 30)
    now = supervisor_client.recorded_children(directory)
    assert {name: now[name] for name in left} == left
    assert clusters(directory).down()


def test_a_node_that_is_never_ready_is_reported_after_the_time_out(directory: Path) -> None:
    """The time-out's message names the node and how many partitions it lacks."""
    (directory / "west-1" / "data").mkdir(parents=True)
    (directory / "west-1" / "data" / "slow").touch()
    with pytest.raises(LocalFault, match=r"not online within 5 s: .*west-1: 0 of 12 online, not ready"):
        clusters(directory).up(5)
    assert supervisor_client.running_state(directory) is None


def test_a_killed_node_stays_dead_until_it_is_restarted(directory: Path) -> None:
    """`local` does not revive a node; `restart-node` does, and gives a live node a new process."""
    mine = clusters(directory)
    first = pids(mine.up(30))
    os.kill(first["east-1"], signal.SIGKILL)
    wait_until(lambda: mine.status()["clusters"]["east"]["nodes"][0]["state"] == "ended")
    assert "SIGKILL" in mine.status()["clusters"]["east"]["nodes"][0]["reason"]
    wait_until(lambda: mine.status()["clusters"]["west"]["nodes"][0]["online"] == "12 of 12 online")
    mine.restart_node("east-1")
    second = pids(places.describe(directory))
    assert second["east-1"] != first["east-1"]
    assert second["west-1"] == first["west-1"]
    mine.restart_node("west-1")
    third = pids(places.describe(directory))
    assert third["west-1"] != first["west-1"]
    with pytest.raises(BadInput, match='no such node: "nobody"'):
        mine.restart_node("nobody")


def test_with_restart_nodes_a_killed_node_comes_back(directory: Path) -> None:
    """The demo's nodes are revived."""
    mine = clusters(directory, restart_nodes=True)
    first = pids(mine.up(30))
    os.kill(first["east-1"], signal.SIGKILL)
    wait_until(lambda: pids(places.describe(directory))["east-1"] not in (first["east-1"], None))


def test_another_topology_in_a_running_directory_is_refused(directory: Path) -> None:
    """Running nodes are never left with a file that is not theirs."""
    clusters(directory).up(30)
    text = SAMPLE.read_text().replace('name = "to-west"', 'name = "to-west"\nqueue_limit = 7', 1)
    other = LocalClusters(parse_topology(text, SAMPLE), directory)
    with pytest.raises(LocalFault, match="runs another topology"):
        other.up(30)
    clusters(directory).down()
    other.up(30)
    assert "queue_limit = 7" in (directory / "east-1" / "node.toml").read_text()


def test_nodes_that_were_added_to_a_topology_are_started_beside_the_others(directory: Path) -> None:
    """Running nodes keep their processes, and use their new files, which name the new node as a peer, from their next
    start on; another change beside it is refused; the next `up` changes nothing."""
    before = pids(clusters(directory).up(30))
    text = SAMPLE.read_text().replace(
        "[clusters.west]", '[[clusters.east.nodes]]\nname = "east-2"\n\n[clusters.west]', 1
    )
    grown = LocalClusters(parse_topology(text, SAMPLE), directory)
    other = text.replace('name = "to-west"', 'name = "to-west"\nqueue_limit = 7', 1)
    with pytest.raises(LocalFault, match="runs another topology"):
        LocalClusters(parse_topology(other, SAMPLE), directory).up(30)
    after = pids(grown.up(30))
    assert {**before, "east-2": after["east-2"]} == after
    east_2 = grown.status()["clusters"]["east"]["nodes"][1]
    assert (east_2["name"], east_2["state"]) == ("east-2", "running")
    assert east_2["http"] in (directory / "west-1" / "node.toml").read_text()
    assert pids(grown.up(30)) == after
    with pytest.raises(LocalFault, match="runs another topology"):
        clusters(directory).up(30)


def test_clusters_whose_supervisor_was_killed_are_shown_taken_over_and_stopped(directory: Path) -> None:
    """The nodes are not interrupted: status shows that the supervisor is gone, `up` finds the same processes, and
    `down` ends them even without it."""
    mine = clusters(directory)
    first = mine.up(30)

    def kill_supervisor() -> None:
        boss = ProcessId.of(mine.status()["supervisor"])
        assert boss is not None
        boss.send(signal.SIGKILL)
        assert wait_gone(boss, PATIENCE_S)

    kill_supervisor()
    assert mine.status()["supervisor"] is None
    assert "supervisor is gone" in mine.status()["clusters"]["east"]["nodes"][0]["reason"]
    assert mine.up(30) == first
    kill_supervisor()
    assert mine.down()
    assert supervisor_client.recorded_children(directory) == {}


def test_as_a_context_manager_everything_is_down_at_the_end(directory: Path) -> None:
    """The clusters are down at the end, also when the body fails."""

    def use() -> None:
        with clusters(directory) as mine:
            mine.up(30)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        use()
    assert supervisor_client.running_state(directory) is None


def test_owned_clusters_end_with_their_owner_unless_kept(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A killed owner takes its clusters along after the linger time; `keep` revokes that."""
    monkeypatch.setattr(local, "OWNER_LINGER_MS", 50)
    import subprocess

    def owner(line: str) -> None:
        code = (
            "import os, sys; from pathlib import Path; "
            "from isthmus.node.local import clusters as local, supervisor_client; "
            "from isthmus.node.local.topology import load_topology; local.OWNER_LINGER_MS = 50; "
            "supervisor_client.node_command = lambda file: "
            f"{supervisor_client.node_command(Path('FILE'))!r}[:3] + (str(file),); "
            "from isthmus.node.local.child_process import ChildSpec; "
            "supervisor_client.zookeeper_child = lambda name, home, port, java, ensemble: "
            f"ChildSpec(name, ('sleep', '100000'), '/tmp', '{directory}/' + name + '.log'); "
            f"mine = local.LocalClusters(load_topology(Path({str(SAMPLE)!r})), Path({str(directory)!r}), owned=True); "
            f"mine.up(30); {line}"
        )
        subprocess.run([sys.executable, "-c", code], check=True, cwd=supervisor_client.PACKAGE_ROOT, timeout=50)

    owner("mine.keep()")
    time.sleep(0.3)
    assert supervisor_client.running_state(directory) is not None
    supervisor_client.stop(directory)
    owner("pass")
    wait_until(lambda: supervisor_client.running_state(directory) is None)
    assert supervisor_client.recorded_children(directory) == {}


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    code = main([str(argument) for argument in arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_the_commands_have_their_effect_and_exit_codes(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """up, status, restart-node and down: exit codes, JSON alone on standard output, tables for people."""
    where = ("--dir", directory)
    code, _, err = run(capsys, "local", "status", *where)
    assert (code, err.count("\n")) == (5, 1)
    assert "no clusters are set up" in err
    code, out, _ = run(capsys, "local", "up", SAMPLE, *where, "--auto-ports", "-o", "json")
    assert code == 0
    first = json.loads(out)
    code, out, _ = run(capsys, "local", "up", SAMPLE, *where, "--auto-ports")
    assert code == 0
    assert first["clusters"]["east"]["nodes"][0]["http"] in out
    code, out, _ = run(capsys, "local", "status", *where, "-o", "json")
    status = json.loads(out)
    assert code == 0
    assert status["clusters"]["west"]["zookeepers"][0]["state"] == "running"
    os.kill(pids(first)["east-1"], signal.SIGKILL)
    wait_until(lambda: run(capsys, "local", "status", *where)[0] == 1)
    code, out, _ = run(capsys, "local", "status", SAMPLE, *where)
    assert "SIGKILL" in out
    code, _, err = run(capsys, "local", "restart-node", SAMPLE, "east-9", *where)
    assert (code, 'did you mean "east-1"? ' in err, "has east-1, west-1" in err) == (2, True, True)
    code, out, _ = run(capsys, "local", "restart-node", SAMPLE, "east-1", *where, "-o", "json")
    assert code == 0
    assert pids(json.loads(out))["east-1"] not in (None, pids(first)["east-1"])
    assert run(capsys, "local", "down", SAMPLE, *where)[:2] == (0, "stopped\n")
    code, out, _ = run(capsys, "local", "down", *where, "-o", "json")
    assert (code, json.loads(out)) == (0, {"stopped": False})
    code, _, err = run(capsys, "local", "restart-node", SAMPLE, "east-1", *where)
    assert (code, "nothing runs in" in err) == (5, True)


def test_a_faulty_topology_is_reported_line_by_line(
    tmp_path: Path, directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every fault is a line on standard error, the exit code is that of a wrong file, and nothing is made."""
    (tmp_path / "t.toml").write_text("[clusters.a]\nnodez = 1\n")
    code, out, err = run(capsys, "local", "up", tmp_path / "t.toml", "--dir", directory)
    assert (code, out) == (2, "")
    assert err.count("\n") == 2
    assert 't.toml:2: clusters.a.nodez: no such key: "nodez"; did you mean "nodes"?' in err
    assert not directory.exists()
