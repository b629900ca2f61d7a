"""Every node's share of the source queues: listings, gaps, ledgers, lag, applied offsets, one key; and closing gaps.

All requests travel under one RPC method, as JSON objects whose "what" names the request.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

import msgspec

from isthmus.node.nouns.queue import QueueShare, QueueShares
from isthmus.node.services.cluster_query import ClusterQuery, JsonBody, Query
from isthmus.node.services.explain_key import KeyExplainer
from isthmus.node.services.fullsync_status import FullSyncStatus
from isthmus.node.services.queue_listing import shares_of
from isthmus.node.services.replication_lag import NodeLags
from isthmus.queues.admin import GapChoice, GapProof, QueueActs
from isthmus.queues.queue_documents import AppliedOffsets, AuditInfo
from isthmus.queues.service import QueueService
from isthmus.repl.model.errors import CodecError, IsthmusError
from isthmus.repl.model.keys import Key
from isthmus.repl.unforeseen import unforeseen

METHOD: Final = "queues"

HistoryOf = Callable[[int], tuple[int, int] | None]
"""Partition -> (lineage, incarnation) of its record, as the replica on this node has it; None: there is none."""

UPTO_MAX_MS: Final = 1 << 62
"""The end of a time range that names none: later than any wall clock."""


class ListQueues(msgspec.Struct, frozen=True, omit_defaults=True, tag_field="what", tag="listing"):
    """Every queue of the node. A version that does not know `failures` answers with the list of shares alone."""

    failures: bool = False
    """Name also what could not be listed."""


class ListGaps(msgspec.Struct, frozen=True, tag_field="what", tag="gaps"):
    """The open gaps of a queue, or of all queues."""

    name: str | None = None


class ReadLedger(msgspec.Struct, frozen=True, tag_field="what", tag="ledger"):
    """The ledger of one queue."""

    name: str


class ReadLedgers(msgspec.Struct, frozen=True, omit_defaults=True, tag_field="what", tag="ledgers"):
    """The ledgers of all queues. A version that does not know `failures` answers as a whole or not at all."""

    failures: bool = False
    """In place of a ledger that a defect kept from being read, its queue's name and why: {"name", "failed"}."""


class ReadLags(msgspec.Struct, frozen=True, tag_field="what", tag="lags"):
    """The lag of all queues, and the times up to which full-sync has proven them."""


class ReadApplied(msgspec.Struct, frozen=True, tag_field="what", tag="applied"):
    """The applied offsets of the partitions that the node leads."""


class ExplainKey(msgspec.Struct, frozen=True, tag_field="what", tag="explain"):
    """The node's knowledge of one key. The names are hexadecimal."""

    bucket_type: str
    bucket: str
    key: str

    @classmethod
    def of(cls, key: Key) -> ExplainKey:
        """The request about `key`."""
        return cls(key.bucket_type.hex(), key.bucket.hex(), key.key.hex())

    def named_key(self) -> Key:
        """The key. Raises CodecError."""
        try:
            return Key(*(bytes.fromhex(name) for name in (self.bucket_type, self.bucket, self.key)))
        except ValueError as error:
            raise CodecError(f"{METHOD}: the names of the key are not hexadecimal: {error}") from error


class CloseGaps(msgspec.Struct, frozen=True, omit_defaults=True, tag_field="what", tag="close"):
    """Close gaps of a queue: those of `ids`, or those of a bucket type within a time range. A full-sync sends what it
    has proven of them: `offsets` (partition, lineage, incarnation, offset below which all is proven) and the marks of
    `losses`. One of an earlier version sends neither; its proof rests on clocks."""

    name: str
    by: str
    at_ms: int
    reason: str = ""
    ids: list[str] | None = None
    bucket_type: str | None = None
    from_ms: int | None = None
    upto_ms: int | None = None
    offsets: list[tuple[int, int, int, int]] | None = None
    losses: list[str] | None = None

    def choice(self, history_of: HistoryOf) -> GapChoice:
        """The gaps to close. Proven offsets of another history of a partition are left out."""
        proof = None
        if self.offsets is not None or self.losses is not None or self._is_of_earlier_fullsync():
            offsets = {
                partition: offset
                for partition, *history, offset in self.offsets or ()
                if history_of(partition) == tuple(history)
            }
            proof = GapProof(offsets, frozenset(self.losses or ()))
        return GapChoice(
            None if self.ids is None else tuple(self.ids),
            None if self.bucket_type is None else self.bucket_type.encode(),
            self.from_ms or 0,
            self.upto_ms or UPTO_MAX_MS,
            proof,
        )

    def _is_of_earlier_fullsync(self) -> bool:
        return self.by == "full-sync" and self.ids is not None and self.upto_ms is not None


class Applied(msgspec.Struct, frozen=True):
    """Applied offsets of one node: pairs of partition and offset, and its wall clock."""

    positions: list[tuple[int, int]]
    wall_ms: int


QueueRequest = ListQueues | ListGaps | ReadLedger | ReadLedgers | ReadLags | ReadApplied | ExplainKey | CloseGaps

