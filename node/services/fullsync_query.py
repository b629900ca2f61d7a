"""The full-sync of every node: its checks, schedule, results and trees, and the acts of operators on one of them.

Full-sync's work is not moved between nodes: a peer that only one node compares with is a risk, which `warning` names.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from heapq import nlargest
from typing import Any, Final, Protocol, TypeVar
from urllib.parse import quote, unquote_to_bytes

import msgspec

from isthmus.aae.scheduling.schedule import CheckKind, TimeRange
from isthmus.aae.scheduling.scheduler import CheckScheduler
from isthmus.aae.service import FullSync
from isthmus.node.nouns.fullsync import (
    CheckResultRow,
    DayOfNode,
    FullSyncOfNode,
    PeerResultRow,
    TreeParts,
)
from isthmus.node.services.cluster_query import JsonBody, Query
from isthmus.node.services.fullsync_status import FullSyncStatus
from isthmus.repl.model.errors import BadInput, CodecError
from isthmus.repl.model.ports import TimeSource

STATUS_METHOD: Final = "fullsync"
REFRESH_METHOD: Final = "fullsync.refresh"
SUSPEND_METHOD: Final = "fullsync.act"
RESULTS_METHOD: Final = "fullsync.results"
ORDER_METHOD: Final = "fullsync.order"

RESULTS_MAX: Final = 1_000
"""Most results of one answer: some 400 KB of JSON."""

ORDER_TIMEOUT_MS: Final = 10_000
"""How long a node may take to begin a check or to save a range on its disk, which is a matter of milliseconds."""


class FullSyncPart(StrEnum):
    """The parts of a node's full-sync status."""

    CHECKS = "checks"
    TREES = "trees"
    SCHEDULE = "schedule"


class FullSyncPartBody:
    """The part's name as plain text."""

    def encode(self, part: FullSyncPart) -> bytes:
        """See Codec."""
        return part.value.encode()

    def decode(self, body: bytes) -> FullSyncPart:
        """See Codec."""
        name = body.decode(errors="replace")
        try:
            return FullSyncPart(name)
        except ValueError:
            known = ", ".join(part.value for part in FullSyncPart)
            raise CodecError(f"{STATUS_METHOD}: {name!r:.40} is not known; the parts are: {known}") from None


class RefreshFullSync(msgspec.Struct, frozen=True, array_like=True):
    """Read the operators' documents after a change. On the wire: [peer, resumed]."""

    peer: str | None
    """The peer that changed; None: all."""
    resumed: bool
    """A suspension that an earlier version set on the node alone ends, too."""


class SuspendFullSync(msgspec.Struct, frozen=True, array_like=True):
    """Suspend or resume checks on one node; only earlier versions send it. On the wire: an array of these fields."""

    suspended: bool
    peer: str | None
    by: str
    reason: str


class ReadResults(msgspec.Struct, frozen=True):
    """The newest results of one peer, or (None) of all, at most `limit`."""

    limit: int
    peer: str | None = None


class BeginChecks(msgspec.Struct, frozen=True, tag="run"):
    """Begin checks of one peer, or (None) of all in turn."""

    peer: str | None
    kind: CheckKind
    by: str


class SetTimes(msgspec.Struct, frozen=True, tag="set-range"):
    """The range of the next check of kind range. Both times None: no range. A bucket is a text, or where it is none
    percent-encoded in `bucket_encoded`."""

    peer: str | None
    since_ms: int | None = None
    before_ms: int | None = None
    bucket: str | None = None
    bucket_encoded: str | None = None

    @classmethod
    def of_bytes(cls, peer: str | None, since_ms: int, before_ms: int, bucket: bytes | None) -> SetTimes:
        """The order for a bucket of any bytes. None: all buckets."""
        try:
            return cls(peer, since_ms, before_ms, None if bucket is None else bucket.decode())
        except UnicodeDecodeError:
            return cls(peer, since_ms, before_ms, bucket_encoded=quote(bucket or b"", safe=""))

    @property
    def bucket_bytes(self) -> bytes | None:
        """The name of the bucket. None: all buckets."""
        if self.bucket_encoded is not None:
            return unquote_to_bytes(self.bucket_encoded)
        return None if self.bucket is None else self.bucket.encode()


