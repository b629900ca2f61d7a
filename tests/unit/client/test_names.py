"""Names are text or bytes, and exact."""

from __future__ import annotations

from typing import Any
from urllib.parse import unquote_to_bytes

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isthmus.client.errors import BadRequest
from isthmus.client.names import Key, name_bytes, name_text


@given(st.binary(min_size=1))
def test_any_bytes_come_back_as_text(raw: bytes) -> None:
    """A name that is not UTF-8 becomes text with surrogate escapes, which encodes to the same bytes; its path does,
    too."""
    assert name_bytes(name_text(raw), "key") == raw
    path = Key(b"default", b"b", raw).path
    assert path.count(b"/") == 4
    assert unquote_to_bytes(path.rpartition(b"/")[2]) == raw


def test_paths() -> None:
    """The default type has a short path; nothing in a name ends its segment."""
    assert Key(b"default", b"b", b"k").path == b"/buckets/b/keys/k"
    assert Key(b"t/1", b"a b", b"x/y?z#%+").path == b"/types/t%2F1/buckets/a%20b/keys/x%2Fy%3Fz%23%25%2B"


@pytest.mark.parametrize("name", ["", b"", None, 5, "\ud800"])
def test_what_is_no_name_is_refused(name: Any) -> None:
    """The error says which of the names is invalid."""
    with pytest.raises(BadRequest, match="bucket") as caught:
        name_bytes(name, "bucket")
    assert caught.value.reason == "bad-key"
