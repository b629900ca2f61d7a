"""The order, shares and rates of written messages, without a socket (H45)."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isthmus.repl.transport.frames import (
    LIST_ITEMS_MAX,
    PIECE_BYTES_MAX,
    FrameKind,
    FrameReader,
    Lane,
    WireFrame,
    unpacked,
)
from isthmus.repl.transport.lanes import (
    BATCH_BYTES,
    CATCH_UP_PIECE_BYTES,
    LIVE_PIECE_BYTES,
    PriorityLanes,
    RateCap,
    Traffic,
)
from tests.support.samples import share

KB = 1024


class FakeTransport:
    """An outbox, and a reader of its frames."""

    def __init__(self, share: int = 20, rate: int = 0) -> None:
        self.sent = Traffic()
        self.cap = RateCap(rate)
        self.box = PriorityLanes(calls=FrameKind.REQUESTS, catch_up_share_percent=share, cap=self.cap, sent=self.sent)
        self.reader = FrameReader(PIECE_BYTES_MAX, 1 << 30)

    def put(self, lane: Lane, number: int, size: int = 0) -> None:
        """An item [number, filling]."""
        item = (b"\x92\xce" + number.to_bytes(4, "big"), b"\xc6" + size.to_bytes(4, "big"), bytes(size))
        self.box.put(lane, item, sum(map(len, item)))

    def batch(self, now_s: float = 0.0) -> tuple[int, list[WireFrame]]:
        parts: list[bytes | memoryview] = []
        length = self.box.batch(now_s, parts)
        data = b"".join(parts)
        assert length == len(data)
        return length, [frame._replace(body=bytes(frame.body)) for frame in self.reader.frames(data)]

    def all(self) -> list[WireFrame]:
        frames = []
        while not self.box.empty:
            frames += self.batch()[1]
        return frames


def numbers(frames: list[WireFrame], lane: Lane) -> list[int]:
    return [item[0] for frame in frames if frame.lane is lane for item in unpacked(frame.body)]


lanes = st.sampled_from([Lane.LIVE, Lane.CALLS, Lane.CATCH_UP])


@settings(max_examples=share(40))
@given(st.lists(st.tuples(lanes, st.integers(0, 300 * KB)), max_size=15), st.integers(1, 90))
def test_each_lane_keeps_its_order_and_loses_nothing(items: list[tuple[Lane, int]], share: int) -> None:
    """Every queued message is sent once, in the order of its lane, in pieces within the limit."""
    wire = FakeTransport(share)
    for number, (lane, size) in enumerate(items):
        wire.put(lane, number, size)
    frames = wire.all()
    for lane in (Lane.LIVE, Lane.CALLS, Lane.CATCH_UP):
        assert numbers(frames, lane) == [number for number, (of, _) in enumerate(items) if of is lane]
        assert wire.box.waiting_bytes(lane) == 0


def test_small_messages_of_one_turn_make_one_frame() -> None:
    """Small messages queued together are sent as one frame, up to the longest list that is accepted."""
    wire = FakeTransport()
    for number in range(LIST_ITEMS_MAX + 1):
        wire.put(Lane.LIVE, number)
    assert [len(unpacked(frame.body)) for frame in wire.all()] == [LIST_ITEMS_MAX, 1]


def test_a_live_message_goes_before_what_waits_to_catch_up() -> None:
    """With megabytes of catch-up waiting, a live message and a ping are in the next batch, ahead of it."""
    wire = FakeTransport()
    wire.put(Lane.CATCH_UP, 0, 4_000 * KB)
    length, frames = wire.batch()
    assert length <= CATCH_UP_PIECE_BYTES + 100
    assert frames == []
    wire.put(Lane.LIVE, 1)
    wire.box.put_urgent(FrameKind.PING, b"ping")
    _, frames = wire.batch()
    assert [frame.lane for frame in frames[:2]] == [Lane.URGENT, Lane.LIVE]


def test_a_batch_never_holds_more_than_one_piece_of_catch_up() -> None:
    """Bytes given to the transport cannot be overtaken, so a batch ends after a piece of catch-up and is never long."""
    wire = FakeTransport(share=90)
    for number in range(50):
        wire.put(Lane.CATCH_UP, number, 100 * KB)
        wire.put(Lane.LIVE, number, 200 * KB)
    while not wire.box.empty:
        before = wire.sent.frames[Lane.CATCH_UP]
        length, _ = wire.batch()
        assert wire.sent.frames[Lane.CATCH_UP] <= before + 1
        assert length <= BATCH_BYTES + LIVE_PIECE_BYTES


@pytest.mark.parametrize("share", [1, 20, 50, 90])
def test_catch_up_gets_its_least_share_of_a_busy_connection(share: int) -> None:
    """While live messages never end, catch-up gets its share of the bytes, and no more."""
    wire = FakeTransport(share)
    wire.put(Lane.CATCH_UP, 0, 100_000 * KB)
    written, live = 0, 0
    while written < 12_000 * KB:
        while wire.box.waiting_bytes(Lane.LIVE) < 300 * KB:
            wire.put(Lane.LIVE, live, 20 * KB)
            live += 1
        written += wire.batch()[0]
    got = wire.sent.bytes[Lane.CATCH_UP] / sum(wire.sent.bytes.values())
    assert share / 100 - 0.02 < got < share / 100 + 0.02


def test_live_messages_and_calls_share_byte_for_byte() -> None:
    """A large request does not delay live messages, nor vice versa."""
    wire = FakeTransport()
    wire.put(Lane.CALLS, 0, 5_000 * KB)
    wire.put(Lane.LIVE, 0, 5_000 * KB)
    for _ in range(20):
        wire.batch()
    counts = Counter({lane: wire.sent.bytes[lane] for lane in (Lane.LIVE, Lane.CALLS)})
    assert abs(counts[Lane.LIVE] - counts[Lane.CALLS]) <= LIVE_PIECE_BYTES + 100


def test_an_idle_catch_up_lane_saves_nothing_up() -> None:
    """Catch-up that begins after long live traffic does not get the share that it did not use."""
    wire = FakeTransport(share=50)
    for number in range(100):
        wire.put(Lane.LIVE, number, 100 * KB)
        wire.batch()
    wire.put(Lane.CATCH_UP, 0, 1_000 * KB)
    wire.put(Lane.LIVE, 100, 100 * KB)
    before = wire.sent.frames[Lane.CATCH_UP]
    wire.batch()
    assert wire.sent.frames[Lane.CATCH_UP] <= before + 1


def test_the_rate_holds_over_all_connections_that_share_it() -> None:
    """Two lanes under one cap of 1 MB a second send 1 MB a second together, and the cap returns the time until the next
    batch."""
    one, other = FakeTransport(rate=1_000_000), FakeTransport()
    other.box = PriorityLanes(calls=FrameKind.ANSWERS, catch_up_share_percent=20, cap=one.cap, sent=one.sent)
    one.put(Lane.CATCH_UP, 0, 10_000_000)
    other.put(Lane.CATCH_UP, 0, 10_000_000)
    now_s = 0.0
    while now_s < 5:
        while one.batch(now_s)[0] or other.batch(now_s)[0]:
            pass
        wait_s = one.box.catch_up_wait_s(now_s)
        assert 0 < wait_s < 0.1
        now_s += wait_s
    assert 4_900_000 < one.sent.bytes[Lane.CATCH_UP] < 5_200_000


def test_the_rate_limit_does_not_delay_live_messages() -> None:
    """An exhausted cap stops catch-up alone."""
    wire = FakeTransport(rate=100_000)
    wire.put(Lane.CATCH_UP, 0, 1_000 * KB)
    while wire.batch()[0]:
        pass
    for number in range(10):
        wire.put(Lane.LIVE, number, 100 * KB)
    sent = wire.sent.frames[Lane.CATCH_UP]
    live = []
    while len(live) < 10:
        live += numbers(wire.batch()[1], Lane.LIVE)
    assert wire.sent.frames[Lane.CATCH_UP] == sent
