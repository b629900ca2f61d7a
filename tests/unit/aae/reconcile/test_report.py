"""The driver's evaluation of the files that tasks wrote: counts, candidates for second looks, findings by verdict."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from isthmus.aae.reconcile import findings as findings_module
from isthmus.aae.reconcile import report
from isthmus.aae.reconcile.compare_tasks import _FIRST, _SECOND, COUNTED
from isthmus.aae.reconcile.findings import COLUMNS, counted, read_findings, summarized
from isthmus.aae.reconcile.report import counts_so_far, fits_driver, read_counts, read_payloads, write_findings
from isthmus.aae.run_directory import ChunkResult, RunDirectory, RunProgress


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
    """The newer findings of a chunk that was read twice count; earlier ones are deleted, and a run without findings has
    an empty directory."""
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
    """The candidates of the requested chunks are taken from the wave that counts; too many are left to Spark."""
    run = RunDirectory(str(tmp_path), "r")
    write_wave(run, 1, _FIRST, [{"chunk": n, "candidates": 5, "payload": b"p%d" % n} for n in range(4)])
    write_wave(run, 2, _FIRST, [{"chunk": 1, "candidates": 5, "payload": b"newer"}])
    done = {one.chunk: one for one in read_counts(run, 1)}
    looks = {1: (2, done[1]), 3: (1, done[3])}
    assert sorted(read_payloads(run, looks)) == [(1, b"newer"), (3, b"p3")]
    assert fits_driver(looks)
    monkeypatch.setattr(report, "FEW", 9)
    assert not fits_driver(looks)


def test_findings_are_counted_by_group_the_largest_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bucket names that are not UTF-8, and verdicts without a difference or side, are counted, too; a summary has the
    largest groups and the numbers of those left out."""
    run = RunDirectory(str(tmp_path), "r")
    lost = {"difference": "missing", "side": "sink"}
    rows = [finding(f"k{n}", "diverged") | lost | {"bucket": b"b%d\xff" % (n % 2)} for n in range(7)]
    write_wave(run, 1, _SECOND, [{"chunk": 1, "candidates": 8, "findings": [*rows, finding("t", "transient")]}])
    write_findings(run, {1: (1, read_counts(run, 1)[0])}, 0)
    path = run.path / "findings"
    assert [tuple(row.values()) for row in counted(path)] == [
        ("diverged", "missing", "sink", "b0\\xff", 4), ("diverged", "missing", "sink", "b1\\xff", 3),
        ("transient", None, None, "b", 1),
    ]  # fmt: skip
    assert summarized(path) == {"groups": counted(path), "groups_left": 0, "findings_left": 0}
    monkeypatch.setattr(findings_module, "GROUPS_MAX", 1)
    assert summarized(path) == {"groups": counted(path)[:1], "groups_left": 2, "findings_left": 4}
    assert summarized(tmp_path / "none") == {"groups": [], "groups_left": 0, "findings_left": 0}


def test_counts_of_a_run_that_goes_on() -> None:
    """Differing keys wait for the second look of their chunk; keys that were looked at twice have a verdict."""

    def look(chunk: int, **counts: int) -> tuple[int, ChunkResult]:
        zero = dict.fromkeys(ChunkResult._fields[2:], 0)
        return 1, ChunkResult(chunk, "", **{**zero, **counts})

    first = {1: look(1, match=5, candidates=3, filtered=1), 2: look(2, match=4, candidates=2)}
    second = {1: look(1, candidates=3, transient=1, diverged=1, unreachable=1)}
    assert counts_so_far(RunProgress(first, second, {}, 0, 2)) == {
        "match": 9, "transient": 1, "diverged": 1, "filtered": 1, "unreachable": 1, "waiting": 2,
    }  # fmt: skip
