"""A graceful stop while threads read the store."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from isthmus.aae.trees.tree_builder import TreeBuild
from isthmus.repl.store.leveldb import LevelStore
from tests.support.ensemble_nodes import eventually, three_nodes


async def test_no_store_is_closed_while_a_thread_reads_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a tree that is being built nor a read of the pool: the driver's memory goes with the store, and the
    process would crash."""
    reading: dict[int, int] = {}
    closed_amid_reads: list[int] = []
    lock = threading.Lock()

    def count(store: object, change: int) -> None:
        with lock:
            reading[id(store)] = reading.get(id(store), 0) + change

    fold, close = TreeBuild.fold, LevelStore.close

    def slow_fold(self: TreeBuild, store: LevelStore, partition: int, *more: Any) -> Any:
        stopping: Callable[[], bool] = more[-1]
        count(store, 1)
        try:
            while not stopping():
                time.sleep(0.01)
            time.sleep(0.2)
            return fold(self, store, partition, *more)
        finally:
            count(store, -1)

    def noting_close(self: LevelStore) -> None:
        closed_amid_reads.append(reading.get(id(self), 0))
        close(self)

    def slow_read(store: LevelStore) -> None:
        count(store, 1)
        time.sleep(0.5)
        count(store, -1)

    monkeypatch.setattr(TreeBuild, "fold", slow_fold)
    monkeypatch.setattr(LevelStore, "close", noting_close)
    async with three_nodes(tmp_path) as nodes:
        await eventually(lambda: len(reading) == 3, "each node builds a tree")
        for node in nodes.values():
            store = node.services.store
            assert isinstance(store, LevelStore)
            node.request_stop("while its store is read")
            node.services.read_pool.submit(slow_read, store)
    assert closed_amid_reads == [0, 0, 0]
