"""Display of a running demo: live tables on a terminal, else a plain line every few seconds.

Text from a cluster is shown as text, without markup.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Iterable
from typing import Final, NamedTuple, Protocol, TextIO

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from isthmus.node.cli.output import cell, milliseconds
from isthmus.node.demo.watch import DemoSnapshot

PLAIN_INTERVAL_S: Final = 10.0
"""Between two plain lines: a run of two minutes leaves a dozen in a log, and notes stand out."""

RATE_WINDOW_S: Final = 5.0
"""Window of the shown rate: short enough to show a killed node, long enough not to flicker."""


class DemoProgress(NamedTuple):
    """Progress of a run: `done` of `total` `unit`s of a `phase`; `retries` counts repeated attempts so far."""

    phase: str
    unit: str
    done: int
    total: int
    elapsed_s: float
    retries: int
    snapshot: DemoSnapshot

    def counted(self) -> str:
        """The progress in numbers."""
        return f"{self.done:,} of {self.total:,} {self.unit}"

    def facts(self) -> Iterable[tuple[str, str]]:
        """State of clusters, queues, sinks and retries, as (name, text)."""
        clusters = self.snapshot.clusters
        yield from (("cluster", cluster.text()) for cluster in clusters if cluster.partitions is not None)
        for cluster in clusters:
            waiting, in_flight = ("unknown" if n is None else f"{n:,}" for n in (cluster.waiting, cluster.in_flight))
            yield "queue", f"{cluster.name}/{cluster.queue}: {waiting} waiting, {in_flight} in flight"
        for cluster in clusters:
            if cluster.recent_lag_ms is not None:
                p50, p99 = map(milliseconds, cluster.recent_lag_ms)
                yield "lag", f"to {cluster.name}: p50 {p50}, p99 {p99}"
        if self.retries:
            yield "retries", f"{self.retries:,}"
        if self.snapshot.unknown:
            yield "away", ", ".join(who.partition(":")[0] for who in self.snapshot.unknown)


class DemoView(Protocol):
    """Display of a run."""

    def note(self, line: str) -> None:
        """Print a line."""

    def update(self, progress: DemoProgress) -> None:
        """Show progress; may be called often."""

    def close(self) -> None:
        """Remove the progress; notes may follow."""


class _Rate:
    """Units a second over the last RATE_WINDOW_S."""

    def __init__(self) -> None:
        self._points: deque[tuple[float, int]] = deque()
        self._phase = ""

    def of(self, progress: DemoProgress) -> float:
        if progress.phase != self._phase:
            self._phase = progress.phase
            self._points.clear()
        now_s = time.monotonic()
        self._points.append((now_s, progress.done))
        while len(self._points) > 2 and now_s - self._points[0][0] > RATE_WINDOW_S:
            self._points.popleft()
        first_s, first = self._points[0]
        return (progress.done - first) / (now_s - first_s) if now_s > first_s else 0.0


class PlainView:
    """A `DemoView` of lines, for a log."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._rate = _Rate()
        self._shown_s = 0.0

    def note(self, line: str) -> None:
        print(line, file=self._stream, flush=True)

    def update(self, progress: DemoProgress) -> None:
        rate = self._rate.of(progress)
        if time.monotonic() - self._shown_s < PLAIN_INTERVAL_S:
            return
        self._shown_s = time.monotonic()
        counted = [f"{progress.counted()}  {rate:,.0f}/s"] if progress.total else []
        facts = [f"{name} {text}" for name, text in progress.facts() if name != "cluster"]  # changes are notes
        self.note("  ".join([f"{progress.elapsed_s:5.0f} s  {' '.join([progress.phase, *counted])}", *facts]))

    def close(self) -> None:
        """Nothing is held."""


class LiveView:
    """A `DemoView` that redraws tables on a terminal; notes stay above them."""

    def __init__(self) -> None:
        self._console = Console()
        self._rate = _Rate()
        self._live: Live | None = None

    def note(self, line: str) -> None:
        self._console.print(Text(line))

    def update(self, progress: DemoProgress) -> None:
        if self._live is None:
            self._live = Live(console=self._console, refresh_per_second=4, transient=True)
            self._live.start()
        self._live.update(self._tables(progress))

    def close(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _tables(self, progress: DemoProgress) -> RenderableType:
        head = Table.grid(padding=(0, 2))
        head.add_column(style="bold")
        head.add_column()
        elapsed, rate = f"{progress.elapsed_s:.0f} s", self._rate.of(progress)
        if progress.total:
            share = progress.done / progress.total
            head.add_row(progress.phase, Text(f"{progress.counted()} ({share:.0%})  {rate:,.0f}/s"))
            head.add_row(elapsed, ProgressBar(progress.total, progress.done, width=50))
        else:
            head.add_row(progress.phase, Text(elapsed))
        for name, text in progress.facts():
            head.add_row(name, Text(text))
        processes = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
        for column in ("process", "state", "pid", "restarts", ""):
            processes.add_column(column, style="dim" if column == "" else "")
        for process in progress.snapshot.processes:
            state = Text(process.state, style="green" if process.state == "running" else "bold red")
            pid, restarts = cell(process.pid or ""), str(process.restarts)
            processes.add_row(Text(process.name), state, pid, restarts, Text(process.reason))
        return Group(Text(), head, Text(), processes)


def view_for(output: str) -> DemoView:
    """Live tables where standard output is a terminal and is not used for JSON, else plain lines."""
    if output == "json":
        return PlainView(sys.stderr)
    return LiveView() if sys.stdout.isatty() else PlainView(sys.stdout)
