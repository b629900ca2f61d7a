"""Heal gaps of queues and unproven repairs by checks that run outside of the schedule.

A gap belongs to the cluster that owns its queue, and to the bucket types and keys that may be missing. Once a minute
this node looks at all gaps, of all nodes' queues, that belong to a peer's cluster. A gap that has ended and is not
proven gets a check of its time range; if that does not explain all differences, a check of everything; further ones at
doubling intervals. A check compares whole trees, so checks that found the other cluster up to date in all of a gap's
bucket types prove the gap if their trees had applied everything below its end (`aae.scheduling.proofs`), and it is
closed; keys that only the other cluster has do not matter. A check that compares fewer keys than the gap's queue offers
proves nothing about it.

Repairs are references in a node's memory. When those of the newest check are gone, delivered or lost with the process,
a check of everything shows whether they arrived. The decisions (`range_to_check`, `repairs_unproven`) are pure. For
gaps see `queues.gaps`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

import structlog

from isthmus.aae.exchange.exchange import ExchangeVerdict
from isthmus.aae.exchange.wire import PartitionHistory
from isthmus.aae.scheduling.history import PeerHistory
from isthmus.aae.scheduling.proofs import Proof, QueueMarks
from isthmus.aae.scheduling.schedule import CheckKind, TimeRange
from isthmus.aae.scheduling.scheduler import Busy, CheckScheduler, PeerState
from isthmus.repl.model.errors import BadInput, IsthmusError
from isthmus.repl.model.ports import TimeSource
from isthmus.repl.unforeseen import unforeseen

log = structlog.get_logger(__name__)

POLL_S: Final = 60.0
"""Interval between two looks at gaps and repairs, from the node's start on: they are healed within minutes."""

WAIT_MS: Final = 60_000
WAIT_MS_MAX: Final = 3_600_000
"""Interval between two checks for the gaps of one peer, doubled while they remain open: differences that only the other
side can repair must not cause checks forever."""

MARGIN_MS: Final = 5_000
"""Added to the times of gaps for the range of their check: the clocks of machines differ. Where they differ by more,
the check ends as incomplete, and the next one compares everything."""

BY: Final = "gaps of its queue"
FOLLOWING: Final = "repairs to be proven"
"""Requester of a check in listings."""


class GapToHeal(NamedTuple):
    """Changes that `queue` left out, made between two wall-clock times; `upto_ms` None: the gap still grows.
    `bucket_types`: those that may miss changes; for bulk references of unknown types all that the queue accepts.

    A gap of a partition ends at offset `end`, in the partition's `history` (None: its leader is of an earlier version
    and does not report it). A loss of bulk references has no partition, and the `mark` of its record."""

    id: str
    queue: str
    bucket_types: frozenset[str]
    from_ms: int
    upto_ms: int | None
    partition: int | None = None
    history: PartitionHistory | None = None
    end: int = 0
    mark: str = ""


class Gaps(Protocol):
    """The gaps of all nodes. All methods raise IsthmusError."""

    async def open_gaps(self, queue: str, cluster: bytes | None) -> Sequence[GapToHeal]:
        """Gaps that comparisons with `cluster` (None: the owner of `queue`) can prove if repairs go by `queue`: of all
        queues that this cluster owns, as far as the filter of `queue` covers theirs. Nodes that do not respond are left
        out."""

    async def close(self, gaps: Sequence[GapToHeal], proofs: Mapping[str, Proof], by: str, reason: str) -> int:
        """Close gaps of one queue that `proofs` (bucket type -> proof) prove, as they are when it is done: one that has
        grown since stays. Returns how many."""

    def marks(self, queue: str) -> QueueMarks:
        """See `aae.scheduling.proofs.MarkReader`."""

    def waiting(self, queue: str) -> int:
        """References of full-sync on this node that are not acknowledged."""


