"""`isthmus check lag|isr|sync|gaps|sink`: probes for monitoring systems, which expect one line and an exit code.

The codes are those of monitoring plugins (Nagios): 0 OK, 1 WARNING, 2 CRITICAL, 3 UNKNOWN; so a usage error, a node
that does not answer and a refusal are UNKNOWN, never CRITICAL or OK. docs/commands.md explains the lines.

The functions that judge are pure: they take the answers that `isthmus lag`, `cluster status`, `fullsync status` and
`gaps` show, and return facts. A value that an answer lacks is unknown, never OK.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import IntEnum
from typing import Any, Final, NamedTuple, TypeVar
from urllib.parse import quote

import click

from isthmus.config.text import no_such, quantity
from isthmus.config.units import format_duration
from isthmus.node.cli.admin_command import AdminCommand, admin_query
from isthmus.node.cli.exit_codes import CommandFailed, Exit, failure_of
from isthmus.node.cli.output import CliContext, cell, echo_json, milliseconds, named, objects_in, printable
from isthmus.node.cli.parameters import Count, Duration


class ProbeState(IntEnum):
    """State of a probe; the value is its exit code, as monitoring plugins have them."""

    OK = 0
    WARNING = 1
    CRITICAL = 2
    UNKNOWN = 3


RANK: Final = (ProbeState.OK, ProbeState.UNKNOWN, ProbeState.WARNING, ProbeState.CRITICAL)
"""From best to worst: a known problem outranks an unknown state."""


class Fact(NamedTuple):
    """One finding of a probe, as a sentence."""

    state: ProbeState
    sentence: str


class ProbeThresholds(NamedTuple):
    """A value above `warning` is a warning, above `critical` critical. Milliseconds or counts."""

    warning: int
    critical: int

    def state(self, value: float) -> ProbeState:
        """The state of a value."""
        return (
            ProbeState.CRITICAL
            if value > self.critical
            else ProbeState.WARNING
            if value > self.warning
            else ProbeState.OK
        )


def worst(facts: Iterable[Fact]) -> ProbeState:
    """The worst state; UNKNOWN without facts."""
    return max((fact.state for fact in facts), key=RANK.index, default=ProbeState.UNKNOWN)


def staleness_facts(cluster: Mapping[str, Any]) -> list[Fact]:
    """Why the node's view of its cluster may be stale; nothing when it is current."""
    node, metastore = cell(cluster.get("node")), cluster.get("metastore")
    if metastore != "connected":
        why = f"node {node}: its session with the metastore is {cell(metastore)}: what it shows may be old"
    elif cluster.get("read_at_ms") is None:
        why = f"node {node} has not read the metastore yet"
    elif cluster.get("registered") is False:
        why = f"node {node} is not registered and takes no part: {cell(cluster.get('reason'))}"
    else:
        return []
    return [Fact(ProbeState.UNKNOWN, why)]


def lag_facts(rows: Sequence[Mapping[str, Any]], limits: ProbeThresholds) -> list[Fact]:
    """A fact for each queue and bucket type: rows of `/admin/lag`."""
    facts = []
    for row in rows:
        where = f"queue {cell(row.get('queue'))}, bucket type {cell(row.get('bucket_type'))}"
        because = f" ({row['reason']})" if row.get("reason") else ""
        seconds = _number(row.get("seconds"))
        if seconds is None:
            facts.append(Fact(ProbeState.UNKNOWN, f"{where}: how far it is behind is not known{because}"))
        else:
            waiting = f", keys that wait: {cell(row.get('objects'))}"
            sentence = f"{where}: {milliseconds(1000 * seconds)} behind{waiting}{because}"
            facts.append(Fact(limits.state(1000 * seconds), sentence))
    return facts


