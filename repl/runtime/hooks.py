"""Whom apply tells: the floors above, each by itself.

What one of them does wrong is no reason that the others hear nothing, that a read or a leadership that this very apply
decides is forgotten, or that this copy stops. Whoever has missed entries finds that out with the next ones: queues look
into the change index, trees are built anew.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final

import structlog

from isthmus.repl.model.entry import Entry
from isthmus.repl.model.ports import AfterApply

log = structlog.get_logger(__name__)

LOG_EVERY_S: Final = 10.0
"""Least time between two tracebacks: a bug may come with every apply, a thousand times a second."""


class ApplyListeners(list[AfterApply]):
    """Told in the order in which they were added; a bug of one is logged, and it is told again the next time."""

    def __init__(self) -> None:
        super().__init__()
        self._log_at_s = 0.0

    def applied(self, partition: int, entries: Sequence[Entry], leader: bool) -> None:
        """See AfterApply."""
        for hook in self:
            try:
                hook.applied(partition, entries, leader)
            except Exception as bug:  # noqa: BLE001 - see above
                self._bug(hook, partition, bug)

    def leadership(self, partition: int, leading: bool, applied_offset: int) -> None:
        """See AfterApply."""
        for hook in self:
            try:
                hook.leadership(partition, leading, applied_offset)
            except Exception as bug:  # noqa: BLE001 - see above
                self._bug(hook, partition, bug)

    def _bug(self, hook: AfterApply, partition: int, bug: Exception) -> None:
        now_s = time.monotonic()
        if now_s >= self._log_at_s:
            self._log_at_s = now_s + LOG_EVERY_S
            log.error("runtime.hook_bug", partition=partition, hook=type(hook).__name__, exc_info=bug)
