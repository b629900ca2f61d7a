"""Requests over real connections, for threads and for asyncio: every end of an attempt has its meaning and its time."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from isthmus.client import transport
from isthmus.client.errors import BadRequest
from isthmus.client.steps import Endpoint, NoAnswer, Request, Response, Send
from isthmus.client.transport import AsyncTransport, Transport
from tests.support.raw_server import RawServer, reply
from tests.support.waiting import PATIENCE_S

GET = Request(b"GET", b"/x")
PUT = Request(b"PUT", b"/x", ((b"Content-Type", b"a/b"),), b"value")

Sender = Callable[[Send], Response | NoAnswer]
Names = dict[str, tuple[str, ...]]


class Senders:
    """`send` of a transport of one kind; `close` ends it."""

    def __init__(self, kind: str, connections: int = 4) -> None:
        self._sync = Transport(None, connections) if kind == "threads" else None
        self._runner = None if self._sync else asyncio.Runner()
        self._async = None if self._sync else AsyncTransport(None, connections)

    def send(self, send: Send) -> Response | NoAnswer:
        if self._sync:
            return self._sync.send(send)
        assert self._async is not None
        assert self._runner is not None
        return self._runner.run(self._async.send(send))

    def close(self) -> None:
        if self._sync:
            self._sync.close()
        else:
            assert self._async is not None
            assert self._runner is not None
            self._runner.run(self._async.close())
            self._runner.close()


@pytest.fixture(params=["threads", "asyncio"])
def sender(request: pytest.FixtureRequest) -> Any:
    """A transport of each kind."""
    made = Senders(request.param)
    yield made
    made.close()


def to(server: RawServer | int, request: Request = GET, timeout_s: float = 5.0) -> Send:
    port = server if isinstance(server, int) else server.port
    return Send(Endpoint("http", "127.0.0.1", port), request, timeout_s, timeout_s)


def test_an_answer(sender: Senders) -> None:
    """Status, headers in lower case, joined when they are there several times, and the body as it is."""
    server = RawServer(lambda s: server.serve(reply(300, b"\x1f\x8b", "A-B: c", "a-b: d", "Content-Encoding: gzip"))(s))
    with server:
        answer = sender.send(to(server))
        assert isinstance(answer, Response)
        assert (answer.status, answer.body) == (300, b"\x1f\x8b")
        assert (answer.headers["a-b"], answer.headers["content-encoding"]) == ("c, d", "gzip")
        assert isinstance(sender.send(to(server)), Response)
        assert server.accepted == 1


def test_a_small_request_is_sent_in_one_piece(sender: Senders) -> None:
    """Head and body together, which a node answers by its fast path; also on a connection that is used again."""
    server = RawServer(lambda s: server.serve(reply(204))(s))
    with server:
        for _ in range(2):
            sender.send(to(server, PUT))
        for received in server.heads:
            head, _, body = received.partition(b"\r\n\r\n")
            assert body == b"value"
            assert head.startswith(b"PUT /x HTTP/1.1\r\nHost: 127.0.0.1:%d\r\n" % server.port)
        assert len(server.heads) == 2


def test_a_large_body_arrives(sender: Senders) -> None:
    """Larger than what is joined with the head, and an empty one."""
    sizes: list[int] = []

    def script(connection: socket.socket) -> None:
        received = b""
        while b"\r\n\r\n" not in received:
            received += connection.recv(65536)
        head, _, body = received.partition(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
        while len(body) < length:
            body += connection.recv(65536)
        sizes.append(len(body))
        connection.sendall(reply(204, b"", "Connection: close"))

    with RawServer(script) as server:
        for size in (transport.JOINED_BYTES_MAX + 1, 3_000_000, 0):
            answer = sender.send(to(server, Request(b"PUT", b"/x", (), b"x" * size)))
            assert isinstance(answer, Response)
        assert sizes == [transport.JOINED_BYTES_MAX + 1, 3_000_000, 0]


def test_a_port_where_nobody_listens(sender: Senders) -> None:
    """Nothing was sent."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    answer = sender.send(to(port))
    assert isinstance(answer, NoAnswer)
    assert not answer.sent
    assert "cannot be reached" in answer.why


