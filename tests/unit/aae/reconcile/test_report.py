"""What the driver makes of the files that tasks wrote: counts, candidates for second looks, findings by verdict."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from isthmus.aae.reconcile import report
from isthmus.aae.reconcile.compare_tasks import _FIRST, _SECOND, COUNTED
from isthmus.aae.reconcile.findings import COLUMNS, counted, read_findings
from isthmus.aae.reconcile.report import fits_driver, read_counts, read_payloads, write_findings
from isthmus.aae.reconcile.run_directory import ChunkResult, RunDirectory


def write_wave(directory: RunDirectory, number: int, kind: Any, rows: Sequence[dict[str, Any]]) -> None:
    """A wave's rows, a file each, as Spark leaves them."""
    path = Path(directory.rows_of(number))
    path.mkdir(parents=True)
    for at, row in enumerate([None, *rows]):
        some = [] if row is None else [dict.fromkeys(COUNTED, 0) | {"error": ""} | row]
        pq.write_table(pa.table({"row": pa.array(some, kind)}), path / f"part-{at}.parquet")
    (path / "_SUCCESS").touch()


def finding(key: str, verdict: str) -> dict[str, Any]:
    """A row."""
    return dict.fromkeys(COLUMNS) | {"bucket": b"b", "key": key.encode(), "verdict": verdict, "left_hash": -1}


def test_findings_are_those_of_the_looks_that_count(tmp_path: Path) -> None:
    """Of a chunk that was looked at twice the newer one; earlier findings are gone, and nothing found is an empty
    directory."""
    run = RunDirectory(str(tmp_path), "r")
    write_wave(run, 1, _SECOND, [
        {"chunk": 1, "candidates": 1, "findings": [finding("old", "unreachable")]},
        {"chunk": 2, "candidates": 2, "findings": [finding("a", "diverged"), finding("f", "filtered")]},
    ])  # fmt: skip
    write_wave(run, 2, _SECOND, [{"chunk": 1, "candidates": 1, "findings": [finding("new", "diverged")]}])
    first = {done.chunk: (1, done) for done in read_counts(run, 1)}
    assert first[2][1] == ChunkResult(2, "", 0, 0, 0, 2, 0, 0)
    write_findings(run, first, 0)
    assert {row["verdict"] for row in counted(run.path / "findings")} == {"unreachable", "diverged", "filtered"}
    looks = first | {1: (2, read_counts(run, 2)[0])}
    write_findings(run, looks, 0)
    rows = list(read_findings(run.path / "findings", ("key", "verdict", "left_hash")))
    assert {row["key"]: row["verdict"] for row in rows} == {b"new": "diverged", b"a": "diverged", b"f": "filtered"}
    assert {row["left_hash"] for row in rows} == {-1}
    write_findings(run, looks, 1)
    assert sorted(row["verdict"] for row in read_findings(run.path / "findings", ("verdict",))) == [
        "diverged", "filtered",
    ]  # fmt: skip
    write_findings(run, {}, 0)
    assert (run.path / "findings").is_dir()
    assert not list(read_findings(run.path / "findings", ("verdict",)))


def test_candidates_go_to_second_looks_as_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of the chunks that were asked for, of the wave that counts; too many stay with Spark."""
    run = RunDirectory(str(tmp_path), "r")
    write_wave(run, 1, _FIRST, [{"chunk": n, "candidates": 5, "payload": b"p%d" % n} for n in range(4)])
    write_wave(run, 2, _FIRST, [{"chunk": 1, "candidates": 5, "payload": b"newer"}])
    done = {one.chunk: one for one in read_counts(run, 1)}
    looks = {1: (2, done[1]), 3: (1, done[3])}
    assert sorted(read_payloads(run, looks)) == [(1, b"newer"), (3, b"p3")]
    assert fits_driver(looks)
    monkeypatch.setattr(report, "FEW", 9)
    assert not fits_driver(looks)
