"""The fast path reads a request as the parser does; ambiguous requests are left to the parser."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import httptools
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from isthmus.node.http.fast_connection import (
    BLOCKS_KEPT,
    LINES_KEPT,
    HeaderBlock,
    RawRequest,
    _blocks,
    _lines,
    read_whole,
)
from tests.support.samples import share

EXAMPLES = settings(max_examples=share(1500), deadline=None, derandomize=True)
LIMIT = 65_536

PUT = b"PUT /buckets/b/keys/k HTTP/1.1\r\nHost: x\r\nContent-Type: a/b\r\nContent-Length: 2\r\n\r\nvv"
GET = b"GET /buckets/b/keys/k?r=1 HTTP/1.1\r\nHost: x\r\nAccept: */*\r\nConnection: keep-alive\r\n\r\n"


class Parsed:
    """All callbacks of the parser for some bytes."""

    def __init__(self, raw: bytes) -> None:
        self.url = self.body = b""
        self.headers: list[tuple[bytes, bytes]] = []
        self.events: list[str] = []
        self.parser = httptools.HttpRequestParser(self)
        self.parser.feed_data(raw)

    def on_message_begin(self) -> None:
        self.events.append("begin")

    def on_url(self, url: bytes) -> None:
        self.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        self.events.append("head")
        self.upgrade = self.parser.should_upgrade()

    def on_body(self, body: bytes) -> None:
        self.body += body

    def on_message_complete(self) -> None:
        self.events.append("end")
        self.keep_alive = self.parser.should_keep_alive()


def compare(raw: bytes) -> RawRequest | None:
    """Reads the request on the fast path, and checks that an accepted one equals the parser's result."""
    whole = read_whole(raw, LIMIT)
    assert read_whole(raw, LIMIT) == whole  # now perhaps from the cache
    if whole is None:
        return None
    parsed = Parsed(raw)
    assert parsed.events == ["begin", "head", "end"]
    assert parsed.parser.get_http_version() == "1.1"
    assert parsed.keep_alive
    assert not parsed.upgrade
    url = httptools.parse_url(parsed.url)
    assert whole == RawRequest(
        parsed.parser.get_method().decode(), url.path, url.query or b"", HeaderBlock(parsed.headers), parsed.body
    )
    assert [name for name, _ in whole.headers].count(b"host") == 1
    return whole


def test_usual_requests_are_taken() -> None:
    """Requests as clients send them are read without the parser."""
    assert compare(PUT) == RawRequest(
        "PUT",
        b"/buckets/b/keys/k",
        b"",
        HeaderBlock([(b"host", b"x"), (b"content-type", b"a/b"), (b"content-length", b"2")]),
        b"vv",
    )
    got = compare(GET)
    assert got is not None
    assert (got.raw_path, got.query_string, got.body) == (b"/buckets/b/keys/k", b"r=1", b"")
    for raw in (
        PUT.replace(b"Host: x", b"host:x\r\nx-riak-meta-a: two words\r\nX-Riak-Vclock: a85hYGBgzGDKBVIcBwHE="),
        PUT.replace(b"keys/k", b"keys/" + quote("é/ ü").encode()),
        GET.replace(b"GET", b"HEAD"),
        GET.replace(b"GET", b"DELETE"),
        PUT.replace(b"2\r\n\r\nvv", b"0\r\n\r\n"),
    ):
        assert compare(raw) is not None, raw


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        PUT[:-1],
        PUT + b"x",
        PUT + GET,
        GET + b"\r\n",
        GET[:-2],
        b"\r\n" + GET,
        PUT.replace(b"1.1", b"1.0"),
        PUT.replace(b"PUT", b"put"),
        PUT.replace(b"PUT", b"OPTIONS"),
        PUT.replace(b" /", b"  /"),
        PUT.replace(b" /", b" http://x/"),
        PUT.replace(b"keys/k", b"keys/k#f"),
        PUT.replace(b"keys/k", b"keys/\xff"),
        PUT.replace(b"Host: x\r\n", b""),
        PUT.replace(b"Host: x", b"Host: x\r\nHost: x"),
        PUT.replace(b"Host: x", b"Host : x"),
        PUT.replace(b"Host: x", b"Host: x\r\n folded"),
        PUT.replace(b"Host: x", b"Host: x\nA: b"),
        PUT.replace(b"Host: x", b"Host: x\rA: b"),
        PUT.replace(b"Host: x", b"Host: x\r\nA: \x00"),
        PUT.replace(b"Host: x", b"Host: x\r\nA: b "),
        PUT.replace(b"Host: x", b"Host: x\r\n: b"),
        PUT.replace(b"Host: x", b"Host: x\r\nExpect: 100-continue"),
        PUT.replace(b"Host: x", b"Host: x\r\nConnection: close"),
        PUT.replace(b"Host: x", b"Host: x\r\nConnection: keep-alive, upgrade\r\nUpgrade: h2c"),
        PUT.replace(b"Host: x", b"Host: x\r\nProxy-Connection: close"),
        PUT.replace(b"Host: x", b"Host: x\r\nTransfer-Encoding: chunked"),
        PUT.replace(b"Content-Length: 2", b"Transfer-Encoding: chunked"),
        PUT.replace(b"Content-Length: 2", b"Content-Length: 2\r\nContent-Length: 2"),
        PUT.replace(b"Content-Length: 2", b"Content-Length: +2"),
        PUT.replace(b"Content-Length: 2", b"Content-Length: 2, 2"),
        PUT.replace(b"Content-Length: 2\r\n\r\nvv", b"\r\n"),
        GET.replace(b"\r\n\r\n", b"\r\nContent-Length: 2\r\n\r\nvv"),
        GET.replace(b"x", b"x\r\nA: " + b"b" * LIMIT),
    ],
)
def test_ambiguous_requests_are_left_to_the_parser(raw: bytes) -> None:
    """Framing, versions, odd bytes, parts of a request and more than one are not taken, right or wrong."""
    assert read_whole(raw, LIMIT) is None


