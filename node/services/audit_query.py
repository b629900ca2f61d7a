"""The audit logs of all nodes, joined: pages of acts, the newest first.

Each node numbers its own lines. A page is merged by the time of each line; the cursor of the next page is the id, by
node, below which it goes on, so that a clock that was set back loses no line and repeats none.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from isthmus.node.observability.audit_log import AuditLog
from isthmus.node.services.cluster_query import JsonBody, Query
from isthmus.repl.model.errors import CodecError, LocalFault, NotReady

METHOD: Final = "audit"

LIMIT_MAX: Final = 1_000
"""Most acts of one page."""


READ_S: Final = 1.5
"""How long a node reads its log for one page, below the time-out of a query; its files are some ten megabytes, and a
disk that hangs must not hold the answers of the other nodes."""


class ReadAudit(msgspec.Struct, frozen=True):
    """A page of one node's log: lines from `since_ms` on, below the id that `before` has for the node, if any."""

    since_ms: int
    limit: int
    before: dict[str, int] | None = None


class NodeAudit(msgspec.Struct, frozen=True):
    """One node's page: its lines, the newest first, whether there are more, and pieces of lines on the way."""

    acts: list[dict[str, Any]]
    more: bool
    unreadable: int
    lost: int
    """Lines that this node lost since it started."""


class NodeAuditBody(JsonBody[NodeAudit]):
    """JSON whose lines have ids and times."""

    def __init__(self) -> None:
        super().__init__(METHOD, NodeAudit)

    def decode(self, body: bytes) -> NodeAudit:
        """See Codec."""
        found = super().decode(body)
        if not all(type(act.get(name)) is int for act in found.acts for name in ("id", "at_ms")):
            raise CodecError(f"{METHOD}: a line without id or at_ms")
        return found


AUDIT: Final[Query[ReadAudit, NodeAudit]] = Query(METHOD, JsonBody(METHOD, ReadAudit), NodeAuditBody())


class AuditResponder:
    """Answers AUDIT from this node's log."""

    def __init__(self, node: str, lines: AuditLog) -> None:
        self._node = node
        self._lines = lines

    async def respond(self, request: ReadAudit) -> NodeAudit:
        """See Responder."""
        before = (request.before or {}).get(self._node)
        limit = max(1, min(request.limit, LIMIT_MAX))
        try:
            async with asyncio.timeout(READ_S):
                page = await self._lines.page(before, request.since_ms, limit)
        except TimeoutError as error:
            raise NotReady(f"the disk did not give {self._lines.directory} within {READ_S} s") from error
        except OSError as error:
            raise LocalFault(f"{self._lines.directory} cannot be read: {error.strerror}") from error
        return NodeAudit(page.acts, page.more, page.unreadable, self._lines.counts["lost"])


def merged(answers: Mapping[str, NodeAudit | None], limit: int) -> tuple[list[dict[str, Any]], dict[str, int] | None]:
    """One page of the newest lines of all nodes, and the cursor of the next page; None: there are no more.

    Lines of one node stay in their order, whatever their times are.
    """
    rest = {node: [*answer.acts] for node, answer in answers.items() if answer is not None and answer.acts}
    for acts in rest.values():
        acts.reverse()  # the next one to be taken is the last
    taken: list[dict[str, Any]] = []
    last: dict[str, int] = {}
    while len(taken) < limit:
        heads = [(acts[-1]["at_ms"], node) for node, acts in rest.items() if acts]
        if not heads:
            break
        node = max(heads)[1]
        act = rest[node].pop()
        taken.append(act)
        last[node] = act["id"]
        more = answers[node]
        if not rest[node] and more is not None and more.more:
            break  # older lines of this node may come before those of others
    following = {
        node: acts[-1]["id"] + 1 if acts else last[node]
        for node, acts in rest.items()
        if acts or _has_more(answers[node])
    }
    return taken, following or None


def _has_more(answer: NodeAudit | None) -> bool:
    return answer is not None and answer.more
