"""Steps of an operation: to send a request, to wait, to call a function of the user.

An operation is a generator of steps (`exchange`, `operations`), which receives the result of each. It opens no
connection and knows no event loop, so that `Client` and `AsyncClient` run the same ones.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

ANSWER_BYTES_MAX: Final = 128_000_000
"""Largest answer read into memory: more than the largest object with all its siblings at the default limits of a node.
A larger one is a ServerFault."""


class Endpoint(NamedTuple):
    """Where a node serves clients. `scheme` is http or https."""

    scheme: str
    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}"

    @property
    def address(self) -> str:
        """HOST:PORT, as the cluster writes it."""
        return str(self).partition("//")[2]


@dataclass(frozen=True, slots=True)
class Request:
    """A request, but for the node that it is sent to."""

    method: bytes
    target: bytes
    headers: tuple[tuple[bytes, bytes], ...] = ()
    body: bytes | None = None


@dataclass(frozen=True, slots=True)
class Send:
    """Send a request to a node; the result is a Response or a NoAnswer."""

    node: Endpoint
    request: Request
    timeout_s: float
    connect_timeout_s: float


@dataclass(frozen=True, slots=True)
class Sleep:
    """Wait."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Call:
    """Call a function of the user; the result is what it returns."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Response:
    """An answer that arrived completely. Names of headers are in lower case."""

    status: int
    headers: Mapping[str, str]
    """A header that is there several times has its values joined by a comma."""
    body: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class NoAnswer:
    """No answer arrived."""

    why: str
    sent: bool
    """False when nothing of the request can have reached the node."""
    tls: bool = False
    """TLS failed: the certificate of the node is not trusted, or the node refuses ours."""
    busy: bool = False
    """The client itself had no connection free."""
    silent: bool = False
    """The time of the attempt was over."""
    unreadable: bool = False
    """Something arrived: more than ANSWER_BYTES_MAX, or what is not HTTP."""


Step: TypeAlias = Send | Sleep | Call
T = TypeVar("T")
Operation: TypeAlias = Generator[Step, Any, T]
