"""The role states of a replica, one type each, and the transitions between them.

Follower, Candidate, Leader and ResigningLeader are in the modules of their rules; the three without rules are here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Final

from isthmus.repl.isr.candidate import Candidate
from isthmus.repl.isr.effects import ReplicaRole
from isthmus.repl.isr.follower import Follower
from isthmus.repl.isr.leader import Leader, ResigningLeader


@dataclass(slots=True)
class Idle:
    """No leadership, candidacy or leader. `objection`: why the replica does not act on the known record, if so."""

    role: ClassVar[ReplicaRole] = ReplicaRole.IDLE

    objection: str = ""


@dataclass(slots=True)
class Quarantined:
    """This copy contradicts what its leader reports as committed, and is kept unchanged.

    It only reads records, until one no longer names this node, or the process restarts."""

    role: ClassVar[ReplicaRole] = ReplicaRole.FAILED

    reason: str


@dataclass(slots=True)
class Failed:
    """The disk failed, and the process is expected to exit. Final."""

    role: ClassVar[ReplicaRole] = ReplicaRole.FAILED

    reason: str


RoleState = Idle | Follower | Candidate | Leader | ResigningLeader | Quarantined | Failed

TRANSITIONS: Final[Mapping[tuple[type[RoleState], type[RoleState]], str]] = {
    (Idle, Follower): "the record names another node's process as leader, in an epoch that is durable here",
    (Idle, Candidate): "the record nominates this process (node, session id) and this log (log id), in a durable epoch "
    "that is new to the log and to earlier processes: the epoch's BARRIER is appended",
    (Candidate, Leader): "the record is Online with this process in that epoch: a controller received Promoted, which "
    "was sent after the barrier was durable",
    (Follower, Idle): "the record names another leader, none, or another epoch; the session is over; the leader "
    "contradicts this copy; the disk failed",
    (Candidate, Idle): "the nomination was withdrawn or overtaken; the session is over; the process is leaving; the "
    "disk failed",
    (Leader, ResigningLeader): "the process is leaving, another member is to lead, or this disk is too slow: appends "
    "are refused",
    (ResigningLeader, Leader): "the hand-over missed its deadline, and the process is not leaving",
    (Leader, Idle): "the record no longer names this process in this epoch; the session is over; the disk failed: the "
    "outcome of uncommitted entries is unknown",
    (ResigningLeader, Idle): "as a leader",
    (Idle, Quarantined): "the leader contradicted committed entries of this copy, which is kept unchanged",
    (Quarantined, Idle): "the record no longer names this node: the copy is deleted like any other removed one",
    (Idle, Failed): "log, store or identity could not be written: all is refused until the process restarts "
    "(docs/protocol.md H20, H34)",
    (Quarantined, Failed): "as an idle replica",
}
"""(From, to) -> when. `Replica` makes no others: it checks each one."""
