"""Output of commands: tables for people, JSON for programs, chosen by `-o`.

A listing is declared once, as a `TableSpec`. Tables show "unknown" for a value that is not known. Text from a cluster
is printed as text: control characters are escaped, and nothing in it is markup.
"""

from __future__ import annotations

import io
import json
import re
import shutil
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import zip_longest
from typing import Any, Final, TypeVar

import click

UNKNOWN: Final = "unknown"
NOTHING: Final = "-"

FORMATS: Final = ("table", "json")

PIPE_COLUMNS: Final = 100_000
"""Width of a table that does not go to a terminal: wide enough that no row wraps, so that a line is a row."""

WORD_COLUMNS: Final = 40
"""Longest word that a terminal shows unbroken: longer than an address or a time, shorter than a line."""

GAP_COLUMNS: Final = 2
"""Space between two columns, as rich draws a table without edges."""

MOMENT_MS_MAX: Final = 253_402_300_800_000
"""The year 10000: later times have no four-digit year."""

_SURROGATE: Final = re.compile("[\ud800-\udfff]")

Command = TypeVar("Command", bound=Callable[..., Any])

Row = Mapping[str, Any]
"""A row of a listing: an object of an answer's JSON."""


@dataclass(slots=True)
class CliContext:
    """Options of one run that are read outside its command: by `node.cli.main` when it fails, by `credentials`."""

    output: str = "table"
    credentials: dict[str, str] = field(default_factory=dict)
    """Option -> path of a credential file; never its content."""


def _remember(context: click.Context, _parameter: click.Parameter, value: str) -> str:
    context.ensure_object(CliContext).output = value
    return value


def format_option(*names: str) -> Callable[[Command], Command]:
    """An option of these names that chooses the output format: "table" or "json"."""
    return click.option(
        *names,
        type=click.Choice(FORMATS),
        default=FORMATS[0],
        show_default=True,
        is_eager=True,
        callback=_remember,
        help="A table for people, or JSON for programs.",
    )


def output_option(command: Command) -> Command:
    """Add `-o table|json` to a command, as its argument `output`."""
    return format_option("-o", "--output")(command)


def echo_json(value: Any) -> None:
    """Print one JSON document, indented, keys in the order given. A lone surrogate, which no encoding can write, stays
    an escape."""
    text = json.dumps(value, indent=2, ensure_ascii=False)
    click.echo(_SURROGATE.sub(lambda found: f"\\u{ord(found[0]):04x}", text))


def echo_result(answer: Any, output: str, sentence: str) -> None:
    """Print an answer: as JSON, or as one sentence."""
    if output == "json":
        echo_json(answer)
    else:
        click.echo(printable(sentence))


class TableSpec:
    """The columns of a listing, declared once.

    A column is a key of the rows, shown under its name with spaces for underscores; or a pair of heading and key; or a
    pair of heading and function of the row. A key that a row lacks is shown as "unknown".
    """

    def __init__(self, *columns: str | tuple[str, str | Callable[[Row], Any]]) -> None:
        pairs = [(column.replace("_", " "), column) if isinstance(column, str) else column for column in columns]
        self.headings = tuple(heading for heading, _ in pairs)
        self._values = tuple(value for _, value in pairs)

    def cells(self, row: Row) -> list[Any]:
        """The values of one row, in the order of the columns."""
        return [row.get(value) if isinstance(value, str) else value(row) for value in self._values]

    def echo(self, rows: Iterable[Row]) -> None:
        """Print the rows as a table."""
        echo_table(self.headings, map(self.cells, rows))


def echo_rows(document: Any, output: str, table: TableSpec, rows: Iterable[Row]) -> None:
    """Print a document: as JSON, or its rows as a table."""
    if output == "json":
        echo_json(document)
    else:
        table.echo(rows)


