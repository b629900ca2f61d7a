"""The client API through two HTTP libraries that share no code, over real sockets: both must get the same."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
import requests

K = "/buckets/b/keys/k"


@pytest.fixture(params=["requests", "httpx"])
def call(request: pytest.FixtureRequest, server: Any) -> Iterator[Callable[..., Any]]:
    """call(method, path, **more): the answer of either library on one connection that is kept."""
    base = f"http://127.0.0.1:{server.port}"
    made: Any = requests.Session() if request.param == "requests" else httpx.Client()
    with made as session:
        yield lambda method, path, **more: session.request(method, base + path, **_of(request.param, more))


def _of(library: str, more: dict[str, Any]) -> dict[str, Any]:
    if library == "httpx" and "data" in more:
        more["content"] = more.pop("data")
    return more


def put(call: Callable[..., Any], path: str, value: bytes, **headers: str) -> Any:
    given = {"content-type": "text/plain"} | {name.replace("_", "-"): v for name, v in headers.items()}
    return call("PUT", path, data=value, headers=given)


def test_a_value_lives_from_put_to_delete(call: Callable[..., Any]) -> None:
    """Write, read, inspect, replace by clock, compare by tag and delete a value, and inspect the rest."""
    assert call("GET", K).status_code == 404
    first = put(call, K, b"one", x_riak_meta_colour="red", link='</buckets/b/keys/x>; riaktag="t"')
    assert (first.status_code, first.content) == (204, b"")
    read = call("GET", K)
    assert (read.status_code, read.content) == (200, b"one")
    assert read.headers["X-Riak-Meta-Colour"] == "red"
    assert read.headers["Link"] == '</buckets/b/keys/x>; riaktag="t"'
    head = call("HEAD", K)
    assert (head.status_code, head.content) == (200, b"")
    assert head.headers["ETag"] == read.headers["ETag"]
    assert head.headers["Content-Length"] == "3"
    assert call("GET", K, headers={"If-None-Match": read.headers["ETag"]}).status_code == 304
    assert put(call, K, b"two", if_none_match="*").status_code == 412
    assert put(call, K, b"two", if_match='"other"').status_code == 412
    second = put(call, K, b"two", x_riak_vclock=read.headers["X-Riak-Vclock"], if_match=read.headers["ETag"])
    assert second.status_code == 204
    assert call("GET", K).content == b"two"
    assert call("DELETE", K, headers={"If-Unmodified-Since": "Mon, 01 Jan 2001 00:00:00 GMT"}).status_code == 412
    assert call("DELETE", K).status_code == 204
    gone = call("GET", K)
    assert (gone.status_code, gone.headers["X-Riak-Deleted"]) == (404, "true")
    assert gone.headers["X-Riak-Vclock"]


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "br", "x-of-nobody"])
def test_a_coding_is_kept_and_the_bytes_are_the_writers(
    client_api: Any, call: Callable[..., Any], encoding: str
) -> None:
    """A value stored with a Content-Encoding is returned with it, unchanged."""
    headers = {"content-type": "text/plain; charset=latin-1", "content-encoding": encoding}
    assert call("PUT", K, data=b"not really compressed", headers=headers).status_code == 204
    head = call("HEAD", K)
    assert head.headers["content-encoding"] == encoding
    assert head.headers["content-type"] == "text/plain; charset=latin-1"
    assert client_api.kv.object(b"b", b"k").siblings[0].value == b"not really compressed"


def test_empty_values_and_large_ones_are_values(call: Callable[..., Any]) -> None:
    """Values of no byte, of one byte, and of megabytes are returned unchanged; an empty value is not a deletion."""
    for size in (0, 1, 3_000_000):
        clock = call("HEAD", K).headers.get("X-Riak-Vclock", "")
        more = {"x_riak_vclock": clock} if clock else {}
        assert put(call, K, b"\x00" * size, **more).status_code == 204
        read = call("GET", K)
        assert (read.status_code, read.content) == (200, b"\x00" * size)
        assert read.headers["Content-Length"] == str(size)


def test_siblings_are_300_in_both_forms(call: Callable[..., Any]) -> None:
    """A text of vtags, or all of them in one multipart body; each by its own vtag."""
    for value in (b"1", b"2"):
        put(call, K, value)
    plain = call("GET", K, headers={"accept": "*/*"})
    assert (plain.status_code, plain.headers["content-type"]) == (300, "text/plain")
    vtags = plain.text.split()[1:]
    assert sorted(call("GET", f"{K}?vtag={vtag}").content for vtag in vtags) == [b"1", b"2"]
    parts = call("GET", K, headers={"accept": "multipart/mixed"})
    boundary = parts.headers["content-type"].partition("boundary=")[2].encode()
    assert parts.content.count(b"\r\n--" + boundary) == 3


def test_a_key_is_made_and_listed(call: Callable[..., Any]) -> None:
    """POST answers with the value's location; keys and buckets are listed as one document and as a stream."""
    made = call("POST", "/buckets/made%20here/keys", data=b"v", headers={"content-type": "a/b"})
    assert made.status_code == 201
    assert call("GET", made.headers["Location"]).content == b"v"
    key = made.headers["Location"].rpartition("/")[2]
    assert call("GET", "/buckets/made%20here/keys?keys=true").json() == {"keys": [key]}
    assert json.loads(call("GET", "/buckets/made%20here/keys?keys=stream").text) == {"keys": [key]}
    assert call("GET", "/buckets?buckets=true").json() == {"buckets": ["made here"]}


def test_views_and_refusals_are_plain(call: Callable[..., Any]) -> None:
    """The views that clients request first, and the form of a refusal."""
    assert call("GET", "/ping").text == "OK"
    assert call("GET", "/", headers={"accept": "application/json"}).json()["riak_kv_wm_ping"] == "/ping"
    assert call("GET", "/stats").json()["riak_kv_version"]
    refused = call("PUT", K + "?w=most", data=b"v", headers={"content-type": "a/b"})
    assert (refused.status_code, refused.headers["X-Isthmus-Reason"]) == (400, "bad-query")
    assert call("POST", "/mapred", data=b"{}").status_code == 501


def test_a_listing_that_its_client_abandons_ends(client_api: Any, server: Any) -> None:
    """A client that closes in the middle of a stream frees the listing's resources."""
    for number in range(20):
        client_api.put(f"/buckets/b/keys/{number}", b"v")
    client_api.kv.listing_batch = 1
    more = threading.Event()

    async def endless(*_: object) -> Any:
        client_api.kv.listings_open += 1
        try:
            while True:
                yield [b"k" * 1000] * 100
                more.set()
                await asyncio.sleep(0)
        finally:
            client_api.kv.listings_open -= 1

    client_api.kv.list_keys = endless
    with httpx.stream("GET", f"http://127.0.0.1:{server.port}/buckets/b/keys?keys=stream") as answer:
        assert answer.status_code == 200
        assert next(answer.iter_bytes()).startswith(b'{"keys":[')
        assert more.wait(10)
    server.wait(lambda: client_api.kv.listings_open == 0)
    server.wait(lambda: client_api.app._listings.running == 0)
