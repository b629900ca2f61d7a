"""One push: the changes of a batch into this cluster, and what became of each.

Every change gets one outcome (`repl.model.requests.PushOutcome`). A rejected one will never be taken, so it is
acknowledged and kept in a bounded list for people; a failed one is not acknowledged and comes again.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from queues.rules import Item
from repl.model.keys import Key
from repl.model.requests import PushItem, PushOutcome, PushResult

DEAD_LETTERS_MAX: Final = 1_000
"""Rejected changes kept for inspection, newest last (names and reasons, not values); older ones are only counted."""


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A change that this cluster refuses for good."""

    at_ms: int
    queue: str
    peer: str
    key: Key
    reason: str
    error: str


def pushes(items: Sequence[Item], source: bytes) -> list[PushItem]:
    """What the coordinator is asked, in the batch's order. The origin is the cluster that pushes, `source`, whoever
    made the change: that one must not get it back from here."""
    return [PushItem(Key(item[3], item[4], item[5]), source, item[8]) for item in items]


def failed_indexes(results: Sequence[PushResult]) -> tuple[int, ...]:
    """The items that must come again."""
    return tuple(n for n, result in enumerate(results) if result.outcome is PushOutcome.FAILED)


class Outcomes:
    """Counts of one link's outcomes, and its dead letters."""

    def __init__(self, queue: str, peer: str, letters: deque[DeadLetter]) -> None:
        self._queue = queue
        self._peer = peer
        self._letters = letters
        self.counts: Counter[PushOutcome] = Counter()

    def note(self, items: Sequence[Item], results: Sequence[PushResult], now_ms: int) -> None:
        """Count a batch's results and keep what was rejected."""
        counts = Counter([result.outcome for result in results])
        self.counts.update(counts)
        if counts[PushOutcome.REJECTED]:
            for item, result in zip(items, results, strict=True):
                if result.outcome is PushOutcome.REJECTED and result.error is not None:
                    self._letters.append(
                        DeadLetter(
                            now_ms,
                            self._queue,
                            self._peer,
                            Key(item[3], item[4], item[5]),
                            result.error.reason,
                            str(result.error),
                        )
                    )
