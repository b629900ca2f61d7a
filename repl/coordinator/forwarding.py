"""Forwarding: sends items to the leaders of their partitions on other nodes, and returns the answers.

All items that are posted for one node in one turn of the event loop go in one request, without a task: the connection
calls back with the answer, and ends overdue requests by one timer (`repl.transport.rpc.RpcClient`). An item is
forwarded once: the receiver serves what it leads and refuses the rest (`repl.coordinator.forwarded_requests`). If a
request gets no answer, its writes and pushes may have taken effect (OutcomeUnknown), and its reads are NotReady. The
codec is `repl.coordinator.kv_rpc`.

Nothing here bounds the items in flight: the request that brought them holds them, and requests are bounded where they
come in (bodies of a listener, batches of a sink).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Final, TypeVar, cast

from isthmus.repl.coordinator import kv_rpc
from isthmus.repl.coordinator.kv_rpc import GET, LATER, LIST, PUSH, WRITE, ListAsk, ListPage
from isthmus.repl.model.errors import (
    CodecError,
    Fenced,
    IsthmusError,
    NotLeader,
    NotReady,
    OutcomeUnknown,
    Overloaded,
    clear_traceback,
)
from isthmus.repl.model.keys import Key
from isthmus.repl.model.requests import Isolation, PushItem, WriteRequest
from isthmus.repl.telemetry import Sample
from isthmus.repl.transport.port import Links
from isthmus.repl.unforeseen import unforeseen

REQUEST_BYTES: Final = 4 * 1024 * 1024
"""Bytes of items after which a request is full; a larger item goes alone. This is many times what one turn of the loop
brings under load; with more, the first items would only wait for the last one."""

REQUEST_ITEMS: Final = 1_000
"""Items after which a request is full: the receiver spends a few milliseconds of its loop on them."""

Done = Callable[[list[object]], None]

Item = TypeVar("Item")


class ForwardedBatch:
    """Encoded items for one node, and their answers, in order. The last answer calls `done`.

    An item that could not be encoded has an error as its answer. `room_bytes` bounds the answers of reads:
    once they have reached it, the other items are refused as Overloaded.
    """

    __slots__ = ("answers", "done", "items", "missing", "room_bytes")

    def __init__(self, items: list[bytes | IsthmusError], done: Done, room_bytes: int = 0) -> None:
        self.items = items
        self.done = done
        self.room_bytes = room_bytes
        self.answers: list[object] = [LATER if type(item) is bytes else item for item in items]
        self.missing = self.answers.count(LATER)

    def put(self, slot: int, answer: object) -> None:
        """Set the answer of one item."""
        self.answers[slot] = answer
        if type(answer) is bytes:
            self.room_bytes -= len(answer)
        self.missing -= 1
        if not self.missing:
            self.end()

    def end(self) -> None:
        """Pass all answers on. What their receiver raises costs other batches of the same request nothing."""
        try:
            self.done(self.answers)
        except Exception as error:
            unforeseen.exception("forwarding.answer_bug", error)

    def give_up(self, error: IsthmusError) -> None:
        """Set `error` as the answer of every item that has none."""
        for slot, answer in enumerate(self.answers):
            if answer is LATER:
                self.put(slot, error)


_Waiting = list[tuple[ForwardedBatch, int]]
"""Items without an answer: (batch, slot)."""

_MAY_NOT_LEAD: Final = (NotLeader, NotReady, Fenced, OutcomeUnknown)
"""Errors of items that a node which does not lead the partition may answer, too."""

_Decode = Callable[[bytes, int], list[object]]
"""(answer, count): the answers to `count` items. Raises CodecError."""


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
        self._written_at: dict[str, _Decode] = {}
        """Node -> decoder of its answers to writes."""
        self.counts = dict.fromkeys((WRITE, PUSH, GET, LIST), 0)

    def write(self, node: str, requests: Sequence[WriteRequest], done: Done) -> None:
        """Forward writes; `done` is called once with a WriteResult or an error for each, in order."""
        self._post(node, WRITE, None, ForwardedBatch(_encoded(kv_rpc.encode_write, requests), done))

    def push(self, node: str, items: Sequence[PushItem], done: Done) -> None:
        """Forward pushes; `done` is called once with a PushResult or an error for each, in order."""
        self._post(node, PUSH, None, ForwardedBatch(_encoded(kv_rpc.encode_push, items), done))

    async def get(self, node: str, keys: Sequence[Key], isolation: Isolation, room_bytes: int) -> list[object]:
        """Forward reads; returns the payload, None or an error for each, in order. The answers stay below `room_bytes`,
        except for the last."""
        future: asyncio.Future[list[object]] = self._loop.create_future()

        def done(answers: list[object]) -> None:
            if not future.done():
                future.set_result(answers)

        self._post(node, GET, isolation, ForwardedBatch(_encoded(kv_rpc.encode_key, keys), done, room_bytes))
        return await future

    async def page(self, node: str, ask: ListAsk) -> ListPage:
        """One page of a listing from the node that leads the partition. Raises Retryable and what the node raised."""
        self.counts[LIST] += 1
        try:
            answer = await self._links.request(node, LIST, kv_rpc.encode_list_ask(ask), self._timeout_ms)
        except CodecError as error:
            if not ask.limit:
                raise NotReady(f"node {node} has not answered: {error}") from error
            return await self._page_of_older(node, ask)
        except OutcomeUnknown as error:
            raise NotReady(f"node {node} has not answered: {error}") from error
        try:
            return kv_rpc.decode_list_page(answer)
        except CodecError as error:
            raise NotReady(f"node {node} has not answered: {error}") from error

    async def _page_of_older(self, node: str, ask: ListAsk) -> ListPage:
        """A page of an ordered listing from a node whose version has unordered ones only. Their pages of a partition
        are in order, too, but begin further ahead, and repeat a bucket."""
        if ask.after is not None:
            start = ask.after[0], ask.after[1] or b""
        else:
            before = ask.prefix[:-1]
            start = (before, b"") if ask.bucket is None else (ask.bucket, before)
        names, after = await self.page(node, ListAsk(ask.partition, ask.bucket, start))
        if after is not None:
            last = after[0] if ask.bucket is None else after[1]
            if last is not None and last > ask.prefix and not last.startswith(ask.prefix):
                after = None
        return ListPage([name for name in names if name.startswith(ask.prefix)], after)

    def samples(self) -> Iterator[Sample]:
        """Items forwarded since start, by method."""
        for method, count in self.counts.items():
            yield "isthmus_forwarded_items_total", {"method": method}, count

    def _post(self, node: str, method: str, isolation: Isolation | None, batch: ForwardedBatch) -> None:
        if not batch.missing:
            self._loop.call_soon(batch.end)
            return
        self._outbox.setdefault((node, method, isolation), []).append(batch)
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._drain)

    def _drain(self) -> None:
        self._scheduled = False
        outbox, self._outbox = self._outbox, {}
        for (node, method, isolation), batches in outbox.items():
            delivery = _Delivery(
                self._links, node, method, isolation, batches, self._decoder(node, method), self._request_bytes,
                self._timeout_ms,
            )  # fmt: skip
            self.counts[method] += delivery.item_count
            delivery.resume()

    def _decoder(self, node: str, method: str) -> _Decode:
        if method == PUSH:
            return kv_rpc.decode_push_answers
        if method == GET:
            return kv_rpc.decode_read_answers
        decode = self._written_at.get(node)
        if decode is None:
            decode = self._written_at[node] = partial(kv_rpc.decode_write_answers, leader=node)
        return decode


class _Delivery:
    """Items for one node, sent request by request, so that items of one key do not overtake each other."""

    __slots__ = (
        "_batches", "_decode", "_isolation", "_links", "_method", "_node", "_request_bytes", "_sent",
        "_timeout_ms", "_waiting", "item_count",
    )  # fmt: skip

    def __init__(
        self,
        links: Links,
        node: str,
        method: str,
        isolation: Isolation | None,
        batches: list[ForwardedBatch],
        decode: _Decode,
        request_bytes: int,
        timeout_ms: int,
    ) -> None:
        self._links = links
        self._node = node
        self._method = method
        self._isolation = isolation
        self._batches = batches
        self._decode = decode
        self._request_bytes = request_bytes
        self._timeout_ms = timeout_ms
        self._waiting: _Waiting = [
            (batch, slot) for batch in batches for slot, answer in enumerate(batch.answers) if answer is LATER
        ]
        self._sent: _Waiting = []
        self.item_count = len(self._waiting)

    def resume(self, answer: bytes | IsthmusError | None = None) -> None:
        """Take the answer to the request that was sent, if any, and send the next one."""
        try:
            if answer is not None:
                self._settle(self._decoded(answer))
            if self._waiting:
                self._send_next()
        except Exception as error:
            # Callers must not wait for ever because of a bug.
            unforeseen.exception("forwarding.failed", error, peer=self._node, method=self._method)
            for batch in self._batches:
                batch.give_up(_unanswered(self._method, f"asking node {self._node} was broken off"))

    def _send_next(self) -> None:
        """Send the next request. Items of one that cannot be sent are answered at once."""
        while self._waiting:
            items = cast("list[bytes]", [batch.items[slot] for batch, slot in self._waiting[:REQUEST_ITEMS]])
            count = _fitting(items, self._request_bytes)
            self._sent, self._waiting = self._waiting[:count], self._waiting[count:]
            body = kv_rpc.encode_body(self._isolation, items[:count])
            try:
                self._links.send_request(self._node, self._method, body, self._timeout_ms, self.resume)
                return
            except IsthmusError as error:
                self._settle([self._failed(error)] * count)

    def _decoded(self, answer: bytes | IsthmusError) -> Sequence[object]:
        """One answer per item of the request, or an error for all."""
        count = len(self._sent)
        if isinstance(answer, IsthmusError):
            return [self._failed(answer)] * count
        try:
            answers = self._decode(answer, count)
        except CodecError as error:
            return [self._failed(error)] * count
        for each in answers:
            if isinstance(each, IsthmusError) and not isinstance(each, _MAY_NOT_LEAD):
                each.leader = self._node
        if LATER not in (answers[:1] if self._method == GET else answers):
            return answers
        return [_unanswered(self._method, f"node {self._node} sent an answer without a result for each item")] * count

    def _failed(self, error: IsthmusError) -> IsthmusError:
        clear_traceback(error)
        if isinstance(error, OutcomeUnknown | CodecError):
            return _unanswered(self._method, f"node {self._node} has not answered: {error}")
        return error

    def _settle(self, answers: Sequence[object]) -> None:
        """Pass the answers of the request on; items without one go first in the next request."""
        later: _Waiting = []
        for (batch, slot), answer in zip(self._sent, answers, strict=True):
            if answer is LATER:
                later.append((batch, slot))
            else:
                batch.put(slot, answer)
        self._sent = []
        if later:
            self._waiting = later + self._waiting
        if self._method == GET and self._waiting:
            self._waiting = _with_room(self._waiting)


def _encoded(encode: Callable[[Item], bytes], items: Sequence[Item]) -> list[bytes | IsthmusError]:
    """The items of a request; an InternalError where one cannot be encoded."""
    try:
        return [encode(item) for item in items]
    except Exception:  # noqa: BLE001 -- each item names its own below
        return [_encoded_alone(encode, item) for item in items]


def _encoded_alone(encode: Callable[[Item], bytes], item: Item) -> bytes | IsthmusError:
    try:
        return encode(item)
    except Exception as error:  # noqa: BLE001 -- see repl.unforeseen
        return unforeseen.exception("forwarding.item_bug", error)


def _unanswered(method: str, text: str) -> IsthmusError:
    """The error of an item without a readable answer, which depends on the method alone."""
    return NotReady(text) if method == GET else OutcomeUnknown(text)


def _fitting(items: Sequence[bytes], limit_bytes: int) -> int:
    """How many of the first items fit into one request, at least one."""
    count, size = len(items), sum(map(len, items))
    while size > limit_bytes and count > 1:
        count -= 1
        size -= len(items[count])
    return count


def _with_room(waiting: _Waiting) -> _Waiting:
    """The items whose batch can hold another answer; the others are refused."""
    kept: _Waiting = []
    for batch, slot in waiting:
        if batch.room_bytes > 0:
            kept.append((batch, slot))
        else:
            batch.put(slot, Overloaded("the answer is full: ask again for the rest"))
    return kept
