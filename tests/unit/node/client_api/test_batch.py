"""Batches: an answer per item, in order; an error of one item does not affect the others."""

from __future__ import annotations

import json

import msgpack
import pytest
import structlog
from hypothesis import given, settings
from hypothesis import strategies as st

from isthmus.node.client_api.batch_msgpack import MsgpackForm
from isthmus.node.client_api.object_headers import check_index, parse_index, sibling_headers
from isthmus.node.http.responses import RequestRefused
from isthmus.repl.model.errors import Overloaded
from isthmus.repl.model.objects import Sibling
from isthmus.repl.unforeseen import unforeseen
from tests.support.samples import share

T = "default"
SIBLING = Sibling((b"w", 1), 1_000, False, b"v", b"a/b")


def batch(client_api, verb, items, **options):
    answer = client_api.call("POST", f"/batch/{verb}", msgpack.packb(items, **options))
    assert answer.status == 200, answer.body
    assert answer.headers["content-type"] == "application/msgpack"
    return msgpack.unpackb(answer.body)


def test_a_batch_put_is_read_by_a_batch_get(client_api):
    """A batch get returns what a batch put wrote, as text or as bytes, in the order of the request."""
    put = batch(
        client_api,
        "put",
        [
            [T, "b", "1", b"one"],
            [b"default", b"b", b"\xff", b"two", "a/b", None],
            [T, "b", "3", "text", None, None, None],
        ],
    )
    assert [a[0] for a in put] == [204, 204, 204]
    got = batch(client_api, "get", [[T, "b", "3"], [T, "b", "none"], [T, "b", "1"], [T, b"b", b"\xff"]])
    assert [a[0] for a in got] == [200, 404, 200, 200]
    assert got[1] == [404, None, "not-found"]
    assert got[2][1] == put[0][1]
    ((value, kind, vtag, modified, extras),) = got[3][2]
    assert (value, kind, len(vtag), modified, extras) == (b"two", b"a/b", 16, 1_700_000_000_000, None)
    assert got[0][2][0][:2] == [b"text", b"application/octet-stream"]


def test_the_context_of_an_item_replaces_and_nil_deletes(client_api):
    """A vclock does in a batch what X-Riak-Vclock does, and a value of nil is a DELETE."""
    ((_, first, _),) = batch(client_api, "put", [[T, "b", "k", b"1"]])
    ((_, second, _),) = batch(client_api, "put", [[T, "b", "k", b"2", "a/b", first]])
    assert [s[0] for s in batch(client_api, "get", [[T, "b", "k"]])[0][2]] == [b"2"]
    batch(client_api, "put", [[T, "b", "k", b"3", "a/b", first]])
    status, _, siblings = batch(client_api, "get", [[T, "b", "k"]])[0]
    assert (status, sorted(s[0] for s in siblings)) == (300, [b"2", b"3"])
    assert batch(client_api, "put", [[T, "b", "k", None, None, second]])[0][0] == 204
    siblings = batch(client_api, "get", [[T, "b", "k"]])[0][2]
    assert {s[0] for s in siblings} == {b"3", None}
    ((_, clock, _),) = batch(client_api, "put", [[T, "b", "k", None]])
    assert batch(client_api, "get", [[T, "b", "k"]])[0][:2] == [404, clock]
    assert batch(client_api, "put", [[T, "b", "k", None]]) == [[404, clock, "not-found"]]
    assert batch(client_api, "put", [[T, "b", "never", None]]) == [[404, None, "not-found"]]


def test_extras_travel_with_a_value(client_api):
    """Encoding, metadata, links and indexes of an item are stored with the object, and are also returned as headers."""
    extras = ["gzip", [["colour", "red"]], [["b", "k2", "next"]], [["age_int", "3"]]]
    batch(client_api, "put", [[T, "b", "k", b"v", "a/b", None, extras]])
    headers = client_api.call("GET", "/buckets/b/keys/k").headers
    assert headers["content-encoding"] == "gzip"
    assert headers["x-riak-meta-colour"] == "red"
    assert headers["x-riak-index-age_int"] == "3"
    assert headers["link"] == '</buckets/b/keys/k2>; riaktag="next"'
    got = batch(client_api, "get", [[T, "b", "k"]])[0][2][0][4]
    assert got == [b"gzip", [[b"colour", b"red"]], [[b"b", b"k2", b"next"]], [[b"age_int", b"3"]]]


