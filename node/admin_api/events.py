"""GET /admin/events: what happened lately on all nodes, in one timeline. docs/audit.md explains acts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

import msgspec

from isthmus.node.admin_api.history import GONE
from isthmus.node.http.application import Request, json_reply
from isthmus.node.http.responses import Reply, RequestRefused
from isthmus.node.http.router import Router
from isthmus.node.observability.events import KINDS
from isthmus.node.services.audit_query import AUDIT, ReadAudit
from isthmus.node.services.container import NodeServices
from isthmus.node.services.event_query import ACT, EVENTS, LIMIT_MAX, ReadEvents, act_events, merged_events

LIMIT: Final = 100
"""Events in an answer by default."""

TIME_MAX_MS: Final = 1 << 50
"""Largest wall-clock time: beyond the year 30,000 the unit must be wrong."""


class EventsAdmin:
    """The route over the events of all nodes."""

    def __init__(self, services: NodeServices, router: Router[Callable[..., Any]]) -> None:
        self._services = services
        router.add("GET", "/admin/events", self.events)

    async def events(self, request: Request) -> Reply:
        """The newest events of all nodes, the oldest first: ?since=MS&limit=N&kind=K."""
        since_ms = request.number("since", 0, 0, TIME_MAX_MS)
        limit = request.number("limit", LIMIT, 1, LIMIT_MAX)
        kind, kinds = request.query.get("kind"), sorted({ACT, *KINDS.values()})
        if kind is not None and kind not in kinds:
            raise RequestRefused(400, "bad-query", f"kind is one of {', '.join(kinds)}")
        services = self._services
        live = services.membership.live_nodes()
        asked = LIMIT_MAX if kind is not None else limit
        events, acts = await asyncio.gather(
            services.query.ask(EVENTS, ReadEvents(since_ms, asked), live, own_may_fail=True),
            services.query.ask(AUDIT, ReadAudit(since_ms, asked), live, own_may_fail=True),
        )
        found = [event for one in events.by_node.values() for event in one or ()] + act_events(acts.by_node)
        chosen = [event for event in found if kind in (None, event.kind)]
        unknown = {**dict.fromkeys(services.membership.known_nodes() - live, GONE), **acts.unknown, **events.unknown}
        answer = {
            "events": msgspec.to_builtins(merged_events(chosen, limit)),
            "unknown": dict(sorted(unknown.items())),
            "at_ms": services.time.wall_ms(),
        }
        return json_reply(answer)
