"""`isthmus fullsync`: which clusters this one is compared with, what was found, and running a check now.

Shows and asks what a node's admin listener offers (docs/http.md); the words are told in docs/fullsync.md. Full-sync is
a node's own affair: commands speak of the node that answers, but for `suspend`, `resume` and `trees`.
"""

from __future__ import annotations

import time
from typing import Any, Final

import click

from isthmus.config.text import clause
from isthmus.node.cli.admin_client import AdminClient, admin_option
from isthmus.node.cli.cluster import listed
from isthmus.node.cli.exit_codes import CommandFailed, Exit
from isthmus.node.cli.output import cell, echo_json, echo_table, milliseconds, moment, output_option, printable
from isthmus.node.cli.parameters import node_options, time_of
from isthmus.node.cli.queue import BY, REASON


def _named(_context: click.Context, _parameter: click.Parameter, value: str | None) -> str | None:
    """An empty name is a variable that nobody has set."""
    if value == "":
        raise click.BadParameter("it is empty")
    return value


PEER = click.option("--peer", callback=_named, help="Only this [[fullsync]]; without it all of the node.")
PEER_OF_ALL = click.option("--peer", callback=_named, help="Only this [[fullsync]]; without it all.")
KINDS: Final = ("all", "day", "hour", "range", "auto")
LOOK_S: Final = 0.25
"""How often a run that is waited for is looked at."""

SAID_S: Final = 2.0
"""How often its progress is told."""

ENDS: Final = {
    "in-sync": Exit.OK,
    "repaired": Exit.DIFFERS,
    "differing": Exit.DIFFERS,
    "error": Exit.USAGE,
    "timed-out": Exit.UNAVAILABLE,
    "incomplete": Exit.UNAVAILABLE,
}
"""Verdict -> exit code of `run --wait`; of several the one that says least."""


@click.group("fullsync")
def fullsync_group() -> None:
    """Compare with other clusters, and repair what differs."""


@fullsync_group.command("status")
@click.option("--results", type=click.IntRange(0, 200), default=5, show_default=True, help="Newest results of each.")
@admin_option
@output_option
def status(results: int, admin: AdminClient, output: str) -> None:
    """Every cluster that the node compares with, when next, since when it is proven in sync, and the last results.

    Names the other nodes that compare with the same cluster.
    """
    answer = admin.get(f"/admin/fullsync?results={results}")
    if output == "json":
        echo_json(answer)
        return
    click.echo(printable(f"{answer.get('node')}: {answer.get('state')}, {answer.get('reason')}"))
    running = answer.get("running")
    if isinstance(running, dict):
        click.echo(_progress(running))
    peers = listed(answer, "peers")
    columns = ("peer", "state", "next", "kind", "bucket type", "proven in sync as of", "repairs to", "reason")
    echo_table(columns, [row for peer in peers for row in _rows(peer)])
    for peer in peers:
        silent = "".join(f"; {node} does not answer" for node in peer.get("unknown", ()))
        click.echo(printable(f"{peer.get('name')}: compared by {', '.join(peer.get('shared_by', ()))}{silent}"))
        if peer.get("warning"):
            click.echo(printable(f"warning: {peer.get('name')}: {peer['warning']}"))
        for one in peer.get("set", ()):
            click.echo(printable(f"{peer.get('name')}: {_set(one)}"))
        if peer.get("auto_left_out"):
            click.echo(f"{printable(str(peer.get('name')))}: {_left_out(peer['auto_left_out'])}")
        learned = peer.get("range")
        if isinstance(learned, dict):
            of = "" if learned["bucket"] is None else f" in bucket {learned['bucket']}"
            times = f"{moment(learned['since_ms'])} to {moment(learned['before_ms'])}"
            click.echo(printable(f"{peer.get('name')}: the next check of kind range looks at changes of {times}{of}"))
        if peer.get("gaps_open"):
            name, wait_s = peer.get("name"), peer.get("gaps_wait_s")
            queues = [str(queue) for queue in peer.get("gaps_queues") or ()]
            of = "" if not queues else f" of queue{'s' if len(queues) > 1 else ''} {', '.join(queues)}"
            which = f" {queues[0]}" if len(queues) == 1 else ""
            soon = "" if wait_s is None else f"; checked again in {milliseconds(1000 * wait_s)} or at the next look"
            click.echo(
                printable(
                    f"{name}: gaps{of} that are not proven yet: {peer['gaps_open']} (`isthmus gaps{which}`){soon}"
                )
            )
    for one in listed(answer, "removed") if "removed" in answer else ():
        click.echo(printable(f"{one.get('name')}: removed {_act_told(one)}"))
    for one in listed(answer, "left_out") if "left_out" in answer else ():
        click.echo(printable(f"warning: {one.get('name')}: does not count on this node: {one.get('reason')}"))
    found = [(peer.get("name"), result) for peer in peers for result in peer.get("results", ())]
    if found:
        click.echo("")
        _echo_results(found)
        for peer in peers:
            _echo_named(peer.get("name"), list(peer.get("named", ())))


