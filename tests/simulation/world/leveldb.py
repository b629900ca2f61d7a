"""LevelDB in Python, for stores of simulated nodes: the part of plyvel's interface that the product uses, and its
errors.

The rows are in memory, sorted; each batch is one record of a log in the database's directory, written at once and
synced by nobody but a checkpoint. Files and their names are LevelDB's, so that the product finds what it looks for,
their contents are not:

    CURRENT           the name of the MANIFEST
    MANIFEST-NNNNNN   records of [number of the table or 0, number of the first log that is not in it]; the last counts
    NNNNNN.ldb        the table: all rows when it was written, always synced
    NNNNNN.log        the batches since, in logs of the size of a write buffer; none but the last is appended to

As in LevelDB a full log is left unsynced, so a power loss may take rows of an older log and leave those of a newer one.
An open begins a new log; the logs become a table where they are long or damaged, or a sync of
one has failed. A record: magic, length, checksum.
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, Final

import msgpack
from sortedcontainers import SortedDict
from xxhash import xxh64_intdigest

from isthmus.repl.store.leveldb import plyvel

if TYPE_CHECKING:
    from tests.simulation.world.disk import ProcessFiles

_MAGIC: Final = b"\xf1sLD"
_HEAD: Final = struct.Struct("<4sIQ")

COMPACT_BYTES: Final = 256 * 1024
"""Logs of this size together become a table when the database is opened."""

LOGS_MAX: Final = 4
"""More logs than these become a table."""

WRITE_BUFFER_BYTES_MIN: Final = 64 * 1024
"""LevelDB takes a smaller write buffer for this."""

TABLE_RECORD_ROWS: Final = 1_000

FIRST_ROWS, ROWS_MAX = 16, 1_024
"""Rows that an iterator reads at first, and at most, at once."""

LEVEL0_TABLES: Final = b"leveldb.num-files-at-level0"

Changes = dict[bytes, bytes | None]
"""Row -> its new value, None where it is deleted."""


class View:
    """A state of the rows. `undo`: the values that rows had before the first change since, up to the next view."""

    __slots__ = ("undo", "users")

    def __init__(self) -> None:
        self.undo: Changes = {}
        self.users = 1


class LevelDb:
    """One open database; see plyvel.DB."""

    def __init__(
        self,
        files: ProcessFiles,
        name: str,
        *,
        create_if_missing: bool = False,
        paranoid_checks: bool = False,
        write_buffer_size: int = 4 << 20,
        lru_cache_size: int = 0,
        bloom_filter_bits: int = 0,
        compression: str | None = None,
    ) -> None:
        self._files = files
        self._directory = Path(name)
        self._write_buffer_bytes = max(write_buffer_size, WRITE_BUFFER_BYTES_MIN)
        self._lock = Lock()
        self._views: list[View] = []
        self._failure: Exception | None = None
        """An error of work that LevelDB does by itself, final until it is opened again."""
        self._log_fd = self._manifest_fd = -1
        self._table = self._next_number = 0
        self._logs: list[int] = []
        if name in files.databases:
            raise plyvel.IOError(f"IO error: lock {name}/LOCK: already held by process".encode())
        files.databases[name] = self
        self.closed = False
        try:
            self._rows = SortedDict(self._recovered(create_if_missing, strict=paranoid_checks))
        except OSError as error:
            self.close()
            raise error if isinstance(error, plyvel.Error) else self._io_error(error, self._directory) from error
        except BaseException:
            self.close()
            raise

    # -- the interface of plyvel.DB --------------------------------------------------------------------------

    def get(
        self, key: bytes, default: bytes | None = None, *, verify_checksums: bool = False, fill_cache: bool = True
    ) -> bytes | None:
        self._check_open()
        return self._rows.get(key, default)  # type: ignore[no-any-return]

    def put(self, key: bytes, value: bytes, *, sync: bool = False) -> None:
        self.write({key: value}, sync=sync)

    def delete(self, key: bytes, *, sync: bool = False) -> None:
        self.write({key: None}, sync=sync)

    def write_batch(self, *, transaction: bool = False, sync: bool = False) -> WriteBatch:
        self._check_open()
        return WriteBatch(self, transaction=transaction, sync=sync)

    def iterator(
        self, *, start: bytes = b"", include_value: bool = True, verify_checksums: bool = False, fill_cache: bool = True
    ) -> RowIterator:
        return RowIterator(self, self.open_view(), start, include_value=include_value)

    def snapshot(self) -> Snapshot:
        return Snapshot(self, self.open_view())

    def get_property(self, name: bytes) -> bytes | None:
        self._check_open()
        return str(int(self._table > 0)).encode() if name == LEVEL0_TABLES else None

    def compact_range(self, *, start: bytes | None = None, stop: bytes | None = None) -> None:
        """Make a table of the logs, wherever the range is."""
        self._check_open()
        with suppress(plyvel.Error):  # LevelDB tells nobody before the next write
            self._begin_log()
            self._compact()

    def close(self) -> None:
        if not self.closed:
            for fd in (self._log_fd, self._manifest_fd):
                if fd >= 0:
                    self._files.close(fd)
        self.drop()
        self._files.databases.pop(os.fspath(self._directory), None)

    def drop(self) -> None:
        """The process is gone, and with it all that is in memory."""
        self.closed = True
        self._rows = SortedDict()
        self._views.clear()

    # -- writes ----------------------------------------------------------------------------------------------

    def write(self, changes: Changes, *, sync: bool = False) -> None:
        """Write all changes, or none. Raises plyvel.IOError."""
        self._check_open()
        files = self._files
        files.disk.charge()
        self._check_open()  # time has passed; from here on nothing waits, so that records and rows have one order
        if self._failure is not None:
            raise self._failure
        if files.size(self._log_fd) >= self._write_buffer_bytes:
            self._begin_log()
            if len(self._logs) > LOGS_MAX:
                self._compact()
        try:
            files.append(self._log_fd, _record(msgpack.packb(changes)))
            if sync:
                files.disk.sync(files._file(self._log_fd))
        except OSError as error:
            raise self._io_error(error, self._log_path()) from error
        with self._lock:
            rows = self._rows
            if self._views:
                undo = self._views[-1].undo
                for name in changes:
                    if name not in undo:
                        undo[name] = rows.get(name)
            for name, value in changes.items():
                if value is not None:
                    rows[name] = value
                else:
                    rows.pop(name, None)

    def _begin_log(self) -> None:
        """Leave the log as it is, and begin the next. Raises plyvel.IOError, and nothing was done."""
        number = self._next_number
        path = self._path(number, "log")
        try:
            fd = self._files.create(path)
        except OSError as error:
            raise self._io_error(error, path) from error
        self._next_number += 1
        if self._log_fd >= 0:
            self._files.close(self._log_fd)
        self._log_fd = fd
        self._logs.append(number)

    def _compact(self) -> None:
        """Make a table of all rows, and delete the logs before the last. Raises plyvel.IOError, also at each later
        write."""
        number, files = self._next_number, self._files
        path = self._path(number, "ldb")
        try:
            self._write_table(number, self._rows)
            path = self._directory / "MANIFEST"
            files.append(self._manifest_fd, _record(msgpack.packb([number, self._logs[-1]])))
            files.disk.sync(files._file(self._manifest_fd))
        except OSError as error:
            self._failure = self._io_error(error, path)
            raise self._failure from error
        before, self._table = self._table, number
        old = [self._path(each, "log") for each in self._logs[:-1]]
        del self._logs[:-1]
        with suppress(OSError):  # deleted at the next open
            for each in [*old, *([self._path(before, "ldb")] if before else [])]:
                files.unlink(each)

    def _write_table(self, number: int, rows: Changes) -> None:
        self._next_number = number + 1
        files, fd = self._files, self._files.create(self._path(number, "ldb"))
        items = iter(rows.items())
        while part := dict(islice(items, TABLE_RECORD_ROWS)):
            files.append(fd, _record(msgpack.packb(part)))
        files.disk.sync(files._file(fd))
        files.close(fd)
        files.disk.sync_directory(os.fspath(self._directory))

    # -- opening ---------------------------------------------------------------------------------------------

    def _recovered(self, create_if_missing: bool, *, strict: bool) -> dict[bytes, bytes]:
        """The rows in the directory, with a new MANIFEST and a new log. Raises plyvel.Error, OSError."""
        files, directory = self._files, self._directory
        if not create_if_missing and not (directory / "CURRENT").exists():
            raise plyvel.Error(f"Invalid argument: {directory}: does not exist (create_if_missing is false)".encode())
        names = files.names(directory)
        table, first_log = self._manifest() if "CURRENT" in names else (0, 0)
        rows: dict[bytes, bytes] = {}
        if table:
            path = self._path(table, "ldb")
            if path.name not in names:
                raise plyvel.CorruptionError(f"Corruption: 1 missing files; e.g.: {path}".encode())
            for changes in Records(path, strict=True):
                rows.update(changes)
        self._next_number = 1 + max(map(_number, names), default=0)
        self._logs = sorted(_number(name) for name in names if name.endswith(".log") and _number(name) >= first_log)
        length_bytes = 0
        damaged = False
        for number in self._logs:
            path = self._path(number, "log")
            length_bytes += path.stat().st_size
            found = Records(path, strict=strict)
            for changes in found:
                for name, value in changes.items():
                    if value is None:
                        rows.pop(name, None)
                    else:
                        rows[name] = value
            damaged |= found.damaged or files.disk.file_of(os.fspath(path)).lossy
        if damaged or length_bytes >= COMPACT_BYTES or len(self._logs) >= LOGS_MAX:
            table = self._next_number
            self._write_table(table, rows)  # type: ignore[arg-type]
            self._logs = []
        self._table = table
        self._begin_manifest()
        self._begin_log()
        kept = {self._path(each, "log").name for each in self._logs} | {self._path(table, "ldb").name}
        for name in names:
            if (name.endswith((".log", ".ldb", ".dbtmp")) and name not in kept) or name.startswith("MANIFEST-"):
                files.unlink(directory / name)
        return rows

    def _manifest(self) -> tuple[int, int]:
        """(number of the table, number of the first log). Raises plyvel.Error."""
        name = (self._directory / "CURRENT").read_text().strip()
        path = self._directory / name
        if not path.is_file():
            raise plyvel.CorruptionError(f"Corruption: CURRENT points to a non-existent file: {path}".encode())
        last = None
        for last in Records(path, strict=True):  # noqa: B007
            pass
        if last is None:
            raise plyvel.CorruptionError(f"Corruption: no meta-nextfile entry in descriptor: {path}".encode())
        table, first_log = last
        return table, first_log

    def _begin_manifest(self) -> None:
        files, directory, number = self._files, self._directory, self._next_number
        self._next_number += 1
        name = f"MANIFEST-{number:06}"
        first_log = self._logs[0] if self._logs else self._next_number
        self._manifest_fd = fd = files.create(directory / name)
        files.append(fd, _record(msgpack.packb([self._table, first_log])))
        files.disk.sync(files._file(fd))
        fresh = self._path(number, "dbtmp")
        fd = files.create(fresh)
        files.append(fd, f"{name}\n".encode())
        files.disk.sync(files._file(fd))
        files.close(fd)
        files.disk.sync_directory(os.fspath(directory))
        files.rename(fresh, directory / "CURRENT")
        files.disk.sync_directory(os.fspath(directory))

    # -- views -----------------------------------------------------------------------------------------------

    def open_view(self) -> View:
        """A view of the rows as they are."""
        self._check_open()
        with self._lock:
            if self._views and not self._views[-1].undo:
                view = self._views[-1]
                view.users += 1
            else:
                view = View()
                self._views.append(view)
        return view

    def close_view(self, view: View) -> None:
        """Release it."""
        with self._lock:
            view.users -= 1
            if view.users or view not in self._views:
                return
            at = self._views.index(view)
            del self._views[at]
            if at and view.undo:
                before = self._views[at - 1].undo
                for name, value in view.undo.items():
                    before.setdefault(name, value)

    def value_at(self, view: View, name: bytes) -> bytes | None:
        """The value of a row in a view."""
        self._check_open()
        with self._lock:
            for each in self._views[self._views.index(view) :]:
                if name in each.undo:
                    return each.undo[name]
            return self._rows.get(name)  # type: ignore[no-any-return]

    def rows_at(
        self, view: View, start: bytes, inclusive: bool, limit: int
    ) -> tuple[list[tuple[bytes, bytes]], bytes | None]:
        """Rows of a view from `start` on, or behind it, some `limit` of them; and the last name that was looked at,
        None at the end."""
        self._check_open()
        with self._lock:
            rows = self._rows
            names = list(islice(rows.irange(start, None, (inclusive, True)), limit))
            last = names[-1] if len(names) == limit else None
            undos = [each.undo for each in self._views[self._views.index(view) :] if each.undo]
            if not undos:
                return [(name, rows[name]) for name in names], last
            found: Changes = {name: rows[name] for name in names}
            for undo in reversed(undos):
                for name, value in undo.items():
                    if (name > start or (inclusive and name == start)) and (last is None or name <= last):
                        found[name] = value
        return sorted((name, value) for name, value in found.items() if value is not None), last

    # -- small things ----------------------------------------------------------------------------------------

    def _check_open(self) -> None:
        if self.closed:
            raise RuntimeError("Database is closed")

    def _path(self, number: int, kind: str) -> Path:
        return self._directory / f"{number:06}.{kind}"

    def _log_path(self) -> Path:
        return self._path(self._logs[-1], "log")

    @staticmethod
    def _io_error(error: OSError, path: Path) -> Exception:
        return plyvel.IOError(f"IO error: {path}: {error.strerror}".encode())  # type: ignore[no-any-return]


class WriteBatch:
    """See plyvel's WriteBatch."""

    def __init__(self, db: LevelDb, *, transaction: bool, sync: bool) -> None:
        self._db = db
        self._transaction = transaction
        self._sync = sync
        self._changes: Changes = {}
        self.put = self._changes.__setitem__

    def delete(self, key: bytes) -> None:
        self._changes[key] = None

    def clear(self) -> None:
        self._changes.clear()

    def append(self, source: WriteBatch) -> None:
        self._changes.update(source._changes)

    def write(self) -> None:
        self._db.write(self._changes, sync=self._sync)

    def approximate_size(self) -> int:
        """Bytes of the record, some more."""
        changes = self._changes
        return 12 + 8 * len(changes) + sum(map(len, changes)) + sum(map(len, filter(None, changes.values())))

    def __enter__(self) -> WriteBatch:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None and self._transaction:
            self.clear()
        else:
            self.write()


