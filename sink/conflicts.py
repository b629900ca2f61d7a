"""Conflicts: concurrent writes of two clusters that this node's sink has merged, in a bounded list on disk.

A push that is concurrent with the object here is merged, and both are kept as siblings (or one of them, by the bucket's
properties). The node that fetched the change records key, time, both clocks, peer and the number of siblings. The
newest `limit_count` rows are kept; dropped ones are counted. Rows are written about once a second, off the event loop
and after the acknowledgement: a crash loses those of the last second, and a failing disk loses rows. Nothing depends on
them; the siblings are in the store.
"""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import structlog

from isthmus.repl.machine import machine
from isthmus.repl.model.keys import Key

log = structlog.get_logger(__name__)

FILE_NAME: Final = "conflicts.sqlite"

WRITE_INTERVAL_S: Final = 1.0
"""Interval of writes: the conflicts of a second share one sync of the disk."""

BUSY_TIMEOUT_S: Final = 5.0
"""How long a statement waits for another process that reads the file, such as a backup."""

_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS conflicts (
    id INTEGER PRIMARY KEY AUTOINCREMENT, at_ms INTEGER NOT NULL, queue TEXT NOT NULL, peer TEXT NOT NULL,
    source BLOB NOT NULL, source_name TEXT NOT NULL, bucket_type BLOB NOT NULL, bucket BLOB NOT NULL,
    name BLOB NOT NULL, ours BLOB NOT NULL, theirs BLOB NOT NULL, siblings INTEGER NOT NULL);
"""

_COLUMNS: Final = "at_ms, queue, peer, source, source_name, bucket_type, bucket, name, ours, theirs, siblings"


@dataclass(frozen=True, slots=True)
class SiblingConflict:
    """One conflict: `ours` and `theirs` are the encoded clocks before the merge, `siblings` counts those after it.
    `source` is the uuid of the cluster that sent the change."""

    at_ms: int
    queue: str
    peer: str
    source: bytes
    source_name: str
    key: Key
    ours: bytes
    theirs: bytes
    siblings: int


class Conflicts:
    """The list of one node: the event loop adds, threads write and read. `limit_count` 0: none is kept."""

    def __init__(self, path: Path, limit_count: int) -> None:
        self._path = path
        self.limit_count = limit_count
        self._lock = machine().lock()
        self._connection: sqlite3.Connection | None = None
        self._pending: deque[SiblingConflict] = deque()
        self._writer: asyncio.Task[None] | None = None
        self.noted = 0
        """Conflicts since the node started."""
        self.dropped = 0
        """Conflicts that were dropped because there were too many."""

    def add(self, found: Sequence[SiblingConflict]) -> None:
        """Add conflicts; they are written soon."""
        self.noted += len(found)
        self._pending.extend(found)
        self._drop_excess()
        if self._pending and (self._writer is None or self._writer.done()):
            self._writer = asyncio.get_running_loop().create_task(self._write_soon())

    def _drop_excess(self) -> None:
        over = len(self._pending) - self.limit_count
        for _ in range(over):
            self._pending.popleft()
        self.dropped += max(0, over)

    async def stop(self) -> None:
        """Write the remaining rows, and close the file."""
        if self._writer is not None:
            self._writer.cancel()
            await asyncio.gather(self._writer, return_exceptions=True)
        await asyncio.to_thread(self._write, self._take_pending())
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    async def newest(self, count: int) -> list[SiblingConflict]:
        """The newest `count` conflicts, newest first."""
        with_pending = list(self._pending)
        return await asyncio.to_thread(self._read, with_pending, count)

    # ---------------------------------------------------------------- the file

    async def _write_soon(self) -> None:
        while self._pending:
            await asyncio.sleep(WRITE_INTERVAL_S)
            # Shielded: rows that a thread is writing cannot be taken back.
            await asyncio.shield(asyncio.to_thread(self._write, self._take_pending()))

    def _take_pending(self) -> list[SiblingConflict]:
        taken = list(self._pending)
        self._pending.clear()
        return taken

    def _write(self, rows: Sequence[SiblingConflict]) -> None:
        if not rows:
            return
        values = [(one.at_ms, one.queue, one.peer, one.source, one.source_name, *one.key, one.ours, one.theirs,
                   one.siblings) for one in rows]  # fmt: skip
        with self._lock:
            try:
                connection = self._open()
                with connection:
                    connection.executemany(
                        f"INSERT INTO conflicts ({_COLUMNS}) VALUES (?,?,?,?,?,?,?,?,?,?,?)",  # noqa: S608
                        values,
                    )
                    gone = connection.execute(
                        "DELETE FROM conflicts WHERE id <= (SELECT MAX(id) FROM conflicts) - ?", (self.limit_count,)
                    ).rowcount
                self.dropped += gone
            except (sqlite3.Error, OSError) as error:
                self.dropped += len(rows)
                self._failed(error)

    def _read(self, pending: Sequence[SiblingConflict], count: int) -> list[SiblingConflict]:
        newest = list(pending)[::-1][:count]
        if len(newest) == count or not self._path.exists():
            return newest
        with self._lock:
            try:
                rows = self._open().execute(
                    f"SELECT {_COLUMNS} FROM conflicts ORDER BY id DESC LIMIT ?",  # noqa: S608
                    (count - len(newest),),
                )
                return newest + [
                    SiblingConflict(at_ms, queue, peer, source, name, Key(*key), ours, theirs, siblings)
                    for at_ms, queue, peer, source, name, *key, ours, theirs, siblings in rows.fetchall()
                ]
            except (sqlite3.Error, OSError) as error:
                self._failed(error)
                return newest

    def _open(self) -> sqlite3.Connection:
        if self._connection is None:
            connection = sqlite3.connect(self._path, timeout=BUSY_TIMEOUT_S, check_same_thread=False)
            try:
                connection.executescript(_SCHEMA)
            except BaseException:
                connection.close()
                raise
            self._connection = connection
        return self._connection

    def _failed(self, error: Exception) -> None:
        """Log the error, and delete a damaged file: it held nothing but a list for operators."""
        log.error("sink.conflicts_unwritten", file=str(self._path), error=str(error))
        if self._connection is not None:
            with contextlib.suppress(sqlite3.Error):
                self._connection.close()
            self._connection = None
        if isinstance(error, sqlite3.DatabaseError) and not isinstance(error, sqlite3.OperationalError):
            with contextlib.suppress(OSError):
                self._path.unlink()
