"""`isthmus kv reap`, against an admin listener that answers from a script."""

from __future__ import annotations

import json

import pytest

from isthmus.node.cli import main as cli
from isthmus.node.cli.exit_codes import Exit
from tests.support.fake_admin_listener import FakeAdminListener


def test_a_key_is_reaped_or_the_reason_is_reported(
    listener: FakeAdminListener, capsys: pytest.CaptureFixture[str]
) -> None:
    """A reap prints one line with code 0, else the reason with code 4; JSON is the node's answer in both cases."""
    listener.respond("/admin/reaps", {"outcome": "reaped", "reason": ""})
    assert cli.main(["kv", "reap", "notes/b", "k", "--by", "ann"]) == Exit.OK
    assert capsys.readouterr().out == "notes/b k: reaped\n"
    waits = {"outcome": "waits", "reason": "queue to-west: acknowledged below offset 3"}
    listener.respond("/admin/reaps", waits)
    assert cli.main(["kv", "reap", "b", "k", "--by", "ann", "--reason", "r", "-o", "json"]) == Exit.REFUSED
    shown = capsys.readouterr()
    assert json.loads(shown.out) == waits
    assert "queue to-west" in shown.err
    assert listener.posted == [
        ("/admin/reaps", {"bucket_type": "notes", "bucket": "b", "key": "k", "by": "ann"}),
        ("/admin/reaps", {"bucket_type": "default", "bucket": "b", "key": "k", "by": "ann", "reason": "r"}),
    ]
