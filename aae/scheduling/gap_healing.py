"""What is not proven yet is checked by itself: gaps of queues, and repairs that were queued, until both are equal.

A gap belongs to the cluster that owns its queue, to the bucket types of which it may have left out something, and to
the keys that the queue's filter lets out. Once a minute the gaps of all queues are looked at, on all nodes, which the
cluster that a peer compares with owns: whichever queue repairs go by. One that has ended and was not proven since gets
a check of its times; what that cannot explain gets a check of everything; each further one waits twice as long. Checks
that prove all of its bucket types in sync and began after a gap had ended are the proof, since trees are compared
whole: the gap is closed. A check that looks at fewer keys than the gap's queue lets out proves nothing of it. Repairs
are followed likewise: references lie in a node's memory, so when those of the last check have gone (delivered, or lost
with the process) a check of everything looks what became of them. What checks are stands in `aae.scheduling.manager`;
what gaps are, in `queues.gaps`, which this package sees only as `Gaps`. The decisions (`needed`, `unsettled`) are pure.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple, Protocol

import structlog

from isthmus.aae.exchange.exchange import ExchangeVerdict
from isthmus.aae.scheduling.history import PeerHistory
from isthmus.aae.scheduling.manager import Busy, Manager, PeerState
from isthmus.aae.scheduling.schedule import CheckKind, TimeRange
from isthmus.repl.model.errors import IsthmusError
from isthmus.repl.model.ports import TimeSource

log = structlog.get_logger(__name__)

LOOK_S: Final = 60.0
"""How often gaps and repairs are looked at, from the node's start on: an operator's act, an overflow, references that
were lost with the process are healed within minutes."""

WAIT_MS: Final = 60_000
WAIT_MS_MAX: Final = 3_600_000
"""Pause between two checks for gaps of one peer, doubled each time that they are still there: differences that only the
other side can mend would else be looked at for ever."""

MARGIN_MS: Final = 5_000
"""How far a check reaches beyond a gap, and how much later one must begin that proves it: clocks of machines differ."""

BY: Final = "gaps of its queue"
FOLLOWING: Final = "repairs to be proven"
"""Who wanted the check, in listings."""


class GapToHeal(NamedTuple):
    """What `queue` left out: made between two wall-clock times; `upto_ms` None: it still grows. `bucket_types`: those
    of which something may be left out, which is one of a partition's changes, and any that the queue lets out of
    references of a lower priority."""

    id: str
    queue: str
    bucket_types: frozenset[str]
    from_ms: int
    upto_ms: int | None


class Gaps(Protocol):
    """The gaps of all nodes, and what waits here. All raise IsthmusError."""

    async def seen(self, queue: str, cluster: bytes | None) -> Sequence[GapToHeal]:
        """Those that comparisons with `cluster` can prove (None: with the owner of `queue`) whose repairs go by
        `queue`: of all queues that it owns, as far as `queue` lets out all that may be missing. Of nodes that do not
        answer none."""

    async def close(self, queue: str, ids: Sequence[str], upto_ms: int, by: str, reason: str) -> int:
        """They are proven, as far as they still end at `upto_ms` (wall clock) or before: one that has grown since it
        was seen has the same id. How many could be closed."""

    def waiting(self, queue: str) -> int:
        """References of full-sync that wait on this node, or are under way from it."""


@dataclass(slots=True)
class HealStatus:
    """Of one peer, since this node's start. `open_count` None: not looked yet; `open_queues`: those that have them."""

    open_count: int | None = None
    open_queues: tuple[str, ...] = ()
    closed_count: int = 0
    wait_ms: int = WAIT_MS
    next_ms: int = 0
    explained: bool = True
    """False once a check of the gaps' times was not enough: the next one looks at everything."""

    def are_open(self, gaps: Sequence[GapToHeal]) -> None:
        """These are not proven yet."""
        self.open_count = len(gaps)
        self.open_queues = tuple(sorted({gap.queue for gap in gaps}))


