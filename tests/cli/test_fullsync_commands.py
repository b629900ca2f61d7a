"""`isthmus fullsync`: what is shown, and the exit codes that scripts go by."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from node.cli import main as cli
from node.cli.exits import Exit
from tests.cli.test_remote_commands import ToldListener

AT_MS = 1_700_000_000_000

PEER: dict[str, Any] = {
    "name": "west", "state": "scheduled", "reason": "24 checks a day", "queue": "to-west", "next_ms": AT_MS,
    "next_kind": "auto", "proven_ms": {"default": None}, "shared_by": ["e1"], "unknown": ["e3"],
    "warning": "only e1 compares with it", "range": {"since_ms": AT_MS, "before_ms": AT_MS + 1_000, "bucket": "b"},
    "gaps_open": 2, "results": [],
    "named": [{"bucket_type": "default", "bucket": "b", "key": "k%20", "difference": "missing@sink"}],
}  # fmt: skip


@pytest.fixture
def listener(monkeypatch: pytest.MonkeyPatch) -> Iterator[ToldListener]:
    """A node that compares with one cluster."""
    found = ToldListener()
    for results in (0, 5):
        found.tell(f"/admin/fullsync?results={results}", {"node": "e1", "state": "scheduled", "peers": [PEER]})
    monkeypatch.setenv("ISTHMUS_ADMIN", found.url)
    yield found
    found.close()


def result(verdict: str) -> dict[str, Any]:
    """Of a check that began just now."""
    return {"began_ms": AT_MS, "kind": "all", "bucket_type": "default", "verdict": verdict, "reason": "because"}


def test_status_tells_who_compares_what_is_next_and_what_is_open(
    listener: ToldListener, capsys: pytest.CaptureFixture[str]
) -> None:
    """One node alone is warned of, one that is silent named; a range that waits and gaps are told."""
    assert cli.main(["fullsync", "status"]) == Exit.OK
    assert listener.posted == []
    shown = capsys.readouterr().out
    for line in (
        "west: compared by e1; e3 does not answer",
        "warning: west: only e1 compares with it",
        "west: the next check of kind range looks at changes of 2023-11-14 22:13:20Z to 2023-11-14 22:13:21Z in bucket",
        "west: gaps of queue to-west that are not proven yet: 2 (`isthmus gaps to-west`)",
    ):
        assert line in shown
    gone = {**PEER, "queue_delisted": True, "gaps_open": None}
    listener.tell("/admin/fullsync?results=5", {"node": "e1", "state": "scheduled", "peers": [gone]})
    assert cli.main(["fullsync", "status"]) == Exit.OK
    shown = capsys.readouterr().out
    assert "to-west (delisted)" in shown
    assert "gaps of queue" not in shown
    waits = {**PEER, "gaps_wait_s": 35.0}
    listener.tell("/admin/fullsync?results=5", {"node": "e1", "state": "scheduled", "peers": [waits]})
    assert cli.main(["fullsync", "status"]) == Exit.OK
    assert "(`isthmus gaps to-west`); checked again in 35" in capsys.readouterr().out


def test_the_schedule_shows_what_was_left_out_what_is_tried_again_and_what_is_due(
    listener: ToldListener, capsys: pytest.CaptureFixture[str]
) -> None:
    """In the order of their times."""
    skipped = [{"at_ms": AT_MS, "kind": "hour", "reason": "late"}]
    checks = [{"at_ms": AT_MS + 9_000_000, "kind": "all"}]
    peer = {"name": "west", "suspended": False, "skipped": skipped, "checks": checks}
    retry = {"at_ms": AT_MS + 30_000, "kind": "auto", "tries": 2}
    for told in (None, retry):
        listener.tell("/admin/fullsync/schedule", {"node": "e1", "peers": [{**peer, "retry": told}]})
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
def test_the_exit_code_of_a_run_is_that_of_the_result_that_says_least(
    listener: ToldListener, capsys: pytest.CaptureFixture[str], verdicts: list[str], code: Exit
) -> None:
    """0 only when everything is in sync; 1 differs, 2 error, 3 not all was looked at. The first keys that differed are
    named."""
    listener.tell("/admin/fullsync/run", {"peer": "west", "at_ms": AT_MS}, 202)
    peer = {**PEER, "results": [result("error") | {"began_ms": AT_MS - 1}, *map(result, verdicts)]}
    listener.tell("/admin/fullsync?results=200", {"running": None, "peers": [peer]})
    for output in ("table", "json"):
        assert cli.main(["fullsync", "run", "all", "--wait", "-o", output]) == code
        shown = capsys.readouterr().out
        assert ("west: missing@sink: default/b k%20" if output == "table" else '"key": "k%20"') in shown


@pytest.mark.parametrize(("kind", "words"), [("auto", "auto leaves it out"), ("all", "the node's log says why")])
def test_a_run_without_a_result_is_told(
    listener: ToldListener, capsys: pytest.CaptureFixture[str], kind: str, words: str
) -> None:
    """Where `auto` chooses to look at nothing, or a node could not keep what was found, there is nothing to show, and
    that is said."""
    listener.tell("/admin/fullsync/run", {"peer": "west", "at_ms": AT_MS}, 202)
    listener.tell("/admin/fullsync?results=200", {"running": None, "peers": [{**PEER, "results": []}]})
    assert cli.main(["fullsync", "run", kind, "--wait"]) == Exit.UNAVAILABLE
    assert words in capsys.readouterr().err


def test_an_empty_peer_is_no_peer(listener: ToldListener, capsys: pytest.CaptureFixture[str]) -> None:
    """A variable that nobody has set names no peer: it is not the only one that there is."""
    for words in (["run"], ["suspend"], ["resume"], ["clear-range"]):
        assert cli.main(["fullsync", *words, "--peer", ""]) == Exit.USAGE
        assert "it is empty" in capsys.readouterr().err
    assert listener.posted == []


def test_a_run_that_is_waited_for_is_this_one_alone(listener: ToldListener, capsys: pytest.CaptureFixture[str]) -> None:
    """The check that was due meanwhile begins as soon as this one ends: neither is it waited for, nor are its results
    taken for those of this one."""
    listener.tell("/admin/fullsync/run", {"peer": "west", "by": "ann", "at_ms": AT_MS}, 202)
    others = [result("error") | {"by": by, "began_ms": AT_MS + 5} for by in ("", "repairs to be proven")]
    peer = {**PEER, "results": [result("in-sync") | {"by": "ann"}, *others]}
    for running in (
        {"peer": "west", "by": "", "began_ms": AT_MS + 9},
        {"peer": "north", "by": "ann", "began_ms": AT_MS + 9},
    ):
        listener.tell("/admin/fullsync?results=200", {"running": running, "peers": [peer]})
        assert cli.main(["fullsync", "run", "--wait", "--by", "ann", "--peer", "west"]) == Exit.OK
        assert "error" not in capsys.readouterr().out


def test_a_suspension_is_told_by_node_and_a_silent_node_is_code_3(
    listener: ToldListener, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nodes that have no such peer are not named."""
    listener.tell("/admin/fullsync/suspend", {"acted": {"e1": ["west"], "e2": [], "e3": None}})
    assert cli.main(["fullsync", "suspend", "--by", "ann", "--reason", "move"]) == Exit.UNAVAILABLE
    said = capsys.readouterr()
    assert said.out == "e1: checks of west are suspended\n"
    assert "does not answer, or could not save it, and may be as it was: e3" in said.err
    assert listener.posted[-1][1] == {"peer": None, "node": None, "by": "ann", "reason": "move"}
    listener.tell("/admin/fullsync/resume", {"acted": {"e1": ["west"]}})
    assert cli.main(["fullsync", "resume", "--node", "e1", "--peer", "west"]) == Exit.OK
    assert capsys.readouterr().out == "e1: checks of west are due again\n"


@pytest.mark.parametrize(("since", "before"), [("yesterday", "2026-01-01"), ("2026-01-02", "2026-01-01T23:59")])
def test_a_range_that_is_none_is_refused_before_anybody_is_asked(
    listener: ToldListener, since: str, before: str
) -> None:
    """A time that cannot be read, or two in the wrong order: a usage error."""
    assert cli.main(["fullsync", "set-range", since, before]) == Exit.USAGE
    assert listener.posted == []
