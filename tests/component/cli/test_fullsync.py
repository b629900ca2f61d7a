"""`isthmus fullsync`: output, and the exit codes for scripts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from isthmus.node.cli import main as cli
from isthmus.node.cli.exit_codes import Exit
from tests.support.fake_admin_listener import FakeAdminListener

AT_MS = 1_700_000_000_000

PEER: dict[str, Any] = {
    "name": "west", "state": "scheduled", "reason": "24 checks a day", "queue": "to-west", "next_ms": AT_MS,
    "next_kind": "auto", "proven_ms": {"default": None}, "shared_by": ["e1"], "unknown": ["e3"],
    "warning": "only e1 compares with it", "range": {"since_ms": AT_MS, "before_ms": AT_MS + 1_000, "bucket": "b"},
    "gaps_open": 2, "gaps_queues": ["other", "rt"], "results": [],
    "named": [{"bucket_type": "default", "bucket": "b", "key": "k%20", "difference": "missing@sink"}],
}  # fmt: skip


@pytest.fixture
def listener(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeAdminListener]:
    """A node that compares with one cluster."""
    found = FakeAdminListener()
    for results in (0, 5):
        found.respond(f"/admin/fullsync?results={results}", {"node": "e1", "state": "scheduled", "peers": [PEER]})
    monkeypatch.setenv("ISTHMUS_ADMIN", found.url)
    yield found
    found.close()


def result(verdict: str) -> dict[str, Any]:
    """The result of a check that began just now."""
    return {"began_ms": AT_MS, "kind": "all", "bucket_type": "default", "verdict": verdict, "reason": "because"}


def test_status_shows_who_compares_what_is_next_and_what_is_open(
    listener: FakeAdminListener, capsys: pytest.CaptureFixture[str]
) -> None:
    """A warning names a node that compares alone, and silent nodes are named; waiting ranges and gaps are shown with
    their queues, which need not be the repair queue; a node of an earlier version does not name the queue."""
    assert cli.main(["fullsync", "status", "--node", "e1"]) == Exit.OK
    assert listener.posted == []
    shown = capsys.readouterr().out
    for line in (
        "west: compared by e1; e3 does not answer",
        "warning: west: only e1 compares with it",
        "west: the next check of kind range looks at changes of 2023-11-14 22:13:20Z to 2023-11-14 22:13:21Z in bucket",
        "west: gaps of queues other, rt that are not proven yet: 2 (`isthmus gaps`)",
    ):
        assert line in shown
    gone = {**PEER, "queue_delisted": True, "gaps_open": None}
    listener.respond("/admin/fullsync?results=5", {"node": "e1", "state": "scheduled", "peers": [gone]})
    assert cli.main(["fullsync", "status", "--node", "e1"]) == Exit.OK
    shown = capsys.readouterr().out
    assert "to-west (delisted)" in shown
    assert "that are not proven yet" not in shown
    other = {**PEER, "queue_of_other": "north", "reason": "queue to-west belongs to north"}
    listener.respond("/admin/fullsync?results=5", {"node": "e1", "state": "scheduled", "peers": [other]})
    assert cli.main(["fullsync", "status", "--node", "e1"]) == Exit.OK
    shown = capsys.readouterr().out
    assert "to-west (of north)" in shown
    assert "queue to-west belongs to north" in shown
    listener.respond("/admin/fullsync/set", {"acted": {"e1": ["west"]}, "peers": [other, {**other, "name": "south"}]})
    assert cli.main(["fullsync", "set", "west", "--queue", "to-west", "--by", "ann"]) == Exit.OK
    shown = capsys.readouterr().out
    assert shown == "e1: checks of west are changed\nwarning: west: queue to-west belongs to north\n"
    waits = {**PEER, "gaps_wait_s": 35.0, "gaps_queues": ["rt"]}
    listener.respond("/admin/fullsync?results=5", {"node": "e1", "state": "scheduled", "peers": [waits]})
    assert cli.main(["fullsync", "status", "--node", "e1"]) == Exit.OK
    shown = capsys.readouterr().out
    assert "gaps of queue rt that are not proven yet: 2 (`isthmus gaps rt`); checked again in 35" in shown
    assert "does not compare" not in shown
    typed = {**waits, "gaps_uncompared": 1, "gaps_uncompared_types": ["a", "b"]}
    listener.respond("/admin/fullsync?results=5", {"node": "e1", "state": "scheduled", "peers": [typed]})
    assert cli.main(["fullsync", "status", "--node", "e1"]) == Exit.OK
    assert "1 of these gaps may miss changes of bucket types that west does not compare" in capsys.readouterr().out
    earlier = {name: value for name, value in PEER.items() if name != "gaps_queues"}
    listener.respond("/admin/fullsync?results=5", {"node": "e1", "state": "scheduled", "peers": [earlier]})
    assert cli.main(["fullsync", "status", "--node", "e1"]) == Exit.OK
    assert "west: gaps that are not proven yet: 2 (`isthmus gaps`)" in capsys.readouterr().out


def test_the_schedule_shows_what_was_left_out_what_is_tried_again_and_what_is_due(
    listener: FakeAdminListener, capsys: pytest.CaptureFixture[str]
) -> None:
    """Left-out, retried and due checks are shown in the order of their times."""
    skipped = [{"at_ms": AT_MS, "kind": "hour", "reason": "late"}]
    checks = [{"at_ms": AT_MS + 9_000_000, "kind": "all"}]
    peer = {"name": "west", "suspended": False, "skipped": skipped, "checks": checks}
    retry = {"at_ms": AT_MS + 30_000, "kind": "auto", "tries": 2}
    for told in (None, retry):
        listener.respond("/admin/fullsync/schedule", {"node": "e1", "peers": [{**peer, "retry": told}]})
        assert cli.main(["fullsync", "schedule"]) == Exit.OK
        lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
        states = [line.partition("Z ")[2] for line in lines[1:]]
        tried = [] if told is None else ["auto tried again, for the 2. time"]
        assert states == ["hour left out: late", *tried, "all due"]


@pytest.mark.parametrize(
    ("verdicts", "code"),
    [
        (["in-sync"], Exit.OK),
        (["in-sync", "repaired"], Exit.DIFFERS),
        (["differing"], Exit.DIFFERS),
        (["repaired", "incomplete"], Exit.UNAVAILABLE),
        (["timed-out", "in-sync"], Exit.UNAVAILABLE),
        (["incomplete", "error"], Exit.USAGE),
        ([], Exit.UNAVAILABLE),
    ],
)
def test_the_exit_code_of_a_run_is_that_of_the_result_that_proves_least(
    listener: FakeAdminListener, capsys: pytest.CaptureFixture[str], verdicts: list[str], code: Exit
) -> None:
    """0 only when everything is in sync; 1 differs, 2 error, 3 not all was looked at. The first keys that differed are
    named."""
    listener.respond("/admin/fullsync/run", {"peer": "west", "at_ms": AT_MS}, 202)
    peer = {**PEER, "results": [result("error") | {"began_ms": AT_MS - 1}, *map(result, verdicts)]}
    listener.respond("/admin/fullsync?results=200", {"running": None, "peers": [peer]})
    for output in ("table", "json"):
        assert cli.main(["fullsync", "run", "all", "--wait", "-o", output]) == code
        shown = capsys.readouterr().out
        assert ("west: missing@sink: default/b k%20" if output == "table" else '"key": "k%20"') in shown


@pytest.mark.parametrize(("kind", "words"), [("auto", "auto leaves it out"), ("all", "the node's log has the reason")])
def test_a_run_without_a_result_is_reported(
    listener: FakeAdminListener, capsys: pytest.CaptureFixture[str], kind: str, words: str
) -> None:
    """Where `auto` chooses to compare nothing, or a node could not keep the result, the command reports that there is
    no result."""
    listener.respond("/admin/fullsync/run", {"peer": "west", "at_ms": AT_MS}, 202)
    listener.respond("/admin/fullsync?results=200", {"running": None, "peers": [{**PEER, "results": []}]})
    assert cli.main(["fullsync", "run", kind, "--wait"]) == Exit.UNAVAILABLE
    assert words in capsys.readouterr().err


def test_a_peer_that_is_removed_while_it_is_checked_is_the_reason(
    listener: FakeAdminListener, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its results go with it; the command says so, and does not send anyone to a log (world, seed 714)."""
    listener.respond("/admin/fullsync/run", {"peer": "west", "at_ms": AT_MS}, 202)
    listener.respond("/admin/fullsync?results=200", {"running": None, "peers": []})
    assert cli.main(["fullsync", "run", "hour", "--wait", "-o", "json"]) == Exit.UNAVAILABLE
    shown = capsys.readouterr()
    assert '"peer-removed"' in shown.err + shown.out
    assert "west: removed by an operator during the check" in shown.err + shown.out
    listener.respond("/admin/fullsync/run", {"peer": None, "peers": ["west", "north"], "at_ms": AT_MS}, 202)
    listener.respond(
        "/admin/fullsync?results=200", {"running": None, "peers": [{**PEER, "name": "north", "results": []}]}
    )
    assert cli.main(["fullsync", "run", "hour", "--wait"]) == Exit.UNAVAILABLE
    told = capsys.readouterr().err
    assert "north: the check has no result: the node's log has the reason; west: removed by an operator" in told


