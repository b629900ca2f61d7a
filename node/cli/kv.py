"""`isthmus kv`: single values for people and scripts, at the client listener of any node.

All but listings goes through the batch face, which takes every byte string as a name and answers all siblings at once.
What the requests mean stands in docs/http.md, outgoing HTTP in `repl.http.client`.

`isthmus kv reap`: the tombstone of one key removed, or who still needs it. The node decides
(`repl.coordinator.tombstone_reaper`).
"""

from __future__ import annotations

import json
import os
import sys
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from itertools import islice
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import quote, unquote_to_bytes

import click
import msgpack

from isthmus.config.validation import check_peer_url
from isthmus.node.cli.admin_client import (
    ANSWER_TIMEOUT_S,
    CONNECT_TIMEOUT_S,
    TLS_WANTED,
    TOKEN_HINT,
    UNAUTHORIZED,
    AdminClient,
    admin_option,
    cause,
    check_path,
)
from isthmus.node.cli.credentials import access_from, credential_options
from isthmus.node.cli.exit_codes import CommandFailed, Exit
from isthmus.node.cli.output import cell, echo_json, moment, output_option, printable
from isthmus.repl.http.client import OPEN, PeerCredentials, session
from isthmus.repl.model.keys import DEFAULT_BUCKET_TYPE


@click.command("reap")
@click.argument("where", metavar="[TYPE/]BUCKET")
@click.argument("name", metavar="KEY")
@admin_option
@output_option
def reap(where: str, name: str, admin: AdminClient, output: str) -> None:
    """Remove the tombstone of KEY, whatever its bucket's delete_mode: if every replica is in sync and every queue has
    its acknowledgement. Otherwise it says who is waited for, and exits with code 4. Names are percent-encoded where
    they hold a slash or are no plain text."""
    kind, slash, bucket = where.partition("/")
    if not slash:
        kind, bucket = DEFAULT_BUCKET_TYPE.decode(), where
    answer: dict[str, Any] = admin.post("/admin/reaps", {"bucket_type": kind, "bucket": bucket, "key": name})
    outcome, reason = cell(answer.get("outcome")), cell(answer.get("reason"))
    if output == "json":
        echo_json(answer)
    elif outcome == "reaped":
        click.echo(printable(f"{where} {name}: reaped"))
    if outcome != "reaped":
        raise CommandFailed(Exit.REFUSED, outcome, reason)


DEFAULT_HTTP: Final = "http://127.0.0.1:8098"
"""Where a node's client listener is unless its config says otherwise."""

ANSWER_BYTES_MAX: Final = 128_000_000
"""Largest answer taken into memory: more than the largest object with all its siblings at the default limits."""

OBJECT_BYTES_MAX: Final = 1_000_000_000
"""Largest value that is read to be put: the most that `limits.object_size` may be. What is endless ends there."""

NO_SUCH_PATH: Final = "unknown-path"
"""What an admin listener says to a client's request; other servers give no reason at all."""

Command = TypeVar("Command", bound=Callable[..., Any])


