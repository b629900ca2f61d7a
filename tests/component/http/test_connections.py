"""Real connections on loopback: limits, hostile clients, time-outs, and the way out."""

from __future__ import annotations

import asyncio
import re
import signal
import socket
import threading
import time
from email.utils import parsedate_to_datetime

import pytest
import requests

from isthmus.config.settings import Address, ListenSettings
from isthmus.node.http import connection
from isthmus.node.http.listener import HELP, Listener, Listeners, bind
from isthmus.node.http.outgoing_ports import outgoing_ports
from isthmus.queues.source_queue import Session
from isthmus.queues.wire import FetchRequest, encode_request
from isthmus.repl.machine import machine
from isthmus.repl.model.errors import LocalFault
from tests.support.waiting import PATIENCE_S

PUT = b"PUT /buckets/b/keys/%b HTTP/1.1\r\nhost: x\r\ncontent-type: a/b\r\ncontent-length: %d\r\n\r\n%b"
GET = b"GET /buckets/b/keys/%b HTTP/1.1\r\nhost: x\r\n\r\n"
CLOSE = b"GET /ping HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"


def statuses(raw):
    """The status codes of the answers that follow one another in `raw`."""
    return [int(part.split(b" ", 1)[0]) for part in raw.split(b"HTTP/1.1 ")[1:]]


def taken_of(sock, piece, count):
    """How many of `count` pieces could be sent before the other side had closed."""
    for n in range(count):
        try:
            sock.sendall(piece)
        except OSError:
            return n
    return count


def test_an_ordinary_client_writes_reads_and_keeps_its_connection(client_api, server):
    """A session of `requests` behaves as against Riak, over one connection, with Date on every answer."""
    url = f"http://127.0.0.1:{server.port}/buckets/b/keys/k"
    with requests.Session() as session:
        session.trust_env = False
        assert session.get(url).status_code == 404
        put = session.put(url, data=b"v" * 200_000, headers={"content-type": "text/plain"})
        assert (put.status_code, put.content) == (204, b"")
        got = session.get(url)
        assert (got.content, got.headers["x-riak-vclock"]) == (b"v" * 200_000, put.headers["x-riak-vclock"])
        assert "date" in got.headers
        assert "server" not in got.headers
        chunked = session.put(
            url, data=iter([b"a", b"b"]), headers={"content-type": "a/b", "x-riak-vclock": put.headers["x-riak-vclock"]}
        )
        assert chunked.status_code == 204
        assert session.get(url).content == b"ab"
        assert session.head(url).headers["content-length"] == "2"
        assert session.delete(url).status_code == 204
        server.call(lambda: None)
        assert server.call(lambda: len(server.listener._state.connections)) == 1


def test_requests_sent_ahead_are_answered_in_order(client_api, server):
    """Pipelined requests get their answers in the order of asking, also in one packet."""
    raw = server.exchange(PUT % (b"1", 1, b"x") + GET % b"1" + GET % b"2" + CLOSE)
    assert statuses(raw) == [204, 200, 404, 200]


@pytest.mark.parametrize(
    "garbage",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET /\xff HTTP/1.1\r\nhost: x\r\n\r\n",
        b"G\x00T / HTTP/1.1\r\nhost: x\r\n\r\n",
        b"GET / HTTP/1.1\r\nhost: x\r\nbad header\r\n\r\n",
        b"GET / HTTP/1.1\r\nhost: x\r\na: b\x00\r\n\r\n",
        b"PUT /buckets/b/keys/k HTTP/1.1\r\nhost: x\r\ncontent-type: a/b\r\ncontent-length: -1\r\n\r\nx",
        b"PUT /buckets/b/keys/k HTTP/1.1\r\nhost: x\r\na: b\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nxx",
        b"PUT /buckets/b/keys/ HTTP/1.1\r\nhost: x\r\ncontent-length: 1\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        b"PUT /buckets/b/keys/k HTTP/1.1\r\nhost: x\r\na: b\r\ntransfer-encoding: chunked\r\n\r\nzz\r\nx\r\n",
        b"GET /ping HTTP/1.1\r\n\r\n",
        b"GET /ping HTTP/1.1\r\nhost: x\r\nhost: y\r\n\r\n",
        b"GET /ping HTTP/1.0\r\nhost: x\r\nhost: y\r\n\r\n",
    ],
)
def test_invalid_http_is_answered_400_and_closed(client_api, server, garbage):
    """Bytes that cannot be parsed get one 400 with a reason; nothing is written, the connection ends."""
    raw = server.exchange(garbage)
    assert statuses(raw) == [400], raw
    assert b"x-isthmus-reason: bad-http" in raw
    assert b"connection: close" in raw
    assert client_api.kv.writes == 0


