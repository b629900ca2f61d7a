"""`isthmus fullsync`: which clusters this one is compared with, what was found, and running a check now.

Shows and asks what a node's admin listener offers (docs/http.md); the words are told in docs/fullsync.md. Full-sync is
a node's own affair: commands speak of the node that answers, but for `suspend`, `resume` and `trees`.
"""

from __future__ import annotations

import time
from typing import Any, Final

import click

from node.cli.cluster import listed
from node.cli.exits import CommandFailed, Exit
from node.cli.output import cell, echo_json, echo_table, milliseconds, moment, output_option, printable
from node.cli.queue import BY, REASON
from node.cli.remote import AdminClient, admin_option
from node.cli.times import time_of
from node.cli.where import node_options


def _named(_context: click.Context, _parameter: click.Parameter, value: str | None) -> str | None:
    """An empty name is a variable that nobody has set."""
    if value == "":
        raise click.BadParameter("it is empty")
    return value


PEER = click.option(
    "--peer", callback=_named, help="Only this [[fullsync]]; without it all of the node, or the only one."
)
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
    """Every cluster that the node compares with, when next, since when it is proven in sync, and the last results."""
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
        learned = peer.get("range")
        if isinstance(learned, dict):
            of = "" if learned["bucket"] is None else f" in bucket {learned['bucket']}"
            times = f"{moment(learned['since_ms'])} to {moment(learned['before_ms'])}"
            click.echo(printable(f"{peer.get('name')}: the next check of kind range looks at changes of {times}{of}"))
        if peer.get("gaps_open"):
            name, queue, wait_s = peer.get("name"), peer.get("queue"), peer.get("gaps_wait_s")
            soon = "" if wait_s is None else f"; checked again in {milliseconds(1000 * wait_s)} or at the next look"
            click.echo(
                f"{name}: gaps of queue {queue} that are not proven yet: {peer['gaps_open']} "
                f"(`isthmus gaps {queue}`){soon}"
            )
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
    """Begin a check now: everything, the last day or hour, a learned range, or what `auto` chooses."""
    name = peer or _only(admin)
    begun = admin.post("/admin/fullsync/run", {"peer": name, "kind": kind, "by": by})
    if not wait:
        _echo(begun, output, f"{name}: a check of kind {kind} has begun; `isthmus fullsync status` shows it")
        return
    results, named = _waited(admin, name, begun, quiet=output == "json")
    if output == "json":
        echo_json({"peer": name, "kind": kind, "results": results, "named": named})
    else:
        _echo_results((name, result) for result in results)
        _echo_named(name, named)
    if not results:
        auto = "auto leaves it out, since what differs cannot be repaired from here; `run all` looks at everything"
        why = auto if kind == "auto" else "the node's log says why"
        raise CommandFailed(Exit.UNAVAILABLE, "no-result", f"{name}: the check has no result: {why}")
    worst = max((_exit_of(result) for result in results), default=Exit.UNAVAILABLE, key=_RANK.index)
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
    """Let no check be due until resumed, over restarts too, on every node that lives; one that runs goes on."""
    wish = {"peer": peer, "node": node, "by": by, "reason": reason}
    _echo_acted(admin.post("/admin/fullsync/suspend", wish), output, "suspended")


@fullsync_group.command("resume")
@PEER_OF_ALL
@node_options
@BY
@admin_option
@output_option
def resume(peer: str | None, node: str | None, by: str, admin: AdminClient, output: str) -> None:
    """Let checks be due again, on every node that lives."""
    _echo_acted(admin.post("/admin/fullsync/resume", {"peer": peer, "node": node, "by": by}), output, "due again")


def _echo_acted(answer: dict[str, Any], output: str, what: str) -> None:
    """What each node did. Code 3 when one did not say that it did: it may have all the same, or only until its end."""
    acted = answer.get("acted")
    found: dict[str, Any] = acted if isinstance(acted, dict) else {}
    if output == "json":
        echo_json(answer)
    for node, names in found.items() if output != "json" else ():
        if names:
            click.echo(printable(f"{node}: checks of {', '.join(names)} are {what}"))
    silent = [node for node, names in found.items() if names is None]
    if silent:
        sentence = f"does not answer, or could not save it, and may be as it was: {', '.join(silent)}"
        raise CommandFailed(Exit.UNAVAILABLE, "unknown", sentence)


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
    name = peer or _only(admin)
    wish = {"peer": name, "since_ms": since_ms, "before_ms": before_ms, "bucket": bucket, "by": by}
    _echo(admin.post("/admin/fullsync/set-range", wish), output, f"{name}: the range is set; `run range` looks at it")


@fullsync_group.command("clear-range")
@PEER
@BY
@admin_option
@output_option
def clear_range(peer: str | None, by: str, admin: AdminClient, output: str) -> None:
    """Forget a range that was set or learned."""
    name = peer or _only(admin)
    _echo(admin.post("/admin/fullsync/clear-range", {"peer": name, "by": by}), output, f"{name}: no range is set")


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
        click.echo(f"\n{len(wrong)} segments were found wrong:")
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


def _only(admin: AdminClient) -> str:
    names = [str(peer.get("name")) for peer in listed(admin.get("/admin/fullsync?results=0"), "peers")]
    if len(names) == 1:
        return names[0]
    known = ", ".join(names) if names else "none is configured on this node"
    raise CommandFailed(Exit.USAGE, "bad-input", f"--peer NAME is needed; known: {known}")


def _waited(
    admin: AdminClient, name: str, begun: dict[str, Any], *, quiet: bool
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The results of the check that has begun, and the first keys that differed; progress goes to standard error."""

    def mine(one: dict[str, Any]) -> bool:
        """Of this check, not of one that was due meanwhile and began at its end."""
        return one.get("began_ms", 0) >= begun.get("at_ms", 0) and one.get("by") == begun.get("by")

    said_at = 0.0
    while True:
        answer = admin.get("/admin/fullsync?results=200")
        running = answer.get("running")
        if not isinstance(running, dict) or running.get("peer") != name or not mine(running):
            break
        if not quiet and time.monotonic() - said_at >= SAID_S:
            click.echo(_progress(running), err=True)
            said_at = time.monotonic()
        time.sleep(LOOK_S)
    peers = {peer.get("name"): peer for peer in listed(answer, "peers")}
    peer = peers.get(name, {})
    results = [one for one in peer.get("results", ()) if mine(one)]
    return results, list(peer.get("named", ()))


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
            f"{peer.get('queue')} (delisted)" if peer.get("queue_delisted") else peer.get("queue"),
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
