"""What processes cost, read from /proc: CPU seconds and memory, summed over restarts by name.

A process that was killed takes its figures along, so they are sampled while it lives and the last sample
counts: at most one interval of a killed process's time is missing. Reads only; starts and ends nothing.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

TICKS_PER_SECOND: Final = os.sysconf("SC_CLK_TCK")
PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")

_USER_TICKS_FIELD: Final = 11
"""Where user ticks stand in /proc/PID/stat, counted from the field after the command's name (proc(5): field 14);
system ticks follow."""


class ProcessGone(Exception):
    """There is no such process any more."""


def _stat(pid: int) -> list[bytes]:
    try:
        text = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError as error:
        raise ProcessGone(f"process {pid} has ended") from error
    return text.rpartition(b")")[2].split()  # the name may hold spaces and parentheses


class CpuTime(NamedTuple):
    """CPU seconds of a process so far: its own code, and the kernel's for it; threads included, children not."""

    user: float
    system: float

    @property
    def total(self) -> float:
        """Both."""
        return self.user + self.system


def cpu_time(pid: int) -> CpuTime:
    """What the process has used. Raises ProcessGone."""
    user, system = _stat(pid)[_USER_TICKS_FIELD : _USER_TICKS_FIELD + 2]
    return CpuTime(int(user) / TICKS_PER_SECOND, int(system) / TICKS_PER_SECOND)


def resident_bytes(pid: int) -> int:
    """Memory that the process holds in RAM. Raises ProcessGone."""
    try:
        pages = Path(f"/proc/{pid}/statm").read_text().split()[1]
    except OSError as error:
        raise ProcessGone(f"process {pid} has ended") from error
    return int(pages) * PAGE_BYTES


class CpuLedger:
    """CPU seconds by name over all the processes that bore it, one after the other."""

    def __init__(self) -> None:
        self._seconds: dict[str, dict[int, float]] = {}

    def sample(self, pids: Mapping[str, int | None]) -> None:
        """Note what each process has used so far; None is a name without a process just now."""
        for name, pid in pids.items():
            by_pid = self._seconds.setdefault(name, {})
            if pid is None:
                continue
            try:
                by_pid[pid] = cpu_time(pid).total
            except ProcessGone:
                by_pid.setdefault(pid, 0.0)

    def seconds(self) -> dict[str, float]:
        """The sum of each name."""
        return {name: sum(by_pid.values()) for name, by_pid in self._seconds.items()}

    def restarts(self) -> dict[str, int]:
        """How many further processes each name has had after its first."""
        return {name: max(0, len(by_pid) - 1) for name, by_pid in self._seconds.items()}
