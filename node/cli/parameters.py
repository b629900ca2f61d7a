"""Options that several nouns share: who acts and why, on which node, confirmation, times, numbers."""

from __future__ import annotations

import copy
import functools
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final, NamedTuple, TypeVar
from urllib.parse import quote

import click

from isthmus.config.text import no_such, quantity
from isthmus.config.units import format_duration, parse_duration, parse_size
from isthmus.config.validation import check_name
from isthmus.node.cli.admin_client import AdminClient, whoami
from isthmus.node.cli.exit_codes import CommandFailed, Exit
from isthmus.node.cli.output import objects_in
from isthmus.repl.machine import machine
from isthmus.repl.model.errors import BadInput
from isthmus.repl.model.keys import DEFAULT_BUCKET_TYPE
from isthmus.repl.model.timestamps import parse_timestamp_ms

Command = TypeVar("Command", bound=Callable[..., Any])


class Number(click.FloatRange):
    """A finite number in a range. click's own type accepts `nan` in every range and `inf` where there is no bound: a
    wait of that length never ends, and no lag exceeds it."""

    name = "number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The number. Fails as click does."""
        try:
            number = float(value)
        except ValueError:
            number = math.nan
        return super().convert(value, param, ctx) if math.isfinite(number) else self._refuse(value, param, ctx)

    def _refuse(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        self.fail(f"{value!r} is not a number", param, ctx)


class Count(click.IntRange):
    """A whole number in a range."""

    name = "number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The number. Fails as click does."""
        try:
            int(value)
        except ValueError:
            self.fail(f"{value!r} is not a whole number; write digits", param, ctx)
        return super().convert(value, param, ctx)


class Duration(click.ParamType[int]):
    """A duration, as in config files ("90s", "2h"), or a bare number of seconds, as plugins have it; milliseconds.

    `least` and `most` in milliseconds: a duration beyond them is refused.
    """

    name = "duration"

    def __init__(self, least: int = 0, most: int | None = None) -> None:
        self._least, self._most = least, most

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Milliseconds. Fails as click does."""
        if isinstance(value, int):
            return value
        try:
            found = parse_duration(f"{value}s" if str(value).replace(".", "", 1).isdecimal() else str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)
        if found < self._least or (self._most is not None and found > self._most):
            least = format_duration(self._least)
            allowed = f"at least {least}" if self._most is None else f"{least} to {format_duration(self._most)}"
            self.fail(f"{value!r} is out of range; allowed is {allowed}", param, ctx)
        return found


class Size(click.ParamType[int]):
    """A size, as in config files ("200KB", "4MiB"), or a bare number of bytes; bytes. Rates may end in "/s"."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Bytes. Fails as click does."""
        if isinstance(value, int):
            return value
        text = str(value).removesuffix("/s")
        try:
            return parse_size(f"{text}B" if text.isdecimal() else text)
        except ValueError as error:
            self.fail(str(error), param, ctx)


class RateLimit(click.ParamType[int]):
    """A limit a second, of a `number` type, or "none", which is 0: no limit. 0 itself is refused, since it can be meant
    as a stop; `stop` is the command that stops."""

    name = "rate"

    def __init__(self, number: click.ParamType[int], stop: str) -> None:
        self._number = number
        self._stop = stop

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """The number. Fails as click does."""
        if value == "none":
            return 0
        found = int(self._number.convert(value, param, ctx))
        if not found:
            self.fail(f'0 is no limit, not a stop: "none" or --off lifts the limit, `{self._stop}` stops', param, ctx)
        return found


class PartitionName(NamedTuple):
    """A partition as it was written: its number, or its bucket type and its index there."""

    number: int | None
    bucket_type: str = ""
    place: int = 0

    def __str__(self) -> str:
        return f"{self.bucket_type}/{self.place}" if self.number is None else str(self.number)


class PartitionParameter(click.ParamType[PartitionName]):
    """A partition: its number, or TYPE/INDEX, as `isthmus partition list` shows both."""

    name = "partition"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> PartitionName:
        """Number, or type and index. Fails as click does."""
        if isinstance(value, PartitionName):
            return value
        bucket_type, slash, number = str(value).rpartition("/")
        if not (number.isascii() and number.isdecimal()) or len(number) > PARTITION_DIGITS_MAX:
            self.fail(f"{value!r} is not a partition; write its number, or TYPE/INDEX, such as default/7", param, ctx)
        if not slash:
            return PartitionName(int(number))
        try:
            return PartitionName(None, check_name(bucket_type), int(number))
        except ValueError as error:
            self.fail(str(error), param, ctx)


PARTITION_DIGITS_MAX: Final = 9
"""Digits of a partition's number: far more than there are partitions."""


def partition_number(admin: AdminClient, name: PartitionName) -> int:
    """The number of a partition; a cluster is asked for TYPE/INDEX. Raises BadInput, CommandFailed."""
    if name.number is not None:
        return name.number
    rows = objects_in(admin.get(f"/admin/partitions?bucket_type={quote(name.bucket_type, safe='')}"), "partitions")
    found = next((row.get("partition") for row in rows if row.get("index") == name.place), None)
    if not isinstance(found, int):
        has = f"{name.bucket_type} has {quantity(len(rows), 'partition')}, the first is {name.bucket_type}/0"
        there = has if rows else f"there is no bucket type {name.bucket_type}"
        raise BadInput(f"there is no partition {name}: {there}")
    return found


class RenamedOption(click.Option):
    """An option that is also accepted under `old` names, which no help shows."""

    def __init__(self, *arguments: Any, old: tuple[str, ...], **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.old = old

    def add_to_parser(self, parser: Any, ctx: click.Context) -> None:
        """See click.Option."""
        own = self.opts
        self.opts = [*own, *self.old]
        super().add_to_parser(parser, ctx)
        self.opts = own


def add_old_name(group: click.Group, name: str, command: click.Command) -> None:
    """Let a group accept `command` under an old name, which no help shows."""
    old = copy.copy(command)
    old.hidden = True
    group.add_command(old, name)


def with_options(*options: Callable[[Any], Any]) -> Callable[[Command], Command]:
    """A decorator that adds these options and arguments to a command, in this order."""

    def added(command: Any) -> Any:
        return functools.reduce(lambda changed, option: option(changed), reversed(options), command)

    return added


@contextmanager
def checking(option: str) -> Iterator[None]:
    """Turn a ValueError about the value of an option into BadInput, which names the option."""
    try:
        yield
    except ValueError as error:
        raise BadInput(f"{option}: {error}") from None


FORM: Final = "2026-02-03T04:05, which is UTC unless it names a zone"
"""The form of a time, for messages and help texts."""


def time_of(text: str, option_name: str = "", other_form: str = "") -> int:
    """Milliseconds since 1970 of a time on the command line, read by `repl.model.timestamps`.

    `option_name` begins the error message; `other_form` is another form that the option takes. Raises BadInput, also
    for a time before 1970.
    """
    option, other = f"{option_name}: " * bool(option_name), f", or {other_form}" * bool(other_form)
    try:
        time_ms = parse_timestamp_ms(text)
    except ValueError:
        raise BadInput(f"{option}{text!r} is not a time; write it as {FORM}{other}") from None
    if time_ms < 0:
        raise BadInput(f"{option}{text!r} lies before 1970")
    return time_ms


def time_or_ago(text: str) -> int:
    """The time of `--since`, in ms since 1970: a time, or a duration before now. Raises BadInput."""
    try:
        return max(0, machine().wall_ns() // 1_000_000 - parse_duration(text))
    except ValueError:
        return time_of(text, "--since", "as 15m for 15 minutes ago")


def bucket_type_name(_context: click.Context, _parameter: click.Parameter, value: str | None) -> str | None:
    """Callback of `--bucket-type`: the name, checked. Raises BadInput."""
    with checking("--bucket-type"):
        return value if value is None else check_name(value)


def type_and_bucket(where: str) -> tuple[str, str]:
    """Bucket type and bucket of TYPE/BUCKET, both given. Raises BadInput."""
    bucket_type, slash, bucket = where.partition("/")
    if not slash or not bucket_type or not bucket:
        raise BadInput(f"{where!r} is not TYPE/BUCKET, such as {DEFAULT_BUCKET_TYPE.decode()}/users")
    return bucket_type, bucket


def split_bucket(where: str) -> tuple[str, str]:
    """Bucket type and bucket of [TYPE/]BUCKET; without a slash the bucket is of the default type."""
    bucket_type, slash, bucket = where.partition("/")
    return (bucket_type, bucket) if slash else (DEFAULT_BUCKET_TYPE.decode(), where)


def is_interactive(output: str) -> bool:
    """True where a person can answer a question: at a terminal, and without `-o json`."""
    return output != "json" and sys.stdin.isatty()


def confirm(yes: bool, question: str, output: str = "table") -> None:
    """Ask, unless `yes`. Raises CommandFailed where nobody can answer: without a terminal, and with `-o json`, whose
    output a program reads; click.Abort when the answer is no."""
    if yes:
        return
    if output == "json":
        raise CommandFailed(
            Exit.USAGE, "not-confirmed", "nothing was done: -o json does not ask; --yes does it, --dry-run shows it"
        )
    if not sys.stdin.isatty():
        raise CommandFailed(
            Exit.USAGE, "not-confirmed", "nothing was done: confirmation needs a terminal and no -o json; or use --yes"
        )
    click.confirm(question, abort=True, err=True)


YES: Final = click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
DRY_RUN: Final = click.option(
    "--dry-run",
    is_flag=True,
    cls=RenamedOption,
    old=("--validate-only",),
    help="Show what would change; change nothing.",
)
BY: Final = click.option(
    "--by", default=whoami, show_default="USER@HOST", help="Name of the person who runs this command; shown to others."
)
REASON: Final = click.option("--reason", default="", help="Why; shown to others.")

_NODES_GIVEN: Final = "isthmus.node.cli.parameters"
"""Key in a click context: one of --node and --all-nodes was given."""


def _only_one(context: click.Context, _parameter: click.Parameter, value: Any) -> Any:
    if value:
        if context.meta.get(_NODES_GIVEN):
            raise click.UsageError("--node and --all-nodes contradict each other: give one of them")
        context.meta[_NODES_GIVEN] = True
    return value


ONE_NODE: Final = click.option("--node", metavar="NAME", help="Only this node; without it all nodes.")


def of_node(rows: Sequence[Mapping[str, Any]], node: str | None) -> list[Mapping[str, Any]]:
    """The rows of a node, or all of them; "node" names each one's. Raises BadInput for a node that none is of."""
    if node is None:
        return list(rows)
    found = [row for row in rows if row.get("node") == node]
    if not found:
        raise BadInput(f"--node: {no_such('node', node, sorted({str(row.get('node')) for row in rows}))}")
    return found


node_options: Final = with_options(
    click.option("--node", metavar="NAME", callback=_only_one, help="Only on the node of this name."),
    click.option(
        "--all-nodes", is_flag=True, expose_value=False, callback=_only_one, help="On all nodes, which is the default."
    ),
)
"""Add `--node`, as the argument `node` (None: all nodes), and `--all-nodes`, the default, which changes nothing."""
