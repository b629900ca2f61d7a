"""The seven states of a replica, one type each.

Follower, Candidate, Leader and Resigning live beside their rules; the three that have no rules are here. Who moves
between them, and when, stands in `replica.py`.
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
    """Neither leads nor stands nor has a leader to follow. `objection` says why it does not follow the known record, if
    it does not."""

    role: ClassVar[ReplicaRole] = ReplicaRole.IDLE

    objection: str = ""


@dataclass(slots=True)
class Quarantined:
    """This copy contradicts what its leader says is committed, and is left untouched. It keeps up with the record, and
    does nothing else until that no longer names this node, or the process begins anew."""

    role: ClassVar[ReplicaRole] = ReplicaRole.FAILED

    reason: str


@dataclass(slots=True)
class Failed:
    """The disk cannot be believed, and the process is expected to leave. Final."""

    role: ClassVar[ReplicaRole] = ReplicaRole.FAILED

    reason: str


State = Idle | Follower | Candidate | Leader | ResigningLeader | Quarantined | Failed
