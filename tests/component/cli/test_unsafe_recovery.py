"""`partition force-leader`, `cluster reseed` and `node new-identity`: plan first, confirmation, no accidents."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from isthmus.node.cli import main as cli
from isthmus.node.cli.exit_codes import Exit
from isthmus.repl.storage.identity import NodeIdentity
from tests.support.fake_admin_listener import FakeAdminListener

PLAN = {
    "outcome": "would be ordered",
    "partition": 3,
    "node": "n2",
    "version": 7,
    "status": "offline",
    "record_epoch": 4,
    "reason": "waits for n1",
    "replicas": [
        {"node": "n2", "eligible": False, "epoch": 4, "log_epoch": 3, "leo": 9, "hw": 8, "applied": 8, "gen": 2},
        {"node": "n1", "eligible": None, "epoch": None},
    ],
    "notes": ["n1 did not answer"],
}
FORCE = "/admin/partitions/3/force-leader"
RESEED = "/admin/cluster/reseed"


def test_a_leader_is_forced_only_after_the_plan_was_shown_and_confirmed(
    listener: FakeAdminListener, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without a terminal and without --yes nothing is done; with it the command acts on exactly the state that was
    shown."""
    listener.respond(FORCE, PLAN)
    assert cli.main(["partition", "force-leader", "3", "n2", "--by", "ann"]) == Exit.USAGE
    out, err = capsys.readouterr()
    assert "note: n1 did not answer" in out
    assert "unknown" in out
    assert err == "isthmus: nothing was done: confirmation needs a terminal and no -o json; or use --yes\n"
    assert cli.main(["partition", "force-leader", "3", "n2", "--by", "ann", "--dry-run"]) == Exit.OK
    assert [body.get("dry_run") for _, body in listener.posted] == [True, True]
    assert cli.main(["partition", "force-leader", "3", "n2", "--by", "ann", "--yes"]) == Exit.OK
    assert listener.posted[-1] == (FORCE, {"node": "n2", "by": "ann", "version": 7})
    listener.respond(FORCE, {"error": "partition 3 is online", "reason": "has-leader"}, 409)
    assert cli.main(["partition", "force-leader", "3", "n2", "--yes"]) == Exit.REFUSED


def test_a_reseed_shows_its_result_and_ends_with_1_when_something_was_left(
    listener: FakeAdminListener, capsys: pytest.CaptureFixture[str]
) -> None:
    """With nothing behind, the command neither asks nor acts; replicas left out and forgotten ones are named."""
    listener.respond(RESEED, {"partitions": [], "forgotten": [], "looked_at": 12})
    assert cli.main(["cluster", "reseed"]) == Exit.OK
    assert capsys.readouterr().out == "no record is behind its replicas, of 12\n"
    assert len(listener.posted) == 1
    left = {**PLAN, "outcome": "left", "reason": "n1 did not answer and may hold more"}
    listener.respond(RESEED, {"partitions": [left], "forgotten": [8], "looked_at": 12})
    assert cli.main(["cluster", "reseed", "--yes", "--incomplete", "--by", "ann"]) == Exit.DIFFERS
    assert listener.posted[-1] == (RESEED, {"by": "ann", "incomplete": True, "dry_run": False})
    out = capsys.readouterr().out
    assert "partition 3: left as it is: n1 did not answer and may hold more" in out
    assert "no record of partitions 8" in out
    assert cli.main(["cluster", "reseed", "--dry-run", "-o", "json"]) == Exit.DIFFERS
    assert json.loads(capsys.readouterr().out)["forgotten"] == [8]


def test_a_restored_directory_takes_a_new_identity_while_its_node_is_stopped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """All replicas are marked as doubtful and the spare log id is dropped; a running node's directory and an empty one
    are refused."""
    file = tmp_path / "n1.toml"
    file.write_text('[node]\nname = "n1"\ncluster = "east"\ndata_dir = "data"\n')
    assert cli.main(["node", "new-identity", str(file)]) == Exit.LOCAL_FAULT
    identity = NodeIdentity.open(tmp_path / "data")
    identity.adopt(b"u" * 16, "n1", "boot", {0: 7, 5: 7}, spare=7)
    assert cli.main(["node", "new-identity", str(file)]) == Exit.LOCAL_FAULT
    assert "in use by another process" in capsys.readouterr().err
    identity.close(clean=True)
    assert cli.main(["node", "new-identity", str(file), "--dry-run"]) == Exit.OK
    assert "2 copies" in capsys.readouterr().out
    identity = NodeIdentity.open(tmp_path / "data")
    assert (identity.doubt, identity.spare) == ("", 7)
    identity.close(clean=True)
    assert cli.main(["node", "new-identity", str(file), "--by", "ann", "-o", "json"]) == Exit.OK
    assert json.loads(capsys.readouterr().out)["partitions"] == [0, 5]
    identity = NodeIdentity.open(tmp_path / "data")
    assert (identity.doubt, identity.spare) == ("restored: a new identity was ordered by ann", 0)
    assert identity.log_ids() == {0: 7, 5: 7}
    identity.close(clean=True)
    (tmp_path / "data").rename(tmp_path / "other")
    file.write_text('[node]\nname = "n2"\ncluster = "east"\ndata_dir = "other"\n')
    assert cli.main(["node", "new-identity", str(file)]) == Exit.LOCAL_FAULT
