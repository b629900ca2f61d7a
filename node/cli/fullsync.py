"""`isthmus fullsync`: which clusters this one is compared with, what was found, and running a check now.

Each node plans its own checks: commands concern the node that answers, except `suspend`, `resume`, `set`, `peer` and
`trees`. docs/fullsync.md explains the terms.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import click

from isthmus.config.text import clause
from isthmus.node.cli.admin_command import AdminCommand, admin_act, admin_query
from isthmus.node.cli.described_table import table_of
from isthmus.node.cli.exit_codes import CommandFailed, Exit
from isthmus.node.cli.output import (
    Row,
    TableSpec,
    attribution,
    column,
    echo_json,
    milliseconds,
    moment,
    moment_of,
    object_in,
    objects_in,
    printable,
)
from isthmus.node.cli.parameters import (
    ONE_NODE,
    Count,
    PartitionName,
    PartitionParameter,
    of_node,
    partition_number,
    time_of,
    with_options,
)
from isthmus.node.nouns.fullsync import (
    CHECK_KINDS,
    CheckResultRow,
    FullSyncPeerRow,
    TreeMismatchRow,
    TreeRow,
)
from isthmus.repl.machine import machine
from isthmus.repl.model.errors import BadInput


def _not_empty(_context: click.Context, _parameter: click.Parameter, value: str | None) -> str | None:
    """Refuse an empty name, which is an unset variable of a script."""
    if value == "":
        raise click.BadParameter("it is empty")
    return value


PEER = click.option("--peer", callback=_not_empty, help="Only this [[fullsync]]; without it all of the node.")
PEER_OF_ALL = click.option("--peer", callback=_not_empty, help="Only this [[fullsync]]; without it all.")

POLL_S: Final = 0.25
"""Between two looks at a check that `run --wait` waits for."""

PROGRESS_S: Final = 2.0
"""Between two lines of its progress."""

VERDICTS: Final = {
    "in-sync": Exit.OK,
    "up-to-date": Exit.OK,
    "repaired": Exit.DIFFERS,
    "differing": Exit.DIFFERS,
    "error": Exit.USAGE,
    "timed-out": Exit.UNAVAILABLE,
    "incomplete": Exit.UNAVAILABLE,
}
"""Verdict -> exit code of `run --wait`."""

RANK: Final = (Exit.OK, Exit.DIFFERS, Exit.UNAVAILABLE, Exit.USAGE)
"""Exit codes from best to worst: the worst of several results counts."""


@click.group("fullsync")
def fullsync_group() -> None:
    """Compare with other clusters, and repair what differs."""


# --- status ---


def _next_check(row: Row) -> str:
    at_ms = row.get("next_ms")
    return "-" if at_ms is None or row.get("state") == "suspended" else moment(at_ms)


def _equal(row: Row) -> str:
    """When both clusters were last found equal; a node of an earlier version proves nothing else."""
    equal_ms = row["equal_ms"].get(row["bucket_type"]) if isinstance(row.get("equal_ms"), dict) else row["proven_at_ms"]
    return "never" if equal_ms is None else moment(equal_ms)


def _queue(peer: Row) -> str:
    """The queue of repairs, with what is wrong with it."""
    if peer.get("queue_delisted"):
        return f"{peer.get('queue')} (delisted)"
    other = peer.get("queue_of_other")
    return f"{peer.get('queue')} (of {other})" if other else str(peer.get("queue"))


PEERS: Final = table_of(
    FullSyncPeerRow,
    next_ms=_next_check,
    bucket_types=lambda row: row.get("bucket_type"),
    proven_ms=lambda row: "never" if row["proven_at_ms"] is None else moment(row["proven_at_ms"]),
    equal_ms=_equal,
    queue=_queue,
)
"""One row for each peer and bucket type."""


def _differences(result: Row) -> str:
    return ", ".join(f"{count} {kind}" for kind, count in result.get("differences", {}).items()) or "-"


RESULTS: Final = TableSpec(
    "peer",
    *table_of(
        CheckResultRow, seconds=lambda result: milliseconds(1000 * result.get("seconds", 0)), differences=_differences
    ).columns,
)


NODE_RESULTS: Final = TableSpec(column("node"), *RESULTS.columns)


@fullsync_group.command("status", short_help="Every comparison: last result, next check, proof.")
@ONE_NODE
@click.option(
    "--results", type=Count(0, 200), default=5, show_default=True,
    help="Newest results of each; of another node than the one that answers the newest alone.",
)  # fmt: skip
@admin_query
def status(node: str | None, results: int, query: AdminCommand) -> None:
    """Every cluster that the nodes compare with: the next check of each node, when it was last proven to have
    everything of this one and to be equal, and the newest results. With --node the plan and the last results of one
    node."""
    if node is None:
        _echo_cluster(query, results)
        return
    answer = query.get(f"/admin/fullsync?results={results}")
    if answer.get("node") != node:
        found = object_in(query.get("/admin/fullsync/nodes"), "nodes")
        of_node([{"node": name} for name in found], node)
        answer = object_in(found, node)
        if not answer:
            raise CommandFailed(Exit.UNAVAILABLE, "unknown", f"node {node} does not answer: its checks are not known")
    if query.echo_json(answer):
        return
    click.echo(printable(f"{answer.get('node')}: {answer.get('state')}, {answer.get('reason')}"))
    running = answer.get("running")
    if isinstance(running, dict):
        click.echo(_progress(running))
    peers = objects_in(answer, "peers")
    PEERS.echo(
        {**peer, "bucket_type": bucket_type, "proven_at_ms": proven_ms}
        for peer in peers
        for bucket_type, proven_ms in peer.get("proven_ms", {}).items()
    )
    for peer in peers:
        for sentence in _peer_sentences(peer):
            click.echo(printable(sentence))
    for one in objects_in(answer, "removed"):
        click.echo(printable(f"{one.get('name')}: removed {attribution(one)}"))
    for one in objects_in(answer, "left_out"):
        click.echo(printable(f"warning: {one.get('name')}: does not count on this node: {one.get('reason')}"))
    for peer_name, why in object_in(answer, "failed").items():
        click.echo(printable(f"warning: {peer_name}: cannot be shown: {why}"))
    shown = [{**result, "peer": peer.get("name")} for peer in peers for result in peer.get("results", ())]
    if shown:
        click.echo("")
        RESULTS.echo(shown)
        for peer in peers:
            _echo_named(peer.get("name"), list(peer.get("named", ())))


NODE_PEERS: Final = TableSpec(column("node"), *PEERS.columns)


def _echo_cluster(query: AdminCommand, results: int) -> None:
    """Print what all nodes compare, and the newest results of all."""
    answer = query.get("/admin/fullsync/nodes")
    if query.echo_json(answer):
        return
    nodes = object_in(answer, "nodes")
    known = {node: one for node, one in nodes.items() if isinstance(one, dict)}
    peers = [(node, peer) for node, one in known.items() for peer in objects_in(one, "peers")]
    NODE_PEERS.echo(
        {**peer, "node": node, "bucket_type": bucket_type, "proven_at_ms": proven_ms}
        for node, peer in peers
        for bucket_type, proven_ms in object_in(peer, "proven_ms").items()
    )
    for node in sorted(nodes.keys() - known.keys()):
        click.echo(printable(f"node {node} does not answer: its checks are not known"), err=True)
    for node, one in known.items():
        if isinstance(one.get("running"), dict):
            click.echo(f"{node}: {_progress(one['running'])}")
    sentences = [sentence for _, peer in peers for sentence in _peer_sentences({**peer, "warning": None})]
    sentences += [
        f"warning: {one.get('name')}: does not count on node {node}: {one.get('reason')}"
        for node, of in known.items()
        for one in objects_in(of, "left_out")
    ]
    sentences += [
        f"warning: {name}: cannot be shown by node {node}: {why}"
        for node, of in known.items()
        for name, why in object_in(of, "failed").items()
    ]
    for sentence in dict.fromkeys(sentences):
        click.echo(printable(sentence))
    rows = [
        {**result, "peer": peer.get("name"), "node": node} for node, peer in peers for result in peer.get("results", ())
    ]
    newest = sorted(rows, key=lambda row: -int(row.get("began_ms") or 0))[
        : results * len({row["peer"] for row in rows})
    ]
    if newest:
        click.echo("")
        NODE_RESULTS.echo(newest)


def _peer_sentences(peer: Row) -> list[str]:
    """The sentences of `status` about a peer, below the table."""
    name = peer.get("name")
    silent = "".join(f"; {node} does not answer" for node in peer.get("unknown", ()))
    shared_by = peer.get("shared_by")
    sentences = [] if shared_by is None else [f"{name}: compared by {', '.join(shared_by)}{silent}"]
    if peer.get("warning"):
        sentences.append(f"warning: {name}: {peer['warning']}")
    sentences += [f"{name}: {_setting(one)}" for one in peer.get("set", ())]
    if peer.get("auto_left_out"):
        sentences.append(f"{name}: {_left_out(peer['auto_left_out'])}")
    learned = peer.get("range")
    if isinstance(learned, dict):
        within = "" if learned["bucket"] is None else f" in bucket {learned['bucket']}"
        times = f"{moment(learned['since_ms'])} to {moment(learned['before_ms'])}"
        sentences.append(f"{name}: the next check of kind range looks at changes of {times}{within}")
    if peer.get("gaps_open"):
        wait_s, queues = peer.get("gaps_wait_s"), [str(queue) for queue in peer.get("gaps_queues") or ()]
        owners = "" if not queues else f" of queue{'s' if len(queues) > 1 else ''} {', '.join(queues)}"
        which = f" {queues[0]}" if len(queues) == 1 else ""
        soon = "" if wait_s is None else f"; checked again in {milliseconds(1000 * wait_s)} or at the next look"
        open_gaps = f"gaps{owners} that are not proven yet: {peer['gaps_open']} (`isthmus gaps{which}`)"
        sentences.append(f"{name}: {open_gaps}{soon}")
    if peer.get("gaps_uncompared"):
        types = ", ".join(map(str, peer.get("gaps_uncompared_types") or ()))
        sentences.append(
            f"{name}: {peer['gaps_uncompared']} of these gaps may miss changes of bucket types that {name} does not "
            f"compare, and stay open: {types}. Add them to bucket_types of this [[fullsync]]; or compare them "
            "otherwise, then run isthmus gaps QUEUE --close ID"
        )
    return sentences


def _setting(one: Row) -> str:
    """An operator's settings of a peer, and who set them, when and why."""
    values = ", ".join(f"{key} = {value}" for key, value in object_in(one, "values").items())
    return f"{values or 'added'} set {attribution(one)}"


