"""How many seeds and examples a run takes: a share of them in `make test`, all in `.ci/run` and `make test-all`.

What a test says of each seed or example holds either way. That all faults occurred is counted where all are taken:
tests of that alone are skipped in `make test` (`COUNTS`). Seeds that once found a defect are always run.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final

import pytest

WHOLE: Final = os.environ.get("ISTHMUS_TEST_SAMPLES") == "whole"
"""Whether this run takes all of them."""

COUNTS: Final = pytest.mark.skipif(not WHOLE, reason="counts over all seeds: ISTHMUS_TEST_SAMPLES=whole")
"""For a test that does nothing but count what happened over all seeds."""

QUICK_PERCENT: Final = 12
"""The share that a quick run takes."""

SEEDS_LEAST_COUNT: Final = 3
EXAMPLES_LEAST_COUNT: Final = 12
"""What a quick run takes at least. A seed is a cluster's life of minutes, an example a call of a function."""


def share(count: int, least_count: int = EXAMPLES_LEAST_COUNT) -> int:
    """How many of `count` examples this run takes."""
    return count if WHOLE else min(count, max(least_count, count * QUICK_PERCENT // 100))


def seeds(whole: range) -> range:
    """Those of some seeds that this run takes: the first."""
    return whole[: share(len(whole), SEEDS_LEAST_COUNT)]


def floors(expected: Mapping[str, int]) -> Mapping[str, int]:
    """What must have happened how often over the seeds of this run, from what must over all of them.

    In a few seeds the most frequent event alone is certain, and must happen at all.
    """
    return expected if WHOLE else {max(expected, key=lambda name: expected[name]): 1}
