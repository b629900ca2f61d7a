"""Every node's history: places of some columns, and the newest sample."""

from __future__ import annotations

from typing import Any, Final

import msgpack
import msgspec
import numpy as np

from isthmus.node.services.cluster_query import JsonBody, Query
from isthmus.node.services.history import HOUR, SPANS, History, Key
from isthmus.node.services.history_series import ALL_TYPES, COLUMNS, Scope, Values
from isthmus.repl.model.errors import BadInput, CodecError
from isthmus.repl.model.ports import TimeSource

METHOD: Final = "history"
NEWEST_METHOD: Final = "history-newest"

KEYS_MAX: Final = 256
"""Columns of one request: two for each series that a request to the admin API may name, and some to spare."""

ROWS_MAX: Final = 65_536
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

    def encode(self, places: dict[Key, Values]) -> bytes:
        """See Codec."""
        body: bytes = msgpack.packb([(*key, values.astype(NUMBER).tobytes()) for key, values in places.items()])
        return body

    def decode(self, body: bytes) -> dict[Key, Values]:
        """See Codec."""
        found: dict[Key, Values] = {}
        lengths = {4 * span.places for span in SPANS.values()}
        for row in _rows(body, METHOD):
            match row:
                case [str(column), str(label), bytes(raw)] if len(raw) in lengths:
                    found[column, label] = np.frombuffer(raw, NUMBER).astype(np.float32)
                case _:
                    raise CodecError(f"{METHOD}: {row!r:.80} is not a column")
        if len({len(values) for values in found.values()}) > 1:
            raise CodecError(f"{METHOD}: columns of several lengths")
        return found


class NewestRequest(msgspec.Struct, frozen=True):
    """The newest sample; of the columns by bucket type those of these types, and those over all types."""

    bucket_types: list[str]


class NewestBody:
    """msgpack: rows of (column, label, number)."""

    def encode(self, values: dict[Key, float]) -> bytes:
        """See Codec."""
        body: bytes = msgpack.packb([(*key, value) for key, value in values.items()])
        return body

    def decode(self, body: bytes) -> dict[Key, float]:
        """See Codec."""
        found: dict[Key, float] = {}
        for row in _rows(body, NEWEST_METHOD):
            match row:
                case [str(column), str(label), (int() | float()) as value]:
                    found[column, label] = value
                case _:
                    raise CodecError(f"{NEWEST_METHOD}: {row!r:.80} is not the number of a column")
        return found


def _rows(body: bytes, method: str) -> list[Any]:
    try:
        rows = msgpack.unpackb(body)
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise CodecError(f"{method}: not msgpack ({error})") from error
    if not isinstance(rows, list) or len(rows) > ROWS_MAX:
        raise CodecError(f"{method}: no list of rows")
    return rows


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
