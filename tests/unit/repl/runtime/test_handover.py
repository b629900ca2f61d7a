"""Bytes of hand-over requests, and what is refused as one."""

from __future__ import annotations

import msgpack
import pytest

from isthmus.repl.model.errors import BadInput
from isthmus.repl.runtime.handover import TIMEOUT_MS_MAX, HandOverRequest, _decoded, encode


def test_a_request_is_a_flat_list_of_four() -> None:
    """Nodes of earlier releases send and read the same bytes."""
    raw = bytes.fromhex("94cd012cce000186a0a26e32cd1388")
    assert encode(300, 100_000, "n2", 5_000) == raw
    assert _decoded("n1", raw) == HandOverRequest(300, 100_000, "n2", 5_000)


@pytest.mark.parametrize(
    "fields",
    [
        [1, 1, "n2"],
        [1, 1, "n2", 5, 6],
        [-1, 1, "n2", 5],
        [1, -1, "n2", 5],
        [1, True, "n2", 5],
        [1, 1.5, "n2", 5],
        [1, 1, b"n2", 5],
        [1, 1, "n2", 0],
        [1, 1, "n2", TIMEOUT_MS_MAX + 1],
        {"partition": 1},
        1,
    ],
)
def test_another_shape_is_bad_input(fields: object) -> None:
    """Types, ranges and the number of fields are checked; the error names the sender and what would be right."""
    with pytest.raises(BadInput, match=r"hand-over of n1: .*is right"):
        _decoded("n1", msgpack.packb(fields))


@pytest.mark.parametrize("raw", [b"", b"\xc1", b"\xdd\xff\xff\xff\xff", encode(1, 1, "n2", 5) + b"x"])
def test_bytes_that_are_no_message_are_bad_input(raw: bytes) -> None:
    """Empty, invalid, truncated and trailing bytes; a declared length allocates nothing."""
    with pytest.raises(BadInput, match="hand-over of n1: "):
        _decoded("n1", raw)
