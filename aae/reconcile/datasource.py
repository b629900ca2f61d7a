"""`format("isthmus")`: the entry points that Spark calls on a data source, and their readers and writers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset
from pyspark.sql import types as t
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceWriter,
    InputPartition,
)
from pyspark.sql.pandas.types import to_arrow_schema

from isthmus.aae.reconcile.arrow_rows import check_schema, schema_of
from isthmus.aae.reconcile.findings import FINDING
from isthmus.aae.reconcile.options import FINDINGS, RunOptions, parse_options
from isthmus.aae.reconcile.row_reader import IsthmusReader
from isthmus.aae.reconcile.row_writer import IsthmusWriter
from isthmus.aae.reconcile.stream_reader import IsthmusStreamReader
from isthmus.aae.row_stream.wire import RowView
from isthmus.repl.model.errors import BadInput


class IsthmusSource(DataSource):  # type: ignore[misc]
    """Views of a cluster (`keys`, `objects`), and `findings` of a run."""

    def __init__(self, options: Any) -> None:
        super().__init__(options)
        self._parsed: RunOptions = parse_options(dict(options))

    @classmethod
    def name(cls) -> str:
        """The format."""
        return "isthmus"

    def schema(self) -> t.StructType | str:
        """The view's columns, or those of the option `columns`."""
        if self._parsed.view == FINDINGS:
            return FINDING
        return schema_of(RowView(self._parsed.view), self._parsed.columns)

    def reader(self, schema: t.StructType) -> DataSourceReader:
        """For spark.read. Raises BadInput for a requested schema that the view does not have."""
        if self._parsed.view == FINDINGS:
            return FindingsReader(self._parsed.path, schema)
        check_schema(RowView(self._parsed.view), schema)
        return IsthmusReader(self._parsed, schema)

    def streamReader(self, schema: t.StructType) -> DataSourceStreamReader:
        """For spark.readStream. Raises BadInput."""
        if self._parsed.view == FINDINGS:
            raise BadInput("findings are read with spark.read: a finished run does not change")
        check_schema(RowView(self._parsed.view), schema)
        for name in ("bucket", "prefix", "modified_since", "modified_before", "segments"):
            if name in self.options:
                raise BadInput(f"option {name} is for spark.read: filter a stream with .filter(...)")
        for name in ("manifest", "consistency", "splits"):
            if name in self.options:
                raise BadInput(f"option {name} is for spark.read: a stream reads what each copy has applied")
        return IsthmusStreamReader(self._parsed, schema)

    def writer(self, schema: t.StructType, overwrite: bool) -> DataSourceWriter:
        """For df.write. Raises BadInput."""
        return IsthmusWriter(self._parsed, schema, overwrite)


class FindingsReader(DataSourceReader):  # type: ignore[misc]
    """Reads the findings of a run, from OUTPUT/run_id=ID or its findings/."""

    def __init__(self, path: str, schema: t.StructType) -> None:
        self._path = path
        self._schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        """One per file. Raises BadInput without files."""
        run = Path(self._path)
        found = next((one for one in (run / FINDINGS, run) if one.name == FINDINGS and one.is_dir()), run)
        files = sorted(path for path in found.glob("verdict=*/*.parquet") if not path.name.startswith((".", "_")))
        if not files and not (found.name == FINDINGS and found.is_dir()):
            raise BadInput(
                f"option path: {self._path!r} has no findings; OUTPUT/run_id=ID of a run that has ended is right"
            )
        return [InputPartition((str(found), str(path))) for path in files] or [InputPartition(None)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The batches of a file."""
        if partition.value is None:
            return
        base, path = partition.value
        wanted: pa.Schema = to_arrow_schema(self._schema, timezone="UTC")
        files = pyarrow.dataset.dataset([path], format="parquet", partitioning="hive", partition_base_dir=base)
        for batch in files.to_batches(columns=wanted.names):
            yield batch.cast(wanted)
