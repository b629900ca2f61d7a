"""docs/decisions.md: each number stands for one decision, and the list by number has them all."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

PAGE: Final = Path(__file__).parents[2] / "docs" / "decisions.md"


def test_the_list_by_number_has_each_decision_once() -> None:
    """Pages refer to decisions by number; two branches may have given the same one."""
    page = PAGE.read_text()
    decisions = re.findall(r"^### (\d+)\. (.+)$", page, re.MULTILINE)
    listed = re.findall(r"^\| (\d+) \| \[(.+?)\]\(#.+?\) \|$", page, re.MULTILINE)
    assert len(decisions) > 50
    assert listed == sorted(decisions, key=lambda decision: int(decision[0]))
    assert len({number for number, _ in decisions}) == len(decisions)
