"""`isthmus sink`: what this cluster fetches from others, and changes that it refused for good. See docs/replication.md.

Dead letters lie on the node that fetched them: `--admin` chooses the node.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any, Final

import click

from isthmus.config.text import clause
from isthmus.node.cli.admin_client import AdminClient
from isthmus.node.cli.admin_command import AdminCommand, admin_act, admin_query
from isthmus.node.cli.described_table import table_of
from isthmus.node.cli.exit_codes import CommandFailed, Exit
from isthmus.node.cli.output import (
    Row,
    TableSpec,
    attribution,
    cell,
    echo_facts,
    milliseconds,
    object_in,
    objects_in,
    printable,
)
from isthmus.node.cli.parameters import ONE_NODE, Count, RateLimit, Size, of_node
from isthmus.node.http.answer_limits import RETRY_WAIT_S
from isthmus.node.nouns.dead_letter import DeadLetterRow
from isthmus.node.nouns.sink import (
    CheckedLine,
    ConflictRow,
    SinkLink,
    SinkOverview,
    SinkSource,
    achieved_in_words,
    binding_limit,
    limit_in_words,
    rates_in_words,
)
from isthmus.repl.model.errors import BadInput

IDS = click.argument("ids", metavar="[ID]...", nargs=-1, type=Count(1))
ALL = click.option("--all", "everything", is_flag=True, help="All of them.")

IDS_MAX: Final = 1_000
"""Dead letters in one request to the node; more take several requests."""


@click.group("sink")
def sink_group() -> None:
    """Look at sinks; suspend, resume and limit them."""


@sink_group.group("dead-letters", short_help="Changes refused for good: list, retry, drop.")
def dead_letters_group() -> None:
    """Look at changes that were refused for good; push them again, or drop them."""


# --- dead letters ---


LETTERS: Final = table_of(DeadLetterRow)


@dead_letters_group.command("list", short_help="Every dead letter: what was refused, and why.")
@admin_query
def list_letters(query: AdminCommand) -> None:
    """Every dead letter of the node that answers, the oldest first: what it refused for good, and why."""
    query.echo_rows(query.get("/admin/sink/dead-letters"), "dead_letters", LETTERS)


@dead_letters_group.command("retry")
@IDS
@ALL
@admin_act()
def retry(ids: tuple[int, ...], everything: bool, act: AdminCommand) -> Exit:
    """Push dead letters again. A letter that is accepted leaves the list; code 1 when one was not. Each letter has a
    request of its own, which may wait for its source or for a leader, for a minute at most."""
    _check_chosen(ids, everything)
    with closing(act.admin.with_timeout(RETRY_WAIT_S)) as admin:
        wanted = tuple(dict.fromkeys(ids)) if ids else _kept_ids(admin)
        retried = _retried(replace(act, admin=admin), wanted)
    taken = sum(letter.get("outcome") in ("applied", "superseded", "merged") for letter in retried)
    if everything:
        act.note(f"taken: {taken} of {len(wanted)}")
    return Exit.OK if taken == len(wanted) else Exit.DIFFERS


def _retried(act: AdminCommand, wanted: Sequence[int]) -> list[dict[str, Any]]:
    """Retry the letters; the outcome of each. Raises CommandFailed, with the letter that failed."""
    retried: list[dict[str, Any]] = []
    try:
        for number in wanted:
            answer = act.post("/admin/sink/dead-letters/retry", ids=[number])
            retried += (found := objects_in(answer, "retried"))
            for letter in found:
                why = f": {cell(letter.get('error'))}" if letter.get("error") else ""
                act.note(f"{letter.get('id')}: {cell(letter.get('outcome') or letter.get('reason'))}{why}")
    except CommandFailed as error:
        sentence = f"dead letter {number}, after {len(retried)} of {len(wanted)}: {error}"
        raise CommandFailed(error.exit_code, error.reason, sentence) from error
    finally:
        act.echo_json({"retried": retried})
    return retried


@dead_letters_group.command("drop")
@IDS
@ALL
@admin_act(yes=True)
def drop(ids: tuple[int, ...], everything: bool, act: AdminCommand) -> None:
    """Drop dead letters. Nothing changes at the source; full-sync may find that the clusters differ. --all shows their
    number and asks for confirmation; letters that arrive meanwhile stay."""
    _check_chosen(ids, everything)
    if everything:
        ids = _kept_ids(act.admin)
        if ids:
            act.confirm(f"Drop all {len(ids)} dead letters of this node?")
    wanted, dropped = sorted(set(ids)), 0
    for start in range(0, len(wanted), IDS_MAX):
        answer = act.post("/admin/sink/dead-letters/drop", ids=wanted[start : start + IDS_MAX])
        dropped += int(answer.get("dropped") or 0)
    act.echo({"dropped": dropped}, f"dropped: {dropped}" + (f" of {len(wanted)}" if everything else ""))
    left = len(wanted) - dropped
    if left > 0 and not everything:
        click.echo(f"{left} of {len(wanted)} are not kept by this node: letters lie on the node that fetched", err=True)


def _kept_ids(admin: AdminClient) -> tuple[int, ...]:
    kept = objects_in(admin.get("/admin/sink/dead-letters"), "dead_letters")
    return tuple(letter["id"] for letter in kept if type(letter.get("id")) is int)


def _check_chosen(ids: tuple[int, ...], everything: bool) -> None:
    if bool(ids) == everything:
        raise BadInput("give the ids of dead letters, or --all")


# --- list, show, conflicts ---

OUTCOMES: Final = ("applied", "superseded", "merged", "rejected")


SINKS: Final = TableSpec("node", *table_of(SinkLink).columns)


@sink_group.command("list", short_help="Every queue that is fetched from: outcomes, lag.")
@ONE_NODE
@admin_query
def list_sinks(node: str | None, query: AdminCommand) -> None:
    """Every queue and peer that each node fetches from, with outcomes and lag."""
    answer = query.get("/admin/sink/nodes")
    nodes = of_node(objects_in(answer, "nodes"), node)
    if query.echo_json({**answer, "nodes": nodes}):
        return
    rows: list[Row] = []
    for each in nodes:
        sinks = objects_in(object_in(each, "sink"), "sinks") if isinstance(each.get("sink"), dict) else [{}]
        why = object_in(answer, "unknown").get(str(each.get("node"))) or "the node does not answer"
        silent = {} if isinstance(each.get("sink"), dict) else {"reason": why}
        rows += [{**sink, **silent, "node": each.get("node")} for sink in sinks]
        rows += [
            dict(zip(("queue", "peer"), link.split(" ", 1), strict=False))
            | {"node": each.get("node"), "reason": f"cannot be shown: {why}"}
            for link, why in object_in(object_in(each, "sink"), "failed").items()
        ]
    SINKS.echo(rows)


SOURCES: Final = table_of(SinkSource)
NODES: Final = table_of(SinkOverview)


@sink_group.command("show", short_help="Workers, limits, and what came from each cluster.")
@ONE_NODE
@admin_query
def show(node: str | None, query: AdminCommand) -> None:
    """The sinks of all nodes: workers, limits and what came from each source cluster. With --node one node's, with the
    limit that binds."""
    found = query.get("/admin/sink/nodes")
    nodes = of_node(objects_in(found, "nodes"), node)
    if node is None:
        if query.echo_json(found):
            return
        known = [{**object_in(each, "sink"), "node": each.get("node")} for each in nodes]
        unknown = object_in(found, "unknown")
        NODES.echo(
            each
            if "state" in each
            else {**each, "reason": unknown.get(str(each["node"])) or "the node does not answer"}
            for each in known
        )
        sources = _joined_sources(known)
        if sources:
            click.echo()
            SOURCES.echo(sources)
        return
    if not isinstance(nodes[0].get("sink"), dict):
        raise CommandFailed(Exit.UNAVAILABLE, "unknown", f"node {node} does not answer: what its sink does is unknown")
    answer = object_in(nodes[0], "sink")
    if query.echo_json(answer):
        return
    workers, throttle = object_in(answer, "workers"), object_in(answer, "throttle")
    letters = object_in(answer, "dead_letters")
    echo_facts(
        (
            ("node", answer.get("node")),
            ("state", f"{answer.get('state')} {answer.get('reason') or ''}".strip()),
            ("workers", f"{workers.get('count')}, {workers.get('busy')} busy"),
            ("workers per peer", workers.get("peer_limit")),
            ("workers per queue", ", ".join(f"{q} {n}" for q, n in sorted(object_in(workers, "queue_limits").items()))),
            *(("peer that cannot be used", _unusable(one)) for one in objects_in(answer, "peers_unusable")),
            ("limit", limit_in_words(answer)),
            ("binding", binding_limit(answer)),
            ("achieved", achieved_in_words(answer)),
            (
                "throttled",
                milliseconds(1000 * throttle["throttled_seconds"] if "throttled_seconds" in throttle else None),
            ),
            ("limits set", _set_by(answer["limits_set"]) if "limits_set" in answer else None),
            ("dead letters", _letter_counts(letters)),
        )
    )
    if objects_in(answer, "sources"):
        SOURCES.echo(objects_in(answer, "sources"))


def _joined_sources(nodes: Sequence[Row]) -> list[Row]:
    """The sources of all nodes that answer, a row for each source cluster and queue."""
    joined: dict[tuple[Any, Any], dict[str, Any]] = {}
    for one in (source for node in nodes for source in objects_in(node, "sources")):
        at = (one.get("source_cluster"), one.get("queue"))
        sums = joined.setdefault(at, {"source_cluster": at[0], "queue": at[1], "last_batch_ms": None})
        for key in ("fetched", *OUTCOMES, "failed", "under_way"):
            sums[key] = sums.get(key, 0) + int(one.get(key) or 0)
        last = [each for each in (sums["last_batch_ms"], one.get("last_batch_ms")) if isinstance(each, int)]
        sums["last_batch_ms"] = max(last, default=None)
    return list(joined.values())


def _unusable(peer: Row) -> str:
    return f"queue {peer.get('queue')} at {peer.get('url')}: {peer.get('reason')}"


def _set_by(value: Any) -> str:
    return attribution(value) if isinstance(value, dict) else "by the config"


def _letter_counts(letters: Row) -> str:
    if letters.get("kept") is None:
        return "unknown: their file cannot be read (the node's log has the reason)"
    return f"{letters['kept']} kept, {letters.get('given_up')} given up"


def _dots_of(side: str) -> Any:
    """A column's value: the dots of one side's clock."""
    return lambda row: ", ".join(map(_dot, objects_in(object_in(row, side), "seen")))


def _dot(dot: Row) -> str:
    """CLUSTER/PARTITION@EPOCH:OFFSET, CLUSTER the start of its uuid."""
    cluster = str(dot.get("uuid") or dot.get("actor"))[:8]
    return f"{cluster}/{dot.get('partition')}@{dot.get('epoch')}:{dot.get('offset')}"


CONFLICTS: Final = table_of(ConflictRow, ours=_dots_of("ours"), theirs=_dots_of("theirs"))


@sink_group.command("conflicts", short_help="Newest changes that were concurrent with others.")
@click.option("--count", type=Count(1, 10_000), default=100, show_default=True, help="How many at most.")
@admin_query
def conflicts(count: int, query: AdminCommand) -> None:
    """Newest changes that the node that answers fetched and that were concurrent with its own, newest first: key,
    peer, siblings since, and what each side had seen."""
    answer = query.get(f"/admin/sink/conflicts?count={count}")
    query.echo_rows(answer, "conflicts", CONFLICTS)
    dropped = answer.get("dropped")
    if dropped and not query.json:
        click.echo(f"{dropped} of {answer.get('noted')} since this node began are not kept (sink.conflicts)")


# --- changes ---

QUEUE = click.option("--queue", help="Only fetches from the queue of this name.")
PEER = click.option("--peer", metavar="URL", help="Only fetches from this peer.")
CLUSTER = click.option(
    "--peer-cluster",
    "cluster",
    default="",
    metavar="NAME",
    help="The cluster that must answer there, and that its certificate must name.",
)
DEFAULT = click.option("--default", "forget", is_flag=True, help="Apply the config files again.")


@sink_group.command("suspend", short_help="Start no new fetch until resumed.")
@QUEUE
@PEER
@admin_act(nodes=True, reason=True)
def suspend(queue: str | None, peer: str | None, act: AdminCommand) -> None:
    """Start no new fetch until resumed, over restarts too; running ones finish. Without options: no fetch at all."""
    act.echo(act.post("/admin/sink/suspend", queue=queue, peer=peer), f"{_scope(queue, peer, act)}: suspended")


@sink_group.command("resume")
@QUEUE
@PEER
@admin_act(nodes=True)
def resume(queue: str | None, peer: str | None, act: AdminCommand) -> None:
    """Fetch again. Without options: from all."""
    act.echo(act.post("/admin/sink/resume", queue=queue, peer=peer, reason=""), f"{_scope(queue, peer, act)}: resumed")


@sink_group.command("add-peer", short_help="Fetch from a queue of another cluster.")
@click.argument("url")
@click.argument("queue")
@CLUSTER
@click.option("--peer-token-file", metavar="PATH", help="File with the token for it, on every node of this cluster.")
@admin_act(reason=True, yes=True)
def add_peer(queue: str, url: str, cluster: str, peer_token_file: str | None, act: AdminCommand) -> None:
    """Fetch from QUEUE at URL, a node of another cluster, on all nodes and over restarts. The link is first tested as
    by `isthmus sink check`; if a line fails, it asks for confirmation."""
    link = {"queue": queue, "url": url, "cluster": cluster, "token_file": peer_token_file}
    if not act.yes:
        failed = _failing_checks(act, link)
        for row in failed:
            right = f"; right: {cell(row['right'])}" if row.get("right") else ""
            click.echo(printable(f"{cell(row.get('what'))}: {cell(row.get('found'))}{right}"), err=True)
        if failed:
            act.confirm(f"This link would not work now: {clause(len(failed), 'check', 'fails', 'fail')}. Add it?")
    act.echo(act.post("/admin/sink/peers/add", **link), f"sink: fetches from queue {queue} at {url}")


def _failing_checks(act: AdminCommand, link: Row) -> list[dict[str, Any]]:
    """The lines of `sink check` that fail; none at a node of a version before it."""
    try:
        rows = objects_in(act.admin.post("/admin/sink/check", dict(link)), "checks")
    except CommandFailed as error:
        if error.reason == "unknown-path":
            return []
        raise
    return [row for row in rows if row.get("state") == "fail"]


CHECKS: Final = table_of(CheckedLine)


@sink_group.command("check", short_help="Test a link before it is configured.")
@click.argument("url")
@click.argument("queue")
@CLUSTER
@click.option("--peer-token-file", metavar="PATH", help="File with the token for it, on the node that checks.")
@admin_query
def check(url: str, queue: str, cluster: str, peer_token_file: str | None, query: AdminCommand) -> Exit:
    """Test, before it is configured, whether a link to QUEUE at URL, a node of another cluster, would work: from the
    node that answers, with its TLS. Nothing is fetched and nothing changes. Checks the token, the owner, the filter,
    bucket types, properties and clocks. Exit code 1 when a line fails, 3 when one is unknown."""
    body = {"queue": queue, "url": url, "cluster": cluster, "token_file": peer_token_file}
    answer = query.post("/admin/sink/check", **body)
    query.echo_rows(answer, "checks", CHECKS)
    states = {row.get("state") for row in objects_in(answer, "checks")}
    return Exit.DIFFERS if "fail" in states else Exit.UNAVAILABLE if "unknown" in states else Exit.OK


@sink_group.command("remove-peer", short_help="Stop fetching from a queue of another cluster.")
@click.argument("url")
@click.argument("queue")
@admin_act(reason=True)
def remove_peer(queue: str, url: str, act: AdminCommand) -> None:
    """Stop fetching from QUEUE at URL, on all nodes and over restarts, even if a config file lists it. Changes wait at
    the source; nothing is lost."""
    answer = act.post("/admin/sink/peers/remove", queue=queue, url=url)
    act.echo(answer, f"sink: fetches no more from queue {queue} at {url}")


@sink_group.command("set-workers", short_help="How many fetches run at once on each node.")
@click.argument("count", type=Count(1, 256), required=False)
@click.option("--per-peer", type=Count(0, 256), help="Most at one peer, up to COUNT; 0: an equal share.")
@click.option(
    "--queue", help="Most workers of the node that may be busy with this queue; --default: no limit of its own."
)
@DEFAULT
@admin_act(nodes=True, reason=True)
def set_workers(count: int | None, per_peer: int | None, queue: str | None, forget: bool, act: AdminCommand) -> None:
    """Set the number of workers that fetch at once on each node, also over restarts. A --per-peer above the workers of
    a node means all of them."""
    if queue is not None:
        if per_peer is not None or (count is None) != forget:
            raise BadInput("--queue: give COUNT, or --default, and no --per-peer")
        sentence = f"queue {queue}{_at(act)}: " + ("no limit of its own" if forget else f"at most {count} workers")
        act.echo(act.post("/admin/sink/limits", queue=queue, workers=count, forget=forget), sentence)
        return
    if (count is None and per_peer is None) != forget:
        raise BadInput("give COUNT, --per-peer, or both; or --default alone")
    if count is not None and per_peer is not None and per_peer > count:
        sentence = f"--per-peer is at most COUNT, {count}: more of them there are not; 0 is an equal share"
        raise BadInput(sentence)
    limits = {"workers": 1, "per_peer": 0, "forget": True} if forget else {"workers": count, "per_peer": per_peer}
    answer = act.post("/admin/sink/limits", **limits)
    workers = object_in(answer, "workers")
    numbers = f"{workers.get('count')} workers, {workers.get('peer_limit')} per peer"
    act.echo(answer, f"sink{_on_nodes(act)}: {'as configured' if forget else 'set'}; {answer.get('node')}: {numbers}")


STOP: Final = "isthmus sink suspend"
"""What stops the sink."""


@sink_group.command("throttle", short_help="Limit what each node fetches a second.")
@click.option("--bytes", "size", type=RateLimit(Size(), STOP), help='Bytes a second, such as "5MB"; none: no limit.')
@click.option("--objects", type=RateLimit(Count(0), STOP), help="Changes a second; none: no limit.")
@click.option("--off", is_flag=True, help="Neither limit.")
@DEFAULT
@admin_act(nodes=True, reason=True)
def throttle(size: int | None, objects: int | None, off: bool, forget: bool, act: AdminCommand) -> None:
    """Limit the rate at which each node fetches, also over restarts."""
    if (size is not None or objects is not None) + off + forget != 1:
        raise BadInput("give --bytes, --objects, or both; or --off; or --default")
    limits: dict[str, Any] = {"bytes_per_second": size, "objects_per_second": objects}
    if off or forget:
        limits = {"bytes_per_second": 0, "objects_per_second": 0, "forget": forget}
    answer = act.post("/admin/sink/limits", **limits)
    configured = object_in(object_in(answer, "throttle"), "configured")
    what = "as configured" if forget else "no limit" if off else "limit set"
    act.echo(answer, f"sink{_on_nodes(act)}: {what}; {answer.get('node')}: {rates_in_words(configured, 'no limit')}")


def _at(act: AdminCommand) -> str:
    return "" if act.node is None else f" on node {act.node}"


def _on_nodes(act: AdminCommand) -> str:
    """Where a limit is in force: on the node of --node, or on all of the cluster, as many as there are."""
    if act.node is not None or act.json:
        return _at(act)
    try:
        count = len(objects_in(act.get("/admin/cluster"), "nodes"))
    except CommandFailed:  # the limit is set all the same
        return " on all nodes"
    return f" on all {count} nodes" if count > 1 else " on the only node"


def _scope(queue: str | None, peer: str | None, act: AdminCommand) -> str:
    parts = [f"queue {queue}"] * (queue is not None) + [f"peer {peer}"] * (peer is not None)
    return "sink, " + (" at ".join(parts) if parts else "all queues and peers") + _at(act)
