"""Names and values as strings, against a real node: UTF-8 is read as it was written; other bytes are an error or null,
never another text."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import types as t

from isthmus.aae.reconcile.arrow_rows import as_text, check_schema, schema_of
from isthmus.aae.reconcile.datasource import IsthmusSource
from isthmus.aae.row_stream.wire import RowView
from isthmus.repl.model.errors import BadInput
from tests.support.threaded_node import running_node

TEXT = t.StructType([t.StructField(name, t.StringType()) for name in ("bucket", "key", "value")])


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A node with names and values that are text, and some that are not."""
    with running_node(tmp_path_factory.mktemp("node")) as node:
        found = f"http://127.0.0.1:{node.http}"
        write(found, ("städte", "korinth", "am Isthmus"), ("städte", "athen", ""), ("städte", "argos", "x"))
        write(found, ("städte", "argos", None))
        write(found, (b"mixed", b"\xff\x00", b"text"), (b"mixed", b"value", b"\x80\x81"), (b"mixed", b"text", b"text"))
        read(found, bucket="städte")  # so that the node's threads are there before the first test
        yield found


def write(url: str, *rows: tuple[Any, Any, Any], **options: str) -> dict[str, int]:
    """Write rows (bucket, key, value), as one task; their outcomes."""
    columns = [pa.array(column) for column in zip(*rows, strict=True)]
    batch = pa.RecordBatch.from_arrays(columns, names=TEXT.names)
    kinds = [t.StringType() if pa.types.is_string(one.type) else t.BinaryType() for one in columns]
    schema = t.StructType([t.StructField(name, kind) for name, kind in zip(TEXT.names, kinds, strict=True)])
    told: Any = IsthmusSource({"urls": url, **options}).writer(schema, False).write(iter([batch]))
    return dict(told.outcomes)


def read(url: str, schema: t.StructType | None = None, **options: str) -> list[dict[str, Any]]:
    """The rows of a read, in order of their keys."""
    source = IsthmusSource({"urls": url, **options})
    wanted = schema or source.schema()
    assert isinstance(wanted, t.StructType)
    reader: Any = source.reader(wanted)
    batches = [batch for part in reader.partitions() for batch in reader.read(part)]
    return sorted((row for batch in batches for row in batch.to_pylist()), key=lambda row: str(row.get("key")))


def test_text_is_read_as_it_was_written(url: str) -> None:
    """Strings in any script, empty ones, null for a deleted key; the same bytes without the option; and a schema with
    strings is read as text without it."""
    wanted = [
        {"bucket": "städte", "key": "argos", "value": None},
        {"bucket": "städte", "key": "athen", "value": ""},
        {"bucket": "städte", "key": "korinth", "value": "am Isthmus"},
    ]
    options = {"bucket": "städte", "view": "objects", "columns": "bucket,key,value"}
    assert read(url, text="true", **options) == wanted
    assert read(url, TEXT, bucket="städte") == wanted
    assert [row["key"] for row in read(url, **options)] == [b"argos", b"athen", b"korinth"]
    assert [row["key"] for row in read(url, bucket="städte", text="true", columns="key")] == [
        "argos",
        "athen",
        "korinth",
    ]


def test_what_is_no_text_is_an_error_that_names_its_key(url: str) -> None:
    """The error is for the first such value, and says what to do; text columns are read, and so are bytes."""
    with pytest.raises(BadInput, match="column key of bucket 0x6d69786564, key 0xff00 is not UTF-8: read it as binary"):
        read(url, bucket="mixed", text="true", columns="key")
    with pytest.raises(BadInput, match=r"column value of bucket 0x6d69786564, key 0x76616c7565 .* not_utf8 = null"):
        read(url, bucket="mixed", prefix="value", text="true", columns="key,value")
    assert [row["bucket"] for row in read(url, bucket="mixed", text="true", columns="bucket")] == ["mixed"] * 3


def test_with_null_what_is_no_text_is_null_with_a_fault(url: str) -> None:
    """All rows are returned; the fault has the bytes."""
    rows = read(url, bucket="mixed", text="true", not_utf8="null", columns="key,value,fault")
    assert rows == [
        {"key": None, "value": "text", "fault": "key is not UTF-8: 0xff00"},
        {"key": "text", "value": "text", "fault": None},
        {"key": "value", "value": None, "fault": "value is not UTF-8: 0x8081"},
    ]


def test_rows_replace_what_is_there(url: str) -> None:
    """Written twice, a table is one version of each key with on_conflict = replace, also where there were siblings, a
    deleted key, or several rows of one key; without it each write is a sibling."""
    rows = [("twice", "a", "1"), ("twice", "b", "1"), ("twice", "c", None)]
    for _ in range(2):
        assert write(url, *rows) == {"applied": 3}
    options = {"bucket": "twice", "view": "objects", "columns": "key,siblings,value", "text": "true"}
    assert [row["siblings"] for row in read(url, **options)][:2] == [2, 2]
    new = [("a", "2"), ("b", None), ("c", "2"), ("a", "3"), ("d", "2")]
    assert write(url, *(("twice", *one) for one in new), on_conflict="replace") == {"applied": 5}
    assert [tuple(row.values()) for row in read(url, **options)] == [
        ("a", 1, "3"), ("b", 1, None), ("c", 1, "2"), ("d", 1, "2")
    ]  # fmt: skip


def test_findings_are_read_as_text(tmp_path: Path) -> None:
    """Names of findings are read as text, too; a name that is not UTF-8 is an error or null."""
    run = tmp_path / "run_id=may"
    table = [{"bucket": b"b", "key": key, "verdict": "diverged"} for key in (b"k", b"\xff")]
    pq.write_to_dataset(pa.Table.from_pylist(table), run / "findings", partition_cols=["verdict"])
    schema = t.StructType([t.StructField("verdict", t.StringType()), t.StructField("key", t.StringType())])

    def keys(**options: str) -> list[str | None]:
        reader: Any = IsthmusSource({"view": "findings", "path": str(run), "text": "true", **options}).reader(schema)
        return [row["key"] for part in reader.partitions() for batch in reader.read(part) for row in batch.to_pylist()]

    with pytest.raises(BadInput, match="column key of bucket 0x62, key 0xff is not UTF-8"):
        keys()
    assert keys(not_utf8="null") == ["k", None]
    assert "key string" in str(IsthmusSource({"view": "findings", "path": str(run), "text": "true"}).schema())


def test_other_columns_are_bytes() -> None:
    """Clocks and objects cannot be read as text; the message names the right type."""
    schema = schema_of(RowView.OBJECTS, text=True)
    kinds = {field.name: field.dataType for field in schema.fields}
    assert {name for name in ("bucket", "key", "value", "clock", "object") if kinds[name] == t.StringType()} == {
        "bucket", "key", "value"
    }  # fmt: skip
    check_schema(RowView.OBJECTS, schema)
    for name, words in (("clock", "clock is binary, not string"), ("key", "key is binary or string, not bigint")):
        kind = t.LongType() if name == "key" else t.StringType()
        with pytest.raises(BadInput, match=words):
            check_schema(RowView.KEYS, t.StructType([t.StructField(name, kind)]))


def test_text_of_a_column_with_nulls() -> None:
    """Nulls stay, and only what is wrong is named."""
    made, wrong = as_text(pa.array([b"a", None, b"\xc3\x28", b"\xc3\xa4"], pa.binary()))
    assert (made.to_pylist(), wrong) == (["a", None, None, "ä"], [2])