def proven(gaps: Iterable[GapToHeal], began_ms: Mapping[str, int]) -> list[GapToHeal]:
    """Those of `gaps` that are proven: of each of its bucket types a check that found all equal began behind the gap's
    end; `began_ms` by bucket type."""
    return [
        gap for gap in gaps if gap.upto_ms is not None and gap.upto_ms <= proven_upto_ms(gap.bucket_types, began_ms)
    ]


def proven_upto_ms(bucket_types: Iterable[str], began_ms: Mapping[str, int]) -> int:
    """Up to when (wall clock) a gap of `bucket_types` may reach and be proven; see `proven`."""
    return min((began_ms.get(name, 0) for name in bucket_types), default=0) - MARGIN_MS


def needed(gaps: Iterable[GapToHeal], bucket_types: Iterable[str], now_ms: int) -> TimeRange | None:
    """The times of the check that would prove `gaps`: those that have ended, of which all types are compared."""
    compared = set(bucket_types)
    due = [
        (gap.from_ms, gap.upto_ms)
        for gap in gaps
        if gap.bucket_types <= compared and gap.upto_ms is not None and gap.upto_ms + MARGIN_MS <= now_ms
    ]
    if not due:
        return None
    return TimeRange(max(0, min(start for start, _ in due) - MARGIN_MS), max(end for _, end in due) + MARGIN_MS)


def unsettled(remembered: PeerHistory, bucket_types: Iterable[str]) -> bool:
    """True when of some bucket type the newest check that came to an end queued repairs, and none has proven it since.
    A check that could not look at everything tells nothing; nor is followed what the other cluster refuses for good."""
    for name in bucket_types:
        for result in reversed(remembered.results):
            if result.bucket_type != name or (result.verdict in UNTOLD and not result.queued):
                continue
            if 0 < result.queued <= result.refused:
                break  # it queued again what the other side refuses for good: each slot says so, nobody follows it
            if result.queued and result.began_ms > remembered.proven_ms.get(name, 0):
                return True
            break
    return False


UNTOLD: Final = frozenset({ExchangeVerdict.INCOMPLETE, ExchangeVerdict.TIMED_OUT, ExchangeVerdict.ERROR})


