"""`isthmus lag`, `isthmus ledger` and `isthmus explain`: replication to other clusters, over all nodes. Read only.

docs/replication.md explains the terms; `node.services.replication_lag` and `node.services.explain_key` gather the
answers.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, Final
from urllib.parse import quote, unquote_to_bytes

import click

from isthmus.config.text import quantity
from isthmus.config.validation import check_peer_url
from isthmus.node.cli.admin_command import AdminCommand, admin_query
from isthmus.node.cli.credentials import endpoint_at
from isthmus.node.cli.exit_codes import CommandFailed, Exit
from isthmus.node.cli.node_listener import with_scheme
from isthmus.node.cli.output import (
    Row,
    TableSpec,
    column,
    echo_facts,
    echo_json,
    moment,
    no_proof,
    object_in,
    objects_in,
    printable,
)
from isthmus.node.cli.parameters import Duration, checking, split_bucket
from isthmus.node.cli.queue import echo_ledger
from isthmus.node.services.findings import AHEAD_MS
from isthmus.node.services.remote_lookup import other_side, with_other_sides
from isthmus.repl.model.keys import Key
from isthmus.repl.model.vclock import decode_clock


def _cluster(row: Row) -> Any:
    """The other cluster; a queue may belong to none yet."""
    return "none yet" if "uuid" in row and row["uuid"] is None else row.get("cluster")


def _proven(row: Row) -> str:
    """When a full-sync last proved that all arrived; a time ahead of the clock of the node that answers is unknown."""
    proven_ms, at_ms = row.get("proven_ms"), row.get("at_ms")
    if proven_ms is None:
        return no_proof(row)
    return "unknown" if isinstance(at_ms, int) and proven_ms > at_ms + AHEAD_MS else moment(proven_ms)


def _seconds(row: Row) -> Any:
    """How far it is behind, or at least; None: unknown."""
    seconds, least = row.get("seconds"), row.get("at_least_s")
    return f"at least {least}" if seconds is None and least is not None else seconds


LAGS: Final = TableSpec(
    ("cluster", _cluster),
    "queue",
    ("type", "bucket_type"),
    ("seconds", _seconds),
    "objects",
    column("bytes", leave=2),
    column("proven as of", _proven, leave=1),
    column("reason", text=True),
)
SENT: Final = TableSpec(
    ("to", _cluster), "queue", column("found", leave=9), column("eligible", leave=3), "acknowledged",
    column("collapsed", leave=6), column("collapsed_unseen", leave=7), column("vanished", leave=5),
    column("given_up", leave=1), column("handed_on", leave=8), "waiting", column("in_flight", leave=4),
    column("state", state=True), column("reason", text=True),
)  # fmt: skip
RECEIVED: Final = TableSpec(
    ("from", _cluster), "queue", "fetched", column("applied", leave=6), column("merged", leave=4),
    column("superseded", leave=5), column("rejected", leave=1), column("failed", leave=2),
    column("under_way", leave=3), column("state", state=True), column("reason", text=True),
)  # fmt: skip


@click.command("lag")
@click.option("--over", "over_ms", type=Duration(), help='Exit with 1 if a lag is above, such as "5s".')
@admin_query
def lag_command(over_ms: int | None, query: AdminCommand) -> None:
    """How far each other cluster is behind, by queue and bucket type: age in seconds of the oldest change that it has
    not acknowledged, and objects and bytes that wait. With --over: exit code 1 if a lag is above it, 3 if one is
    unknown."""
    answer = query.get("/admin/lag")
    rows = objects_in(answer, "lag")
    if query.json:
        echo_json(answer)
    else:
        LAGS.echo({**row, "at_ms": answer.get("at_ms")} for row in rows)
        if not rows:
            click.echo("no queue is registered: no change is sent in real time (`isthmus queue register`)")
        gaps = Counter(str(gap.get("queue")) for gap in objects_in(query.get("/admin/gaps"), "gaps"))
        for queue, count in sorted(gaps.items()):
            gaps_of = quantity(count, "gap")
            click.echo(printable(f"{queue}: {gaps_of} that no full-sync has proven yet (`isthmus gaps {queue}`)"))
    if over_ms is None:
        return
    # What is known of a row that is unknown as a whole counts, too: it is late by as much at least.
    known = [(row, row["seconds"], "") for row in rows if row.get("seconds") is not None]
    known += [(row, row["at_least_s"], "at least ") for row in rows if row.get("at_least_s") is not None]
    worst, seconds, least = max(known, key=lambda one: float(one[1]), default=({}, 0.0, ""))
    if 1000 * seconds > over_ms:
        sentence = f"queue {worst['queue']}, bucket type {worst['bucket_type']}: {least}{seconds:.1f} s behind"
        raise CommandFailed(Exit.DIFFERS, "lag", sentence)
    unknown = next((row for row in rows if row.get("seconds") is None), None)
    if unknown is not None:
        sentence = f"queue {unknown['queue']}: how far it is behind is not known: {unknown.get('reason')}"
        raise CommandFailed(Exit.UNAVAILABLE, "unknown", sentence)


@click.command("ledger")
@click.argument("name", required=False)
@admin_query
def ledger_command(name: str | None, query: AdminCommand) -> None:
    """The outcome of every change sent to and received from each other cluster. Exit code 1 if a ledger does not add
    up, 3 if that is unknown. A queue without a sink so far is `no-sink`, code 0.

    With NAME the numbers of this queue, by node, and whether the two sides agree.
    """
    if name is not None:
        echo_ledger(name, query)
        return
    answer = query.get("/admin/ledger")
    rows = objects_in(answer, "ledger")
    if query.json:
        echo_json(answer)
    else:
        for direction, table in (("sent", SENT), ("received", RECEIVED)):
            found = [row for row in rows if row.get("direction") == direction]
            if found:
                table.echo(found)
    off = [row for row in rows if row.get("closes") is False]
    if off:
        raise CommandFailed(Exit.DIFFERS, "ledger", f"queue {off[0]['queue']}: {off[0]['reason']}")
    unknown = next((row for row in rows if row.get("state") == "unknown"), None)
    if unknown is not None:
        sentence = f"queue {unknown['queue']}: whether its ledger closes is not known: {unknown['reason']}"
        raise CommandFailed(Exit.UNAVAILABLE, "unknown", sentence)


@click.command("explain")
@click.argument("bucket", metavar="[TYPE/]BUCKET")
@click.argument("object_key", metavar="KEY")
@click.option(
    "--other", multiple=True, metavar="URL", help="Client listener of another cluster; it is asked for the key."
)
@admin_query
@click.pass_context
def explain_command(
    context: click.Context, bucket: str, object_key: str, other: tuple[str, ...], query: AdminCommand
) -> None:
    """Where and when a key was accepted, its place in each queue, what the other side has, and what happens next. Names
    are percent-encoded where they are not plain text."""
    bucket_type, name = split_bucket(bucket)
    named = "&".join(
        f"{word}={quote(value, safe='')}"
        for word, value in (("type", bucket_type), ("bucket", name), ("key", object_key))
    )
    answer = query.get(f"/admin/explain?{named}")
    found = answer.get("object")
    ours = decode_clock(bytes.fromhex(found["clock"])) if isinstance(found, dict) else None
    remembered = answer.get("reaped_clock")
    reaped = decode_clock(bytes.fromhex(remembered)) if isinstance(remembered, str) else None
    key = Key(bucket_type.encode(), unquote_to_bytes(name), unquote_to_bytes(object_key))
    for url in other:
        with checking("--other"):
            checked = check_peer_url(with_scheme(url))
        if any(checked in (side.get("urls") or (side["url"],)) for side in answer.get("other_sides") or ()):
            continue  # a node has asked that cluster, with the credentials of its full-sync
        access = endpoint_at(context, (checked,)).access
        side = other_side(checked, key, ours, access, known=answer.get("known") is not False, reaped=reaped)
        answer = with_other_sides(answer, [*answer.get("other_sides", ()), {"fullsync": None, **side}])
    if query.json:
        echo_json(answer)
    else:
        _echo_explanation(answer, bucket_type, name, object_key)


def _echo_explanation(answer: dict[str, Any], bucket_type: str, bucket: str, object_key: str) -> None:
    facts: list[tuple[str, Any]] = [
        ("key", f"{bucket_type}/{bucket} {object_key}"),
        ("partition", f"{answer.get('partition')} (segment {answer.get('segment')}), led by {answer.get('leader')}"),
    ]
    found = answer.get("object")
    if not answer.get("known"):
        facts.append(("state", f"unknown: {answer.get('reason')}"))
    elif found is None:
        never = "deleted, and reaped" if answer.get("reaped_clock") else "never written, or reaped"
        facts.append(("state", f"not here: {never}"))
    else:
        what = "a tombstone" if found["tombstone"] else f"an object of {found['bytes']} bytes, its clock included"
        facts.append(("state", f"{what}, last modified {moment(found['last_modified_ms'])}"))
        whence = f", origin {printable(found['origin_cluster'])}" if found.get("origin_cluster") else ""
        facts.append(("changed here", f"offset {found['offset']}, {moment(found['applied_ms'])}{whence}"))
        facts += [("accepted", _dot(dot)) for dot in found["siblings"]]
        facts += [("has seen", _dot(dot)) for dot in found["seen"]]
    for row in answer.get("queues") or ():
        ahead = f", {row['ahead']} before it" if row.get("ahead") is not None else ""
        why = f": {row['reason']}" if row.get("reason") else ""
        facts.append(
            (f"queue {row['queue']}", f"{row['state']}{ahead}{why} (to {row['owner'] or 'none yet'}; {row['rule']})")
        )
    for row in answer.get("lower") or ():
        why = f": {row['reason']}" if row.get("reason") else ""
        priority = str(row["priority"]).replace("_", "-")
        facts.append((f"queue {row['queue']}", f"{row['state']} at the {priority} priority of node {row['node']}{why}"))
    silent = dict.fromkeys(answer.get("lower_unknown_at") or (), "does not answer")
    for node, why in {**silent, **object_in(answer, "unknown")}.items():
        what = "which bulk references and dead letters it has, and what its full-sync found, is not known"
        facts.append((f"node {node}", f"{why}: {what}"))
    for row in answer.get("dead_letters") or ():
        whence = f"queue {row['queue']} of {row['source_cluster']}, {moment(row['at_ms'])}"
        facts.append((f"dead letter {row['id']} of {row['node']}", f"{row['reason']}: {row['error']} ({whence})"))
    for node in answer.get("dead_letters_unknown_at") or ():
        facts.append(("node " + node, "cannot read its dead letters, see its log: what it refused is not known"))
    reap = answer.get("reap")
    if isinstance(reap, dict):
        facts.append(("reap", reap["waits"] or "it may go"))
    for row in answer.get("compared") or ():
        facts.append((f"full-sync {row['fullsync']} of {row['node']}", _compared(row)))
    for side in answer.get("other_sides") or ():
        facts.append((f"other side {side['url']}", f"{side['state']}{': ' + side['reason'] if side['reason'] else ''}"))
    echo_facts([*facts, ("next", answer.get("next"))])


def _compared(row: dict[str, Any]) -> str:
    """The newest full-sync check of one node, for the key's segment."""
    what = f"{row['verdict']}{': ' + row['difference'] if row.get('difference') else ''}"
    why = f" ({row['reason']})" if row.get("reason") else ""
    looked = f", compared {moment(row['at_ms'])}: {row['check']}" if row.get("at_ms") else ""
    since = "; it has changed here since" if row.get("changed_since") else ""
    proven = (
        f"; proven up to date as of {moment(row['proven_ms'])}" if row.get("proven_ms") else "; not proven by this node"
    )
    suspended = f"; suspended by {row['suspended']}" if row.get("suspended") else ""
    return printable(f"{what}{looked}{why}{since}{proven}{suspended}")


def _dot(dot: dict[str, Any]) -> str:
    when = f", {moment(dot['last_modified_ms'])}" if "last_modified_ms" in dot else ""
    if dot.get("uuid") is None:
        return printable(f"actor {dot.get('actor')} of a Riak, or of another program{when}")
    cluster = dot.get("cluster") or dot["uuid"]
    return f"cluster {cluster}, partition {dot['partition']}, epoch {dot['epoch']}, offset {dot['offset']}{when}"
