"""Where an operator's act holds: `--node NAME` for one node, `--all-nodes` (the default) for every one.

An act without either holds on all, so `--all-nodes` only says it aloud; both at once contradict each other. Only
options stand here: what an act on a node means is its own room's.

The question before an act that cannot be taken back: one for all commands, so none asks where nobody answers.

Times on the command line, read by the one rule that there is (`repl.model.timestamps`); docs/commands.md tells it to
people.

Numbers of the command line that click would take and nobody can mean.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from typing import Any, Final, TypeVar

import click

from isthmus.node.cli.exit_codes import CommandFailed, Exit
from isthmus.repl.model.timestamps import written_ms


class FiniteFloat(click.FloatRange):
    """A number in a range. `nan` lies in every range for click, since it is neither below nor above: a wait for so
    long never ends, and a lag above it is never found. So does `inf` where there is no bound."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The number. Fails as click does."""
        number = super().convert(value, param, ctx)
        return number if math.isfinite(number) else self.fail(f"{value!r} is not a number", param, ctx)


FORM: Final = "2026-02-03T04:05, which is UTC unless it names a zone"
"""How a time is written, for messages and helps."""


def time_of(text: str, what: str = "") -> int:
    """Milliseconds since 1970 of a time as people write it; `what` names the option in a refusal. Raises CommandFailed
    (usage), also for a time before 1970."""
    option = f"{what}: " * bool(what)
    try:
        time_ms = written_ms(text)
    except ValueError:
        raise CommandFailed(Exit.USAGE, "bad-input", f"{option}{text!r} is no time; write it as {FORM}") from None
    if time_ms < 0:
        raise CommandFailed(Exit.USAGE, "bad-input", f"{option}{text!r} lies before 1970")
    return time_ms


def confirm(yes: bool, question: str, output: str = "table") -> None:
    """Go on only if whoever asks for it says so. Raises CommandFailed where nobody can be asked, and with `output`
    "json", since a program reads it."""
    if yes:
        return
    if output == "json":
        raise CommandFailed(
            Exit.USAGE, "not-confirmed", "nothing was done: -o json does not ask; --yes does it, --dry-run shows it"
        )
    if not sys.stdin.isatty():
        raise CommandFailed(
            Exit.USAGE, "not-confirmed", "nothing was done: this cannot ask here; --yes says so instead"
        )
    click.confirm(question, abort=True, err=True)


F = TypeVar("F", bound=Callable[..., Any])

_SAID: Final = "isthmus.node.cli.parameters"


def _once(context: click.Context, _parameter: click.Parameter, value: Any) -> Any:
    if value:
        if context.meta.get(_SAID):
            raise click.UsageError("--node and --all-nodes contradict each other: give one of them")
        context.meta[_SAID] = True
    return value


def node_options(command: F) -> F:
    """`--node` as the parameter `node`, None for all; `--all-nodes` beside it."""
    one = click.option("--node", metavar="NAME", callback=_once, help="Only on the node of this name.")
    every = click.option(
        "--all-nodes", is_flag=True, expose_value=False, callback=_once, help="On all nodes, which is the default."
    )
    return one(every(command))
