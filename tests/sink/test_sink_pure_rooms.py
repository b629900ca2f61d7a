"""Claims about the sink's pure rooms: delays, who fetches next, lag, what a suspension covers."""

from __future__ import annotations

import asyncio
import math
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from repl.metastore.memory import MemoryMetastore, WriteFault
from repl.model.errors import BadInput, CodecError, Overloaded
from sink.backoff import EMPTY_MAX_MS, Backoff, Result
from sink.lag import SLICE_MS, SLICES, Lag, LagHistogram
from sink.roster import LinkName, Roster
from sink.suspensions import SUSPENSIONS_MAX, Suspension, added, change, decode, encode, read, without

A, B = LinkName("q", "http://east"), LinkName("q", "http://north")
_results = st.sampled_from(list(Result))


# ---------------------------------------------------------------- back-off


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.lists(st.tuples(_results, st.integers(0, 5_000)), max_size=30))
def test_the_first_success_ends_any_delay_and_errors_cost_more_than_empties(history: list[tuple[Result, int]]) -> None:
    """Whatever came before: results bring the delay to 0, empties keep it small, errors double it up to the bound."""
    backoff = Backoff(10, 8_000)
    for result, waited_ms in history:
        before, backoff = backoff, backoff.after(result, waited_ms)
        match result:
            case Result.ITEMS:
                assert (backoff.delay_ms, backoff.errors) == (0, 0)
            case Result.EMPTY:
                assert backoff.errors == 0
                assert backoff.delay_ms <= EMPTY_MAX_MS
                assert waited_ms < EMPTY_MAX_MS or backoff.delay_ms == 0, "a held fetch needs no pause"
            case Result.ERROR | Result.FAILED:
                assert backoff.errors == before.errors + 1
                assert 10 <= backoff.delay_ms <= 8_000
                assert not before.errors or backoff.delay_ms == min(8_000, 2 * before.delay_ms)
    assert backoff.after(Result.ITEMS, 0).delay_ms == 0


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.integers(0, 8_000), st.integers(0, 99))
def test_pauses_are_spread(delay_ms: int, seed: int) -> None:
    """The pause lies between half the delay and the whole, so that many sinks do not march in step."""
    pause = Backoff(10, 8_000, delay_ms).pause_ms(Random(seed))
    assert delay_ms // 2 <= pause <= delay_ms


# ---------------------------------------------------------------- roster


@settings(max_examples=150, deadline=None, derandomize=True)
@given(st.data())
def test_the_roster_keeps_its_rules_under_any_order_of_results(data: st.DataObject) -> None:
    """At most the slots of a link run, none of a suspended one begins, a failing source is probed by one slot, and
    when nobody may go the roster says when somebody may."""
    slots, now = 2, 0
    roster = Roster([A, B], slots, 10, 1_000, Random(data.draw(st.integers(0, 9))))
    running: list[tuple[LinkName, int]] = []
    failing = {A: False, B: False}
    for _ in range(data.draw(st.integers(1, 40))):
        match data.draw(st.sampled_from(["take", "take", "report", "time", "suspend", "resume"])):
            case "take":
                alone = {name: roster.running(name) == 0 for name in (A, B)}
                taken = roster.take(now)
                due = roster.next_due_ms()
                if taken is None:
                    assert due is None or due > now
                    continue
                assert taken not in running
                assert not roster.suspended(taken[0])
                assert alone[taken[0]] or not failing[taken[0]]
                running.append(taken)
            case "report" if running:
                name, slot = running.pop(data.draw(st.integers(0, len(running) - 1)))
                result = data.draw(_results)
                failing[name] = result is Result.ERROR
                roster.report(name, slot, result, now, data.draw(st.sampled_from([0, 5_000])))
            case "time":
                now += data.draw(st.sampled_from([1, 100, 10_000]))
            case "suspend":
                roster.suspend(data.draw(st.sampled_from([A, B])), True)
            case "resume":
                roster.suspend(data.draw(st.sampled_from([A, B])), False)
        for name in (A, B):
            assert roster.running(name) == len(roster.running_slots(name)) <= slots
    for name in (A, B):
        roster.suspend(name, False)
    for name, slot in running:
        roster.report(name, slot, Result.ITEMS, now, 0)
    assert {roster.take(now + 1_000), roster.take(now + 1_000)} - {None}, "everything is taken up again"


def test_a_busy_link_does_not_starve_the_others() -> None:
    """One worker serves links in turn, however eager one of them is."""
    roster = Roster([A, B], 2, 10, 1_000, Random(1))
    order = []
    for _ in range(8):
        taken = roster.take(0)
        assert taken is not None
        order.append(taken[0])
        roster.report(*taken, Result.ITEMS, 0, 0)
    assert order.count(A) == order.count(B) == 4


def test_a_slot_whose_changes_were_not_stored_need_not_wait_for_the_others() -> None:
    """Only a source that fails is probed by one slot; a failed push is told to the source after its delay, while
    another slot waits there in a long poll."""
    roster = Roster([A], 2, 10, 1_000, Random(1))
    first, second = roster.take(0), roster.take(0)
    assert first is not None
    assert second is not None
    roster.report(*first, Result.FAILED, 0, 0)
    assert roster.take(0) is None
    assert roster.take(10) == first
    roster.report(*first, Result.ERROR, 10, 0)
    assert roster.take(10_000) is None
    assert roster.next_due_ms() is None
    roster.report(*second, Result.EMPTY, 10_000, 5_000)
    assert roster.take(10_000) is not None


