"""Listeners that record reports of damaged rows, or raise what a queue's machine could not do."""

from __future__ import annotations

from isthmus.queues.source_queue import WindowListeners


class DamageReports(list[tuple[int, int | None]]):
    """(partition, segment) of each report (`repl.model.ports.DamageListener`)."""

    def on_damaged_row(self, partition: int, segment: int | None) -> None:
        """See DamageListener."""
        self.append((partition, segment))


def raised(_partition: int, error: Exception) -> None:
    """`on_failed` of a queue's machine without a service."""
    raise error


def raising_listeners() -> WindowListeners:
    """Faults of the windows of a machine without a service: those that nobody foresaw are raised."""
    return WindowListeners(DamageReports(), raised)
