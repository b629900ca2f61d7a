"""GET /admin/history: series of every node over the last hour or day. Any node answers; it asks the others.

The answer is written series by series, so that the event loop is free between them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from isthmus.config.text import no_such
from isthmus.node.http.application import Request, Stream, json_reply
from isthmus.node.http.responses import JSON, Reply, RequestRefused
from isthmus.node.http.router import Router
from isthmus.node.services.container import NodeServices
from isthmus.node.services.history import SPANS, HistorySpan, Key
from isthmus.node.services.history_query import PLACES, HistoryRequest
from isthmus.node.services.history_series import (
    ALL_TYPES,
    COLUMNS,
    LABELLED,
    SAMPLED,
    SERIES,
    Scope,
    SeriesChoice,
    UnknownSeries,
    Values,
    choose,
    derive,
    merge,
)
from isthmus.repl.model.errors import CodecError, Overloaded

SERIES_MAX: Final = 64
"""Series of one request: more than a page shows at once. A node sends 7 KB for each of their columns."""

REQUESTS_MAX: Final = 8
"""Requests that are answered at once; a further one is refused with 503. Each holds up to a megabyte a node."""

DECIMALS: Final = 3
"""Decimals of the numbers in answers."""

ALL: Final = "all"
CLUSTER: Final = "cluster"

GONE: Final = "the node is not registered: it is down, or was removed"


class HistoryQuestion(NamedTuple):
    """A request for history, checked. `node` is a node's name, ALL or CLUSTER; `first` is the number of a place."""

    span: HistorySpan
    first: int
    series: list[SeriesChoice]
    node: str


NodePlaces = Mapping[str, Mapping[Key, Values] | None]
"""Node -> its columns; None: unknown."""


class HistoryAdmin:
    """The routes over all nodes' histories."""

    def __init__(self, services: NodeServices, router: Router[Callable[..., Any]]) -> None:
        self._services = services
        self._running = 0
        router.add("GET", "/admin/history", self.history)
        router.add("GET", "/admin/history/series", self.series)

    async def history(self, request: Request) -> Stream:
        """Series of each node, or of the cluster, over the last hour or day."""
        question = self._question(request)
        if self._running >= REQUESTS_MAX:
            raise Overloaded(f"{REQUESTS_MAX} requests for history are being answered by this node, its limit")
        self._running += 1
        try:
            places, unknown = await self._ask(question)
        except BaseException:
            self._running -= 1
            raise
        chunks = _document(question, places, unknown)

        async def close() -> None:
            self._running -= 1
            await chunks.aclose()

        return Stream(200, [(b"content-type", JSON), (b"cache-control", b"no-store")], chunks, close)

    async def series(self, _request: Request) -> Reply:
        """Every series with its scope, unit and meaning, and the labels that this node's history has, by scope.

        `left_out`: columns that do not fit into its memory.
        """
        history = self._services.history
        labels = {scope.value.replace(" ", "_"): history.labels(scope) for scope in Scope if scope is not Scope.NODE}
        rows = [
            {"name": one.name, "scope": one.scope.value, "labelled": one.scope in LABELLED, "unit": one.unit,
             "meaning": one.meaning}
            for one in SERIES.values()
        ]  # fmt: skip
        return json_reply({"series": rows, "labels": labels, "left_out": history.left_out})

    def _question(self, request: Request) -> HistoryQuestion:
        """The question of a request. Raises RequestRefused."""
        query = request.query
        span = SPANS.get(query.get("range", "hour"))
        if span is None:
            raise RequestRefused(400, "bad-query", f"range is one of {', '.join(SPANS)}")
        bucket_type = query.get("bucket_type")
        controller = self._services.controller
        if bucket_type is not None:
            check_bucket_type(bucket_type, {record.bucket_type for record in controller.records.values()})
        names = list(dict.fromkeys(name for name in query.get("series", "").split(",") if name))
        if not names or len(names) > SERIES_MAX:
            raise RequestRefused(
                400, "bad-query", f"series names 1 to {SERIES_MAX} series, separated by commas (/admin/history/series)"
            )
        try:
            series = [choose(name, bucket_type or ALL_TYPES) for name in names]
        except UnknownSeries as error:
            raise RequestRefused(404, "unknown-series", str(error)) from None
        node = query.get("node", ALL)
        known = nodes_of(self._services)
        if node not in (ALL, CLUSTER) and node not in known:
            raise RequestRefused(404, "unknown", no_such("node", node, sorted(known)))
        # The place that is under way has no sample on some nodes, and the minute that is under way on none.
        first = self._services.time.wall_ms() // span.step_ms - span.places
        return HistoryQuestion(span, first, series, node)

    async def _ask(self, question: HistoryQuestion) -> tuple[NodePlaces, dict[str, str]]:
        """The columns of each node, and why those of some are unknown."""
        names = nodes_of(self._services) if question.node in (ALL, CLUSTER) else {question.node}
        live = names & self._services.controller.registrations.keys()
        keys = list(
            dict.fromkeys([(SAMPLED, ALL_TYPES), *(key for one in question.series for key in one.column_keys())])
        )
        found = await self._services.query.ask(PLACES, HistoryRequest(question.span.name, question.first, keys), live)
        unknown = {**dict.fromkeys(sorted(names - live), GONE), **found.unknown}
        places: dict[str, Mapping[Key, Values] | None] = {**dict.fromkeys(sorted(names)), **found.by_node}
        for node, columns in places.items():
            if columns and len(next(iter(columns.values()))) != question.span.places:
                places[node] = None
                unknown[node] = f"{CodecError.reason}: the answer has another number of places"
        return places, unknown


