"""Values become bytes and back by their content type."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isthmus.client.errors import BadRequest
from isthmus.client.values import Codec, codec_of, decode_value, encode_value, keeps_type

CODECS = {"application/x-csv": Codec(lambda rows: ",".join(rows).encode(), lambda raw: raw.decode().split(","))}

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


@given(JSON | st.binary())
def test_a_value_comes_back(value: Any) -> None:
    """JSON values, text and bytes are returned as they were stored, without a content type. Text with lone surrogates
    is refused, since UTF-8 cannot encode it."""
    try:
        body, content_type = encode_value(value, None, {})
    except BadRequest:
        assert "\\ud" in repr(value)
        return
    assert decode_value(body, content_type, {}) == value


@pytest.mark.parametrize(
    ("value", "content_type", "body"),
    [
        ("ä", None, "ä".encode()),
        ("ä", "text/plain; charset=latin-1", b"\xe4"),
        ("ä", 'text/plain; charset="no-such"', "ä".encode()),
        ("ä", "application/json", '"ä"'.encode()),
        ({"a": [1]}, None, b'{"a":[1]}'),
        ({"a": 1}, "application/hal+json; v=1", b'{"a":1}'),
        (["a", "b"], "application/x-csv", b"a,b"),
        (b"\xff", "application/json", b"\xff"),
        (bytearray(b"x"), None, b"x"),
        (memoryview(b"x"), "image/png", b"x"),
    ],
)
def test_the_content_type_decides_on_the_bytes(value: Any, content_type: str | None, body: bytes) -> None:
    """Bytes are stored unchanged with any content type."""
    assert encode_value(value, content_type, CODECS)[0] == body


def test_content_types_of_values_without_one() -> None:
    """It follows from the type of the value."""
    types = [encode_value(value, None, {})[1] for value in (b"", "", {}, 1, None, True)]
    assert types == ["application/octet-stream", "text/plain; charset=utf-8", *["application/json"] * 4]


@pytest.mark.parametrize(
    ("value", "content_type"),
    [
        ({1, 2}, None),
        (float("nan"), None),
        (object(), "application/json"),
        ({"a": 1}, "image/png"),
        (5, "text/plain"),
        ("ä", "text/plain; charset=ascii"),
        (7, "application/x-csv"),
    ],
)
def test_a_value_that_does_not_fit_is_refused(value: Any, content_type: str | None) -> None:
    """The error names the type of the value and the content type."""
    with pytest.raises(BadRequest, match=f"{type(value).__name__}.*cannot be stored as") as caught:
        encode_value(value, content_type, CODECS)
    assert caught.value.reason == "bad-value"


def test_stored_bytes_that_are_not_of_their_type_are_named() -> None:
    """The error names the attribute that has the bytes; bytes of unknown types are returned unchanged."""
    with pytest.raises(BadRequest, match="`body` has them"):
        decode_value(b"{", "application/json", {})
    with pytest.raises(BadRequest):
        decode_value(b"\xff", "text/plain", {})
    with pytest.raises(BadRequest):
        decode_value(b"[" * 100_000, "application/json", {})
    assert decode_value(b"{", "application/x-unknown", {}) == b"{"


@pytest.mark.parametrize(
    ("value", "content_type", "keeps"),
    [
        ({}, "application/json", True),
        ("text", "application/json", True),
        ("text", "text/csv", True),
        ({}, "text/csv", False),
        ({}, "image/png", False),
        (b"", "image/png", True),
        (b"", "application/json", False),
        (["a"], "Application/X-CSV; header=no", True),
    ],
)
def test_an_update_keeps_a_content_type_that_fits(value: Any, content_type: str, keeps: bool) -> None:
    """Text stays CSV, JSON stays JSON; a value of another kind gets the type of its kind."""
    assert keeps_type(value, content_type, CODECS) is keeps


def test_a_codec_replaces_the_own_one() -> None:
    """Also for JSON and text."""
    codecs = {"application/json": Codec(lambda _: b"!", lambda _: "!"), "text/plain": Codec(bytes, bytes)}
    assert encode_value({}, "application/json", codecs)[0] == b"!"
    assert codec_of("text/plain; charset=utf-8", codecs) is codecs["text/plain"]
