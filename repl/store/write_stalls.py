"""Predicts whether LevelDB takes a small batch at once, or makes its writer wait. Pure but for its arguments.

A batch that only goes into the write buffer costs some microseconds a row, less than waking another thread for it.
LevelDB makes a writer wait when tables of level 0 pile up (1 ms a write from 8 of them, without limit from 12), when a
write buffer is full and the previous one is not a table yet, and where the kernel delays writes to a file because the
disk does not keep up. The first case is known in advance; the others show in the time of a write, so after a slow one
the thread writes for a while.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

LEVEL0_TABLES: Final = b"leveldb.num-files-at-level0"

BATCH_BYTES_MAX: Final = 128 * 1024
"""Largest batch that the loop writes: some 0.5 ms."""

LOOK_EVERY_BYTES: Final = 1024 * 1024
"""Written bytes (or one write buffer, if that is smaller) after which the tables of level 0 are counted again: at most
one table was added meanwhile."""

LEVEL0_TABLES_MAX: Final = 5
"""Most tables of level 0 for a write on the loop: compaction begins at 4, stalls at 8."""

SLOW_S: Final = 0.02
"""A write that took this long was stalled; a shorter delay may be the machine's other work."""

HOLD_SHARE: Final = 100
HOLD_S_MAX: Final = 3600.0
"""After a slow write the thread writes for this many times its duration, at most an hour: stalls take at most a
hundredth of the loop's time, or one an hour if they are longer than 36 s."""


class WriteStallPredictor:
    """Stalls of one database. `get_property` is the driver's; `clock_s` is monotonic."""

    def __init__(
        self, get_property: Callable[[bytes], bytes], clock_s: Callable[[], float], write_buffer_bytes: int
    ) -> None:
        self._get_property = get_property
        self._clock_s = clock_s
        self._look_every_bytes = self._unlooked_bytes = min(LOOK_EVERY_BYTES, write_buffer_bytes)
        self._few_tables = False
        self._held_until_s = 0.0

    def takes(self, size_bytes: int) -> bool:
        """Whether a batch of this size would probably be written without a stall."""
        if size_bytes > BATCH_BYTES_MAX or self._clock_s() < self._held_until_s:
            return False
        if self._unlooked_bytes >= self._look_every_bytes:
            self._unlooked_bytes = 0
            self._few_tables = int(self._get_property(LEVEL0_TABLES)) <= LEVEL0_TABLES_MAX
        return self._few_tables

    def wrote(self, size_bytes: int, took_s: float) -> None:
        """Note the size and duration of a write, on the loop or in the thread; one at a time."""
        self._unlooked_bytes += size_bytes
        if took_s >= SLOW_S:
            self._held_until_s = self._clock_s() + min(HOLD_SHARE * took_s, HOLD_S_MAX)
