"""A network in memory: the twin of `repl.transport.links.ClusterLinks`, with cuts and losses on request.

Messages go through the real codec, so that sender and receiver never share an object. One turn of the loop makes one
frame, and a frame arrives a turn later, in order, unless the wire was cut meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping
from typing import Any

import msgpack

from isthmus.repl.isr.messages import AppendEntries, StaleEpoch
from isthmus.repl.isr.pair_stream import StreamGroup
from isthmus.repl.model.errors import IsthmusError, NotReady, OutcomeUnknown
from isthmus.repl.transport.codec import FROM_FOLLOWER, Encoder, decode_item
from isthmus.repl.transport.port import NO_CURSORS, LinkListener, LinkMessage, ReachabilityObserver


class MemoryNetwork:
    """Links between all nodes; `cut` and `heal` by pair."""

    def __init__(self) -> None:
        self.plugged: dict[str, MemoryLinks] = {}
        self._cut: set[frozenset[str]] = set()
        self.deaf: set[str] = set()
        """Nodes that nobody can dial; see `deafen`."""
        self.lost: Callable[[str, str, int, LinkMessage], bool] = lambda _sender, _to, _partition, _message: False
        """Called for each message with sender, receiver and partition: True loses it, on a connection that stays up."""

    def passable(self, one: str, other: str) -> bool:
        return one in self.plugged and other in self.plugged and frozenset((one, other)) not in self._cut

    def cut(self, one: str, other: str) -> None:
        """Break the connections of a pair until `heal`."""
        self._cut.add(frozenset((one, other)))
        for links, peer in ((self.plugged.get(one), other), (self.plugged.get(other), one)):
            if links is not None:
                links.broken(peer)

    def deafen(self, node: str) -> None:
        """Close a node's listener until `heal`: connections that others dialled break, and none can be dialled; its own
        stand."""
        self.deaf.add(node)
        here = self.plugged[node]
        for name, links in self.plugged.items():
            if node in links.dialled:
                links.dialled.discard(node)
                links._loop.call_soon(links._report, node, False)
                assert here.listener is not None
                here._loop.call_soon(here.listener.link_changed, name, False)

    def heal(self) -> None:
        """Undo all cuts; diallers dial again."""
        self._cut.clear()
        self.deaf.clear()
        for links in list(self.plugged.values()):
            links.dial()

    def isolate(self, node: str) -> None:
        """Cut one node off from all the others."""
        for other in list(self.plugged):
            if other != node:
                self.cut(node, other)

    def unplug(self, node: str) -> None:
        """The node's process is gone."""
        del self.plugged[node]
        for links in self.plugged.values():
            links.broken(node)


