"""Profile a node under load with py-spy, or with perf where py-spy is not installed.

py-spy shows Python functions and packages; perf shows native code only (system calls, LevelDB, the interpreter).
Without either, the benchmarks run and report that there is no profile.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Final

SAMPLES_PER_SECOND: Final = 199
"""No divisor of the periods of the node's timers."""

TOP_COUNT: Final = 20
STOP_TIMEOUT_S: Final = 60.0
WAITING: Final = frozenset(
    {"pwritev_synced", "fdatasync", "fsync", "wait", "_wait_for_tstate_lock", "_next", "readinto", "select", "do_poll"}
)
"""Functions that mostly wait when they are on top of the stack: for the disk, a lock, a peer, the next event. Samples
in them are left out; the summary also shows the CPU time of each thread from the kernel."""
REPOSITORY: Final = Path(__file__).resolve().parents[1]


class Profiler:
    """A profile of one process, recorded from construction to `stop`."""

    def __init__(self, title: str, pid: int) -> None:
        self._title = title
        self._pid = pid
        self._threads_before = thread_seconds(pid)
        self._directory = tempfile.TemporaryDirectory(prefix="isthmus-profile-")
        self._out = Path(self._directory.name) / "samples"
        self._tool = ""
        installed = Path(sys.executable).with_name("py-spy")
        spy = str(installed) if installed.exists() else shutil.which("py-spy")
        perf = shutil.which("perf")
        command: list[str] = []
        if spy is not None:
            self._tool = "py-spy"
            command = [spy, "record", "--pid", str(pid), "--rate", str(SAMPLES_PER_SECOND), "--format", "raw"]
            command += ["--output", str(self._out), "--duration", "3600", "--threads", "--nonblocking"]
        elif perf is not None:
            self._tool = "perf"
            command = [perf, "record", "-F", str(SAMPLES_PER_SECOND), "-g", "-p", str(pid), "-o", str(self._out)]
        self._child = (
            subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True)
            if command
            else None
        )

    def stop(self) -> list[str]:
        """Stop recording; return the lines of the summary."""
        with self._directory:
            if self._child is None:
                return [f"{self._title}: no profile, neither py-spy nor perf is installed (`pip install py-spy`)"]
            after = thread_seconds(self._pid)
            self._child.send_signal(signal.SIGINT)
            _, errors = self._child.communicate(timeout=STOP_TIMEOUT_S)
            if not self._out.exists():
                return [f"{self._title}: no profile, {self._tool} failed: {errors.decode(errors='replace').strip()}"]
            used = {tid: seconds - self._threads_before.get(tid, 0.0) for tid, seconds in after.items()}
            summary = self._summary_of_py_spy(used) if self._tool == "py-spy" else self._summary_of_perf()
            return [f"{self._title}, by {self._tool}:", *summary]

    def _summary_of_py_spy(self, used: dict[int, float]) -> list[str]:
        names: dict[int, str] = {}
        by_package: Counter[str] = Counter()
        by_function: Counter[str] = Counter()
        for line in self._out.read_text().splitlines():
            stack, _, count = line.rpartition(" ")
            thread, *frames = stack.split(";")
            if (found := _THREAD.fullmatch(thread)) is None or not frames:
                continue
            names[int(found[1])] = found[2]
            if frames[-1].partition(" ")[0].rpartition(".")[2] in WAITING:
                continue
            by_function[frames[-1]] += int(count)
            package = next((name for frame in reversed(frames) if (name := _package(frame))), "other packages")
            by_package[package] += int(count)
        total = max(1, by_package.total())
        lines = ["  CPU seconds by thread:"]
        busy = sorted(used.items(), key=lambda item: -item[1])[:TOP_COUNT]
        lines += [f"    {cpu:6.2f} s  {names.get(tid, 'native thread')}" for tid, cpu in busy if cpu >= 0.01]
        for title, counts in (("package", by_package), ("function", by_function)):
            lines.append(f"  samples by {title} on top of the stack, without waiting ones ({total}):")
            lines += [f"    {100 * n / total:5.1f} %  {name}" for name, n in counts.most_common(TOP_COUNT)]
        return lines

    def _summary_of_perf(self) -> list[str]:
        report = subprocess.run(
            ["perf", "report", "-i", str(self._out), "--stdio", "--no-children", "-g", "none", "--sort", "dso,symbol"],
            capture_output=True,
            text=True,
            check=False,
        )
        lines = [line for line in report.stdout.splitlines() if line.strip() and not line.startswith("#")]
        return [f"    {line.strip()}" for line in lines[:TOP_COUNT]]


_THREAD: Final = re.compile(r"thread \((\d+)\): (.*)")


def thread_seconds(pid: int) -> dict[int, float]:
    """CPU seconds of each thread of a process, by thread id; empty when the process has ended."""
    seconds: dict[int, float] = {}
    for task in Path(f"/proc/{pid}/task").glob("*"):
        try:
            fields = (task / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue  # a thread that has just ended
        seconds[int(task.name)] = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return seconds


def _package(frame: str) -> str:
    """The module of this repository that a frame "function (file:line)" is in; empty for other code."""
    _, _, place = frame.rpartition("(")
    path = place.rpartition(":")[0]
    for package in ("repl", "queues", "sink", "node", "aae", "config"):
        at = path.find(f"{package}/")
        if at == 0 or (at > 0 and path.startswith((f"{REPOSITORY}/{package}/", f"{REPOSITORY}/isthmus/{package}/"))):
            return path[at:].removesuffix(".py")
    return ""
