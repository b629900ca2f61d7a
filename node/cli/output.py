"""Output of commands: tables for people, JSON for programs, chosen by `-o`.

A listing is declared once, as a `TableSpec`. Tables show "unknown" for a value that is not known. Text from a cluster
is printed as text: control characters are escaped, and nothing in it is markup.

On a terminal that is too narrow a table gives way step by step: addresses lose scheme and domain, columns with nothing
but zeros go, then columns by their declared order, and at last the texts wrap. `-o wide` and a pipe have all columns.
Headings are bold and states have a mark and a colour on terminals alone, and no colour with NO_COLOR.
"""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import sys
import textwrap
from base64 import b64encode
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import Enum
from itertools import zip_longest
from typing import Any, Final, NamedTuple, TypeVar
from urllib.parse import urlsplit

import click

from isthmus.node.http.answer_texts import NOTHING as NOTHING
from isthmus.node.http.answer_texts import UNKNOWN as UNKNOWN
from isthmus.node.http.answer_texts import Row as Row
from isthmus.node.http.answer_texts import cell as cell
from isthmus.node.http.answer_texts import milliseconds as milliseconds
from isthmus.node.http.answer_texts import named as named
from isthmus.node.http.answer_texts import no_proof as no_proof
from isthmus.node.http.answer_texts import object_in as object_in
from isthmus.node.http.answer_texts import objects_in as objects_in
from isthmus.node.http.answer_texts import percent as percent
from isthmus.node.http.answer_texts import printable as printable

FORMATS: Final = ("table", "wide", "json")

PIPE_COLUMNS: Final = 100_000
"""Width of a table that does not go to a terminal: wide enough that no row wraps, so that a line is a row."""

WORD_COLUMNS: Final = 40
"""Longest word that a terminal shows unbroken: longer than an address or a time, shorter than a line."""

GAP_COLUMNS: Final = 2
"""Space between two columns, as rich draws a table without edges."""

MOMENT_MS_MAX: Final = 253_402_300_800_000
"""The year 10000: later times have no four-digit year."""

TEXT_COLUMNS: Final = 24
"""Width below which a column of sentences does not wrap while other columns can still be left out: three or four
words."""

_SURROGATE: Final = re.compile("[\ud800-\udfff]")

Command = TypeVar("Command", bound=Callable[..., Any])


@dataclass(slots=True)
class CliContext:
    """Options of one run that are read outside its command: by `node.cli.main` when it fails, by `credentials`."""

    output: str = "table"
    credentials: dict[str, str] = field(default_factory=dict)
    """Connection option -> its value: a name, or the path of a credential file; never its content."""
    typed: set[str] = field(default_factory=set)
    """Connection options of the command line, not in the environment."""


def _remember(context: click.Context, _parameter: click.Parameter, value: str) -> str:
    context.ensure_object(CliContext).output = value
    return value


def format_option(*names: str) -> Callable[[Command], Command]:
    """An option of these names that chooses the output format: "table", "wide" or "json"."""
    return click.option(
        *names,
        type=click.Choice(FORMATS),
        default=FORMATS[0],
        show_default=True,
        is_eager=True,
        callback=_remember,
        help="A table for people (wide: with every column), or JSON for programs.",
    )


def output_option(command: Command) -> Command:
    """Add `-o table|wide|json` to a command, as its argument `output`."""
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


class Mark(Enum):
    """How good a state is; the value is its colour."""

    GOOD = "green"
    CHANGING = "yellow"
    BAD = "red"
    UNKNOWN = "magenta"

    @property
    def glyph(self) -> str:
        """The mark of a state, in ASCII where the terminal has nothing else."""
        fancy, plain = _GLYPHS[self]
        try:
            fancy.encode(sys.stdout.encoding or "ascii")
        except (UnicodeEncodeError, LookupError):
            return plain
        return fancy


_GLYPHS: Final[Mapping[Mark, tuple[str, str]]] = {
    Mark.GOOD: ("\u2713", "+"),
    Mark.CHANGING: ("!", "!"),
    Mark.BAD: ("\u2717", "x"),
    Mark.UNKNOWN: ("?", "?"),
}

