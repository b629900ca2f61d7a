"""One cluster of three nodes in virtual time, and requests to their admin listeners, for tests of what nodes answer."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine, Iterator, Mapping
from typing import Any, Final

import pytest

from isthmus.node.daemon import Node
from isthmus.node.services.history_series import ALL_TYPES, ISR_BASE
from isthmus.repl.model.errors import NotReady
from tests.simulation.world.clusters import Shape
from tests.simulation.world.node import ADMIN_PORT
from tests.simulation.world.world import World
from tests.support.waiting import eventually

LIFE_S: Final = 120.0
"""Longest virtual time of a test."""

Claim = Callable[[dict[str, Node]], Coroutine[Any, Any, None]]
"""What a test does with the nodes, by name; it runs on the operators' machine."""


def lived(world: World, claim: Claim) -> None:
    """Run a test's claim, once all nodes have sampled partitions that they lead with all members."""

    async def begun() -> None:
        nodes = {name: found for name, each in world.clusters["east"].nodes.items() if (found := each.node) is not None}
        await eventually(lambda: all(taken(node) > 2 and leads(node) for node in nodes.values()), "a sample of each")
        await eventually(lambda: not any(map(streams, nodes.values())), "viewers of the test before have left")
        await claim(nodes)

    task = world.operators.loop.create_task(begun())
    world.run_until(task.done, LIFE_S, "the test ends")
    task.result()


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    """One cluster of three nodes, for all tests that stop none."""
    with World("live", Shape((3,), 6)) as made:
        made.start()
        yield made


@pytest.fixture
def short_lived_world() -> Iterator[World]:
    """The same, for a test that stops a node."""
    with World("live", Shape((3,), 6)) as made:
        made.start()
        yield made


def address(node: Node) -> str:
    return node.services.admin_url.removeprefix("http://").rpartition(":")[0]


def on_its_loop(world: World, node: Node, act: Callable[[], object]) -> None:
    """Let the node's process do something."""
    world.clusters["east"].nodes[node.settings.node.name].machine.loop.call_soon(act)


def cut_off(node: Node, other: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the links of a node give no answer of another one."""
    request = node.services.links.request

    async def cut(name: str, method: str, body: bytes, timeout_ms: int) -> bytes:
        if name == other:
            raise NotReady(f"no connection to {other}")
        return await request(name, method, body, timeout_ms)

    monkeypatch.setattr(node.services.links, "request", cut)


async def get(node: Node, path: str, port: int = ADMIN_PORT) -> tuple[int, Any]:
    """The status and the JSON of a GET."""
    status, body = await get_bytes(node, path, port)
    return status, json.loads(body)


async def get_bytes(node: Node, path: str, port: int = ADMIN_PORT) -> tuple[int, bytes]:
    """The status and the body of a GET, read to the end of the connection."""
    return await exchange(node, f"GET {path} HTTP/1.1\r\nAccept: application/json\r\n", port=port)


async def exchange(node: Node, head: str, body: bytes = b"", *, port: int) -> tuple[int, bytes]:
    """The status and the body of an answer, read to the end of the connection."""
    reader, writer = await asyncio.open_connection(address(node), port)
    try:
        writer.write(f"{head}Host: n\r\nConnection: close\r\n\r\n".encode() + body)
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    finally:
        writer.close()
    if b"transfer-encoding: chunked" in head.lower():
        body = unchunked(body)
    return int(head.split()[1]), body


def unchunked(body: bytes) -> bytes:
    found = b""
    while body:
        size, _, body = body.partition(b"\r\n")
        found += body[: int(size, 16)]
        body = body[int(size, 16) + 2 :]
    return found


def taken(node: Node) -> float:
    """How many samples the history of a node has taken."""
    samples = {name: count for name, _, count in node.services.history_sampler.samples()}
    return samples["isthmus_history_samples_total"]


def leads(node: Node) -> bool:
    """The newest sample has a partition that the node leads with all three members."""
    return node.services.history.newest.get(("isr.worst", ALL_TYPES), 0) % ISR_BASE == 3


def streams(node: Node) -> float:
    ((_, _, count),) = node.admin_api.live.samples()
    return count


async def samples_more(nodes: Mapping[str, Node]) -> None:
    """Wait for two samples more of each node: what happened before is in one of them that is over."""
    before = {name: taken(node) for name, node in nodes.items()}
    await eventually(lambda: all(taken(node) > before[name] + 1 for name, node in nodes.items()))
