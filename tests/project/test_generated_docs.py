"""The generated parts of the reference pages are current, and the generator refuses a page without their places."""

from __future__ import annotations

import pytest

from docs.generate import rewrite, stale_pages, table


def test_generated_pages_are_current() -> None:
    """Commands, settings, options, properties and metrics in docs/ are those of the code."""
    stale = sorted(stale_pages())
    assert not stale, f"docs/{', docs/'.join(stale)} not current: run make docs"


def test_text_by_hand_stays() -> None:
    """Only what stands between the markers is replaced."""
    page = "Before\n<!-- generated: x -->\nold\n<!-- end of x -->\nAfter\n"
    assert rewrite(page, {"x": "new"}) == page.replace("old", "new")


@pytest.mark.parametrize("parts", [{}, {"x": "new", "y": "new"}, {"y": "new"}])
def test_a_page_without_the_places_is_refused(parts: dict[str, str]) -> None:
    """A part that has no place on its page would be lost, and a place without its part would stay as it is."""
    with pytest.raises(ValueError, match="places for generated parts"):
        rewrite("<!-- generated: x -->\nold\n<!-- end of x -->", parts)


def test_empty_cells_of_a_table_stay_empty() -> None:
    """A row has as many cells as the head."""
    assert table(("a", "b"), [("1", "")]) == "| a | b |\n| --- | --- |\n| 1 | |"
