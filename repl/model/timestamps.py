"""Parse times as people write them, for the command line and options of Spark jobs. Pure.

ISO 8601: 2026-02-03, 2026-02-03T04:05, "2026-02-03 04:05:06Z". UTC unless the text names another zone
(2026-02-03T04:05+02:00); the zone of the machine never counts. A whole number is milliseconds since 1970. One parser,
so that no two commands read one text as different moments.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Final

DIGITS_MIN: Final = 11
"""Minimum digits of a number of milliseconds, which is then after March 1973. A shorter number is probably a mistake,
such as a date without dashes."""

DIGITS_MAX: Final = 18
"""Maximum digits that fit into 63 bits, whatever the digits are."""

_LEAP_SECOND: Final = re.compile(r"(?<=[T ])([0-9]{2}:[0-9]{2}):60(?![0-9])")
"""Second 60, which ISO 8601 has: the one after 59, since milliseconds since 1970 have no leap seconds."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def parse_timestamp_ms(text: str) -> int:
    """Return milliseconds since 1970, negative for an earlier time. Raises ValueError for any other text."""
    if text.isdecimal():
        if not text.isascii() or not DIGITS_MIN <= len(text) <= DIGITS_MAX:
            raise ValueError(f"{text!r} has not {DIGITS_MIN} to {DIGITS_MAX} digits")
        return int(text)
    shown, leaps = _LEAP_SECOND.subn(r"\1:59", text, count=1)
    found = datetime.fromisoformat(shown) + leaps * timedelta(seconds=1)
    return ((found if found.tzinfo else found.replace(tzinfo=UTC)) - _EPOCH) // timedelta(milliseconds=1)
