"""Offsets of other clocks: how exact they are, which sample counts, and what is not known any more."""

from __future__ import annotations

import pytest

from isthmus.repl.clock_offsets import HELP, KEEP_MS, OTHERS_MAX, STALE_MS, ClockOffset, ClockOffsets

START = 1_700_000_000_000


class Clock:
    """A monotonic clock, and a wall clock."""

    def __init__(self) -> None:
        self.ms = 5_000
        self.wall = START

    def now_ms(self) -> int:
        """Monotonic."""
        return self.ms

    def wall_ms(self) -> int:
        """Wall clock."""
        return self.wall + self.ms


def answer(offsets: ClockOffsets, clock: Clock, ahead_ms: int, there_ms: int, back_ms: int, name: str = "b") -> None:
    """An answer of a node whose clock is `ahead_ms`, after so long a way there and back."""
    clock.ms += there_ms
    wall_ms = clock.wall_ms() + ahead_ms
    clock.ms += back_ms
    offsets.answered(name, wall_ms, there_ms + back_ms)


@pytest.mark.parametrize("ahead_ms", [-600_000, -30_000, 0, 30_000, 600_000])
@pytest.mark.parametrize(("there_ms", "back_ms"), [(0, 0), (10, 10), (400, 0), (0, 400)])
def test_an_offset_is_within_its_bound(ahead_ms: int, there_ms: int, back_ms: int) -> None:
    """However the round trip is divided, the true offset is within half of it, and the clocks differ by at least what
    is left of it (R-CLOCK)."""
    clock = Clock()
    offsets = ClockOffsets("node", clock)
    answer(offsets, clock, ahead_ms, there_ms, back_ms)
    found = offsets.known()["b"]
    assert found.bound_ms == (there_ms + back_ms) / 2
    assert abs(found.offset_ms - ahead_ms) <= found.bound_ms
    assert found.least_ms <= abs(ahead_ms) <= found.most_ms


def test_the_most_exact_sample_counts_until_it_is_old_or_contradicted() -> None:
    """A slow answer says less than a fast one of the same minute, unless it shows that a clock was set meanwhile."""
    clock = Clock()
    offsets = ClockOffsets("node", clock)
    answer(offsets, clock, 500, 5, 5)
    answer(offsets, clock, 500, 400, 0)
    assert offsets.known()["b"] == ClockOffset(500, 5, 5_010)
    answer(offsets, clock, 30_000, 400, 0)
    assert offsets.known()["b"].offset_ms == 30_000 + 200, "its clock was set"
    answer(offsets, clock, 30_000, 5, 5)
    clock.wall -= 60_000
    answer(offsets, clock, 30_000 + 60_000, 50, 50)
    assert offsets.known()["b"].offset_ms == 90_000, "ours was set"
    clock.ms += KEEP_MS + 1
    answer(offsets, clock, 90_100, 100, 100)
    assert offsets.known()["b"].bound_ms == 100


def test_what_was_not_heard_for_long_is_not_known() -> None:
    """An offset is shown for a quarter of an hour, and of those asked for alone; the memory of others is bounded."""
    clock = Clock()
    offsets = ClockOffsets("peer", clock)
    answer(offsets, clock, 7, 0, 0, "a")
    clock.ms += STALE_MS
    answer(offsets, clock, 8, 0, 0, "b")
    assert set(offsets.known()) == {"a", "b"}
    assert set(offsets.known(["b", "c"])) == {"b"}
    clock.ms += 1
    assert set(offsets.known()) == {"b"}
    samples = list(offsets.metrics())
    assert [(name, labels, value) for name, labels, value in samples] == [
        ("isthmus_clock_offset_seconds", {"node": "", "peer": "b"}, 0.008),
        ("isthmus_clock_offset_bound_seconds", {"node": "", "peer": "b"}, 0.0),
    ]
    assert {name for name, _, _ in samples} == HELP.keys()
    for number in range(OTHERS_MAX):
        answer(offsets, clock, 1, 0, 0, f"n{number}")
    assert len(offsets.known()) == OTHERS_MAX
    assert "b" not in offsets.known()