class LeaveOutAuto(msgspec.Struct, frozen=True, tag="suppress-auto"):
    """Leave out the next `count` checks of kind auto."""

    peer: str | None
    count: int


CheckOrder = BeginChecks | SetTimes | LeaveOutAuto
"""An operator's order to one node."""


class OrderDone(msgspec.Struct, frozen=True):
    """A node's answer to an order: the peers concerned, when, and the state before and after, for the audit log."""

    peers: list[str]
    at_ms: int
    before: dict[str, Any] | None = None
    after: dict[str, Any] | None = None


FULLSYNC_RESULTS: Final[Query[ReadResults, list[PeerResultRow]]] = Query(
    RESULTS_METHOD, JsonBody(RESULTS_METHOD, ReadResults), JsonBody(RESULTS_METHOD, list[PeerResultRow])
)
"""The answer: the newest first."""
FULLSYNC_ORDER: Final[Query[CheckOrder, OrderDone]] = Query(
    ORDER_METHOD, JsonBody(ORDER_METHOD, CheckOrder), JsonBody(ORDER_METHOD, OrderDone)
)
FULLSYNC_STATUS: Final[Query[FullSyncPart, Any]] = Query(
    STATUS_METHOD, FullSyncPartBody(), JsonBody(STATUS_METHOD, Any)
)
"""Every part, as a node serves it; the queries below have the type of one part each."""
FULLSYNC_CHECKS: Final[Query[FullSyncPart, FullSyncOfNode]] = Query(
    STATUS_METHOD, FullSyncPartBody(), JsonBody(STATUS_METHOD, FullSyncOfNode)
)
FULLSYNC_TREES: Final[Query[FullSyncPart, TreeParts]] = Query(
    STATUS_METHOD, FullSyncPartBody(), JsonBody(STATUS_METHOD, TreeParts)
)
FULLSYNC_SCHEDULE: Final[Query[FullSyncPart, DayOfNode]] = Query(
    STATUS_METHOD, FullSyncPartBody(), JsonBody(STATUS_METHOD, DayOfNode)
)
FULLSYNC_REFRESH: Final[Query[RefreshFullSync, list[str]]] = Query(
    REFRESH_METHOD, JsonBody(REFRESH_METHOD, RefreshFullSync), JsonBody(REFRESH_METHOD, list[str])
)
"""The answer: the names of the peers that the change concerned."""
FULLSYNC_SUSPEND: Final[Query[SuspendFullSync, list[str]]] = Query(
    SUSPEND_METHOD, JsonBody(SUSPEND_METHOD, SuspendFullSync), JsonBody(SUSPEND_METHOD, list[str])
)
"""The answer: the names of the peers that were suspended or resumed."""


class FullSyncStatusResponder:
    """Answers FULLSYNC_STATUS."""

    def __init__(self, status: FullSyncStatus) -> None:
        self._status = status

    async def respond(self, part: FullSyncPart) -> TreeParts | DayOfNode | FullSyncOfNode:
        """See Responder."""
        match part:
            case FullSyncPart.TREES:
                return self._status.trees()
            case FullSyncPart.SCHEDULE:
                return self._status.schedule()
            case FullSyncPart.CHECKS:
                return self._status.checks()


class FullSyncResultsResponder:
    """Answers FULLSYNC_RESULTS."""

    def __init__(self, status: FullSyncStatus) -> None:
        self._status = status

    async def respond(self, request: ReadResults) -> list[PeerResultRow]:
        """See Responder."""
        return newest_results(self._status.results(request.peer), request.limit)


