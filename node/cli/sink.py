"""`isthmus sink`: what this cluster fetches from others; suspending, limiting, and what was refused for good.

Shows and asks what a node's admin listener offers; the rules are kept in `sink`, and told in docs/sinks.md.

`isthmus sink dead-letters`: changes of other clusters that one node's sink refused for good.

They lie on the node that fetched them, so `--admin` says whose are meant. What they are: docs/sinks.md.
"""

from __future__ import annotations

from typing import Any, Final

import click

from isthmus.config.units import parse_size
from isthmus.node.cli.admin_client import AdminClient, admin_option
from isthmus.node.cli.cluster import listed
from isthmus.node.cli.exit_codes import CommandFailed, Exit
from isthmus.node.cli.output import (
    cell,
    echo_facts,
    echo_json,
    echo_table,
    milliseconds,
    moment,
    output_option,
    printable,
)
from isthmus.node.cli.parameters import confirm, node_options
from isthmus.node.cli.queue import BY, REASON

IDS = click.argument("ids", metavar="[ID]...", nargs=-1, type=click.IntRange(1))
YES = click.option("--yes", is_flag=True, help="Do not ask before all are dropped.")

IDS_AT_ONCE: Final = 1_000
"""Letters of one request to the node; more are asked for in several."""

ALL = click.option("--all", "everything", is_flag=True, help="All of them.")


@click.group("dead-letters")
def dead_letters_group() -> None:
    """Look at changes that were refused for good; push them again, or drop them."""


@dead_letters_group.command("list")
@admin_option
@output_option
def list_letters(admin: AdminClient, output: str) -> None:
    """Every dead letter that this node keeps, the oldest first: what it refused for good, and why."""
    answer = admin.get("/admin/sink/dead-letters")
    if output == "json":
        echo_json(answer)
        return
    columns = ("id", "at", "queue", "source", "type", "bucket", "key", "bytes", "kept", "tries", "reason", "error")
    rows = []
    for letter in listed(answer, "dead_letters"):
        key = letter.get("key")
        parts = key if isinstance(key, list) and len(key) == 3 else [None, None, None]
        plain = [letter.get(name) for name in ("size_bytes", "object_kept", "tries", "reason", "error")]
        where = [letter.get("queue"), letter.get("source_cluster")]
        rows.append([letter.get("id"), moment(letter.get("at_ms")), *where, *parts, *plain])
    echo_table(columns, rows)


@dead_letters_group.command("retry")
@IDS
@ALL
@BY
@admin_option
@output_option
def retry(ids: tuple[int, ...], everything: bool, by: str, admin: AdminClient, output: str) -> Exit:
    """Push dead letters again. What is taken now is off the list; code 1 when one was not. Each has a request of its
    own, since it may wait for its source, or for a leader, as long as a request has."""
    _chosen(ids, everything)
    asked = tuple(dict.fromkeys(ids)) if ids else _kept_text(admin)
    retried: list[dict[str, Any]] = []
    try:
        for number in asked:
            answer = admin.post("/admin/sink/dead-letters/retry", {"ids": [number], "by": by})
            retried += (found := listed(answer, "retried"))
            for letter in found if output != "json" else ():
                why = f": {cell(letter.get('error'))}" if letter.get("error") else ""
                click.echo(f"{letter.get('id')}: {cell(letter.get('outcome') or letter.get('reason'))}{why}")
    except CommandFailed as error:
        sentence = f"dead letter {number}, after {len(retried)} of {len(asked)}: {error}"
        raise CommandFailed(error.exit_code, error.reason, sentence) from error
    finally:
        if output == "json":
            echo_json({"retried": retried})
    taken = sum(letter.get("outcome") in ("applied", "superseded", "merged") for letter in retried)
    if everything and output != "json":
        click.echo(f"taken: {taken} of {len(asked)}")
    return Exit.OK if taken == len(asked) else Exit.DIFFERS


