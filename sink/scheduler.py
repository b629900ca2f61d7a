"""Who fetches next: slots of links, taken by a finite pool of workers. Pure; times come in.

A link is one queue at one peer. It has a few slots, so that one can fetch while another pushes what it got; while the
source has nothing, one of them waits there for all (`fetched` says that it found something). More of them work only
while answers are full, so that there is more where they came from. Of the slots that are due, the one that has rested
longest goes first, so a busy link cannot starve the others. No peer gets more workers than its limit, so one that
hangs holds its share and no more. When there are more links than workers, nobody waits at a source for long
(`Turn.may_wait`): then delays favour the peers that have something. A link whose source fails is probed by one slot
at a time, which does not wait at the source; one whose changes this cluster did not store is not, since the slot that
got them must say so soon. While some links answer, those that fail, or never answered yet, have half of the workers:
however many peers hang, those that answer go on.

    resting -> fetching   taken: due, not suspended, not leaving, within the limits of pool and peer
    fetching -> pushing   it found something; the link is busy, and its other slots may go
    fetching | pushing -> resting   the cycle's result is reported; the link's delay follows it
    resting -> telling -> resting   it has no turn, and says by itself what it has to acknowledge; no worker of the pool
    any -> gone           a link that left, once none of its slots runs
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import NamedTuple

from isthmus.sink.backoff import Backoff, CycleResult, Delays


class LinkName(NamedTuple):
    """One queue at one peer."""

    queue: str
    peer: str


class Turn(NamedTuple):
    """A slot's turn to fetch. `may_wait` is False when its worker is wanted elsewhere, and for a probe: it should not
    poll for long."""

    name: LinkName
    slot: int
    may_wait: bool


@dataclass(slots=True)
class _Link:
    backoff: Backoff
    due_ms: int
    rested_since: list[int]
    fetching: set[int] = field(default_factory=set)
    pushing: set[int] = field(default_factory=set)
    telling: set[int] = field(default_factory=set)
    usual: int = 0
    """Slots that may run while answers are not full."""
    busy: bool = False
    """Its last answer held something."""
    full: bool = False
    """It held as much as was asked for."""
    suspended: bool = False
    leaving: bool = False
    probing: bool = False
    """The source failed at the last cycle that ended."""
    answered: bool = False
    """It ever did."""

    @property
    def running(self) -> int:
        return len(self.fetching) + len(self.pushing) + len(self.telling)

    @property
    def doubtful(self) -> bool:
        return self.probing or not self.answered

    def rests(self, slot: int) -> bool:
        return slot not in self.fetching and slot not in self.pushing and slot not in self.telling

    def may_run(self) -> bool:
        if self.suspended or self.leaving or (self.probing and self.running):
            return False
        return self.running < self._slots() and (self.busy or not self.fetching)

    def demand(self) -> int:
        """Workers that it would keep busy if there were enough."""
        if self.suspended or self.leaving:
            return self.running
        return max(self.running, self._slots() if self.busy and not self.probing else 1)

    def _slots(self) -> int:
        return len(self.rested_since) if self.full else self.usual


class FetchScheduler:
    """The links of one node. Methods are told the time; none waits."""

    def __init__(
        self, slots: int, delays: Delays, random: Random, *, workers: int, peer_limit: int = 0, more: int = 0
    ) -> None:
        """A link has `slots`, and so many `more` while its answers are full."""
        self._slots = slots
        self._more = more
        self._delays = delays
        self._random = random
        self._turn = 0
        self._links: dict[LinkName, _Link] = {}
        self._busy: dict[str, int] = {}
        """Workers of each peer in a cycle; a peer without any is not in it."""
        self._busy_count = 0
        self.queue_limits: dict[str, int] = {}
        """Queue -> most workers that may be busy with it, at all its peers together; one that is not in it has no
        limit."""
        self.workers = workers
        self.peer_limit_set = peer_limit
        """Workers that one peer may have; 0: an equal share."""

    # ---------------------------------------------------------------- links and limits

    def add(self, name: LinkName) -> None:
        """A link begins, due at once; one that was leaving stays."""
        link = self._links.get(name)
        if link is None:
            self._links[name] = _Link(Backoff(self._delays), 0, [0] * (self._slots + self._more), usual=self._slots)
        else:
            link.leaving = False

    def leave(self, name: LinkName) -> None:
        """No new cycle of the link begins; it is gone once those that run have ended (`gone`)."""
        self._links[name].leaving = True

    def gone(self) -> list[LinkName]:
        """Links that left and of which nothing runs any more; they are forgotten."""
        names = [name for name, link in self._links.items() if link.leaving and not link.running]
        for name in names:
            del self._links[name]
        return names

    def leaving(self, name: LinkName) -> bool:
        """True while the link's last cycles end."""
        return self._links[name].leaving

    def suspend(self, name: LinkName, suspended: bool) -> None:
        """Whether new cycles of a link may begin; running ones finish. A resumed link is due at once."""
        link = self._links[name]
        if link.suspended and not suspended:
            link.due_ms = 0
        link.suspended = suspended

    def retry_now(self, peer: str) -> None:
        """The peer has come back, as others tell: its links are due at once, whatever their delay."""
        for name, link in self._links.items():
            if name.peer == peer:
                link.due_ms = 0

    def peer_limit(self) -> int:
        """Workers that one peer may have now: never more than there are."""
        peers = {name.peer for name, link in self._links.items() if not link.leaving and not link.suspended}
        return min(self.workers, self.peer_limit_set or max(1, -(-self.workers // max(1, len(peers)))))

    # ---------------------------------------------------------------- turns

    def take(self, now_ms: int) -> Turn | None:
        """The slot whose turn it is now, which is fetching from here on; None when there is none."""
        if self._busy_count >= self.workers:
            return None
        limit = 0
        best: tuple[int, LinkName, int] | None = None
        enough: bool | None = None
        for name, link in self._links.items():
            if link.due_ms > now_ms or not link.may_run():
                continue
            if link.doubtful:
                if enough is None:
                    enough = self._doubted_enough()
                if enough:
                    continue
            limit = limit or self.peer_limit()
            if self._busy.get(name.peer, 0) >= limit or self._queue_is_full(name.queue):
                continue
            for slot, since in enumerate(link.rested_since):
                if (best is None or since < best[0]) and link.rests(slot):
                    best = (since, name, slot)
        if best is None:
            return None
        _, name, slot = best
        link = self._links[name]
        link.fetching.add(slot)
        self._busy_count += 1
        self._busy[name.peer] = self._busy.get(name.peer, 0) + 1
        return Turn(name, slot, not link.probing and not self._crowded(name, limit))

    def _doubted_enough(self) -> bool:
        """True when links that answer could want the workers that are left."""
        some_answer, held = False, 0
        for link in self._links.values():
            if link.doubtful:
                held += len(link.fetching)
            elif not link.suspended and not link.leaving:
                some_answer = True
        return some_answer and held >= max(1, self.workers // 2)

    def _queue_is_full(self, queue: str) -> bool:
        """True when as many workers are busy with it as may be."""
        limit = self.queue_limits.get(queue)
        if limit is None:
            return False
        return (
            sum(len(link.fetching) + len(link.pushing) for n, link in self._links.items() if n.queue == queue) >= limit
        )

    def _crowded(self, link_name: LinkName, limit: int) -> bool:
        """True when more workers are wanted than there are, in the pool, for this peer or for this queue."""
        total = here = of_queue = 0
        for name, link in self._links.items():
            demand = link.demand()
            total += demand
            if name.peer == link_name.peer:
                here += demand
            if name.queue == link_name.queue:
                of_queue += demand
        queue_limit = self.queue_limits.get(link_name.queue, self.workers)
        return total > self.workers or here > limit or of_queue > queue_limit

    def fetched(self, name: LinkName, slot: int, *, full: bool = False) -> None:
        """A fetching slot found something and pushes it now: the link's other slots may fetch meanwhile. `full`: as
        much as it asked for."""
        link = self._links[name]
        link.fetching.remove(slot)
        link.pushing.add(slot)
        link.busy, link.full, link.probing, link.answered = True, full, False, True

    def report(self, name: LinkName, slot: int, result: CycleResult, now_ms: int, waited_ms: int) -> None:
        """The cycle of a taken slot is over."""
        link = self._links[name]
        link.fetching.discard(slot)
        link.pushing.discard(slot)
        self._busy_count -= 1
        left = self._busy.pop(name.peer) - 1
        if left:
            self._busy[name.peer] = left
        self._turn += 1
        link.rested_since[slot] = self._turn
        link.probing = result is CycleResult.ERROR
        link.answered = link.answered or not link.probing
        if result is CycleResult.EMPTY or result is CycleResult.ERROR:
            link.busy = link.full = False
        link.backoff = link.backoff.after(result, waited_ms)
        link.due_ms = now_ms + link.backoff.pause_ms(self._random) if link.backoff.delay_ms else now_ms

    def begin_ack(self, name: LinkName, slot: int, now_ms: int) -> bool:
        """Whether a slot may say now what it has to acknowledge: it rests, and its link's delay is over. It is telling
        from here on."""
        link = self._links[name]
        if not link.rests(slot) or link.due_ms > now_ms:
            return False
        link.telling.add(slot)
        return True

    def ack_done(self, name: LinkName, slot: int, done: bool, now_ms: int) -> None:
        """It has; not `done`: the source failed, so the link is left alone for a while."""
        link = self._links[name]
        link.telling.remove(slot)
        if not done:
            link.probing = True
            link.backoff = link.backoff.after(CycleResult.ERROR, 0)
            link.due_ms = now_ms + link.backoff.pause_ms(self._random)

    def next_due_ms(self) -> int | None:
        """When a link that may run is due; None when there is none, or no worker for it."""
        if self._busy_count >= self.workers:
            return None
        enough = self._doubted_enough()
        may_run = [
            (name.peer, link.due_ms)
            for name, link in self._links.items()
            if link.may_run() and not (link.doubtful and enough) and not self._queue_is_full(name.queue)
        ]
        if not may_run:
            return None
        limit = self.peer_limit()
        return min((due_ms for peer, due_ms in may_run if self._busy.get(peer, 0) < limit), default=None)

    # ---------------------------------------------------------------- what is shown

    def suspended(self, name: LinkName) -> bool:
        """True while no new cycle of the link may begin."""
        return self._links[name].suspended

    def delay_ms(self, name: LinkName) -> int:
        """The link's delay now."""
        return self._links[name].backoff.delay_ms

    def errors(self, name: LinkName) -> int:
        """Errors in a row of the link."""
        return self._links[name].backoff.errors

    def running(self, name: LinkName) -> int:
        """Slots of the link that are in a cycle."""
        return self._links[name].running

    def running_slots(self, name: LinkName) -> frozenset[int]:
        """The slots of the link that do not rest; none of a link that is gone."""
        link = self._links.get(name)
        return frozenset() if link is None else frozenset(link.fetching | link.pushing | link.telling)

    def running_count(self) -> int:
        """Slots of all links that are in a cycle."""
        return self._busy_count

    def names(self) -> list[LinkName]:
        """All links, in the order in which they came."""
        return list(self._links)