def isr_facts(cluster: Mapping[str, Any], limits: ProbeThresholds) -> list[Fact]:
    """Facts about replicas in sync and partitions that accept writes: the answer of `/admin/cluster`.

    `limits`: the first for partitions that lack replicas in sync, the second for partitions without leader or below
    min-ISR.
    """
    counts = cluster.get("partitions")
    found = counts if isinstance(counts, dict) else {}
    total, online = _number(found.get("total")), _number(found.get("online"))
    under, below = cluster.get("under_replicated"), cluster.get("below_min_isr")
    if total is None or online is None or not isinstance(under, list) or not isinstance(below, list):
        return [
            Fact(ProbeState.UNKNOWN, f"node {cell(cluster.get('node'))} does not report which partitions are in sync")
        ]
    facts = []
    waiting = cluster.get("waiting")
    if waiting:
        facts.append(Fact(ProbeState.CRITICAL, f"bucket type default: {waiting}"))
    elif not total:
        facts.append(Fact(ProbeState.UNKNOWN, "no partition is known"))
    if online < total:
        words = {key.replace("_", "-"): n for key, n in found.items() if key not in ("total", "online") and n}
        states = ", ".join(f"{n} {word}" for word, n in words.items())
        stopped = ProbeState.CRITICAL if total - online > limits.critical else ProbeState.WARNING
        facts.append(Fact(stopped, f"{total - online} of {total} partitions are not online: {states}"))
    if below:
        stopped = ProbeState.CRITICAL if len(below) > limits.critical else ProbeState.WARNING
        facts.append(Fact(stopped, f"too few replicas are in sync to take writes (min-ISR) in {_some(below)}"))
    lacking = ProbeState.WARNING if not under or len(under) > limits.warning else ProbeState.OK
    if under:
        facts.append(Fact(lacking, f"{len(under)} of {total} partitions lack replicas in sync: {named(under)}"))
    facts += _absent(cluster, lacking)
    if worst([Fact(ProbeState.OK, ""), *facts]) is ProbeState.OK and not under:
        facts += [Fact(ProbeState.WARNING, str(problem)) for problem in cluster.get("problems") or ()]
    return facts


def isr_fine(cluster: Mapping[str, Any]) -> str:
    """The sentence about a healthy cluster."""
    partitions, replicas = cluster.get("partitions") or {}, cluster.get("replicas") or {}
    live = sum(1 for row in cluster.get("nodes") or () if isinstance(row, dict) and row.get("state") == "live")
    nodes = "node" if live == 1 else "nodes"
    return (
        f"{cell(partitions.get('online'))} of {cell(partitions.get('total'))} partitions online, "
        f"{cell(replicas.get('in_sync'))} of {cell(replicas.get('total'))} replicas in sync, {live} {nodes} live"
    )


def _absent(cluster: Mapping[str, Any], gone: ProbeState) -> list[Fact]:
    """Facts about nodes that are down, and about live nodes that did not answer."""
    facts = []
    for row in cluster.get("nodes") or ():
        emptied = row.get("drained") and not row.get("replicas")
        if row.get("state") != "live" and not emptied:
            facts.append(Fact(gone, f"node {cell(row.get('name'))} is {cell(row.get('state'))}"))
    silent = cluster.get("silent")
    if silent is None:
        return [*facts, Fact(ProbeState.UNKNOWN, "the nodes that did not answer are not reported")]
    return [*facts, *(Fact(ProbeState.UNKNOWN, f"node {cell(node)} lives and did not answer") for node in silent)]


def sync_facts(
    nodes: Mapping[str, Any],
    limits: ProbeThresholds,
    *,
    at_ms: int,
    queue: str | None = None,
    gone: Mapping[str, Any] | None = None,
) -> tuple[list[Fact], list[str]]:
    """A fact for each queue and bucket type that full-sync compares, and the names of the queues.

    `nodes`, `at_ms` and `gone` (since when nodes are down) are those of `/admin/fullsync/nodes`; checks of all nodes
    count. `queue`: only comparisons that prove this queue, whichever queue their repairs use. A bucket type that a
    queue sends and no full-sync compares is a warning.
    """
    facts = _silent(nodes, gone or {}, at_ms)
    known: dict[str, dict[str, list[tuple[str, Mapping[str, Any]]]]] = {}
    for node, entry in nodes.items():
        for peer in () if entry is None else entry.get("peers") or ():
            for bucket_type in peer.get("bucket_types") or ():
                if queue is None or queue in (peer.get("queue"), *_for_queues(peer, bucket_type)):
                    known.setdefault(str(peer.get("queue")), {}).setdefault(bucket_type, []).append((node, peer))
    facts += [
        _synced(name, bucket_type, peers, limits, at_ms)
        for name in sorted(known)
        for bucket_type, peers in sorted(known[name].items())
    ]
    answers = [entry for entry in nodes.values() if entry is not None]
    peers = [peer for entry in answers for peer in entry.get("peers") or ()]
    names = {str(peer.get("queue")) for peer in peers} | {name for peer in peers for name in peer.get("compares") or ()}
    sent = {str(row.get("queue")): row for entry in answers for row in entry.get("sent") or ()}
    silent = len(answers) < len(nodes)
    for name, row in sorted(sent.items()) if names else ():
        for bucket_type in row.get("bucket_types") or () if queue in (None, name) else ():
            if not any(name in _for_queues(peer, bucket_type) for peer in peers):
                words = f"queue {name} sends bucket type {bucket_type} to {cell(row.get('cluster'))}, and no full-sync"
                state = ProbeState.UNKNOWN if silent else ProbeState.WARNING
                facts.append(Fact(state, f"{words} {'of a node that answers ' if silent else ''}compares it"))
    return facts, sorted(names | sent.keys()) if names else []


