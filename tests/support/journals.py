"""Journals in a directory of a test."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from isthmus.node.observability.events import RecentEvents
from isthmus.node.observability.journal import Journal, NodeEvents


def journal_in(
    data_dir: Path,
    file_bytes: int = 1_000_000,
    files_count: int = 8,
    recent: RecentEvents | None = None,
    secrets: Sequence[str] = (),
) -> Journal:
    """The journal of node n1, which writes events once it is started. Stop it."""
    events = NodeEvents("n1", recent or RecentEvents(), lambda: [*secrets])
    return Journal(data_dir, file_bytes, files_count, events)