def check_bucket_type(bucket_type: str, known: set[str]) -> None:
    """Raises RequestRefused (404) for a bucket type that does not exist."""
    if bucket_type not in known:
        raise RequestRefused(404, "unknown-bucket-type", no_such("bucket type", bucket_type, sorted(known)))


def nodes_of(services: NodeServices) -> set[str]:
    """The nodes of the cluster: those that are registered, and those that hold replicas."""
    controller = services.controller
    return {node for record in controller.records.values() for node in record.replicas} | {*controller.registrations}


def nodes_asked(services: NodeServices, wanted: str) -> set[str]:
    """The nodes that ?node names: ALL, or a known one. Raises RequestRefused."""
    known = services.membership.known_nodes()
    if wanted == ALL:
        return known
    if wanted not in known:
        there = ", ".join(sorted(known))
        raise RequestRefused(404, "unknown-node", f"there is no node {wanted[:64]!r}; there are {there}")
    return {wanted}


async def _document(
    question: HistoryQuestion, places: NodePlaces, unknown: Mapping[str, str]
) -> AsyncGenerator[bytes, None]:
    """The answer in pieces; the event loop runs between them."""
    span, first = question.span, question.first
    head = {
        "range": span.name,
        "step_ms": span.step_ms,
        "from_ms": first * span.step_ms,
        "to_ms": (first + span.places) * span.step_ms,
        "unknown": dict(sorted(unknown.items())),
    }
    yield msgspec.json.encode(head)[:-1]
    if question.node == CLUSTER:
        known = [columns for columns in places.values() if columns is not None]
        sampled = merge_nodes(known, (SAMPLED, ALL_TYPES), span.places)
        counted = np.nan_to_num(sampled).astype(int).tolist()
        yield b',"nodes":{},"cluster":{"counted":' + msgspec.json.encode(counted) + b',"series":'
        async for piece in _series(question.series, lambda key: merge_nodes(known, key, span.places)):
            yield piece
        yield b"}}\n"
        return
    yield b',"cluster":null,"nodes":{'
    comma = b""
    for node, columns in places.items():
        yield comma + msgspec.json.encode(node) + b":"
        comma = b","
        if columns is None:
            yield b"null"
            continue
        async for piece in _series(question.series, _reader(columns, span.places)):
            yield piece
    yield b"}}\n"


def _reader(columns: Mapping[Key, Values], count: int) -> Callable[[Key], Values]:
    """Reads a node's columns; one that the node does not keep is unknown in all places."""
    return lambda key: columns[key] if key in columns else np.full(count, np.nan, np.float32)


def merge_nodes(nodes: Sequence[Mapping[Key, Values]], key: Key, count: int) -> Values:
    """A column over several nodes."""
    found = [columns[key] for columns in nodes if key in columns]
    if not found:
        return np.full(count, np.nan, np.float32)
    merged: Values = merge(COLUMNS[key[0]].over_nodes, np.stack(found), 0)
    return merged


async def _series(choices: Sequence[SeriesChoice], read: Callable[[Key], Values]) -> AsyncGenerator[bytes, None]:
    """An object of the series and their values."""
    begin = b"{"
    for choice in choices:
        await asyncio.sleep(0)
        values = derive(choice.series.formula, [read(key) for key in choice.column_keys()])
        yield begin + msgspec.json.encode(choice.name) + b":" + encode_values(values)
        begin = b","
    yield b"}"


def encode_values(values: npt.NDArray[np.float64]) -> bytes:
    """A JSON list; null where a number is unknown."""
    return msgspec.json.encode(np.round(values, DECIMALS).tolist())
