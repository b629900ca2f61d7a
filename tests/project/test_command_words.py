"""The command line has one word for one thing: the table of words in CONTRIBUTING.md holds for every command."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import click

from isthmus.node.cli.main import root
from isthmus.node.cli.parameters import RenamedOption

PAGE: Final = Path(__file__).parents[2] / "CONTRIBUTING.md"


def words() -> Iterator[tuple[set[str], set[str]]]:
    """(words, words that are not used) of each row of the table."""
    section = PAGE.read_text().partition("## Words of the command line")[2].partition("\n## ")[0]
    for line in section.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        if line.startswith("| ") and len(cells) == 3 and "`" in line:
            used, unused = (
                {w for text in re.findall("`([^`]+)`", cell) for w in text.split("/")} for cell in cells[1:]
            )
            yield used, unused


def commands(group: click.Group, path: str = "isthmus") -> Iterator[tuple[str, click.Command]]:
    """Every command that a help shows, with its words."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from commands(command, f"{path} {name}")
        elif not command.hidden:
            yield f"{path} {name}", command


def flags_of(command: click.Command) -> set[str]:
    """The names of the options that a command's help shows."""
    return {
        flag
        for each in command.params
        if isinstance(each, click.Option) and not each.hidden
        for flag in (*each.opts, *each.secondary_opts)
    }


def test_no_command_uses_a_word_that_has_another_one() -> None:
    """No command has such a word as a verb or as an option; only the `kv` commands may use `get`."""
    unused = {word for _, others in words() for word in others}
    assert len(unused) > 30
    used = {word for these, _ in words() for word in these}
    found = []
    for path, command in commands(root):
        verbs = set(path.split()[2:])
        found += [
            f"{path}: {word}"
            for word in unused & (verbs | flags_of(command))
            if not (word in used and path.startswith("isthmus kv "))
        ]
    assert sorted(found) == []


def test_every_word_of_the_table_is_used() -> None:
    """The table names no verb and no option that is not there."""
    known = {word for path, command in commands(root) for word in (*path.split()[1:], *flags_of(command))}
    options = {word for used, _ in words() for word in used if word.startswith("-")}
    verbs = {word for used, _ in words() for word in used if re.fullmatch("[a-z]+", word)}
    assert sorted((options | verbs) - known) == []


def test_a_key_is_written_in_one_form() -> None:
    """A command with a bucket and a key writes the bucket type before the bucket, separated by a slash."""
    forms = {}
    for path, command in commands(root):
        arguments = [each for each in command.params if isinstance(each, click.Argument)]
        names = [each.make_metavar(click.Context(command)) for each in arguments]
        if any("KEY" in name for name in names):
            forms[path] = next(name for name in names if "BUCKET" in name)
    assert len(forms) > 5
    assert {form.replace("[", "").replace("]", "") for form in forms.values()} == {"TYPE/BUCKET"}, forms


def test_older_words_are_accepted_and_not_shown() -> None:
    """Each older name of an option is one that the table lists as unused."""
    unused = {word for _, others in words() for word in others}
    old = {name for _, command in commands(root) for each in command.params if isinstance(each, RenamedOption)
           for name in each.old}  # fmt: skip
    assert {"--validate-only", "--ignore-rack-assignment", "--ca-file", "--rate-limit", "--run-dir"} <= old
    assert old <= unused
