"""`isthmus queue`: the source queues of a cluster, and what operators may do with them.

Shows and asks what a node's admin listener offers; docs/queues.md says what it means.

`isthmus queue show|peek|ledger|gaps|test-filter` and `isthmus gaps`: what there is to know of source queues.

Reads only, but for `gaps --close`, which says that a full-sync has closed them. docs/queues.md tells what it means.

How `isthmus queue show` tells of one queue: facts in words, the three priorities as a table.

Pure: takes the document of /admin/queues and makes text of it. What is not there is said ("nobody", "none"); "unknown"
stands only for what could not be found out. What the words mean: docs/queues.md.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import click

from isthmus.config.text import no_such, quantity
from isthmus.config.units import parse_duration, parse_size
from isthmus.node.cli.admin_client import AdminClient, admin_option, whoami
from isthmus.node.cli.cluster import listed
from isthmus.node.cli.exit_codes import CommandFailed, Exit
from isthmus.node.cli.output import (
    NOTHING,
    cell,
    echo_facts,
    echo_json,
    echo_table,
    milliseconds,
    moment,
    output_option,
    printable,
)
from isthmus.node.cli.parameters import confirm, node_options, time_of

PRIORITIES: Final = (("real_time", "real time"), ("full_sync", "full-sync"), ("fold", "fold"))
PRIORITY_COLUMNS: Final = (
    "priority", "waiting", "in flight", "queued", "acknowledged", "collapsed", "vanished", "cleared",
)  # fmt: skip

COUNTED: Final = ("served", "batches", "acknowledged", "redelivered", "collapsed", "vanished")


def queue_facts(queue: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """(name, value) of what there is to say of a queue on the node that answered."""
    limits = queue["limits"]
    at = f" (at {moment(queue['waiting_at_ms'])})" if queue["waiting"] is not None else ""
    return [
        ("name", queue["name"]),
        ("node", queue["node"]),
        ("reason", queue["reason"]),
        ("filter", queue["filter"]),
        ("cascade", queue["cascade"]),
        ("overflow", queue["overflow"]),
        ("riak fetch", queue.get("riak_fetch")),
        ("owner", _owner(queue["owner"])),
        ("publishing", queue["publishing"]),
        ("serving", queue["serving"]),
        *(("suspended", _suspension(one)) for one in queue["suspensions"]),
        ("last decree", _decree(queue["decree"])),
        (
            "limits",
            (
                f"{quantity(limits['queue'], 'reference')}, {_held(limits['objects'])}, "
                f"{limits['object_bytes']} bytes an object"
            ),
        ),
        ("throttle", _throttle(queue["throttle"])),
        ("properties differ at", [f"{node}: {_differing(queue, node)}" for node in queue["properties_differ"]]),
        ("partitions led here", queue["partitions"]),
        ("waiting", None if queue["waiting"] is None else f"{queue['waiting']}{at}"),
        ("oldest", milliseconds(queue["oldest_age_ms"]) if queue["oldest_age_ms"] is not None else NOTHING),
        ("in memory", f"{quantity(queue['references_in_memory'], 'reference')}, {_held(queue['objects_in_memory'])}"),
        ("since the node began", ", ".join(f"{queue[name]} {name}" for name in COUNTED)),
        ("acknowledgements", f"{queue['late_acknowledgements']} late, {queue['refused_acknowledgements']} refused"),
        ("gaps", queue["gaps"]),
    ]


def priority_rows(queue: Mapping[str, Any]) -> list[Sequence[Any]]:
    """A row a priority; of real time the counts of all that went stand among the facts."""
    rows: list[Sequence[Any]] = []
    for name, title in PRIORITIES:
        one = queue["priorities"][name]
        words = (column.replace(" ", "_") for column in PRIORITY_COLUMNS[1:])
        rows.append((title, *(one.get(word, "") for word in words)))
    return rows


def _differing(queue: Mapping[str, Any], node: str) -> str:
    """What differs at a sink node; a node of an older version names bucket types alone."""
    rows = queue.get("property_differences", {}).get(node)
    if rows is None:
        return ", ".join(queue["properties_differ"][node])
    return "; ".join(_difference(**row) for row in rows)


def _difference(bucket_type: str, bucket: str | None, properties: Sequence[str], **_later: Any) -> str:
    if not properties:
        return bucket_type
    place = f"bucket type {bucket_type}" if bucket is None else f"bucket {bucket_type}/{bucket}"
    return f"{place}: {', '.join(properties)}"


def _held(objects: int) -> str:
    return quantity(objects, "whole object")


def _owner(owner: Mapping[str, Any] | None) -> str:
    if owner is None:
        return "nobody: no sink cluster has fetched yet, or it was released"
    since, by = moment(owner["since_ms"]), owner["by"]
    return f"{owner['cluster']} ({owner['uuid']}) since {since}, by {by}, version {owner['version']}"


def _act_text(one: Mapping[str, Any]) -> str:
    """Who, when and why of an operator's act."""
    why = f": {one['reason']}" if one.get("reason") else ""
    return f"by {one['by']} at {moment(one['at_ms'])}{why}"