@fullsync_group.command("run")
@click.argument("kind", type=click.Choice(KINDS), default="all")
@PEER
@click.option("--wait", is_flag=True, help="Wait for the end: exit code 0 in sync, 1 differs, 2 error, 3 incomplete.")
@BY
@admin_option
@output_option
def run(kind: str, peer: str | None, wait: bool, by: str, admin: AdminClient, output: str) -> None:
    """Begin a check now: everything, the last day or hour, a learned range, or what `auto` chooses. Of several peers,
    one after the other.

    With --wait the verdict is the exit code: 0 in sync, 1 differing, 2 an error, 3 when something was not looked at.
    """
    begun = admin.post("/admin/fullsync/run", {"peer": peer, "kind": kind, "by": by})
    names = [str(name) for name in begun.get("peers", ())] or [str(begun.get("peer"))]
    if not wait:
        follow = ", one after the other" * (len(names) > 1)
        sentence = f"a check of kind {kind} has begun{follow}; `isthmus fullsync status` shows it"
        _echo(begun, output, f"{', '.join(names)}: {sentence}")
        return
    found = _waited(admin, names, begun, quiet=output == "json")
    results = [(name, result) for name, peer_results, _ in found for result in peer_results]
    if output == "json":
        rows = [{"peer": name, "results": own, "named": named} for name, own, named in found]
        flat = [{"peer": name, **result} for name, result in results]
        named = [one for _, _, own in found for one in own]
        echo_json({"peer": peer, "kind": kind, "results": flat, "named": named, "peers": rows})
    else:
        _echo_results(results)
        for name, _, named in found:
            _echo_named(name, named)
    without = [name for name, own, _ in found if not own]
    if without:
        auto = "auto leaves it out, since what differs cannot be repaired from here; `run all` looks at everything"
        why = auto if kind == "auto" else "the node's log says why"
        raise CommandFailed(Exit.UNAVAILABLE, "no-result", f"{', '.join(without)}: the check has no result: {why}")
    worst = max((_exit_of(result) for _, result in results), default=Exit.UNAVAILABLE, key=_RANK.index)
    if worst is not Exit.OK:
        raise click.exceptions.Exit(int(worst))


@fullsync_group.command("schedule")
@admin_option
@output_option
def schedule(admin: AdminClient, output: str) -> None:
    """The rest of the day: which check is due when, and which were left out."""
    answer = admin.get("/admin/fullsync/schedule")
    if output == "json":
        echo_json(answer)
        return
    rows: list[list[Any]] = []
    for peer in listed(answer, "peers"):
        name = peer.get("name")
        rows += [[name, moment(one["at_ms"]), one["kind"], f"left out: {one['reason']}"] for one in peer["skipped"]]
        retry = peer.get("retry")
        if isinstance(retry, dict):
            rows.append([name, moment(retry["at_ms"]), retry["kind"], f"tried again, for the {retry['tries']}. time"])
        state = "suspended" if peer.get("suspended") else "due"
        rows += [[name, moment(one["at_ms"]), one["kind"], state] for one in peer["checks"]]
    echo_table(("peer", "when", "kind", "state"), rows)


