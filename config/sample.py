"""A node's config file as text, each key with its meaning.

Keys that are set are in force; all others are commented out, with their defaults.
The texts are the docstrings of `config.settings`, so that a sample has what the program knows and no more.
"""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Iterator, Mapping
from typing import Any, Final

from isthmus.config.schema import Section, sections_of, settings_of
from isthmus.config.settings import Settings

WIDTH: Final = 100
"""Longest line of a comment."""

Values = Mapping[str, Any]
"""Key path ("node.name") -> value; of a list of tables its path -> the tables, each key -> value."""

HEAD: Final = """\
# The config file of one node. Lines that begin with "# " and a key are defaults: take the "# " away to set them.
# `isthmus config check FILE` names every fault, `isthmus config show FILE` every value in force.
"""


def sample_text(values: Values, *, every: bool) -> str:
    """A config file with `values`; with `every` also all other sections and keys, commented out."""
    lines = [HEAD]
    for section in sections_of(Settings):
        lines += _section(section, section.name, values, every=every)
    return "\n".join(lines).rstrip("\n") + "\n"


def without_links(text: str) -> str:
    """A text of the pages as plain text: a link is its words, where a file has no pages to lead to."""
    return re.sub(r"\[([^\]]+)\]\([^)]+\)", r"\1", text)


def _section(section: Section, path: str, values: Values, *, every: bool) -> Iterator[str]:
    """The lines of a section and of those within it."""
    if section.many:
        tables = values.get(path, ())
        for table in tables:
            yield from _table(section, f"[[{path}]]", table, every=False, commented=False)
        if every and not tables:
            yield from _table(section, f"[[{path}]]", {}, every=True, commented=True)
        return
    prefix = f"{path}."
    own = {name.removeprefix(prefix): value for name, value in values.items() if name.startswith(prefix)}
    yield from _table(section, f"[{path}]", own, every=every, commented=False)
    for inner in sections_of(section.kind):
        yield from _section(inner, f"{path}.{inner.name}", values, every=every)


def _table(section: Section, head: str, own: Values, *, every: bool, commented: bool) -> Iterator[str]:
    """A header and its keys. `commented`: nothing of it is in force."""
    shown = [each for each in settings_of(section.kind).values() if each.name in own or every]
    if not shown:
        return
    yield f"{'# ' * commented}{head}"
    for each in shown:
        meaning = f"{without_links(each.meaning)} ({each.form.allowed})"
        yield from textwrap.wrap(
            meaning, WIDTH, initial_indent="#   ", subsequent_indent="#   ", break_long_words=False,
            break_on_hyphens=False,
        )  # fmt: skip
        if each.name in own:
            yield f"{each.name} = {_toml(own[each.name])}"
        else:
            yield f"# {each.name} = {'...' if each.required else each.form.text(each.default)}"
    yield ""


def _toml(value: Any) -> str:
    """A text, number or flag as TOML; JSON's escapes are TOML's."""
    return json.dumps(value, ensure_ascii=False)
