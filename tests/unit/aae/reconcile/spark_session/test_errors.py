"""The report of a failed Spark job shows only the sentence with the cause."""

from __future__ import annotations

import pytest

from isthmus.aae.reconcile.spark_progress import SparkProgress
from isthmus.aae.reconcile.spark_session import WORDS_MAX, JobFailed, job, spark_error_line

PLANNED = """\
[PYTHON_DATA_SOURCE_ERROR] Failed to generate Python data source read partitions: Traceback (most recent call last):
  File "/x/aae/reconcile/client.py", line 124, in fetch_plan
    raise PeerFault(f"no node answers which nodes hold which partitions: {'; '.join(trouble)}")
isthmus.repl.model.errors.PeerFault: no node answers which nodes hold which partitions: http://n1:1: connection refused
 SQLSTATE: 38000"""

STAGE = """\
Job aborted due to stage failure: Task 1 in stage 11.0 failed 1 times, most recent failure: Lost task 1.0 in stage 11.0
org.apache.spark.api.python.PythonException: [PYTHON_EXCEPTION] An exception was thrown from the Python worker:
  File "/x/aae/reconcile/reading.py", line 112, in frames
isthmus.aae.reconcile.row_reader.RangeUnreadable: partition 3, segments 0 to 9: no replica could be read: cut off
 SQLSTATE: 38000
\tat org.apache.spark.api.python.BasePythonRunner$ReaderIterator.handlePythonException(PythonRunner.scala:1097)

Driver stacktrace:"""


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (PLANNED, "no node answers which nodes hold which partitions: http://n1:1: connection refused"),
        (STAGE, "partition 3, segments 0 to 9: no replica could be read: cut off"),
        ("[USER_RAISED_EXCEPTION] damaged: no object SQLSTATE: P0001", "[USER_RAISED_EXCEPTION] damaged: no object"),
        ("[PATH_NOT_FOUND] There is no file:/x. SQLSTATE: 42K03", "[PATH_NOT_FOUND] There is no file:/x."),
        ("Oh\n: Job aborted: lost\n\nDriver stacktrace:\n\tat x\n\t... 1 more", "Job aborted: lost"),
        ("", "RuntimeError('')"),
        ("\n \n", "RuntimeError('\\n \\n')"),
        ("x" * 9_999, "x" * WORDS_MAX),
    ],
)  # fmt: skip
def test_a_failure_is_reported_in_one_line(said: str, words: str) -> None:
    """The report has the program's own sentence, without Spark's error codes and stack traces around it."""
    assert spark_error_line(RuntimeError(said)) == words


def test_a_command_reports_why_its_job_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The session is stopped, and the sentence has the command before it."""
    from pyspark.errors import AnalysisException

    stopped: list[int] = []

    class Session:
        def stop(self) -> None:
            stopped.append(1)

    monkeypatch.setattr("isthmus.aae.reconcile.spark_session.session", lambda *_, **__: Session())
    said = r"^stats: no node answers which nodes hold which partitions: http://n1:1: connection refused$"
    with pytest.raises(JobFailed, match=said), job("stats", SparkProgress(print), verbose=True):
        raise AnalysisException(PLANNED)
    assert stopped == [1]
