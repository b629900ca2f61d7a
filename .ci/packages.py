#!/usr/bin/env python3
"""The folders of the package in wheels and source archives, wherever this tree has them; refuses a tree without them.

In a checkout the folders are beside `isthmus/`, which has symbolic links to them for editors and for running in place;
in an unpacked source archive they are in `isthmus/` itself. A tree from a zip archive, or of a machine without symbolic
links, has neither links nor folders there: the folders beside it are taken all the same. Hatchling calls this at each
build and would otherwise pack what it finds, which is then a package of two modules. Run as a program it says where
the folders are.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, Final

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

ROOT: Final = Path(__file__).parents[1]

FOLDERS: Final = ("aae", "config", "node", "queues", "repl", "sink")
"""All links of `isthmus/` but `client`, which is a distribution of its own."""

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


def check_importable_in_place(root: Path) -> None:
    """An editable installation imports `isthmus` from the tree itself. Raises FileNotFoundError where that would lack
    modules."""
    missing = [name for name in FOLDERS if not (root / "isthmus" / name / "__init__.py").is_file()]
    if missing:
        raise FileNotFoundError(
            f"{root}/isthmus has no symbolic link (or folder) {', '.join(missing)}, so this tree cannot be imported in "
            "place: install it without -e, or get the links by `git clone` on a file system that has them "
            "(`git config core.symlinks true && git checkout -- isthmus` in a clone)"
        )


class PackageFolders(BuildHookInterface):  # type: ignore[misc]
    """Adds the folders to a wheel or a source archive."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """See hatchling."""
        root = Path(self.root)
        found = folders(root)
        if version == "editable":
            check_importable_in_place(root)
            return
        for name, place in found.items():
            build_data["force_include"][str(place)] = f"isthmus/{name}"


if __name__ == "__main__":
    for name, place in folders(ROOT).items():
        sys.stdout.write(f"isthmus.{name}  {place}\n")
