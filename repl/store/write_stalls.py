"""Whether LevelDB would take a small batch at once, or make its writer wait (pure but for what it is given).

A batch that only goes into the write buffer costs some microseconds a row, less than waking another thread for it.
LevelDB makes a writer wait when tables of level 0 have piled up (1 ms a write from 8 of them, without end from 12),
when a write buffer is full and the one before it is not a table yet, and where the kernel holds back writes to a
file because the disk does not keep up. The first is known before; the others show in how long a write took, so after a
slow one writes go by the thread for a while.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

LEVEL0_TABLES: Final = b"leveldb.num-files-at-level0"

BATCH_BYTES_MAX: Final = 128 * 1024
"""Largest batch that is worth writing on the loop: some 0.5 ms of it."""

LOOK_EVERY_BYTES: Final = 1024 * 1024
"""Written bytes after which the tables of level 0 are counted again, or a write buffer's, where that is smaller: one
more table at most was made meanwhile."""

LEVEL0_TABLES_MAX: Final = 5
"""Most of them at which a writer may go on without waiting: compaction begins at 4, waiting at 8."""

SLOW_S: Final = 0.02
"""A write that took this long has waited for something; less may be the machine's other work."""

HOLD_SHARE: Final = 100
HOLD_S_MAX: Final = 3600.0
"""For that many times as long as a slow write took, and at most for an hour, the next go by the thread: at most a
hundredth of the loop's time is spent waiting, however the disk behaves; of stalls above 36 s one an hour is."""


class WriteStallPredictor:
    """Of one database. `get_property` is the driver's; `clock_s` is monotonic. One write at a time is `wrote`."""

    def __init__(
        self, get_property: Callable[[bytes], bytes], clock_s: Callable[[], float], write_buffer_bytes: int
    ) -> None:
        self._get_property = get_property
        self._clock_s = clock_s
        self._look_every_bytes = self._unlooked_bytes = min(LOOK_EVERY_BYTES, write_buffer_bytes)
        self._few_tables = False
        self._held_until_s = 0.0

    def takes(self, size_bytes: int) -> bool:
        """Whether a batch of this size would be written without waiting, as far as anybody can know."""
        if size_bytes > BATCH_BYTES_MAX or self._clock_s() < self._held_until_s:
            return False
        if self._unlooked_bytes >= self._look_every_bytes:
            self._unlooked_bytes = 0
            self._few_tables = int(self._get_property(LEVEL0_TABLES)) <= LEVEL0_TABLES_MAX
        return self._few_tables

    def wrote(self, size_bytes: int, took_s: float) -> None:
        """A batch was written, here or in the thread."""
        self._unlooked_bytes += size_bytes
        if took_s >= SLOW_S:
            self._held_until_s = self._clock_s() + min(HOLD_SHARE * took_s, HOLD_S_MAX)