def _echo_named(name: Any, named: list[dict[str, Any]]) -> None:
    """Print the first keys that differed in the newest check; `isthmus explain` shows more of each."""
    for one in named:
        key = f"{one.get('bucket_type')}/{one.get('bucket')} {one.get('key')}"
        click.echo(printable(f"{name}: {one.get('difference')}: {key}"))


def _progress(running: Row) -> str:
    left = running.get("estimate_s")
    estimate = "" if left is None else f", about {milliseconds(1000 * left)} left"
    return printable(
        f"{running.get('peer')}: {running.get('kind')} check of {running.get('bucket_type')}, {running.get('state')}; "
        f"{running.get('branches_done')} of {running.get('branches_differing')} differing branches done, "
        f"{running.get('differences')} differences, {running.get('queued')} queued{estimate}"
    )


def _left_out(count: int) -> str:
    return f"the next {clause(count, 'check', 'of kind auto is', 'of kind auto are')} left out"


# --- run ---


class FinishedCheck(NamedTuple):
    """A peer's part of a check that was waited for: its results, and the first keys that differed."""

    peer: str
    results: list[dict[str, Any]]
    named: list[dict[str, Any]]
    removed: bool
    """An operator removed the peer meanwhile, and its results with it."""


@fullsync_group.command("run", short_help="Begin a check now: everything or a range.")
@click.argument("kind", type=click.Choice(CHECK_KINDS), default="all")
@PEER
@click.option(
    "--wait",
    is_flag=True,
    help="Wait for the end: exit code 0 nothing is missing there, 1 differs, 2 error, 3 incomplete.",
)
@admin_act()
def run(kind: str, peer: str | None, wait: bool, act: AdminCommand) -> None:
    """Begin a check now: of everything, the last day or hour, a learned range, or what `auto` chooses. Several peers
    are checked one after the other.

    With --wait the verdict is the exit code: 0 in sync or up to date (all of ours is there, and keys of its own), 1
    differing, 2 an error, 3 when something was not looked at.
    """
    begun = act.post("/admin/fullsync/run", peer=peer, kind=kind)
    names = [str(name) for name in begun.get("peers", ())] or [str(begun.get("peer"))]
    if not wait:
        follow = ", one after the other" * (len(names) > 1)
        sentence = f"a check of kind {kind} has begun{follow}; `isthmus fullsync status` shows it"
        act.echo(begun, f"{', '.join(names)}: {sentence}")
        return
    found = _wait_for(act, names, begun)
    results = [{"peer": one.peer, **result} for one in found for result in one.results]
    if act.json:
        rows = [one._asdict() for one in found]
        named = [key for one in found for key in one.named]
        echo_json({"peer": peer, "kind": kind, "results": results, "named": named, "peers": rows})
    else:
        RESULTS.echo(results)
        for one in found:
            _echo_named(one.peer, one.named)
    _refuse_without_result([one for one in found if not one.results], kind)
    codes = [VERDICTS.get(str(result.get("verdict")), Exit.USAGE) for result in results]
    worst = max(codes, default=Exit.UNAVAILABLE, key=RANK.index)
    if worst is not Exit.OK:
        raise click.exceptions.Exit(int(worst))