class Client:
    """The client listener of one node. `url` is http(s)://HOST:PORT; raises CommandFailed (usage) when it is not."""

    def __init__(self, url: str, access: PeerCredentials = OPEN) -> None:
        try:
            self.url = check_peer_url(url)
        except ValueError as error:
            raise CommandFailed(Exit.USAGE, "bad-input", f"--http: {error}") from None
        self._session = session(access=access)

    def batch(self, path: str, item: tuple[Any, ...]) -> list[Any]:
        """The answer to the one item of a batch. Raises CommandFailed: UNAVAILABLE or REFUSED."""
        raw = b"".join(self._pieces("POST", path, msgpack.packb([item])))
        try:
            (answer,) = msgpack.unpackb(raw, strict_map_key=False)
            status, _, reason = answer
            status = int(status)
        except (ValueError, TypeError, msgpack.exceptions.UnpackException) as error:
            raise self._unavailable("answers what is no batch's answer; is this a node's client listener?") from error
        if status >= 400 and isinstance(reason, str) and reason != "not-found":
            code, _, sentence = reason.partition(": ")
            raise CommandFailed(Exit.REFUSED if status < 500 else Exit.UNAVAILABLE, code, sentence)
        return list(answer)

    def names(self, path: str, what: str) -> Iterator[bytes]:
        """The names of a streamed listing. Raises CommandFailed, also in the middle."""
        decoder = json.JSONDecoder()
        rest = ""
        for piece in self._pieces("GET", path, None):
            rest += piece.decode("ascii", "replace")
            while rest:
                try:
                    document, end = decoder.raw_decode(rest)
                except json.JSONDecodeError:
                    break  # the object goes on in the next piece
                rest = rest[end:]
                if isinstance(document, dict) and "error" in document:
                    raise CommandFailed(Exit.UNAVAILABLE, str(document.get("reason")), str(document["error"]))
                if not isinstance(document, dict) or not isinstance(document.get(what), list):
                    raise self._unavailable("answers what is no listing; is this a node's client listener?")
                yield from map(unquote_to_bytes, document[what])
        if rest:
            raise self._unavailable("broke off in the middle of the listing")

    def _pieces(self, method: str, path: str, body: bytes | None) -> Iterator[bytes]:
        """The body of an answer, refusals raised; a stream as it comes, others up to ANSWER_BYTES_MAX."""
        check_path(path)
        size = 0
        try:
            with self._session.request(
                method,
                self.url + path,
                data=body,
                timeout=(CONNECT_TIMEOUT_S, ANSWER_TIMEOUT_S),
                allow_redirects=False,
                stream=True,
            ) as response:
                status = response.status_code
                if status >= 400:
                    said = response.headers.get("X-Isthmus-Reason", "")
                    if said == TLS_WANTED:
                        raise self._unavailable("speaks TLS: write https://")
                    if said == NO_SUCH_PATH or (not said and status < 500):
                        raise self._unavailable(f"answers {status}; is this a node's client listener?")
                    text = next(response.iter_content(4096), b"").decode("utf-8", "replace").strip()
                    hint = TOKEN_HINT if status == UNAUTHORIZED else ""
                    raise CommandFailed(
                        Exit.REFUSED if status < 500 else Exit.UNAVAILABLE,
                        said,
                        (printable(text) or f"{self.url} answers {status}") + hint,
                    )
                for piece in response.iter_content(65_536):
                    size += len(piece)
                    if body is not None and size > ANSWER_BYTES_MAX:
                        raise self._unavailable(f"answers with more than {ANSWER_BYTES_MAX} bytes")
                    yield piece
        except OSError as error:  # everything that requests raises is one
            raise self._unavailable(f"does not answer: {cause(error)}") from error

    def _unavailable(self, what: str) -> CommandFailed:
        hint = " (--http URL or ISTHMUS_HTTP names another node)"
        return CommandFailed(Exit.UNAVAILABLE, "unavailable", f"{self.url} {what}{hint}")


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


def _http_option(command: Command) -> Command:
    """Adds `--http URL`, `--type T`, `--percent` and the options of `credentials`."""

    def client(context: click.Context, _parameter: click.Parameter, value: str) -> Client:
        return Client(value, access_from(context))

    command = click.option(
        "--http",
        "client",
        metavar="URL",
        envvar="ISTHMUS_HTTP",
        default=DEFAULT_HTTP,
        show_default=True,
        show_envvar=True,
        callback=client,
        help="Client listener of any node of the cluster.",
    )(command)
    names = ("--bucket-type", "--type", "bucket_type")
    command = click.option(*names, default="default", show_default=True, help="Bucket type.")(command)
    command = click.option(
        "--percent", is_flag=True, is_eager=True, help="Names are percent-encoded, here and in what is printed."
    )(command)
    return credential_options(command)


def _clock(_context: click.Context, _parameter: click.Parameter, value: str | None) -> bytes | None:
    try:
        return None if value is None else b64decode(value, validate=True)
    except ValueError as error:
        raise click.BadParameter(f"not a clock as `kv get -o json` prints it: {error}") from error


BUCKET: Final = click.argument("bucket", type=Name())
KEY: Final = click.argument("kv_key", metavar="KEY", type=Name())
"""Named apart from `--key`, a private key's file (`credentials`)."""
CLOCK: Final = click.option(
    "--clock", metavar="CLOCK", callback=_clock, help="The clock that was read: what it has seen is replaced."
)


@click.group("kv")
def kv_group() -> None:
    """Get, put, delete and list values."""


kv_group.add_command(reap)


@kv_group.command("get")
@BUCKET
@KEY
@click.option("--vtag", help="Of several siblings this one.")
@_http_option
@output_option
def get(
    bucket: bytes, kv_key: bytes, vtag: str | None, client: Client, bucket_type: str, percent: bool, output: str
) -> int:
    """Write the value of KEY in BUCKET to standard output, byte by byte.

    Of siblings without --vtag, a table of them on standard error, code 1; an absent or deleted key is code 1, too. With
    -o json everything that is known of it.
    """
    status, clock, found = client.batch("/batch/get", (bucket_type, bucket, kv_key))
    siblings = [_sibling(row) for row in found] if isinstance(found, list) else []
    known = [sibling["vtag"] for sibling in siblings]
    siblings = [sibling for sibling in siblings if vtag in (None, sibling["vtag"])]
    if output == "json":
        shown = None if clock is None else b64encode(clock).decode()
        names = {"type": bucket_type, "bucket": _text(bucket, percent), "key": _text(kv_key, percent)}
        echo_json({**names, "found": status != 404, "clock": shown, "siblings": [_json(s) for s in siblings]})
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


