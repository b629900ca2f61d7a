"""Decisions of exports and imports without Spark: files at a path, and the use of an unfinished export."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from isthmus.aae.reconcile import batch_jobs, export
from isthmus.aae.reconcile.client import PartitionPlan, ReplicaDirectory
from isthmus.aae.reconcile.export import MARK
from isthmus.aae.run_directory import write_json
from isthmus.aae.trees.tree import BRANCH_COUNT
from isthmus.repl.model.errors import BadInput, LocalFault
from isthmus.repl.model.keys import SEGMENT_COUNT, key_hash, segment_of
from isthmus.repl.model.objects import encode_with_summary
from tests.support.reconcile_pairs import made

ASKED = {"bucket_type": "default", "bucket": "b"}


def state(done: list[int]) -> dict[str, Any]:
    """The state of an export in three slices."""
    return {"asked": ASKED, "slices": 3, "done": done, "cluster": "6565"}


def test_an_export_goes_on_with_its_own_parts_alone(tmp_path: Path) -> None:
    """An export begins in a missing or empty directory, and continues a part of the same export; anything else there is
    refused with the remedy."""
    root = tmp_path / "copy"
    assert export._state(root, ASKED) is None
    root.mkdir()
    assert export._state(root, ASKED) is None
    write_json(root, MARK, state([0, 2]))
    assert export._state(root, ASKED) == state([0, 2])
    with pytest.raises(BadInput, match="something else"):
        export._state(root, {"bucket_type": "default"})
    write_json(root, MARK, state([0, 1, 2]))
    with pytest.raises(BadInput, match="already"):
        export._state(root, ASKED)
    (root / MARK).write_text("{")
    with pytest.raises(LocalFault, match="cannot be read"):
        export._state(root, ASKED)
    (root / MARK).unlink()
    (root / "other").touch()
    with pytest.raises(BadInput, match="is not an export"):
        export._state(root, ASKED)


def test_half_an_export_is_not_imported(tmp_path: Path) -> None:
    """It is refused before a row is pushed."""
    (tmp_path / "slice=0000").mkdir()
    write_json(tmp_path, MARK, state([0]))
    spark: Any = None
    with pytest.raises(BadInput, match="1 of 3 slices"):
        export.import_objects(spark, str(tmp_path), "http://n1:1")


def test_an_export_that_lost_a_slice_is_not_imported(tmp_path: Path) -> None:
    """A finished export with missing parts, for example after an interrupted copy, is refused before a row is pushed,
    with the names of the missing parts; so is one without any."""
    write_json(tmp_path, MARK, state([0, 1, 2]))
    spark: Any = None
    with pytest.raises(BadInput, match="slice=0000, slice=0001, slice=0002 are missing"):
        export.import_objects(spark, str(tmp_path), "http://n1:1")
    for number in (0, 2):
        (tmp_path / f"slice={number:04}").mkdir()
    with pytest.raises(BadInput, match="slice=0001 is missing"):
        export.import_objects(spark, str(tmp_path), "http://n1:1")
    (tmp_path / "slice=0001").mkdir()
    assert len(export.check_whole(str(tmp_path))) == 3
    other = tmp_path / "other"
    other.mkdir()
    assert export.check_whole(str(other)) == []


def test_an_import_is_of_one_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same relative path in another working directory is another export, so a run id that has imported the first
    one refuses it. It also refuses another cluster at the same address, which lacks the imported objects."""
    for name in ("east", "west"):
        (tmp_path / name / "copy").mkdir(parents=True)
    seen: list[str] = []

    class Read:
        def parquet(self, path: str) -> Any:
            seen.append(path)
            raise EOFError

    class Spark:
        read = Read()

    spark: Any = Spark()
    clusters = [b"e" * 16]
    whole = (PartitionPlan(0, 0, SEGMENT_COUNT, 0, ()),)
    monkeypatch.setattr(export, "fetch_plan", lambda *_: ReplicaDirectory(clusters[0], "c", "default", whole))
    directory = export.import_directory(str(tmp_path / "runs"), "again")
    monkeypatch.chdir(tmp_path / "east")
    with pytest.raises(EOFError):
        export.import_objects(spark, "copy", "http://n1:1", directory=directory)
    assert seen == [str(tmp_path / "east" / "copy")]
    clusters[0] = b"w" * 16
    with pytest.raises(BadInput, match="different cluster:"):
        export.import_objects(spark, "copy", "http://n1:1", directory=directory)
    clusters[0] = b"e" * 16
    monkeypatch.chdir(tmp_path / "west")
    with pytest.raises(BadInput, match="different path:"):
        export.import_objects(spark, "copy", "http://n1:1", directory=directory)