@fullsync_group.command("suspend")
@PEER_OF_ALL
@node_options
@BY
@REASON
@admin_option
@output_option
def suspend(peer: str | None, node: str | None, by: str, reason: str, admin: AdminClient, output: str) -> None:
    """Let no check be due until resumed, over restarts too, on every node, also on those that are down; one that runs
    goes on."""
    wish = {"peer": peer, "node": node, "by": by, "reason": reason}
    _echo_acted(admin.post("/admin/fullsync/suspend", wish), output, "suspended")


@fullsync_group.command("resume")
@PEER_OF_ALL
@node_options
@BY
@admin_option
@output_option
def resume(peer: str | None, node: str | None, by: str, admin: AdminClient, output: str) -> None:
    """Let checks be due again, on every node."""
    _echo_acted(admin.post("/admin/fullsync/resume", {"peer": peer, "node": node, "by": by}), output, "due again")


def _set(one: dict[str, Any]) -> str:
    """What an operator set of a peer, and who, when and why."""
    values = one.get("values")
    told = ", ".join(f"{key} = {value}" for key, value in values.items()) if isinstance(values, dict) else ""
    return f"{told or 'added'} set {_act_told(one)}"


def _act_told(one: dict[str, Any]) -> str:
    reason = f": {one['reason']}" if one.get("reason") else ""
    return f"by {one.get('by')}, {moment(one.get('at_ms'))}{reason}"


def _echo_acted(answer: dict[str, Any], output: str, what: str) -> None:
    """What each node did, and which are down and follow later. Code 3 when a live one did not answer: it follows, too,
    as soon as it reads what was written."""
    acted = answer.get("acted")
    found: dict[str, Any] = acted if isinstance(acted, dict) else {}
    if output == "json":
        echo_json(answer)
    for node, names in found.items() if output != "json" else ():
        if names:
            click.echo(printable(f"{node}: checks of {', '.join(names)} are {what}"))
    meant = {name for names in found.values() for name in names or ()}
    for peer in listed(answer, "peers") if "peers" in answer and output != "json" else ():
        if peer.get("queue_of_other") and peer.get("name") in meant:
            click.echo(printable(f"warning: {peer['name']}: {peer.get('reason')}"))
    later = [str(node) for node in answer.get("later", ())]
    if later and output != "json":
        click.echo(printable(f"{', '.join(later)}: down; follows when it is back"))
    silent = [node for node, names in found.items() if names is None]
    if silent:
        sentence = f"does not answer, and may be as it was for some seconds: {', '.join(silent)}"
        raise CommandFailed(Exit.UNAVAILABLE, "unknown", sentence)


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


WANTED: Final = (*KINDS, "none")
WANT_DIGITS: Final = 6
"""Digits of a count, less one; the node tells which counts it takes."""

VALUES: Final = (
    click.option("--wants", callback=_wants, metavar="KIND=COUNT,...", help="Checks a day; kinds not named stay."),
    click.option("--queue", metavar="NAME", help="The queue of this cluster that repairs go into."),
    click.option("--bucket-types", metavar="NAME,...", help='Bucket types that are compared; "*": all.'),
    click.option("--all-window", metavar="HOURS", help='When auto may check everything: "22-6", always or never.'),
    click.option("--cluster-slice", type=click.IntRange(0, 4), help="Quarter of each slot; 0: the whole slot."),
    click.option("--segment-limit", type=click.IntRange(0), help="Differing segments a check compares; 0: no limit."),
    click.option(
        "--auto-suppress", type=click.IntRange(0), help="Auto checks left out after one that repaired nothing."
    ),
    click.option("--repair-rate-limit", type=click.IntRange(0), help="Repairs a second; 0: no limit."),
    click.option("--bidirectional/--one-way", default=None, help="Tell the other cluster to repair, too."),
    click.option("--peer-queue", metavar="NAME", help="The other cluster's queue for that."),
)
"""What of a peer may be set; each parameter's name is a key of [[fullsync]]."""


