"""The requests that operations on a key send, and how they interpret the answers."""

from __future__ import annotations

import json
from typing import Any

import msgpack
import pytest

from isthmus.client.errors import BadRequest, Conflict, OutcomeUnknown, Retryable, ServerFault
from isthmus.client.names import Key
from isthmus.client.objects import Context, NotFound, Sibling, Siblings, newest
from isthmus.client.operations import Operations
from tests.support.scripted_cluster import (
    CLOCK,
    NOT_FOUND,
    SILENT,
    ScriptedCluster,
    answer,
    found,
    refusal,
    written,
)

KEY = Key(b"default", b"b", b"k")
CONFLICT = answer(300, b"Siblings:\none\ntwo\n", x_riak_vclock=CLOCK, etag='"both"')


def item(*answers: Any) -> Any:
    """The answer to a batch."""
    return answer(200, msgpack.packb(list(answers)))


def version(body: bytes, tag: bytes, at_ms: int) -> Any:
    """A sibling in such an answer."""
    extras = (b"", ((b"n", tag),), (), ())
    return body, b"application/json", tag, 1_700_000_000_000 + at_ms, extras


SIBLINGS = item((300, b"\x00\x01\x02", [version(b"1", b"one", 1), version(b"2", b"two", 2)]))
PUT = {
    "context": None,
    "content_type": None,
    "metadata": None,
    "content_encoding": "",
    "if_absent": False,
    "if_unchanged": False,
    "request_id": None,
    "timeout_s": None,
}
UPDATE = {"default": None, "resolver": None, "content_type": None, "metadata": None, "timeout_s": None}


def put(cluster: ScriptedCluster, value: Any, **more: Any) -> Any:
    return cluster.run(cluster.operations.put(KEY, value, **{**PUT, **more}))


def update(cluster: ScriptedCluster, change: Any, **more: Any) -> Any:
    return cluster.run(cluster.operations.update(KEY, change, **{**UPDATE, **more}))


def test_siblings_are_read_by_a_batch() -> None:
    """The batch returns all siblings, with times in milliseconds. A key that was resolved or deleted meanwhile is
    returned in its new state; an item that is refused for now is requested again."""
    cluster = ScriptedCluster(CONFLICT, SIBLINGS)
    read = cluster.run(cluster.operations.get(KEY, None, None))
    assert [each.value for each in read.siblings] == [1, 2]
    assert [each.last_modified.microsecond for each in read.siblings] == [1000, 2000]
    assert read.context == Context(b"\x00\x01\x02")
    assert msgpack.unpackb(cluster.asked[-1].request.body or b"") == [[b"default", b"b", b"k"]]
    resolved = item((200, b"c", [version(b"3", b"three", 3)]))
    cluster = ScriptedCluster(CONFLICT, item((503, None, b"not-ready: x")), resolved)
    assert cluster.run(cluster.operations.get(KEY, None, None)).value == 3
    assert len(cluster.slept) == 1
    cluster = ScriptedCluster(CONFLICT, item((404, b"c", [])))
    with pytest.raises(NotFound) as caught:
        cluster.run(cluster.operations.get(KEY, None, None))
    assert caught.value.context == Context(b"c")
    for refused, error in ((b"retry: x", Retryable), (b"corruption: x", ServerFault)):
        cluster = ScriptedCluster(CONFLICT, item((503 if error is Retryable else 500, None, refused)), attempts=3)
        with pytest.raises(error):
            cluster.run(cluster.operations.get(KEY, None, None))


def test_a_key_that_does_not_exist() -> None:
    """`get` raises, `find` is None, `exists` is False; a key with siblings exists."""
    cluster = ScriptedCluster(NOT_FOUND)
    with pytest.raises(NotFound, match="b/k does not exist"):
        cluster.run(cluster.operations.get(KEY, None, None))
    assert cluster.run(cluster.operations.find(KEY, None, None)) is None
    assert cluster.run(cluster.operations.exists(KEY, None)) is False
    assert cluster.asked[-1].request.method == b"HEAD"
    assert ScriptedCluster(answer(300)).run(cluster.operations.exists(KEY, None)) is True


def test_a_write_has_a_request_id_and_what_it_was_given() -> None:
    """Each call has a new id, unless the caller gives one."""
    cluster = ScriptedCluster(written())
    context = Context(b"\x00\x01")
    put(cluster, {"a": 1}, context=context, metadata={"Author": "Zoë"}, content_encoding="gzip")
    headers = dict(cluster.asked[-1].request.headers)
    assert headers[b"Content-Type"] == b"application/json"
    assert headers[b"X-Riak-Vclock"] == b"AAE="
    assert headers[b"x-riak-meta-author"] == "Zoë".encode()
    assert headers[b"Content-Encoding"] == b"gzip"
    put(cluster, b"")
    ids = [dict(send.request.headers)[b"X-Isthmus-Request-Id"] for send in cluster.asked]
    assert len(set(ids)) == 2
    put(cluster, b"", request_id="mine")
    assert cluster.header(b"X-Isthmus-Request-Id") == b"mine"


