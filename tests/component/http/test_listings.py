"""Listings: as one document or streamed, exact for every key, bounded, and never a part that looks complete."""

from __future__ import annotations

import asyncio
import json
import urllib.parse
from unittest.mock import ANY

import pytest

from isthmus.repl.model.errors import NotReady


def objects_in(text):
    """The JSON values that follow one another in a text."""
    decoder, at, found = json.JSONDecoder(), 0, []
    while at < len(text):
        value, at = decoder.raw_decode(text, at)
        found.append(value)
    return found


@pytest.mark.parametrize("prefix", ["", "/types/default"])
def test_keys_are_listed_whole_or_streamed_without_the_deleted(client_api, prefix):
    """keys=true is one object, keys=stream one for each batch; both name every live key once."""
    for n in range(5):
        client_api.put(f"/buckets/b/keys/{n}", b"v")
    client_api.put("/buckets/other/keys/x", b"v")
    client_api.call("DELETE", "/buckets/b/keys/3")
    whole = client_api.call("GET", prefix + "/buckets/b/keys?keys=true")
    assert whole.headers["content-type"] == "application/json"
    assert json.loads(whole.body) == {"keys": ["0", "1", "2", "4"]}
    streamed = client_api.call("GET", prefix + "/buckets/b/keys?keys=stream")
    assert objects_in(streamed.body.decode()) == [{"keys": ["0", "1"]}, {"keys": ["2", "4"]}]
    buckets = client_api.call("GET", prefix + "/buckets?buckets=true")
    assert json.loads(buckets.body) == {"buckets": ["b", "other"]}
    assert objects_in(client_api.call("GET", prefix + "/buckets?buckets=stream").body.decode()) == [
        {"buckets": ["b", "other"]}
    ]


def test_an_empty_listing_is_an_empty_list(client_api):
    """A bucket without keys is an empty list in both forms, not an error."""
    assert json.loads(client_api.call("GET", "/buckets/b/keys?keys=true").body) == {"keys": []}
    assert json.loads(client_api.call("GET", "/buckets/b/keys?keys=stream").body) == {"keys": []}
    assert json.loads(client_api.call("GET", "/buckets?buckets=true").body) == {"buckets": []}


def test_keys_that_are_not_text_are_listed_percent_encoded(client_api):
    """Bytes that are not UTF-8 appear percent-encoded; with encoding=percent every key can be decoded exactly."""
    keys = [b"a", b"\xff%", b"%41", "ä/\n".encode()]
    for key in keys:
        client_api.put("/buckets/b/keys/" + urllib.parse.quote(key, safe=""), b"v")
    plain = json.loads(client_api.call("GET", "/buckets/b/keys?keys=true").body)["keys"]
    assert sorted(plain) == sorted(["a", "%FF%25", "%41", "ä/\n"])
    exact = json.loads(client_api.call("GET", "/buckets/b/keys?keys=true&encoding=percent").body)["keys"]
    assert sorted(urllib.parse.unquote_to_bytes(k) for k in exact) == sorted(keys)


@pytest.mark.parametrize(
    "target",
    [
        "/buckets/b/keys",
        "/buckets/b/keys?keys=false",
        "/buckets",
        "/buckets//keys?keys=true",
        "/buckets/b/keys?keys=true&encoding=x",
    ],
)
def test_a_listing_must_be_asked_for(client_api, target):
    """Without keys=true or keys=stream nothing is read: 400 explains the parameter."""
    assert client_api.call("GET", target).status == 400


def test_a_refusal_before_the_first_key_is_a_status(client_api):
    """A listing that cannot begin is refused like any other request, and gives its place back."""
    client_api.kv.fail = NotReady("starting")
    for _ in range(20):
        answer = client_api.call("GET", "/buckets/b/keys?keys=stream")
        assert (answer.status, answer.reason) == (503, "not-ready")
    assert client_api.call("GET", "/types/x/buckets?buckets=true").status == 503


def test_head_of_a_listing_reads_no_more_than_its_beginning(client_api):
    """HEAD shows headers, closes the listing, and gives its place back."""
    for n in range(9):
        client_api.put(f"/buckets/b/keys/{n}", b"v")
    for _ in range(20):
        assert client_api.call("HEAD", "/buckets/b/keys?keys=true").body == b""
    assert client_api.kv.listings_open == 0


