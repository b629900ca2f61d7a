"""How a node's process uses the Python interpreter: who yields to whom, and when garbage is looked for."""

from __future__ import annotations

import gc
import sys
from typing import Final

SWITCH_INTERVAL_S: Final = 0.0005
"""How long one Python thread may keep others waiting. The default of 5 ms is the p50 of a sync beside a busy
loop; this brings it under 1 ms."""

GC_THRESHOLDS: Final = (50_000, 20, 20)
"""The hot path makes tuples by the thousand and no cycles: with Python's default of 700 the collector took an
eighth of the CPU time of a batch write, walking windows that were about to be freed by counting."""


def tune() -> None:
    """Set both, for the whole process; what is loaded by now is never looked at again."""
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