@pytest.mark.parametrize("version", [b" HTTP/2.0", b" HTTP/0.9", b""])
def test_another_version_of_http_is_505_and_closed(client_api, server, version):
    """Only HTTP/1.1 and HTTP/1.0 are answered: a client of another version could not read the answer."""
    raw = server.exchange((PUT % (b"1", 1, b"x")).replace(b" HTTP/1.1", version))
    assert statuses(raw) == [505], raw
    assert b"x-isthmus-reason: http-version" in raw
    assert b"connection: close" in raw
    assert client_api.kv.writes == 0


def test_a_client_of_http_1_0_gets_whole_answers_as_any_other(server):
    """Answers of known length have it, and end with the connection, as HTTP/1.0 has it."""
    raw = server.exchange((PUT % (b"1", 1, b"x")).replace(b"HTTP/1.1", b"HTTP/1.0"))
    assert statuses(raw) == [204]
    for verb in (b"GET", b"HEAD"):
        raw = server.exchange((GET % b"1").replace(b"HTTP/1.1", b"HTTP/1.0").replace(b"GET", verb))
        assert statuses(raw) == [200]
        assert b"content-length: 1\r\n" in raw
        assert b"connection: close\r\n" in raw
        assert raw.endswith(b"\r\n\r\nx" if verb == b"GET" else b"\r\n\r\n")


def test_garbage_behind_a_request_never_answers_for_it(client_api, server):
    """A running write is answered with its own outcome, not with the 400 of the bytes after it."""
    server.call(lambda: setattr(client_api.kv, "gate", asyncio.Event()))
    with server.connect() as sock:
        sock.sendall(PUT % (b"1", 1, b"x") + GET % b"2" + b"\x00garbage\r\n\r\n")
        server.wait(lambda: client_api.app.budget.used_bytes == 1)
        server.call(client_api.kv.gate.set)
        raw = b"".join(iter(lambda: sock.recv(4096), b""))
    assert statuses(raw) == [204, 404]


def test_too_many_requests_sent_ahead_end_the_connection(client_api, server):
    """Pipelined requests are bounded: accepted ones are answered, the rest is not, and the connection closes."""
    server.call(lambda: setattr(client_api.kv, "gate", asyncio.Event()))
    with server.connect() as sock:
        sock.sendall(PUT % (b"1", 1, b"x") + (GET % b"1") * 2000)
        server.wait(lambda: client_api.app.budget.used_bytes == 1)
        server.call(client_api.kv.gate.set)
        raw = b"".join(iter(lambda: sock.recv(1 << 16), b""))
    assert statuses(raw) == [204, *[200] * 128]


def test_a_head_over_the_limit_is_431(client_api, serve):
    """Request line and headers are counted together, in one packet or in many, ended or endless."""
    server = serve(client_api.app, header_limit_bytes=2000)
    small = b"GET /ping HTTP/1.1\r\nhost: x\r\nconnection: close\r\na: " + b"x" * 1800 + b"\r\n\r\n"
    assert statuses(server.exchange(small)) == [200]
    for head in (
        b"GET /ping HTTP/1.1\r\nhost: x\r\na: " + b"x" * 2000 + b"\r\n\r\n",
        b"GET /ping?" + b"x" * 2000 + b" HTTP/1.1\r\nhost: x\r\n\r\n",
        b"GET /ping HTTP/1.1\r\nhost: x\r\n" + b"a: b\r\n" * 400 + b"\r\n",
    ):
        raw = server.exchange(head)
        assert statuses(raw) == [431]
        assert b"x-isthmus-reason: head-too-large" in raw
    with server.connect() as sock:
        sock.sendall(b"GET /ping HTTP/1.1\r\na: ")
        assert taken_of(sock, b"x" * 1000, 10_000) < 10_000


def test_large_bodies_before_a_head_do_not_count_as_head(client_api, serve):
    """The end of a long body and the next head may share a packet without the body counting against the head."""
    server = serve(client_api.app, header_limit_bytes=2000)
    raw = server.exchange(b"".join(PUT % (b"%d" % n, 50_000, b"x" * 50_000) for n in range(8)) + CLOSE)
    assert statuses(raw) == [204] * 8 + [200]


