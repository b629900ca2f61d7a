"""Requests that offer another protocol (RFC 9110, 7.8): the offer is ignored, the request is answered in HTTP/1.1.

The JDK's HttpClient and `curl --http2` offer h2c with each request over http://, browsers offer WebSocket.
"""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.support.memory_client_api import read_all

OFFER = b"connection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\nhttp2-settings: AAMAAABkAAQ\r\n"
PING = b"GET /ping HTTP/1.1\r\nhost: x\r\n\r\n"
CLOSE = b"GET /ping HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
SMUGGLED = b"PUT /buckets/b/keys/smuggled HTTP/1.1\r\nhost: x\r\ncontent-type: a/b\r\ncontent-length: 1\r\n\r\ny"


def put(key: bytes, framing: bytes, body: bytes, path: bytes = b"/buckets/b/keys/") -> bytes:
    """A PUT that offers h2c, with these framing headers."""
    return b"PUT %b%b HTTP/1.1\r\nhost: x\r\ncontent-type: a/b\r\n%b%b\r\n%b" % (path, key, OFFER, framing, body)


def sized(key: bytes, body: bytes, path: bytes = b"/buckets/b/keys/") -> bytes:
    """A PUT that offers h2c, with a length."""
    return put(key, b"content-length: %d\r\n" % len(body), body, path)


def chunked(key: bytes, *chunks: bytes) -> bytes:
    """A PUT that offers h2c, in chunks."""
    body = b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks)
    return put(key, b"transfer-encoding: chunked\r\n", body + b"0\r\n\r\n")


def statuses(raw: bytes) -> list[int]:
    """The statuses of the answers in `raw`."""
    return [int(found) for found in re.findall(rb"HTTP/1\.1 (\d{3}) ", raw)]


def value_of(client_api: Any, key: bytes) -> bytes | None:
    """What the store holds."""
    found = client_api.kv.object(b"b", key)
    return None if found is None else found.siblings[0].value


FORMS = {
    "a length": (sized(b"k", b"12345"), b"12345"),
    "an empty body": (sized(b"k", b""), b""),
    "one chunk": (chunked(b"k", b"12345"), b"12345"),
    "chunks": (chunked(b"k", b"12", b"345"), b"12345"),
    "a path with an escape": (sized(b"%6b", b"12345"), b"12345"),
    "a body that looks like a request": (sized(b"k", SMUGGLED), SMUGGLED),
    "a chunk that looks like a request": (chunked(b"k", SMUGGLED), SMUGGLED),
}


@pytest.mark.parametrize(("raw", "body"), FORMS.values(), ids=FORMS.keys())
def test_a_request_that_offers_another_protocol_is_carried_out_with_its_body(client_api, server, raw, body) -> None:
    """The whole body is stored, whatever its framing, and the connection goes on with the next request."""
    assert statuses(server.exchange(raw + PING + CLOSE)) == [204, 200, 200]
    assert value_of(client_api, b"k") == body
    assert value_of(client_api, b"smuggled") is None


@pytest.mark.parametrize("raw", [sized(b"k", b"12345"), chunked(b"k", b"12", b"345")], ids=["length", "chunks"])
def test_an_offer_is_declined_however_the_bytes_arrive(client_api, server, raw) -> None:
    """Cut at any byte, and sent byte by byte, the request is the same."""
    for cut in (*range(1, len(raw), 7), len(raw) - 1):
        with server.connect() as sock:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.sendall(raw[:cut])
            sock.sendall(raw[cut:] + CLOSE)
            assert statuses(read_all(sock)) == [204, 200]
    assert value_of(client_api, b"k") == b"12345"
    with server.connect() as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for at in range(len(raw)):
            sock.sendall(raw[at : at + 1])
        sock.sendall(CLOSE)
        assert statuses(read_all(sock)) == [204, 200]


class WithoutFastPath:
    """An application whose listener has no fast path, as that of the admin API."""

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self._app(scope, receive, send)

    def stop(self) -> None:
        self._app.stop()


@pytest.mark.parametrize(("raw", "body"), FORMS.values(), ids=FORMS.keys())
def test_the_admin_listeners_connections_decline_offers(client_api, serve, raw, body) -> None:
    """A connection without the fast path carries the request out with its body, and goes on."""
    server = serve(WithoutFastPath(client_api.app))
    assert statuses(server.exchange(raw + PING + CLOSE)) == [204, 200, 200]
    assert value_of(client_api, b"k") == body


def test_every_request_of_a_connection_may_offer_another_protocol(client_api, server) -> None:
    """Requests sent ahead, each with the offer, with and without bodies, are answered in order; plain ones, too."""
    get = b"GET /buckets/b/keys/k HTTP/1.1\r\nhost: x\r\n" + OFFER + b"\r\n"
    raw = server.exchange(sized(b"k", b"one") + get + chunked(b"k2", b"two") + PING + get + CLOSE)
    assert statuses(raw) == [204, 200, 204, 200, 200, 200]
    assert raw.count(b"\r\n\r\none") == 2
    assert value_of(client_api, b"k2") == b"two"


def test_a_client_that_waits_for_100_continue_gets_it(client_api, server) -> None:
    """With `Expect: 100-continue` the body is asked for and stored, as without the offer."""
    head = put(b"k", b"content-length: 5\r\nexpect: 100-continue\r\n", b"")
    with server.connect() as sock:
        sock.sendall(head)
        assert sock.recv(4096).startswith(b"HTTP/1.1 100 ")
        sock.sendall(b"12345" + CLOSE)
        assert statuses(read_all(sock)) == [204, 200]
    assert value_of(client_api, b"k") == b"12345"


