"""Claims about outgoing HTTP, from threads and from the event loop, against a small server of the standard library."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import socket
import threading
import time
import weakref
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar

import pytest
from urllib3.exceptions import ConnectTimeoutError

from isthmus.repl.http.async_client import AsyncHttpPeer
from isthmus.repl.http.client import HttpPeer, HttpRefused, cause_of, refusal_words
from isthmus.repl.model.errors import PeerFault
from tests.support.blocking_peer import PeerOnLoop
from tests.support.waiting import PATIENCE_S

Dial = type[HttpPeer] | type[PeerOnLoop]


class PathHandler(BaseHTTPRequestHandler):
    """A handler whose behaviour is selected by the path."""

    protocol_version = "HTTP/1.1"
    connections: ClassVar[set[object]] = set()
    hang = threading.Event()
    waiting = threading.Event()
    closed: ClassVar[threading.Semaphore]

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        PathHandler.connections.add(self.client_address)
        what = self.path.strip("/")
        if what == "echo":
            self._reply(200, self.headers["Content-Type"].encode() + b" " + body)
        elif what == "huge":
            self.send_response(200)
            self.send_header("Content-Length", str(1 << 40))
            self.end_headers()
            self.wfile.flush()
            self.hang.wait(60)
        elif what == "endless":
            self.send_response(200)
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            try:
                while not self.hang.is_set():
                    self.wfile.write(b"1000\r\n" + b"x" * 0x1000 + b"\r\n")
            except OSError:
                self.close_connection = True
        elif what == "short":
            self.send_response(200)
            self.send_header("Content-Length", "100")
            self.end_headers()
            self.wfile.write(b"only this")
            self.close_connection = True
        elif what == "bye":
            self._reply(200, b"bye")
            self.close_connection = True  # without an announcement, as at the end of a keep-alive
        elif what == "owned":
            self._reply(409, b"queue q belongs to\ncluster south\n", ("X-Isthmus-Reason", "owned-by-other"))
        elif what == "admin":
            self._reply(404, b'{"error": "nothing answers at /queues/q/fetch", "reason": "unknown-path"}')
        elif what == "moved":
            self._reply(302, b"", ("Location", "http://127.0.0.1:1/"))
        elif what == "slow":
            self.waiting.set()
            self.hang.wait(60)
            self.close_connection = True
        elif what == "garbage":
            self.wfile.write(b"\x00\xffthis is no HTTP\r\n\r\n")
            self.close_connection = True

    def _reply(self, status: int, body: bytes, *headers: tuple[str, str]) -> None:
        self.send_response(status)
        for name, value in headers:
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Silent."""


