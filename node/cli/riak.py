"""`isthmus riak`: Riaks that changes are fetched from, checks before one is added, and seeds. See docs/riak.md.

The links to their nodes are `isthmus sink`'s: it suspends and limits them, and has their dead letters.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final
from urllib.parse import quote

import click

from isthmus.config.text import clause
from isthmus.node.cli.admin_command import AdminCommand, admin_act, admin_query
from isthmus.node.cli.described_table import table_of
from isthmus.node.cli.exit_codes import CommandFailed, Exit
from isthmus.node.cli.output import (
    Row,
    attribution,
    cell,
    echo_facts,
    milliseconds,
    moment,
    object_in,
    objects_in,
    printable,
)
from isthmus.node.cli.parameters import Count, RateLimit, Size, split_bucket, with_options
from isthmus.node.cli.waiting import Waiter, wait_options
from isthmus.node.nouns.riak import RiakRow, links_in_words, seed_in_words
from isthmus.node.nouns.sink import CheckedLine
from isthmus.node.services.riak_check import NOT_BY_HTTP
from isthmus.repl.model.errors import BadInput

QUEUE: Final = "isthmus"
"""The name of the queue in the page's examples, and so the default."""


@click.group("riak")
def riak_group() -> None:
    """Fetch changes from a Riak, and bring all of its keys here once. Suspend, limit and look at its links with
    `isthmus sink`."""


RIAKS: Final = table_of(RiakRow)


@riak_group.command("list", short_help="Every Riak that is fetched from, and its seed.")
@admin_query
def list_riaks(query: AdminCommand) -> None:
    """Every Riak that changes are fetched from: the links of the node that answers, and its newest seed."""
    query.echo_rows(query.get("/admin/riaks"), "riaks", RIAKS)


@riak_group.command("status", short_help="One Riak: its links, and how far its seed is.")
@click.argument("name")
@admin_query
def status(name: str, query: AdminCommand) -> None:
    """One Riak: its nodes, the links of the node that answers, what did not arrive, and how far its seed is."""
    riak = _riak_of(query.get("/admin/riaks"), name)
    if query.echo_json(riak):
        return
    seed = riak.get("seed")
    echo_facts(
        (
            ("name", riak.get("name")),
            ("queue", riak.get("queue")),
            ("nodes", ", ".join(map(str, riak.get("urls") or ()))),
            ("bucket types", "all" if riak.get("bucket_types") == "*" else riak.get("bucket_types")),
            ("set", attribution(riak["set"]) if isinstance(riak.get("set"), dict) else "by the config"),
            ("links", links_in_words(riak)),
            *((("cannot be used", riak["unusable"]),) if riak.get("unusable") else ()),
            ("left out", riak.get("left_out")),
            ("answers lost", riak.get("answers_lost")),
            ("changes lost", riak.get("lost")),
            ("seed", seed_in_words(riak) or "none"),
        )
    )
    if isinstance(seed, dict):
        echo_facts(_seed_facts(seed))


def _seed_facts(seed: Row) -> Sequence[tuple[str, Any]]:
    at = seed.get("current")
    current = "/".join(map(str, at)) if isinstance(at, list) else "none"
    keys = f", {seed.get('current_done')} of {seed['current_keys']} keys" if seed.get("current_keys") else ""
    left = f", {milliseconds(seed['left_ms'])} left" if seed.get("left_ms") is not None else ""
    facts = [
        ("seed's node", seed.get("node")),
        ("seed's way", "lists of keys" if seed.get("way") == "keys" else "the Riak's queue"),
        ("seed began", f"{moment(seed.get('began_ms'))}{left}"),
        ("buckets", f"{seed.get('buckets_done')} of {cell(seed.get('buckets'))}; at {current}{keys}"),
        _seed_keys(seed),
    ]
    facts += [("note", note) for note in seed.get("notes") or ()]
    facts += [("notes left out", seed["notes_left_out"])] if seed.get("notes_left_out") else []
    return [*facts, ("waits for", seed["error"])] if seed.get("error") else facts


def _seed_keys(seed: Row) -> tuple[str, str]:
    """By the queue, keys are sent again where they did not arrive, and clocks are compared; by lists of keys, each
    object has an outcome here."""
    if seed.get("way") == "keys":
        return "keys", f"{seed.get('keys')} fetched, {seed.get('refused')} refused"
    return "keys", f"{seed.get('keys')} sent; {seed.get('compared')} compared, {seed.get('missing')} missing"


def _riak_of(answer: Row, name: str) -> dict[str, Any]:
    riaks = objects_in(answer, "riaks")
    found = next((one for one in riaks if one.get("name") == name), None)
    if found is None:
        there = ", ".join(str(one.get("name")) for one in riaks) or "none"
        raise CommandFailed(Exit.REFUSED, "bad-input", f"there is no Riak {name!r}; there are: {there}")
    return found


access_options: Final = with_options(
    click.option("--queue", default=QUEUE, show_default=True, help="The queue's name there (replrtq_srcqueue)."),
    click.option("--bucket-types", metavar="NAME,...", help="Only these bucket types; default: all."),
    click.option("--peer-user", "user", metavar="NAME", help="The user to send there by basic authentication."),
    click.option(
        "--peer-password-file", "password_file", metavar="PATH", help="File with its password, on every node."
    ),
    click.option("--peer-ca", "authority", metavar="PATH", help="File with authorities for https://, on every node."),
)

CHECKS: Final = table_of(CheckedLine)


