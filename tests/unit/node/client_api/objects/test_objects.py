"""One object over the client API, at ASGI level: Riak's forms, statuses and refusals."""

from __future__ import annotations

import asyncio
import base64
import email
import re

import msgpack
import pytest

from isthmus.node.client_api.object_decoding import read_stored
from isthmus.node.client_api.object_rendering import render_object, render_plain
from isthmus.node.http import durations
from isthmus.node.observability.metrics import kind_of
from isthmus.repl.model.errors import (
    Fenced,
    NotLeader,
    NotReady,
    OutcomeUnknown,
    OutOfStorage,
    Overloaded,
    TooFewInSync,
)
from isthmus.repl.model.keys import Key
from isthmus.repl.model.objects import Object, Sibling, encode_object
from isthmus.repl.model.vclock import decode_clock

K = "/buckets/b/keys/k"


def test_a_put_value_is_read_back_with_its_headers(client_api):
    """GET gives the bytes, type, clock, tag and date of what PUT stored, under both forms of the path."""
    written = client_api.put("/types/default/buckets/b/keys/k", b"\x00value\xff")
    assert (written.status, written.body) == (204, b"")
    for path in (K, "/types/default/buckets/b/keys/k"):
        read = client_api.call("GET", path)
        assert (read.status, read.body) == (200, b"\x00value\xff")
        assert read.headers["content-type"] == "text/plain"
        assert read.headers["content-length"] == "7"
        assert read.headers["x-riak-vclock"] == written.headers["x-riak-vclock"]
        assert re.fullmatch(r'"[0-9a-f]{16}"', read.headers["etag"])
        assert read.headers["last-modified"] == "Tue, 14 Nov 2023 22:13:20 GMT"
    assert decode_clock(base64.b64decode(written.headers["x-riak-vclock"]))


def test_head_is_get_without_the_body(client_api):
    """HEAD answers with GET's headers, including the length, and without a body."""
    client_api.put(K, b"value")
    head, get = client_api.call("HEAD", K), client_api.call("GET", K)
    assert head.body == b""
    assert (head.status, head.headers) == (get.status, get.headers)
    assert client_api.call("HEAD", "/buckets/b/keys/none").status == 404


def test_an_absent_key_is_404_without_clock_or_deletion(client_api):
    """A key that was never written is distinguished from one that was deleted."""
    read = client_api.call("GET", K)
    assert (read.status, read.reason) == (404, "not-found")
    assert "x-riak-vclock" not in read.headers
    assert "x-riak-deleted" not in read.headers


def test_a_deleted_key_is_404_with_the_tombstones_clock(client_api):
    """DELETE is 204; then GET shows the deletion, another DELETE is 404, and the clock makes a new write clean."""
    client_api.put(K, b"1")
    deleted = client_api.call("DELETE", K)
    assert deleted.status == 204
    read = client_api.call("GET", K)
    assert (read.status, read.headers["x-riak-deleted"]) == (404, "true")
    assert read.headers["x-riak-vclock"] == deleted.headers["x-riak-vclock"]
    again = client_api.call("DELETE", K)
    assert (again.status, again.headers["x-riak-deleted"]) == (404, "true")
    assert client_api.call("DELETE", "/buckets/b/keys/none").status == 404
    client_api.put(K, b"2", read.headers["x-riak-vclock"])
    assert client_api.call("GET", K).body == b"2"


def test_a_write_with_the_context_replaces_and_one_without_makes_a_sibling(client_api):
    """The clock that was read decides whether a value is replaced; values that the writer has not seen are kept."""
    first = client_api.put(K, b"1").headers["x-riak-vclock"]
    second = client_api.put(K, b"2", first).headers["x-riak-vclock"]
    assert client_api.call("GET", K).body == b"2"
    client_api.put(K, b"3", first)
    siblings = client_api.call("GET", K)
    assert siblings.status == 300
    assert siblings.headers["content-type"] == "text/plain"
    head, *vtags = siblings.body.decode().splitlines()
    assert head == "Siblings:"
    assert sorted(client_api.call("GET", f"{K}?vtag={v}").body for v in vtags) == [b"2", b"3"]
    resolved = client_api.put(K, b"4", siblings.headers["x-riak-vclock"])
    assert resolved.headers["x-riak-vclock"] != second
    assert (client_api.call("GET", K).status, client_api.call("GET", K).body) == (200, b"4")


