"""`isthmus check lag|isr|sync|gaps|sink`: probes for monitoring systems, which expect one line and an exit code.

The codes are those of monitoring plugins (Nagios): 0 OK, 1 WARNING, 2 CRITICAL, 3 UNKNOWN; so a usage error, a node
that does not answer and a refusal are UNKNOWN, never CRITICAL or OK. docs/commands.md explains the lines.

`isthmus.node.services.findings` judges.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar
from urllib.parse import quote

import click

from isthmus.config.text import no_such
from isthmus.config.units import format_duration
from isthmus.node.cli.admin_command import AdminCommand, admin_query
from isthmus.node.cli.exit_codes import CommandFailed, Exit, failure_of
from isthmus.node.cli.output import CliContext, echo_json, object_in, objects_in, printable
from isthmus.node.cli.parameters import Count, Duration
from isthmus.node.services.finding_codes import Code
from isthmus.node.services.findings import (
    CLOCKS,
    GAPS,
    ISR,
    LAG,
    LETTERS,
    PROVEN,
    Fact,
    ProbeState,
    ProbeThresholds,
    by_severity,
    clock_facts,
    clocks_fine,
    clocks_unknown,
    gap_facts,
    isr_facts,
    isr_fine,
    lag_facts,
    sink_facts,
    staleness_facts,
    sync_facts,
    worst,
)

FACTS_SHOWN: Final = 4
"""Facts in one line: pagers and service lists show some hundred characters. `-o json` has all."""

F = TypeVar("F", bound=Callable[..., Any])


class Probes(click.Group):
    """A group whose failures are UNKNOWN, in a line on standard output, which monitors read."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        """As click does; a usage error before the probe's name is UNKNOWN, too."""
        return _or_unknown(parent, lambda: super(Probes, self).make_context(info_name, args, parent, **extra))

    def invoke(self, ctx: click.Context) -> Any:
        """Runs the probe."""
        return _or_unknown(ctx, lambda: super(Probes, self).invoke(ctx))


T = TypeVar("T")


def _or_unknown(ctx: click.Context | None, work: Callable[[], T]) -> T:
    try:
        return work()
    except click.exceptions.NoArgsIsHelpError:
        sentence = f"name a check: {', '.join(PROBES)} (`isthmus check --help`)"
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
    output = "table" if ctx is None else ctx.ensure_object(CliContext).output
    _end(
        probe or "check",
        [Fact(ProbeState.UNKNOWN, sentence, Code.NOT_KNOWN, probe or "check")],
        "",
        output,
        None,
        quiet=False,
    )
    raise AssertionError("unreachable: an end raises")


@click.group("check", cls=Probes)
def check_group() -> None:
    """Probes for monitoring: a line, and exit code 0 ok, 1 warning, 2 critical, 3 unknown."""


def _limits(defaults: tuple[str, str] | tuple[int, int], unit: Any, of: str) -> Callable[[F], F]:
    """Add `-w`, `-c` and `--quiet` to a probe."""

    def added(command: F) -> F:
        for flag, name, default in (("-c", "--critical", defaults[1]), ("-w", "--warning", defaults[0])):
            text = f"{name[2:].capitalize()} above: {of}."
            command = click.option(flag, name, type=unit, default=default, show_default=True, help=text)(command)
        return click.option("--quiet", is_flag=True, help="Print nothing while the state is OK, for cron.")(command)

    return added


def _name(_context: click.Context, _parameter: click.Parameter, value: str | None) -> str | None:
    """Refuse an empty name, which is an unset variable of a script and does not mean all queues."""
    if value == "":
        raise click.BadParameter("it is empty; without the option all queues are looked at")
    return value


QUEUE: Final = click.option("--queue", metavar="NAME", callback=_name, help="Only this queue.")


@check_group.command("lag", short_help="How far other clusters are behind.")
@_limits(LAG, Duration(), "how far a queue is behind")
@QUEUE
@admin_query
def lag(warning: int, critical: int, queue: str | None, quiet: bool, query: AdminCommand) -> None:
    """How far other clusters are behind, by queue and bucket type, as in `isthmus lag`."""
    limits = _checked(warning, critical)
    rows = objects_in(query.get("/admin/lag"), "lag")
    known = sorted({str(row.get("queue")) for row in rows})
    wanted = [row for row in rows if queue in (None, row.get("queue"))]
    _known_queue(queue, known)
    facts = lag_facts(wanted, limits)
    if not wanted:
        words = "no queue is registered: no change is sent in real time"
        facts.append(Fact(ProbeState.UNKNOWN, words, Code.LAG, "cluster", "isthmus queue register NAME"))
    _finish(query, "lag", facts, "", limits, quiet=quiet)


@check_group.command("isr", short_help="Replicas out of sync, nodes down, partitions stuck.")
@_limits(ISR, Count(0), "partitions that lack replicas in sync (-w), that take no writes (-c)")
@admin_query
def isr(warning: int, critical: int, quiet: bool, query: AdminCommand) -> None:
    """Replicas out of sync and nodes that are down (warning); partitions without leader or below min-ISR (critical)."""
    cluster = query.get("/admin/cluster")
    limits = ProbeThresholds(warning, critical)
    facts = [*staleness_facts(cluster), *isr_facts(cluster, limits)]
    _end("isr", facts, isr_fine(cluster), query.output, limits, quiet=quiet)


