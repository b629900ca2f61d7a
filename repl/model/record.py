"""The metastore's record of one partition: the only source of its epoch, leader, ISR and configuration.

Every change is a conditional write on `version`. A member of the ISR or ELR is a (node, log id): the log id identifies
one intact log. A leader or candidate is a (node, session id): the session id identifies one metastore session of one
process (docs/protocol.md R-GEN, R-INC, where the two are called gen and inc).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple


class PartitionStatus(StrEnum):
    """Fluvio's statuses of a replica set."""

    ELECTION = "election"
    CANDIDATE_FOUND = "candidate-found"
    ONLINE = "online"
    OFFLINE = "offline"


class Member(NamedTuple):
    """A replica as ISR and ELR name it: a node and the id of its log."""

    node: str
    log_id: int


class Incarnation(NamedTuple):
    """A process as leader and candidate name it: its node and the id of its metastore session."""

    node: str
    session_id: int


@dataclass(frozen=True, slots=True)
class PartitionRecord:
    """One partition's record; `version` is the metastore's, the base of the next conditional write.

    The partition is number `index` of the `partition_count` partitions of `bucket_type`. `min_isr` is as configured;
    the effective value is clamped to 1 .. replication factor. `lineage` counts an operator's acts by which the
    partition went on without a copy: unclean elections, re-seeded records. `incarnation` is the one of the actor that
    its next writes name; it is new after each such act and each renewal, 0 before any (R-ACTOR).

    During a reassignment, `adding` names the replicas to add, and `removing` those to remove once the added ones are in
    sync; both are among `replicas` and never overlap (R-RF). `before` names the replicas at the start of the
    reassignment, where these are not `replicas` without `adding`: a reassignment that was redirected or cancelled has
    added replicas in `removing`.

    `overtaken` is 0 unless the metastore went back (H32). Then it is an epoch that a replica was in and the record does
    not know, and no leader is elected until an operator rewrites the record.
    """

    partition: int
    bucket_type: str
    index: int
    partition_count: int
    replicas: tuple[str, ...]
    epoch: int = 0
    status: PartitionStatus = PartitionStatus.ELECTION
    leader: Incarnation | None = None
    candidate: Incarnation | None = None
    isr: frozenset[Member] = frozenset()
    elr: frozenset[Member] = frozenset()
    min_isr: int = 1
    tried: frozenset[str] = frozenset()
    preferred: str | None = None
    lineage: int = 0
    incarnation: int = 0
    adding: tuple[str, ...] = ()
    removing: tuple[str, ...] = ()
    before: tuple[str, ...] = ()
    overtaken: int = 0
    reason: str = ""
    version: int = field(default=-1, compare=False)

    @property
    def owner(self) -> Incarnation | None:
        """The leader or candidate of this epoch; no other process ever is (I-EPOCH-ONE)."""
        return self.leader or self.candidate

    @property
    def effective_min_isr(self) -> int:
        """min_isr clamped to 1 .. replication factor."""
        return max(1, min(self.min_isr, self.factor))

    @property
    def factor(self) -> int:
        """The replication factor; during a reassignment the smaller of before and after.

        No write then depends on a replica that is still to be added or about to be removed. An added replica that is
        removed again counts on neither side."""
        before = len(self.before) or len(self.replicas) - len(self.adding)
        return min(before, len(self.replicas) - len(self.removing))

    @property
    def replicas_before(self) -> tuple[str, ...]:
        """The replicas before the current reassignment; without one, the replicas."""
        return self.before or tuple(node for node in self.replicas if node not in self.adding)

    @property
    def staying(self) -> tuple[str, ...]:
        """The replicas after the current reassignment; without one, the replicas."""
        return tuple(node for node in self.replicas if node not in self.removing)


@dataclass(frozen=True, slots=True)
class Registration:
    """A live process in the metastore: its node, session, state and how to reach it.

    `log_ids`: partition -> log id, of the copies in its data directory. `spare_log_id`: the id of each copy that is
    still to be created there (an empty log is intact), 0 when unknown. `cluster_address`: HOST:PORT of the listener for
    other nodes. Placement uses `id` and `rack`. `owner`: the process's connection with the metastore, 0 when unknown;
    it stays where a process loses its registration and registers again.
    """

    node: str
    session_id: int
    active: bool
    http_url: str = ""
    admin_url: str = ""
    log_ids: dict[int, int] = field(default_factory=dict)
    spare_log_id: int = 0
    cluster_address: str = ""
    id: int = 0
    rack: str = ""
    owner: int = field(default=0, compare=False)

    def log_id_of(self, partition: int) -> int:
        """The log id of the node's copy of `partition`, whether it exists or is still to be created."""
        return self.log_ids.get(partition, self.spare_log_id)
