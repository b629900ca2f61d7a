"""The generated parts of the reference pages are current, and the generator refuses a page without their places."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import isthmus.client
from docs.generate import PUBLIC, api_reference, commands_reference, rewrite, signature_text, stale_pages, table


def test_generated_pages_are_current() -> None:
    """Commands, settings, options, properties and metrics in docs/ are those of the code."""
    stale = sorted(stale_pages())
    assert not stale, f"docs/{', docs/'.join(stale)} not current: run make docs"


def test_text_by_hand_stays() -> None:
    """Only the text between the markers is replaced."""
    page = "Before\n<!-- generated: x -->\nold\n<!-- end of x -->\nAfter\n"
    assert rewrite(page, {"x": "new"}) == page.replace("old", "new")


@pytest.mark.parametrize("parts", [{}, {"x": "new", "y": "new"}, {"y": "new"}])
def test_a_page_without_the_places_is_refused(parts: dict[str, str]) -> None:
    """A part that has no place on its page would be lost, and a place without its part would stay as it is."""
    with pytest.raises(ValueError, match="places for generated parts"):
        rewrite("<!-- generated: x -->\nold\n<!-- end of x -->", parts)


def test_empty_cells_of_a_table_stay_empty() -> None:
    """A row has as many cells as the header."""
    assert table(("a", "b"), [("1", "")]) == "| a | b |\n| --- | --- |\n| 1 | |"


def test_documents_import_public_names_alone() -> None:
    """Every name that a document imports from Isthmus is public: it is on the page of the Python API or in the client's
    `__all__`, and stays the same between versions."""
    public = {**PUBLIC, "isthmus.client": tuple(isthmus.client.__all__)}
    shown = [
        (module, name.strip())
        for page in (Path(__file__).parents[2] / "docs").glob("*.md")
        for module, names in re.findall(r"^from (isthmus[\w.]*) import (.+)$", page.read_text(), re.MULTILINE)
        for name in names.split(",")
    ]
    assert shown
    assert [f"{module}.{name}" for module, name in shown if name not in public.get(module, ())] == []


def test_signatures_are_shown_as_the_source_has_them() -> None:
    """Types, defaults, keyword-only parameters, and the result; a long one has a parameter a line."""

    def work(first: dict[str, int], second: str = "", *, third: bool = True) -> list[int]:
        return [*first.values(), len(second), third]

    assert (
        signature_text("work", work)
        == "work(first: dict[str, int], second: str = '', *, third: bool = True) -> list[int]"
    )
    long = "a_name_of_a_function_that_is_so_long_that_its_parameters_need_lines"
    assert signature_text(long, work).startswith(
        f"{long}(\n    first: dict[str, int],\n    second: str = '',\n    *,\n"
    )
    assert "### `register`" in api_reference()


def test_an_option_is_common_only_where_it_means_the_same() -> None:
    """`--admin` takes one address in most commands, several in those about several clusters: these have a row of their
    own, and the common one promises no more than every command takes."""
    reference = commands_reference()
    common, _, rest = reference.partition("### isthmus status")
    (row,) = [line for line in common.splitlines() if line.startswith("| `--admin` |")]
    assert "repeatable" not in row
    assert "URL[,URL" not in row
    status = rest.partition("\n### ")[0]
    assert "| `--admin` | URL[,URL...], repeatable |" in status
