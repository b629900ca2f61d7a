"""The candidate: nominated by the record, it appends its epoch's BARRIER and announces itself once that is durable.

A nominated replica that has an objection sends nothing; the controller's timer moves on to the next candidate, as in
Fluvio.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Final

from isthmus.repl.isr.effects import ReplicaRole
from isthmus.repl.isr.membership import guard
from isthmus.repl.isr.messages import FollowRequest
from isthmus.repl.isr.replica_state import ReplicaState

PROMOTED_REPEAT_MS: Final = 500
"""Interval between two announcements. Four fit into the shortest wait-for-response timer (2 s), so three may be lost;
the controller ignores repeats."""


@dataclass(slots=True)
class Candidate:
    """`barrier` is the offset of this epoch's last barrier, usually also its first entry; `announce_at_ms` is None
    until it is durable.

    `early_requests`: FollowRequests of nodes that know already that this node leads, answered once it does. Otherwise
    each hand-over that a follower learns of first would wait for that follower's next request.
    """

    role: ClassVar[ReplicaRole] = ReplicaRole.CANDIDATE

    epoch: int
    barrier: int
    announce_at_ms: int | None = None
    early_requests: dict[str, FollowRequest] = field(default_factory=dict)

    def on_follow_request(self, node: str, request: FollowRequest, state: ReplicaState) -> None:
        """Keep the newest FollowRequest of each replica."""
        if node in state.known_record.replicas:
            self.early_requests[node] = request

    def announces_at(self, durable: int) -> bool:
        """True when the log, durable up to `durable`, makes the first announcement due."""
        return self.announce_at_ms is None and durable > self.barrier

    def link_down(self, node: str) -> None:
        """Drop the request of `node`, which will send another."""
        self.early_requests.pop(node, None)


def objection(state: ReplicaState) -> str | None:
    """Return why the replica must not accept the nomination in its record, or None."""
    record, me, progress = state.known_record, state.member, state.progress
    if me not in guard(record):
        return f"other-log: the nomination means another log of {me.node}; this one has gen {me.log_id} (R-GEN)"
    if state.log_regressed:
        return "regressed: this log holds less than it acknowledged; it waits for another gen"
    if state.transfer is not None:
        return f"transfer: rows are here up to {state.transfer.position} only; a leader must send the others"
    if state.disk_full:
        return "out-of-storage: not even a barrier can be written: the node's other replicas say what is short"
    if progress.applied > progress.leo:
        return f"log-lost: the log ends at {progress.leo}, below what is applied ({progress.applied})"
    return None
