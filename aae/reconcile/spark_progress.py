"""Lines for a terminal while Spark starts, and while it works without a word of the job itself."""

from __future__ import annotations

from collections.abc import Callable
from threading import Event, Thread
from time import monotonic
from types import TracebackType
from typing import Any, Final

Report = Callable[[str], None]
"""Prints a line."""

REPORT_S: Final = 15.0
"""Seconds without a line after which one is printed. Java takes 5 s to start, and minutes on a machine that is busy."""


class SparkProgress:
    """Reports that Spark starts, that it runs, and, once nothing was reported for `REPORT_S`, how far its tasks are;
    from a thread of its own. A context manager."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self._starting = False
        self._spark: Any = None
        self._began_s = self._reported_s = monotonic()
        self._ended = Event()
        self._thread = Thread(target=self._run, name="spark-progress", daemon=True)

    def report(self, line: str) -> None:
        """Print a line of the job itself."""
        self._reported_s = monotonic()
        self._report(line)

    def starting(self, how: str = "") -> None:
        """Report that Spark starts; `how` follows the words."""
        self._starting, self._began_s = True, monotonic()
        self.report(f"starting Spark{how}")

    def started(self, spark: Any, log: str = "") -> None:
        """Report that Spark runs, and the tasks of this session from now on. `log`: where its messages are."""
        lasted_s = monotonic() - self._began_s
        self._spark, self._began_s = spark, monotonic()
        self.report(f"Spark runs, after {lasted_s:.0f} s" + (f"; its messages are in {log}" if log else ""))

    def __enter__(self) -> SparkProgress:
        self._thread.start()
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ended.wait(max(0.0, self._reported_s + REPORT_S - monotonic())):
            if monotonic() - self._reported_s < REPORT_S:
                continue
            lasted_s = monotonic() - self._began_s
            if self._spark is not None:
                self.report(f"Spark has been running for {lasted_s:.0f} s: {tasks_of(self._spark)}")
            elif self._starting:
                self.report(f"Spark has been starting for {lasted_s:.0f} s")
            else:
                self._reported_s = monotonic()


def tasks_of(spark: Any) -> str:
    """How many tasks of the stages that run are done."""
    try:
        tracker = spark.sparkContext.statusTracker()
        stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
    except Exception:  # noqa: BLE001 - Spark may be ending; a line of progress ends no job
        return "its tasks are not known"
    running = [stage for stage in stages if stage is not None]
    if not running:
        return "no task at the moment"
    done, total = (sum(getattr(stage, name) for stage in running) for name in ("numCompletedTasks", "numTasks"))
    return f"{done} of {total} tasks are done"
