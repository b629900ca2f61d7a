"""Paths, query strings and routes: strict, and total on hostile bytes."""

from __future__ import annotations

import urllib.parse
from time import thread_time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isthmus.node.client_api.object_headers import parse_index, parse_links, parse_vclock, prefers_multipart
from isthmus.node.http.responses import RequestRefused
from isthmus.node.http.router import Router, decode_segment, encode_segment, parse_query
from tests.support.samples import share

EXAMPLES = settings(max_examples=share(300), deadline=None, derandomize=True)


def status_of(act):
    """The status that `act` is refused with, 200 when it is not."""
    try:
        act()
    except RequestRefused as refused:
        return refused.status
    return 200


@EXAMPLES
@given(st.binary(max_size=40))
def test_encoding_and_decoding_a_segment_are_inverse(raw):
    """Every byte string survives the way into a path and back, as one segment, and as others decode it."""
    encoded = encode_segment(raw)
    assert b"/" not in encoded
    assert decode_segment(encoded) == raw
    assert b"+" not in encoded
    assert urllib.parse.unquote_to_bytes(encoded) == raw


@EXAMPLES
@given(st.text("%/aF0g+?&=\x00é", max_size=12).map(lambda s: s.encode("latin-1")))
def test_decoding_is_strict_and_total(segment):
    """A segment is decoded as everyone decodes it, or refused because of a stray percent sign; nothing else happens."""
    parts = segment.split(b"%")[1:]
    hexes = set(b"0123456789abcdefABCDEF")
    sound = all(len(p) >= 2 and p[0] in hexes and p[1] in hexes for p in parts)
    if sound:
        assert decode_segment(segment) == urllib.parse.unquote_to_bytes(segment.replace(b"+", b" "))
    else:
        with pytest.raises(RequestRefused, match="hex digits"):
            decode_segment(segment)


@EXAMPLES
@given(st.binary(max_size=60))
def test_query_strings_are_parsed_or_refused(query):
    """Any bytes give parameters or a 400."""
    assert status_of(lambda: parse_query(query)) in (200, 400)


def test_a_query_is_read_as_forms_are_and_is_bounded():
    """`+` is a space; a parameter that is there twice, and endless ones, are refused; prefixes are any bytes."""
    assert parse_query(b"a=1&b=x%26+y&&c&") == {"a": "1", "b": "x& y", "c": ""}
    with pytest.raises(RequestRefused, match="a is there more than once"):
        parse_query(b"a=1&b=2&a=1")
    assert parse_query(b"prefix=%ff")["prefix"].encode(errors="surrogateescape") == b"\xff"
    with pytest.raises(RequestRefused, match="not UTF-8"):
        parse_query(b"other=%ff")
    assert parse_query(b"") == {}
    assert len(parse_query(b"&".join(b"p%d=1" % n for n in range(64)))) == 64
    with pytest.raises(RequestRefused, match="64"):
        parse_query(b"&" * 64)


def test_the_router_finds_handlers_by_segments_and_method():
    """Literals, names, HEAD for GET, and the two refusals."""
    router: Router[str] = Router()
    router.add("GET", "/a/{x}/c", "read")
    router.add(("POST", "PUT"), "/a/{x}/c", "write")
    router.post("/a")("list")
    assert router.match("GET", b"/a/%2F1/c") == ("read", "/a/{x}/c", {"x": b"/1"})
    assert router.match("HEAD", b"/a/1/c").handler == "read"
    assert router.match("PUT", b"/a/1/c").handler == "write"
    assert router.match("POST", b"/a").handler == "list"
    router.add("GET", "/s/{x}", "one")
    router.add("POST", "/s/all", "all")
    assert router.match("GET", b"/s/some").handler == "one"
    assert router.match("POST", b"/s/all").handler == "all", "more literal parts win, in whatever order they were added"
    for path in (b"/", b"/a/1", b"/a/1/c/", b"/A", b"", b"/%61", b"/a/1/d"):
        with pytest.raises(RequestRefused) as unknown:
            router.match("GET", path)
        assert (unknown.value.status, unknown.value.reason) == (404, "unknown-path"), path
    with pytest.raises(RequestRefused) as wrong:
        router.match("DELETE", b"/a/1/c")
    assert (wrong.value.status, wrong.value.headers) == (405, [(b"allow", b"GET, HEAD, POST, PUT")])
    with pytest.raises(AssertionError, match="two handlers"):
        router.add("GET", "/a/{x}/c", "again")


@EXAMPLES
@given(
    st.sampled_from(["GET", "HEAD", "PUT", "POST", "DELETE", "PATCH"]),
    st.lists(
        st.sampled_from([b"buckets", b"types", b"keys", b"default", b"b", b"", b"%", b"%2F", b"queues", b"q", b"fetch"])
    ),
)
def test_every_path_of_known_words_is_matched_or_refused(client_api_with, method, words):
    """Every combination of the routes' words is matched, or refused with 400, 404 or 405."""
    router = client_api_with().app.router
    assert status_of(lambda: router.match(method, b"/" + b"/".join(words))) in (200, 400, 404, 405)


def test_a_wrong_method_names_the_right_ones(client_api):
    """405 lists what the path answers, for routed paths and for objects."""
    for target, allow in (
        ("/buckets/b/keys/k", "DELETE, GET, HEAD, POST, PUT"),
        ("/types/default/buckets/b/keys", "GET, HEAD, POST"),
        ("/buckets", "GET, HEAD"),
        ("/batch/put", "POST"),
        ("/ping", "GET, HEAD"),
    ):
        answer = client_api.call("PATCH", target)
        assert (answer.status, answer.headers["allow"]) == (405, allow), target


def test_an_unknown_bucket_type_and_an_unknown_path_are_404_with_a_reason(client_api):
    """The reasons distinguish an unknown path and an unknown bucket type."""
    assert client_api.call("GET", "/buckets/b/keys/a/b").reason == "unknown-path"
    assert b"%2F" in client_api.call("GET", "/buckets/b/keys/a/b").body
    for method in ("GET", "PUT", "DELETE"):
        answer = client_api.call(method, "/types/other/buckets/b/keys/k", b"", {"content-type": "a/b"})
        assert (answer.status, answer.reason) == (404, "unknown-bucket-type")


@EXAMPLES
@given(st.binary(max_size=60))
def test_header_parsers_give_a_value_or_a_400(value):
    """Vclock, links, indexes and Accept take any bytes."""
    for parse in (parse_vclock, parse_links, lambda v: parse_index(b"a_int", v), lambda v: parse_index(b"a", v)):
        assert status_of(lambda parse=parse: parse(value)) in (200, 400)
    prefers_multipart(value)
    prefers_multipart(b"multipart/mixed;q=" + value)


@pytest.mark.timing
@pytest.mark.parametrize("value", [b'<x>; rel=%b"x"y', b'<x>; riaktag="%b"y', b"<x>; rel=a%by", b'<x>%b;"', b"%b<x"])
def test_a_link_header_of_blanks_is_judged_at_once(value):
    """A header full of spaces, up to the limit, is refused quickly."""
    began_s = thread_time()
    with pytest.raises(RequestRefused):
        parse_links(value % (b" " * 60_000))
    assert thread_time() - began_s < 1


@pytest.mark.parametrize("value", [b"riaktag=t", b'riaktag="t"', b'riaktag = "t" ', b"riaktag= t "])
def test_a_link_tag_may_be_quoted_or_bare(value):
    """Spaces around a tag are ignored."""
    assert parse_links(b"</buckets/b/keys/k>; " + value) == ((b"b", b"k", b"t"),)