async def test_listings_are_bounded_and_closed_when_the_client_goes(client_api, send_request, eventually):
    """At most eight listings run at once; one that its client abandons is closed and frees its place."""
    for n in range(40):
        await send_request(client_api.app, "PUT", f"/buckets/b/keys/{n}", b"v", {"content-type": "text/plain"})

    blocked = asyncio.Event()
    gone = asyncio.Event()

    async def receive():
        await gone.wait()
        return {"type": "http.disconnect"}

    sent = []

    async def send(message):
        sent.append(message)
        if message["type"] == "http.response.body":
            await blocked.wait()

    scope = {
        "type": "http",
        "method": "GET",
        "raw_path": b"/buckets/b/keys",
        "query_string": b"keys=stream",
        "headers": [],
    }
    running = [asyncio.ensure_future(client_api.app(scope, receive, send)) for _ in range(8)]
    await eventually(lambda: client_api.kv.listings_open == 8 and len(sent) == 2 * 8)
    refused = await send_request(client_api.app, "GET", "/buckets/b/keys?keys=true")
    assert (refused.status, refused.reason) == (503, "overloaded")
    gone.set()
    for _ in range(100):  # turns of the loop: more than it takes to notice it
        await asyncio.sleep(0)
    blocked.set()
    await asyncio.gather(*running)
    assert client_api.kv.listings_open == 0
    assert len(sent) == 2 * 8, "nothing more was sent to clients that had gone"
    assert (await send_request(client_api.app, "GET", "/buckets/b/keys?keys=true")).status == 200
    await asyncio.sleep(0)
    assert asyncio.all_tasks() == {asyncio.current_task()}


def fail_half_way(client_api):
    """Write nine keys, and let the listing of them fail after the second part."""
    for n in range(9):
        client_api.put(f"/buckets/b/keys/{n}", b"v")
    client_api.kv.listing_fails_after = 2
    client_api.kv.fail = NotReady("lost")


def test_a_listing_that_fails_half_way_has_no_end(client_api, server):
    """An error in the middle cuts the connection before the last chunk, so that a part is never taken for a complete
    listing."""
    fail_half_way(client_api)
    raw = server.exchange(b"GET /buckets/b/keys?keys=true HTTP/1.1\r\nhost: x\r\n\r\n")
    assert raw.startswith(b"HTTP/1.1 200 ")
    assert b'"0","1"' in raw
    assert not raw.endswith(b"0\r\n\r\n")
    assert client_api.kv.listings_open == 0


@pytest.mark.parametrize(
    ("target", "wanted"),
    [
        (b"/buckets/b/keys?keys=true", [{"keys": [str(n) for n in range(9)]}]),
        (b"/buckets/b/keys?keys=stream", [{"keys": list(some)} for some in ("01", "23", "45", "67", "8")]),
        (b"/buckets?buckets=true", [{"buckets": ["b"]}]),
    ],
)
def test_a_client_of_http_1_0_gets_a_listing_without_chunks(client_api, server, target, wanted):
    """RFC 9112, 6.1: no Transfer-Encoding in an answer to HTTP/1.0. The connection's end is the answer's end."""
    for n in range(9):
        client_api.put(f"/buckets/b/keys/{n}", b"v")
    raw = server.exchange(b"GET " + target + b" HTTP/1.0\r\nconnection: keep-alive\r\n\r\n")
    head, _, body = raw.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 ")
    assert b"transfer-encoding" not in head
    assert b"content-length" not in head
    assert b"connection: close" in head
    assert objects_in(body.decode()) == wanted
    head_alone = server.exchange(b"HEAD " + target + b" HTTP/1.0\r\n\r\n")
    assert b"transfer-encoding" not in head_alone
    assert head_alone.endswith(b"\r\n\r\n")


def test_a_listing_that_fails_half_way_is_cut_short_for_http_1_0(client_api, server):
    """Such a client gets what there is, and its connection ends: the document is not complete, no header says so."""
    fail_half_way(client_api)
    raw = server.exchange(b"GET /buckets/b/keys?keys=true HTTP/1.0\r\n\r\n")
    assert raw.endswith(b'\r\n\r\n{"keys":["0","1","2","3"')
    assert client_api.kv.listings_open == 0


