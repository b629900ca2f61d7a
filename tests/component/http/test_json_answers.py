"""Siblings and refusals as JSON for clients that request it; for all others the bytes that Riak's clients expect."""

from __future__ import annotations

import json

import pytest

from isthmus.repl.model.errors import NotReady

K = "/buckets/b/keys/k"
JSON = {"accept": "application/json"}


def test_siblings_come_as_one_document(client_api):
    """The document has all siblings, with a concurrent delete, types, metadata and values; clock and tag are as in the
    headers. The clock resolves the conflict, and so does the tag."""
    client_api.put(K, b"v0")
    clock = client_api.call("GET", K).headers["x-riak-vclock"]
    client_api.call("PUT", K, b'{"n":1}', {"content-type": "application/json", "x-riak-meta-who": "ann"})
    client_api.call("PUT", K, b"\xff", {"content-type": "a/b"})
    client_api.call("DELETE", K, b"", {"x-riak-vclock": clock})
    answer = client_api.call("GET", K, b"", JSON)
    assert (answer.status, answer.headers["content-type"]) == (300, "application/json")
    assert answer.headers["vary"] == "Accept"
    document = json.loads(answer.body)
    assert document["vclock"] == answer.headers["x-riak-vclock"]
    assert f'"{document["etag"]}"' == answer.headers["etag"]
    vtags = client_api.call("GET", K).body.decode().split()[1:]
    assert [one.pop("vtag") for one in document["siblings"]] == vtags
    assert all(one.pop("last_modified_ms") for one in document["siblings"])
    assert sorted(document["siblings"], key=str) == sorted(
        [
            {"content_type": "application/json", "metadata": [["who", "ann"]], "json": {"n": 1}},
            {"content_type": "a/b", "base64": "/w=="},
            {"deleted": True},
        ],
        key=str,
    )
    resolved = client_api.call("PUT", K, b"r", {"content-type": "a/b", "if-match": f'"{document["etag"]}"'})
    assert resolved.status == 204
    assert client_api.call("GET", K, b"", JSON).body == b"r", "a single value is as it was stored"


def test_the_other_forms_of_siblings_are_unchanged(client_api):
    """Text without Accept or with any wildcard, multipart for Riak's clients, which name JSON beside it."""
    for value in (b"1", b"2"):
        client_api.put(K, value)
    text = client_api.call("GET", K)
    assert text.headers["content-type"] == "text/plain"
    assert text.body.startswith(b"Siblings:\n")
    for accept in ("*/*", "text/plain, application/json;q=0.5", "text/html, */*"):
        assert client_api.call("GET", K, b"", {"accept": accept}).body == text.body
    of_riak = client_api.call("GET", K, b"", {"accept": "multipart/mixed, application/json, */*;q=0.5"})
    assert of_riak.headers["content-type"].startswith("multipart/mixed")
    head = client_api.call("HEAD", K, b"", JSON)
    assert (head.status, head.headers["content-type"], head.body) == (300, "application/json", b"")


REFUSED = [
    ("GET", K, {}, 404, "not-found"),
    ("GET", K + "?isolation=none", {}, 400, "isolation"),
    ("GET", "/nothing", {}, 404, "unknown-path"),
    ("GET", "/mapred", {}, 501, "not-implemented"),
    ("PUT", K, {}, 400, "no-content-type"),
    ("PUT", K, {"content-type": "a/b", "if-match": '"x"'}, 412, "precondition-failed"),
    ("PUT", K, {"content-type": "a/b", "x-riak-vclock": "!"}, 400, "bad-vclock"),
    ("DELETE", K, {}, 404, "not-found"),
    ("PATCH", "/ping", {}, 405, "method-not-allowed"),
    ("GET", "/buckets/b/keys", {}, 400, "bad-query"),
    ("POST", "/batch/put", {}, 400, "bad-msgpack"),
]


@pytest.mark.parametrize(("method", "path", "headers", "status", "reason"), REFUSED)
def test_a_refusal_is_json_where_that_is_asked_for(client_api, method, path, headers, status, reason):
    """Status, reason and sentence are those of the text, and so are all other headers."""
    text = client_api.call(method, path, b"", headers)
    as_json = client_api.call(method, path, b"", {**headers, **JSON})
    assert (text.status, as_json.status) == (status, status)
    assert text.headers["content-type"] == "text/plain; charset=utf-8"
    assert as_json.headers["content-type"] == "application/json"
    assert json.loads(as_json.body) == {"error": text.body.decode().strip(), "reason": reason}
    changing = {"content-type", "content-length", "date"}
    assert {n: v for n, v in text.headers.items() if n not in changing} == {
        n: v for n, v in as_json.headers.items() if n not in changing
    }


def test_a_failed_condition_of_a_read_and_a_busy_node_are_json_too(client_api):
    """412 to a GET, and 503 with Retry-After."""
    client_api.put(K, b"v")
    failed = client_api.call("GET", K, b"", {**JSON, "if-match": '"x"'})
    assert (failed.status, json.loads(failed.body)["reason"]) == (412, "precondition-failed")
    client_api.kv.fail = NotReady("starting")
    busy = client_api.call("GET", K, b"", JSON)
    assert (busy.status, busy.headers["retry-after"]) == (503, "1")
    assert json.loads(busy.body) == {"error": "starting", "reason": "not-ready"}
