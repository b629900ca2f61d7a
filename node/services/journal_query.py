"""The journals of all nodes, joined: pages of acts, the newest first, and a timeline of acts, events and checks.

A node answers two queries from its journal, as nodes of the version before do: AUDIT for acts, EVENTS for all else.
`ClusterJournal` asks them of all nodes and merges what comes by time. Each node numbers its own acts; the cursor of the
next page is the id, by node, below which it goes on, so that a clock that was set back loses no act and repeats none.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple
from urllib.parse import unquote_to_bytes

import msgspec
from msgspec import structs

from isthmus.node.http.answer_limits import ROWS_MAX
from isthmus.node.observability.journal import READ_S, Journal
from isthmus.node.observability.line_files import Line
from isthmus.node.observability.redaction import Redactor
from isthmus.node.services.cluster_query import ClusterAnswers, ClusterQuery, JsonBody, Query
from isthmus.node.services.fullsync_status import FullSyncStatus
from isthmus.repl.model.errors import CodecError, LocalFault, NotReady
from isthmus.repl.model.ports import TimeSource

ACT: Final = "act"
CHECK: Final = "check"

RESULTS_MAX: Final = 200
"""Newest results of a full-sync peer that are looked at: those of some days."""

# ---------------------------------------------------------------- acts of one node


class WantedActs(msgspec.Struct, frozen=True, omit_defaults=True):
    """The acts that are wanted; "" wants any. Texts are found wherever they are, whatever their case is.

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
    unread: str = ""
    """Which file could not be read, and why; "" if none."""

    def only(self, wanted: WantedActs) -> NodeAudit:
        """The same without acts that are not wanted, which a node of an earlier version sends, too."""
        read_to = self.read_to
        if read_to is None and self.acts:
            read_to = self.acts[-1]["id"], self.acts[-1]["at_ms"]
        return structs.replace(self, acts=[act for act in self.acts if wanted.include(act)], read_to=read_to)


class NodeAuditBody(JsonBody[NodeAudit]):
    """JSON whose lines have ids and times."""

    def __init__(self) -> None:
        super().__init__("audit", NodeAudit)

    def decode(self, body: bytes) -> NodeAudit:
        """See Codec."""
        found = super().decode(body)
        if not all(type(act.get(name)) is int for act in found.acts for name in ("id", "at_ms")):
            raise CodecError("audit: a line without id or at_ms")
        return found


AUDIT: Final[Query[ReadAudit, NodeAudit]] = Query("audit", JsonBody("audit", ReadAudit), NodeAuditBody())


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
        lost = self._journal.counts["lost"]
        return NodeAudit(page.lines, page.more, page.unreadable, lost, page.read_to, page.unread)


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


# ---------------------------------------------------------------- events of one node


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
    "events", JsonBody("events", ReadEvents), JsonBody("events", list[Event])
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


def begin_of(since_ms: int, last_ms: int | None, time: TimeSource) -> int:
    """The time from which rows are wanted: `since_ms`, or `last_ms` ago, whichever is later."""
    return since_ms if last_ms is None else max(since_ms, time.wall_ms() - last_ms)


# ---------------------------------------------------------------- all nodes


class ClusterActs(NamedTuple):
    """A page of the acts of several nodes, the newest first."""

    acts: list[Line]
    following: dict[str, int] | None
    """Cursor of the next page; None: there are no more."""
    pages: Mapping[str, NodeAudit | None]
    """What each node sent, without acts that are not wanted; None: unknown."""
    unknown: dict[str, str]
    """Node without a whole answer -> the reason."""


class ClusterEvents(NamedTuple):
    """The newest events of several nodes, acts and checks among them, the oldest first."""

    events: list[Event]
    unknown: dict[str, str]
    """Node without a whole answer -> the reason."""


NOTHING: Final[ClusterAnswers[Any]] = ClusterAnswers({}, {})
"""The answers to a query that is not sent."""


class ClusterJournal:
    """The journals of all nodes as one."""

    def __init__(self, query: ClusterQuery) -> None:
        self._query = query

    async def acts(self, wanted: ReadAudit, nodes: Iterable[str]) -> ClusterActs:
        """A page of the acts of `nodes`."""
        answers = await self._query.ask(AUDIT, wanted, nodes, own_may_fail=True)
        pages = {node: None if page is None else page.only(wanted.wanted) for node, page in answers.by_node.items()}
        return ClusterActs(*merged(pages, wanted.limit), pages, {**unread_of(answers), **answers.unknown})

    async def events(self, wanted: ReadEvents, nodes: Iterable[str]) -> ClusterEvents:
        """The newest events of `nodes`, which are of all kinds or of one."""
        acts_wanted = ReadAudit(wanted.since_ms, wanted.limit, last_ms=wanted.last_ms)
        ask = self._query.ask
        events, acts = await asyncio.gather(
            _nothing() if wanted.kind == ACT else ask(EVENTS, wanted, nodes, own_may_fail=True),
            ask(AUDIT, acts_wanted, nodes, own_may_fail=True) if wanted.kind in (None, ACT) else _nothing(),
        )
        found = [event for one in events.by_node.values() for event in one or ()] + act_events(acts.by_node)
        unknown = {**unread_of(acts), **acts.unknown, **events.unknown}
        return ClusterEvents(merged_events(found, wanted.limit), unknown)


async def _nothing() -> ClusterAnswers[Any]:
    return NOTHING


def unread_of(answers: ClusterAnswers[NodeAudit]) -> dict[str, str]:
    """Node that left out a file of acts -> the reason."""
    return {node: page.unread for node, page in answers.by_node.items() if page is not None and page.unread}


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
