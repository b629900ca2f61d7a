"""`isthmus check lag|isr|sync|gaps|sink`: probes for monitoring systems, which want one line and an exit code.

The codes are those of monitoring plugins (Nagios and all that call its plugins): 0 OK, 1 WARNING, 2 CRITICAL,
3 UNKNOWN; so a slip in the command line, a node that does not answer and a refusal are UNKNOWN here, never CRITICAL or
OK. What is judged how is `node.cli.probes`'s; the words are told in docs/commands.md.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar
from urllib.parse import quote

import click

from config.units import format_duration, parse_duration
from node.cli.cluster import listed
from node.cli.exits import CommandFailed, Exit, failure_of
from node.cli.output import Invocation, echo_json, output_option, printable
from node.cli.probes import (
    RANK,
    Fact,
    Limits,
    State,
    doubts,
    gap_facts,
    isr_facts,
    isr_fine,
    lag_facts,
    sink_facts,
    sync_facts,
    worst,
)
from node.cli.remote import AdminClient, admin_option
from node.suggestions import no_such

TOLD_MAX: Final = 4
"""Facts that a line has room for: pagers and lists of services show some hundred characters. `-o json` has all."""

LAG: Final = ("30s", "5m")
"""A write is there in well below a second while all is well; minutes are a link or a sink that is down. A guess."""

PROVEN: Final = ("26h", "50h")
"""One check a day and two hours of its slot, and a day more: whoever checks hourly can ask for less."""

GAPS: Final = ("0s", "2h")
"""A gap is something that is missing there, so it is told at once; full-sync closes it within two hours where it can,
since its pauses are an hour at most."""

LETTERS: Final = (0, 100)
"""A dead letter is a change that is missing here until somebody acts; a hundred are no accident. A guess."""

F = TypeVar("F", bound=Callable[..., Any])


class Age(click.ParamType[int]):
    """A duration, as in config files ("90s", "2h"), or a bare number of seconds, as plugins have it; milliseconds."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Milliseconds. Fails as click does."""
        if isinstance(value, int):
            return value
        try:
            return parse_duration(f"{value}s" if str(value).replace(".", "", 1).isdecimal() else str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)


class Probes(click.Group):
    """A group whose failures are UNKNOWN, in a line on standard output: it is what a monitor reads."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        """As click does; a slip before the probe's name is unknown, too."""
        return _or_unknown(parent, lambda: super(Probes, self).make_context(info_name, args, parent, **extra))

    def invoke(self, ctx: click.Context) -> Any:
        """Runs the probe."""
        return _or_unknown(ctx, lambda: super(Probes, self).invoke(ctx))


T = TypeVar("T")


def _or_unknown(ctx: click.Context | None, work: Callable[[], T]) -> T:
    try:
        return work()
    except click.exceptions.NoArgsIsHelpError:
        sentence = f"say what to check: {', '.join(PROBES)} (`isthmus check --help`)"
    except click.ClickException as error:
        sentence = " ".join(error.format_message().split())
    except (click.exceptions.Exit, click.Abort, BrokenPipeError):
        raise
    except Exception as error:
        failure = failure_of(error)
        if failure is None or failure.exit_code is Exit.PIPE_CLOSED:
            raise
        sentence = "; ".join(failure.sentences)
    probe = ctx.invoked_subcommand if ctx is not None and ctx.invoked_subcommand in PROBES else None
    output = "table" if ctx is None else ctx.ensure_object(Invocation).output
    _end(probe or "check", [Fact(State.UNKNOWN, sentence)], "", output, None, quiet=False)
    raise AssertionError("unreachable: an end raises")


@click.group("check", cls=Probes)
def check_group() -> None:
    """Probes for monitoring: a line, and exit code 0 ok, 1 warning, 2 critical, 3 unknown."""


def _limits(defaults: tuple[str, str] | tuple[int, int], unit: Any, of: str) -> Callable[[F], F]:
    """Adds `-w` and `-c`, and what every probe takes."""

    def added(command: F) -> F:
        for flag, name, default in (("-c", "--critical", defaults[1]), ("-w", "--warning", defaults[0])):
            text = f"{name[2:].capitalize()} above: {of}."
            command = click.option(flag, name, type=unit, default=default, show_default=True, help=text)(command)
        return click.option("--quiet", is_flag=True, help="Print nothing while all is well, as cron wants it.")(command)

    return added


def _name(_context: click.Context, _parameter: click.Parameter, value: str | None) -> str | None:
    """An empty name is a variable that nobody has set: to look at all queues then would not be what was meant."""
    if value == "":
        raise click.BadParameter("it is empty; without the option all queues are looked at")
    return value


QUEUE: Final = click.option("--queue", metavar="NAME", callback=_name, help="Only this queue.")


@check_group.command("lag")
@_limits(LAG, Age(), "how far a queue is behind")
@QUEUE
@admin_option
@output_option
def lag(warning: int, critical: int, queue: str | None, quiet: bool, admin: AdminClient, output: str) -> None:
    """How far other clusters are behind, by queue and bucket type, as in `isthmus lag`."""
    limits = _checked(warning, critical)
    cluster, rows = admin.get("/admin/cluster"), listed(admin.get("/admin/lag"), "lag")
    known = sorted({str(row.get("queue")) for row in rows})
    wanted = [row for row in rows if queue in (None, row.get("queue"))]
    _known_queue(queue, known)
    facts = [*doubts(cluster), *lag_facts(wanted, limits)]
    if not wanted:
        facts.append(Fact(State.UNKNOWN, "no queue is registered: no change is sent in real time"))
    _end("lag", facts, "", output, limits, quiet=quiet)