def _suspension(one: Mapping[str, Any]) -> str:
    where = "on all nodes" if one["node"] is None else f"on {one['node']}"
    return f"{one['what']} {where}, {_act_text(one)}"


def _decree(decree: Mapping[str, Any] | None) -> str:
    return "none" if decree is None else f"{decree['what']}, version {decree['version']}, {_act_text(decree)}"


def _throttle(throttle: Mapping[str, Any]) -> str:
    configured, achieved = throttle["configured"], throttle["achieved"]
    limits = [f"{configured[name]} {name.split('_')[0]}/s" for name in configured if configured[name] is not None]
    done = f"{achieved['bytes_per_second']:.0f} bytes/s and {achieved['objects_per_second']:.1f} objects/s achieved"
    if not limits:
        return f"none; {done}"
    binds = f"{throttle['binding']} bind" if throttle["binding"] else "nothing binds"
    set_by = "" if throttle.get("set") is None else f", set {_act_text(throttle['set'])}"
    held = f"{throttle['throttled_seconds']:.1f} s throttled"
    return f"{' and '.join(limits)}{set_by}; {binds}; {done}; {held}"


NAME = click.argument("name")

LEDGER: Final = (
    "found", "eligible", "acknowledged", "collapsed", "collapsed_unseen", "vanished", "given_up", "handed_on",
    "waiting", "in_flight",
)  # fmt: skip


@click.command("show")
@NAME
@admin_option
@output_option
def show(name: str, admin: AdminClient, output: str) -> None:
    """All that is known of queue NAME on the node that answers: priorities, limits, throttle, suspensions."""
    queues = listed(admin.get("/admin/queues"), "queues")
    found = [queue for queue in queues if queue.get("name") == name]
    if not found:
        known = [str(queue.get("name")) for queue in queues]
        raise CommandFailed(Exit.REFUSED, "unknown-queue", no_such("queue", name, known))
    if output == "json":
        echo_json(found[0])
    else:
        echo_facts(queue_facts(found[0]))
        click.echo()
        echo_table(PRIORITY_COLUMNS, priority_rows(found[0]))


@click.command("peek")
@NAME
@click.option("--count", type=click.IntRange(1, 1000), default=20, show_default=True)
@admin_option
@output_option
def peek(name: str, count: int, admin: AdminClient, output: str) -> None:
    """The references of queue NAME that go next from the node that answers; takes nothing."""
    answer = admin.get(f"/admin/queues/{quote(name, safe='')}/peek?count={count}")
    if output == "json":
        echo_json(answer)
        return
    columns = ("bucket_type", "bucket", "key", "kind", "partition", "offset", "bytes")
    rows = [[r.get(c) for c in columns] + [moment(r.get("time_ms"))] for r in listed(answer, "references")]
    echo_table(("type", *columns[1:], "since"), rows)