def test_siblings_come_as_multipart_when_that_is_preferred(client_api):
    """`Accept: multipart/mixed` gets every sibling with its own headers, tombstones among them."""
    first = client_api.put(K, b"1").headers["x-riak-vclock"]
    client_api.put(K, b"a\r\n--b", first, x_riak_meta_colour="red")
    client_api.call("DELETE", K, headers={"x-riak-vclock": first})
    got = client_api.call("GET", K, headers={"accept": "multipart/mixed"})
    assert got.status == 300
    parsed = email.message_from_bytes(b"content-type: " + got.headers["content-type"].encode() + b"\r\n\r\n" + got.body)
    parts = {p["X-Riak-Deleted"]: p for p in parsed.get_payload()}
    assert len(parts) == 2
    assert parts[None]["X-Riak-Meta-Colour"] == "red"
    assert parts[None].get_payload(decode=True) == b"a\r\n--b"
    assert parts["true"].get_payload() == ""
    for accept in ("*/*", "text/plain, multipart/mixed", "multipart/mixed;q=0", "multipart/mixed;q=0.5, text/plain"):
        plain = client_api.call("GET", K, headers={"accept": accept})
        assert plain.headers["content-type"] == "text/plain", accept


def test_the_vtag_of_a_tombstone_is_a_deleted_key_and_an_unknown_one_is_404(client_api):
    """`?vtag=` never shows a deletion as an empty value, nor another sibling than the named one."""
    first = client_api.put(K, b"1").headers["x-riak-vclock"]
    client_api.put(K, b"2", first)
    client_api.call("DELETE", K, headers={"x-riak-vclock": first})
    vtags = client_api.call("GET", K).body.decode().splitlines()[1:]
    answers = [client_api.call("GET", f"{K}?vtag={v}") for v in vtags]
    assert sorted((a.status, a.headers.get("x-riak-deleted")) for a in answers) == [(200, None), (404, "true")]
    unknown = client_api.call("GET", f"{K}?vtag=0000")
    assert (unknown.status, unknown.reason) == (404, "unknown-vtag")
    assert "x-riak-vclock" in unknown.headers


def test_metadata_links_indexes_and_encoding_are_kept(client_api):
    """Metadata, links, indexes and encoding that a writer sends with a value are returned to every reader."""
    client_api.call(
        "PUT",
        K,
        b"v",
        {
            "content-type": "application/json; charset=utf-8",
            "content-encoding": "gzip",
            "x-riak-meta-colour": "red",
            "x-riak-index-age_int": "3, 4",
            "x-riak-index-name_bin": "x",
            "link": '</buckets/o/keys/a%2Fb>; riaktag="next", </buckets/b>; rel="up", </riak/o/c>; riaktag=t',
        },
    )
    got = client_api.call("GET", K).headers
    assert got["content-type"] == "application/json; charset=utf-8"
    assert got["content-encoding"] == "gzip"
    assert got["x-riak-meta-colour"] == "red"
    assert got["x-riak-index-age_int"] == "3, 4"
    assert got["x-riak-index-name_bin"] == "x"
    assert got["link"] == '</buckets/o/keys/a%2Fb>; riaktag="next", </buckets/o/keys/c>; riaktag="t"'


def test_returnbody_gives_what_a_get_would(client_api):
    """`returnbody=true` answers a write with the current object: 200, or 300 with siblings."""
    first = client_api.call("PUT", K + "?returnbody=true", b"1", {"content-type": "text/plain"})
    assert (first.status, first.body) == (200, b"1")
    assert first.headers["x-riak-vclock"]
    second = client_api.call("PUT", K + "?returnbody=true", b"2", {"content-type": "text/plain"})
    assert second.status == 300


