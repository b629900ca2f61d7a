"""The version of this program."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version


def program_version() -> str:
    """The installed version; "unknown" when run from a tree that was never installed."""
    try:
        return version("isthmus")
    except PackageNotFoundError:
        return "unknown"
