"""Make a backup of a data directory whose node may run and write meanwhile.

The node is not asked; the order of the copies does what is needed. The backup is what a power loss would have left at
the moment of its floors, so that the usual recovery opens it (docs/formats.md):

    finished files of the store and the log    takes long, promises nothing
    floors                                     offsets that the rows hold from here on
    rows                                       hold all entries below the floors, and some above them
    log                                        reaches at least as far as the rows
    identity                                   has seen every epoch in the log and the rows
    copy of the metastore, audit log, SQLite

The store is opened once in the copy, the log is read, and both are compared with the floors: a log that was trimmed
between the floors and its copy may begin above the floors. Then all from the floors on is done again.

The identity in the backup is renewed (docs/protocol.md H39): its replicas get new gens when a node starts with them,
however the directory was restored.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
from collections.abc import Callable, Mapping
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, NamedTuple

from isthmus.config.text import quantity
from isthmus.node.backup.file_copy import Raced, check_space, copy_file
from isthmus.node.backup.log_copy import LogCopier
from isthmus.node.backup.manifest import (
    INCOMPLETE,
    NAME,
    VERSION,
    BackupFile,
    Manifest,
    PartitionPosition,
    encode,
    files_below,
    hash_file,
)
from isthmus.node.backup.store_copy import StoreCopier
from isthmus.node.observability.version import program_version
from isthmus.repl.machine import machine
from isthmus.repl.model.errors import BadInput, Corruption, LocalFault
from isthmus.repl.replog.files import SystemFiles
from isthmus.repl.replog.port import RecoveredPartition
from isthmus.repl.replog.recovery import recover
from isthmus.repl.runtime.metastore_copy import NAME as METASTORE_COPY
from isthmus.repl.runtime.metastore_copy import load_copy
from isthmus.repl.storage.identity import NAME as IDENTITY
from isthmus.repl.storage.identity import NodeIdentity
from isthmus.repl.storage.slot_file import SlotFile, sync_directory
from isthmus.repl.store.checkpoint import FLOORS_NAME, Floors, encode_floors, read_floors
from isthmus.repl.store.leveldb import PLYVEL, OpenDatabase, RecoveredRows, recover_copy
from isthmus.repl.store.recovery import ROWS_NAME

ATTEMPTS: Final = 10
"""Attempts to copy the end of the store and the log. One takes about a second, and fails only where a compaction ends,
or a checkpoint and a trim take place, at the wrong moment; ten failures in a row mean another cause."""

NO_BOOT: Final = "backup"
"""Boot id of the copied floors: none of a machine's, so that the node replays the log from the floors."""

DATABASE_S: Final = 30.0
"""How long a database may be locked by another process: its writes take milliseconds."""

DATABASE_POLL_S: Final = 0.25
"""Longest wait for a lock of a database between two looks at the clock."""

SLOT_TRIES: Final = 5
"""Reads of a slot file before damage is believed: the node may write to both slots during one read."""

Progress = Callable[[str, int, int], None]
"""Called with what is done now, the bytes read so far, and an estimate of all."""


class _Cut(NamedTuple):
    """The contents of the copies at the end of one attempt."""

    floors: Floors
    identity: Mapping[str, Any]
    logs: Mapping[int, RecoveredPartition]
    doubtful: Mapping[int, str]
    """Partition -> why its log and rows do not fit, unless it is in a state transfer."""


def create(
    source: Path,
    target: Path,
    *,
    node: str | None,
    cluster: str | None,
    progress: Progress,
    database: OpenDatabase = PLYVEL,
) -> Manifest:
    """Back up data directory `source` to `target`, which must not exist or be empty; it appears when it is complete.

    `node` is refused if the directory is of another one. `database` opens the copied rows. Raises BadInput, LocalFault,
    Corruption, OSError."""
    _check(source, target)
    target = target.resolve()  # "." and ".." have no name
    made = target.with_name(target.name + INCOMPLETE)
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        made.mkdir(mode=0o700)
    except FileExistsError:
        raise BadInput(
            f"{made} exists: another backup to {target} runs, or one was killed; in that case remove the directory"
        ) from None
    try:
        manifest = _Backup(source, made, node, cluster, progress, database).run()
        _write_manifest(made, manifest)
        os.replace(made, target)
        sync_directory(target.parent)
    except BaseException:
        shutil.rmtree(made, ignore_errors=True)
        raise
    return manifest


def _check(source: Path, target: Path) -> None:
    if not source.is_dir():
        raise LocalFault(f"{source}, the data directory, is not there")
    if target.is_symlink() or (target.exists() and not (target.is_dir() and not any(target.iterdir()))):
        raise BadInput(f"{target} is not an empty directory: name one that is empty or does not exist")
    inner, outer = target.resolve(), source.resolve()
    if inner == Path.cwd():
        raise BadInput(f"{inner} is the current directory, which the backup would replace: name a directory in it")
    if os.path.ismount(inner):
        raise BadInput(f"{inner} is a mount point, which a backup cannot replace: name a directory in it")
    if inner == outer or outer in inner.parents:
        raise BadInput(
            f"{target} lies in the data directory {source}: name a directory elsewhere, best on another disk"
        )
    check_space(target, size_of(source))


