"""Every message that the runbooks quote is a message of the program."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

REPOSITORY: Final = Path(__file__).parents[2]
PACKAGES: Final = ("node", "queues", "sink", "repl", "aae")

SYSTEMS: Final = frozenset({"Connection refused", "No space left on device", "timed out"})
"""Words of the operating system, which are passed on."""

BUILT: Final = frozenset({"answers 401", "answers 403", "serving suspended", "publishing suspended"})
"""Sentences that the code puts together of parts."""


def phrases() -> set[str]:
    """The phrases in backticks in the first column of the tables of symptoms."""
    text = (REPOSITORY / "docs" / "runbooks.md").read_text()
    rows = [line for line in text.splitlines() if line.startswith("| `")]
    return {phrase for row in rows for phrase in re.findall(r"`([^`]+)`", row.split("|")[1])}


def test_symptoms_are_words_of_the_program() -> None:
    """A message of a command can be found in the runbook: each symptom there is part of a string in the code."""
    code = "\n".join(path.read_text() for package in PACKAGES for path in sorted((REPOSITORY / package).rglob("*.py")))
    assert len(phrases()) > 10
    assert {phrase for phrase in phrases() - SYSTEMS - BUILT if phrase not in code} == set()
