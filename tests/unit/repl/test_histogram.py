"""Histograms: buckets, their samples for Prometheus, and quantiles."""

from __future__ import annotations

import math

from hypothesis import given, settings
from hypothesis import strategies as st

from isthmus.repl.histogram import Histogram
from tests.support.samples import share

BOUNDS_MS = (1, 2, 5, 10, 100, 1_000)
ADDED = st.lists(st.tuples(st.integers(0, 1_200), st.integers(1, 9)), min_size=1, max_size=30)


def histogram_of(added: list[tuple[int, int]]) -> Histogram[int]:
    """A histogram of (duration in ms, how many)."""
    found = Histogram(BOUNDS_MS)
    for duration_ms, count in added:
        found.add(duration_ms, count)
    return found


def values_of(added: list[tuple[int, int]]) -> list[int]:
    """The same durations one by one."""
    return sorted(duration_ms for duration_ms, count in added for _ in range(count))


@settings(max_examples=share(100), deadline=None, derandomize=True)
@given(ADDED)
def test_buckets_hold_everything_once(added: list[tuple[int, int]]) -> None:
    """Samples are cumulative: each bound counts the durations up to it, the last all; then their number and sum."""
    values, labels = values_of(added), {"kind": "write"}
    bounds = [*BOUNDS_MS, math.inf]
    expected = [
        (
            "d_bucket",
            labels | {"le": "+Inf" if bound == math.inf else f"{bound / 1000:g}"},
            sum(v <= bound for v in values),
        )
        for bound in bounds
    ]
    expected += [("d_count", labels, len(values)), ("d_sum", labels, sum(values) / 1000)]
    assert list(histogram_of(added).samples("d", labels, per_second=1000)) == expected


@settings(max_examples=share(100), deadline=None, derandomize=True)
@given(ADDED, ADDED)
def test_merged_and_then_taken_apart_again(first: list[tuple[int, int]], second: list[tuple[int, int]]) -> None:
    """`merge` gives the histogram of both, and `since` what came after the first: counts and sums."""
    whole = histogram_of(first)
    whole.merge(histogram_of(second))
    both, later = histogram_of(first + second), whole.since(histogram_of(first))
    assert (whole.buckets, whole.total) == (both.buckets, both.total)
    assert (later.buckets, later.total) == (histogram_of(second).buckets, histogram_of(second).total)


@settings(max_examples=share(100), deadline=None, derandomize=True)
@given(ADDED, st.sampled_from([0.001, 0.5, 0.99, 1.0]))
def test_a_quantile_is_in_the_bucket_of_the_true_one(added: list[tuple[int, int]], quantile: float) -> None:
    """`quantile` is the bucket's upper bound, `interpolated_quantile` lies between its bounds; above the last
    bound both are that bound."""
    values, histogram = values_of(added), histogram_of(added)
    true = values[max(1, math.ceil(quantile * len(values))) - 1]
    high = next((bound for bound in BOUNDS_MS if bound >= true), BOUNDS_MS[-1])
    low = max((bound for bound in (0, *BOUNDS_MS) if bound < true), default=0)
    found = histogram.interpolated_quantile(quantile)
    assert found is not None
    assert histogram.quantile(quantile) == high
    assert low <= found <= high


def test_quantiles_of_nothing_are_unknown_and_within_a_bucket_they_are_by_number() -> None:
    """As Prometheus' histogram_quantile: of four durations of 5 to 10 ms the median is said to be 7.5 ms."""
    assert Histogram(BOUNDS_MS).quantile(0.5) is Histogram(BOUNDS_MS).interpolated_quantile(0.5) is None
    assert histogram_of([(9, 4)]).interpolated_quantile(0.5) == 7.5
