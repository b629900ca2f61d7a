"""What this node's sink was given and this cluster refuses for good, kept for people: bounded, and on disk.

One row a key, queue and source: a newer refusal of the same key replaces the older, so a batch that comes again after
a crash is not listed twice. A row is on disk before its change is acknowledged. The object is kept with it as long as
there is room, so that a retry can push it again; beyond the limit of bytes the oldest objects go first (their names
stay). Beyond the limit of rows a new one is not kept, but counted, and becomes a gap at its source. Values are never
shown. SQLite keeps the file; no other room opens it.
"""

from __future__ import annotations

import contextlib
import sqlite3
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import structlog

from isthmus.repl.model.errors import LocalFault
from isthmus.repl.model.keys import Key

log = structlog.get_logger(__name__)

FILE_NAME: Final = "dead-letters.sqlite"

BUSY_TIMEOUT_S: Final = 5.0
"""How long a statement waits for another process that looks into the file, such as a backup."""

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
    """A change that this cluster refuses for good. `source` is the uuid of the cluster that gave it; `payload` its
    object's bytes, None when they are not kept; `id` 0 until it is written."""

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

    def shown(self) -> dict[str, Any]:
        """For listings; bytes that are no text are escaped."""
        return {
            "id": self.id,
            "at_ms": self.at_ms,
            "queue": self.queue,
            "peer": self.peer,
            "source_cluster": self.source_name,
            "key": [part.decode("utf-8", "backslashreplace") for part in self.key],
            "reason": self.reason,
            "error": self.error,
            "size_bytes": self.size,
            "object_kept": self.payload is not None,
            "tries": self.tries,
        }


class DeadLetters:
    """The file of one node, opened when first needed. Safe for several threads. Every method raises LocalFault when
    the disk refuses; a file that is damaged is put aside with a word in the log, and a new one begun."""

    def __init__(self, path: Path, limit_count: int, limit_bytes: int) -> None:
        self._path = path
        self._limit_count = limit_count
        self._limit_bytes = limit_bytes
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None
        self._counts: tuple[int, int] | None = None
        """As they were when the file was last looked into."""

    def add(self, letters: Sequence[DeadLetter]) -> list[int]:
        """On disk when it returns, but for those of which there is no room: their indexes. A newer letter of a key that
        has one takes its place."""

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
        """`after` stands where `before` stood, as it was found; with None nothing does. What was written, or forgotten,
        of that key meanwhile stays."""

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

    def of_key(self, key: Key) -> list[DeadLetter]:
        """Those of one key, as `letters` has them."""
        names = "bucket_type=? AND bucket=? AND name=?"
        statement = f"SELECT {_WITHOUT_OBJECT} FROM letters WHERE {names} ORDER BY id"  # noqa: S608
        return [_letter(row) for row in self._rows(statement, tuple(key))]

    def find(self, number: int) -> DeadLetter | None:
        """One letter with its object."""
        rows = self._rows(f"SELECT {_COLUMNS} FROM letters WHERE id=?", (number,))  # noqa: S608
        return _letter(rows[0]) if rows else None

    def next_kept(self, after: int, count: int) -> list[DeadLetter]:
        """Up to `count` letters behind the one of that number whose objects are kept, with these."""
        statement = f"SELECT {_COLUMNS} FROM letters WHERE id>? AND payload IS NOT NULL ORDER BY id LIMIT ?"  # noqa: S608
        return [_letter(row) for row in self._rows(statement, (after, count))]

    def drop(self, numbers: Sequence[int]) -> int:
        """Forget these; how many there were."""
        statement = "DELETE FROM letters WHERE id=?"
        dropped: int = self._run(lambda c: sum(c.execute(statement, (number,)).rowcount for number in numbers))
        return dropped

    def look(self) -> None:
        """Have the numbers of `counts`."""
        self._rows("SELECT 1", ())

    def counts(self) -> tuple[int, int] | None:
        """(letters kept, letters given up because there were too many, ever), as of the last look into the file; None
        before the first. From memory: who asks must not wait for a disk, or for a backup that holds the file."""
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
                return self._worked(work)
            except sqlite3.OperationalError as error:
                raise LocalFault(f"{self._path}: {error}") from error
            except sqlite3.DatabaseError as error:
                self._put_aside(error)
            try:
                return self._worked(work)
            except sqlite3.Error as error:
                raise LocalFault(f"{self._path}: {error}") from error

    def _worked(self, work: Any) -> Any:
        connection = self._opened()
        with connection:
            result = work(connection)
            counts = connection.execute(_COUNTS).fetchone()
        self._counts = counts
        return result

    def _opened(self) -> sqlite3.Connection:
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

    def _put_aside(self, error: sqlite3.DatabaseError) -> None:
        if self._connection is not None:
            with contextlib.suppress(sqlite3.Error):
                self._connection.close()
            self._connection = None
        aside = self._path.with_name(f"{self._path.name}.damaged-{time.time_ns() // 1_000_000_000}")
        try:
            self._path.rename(aside)
        except OSError as refused:
            raise LocalFault(f"{self._path}: {error}; it could not be put aside: {refused.strerror}") from error
        log.error("sink.dead_letters_damaged", file=str(self._path), put_aside=str(aside), error=str(error))


def _letter(row: Sequence[Any]) -> DeadLetter:
    number, at_ms, queue, peer, source, source_name, *key, reason, error, size, tries, payload = row
    return DeadLetter(at_ms, queue, peer, source, source_name, Key(*key), reason, error, size, payload, tries, number)
