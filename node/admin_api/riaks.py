"""Riaks in the admin API: which are fetched from, checks before one is added, and seeds.

Links to their nodes are links of the sink (`node.admin_api.sinks`). docs/riak.md explains the terms.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import unquote_to_bytes

import msgspec

from isthmus.config.relations import is_own
from isthmus.config.settings import ALL_TYPES
from isthmus.node.admin_api.acting_user import acting_user
from isthmus.node.http.application import Request
from isthmus.node.http.json_body import add_noun, struct_reply
from isthmus.node.http.responses import Reply, RequestRefused
from isthmus.node.http.router import Router
from isthmus.node.nouns.riak import (
    ADD,
    CHECK,
    REMOVE,
    RIAK,
    SEED,
    STOP_SEED,
    AddRiakRequest,
    NamedRiakRequest,
    RiakAccessRequest,
    RiakChecked,
    RiakList,
    SeedRequest,
)
from isthmus.node.nouns.sink import CheckedLine
from isthmus.node.services.container import NodeServices
from isthmus.node.services.riak_check import judged, look
from isthmus.node.services.riak_listing import riaks_of
from isthmus.sink.riak_peers import RiakPeerEntry, checked


class RiakAdmin:
    """Routes over Riaks."""

    def __init__(self, services: NodeServices, router: Router[Callable[..., Any]]) -> None:
        self._services = services
        add_noun(
            router,
            RIAK,
            self.riaks,
            None,
            {ADD: self.add, CHECK: self.check, REMOVE: self.remove, SEED: self.seed, STOP_SEED: self.stop_seed},
        )

    async def riaks(self, _request: Request) -> Reply:
        """Every Riak that changes are fetched from: the links of this node to it, and its newest seed."""
        return struct_reply(self._list())

    def _list(self) -> RiakList:
        services = self._services
        return riaks_of(services.sink, services.settings.node.name, services.time.wall_ms())

    async def add(self, request: Request, body: AddRiakRequest) -> Reply:
        """Fetch from a Riak that no file lists, on all nodes and over restarts."""
        entry = self._entry(
            body,
            name=body.name,
            workers=body.workers or 0,
            rate_limit_bytes=body.bytes_per_second or 0,
            object_rate_limit_count=body.objects_per_second or 0,
            by=acting_user(body.by),
            at_ms=self._services.time.wall_ms(),
            reason=body.reason or "",
        )
        with request.changing(self._state):
            await self._services.sink.add_riak(entry)
        return await self.riaks(request)

    async def check(self, _request: Request, body: RiakAccessRequest) -> Reply:
        """Check whether a Riak could be fetched from, as this node sees it; nothing is taken or changed.

        Answers `checks`, each with `what`, `state`, `found` and `right`.
        """
        node = self._services
        entry = self._entry(body, name="check")
        peer = entry.settings()
        here = {
            record.bucket_type.encode(): node.property_cache.of_type(record.bucket_type.encode()).default.allow_mult
            for record in node.controller.records.values()
        }
        named = [] if peer.bucket_types == ALL_TYPES else [one.encode() for one in peer.bucket_types.split(",")]
        access = node.credentials.access_to_riak(peer)
        found = await asyncio.to_thread(look, peer.urls.split(","), peer.queue, access, list(here), named)
        rows = judged(peer.queue, found, here, named)
        lines = [msgspec.convert(row, CheckedLine) for row in rows]
        return struct_reply(RiakChecked(node.settings.node.name, peer.urls, peer.queue, lines))

    async def remove(self, request: Request, body: NamedRiakRequest) -> Reply:
        """Stop fetching from a Riak, on all nodes and over restarts, though a file may list it."""
        with request.changing(self._state):
            await self._services.sink.remove_riak(request.text("riak"), acting_user(body.by), body.reason or "")
        return await self.riaks(request)

    async def seed(self, request: Request, body: SeedRequest) -> Reply:
        """Bring all keys of a Riak here once, from this node, or go on with a seed that did not end."""
        with request.changing(self._state):
            await self._services.sink.seeds.begin(
                request.text("riak"),
                body.way,
                _name(body.bucket_type),
                _name(body.bucket),
                acting_user(body.by),
                body.reason or "",
            )
        return await self.riaks(request)

    async def stop_seed(self, request: Request, body: NamedRiakRequest) -> Reply:
        """Stop a seed, wherever it runs; the next one goes on with it."""
        with request.changing(self._state):
            await self._services.sink.seeds.halt(request.text("riak"), acting_user(body.by), body.reason or "")
        return await self.riaks(request)

    def _entry(self, body: RiakAccessRequest, **more: Any) -> RiakPeerEntry:
        """A Riak as a body describes it. Raises RequestRefused."""
        for name in ("password_file", "authority"):
            path = getattr(body, name)
            if path is not None and not Path(path).is_absolute():
                raise RequestRefused(400, "bad-json", f"{name} is an absolute path, the same on every node")
        try:
            entry = checked(
                RiakPeerEntry(
                    urls=body.urls,
                    queue=body.queue,
                    bucket_types=body.bucket_types or ALL_TYPES,
                    user=body.user or "",
                    password_file=body.password_file,
                    authority=body.authority,
                    **more,
                )
            )
        except ValueError as error:
            raise RequestRefused(400, "bad-json", str(error)) from None
        own = self._services.settings.listen.http
        if any(is_own(url, own) for url in entry.urls.split(",")):
            raise RequestRefused(400, "bad-input", "a URL is this node itself: name nodes of a Riak")
        return entry

    def _state(self) -> dict[str, Any]:
        """What operators have set about Riaks, for the audit log."""
        sink = self._services.sink
        entries = [msgspec.to_builtins(one) for one in sink.riak_entries().values()]
        seeds = [
            {"riak": one.riak, "state": one.state, "way": one.way, "bucket_type": one.bucket_type, "bucket": one.bucket}
            for one in sink.seeds.records()
        ]
        return {"riaks_set": entries, "seeds": seeds}


def _name(text: str | None) -> bytes | None:
    return None if text is None else unquote_to_bytes(text)