@check_group.command("isr")
@_limits((0, 0), click.IntRange(0), "partitions that lack replicas in sync (-w), that take no writes (-c)")
@admin_option
@output_option
def isr(warning: int, critical: int, quiet: bool, admin: AdminClient, output: str) -> None:
    """Replicas out of sync and nodes that are down (warning); partitions without leader or below min-ISR (critical)."""
    cluster = admin.get("/admin/cluster")
    limits = Limits(warning, critical)
    _end("isr", [*doubts(cluster), *isr_facts(cluster, limits)], isr_fine(cluster), output, limits, quiet=quiet)


@check_group.command("sync")
@_limits(PROVEN, Age(), "how long ago both sides were proven equal")
@QUEUE
@admin_option
@output_option
def sync(warning: int, critical: int, queue: str | None, quiet: bool, admin: AdminClient, output: str) -> None:
    """When full-sync last proved both sides equal, and what the newest check of any node found. Keys that differ and
    are queued are a warning, those that are not are critical."""
    limits = _checked(warning, critical)
    cluster, answer = admin.get("/admin/cluster"), admin.get("/admin/fullsync/nodes")
    nodes, at_ms = answer.get("nodes"), answer.get("at_ms")
    if not isinstance(nodes, dict) or not isinstance(at_ms, int):
        raise CommandFailed(Exit.UNAVAILABLE, "unknown", "the node does not tell what the checks of all nodes found")
    facts, known = sync_facts(nodes, limits, at_ms=at_ms, queue=queue, gone=answer.get("gone"))
    if not known:
        facts.append(Fact(State.UNKNOWN, "no node that answers has a [[fullsync]]: nothing is compared"))
    else:
        _known_queue(queue, known)
    _end("sync", [*doubts(cluster), *facts], "", output, limits, quiet=quiet)


@check_group.command("gaps")
@_limits(GAPS, Age(), "age of the oldest change that was given up")
@QUEUE
@admin_option
@output_option
def gaps(warning: int, critical: int, queue: str | None, quiet: bool, admin: AdminClient, output: str) -> None:
    """What queues gave up and no full-sync has proven yet, as in `isthmus gaps`."""
    limits = _checked(warning, critical)
    cluster = admin.get("/admin/cluster")
    answer = admin.get("/admin/gaps" + (f"?queue={quote(queue, safe='')}" if queue else ""))
    facts = [*doubts(cluster), *gap_facts(answer, limits)]
    _end("gaps", facts, "nothing was given up that is not proven yet", output, limits, quiet=quiet)


@check_group.command("sink")
@_limits(LETTERS, click.IntRange(0), "dead letters of all nodes")
@admin_option
@output_option
def sink(warning: int, critical: int, quiet: bool, admin: AdminClient, output: str) -> None:
    """What this cluster does not take in: changes that it refused for good and keeps as dead letters, bucket types that
    it lacks and others send, links that fail."""
    if critical < warning:
        raise click.UsageError(f"--critical {critical} is below --warning {warning}: nothing would be a warning")
    limits = Limits(warning, critical)
    cluster, rows = admin.get("/admin/cluster"), listed(admin.get("/admin/sink/nodes"), "nodes")
    nodes = {str(row.get("node")): row.get("sink") for row in rows}
    facts = [*doubts(cluster), *sink_facts(nodes, limits)]
    _end("sink", facts, "no dead letters, no bucket type is lacking, no link fails", output, limits, quiet=quiet)


PROBES: Final = tuple(check_group.commands)


def _checked(warning: int, critical: int) -> Limits:
    if critical < warning:
        low, high = format_duration(critical), format_duration(warning)
        raise click.UsageError(f"--critical {low} is below --warning {high}: nothing would be a warning")
    return Limits(warning, critical)


def _known_queue(queue: str | None, known: Sequence[str]) -> None:
    if queue is not None and queue not in known:
        raise CommandFailed(Exit.REFUSED, "unknown-queue", no_such("queue", queue, known))


def _end(probe: str, facts: Sequence[Fact], fine: str, output: str, limits: Limits | None, *, quiet: bool) -> None:
    """Print the line and end with its code. `fine` is said where there are no facts, which then is right."""
    told = list(facts) if facts or not fine else [Fact(State.OK, fine)]
    state = worst(told)
    ordered = sorted(told, key=lambda fact: -RANK.index(fact.state))
    if output == "json":
        found = [{"state": fact.state.name.lower(), "sentence": fact.sentence} for fact in ordered]
        unit = "count" if probe in ("isr", "sink") else "ms"
        bounds = None if limits is None else {f"{name}_{unit}": value for name, value in limits._asdict().items()}
        echo_json({"check": probe, "state": state.name.lower(), "code": int(state), "limits": bounds, "facts": found})
    elif state is not State.OK or not quiet:
        words = [fact.sentence for fact in ordered[:TOLD_MAX]]
        more = [f"and {len(ordered) - TOLD_MAX} more"] if len(ordered) > TOLD_MAX else []
        line = printable("; ".join([*words, *more])).replace("|", "/")  # what follows a bar is taken for numbers
        click.echo(f"{probe.upper()} {state.name}: {line}")
    raise click.exceptions.Exit(int(state))
