"""Clocks of other nodes, measured by a request that an earlier version does not know."""

from __future__ import annotations

import asyncio
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
        self.watches = {name: ClockWatch(_From(self), self._others(name), _Time(self, name)) for name in ahead_ms}

    def _others(self, name: str) -> Any:
        return lambda: self.ahead_ms.keys() - {name}

    async def request(self, node: str, method: str, body: bytes) -> bytes:
        """One request, 10 ms each way."""
        await asyncio.sleep(0.01)
        if node in self.away:
            raise NotReady(f"no connection to node {node}")
        if node in self.old:
            raise BadInput(f"there is no method {method}")
        answer: bytes = await self.watches[node].request_handlers()[METHOD]("x", body)
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


async def test_every_node_learns_the_clocks_of_the_others() -> None:
    """With each heartbeat; a clock that is set meanwhile is seen with the next one. A node that does not answer, and
    one of an earlier version, are not known, and hold up nothing."""
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