def size_of(source: Path) -> int:
    """Bytes of a data directory that a backup copies."""
    size_bytes = 0
    for part in (source / "store", source / "log", source / "audit"):
        for base, _, names in os.walk(part):
            for name in names:
                try:
                    size_bytes += Path(base, name).stat().st_size
                except FileNotFoundError:
                    continue
    for database in source.glob("*.sqlite"):
        with contextlib.suppress(FileNotFoundError):
            size_bytes += database.stat().st_size
    return size_bytes


class _Backup:
    def __init__(
        self,
        source: Path,
        made: Path,
        node: str | None,
        cluster: str | None,
        progress: Progress,
        database: OpenDatabase,
    ) -> None:
        self._source = source
        self._made = made
        self._node = node
        self._cluster = cluster
        self._progress = progress
        self._database = database
        self._begun_ms = machine().wall_ns() // 1_000_000
        self._phase = "copying"
        self._done_bytes = 0
        self._all_bytes = size_of(source)
        (made / "store").mkdir(mode=0o700)
        self._store = StoreCopier(source / "store" / ROWS_NAME, made / "store" / ROWS_NAME, self._passed)
        self._log = LogCopier(source / "log", made / "log", self._passed)

    def run(self) -> Manifest:
        identity = self._identity()
        cluster_uuid: bytes = identity["cluster_uuid"]
        if not (self._source / "store" / ROWS_NAME).is_dir():
            raise LocalFault(f"{self._source} has no store: its node never ran")
        self._store.copy_tables()
        self._log.copy_finished()
        self._store.copy_tables()
        cut, rows = self._consistent(cluster_uuid)
        self._refuse_misfits(cut, rows)
        SlotFile(self._made / "store", FLOORS_NAME).write(encode_floors(cut.floors))
        for name in ("LOCK", "LOG", "LOG.old"):  # LevelDB's own log, and its lock
            (self._made / "store" / ROWS_NAME / name).unlink(missing_ok=True)
        self._write_identity(cut.identity)
        copied_ms = self._copy_metastore_copy(cluster_uuid)
        self._copy_others()
        return self._manifest(cut, rows, copied_ms)

    def _passed(self, size_bytes: int) -> None:
        self._done_bytes += size_bytes
        self._progress(self._phase, self._done_bytes, max(self._all_bytes, self._done_bytes))

    # -- log and store ------------------------------------------------------------------------------------

    def _consistent(self, cluster_uuid: bytes) -> tuple[_Cut, RecoveredRows]:
        last_error: Exception | None = None
        for attempt in range(ATTEMPTS):
            if attempt:
                self._log.copy_finished()
                self._store.copy_tables()
            try:
                cut = self._cut(cluster_uuid, last=attempt == ATTEMPTS - 1)
                rows = recover_copy(self._made / "store", cluster_uuid, cut.floors, database=self._database)
                return cut, rows
            except (Raced, Corruption) as error:
                last_error = error
        raise LocalFault(
            f"no attempt of {ATTEMPTS} to copy {self._source} was consistent, the last one since: {last_error}; "
            "if the node writes much, repeat the command when it writes less"
        ) from last_error

    def _cut(self, cluster_uuid: bytes, *, last: bool) -> _Cut:
        floors = self._floors()
        self._store.cut()
        self._log.cut()
        identity = self._identity()
        durable = {partition: position.offset for partition, position in floors.positions.items()}
        logs = recover(SystemFiles(), self._made / "log", cluster_uuid, durable).partitions()
        doubtful = {}
        for partition in identity["partitions"].keys() & logs.keys():
            found, floor = logs[partition], durable.get(partition, 0)
            if found.damage:
                doubtful[partition] = f"its log is damaged: {found.damage}"
            elif found.start > floor:
                doubtful[partition] = f"its log begins at {found.start}, and its rows are on disk up to {floor}"
        if doubtful and not last and self._floors() != floors:
            raise Raced("; ".join(f"partition {partition}: {why}" for partition, why in sorted(doubtful.items())[:3]))
        return _Cut(floors, identity, logs, doubtful)

    def _refuse_misfits(self, cut: _Cut, rows: RecoveredRows) -> None:
        """Raise LocalFault where a partition could not be recovered from the backup."""
        misfits = {p: why for p, why in cut.doubtful.items() if p not in rows.in_transfer}
        for partition, applied in rows.applied.items():
            end = cut.logs[partition].leo if partition in cut.logs else 0
            if partition in cut.identity["partitions"] and partition not in rows.in_transfer and end < applied:
                misfits.setdefault(partition, f"its log ends at {end}, and its rows at {applied}")
        if misfits:
            sentences = "; ".join(f"partition {partition}: {why}" for partition, why in sorted(misfits.items())[:8])
            raise LocalFault(
                f"a copy of {self._source} would lack {quantity(len(misfits), 'partition')}: {sentences}; "
                "look at the node's log for damage"
            )

    def _floors(self) -> Floors:
        found = _read_with_retries(lambda: read_floors(SlotFile(self._source / "store", FLOORS_NAME)))
        if found is None:
            raise LocalFault(f"{self._source}/store has no floors: its node is starting for the first time")
        return Floors(NO_BOOT, clean=False, positions=found.positions)

    # -- the rest -----------------------------------------------------------------------------------------

    def _identity(self) -> Mapping[str, Any]:
        found: Any = _read_with_retries(lambda: SlotFile(self._source, IDENTITY).read())
        if found is None or not found.get("cluster_uuid"):
            raise LocalFault(f"{self._source} is not the data directory of a node that belongs to a cluster")
        if self._node is not None and found["node"] != self._node:
            raise LocalFault(f"{self._source} belongs to node {found['node']!r}, not {self._node!r}")
        value: Mapping[str, Any] = found
        return value

    def _write_identity(self, value: Mapping[str, Any]) -> None:
        SlotFile(self._made, IDENTITY).write({**value, "clean": False})
        identity = NodeIdentity.open(self._made)
        try:
            begun = datetime.fromtimestamp(self._begun_ms / 1000, UTC)
            identity.renew(f"restored from the backup of {begun:%Y-%m-%dT%H:%M:%SZ}")
        finally:
            identity.close(clean=False)
        (self._made / "lock").unlink()

    def _copy_metastore_copy(self, cluster_uuid: bytes) -> int | None:
        found = _read_with_retries(lambda: load_copy(self._source))
        if found is None or found.cluster_uuid != cluster_uuid:
            return None
        SlotFile(self._made, METASTORE_COPY).write(
            _read_with_retries(lambda: SlotFile(self._source, METASTORE_COPY).read())
        )
        at_ms: int = found.at_ms
        return at_ms

    def _copy_others(self) -> None:
        """The audit log, dead letters and conflicts."""
        audit = self._source / "audit"
        if audit.is_dir():
            (self._made / "audit").mkdir(mode=0o700)
            for path in sorted(audit.glob("*.jsonl")):
                try:
                    copy_file(path, self._made / "audit" / path.name, self._passed)
                except FileNotFoundError:
                    continue
        for path in sorted(self._source.glob("*.sqlite")):
            copy_database(path, self._made / path.name)

    def _manifest(self, cut: _Cut, rows: RecoveredRows, metastore_copy_ms: int | None) -> Manifest:
        self._phase = "hashing"
        paths = list(files_below(self._made))
        self._done_bytes, self._all_bytes = 0, sum((self._made / path).stat().st_size for path in paths)
        files = [BackupFile(path, *hash_file(self._made / path, self._passed, sync=True)) for path in paths]
        positions = []
        for partition in sorted(cut.identity["partitions"]):
            log, floor = cut.logs.get(partition), cut.floors.positions.get(partition)
            positions.append(
                PartitionPosition(
                    partition=partition,
                    applied=rows.applied.get(partition),
                    floor=0 if floor is None else floor.offset,
                    log_start=0 if log is None else log.start,
                    log_end=0 if log is None else log.leo,
                    in_transfer=partition in rows.in_transfer,
                )
            )
        return Manifest(
            version=VERSION,
            program=program_version(),
            cluster=self._cluster,
            cluster_uuid=cut.identity["cluster_uuid"].hex(),
            node=cut.identity["node"],
            begun_ms=self._begun_ms,
            ended_ms=machine().wall_ns() // 1_000_000,
            metastore_copy_ms=metastore_copy_ms,
            partitions=positions,
            files=files,
        )


