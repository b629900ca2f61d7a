"""Quantiles of lag, and the recent lag."""

from __future__ import annotations

import math

from hypothesis import given, settings
from hypothesis import strategies as st

from isthmus.sink.lag import SLICE_MS, SLICES, Lag
from tests.support.samples import share


@settings(max_examples=share(150), deadline=None, derandomize=True)
@given(
    st.lists(st.tuples(st.integers(0, 10_000_000), st.integers(1, 5)), min_size=1, max_size=40),
    st.sampled_from([0.001, 0.5, 0.9, 0.99, 1.0]),
)
def test_quantiles_are_right_within_five_percent(lags: list[tuple[int, int]], quantile: float) -> None:
    """A quantile is never below the true one and at most 5 % above it, exact below 128 ms."""
    lag = Lag()
    values = []
    for lag_ms, count in lags:
        lag.note([-lag_ms] * count, 0)
        values += [lag_ms] * count
    true = sorted(values)[max(1, math.ceil(quantile * len(values))) - 1]
    told = lag.all.quantile(quantile)
    assert told is not None
    assert told == lag.recent(0).quantile(quantile)
    assert true <= told <= (true if true < 128 else true * 1.05 + 1)


def test_recent_lag_is_windowed_and_lag_since_the_start_is_not() -> None:
    """After a minute without changes the recent lag is unknown; clocks that disagree never give a lag below zero."""
    lag = Lag()
    assert lag.all.quantile(0.5) is lag.recent(0).quantile(0.5) is None
    lag.note([500, 990, 2_000], 1_000)
    assert lag.all.quantile(1.0) == lag.recent(1_000).quantile(1.0)
    assert lag.recent(1_000).quantile(0.01) == 0
    assert lag.recent(SLICES * SLICE_MS).quantile(0.5) is None
    assert sum(lag.all.buckets) == 3
    for n in range(100):
        lag.note([0], n * SLICE_MS)
    assert sum(lag.recent(99 * SLICE_MS).buckets) == SLICES
    assert len(lag._slices) <= SLICES, "old slices are let go"
    back_ms = 50 * SLICE_MS
    assert sum(lag.recent(back_ms).buckets) == 0, "a clock that was set back: nothing is of its minute"
    lag.note([back_ms - 7], back_ms)
    assert sum(lag.recent(back_ms).buckets) == 1
    assert lag.recent(back_ms).quantile(1.0) == 7
