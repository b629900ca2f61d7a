"""The role states of a replica, one type each.

Follower, Candidate, Leader and ResigningLeader stand in the modules of their rules; the three without rules are here.
`replica.py` lists the transitions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

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
