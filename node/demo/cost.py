"""Figures of a demo: its outcome as a table or JSON, and the CPU time and memory of its processes.

CPU time of a killed process is lost with it, so it is sampled while the process runs: at most one interval is missing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

import psutil

from isthmus.node.cli.output import echo_json, echo_table, milliseconds
from isthmus.node.demo.verify import VerifyResult


class ProcessGone(Exception):
    """There is no such process any more."""


class CpuTime(NamedTuple):
    """CPU seconds of a process so far: in user mode and in the kernel; threads included, children not."""

    user: float
    system: float

    @property
    def total(self) -> float:
        """Both."""
        return self.user + self.system


def cpu_time(pid: int) -> CpuTime:
    """CPU time of a process. Raises ProcessGone."""
    try:
        times = psutil.Process(pid).cpu_times()
    except psutil.Error as error:
        raise ProcessGone(f"process {pid} has ended") from error
    return CpuTime(times.user, times.system)


def resident_bytes(pid: int) -> int:
    """Memory that a process holds in RAM. Raises ProcessGone."""
    try:
        return int(psutil.Process(pid).memory_info().rss)
    except psutil.Error as error:
        raise ProcessGone(f"process {pid} has ended") from error


class CpuLedger:
    """CPU seconds by name, summed over the processes that had the name one after the other."""

    def __init__(self) -> None:
        self._seconds: dict[str, dict[int, float]] = {}

    def sample(self, pids: Mapping[str, int | None]) -> None:
        """Record what each process has used so far; None: no process has the name now."""
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


@dataclass
class DemoOutcome:
    """Figures of a run. `equal` is True only when everything was replicated and nothing differs."""

    histories: list[str] = field(default_factory=list)
    puts: int = 0
    deletes: int = 0
    value_bytes: int = 0
    replay_seconds: float = 0.0
    longest_pause_seconds: float = 0.0
    """Longest time without an acknowledged write: the cost of the failures to a client that retries."""
    whole_seconds: float = 0.0
    settle_seconds: float = 0.0
    compare_seconds: float = 0.0
    total_seconds: float = 0.0
    """From the clusters' start to the end of the comparison."""
    lag_p50_ms: float | None = None
    lag_p99_ms: float | None = None
    breaks: list[str] = field(default_factory=list)
    """Sentences about each kill and its consequences."""
    in_sync: dict[str, str] = field(default_factory=dict)
    """Replicas in sync of each cluster at the end: "36 of 36"."""
    retries: dict[str, int] = field(default_factory=dict)
    restarts: dict[str, int] = field(default_factory=dict)
    cpu_seconds: dict[str, float] = field(default_factory=dict)
    outstanding: str = ""
    """Why the clusters were still apart when the wait for them ended; empty when nothing was outstanding."""
    keys_compared: int = 0
    deleted_compared: int = 0
    bytes_compared: int = 0
    difference_count: int = 0
    differences: list[str] = field(default_factory=list)
    equal: bool = False

    @property
    def operations(self) -> int:
        """Puts and deletes."""
        return self.puts + self.deletes

    def take(self, verdict: VerifyResult) -> None:
        """Record the result of the comparison."""
        self.keys_compared = verdict.live_count
        self.deleted_compared = verdict.gone_count
        self.bytes_compared = verdict.value_bytes
        self.difference_count = verdict.difference_count
        self.differences = [str(difference) for difference in verdict.differences]
        self.equal = verdict.equal and not self.outstanding

    def show(self, output: str, where: Mapping[str, Any]) -> None:
        """Print everything; `where` goes into the JSON (directory, clusters)."""
        if output == "json":
            echo_json({**asdict(self), "operations": self.operations, **where})
            return
        rate = self.operations / self.replay_seconds if self.replay_seconds else 0.0
        compared = (
            f"{self.keys_compared:,} keys and {self.deleted_compared:,} deleted ones on each cluster, "
            f"{self.bytes_compared / 1e6:,.1f} MB, in {self.compare_seconds:.1f} s"
        )
        rows = [
            ("operations", f"{self.operations:,}: {self.puts:,} puts, {self.deletes:,} deletes"),
            ("values", f"{self.value_bytes / 1e6:,.1f} MB written"),
            ("replay", f"{self.replay_seconds:,.1f} s, {rate:,.0f} operations a second"),
            ("longest pause between two writes", f"{self.longest_pause_seconds:,.1f} s"),
            *(("broken", told) for told in self.breaks),
            ("until every replica was in sync", f"{self.whole_seconds:,.1f} s"),
            *((f"replicas in sync in {name}", told) for name, told in self.in_sync.items()),
            ("until nothing was outstanding", f"{self.settle_seconds:,.1f} s"),
            ("lag", f"p50 {milliseconds(self.lag_p50_ms)}, p99 {milliseconds(self.lag_p99_ms)}"),
            ("attempts repeated", _counts(self.retries)),
            ("restarts", _counts(self.restarts)),
            *((f"CPU of {name}", f"{cpu:.1f} s") for name, cpu in self.cpu_seconds.items()),
            ("compared", compared),
            ("differences", f"{self.difference_count:,}"),
            ("all of it", f"{self.total_seconds:,.0f} s"),
        ]
        echo_table(("figure", "value"), rows)


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in counts.items() if count) or "none"