@dead_letters_group.command("drop")
@IDS
@ALL
@YES
@BY
@admin_option
@output_option
def drop(ids: tuple[int, ...], everything: bool, yes: bool, by: str, admin: AdminClient, output: str) -> None:
    """Forget dead letters. The change stays what it is at its source; full-sync may find that the clusters differ. With
    --all their number is told, and asked about; what comes meanwhile stays."""
    _chosen(ids, everything)
    if everything:
        ids = _kept_text(admin)
        if ids:
            confirm(yes, f"Drop all {len(ids)} dead letters of this node?", output)
    asked, dropped = sorted(set(ids)), 0
    for start in range(0, len(asked), IDS_AT_ONCE):
        wish = {"ids": asked[start : start + IDS_AT_ONCE], "by": by}
        dropped += int(admin.post("/admin/sink/dead-letters/drop", wish).get("dropped") or 0)
    if output == "json":
        echo_json({"dropped": dropped})
    else:
        click.echo(f"dropped: {dropped}" + (f" of {len(asked)}" if everything else ""))
    left = len(asked) - dropped
    if left > 0 and not everything:
        click.echo(f"{left} of {len(asked)} are not kept by this node: letters lie on the node that fetched", err=True)


def _kept_text(admin: AdminClient) -> tuple[int, ...]:
    """The ids of all that the node keeps."""
    kept = listed(admin.get("/admin/sink/dead-letters"), "dead_letters")
    return tuple(letter["id"] for letter in kept if type(letter.get("id")) is int)


def _chosen(ids: tuple[int, ...], everything: bool) -> None:
    if bool(ids) == everything:
        raise CommandFailed(Exit.USAGE, "bad-input", "give the ids of dead letters, or --all")


QUEUE = click.option("--queue", help="Only fetches from the queue of this name.")
PEER = click.option("--peer", metavar="URL", help="Only fetches from this peer.")
DEFAULT = click.option("--default", "forget", is_flag=True, help="Let the config files count again.")

OUTCOMES: Final = ("applied", "superseded", "merged", "rejected")


@click.group("sink")
def sink_group() -> None:
    """Look at sinks; suspend, resume and limit them."""


sink_group.add_command(dead_letters_group)


@sink_group.command("list")
@click.option(
    "--all", "everywhere", is_flag=True, help="Of every node of the cluster, not only of the one that answers."
)
@admin_option
@output_option
def list_sinks(everywhere: bool, admin: AdminClient, output: str) -> None:
    """Every queue and peer that the node that answers fetches from, with outcomes and lag; with --all every node."""
    answer = admin.get("/admin/sink/nodes" if everywhere else "/admin/sink")
    if output == "json":
        echo_json(answer)
        return
    columns = ("queue", "peer", "from", "state", "delay", *OUTCOMES, "lag p50", "lag p99", "reason", "last error")
    if not everywhere:
        echo_table(("node", *columns), ([answer.get("node"), *_row(sink)] for sink in listed(answer, "sinks")))
        return
    rows: list[list[Any]] = []
    for node in listed(answer, "nodes"):
        sinks = listed(node["sink"], "sinks") if isinstance(node.get("sink"), dict) else [{}]
        rows += [[node.get("node"), *_row(sink)] for sink in sinks]
    echo_table(("node", *columns), rows)


@sink_group.command("show")
@admin_option
@output_option
def show(admin: AdminClient, output: str) -> None:
    """One node's sink as a whole: workers, limits and which one binds, what came from each source cluster."""
    answer = admin.get("/admin/sink")
    if output == "json":
        echo_json(answer)
        return
    workers, throttle = _inner(answer, "workers"), _inner(answer, "throttle")
    letters, achieved = _inner(answer, "dead_letters"), _inner(throttle, "achieved")
    echo_facts(
        (
            ("node", answer.get("node")),
            ("state", f"{answer.get('state')} {answer.get('reason') or ''}".strip()),
            ("workers", f"{workers.get('count')}, {workers.get('busy')} busy"),
            ("workers per peer", workers.get("peer_limit")),
            ("workers per queue", _per_queue(workers.get("queue_limits"))),
            *(("peer that cannot be used", _unusable(one)) for one in listed(answer, "peers_unusable")),
            ("limit", _rates(_inner(throttle, "configured"), "none")),
            ("binding", throttle.get("binding") or ""),
            ("achieved", _rates(achieved, "0")),
            ("throttled", milliseconds(1000 * throttle.get("throttled_seconds", 0))),
            ("limits set", _set_by(answer.get("limits_set"))),
            ("dead letters", _kept(letters)),
        )
    )
    columns = ("source", "queue", "fetched", *OUTCOMES, "failed", "under way", "last")
    keys = ("source_cluster", "queue", "fetched", *OUTCOMES, "failed", "under_way")
    sources = [s for s in answer.get("sources", ()) if isinstance(s, dict)]
    if sources:
        echo_table(columns, ([*(s.get(key) for key in keys), moment(s.get("last_batch_ms"))] for s in sources))


