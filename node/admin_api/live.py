"""GET /admin/live: the cluster's state and every node's newest sample, as server-sent events.

    viewer connects  -> gets what is known at once; the first one starts the rounds
    round            -> every 2 s, while there are viewers: one question to all nodes for all viewers together
    event            -> put before each viewer; one that was not read yet is replaced by the newer one of its kind
    viewer leaves    -> its place is free; the last one ends the rounds
    node stops       -> every stream ends, and the connection of a viewer that does not read is cut

A viewer that reads slowly costs at most one event of each kind, and what the connection buffers; the listener cuts one
that reads nothing (`connection.STALL_TIMEOUT_S`).
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping
from typing import Any, Final, Protocol

import msgspec

from isthmus.node.admin_api.history import DECIMALS, GONE, check_bucket_type, nodes_of
from isthmus.node.http.application import Connected, Request, Stream, internal_error
from isthmus.node.http.responses import Headers, explanation
from isthmus.node.http.router import Router
from isthmus.node.services.container import NodeServices
from isthmus.node.services.history import HOUR, Key, merge_two
from isthmus.node.services.history_query import NEWEST, NewestRequest
from isthmus.node.services.history_series import ALL_TYPES, COLUMNS, SERIES, Scope, derive_one, name_of
from isthmus.repl.model.errors import IsthmusError, NotReady, Overloaded
from isthmus.repl.ordered_set import OrderedSet
from isthmus.repl.telemetry import Family, Sample
from isthmus.repl.unforeseen import unforeseen

ROUND_OFFSET_MS: Final = 1_500
"""When in a place of the hour a round begins: all nodes have taken their sample in its first half."""

TIMEOUT_MS: Final = 1_000
"""How long a node may take to answer; then it is unknown in this round. A loaded node answers in some 10 ms."""

HEARTBEAT_S: Final = 15.0
"""A comment is sent after this time without an event, so that proxies and viewers see that the stream lives."""

LIFETIME_S: Final = 3_600.0
"""How long a stream lasts. Browsers connect again by themselves, and then their token is checked again."""

RETRY: Final = b"retry: 2000\n\n"
HEARTBEAT: Final = b": nothing new\n\n"

SAMPLE: Final = "sample"
CLUSTER: Final = "cluster"
TROUBLE: Final = "trouble"

_HEADERS: Final[Headers] = [
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),
]

HELP: Final[Mapping[str, Family]] = {
    "isthmus_live_streams": Family("Open streams of /admin/live.", "streams", "history"),
}
"""Name -> metric definition (see repl.telemetry)."""


class ClusterView(Protocol):
    """The state of the cluster as `GET /admin/cluster` shows it (`admin_api.application.AdminApi`)."""

    async def cluster_document(self) -> dict[str, Any]:
        """The answer. Raises IsthmusError."""


class Viewer:
    """One stream: the events that wait to be sent, at most one of each kind."""

    def __init__(self, bucket_type: str, connection: Connected | None, ends_s: float) -> None:
        self.bucket_type = bucket_type
        self._connection = connection
        self._ends_s = ends_s
        self._waiting: dict[str, bytes] = {}
        self._wake = asyncio.Event()
        self._ended = False
        self._writing = False

    def put(self, kind: str, event: bytes) -> None:
        """Send an event, or replace the one of its kind that was not sent yet."""
        self._waiting[kind] = event
        self._wake.set()

    def end(self) -> None:
        """End the stream. A viewer that does not read is cut off: its connection would never drain."""
        self._ended = True
        self._wake.set()
        if self._writing and self._connection is not None:
            self._connection.abort()

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        """The stream. It is suspended in a `yield` while the connection takes no more."""
        loop = asyncio.get_running_loop()
        next_chunk = RETRY
        while not self._ended and loop.time() < self._ends_s:
            self._writing = True
            yield next_chunk
            self._writing = False
            if not self._waiting and not self._ended:
                self._wake.clear()
                try:
                    async with asyncio.timeout(HEARTBEAT_S):
                        await self._wake.wait()
                except TimeoutError:
                    next_chunk = HEARTBEAT
                    continue
            if self._waiting:
                next_chunk = self._waiting.pop(next(iter(self._waiting)))


def event_of(kind: str, data: bytes) -> bytes:
    """A server-sent event with JSON, which has no line breaks."""
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), data)


class LiveAdmin:
    """The route, its viewers, and the rounds that serve all of them."""

    def __init__(self, services: NodeServices, view: ClusterView, router: Router[Callable[..., Any]]) -> None:
        self._services = services
        self._view = view
        self._viewers: OrderedSet[Viewer] = OrderedSet()
        self._rounds: asyncio.Task[None] | None = None
        self._stopped = False
        self._cluster = b""
        """The newest event of this kind; empty: unknown."""
        self._samples: dict[str, bytes] = {}
        """Bucket type -> the event of the newest round."""
        router.add("GET", "/admin/live", self.live)

    async def live(self, request: Request) -> Stream:
        """The cluster's state and the newest sample of each node, as server-sent events."""
        services = self._services
        bucket_type = request.query.get("bucket_type", ALL_TYPES)
        if bucket_type != ALL_TYPES:
            check_bucket_type(bucket_type, {record.bucket_type for record in services.controller.records.values()})
        if self._stopped:
            raise NotReady("the node stops")
        limit = services.settings.listen.live_streams_limit
        if len(self._viewers) >= limit:
            raise Overloaded(f"{limit} streams are open on this node, its limit (listen.live_streams_limit)")
        loop = asyncio.get_running_loop()
        viewer = Viewer(bucket_type, request.connection, loop.time() + LIFETIME_S)
        self._viewers.add(viewer)
        if self._rounds is None:
            self._rounds = loop.create_task(self._run())
        else:
            for kind, event in ((CLUSTER, self._cluster), (SAMPLE, self._samples.get(bucket_type))):
                if event:
                    viewer.put(kind, event)
        chunks = viewer.chunks()

        async def close() -> None:
            self._leave(viewer)
            await chunks.aclose()

        return Stream(200, list(_HEADERS), chunks, close)

    def _leave(self, viewer: Viewer) -> None:
        self._viewers.discard(viewer)
        if not self._viewers and self._rounds is not None:
            self._rounds.cancel()
            self._rounds = None
            self._cluster, self._samples = b"", {}

    def stop(self) -> None:
        """End all streams, and begin no more."""
        self._stopped = True
        for viewer in self._viewers:
            viewer.end()

    # -- rounds -------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        time = self._services.time
        while True:
            try:
                await asyncio.gather(self._send_cluster(), self._send_samples())
            except Exception as error:
                unforeseen.exception("live.bug", error)
            past_ms = (time.wall_ms() - ROUND_OFFSET_MS) % HOUR.step_ms
            wait_ms = HOUR.step_ms - past_ms
            # An early timer must not begin a round twice; after the first round the wait is 1 to 3 s.
            await asyncio.sleep((wait_ms if wait_ms >= HOUR.step_ms // 2 else wait_ms + HOUR.step_ms) / 1000)

    async def _send_cluster(self) -> None:
        """Send the state of the cluster where it differs from what was sent last."""
        try:
            document = await self._view.cluster_document()
        except IsthmusError as error:
            self._send_trouble(error)
            return
        except Exception as error:
            unforeseen.exception("live.bug", error)
            self._send_trouble(internal_error())
            return
        event = event_of(CLUSTER, msgspec.json.encode(document))
        if event != self._cluster:
            self._cluster = event
            for viewer in self._viewers:
                viewer.put(CLUSTER, event)

    def _send_trouble(self, error: IsthmusError) -> None:
        self._cluster = b""
        event = event_of(TROUBLE, msgspec.json.encode({"error": explanation(error), "reason": error.reason}))
        for viewer in self._viewers:
            viewer.put(CLUSTER, event)  # in place of the state, which is unknown now

    async def _send_samples(self) -> None:
        """Ask every node for its newest sample, and send each viewer that of its bucket type."""
        services = self._services
        names = nodes_of(services)
        live = names & services.controller.registrations.keys()
        wanted = {viewer.bucket_type for viewer in self._viewers} - {ALL_TYPES}
        answers = await services.query.ask(NEWEST, NewestRequest(sorted(wanted)), live, timeout_ms=TIMEOUT_MS)
        nodes = {**dict.fromkeys(sorted(names)), **answers.by_node}
        measured = [each for each in answers.by_node.values() if each]
        whole = merged(measured)
        unknown = {**dict.fromkeys(sorted(names - live), GONE), **answers.unknown}
        at_ms = services.time.wall_ms()
        samples: dict[str, bytes] = {}
        for viewer in self._viewers:
            bucket_type = viewer.bucket_type
            if bucket_type not in samples:
                shown = {node: None if each is None else newest_series(each, bucket_type)
                         for node, each in nodes.items()}  # fmt: skip
                document = {
                    "at_ms": at_ms, "nodes": shown, "unknown": unknown, "cluster": newest_series(whole, bucket_type),
                    "counted": len(measured),
                }  # fmt: skip
                samples[bucket_type] = event_of(SAMPLE, msgspec.json.encode(document))
            viewer.put(SAMPLE, samples[bucket_type])
        self._samples = samples

    def samples(self) -> Iterator[Sample]:
        """Samples for Prometheus."""
        yield "isthmus_live_streams", {}, len(self._viewers)


def merged(nodes: Iterable[Mapping[Key, float]]) -> dict[Key, float]:
    """The newest samples of several nodes as one, as `history` merges places."""
    whole: dict[Key, float] = {}
    for values in nodes:
        for key, value in values.items():
            column = COLUMNS.get(key[0])
            if column is not None:  # of a later version
                whole[key] = merge_two(column.over_nodes, whole.get(key, math.nan), value)
    return whole


def newest_series(values: Mapping[Key, float], bucket_type: str) -> dict[str, float | None]:
    """Every series of a newest sample that has a number there; those by bucket type are of that one."""
    labels: dict[Scope, list[str]] = {scope: [] for scope in Scope}
    for name, label in values:
        column = COLUMNS.get(name)
        if column is not None:
            labels[column.scope].append(label)
    labels[Scope.BUCKET_TYPE] = [bucket_type]
    by_scope = {scope: sorted(set(found)) for scope, found in labels.items()}
    shown: dict[str, float | None] = {}
    for series in SERIES.values():
        for label in by_scope[series.scope]:
            numbers = [
                values.get((column, label), 0.0 if COLUMNS[column].from_zero and values else math.nan)
                for column in series.columns
            ]
            value = derive_one(series.formula, numbers)
            shown[name_of(series, label)] = None if math.isnan(value) else round(value, DECIMALS)
    return shown
