"""Answers of nodes become objects and errors; any other response is a typed error."""

from __future__ import annotations

import contextlib
from datetime import UTC, datetime

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from isthmus.client import answers
from isthmus.client.errors import ClientError, ServerFault
from isthmus.client.names import Key
from isthmus.client.objects import Link
from isthmus.client.steps import Response
from tests.support.scripted_cluster import DATE, answer, found, refusal

KEY = Key(b"default", b"b", b"k")


def test_a_single_version() -> None:
    """All metadata stored with it is returned exactly."""
    response = answer(
        200,
        b"\x00\r\n\r\n",
        content_type="image/png",
        x_riak_vclock="AAEC",
        etag='"tag"',
        last_modified=DATE,
        x_riak_meta_author="Zoë",
        content_encoding="gzip",
        **{"x-riak-index-age_int": "1, 2"},
        link='</buckets/x%2Fy/keys/%FF>; riaktag="t%22", </riak/a>; rel="up"',
    )
    read = answers.parse_object(KEY, response, {}, None)
    content = read.content
    assert (read.context.vclock, read.etag, read.key) == (b"\x00\x01\x02", "tag", "k")
    assert (content.body, content.content_encoding, content.metadata) == (b"\x00\r\n\r\n", "gzip", {"author": "Zoë"})
    assert content.last_modified == datetime(2026, 11, 26, 12, tzinfo=UTC)
    assert content.indexes == (("age_int", "1"), ("age_int", "2"))
    assert content.links == (Link("x/y", "\udcff", 't"'),)


@pytest.mark.parametrize(
    "response",
    [
        answer(200, b"x", last_modified=DATE),
        answer(200, b"x", last_modified=DATE, x_riak_vclock="???"),
        answer(200, b"x", x_riak_vclock="AAEC"),
        answer(200, b"x", x_riak_vclock="AAEC", last_modified="yesterday"),
    ],
)
def test_what_is_no_object_is_a_fault_of_the_server(response: Response) -> None:
    """A missing or wrong clock, time, or part is a ServerFault."""
    with pytest.raises(ServerFault) as caught:
        answers.parse_object(KEY, response, {}, None)
    assert caught.value.reason == "bad-answer"


HEADERS = st.dictionaries(
    st.sampled_from(
        ["content-type", "x-riak-vclock", "etag", "last-modified", "x-isthmus-reason", "link", "x-riak-meta-a"]
    )
    | st.text(),
    st.text() | st.sampled_from(["AAEC", DATE, "multipart/mixed; boundary=b", "not-found", "modified"]),
)


@given(st.integers(100, 599), HEADERS, st.binary() | st.builds(lambda b: b"\r\n--b" + b + b"\r\n--b--", st.binary()))
def test_no_answer_breaks_the_client(status: int, headers: dict[str, str], body: bytes) -> None:
    """Any status, headers and body give a result or an error of the client, nothing else."""
    response = Response(status, headers, body)
    answers.judge(response)
    assert isinstance(answers.error_of(response), ClientError)
    for parse in (
        lambda: answers.parse_object(KEY, response, {}, None),
        lambda: answers.parse_written(KEY, response),
        lambda: answers.clock_of(response),
        lambda: answers.parse_batch(response, 1),
    ):
        with contextlib.suppress(ClientError):
            parse()


VALUES = st.recursive(
    st.none() | st.integers(-(2**63), 2**64 - 1) | st.binary(max_size=8) | st.text(max_size=4) | st.floats(),
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(st.text(max_size=2), inner, max_size=2),
    max_leaves=12,
)


@given(st.lists(st.lists(VALUES, min_size=3, max_size=3) | VALUES, max_size=3))
def test_no_answer_to_a_batch_breaks_the_client(items: list[object]) -> None:
    """For any msgpack, each item is a result or an error of the client."""
    try:
        parsed = answers.parse_batch(answer(200, msgpack.packb(items)), len(items))
    except ServerFault:
        return
    for status, clock, rest in parsed:
        assert isinstance(answers.item_refusal(status, rest), ClientError)
        with contextlib.suppress(ServerFault):
            assert answers.item_object(KEY, clock, rest, {}, None).siblings


def test_a_sentence_of_the_server_is_shown_safely() -> None:
    """The message is one bounded line without control characters; for an empty body it has at least the status."""
    error = answers.error_of(refusal(400, "bad-key", "one\x1b[31m\ntwo" + "x" * 10_000))
    assert "\x1b" not in error.message
    assert "\n" not in error.message
    assert len(error.message) <= answers.MESSAGE_CHARACTERS_MAX
    assert "503" in answers.error_of(answer(503, b"", x_isthmus_reason="retry")).message
    assert "client listener" in answers.error_of(answer(404, b"<html>")).message


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'{"error": "a token is needed", "reason": "unauthorized"}', "a token is needed"),
        (b'{"error": 1}', '{"error": 1}'),
        (b"[1]", "[1]"),
        (b"{", "{"),
        (b"[" * 50_000, "[" * answers.MESSAGE_CHARACTERS_MAX),
    ],
)
def test_a_refusal_in_json_is_shown_as_its_sentence(body: bytes, message: str) -> None:
    """As an admin listener sends it; JSON of another form is shown as it is."""
    response = answer(401, body, x_isthmus_reason="unauthorized", content_type="application/json")
    assert answers.error_of(response).message == message


def test_a_deleted_key_has_a_context() -> None:
    """A NotFound for a deleted key carries the deletion's context; one for a key that never existed has none."""
    deleted = answers.not_found(KEY, answers.clock_of(refusal(404, "not-found", x_riak_vclock="AAEC")))
    assert deleted.context is not None
    assert "it was deleted" in str(deleted)
    assert answers.not_found(KEY, answers.clock_of(refusal(404, "not-found"))).context is None


def test_a_repeated_write_may_have_no_context() -> None:
    """It has none if its key was reaped meanwhile; the answer to a new write always has one."""
    assert answers.parse_written(KEY, answer(204, x_isthmus_repeated="true")).context is None
    with pytest.raises(ServerFault):
        answers.parse_written(KEY, answer(204))
    assert answers.parse_object(KEY, found(b"1"), {}, None).value == 1
