"""The client API: programs written for Riak, batches, sinks of other clusters, probes.

Routes requests, and nothing more. Object paths are recognized here by their segments, before the router is asked, since
nearly all requests are theirs.
"""

from __future__ import annotations

from collections.abc import Coroutine, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

from isthmus.config.settings import LimitSettings
from isthmus.node.client_api.batch import BatchRoutes
from isthmus.node.client_api.cluster_routes import NO_ADDRESSES, ClientAddresses, leader_headers
from isthmus.node.client_api.legacy_paths import LegacyPaths
from isthmus.node.client_api.listings import ListingRoutes
from isthmus.node.client_api.objects import Named, ObjectRoutes, ObjectStore, RequestTraces
from isthmus.node.client_api.queue_fetch import FETCH_ROUTE, QueueFetches, QueueObjects, QueueRoutes
from isthmus.node.client_api.queue_push import QueuePushes, ReferencePushes
from isthmus.node.client_api.riak_folds import ClusterFolds, RiakFoldRoutes
from isthmus.node.client_api.riak_info import RiakInfo, RiakInfoRoutes
from isthmus.node.client_api.riak_trees import RiakTreeRoutes, RiakTrees
from isthmus.node.client_api.unsupported import unsupported
from isthmus.node.http.application import (
    SMALL_BODY_BYTES,
    AccessControl,
    HttpApplication,
    Receive,
    Scope,
    Send,
    in_asked_form,
    internal_error,
    shown_path,
)
from isthmus.node.http.durations import OBJECT, RequestDurations
from isthmus.node.http.fast_connection import FastAnswer, PlainAnswer, RawRequest, StartedWrite
from isthmus.node.http.health import NodeStatus, add_health
from isthmus.node.http.openapi import add_openapi
from isthmus.node.http.responses import Reply, RequestRefused
from isthmus.node.http.router import unknown_path
from isthmus.node.observability.version import program_version
from isthmus.repl.machine import machine
from isthmus.repl.model.errors import IsthmusError
from isthmus.repl.model.keys import DEFAULT_BUCKET_TYPE
from isthmus.repl.model.ports import TimeSource
from isthmus.repl.telemetry import Family, Sample
from isthmus.repl.unforeseen import unforeseen

HELP: Final[Mapping[str, Family]] = {
    "isthmus_http_requests_total": Family(
        "Answers of the client API, by route, method and status; 499: the client closed the connection.",
        "requests",
        "clients",
        ("method", "route", "status"),
    ),
    "isthmus_http_body_bytes": Family(
        "Bytes of request bodies and large answers held now; refused with 503 above a limit.", "bytes", "clients"
    ),
    "isthmus_http_fetches": Family("Fetches of sinks that wait or run now.", "fetches", "clients"),
    "isthmus_http_listings": Family("Listings that run now.", "listings", "clients"),
    "isthmus_http_folds": Family("Riak's folds that run now.", "folds", "clients"),
}
"""Name -> metric definition (see repl.telemetry)."""


class QueueOperations(ReferencePushes, QueueObjects, Protocol):
    """Operations on source queues beside fetches (`queues.admin.QueueActs`)."""


@dataclass(frozen=True)
class ClientPorts:
    """The ports by which the client API uses its node."""

    kv: ObjectStore
    queues: QueueFetches
    acts: QueueOperations
    riak_info: RiakInfo
    folds: ClusterFolds
    riak_trees: RiakTrees
    status: NodeStatus
    time: TimeSource
    addresses: ClientAddresses = NO_ADDRESSES
    """Of the nodes that answers name as leaders."""


