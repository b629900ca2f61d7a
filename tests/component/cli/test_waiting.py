"""Waiting for a cluster and for orders, and rolling restarts, against a listener that answers from a script."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import psutil
import pytest

from isthmus.node.cli import rolling_restart, waiting
from isthmus.node.cli.exit_codes import Exit
from isthmus.node.cli.main import main
from isthmus.node.cli.output import moment
from isthmus.node.cli.waiting import Goal, obstacle
from tests.component.cli.test_reassignment import ENDED, ORDER, ORDERED
from tests.support.cluster_answers import NOW_MS, cluster_answer, health_answer, respond_as
from tests.support.fake_admin_listener import FakeAdminListener
from tests.support.waiting import wait_until


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Polls do not pause for half a second before a scripted answer, nor for the lock of another test."""
    monkeypatch.setattr(waiting, "POLL_S", 0.01)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


@pytest.fixture
def east(listener: FakeAdminListener) -> FakeAdminListener:
    """A healthy cluster."""
    respond_as(listener, "east")
    return listener


def runs(pid: int) -> bool:
    """Whether the process exists and is not a zombie."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def after(listener: FakeAdminListener, path: str, requests: int, answer: Any) -> None:
    """From the given request of a path on, answer with something else."""
    seen = [0]

    def count(_headers: Any) -> None:
        seen[0] += 1
        if seen[0] == requests:
            listener.respond(path, answer)

    listener.on_headers = count


@pytest.mark.parametrize(
    ("changed", "online", "in_sync"),
    [
        ({}, "", ""),
        ({"partitions": {"total": 12, "online": 11}}, "11 of 12 partitions are online", "11 of 12"),
        ({"partitions": {"total": 0, "online": 0}}, "knows no partitions yet", "knows no partitions yet"),
        ({"partitions": {}}, "knows no partitions yet", "knows no partitions yet"),
        ({"waiting": "for one more node"}, "for one more node", "for one more node"),
        ({"below_min_isr": [3]}, "too few replicas are in sync to take writes in 3", ""),
        ({"under_replicated": [1, 2]}, "", "replicas are out of sync in 2 of 12 partitions: 1, 2"),
        ({"problems": ["node east-3 is gone"]}, "", "node east-3 is gone"),
    ],
)
def test_what_a_goal_lacks(changed: dict[str, Any], online: str, in_sync: str) -> None:
    """Online means that every partition takes reads and writes; in sync means that there is no other problem either."""
    cluster = {**cluster_answer("east"), **changed}
    for goal, words in ((Goal.ONLINE, online), (Goal.IN_SYNC, in_sync)):
        found = obstacle(goal, cluster)
        assert words in found
        assert bool(found) == bool(words)


def test_wait_returns_when_the_cluster_is_in_sync(east: FakeAdminListener, capsys: pytest.CaptureFixture[str]) -> None:
    """The missing condition is printed once, on standard error, and the code is 0."""
    east.respond("/admin/cluster", {**cluster_answer("east"), "under_replicated": [1]})
    after(east, "/admin/cluster", 4, cluster_answer("east"))
    assert main(["cluster", "wait", "--timeout", "20s"]) == Exit.OK
    out, err = capsys.readouterr()
    assert out == "cluster east: in-sync\n"
    assert err == "cluster: waits: replicas are out of sync in 1 of 12 partitions: 1\n"
    east.respond("/admin/cluster", {**cluster_answer("east"), "under_replicated": [1]})
    assert main(["cluster", "wait", "--online"]) == Exit.OK


def test_a_wait_ends_at_its_timeout(east: FakeAdminListener, capsys: pytest.CaptureFixture[str]) -> None:
    """The code is 1 with the missing condition when the cluster answers, 3 when no node does."""
    east.respond("/admin/cluster", {**cluster_answer("east"), "under_replicated": [1]})
    assert main(["cluster", "wait", "--timeout", "1s"]) == Exit.DIFFERS
    assert "cluster: not within 1s: replicas are out of sync" in capsys.readouterr().err
    assert main(["cluster", "wait", "--timeout", "200ms", "--admin", "http://127.0.0.1:9"]) == Exit.UNAVAILABLE
    assert "does not answer: connection refused" in capsys.readouterr().err
    east.respond("/admin/cluster", {"error": "who are you", "reason": "unauthorized"}, 401)
    assert main(["cluster", "wait", "--timeout", "20s"]) == Exit.REFUSED


@pytest.mark.parametrize("outcome", ["done", "cancelled"])
def test_an_order_is_waited_for(east: FakeAdminListener, capsys: pytest.CaptureFixture[str], outcome: str) -> None:
    """--wait returns when the order is over: code 0 when it was done, 1 when it was cancelled meanwhile."""
    east.respond("/admin/moves", ORDERED)
    running = {"orders": [ORDER], "ended": [], "drained": []}
    ended = {"orders": [], "ended": [{**ENDED, "order": 7, "outcome": outcome}], "drained": []}
    posted = [0]

    def answer(_headers: Any) -> None:
        posted[0] += 1
        if posted[0] > 2:
            east.respond("/admin/moves", running if posted[0] < 6 else ended)

    east.on_headers = answer
    code = main(["partition", "reassign", "--spread", "--yes", "--wait", "--timeout", "20s"])
    out, err = capsys.readouterr()
    assert code == (Exit.OK if outcome == "done" else Exit.DIFFERS)
    assert "order 7: waits: 1 of 3 partitions done (1 copying, 1 done, 1 waiting)" in err
    assert ("order 7: done" in out) == (outcome == "done")
    assert ("order 7 ended as cancelled" in err) == (outcome == "cancelled")


def test_a_drain_is_waited_for_until_the_node_is_empty(
    east: FakeAdminListener, capsys: pytest.CaptureFixture[str]
) -> None:
    """Leaderships move after the replicas: the command returns when both are gone."""
    nothing = {"partitions": [], "order": None, "title": "drain east-3", "plan": "x", "nodes": [], "copies": 0}
    east.respond("/admin/nodes/drain", nothing)
    east.respond("/admin/nodes", {"nodes": [{"name": "east-3", "replicas": 0, "leaders": 2}]})
    after(east, "/admin/nodes", 6, {"nodes": [{"name": "east-3", "replicas": 0, "leaders": 0}]})
    assert main(["node", "drain", "east-3", "--yes", "--wait", "--timeout", "20s"]) == Exit.OK
    assert "east-3 holds 0 replicas and leads 2 partitions" in capsys.readouterr().err


def restarts(east: FakeAdminListener, tmp_path: Path) -> Path:
    """A file into which restart commands write; a node that is named in it has another start from then on."""
    log = tmp_path / "restarted"
    log.touch()

    def answer(_headers: Any) -> None:
        health = health_answer("east")
        for number, node in enumerate(log.read_text().split()):
            health["nodes"][node] = {**health["nodes"][node], "started_ms": NOW_MS + 1_000 + number}
        east.respond("/admin/nodes/health", health)

    east.on_headers = answer
    return log


def test_a_rolling_restart_runs_the_command_for_each_node(
    east: FakeAdminListener, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nodes restart one after the other, the one with the active controller last; --dry-run shows the order, without
    --yes the command asks."""
    log = restarts(east, tmp_path)
    words = [
        "cluster",
        "rolling-restart",
        "--command",
        f"echo {{node}} >> {log}; echo {{host}} >&2",
        "--timeout",
        "20s",
    ]
    assert main([*words, "--dry-run", "-o", "json"]) == Exit.OK
    steps = json.loads(capsys.readouterr().out)["steps"]
    assert [step["node"] for step in steps] == ["east-1", "east-3", "east-2"]
    assert "echo east-1.data-centre.example.com" in steps[0]["command"]
    assert main(words) == Exit.USAGE
    assert log.read_text() == ""
    assert main([*words, "--yes"]) == Exit.OK
    assert log.read_text().split() == ["east-1", "east-3", "east-2"]
    assert "east-3: restarted and in sync after" in capsys.readouterr().out


