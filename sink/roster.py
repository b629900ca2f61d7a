"""Who fetches next: slots of links, taken by a finite pool of workers. Pure; times come in.

A link is one queue at one peer. It has a few slots, so that one can wait in a long poll while another
pushes what it got. Of the slots that are due, the one that has rested longest goes first, so a busy link
cannot starve the others. A link whose source fails is probed by one slot at a time; one whose changes this cluster
did not store is not, since the slot that got them must say so soon.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from random import Random

from sink.backoff import Backoff, Result


@dataclass(frozen=True, slots=True)
class LinkName:
    """One queue at one peer."""

    queue: str
    peer: str


@dataclass(slots=True)
class _Link:
    backoff: Backoff
    due_ms: int
    rested_since: list[int]
    running: set[int]
    suspended: bool = False
    probing: bool = False
    """The source failed at the last cycle that ended."""

    def may_run(self) -> bool:
        return not self.suspended and not (self.probing and self.running)


class Roster:
    """The links of one node. Methods are told the time; none waits."""

    def __init__(
        self, names: Iterable[LinkName], slots: int, delay_min_ms: int, delay_max_ms: int, random: Random
    ) -> None:
        self._random = random
        self._turn = 0
        self._links = {name: _Link(Backoff(delay_min_ms, delay_max_ms), 0, [0] * slots, set()) for name in names}

    def take(self, now_ms: int) -> tuple[LinkName, int] | None:
        """A (link, slot) that is due now, which is running from here on; None when none is."""
        best: tuple[int, LinkName, int] | None = None
        for name, link in self._links.items():
            if link.due_ms > now_ms or not link.may_run():
                continue
            for slot, since in enumerate(link.rested_since):
                if slot not in link.running and (best is None or since < best[0]):
                    best = (since, name, slot)
        if best is None:
            return None
        _, name, slot = best
        self._links[name].running.add(slot)
        return name, slot

    def report(self, name: LinkName, slot: int, result: Result, now_ms: int, waited_ms: int) -> None:
        """The cycle of a taken slot is over."""
        link = self._links[name]
        link.running.remove(slot)
        self._turn += 1
        link.rested_since[slot] = self._turn
        link.probing = result is Result.ERROR
        link.backoff = link.backoff.after(result, waited_ms)
        link.due_ms = now_ms + link.backoff.pause_ms(self._random)

    def next_due_ms(self) -> int | None:
        """When a resting slot of a link that may run is due; None when there is none."""
        due = [
            link.due_ms
            for link in self._links.values()
            if link.may_run() and len(link.running) < len(link.rested_since)
        ]
        return min(due, default=None)

    def suspend(self, name: LinkName, suspended: bool) -> None:
        """Whether new cycles of a link may begin; running ones finish. A resumed link is due at once."""
        link = self._links[name]
        if link.suspended and not suspended:
            link.due_ms = 0
        link.suspended = suspended

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
        return len(self._links[name].running)

    def running_slots(self, name: LinkName) -> frozenset[int]:
        """The slots of the link that are in a cycle."""
        return frozenset(self._links[name].running)

    def names(self) -> list[LinkName]:
        """All links, in the order of the settings."""
        return list(self._links)
