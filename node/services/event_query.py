"""Events of all nodes in one order: those of the nodes' journals, acts among them, and full-sync's results."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import msgspec

from isthmus.node.http.answer_limits import ROWS_MAX
from isthmus.node.observability.journal import Journal
from isthmus.node.observability.line_files import Line
from isthmus.node.observability.redaction import Redactor
from isthmus.node.services.audit_query import NodeAudit, begin_of
from isthmus.node.services.cluster_query import JsonBody, Query
from isthmus.node.services.fullsync_status import FullSyncStatus
from isthmus.repl.model.ports import TimeSource

METHOD: Final = "events"

ACT: Final = "act"
CHECK: Final = "check"

RESULTS_MAX: Final = 200
"""Newest results of a peer that are looked at: those of some days."""


class ReadEvents(msgspec.Struct, frozen=True):
    """The newest `limit` events of a node (of a kind) from `since_ms` on, of the last `last_ms` by its own clock."""

    since_ms: int
    limit: int
    kind: str | None = None
    last_ms: int | None = None


class Event(msgspec.Struct, frozen=True):
    """Something that happened. `id` is unique among the events of a node, over its restarts, too."""

    id: str
    at_ms: int
    node: str
    kind: str
    event: str
    level: str
    text: str
    subject: str = ""
    """What it is about, such as a partition; nodes of the version before do not send it."""


EVENTS: Final[Query[ReadEvents, list[Event]]] = Query(
    METHOD, JsonBody(METHOD, ReadEvents), JsonBody(METHOD, list[Event])
)


class EventResponder:
    """Answers EVENTS from this node's journal and the results of its checks. `secrets` gives those that are known."""

    def __init__(
        self,
        node: str,
        journal: Journal,
        fullsync: FullSyncStatus,
        time: TimeSource,
        secrets: Callable[[], list[str]],
    ) -> None:
        self._node = node
        self._journal = journal
        self._fullsync = fullsync
        self._time = time
        self._secrets = secrets

    async def respond(self, request: ReadEvents) -> list[Event]:
        """See Responder."""
        limit = max(1, min(request.limit, ROWS_MAX))
        clean = Redactor(self._secrets()).without_known
        since_ms = begin_of(request.since_ms, request.last_ms, self._time)
        page = await self._journal.events(since_ms, limit, request.kind)
        found = [event_of(line, self._node, clean) for line in page.lines]
        if page.unread:
            found.append(
                Event("unread", self._time.wall_ms(), self._node, "problem", "journal.unread", "warning", page.unread)
            )
        if request.kind in (None, CHECK):
            found += self._checks(since_ms)
        return sorted(found, key=lambda event: event.at_ms)[-limit:]

    def _checks(self, since_ms: int) -> Iterable[Event]:
        """A check that has ended is an event at its end."""
        for peer in self._fullsync.checks(RESULTS_MAX).peers:
            for result in peer.results:
                at_ms = int(result.began_ms + 1000 * result.seconds)
                if at_ms < since_ms:
                    continue
                verdict, reason = result.verdict, f": {result.reason}" if result.reason else ""
                text = f"{peer.name}, bucket type {result.bucket_type}, {result.kind}: {verdict}{reason}"
                level = "info" if verdict in ("in-sync", "up-to-date", "repaired") else "warning"
                number = f"c{peer.name}/{result.bucket_type}/{result.began_ms}"
                yield Event(number, at_ms, self._node, CHECK, f"check.{verdict}", level, text)


def event_of(line: Line, node: str, clean: Callable[[str], str]) -> Event:
    """The event of a line, which may come from a file of another version."""
    kind, event, level, subject, text = (
        clean(str(line.get(name) or "")) for name in ("kind", "event", "level", "subject", "text")
    )
    event_id = str(line.get("event_id") or f"l{line.get('id')}")
    return Event(event_id, line["at_ms"], node, kind, event, level, text, subject)


def act_events(answers: Mapping[str, NodeAudit | None]) -> list[Event]:
    """The acts of operators as events, from pages of the nodes' audit logs."""
    return [
        Event(f"a{act['id']}", act["at_ms"], node, ACT, _act_of(act), _level_of(act), _act_text(act))
        for node, page in answers.items()
        for act in (() if page is None else page.acts)
    ]


def _act_of(act: Mapping[str, Any]) -> str:
    what = act.get("what")
    return str(what.get("act")) if isinstance(what, dict) else "unknown"


def _level_of(act: Mapping[str, Any]) -> str:
    return "info" if act.get("outcome") == "done" else "warning"


def _act_text(act: Mapping[str, Any]) -> str:
    who = act.get("who")
    by = who.get("by") or who.get("role") if isinstance(who, dict) else None
    reason = f": {act['reason']}" if act.get("reason") else ""
    return f"{act.get('outcome')}, by {by or act.get('from') or 'unknown'} ({act.get('via')}){reason}"


def merged_events(events: Iterable[Event], limit: int) -> list[Event]:
    """The newest `limit` events, the oldest first; those of one node at one time stay in their order."""
    return sorted(events, key=lambda event: event.at_ms)[-limit:]
