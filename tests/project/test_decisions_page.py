"""docs/decisions.md: each number stands for one decision, and the page names the next one."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

PAGE: Final = Path(__file__).parents[2] / "docs" / "decisions.md"


def test_each_number_is_of_one_decision_and_the_next_one_is_free() -> None:
    """Pages refer to decisions by number; two branches may have given the same one."""
    page = PAGE.read_text()
    numbers = [int(number) for number in re.findall(r"^### (\d+)\. .+$", page, re.MULTILINE)]
    next_number = re.search(r"the next number is\s(\d+)\.", page)
    assert len(numbers) > 50
    assert len(set(numbers)) == len(numbers)
    assert next_number is not None
    assert int(next_number[1]) == max(numbers) + 1