@riak_group.command("check", short_help="Test a Riak before it is added.")
@click.argument("urls", metavar="URL...", nargs=-1, required=True)
@access_options
@admin_query
def check(urls: tuple[str, ...], query: AdminCommand, **access: str | None) -> Exit:
    """Test, from the node that answers, whether a Riak with nodes at URL... could be fetched from, and what of its
    settings does not fit: version, queue, nodes, bucket types, allow_mult and dvv_enabled. Nothing is taken and nothing
    changes. Exit code 1 when a line fails, 3 when one is unknown, except delete_mode, which no request tells."""
    answer = query.post("/admin/riaks/check", urls=",".join(urls), **access)
    query.echo_rows(answer, "checks", CHECKS)
    return _exit_of(objects_in(answer, "checks"))


def _exit_of(rows: Sequence[Row]) -> Exit:
    states = {row.get("state") for row in rows if row.get("what") != NOT_BY_HTTP}
    return Exit.DIFFERS if "fail" in states else Exit.UNAVAILABLE if "unknown" in states else Exit.OK


@riak_group.command("add", short_help="Fetch from a Riak.")
@click.argument("name")
@click.argument("urls", metavar="URL...", nargs=-1, required=True)
@access_options
@click.option("--workers", type=Count(0, 256), help="Most at once on each node; 0: no limit of its own.")
@click.option("--bytes", "size", type=RateLimit(Size(), "isthmus sink suspend"), help="Bytes a second of each node.")
@click.option("--objects", type=RateLimit(Count(0), "isthmus sink suspend"), help="Changes a second of each node.")
@admin_act(reason=True, yes=True)
def add(
    name: str,
    urls: tuple[str, ...],
    workers: int | None,
    size: int | None,
    objects: int | None,
    act: AdminCommand,
    **access: str | None,
) -> None:
    """Fetch from a Riak, to be called NAME, on all nodes and over restarts. URL...: all of its nodes. It is first
    tested as by `isthmus riak check`; if a line fails, it asks for confirmation."""
    nodes = ",".join(urls)
    if not act.yes:
        rows = objects_in(act.admin.post("/admin/riaks/check", {"urls": nodes, **access}), "checks")
        failed = [row for row in rows if row.get("state") == "fail"]
        for row in failed:
            right = f"; right: {cell(row['right'])}" if row.get("right") else ""
            click.echo(printable(f"{cell(row.get('what'))}: {cell(row.get('found'))}{right}"), err=True)
        if failed:
            act.confirm(f"Changes would be lost or refused: {clause(len(failed), 'check', 'fails', 'fail')}. Add it?")
    answer = act.post(
        "/admin/riaks/add",
        name=name,
        urls=nodes,
        workers=workers,
        bytes_per_second=size,
        objects_per_second=objects,
        **access,
    )
    act.echo(answer, f"riak: fetches from {name}")


@riak_group.command("remove", short_help="Stop fetching from a Riak.")
@click.argument("name")
@admin_act(reason=True)
def remove(name: str, act: AdminCommand) -> None:
    """Stop fetching from a Riak, on all nodes and over restarts, even if a config file lists it. Its changes wait in
    its queues until those overflow; what was fetched is stored."""
    act.echo(act.post(f"{_path(name)}/remove"), f"riak: fetches no more from {name}")


@riak_group.command("seed", short_help="Bring all keys of a Riak here once.")
@click.argument("name")
@click.option("--bucket-type", metavar="T", help="Only this bucket type.")
@click.option("--bucket", metavar="[TYPE/]BUCKET", help="Only this bucket; percent-encoded if need be.")
@click.option("--by-keys", is_flag=True, help="By lists of keys, for a Riak before 2.9.1.")
@click.option("--stop", is_flag=True, help="Stop the seed that runs.")
@wait_options
@admin_act(reason=True)
def seed(
    name: str,
    bucket_type: str | None,
    bucket: str | None,
    by_keys: bool,
    stop: bool,
    wait: bool,
    timeout_ms: int,
    act: AdminCommand,
) -> Exit:
    """Have a Riak send all its keys, bucket by bucket, and compare the clocks: this cluster has then what it had at the
    beginning, and its changes since. The node that answers runs it; one that was stopped, or whose node went, goes on
    when it is ordered again. Without --wait it returns at once; `isthmus riak status NAME` shows how far it is. Code 1
    when keys are missing at the end, or objects were refused."""
    if stop:
        if bucket_type or bucket or by_keys or wait:
            raise BadInput("--stop: give nothing else")
        act.echo(act.post(f"{_path(name)}/seed/stop"), f"riak: the seed from {name} is stopped")
        return Exit.OK
    if bucket is not None:
        kind, bucket = split_bucket(bucket)
        if bucket_type not in (None, kind):
            raise BadInput(f"--bucket {kind}/{bucket} is not of --bucket-type {bucket_type}")
        bucket_type = kind
    way = "keys" if by_keys else "queue"
    answer = act.post(f"{_path(name)}/seed", way=way, bucket_type=bucket_type, bucket=bucket)
    if not wait:
        act.echo(answer, f"riak: seeds from {name} (isthmus riak status {name})")
        return Exit.OK
    waiter = Waiter(timeout_ms, quiet=act.json)
    found: dict[str, Any] = {}

    def lacking() -> str:
        found.update(object_in(_riak_of(act.get("/admin/riaks"), name), "seed"))
        state = found.get("state")
        if state in ("failed", "stopped"):
            raise CommandFailed(Exit.DIFFERS, str(state), f"the seed is {state}: {cell(found.get('error'))}")
        return "" if state == "done" else seed_in_words({"seed": found})

    waiter.until("the seed's end", lacking)
    keys, missing, refused = found.get("keys"), found.get("missing"), found.get("refused")
    act.echo(found, f"riak: seeded {keys} keys from {name}; {missing} missing, {refused} refused")
    return Exit.DIFFERS if missing or refused else Exit.OK


def _path(name: str) -> str:
    return f"/admin/riaks/{quote(name, safe='')}"