BAD_INDEXES = [
    ("n_int", "abc", "is not an integer"),
    ("n_int", "", "is not an integer"),
    ("n_int", " 7", "is not an integer"),
    ("n_int", "1,2", "is not an integer"),
    ("zz", "1", "neither in _bin nor in _int"),
    ("a_bin", "x, y", "with a comma"),
    ("a_bin", ",", "with a comma"),
    ("a_bin", " x", "with spaces at its ends"),
    ("a_bin", "x\t", "with spaces at its ends"),
]


@pytest.mark.parametrize(("name", "value", "words"), BAD_INDEXES)
def test_an_index_that_a_single_put_refuses_or_changes_is_refused(client_api, name, value, words):
    """Not an integer, another suffix, or a value that a header cannot carry: the item is 400 `bad-index` in both forms,
    and a neighbour is written."""
    good = [T, "b", "2", b"v"]
    refused, last = batch(client_api, "put", [[T, "b", "k", b"v", "a/b", None, ["", [], [], [[name, value]]]], good])
    assert (refused[0], refused[1], last[0]) == (400, None, 204)
    assert refused[2].startswith("bad-index: ")
    assert words in refused[2]
    item = {"bucket": "b", "key": "k", "text": "v", "indexes": [[name, value]]}
    answer = client_api.call("POST", "/batch/put", json.dumps([item]).encode(), {"content-type": "application/json"})
    (row,) = json.loads(answer.body)
    assert (row["status"], row["reason"]) == (400, "bad-index")
    assert client_api.call("GET", "/buckets/b/keys/k").status == 404


@pytest.mark.parametrize("content_type", ["bad", "text", "text plain"])
def test_a_content_type_that_a_single_put_refuses_is_refused(client_api, content_type):
    """Not TYPE/SUBTYPE: the item is 415 `bad-content-type` in both forms."""
    ((status, clock, reason),) = batch(client_api, "put", [[T, "b", "k", b"v", content_type]])
    assert (status, clock) == (415, None)
    assert reason.startswith("bad-content-type: ")
    item = {"bucket": "b", "key": "k", "text": "v", "content_type": content_type}
    answer = client_api.call("POST", "/batch/put", json.dumps([item]).encode(), {"content-type": "application/json"})
    (row,) = json.loads(answer.body)
    assert (row["status"], row["reason"]) == (415, "bad-content-type")
    assert client_api.kv.writes == 0


@given(
    name=st.sampled_from([b"a_bin", b"a_int", b"b_bin"]),
    values=st.lists(st.text(" \t,-07aé").map(str.encode), min_size=1, max_size=3),
)
@settings(max_examples=share(300))
def test_an_index_that_is_stored_survives_its_header(name, values):
    """What a batch takes comes back from the header form as the same entries, in the same order."""
    try:
        for value in values:
            check_index(name, value)
    except RequestRefused:
        return
    entries = tuple((name, value) for value in values)
    (shown,) = [value for found, value in sibling_headers(SIBLING._replace(indexes=entries), 0) if b"index" in found]
    assert parse_index(name, shown.strip(b" \t")) == entries


def test_an_item_names_its_request_and_its_isolation(client_api):
    """The eighth element of an item to put is its request id, the fourth of one to get its isolation."""
    item = [T, "b", "k", b"v", None, None, None, "id-1"]
    first, again, other = batch(client_api, "put", [item, [*item[:3], b"w", *item[4:]], [*item[:7], b"id-2"]])
    assert (first[2], again[2], other[2]) == (None, "repeated", None)
    assert again[:2] == first[:2]
    assert client_api.kv.writes == 2
    batch(
        client_api,
        "get",
        [[T, "b", "k"], [T, "b", "k", None], [T, "b", "k", "uncommitted"], [T, "b", "k", b"committed"]],
    )
    assert client_api.kv.isolations == [None, None, "uncommitted", "committed"]
    for bad in ([T, "b", "k", "none"], [T, "b", "k", 3], [T, "b", "k", None, None]):
        good, refused, more = batch(client_api, "get", [[T, "b", "k"], bad, [T, "b", "k"]])
        assert (good[0], refused[0], more[0]) == (300, 400, 300)