def test_an_export_is_of_one_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An interrupted export continues with the cluster that it began with. With URLs of another cluster, or if they
    lead to another one by then, it is refused, and nothing is overwritten."""
    clusters = [b"e" * 16]
    written: list[str] = []

    def plan(*_: Any) -> ReplicaDirectory:
        rows = PartitionPlan(0, 0, SEGMENT_COUNT, 2_500_000, ())
        return ReplicaDirectory(clusters.pop(0) if len(clusters) > 1 else clusters[0], "c", "default", (rows,))

    def write(_rows: Any, path: str) -> None:
        if len(written) == 1:
            raise EOFError
        written.append(path)

    monkeypatch.setattr(export, "fetch_plan", plan)
    monkeypatch.setattr(export, "read", lambda *_, **__: None)
    monkeypatch.setattr(export, "_write", write)
    monkeypatch.setattr(export, "_count", lambda *_: 7)
    spark: Any = None
    root = str(tmp_path / "copy")

    def exported() -> int:
        return export.export_objects(spark, "http://n1:1", "default", "", root)

    with pytest.raises(EOFError):
        exported()
    written.clear()
    clusters[:] = [b"w" * 16]
    with pytest.raises(BadInput, match=r"of cluster 6565.* is 7777"):
        exported()
    assert written == []
    clusters[:] = [b"e" * 16, b"e" * 16, b"w" * 16]
    with pytest.raises(BadInput, match=r"of cluster 6565.* is 7777"):
        exported()
    assert [Path(path).name for path in written] == ["slice=0001"]
    monkeypatch.setattr(export, "_write", lambda _rows, path: written.append(path))
    clusters[:] = [b"e" * 16]
    assert exported() == 7
    assert [Path(path).name for path in written] == ["slice=0001", "slice=0002"]


def test_leaves_of_exported_objects_are_those_of_their_key_rows() -> None:
    """The leaf built from the bytes of an object equals that of the node's key row; a tombstone adds nothing."""
    made_objects = [made("one"), made("two", a=2, b=1), made("", dead=True)]
    sealed = [encode_with_summary(one) for one in made_objects]
    names = [(b"b", b"k%d" % at) for at in range(3)]
    found = batch_jobs._exported_leaves(
        pa.array([b for b, _ in names]), pa.array([k for _, k in names]), pa.array([data for data, _ in sealed])
    ).to_pylist()
    hashes = [summary.hash64 - (summary.hash64 >> 63 << 64) for _, summary in sealed]
    rows = batch_jobs._leaves(
        pa.array([b for b, _ in names]), pa.array([k for _, k in names]),
        pa.array([summary.clock for _, summary in sealed]), pa.array(hashes, pa.int64()),
        pa.array([summary.tombstone for _, summary in sealed]), pa.nulls(3),
    ).to_pylist()  # fmt: skip
    assert [one["leaf"] for one in found] == rows
    assert rows[2] == 0
    assert [one["segment"] for one in found] == [segment_of(key_hash(*name)) for name in names]


EVERYWHERE = [4, 5, 8, 2_900, 1_000_000]


@pytest.mark.parametrize(
    ("segments", "wanted", "branches"),
    [
        ({"segments": "5-9"}, [5, 8], 1),
        ({"segments": "0-3000"}, [4, 5, 8, 2_900], 3),
        ({}, EVERYWHERE, BRANCH_COUNT),
    ],
)
def test_trees_are_asked_for_the_branches_of_the_segments(
    monkeypatch: pytest.MonkeyPatch, segments: dict[str, str], wanted: list[int], branches: int
) -> None:
    """Only branches with requested segments are read, and segments outside are not named."""
    import numpy as np

    asked: list[int] = []
    leaves = np.zeros(1 << 20, np.uint64)
    leaves[EVERYWHERE] = 1

    def leaves_of(_side: Any, branches: range) -> Any:
        asked.extend(branches)
        return leaves[branches.start * 1024 : branches.stop * 1024]

    monkeypatch.setattr(batch_jobs, "leaves_of", leaves_of)
    monkeypatch.setattr(batch_jobs, "read", lambda *_, **__: EmptyTable())
    spark: Any = None
    monkeypatch.setattr(batch_jobs.F, "arrow_udf", lambda *_: lambda *_: EmptyTable())
    monkeypatch.setattr(batch_jobs.F, "col", lambda *_: EmptyTable())
    monkeypatch.setattr(batch_jobs.F, "bit_xor", lambda *_: EmptyTable())
    assert batch_jobs.trees(spark, "http://n1:1", "default", segments) == wanted
    assert len(asked) == branches


class EmptyTable:
    """A table that is empty after any operation."""

    def __getattr__(self, name: str) -> Any:
        return lambda *_: iter(()) if name == "toLocalIterator" else self

    def __ge__(self, _: object) -> Any:
        return self

    def __lt__(self, _: object) -> Any:
        return self

    def __and__(self, _: object) -> Any:
        return self
