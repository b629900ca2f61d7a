"""A command says that Spark starts, that it runs, and how far it is, without Java."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from isthmus.aae.reconcile import spark_progress, spark_session
from isthmus.aae.reconcile.spark_progress import SparkProgress, tasks_of
from isthmus.aae.reconcile.spark_session import job


class Session:
    """A session with stages of (done, all) tasks."""

    def __init__(self, *stages: tuple[int, int] | None) -> None:
        infos = [one and SimpleNamespace(numCompletedTasks=one[0], numTasks=one[1]) for one in stages]
        tracker = SimpleNamespace(getActiveStageIds=lambda: range(len(infos)), getStageInfo=lambda at: infos[at])
        self.sparkContext = SimpleNamespace(statusTracker=lambda: tracker)

    def stop(self) -> None:
        """Do nothing."""


class Lines:
    """Lines of progress, and when there are so many."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._changed = threading.Condition()

    def __call__(self, line: str) -> None:
        with self._changed:
            self.lines.append(line)
            self._changed.notify_all()

    def wait_for(self, words: str) -> None:
        """Wait for a line that begins so."""
        with self._changed:
            assert self._changed.wait_for(lambda: any(line.startswith(words) for line in self.lines), 30), self.lines


@pytest.mark.parametrize(
    ("nice", "first"),
    [(10, "starting Spark, at a lower priority (nice 10; --nice 0 turns that off)"), (0, "starting Spark")],
)
def test_a_job_says_that_spark_starts_and_what_it_does(monkeypatch: pytest.MonkeyPatch, nice: int, first: str) -> None:
    """The first line comes before Java does anything; while nothing else is reported, lines follow that say how long
    Spark has been starting, and how many tasks are done. The priority is that which was asked for."""
    monkeypatch.setattr(spark_progress, "REPORT_S", 0.01)
    lines = Lines()
    asked: list[int] = []

    def started(*_: Any, nice: int, **__: Any) -> Session:
        assert lines.lines == [first]
        asked.append(nice)
        lines.wait_for("Spark has been starting for 0 s")
        return Session((3, 10), None, (1, 2))

    monkeypatch.setattr(spark_session, "session", started)
    with SparkProgress(lines) as progress, job("export", progress, verbose=True, nice=nice):
        lines.wait_for("Spark has been running for 0 s: 4 of 12 tasks are done")
    assert asked == [nice]
    assert any(line == "Spark runs, after 0 s" for line in lines.lines)
    assert not [one for one in threading.enumerate() if one.name == "spark-progress"]


def test_a_line_of_the_job_puts_the_next_one_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that reports often enough has no lines of Spark between its own."""
    monkeypatch.setattr(spark_progress, "REPORT_S", 60.0)
    lines = Lines()
    with SparkProgress(lines) as progress:
        progress.starting()
        progress.started(Session(), "/runs/spark.log")
        progress.report("slice 1 of 2")
    assert lines.lines == [
        "starting Spark",
        "Spark runs, after 0 s; its messages are in /runs/spark.log",
        "slice 1 of 2",
    ]


def test_a_session_that_ends_has_no_tasks() -> None:
    """What Spark does not answer ends no job."""
    assert tasks_of(Session()) == "no task at the moment"
    assert tasks_of(SimpleNamespace()) == "its tasks are not known"
