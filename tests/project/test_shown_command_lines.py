"""Command lines that pages and deploy files show are accepted: options, arguments and choices, not only the command.

They are parsed by the commands' own parsers and run nothing. A word in capitals, in braces or of a shell variable
stands for a value and is not converted; paths are not looked up.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import click
import pytest

from isthmus.node.cli.main import root

REPOSITORY: Final = Path(__file__).parents[2]
PAGES: Final = [
    *sorted(REPOSITORY.glob("*.md")),
    *sorted((REPOSITORY / "docs").glob("*.md")),
    REPOSITORY / "client" / "README.md",
]
DEPLOY_FILES: Final = [
    path for path in sorted((REPOSITORY / "deploy").rglob("*")) if path.is_file() and path.suffix != ".json"
]

PROGRAM: Final = re.compile(
    r"""(?:^|[;|&(]|\bif|\bwhile|\buntil|\bdo|\bthen|\bsudo|\bexec|\btime|ExecStart=)  # where a command begins
    \s*(?:\$\s+)?(?:\w+=\S*\s+)*(?:!\s+)?                                             # prompt, variables
    (?:[\w./~$-]*/)?isthmus(?=\s)([^;|&\n)]*)                                         # the program, and its words
    """,
    re.VERBOSE,
)
REDIRECTION: Final = re.compile(r"\s\d?[<>].*$")
PLACEHOLDER: Final = re.compile(r"[A-Z][A-Z0-9_]*(?:[^a-z]*)$|.*(?:\.\.\.|[{}$<>*]|\bNAME\b|\b[A-Z_]{3,}\b)")


class Shown(NamedTuple):
    """A command line of a page. `whole`: it is there to be copied, so that nothing may be missing."""

    words: tuple[str, ...]
    whole: bool


def command_lines(text: str) -> Iterator[Shown]:
    """The command lines of a page's blocks of code, and those between backticks."""
    for block in re.findall(r"^ *```.*?^ *```", text, re.DOTALL | re.MULTILINE):
        for line in block.replace("\\\n", " ").splitlines():
            for found in PROGRAM.finditer(re.sub(r"^\s*(?=\$|isthmus)", "", line)):
                yield from shown(found[1], whole=True)
    prose = re.sub(r"^ *```.*?^ *```", "", text, flags=re.DOTALL | re.MULTILINE)
    for piece in re.findall(r"`([^`]+)`", prose):
        for found in PROGRAM.finditer(" ".join(piece.split())):
            yield from shown(found[1], whole=False)


def lines_of_deploy_file(text: str) -> Iterator[Shown]:
    """The command lines between backticks, with those of a service manager and of an image."""
    yield from command_lines(text)
    for line in text.splitlines():
        for found in PROGRAM.finditer(line) if line.startswith("ExecStart=") else ():
            yield from shown(found[1], whole=True)
    for listed in re.findall(r'\["(?:[\w./-]*/)?isthmus", ("[^\]]*")\]', text):
        yield Shown(tuple(re.findall(r'"([^"]*)"', listed)), whole=False)


def shown(rest: str, *, whole: bool) -> Iterator[Shown]:
    """The words after the program, without comment and redirection; none if it is not a command line."""
    words = shlex.split(REDIRECTION.sub("", " " + re.sub(r"\{\{.*?\}\}", "NAME", rest)), comments=True)
    if "[OPTIONS]" in words:  # a usage line, which click itself has written
        return
    plain = [word.strip("[]") if not whole else word for word in words if word not in ("...", "\\")]
    if plain:
        yield Shown(tuple(plain), whole)


def fault(line: Shown) -> str | None:
    """What a command's parser objects to."""
    command: click.Command = root
    context = click.Context(root, info_name="isthmus")
    words, complete = list(line.words), line.whole and "--help" not in line.words
    try:
        while True:
            given, rest, _ = command.make_parser(context).parse_args(args=words)
            for parameter in command.get_params(context):
                check_value(parameter, given.get(parameter.name or ""), context, complete=complete)
            if not isinstance(command, click.Group):
                return f"unexpected: {' '.join(rest)}" if rest else None
            if not rest or rest[0].isupper():
                return None
            name, inner, words = command.resolve_command(context, rest)
            assert inner is not None
            command, context = inner, click.Context(inner, info_name=name, parent=context)
    except click.BadOptionUsage as error:  # prose may name an option without its value
        return None if not line.whole and "requires an argument" in error.message else error.format_message()
    except click.UsageError as error:
        return error.format_message()


