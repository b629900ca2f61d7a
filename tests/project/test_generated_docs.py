"""The generated parts of the reference pages are current, and the generator refuses a page without their places."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest

import isthmus.client
from docs.generate import (
    CONNECTION,
    CREDENTIALS,
    PUBLIC,
    api_reference,
    commands_reference,
    nouns,
    paragraphs,
    rewrite,
    series_rows,
    signature_text,
    stale_pages,
    table,
)


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


def test_series_of_all_kinds_of_entries_are_one_row() -> None:
    """A series that each kind of entry or each part of a replica has is shown once, and its meaning names neither."""
    names = [name for name, *_ in series_rows()]
    assert len(names) == len(set(names))
    assert "`replicate.KIND.per_s`" in names
    assert "`replog.PART.replicas`" in names
    meanings = " ".join(meaning for name, _, meaning, _ in series_rows() if "KIND" in name or "PART" in name)
    assert not re.search(r"kind \w+ |followers in sync|replicas out of sync", meanings)


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
    """`--admin` takes one address in most commands and several in `status`, which has a line of its own; the common one
    promises no more than every command accepts."""
    common, _, rest = commands_reference().partition("## isthmus status")
    (line,) = [line for line in common.splitlines() if line.startswith("- `--admin`")]
    assert "repeatable" not in line
    assert "URL[,URL" not in line
    status = rest.partition("\n## ")[0]
    assert "- `--admin` URL[,URL...] (repeatable)" in status


def test_the_reference_of_commands_is_whole() -> None:
    """Each command has a section with its help, and each option that its help shows: as a line there, or under "Also"
    with a line of its noun or of the page."""
    page = commands_reference()
    everywhere = page.partition("## Common options")[2].partition("\n## ")[0]
    for noun, command, found in nouns():
        of_noun = page.partition(f"\n## isthmus {noun}\n")[2].partition("\n## ")[0]
        for each in found:
            section = of_noun.partition(f"\n### {each.path}\n")[2] if isinstance(command, click.Group) else of_noun
            section = section.partition("\n### ")[0]
            assert all(" ".join(text.split()) in " ".join(section.split()) for text in paragraphs(each.command.help))
            also = section.rpartition("Also: ")[2]
            for line in each.lines:
                groups = [
                    group
                    for group, members in (("connection", CONNECTION), ("credentials", CREDENTIALS))
                    if line.names in members
                ]
                groups += ["all of the noun"] * (line.text in of_noun)
                named = [line.names.split(", ")[0], *groups]
                assert line.text in section or (
                    any(name in also for name in named) and line.text in everywhere + of_noun
                ), (each.path, line.text)
