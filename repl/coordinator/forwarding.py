"""Forwarding: sends items to the leaders of their partitions on other nodes, and returns the answers.

All items that are posted for one node in one turn of the event loop go in one request. An item is forwarded once: the
receiver serves what it leads and refuses the rest (`repl.coordinator.forwarded_requests`). If a request gets no answer,
its writes and pushes may have taken effect (OutcomeUnknown), and its reads are NotReady. The codec is
`repl.coordinator.kv_rpc`.

Nothing here bounds the items in flight: the request that brought them holds them, and requests are bounded where they
come in (bodies of a listener, batches of a sink).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import Any, Final

from isthmus.repl.coordinator import kv_rpc
from isthmus.repl.coordinator.kv_rpc import GET, LATER, LIST, PUSH, WRITE, ListAsk, ListPage
from isthmus.repl.model.errors import CodecError, IsthmusError, NotReady, OutcomeUnknown, Overloaded, clear_traceback
from isthmus.repl.model.keys import Key
from isthmus.repl.model.requests import Isolation, PushItem, WriteRequest
from isthmus.repl.telemetry import Sample
from isthmus.repl.transport.port import Links

REQUEST_BYTES: Final = 4 * 1024 * 1024
"""Bytes of items after which a request is full; a larger item goes alone. This is many times what one turn of the loop
brings under load; with more, the first items would only wait for the last one."""

REQUEST_ITEMS: Final = 1_000
"""Items after which a request is full: the receiver spends a few milliseconds of its loop on them."""

Done = Callable[[list[object]], None]


class ForwardedBatch:
    """Encoded items for one node, and their answers, in order. The last answer calls `done`.

    `room_bytes` bounds the answers of reads: once they have reached it, the other items are refused as Overloaded.
    """

    __slots__ = ("answers", "done", "items", "missing", "room_bytes")

    def __init__(self, items: list[bytes], done: Done, room_bytes: int = 0) -> None:
        self.items = items
        self.done = done
        self.room_bytes = room_bytes
        self.answers: list[object] = [LATER] * len(items)
        self.missing = len(items)

    def put(self, slot: int, answer: object) -> None:
        """Set the answer of one item."""
        self.answers[slot] = answer
        if type(answer) is bytes:
            self.room_bytes -= len(answer)
        self.missing -= 1
        if not self.missing:
            self.done(self.answers)

    def give_up(self, error: IsthmusError) -> None:
        """Set `error` as the answer of every item that has none."""
        for slot, answer in enumerate(self.answers):
            if answer is LATER:
                self.put(slot, error)


_Waiting = list[tuple[ForwardedBatch, int]]
"""Items without an answer: (batch, slot)."""

_DECODERS: Final[dict[str, Callable[[tuple[Any, ...]], object]]] = {
    WRITE: kv_rpc.decode_written,
    PUSH: kv_rpc.decode_pushed,
    GET: kv_rpc.decode_read,
}


class LeaderForwarder:
    """Sends requests to other nodes of the cluster. Belongs to the event loop."""

    def __init__(self, links: Links, *, request_timeout_ms: int, body_limit_bytes: int) -> None:
        """`body_limit_bytes`: a size of body that the links accept."""
        self._links = links
        self._request_bytes = min(REQUEST_BYTES, body_limit_bytes // 2)
        self._timeout_ms = request_timeout_ms
        self._loop = asyncio.get_running_loop()
        self._outbox: dict[tuple[str, str, Isolation | None], list[ForwardedBatch]] = {}
        self._scheduled = False
        self._tasks: set[asyncio.Task[None]] = set()
        self.counts = dict.fromkeys((WRITE, PUSH, GET, LIST), 0)

    def write(self, node: str, requests: Sequence[WriteRequest], done: Done) -> None:
        """Forward writes; `done` is called once with a WriteResult or an error for each, in order."""
        self._post(node, WRITE, None, ForwardedBatch([kv_rpc.encode_write(r) for r in requests], done))

    def push(self, node: str, items: Sequence[PushItem], done: Done) -> None:
        """Forward pushes; `done` is called once with a PushResult or an error for each, in order."""
        self._post(node, PUSH, None, ForwardedBatch([kv_rpc.encode_push(item) for item in items], done))

    async def get(self, node: str, keys: Sequence[Key], isolation: Isolation, room_bytes: int) -> list[object]:
        """Forward reads; returns the payload, None or an error for each, in order. The answers stay below `room_bytes`,
        except for the last."""
        future: asyncio.Future[list[object]] = self._loop.create_future()

        def done(answers: list[object]) -> None:
            if not future.done():
                future.set_result(answers)

        self._post(node, GET, isolation, ForwardedBatch([kv_rpc.encode_key(key) for key in keys], done, room_bytes))
        return await future

    async def page(self, node: str, ask: ListAsk) -> ListPage:
        """One page of a listing from the node that leads the partition. Raises Retryable and what the node raised."""
        self.counts[LIST] += 1
        try:
            return kv_rpc.decode_list_page(
                await self._links.request(node, LIST, kv_rpc.encode_list_ask(ask), self._timeout_ms)
            )
        except (OutcomeUnknown, CodecError) as error:
            raise NotReady(f"node {node} has not answered: {error}") from error

    def samples(self) -> Iterator[Sample]:
        """Items forwarded since start, by method."""
        for method, count in self.counts.items():
            yield "isthmus_forwarded_items_total", {"method": method}, count

    def _post(self, node: str, method: str, isolation: Isolation | None, batch: ForwardedBatch) -> None:
        self._outbox.setdefault((node, method, isolation), []).append(batch)
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._drain)

    def _drain(self) -> None:
        self._scheduled = False
        outbox, self._outbox = self._outbox, {}
        for (node, method, isolation), batches in outbox.items():
            self._spawn(self._deliver(node, method, isolation, batches))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _deliver(
        self, node: str, method: str, isolation: Isolation | None, batches: list[ForwardedBatch]
    ) -> None:
        """Send the items, request by request, so that items of one key do not overtake each other."""
        waiting = [(batch, slot) for batch in batches for slot in range(len(batch.items))]
        self.counts[method] += len(waiting)
        try:
            while waiting:
                count = _fitting(waiting, self._request_bytes)
                sent, rest = waiting[:count], waiting[count:]
                later: _Waiting = []
                for (batch, slot), answer in zip(sent, await self._ask(node, method, isolation, sent), strict=True):
                    if answer is LATER:
                        later.append((batch, slot))
                    else:
                        batch.put(slot, answer)
                waiting = later + rest
                if method == GET:
                    waiting = _with_room(waiting)
        finally:
            # Items are left only after a cancellation or a bug: their callers must not wait for ever.
            for batch in batches:
                batch.give_up(_unanswered(method, f"asking node {node} was broken off"))

    async def _ask(self, node: str, method: str, isolation: Isolation | None, sent: _Waiting) -> Sequence[object]:
        """Send one request; returns one answer per item, or an error for all."""
        body = kv_rpc.encode_body(isolation, [batch.items[slot] for batch, slot in sent])
        try:
            answer = await self._links.request(node, method, body, self._timeout_ms)
            answers = kv_rpc.decode_answers(answer, len(sent), _DECODERS[method])
            if LATER not in (answers[:1] if method == GET else answers):
                return answers
            return [_unanswered(method, f"node {node} has answered without an answer")] * len(sent)
        except (OutcomeUnknown, CodecError) as error:
            return [_unanswered(method, f"node {node} has not answered: {clear_traceback(error)}")] * len(sent)
        except IsthmusError as error:
            return [clear_traceback(error)] * len(sent)


def _unanswered(method: str, text: str) -> IsthmusError:
    """The error of an item without a readable answer, which depends on the method alone."""
    return NotReady(text) if method == GET else OutcomeUnknown(text)


def _fitting(waiting: _Waiting, limit_bytes: int) -> int:
    """How many of the first items fit into one request."""
    size = 0
    for count, (batch, slot) in enumerate(waiting[:REQUEST_ITEMS]):
        size += len(batch.items[slot])
        if size > limit_bytes:
            return max(1, count)
    return min(len(waiting), REQUEST_ITEMS)


def _with_room(waiting: _Waiting) -> _Waiting:
    """The items whose batch can hold another answer; the others are refused."""
    kept: _Waiting = []
    for batch, slot in waiting:
        if batch.room_bytes > 0:
            kept.append((batch, slot))
        else:
            batch.put(slot, Overloaded("the answer is full: ask again for the rest"))
    return kept
