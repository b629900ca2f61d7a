"""The event loop's own HTTP client: kept connections that end during a request, and malicious answers."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from isthmus.repl.http.async_client import HEAD_BYTES_MAX, AsyncHttpPeer
from isthmus.repl.http.client import AnswerLost, PeerCredentials
from isthmus.repl.model.errors import PeerFault
from tests.support.waiting import PATIENCE_S

ANSWER = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"

Says = Callable[[asyncio.StreamWriter, int, int], Awaitable[None]]
"""(where to write, which connection, which request on it) -> after the request was read whole; both count from 0."""


class Source:
    """A server that reads requests and answers with `says`, which raises EOFError to close the connection."""

    def __init__(self, respond: Says) -> None:
        self._says = respond
        self.connections = 0
        self.requests = 0
        self._tasks: set[asyncio.Task[None]] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        number, asked = self.connections, 0
        self.connections += 1
        with contextlib.suppress(EOFError, ConnectionError, asyncio.CancelledError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0] or 0)
                await reader.readexactly(length)
                self.requests += 1
                await self._says(writer, number, asked)
                await writer.drain()
                asked += 1
        writer.close()
        self._tasks.discard(task)

    def end(self) -> None:
        for task in self._tasks:
            task.cancel()


@contextlib.asynccontextmanager
async def source(respond: Says) -> AsyncIterator[tuple[Source, AsyncHttpPeer]]:
    """A server, and a client of it."""
    made = Source(respond)
    server = await asyncio.start_server(made.serve, "127.0.0.1", 0)
    peer = AsyncHttpPeer(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    try:
        yield made, peer
    finally:
        peer.abort()
        server.close()
        made.end()
        await asyncio.sleep(0.01)


async def ask(peer: AsyncHttpPeer, timeout_ms: int = 5_000, limit_bytes: int = 1_000) -> bytes:
    asked = peer.post("/x", b"body", media_type="application/x", timeout_ms=timeout_ms, limit_bytes=limit_bytes)
    return await asyncio.wait_for(asked, PATIENCE_S)


async def test_a_request_that_met_the_end_of_a_kept_connection_is_sent_once_more() -> None:
    """The server closes a kept connection at the moment of its reuse: this is not a failure, and the request is
    answered over a new connection."""

    async def respond(writer: asyncio.StreamWriter, number: int, asked: int) -> None:
        if (number, asked) == (0, 1):
            raise EOFError
        writer.write(ANSWER)

    async with source(respond) as (server, peer):
        assert await ask(peer) == b"ok"
        assert await ask(peer) == b"ok"
        assert (server.connections, server.requests) == (2, 3)
        assert await ask(peer) == b"ok"
        assert server.connections == 2


async def test_a_get_that_must_not_be_repeated_is_sent_once() -> None:
    """Its answer is lost where a kept connection ends under it, and also where a new one does; where nobody could be
    reached nothing is lost. A query and a name with a password are sent as they are."""

    async def respond(writer: asyncio.StreamWriter, number: int, asked: int) -> None:
        if (number, asked) in ((0, 1), (1, 0)):
            raise EOFError
        writer.write(ANSWER)

    async with source(respond) as (server, peer):
        assert await peer.get("/q?x=1", timeout_ms=5_000, limit_bytes=1_000) == b"ok"
        for requests in (2, 3):
            with pytest.raises(AnswerLost, match="before the end of the answer"):
                await peer.get("/q?x=1", timeout_ms=5_000, limit_bytes=1_000, repeatable=False)
            assert server.requests == requests
        assert await peer.get("/q", timeout_ms=5_000, limit_bytes=1_000, repeatable=False) == b"ok"
    nobody = AsyncHttpPeer("http://127.0.0.1:1")
    with pytest.raises(PeerFault) as found:
        await nobody.get("/q", timeout_ms=1_000, limit_bytes=1_000, repeatable=False)
    assert not isinstance(found.value, AnswerLost)


def test_a_user_and_a_password_are_sent_by_basic_authentication() -> None:
    """A token alone is a bearer token; neither is sent in the clear by credentials for TLS."""
    basic = PeerCredentials(token=lambda: "p:w ö", user="ann").authorization_for("http://h:1")
    bearer = PeerCredentials(token=lambda: "t").authorization_for("http://h:1")
    assert basic is not None
    assert bearer is not None
    assert (basic(), bearer()) == ("Basic YW5uOnA6dyDDtg==", "Bearer t")
    protected = PeerCredentials(ssl.create_default_context, token=lambda: "t")
    assert protected.authorization_for("http://h:1") is None
    assert protected.authorization_for("https://h:1") is not None


async def test_a_reset_of_a_kept_connection_is_its_end_too() -> None:
    """A reset is treated like the end of a connection."""

    async def respond(writer: asyncio.StreamWriter, number: int, asked: int) -> None:
        if (number, asked) == (0, 1):
            writer.transport.abort()
            raise EOFError
        writer.write(ANSWER)

    async with source(respond) as (server, peer):
        assert await ask(peer) == b"ok"
        assert await ask(peer) == b"ok"
        assert server.connections == 2


async def test_it_is_sent_once_more_and_not_twice_and_not_over_another_kept_connection() -> None:
    """If new connections end as well, the peer has failed, and the error is raised."""
    both = asyncio.Event()

    async def respond(writer: asyncio.StreamWriter, number: int, asked: int) -> None:
        if asked == 1 or number > 1:
            raise EOFError
        if number == 1:
            both.set()
        await both.wait()
        writer.write(ANSWER)

    async with source(respond) as (server, peer):
        assert [*await asyncio.gather(ask(peer), ask(peer))] == [b"ok", b"ok"]
        assert server.connections == 2
        with pytest.raises(PeerFault, match="before the end of the answer"):
            await ask(peer)
        assert (server.connections, server.requests) == (3, 4)


async def test_a_new_connection_that_ends_without_an_answer_is_a_fault_at_once() -> None:
    """A peer that accepts a connection and closes it during the first request has failed."""

    async def respond(_writer: asyncio.StreamWriter, _number: int, _asked: int) -> None:
        raise EOFError

    async with source(respond) as (server, peer):
        with pytest.raises(PeerFault, match="before the end of the answer"):
            await ask(peer)
        assert (server.connections, server.requests) == (1, 1)


@pytest.mark.parametrize("begun", [b"H", ANSWER[:-1]])
async def test_a_request_whose_answer_had_begun_is_not_sent_again(begun: bytes) -> None:
    """The first byte of an answer shows that the request was accepted: its loss is then an error."""

    async def respond(writer: asyncio.StreamWriter, _number: int, asked: int) -> None:
        writer.write(begun if asked else ANSWER)
        if asked:
            raise EOFError

    async with source(respond) as (server, peer):
        assert await ask(peer) == b"ok"
        with pytest.raises(PeerFault, match="before the end of the answer"):
            await ask(peer)
        assert (server.connections, server.requests) == (1, 2)


async def test_a_kept_connection_on_which_nothing_comes_is_waited_for_once() -> None:
    """A time-out is reported and not repeated."""

    async def respond(writer: asyncio.StreamWriter, _number: int, asked: int) -> None:
        if asked:
            await asyncio.sleep(10)
        writer.write(ANSWER)

    async with source(respond) as (server, peer):
        assert await ask(peer) == b"ok"
        with pytest.raises(PeerFault, match="timed out"):
            await ask(peer, timeout_ms=100)
        assert (server.connections, server.requests) == (1, 2)


async def test_an_aborted_client_does_not_resend() -> None:
    """A connection that this side closed is not reopened."""
    waits = asyncio.Event()

    async def respond(writer: asyncio.StreamWriter, _number: int, asked: int) -> None:
        if asked:
            waits.set()
            await asyncio.sleep(10)
        writer.write(ANSWER)

    async with source(respond) as (server, peer):
        assert await ask(peer) == b"ok"
        asked = asyncio.ensure_future(ask(peer))
        await waits.wait()
        peer.abort()
        with pytest.raises(PeerFault, match="the client was closed"):
            await asked
        assert (server.connections, server.requests) == (1, 2)


CHUNKED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    "begin",
    [
        pytest.param(b"HTTP/1.1 200 OK\r\nx: ", id="head"),
        pytest.param(CHUNKED + b"2\r\nok\r\n2;x=", id="chunk-extension"),
        pytest.param(CHUNKED + b"2\r\nok\r\n0\r\nx: ", id="trailer"),
    ],
)
async def test_heads_chunk_extensions_and_trailers_are_bounded(begin: bytes) -> None:
    """An endless head, chunk extension or trailer is aborted soon, with bounded memory."""
    sent = 0

    async def respond(writer: asyncio.StreamWriter, _number: int, _asked: int) -> None:
        nonlocal sent
        writer.write(begin)
        while True:
            writer.write(b"a" * 10_000)
            sent += 10_000
            await writer.drain()

    async with source(respond) as (_, peer):
        with pytest.raises(PeerFault, match=f"more than {HEAD_BYTES_MAX} bytes outside its body"):
            await ask(peer)
    assert sent < 16_000_000  # what sockets hold


@pytest.mark.parametrize("begin", [b"HTTP/1.1 200 OK\r\nx: ", CHUNKED + b"2\r\nok\r\n2;x="])
async def test_an_answer_that_trickles_is_left_wherever_it_is(begin: bytes) -> None:
    """Bytes that arrive one by one do not hold a slot for ever, in the body or elsewhere."""

    async def respond(writer: asyncio.StreamWriter, _number: int, _asked: int) -> None:
        writer.write(begin)
        while True:
            writer.write(b"a")
            await writer.drain()
            await asyncio.sleep(0.02)

    async with source(respond) as (_, peer):
        with pytest.raises(PeerFault, match="an answer that trickles"):
            await ask(peer, timeout_ms=500)


async def test_an_answer_that_begins_late_has_its_time_to_come() -> None:
    """The wait for the first byte does not count for the minimal speed of the rest."""

    async def respond(writer: asyncio.StreamWriter, _number: int, _asked: int) -> None:
        await asyncio.sleep(1.3)
        writer.write(ANSWER[:-1])
        await writer.drain()
        await asyncio.sleep(1.3)
        writer.write(ANSWER[-1:])

    async with source(respond) as (_, peer):
        assert await ask(peer, timeout_ms=2_400) == b"ok"
