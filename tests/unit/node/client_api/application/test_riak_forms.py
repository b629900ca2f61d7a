"""Requests of Riak's clients beyond plain reads and writes: conditions, quorums, old forms, and unsupported
features."""

from __future__ import annotations

import asyncio
import json
import re
from datetime import UTC, datetime
from email.utils import format_datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isthmus.node.client_api.conditional import parse_date, parse_tags, read_condition
from isthmus.node.client_api.object_headers import parse_headers, prefers
from isthmus.node.http.authorization import http_roles
from isthmus.node.http.object_query import parse_object_query
from isthmus.node.http.responses import RequestRefused
from isthmus.repl.model.errors import NotReady
from tests.support.samples import share
from tests.support.waiting import PATIENCE_S

K = "/buckets/b/keys/k"
TEXT = {"content-type": "text/plain"}
WRITTEN_S = 1_700_000_000
"""When the cluster in memory writes everything."""

EXAMPLES = settings(max_examples=share(300), deadline=None, derandomize=True)


def refused_status(act) -> int | None:
    """The status that `act` is refused with; None when it is not."""
    try:
        act()
    except RequestRefused as refused:
        return refused.status
    return None


def date(seconds: int) -> str:
    return format_datetime(datetime.fromtimestamp(seconds, UTC), usegmt=True)


def write(client_api, headers, method="PUT", target=K):
    return client_api.call(method, target, b"new" if method != "DELETE" else b"", TEXT | headers)


# -- conditions -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["PUT", "POST", "DELETE"])
def test_a_write_whose_condition_fails_is_412_and_writes_nothing(client_api, method):
    """Each condition refuses the write, and the key is unchanged."""
    tag = client_api.put(K, b"old") and client_api.call("GET", K).headers["etag"]
    for bad in (
        {"if-none-match": "*"},
        {"if-none-match": tag},
        {"if-none-match": f'"other", W/{tag}'},
        {"if-match": '"0123456789abcdef"'},
        {"if-match": f"W/{tag}"},
        {"if-unmodified-since": date(WRITTEN_S - 1)},
    ):
        answer = write(client_api, bad, method)
        assert (answer.status, answer.reason) == (412, "precondition-failed"), bad
    assert client_api.kv.writes == 1
    assert client_api.call("GET", K).body == b"old"


@pytest.mark.parametrize("method", ["PUT", "POST", "DELETE"])
def test_a_write_whose_condition_holds_is_carried_out(client_api, method):
    """Each condition permits the write."""
    for good in (
        {"if-match": "*"},
        {"if-match": '"other", {tag}'},
        {"if-match": "{bare}"},
        {"if-none-match": '"other"'},
        {"if-unmodified-since": date(WRITTEN_S)},
        {"if-modified-since": date(WRITTEN_S + 5)},
    ):
        client_api.kv.objects.clear()
        client_api.put(K, b"old")
        tag = client_api.call("GET", K).headers["etag"]
        given = {n: v.format(tag=tag, bare=tag.strip('"')) for n, v in good.items()}
        assert write(client_api, given, method).status == 204, good


def test_if_none_match_makes_a_key_once(client_api):
    """The first write of a key succeeds, the second is 412; a deleted key may be created again."""
    assert write(client_api, {"if-none-match": "*"}).status == 204
    assert write(client_api, {"if-none-match": "*"}).status == 412
    client_api.call("DELETE", K)
    assert write(client_api, {"if-match": "*"}).status == 412
    assert write(client_api, {"if-none-match": "*"}).status == 204
    assert write(client_api, {"if-match": "*"}, "POST", "/buckets/b/keys").status == 412
    assert write(client_api, {"if-none-match": "*"}, "POST", "/buckets/b/keys").status == 201


def test_if_not_modified_names_the_clock_and_conflicts_are_409(client_api):
    """X-Riak-If-Not-Modified is compare-and-set by clock: another clock, or a missing key, is 409."""
    first = client_api.put(K, b"1").headers["x-riak-vclock"]
    second = write(client_api, {"x-riak-if-not-modified": first, "x-riak-vclock": first})
    assert second.status == 204
    for method in ("PUT", "DELETE"):
        stale = write(client_api, {"x-riak-if-not-modified": first}, method)
        assert (stale.status, stale.reason) == (409, "modified")
    assert write(client_api, {"x-riak-if-not-modified": first}, target="/buckets/b/keys/none").status == 409
    assert write(client_api, {"x-riak-if-not-modified": "no clock"}).reason == "bad-vclock"


