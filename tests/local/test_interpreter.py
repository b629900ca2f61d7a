"""What a node asks of its interpreter and its heap, in a process of its own: it holds for the whole process."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

HEAPS = """
import ctypes, threading
from node import interpreter
{tune}
libc = ctypes.CDLL(None)
libc.malloc.restype = libc.fdopen.restype = ctypes.c_void_p
threads = [threading.Thread(target=libc.malloc, args=(5000,)) for _ in range(3)]
for thread in threads: thread.start()
for thread in threads: thread.join()
out = ctypes.c_void_p(libc.fdopen(1, b"w"))
libc.malloc_info(0, out)
libc.fflush(out)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="arenas are glibc's")
def test_threads_take_memory_from_one_heap() -> None:
    """Three threads that allocate leave one arena, and more where nothing was set."""
    for tune, least, most in (("interpreter.tune()", 1, 1), ("", 2, 9)):
        made = subprocess.run(
            [sys.executable, "-c", HEAPS.format(tune=tune)], capture_output=True, check=True, text=True, timeout=50
        )
        assert least <= made.stdout.count("<heap nr=") <= most
