"""What one cluster asks of another one fits what that one takes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from aae import wire
from aae.peers import PeerTrees


def test_long_keys_are_handed_over_in_questions_that_are_taken() -> None:
    """Keys of any length that config allows, some hundred at once: each question is one that the other cluster reads,
    each key is in one of them, and what was taken adds up."""
    peer = PeerTrees(["http://127.0.0.1:9"], own=b"o" * 16, timeout_ms=1_000)
    sizes: list[int] = []
    told: list[tuple[bytes, bytes]] = []

    def asked(path: str, question: bytes, decode: Callable[[bytes], Any]) -> Any:
        assert path.startswith(wire.PATHS[3])
        sizes.append(len(question))
        names = wire.decode_repair_asked(question).names
        told.extend(names)
        return decode(wire.encode_repaired(len(names)))

    peer._asked = asked  # type: ignore[method-assign]
    names = [(b"b" * 4_096, b"%04d" % n * 1_024) for n in range(300)] + [(b"b", b"k" * 65_536)] * 2 + [(b"b", b"k")]
    for some in (names, [], names[-1:]):
        told.clear()
        assert asyncio.run(peer.repair("to-east", b"default", some)) == len(some)
        assert told == some
    assert max(sizes) <= wire.QUESTION_BYTES_MAX
    peer.close()
