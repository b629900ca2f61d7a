"""GET /admin/events: events of all nodes in one timeline.

docs/audit.md explains acts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from isthmus.node.admin_api.history import ALL, GONE, nodes_asked
from isthmus.node.http.answer_limits import ROWS, ROWS_MAX
from isthmus.node.http.application import Request, json_reply
from isthmus.node.http.responses import Reply, RequestRefused
from isthmus.node.http.router import Router
from isthmus.node.nouns.requests import TIME_MAX_MS
from isthmus.node.observability.events import KINDS
from isthmus.node.services.audit_query import AUDIT, ReadAudit
from isthmus.node.services.cluster_query import ClusterAnswers
from isthmus.node.services.container import NodeServices
from isthmus.node.services.event_query import ACT, EVENTS, ReadEvents, act_events, merged_events

NOTHING: ClusterAnswers[Any] = ClusterAnswers({}, {})
"""The answers to a query that is not sent."""


class EventsAdmin:
    """The route over the events of all nodes."""

    def __init__(self, services: NodeServices, router: Router[Callable[..., Any]]) -> None:
        self._services = services
        router.add("GET", "/admin/events", self.events)

    async def events(self, request: Request) -> Reply:
        """The newest events of all nodes, the oldest first.

        Events of the nodes' logs since their start (the newest 2,000 of each), acts of the audit logs, and results of
        full-sync. ?since=MS: from this time on. ?last=MS: only of the last so many ms, by each node's own clock.
        ?limit, ?kind, ?node. `unknown`: nodes that did not answer.
        """
        since_ms = request.number("since", 0, 0, TIME_MAX_MS)
        last_ms = request.number("last", 0, 0, TIME_MAX_MS) if "last" in request.query else None
        limit = request.number("limit", ROWS, 1, ROWS_MAX)
        kind, kinds = request.query.get("kind"), sorted({ACT, *KINDS.values()})
        if kind is not None and kind not in kinds:
            raise RequestRefused(400, "bad-query", f"kind is one of {', '.join(kinds)}")
        services = self._services
        nodes = nodes_asked(services, request.query.get("node", ALL))
        live = nodes & services.membership.live_nodes()
        events, acts = await asyncio.gather(
            self._events(ReadEvents(since_ms, limit, kind, last_ms), live),
            self._acts(ReadAudit(since_ms, limit, last_ms=last_ms), live, kind),
        )
        found = [event for one in events.by_node.values() for event in one or ()] + act_events(acts.by_node)
        unknown = {**dict.fromkeys(nodes - live, GONE), **acts.unknown, **events.unknown}
        answer = {
            "events": msgspec.to_builtins(merged_events(found, limit)),
            "unknown": dict(sorted(unknown.items())),
            "at_ms": services.time.wall_ms(),
        }
        return json_reply(answer)

    async def _events(self, wanted: ReadEvents, live: Iterable[str]) -> ClusterAnswers[Any]:
        """The logs have no acts."""
        if wanted.kind == ACT:
            return NOTHING
        return await self._services.query.ask(EVENTS, wanted, live, own_may_fail=True)

    async def _acts(self, wanted: ReadAudit, live: Iterable[str], kind: str | None) -> ClusterAnswers[Any]:
        """The audit logs have nothing but acts, and are files."""
        if kind not in (None, ACT):
            return NOTHING
        return await self._services.query.ask(AUDIT, wanted, live, own_may_fail=True)
