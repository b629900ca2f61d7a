"""Plans that found a defect, shrunk to the fewest steps."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.simulation.world.kept import KEPT, plan_of, text_of
from tests.simulation.world.run import run

FILES = sorted(KEPT.glob("*.json"))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_what_was_found_once_is_mended(file: Path) -> None:
    """The steps that showed a defect show none any more."""
    assert run(plan_of(file.read_text())).failures == ()


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_kept_plan_says_what_it_found(file: Path) -> None:
    """In a sentence about the product, not in the oracle's words that `--keep` writes."""
    text = file.read_text()
    found = json.loads(text)["found"]
    assert found.endswith(".")
    assert found[0].isupper()
    assert text == text_of(plan_of(text), found) + "\n"


def test_there_are_kept_plans() -> None:
    """The folder is where the tests look for it."""
    assert len(FILES) >= 4
