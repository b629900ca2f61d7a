"""`isthmus dashboard`, against an admin listener that answers from a script."""

from __future__ import annotations

import json

import pytest

from isthmus.node.cli import main as cli
from isthmus.node.cli.exit_codes import Exit
from tests.support.fake_admin_listener import FakeAdminListener


def test_the_address_is_printed(listener: FakeAdminListener, capsys: pytest.CaptureFixture[str]) -> None:
    """Without tokens the address is all there is, and no login is requested."""
    listener.respond("/dashboard/session", {"login": False})
    assert cli.main(["dashboard"]) == Exit.OK
    assert capsys.readouterr().out == f"{listener.url}/\n"
    assert not listener.posted


def test_with_tokens_the_address_logs_in(listener: FakeAdminListener, capsys: pytest.CaptureFixture[str]) -> None:
    """The link of the node is completed to an address, with how long it works; JSON has both."""
    listener.respond("/dashboard/session", {"login": True})
    listener.respond("/dashboard/links", {"path": "/#login=abc", "expires_s": 300})
    assert cli.main(["dashboard"]) == Exit.OK
    assert capsys.readouterr().out.splitlines() == [
        f"{listener.url}/#login=abc",
        "It logs one browser in, within the next 5 minutes.",
    ]
    assert cli.main(["dashboard", "-o", "json"]) == Exit.OK
    assert json.loads(capsys.readouterr().out) == {"url": f"{listener.url}/#login=abc", "expires_s": 300}


def test_a_refusal_is_a_line(listener: FakeAdminListener, capsys: pytest.CaptureFixture[str]) -> None:
    """A token that may not read gets the node's sentence and an exit code."""
    listener.respond("/dashboard/session", {"login": True})
    listener.respond("/dashboard/links", {"error": "this needs a token of the role read", "reason": "forbidden"}, 403)
    assert cli.main(["dashboard"]) == Exit.REFUSED
    assert "this needs a token of the role read" in capsys.readouterr().err
