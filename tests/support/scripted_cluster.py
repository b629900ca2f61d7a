"""Runs operations of the client against scripted answers, in virtual time, without network."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

from isthmus.client.batches import Batches
from isthmus.client.errors import closed
from isthmus.client.exchange import Exchange, Limits
from isthmus.client.nodes import Nodes
from isthmus.client.objects import Resolver
from isthmus.client.operations import Operations
from isthmus.client.steps import Call, Endpoint, NoAnswer, Operation, Response, Send, Step, T

A: Final = Endpoint("http", "a", 8098)
B: Final = Endpoint("http", "b", 8098)
C: Final = Endpoint("http", "c", 8098)
CLOCK: Final = "AAEC"
DATE: Final = "Thu, 26 Nov 2026 12:00:00 GMT"

Reply: TypeAlias = Response | NoAnswer | Callable[[Send], Response | NoAnswer]

UNREACHABLE: Final = NoAnswer("refused", sent=False)
SILENT: Final = NoAnswer("silent", sent=True)


def answer(status: int, body: bytes = b"", **headers: str) -> Response:
    """An answer; `x_riak_vclock` is the header `x-riak-vclock`, a name with `-` is used unchanged."""
    named = {name if "-" in name else name.replace("_", "-"): value for name, value in headers.items()}
    return Response(status, named, body)


def refusal(status: int, reason: str, text: str = "no", **headers: str) -> Response:
    """A refusal as a node sends it."""
    return answer(status, text.encode() + b"\n", x_isthmus_reason=reason, **headers)


def written(clock: str = CLOCK, **headers: str) -> Response:
    """The answer to a write."""
    return answer(204, x_riak_vclock=clock, **headers)


def found(body: bytes, content_type: str = "application/json", clock: str = CLOCK, **headers: str) -> Response:
    """The answer to a read."""
    return answer(
        200, body, content_type=content_type, x_riak_vclock=clock, etag='"tag"', last_modified=DATE, **headers
    )


NOT_FOUND: Final = refusal(404, "not-found", "not found")


class ScriptedCluster:
    """The nodes `seeds`. Each request takes the next of `replies`, the last one again and again; a request for the
    routes takes `routes`. A request lasts `lasts_s`, and no longer than its time-out. The client is closed during
    the first step of the kind `closes_in`."""

    def __init__(
        self,
        *replies: Reply,
        seeds: Sequence[Endpoint] = (A, B),
        routing: bool = False,
        discover: bool = True,
        timeout_s: float = 15.0,
        attempts: int = 12,
        update_attempts: int = 40,
        resolver: Resolver | None = None,
    ) -> None:
        self.replies = list(replies)
        self.routes: Reply = refusal(404, "unknown-path")
        self.sent: list[Send] = []
        self.slept: list[float] = []
        self.lasts_s = 0.0
        self.now_s = 1000.0
        self.closes_in: type[Step] | None = None
        self._closed = False
        self.nodes = Nodes(seeds, routing=routing, discover=discover)
        limits = Limits(timeout_s, None, 2.0, attempts)
        self.exchange = Exchange(self.nodes, limits, lambda: self.now_s, None, random.Random(1))
        self.operations = Operations(self.exchange, "default", {}, resolver, update_attempts)
        self.batches = Batches(self.operations)

    def run(self, operation: Operation[T]) -> T:
        """Run an operation to its end."""
        try:
            step = next(operation)
            while True:
                try:
                    result = self._perform(step)
                except Exception as error:  # noqa: BLE001 - the operation decides
                    step = operation.throw(error)
                else:
                    step = operation.send(result)
        except StopIteration as end:
            value: T = end.value
            return value

    def _perform(self, step: Step) -> Any:
        if self._closed:
            raise closed()
        self._closed = type(step) is self.closes_in
        if isinstance(step, Call):
            return step.function(*step.arguments)
        if not isinstance(step, Send):
            self.slept.append(step.seconds)
            self.now_s += step.seconds
            return None
        self.sent.append(step)
        self.now_s += min(self.lasts_s, step.timeout_s)
        if step.request.target == b"/cluster/routes":
            reply = self.routes
        else:
            reply = self.replies.pop(0) if len(self.replies) > 1 else self.replies[0]
        return reply(step) if callable(reply) else reply

    @property
    def asked(self) -> list[Send]:
        """The requests but for those for the routes."""
        return [send for send in self.sent if send.request.target != b"/cluster/routes"]

    def header(self, name: bytes, at: int = -1) -> bytes | None:
        """A header of a request, the last one by default."""
        return dict(self.asked[at].request.headers).get(name)
