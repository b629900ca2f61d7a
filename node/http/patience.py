"""How long the client of a request waits: no answer of a node comes later than that.

Imports nothing: a command starts without the server's modules.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

HEADER: Final = "X-Isthmus-Timeout-Ms"
"""The header in which a client says how long it waits for the answer. Requests without it are answered when they are
done."""

_NAME: Final = HEADER.lower().encode()

PATIENCE_MS_MAX: Final = 600_000
"""Longest time that is believed; with more, no time is kept."""

MARGIN_SHARE: Final = 0.1
"""Part of the client's time that is left for the way of the answer."""

DIGITS_MAX: Final = 9


def header_of(timeout_s: float) -> dict[str, str]:
    """The header of a request whose client waits so long."""
    return {HEADER: str(max(1, round(timeout_s * 1000)))}


def answer_by_s(headers: Iterable[tuple[bytes, bytes]]) -> float | None:
    """Seconds within which a request must be answered; None: no limit is known. A value that is no such number counts
    as none: it is the client's loss alone."""
    for name, value in headers:
        if name == _NAME:
            if not (value.isdigit() and len(value) <= DIGITS_MAX and 0 < int(value) <= PATIENCE_MS_MAX):
                return None
            return int(value) * (1 - MARGIN_SHARE) / 1000
    return None
