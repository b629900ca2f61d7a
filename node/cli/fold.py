"""`isthmus fold`: queries and actions over all keys, page by page, over every partition of a bucket type.

The node that answers passes each page on to the partition's leader. No state is held between two pages, so Ctrl-C ends
a fold, and `--from PARTITION:PLACE` goes on from there. docs/fullsync.md explains kinds and scopes.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, Final
from urllib.parse import quote

import click

from isthmus.config.text import quantity
from isthmus.config.units import format_size
from isthmus.node.cli.admin_client import AdminClient, admin_option
from isthmus.node.cli.exit_codes import CommandFailed, Exit
from isthmus.node.cli.output import (
    TableSpec,
    echo_facts,
    echo_json,
    echo_table,
    moment_of,
    objects_in,
    output_option,
    percent,
    printable,
)
from isthmus.node.cli.parameters import (
    BY,
    DRY_RUN,
    YES,
    Count,
    Size,
    confirm,
    split_bucket,
    time_of,
    with_options,
)
from isthmus.repl.machine import machine
from isthmus.repl.model.errors import BadInput
from isthmus.repl.model.keys import DEFAULT_BUCKET_TYPE

SEGMENTS: Final = 1 << 20

RETRIED: Final = frozenset({"overloaded", "not-ready", "not-leader"})
"""Reasons for which a page is retried: the node is overloaded, or a leadership moves."""

RETRY_LIMIT_S: Final = 30.0
"""How long a page is retried; then the fold ends, and prints where to go on."""

RETRY_DELAY_S: Final = 0.5

_PLACE: Final = re.compile(r"([0-9]{1,9}):([0-9]{1,9}):((?:[0-9a-f]{2})*)", re.ASCII)
"""PARTITION:SEGMENT:NAME, the name in hex, as a fold prints it when it ends."""

SCOPE: Final = {
    "bucket_type": "bucket type", "bucket": "bucket", "key_from": "keys from", "key_to": "keys below",
    "segments": "segments", "since": "modified since", "before": "modified before", "resume": "going on from",
}  # fmt: skip
"""Options that narrow a fold -> their names in its question."""

KEYS: Final = TableSpec(
    "bucket", "key", "siblings", ("bytes", "size_bytes"), ("modified", moment_of("modified_ms")), "note"
)


@click.group("fold")
def fold_group() -> None:
    """Look at, or act upon, all keys of a bucket type, a bucket, or a range."""


scope_options: Final = with_options(
    click.option("--bucket-type", metavar="T", help="Only this bucket type; without it default, or that of --bucket."),
    click.option(
        "--bucket", metavar="[TYPE/]BUCKET", help="Only this bucket, of its type; percent-encoded if need be."
    ),
    click.option("--key-from", help="Only keys from this one on, in byte order; needs --bucket."),
    click.option("--key-to", help="Only keys below this one; needs --bucket."),
    click.option("--segments", metavar="FIRST-END", help="Only segments [FIRST, END) of 2^20."),
    click.option(
        "--since",
        metavar="TIME",
        help="Only what was modified at this time or later, such as 2026-02-03T04:05 (UTC).",
    ),
    click.option("--before", metavar="TIME", help="Only what was modified before this time."),
    click.option("--from", "resume", metavar="PLACE", help="Continue a fold: the place that it printed."),
    admin_option,
    output_option,
)
"""Options of every fold."""


@fold_group.command("list-buckets")
@scope_options
def list_buckets(output: str, **scope: Any) -> None:
    """Every bucket with a key that is not deleted, and how many."""
    buckets: Counter[str] = Counter()

    def show(refused: Counter[str]) -> None:
        if output == "json":
            rows = [{"name": name, "keys": count} for name, count in sorted(buckets.items())]
            echo_json({"buckets": rows, "refused": dict(refused)})
        else:
            echo_table(("bucket", "keys"), sorted(buckets.items()))
            _warn(refused)

    _over(_pages("list-buckets", {}, scope), lambda page: buckets.update(page["buckets"]), show)


@fold_group.command("find-keys", short_help="Keys with many siblings or a large object.")
@click.option("--siblings-over", type=Count(0), help="Keys with more siblings than this.")
@click.option("--size-over", type=Size(), help="Objects larger than this.")
@scope_options
def find_keys(siblings_over: int | None, size_over: int | None, output: str, **scope: Any) -> None:
    """Keys with many siblings or a large object; without both options all keys."""
    _found("find-keys", {"siblings_over": siblings_over, "size_over": size_over}, scope, output)


@fold_group.command("find-tombs")
@scope_options
def find_tombs(output: str, **scope: Any) -> None:
    """Deleted keys whose tombstones are still there."""
    _found("find-tombs", {}, scope, output)


@fold_group.command("repair-keys", short_help="Check every object; name what is damaged.")
@click.option(
    "--mend", is_flag=True, help="Fetch damaged objects again from another replica or cluster, and check again."
)
@scope_options
def repair_keys(mend: bool, output: str, **scope: Any) -> None:
    """Read every object at its leader, check it against its key row, and name damaged ones. Exit code 1 if any is, with
    --mend if any still is."""
    done = 0
    refused: Counter[str] = Counter()
    if mend:
        for page in _pages("repair-keys", {"dry_run": False}, scope):
            done += page["done"]
            refused.update(page["refused"])
        click.echo(f"{quantity(done, 'key')} {'was' if done == 1 else 'were'} fetched again", err=output == "json")
        for reason, count in refused.most_common():
            click.echo(f"{count} not mended: {printable(reason)}", err=output == "json")
    if _found("repair-keys", {}, scope, output):
        raise click.exceptions.Exit(int(Exit.DIFFERS))


@fold_group.command("object-stats", short_help="Objects, tombstones, bytes, sizes, siblings.")
@scope_options
def object_stats(output: str, **scope: Any) -> None:
    """Numbers of objects, tombstones and bytes; distribution of sizes and of siblings."""
    sums: Counter[str] = Counter()
    sizes: Counter[int] = Counter()
    siblings: Counter[int] = Counter()

    def take(page: dict[str, Any]) -> None:
        sums.update({name: page[name] for name in ("objects", "tombstones", "bytes")})
        sizes.update({int(bits): count for bits, count in page["sizes"].items()})
        siblings.update({int(number): count for number, count in page["siblings"].items()})

    _over(_pages("object-stats", {}, scope), take, lambda refused: _echo_stats(sums, sizes, siblings, refused, output))


def _echo_stats(
    sums: Counter[str], sizes: Counter[int], siblings: Counter[int], refused: Counter[str], output: str
) -> None:
    if output == "json":
        echo_json(
            {
                **{name: sums[name] for name in ("objects", "tombstones", "bytes")},
                "sizes": [{"below_bytes": 1 << bits, "objects": count} for bits, count in sorted(sizes.items())],
                "siblings": [{"siblings": number, "objects": count} for number, count in sorted(siblings.items())],
                "refused": dict(refused),
            }
        )
        return
    echo_facts((("objects", sums["objects"]), ("tombstones", sums["tombstones"]), ("bytes", sums["bytes"])))
    click.echo("")
    echo_table(("size below", "objects"), ((format_size(1 << bits), count) for bits, count in sorted(sizes.items())))
    click.echo("")
    echo_table(("siblings", "objects"), sorted(siblings.items()))


act_options: Final = with_options(YES, DRY_RUN, BY)
"""Options of a fold that changes something."""


@fold_group.command("repl-keys")
@click.argument("queue")
@act_options
@scope_options
def repl_keys(queue: str, output: str, **scope: Any) -> None:
    """Put references to the keys into QUEUE, at fold priority."""
    _act("repl-keys", f"queued for {queue}", {"queue": queue}, scope, output)


@fold_group.command("reap-tombs", short_help="Remove tombstones that every queue has passed.")
@act_options
@scope_options
def reap_tombs(output: str, **scope: Any) -> None:
    """Remove tombstones for good, if every queue has passed them."""
    _act("reap-tombs", "reaped", {}, scope, output)


@fold_group.command("erase-keys", short_help="Delete the keys, each as it was found.")
@act_options
@scope_options
def erase_keys(output: str, **scope: Any) -> None:
    """Delete the keys, each in the version that was found: later writes stay."""
    _act("erase-keys", "deleted", {}, scope, output)


def _act(kind: str, done: str, more: dict[str, Any], scope: dict[str, Any], output: str) -> None:
    dry, yes = scope.pop("dry_run"), scope.pop("yes")
    scope = _placed(scope)
    if not dry:
        where = ", ".join(f"{shown} {scope[name]}" for name, shown in SCOPE.items() if scope.get(name))
        confirm(yes, f"{kind} over {where}: go on? (--dry-run counts first)", output)
    sums: Counter[str] = Counter()

    def take(page: dict[str, Any]) -> None:
        sums.update({name: page[name] for name in ("matched", "done")})

    def show(refused: Counter[str]) -> None:
        matched, acted = sums["matched"], sums["done"]
        if output == "json":
            echo_json({"kind": kind, "dry_run": dry, "matched": matched, "done": acted, "refused": dict(refused)})
            return
        click.echo(
            f"{quantity(matched, 'key')} {'matches' if matched == 1 else 'match'}; nothing was changed"
            if dry
            else f"{acted} of {quantity(matched, 'key')} {done}"
        )
        for reason, count in refused.most_common():
            click.echo(f"{count}: {printable(reason)}")

    _over(_pages(kind, {**more, "dry_run": dry}, scope), take, show)


def _warn(refused: Counter[str]) -> None:
    for reason, count in refused.most_common():
        click.echo(f"isthmus: {count}: {printable(reason)}", err=True)


def _over(
    pages: Iterator[dict[str, Any]], take: Callable[[dict[str, Any]], None], show: Callable[[Counter[str]], None]
) -> None:
    """Take every page, then show the sums, with counts of refused keys by reason. A fold that ends early shows the sums
    so far: `--from` goes on behind them, and changes so far have been made."""
    taken = False
    refused: Counter[str] = Counter()
    try:
        for page in pages:
            take(page)
            refused.update(page["refused"])
            taken = True
    except (CommandFailed, KeyboardInterrupt):
        if taken:
            show(refused)
        raise
    show(refused)


def _found(kind: str, more: dict[str, Any], scope: dict[str, Any], output: str) -> int:
    """Print the keys of each page as it comes; the number of keys."""
    count = 0
    rows: list[dict[str, Any]] = []

    def take(page: dict[str, Any]) -> None:
        nonlocal count
        count += len(page["found"])
        if output == "json":
            rows.extend(page["found"])
        elif page["found"]:
            KEYS.echo(page["found"])

    def show(refused: Counter[str]) -> None:
        if output == "json":
            echo_json({"found": rows, "refused": dict(refused)})
        else:
            click.echo(quantity(count, "key"))
            _warn(refused)

    _over(_pages(kind, more, scope), take, show)
    return count


def _pages(kind: str, more: dict[str, Any], scope: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The pages of every partition; progress goes to standard error when that is a terminal."""
    admin: AdminClient = scope["admin"]
    scope = _placed(scope)
    body = {"kind": kind, **more, **_scope(scope)}
    found = admin.get(f"/admin/partitions?bucket_type={quote(scope['bucket_type'], safe='')}")
    partitions = sorted((one["index"], one["partition"]) for one in objects_in(found, "partitions"))
    if not partitions:
        raise BadInput(f"there is no bucket type {scope['bucket_type']!r}")
    begin_at, place = _resumed(scope["resume"], len(partitions))
    shows_progress, begun = sys.stderr.isatty(), False
    for index, partition in partitions:
        if index < begin_at:
            continue
        while True:
            try:
                page = _page(admin, {**body, "partition": partition, "next": place})
            except (CommandFailed, KeyboardInterrupt) as end:
                refused = isinstance(end, CommandFailed) and end.exit_code is Exit.REFUSED
                if begun or not refused:  # a fold that is refused at once has not begun
                    segment, name = (place or {"segment": 0, "name": ""}).values()
                    click.echo(f"ended; --from {index}:{segment}:{name} goes on from here", err=True)
                raise
            begun = True
            yield page
            place = page["next"]
            if shows_progress:
                share = (index + _share(place, index, len(partitions))) / len(partitions)
                click.echo(f"\r{kind}: {percent(share)}", err=True, nl=False)
            if place is None:
                break
    if shows_progress:
        click.echo("\r" + " " * 40 + "\r", err=True, nl=False)


