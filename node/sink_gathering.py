"""What the sink of each node says of itself, gathered by the node that was asked.

One request a node, all at once, with a time-out: who does not answer in time is unknown, never guessed.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final

from node.gathering import TIMEOUT_MS
from repl.model.errors import CodecError, IsthmusError
from sink.actor import Sink

METHOD: Final = "sink"


class SinkGathering:
    """Asks and answers. `request` is `Links.request`."""

    def __init__(
        self, *, node: str, request: Callable[[str, str, bytes, int], Awaitable[bytes]], sink: Callable[[], Sink]
    ) -> None:
        self._node = node
        self._request = request
        self._sink = sink

    def request_handlers(self) -> dict[str, Callable[[str, bytes], Awaitable[bytes]]]:
        """What other nodes may ask of this one, by method."""
        return {METHOD: self.answer}

    def own(self) -> dict[str, Any]:
        """This node's sink."""
        sink = self._sink()
        return {**sink.overview(), "sinks": sink.listing()}

    async def answer(self, _node: str, _body: bytes) -> bytes:
        """The same, for another node that gathers."""
        return json.dumps(self.own()).encode()

    async def gather(self, nodes: Iterable[str]) -> dict[str, dict[str, Any] | None]:
        """What each of `nodes` says; None for who did not answer."""
        names = sorted(set(nodes))
        found = await asyncio.gather(*(self._ask(name) for name in names))
        return dict(zip(names, found, strict=True))

    async def _ask(self, node: str) -> dict[str, Any] | None:
        if node == self._node:
            return self.own()
        try:
            return _unpacked(await self._request(node, METHOD, b"", TIMEOUT_MS))
        except IsthmusError:
            return None


def _unpacked(body: bytes) -> dict[str, Any]:
    try:
        found = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise CodecError(f"{METHOD}: not JSON ({error})") from error
    if not isinstance(found, dict) or not isinstance(found.get("sinks"), list):
        raise CodecError(f"{METHOD}: no sink")
    return found
