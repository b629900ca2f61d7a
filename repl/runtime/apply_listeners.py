"""Notifies listeners after entries are applied; a failing listener does not affect the others.

A listener that raises keeps neither other listeners nor the replicas from going on. It finds missed entries, of all
partitions of the apply step, by itself with the next ones: queues read the change index, trees are built again.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Final

import structlog

from isthmus.repl.model.entry import Entry
from isthmus.repl.model.ports import AppliedEntries, ApplyListener

log = structlog.get_logger(__name__)

LOG_EVERY_S: Final = 10.0
"""Least time between two tracebacks: a bug may come with every apply, a thousand times a second."""


class ApplyListeners:
    """The listeners of one node, in the order in which they were added, and the partitions that they know as led.

    A partition counts as led from its barrier on until this node steps down, also while leadership is handed over,
    which may not come about: all entries that are applied meanwhile are a leader's.
    """

    def __init__(self) -> None:
        self._listeners: list[ApplyListener] = []
        self._led: set[int] = set()
        self._log_at_s = 0.0

    def add(self, listener: ApplyListener) -> None:
        """Notify `listener` from now on, after those added before."""
        self._listeners.append(listener)

    def applied(self, steps: Iterable[tuple[int, Sequence[Entry]]]) -> None:
        """Entries of these partitions are in the store."""
        led = self._led
        applied = [AppliedEntries(partition, entries, partition in led) for partition, entries in steps]
        for listener in self._listeners:
            try:
                listener.applied(applied)
            except Exception as bug:  # noqa: BLE001 - see the module's docstring
                self._bug(listener, bug, [each.partition for each in applied])

    def leadership(self, partition: int, leading: bool, applied_offset: int) -> None:
        """This node began to lead a partition (its barrier is applied), or ceased to."""
        if leading:
            self._led.add(partition)
        else:
            self._led.discard(partition)
        for listener in self._listeners:
            try:
                listener.leadership(partition, leading, applied_offset)
            except Exception as bug:  # noqa: BLE001 - see the module's docstring
                self._bug(listener, bug, [partition])

    def _bug(self, listener: ApplyListener, bug: Exception, partitions: Sequence[int]) -> None:
        now_s = time.monotonic()
        if now_s >= self._log_at_s:
            self._log_at_s = now_s + LOG_EVERY_S
            log.error("runtime.hook_bug", hook=type(listener).__name__, partitions=partitions, exc_info=bug)
