"""A listener that records reports of damaged rows."""

from __future__ import annotations


class DamageReports(list[tuple[int, int | None]]):
    """(partition, segment) of each report (`repl.model.ports.DamageListener`)."""

    def on_damaged_row(self, partition: int, segment: int | None) -> None:
        """See DamageListener."""
        self.append((partition, segment))
