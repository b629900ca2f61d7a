"""`isthmus kv`: single values, for people and scripts. Any node is enough; requests go to the leader of their key.

`isthmus kv reap` removes a tombstone; the node decides whether it may (`repl.coordinator.tombstone_reaper`).
"""

from __future__ import annotations

import functools
import json
import os
import sys
from base64 import b64decode, b64encode
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, unquote_to_bytes, urlencode

import click

from isthmus.node.cli.admin_client import AdminClient
from isthmus.node.cli.admin_command import AdminCommand, admin_act
from isthmus.node.cli.credentials import Endpoint, connection_options
from isthmus.node.cli.exit_codes import CommandFailed, Exit
from isthmus.node.cli.node_listener import first_reachable
from isthmus.node.cli.object_client import HTTP, ClusterClient
from isthmus.node.cli.output import cell, echo_json, moment, objects_in, output_option, printable, value_as_json
from isthmus.node.cli.parameters import Count, split_bucket, with_options
from isthmus.node.http.answer_limits import PAGE_NAMES_MAX
from isthmus.repl.model.errors import BadInput
from isthmus.repl.model.keys import DEFAULT_BUCKET_TYPE


@click.command("reap", short_help="Remove a tombstone that nothing needs any more.")
@click.argument("where", metavar="[TYPE/]BUCKET")
@click.argument("name", metavar="KEY")
@admin_act()
def reap(where: str, name: str, act: AdminCommand) -> None:
    """Remove the tombstone of KEY, regardless of its bucket's delete_mode, if every replica is in sync and every queue
    has its acknowledgement. Otherwise shows the obstacle and exits with code 4. Names are percent-encoded where they
    hold a slash or are not plain text."""
    kind, bucket = split_bucket(where)
    answer: dict[str, Any] = act.post("/admin/reaps", bucket_type=kind, bucket=bucket, key=name)
    outcome, reason = cell(answer.get("outcome")), cell(answer.get("reason"))
    if act.json:
        echo_json(answer)
    elif outcome == "reaped":
        click.echo(printable(f"{where} {name}: reaped"))
    if outcome != "reaped":
        raise CommandFailed(Exit.REFUSED, outcome, reason)


OBJECT_BYTES_MAX: Final = 1_000_000_000
"""Largest value that `put` reads: the maximum of `limits.object_size`. Bounds endless input."""


class Name(click.ParamType[bytes]):
    """A bucket or key: the argument's own bytes, percent-decoded with --percent."""

    name = "name"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The bytes. Fails for an empty name and for what is no percent-encoding."""
        if isinstance(value, bytes):
            return value
        raw = os.fsencode(value)
        if ctx is not None and ctx.params.get("percent"):
            if raw.count(b"%") != sum(len(part) > 1 and _is_hex(part[:2]) for part in raw.split(b"%")[1:]):
                self.fail(f"{value!r} has a % without two hex digits", param, ctx)
            raw = unquote_to_bytes(raw)
        return raw or self.fail("a name must not be empty", param, ctx)


def _is_hex(pair: bytes) -> bool:
    return all(byte in b"0123456789abcdefABCDEF" for byte in pair)


def _client_of(endpoint: Endpoint) -> ClusterClient:
    """The client listener of an endpoint. A context that names admin listeners alone: a node of it is asked."""
    if endpoint.entry is None:
        return ClusterClient(endpoint.urls[0], endpoint.access)
    if endpoint.entry.http:
        return ClusterClient(first_reachable(endpoint.entry.http), endpoint.access)
    admin = AdminClient(endpoint.urls, endpoint.access)
    try:
        rows = objects_in(admin.get("/admin/cluster"), "nodes")
    finally:
        admin.close()
    urls = [row["http"] for row in rows if row.get("state") == "live" and isinstance(row.get("http"), str)]
    if not urls:
        raise CommandFailed(Exit.UNAVAILABLE, "unavailable", f"{admin.url} names no node that lives: --http URL")
    return ClusterClient(first_reachable(urls), endpoint.access)


_options: Final = with_options(
    connection_options,
    click.option(
        "--percent", is_flag=True, is_eager=True, help="Names are percent-encoded, here and in what is printed."
    ),
    click.option("--bucket-type", "--type", "bucket_type", hidden=True),
    HTTP.add_option(
        "client", _client_of, "Client listener of any node of the cluster; requests about a key go on to its leader."
    ),
)


def http_options(command: Any) -> Any:
    """Add the options of every command at a client listener. BUCKET is [TYPE/]BUCKET; after the older --bucket-type a
    slash is part of the bucket's name."""

    @functools.wraps(command)
    def run(*, bucket: str | None, bucket_type: str | None, **given: Any) -> Any:
        kind, name = bucket_type, bucket
        if bucket_type is None and bucket is not None:
            kind, name = split_bucket(bucket)
        kind = DEFAULT_BUCKET_TYPE.decode() if kind is None else kind
        context = click.get_current_context()
        if name or context.command.name != "list":
            name = Name().convert(name, None, context)
        return command(bucket=name or None, bucket_type=kind, **given)

    return _options(run)