def test_a_run_without_a_peer_is_of_all_of_the_node(
    listener: FakeAdminListener, capsys: pytest.CaptureFixture[str]
) -> None:
    """Both peers are checked, the results of both are shown, and the worst result sets the exit code."""
    listener.respond("/admin/fullsync/run", {"peer": None, "peers": ["west", "north"], "at_ms": AT_MS}, 202)
    peers = [
        {**PEER, "name": name, "results": [result(verdict)]}
        for name, verdict in (("west", "in-sync"), ("north", "differing"))
    ]
    listener.respond("/admin/fullsync?results=200", {"running": None, "peers": peers})
    assert cli.main(["fullsync", "run", "all"]) == Exit.OK
    assert listener.posted[-1][1]["peer"] is None
    assert "west, north: a check of kind all has begun, one after the other" in capsys.readouterr().out
    assert cli.main(["fullsync", "run", "--wait"]) == Exit.DIFFERS
    rows = [line.split()[:1] for line in capsys.readouterr().out.splitlines()]
    assert [row for row in rows if row in (["west"], ["north"])] == [["west"], ["north"]]


def test_an_empty_peer_is_no_peer(listener: FakeAdminListener, capsys: pytest.CaptureFixture[str]) -> None:
    """An unset variable names no peer: it is not the only one that there is."""
    for words in (["run"], ["suspend"], ["resume"], ["clear-range"]):
        assert cli.main(["fullsync", *words, "--peer", ""]) == Exit.USAGE
        assert "it is empty" in capsys.readouterr().err
    assert listener.posted == []


