"""Backups of a data directory without its node: refusals, copied files, and the state after a failure."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from isthmus.node.backup import create as creating
from isthmus.node.backup.create import copy_database, create, size_of
from isthmus.node.backup.manifest import NAME
from isthmus.node.backup.restore import restore, verify
from isthmus.repl.model.errors import BadInput, LocalFault
from isthmus.repl.replog.log import FileLog
from isthmus.repl.storage.identity import NodeIdentity
from isthmus.repl.store.leveldb import LevelStore
from isthmus.repl.store.port import PartitionStep
from tests.support.log_history import CLUSTER, Listener, entries

BOOT = "one boot"


def quiet(_phase: str, _done: int, _total: int) -> None:
    """A progress callback that does nothing."""


def open_store(directory: Path) -> LevelStore:
    """The store of a data directory."""
    return LevelStore.open(
        directory / "store", cluster_uuid=CLUSTER, write_buffer_bytes=65_536, block_cache_bytes=65_536, boot_id=BOOT
    )


def open_log(directory: Path) -> FileLog:
    """The log of a data directory."""
    return FileLog.open(
        directory / "log",
        cluster_uuid=CLUSTER,
        durability="fsync",
        size_limit_bytes=1_000_000,
        file_bytes=64_000,
        batch_bytes=8_000,
        reserve_bytes=1_000,
    )


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A data directory: partition 0 has 40 entries in its log, of which 30 are applied."""
    directory = tmp_path / "data"
    identity = NodeIdentity.open(directory)
    identity.adopt(CLUSTER, "east-1", BOOT, {0: 7}, spare=6)
    identity.close(clean=False)
    log, store = open_log(directory), open_store(directory)
    listener = Listener(log)
    written = entries(1, 0, 40)
    log.append(0, written)
    assert listener.wait({0: 40})
    store.write([PartitionStep(0, written[:30])])
    log.close()
    store.close()
    with closing(sqlite3.connect(directory / "dead-letters.sqlite")) as connection, connection:
        connection.execute("CREATE TABLE letters (id)")
        connection.execute("INSERT INTO letters VALUES (1)")
    (directory / "audit").mkdir()
    (directory / "audit" / "000000000001.jsonl").write_text('{"id": 1}\n')
    (directory / "trees").mkdir()
    (directory / "trees" / "0.tree").write_text("made again")
    return directory


def test_a_backup_is_restored_with_a_renewed_identity(data: Path, tmp_path: Path) -> None:
    """Log, audit log and databases are restored, derived files are not; every replica gets a new log id."""
    manifest = create(data, tmp_path / "backup", node="east-1", cluster="east", progress=quiet)
    assert verify(tmp_path / "backup", quiet) == (manifest, [])
    assert [(one.partition, one.applied, one.floor, one.log_start, one.log_end) for one in manifest.partitions] == [
        (0, 30, 30, 0, 40)
    ]
    restore(tmp_path / "backup", tmp_path / "restored", manifest, quiet)
    restored = tmp_path / "restored"
    assert not (restored / "trees").exists()
    assert not (restored / "lock").exists()
    assert not (restored / NAME).exists()
    identity = NodeIdentity.open(restored)
    assert identity.doubt.startswith("restored from the backup of ")
    assert (identity.spare, identity.log_ids(), identity.cluster_uuid) == (0, {0: 7}, CLUSTER)
    identity.close(clean=False)
    log = open_log(restored)
    listener = Listener(log)
    assert [entry.offset for entry in log.read(0, 0, 40, 1_000_000)] == list(range(40))
    assert not listener.failures
    log.close()
    store = open_store(restored)
    assert store.applied_offsets() == {0: 30}
    store.close()
    assert (restored / "audit" / "000000000001.jsonl").read_text() == '{"id": 1}\n'
    with closing(sqlite3.connect(restored / "dead-letters.sqlite")) as connection:
        assert connection.execute("SELECT id FROM letters").fetchall() == [(1,)]


def test_every_fault_of_a_backup_is_named(data: Path, tmp_path: Path) -> None:
    """A changed byte, a missing byte, a missing file and a file too many are four faults, each with its file."""
    backup = tmp_path / "backup"
    manifest = create(data, backup, node=None, cluster=None, progress=quiet)
    names = [file.path for file in manifest.files if file.size_bytes]
    changed, cut, gone = names[:3]
    spoiled = bytearray((backup / changed).read_bytes())
    spoiled[0] ^= 1
    (backup / changed).write_bytes(spoiled)
    (backup / cut).write_bytes((backup / cut).read_bytes()[:-1])
    (backup / gone).unlink()
    (backup / "more").write_text("")
    faults = dict(verify(backup, quiet)[1])
    assert faults.keys() == {changed, cut, gone, "more"}
    assert "hash" in faults[changed]
    assert "bytes, not" in faults[cut]
    assert "missing" in faults[gone]


