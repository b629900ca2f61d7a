"""The context file: addresses and credential files of clusters, typed once and named.

    current = "production"

    [contexts.production]
    cluster = "east"                       # the one that is meant without --cluster

    [contexts.production.clusters.east]
    admin = ["https://east-1:8099", "https://east-2:8099"]
    http = ["https://east-1:8098"]         # for `isthmus kv`; without it a node is asked
    token_file = "/etc/isthmus/east.token"    # a token itself is never written here
    ca = "/etc/isthmus/ca.pem"
    cert = "/etc/isthmus/ann.pem"
    key = "/etc/isthmus/ann.key"

It is `isthmus/contexts.toml` in XDG_CONFIG_HOME (~/.config), or the file that ISTHMUS_CONTEXTS names, with mode 0600.
`isthmus context` writes it anew: comments in it are not kept.
"""

from __future__ import annotations

import json
import os
import stat
import tempfile
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from isthmus.config.loader import ConfigError, Fault, syntax_fault
from isthmus.config.text import no_such, shown
from isthmus.config.toml_lines import KeyPath, line_of_keys
from isthmus.config.validation import check_name, check_peer_url
from isthmus.node.cli.exit_codes import CommandFailed, Exit
from isthmus.repl.model.errors import LocalFault

FILE_VARIABLE: Final = "ISTHMUS_CONTEXTS"

FILE_BYTES_MAX: Final = 1_000_000
"""A context takes some hundred bytes; a larger file was named by mistake."""

CLUSTERS_MAX: Final = 16
"""Most clusters of a context: `isthmus status` asks all of them at once."""

ADDRESSES_MAX: Final = 32
"""Most addresses of one kind: one that answers is enough."""

FILES: Final = ("token_file", "ca", "cert", "key")
"""Keys of a cluster that name files."""


class ClusterEntry(msgspec.Struct, frozen=True):
    """One cluster of a context. Empty texts are not set."""

    admin: tuple[str, ...]
    http: tuple[str, ...] = ()
    token_file: str = ""
    ca: str = ""
    cert: str = ""
    key: str = ""


class ContextEntry(msgspec.Struct, frozen=True):
    """One context. `cluster`: the one that is meant without `--cluster`; "" for none."""

    clusters: dict[str, ClusterEntry]
    cluster: str = ""

    def chosen(self, context: str, wanted: str) -> str:
        """The name of the cluster that is meant. Raises CommandFailed (usage)."""
        if wanted and wanted not in self.clusters:
            raise CommandFailed(
                Exit.USAGE, "usage", f"context {context}: {no_such('cluster', wanted, list(self.clusters))}"
            )
        name = wanted or self.cluster or (next(iter(self.clusters)) if len(self.clusters) == 1 else "")
        if not name:
            names = ", ".join(self.clusters)
            sentence = f"context {context} has clusters {names}: --cluster NAME chooses one, `isthmus context use"
            raise CommandFailed(Exit.USAGE, "usage", f"{sentence} {context} --cluster NAME` for good")
        return name


class ContextFile(msgspec.Struct, frozen=True):
    """All contexts. `current`: the one that is meant without `--context`; "" for none."""

    contexts: dict[str, ContextEntry]
    current: str = ""

    def named(self, name: str) -> ContextEntry:
        """A context. Raises CommandFailed (usage)."""
        if name not in self.contexts:
            hint = "" if self.contexts else "; `isthmus context add` makes one"
            raise CommandFailed(Exit.USAGE, "usage", no_such("context", name, list(self.contexts)) + hint)
        return self.contexts[name]


def path_of_file() -> Path:
    """Where the context file is, or would be."""
    own = os.environ.get(FILE_VARIABLE)
    if own:
        return Path(own)
    home = os.environ.get("XDG_CONFIG_HOME", "")
    base = Path(home) if os.path.isabs(home) else Path.home() / ".config"  # the XDG specification ignores others
    return base / "isthmus" / "contexts.toml"


def load(path: Path) -> ContextFile:
    """The contexts of a file; none where there is no file. Raises ConfigError with all faults, LocalFault."""
    try:
        with path.open("rb") as file:
            found = os.fstat(file.fileno())
            raw = file.read(FILE_BYTES_MAX + 1)
    except (FileNotFoundError, NotADirectoryError):
        return ContextFile({})
    except OSError as error:
        raise LocalFault(f"{path} cannot be read: {(error.strerror or str(error)).lower()}") from error
    if found.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        mode = f"{stat.S_IMODE(found.st_mode):04o}"
        raise ConfigError(str(path), [Fault("", 0, f"has mode {mode}, others may use it: chmod 600 {path}")])
    if found.st_uid not in (os.getuid(), 0):
        raise ConfigError(str(path), [Fault("", 0, f"belongs to user id {found.st_uid}, not to you")])
    if len(raw) > FILE_BYTES_MAX:
        raise ConfigError(str(path), [Fault("", 0, f"is larger than {FILE_BYTES_MAX} bytes: no context file is")])
    return _parsed(raw, path)


def _parsed(raw: bytes, path: Path) -> ContextFile:
    try:
        text = raw.decode("utf-8-sig").replace("\r\n", "\n")
        values = tomllib.loads(text)
        lines = line_of_keys(text)
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise ConfigError(str(path), [Fault("", line, "is not UTF-8")]) from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(str(path), [syntax_fault(text, str(error))]) from None
    except (ValueError, RecursionError):
        raise ConfigError(str(path), [Fault("", 0, "has a number that is too long, or is nested too deep")]) from None
    reader = _Reader(lines)
    found = reader.file(values)
    if reader.faults:
        raise ConfigError(str(path), sorted(reader.faults, key=lambda fault: (fault.line, fault.path)))
    return found