def test_a_condition_that_is_none_refuses_a_write_and_not_a_read(client_api):
    """A malformed condition never makes a write unconditional; a read ignores a malformed date."""
    client_api.put(K, b"1")
    for bad in ({"if-match": '"open'}, {"if-none-match": "a b"}, {"if-unmodified-since": "yesterday"}):
        answer = write(client_api, bad)
        assert (answer.status, answer.reason) == (400, "bad-header"), bad
    for ignored in ({"if-modified-since": "yesterday"}, {"if-unmodified-since": "x"}):
        assert client_api.call("GET", K, headers=ignored).status == 200
    assert client_api.kv.writes == 1


def test_reads_are_304_or_412_by_their_conditions(client_api):
    """A client that has the version gets no body; 304 names the version and has no type, and HEAD is the same."""
    client_api.put(K, b"v")
    got = client_api.call("GET", K)
    tag = got.headers["etag"]
    for name, value, status in (
        ("if-none-match", tag, 304),
        ("if-none-match", f'W/{tag}, "x"', 304),
        ("if-none-match", "*", 304),
        ("if-none-match", '"x"', 200),
        ("if-match", tag, 200),
        ("if-match", '"x"', 412),
        ("if-modified-since", got.headers["last-modified"], 304),
        ("if-modified-since", date(WRITTEN_S - 1), 200),
        ("if-modified-since", date(WRITTEN_S + 3600), 200),
        ("if-unmodified-since", date(WRITTEN_S - 1), 412),
        ("if-unmodified-since", got.headers["last-modified"], 200),
    ):
        for method in ("GET", "HEAD"):
            answer = client_api.call(method, K, headers={name: value})
            assert answer.status == status, (name, value)
            if status == 304:
                assert answer.body == b""
                assert {n: answer.headers[n] for n in ("etag", "x-riak-vclock", "last-modified")} == {
                    n: got.headers[n] for n in ("etag", "x-riak-vclock", "last-modified")
                }
                assert "content-type" not in answer.headers
    assert client_api.call("GET", "/buckets/b/keys/none", headers={"if-match": "*"}).status == 404


def test_siblings_have_a_tag_together_and_each_their_own(client_api):
    """The 300 can be compared by its ETag, which changes with each version; a vtag is one sibling's."""
    first = client_api.put(K, b"1").headers["x-riak-vclock"]
    client_api.put(K, b"2")
    both = client_api.call("GET", K)
    assert both.status == 300
    assert both.headers["last-modified"]
    assert client_api.call("GET", K, headers={"if-none-match": both.headers["etag"]}).status == 304
    vtag = both.body.decode().splitlines()[1]
    assert client_api.call("GET", f"{K}?vtag={vtag}", headers={"if-none-match": f'"{vtag}"'}).status == 304
    assert client_api.call("GET", f"{K}?vtag={vtag}", headers={"if-none-match": both.headers["etag"]}).status == 200
    assert write(client_api, {"if-match": both.headers["etag"], "x-riak-vclock": first}).status == 204
    assert client_api.call("GET", K).headers["etag"] != both.headers["etag"]


@EXAMPLES
@given(st.one_of(st.binary(max_size=60), st.text('W/"*, ax', max_size=20).map(str.encode)))
def test_conditional_headers_are_parsed_or_refused(value):
    """Any bytes are parsed as tags or a date, or refused; parsed tags have no quotes, and no commas from outside
    quotes."""
    tags = []
    assert refused_status(lambda: tags.extend(parse_tags(b"if-match", value))) in (None, 400)
    assert all('"' not in tag for tag in tags)
    parse_date(value)
    for name in (b"if-match", b"if-unmodified-since", b"x-riak-if-not-modified", b"content-length"):
        for parse in (parse_headers, read_condition):
            assert refused_status(lambda name=name, parse=parse: parse([(name, value)])) in (None, 400)


# -- parameters -----------------------------------------------------------------------------------------------