def test_a_value_over_the_limit_is_413_also_for_clients_that_send_first(client_api_with, serve):
    """A client that sends all of its body before it reads still gets the 413, not a reset; nothing is written."""
    client_api = client_api_with(object_bytes=1000)
    server = serve(client_api.app)
    url = f"http://127.0.0.1:{server.port}/buckets/b/keys/k"
    for data in (b"x" * 5_000_000, iter([b"x" * 100_000] * 50)):
        answer = requests.put(url, data=data, headers={"content-type": "a/b"})
        assert (answer.status_code, answer.headers["x-isthmus-reason"]) == (413, "too-large")
    assert statuses(server.exchange(PUT % (b"k", 20_000_000, b"x" * 20_000_000))) == [413]
    waiting = PUT.replace(b"host: x", b"host: x\r\nexpect: 100-continue") % (b"k", 2000, b"")
    assert statuses(server.exchange(waiting, half_close=True)) == [413]
    assert client_api.kv.writes == 0
    allowed = PUT.replace(b"host: x", b"host: x\r\nconnection: close\r\nexpect: 100-continue") % (b"k", 5, b"12345")
    assert statuses(server.exchange(allowed)) == [100, 204]


def test_a_truncated_body_writes_nothing_and_gets_400_if_the_client_still_reads(client_api, server):
    """A half-closed client gets 400; one that is gone gets nothing; neither has written anything."""
    cut = PUT % (b"k", 100, b"only this")
    raw = server.exchange(cut, half_close=True)
    assert statuses(raw) == [400]
    assert b"x-isthmus-reason: cut-short" in raw
    assert statuses(server.exchange(b"GET /ping HT", half_close=True)) == [400]
    chunked = (
        b"PUT /buckets/b/keys/k HTTP/1.1\r\nhost: x\r\ncontent-type: a/b\r\ntransfer-encoding: chunked\r\n\r\n5\r\nab"
    )
    assert statuses(server.exchange(chunked, half_close=True)) == [400]
    with server.connect() as sock:
        sock.sendall(cut)
    server.wait(lambda: not server.listener._state.connections)
    assert client_api.kv.writes == 0
    assert client_api.app.budget.used_bytes == 0


def test_a_client_that_stops_sending_still_gets_its_answer(client_api, server):
    """Closing one's sending side after a complete request does not lose its answer."""
    assert statuses(server.exchange(PUT % (b"k", 1, b"x"), half_close=True)) == [204]
    server.call(lambda: setattr(client_api.kv, "gate", asyncio.Event()))
    with server.connect() as sock:
        sock.sendall(PUT % (b"k", 1, b"x"))
        server.wait(lambda: client_api.app.budget.used_bytes == 1)
        sock.shutdown(socket.SHUT_WR)
        server.call(lambda: None)
        server.call(client_api.kv.gate.set)
        assert statuses(b"".join(iter(lambda: sock.recv(4096), b""))) == [204]


def test_padding_in_a_chunked_body_is_bounded(client_api, server):
    """Chunk extensions or trailers without end are cut off; honest small chunks are not."""
    head = b"PUT /buckets/b/keys/%b HTTP/1.1\r\nhost: x\r\ncontent-type: a/b\r\ntransfer-encoding: chunked\r\n\r\n"
    honest = server.exchange(head % b"1" + b"1\r\nx\r\n" * 30_000 + b"0\r\nx-riak-meta-t: t\r\n\r\n" + CLOSE)
    assert statuses(honest) == [204, 200]
    assert len(client_api.kv.object(b"b", b"1").siblings[0].value) == 30_000
    assert client_api.kv.object(b"b", b"1").siblings[0].metadata == ()
    assert statuses(server.exchange(head % b"3" + b"1\r\nx\r\n0\r\nx-riak-meta-t: t\r\n\r\n" + CLOSE)) == [204, 200]
    assert client_api.kv.object(b"b", b"3").siblings[0].metadata == ()
    for padding in (b"1;" + b"e" * 1000, b"0\r\ntrailer: " + b"t" * 1000):
        with server.connect() as sock:
            sock.sendall(head % b"2" + padding)
            assert taken_of(sock, b"p" * 1000, 10_000) < 10_000
    assert client_api.kv.object(b"b", b"2") is None


def test_a_connection_beyond_the_limit_gets_503(client_api, serve):
    """Beyond the limit a connection is answered 503, closed, and counted, and the others stay open."""
    server = serve(client_api.app, connections_limit=2)
    with server.connect() as a, server.connect() as b:
        server.wait(lambda: len(server.listener._state.connections) == 2)
        raw = server.exchange(CLOSE)
        assert statuses(raw) == [503]
        assert b"retry-after: 1" in raw
        for sock in (a, b):
            sock.sendall(CLOSE)
            assert statuses(sock.recv(4096)) == [200]
    samples = {n: v for n, _, v in server.call(lambda: list(server.listener.samples()))}
    assert samples["isthmus_http_connections_refused_total"] == 1


