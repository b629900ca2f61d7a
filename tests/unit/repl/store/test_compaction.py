"""A store without writes compacts and releases memory, and loses nothing."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from isthmus.repl.runtime.applier import Checkpointer
from isthmus.repl.store.compaction import mapped
from isthmus.repl.store.leveldb import ROWS_NAME, LevelStore
from tests.support.entry_histories import History, open_store
from tests.support.memory_log import MemoryLog
from tests.support.memory_store import MemoryStore

KEYS = 200
LINUX_WITH_PAGEOUT = (5, 4)


def resident_bytes(directory: Path) -> int:
    """The bytes of the tables in `directory` that this process holds in memory."""
    ranges = {f"{start:08x}-{end:08x}" for start, end in mapped(directory)}
    size, counted = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if re.match(r"[0-9a-f]+-[0-9a-f]+ ", line):
            counted = line.split(" ")[0] in ranges
        elif counted and line.startswith("Rss:"):
            size += int(line.split()[1]) * 1024
    return size


def test_an_idle_store_gives_back_what_is_mapped_of_its_tables_and_reads_as_before(tmp_path: Path) -> None:
    """The tables' resident pages are released only when the node is idle; every object can be read from them again
    afterwards."""
    kernel = tuple(map(int, os.uname().release.split(".")[:2])) if os.uname().sysname == "Linux" else (0, 0)
    if kernel < LINUX_WITH_PAGEOUT:
        pytest.skip("this system does not take pages back on demand")
    store = open_store(tmp_path)
    assert isinstance(store, LevelStore)
    history = History()
    for number in range(KEYS):
        history.put(b"b", b"%d" % number, b"%d" % number * 20_000)
    store.write([history.step(0)])
    store.checkpoint()

    def read_all() -> None:
        for number in range(KEYS):
            assert store.object(3, b"b", b"%d" % number) == b"%d" % number * 20_000

    store.compact_when_idle(idle=False)
    read_all()
    before = resident_bytes(tmp_path / ROWS_NAME)
    assert before > 4_000_000, "the tables are mapped"
    store.compact_when_idle(idle=False)
    assert resident_bytes(tmp_path / ROWS_NAME) == before, "a node that reads keeps them"
    store.compact_when_idle(idle=True)
    assert resident_bytes(tmp_path / ROWS_NAME) < before / 4
    read_all()
    store.close()


class NoPartitions:
    """A CheckpointSource without partitions."""

    pins: Mapping[int, int] = {}

    def partition_ids(self) -> Sequence[int]:
        return ()

    def checkpoint_failed(self, error: Exception) -> None:
        raise error


class RestingStore(MemoryStore):
    """A store that records its idle compactions; `at` is the applied offset of everything."""

    def __init__(self) -> None:
        super().__init__()
        self.at = 0
        self.rests: list[tuple[int, bool]] = []

    def applied_offsets(self) -> dict[int, int]:
        return {3: self.at}

    def checkpoint(self) -> None:
        pass

    def compact_when_idle(self, *, idle: bool) -> None:
        self.rests.append((self.at, idle))


def test_a_store_compacts_once_after_each_load_and_frees_reads_when_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between two checkpoints without a write it compacts. Memory for reads is released at the first such time at which
    the process was idle, and not again before the next write."""
    store = RestingStore()
    checkpointer = Checkpointer(store, MemoryLog(), NoPartitions(), 1_000)
    idle = [False]
    monkeypatch.setattr(checkpointer, "_is_idle", lambda: idle[0])
    checkpointer.run_once()
    checkpointer.run_once()
    assert store.rests == [(0, False)]
    store.at = 7
    checkpointer.run_once()
    assert len(store.rests) == 1, "something was written"
    checkpointer.run_once()
    checkpointer.run_once()
    assert store.rests[1:] == [(7, False)]
    for idle[0] in (True, False, True):
        checkpointer.run_once()
    assert store.rests[2:] == [(7, True)]
    store.at = 9
    checkpointer.run_once()
    checkpointer.run_once()
    assert store.rests[3:] == [(9, True)]
