"""Batch jobs on Spark: read clusters as tables, compare, seed, export.

Only this package imports pyspark and pyarrow, which come with the extra `spark`; without them its import fails with one
sentence that says so. Only the command line imports it, when a job is asked for; a node reads directories of runs by
`isthmus.aae.run_listing`.
Modules that run on executors (contract `executors` of pyproject.toml) must not import `config` or msgspec.
`register(spark)` makes `format("isthmus")` known to a session. Start at `job`; docs/spark.md shows the use.
"""

from __future__ import annotations

from typing import Any

from isthmus.repl.extras import check_packages

check_packages("a batch job (isthmus.aae.reconcile)", "pyspark", "pyarrow")

PACKAGES = ("msgpack", "numpy", "requests", "structlog", "xxhash", "zstandard")
"""Further packages that driver and workers need where Isthmus is shipped as one file, without its dependencies."""


def register(spark: Any) -> None:
    """Make `spark.read.format("isthmus")`, `df.write` and `spark.readStream` of it known to a session. No setting of
    the session is changed. Raises BadInput where the workers' interpreter, on this machine, cannot run Isthmus, and
    MissingExtra where this one cannot."""
    check_packages('format("isthmus")', *PACKAGES)
    from isthmus.aae.reconcile.datasource import IsthmusSource
    from isthmus.aae.reconcile.spark_session import check_workers

    check_workers(spark)
    spark.dataSource.register(IsthmusSource)