@click.command("ledger")
@NAME
@admin_option
@output_option
def ledger(name: str, admin: AdminClient, output: str) -> None:
    """What became of every change that queue NAME was to give out, by node, and whether the two sides agree."""
    answer = admin.get(f"/admin/queues/{quote(name, safe='')}/ledger")
    if output == "json":
        echo_json(answer)
        return
    rows = []
    for node in listed(answer, "nodes"):
        found = node["ledger"] if isinstance(node.get("ledger"), dict) else {}
        closes = {True: "yes", False: f"NO, off by {found.get('off_by')}", None: "not known yet"}[found.get("closes")]
        if found.get("lost"):
            closes = f"NO, lost: {found['lost']}"
        numbers = [found.get(key) for key in LEDGER]
        if found.get("closes") is None:
            numbers[LEDGER.index("waiting")] = None  # memory holds some of it: how much waits is what is not known yet
        rows.append([node.get("node"), *numbers, closes, found.get("reason")])
    echo_table(("node", *(name.replace("_", " ") for name in LEDGER), "closes", "reason"), rows)


@click.command("gaps")
@click.argument("name", required=False)
@click.option("--close", "ids", multiple=True, metavar="ID", help="Close this one: a full-sync of its range was clean.")
@click.option("--by", default=whoami, show_default="USER@HOST", help="Who says so; logged.")
@admin_option
@output_option
def gaps_of_queues(name: str | None, ids: tuple[str, ...], by: str, admin: AdminClient, output: str) -> None:
    """What queues gave up and no full-sync has closed yet, of all nodes; of queue NAME only.

    With --close: code 1 where there is no such gap, or it still grows.
    """
    if ids:
        if name is None:
            raise click.UsageError("say of which queue the gaps are: isthmus queue gaps NAME --close ID")
        _close(admin, name, list(dict.fromkeys(ids)), by, output)
        return
    answer = admin.get("/admin/gaps" + (f"?queue={quote(name, safe='')}" if name else ""))
    if output == "json":
        echo_json(answer)
        return
    rows = []
    for gap in listed(answer, "gaps"):
        upto = "still grows" if gap.get("upto_ms") is None else moment(gap.get("upto_ms"))
        who = f"{gap.get('by') or ''} {gap.get('reason') or ''}".strip()
        since = "unknown" if gap.get("from_ms") == 0 else moment(gap.get("from_ms"))
        rows.append([*_extent(gap), since, upto, gap.get("what"), who])
    columns = ("queue", "id", "partition", "from", "up to", "at least", "at most", "since", "until", "what", "reason")
    echo_table(columns, rows)
    for node in answer.get("unknown") or ():
        click.echo(printable(f"node {node} does not answer: its gaps are not known"), err=True)
    untold = answer.get("unknown_partitions")
    for queue, partitions in untold.items() if isinstance(untold, dict) else ():
        numbers = ", ".join(map(str, partitions))
        click.echo(printable(f"queue {queue}: gaps of partitions {numbers} are not known now"), err=True)


def _close(admin: AdminClient, name: str, ids: list[str], by: str, output: str) -> None:
    """Close gaps. Code 1 when one of them is not there, or still grows; 3 when a node that might have it is silent."""
    answer = admin.post(f"/admin/queues/{quote(name, safe='')}/gaps/close", {"ids": ids, "by": by})
    if output == "json":
        echo_json(answer)
    else:
        click.echo(printable(f"queue {name}: {quantity(int(answer.get('closed') or 0), 'gap')} closed"))
    left, silent = len(ids) - int(answer.get("closed") or 0), answer.get("unknown") or ()
    if left > 0 and silent:
        sentence = f"{left} of {len(ids)} not closed, and {', '.join(map(str, silent))} does not answer: try again"
        raise CommandFailed(Exit.UNAVAILABLE, "unknown", sentence)
    if left > 0:
        sentence = f"{left} of {len(ids)} not closed: no such gap, or one that still grows (`isthmus gaps {name}`)"
        raise CommandFailed(Exit.DIFFERS, "unknown-gap", sentence)


