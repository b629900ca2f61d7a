"""What a read was as of: one small document for its plan and one for each range, in a directory that all reach.

Free of Spark. Who reads the ranges is `aae.reconcile.reading`.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import NamedTuple

from repl.model.errors import BadInput


class Piece(NamedTuple):
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


def read_manifest(directory: Path) -> tuple[list[Piece], list[tuple[int, int, int]]]:
    """What the latest read with the option `manifest` was as of, and the ranges (partition, first, end) that are
    missing: a read that was broken off, or goes on. Each action on a table is a read of its own; earlier ones are read
    from their own directories, `DIR/read=...`. Raises BadInput where there is none."""
    reads = list(directory.glob("read=*"))
    if reads:  # Spark may plan a read more often than it does it: the latest is the one that came furthest last
        directory = max(reads, key=_newest_ns)
    elif not (directory / "plan.json").exists():
        raise BadInput(f"{directory} has no manifest of a read")
    plan = json.loads((directory / "plan.json").read_text(encoding="utf-8"))
    pieces: list[Piece] = []
    missing: list[tuple[int, int, int]] = []
    for partition, first, end in plan["ranges"]:
        path = directory / f"range-{partition}-{first}-{end}.json"
        if path.exists():
            pieces += [Piece(**raw) for raw in json.loads(path.read_text(encoding="utf-8"))["pieces"]]
        else:
            missing.append((partition, first, end))
    return pieces, missing


def _newest_ns(read: Path) -> int:
    return max((path.stat().st_mtime_ns for path in read.glob("range-*.json")), default=0)