def _values_of(wants: dict[str, int], given: dict[str, Any]) -> dict[str, Any]:
    return {**wants, **{key: value for key, value in given.items() if value is not None}}


def value_options(command: Any) -> Any:
    """Adds VALUES."""
    for option in reversed(VALUES):
        command = option(command)
    return command


@fullsync_group.command("set")
@click.argument("peer")
@value_options
@click.option("--default", "default", is_flag=True, help="Let the config files count again.")
@node_options
@BY
@REASON
@admin_option
@output_option
def set_(
    peer: str,
    wants: dict[str, int],
    default: bool,
    node: str | None,
    by: str,
    reason: str,
    admin: AdminClient,
    output: str,
    **given: Any,
) -> None:
    """Change what PEER compares, when, and how it repairs, on all nodes and over restarts; what is not named stays. The
    day's plan is made anew from now on. With --default its config files count again."""
    values = _values_of(wants, given)
    if default == bool(values):
        raise CommandFailed(
            Exit.USAGE, "bad-input", "say what to set, such as --wants all=24,auto=0; or --default alone"
        )
    wish = {"peer": peer, "node": node, "values": values, "default": default, "by": by, "reason": reason}
    answer = admin.post("/admin/fullsync/set", wish)
    _echo_acted(answer, output, "as the files have them" if default else "changed")


@fullsync_group.group("peer")
def peer_group() -> None:
    """Add and remove clusters to compare with while nodes run."""


@peer_group.command("add")
@click.argument("name")
@click.option("--urls", required=True, metavar="URL,...", help="HTTP listeners of some of its nodes.")
@click.option("--cluster", metavar="NAME", help="The cluster that must answer there.")
@value_options
@node_options
@BY
@REASON
@admin_option
@output_option
def add(
    name: str,
    urls: str,
    wants: dict[str, int],
    node: str | None,
    by: str,
    reason: str,
    admin: AdminClient,
    output: str,
    **given: Any,
) -> None:
    """Compare with the cluster at URL,... as NAME, on all nodes and over restarts. It needs --queue. It is shown the
    token that a node's file names for the same URLs, if there is one."""
    wish = {
        "peer": name,
        "node": node,
        "values": {"urls": urls, **_values_of(wants, given)},
        "by": by,
        "reason": reason,
    }
    _echo_acted(admin.post("/admin/fullsync/peers/add", wish), output, "planned")


@peer_group.command("remove")
@click.argument("name")
@node_options
@BY
@REASON
@admin_option
@output_option
def remove(name: str, node: str | None, by: str, reason: str, admin: AdminClient, output: str) -> None:
    """Compare with NAME no more, on all nodes and over restarts, also where a file has it (`set NAME --default` brings
    that back). What is remembered of its checks is forgotten; one that runs goes on."""
    wish = {"peer": name, "node": node, "by": by, "reason": reason}
    _echo_acted(admin.post("/admin/fullsync/peers/remove", wish), output, "no more due")


@fullsync_group.command("set-range")
@click.argument("since", metavar="SINCE")
@click.argument("before", metavar="BEFORE")
@click.option("--bucket", help="Only keys of this bucket.")
@PEER
@BY
@admin_option
@output_option
def set_range(
    since: str, before: str, bucket: str | None, peer: str | None, by: str, admin: AdminClient, output: str
) -> None:
    """Let the next check of kind range look at changes of [SINCE, BEFORE): times such as 2026-02-03T04:05, which is UTC
    unless it names a zone."""
    since_ms, before_ms = time_of(since, "SINCE"), time_of(before, "BEFORE")
    if since_ms >= before_ms:
        raise CommandFailed(Exit.USAGE, "bad-input", f"{since} does not lie before {before}")
    wish = {"peer": peer, "since_ms": since_ms, "before_ms": before_ms, "bucket": bucket, "by": by}
    answer = admin.post("/admin/fullsync/set-range", wish)
    _echo(answer, output, f"{_names_of(answer, peer)}: the range is set; `run range` looks at it")