@dataclass(slots=True)
class HealStatus:
    """State of one peer since this node's start. `open_count` None: not known yet; `open_queues`: queues with open
    gaps; `uncompared_count`: those that no check of the peer can prove, since they are of `uncompared_types` too."""

    open_count: int | None = None
    open_queues: tuple[str, ...] = ()
    uncompared_count: int = 0
    uncompared_types: tuple[str, ...] = ()
    closed_count: int = 0
    wait_ms: int = WAIT_MS
    next_ms: int = 0
    explained: bool = True
    """False after a check of the gaps' times that did not explain all differences: the next one compares everything."""

    def set_open(self, gaps: Sequence[GapToHeal], compared: Collection[str]) -> None:
        """Set the gaps that are not proven yet; `compared`: the bucket types that checks of the peer compare."""
        self.open_count = len(gaps)
        self.open_queues = tuple(sorted({gap.queue for gap in gaps}))
        lacking = [types for gap in gaps if (types := gap.bucket_types.difference(compared))]
        self.uncompared_count = len(lacking)
        self.uncompared_types = tuple(sorted({name for types in lacking for name in types}))


def proven(gaps: Iterable[GapToHeal], proofs: Mapping[str, Proof]) -> list[GapToHeal]:
    """The gaps that are proven in each of their bucket types; `proofs`: bucket type -> proof."""
    return [gap for gap in gaps if gap.upto_ms is not None and is_proven(gap, proofs)]


def is_proven(gap: GapToHeal, proofs: Mapping[str, Proof]) -> bool:
    """True if the trees that were compared had applied everything below the gap's end, or if the loss was recorded
    before they were read, in each of the gap's bucket types."""
    found = [proofs.get(name) for name in gap.bucket_types]
    return bool(found) and all(proof is not None and _covers(proof, gap) for proof in found)


def _covers(proof: Proof, gap: GapToHeal) -> bool:
    if gap.partition is not None:
        return proof.covers(gap.partition, gap.history, gap.end)
    return (gap.queue, gap.mark) in proof.marks.losses


def range_to_check(gaps: Iterable[GapToHeal], bucket_types: Iterable[str]) -> TimeRange | None:
    """The times of a check that would prove all ended gaps whose bucket types are compared; None if there are none."""
    compared = set(bucket_types)
    due = [(gap.from_ms, gap.upto_ms) for gap in gaps if gap.bucket_types <= compared and gap.upto_ms is not None]
    if not due:
        return None
    return TimeRange(max(0, min(start for start, _ in due) - MARGIN_MS), max(end for _, end in due) + MARGIN_MS)


def repairs_unproven(history: PeerHistory, bucket_types: Iterable[str]) -> bool:
    """True if the newest conclusive check of some bucket type enqueued repairs and did not prove it up to date: results
    are in the order in which the checks ended. Repairs that the other cluster refuses for good are not followed."""
    for name in bucket_types:
        for result in reversed(history.results):
            if result.bucket_type != name or (result.verdict in INCONCLUSIVE and not result.queued):
                continue
            if 0 < result.queued <= result.refused:
                break  # it enqueued again what the other side refuses for good, which each check reports
            if result.queued and not result.proven:
                return True
            break
    return False


INCONCLUSIVE: Final = frozenset({ExchangeVerdict.INCOMPLETE, ExchangeVerdict.TIMED_OUT, ExchangeVerdict.ERROR})