def _for_queues(peer: Mapping[str, Any], bucket_type: str) -> list[str]:
    """Queues that a peer's comparisons of a bucket type prove complete. A node of an older version lists only the queue
    of its repairs."""
    compares = peer.get("compares")
    if not isinstance(compares, dict):
        return [str(peer.get("queue"))] if bucket_type in (peer.get("bucket_types") or ()) else []
    return [str(name) for name, types in compares.items() if bucket_type in types]


GONE_MARGIN_MS: Final = 5_000
"""How much later than a node's end a check must have begun to count as later, since clocks of machines differ."""


def _silent(nodes: Mapping[str, Any], gone: Mapping[str, Any], at_ms: int) -> list[Fact]:
    """A fact for each node that does not answer. The results of a node that is down no longer matter once others have
    proven everything after its end; `gone`: the latest time at which nodes went down."""
    newest: dict[tuple[str, str], float] = {}
    for peer in (peer for entry in nodes.values() if entry is not None for peer in entry.get("peers") or ()):
        for bucket_type in peer.get("bucket_types") or ():
            of, at = (str(peer.get("queue")), str(bucket_type)), (peer.get("proven_ms") or {}).get(bucket_type)
            newest[of] = max(newest.get(of, 0), _number(at) or 0)
    facts = []
    for node in (node for node, entry in nodes.items() if entry is None):
        down_ms = _number(gone.get(node))
        if down_ms is not None and newest and min(newest.values()) > down_ms + GONE_MARGIN_MS:
            old = milliseconds(max(0, at_ms - down_ms))
            facts.append(Fact(ProbeState.OK, f"node {node} is down for {old}, and other nodes have proven all since"))
        else:
            facts.append(Fact(ProbeState.UNKNOWN, f"node {node} does not answer: what its checks found is not known"))
    return facts


def _synced(
    queue: str, bucket_type: str, peers: Sequence[tuple[str, Mapping[str, Any]]], limits: ProbeThresholds, at_ms: int
) -> Fact:
    """The fact about one queue and bucket type, from the newest results of the nodes that compare it."""
    where = f"{cell(peers[0][1].get('name'))}, bucket type {bucket_type} (queue {queue})"
    newest, latest = _newest(peers, bucket_type, "newest"), _newest(peers, bucket_type, "newest_looked")
    if newest is not None and newest[1].get("lacking"):
        there = cell(peers[0][1].get("cluster") or peers[0][1].get("name"))
        what = f"{there} has no such bucket type: its changes are held back until it is made there"
        return Fact(ProbeState.WARNING, f"{where}: {what} (isthmus bucket-type create {bucket_type})")
    proven = [_number((peer.get("proven_ms") or {}).get(bucket_type)) for _, peer in peers]
    proven_ms = max((at for at in proven if at is not None), default=None)
    notes = [f"{node} is {cell(peer.get('state'))}: {peer.get('reason')}" for node, peer in peers if _rests(peer)]
    if newest is not None and newest != latest:
        notes.append(f"the newest check, of node {newest[0]}, could not look: {newest[1].get('reason')}")
    because = f" ({'; '.join(notes)})" if notes else ""
    age = None if proven_ms is None else f"proven in sync {milliseconds(max(0, at_ms - proven_ms))} ago"
    if latest is not None and latest[1].get("verdict") != "in-sync":
        node, result = latest
        if proven_ms is None or result["began_ms"] >= proven_ms:
            count, left = result.get("queued"), cell(result.get("left"))
            queued = quantity(count, "key") if isinstance(count, int) else f"{cell(count)} keys"
            state = ProbeState.WARNING if result.get("verdict") == "repaired" else ProbeState.CRITICAL
            why = f" ({result['reason']})" if result.get("reason") else ""
            ended = f"the newest check ended as {cell(result.get('verdict'))} at node {node}{why}"
            since = f"{ended}: {queued} queued, {left} not; {age or 'never proven in sync'}"
            state = max(state, limits.state(max(0, at_ms - (proven_ms or at_ms))), key=RANK.index)
            return Fact(state, f"{where}: {since}{because}")
    if proven_ms is None:
        return Fact(ProbeState.UNKNOWN, f"{where}: never proven in sync{because}")
    return Fact(limits.state(max(0, at_ms - proven_ms)), f"{where}: {age}{because}")


