"""Clusters whose nodes suspect each other (R-SUSPECT): dead nodes whose address refuses, and false suspicions.

The rules are the product's (`repl.controller.suspicion`); the holds are shorter, as the sessions are. A dial is refused
where no process runs, and where a fault makes a living node's address reject one other node, or all of them, while
everything between the two is cut. The metastore gets the requests to end registrations late, twice, or not at all.

Invariants, checked when a node suspects another one, and when a registration ends by that:

- I-SUSPECT-PROOF: a dial of this node was refused in the session that it suspects; a time-out proves nothing.
- I-SUSPECT-REACHED: this node had a connection with the session that it suspects.
- I-SUSPECT-ALONE: this node is connected with a third node, if another one is registered.
- I-SUSPECT-RATE: the registrations of a node that end by suspicion are at least the shortest hold time old.
- I-SUSPECT-QUIET: no node is suspected once faults are over and no process ends. (Late requests may still arrive.)
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar

from isthmus.repl.controller.suspicion import HoldTimes, Suspicions
from isthmus.repl.isr import events as ev
from tests.simulation.cluster.invariants import Violation
from tests.simulation.cluster.metastore import SESSION_MS, Look, SimMetastore
from tests.simulation.cluster.nodes import Node
from tests.simulation.cluster.process import Process
from tests.simulation.cluster.session import PING_MS, Session
from tests.simulation.cluster.simulator import ClusterSimulation

HOLD_TIMES = HoldTimes(min_ms=1_000, max_ms=8_000, half_ms=4_000)
"""The shortest hold is below a session's length, unlike in the product: this causes more suspicions."""

DIAL_MS = 30
"""Pause before a node whose connection broke dials again, at most; then up to ten times as much."""


class SuspectingMetastore(SimMetastore):
    """A metastore in which a node may end another node's registration. That node's session continues."""

    def __init__(self, simulation: ClusterSimulation) -> None:
        super().__init__(simulation)
        self._registered_ms: dict[int, int] = {}
        self._ended: set[int] = set()
        """Sessions whose registration was ended by suspicion."""

    def end_registration(self, asker: str, name: str, session_id: int) -> None:
        """A request that may arrive late, twice or never."""
        simulation = self.simulation
        if simulation.network.open(asker, "metastore") and not self._lost():
            for _ in range(1 + (simulation.rng.random() < simulation.plan.store_held)):
                simulation.after(self._delay_ms(), self._arrive_end, asker, name, session_id, self.life)

    def _arrive_end(self, asker: str, name: str, session_id: int, life: int) -> None:
        known = self.registrations.get(name)
        if self.down or life != self.life or known is None or known.session_id != session_id:
            self.simulation.counts["suspicion_late"] += 1
            return
        self.simulation.counts["suspicion_ended"] += 1
        self.simulation.log_event(asker, f"ends the registration of {name}")
        age_ms = self.simulation.now_ms - self._registered_ms[session_id]
        if age_ms < HOLD_TIMES.min_ms:
            raise Violation(
                "I-SUSPECT-RATE", f"{asker} ended session {session_id} of {name}, which was {age_ms} ms old"
            )
        self._ended.add(session_id)
        self._end(name)

    def lives_unregistered(self, session_id: int) -> bool:
        """True if the registration of a session was ended, and the session itself has not expired."""
        return session_id in self._ended and self.simulation.now_ms - self._heard_ms[session_id] <= SESSION_MS

    def _arrive_registration(self, process: Process, answer: Callable[[int], None]) -> None:
        super()._arrive_registration(process, answer)
        name, number = process.name.split("#")
        made = self.registrations.get(name)
        if made is not None and made.session_id not in self._registered_ms:
            self._registered_ms[made.session_id] = self.simulation.now_ms
            self.registrations[name] = replace(made, owner=int(number))
        self._hint_processes()

    def _end(self, name: str) -> None:
        super()._end(name)
        self._hint_processes()

    def _hint_processes(self) -> None:
        for node in self.simulation.nodes.values():
            for process in node.processes:
                if not self._lost() and self._reaches(node.name):
                    self.simulation.after(self._delay_ms(), self._read_by, process)

    def _read_by(self, process: Process) -> None:
        if isinstance(process, SuspectingProcess) and not self.down and process.alive and not process.paused:
            process.learn()