def test_conditions_of_a_write() -> None:
    """The conditions are only if absent, and only if unchanged; a failed condition is a Conflict."""
    cluster = ScriptedCluster(written())
    put(cluster, b"", if_absent=True)
    assert cluster.header(b"If-None-Match") == b"*"
    put(cluster, b"", context=Context(b"\x00"), if_unchanged=True)
    assert cluster.header(b"X-Riak-If-Not-Modified") == cluster.header(b"X-Riak-Vclock") == b"AA=="
    with pytest.raises(Conflict):
        put(ScriptedCluster(refusal(409, "modified")), b"", context=Context(b"\x00"), if_unchanged=True)


@pytest.mark.parametrize(
    "wrong",
    [
        {"if_absent": True, "if_unchanged": True, "context": Context(b"")},
        {"if_unchanged": True},
        {"context": "text"},
        {"content_type": "json"},
        {"content_type": "a/b\r\nX: y"},
        {"metadata": {"a b": "x"}},
        {"metadata": {"a": "x\r\nX: y"}},
        {"metadata": {"a": " x"}},
        {"metadata": {"a": 5}},
        {"content_encoding": "gzip\n"},
        {"request_id": ""},
        {"request_id": "a b"},
        {"request_id": "x" * 65},
        {"request_id": 7},
    ],
)
def test_a_wrong_call_sends_nothing(wrong: dict[str, Any]) -> None:
    """BadRequest, before any request."""
    cluster = ScriptedCluster(written())
    with pytest.raises(BadRequest):
        put(cluster, b"", **wrong)
    assert not cluster.sent


def test_an_update_writes_only_what_nobody_has_changed() -> None:
    """It writes on the condition that the version it has read, or the absence of the key, is unchanged; it tries again
    if another writer was faster."""
    cluster = ScriptedCluster(found(b"1"), refusal(409, "modified"), found(b"5", clock="AAAA"), written("AAAB"))
    done = update(cluster, lambda count: count + 1)
    assert (done.value, str(done.context)) == (6, "AAAB")
    assert [send.request.method for send in cluster.asked] == [b"GET", b"PUT", b"GET", b"PUT"]
    assert cluster.header(b"X-Riak-If-Not-Modified", 1) == CLOCK.encode()
    assert cluster.header(b"X-Riak-If-Not-Modified", 3) == b"AAAA"
    assert cluster.asked[3].request.body == b"6"
    ids = {dict(send.request.headers)[b"X-Isthmus-Request-Id"] for send in (cluster.asked[1], cluster.asked[3])}
    assert len(ids) == 2
    assert len(cluster.slept) == 1


def test_an_update_of_an_absent_key_begins_with_a_copy_of_the_default() -> None:
    """A function that changes its argument sees the default as it was, also in the second attempt."""
    cluster = ScriptedCluster(NOT_FOUND, refusal(412, "precondition-failed"), NOT_FOUND, written())

    def add(names: list[str]) -> list[str]:
        names.append("x")
        return names

    default: list[str] = []
    assert update(cluster, add, default=default).value == ["x"]
    assert default == []
    assert cluster.header(b"If-None-Match") == b"*"
    assert cluster.header(b"X-Riak-Vclock") is None


def test_an_update_of_a_deleted_key_replaces_the_deletion() -> None:
    """The deletion's clock is the context, with the condition that the key does not exist."""
    cluster = ScriptedCluster(refusal(404, "not-found", x_riak_vclock="AAEC"), written())
    update(cluster, lambda _: 1)
    assert cluster.header(b"X-Riak-Vclock") == b"AAEC"
    assert cluster.header(b"If-None-Match") == b"*"


def test_an_update_resolves_siblings() -> None:
    """It uses the resolver of the call, otherwise of the client; without one it raises Siblings, and writes nothing."""
    cluster = ScriptedCluster(CONFLICT, SIBLINGS, written())
    assert update(cluster, lambda value: value + 1, resolver=lambda all: sum(each.value for each in all)).value == 4
    assert cluster.header(b"x-riak-meta-n") == b"two"
    cluster = ScriptedCluster(CONFLICT, SIBLINGS, written(), resolver=lambda siblings: siblings[0])
    assert update(cluster, lambda value: value + 1).value == 2
    assert cluster.header(b"x-riak-meta-n") == b"one"
    cluster = ScriptedCluster(CONFLICT, SIBLINGS)
    with pytest.raises(Siblings):
        update(cluster, lambda value: value)
    assert len(cluster.asked) == 2