def _newest(
    peers: Sequence[tuple[str, Mapping[str, Any]]], bucket_type: str, key: str
) -> tuple[str, Mapping[str, Any]] | None:
    """(node, result) of the check that began last."""
    results = [(node, (peer.get(key) or {}).get(bucket_type)) for node, peer in peers]
    return max(((node, one) for node, one in results if one), key=lambda at: at[1]["began_ms"], default=None)


def _rests(peer: Mapping[str, Any]) -> bool:
    """True where this peer neither proves nor repairs anything until an operator acts."""
    return peer.get("state") != "scheduled" or bool(peer.get("queue_delisted") or peer.get("queue_of_other"))


def gap_facts(answer: Mapping[str, Any], limits: ProbeThresholds) -> list[Fact]:
    """A fact for each queue with open gaps: the answer of `/admin/gaps`. `limits`: milliseconds since the oldest change
    that was given up."""
    facts = [
        Fact(ProbeState.UNKNOWN, f"node {cell(node)} does not answer: its gaps are not known")
        for node in answer.get("unknown") or ()
    ]
    unknown = answer.get("unknown_partitions")
    if not isinstance(unknown, dict):
        facts.append(Fact(ProbeState.UNKNOWN, "the node does not report which partitions have unknown gaps"))
    else:
        facts += [
            Fact(ProbeState.UNKNOWN, f"queue {cell(name)}: gaps of {_some(partitions)} are not known")
            for name, partitions in sorted(unknown.items())
        ]
    rows: dict[str, list[Mapping[str, Any]]] = {}
    for row in answer.get("gaps") or ():
        rows.setdefault(cell(row.get("queue")), []).append(row)
    at_ms = _number(answer.get("at_ms"))
    for name, found in sorted(rows.items()):
        since = [at for row in found if (at := _number(row.get("from_ms")))]
        oldest = None if at_ms is None or not since else max(0, at_ms - min(since))
        old = "since when is not known" if oldest is None else f"the oldest of {milliseconds(oldest)} ago"
        dated = "" if oldest is None or len(since) == len(found) else f", {len(found) - len(since)} of unknown age"
        grows = sum(1 for row in found if row.get("upto_ms") is None)
        growing = f", {grows} still growing" if grows else ""
        state = ProbeState.WARNING if oldest is None else limits.state(oldest)
        if dated:  # as old as can be: it is no less than a warning
            state = max(state, ProbeState.WARNING, key=RANK.index)
        count = quantity(len(found), "gap")
        facts.append(Fact(state, f"queue {name}: {count} not proven yet, {old}{dated}{growing}"))
    return facts


