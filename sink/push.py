"""Pushes of the changes of a batch into this cluster, and their outcomes.

Every change gets one outcome (`repl.model.requests.PushOutcome`). A rejected change will never be accepted as it is, so
it is kept as a dead letter (`sink.dead_letters`) and acknowledged; a failed one is not acknowledged and comes again.
`SourceCounters` counts per source cluster and queue, over links that come and go: the sink's half of the ledger.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

from isthmus.queues.riak_origin import origin_of
from isthmus.queues.window_rules import Item
from isthmus.repl.model.keys import Key
from isthmus.repl.model.objects import summarize_encoded
from isthmus.repl.model.reference import ReferenceKind
from isthmus.repl.model.requests import PushItem, PushOutcome, PushResult
from isthmus.repl.unforeseen import observes
from isthmus.sink.conflicts import SiblingConflict
from isthmus.sink.dead_letters import DeadLetter
from isthmus.sink.scheduler import LinkName

_LEAVING: Final = int(ReferenceKind.LEAVING)

_new: Final = tuple.__new__
"""Makes a named tuple from all its fields, in order, at half the cost of its own constructor."""


def pushes(items: Sequence[Item], source: bytes) -> list[PushItem]:
    """The items for the coordinator, in the batch's order. Their origin is `source`, the cluster that pushes, whichever
    cluster made the change: `source` must not get it back from here. All Riaks are one origin."""
    origin = origin_of(source)
    return [_new(PushItem, (_new(Key, item[3:6]), origin, item[8], item[0] == _LEAVING)) for item in items]


def outcomes_of(results: Sequence[PushResult]) -> Mapping[PushOutcome, int]:
    """Number of results per outcome, without outcomes that none had."""
    first = results[0]
    if results.count(first) == len(results):  # usually one object many times: nothing is hashed
        return {first.outcome: len(results)}
    return Counter([result.outcome for result in results])


def failed_indexes(results: Sequence[PushResult]) -> tuple[int, ...]:
    """Indexes of the items that must come again."""
    return tuple(n for n, result in enumerate(results) if result.outcome is PushOutcome.FAILED)


def dead_letters(
    name: LinkName, source: bytes, source_name: str, items: Sequence[Item], results: Sequence[PushResult], now_ms: int
) -> list[DeadLetter]:
    """Dead letters for the rejected changes of a batch."""
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
    """Conflicts of the changes of a batch that were concurrent with objects here, where the leaders report those."""
    found = (_conflict_of(name, source, source_name, *each, now_ms) for each in zip(items, results, strict=True))
    return [one for one in found if one is not None]


@observes("sink.conflict_unnoted")
def _conflict_of(
    name: LinkName, source: bytes, source_name: str, item: Item, result: PushResult, now_ms: int
) -> SiblingConflict | None:
    if result.met is None:
        return None
    return SiblingConflict(
        now_ms, name.queue, name.peer, source, source_name, Key(item[3], item[4], item[5]), result.met.clock,
        summarize_encoded(item[8]).clock, result.met.siblings,
    )  # fmt: skip


class SourceCounters:
    """Changes from one source cluster's queue since the node started, by outcome; shared by its links. A failed push is
    not final: the change comes again and is counted again."""

    def __init__(self, cluster: bytes, cluster_name: str, queue: str) -> None:
        self.cluster = cluster
        self.cluster_name = cluster_name
        self.queue = queue
        self.last_batch_ms: int | None = None
        self.outcomes: Counter[PushOutcome] = Counter()
        self.fetched_count = 0
        self.fetched_bytes = 0

    def fetched(self, count: int, size: int) -> None:
        """Count a batch that was fetched."""
        self.fetched_count += count
        self.fetched_bytes += size

    def pushed(self, outcomes: Mapping[PushOutcome, int], now_ms: int) -> None:
        """Count the outcomes of a batch."""
        for outcome, count in outcomes.items():
            self.outcomes[outcome] += count
        self.last_batch_ms = now_ms

    @property
    def under_way(self) -> int:
        """Changes that were fetched and whose outcome is not known yet."""
        return self.fetched_count - self.outcomes.total()