_MARKS: Final[Mapping[Mark, tuple[str, ...]]] = {
    Mark.GOOD: ("closed", "done", "idle", "in-sync", "live", "ok", "online", "pass", "running", "scheduled"),
    Mark.CHANGING: (
        "candidate-found", "cancelled", "copying", "election", "ending", "holding", "leaving", "leadership-balancing",
        "no-sink", "off", "passed-over", "placement-changing", "removing", "repaired", "returning", "starting",
        "stopping", "suspended", "throttled", "waiting", "warning",
    ),
    Mark.BAD: (
        "alarm", "critical", "degraded", "differing", "error", "fail", "failing", "gone", "lost", "offline", "refused",
    ),
    Mark.UNKNOWN: ("unknown", "incomplete", "timed-out"),
}  # fmt: skip


def mark_of(state: str) -> Mark | None:
    """The mark of a state by its word; None for other words."""
    return next((mark for mark, words in _MARKS.items() if state in words), None)


def has_colours() -> bool:
    """True where standard output is a terminal that shows colours, and NO_COLOR (no-color.org) is not set."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


class Column(NamedTuple):
    """A column of a listing.

    `value` is a key of the rows or a function of the row. `leave`: the order in which columns are left out on a narrow
    terminal, the highest first; 0: never. `text`: sentences, which wrap. `host`: an address, which may lose scheme and
    domain. `state`: a word with a mark.
    """

    heading: str
    value: str | Callable[[Row], Any]
    leave: int = 0
    text: bool = False
    host: bool = False
    state: bool = False


def column(
    heading: str,
    value: str | Callable[[Row], Any] | None = None,
    *,
    leave: int = 0,
    text: bool = False,
    host: bool = False,
    state: bool = False,
) -> Column:
    """A column; without `value` the key is the heading, with underscores for spaces."""
    return Column(heading.replace("_", " "), heading if value is None else value, leave, text, host, state)


class TableSpec:
    """The columns of a listing, declared once.

    A column is a key of the rows, shown under its name with spaces for underscores; or a pair of heading and key; or a
    pair of heading and function of the row; or a `Column`. A key that a row lacks is shown as "unknown".
    """

    def __init__(self, *columns: str | tuple[str, str | Callable[[Row], Any]] | Column) -> None:
        self.columns = tuple(map(_column_of, columns))
        self.headings = tuple(each.heading for each in self.columns)

    def cells(self, row: Row) -> list[Any]:
        """The values of one row, in the order of the columns."""
        values = (each.value for each in self.columns)
        return [row.get(value) if isinstance(value, str) else value(row) for value in values]

    def echo(self, rows: Iterable[Row]) -> None:
        """Print the rows as a table."""
        echo_table(self.columns, map(self.cells, rows))


def _column_of(given: str | tuple[str, str | Callable[[Row], Any]] | Column) -> Column:
    if isinstance(given, Column):
        return given
    return column(given) if isinstance(given, str) else column(*given)


def echo_rows(document: Any, output: str, table: TableSpec, rows: Iterable[Row]) -> None:
    """Print a document: as JSON, or its rows as a table."""
    if output == "json":
        echo_json(document)
    else:
        table.echo(rows)


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


def echo_table(columns: Sequence[str | Column], rows: Iterable[Sequence[Any]]) -> None:
    """Print rows under upper-case headings; values become text by `cell`."""
    context = click.get_current_context(silent=True)
    options = None if context is None else context.find_object(CliContext)
    wide = options is not None and options.output == "wide"
    width_max = shutil.get_terminal_size().columns if sys.stdout.isatty() and not wide else PIPE_COLUMNS
    for line in table_lines(columns, rows, width_max, wide=wide, marks=sys.stdout.isatty()):
        click.echo(line)


def table_lines(
    columns: Sequence[str | Column],
    rows: Iterable[Sequence[Any]],
    width_max: int,
    *,
    wide: bool,
    marks: bool,
    hint: bool = True,
) -> list[str]:
    """The lines of a table of at most `width_max` columns of the terminal. `marks`: states have their mark. `hint`: the
    last line names the columns that were left out."""
    found = [_column_of(each) for each in columns]
    cells = [[_marked(cell(value), each, marks) for each, value in zip(found, row, strict=True)] for row in rows]
    kept, left_out = (found, []) if wide else _fitting(found, cells, width_max)
    places = [found.index(each) for each in kept]
    shown = [[row[place] for place in places] for row in cells]
    lines = _drawn(kept, shown, width_max)
    if left_out and hint:
        names = ", ".join(each.heading.upper() for each in found if each in left_out)
        hint_line = textwrap.shorten(f"-o wide has more: {names}", width_max, placeholder=" ...")
        lines.append(_styled(hint_line, "bright_black"))
    return lines


def _marked(text: str, of: Column, marks: bool) -> str:
    mark = mark_of(text) if of.state and marks else None
    return text if mark is None else f"{mark.glyph} {text}"


def _fitting(columns: Sequence[Column], cells: list[list[str]], width_max: int) -> tuple[list[Column], list[Column]]:
    """The columns that fit, and those that are left out. Shortens the addresses in `cells` where that is needed."""

    def needed(those: Sequence[Column]) -> int:
        widths = []
        for each in those:
            place = columns.index(each)
            natural = max((len(row[place]) for row in cells), default=0)
            widths.append(max(len(each.heading), min(natural, TEXT_COLUMNS) if each.text else natural))
        return _table_width(widths)

    kept = list(columns)
    if needed(kept) <= width_max:
        return kept, []
    for place, each in enumerate(columns):
        if each.host:
            for row in cells:
                row[place] = short_host(row[place])
    empty = [
        each
        for place, each in enumerate(columns)
        if each.leave and all(row[place] in ("0", "0.0", "0.0 ms", NOTHING, "no") for row in cells)
    ]
    order = [*empty, *sorted((each for each in columns if each.leave), key=lambda each: -each.leave)]
    for each in dict.fromkeys(order):
        if needed(kept) <= width_max:
            break
        kept.remove(each)
    for each in sorted((each for each in columns if each not in kept), key=lambda each: each.leave):
        more = [one for one in columns if one in kept or one is each]
        if needed(more) <= width_max:
            kept = more
    return kept, [each for each in columns if each not in kept]


def short_host(text: str) -> str:
    """An address without scheme and domain: "http://west-1.example.com:8098" becomes "west-1:8098". Another text
    stays."""
    scheme, separator, _ = text.partition("://")
    try:
        parts = urlsplit(text if separator else f"//{text}")
        host, port = parts.hostname or "", parts.port
    except ValueError:
        return text
    if port is None or not host or (separator and scheme not in ("http", "https")):
        return text
    numeric = host.replace(".", "").isdigit()
    return f"[{host}]:{port}" if ":" in host else f"{host if numeric else host.partition('.')[0]}:{port}"


def _drawn(columns: Sequence[Column], cells: Sequence[Sequence[str]], width_max: int) -> list[str]:
    """The lines of a table, styled where standard output shows colours."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    colours = has_colours()
    headings = [each.heading.upper() for each in columns]
    widths = _widths([headings, *cells], width_max)
    table = Table(box=None, pad_edge=False, header_style="bold" if colours else "")
    for heading, width in zip(headings, widths, strict=True):
        table.add_column(Text(heading), overflow="fold", width=width)
    for row in cells:
        table.add_row(*(Text(text, style=_colour_of(text, each)) for text, each in zip(row, columns, strict=True)))
    drawn = io.StringIO()
    console = Console(
        file=drawn,
        width=max(width_max, _table_width(widths)),
        force_terminal=colours,
        color_system="standard" if colours else None,
        no_color=not colours,
        highlight=False,
        legacy_windows=False,
    )
    console.print(table)
    return [line.rstrip() for line in drawn.getvalue().splitlines()]


