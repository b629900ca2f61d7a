"""Isthmus: keep the same data equal in two or more key-value clusters, and prove it.

Everything is imported from here: `isthmus.repl`, `isthmus.config` and so on. In a wheel the packages are folders of
this one. In a checkout they are the folders beside it, and are found there, so that a file has one path in tracebacks
and in git. The symbolic links that `make venv` makes here are for type checkers and editors alone: see CONTRIBUTING.md.
Start reading at `isthmus.node.daemon`.

`isthmus.client` is a distribution of its own, without this file. It is found wherever on the path it is installed.
"""

import pkgutil
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Final

__path__ = pkgutil.extend_path(__path__, __name__)

_HERE = Path(__file__).resolve().parent


class FoldersBeside(MetaPathFinder):
    """Finds the packages in the folders beside this one."""

    names: Final = frozenset(
        f"{__name__}.{name}" for name in ("aae", "client", "config", "node", "queues", "repl", "sink")
    )

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The package, if it is one of these; `path`, where its parent looks, does not matter. See importlib."""
        del path
        return PathFinder.find_spec(fullname, [str(_HERE.parent)], target) if fullname in self.names else None


if (_HERE / "repl").is_symlink() or not (_HERE / "repl").is_dir():  # no wheel
    sys.meta_path.insert(0, FoldersBeside())
