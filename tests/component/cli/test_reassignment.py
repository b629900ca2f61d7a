"""Changes of placement by command, against a node that answers from a script."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from isthmus.node.cli import main as cli
from isthmus.node.cli import reassignment
from isthmus.node.cli.admin_client import AdminClient
from isthmus.node.cli.exit_codes import Exit

ROW = {
    "partition": 4,
    "bucket_type": "t",
    "index": 1,
    "from": ["n1", "n2"],
    "to": ["n1", "n3"],
    "adds": ["n3"],
    "removes": ["n2"],
}
PLAN = {
    "outcome": "planned",
    "order": None,
    "title": "all bucket types: spread evenly",
    "plan": "abc",
    "partitions": [ROW],
    "copies": 1,
    "nodes": [{"node": "n2", "replicas": 3, "then": 2}, {"node": "n3", "replicas": 0, "then": 1}],
    "notes": ["look out"],
}
ORDERED = {**PLAN, "outcome": "ordered", "order": 7}
NOTHING = {**PLAN, "partitions": [], "copies": 0}

ORDER = {
    "order": 7,
    "title": "drain n2",
    "by": "ann",
    "at_ms": 1_000,
    "cancelled_by": "",
    "done": 1,
    "total": 3,
    "stages": {"copying": 1, "done": 1, "waiting": 1},
    "estimate_ms": 12_300,
    "partitions": [
        {**ROW, "stage": "copying", "reason": "n3: round 1, 40 %"},
        {**ROW, "partition": 5, "stage": "waiting", "reason": "waits for its turn"},
    ],
}
ENDED = {
    "order": 6,
    "title": "spread",
    "by": "bob",
    "at_ms": 1,
    "ended_ms": 2,
    "outcome": "done",
    "done": 4,
    "total": 4,
}


class ScriptedNode:
    """Replaces the admin client: answers in order, the last one for ever."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *answers: dict[str, Any]) -> None:
        self.answers = list(answers)
        self.posted: list[tuple[str, Any]] = []
        monkeypatch.setattr(AdminClient, "get", lambda _client, _path: self._next())
        monkeypatch.setattr(AdminClient, "post", self._posted)

    def _posted(self, path: str, body: Any) -> dict[str, Any]:
        self.posted.append((path, body))
        return self._next()

    def _next(self) -> dict[str, Any]:
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


Captured = pytest.CaptureFixture[str]


