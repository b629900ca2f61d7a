"""Nodes of this version and of the one before journals, which kept events in memory, in one cluster."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec

from isthmus.node.observability.events import RecentEvents
from isthmus.node.services.cluster_query import ClusterQuery
from isthmus.node.services.journal_query import (
    AUDIT,
    EVENTS,
    AuditResponder,
    ClusterJournal,
    EventResponder,
    ReadAudit,
    ReadEvents,
    WantedActs,
)
from tests.support.journals import journal_in

ACT = {"at_ms": 7_000, "node": "n1", "who": {"by": "ann"}, "what": {"act": "x"}, "outcome": "done", "via": "cli"}

AUDIT_REQUEST = b'{"since_ms": 5, "limit": 10, "before": {"n1": 7}, "wanted": {"who": "ann"}, "last_ms": 60000}'
AUDIT_ANSWER = (
    b'{"acts": [{"id": 3, "at_ms": 9, "node": "n2"}], "more": true, "unreadable": 1, "lost": 2, "read_to": [3, 9]}'
)
EVENTS_REQUEST = b'{"since_ms": 5, "limit": 10, "kind": "node", "last_ms": 60000}'
EVENTS_ANSWER = (
    b'[{"id": "e5-1", "at_ms": 8, "node": "n2", "kind": "node", "event": "node.up", "level": "info", "text": "http x"}]'
)
"""Bodies that the version before sends."""


class EarlierEvent(msgspec.Struct, frozen=True):
    """An event, as the version before reads it."""

    id: str
    at_ms: int
    node: str
    kind: str
    event: str
    level: str
    text: str


class EarlierAudit(msgspec.Struct, frozen=True):
    """A page of acts, as the version before reads it."""

    acts: list[dict[str, Any]]
    more: bool
    unreadable: int
    lost: int
    read_to: tuple[int, int] | None = None


class EarlierNode:
    """Node n2, of the version before; keeps what it is asked. Implements `cluster_query.NodeLinks`."""

    def __init__(self) -> None:
        self.asked: dict[str, bytes] = {}

    async def request(self, node: str, method: str, body: bytes, _timeout_ms: int) -> bytes:
        """See NodeLinks. A method that it does not know is an error."""
        assert node == "n2"
        self.asked[method] = body
        return {"audit": AUDIT_ANSWER, "events": EVENTS_ANSWER}[method]


class Checks:
    """A full-sync without results."""

    def checks(self, _results: int) -> Any:
        return SimpleNamespace(peers=[])


@asynccontextmanager
async def node_of_this_version(directory: Path, links: EarlierNode) -> AsyncIterator[ClusterQuery]:
    """Node n1, with an act and an event that a process before wrote to the disk."""
    recent = RecentEvents()
    before = journal_in(directory, recent=recent)
    before.start()
    recent.keep(None, "info", {"event": "node.up", "http": "y", "peer": "n3"})
    await before.append(ACT)
    await before.stop()
    journal, clock = journal_in(directory), SimpleNamespace(wall_ms=lambda: 8_000)
    query = ClusterQuery("n1", links)
    query.serve(AUDIT, AuditResponder("n1", journal, clock))
    query.serve(EVENTS, EventResponder("n1", journal, Checks(), clock, list))  # type: ignore[arg-type]
    try:
        yield query
    finally:
        await journal.stop()


async def test_a_node_of_the_version_before_gets_its_answers(tmp_path: Path) -> None:
    """To the bytes that it sends, in the form that it reads: acts, and events from before a restart, too."""
    async with node_of_this_version(tmp_path, EarlierNode()) as query:
        handlers = query.request_handlers()
        acts = await handlers["audit"]("n2", AUDIT_REQUEST)
        events = await handlers["events"]("n2", EVENTS_REQUEST)
    page = msgspec.convert(json.loads(acts), EarlierAudit)
    assert page == EarlierAudit([{"id": 1, **ACT}], False, 0, 0, (1, 7_000))
    found = msgspec.convert(json.loads(events), list[EarlierEvent])
    assert [(each.node, each.kind, each.event, each.level, each.text) for each in found] == [
        ("n1", "node", "node.up", "info", "http y, peer n3")
    ]


async def test_a_node_of_the_version_before_is_asked_as_it_was(tmp_path: Path) -> None:
    """The bodies have the bytes that it knows, and its answers are in both views."""
    links = EarlierNode()
    async with node_of_this_version(tmp_path, links) as query:
        journal = ClusterJournal(query)
        acts = await journal.acts(ReadAudit(5, 10, {"n1": 7}, WantedActs(), 60_000), {"n1", "n2"})
        assert ([act["at_ms"] for act in acts.acts], acts.following, acts.unknown) == ([7_000, 9], {"n2": 3}, {})
        await journal.acts(ReadAudit(5, 10, {"n1": 7}, WantedActs(who="ann"), 60_000), {"n2"})
        assert links.asked == {"audit": AUDIT_REQUEST}
        await journal.events(ReadEvents(5, 10, "node", 60_000), {"n2"})
        assert links.asked == {"audit": AUDIT_REQUEST, "events": EVENTS_REQUEST}, "no acts are asked for"
        found = await journal.events(ReadEvents(5, 10), {"n1", "n2"})
        assert [(each.node, each.event, each.subject) for each in found.events] == [
            ("n2", "node.up", ""), ("n2", "unknown", ""), ("n1", "x", ""), ("n1", "node.up", "peer n3"),
        ]  # fmt: skip
        assert found.unknown == {}
