"""The view `findings`: which directories are a run's, and that nothing but findings comes out of them."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import types as t

from isthmus.aae.reconcile.datasource import FindingsReader
from isthmus.aae.reconcile.options import RunOptions
from isthmus.repl.model.errors import BadInput

NO_SCHEMA = t.StructType([])


def files(directory: Path) -> list[str]:
    """The files of a directory that Spark reads, relative to it."""
    parts = FindingsReader(RunOptions(path=str(directory)), NO_SCHEMA).partitions()
    return [str(Path(part.value[1]).relative_to(directory)) for part in parts if part.value is not None]


def put(path: Path) -> None:
    """A file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()


def test_findings_are_a_run_s_and_nothing_else(tmp_path: Path) -> None:
    """A run's own directory, its findings and a copy of them are read; files that Spark is writing, or left when it was
    killed, are not findings."""
    run = tmp_path / "run_id=may"
    put(run / "findings" / "verdict=diverged" / "part-0.parquet")
    put(run / "findings" / "_temporary" / "0" / "_temporary" / "x" / "verdict=diverged" / "part-0.parquet")
    put(run / "findings" / "verdict=diverged" / ".part-1.parquet")
    put(run / "segments" / "segments.parquet")
    put(run / "work" / "00000" / "part-0.parquet")
    assert files(run) == ["findings/verdict=diverged/part-0.parquet"]
    assert files(run / "findings") == ["verdict=diverged/part-0.parquet"]
    (run / "findings").rename(tmp_path / "copy")
    assert files(tmp_path / "copy") == ["verdict=diverged/part-0.parquet"]
    (run / "findings").mkdir()
    assert files(run) == files(run / "findings") == []


def test_directories_without_findings_are_refused(tmp_path: Path) -> None:
    """Those of all runs, and that of a run that has not ended: their other tables are not taken for findings."""
    put(tmp_path / "run_id=may" / "findings" / "verdict=diverged" / "part-0.parquet")
    put(tmp_path / "run_id=june" / "work" / "00000" / "part-0.parquet")
    for directory in (tmp_path, tmp_path / "run_id=june", tmp_path / "none"):
        with pytest.raises(BadInput, match="OUTPUT/run_id=ID"):
            files(directory)
