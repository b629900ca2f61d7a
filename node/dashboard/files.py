"""Files of the dashboard, read once when the node starts, with their content types and digests.

A request names a file by a key of a table, never by a path of the disk.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Final, NamedTuple

STATIC: Final = Path(__file__).parent / "static"

CONTENT_TYPES: Final[Mapping[str, bytes]] = {
    ".html": b"text/html; charset=utf-8",
    ".css": b"text/css; charset=utf-8",
    ".js": b"text/javascript; charset=utf-8",
    ".svg": b"image/svg+xml",
    ".txt": b"text/plain; charset=utf-8",
}
"""Files of other endings (descriptions, types for the checker) are not served."""

FILE_BYTES_MAX: Final = 256 * 1024
ALL_BYTES_MAX: Final = 2 * 1024 * 1024
"""Largest file, and all of them: what a node keeps in memory, and what a browser loads over a slow line. The chart
library is the largest, with 142 KiB. A larger file is a mistake in the package, and an assertion fails at start."""


class DashboardFile(NamedTuple):
    """One file: its content, content type, and ETag."""

    body: bytes
    content_type: bytes
    etag: bytes


def dashboard_files(folder: Path = STATIC) -> dict[str, DashboardFile]:
    """Every file that is served, by its path below `folder`, such as "js/app.js"."""
    found = dict(_files(folder))
    assert sum(len(file.body) for file in found.values()) <= ALL_BYTES_MAX
    return found


def _files(folder: Path) -> Iterator[tuple[str, DashboardFile]]:
    for path in sorted(folder.rglob("*")):
        content_type = CONTENT_TYPES.get(path.suffix)
        if content_type is not None and path.is_file():
            body = path.read_bytes()
            assert len(body) <= FILE_BYTES_MAX, f"{path.name} has {len(body)} bytes"
            digest = sha256(body).hexdigest()[:32]
            yield path.relative_to(folder).as_posix(), DashboardFile(body, content_type, f'"{digest}"'.encode())
