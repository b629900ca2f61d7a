"""The journals of all nodes in the admin API, in two views: acts of operators, the newest first, and one timeline.

docs/what-happened.md explains a line.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final

import msgspec

from isthmus.node.admin_api.history import ALL, GONE, nodes_asked
from isthmus.node.http.answer_limits import ROWS, ROWS_MAX
from isthmus.node.http.application import Request, json_reply
from isthmus.node.http.responses import Reply, RequestRefused
from isthmus.node.http.router import Router
from isthmus.node.nouns.requests import TIME_MAX_MS
from isthmus.node.observability.events import KINDS
from isthmus.node.services.container import NodeServices
from isthmus.node.services.journal_query import (
    ACT,
    ClusterJournal,
    ReadAudit,
    ReadEvents,
    WantedActs,
    searched_to,
)
from isthmus.node.services.membership import not_alive

TEXT_MAX: Final = 200
"""Characters of a text to look for: a key or a name, not a document."""

OUTCOMES: Final = ("done", "refused", "unknown")

_CURSOR: Final = re.compile(r"([^:,]+):([0-9]{1,15})", re.ASCII)


class JournalAdmin:
    """The routes over the journals of all nodes."""

    def __init__(self, services: NodeServices, router: Router[Callable[..., Any]]) -> None:
        self._services = services
        router.add("GET", "/admin/audit", self.acts)
        router.add("GET", "/admin/events", self.events)

    @property
    def _journal(self) -> ClusterJournal:
        return ClusterJournal(self._services.query)

    async def acts(self, request: Request) -> Reply:
        """The acts of operators on all nodes, the newest first.

        ?since=MS and ?until=MS: from and to these times. ?limit: 1 to 1,000, default 100. ?node=NAME or all. ?act,
        ?who, ?object: texts of at most 200 characters; ?outcome: done, refused or unknown. ?before=CURSOR: `next` of
        the page before. The answer is `{"acts", "next", "nodes": {NODE: {"unreadable", "lost"} or null}, "unknown":
        {NODE: why}, "searched_to_ms", "at_ms"}`; a node that does not answer within 2 s is null. A page may have fewer
        acts than `limit`, or none, while `next` is not null. The logs were searched back to `searched_to_ms` (null: to
        their ends).
        """
        since_ms = request.number("since", 0, 0, TIME_MAX_MS)
        limit = request.number("limit", ROWS, 1, ROWS_MAX)
        before = _cursor(request.query.get("before"))
        wanted = _wanted(request)
        nodes = nodes_asked(self._services, request.query.get("node", ALL))
        if before is not None:
            nodes &= before.keys()
        live = nodes & self._services.membership.live_nodes()
        found = await self._journal.acts(ReadAudit(since_ms, limit, before, wanted), live)
        following = found.following
        return json_reply(
            {
                "acts": found.acts,
                "next": None if following is None else ",".join(f"{n}:{i}" for n, i in sorted(following.items())),
                "nodes": {
                    node: None if page is None else {"unreadable": page.unreadable, "lost": page.lost}
                    for node, page in sorted({**dict.fromkeys(nodes), **found.pages}.items())
                },
                "unknown": {**found.unknown, **not_alive(nodes - live)},
                "searched_to_ms": searched_to(found.pages),
                "at_ms": self._services.time.wall_ms(),
            }
        )

    async def events(self, request: Request) -> Reply:
        """The newest events of all nodes, the oldest first.

        Events and acts of the nodes' journals, which are on disk, and results of full-sync. ?since=MS: from this time
        on. ?last=MS: only of the last so many ms, by each node's own clock. ?limit, ?kind, ?node. `unknown`: nodes
        that did not answer.
        """
        since_ms = request.number("since", 0, 0, TIME_MAX_MS)
        last_ms = request.number("last", 0, 0, TIME_MAX_MS) if "last" in request.query else None
        limit = request.number("limit", ROWS, 1, ROWS_MAX)
        kind, kinds = request.query.get("kind"), sorted({ACT, *KINDS.values()})
        if kind is not None and kind not in kinds:
            raise RequestRefused(400, "bad-query", f"kind is one of {', '.join(kinds)}")
        nodes = nodes_asked(self._services, request.query.get("node", ALL))
        live = nodes & self._services.membership.live_nodes()
        found = await self._journal.events(ReadEvents(since_ms, limit, kind, last_ms), live)
        return json_reply(
            {
                "events": msgspec.to_builtins(found.events),
                "unknown": dict(sorted({**dict.fromkeys(nodes - live, GONE), **found.unknown}.items())),
                "at_ms": self._services.time.wall_ms(),
            }
        )


def _wanted(request: Request) -> WantedActs:
    """The filter of a request. Raises RequestRefused."""
    query = request.query
    texts = {name: query.get(name, "") for name in ("act", "who", "object", "outcome")}
    for name, text in texts.items():
        if len(text) > TEXT_MAX:
            raise RequestRefused(400, "bad-query", f"{name} has {len(text)} characters: at most {TEXT_MAX} are right")
    if texts["outcome"] not in ("", *OUTCOMES):
        right = f"one of {', '.join(OUTCOMES)} is right"
        raise RequestRefused(400, "bad-query", f"outcome={texts['outcome'][:40]}: {right}")
    until = request.number("until", 0, 0, TIME_MAX_MS) if "until" in query else None
    return WantedActs(**texts, until_ms=until)


def _cursor(text: str | None) -> dict[str, int] | None:
    """The `before` of a request, which is the `next` of an answer. Raises RequestRefused."""
    if text is None:
        return None
    found = [_CURSOR.fullmatch(part) for part in text.split(",")]
    if not all(found):
        raise RequestRefused(400, "bad-query", f"before={text[:40]}: `next` of the page before is right")
    return {each[1]: int(each[2]) for each in found if each is not None}