class UnregisteredSession(Session):
    """A session that registers again, as another one, when its registration was ended though it lives."""

    def _heartbeat(self) -> None:
        process, metastore = self.process, self.simulation.metastore
        assert isinstance(metastore, SuspectingMetastore)
        known = metastore.registrations.get(process.node.name)
        if (
            process.alive
            and not process.paused
            and not process.stopping
            and self.session_id is not None
            and known is None
            and metastore.lives_unregistered(self.session_id)
        ):
            self.simulation.after(PING_MS, self._heartbeat)
            metastore.register(process, self._registered_as_another)
        else:
            super()._heartbeat()

    def _registered_as_another(self, session_id: int) -> None:
        process = self.process
        if process.paused:
            self.simulation.after(PING_MS, self._registered_as_another, session_id)
        elif process.alive and (self.session_id is None or session_id > self.session_id):
            self.simulation.counts["suspected_falsely"] += 1
            self.session_id = session_id
            process.post_all(ev.SessionStarted(session_id))
            self._renewed()

    def _polled(self, look: Look) -> None:
        super()._polled(look)
        process = self.process
        if isinstance(process, SuspectingProcess) and process.alive and not process.paused:
            process.learn()


class SuspectingProcess(Process):
    """A process that dials the nodes that it lost."""

    def __init__(self, simulation: ClusterSimulation, node: Node, number: int) -> None:
        super().__init__(simulation, node, number)
        self.session = UnregisteredSession(self)
        self.suspicions = Suspicions(node.name, HOLD_TIMES)
        self._dialling: set[str] = set()
        self._reached: dict[str, int] = {}
        """Node -> the newest of its sessions with which a connection was established."""
        self.refusals: dict[str, int] = {}
        """Node -> its session at the last dial that was refused."""

    def learn(self) -> None:
        """Read the registrations."""
        registrations = self.simulation.metastore.registrations
        for name in self.links & registrations.keys():
            self._reached[name] = registrations[name].session_id
        self.suspicions.learn(dict(registrations), self.simulation.now_ms)

    def link_up(self, peer: str) -> None:
        """See Process."""
        super().link_up(peer)
        found = self.simulation.metastore.registrations.get(peer)
        if found is not None:
            self._reached[peer] = found.session_id
        self.suspicions.link_changed(peer, True)

    def link_down(self, peer: str) -> None:
        """See Process."""
        super().link_down(peer)
        self.suspicions.link_changed(peer, False)
        self.dial(peer)

    def dial(self, peer: str) -> None:
        """Dial a node that is not connected, again and again."""
        if peer not in self._dialling:
            self._dialling.add(peer)
            self.simulation.after(self._chance().randint(1, DIAL_MS), self._dialled, peer)

    def _chance(self) -> random.Random:
        assert isinstance(self.simulation, SuspicionSimulation)
        return self.simulation.chance

    def _dialled(self, peer: str) -> None:
        self._dialling.discard(peer)
        if not self.alive or peer in self.links:
            return
        simulation = self.simulation
        assert isinstance(simulation, SuspicionSimulation)
        self._dialling.add(peer)
        simulation.after(simulation.chance.randint(DIAL_MS, 10 * DIAL_MS), self._dialled, peer)
        if not self.paused and simulation.refuses(self.node.name, peer):
            found = simulation.metastore.registrations.get(peer)
            self.refusals[peer] = 0 if found is None else found.session_id
            self.refused(peer)

    def refused(self, peer: str) -> None:
        """A dial was refused: end the registration of the suspected node."""
        simulation, name = self.simulation, self.node.name
        assert isinstance(simulation.metastore, SuspectingMetastore)
        if self.session.session_id is None or not self.suspicions.refused(peer, simulation.now_ms):
            return
        simulation.counts["suspected"] += 1
        for suspect in self.suspicions.suspects():
            self._check(suspect.node, suspect.session_id)
            simulation.metastore.end_registration(name, suspect.node, suspect.session_id)
            self.suspicions.ended(suspect, here=True)

    def _check(self, peer: str, session_id: int) -> None:
        known = self.simulation.metastore.registrations
        if peer not in known or known[peer].session_id != session_id:
            return  # an old read: the request comes too late
        what = f"{self.node.name} suspects session {session_id} of {peer}"
        if self.refusals.get(peer) not in (0, session_id):
            raise Violation("I-SUSPECT-PROOF", f"{what}, and no dial was refused in that session")
        if self._reached.get(peer, 0) < session_id:
            raise Violation("I-SUSPECT-REACHED", f"{what}, with which it never had a connection")
        third = known.keys() - {self.node.name, peer}
        seen = self.suspicions._sessions.keys() - {self.node.name, peer}
        if third & seen and not seen & self.links:
            raise Violation("I-SUSPECT-ALONE", f"{what}, and is connected with none of {', '.join(sorted(third))}")


