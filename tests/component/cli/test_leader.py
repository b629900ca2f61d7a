"""`isthmus leader balance`, against a node that answers from a script."""

from __future__ import annotations

import json
from typing import Any

import pytest

from isthmus.node.cli import leader
from isthmus.node.cli import main as cli
from isthmus.node.cli.admin_client import AdminClient
from isthmus.node.cli.exit_codes import Exit
from isthmus.repl.machine import machine

PLAN = [{"partition": 4, "from": "n1", "to": "n3"}, {"partition": 7, "from": "n2", "to": "n3"}]
DONE = [{**PLAN[0], "state": "done", "reason": ""}, {**PLAN[1], "state": "done", "reason": ""}]
FAILED = [DONE[0], {**PLAN[1], "state": "failed", "reason": "it lacks 2000 entries"}]


def status(leaders: tuple[int, int, int], plan: list[Any], run: dict[str, Any] | None = None) -> dict[str, Any]:
    return {
        "state": "x",
        "reason": "",
        "leaders": dict(zip(("n1", "n2", "n3"), leaders, strict=True)),
        "plan": plan,
        "run": run,
    }


def a_run(outcome: str, moves: list[Any], number: int = 1) -> dict[str, Any]:
    failed = sum(each["state"] == "failed" for each in moves)
    done = sum(each["state"] == "done" for each in moves)
    return {"number": number, "by": "me", "outcome": outcome, "done": done, "failed": failed, "moves": moves}


UNEVEN = status((2, 2, 0), PLAN)


class ScriptedNode:
    """Replaces the admin client: answers in order, the last one for ever."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *answers: dict[str, Any]) -> None:
        self.answers = list(answers)
        self.posted: list[Any] = []
        monkeypatch.setattr(AdminClient, "get", lambda _client, _path: self._next())
        monkeypatch.setattr(AdminClient, "post", lambda _client, _path, body: self._posted(body))
        monkeypatch.setattr(leader, "POLL_S", 0.0)

    def _posted(self, body: Any) -> dict[str, Any]:
        self.posted.append(body)
        return self._next()

    def _next(self) -> dict[str, Any]:
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


def test_a_dry_run_shows_the_plan_and_moves_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The plan shows present and planned leaders, and each move; as JSON the node's own answer."""
    node = ScriptedNode(monkeypatch, UNEVEN)
    assert cli.main(["leader", "balance", "--dry-run"]) == Exit.OK
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["n3", "0", "2"] in rows
    assert ["7", "n2", "n3"] in rows
    assert cli.main(["leader", "balance", "--dry-run", "-o", "json"]) == Exit.OK
    assert json.loads(capsys.readouterr().out) == UNEVEN
    assert node.posted == []


def test_leaders_are_shown_by_bucket_type_where_there_are_several(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Leaders may be even in total and uneven for a bucket type: the table has the leaders per node for each type."""
    types = {"a": {"imbalance": 2, "leaders": {"n1": 2, "n3": 0}}, "b": {"imbalance": 0, "leaders": {"n1": 1}}}
    ScriptedNode(monkeypatch, {**UNEVEN, "bucket_types": types})
    assert cli.main(["leader", "balance", "--dry-run"]) == Exit.OK
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert all(row in rows for row in (["a", "n1", "2"], ["a", "n3", "0"], ["b", "n1", "1"]))


def test_nothing_to_move_is_well(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """An even cluster is left alone, without a question."""
    node = ScriptedNode(monkeypatch, status((2, 1, 1), []))
    assert cli.main(["leader", "balance"]) == Exit.OK
    assert "as even as they can be" in capsys.readouterr().out
    assert node.posted == []


def test_an_obstacle_is_reported_and_not_called_even(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """While partitions are being elected the balance is unknown: code 3 with the reason, in a dry run, too. Moves under
    way are followed."""
    waits = {**status((2, 1, 1), []), "reason": "partition 3 is being elected"}
    node = ScriptedNode(monkeypatch, waits)
    for options in ((), ("--dry-run",), ("--yes", "-o", "json")):
        assert cli.main(["leader", "balance", *options]) == Exit.UNAVAILABLE
        shown = capsys.readouterr()
        assert "partition 3 is being elected" in shown.err
        assert "as even as" not in shown.out
    assert node.posted == []
    moving = {**status((2, 1, 1), [], a_run("", [])), "state": "leadership-balancing", "reason": "1 under way"}
    node = ScriptedNode(monkeypatch, moving, moving, status((2, 1, 1), [], a_run("balanced", DONE)))
    assert cli.main(["leader", "balance"]) == Exit.OK
    assert "balanced: 2 moved, 0 failed" in capsys.readouterr().out


def test_moves_are_reported_as_they_end(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The command prints the plan, then each move once, then the leaders afterwards."""
    node = ScriptedNode(
        monkeypatch,
        UNEVEN,
        status((2, 2, 0), PLAN, a_run("", [{**PLAN[0], "state": "under-way", "reason": ""}])),
        status((1, 2, 1), PLAN[1:], a_run("", DONE[:1])),
        status((1, 1, 2), [], a_run("balanced", DONE)),
    )
    assert cli.main(["leader", "balance", "--yes"]) == Exit.OK
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if line.startswith("partition ")] == [
        "partition 4 to n3: done",
        "partition 7 to n3: done",
    ]
    assert "balanced: 2 moved, 0 failed" in lines
    assert len(node.posted) == 1
    assert node.posted[0].keys() == {"by"}


