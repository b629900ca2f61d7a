"""Gives memory back to the system once nothing is written any more.

A write buffer is many small pieces; when it has become a table, the allocator keeps them for the next one: tens of
megabytes after any load. Mapped tables are different: the kernel counts them as resident, and takes them back when it
needs memory. An idle node gives them back at once, so that its resident memory shows what it needs.
"""

from __future__ import annotations

import ctypes
import os
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

BUFFER_FROM_BYTES: Final = 4_000_000
"""A write buffer of at least this size is compacted into a table; a smaller one is not worth a file."""

_PAGEOUT: Final = 21
"""Linux's MADV_PAGEOUT (since 5.4): takes pages out of memory and keeps their content, whatever they belong to. So it
is harmless if LevelDB has meanwhile unmapped a table and something else is mapped there."""

_ABOVE: Final = (b"\xff\xff", b"\xff\xff\xff")
"""A range above all rows: compacting it makes LevelDB write its buffer as a table, and nothing else."""


def size_of(directory: Path, suffix: str = "") -> int:
    """Bytes of the files in a directory with this suffix; files that are deleted meanwhile are skipped."""
    size = 0
    with os.scandir(directory) as files:
        for file in files:
            if file.name.endswith(suffix):
                with suppress(FileNotFoundError):
                    size += file.stat().st_size
    return size


def compact_when_idle(driver: Any, directory: Path, *, idle: bool) -> None:
    """Compact a large write buffer of the database in `directory`, and give the free heap back to the system; when the
    node is `idle`, also the mapped pages of the tables. Takes some 10 ms of the calling thread after a large load."""
    if size_of(directory, ".log") >= BUFFER_FROM_BYTES:
        driver.compact_range(start=_ABOVE[0], stop=_ABOVE[1])
    library = ctypes.CDLL(None)
    trim = getattr(library, "malloc_trim", None)  # not every C library has it
    if trim is not None:
        trim(0)
    advise = getattr(library, "madvise", None)
    if idle and advise is not None:
        for start, end in mapped(directory):
            advise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), _PAGEOUT)  # an old kernel refuses: no harm


def mapped(directory: Path) -> list[tuple[int, int]]:
    """(start, end) of this process's mappings of tables in `directory`; empty where the system does not list them."""
    tables = os.fsencode(directory.resolve()) + b"/"
    found = []
    with suppress(OSError), open("/proc/self/maps", "rb") as maps:
        for line in maps:
            place, _, rest_of_it = line.partition(b" ")
            if tables in rest_of_it and rest_of_it.rstrip().endswith(b".ldb"):
                start, _, end = place.partition(b"-")
                found.append((int(start, 16), int(end, 16)))
    return found