def test_a_batch_with_an_offer_is_carried_out(client_api, server) -> None:
    """Batches of JSON are read with their body."""
    batch = json.dumps({"operations": [{"op": "put", "bucket": "b", "key": "k", "value": "v"}]}).encode()
    head = b"POST /batch HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n%bcontent-length: %d\r\n\r\n"
    plain = server.exchange(head % (b"", len(batch)) + batch + CLOSE)
    offering = server.exchange(head % (OFFER, len(batch)) + batch + CLOSE)
    assert statuses(plain) == statuses(offering)
    assert b"upgrade" not in offering.lower()


def test_a_websocket_handshake_is_answered_as_the_request_that_it_is(client_api, server) -> None:
    """The offer is ignored: no 101, the answer of the path, and HTTP/1.1 goes on."""
    handshake = (
        b"GET /ping HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: websocket\r\n"
        b"sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\nsec-websocket-version: 13\r\n\r\n"
    )
    assert statuses(server.exchange(handshake + PING + CLOSE)) == [200, 200, 200]


def test_connect_is_refused_with_what_follows(client_api, server) -> None:
    """No tunnel is made: 501 and the end of the connection; nothing behind it is carried out."""
    for target in (b"example.com:443", b"x:80"):
        raw = server.exchange(b"CONNECT %b HTTP/1.1\r\nhost: %b\r\n\r\n" % (target, target) + SMUGGLED)
        assert statuses(raw) == [501]
        assert b"x-isthmus-reason: no-proxy" in raw
    assert client_api.kv.writes == 0


@pytest.mark.parametrize(
    "framing",
    [
        b"content-length: 1\r\ncontent-length: 1\r\n",
        b"content-length: 1\r\ncontent-length: 80\r\n",
        b"content-length: +1\r\n",
        b"content-length: 1\r\ntransfer-encoding: chunked\r\n",
        b"transfer-encoding: chunked\r\ncontent-length: 1\r\n",
        b"transfer-encoding: gzip, chunked\r\n",
        b"transfer-encoding: chunked, identity\r\n",
    ],
)
def test_an_ambiguous_length_with_an_offer_is_refused(client_api, server, framing) -> None:
    """What is refused without the offer is refused with it: one 400, nothing stored, nothing smuggled."""
    answer = server.exchange(put(b"k", framing, b"1\r\nx\r\n0\r\n\r\n") + SMUGGLED, half_close=True)
    assert statuses(answer) == [400]
    assert client_api.kv.writes == 0


def test_a_body_cut_short_behind_an_offer_is_not_stored(client_api, server) -> None:
    """A client that ends within the body gets 400, and nothing is stored."""
    for raw in (sized(b"k", b"12345")[:-1], chunked(b"k", b"12345")[:-3]):
        assert statuses(server.exchange(raw, half_close=True)) == [400]
    assert client_api.kv.writes == 0


def test_bytes_that_are_no_chunk_behind_an_offer_are_refused(client_api, server) -> None:
    """The new parser is as strict as the first one."""
    raw = put(b"k", b"transfer-encoding: chunked\r\n", b"zz\r\nx\r\n0\r\n\r\n") + SMUGGLED
    assert 204 not in statuses(server.exchange(raw, half_close=True))
    assert client_api.kv.writes == 0


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_curl_with_http2_writes_and_reads(client_api, server, tmp_path: Path) -> None:
    """`curl --http2` over http:// stores the value: short, and longer than what it sends with the head."""
    big = tmp_path / "big"
    big.write_bytes(b"x" * 300_000)
    for value, key in (("v", "small"), (f"@{big}", "big")):
        url = f"http://127.0.0.1:{server.port}/buckets/b/keys/{key}"
        command = ["curl", "-s", "-m", "20", "-w", "%{http_code}", "--http2", "-H", "content-type: a/b"]
        done = subprocess.run(
            [*command, "-X", "PUT", "--data-binary", value, url], capture_output=True, text=True, timeout=30
        )
        assert done.stdout == "204"
    assert value_of(client_api, b"small") == b"v"
    assert value_of(client_api, b"big") == big.read_bytes()


JAVA = """
import java.net.URI; import java.net.http.*;
public class Offer { public static void main(String[] a) throws Exception {
  var client = HttpClient.newHttpClient(); var key = URI.create(a[0] + "/buckets/b/keys/java");
  var put = HttpRequest.newBuilder(key).header("Content-Type", "text/plain");
  var stored = client.send(put.PUT(HttpRequest.BodyPublishers.ofString("v".repeat(100000))).build(),
    HttpResponse.BodyHandlers.ofString());
  var get = client.send(HttpRequest.newBuilder(key).build(), HttpResponse.BodyHandlers.ofString());
  System.out.println(stored.statusCode() + " " + get.statusCode() + " " + get.body().length());
  System.exit(0); }}
"""


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("java") is None, reason="Java is not installed")
def test_the_jdks_http_client_writes_and_reads_with_its_defaults(client_api, server, tmp_path: Path) -> None:
    """HttpClient.newHttpClient() offers h2c over http://; a PUT of 100,000 bytes and a GET succeed."""
    source = tmp_path / "Offer.java"
    source.write_text(JAVA)
    url = f"http://127.0.0.1:{server.port}"
    done = subprocess.run(["java", str(source), url], capture_output=True, text=True, timeout=120)
    assert (done.stdout, done.returncode) == ("204 200 100000\n", 0), done.stderr