def _refuse_without_result(without: list[FinishedCheck], kind: str) -> None:
    """Raises CommandFailed if there is a peer whose check has no result, with the reason."""
    if not without:
        return
    auto = "auto leaves it out, since what differs cannot be repaired from here; `run all` looks at everything"
    why = auto if kind == "auto" else "the node's log has the reason"
    removed, others = (", ".join(one.peer for one in without if one.removed is gone) for gone in (True, False))
    sentences = [f"{others}: the check has no result: {why}"] * bool(others)
    sentences += [f"{removed}: removed by an operator during the check"] * bool(removed)
    raise CommandFailed(Exit.UNAVAILABLE, "no-result" if others else "peer-removed", "; ".join(sentences))


def _wait_for(act: AdminCommand, names: list[str], begun: Row) -> list[FinishedCheck]:
    """Wait until the check that has begun is over; its progress goes to standard error."""

    def belongs(one: Row) -> bool:
        """True for this check, false for a due one that began when it ended."""
        return one.get("began_ms", 0) >= begun.get("at_ms", 0) and one.get("by") == begun.get("by")

    printed_s = 0.0
    while True:
        answer = act.admin.get("/admin/fullsync?results=200")
        running = answer.get("running")
        if not isinstance(running, dict) or running.get("peer") not in names or not belongs(running):
            break
        if not act.json and machine().monotonic_s() - printed_s >= PROGRESS_S:
            click.echo(_progress(running), err=True)
            printed_s = machine().monotonic_s()
        machine().sleep(POLL_S)
    peers = {peer.get("name"): peer for peer in objects_in(answer, "peers")}
    return [
        FinishedCheck(
            name,
            [one for one in peers.get(name, {}).get("results", ()) if belongs(one)],
            list(peers.get(name, {}).get("named", ())),
            name not in peers,
        )
        for name in names
    ]