def test_the_plan_is_shown_and_just_that_is_ordered(monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    """Partitions, replicas before and after, notes; then the order names the plan that was shown."""
    node = ScriptedNode(monkeypatch, PLAN, ORDERED)
    assert cli.main(["partition", "reassign", "--spread", "--yes", "--by", "ann"]) == Exit.OK
    out = capsys.readouterr().out
    for part in ("t/1", "n1, n2", "n1, n3", "1 partition changes, 1 replica is copied", "note: look out", "order 7"):
        assert part in out
    (path, first), (_, second) = node.posted
    assert (path, first["dry_run"], first["kind"]) == ("/admin/moves", True, "spread")
    assert (second["plan"], second["by"], "dry_run" in second) == ("abc", "ann", False)


def test_nothing_is_ordered_without_a_word(monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    """With --dry-run, without a terminal to confirm at, and when nothing is to be moved, only the plan is requested."""
    node = ScriptedNode(monkeypatch, PLAN)
    assert cli.main(["bucket-type", "set-replication-factor", "t", "3", "--dry-run", "-o", "json"]) == Exit.OK
    assert json.loads(capsys.readouterr().out) == PLAN
    assert cli.main(["partition", "reassign", "--replace", "n1", "n4"]) == Exit.USAGE
    assert "use --yes" in capsys.readouterr().err
    assert [path for path, _ in node.posted] == ["/admin/bucket-types/t/replication-factor", "/admin/moves"]
    assert node.posted[1][1]["nodes"] == ["n1", "n4"]
    assert cli.main(["partition", "reassign", "--replace", "n1", "n4", "-o", "json"]) == Exit.USAGE
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "--dry-run shows it" in json.loads(shown.err)["error"]
    node = ScriptedNode(monkeypatch, NOTHING)
    assert cli.main(["partition", "reassign", "--spread", "--yes"]) == Exit.OK
    assert "nothing to move" in capsys.readouterr().out
    assert len(node.posted) == 1
    assert cli.main(["partition", "reassign", "--spread", "-o", "json"]) == Exit.OK
    assert json.loads(capsys.readouterr().out) == NOTHING, "one document, whatever the plan is"


def test_a_file_may_name_nodes(monkeypatch: pytest.MonkeyPatch, capsys: Captured, tmp_path: Path) -> None:
    """Names and ids are passed on unchanged; an invalid map is reported with the file's name."""
    node = ScriptedNode(monkeypatch, PLAN, ORDERED)
    places = {"partitions": [{"id": 0, "replicas": ["n1", 2]}]}
    path = tmp_path / "map.json"
    path.write_text(json.dumps(places))
    assert cli.main(["partition", "reassign", "--file", str(path), "--bucket-type", "t", "--yes"]) == Exit.OK
    assert node.posted[1][1]["partitions"] == places["partitions"]
    capsys.readouterr()
    for text in ("[1]", "{", '{"partitions": [], "partitions": []}'):
        path.write_text(text)
        assert cli.main(["partition", "reassign", "--file", str(path), "--yes"]) == Exit.USAGE
        assert "map.json" in capsys.readouterr().err
    assert cli.main(["partition", "reassign", "--yes"]) == Exit.USAGE
    assert cli.main(["partition", "reassign", "--spread", "--cancel"]) == Exit.USAGE
    assert len(node.posted) == 2


def test_an_order_is_cancelled_by_its_number_or_alone(monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    """Without a number the only order is cancelled."""
    node = ScriptedNode(monkeypatch, {"outcome": "cancelled", "order": 7, "title": "drain n2"})
    assert cli.main(["partition", "reassign", "--cancel", "--by", "bob"]) == Exit.OK
    assert cli.main(["partition", "reassign", "--cancel", "7", "--by", "bob"]) == Exit.OK
    assert [body for _, body in node.posted] == [{"order": None, "by": "bob"}, {"order": 7, "by": "bob"}]
    assert "order 7 (drain n2): cancelled; what is under way goes back" in capsys.readouterr().out


def test_moves_are_shown_until_they_are_over(monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    """The output shows copying moves with their reason, the number of finished ones, and the time left; waiting ones
    with --all; then the history."""
    monkeypatch.setattr(reassignment, "WATCH_S", 0.0)
    busy = {"orders": [ORDER], "ended": [ENDED], "drained": [{"node": "n2", "by": "ann", "at_ms": 1_000}], "paused": ""}
    idle = {"orders": [], "ended": [ENDED], "drained": [], "paused": ""}
    ScriptedNode(monkeypatch, {**busy, "paused": "partition 3 is being elected"}, idle)
    assert cli.main(["partition", "moves", "--watch"]) == Exit.OK
    out = capsys.readouterr().out
    for part in ("1 of 3 done (1 copying, 1 done, 1 waiting), time left: 12.3 s", "n3: round 1, 40 %", "n2 is drained"):
        assert part in out
    assert "nothing new is begun: partition 3 is being elected" in out
    assert out.index("nothing is ordered") < out.index("4 of 4")
    assert "waits for its turn" not in out
    ScriptedNode(monkeypatch, busy)
    assert cli.main(["partition", "moves", "--all"]) == Exit.OK
    assert "waits for its turn" in capsys.readouterr().out
    assert cli.main(["partition", "moves", "-o", "json"]) == Exit.OK
    assert json.loads(capsys.readouterr().out) == busy
    assert cli.main(["partition", "moves", "--watch", "-o", "json"]) == Exit.USAGE


def test_nodes_are_drained_and_removed(monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    """A drain is ordered even when nothing is to be moved; its undo names the cancelled order; a removal asks for
    confirmation."""
    node = ScriptedNode(monkeypatch, NOTHING, NOTHING)
    assert cli.main(["node", "drain", "n2", "n3", "--yes"]) == Exit.OK
    assert [path for path, _ in node.posted] == ["/admin/nodes/drain"] * 2
    assert node.posted[1][1]["nodes"] == ["n2", "n3"]
    ScriptedNode(monkeypatch, {"outcome": "undone", "nodes": ["n2"], "cancelled": [7]})
    assert cli.main(["node", "drain", "n2", "--undo"]) == Exit.OK
    assert "undone; cancelled: order 7" in capsys.readouterr().out
    node = ScriptedNode(monkeypatch, {"outcome": "removed", "node": "n2"})
    assert cli.main(["node", "remove", "n2"]) == Exit.USAGE
    assert cli.main(["node", "remove", "n2", "--yes"]) == Exit.OK
    assert [body.get("dry_run") for _, body in node.posted] == [True, True, None]
    ScriptedNode(monkeypatch, {"nodes": [{"name": "n1", "state": "live", "drained": True, "replicas": 4}]})
    assert cli.main(["node", "list"]) == Exit.OK
    assert "live" in capsys.readouterr().out
