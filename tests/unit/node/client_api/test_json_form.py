"""Objects in JSON: the form of each value, exact for all bytes."""

from __future__ import annotations

import base64
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isthmus.node.client_api.json_form import encoded, shown_siblings
from isthmus.repl.model.objects import Sibling
from tests.support.samples import share

EXAMPLES = settings(max_examples=share(200), deadline=None, derandomize=True)


def shown(value: bytes, content_type: bytes, encoding: bytes = b"") -> tuple[str, object]:
    """The form of a value and its content, as a client reads it."""
    sibling = Sibling((b"a" * 20, 3), 1_700_000_000_123, False, value, content_type, encoding)
    (row,) = json.loads(encoded(shown_siblings([sibling])))
    (form,) = {"json", "text", "base64"} & row.keys()
    return form, row[form]


@pytest.mark.parametrize(
    ("value", "content_type", "form"),
    [
        (b'{"a": [1, 2.50, "\\u00e4"]}', b"application/json", "json"),
        (b" null ", b"Application/JSON; charset=UTF-8", "json"),
        ('"ä"'.encode(), b"application/problem+json", "json"),
        (b'{"a": ', b"application/json", "text"),
        (b"NaN", b"application/json", "text"),
        (b"", b"application/json", "text"),
        (b'"\xff"', b"application/json", "base64"),
        (b'"\xe4"', b"application/json; charset=latin-1", "base64"),
        (b"1", b"application/json; charset=utf-16", "base64"),
        ("rain ☂".encode(), b"text/plain", "text"),
        (b"a,b", b'text/csv; header=present; charset="utf-8"', "text"),
        (b"\xff", b"text/plain", "base64"),
        (b"<a/>", b"application/xml", "text"),
        (b"<a/>", b"image/svg+xml", "text"),
        (b"text", b"application/octet-stream", "base64"),
        (b"text", b"", "base64"),
        (b"text", b"\xff\xfe", "base64"),
        (b"[" * 50_000 + b"]" * 50_000, b"application/json", "text"),
    ],
)
def test_a_value_has_one_form_by_its_type_and_bytes(value: bytes, content_type: bytes, form: str) -> None:
    """JSON that is JSON, text that is UTF-8, base64 for all else; nothing is lost in any of them."""
    found, content = shown(value, content_type)
    assert found == form
    if form == "json":
        assert content == json.loads(value)
    else:
        assert (content.encode() if form == "text" else base64.b64decode(content)) == value  # type: ignore[attr-defined,arg-type]
    assert shown(value, content_type, b"gzip")[0] == "base64"


def test_json_stays_as_it_was_written() -> None:
    """Numbers beyond floats, repeated members and spaces pass unchanged."""
    value = b'{"n": 12345678901234567890.10, "a" : 1, "a":2}'
    sibling = Sibling((b"a" * 20, 3), 5, False, value, b"application/json")
    assert b'"json":' + value in encoded(shown_siblings([sibling]))


@EXAMPLES
@given(st.binary(max_size=40), st.sampled_from([b"application/json", b"text/plain", b"a/b", b"x+json"]), st.binary())
def test_every_sibling_has_a_document(value: bytes, content_type: bytes, other: bytes) -> None:
    """For any bytes in any field of another cluster's object, the answer is JSON that contains them."""
    sibling = Sibling(
        (b"a" * 20, 3), 5, False, value, content_type, b"", ((b"n", other),), ((other, b"k", b"t"),), ((b"i", other),)
    )
    (row,) = json.loads(encoded(shown_siblings([sibling])))
    for cell in (row["metadata"][0][1], row["links"][0][0], row["indexes"][0][1]):
        assert (cell.encode() if isinstance(cell, str) else base64.b64decode(cell["base64"])) == other


def test_a_delete_has_neither_type_nor_value() -> None:
    """A concurrent delete is a sibling with its vtag and time."""
    sibling = Sibling((b"a" * 20, 3), 5, True, b"")
    (row,) = json.loads(encoded(shown_siblings([sibling])))
    assert row == {"vtag": sibling.vtag, "last_modified_ms": 5, "deleted": True}