BAD_ITEMS = [
    None,
    7,
    "text",
    [],
    [T, "b"],
    [T, "b", "k"],
    [T, "b", 3, b"v"],
    [T, "b", "k", 3],
    [T, "b", "k", b"v", 5],
    [T, "b", "k", b"v", ""],
    [T, "b", "k", b"v", "a/b\r\nx: 1"],
    [T, "b", "k", b"v", "a/b", "no clock"],
    [T, "b", "k", b"v", "a/b", 5],
    [T, "b", "k", b"v", "a/b", None, [], 8],
    [T, "b", "k", b"v", "a/b", None, None, 8],
    [T, "b", "k", b"v", "a/b", None, None, ""],
    [T, "b", "k", b"v", "a/b", None, None, "a b"],
    [T, "b", "k", b"v", "a/b", None, None, "x" * 65],
    [T, "b", "k", b"v", "a/b", None, None, "id", None],
    [T, "b", "k", b"v", "a/b", None, ["", [], []]],
    [T, "b", "k", b"v", "a/b", None, ["\n", [], [], []]],
    [T, "b", "k", b"v", "a/b", None, ["", [["bad name", "v"]], [], []]],
    [T, "b", "k", b"v", "a/b", None, ["", [["Upper", "v"]], [], []]],
    [T, "b", "k", b"v", "a/b", None, ["", [["n", "\r\n"]], [], []]],
    [T, "b", "k", b"v", "a/b", None, ["", [["n"]], [], []]],
    [T, "b", "k", b"v", "a/b", None, ["", [], [["b", "k"]], []]],
    [T, "b", "k", b"v", "a/b", None, ["", [], [], [["n", 3]]]],
    [T, "b", "k", b"v", "a/b", None, ["", 3, [], []]],
]


@pytest.mark.parametrize("bad", BAD_ITEMS)
def test_a_malformed_item_is_its_own_400(client_api, bad):
    """The items around a malformed one are written, and its error is at its position."""
    answers = batch(client_api, "put", [[T, "b", "1", b"v"], bad, [T, "b", "2", b"v"]])
    assert [a[0] for a in answers] == [204, 400, 204]
    status, clock, reason = answers[1]
    assert (status, clock) == (400, None)
    assert reason.startswith(("bad-input: ", "malformed: ", "bad-request-id: "))
    assert client_api.kv.writes == 2


def test_refusals_of_the_cluster_are_per_item(client_api, client_api_with):
    """An unknown type, a value over the limit and an overloaded partition each have their status in their place."""
    small = client_api_with(object_bytes=4)
    answers = batch(small, "put", [["other", "b", "k", b"v"], [T, "b", "k", b"12345"], [T, "b", "k", b"1234"]])
    assert [a[0] for a in answers] == [404, 413, 204]
    assert answers[0][2].startswith("unknown-bucket-type: ")
    assert answers[1][2] == "too-large: value of 5 bytes, limits.object_size is 4"
    client_api.kv.fail = Overloaded("full")
    assert batch(client_api, "put", [[T, "b", "k", b"v"]]) == [[503, None, "overloaded: full"]]
    assert [a[0] for a in batch(client_api, "get", [[T, "b", "k"], ["x"]])] == [503, 400]


@pytest.mark.logs_errors("batch.item_failed")
def test_an_item_at_which_the_program_fails_is_its_own_500(client_api, monkeypatch):
    """In puts and gets, while it is read and while it is shown; logged, counted and a finding."""
    write_request, key, found = MsgpackForm.write_request, MsgpackForm.key, MsgpackForm.found
    shown = []

    def put(self, item, limit):
        return write_request(self, item, limit) if item[2] != b"bad" else 1 // 0

    def named(self, item):
        return key(self, item) if item[2] != b"bad" else 1 // 0

    def answer(self, payload):
        shown.append(payload)
        return found(self, payload) if len(shown) > 1 else 1 // 0

    monkeypatch.setattr(unforeseen._limit, "due", lambda _subject: 0)
    monkeypatch.setattr(unforeseen, "_defects", {})
    with structlog.testing.capture_logs() as lines:
        monkeypatch.setattr(MsgpackForm, "write_request", put)
        names = ("a", "bad", "z")
        assert [each[0] for each in batch(client_api, "put", [[T, "b", name, b"v"] for name in names])] == [
            204,
            500,
            204,
        ]
        monkeypatch.setattr(MsgpackForm, "key", named)
        got = batch(client_api, "get", [[T, "b", name] for name in names])
        assert [each[0] for each in got] == [200, 500, 200]
        assert got[1][2].startswith("internal: a defect of this program")
        monkeypatch.setattr(MsgpackForm, "found", answer)
        assert [each[0] for each in batch(client_api, "get", [[T, "b", name] for name in ("a", "z")])] == [500, 200]
    assert [line["event"] for line in lines if "exc_info" in line] == ["batch.item_failed"] * 3
    assert {each.event for each in unforeseen.recent()} == {"batch.item_failed"}


