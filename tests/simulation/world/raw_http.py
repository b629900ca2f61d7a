"""HTTP/1.1 of a client on a virtual loop, as light as it can be: one connection to each node, one request at a time.

`RawTransport` takes the place of the Python client's transport: it carries out `isthmus.client.steps.Send`.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from isthmus.client.steps import Endpoint, NoAnswer, Response, Send
from tests.simulation.world.credentials import headers_of

if TYPE_CHECKING:
    from tests.simulation.world.credentials import Credentials
    from tests.simulation.world.loop import VirtualLoop

_SILENT: Final = "nothing within the time of the attempt"
_BODILESS: Final = (204, 304)


class RawTransport:
    """The connections of one session."""

    def __init__(self, loop: VirtualLoop, credentials: Credentials | None = None, role: str = "write") -> None:
        """`credentials`: of the cluster that is asked, whose token of a role each request shows."""
        self._loop = loop
        self._credentials = credentials
        self._role = role
        self._connections: dict[Endpoint, _Connection] = {}

    async def send(self, send: Send) -> Response | NoAnswer:
        """The answer to a request."""
        loop = self._loop
        end_s = loop.time() + send.timeout_s
        node = send.node
        connection = self._connections.get(node)
        credentials = self._credentials
        if connection is None or connection.closed:
            context = None if credentials is None else credentials.client
            try:
                async with asyncio.timeout(send.connect_timeout_s):
                    _, connection = await loop.create_connection(_Connection, node.host, node.port, ssl=context)
            except TimeoutError:
                return NoAnswer(f"it cannot be reached: {_SILENT}", sent=False, silent=True)
            except OSError as error:
                return NoAnswer(f"it cannot be reached: {error}", sent=False)
            self._connections[node] = connection
        request = send.request
        body = request.body
        lines = [b"%b %b HTTP/1.1\r\nHost: %b" % (request.method, request.target, node.address.encode())]
        lines += [b"%b: %b" % header for header in request.headers]
        lines += [line.encode() for line in headers_of(credentials, self._role)]
        if body is not None:
            lines.append(b"Content-Length: %d" % len(body))
        answer = connection.request(b"\r\n".join(lines) + b"\r\n\r\n" + (body or b""), request.method == b"HEAD")
        timer = loop.call_at(end_s, connection.give_up)
        try:
            return await answer
        finally:
            timer.cancel()

    def close(self) -> None:
        """Close all connections."""
        for connection in self._connections.values():
            connection.give_up()


class _Connection(asyncio.Protocol):
    """One connection, with at most one request under way."""

    def __init__(self) -> None:
        self.closed = False
        self._transport: asyncio.Transport | None = None
        self._buffer = b""
        self._bodiless = False
        self._answer: asyncio.Future[Response | NoAnswer] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def request(self, data: bytes, bodiless: bool) -> asyncio.Future[Response | NoAnswer]:
        """Send a request; its answer."""
        assert self._transport is not None
        assert self._answer is None
        self._answer = asyncio.get_running_loop().create_future()
        self._buffer, self._bodiless = b"", bodiless
        self._transport.write(data)
        return self._answer

    def give_up(self) -> None:
        """The time of the request is over."""
        self._settle(NoAnswer(_SILENT, sent=True, silent=True))
        self._close()

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        if self._answer is not None:
            self._parse()

    def connection_lost(self, error: Exception | None) -> None:
        self.closed = True
        self._settle(NoAnswer(f"the connection broke: {error or 'it was closed'}", sent=True))

    def _parse(self) -> None:
        head, end, rest = self._buffer.partition(b"\r\n\r\n")
        if not end:
            return
        first, *lines = head.decode("utf-8", "surrogateescape").split("\r\n")
        status = int(first.split(" ", 2)[1])
        if status < 200:
            self._buffer = rest
            self._parse()
            return
        headers: dict[str, str] = {}
        for line in lines:
            name, _, value = line.partition(":")
            name, value = name.lower(), value.strip()
            headers[name] = f"{headers[name]}, {value}" if name in headers else value
        body: bytes | None = b""
        if not self._bodiless and status not in _BODILESS:
            if "transfer-encoding" in headers:
                body = _unchunked(rest)
            else:
                size = int(headers["content-length"])
                body = rest[:size] if len(rest) >= size else None
        if body is None:
            return
        if headers.get("connection", "").lower() == "close":
            self._close()
        self._settle(Response(status, headers, body))

    def _settle(self, answer: Response | NoAnswer) -> None:
        waiting, self._answer = self._answer, None
        if waiting is not None and not waiting.done():
            waiting.set_result(answer)

    def _close(self) -> None:
        self.closed = True
        if self._transport is not None:
            self._transport.close()


def _unchunked(data: bytes) -> bytes | None:
    """The body in chunks; None as long as it is not complete."""
    pieces = []
    at = 0
    while True:
        end = data.find(b"\r\n", at)
        if end < 0:
            return None
        size = int(data[at:end].partition(b";")[0], 16)
        if size == 0:
            return b"".join(pieces) if data[end:].startswith(b"\r\n\r\n") else None
        if len(data) < end + size + 4:
            return None
        pieces.append(data[end + 2 : end + 2 + size])
        at = end + size + 4
