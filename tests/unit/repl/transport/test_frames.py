"""Frames: any split of the stream gives the same frames, and hostile bytes end in a fault."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isthmus.repl.transport.frames import (
    CHUNKS_MAX,
    FIRST_BYTES_MAX,
    HEADER_BYTES,
    PIECE_BYTES_MAX,
    FrameFault,
    FrameKind,
    FrameReader,
    Lane,
)
from tests.support.link_nodes import framed


def frames_of(reader: FrameReader, *chunks: bytes) -> list[tuple[FrameKind, Lane, bytes]]:
    return [(frame.kind, frame.lane, bytes(frame.body)) for chunk in chunks for frame in reader.frames(chunk)]


bodies = st.lists(st.tuples(st.sampled_from(FrameKind), st.sampled_from(Lane), st.binary(max_size=400)), max_size=6)


@given(bodies, st.lists(st.integers(0, 3000), max_size=30))
def test_frames_do_not_depend_on_how_the_stream_is_cut(
    sent: list[tuple[FrameKind, Lane, bytes]], cuts: list[int]
) -> None:
    """Every cut of the same bytes into chunks gives the same frames in the same order."""
    stream = b"".join(framed(kind, body, lane) for kind, lane, body in sent)
    ends = sorted({min(cut, len(stream)) for cut in cuts} | {0, len(stream)})
    chunks = [stream[a:b] for a, b in pairwise(ends)]
    assert frames_of(FrameReader(PIECE_BYTES_MAX, 1 << 20), *chunks) == sent


def test_pieces_of_different_lanes_may_alternate() -> None:
    """A body in pieces is joined even if other lanes send frames in between, whole or in pieces."""
    stream = (
        framed(FrameKind.MESSAGES, b"one ", Lane.CATCH_UP, more=True)
        + framed(FrameKind.MESSAGES, b"live", Lane.LIVE)
        + framed(FrameKind.ANSWERS, b"ans", Lane.CALLS, more=True)
        + framed(FrameKind.MESSAGES, b"two ", Lane.CATCH_UP, more=True)
        + framed(FrameKind.PING, b"p")
        + framed(FrameKind.ANSWERS, b"wer", Lane.CALLS)
        + framed(FrameKind.MESSAGES, b"three", Lane.CATCH_UP)
        + framed(FrameKind.MESSAGES, b"again", Lane.CATCH_UP)
    )
    assert [body for _, _, body in frames_of(FrameReader(PIECE_BYTES_MAX, 1 << 20), stream)] == [
        b"live", b"p", b"answer", b"one two three", b"again",
    ]  # fmt: skip


def test_one_flipped_bit_is_seen() -> None:
    """No bit of a frame may differ: the frame ends in a fault, or (a longer length) is never complete."""
    good = framed(FrameKind.MESSAGES, b"some body", Lane.LIVE)
    for bit in range(len(good) * 8):
        bad = bytearray(good)
        bad[bit // 8] ^= 1 << bit % 8
        reader = FrameReader(PIECE_BYTES_MAX, 1 << 20)
        try:
            assert frames_of(reader, bytes(bad)) == []
        except FrameFault:
            continue
        assert reader.waited_ms(10) == 10


def header(magic: int = 0xA9B1, kind: int = 6, flags: int = 1, length: int = 4) -> bytes:
    return magic.to_bytes(2, "little") + bytes((kind, flags)) + length.to_bytes(4, "little") + b"\0" * 8


@pytest.mark.parametrize(
    ("reason", "hostile"),
    [
        ("magic", b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"),
        ("magic", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\0" * 20),
        ("too-long", header(length=(1 << 32) - 1)),
        ("too-long", header(length=PIECE_BYTES_MAX + 1)),
        ("unknown-kind", header(kind=0)),
        ("unknown-kind", header(kind=99)),
        ("unknown-kind", header(flags=4)),
        ("checksum", header() + b"body"),
        ("pieces", framed(FrameKind.MESSAGES, b"a", Lane.LIVE, more=True) + framed(FrameKind.ANSWERS, b"b", Lane.LIVE)),
        ("pieces", framed(FrameKind.MESSAGES, b"a", Lane.LIVE, more=True) + framed(FrameKind.MESSAGES, b"", Lane.LIVE)),
        ("too-long", framed(FrameKind.MESSAGES, b"a" * 600, Lane.LIVE, more=True) * 2),
    ],
)
def test_hostile_frames_are_named(reason: str, hostile: bytes) -> None:
    """Each kind of invalid frame has its reason, as soon as the header is there."""
    with pytest.raises(FrameFault) as caught:
        frames_of(FrameReader(PIECE_BYTES_MAX, 1000), hostile)
    assert caught.value.reason == reason


def test_a_size_is_checked_before_the_body_comes() -> None:
    """Sixteen bytes are enough to refuse a frame over the limit of the moment."""
    with pytest.raises(FrameFault, match=f"at most {FIRST_BYTES_MAX}"):
        frames_of(FrameReader(FIRST_BYTES_MAX, FIRST_BYTES_MAX), header(length=FIRST_BYTES_MAX + 1))


def test_random_bytes_never_do_more_than_fault() -> None:
    """Noise, and noise behind a good frame, end in a fault or wait for more; nothing else is raised."""
    chance = random.Random(20)
    for _ in range(2000):
        reader = FrameReader(PIECE_BYTES_MAX, 1 << 20)
        noise = chance.randbytes(chance.randrange(1, 200))
        start = framed(FrameKind.PING, b"p") if chance.random() < 0.5 else b"\xb1\xa9\x06\x01"
        try:
            frames_of(reader, start + noise, chance.randbytes(40))
        except FrameFault:
            continue


def test_bytes_that_drip_in_cost_no_more_than_their_number() -> None:
    """A frame that comes byte by byte is kept in few chunks, and is whole in the end."""
    reader = FrameReader(PIECE_BYTES_MAX, 1 << 20)
    stream = framed(FrameKind.MESSAGES, b"x" * 5000, Lane.LIVE)
    for at in range(len(stream) - 1):
        assert frames_of(reader, stream[at : at + 1]) == []
        assert len(reader._chunks) <= CHUNKS_MAX + 1
    assert len(frames_of(reader, stream[-1:])) == 1


def test_a_partial_frame_has_a_deadline() -> None:
    """An incomplete frame, and a body with missing pieces, age until they continue; an idle stream does not."""
    reader = FrameReader(PIECE_BYTES_MAX, 1 << 20)
    whole = framed(FrameKind.MESSAGES, b"x" * 100, Lane.LIVE)
    assert reader.waited_ms(10) == 0
    frames_of(reader, whole[:HEADER_BYTES])
    assert reader.waited_ms(10) == 10
    frames_of(reader, whole[HEADER_BYTES:50])
    assert reader.waited_ms(10) == 20
    frames_of(reader, whole[50:])
    assert reader.waited_ms(10) == 0
    piece = framed(FrameKind.MESSAGES, b"x", Lane.CATCH_UP, more=True)
    frames_of(reader, piece)
    frames_of(reader, whole)
    assert reader.waited_ms(10) == 10
    frames_of(reader, piece)
    assert reader.waited_ms(5) == 5