def test_a_post_to_the_listing_makes_a_key(client_api):
    """POST to .../keys stores under a new key each time, which Location names."""
    places = set()
    for path in ("/buckets/b%2F/keys", "/types/default/buckets/b%2F/keys"):
        made = client_api.call("POST", path, b"v", {"content-type": "text/plain"})
        assert (made.status, made.body) == (201, b"")
        assert made.headers["location"].startswith(path + "/")
        assert made.headers["x-riak-vclock"]
        assert client_api.call("GET", made.headers["location"]).body == b"v"
        places.add(made.headers["location"].rsplit("/", 1)[1])
    assert len(places) == 2
    shown = client_api.call("POST", "/buckets/b/keys?returnbody=true", b"v", {"content-type": "text/plain"})
    assert (shown.status, shown.body) == (201, b"v")
    assert client_api.call("POST", "/buckets/b/keys", b"v").reason == "no-content-type"
    assert client_api.call("POST", "/buckets//keys", b"v", {"content-type": "a/b"}).reason == "bad-key"


def test_a_slash_inside_a_key_is_the_keys_own(client_api):
    """A percent-encoded slash, NUL, plus or high byte is part of the key, and a bare `+` is a space, as Riak has it."""
    client_api.put("/buckets/b/keys/a%2Fb%00%ff%2B+", b"v")
    assert client_api.kv.object(b"b", b"a/b\x00\xff+ ") is not None


@pytest.mark.parametrize(
    ("headers", "reason"),
    [
        ({"content-type": "text/plain", "x-riak-vclock": "not base64!"}, "bad-vclock"),
        ({"content-type": "text/plain", "x-riak-vclock": ""}, "bad-vclock"),
        ({"content-type": "text/plain", "x-riak-vclock": "AAAA"}, "bad-vclock"),
        (
            {"content-type": "text/plain", "x-riak-vclock": base64.b64encode(b"\xdd\xff\xff\xff\xff").decode()},
            "bad-vclock",
        ),
        ({"content-type": "text/plain", "link": "nonsense"}, "bad-link"),
        ({"content-type": "text/plain", "link": '</buckets/b>; riaktag="t"'}, "bad-link"),
        ({"content-type": "text/plain", "x-riak-index-a": "1"}, "bad-index"),
        ({"content-type": "text/plain", "x-riak-index-a_int": "one"}, "bad-index"),
        ({"content-type": "text/plain", "content-length": "ten"}, "bad-header"),
        ({}, "no-content-type"),
    ],
)
def test_a_malformed_header_is_400_and_nothing_is_written(client_api, headers, reason):
    """Each bad header is refused with its own reason, in one line, before anything is written."""
    answer = client_api.call("PUT", K, b"v", headers)
    assert (answer.status, answer.reason) == (400, reason)
    assert answer.body.count(b"\n") == 1
    assert client_api.kv.writes == 0


@pytest.mark.parametrize(
    "target",
    [
        "/buckets/b/keys/%",
        "/buckets/b/keys/%4",
        "/buckets/b/keys/%zz",
        "/buckets/%G0/keys/k",
        "/types/%/buckets/b/keys/k",
    ],
)
def test_bad_percent_encoding_is_400(client_api, target):
    """A percent sign without two hex digits is refused, in every part of the path."""
    answer = client_api.call("GET", target)
    assert (answer.status, answer.reason) == (400, "bad-percent-encoding")


def test_a_vclock_with_anything_added_is_refused(client_api):
    """Base64 is decoded strictly, without skipping other characters."""
    vclock = client_api.put(K, b"1").headers["x-riak-vclock"]
    for wrong in (vclock[:4] + "!" + vclock[4:], vclock + "=", vclock[:-4], " " + vclock + "\n"):
        assert client_api.put(K, b"2", wrong).reason == "bad-vclock", wrong
    assert client_api.kv.writes == 1


