"""Log positions of electable replicas, requested from their nodes: one request per node for all partitions.

The answers only rank candidates (docs/protocol.md H12); the record decides who may be elected. So a lost, late or old
answer costs lag, not data. `repl.controller.election` uses the positions, `repl.controller.controller` asks for them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

import msgpack

from isthmus.repl.controller.election import ASK_MS
from isthmus.repl.model.errors import BadInput, CodecError, IsthmusError
from isthmus.repl.unforeseen import unforeseen

METHOD: Final = "status"

PARTITIONS_MAX: Final = 65_536
"""Partitions of one request, many times what a cluster has; above it the request is refused."""

ASK_AGAIN_MS: Final = 50
"""Pause after a failed request, so that a connection that is being built is used within ASK_MS."""

Position = tuple[int, int]
"""(last epoch, LEO) of one replica's log."""


class RequestLinks(Protocol):
    """The part of `repl.transport.port.Links` that the controller needs."""

    async def request(self, node: str, method: str, body: bytes, timeout_ms: int) -> bytes:
        """Ask another node; returns the answer's body. Raises IsthmusError; see `Links.request`."""


class LocalPositions(Protocol):
    """The positions of this node's replicas (`repl.runtime.runtime.Runtime`)."""

    def position_of(self, partition: int, /) -> Position | None:
        """The position of this node's replica of a partition; None when it has none."""


class LogPositions:
    """The positions received, by partition and node, and the requests under way (at most one per node)."""

    def __init__(
        self,
        *,
        node: str,
        links: RequestLinks,
        own: LocalPositions,
        on_answer: Callable[[], None],
    ) -> None:
        """`own` has the positions of this node's replicas. `on_answer` is called
        when more is known, and when it is time to ask again."""
        self._node = node
        self._links = links
        self._own = own
        self._on_answer = on_answer
        self._received: dict[int, dict[str, Position]] = {}
        self._wanted: dict[str, set[int]] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def of(self, partition: int) -> Mapping[str, Position]:
        """Node -> its position, for the nodes that have answered."""
        return self._received.get(partition, {})

    def want(self, partition: int, nodes: list[str]) -> None:
        """Ask these nodes about a partition at the next `send`, unless they have answered."""
        received = self._received.setdefault(partition, {})
        for node in nodes:
            if node in received:
                continue
            if node == self._node:
                received[node] = self._own.position_of(partition) or (-1, -1)
            else:
                self._wanted.setdefault(node, set()).add(partition)

    def forget(self, partition: int) -> None:
        """Drop the positions of a partition: its election is over, or another one."""
        self._received.pop(partition, None)

    def send(self) -> None:
        """Send the wanted requests to every node without a request under way; the others get theirs after their
        answer."""
        wanted, self._wanted = self._wanted, {}
        for node, partitions in wanted.items():
            task = self._tasks.get(node)
            if task is None or task.done():
                self._tasks[node] = asyncio.get_running_loop().create_task(self._ask(node, sorted(partitions)))

    async def _ask(self, node: str, partitions: list[int]) -> None:
        try:
            answer = await self._links.request(node, METHOD, msgpack.packb(partitions), ASK_MS)
            found = _answered(answer)
        except IsthmusError:
            await asyncio.sleep(ASK_AGAIN_MS / 1000)
        except Exception as error:  # the node is asked again: elections wait for its answer
            unforeseen.exception("controller.position_bug", error, peer=node)
            await asyncio.sleep(ASK_AGAIN_MS / 1000)
        else:
            for partition in partitions:
                if partition in self._received:
                    self._received[partition][node] = found.get(partition, (-1, -1))
        del self._tasks[node]
        self._on_answer()

    async def answer(self, node: str, body: bytes) -> bytes:
        """The positions of the partitions in `body`; those without a copy here are left out. Raises BadInput."""
        asked = _unpacked(body)
        if not isinstance(asked, list) or len(asked) > PARTITIONS_MAX or not all(_count(each) for each in asked):
            raise BadInput(f"{METHOD} of {node}: a list of at most {PARTITIONS_MAX} partition ids is right")
        found = {partition: self._own.position_of(partition) for partition in asked}
        packed: bytes = msgpack.packb({partition: at for partition, at in found.items() if at is not None})
        return packed

    async def stop(self) -> None:
        """Cancel the requests under way."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _unpacked(body: bytes) -> Any:
    try:
        return msgpack.unpackb(body, strict_map_key=False)
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise CodecError(f"{METHOD}: not msgpack ({error})") from error


def _answered(body: bytes) -> dict[int, Position]:
    found = _unpacked(body)
    if not isinstance(found, dict) or len(found) > PARTITIONS_MAX:
        raise CodecError(f"{METHOD}: the answer is not a map of partitions")
    for partition, at in found.items():
        if not (_count(partition) and isinstance(at, list) and len(at) == 2 and all(_count(each) for each in at)):
            raise CodecError(f"{METHOD}: the answer on partition {partition!r:.40} is {at!r:.40}, not [epoch, leo]")
    return {partition: (at[0], at[1]) for partition, at in found.items()}


def _count(value: object) -> bool:
    return type(value) is int and 0 <= value < 1 << 63
