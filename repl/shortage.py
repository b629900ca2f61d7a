"""What a process runs short of: descriptors, memory, and what a file system gives beside bytes.

A shortage ends by itself or by an operator's hand, and nothing is lost by it: what could not be created is created
later. A broken disk is another matter (docs/protocol.md H34). This module says which errors of the system are which,
and keeps descriptors in reserve, so that clients' connections never take those that log, store and identity need.

    number of a descriptor   0 ..................................... limit
    clients' connections     [ accepted below limit - HTTP_HEADROOM )
    operators' connections   [ accepted below limit - ADMIN_HEADROOM  )
    nodes' connections       [ accepted below limit - CLUSTER_HEADROOM  )
    files, LevelDB, dials    [ all                                      )

The kernel gives the lowest free number, so the number of a new descriptor is at least the count of those that are open:
no count has to be kept, and none can be wrong. Beside that, DescriptorReserve holds descriptors, for a limit that is
lowered while the process runs, and for a machine that has none left.
"""

from __future__ import annotations

import errno
import os
import resource
from pathlib import Path
from typing import Final, NamedTuple

from isthmus.repl.machine import machine, one_per_process

NO_DESCRIPTORS: Final = frozenset((errno.EMFILE, errno.ENFILE))
"""The process, or the machine, has no file descriptor left. Only calls that make one fail with it, so nothing was read,
written or synced."""

SHORTAGES: Final = NO_DESCRIPTORS | {
    errno.ENOMEM,
    errno.ENOBUFS,
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EROFS,
}
"""Also memory of the kernel, space or inodes, a quota, and a file system that is mounted read-only. A *write* or *sync*
that fails with one of these may have done a part of its work: only the callers know whether it may be tried again."""

HELD_COUNT: Final = 32
"""Descriptors held in reserve: a dozen for each of log, store and identity at once."""

FREE_COUNT: Final = 8
"""Descriptors that must be free beside the reserve: LevelDB opens files by itself, a few at a time in each of its two
threads, and cannot take one from the reserve."""

HTTP_HEADROOM: Final = 256
"""Descriptors that clients' connections leave free for everything else. A node that serves nobody has about 60 open, 2
more for each other node of its cluster, and one for each request to another cluster that is under way."""

ADMIN_HEADROOM: Final = 160
"""Descriptors that operators' connections leave free: 96 of them fit when clients have taken all they may."""

CLUSTER_HEADROOM: Final = 96
"""Descriptors that connections of other nodes leave free."""

LEAST_LIMIT: Final = HTTP_HEADROOM + 128
"""Least limit of open files with which a node starts: it then serves some 60 connections."""

WANTED_LIMIT: Final = 65_536
"""The limit that a node asks for, where its connections need no more: what docs/production.md recommends."""

NEARLY_PERCENT: Final = 80
"""Share of the limit from which on operators are warned."""

INODES_WARNING: Final = 1_280
"""Free inodes below which operators are warned: ten times the log's reserve."""


def is_shortage(error: BaseException | None) -> bool:
    """True if the system ran short of something, rather than failed."""
    return isinstance(error, OSError) and error.errno in SHORTAGES


def lacks_descriptors(error: BaseException | None) -> bool:
    """True if there was no file descriptor: the call did nothing at all."""
    return isinstance(error, OSError) and error.errno in NO_DESCRIPTORS


class FileLimit(NamedTuple):
    """The limit of open files of this process, now and as far as it may be raised."""

    soft: int
    hard: int


def raise_file_limit(wanted: int) -> FileLimit:
    """Raise the soft limit of open files to `wanted`, at most to the hard limit; never lower it. Returns what holds."""
    soft, hard = (_count(number) for number in resource.getrlimit(resource.RLIMIT_NOFILE))
    aim = min(hard, wanted)
    if soft < aim:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (aim, hard))
        except (OSError, ValueError):  # forbidden by a sandbox: what there is must do
            return FileLimit(soft, hard)
        soft = aim
    return FileLimit(soft, hard)


