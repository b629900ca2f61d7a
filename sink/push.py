"""One push: the changes of a batch into this cluster, and what became of each.

Every change gets one outcome (`repl.model.requests.PushOutcome`). A rejected one will never be taken as it is, so it is
kept for people (`sink.dead_letters`) and then acknowledged; a failed one is not acknowledged and comes again.
`SourceCounters` counts per source cluster and queue, over links that come and go: it is the sink's half of the ledger.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

from isthmus.queues.window_rules import Item
from isthmus.repl.model.keys import Key
from isthmus.repl.model.objects import summarize_encoded
from isthmus.repl.model.reference import ReferenceKind
from isthmus.repl.model.requests import PushItem, PushOutcome, PushResult
from isthmus.sink.conflicts import SiblingConflict
from isthmus.sink.dead_letters import DeadLetter
from isthmus.sink.scheduler import LinkName

_LEAVING: Final = int(ReferenceKind.LEAVING)

_new: Final = tuple.__new__
"""Makes a named tuple of all its fields, in order, at half the price of its own constructor."""


def pushes(items: Sequence[Item], source: bytes) -> list[PushItem]:
    """What the coordinator is asked, in the batch's order. The origin is the cluster that pushes, `source`, whoever
    made the change: that one must not get it back from here."""
    return [_new(PushItem, (_new(Key, item[3:6]), source, item[8], item[0] == _LEAVING)) for item in items]


def outcomes_of(results: Sequence[PushResult]) -> Mapping[PushOutcome, int]:
    """How many came to what; what nothing came to is not there."""
    first = results[0]
    if results.count(first) == len(results):  # as a rule it is one object again and again: nothing is hashed
        return {first.outcome: len(results)}
    return Counter([result.outcome for result in results])


def failed_indexes(results: Sequence[PushResult]) -> tuple[int, ...]:
    """The items that must come again."""
    return tuple(n for n, result in enumerate(results) if result.outcome is PushOutcome.FAILED)


def dead_letters(
    name: LinkName, source: bytes, source_name: str, items: Sequence[Item], results: Sequence[PushResult], now_ms: int
) -> list[DeadLetter]:
    """What of a batch was rejected, with the reason."""
    return [
        DeadLetter(
            now_ms, name.queue, name.peer, source, source_name, Key(item[3], item[4], item[5]), result.error.reason,
            str(result.error), len(item[8]), item[8],
        )
        for item, result in zip(items, results, strict=True)
        if result.outcome is PushOutcome.REJECTED and result.error is not None
    ]  # fmt: skip


def conflicts_of(
    name: LinkName, source: bytes, source_name: str, items: Sequence[Item], results: Sequence[PushResult], now_ms: int
) -> list[SiblingConflict]:
    """What of a batch was concurrent with what was here, as far as the leaders say with what."""
    return [
        SiblingConflict(
            now_ms, name.queue, name.peer, source, source_name, Key(item[3], item[4], item[5]), result.met.clock,
            summarize_encoded(item[8]).clock, result.met.siblings,
        )
        for item, result in zip(items, results, strict=True)
        if result.met is not None
    ]  # fmt: skip


class SourceCounters:
    """What was pushed from one source cluster's queue since the node began, by outcome; shared by its links.
    A failed push is no end: the change comes again and has its outcome then."""

    def __init__(self, cluster: bytes, cluster_name: str, queue: str) -> None:
        self.cluster = cluster
        self.cluster_name = cluster_name
        self.queue = queue
        self.last_batch_ms: int | None = None
        self._outcomes: Counter[PushOutcome] = Counter()
        self._fetched = 0
        self._fetched_bytes = 0

    def fetched(self, count: int, size: int) -> None:
        """A batch came in."""
        self._fetched += count
        self._fetched_bytes += size

    def pushed(self, outcomes: Mapping[PushOutcome, int], now_ms: int) -> None:
        """It has its outcomes."""
        for outcome, count in outcomes.items():
            self._outcomes[outcome] += count
        self.last_batch_ms = now_ms

    def shown(self) -> dict[str, Any]:
        """For listings: fetched = applied + merged + superseded + rejected + failed + under way."""
        outcomes, fetched = self._outcomes, self._fetched
        return {
            "source_cluster": self.cluster_name,
            "source_uuid": self.cluster.hex(),
            "queue": self.queue,
            "fetched": fetched,
            "fetched_bytes": self._fetched_bytes,
            **{outcome.value: outcomes[outcome] for outcome in PushOutcome},
            "under_way": fetched - outcomes.total(),
            "last_batch_ms": self.last_batch_ms,
        }