@fullsync_group.command("clear-range")
@PEER
@BY
@admin_option
@output_option
def clear_range(peer: str | None, by: str, admin: AdminClient, output: str) -> None:
    """Forget a range that was set or learned."""
    answer = admin.post("/admin/fullsync/clear-range", {"peer": peer, "by": by})
    _echo(answer, output, f"{_names_of(answer, peer)}: no range is set")


@fullsync_group.command("suppress-auto")
@click.argument("count", type=click.IntRange(0))
@PEER
@BY
@admin_option
@output_option
def suppress_auto(count: int, peer: str | None, by: str, admin: AdminClient, output: str) -> None:
    """Leave out the next COUNT checks of kind auto of the node that answers, whatever was found; 0: none."""
    answer = admin.post("/admin/fullsync/suppress-auto", {"peer": peer, "count": count, "by": by})
    _echo(answer, output, f"{_names_of(answer, peer)}: {_left_out(count)}")


@fullsync_group.command("trees")
@click.option("--rebuild", is_flag=True, help="Build them anew from the key store, beside the ones that are there.")
@click.option("--partition", type=click.IntRange(0), help="Rebuild only this partition's.")
@click.option("--own", is_flag=True, help="Only those of the node that is asked.")
@BY
@admin_option
@output_option
def trees(rebuild: bool, partition: int | None, own: bool, by: str, admin: AdminClient, output: str) -> None:
    """The trees of every node's copies: state, offset, size; and every one that was ever found wrong."""
    if rebuild:
        meant = admin.post("/admin/trees/rebuild", {"partition": partition, "by": by})
        _echo(meant, output, f"{len(listed_numbers(meant))} trees of this node are built anew")
        return
    answer = admin.get("/admin/trees" if own else "/admin/trees/nodes")
    if output == "json":
        echo_json(answer)
        return
    nodes: dict[str, Any] = {str(answer.get("node")): answer} if own else dict(answer.get("nodes", {}))
    told = {node: said for node, said in nodes.items() if said is not None}
    columns = ("node", "partition", "bucket type", "state", "offset", "bytes", "built", "reason")
    keys = ("partition", "bucket_type", "state", "offset", "bytes")
    rows = [
        [
            node,
            *(tree.get(key) for key in keys),
            moment(tree["built_ms"]) if tree.get("built_ms") else "-",
            tree["reason"],
        ]
        for node, said in told.items()
        for tree in listed(said, "trees")
    ]
    echo_table(columns, rows)
    wrong = [(node, one) for node, said in told.items() for one in listed(said, "mismatches")]
    if wrong:
        click.echo(f"\n{clause(len(wrong), 'segment', 'was', 'were')} found wrong:")
        heads = ("partition", "segment", "offset", "against")
        echo_table(
            ("node", *heads, "when"),
            ([node, *(one.get(key) for key in heads), moment(one.get("wall_ms"))] for node, one in wrong),
        )
    for node in sorted(nodes.keys() - told.keys()):
        click.echo(f"node {node} does not answer: its trees are not known", err=True)


def listed_numbers(answer: dict[str, Any]) -> list[int]:
    """The partitions of an answer."""
    return [number for number in answer.get("rebuilding", ()) if isinstance(number, int)]


def _names_of(answer: dict[str, Any], peer: str | None) -> str:
    """The peers that an act on the answering node concerned."""
    return peer or ", ".join(str(one.get("name")) for one in listed(answer, "peers")) or "no [[fullsync]] here"


Found = tuple[str, list[dict[str, Any]], list[dict[str, Any]]]


