"""Batches in JSON: the same answers as in msgpack, an answer per item, nothing decoded before its size is known."""

from __future__ import annotations

import base64
import json
import tracemalloc

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isthmus.repl.model.errors import Overloaded
from tests.support.samples import share

JSON = {"content-type": "application/json"}


def call(client_api, verb, items, **headers):
    body = items if isinstance(items, bytes) else json.dumps(items).encode()
    return client_api.call("POST", f"/batch/{verb}", body, {**JSON, **headers})


def batch(client_api, verb, items):
    answer = call(client_api, verb, items)
    assert answer.status == 200, answer.body
    assert answer.headers["content-type"] == "application/json"
    return json.loads(answer.body)


def test_a_batch_put_is_read_by_a_batch_get(client_api):
    """Values in each form are returned by GET with the type of their form, and by a batch in the form of the type."""
    put = batch(
        client_api,
        "put",
        [
            {"bucket": "b", "key": "1", "json": {"n": [1, None]}},
            {"type": "default", "bucket": "b", "key": "2", "text": "räin"},
            {"bucket": "b", "key": {"base64": "/w=="}, "base64": "AP8=", "content_type": "a/b"},
        ],
    )
    assert [one["status"] for one in put] == [204, 204, 204]
    for key, value, kind in (
        ("1", b'{"n": [1, null]}', "application/json"),
        ("2", "räin".encode(), "text/plain; charset=utf-8"),
        ("%ff", b"\0\xff", "a/b"),
    ):
        read = client_api.call("GET", f"/buckets/b/keys/{key}")
        assert (read.body, read.headers["content-type"]) == (value, kind)
    names = [{"bucket": "b", "key": key} for key in ("2", "none", "1", {"base64": "/w=="})]
    got = batch(client_api, "get", names)
    assert [one["status"] for one in got] == [200, 404, 200, 200]
    assert got[1] == {"status": 404, "reason": "not-found", "error": "not found"}
    assert got[2]["vclock"] == put[0]["vclock"]
    ((first,), (second,), (third,)) = (got[n]["siblings"] for n in (0, 2, 3))
    assert (first["text"], second["json"], third["base64"]) == ("räin", {"n": [1, None]}, "AP8=")
    assert first["last_modified_ms"] == 1_700_000_000_000


def test_the_clock_of_an_item_replaces_and_delete_deletes(client_api):
    """As in msgpack: siblings without the clock, a tombstone as a sibling or alone, and what a delete finds."""
    item = {"bucket": "b", "key": "k"}
    (first,) = batch(client_api, "put", [{**item, "json": 1}])
    batch(client_api, "put", [{**item, "json": 2, "vclock": first["vclock"]}])
    (third,) = batch(client_api, "put", [{**item, "json": 3, "vclock": first["vclock"]}])
    (read,) = batch(client_api, "get", [item])
    assert (read["status"], read["vclock"]) == (300, third["vclock"])
    assert sorted(one["json"] for one in read["siblings"]) == [2, 3]
    (gone,) = batch(client_api, "put", [{**item, "delete": True}])
    (read,) = batch(client_api, "get", [item])
    assert (read["status"], read["reason"], read["vclock"]) == (404, "not-found", gone["vclock"])
    assert [one["deleted"] for one in read["siblings"]] == [True]
    missing = {"status": 404, "reason": "not-found", "error": "not found"}
    assert batch(client_api, "put", [{**item, "delete": True}]) == [{**missing, "vclock": gone["vclock"]}]
    assert batch(client_api, "put", [{"bucket": "b", "key": "never", "delete": True}]) == [missing]


def test_all_that_a_value_may_have_goes_both_ways(client_api):
    """Encoding, metadata, links, indexes and request id are accepted, and an item of an answer may be sent back."""
    item = {
        "bucket": "b", "key": "k", "base64": "eA==", "content_type": "a/b", "content_encoding": "gzip",
        "metadata": [["colour", "red"], ["raw", {"base64": "/w=="}]], "links": [["b", "k2", "next"]],
        "indexes": [["age_int", "3"]], "request_id": "id-1",
    }  # fmt: skip
    first, again = batch(client_api, "put", [item, item])
    assert first == {"status": 204, "vclock": again["vclock"]}
    assert again == {**first, "repeated": True}
    assert client_api.kv.writes == 1
    headers = client_api.call("GET", "/buckets/b/keys/k").headers
    assert (headers["x-riak-meta-colour"], headers["x-riak-index-age_int"]) == ("red", "3")
    ((sibling,),) = (one["siblings"] for one in batch(client_api, "get", [{"bucket": "b", "key": "k"}]))
    back = {name: value for name, value in sibling.items() if name not in ("vtag", "last_modified_ms")}
    assert back == {name: value for name, value in item.items() if name not in ("bucket", "key", "request_id")}