def objects_in(answer: Row, key: str) -> list[dict[str, Any]]:
    """The objects of the list under `key`; none where a node, of another version maybe, does not have it."""
    found = answer.get(key)
    return [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []


def object_in(answer: Row, key: str) -> dict[str, Any]:
    """The object under `key`; an empty one where there is none."""
    found = answer.get(key)
    return found if isinstance(found, dict) else {}


def moment_of(key: str) -> Callable[[Row], str]:
    """A column's value: the time under `key`, "unknown" where it is null."""
    return lambda row: moment(row.get(key))


def moment_or_nothing(key: str) -> Callable[[Row], str]:
    """A column's value: the time under `key`, "-" where it is null."""
    return lambda row: "" if row.get(key) is None else moment(row[key])


def duration_of(key: str) -> Callable[[Row], str]:
    """A column's value: the duration in milliseconds under `key`."""
    return lambda row: milliseconds(row.get(key))


def value_or_nothing(key: str) -> Callable[[Row], Any]:
    """A column's value: what is under `key`, "-" where it is null or empty."""
    return lambda row: row.get(key) or ""


def echo_table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Print rows under upper-case headings; values become text by `cell`."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    headings, cells = [column.upper() for column in columns], [[cell(value) for value in row] for row in rows]
    width_max = shutil.get_terminal_size().columns if sys.stdout.isatty() else PIPE_COLUMNS
    widths = _widths([headings, *cells], width_max)
    table = Table(box=None, pad_edge=False, header_style="")
    for heading, width in zip(headings, widths, strict=True):
        table.add_column(Text(heading), overflow="fold", width=width)
    for texts in cells:
        table.add_row(*map(Text, texts))
    drawn = io.StringIO()
    Console(file=drawn, width=max(width_max, _table_width(widths))).print(table)
    click.echo("\n".join(line.rstrip() for line in drawn.getvalue().splitlines()))


def _widths(lines: Sequence[Sequence[str]], width_max: int) -> list[int]:
    """The width of each column in a table of at most `width_max` columns of the terminal.

    The widest columns shrink first, none below its longest word (WORD_COLUMNS at most), since broken words cannot be
    read. A table whose words need more is wider than `width_max`.
    """
    from rich.cells import cell_len

    columns = list(zip_longest(*lines, fillvalue=""))
    widths = [max(map(cell_len, column)) for column in columns]
    least = [
        min(width, WORD_COLUMNS, max((cell_len(word) for text in column for word in text.split()), default=0))
        for column, width in zip(columns, widths, strict=True)
    ]
    while _table_width(widths) > width_max:
        shrinkable = [n for n, width in enumerate(widths) if width > least[n]]
        if not shrinkable:
            break
        widths[max(shrinkable, key=widths.__getitem__)] -= 1
    return widths


def _table_width(widths: Sequence[int]) -> int:
    return sum(widths) + GAP_COLUMNS * max(0, len(widths) - 1)


def echo_facts(facts: Iterable[tuple[str, Any]]) -> None:
    """Print one "name: value" line each."""
    for name, value in facts:
        click.echo(f"{name}: {cell(value)}")


def cell(value: Any) -> str:
    """A value as text: None is "unknown", an empty text or list "-", true and false are yes and no."""
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
    """A duration as text: "1.8 ms", "12.3 s", "5.0 min"; anything but a number is "unknown"."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return UNKNOWN
    for factor, unit, below in ((1, "ms", 1_000), (1_000, "s", 300_000), (60_000, "min", 7_200_000)):
        if value < below:
            return f"{value / factor:.1f} {unit}"
    return f"{value / 3_600_000:.1f} h"


def moment(value: Any) -> str:
    """Milliseconds since 1970 as a time in UTC: "2026-02-03 04:05:06Z"; anything else is "unknown"."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < MOMENT_MS_MAX:
        return UNKNOWN
    return f"{datetime.fromtimestamp(value // 1000, UTC):%Y-%m-%d %H:%M:%S}Z"


def attribution(change: Row) -> str:
    """Who made a change, when, and why."""
    reason = f": {change['reason']}" if change.get("reason") else ""
    return f"by {change.get('by')}, {moment(change.get('at_ms'))}{reason}"


NAMED_MAX: Final = 8
"""Partitions that a line names."""


def named(values: Sequence[Any]) -> str:
    """The first NAMED_MAX of some partitions, in one line."""
    return ", ".join(map(str, values[:NAMED_MAX])) + (", ..." if len(values) > NAMED_MAX else "")


def printable(text: str) -> str:
    """The text with every character escaped that could control a terminal."""
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)
