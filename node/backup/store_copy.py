"""A copy of a store's database while its node writes.

Files are copied in an order from which LevelDB recovers.

LevelDB's state is the tables that its MANIFEST names, and the logs from a number on that the MANIFEST names, too.
Tables are immutable once they are named, logs and the MANIFEST are only appended to, and a file is deleted only when a
later MANIFEST needs it no more. So:

1. Tables are copied first, and again those that are new, until few are: this takes long and promises nothing.
2. The logs are copied, the lower numbers first; then the MANIFEST. A log that the MANIFEST does not need any more is in
   tables, and everything written before this step is in a copied log or in a table that the MANIFEST names.
3. The directory is listed. Tables that are new, or grew since they were copied, are opened all at once, so that a
   deletion does not matter any more, and copied. Copies of tables that are gone are deleted.

A table that the MANIFEST names may still be deleted between steps 2 and 3. LevelDB then refuses to open the copy, which
`create` tries, and the steps 2 and 3 are repeated.
"""

from __future__ import annotations

import re
from contextlib import ExitStack
from pathlib import Path
from typing import BinaryIO, Final

from isthmus.node.backup.file_copy import Raced, copy_file, copy_open
from isthmus.node.backup.manifest import Passed
from isthmus.repl.model.errors import LocalFault

TABLE: Final = re.compile(r"[0-9]+\.(ldb|sst)")

LOG: Final = re.compile(r"[0-9]+\.log")

CURRENT: Final = "CURRENT"
"""The file that names the MANIFEST. LevelDB writes a new one at each open, never later."""

BULK_ROUNDS_MAX: Final = 20
"""Rounds of step 1: each copies what was written during the one before, so that more do not help."""

PINNED_MAX: Final = 128
"""Tables open at once in step 3, of the 1,024 descriptors that a process usually has. With more, step 1 is repeated."""


class StoreCopier:
    """Copies the database in `source` to `target`, which is made."""

    def __init__(self, source: Path, target: Path, passed: Passed) -> None:
        self._source = source
        self._target = target
        self._passed = passed
        self._copied: dict[str, int] = {}
        """Table -> size of its copy."""
        target.mkdir(parents=True, mode=0o700)

    def copy_tables(self) -> None:
        """Step 1. Raises OSError."""
        for _ in range(BULK_ROUNDS_MAX):
            new = self._new_tables()
            for name in new:
                try:
                    self._copied[name] = copy_file(self._source / name, self._target / name, self._passed)
                except FileNotFoundError:
                    self._drop(name)
            if len(new) <= PINNED_MAX // 4:
                return

    def cut(self) -> None:
        """Steps 2 and 3; may be repeated. Raises Raced, LocalFault, OSError."""
        for path in self._target.iterdir():
            if path.name not in self._copied:  # of an attempt before
                path.unlink()
        current = self._current()
        for name in sorted(self._names(LOG), key=lambda name: int(name.partition(".")[0])):
            try:
                copy_file(self._source / name, self._target / name, self._passed)
            except FileNotFoundError:
                continue
        manifest = current.decode("ascii", "replace").strip()
        if not re.fullmatch(r"MANIFEST-[0-9]+", manifest):
            raise LocalFault(f"{self._source / CURRENT} names no MANIFEST: {manifest!r:.40}")
        try:
            copy_file(self._source / manifest, self._target / manifest, self._passed)
        except FileNotFoundError:
            raise Raced("the node was started meanwhile") from None
        self._copy_new_tables()
        if self._current() != current:
            raise Raced("the node was started meanwhile")
        (self._target / CURRENT).write_bytes(current)

    def _copy_new_tables(self) -> None:
        there = self._names(TABLE)
        for name in sorted(self._copied.keys() - there):
            self._drop(name)
        new = self._new_tables()
        if len(new) > PINNED_MAX:
            raise Raced("the store writes tables faster than they are copied")
        with ExitStack() as stack:
            pinned: dict[str, BinaryIO] = {}
            for name in new:
                try:
                    pinned[name] = stack.enter_context((self._source / name).open("rb"))
                except FileNotFoundError:
                    self._drop(name)
            for name, opened in pinned.items():
                self._copied[name] = copy_open(opened, self._target / name, self._passed)

    def _new_tables(self) -> list[str]:
        """Tables that are not copied, or only a part of them."""
        new = []
        for name in sorted(self._names(TABLE)):
            try:
                if self._copied.get(name) != (self._source / name).stat().st_size:
                    new.append(name)
            except FileNotFoundError:
                self._drop(name)
        return new

    def _drop(self, name: str) -> None:
        self._copied.pop(name, None)
        (self._target / name).unlink(missing_ok=True)

    def _names(self, form: re.Pattern[str]) -> set[str]:
        return {path.name for path in self._source.iterdir() if form.fullmatch(path.name)}

    def _current(self) -> bytes:
        try:
            return (self._source / CURRENT).read_bytes()
        except FileNotFoundError:
            raise LocalFault(f"{self._source} has no {CURRENT}: it is not a store, or the node never ran") from None