def test_an_update_keeps_what_is_stored_beside_the_value() -> None:
    """Content type, metadata, indexes and links stay unless the update sets new ones."""
    stored = found(
        b"a,b",
        "text/csv",
        x_riak_meta_author="Zoë",
        **{"x-riak-index-age_int": "1, 2"},
        link='</buckets/x/keys/y>; riaktag="z"',
    )
    cluster = ScriptedCluster(stored, written())
    update(cluster, lambda text: text + ",c")
    sent = cluster.asked[-1].request
    assert sent.body == b"a,b,c"
    assert (b"Content-Type", b"text/csv") in sent.headers
    assert (b"x-riak-meta-author", "Zoë".encode()) in sent.headers
    assert [value for name, value in sent.headers if name == b"x-riak-index-age_int"] == [b"1", b"2"]
    assert (b"Link", b'</buckets/x/keys/y>; riaktag="z"') in sent.headers
    cluster = ScriptedCluster(stored, written())
    update(cluster, lambda text: {"rows": 1}, metadata={"author": "Ann"})
    assert cluster.header(b"Content-Type") == b"application/json"
    assert cluster.header(b"x-riak-meta-author") == b"Ann"


def test_an_update_keeps_a_content_encoding_of_bytes() -> None:
    """The function gets the encoded bytes, and returns such; another value is not encoded any more."""
    cluster = ScriptedCluster(found(b"zip", content_encoding="gzip"), written())
    update(cluster, lambda raw: raw + b"!")
    assert cluster.header(b"Content-Encoding") == b"gzip"
    assert cluster.header(b"Content-Type") == b"application/json"
    cluster = ScriptedCluster(found(b"zip", content_encoding="gzip"), written())
    update(cluster, lambda raw: {})
    assert cluster.header(b"Content-Encoding") is None


def test_a_function_that_returns_nothing_is_a_mistake() -> None:
    """A function that changes its argument and forgets to return it raises a TypeError, and nothing is written."""
    cluster = ScriptedCluster(found(b"{}"), written())
    with pytest.raises(TypeError, match="must return the new value"):
        update(cluster, lambda value: value.update(a=1))
    assert len(cluster.asked) == 1


def test_an_error_of_the_function_ends_the_update() -> None:
    """The error is raised unchanged, and nothing is written."""
    cluster = ScriptedCluster(found(b"1"), written())
    with pytest.raises(ZeroDivisionError):
        update(cluster, lambda value: value / 0)
    assert len(cluster.asked) == 1


def test_an_update_against_others_ends() -> None:
    """After `update_attempts`, or at its time-out, the update raises a Conflict with the number of attempts; nothing
    was written."""

    def reply(send: Any) -> Any:
        return found(b"1") if send.request.method == b"GET" else refusal(409, "modified")

    cluster = ScriptedCluster(reply, update_attempts=5)
    with pytest.raises(Conflict, match="in each of 5 attempts"):
        update(cluster, lambda value: value)
    assert len(cluster.asked) == 10
    assert len(cluster.slept) == 4
    cluster = ScriptedCluster(reply, timeout_s=3.0, update_attempts=1000)
    with pytest.raises(Conflict):
        update(cluster, lambda value: value)
    assert cluster.now_s < 1003.0


def test_a_lost_answer_within_an_update_is_not_applied_twice() -> None:
    """The same write is sent again with the same id; the function is not called again."""
    calls: list[int] = []
    cluster = ScriptedCluster(found(b"1"), SILENT, written(x_isthmus_repeated="true"))

    def change(value: int) -> int:
        calls.append(value)
        return value + 1

    assert update(cluster, change).repeated
    assert calls == [1]
    assert cluster.asked[1].request == cluster.asked[2].request


def test_overwrite_replaces_the_present_version() -> None:
    """It reads only the version, and writes on the condition that it is unchanged."""
    cluster = ScriptedCluster(
        answer(300, x_riak_vclock=CLOCK), refusal(409, "modified"), answer(404, x_isthmus_reason="not-found"), written()
    )
    cluster.run(
        cluster.operations.overwrite(KEY, "new", content_type=None, metadata=None, content_encoding="", timeout_s=None)
    )
    assert [send.request.method for send in cluster.asked] == [b"HEAD", b"PUT", b"HEAD", b"PUT"]
    assert cluster.header(b"X-Riak-If-Not-Modified", 1) == CLOCK.encode()
    assert cluster.header(b"If-None-Match", 3) == b"*"