_Rows = list[dict[str, Any]]


class _ListingBody(JsonBody[QueueShares]):
    """Shares with what could not be listed, or the list of shares alone."""

    def __init__(self) -> None:
        super().__init__(METHOD, list[QueueShare] | QueueShares)

    def decode(self, body: bytes) -> QueueShares:
        """See Codec."""
        found: QueueShares | list[QueueShare] = super().decode(body)
        return QueueShares(found) if isinstance(found, list) else found


QUEUES: Final[Query[QueueRequest, Any]] = Query(METHOD, JsonBody(METHOD, QueueRequest), JsonBody(METHOD, Any))
"""All requests of the method, as a node serves them; the queries below have the types of one request each."""
QUEUE_LISTING: Final[Query[ListQueues, QueueShares]] = Query(METHOD, JsonBody(METHOD, ListQueues), _ListingBody())
OPEN_GAPS: Final[Query[ListGaps, _Rows]] = Query(METHOD, JsonBody(METHOD, ListGaps), JsonBody(METHOD, _Rows))
LEDGER: Final[Query[ReadLedger, dict[str, Any]]] = Query(
    METHOD, JsonBody(METHOD, ReadLedger), JsonBody(METHOD, dict[str, Any])
)
LEDGERS: Final[Query[ReadLedgers, _Rows]] = Query(METHOD, JsonBody(METHOD, ReadLedgers), JsonBody(METHOD, _Rows))
LAGS: Final[Query[ReadLags, NodeLags]] = Query(METHOD, JsonBody(METHOD, ReadLags), JsonBody(METHOD, NodeLags))
APPLIED: Final[Query[ReadApplied, Applied]] = Query(METHOD, JsonBody(METHOD, ReadApplied), JsonBody(METHOD, Applied))
KEY: Final[Query[ExplainKey, dict[str, Any]]] = Query(
    METHOD, JsonBody(METHOD, ExplainKey), JsonBody(METHOD, dict[str, Any])
)
CLOSE_GAPS: Final[Query[CloseGaps, int]] = Query(METHOD, JsonBody(METHOD, CloseGaps), JsonBody(METHOD, int))


class QueueResponder:
    """Answers QUEUES from this node's queues, full-sync and key explainer."""

    def __init__(
        self,
        queues: QueueService,
        acts: QueueActs,
        explainer: KeyExplainer,
        fullsync: FullSyncStatus,
        history_of: HistoryOf,
    ) -> None:
        self._queues = queues
        self._acts = acts
        self._history_of = history_of
        self._explainer = explainer
        self._fullsync = fullsync

    async def respond(self, request: QueueRequest) -> Any:
        """See Responder. Raises UnknownQueue, NotReady, OutcomeUnknown."""
        acts = self._acts
        match request:
            case ListQueues():
                found = await shares_of(self._queues)
                return found if request.failures else found.queues
            case ListGaps():
                return [self._with_history(row) for row in acts.gaps(request.name)]
            case ReadLedger():
                return await acts.ledger(request.name)
            case ReadLedgers():
                return [await self._ledger(name, request.failures) for name in acts.names()]
            case ReadLags():
                return NodeLags(await acts.lags(), self._fullsync.proven())
            case ReadApplied():
                positions, wall_ms, _ = acts.applied()
                return Applied(list(positions), wall_ms)
            case ExplainKey():
                return await self._explainer.own(request.named_key())
            case CloseGaps():
                audit = AuditInfo(request.by, request.at_ms, request.reason)
                return await acts.close_gaps(request.name, request.choice(self._history_of), audit)

    async def _ledger(self, name: str, failures: bool) -> dict[str, Any]:
        try:
            return await self._acts.ledger(name)
        except IsthmusError:
            raise
        except Exception as error:
            if not failures:
                raise
            return {"name": name, "failed": str(unforeseen.exception("queue.ledger_failed", error, queue=name))}

    def _with_history(self, row: dict[str, Any]) -> dict[str, Any]:
        """The gap of a partition with the history that its offsets belong to."""
        return row if row["partition"] is None else {**row, "history": self._history_of(row["partition"])}


async def applied_offsets(query: ClusterQuery, nodes: Iterable[str], wall_ms: int, skew_ms: int) -> AppliedOffsets:
    """The offsets that the leaders among `nodes` have applied, of the nodes that answer; and the earliest and latest
    that any clock of the cluster may show: theirs, and `skew_ms` around this node's, `wall_ms`, for those that do not
    answer."""
    answers = await query.ask(APPLIED, ReadApplied(), nodes)
    found = [one for one in answers.by_node.values() if one is not None]
    upto: dict[int, int] = {}
    for one in found:
        for partition, offset in one.positions:
            # A deposed leader may answer, too: its applied entries are committed all the same.
            upto[partition] = max(offset, upto.get(partition, 0))
    clocks = [*(one.wall_ms for one in found), wall_ms - skew_ms, wall_ms + skew_ms]
    return AppliedOffsets(tuple(sorted(upto.items())), min(clocks), max(clocks))
