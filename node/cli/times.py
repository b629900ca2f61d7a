"""Times on the command line: one rule for every command, so that no two read the same text as different moments.

A time is written as ISO 8601 has it, and as commands print it: 2026-02-03, 2026-02-03T04:05, "2026-02-03 04:05:06Z". It
is UTC unless it names another zone (2026-02-03T04:05+02:00); the zone of the machine never counts. A whole number is
milliseconds since 1970, as `-o json` has them. docs/commands.md tells it to people.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

from node.cli.exits import CommandFailed, Exit

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

FORM: Final = "2026-02-03T04:05, which is UTC unless it names a zone"
"""How a time is written, for messages and helps."""

DIGITS_MIN: Final = 11
"""Of a number of milliseconds: it is after March 1973. One with fewer is a slip, such as a date without its dashes."""

DIGITS_MAX: Final = 18
"""What holds in 63 bits whatever the digits are."""


def time_of(text: str, what: str = "") -> int:
    """Milliseconds since 1970 of a time as people write it; `what` names the option in a refusal. Raises CommandFailed
    (usage), also for a time before 1970."""
    option = f"{what}: " * bool(what)
    if text.isascii() and text.isdecimal() and DIGITS_MIN <= len(text) <= DIGITS_MAX:
        return int(text)
    try:
        if text.isdecimal():
            raise ValueError(text)
        found = datetime.fromisoformat(text)
    except ValueError:
        raise CommandFailed(Exit.USAGE, "bad-input", f"{option}{text!r} is no time; write it as {FORM}") from None
    since = (found if found.tzinfo else found.replace(tzinfo=UTC)) - EPOCH
    if since < timedelta():
        raise CommandFailed(Exit.USAGE, "bad-input", f"{option}{text!r} lies before 1970")
    return since // timedelta(milliseconds=1)
