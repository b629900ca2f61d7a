"""How fast a task goes: its share of the rate that a job was given. What the shares are the jobs decide."""

from __future__ import annotations

from time import monotonic, sleep


class TaskRate:
    """Keeps a task to its share of a rate."""

    def __init__(self, rows_per_second: float) -> None:
        self._rate = rows_per_second
        self._began_s = monotonic()
        self._count = 0

    def passed(self, rows: int) -> None:
        """Wait until so many more rows are due."""
        if self._rate:
            self._count += rows
            ahead_s = self._began_s + self._count / self._rate - monotonic()
            if ahead_s > 0:
                sleep(ahead_s)