def _clock(_context: click.Context, _parameter: click.Parameter, value: str | None) -> bytes | None:
    try:
        return None if value is None else b64decode(value, validate=True)
    except ValueError as error:
        raise click.BadParameter(f"not a clock as `kv get -o json` prints it: {error}") from error


BUCKET: Final = click.argument("bucket", metavar="[TYPE/]BUCKET")
KEY: Final = click.argument("kv_key", metavar="KEY", type=Name())
"""Named apart from `--key`, a private key's file (`credentials`)."""
CLOCK: Final = click.option(
    "--clock", metavar="CLOCK", callback=_clock, help="The clock of the read value, which is replaced."
)


@click.group("kv")
def kv_group() -> None:
    """Get, put, delete and list values."""


kv_group.add_command(reap)


@kv_group.command("get")
@BUCKET
@KEY
@click.option("--vtag", help="One of several siblings.")
@http_options
@output_option
def get(
    bucket: bytes, kv_key: bytes, vtag: str | None, client: ClusterClient, bucket_type: str, percent: bool, output: str
) -> int:
    """Write the value of KEY in BUCKET to standard output, byte by byte.

    Code 1 for an absent or deleted key, and for several siblings without --vtag, which standard error lists. -o json
    prints all siblings with their metadata.
    """
    status, clock, found = client.item("/batch/get", (bucket_type, bucket, kv_key), reads=True)
    siblings = [_sibling(row) for row in found] if isinstance(found, list) else []
    known = [sibling["vtag"] for sibling in siblings]
    siblings = [sibling for sibling in siblings if vtag in (None, sibling["vtag"])]
    if output == "json":
        shown = None if clock is None else b64encode(clock).decode()
        names = {"type": bucket_type, "bucket": _text(bucket, percent), "key": _text(kv_key, percent)}
        echo_json({**names, "found": status != 404, "clock": shown, "siblings": [value_as_json(s) for s in siblings]})
        return Exit.OK if len(siblings) == 1 and not siblings[0]["deleted"] else Exit.DIFFERS
    if len(siblings) > 1 and status != 404:
        click.echo(f"isthmus: {len(siblings)} siblings; --vtag VTAG shows one:", err=True)
        for sibling in siblings:
            kind = "deleted" if sibling["deleted"] else f"{len(sibling['value'])} bytes {sibling['content_type']}"
            click.echo(printable(f"{sibling['vtag']}  {moment(sibling['last_modified_ms'])}  {kind}"), err=True)
        return Exit.DIFFERS
    if known and not siblings:
        raise CommandFailed(Exit.DIFFERS, "unknown-vtag", f"there is no sibling {vtag!r}; there are {', '.join(known)}")
    if status == 404 or not siblings or siblings[0]["deleted"]:
        click.echo(f"isthmus: {'deleted' if siblings else _not_found(bucket, bucket_type)}", err=True)
        return Exit.DIFFERS
    sys.stdout.buffer.write(siblings[0]["value"])
    return Exit.OK


