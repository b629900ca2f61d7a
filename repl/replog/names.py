"""Names of the files in a log directory: sixteen digits of sequence number and `.log`.

A file under construction has `.log.new`. Files with other names are ignored.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

_LOG_FILE: Final = re.compile(r"([0-9]{16})\.log")
_NEW_FILE: Final = re.compile(r"[0-9]{16}\.log\.new")


def log_path(directory: Path, sequence: int) -> Path:
    """The path of log file `sequence`."""
    return directory / f"{sequence:016d}.log"


def new_path(path: Path) -> Path:
    """The path of log file `path` while it is under construction."""
    return path.with_name(path.name + ".new")


def sequence_of(name: str) -> int | None:
    """The sequence number in a log file's name, None for any other name."""
    match = _LOG_FILE.fullmatch(name)
    return int(match[1]) if match else None


def is_unfinished(name: str) -> bool:
    """True for a file whose construction was interrupted; nothing in it was ever part of the log."""
    return _NEW_FILE.fullmatch(name) is not None
