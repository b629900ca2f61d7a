"""The user under whose name an operator's change is recorded."""

from __future__ import annotations

import getpass
import os


def acting_user(by: str | None) -> str:
    """`by`, as the operator gave it; without it the user of this process."""
    return by or _process_user()


def _process_user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user may have a number and no name
        return f"uid-{os.getuid()}"