def _count(limit: int) -> int:
    return (1 << 30) if limit == resource.RLIM_INFINITY else limit


def files_wanted(connections_limit: int) -> int:
    """The limit of open files with which both listeners can have `connections_limit` connections each."""
    return max(WANTED_LIMIT, 2 * connections_limit + HTTP_HEADROOM)


def connections_that_fit(limit: int) -> int:
    """About how many connections of clients a limit of open files leaves room for; less what the node has open itself,
    some 60 descriptors."""
    return max(0, limit - HTTP_HEADROOM - 60)


def warnings_of(limit: int, reached: int, connections_limit: int, free_inodes: int | None) -> list[str]:
    """What will be short, or is smaller than the settings ask for, a sentence each."""
    found = []
    fit = connections_that_fit(limit)
    if fit < connections_limit:
        found.append(
            f"listen.connections_limit is {connections_limit:,}, but the limit of open files, {limit:,}, leaves room "
            f"for about {fit:,} connections"
        )
    if 100 * reached >= NEARLY_PERCENT * limit:
        found.append(f"{reached:,} files or more are open, the limit is {limit:,}")
    if free_inodes is not None and free_inodes < INODES_WARNING:
        found.append(f"the file system of the data directory has {free_inodes:,} free inodes")
    return found


def open_file_count() -> int | None:
    """How many descriptors this process has open; None where the system does not say."""
    try:
        return len(os.listdir("/proc/self/fd")) - 1  # that of the listing itself
    except OSError:
        return None


class DescriptorReserve:
    """Descriptors of this process: how many a connection leaves free, and some in reserve. All methods from any thread.

    Nothing is held before `hold`, so programs other than a node are not affected.
    """

    def __init__(self) -> None:
        self._lock = machine().lock()
        self._held: list[int] = []
        self._wanted = 0
        self.limit = _count(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
        """The soft limit, as `look` last found it."""
        self.short = False
        """Less than the reserve can be had: `look` has released a part of it for what cannot take from it."""
        self.reached = 0
        """At least so many descriptors were open at the last `look`: all lower numbers were taken."""
        self.borrowed_count = 0
        """Descriptors that were taken from the reserve since the start."""

    def hold(self, count: int = HELD_COUNT) -> None:
        """Take the reserve, as far as it can be had; 0 releases it."""
        with self._lock:
            self._wanted = count
            while len(self._held) > count:
                os.close(self._held.pop())
        self.look()

    def look(self) -> None:
        """Read the limit, and take again what is missing of the reserve; once a second."""
        self.limit = _count(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
        with self._lock:
            missing = self._wanted - len(self._held)
            tried: list[int] = []
            try:
                while self._wanted and len(tried) < missing + FREE_COUNT:
                    tried.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
            except OSError:
                self.short, self.reached = True, self.limit
                for fd in tried:
                    os.close(fd)
                while len(self._held) > self._wanted // 2:
                    os.close(self._held.pop())
                return
            self.short, self.reached = False, max(tried, default=0)
            self._held += tried[:missing]
            for fd in tried[missing:]:
                os.close(fd)

    def release_one(self) -> bool:
        """Close one of the reserve; False if there is none."""
        with self._lock:
            if not self._held:
                return False
            os.close(self._held.pop())
            self.borrowed_count += 1
            return True

    def open(self, path: str | Path, flags: int, mode: int = 0o600) -> int:
        """As os.open, closed on exec; takes from the reserve if no other descriptor is left. Raises OSError."""
        while True:
            try:
                return os.open(path, flags | os.O_CLOEXEC, mode)
            except OSError as error:
                if not lacks_descriptors(error) or not self.release_one():
                    raise

    def admits(self, fd: int, headroom: int) -> bool:
        """Whether an accepted connection of this number leaves `headroom` descriptors free. Always, while nothing is
        held."""
        return not self._wanted or fd < self.limit - headroom


DESCRIPTORS: Final = one_per_process(DescriptorReserve)
"""The reserve of this process: the limit belongs to the process, too."""
