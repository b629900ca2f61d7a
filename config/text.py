"""Values, quantities and unknown names in one-line messages: quoted, escaped, and of limited length."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
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


MISTAKES_MAX: Final = 2
"""Most mistakes (a letter too many, too few, another one, two swapped) in a misspelling; more make another name."""

LETTERS_PER_MISTAKE: Final = 3
"""A name has one mistake for so many letters at most: of a name of two letters none, so that `ab` is not `cd`."""


def similar(name: str, known: Iterable[str], *, most: int = 1) -> list[str]:
    """Known names that `name` may be a misspelling of, at most `most`: those with the fewest mistakes first, then names
    of which it is a whole word ("factor" of "replication-factor") or the beginning. Equal ones keep their order."""
    typed, ranked = name.lower().strip("-"), []
    limit = min(MISTAKES_MAX, (len(typed) + 1) // LETTERS_PER_MISTAKE)
    for each in dict.fromkeys(known):
        there = each.lower().strip("-")
        mistakes = _mistakes(typed, there)
        if mistakes <= limit:
            ranked.append((mistakes, each))
        elif len(typed) >= LETTERS_PER_MISTAKE and (there.startswith(typed) or typed in re.split("[-_.]", there)):
            ranked.append((MISTAKES_MAX + 1, each))
    return [each for _, each in sorted(ranked, key=lambda one: one[0])[:most]]


def _mistakes(one: str, other: str) -> int:
    """Letters to insert, remove, replace or swap with their neighbour (optimal string alignment distance); more than
    MISTAKES_MAX where the lengths differ by more than that."""
    if abs(len(one) - len(other)) > MISTAKES_MAX:
        return MISTAKES_MAX + 1
    before: list[int] = []
    row = list(range(len(other) + 1))
    for i, letter in enumerate(one, 1):
        before, above, row = row, before, [i]
        for j, there in enumerate(other, 1):
            least = min(before[j] + 1, row[j - 1] + 1, before[j - 1] + (letter != there))
            if above and j > 1 and letter == other[j - 2] and one[i - 2] == there:
                least = min(least, above[j - 2] + 1)
            row.append(least)
    return row[-1]


def no_such(noun: str, name: str, known: Sequence[str]) -> str:
    """Message for an unknown `name` of a `noun`: the closest known name, or all of them."""
    close = similar(name, known)
    if close:
        return f'no such {noun}: {shown(name)}; did you mean "{close[0]}"?'
    return f"no such {noun}: {shown(name)}; known here: {', '.join(known) or 'none'}"


def as_it_answered(reason: str, age_ms: int) -> str:
    """A reason that another node or cluster gave, with the age of its answer. Listings that fold equal reasons remove
    the age again (`node.http.answer_texts.without_age`)."""
    return f"{reason}, as it answered {max(0, age_ms) / 1000:.0f} s ago"
