"""Turns between tests that give this machine addresses and tests that open pages.

Chromium gives up every request under way with ERR_NETWORK_CHANGED when an address of its machine comes or goes. The
lock is for the whole machine, like addresses: the workers of a run share it, and so do two runs at once.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

_FOLDER: Final = Path(tempfile.gettempdir())
_LOCK: Final = _FOLDER / f"isthmus-addresses-{os.getuid()}.lock"
_QUEUE: Final = _FOLDER / f"isthmus-addresses-{os.getuid()}.queue"
"""Held while waiting for the lock: later comers queue behind it, so that tests of pages cannot starve a test of
networks."""


@contextmanager
def addresses_stay() -> Iterator[None]:
    """Hold this while the machine's addresses must not change; any number may hold it at once."""
    with _turn(fcntl.LOCK_SH):
        yield


@contextmanager
def addresses_change() -> Iterator[None]:
    """Hold this while the machine's addresses change. Within `addresses_stay` this waits for ever."""
    with _turn(fcntl.LOCK_EX):
        yield


@contextmanager
def _turn(kind: int) -> Iterator[None]:
    with _LOCK.open("a") as lock:
        with _QUEUE.open("a") as queue:
            fcntl.flock(queue, fcntl.LOCK_EX)
            fcntl.flock(lock, kind)
        yield
