"""Serves the items that other nodes of the cluster have forwarded to this one.

Only partitions led here are served; nothing is forwarded again, so that no request goes in circles. The codec is
`repl.coordinator.kv_rpc`, the sender `repl.coordinator.forwarding`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from isthmus.repl.coordinator import kv_rpc
from isthmus.repl.coordinator.listing import Listing
from isthmus.repl.coordinator.reads import Reads
from isthmus.repl.model.requests import PushItem, WriteRequest, WriteResult

Handler = Callable[[str, bytes], Awaitable[bytes]]
"""(node that asks, body) -> answer. Raises CodecError for a body that is not one, and Retryable."""


class LocalWrites(Protocol):
    """Writes and pushes of the partitions that this node leads (`repl.coordinator.coordinator.Coordinator`)."""

    def submit_here(self, requests: Sequence[WriteRequest | PushItem]) -> Awaitable[list[object]]:
        """One answer per item, in order; an item of a partition that is led elsewhere is refused."""


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
        return {
            kv_rpc.WRITE: self._writes,
            kv_rpc.PUSH: self._pushes,
            kv_rpc.GET: self._reads,
            kv_rpc.LIST: self._page,
        }

    async def _writes(self, _node: str, body: bytes) -> bytes:
        _, requests = kv_rpc.decode_body(body, kv_rpc.decode_write)
        results = await self._local_writes.submit_here(requests)
        room_bytes = self._answer_bytes
        for slot, (request, result) in enumerate(zip(requests, results, strict=True)):
            if isinstance(result, WriteResult) and result.payload:
                if request.payload_wanted:
                    room_bytes -= len(result.payload)
                if not request.payload_wanted or room_bytes < 0:
                    results[slot] = result._replace(payload=b"")
        return kv_rpc.encode_answers(results, kv_rpc.written_row)

    async def _pushes(self, _node: str, body: bytes) -> bytes:
        _, items = kv_rpc.decode_body(body, kv_rpc.decode_push)
        return kv_rpc.encode_answers(await self._local_writes.submit_here(items), kv_rpc.pushed_row)

    async def _reads(self, _node: str, body: bytes) -> bytes:
        head, keys = kv_rpc.decode_body(body, kv_rpc.decode_key)
        answers = await self._local_reads.serve(keys, kv_rpc.decode_isolation(head))
        return kv_rpc.encode_answers(answers, kv_rpc.read_row)

    async def _page(self, _node: str, body: bytes) -> bytes:
        return kv_rpc.encode_list_page(await self._listing.serve(kv_rpc.decode_list_ask(body)))
