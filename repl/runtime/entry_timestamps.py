"""When one partition's entries were appended and committed, kept until they are applied. Pure: the time comes in."""

from __future__ import annotations

from collections import deque
from typing import Final, NamedTuple

COMMITTED_MAX: Final = 1_000
"""Commit times kept until they are applied; while the store is further behind, new commits count with an older time."""


class AppendedBatch(NamedTuple):
    """Entries of one kind that a leader or candidate appended at once; `end` is the offset behind them."""

    end: int
    at_ms: int
    kind: int
    entries: int


class EntryTimestamps:
    """Append and commit times of one partition's unapplied entries, for `repl.runtime.latency`."""

    __slots__ = ("_appended", "_committed")

    def __init__(self) -> None:
        self._appended: deque[AppendedBatch] = deque()
        self._committed: deque[tuple[int, int]] = deque()
        """(end, when in ms)."""

    def appended(self, end: int, kind: int, count: int, now_ms: int) -> None:
        """A leader or candidate appended `count` entries of a kind, up to `end`."""
        self._appended.append(AppendedBatch(end, now_ms, kind, count))

    def committed(self, end: int, now_ms: int) -> None:
        """All entries below `end` are committed."""
        waiting = self._committed
        if waiting and (waiting[-1][1] == now_ms or len(waiting) >= COMMITTED_MAX):
            now_ms = waiting.pop()[1]
        waiting.append((end, now_ms))

    def applied(self, end: int, now_ms: int) -> tuple[int, list[AppendedBatch]]:
        """All entries below `end` are applied: when the oldest of them was committed (now where that is not known),
        and the batches appended here that are now applied as a whole."""
        waiting = self._committed
        since_ms = waiting[0][1] if waiting else now_ms
        while waiting and waiting[0][0] <= end:
            waiting.popleft()
        appended = self._appended
        done: list[AppendedBatch] = []
        while appended and appended[0].end <= end:
            done.append(appended.popleft())
        return since_ms, done

    def remove_appended_above(self, end: int) -> list[AppendedBatch]:
        """Remove and return the batches that end above `end`, newest first."""
        removed: list[AppendedBatch] = []
        while self._appended and self._appended[-1].end > end:
            removed.append(self._appended.pop())
        return removed

    def forget_commits(self) -> None:
        """The log begins again elsewhere: no known commit time belongs to it."""
        self._committed.clear()

    def oldest_append_ms(self) -> int | None:
        """When the oldest batch appended here and not applied was appended; None without one."""
        return self._appended[0].at_ms if self._appended else None
