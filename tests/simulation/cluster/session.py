"""A process's connection to the metastore: its session, heartbeats, reads and writes."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from isthmus.repl.isr import events as ev
from isthmus.repl.model.record import Member, PartitionRecord
from tests.simulation.cluster.metastore import ANSWER_TIMEOUT_MS

if TYPE_CHECKING:
    from tests.simulation.cluster.metastore import Look
    from tests.simulation.cluster.process import Process

PING_MS = 600
"""Pause between heartbeats; four fit into a session."""

POLL_MS = 2_000
"""Pause between reads of the records, in case every watch was lost."""


class Session:
    """`session_id` is None without a session; a lost connection is not an ended session."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self.simulation = process.simulation
        self.session_id: int | None = None
        self._unsaid = False
        """Whether the registration differs from the directory's present contents, or lacks that the process is
        leaving."""
        self._looking = False

    def start(self) -> None:
        """Register, and read the records, from now on."""
        self._heartbeat()
        self._poll()

    def write(self, record: PartitionRecord, needs: Collection[Member]) -> None:
        """Send a conditional write; the core gets the answer."""
        if self.simulation.metastore.void(self.session_id):
            self.simulation.after(ANSWER_TIMEOUT_MS, self._written, "undecided", record, record)
        else:
            self.simulation.metastore.write(self.process.node.name, record, needs, self._written)

    def look(self) -> None:
        """Read the records soon; one read at a time is enough."""
        if not self._looking:
            self._looking = True
            self.simulation.after(20, self._look)

    def register_again(self) -> None:
        """Register again, with other log ids or as leaving; repeated until it is confirmed."""
        self._unsaid = True
        self._renew()

    def sync_record(self, partition: int, nonce: int) -> None:
        """Read a record after a sync; the core gets the answer, if there is one."""
        name = self.process.node.name
        if self.simulation.metastore.void(self.session_id):
            return
        self.simulation.metastore.read_synced(
            name, partition, lambda record: self.process.post(partition, ev.RecordSynced(nonce, record))
        )

    def _heartbeat(self) -> None:
        process = self.process
        if not process.alive:
            return
        self.simulation.after(PING_MS, self._heartbeat)
        if process.paused:
            return
        if self.session_id is None:
            if not process.stopping:
                self.simulation.metastore.register(process, self._registered)
        elif self.simulation.metastore.ping(process.node.name, self.session_id) is False:
            self.session_id = None
            self.simulation.counts["expiry_noticed"] += 1
            process.post_all(ev.SessionExpired())
        elif self._unsaid:
            self._renew()

    def _renew(self) -> None:
        if self.session_id is not None:
            self.simulation.metastore.renew(self.process, self._renewed)

    def _renewed(self) -> None:
        self._unsaid = False
        self.process.registered_again()

    def _registered(self, session_id: int) -> None:
        process = self.process
        if process.paused:
            self.simulation.after(PING_MS, self._registered, session_id)
        elif process.alive and self.session_id is None:
            self.session_id = session_id
            process.post_all(ev.SessionStarted(session_id))
            self._renewed()

    def _poll(self) -> None:
        if self.process.alive:
            self.simulation.after(POLL_MS, self._poll)
            if not self.process.paused:
                self.simulation.metastore.read(self.process.node.name, self._polled)

    def _look(self) -> None:
        self._looking = False
        if self.process.alive and not self.process.paused:
            self.simulation.metastore.read(self.process.node.name, self._polled)

    def _polled(self, look: Look) -> None:
        metastore = self.simulation.metastore
        if look[2] == metastore.life and not metastore.void(self.session_id):
            for record in look[0].values():
                self.process.see(record)

    def _written(self, kind: str, asked: PartitionRecord, found: PartitionRecord) -> None:
        self.simulation.counts[f"write_{kind}"] += 1
        event: ev.Event
        match kind:
            case "confirmed":
                event = ev.WriteConfirmed(found)
            case "refused":
                event = ev.WriteRefused(asked.version, found)
                if found.version == asked.version:
                    self.simulation.counts["write_refused_by_needs"] += 1
            case _:
                event = ev.WriteOutcomeUnknown(asked.version)
        self.process.post(asked.partition, event)