# --- schedule ---

DUE: Final = TableSpec("peer", ("when", moment_of("at_ms")), "kind", "state")


@fullsync_group.command("schedule", short_help="The checks of the rest of the day.")
@admin_query
def schedule(query: AdminCommand) -> None:
    """The rest of the day: when each check is due, and which were skipped."""
    answer = query.get("/admin/fullsync/schedule")
    if query.echo_json(answer):
        return
    rows: list[Row] = []
    for peer in objects_in(answer, "peers"):
        mine = [{**one, "state": f"left out: {one['reason']}"} for one in peer["skipped"]]
        retry = peer.get("retry")
        if isinstance(retry, dict):
            mine.append({**retry, "state": f"tried again, for the {retry['tries']}. time"})
        state = "suspended" if peer.get("suspended") else "due"
        mine += [{**one, "state": state} for one in peer["checks"]]
        rows += [{**one, "peer": peer.get("name")} for one in mine]
    DUE.echo(rows)


# --- changes on all nodes ---


@fullsync_group.command("suspend", short_help="Start no scheduled check until resumed.")
@PEER_OF_ALL
@admin_act(nodes=True, reason=True)
def suspend(peer: str | None, act: AdminCommand) -> None:
    """Start no scheduled check until resumed, over restarts too, on every node, also on those that are down. A running
    check goes on."""
    _echo_by_node(act, act.post("/admin/fullsync/suspend", peer=peer), "suspended")


@fullsync_group.command("resume")
@PEER_OF_ALL
@admin_act(nodes=True)
def resume(peer: str | None, act: AdminCommand) -> None:
    """Start scheduled checks again, on every node."""
    _echo_by_node(act, act.post("/admin/fullsync/resume", peer=peer), "due again")


