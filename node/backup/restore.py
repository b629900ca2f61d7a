"""Check a backup against its manifest, and restore it into an empty directory.

The identity is written last: a node refuses a directory with data and without an identity, so that none starts on a
restoration that did not end.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final, NamedTuple

from isthmus.node.backup.create import Progress
from isthmus.node.backup.file_copy import check_space, copy_file
from isthmus.node.backup.manifest import NAME, Manifest, files_below, hash_file, load
from isthmus.repl.model.errors import BadInput, Corruption
from isthmus.repl.storage.identity import NAME as IDENTITY
from isthmus.repl.storage.slot_file import sync_directory

IGNORED: Final = frozenset({"lost+found"})
"""Entries of a file system itself: a directory with these alone counts as empty."""


class BackupFault(NamedTuple):
    """A file of a backup that is not as the manifest has it."""

    path: str
    problem: str


def verify(directory: Path, progress: Progress) -> tuple[Manifest, list[BackupFault]]:
    """Read every file of a backup; returns the manifest and what is wrong. Raises BadInput where there is no backup,
    Corruption for a damaged manifest, LocalFault."""
    manifest = load(directory)
    faults, done = [], 0
    all_bytes = manifest.size_bytes

    def passed(size_bytes: int) -> None:
        nonlocal done
        done += size_bytes
        progress("verifying", done, all_bytes)

    for file in manifest.files:
        path = directory / file.path
        try:
            size_bytes = path.stat().st_size
            if size_bytes != file.size_bytes:
                faults.append(BackupFault(file.path, f"it has {size_bytes} bytes, not {file.size_bytes}"))
            elif hash_file(path, passed)[1] != file.xxh64:
                faults.append(BackupFault(file.path, "its content does not have its hash"))
        except FileNotFoundError:
            faults.append(BackupFault(file.path, "it is missing"))
        except OSError as error:
            faults.append(BackupFault(file.path, f"it cannot be read: {error.strerror}"))
    known = {file.path for file in manifest.files} | {NAME}
    faults += [
        BackupFault(path, "it does not belong to the backup") for path in files_below(directory) if path not in known
    ]
    return manifest, faults


def restore(directory: Path, data_dir: Path, manifest: Manifest, progress: Progress) -> None:
    """Copy a verified backup to `data_dir`, which is made, or is empty. Raises BadInput, Corruption, LocalFault,
    OSError."""
    check_empty(data_dir)
    check_space(data_dir, manifest.size_bytes)
    data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    done = 0

    def passed(size_bytes: int) -> None:
        nonlocal done
        done += size_bytes
        progress("restoring", done, 2 * manifest.size_bytes)

    for file in sorted(manifest.files, key=lambda file: file.path.startswith(f"{IDENTITY}.")):
        source, target = directory / file.path, data_dir / file.path
        target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        copy_file(source, target, passed)
        if hash_file(target, passed, sync=True) != (file.size_bytes, file.xxh64):
            raise Corruption(
                f"{target} differs from {file.path} of the manifest: empty {data_dir} and repeat the command"
            )
    for base, _, _ in os.walk(data_dir):
        sync_directory(Path(base))


def check_empty(data_dir: Path) -> None:
    """Raise BadInput unless `data_dir` is empty or not there."""
    if not data_dir.exists():
        return
    if not data_dir.is_dir() or any(path.name not in IGNORED for path in data_dir.iterdir()):
        raise BadInput(f"{data_dir} is not empty: a backup is restored into an empty directory, or a new one")
