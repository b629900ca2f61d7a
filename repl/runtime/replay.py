"""Replay after a power loss: which partitions are still below the applied offset that was found (docs/protocol.md H36).

Rows between a store's durable floor and its applied offset may be missing after the machine stopped. Such a partition
starts at its floor, and serves nothing before a barrier above the found offset is applied. When the last partition has
passed its found offset, the store is notified in a thread, since that takes a sync.

A partition whose record is not known, as at the first start on a restored directory, is replayed once its copy is
opened. Until then the store notes nothing: another restart would replay what was replayed once more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from isthmus.repl.machine import machine
from isthmus.repl.model.errors import LocalFault, StorageShort
from isthmus.repl.store.port import Store
from isthmus.repl.unforeseen import unforeseen

PAUSE_S: Final = 1.0
"""Pause before the end of a replay is tried again that found no descriptor, inode or space for its checkpoint."""


class LogReplay:
    """The replay of one store. `fail` receives, from any thread, an error that ends the process."""

    def __init__(self, store: Store, fail: Callable[[Exception], None]) -> None:
        self._store = store
        self._fail = fail
        self._targets: dict[int, int] = {}
        """Partition -> the applied offset that was found."""
        self._started = False
        self._stopping = machine().event()

    def stop(self) -> None:
        """Wait for nothing more; the next start replays again."""
        self._stopping.set()

    @property
    def waits(self) -> bool:
        """True while some partition is below its found offset."""
        return bool(self._targets)

    def first_offset(self, partition: int) -> int:
        """The offset at which applying starts in this process."""
        found = self._store.applied(partition).offset
        if not self._store.needs_replay():
            return found
        floor = self._store.durable_floor(partition)
        if found > floor:
            self._targets[partition] = found
        return min(floor, found)

    def forget(self, partition: int) -> None:
        """Replay nothing of this partition: a state transfer replaces its rows."""
        self._targets.pop(partition, None)
        if self._started:
            self._look()

    def start(self) -> None:
        """Notify the store at once where nothing has to be replayed. Later copies may be opened, too."""
        self._started = True
        self._look()

    def passed(self, partition: int, end: int) -> None:
        """All entries below `end` are applied."""
        target = self._targets.get(partition)
        if target is not None and end >= target:
            del self._targets[partition]
            self._look()

    def _look(self) -> None:
        if self._store.needs_replay() and not self._targets:
            asyncio.get_running_loop().run_in_executor(None, self._replay_finished)

    def _replay_finished(self) -> None:
        while True:
            try:
                self._store.replay_finished()
            except StorageShort:
                if self._stopping.wait(PAUSE_S):
                    return
            except (LocalFault, OSError) as error:
                self._fail(error)
                return
            except Exception as error:  # the store notes nothing: the next start replays again
                unforeseen.exception("store.replay_bug", error)
                return
            else:
                return