@kv_group.command("put", short_help="Write a value under a key.")
@BUCKET
@KEY
@click.argument("value", required=False)
@click.option("--file", "file", type=click.Path(path_type=Path, dir_okay=False, exists=True), help="Read it from FILE.")
@click.option("--content-type", default="application/octet-stream", show_default=True)
@click.option("--meta", multiple=True, metavar="NAME=VALUE", help="Metadata; may be given several times.")
@CLOCK
@click.option("--replace", is_flag=True, help="Read the clock first: replaces the current value with all siblings.")
@http_options
@output_option
def put(
    bucket: bytes,
    kv_key: bytes,
    value: str | None,
    file: Path | None,
    content_type: str,
    meta: tuple[str, ...],
    clock: bytes | None,
    replace: bool,
    client: ClusterClient,
    bucket_type: str,
    percent: bool,
    output: str,
) -> None:
    """Write VALUE, the bytes of --file, or else standard input, under KEY in BUCKET.

    Without --clock or --replace it becomes a sibling of existing values. Prints the new clock.
    """
    if value is not None and file is not None:
        raise click.UsageError("give the value or --file, not both")
    if clock is not None and replace:
        raise click.UsageError("give --clock or --replace, not both")
    metadata = [_pair(pair) for pair in meta]
    body = os.fsencode(value) if value is not None else _read(file)
    if replace:
        _, clock, _ = client.item("/batch/get", (bucket_type, bucket, kv_key), reads=True)
    item = (bucket_type, bucket, kv_key, body, content_type, clock, ["", metadata, [], []] if metadata else None)
    _, written, _ = client.item("/batch/put", item, reads=False)
    _echo_clock(output, bucket_type, bucket, kv_key, percent, written)


@kv_group.command("delete")
@BUCKET
@KEY
@CLOCK
@http_options
@output_option
def delete(
    bucket: bytes,
    kv_key: bytes,
    clock: bytes | None,
    client: ClusterClient,
    bucket_type: str,
    percent: bool,
    output: str,
) -> int:
    """Delete KEY in BUCKET: the values that --clock has seen, or all. Code 1 when there was none."""
    status, written, _ = client.item("/batch/put", (bucket_type, bucket, kv_key, None, None, clock), reads=False)
    if status == 404:
        if output == "json":
            echo_json({"deleted": False, "clock": None if written is None else b64encode(written).decode()})
        else:
            click.echo(f"isthmus: {_not_found(bucket, bucket_type)}", err=True)
        return Exit.DIFFERS
    _echo_clock(output, bucket_type, bucket, kv_key, percent, written)
    return Exit.OK


@kv_group.command("list", short_help="The keys of a bucket, or all buckets.")
@click.argument("bucket", metavar="[[TYPE/]BUCKET]", required=False)
@click.option("--prefix", type=Name(), metavar="PREFIX", help="Only names that begin so.")
@click.option("--limit", type=Count(1, 1 << 31), help="Stop after so many names.")
@click.option("--continuation", metavar="TOKEN", help="Continue a listing with --limit: the token that it printed.")
@http_options
@output_option
def list_names(
    bucket: bytes | None,
    prefix: bytes | None,
    limit: int | None,
    continuation: str | None,
    client: ClusterClient,
    bucket_type: str,
    percent: bool,
    output: str,
) -> None:
    """The keys of BUCKET, or all buckets, with TYPE/ those of a type, a line each as they are read; a listing of
    buckets reads every key.

    With --prefix, --limit or --continuation names are in order of their bytes. If --limit ends a listing, standard
    error (with -o json the document) has the --continuation for the next page, which is valid for the same bucket and
    --prefix.

    Names that are not printable text are percent-encoded; --percent encodes all of them, which is exact.
    """
    path = f"/types/{quote(bucket_type, safe='')}/buckets"
    what = "buckets"
    if bucket is not None:
        path, what = f"{path}/{quote(bucket, safe='')}/keys", "keys"
    found = _pages(client, path, what, prefix, limit, continuation)
    shown = (_text(name, percent) for name in found)
    if output == "json":
        opening = f'{{"{what}": ['
        first = next(shown, None)  # before anything is printed: a refusal leaves no part of a document
        if first is None:
            click.echo(opening + "]}")
            return
        click.echo(opening + json.dumps(first, ensure_ascii=False), nl=False)
        for name in shown:
            click.echo(", " + json.dumps(name, ensure_ascii=False), nl=False)
        more = f', "continuation": {json.dumps(client.continuation)}' if client.continuation else ""
        click.echo(f"]{more}}}")
        return
    for name in shown:
        click.echo(name)
    if client.continuation:
        click.echo(printable(f"isthmus: there are more: --continuation {client.continuation}"), err=True)