class SuspicionSimulation(ClusterSimulation):
    """A cluster that suspects; in half of the seeds with false suspicions, in some of them in storms."""

    option: ClassVar[str] = " --suspicions"

    def __init__(self, seed: int, *, reject_gap_ms: int | None = None, **options: Any) -> None:
        self.chance = random.Random(f"suspicions of {seed}")
        self._rejects: dict[tuple[str, str], int] = {}
        drawn_ms = self.chance.choice((0, 0, 0, 3_000, 1_000, 250))
        self.reject_gap_ms = drawn_ms if reject_gap_ms is None else reject_gap_ms
        """Mean time between two faults that make living nodes refuse dials; 0: there are none."""
        super().__init__(seed, **{"shell": SuspectingProcess, "metastore_class": SuspectingMetastore} | options)

    def start(self) -> None:
        """See ClusterSimulation."""
        super().start()
        if self.reject_gap_ms:
            self._next()

    def _next(self) -> None:
        self.after(1 + int(self.chance.expovariate(1 / self.reject_gap_ms)), self._strike)

    def _strike(self) -> None:
        """One node, or all nodes, start refusing the dials of one other node, or of all."""
        if self.faults.over:
            return
        self._next()
        names = sorted(self.nodes)
        froms = names if self.chance.random() < 0.3 else [self.chance.choice(names)]
        tos = names if self.chance.random() < 0.3 else [self.chance.choice(names)]
        for_ms = self.chance.randint(50, 2_500)
        self.counts["rejecting"] += 1
        self.log_event("faults", f"{tos} reject {froms} for {for_ms} ms")
        for dialler in froms:
            for to in tos:
                if dialler != to:
                    self.reject(dialler, to, for_ms)

    def reject(self, dialler: str, to: str, for_ms: int) -> None:
        """`to` refuses the dials of `dialler`, and nothing passes between the two, for so long."""
        self._rejects[dialler, to] = max(self._rejects.get((dialler, to), 0), self.now_ms + for_ms)
        self.network.cut(dialler, to, for_ms)
        self.network.cut(to, dialler, for_ms)
        for process in list(self.nodes[dialler].processes):
            if to in process.links:
                process.link_down(to)

    def refuses(self, dialler: str, to: str) -> bool:
        """True if a dial would be refused now: no process is there, or the address rejects."""
        if not self.faults.over and self._rejects.get((dialler, to), 0) > self.now_ms:
            return True
        return (
            self.nodes[to].disk.holder is None and not self.nodes[to].processes and self.network.both_open(dialler, to)
        )

    def live(self) -> None:
        """See ClusterSimulation."""
        self._rejects.clear()
        super().live()

    def quiet(self) -> None:
        """See ClusterSimulation; and no node is suspected any more."""
        before = self.counts["suspected"]
        super().quiet()
        if self.counts["suspected"] != before:
            raise Violation("I-SUSPECT-QUIET", "a node is suspected though nothing fails")