@click.command("test-filter")
@NAME
@click.argument("bucket_type", metavar="TYPE")
@click.argument("bucket")
@click.argument("object_key", metavar="[KEY]", required=False)
@admin_option
@output_option
def filter_tested(
    name: str, bucket_type: str, bucket: str, object_key: str | None, admin: AdminClient, output: str
) -> None:
    """Would queue NAME offer a change of TYPE/BUCKET KEY in real time, and which rule decides? Rules look at type and
    bucket only, so KEY changes nothing. A bucket type that is not there is reported."""
    query = f"type={quote(bucket_type, safe='')}&bucket={quote(bucket, safe='')}"
    answer = admin.get(f"/admin/queues/{quote(name, safe='')}/filter?{query}")
    if output == "json":
        echo_json({**answer, "bucket_type": bucket_type, "bucket": bucket, "key": object_key})
        return
    verdict = "offered" if answer.get("offered") else "not offered"
    click.echo(printable(f"{verdict}: {answer.get('reason')} (filter: {answer.get('filter')})"))
    if answer.get("note"):
        click.echo(printable(f"note: {answer['note']}"))


def _extent(gap: dict[str, Any]) -> list[Any]:
    """Queue, id, and which changes: those of a lower priority have no partition and no offsets."""
    place = [gap.get(key) for key in ("partition", "from_offset", "upto_offset")]
    if gap.get("partition") is None and gap.get("id"):
        place = ["any", "", ""]
    elif gap.get("upto_ms") is None:
        place[2] = "grows"
    return [gap.get("queue"), gap.get("id"), *place, gap.get("count_at_least"), gap.get("count_at_most")]


POSITIONS = click.Path(exists=True, dir_okay=False, path_type=Path)
SERVING = click.option("--serving", is_flag=True, help="Giving out changes: they wait (the default).")
PUBLISHING = click.option("--publishing", is_flag=True, help="Making references: what comes is left out, as a gap.")
YES = click.option("--yes", is_flag=True, help="Do not ask.")
DRY_RUN = click.option("--dry-run", is_flag=True, help="Only show what would be left out.")
BY = click.option("--by", default=whoami, show_default="USER@HOST", help="Who does it; shown to others.")
REASON = click.option("--reason", default="", help="Why; shown to others.")


@click.group("queue")
def queue_group() -> None:
    """Look at source queues; register, suspend, limit, clear and release them; push references."""


for _command in (show, peek, ledger, gaps_of_queues, filter_tested):
    queue_group.add_command(_command)


@queue_group.command("list")
@click.option("--all", "everywhere", is_flag=True, help="The share of every node, not only of the one that answers.")
@admin_option
@output_option
def list_queues(everywhere: bool, admin: AdminClient, output: str) -> None:
    """Every queue with its owner, what waits and what is under way at the node that answers: of the partitions that it
    leads. With --all at every node."""
    answer = admin.get("/admin/queues/nodes" if everywhere else "/admin/queues")
    if output == "json":
        echo_json(answer)
        return
    columns = (
        "queue",
        "filter",
        "owner",
        "waiting",
        "repairs",
        "in flight",
        "oldest",
        "publishing",
        "serving",
        "reason",
    )
    if not everywhere:
        echo_table(("node", *columns), ([queue.get("node"), *_row(queue)] for queue in listed(answer, "queues")))
        return
    rows: list[list[Any]] = []
    for node in listed(answer, "nodes"):
        silent = "the node is gone: others lead its share" if node.get("gone") else "the node does not answer"
        queues = node["queues"] if isinstance(node.get("queues"), list) else [{"reason": silent}]
        rows += [[node.get("node"), *_row(queue)] for queue in queues]
    echo_table(("node", *columns), rows)