def _colour_of(text: str, of: Column) -> str:
    glyph, _, word = text.partition(" ")
    mark = mark_of(word or glyph) or next((each for each in Mark if each.glyph == glyph), None)
    return "" if mark is None or not of.state else mark.value


def _styled(text: str, colour: str) -> str:
    return click.style(text, fg=colour) if has_colours() else text


def styled(text: str, mark: Mark | None, *, bold: bool = False) -> str:
    """A text in the colour of a mark (None: no colour), where standard output shows colours."""
    if not has_colours():
        return text
    return click.style(text, fg=None if mark is None else mark.value, bold=bold or None)


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


def moment(value: Any) -> str:
    """Milliseconds since 1970 as a time in UTC: "2026-02-03 04:05:06Z"; anything else is "unknown"."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < MOMENT_MS_MAX:
        return UNKNOWN
    return f"{datetime.fromtimestamp(value // 1000, UTC):%Y-%m-%d %H:%M:%S}Z"


def attribution(change: Row) -> str:
    """A change's author, time and reason."""
    reason = f": {change['reason']}" if change.get("reason") else ""
    return f"by {change.get('by')}, {moment(change.get('at_ms'))}{reason}"


def value_as_json(sibling: dict[str, Any]) -> dict[str, Any]:
    """A sibling as JSON: its value as text when it is that, and always in base64."""
    value: bytes = sibling["value"]
    try:
        text: str | None = value.decode()
    except UnicodeDecodeError:
        text = None
    return {**sibling, "value": text, "value_base64": b64encode(value).decode()}
