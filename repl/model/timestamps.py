"""Times as people write them: one rule, for the command line and for options of Spark jobs, so that no two read the
same text as different moments. Pure; who asks says what was wrong, in words of its own.

A time is written as ISO 8601 has it: 2026-02-03, 2026-02-03T04:05, "2026-02-03 04:05:06Z". It is UTC unless it names
another zone (2026-02-03T04:05+02:00); the zone of the machine never counts. A whole number is milliseconds since 1970.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

DIGITS_MIN: Final = 11
"""Of a number of milliseconds: it is after March 1973. One with fewer is a slip, such as a date without its dashes."""

DIGITS_MAX: Final = 18
"""What holds in 63 bits whatever the digits are."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def written_ms(text: str) -> int:
    """Milliseconds since 1970 of what `text` says, below 0 for a time before. Raises ValueError when it is no time."""
    if text.isdecimal():
        if not text.isascii() or not DIGITS_MIN <= len(text) <= DIGITS_MAX:
            raise ValueError(f"{text!r} has not {DIGITS_MIN} to {DIGITS_MAX} digits")
        return int(text)
    found = datetime.fromisoformat(text)
    return ((found if found.tzinfo else found.replace(tzinfo=UTC)) - _EPOCH) // timedelta(milliseconds=1)