@queue_group.command("suspend")
@NAME
@SERVING
@PUBLISHING
@node_options
@YES
@DRY_RUN
@BY
@REASON
@admin_option
@output_option
def suspend(
    name: str,
    serving: bool,
    publishing: bool,
    node: str | None,
    yes: bool,
    dry_run: bool,
    by: str,
    reason: str,
    admin: AdminClient,
    output: str,
) -> None:
    """Give out no changes of queue NAME (they wait), or with --publishing make no references (what comes is left out),
    or with both do neither, until it is resumed, over restarts too. --publishing asks before."""
    wish = {"what": _what(serving, publishing), "node": node, "by": by, "reason": reason}
    sentence = f"{_whats(serving, publishing)} suspended"
    if publishing or dry_run:
        _planned_act(admin, output, name, "suspend", sentence, wish, yes=yes, dry_run=dry_run)
    else:
        _act(admin, output, name, "suspend", sentence, **wish)


@queue_group.command("resume")
@NAME
@SERVING
@PUBLISHING
@node_options
@BY
@admin_option
@output_option
def resume(
    name: str, serving: bool, publishing: bool, node: str | None, by: str, admin: AdminClient, output: str
) -> None:
    """Give out changes of queue NAME again, from its cursor on, or with --publishing make references again, or with
    both both."""
    sentence = f"{_whats(serving, publishing)} resumed"
    _act(admin, output, name, "resume", sentence, what=_what(serving, publishing), node=node, by=by)


@queue_group.command("clear")
@NAME
@YES
@DRY_RUN
@BY
@REASON
@admin_option
@output_option
def clear(name: str, yes: bool, dry_run: bool, by: str, reason: str, admin: AdminClient, output: str) -> None:
    """Give up what waits in queue NAME, at every priority and on all nodes: a gap, until a full-sync has closed it.
    Tells how much, and asks."""
    wish = {"by": by, "reason": reason}
    _planned_act(admin, output, name, "clear", "cleared", wish, yes=yes, dry_run=dry_run)


@queue_group.command("release")
@NAME
@click.option("--from", "start", default="0", show_default=True, metavar="0|now|TIME", help="Where the next begins.")
@YES
@DRY_RUN
@BY
@REASON
@admin_option
@output_option
def release(
    name: str, start: str, yes: bool, dry_run: bool, by: str, reason: str, admin: AdminClient, output: str
) -> None:
    """Take queue NAME from the cluster that owns it: the next that fetches owns it, for a minute not the same. TIME is
    written as 2026-02-03T04:05, which is UTC unless it names a zone. Tells what waits, and asks."""
    wish = {"from": _start(start), "by": by, "reason": reason}
    _planned_act(admin, output, name, "release", "released", wish, yes=yes, dry_run=dry_run)


@queue_group.command("register")
@NAME
@click.option("--from", "start", default="now", show_default=True, metavar="0|now|TIME", help="Where it begins.")
@click.option("--positions", "positions", type=POSITIONS, help="A seed's handover.json: it begins there instead.")
@click.option("--filter", "filter_", default="any", show_default=True, metavar="RULES", help="What it offers.")
@click.option("--cascade", is_flag=True, help="Offer also what came from another cluster.")
@click.option("--overflow", type=click.Choice(["replay", "discard"]), default="replay", show_default=True)
@click.option("--queue-limit", type=click.IntRange(1), help="References in memory.")
@click.option("--object-limit", type=click.IntRange(0), help="Whole objects in memory.")
@click.option("--object-size-limit", metavar="SIZE", help='Largest object that is kept whole, such as "200KB".')
@click.option("--riak-fetch", is_flag=True, help="For a Riak alone, which takes each change at most once.")
@BY
@REASON
@admin_option
@output_option
def register(
    name: str,
    start: str,
    positions: Path | None,
    filter_: str,
    cascade: bool,
    overflow: str,
    queue_limit: int | None,
    object_limit: int | None,
    object_size_limit: str | None,
    riak_fetch: bool,
    by: str,
    reason: str,
    admin: AdminClient,
    output: str,
) -> None:
    """Make queue NAME, on all nodes, from now on and over restarts. TIME is written as 2026-02-03T04:05, which is UTC
    unless it names a zone."""
    begins = {"from": _start(start)} if positions is None else {"positions": _positions(positions)}
    wish = {"name": name, **begins, "filter": filter_, "cascade": cascade, "overflow": overflow}
    limits = {"queue_limit": queue_limit, "object_limit": object_limit, "riak_fetch": riak_fetch or None}
    limits["object_size_limit"] = _size(object_size_limit, "--object-size-limit")
    answer = admin.post("/admin/queues/register", {**wish, **limits, "by": by, "reason": reason})
    _echo(answer, output, f"queue {name}: registered")
    _warn_of(answer)


