"""`isthmus events` against a listener that answers from a script."""

from __future__ import annotations

import json
from typing import Any

import pytest

from isthmus.node.cli import events
from isthmus.node.cli.exit_codes import Exit
from isthmus.node.cli.main import main
from isthmus.repl.machine import SystemMachine
from tests.support.fake_admin_listener import FakeAdminListener

AT_MS = 1_700_000_000_000


def event(number: int, node: str = "n1", **changed: Any) -> dict[str, Any]:
    """An event of /admin/events."""
    named = {"id": f"e{number}", "at_ms": AT_MS + number, "node": node, "kind": "replica", "event": "isr.shrunk"}
    return {**named, "level": "info", "text": f"partition {number}", **changed}


def test_events_are_a_timeline(listener: FakeAdminListener, capsys: pytest.CaptureFixture[str]) -> None:
    """The oldest first, with time, node, kind and text; nodes without an answer are named; JSON has all."""
    answer = {"events": [event(1), event(2, "n2")], "unknown": {"n3": "not alive"}, "at_ms": AT_MS}
    listener.respond("/admin/events?limit=100", answer)
    assert main(["events"]) == Exit.OK
    out, err = capsys.readouterr()
    assert [" ".join(line.split()) for line in out.splitlines()[1:]] == [
        "2023-11-14 22:13:20Z n1 replica isr.shrunk partition 1",
        "2023-11-14 22:13:20Z n2 replica isr.shrunk partition 2",
    ]
    assert err == "isthmus: the events of node n3 are unknown: not alive\n"
    listener.respond("/admin/events?node=n2&limit=100", {"events": [event(2, "n2")], "unknown": {}})
    assert main(["events", "-o", "json", "--node", "n2"]) == Exit.OK
    assert [row["id"] for row in json.loads(capsys.readouterr().out)["events"]] == ["e2"]


def test_what_comes_again_and_again_is_one_line(
    listener: FakeAdminListener, capsys: pytest.CaptureFixture[str]
) -> None:
    """Equal events of a node within ten minutes of each other are one, with how often and since when; others, acts,
    and the same after a longer pause are lines of their own. JSON has each."""
    minute = 60_000
    fault = {"text": "a peer does not take acknowledgements, as it answered 3 s ago", "event": "sink.ack_unanswered"}
    later = {**fault, "text": fault["text"].replace("3 s", "63 s")}
    rows = [
        event(1, **fault),
        event(2, "n2", **fault),
        event(3, at_ms=AT_MS + minute, **later),
        event(4, kind="act", text="suspend", at_ms=AT_MS + minute),
        event(5, kind="act", text="suspend", at_ms=AT_MS + minute),
        event(6, at_ms=AT_MS + 2 * minute, **fault),
        event(7, at_ms=AT_MS + 30 * minute, **fault),
    ]
    listener.respond("/admin/events?limit=100", {"events": rows, "unknown": {}})
    assert main(["events"]) == Exit.OK
    lines = capsys.readouterr().out.splitlines()[1:]
    assert len(lines) == 5
    assert "(3 times since 2023-11-14 22:13:20Z)" in next(line for line in lines if "22:15:20Z" in line)
    assert [("times" in line) for line in lines].count(True) == 1
    assert main(["events", "-o", "json"]) == Exit.OK
    assert len(json.loads(capsys.readouterr().out)["events"]) == 7