def test_a_run_that_is_waited_for_is_this_one_alone(
    listener: FakeAdminListener, capsys: pytest.CaptureFixture[str]
) -> None:
    """The check that was due meanwhile begins as soon as this one ends: neither is it waited for, nor are its results
    taken for those of this one."""
    listener.respond("/admin/fullsync/run", {"peer": "west", "by": "ann", "at_ms": AT_MS}, 202)
    others = [result("error") | {"by": by, "began_ms": AT_MS + 5} for by in ("", "repairs to be proven")]
    peer = {**PEER, "results": [result("in-sync") | {"by": "ann"}, *others]}
    for running in (
        {"peer": "west", "by": "", "began_ms": AT_MS + 9},
        {"peer": "north", "by": "ann", "began_ms": AT_MS + 9},
    ):
        listener.respond("/admin/fullsync?results=200", {"running": running, "peers": [peer]})
        assert cli.main(["fullsync", "run", "--wait", "--by", "ann", "--peer", "west"]) == Exit.OK
        assert "error" not in capsys.readouterr().out


def test_a_suspension_is_reported_by_node_and_a_silent_node_is_code_3(
    listener: FakeAdminListener, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nodes without such a peer are not named."""
    listener.respond("/admin/fullsync/suspend", {"acted": {"e1": ["west"], "e2": [], "e3": None}})
    assert cli.main(["fullsync", "suspend", "--by", "ann", "--reason", "move"]) == Exit.UNAVAILABLE
    said = capsys.readouterr()
    assert said.out == "e1: checks of west are suspended\n"
    assert "does not answer, and may be as it was for some seconds: e3" in said.err
    assert listener.posted[-1][1] == {"peer": None, "node": None, "by": "ann", "reason": "move"}
    listener.respond("/admin/fullsync/suspend", {"acted": {"e1": ["west"]}, "later": ["e4"]})
    assert cli.main(["fullsync", "suspend"]) == Exit.OK
    assert capsys.readouterr().out.splitlines()[1] == "e4: down; follows when it is back"
    listener.respond("/admin/fullsync/resume", {"acted": {"e1": ["west"]}})
    assert cli.main(["fullsync", "resume", "--node", "e1", "--peer", "west"]) == Exit.OK
    assert capsys.readouterr().out == "e1: checks of west are due again\n"


def test_settings_of_a_peer_have_the_keys_of_a_file(
    listener: FakeAdminListener, capsys: pytest.CaptureFixture[str]
) -> None:
    """Settings that are not given are not sent; --default excludes other settings; kinds and counts are validated
    before a request is sent."""
    for path in ("set", "peers/add", "peers/remove"):
        listener.respond(f"/admin/fullsync/{path}", {"acted": {"e1": ["west"]}, "later": []})
    words = ["set", "west", "--wants", "all=24,auto=0", "--queue", "q", "--one-way", "--by", "ann", "--node", "e1"]
    assert cli.main(["fullsync", *words]) == Exit.OK
    values = {"all": 24, "auto": 0, "queue": "q", "bidirectional": False}
    expected = {"peer": "west", "node": "e1", "values": values, "default": False, "by": "ann", "reason": ""}
    assert listener.posted[-1] == ("/admin/fullsync/set", expected)
    assert cli.main(["fullsync", "set", "west", "--default", "--by", "ann"]) == Exit.OK
    assert listener.posted[-1][1] == {**expected, "node": None, "values": {}, "default": True}
    added = ["peer", "add", "north", "--urls", "http://n1:8098", "--queue", "q", "--bucket-types", "*"]
    assert cli.main(["fullsync", *added]) == Exit.OK
    assert listener.posted[-1][1]["values"] == {"urls": "http://n1:8098", "queue": "q", "bucket_types": "*"}
    assert cli.main(["fullsync", "peer", "remove", "north"]) == Exit.OK
    assert listener.posted[-1][0] == "/admin/fullsync/peers/remove"
    told = len(listener.posted)
    for slip in (
        ["--wants", "often=3"],
        ["--wants", "all=-1"],
        ["--wants", "all=1,all=2"],
        [],
        ["--default", "--queue", "q"],
    ):
        assert cli.main(["fullsync", "set", "west", *slip]) == Exit.USAGE
    assert len(listener.posted) == told
    capsys.readouterr()


def test_status_shows_what_operators_set(listener: FakeAdminListener, capsys: pytest.CaptureFixture[str]) -> None:
    """Status shows who set what, when and why, a removed peer, and settings that this node ignores."""
    act = {"by": "ann", "at_ms": AT_MS, "reason": "move"}
    peer = {**PEER, "set": [{**act, "values": {"all": 24}}]}
    answer = {
        "node": "e1", "state": "scheduled", "peers": [peer], "removed": [{"name": "north", **act}],
        "left_out": [{"name": "south", "reason": "all: 500 is out of range"}],
    }  # fmt: skip
    listener.respond("/admin/fullsync?results=5", answer)
    assert cli.main(["fullsync", "status", "--node", "e1"]) == Exit.OK
    shown = capsys.readouterr().out
    assert "west: all = 24 set by ann, 2023-11-14 22:13:20Z: move" in shown
    assert "north: removed by ann, 2023-11-14 22:13:20Z: move" in shown
    assert "warning: south: does not count on this node: all: 500 is out of range" in shown


@pytest.mark.parametrize(("since", "before"), [("yesterday", "2026-01-01"), ("2026-01-02", "2026-01-01T23:59")])
def test_an_invalid_range_is_refused_before_any_request(listener: FakeAdminListener, since: str, before: str) -> None:
    """A time that cannot be read, or two in the wrong order: a usage error."""
    assert cli.main(["fullsync", "set-range", since, before]) == Exit.USAGE
    assert listener.posted == []
