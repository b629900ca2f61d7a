"""Limits of rates: how much may be fetched when, and which limit binds."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from isthmus.queues.rate_limit import Rates, Throttle
from tests.support.samples import share


@settings(max_examples=share(60), deadline=None, derandomize=True)
@given(
    st.integers(1, 50_000),
    st.integers(0, 5_000),
    st.lists(st.tuples(st.integers(0, 3_000), st.integers(1, 600), st.integers(1, 90_000)), min_size=1, max_size=20),
)
def test_no_more_is_fetched_than_the_rates_allow(
    byte_rate: int, object_rate: int, fetches: list[tuple[int, int, int]]
) -> None:
    """For any sequence of fetches: before each one, no more was taken than the rate allows, plus one second's worth and
    one batch; the time in which no fetch may begin is counted as throttled."""
    throttle = Throttle(Rates(byte_rate, object_rate), 0)
    now = took_bytes = took_objects = blocked = 0
    last = (0, 0)
    for pause, count, size in fetches:
        now += pause
        wait = throttle.wait_ms(now)
        blocked += wait
        now += wait
        assert took_bytes - last[0] <= byte_rate * (1 + now / 1000) + 1
        assert not object_rate or took_objects - last[1] <= object_rate * (1 + now / 1000) + 1
        room, space = throttle.allowance(count, 4_000_000, now)
        assert 1 <= room <= count
        assert space >= 1
        throttle.spend(room, size, now)
        took_bytes, took_objects, last = took_bytes + size, took_objects + room, (size, room)
    told = throttle.as_dict(now + 10**12)
    assert told["throttled_seconds"] * 1000 >= blocked
    assert told["binding"] is None
    assert told["achieved"] == {"bytes_per_second": 0, "objects_per_second": 0}


def test_the_limit_that_binds_is_named_and_a_new_one_counts_at_once() -> None:
    """The limit that delays fetches longer is named; lifting it ends the wait and its count."""
    throttle = Throttle(Rates(bytes=1_000_000, objects=100), 0)
    assert throttle.wait_ms(0) == 0
    assert throttle.allowance(512, 4_000_000, 0) == (100, 1_000_000)
    throttle.spend(300, 500_000, 0)
    told = throttle.as_dict(0)
    assert told["binding"] == "objects"
    assert told["achieved"] == {"bytes_per_second": 500_000, "objects_per_second": 300}
    assert 1_900 <= throttle.wait_ms(100) <= 2_000
    throttle.change(Rates(bytes=1_000_000), 500)
    assert throttle.wait_ms(500) == 0
    assert throttle.as_dict(500)["throttled_seconds"] == 0.5
    throttle.spend(1, 3_000_000, 500)
    assert throttle.as_dict(500)["binding"] == "bytes"
    assert Throttle(Rates(), 0).allowance(512, 4_000_000, 0) == (512, 4_000_000)
