"""The noun `partition`: its record, and what its replicas report. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final

import msgspec

from isthmus.node.nouns.description import Act, DescribedNoun, Parameter, TableColumn, means
from isthmus.node.nouns.requests import AuditedRequest, DryRun

_NUMBER_MAX: Final = (1 << 63) - 1


def _type_and_index(row: Mapping[str, Any]) -> str | None:
    found = row.get("bucket_type"), row.get("index")
    return None if None in found else f"{found[0]}/{found[1]}"


def _leader(row: Mapping[str, Any]) -> Any:
    """Nothing for a partition without a leader, null where its record was not read."""
    return row.get("leader") or ("" if row.get("status") else None)


class ReplicaRow(msgspec.Struct, frozen=True):
    """A replica, as its node reports it; null where the node does not answer."""

    node: Annotated[str, means("The node that holds it.", TableColumn())]
    role: Annotated[str | None, means("`leader`, `follower`, and others on the way.", TableColumn(leave=1))]
    epoch: Annotated[int | None, means("The newest epoch that it has seen.", TableColumn(leave=3))]
    gen: Annotated[int | None, means("Which log it is; another one after a loss.", TableColumn(leave=7))]
    leo: Annotated[int | None, means("Log end offset.", TableColumn())]
    durable: Annotated[int | None, means("Up to where its log is synced.", TableColumn(leave=6))]
    hw: Annotated[int | None, means("High watermark.", TableColumn(leave=4))]
    applied: Annotated[int | None, means("Up to where its store has the log.", TableColumn(leave=5))]
    lag: Annotated[int | None, means("Entries behind the leader.", TableColumn(leave=2))]
    in_sync: Annotated[bool, means("Whether it is in the ISR.", TableColumn())]
    reason: Annotated[str, means("Why it is as it is.", TableColumn(text=True))]


class PartitionRow(msgspec.Struct, frozen=True):
    """A partition; offsets are the leader's, null where that does not answer."""

    partition: Annotated[int, means("Its number in the cluster.", TableColumn())]
    bucket_type: Annotated[
        str, means("The bucket type of its keys.", TableColumn("type/index", leave=3, shown=_type_and_index))
    ]
    index: Annotated[int, means("Its index in the bucket type.")]
    leader: Annotated[str | None, means("Null: it has none.", TableColumn(shown=_leader))]
    replicas: Annotated[list[str], means("Nodes, the preferred leader first.", TableColumn(leave=2))]
    adding: Annotated[list[str], means("Replicas that a reassignment adds.")]
    removing: Annotated[list[str], means("Replicas that a reassignment removes.")]
    isr: Annotated[list[str], means("Replicas in sync.", TableColumn())]
    elr: Annotated[list[str], means("Replicas that may be elected though they are not in sync.")]
    min_isr: Annotated[int, means("In force; with fewer in sync it takes no writes.")]
    epoch: Annotated[int, means("Of its leader; each election raises it.")]
    leo: Annotated[int | None, means("Log end offset.", TableColumn(leave=4))]
    hw: Annotated[int | None, means("High watermark.", TableColumn(leave=5))]
    applied: Annotated[int | None, means("Up to where its store has the log.", TableColumn("apply", leave=6))]
    lag: Annotated[int | None, means("Entries that the last replica is behind.", TableColumn(leave=1))]
    status: Annotated[str, means("`online`, `election`, `candidate-found` or `offline`.", TableColumn(state=True))]
    reason: Annotated[str, means("Why it is as it is.", TableColumn(text=True, nothing=True))]
    replica_states: Annotated[list[ReplicaRow], means("Each replica, in the order of `replicas`.")]


class Partitions(msgspec.Struct, frozen=True):
    """All partitions, or those of one bucket type."""

    partitions: list[PartitionRow]


class ReplicaHolds(msgspec.Struct, frozen=True):
    """What a replica holds; null where its node does not answer."""

    node: Annotated[str, means("The node that holds it.", TableColumn())]
    eligible: Annotated[bool | None, means("Whether it could be elected without loss.", TableColumn())]
    epoch: Annotated[int | None, means("The newest epoch that it has seen.", TableColumn())]
    log_epoch: Annotated[int | None, means("The epoch of its last entry.", TableColumn())]
    leo: Annotated[int | None, means("Log end offset.", TableColumn())]
    hw: Annotated[int | None, means("High watermark.", TableColumn())]
    applied: Annotated[int | None, means("Up to where its store has the log.", TableColumn())]
    gen: Annotated[int | None, means("Which log it is.", TableColumn())]


class LeaderPlan(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What a forced election does, or would do."""

    outcome: Annotated[str, means("`ordered`, `left`, or `would be ordered`.")]
    partition: int
    node: Annotated[str, means("Whose replica leads then; empty if none answers.")]
    version: Annotated[int, means("The record's, for the request that carries the plan out.")]
    status: Annotated[str, means("The partition's, before.")]
    record_epoch: Annotated[int, means("The record's, before.")]
    reason: Annotated[str, means("Why the partition is as it is, or was left so.")]
    replicas: Annotated[list[ReplicaHolds], means("What each replica holds.")]
    notes: Annotated[list[str], means("What is lost, and what else to know.")]
    epoch: Annotated[int | None, means("The new leader's; only once it is ordered.")] = None
    lineage: Annotated[int | None, means("Unclean elections so far; only once it is ordered.")] = None


class PartitionsAssigned(msgspec.Struct, frozen=True):
    """What a placement by a replica map did."""

    outcome: Annotated[str, means("`created`, `exists` or `valid`.")]
    bucket_type: str
    partitions: Annotated[int, means("How many.")]


class ForceLeaderRequest(AuditedRequest, frozen=True, kw_only=True):
    """Elect the replica of one node."""

    node: str | None = None
    version: (
        Annotated[
            int, msgspec.Meta(ge=0, le=_NUMBER_MAX, description="The record's version in the plan that was shown.")
        ]
        | None
    ) = None
    dry_run: DryRun = False


class AssignPartitionsRequest(AuditedRequest, frozen=True, kw_only=True):
    """Create a bucket type with an operator's placement, or check it."""

    bucket_type: str | None = None
    partitions: Annotated[Any, msgspec.Meta(description="A replica map, as of `bucket-type show`.")] = None
    validate_only: Annotated[bool, msgspec.Meta(description="Only check the replica map.")] = False

    def only_reads(self) -> bool:
        """See JsonRequest."""
        return self.validate_only


FORCE_LEADER: Final = Act("force-leader", ForceLeaderRequest, LeaderPlan, "force leader of partition {partition}")
ASSIGN: Final = Act(
    "assign", AssignPartitionsRequest, PartitionsAssigned, "create a bucket type by a replica map", of_all=True
)

PARTITION: Final = DescribedNoun(
    "partition",
    path="/admin/partitions",
    key="partition",
    row=PartitionRow,
    listing=Partitions,
    one=PartitionRow,
    acts=(FORCE_LEADER, ASSIGN),
    parameters={"bucket_type": Parameter("Only the partitions of this bucket type.")},
)
