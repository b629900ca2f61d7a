"""Protocols that the runtime's parts require of the runtime, and the runtime of the controller above it."""

from __future__ import annotations

from typing import Protocol

from isthmus.repl.isr import effects as fx
from isthmus.repl.isr import events as ev
from isthmus.repl.runtime.partition import Partition


class EventSink(Protocol):
    """Takes events of replicas; `repl.runtime.runtime.Runtime`. Belongs to the event loop."""

    def feed(self, partition: Partition, event: ev.Event) -> None:
        """Step the partition's replica and carry out its effects; `flush` must follow in the same turn of the loop."""

    def flush(self) -> None:
        """Hand committed entries of this turn to the applier."""

    def dispatch(self, partition: Partition, event: ev.Event) -> None:
        """`feed`, then `flush`."""

    def check_log_start(self, partition: Partition) -> None:
        """Send the replica a Trimmed event if its log begins above the offset that it knows."""

    def fail(self, error: Exception) -> None:
        """End the process: log or store can no longer be trusted."""

    def quarantine(self, partition: Partition, bug: Exception) -> None:
        """Stop one copy after a bug, and leave its files as they are."""


class StreamEvents(Protocol):
    """The part of the runtime that the streams use; `repl.runtime.runtime.Runtime`. Belongs to the event loop."""

    def dispatch_all(self, event: ev.Event) -> None:
        """Step every replica, carry out the effects, and flush."""

    def feed_at(self, partition: Partition, event: ev.Event, now_ms: int) -> None:
        """`EventSink.feed` for many partitions at one time. A replica that raises is stopped, and no other."""

    def fail(self, error: Exception) -> None:
        """End the process: replicas and log may differ."""

    def quarantine(self, partition: Partition, bug: Exception) -> None:
        """See EventSink."""


class InFlightWork(Protocol):
    """Work on a replica outside of log and store."""

    def busy(self, partition: int) -> bool:
        """True while work on the partition is under way."""


class RecordWatcher(Protocol):
    """Reads partition records; `repl.controller.inbox.ControllerInbox`."""

    def promoted(self, partition: int, effect: fx.Promoted) -> None:
        """The barrier of a candidate on this node is durable: announce it to the controllers."""

    def wake(self) -> None:
        """Read the records soon: a replica knows of a newer one."""