class GapHealer:
    """Runs checks and closes gaps. Methods run on the event loop."""

    def __init__(self, scheduler: CheckScheduler, gaps: Gaps, time: TimeSource) -> None:
        self._scheduler = scheduler
        self._gaps = gaps
        self._time = time
        self._task: asyncio.Task[None] | None = None
        self.peers: dict[str, HealStatus] = {}

    def start(self) -> None:
        """Start the task, if there are peers."""
        if self._scheduler.peers and self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """Stop the task; a running check is cancelled."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    def wait_s(self, name: str) -> float | None:
        """Seconds until the next check for a peer may begin; None if none is needed."""
        status = self.peers.get(name)
        if status is None or not status.next_ms:
            return None
        return max(0.0, (status.next_ms - self._time.now_ms()) / 1000)

    async def _run(self) -> None:
        while True:
            self._scheduler.arm()  # the alarm waits for a time of day: where the clock was set, it is another one now
            await self._for_each_peer(self.heal)
            loop = asyncio.get_running_loop()
            next_s = loop.time() + POLL_S
            while await self._wait_for_check(next_s - loop.time()):
                await self._for_each_peer(self.close_proven)

    async def _for_each_peer(self, act: Callable[[str], Awaitable[None]]) -> None:
        for name in list(self._scheduler.peers):
            try:
                await act(name)
            except IsthmusError as error:
                log.info("fullsync.gaps_put_off", peer=name, error=str(error))
            except Exception as error:
                unforeseen.exception(
                    "fullsync.gaps_bug", error, peer=name
                )  # the other peers' gaps are looked at all the same

    async def _wait_for_check(self, timeout_s: float) -> bool:
        """Wait for the end of any check; False on time-out."""
        try:
            async with asyncio.timeout(timeout_s):  # of wait_for, a stop at the moment of the end would be lost
                await self._scheduler.checked.wait()
        except TimeoutError:
            return False
        self._scheduler.checked.clear()
        return True

    async def close_proven(self, name: str) -> None:
        """Close the gaps that checks have proven so far, also those that operators ran. Raises IsthmusError."""
        peer = self._scheduler.peer(name)
        self.peers.setdefault(name, HealStatus())
        await self._close_proven_of(peer, await self._open_gaps(peer))

    async def heal(self, name: str) -> None:
        """Close proven gaps, and run a check for others or for unproven repairs, unless the peer is suspended or has no
        checks configured. Raises IsthmusError."""
        peer = self._scheduler.peer(name)
        status = self.peers.setdefault(name, HealStatus())
        queue, bucket_types = peer.settings.queue, peer.bucket_types
        left = await self._close_proven_of(peer, await self._open_gaps(peer))
        times = range_to_check(left, bucket_types)
        if times is None and not repairs_unproven(peer.history, bucket_types):
            status.wait_ms, status.next_ms, status.explained = WAIT_MS, 0, True
            return
        now_ms = self._time.now_ms()
        if peer.history.suspended is not None or peer.plan is None or now_ms < status.next_ms:
            return
        try:
            if times is None:
                if self._gaps.waiting(queue):
                    return  # what was queued is still to be fetched
                await self._scheduler.run(name, CheckKind.ALL, FOLLOWING)
            else:
                status.explained = await self._run_check(name, times, explained=status.explained)
        except Busy:
            return
        status.next_ms = self._time.now_ms() + status.wait_ms
        status.wait_ms = min(2 * status.wait_ms, WAIT_MS_MAX)
        await self._close_proven_of(peer, left)

    async def _open_gaps(self, peer: PeerState) -> Sequence[GapToHeal]:
        """The gaps that comparisons with the peer can prove."""
        cluster = peer.history.cluster
        return await self._gaps.open_gaps(peer.settings.queue, bytes.fromhex(cluster) if cluster else None)

    async def _run_check(self, name: str, times: TimeRange, *, explained: bool) -> bool:
        """Check the gaps' times, or everything if that did not explain all differences; returns whether this check did.
        Raises Busy."""
        if explained:
            results = await self._scheduler.run(name, CheckKind.RANGE, BY, times)
        else:
            results = await self._scheduler.run(name, CheckKind.ALL, BY)
        return all(
            result.proven or (result.verdict is ExchangeVerdict.REPAIRED and not result.unexplained)
            for result in results
        )

    def _proofs(self, peer: PeerState) -> dict[str, Proof]:
        """{bucket type: proof}; those that were made with another queue or filter are left out."""
        try:
            marks = self._gaps.marks(peer.settings.queue)
        except BadInput:
            return {}  # no such queue, which each check reports
        return {name: proof for name, proof in peer.history.proofs.items() if proof.marks[:2] == marks[:2]}

    async def _close_proven_of(self, peer: PeerState, gaps: Sequence[GapToHeal]) -> Sequence[GapToHeal]:
        """Close the proven ones of `gaps`; returns the others."""
        name, proofs = peer.settings.name, self._proofs(peer)
        found = proven(gaps, proofs)
        status = self.peers[name]
        status.set_open(gaps, peer.bucket_types)
        if not found:
            return gaps
        for queue in sorted({gap.queue for gap in found}):
            of_queue = [gap for gap in found if gap.queue == queue]
            closed = await self._gaps.close(of_queue, proofs, "full-sync", f"{name} is up to date")
            status.closed_count += closed
            log.info("fullsync.gaps_closed", peer=name, queue=queue, count=closed)
        left = [gap for gap in gaps if gap not in found]
        status.set_open(left, peer.bucket_types)
        return left
