"""Suspicion: which nodes are dead because their connection broke and nobody listens at their address (R-SUSPECT).

A process that ends closes its sockets. Its peers notice that at once, and their next dial is refused by its machine: a
proof that no process listens there. A node that observes this ends the registration of that very session in the
metastore, instead of waiting until the session times out; everything else follows from the missing registration, as
after any other end of a session. A dial that times out proves nothing: the node may be frozen or cut off.

A suspicion may still be false (a firewall that rejects, a wrong address). Then a living node loses its registration,
registers again under another session, and its leaderships move: no rule of safety depends on who is suspected. The
rules below bound how often that happens. Pure; `repl.controller.controller` feeds it and acts on it.

    unknown    a session that this node never had a connection with is never suspected
    reached    -> suspected   the connection broke, the dial is refused, and all of these hold:
                              the session has been known here for longer than the node's hold time;
                              the node is active, and this node has a connection with a third node, if there is one
    suspected  -> reached     a connection is open again
    suspected  -> ended       its registration was ended
    ended      -> unknown     the node registers again; if it is the same process, which was suspected falsely, its hold
                              time doubles
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from isthmus.repl.model.record import Registration
from isthmus.repl.telemetry import Family, Sample

HOLD_MIN_MS: Final = 10_000
"""How long a session must be known before it can be suspected. A node that is suspected falsely registers again at
once, so this is also the shortest time between two false suspicions of a node by the whole cluster. Above the default
session timeout (6 s), so that a process that crashes as it starts is left to its sessions."""

HOLD_MAX_MS: Final = 600_000
"""Longest hold time. It doubles with each suspicion of the node by this node that proves false."""

HOLD_HALF_MS: Final = 600_000
"""The hold time halves for each such period without a false suspicion of the node by this node."""

HELP: Final[Mapping[str, Family]] = {
    "isthmus_nodes_suspected_total": Family(
        "Registrations of other nodes that this node ended, because the connection broke and the dial was refused.",
        "registrations",
        "partitions",
    ),
    "isthmus_nodes_suspected_falsely_total": Family(
        "Nodes that this node took for dead, and whose same process has registered again.", "nodes", "partitions"
    ),
    "isthmus_suspicions_held_total": Family(
        "Refused dials to registered nodes that led to no suspicion, by the rule that forbade it: unreached (no "
        "connection since the node registered), young (its session is younger than its hold time), leaving (the node "
        "is stopping), isolated (this node has no connection with any other node).",
        "dials",
        "partitions",
        ("rule",),
    ),
}

RULES: Final = ("unreached", "young", "leaving", "isolated")


class HoldTimes(NamedTuple):
    """The times above; the simulator, whose sessions are shorter, has its own."""

    min_ms: int = HOLD_MIN_MS
    max_ms: int = HOLD_MAX_MS
    half_ms: int = HOLD_HALF_MS


HOLD_TIMES: Final = HoldTimes()


class Suspect(NamedTuple):
    """A session that is believed to be over."""

    node: str
    session_id: int


@dataclass(slots=True)
class _Session:
    """A registered node. `reached`: this node has had a connection with it in this session."""

    session_id: int
    since_ms: int
    owner: int
    active: bool
    reached: bool


class Suspicions:
    """One node's beliefs about the others. `learn` gets every read of the registrations."""

    def __init__(self, node: str, hold_times: HoldTimes = HOLD_TIMES) -> None:
        self._node = node
        self._hold_times = hold_times
        self._sessions: dict[str, _Session] = {}
        self._linked: set[str] = set()
        self._suspects: dict[str, int] = {}
        """Node -> the session that is suspected."""
        self._holds: dict[str, tuple[int, int]] = {}
        """Node -> (when it was suspected falsely for the last time, its hold time then), where that is above the
        least."""
        self.over: dict[str, int] = {}
        """Node -> the newest of its sessions that was suspected here and is over; one for each node ever suspected."""
        self._owners: dict[str, int] = {}
        """Node -> the process whose session was suspected last, as `Registration.owner`; until it registers again."""
        self._ended = self._false = 0
        self._held = dict.fromkeys(RULES, 0)

    def learn(self, registrations: Mapping[str, Registration], now_ms: int) -> None:
        """Take over the registrations that were read at `now_ms` (monotonic)."""
        sessions: dict[str, _Session] = {}
        for node, found in registrations.items():
            known = self._sessions.get(node)
            if known is not None and known.session_id == found.session_id:
                known.active = found.active
                sessions[node] = known
            else:
                sessions[node] = _Session(found.session_id, now_ms, found.owner, found.active, node in self._linked)
        for node, session_id in list(self._suspects.items()):
            if node not in sessions or sessions[node].session_id != session_id:
                self._over(node)  # another node ended it
        for node in [node for node in self._owners if node in sessions]:
            if sessions[node].session_id != self.over[node] and sessions[node].owner == self._owners.pop(node) != 0:
                self._suspected_falsely(node, now_ms)
        self._sessions = sessions
        for node in [node for node in self._holds if self.hold_ms(node, now_ms) == self._hold_times.min_ms]:
            del self._holds[node]

    def link_changed(self, node: str, up: bool) -> None:
        """The connection that this node dialled to `node` is up, or ended."""
        if not up:
            self._linked.discard(node)
            return
        self._linked.add(node)
        self._suspects.pop(node, None)
        if node in self._sessions:
            self._sessions[node].reached = True

    def refused(self, node: str, now_ms: int) -> bool:
        """A dial to `node` was refused while no connection with it is open; True if it is suspected now."""
        session = self._sessions.get(node)
        if session is None or node == self._node:
            return False
        rule = self._forbidden(node, session, now_ms)
        if rule:
            self._held[rule] += 1
            return False
        self._suspects[node] = session.session_id
        return True

    def _forbidden(self, node: str, session: _Session, now_ms: int) -> str:
        """The rule that forbids to suspect `node`; "" when it may be suspected."""
        if not session.reached:
            return "unreached"
        if not session.active:
            return "leaving"
        if now_ms - session.since_ms < self.hold_ms(node, now_ms):
            return "young"
        third = self._sessions.keys() - {self._node, node}
        if third and not third & self._linked:
            return "isolated"
        return ""

    def hold_ms(self, node: str, now_ms: int) -> int:
        """How long a session of `node` must be known before it can be suspected."""
        least_ms, most_ms, half_ms = self._hold_times
        since_ms, hold_ms = self._holds.get(node, (now_ms, least_ms))
        halvings = min(most_ms.bit_length(), max(0, now_ms - since_ms) // half_ms)
        return max(least_ms, hold_ms >> halvings)

    def suspects(self) -> list[Suspect]:
        """The suspected sessions that were registered at the last `learn`."""
        return [Suspect(node, session_id) for node, session_id in sorted(self._suspects.items())]

    def ended(self, suspect: Suspect, *, here: bool) -> None:
        """The registration of `suspect` is over, ended by this node (`here`) or another one."""
        self._ended += here
        if suspect.node in self._suspects:
            self._over(suspect.node)

    def _over(self, node: str) -> None:
        self.over[node] = self._suspects.pop(node)
        self._owners[node] = self._sessions[node].owner

    def _suspected_falsely(self, node: str, now_ms: int) -> None:
        self._false += 1
        self._holds[node] = now_ms, min(self._hold_times.max_ms, 2 * self.hold_ms(node, now_ms))

    def samples(self) -> Iterator[Sample]:
        """Registrations ended, and refused dials that ended none."""
        yield "isthmus_nodes_suspected_total", {}, self._ended
        yield "isthmus_nodes_suspected_falsely_total", {}, self._false
        for rule, count in self._held.items():
            yield "isthmus_suspicions_held_total", {"rule": rule}, count
