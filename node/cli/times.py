"""Times on the command line, read by the one rule that there is (`repl.model.times`); docs/commands.md tells it to
people."""

from __future__ import annotations

from typing import Final

from node.cli.exits import CommandFailed, Exit
from repl.model.times import written_ms

FORM: Final = "2026-02-03T04:05, which is UTC unless it names a zone"
"""How a time is written, for messages and helps."""


def time_of(text: str, what: str = "") -> int:
    """Milliseconds since 1970 of a time as people write it; `what` names the option in a refusal. Raises CommandFailed
    (usage), also for a time before 1970."""
    option = f"{what}: " * bool(what)
    try:
        time_ms = written_ms(text)
    except ValueError:
        raise CommandFailed(Exit.USAGE, "bad-input", f"{option}{text!r} is no time; write it as {FORM}") from None
    if time_ms < 0:
        raise CommandFailed(Exit.USAGE, "bad-input", f"{option}{text!r} lies before 1970")
    return time_ms
