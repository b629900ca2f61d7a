"""The form that an Accept header asks for: Riak's forms win ties, JSON is sent to those who name it."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isthmus.node.http.accept import asks_for_json, prefers
from tests.support.samples import share

EXAMPLES = settings(max_examples=share(150), deadline=None, derandomize=True)


@pytest.mark.parametrize(
    ("accept", "json"),
    [
        (None, False),
        (b"", False),
        (b"*/*", False),
        (b"text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8", False),
        (b"application/json", True),
        (b"Application/JSON; charset=utf-8", True),
        (b"application/*", True),
        (b"application/json, text/plain, */*", True),
        (b"text/plain, application/json", True),
        (b"text/plain, application/json;q=0.9", False),
        (b"text/*;q=0.5, application/json;q=0.9", True),
        (b"application/json;q=0", False),
        (b"application/json;q=x", False),
        (b"application/problem+json", False),
        # Riak's clients in Python and Ruby:
        (b"multipart/mixed, application/json, */*;q=0.5", False),
        (b"multipart/mixed, application/json;q=0.7, */*;q=0.5", False),
        (b"multipart/mixed;q=0.5, application/json", True),
    ],
)
def test_json_is_for_those_who_name_it(accept: bytes | None, json: bool) -> None:
    """JSON is chosen if it has at least the weight of text; Riak's clients, which name it beside multipart, get the
    forms that they know."""
    assert asks_for_json(accept) is json


def test_the_usual_type_wins_ties_and_wildcards() -> None:
    """The usual type is chosen unless the other one has more weight by its own name or its family's."""
    packed, json = b"application/msgpack", b"application/json"
    for accept in (None, b"*/*", b"application/*", b"application/json, application/msgpack", b"application/json;q=0"):
        assert not prefers(accept, json, packed)
    assert prefers(b"application/json", json, packed)
    assert prefers(b"application/msgpack;q=0.1, application/json;q=0.2", json, packed)


@EXAMPLES
@given(st.binary(max_size=60) | st.text("aplictonjsex/*;q=,.01 ", max_size=60).map(str.encode))
def test_any_header_is_read(accept: bytes) -> None:
    """No bytes of a client make it fail."""
    assert asks_for_json(accept) in (True, False)
