"""The audit logs of all nodes, joined: pages of acts, the newest first.

Each node numbers its own lines. A page is merged by the time of each line; the cursor of the next page is the id, by
node, below which it goes on, so that a clock that was set back loses no line and repeats none.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import unquote_to_bytes

import msgspec
from msgspec import structs

from isthmus.node.http.answer_limits import ROWS_MAX
from isthmus.node.observability.journal import Journal
from isthmus.node.services.cluster_query import JsonBody, Query
from isthmus.repl.model.errors import CodecError, LocalFault, NotReady
from isthmus.repl.model.ports import TimeSource

METHOD: Final = "audit"

READ_S: Final = 1.5
"""How long a node reads its log for one page, below the time-out of a query; its files are some ten megabytes, and a
disk that hangs must not hold the answers of the other nodes."""


class WantedActs(msgspec.Struct, frozen=True, omit_defaults=True):
    """The acts that are wanted; "" wants any. Texts are found wherever they stand, whatever their case is.

    `act`: in the words of the act, or in its route. `who`: in the name, role, token, certificate or address. `object`:
    in the path, with percent-encoding decoded, or in the request. `outcome`: exactly this one."""

    act: str = ""
    who: str = ""
    object: str = ""
    outcome: str = ""
    until_ms: int | None = None

    def include(self, line: Mapping[str, Any]) -> bool:
        """Whether a line is wanted. Lines come from files, and may lack what this version writes."""
        if self.until_ms is not None and line["at_ms"] > self.until_ms:
            return False
        if self.outcome and line.get("outcome") != self.outcome:
            return False
        what, who = _object(line.get("what")), _object(line.get("who"))
        path = unquote_to_bytes(str(what.get("path"))).decode(errors="backslashreplace")
        return (
            _found(self.act, what.get("act"), what.get("route"))
            and _found(self.who, *who.values(), line.get("from"))
            and _found(self.object, what.get("path"), path, what.get("request"))
        )


def _object(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _found(text: str, *places: object) -> bool:
    """Whether one of the places has the text; null has none."""
    if not text:
        return True
    wanted = text.casefold()
    return any(
        wanted in (place if isinstance(place, str) else json.dumps(place, ensure_ascii=False)).casefold()
        for place in places
        if place is not None
    )


class ReadAudit(msgspec.Struct, frozen=True):
    """A page of one node's log: lines from `since_ms` on, below the id that `before` has for the node, if any."""

    since_ms: int
    limit: int
    before: dict[str, int] | None = None
    wanted: WantedActs = WantedActs()
    """Nodes of earlier versions ignore it: see `NodeAudit.only`."""
    last_ms: int | None = None
    """Only lines of the last so many ms, by the node's own clock."""


class NodeAudit(msgspec.Struct, frozen=True):
    """One node's page: its lines, the newest first, whether there are more, and pieces of lines on the way."""

    acts: list[dict[str, Any]]
    more: bool
    unreadable: int
    lost: int
    """Lines that this node lost since it started."""
    read_to: tuple[int, int] | None = None
    """Id and time (ms) of the oldest line that was looked at; None: of none, or the node is of an earlier version."""

    def only(self, wanted: WantedActs) -> NodeAudit:
        """The same without acts that are not wanted, which a node of an earlier version sends, too."""
        read_to = self.read_to
        if read_to is None and self.acts:
            read_to = self.acts[-1]["id"], self.acts[-1]["at_ms"]
        return structs.replace(self, acts=[act for act in self.acts if wanted.include(act)], read_to=read_to)


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

    def __init__(self, node: str, journal: Journal, time: TimeSource) -> None:
        self._node = node
        self._journal = journal
        self._time = time

    async def respond(self, request: ReadAudit) -> NodeAudit:
        """See Responder."""
        before = (request.before or {}).get(self._node)
        limit = max(1, min(request.limit, ROWS_MAX))
        since_ms = begin_of(request.since_ms, request.last_ms, self._time)
        try:
            async with asyncio.timeout(READ_S):
                page = await self._journal.acts(before, since_ms, limit, request.wanted.include)
        except TimeoutError as error:
            raise NotReady(f"the disk did not give {self._journal.directory} within {READ_S} s") from error
        except OSError as error:
            raise LocalFault(f"{self._journal.directory} cannot be read: {error.strerror}") from error
        return NodeAudit(page.lines, page.more, page.unreadable, self._journal.counts["lost"], page.read_to)


def begin_of(since_ms: int, last_ms: int | None, time: TimeSource) -> int:
    """The time from which rows are wanted: `since_ms`, or `last_ms` ago, whichever is later."""
    return since_ms if last_ms is None else max(since_ms, time.wall_ms() - last_ms)


def merged(answers: Mapping[str, NodeAudit | None], limit: int) -> tuple[list[dict[str, Any]], dict[str, int] | None]:
    """One page of the newest lines of all nodes, and the cursor of the next page; None: there are no more.

    Lines of one node stay in their order, whatever their times are.
    """
    rest = {node: [*answer.acts] for node, answer in answers.items() if answer is not None}
    for acts in rest.values():
        acts.reverse()  # the next one to be taken is the last
    taken: list[dict[str, Any]] = []
    while len(taken) < limit:
        if any(not acts and _continues(answers[node]) for node, acts in rest.items()):
            break  # older lines of this node may come before those of others
        heads = [(acts[-1]["at_ms"], node) for node, acts in rest.items() if acts]
        if not heads:
            break
        taken.append(rest[max(heads)[1]].pop())
    following = {}
    for node, acts in rest.items():
        answer = answers[node]
        if acts:
            following[node] = acts[-1]["id"] + 1
        elif _continues(answer):
            assert answer is not None
            assert answer.read_to is not None
            following[node] = answer.read_to[0]
    return taken, following or None


def searched_to(answers: Mapping[str, NodeAudit | None]) -> int | None:
    """The time (ms) from which on the logs were looked at; None: all of them to their ends."""
    times = [each.read_to[1] for each in answers.values() if each is not None and each.more and each.read_to]
    return max(times, default=None)


def _continues(answer: NodeAudit | None) -> bool:
    return answer is not None and answer.more and answer.read_to is not None