@kv_group.command("put")
@BUCKET
@KEY
@click.argument("value", required=False)
@click.option("--file", "file", type=click.Path(path_type=Path, dir_okay=False, exists=True), help="Read it from FILE.")
@click.option("--content-type", default="application/octet-stream", show_default=True)
@click.option("--meta", multiple=True, metavar="NAME=VALUE", help="Metadata; may be given several times.")
@CLOCK
@click.option("--replace", is_flag=True, help="Read the clock first: replaces all that is there at this moment.")
@_http_option
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
    client: Client,
    bucket_type: str,
    percent: bool,
    output: str,
) -> None:
    """Write VALUE, the bytes of --file, or else standard input, under KEY in BUCKET.

    Without --clock or --replace it becomes a sibling of what is there. Prints the new clock.
    """
    if value is not None and file is not None:
        raise click.UsageError("give the value or --file, not both")
    if clock is not None and replace:
        raise click.UsageError("give --clock or --replace, not both")
    metadata = [_pair(pair) for pair in meta]
    body = os.fsencode(value) if value is not None else _read(file)
    if replace:
        _, clock, _ = client.batch("/batch/get", (bucket_type, bucket, kv_key))
    item = (bucket_type, bucket, kv_key, body, content_type, clock, ["", metadata, [], []] if metadata else None)
    _, written, _ = client.batch("/batch/put", item)
    _echo_clock(output, bucket_type, bucket, kv_key, percent, written)


@kv_group.command("delete")
@BUCKET
@KEY
@CLOCK
@_http_option
@output_option
def delete(
    bucket: bytes, kv_key: bytes, clock: bytes | None, client: Client, bucket_type: str, percent: bool, output: str
) -> int:
    """Delete KEY in BUCKET: what --clock has seen, or all that is there. Code 1 when there was nothing."""
    status, written, _ = client.batch("/batch/put", (bucket_type, bucket, kv_key, None, None, clock))
    if status == 404:
        if output == "json":
            echo_json({"deleted": False, "clock": None if written is None else b64encode(written).decode()})
        else:
            click.echo(f"isthmus: {_not_found(bucket, bucket_type)}", err=True)
        return Exit.DIFFERS
    _echo_clock(output, bucket_type, bucket, kv_key, percent, written)
    return Exit.OK


@kv_group.command("list")
@click.argument("bucket", type=Name(), required=False)
@click.option("--limit", type=click.IntRange(1, 1 << 31), help="Stop after so many names.")
@_http_option
@output_option
def list_names(
    bucket: bytes | None, limit: int | None, client: Client, bucket_type: str, percent: bool, output: str
) -> None:
    """The keys of BUCKET, or all buckets, a line each as they are read; reads every key in its way.

    Names that are not printable text are percent-encoded; --percent encodes all of them, which is exact.
    """
    path = f"/types/{quote(bucket_type, safe='')}/buckets"
    what = "buckets"
    if bucket is not None:
        path, what = f"{path}/{quote(bucket, safe='')}/keys", "keys"
    found = client.names(f"{path}?{what}=stream&encoding=percent", what)
    shown = (_text(name, percent) for name in islice(found, limit))
    if output == "json":
        click.echo(f'{{"{what}": [', nl=False)
        separator = ""
        for name in shown:
            click.echo(separator + json.dumps(name, ensure_ascii=False), nl=False)
            separator = ", "
        click.echo("]}")
        return
    for name in shown:
        click.echo(name)


def _read(file: Path | None) -> bytes:
    """The bytes of a file, or of standard input. Raises CommandFailed (usage) above what any object may have."""
    with nullcontext(sys.stdin.buffer) if file is None else file.open("rb") as source:
        body = source.read(OBJECT_BYTES_MAX + 1)
    if len(body) > OBJECT_BYTES_MAX:
        what = "standard input" if file is None else str(file)
        raise CommandFailed(Exit.USAGE, "bad-input", f"{what} has more than {OBJECT_BYTES_MAX} bytes; no object has")
    return body


def _not_found(bucket: bytes, bucket_type: str) -> str:
    """What is said of an absent key; `isthmus explain` writes TYPE/BUCKET, and here that is the name of a bucket."""
    if b"/" not in bucket:
        return "not found"
    return f"not found; '/' is part of a bucket's name here, and --bucket-type names the type (now {bucket_type!r})"


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


def _json(sibling: dict[str, Any]) -> dict[str, Any]:
    """A sibling as JSON: its value as text when it is that, and always in base64."""
    value: bytes = sibling["value"]
    try:
        text: str | None = value.decode()
    except UnicodeDecodeError:
        text = None
    return {**sibling, "value": text, "value_base64": b64encode(value).decode()}


def _shown(raw: bytes) -> str:
    return raw.decode("utf-8", "backslashreplace")


def _echo_clock(output: str, bucket_type: str, bucket: bytes, key: bytes, percent: bool, clock: bytes) -> None:
    shown = b64encode(clock).decode()
    if output == "json":
        names = {"type": bucket_type, "bucket": _text(bucket, percent), "key": _text(key, percent)}
        echo_json({**names, "clock": shown})
    else:
        click.echo(shown)
