"""The sink of every node: its links, their state, and the counters of each source."""

from __future__ import annotations

from typing import Final

from isthmus.node.nouns.sink import SinkOverview
from isthmus.node.services.cluster_query import EmptyBody, JsonBody, Query
from isthmus.node.services.sink_listing import overview_of
from isthmus.sink.service import Sink

METHOD: Final = "sink"

SINK: Final[Query[None, SinkOverview]] = Query(METHOD, EmptyBody(), JsonBody(METHOD, SinkOverview))


class SinkResponder:
    """Answers SINK from the sink of `node`, this one."""

    def __init__(self, sink: Sink, node: str) -> None:
        self._sink = sink
        self._node = node

    async def respond(self, _request: None) -> SinkOverview:
        """See Responder."""
        return overview_of(self._sink, self._node)
