"""`isthmus queue show|peek|ledger|gaps|test-filter` and `isthmus gaps`: what there is to know of source queues.

Reads only, but for `gaps --close`, which says that a full-sync has closed them. docs/queues.md tells what it means.
"""

from __future__ import annotations

from typing import Any, Final
from urllib.parse import quote

import click

from node.cli.cluster import listed
from node.cli.exits import CommandFailed, Exit
from node.cli.output import echo_facts, echo_json, echo_table, moment, output_option, printable
from node.cli.queue_facts import PRIORITY_COLUMNS, priority_rows, queue_facts
from node.cli.remote import AdminClient, admin_option, whoami
from node.suggestions import no_such

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
        click.echo(printable(f"queue {name}: {answer.get('closed')} gaps closed"))
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