def test_quorums_are_taken_and_wrong_ones_refused(client_api):
    """Quorums of Riak's clients have no effect; a value that Riak would refuse is 400 with the parameter's name."""
    good = "r=quorum&w=2&dw=all&pr=one&pw=default&rw=1&n_val=3&basic_quorum=true&notfound_ok=False&sloppy_quorum=true"
    more = "node_confirms=2&sync_on_write=all&asis=false&timeout=60000&deletedvclock=true"
    for query in (good, more):
        assert client_api.call("PUT", f"{K}?{query}", b"v", TEXT).status == 204
        assert client_api.call("GET", f"{K}?{query}").status in (200, 300)
        assert client_api.call("DELETE", f"{K}?{query}").status == 204
    writes = client_api.kv.writes
    for bad in (
        "r=two", "w=-1", "dw=", "pr=1.5", "pw=quorums", "rw=9999999999", "n_val=0", "n_val=x", "basic_quorum=1",
        "notfound_ok=maybe", "sloppy_quorum=", "returnbody=yes", "timeout=1s", "timeout=-1", "timeout=infinity",
        "sync_on_write=some",
    ):  # fmt: skip
        for method in ("GET", "PUT", "DELETE"):
            answer = client_api.call(method, f"{K}?{bad}", b"v" if method == "PUT" else b"", TEXT)
            assert (answer.status, answer.reason) == (400, "bad-query"), bad
            assert bad.partition("=")[0].encode() in answer.body
        assert client_api.call("POST", f"/buckets/b/keys?{bad}", b"v", TEXT).status == 400
    assert client_api.kv.writes == writes


@EXAMPLES
@given(st.binary(max_size=80))
def test_object_queries_are_parsed_or_refused(query):
    """Any query string is parsed or is 400."""
    assert refused_status(lambda: parse_object_query(query)) in (None, 400)


@pytest.mark.timing
async def test_a_timeout_of_the_client_is_kept(client_api, send_request):
    """A write that takes longer has an unknown outcome and continues; a read is refused; both within the given time."""

    client_api.kv.gate = asyncio.Event()
    loop = asyncio.get_running_loop()
    begun = loop.time()
    late = await send_request(client_api.app, "PUT", K + "?timeout=30", b"v", TEXT)
    assert (late.status, late.reason) == (504, "outcome-unknown")
    assert b"outcome=unknown" in late.body
    client_api.kv.gate.set()
    async with asyncio.timeout(PATIENCE_S):
        while not client_api.kv.writes:
            await asyncio.sleep(0.001)
    read = await send_request(client_api.app, "GET", K + "?timeout=5000")
    assert (read.status, read.body) == (200, b"v")

    async def never(*_):
        await asyncio.sleep(60)

    client_api.kv.get = never
    slow = await send_request(client_api.app, "GET", K + "?timeout=30")
    assert (slow.status, slow.reason) == (503, "timeout")
    assert loop.time() - begun < 5


async def test_writes_that_continue_after_a_timeout_still_count_against_the_limit(client_api, send_request):
    """Bodies of continuing writes count against the limit until they finish, so that clients with short time-outs
    cannot fill a node's memory: a body without room is refused."""

    client_api.kv.gate = asyncio.Event()
    budget = client_api.app.budget
    budget.limit_bytes = 250
    for method, path in (("PUT", K), ("POST", "/buckets/b/keys")):
        late = await send_request(client_api.app, method, f"{path}?timeout=20", b"v" * 100, TEXT)
        assert (late.status, late.reason) == (504, "outcome-unknown")
    assert budget.used_bytes == 200
    full = await send_request(client_api.app, "PUT", K + "?timeout=20", b"v" * 100, TEXT)
    assert (full.status, full.reason) == (503, "overloaded")
    client_api.kv.gate.set()
    async with asyncio.timeout(PATIENCE_S):
        while budget.used_bytes:
            await asyncio.sleep(0.001)
    assert (await send_request(client_api.app, "PUT", K + "?timeout=5000", b"v" * 100, TEXT)).status == 204
    assert budget.used_bytes == 0


def test_a_listing_that_takes_longer_than_its_timeout_is_cut(client_api, send_request):
    """Before the first names it is refused, and the underlying listing is closed."""
    client_api.put(K, b"v")

    async def slow(*_):
        client_api.kv.listings_open += 1
        try:
            await asyncio.sleep(60)
            yield [b"k"]
        finally:
            client_api.kv.listings_open -= 1

    client_api.kv.list_keys = slow
    answer = client_api.call("GET", "/buckets/b/keys?keys=true&timeout=20")
    assert (answer.status, answer.reason) == (503, "timeout")
    assert client_api.kv.listings_open == 0
    assert client_api.call("GET", "/buckets/b/keys?keys=true&timeout=soon").reason == "bad-query"


