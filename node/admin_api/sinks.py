"""The sink in the admin API: links, suspensions, limits and dead letters.

Passes changes on to `sink.service` and shows its state; for the whole cluster, the answers of every node
(`node.services.sink_query`). docs/replication.md explains the terms.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import UNSET, UnsetType

from isthmus.config.relations import is_own
from isthmus.config.settings import SINK_WORKERS_MAX, PeerSettings
from isthmus.config.validation import check_name, check_peer_url
from isthmus.node.admin_api.acting_user import acting_user
from isthmus.node.admin_api.history import ALL, GONE
from isthmus.node.http.answer_limits import RETRY_TIMEOUT_MS
from isthmus.node.http.application import Request
from isthmus.node.http.json_body import add_noun, struct_reply
from isthmus.node.http.responses import Reply, RequestRefused
from isthmus.node.http.router import Router
from isthmus.node.nouns.dead_letter import (
    DEAD_LETTERS,
    DROP,
    LETTER_ID_MAX,
    RETRY,
    DeadLetterList,
    DeadLetterNodes,
    DeadLettersOfNode,
    DeadLettersRequest,
    LettersDropped,
    LettersRetried,
)
from isthmus.node.nouns.sink import (
    ADD_PEER,
    CHECK,
    LIMIT,
    REMOVE_PEER,
    RESUME,
    SINK,
    SUSPEND,
    CheckedLine,
    ConflictList,
    LinkChecked,
    RemoveSinkPeerRequest,
    SinkLimitsRequest,
    SinkOfNode,
    SinkOverview,
    SinkPeerRequest,
    SinksOfNodes,
    SuspendSinkRequest,
)
from isthmus.node.services.cluster_status import with_gone
from isthmus.node.services.container import NodeServices
from isthmus.node.services.dead_letter_query import (
    DROPPED,
    LETTER_PAGE,
    PAGE_MAX,
    RETRIED,
    DropLetters,
    LetterPage,
    ListLetters,
    RetryLetters,
)
from isthmus.node.services.link_check import Here, judged, look
from isthmus.node.services.sink_listing import conflict_row, letter_row, overview_of
from isthmus.node.services.sink_query import SINK as SINK_OF_NODE
from isthmus.sink.limits import SinkLimits
from isthmus.sink.scheduler import LinkName

CONFLICTS: Final = 100
"""Conflicts in an answer by default."""

CONFLICTS_MAX: Final = 10_000
"""Most conflicts in an answer: about 10 MB of JSON."""

LETTERS: Final = 100
"""Dead letters of each node in an answer about all nodes, by default."""

DROP_TIMEOUT_MS: Final = 10_000
"""How long another node may take to drop letters: one commit on its disk, which a backup may lock for 5 s."""


class SinkAdmin:
    """Routes over the sink."""

    def __init__(self, services: NodeServices, router: Router[Callable[..., Any]]) -> None:
        self._services = services
        add_noun(
            router,
            SINK,
            self.sink,
            None,
            {
                SUSPEND: self.suspend,
                RESUME: self.resume,
                LIMIT: self.limits,
                CHECK: self.check,
                ADD_PEER: self.add_peer,
                REMOVE_PEER: self.remove_peer,
            },
            {"nodes": self.nodes, "conflicts": self.conflicts},
        )
        add_noun(
            router,
            DEAD_LETTERS,
            self.letters,
            None,
            {RETRY: self.retry, DROP: self.drop},
            {"nodes": self.letters_of_nodes},
        )

    async def sink(self, _request: Request) -> Reply:
        """Every (queue, peer) that this node fetches from, and the state of its sink."""
        return struct_reply(self._overview())

    def _overview(self) -> SinkOverview:
        return overview_of(self._services.sink, self._services.settings.node.name)

    async def nodes(self, _request: Request) -> Reply:
        """The sink of every node; null for a node that does not answer, or is gone and holds replicas; `unknown` has
        the reason."""
        return struct_reply(await self._nodes())

    async def nodes_document(self) -> dict[str, Any]:
        """The answer to `GET /admin/sink/nodes`."""
        document: dict[str, Any] = msgspec.to_builtins(await self._nodes())
        return document

    async def _nodes(self) -> SinksOfNodes:
        answers = await self._services.query.ask(SINK_OF_NODE, None, self._services.membership.live_nodes())
        found = with_gone(self._services.controller.records, answers.by_node)
        unknown = {**answers.unknown, **dict.fromkeys(sorted(found.keys() - answers.by_node.keys()), GONE)}
        return SinksOfNodes([SinkOfNode(node, what) for node, what in found.items()], unknown)

    async def suspend(self, request: Request, body: SuspendSinkRequest) -> Reply:
        """Start no new fetch of a queue, a peer, or all, on one node or on all."""
        with request.changing(self._state):
            await self._services.sink.suspend(body.queue, body.peer, acting_user(body.by), body.reason or "", body.node)
        return await self.sink(request)

    async def resume(self, request: Request, body: SuspendSinkRequest) -> Reply:
        """Resume fetches."""
        with request.changing(self._state):
            await self._services.sink.resume(body.queue, body.peer, body.node)
        return await self.sink(request)

    async def limits(self, request: Request, body: SinkLimitsRequest) -> Reply:
        """Set workers, workers per peer and rates, on one node or on all; with "forget" the named limits (with any
        number) are the config's again."""
        sink, by, reason = self._services.sink, acting_user(body.by), body.reason or ""
        if body.queue is not None:
            if not (body.per_peer is body.bytes_per_second is body.objects_per_second is None):
                raise RequestRefused(
                    400, "bad-json", "of one queue the workers alone can be set: the others are the node's"
                )
            if body.workers is None and not body.forget:
                raise RequestRefused(400, "bad-json", f"give workers, from 1 to {SINK_WORKERS_MAX}, or forget, true")
            workers = None if body.forget else body.workers
            with request.changing(self._state):
                await sink.set_queue_workers(body.queue, body.node, workers, by, reason)
            return await self.sink(request)
        limits = SinkLimits(
            workers=body.workers,
            peer_limit=body.per_peer,
            bytes_per_second=body.bytes_per_second,
            objects_per_second=body.objects_per_second,
            by=by,
            at_ms=self._services.time.wall_ms(),
            reason=reason,
        )
        if not body.forget and (limits.peer_limit or 0) > (limits.workers or SINK_WORKERS_MAX):
            raise RequestRefused(400, "bad-json", f"per_peer is at most workers, {limits.workers}: more never bind")
        with request.changing(self._state):
            await sink.set_limits(limits, body.node, body.forget)
        notes: list[str] | UnsetType = UNSET
        rates = (("bytes", body.bytes_per_second), ("objects", body.objects_per_second))
        lifted = [word for word, rate in rates if rate == 0]
        if len(lifted) == 1:  # with both at 0 no limit is what was meant
            notes = [f"0 is no limit: fetches are not limited in {lifted[0]}; to stop them, suspend the sink"]
        return struct_reply(msgspec.structs.replace(self._overview(), notes=notes))

    async def add_peer(self, request: Request, body: SinkPeerRequest) -> Reply:
        """Fetch from a queue of another cluster that no file lists."""
        name, peer = _peer_of(body)
        if is_own(name.peer, self._services.settings.listen.http):
            raise RequestRefused(
                400, "bad-input", f"{name.peer} is this node itself; a peer is a node of another cluster"
            )
        with request.changing(self._state):
            await self._services.sink.add_peer(peer, acting_user(body.by), body.reason or "")
        return await self.sink(request)

    async def check(self, _request: Request, body: SinkPeerRequest) -> Reply:
        """Check whether a link would work, as this node sees it; nothing is fetched or changed.

        Answers `checks`, each with `what`, `state`, `found` and `right`.
        """
        name, peer = _peer_of(body)
        node = self._services
        access = node.credentials.access_to(peer)
        found = await asyncio.to_thread(look, name.peer, name.queue, access, node.time.wall_ms)
        here = Here(
            node.cluster_uuid.hex(),
            node.settings.node.cluster,
            {record.bucket_type for record in node.controller.records.values()},
            {kind.decode(errors="backslashreplace"): one.hex() for kind, one in node.property_cache.digests().items()},
            node.property_cache.scope_digests(),
            any((row.queue, row.peer) == name for row in self._overview().sinks),
        )
        rows = judged(name.peer, name.queue, peer.cluster, found, here)
        lines = [msgspec.convert(row, CheckedLine) for row in rows]
        return struct_reply(LinkChecked(node.settings.node.name, name.queue, name.peer, lines))

    async def remove_peer(self, request: Request, body: RemoveSinkPeerRequest) -> Reply:
        """Stop fetching from a queue, though a file may list it."""
        name = _link_of(body)
        with request.changing(self._state):
            await self._services.sink.remove_peer(name, acting_user(body.by), body.reason or "")
        return await self.sink(request)

    async def conflicts(self, request: Request) -> Reply:
        """The newest concurrent changes that this node's sink fetched, newest first, with both clocks: ?count=N."""
        kept = self._services.sink.conflicts
        newest = await kept.newest(request.number("count", CONFLICTS, 1, CONFLICTS_MAX))
        return struct_reply(
            ConflictList(
                self._services.settings.node.name,
                [conflict_row(one) for one in newest],
                kept.noted,
                kept.dropped,
                kept.limit_count,
            )
        )

    async def letters(self, _request: Request) -> Reply:
        """The changes that this node's sink refused for good, the oldest first, with the reasons.

        `key`: bucket type, bucket and key for people; `key_encoded`: percent-encoded, which is exact.
        """
        letters = await self._services.sink.dead_letters()
        return struct_reply(DeadLetterList([letter_row(one) for one in letters]))

    async def letters_of_nodes(self, request: Request) -> Reply:
        """The dead letters of all nodes; null for a node that does not answer, or is gone.

        ?limit: letters of each, 1 to 1,000, default 100. ?node=NAME or all; with a node ?after=ID, the last one of the
        page before. `{"nodes": [{"node", "dead_letters", "more", "kept", "given_up"}], "unknown": {NODE: why},
        "at_ms"}`.
        """
        limit = request.number("limit", LETTERS, 1, PAGE_MAX)
        after = request.number("after", 0, 0, LETTER_ID_MAX)
        wanted = request.query.get("node", ALL)
        if after and wanted == ALL:
            raise RequestRefused(400, "bad-query", "after=ID needs node=NAME: each node has numbers of its own")
        membership = self._services.membership
        nodes = membership.known_nodes() if wanted == ALL else {self._keeper(wanted)}
        live = nodes & membership.live_nodes()
        answers = await self._services.query.ask(LETTER_PAGE, ListLetters(limit, after), live, own_may_fail=True)
        found = {**dict.fromkeys(nodes), **answers.by_node}
        return struct_reply(
            DeadLetterNodes(
                [_letters_of_node(node, page) for node, page in sorted(found.items())],
                {**answers.unknown, **dict.fromkeys(sorted(nodes - live), GONE)},
                self._services.time.wall_ms(),
            )
        )

    async def retry(self, request: Request, body: DeadLettersRequest) -> Reply:
        """Push dead letters of a node again: those named, or all.

        Another node has 50 s, then it is 504: letters that remain can be retried.
        """
        retried = await self._services.query.ask_one(
            RETRIED, RetryLetters(body.ids), self._keeper(body.node), timeout_ms=RETRY_TIMEOUT_MS
        )
        answer = LettersRetried(retried)
        request.changed(None, msgspec.to_builtins(answer))
        return struct_reply(answer)

    async def drop(self, request: Request, body: DeadLettersRequest) -> Reply:
        """Drop dead letters of a node: those named, or all."""
        dropped = await self._services.query.ask_one(
            DROPPED, DropLetters(body.ids), self._keeper(body.node), timeout_ms=DROP_TIMEOUT_MS
        )
        request.changed(None, {"dropped": dropped})
        return struct_reply(LettersDropped(dropped))

    def _keeper(self, node: str | None) -> str:
        """The node that keeps letters; None: this one. Raises RequestRefused."""
        known = self._services.membership.known_nodes()
        if node is not None and node not in known:
            there = ", ".join(sorted(known))
            raise RequestRefused(404, "unknown-node", f"there is no node {node[:64]!r}; there are {there}")
        return node or self._services.settings.node.name

    def _state(self) -> dict[str, Any]:
        """The state of this node's sink that operators change, for the audit log."""
        overview: dict[str, Any] = msgspec.to_builtins(self._overview())
        workers, rates = overview["workers"], overview["throttle"]["configured"]
        keys = ("suspensions", "peers_set", "queue_workers_set", "limits_set")
        limits = {"workers": workers["count"], "per_peer": workers["peer_limit"], **rates}
        return {**{key: overview[key] for key in keys}, "limits": limits}


def _link_of(body: RemoveSinkPeerRequest) -> LinkName:
    """The queue and the peer of a body. Raises RequestRefused."""
    try:
        return LinkName(check_name(body.queue or ""), check_peer_url(body.url or ""))
    except ValueError as error:
        raise RequestRefused(400, "bad-json", f"name the link: queue and url ({error})") from None


def _peer_of(body: SinkPeerRequest) -> tuple[LinkName, PeerSettings]:
    """The link of a body, with its settings. Raises RequestRefused."""
    name = _link_of(body)
    try:
        cluster = check_name(body.cluster) if body.cluster else ""
        token_file = None if body.token_file is None else Path(body.token_file)
    except ValueError as error:
        raise RequestRefused(400, "bad-json", str(error)) from None
    if token_file is not None and not token_file.is_absolute():
        raise RequestRefused(
            400, "bad-json", f"token_file {token_file}: an absolute path is right, the same on every node"
        )
    return name, PeerSettings(name.peer, name.queue, cluster, token_file)


def _letters_of_node(node: str, page: LetterPage | None) -> DeadLettersOfNode:
    if page is None:
        return DeadLettersOfNode(node, None, None, None, None)
    return DeadLettersOfNode(node, page.dead_letters, page.more, page.kept, page.given_up)
