"""POST /rows, /rows/changes, GET /rows/plan, /rows/queues, POST /batch/push: reads and writes of batch jobs.

Rows are sent as a stream of frames from one snapshot; the first frame is made before the status is sent, so that a
refusal has its own status. A push carries objects with their clocks, as a sink's does, and has an outcome for each
item. `aae.row_stream.wire` has the bodies, `aae.row_stream.streams` reads the rows.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any, Final, Protocol

import msgpack

from isthmus.aae.row_stream import wire
from isthmus.aae.row_stream.plan import RowPlan
from isthmus.aae.row_stream.streams import RowStreams
from isthmus.config.settings import LimitSettings
from isthmus.node.http.application import MSGPACK, HttpApplication, Request, Stream, json_reply
from isthmus.node.http.responses import Headers, Reply, RequestRefused, explanation
from isthmus.repl.model.errors import BadInput, Overloaded, TooLarge
from isthmus.repl.model.keys import DEFAULT_BUCKET_TYPE, Key
from isthmus.repl.model.ports import KeyValue
from isthmus.repl.model.requests import PushItem, PushOutcome, PushResult
from isthmus.repl.model.this_node import ThisNode

PUSHES_MAX: Final = 4
"""Requests of POST /batch/push under way at once: bulk writers wait, clients' writes do not."""

ITEM_ELEMENTS: Final = 5
"""Elements of an item of a push: its list and its fields. A one-byte element takes 8 to 60 bytes once decoded, so a
body of 64 MB of nothing else would need gigabytes."""

PUSH_ELEMENTS: Final = 16
"""Elements of a push beside its items."""

REASON_MAX: Final = 300

_HEADERS: Final[Headers] = [(b"content-type", MSGPACK)]


class QueuePositions(Protocol):
    """How far other clusters have acknowledged (`node.services.queue_positions.ClusterQueuePositions`)."""

    async def document(self) -> dict[str, Any]:
        """The answer to GET /rows/queues."""


class RowRoutes:
    """The routes of batch jobs."""

    def __init__(
        self,
        streams: RowStreams,
        plan: RowPlan,
        positions: QueuePositions,
        kv: KeyValue,
        limits: LimitSettings,
        api: HttpApplication,
        this: ThisNode,
    ) -> None:
        self._streams = streams
        self._plan = plan
        self._positions = positions
        self._kv = kv
        self._limits = limits
        self._cluster = this.cluster_uuid
        self._name = this.cluster
        self.pushes = 0
        api.router.add("POST", wire.ROWS_PATH, self._rows)
        api.router.add("POST", wire.CHANGES_PATH, self._changes)
        api.router.add("GET", wire.PLAN_PATH, self._planned)
        api.router.add("GET", wire.QUEUES_PATH, self._queues)
        api.router.add("POST", wire.PUSH_PATH, self._push)

    async def _rows(self, request: Request) -> Stream:
        asked = wire.decode_rows_request(await self._question(request))
        return await self._begun(await self._streams.rows(asked))

    async def _changes(self, request: Request) -> Stream:
        asked = wire.decode_changes_request(await self._question(request))
        return await self._begun(await self._streams.changes(asked))

    @staticmethod
    async def _question(request: Request) -> bytes:
        return await request.body(wire.REQUEST_BYTES_MAX, "a question for rows")

    @staticmethod
    async def _begun(frames: AsyncGenerator[bytes, None]) -> Stream:
        first = await anext(frames)

        async def chunks() -> AsyncGenerator[bytes, None]:
            yield first
            async for frame in frames:
                yield frame

        return Stream(200, list(_HEADERS), chunks(), frames.aclose)

    async def _queues(self, _request: Request) -> Reply:
        """The queues of other clusters and, by partition, the offset below which all of their changes have arrived."""
        return json_reply(await self._positions.document())

    async def _planned(self, request: Request) -> Reply:
        asked = request.query.get("bucket_type", DEFAULT_BUCKET_TYPE.decode())
        return json_reply(
            {
                "cluster": self._name,
                "cluster_uuid": self._cluster.hex(),
                "bucket_type": asked,
                "partitions": await self._plan.plan(asked.encode()),
            }
        )

    async def _push(self, request: Request) -> Reply:
        """[version, origin, [[type, bucket, key, object], ...]] -> [[outcome, reason], ...]."""
        if self.pushes >= PUSHES_MAX:
            raise Overloaded(f"{PUSHES_MAX} batches are being pushed to this node, which is its limit")
        self.pushes += 1
        try:
            rows, origin = self._read(await request.body(self._limits.batch_bytes, "limits.batch_size"))
            answers: list[tuple[str, str | None]] = []
            items: list[PushItem] = []
            slots: list[int] = []
            for slot, row in enumerate(rows):
                try:
                    items.append(self._item(row, origin))
                except BadInput as error:
                    answers.append(_outcome_of(PushResult(PushOutcome.REJECTED, error)))
                else:
                    answers.append((PushOutcome.FAILED, None))
                    slots.append(slot)
            for slot, result in zip(slots, await self._kv.push(items), strict=True):
                answers[slot] = _outcome_of(result)
        finally:
            self.pushes -= 1
        return Reply(200, _HEADERS, msgpack.packb(answers))

    def _read(self, body: bytes) -> tuple[list[Any], bytes]:
        """The items and their origin. Raises BadInput for the whole request."""
        limit = self._limits.batch_items
        left = limit * (ITEM_ELEMENTS + 1) + PUSH_ELEMENTS  # each is an element of the list of items, too

        def counted(elements: list[Any]) -> list[Any]:
            nonlocal left
            left -= len(elements) + 1
            if left < 0:
                raise ValueError("more elements than a push may have")
            return elements

        try:
            raw = msgpack.unpackb(
                body, list_hook=counted, max_array_len=max(limit, ITEM_ELEMENTS), max_map_len=0, max_ext_len=0
            )
        except (ValueError, msgpack.exceptions.UnpackException, RecursionError) as error:
            raise RequestRefused(
                400, "bad-msgpack", f"the body is not a msgpack list with at most {limit} items: {error}"
            ) from error
        match raw:
            case [wire.PUSH_VERSION, (bytes() | None) as origin, list(rows)] if origin is None or len(origin) == 16:
                return rows, origin or self._cluster
        raise BadInput(
            f"a push is a list of the form's version ({wire.PUSH_VERSION}), 16 bytes of origin or nil, and items"
        )

    def _item(self, row: Any, origin: bytes) -> PushItem:
        match row:
            case [bytes(bucket_type), bytes(bucket), bytes(key), bytes(data)] if bucket_type and bucket and key:
                if len(data) > 2 * self._limits.object_bytes:
                    raise TooLarge(f"an object of {len(data)} bytes, limits.object_size is {self._limits.object_bytes}")
                return PushItem(Key(bucket_type, bucket, key), origin, data)
        raise BadInput("an item to push is bucket type, bucket, key and the object's canonical bytes")


def _outcome_of(result: PushResult) -> tuple[str, str | None]:
    if result.error is None:
        return result.outcome.value, None
    return result.outcome.value, f"{result.error.reason}: {explanation(result.error)}"[:REASON_MAX]