@queue_group.command("set")
@NAME
@click.option("--filter", "filter_", metavar="RULES", help="What it offers from now on.")
@click.option("--cascade/--no-cascade", default=None, help="Offer also what came from another cluster, or not.")
@click.option("--overflow", type=click.Choice(["replay", "discard"]), help="What becomes of changes at the limit.")
@click.option("--queue-limit", type=click.IntRange(1), help="References in memory.")
@click.option("--object-limit", type=click.IntRange(0), help="Whole objects in memory.")
@click.option("--object-size-limit", metavar="SIZE", help='Largest object that is kept whole, such as "200KB".')
@click.option("--lease", metavar="TIME", help='How long a sink may take to acknowledge a batch, such as "30s".')
@click.option("--riak-fetch/--no-riak-fetch", default=None, help="For a Riak alone, or for a sink of Isthmus.")
@click.option("--from", "start", type=click.Choice(["0"]), help="Offer everything once more, instead of a gap.")
@click.option("--default", is_flag=True, help="Let the registration or the config files count again.")
@YES
@DRY_RUN
@BY
@REASON
@admin_option
@output_option
def set_queue(
    name: str,
    filter_: str | None,
    cascade: bool | None,
    overflow: str | None,
    queue_limit: int | None,
    object_limit: int | None,
    object_size_limit: str | None,
    lease: str | None,
    riak_fetch: bool | None,
    start: str | None,
    default: bool,
    yes: bool,
    dry_run: bool,
    by: str,
    reason: str,
    admin: AdminClient,
    output: str,
) -> None:
    """Give queue NAME another filter or other limits while it runs, on all nodes and over restarts; its cursors stay.
    Where it offers more than before, what it passed over until then is a gap. Another filter is told, and asked for."""
    values = {"filter": filter_, "cascade": cascade, "overflow": overflow, "queue_limit": queue_limit}
    values |= {"object_limit": object_limit, "object_size_limit": _size(object_size_limit, "--object-size-limit")}
    values |= {"lease_ms": _duration(lease, "--lease"), "riak_fetch": riak_fetch}
    wish: dict[str, Any] = {key: value for key, value in values.items() if value is not None}
    if default == bool(wish or start):
        raise click.UsageError("say what: --filter, --cascade, limits, --riak-fetch, --from 0; or --default alone")
    offers = default or start is not None or "filter" in wish or "cascade" in wish
    wish |= ({"default": True} if default else {}) | ({} if start is None else {"from": start})
    wish |= {"by": by, "reason": reason}
    _planned_act(admin, output, name, "set", "set", wish, yes=yes or not offers, dry_run=dry_run)


@queue_group.command("place")
@NAME
@click.option("--positions", "positions", type=POSITIONS, required=True, help="A seed's handover.json.")
@BY
@REASON
@admin_option
@output_option
def place(name: str, positions: Path, by: str, reason: str, admin: AdminClient, output: str) -> None:
    """Let queue NAME go on from exact offsets, below which everything is at its sink cluster already.

    `isthmus reconcile seed` records such offsets.
    """
    _act(admin, output, name, "place", "placed", positions=_positions(positions), by=by, reason=reason)


@queue_group.command("delist")
@NAME
@YES
@DRY_RUN
@BY
@REASON
@admin_option
@output_option
def delist(name: str, yes: bool, dry_run: bool, by: str, reason: str, admin: AdminClient, output: str) -> None:
    """There is no queue NAME any more, on all nodes, even if a config file has it. Tells what goes with it, and
    asks."""
    wish = {"by": by, "reason": reason}
    _planned_act(admin, output, name, "delist", "delisted", wish, yes=yes, dry_run=dry_run)


