"""A process's way to the metastore: its session, its heartbeats, what it reads and what it writes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from repl.isr import events as ev
from repl.model.record import PartitionRecord

if TYPE_CHECKING:
    from tests.sim.metastore import Look
    from tests.sim.process import Process

PING_MS = 700
"""Pause between heartbeats; four fit into a session."""

POLL_MS = 1_500
"""Pause between looks at the records, were every watch lost."""


class Session:
    """`inc` is None without a session; `cut` is a lost connection, which is not an ended session."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self.world = process.world
        self.inc: int | None = None
        self.cut = False

    def start(self) -> None:
        """Register, and look at the records, from now on."""
        self._heartbeat()
        self._poll()

    def write(self, record: PartitionRecord) -> None:
        """Ask for a conditional write; the core gets the answer."""
        self.world.metastore.write(record, self.cut, self._written)

    def _heartbeat(self) -> None:
        process = self.process
        if not process.alive:
            return
        self.world.after(PING_MS, self._heartbeat)
        if process.paused or self.cut:
            return
        if self.inc is None:
            if not process.stopping:
                self.world.metastore.register(process, self._registered)
        elif self.world.metastore.ping(self.inc) is False:
            self.inc = None
            self.world.counts["expiry_noticed"] += 1
            process.post_all(ev.SessionExpired())

    def _registered(self, inc: int) -> None:
        process = self.process
        if process.paused:
            self.world.after(PING_MS, self._registered, inc)
        elif process.alive and self.inc is None:
            self.inc = inc
            process.post_all(ev.SessionStarted(inc))

    def _poll(self) -> None:
        if self.process.alive:
            self.world.after(POLL_MS, self._poll)
            if not self.process.paused and not self.cut:
                self.world.metastore.read(self._polled)

    def _polled(self, look: Look) -> None:
        for record in look[0].values():
            self.process.see(record)

    def _written(self, kind: str, asked: PartitionRecord, found: PartitionRecord) -> None:
        self.world.counts[f"write_{kind}"] += 1
        event: ev.Event
        match kind:
            case "confirmed":
                event = ev.WriteConfirmed(found)
            case "refused":
                event = ev.WriteRefused(asked.version, found)
            case _:
                event = ev.WriteUndecided(asked.version)
        self.process.post(asked.partition, event)