def test_places_that_cannot_take_a_backup_are_refused(data: Path, tmp_path: Path) -> None:
    """A directory with files, a file, the data directory itself, and one below it are refused before anything is
    written; an empty directory is taken."""
    full = tmp_path / "full"
    full.mkdir()
    (full / "a").write_text("")
    for target, why in ((full, "empty"), (full / "a", "empty"), (data, "empty"), (data / "b", "lies in")):
        with pytest.raises(BadInput, match=why):
            create(data, target, node=None, cluster=None, progress=quiet)
    assert not (data / "b.incomplete").exists()
    (full / "a").unlink()
    create(data, full, node=None, cluster=None, progress=quiet)
    assert (full / NAME).exists()


def test_the_current_directory_and_mount_points_are_refused(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A finished backup replaces its directory, which neither of these allows."""
    here = tmp_path / "here" / "below"
    here.mkdir(parents=True)
    monkeypatch.chdir(here)
    for place, sentence in ((".", "is the current directory"), ("..", "is not an empty directory")):
        with pytest.raises(BadInput, match=sentence):
            create(data, Path(place), node=None, cluster=None, progress=quiet)
    monkeypatch.setattr(os.path, "ismount", lambda path: path == tmp_path / "disk")
    (tmp_path / "disk").mkdir()
    with pytest.raises(BadInput, match="is a mount point"):
        create(data, tmp_path / "disk", node=None, cluster=None, progress=quiet)
    create(data, Path("../one"), node=None, cluster=None, progress=quiet)
    assert (here.parent / "one").is_dir()


def test_a_database_that_stays_locked_ends_the_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The copy ends after a bounded time; the size of a data directory includes databases."""
    monkeypatch.setattr(creating, "DATABASE_S", 0.3)
    monkeypatch.setattr(creating, "DATABASE_POLL_S", 0.05)
    source = tmp_path / "letters.sqlite"
    with closing(sqlite3.connect(source, isolation_level=None)) as writer:
        writer.execute("CREATE TABLE letters (number)")
        assert size_of(tmp_path) == source.stat().st_size > 0
        writer.execute("BEGIN EXCLUSIVE")
        with pytest.raises(LocalFault, match=r"locked for 0\.3 s"):
            copy_database(source, tmp_path / "first")
        writer.execute("ROLLBACK")
    copy_database(source, tmp_path / "second")
    assert (tmp_path / "second").stat().st_size == source.stat().st_size


def test_a_backup_that_fails_leaves_nothing_and_one_that_was_killed_is_named(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After an error there is neither DEST nor DEST.incomplete; where DEST.incomplete was left, it is named."""

    def fail(*_: object, **__: object) -> None:
        assert (tmp_path / "backup.incomplete" / "log").is_dir()
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(creating, "encode", fail)
        with pytest.raises(OSError, match="No space"):
            create(data, tmp_path / "backup", node=None, cluster=None, progress=quiet)
    assert {path.name for path in tmp_path.iterdir()} == {"data"}
    (tmp_path / "backup.incomplete").mkdir()
    with pytest.raises(BadInput, match=r"backup\.incomplete exists"):
        create(data, tmp_path / "backup", node=None, cluster=None, progress=quiet)


def test_directories_that_are_no_data_directories_are_refused(data: Path, tmp_path: Path) -> None:
    """A missing directory, an empty one, and that of another node are refused with their reasons."""
    (tmp_path / "empty").mkdir()
    for source, node, why in (
        (tmp_path / "none", None, "is not there"),
        (tmp_path / "empty", None, "not the data directory of a node"),
        (data, "east-2", "belongs to node 'east-1'"),
    ):
        with pytest.raises(LocalFault, match=why):
            create(source, tmp_path / "backup", node=node, cluster=None, progress=quiet)
    assert not (tmp_path / "backup.incomplete").exists()


def test_a_damaged_log_is_not_backed_up_in_silence(data: Path, tmp_path: Path) -> None:
    """A damaged frame before whole ones loses entries: the error names the partition."""
    path = next((data / "log").glob("*.log"))
    spoiled = bytearray(path.read_bytes())
    spoiled[200] ^= 1
    path.write_bytes(spoiled)
    with pytest.raises(LocalFault, match="partition 0"):
        create(data, tmp_path / "backup", node=None, cluster=None, progress=quiet)


def test_a_backup_is_restored_into_an_empty_directory_alone(data: Path, tmp_path: Path) -> None:
    """A directory that holds anything but a file system's own folder is refused."""
    manifest = create(data, tmp_path / "backup", node=None, cluster=None, progress=quiet)
    with pytest.raises(BadInput, match="is not empty"):
        restore(tmp_path / "backup", data, manifest, quiet)
    (tmp_path / "disk" / "lost+found").mkdir(parents=True)
    restore(tmp_path / "backup", tmp_path / "disk", manifest, quiet)
    assert (tmp_path / "disk" / "identity.0").exists() or (tmp_path / "disk" / "identity.1").exists()