def _pages(
    client: ClusterClient, path: str, what: str, prefix: bytes | None, limit: int | None, continuation: str | None
) -> Iterator[bytes]:
    """The names of a listing, `limit` at most, in pages where that is more than a node gives at once."""
    query: dict[str, Any] = {what: "stream", "encoding": "percent"}
    query |= {"prefix": prefix} if prefix else {}
    left = limit
    while True:
        query |= {"continuation": continuation} if continuation else {}
        query |= {} if left is None else {"limit": min(left, PAGE_NAMES_MAX)}
        for name in client.names(f"{path}?{urlencode(query, quote_via=quote)}", what):
            left = None if left is None else left - 1
            yield name
        continuation = client.continuation
        if not continuation or not left:
            return


def _read(file: Path | None) -> bytes:
    """The bytes of a file, or of standard input. Raises BadInput above what any object may have."""
    with nullcontext(sys.stdin.buffer) if file is None else file.open("rb") as source:
        body = source.read(OBJECT_BYTES_MAX + 1)
    if len(body) > OBJECT_BYTES_MAX:
        what = "standard input" if file is None else str(file)
        raise BadInput(f"{what} has more than {OBJECT_BYTES_MAX} bytes; no object has")
    return body


def _not_found(bucket: bytes, bucket_type: str) -> str:
    """Message for an absent key; a slash in the bucket's name may have been meant for TYPE/BUCKET."""
    if b"/" not in bucket:
        return "not found"
    return f"not found in bucket {bucket.decode(errors='replace')!r} of bucket type {bucket_type!r}"


def _text(name: bytes, percent: bool) -> str:
    """A name as text; percent-encoded when it is no printable text, or always with `percent`."""
    try:
        text = name.decode()
    except UnicodeDecodeError:
        return quote(name, safe="")
    return quote(name, safe="") if percent or not text.isprintable() else text


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise click.BadParameter(f"{text!r} is not NAME=VALUE", param_hint="--meta")
    return name.lower(), value


def _sibling(row: Any) -> dict[str, Any]:
    """A sibling in an answer of /batch/get."""
    value, content_type, vtag, modified_ms, extras = row
    encoding, metadata, links, indexes = extras or (b"", (), (), ())
    return {
        "vtag": vtag,
        "last_modified_ms": modified_ms,
        "deleted": value is None,
        "value": value or b"",
        "content_type": _shown(content_type),
        "content_encoding": _shown(encoding),
        "metadata": {_shown(name): _shown(text) for name, text in metadata},
        "links": [[_shown(part) for part in link] for link in links],
        "indexes": [[_shown(name), _shown(text)] for name, text in indexes],
    }


def _shown(raw: bytes) -> str:
    return raw.decode("utf-8", "backslashreplace")


def _echo_clock(output: str, bucket_type: str, bucket: bytes, key: bytes, percent: bool, clock: bytes) -> None:
    shown = b64encode(clock).decode()
    if output == "json":
        names = {"type": bucket_type, "bucket": _text(bucket, percent), "key": _text(key, percent)}
        echo_json({**names, "clock": shown})
    else:
        click.echo(shown)
