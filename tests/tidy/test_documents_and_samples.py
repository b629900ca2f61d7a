"""Commands that documents show exist, and samples are what they say."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Final

import click
import pytest

from config.loading import load_file
from node.cli.main import root

HOUSE: Final = Path(__file__).parents[2]
DOCUMENTS: Final = [path for path in [HOUSE / "README.md", *sorted((HOUSE / "docs").glob("*.md"))] if path.exists()]
SAMPLES: Final = sorted((HOUSE / "config" / "samples").glob("*.toml"))


def shown_commands(text: str) -> set[tuple[str, ...]]:
    """Words after `isthmus` in code: in fences and between backticks, as far as they are plain words."""
    code = re.findall(r"```.*?```", text, re.DOTALL) + re.findall(
        r"`[^`\n]+`", re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    )
    found = set()
    for piece in code:
        for words in re.findall(r"(?:^|[\s`/$(])isthmus((?: [a-z][a-z-]*)+)", piece):
            found.add(tuple(words.split()))
    return found


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_documents_show_commands_that_exist(document: Path) -> None:
    """`isthmus NOUN VERB` in a document is a command of this version."""
    unknown = []
    for words in shown_commands(document.read_text()):
        command: click.Command | None = root
        for word in words:
            if isinstance(command, click.Group):
                command = command.get_command(click.Context(command), word)
                if command is None:
                    unknown.append(" ".join(words))
    assert not unknown


def test_commands_are_found_in_documents() -> None:
    """The search itself sees commands in fences and in running text, and does not take prose for commands."""
    text = "An isthmus joins. Use `isthmus queue list -o json` or\n```\n$ .venv/bin/isthmus demo --keep\n```\n"
    assert shown_commands(text) == {("queue", "list"), ("demo",)}


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda path: path.name)
def test_samples_load(sample: Path) -> None:
    """Every sample in config/samples is a right file of its kind: a node's, or a topology of clusters."""
    if re.search(r"^\[node\]", sample.read_text(), re.MULTILINE):
        assert load_file(sample).node.name
    else:
        assert importlib.util.find_spec("node.topology") is not None, "a topology needs the room that reads it"
        from node.topology import load_topology

        assert load_topology(sample)


def test_make_targets_that_documents_name_exist() -> None:
    """`make TARGET` in a document is a target of the Makefile."""
    targets = set(re.findall(r"^([a-z-]+):", (HOUSE / "Makefile").read_text(), re.MULTILINE))
    for document in DOCUMENTS:
        named = set(re.findall(r"`make ([a-z-]+)", document.read_text()))
        named |= set(re.findall(r"^make ([a-z-]+)", document.read_text(), re.MULTILINE))
        assert named <= targets, document.name
