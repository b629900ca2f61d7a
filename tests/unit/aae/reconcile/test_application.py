"""The application of spark-submit, without Spark: the options of the command, and exit codes that claim no more than
was found."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from isthmus.aae.reconcile import application, job, spark_session
from isthmus.aae.reconcile.application import FLAGS, OLD_FLAGS, main
from isthmus.aae.reconcile.job import ReconcileOptions
from isthmus.node.cli.reconcile import run as command
from isthmus.repl.model.errors import BadInput

ENDS = ["--left", "http://l:1", "--right", "http://r:1", "--dir", "/o", "--run-id", "r"]


class FakeSession:
    """A session that can be stopped."""

    def stop(self) -> None:
        """See SparkSession."""


def test_the_application_takes_the_options_of_the_command() -> None:
    """Each field of a run has one flag, and the command has exactly these flags and its own."""
    fields = [field for _, field, _, _ in FLAGS]
    assert {*fields, "output", "run_id"} == {*ReconcileOptions._fields}
    assert len(fields) == len(set(fields))
    flags = {opt for parameter in command.params for opt in parameter.opts if opt.startswith("--")}
    of_the_command = {"--left", "--right", "--dir", "--run-id", "--master", "--nice", "--verbose", "--output"}
    assert flags == {flag for flag, *_ in FLAGS} | of_the_command
    old = {name for parameter in command.params for name in getattr(parameter, "old", ())}
    assert old == {*OLD_FLAGS}


def test_arguments_become_options(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Times, durations, bytes and switches are parsed; the summary is the last line, and its code is the result."""
    seen: list[Any] = []

    def run(_spark: Any, left: str, right: str, options: ReconcileOptions, told: Any) -> dict[str, Any]:
        seen.append((left, right, options))
        told("half")
        return {"exit_code": 3}

    monkeypatch.setattr(spark_session, "session", lambda _name: FakeSession())
    monkeypatch.setattr(job, "run", run)
    more = ["--bucket", "0xff00", "--modified-since", "1970-01-01T00:00:01", "--settle", "1500ms", "--max-time", "2m"]
    assert main([*ENDS, *more, "--bodies", "--give-up-after", "100ms", "--sample", "0.5"]) == 3
    [(left, right, options)] = seen
    assert (left, right) == ("http://l:1", "http://r:1")
    assert options == ReconcileOptions(
        "/o", "r", bucket=b"\xff\x00", modified_since_ms=1_000, settle_s=1.5, max_time_s=120, bodies=True,
        give_up_after_s=1, sample=0.5,
    )  # fmt: skip
    out, err = capsys.readouterr()
    assert json.loads(out.splitlines()[-1]) == {"exit_code": 3}
    assert err == "half\n"


@pytest.mark.parametrize("error", [BadInput("so not"), RuntimeError("a bug")])
def test_a_failure_is_an_error_and_no_difference(
    error: Exception, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An exception would end the interpreter with 1, which means that clusters differ; the application ends with 2 and
    prints the error."""

    def run(*_: object) -> dict[str, Any]:
        raise error

    monkeypatch.setattr(spark_session, "session", lambda _name: FakeSession())
    monkeypatch.setattr(job, "run", run)
    assert main(ENDS) == 2
    assert str(error) in capsys.readouterr().err
    slips = (["--modified-since", "20260203"], ["--modified-before", "0"], ["--modified-before", "1970-01-01"])
    for wrong in (*slips, ["--settle", "soon"], ["--bucket", "0xf"], ["--modified-since", "today"], ["--sample"]):
        with pytest.raises(SystemExit) as ended:
            main([*ENDS, *wrong])
        assert ended.value.code == 2


def test_the_file_stands_alone() -> None:
    """Nothing of the product is imported before Spark has put the archive on the path."""
    text = Path(application.__file__).read_text(encoding="utf-8")
    head = text[: text.index("def _seconds")]
    assert not any(
        f"{word} {room}" in head for word in ("from", "import") for room in ("aae", "repl", "config", "node")
    )