class GapHealer:
    """Looks, checks and closes. Methods belong to the event loop."""

    def __init__(self, manager: Manager, gaps: Gaps, time: TimeSource) -> None:
        self._manager = manager
        self._gaps = gaps
        self._time = time
        self._task: asyncio.Task[None] | None = None
        self._checked_since = asyncio.Event()
        self.peers: dict[str, HealStatus] = {}
        manager.on_checked = self._checked_since.set

    def start(self) -> None:
        """Begin to look."""
        if self._manager.peers and self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """Look no more; a check that runs is cancelled."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    def wait_s(self, name: str) -> float | None:
        """Until the next check for gaps or repairs of a peer may begin; None when none is wanted."""
        healed = self.peers.get(name)
        if healed is None or not healed.next_ms:
            return None
        return max(0.0, (healed.next_ms - self._time.now_ms()) / 1000)

    async def _run(self) -> None:
        while True:
            self._manager.arm()  # the alarm waits for a time of day: where the clock was set, it is another one now
            await self._each(self.look)
            loop = asyncio.get_running_loop()
            next_s = loop.time() + LOOK_S
            while await self._ended_before(next_s - loop.time()):
                await self._each(self.settle)

    async def _each(self, act: Callable[[str], Awaitable[None]]) -> None:
        for name in list(self._manager.peers):
            try:
                await act(name)
            except IsthmusError as error:
                log.info("fullsync.gaps_put_off", peer=name, error=str(error))
            except Exception:
                log.exception("fullsync.gaps_bug", peer=name)  # the other peers' gaps are looked at all the same

    async def _ended_before(self, timeout_s: float) -> bool:
        """Wait for the end of a check, whoever began it; whether one ended in time."""
        try:
            async with asyncio.timeout(timeout_s):  # of wait_for, a stop at the moment of the end would be lost
                await self._checked_since.wait()
        except TimeoutError:
            return False
        self._checked_since.clear()
        return True

    async def settle(self, name: str) -> None:
        """Close what the checks so far have proven: whoever ran one by hand sees its gaps gone, and is not told for
        another minute that nothing has proven them. Raises IsthmusError."""
        peer = self._manager.peer(name)
        self.peers.setdefault(name, HealStatus())
        await self._closed(peer, await self._seen(peer))

    async def look(self, name: str) -> None:
        """Close what is proven, and check what is not, gaps or repairs; a peer that is suspended, or wants no checks at
        all, is left alone. Raises IsthmusError."""
        peer = self._manager.peer(name)
        healed = self.peers.setdefault(name, HealStatus())
        queue, bucket_types = peer.settings.queue, peer.bucket_types
        left = await self._closed(peer, await self._seen(peer))
        times = needed(left, bucket_types, self._time.wall_ms())
        if times is None and not unsettled(replace(peer.remembered, proven_ms=self._proven_ms(peer)), bucket_types):
            healed.wait_ms, healed.next_ms, healed.explained = WAIT_MS, 0, True
            return
        now_ms = self._time.now_ms()
        if peer.remembered.suspended is not None or peer.plan is None or now_ms < healed.next_ms:
            return
        try:
            if times is None:
                if self._gaps.waiting(queue):
                    return  # what was queued is still to be fetched
                await self._manager.run(name, CheckKind.ALL, FOLLOWING)
            else:
                healed.explained = await self._checked(name, times, explained=healed.explained)
        except Busy:
            return
        healed.next_ms = self._time.now_ms() + healed.wait_ms
        healed.wait_ms = min(2 * healed.wait_ms, WAIT_MS_MAX)
        await self._closed(peer, left)

    async def _seen(self, peer: PeerState) -> Sequence[GapToHeal]:
        """The gaps that the peer's comparisons can prove."""
        cluster = peer.remembered.cluster
        return await self._gaps.seen(peer.settings.queue, bytes.fromhex(cluster) if cluster else None)

    async def _checked(self, name: str, times: TimeRange, *, explained: bool) -> bool:
        """Check the times of gaps, or everything when that explained nothing; whether this one explains what differs.
        Raises Busy."""
        if explained:
            results = await self._manager.run(name, CheckKind.RANGE, BY, times)
        else:
            results = await self._manager.run(name, CheckKind.ALL, BY)
        return all(
            result.proven or (result.verdict is ExchangeVerdict.REPAIRED and not result.unexplained)
            for result in results
        )

    def _proven_ms(self, peer: PeerState) -> dict[str, int]:
        """When each bucket type was proven; not what was proven later than now, by a clock that has been set back."""
        latest_ms = self._time.wall_ms() + MARGIN_MS
        return {name: at_ms for name, at_ms in peer.remembered.proven_ms.items() if at_ms <= latest_ms}

    async def _closed(self, peer: PeerState, gaps: Sequence[GapToHeal]) -> Sequence[GapToHeal]:
        """`gaps` without those that are proven and could be closed."""
        name, proven_ms = peer.settings.name, self._proven_ms(peer)
        found = proven(gaps, proven_ms)
        healed = self.peers[name]
        healed.are_open(gaps)
        if not found:
            return gaps
        for queue, bucket_types in sorted({(gap.queue, gap.bucket_types) for gap in found}, key=str):
            ids = [gap.id for gap in found if (gap.queue, gap.bucket_types) == (queue, bucket_types)]
            upto_ms = proven_upto_ms(bucket_types, proven_ms)
            closed = await self._gaps.close(queue, ids, upto_ms, "full-sync", f"{name} is in sync")
            healed.closed_count += closed
            log.info("fullsync.gaps_closed", peer=name, queue=queue, count=closed)
        left = [gap for gap in gaps if gap not in found]
        healed.are_open(left)
        return left