def copy_database(source: Path, target: Path) -> None:
    """Copy a SQLite database that another process may write. Raises LocalFault, also after DATABASE_S of locks."""
    ends_s = machine().monotonic_s() + DATABASE_S

    def check(status: int, _left: int, _all: int) -> None:
        if status in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED) and machine().monotonic_s() >= ends_s:
            raise LocalFault(f"{source} cannot be copied: another process has it locked for {DATABASE_S:g} s")

    os.close(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    try:
        with (
            closing(sqlite3.connect(f"{source.absolute().as_uri()}?mode=ro", timeout=DATABASE_POLL_S, uri=True)) as one,
            closing(sqlite3.connect(target)) as other,
        ):
            one.backup(other, progress=check)
    except sqlite3.Error as error:
        raise LocalFault(f"{source} cannot be copied: {error}") from error


def _write_manifest(made: Path, manifest: Manifest) -> None:
    with (made / NAME).open("xb") as file:
        file.write(encode(manifest))
        file.flush()
        os.fsync(file.fileno())
    for base, _, _ in os.walk(made):
        sync_directory(Path(base))


def _read_with_retries(read: Callable[[], Any]) -> Any:
    for _ in range(SLOT_TRIES - 1):
        try:
            return read()
        except Corruption:
            machine().sleep(0.02)
    return read()
