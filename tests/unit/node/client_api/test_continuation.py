"""Continuation tokens: exact for every name, bound to one listing, refused if damaged."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isthmus.node.client_api.continuation import continuation_token, name_before
from isthmus.node.http.responses import RequestRefused
from tests.support.samples import share

EXAMPLES = settings(max_examples=share(150), deadline=None, derandomize=True)
LISTING = (b"keys", b"default", b"users", b"eu-")


@EXAMPLES
@given(st.binary(min_size=1, max_size=80), st.tuples(*[st.binary(max_size=9)] * 4))
def test_a_token_gives_its_name_back(name: bytes, listing: tuple[bytes, ...]) -> None:
    """Any name of any listing, in characters that need no encoding in a URL."""
    token = continuation_token(listing, name)
    assert name_before(listing, token) == name
    assert token.replace("-", "").replace("_", "").isalnum()


@EXAMPLES
@given(st.text(max_size=60))
def test_any_text_that_is_no_token_is_refused(text: str) -> None:
    """Any malformed text is a 400 that says what is valid."""
    with pytest.raises(RequestRefused, match="not a token of this listing") as refused:
        name_before(LISTING, text)
    assert (refused.value.status, refused.value.reason) == (400, "bad-query")


def test_a_changed_token_or_that_of_another_listing_is_refused() -> None:
    """Each character counts, also the bits of the last one that base64 ignores; so do kind, type, bucket and prefix,
    and the boundaries between them."""
    token = continuation_token(LISTING, b"eu-2")
    assert token in (Path(__file__).parents[4] / "docs" / "http.md").read_text()
    for at in range(len(token)):
        for other in "AaQ9-":
            if token[at] != other:
                with pytest.raises(RequestRefused):
                    name_before(LISTING, token[:at] + other + token[at + 1 :])
    for damaged in (token[:-1], token + "A", token + "=", token + "==", " " + token, token + "\n", ""):
        with pytest.raises(RequestRefused):
            name_before(LISTING, damaged)
    for other_listing in (
        (b"buckets", *LISTING[1:]), (b"keys", b"t", *LISTING[2:]), (*LISTING[:2], b"users2", b"eu-"),
        (*LISTING[:3], b""), (b"keys", b"default", b"userse", b"u-"),
    ):  # fmt: skip
        with pytest.raises(RequestRefused):
            name_before(other_listing, token)
