"""Run the program with a wall clock that other processes can shift.

`python -m tests.system.faults.shifted_clock FILE ARGUMENTS...`

FILE holds the clock's offset in nanoseconds, eight bytes, little-endian, signed; `move` writes it. Only the wall clock
moves, as when an administrator sets the machine's; monotonic clocks do not. (libfaketime would do it from outside, but
breaks the absolute sleeps of Python 3.11.)
"""

from __future__ import annotations

import mmap
import struct
import sys
import time
from pathlib import Path
from typing import Final

OFFSET: Final = struct.Struct("<q")


def move(file: Path, seconds: int) -> None:
    """Set the offset; a running program uses it at its next read of the clock."""
    with file.open("r+b" if file.exists() else "w+b") as opened:
        opened.write(OFFSET.pack(seconds * 1_000_000_000))


def patch(file: Path) -> None:
    """Replace `time.time` and `time.time_ns` by shifted ones."""
    with file.open("rb") as opened:
        memory = mmap.mmap(opened.fileno(), OFFSET.size, prot=mmap.PROT_READ)
    honest_ns = time.time_ns

    def time_ns() -> int:
        return honest_ns() + int(OFFSET.unpack_from(memory)[0])

    time.time_ns = time_ns
    time.time = lambda: time_ns() / 1e9


if __name__ == "__main__":
    patch(Path(sys.argv[1]))
    from isthmus.node.cli.main import main

    sys.exit(main(sys.argv[2:]))