class _Reader:
    """Reads the parsed TOML; collects faults and goes on after each."""

    def __init__(self, lines: Mapping[KeyPath, int]) -> None:
        self._lines = lines
        self.faults: list[Fault] = []

    def file(self, values: dict[str, Any]) -> ContextFile:
        self._known(values, (), ("current", "contexts"))
        contexts = {
            name: self._context(table, ("contexts", name))
            for name, table in self._tables(values.get("contexts", {}), ("contexts",))
        }
        current = self._text(values, (), "current")
        if current and current not in contexts:
            self._fault(("current",), no_such("context", current, list(contexts)))
        return ContextFile(contexts, current)

    def _context(self, values: dict[str, Any], where: KeyPath) -> ContextEntry:
        self._known(values, where, ("cluster", "clusters"))
        inner = (*where, "clusters")
        clusters = {
            name: self._cluster(table, (*inner, name))
            for name, table in self._tables(values.get("clusters", {}), inner)
        }
        if not 1 <= len(clusters) <= CLUSTERS_MAX:
            self._fault(where, f"has {len(clusters)} clusters; 1 to {CLUSTERS_MAX} are right")
        cluster = self._text(values, where, "cluster")
        if cluster and cluster not in clusters:
            self._fault((*where, "cluster"), no_such("cluster", cluster, list(clusters)))
        return ContextEntry(clusters, cluster)

    def _cluster(self, values: dict[str, Any], where: KeyPath) -> ClusterEntry:
        self._known(values, where, ("admin", "http", *FILES))
        files = {key: self._text(values, where, key) for key in FILES}
        for key, value in files.items():
            if value and not os.path.isabs(value):
                self._fault((*where, key), f"{shown(value)} is not an absolute path")
        if bool(files["cert"]) != bool(files["key"]):
            self._fault((*where, "cert" if files["cert"] else "key"), "cert and key belong together")
        admin = self._addresses(values, where, "admin")
        if not admin and "admin" not in values:
            self._fault(where, "admin is missing: a list of URLs of admin listeners")
        return ClusterEntry(admin, self._addresses(values, where, "http"), **files)

    def _addresses(self, values: dict[str, Any], where: KeyPath, key: str) -> tuple[str, ...]:
        listed = values.get(key, [])
        if not isinstance(listed, list) or not all(isinstance(each, str) for each in listed):
            self._fault((*where, key), 'write a list of URLs: ["https://east-1:8099"]')
            return ()
        found = []
        for each in listed:
            try:
                found.append(check_peer_url(each))
            except ValueError as error:
                self._fault((*where, key), str(error))
        if key in values and not 1 <= len(listed) <= ADDRESSES_MAX:
            self._fault((*where, key), f"has {len(listed)} addresses; 1 to {ADDRESSES_MAX} are right")
        return tuple(found)

    def _tables(self, values: Any, where: KeyPath) -> Iterator[tuple[str, dict[str, Any]]]:
        if not isinstance(values, dict):
            self._fault(where, f"is not a table; write sections [{'.'.join(map(str, where))}.NAME]")
            return
        for name, table in values.items():
            try:
                check_name(name)
            except ValueError as error:
                self._fault((*where, name), str(error))
            if isinstance(table, dict):
                yield name, table
            else:
                self._fault((*where, name), f"is not a table; write a section [{'.'.join(map(str, (*where, name)))}]")

    def _text(self, values: dict[str, Any], where: KeyPath, key: str) -> str:
        value = values.get(key, "")
        if isinstance(value, str):
            return value
        self._fault((*where, key), f"{shown(value)} is not text; write it in quotes")
        return ""

    def _known(self, values: dict[str, Any], where: KeyPath, keys: tuple[str, ...]) -> None:
        for name in values:
            if name == "token":
                self._fault(
                    (*where, name), "a token does not belong here: write it into a file, and name it: token_file"
                )
            elif name not in keys:
                self._fault((*where, name), f"unknown key; there are {', '.join(keys)}")

    def _fault(self, where: KeyPath, message: str) -> None:
        at = where
        while at and at not in self._lines:
            at = at[:-1]
        self.faults.append(Fault(".".join(map(str, where)), self._lines.get(at, 1), message))


def save(path: Path, file: ContextFile) -> None:
    """Replace the file, in one step. Raises OSError."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    number, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")  # of mode 0600
    try:
        with os.fdopen(number, "w", encoding="utf-8") as written:
            written.write(text_of(file))
            written.flush()
            os.fsync(written.fileno())
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise


def text_of(file: ContextFile) -> str:
    """The file as TOML."""
    lines = ["# Written by `isthmus context`; comments are not kept."]
    lines += [f"current = {_quoted(file.current)}"] * bool(file.current)
    for name, context in file.contexts.items():
        lines += ["", f"[contexts.{_quoted(name)}]"]
        lines += [f"cluster = {_quoted(context.cluster)}"] * bool(context.cluster)
        for cluster, entry in context.clusters.items():
            lines += ["", f"[contexts.{_quoted(name)}.clusters.{_quoted(cluster)}]"]
            for key, value in msgspec.to_builtins(entry).items():
                lines += [f"{key} = {_quoted(value)}"] * bool(value)
    return "\n".join(lines) + "\n"


def _quoted(value: Any) -> str:
    """A text or a list of texts; JSON's escapes are TOML's."""
    return json.dumps(value, ensure_ascii=False)