def check_value(parameter: click.Parameter, value: Any, context: click.Context, *, complete: bool) -> None:
    """Raise UsageError where a required value is missing, or a given one is not of its type."""
    given = [each for each in texts(value) if each]
    if not given:
        if complete and parameter.required:
            raise click.MissingParameter(ctx=context, param=parameter)
        return
    if isinstance(parameter, click.Argument) and isinstance(parameter.type, click.Choice):
        # A word in capitals stands for one of the choices only if it is their name: PEER is none of `run`'s kinds.
        names = {parameter.name or "", parameter.make_metavar(context)}
        given = [each for each in given if each.lower() not in {name.strip("[]").lower() for name in names}]
        for each in given:
            parameter.type.convert(each, parameter, context)
        return
    if isinstance(parameter.type, click.Path | click.File) or any(PLACEHOLDER.match(each) for each in given):
        return
    parameter.type_cast_value(context, value)


def texts(value: Any) -> list[str]:
    """The texts of an option or argument, also where it has several."""
    if isinstance(value, list | tuple):
        return [text for each in value for text in texts(each)]
    return [value] if isinstance(value, str) else []


def faults(lines: Iterator[Shown]) -> dict[str, str]:
    """Command line -> what is wrong with it."""
    return {" ".join(line.words): wrong for line in lines if (wrong := fault(line)) is not None}


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(REPOSITORY)))
def test_command_lines_of_pages_are_accepted(page: Path) -> None:
    """Commands, options, arguments and choices are those of this version."""
    assert faults(command_lines(page.read_text())) == {}


@pytest.mark.parametrize("file", DEPLOY_FILES, ids=lambda path: str(path.relative_to(REPOSITORY)))
def test_command_lines_of_deploy_files_are_accepted(file: Path) -> None:
    """Alerts and units, too."""
    assert faults(lines_of_deploy_file(file.read_text())) == {}


@pytest.mark.parametrize(
    ("line", "wrong"),
    [
        ("queue list --all", "No such option '--all'"),
        ("queue throttle to-west", None),
        ("queue throttle", "Missing argument 'NAME'"),
        ("queue throttle to-west to-north", "unexpected: to-north"),
        ("queue lst", "No such command 'lst'"),
        ("lag -o yaml", "'yaml' is not one of"),
        ("lag -o FORMAT", None),
        ("fullsync run all", None),
        ("fullsync run PEER", "'PEER' is not one of"),
        ("sink set-workers many", "'many' is not a whole number"),
        ("sink set-workers COUNT", None),
        ("node init FILE", "Missing option '--name'"),
        ("node init --help", None),
        ("node run /no/such/file.toml", None),
        ("NOUN VERB", None),
    ],
)
def test_a_wrong_line_in_a_block_is_found(line: str, wrong: str | None) -> None:
    """Each kind of mistake, and what stands for a value."""
    (found,) = faults(command_lines(f"```\n$ isthmus {line}  # a comment\n```\n")).values() or [None]
    assert found == wrong if wrong is None or found is None else wrong in found


def test_what_a_page_shows_is_found_as_a_shell_reads_it() -> None:
    """Variables, pipes, redirections, continued lines, substitutions and alerts; prose is no command, and may leave out
    arguments."""
    block = "A=1 isthmus lag \\\n  -o json | jq . && .venv/bin/isthmus gaps > /tmp/x\nx=$(isthmus version) # isthmus\n"
    text = f"An `isthmus` joins. `isthmus queue\nresume` and `isthmus sink list [--node NAME]`.\n```sh\n{block}```\n"
    assert [" ".join(words) for words, _ in command_lines(text)] == [
        "lag -o json",
        "gaps",
        "version",
        "queue resume",
        "sink list --node NAME",
    ]
    unit = "ExecStart=/opt/bin/isthmus node run %i.toml\n"
    image = 'CMD ["isthmus", "node", "run"]\n'
    alert = "`isthmus lag {{ $labels.queue }}`\n"
    found = [" ".join(words) for words, _ in lines_of_deploy_file(unit + image + alert)]
    assert found == ["lag NAME", "node run %i.toml", "node run"]
    assert faults(command_lines(text)) == {}


def test_most_command_lines_are_found() -> None:
    """The search has not gone blind."""
    assert sum(len(list(command_lines(page.read_text()))) for page in PAGES) > 500
