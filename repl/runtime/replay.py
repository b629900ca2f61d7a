"""Replay after a power loss: which partitions still have to pass the applied offset that was found (H36).

Rows between a store's durable floor and its applied offset may be missing after the machine stopped. Such a partition
begins at its floor, and nothing of it is served before a barrier above what was found is applied. When the last one
has passed, the store is told, which takes a sync and so a thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from isthmus.repl.model.errors import LocalFault
from isthmus.repl.store.port import Store


class LogReplay:
    """Of one store. `fail` takes, from any thread, an error that ends the process."""

    def __init__(self, store: Store, fail: Callable[[Exception], None]) -> None:
        self._store = store
        self._fail = fail
        self._targets: dict[int, int] = {}

    @property
    def waits(self) -> bool:
        """True while some partition is below what was found applied."""
        return bool(self._targets)

    def first_offset(self, partition: int) -> int:
        """Where a partition's applying begins in this process."""
        found = self._store.applied(partition).offset
        if not self._store.needs_replay():
            return found
        floor = self._store.durable_floor(partition)
        if found > floor:
            self._targets[partition] = found
        return min(floor, found)

    def forget(self, partition: int) -> None:
        """Nothing of this partition is replayed: its rows come from elsewhere."""
        self._targets.pop(partition, None)

    def start(self) -> None:
        """All partitions that the store holds are known. Where nothing has to be replayed, the store may know."""
        if self._store.needs_replay() and not self._targets:
            self._finish()

    def passed(self, partition: int, end: int) -> None:
        """All below `end` is applied."""
        target = self._targets.get(partition)
        if target is not None and end >= target:
            del self._targets[partition]
            if not self._targets:
                self._finish()

    def _finish(self) -> None:
        asyncio.get_running_loop().run_in_executor(None, self._replay_finished)

    def _replay_finished(self) -> None:
        try:
            self._store.replay_finished()
        except (LocalFault, OSError) as error:
            self._fail(error)
