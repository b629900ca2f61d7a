"""The node's round with its followers: from the sending of a group until each follower node has acknowledged it.

Writes that arrive during a round wait for its end and make the next group together (`repl.coordinator.round_gate`). So
a group grows with the load, and costs the same however many objects it has.
"""

from __future__ import annotations

from collections.abc import Callable

from isthmus.repl.machine import monotonic_s


class Rounds:
    """Whether a round is under way, and who waits for its end. Belongs to the event loop."""

    __slots__ = ("_began_s", "_waiting", "clock", "ended_s", "lasted_s", "open")

    def __init__(self, clock: Callable[[], float] = monotonic_s) -> None:
        """`clock`: monotonic, in seconds."""
        self.clock = clock
        self.open = False
        """True while some follower node has not acknowledged the newest group that was sent to it."""
        self.ended_s = 0.0
        """When the last round ended, on `clock`."""
        self.lasted_s = 0.0
        """Duration of the last round."""
        self._began_s = 0.0
        self._waiting: list[Callable[[], None]] = []

    def when_over(self, function: Callable[[], None]) -> None:
        """Call `function` once, at the end of the round under way."""
        assert self.open
        self._waiting.append(function)

    def begin(self) -> None:
        """A group was sent."""
        if not self.open:
            self.open = True
            self._began_s = self.clock()

    def end(self) -> None:
        """Every group is acknowledged, or its stream is over."""
        self.open = False
        self.ended_s = self.clock()
        self.lasted_s = self.ended_s - self._began_s
        waiting, self._waiting = self._waiting, []
        for function in waiting:
            function()