def test_both_forms_give_the_same_answers(client_api):
    """A value written in one form can be read in the other; Accept selects the form of an answer, independent of that
    of the request."""
    batch(client_api, "put", [{"bucket": "b", "key": "k", "json": 1}])
    packed = msgpack.packb([["default", "b", "k"]])
    in_msgpack = client_api.call("POST", "/batch/get", packed)
    assert in_msgpack.headers["content-type"] == "application/msgpack"
    ((status, clock, ((value, kind, *_),)),) = msgpack.unpackb(in_msgpack.body)
    assert (status, value, kind) == (200, b"1", b"application/json")
    to_json = client_api.call("POST", "/batch/get", packed, {"accept": "application/json"})
    assert to_json.headers["content-type"] == "application/json"
    (read,) = json.loads(to_json.body)
    assert (read["vclock"], read["siblings"][0]["json"]) == (base64.b64encode(clock).decode(), 1)
    from_json = call(client_api, "get", [{"bucket": "b", "key": "k"}], accept="application/msgpack")
    assert from_json.body == in_msgpack.body
    for accept in ("*/*", "application/*", "application/json, application/msgpack"):
        assert call(client_api, "get", [], accept=accept).headers["content-type"] == "application/json"


def test_an_item_names_its_isolation(client_api):
    """As in msgpack; an unknown one is the item's refusal."""
    item = {"bucket": "b", "key": "k"}
    answers = batch(client_api, "get", [item, {**item, "isolation": "uncommitted"}, {**item, "isolation": "none"}])
    assert [one["status"] for one in answers] == [404, 404, 400]
    assert answers[2]["reason"] == "isolation"
    assert client_api.kv.isolations == [None, "uncommitted"]


GOOD = {"bucket": "b", "key": "k"}
BAD_ITEMS = [
    ({}, "bucket and key"),
    ({"bucket": "b", "json": 1}, "bucket and key"),
    (GOOD, "exactly one of"),
    ({**GOOD, "json": 1, "text": "x"}, "exactly one of"),
    ({**GOOD, "delete": False}, "exactly one of"),
    ({**GOOD, "delete": True, "text": "x"}, "exactly one of"),
    ({**GOOD, "delete": 1}, "true or false"),
    ({**GOOD, "text": 3}, "text must be a text"),
    ({**GOOD, "base64": "x"}, "not base64"),
    ({**GOOD, "base64": "eA==eA=="}, "not base64"),
    ({**GOOD, "base64": "é"}, "not base64"),
    ({**GOOD, "json": 1, "vclock": "!"}, "not base64"),
    ({**GOOD, "json": 1, "vclock": "eA=="}, ""),
    ({**GOOD, "json": 1, "content_type": ""}, "content type"),
    ({**GOOD, "json": 1, "content_type": "a/b\r\nx: 1"}, "content type"),
    ({**GOOD, "json": 1, "content_type": None}, "content_type must be a text"),
    ({**GOOD, "json": 1, "metadata": {"a": "b"}}, "metadata must be a list"),
    ({**GOOD, "json": 1, "metadata": [["a"]]}, "pairs"),
    ({**GOOD, "json": 1, "metadata": [["Upper", "v"]]}, "lower-case"),
    ({**GOOD, "json": 1, "links": [["b", "k"]]}, "triples"),
    ({**GOOD, "json": 1, "indexes": [["n", 3]]}, "indexes must be a list"),
    ({**GOOD, "json": 1, "request_id": "a b"}, "request id"),
    ({"bucket": {"base64": "eA==", "x": 1}, "key": "k", "json": 1}, "bucket must be a text or"),
    ({"bucket": ["b"], "key": "k", "json": 1}, "bucket must be a text or"),
]


@pytest.mark.parametrize(("bad", "words"), BAD_ITEMS)
def test_a_malformed_item_is_its_own_400(client_api, bad, words):
    """An error in one member is reported for its item; its neighbours are written."""
    first, refused, last = batch(client_api, "put", [{**GOOD, "json": 1}, bad, {**GOOD, "key": "2", "json": 1}])
    assert (first["status"], refused["status"], last["status"]) == (204, 400, 204), refused
    assert refused.keys() == {"status", "reason", "error"}
    assert words in refused["error"]


@pytest.mark.parametrize(
    "body",
    [
        b"", b"{", b"{}", b"5", b"[5]", b"[null]", b"[[]]", b'[{"bucket": "b"},]', b'[{"bukcet": "b"}]', b"[{}] x",
        b'[{"bucket": "\x01"}]', b"[" * 100_000,
    ],
)  # fmt: skip
def test_a_body_of_another_form_is_400_as_a_whole(client_api, body):
    """A body that is not JSON, not a list, or has an item that is not an object or has an unknown member writes
    nothing; the text lists the members of an item."""
    for verb in ("put", "get"):
        answer = call(client_api, verb, body)
        assert (answer.status, answer.reason) == (400, "bad-json"), answer.body
        assert b"members of an item: type, bucket, key" in answer.body
    assert client_api.kv.writes == 0


