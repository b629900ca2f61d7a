"""The audit log in the admin API: who did what, on all nodes, the newest first. docs/audit.md explains a line."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final

from isthmus.node.admin_api.history import ALL, nodes_asked
from isthmus.node.http.answer_limits import ROWS, ROWS_MAX
from isthmus.node.http.application import Request, json_reply
from isthmus.node.http.responses import Reply, RequestRefused
from isthmus.node.http.router import Router
from isthmus.node.nouns.requests import TIME_MAX_MS
from isthmus.node.services.audit_query import AUDIT, ReadAudit, WantedActs, merged, searched_to
from isthmus.node.services.container import NodeServices
from isthmus.node.services.membership import not_alive

TEXT_MAX: Final = 200
"""Characters of a text to look for: a key or a name, not a document."""

OUTCOMES: Final = ("done", "refused", "unknown")

_CURSOR: Final = re.compile(r"([^:,]+):([0-9]{1,15})", re.ASCII)


class AuditAdmin:
    """The route over the audit logs of all nodes."""

    def __init__(self, services: NodeServices, router: Router[Callable[..., Any]]) -> None:
        self._services = services
        router.add("GET", "/admin/audit", self.acts)

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
        answers = await self._services.query.ask(
            AUDIT, ReadAudit(since_ms, limit, before, wanted), live, own_may_fail=True
        )
        unknown = {**answers.unknown, **not_alive(nodes - live)}
        pages = {node: None if answer is None else answer.only(wanted) for node, answer in answers.by_node.items()}
        acts, following = merged(pages, limit)
        found = {**dict.fromkeys(nodes), **pages}
        return json_reply(
            {
                "acts": acts,
                "next": None if following is None else ",".join(f"{n}:{i}" for n, i in sorted(following.items())),
                "nodes": {
                    node: None if answer is None else {"unreadable": answer.unreadable, "lost": answer.lost}
                    for node, answer in sorted(found.items())
                },
                "unknown": unknown,
                "searched_to_ms": searched_to(pages),
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