def test_a_media_type_without_a_slash_is_415(client_api):
    """As in Riak, a malformed media type is not stored."""
    answer = client_api.call("PUT", K, b"v", {"content-type": "text"})
    assert (answer.status, answer.reason) == (415, "bad-content-type")


# -- old forms, views, and what is not there ---------------------------------------------------------------------


def test_the_old_forms_reach_the_same_objects(client_api):
    """/riak/B/K is /buckets/B/keys/K, POST to /riak/B makes a key there, /riak?buckets=true lists."""
    assert client_api.put("/riak/b/a%2Fb", b"v").status == 204
    assert client_api.call("GET", "/buckets/b/keys/a%2Fb").body == b"v"
    assert client_api.call("HEAD", "/riak/b/a%2Fb").status == 200
    made = client_api.call("POST", "/riak/b", b"w", TEXT)
    assert made.status == 201
    assert made.headers["location"].startswith("/riak/b/")
    assert client_api.call("GET", made.headers["location"]).body == b"w"
    assert json.loads(client_api.call("GET", "/riak?buckets=true").body) == {"buckets": ["b"]}
    keys = json.loads(client_api.call("GET", "/riak/b?keys=true&props=false").body)["keys"]
    assert "a/b" in keys
    assert len(keys) == 2
    assert client_api.call("DELETE", "/riak/b/a%2Fb").status == 204
    assert client_api.call("GET", "/riak/b/a%2Fb").headers["x-riak-deleted"] == "true"


def test_a_trailing_slash_is_ignored(client_api):
    """Paths of listings and new keys may end in a slash, and need the same role with it."""
    assert client_api.call("POST", "/buckets/b/keys/", b"v", TEXT).headers["location"].count("//") == 0
    assert client_api.call("GET", "/buckets/?buckets=true").status == 200
    assert client_api.call("GET", "/riak/b/?keys=true&props=false").status == 200
    for path in ("/buckets/b/keys/k/", "/nothing/here/"):
        unknown = client_api.call("GET", path)
        assert unknown.reason == "unknown-path"
        assert f"nothing answers at {path};".encode() in unknown.body, "the slash is at fault"
    paths = (b"/riak/b", b"/buckets/b/props", b"/types/t/props", b"/queues/q/fetch", b"/buckets/b/keys/k")
    for path in (*paths, b"/batch/push", b"/batch/get", b"/rows", b"/trees/roots", b"/cluster/nodes", b"/ping"):
        for method in ("GET", "PUT", "POST", "DELETE"):
            assert http_roles(method, path) == http_roles(method, path + b"/"), path


def test_the_resource_list_names_what_is_answered(client_api):
    """The list is JSON on request, a page otherwise, and has only routed resources."""
    found = client_api.call("GET", "/", headers={"accept": "application/json"})
    assert (found.status, found.headers["content-type"]) == (200, "application/json")
    resources = json.loads(found.body)
    assert resources["riak_kv_wm_buckets"] == "/buckets"
    assert "riak_kv_wm_mapred" not in resources
    assert "riak_kv_wm_counter" not in resources
    for accept in (None, "*/*", "text/html", "text/html, application/json;q=0.9"):
        page = client_api.call("GET", "/", headers={} if accept is None else {"accept": accept})
        assert page.headers["content-type"].startswith("text/html"), accept
        assert b"<li>riak_kv_wm_object: <code>/buckets/{bucket}/keys/{key}</code></li>" in page.body
        assert page.body.index(b"listener for applications") < page.body.index(b"riak_kv_wm"), "people first"
        links = re.findall(rb'href="([^"]*)"', page.body)
        assert links
        assert {client_api.call("GET", link.decode()).status for link in links} == {200}, "a link of the page answers"
    assert '</stats>; rel="riak_kv_wm_stats"' in page.headers["link"]