def _echo_by_node(act: AdminCommand, answer: Row, done: str) -> None:
    """Print what each node did, and which nodes are down and follow later.

    Code 3 when a live node did not answer: it follows, too, as soon as it reads what was written.
    """
    acted = object_in(answer, "acted")
    act.echo_json(answer)
    for node, names in acted.items():
        if names:
            act.note(f"{node}: checks of {', '.join(names)} are {done}")
    meant = {name for names in acted.values() for name in names or ()}
    for peer in objects_in(answer, "peers"):
        if peer.get("queue_of_other") and peer.get("name") in meant:
            act.note(f"warning: {peer['name']}: {peer.get('reason')}")
    later = [str(node) for node in answer.get("later", ())]
    if later:
        act.note(f"{', '.join(later)}: down; follows when it is back")
    silent = [node for node, names in acted.items() if names is None]
    if silent:
        sentence = f"does not answer, and may be as it was for some seconds: {', '.join(silent)}"
        raise CommandFailed(Exit.UNAVAILABLE, "unknown", sentence)


WANTED: Final = (*CHECK_KINDS, "none")


def _wants(_context: click.Context, _parameter: click.Parameter, value: str | None) -> dict[str, int]:
    """KIND=COUNT,... as keys of [[fullsync]]."""
    found: dict[str, int] = {}
    for part in value.split(",") if value is not None else ():
        kind, _, count = part.strip().partition("=")
        if (
            kind not in WANTED
            or kind in found
            or not (count.isascii() and count.isdigit() and len(count) < WANT_DIGITS)
        ):
            kinds = ", ".join(WANTED)
            raise click.BadParameter(f"{part!r}: write KIND=COUNT,... such as all=2,auto=24, each of {kinds} once")
        found[kind] = int(count)
    return found


WANT_DIGITS: Final = 6
"""One more than the digits that a count may have; the node checks the count itself."""

value_options: Final = with_options(
    click.option("--wants", callback=_wants, metavar="KIND=COUNT,...", help="Checks a day; kinds not named stay."),
    click.option("--queue", metavar="NAME", help="The queue of this cluster that repairs go into."),
    click.option("--bucket-types", metavar="NAME,...", help='Bucket types that are compared; "*": all.'),
    click.option("--all-window", metavar="HOURS", help='When auto may check everything: "22-6", always or never.'),
    click.option("--cluster-slice", type=Count(0, 4), help="Quarter of each slot; 0: the whole slot."),
    click.option("--segment-limit", type=Count(0), help="Differing segments a check compares; 0: no limit."),
    click.option("--auto-suppress", type=Count(0), help="Auto checks left out after one that repaired nothing."),
    click.option("--repair-rate-limit", type=Count(0), help="Repairs a second; 0: no limit."),
    click.option("--bidirectional/--one-way", default=None, help="The other cluster repairs, too."),
    click.option("--peer-queue", metavar="NAME", help="The other cluster's queue for that."),
)
"""Add the settings of a peer that may change; each parameter's name is a key of [[fullsync]]."""


def _values_of(wants: dict[str, int], given: dict[str, Any]) -> dict[str, Any]:
    return {**wants, **{key: value for key, value in given.items() if value is not None}}


@fullsync_group.command("set", short_help="Change what is compared, when, and repaired how.")
@click.argument("peer")
@value_options
@click.option("--default", is_flag=True, help="Apply the config files again.")
@admin_act(nodes=True, reason=True)
def set_(peer: str, wants: dict[str, int], default: bool, act: AdminCommand, **given: Any) -> None:
    """Change what PEER compares, when, and how it repairs, on all nodes and over restarts; what is not named stays. The
    day's plan is made again from now on. With --default the config files apply again."""
    values = _values_of(wants, given)
    if default == bool(values):
        raise BadInput("give a setting, such as --wants all=24,auto=0; or --default alone")
    answer = act.post("/admin/fullsync/set", peer=peer, values=values, default=default)
    _echo_by_node(act, answer, "as the files have them" if default else "changed")


@fullsync_group.group("peer")
def peer_group() -> None:
    """Add and remove clusters to compare with while nodes run."""


@peer_group.command("add", short_help="Compare with another cluster.")
@click.argument("name")
@click.option("--urls", required=True, metavar="URL,...", help="HTTP listeners of some of its nodes.")
@click.option("--peer-cluster", "cluster", metavar="NAME", help="The cluster that must answer there.")
@value_options
@admin_act(nodes=True, reason=True)
def add(name: str, urls: str, wants: dict[str, int], act: AdminCommand, **given: Any) -> None:
    """Compare with the cluster at URL,... as NAME, on all nodes and over restarts. It needs --queue. Its token is the
    one that a node's file names for the same URLs, if any."""
    values = {"urls": urls, **_values_of(wants, given)}
    _echo_by_node(act, act.post("/admin/fullsync/peers/add", peer=name, values=values), "planned")


