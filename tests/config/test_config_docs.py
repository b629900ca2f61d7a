"""docs/config.md says of every key what the code says."""

from __future__ import annotations

import re
from pathlib import Path

from config.keys import Kind, as_text, keys_of, range_text
from config.settings import Settings

DOCS = Path(__file__).parents[2] / "docs" / "config.md"


def rows_of_the_code() -> dict[str, list[tuple[str, str, str]]]:
    """Section header -> (key, default, range) in order, from the dataclasses."""
    found: dict[str, list[tuple[str, str, str]]] = {}

    def section(kind: type, path: str, header: str) -> None:
        rows = found.setdefault(header, [])
        for key in keys_of(kind).values():
            if key.inner is None:
                default = "required" if key.required else f"`{as_text(key, key.default)}`"
                rows.append((f"`{key.name}`", default, range_text(key)))
        for key in keys_of(kind).values():
            if key.inner is not None:
                inner = f"{path}.{key.name}" if path else key.name
                section(key.inner, inner, f"[[{inner}]]" if key.kind is Kind.TABLES else f"[{inner}]")

    section(Settings, "", "")
    del found[""]
    return found


def test_the_docs_list_every_key_with_its_default_and_range() -> None:
    """One table a section, in the order of the code: keys, defaults and ranges are those in force."""
    documented: dict[str, list[tuple[str, str, str]]] = {}
    rows: list[tuple[str, str, str]] = []
    for line in DOCS.read_text().splitlines():
        header = re.fullmatch(r"## (\[.*\])", line)
        if header:
            rows = documented.setdefault(header[1], [])
        elif line.startswith("| `"):
            key, default, allowed, meaning = (cell.strip() for cell in line.strip("|").split(" | "))
            assert len(meaning) > 10, f"{key} has no meaning"
            rows.append((key, default, allowed))
    assert documented == rows_of_the_code()
