"""`isthmus queue` and `isthmus gaps`: the source queues of a cluster. docs/replication.md explains them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import click

from isthmus.config.text import no_such, quantity
from isthmus.node.cli.admin_command import AdminCommand, admin_act, admin_query
from isthmus.node.cli.described_table import table_of
from isthmus.node.cli.exit_codes import CommandFailed, Exit
from isthmus.node.cli.output import (
    NOTHING,
    Row,
    TableSpec,
    cell,
    echo_facts,
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
    Duration,
    RateLimit,
    Size,
    add_old_name,
    of_node,
    time_of,
    type_and_bucket,
    with_options,
)
from isthmus.node.nouns.queue import QueueShare
from isthmus.repl.model.errors import BadInput

NAME = click.argument("name")
POSITIONS_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
SERVING = click.option("--serving", is_flag=True, help="Serving changes to sinks; they wait meanwhile (the default).")
PUBLISHING = click.option("--publishing", is_flag=True, help="Recording new changes, which become a gap meanwhile.")
LIMITS = with_options(
    click.option("--queue-limit", type=Count(1), help="References in memory."),
    click.option("--object-limit", type=Count(0), help="Whole objects in memory."),
    click.option("--object-size-limit", type=Size(), help='Largest object that is kept whole, such as "200KB".'),
)


@click.group("queue")
def queue_group() -> None:
    """Look at source queues; register, suspend, limit, clear and release them; push references."""


def _path(name: str, action: str) -> str:
    return f"/admin/queues/{quote(name, safe='')}/{action}"


# --- list ---


def _oldest_age(queue: Row) -> str:
    """Age of the oldest change that waits; "-" when none waits."""
    age_ms = queue.get("oldest_age_ms")
    return "" if age_ms is None and queue.get("waiting") == queue.get("in_flight") == 0 else milliseconds(age_ms)


def _reason(queue: Row) -> str:
    """Why the queue is in its state; who suspended it, and when, follows each suspension."""
    text = str(queue.get("reason") or "")
    for one in _suspensions(queue):
        words = f"{one.get('what')} suspended" + (f": {one['reason']}" if one.get("reason") else "")
        at = text.find(words) + len(words) if words in text else len(text)
        text = f"{text[:at]} (by {cell(one.get('by'))}, {moment(one.get('at_ms'))}){text[at:]}"
    return text


def _suspensions(queue: Row) -> Iterator[dict[str, Any]]:
    """Suspensions in force on the queue's node: of serving, and of publishing."""
    if isinstance(queue.get("suspended"), dict):
        yield queue["suspended"]
    for one in objects_in(queue, "suspensions"):
        here = one.get("node") is None or one.get("node") == queue.get("node")
        if one.get("what") == "publishing" and here and queue.get("publishing") == "suspended":
            yield one
            return


QUEUES: Final = table_of(QueueShare, without={"partitions"}, oldest_age_ms=_oldest_age, reason=_reason)


@queue_group.command("list", short_help="Every queue on every node: owner, what waits.")
@ONE_NODE
@admin_query
def list_queues(node: str | None, query: AdminCommand) -> None:
    """Every queue on every node, with its owner, what waits and what is in flight: a node counts the partitions that it
    leads."""
    rows = _of_nodes(query, node)
    if query.json:
        failed = [row for row in rows if FAILED in row]
        answer = {"queues": [row for row in rows if "name" in row and FAILED not in row], "silent": _silent_nodes(rows)}
        echo_json({**answer, "failed": failed} if failed else answer)
        return
    QUEUES.echo(rows)


FAILED: Final = "failed"
"""In a row of a queue whose share a node could not show: why."""


def _of_nodes(query: AdminCommand, node: str | None) -> list[Row]:
    """A row for each queue of each node; of a node that does not answer, or cannot show a share, one that says so."""
    rows: list[Row] = []
    for each in of_node(objects_in(query.get("/admin/queues/nodes"), "nodes"), node):
        silent = "the node is gone: others lead its share" if each.get("gone") else "the node does not answer"
        queues = objects_in(each, "queues") if isinstance(each.get("queues"), list) else [{"reason": silent}]
        rows += [{**queue, "node": each.get("node")} for queue in queues]
        rows += [
            {"node": each.get("node"), "name": name, FAILED: why, "reason": f"cannot be shown: {why}"}
            for name, why in object_in(each, "failed").items()
        ]
    return rows


