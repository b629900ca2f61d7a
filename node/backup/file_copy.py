"""Copies of files that another process writes, renames and deletes meanwhile."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import BinaryIO

from isthmus.node.backup.manifest import CHUNK_BYTES, Passed
from isthmus.repl.model.errors import LocalFault


class Raced(Exception):
    """The node changed its files in a way that spoils this attempt: another one may succeed."""


def copy_file(source: Path, target: Path, passed: Passed) -> int:
    """Copy what `source` has now, and return its size; what is appended meanwhile is left out. Raises FileNotFoundError
    where `source` is gone, OSError."""
    with source.open("rb") as opened:
        return copy_open(opened, target, passed)


def copy_open(opened: BinaryIO, target: Path, passed: Passed) -> int:
    """`copy_file` for a file that is open already, which may be deleted meanwhile."""
    left = size = os.fstat(opened.fileno()).st_size
    with open(target, "wb", opener=_private) as out:
        while left and (chunk := opened.read(min(left, CHUNK_BYTES))):
            out.write(chunk)
            left -= len(chunk)
            passed(len(chunk))
    return size - left


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CLOEXEC, 0o600)


def check_space(directory: Path, size_bytes: int) -> None:
    """Raise LocalFault unless the file system of `directory`, which need not exist yet, has so many bytes free."""
    there = directory.absolute()
    while not there.is_dir():
        there = there.parent
    free_bytes = shutil.disk_usage(there).free
    if size_bytes > free_bytes:
        raise LocalFault(
            f"{directory} needs about {size_bytes:,} bytes, and {there} has {free_bytes:,} free: name another disk"
        )