@check_group.command("sync", short_help="When full-sync last proved the other side up to date.")
@_limits(PROVEN, Duration(), "how long ago the other side was proven up to date")
@QUEUE
@admin_query
def sync(warning: int, critical: int, queue: str | None, quiet: bool, query: AdminCommand) -> None:
    """When full-sync last proved that the other side has everything of this one or, if both directions are configured,
    that both are equal; and the newest result of any node. Keys that differ are a warning if they were queued, else
    critical."""
    limits = _checked(warning, critical)
    answer = query.get("/admin/fullsync/nodes")
    nodes, at_ms = answer.get("nodes"), answer.get("at_ms")
    if not isinstance(nodes, dict) or not isinstance(at_ms, int):
        raise CommandFailed(Exit.UNAVAILABLE, "unknown", "the node does not report the results of all nodes' checks")
    facts, known = sync_facts(
        nodes, limits, at_ms=at_ms, queue=queue, gone=answer.get("gone"), skew_ms=answer.get("skew_ms") or 0
    )
    if not known:
        words = "no node that answers has a [[fullsync]]: nothing is compared"
        facts.append(Fact(ProbeState.UNKNOWN, words, Code.FULLSYNC_LACKING, "cluster"))
    else:
        _known_queue(queue, known)
    _finish(query, "sync", facts, "", limits, quiet=quiet)


@check_group.command("gaps", short_help="Changes given up that no full-sync has proven yet.")
@_limits(GAPS, Duration(), "age of the oldest change that was given up")
@QUEUE
@admin_query
def gaps(warning: int, critical: int, queue: str | None, quiet: bool, query: AdminCommand) -> None:
    """Gaps: changes that queues gave up and no full-sync has proven yet, as in `isthmus gaps`."""
    limits = _checked(warning, critical)
    answer = query.get("/admin/gaps" + (f"?queue={quote(queue, safe='')}" if queue else ""))
    fine = "nothing was given up that is not proven yet"
    _finish(query, "gaps", gap_facts(answer, limits), fine, limits, quiet=quiet)


@check_group.command("clocks", short_help="Clocks of nodes and of linked clusters that are wrong.")
@_limits(CLOCKS, Duration(), "how far two clocks differ")
@admin_query
def clocks(warning: int, critical: int, quiet: bool, query: AdminCommand) -> None:
    """Differences between the clocks of the cluster's nodes and of linked clusters. They are measured with each
    heartbeat and each answer, exact to half of the round trip."""
    limits = _checked(warning, critical)
    answer = query.get("/admin/nodes/health")
    nodes = object_in(answer, "nodes")
    facts = [*clock_facts(nodes, limits), *clocks_unknown(nodes, object_in(answer, "unknown"))]
    _finish(query, "clocks", facts, clocks_fine(nodes), limits, quiet=quiet)


@check_group.command("sink", short_help="Changes that this cluster does not accept; failing links.")
@_limits(LETTERS, Count(0), "dead letters of all nodes")
@admin_query
def sink(warning: int, critical: int, quiet: bool, query: AdminCommand) -> None:
    """Changes that this cluster does not accept: dead letters, bucket types that others send and that are missing here,
    links that fail."""
    if critical < warning:
        raise click.UsageError(f"--critical {critical} is below --warning {warning}: nothing would be a warning")
    limits = ProbeThresholds(warning, critical)
    rows = objects_in(query.get("/admin/sink/nodes"), "nodes")
    nodes = {str(row.get("node")): row.get("sink") for row in rows}
    fine = "no dead letters, no bucket type is lacking, no link fails"
    _finish(query, "sink", sink_facts(nodes, limits), fine, limits, quiet=quiet)


PROBES: Final = tuple(check_group.commands)


def _checked(warning: int, critical: int) -> ProbeThresholds:
    if critical < warning:
        low, high = format_duration(critical), format_duration(warning)
        raise click.UsageError(f"--critical {low} is below --warning {high}: nothing would be a warning")
    return ProbeThresholds(warning, critical)


def _known_queue(queue: str | None, known: Sequence[str]) -> None:
    if queue is not None and queue not in known:
        raise CommandFailed(Exit.REFUSED, "unknown-queue", no_such("queue", queue, known))


def _finish(
    query: AdminCommand, probe: str, facts: Sequence[Fact], fine: str, limits: ProbeThresholds, *, quiet: bool
) -> None:
    """End a probe of the node that answers, whose view of its cluster may be stale."""
    stale = staleness_facts(query.get("/admin/cluster"))
    _end(probe, [*stale, *facts], fine, query.output, limits, quiet=quiet)


def _end(
    probe: str, facts: Sequence[Fact], fine: str, output: str, limits: ProbeThresholds | None, *, quiet: bool
) -> None:
    """Print the line and end with its code. Without facts the state is OK and `fine` its sentence."""
    found = list(facts) if facts or not fine else [Fact(ProbeState.OK, fine, Code.CLUSTER, "cluster")]
    state = worst(found)
    ordered = by_severity(found)
    if output == "json":
        shown = [{"state": fact.state.name.lower(), "sentence": fact.sentence} for fact in ordered]
        unit = "count" if probe in ("isr", "sink") else "ms"
        bounds = None if limits is None else {f"{name}_{unit}": value for name, value in limits._asdict().items()}
        echo_json({"check": probe, "state": state.name.lower(), "code": int(state), "limits": bounds, "facts": shown})
    elif state is not ProbeState.OK or not quiet:
        words = [fact.sentence for fact in ordered[:FACTS_SHOWN]]
        more = [f"and {len(ordered) - FACTS_SHOWN} more"] if len(ordered) > FACTS_SHOWN else []
        line = printable("; ".join([*words, *more])).replace("|", "/")  # what follows a bar is taken for numbers
        click.echo(f"{probe.upper()} {state.name}: {line}")
    raise click.exceptions.Exit(int(state))
