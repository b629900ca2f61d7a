"""Completion of live names: nodes, queues, bucket types, full-syncs, contexts.

A shell asks at every TAB, so that an answer is quick or empty: a node has TIMEOUT_S, names are remembered for FRESH_S
in the user's cache directory, failures too, and nothing is ever printed but names. Dynamic options are known here.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
import time
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Final

import click
from click.shell_completion import CompletionItem

from isthmus.config.dynamic_options import OPTIONS
from isthmus.node.cli.admin_client import AdminClient
from isthmus.node.cli.contexts import load, path_of_file
from isthmus.node.cli.output import objects_in

TIMEOUT_S: Final = 0.7
"""How long a node may take for its names; longer than this, a person has typed on."""

FRESH_S: Final = 10.0
"""How long names are remembered: some TABs in a row ask once."""

NAMES_MAX: Final = 1_000
"""Most names that a shell gets; nobody chooses from more."""

CACHE_BYTES_MAX: Final = 1_000_000
"""A remembered answer that is larger is not of ours."""

LISTINGS: Final[Mapping[str, tuple[str, str, str]]] = {
    "nodes": ("/admin/cluster", "nodes", "name"),
    "queues": ("/admin/queues", "queues", "name"),
    "bucket types": ("/admin/bucket-types", "bucket_types", "bucket_type"),
    "full-syncs": ("/admin/fullsync?results=0", "peers", "name"),
}
"""Completed word -> the request for its values, the list in the answer, and the key of a name."""

FLAGS: Final[Mapping[str, str]] = {
    "--node": "nodes",
    "--replace": "nodes",
    "--queue": "queues",
    "--bucket-type": "bucket types",
    "--context": "contexts",
    "--cluster": "clusters",
}
"""Option -> what it names."""

ARGUMENTS: Final[Mapping[tuple[str, str], str]] = {
    ("queue", "name"): "queues",
    ("gaps", "name"): "queues",
    ("ledger", "name"): "queues",
    ("option", "name"): "options",
    ("bucket-type", "name"): "bucket types",
    ("node", "name"): "nodes",
    ("node", "names"): "nodes",
    ("partition", "node"): "nodes",
    ("fullsync", "peer"): "full-syncs",
    ("fullsync", "name"): "full-syncs",
    ("context", "name"): "contexts",
}
"""Noun and argument -> what it names."""


def attach(noun: str, command: click.Command) -> None:
    """Let the parameters of a noun's commands complete names."""
    for each in _commands(command):
        for parameter in each.params:
            what = _named_by(noun, parameter)
            if what is not None:
                parameter.shell_complete = partial(_complete, what)  # type: ignore[method-assign]


def _commands(command: click.Command) -> Iterator[click.Command]:
    yield command
    if isinstance(command, click.Group):
        for inner in command.commands.values():
            yield from _commands(inner)


def _named_by(noun: str, parameter: click.Parameter) -> str | None:
    if isinstance(parameter, click.Argument):
        return ARGUMENTS.get((noun, parameter.name or ""))
    if noun == "fullsync" and "--peer" in parameter.opts:
        return "full-syncs"
    return next((FLAGS[flag] for flag in parameter.opts if flag in FLAGS), None)


def _complete(what: str, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
    """The names that begin so; none where they cannot be had."""
    try:
        names = _names(what, ctx)
    except Exception:  # noqa: BLE001 -- a shell shows whatever is printed amid a person's line
        return []
    return [CompletionItem(name) for name in sorted(names)[:NAMES_MAX] if name.startswith(incomplete)]


def _names(what: str, ctx: click.Context) -> list[str]:
    if what == "options":
        return list(OPTIONS)
    if what in ("contexts", "clusters"):
        file = load(path_of_file())
        if what == "contexts":
            return list(file.contexts)
        name = ctx.params.get("context_name") or os.environ.get("ISTHMUS_CONTEXT") or file.current
        return list(file.contexts[name].clusters)
    admin = ctx.params.get("admin")
    return _live(what, admin) if isinstance(admin, AdminClient) else []


def _live(what: str, admin: AdminClient) -> list[str]:
    """Names of the cluster, remembered or asked for."""
    place = _cache_file(what, admin)
    remembered = _remembered(place)
    if remembered is not None:
        return remembered
    path, key, name = LISTINGS[what]
    quick = admin.with_timeout(TIMEOUT_S)
    try:
        names = [str(row[name]) for row in objects_in(quick.get(path), key) if name in row]
    except Exception:  # noqa: BLE001 -- remembered as well: the next TAB must not wait again
        names = []
    finally:
        quick.close()
    _remember(place, names)
    return names


def _cache_file(what: str, admin: AdminClient) -> Path:
    base = os.environ.get("XDG_CACHE_HOME", "")
    folder = (Path(base) if os.path.isabs(base) else Path.home() / ".cache") / "isthmus" / "names"
    token = "" if admin.token is None else admin.token()  # another role may see other names
    identity = "\n".join((what, *admin.urls, hashlib.sha256(token.encode()).hexdigest()))
    return folder / f"{hashlib.sha256(identity.encode()).hexdigest()[:32]}.json"


def _remembered(place: Path) -> list[str] | None:
    try:
        with place.open("rb") as file:
            age_s = time.time() - os.fstat(file.fileno()).st_mtime
            raw = file.read(CACHE_BYTES_MAX + 1)
        names = json.loads(raw) if 0 <= age_s < FRESH_S and len(raw) <= CACHE_BYTES_MAX else None
    except (OSError, ValueError, RecursionError):
        return None
    return names if isinstance(names, list) and all(isinstance(name, str) for name in names) else None


def _remember(place: Path, names: list[str]) -> None:
    try:
        place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        for old in [*place.parent.glob("*.json"), *place.parent.glob("*.new")]:
            with contextlib.suppress(FileNotFoundError):
                if time.time() - old.stat().st_mtime > FRESH_S:
                    old.unlink()
        descriptor, name = tempfile.mkstemp(dir=place.parent, suffix=".new")
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                json.dump(names, file)
            os.replace(name, place)
        except BaseException:
            os.unlink(name)
            raise
    except OSError:
        return
