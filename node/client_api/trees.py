"""POST /trees/roots, /trees/leaves, /trees/clocks, /trees/repair: another cluster compares its trees with ours.

Any node answers for its whole cluster: `aae.exchange.cluster` adds up the nodes, `aae.exchange.wire` has the bodies.
Few requests run at once, since each reads rows or copies leaves; more are refused with 503.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Final

from isthmus.aae.exchange import wire
from isthmus.aae.exchange.cluster import ClusterTrees
from isthmus.aae.scheduling.check import Repairs
from isthmus.node.http.application import MSGPACK, HttpApplication, Request
from isthmus.node.http.responses import Headers, Reply
from isthmus.repl.model.errors import Overloaded
from isthmus.repl.model.keys import Key
from isthmus.repl.model.this_node import ThisNode

QUESTIONS_MAX: Final = 8
"""Requests answered at once: an exchange sends one at a time, and each may hold some 10 MB."""

_HEADERS: Final[Headers] = [(b"content-type", MSGPACK)]


class TreeRoutes:
    """The routes of other clusters' full-sync."""

    def __init__(
        self,
        trees: ClusterTrees,
        repairs: Repairs,
        api: HttpApplication,
        this: ThisNode,
        *,
        wall_ms: Callable[[], int],
    ) -> None:
        self._trees = trees
        self._repairs = repairs
        self._cluster = this.cluster_uuid
        self._name = this.cluster
        self._wall_ms = wall_ms
        self.running = 0
        for path, handler in zip(wire.PATHS, (self._roots, self._leaves, self._clocks, self._repair), strict=True):
            api.router.add("POST", path, handler)

    async def _roots(self, request: Request) -> Reply:
        asked = wire.decode_roots_request(await self._question(request))
        return await self._limited(request, self._roots_of(asked))

    async def _leaves(self, request: Request) -> Reply:
        asked = wire.decode_leaves_request(await self._question(request))
        return await self._limited(request, self._leaves_of(asked))

    async def _clocks(self, request: Request) -> Reply:
        asked = wire.decode_clocks_request(await self._question(request))
        return await self._limited(request, self._clocks_of(asked))

    async def _repair(self, request: Request) -> Reply:
        asked = wire.decode_repair_request(await self._question(request))
        return await self._limited(request, self._repaired(asked))

    async def _repaired(self, asked: wire.RepairRequest) -> bytes:
        keys = [Key(asked.bucket_type, bucket, key) for bucket, key in asked.names]
        await self._repairs.recall(keys)  # some may be ahead by a tombstone that was reaped
        return wire.encode_repair_response(await self._repairs.push(asked.queue, keys))

    async def _roots_of(self, asked: wire.RootsRequest) -> bytes:
        return wire.encode_hashes(wire.HashesResponse((), await self._trees.roots(asked)))

    async def _leaves_of(self, asked: wire.LeavesRequest) -> bytes:
        return wire.encode_hashes(wire.HashesResponse((), await self._trees.leaves(asked)))

    async def _clocks_of(self, asked: wire.ClocksRequest) -> bytes:
        return wire.encode_rows(await self._trees.clocks(asked))

    @staticmethod
    async def _question(request: Request) -> bytes:
        return await request.body(wire.REQUEST_BYTES_MAX, "a question about trees")

    async def _limited(self, request: Request, answer: Coroutine[None, None, bytes]) -> Reply:
        if self.running >= QUESTIONS_MAX:
            answer.close()
            raise Overloaded(f"{QUESTIONS_MAX} questions about trees are being answered, which is this node's limit")
        self.running += 1
        try:
            body = await answer
        finally:
            self.running -= 1
        wall_ms = self._wall_ms() if wire.CLOCK in request.query else None
        response = wire.PeerResponse(self._cluster, self._name, body, wall_ms)
        compress = request.query.get("compress", "")
        if compress != wire.ZSTD:
            return Reply(200, _HEADERS, wire.encode_peer_response(response))
        loop = asyncio.get_running_loop()
        return Reply(200, _HEADERS, await loop.run_in_executor(None, wire.encode_peer_response, response, compress))