class FullSyncOrderResponder:
    """Answers FULLSYNC_ORDER."""

    def __init__(self, scheduler: CheckScheduler, time: TimeSource) -> None:
        self._scheduler = scheduler
        self._time = time

    async def respond(self, order: CheckOrder) -> OrderDone:
        """See Responder. Raises UnknownPeer, Busy, NotReady, LocalFault."""
        scheduler, at_ms = self._scheduler, self._time.wall_ms()
        if isinstance(order, BeginChecks):
            if order.kind is CheckKind.NONE:
                raise BadInput("a check of kind none compares nothing")
            return OrderDone(scheduler.begin(order.peer, order.kind, order.by), at_ms)
        before = self._schedule_states(order.peer)
        if isinstance(order, SetTimes):
            await scheduler.set_range(order.peer, _time_range(order))
        else:
            await scheduler.suppress_auto(order.peer, order.count)
        return OrderDone(sorted(before), at_ms, before, self._schedule_states(order.peer))

    def _schedule_states(self, peer: str | None) -> dict[str, Any]:
        """The range and the suppressed checks of a full-sync (None: of all)."""
        states = {n: p.history.schedule_state for n, p in self._scheduler.peers.items() if peer in (None, n)}
        return {
            name: {
                "suppressed": state.suppressed,
                "range": None if state.learned is None else [state.learned.since_ms, state.learned.before_ms],
            }
            for name, state in states.items()
        }


def _time_range(order: SetTimes) -> TimeRange | None:
    if order.since_ms is None or order.before_ms is None:
        return None
    return TimeRange(order.since_ms, order.before_ms, order.bucket_bytes)


R = TypeVar("R", bound=CheckResultRow)


def newest_results(results: Iterable[R], limit: int) -> list[R]:
    """The newest `limit` results, the newest first; at most RESULTS_MAX."""
    return nlargest(max(0, min(limit, RESULTS_MAX)), results, key=lambda one: one.began_ms)


class FullSyncRefreshResponder:
    """Answers FULLSYNC_REFRESH."""

    def __init__(self, fullsync: FullSync) -> None:
        self._fullsync = fullsync

    async def respond(self, request: RefreshFullSync) -> list[str]:
        """See Responder."""
        manager = self._fullsync.scheduler
        before = set(manager.peers)
        await self._fullsync.documents.refresh()
        names = sorted(name for name in before | manager.peers.keys() if request.peer in (None, name))
        for name in names if request.resumed else ():
            if name in manager.peers:
                await manager.resume(name)
        return names


class FullSyncSuspendResponder:
    """Answers FULLSYNC_SUSPEND."""

    def __init__(self, fullsync: FullSync) -> None:
        self._fullsync = fullsync

    async def respond(self, request: SuspendFullSync) -> list[str]:
        """See Responder."""
        manager = self._fullsync.scheduler
        names = [name for name in manager.peers if request.peer in (None, name)]
        for name in names:
            if request.suspended:
                await manager.suspend(name, request.by, request.reason)
            else:
                await manager.resume(name)
        return names


class ComparedCluster(Protocol):
    """A cluster that a node compares with: its name, None where it is not given, and nodes of it."""

    @property
    def cluster(self) -> str | None:
        """See the class."""

    @property
    def urls(self) -> Sequence[str]:
        """See the class."""


def sharing(
    peer: ComparedCluster, nodes: Mapping[str, Sequence[ComparedCluster] | None]
) -> tuple[list[str], list[str]]:
    """(nodes that compare with the cluster of `peer`, nodes that did not answer). `nodes`: what each compares with. Two
    are one cluster when they have the same name, or a URL in common."""
    found = [node for node, compared in nodes.items() if any(_same(peer, other) for other in compared or ())]
    return sorted(found), sorted(node for node, compared in nodes.items() if compared is None)


def warning(shared_by: list[str], silent: list[str], nodes: int) -> str | None:
    """The warning when one node of several compares with a cluster alone; None when others do, or unknown."""
    if len(shared_by) > 1 or nodes < 2 or silent:
        return None
    return (
        f"only {shared_by[0]} compares with it, and no node when that one is gone: add the [[fullsync]] to another node"
    )


def _same(one: ComparedCluster, other: ComparedCluster) -> bool:
    named = one.cluster is not None and one.cluster == other.cluster
    return named or bool(set(one.urls) & set(other.urls))
