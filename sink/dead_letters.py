"""Dead letters: changes that this cluster refuses permanently, kept for operators in a bounded list on disk.

One row per key, queue and source: a newer refusal of a key replaces the older one, so a batch that comes again after a
crash is not listed twice. A row is on disk before its change is acknowledged. The object is kept with it while there is
space, so that a retry can push it again; beyond the limit of bytes the oldest objects are removed first (their rows
stay). Beyond the limit of rows a new letter is not kept but counted, and becomes a gap at its source. Values are never
listed. The file is an SQLite database that only this module opens.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import structlog

from isthmus.repl.machine import machine
from isthmus.repl.model.errors import LocalFault
from isthmus.repl.model.keys import Key

log = structlog.get_logger(__name__)

FILE_NAME: Final = "dead-letters.sqlite"

BUSY_TIMEOUT_S: Final = 5.0
"""How long a statement waits for another process that reads the file, such as a backup."""

_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS letters (
    id INTEGER PRIMARY KEY AUTOINCREMENT, at_ms INTEGER NOT NULL, queue TEXT NOT NULL, peer TEXT NOT NULL,
    source BLOB NOT NULL, source_name TEXT NOT NULL, bucket_type BLOB NOT NULL, bucket BLOB NOT NULL,
    name BLOB NOT NULL, reason TEXT NOT NULL, error TEXT NOT NULL, size INTEGER NOT NULL, tries INTEGER NOT NULL,
    payload BLOB, UNIQUE (source, queue, bucket_type, bucket, name));
CREATE TABLE IF NOT EXISTS totals (name TEXT PRIMARY KEY, count INTEGER NOT NULL);
"""

_WRITE: Final = """
INSERT INTO letters (at_ms, queue, peer, source, source_name, bucket_type, bucket, name, reason, error, size, payload,
    tries) VALUES (?,?,?,?,?,?,?,?,?,?,?,?,1)
ON CONFLICT DO UPDATE SET at_ms=excluded.at_ms, peer=excluded.peer, source_name=excluded.source_name,
    reason=excluded.reason, error=excluded.error, size=excluded.size, payload=excluded.payload, tries=tries+1
"""

_KNOWN: Final = "SELECT 1 FROM letters WHERE source=? AND queue=? AND bucket_type=? AND bucket=? AND name=?"

_COUNTS: Final = (
    "SELECT (SELECT COUNT(*) FROM letters), COALESCE((SELECT count FROM totals WHERE name='overflowed'), 0)"
)

_COLUMNS: Final = (
    "id, at_ms, queue, peer, source, source_name, bucket_type, bucket, name, reason, error, size, tries, payload"
)

