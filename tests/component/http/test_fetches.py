"""Fetches of other clusters' sinks: bodies pass through, long polls end when either end closes."""

from __future__ import annotations

import asyncio
import socket
import struct

import msgpack

from isthmus.queues.source_queue import Session
from isthmus.queues.wire import MEDIA_TYPE, REQUEST_BYTES_MAX, FetchReply, FetchRequest, decode_reply, encode_request
from isthmus.repl.http.async_client import AsyncHttpPeer

REQUEST = FetchRequest(Session(b"\x03" * 16, "w1", b"i" * 8, 0), "west", wait_ms=5_000)
BODY = encode_request(REQUEST)


def test_a_fetch_reaches_the_queue_and_its_answer_the_sink(client_api):
    """The decoded request is handed on, and the encoded answer comes back as msgpack."""
    answer = client_api.call("POST", "/queues/q/fetch", BODY)
    assert (answer.status, answer.headers["content-type"]) == (200, "application/msgpack")
    assert decode_reply(answer.body).cluster_name == "east"
    assert client_api.queue.asked == [REQUEST]


def test_unknown_queues_and_bad_bodies_are_refused(client_api):
    """404 for an unknown queue, 400 for bytes that are not a request, 413 for too many."""
    unknown = client_api.call("POST", "/queues/other/fetch", BODY)
    assert (unknown.status, unknown.reason) == (404, "unknown-queue")
    for body in (b"", b"\xc1", msgpack.packb({"v": 99}), msgpack.packb([])):
        assert client_api.call("POST", "/queues/q/fetch", body).status == 400
    assert client_api.call("POST", "/queues/q/fetch", b"x" * (REQUEST_BYTES_MAX + 1)).status == 413
    assert client_api.call("POST", "/queues/%ff/fetch", BODY).reason == "bad-path"


def test_a_long_poll_ends_when_its_sink_goes(client_api, server):
    """A sink that closes its connection, or only its sending side, frees the poll, without a lease."""
    head = b"POST /queues/q/fetch HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(BODY)
    client_api.queue.give = asyncio.Event()
    for half_close in (False, True):
        ended = client_api.queue.cancelled
        with server.connect() as sock:
            sock.sendall(head + BODY)
            server.wait(lambda: client_api.app._queues.running == 1)
            if half_close:
                sock.shutdown(1)
                assert sock.recv(1000).startswith(b"HTTP/1.1 400 ")
        server.wait(lambda ended=ended: client_api.queue.cancelled > ended)
    with server.connect() as sock:
        sock.sendall(head + BODY + b"GET /ping HTTP/1.1\r\nhost: x\r\n\r\n")
        server.wait(lambda: client_api.app._queues.running == 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # close() sends a reset
    server.wait(lambda: client_api.app._queues.running == 0)


async def test_a_stop_ends_all_long_polls(client_api, send_request, eventually):
    """When the node stops, waiting polls get 503 at once, and so does every later one."""

    client_api.queue.give = asyncio.Event()
    polls = [asyncio.ensure_future(send_request(client_api.app, "POST", "/queues/q/fetch", BODY)) for _ in range(3)]
    await eventually(lambda: len(client_api.queue.asked) == 3)
    client_api.app.stop()
    answers = await asyncio.gather(*polls, send_request(client_api.app, "POST", "/queues/q/fetch", BODY))
    assert {(a.status, a.reason) for a in answers} == {(503, "not-ready")}
    assert client_api.queue.cancelled == 3


async def test_fetches_are_bounded(client_api, send_request, eventually, monkeypatch):
    """One fetch more than the limit is refused at once instead of waiting."""
    monkeypatch.setattr("isthmus.node.client_api.queue_fetch.FETCHES_MAX", 2)

    client_api.queue.give = asyncio.Event()
    polls = [asyncio.ensure_future(send_request(client_api.app, "POST", "/queues/q/fetch", BODY)) for _ in range(2)]
    await eventually(lambda: len(client_api.queue.asked) == 2)
    refused = await send_request(client_api.app, "POST", "/queues/q/fetch", BODY)
    assert (refused.status, refused.reason) == (503, "overloaded")
    client_api.queue.give.set()
    assert [a.status for a in await asyncio.gather(*polls)] == [200, 200]


def test_answers_are_compressed_on_request(client_api):
    """Large and small batches are compressed with zstd on request, and plain otherwise."""

    def answer(size, asked):
        item = (1, 2, 3, b"default", b"b", b"k", b"o" * 16, 7, b"v" * size)
        reply = FetchReply(b"\x02" * 16, "east", 3, b"id", 30_000, 7, "serving", (item,))

        async def fetch(_queue, _request, _until):
            return reply

        client_api.queue.fetch = fetch
        body = client_api.call("POST", "/queues/q/fetch", encode_request(asked)).body
        assert decode_reply(body) == reply
        return body

    for size in (2_000, 200_000):
        assert len(answer(size, REQUEST)) > size
        assert len(answer(size, REQUEST._replace(compress="zstd"))) < size // 5


async def test_a_usual_fetch_takes_the_fast_path_and_an_unusual_one_asgi(client_api, server, monkeypatch):
    """Fetches as sinks send them are answered completely on the fast path, whatever the answer's size; a fetch with a
    long body is answered by ASGI, and both are counted alike, once they are answered."""
    taken, prompt = [], client_api.app.fast_answer

    def noting(request):
        work = prompt(request)
        taken.append(work is not None)
        return work

    monkeypatch.setattr(client_api.app, "fast_answer", noting)
    item = (1, 2, 3, b"default", b"b", b"k", b"o" * 16, 7, b"v" * 200_000)
    small = FetchReply(b"\x02" * 16, "east", 3, b"", 30_000, 7, "serving", ())
    replies = [small, small._replace(batch=b"id", items=(item,))]

    async def fetch(_queue, request, _until):
        return replies[request.max_count]

    client_api.queue.fetch = fetch

    async def ask(path, request):
        peer = AsyncHttpPeer(f"http://127.0.0.1:{server.port}")
        try:
            return await peer.post(path, request, media_type=MEDIA_TYPE, timeout_ms=30_000, limit_bytes=1_000_000)
        finally:
            peer.abort()

    for count in (0, 1):
        body = await ask("/queues/q/fetch", encode_request(REQUEST._replace(max_count=count)))
        assert decode_reply(body) == replies[count]
    assert taken == [True, True]
    types = {b"%d" % n: b"d" * 8 for n in range(500)}
    long = encode_request(REQUEST._replace(max_count=0, properties=types))
    assert decode_reply(await ask("/queues/q/fetch", long)) == small
    assert taken == [True, True, False]
    server.wait(lambda: client_api.app.counts["/queues/{queue}/fetch", "POST", 200] >= 3)
    assert client_api.app.counts["/queues/{queue}/fetch", "POST", 200] == 3
