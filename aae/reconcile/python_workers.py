"""Check that Spark's Python workers can import what the driver runs.

Spark starts its workers as `python3` of the PATH unless PYSPARK_PYTHON says otherwise, whatever interpreter the driver
is. Without this check the first action fails with a worker's traceback that ends in "No module named 'isthmus'".
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pyspark

from isthmus import aae
from isthmus.repl.model.errors import BadInput

IMPORT_S: Final = 60.0
"""How long the other interpreter may take to import Isthmus: a second or two, more on a busy machine. One that takes
longer is not judged."""

PROGRAM: Final = "import isthmus.aae.reconcile.datasource; import sys; print(*sys.version_info[:2], sep='.')"


def check_workers(spark: Any) -> None:
    """Raises BadInput when the workers run another interpreter than this one and it cannot import Isthmus, or is of
    another version of Python. Only for workers on this machine, and an Isthmus that did not come with --py-files."""
    context: Any = getattr(spark, "_sc", None)  # a session of Spark Connect has none
    worker = getattr(context, "pythonExec", None)
    if worker is None or not str(context.master).startswith("local"):
        return
    if ".zip" in str(aae.__file__) or getattr(context, "_python_includes", None):  # files that workers are sent
        return
    path = shutil.which(worker)
    if path is not None and os.path.abspath(path) == os.path.abspath(sys.executable):
        return
    trouble = f"{worker} is not there" if path is None else _trouble(path)
    if trouble:
        raise BadInput(
            f"Spark's workers run {path or worker}, the driver runs {sys.executable}: {trouble}. Set"
            f" PYSPARK_PYTHON={sys.executable} in the environment before the session starts"
        )


def _trouble(path: str) -> str:
    """Why workers of an interpreter cannot work for this driver; "" when they can, or nothing is known."""
    ours = f"{sys.version_info[0]}.{sys.version_info[1]}"
    archives = map(str, Path(str(pyspark.__file__)).parent.glob("python/lib/*.zip"))  # Spark gives workers these
    paths = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), *archives]))
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
        return f"there is no Isthmus in it ({last})"
    theirs = done.stdout.strip()
    return "" if theirs == ours else f"it is Python {theirs}, the driver's is {ours}"