def test_values_that_are_not_utf8_are_refused(client_api):
    """JSON is UTF-8: other bytes are stored by base64 alone."""
    (json_answer,) = batch(client_api, "put", b'[{"bucket": "b", "key": "k", "json": "\xff"}]')
    (text_answer,) = batch(client_api, "put", b'[{"bucket": "b", "key": "k", "text": "\xff"}]')
    assert (json_answer["status"], text_answer["status"]) == (400, 400)
    assert client_api.kv.writes == 0


def test_json_is_stored_as_it_was_sent(client_api):
    """Spaces, big numbers and repeated members of a value stay, in the store and in the answer."""
    value = b'{"a" : 1, "a":12345678901234567890.10}'
    batch(client_api, "put", b'[ { "bucket":"b", "key":"k", "json": ' + value + b" } ]")
    assert client_api.call("GET", "/buckets/b/keys/k").body == value
    assert b'"json":' + value in call(client_api, "get", [GOOD]).body


def test_a_batch_has_limits_of_items_bytes_values_and_answer(client_api_with):
    """Each limit by its name in the settings: 413 for the whole body or for the item, and an answer that is full."""
    client_api = client_api_with(batch_items=3, batch_bytes=2_000, object_bytes=100)
    answer = call(client_api, "put", [{**GOOD, "json": 1}] * 4)
    assert (answer.status, answer.reason) == (413, "too-large")
    assert b"limits.batch_items, 3" in answer.body
    answer = call(client_api, "put", [{**GOOD, "text": "x" * 2_000}])
    assert (answer.status, b"limits.batch_size is 2000" in answer.body) == (413, True)
    for value in ({"text": "x" * 101}, {"json": "x" * 99}, {"base64": base64.b64encode(b"x" * 101).decode()}):
        (refused,) = batch(client_api, "put", [{**GOOD, **value}])
        assert (refused["status"], refused["reason"]) == (413, "too-large")
        assert "limits.object_size is 100" in refused["error"]
    values = ({"text": "x" * 100}, {"json": "x" * 98}, {"base64": base64.b64encode(b"x" * 100).decode()})
    assert [one["status"] for one in batch(client_api, "put", [{**GOOD, **value} for value in values])] == [204] * 3
    small = client_api_with(batch_items=20, batch_bytes=1_000, object_bytes=100)
    for n in range(5):
        batch(small, "put", [{"bucket": "b", "key": str(n), "base64": base64.b64encode(bytes(100)).decode()}])
    answers = batch(small, "get", [{"bucket": "b", "key": str(n)} for n in range(5)])
    assert [one["status"] for one in answers] == [200, 200, 503, 503, 503]
    assert answers[2]["reason"] == Overloaded.reason


def test_a_body_does_not_fill_memory_before_it_is_refused(client_api_with):
    """Millions of items, or of elements of metadata, in a few megabytes: the memory that decoding takes follows the
    limits, not the body."""
    client_api = client_api_with(batch_items=10, batch_bytes=20_000_000)
    for body, status in (
        (b"[" + b"{}," * 3_000_000 + b"{}]", 413),
        (b'[{"bucket":"b","key":"k","json":1,"metadata":[' + b'["",""],' * 1_000_000 + b'["",""]]}]', 200),
        (b'[{"bucket":"b","key":"k","json":[' + b"[]," * 2_000_000 + b"[]]}]", 200),
    ):
        tracemalloc.start()
        answer = call(client_api, "put", body)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert answer.status == status
        assert peak < 5 * len(body), peak
        if status == 200:
            assert json.loads(answer.body)[0]["status"] in (413, 204)


def test_refusals_of_the_cluster_are_per_item(client_api):
    """As in msgpack: status, code and sentence."""
    client_api.kv.fail = Overloaded("full")
    assert batch(client_api, "put", [{**GOOD, "json": 1}]) == [{"status": 503, "reason": "overloaded", "error": "full"}]
    assert batch(client_api, "get", []) == []


fields = st.sampled_from(
    ["type", "bucket", "key", "json", "text", "base64", "delete", "vclock", "metadata", "links", "content_type"]
)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["base64", "a"]), inner, max_size=2),
    max_leaves=6,
)


@settings(max_examples=share(150), deadline=None, derandomize=True)
@given(st.lists(st.dictionaries(fields, values, max_size=6), max_size=5))
def test_any_batch_of_objects_is_answered(client_api_with, items):
    """Every item has an answer, for any members, and never a server error."""
    client_api = client_api_with()
    answers = batch(client_api, "put", items)
    assert len(answers) == len(items)
    assert {one["status"] for one in answers} <= {204, 400, 404}
