"""One query to all nodes of the cluster, and the answers of this node to the queries of others.

A query names an RPC method, the request type and the answer type (`Query`). `ClusterQuery.ask` sends one request to
each node, all in parallel, each with a time-out. A node without a usable answer is unknown, with the reason; no answer
is guessed or taken from a cache. The queries are defined in `replica_query`, `telemetry_query`, `settings_query`,
`sink_query`, `fullsync_query` and `queue_query`, each with its responder.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeVar

import msgspec

from isthmus.repl.model.errors import CodecError, IsthmusError
from isthmus.repl.unforeseen import unforeseen

TIMEOUT_MS: Final = 2_000
"""How long a node may take to answer. An operator's request waits for the slowest node; a loaded node answers in some
10 ms."""

T = TypeVar("T")
Q = TypeVar("Q")
A = TypeVar("A")
Q_contra = TypeVar("Q_contra", contravariant=True)
A_co = TypeVar("A_co", covariant=True)


class NodeLinks(Protocol):
    """The connections with the other nodes (`repl.transport.links.ClusterLinks`)."""

    async def request(self, node: str, method: str, body: bytes, timeout_ms: int) -> bytes:
        """Send a request to `node`; returns the body of its answer. Raises IsthmusError."""


class Codec(Protocol[T]):
    """The wire form of a request or an answer."""

    def encode(self, value: T) -> bytes:
        """The body."""

    def decode(self, body: bytes) -> T:
        """The value of a body from another node. Raises CodecError."""


class EmptyBody:
    """A request without parameters."""

    def encode(self, _value: None) -> bytes:
        """See Codec."""
        return b""

    def decode(self, _body: bytes) -> None:
        """See Codec. The body is ignored."""
        return


class JsonBody(Generic[T]):
    """JSON that must have the type `kind`, a builtin type or a msgspec Struct."""

    def __init__(self, method: str, kind: Any) -> None:
        self._method = method
        self._kind = kind

    def encode(self, value: T) -> bytes:
        """See Codec."""
        return json.dumps(msgspec.to_builtins(value)).encode()

    def decode(self, body: bytes) -> T:
        """See Codec."""
        try:
            value: T = msgspec.convert(json.loads(body), self._kind)
        except (ValueError, RecursionError) as error:  # msgspec's ValidationError is a ValueError
            raise CodecError(f"{self._method}: the body is not the JSON of this method: {error}") from error
        return value


class MsgpackBody(Generic[T]):
    """msgpack that must have the type `kind`, which bounds the length of its lists and maps."""

    def __init__(self, method: str, kind: Any) -> None:
        self._method = method
        self._decoder = msgspec.msgpack.Decoder(kind)

    def encode(self, value: T) -> bytes:
        """See Codec."""
        return msgspec.msgpack.encode(value)

    def decode(self, body: bytes) -> T:
        """See Codec."""
        try:
            value: T = self._decoder.decode(body)
        except (ValueError, RecursionError) as error:  # msgspec's DecodeError is a ValueError
            raise CodecError(f"{self._method}: the body is not the msgpack of this method: {error}") from error
        return value


@dataclass(frozen=True)
class Query(Generic[Q, A]):
    """A question that every node answers. Several queries may share a method whose requests differ."""

    method: str
    requests: Codec[Q]
    answers: Codec[A]

    def encode_answer(self, _request: Q, answer: A) -> bytes:
        """The body of the answer to a request; a query may answer earlier versions in their form."""
        return self.answers.encode(answer)


class Responder(Protocol[Q_contra, A_co]):
    """The component that answers a query for this node."""

    async def respond(self, request: Q_contra) -> A_co:
        """This node's answer. Raises IsthmusError."""


class ClusterAnswers(NamedTuple, Generic[A]):
    """The answers of the nodes that were asked."""

    by_node: dict[str, A | None]
    """Node, in order of names -> its answer; None: unknown."""
    unknown: dict[str, str]
    """Node without an answer -> the reason."""


class ClusterQuery:
    """Asks all nodes, and answers for this one."""

    def __init__(self, node: str, links: NodeLinks) -> None:
        self._node = node
        self._links = links
        self._responders: dict[str, tuple[Query[Any, Any], Responder[Any, Any]]] = {}
        self._handed_out = False
        """`request_handlers` was called: others would not know what is served later."""

    def serve(self, query: Query[Q, A], responder: Responder[Q, A]) -> None:
        """Answer `query` by `responder`, for other nodes and for this one. Each method has one responder."""
        assert query.method not in self._responders
        assert not self._handed_out, query.method
        self._responders[query.method] = query, responder

    def request_handlers(self) -> dict[str, Callable[[str, bytes], Awaitable[bytes]]]:
        """Handlers of other nodes' requests, by method; nothing is served any more after it."""
        self._handed_out = True
        return {method: _handler(query, responder) for method, (query, responder) in self._responders.items()}

    async def ask(
        self,
        query: Query[Q, A],
        request: Q,
        nodes: Iterable[str],
        *,
        timeout_ms: int = TIMEOUT_MS,
        own_may_fail: bool = False,
    ) -> ClusterAnswers[A]:
        """Ask each of `nodes`. An error of this node's own responder is raised; with `own_may_fail` it makes this node
        unknown, like any other."""
        names = sorted(set(nodes))
        unknown: dict[str, str] = {}

        async def answer_of(node: str) -> A | None:
            if node == self._node and not own_may_fail:
                return await self._own(query, request)
            try:
                return await self.ask_one(query, request, node, timeout_ms=timeout_ms)
            except IsthmusError as error:
                unknown[node] = f"{error.reason}: {error}"
                return None
            except Exception as error:  # noqa: BLE001 -- the other nodes' answers are shown all the same
                bug = unforeseen.exception("query.failed", error, peer=node, method=query.method)
                unknown[node] = f"{bug.reason}: {bug}"
                return None

        answers = await asyncio.gather(*(answer_of(node) for node in names))
        return ClusterAnswers(dict(zip(names, answers, strict=True)), unknown)

    async def ask_one(self, query: Query[Q, A], request: Q, node: str, *, timeout_ms: int = TIMEOUT_MS) -> A:
        """Ask one node, which may be this one. Raises IsthmusError, as the node raised it, or without an answer."""
        if node == self._node:
            return await self._own(query, request)
        body = query.requests.encode(request)
        return query.answers.decode(await self._links.request(node, query.method, body, timeout_ms))

    async def _own(self, query: Query[Q, A], request: Q) -> A:
        _, responder = self._responders[query.method]
        answer: A = await responder.respond(request)
        return answer


def _handler(query: Query[Q, A], responder: Responder[Q, A]) -> Callable[[str, bytes], Awaitable[bytes]]:
    async def handle(_node: str, body: bytes) -> bytes:
        request = query.requests.decode(body)
        return query.encode_answer(request, await responder.respond(request))

    return handle