class ClientApi(HttpApplication):
    """The application behind the `http` listener. `certified_sinks` as in `queue_fetch.QueueRoutes`."""

    def __init__(
        self,
        ports: ClientPorts,
        limits: LimitSettings,
        *,
        access: AccessControl,
        durations: RequestDurations,
        certified_sinks: bool = False,
        traces: RequestTraces | None = None,
    ) -> None:
        super().__init__(access, durations)
        kv, acts, riak_info = ports.kv, ports.acts, ports.riak_info
        self._addresses = ports.addresses
        self._objects = ObjectRoutes(kv, limits, ports.time, self, ports.addresses, traces)
        self._listings = ListingRoutes(kv, limits.listings, self)
        LegacyPaths(self._listings, self)
        RiakInfoRoutes(riak_info, self, key_limit_bytes=limits.key_bytes)
        self._folds = RiakFoldRoutes(ports.folds, limits, self)
        RiakTreeRoutes(ports.riak_trees, self._folds, self)
        self._batch = BatchRoutes(kv, limits, self, ports.addresses)
        self._queues = QueueRoutes(ports.queues, acts, self, certified=certified_sinks)
        QueuePushes(acts, riak_info, self, key_limit_bytes=limits.key_bytes)
        add_health(self.router, ports.status)
        add_openapi(self, "Isthmus: keys and values", program_version(), objects=True)

    def refusal(self, error: IsthmusError) -> Reply:
        """See HttpApplication.refusal; with the leader if another node leads the partition."""
        reply = super().refusal(error)
        if error.leader:
            reply.headers.extend(leader_headers(self._addresses, error.leader))
        return reply

    async def answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See HttpApplication.answer: the object paths first, the router for all others."""
        parts = scope["raw_path"].split(b"/")
        named = _object_named(parts)
        if named is not None:
            await self._objects.answer(scope, receive, send, named)
        else:
            if len(parts) > 2 and not parts[-1]:
                # As in Riak, a trailing slash is ignored.
                scope = {**scope, "raw_path": b"/".join(parts[:-1])}
            try:
                await super().answer(scope, receive, send)
            except RequestRefused as refused:
                unknown = refused.reason == "unknown-path"
                if unknown and not parts[-1]:
                    refused = unknown_path(b"/".join(parts))  # as the client wrote it
                unread = refused.reason == "method-not-allowed" and scope["method"] in ("GET", "HEAD")
                raise (unsupported(parts) if unknown or unread else None) or refused from None

    def fast_answer(self, request: RawRequest) -> FastAnswer | None:
        """See FastPathApp: requests for objects whose body fits, and sinks' fetches."""
        began_s = machine().perf_s()
        method, raw_path, query_string, headers, body = request
        parts = raw_path.split(b"/")
        named = _object_named(parts)
        if named is not None:
            if not self._objects.fits(len(body)):
                return None
        elif not (len(parts) == 4 and parts[1] == b"queues" and parts[3] == b"fetch" and self._queues.fits(request)):
            return None
        try:
            if self.guard is not None:
                self.guard.check(method, raw_path, headers)
            if named is not None and not (query_string or b"%" in raw_path or b"+" in raw_path):
                if method == "GET":
                    answer = self._objects.start_get(named, headers, began_s)
                    if isinstance(answer, PlainAnswer):
                        return answer
                    if isinstance(answer, Reply):
                        return self._counted(answer, request, began_s)
                    if answer is not None:
                        return self._settled(request, self._objects.settle_get(answer, headers), began_s)
                elif method == "PUT":
                    started = self._objects.start_put(named, headers, body, began_s)
                    if started is not None:
                        return started
        except Exception as error:  # noqa: BLE001 - `_failed` logs it
            return self._failed(error, request, OBJECT if named is not None else FETCH_ROUTE, began_s)
        return self._fast_answer(request, named, began_s)

    def finish_write(self, request: RawRequest, started: StartedWrite) -> bytes | Coroutine[Any, Any, Reply]:
        """See FastPathApp."""
        lines = self._objects.finish_put(started)
        if lines is not None:
            return lines
        return self._settled(request, self._objects.settle_put(started), started.began_s)

    def left(self, request: RawRequest) -> None:
        """See FastPathApp: ends a long poll."""
        self._queues.left(request)

    async def _fast_answer(self, request: RawRequest, named: Named | None, began_s: float) -> Reply:
        """The answer to a request for the object `named`, or to a fetch."""
        method, _, query_string, headers, body = request
        route = FETCH_ROUTE if named is None else OBJECT
        try:
            if named is None:
                reply = await self._queues.fetch(request)
            else:
                reply = await self._objects.reply(method, query_string, headers, body, named)
        except Exception as error:  # noqa: BLE001 - `_failed` logs it
            return self._failed(error, request, route, began_s)
        return self._counted(reply, request, began_s, route)

    async def _settled(self, request: RawRequest, work: Coroutine[Any, Any, Reply], began_s: float) -> Reply:
        """The answer to a read that must wait, or to a write that did not end as usual."""
        try:
            reply = await work
        except Exception as error:  # noqa: BLE001 - `_failed` logs it
            return self._failed(error, request, OBJECT, began_s)
        return self._counted(reply, request, began_s)

    def _counted(self, reply: Reply, request: RawRequest, began_s: float, route: str = OBJECT) -> Reply:
        """`reply` in the form that the request asks for, counted, and its duration noted; `_say` counts a large one
        once it is sent."""
        self.durations.series(route, request.method, reply.status).add(machine().perf_s() - began_s)
        if len(reply.body) <= SMALL_BODY_BYTES:
            self.counts.add(route, request.method, reply.status)
        return reply if reply.status < 400 else in_asked_form(reply, request.headers)

    def _failed(self, error: Exception, request: RawRequest, route: str, began_s: float) -> Reply:
        """The answer to a request that ended in `error`, counted; called while the error is handled."""
        if isinstance(error, IsthmusError):
            refused = self.refused(error, request.method)
        else:
            unforeseen.exception("http.bug", error, method=request.method, path=shown_path(request.raw_path))
            refused = self.refused(internal_error(), request.method)
        self.durations.series(route, request.method, refused.status).add(machine().perf_s() - began_s)
        return in_asked_form(refused, request.headers)

    async def send(self, reply: Reply, scope: Scope, receive: Receive, send: Send) -> None:
        """See FastPathApp."""
        await self.guarded(self._say(reply, scope, send), scope, receive, send)

    async def _say(self, reply: Reply, scope: Scope, send: Send) -> None:
        await self.send_reply(scope, send, reply)
        if len(reply.body) > SMALL_BODY_BYTES:
            fetched = scope["raw_path"].startswith(b"/queues/")
            self.counts.add(FETCH_ROUTE if fetched else OBJECT, scope["method"], reply.status)

    def stop(self) -> None:
        """The node is stopping: end long polls, so that they do not delay the listener's drain."""
        super().stop()
        self._queues.stop()

    def samples(self) -> Iterator[Sample]:
        """Samples for Prometheus."""
        for (route, method, status), count in self.counts.items():
            yield "isthmus_http_requests_total", {"route": route, "method": method, "status": str(status)}, count
        yield from self.durations.samples("http")
        yield "isthmus_http_body_bytes", {}, self.budget.used_bytes
        yield "isthmus_http_fetches", {}, self._queues.running
        yield "isthmus_http_listings", {}, self._listings.running
        yield "isthmus_http_folds", {}, self._folds.running


def _object_named(parts: list[bytes]) -> Named | None:
    """The object of a path, split at each "/"; None for another path."""
    count = len(parts)
    if count == 5:
        if parts[1] == b"buckets" and parts[3] == b"keys" and parts[4]:
            return DEFAULT_BUCKET_TYPE, parts[2], parts[4]
    elif count == 4:
        if parts[1] == b"riak" and parts[3]:
            return DEFAULT_BUCKET_TYPE, parts[2], parts[3]
    elif count == 7 and parts[1] == b"types" and parts[3] == b"buckets" and parts[5] == b"keys" and parts[6]:
        return parts[2], parts[4], parts[6]
    return None
