"""The metastore's record of one partition: the only truth on (epoch, leader, ISR, configuration).

Every change is a conditional write on `version`; a member of the ISR or ELR is a (node, gen), where gen
is the identity of one honest log; a leader or candidate is a (node, inc), where inc is one metastore
session of one process (docs/protocol.md R-GEN, R-INC).
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
    """A replica as ISR and ELR name it."""

    node: str
    gen: int


class Incarnation(NamedTuple):
    """A process as leader and candidate name it: its node and its metastore session."""

    node: str
    inc: int


@dataclass(frozen=True, slots=True)
class PartitionRecord:
    """One partition's record; `version` is the metastore's, the base of the next conditional write.

    `bucket_type` and `index` say which share of whose keys it is: partition `index` of
    `partition_count`. `min_isr` is as set; the effective one is clamped to 1 .. RF. `lineage`
    counts unclean elections. While a placement changes, `adding` and `removing` name the replicas that are to join and
    those that go once all of the former are in sync; both are among `replicas` and never overlap (R-RF).
    `before` names the replicas as they were when the change began, where that is not `replicas` without `adding`: a
    change that was sent elsewhere or taken back has newcomers in `removing`.
    `overtaken` is 0 but where the metastore went back (H32): the epoch that a replica has been in, which the record
    knows nothing of. Then nobody is elected until an operator's act makes the record anew.
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
    adding: tuple[str, ...] = ()
    removing: tuple[str, ...] = ()
    before: tuple[str, ...] = ()
    overtaken: int = 0
    reason: str = ""
    version: int = field(default=-1, compare=False)

    @property
    def owner(self) -> Incarnation | None:
        """Who leads or stands in this epoch, as far as the record says: nobody else ever does (I-EPOCH-ONE)."""
        return self.leader or self.candidate

    @property
    def effective_min_isr(self) -> int:
        """min_isr clamped to 1 .. replication factor."""
        return max(1, min(self.min_isr, self.factor))

    @property
    def factor(self) -> int:
        """The replication factor: of a changing placement the smaller of before and after, so that nobody needs the
        acknowledgement of a replica that is still to come, or is about to go. A newcomer that is to go again counts on
        neither side."""
        before = len(self.before) or len(self.replicas) - len(self.adding)
        return min(before, len(self.replicas) - len(self.removing))

    @property
    def replicas_before(self) -> tuple[str, ...]:
        """The replicas as they were when the change under way began; without one, as they are."""
        return self.before or tuple(node for node in self.replicas if node not in self.adding)

    @property
    def staying(self) -> tuple[str, ...]:
        """The replicas as they are to be once a change under way is done."""
        return tuple(node for node in self.replicas if node not in self.removing)


@dataclass(frozen=True, slots=True)
class Registration:
    """A live process in the metastore: its node, session, state and how to reach it.

    `gens` are those of the copies that its data directory holds; `spare_gen` is the gen of every copy that
    is still to be made there (an empty log is an honest one), 0 when unknown. `cluster_address` is the HOST:PORT of
    the listener for other nodes, `id` and `rack` what placement goes by.
    """

    node: str
    inc: int
    active: bool
    http_url: str = ""
    admin_url: str = ""
    gens: dict[int, int] = field(default_factory=dict)
    spare_gen: int = 0
    cluster_address: str = ""
    id: int = 0
    rack: str = ""

    def gen_of(self, partition: int) -> int:
        """The gen of the node's copy of `partition`, be it there or still to be made."""
        return self.gens.get(partition, self.spare_gen)