def test_a_read_passes_its_isolation_or_the_default(client_api):
    """GET and HEAD pass their isolation on, or none; an unknown one is 400, never a committed read."""
    client_api.put(K, b"v")
    client_api.kv.unapplied[Key(b"default", b"b", b"k")] = client_api.kv.objects[Key(b"default", b"b", b"k")].replace(
        b"v", b"w"
    )
    assert client_api.call("GET", K).body == b"v"
    assert client_api.call("GET", K + "?isolation=committed&r=2").body == b"v"
    assert client_api.call("GET", K + "?isolation=uncommitted").body == b"w"
    assert client_api.call("HEAD", K + "?isolation=uncommitted").status == 200
    assert client_api.kv.isolations == [None, "committed", "uncommitted", "uncommitted"]
    for method in ("GET", "HEAD", "PUT"):
        answer = client_api.call(method, K + "?isolation=none", b"v" * (method == "PUT"), {"content-type": "a/b"})
        assert (answer.status, answer.reason) == (400, "isolation"), method
    assert client_api.kv.writes == 1


def test_a_request_id_makes_a_repeated_write_harmless(client_api):
    """The second PUT or DELETE with the same id writes nothing, is answered like the first, and is marked as a
    repeat."""
    first = client_api.put(K, b"v", X_Isthmus_Request_Id="client-7/1")
    assert "x-isthmus-repeated" not in first.headers
    again = client_api.put(K, b"other", X_Isthmus_Request_Id="client-7/1")
    assert (again.status, again.headers["x-isthmus-repeated"]) == (204, "true")
    assert again.headers["x-riak-vclock"] == first.headers["x-riak-vclock"]
    shown = client_api.call(
        "PUT", K + "?returnbody=true", b"other", {"content-type": "a/b", "x-isthmus-request-id": "client-7/1"}
    )
    assert (shown.status, shown.body, shown.headers["x-isthmus-repeated"]) == (200, b"v", "true")
    for repeated in (False, True):
        gone = client_api.call("DELETE", K, b"", {"x-isthmus-request-id": "client-7/2"})
        assert gone.status == 204
        assert ("x-isthmus-repeated" in gone.headers) == repeated
    assert client_api.kv.writes == 2


def test_a_repeated_write_of_a_key_reaped_since_writes_nothing(client_api):
    """It writes nothing: 204 without a clock, or 404 where the body was asked for."""
    client_api.put(K, b"v", X_Isthmus_Request_Id="client-7/1")
    client_api.kv.objects.clear()
    again = client_api.put(K, b"v", X_Isthmus_Request_Id="client-7/1")
    assert (again.status, again.headers["x-isthmus-repeated"]) == (204, "true")
    assert "x-riak-vclock" not in again.headers
    headers = {"content-type": "a/b", "x-isthmus-request-id": "client-7/1"}
    shown = client_api.call("PUT", K + "?returnbody=true", b"v", headers)
    assert (shown.status, shown.headers["x-isthmus-repeated"]) == (404, "true")
    assert client_api.kv.writes == 1


def test_a_request_id_that_is_none_is_refused(client_api):
    """An empty, too long or unprintable id, or one with a space, is 400, and nothing is written; so is an id for a key
    yet to be generated."""
    for bad in ("", "x" * 65, "a b", "a\x7f", "\xe9"):
        answer = client_api.put(K, b"v", X_Isthmus_Request_Id=bad)
        assert (answer.status, answer.reason) == (400, "bad-request-id"), bad
    made = client_api.call("POST", "/buckets/b/keys", b"v", {"content-type": "a/b", "x-isthmus-request-id": "1"})
    assert (made.status, made.reason) == (400, "bad-request-id")
    assert client_api.kv.writes == 0
    assert client_api.put(K, b"v", X_Isthmus_Request_Id="x" * 64).status == 204