@sink_group.command("conflicts")
@click.option("--count", type=click.IntRange(1, 10_000), default=100, show_default=True, help="How many at most.")
@admin_option
@output_option
def conflicts(count: int, admin: AdminClient, output: str) -> None:
    """Newest changes that the node that answers fetched and that were concurrent with what was here, newest first: key,
    peer, siblings since, and what each side had seen."""
    answer = admin.get(f"/admin/sink/conflicts?count={count}")
    if output == "json":
        echo_json(answer)
        return
    columns = ("at", "queue", "source", "peer", "key", "siblings", "ours had seen", "theirs had seen")
    rows = listed(answer, "conflicts")
    echo_table(columns, (_conflict(row) for row in rows))
    dropped = answer.get("dropped")
    if dropped:
        click.echo(f"{dropped} of {answer.get('noted')} since this node began are not kept (sink.conflicts)")


@sink_group.command("suspend")
@QUEUE
@PEER
@node_options
@BY
@REASON
@admin_option
@output_option
def suspend(
    queue: str | None, peer: str | None, node: str | None, by: str, reason: str, admin: AdminClient, output: str
) -> None:
    """Start no new fetch until resumed, over restarts too; running ones finish. Without options: of all."""
    wish = {"queue": queue, "peer": peer, "node": node, "by": by, "reason": reason}
    _echo(admin.post("/admin/sink/suspend", wish), output, f"{_what(queue, peer, node)}: suspended")


@sink_group.command("resume")
@QUEUE
@PEER
@node_options
@BY
@admin_option
@output_option
def resume(queue: str | None, peer: str | None, node: str | None, by: str, admin: AdminClient, output: str) -> None:
    """Fetch again. Without options: from all."""
    wish = {"queue": queue, "peer": peer, "node": node, "by": by, "reason": ""}
    _echo(admin.post("/admin/sink/resume", wish), output, f"{_what(queue, peer, node)}: resumed")


@sink_group.command("add-peer")
@click.argument("url")
@click.argument("queue")
@click.option("--cluster", default="", help="The cluster that must answer there; its certificate must name it.")
@click.option("--peer-token-file", metavar="PATH", help="On every node of this cluster: the token to show there.")
@BY
@REASON
@admin_option
@output_option
def add_peer(
    queue: str,
    url: str,
    cluster: str,
    peer_token_file: str | None,
    by: str,
    reason: str,
    admin: AdminClient,
    output: str,
) -> None:
    """Fetch from QUEUE at URL, a node of another cluster, on all nodes, from now on and over restarts. `isthmus sink
    check` says before whether it would work."""
    wish = {"queue": queue, "url": url, "cluster": cluster, "token_file": peer_token_file, "by": by, "reason": reason}
    _echo(admin.post("/admin/sink/peers/add", wish), output, f"sink: fetches from queue {queue} at {url}")


@sink_group.command("check")
@click.argument("url")
@click.argument("queue")
@click.option("--cluster", default="", help="The cluster that must answer there; its certificate must name it.")
@click.option("--peer-token-file", metavar="PATH", help="On the node that is asked: the token to show there.")
@admin_option
@output_option
def check(url: str, queue: str, cluster: str, peer_token_file: str | None, admin: AdminClient, output: str) -> Exit:
    """Look, before it is configured, whether a link to QUEUE at URL, a node of another cluster, would work: from the
    node that is asked, with its TLS. Nothing is fetched and nothing changes. It looks at the
    token, the owner, the filter, bucket types, properties and clocks. Exit code 1 when a line fails, 3 when one
    is unknown."""
    wish = {"queue": queue, "url": url, "cluster": cluster, "token_file": peer_token_file}
    answer = admin.post("/admin/sink/check", wish)
    rows = listed(answer, "checks")
    if output == "json":
        echo_json(answer)
    else:
        echo_table(
            ("check", "state", "found", "right"),
            ([r.get(k) for k in ("what", "state", "found", "right")] for r in rows),
        )
    states = {row.get("state") for row in rows}
    return Exit.DIFFERS if "fail" in states else Exit.UNAVAILABLE if "unknown" in states else Exit.OK


