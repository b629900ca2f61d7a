"""Delays of a link after results, empty answers and errors, and the jitter of pauses."""

from __future__ import annotations

from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from isthmus.sink.backoff import Backoff, CycleResult, Delays
from tests.support.samples import share

DELAYS = Delays(10, 8_000, 5, 250, 2)
RESULTS = st.sampled_from(list(CycleResult))


@settings(max_examples=share(200), deadline=None, derandomize=True)
@given(
    st.builds(
        Delays, st.integers(1, 50), st.integers(50, 9_000), st.integers(1, 50), st.integers(50, 900), st.integers(1, 10)
    ),
    st.lists(st.tuples(RESULTS, st.integers(0, 5_000)), max_size=30),
)
def test_the_first_success_ends_any_delay_and_errors_cost_more_than_empties(
    delays: Delays, history: list[tuple[CycleResult, int]]
) -> None:
    """After any history, results reset the delay to 0, empty answers keep it small, and errors multiply it up to the
    limit."""
    backoff = Backoff(delays)
    for result, waited_ms in history:
        before, backoff = backoff, backoff.after(result, waited_ms)
        match result:
            case CycleResult.ITEMS:
                assert (backoff.delay_ms, backoff.errors) == (0, 0)
            case CycleResult.EMPTY:
                assert backoff.errors == 0
                assert backoff.delay_ms <= delays.empty_max_ms
                assert waited_ms < delays.empty_max_ms or backoff.delay_ms == 0, "a held fetch needs no pause"
                assert waited_ms >= delays.empty_max_ms or backoff.delay_ms >= delays.empty_min_ms
            case CycleResult.ERROR | CycleResult.FAILED:
                assert backoff.errors == before.errors + 1
                assert delays.min_ms <= backoff.delay_ms <= delays.max_ms
                wanted = max(delays.min_ms, before.delay_ms * delays.factor)
                assert not before.errors or backoff.delay_ms == min(delays.max_ms, wanted)
    assert backoff.after(CycleResult.ITEMS, 0).delay_ms == 0


def test_the_first_error_waits_no_shorter_than_the_empty_answer_before_it() -> None:
    """A link that rests between empty answers is not fetched from sooner because its source fails."""
    resting = Backoff(Delays(), delay_ms=250)
    assert resting.after(CycleResult.EMPTY, 0).delay_ms == 250
    assert resting.after(CycleResult.ERROR, 0).delay_ms == 500


@settings(max_examples=share(100), deadline=None, derandomize=True)
@given(st.integers(0, 8_000), st.integers(0, 99))
def test_pauses_are_spread(delay_ms: int, seed: int) -> None:
    """The pause is between half the delay and the whole, so that many sinks do not fetch in step."""
    pause = Backoff(DELAYS, delay_ms).pause_ms(Random(seed))
    assert delay_ms // 2 <= pause <= delay_ms