def test_riak_s_clients_find_the_prefixes_that_they_build_paths_on(client_api):
    """Those that read the header and those that read the JSON; no link leads to a path that is never answered."""
    page = client_api.call("GET", "/", headers={"accept": "application/json"})
    resources = json.loads(page.body)
    linked = {name: path for path, name in re.findall(r'<([^>]*)>; rel="([^"]*)"', page.headers["link"])}
    assert resources["riak_kv_wm_bucket_type"] == "/types"
    assert linked.items() < resources.items()
    assert (linked["riak_kv_wm_buckets"], linked["riak_kv_wm_raw"]) == ("/buckets", "/riak")
    for path in linked.values():
        assert client_api.call("GET", path).status != 404, path
        query = "?buckets=true" if path in ("/buckets", "/riak") else ""
        assert client_api.call("GET", path + query).status == 200, path


def test_statistics_have_a_version_that_clients_can_compare(client_api):
    """Plain dotted numbers, above the releases that brought what is answered here."""
    stats = json.loads(client_api.call("GET", "/stats").body)
    assert tuple(map(int, stats["riak_kv_version"].split("."))) >= (3, 0, 13)
    assert stats["nodename"] == "n1"


def test_a_preflist_names_who_holds_a_key(client_api):
    """The replicas of a key, whether it exists or not."""
    shown = json.loads(client_api.call("GET", K + "/preflist").body)
    assert shown == {"preflist": [{"partition": 0, "node": "n1", "primary": True}]}
    assert client_api.call("GET", "/types/none/buckets/b/keys/k/preflist").status == 404
    for path in (
        "/buckets//keys/k",
        f"/buckets/b/keys/{'k' * 70_000}",
        "/buckets/b/keys/",
        f"/buckets/{'b' * 70_000}/keys/k",
    ):
        refused = client_api.call("GET", path + "/preflist")
        assert (refused.status, refused.reason) == (400, "bad-key")


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/mapred"),
        ("GET", "/search/query/i?q=x"),
        ("GET", "/solr/i/select"),
        ("GET", "/buckets/b/index/f_bin/v"),
        ("GET", "/types/t/buckets/b/index/f_int/1/2"),
        ("POST", "/buckets/b/counters/k"),
        ("POST", "/types/t/buckets/b/datatypes/k"),
        ("POST", "/types/t/buckets/b/datatypes"),
        ("GET", "/buckets/b/keys/k/b,t,1"),
        ("GET", "/riak/b/k/_,_,1/_,_,_"),
    ],
)
def test_unsupported_features_answer_501_with_an_alternative(client_api, method, path):
    """The answer is 501 with one sentence that names an alternative, never a 404 that looks like an absent key."""
    answer = client_api.call(method, path, b"{}" if method == "POST" else b"")
    assert (answer.status, answer.reason) == (501, "not-implemented")
    assert answer.body.count(b"\n") == 1
    assert b":" in answer.body


@EXAMPLES
@given(st.lists(st.sampled_from(["riak", "buckets", "types", "t", "keys", "index", "mapred", "b,t,1", "", "props"])))
def test_every_riak_path_is_answered(client_api_with, words):
    """No path made of Riak's words causes a 500."""
    client_api = client_api_with()
    for method in ("GET", "PUT", "DELETE"):
        answer = client_api.call(method, "/" + "/".join(words), b"", TEXT)
        assert answer.status != 500


def test_a_failing_listing_releases_its_slot(client_api):
    """A refused listing in the old form leaves no listing behind."""
    client_api.kv.fail = NotReady("x")
    assert client_api.call("GET", "/riak/b?keys=true&props=false").status == 503
    assert client_api.app._listings.running == 0


def test_accept_prefers_by_weight():
    """The type with the higher weight wins; ties and wildcards go to the usual type."""
    for accept, wanted in (
        (b"application/json", True),
        (b"application/*;q=0.5, text/html;q=0.4", True),
        (b"text/html, application/json", False),
        (b"*/*", False),
        (b"", False),
    ):
        assert prefers(accept, b"application/json", b"text/html") is wanted, accept


@pytest.mark.parametrize(
    "date",
    [
        b"Sat, 31 Dec 2016 23:59:60 GMT",
        b"Saturday, 31-Dec-16 23:59:60 GMT",
        b"Sat Dec 31 23:59:60 2016",
    ],
)
def test_a_leap_second_is_the_second_after_it(date):
    """HTTP's dates have second 60, in each of their forms; seconds since 1970 have none."""
    assert parse_date(date) == parse_date(b"Sun, 01 Jan 2017 00:00:00 GMT") == 1_483_228_800
    assert read_condition([(b"if-unmodified-since", date)]).unmodified_since_s == 1_483_228_800
    assert parse_date(date.replace(b":60", b":61")) is None
