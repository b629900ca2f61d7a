"""The simulated metastore: records, registrations, sessions; and the way there and back, which is not to be trusted.

A request may be lost, held for seconds and then arrive, or be done while its answer is lost; the asker
learns "undecided" after its time-out and may repeat while the first copy is still on its way. Reads come late and
in any order. While the metastore is down nothing is answered and no session ends.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from repl.model.record import PartitionRecord, Registration

if TYPE_CHECKING:
    from tests.sim.process import Process
    from tests.sim.world import World

SESSION_MS = 3_000
"""A session ends when nothing was heard for so long."""

ANSWER_TIMEOUT_MS = 900
"""How long an asker waits before it calls a request undecided."""

Answer = Callable[[str, PartitionRecord, PartitionRecord], None]
Look = tuple[Mapping[int, PartitionRecord], Mapping[str, Registration]]


class SimMetastore:
    """All truth about who leads; `down` is an outage."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.records: dict[int, PartitionRecord] = {}
        self.registrations: dict[str, Registration] = {}
        self._owners: dict[str, Process] = {}
        self._heard_ms: dict[int, int] = {}
        self._last_inc = 100
        self._last_gen = 10
        self.down = False
        world.after(200, self._expire)

    def create(self, record: PartitionRecord) -> None:
        """A new partition's record."""
        self.records[record.partition] = record

    def new_gen(self) -> int:
        """A gen that was never given."""
        self._last_gen += 1
        return self._last_gen

    # -- the way --------------------------------------------------------------------------------

    def _delay_ms(self) -> int:
        rng, plan = self.world.rng, self.world.plan
        if rng.random() < plan.held:
            self.world.counts["held"] += 1
            return rng.randint(ANSWER_TIMEOUT_MS, 6_000)
        return rng.randint(1, 12)

    def _lost(self) -> bool:
        return self.world.rng.random() < self.world.plan.lost

    # -- conditional writes ---------------------------------------------------------------------

    def write(self, record: PartitionRecord, cut: bool, answer: Answer) -> None:
        """A conditional write; `answer(kind, asked, found)` is called once: "confirmed" with what was written,
        "refused" with what is there, "undecided" with what was asked. `cut`: the asker has no connection."""
        world = self.world
        delay_ms = self._delay_ms()
        if cut or self._lost():
            world.after(ANSWER_TIMEOUT_MS, answer, "undecided", record, record)
        elif delay_ms >= ANSWER_TIMEOUT_MS:
            world.after(ANSWER_TIMEOUT_MS, answer, "undecided", record, record)
            world.after(delay_ms, self._arrive_late, record)
        else:
            world.after(delay_ms, self._arrive, record, answer)

    def _arrive(self, record: PartitionRecord, answer: Answer) -> None:
        world = self.world
        if self.down:
            world.after(ANSWER_TIMEOUT_MS, answer, "undecided", record, record)
            return
        written = self._store(record)
        if self._lost():
            world.counts["answer_lost"] += 1
            world.after(ANSWER_TIMEOUT_MS, answer, "undecided", record, record)
        elif written is not None:
            world.after(world.rng.randint(1, 12), answer, "confirmed", record, written)
        else:
            world.after(world.rng.randint(1, 12), answer, "refused", record, self.records[record.partition])

    def _arrive_late(self, record: PartitionRecord) -> None:
        if not self.down:
            self.world.counts["late_write_done" if self._store(record) else "late_write_refused"] += 1

    def _store(self, record: PartitionRecord) -> PartitionRecord | None:
        """The one place where a record changes."""
        before = self.records[record.partition]
        if before.version != record.version:
            return None
        after = replace(record, version=before.version + 1)
        self.records[record.partition] = after
        self.world.tell("metastore", after)
        self.world.checkers.record_changed(before, after)
        for node in self.world.nodes.values():
            for process in node.processes:
                if not self._lost() and not process.session.cut:
                    self.world.after(self._delay_ms(), process.see, after)
        for controller in self.world.controllers:
            if not self._lost():
                self.world.after(self._delay_ms(), controller.look)
        return after

    # -- reads ----------------------------------------------------------------------------------

    def read(self, answer: Callable[[Look], None]) -> None:
        """A look: the records, and then the registrations; may never be answered."""
        if not self._lost():
            self.world.after(self._delay_ms(), self._read_records, answer)

    def _read_records(self, answer: Callable[[Look], None]) -> None:
        if not self.down:
            self.world.after(self.world.rng.randint(0, 5), self._read_registrations, dict(self.records), answer)

    def _read_registrations(self, records: Mapping[int, PartitionRecord], answer: Callable[[Look], None]) -> None:
        if not self.down:
            look = (records, dict(self.registrations))
            self.world.after(self._delay_ms(), answer, look)

    # -- sessions -------------------------------------------------------------------------------

    def register(self, process: Process, answer: Callable[[int], None]) -> None:
        """Begin a session and register the process's node; may never be answered."""
        if not self._lost():
            self.world.after(self._delay_ms(), self._arrive_registration, process, answer)

    def _arrive_registration(self, process: Process, answer: Callable[[int], None]) -> None:
        name = process.node.name
        owner = self._owners.get(name)
        if self.down or process.session.cut:
            return
        if (not process.alive and owner is not None) or (process.session.inc is not None and owner is process):
            self.world.counts["late_registration_refused"] += 1
            return  # a session that is over cannot replace what stands there
        if owner is not None and owner is not process:
            self.world.counts["registration_replaced"] += 1
        self._last_inc += 1
        inc = self._last_inc
        self.registrations[name] = Registration(name, inc, True, gens=dict(process.node.disk.gens))
        self._owners[name] = process
        self._heard_ms[inc] = self.world.now_ms
        self.world.tell("metastore", f"{name} registers as {inc}")
        self._hint_controllers()
        self.world.after(self.world.rng.randint(1, 12), answer, inc)

    def ping(self, inc: int) -> bool | None:
        """A heartbeat: True when the session and its registration stand, False when they are over, None when there
        is no answer."""
        if self.down:
            return None
        if not any(r.inc == inc for r in self.registrations.values()):
            return False
        self._heard_ms[inc] = self.world.now_ms
        return True

    def close(self, inc: int | None) -> None:
        """A session ended in order."""
        for name, registration in list(self.registrations.items()):
            if registration.inc == inc and not self.down:
                self._end(name)

    def outage_over(self) -> None:
        """Up again; a new metastore leader starts all session timers anew."""
        self.down = False
        for inc in self._heard_ms:
            self._heard_ms[inc] = self.world.now_ms

    def _expire(self) -> None:
        if not self.down:
            for name, registration in list(self.registrations.items()):
                if self.world.now_ms - self._heard_ms[registration.inc] > SESSION_MS:
                    self.world.counts["session_expired"] += 1
                    self._end(name)
        self.world.after(200, self._expire)

    def _end(self, name: str) -> None:
        self.world.tell("metastore", f"session {self.registrations[name].inc} of {name} is over")
        del self.registrations[name]
        del self._owners[name]
        self._hint_controllers()

    def _hint_controllers(self) -> None:
        for controller in self.world.controllers:
            if not self._lost():
                self.world.after(self._delay_ms(), controller.look)