def test_a_written_object_that_did_not_come_back_is_read(client_api):
    """returnbody=true shows the object also when the write's answer was too small to carry it."""
    client_api.kv.returns = False
    shown = client_api.call("PUT", K + "?returnbody=true", b"v", {"content-type": "a/b"})
    assert (shown.status, shown.body) == (200, b"v")
    assert client_api.kv.isolations == ["committed"]


def test_refusals_and_unknown_outcomes_have_different_statuses(client_api):
    """A definite refusal is 503 with its code and Retry-After; an unknown outcome is 504 with outcome=unknown, without
    Retry-After."""
    refusals = NotLeader("x", "n2"), Fenced("x"), TooFewInSync("x"), Overloaded("x"), OutOfStorage("x"), NotReady("x")
    for error in refusals:
        client_api.kv.fail = error
        for answer in (client_api.put(K, b"v"), client_api.call("GET", K)):
            assert (answer.status, answer.reason) == (503, error.reason)
            assert int(answer.headers["retry-after"]) > 0
            assert b"outcome=unknown" not in answer.body
            assert answer.headers.get("x-isthmus-leader") == ("n2.example:8098" if error.leader else None)
    client_api.kv.fail = OutcomeUnknown("the connection broke")
    answer = client_api.put(K, b"v")
    assert (answer.status, answer.reason) == (504, "outcome-unknown")
    assert answer.body == b"the connection broke; outcome=unknown\n"
    assert "retry-after" not in answer.headers


def test_bucket_and_key_have_limits(client_api_with):
    """Empty and too long names are 400; the longest allowed one is stored."""
    client_api = client_api_with(key_bytes=8)
    for target in (
        "/buckets//keys/k",
        "/types/default/buckets//keys/k",
        f"/buckets/b/keys/{'k' * 9}",
        f"/buckets/{'b' * 9}/keys/k",
    ):
        answer = client_api.call("PUT", target, b"v", {"content-type": "text/plain"})
        assert (answer.status, answer.reason) == (400, "bad-key"), target
    assert client_api.put(f"/buckets/b/keys/{'%20' * 8}", b"v").status == 204


def test_a_value_over_the_limit_is_413_before_it_is_read(client_api_with):
    """The limit is enforced by Content-Length and by count, and the largest allowed value is stored."""
    client_api = client_api_with(object_bytes=10)
    kind = {"content-type": "text/plain"}
    assert client_api.call("PUT", K, b"x" * 10, kind).status == 204
    declared = client_api.call("PUT", K, b"x" * 11, kind)
    assert (declared.status, declared.reason) == (413, "too-large")
    assert declared.headers["connection"] == "close"
    assert b"limits.object_size is 10" in declared.body
    counted = client_api.call("PUT", K, [b"x" * 6, b"x" * 6, b"x"], kind)
    assert (counted.status, counted.reason) == (413, "too-large")
    last = client_api.call("PUT", K, [b"x" * 6, b"x" * 6], kind)
    assert last.status == 413
    assert client_api.kv.writes == 1
    client_api.app.budget.limit_bytes = 100
    assert client_api.call("PUT", K, [b"x" * 6] * 40, kind).status == 413, "the rest was kept"
    assert client_api.app.budget.used_bytes == 0


async def test_a_body_cut_short_writes_nothing(client_api, send_request):
    """A client that disconnects in the middle of its body has written nothing and gets no answer."""
    for pieces in ([b"half"], [b"a", b"b"], [b""]):
        answer = await send_request(
            client_api.app, "PUT", K, pieces, {"content-type": "a/b", "content-length": "9"}, cut=True
        )
        assert answer is None
    assert client_api.kv.writes == 0
    assert client_api.app.budget.used_bytes == 0


