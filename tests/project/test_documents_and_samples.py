"""Commands in documents exist, and samples are valid."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Final

import click
import pytest

from isthmus.config.loader import load_file
from isthmus.node.cli.main import root

REPOSITORY: Final = Path(__file__).parents[2]
DOCUMENTS: Final = [*sorted(REPOSITORY.glob("*.md")), *sorted((REPOSITORY / "docs").glob("*.md"))]
SAMPLES: Final = sorted((REPOSITORY / "config" / "samples").glob("*.toml"))


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
    assert not unknown_commands(document.read_text())


def unknown_commands(text: str) -> list[str]:
    """The commands that a text shows and that do not exist."""
    unknown = []
    for words in shown_commands(text):
        command: click.Command | None = root
        for word in words:
            if isinstance(command, click.Group):
                command = command.get_command(click.Context(command), word)
                if command is None:
                    unknown.append(" ".join(words))
    return unknown


def test_commands_are_found_in_documents() -> None:
    """The search itself sees commands in fences and in running text, and does not take prose for commands."""
    text = "An isthmus joins. Use `isthmus queue list -o json` or\n```\n$ .venv/bin/isthmus demo --keep\n```\n"
    assert shown_commands(text) == {("queue", "list"), ("demo",)}


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda path: path.name)
def test_samples_load(sample: Path) -> None:
    """Every sample in config/samples is a valid file of its kind: a node's, or a topology of clusters."""
    if re.search(r"^\[node\]", sample.read_text(), re.MULTILINE):
        assert load_file(sample).node.name
    else:
        assert importlib.util.find_spec("isthmus.node.local.topology") is not None, (
            "a topology needs the room that reads it"
        )
        from isthmus.node.local.topology import load_topology

        assert load_topology(sample)


def test_make_targets_that_documents_name_exist() -> None:
    """`make TARGET` in a document is a target of the Makefile."""
    targets = set(re.findall(r"^([a-z-]+):", (REPOSITORY / "Makefile").read_text(), re.MULTILINE))
    for document in DOCUMENTS:
        named = set(re.findall(r"`make ([a-z-]+)", document.read_text()))
        named |= set(re.findall(r"^make ([a-z-]+)", document.read_text(), re.MULTILINE))
        assert named <= targets, document.name


def anchors_of(text: str) -> set[str]:
    """The anchors that a document's headings make, as GitHub makes them."""
    found: dict[str, int] = {}
    for title in re.findall(r"^#+ (.+)$", re.sub(r"```.*?```", "", text, flags=re.DOTALL), re.MULTILINE):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title.strip()).lower()
        name = re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")
        found[name] = found.get(name, 0) + 1
    return {name if n == 0 else f"{name}-{n}" for name, count in found.items() for n in range(count)}


def dead_links(document: Path) -> list[str]:
    """Links of a document to files that are not there, and to headings that their file does not have."""
    text = re.sub(r"```.*?```", "", document.read_text(), flags=re.DOTALL)
    dead = []
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        path, _, anchor = target.partition("#")
        if "://" in path or path.startswith("mailto:"):
            continue
        file = document.parent / path if path else document
        if not file.exists() or (anchor and file.suffix == ".md" and anchor not in anchors_of(file.read_text())):
            dead.append(target)
    return dead


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_of_documents_lead_somewhere(document: Path) -> None:
    """Each relative link names a file that is there, and each anchor a heading of it."""
    assert dead_links(document) == []


def test_a_dead_anchor_is_found(tmp_path: Path) -> None:
    """Dead anchors are found in the same file and in another one. Headings with code, links and punctuation have
    GitHub's anchors."""
    (tmp_path / "other.md").write_text("# `[log]` of ZooKeeper's data\n## The same\n## The same\n")
    document = tmp_path / "a.md"
    links = ("#here", "#gone", "other.md#log-of-zookeepers-data", "other.md#x", "no.md")
    document.write_text("# Here\n" + " ".join(f"[x]({link})" for link in links))
    assert dead_links(document) == ["#gone", "other.md#x", "no.md"]
    assert "the-same-1" in anchors_of((tmp_path / "other.md").read_text())


def long_lines(text: str) -> list[int]:
    """Numbers of the lines of prose that are wider than 120 columns: no code, no table, nothing generated."""
    found, fenced, generated = [], False, False
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("```"):
            fenced = not fenced
        generated = (generated or line.startswith("<!-- generated")) and not line.startswith("<!-- end of")
        prose = not (fenced or generated or line.startswith("    ") or line.lstrip().startswith("|"))
        if prose and len(line) > 120:
            found.append(number)
    return found


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_prose_is_wrapped(document: Path) -> None:
    """No line of prose is wider than 120 columns."""
    assert long_lines(document.read_text()) == []


def test_a_long_line_of_prose_is_found() -> None:
    """Prose alone counts, before and after code, tables and generated parts."""
    long = "x" * 121
    text = (
        f"{long}\n```\n{long}\n```\n| {long} |\n<!-- generated: a -->\n{long}\n<!-- end of a -->\n    {long}\n{long}\n"
    )
    assert long_lines(text) == [1, 10]


def pointers(text: str) -> set[str]:
    """The pages that a text names by their path in the repository."""
    return set(re.findall(r"\bdocs/[\w-]+\.md\b", text))


def test_pages_that_the_program_names_exist() -> None:
    """A message, help text or comment of the product that points to a page of docs/ names one that is there."""
    packages = ("aae", "config", "node", "queues", "repl", "sink")
    named = {
        pointer: path
        for package in packages
        for path in (REPOSITORY / package).rglob("*.py")
        for pointer in pointers(path.read_text())
    }
    assert len(named) > 5
    assert {pointer: path for pointer, path in named.items() if not (REPOSITORY / pointer).exists()} == {}
