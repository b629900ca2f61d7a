"""Power losses for a LevelDB store: the files that may be left, at every moment.

Bytes synced by LevelDB or a checkpoint are there, the rest may be gone: here, the unsynced end of each `.log` and the
slot being written. LevelDB deletes its old log within milliseconds of a memtable switch, so a `DatabaseRecorder` keeps
every log by a hard link and puts it back: the state left is that of a power loss before the old memtable's table was
finished. `kill -9` cannot show any of this, since it spares the page cache.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from isthmus.repl.storage.slot_file import SlotFile
from isthmus.repl.store.checkpoint import Disk

SETTLE_S = 20.0


class PowerCut(BaseException):
    """The power failed within a checkpoint; nothing after it was done."""


@dataclass
class LossyDisk(Disk):
    """Carries out operations, tracks what is durable, and stops for good after `stop_after` of them.

    `beside` is called before each operation, like a writer that runs beside the checkpoint; `watch` is for observers.
    """

    stop_after: int | None = None
    beside: Callable[[], None] = lambda: None
    watch: Callable[[], None] = lambda: None
    count: int = 0
    done: list[str] = field(default_factory=list)
    durable_logs: dict[str, int] = field(default_factory=dict)
    durable_slots: dict[str, bytes] = field(default_factory=dict)

    def _step(self, name: str) -> None:
        self.watch()
        if self.stop_after is not None and self.count >= self.stop_after:
            raise PowerCut
        self.beside()
        self.count += 1
        self.done.append(name)

    def sync_file(self, path: Path) -> None:
        """Like the real one; the present length is durable."""
        self._step(f"sync {path.suffix}")
        length = path.stat().st_size
        super().sync_file(path)
        self.durable_logs[path.name] = max(self.durable_logs.get(path.name, 0), length)

    def sync_directory(self, path: Path) -> None:
        """Like the real one."""
        self._step("sync directory")
        super().sync_directory(path)

    def write_slot(self, slots: SlotFile, value: Any) -> None:
        """Like the real one; a stop here leaves the slot torn."""
        paths = slots._paths
        target = paths[(slots._sequence + 1) % 2]
        try:
            self._step("write slot")
        except PowerCut:
            before = target.read_bytes() if target.exists() else b""
            super().write_slot(slots, value)
            after = target.read_bytes()
            half = len(after) // 2
            self.durable_slots[target.name] = after[:half] + before[half:]
            raise
        super().write_slot(slots, value)
        self.durable_slots[target.name] = target.read_bytes()


@dataclass(frozen=True)
class LogLoss:
    """How a power loss leaves the unsynced ends of the older logs and of the newest one: a share of each, then
    `filler`."""

    older: float
    newest: float
    filler: bytes = b""

    def left(self, data: bytes, durable: int, share: float) -> bytes:
        """The log `data` after the loss."""
        kept = durable + int((len(data) - durable) * share)
        lost = len(data) - kept
        return data[:kept] + (self.filler * lost)[:lost]


class DatabaseRecorder:
    """Watches one store's database from outside and can compute, at any moment, the files that a power loss would
    leave."""

    def __init__(self, store_directory: Path, recording_directory: Path, disk: LossyDisk) -> None:
        self._store = store_directory
        self._live = store_directory / "rows"
        self._kept = recording_directory
        self._disk = disk
        recording_directory.mkdir()
        self._copy: dict[str, bytes] = {}
        self._tables: set[str] = set()
        self._first_log = ""
        self.settle()
        disk.watch = self._look

    def _look(self) -> None:
        """A log that a checkpoint does not find is in a finished table: no loss from now on goes back behind that."""
        if not (self._live / self._first_log).exists():
            self.settle()

    def settle(self) -> None:
        """Wait until LevelDB has one log and no table under way; remember this state to go back to."""
        deadline = time.monotonic() + SETTLE_S
        while True:
            assert time.monotonic() < deadline, sorted(os.listdir(self._live))
            (manifest,) = self._live.glob("MANIFEST-*")
            length = manifest.stat().st_size
            self._link("*.ldb")
            logs = self._link("*.log")
            copy = {name: (self._live / name).read_bytes() for name in (manifest.name, "CURRENT")}
            tables = self._link("*.ldb")
            if len(logs) == 1 and manifest.exists() and manifest.stat().st_size == length:
                self._copy, self._tables, self._first_log = copy, tables, min(logs)
                return
            time.sleep(0.001)

    def _link(self, pattern: str) -> set[str]:
        names = set()
        for path in self._live.glob(pattern):
            names.add(path.name)
            try:
                os.link(path, self._kept / path.name)
            except FileExistsError:
                continue
            except FileNotFoundError:
                names.discard(path.name)
        return names

    def logs(self) -> list[str]:
        """The logs that a power loss now would find, old ones first: two after a memtable switch."""
        self._link("*.log")
        return sorted(p.name for p in self._kept.glob("*.log") if p.name >= self._first_log)

    def hold(self) -> None:
        """Restore a log that LevelDB has just deleted, as if the old memtable's table were still being written. (A
        later compaction may delete it again; then the loss is one after that.)"""
        deadline = time.monotonic() + SETTLE_S
        while len(list(self._live.glob("*.log"))) > 1:
            assert time.monotonic() < deadline
            time.sleep(0.001)
        for name in self.logs():
            if not (self._live / name).exists():
                os.link(self._kept / name, self._live / name)

    def power_loss(self, to: Path, loss: LogLoss) -> None:
        """Write to `to` the files that the store has after a power loss."""
        shutil.rmtree(to, ignore_errors=True)
        (to / "rows").mkdir(parents=True)
        for name, data in self._copy.items():
            (to / "rows" / name).write_bytes(data)
        for name in self._tables:
            shutil.copyfile(self._kept / name, to / "rows" / name)
        logs = self.logs()
        for name in logs:
            data = (self._kept / name).read_bytes()
            share = loss.newest if name == logs[-1] else loss.older
            (to / "rows" / name).write_bytes(loss.left(data, self._disk.durable_logs.get(name, 0), share))
        for name, data in self._disk.durable_slots.items():
            (to / name).write_bytes(data)