def test_a_head_up_to_the_limit_is_taken() -> None:
    """The head, its empty line included, is within the limit to the byte."""
    head = len(PUT) - 2
    assert read_whole(PUT, head) is not None
    assert read_whole(PUT, head - 1) is None


def test_the_lines_that_are_kept_are_bounded_and_no_secret() -> None:
    """A client that sends ever new lines resets the cache; contexts, ids and tokens are not cached at all."""
    for number in range(2 * LINES_KEPT + 5):
        assert compare(PUT.replace(b"Host: x", b"Host: h%d" % number)) is not None
        assert len(_lines) <= LINES_KEPT
        assert len(_blocks) <= BLOCKS_KEPT
    secret = b"Authorization: Bearer t"
    assert compare(PUT.replace(b"Host: x", b"Host: x\r\n" + secret)) is not None
    assert secret not in _lines
    assert not any(secret in block for block in _blocks)
    assert compare(PUT.replace(b"Host: x", b"Host: " + b"x" * 200)) is not None
    assert max(map(len, _lines)) <= 128
    many = b"\r\n".join([b"Accept: x"] * 60)
    assert compare(PUT.replace(b"Host: x", b"Host: x\r\n" + many)) is not None
    assert max(map(len, _blocks)) <= 512


def test_repeated_header_lines_are_read_once() -> None:
    """Two requests with the same lines share what was read of them; each keeps its own line, path and body."""
    first, second = compare(PUT), compare(PUT.replace(b"keys/k", b"keys/l?w=1").replace(b"vv", b"ww"))
    assert first is not None
    assert second is not None
    assert first.headers is second.headers
    assert (second.raw_path, second.query_string, second.body) == (b"/buckets/b/keys/l", b"w=1", b"ww")
    context = PUT.replace(b"Host: x", b"Host: x\r\nX-Riak-Vclock: a85hYGBgzGDKBVIcBwHE=")
    one, two = compare(context), compare(context)
    assert one is not None
    assert two is not None
    assert one.headers is not two.headers


line: st.SearchStrategy[bytes] = st.sampled_from(
    [b"Host: x", b"host:y", b"Content-Length: 3", b"content-length:0", b"Content-Length: 03", b"Connection: keep-alive",
     b"Connection: Keep-Alive", b"Connection: close", b"Upgrade: h2c", b"Transfer-Encoding: chunked",
     b"Expect: 100-continue", b"Proxy-Connection: close", b"Keep-Alive: 5",
     b"TE: trailers", b"A: b", b"A:", b"A: ", b"A:  b", b"A: b\t",
     b" A: b", b"A: b: c", b"A\x00: b", b"A: \xe9", b"X-Riak-Meta-Z: ~!@", b"Trailer: A", b"Sec-WebSocket-Key: x"]
) | st.binary(max_size=12)  # fmt: skip
target = st.sampled_from(
    [b"/", b"//", b"/a/b", b"/buckets/b/keys/k", b"/a?b=c", b"/a??", b"/a?", b"/a?b?c=/d", b"/a;b", b"/a:80/@c", b"*",
     b"http://x/y", b"/a%2Fb+c", b"/a#b", b"/a b", b"//x:1/y", b"/a?x=http://y/", b"/[::1]"]
) | st.binary(max_size=8).map(lambda b: b"/" + b)  # fmt: skip


@st.composite
def requests(draw: Any) -> bytes:
    """Requests that are nearly right."""
    verb = draw(st.sampled_from([b"GET", b"PUT", b"POST", b"HEAD", b"DELETE", b"PATCH", b"CONNECT"]))
    version = draw(st.sampled_from([b"HTTP/1.1"] * 8 + [b"HTTP/1.0", b"HTTP/1.1 ", b"http/1.1"]))
    lines = draw(st.lists(line, max_size=4))
    if draw(st.booleans()):
        lines.insert(0, b"Host: z")
    body = draw(st.sampled_from([b"", b"", b"vvv", b"v", b"3\r\nvvv\r\n0\r\n\r\n"]))
    if draw(st.booleans()):
        lines.append(b"Content-Length: %d" % len(body))
    raw = bytearray(b"\r\n".join([b" ".join([verb, draw(target), version]), *lines, b"", body]))
    for _ in range(draw(st.integers(0, 2))):
        raw[draw(st.integers(0, len(raw) - 1))] = draw(st.integers(0, 255))
    return bytes(raw)


@EXAMPLES
@given(requests())
@example(PUT)
@example(GET)
def test_accepted_requests_are_read_as_by_the_parser(raw: bytes) -> None:
    """Nearly valid requests are changed byte by byte: one that the fast path accepts is also one whole request to the
    parser, which keeps the connection, with the same method, path, query, headers and body."""
    compare(raw)


@EXAMPLES
@given(st.sampled_from([PUT, GET]), st.integers(0, len(GET) - 1), st.integers(0, 255))
def test_a_usual_request_with_one_changed_byte_is_read_alike_or_left(raw: bytes, place: int, byte: int) -> None:
    """Each byte of a usual request may be any other."""
    changed = bytearray(raw)
    changed[place % len(raw)] = byte
    compare(bytes(changed))
