"""A process that has no file descriptor left, for as long as a context is open."""

from __future__ import annotations

import gc
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def no_descriptor_left(spare: int = 0) -> Iterator[None]:
    """All but `spare` of the descriptors that the process may have are taken meanwhile. Garbage of earlier tests, which
    could give one back at any moment, is collected first."""
    gc.collect()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(map(int, os.listdir("/proc/self/fd")))
    held: list[int] = []
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 8 + spare, hard))
    try:
        try:
            while True:
                held.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
        except OSError:
            for _ in range(spare):
                os.close(held.pop())
        yield
    finally:
        for fd in held:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