def test_slow_clients_are_given_up(client_api, serve, monkeypatch):
    """A head or a body that does not arrive in time is 408; a silent connection is closed; nothing is written."""
    monkeypatch.setattr("isthmus.node.http.listener.SWEEP_S", 0.05)
    server = serve(client_api.app, body_timeout_ms=300)
    with server.connect() as silent, server.connect() as idle:
        idle.sendall(b"GET /ping HTTP/1.1\r\nhost: x\r\n\r\n")
        assert statuses(idle.recv(4096)) == [200]
        monkeypatch.setattr("isthmus.node.http.connection.HEAD_TIMEOUT_S", 0.3)
        monkeypatch.setattr("isthmus.node.http.connection.KEEP_ALIVE_S", 0.3)
        for slow in (b"GET /ping HTTP/1.1\r\nhost", PUT % (b"k", 10, b"x"), PUT % (b"k", 200_000, b"x" * 100_000)):
            raw = server.exchange(slow)
            assert statuses(raw) == [408], slow[:40]
            assert b"x-isthmus-reason: slow-request" in raw
        assert silent.recv(10) == idle.recv(10) == b""
    assert client_api.kv.writes == 0
    assert client_api.app.budget.used_bytes == 0


def test_a_reader_that_stalls_is_cut_and_its_answer_forgotten(client_api, serve, monkeypatch):
    """A client that reads nothing of a large answer holds its memory for a bounded time only."""
    monkeypatch.setattr("isthmus.node.http.listener.SWEEP_S", 0.05)
    server = serve(client_api.app)
    client_api.put("/buckets/b/keys/k", b"x" * 30_000_000)
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.connect(("127.0.0.1", server.port))
        sock.sendall(GET % b"k")
        server.wait(lambda: client_api.app.budget.used_bytes == 30_000_000)
        monkeypatch.setattr("isthmus.node.http.connection.STALL_TIMEOUT_S", 0.2)
        server.wait(lambda: client_api.app.budget.used_bytes == 0)
    server.wait(lambda: not server.listener._state.connections)


def test_a_stop_lets_answers_out_and_refuses_new_connections(client_api, serve):
    """While draining, a running write is still answered, idle connections close, and no new one is taken."""
    server = serve(client_api.app)
    server.call(lambda: setattr(client_api.kv, "gate", asyncio.Event()))
    idle, busy = server.connect(), server.connect()
    with idle, busy:
        busy.sendall(PUT % (b"k", 1, b"x"))
        server.wait(lambda: client_api.app.budget.used_bytes == 1)
        stopping = asyncio.run_coroutine_threadsafe(server.listener.stop(60), server.loop)
        assert idle.recv(10) == b""
        with pytest.raises(OSError, match="refused"):
            server.connect()
        server.call(client_api.kv.gate.set)
        raw = b"".join(iter(lambda: busy.recv(4096), b""))
        assert statuses(raw) == [204]
        assert b"connection: close" in raw
        stopping.result(PATIENCE_S)


def test_a_stop_ends_long_polls(client_api, serve):
    """A waiting fetch does not hold up the drain: it is answered at once."""
    server = serve(client_api.app)
    body = encode_request(FetchRequest(Session(b"\x03" * 16, "w1", b"i" * 8, 0), "west", wait_ms=30_000))
    server.call(lambda: setattr(client_api.queue, "give", asyncio.Event()))
    with server.connect() as sock:
        sock.sendall(b"POST /queues/q/fetch HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
        server.wait(lambda: len(client_api.queue.asked) == 1)
        asyncio.run_coroutine_threadsafe(server.listener.stop(60), server.loop).result(PATIENCE_S)
        assert statuses(b"".join(iter(lambda: sock.recv(4096), b""))) == [503]


@pytest.mark.timing
def test_a_drain_that_takes_too_long_cuts_what_is_left(client_api, serve, logged):
    """A stop ends in bounded time also when a write never gets its outcome."""
    server = serve(client_api.app)
    server.call(lambda: setattr(client_api.kv, "gate", asyncio.Event()))
    with server.connect() as sock:
        sock.sendall(PUT % (b"k", 1, b"x"))
        server.wait(lambda: client_api.app.budget.used_bytes == 1)
        began = time.monotonic()
        asyncio.run_coroutine_threadsafe(server.listener.stop(0.1), server.loop).result(10)
        assert time.monotonic() - began < 5
        assert sock.recv(10) == b""
    assert server.call(lambda: (client_api.app.budget.used_bytes, len(server.listener._state.tasks))) == (0, 0)
    assert "http.drain_cut" in [e["event"] for e in logged]


async def test_signals_stay_the_daemons():
    """Two listeners start and stop in one loop of the main thread and leave every signal handler as it was."""
    assert threading.current_thread() is threading.main_thread()

    def handlers():
        return [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)]

    class HelloApp:
        async def __call__(self, scope, receive, send):
            await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
            await send({"type": "http.response.body", "body": b""})

        def stop(self):
            pass

    before = handlers()
    settings = ListenSettings(http=Address("127.0.0.1", 0), admin=Address("localhost", 0))
    listeners = Listeners(settings)
    urls = listeners.bind()
    await listeners.start(HelloApp(), HelloApp())
    during = handlers()
    got = [await asyncio.to_thread(requests.get, url) for url in urls]
    assert {n for n, _, _ in listeners.samples()} == set(HELP)
    await listeners.drain()
    with pytest.raises(requests.ConnectionError):
        await asyncio.to_thread(requests.get, urls[0])
    assert (await asyncio.to_thread(requests.get, urls[1])).status_code == 200
    await listeners.stop()
    await listeners.stop()
    assert [g.status_code for g in got] == [200, 200]
    assert before == during == handlers()


