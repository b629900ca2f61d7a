"""`isthmus option`, against an admin listener that answers from a script."""

from __future__ import annotations

import json

import pytest

from isthmus.node.cli import main as cli
from isthmus.node.cli.exit_codes import Exit
from tests.support.fake_admin_listener import FakeAdminListener

ROW = {
    "option": "replication.min.isr",
    "bucket_type": None,
    "default": "RF - 1",
    "set": 9,
    "effective": 3,
    "origin": "cluster",
    "by": "ann@desk",
    "at_ms": 1_700_000_000_000,
    "waiting": [3, 4],
    "scope": "cluster, bucket type",
    "unit": "replicas",
    "range": "1 to the replication factor, clamped",
    "meaning": "How many.",
}


def test_options_are_listed_as_table_and_json(listener: FakeAdminListener, capsys: pytest.CaptureFixture[str]) -> None:
    """Each option has a row, with who set it and when; a value not in force yet is marked; JSON is the node's
    answer."""
    listener.respond("/admin/options?bucket_type=no%2Ftes", {"options": [ROW]})
    assert cli.main(["option", "list", "--bucket-type", "no/tes"]) == Exit.OK
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["OPTION", "FOR", "DEFAULT", "SET", "EFFECTIVE", "FROM", "BY", "WHEN"]
    assert lines[1].split()[0:7] == ["replication.min.isr", "cluster", "RF", "-", "1", "9", "3"]
    assert "ann@desk" in lines[1]
    assert lines[2].startswith("not yet in force in partitions 3, 4")
    listener.respond("/admin/options/replication.min.isr", {"options": [ROW]})
    assert cli.main(["option", "get", "replication.min.isr", "-o", "json"]) == Exit.OK
    assert json.loads(capsys.readouterr().out) == {"options": [ROW]}
    assert cli.main(["option", "get", "replication.min.isr"]) == Exit.OK
    assert "range: 1 to the replication factor, clamped replicas" in capsys.readouterr().out


def test_options_are_set_and_unset(listener: FakeAdminListener, capsys: pytest.CaptureFixture[str]) -> None:
    """The typed value is sent unchanged, negative numbers too; notes and the previous setting are shown."""
    answer = {
        "outcome": "set",
        "before": 2,
        "before_by": "the file of node n",
        "options": [ROW],
        "warnings": ["-1 is clamped"],
    }
    listener.respond("/admin/options/replication.min.isr/set", answer)
    listener.respond("/admin/options/replication.min.isr/unset", {**answer, "outcome": "unset", "warnings": []})
    assert cli.main(["option", "set", "replication.min.isr", "-1", "--by", "ann", "--bucket-type", "notes"]) == Exit.OK
    out = capsys.readouterr().out
    assert out.startswith("replication.min.isr: set (before: 2, by the file of node n)\nnote: -1 is clamped\n")
    assert cli.main(["option", "unset", "replication.min.isr", "--by", "ann", "--dry-run"]) == Exit.OK
    assert listener.posted == [
        (
            "/admin/options/replication.min.isr/set",
            {"value": "-1", "bucket_type": "notes", "by": "ann", "dry_run": False},
        ),
        ("/admin/options/replication.min.isr/unset", {"bucket_type": None, "by": "ann", "dry_run": True}),
    ]


def test_a_pending_option_is_shown_once_and_not_in_a_dry_run(
    listener: FakeAdminListener, capsys: pytest.CaptureFixture[str]
) -> None:
    """The cluster's row and that of a bucket type wait for the same partitions: one line names them. A dry run has set
    nothing, so nothing waits."""
    rows = [ROW, {**ROW, "bucket_type": "default", "waiting": [4, 3, 7]}]
    answer = {"outcome": "set", "before": None, "options": rows, "warnings": []}
    listener.respond("/admin/options/replication.min.isr/set", answer)
    assert cli.main(["option", "set", "replication.min.isr", "9"]) == Exit.OK
    said = [line for line in capsys.readouterr().out.splitlines() if line.startswith("not yet")]
    assert said == ["not yet in force in partitions 3, 4, 7: their records wait for the controller"]
    assert cli.main(["option", "set", "replication.min.isr", "9", "--dry-run"]) == Exit.OK
    assert "not yet in force" not in capsys.readouterr().out


def test_a_refused_option_is_one_line_and_code_4(
    listener: FakeAdminListener, capsys: pytest.CaptureFixture[str]
) -> None:
    """The node's sentence, as it came."""
    listener.respond("/admin/options/x/set", {"error": "no such option: x", "reason": "unknown-option"}, 404)
    assert cli.main(["option", "set", "x", "1"]) == Exit.REFUSED
    assert capsys.readouterr().err == "isthmus: no such option: x\n"
