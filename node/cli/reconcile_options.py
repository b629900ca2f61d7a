"""Options of batch commands: durations, output format, and credential files as paths for driver and workers.

Workers do not see the driver's environment, so a token in it is refused.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import click

from isthmus.aae.reconcile.client import Credentials
from isthmus.node.cli.credentials import TOKEN_VARIABLE
from isthmus.node.cli.exit_codes import CommandFailed, Exit
from isthmus.node.cli.output import CliContext, format_option, printable
from isthmus.node.cli.parameters import Count, Duration
from isthmus.repl.model.errors import BadInput

FORMAT = format_option("-o", "--output", "format_")
"""`-o, --output` of commands whose argument `output` is a directory, as in `ReconcileOptions`."""

RUNS_DIRECTORY = click.option(
    "--dir",
    "output",
    required=True,
    metavar="DIR",
    help="Directory of runs, which driver and workers reach.",
)


def _there(_context: click.Context, _parameter: click.Parameter, value: str) -> str:
    """The directory of runs, which must exist. Raises BadInput."""
    if not os.path.isdir(value):
        what = "is no directory" if os.path.lexists(value) else "does not exist"
        raise BadInput(f"--dir: {value} {what}; it is the --dir of `isthmus reconcile run` or `seed`")
    return value


KNOWN_RUNS_DIRECTORY = click.option(
    "--dir", "output", required=True, metavar="DIR", callback=_there, help="The directory of `run` or `seed`."
)
"""The directory of commands that read runs, which do not make it."""

BUCKET_TYPE = click.option("--bucket-type", default="default", show_default=True)
RUN_ID = click.option("--run-id", help="The same id goes on with a run; without it a new one is made.")
VERBOSE = click.option("--verbose", is_flag=True, help="Spark's own messages on the terminal, not in a file.")
NICE = click.option(
    "--nice",
    type=Count(0, 19),
    default=10,
    show_default=True,
    help="Priority of Spark on this machine, as of nice(1); 0: that of other programs.",
)
MASTER = click.option("--master", default="", help="A Spark master; without it local[*].")


def print_progress(line: str) -> None:
    """Print a line of a job's progress on standard error."""
    click.echo(printable(line), err=True)


@contextmanager
def interrupted_by_sigterm() -> Iterator[None]:
    """SIGTERM ends the command as Ctrl-C does, so that Spark and temporary files do not outlive it."""
    if threading.current_thread() is not threading.main_thread():  # only that one may set handlers
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def files_of(context: click.Context) -> Credentials:
    """The credential files of this command, as absolute paths. Raises CommandFailed (usage)."""
    given = context.ensure_object(CliContext).credentials
    refuse_token_variable(given.get("token_file", ""))
    if ("certificate" in given) != ("key" in given):
        raise CommandFailed(Exit.USAGE, "usage", "--cert and --key belong together")
    names = ("token_file", "authority", "certificate", "key")
    return Credentials(*(os.path.abspath(given[name]) if name in given else "" for name in names))


def refuse_token_variable(token_file: str) -> None:
    """Raise CommandFailed (usage) for a token in the environment without a file."""
    if os.environ.get(TOKEN_VARIABLE) and not token_file:
        raise CommandFailed(
            Exit.USAGE, "usage", f"{TOKEN_VARIABLE} does not reach Spark's workers: give the token as --token-file FILE"
        )


def new_run_id() -> str:
    """The id of a run that has none: the time of its begin."""
    return time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())


def absolute(_context: click.Context, _parameter: click.Parameter, value: str) -> str:
    """The absolute path; "" for none."""
    return os.path.abspath(value) if value else ""


def duration_s(_context: click.Context, _parameter: click.Parameter, value: int | None) -> float:
    """Seconds of a duration in milliseconds; 0 for none."""
    return (value or 0) / 1000


def whole_seconds(context: click.Context, parameter: click.Parameter, value: int) -> int:
    """Seconds of a duration in milliseconds, rounded, at least 1."""
    return max(1, round(duration_s(context, parameter, value)))


MAX_TIME = click.option(
    "--max-time",
    "max_time_s",
    type=Duration(),
    callback=duration_s,
    help="Begin nothing new after this time, such as 10m.",
)
