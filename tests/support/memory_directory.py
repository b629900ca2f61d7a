"""The directory for files of the store's tests."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

MEMORY = Path("/dev/shm")


@pytest.fixture
def memory_directory(tmp_path: Path) -> Iterator[Path]:
    """A directory in memory, where there is one: tests that emulate a disk's losses open and sync some hundred
    databases, and a real disk would only make them slow."""
    if not (MEMORY.is_dir() and os.access(MEMORY, os.W_OK)):
        yield tmp_path
        return
    directory = Path(tempfile.mkdtemp(prefix="isthmus-store-", dir=MEMORY))
    yield directory
    shutil.rmtree(directory)