@queue_group.command("throttle")
@NAME
@click.option("--bytes", "size", metavar="SIZE", help='Payload bytes a second, such as "10MB"; 0: no limit.')
@click.option("--objects", type=click.IntRange(0), help="Changes a second; 0: no limit.")
@click.option("--default", "default", is_flag=True, help="Let the config file count again.")
@BY
@REASON
@admin_option
@output_option
def throttle(
    name: str,
    size: str | None,
    objects: int | None,
    default: bool,
    by: str,
    reason: str,
    admin: AdminClient,
    output: str,
) -> None:
    """What each node gives out of queue NAME in a second at most; of bytes and objects, what is not said stays."""
    if default != (size is None and objects is None):
        raise click.UsageError("say how much: --bytes, --objects, or both; or --default alone")
    wish = {"bytes_per_second": _size(size, "--bytes"), "objects_per_second": objects, "default": default}
    _act(admin, output, name, "throttle", "limits set", **wish, by=by, reason=reason)


@queue_group.command("push")
@NAME
@click.argument("bucket_type", metavar="TYPE")
@click.argument("bucket")
@click.argument("keys", nargs=-1, required=True, metavar="KEY...")
@click.option("--fold", is_flag=True, help="At the fold priority, below full-sync.")
@click.option("--percent", is_flag=True, help="BUCKET and keys are percent-encoded, for bytes that are no text.")
@BY
@admin_option
@output_option
def push(
    name: str,
    bucket_type: str,
    bucket: str,
    keys: tuple[str, ...],
    fold: bool,
    percent: bool,
    by: str,
    admin: AdminClient,
    output: str,
) -> Exit:
    """Send the objects of these keys once more by queue NAME, at the full-sync priority, whatever its filter says. Code
    3 when there was room for the first of them only. With --fold they go below the full-sync priority."""
    encoding = {"encoding": "percent"} if percent else {}
    wish = {"bucket_type": bucket_type, "bucket": bucket, "keys": list(keys), "fold": fold, "by": by, **encoding}
    answer = admin.post(f"/admin/queues/{quote(name, safe='')}/push", wish)
    refused = f"; {answer.get('refused')} refused: {answer.get('reason')}" if answer.get("refused") else ""
    queued = answer.get("queued")
    _echo(answer, output, f"queue {name}: {queued} reference{'s' * (queued != 1)} queued{refused}")
    return Exit.UNAVAILABLE if answer.get("refused") else Exit.OK


def _act(admin: AdminClient, output: str, name: str, act: str, sentence: str, **wish: Any) -> None:
    answer = admin.post(f"/admin/queues/{quote(name, safe='')}/{act}", wish)
    _echo(answer, output, f"queue {name}: {sentence}")


def _planned_act(
    admin: AdminClient,
    output: str,
    name: str,
    act: str,
    sentence: str,
    wish: dict[str, Any],
    *,
    yes: bool,
    dry_run: bool,
) -> None:
    """Show what the act would leave out, ask, and do it."""
    plan = {}
    if dry_run or not yes:
        plan = admin.post(f"/admin/queues/{quote(name, safe='')}/{act}", {**wish, "dry_run": True})
        effect = f"queue {name}: {'' if act == 'set' else act + ' '}{plan.get('effect')}"
        silent = ", ".join(str(node) for node in plan.get("silent") or ())
        effect += f" (no answer from {silent})" if silent else ""
        if dry_run:
            _echo(plan, output, effect)
            return
        confirm(yes, f"{printable(effect)}. Do it?", output)
    answer = admin.post(f"/admin/queues/{quote(name, safe='')}/{act}", wish)
    _echo(answer, output, f"queue {name}: {sentence}")
    _warn_of(answer)


