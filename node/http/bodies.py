"""Request bodies: read piece by piece, each within its limit, all together within the budget of a face.

Time-outs of reading are the listener's (`listeners`): it ends a slow request by a disconnect, and a body that ends so
is never handed to a handler. The story goes on in `asgi`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

from node.http.statuses import Refused
from repl.model.errors import IsthmusError, Overloaded, TooLarge

Message = dict[str, Any]
Scope = dict[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

IN_FLIGHT_LIMIT_BYTES: Final = 256 * 1000 * 1000
"""Request bodies and large answers held at once over all connections of a face; above it 503. Five of the largest
objects, or 4,096 connections with 60 KB each. A guess at what a node of 1 GB can spare."""


class ClientGone(Exception):
    """The client closed, or the listener gave up waiting for the rest of its request: nobody reads an answer."""


class Unread(Exception):
    """`error` refuses a request whose body has not been read to its end."""

    def __init__(self, error: IsthmusError) -> None:
        super().__init__(str(error))
        self.error = error


class BodyBudget:
    """Bytes of bodies held at once, over all connections of one face."""

    __slots__ = ("limit_bytes", "used_bytes")

    def __init__(self, limit_bytes: int = IN_FLIGHT_LIMIT_BYTES) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0

    def take(self, size: int) -> None:
        """Count a body; the caller gives its size back when it is done with it. Raises Overloaded."""
        if self.used_bytes + size > self.limit_bytes:
            raise self.overloaded()
        self.used_bytes += size

    def overloaded(self) -> Overloaded:
        """The refusal of a body for which there is no room now."""
        return Overloaded(f"this node holds {self.used_bytes} bytes of HTTP bodies, its limit is {self.limit_bytes}")


async def read_body(receive: Receive, declared: int, limit: int, limit_name: str, budget: BodyBudget) -> bytes:
    """The whole body, counted in `budget`: the caller gives `len(body)` back when it is done with it.

    `declared` is its Content-Length, -1 when there is none. Raises TooLarge or Overloaded, wrapped in Unread
    when part of the body is still to come, and ClientGone when it was cut short.
    """
    if declared > limit:
        raise Unread(_too_large(declared, limit, limit_name))
    message = await receive()
    if message["type"] != "http.request":
        raise ClientGone
    body: bytes = message["body"]
    if message["more_body"]:
        return await _read_rest(receive, body, limit, limit_name, budget)
    size = len(body)
    if size > limit:
        raise _too_large(size, limit, limit_name)
    budget.take(size)
    return body


async def _read_rest(receive: Receive, first: bytes, limit: int, limit_name: str, budget: BodyBudget) -> bytes:
    pieces = [first]
    size = len(first)
    budget.used_bytes += size
    try:
        more = True
        while more:
            if size > limit:
                raise Unread(_too_large(size, limit, limit_name))
            if budget.used_bytes > budget.limit_bytes:
                raise Unread(budget.overloaded())
            message = await receive()
            if message["type"] != "http.request":
                raise ClientGone
            piece = message["body"]
            pieces.append(piece)
            size += len(piece)
            budget.used_bytes += len(piece)
            more = message["more_body"]
        if size > limit:
            raise _too_large(size, limit, limit_name)
    except BaseException:
        budget.used_bytes -= size
        raise
    return b"".join(pieces)


def _too_large(size: int, limit: int, limit_name: str) -> TooLarge:
    return TooLarge(f"a body of {size} bytes or more, {limit_name} is {limit}")


def content_length(value: bytes) -> int:
    """A Content-Length header's value. Raises Refused (400)."""
    if not value.isdigit() or len(value) > 18:
        raise Refused(400, "bad-header", "Content-Length is not a number of bytes")
    return int(value)
