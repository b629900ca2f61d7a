"""What went wrong in Spark, in one line: of pages of traces the sentence that says it. Pure."""

from __future__ import annotations

import re
from typing import Final

WORDS_MAX: Final = 400
"""Characters of a sentence: it goes on a terminal, and into a summary."""

_OURS: Final = re.compile(r"isthmus(?:\.\w+)+: (?P<words>.*\S)")
"""An error of ours, as the last line of Python's trace has it."""

_TRACES: Final = ("at ", "... ", "Driver stacktrace")
"""How lines of Java's traces begin."""

_STATE: Final = re.compile(r"\s*SQLSTATE: \w+\s*\Z")
"""Spark's code of the kind of error, at the end of what it says."""


def trouble_of(error: BaseException) -> str:
    """What our code said, if it did; else the last line that says anything."""
    lines = [_STATE.sub("", line).strip(" :\t") for line in str(error).splitlines()]
    said = [line for line in lines if line and not line.startswith(_TRACES)]
    ours = [found["words"] for line in said if (found := _OURS.fullmatch(line)) is not None]
    words = ours or said or [repr(error)]
    return words[-1][:WORDS_MAX]