# ---------------------------------------------------------------- lag


@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    st.lists(st.tuples(st.integers(0, 10_000_000), st.integers(1, 5)), min_size=1, max_size=40),
    st.sampled_from([0.0, 0.5, 0.9, 0.99, 1.0]),
)
def test_quantiles_are_right_within_five_percent(lags: list[tuple[int, int]], quantile: float) -> None:
    """A quantile is never below the true one and at most 5 % above it, exact below 128 ms."""
    histogram = LagHistogram()
    values = []
    for lag_ms, count in lags:
        histogram.add(lag_ms, count)
        values += [lag_ms] * count
    true = sorted(values)[max(1, math.ceil(quantile * len(values))) - 1]
    told = histogram.quantile_ms(quantile)
    assert told is not None
    assert true <= told <= (true if true < 128 else true * 1.05 + 1)


def test_recent_lag_forgets_and_lag_since_the_start_does_not() -> None:
    """After a minute without changes the recent lag is unknown; clocks that disagree never give a lag below zero."""
    lag = Lag()
    assert lag.all.quantile_ms(0.5) is lag.recent(0).quantile_ms(0.5) is None
    lag.note([500, 990, 2_000], 1_000)
    assert lag.all.quantile_ms(1.0) == lag.recent(1_000).quantile_ms(1.0)
    assert lag.recent(1_000).quantile_ms(0.0) == 0
    assert lag.recent(SLICES * SLICE_MS).quantile_ms(0.5) is None
    assert lag.all.total == 3
    for n in range(100):
        lag.note([0], n * SLICE_MS)
    assert lag.recent(99 * SLICE_MS).total == SLICES
    assert len(lag._slices) <= SLICES, "old slices are let go"


# ---------------------------------------------------------------- suspensions

_names = st.sampled_from([None, "q", "r"])
_peers = st.sampled_from([None, "http://east", "http://north"])
_LINKS = [LinkName(queue, peer) for queue in ("q", "r") for peer in ("http://east", "http://north")]


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.lists(st.tuples(_names, _peers), max_size=4), _names, _peers)
def test_a_resume_that_is_not_refused_frees_what_it_covers(
    acts: list[tuple[str | None, str | None]], queue: str | None, peer: str | None
) -> None:
    """After suspensions every link they name is held; a resume frees at least one of those it names, or says who
    holds them, or there was none."""
    held: tuple[Suspension, ...] = ()
    for at_ms, act in enumerate(acts):
        held = added(held, Suspension(*act, "ann", at_ms, ""))
        assert len({(s.queue, s.peer) for s in held}) == len(held)
    assert decode(encode(held)) == held
    named = [link for link in _LINKS if queue in (None, link.queue) and peer in (None, link.peer)]
    before = [link for link in named if any(s.fits(link) for s in held)]
    try:
        after = without(held, queue, peer)
    except BadInput:
        assert before, "refused though nothing that was named is held"
        return
    freed = [link for link in before if not any(s.fits(link) for s in after)]
    assert freed or not before or len(after) < len(held)
    if queue is None and peer is None:
        assert after == ()


def test_suspensions_are_bounded() -> None:
    """Beyond the limit one more is refused; replacing one is not one more."""
    held: tuple[Suspension, ...] = ()
    for n in range(SUSPENSIONS_MAX):
        held = added(held, Suspension(f"q{n}", None, "ann", 0, ""))
    with pytest.raises(BadInput, match=str(SUSPENSIONS_MAX)):
        added(held, Suspension("one more", None, "ann", 0, ""))
    assert len(added(held, Suspension("q0", None, "bob", 1, ""))) == SUSPENSIONS_MAX


@pytest.mark.parametrize("value", [b"", b"{}x", b"7", b'["x"]', b'[{"queue": null}]', b'[{"queue":1,"peer":2,"by":3}]'])
def test_a_value_that_is_no_list_of_suspensions_is_told(value: bytes) -> None:
    """What somebody else wrote into the metastore is a CodecError, not a crash."""
    with pytest.raises(CodecError):
        decode(value)


def test_a_suspension_is_written_through_conflicts_and_lost_answers() -> None:
    """Whatever becomes of single writes, an act is kept once or refused in words."""

    async def run() -> None:
        metastore = MemoryMetastore()
        await metastore.start(lambda state: None)
        for number, fault in enumerate(WriteFault):
            metastore.spoil(fault)
            act = Suspension(f"q{number}", None, "ann", 5, "why")
            held = await change(metastore, act, act.queue, None)
            assert held.count(act) == 1
            metastore.deliver_late()
            assert await read(metastore) == held
        assert await change(metastore, None, None, None) == ()
        assert await read(metastore) == ()
        metastore.disconnect()
        with pytest.raises(Overloaded, match="metastore"):
            await change(metastore, None, None, None)

    asyncio.run(run())
