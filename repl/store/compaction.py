"""What a store gives back of the memory that a load has left behind, once nothing is written any more.

A write buffer is many small pieces; when it has become a table, the allocator keeps them for the next one: tens of
megabytes after any load. What is mapped of the tables is no such memory: the kernel counts it as resident, and takes it
back when somebody needs it. On a node that has nothing to do it is given back unasked, so that others on the machine,
and whoever looks, see what the node needs.
"""

from __future__ import annotations

import ctypes
import os
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

BUFFER_FROM_BYTES: Final = 4_000_000
"""A write buffer that holds this much becomes a table when its store rests; a smaller one is not worth a file."""

_PAGEOUT: Final = 21
"""Linux's MADV_PAGEOUT (since 5.4): takes pages out of memory and keeps what they say, whatever they belong to. So it
does no harm should LevelDB have let go of a table in between and something else lie there by now."""

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


def compact_when_idle(driver: Any, directory: Path, *, idle: bool) -> None:
    """Empty the write buffer of the database in `directory`, if much is in it, and give the free heap back to the
    system; when the node is `idle`, what is mapped of the tables, too. Takes some 10 ms after a large load, of the
    calling thread."""
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
    """(start, end) of what this process has mapped of the tables in `directory`; empty where the system does not
    tell."""
    tables = os.fsencode(directory.resolve()) + b"/"
    found = []
    with suppress(OSError), open("/proc/self/maps", "rb") as maps:
        for line in maps:
            place, _, rest_of_it = line.partition(b" ")
            if tables in rest_of_it and rest_of_it.rstrip().endswith(b".ldb"):
                start, _, end = place.partition(b"-")
                found.append((int(start, 16), int(end, 16)))
    return found
