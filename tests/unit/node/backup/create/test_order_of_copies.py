"""The order of the copies in a backup: floors, rows, log, identity, each of a node that goes on between two of them
(docs/backup.md, "Why the copy is consistent")."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from isthmus.node.backup import create as creating
from isthmus.node.backup.create import NO_BOOT, create
from isthmus.node.backup.log_copy import LogCopier
from isthmus.node.backup.restore import restore
from isthmus.node.backup.store_copy import StoreCopier
from isthmus.repl.model.errors import LocalFault
from isthmus.repl.replog.files import SystemFiles
from isthmus.repl.replog.log import FileLog
from isthmus.repl.replog.recovery import recover
from isthmus.repl.storage.identity import NodeIdentity
from isthmus.repl.storage.slot_file import SlotFile
from isthmus.repl.store.checkpoint import FLOORS_NAME, read_floors
from isthmus.repl.store.leveldb import LevelStore
from isthmus.repl.store.port import PartitionStep
from tests.support.log_history import CLUSTER, Listener, entries
from tests.support.waiting import wait_until

BOOT = "one boot"
STEPS = ((creating._Backup, "_floors"), (StoreCopier, "cut"), (LogCopier, "cut"), (creating._Backup, "_identity"))
"""What copies or reads something that the next ones must hold."""


def quiet(_phase: str, _done: int, _total: int) -> None:
    """A progress callback that does nothing."""


class RunningNode:
    """Identity, log and store of one partition, open and in use; each `advance` is an epoch of its own."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.identity = NodeIdentity.open(directory)
        self.identity.adopt(CLUSTER, "east-1", BOOT, {0: 7}, spare=6)
        self.log = FileLog.open(
            directory / "log",
            cluster_uuid=CLUSTER,
            durability="fsync",
            size_limit_bytes=64_000,
            file_bytes=64_000,
            batch_bytes=8_000,
            reserve_bytes=1_000,
        )
        self.store = LevelStore.open(
            directory / "store", cluster_uuid=CLUSTER, write_buffer_bytes=65_536, block_cache_bytes=65_536, boot_id=BOOT
        )
        self.listener = Listener(self.log)
        self.epoch = self.end = 0

    def write(self, count: int, size: int = 20) -> None:
        """Append `count` entries, without applying them."""
        written = entries(self.epoch, self.end, count, size=size)
        self.log.append(0, written)
        self.end += count
        assert self.listener.wait({0: self.end})

    def apply(self, end: int | None = None) -> None:
        """Apply all entries below `end`, or all."""
        start, end = self.store.applied(0).offset, self.end if end is None else end
        self.store.write([PartitionStep(0, self.log.read(0, start, end, 10_000_000))])

    def advance(self) -> None:
        """What a node does at any moment, in its own order: a new epoch is noted, entries of it are appended and
        applied, and what is applied becomes durable."""
        self.epoch += 1
        self.identity.note_epochs({0: (self.epoch, None)})
        self.write(5)
        self.apply()
        self.store.checkpoint()

    def trim(self) -> None:
        """Delete the log's files below the applied end, which the log does in a thread."""
        self.log.trim({0: self.end})
        wait_until(lambda: self.log.start_of(0), "the log is trimmed")

    def close(self) -> None:
        """End it as a kill would."""
        self.identity.close(clean=False)
        self.log.close()
        self.store.close()


@pytest.fixture
def node(tmp_path: Path) -> Iterator[RunningNode]:
    """A node with 15 entries, all applied and durable."""
    running = RunningNode(tmp_path / "data")
    for _ in range(3):
        running.advance()
    yield running
    running.close()


def acting(monkeypatch: pytest.MonkeyPatch, steps: Any, act: Callable[[], None]) -> None:
    """`act` follows each of the steps."""
    for owner, name in steps:
        sound = getattr(owner, name)

        def step(*args: Any, sound: Callable[..., Any] = sound, **options: Any) -> Any:
            found = sound(*args, **options)
            act()
            return found

        monkeypatch.setattr(owner, name, step)


