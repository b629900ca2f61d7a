"""The manifest of a backup: positions of partitions, sizes and hashes of files.

`backup.json` has two keys: `manifest`, and `xxh64`, the hash of the manifest as JSON with sorted keys and no spaces.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import Any, Final

import msgspec
from xxhash import xxh64, xxh64_hexdigest

from isthmus.repl.model.errors import BadInput, Corruption, LocalFault

NAME: Final = "backup.json"
"""The manifest's file in a backup; written last."""

VERSION: Final = 1
"""Version of the manifest and of the layout; a program refuses others."""

MANIFEST_BYTES_MAX: Final = 64 * 1024 * 1024
"""Largest manifest that is read: some 500,000 files, or a terabyte in LevelDB's tables of 2 MB. A larger one is refused
when it is written."""

CHUNK_BYTES: Final = 1024 * 1024
"""Bytes read and written at once: the memory that a copy takes, whatever the size of the files."""

INCOMPLETE: Final = ".incomplete"
"""Suffix of a backup's directory until it is complete."""

Passed = Callable[[int], None]
"""Called with each number of bytes that were read."""


class PartitionPosition(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A partition's replica in the backup. The rows hold all entries below `floor` and some below `applied`, the log
    those from `log_start` to `log_end`; with `in_transfer` it was receiving another node's rows, and none counts."""

    partition: int
    applied: int | None
    floor: int
    log_start: int
    log_end: int
    in_transfer: bool


class BackupFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One file, by its path below the backup's directory."""

    path: str
    size_bytes: int
    xxh64: str


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """See the module. Times are of the wall clock; everything acknowledged before `begun_ms` that this node held is in
    the backup."""

    version: int
    program: str
    cluster: str | None
    cluster_uuid: str
    node: str
    begun_ms: int
    ended_ms: int
    metastore_copy_ms: int | None
    partitions: list[PartitionPosition]
    files: list[BackupFile]

    @property
    def size_bytes(self) -> int:
        """Bytes of all files, without the manifest."""
        return sum(file.size_bytes for file in self.files)


def encode(manifest: Manifest) -> bytes:
    """The content of `backup.json`. Raises LocalFault for one that is too large."""
    body = msgspec.to_builtins(manifest)
    data = json.dumps({"manifest": body, "xxh64": _hash_of(body)}, indent=1).encode() + b"\n"
    if len(data) > MANIFEST_BYTES_MAX:
        raise LocalFault(f"the manifest would have {len(data)} bytes, at most {MANIFEST_BYTES_MAX} are read")
    return data


def decode(data: bytes, where: Path) -> Manifest:
    """The manifest in `data`. Raises Corruption, and LocalFault for another version."""
    try:
        document = json.loads(data)
        body, digest = document["manifest"], document["xxh64"]
        version = body["version"]
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise Corruption(f"{where} is damaged: it is not a manifest ({error})") from error
    if digest != _hash_of(body):
        raise Corruption(f"{where} is damaged: its content does not have its hash")
    if version != VERSION:
        raise LocalFault(
            f"{where} is of version {version!r:.20}, this program reads {VERSION}: use the one that made it"
        )
    try:
        manifest = msgspec.convert(body, Manifest)
    except msgspec.ValidationError as error:
        raise Corruption(f"{where} is damaged: {error}") from error
    for file in manifest.files:
        path = PurePosixPath(file.path)
        if path.is_absolute() or not path.parts or ".." in path.parts or str(path) != file.path:
            raise Corruption(f"{where} is damaged: {file.path!r} is not a path below the backup")
    return manifest


def load(directory: Path) -> Manifest:
    """The manifest of the backup in `directory`. Raises BadInput where there is none, Corruption, LocalFault."""
    path = directory / NAME
    try:
        with path.open("rb") as file:
            data = file.read(MANIFEST_BYTES_MAX + 1)
    except (FileNotFoundError, NotADirectoryError):
        why = "it was not completed" if directory.name.endswith(INCOMPLETE) else f"it has no {NAME}"
        raise BadInput(f"{directory} is not a backup: {why}") from None
    except OSError as error:
        raise LocalFault(f"cannot read {path}: {error.strerror}") from error
    if len(data) > MANIFEST_BYTES_MAX:
        raise Corruption(f"{path} is damaged: it has more than {MANIFEST_BYTES_MAX} bytes")
    return decode(data, path)


def hash_file(path: Path, passed: Passed, *, sync: bool = False) -> tuple[int, str]:
    """Size and hash of a file; with `sync` its content is on disk on return. Raises OSError."""
    digest, size = xxh64(), 0
    with path.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            digest.update(chunk)
            size += len(chunk)
            passed(len(chunk))
        if sync:
            os.fsync(file.fileno())
    return size, digest.hexdigest()


def files_below(directory: Path) -> Iterator[str]:
    """Paths of all files below `directory`, sorted, relative to it, with slashes."""
    found = (Path(base, name) for base, _, names in os.walk(directory) for name in names)
    yield from sorted(path.relative_to(directory).as_posix() for path in found)


def _hash_of(body: Any) -> str:
    return xxh64_hexdigest(json.dumps(body, sort_keys=True, separators=(",", ":")).encode())
