"""Every node's history: places of some columns, and the newest sample."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
import numpy as np

from isthmus.node.services.cluster_query import JsonBody, MsgpackBody, Query
from isthmus.node.services.history import HOUR, SPANS, History, Key
from isthmus.node.services.history_series import ALL_TYPES, COLUMNS, Scope, Values
from isthmus.repl.model.errors import BadInput, CodecError
from isthmus.repl.model.ports import TimeSource

METHOD: Final = "history"
NEWEST_METHOD: Final = "history-newest"

KEYS_MAX: Final = 256
"""Columns of one request: two for each series that a request to the admin API may name, and some to spare."""

_ROWS: Final = msgspec.Meta(max_length=65_536)
"""Rows of the newest sample; a longer answer is refused."""

STALE_MS: Final = 3 * HOUR.step_ms
"""A newest sample that is older is none."""

NUMBER: Final = "<f4"
"""A place on the wire."""


class HistoryRequest(msgspec.Struct, frozen=True):
    """The places of `span` from number `first` on, of each (column, label)."""

    span: str
    first: int
    keys: list[tuple[str, str]]


class PlacesBody:
    """msgpack: rows of (column, label, the places as little-endian floats of 4 bytes)."""

    _rows: Final = MsgpackBody[list[tuple[str, str, bytes]]](METHOD, Annotated[list[tuple[str, str, bytes]], _ROWS])

    def encode(self, places: dict[Key, Values]) -> bytes:
        """See Codec."""
        return self._rows.encode([(*key, values.astype(NUMBER).tobytes()) for key, values in places.items()])

    def decode(self, body: bytes) -> dict[Key, Values]:
        """See Codec."""
        rows = self._rows.decode(body)
        lengths = {len(raw) for _, _, raw in rows}
        if len(lengths) > 1 or not lengths <= {4 * span.places for span in SPANS.values()}:
            raise CodecError(f"{METHOD}: columns of several lengths, or of that of no span")
        return {(name, label): np.frombuffer(raw, NUMBER).astype(np.float32) for name, label, raw in rows}


class NewestRequest(msgspec.Struct, frozen=True):
    """The newest sample; of the columns by bucket type those of these types, and those over all types."""

    bucket_types: list[str]


class NewestBody:
    """msgpack: rows of (column, label, number)."""

    _rows: Final = MsgpackBody[list[tuple[str, str, float]]](
        NEWEST_METHOD, Annotated[list[tuple[str, str, int | float]], _ROWS]
    )

    def encode(self, values: dict[Key, float]) -> bytes:
        """See Codec."""
        return self._rows.encode([(*key, value) for key, value in values.items()])

    def decode(self, body: bytes) -> dict[Key, float]:
        """See Codec."""
        return {(name, label): value for name, label, value in self._rows.decode(body)}


PLACES: Final[Query[HistoryRequest, dict[Key, Values]]] = Query(METHOD, JsonBody(METHOD, HistoryRequest), PlacesBody())
NEWEST: Final[Query[NewestRequest, dict[Key, float]]] = Query(
    NEWEST_METHOD, JsonBody(NEWEST_METHOD, NewestRequest), NewestBody()
)


class PlacesResponder:
    """Answers PLACES from this node's history."""

    def __init__(self, history: History) -> None:
        self._history = history

    async def respond(self, request: HistoryRequest) -> dict[Key, Values]:
        """See Responder. Raises BadInput. Columns that are not kept are left out."""
        span = SPANS.get(request.span)
        if span is None or len(request.keys) > KEYS_MAX:
            raise BadInput(f"{METHOD}: a span of {', '.join(SPANS)} and at most {KEYS_MAX} columns are right")
        found = {}
        for key in request.keys:
            if key[0] not in COLUMNS:
                continue  # of a later version
            values = self._history.read(span, request.first, key)
            if values is not None:
                found[key] = values
        return found


class NewestResponder:
    """Answers NEWEST from this node's history."""

    def __init__(self, history: History, time: TimeSource) -> None:
        self._history = history
        self._time = time

    async def respond(self, request: NewestRequest) -> dict[Key, float]:
        """See Responder. Without a recent sample there are no numbers."""
        if abs(self._time.wall_ms() - self._history.newest_ms) > STALE_MS:
            return {}
        wanted = {*request.bucket_types, ALL_TYPES}
        return {
            key: value
            for key, value in self._history.newest.items()
            if COLUMNS[key[0]].scope is not Scope.BUCKET_TYPE or key[1] in wanted
        }
