"""Requests of the world's own people over the simulated network: one HTTP request on a connection of its own."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any, NamedTuple

from tests.simulation.world.credentials import headers_of

if TYPE_CHECKING:
    from tests.simulation.world.credentials import Credentials

TIMEOUT_S = 15.0
"""Longest wait for an answer, by the clock of the machine that asks."""

LIMIT_BYTES = 16_000_000


class Answer(NamedTuple):
    """An answer of a node: its status, and the JSON document."""

    status: int
    document: Any


class NoAnswer(Exception):
    """The node could not be reached, did not answer in time, or answered with something else than HTTP and JSON."""


async def ask(
    host: str,
    port: int,
    method: str,
    path: str,
    body: Any = None,
    timeout_s: float = TIMEOUT_S,
    credentials: Credentials | None = None,
) -> Answer:
    """Ask a listener, on the running loop's machine, as an administrator. Raises NoAnswer."""
    data = b"" if body is None else json.dumps(body).encode()
    kind = "" if body is None else f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n"
    head = f"{method} {path} HTTP/1.1\r\nHost: {host}:{port}\r\nConnection: close\r\n{kind}"
    head += "".join(f"{line}\r\n" for line in (*headers_of(credentials, "admin"), ""))
    context = None if credentials is None else credentials.client
    try:
        async with asyncio.timeout(timeout_s):
            reader, writer = await asyncio.open_connection(host, port, limit=LIMIT_BYTES, ssl=context)
            try:
                writer.write(head.encode() + data)
                answer = await reader.read(-1)
            finally:
                writer.close()
    except (OSError, TimeoutError) as error:
        raise NoAnswer(f"{host}:{port}: {error!r}") from error
    return parsed(answer)


def parsed(answer: bytes) -> Answer:
    """A whole answer, after which the connection was closed. Raises NoAnswer."""
    head, end, content = answer.partition(b"\r\n\r\n")
    lines = head.decode("latin-1").split("\r\n")
    words = lines[0].split(" ", 2)
    if not end or len(words) < 2 or not words[1].isdigit():
        raise NoAnswer(f"not a whole answer: {answer[:100]!r}")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])}
    length = headers.get("content-length")
    if length is not None and len(content) < int(length):
        raise NoAnswer(f"{len(content)} of {length} bytes of an answer")
    try:
        return Answer(int(words[1]), json.loads(content) if content else None)
    except ValueError as error:
        raise NoAnswer(f"not JSON: {content[:100]!r}") from error
