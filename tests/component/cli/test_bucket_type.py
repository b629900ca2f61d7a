"""`isthmus bucket-type`, against an admin listener that answers from a script."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from isthmus.node.cli import main as cli
from isthmus.node.cli.exit_codes import Exit
from tests.support.fake_admin_listener import FakeAdminListener

PATH = "/admin/bucket-types/notes"
MAP = {"partitions": [{"id": 0, "replicas": [1, 2]}, {"id": 1, "replicas": [2, 3]}]}
SHOWN = {
    "bucket_type": "notes",
    "partition_count": 2,
    "replication_factor": 2,
    "min_isr": 1,
    "online": 2,
    "in_sync": 2,
    "partitions": [
        {"id": 0, "replicas": [1, 2], "nodes": ["n1", "n2"], "partition": 4, "leader": "n1", "status": "online"},
        {"id": 1, "replicas": [2, 3], "nodes": ["n2", "n3"], "partition": 5, "leader": "n2", "status": "online"},
    ],
}


def test_a_shown_map_is_a_file_that_creates_the_same(
    listener: FakeAdminListener, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """`create --file` sends the map that `show -o json` prints."""
    listener.respond(PATH, SHOWN)
    assert cli.main(["bucket-type", "show", "notes", "-o", "json"]) == Exit.OK
    text = capsys.readouterr().out
    assert json.loads(text) == MAP
    file = tmp_path / "map.json"
    file.write_text(text)
    listener.respond(PATH, {"outcome": "created", "online": 2, **MAP})
    assert cli.main(["bucket-type", "create", "notes", "--file", str(file), "--by", "ann"]) == Exit.OK
    assert capsys.readouterr().out == "bucket type notes, 2 partitions: created, 2 online\n"
    assert listener.posted == [(PATH, {"min_isr": None, "by": "ann", "dry_run": False, **MAP})]


def test_a_node_that_is_gone_is_shown_by_name(listener: FakeAdminListener, capsys: pytest.CaptureFixture[str]) -> None:
    """The id of a gone node is unknown: the table says so, and the file has the node's name, which `partition reassign
    --file` accepts."""
    first, second = SHOWN["partitions"]  # type: ignore[misc]
    gone = {**SHOWN, "partitions": [{**first, "replicas": [1, None]}, second]}  # type: ignore[dict-item]
    listener.respond(PATH, gone)
    assert cli.main(["bucket-type", "show", "notes", "-o", "json"]) == Exit.OK
    assert json.loads(capsys.readouterr().out)["partitions"][0] == {"id": 0, "replicas": [1, "n2"]}
    assert cli.main(["bucket-type", "show", "notes"]) == Exit.OK
    assert "1, unknown" in capsys.readouterr().out


def test_bucket_types_are_listed_made_and_set(listener: FakeAdminListener, capsys: pytest.CaptureFixture[str]) -> None:
    """Numbers and flags are sent unchanged; a dry run prints the placement; `set` belongs to options."""
    listener.respond("/admin/bucket-types", {"bucket_types": [SHOWN]})
    assert cli.main(["bucket-type", "list"]) == Exit.OK
    assert capsys.readouterr().out.splitlines()[1].split() == ["notes", "2", "2", "1", "2", "2"]
    listener.respond(PATH, {"outcome": "valid", "online": 0, **MAP})
    arguments = ["--partitions", "2", "--replication-factor", "2", "--min-isr", "1", "--placement", "computed"]
    assert cli.main(["bucket-type", "create", "notes", *arguments, "--by", "ann", "--dry-run"]) == Exit.OK
    assert "would be placed so" in capsys.readouterr().out
    made = {"partition_count": 2, "replication_factor": 2, "placement": "computed"}
    assert listener.posted[-1] == (PATH, {"min_isr": 1, "by": "ann", "dry_run": True, **made})
    row = {"option": "replication.min.isr", "effective": 2}
    listener.respond(
        "/admin/options/replication.min.isr/set", {"outcome": "set", "options": [row], "warnings": ["9 is clamped"]}
    )
    assert cli.main(["bucket-type", "set", "notes", "--min-isr", "9", "--by", "ann"]) == Exit.OK
    assert capsys.readouterr().out == "bucket type notes: min-ISR set, effective 2\nnote: 9 is clamped\n"
    assert listener.posted[-1][1] == {"value": 9, "bucket_type": "notes", "by": "ann", "dry_run": False}


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["--partitions", "2"],
        ["--partitions", "0", "--replication-factor", "1"],
        ["--file", "x.json", "--partitions", "2"],
        ["--partitions", "2", "--replication-factor", "1", "--placement", "any"],
    ],
)
def test_a_command_line_with_too_little_or_too_much_is_a_usage_error(
    listener: FakeAdminListener, arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """The error is one line with code 2, and no request is sent."""
    assert cli.main(["bucket-type", "create", "notes", *arguments]) == Exit.USAGE
    assert capsys.readouterr().err.count("\n") == 1
    assert listener.posted == []
