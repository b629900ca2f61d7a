"""`isthmus audit`, against an admin listener that answers from a script."""

from __future__ import annotations

import json
import os
import shutil
import sys

import pytest

from isthmus.node.cli import main as cli
from isthmus.node.cli.exit_codes import Exit
from isthmus.repl.machine import SystemMachine
from tests.support.fake_admin_listener import FakeAdminListener

ACT = {
    "id": 7,
    "at_ms": 1_700_000_000_000,
    "node": "n1",
    "who": {"by": "ann@desk", "role": None, "token": None, "certificate": None},
    "from": "192.0.2.7:4711",
    "via": "cli",
    "what": {"act": "set option replication.max.time.lag.millis: value=4s", "route": "", "path": "", "request": None},
    "before": None,
    "after": 4_000,
    "reason": None,
    "outcome": "done",
    "status": 200,
    "error": None,
}
REFUSED = {
    **ACT,
    "who": {"by": None, "role": "operate", "token": "sha256:123456789012", "certificate": None},
    "outcome": "refused",
    "error": "forbidden: this needs a token of the role admin",
}
ANONYMOUS = {**ACT, "who": {"by": None, "role": None, "token": None, "certificate": None}}
ANSWER = {
    "acts": [ACT, REFUSED, ANONYMOUS],
    "next": "n1:5,n2:9",
    "nodes": {"n1": {"unreadable": 0, "lost": 2}, "n2": {"unreadable": 0, "lost": 0}, "n3": None},
    "unknown": {"n3": "no-answer: timed out"},
    "at_ms": 1_700_000_001_000,
}


def test_acts_are_listed_with_what_is_missing(listener: FakeAdminListener, capsys: pytest.CaptureFixture[str]) -> None:
    """The WHO column shows the name, else the role, else the host, with the interface; notes name nodes without an
    answer, lost lines, and how to get more."""
    listener.respond("/admin/audit?limit=50", ANSWER)
    assert cli.main(["audit", "list"]) == Exit.OK
    heading, *rows = capsys.readouterr().out.splitlines()
    assert heading.split() == ["AT", "NODE", "WHO", "ACT", "OUTCOME"]
    assert [row.split()[3:5] for row in rows[:3]] == [
        ["ann@desk", "(cli)"],
        ["operate", "(cli)"],
        ["192.0.2.7", "(cli)"],
    ]
    assert [row.split()[-1] for row in rows[:3]] == ["done", "forbidden", "done"]
    assert rows[3:] == [
        "note: acts of node n3 are missing: no-answer: timed out",
        "note: node n1 has lost 2 lines since it started",
        "older ones: --from n1:5,n2:9",
    ]


def test_json_is_the_nodes_answer(listener: FakeAdminListener, capsys: pytest.CaptureFixture[str]) -> None:
    """JSON is the node's answer, and the options are those of the request."""
    listener.respond("/admin/audit?since=1770091500000&node=n2&limit=3&before=n2%3A9", ANSWER)
    options = ["--since", "2026-02-03T04:05", "--node", "n2", "--limit", "3", "--from", "n2:9"]
    assert cli.main(["audit", "list", *options, "-o", "json"]) == Exit.OK
    assert json.loads(capsys.readouterr().out) == ANSWER


def test_since_takes_a_while_ago_as_events_do(listener: FakeAdminListener, monkeypatch: pytest.MonkeyPatch) -> None:
    """`audit list` and `events` read the option alike: a time, or a duration before now."""
    monkeypatch.setattr(SystemMachine, "wall_ns", staticmethod(lambda: 1_770_091_500_000_000_000))
    listener.respond("/admin/audit?since=1770087900000&limit=50", ANSWER)
    assert cli.main(["audit", "list", "--since", "1h"]) == Exit.OK


def test_a_search_that_found_nothing_yet_says_how_far_it_came(
    listener: FakeAdminListener, capsys: pytest.CaptureFixture[str]
) -> None:
    """The filters are sent as typed; the output says that older acts may exist."""
    path = "/admin/audit?until=1770091500000&act=set+option&who=ann%40desk&object=min.isr&outcome=refused&limit=50"
    listener.respond(path, {**ANSWER, "acts": [], "unknown": {}, "nodes": {}, "searched_to_ms": 1_700_000_000_000})
    filters = ["--act", "set option", "--who", "ann@desk", "--object", "min.isr", "--outcome", "refused"]
    assert cli.main(["audit", "list", "--before", "2026-02-03T04:05", *filters]) == Exit.OK
    assert capsys.readouterr().out.splitlines()[-2:] == [
        "none found back to 2023-11-14 22:13:20Z",
        "older ones: --from n1:5,n2:9",
    ]


def test_a_table_fits_a_terminal_of_80_columns(
    listener: FakeAdminListener, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Long acts wrap; words stay whole."""
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(shutil, "get_terminal_size", lambda *_: os.terminal_size((80, 24)))
    listener.respond("/admin/audit?limit=50", {**ANSWER, "unknown": {}, "nodes": {}, "next": None})
    assert cli.main(["audit", "list"]) == Exit.OK
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert any("replication.max.time.lag.millis" in line for line in lines)


@pytest.mark.parametrize("since", ["yesterday", "1969-01-01"])
def test_a_time_that_is_none_is_refused(
    listener: FakeAdminListener, capsys: pytest.CaptureFixture[str], since: str
) -> None:
    """The error shows the form of a time."""
    assert cli.main(["audit", "list", "--since", since]) == Exit.USAGE
    assert "--since" in capsys.readouterr().err
