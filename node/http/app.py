"""The client face: programs written for Riak, batches, sinks of other clusters, probes.

Knows where each path goes and nothing more. The object paths are told apart here by their segments, before the router
is asked, since nearly all requests are theirs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final, Protocol

from config.settings import LimitSettings
from node.http.asgi import Face, Receive, Scope, Send
from node.http.batch import BatchRoutes
from node.http.health import add_health
from node.http.lacking import lacking
from node.http.listings import ListingRoutes
from node.http.objects import ObjectRoutes
from node.http.old_forms import OldForms
from node.http.openapi import add_openapi
from node.http.program import program_version
from node.http.queue_pushes import Pushing, QueuePushes
from node.http.queues import ByReference, Fetching, QueueRoutes
from node.http.riak_views import RiakViews, Sights
from node.http.router import decode_segment
from node.http.statuses import Refused
from repl.model.keys import DEFAULT_BUCKET_TYPE
from repl.model.ports import KeyValue, TimeSource
from repl.telemetry import Sample

HELP: Final[Mapping[str, str]] = {
    "isthmus_http_requests_total": "Answers of the client face, by route, method and status; 499: the client left.",
    "isthmus_http_body_bytes": "Bytes of request bodies and large answers held now; refused with 503 above a limit.",
    "isthmus_http_fetches": "Fetches of sinks that wait or run now.",
    "isthmus_http_listings": "Listings that run now.",
}
"""Name -> what it counts (see repl.telemetry)."""


class Acts(Pushing, ByReference, Protocol):
    """What this face needs of the source queues beside fetching (`queues.acts.QueueActs`)."""


class HttpFace(Face):
    """The application behind the `http` listener. `ready` and `metrics` as in `health.add_health`,
    `certified_sinks` as in `queues.QueueRoutes`."""

    def __init__(
        self,
        kv: KeyValue,
        queues: Fetching,
        acts: Acts,
        *,
        limits: LimitSettings,
        time: TimeSource,
        sights: Sights,
        ready: Callable[[], tuple[bool, str]],
        metrics: Callable[[], bytes],
        certified_sinks: bool = False,
    ) -> None:
        super().__init__()
        self._objects = ObjectRoutes(kv, limits, time, self)
        self._listings = ListingRoutes(kv, limits.listings, self)
        OldForms(self._listings, self)
        RiakViews(sights, self)
        self._batch = BatchRoutes(kv, limits, self)
        self._queues = QueueRoutes(queues, acts, self, certified=certified_sinks)
        QueuePushes(acts, self)
        add_health(self.router, ready=ready, metrics=metrics)
        add_openapi(self, "Isthmus: keys and values", program_version(), objects=True)

    async def answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See Face.answer: the object paths first, the router for all others."""
        parts = scope["raw_path"].split(b"/")
        count = len(parts)
        if count == 5 and parts[1] == b"buckets" and parts[3] == b"keys" and parts[4]:
            await self._objects.answer(scope, receive, send, DEFAULT_BUCKET_TYPE, parts[2], parts[4])
        elif count == 7 and parts[1] == b"types" and parts[3] == b"buckets" and parts[5] == b"keys" and parts[6]:
            await self._objects.answer(scope, receive, send, decode_segment(parts[2]), parts[4], parts[6])
        elif count == 4 and parts[1] == b"riak" and parts[3]:
            await self._objects.answer(scope, receive, send, DEFAULT_BUCKET_TYPE, parts[2], parts[3])
        else:
            if count > 2 and not parts[-1]:
                # As in Riak, a slash at the end says nothing.
                scope = {**scope, "raw_path": b"/".join(parts[:-1])}
            try:
                await super().answer(scope, receive, send)
            except Refused as refused:
                unanswered = refused.reason in ("unknown-path", "method-not-allowed")
                raise (lacking(parts) if unanswered else None) or refused from None

    def stop(self) -> None:
        """The node is stopping: end long polls, so that they do not hold up the listener's drain."""
        self._queues.stop()

    def samples(self) -> Iterator[Sample]:
        """What Prometheus is shown of this face."""
        for (route, method, status), count in self.counts.items():
            yield "isthmus_http_requests_total", {"route": route, "method": method, "status": str(status)}, count
        yield "isthmus_http_body_bytes", {}, self.budget.used_bytes
        yield "isthmus_http_fetches", {}, self._queues.running
        yield "isthmus_http_listings", {}, self._listings.running
