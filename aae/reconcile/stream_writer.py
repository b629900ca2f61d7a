"""`writeStream.format("isthmus")`: the rows of each micro-batch, written as those of a batch job.

Spark writes a micro-batch again if it, or the query's driver, failed before the checkpoint had its end. It has the
query's id and the batch's number then, which stay the same, and request ids are derived from them (`RequestIds`): rows
with `value` are written once if the repetition comes within the cluster's dedup window. Rows with `object` keep their
clocks, so that a repetition changes nothing at any time.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final
from uuid import UUID

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import types as t
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage

from isthmus.aae.reconcile.options import RunOptions
from isthmus.aae.reconcile.row_writer import IsthmusWriter, WriteTaskResult, warn_of_rejected
from isthmus.repl.model.errors import BadInput, LocalFault

QUERY_ID: Final = "sql.streaming.queryId"
BATCH_ID: Final = "streaming.sql.batchId"
"""Local properties of the tasks of a micro-batch (Spark's `StreamExecution.QUERY_ID_KEY`, and
`MicroBatchExecution.BATCH_ID_KEY`). The query's id is kept in its checkpoint."""


class IsthmusStreamWriter(DataSourceStreamArrowWriter):  # type: ignore[misc]
    """Writes micro-batches. Created on the driver, serialized to executors."""

    def __init__(self, options: RunOptions, schema: t.StructType, overwrite: bool) -> None:
        """`overwrite`: the query has the output mode complete. Raises BadInput as `IsthmusWriter`."""
        if overwrite:
            raise BadInput(
                'outputMode("complete") would empty the table with each batch: use "append" or "update", with the'
                " option on_conflict = replace where rows are to replace the values of their keys"
            )
        self._rows = IsthmusWriter(options, schema, overwrite=False)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriteTaskResult:
        """Write a task's rows of a micro-batch."""
        return self._rows.write_rows(_batch(), iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Name rejected rows; each request took effect with its response."""
        warn_of_rejected(f"batch {batchId}", messages)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Does nothing: written rows stay, and the batch is written again with the same request ids."""


def _batch() -> bytes:
    """What is the same whenever this micro-batch is written: the query's id and the batch's number. Raises
    LocalFault."""
    context = TaskContext.get()
    query, number = (None if context is None else context.getLocalProperty(name) for name in (QUERY_ID, BATCH_ID))
    if not query or not number:
        raise LocalFault(
            f"Spark gave this task no {QUERY_ID} and {BATCH_ID}: without them a micro-batch that is written again would"
            " be written twice"
        )
    return UUID(query).bytes + int(number).to_bytes(8, "big")
