"""Requests that two readers could read differently: refused, never half understood, and the node serves others."""

from __future__ import annotations

import pytest

HEAD = b"PUT /buckets/b/keys/k HTTP/1.1\r\nhost: x\r\ncontent-type: a/b\r\n"
CHUNKED = HEAD + b"transfer-encoding: chunked\r\n\r\n"
ONE = b"1\r\nx\r\n0\r\n\r\n"
NEXT = b"PUT /buckets/b/keys/smuggled HTTP/1.1\r\nhost: x\r\ncontent-type: a/b\r\ncontent-length: 1\r\n\r\ny"
PING = b"GET /ping HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"

AMBIGUOUS = {
    "two equal lengths": HEAD + b"content-length: 1\r\ncontent-length: 1\r\n\r\nx",
    "two lengths": HEAD + b"content-length: 1\r\ncontent-length: 80\r\n\r\nx",
    "a list of lengths": HEAD + b"content-length: 1, 1\r\n\r\nx",
    "a signed length": HEAD + b"content-length: +1\r\n\r\nx",
    "a hexadecimal length": HEAD + b"content-length: 0x1\r\n\r\nx",
    "two numbers": HEAD + b"content-length: 1 1\r\n\r\nx",
    "length, then chunked": HEAD + b"content-length: 1\r\ntransfer-encoding: chunked\r\n\r\n" + ONE,
    "chunked, then length": HEAD + b"transfer-encoding: chunked\r\ncontent-length: 1\r\n\r\n" + ONE,
    "chunked twice": HEAD + b"transfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n\r\n" + ONE,
    "not the last coding": HEAD + b"transfer-encoding: chunked, identity\r\n\r\n" + ONE,
    "another coding before": HEAD + b"transfer-encoding: gzip, chunked\r\n\r\n" + ONE,
    "an unknown coding": HEAD + b"transfer-encoding: xchunked\r\n\r\n" + ONE,
    "chunked in 1.0": CHUNKED.replace(b"1.1", b"1.0", 1) + ONE,
    "a folded header": HEAD + b"x-a: b\r\n c\r\ncontent-length: 1\r\n\r\nx",
    "a folded coding": HEAD + b"transfer-encoding:\r\n chunked\r\n\r\n" + ONE,
    "a space before the colon": HEAD + b"content-length : 1\r\n\r\nx",
    "bare line feeds": b"GET /ping HTTP/1.1\nhost: x\n\n",
    "one bare line feed": HEAD + b"x-a: b\ncontent-length: 1\r\n\r\nx",
    "a bare carriage return": HEAD + b"x-a: b\rcontent-length: 1\r\n\r\nx",
    "a header without a name": HEAD + b": b\r\ncontent-length: 1\r\n\r\nx",
    "an endless chunk": CHUNKED + b"fffffffffffffffff\r\nx\r\n0\r\n\r\n",
    "a negative chunk": CHUNKED + b"-1\r\nx\r\n0\r\n\r\n",
    "chunks with bare line feeds": CHUNKED + b"1\nx\n0\n\n",
    "a space behind a chunk's length": CHUNKED + b"1 \r\nx\r\n0\r\n\r\n",
    "a chunk longer than it says": CHUNKED + b"1\r\nxy\r\n0\r\n\r\n",
}


@pytest.mark.parametrize("raw", AMBIGUOUS.values(), ids=AMBIGUOUS.keys())
def test_an_ambiguous_request_is_refused_with_all_that_follows_it(client_api, server, raw):
    """The answer is one 400 and the end of the connection: neither the request nor one hidden behind it is carried
    out."""
    answer = server.exchange(raw + NEXT, half_close=True)
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b"x-isthmus-reason: bad-http" in answer
    assert answer.count(b"HTTP/1.1 ") == 1
    assert client_api.kv.writes == 0
    assert server.exchange(PING).startswith(b"HTTP/1.1 200 ")


def test_a_body_is_never_read_as_the_next_request(client_api, server):
    """Text in a body that looks like a request is never executed, also when the handler does not read the body."""
    for first in (b"GET /ping", b"POST /mapred", b"DELETE /nowhere", b"GET /buckets/b/keys/k"):
        raw = first + b" HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(NEXT) + NEXT + PING
        server.exchange(raw, half_close=True)
    assert client_api.kv.writes == 0
    assert server.exchange(PING).startswith(b"HTTP/1.1 200 ")
