"""Serves the items that other nodes of the cluster have forwarded to this one.

Only partitions led here are served; nothing is forwarded again, so that no request goes in circles. An item that cannot
be read, or whose answer cannot be encoded, gets an error of its own. The codec is `repl.coordinator.kv_rpc`, the sender
`repl.coordinator.forwarding`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, Protocol, TypeVar

from isthmus.repl.coordinator import kv_rpc
from isthmus.repl.coordinator.listing import Listing
from isthmus.repl.coordinator.reads import Reads
from isthmus.repl.model.errors import CodecError, IsthmusError, OutcomeUnknown, Retryable
from isthmus.repl.model.requests import PushItem, WriteRequest, WriteResult
from isthmus.repl.unforeseen import unforeseen

Handler = Callable[[str, bytes], Awaitable[bytes]]
"""(node that asks, body) -> answer. Raises CodecError for a body that is not one, and Retryable."""

DirectHandler = Callable[[str, bytes, Callable[[bytes | IsthmusError], None]], None]
"""(node that asks, body, answered): see `repl.transport.rpc.DirectHandler`. Raises CodecError as a Handler does."""

Item = TypeVar("Item")

_new: Final = tuple.__new__
"""Makes a named tuple of all its fields, in order, at half the cost of its own constructor."""


class LocalWrites(Protocol):
    """Writes and pushes of the partitions that this node leads (`repl.coordinator.coordinator.Coordinator`)."""

    def submit_here(self, requests: Sequence[WriteRequest | PushItem]) -> asyncio.Future[list[object]]:
        """One answer per item, in order, within the time limit of requests; an item of a partition that is led
        elsewhere is refused."""


class ForwardedRequests:
    """The handlers of forwarded requests."""

    def __init__(self, writes: LocalWrites, reads: Reads, listing: Listing, answer_bytes: int) -> None:
        """`answer_bytes`: most bytes of values in one answer."""
        self._local_writes = writes
        self._answer_bytes = answer_bytes
        self._local_reads = reads
        self._listing = listing

    def handlers(self) -> dict[str, Handler]:
        """Method -> handler."""
        return {kv_rpc.GET: self._reads, kv_rpc.LIST: self._page}

    def direct_handlers(self) -> dict[str, DirectHandler]:
        """Method -> handler, of the methods that are served without a task."""
        return {kv_rpc.WRITE: self._writes, kv_rpc.PUSH: self._pushes}

    def _writes(self, _node: str, body: bytes, answered: Callable[[bytes | IsthmusError], None]) -> None:
        requests, unreadable = _decoded(body, kv_rpc.decode_writes, kv_rpc.decode_write)
        self._submit(requests, partial(self._written, requests, unreadable), answered)

    def _written(
        self, requests: Sequence[WriteRequest], unreadable: Mapping[int, IsthmusError], results: list[object]
    ) -> bytes:
        room_bytes = self._answer_bytes
        for slot, (request, result) in enumerate(zip(requests, results, strict=True)):
            if isinstance(result, WriteResult) and result.payload:
                if request.payload_wanted:
                    room_bytes -= len(result.payload)
                if not request.payload_wanted or room_bytes < 0:
                    results[slot] = _new(WriteResult, (b"", *result[1:]))
        return _encoded(kv_rpc.encode_write_answers, kv_rpc.written_row, _merged(results, unreadable))

    def _pushes(self, _node: str, body: bytes, answered: Callable[[bytes | IsthmusError], None]) -> None:
        items, unreadable = _decoded(body, kv_rpc.decode_pushes, kv_rpc.decode_push)
        self._submit(items, partial(_pushed, unreadable), answered)

    def _submit(
        self,
        items: Sequence[WriteRequest | PushItem],
        encode: Callable[[list[object]], bytes],
        answered: Callable[[bytes | IsthmusError], None],
    ) -> None:
        self._local_writes.submit_here(items).add_done_callback(partial(_answer, encode, answered))

    async def _reads(self, _node: str, body: bytes) -> bytes:
        head, found = kv_rpc.decode_body(body, partial(_readable, kv_rpc.decode_key))
        keys, unreadable = _sorted_out(found)
        answers = await self._local_reads.serve(keys, kv_rpc.decode_isolation(head))
        return kv_rpc.encode_answers(_merged(answers, unreadable), kv_rpc.read_row)

    async def _page(self, _node: str, body: bytes) -> bytes:
        return kv_rpc.encode_list_page(await self._listing.serve(kv_rpc.decode_list_ask(body)))


def _pushed(unreadable: Mapping[int, IsthmusError], results: list[object]) -> bytes:
    return _encoded(kv_rpc.encode_push_answers, kv_rpc.pushed_row, _merged(results, unreadable))


def _answer(
    encode: Callable[[list[object]], bytes],
    answered: Callable[[bytes | IsthmusError], None],
    submitted: asyncio.Future[list[object]],
) -> None:
    """Answer a request whose items are all decided."""
    try:
        answer: bytes | IsthmusError = encode(submitted.result())
    except Exception as error:
        unforeseen.exception("forwarded.request.failed", error)
        answer = OutcomeUnknown(f"the answer could not be made: {type(error).__name__}")
    answered(answer)


def _decoded(
    body: bytes, decode_all: Callable[[bytes], list[Item]], decode_item: Callable[[Any], Item]
) -> tuple[list[Item], dict[int, IsthmusError]]:
    """The items of a body, and the errors of those that cannot be read, by place: the others share nothing with them
    but the turn in which they were forwarded. Raises CodecError if the body as a whole cannot be read."""
    try:
        return decode_all(body), {}
    except Exception:  # noqa: BLE001 -- each item names its own below
        return _sorted_out(kv_rpc.decode_body(body, partial(_readable, decode_item))[1])


def _readable(decode: Callable[[Any], Item], raw: Any) -> Item | IsthmusError:
    """The item, or why it is refused. Retryable, not BadInput: the client has no part in what nodes send each other."""
    try:
        return decode(raw)
    except CodecError as error:
        return Retryable(f"an item that another node has forwarded cannot be read: {error}")
    except Exception as error:  # noqa: BLE001 -- see repl.unforeseen
        return unforeseen.exception("forwarded.item_bug", error)


def _sorted_out(found: Sequence[Item | IsthmusError]) -> tuple[list[Item], dict[int, IsthmusError]]:
    items: list[Item] = []
    errors: dict[int, IsthmusError] = {}
    for slot, each in enumerate(found):
        if isinstance(each, IsthmusError):
            errors[slot] = each
        else:
            items.append(each)
    return items, errors


def _merged(results: list[object], unreadable: Mapping[int, IsthmusError]) -> list[object]:
    """One answer per item of the body; `unreadable` is in order."""
    for slot, error in unreadable.items():
        results.insert(slot, error)
    return results


def _encoded(
    encode: Callable[[list[object]], bytes], row: Callable[[Any], tuple[Any, ...]], results: list[object]
) -> bytes:
    """The answers; OutcomeUnknown where one cannot be encoded."""
    try:
        return encode(results)
    except Exception:  # noqa: BLE001 -- each answer names its own below
        return kv_rpc.encode_answers([_encodable(row, each) for each in results], row)


def _encodable(row: Callable[[Any], tuple[Any, ...]], result: object) -> object:
    try:
        kv_rpc.encode_answers((result,), row)
    except Exception as error:  # noqa: BLE001 -- see repl.unforeseen
        return OutcomeUnknown(str(unforeseen.exception("forwarded.answer_bug", error)))
    return result
