"""The replicas of a node as other nodes receive them."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest

from isthmus.aae.row_stream.plan import ReplicaStatus, _decode
from isthmus.repl.model.errors import CodecError

ROWS: list[list[Any]] = [[3, True, True, 7, 1 << 40, 12], [4, False, True, 7, 9, None]]


def test_replicas_of_version_1_are_decoded() -> None:
    """The bytes that earlier versions send give the same replicas."""
    assert _decode(msgpack.packb([1, ROWS])) == [ReplicaStatus(*row) for row in ROWS]


@pytest.mark.parametrize("bad", [[2, ROWS], [1, [[-1, True, True, 7, 1, 1]]], [1, [[1, 1, True, 7, 1, 1]]], [1], b"x"])
def test_other_messages_are_refused(bad: object) -> None:
    """Another version, a negative number, a number for a flag, a missing field."""
    with pytest.raises(CodecError, match="not a list of replicas"):
        _decode(msgpack.packb(bad))
