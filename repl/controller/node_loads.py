"""How busy each node's event loop is, as the controller decides where leaders stand by it.

The loop's thread is what a leader's work needs most of; its share of one core is measured, not how many cores a machine
has. The controller asks each live node every POLL_MS. A node of an earlier version does not know the request: its load
stays unknown.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Collection
from math import isnan, nan
from struct import Struct
from typing import Final, NamedTuple

from isthmus.repl.controller.log_positions import RequestLinks
from isthmus.repl.machine import machine
from isthmus.repl.model.errors import CodecError, IsthmusError
from isthmus.repl.ordered_set import OrderedSet
from isthmus.repl.unforeseen import unforeseen

METHOD: Final = "load"

POLL_MS: Final = 5_000
"""Pause between two requests to a node; one takes some 0.1 ms of CPU there."""

TIMEOUT_MS: Final = 2_000
"""A node that answers later is busy, or away: its load is not known."""

KNOWN_MS: Final = 15_000
"""How long an answer counts: two that are lost in a row change nothing."""

SPAN_S: Final = 10.0
"""Length of the time over which the share is taken: a checkpoint or a burst of a second does not move leaders."""

_SHARE: Final = Struct("<d")
"""The share in an answer; NaN: the node does not know it yet."""


class LoopLoad:
    """The share of one core that the calling thread takes, over SPAN_S. Belongs to the event loop."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, float]] = deque()
        """(monotonic s, CPU s of the thread) of earlier looks, at least a second apart."""

    def share(self) -> float | None:
        """0 to 1; None at the first look, and at one so long after the last that the share between would be of the
        past."""
        now_s, cpu_s = machine().monotonic_s(), machine().cpu_s()
        if self._seen and now_s - self._seen[-1][0] > 2 * SPAN_S:
            self._seen.clear()
        while len(self._seen) > 1 and now_s - self._seen[1][0] >= SPAN_S:
            self._seen.popleft()
        since_s, since_cpu_s = self._seen[0] if self._seen else (now_s, cpu_s)
        if not self._seen or now_s - self._seen[-1][0] >= 1:
            self._seen.append((now_s, cpu_s))
        return min(1.0, max(0.0, (cpu_s - since_cpu_s) / (now_s - since_s))) if now_s > since_s else None


class _Answer(NamedTuple):
    share: float | None
    at_ms: int


class NodeLoads:
    """The loads of the live nodes, as far as they are known. Belongs to the event loop."""

    def __init__(self, node: str, links: RequestLinks, wake: Callable[[], None]) -> None:
        """`wake` is called when a node's load has become known."""
        self._node = node
        self._links = links
        self._wake = wake
        self._own = LoopLoad()
        self._found: dict[str, _Answer] = {}
        self._asked_ms: int | None = None
        self._tasks: OrderedSet[asyncio.Task[None]] = OrderedSet()

    def request_handlers(self) -> dict[str, Callable[[str, bytes], Awaitable[bytes]]]:
        """Handlers of requests from other nodes, by method."""
        return {METHOD: self._serve}

    async def _serve(self, _node: str, _body: bytes) -> bytes:
        share = self._own.share()
        return _SHARE.pack(nan if share is None else share)

    def look(self, nodes: Collection[str], now_ms: int) -> int:
        """Ask `nodes`, the live ones, if it is time; returns the milliseconds until it is."""
        if self._asked_ms is None or now_ms - self._asked_ms >= POLL_MS:
            self._asked_ms = now_ms
            self._found = {node: one for node, one in self._found.items() if node in nodes}
            for node in sorted(nodes):
                if node == self._node:
                    self._found[node] = _Answer(self._own.share(), now_ms)
                else:
                    task = asyncio.get_running_loop().create_task(self._ask(node, now_ms))
                    self._tasks.add(task)
                    task.add_done_callback(self._tasks.discard)
        return self._asked_ms + POLL_MS - now_ms

    async def _ask(self, node: str, now_ms: int) -> None:
        try:
            body = await self._links.request(node, METHOD, b"", TIMEOUT_MS)
            if len(body) != _SHARE.size:
                raise CodecError(f"{METHOD} of node {node}: {len(body)} bytes, {_SHARE.size} are right")
            (share,) = _SHARE.unpack(body)
            is_new = self.known((node,), now_ms)[node] is None
            known = None if isnan(share) else share if 0 <= share <= 1 else 1.0
            self._found[node] = _Answer(known, now_ms)
        except IsthmusError:
            return  # away, or of an earlier version
        except Exception as error:  # the other nodes are asked all the same
            unforeseen.exception("balancing.load_bug", error, peer=node)
            return
        if is_new and known is not None:
            self._wake()

    def known(self, nodes: Collection[str], now_ms: int) -> dict[str, float | None]:
        """The share of each of `nodes`; None where it is not known."""
        found = {node: self._found.get(node) for node in nodes}
        return {
            node: one.share if one is not None and now_ms - one.at_ms < KNOWN_MS else None
            for node, one in found.items()
        }

    def forget(self) -> None:
        """Another node controls the cluster."""
        self._found, self._asked_ms = {}, None

    async def stop(self) -> None:
        """Cancel the requests under way."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