async def test_bodies_in_flight_are_bounded_over_all_requests(client_api, send_request):
    """Bodies held by slow writes count together; over the limit a write is refused, and the room is released
    afterwards."""
    client_api.app.budget.limit_bytes = 100

    client_api.kv.gate = asyncio.Event()
    kind = {"content-type": "a/b"}
    held = [asyncio.ensure_future(send_request(client_api.app, "PUT", f"{K}{n}", b"x" * 40, kind)) for n in range(2)]
    await asyncio.sleep(0)
    assert client_api.app.budget.used_bytes == 80
    whole = await send_request(client_api.app, "PUT", K, b"x" * 40, kind)
    pieces = await send_request(client_api.app, "PUT", K, [b"x" * 15, b"x" * 15, b"x"], kind)
    client_api.kv.gate.set()
    assert [(a.status, a.reason, a.headers["retry-after"]) for a in (whole, pieces)] == [(503, "overloaded", "1")] * 2
    assert [(await each).status for each in held] == [204, 204]
    assert client_api.app.budget.used_bytes == 0
    assert (await send_request(client_api.app, "PUT", K, b"x" * 100, kind)).status == 204


def test_a_large_value_is_sent_in_pieces_and_counted(client_api):
    """The client gets an answer larger than a piece completely; it is sent in bounded pieces, and counts against the
    limit meanwhile."""
    value = bytes(range(256)) * 1000
    client_api.put(K, value)
    got = client_api.call("GET", K)
    assert got.body == value
    assert max(map(len, got.chunks)) == 64_000
    client_api.app.budget.limit_bytes = 100_000
    assert client_api.call("GET", K).reason == "overloaded"
    assert client_api.call("HEAD", K).status == 200
    assert client_api.app.budget.used_bytes == 0


@pytest.mark.parametrize(
    ("error", "status", "reason", "headers"),
    [
        (Overloaded("full"), 503, "overloaded", {"retry-after": "1"}),
        (NotLeader("elsewhere", "n2"), 503, "not-leader", {"retry-after": "1", "x-isthmus-leader": "n2.example:8098"}),
        (OutcomeUnknown("no answer\nin time"), 504, "outcome-unknown", {}),
        (ValueError("a bug"), 500, "internal", {}),
    ],
)
def test_errors_of_the_cluster_become_statuses_with_a_reason(client_api, error, status, reason, headers):
    """A definite refusal is 503 and may be repeated; an unknown outcome is 504 and states it; a bug is 500."""
    client_api.kv.fail = error
    for method in ("PUT", "GET", "DELETE"):
        answer = client_api.call(method, K, b"v" if method == "PUT" else b"", {"content-type": "a/b"})
        assert (answer.status, answer.reason) == (status, reason)
        assert headers.items() <= answer.headers.items()
        assert answer.body.count(b"\n") == 1
        assert (b"outcome=unknown" in answer.body) == (status in (500, 504))
    assert client_api.app.budget.used_bytes == 0


def test_stored_bytes_that_are_no_object_are_corruption_not_a_value(client_api):
    """For damaged bytes of any form, a reader gets a 500 with a reason, never a wrong value."""
    for broken in (
        b"",
        b"\xc1",
        msgpack.packb((9, b"", ())),
        msgpack.packb((1, b"", ())),
        msgpack.packb((1, b"", ((1,),))),
    ):
        client_api.kv.objects[Key(b"default", b"b", b"k")] = broken
        answer = client_api.call("GET", K)
        assert (answer.status, answer.reason) == (500, "corruption"), broken


def test_headers_of_objects_from_elsewhere_cannot_forge_headers(client_api):
    """Stored text with line ends is left out of answers, since a batch or a push may hold anything."""
    sibling = (
        b"a" * 20,
        1,
        0,
        False,
        b"v",
        b"a/b\r\nx: 1",
        b"\n",
        ((b"ok", b"1"), (b"bad\r\n", b"1"), (b"b", b"\n")),
        (),
        (),
    )
    client_api.kv.objects[Key(b"default", b"b", b"k")] = msgpack.packb(
        (1, msgpack.packb(((b"a" * 20, 1, 0),)), (sibling,))
    )
    got = client_api.call("GET", K)
    assert (got.status, got.headers["content-type"]) == (200, "application/octet-stream")
    assert "content-encoding" not in got.headers
    assert [h for h in got.headers if "meta" in h] == ["x-riak-meta-ok"]


