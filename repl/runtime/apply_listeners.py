"""Notifies listeners after entries are applied; a failing listener does not affect the others.

A listener that raises keeps neither other listeners nor the replicas from going on. It finds missed entries, of all
partitions of the apply step, by itself with the next ones: queues read the change index, trees are built again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from isthmus.repl.model.entry import Entry
from isthmus.repl.model.ports import AppliedEntries, ApplyListener
from isthmus.repl.unforeseen import unforeseen


class ApplyListeners:
    """The listeners of one node, in the order in which they were added, and the partitions that they know as led.

    A partition counts as led from its barrier on until this node steps down, also while leadership is handed over,
    which may not come about: all entries that are applied meanwhile are a leader's.
    """

    def __init__(self) -> None:
        self._listeners: list[ApplyListener] = []
        self._led: set[int] = set()

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

    @staticmethod
    def _bug(listener: ApplyListener, bug: Exception, partitions: Sequence[int]) -> None:
        unforeseen.exception("runtime.hook_bug", bug, hook=type(listener).__name__, partitions=partitions)
