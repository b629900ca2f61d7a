"""What a read was as of: one small document for its plan and one for each range, in a directory that all reach.

Free of Spark. Who reads the ranges is `aae.reconcile.row_reader`.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import NamedTuple

from isthmus.repl.model.errors import BadInput


class ReadRange(NamedTuple):
    """What a task read from one node: the rows of the segments [first, end) behind `after` (hexadecimal; "": none), as
    of everything below `offset`. `whole` when it was read to its end."""

    partition: int
    first: int
    end: int
    after: str
    node: str
    epoch: int
    offset: int
    rows: int
    whole: bool


def write_json(directory: Path, name: str, document: object) -> None:
    """Into a file of a directory, whole or not at all."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / name
    scratch = path.with_name(f".{name}.{os.getpid()}")
    scratch.write_text(json.dumps(document), encoding="utf-8")
    scratch.replace(path)


def read_manifest(directory: Path) -> tuple[list[ReadRange], list[tuple[int, int, int]]]:
    """What the latest action on a table with the option `manifest` was as of, and the ranges (partition, first, end)
    that are missing: an action that was broken off, or goes on. A range that the action read several times (a table
    joined with itself) has pieces of each time. Earlier actions are read from their own directories,
    `DIR/read=.../action=...`. Raises BadInput where there is none."""
    known = (directory, *directory.glob("read=*"), *directory.glob("**/action=*"))
    actions = [path for path in known if _documents(path)]
    if actions:
        directory = max(actions, key=_newest_ns)
    elif plans := list(directory.glob("read=*/plan.json")):
        directory = max(plans, key=lambda path: path.stat().st_mtime_ns).parent
    home = directory.parent if directory.name.startswith("action=") else directory
    if not (home / "plan.json").exists():
        raise BadInput(f"{directory} has no manifest of a read")
    plan = json.loads((home / "plan.json").read_text(encoding="utf-8"))
    documents = _documents(directory)
    pieces: list[ReadRange] = []
    missing: list[tuple[int, int, int]] = []
    for partition, first, end in plan["ranges"]:
        found = [path for path in documents if path.name.startswith(f"range-{partition}-{first}-{end}.")]
        for path in found:
            pieces += [ReadRange(**raw) for raw in json.loads(path.read_text(encoding="utf-8"))["pieces"]]
        if not found:
            missing.append((partition, first, end))
    return pieces, missing


def _documents(directory: Path) -> list[Path]:
    """What the tasks of an action left."""
    return sorted(directory.glob("range-*.json"))


def _newest_ns(directory: Path) -> int:
    return max(path.stat().st_mtime_ns for path in _documents(directory))