@sink_group.command("remove-peer")
@click.argument("url")
@click.argument("queue")
@BY
@REASON
@admin_option
@output_option
def remove_peer(queue: str, url: str, by: str, reason: str, admin: AdminClient, output: str) -> None:
    """Fetch from QUEUE at URL no more, on all nodes, from now on and over restarts, though a config file may list it.
    Changes wait at the source; nothing is lost."""
    wish = {"queue": queue, "url": url, "by": by, "reason": reason}
    _echo(admin.post("/admin/sink/peers/remove", wish), output, f"sink: fetches no more from queue {queue} at {url}")


@sink_group.command("set-workers")
@click.argument("count", type=click.IntRange(1, 256), required=False)
@click.option("--per-peer", type=click.IntRange(0, 256), help="Most at one peer, up to COUNT; 0: an equal share.")
@click.option("--queue", help="Most that may be busy with this queue, of the node's; --default: no limit of its own.")
@DEFAULT
@node_options
@BY
@REASON
@admin_option
@output_option
def set_workers(
    count: int | None,
    per_peer: int | None,
    queue: str | None,
    forget: bool,
    node: str | None,
    by: str,
    reason: str,
    admin: AdminClient,
    output: str,
) -> None:
    """Let COUNT workers fetch at once on each node, from now on and over restarts. A --per-peer above the workers of a
    node comes to as many as it has."""
    wish: dict[str, Any]
    if queue is not None:
        if per_peer is not None or (count is None) != forget:
            raise CommandFailed(Exit.USAGE, "bad-input", "--queue: give COUNT, or --default, and no --per-peer")
        wish = {"queue": queue, "workers": count, "forget": forget, "node": node, "by": by, "reason": reason}
        sentence = f"queue {queue}{_at(node)}: " + ("no limit of its own" if forget else f"at most {count} workers")
        _echo(admin.post("/admin/sink/limits", wish), output, sentence)
        return
    if (count is None and per_peer is None) != forget:
        raise CommandFailed(Exit.USAGE, "bad-input", "give COUNT, --per-peer, or both; or --default alone")
    if count is not None and per_peer is not None and per_peer > count:
        sentence = f"--per-peer is at most COUNT, {count}: more of them there are not; 0 is an equal share"
        raise CommandFailed(Exit.USAGE, "bad-input", sentence)
    wish = {"workers": count, "per_peer": per_peer}
    if forget:
        wish = {"workers": 1, "per_peer": 0, "forget": True}
    wish |= {"node": node, "by": by, "reason": reason}
    answer = admin.post("/admin/sink/limits", wish)
    workers = _inner(answer, "workers")
    numbers = f"{workers.get('count')} workers, {workers.get('peer_limit')} per peer"
    _echo(
        answer, output, f"sink{_at(node)}: {'as the config says' if forget else 'set'}; {answer.get('node')}: {numbers}"
    )


@sink_group.command("throttle")
@click.option("--bytes", "size", metavar="RATE", help='Bytes a second, such as "5MB"; 0: no limit.')
@click.option("--objects", type=click.IntRange(0), help="Changes a second; 0: no limit.")
@click.option("--off", is_flag=True, help="Neither limit.")
@DEFAULT
@node_options
@BY
@REASON
@admin_option
@output_option
def throttle(
    size: str | None,
    objects: int | None,
    off: bool,
    forget: bool,
    node: str | None,
    by: str,
    reason: str,
    admin: AdminClient,
    output: str,
) -> None:
    """Limit what each node fetches a second, from now on and over restarts."""
    if (size is not None or objects is not None) + off + forget != 1:
        raise CommandFailed(Exit.USAGE, "bad-input", "give --bytes, --objects, or both; or --off; or --default")
    wish: dict[str, Any] = {"bytes_per_second": _rate(size), "objects_per_second": objects}
    if off or forget:
        wish = {"bytes_per_second": 0, "objects_per_second": 0, "forget": forget}
    wish |= {"node": node, "by": by, "reason": reason}
    answer = admin.post("/admin/sink/limits", wish)
    configured = _inner(_inner(answer, "throttle"), "configured")
    _echo(answer, output, f"sink{_at(node)}: limit set; {answer.get('node')}: {_rates(configured, 'none')}")


