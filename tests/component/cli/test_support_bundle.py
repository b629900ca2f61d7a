"""`isthmus support-bundle` against a listener that answers from a script with secrets planted in it."""

from __future__ import annotations

import hashlib
import json
import stat
import tarfile
from pathlib import Path
from typing import Any, Final

import pytest

from isthmus.node.cli.exit_codes import Exit
from isthmus.node.cli.main import main
from tests.support.cluster_answers import respond_as
from tests.support.fake_admin_listener import FakeAdminListener

OWN_TOKEN: Final = "own-token-of-the-command-0123"
PLANTED: Final = (
    "planted-bearer-0123456789", "planted-password", "planted-named-token", "PLANTEDKEY", OWN_TOKEN, "planted-digest",
    "planted-escaped", "planted-listed", "planted-cookie", "planted-option", "/planted/slash",
)  # fmt: skip

LOG: Final = [
    f'{{"event": "x", "authorization": "Bearer {PLANTED[0]}"}}',
    f"sink: https://ann:{PLANTED[1]}@east-1:8098 token={PLANTED[2]}",
    f"-----BEGIN PRIVATE KEY-----\n{PLANTED[3]}\n-----END PRIVATE KEY-----",
    f"somebody typed {OWN_TOKEN} here",
    f'Authorization: Digest username="ann", response="{PLANTED[5]}"',
    json.dumps({"event": "x", "body": json.dumps({"token": PLANTED[6]})}),
    'cut {"body": "' + json.dumps({"token": PLANTED[6]}).replace('"', '\\"'),
    json.dumps({"event": "x", "tokens": [PLANTED[7]]}),
    f"Cookie: isthmus={PLANTED[8]}; other={PLANTED[8]}",
    f"isthmus status --token {PLANTED[9]}",
    f"password={PLANTED[10]}",
    "isr.shrunk partition=3",
]


@pytest.fixture
def east(listener: FakeAdminListener, monkeypatch: pytest.MonkeyPatch) -> FakeAdminListener:
    """A cluster of which two nodes answer."""
    respond_as(listener, "east")
    monkeypatch.setenv("ISTHMUS_TOKEN", OWN_TOKEN)
    one = {"version": "0.1.0", "python": "3.11", "system": "Linux", "config": [["node.name", '"east-1"', "f:1"]],
           "log": LOG, "metrics": "isthmus_up 1\n"}  # fmt: skip
    listener.respond("/admin/support", {"nodes": {"east-1": one, "east/../2": one}, "unknown": {}})
    texts = [f"password={PLANTED[1]}", *LOG]
    events = {"events": [{"id": f"e{number}", "text": text} for number, text in enumerate(texts)], "unknown": {}}
    listener.respond("/admin/events?limit=1000", events)
    listener.respond("/admin/ledger", {"ledger": []})
    listener.respond("/admin/partitions", {"partitions": []})
    return listener


def contents(file: Path) -> dict[str, bytes]:
    """Path in the bundle's folder -> content."""
    with tarfile.open(file) as bundle:
        found = {}
        for entry in bundle.getmembers():
            taken = bundle.extractfile(entry)
            assert taken is not None
            found[entry.name.partition("/")[2]] = taken.read()
    return found


def test_a_bundle_has_everything_and_no_secret(
    east: FakeAdminListener, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Status, answers, config, logs and metrics of each node, under names that stay within the folder; none of the
    planted secrets; readable by its owner alone."""
    file = tmp_path / "case.tar.gz"
    assert main(["support-bundle", str(file)]) == Exit.OK
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    found = contents(file)
    assert {"manifest.json", "status.json", "cluster.json", "lag.json", "events.json", "partitions.json"} <= set(found)
    assert {"nodes/east-1/node.json", "nodes/east-1/node.log", "nodes/east____2/metrics.txt"} <= set(found)
    assert all(".." not in name and not name.startswith("/") for name in found)
    everything = b"".join(found.values()).decode()
    assert [secret for secret in PLANTED if secret in everything] == []
    assert "isr.shrunk partition=3" in found["nodes/east-1/node.log"].decode()
    assert len(json.loads(found["events.json"])["events"]) == len(LOG) + 1
    assert json.loads(found["status.json"])["clusters"][0]["cluster"] == "east"
    assert "files," in capsys.readouterr().out


def test_the_manifest_names_every_file(east: FakeAdminListener, tmp_path: Path) -> None:
    """The manifest has each file's size and hash, and the versions of the software that made it."""
    file = tmp_path / "case.tgz"
    assert main(["support-bundle", str(file)]) == Exit.OK
    found = contents(file)
    manifest = json.loads(found.pop("manifest.json"))
    assert {one["path"]: (one["bytes"], one["sha256"]) for one in manifest["files"]} == {
        path: (len(data), hashlib.sha256(data).hexdigest()) for path, data in found.items()
    }
    assert manifest["missing"] == {}


def test_what_is_missing_is_said(east: FakeAdminListener, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A node that does not answer, and a question that was not answered, make code 3; the rest is in the bundle."""
    file = tmp_path / "case.tgz"
    east.respond("/admin/support", {"nodes": {"east-3": None}, "unknown": {"east-3": "not alive"}})
    del east.answers["/admin/ledger"]
    assert main(["support-bundle", str(file), "-o", "json"]) == Exit.UNAVAILABLE
    shown: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert shown["missing"] == {"ledger.json": "no such queue", "nodes/east-3": "not alive"}
    assert json.loads(contents(file)["manifest.json"])["missing"] == shown["missing"]
    assert "lag.json" in contents(file)


def test_the_size_is_bounded(east: FakeAdminListener, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Files that do not fit are left out and named; smaller files that come later still fit."""
    one = {"version": "0.1.0", "config": [], "log": ["x" * 100_000], "metrics": "isthmus_up 1\n"}
    east.respond("/admin/support", {"nodes": {"east-1": one}, "unknown": {}})
    file = tmp_path / "case.tgz"
    assert main(["support-bundle", str(file), "--size-limit", "60KB"]) == Exit.UNAVAILABLE
    assert "missing: nodes/east-1/node.log: left out: all texts together would be larger than 60KB" in (
        capsys.readouterr().out
    )
    found = contents(file)
    assert "nodes/east-1/metrics.txt" in found
    assert sum(map(len, found.values())) < 70_000


def test_a_file_is_not_overwritten_and_nothing_is_left_of_a_failure(
    east: FakeAdminListener, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An existing file stays unchanged; when no node answers no file is left."""
    file = tmp_path / "case.tgz"
    file.write_text("mine")
    assert main(["support-bundle", str(file)]) == Exit.USAGE
    assert file.read_text() == "mine"
    other = tmp_path / "other.tgz"
    assert main(["support-bundle", str(other), "--admin", "http://127.0.0.1:9"]) == Exit.UNAVAILABLE
    assert not other.exists()
    assert main(["support-bundle", str(other), "--size-limit", "much"]) == Exit.USAGE
    assert "--size-limit" in capsys.readouterr().err
