"""What to say of a name that is not known: the one that was probably meant, or those that there are."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from typing import Final

from config.texts import shown

LIKENESS_MIN: Final = 0.6
"""How alike two names must be (difflib's ratio) for one to be taken for a slip of the other; difflib's own default."""


def no_such(noun: str, name: str, known: Sequence[str]) -> str:
    """One sentence about an unknown `name` of a `noun`."""
    close = get_close_matches(name.lower(), known, n=1, cutoff=LIKENESS_MIN)
    if close:
        return f'no such {noun}: {shown(name)}; did you mean "{close[0]}"?'
    return f"no such {noun}: {shown(name)}; known here: {', '.join(known) or 'none'}"
