"""The node's round with its followers: from the sending of a group until each follower node has acknowledged it.

Writes that arrive during a round wait for its end and make the next group together (`repl.coordinator.coordinator`).
So a group grows with the load, and costs the same however many objects it has.
"""

from __future__ import annotations

from collections.abc import Callable


class Rounds:
    """Whether a round is under way, and who waits for its end. Belongs to the event loop."""

    __slots__ = ("_waiting", "open")

    def __init__(self) -> None:
        self.open = False
        """True while some follower node has not acknowledged the newest group that was sent to it."""
        self._waiting: list[Callable[[], None]] = []

    def when_over(self, function: Callable[[], None]) -> None:
        """Call `function` once, at the end of the round under way."""
        assert self.open
        self._waiting.append(function)

    def begin(self) -> None:
        """A group was sent."""
        self.open = True

    def end(self) -> None:
        """Every group is acknowledged, or its stream is over."""
        self.open = False
        waiting, self._waiting = self._waiting, []
        for function in waiting:
            function()
