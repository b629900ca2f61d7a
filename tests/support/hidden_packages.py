"""A process in which packages cannot be imported, as if they were not installed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

REPOSITORY: Final = Path(__file__).parents[2]

HIDING: Final = """\
import os
import sys


class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in os.environ["HIDDEN_PACKAGES"].split(","):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


sys.meta_path.insert(0, Hidden())
"""
"""A sitecustomize, which every Python imports at its start."""


def run_without(
    packages: Sequence[str], arguments: Sequence[str], directory: Path, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run this Python with `arguments`, in `directory`, without `packages`, also in its child processes."""
    hiding = directory / "hiding"
    hiding.mkdir(exist_ok=True)
    (hiding / "sitecustomize.py").write_text(HIDING)
    paths = os.pathsep.join([str(hiding), str(REPOSITORY)])
    return subprocess.run(
        [sys.executable, *arguments], cwd=directory, capture_output=True, text=True, timeout=50, check=False,
        env={**os.environ, "PYTHONPATH": paths, "HIDDEN_PACKAGES": ",".join(packages), **environment},
    )  # fmt: skip
