"""Clocks of other nodes, measured by a request that an earlier version does not know."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from isthmus.node.services.clock_watch import METHOD, POLL_S, ClockWatch
from isthmus.repl.model.errors import BadInput, NotReady
from tests.support.virtual_time import LoopTime

pytestmark = pytest.mark.virtual_time


class Nodes:
    """Nodes with clocks of their own, and connections between them."""

    def __init__(self, **ahead_ms: int) -> None:
        self.ahead_ms = ahead_ms
        self.time = LoopTime()
        self.away: set[str] = set()
        self.old: set[str] = set()
        self.silent: set[str] = set()
        """Nodes of the version that says nothing of its certificate."""
        self.shown_s: dict[str, float] = {}
        """Node -> expiry of the certificate that connections with it have shown."""
        self.expires_ms: dict[str, int] = {}
        self.watches = {
            name: ClockWatch(_From(self), self._others(name), _Time(self, name), self._expiry(name))
            for name in ahead_ms
        }

    def _expiry(self, name: str) -> Any:
        return lambda: self.expires_ms.get(name)

    def _others(self, name: str) -> Any:
        return lambda: self.ahead_ms.keys() - {name}

    async def request(self, node: str, method: str, body: bytes) -> bytes:
        """One request, 10 ms each way."""
        await asyncio.sleep(0.01)
        if node in self.away:
            raise NotReady(f"no connection to node {node}")
        if node in self.old:
            raise BadInput(f"there is no method {method}")
        asked = b"" if node in self.silent else body
        answer: bytes = await self.watches[node].request_handlers()[METHOD]("x", asked)
        await asyncio.sleep(0.01)
        return answer


class _Time:
    def __init__(self, nodes: Nodes, name: str) -> None:
        self._nodes, self._name = nodes, name

    def now_ms(self) -> int:
        return self._nodes.time.now_ms()

    def wall_ms(self) -> int:
        return self._nodes.time.wall_ms() + self._nodes.ahead_ms[self._name]


class _From:
    def __init__(self, nodes: Nodes) -> None:
        self._nodes = nodes

    async def request(self, node: str, method: str, body: bytes, timeout_ms: int) -> bytes:
        """See Links."""
        assert timeout_ms > 0
        return await self._nodes.request(node, method, body)

    def certificates_expire_s(self) -> Mapping[str, float]:
        """See Links."""
        return self._nodes.shown_s


async def test_every_node_learns_the_clocks_of_the_others() -> None:
    """With each heartbeat; a clock that is set meanwhile is seen with the next one. A node that does not answer, and
    one of an earlier version, are not known, and hold up nothing (R-CLOCK)."""
    nodes = Nodes(a=0, b=30_000, c=-600_000)
    nodes.old = {"c"}
    watch = nodes.watches["a"]
    watch.start()
    await asyncio.sleep(1)
    assert watch.as_dict() == {"nodes": [{"node": "b", "offset_ms": 30_000, "bound_ms": 10.0}], "peers": []}
    assert watch.skew_ms([]) == 30_010
    nodes.old, nodes.away = set(), {"b"}
    nodes.ahead_ms["b"] = 0
    await asyncio.sleep(POLL_S)
    assert {row["node"]: row["offset_ms"] for row in watch.as_dict()["nodes"]} == {"b": 30_000, "c": -600_000}
    nodes.away = set()
    await asyncio.sleep(POLL_S)
    assert {row["node"]: row["offset_ms"] for row in watch.as_dict()["nodes"]} == {"b": 0, "c": -600_000}
    await watch.stop()


async def test_the_skew_covers_the_peers_that_are_compared() -> None:
    """The largest offset, with its bound, of live nodes and of the clusters at the given addresses."""
    nodes = Nodes(a=0, b=2_000)
    watch = nodes.watches["a"]
    assert watch.skew_ms(["http://w"]) == 0, "nothing is known yet"
    await watch.measure()
    watch.peers.answered("http://w", watch._time.wall_ms() - 9_000, 0)
    assert watch.skew_ms(["http://w"]) == 9_000
    assert watch.skew_ms(["http://other"]) == 2_010


async def test_a_certificate_is_the_one_that_a_node_has_now() -> None:
    """A connection shows the certificate of its beginning. A node says when the one that it has now expires; where it
    has none, or is of an earlier version, or is away, the connection counts. A node without a connection is left out.
    """
    nodes = Nodes(a=0, b=0, c=5, d=0, e=0)
    nodes.silent, nodes.away = {"c"}, {"d"}
    nodes.expires_ms = {"b": 9_500_000, "c": 9_600_000, "d": 9_700_000}
    nodes.shown_s = {"b": 1.0, "c": 2.0, "d": 3.0, "e": 4.0}
    await nodes.watches["a"].measure()
    assert nodes.watches["a"].certificates_expire_s() == {"b": 9500.0, "c": 2.0, "d": 3.0, "e": 4.0}
    assert {"b", "c", "e"} == nodes.watches["a"].nodes.known().keys()
    nodes.expires_ms["b"] = 9_900_000
    nodes.shown_s = {"b": 1.0}
    await nodes.watches["a"].measure()
    assert nodes.watches["a"].certificates_expire_s() == {"b": 9900.0}