class Snapshot:
    """See plyvel's Snapshot."""

    def __init__(self, db: LevelDb, view: View) -> None:
        self._db = db
        self._view: View | None = view

    def _open(self) -> View:
        if self._view is None or self._db.closed:
            raise RuntimeError("Database or snapshot is closed")
        return self._view

    def get(
        self, key: bytes, default: bytes | None = None, *, verify_checksums: bool = False, fill_cache: bool = True
    ) -> bytes | None:
        value = self._db.value_at(self._open(), key)
        return default if value is None else value

    def iterator(
        self, *, start: bytes = b"", include_value: bool = True, verify_checksums: bool = False, fill_cache: bool = True
    ) -> RowIterator:
        view = self._open()
        view.users += 1
        return RowIterator(self._db, view, start, include_value=include_value)

    def close(self) -> None:
        view, self._view = self._view, None
        if view is not None:
            self._db.close_view(view)


class RowIterator:
    """See plyvel's Iterator; forward."""

    def __init__(self, db: LevelDb, view: View, start: bytes, *, include_value: bool) -> None:
        self._db = db
        self._view: View | None = view
        self._start = start
        self._include_value = include_value
        self._seek(start)

    def _seek(self, target: bytes) -> None:
        self._at: bytes | None = target
        self._inclusive = True
        self._limit = FIRST_ROWS
        self._found: Iterator[Any] = iter(())

    def seek(self, target: bytes) -> None:
        """Go on at the first row from `target` on, none before the iterator's start."""
        self._open()
        self._seek(max(target, self._start))

    def _open(self) -> View:
        if self._view is None or self._db.closed:
            raise RuntimeError("Database or iterator is closed")
        return self._view

    def __iter__(self) -> RowIterator:
        return self

    def __next__(self) -> Any:
        for row in self._found:
            return row
        view = self._open()
        while self._at is not None:
            rows, self._at = self._db.rows_at(view, self._at, self._inclusive, self._limit)
            self._inclusive = False
            self._limit = min(4 * self._limit, ROWS_MAX)
            self._found = iter(rows if self._include_value else [name for name, _ in rows])
            for row in self._found:
                return row
        raise StopIteration

    def close(self) -> None:
        view, self._view = self._view, None
        self._found = iter(())
        if view is not None:
            self._db.close_view(view)

    def __enter__(self) -> RowIterator:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _record(body: bytes) -> bytes:
    return _HEAD.pack(_MAGIC, len(body), xxh64_intdigest(body)) + body


