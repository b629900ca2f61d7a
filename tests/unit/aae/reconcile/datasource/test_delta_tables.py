"""Delta tables of rows that were read, by the package deltalake: objects can be restored from them unchanged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import types as t

from isthmus.aae.reconcile.datasource import IsthmusSource
from tests.support.threaded_node import running_node

NAMES = t.StructType([t.StructField("bucket", t.StringType()), t.StructField("key", t.StringType())])
VALUES = t.StructType([*NAMES.fields, t.StructField("value", t.StringType())])


def read(url: str, **options: str) -> pa.Table:
    """The rows of a read."""
    source = IsthmusSource({"urls": url, "bucket": "users", **options})
    schema = source.schema()
    assert isinstance(schema, t.StructType)
    reader: Any = source.reader(schema)
    return pa.Table.from_batches([batch for part in reader.partitions() for batch in reader.read(part)])


def write(url: str, schema: t.StructType, table: pa.Table) -> dict[str, int]:
    """Write rows, as one task; their outcomes."""
    told: Any = IsthmusSource({"urls": url}).writer(schema, False).write(iter(table.to_batches()))
    return dict(told.outcomes)


def test_objects_come_back_from_a_delta_table(tmp_path: Path) -> None:
    """Objects keep their clocks when they are read back from a Delta table, where they replace later versions, and from
    exported Parquet files converted to one. Key rows, with times and nulls, can be stored as a table, too."""
    rows = pa.table({"bucket": ["users"] * 3, "key": ["a", "b", "c"], "value": ["1", "2", "3"]})
    for name in ("east", "west"):
        (tmp_path / name).mkdir()
    columns = "bucket_type,bucket,key,object"
    with running_node(tmp_path / "east") as east, running_node(tmp_path / "west") as west:
        urls = [f"http://127.0.0.1:{node.http}" for node in (east, west)]
        assert write(urls[0], VALUES, rows) == {"applied": 3}
        objects = read(urls[0], columns=columns)
        lake = str(tmp_path / "lake")
        deltalake.write_deltalake(lake, objects.slice(0, 1))
        deltalake.write_deltalake(lake, objects, mode="overwrite")
        files = [Path(one.removeprefix("file://")) for one in deltalake.DeltaTable(lake).file_uris()]
        table = pa.concat_tables([pq.read_table(one) for one in files])
        pushed = t.StructType([t.StructField(name, t.BinaryType()) for name in columns.split(",")[1:]])
        assert write(urls[1], pushed, table.drop_columns("bucket_type")) == {"applied": 3}
        names = ("key", "clock", "object_hash")
        assert sorted(map(str, read(urls[0]).select(names).to_pylist())) == sorted(
            map(str, read(urls[1]).select(names).to_pylist())
        )
        exported = tmp_path / "exported"
        exported.mkdir()
        pq.write_table(objects, exported / "part-0.parquet")
        deltalake.convert_to_deltalake(str(exported))
        assert deltalake.DeltaTable(str(exported)).to_pyarrow_table().num_rows == 3
        keys = read(urls[0])
        deltalake.write_deltalake(str(tmp_path / "keys"), keys)
        kept = deltalake.DeltaTable(str(tmp_path / "keys")).to_pyarrow_table()
        assert kept.column("last_modified").cast(pa.int64()) == keys.column("last_modified").cast(pa.int64())