def test_each_copy_holds_what_the_one_before_it_promises(
    node: RunningNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The node writes, applies, checkpoints and changes its epoch between any two steps. In the backup the floors are
    at most as high as the rows, the rows as the log, and the identity has seen every epoch of the log; and a node
    recovers from it."""
    acting(monkeypatch, STEPS, node.advance)
    manifest = create(node.directory, tmp_path / "backup", node="east-1", cluster="east", progress=quiet)
    (found,) = manifest.partitions
    assert found.applied is not None
    assert 15 <= found.floor < found.applied < found.log_end
    log = recover(SystemFiles(), tmp_path / "backup" / "log", CLUSTER, {0: found.floor}).partitions()[0]
    identity: Any = SlotFile(tmp_path / "backup", "identity").read()
    assert log.epoch_table[-1][0] < identity["partitions"][0][1]
    restore(tmp_path / "backup", tmp_path / "restored", manifest, quiet)
    assert RestoredStore(tmp_path / "restored").floor == found.floor


class RestoredStore:
    """The store of a restored directory, as the node's first start finds it on the machine of the backup."""

    def __init__(self, directory: Path) -> None:
        store = LevelStore.open(
            directory / "store", cluster_uuid=CLUSTER, write_buffer_bytes=65_536, block_cache_bytes=65_536, boot_id=BOOT
        )
        self.needs_replay = store.needs_replay()
        self.floor = store.durable_floor(0)
        store.close()


def test_a_restored_node_replays_its_log_from_the_floors(node: RunningNode, tmp_path: Path) -> None:
    """The copied rows are not taken for complete above the floors, in the boot in which they were copied neither: no
    sync of their files was waited for."""
    node.write(5)
    node.apply()
    manifest = create(node.directory, tmp_path / "backup", node=None, cluster=None, progress=quiet)
    floors = read_floors(SlotFile(tmp_path / "backup" / "store", FLOORS_NAME))
    assert floors is not None
    assert (floors.boot_id, floors.clean) == (NO_BOOT, False)
    restore(tmp_path / "backup", tmp_path / "restored", manifest, quiet)
    restored = RestoredStore(tmp_path / "restored")
    assert (restored.needs_replay, restored.floor) == (True, 15)


def test_a_log_that_ends_below_the_rows_is_refused(node: RunningNode, tmp_path: Path) -> None:
    """Such a copy would lack entries that its rows hold, and its replica would append others at their offsets."""
    node.store.write([PartitionStep(0, entries(node.epoch, node.end, 5))])
    with pytest.raises(LocalFault, match="partition 0: its log ends at 15, and its rows at 20"):
        create(node.directory, tmp_path / "backup", node=None, cluster=None, progress=quiet)
    assert not (tmp_path / "backup").exists()


def test_a_log_that_begins_above_the_floors_is_refused(node: RunningNode, tmp_path: Path) -> None:
    """Rows above the floors may be missing after a power loss, and nothing could bring them again."""
    node.write(200, size=1_000)
    node.apply()
    node.trim()
    start = node.log.start_of(0)
    assert start > node.store.durable_floor(0) == 15
    with pytest.raises(LocalFault, match=f"partition 0: its log begins at {start}, and its rows are on disk up to 15"):
        create(node.directory, tmp_path / "backup", node=None, cluster=None, progress=quiet)


def test_a_log_that_is_trimmed_beside_a_checkpoint_is_copied_once_more(
    node: RunningNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The floors were read before a checkpoint, and the log was trimmed up to the new ones before it was copied: the
    next attempt has floors that fit."""
    node.write(200, size=1_000)
    node.apply()
    attempts = []

    def trim_once() -> None:
        attempts.append(node.log.start_of(0))
        if len(attempts) == 1:
            node.store.checkpoint()
            node.trim()

    acting(monkeypatch, STEPS[1:2], trim_once)
    manifest = create(node.directory, tmp_path / "backup", node=None, cluster=None, progress=quiet)
    (found,) = manifest.partitions
    assert len(attempts) == 2
    assert 15 < found.log_start <= found.floor == found.applied == node.end
