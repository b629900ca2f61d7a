"""How a node's process uses the Python interpreter and its heap: who yields to whom, when garbage is looked for, and
where threads take memory from."""

from __future__ import annotations

import ctypes
import gc
import sys
from typing import Final

SWITCH_INTERVAL_S: Final = 0.0005
"""How long one Python thread may keep others waiting. The default of 5 ms is the p50 of a sync beside a busy
loop; this brings it under 1 ms."""

GC_THRESHOLDS: Final = (50_000, 20, 20)
"""The hot path makes tuples by the thousand and no cycles: with Python's default of 700 the collector took an
eighth of the CPU time of a batch write, walking windows that were about to be freed by counting."""


M_ARENA_MAX: Final = -8
"""glibc's number for the option that bounds its arenas (malloc.h)."""


def tune() -> None:
    """Set all of it, before there are threads, for the whole process; what is loaded by now is not looked at again."""
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
    _take_memory_from_one_heap()


def _take_memory_from_one_heap() -> None:
    """The apply thread allocates nearly all that the store's write buffer takes, 4 KB at a time. glibc gives a thread
    an arena of its own, which grows by one call of the kernel for each page; the first one grows by 32 pages at once: a
    tenth of that thread's time. The interpreter's lock keeps threads from meeting in it often."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # not every C library has it
    if mallopt is not None:
        mallopt(M_ARENA_MAX, 1)
