"""Serves the items that other nodes of the cluster have forwarded to this one.

Only partitions led here are served; nothing is forwarded again, so that no request goes in circles. The codec is
`repl.coordinator.kv_rpc`, the sender `repl.coordinator.forwarding`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Final, Protocol

from isthmus.repl.coordinator import kv_rpc
from isthmus.repl.coordinator.listing import Listing
from isthmus.repl.coordinator.reads import Reads
from isthmus.repl.model.errors import IsthmusError, OutcomeUnknown
from isthmus.repl.model.requests import PushItem, WriteRequest, WriteResult
from isthmus.repl.unforeseen import unforeseen

Handler = Callable[[str, bytes], Awaitable[bytes]]
"""(node that asks, body) -> answer. Raises CodecError for a body that is not one, and Retryable."""

DirectHandler = Callable[[str, bytes, Callable[[bytes | IsthmusError], None]], None]
"""(node that asks, body, answered): see `repl.transport.rpc.DirectHandler`. Raises CodecError as a Handler does."""

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
        requests = kv_rpc.decode_writes(body)
        encode = partial(self._written, requests)
        self._local_writes.submit_here(requests).add_done_callback(partial(_answer, encode, answered))

    def _written(self, requests: Sequence[WriteRequest], results: list[object]) -> bytes:
        room_bytes = self._answer_bytes
        for slot, (request, result) in enumerate(zip(requests, results, strict=True)):
            if isinstance(result, WriteResult) and result.payload:
                if request.payload_wanted:
                    room_bytes -= len(result.payload)
                if not request.payload_wanted or room_bytes < 0:
                    results[slot] = _new(WriteResult, (b"", *result[1:]))
        return kv_rpc.encode_write_answers(results)

    def _pushes(self, _node: str, body: bytes, answered: Callable[[bytes | IsthmusError], None]) -> None:
        submitted = self._local_writes.submit_here(kv_rpc.decode_pushes(body))
        submitted.add_done_callback(partial(_answer, kv_rpc.encode_push_answers, answered))

    async def _reads(self, _node: str, body: bytes) -> bytes:
        head, keys = kv_rpc.decode_body(body, kv_rpc.decode_key)
        answers = await self._local_reads.serve(keys, kv_rpc.decode_isolation(head))
        return kv_rpc.encode_answers(answers, kv_rpc.read_row)

    async def _page(self, _node: str, body: bytes) -> bytes:
        return kv_rpc.encode_list_page(await self._listing.serve(kv_rpc.decode_list_ask(body)))


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
