"""Unreadable candidates of a first look."""

from __future__ import annotations

import msgpack
import pytest

from isthmus.aae.reconcile.findings import decode_candidates
from isthmus.repl.model.errors import CodecError


@pytest.mark.parametrize("at_ms", [float("inf"), float("nan"), "x", None])
def test_a_time_that_is_no_number_is_refused(at_ms: object) -> None:
    """Infinity, too, which is a number of msgpack and no whole one."""
    with pytest.raises(CodecError, match="first look"):
        decode_candidates(msgpack.packb([at_ms, [], []]))
