"""`isthmus help` and the help of commands."""

from __future__ import annotations

import json
from collections.abc import Iterator

import click
import pytest

from isthmus.node.cli import main as cli
from isthmus.node.cli.credentials import CHOICES, OPTIONS
from isthmus.node.cli.exit_codes import MEANINGS, Exit
from isthmus.node.observability.version import program_version


def test_help_shows_any_command_and_suggests_one(capsys: pytest.CaptureFixture[str]) -> None:
    """Words select a command's help, at any depth; without words the root's help is shown; a misspelled word gets a
    suggestion."""
    assert cli.main(["help", "sink", "dead-letters", "list"]) == Exit.OK
    assert "Usage: isthmus sink dead-letters list" in capsys.readouterr().out
    assert cli.main(["help"]) == Exit.OK
    assert "NOUN VERB" in capsys.readouterr().out
    assert cli.main(["help", "queue", "lst"]) == Exit.USAGE
    assert 'no such command: "lst"; did you mean "list"?' in capsys.readouterr().err
    assert cli.main(["help", "lag", "list"]) == Exit.USAGE


def test_connection_options_stand_in_one_place(capsys: pytest.CaptureFixture[str]) -> None:
    """The help of a command has one line for all of them; `isthmus help connection` has each, with its variable."""
    assert cli.main(["lag", "--help"]) == Exit.OK
    out = capsys.readouterr().out
    assert "isthmus help connection" in " ".join(out.split())
    assert cli.main(["help", "connection"]) == Exit.OK
    explained = capsys.readouterr().out
    for flag, _, variable, _ in (*CHOICES, *OPTIONS, ("--admin", "", "ISTHMUS_ADMIN", "")):
        assert flag not in out
        assert f"{flag} " in explained
        assert variable in explained


def test_exit_codes_are_a_topic(capsys: pytest.CaptureFixture[str]) -> None:
    """The topic lists every exit code of the commands."""
    assert cli.main(["help", "exit-codes"]) == Exit.OK
    out = capsys.readouterr().out
    assert all(meaning in out for meaning in MEANINGS.values())


def test_every_command_that_asks_a_node_takes_all_connection_options() -> None:
    """Every such command has all of them, so that users need not remember which."""
    wanted = {flag for flag, *_ in (*CHOICES, *OPTIONS)}
    context = click.Context(cli.root, info_name="isthmus")

    def lacking(group: click.Group) -> list[str]:
        found = []
        for name in group.list_commands(context):
            command = group.get_command(context, name)
            assert command is not None
            if isinstance(command, click.Group):
                found += [f"{name} {each}" for each in lacking(command)]
                continue
            flags = {flag for each in command.params for flag in each.opts}
            if {"--admin", "--http"} & flags and name != "add" and not wanted <= flags:
                found.append(f"{name}: {wanted - flags}")
        return found

    assert lacking(cli.root) == []


def test_the_root_help_has_sections_and_a_line_for_each_noun(capsys: pytest.CaptureFixture[str]) -> None:
    """Basics first, development last; no summary is wrapped at 80 columns, and every noun is in one section."""
    assert cli.main(["--help"]) == Exit.OK
    lines = capsys.readouterr().out.splitlines()
    titles = [line.removesuffix(":") for line in lines if line.endswith(":") and not line.startswith(" ")]
    assert titles == ["Options", *cli.GROUPS]
    listed = [line.split()[0] for line in lines if line.startswith("  ") and line.split()[0] in cli.NOUNS]
    assert listed == [name for nouns in cli.GROUPS.values() for name in nouns]
    assert max(map(len, lines)) <= 80
    for name in cli.NOUNS:
        assert any(line.startswith(f"  {name} ") and line.endswith(cli.NOUNS[name].summary) for line in lines), name


def test_version_is_a_command_too(capsys: pytest.CaptureFixture[str]) -> None:
    """The command prints the output of --version, and Python, packages and extras; as JSON for programs."""
    assert cli.main(["version"]) == Exit.OK
    assert capsys.readouterr().out.startswith(f"isthmus: {program_version()}\npython: 3.")
    assert cli.main(["version", "-o", "json"]) == Exit.OK
    assert json.loads(capsys.readouterr().out)["isthmus"] == program_version()


def groups(group: click.Group, context: click.Context) -> Iterator[tuple[click.Group, click.Context]]:
    """Every group below the root with its context."""
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if isinstance(command, click.Group):
            inner = click.Context(command, info_name=name, parent=context)
            yield command, inner
            yield from groups(command, inner)


def test_every_verb_has_a_whole_line_at_80_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    """The help of a noun lists each verb with what it does in one line, which is never cut, nor wrapped."""
    monkeypatch.setenv("COLUMNS", "80")
    root = click.Context(cli.root, info_name="isthmus")
    wrong, verbs = [], 0
    for group, context in groups(cli.root, root):
        listed = context.get_help().partition("\nCommands:\n")[2].splitlines()
        names = [name for name in group.list_commands(context) if not group.commands[name].hidden]
        verbs += len(names)
        wrong += [f"{context.command_path}: {line}" for line in listed if line.endswith("...") or len(line) > 80]
        if [line.split()[0] for line in listed] != names:
            wrong.append(f"{context.command_path}: a verb takes more than a line")
    assert wrong == []
    assert verbs > 110


def test_a_misspelled_word_gets_what_is_near_first(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Suggestions begin with the one that has the fewest mistakes; names with more than two are left out. Of two that
    are equally near, the one that asks for confirmation, as a destructive one does, stands last."""
    for arguments, suggested in (
        (["queue", "lst"], "Did you mean 'list'?"),
        (["queue", "clear", "q", "--reasn", "x"], "Did you mean '--reason'?"),
        (["bucket-type", "create", "x", "--replication"], "Did you mean '--replication-factor'?"),
        (["fullsync", "set-range", "--since", "1"], "SINCE is an argument: write its value without --since."),
        (["bucket-type", "set-replication-factor", "x", "--factor", "3"], "FACTOR is an argument"),
        (["backup", "restor"], "Did you mean 'restore'?"),
    ):
        assert cli.main(arguments) == Exit.USAGE
        error = capsys.readouterr().err
        assert suggested in error, arguments
        assert "one of" not in error, arguments
    assert cli.main(["queue", "xyzzy"]) == Exit.USAGE
    assert "Did you mean" not in capsys.readouterr().err
    context = click.Context(cli.root.get_command(click.Context(cli.root), "queue"), info_name="queue")
    near = cli._suggestion(click.exceptions.NoSuchCommand("plear", ctx=context))
    assert near == " Did you mean 'clear'?"


def test_the_root_help_names_the_verbs_to_begin_with(capsys: pytest.CaptureFixture[str]) -> None:
    """A newcomer is told six of the commands, which are all there."""
    assert cli.main(["--help"]) == Exit.OK
    begin = capsys.readouterr().out.partition("Begin with ")[2].partition(".")[0]
    words = begin.replace(" and ", ", ").replace("\n", " ").split(", ")
    assert len(words) == 6
    assert {word.strip() for word in words} <= set(cli.NOUNS)