class MemoryLinks:
    """One node's end: `repl.transport.port.Links`."""

    def __init__(
        self,
        network: MemoryNetwork,
        node: str,
        *,
        observer: ReachabilityObserver,
        on_request: Callable[[str, str, bytes], Awaitable[bytes]],
        catch_up_limit_bytes: int = 8_000_000,
        takes_streams: bool = True,
    ) -> None:
        self._network = network
        self._node = node
        self.listener: LinkListener | None = None
        self.observer = observer
        self.on_request = on_request
        self._loop = asyncio.get_running_loop()
        self.takes_streams = takes_streams
        """False: behaves as a node of a version without streams."""
        self._nodes: set[str] = set()
        self._calls: set[asyncio.Task[bytes]] = set()
        self.dialled: set[str] = set()
        self._out: dict[str, list[bytes]] = {}
        self._encoder = Encoder()
        self._catch_up_limit_bytes = catch_up_limit_bytes
        self._catch_up_waiting: dict[str, int] = {}
        network.plugged[node] = self

    def start(self, listener: LinkListener) -> None:
        """From now on `listener` receives."""
        self.listener = listener

    def set_nodes(self, addresses: Mapping[str, str]) -> None:
        for gone in self._nodes - addresses.keys():
            self.broken(gone)
        self._nodes = set(addresses)
        self.dial()

    def dial(self) -> None:
        """Connect to every reachable node."""
        for node in sorted(self._nodes - self.dialled - self._network.deaf):
            if self._network.passable(self._node, node):
                self.dialled.add(node)
                self._loop.call_soon(self._report, node, True)
                self._loop.call_soon(self._want_stream, node)

    def _report(self, node: str, up: bool) -> None:
        assert self.listener is not None
        self.observer.link_changed(node, up)
        self.listener.link_changed(node, up)

    def _want_stream(self, node: str) -> None:
        other = self._network.plugged.get(node)
        if other is None or other.listener is None or node not in self.dialled:
            return
        if self.takes_streams and other.takes_streams:
            other.listener.stream_wanted(self._node)

    def takes_stream(self, node: str) -> bool:
        other = self._network.plugged.get(node)
        return other is not None and other.takes_streams and self._node in other.dialled

    def broken(self, node: str) -> None:
        """Both connections with `node` are gone."""
        other = self._network.plugged.get(node)
        if node in self.dialled or (other is not None and self._node in other.dialled):
            self.dialled.discard(node)
            self._out.pop(node, None)
            self._catch_up_waiting.pop(node, None)
            self._loop.call_soon(self._report, node, False)
            self._loop.call_soon(self.dial)

    def _connected(self, node: str, message: LinkMessage) -> bool:
        if not self._network.passable(self._node, node):
            return False
        here, there = node in self.dialled, self._node in self._network.plugged[node].dialled
        if type(message) in FROM_FOLLOWER:
            return here
        return (here or there) if isinstance(message, StaleEpoch) else there

    def send(
        self,
        node: str,
        partition: int,
        message: LinkMessage,
        *,
        live: bool = True,
        cursors: Mapping[bytes, bytes] = NO_CURSORS,
    ) -> bool:
        if not self._connected(node, message):
            return False
        item = b"".join(self._encoder.item(partition, message, cursors))
        if not live:
            if self.catch_up_room(node) < len(item) < self._catch_up_limit_bytes:
                return False
            self._catch_up_waiting[node] = self._catch_up_waiting.get(node, 0) + len(item)
        if self._network.lost(self._node, node, partition, message):
            return True
        if node not in self._out:
            self._out[node] = []
            self._loop.call_soon(self._flush, node)
        self._out[node].append(item)
        return True

    def _flush(self, node: str) -> None:
        self._encoder.forget()
        items = self._out.pop(node, [])
        self._catch_up_waiting.pop(node, None)
        if items and self._network.passable(self._node, node):
            self._loop.call_soon(self._network.plugged[node].arrived, self._node, items)

    def arrived(self, node: str, items: list[bytes]) -> None:
        """A frame."""
        if self._network.passable(self._node, node):
            deliveries = [decode_item(msgpack.unpackb(item, use_list=False)) for item in items]
            assert self.listener is not None
            self.listener.received(node, deliveries)

    def catch_up_room(self, node: str) -> int:
        if not self._network.passable(self._node, node) or self._node not in self._network.plugged[node].dialled:
            return 0
        return max(0, self._catch_up_limit_bytes - self._catch_up_waiting.get(node, 0))

    def linked(self, node: str) -> bool:
        return node in self.dialled

    def dialled_nodes(self) -> Collection[str]:
        return self.dialled

    def dialled_by(self) -> Collection[str]:
        plugged = self._network.plugged
        return [node for node in plugged if node != self._node and self._node in plugged[node].dialled]

    async def request(self, node: str, method: str, body: bytes, timeout_ms: int) -> bytes:
        if node not in self.dialled:
            raise NotReady(f"no connection to node {node}")
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await asyncio.sleep(0)
                answer = await self._network.plugged[node].on_request(self._node, method, body)
        except (TimeoutError, KeyError) as error:
            raise OutcomeUnknown(f"no answer from node {node}") from error
        if node not in self.dialled:
            raise OutcomeUnknown(f"the connection to node {node} broke")
        return answer

    def send_request(
        self, node: str, method: str, body: bytes, timeout_ms: int, answered: Callable[[bytes | IsthmusError], None]
    ) -> None:
        if node not in self.dialled:
            raise NotReady(f"no connection to node {node}")
        call_back(self._calls, self.request(node, method, body, timeout_ms), answered)


def call_back(
    calls: set[asyncio.Task[bytes]],
    request: Coroutine[Any, Any, bytes],
    answered: Callable[[bytes | IsthmusError], None],
) -> None:
    """Run a request in a task of `calls`, and call `answered` with its answer or error."""

    def done(task: asyncio.Task[bytes]) -> None:
        calls.discard(task)
        if task.cancelled():
            return
        error = task.exception()
        assert error is None or isinstance(error, IsthmusError)
        answered(task.result() if error is None else error)

    task = asyncio.get_running_loop().create_task(request)
    calls.add(task)
    task.add_done_callback(done)


def as_handler(
    direct: Callable[[str, bytes, Callable[[bytes | IsthmusError], None]], None],
) -> Callable[[str, bytes], Awaitable[bytes]]:
    """A direct handler (`repl.transport.rpc.DirectHandler`) as one that is awaited."""

    async def handler(node: str, body: bytes) -> bytes:
        future: asyncio.Future[bytes | IsthmusError] = asyncio.get_running_loop().create_future()
        direct(node, body, future.set_result)
        answer = await future
        if isinstance(answer, IsthmusError):
            raise answer
        return answer

    return handler


def is_entries(message: LinkMessage) -> bool:
    """True for a message that carries entries."""
    if isinstance(message, StreamGroup):
        return bool(message.runs)
    return isinstance(message, AppendEntries) and bool(message.entries)