def test_a_batch_has_limits_of_items_bytes_and_answer(client_api_with):
    """Too many items or bytes are 413 for the whole request; if an answer grows too large, the remaining items are to
    be requested again."""
    client_api = client_api_with(batch_items=3, batch_bytes=200)
    many = client_api.call("POST", "/batch/put", msgpack.packb([[T, "b", "k", b"v"]] * 4))
    assert (many.status, many.reason) == (413, "too-large")
    assert b"limits.batch_items is 3" in many.body
    large = client_api.call("POST", "/batch/put", msgpack.packb([[T, "b", "k", b"v" * 200]]))
    assert (large.status, large.reason) == (413, "too-large")
    assert client_api.kv.writes == 0
    for name in "12":
        assert client_api.put(f"/buckets/b/keys/{name}", b"v" * 150).status == 204
    answers = batch(client_api, "get", [[T, "b", "1"], [T, "b", "2"], [T, "b", "1"]])
    assert [a[0] for a in answers] == [200, 503, 503] or [a[0] for a in answers] == [200, 200, 503]
    assert answers[2][2].startswith("overloaded: ")


def test_one_request_cannot_ask_for_more_elements_than_its_items_need(client_api_with):
    """A body of many tiny nested elements is refused while it is read, not after it has filled memory."""
    client_api = client_api_with(batch_items=64)
    nest = [[None] * 60] * 60
    answer = client_api.call("POST", "/batch/put", msgpack.packb([nest] * 64))
    assert (answer.status, answer.reason) == (400, "bad-msgpack")
    assert b"more elements" in answer.body


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xc1",
        b"\x80",
        b"\x93\x01",
        b"\xdd\x00\x00\x00\x01",
        b"\xdc\x00",
        msgpack.packb({"items": []}),
        msgpack.packb([]) + b"x",
        msgpack.packb([{}, {"a": 1}]),
        b"\x91" * 5000 + b"\xc0",
        b"\x91\xdd\xff\xff\xff\xff",
    ],
)
def test_a_body_that_is_no_list_of_items_is_400_as_a_whole(client_api, body):
    """Bytes that are not one msgpack list of items write nothing."""
    for verb in ("put", "get"):
        answer = client_api.call("POST", f"/batch/{verb}", body)
        if body == msgpack.packb([{}, {"a": 1}]):
            assert answer.status == 400
        assert (answer.status, answer.reason) == (400, "bad-msgpack"), answer.body


def test_an_empty_batch_has_an_empty_answer(client_api):
    """No items, no answers, no error."""
    assert batch(client_api, "put", []) == []
    assert batch(client_api, "get", []) == []


element = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 300) | st.binary(max_size=6) | st.text(max_size=4) | st.floats(),
    lambda inner: st.lists(inner, max_size=7) | st.dictionaries(st.text(max_size=2), inner, max_size=2),
    max_leaves=20,
)


@settings(max_examples=share(80), deadline=None, derandomize=True)
@given(st.lists(element, max_size=4) | st.binary(max_size=30))
def test_any_batch_is_answered(client_api_with, items):
    """For any body, each item has a status, or the whole request is 400."""
    body = items if isinstance(items, bytes) else msgpack.packb(items)
    client_api = client_api_with()
    for verb in ("put", "get"):
        answer = client_api.call("POST", f"/batch/{verb}", body)
        if answer.status == 200:
            answers = msgpack.unpackb(answer.body)
            assert all(a[0] in (200, 204, 400, 404) for a in answers)
        else:
            assert (answer.status, answer.reason) in ((400, "bad-msgpack"), (413, "too-large"))
