"""The admin face's sink: what this cluster fetches from others, its suspensions, limits and dead letters.

Passes on what an operator wants and shows what `sink.service` says; of the whole cluster, what
`node.services.sink_query` gathered. docs/sinks.md tells what it all means.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from isthmus.config.settings import PeerSettings
from isthmus.config.validation import check_name, check_peer_url, is_own
from isthmus.node.admin_api.body import acting_user, count, flag, read_body, text
from isthmus.node.http.application import Request, json_reply
from isthmus.node.http.responses import Reply, RequestRefused
from isthmus.node.http.router import Router
from isthmus.node.services.cluster_status import with_gone
from isthmus.node.services.container import NodeServices
from isthmus.node.services.explain_key import dot_shown
from isthmus.node.services.link_check import Here, judged, look
from isthmus.node.services.sink_query import SINK
from isthmus.repl.model.vclock import decode_clock
from isthmus.sink.conflicts import shown
from isthmus.sink.limits import SinkLimits
from isthmus.sink.scheduler import LinkName
from isthmus.sink.service import WORKERS_MAX

SUSPEND_KEYS: Final = frozenset({"queue", "peer", "node", "by", "reason"})
LIMIT_KEYS: Final = frozenset(
    {"workers", "per_peer", "bytes_per_second", "objects_per_second", "node", "by", "reason", "forget", "queue"}
)
PEER_KEYS: Final = frozenset({"queue", "url", "cluster", "token_file", "by", "reason"})
LETTER_KEYS: Final = frozenset({"ids", "by"})

RATE_MAX: Final = 1 << 40
"""Largest rate that is taken; above any disk's."""

CONFLICTS: Final = 100
"""Conflicts shown when nobody says how many."""

CONFLICTS_MAX: Final = 10_000
"""Most conflicts shown at once: about 10 MB of JSON."""

IDS_MAX: Final = 10_000
"""Most dead letters named in one request."""


