"""Values, quantities and unknown names in one-line messages: quoted, escaped, and of limited length."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any, Final

SHOWN_MAX: Final = 80
"""Characters of a value in a message; a longer one is cut and ends in dots."""


def shown(value: Any) -> str:
    """A value of a TOML file, for a message."""
    if isinstance(value, str):
        cut = value if len(value) <= SHOWN_MAX else value[:SHOWN_MAX] + "..."
        return '"' + "".join(char if char.isprintable() else repr(char)[1:-1] for char in cut) + '"'
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int) and not -(1 << 63) <= value < 1 << 63:
        return "a number beyond 64 bits"
    if isinstance(value, dict):
        return "a table"
    if isinstance(value, list):
        return "a list"
    return str(value)


def toml_text(value: str) -> str:
    """A text in TOML's notation, so that it can be copied into a file."""
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + "".join(char if char.isprintable() else f"\\U{ord(char):08x}" for char in escaped) + '"'


def quantity(number: int, noun: str) -> str:
    """A number of things: "1 partition", "2 keys", "3 batches", "12,000 entries"."""
    if number != 1:
        if noun.endswith("y") and noun[-2:-1] not in "aeiou":
            noun = f"{noun[:-1]}ies"
        else:
            noun += "es" if noun.endswith(("ch", "sh", "s", "x")) else "s"
    return f"{number:,} {noun}"


def clause(number: int, noun: str, verb: str, verbs: str) -> str:
    """A number of things with a verb: "1 link fails", "2 links fail"."""
    return f"{quantity(number, noun)} {verb if number == 1 else verbs}"


LIKENESS_MIN: Final = 0.6
"""Similarity (difflib's ratio) from which a name counts as a misspelling of another; difflib's default."""


def no_such(noun: str, name: str, known: Sequence[str]) -> str:
    """Message for an unknown `name` of a `noun`: the closest known name, or all of them."""
    close = get_close_matches(name.lower(), known, n=1, cutoff=LIKENESS_MIN)
    if close:
        return f'no such {noun}: {shown(name)}; did you mean "{close[0]}"?'
    return f"no such {noun}: {shown(name)}; known here: {', '.join(known) or 'none'}"
