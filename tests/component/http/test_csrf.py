"""A web page of another origin cannot change anything through the browser of a user who can reach a listener."""

from __future__ import annotations

import pytest

from isthmus.node.http.application import HttpApplication, Request, text_reply
from isthmus.node.http.durations import RequestDurations
from isthmus.node.http.responses import Reply
from tests.support.open_access import EVERYBODY

PUT = b"PUT /buckets/b/keys/k HTTP/1.1\r\nhost: 127.0.0.1:8098\r\n%b\r\ncontent-type: a/b\r\ncontent-length: 1\r\n\r\nv"
CLOSE = b"GET /ping HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"

ELSEWHERE = [
    b"origin: https://elsewhere.example",
    b"origin: http://127.0.0.1:8099",
    b"origin: http://localhost:8098",
    b"origin: null",
    b"Origin: http://127.0.0.1:8098.elsewhere.example",
    b"sec-fetch-site: cross-site",
    b"sec-fetch-site: same-site",
    b"origin: http://127.0.0.1:8098\r\norigin: https://elsewhere.example",
    b"origin: http://127.0.0.1:8098\r\nsec-fetch-site: cross-site",
]


@pytest.mark.parametrize("header", ELSEWHERE)
@pytest.mark.parametrize("cut", [0, 20])
def test_requests_of_a_foreign_web_page_change_nothing(client_api, server, header, cut):
    """A write that a page of another place makes a browser send is 403, whether it comes in one piece or in two."""
    raw = PUT % header
    with server.connect() as sock:
        sock.sendall(raw[:cut])
        sock.sendall(raw[cut:])
        answer = sock.recv(65536)
    assert answer.startswith(b"HTTP/1.1 403 ")
    assert b"x-isthmus-reason: other-origin\r\n" in answer.lower()
    assert client_api.kv.object(b"b", b"k") is None


@pytest.mark.parametrize(
    "header",
    [b"origin: http://127.0.0.1:8098", b"origin: HTTP://127.0.0.1:8098", b"sec-fetch-site: same-origin", b"x: y"],
)
def test_a_page_of_the_listener_itself_and_programs_go_on(client_api, server, header):
    """A request that names the listener's own host, or no origin at all, is served."""
    raw = server.exchange(PUT % header + CLOSE)
    assert raw.startswith(b"HTTP/1.1 204 ")
    assert client_api.kv.object(b"b", b"k") is not None


def test_a_page_elsewhere_may_ask(server):
    """Requests that only read are answered: without permission the browser keeps the answer from the page."""
    raw = server.exchange(b"GET /buckets/b/keys/k HTTP/1.1\r\nhost: x\r\norigin: https://e.example\r\n\r\n" + CLOSE)
    assert raw.startswith(b"HTTP/1.1 404 ")


def test_the_listener_of_operators_refuses_too(serve):
    """Every HTTP application refuses such a request before a handler sees it; a form of a page needs no permission to
    POST."""
    app, acted = HttpApplication(EVERYBODY, RequestDurations()), []

    async def act(request: Request) -> Reply:
        acted.append(await request.body())
        return text_reply("done")

    app.router.add("POST", "/admin/act", act)
    raw = serve(app).exchange(
        b"POST /admin/act HTTP/1.1\r\nhost: 127.0.0.1:8099\r\norigin: null\r\ncontent-type: text/plain\r\n"
        b"content-length: 2\r\n\r\n{}" + CLOSE
    )
    assert raw.startswith(b"HTTP/1.1 403 ")
    assert not acted
