"""`format("isthmus")`: the entry points that Spark calls on a data source, and their readers and writers."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar, cast

import pyarrow as pa
import pyarrow.dataset
from pyspark.sql import types as t
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    InputPartition,
)
from pyspark.sql.pandas.types import to_arrow_schema

from isthmus.aae.reconcile.arrow_rows import OBJECT_COLUMNS, as_text, check_schema, not_utf8_error, schema_of
from isthmus.aae.reconcile.findings import FINDING
from isthmus.aae.reconcile.options import (
    FINDINGS,
    RunOptions,
    decode_kept,
    merge_options,
    options_of_create,
    parse_options,
)
from isthmus.aae.reconcile.row_reader import IsthmusReader
from isthmus.aae.reconcile.row_writer import IsthmusWriter
from isthmus.aae.reconcile.stream_reader import IsthmusStreamReader
from isthmus.aae.reconcile.stream_writer import IsthmusStreamWriter
from isthmus.aae.row_stream.wire import RowView
from isthmus.repl.model.errors import BadInput, IsthmusError

KEPT: Final = "isthmus.options"
"""Name in the metadata of a table's first column: its options, as JSON.

Spark passes the options of CREATE TABLE when the table is made, to infer its columns, and none of them when it is used;
but then it passes the columns, with their metadata."""


Entry = TypeVar("Entry", bound=Callable[..., Any])

OF_A_QUERY: Final = ("checkpointlocation",)
"""Options of Spark's own that it passes to the writer of a stream, too."""

NEVER_NULL: Final = ("bucket_type", "bucket", "key")


def in_one_sentence(entry: Entry) -> Entry:
    """An entry point whose errors of ours come without the frames in which they were found: Spark puts the trace before
    the sentence, and shows both."""

    @functools.wraps(entry)
    def without_frames(*args: Any, **named: Any) -> Any:
        try:
            return entry(*args, **named)
        except IsthmusError as error:
            raise error.with_traceback(None) from None

    return cast(Entry, without_frames)


class IsthmusSource(DataSource):  # type: ignore[misc]
    """Views of a cluster (`keys`, `objects`), and `findings` of a run."""

    def __init__(self, options: Any) -> None:
        super().__init__(options)
        created = options_of_create(dict(options))
        self._creates = created is not None
        self._given: dict[str, str] = dict(options) if created is None else created

    def _options(self, names: Sequence[str] = (), fields: Sequence[t.StructField] = ()) -> RunOptions:
        """The options of this use: those given, and those that the table's `fields` keep. Without a view it is that of
        the columns. Raises BadInput."""
        kept: dict[str, str] = {}
        for field in fields:
            if KEPT in field.metadata:
                kept = decode_kept(field.metadata[KEPT])
        given = merge_options(kept, self._given)
        parsed = parse_options(given)
        if "view" not in {name.lower() for name in given} and not OBJECT_COLUMNS.keys().isdisjoint(
            names or parsed.columns
        ):
            parsed = parsed._replace(view=RowView.OBJECTS.value)
        return parsed

    @classmethod
    def name(cls) -> str:
        """The format."""
        return "isthmus"

    @in_one_sentence
    def schema(self) -> t.StructType | str:
        """The view's columns, or those of the option `columns`; those of a table keep its options. Raises BadInput."""
        if self._creates and self._given.get("view") == FINDINGS:
            raise BadInput(
                "findings of a run cannot be a table of a catalog: use CREATE TEMPORARY VIEW name USING isthmus OPTIONS"
                " (view 'findings', path '...')"
            )
        options = self._options()
        if options.view == FINDINGS:
            return (
                FINDING.replace("bucket binary, key binary", "bucket string, key string") if options.text else FINDING
            )
        found = schema_of(RowView(options.view), options.columns, text=options.text)
        return self._keeping(found, options) if self._creates else found

    def _keeping(self, schema: t.StructType, options: RunOptions) -> t.StructType:
        """The columns of a table that keeps the options. Names are NOT NULL: rows with columns that may be null are
        then fitted to the table's columns, whose metadata Spark gives them; others it takes as they are."""
        never_null = () if options.not_utf8 == "null" else NEVER_NULL
        fields = [t.StructField(one.name, one.dataType, one.name not in never_null) for one in schema.fields]
        fields[0].metadata = {KEPT: json.dumps(self._given)}
        return t.StructType(fields)

    @in_one_sentence
    def reader(self, schema: t.StructType) -> DataSourceReader:
        """For spark.read. Raises BadInput for a requested schema that the view does not have."""
        options = self._options(schema.names, schema.fields)
        if options.view == FINDINGS:
            return FindingsReader(options, schema)
        check_schema(RowView(options.view), schema)
        return IsthmusReader(options, schema)

    @in_one_sentence
    def streamReader(self, schema: t.StructType) -> DataSourceStreamReader:
        """For spark.readStream. Raises BadInput."""
        options = self._options(schema.names, schema.fields)
        if options.view == FINDINGS:
            raise BadInput("findings are read with spark.read: a finished run does not change")
        check_schema(RowView(options.view), schema)
        plain = RunOptions()
        for name in ("bucket", "prefix", "modified_since_ms", "modified_before_ms", "segments"):
            if getattr(options, name) != getattr(plain, name):
                raise BadInput(
                    f"option {name.removesuffix('_ms')} is for spark.read: filter a stream with .filter(...)"
                )
        for name in ("manifest", "consistency", "splits"):
            if getattr(options, name) != getattr(plain, name):
                raise BadInput(f"option {name} is for spark.read: a stream reads what each copy has applied")
        return IsthmusStreamReader(options, schema)

    @in_one_sentence
    def writer(self, schema: t.StructType, overwrite: bool) -> DataSourceWriter:
        """For df.write. Raises BadInput."""
        return IsthmusWriter(self._options(fields=schema.fields), schema, overwrite)

    @in_one_sentence
    def streamWriter(self, schema: t.StructType, overwrite: bool) -> DataSourceStreamWriter:
        """For query.writeStream. Raises BadInput."""
        self._given = {name: text for name, text in self._given.items() if name.lower() not in OF_A_QUERY}
        return IsthmusStreamWriter(self._options(fields=schema.fields), schema, overwrite)


class FindingsReader(DataSourceReader):  # type: ignore[misc]
    """Reads the findings of a run, from OUTPUT/run_id=ID or its findings/."""

    def __init__(self, options: RunOptions, schema: t.StructType) -> None:
        self._path = options.path
        self._strict = options.not_utf8 == "fail"
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
        for batch in files.to_batches(columns=list(dict.fromkeys((*wanted.names, "bucket", "key")))):
            yield self._as_wanted(batch, wanted).select(wanted.names).cast(wanted)

    def _as_wanted(self, batch: pa.RecordBatch, wanted: pa.Schema) -> pa.RecordBatch:
        """The batch with its names as strings where these are wanted. Raises BadInput."""
        made = batch
        for name in ("bucket", "key"):
            if name in wanted.names and pa.types.is_string(wanted.field(name).type):
                column, wrong = as_text(batch.column(name))
                if wrong and self._strict:
                    bucket, key = (batch.column(one)[wrong[0]].as_py() for one in ("bucket", "key"))
                    raise BadInput(not_utf8_error(name, bucket, key))
                made = made.set_column(made.schema.get_field_index(name), name, column)
        return made