def _waited(admin: AdminClient, names: list[str], begun: dict[str, Any], *, quiet: bool) -> list[Found]:
    """Of each peer its name, the results of the check that has begun, and the first keys that differed; progress goes
    to standard error."""

    def mine(one: dict[str, Any]) -> bool:
        """Of this check, not of one that was due meanwhile and began at its end."""
        return one.get("began_ms", 0) >= begun.get("at_ms", 0) and one.get("by") == begun.get("by")

    said_at = 0.0
    while True:
        answer = admin.get("/admin/fullsync?results=200")
        running = answer.get("running")
        if not isinstance(running, dict) or running.get("peer") not in names or not mine(running):
            break
        if not quiet and time.monotonic() - said_at >= SAID_S:
            click.echo(_progress(running), err=True)
            said_at = time.monotonic()
        time.sleep(LOOK_S)
    peers = {peer.get("name"): peer for peer in listed(answer, "peers")}
    told = [(name, peers.get(name, {})) for name in names]
    return [
        (name, [one for one in peer.get("results", ()) if mine(one)], list(peer.get("named", ())))
        for name, peer in told
    ]


def _echo_named(name: Any, named: list[dict[str, Any]]) -> None:
    """The first keys that differed in the newest check; `isthmus explain` tells more of each."""
    for one in named:
        key = f"{one.get('bucket_type')}/{one.get('bucket')} {one.get('key')}"
        click.echo(printable(f"{name}: {one.get('difference')}: {key}"))


def _progress(running: dict[str, Any]) -> str:
    left = running.get("estimate_s")
    estimate = "" if left is None else f", about {milliseconds(1000 * left)} left"
    return printable(
        f"{running.get('peer')}: {running.get('kind')} check of {running.get('bucket_type')}, {running.get('state')}; "
        f"{running.get('branches_done')} of {running.get('branches_differing')} differing branches done, "
        f"{running.get('differences')} differences, {running.get('queued')} queued{estimate}"
    )


def _queue(peer: dict[str, Any]) -> str:
    """The queue of repairs, with what is wrong with it."""
    if peer.get("queue_delisted"):
        return f"{peer.get('queue')} (delisted)"
    other = peer.get("queue_of_other")
    return f"{peer.get('queue')} (of {other})" if other else str(peer.get("queue"))


def _rows(peer: dict[str, Any]) -> list[list[Any]]:
    at_ms = peer.get("next_ms")
    when = "-" if at_ms is None or peer.get("state") == "suspended" else moment(at_ms)
    kind = peer.get("next_kind") or "-"
    return [
        [
            peer.get("name"),
            peer.get("state"),
            when,
            kind,
            bucket_type,
            "never" if at is None else moment(at),
            _queue(peer),
            peer.get("reason"),
        ]
        for bucket_type, at in peer.get("proven_ms", {}).items()
    ]


def _echo_results(found: Any) -> None:
    columns = ("peer", "began", "kind", "bucket type", "verdict", "took", "differences", "queued", "left", "transient")
    echo_table(
        (*columns, "reason"),
        (
            [
                name,
                moment(result.get("began_ms")),
                result.get("kind"),
                result.get("bucket_type"),
                result.get("verdict"),
                milliseconds(1000 * result.get("seconds", 0)),
                ", ".join(f"{count} {kind}" for kind, count in result.get("differences", {}).items()) or "-",
                result.get("queued"),
                result.get("left"),
                result.get("transient"),
                cell(result.get("reason")),
            ]
            for name, result in found
        ),
    )


_RANK: Final = (Exit.OK, Exit.DIFFERS, Exit.UNAVAILABLE, Exit.USAGE)


def _exit_of(result: dict[str, Any]) -> Exit:
    return ENDS.get(str(result.get("verdict")), Exit.USAGE)


def _echo(answer: Any, output: str, sentence: str) -> None:
    if output == "json":
        echo_json(answer)
    else:
        click.echo(sentence)


def _left_out(count: int) -> str:
    return f"the next {clause(count, 'check', 'of kind auto is', 'of kind auto are')} left out"
