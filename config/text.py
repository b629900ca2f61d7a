"""How values appear in one-line messages: quoted, escaped, never longer than a line can bear.

Used by all of `config`; imports nothing of it.

For an unknown name: suggests the one that was probably meant, or lists those that there are.
"""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any, Final

SHOWN_MAX: Final = 80
"""Characters of a value in a message; what is longer is cut and ends in dots."""


def shown(value: Any) -> str:
    """A value of a TOML file as a person would recognise it in a message."""
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
    """A text as TOML writes it, so that it can be copied into a file."""
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
    """A number of things and what they do: "1 link fails", "2 links fail"."""
    return f"{quantity(number, noun)} {verb if number == 1 else verbs}"


LIKENESS_MIN: Final = 0.6
"""How alike two names must be (difflib's ratio) for one to be taken for a slip of the other; difflib's own default."""


def no_such(noun: str, name: str, known: Sequence[str]) -> str:
    """One sentence about an unknown `name` of a `noun`."""
    close = get_close_matches(name.lower(), known, n=1, cutoff=LIKENESS_MIN)
    if close:
        return f'no such {noun}: {shown(name)}; did you mean "{close[0]}"?'
    return f"no such {noun}: {shown(name)}; known here: {', '.join(known) or 'none'}"