class QuietServer(ThreadingHTTPServer):
    def shutdown_request(self, request: socket.socket | tuple[bytes, socket.socket]) -> None:
        """Records that a connection is closed."""
        super().shutdown_request(request)
        PathHandler.closed.release()

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignores clients that disconnect, which these tests provoke."""


@pytest.fixture
def url() -> Iterator[str]:
    PathHandler.hang.clear()
    PathHandler.waiting.clear()
    PathHandler.closed = threading.Semaphore(0)
    PathHandler.connections.clear()
    server = QuietServer(("127.0.0.1", 0), PathHandler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    PathHandler.hang.set()
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture(params=[HttpPeer, PeerOnLoop])
def dial(request: pytest.FixtureRequest) -> Dial:
    """Both clients."""
    found: Dial = request.param
    return found


def post(peer: HttpPeer | PeerOnLoop, what: str, *, limit: int = 1_000, timeout_ms: int = 10_000) -> bytes:
    return peer.post(f"/{what}", b"body", media_type="application/x", timeout_ms=timeout_ms, limit_bytes=limit)


def test_an_answer_comes_back_and_its_connection_is_kept(dial: Dial, url: str) -> None:
    """Bodies travel both ways unchanged, over one connection."""
    peer = dial(url + "/", 2)
    for _ in range(3):
        assert post(peer, "echo") == b"application/x body"
    assert len(PathHandler.connections) == 1
    peer.abort()


def test_a_connection_that_was_closed_while_it_rested_is_not_used_again(dial: Dial, url: str) -> None:
    """The server may close a kept connection at any time: the next request gets a new connection, and no error."""
    peer = dial(url, 1)
    for _ in range(3):
        assert post(peer, "bye") == b"bye"
        assert PathHandler.closed.acquire(timeout=PATIENCE_S)
    assert post(peer, "echo") == b"application/x body"
    peer.abort()


def test_an_answer_of_exactly_the_limit_is_taken(dial: Dial, url: str) -> None:
    """The limit is the largest size that passes."""
    peer = dial(url, 1)
    assert len(post(peer, "echo", limit=18)) == 18
    with pytest.raises(PeerFault, match="at most 17"):
        post(peer, "echo", limit=17)
    peer.abort()


@pytest.mark.timing
@pytest.mark.parametrize("what", ["huge", "endless"])
def test_an_answer_over_the_limit_is_refused_without_being_read(dial: Dial, url: str, what: str) -> None:
    """A huge declared length costs nothing, and one that is not declared is read up to the limit only."""
    peer = dial(url, 1)
    began = time.monotonic()
    with pytest.raises(PeerFault, match="bytes"):
        post(peer, what, limit=100_000)
    assert time.monotonic() - began < 5
    peer.abort()


@pytest.mark.parametrize("what", ["short", "garbage"])
def test_an_answer_that_is_not_whole_is_the_peers_fault(dial: Dial, url: str, what: str) -> None:
    """A truncated body, or an answer that is not HTTP, is reported in one line, and the next request works."""
    peer = dial(url, 1)
    with pytest.raises(PeerFault) as caught:
        post(peer, what)
    assert url in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.__cause__ is not None
    assert post(peer, "echo")
    peer.abort()


def test_a_refusal_carries_its_reason(dial: Dial, url: str) -> None:
    """An error status carries the peer's sentence and its stable reason."""
    peer = dial(url, 1)
    with pytest.raises(HttpRefused, match="answers 409: queue q belongs to cluster south") as caught:
        post(peer, "owned")
    assert (caught.value.status, caught.value.reason) == (409, "owned-by-other")
    with pytest.raises(HttpRefused) as caught:
        post(peer, "admin")
    said = "this seems to be an admin listener: use the peer's client address, listen.http"
    assert str(caught.value) == f"{url} answers 404: {said}"
    peer.abort()


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ('{"error": "not  now", "reason": "not-ready"}', "not now"),
        ("queue q\nis away", "queue q is away"),
        ("{", "{"),
        ("[" * 3_000, "[" * 3_000),
        ('["error"]', '["error"]'),
        ('{"error": 5}', '{"error": 5}'),
        ("", ""),
    ],
)
def test_the_message_of_a_refusal_is_extracted_from_any_form(body: str, words: str) -> None:
    """The message of a JSON body is extracted; any other body is returned as it is."""
    assert refusal_words(body) == words


@pytest.mark.timing
@pytest.mark.parametrize("begin", [b"HTTP/1.1 200 OK\r\nx: ", b"HTTP/1.1 503 No\r\ncontent-length: 1900\r\n\r\n"])
def test_a_trickling_head_or_error_answer_is_abandoned(dial: Dial, begin: bytes) -> None:
    """Bytes that arrive one by one hold no thread for ever, in a head or in a refusal."""
    over = threading.Event()

    def respond(server: socket.socket) -> None:
        connection, _ = server.accept()
        with connection, contextlib.suppress(OSError):
            connection.recv(10_000)
            connection.sendall(begin)
            while not over.wait(0.02):
                connection.sendall(b"a")

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=respond, args=(server,))
        thread.start()
        peer = dial(f"http://127.0.0.1:{server.getsockname()[1]}", 1)
        began_s = time.monotonic()
        try:
            with pytest.raises(PeerFault, match="trickles"):
                peer.post("/echo", b"", media_type="x", timeout_ms=1_000, limit_bytes=1000)
            assert time.monotonic() - began_s < 10
        finally:
            over.set()
            thread.join()
            peer.abort()


def test_redirections_are_not_followed(dial: Dial, url: str) -> None:
    """A peer cannot send us elsewhere."""
    peer = dial(url, 1)
    with pytest.raises(HttpRefused, match="302"):
        post(peer, "moved")
    peer.abort()


