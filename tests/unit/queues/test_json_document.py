"""Documents in JSON: an invalid document raises a CodecError that names what was expected."""

from __future__ import annotations

import pytest

from isthmus.queues.json_document import decode_json
from isthmus.repl.model.errors import CodecError


@pytest.mark.parametrize("value", [b"", b"{", b"[1]", b'["\xff"]', b'["a\xc3"]', b"[" * 100_000, b"\xff"])
def test_a_value_that_is_no_document_is_a_codec_error(value: bytes) -> None:
    """Other JSON, no JSON, and texts that are not UTF-8."""
    with pytest.raises(CodecError, match="not a list of names"):
        decode_json(value, list[str], "list of names")
