"""The simulated network: messages between nodes, and notifications of connections to the shells.

A message may be lost, repeated, overtaken, or held and delivered many seconds later, to another process even. A cut is
one-way; it may drop messages, or hold them until it is healed. Between two ends without a cut, and outside of
disturbances, messages arrive in order after DELAY_MS. The ends are nodes, the metastore and the controllers.
Notifications of connections are hints: they may be late, and in some simulations are missing at times.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from isthmus.repl.isr import events as ev
from isthmus.repl.isr.messages import Message
from isthmus.repl.transport.codec import FROM_FOLLOWER, FROM_LEADER

if TYPE_CHECKING:
    from tests.simulation.cluster.process import Process
    from tests.simulation.cluster.simulator import ClusterSimulation

DELAY_MS = 2
"""One-way delay without disturbances."""

HELD_MIN_MS, HELD_MAX_MS = 10_000, 14_000
"""Delay of a held message: longer than sessions, elections and restarts."""

LINK_CHECK_MS = 120
"""Interval of the check of connections after a change: the time-out of a silent one."""

FOR_GOOD_MS = 10**9
"""A cut that is not healed by itself."""


class Network:
    """All ways between all ends."""

    def __init__(self, simulation: ClusterSimulation) -> None:
        self.simulation = simulation
        self._cuts: dict[tuple[str, str], int] = {}
        self._slow: dict[tuple[str, str], int] = {}
        self._links_checked = True
        self.deaf: set[str] = set()
        """Nodes that nobody can dial, but that dial the others; see `deafen`."""
        self.calm = False
        """No message is lost, repeated, overtaken or held any more."""
        self.held_until_ms = 0
        """Arrival time of the last held message."""

    # -- cuts -----------------------------------------------------------------------------------

    def open(self, sender: str, to: str) -> bool:
        """True when messages pass from one end to the other."""
        return (sender, to) not in self._cuts

    def both_open(self, one: str, other: str) -> bool:
        """True when messages pass both ways."""
        return (one, other) not in self._cuts and (other, one) not in self._cuts

    def cut(self, sender: str, to: str, for_ms: int) -> None:
        """Cut the route from `sender` to `to` for this time."""
        until_ms = self.simulation.now_ms + for_ms
        self._cuts[sender, to] = max(until_ms, self._cuts.get((sender, to), 0))
        self.links_changed()
        if for_ms < FOR_GOOD_MS:
            self.simulation.after(for_ms, self._join, sender, to)

    def join(self, sender: str, to: str) -> None:
        """Messages pass from `sender` to `to` again."""
        self._cuts.pop((sender, to), None)
        self.links_changed()

    def join_all(self, among: frozenset[str] | None = None) -> None:
        """End all cuts and delays (between the ends `among`), and all other faults of messages."""
        self.calm = True
        for ways in (self._cuts, self._slow):
            for way in list(ways):
                if among is None or (way[0] in among and way[1] in among):
                    del ways[way]
        self.links_changed()

    def deafen(self, name: str) -> None:
        """Close a node's listener: connections that others dialled break and are not made again; its own stand. No
        message to it as a leader arrives any more, and none that it sends as one."""
        self.deaf.add(name)
        for peer in self.simulation.nodes:
            if peer != name:
                for process in self.simulation.nodes[name].processes:
                    process.post_all(ev.LinkDown(peer))
        self.links_changed()

    def hear(self, name: str) -> None:
        """The node can be dialled again."""
        self.deaf.discard(name)
        self.links_changed()

    def _undialled(self, name: str, to: str, message: Message) -> bool:
        kind = type(message)
        return (to in self.deaf and kind in FROM_FOLLOWER) or (name in self.deaf and kind in FROM_LEADER)

    def slow_down(self, sender: str, to: str, delay_ms: int, for_ms: int) -> None:
        """Messages from `sender` to `to` take so much longer, for so long."""
        self._slow[sender, to] = delay_ms
        self.simulation.after(for_ms, self._slow.pop, (sender, to), None)

    def _join(self, sender: str, to: str) -> None:
        if self._cuts.get((sender, to), FOR_GOOD_MS) <= self.simulation.now_ms:
            self.join(sender, to)

    # -- messages -------------------------------------------------------------------------------

    def send(self, sender: Process, to: str, partition: int, message: Message) -> None:
        """Send a message; the sender does not learn its fate."""
        simulation, name = self.simulation, sender.node.name
        assert to != name, "a message to oneself"
        delay_ms = DELAY_MS + self._slow.get((name, to), 0)
        if (name, to) in self._cuts:
            if simulation.rng.random() < simulation.plan.held:
                self._hold(name, to, partition, message)
            return
        if self.calm:
            simulation.after(delay_ms, self._arrive, name, to, partition, message)
            return
        plan, dice = simulation.plan, simulation.rng.random()
        if dice < plan.lost:
            simulation.counts["message_lost"] += 1
            return
        dice -= plan.lost
        if dice < plan.repeated:
            simulation.counts["message_repeated"] += 1
            simulation.after(delay_ms + simulation.rng.randint(1, 300), self._arrive, name, to, partition, message)
        elif dice < plan.repeated + plan.overtaken:
            delay_ms += simulation.rng.randint(1, 60)
        elif dice < plan.repeated + plan.overtaken + plan.held:
            self._hold(name, to, partition, message)
            if simulation.rng.random() < 0.5:
                return
        simulation.after(delay_ms, self._arrive, name, to, partition, message)

    def _hold(self, name: str, to: str, partition: int, message: Message) -> None:
        simulation = self.simulation
        simulation.counts["message_held"] += 1
        delay_ms = simulation.rng.randint(HELD_MIN_MS, HELD_MAX_MS)
        self.held_until_ms = max(self.held_until_ms, simulation.now_ms + delay_ms)
        simulation.after(delay_ms, self._arrive, name, to, partition, message)

    def _arrive(self, name: str, to: str, partition: int, message: Message) -> None:
        if (name, to) in self._cuts or (self.deaf and self._undialled(name, to, message)):
            return
        for process in self.simulation.nodes[to].processes:
            process.receive(partition, ev.Received(name, message))

    # -- connections ----------------------------------------------------------------------------

    def links_changed(self) -> None:
        """A node, a process or a route appeared or disappeared: notify the shells after a delay."""
        if self._links_checked:
            self._links_checked = False
            self.simulation.after(LINK_CHECK_MS, self._check_links)

    def flap(self, one: str, other: str) -> None:
        """The connections between two nodes break and are made again at once."""
        simulation = self.simulation
        for name, peer in ((one, other), (other, one)):
            for process in simulation.nodes[name].processes:
                process.link_down(peer)
        self.links_changed()

    def _check_links(self) -> None:
        self._links_checked = True
        nodes = self.simulation.nodes
        for name, node in nodes.items():
            for process in list(node.processes):
                for peer in nodes:
                    if peer != name:
                        stands = self._stands(name, peer)
                        if stands is not (peer in process.links):
                            (process.link_up if stands else process.link_down)(peer)

    def _stands(self, name: str, peer: str) -> bool:
        process = self.simulation.nodes[peer].current
        return process is not None and not process.paused and peer not in self.deaf and self.both_open(name, peer)