def _page(admin: AdminClient, body: dict[str, Any]) -> dict[str, Any]:
    """One page, retried where that may help: a page has the same effect twice."""
    deadline_s = machine().monotonic_s() + RETRY_LIMIT_S
    while True:
        try:
            return admin.post("/admin/folds", body)
        except CommandFailed as error:
            if error.reason not in RETRIED or machine().monotonic_s() > deadline_s:
                raise
        machine().sleep(RETRY_DELAY_S)


def _share(place: dict[str, Any] | None, index: int, count: int) -> float:
    """Share of a partition that is done."""
    if place is None:
        return 1.0
    first, end = index * SEGMENTS / count, (index + 1) * SEGMENTS / count
    segment: int = place["segment"]
    return min(1.0, max(0.0, (segment - first) / (end - first)))


def _resumed(text: str | None, partitions: int) -> tuple[int, dict[str, Any] | None]:
    """The partition of the bucket type to begin with, and the place in it."""
    if text is None:
        return 0, None
    found = _PLACE.fullmatch(text)
    if found is None or int(found[1]) >= partitions or int(found[2]) > SEGMENTS:
        of = f"of one of {quantity(partitions, 'partition')}, "
        raise BadInput(f"--from {text!r}: give the position that the fold printed when it ended, {of}such as 3:4711:")
    return int(found[1]), {"segment": int(found[2]), "name": found[3]}


