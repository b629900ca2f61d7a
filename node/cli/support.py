"""`isthmus support-bundle`: a file for a support case, without secrets."""

from __future__ import annotations

import hashlib
import io
import json
import os
import platform
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import click

from isthmus.config.units import format_size
from isthmus.node.cli.admin_client import AdminClient
from isthmus.node.cli.admin_command import AdminCommand, admin_query
from isthmus.node.cli.exit_codes import CommandFailed, Exit
from isthmus.node.cli.output import Row, object_in
from isthmus.node.cli.parameters import Size
from isthmus.node.cli.status_report import PATHS, StatusAnswers, report
from isthmus.node.observability.redaction import Redactor
from isthmus.node.observability.version import program_version
from isthmus.repl.model.errors import BadInput

MORE: Final = {"events": "/admin/events?limit=1000", "ledger": "/admin/ledger", "partitions": "/admin/partitions"}
"""Name of a file -> the request whose answer it has, beside those of `isthmus status`."""

SIZE_LIMIT: Final = "50MB"
"""Texts of a bundle. A node has some 400 KB of them, so that a hundred nodes fit; mail and trackers take as much."""

MANIFEST_FORM: Final = 1
"""Version of the manifest's form."""

Part = tuple[str, str]
"""Path in the bundle, text."""


@click.command("support-bundle")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@click.option(
    "--size-limit", type=Size(), default=SIZE_LIMIT, show_default=True, help="Most bytes of text; the rest is left out."
)
@admin_query
def support_command(file: Path, size_limit: int, query: AdminCommand) -> int:
    """Collect status, events, and each node's config, last log lines and metrics in FILE, a .tar.gz, without secrets.

    Only you can read FILE, which must not exist. Code 3 when a node does not answer or something is missing: the bundle
    has the rest, and its manifest lists what is missing.
    """
    if file.exists():
        raise BadInput(f"{file} exists: name another file")
    redactor = Redactor(_own_secrets(query.admin))
    missing: dict[str, str] = {}
    parts = list(_parts(query.admin, redactor, missing))
    kept: list[Part] = []
    size = 0
    for path, text in parts:
        size += len(text.encode(errors="backslashreplace"))
        if size > size_limit:
            size -= len(text.encode(errors="backslashreplace"))
            missing[path] = (
                f"left out: all texts together would be larger than {format_size(size_limit)} (--size-limit)"
            )
        else:
            kept.append((path, text))
    manifest = _manifest(kept, missing, query.admin.url)
    _write(file, [("manifest.json", json.dumps(manifest, indent=2) + "\n"), *kept])
    written = file.stat().st_size
    answer = {"file": str(file), "bytes": written, "files": len(kept), "missing": missing}
    query.echo(answer, f"{file}: {len(kept)} files, {written / 1_000:,.0f} KB")
    for what, why in missing.items():
        query.note(f"missing: {what}: {why}")
    return Exit.UNAVAILABLE if missing else Exit.OK


def _own_secrets(admin: AdminClient) -> list[str]:
    return [] if admin.token is None else [admin.token()]


def _parts(admin: AdminClient, redactor: Redactor, missing: dict[str, str]) -> Iterator[Part]:
    """The files of a bundle, without secrets, the most useful first: what does not fit any more comes last."""
    answers: dict[str, Row] = {}
    for name, path in {**PATHS, **MORE}.items():
        try:
            answers[name] = admin.get(path)
        except CommandFailed as error:
            missing[f"{name}.json"] = str(error)
    if not answers:
        raise CommandFailed(
            Exit.UNAVAILABLE, "unavailable", f"no question was answered: {next(iter(missing.values()))}"
        )
    errors = {name: missing[f"{name}.json"] for name in PATHS if f"{name}.json" in missing}
    cluster = str(object_in(answers, "cluster").get("cluster") or admin.url)
    seen = {name: answer for name, answer in answers.items() if name in PATHS}
    yield "status.json", _text(redactor, report([StatusAnswers(cluster, seen, errors)]))
    for name, answer in answers.items():
        yield f"{name}.json", _text(redactor, answer)
    try:
        support = admin.get("/admin/support")
    except CommandFailed as error:
        missing["nodes"] = str(error)
        return
    for node, why in object_in(support, "unknown").items():
        missing[f"nodes/{node}"] = str(why)
    nodes = {node: one for node, one in object_in(support, "nodes").items() if isinstance(one, dict)}
    for node, one in nodes.items():
        about = {key: one.get(key) for key in ("version", "python", "system")}
        config = [dict(zip(("key", "value", "from"), row, strict=False)) for row in one.get("config") or ()]
        yield f"nodes/{_name(node)}/node.json", _text(redactor, {**about, "config": config})
    for node, one in nodes.items():
        yield f"nodes/{_name(node)}/metrics.txt", redactor.without_known(str(one.get("metrics") or ""))
    for node, one in nodes.items():
        yield (
            f"nodes/{_name(node)}/node.log",
            "".join(f"{redactor.clean(str(line))}\n" for line in one.get("log") or ()),
        )


def _name(node: str) -> str:
    """A node's name as that of a folder, whatever a node called itself."""
    return "".join(char if char.isalnum() or char in "-_" else "_" for char in node) or "_"


def _text(redactor: Redactor, document: Any) -> str:
    return redactor.without_known(json.dumps(redactor.document(document), indent=2)) + "\n"


def _manifest(parts: list[Part], missing: dict[str, str], url: str) -> dict[str, Any]:
    files = [(path, text.encode(errors="backslashreplace")) for path, text in parts]
    return {
        "form": MANIFEST_FORM,
        "made_ms": time.time_ns() // 1_000_000,
        "asked": url,
        "command": {"version": program_version(), "python": platform.python_version()},
        "files": [
            {"path": path, "bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()} for path, data in files
        ],
        "missing": missing,
    }


def _write(file: Path, parts: list[Part]) -> None:
    """Write the bundle with mode 0600; nothing is left of one that could not be written whole."""
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    folder = file.name.partition(".")[0] or "bundle"
    try:
        with os.fdopen(descriptor, "wb") as raw, tarfile.open(fileobj=raw, mode="w:gz") as bundle:
            for path, text in parts:
                data = text.encode(errors="backslashreplace")
                entry = tarfile.TarInfo(f"{folder}/{path}")
                entry.size, entry.mtime, entry.mode = len(data), int(time.time()), 0o600
                bundle.addfile(entry, io.BytesIO(data))
    except BaseException:
        file.unlink(missing_ok=True)
        raise