def _what(serving: bool, publishing: bool) -> str | list[str]:
    """What "what" is in a request: a text, which every version understands, unless both are meant."""
    return ["serving", "publishing"] if serving and publishing else "publishing" if publishing else "serving"


def _whats(serving: bool, publishing: bool) -> str:
    found = _what(serving, publishing)
    return found if isinstance(found, str) else " and ".join(found)


def _warn_of(answer: dict[str, Any]) -> None:
    """What the node found odd and took all the same."""
    for note in answer.get("notes") or ():
        click.echo(printable(f"isthmus: warning: {note}"), err=True)


def _size(text: str | None, option: str) -> int | None:
    """Bytes, as a number or a size."""
    try:
        return None if text is None else int(text) if text.isdigit() else parse_size(text)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint=option) from error


def _duration(text: str | None, option: str) -> int | None:
    """Milliseconds."""
    try:
        return None if text is None else parse_duration(text)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint=option) from error


def _start(text: str) -> str | int:
    """What "from" is in a request."""
    if text in ("0", "now"):
        return text
    try:
        return time_of(text, "--from")
    except CommandFailed as error:
        raise CommandFailed(Exit.USAGE, "bad-input", f"{error}; or 0, or now") from None


def _positions(path: Path) -> dict[str, int]:
    """What "positions" is in a request."""
    try:
        raw = json.loads(path.read_bytes())
        found = raw["positions"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise click.BadParameter(
            f'{path} has no positions, an object such as {{"positions": {{"3": 1200}}}}: {error!r:.100}',
            param_hint="--positions",
        ) from error
    if not isinstance(found, dict) or not found:
        raise click.BadParameter(f"{path}: positions are of at least one partition", param_hint="--positions")
    return found


def _echo(answer: dict[str, Any], output: str, sentence: str) -> None:
    if output == "json":
        echo_json(answer)
    else:
        click.echo(printable(sentence))


def _row(queue: dict[str, Any]) -> list[Any]:
    """`owner` and `reason` may be null for none; everything else that is null is not known. The age is that of
    the oldest change that waits, so when nothing waits there is none."""
    owner = queue.get("owner")
    owner = "" if "owner" in queue and owner is None else owner.get("cluster") if isinstance(owner, dict) else owner
    plain = [queue.get("waiting"), _lower_waiting(queue), queue.get("in_flight")]
    age_ms = queue.get("oldest_age_ms")
    oldest = "" if age_ms is None and plain[0] == plain[2] == 0 else milliseconds(age_ms)
    states = [queue.get(key) for key in ("publishing", "serving")]
    return [queue.get("name"), queue.get("filter"), owner, *plain, oldest, *states, _reason(queue)]


def _lower_waiting(queue: dict[str, Any]) -> int | None:
    """References that wait at the full-sync and fold priorities."""
    priorities = queue.get("priorities")
    lower = [priorities.get(name) for name in ("full_sync", "fold")] if isinstance(priorities, dict) else []
    counts = [one.get("waiting") for one in lower if isinstance(one, dict)]
    known = [count for count in counts if isinstance(count, int)]
    return sum(known) if counts and len(known) == len(counts) else None


def _reason(queue: dict[str, Any]) -> str:
    """Why it is in its state; behind each suspension who made it, and when."""
    told = str(queue.get("reason") or "")
    for one in _suspensions(queue):
        words = f"{one.get('what')} suspended" + (f": {one['reason']}" if one.get("reason") else "")
        at = told.find(words) + len(words) if words in told else len(told)
        told = f"{told[:at]} (by {cell(one.get('by'))}, {moment(one.get('at_ms'))}){told[at:]}"
    return told


def _suspensions(queue: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Those that hold on the queue's node: of serving, and of publishing."""
    if isinstance(queue.get("suspended"), dict):
        yield queue["suspended"]
    for one in listed(queue, "suspensions"):
        here = one.get("node") is None or one.get("node") == queue.get("node")
        if one.get("what") == "publishing" and here and queue.get("publishing") == "suspended":
            yield one
            return