def test_a_rolling_restart_ends_at_the_first_failure_and_goes_on_later(
    east: FakeAdminListener, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """No other node is restarted; with --since, nodes that have started since are left out."""
    log = restarts(east, tmp_path)
    fails = f"test {{node}} != east-3 && echo {{node}} >> {log}"
    words = ["cluster", "rolling-restart", "--yes", "--timeout", "20s", "--command"]
    assert main([*words, fails]) == Exit.DIFFERS
    err = capsys.readouterr().err
    assert "east-3: the command ended with code 1; --since '" in err
    assert log.read_text().split() == ["east-1"]
    assert main([*words, f"echo {{node}} >> {log}", "--since", str(NOW_MS + 500)]) == Exit.OK
    assert log.read_text().split() == ["east-1", "east-3", "east-2"]


def test_one_rolling_restart_of_a_cluster_runs_on_a_machine(
    east: FakeAdminListener, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A second one, begun by the first one's command while that runs, restarts nothing; afterwards one runs again."""
    log, inner = restarts(east, tmp_path), tmp_path / "inner"
    second = f"TMPDIR={tmp_path} {sys.executable} -m isthmus.node.cli.main cluster rolling-restart --yes"
    second += f" --admin {east.url} --node {{node}} --command 'touch {tmp_path}/touched' 2>> {inner}"
    words = ["cluster", "rolling-restart", "--yes", "--timeout", "50s", "--node", "east-1", "--command"]
    assert main([*words, f"{second} || echo {{node}} >> {log}"]) == Exit.OK
    sentence = "isthmus: another rolling restart of cluster east runs on this machine: wait until it has ended"
    assert sentence in inner.read_text()
    assert not (tmp_path / "touched").exists()
    log.write_text("")
    assert main([*words, f"echo {{node}} >> {log}"]) == Exit.OK


@pytest.mark.parametrize("other", ["east-1", "east-2", "east-3"])
def test_a_restart_by_somebody_else_ends_a_rolling_restart(
    east: FakeAdminListener, tmp_path: Path, capsys: pytest.CaptureFixture[str], other: str
) -> None:
    """Two rolling restarts at once would restart two nodes together: the one that sees a start of another node that it
    did not cause, or a second one of its own node, runs no further command. --since goes on with what is left."""
    log = restarts(east, tmp_path)
    answer, seen = east.on_headers, [0]

    def restarted_by_another(headers: Any) -> None:
        if log.read_text() == "east-1\n":
            seen[0] += 1
            if seen[0] == 4:  # the run has seen east-1 back
                log.write_text(f"east-1\n{other}\n")
        answer(headers)

    east.on_headers = restarted_by_another
    words = ["cluster", "rolling-restart", "--yes", "--timeout", "20s", "--command", f"echo {{node}} >> {log}"]
    assert main(words) == Exit.DIFFERS
    err = capsys.readouterr().err
    assert f"isthmus: east-3: {other} restarted at {moment(NOW_MS + 1_001)}, and not by this command" in err
    assert "--since '" in err
    assert log.read_text().split() == ["east-1", other]
    assert main([*words, "--since", str(NOW_MS + 500)]) == Exit.OK
    assert sorted(set(log.read_text().split())) == ["east-1", "east-2", "east-3"]


def test_a_node_that_has_not_restarted_is_a_failure(
    east: FakeAdminListener, capsys: pytest.CaptureFixture[str]
) -> None:
    """A command that ends with 0 and restarts nothing is noticed: the node reports the same start as before."""
    words = ["cluster", "rolling-restart", "--yes", "--timeout", "2s", "--command", "true {node}"]
    assert main(words) == Exit.DIFFERS
    err = capsys.readouterr().err
    assert "isthmus: east-1: not within 2s: it has not restarted: it runs since" in err
    assert f"--since '{moment(NOW_MS)}' goes on with the others and this one" in err


def test_a_command_that_takes_too_long_ends_with_all_that_it_started(
    east: FakeAdminListener, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A child of the shell does not restart nodes after the command line has given up."""
    pid = tmp_path / "pid"
    command = f"(sleep 30 & echo $! > {pid}; wait); true {{node}}"
    assert main(["cluster", "rolling-restart", "--yes", "--timeout", "3s", "--command", command]) == Exit.DIFFERS
    assert "the command did not end within 3s" in capsys.readouterr().err
    wait_until(lambda: not runs(int(pid.read_text())), "the signal is sent; the process ends some time later")


def test_the_output_of_a_command_stays_out_of_the_document(
    east: FakeAdminListener, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """With -o json the command's output goes to standard error."""
    log = restarts(east, tmp_path)
    command = f"echo {{node}} >> {log}; echo printed by the command"
    words = ["cluster", "rolling-restart", "--yes", "--timeout", "20s", "-o", "json", "--command", command]
    assert main([*words, "--node", "east-1"]) == Exit.OK
    out, err = capfd.readouterr()
    assert json.loads(out)["failed"] is None
    assert "printed by the command" in err


def test_a_live_node_that_does_not_report_its_start_is_not_restarted(
    east: FakeAdminListener, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One missed answer does not make a node a dead one: it is asked again, and the restart is refused if it stays
    silent."""
    monkeypatch.setattr(rolling_restart, "STARTS_MS", 2_000)
    log = tmp_path / "restarted"
    log.touch()
    silent = {**health_answer("east"), "unknown": {"east-1": "not-ready: no answer within 2000 ms"}}
    silent["nodes"] = {**silent["nodes"], "east-1": None}
    east.respond("/admin/nodes/health", silent)
    words = ["cluster", "rolling-restart", "--yes", "--timeout", "20s", "--command", f"echo {{node}} >> {log}"]
    assert main(words) == Exit.DIFFERS
    assert "node east-1 is live, and does not report when it started: not-ready" in capsys.readouterr().err
    assert log.read_text() == ""
    after(east, "/admin/nodes/health", 3, health_answer("east"))
    assert main([*words, "--dry-run"]) == Exit.OK


def test_nodes_that_are_down_are_restarted_first(
    east: FakeAdminListener, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Dead nodes restart first, without a wait for a cluster that cannot be in sync before; the live ones follow once
    it is."""
    log = tmp_path / "restarted"
    log.touch()
    down = {"east-2", "east-3"}

    def answer(_headers: Any) -> None:
        started = log.read_text().split()
        cluster, health = cluster_answer("east"), health_answer("east")
        gone = down - set(started)
        cluster["nodes"] = [{**row, "state": "gone" if row["name"] in gone else "live"} for row in cluster["nodes"]]
        cluster["under_replicated"] = [1] if gone else []
        for node in gone:
            health["nodes"][node] = None
        for number, node in enumerate(started):
            health["nodes"][node] = {**health["nodes"][node], "started_ms": NOW_MS + 1_000 + number}
        east.respond("/admin/nodes/health", health)
        east.respond("/admin/cluster", cluster)

    east.on_headers = answer
    words = ["cluster", "rolling-restart", "--yes", "--timeout", "20s", "--command", f"echo {{node}} >> {log}"]
    assert main(words) == Exit.OK
    assert log.read_text().split() == ["east-3", "east-2", "east-1"]


def test_a_node_that_has_restarted_is_not_called_one_to_restart(
    east: FakeAdminListener, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """When the cluster is not in sync after a restart, the error does not announce another restart of the node."""
    log = restarts(east, tmp_path)
    answer = east.on_headers

    def out_of_sync(headers: Any) -> None:
        answer(headers)
        if log.read_text():
            east.respond("/admin/cluster", {**cluster_answer("east"), "under_replicated": [1]})

    east.on_headers = out_of_sync
    words = ["cluster", "rolling-restart", "--yes", "--timeout", "2s", "--command", f"echo {{node}} >> {log}"]
    assert main(words) == Exit.DIFFERS
    err = capsys.readouterr().err
    assert "goes on with the others, and with this one unless it is live then" in err


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--command", "systemctl restart isthmus"], "it needs {node} or {host}"),
        (["--command", "ssh {node}", "--node", "east-9"], 'no such node: "east-9"'),
        (["--command", "ssh {node}", "--since", "soon"], "--since: 'soon' is not a time"),
    ],
)
def test_a_restart_that_cannot_be_meant_is_refused(
    east: FakeAdminListener, capsys: pytest.CaptureFixture[str], words: list[str], sentence: str
) -> None:
    """The command is refused before anything runs."""
    assert main(["cluster", "rolling-restart", "--yes", *words]) == Exit.USAGE
    assert sentence in capsys.readouterr().err


def test_a_cluster_that_is_not_in_sync_is_not_restarted(
    east: FakeAdminListener, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One replica fewer could stop writes: the command waits, and then gives up."""
    log = restarts(east, tmp_path)
    east.respond("/admin/cluster", {**cluster_answer("east"), "under_replicated": [1]})
    words = ["cluster", "rolling-restart", "--yes", "--timeout", "1s", "--command", f"echo {{node}} >> {log}"]
    assert main(words) == Exit.DIFFERS
    assert "before it: not within 1s: replicas are out of sync" in capsys.readouterr().err
    assert log.read_text() == ""