def sink_facts(nodes: Mapping[str, Any], limits: ProbeThresholds) -> list[Fact]:
    """Facts about changes that this cluster's nodes cannot accept.

    `nodes`: the entry of each node in `/admin/sink/nodes`, None for a node that did not answer. `limits`: dead letters
    of all nodes. Missing bucket types and failing links are a warning.
    """
    facts = [
        Fact(ProbeState.UNKNOWN, f"node {node} does not answer: what its sink does is not known")
        for node, entry in nodes.items()
        if entry is None
    ]
    kept: dict[str, int] = {}
    held: dict[str, set[str]] = {}
    for node, entry in nodes.items():
        if entry is None:
            continue
        letters = _number((entry.get("dead_letters") or {}).get("kept"))
        if letters is None:
            facts.append(Fact(ProbeState.UNKNOWN, f"node {node}: its dead letters cannot be counted"))
        elif letters:
            kept[node] = int(letters)
        rows = entry.get("sinks") or ()
        failing = [row for row in rows if row.get("state") == "failing"]
        if failing:
            words = f"node {node}: {len(failing)} of {len(rows)} links fail: {failing[0].get('reason')}"
            facts.append(Fact(ProbeState.WARNING, words))
        for row in rows:
            for name in row.get("held_types") or ():
                held.setdefault(str(name), set()).add(cell(row.get("source_cluster")))
    if kept:
        where = ", ".join(f"{count} at {node}" for node, count in sorted(kept.items()))
        words = f"dead letters: {where} (isthmus sink dead-letters list)"
        facts.append(Fact(limits.state(sum(kept.values())), words))
    facts += [
        Fact(
            ProbeState.WARNING,
            f"bucket type {name} of {', '.join(sorted(sources))} is lacking here: its changes wait there "
            f"(isthmus bucket-type create {name})",
        )
        for name, sources in sorted(held.items())
    ]
    return facts


def _number(value: Any) -> int | float | None:
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def _some(numbers: Sequence[Any]) -> str:
    noun = "partition" if len(numbers) == 1 else f"{len(numbers)} partitions:"
    return f"{noun} {named(numbers)}"


FACTS_SHOWN: Final = 4
"""Facts in one line: pagers and service lists show some hundred characters. `-o json` has all."""

LAG: Final = ("30s", "5m")
"""A healthy link delivers a write in well below a second; minutes mean a link or a sink that is down. A guess."""

PROVEN: Final = ("26h", "50h")
"""One check a day and two hours of its slot, and a day more; with hourly checks less will do."""

ISR: Final = (0, 0)
"""Any partition is worth a look."""

GAPS: Final = ("0s", "2h")
"""A gap is a missing change, so it is a warning at once; full-sync closes it within two hours where it can, since its
pauses are an hour at most."""

LETTERS: Final = (0, 100)
"""A dead letter is a change that is missing until an operator acts; a hundred have a common cause. A guess."""

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
    _end(probe or "check", [Fact(ProbeState.UNKNOWN, sentence)], "", output, None, quiet=False)
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
        facts.append(Fact(ProbeState.UNKNOWN, "no queue is registered: no change is sent in real time"))
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


@check_group.command("sync", short_help="When full-sync last proved both sides equal.")
@_limits(PROVEN, Duration(), "how long ago both sides were proven equal")
@QUEUE
@admin_query
def sync(warning: int, critical: int, queue: str | None, quiet: bool, query: AdminCommand) -> None:
    """When full-sync last proved both sides equal, and the newest result of any node. Differing keys that are queued
    are a warning, those that are not are critical."""
    limits = _checked(warning, critical)
    answer = query.get("/admin/fullsync/nodes")
    nodes, at_ms = answer.get("nodes"), answer.get("at_ms")
    if not isinstance(nodes, dict) or not isinstance(at_ms, int):
        raise CommandFailed(Exit.UNAVAILABLE, "unknown", "the node does not report the results of all nodes' checks")
    facts, known = sync_facts(nodes, limits, at_ms=at_ms, queue=queue, gone=answer.get("gone"))
    if not known:
        facts.append(Fact(ProbeState.UNKNOWN, "no node that answers has a [[fullsync]]: nothing is compared"))
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


@check_group.command("sink", short_help="Changes that this cluster does not accept; failing links.")
@_limits(LETTERS, Count(0), "dead letters of all nodes")
@admin_query
def sink(warning: int, critical: int, quiet: bool, query: AdminCommand) -> None:
    """Changes that this cluster does not accept: dead letters, bucket types that it lacks and others send, links that
    fail."""
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
    found = list(facts) if facts or not fine else [Fact(ProbeState.OK, fine)]
    state = worst(found)
    ordered = sorted(found, key=lambda fact: -RANK.index(fact.state))
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
