"""When the requests that arrived at a leader are appended: with every turn of the event loop, or round by round.

A round is the time from the sending of a group to the follower nodes until all of them have acknowledged it
(`repl.runtime.rounds`). A group costs much the same however many requests it has, so requests make few large groups:

    no round, nobody expected   taken at the end of this turn of the loop
    during a round              taken when it is over, or after ROUND_WAIT_S
    after a round               taken once as many have arrived as the last group had, or once a share of the last
                                round's time has passed since it ended

The clients whose requests made the last group have just been answered, and most of them send the next one at once: the
first of them waits for the others, instead of making a group of its own and letting the others wait for a whole round.
A client that is alone expects nobody, so it does not wait. Without followers there are no rounds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from isthmus.repl.runtime.rounds import Rounds
from isthmus.repl.unforeseen import unforeseen

ROUND_WAIT_S: Final = 0.05
"""Longest time for which requests wait until the node's followers have acknowledged the round before: a slow follower
must not hold up partitions that are not its own."""

GATHER_SHARE: Final = 0.5
"""How long requests wait for those of the clients that were just answered, as a share of the last round's time: less
than one that came a moment too late would have waited for the next round."""

GATHER_MOST_S: Final = 0.02
"""Longest such wait, after a round that a slow follower made long."""


class RoundGate:
    """Calls `take` when the requests that arrived are to be appended. Belongs to the event loop."""

    __slots__ = ("_arrived", "_expected", "_gathering", "_loop", "_rounds", "_scheduled", "_take", "_timer")

    def __init__(self, rounds: Rounds, loop: asyncio.AbstractEventLoop, take: Callable[[], None]) -> None:
        self._rounds = rounds
        self._loop = loop
        self._take = take
        self._arrived = 0
        """Requests that wait."""
        self._expected = 0
        """Requests of the last group."""
        self._scheduled = False
        """`take` will be called."""
        self._gathering = False
        """Requests wait for others, after a round."""
        self._timer: asyncio.TimerHandle | None = None

    def arrived(self, count: int = 1) -> None:
        """`count` requests arrived."""
        self._arrived += count
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._look)
        elif self._gathering and self._arrived >= self._expected:
            self._gathering = False
            self._loop.call_soon(self._release)

    def _look(self) -> None:
        """Take the requests now, or say until when they wait."""
        try:
            waits = self._arrived and self._waits()
        except Exception as error:  # whatever is wrong with the rounds, the requests must not wait for it
            unforeseen.exception("write.gate_bug", error)
            waits = False
        if not waits:
            self._release()

    def _waits(self) -> bool:
        """Whether the requests wait: a timer, or the end of the round, takes them."""
        rounds = self._rounds
        if rounds.open:
            if self._timer is None:
                self._timer = self._loop.call_later(ROUND_WAIT_S, self._release)
                rounds.when_over(self._round_over)
            return True
        if self._arrived < self._expected:
            wait_s = rounds.ended_s + min(GATHER_SHARE * rounds.lasted_s, GATHER_MOST_S) - rounds.clock()
            if wait_s > 0:
                self._gathering = True
                self._timer = self._loop.call_later(wait_s, self._release)
                return True
        return False

    def _round_over(self) -> None:
        if self._timer is not None:
            self._cancel_timer()
            self._loop.call_soon(self._look)

    def _release(self) -> None:
        self._cancel_timer()
        self._scheduled = self._gathering = False
        if self._arrived:
            self._expected, self._arrived = self._arrived, 0
            self._take()

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