async def test_an_address_that_cannot_be_had_is_one_clear_line():
    """The errors for an occupied port, a host that is not this machine's and one that does not exist each name the
    remedy."""
    settings = ListenSettings()
    taken = Listener("http", Address("127.0.0.1", 0), settings)
    port = int(taken.url.rsplit(":", 1)[1])
    with pytest.raises(LocalFault, match=rf"listen.http: cannot listen on 127.0.0.1:{port}: another program uses it"):
        bind("listen.http", Address("127.0.0.1", port))
    first, last = outgoing_ports()
    assert first <= port <= last, "the kernel chose it"
    with pytest.raises(LocalFault, match=f"gives ports {first} to {last} to outgoing connections"):
        bind("listen.http", Address("127.0.0.1", port))
    await taken.stop()
    bind("listen.http", Address("127.0.0.1", port)).close()
    with pytest.raises(LocalFault, match="no such address"):
        bind("listen.http", Address("192.0.2.1", 0))
    for host in ("no such host", "no-such-host.invalid", "x" * 300):
        with pytest.raises(LocalFault, match="cannot be resolved") as fault:
            bind("listen.admin", Address(host, 0))
        assert "\n" not in str(fault.value)


async def test_a_node_that_failed_to_bind_one_port_frees_the_other():
    """When the second port is occupied, stop() releases the first one."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        settings = ListenSettings(http=Address("127.0.0.1", 0), admin=Address("127.0.0.1", other.getsockname()[1]))
        listeners = Listeners(settings)
        with pytest.raises(LocalFault, match=r"listen\.admin"):
            listeners.bind()
        port = listeners._bound["http"]._socket.getsockname()[1]
        await listeners.stop()
        bind("listen.http", Address("127.0.0.1", port)).close()


def test_the_date_of_an_answer_is_the_second_in_which_it_is_sent(monkeypatch):
    """An object written in this second may have it as Last-Modified, which must not be after Date. Requests under way,
    which hold the list of headers, get it too."""
    state = connection.SharedState(ListenSettings())
    held = state.default_headers
    state.set_date(1_700_000_000)
    assert held == [(b"date", b"Tue, 14 Nov 2023 22:13:20 GMT")]
    monkeypatch.setattr(machine(), "wall_ns", lambda: 1_700_000_001_200_000_000)
    assert state.date_line() == b"date: Tue, 14 Nov 2023 22:13:21 GMT\r\n"
    assert held == [(b"date", b"Tue, 14 Nov 2023 22:13:21 GMT")]


def test_a_large_answer_has_the_present_second_as_its_date(client_api_with, serve, send_request):
    """An answer in parts takes its Date from the requests' common headers, which are renewed for it: the second before
    would be earlier than its Last-Modified."""
    client_api = client_api_with(object_bytes=200_000)
    client_api.put("/buckets/b/keys/large", b"v" * 100_000)
    server = serve(client_api.app)
    server.listener._state.set_date(1_000_000_000)
    began_s = int(time.time())
    with socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE_S) as link:
        link.sendall(b"GET /buckets/b/keys/large?timeout=0 HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n")
        head = b"".join(iter(lambda: link.recv(65_536), b"")).partition(b"\r\n\r\n")[0].decode()
    (date,) = re.findall(r"(?im)^date: (.*?)\r?$", head)
    assert parsedate_to_datetime(date).timestamp() >= began_s