def _silent_nodes(rows: Sequence[Row]) -> dict[str, Any]:
    """Node without an answer -> why."""
    return {str(row.get("node")): row.get("reason") for row in rows if "name" not in row}


# --- show ---

COUNTED: Final = ("served", "batches", "acknowledged", "redelivered", "collapsed", "vanished")
PRIORITY_NAMES: Final = {"real_time": "real time", "full_sync": "full-sync", "fold": "fold"}
PRIORITY_COUNTS: Final = ("waiting", "in_flight", "queued", "acknowledged", "collapsed", "vanished", "cleared")
PRIORITIES: Final = TableSpec("priority", *PRIORITY_COUNTS)


@queue_group.command("show", short_help="Everything about a queue, on each node.")
@NAME
@ONE_NODE
@admin_query
def show(name: str, node: str | None, query: AdminCommand) -> None:
    """Everything about queue NAME: owner, filter, limits, suspensions, and what waits, in sum and on each node. With
    --node its counters there."""
    rows = _of_nodes(query, node)
    found = [queue for queue in rows if queue.get("name") == name and FAILED not in queue]
    silent = _silent_nodes(rows)
    silent |= {str(row["node"]): row["reason"] for row in rows if FAILED in row and row["name"] == name}
    if not found:
        known = sorted({str(queue["name"]) for queue in rows if "name" in queue})
        if silent and not known:
            verb = "does not answer" if len(silent) == 1 else "do not answer"
            sentence = f"{', '.join(silent)} {verb}: whether queue {name} exists is not known; try again"
            raise CommandFailed(Exit.UNAVAILABLE, "unknown", sentence)
        raise CommandFailed(Exit.REFUSED, "unknown-queue", no_such("queue", name, known))
    if query.json:
        whole = {"name": name, "waiting": _sum_of(found, silent, "waiting"), "silent": silent, "nodes": found}
        echo_json(whole if node is None else found[0])
        return
    if node is None:
        echo_facts([fact for fact in queue_facts(found[0]) if fact[0] not in OF_ONE_NODE])
        counted = ("waiting", "in_flight", "gaps")
        echo_facts((what.replace("_", " "), _sum_of(found, silent, what)) for what in counted)
        click.echo()
        SHARES.echo([*found, *({"node": each, "reason": why} for each, why in silent.items())])
    else:
        echo_facts(queue_facts(found[0]))
    click.echo()
    PRIORITIES.echo(
        {
            "priority": shown,
            **{
                count: ""
                if count not in found[0]["priorities"][priority]
                else _sum_of([each["priorities"][priority] for each in found], silent, count)
                for count in PRIORITY_COUNTS
            },
        }
        for priority, shown in PRIORITY_NAMES.items()
    )


OF_ONE_NODE: Final = (
    "node", "reason", "publishing", "serving", "partitions led here", "waiting", "oldest", "in memory",
    "since the node began", "acknowledgements", "gaps",
)  # fmt: skip
"""Facts that differ between the nodes of a queue."""

SHARES: Final = table_of(
    QueueShare, without={"name", "filter", "owner", "priorities"}, oldest_age_ms=_oldest_age, reason=_reason
)


def _sum_of(rows: Sequence[Row], silent: Mapping[str, Any], key: str) -> int | None:
    """The sum over all nodes; None where one does not answer, or does not know."""
    numbers = [row.get(key) for row in rows]
    known = [number for number in numbers if isinstance(number, int)]
    return None if silent or len(known) < len(numbers) else sum(known)


