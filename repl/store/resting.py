"""What a store gives back of the memory that a load has left behind, once nothing is written any more.

A write buffer is many small pieces; when it has become a table, the allocator keeps them for the next one: tens of
megabytes after any load. What is mapped of the tables is no such memory: the kernel counts it as resident, and takes it
back when somebody needs it.
"""

from __future__ import annotations

import ctypes
import os
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

BUFFER_FROM_BYTES: Final = 4_000_000
"""A write buffer that holds this much becomes a table when its store rests; a smaller one is not worth a file."""

_ABOVE: Final = (b"\xff\xff", b"\xff\xff\xff")
"""Names above all rows: asked to compact these, LevelDB writes its buffer as a table, and does nothing else."""


def size_of(directory: Path, suffix: str = "") -> int:
    """Bytes of the files in a directory whose names end so; those that go meanwhile are passed over."""
    size = 0
    with os.scandir(directory) as files:
        for file in files:
            if file.name.endswith(suffix):
                with suppress(FileNotFoundError):
                    size += file.stat().st_size
    return size


def rest(driver: Any, directory: Path) -> None:
    """Empty the write buffer of the database in `directory`, if much is in it, and give the free heap back to the
    system. Takes some 10 ms after a large load, of the calling thread."""
    if size_of(directory, ".log") >= BUFFER_FROM_BYTES:
        driver.compact_range(start=_ABOVE[0], stop=_ABOVE[1])
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # not every C library has it
    if trim is not None:
        trim(0)