def test_a_move_that_failed_is_reported_and_makes_code_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command shows why a move failed, and the totals; the same in JSON."""
    after = status((1, 2, 1), PLAN[1:], a_run("as even as it can be now: refused", FAILED))
    ScriptedNode(monkeypatch, UNEVEN, after)
    assert cli.main(["leader", "balance", "--yes"]) == Exit.DIFFERS
    out = capsys.readouterr().out
    assert "partition 7 to n3: failed: it lacks 2000 entries" in out
    assert "as even as it can be now: refused: 1 moved, 1 failed" in out
    ScriptedNode(monkeypatch, UNEVEN, after)
    assert cli.main(["leader", "balance", "--yes", "-o", "json"]) == Exit.DIFFERS
    assert json.loads(capsys.readouterr().out) == after


def test_nothing_moves_unasked(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Without a terminal to confirm at, and for programs, --yes or --dry-run is required."""
    node = ScriptedNode(monkeypatch, UNEVEN)
    for arguments in (["leader", "balance"], ["leader", "balance", "-o", "json"]):
        assert cli.main(arguments) == Exit.USAGE
        assert "--yes" in capsys.readouterr().err
    assert node.posted == []


def test_another_controller_ends_the_looking(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The started moves now belong to another node, so this command does not claim to know how they end."""
    ScriptedNode(monkeypatch, UNEVEN, status((2, 2, 0), PLAN, a_run("", [], 5)), status((2, 2, 0), PLAN))
    assert cli.main(["leader", "balance", "--yes"]) == Exit.UNAVAILABLE
    assert "another node controls" in capsys.readouterr().err


def test_moves_that_never_end_are_not_waited_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """After a time without progress the command gives up, with a code of its own."""
    monkeypatch.setattr(leader, "STALL_S", 0.0)
    ScriptedNode(monkeypatch, UNEVEN, status((2, 2, 0), PLAN, a_run("", [])))
    assert cli.main(["leader", "balance", "--yes"]) == Exit.UNAVAILABLE
    assert "no move has ended" in capsys.readouterr().err


def test_a_run_of_more_moves_than_a_node_keeps_is_followed_to_its_end(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The node keeps the last moves only: each move is shown once anyway, and a run in which moves end is not taken for
    a stalled one."""
    kept, moves = 3, [{"partition": n, "from": "n1", "to": "n3", "state": "done", "reason": ""} for n in range(9)]
    looks = []
    for n in range(0, 10, 1):
        run = a_run("balanced" if n == 9 else "", moves[max(0, n - kept) : n])
        looks.append(status((1, 1, 1), [], {**run, "done": n}))
    ScriptedNode(monkeypatch, UNEVEN, *looks)
    clock = iter(range(0, 10_000, 20))
    monkeypatch.setattr(machine(), "monotonic_s", lambda: float(next(clock)))
    monkeypatch.setattr(leader, "STALL_S", 70.0)
    assert cli.main(["leader", "balance", "--yes"]) == Exit.OK
    told = [line for line in capsys.readouterr().out.splitlines() if line.startswith("partition ")]
    assert told == [f"partition {n} to n3: done" for n in range(9)]
