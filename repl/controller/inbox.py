"""Inbox of a node's controller: reports of other parts of the node.

Made before the controller, and before the links and the runtime, which report here.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from isthmus.repl.controller.contact import Contact
from isthmus.repl.controller.promotions import Promotions
from isthmus.repl.controller.suspicion import Suspicions
from isthmus.repl.isr.effects import Promoted
from isthmus.repl.model.ports import TimeSource


class WakeUp:
    """Wakes a controller from its pause between two looks, and knows whether the next look must read."""

    def __init__(self) -> None:
        self._event = asyncio.Event()
        self._read_due = True

    @property
    def read_due(self) -> bool:
        """Whether something may have changed since the last read began, or nothing was read yet."""
        return self._read_due

    def decide(self) -> None:
        """Decide soon, upon what was read last."""
        self._event.set()

    def read(self) -> None:
        """Read soon: something may have changed."""
        self._read_due = True
        self._event.set()

    def read_next(self) -> None:
        """Let the next look read, whenever the pause ends."""
        self._read_due = True

    def read_begins(self) -> None:
        """A read begins: what is reported from here on requires another."""
        self._read_due = False

    def clear(self) -> None:
        """Forget what was reported until now: the controller looks at it."""
        self._event.clear()

    async def wait(self) -> None:
        """Return once something was reported since `clear`."""
        await self._event.wait()


class PeerWatch:
    """Which other nodes this node has contact with, and which it believes dead; a
    `repl.transport.port.ReachabilityObserver`."""

    def __init__(self, node: str, time: TimeSource, wake_up: WakeUp, suspicions: Suspicions | None) -> None:
        """`suspicions` None: registrations end with their sessions only."""
        self._time = time
        self._wake_up = wake_up
        self.contact = Contact(node)
        self.suspicions = suspicions

    def link_changed(self, node: str, up: bool) -> None:
        """See ReachabilityObserver."""
        if self.suspicions is not None:
            self.suspicions.link_changed(node, up)

    def dial_refused(self, node: str) -> None:
        """See ReachabilityObserver."""
        if self.suspicions is not None and self.suspicions.refused(node, self._time.now_ms()):
            self._wake_up.read()


@dataclass(frozen=True)
class ControllerInbox:
    """The whole inbox; a `repl.runtime.port.RecordWatcher`."""

    wake_up: WakeUp
    peers: PeerWatch
    promotions: Promotions

    def wake(self) -> None:
        """See RecordWatcher."""
        self.wake_up.read()

    def promoted(self, partition: int, effect: Promoted) -> None:
        """See RecordWatcher."""
        self.promotions.announce(partition, effect)