@contextlib.contextmanager
def silent(*hosts: str, port: int = 0) -> Iterator[int]:
    """A port where connections are neither accepted nor refused, at each address: the queues are full."""
    with contextlib.ExitStack() as stack:
        for host in hosts:
            listening = stack.enter_context(socket.create_server((host, port), backlog=0))
            port = listening.getsockname()[1]
            for _ in range(4):
                waiting = stack.enter_context(socket.socket())
                waiting.setblocking(False)
                waiting.connect_ex((host, port))
        yield port


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> Names:
    """Names -> their addresses; `slow.test` takes its time."""
    known: Names = {}
    resolve = socket.getaddrinfo

    def resolved(host: Any, port: Any, *given: Any, **named: Any) -> list[Any]:
        name = host.decode() if isinstance(host, bytes) else host
        if name == "slow.test":
            time.sleep(2.0)
        return [found for each in known.get(name, (name,)) for found in resolve(each, port, *given, **named)]

    monkeypatch.setattr(socket, "getaddrinfo", resolved)
    return known


@pytest.mark.timing
def test_connecting_to_several_addresses_ends_in_its_time(sender: Senders, names: Names) -> None:
    """All addresses together have the time for connecting, not each of them."""
    names["many.test"] = ("127.0.0.2", "127.0.0.3", "127.0.0.4", "127.0.0.5")
    with silent(*names["many.test"]) as port:
        begun = time.monotonic()
        answer = sender.send(Send(Endpoint("http", "many.test", port), GET, 20.0, 1.5))
        assert 1.4 < time.monotonic() - begun < 5.5, "one after the other would take four times 1.5 s"
    assert isinstance(answer, NoAnswer)
    assert not answer.sent


def test_a_silent_address_leaves_time_for_the_next(sender: Senders, names: Names) -> None:
    """An address that refuses leaves all of it."""
    names["some.test"] = ("127.0.0.2", "127.0.0.3", "127.0.0.1")
    server = RawServer(lambda s: server.serve(reply(204))(s))
    with server, silent("127.0.0.2", port=server.port):
        answer = sender.send(Send(Endpoint("http", "some.test", server.port), GET, 10.0, 3.0))
    assert isinstance(answer, Response)