def _and_since(scope: dict[str, Any]) -> str:
    return "" if scope["since"] is None else f" and since {scope['since']}"


def _placed(scope: dict[str, Any]) -> dict[str, Any]:
    """The scope with the bucket type of a --bucket TYPE/BUCKET; after --bucket-type a slash is part of the bucket."""
    kind, bucket = scope["bucket_type"], scope["bucket"]
    if kind is None and bucket is not None:
        kind, bucket = split_bucket(bucket)
    return {**scope, "bucket_type": DEFAULT_BUCKET_TYPE.decode() if kind is None else kind, "bucket": bucket}


def _scope(scope: dict[str, Any]) -> dict[str, Any]:
    body = {name: scope[name] for name in ("bucket", "key_from", "key_to") if scope[name] is not None}
    if "by" in scope:
        body["by"] = scope["by"]
    if scope["segments"] is not None:
        first, _, end = scope["segments"].partition("-")
        if not (first.isdecimal() and end.isdecimal() and int(first) < int(end) <= SEGMENTS):
            raise BadInput(f"--segments: write FIRST-END, numbers from 0 to {SEGMENTS}")
        body |= {"segment_from": int(first), "segment_to": int(end)}
    if scope["since"] is not None:
        body["since_ms"] = time_of(scope["since"], "--since")
    if scope["before"] is not None:
        body["before_ms"] = time_of(scope["before"], "--before")
        if body["before_ms"] <= body.get("since_ms", 0):  # 0 would stand for no bound, which is everything
            raise BadInput(f"nothing was modified before {scope['before']}{_and_since(scope)}")
    return body