class SinkAdmin:
    """Routes over the sink of a running node."""

    def __init__(self, services: NodeServices, router: Router[Callable[..., Any]]) -> None:
        self._services = services
        router.add("GET", "/admin/sink", self.sink)
        router.add("GET", "/admin/sink/nodes", self.nodes)
        router.add("POST", "/admin/sink/suspend", self.suspend)
        router.add("POST", "/admin/sink/resume", self.resume)
        router.add("POST", "/admin/sink/limits", self.limits)
        router.add("POST", "/admin/sink/check", self.check)
        router.add("POST", "/admin/sink/peers/add", self.add_peer)
        router.add("POST", "/admin/sink/peers/remove", self.remove_peer)
        router.add("GET", "/admin/sink/conflicts", self.conflicts)
        router.add("GET", "/admin/sink/dead-letters", self.letters)
        router.add("POST", "/admin/sink/dead-letters/retry", self.retry)
        router.add("POST", "/admin/sink/dead-letters/drop", self.drop)

    async def sink(self, _request: Request) -> Reply:
        """Every (queue, peer) that this node fetches from, and its sink as a whole."""
        sink = self._services.sink
        return json_reply({**sink.overview(), "sinks": sink.listing()})

    async def nodes(self, _request: Request) -> Reply:
        """The same of every node of the cluster; null for one that does not answer, or is gone."""
        answers = await self._services.query.ask(SINK, None, self._services.membership.live_nodes())
        found = with_gone(self._services.controller.records, answers.by_node)
        return json_reply({"nodes": [{"node": node, "sink": what} for node, what in found.items()]})

    async def suspend(self, request: Request) -> Reply:
        """Start no new fetch of a queue, a peer, or all, on one node or on all."""
        wish = await read_body(request, SUSPEND_KEYS)
        await self._services.sink.suspend(
            text(wish, "queue"), text(wish, "peer"), acting_user(wish), text(wish, "reason") or "", text(wish, "node")
        )
        return await self.sink(request)

    async def resume(self, request: Request) -> Reply:
        """Fetch again."""
        wish = await read_body(request, SUSPEND_KEYS)
        await self._services.sink.resume(text(wish, "queue"), text(wish, "peer"), text(wish, "node"))
        return await self.sink(request)

    async def limits(self, request: Request) -> Reply:
        """Workers, workers per peer and rates, on one node or on all; with "forget" those that are named (with any
        number) are the config's again."""
        wish = await read_body(request, LIMIT_KEYS)
        if (queue := text(wish, "queue")) is not None:
            if any(wish.get(key) is not None for key in ("per_peer", "bytes_per_second", "objects_per_second")):
                raise RequestRefused(
                    400, "bad-json", "of one queue the workers alone can be set: the others are the node's"
                )
            workers, forget = count(wish, "workers", 1, WORKERS_MAX), flag(wish, "forget")
            if workers is None and not forget:
                raise RequestRefused(
                    400, "bad-json", f"say how many: workers, from 1 to {WORKERS_MAX}, or forget, true"
                )
            by, reason, node = acting_user(wish), text(wish, "reason") or "", text(wish, "node")
            await self._services.sink.set_queue_workers(queue, node, None if forget else workers, by, reason)
            return await self.sink(request)
        limits = SinkLimits(
            workers=count(wish, "workers", 1, WORKERS_MAX),
            peer_limit=count(wish, "per_peer", 0, WORKERS_MAX),
            bytes_per_second=count(wish, "bytes_per_second", 0, RATE_MAX),
            objects_per_second=count(wish, "objects_per_second", 0, RATE_MAX),
            by=acting_user(wish),
            at_ms=self._services.time.wall_ms(),
            reason=text(wish, "reason") or "",
        )
        if not flag(wish, "forget") and (limits.peer_limit or 0) > (limits.workers or WORKERS_MAX):
            raise RequestRefused(400, "bad-json", f"per_peer is at most workers, {limits.workers}: more never bind")
        await self._services.sink.set_limits(limits, text(wish, "node"), flag(wish, "forget"))
        return await self.sink(request)

    async def add_peer(self, request: Request) -> Reply:
        """Fetch from a queue of another cluster that no file need list."""
        wish = await read_body(request, PEER_KEYS)
        name, peer = _peer_of(wish)
        if is_own(name.peer, self._services.settings.listen.http):
            raise RequestRefused(
                400, "bad-input", f"{name.peer} is this node itself; a peer is a node of another cluster"
            )
        await self._services.sink.add_peer(peer, acting_user(wish), text(wish, "reason") or "")
        return await self.sink(request)

    async def check(self, request: Request) -> Reply:
        """Whether a link would work, as this node sees it; nothing is fetched or changed."""
        name, peer = _peer_of(await read_body(request, PEER_KEYS))
        node = self._services
        access = node.credentials.access_to(peer)
        found = await asyncio.to_thread(look, name.peer, name.queue, access, node.time.wall_ms)
        here = Here(
            node.cluster_uuid.hex(),
            node.settings.node.cluster,
            {record.bucket_type for record in node.controller.records.values()},
            {kind.decode(errors="backslashreplace"): one.hex() for kind, one in node.property_cache.digests().items()},
            node.property_cache.places(),
            any((row["queue"], row["peer"]) == name for row in node.sink.listing()),
        )
        rows = judged(name.peer, name.queue, peer.cluster, found, here)
        return json_reply({"node": node.settings.node.name, "queue": name.queue, "url": name.peer, "checks": rows})

    async def remove_peer(self, request: Request) -> Reply:
        """Fetch from it no more, though a file may list it."""
        wish = await read_body(request, PEER_KEYS - {"cluster", "token_file"})
        await self._services.sink.remove_peer(_link_of(wish), acting_user(wish), text(wish, "reason") or "")
        return await self.sink(request)

    async def conflicts(self, request: Request) -> Reply:
        """The newest concurrent changes that this node's sink fetched, newest first: ?count=N."""
        asked = request.query.get("count", str(CONFLICTS))
        if not (asked.isascii() and asked.isdigit() and 0 < int(asked[:9]) <= CONFLICTS_MAX):
            raise RequestRefused(
                400, "bad-query", f"count={asked[:40]}: a whole number from 1 to {CONFLICTS_MAX} is right"
            )
        found = await self._services.sink.conflicts(int(asked))
        rows = [{**shown(one), "ours": _clock(one.ours), "theirs": _clock(one.theirs)} for one in found["conflicts"]]
        return json_reply({"node": self._services.settings.node.name, **found, "conflicts": rows})

    async def letters(self, _request: Request) -> Reply:
        """The changes that this node's sink refused for good, the oldest first, and why."""
        return json_reply({"dead_letters": await self._services.sink.dead_letters()})

    async def retry(self, request: Request) -> Reply:
        """Push dead letters again: those named, or all."""
        wish = await read_body(request, LETTER_KEYS)
        return json_reply({"retried": await self._services.sink.retry_dead_letters(_numbers(wish))})

    async def drop(self, request: Request) -> Reply:
        """Forget dead letters: those named, or all."""
        wish = await read_body(request, LETTER_KEYS)
        return json_reply({"dropped": await self._services.sink.drop_dead_letters(_numbers(wish))})


def _link_of(wish: dict[str, Any]) -> LinkName:
    """The queue and the peer that a body names. Raises Refused."""
    try:
        return LinkName(check_name(text(wish, "queue") or ""), check_peer_url(text(wish, "url") or ""))
    except ValueError as error:
        raise RequestRefused(400, "bad-json", f"say which: queue and url ({error})") from None


def _peer_of(wish: dict[str, Any]) -> tuple[LinkName, PeerSettings]:
    """The peer that a body describes. Raises Refused."""
    name = _link_of(wish)
    try:
        cluster = check_name(text(wish, "cluster") or "") if wish.get("cluster") else ""
        token_file = None if wish.get("token_file") is None else Path(text(wish, "token_file") or "")
    except ValueError as error:
        raise RequestRefused(400, "bad-json", str(error)) from None
    if token_file is not None and not token_file.is_absolute():
        raise RequestRefused(
            400, "bad-json", f"token_file {token_file}: an absolute path is right, the same on every node"
        )
    return name, PeerSettings(name.peer, name.queue, cluster, token_file)


def _clock(encoded: bytes) -> dict[str, Any]:
    """A clock as X-Riak-Vclock has it, and the newest write of each actor in it."""
    dots = [dot_shown(actor, counter) for actor, counter, _ in decode_clock(encoded)]
    return {"clock": base64.b64encode(encoded).decode(), "seen": dots}


def _numbers(wish: dict[str, Any]) -> list[int] | None:
    ids = wish.get("ids")
    if ids is None:
        return None
    if not isinstance(ids, list) or len(ids) > IDS_MAX or not all(type(n) is int and 0 < n < 1 << 63 for n in ids):
        raise RequestRefused(
            400, "bad-json", f"ids must be a list of at most {IDS_MAX} numbers of dead letters, or null"
        )
    return ids