def test_a_name_that_does_not_exist(sender: Senders, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing was sent, and the error is that of the resolver."""

    def unknown(*_: Any, **__: Any) -> Any:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    answer = sender.send(Send(Endpoint("http", "none.test", 1), GET, 5.0, 5.0))
    assert isinstance(answer, NoAnswer)
    assert not answer.sent
    assert "cannot be reached: [Errno -2] Name or service not known" in answer.why


@pytest.mark.timing
def test_tls_has_what_is_left_of_the_time_for_connecting(sender: Senders, names: Names) -> None:
    """A slow resolver and a node that is silent during the handshake share one time-out. Silence is not reported as a
    certificate error."""
    names["slow.test"] = ("127.0.0.1",)
    server = RawServer(lambda s: server.wait_for_end(s))
    with server:
        begun = time.monotonic()
        answer = sender.send(Send(Endpoint("https", "slow.test", server.port), GET, 20.0, 3.0))
        assert 2.9 < time.monotonic() - begun < 4.7, "each with the whole time would take 5 s"
    assert isinstance(answer, NoAnswer)
    assert not answer.sent
    assert not answer.tls


@pytest.mark.parametrize(
    "part", [b"", b"HTTP/1.1 200 OK\r\nContent-Le", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc"]
)
def test_a_connection_that_breaks(sender: Senders, part: bytes) -> None:
    """Before, in or after the head of an answer: the request may have taken effect."""

    def script(connection: socket.socket) -> None:
        server.read_request(connection)
        connection.sendall(part)

    server = RawServer(script)
    with server:
        answer = sender.send(to(server))
    assert isinstance(answer, NoAnswer)
    assert answer.sent
    assert not answer.unreadable


@pytest.mark.parametrize("garbage", [b"SSH-2.0-OpenSSH\r\n\r\n", b"\x15\x03\x01\x00\x02\x02\x16" * 20 + b"\r\n\r\n"])
def test_what_is_not_http(sender: Senders, garbage: bytes) -> None:
    """The error says so."""

    def script(connection: socket.socket) -> None:
        server.read_request(connection)
        connection.sendall(garbage)
        server.wait_for_end(connection)

    server = RawServer(script)
    with server:
        answer = sender.send(to(server))
    assert isinstance(answer, NoAnswer)
    assert answer.unreadable
    assert answer.sent


def test_an_answer_that_is_too_large_is_not_held(sender: Senders, monkeypatch: pytest.MonkeyPatch) -> None:
    """It ends at the limit; the next request has a new connection."""
    monkeypatch.setattr(transport, "ANSWER_BYTES_MAX", 10_000)
    endless = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"1000\r\n" + b"x" * 4096 + b"\r\n"

    def script(connection: socket.socket) -> None:
        server.read_request(connection)
        connection.sendall(endless)
        while True:
            connection.sendall(b"1000\r\n" + b"x" * 4096 + b"\r\n")

    server = RawServer(script, lambda s: server.serve(reply(204))(s))
    with server:
        answer = sender.send(to(server))
        assert isinstance(answer, NoAnswer)
        assert answer.unreadable
        assert isinstance(sender.send(to(server)), Response)


@pytest.mark.timing
@pytest.mark.parametrize("drips", [False, True])
def test_an_attempt_ends_in_its_time(sender: Senders, drips: bool) -> None:
    """This also holds if a byte arrives now and then, which no limit of a single wait would notice."""

    def script(connection: socket.socket) -> None:
        server.read_request(connection)
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n" if drips else b"H")
        while drips:
            time.sleep(0.05)
            connection.sendall(b"x")
        server.wait_for_end(connection)

    server = RawServer(script)
    with server:
        begun = time.monotonic()
        answer = sender.send(to(server, timeout_s=0.5))
        assert 0.4 < time.monotonic() - begun < 20.0
    assert isinstance(answer, NoAnswer)
    assert answer.sent
    assert "within the time" in answer.why


def test_a_refusal_that_comes_before_the_body_is_read(sender: Senders) -> None:
    """A node refuses a large body by its head and closes: the client gets the refusal, not a broken connection."""

    def script(connection: socket.socket) -> None:
        received = b""
        while b"\r\n\r\n" not in received:
            received += connection.recv(1000)
        connection.sendall(reply(413, b"too large\n", "X-Isthmus-Reason: too-large", "Connection: close"))
        connection.shutdown(socket.SHUT_WR)
        server.wait_for_end(connection)

    server = RawServer(script)
    with server:
        answer = sender.send(to(server, Request(b"PUT", b"/x", (), b"x" * 5_000_000)))
    assert isinstance(answer, Response)
    assert answer.status == 413


def test_a_request_that_http_does_not_permit(sender: Senders) -> None:
    """The error is BadRequest, and nothing is sent."""
    with RawServer(lambda s: None) as server, pytest.raises(BadRequest):
        sender.send(to(server, Request(b"GET", b"/x", ((b"a b", b"c"),))))


def test_an_idle_connection_that_the_node_closed_is_replaced(sender: Senders) -> None:
    """A node that restarts leaves closed connections: the next request finds that out before it sends."""
    closed = threading.Event()

    def once(connection: socket.socket) -> None:
        server.read_request(connection)
        connection.sendall(reply(204))
        connection.shutdown(socket.SHUT_RDWR)
        closed.set()

    server = RawServer(once, lambda s: server.serve(reply(204))(s))
    with server:
        assert isinstance(sender.send(to(server)), Response)
        assert closed.wait(PATIENCE_S)
        time.sleep(0.05)
        assert isinstance(sender.send(to(server)), Response)
    assert server.accepted == 2


def answers_after(release: threading.Event) -> RawServer:
    """A node that takes requests and answers them once `release` is set."""

    def script(connection: socket.socket) -> None:
        while server.read_request(connection):
            release.wait(60)
            connection.sendall(reply(204))

    server = RawServer(script)
    return server


def test_connections_are_bounded_for_threads() -> None:
    """A thread that finds no free connection waits, then gets an error that says so; its request was not sent, so its
    outcome is certain."""
    release = threading.Event()
    server = answers_after(release)
    made = Transport(None, 2)
    answers: list[Response | NoAnswer] = []
    with server:
        busy = [
            threading.Thread(target=lambda: answers.append(made.send(to(server, timeout_s=PATIENCE_S))))
            for _ in range(2)
        ]
        for thread in busy:
            thread.start()
        while len(server.heads) < 2:
            time.sleep(0.01)
        refused = made.send(to(server, timeout_s=0.3))
        assert isinstance(refused, NoAnswer)
        assert refused.busy
        assert not refused.sent
        release.set()
        for thread in busy:
            thread.join(PATIENCE_S)
        assert all(isinstance(answer, Response) for answer in answers)
        assert server.accepted == 2
        made.close()


async def test_connections_are_bounded_for_tasks_and_survive_cancellation() -> None:
    """Tasks beyond the limit wait; cancelled ones, waiting or under way, leave no connection occupied."""
    release = threading.Event()
    release.set()

    def slow(connection: socket.socket) -> None:
        while server.read_request(connection):
            time.sleep(0.2)
            release.wait(60)
            connection.sendall(reply(204))

    server = RawServer(slow)
    made = AsyncTransport(None, 2)
    with server:
        for delay_s in (0.0, 0.01, 0.05, 0.25):
            tasks = [asyncio.create_task(made.send(to(server, timeout_s=PATIENCE_S))) for _ in range(6)]
            await asyncio.sleep(delay_s)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        answers = await asyncio.gather(*(made.send(to(server, timeout_s=PATIENCE_S)) for _ in range(4)))
        assert all(isinstance(answer, Response) for answer in answers)
        release.clear()
        last = Request(b"GET", b"/last")  # requests of cancelled tasks may arrive late; the path tells this one apart
        busy = [asyncio.create_task(made.send(to(server, last, timeout_s=PATIENCE_S))) for _ in range(2)]
        while sum(head.startswith(b"GET /last ") for head in server.heads) < 2:
            await asyncio.sleep(0.01)
        refused = await made.send(to(server, timeout_s=0.3))
        assert isinstance(refused, NoAnswer)
        assert refused.busy
        release.set()
        await asyncio.gather(*busy)
        await made.close()


async def test_an_attempt_that_got_no_connection_has_sent_nothing_however_late_that_is_seen() -> None:
    """A loop that is blocked past both the wait for a connection and the attempt sees both time-outs at once."""
    release = threading.Event()
    server = answers_after(release)
    made = AsyncTransport(None, 1)
    with server:
        busy = asyncio.create_task(made.send(to(server, timeout_s=PATIENCE_S)))
        while not server.heads:
            await asyncio.sleep(0.01)
        waiting = asyncio.create_task(made.send(to(server, PUT, timeout_s=0.3)))
        await asyncio.sleep(0.05)
        asyncio.get_running_loop().call_soon(time.sleep, 0.5)  # the loop is blocked
        await asyncio.sleep(0)
        refused = await waiting
        assert isinstance(refused, NoAnswer)
        assert refused.busy
        assert not refused.sent
        release.set()
        await busy
        await made.close()


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_an_attempt_that_ends_while_it_connects_has_sent_nothing(sender: Senders, names: Names, scheme: str) -> None:
    """The time of the whole attempt is over first: a node that is silent in TCP's handshake, or in that of TLS."""
    with contextlib.ExitStack() as stack:
        if scheme == "http":
            names["quiet.test"] = ("127.0.0.2",)
            port = stack.enter_context(silent("127.0.0.2"))
        else:
            names["quiet.test"] = ("127.0.0.1",)
            server = stack.enter_context(RawServer(lambda s: server.wait_for_end(s)))
            port = server.port
        answer = sender.send(Send(Endpoint(scheme, "quiet.test", port), PUT, 0.4, 5.0))
    assert isinstance(answer, NoAnswer)
    assert not answer.sent
    assert "cannot be reached" in answer.why
