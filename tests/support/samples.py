"""How many seeds and examples a run takes: a share of them in `make test`, all in `.ci/run` and `make test-all`.

Claims about each seed or example are checked in both. That all faults occurred is checked only in runs that take all
seeds: tests that check nothing else are skipped in `make test` (`COUNTS`). Seeds that once found a defect are always
run.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final

import pytest

WHOLE: Final = os.environ.get("ISTHMUS_TEST_SAMPLES") == "whole"
"""Whether this run takes all seeds and examples."""

COUNTS: Final = pytest.mark.skipif(not WHOLE, reason="counts over all seeds: ISTHMUS_TEST_SAMPLES=whole")
"""Marks a test that only counts what happened over all seeds."""

QUICK_PERCENT: Final = 8
"""The share that a quick run takes."""

SEEDS_LEAST_COUNT: Final = 3
EXAMPLES_LEAST_COUNT: Final = 12
"""The minimum of a quick run. A seed simulates minutes of a cluster's life, an example is one function call."""


def share(count: int, least_count: int = EXAMPLES_LEAST_COUNT) -> int:
    """How many of `count` examples this run takes."""
    return count if WHOLE else min(count, max(least_count, count * QUICK_PERCENT // 100))


def seeds(whole: range) -> range:
    """The seeds that this run takes: the first ones."""
    return whole[: share(len(whole), SEEDS_LEAST_COUNT)]


def long_seeds(whole: range, quick_count: int) -> list[object]:
    """The seeds that this run takes of a simulation that is dear: those behind the first `quick_count` are slow tests,
    so that `.ci/run` ends in time; `make test-all` runs them all."""
    quick = whole[:quick_count]
    return [pytest.param(seed, marks=() if seed in quick else pytest.mark.slow) for seed in seeds(whole)]


def floors(expected: Mapping[str, int]) -> Mapping[str, int]:
    """How often each fault must have occurred over the seeds of this run, given the numbers for all seeds. In a few
    seeds only the most frequent one is certain to occur; it must occur at least once."""
    return expected if WHOLE else {max(expected, key=lambda name: expected[name]): 1}
