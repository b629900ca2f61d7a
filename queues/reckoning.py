"""What a source queue's machine tells of itself: what waits, what is under lease, its ledger, how old it is (pure).

Nothing is decided or changed here; the story is told in `queues.source_queue`.
"""

from __future__ import annotations

from queues.batches import Leases
from queues.rules import REAL_TIME, Ledger
from queues.window import Window


class Reckoning:
    """The machine of one queue as those see it who show it."""

    windows: dict[int, Window]
    leases: Leases
    past: Ledger
    """Of leaderships that have ended."""
    owner_version: int
    _heard_ms: int | None

    @property
    def heard_lately(self) -> bool:
        """The owner has fetched within QUIET_MS."""
        return self._heard_ms is not None

    def unheard(self, now_ms: int, patience_ms: int) -> bool:
        """The owner has not begun a fetch for longer than `patience_ms`."""
        return self._heard_ms is None or now_ms - self._heard_ms > patience_ms

    def version_of_windows(self) -> int:
        """The newest owner version under which a partition stands; 0: none does."""
        return max([window.owner_version for window in self.windows.values()], default=0)

    def decree_of_windows(self) -> int:
        """The newest decree that a partition has obeyed; 0: none has any."""
        return max([window.state.decree for window in self.windows.values()], default=0)

    def waiting_count(self) -> int:
        """References that wait in memory, of windows that serve."""
        version = self.owner_version
        return sum(w.waiting_count for w in self.windows.values() if w.owner_version == version)

    def in_flight_count(self) -> int:
        """References under lease."""
        return sum(w.away_count for w in self.windows.values())

    def unknown(self) -> list[Window]:
        """Windows whose waiting changes are not all in memory."""
        return [window for window in self.windows.values() if not window.contiguous]

    def ledger(self) -> Ledger:
        """Of all partitions led here, now and before; what waits and is under lease is of those led now."""
        total = Ledger()
        for ledger in (self.past, *(window.ledger for window in self.windows.values())):
            total.add(ledger)
        return total

    def oldest_ms(self) -> int | None:
        """The leader's wall clock of the oldest change in memory that is not acknowledged; None when there is
        none."""
        times = [
            part.items[0][7]
            for batch in self.leases.batches.values()
            if batch.priority == REAL_TIME
            for part in batch.parts
        ]
        times += [t for w in self.windows.values() if (t := w.oldest_waiting_ms()) is not None]
        return min(times, default=None)