def queue_facts(queue: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """The facts of `queue show`, from one queue's document of /admin/queues."""
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


def _differing(queue: Mapping[str, Any], node: str) -> str:
    """Properties that differ at a sink node; a node of an older version lists bucket types only."""
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
        return "none: no sink cluster has fetched yet, or it was released"
    since, by = moment(owner["since_ms"]), owner["by"]
    return f"{owner['cluster']} ({owner['uuid']}) since {since}, by {by}, version {owner['version']}"


def _act_text(one: Mapping[str, Any]) -> str:
    """The operator who made a change, the time and the reason."""
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


# --- peek, ledger, gaps, test-filter ---

REFERENCES: Final = TableSpec(
    ("type", "bucket_type"),
    "bucket",
    "key",
    "kind",
    "partition",
    "offset",
    "bytes",
    ("since", moment_of("time_ms")),
)


@queue_group.command("peek", short_help="The next references; takes none of them.")
@NAME
@click.option("--count", type=Count(1, 1000), default=20, show_default=True)
@admin_query
def peek(name: str, count: int, query: AdminCommand) -> None:
    """The next references of queue NAME at the node that answers; takes none of them."""
    query.echo_rows(query.get(_path(name, f"peek?count={count}")), "references", REFERENCES)


LEDGER: Final = (
    "found", "eligible", "acknowledged", "collapsed", "collapsed_unseen", "vanished", "given_up", "handed_on",
    "waiting", "in_flight",
)  # fmt: skip


def _closes(row: Row) -> str:
    """The state of a ledger: its counts add up, or not, or that is not known yet."""
    if row.get("lost"):
        return f"NO, lost: {row['lost']}"
    return {True: "yes", False: f"NO, off by {row.get('off_by')}", None: "not known yet"}[row.get("closes")]


def _ledger_waiting(row: Row) -> Any:
    """Waiting changes; unknown until the ledger is known to close, since memory holds a part of them."""
    return None if row.get("closes") is None else row.get("waiting")


LEDGERS: Final = TableSpec(
    "node", *((n.replace("_", " "), _ledger_waiting) if n == "waiting" else n for n in LEDGER), ("closes", _closes),
    "reason",
)  # fmt: skip


@click.command("ledger")
@NAME
@admin_query
def ledger(name: str, query: AdminCommand) -> None:
    """The outcome of every change that queue NAME was to give out, by node, and whether the two sides agree."""
    echo_ledger(name, query)


add_old_name(queue_group, "ledger", ledger)


def echo_ledger(name: str, query: AdminCommand) -> None:
    """Print the ledger of a queue, a row for each node."""
    answer = query.get(_path(name, "ledger"))
    if query.echo_json(answer):
        return
    LEDGERS.echo({**object_in(node, "ledger"), "node": node.get("node")} for node in objects_in(answer, "nodes"))


def _extent(place: int, key: str) -> Any:
    """A column of a gap's extent: a gap of bulk references has neither partition nor offsets."""

    def value(gap: Row) -> Any:
        if gap.get("partition") is None and gap.get("id"):
            return "any" if place == 0 else ""
        if place == 2 and gap.get("upto_ms") is None:
            return "grows"
        return gap.get(key)

    return value


GAPS: Final = TableSpec(
    "queue",
    "id",
    ("partition", _extent(0, "partition")),
    ("from", _extent(1, "from_offset")),
    ("up to", _extent(2, "upto_offset")),
    ("at least", "count_at_least"),
    ("at most", "count_at_most"),
    ("since", lambda gap: "unknown" if gap.get("from_ms") == 0 else moment(gap.get("from_ms"))),
    ("until", lambda gap: "still grows" if gap.get("upto_ms") is None else moment(gap.get("upto_ms"))),
    (
        "types",
        lambda gap: ", ".join(gap.get("bucket_types") or ()) or ("any" if gap.get("partition") is None else None),
    ),
    "what",
    ("reason", lambda gap: f"{gap.get('by') or ''} {gap.get('reason') or ''}".strip()),
)


@click.command("gaps")
@click.argument("name", required=False)
@click.option("--close", "ids", multiple=True, metavar="ID", help="Close this gap: a full-sync of its range was clean.")
@admin_act()
def gaps_of_queues(name: str | None, ids: tuple[str, ...], act: AdminCommand) -> None:
    """Changes that queues gave up and no full-sync has closed yet, on all nodes; with NAME of this queue only.

    With --close: code 1 if there is no such gap, or it still grows.
    """
    if ids:
        if name is None:
            raise click.UsageError("name the queue of the gaps: isthmus gaps NAME --close ID")
        _close(act, name, list(dict.fromkeys(ids)))
        return
    answer = act.get("/admin/gaps" + (f"?queue={quote(name, safe='')}" if name else ""))
    act.echo_rows(answer, "gaps", GAPS)
    if act.json:
        return
    for node in answer.get("unknown") or ():
        click.echo(printable(f"node {node} does not answer: its gaps are not known"), err=True)
    for queue, partitions in object_in(answer, "unknown_partitions").items():
        numbers = ", ".join(map(str, partitions))
        click.echo(printable(f"queue {queue}: gaps of partitions {numbers} are not known now"), err=True)


add_old_name(queue_group, "gaps", gaps_of_queues)


def _close(act: AdminCommand, name: str, ids: list[str]) -> None:
    """Close gaps. Code 1 when one does not exist or still grows; 3 when a node that might have it does not answer."""
    answer = act.post(_path(name, "gaps/close"), ids=ids)
    closed = int(answer.get("closed") or 0)
    act.echo(answer, f"queue {name}: {quantity(closed, 'gap')} closed")
    left, silent = len(ids) - closed, answer.get("unknown") or ()
    if left > 0 and silent:
        sentence = f"{left} of {len(ids)} not closed, and {', '.join(map(str, silent))} does not answer: try again"
        raise CommandFailed(Exit.UNAVAILABLE, "unknown", sentence)
    if left > 0:
        sentence = f"{left} of {len(ids)} not closed: no such gap, or one that still grows (`isthmus gaps {name}`)"
        raise CommandFailed(Exit.DIFFERS, "unknown-gap", sentence)


@queue_group.command("test-filter", short_help="Whether a change would be offered, and by which rule.")
@NAME
@click.argument("where", metavar="TYPE/BUCKET")
@click.argument("object_key", metavar="[KEY]", required=False)
@admin_query
def test_filter(name: str, where: str, object_key: str | None, query: AdminCommand) -> None:
    """Test whether queue NAME would offer a change of TYPE/BUCKET KEY in real time, and which rule decides. Rules look
    at type and bucket only: KEY makes no difference. A bucket type that does not exist is reported."""
    bucket_type, bucket = type_and_bucket(where)
    change = f"type={quote(bucket_type, safe='')}&bucket={quote(bucket, safe='')}"
    answer = query.get(_path(name, f"filter?{change}"))
    verdict = "offered" if answer.get("offered") else "not offered"
    names = {"bucket_type": bucket_type, "bucket": bucket, "key": object_key}
    query.echo({**answer, **names}, f"{verdict}: {answer.get('reason')} (filter: {answer.get('filter')})")
    if answer.get("note") and not query.json:
        click.echo(printable(f"note: {answer['note']}"))


# --- changes ---


@queue_group.command("suspend")
@NAME
@SERVING
@PUBLISHING
@admin_act(nodes=True, asks=True, reason=True)
def suspend(name: str, serving: bool, publishing: bool, act: AdminCommand) -> None:
    """Stop serving queue NAME: changes wait. With --publishing, stop recording new changes instead: they become a gap,
    and what waits is still served. With --serving --publishing, stop both.

    Stays in force over restarts until `isthmus queue resume`. --publishing asks for confirmation.
    """
    sentence = f"{_parts_text(serving, publishing)} suspended"
    asks = publishing or act.dry_run
    _change(act, name, "suspend", sentence, {"what": _parts(serving, publishing)}, asks=asks)


@queue_group.command("resume")
@NAME
@SERVING
@PUBLISHING
@admin_act(nodes=True)
def resume(name: str, serving: bool, publishing: bool, act: AdminCommand) -> None:
    """Serve queue NAME again, from its cursor on. With --publishing, record new changes again instead; with --serving
    --publishing, do both."""
    sentence = f"{_parts_text(serving, publishing)} resumed"
    _change(act, name, "resume", sentence, {"what": _parts(serving, publishing)}, asks=False)


def _parts(serving: bool, publishing: bool) -> str | list[str]:
    """The field "what" of a request: a text, which every version understands, unless both are meant."""
    return ["serving", "publishing"] if serving and publishing else "publishing" if publishing else "serving"


def _parts_text(serving: bool, publishing: bool) -> str:
    found = _parts(serving, publishing)
    return found if isinstance(found, str) else " and ".join(found)


@queue_group.command("clear", short_help="Give up what waits: a gap until a full-sync.")
@NAME
@admin_act(asks=True, reason=True)
def clear(name: str, act: AdminCommand) -> None:
    """Give up everything that waits in queue NAME, at every priority and on all nodes: a gap, until a full-sync has
    closed it. Shows how much waits, and asks for confirmation."""
    _change(act, name, "clear", "cleared", {})


@queue_group.command("release", short_help="Release a queue from the cluster that owns it.")
@NAME
@click.option(
    "--from", "start", default="0", show_default=True, metavar="0|now|TIME", help="Where the next owner begins."
)
@admin_act(asks=True, reason=True)
def release(name: str, start: str, act: AdminCommand) -> None:
    """Release queue NAME from the cluster that owns it: the next cluster that fetches becomes the owner, except the old
    one for a minute. TIME is written as 2026-02-03T04:05, which is UTC unless it names a zone. Shows what waits, and
    asks for confirmation."""
    _change(act, name, "release", "released", {"from": _start(start)})


@queue_group.command("register")
@NAME
@click.option("--from", "start", default="now", show_default=True, metavar="0|now|TIME", help="Where it begins.")
@click.option("--positions", type=POSITIONS_FILE, help="Begin at the positions of a seed's handover.json instead.")
@click.option(
    "--filter", "filter_", default="any", show_default=True, metavar="RULES", help="Which changes the queue offers."
)
@click.option("--cascade", is_flag=True, help="Also offer changes that came from another cluster.")
@click.option("--overflow", type=click.Choice(["replay", "discard"]), default="replay", show_default=True)
@LIMITS
@click.option("--riak-fetch", is_flag=True, help="For a Riak as sink, which takes each change at most once.")
@admin_act(reason=True)
def register(
    name: str,
    start: str,
    positions: Path | None,
    filter_: str,
    riak_fetch: bool,
    act: AdminCommand,
    **settings: Any,
) -> None:
    """Create queue NAME on all nodes, kept over restarts. TIME is written as 2026-02-03T04:05, which is UTC unless it
    names a zone."""
    begins = {"from": _start(start)} if positions is None else {"positions": _positions(positions)}
    settings |= {"riak_fetch": riak_fetch or None}
    answer = act.post("/admin/queues/register", name=name, **begins, filter=filter_, **settings)
    act.echo(answer, f"queue {name}: registered")
    _echo_notes(answer)


@queue_group.command("set", short_help="Change filter and limits while it runs.")
@NAME
@click.option("--filter", metavar="RULES", help="Which changes the queue offers from now on.")
@click.option("--cascade/--no-cascade", default=None, help="Also offer changes that came from another cluster, or not.")
@click.option("--overflow", type=click.Choice(["replay", "discard"]), help="Action on changes above the limit.")
@LIMITS
@click.option(
    "--lease", "lease_ms", type=Duration(), help='How long a sink may take to acknowledge a batch, such as "30s".'
)
@click.option("--riak-fetch/--no-riak-fetch", default=None, help="For a Riak as sink, or for a sink of Isthmus.")
@click.option("--from", "start", type=click.Choice(["0"]), help="Offer everything once more, instead of a gap.")
@click.option("--default", is_flag=True, help="Use the registration or the config files again.")
@admin_act(asks=True, reason=True)
def set_queue(
    name: str,
    start: str | None,
    default: bool,
    act: AdminCommand,
    **settings: Any,
) -> None:
    """Give queue NAME another filter or other limits while it runs, on all nodes and over restarts; its cursors stay.
    If it now offers more, what it skipped until then is a gap. A change of the filter is shown and asks for
    confirmation."""
    body = {key: value for key, value in settings.items() if value is not None}
    if default == bool(body or start):
        raise click.UsageError("give --filter, --cascade, limits, --riak-fetch, --from 0; or --default alone")
    offers_other = default or start is not None or "filter" in body or "cascade" in body
    body |= ({"default": True} if default else {}) | ({} if start is None else {"from": start})
    _change(act, name, "set", "set", body, asks=offers_other or act.dry_run)


@queue_group.command("place", short_help="Move the cursors to exact offsets.")
@NAME
@click.option("--positions", type=POSITIONS_FILE, required=True, help="A seed's handover.json.")
@admin_act(reason=True)
def place(name: str, positions: Path, act: AdminCommand) -> None:
    """Move the cursors of queue NAME to exact offsets: its sink cluster has everything below them already.

    `isthmus reconcile seed` records such offsets.
    """
    _change(act, name, "place", "placed", {"positions": _positions(positions)}, asks=False)


@queue_group.command("delist", short_help="Remove a queue from all nodes, files or not.")
@NAME
@admin_act(asks=True, reason=True)
def delist(name: str, act: AdminCommand) -> None:
    """Remove queue NAME from all nodes, even if a config file has it. Shows what is lost with it, and asks for
    confirmation."""
    _change(act, name, "delist", "delisted", {})


STOP: Final = "isthmus queue suspend NAME"
"""What stops a queue."""


def _limits(configured: Row) -> str:
    """The limits in force, both of them."""
    size, objects = configured.get("bytes_per_second"), configured.get("objects_per_second")
    if not (size or objects):
        return "no limit"
    of_bytes = f"{size} bytes/s" if size else "no limit of bytes"
    return f"{of_bytes}, {f'{objects} objects/s' if objects else 'no limit of objects'}"


@queue_group.command("throttle")
@NAME
@click.option("--bytes", "size", type=RateLimit(Size(), STOP), help='Payload bytes a second: "10MB"; none: no limit.')
@click.option("--objects", type=RateLimit(Count(0), STOP), help="Changes a second; none: no limit.")
@click.option("--off", is_flag=True, help="Neither limit.")
@click.option("--default", is_flag=True, help="Use the limits of the config file again.")
@admin_act(reason=True)
def throttle(name: str, size: int | None, objects: int | None, off: bool, default: bool, act: AdminCommand) -> None:
    """Limit the rate at which each node serves queue NAME. The limit that is not given, of bytes or of objects,
    stays."""
    if (size is not None or objects is not None) + off + default != 1:
        raise click.UsageError("give --bytes, --objects, or both; or --off; or --default")
    bytes_per_second = 0 if off else size
    limits = {"bytes_per_second": bytes_per_second, "objects_per_second": 0 if off else objects, "default": default}
    answer = act.post(_path(name, "throttle"), **limits)
    rows = (row for row in objects_in(answer, "queues") if row.get("name") == name)
    now = object_in(object_in(next(rows, {}), "throttle"), "configured")
    act.echo(answer, f"queue {name}: {'as configured' if default else 'set'}, on each node: {_limits(now)}")
    _echo_notes(answer)


@queue_group.command("push", short_help="Send the objects of these keys once more.")
@NAME
@click.argument("where", metavar="TYPE/BUCKET")
@click.argument("keys", nargs=-1, required=True, metavar="KEY...")
@click.option("--fold", is_flag=True, help="At the fold priority, below full-sync.")
@click.option("--percent", is_flag=True, help="BUCKET and keys are percent-encoded, for bytes that are not UTF-8.")
@admin_act()
def push(name: str, where: str, keys: tuple[str, ...], percent: bool, act: AdminCommand, **place: Any) -> Exit:
    """Send the objects of these keys again by queue NAME, at full-sync priority, regardless of its filter. Code 3 if
    the queue had space for only the first of them."""
    bucket_type, bucket = type_and_bucket(where)
    place |= {"bucket_type": bucket_type, "bucket": bucket} | ({"encoding": "percent"} if percent else {})
    answer = act.post(_path(name, "push"), keys=list(keys), **place)
    refused = f"; {answer.get('refused')} refused: {answer.get('reason')}" if answer.get("refused") else ""
    queued = answer.get("queued")
    act.echo(answer, f"queue {name}: {queued} reference{'s' * (queued != 1)} queued{refused}")
    return Exit.UNAVAILABLE if answer.get("refused") else Exit.OK


def _change(
    act: AdminCommand, name: str, action: str, done: str, body: Mapping[str, Any], *, asks: bool = True
) -> None:
    """Change a queue: where it `asks`, show first what the change would leave out, and ask."""
    path = _path(name, action)
    if asks and (act.dry_run or not act.yes):
        plan = act.plan(path, **body)
        effect = f"queue {name}: {'' if action == 'set' else action + ' '}{plan.get('effect')}"
        silent = ", ".join(str(node) for node in plan.get("silent") or ())
        effect += f" (no answer from {silent})" if silent else ""
        if act.dry_run:
            act.echo(plan, effect)
            return
        act.confirm(f"{printable(effect)}. Do it?")
    answer = act.post(path, **body)
    act.echo(answer, f"queue {name}: {done}")
    _echo_notes(answer)


def _echo_notes(answer: Row) -> None:
    """Warnings of the node about a change that it accepted."""
    for note in answer.get("notes") or ():
        click.echo(printable(f"isthmus: warning: {note}"), err=True)


# --- parameters ---


def _start(text: str) -> str | int:
    """The field "from" of a request."""
    if text in ("0", "now"):
        return text
    try:
        return time_of(text, "--from")
    except BadInput as error:
        raise BadInput(f"{error}; or 0, or now") from None


def _positions(path: Path) -> dict[str, int]:
    """The field "positions" of a request, from a file."""
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
