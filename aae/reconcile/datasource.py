"""`format("isthmus")`: what Spark asks of a data source, and who answers.

The class is named to Spark by `aae.reconcile.register`; it holds the options and makes readers and writers. Nothing is
asked of a cluster before Spark plans a read.
"""

from __future__ import annotations

from typing import Any

from pyspark.sql import types as t
from pyspark.sql.datasource import DataSource, DataSourceReader

from aae.reconcile.options import Options, parse_options
from aae.reconcile.reading import IsthmusReader
from aae.reconcile.rows import check_schema, schema_of
from aae.row_wire import View


class IsthmusSource(DataSource):  # type: ignore[misc]
    """Views of a cluster: `keys`, `objects`."""

    def __init__(self, options: Any) -> None:
        super().__init__(options)
        self._parsed: Options = parse_options(dict(options))

    @classmethod
    def name(cls) -> str:
        """The format."""
        return "isthmus"

    def schema(self) -> t.StructType:
        """The view's columns, or those of the option `columns`."""
        return schema_of(View(self._parsed.view), self._parsed.columns)

    def reader(self, schema: t.StructType) -> DataSourceReader:
        """For spark.read. Raises BadInput when a schema was asked for that the view does not have."""
        check_schema(View(self._parsed.view), schema)
        return IsthmusReader(self._parsed, schema)