@peer_group.command("remove", short_help="Stop comparing with another cluster.")
@click.argument("name")
@admin_act(nodes=True, reason=True)
def remove(name: str, act: AdminCommand) -> None:
    """Stop comparing with NAME, on all nodes and over restarts, also if a file has it (`set NAME --default` restores
    that). Its history is deleted; a check that runs goes on."""
    _echo_by_node(act, act.post("/admin/fullsync/peers/remove", peer=name), "no more due")


# --- changes on the node that answers ---


@fullsync_group.command("set-range", short_help="Set the range of the next check of kind range.")
@click.argument("since", metavar="SINCE")
@click.argument("before", metavar="BEFORE")
@click.option("--bucket", help="Only keys of this bucket.")
@PEER
@admin_act()
def set_range(since: str, before: str, bucket: str | None, peer: str | None, act: AdminCommand) -> None:
    """Set the range of the next check of kind range: changes of [SINCE, BEFORE), times such as 2026-02-03T04:05, which
    is UTC unless it names a zone."""
    since_ms, before_ms = time_of(since, "SINCE"), time_of(before, "BEFORE")
    if since_ms >= before_ms:
        raise BadInput(f"{since} does not lie before {before}")
    answer = act.post("/admin/fullsync/set-range", peer=peer, since_ms=since_ms, before_ms=before_ms, bucket=bucket)
    act.echo(answer, f"{_names_of(answer, peer)}: the range is set; `run range` looks at it")


@fullsync_group.command("clear-range")
@PEER
@admin_act()
def clear_range(peer: str | None, act: AdminCommand) -> None:
    """Clear a range that was set or learned."""
    answer = act.post("/admin/fullsync/clear-range", peer=peer)
    act.echo(answer, f"{_names_of(answer, peer)}: no range is set")


@fullsync_group.command("suppress-auto", short_help="Leave out the next checks of kind auto.")
@click.argument("count", type=Count(0))
@PEER
@admin_act()
def suppress_auto(count: int, peer: str | None, act: AdminCommand) -> None:
    """Skip the next COUNT checks of kind auto of the node that answers, regardless of earlier results; 0: none."""
    answer = act.post("/admin/fullsync/suppress-auto", peer=peer, count=count)
    act.echo(answer, f"{_names_of(answer, peer)}: {_left_out(count)}")


def _names_of(answer: Row, peer: str | None) -> str:
    """The peers that were changed on the answering node."""
    return peer or ", ".join(str(one.get("name")) for one in objects_in(answer, "peers")) or "no [[fullsync]] here"


# --- trees ---

TREES: Final = TableSpec("node", *table_of(TreeRow).columns)
MISMATCHES: Final = TableSpec("node", *table_of(TreeMismatchRow).columns)


@fullsync_group.command("trees", short_help="The trees of every replica, and wrong segments.")
@click.option("--rebuild", is_flag=True, help="Build them again from the key store, beside the existing ones.")
@click.option("--partition", "one", type=PartitionParameter(), help="Rebuild only this partition's.")
@click.option("--own", is_flag=True, help="Only those of the node that answers.")
@admin_act()
def trees(rebuild: bool, one: PartitionName | None, own: bool, act: AdminCommand) -> None:
    """The trees of every node's replicas: state, offset, size; and every segment that was found wrong."""
    if rebuild:
        partition = None if one is None else partition_number(act.admin, one)
        answer = act.post("/admin/trees/rebuild", partition=partition)
        partitions = [number for number in answer.get("rebuilding", ()) if isinstance(number, int)]
        act.echo(answer, f"{len(partitions)} trees of this node are rebuilt")
        return
    answer = act.admin.get("/admin/trees" if own else "/admin/trees/nodes")
    if act.json:
        echo_json(answer)
        return
    nodes: dict[str, Any] = {str(answer.get("node")): answer} if own else dict(answer.get("nodes", {}))
    known = {node: found for node, found in nodes.items() if found is not None}
    TREES.echo({**tree, "node": node} for node, found in known.items() for tree in objects_in(found, "trees"))
    wrong = [{**each, "node": node} for node, found in known.items() for each in objects_in(found, "mismatches")]
    if wrong:
        click.echo(f"\n{clause(len(wrong), 'segment', 'was', 'were')} found wrong:")
        MISMATCHES.echo(wrong)
    for node in sorted(nodes.keys() - known.keys()):
        click.echo(f"node {node} does not answer: its trees are not known", err=True)
