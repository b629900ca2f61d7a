"""The simulated metastore: records, registrations, sessions; and the unreliable network to and from it.

A request may be lost, held for seconds and then arrive, arrive twice, or be carried out while its answer is lost; the
caller gets "undecided" after its time-out and may repeat the request while the first one is still on its way. Reads
arrive late and in any order. While the metastore is down it answers nothing and no session ends. A session needs both
directions to the metastore; a write needs only the way there to take effect, and the way back to be known.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from isthmus.repl.model.record import Member, PartitionRecord, Registration

if TYPE_CHECKING:
    from tests.simulation.cluster.process import Process
    from tests.simulation.cluster.simulator import ClusterSimulation

METASTORE = "metastore"
"""The metastore's name among the ends of the network."""

SESSION_MS = 2_500
"""A session ends after this time without a heartbeat."""

ANSWER_TIMEOUT_MS = 900
"""How long a client waits before it takes a request for undecided."""

HELD_MAX_MS = 8_000
"""Maximum delay of a held request, answer or watch."""

Answer = Callable[[str, PartitionRecord, PartitionRecord], None]
Look = tuple[Mapping[int, PartitionRecord], Mapping[str, Registration], int]
"""Records, registrations, and the metastore's `life` then."""


class SimMetastore:
    """The authoritative records; `down` is an outage."""

    def __init__(self, simulation: ClusterSimulation) -> None:
        self.simulation = simulation
        self.records: dict[int, PartitionRecord] = {}
        self.registrations: dict[str, Registration] = {}
        self._owners: dict[str, Process] = {}
        self._heard_ms: dict[int, int] = {}
        self._last_inc = 100
        self._last_log_id = 10
        self.down = False
        self.life = 0
        """How many times its state was rolled back."""
        self._void_inc = 0
        simulation.after(200, self._expire)

    def create(self, record: PartitionRecord) -> None:
        """A new partition's record."""
        self.records[record.partition] = record

    def void(self, session_id: int | None) -> bool:
        """True of a session that it knew before it went back: it answers nothing to that one any more."""
        return session_id is not None and session_id <= self._void_inc

    def new_log_id(self) -> int:
        """A log id that was never used."""
        self._last_log_id += 1
        return self._last_log_id

    # -- the way --------------------------------------------------------------------------------

    def _delay_ms(self) -> int:
        rng, plan = self.simulation.rng, self.simulation.plan
        dice = rng.random()
        if dice < plan.store_held:
            self.simulation.counts["held"] += 1
            return rng.randint(ANSWER_TIMEOUT_MS, HELD_MAX_MS)
        return 1 + int(dice * 12)

    def _lost(self) -> bool:
        return self.simulation.rng.random() < self.simulation.plan.store_lost

    def _request_arrives(self, asker: str) -> bool:
        """A request of `asker` gets here."""
        return not self.down and self.simulation.network.open(asker, METASTORE)

    def _reaches(self, asker: str) -> bool:
        """An answer gets to `asker`."""
        return self.simulation.network.open(METASTORE, asker)

    # -- conditional writes ---------------------------------------------------------------------

    def write(self, asker: str, record: PartitionRecord, needs: Collection[Member], answer: Answer) -> None:
        """A conditional write; `answer(kind, asked, found)` is called once: "confirmed" with the written record,
        "refused" with the stored one, "undecided" with the requested one."""
        simulation = self.simulation
        if not simulation.network.open(asker, METASTORE) or self._lost():
            simulation.after(ANSWER_TIMEOUT_MS, answer, "undecided", record, record)
            return
        delay_ms = self._delay_ms()
        if delay_ms >= ANSWER_TIMEOUT_MS:
            simulation.after(ANSWER_TIMEOUT_MS, answer, "undecided", record, record)
            simulation.after(delay_ms, self._arrive_late, record, needs, self.life)
        else:
            simulation.after(delay_ms, self._arrive, asker, record, needs, answer, self.life)
            if simulation.rng.random() < simulation.plan.store_held:
                simulation.after(simulation.rng.randint(1, HELD_MAX_MS), self._arrive_late, record, needs, self.life)

    def _arrive(
        self, asker: str, record: PartitionRecord, needs: Collection[Member], answer: Answer, life: int
    ) -> None:
        simulation = self.simulation
        if self.down or life != self.life:
            simulation.after(ANSWER_TIMEOUT_MS, answer, "undecided", record, record)
            return
        written = self._store(record, needs)
        if self._lost() or not self._reaches(asker):
            simulation.counts["answer_lost"] += 1
            simulation.after(ANSWER_TIMEOUT_MS, answer, "undecided", record, record)
        elif written is not None:
            simulation.after(simulation.rng.randint(1, 12), answer, "confirmed", record, written)
        else:
            simulation.after(simulation.rng.randint(1, 12), answer, "refused", record, self.records[record.partition])

    def _arrive_late(self, record: PartitionRecord, needs: Collection[Member], life: int) -> None:
        if not self.down and life == self.life:
            self.simulation.counts["late_write_done" if self._store(record, needs) else "late_write_refused"] += 1

    def _store(self, record: PartitionRecord, needs: Collection[Member]) -> PartitionRecord | None:
        """The one place where a record changes."""
        before = self.records[record.partition]
        if before.version != record.version:
            return None
        if not self._fulfilled(record.partition, needs):
            self.simulation.counts["needs_unmet"] += 1
            return None
        after = replace(record, version=before.version + 1)
        self.records[record.partition] = after
        self.simulation.log_event(METASTORE, after)
        self.simulation.checkers.record_changed(before, after)
        for node in self.simulation.nodes.values():
            for process in node.processes:
                if not self._lost() and self._reaches(node.name) and not self.void(process.session.session_id):
                    self.simulation.after(self._delay_ms(), self._watched, process, after, self.life)
        self._hint_controllers()
        return after

    def _watched(self, process: Process, record: PartitionRecord, life: int) -> None:
        if life == self.life:
            process.see(record)

    def _fulfilled(self, partition: int, needs: Collection[Member]) -> bool:
        """Each member that a write requires is registered, active, and has that log id."""
        for member in needs:
            found = self.registrations.get(member.node)
            if found is None or not found.active or found.log_id_of(partition) != member.log_id:
                return False
        return True

    # -- reads ----------------------------------------------------------------------------------

    def read(self, asker: str, answer: Callable[[Look], None]) -> None:
        """Read the records, and then the registrations; may never be answered."""
        if self.simulation.network.open(asker, METASTORE) and not self._lost():
            self.simulation.after(self._delay_ms(), self._read_records, asker, answer)

    def _read_records(self, asker: str, answer: Callable[[Look], None]) -> None:
        if not self.down:
            records = dict(self.records)
            self.simulation.after(
                self.simulation.rng.randint(0, 5), self._read_registrations, asker, records, answer, self.life
            )

    def _read_registrations(
        self, asker: str, records: Mapping[int, PartitionRecord], answer: Callable[[Look], None], life: int
    ) -> None:
        if not self.down and self._reaches(asker):
            look = (records, dict(self.registrations), life)
            self.simulation.after(self._delay_ms(), answer, look)

    def read_synced(self, asker: str, partition: int, answer: Callable[[PartitionRecord], None]) -> None:
        """Read one record, at least as new as any write confirmed before the call; may never be answered."""
        if self._request_arrives(asker) and self._reaches(asker) and not self._lost():
            self.simulation.after(self._delay_ms(), self._read_synced, asker, partition, answer)

    def _read_synced(self, asker: str, partition: int, answer: Callable[[PartitionRecord], None]) -> None:
        if not self.down and self._reaches(asker):
            self.simulation.after(self._delay_ms(), self._answer_synced, self.records[partition], answer, self.life)

    def _answer_synced(self, record: PartitionRecord, answer: Callable[[PartitionRecord], None], life: int) -> None:
        if life == self.life:
            answer(record)

    # -- sessions -------------------------------------------------------------------------------

    def register(self, process: Process, answer: Callable[[int], None]) -> None:
        """Begin a session and register the process's node; may never be answered."""
        if self._request_arrives(process.node.name) and not self._lost():
            self.simulation.after(self._delay_ms(), self._arrive_registration, process, answer)

    def _arrive_registration(self, process: Process, answer: Callable[[int], None]) -> None:
        name = process.node.name
        owner = self._owners.get(name)
        if not self._request_arrives(name) or not self._reaches(name):
            return
        if (not process.alive and owner is not None) or (process.session.session_id is not None and owner is process):
            self.simulation.counts["late_registration_refused"] += 1
            return  # an expired session cannot replace the stored registration
        if owner is not None and owner is not process:
            self.simulation.counts["registration_replaced"] += 1
        self._last_inc += 1
        session_id = self._last_inc
        self.registrations[name] = Registration(
            name, session_id, not process.stopping, log_ids=dict(process.node.disk.log_ids)
        )
        self._owners[name] = process
        self._heard_ms[session_id] = self.simulation.now_ms
        self.simulation.log_event(METASTORE, f"{name} registers as {session_id}")
        self._hint_controllers()
        self.simulation.after(self.simulation.rng.randint(1, 12), answer, session_id)

    def renew(self, process: Process, answer: Callable[[], None]) -> None:
        """Register the same session again with its directory's present contents and whether it is leaving; may never be
        answered."""
        if self._request_arrives(process.node.name) and not self._lost():
            self.simulation.after(self._delay_ms(), self._arrive_renewal, process, answer)

    def _arrive_renewal(self, process: Process, answer: Callable[[], None]) -> None:
        name, session_id = process.node.name, process.session.session_id
        known = self.registrations.get(name)
        if self.down or not process.alive or known is None or known.session_id != session_id:
            return
        self.registrations[name] = replace(known, active=not process.stopping, log_ids=dict(process.node.disk.log_ids))
        self.simulation.log_event(METASTORE, f"{name} is {'leaving' if process.stopping else 'registered anew'}")
        self._hint_controllers()
        if self._reaches(name) and not self._lost():
            self.simulation.after(self.simulation.rng.randint(1, 12), answer)

    def ping(self, name: str, session_id: int) -> bool | None:
        """A heartbeat: True when the session and its registration exist, False when they have ended, None when there is
        no answer."""
        if not self._request_arrives(name) or not self._reaches(name):
            return None
        known = self.registrations.get(name)
        if known is None or known.session_id != session_id:
            return False
        self._heard_ms[session_id] = self.simulation.now_ms
        return True

    def close(self, name: str, session_id: int | None) -> None:
        """A session ended in order."""
        known = self.registrations.get(name)
        if known is not None and known.session_id == session_id and self._request_arrives(name):
            self._end(name)

    def outage_over(self) -> None:
        """Up again; a new metastore leader restarts all session timers."""
        self.down = False
        for session_id in self._heard_ms:
            self._heard_ms[session_id] = self.simulation.now_ms

    def go_back(self, records: dict[int, PartitionRecord]) -> None:
        """Restore an earlier state and end all sessions; requests under way to it do not arrive."""
        self.life += 1
        self._void_inc = self._last_inc
        self.records = dict(records)
        for name in list(self.registrations):
            self._end(name)

    def _expire(self) -> None:
        if not self.down:
            for name, registration in list(self.registrations.items()):
                if self.simulation.now_ms - self._heard_ms[registration.session_id] > SESSION_MS:
                    self.simulation.counts["session_expired"] += 1
                    self._end(name)
        self.simulation.after(200, self._expire)

    def _end(self, name: str) -> None:
        self.simulation.log_event(METASTORE, f"session {self.registrations[name].session_id} of {name} is over")
        del self.registrations[name]
        del self._owners[name]
        self._hint_controllers()

    def _hint_controllers(self) -> None:
        for controller in self.simulation.controllers:
            if not self._lost() and self._reaches(controller.name):
                self.simulation.after(self._delay_ms(), controller.look)
