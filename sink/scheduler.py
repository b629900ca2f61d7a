"""Schedules fetches: which slot of which link gets the next free worker (pure; times come in).

A link is one queue at one peer. A link has a few slots, so that one can fetch while another pushes; while the source
has no changes, one slot waits there for all. Extra slots run only while answers are full, when the source has more. The
due slot that has been idle longest is next, so a busy link cannot starve the others. No peer gets more workers than its
limit, so a peer that hangs holds its share and no more. With more links than workers, no fetch waits at a source for
long (`Turn.may_wait`): delays then favour the peers that have changes.

A link whose source fails is probed by one slot at a time, which does not wait at the source. A link whose changes this
cluster did not store is not probed: the slot that fetched them must acknowledge soon. While some links answer, those
that fail, or never answered yet, get at most half of the workers: however many peers hang, the others go on.

`TRANSITIONS` lists what a slot does; the slots of a link that was removed are gone once all are idle.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import Enum
from random import Random
from typing import Final, NamedTuple

from isthmus.sink.backoff import Backoff, CycleResult, Delays


class LinkName(NamedTuple):
    """One queue at one peer."""

    queue: str
    peer: str


class Turn(NamedTuple):
    """A slot's turn to fetch. `may_wait` is False when its worker is needed elsewhere, and for a probe: its poll should
    be short."""

    name: LinkName
    slot: int
    may_wait: bool


class SlotState(Enum):
    """What a slot of a link does."""

    IDLE = "idle"
    FETCHING = "fetching"
    PUSHING = "pushing"
    ACKNOWLEDGING = "acknowledging"


TRANSITIONS: Final[Mapping[tuple[SlotState, SlotState], str]] = {
    (SlotState.IDLE, SlotState.FETCHING): "taken: due, not suspended, not ending, within the limits of pool and peer",
    (SlotState.FETCHING, SlotState.PUSHING): "it fetched changes; the link is busy, and its other slots may run",
    (SlotState.FETCHING, SlotState.IDLE): "the cycle's result is reported; the link's delay follows it",
    (SlotState.PUSHING, SlotState.IDLE): "the cycle's result is reported; the link's delay follows it",
    (SlotState.IDLE, SlotState.ACKNOWLEDGING): "without a turn, it sends its acknowledgement in a request of its own, "
    "and takes no worker",
    (SlotState.ACKNOWLEDGING, SlotState.IDLE): "the acknowledgement was sent, or the source failed",
}
"""(From, to) -> when. A slot makes no others: each one is checked."""


@dataclass(slots=True)
class _Link:
    backoff: Backoff
    due_ms: int
    idle_since: list[int]
    states: list[SlotState]
    """Of each slot."""
    normal_slots: int = 0
    """Slots that may run while answers are not full."""
    busy: bool = False
    """Its last answer had changes."""
    full: bool = False
    """Its last answer had as many changes as were asked for."""
    suspended: bool = False
    ending: bool = False
    probing: bool = False
    """The source failed at the last cycle that ended."""
    answered: bool = False
    """The source has answered at least once."""

    def move(self, slot: int, state: SlotState) -> None:
        made = self.states[slot], state
        assert made in TRANSITIONS, f"no slot goes from {made[0].value} to {made[1].value}"
        self.states[slot] = state

    def count(self, state: SlotState) -> int:
        return self.states.count(state)

    @property
    def running(self) -> int:
        return len(self.states) - self.count(SlotState.IDLE)

    @property
    def unproven(self) -> bool:
        return self.probing or not self.answered

    def is_idle(self, slot: int) -> bool:
        return self.states[slot] is SlotState.IDLE

    def may_run(self) -> bool:
        if self.suspended or self.ending:
            return False
        running = self.running
        if running >= self._slots() or (running and self.probing):
            return False
        return self.busy or not self.count(SlotState.FETCHING)

    def demand(self) -> int:
        """Workers that the link would keep busy if there were enough."""
        if self.suspended or self.ending:
            return self.running
        return max(self.running, self._slots() if self.busy and not self.probing else 1)

    def _slots(self) -> int:
        return len(self.idle_since) if self.full else self.normal_slots


class FetchScheduler:
    """The links of one node; no method waits."""

    def __init__(
        self, slots: int, delays: Delays, random: Random, *, workers: int, peer_limit: int = 0, extra: int = 0
    ) -> None:
        """A link has `slots`, and `extra` more while its answers are full."""
        self._slots = slots
        self._extra = extra
        self._delays = delays
        self._random = random
        self._turn = 0
        self._links: dict[LinkName, _Link] = {}
        self._busy: dict[str, int] = {}
        """Peer -> workers in a cycle; without peers that have none."""
        self._busy_count = 0
        self.queue_limits: dict[str, int] = {}
        """Queue -> most workers that may be busy with it, at all its peers together; a queue without an entry has no
        limit."""
        self.workers = workers
        self.configured_peer_limit = peer_limit
        """Workers that one peer may have; 0: an equal share."""

    # ---------------------------------------------------------------- links and limits

    def add(self, name: LinkName) -> None:
        """Add a link, due at once; a link that was ending stays."""
        link = self._links.get(name)
        if link is None:
            slots = self._slots + self._extra
            self._links[name] = _Link(
                Backoff(self._delays), 0, [0] * slots, [SlotState.IDLE] * slots, normal_slots=self._slots
            )
        else:
            link.ending = False

    def leave(self, name: LinkName) -> None:
        """Begin no new cycle of the link; it is gone once its running ones have ended (`gone`)."""
        self._links[name].ending = True

    def gone(self, kept: Collection[LinkName] = ()) -> list[LinkName]:
        """Remove and return the links that were ending and have no running slot, and are not `kept`."""
        names = [name for name, link in self._links.items() if link.ending and not link.running and name not in kept]
        for name in names:
            del self._links[name]
        return names

    def ending(self, name: LinkName) -> bool:
        """Whether the link is ending, while its last cycles run."""
        return self._links[name].ending

    def suspend(self, name: LinkName, suspended: bool) -> None:
        """Suspend or resume a link: begin no new cycles, let running ones finish. A resumed link is due at once."""
        link = self._links[name]
        if link.suspended and not suspended:
            link.due_ms = 0
        link.suspended = suspended

    def retry_now(self, peer: str) -> None:
        """A peer is live again: its links are due at once, whatever their delay."""
        for name, link in self._links.items():
            if name.peer == peer:
                link.due_ms = 0

    def peer_limit(self) -> int:
        """Workers that one peer may have now, at most all."""
        peers = {name.peer for name, link in self._links.items() if not link.ending and not link.suspended}
        return min(self.workers, self.configured_peer_limit or max(1, -(-self.workers // max(1, len(peers)))))

    # ---------------------------------------------------------------- turns

    def take(self, now_ms: int) -> Turn | None:
        """Take the next turn, whose slot is fetching from now on; None when there is none."""
        if self._busy_count >= self.workers:
            return None
        limit = 0
        best: tuple[int, LinkName, int] | None = None
        enough: bool | None = None
        for name, link in self._links.items():
            if link.due_ms > now_ms or not link.may_run():
                continue
            if link.unproven:
                if enough is None:
                    enough = self._unproven_have_enough()
                if enough:
                    continue
            limit = limit or self.peer_limit()
            if self._busy.get(name.peer, 0) >= limit or self._queue_is_full(name.queue):
                continue
            for slot, since in enumerate(link.idle_since):
                if (best is None or since < best[0]) and link.is_idle(slot):
                    best = (since, name, slot)
        if best is None:
            return None
        _, name, slot = best
        link = self._links[name]
        link.move(slot, SlotState.FETCHING)
        self._busy_count += 1
        self._busy[name.peer] = self._busy.get(name.peer, 0) + 1
        return Turn(name, slot, not link.probing and not self._crowded(name, limit))

    def _unproven_have_enough(self) -> bool:
        """Whether links that answer could need the workers that are left."""
        some_answer, held = False, 0
        for link in self._links.values():
            if link.unproven:
                held += link.count(SlotState.FETCHING)
            elif not link.suspended and not link.ending:
                some_answer = True
        return some_answer and held >= max(1, self.workers // 2)

    def _queue_is_full(self, queue: str) -> bool:
        """Whether the workers busy with the queue have reached its limit."""
        limit = self.queue_limits.get(queue)
        if limit is None:
            return False
        links = (link for name, link in self._links.items() if name.queue == queue)
        return sum(link.count(SlotState.FETCHING) + link.count(SlotState.PUSHING) for link in links) >= limit

    def _crowded(self, link_name: LinkName, limit: int) -> bool:
        """Whether more workers are needed than there are, in the pool, for this peer or for this queue."""
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
        """A fetching slot got changes and pushes them now: the link's other slots may fetch meanwhile. `full`: as many
        as it asked for."""
        link = self._links[name]
        link.move(slot, SlotState.PUSHING)
        link.busy, link.full, link.probing, link.answered = True, full, False, True

    def report(self, name: LinkName, slot: int, result: CycleResult, now_ms: int, waited_ms: int) -> None:
        """The cycle of a taken slot has ended."""
        link = self._links[name]
        link.move(slot, SlotState.IDLE)
        self._busy_count -= 1
        left = self._busy.pop(name.peer) - 1
        if left:
            self._busy[name.peer] = left
        self._turn += 1
        link.idle_since[slot] = self._turn
        link.probing = result is CycleResult.ERROR
        link.answered = link.answered or not link.probing
        if result is CycleResult.EMPTY or result is CycleResult.ERROR:
            link.busy = link.full = False
        link.backoff = link.backoff.after(result, waited_ms)
        link.due_ms = now_ms + link.backoff.pause_ms(self._random) if link.backoff.delay_ms else now_ms

    def begin_ack(self, name: LinkName, slot: int, now_ms: int) -> bool:
        """Begin an acknowledgement without a turn. Returns whether the slot may: it is idle, and its link's delay is
        over."""
        link = self._links[name]
        if not link.is_idle(slot) or link.due_ms > now_ms:
            return False
        link.move(slot, SlotState.ACKNOWLEDGING)
        return True

    def ack_done(self, name: LinkName, slot: int, done: bool, now_ms: int) -> None:
        """The acknowledgement was sent (`done`), or the source failed: its link is then delayed."""
        link = self._links[name]
        link.move(slot, SlotState.IDLE)
        if not done:
            link.probing = True
            link.backoff = link.backoff.after(CycleResult.ERROR, 0)
            link.due_ms = now_ms + link.backoff.pause_ms(self._random)

    def next_due_ms(self) -> int | None:
        """When the next link that may run is due; None when there is none, or no worker for it."""
        if self._busy_count >= self.workers:
            return None
        may_run: list[tuple[str, int]] = []
        enough: bool | None = None
        for name, link in self._links.items():
            if not link.may_run():
                continue
            if link.unproven:
                if enough is None:
                    enough = self._unproven_have_enough()
                if enough:
                    continue
            if not self._queue_is_full(name.queue):
                may_run.append((name.peer, link.due_ms))
        if not may_run:
            return None
        limit = self.peer_limit()
        return min((due_ms for peer, due_ms in may_run if self._busy.get(peer, 0) < limit), default=None)

    # ---------------------------------------------------------------- queries

    def suspended(self, name: LinkName) -> bool:
        """Whether the link is suspended."""
        return self._links[name].suspended

    def delay_ms(self, name: LinkName) -> int:
        """The link's present delay."""
        return self._links[name].backoff.delay_ms

    def errors(self, name: LinkName) -> int:
        """Errors in a row of the link."""
        return self._links[name].backoff.errors

    def running(self, name: LinkName) -> int:
        """Slots of the link that are in a cycle."""
        return self._links[name].running

    def running_slots(self, name: LinkName) -> frozenset[int]:
        """The slots of the link that are not idle; none of a link that is gone."""
        link = self._links.get(name)
        return (
            frozenset()
            if link is None
            else frozenset(slot for slot, state in enumerate(link.states) if state is not SlotState.IDLE)
        )

    def running_count(self) -> int:
        """Slots of all links that are in a cycle."""
        return self._busy_count

    def names(self) -> list[LinkName]:
        """All links, in the order in which they were added."""
        return list(self._links)
