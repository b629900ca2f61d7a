"""When one partition's entries were appended, kept until they are applied. Pure: the time comes in."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple


class AppendedBatch(NamedTuple):
    """Entries of one kind that a leader or candidate appended at once; `end` is the offset behind them."""

    end: int
    at_ms: int
    kind: int
    entries: int


class EntryTimestamps:
    """Append times of one partition's unapplied entries, for `repl.runtime.latency`."""

    __slots__ = ("_appended",)

    def __init__(self) -> None:
        self._appended: deque[AppendedBatch] = deque()

    def appended(self, end: int, kind: int, count: int, now_ms: int) -> None:
        """A leader or candidate appended `count` entries of a kind, up to `end`."""
        self._appended.append(AppendedBatch(end, now_ms, kind, count))

    def applied(self, end: int) -> list[AppendedBatch]:
        """All entries below `end` are applied: the batches appended here that are now applied as a whole."""
        appended = self._appended
        done: list[AppendedBatch] = []
        while appended and appended[0].end <= end:
            done.append(appended.popleft())
        return done

    def remove_appended_above(self, end: int) -> list[AppendedBatch]:
        """Remove and return the batches that end above `end`, newest first."""
        removed: list[AppendedBatch] = []
        while self._appended and self._appended[-1].end > end:
            removed.append(self._appended.pop())
        return removed

    def oldest_append_ms(self) -> int | None:
        """When the oldest batch appended here and not applied was appended; None without one."""
        return self._appended[0].at_ms if self._appended else None
