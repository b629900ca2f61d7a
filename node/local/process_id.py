"""Identity of a process, which state files keep over restarts, and signals that reach that process only.

The kernel reuses pids. A process is therefore identified by pid, start time in kernel ticks, and boot id, and a signal
goes through a pidfd that was checked against all three. State files hold these ticks; psutil's start time is derived
from the wall clock, which may be set, so the ticks are read here. Linux only.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True, slots=True)
class ProcessId:
    """One process; no other ever has the same three values."""

    pid: int
    start_ticks: int
    boot_id: str

    @classmethod
    def of(cls, pid: int) -> Self | None:
        """The process that has this pid now; None for none or a zombie."""
        ticks = _start_ticks(pid)
        return None if ticks is None else cls(pid, ticks, BOOT_ID.read_text().strip())

    @classmethod
    def from_json(cls, raw: Any) -> Self | None:
        """The inverse of `to_json`; None for anything else."""
        match raw:
            case {"pid": int(pid), "start_ticks": int(ticks), "boot_id": str(boot)} if pid > 0:
                return cls(pid, ticks, boot)
        return None

    def to_json(self) -> dict[str, object]:
        """The form in state files, which supervisors of other versions read."""
        return {"pid": self.pid, "start_ticks": self.start_ticks, "boot_id": self.boot_id}

    def alive(self) -> bool:
        """True while this process runs."""
        return ProcessId.of(self.pid) == self

    def open(self) -> int | None:
        """A pidfd, to be closed by the caller; None when the process is gone."""
        try:
            fd = os.pidfd_open(self.pid)
        except OSError:
            return None
        if self.alive():  # checked after opening: from now on the descriptor refers to this process or none
            return fd
        os.close(fd)
        return None

    def send(self, number: signal.Signals) -> bool:
        """Send a signal to this process; False when it is gone."""
        fd = self.open()
        if fd is None:
            return False
        try:
            signal.pidfd_send_signal(fd, number)
        except ProcessLookupError:
            return False
        finally:
            os.close(fd)
        return True


def stop_process(process: ProcessId, timeout_s: float) -> None:
    """Send SIGTERM, and SIGKILL after `timeout_s`; return when the process is gone."""
    process.send(signal.SIGTERM)
    if not wait_gone(process, timeout_s):
        process.send(signal.SIGKILL)
        wait_gone(process, timeout_s)


def wait_gone(process: ProcessId, timeout_s: float) -> bool:
    """True once the process has ended; False when it still runs after `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    while process.alive():
        if time.monotonic() >= deadline:
            return False
        time.sleep(0.02)
    return True


async def wait_ended(process: ProcessId) -> None:
    """Return when the process has ended, without polling. A child of this process is not reaped by this."""
    fd = process.open()
    if fd is None:
        return
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[None] = loop.create_future()
    loop.add_reader(fd, lambda: None if ended.done() else ended.set_result(None))
    try:
        await ended
    finally:
        loop.remove_reader(fd)
        os.close(fd)


def _start_ticks(pid: int) -> int | None:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (OSError, UnicodeDecodeError):
        return None
    fields = stat.rpartition(")")[2].split()  # the name in parentheses may hold anything
    return None if fields[0] in "ZX" else int(fields[19])  # state; start time, proc(5)
