"""Batch jobs on Spark: reading clusters as tables, comparing, seeding, exporting.

This room alone imports pyspark and pyarrow, and nothing outside imports it but the command line, when a job is asked
for. What runs on executors (`client`, `rows`, `reading`, `writing`, `streaming`, `datasource`) knows no settings: it is
told all by options. `register(spark)` makes `format("isthmus")` known to a session. docs/spark.md shows how to use it.
"""

from __future__ import annotations

from typing import Any


def register(spark: Any) -> None:
    """Make `spark.read.format("isthmus")`, `df.write` and `spark.readStream` of it known to a session. No setting of
    the session is changed. Raises BadInput where the workers' interpreter, on this machine, has no Isthmus."""
    from aae.reconcile.datasource import IsthmusSource
    from aae.reconcile.interpreters import check_workers

    check_workers(spark)
    spark.dataSource.register(IsthmusSource)
