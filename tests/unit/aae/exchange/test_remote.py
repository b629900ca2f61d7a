"""Requests that one cluster sends to another one fit the limits of the receiver."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgpack
import pytest

from isthmus.aae.exchange import wire
from isthmus.aae.exchange.remote import PeerTrees
from isthmus.repl.clock import SystemTime
from isthmus.repl.clock_offsets import ClockOffsets
from isthmus.repl.http.client import HttpRefused
from isthmus.repl.model.errors import CodecError

CLOCKS = ClockOffsets("peer", SystemTime())


async def test_long_keys_are_handed_over_in_questions_that_are_taken() -> None:
    """For some hundred keys of any length that config allows, each request is one that the other cluster accepts, each
    key is in one of them, and the accepted counts add up."""
    peer = PeerTrees(["http://127.0.0.1:9"], own=b"o" * 16, timeout_ms=1_000, clocks=CLOCKS)
    sizes: list[int] = []
    told: list[tuple[bytes, bytes]] = []

    def asked(path: str, question: bytes, decode: Callable[[bytes], Any]) -> Any:
        assert path.startswith(wire.PATHS[3])
        sizes.append(len(question))
        names = wire.decode_repair_request(question).names
        told.extend(names)
        return decode(wire.encode_repair_response(len(names)))

    peer._post = asked  # type: ignore[method-assign]
    names = [(b"b" * 4_096, b"%04d" % n * 1_024) for n in range(300)] + [(b"b", b"k" * 65_536)] * 2 + [(b"b", b"k")]
    for some in (names, [], names[-1:]):
        told.clear()
        assert await peer.repair("to-east", b"default", some) == len(some)
        assert told == some
    assert max(sizes) <= wire.REQUEST_BYTES_MAX
    peer.close()


@pytest.mark.parametrize("status", [401, 403])
async def test_a_node_with_an_old_token_does_not_answer_for_the_others(status: int) -> None:
    """If one node refuses for a reason of its own, another one is asked; an error in the request itself is reported at
    once. If all refuse, the error names them."""
    peer = PeerTrees(
        ["http://127.0.0.1:9", "http://127.0.0.1:10"],
        own=b"o" * 16,
        timeout_ms=1_000,
        clocks=ClockOffsets("peer", SystemTime()),
    )
    asked: list[int] = []

    def post_of(node: int, status: int) -> Callable[..., bytes]:
        def post(*_: Any, **__: Any) -> bytes:
            asked.append(node)
            if status:
                raise HttpRefused("no", status, "x")
            return wire.encode_peer_response(wire.PeerResponse(b"p" * 16, "west", wire.encode_repair_response(1)))

        return post

    async def answers(first: int, second: int) -> int:
        asked.clear()
        peer._first = 0
        peer._peers[0].post = post_of(0, first)  # type: ignore[method-assign]
        peer._peers[1].post = post_of(1, second)  # type: ignore[method-assign]
        return await peer.repair("to-east", b"default", [(b"b", b"k")])

    try:
        assert await answers(status, 0) == 1
        assert asked == [0, 1]
        with pytest.raises(HttpRefused, match="no"):
            await answers(status, status)
        with pytest.raises(HttpRefused, match="no"):
            await answers(404, 0)
        assert asked == [0]
    finally:
        peer.close()


@pytest.mark.parametrize("compress", ["", wire.ZSTD])
def test_an_answer_has_the_clock_where_it_was_asked_for(compress: str) -> None:
    """With and without compression; an answer without it, as of an earlier version, is read as well."""
    for wall_ms in (None, 0, 1_700_000_000_000):
        told = wire.PeerResponse(b"p" * 16, "west", b"x" * 2_000, wall_ms)
        assert wire.decode_peer_response(wire.encode_peer_response(told, compress)) == told
    for wrong in (-1, True, "now"):
        data = msgpack.packb([1, b"p" * 16, "west", b"x", wrong])
        with pytest.raises(CodecError):
            wire.decode_peer_response(data)


async def test_answers_of_a_peer_tell_its_clock() -> None:
    """Each request asks for the clock; an answer that has it is a sample under the peer's address."""
    clocks = ClockOffsets("peer", SystemTime())
    peer = PeerTrees(["http://127.0.0.1:9"], own=b"o" * 16, timeout_ms=1_000, compress=True, clocks=clocks)
    wall: list[int | None] = [None]

    def post(path: str, *_: Any, **__: Any) -> bytes:
        assert path.endswith("?clock=1&compress=zstd")
        body = wire.encode_repair_response(1)
        return wire.encode_peer_response(wire.PeerResponse(b"p" * 16, "west", body, wall[0]))

    peer._peers[0].post = post  # type: ignore[method-assign]
    await peer.repair("q", b"default", [(b"b", b"k")])
    assert clocks.known() == {}
    wall[0] = SystemTime().wall_ms() + 30_000
    await peer.repair("q", b"default", [(b"b", b"k")])
    found = clocks.known()["http://127.0.0.1:9"]
    assert abs(found.offset_ms - 30_000) < 1_000
    peer.close()