class Records:
    """The contents of a file's records. In `strict` mode damage raises plyvel.CorruptionError, but at the end of the
    file: a record that is cut off was never written. Otherwise damaged ones are left out, and noted."""

    def __init__(self, path: Path, *, strict: bool) -> None:
        self._path = path
        self._strict = strict
        self.damaged = False

    def __iter__(self) -> Iterator[Any]:
        data = self._path.read_bytes()
        at, end = 0, len(data)
        while at < end:
            body_at = stop = at + _HEAD.size
            if body_at <= end:
                magic, length, checksum = _HEAD.unpack_from(data, at)
                stop = body_at + length
                body = data[body_at:stop]
                if magic == _MAGIC and stop <= end and xxh64_intdigest(body) == checksum:
                    yield msgpack.unpackb(body, strict_map_key=False)
                    at = stop
                    continue
            if self._strict:
                if stop > end:
                    return
                raise plyvel.CorruptionError(f"Corruption: bad record at {at} of {self._path}".encode())
            self.damaged = True
            at = data.find(_MAGIC, at + 1)
            if at < 0:
                return


def _number(name: str) -> int:
    """The number in a file's name, 0 where there is none."""
    found = re.match(r"(?:MANIFEST-)?([0-9]+)", name)
    return int(found[1]) if found else 0
