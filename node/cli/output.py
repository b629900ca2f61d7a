"""What commands print: tables for people, JSON for programs, chosen by `-o`.

Tables say "unknown" where a value is not known and never invent one. Text from a cluster is printed as
text: control characters are escaped, nothing in it is taken for markup. Which exit code a failure has
stands in `node.cli.exit_codes`.
"""

from __future__ import annotations

import io
import json
import re
import shutil
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import zip_longest
from typing import Any, Final, TypeVar

import click

UNKNOWN: Final = "unknown"
NOTHING: Final = "-"

FORMATS: Final = ("table", "json")

PIPE_COLUMNS: Final = 100_000
"""Width of a table that does not go to a terminal: wide enough never to be wrapped, so that a line is a row."""

WORD_COLUMNS: Final = 40
"""Longest word that is kept whole in a terminal: longer than an address and a time, shorter than a line."""

GAP_COLUMNS: Final = 2
"""Between two columns of a table, as rich draws it without edges."""

MOMENT_MS_MAX: Final = 253_402_300_800_000
"""The year 10000, where dates of four digits end."""

_HALF: Final = re.compile("[\ud800-\udfff]")

Command = TypeVar("Command", bound=Callable[..., Any])


@dataclass(slots=True)
class CliContext:
    """What one run of the command line was asked for; `node.cli.main` reads it when a command fails."""

    output: str = "table"
    credentials: dict[str, str] = field(default_factory=dict)
    """Files named by `node.cli.credentials`; never what is in them."""


def _remember(context: click.Context, _parameter: click.Parameter, value: str) -> str:
    context.ensure_object(CliContext).output = value
    return value


def output_option(command: Command) -> Command:
    """Adds `-o table|json` to a command, which gets it as the argument `output`."""
    return click.option(
        "-o",
        "--output",
        type=click.Choice(FORMATS),
        default=FORMATS[0],
        show_default=True,
        is_eager=True,
        callback=_remember,
        help="A table for people, or JSON for programs.",
    )(command)


def echo_json(value: Any) -> None:
    """One JSON document on standard output, indented, keys in the order given. Half a character of UTF-16, which no
    encoding can write, stays an escape."""
    click.echo(_HALF.sub(lambda half: f"\\u{ord(half[0]):04x}", json.dumps(value, indent=2, ensure_ascii=False)))


def echo_table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Rows under upper-case column heads; values become text by `cell`."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    heads, cells = [column.upper() for column in columns], [[cell(value) for value in row] for row in rows]
    room = shutil.get_terminal_size().columns if sys.stdout.isatty() else PIPE_COLUMNS
    widths = _widths([heads, *cells], room)
    table = Table(box=None, pad_edge=False, header_style="")
    for head, width in zip(heads, widths, strict=True):
        table.add_column(Text(head), overflow="fold", width=width)
    for texts in cells:
        table.add_row(*map(Text, texts))
    drawn = io.StringIO()
    Console(file=drawn, width=max(room, _drawn(widths))).print(table)
    click.echo("\n".join(line.rstrip() for line in drawn.getvalue().splitlines()))


def _widths(lines: Sequence[Sequence[str]], room: int) -> list[int]:
    """How wide each column of `lines` is drawn where there are `room` columns: the widest give way first, and none
    below its longest word (of WORD_COLUMNS at most), since broken words cannot be read. A table that needs more than
    that is wider than the room."""
    from rich.cells import cell_len

    columns = list(zip_longest(*lines, fillvalue=""))
    widths = [max(map(cell_len, column)) for column in columns]
    floors = [
        min(width, WORD_COLUMNS, max((cell_len(word) for text in column for word in text.split()), default=0))
        for column, width in zip(columns, widths, strict=True)
    ]
    while _drawn(widths) > room:
        able = [n for n, width in enumerate(widths) if width > floors[n]]
        if not able:
            break
        widths[max(able, key=widths.__getitem__)] -= 1
    return widths


def _drawn(widths: Sequence[int]) -> int:
    """Columns of a terminal that a table takes, with what lies between."""
    return sum(widths) + GAP_COLUMNS * max(0, len(widths) - 1)


def echo_facts(facts: Iterable[tuple[str, Any]]) -> None:
    """One "name: value" line each."""
    for name, value in facts:
        click.echo(f"{name}: {cell(value)}")


def cell(value: Any) -> str:
    """A value in a table: None is "unknown", an empty text or list "-", true and false are yes and no."""
    match value:
        case None:
            return UNKNOWN
        case bool():
            return "yes" if value else "no"
        case list() | tuple():
            return ", ".join(cell(item) for item in value) or NOTHING
        case float():
            return f"{value:.1f}"
        case _:
            return printable(str(value)) or NOTHING


def milliseconds(value: Any) -> str:
    """A time as a person reads it: "1.8 ms", "12.3 s", "5.0 min"; anything but a number is "unknown"."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return UNKNOWN
    for factor, unit, below in ((1, "ms", 1_000), (1_000, "s", 300_000), (60_000, "min", 7_200_000)):
        if value < below:
            return f"{value / factor:.1f} {unit}"
    return f"{value / 3_600_000:.1f} h"


def moment(value: Any) -> str:
    """Milliseconds since 1970 as a time of day in UTC: "2026-02-03 04:05:06Z"; anything else is "unknown"."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < MOMENT_MS_MAX:
        return UNKNOWN
    return f"{datetime.fromtimestamp(value // 1000, UTC):%Y-%m-%d %H:%M:%S}Z"


def printable(text: str) -> str:
    """The text with everything escaped that a terminal might act upon."""
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)
