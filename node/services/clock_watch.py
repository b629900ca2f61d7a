"""Clocks of the other nodes of the cluster and of the clusters that this node is linked with, and nodes' certificates.

A heartbeat of its own over the cluster's connections asks each live node for its wall clock every POLL_S, and when its
certificate expires: a connection has the certificate of its beginning, which may have been replaced since then. A node
of an earlier version does not know the request, and stays unmeasured, or says nothing of its certificate. Links measure
the clocks of their sources with every answer (`sink.worker`), full-sync those of its peers (`aae.exchange.remote`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterator, Mapping
from struct import Struct
from typing import Any, Final, Protocol

from isthmus.repl.clock_offsets import ClockOffsets
from isthmus.repl.model.errors import CodecError, IsthmusError
from isthmus.repl.model.ports import TimeSource
from isthmus.repl.telemetry import Sample
from isthmus.repl.unforeseen import unforeseen

METHOD: Final = "clock"

POLL_S: Final = 5.0
"""Interval of the heartbeat: a clock that was set is seen within seconds; a request takes some 0.1 ms of CPU."""

TIMEOUT_MS: Final = 2_000
"""A slower answer would tell the clock to no better than a second, which is the limit above which it is wrong."""

WITH_CERTIFICATE: Final = b"certificate"
"""Body of a request whose answer may say when the certificate expires; an earlier version looks at no body."""

_WALL: Final = Struct("<q")

_WALL_AND_EXPIRY: Final = Struct("<qq")
"""Both in ms since 1970; 0: the node has no certificate."""


class NodeRequests(Protocol):
    """Requests to other nodes of this cluster (`repl.transport.port.Links`)."""

    async def request(self, node: str, method: str, body: bytes, timeout_ms: int) -> bytes:
        """The body of the response of `node`. Raises IsthmusError."""

    def certificates_expire_s(self) -> Mapping[str, float]:
        """See ClusterLinks."""


class ClockWatch:
    """Measures the clocks of live nodes, and joins what is known of all clocks. Belongs to the event loop."""

    def __init__(
        self,
        links: NodeRequests,
        others: Callable[[], Collection[str]],
        time: TimeSource,
        expires_ms: Callable[[], int | None],
    ) -> None:
        """`others`: names of the other live nodes. `expires_ms`: when this node's certificate expires, in ms since
        1970."""
        self._links = links
        self._expires_ms = expires_ms
        self._others = others
        self._time = time
        self.nodes = ClockOffsets("node", time)
        self._peers = ClockOffsets("peer", time)
        self._told_ms: dict[str, int] = {}
        """Node -> when its certificate expires, as it said last."""
        self._task: asyncio.Task[None] | None = None

    def cluster_skew_ms(self) -> int:
        """How far any clock of the cluster may be from this node's, as far as it was measured in the last minutes, of
        nodes that do not live any more, too."""
        return int(max((one.most_ms for one in self.nodes.known().values()), default=0))

    @property
    def peers(self) -> ClockOffsets:
        """Clocks of other clusters, by the address of the link or of the full-sync's peer."""
        return self._peers

    def request_handlers(self) -> dict[str, Any]:
        """Handlers of requests from other nodes, by method."""
        return {METHOD: self._serve}

    async def _serve(self, _node: str, body: bytes) -> bytes:
        if body != WITH_CERTIFICATE:
            return _WALL.pack(self._time.wall_ms())
        return _WALL_AND_EXPIRY.pack(self._time.wall_ms(), self._expires_ms() or 0)

    def start(self) -> None:
        """Begin to measure."""
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """End it."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    async def _run(self) -> None:
        while True:
            try:
                await self.measure()
            except Exception as error:  # the next round goes on
                unforeseen.exception("clock.bug", error)
            await asyncio.sleep(POLL_S)

    async def measure(self) -> None:
        """Ask every other live node once."""
        await asyncio.gather(*(self._ask(node) for node in sorted(self._others())))

    async def _ask(self, node: str) -> None:
        asked_ms = self._time.now_ms()
        try:
            wall_ms, expires_ms = _unpacked(await self._links.request(node, METHOD, WITH_CERTIFICATE, TIMEOUT_MS))
        except IsthmusError:
            return  # away, or of an earlier version: its clock is not known
        except Exception as error:  # the other nodes' clocks are measured all the same
            unforeseen.exception("clock.bug", error, peer=node)
            return
        self.nodes.answered(node, wall_ms, self._time.now_ms() - asked_ms)
        self._told_ms[node] = expires_ms

    def certificates_expire_s(self) -> Mapping[str, float]:
        """Connected node -> when its certificate expires, in seconds since 1970: as it said, or else as its connection
        showed."""
        shown = self._links.certificates_expire_s()
        return {node: self._told_ms.get(node, 0) / 1000 or at_s for node, at_s in shown.items()}

    def skew_ms(self, peer_urls: Collection[str]) -> int:
        """How far any clock may be from this node's, of the nodes that live and of the clusters at `peer_urls`, as far
        as it is measured."""
        found = [*self.nodes.known(self._others()).values(), *self.peers.known(peer_urls).values()]
        return int(max((one.most_ms for one in found), default=0))

    def samples(self) -> Iterator[Sample]:
        """For Prometheus; their help is `repl.clock_offsets.HELP`."""
        yield from self.nodes.metrics(self._others())
        yield from self.peers.metrics()

    def as_dict(self) -> Mapping[str, list[dict[str, Any]]]:
        """For listings: offsets of nodes and of peers in ms, each with its bound."""
        return {
            "nodes": [
                {"node": name, "offset_ms": round(one.offset_ms), "bound_ms": round(one.bound_ms, 1)}
                for name, one in sorted(self.nodes.known(self._others()).items())
            ],
            "peers": [
                {"peer": name, "offset_ms": round(one.offset_ms), "bound_ms": round(one.bound_ms, 1)}
                for name, one in sorted(self.peers.known().items())
            ],
        }


def _unpacked(body: bytes) -> tuple[int, int]:
    """Wall clock, and when the certificate expires; 0 if the node does not say."""
    if len(body) == _WALL.size:
        return _WALL.unpack(body)[0], 0
    if len(body) != _WALL_AND_EXPIRY.size:
        raise CodecError(f"neither a wall clock nor one with the expiry of a certificate: {len(body)} bytes")
    wall_ms, expires_ms = _WALL_AND_EXPIRY.unpack(body)
    return wall_ms, expires_ms
