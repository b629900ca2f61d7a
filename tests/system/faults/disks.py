"""A small disk of its own for one node: an ext4 file system in a file, that can be filled up and freed.

Needs root, a loop device, and the system package e2fsprogs.
"""

from __future__ import annotations

import errno
import os
import subprocess
from io import RawIOBase
from pathlib import Path
from types import TracebackType
from typing import Final, Self

COMMAND_TIMEOUT_S: Final = 20.0

SPARE_BYTES: Final = 4_000_000
"""Left free by allocating at once, which needs some blocks itself; then written, if nothing is to stay free."""


class SmallDisk:
    """A mounted file system of `size_mb`. Use as a context manager."""

    def __init__(self, mount_point: Path, size_mb: int) -> None:
        self.path = mount_point
        self._image = mount_point.with_name(mount_point.name + ".img")
        self._size_mb = size_mb
        self._ballast = mount_point / "ballast"

    def __enter__(self) -> Self:
        self.path.mkdir(parents=True)
        with self._image.open("wb") as file:
            file.truncate(self._size_mb * 1_000_000)
        _run("mkfs.ext4", "-q", "-m", "0", str(self._image))
        _run("mount", "-o", "loop", str(self._image), str(self.path))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        _run("umount", "--lazy", str(self.path))
        self._image.unlink()

    def fill(self, leave_bytes: int = 0) -> None:
        """Leave so much free, or not one block."""
        with self._ballast.open("wb", buffering=0) as file:
            taken_bytes = max(1, _free_bytes(self.path) - max(leave_bytes, SPARE_BYTES))
            os.posix_fallocate(file.fileno(), 0, taken_bytes)
            if not leave_bytes:
                file.seek(0, os.SEEK_END)
                _write_until_full(file)
            os.fsync(file.fileno())

    def free(self) -> None:
        """Give the space back."""
        self._ballast.unlink(missing_ok=True)


def _write_until_full(file: RawIOBase) -> None:
    for size in (100_000, 4096, 512):
        try:
            while True:
                file.write(bytes(size))
        except OSError as error:
            assert error.errno == errno.ENOSPC  # noqa: PT017 - how a full disk is noticed


def _free_bytes(directory: Path) -> int:
    numbers = os.statvfs(directory)
    return numbers.f_bavail * numbers.f_frsize


def _run(*words: str) -> None:
    done = subprocess.run(words, capture_output=True, text=True, timeout=COMMAND_TIMEOUT_S, check=False)
    if done.returncode != 0:
        raise OSError(f"{' '.join(words)}: {done.stderr.strip()}")
