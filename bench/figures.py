"""Benchmark results: work, key space, cost and target, printed as a table or as one JSON object.

A rate per core is the number of objects divided by the CPU seconds of the measured processes. CPU seconds compare
between machines better than rates do.
"""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import psutil
from rich.console import Console
from rich.table import Table

NO_OPTIONS: Final[Mapping[str, Any]] = MappingProxyType({})

PIPE_COLUMNS = 220
"""Width of the table when it goes to a file: no column is folded."""


class CpuTime(NamedTuple):
    """CPU seconds of a process so far, in user mode and in the kernel, with all threads but without children."""

    user: float
    system: float

    @property
    def total(self) -> float:
        """User and system time together."""
        return self.user + self.system


def cpu_time(pid: int) -> CpuTime:
    """CPU time of a process. Raises psutil.Error."""
    times = psutil.Process(pid).cpu_times()
    return CpuTime(times.user, times.system)


@dataclass(frozen=True)
class Target:
    """The target of a figure: a lower bound, or an upper bound when `at_least` is False."""

    value: float
    unit: str
    at_least: bool = True

    def __str__(self) -> str:
        return f"{'≥' if self.at_least else '≤'} {self.value:g} {self.unit}"

    def reached(self, value: float) -> bool:
        """True when `value` meets the target."""
        return value >= self.value if self.at_least else value <= self.value


@dataclass
class Figure:
    """One measurement."""

    work: str
    """Description of the work."""
    key_space: str
    """The keys that were used; every rate depends on their number."""
    objects: int = 0
    seconds: float = 0.0
    cpu: dict[str, CpuTime] = field(default_factory=dict)
    """CPU seconds by process during the measurement."""
    values: dict[str, float] = field(default_factory=dict)
    """Further measurements; each name contains its unit."""
    target: Target | None = None
    measured: float | None = None
    """The value that is compared with `target`."""
    failed: dict[str, int] = field(default_factory=dict)

    @property
    def rate(self) -> float:
        """Objects per second of wall time."""
        return self.objects / self.seconds if self.seconds else 0.0

    def per_100k(self, process: str) -> CpuTime:
        """CPU seconds of a process per 100,000 objects."""
        scale = 100_000 / max(1, self.objects)
        return CpuTime(self.cpu[process].user * scale, self.cpu[process].system * scale)

    def to_json(self) -> dict[str, Any]:
        """The figure as a JSON object."""
        document = asdict(self)
        document["rate_per_s"] = round(self.rate, 1)
        document["cpu"] = {name: _rounded(cpu) for name, cpu in self.cpu.items()}
        if self.objects:
            document["cpu_per_100k"] = {name: _rounded(self.per_100k(name)) for name in self.cpu}
        if self.target is not None and self.measured is not None:
            document["target"] = str(self.target)
            document["reached"] = self.target.reached(self.measured)
        return document


def _cost(figure: Figure, process: str) -> str:
    cost = figure.per_100k(process)
    return f"{process} {cost.total:.2f} ({cost.system:.2f} in the kernel)"


def _rounded(cpu: CpuTime) -> dict[str, float]:
    return {"total": round(cpu.total, 3), "user": round(cpu.user, 3), "system": round(cpu.system, 3)}


def machine() -> dict[str, Any]:
    """The machine on which the figures were taken."""
    model = "unknown"
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
            break
    load_1min = os.getloadavg()[0]
    return {
        "processor": model,
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "load_before": round(load_1min, 2),
        "taken_s": round(time.time()),
    }


def report(
    name: str,
    where: Mapping[str, Any],
    figures: list[Figure],
    as_json: bool,
    profile: list[str],
    options: Mapping[str, Any] = NO_OPTIONS,
    notes: Sequence[str] = (),
) -> None:
    """Print all figures of one benchmark, the options on which they depend, then `notes`: sentences about them."""
    if as_json:
        document = {"bench": name, "machine": dict(where), **options, "figures": [f.to_json() for f in figures]}
        if profile:
            document["profile"] = profile
        if notes:
            document["notes"] = list(notes)
        print(json.dumps(document, ensure_ascii=False))
        return
    console = Console()
    if not console.is_terminal:
        console = Console(width=PIPE_COLUMNS)
    chosen = "".join(f", {option} {value}" for option, value in options.items())
    table = Table(title=f"{name}{chosen} on {where['cores']} × {where['processor']}, Python {where['python']}")
    for column in ("work", "key space", "objects", "objects/s", "CPU s per 100k", "measured", "target", "result"):
        table.add_column(column, overflow="fold")
    for figure in figures:
        values = [f"{key.replace('_', ' ')} {value:,.3g}" for key, value in figure.values.items()]
        values += [f"{count} with status {status}" for status, count in figure.failed.items()]
        verdict = ""
        if figure.target is not None and figure.measured is not None:
            verdict = "reached" if figure.target.reached(figure.measured) else "[bold]missed[/bold]"
            values.insert(0, f"[bold]{figure.measured:,.4g} {figure.target.unit}[/bold]")
        table.add_row(
            figure.work,
            figure.key_space,
            f"{figure.objects:,}" if figure.objects else "",
            f"{figure.rate:,.0f}" if figure.objects else "",
            "\n".join(_cost(figure, process) for process in figure.cpu) if figure.objects else "",
            "\n".join(values),
            "" if figure.target is None else str(figure.target),
            verdict,
        )
    console.print(table)
    for line in (*notes, *profile):
        console.print(line, markup=False, highlight=False)