_WITHOUT_OBJECT: Final = _COLUMNS.replace("payload", "CASE WHEN payload IS NULL THEN NULL ELSE x'' END")


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A change that this cluster refuses permanently. `source` is the uuid of the cluster that sent it; `payload` the
    bytes of its object, None when they are not kept; `id` is 0 until it is written."""

    at_ms: int
    queue: str
    peer: str
    source: bytes
    source_name: str
    key: Key
    reason: str
    error: str
    size: int
    payload: bytes | None
    tries: int = 1
    id: int = 0


class DeadLetters:
    """The dead letters of one node; opens the file when first needed. Safe for several threads. Every method raises
    LocalFault when the disk fails; a damaged file is renamed and logged, and a new one begun."""

    def __init__(self, path: Path, limit_count: int, limit_bytes: int) -> None:
        self._path = path
        self._limit_count = limit_count
        self._limit_bytes = limit_bytes
        self._lock = machine().lock()
        self._connection: sqlite3.Connection | None = None
        self._counts: tuple[int, int] | None = None
        """Counts at the last access to the file."""

    def add(self, letters: Sequence[DeadLetter]) -> list[int]:
        """Write letters to disk; returns the indexes of those for which there is no space. A letter replaces an older
        one of its key."""

        def write(connection: sqlite3.Connection) -> list[int]:
            left_out = []
            count = connection.execute("SELECT COUNT(*) FROM letters").fetchone()[0]
            for at, letter in enumerate(letters):
                known = connection.execute(_KNOWN, (letter.source, letter.queue, *letter.key)).fetchone()
                if known is None and count >= self._limit_count:
                    left_out.append(at)
                    continue
                count += known is None
                self._put(connection, letter)
            self._objects_within_limit(connection)
            if left_out:
                connection.execute(
                    "INSERT INTO totals VALUES ('overflowed', ?) ON CONFLICT (name) DO UPDATE SET count = count + ?",
                    (len(left_out), len(left_out)),
                )
                log.warning("sink.dead_letters_overflow", given_up=len(left_out), limit=self._limit_count)
            return left_out

        found: list[int] = self._run(write)
        return found

    def replace(self, before: DeadLetter, after: DeadLetter | None) -> None:
        """Replace the letter `before`, as it was read, by `after`; None removes it. Concurrent changes of that key
        stay."""

        def write(connection: sqlite3.Connection) -> None:
            known = (before.id, before.tries)
            if connection.execute("SELECT 1 FROM letters WHERE id=? AND tries=?", known).fetchone() is None:
                return
            if after is None:
                connection.execute("DELETE FROM letters WHERE id=?", (before.id,))
            else:
                self._put(connection, after)
                self._objects_within_limit(connection)

        self._run(write)

    def _put(self, connection: sqlite3.Connection, letter: DeadLetter) -> None:
        payload = letter.payload if letter.size <= self._limit_bytes else None
        row = (letter.at_ms, letter.queue, letter.peer, letter.source, letter.source_name, *letter.key)
        connection.execute(_WRITE, (*row, letter.reason, letter.error, letter.size, payload))

    def _objects_within_limit(self, connection: sqlite3.Connection) -> None:
        held = connection.execute("SELECT id, size FROM letters WHERE payload IS NOT NULL ORDER BY id").fetchall()
        excess = sum(size for _, size in held) - self._limit_bytes
        for number, size in held:
            if excess <= 0:
                break
            connection.execute("UPDATE letters SET payload=NULL WHERE id=?", (number,))
            excess -= size

    def letters(self) -> list[DeadLetter]:
        """All letters, the oldest first; of those whose object is kept `payload` is empty, not None."""
        return [_letter(row) for row in self._rows(f"SELECT {_WITHOUT_OBJECT} FROM letters ORDER BY id", ())]  # noqa: S608

    def page(self, after: int, limit: int) -> tuple[list[DeadLetter], tuple[int, int]]:
        """The oldest letters with numbers above `after`, at most `limit`, as `letters` has them; and `counts`."""
        statement = f"SELECT {_WITHOUT_OBJECT} FROM letters WHERE id>? ORDER BY id LIMIT ?"  # noqa: S608
        found = [_letter(row) for row in self._rows(statement, (after, limit))]
        return found, self._counts or (0, 0)

    def of_key(self, key: Key) -> list[DeadLetter]:
        """Those of one key, as `letters` has them."""
        names = "bucket_type=? AND bucket=? AND name=?"
        statement = f"SELECT {_WITHOUT_OBJECT} FROM letters WHERE {names} ORDER BY id"  # noqa: S608
        return [_letter(row) for row in self._rows(statement, tuple(key))]

    def of_reason(self, reason: str) -> list[int]:
        """The numbers of those with this reason, the oldest first."""
        return [row[0] for row in self._rows("SELECT id FROM letters WHERE reason=? ORDER BY id", (reason,))]

    def find(self, number: int) -> DeadLetter | None:
        """One letter with its object."""
        rows = self._rows(f"SELECT {_COLUMNS} FROM letters WHERE id=?", (number,))  # noqa: S608
        return _letter(rows[0]) if rows else None

    def next_kept(self, after: int, count: int) -> list[DeadLetter]:
        """Up to `count` letters after number `after` whose objects are kept, with their objects."""
        statement = f"SELECT {_COLUMNS} FROM letters WHERE id>? AND payload IS NOT NULL ORDER BY id LIMIT ?"  # noqa: S608
        return [_letter(row) for row in self._rows(statement, (after, count))]

    def drop(self, numbers: Sequence[int]) -> int:
        """Remove letters; returns how many there were."""
        statement = "DELETE FROM letters WHERE id=?"
        dropped: int = self._run(lambda c: sum(c.execute(statement, (number,)).rowcount for number in numbers))
        return dropped

    def count(self) -> None:
        """Read the numbers of `counts` from the file."""
        self._rows("SELECT 1", ())

    def counts(self) -> tuple[int, int] | None:
        """(letters kept, letters ever given up because there were too many), as of the last access to the file; None
        before the first. From memory: the caller must not wait for a disk, or for a backup that locks the file."""
        return self._counts

    def close(self) -> None:
        """Close the file; the next call opens it again."""
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    # ---------------------------------------------------------------- the file

    def _rows(self, statement: str, values: Sequence[Any]) -> Any:
        if not self._path.exists():
            self._counts = (0, 0)
            return []
        return self._run(lambda c: c.execute(statement, values).fetchall())

    def _run(self, work: Any) -> Any:
        with self._lock:
            try:
                return self._run_once(work)
            except sqlite3.OperationalError as error:
                raise LocalFault(f"{self._path}: {error}") from error
            except sqlite3.DatabaseError as error:
                self._rename_damaged(error)
            try:
                return self._run_once(work)
            except sqlite3.Error as error:
                raise LocalFault(f"{self._path}: {error}") from error

    def _run_once(self, work: Any) -> Any:
        connection = self._open()
        with connection:
            result = work(connection)
            counts = connection.execute(_COUNTS).fetchone()
        self._counts = counts
        return result

    def _open(self) -> sqlite3.Connection:
        if self._connection is None:
            connection = sqlite3.connect(self._path, timeout=BUSY_TIMEOUT_S, check_same_thread=False)
            try:
                connection.execute("PRAGMA journal_mode=DELETE")
                connection.execute("PRAGMA synchronous=EXTRA")  # the journal's directory entry, too, is on disk
                connection.executescript(_SCHEMA)
            except BaseException:
                connection.close()
                raise
            self._connection = connection
        return self._connection

    def _rename_damaged(self, error: sqlite3.DatabaseError) -> None:
        if self._connection is not None:
            with contextlib.suppress(sqlite3.Error):
                self._connection.close()
            self._connection = None
        aside = self._path.with_name(f"{self._path.name}.damaged-{machine().wall_ns() // 1_000_000_000}")
        try:
            self._path.rename(aside)
        except OSError as refused:
            raise LocalFault(f"{self._path}: {error}; it could not be put aside: {refused.strerror}") from error
        log.error("sink.dead_letters_damaged", file=str(self._path), put_aside=str(aside), error=str(error))


def _letter(row: Sequence[Any]) -> DeadLetter:
    number, at_ms, queue, peer, source, source_name, *key, reason, error, size, tries, payload = row
    return DeadLetter(at_ms, queue, peer, source, source_name, Key(*key), reason, error, size, payload, tries, number)
