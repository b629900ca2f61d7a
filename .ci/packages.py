#!/usr/bin/env python3
"""The folders of the package in wheels and source archives, wherever this tree has them; refuses a tree without them.

In a checkout the folders are beside `isthmus/`, in an unpacked source archive they are in `isthmus/` itself. Hatchling
calls this at each build and would otherwise pack what it finds, which is then a package of two modules. Run as a
program it says where the folders are.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, Final

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

ROOT: Final = Path(__file__).parents[1]

FOLDERS: Final = ("aae", "config", "node", "queues", "repl", "sink")
"""All packages but `client`, which is a distribution of its own."""

FILES: Final = ("__init__.py", "py.typed", "spark.py")
"""The files of `isthmus/` itself; pyproject.toml includes them, and would leave out one that is missing."""


def folders(root: Path) -> dict[str, Path]:
    """Name of each folder of the package -> where the tree in `root` has it. Raises FileNotFoundError."""
    missing = [f"isthmus/{name}" for name in FILES if not (root / "isthmus" / name).is_file()]
    found: dict[str, Path] = {}
    for name in FOLDERS:
        places = (root / name, root / "isthmus" / name)
        place = next((place for place in places if (place / "__init__.py").is_file()), None)
        if place is None:
            missing.append(f"{name}/ (or isthmus/{name}/)")
        else:
            found[name] = place
    if missing:
        raise FileNotFoundError(
            f"{root} is not a whole tree of Isthmus, nothing is built: {', '.join(missing)} missing; "
            "unpack the archive again, or clone the repository"
        )
    return found


class PackageFolders(BuildHookInterface):  # type: ignore[misc]
    """Adds the folders to a wheel or a source archive."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """See hatchling."""
        root = Path(self.root)
        found = folders(root)
        if version == "editable":
            return  # the tree itself is imported
        for name, place in found.items():
            build_data["force_include"][str(place)] = f"isthmus/{name}"


if __name__ == "__main__":
    for name, place in folders(ROOT).items():
        sys.stdout.write(f"isthmus.{name}  {place}\n")