def test_a_delete() -> None:
    """It returns True, or False if there is nothing to delete; with a context it deletes that version."""
    cluster = ScriptedCluster(written(), NOT_FOUND)
    arguments: dict[str, Any] = {"request_id": None, "timeout_s": None}
    assert cluster.run(cluster.operations.delete(KEY, context=None, if_unchanged=False, **arguments)) is True
    assert cluster.header(b"X-Riak-Vclock") is None
    assert (
        cluster.run(cluster.operations.delete(KEY, context=Context(b"\x00"), if_unchanged=True, **arguments)) is False
    )
    assert cluster.header(b"X-Riak-If-Not-Modified") == b"AA=="
    lost = ScriptedCluster(SILENT, attempts=2)
    with pytest.raises(OutcomeUnknown):
        lost.run(lost.operations.delete(KEY, context=None, if_unchanged=False, **arguments))


def names(cluster: ScriptedCluster, bucket: str | None = "b", **more: Any) -> Any:
    """One page."""
    given: dict[str, Any] = {"prefix": "", "page_size": 2, "continuation": "", "timeout_s": None, **more}
    return cluster.run(cluster.operations.page(None, bucket, **given))


def test_a_page_of_a_listing() -> None:
    """A page has percent-encoded names, a prefix of any bytes, and the position of the next page."""
    cluster = ScriptedCluster(answer(200, b'{"keys":["a%2Fb","%FF"],"continuation":"T_-"}'))
    page = names(cluster)
    assert page == (["a/b", "\udcff"], "T_-")
    assert cluster.asked[-1].request.target == b"/buckets/b/keys?keys=true&encoding=percent&limit=2"
    names(cluster, prefix=b"\xff", continuation="T_-")
    assert cluster.asked[-1].request.target.endswith(b"&limit=2&prefix=%FF&continuation=T_-")
    cluster = ScriptedCluster(answer(200, json.dumps({"buckets": []}).encode()))
    assert names(cluster, None) == ([], "")
    assert cluster.asked[-1].request.target.startswith(b"/buckets?buckets=true")


def test_a_node_without_pages_sends_all_names() -> None:
    """The client filters out names with another prefix."""
    cluster = ScriptedCluster(answer(200, b'{"keys":["b1","a1","a2"]}'))
    assert names(cluster, prefix="a") == (["a1", "a2"], "")


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b'{"keys":1}', b'{"keys":[1]}', b'{"keys":[],"continuation":1}'])
def test_what_is_no_listing_is_a_fault_of_the_server(body: bytes) -> None:
    """It is not taken for an empty bucket."""
    with pytest.raises(ServerFault):
        names(ScriptedCluster(answer(200, body)))


@pytest.mark.parametrize("page_size", [0, -1, 10_001])
def test_a_page_has_a_size_that_nodes_take(page_size: int) -> None:
    """BadRequest, before any request."""
    with pytest.raises(BadRequest, match="page_size"):
        names(ScriptedCluster(NOT_FOUND), page_size=page_size)


def test_properties() -> None:
    """`properties` reads those of a bucket or of a bucket type; an answer without them is a ServerFault."""
    cluster = ScriptedCluster(answer(200, b'{"props":{"allow_mult":true}}'))
    assert cluster.run(cluster.operations.properties("t", "b", None)) == {"allow_mult": True}
    assert cluster.asked[-1].request.target == b"/types/t/buckets/b/props"
    cluster.run(cluster.operations.properties(None, None, None))
    assert cluster.asked[-1].request.target == b"/types/default/props"
    for body in (b"[]", b'{"props":[]}', b"?"):
        wrong = ScriptedCluster(answer(200, body))
        with pytest.raises(ServerFault):
            wrong.run(wrong.operations.properties(None, "b", None))


def test_a_call_has_a_time_of_its_own() -> None:
    """It replaces that of the client."""
    cluster = ScriptedCluster(SILENT, attempts=1000)
    cluster.lasts_s = 10.0
    with pytest.raises(Retryable):
        cluster.run(cluster.operations.get(KEY, None, 3.0))
    assert cluster.now_s <= 1003.0
    assert cluster.asked[0].timeout_s == 1.0


@pytest.mark.parametrize("timeout_s", [float("inf"), float("nan"), 0, -1, "1", 86_401])
def test_a_call_has_a_time_that_is_possible(timeout_s: Any) -> None:
    """The same limits hold as for the client's option."""
    cluster = ScriptedCluster(written())
    with pytest.raises(BadRequest, match="timeout_s is "):
        put(cluster, b"", timeout_s=timeout_s)
    assert not cluster.sent


def test_a_resolver_of_the_client_serves_reads() -> None:
    """It is used if a call has no resolver of its own."""
    cluster = ScriptedCluster(CONFLICT, SIBLINGS, CONFLICT, SIBLINGS, resolver=newest)
    assert cluster.run(cluster.operations.get(KEY, None, None)).value == 2

    def first(siblings: Any) -> Sibling:
        return siblings[0]  # type: ignore[no-any-return]

    assert cluster.run(cluster.operations.get(KEY, first, None)).value == 1
    assert isinstance(cluster.operations, Operations)
