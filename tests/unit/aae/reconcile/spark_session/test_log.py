"""The log file of Spark's own messages, and the error of a session that does not start, without Spark."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pytest
from pyspark.errors import AnalysisException, PySparkRuntimeError

from isthmus.aae.reconcile import spark_session
from isthmus.aae.reconcile.spark_progress import SparkProgress
from isthmus.aae.reconcile.spark_session import JobFailed, SparkNotStarted, job, last_words, wrapped

SILENT: Final = SparkProgress(lambda _: None)


def java(path: Path, text: str) -> Path:
    """A Java that does this."""
    path.write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
    path.chmod(0o755)
    return path


def test_the_script_of_a_java_sends_its_messages_to_a_file(tmp_path: Path) -> None:
    """Only standard error is redirected, appended to the file of any name; without a file it is not redirected."""
    log = tmp_path / "it's a log"
    real = java(tmp_path / "real", "echo out; echo err >&2")
    for nice in (0, 5):
        script = wrapped(real, tmp_path / f"home-{nice}", "", nice, log) / "bin" / "java"
        done = subprocess.run([script], capture_output=True, text=True, check=True)
        assert (done.stdout, done.stderr) == ("out\n", "")
    assert log.read_text() == "err\nerr\n"
    plain = wrapped(real, tmp_path / "plain", "", 0) / "bin" / "java"
    assert subprocess.run([plain], capture_output=True, text=True, check=True).stderr == "err\n"


PROGRAM: Final = """\
import sys
from pathlib import Path
from isthmus.aae.reconcile import spark_session
java, log = map(Path, sys.argv[1:])
spark_session._java = lambda: (java, "")
try:
    spark_session.session("test", log=log)
except spark_session.SparkNotStarted as error:
    print(error)
"""
"""In a process of its own: PySpark leaves a pipe to a Java that has ended."""


def test_a_session_that_does_not_start_says_why(tmp_path: Path) -> None:
    """The error has Java's last line that is not a stack trace, and the name of the log file; nothing else is
    printed."""
    real = java(tmp_path / "real", "echo 'Error: no memory' >&2; echo '    at x.y(Z.java:1)' >&2; exit 1")
    log = tmp_path / "run" / "spark.log"
    env = {name: value for name, value in os.environ.items() if name != "PYSPARK_GATEWAY_PORT"}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PROGRAM, real, log], capture_output=True, text=True, check=True, env=env
    )
    assert done.stdout == f"Spark did not start: Error: no memory (in {log})\n"
    assert "no memory" not in done.stderr
    assert last_words(tmp_path / "none") == ""


class Session:
    """A session that can be stopped."""

    def stop(self) -> None:
        """Do nothing."""


def test_the_log_of_a_job_is_kept_if_it_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job without a directory of its own logs into a temporary file, which is deleted if the job succeeds and named
    in the error if it fails. A log file named by the user is left alone; with `verbose` there is none."""
    logs: list[Path | None] = []

    def started(*_: Any, log: Path | None, **__: Any) -> Session:
        logs.append(log)
        return Session()

    monkeypatch.setattr(spark_session, "session", started)
    monkeypatch.setattr(spark_session.tempfile, "tempdir", str(tmp_path))
    with job("stats", SILENT):
        assert logs[-1] is not None
        assert logs[-1].exists()
    assert not list(tmp_path.iterdir())
    with pytest.raises(JobFailed, match=r"^stats: damaged .Spark's messages: .*isthmus-spark-"), job("stats", SILENT):
        raise AnalysisException("damaged")
    assert list(tmp_path.iterdir()) == [logs[-1]]
    with job("seed", SILENT, log=tmp_path / "spark.log"):
        assert logs[-1] == tmp_path / "spark.log"
    with pytest.raises(JobFailed, match=r"^stats: damaged$"), job("stats", SILENT, verbose=True):
        raise AnalysisException("damaged")
    assert logs[-1] is None

    def not_started(*_: Any, **__: Any) -> Any:
        raise SparkNotStarted("Spark did not start: x") from PySparkRuntimeError("x")

    monkeypatch.setattr(spark_session, "session", not_started)
    with pytest.raises(SparkNotStarted), job("stats", SILENT):
        raise AssertionError("there is no session")
    assert len(list(tmp_path.iterdir())) == 2