def _rate(text: str | None) -> int | None:
    if text is None:
        return None
    try:
        return 0 if text == "0" else parse_size(text.removesuffix("/s"))
    except ValueError as error:
        raise CommandFailed(Exit.USAGE, "bad-input", f"--bytes: {error}") from None


def _rates(rates: dict[str, Any], nothing: str) -> str:
    size, objects = rates.get("bytes_per_second"), rates.get("objects_per_second")
    parts = [f"{size / 1_000_000:.3g} MB/s"] if size else []
    parts += [f"{objects:.0f} changes/s"] if objects else []
    return ", ".join(parts) or nothing


def _set_by(value: Any) -> str:
    if not isinstance(value, dict):
        return "by the config"
    reason = f": {value['reason']}" if value.get("reason") else ""
    return f"by {value.get('by')}, {moment(value.get('at_ms'))}{reason}"


def _conflict(row: dict[str, Any]) -> list[Any]:
    key = row.get("key")
    name = " ".join(map(str, key)) if isinstance(key, list) else None
    clocks = [_seen(_inner(row, side)) for side in ("ours", "theirs")]
    plain = [row.get(key) for key in ("queue", "source_cluster", "peer")]
    return [moment(row.get("at_ms")), *plain, name, row.get("siblings"), *clocks]


def _seen(clock: dict[str, Any]) -> str:
    """Dots as CLUSTER/PARTITION@EPOCH:OFFSET, the cluster by the first of its uuid."""
    found = [one for one in clock.get("seen") or () if isinstance(one, dict)]
    return ", ".join(
        f"{str(one.get('uuid') or one.get('actor'))[:8]}/{one.get('partition')}@{one.get('epoch')}:{one.get('offset')}"
        for one in found
    )


def _per_queue(limits: Any) -> str:
    """Queues with a limit of their own."""
    found = limits if isinstance(limits, dict) else {}
    return ", ".join(f"{queue} {count}" for queue, count in sorted(found.items()))


def _unusable(peer: dict[str, Any]) -> str:
    return f"queue {peer.get('queue')} at {peer.get('url')}: {peer.get('reason')}"


def _kept(letters: dict[str, Any]) -> str:
    if letters.get("kept") is None:
        return "unknown: their file cannot be read (the node's log says why)"
    return f"{letters['kept']} kept, {letters.get('given_up')} given up"


def _inner(answer: dict[str, Any], name: str) -> dict[str, Any]:
    value = answer.get(name)
    return value if isinstance(value, dict) else {}


def _at(node: str | None) -> str:
    return "" if node is None else f" on node {node}"


def _what(queue: str | None, peer: str | None, node: str | None) -> str:
    parts = [f"queue {queue}"] * (queue is not None) + [f"peer {peer}"] * (peer is not None)
    return "sink, " + (" at ".join(parts) if parts else "all queues and peers") + _at(node)


def _echo(answer: dict[str, Any], output: str, sentence: str) -> None:
    if output == "json":
        echo_json(answer)
    else:
        click.echo(printable(sentence))


def _row(sink: dict[str, Any]) -> list[Any]:
    """`last_error` is null when there was none; everything else that is null is not known. The reason of a
    suspension says who made it."""
    error = "" if "last_error" in sink and sink["last_error"] is None else sink.get("last_error")
    times = [milliseconds(sink.get(key)) for key in ("delay_ms", "lag_ms_p50", "lag_ms_p99")]
    outcomes = [sink.get(key) for key in OUTCOMES]
    reason = sink.get("reason") or ""
    names = [sink.get(key) for key in ("queue", "peer", "from", "state")]
    return [*names, times[0], *outcomes, *times[1:], reason, error]
