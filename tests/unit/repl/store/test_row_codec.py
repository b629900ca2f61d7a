"""Chunks of transferred rows whose checksum is right and whose content is not."""

from __future__ import annotations

import pytest
from xxhash import xxh64_digest

from isthmus.repl.model.errors import DamagedChunk
from isthmus.repl.store.row_codec import decode_rows, decode_state


@pytest.mark.parametrize("body", [b"", b"\x91", b"\x90\x90", b"\xc1", b"\xa1\xff", b"\xdd\xff\xff\xff\xff", b"\x80"])
def test_a_chunk_that_is_no_msgpack_list_is_damaged(body: bytes) -> None:
    """A peer that sums up nonsense correctly has sent a damaged chunk, as one that sums up wrongly."""
    for decode in (decode_rows, decode_state):
        with pytest.raises(DamagedChunk):
            decode(xxh64_digest(body) + body)
