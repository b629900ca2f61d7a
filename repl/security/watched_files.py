"""Files that are read again when they change: certificates, keys, tokens.

Changes are detected on use, at most once a second, without a thread. A value stays in force until all files can be read
again: a key that was copied before its certificate waits for it. File contents are opaque here and never logged.
"""

from __future__ import annotations

import os
import stat
from codecs import BOM_UTF8, BOM_UTF16_BE, BOM_UTF16_LE
from collections.abc import Callable
from pathlib import Path
from typing import Final, Generic, TypeVar

from isthmus.repl.machine import machine, monotonic_s
from isthmus.repl.model.errors import BadConfig

T = TypeVar("T")

RECHECK_S: Final = 1.0
"""Least time between two checks of the files; a check costs some microseconds a file."""


def check_private(path: Path) -> None:
    """Raises BadConfig when a secret's file is missing, or readable or writable by all users."""
    try:
        mode = path.stat().st_mode
    except OSError as error:
        raise BadConfig(f"{path}: {(error.strerror or str(error)).lower()}") from error
    if not stat.S_ISREG(mode):
        raise BadConfig(f"{path} is not a file")
    if mode & 0o006:
        raise BadConfig(f"{path} holds a secret, and every user of this machine may read or write it: chmod o-rw it")


def encoding_fault(raw: bytes) -> str:
    """What makes a file of ASCII lines unreadable from its first byte on, as editors of some systems write it; "" where
    nothing does. A sentence without the content."""
    if raw.startswith(BOM_UTF8):
        return "begins with a byte-order mark (BOM), three bytes before the text: save it without one"
    if raw.startswith((BOM_UTF16_LE, BOM_UTF16_BE)):
        return "is UTF-16: save it as ASCII, or as UTF-8 without a byte-order mark (BOM)"
    return ""


class ReloadingFile(Generic[T]):
    """The value that `load` returns, loaded again once one of `files` has changed. Thread-safe.

    The constructor raises `load`'s BadConfig; later failures are logged once each, and the old value stays in force.
    After a failure each check loads again, since `load` may depend on more than `files`: other files, the time."""

    def __init__(
        self, files: tuple[Path, ...], load: Callable[[], T], clock: Callable[[], float] = monotonic_s
    ) -> None:
        self.files = files
        self.failures = 0
        self.reloads = 0
        self.why = ""
        self._load = load
        self._clock = clock
        self._lock = machine().lock()
        self._stamps = self._look()
        self._value = load()
        self._check_s = clock() + RECHECK_S

    def current(self) -> T:
        """The value in force."""
        now_s = self._clock()
        if now_s >= self._check_s:
            with self._lock:
                if now_s >= self._check_s:
                    self._check_s = now_s + RECHECK_S
                    self._check()
        return self._value

    def reload(self) -> str:
        """Read the files again now, changed or not; returns "", or why the old value stays in force."""
        with self._lock:
            self._check_s = self._clock() + RECHECK_S
            self._check(forced=True)
        return self.why

    def _check(self, *, forced: bool = False) -> None:
        stamps = self._look()
        if stamps == self._stamps and not (forced or self.why):
            return
        import structlog  # only here: commands read files once, and start in a quarter less time without it

        log = structlog.get_logger(__name__)
        try:
            self._value = self._load()
        except BadConfig as error:
            # The old stamps stay, so that the next check tries again.
            self.failures += 1
            if str(error) != self.why:
                self.why = str(error)
                log.error("files.reload_failed", reason=self.why)
            return
        self._stamps = stamps
        self.why = ""
        self.reloads += 1
        log.info("files.reloaded", files=[str(path) for path in self.files])

    def _look(self) -> tuple[tuple[int, int, int, int], ...]:
        return tuple(map(_stamp, self.files))


def _stamp(path: Path) -> tuple[int, int, int, int]:
    try:
        found = os.stat(path)
    except OSError:
        return (0, 0, 0, 0)
    return found.st_mtime_ns, found.st_size, found.st_ino, found.st_mode