def test_requests_are_counted_by_route_method_and_status(client_api):
    """The application's samples count answers by route, method and status, with a help line for each name."""
    from isthmus.node.client_api.application import HELP

    client_api.put(K, b"v")
    client_api.call("GET", K)
    client_api.call("GET", "/nowhere")
    samples = {(n, *sorted(labels.values())): v for n, labels, v in client_api.app.samples()}
    assert samples["isthmus_http_requests_total", "204", "PUT", "object"] == 1
    assert samples["isthmus_http_requests_total", "200", "GET", "object"] == 1
    assert samples["isthmus_http_requests_total", "404", "GET", "refused"] == 1
    assert {kind_of(n)[0] for n, *_ in samples} == {*HELP, *durations.HELP}


def test_requests_are_timed_by_route_and_class_of_status(client_api):
    """Each answer is in the series of its route, also a refusal; a path that nothing answers has no route."""
    client_api.put(K, b"v")
    for path in (K, K, K + "x", K + "?timeout=x", "/nowhere", "/buckets/b/keys?keys=true", "/buckets/b/keys"):
        client_api.call("GET", path)
    counted = {
        (labels["route"], labels["method"], labels["status_class"]): count
        for name, labels, count in client_api.app.samples()
        if name == "isthmus_http_request_duration_seconds_count"
    }
    assert counted == {
        ("object", "PUT", "2xx"): 1,
        ("object", "GET", "2xx"): 2,
        ("object", "GET", "4xx"): 2,
        ("other", "GET", "4xx"): 1,
        ("/buckets/{bucket}/keys", "GET", "2xx"): 1,
        ("/buckets/{bucket}/keys", "GET", "4xx"): 1,
    }


@pytest.mark.parametrize("ms", [253_402_300_799_999, 253_402_300_800_000, 2**63 - 1])
def test_a_time_beyond_the_http_date_range_is_shown_as_the_last_date(ms: int) -> None:
    """An object of another cluster with a last-modified time after the year 9999 is shown, alone and among siblings,
    with the last date that HTTP can express."""
    one = Sibling((b"a" * 20, 5), ms, False, b"value", b"text/plain")
    two = one._replace(dot=(b"b" * 20, 6))
    for siblings, status in (((one,), 200), ((one, two), 300)):
        stored = encode_object(Object(tuple((*s.dot, 0) for s in siblings), siblings))
        reply = render_object(stored, None, [], 2**60)
        assert (reply.status, dict(reply.headers)[b"last-modified"]) == (status, b"Fri, 31 Dec 9999 23:59:59 GMT")


def test_last_modified_is_never_after_the_date_of_the_answer() -> None:
    """Another node wrote the object, with a clock that is ahead: each form of the answer has the current time instead,
    and a past time is unchanged."""
    now_s = 1_700_000_000
    for modified_ms, shown in (
        ((now_s + 5) * 1000, b"Tue, 14 Nov 2023 22:13:20 GMT"),
        ((now_s - 5) * 1000, b"Tue, 14 Nov 2023 22:13:15 GMT"),
    ):
        one = Sibling((b"a" * 20, 5), modified_ms, False, b"value", b"text/plain")
        two = one._replace(dot=(b"b" * 20, 6))
        for siblings in ((one,), (one, two)):
            stored = encode_object(Object(tuple((*s.dot, 0) for s in siblings), siblings))
            assert dict(render_object(stored, None, [], now_s).headers)[b"last-modified"] == shown
            parts = render_object(stored, None, [(b"accept", b"multipart/mixed")], now_s)
            assert parts.body.count(b"Last-Modified: " + shown) == (2 if len(siblings) > 1 else 0)
        plain = render_plain(read_stored(encode_object(Object(((*one.dot, 0),), (one,)))), now_s)
        assert plain is not None
        assert b"last-modified: " + shown in plain[0]
