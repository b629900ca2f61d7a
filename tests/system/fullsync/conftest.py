"""A place for clusters of real processes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from isthmus.node.local import supervisor_client


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    """A directory; every process that runs in it at the end is stopped."""
    (tmp_path / "d").mkdir()
    yield tmp_path / "d"
    supervisor_client.stop(tmp_path / "d")
