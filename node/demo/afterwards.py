"""What is left of a demo: its outcome, where the clusters are, and how to talk to those that were kept."""

from __future__ import annotations

import shlex
import shutil
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from node.demo.client import key_path
from node.demo.figures import Outcome
from node.demo.history import Expectation


@dataclass
class Demo:
    """A finished run: what came out, and where the clusters are."""

    outcome: Outcome
    directory: Path
    clusters: dict[str, Any] = field(default_factory=dict)
    sample_key: tuple[bytes, bytes] | None = None
    """Bucket and key of something small to read with curl."""


def curl_lines(demo: Demo) -> list[str]:
    """How to talk to clusters that were kept, as commands that work."""
    lines: list[str] = []
    isthmus = _own_command()
    for name, cluster in demo.clusters.items():
        first = cluster["nodes"][0]
        if demo.sample_key is not None:
            lines.append(f"curl -si '{first['http']}{key_path(*demo.sample_key)}'   # a key in {name}")
    for name, cluster in demo.clusters.items():
        admin = cluster["nodes"][0]["admin"]
        lines.append(f"curl -s '{admin}/admin/queues'   # queues of {name}; or: {isthmus} queue list --admin {admin}")
    lines.append(f"{isthmus} local down --dir {shlex.quote(str(demo.directory))}   # stops all of it")
    return lines


def _own_command() -> str:
    """What to type for this program: its name where the shell finds it, else its path."""
    beside = Path(sys.executable).with_name("isthmus")
    found = shutil.which("isthmus")
    if not beside.exists() or (found is not None and Path(found).resolve() == beside.resolve()):
        return "isthmus"
    here = Path.cwd()
    return shlex.quote(str(beside.relative_to(here) if beside.is_relative_to(here) else beside))


def sample_key(bucket: bytes, expected: Expectation) -> tuple[bytes, bytes] | None:
    """A key that reads well on a terminal: small, and a text by its name if there is one."""
    small = [key for key, size in expected.sizes.items() if 0 < size < 4_000]
    texts = [key for key in small if key.endswith((b".md", b".txt", b".toml", b".py", b".json"))]
    chosen = min(texts or small, key=len, default=None)
    return None if chosen is None else (bucket, chosen)
