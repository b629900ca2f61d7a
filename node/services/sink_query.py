"""The sink of every node: its links, their state, and the counters of each source."""

from __future__ import annotations

from typing import Any, Final

from isthmus.node.services.cluster_query import EmptyBody, JsonBody, Query
from isthmus.repl.model.errors import CodecError
from isthmus.sink.service import Sink

METHOD: Final = "sink"

SinkDocument = dict[str, Any]
"""The sink's `overview`, with its `listing` under "sinks"."""


class SinkBody(JsonBody[SinkDocument]):
    """JSON with a list under "sinks"."""

    def __init__(self) -> None:
        super().__init__(METHOD, SinkDocument)

    def decode(self, body: bytes) -> SinkDocument:
        """See Codec."""
        found = super().decode(body)
        if not isinstance(found.get("sinks"), list):
            raise CodecError(f'{METHOD}: the answer has no list under "sinks"')
        return found


SINK: Final[Query[None, SinkDocument]] = Query(METHOD, EmptyBody(), SinkBody())


class SinkResponder:
    """Answers SINK from this node's sink."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink

    async def respond(self, _request: None) -> SinkDocument:
        """See Responder."""
        return {**self._sink.overview(), "sinks": self._sink.listing()}