def test_a_stream_that_fails_half_way_ends_with_an_error_object(client_api, server):
    """An error in the middle of a stream is an object of its own, as Riak's clients expect it."""
    fail_half_way(client_api)
    raw = server.exchange(b"GET /buckets/b/keys?keys=stream HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
    assert b'{"error": "lost", "reason": "not-ready"}' in raw
    assert raw.endswith(b"0\r\n\r\n")
    assert client_api.kv.listings_open == 0


def pages_of(client_api, target):
    """The documents of all pages of a listing."""
    found = [json.loads(client_api.call("GET", target).body)]
    while "continuation" in found[-1]:
        answer = client_api.call("GET", f"{target}&continuation={found[-1]['continuation']}")
        assert answer.status == 200, answer.body
        found.append(json.loads(answer.body))
    return found


def test_keys_come_in_order_by_prefix_and_in_pages(client_api):
    """A page has as many names as the limit, and a continuation as long as there are more; exactly one page each."""
    for n in range(7):
        client_api.put(f"/buckets/b/keys/eu-{n}", b"v")
    client_api.put("/buckets/b/keys/us-1", b"v")
    path = "/buckets/b/keys?keys=true"
    assert pages_of(client_api, path + "&prefix=eu-&limit=3") == [
        {"keys": ["eu-0", "eu-1", "eu-2"], "continuation": ANY},
        {"keys": ["eu-3", "eu-4", "eu-5"], "continuation": ANY},
        {"keys": ["eu-6"]},
    ]
    assert pages_of(client_api, path + "&limit=4") == [
        {"keys": ["eu-0", "eu-1", "eu-2", "eu-3"], "continuation": ANY},
        {"keys": ["eu-4", "eu-5", "eu-6", "us-1"]},
    ]
    assert pages_of(client_api, path + "&prefix=us") == [{"keys": ["us-1"]}]
    assert pages_of(client_api, path + "&prefix=x&limit=1") == [{"keys": []}]
    token = pages_of(client_api, path + "&limit=6")[0]["continuation"]
    rest = client_api.call("GET", f"/types/default/buckets/b/keys?keys=true&continuation={token}")
    assert json.loads(rest.body) == {"keys": ["eu-6", "us-1"]}, "without a limit all that is left"
    assert client_api.kv.listings_open == 0


def test_pages_are_streamed_with_the_token_last(client_api):
    """keys=stream sends names as they are read; the object with the token has none."""
    for n in range(5):
        client_api.put(f"/buckets/b/keys/{n}", b"v")
    streamed = objects_in(client_api.call("GET", "/buckets/b/keys?keys=stream&limit=3").body.decode())
    assert streamed == [{"keys": ["0", "1"]}, {"keys": ["2"]}, {"keys": [], "continuation": ANY}]
    token = streamed[-1]["continuation"]
    rest = objects_in(client_api.call("GET", f"/buckets/b/keys?keys=stream&continuation={token}").body.decode())
    assert rest == [{"keys": ["3", "4"]}]


def test_buckets_come_in_pages_of_their_type(client_api):
    """Buckets are paged in the same way; a token is valid for one listing."""
    for n in range(5):
        client_api.put(f"/buckets/b{n}/keys/k", b"v")
    found = pages_of(client_api, "/buckets?buckets=true&limit=2&prefix=b")
    assert [page["buckets"] for page in found] == [["b0", "b1"], ["b2", "b3"], ["b4"]]
    token = found[0]["continuation"]
    for other in ("/buckets?buckets=true&prefix=c", "/buckets/b0/keys?keys=true&prefix=b", "/buckets?buckets=true"):
        refused = client_api.call("GET", f"{other}&continuation={token}")
        assert (refused.status, refused.reason) == (400, "bad-query")
        assert b"continuation is not a token of this listing" in refused.body


def test_names_of_any_bytes_are_paged(client_api):
    """Prefix, order and token work on bytes: also for names that are not text, or contain characters that JSON and URLs
    escape."""
    keys = sorted([b"\x00", b"\xff\xfe", b"\xff", b'"', b"a&b=c", "ä".encode(), b"+", b"%2F"])
    for key in keys:
        client_api.put("/buckets/b/keys/" + urllib.parse.quote(key, safe=""), b"v")
    found = pages_of(client_api, "/buckets/b/keys?keys=true&encoding=percent&limit=1")
    assert [urllib.parse.unquote_to_bytes(page["keys"][0]) for page in found] == keys
    by_prefix = pages_of(client_api, "/buckets/b/keys?keys=true&encoding=percent&prefix=%ff&limit=1")
    assert [page["keys"] for page in by_prefix] == [["%FF"], ["%FF%FE"]]


@pytest.mark.parametrize("limit", ["0", "10001", "-1", "x", "", "1e3", "99999999999999999999"])
def test_a_limit_out_of_range_is_refused(client_api, limit):
    """The refusal names the valid limits."""
    answer = client_api.call("GET", f"/buckets/b/keys?keys=true&limit={limit}")
    assert (answer.status, answer.reason) == (400, "bad-query")
    assert b"1 to 10000" in answer.body
