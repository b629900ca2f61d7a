"""`writeStream.format("isthmus")`: what a micro-batch that is written again sends, and what a query may ask for,
without Java and without nodes."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.sql import types as t

from isthmus.aae.reconcile.datasource import IsthmusSource
from isthmus.aae.reconcile.row_writer import WriteTaskResult
from isthmus.aae.reconcile.stream_writer import BATCH_ID, QUERY_ID, IsthmusStreamWriter
from isthmus.repl.model.errors import BadInput, LocalFault
from tests.unit.aae.reconcile.test_row_writer import PUSHES, PUTS, answering, rows

QUERY = str(UUID(int=7))
GIVEN = {"urls": "http://n1:1", "checkpointlocation": "/lake/checkpoint"}
WRITTEN = (204, b"clock", None)


def in_task(monkeypatch: pytest.MonkeyPatch, **properties: str) -> None:
    """Gives this thread the context of a task with these local properties."""
    context = object.__new__(TaskContext)
    context._localProperties = properties
    monkeypatch.setattr(TaskContext, "_taskContext", context)


def writer(schema: t.StructType = PUTS, *, overwrite: bool = False, **options: str) -> IsthmusStreamWriter:
    """As Spark makes it: anew for each batch, with the options of the query."""
    made = IsthmusSource({**GIVEN, **options}).streamWriter(schema, overwrite)
    assert isinstance(made, IsthmusStreamWriter)
    return made


def request_ids(monkeypatch: pytest.MonkeyPatch, query: str, batch: int, *values: bytes | None) -> list[str]:
    """Of the rows of a batch, written by a writer of its own."""
    in_task(monkeypatch, **{QUERY_ID: query, BATCH_ID: str(batch)})
    asked = answering(monkeypatch, [WRITTEN] * len(values))
    writer().write(iter([rows("value", *values)]))
    return [row[7] for row in asked[0]]


def test_a_batch_that_is_written_again_has_the_same_request_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are of query, batch and row: another writer of the same batch has them again, and the same rows in another
    batch, or of another query, are writes of their own."""
    first = request_ids(monkeypatch, QUERY, 4, b"v", None)
    assert request_ids(monkeypatch, QUERY, 4, b"v", None) == first
    others = [*first, *request_ids(monkeypatch, QUERY, 5, b"v", None)]
    others += request_ids(monkeypatch, str(UUID(int=8)), 4, b"v", None)
    assert len(set(others)) == 6


def test_a_task_without_the_number_of_its_batch_writes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine that does not tell query and batch could not repeat a batch; the error names what is missing."""
    asked = answering(monkeypatch)
    for properties in ({}, {QUERY_ID: QUERY}, {BATCH_ID: "1"}):
        in_task(monkeypatch, **properties)
        with pytest.raises(LocalFault, match=r"no sql\.streaming\.queryId and streaming\.sql\.batchId"):
            writer().write(iter([rows("value", b"v")]))
    assert asked == []


def test_a_query_has_the_options_and_the_columns_of_a_write() -> None:
    """Options and columns are checked as those of df.write; the query's own checkpointLocation is not taken for an
    option of this format, and the output mode complete is refused with what would be right."""
    writer(PUSHES, origin="00" * 16)
    with pytest.raises(BadInput, match="option on_conflit is unknown, did you mean on_conflict"):
        writer(on_conflit="replace")
    with pytest.raises(BadInput, match="those with object have a clock"):
        writer(PUSHES, on_conflict="replace")
    with pytest.raises(BadInput, match=r"column value .*none"):
        writer(t.StructType(PUTS.fields[:2]))
    with pytest.raises(BadInput, match=r'outputMode\("complete"\).*"append" or "update", with .*on_conflict = replace'):
        writer(overwrite=True)


def test_rejected_rows_of_a_batch_are_named_at_its_end(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With rejected = count the query goes on; how many rows were not written, and why, is on standard error."""
    in_task(monkeypatch, **{QUERY_ID: QUERY, BATCH_ID: "4"})
    answering(monkeypatch, [WRITTEN, (403, None, "forbidden: no")])
    one = writer(rejected="count")
    found = one.write(iter([rows("value", b"v", b"w")]))
    one.commit([found, None, WriteTaskResult({"applied": 3}, [])], 4)
    assert (
        capsys.readouterr().err == "isthmus: batch 4: 1 rows were rejected and not written: b'b'/b'k1': forbidden: no\n"
    )
    one.commit([WriteTaskResult({"applied": 3}, [])], 5)
    assert capsys.readouterr().err == ""


def test_a_batch_without_rows_writes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark starts a task for an empty batch, too."""
    in_task(monkeypatch, **{QUERY_ID: QUERY, BATCH_ID: "0"})
    asked: list[Any] = answering(monkeypatch)
    assert writer().write(iter([pa.RecordBatch.from_pydict({"bucket": [], "key": [], "value": []})])).outcomes == {}
    assert asked == []


def test_an_error_of_an_option_has_no_frames_of_ours() -> None:
    """Spark shows the trace of an entry point's error before its sentence: one frame is left of it, whichever entry
    point finds the error and however deep."""
    source = IsthmusSource({"urls": "http://n1:1", "bukcet": "b"})
    for entry in (
        source.schema, lambda: source.reader(PUTS), lambda: source.streamReader(PUTS),
        lambda: source.writer(PUTS, False),
        lambda: source.streamWriter(PUTS, False),
    ):  # fmt: skip
        with pytest.raises(BadInput, match="option bukcet is unknown, did you mean bucket") as told:
            entry()
        ours = [frame for frame in told.traceback if Path(str(frame.path)).parent.name == "reconcile"]
        assert [frame.name for frame in ours if "tests" not in str(frame.path)] == ["without_frames"]
        assert told.value.__cause__ is None
