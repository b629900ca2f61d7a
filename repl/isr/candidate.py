"""The candidate: nominated by the record, it appends its epoch's BARRIER and announces itself once that is durable.

Here: the state, and the reasons for which a nominated replica does not stand. It sends nothing then; the
controller's timer moves on to the next candidate, as in Fluvio. The story goes on in `leader.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Final

from isthmus.repl.isr.effects import ReplicaRole
from isthmus.repl.isr.membership import guard
from isthmus.repl.isr.messages import FollowRequest
from isthmus.repl.isr.replica_state import ReplicaState

PROMOTED_REPEAT_MS: Final = 500
"""Pause between two announcements: four within the shortest wait-for-response timer (2 s), so that three may
be lost; the controller takes repeats for one."""


@dataclass(slots=True)
class Candidate:
    """`barrier` is the offset of this epoch's last barrier, mostly also its first entry; `announce_at_ms` is None until
    that is durable. `early`: the FollowRequests of nodes that know already that it leads. Without them each hand-over
    that a follower hears of first would wait for its next FollowRequest."""

    role: ClassVar[ReplicaRole] = ReplicaRole.CANDIDATE

    epoch: int
    barrier: int
    announce_at_ms: int | None = None
    early: dict[str, FollowRequest] = field(default_factory=dict)

    def greet(self, node: str, hello: FollowRequest, standing: ReplicaState, _now_ms: int) -> None:
        """Keep what the leader, which this will be, is asked: the newest of each replica."""
        if node in standing.known.replicas:
            self.early[node] = hello

    def link_down(self, node: str) -> None:
        """It will ask again."""
        self.early.pop(node, None)


def objection(standing: ReplicaState) -> str | None:
    """Why the replica must not stand for the nomination in its record, or None."""
    record, me, progress = standing.known, standing.member, standing.progress
    if me not in guard(record):
        return f"other-log: the nomination means another log of {me.node}; this one has gen {me.gen} (R-GEN)"
    if standing.doubted:
        return "regressed: this log holds less than it acknowledged; it waits for another gen"
    if standing.far is not None:
        return f"far: rows are here up to {standing.far.position} only; a leader must send the others"
    if progress.applied > progress.leo:
        return f"log-lost: the log ends at {progress.leo}, below what is applied ({progress.applied})"
    return None
