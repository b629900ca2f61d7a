"""Texts that are not filters."""

from __future__ import annotations

import pytest

from isthmus.queues.filters import parse_filter
from isthmus.repl.model.errors import BadConfig


def test_bytes_that_are_no_text_are_refused_with_what_would_be_right() -> None:
    """A shell passes bytes that are not UTF-8 as surrogates."""
    with pytest.raises(BadConfig, match="write bytes that are not UTF-8 as %XX"):
        parse_filter("bucketname:\udcff")
    assert parse_filter("bucketname:%FF").rules[0].value == b"\xff"