def test_since_is_a_time_or_a_while_ago(
    listener: FakeAdminListener, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Both forms become milliseconds since 1970."""
    monkeypatch.setattr(SystemMachine, "wall_ns", staticmethod(lambda: AT_MS * 1_000_000))
    listener.respond(f"/admin/events?since={AT_MS - 900_000}&kind=node&limit=5", {"events": []})
    assert main(["events", "--since", "15m", "--kind", "node", "--limit", "5"]) == Exit.OK
    listener.respond("/admin/events?since=1735689600000&limit=100", {"events": []})
    assert main(["events", "--since", "2025-01-01"]) == Exit.OK
    assert main(["events", "--since", "1m ago"]) == Exit.USAGE
    assert "or as 15m for 15 minutes ago" in capsys.readouterr().err
    assert main(["events", "--help"]) == Exit.OK
    assert "or 15m for 15 minutes ago" in " ".join(capsys.readouterr().out.split())
    assert main(["events", "--timeout", "1s"]) == Exit.USAGE
    assert "--timeout ends --follow" in capsys.readouterr().err


@pytest.fixture
def polls(listener: FakeAdminListener, monkeypatch: pytest.MonkeyPatch) -> None:
    """--follow asks quickly, always for the same span."""
    monkeypatch.setattr(events, "FOLLOW_S", 0.02)
    monkeypatch.setattr(events, "BACK_MAX_MS", events.OVERLAP_MS)


FURTHER = f"/admin/events?last={events.OVERLAP_MS}&limit=1000"


@pytest.mark.usefixtures("polls")
def test_follow_prints_each_event_once(
    listener: FakeAdminListener, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each poll overlaps the one before a little, by each node's clock; an event with an earlier time than printed ones
    is still printed. --timeout or Ctrl-C ends it with code 0."""
    listener.respond("/admin/events?limit=100", {"events": [event(1), event(2)], "at_ms": AT_MS})
    behind = event(2, "n2", at_ms=AT_MS - 3_600_000)
    listener.respond(FURTHER, {"events": [behind, event(2), event(2, id="a1")]})
    assert main(["events", "--follow", "--timeout", "1s", "-o", "json"]) == Exit.OK
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(line["node"], line["id"]) for line in lines] == [("n1", "e1"), ("n1", "e2"), ("n2", "e2"), ("n1", "a1")]

    def interrupted(_seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(events.time, "sleep", interrupted)
    assert main(["events", "--follow"]) == Exit.OK
    assert capsys.readouterr().out.splitlines()[0] == "2023-11-14 22:13:20Z n1 isr.shrunk: partition 1"


@pytest.mark.usefixtures("polls")
def test_follow_goes_on_after_a_failure(listener: FakeAdminListener, capsys: pytest.CaptureFixture[str]) -> None:
    """An answer that fails, and nodes that do not answer any more, are noted once, and when they are back."""
    listener.respond("/admin/events?limit=100", {"events": [event(1)]})
    requests = 0

    def count(_headers: Any) -> None:
        nonlocal requests
        requests += 1
        if requests == 2:
            listener.respond(FURTHER, {"error": "it is stopping", "reason": "not-ready"}, 503)
        elif requests == 4:
            listener.respond(FURTHER, {"events": [event(2)], "unknown": {"n3": "not alive"}})
        elif requests == 6:
            listener.respond(FURTHER, {"events": [event(2)], "unknown": {}})

    listener.on_headers = count
    assert main(["events", "--follow", "--timeout", "3s"]) == Exit.OK
    out, err = capsys.readouterr()
    assert len(out.splitlines()) == 2
    notes = err.splitlines()
    assert "it is stopping" in notes[0]
    assert notes[0].endswith("--follow goes on")
    assert notes[1:] == [
        "isthmus: the cluster answers again",
        "isthmus: the events of node n3 are unknown: not alive",
        "isthmus: the events of node n3 are known again",
    ]


@pytest.mark.usefixtures("polls")
def test_follow_says_where_events_are_left_out(listener: FakeAdminListener, capsys: pytest.CaptureFixture[str]) -> None:
    """A full answer whose oldest event was not printed before may have left out events."""
    listener.respond("/admin/events?limit=100", {"events": [event(1)]})
    listener.respond(FURTHER, {"events": [event(number) for number in range(2, 1_002)]})
    assert main(["events", "--follow", "--timeout", "3s"]) == Exit.OK
    out, err = capsys.readouterr()
    assert len(out.splitlines()) == 1_001
    assert err == "isthmus: more than 1,000 events at once: older ones of the last 10 s are left out\n"