def test_a_peer_that_is_not_there_is_a_fault_in_one_line(dial: Dial) -> None:
    """A refused connection and an unknown host name are reported without the addresses of Python objects."""
    for url, what in (("http://127.0.0.1:9", "refused"), ("http://no-such-host.invalid", "no-such-host")):
        peer = dial(url, 1)
        with pytest.raises(PeerFault) as caught:
            post(peer, "echo", timeout_ms=2_000)
        assert url in str(caught.value)
        assert "0x" not in str(caught.value)
        assert what
        peer.abort()


def test_a_connect_timeout_message_names_no_python_objects() -> None:
    """urllib3's exception begins with its connection object: the message has only the sentence."""
    error = ConnectTimeoutError(object(), "Connection to 10.0.0.7 timed out. (connect timeout=5.0)")
    assert cause_of(error) == "Connection to 10.0.0.7 timed out. (connect timeout=5.0)"
    assert cause_of(OSError(111, "Connection refused")) == "[Errno 111] Connection refused"


@pytest.mark.timing
def test_a_silent_peer_is_left_after_the_time_out(dial: Dial, url: str) -> None:
    """No answer within the time-out is the peer's fault."""
    peer = dial(url, 1)
    began = time.monotonic()
    with pytest.raises(PeerFault, match=r"(?i)timed out"):
        post(peer, "slow", timeout_ms=200)
    assert time.monotonic() - began < 5
    peer.abort()


@pytest.mark.timing
def test_each_request_on_a_kept_connection_has_its_own_timeout(dial: Dial, url: str) -> None:
    """A short time-out counts behind a long one on the same connection, and a connection that has rested for longer
    than a request was willing to wait serves on."""
    peer = dial(url, 1)
    for timeout_ms in (20_000, 1_000):
        assert post(peer, "echo", timeout_ms=timeout_ms) == b"application/x body"
    time.sleep(1.1)
    assert post(peer, "echo", timeout_ms=20_000) == b"application/x body"
    assert len(PathHandler.connections) == 1
    began = time.monotonic()
    with pytest.raises(PeerFault, match=r"(?i)timed out"):
        post(peer, "slow", timeout_ms=200)
    assert time.monotonic() - began < 5
    peer.abort()


@pytest.mark.timing
def test_a_long_poll_ends_at_once_when_it_is_cut(dial: Dial, url: str) -> None:
    """`cut` from another thread ends waiting requests, and later ones fail without a connection."""
    peer = dial(url, 2)
    ended: list[Exception] = []

    def wait() -> None:
        try:
            post(peer, "slow", timeout_ms=20_000)
        except PeerFault as error:
            ended.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    assert PathHandler.waiting.wait(PATIENCE_S)
    began = time.monotonic()
    peer.abort()
    thread.join(PATIENCE_S)
    assert ended
    assert time.monotonic() - began < 5
    with pytest.raises(PeerFault):
        post(peer, "echo")


def test_proxies_of_the_environment_are_ignored(dial: Dial, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nodes connect to each other directly, for any proxy settings in the environment."""
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    peer = dial(url, 1)
    assert post(peer, "echo")
    peer.abort()


def test_an_unusable_url_is_reported(dial: Dial, url: str) -> None:
    """A URL without a scheme is a fault in words, not a crash."""
    peer = dial("nonsense", 1)
    with pytest.raises(PeerFault, match="nonsense"):
        post(peer, "echo")
    peer.abort()


async def test_a_client_aborted_while_connecting_raises_one_error() -> None:
    """A connection that was made but never used is closed without an unhandled error."""
    said = []

    asyncio.get_running_loop().set_exception_handler(lambda _, context: said.append(context))
    server = await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1", 0)
    peer = AsyncHttpPeer(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    asked = asyncio.ensure_future(
        peer.post("/x", b"", media_type="application/msgpack", timeout_ms=5_000, limit_bytes=1_000)
    )
    await asyncio.sleep(0)
    peer.abort()
    with pytest.raises(PeerFault, match="the client was closed"):
        await asked
    await asyncio.sleep(0.05)
    server.close()
    assert said == []


def test_a_session_that_nobody_closed_is_freed(url: str) -> None:
    """A client that is dropped with an idle connection is freed, with that connection: nothing is kept until the end of
    the process."""
    peer = HttpPeer(url, 1)
    assert post(peer, "echo")
    adapter = weakref.ref(peer._adapter)
    del peer
    gc.collect()
    assert adapter() is None
