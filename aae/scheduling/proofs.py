"""What a check proves: offsets of partitions and recorded losses, as they were before the check read anything.

A check compares the sums of the leaders' trees. What a partition's leader had applied when the check began was in its
tree at every later look of the check, as long as the leadership stayed the same until the check ended; then the check
proves everything below that offset. Losses of bulk references, which have no offsets, are proven if they were recorded
before the check began. So a proof is never compared with a gap by clocks, which differ between nodes.

A proof belongs to the filter of the queue by which the check chose its keys, and its offsets to one history of each
partition: a restored or re-seeded partition, or one with a forced leader, gives offsets of that history again. Proofs
are in memory only: after a restart a check is needed. Rules: docs/protocol.md R-PROOF.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from isthmus.aae.exchange.wire import AppliedTree, PartitionHistory


class QueueMarks(NamedTuple):
    """State of the queues before a check. `queue`: the one by which the check chooses its keys, with its `filter`;
    `losses`: the (queue, mark) of every recorded loss of bulk references."""

    queue: str
    filter: str
    losses: frozenset[tuple[str, str]]


class ProvenOffset(NamedTuple):
    """Changes of one history of a partition below `offset` are proven."""

    history: PartitionHistory
    offset: int


@dataclass(frozen=True, slots=True)
class Proof:
    """What a check of one bucket type proves, if it finds the other cluster up to date."""

    marks: QueueMarks
    offsets: Mapping[int, ProvenOffset] = field(default_factory=dict)
    """By partition."""

    def after(self, older: Proof | None) -> Proof:
        """This proof with the offsets of an older one for partitions that it lacks: a node that did not report its
        offsets takes nothing back."""
        if older is None or older.marks[:2] != self.marks[:2]:
            return self
        return Proof(self.marks, {**older.offsets, **self.offsets})

    def covers(self, partition: int, history: PartitionHistory | None, end: int) -> bool:
        """True if the changes of the partition below `end` are proven, in that history of it."""
        found = self.offsets.get(partition)
        return found is not None and found.history == history and end <= found.offset


class SourceOffsets(Protocol):
    """This cluster's trees (`aae.exchange.cluster.ClusterTrees`)."""

    async def applied(self, bucket_type: bytes) -> Mapping[int, AppliedTree]:
        """The ready trees of the leaders, by partition; those that cannot be had are left out."""


class MarkReader(Protocol):
    """The queues of this node."""

    def marks(self, queue: str) -> QueueMarks:
        """See QueueMarks; `queue` chooses the keys. Raises UnknownQueue."""


class CheckProofs(Protocol):
    """Makes the proofs of checks."""

    async def begin(self, queue: str, bucket_type: bytes) -> PendingProof:
        """Call it before the check reads anything. Raises UnknownQueue."""

    async def end(self, pending: PendingProof, bucket_type: bytes) -> Proof:
        """The proof, once the check has found the other cluster up to date."""


class PendingProof(NamedTuple):
    """Facts from before a check."""

    marks: QueueMarks
    trees: Mapping[int, AppliedTree]


class TreeProofs(CheckProofs):
    """Proofs by the trees of this cluster."""

    def __init__(self, source: SourceOffsets, queues: MarkReader) -> None:
        self._source = source
        self._queues = queues

    async def begin(self, queue: str, bucket_type: bytes) -> PendingProof:
        """See CheckProofs."""
        marks = self._queues.marks(queue)
        return PendingProof(marks, await self._source.applied(bucket_type))

    async def end(self, pending: PendingProof, bucket_type: bytes) -> Proof:
        """See CheckProofs."""
        return Proof(pending.marks, proven_offsets(pending.trees, (await self._source.applied(bucket_type)).values()))


def proven_offsets(before: Mapping[int, AppliedTree], after: Iterable[AppliedTree]) -> dict[int, ProvenOffset]:
    """The offsets from before a check, of partitions that had the same leadership after it: between two leaderships the
    tree of a deposed leader, or one of an earlier history, may have been read."""
    return {
        tree.partition: ProvenOffset(was.history, was.offset)
        for tree in after
        if (was := before.get(tree.partition)) is not None and (was.history, was.epoch) == (tree.history, tree.epoch)
    }
