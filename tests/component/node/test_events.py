"""Events of several nodes in one timeline."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from isthmus.node.observability.events import RecentEvents
from isthmus.node.services.journal_query import Event, EventResponder, NodeAudit, ReadEvents, act_events, merged_events
from tests.support.journals import journal_in


class Checks:
    """A full-sync with two results."""

    def checks(self, _results: int) -> Any:
        common = {"bucket_type": "default", "reason": ""}
        rows = [
            SimpleNamespace(began_ms=1_000, seconds=2.0, kind="all", verdict="in-sync", **common),
            SimpleNamespace(began_ms=9_000, seconds=1.0, kind="day", verdict="differing", **common),
        ]
        return SimpleNamespace(peers=[SimpleNamespace(name="west", results=rows)])


async def test_results_of_checks_are_events_at_their_end(tmp_path: Path) -> None:
    """The event has the verdict; a difference is a warning."""
    log = RecentEvents()
    log.keep(None, "info", {"event": "node.up", "why": "known-secret-1", "token": "abc", "peer": "n2"})
    journal = journal_in(tmp_path, recent=log)
    clock = SimpleNamespace(wall_ms=lambda: 12_000)
    responder = EventResponder("n1", journal, Checks(), clock, lambda: ["known-secret-1"])  # type: ignore[arg-type]
    found = await responder.respond(ReadEvents(3_000, 10))
    assert [(each.at_ms, each.event, each.level) for each in found[:2]] == [
        (3_000, "check.in-sync", "info"), (10_000, "check.differing", "warning"),
    ]  # fmt: skip
    assert found[0].text == "west, bucket type default, all: in-sync"
    assert (found[2].event, found[2].kind) == ("node.up", "node")
    assert [each.event for each in await responder.respond(ReadEvents(0, 10, "check", 3_000))] == ["check.differing"]
    assert [each.event for each in await responder.respond(ReadEvents(0, 1, "node"))] == ["node.up"]
    assert found[2].text == "why ***, token ***, peer n2"
    assert found[2].subject == "peer n2"
    assert found[2].id == f"e{log.began_ms}-1", "unique over restarts"
    await journal.stop()


def test_acts_and_events_are_one_order() -> None:
    """The newest of all, the oldest first; a refused act is a warning."""
    act = {"id": 7, "at_ms": 5, "what": {"act": "queue.clear"}, "outcome": "refused", "via": "http", "from": "h:1"}
    acts = act_events({"n1": NodeAudit([act], False, 0, 0), "n2": None})
    assert (acts[0].text, acts[0].level, acts[0].id) == ("refused, by h:1 (http)", "warning", "a7")
    events = [Event(str(at), at, "n2", "node", "x", "info", "") for at in (1, 9, 4)]
    assert [each.at_ms for each in merged_events([*acts, *events], 3)] == [4, 5, 9]
