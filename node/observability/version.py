"""The version of this program, and of what it runs on."""

from __future__ import annotations

import platform
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Final

from isthmus.repl.telemetry import Family, Sample

HELP: Final[Mapping[str, Family]] = {
    "isthmus_build_info": Family(
        "Always 1; its labels are the versions of the program and of Python, and the machine's architecture.",
        "1",
        "process",
        ("machine", "python", "version"),
    )
}
"""Name -> metric definition (see repl.telemetry)."""


@cache
def program_version() -> str:
    """The version that is installed when the process asks first; "unknown" when run from a tree that was never
    installed."""
    try:
        return version("isthmus")
    except PackageNotFoundError:
        return "unknown"


def samples() -> Iterator[Sample]:
    """Samples for Prometheus."""
    labels = {"version": program_version(), "python": platform.python_version(), "machine": platform.machine()}
    yield "isthmus_build_info", labels, 1
