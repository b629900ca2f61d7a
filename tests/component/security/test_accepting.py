"""Listeners of a process that is short of descriptors or memory: nobody hangs, and they go on by themselves."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import cast

import pytest
import uvloop

from isthmus.repl.security.accepting import Acceptor, PlainServer
from isthmus.repl.shortage import DescriptorReserve
from tests.support.few_descriptors import no_descriptor_left
from tests.support.waiting import PATIENCE_S

HINT = b"no room\n"


class Echo(asyncio.Protocol):
    """Says that it is here, once."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        stream = cast("asyncio.Transport", transport)
        stream.write(b"here\n")
        stream.close()


@asynccontextmanager
async def served(
    reserve: DescriptorReserve, headroom: int = 0, wrapped: Callable[[socket.socket], socket.socket] = lambda sock: sock
) -> AsyncIterator[tuple[tuple[str, int], Acceptor]]:
    """A server on loopback: its address, and its acceptor."""
    listening = wrapped(socket.create_server(("127.0.0.1", 0)))
    listening.setblocking(False)
    acceptor = Acceptor("http", listening, headroom, hint=HINT, descriptors=reserve)
    server = PlainServer(acceptor, listening, Echo)
    server.start()
    try:
        yield listening.getsockname(), acceptor
    finally:
        server.close()
        await server.wait_closed()
        reserve.hold(0)


def client() -> socket.socket:
    """A socket that is made while there are descriptors."""
    sock = socket.socket()
    sock.setblocking(False)
    return sock


async def answer(sock: socket.socket, address: tuple[str, int]) -> bytes:
    """What the server says to a new connection, up to its end."""
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(PATIENCE_S):
        with sock:
            await loop.sock_connect(sock, address)
            found = b""
            while data := await loop.sock_recv(sock, 100):
                found += data
            return found


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Callable[..., object]:
    """Runs a coroutine on either loop: nodes have uvloop, whose own servers do not survive a failed accept."""
    return asyncio.run if request.param == "asyncio" else uvloop.run


def test_a_connection_that_would_take_a_descriptor_of_the_node_is_told_so(run: Callable[..., object]) -> None:
    """It is closed with the hint, and counted; others are served as before once the limit allows it."""

    async def claim() -> None:
        reserve = DescriptorReserve()
        reserve.hold(1)
        async with served(reserve, headroom=100) as (address, acceptor):
            assert await answer(client(), address) == b"here\n"
            reserve.limit = 100
            assert await answer(client(), address) == HINT
            assert acceptor.refused_count == 1
            reserve.look()
            assert await answer(client(), address) == b"here\n"

    run(claim())


def test_without_any_descriptor_a_connection_is_turned_away_from_the_reserve(run: Callable[..., object]) -> None:
    """Its client gets the hint instead of waiting; later ones are served."""

    async def claim() -> None:
        reserve = DescriptorReserve()
        reserve.hold(2)
        async with served(reserve) as (address, acceptor):
            assert await answer(client(), address) == b"here\n"
            sock = client()
            with no_descriptor_left():
                assert await answer(sock, address) == HINT
            assert acceptor.refused_count == 1
            assert await answer(client(), address) == b"here\n"

    run(claim())


class FailingAccept(socket.socket):
    """A listening socket of which some accepts fail."""

    failures: list[OSError]

    def accept(self) -> tuple[socket.socket, tuple[str, int]]:
        if self.failures:
            raise self.failures.pop()
        return super().accept()


@pytest.mark.parametrize("name", ["EMFILE", "ENFILE", "ENOMEM", "ENOBUFS", "ECONNABORTED", "EPROTO"])
def test_a_failed_accept_ends_no_listener(name: str, run: Callable[..., object]) -> None:
    """Whatever the error; without a reserve the connection waits in the kernel, and is served after a pause
    (R-SHORT)."""

    def wrapped(sock: socket.socket) -> socket.socket:
        failing = FailingAccept(sock.family, sock.type, sock.proto, sock.detach())
        failing.failures = [OSError(getattr(errno, name), name) for _ in range(2)]
        return failing

    async def claim() -> None:
        async with served(DescriptorReserve(), wrapped=wrapped) as (address, acceptor):
            assert await answer(client(), address) == b"here\n"
            assert acceptor.refused_count == 2
            assert await answer(client(), address) == b"here\n"

    run(claim())


def test_a_burst_of_connections_leaves_others_of_the_loop_their_turn(run: Callable[..., object]) -> None:
    """All are served, and the loop runs in between."""

    async def claim() -> None:
        async with served(DescriptorReserve()) as (address, _):
            turns = 0

            async def count() -> None:
                nonlocal turns
                while True:
                    turns += 1
                    await asyncio.sleep(0)

            counting = asyncio.create_task(count())
            assert await asyncio.gather(*(answer(client(), address) for _ in range(100))) == [b"here\n"] * 100
            assert turns > 5
            counting.cancel()

    run(claim())
