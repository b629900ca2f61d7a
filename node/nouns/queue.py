"""The noun `queue`: a source queue, each node's share of it, and the whole of the cluster. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import UNSET, UnsetType

from isthmus.node.nouns.description import Act, DescribedNoun, TableColumn, means
from isthmus.node.nouns.requests import TIME_MAX_MS, AuditedRequest, DryRun, Encoding, Name, OneNode, Rate, right
from isthmus.node.nouns.rows import AchievedRates, DifferingProperties, FailedRows, RateLimits, SignedAct, ThrottleRow
from isthmus.repl.model.vclock import MAX_OFFSET

PUSH_MAX: Final = 10_000
"""Most keys in one push."""

PUSH_WAIT_MAX_MS: Final = 30_000

PRIORITIES: Final = ("real_time", "full_sync", "fold")
"""The fields of QueuePriorities, in the order in which they are served."""


def _owner(row: Mapping[str, Any]) -> Any:
    """The owner's cluster; nothing for a queue without owner, null where the node does not know it."""
    owner = row.get("owner")
    return "" if "owner" in row and owner is None else owner.get("cluster") if isinstance(owner, dict) else owner


def _repairs(row: Mapping[str, Any]) -> int | None:
    """References that wait at the full-sync and fold priorities."""
    priorities = row.get("priorities")
    lower = [priorities.get(name) for name in PRIORITIES[1:]] if isinstance(priorities, dict) else []
    known = [one["waiting"] for one in lower if isinstance(one, dict) and isinstance(one.get("waiting"), int)]
    return sum(known) if len(known) == len(PRIORITIES[1:]) else None


# --- a node's share ---


class OwnerRow(msgspec.Struct, frozen=True):
    """The cluster whose sinks fetch a queue."""

    cluster: str
    uuid: str
    version: Annotated[int, means("Raised with each change of the owner.")]
    since_ms: int
    by: Annotated[str, means("Who made it the owner: its first fetch, or an operator.")]


class SuspensionRow(msgspec.Struct, frozen=True):
    """An operator's suspension of a queue."""

    what: Annotated[str, means("`serving` or `publishing`.")]
    node: Annotated[str | None, means("Null: on all nodes.")]
    by: str
    at_ms: int
    reason: str


class QueueDecree(msgspec.Struct, frozen=True):
    """The newest command that moved cursors, as all partitions carry it out."""

    version: int
    what: str
    start_ms: Annotated[int, means("Cursors moved to the changes of this time; 0: to the first one.")]
    by: str
    at_ms: int
    reason: str
    positions: Annotated[int, means("Partitions whose cursors moved to positions of their own.")]
    by_time: Annotated[bool, means("Partitions without a position use the time.")]
    change: Annotated[Any, means("The newest change of what is offered, as the metastore has it; null: none.")]
    released: Annotated[Any, means("The newest release before it, as the metastore has it; null: none.")]


class ReferenceLimits(msgspec.Struct, frozen=True):
    """Limits of a queue's memory at one node."""

    queue: Annotated[int, means("References.")]
    objects: Annotated[int, means("Whole objects.")]
    object_bytes: Annotated[int, means("The largest object that is kept whole.")]


class QueuePriority(msgspec.Struct, frozen=True, omit_defaults=True):
    """References of one priority; counters since the node began, of the full-sync and fold priorities."""

    waiting: Annotated[int | None, means("Null: not known.")]
    in_flight: int
    queued: int | UnsetType = UNSET
    collapsed: int | UnsetType = UNSET
    acknowledged: int | UnsetType = UNSET
    vanished: int | UnsetType = UNSET
    cleared: int | UnsetType = UNSET
    outcomes: Annotated[
        tuple[int, int, int, int] | UnsetType, means("Applied, merged, superseded, rejected at the sink.")
    ] = UNSET


class QueuePriorities(msgspec.Struct, frozen=True):
    """By priority; changes of real time are served first."""

    real_time: QueuePriority
    full_sync: QueuePriority
    fold: QueuePriority


class QueueThrottle(ThrottleRow, frozen=True):
    """Limits of the rate at which a node serves a queue."""

    set: Annotated[SignedAct | None, means("Who set the limits; null: they are the file's.")]
    file: Annotated[RateLimits | UnsetType, means("The file's limits.")] = UNSET


class QueueConsumer(msgspec.Struct, frozen=True):
    """A node of the owner that fetched here since the node serves the queue to its cluster."""

    node: str
    waits: Annotated[bool, means("A fetch of it waits here now.")]
    last_fetch_ms: int
    last_given_ms: Annotated[int | None, means("When it was last given changes; null: never.")]
    given: Annotated[int, means("Changes given to it.")]
    in_flight: int


class OfferSet(msgspec.Struct, frozen=True):
    """A filter and a cascade flag that an operator set; null: as defined."""

    filter: str | None
    cascade: bool | None
    was: Annotated[str, means("The filter before.")]
    by: str
    at_ms: int
    reason: str


class QueueChanges(msgspec.Struct, frozen=True, omit_defaults=True):
    """What operators changed of a queue's definition."""

    offer: OfferSet | UnsetType = UNSET
    limits: Annotated[dict[str, Any] | UnsetType, means("Setting -> its value, and by, at_ms, reason.")] = UNSET


class QueueShare(msgspec.Struct, frozen=True, kw_only=True):
    """A queue at one node: settings, states, and the share of the partitions that it leads."""

    node: Annotated[str, means("The node.", TableColumn())]
    name: Annotated[str, means("The queue.", TableColumn("queue"))]
    partitions: Annotated[int, means("Partitions led here whose cursors are known.", TableColumn("led", leave=7))]
    filter: Annotated[str, means("What it offers.", TableColumn(leave=6))]
    cascade: Annotated[bool, means("Whether changes of other clusters are offered, too.")]
    overflow: Annotated[str, means("`replay` or `discard`: what happens at the limit.")]
    riak_fetch: Annotated[bool, means("Whether a real Riak may fetch.")]
    owner: Annotated[OwnerRow | None, means("Null: nobody fetched yet.", TableColumn(shown=_owner))]
    waiting: Annotated[int | None, means("Changes of real time that wait; null: not known.", TableColumn())]
    waiting_at_ms: Annotated[int | None, means("When they were counted.")]
    priorities: Annotated[QueuePriorities, means("By priority.", TableColumn("repairs", leave=2, shown=_repairs))]
    in_flight: Annotated[int, means("Changes given to a sink and not acknowledged.", TableColumn(leave=3))]
    oldest_age_ms: Annotated[int | None, means("Of the oldest change that waits.", TableColumn("oldest", leave=1))]
    publishing: Annotated[str, means("`running`, `suspended` or `off`.", TableColumn(leave=4, state=True))]
    serving: Annotated[str, means("`running`, `suspended` or `off`.", TableColumn(state=True))]
    suspended: Annotated[SuspensionRow | None, means("The suspension of serving in force here.")]
    suspensions: Annotated[list[SuspensionRow], means("All suspensions, on this and other nodes.")]
    decree: QueueDecree | None
    limits: ReferenceLimits
    throttle: QueueThrottle
    gaps: Annotated[int, means("Open gaps; the sum over nodes counts each once.")]
    properties_differ: Annotated[dict[str, list[str]], means("Node of the sink -> bucket types that differ there.")]
    objects_in_memory: int
    references_in_memory: int
    served: Annotated[int, means("Changes given since the node began, repeats included.")]
    acknowledged: int
    redelivered: int
    batches: int
    collapsed: int
    vanished: int
    late_acknowledgements: int
    refused_acknowledgements: int
    reason: Annotated[str, means("Why it does not serve everything.", TableColumn(text=True))]
    held_types: Annotated[dict[str, int], means("Bucket type that the sink lacks -> since when it is held back.")]
    changed: QueueChanges
    consumers: list[QueueConsumer] = []
    property_differences: dict[str, list[DifferingProperties]] = {}


class QueueShares(msgspec.Struct, frozen=True, omit_defaults=True):
    """Every queue, with one node's share of it."""

    queues: list[QueueShare]
    notes: Annotated[list[str] | UnsetType, means("What else to know of the change.")] = UNSET
    failed: FailedRows = UNSET


class QueuesOfNode(msgspec.Struct, frozen=True, omit_defaults=True):
    """The shares of one node."""

    node: str
    queues: Annotated[list[QueueShare] | None, means("Null: it does not answer, or is gone.")]
    gone: bool
    failed: FailedRows = UNSET


class QueuesOfNodes(msgspec.Struct, frozen=True):
    """The shares of all nodes."""

    nodes: list[QueuesOfNode]


# --- the whole cluster ---


class PriorityDepth(msgspec.Struct, frozen=True):
    """References of one priority at all nodes; null: not known."""

    waiting: int | None
    in_flight: int | None
    at_least: Annotated[int, means("What the nodes that answer have of those that wait.")]


class PriorityDepths(msgspec.Struct, frozen=True):
    """By priority."""

    real_time: PriorityDepth
    full_sync: PriorityDepth
    fold: PriorityDepth


class ClusterConsumer(msgspec.Struct, frozen=True):
    """A node of the owner, over all nodes at which it fetched."""

    node: str
    last_fetch_ms: int
    at: Annotated[str, means("The node of its last fetch.")]
    last_given_ms: int | None
    given: int
    in_flight: int
    waits_at: Annotated[list[str], means("Nodes at which a fetch of it waits now.")]


class QueueRates(msgspec.Struct, frozen=True):
    """Rates of all nodes together."""

    set: SignedAct | None
    binding: Annotated[list[str], means("Limits that bind at some node.")]
    achieved: AchievedRates
    throttled_seconds: float | None


class QueueRow(msgspec.Struct, frozen=True, kw_only=True):
    """A queue of the whole cluster; numbers are null where a node's are not known."""

    name: str
    filter: str
    cascade: bool
    overflow: str
    riak_fetch: bool
    owner: OwnerRow | None
    suspensions: list[SuspensionRow]
    decree: QueueDecree | None
    limits: ReferenceLimits
    changed: QueueChanges
    differs: Annotated[list[str], means("Facts that are not the same on all nodes.")]
    lacking: Annotated[list[str], means("Nodes that do not have the queue.")]
    publishing: Annotated[str, means("As of a node, or `mixed`.")]
    serving: Annotated[str, means("As of a node, or `mixed`.")]
    reason: str
    unknown: Annotated[str, means("Why numbers are null; empty: they are not.")]
    priorities: PriorityDepths
    oldest_age_ms: int | None
    consumers: list[ClusterConsumer]
    rates: QueueRates
    held_types: dict[str, int]
    nodes: Annotated[dict[str, QueueShare | None], means("Null: the node does not answer, or lacks the queue.")]


class Queues(msgspec.Struct, frozen=True):
    """Every queue of the whole cluster."""

    queues: list[QueueRow]
    unknown: Annotated[dict[str, str], means("Node -> why its share is not known.")]
    at_ms: int


# --- acts ---


class WaitingByPriority(msgspec.Struct, frozen=True):
    """References that wait or are in flight; null: not known."""

    real_time: int | None
    full_sync: int | None
    fold: int | None


class QueuePlan(msgspec.Struct, frozen=True):
    """What an act would do."""

    queue: str
    act: str
    owner: str | None
    waiting: WaitingByPriority
    gaps: int | None
    silent: Annotated[list[str], means("Nodes that do not answer.")]
    effect: Annotated[str, means("One sentence.")]
    outcome: str


class ReferencesPushed(msgspec.Struct, frozen=True):
    """What a push did."""

    queued: int
    refused: int
    reason: str


class GapsClosed(msgspec.Struct, frozen=True):
    """What a closing of gaps did."""

    closed: int
    unknown: Annotated[list[str], means("Nodes that do not answer.")]


TimeMs = Annotated[int, msgspec.Meta(ge=0, le=TIME_MAX_MS)]
Offsets = Annotated[
    dict[
        Annotated[str, msgspec.Meta(pattern="^[0-9]{1,10}$")],
        Annotated[int, msgspec.Meta(ge=0, le=MAX_OFFSET)],
    ],
    right('an object of partition and offset: {"positions": {"3": 1200}}'),
]
Start = Annotated[
    Literal["now", "0"] | Annotated[int, msgspec.Meta(ge=0, le=TIME_MAX_MS)],
    right('"now", "0", or a time in milliseconds since 1970'),
]
Targets = Annotated[
    str | Annotated[list[str], msgspec.Meta(min_length=1)], right('"serving", "publishing", a list of both')
]


class QueueValuesRequest(AuditedRequest, frozen=True, kw_only=True):
    """Settings of a queue."""

    filter: str | None = None
    overflow: Literal["replay", "discard"] | None = None
    queue_limit: Annotated[int, msgspec.Meta(ge=1, le=10_000_000)] | None = None
    object_limit: Annotated[int, msgspec.Meta(ge=0, le=10_000_000)] | None = None
    object_size_limit: Annotated[int, msgspec.Meta(ge=0, le=1_000_000_000)] | None = None
    riak_fetch: bool | None = None


class RegisterQueueRequest(QueueValuesRequest, frozen=True, kw_only=True):
    """Create a queue; it begins at a time, or at an offset of each partition."""

    name: Annotated[Name, right('the name of the queue: {"name": "to-west"}')]
    cascade: bool = False
    from_: Start | msgspec.UnsetType = msgspec.field(default=msgspec.UNSET, name="from")
    positions: Offsets | None = None


class SetQueueRequest(QueueValuesRequest, frozen=True, kw_only=True):
    """Change settings of a queue, take all changes back, or offer everything once more."""

    cascade: bool | None = None
    lease_ms: Annotated[int, msgspec.Meta(ge=100, le=3_600_000)] | None = None
    default: Annotated[bool, msgspec.Meta(description="Take all changes back.")] = False
    from_: Annotated[Literal["0", 0], right('"0" (everything once more)')] | None = msgspec.field(
        default=None, name="from"
    )
    dry_run: DryRun = False


class PlaceQueueRequest(AuditedRequest, frozen=True, kw_only=True):
    """Move cursors to offsets."""

    positions: Annotated[Offsets, msgspec.Meta(min_length=1)]


class PlannedQueueRequest(AuditedRequest, frozen=True, kw_only=True):
    """Clear or delist a queue."""

    dry_run: DryRun = False


class ReleaseQueueRequest(PlannedQueueRequest, frozen=True, kw_only=True):
    """Release a queue from its owner."""

    from_: Start = msgspec.field(default="0", name="from")


class ResumeQueueRequest(AuditedRequest, frozen=True, kw_only=True):
    """End a suspension."""

    what: Targets | None = None
    node: OneNode | None = None


class SuspendQueueRequest(ResumeQueueRequest, frozen=True, kw_only=True):
    """Suspend serving, publishing, or both."""

    dry_run: DryRun = False


class ThrottleQueueRequest(AuditedRequest, frozen=True, kw_only=True):
    """Limit the rate at which each node serves a queue."""

    bytes_per_second: Rate | None = None
    objects_per_second: Rate | None = None
    default: Annotated[bool, msgspec.Meta(description="The rates of the config.")] = False


class PushReferencesRequest(AuditedRequest, frozen=True, kw_only=True):
    """References to keys of one bucket."""

    bucket: Annotated[Name, right('a text, as in {"bucket": "b", "keys": ["k"]}')]
    keys: Annotated[
        list[Name],
        msgspec.Meta(max_length=PUSH_MAX),
        right(f'a list of at most {PUSH_MAX} texts, as in {{"bucket": "b", "keys": ["k"]}}'),
    ]
    bucket_type: str | None = None
    encoding: Encoding | None = None
    fold: Annotated[bool, msgspec.Meta(description="At the priority of folds instead of full-sync's.")] = False
    wait_ms: Annotated[int, msgspec.Meta(ge=0, le=PUSH_WAIT_MAX_MS)] | None = None


class CloseGapsRequest(AuditedRequest, frozen=True, kw_only=True):
    """Close gaps by their ids, or those of a bucket type within a time range."""

    ids: list[str] | None = None
    bucket_type: str | None = None
    from_ms: TimeMs | None = None
    upto_ms: TimeMs | None = None


REGISTER: Final = Act("register", RegisterQueueRequest, QueueShares, "create a queue", of_all=True)
SUSPEND: Final = Act("suspend", SuspendQueueRequest, QueueShares, "suspend queue {queue}", plan=QueuePlan)
RESUME: Final = Act("resume", ResumeQueueRequest, QueueShares, "resume queue {queue}")
CLEAR: Final = Act("clear", PlannedQueueRequest, QueueShares, "clear queue {queue}", plan=QueuePlan)
RELEASE: Final = Act("release", ReleaseQueueRequest, QueueShares, "release queue {queue}", plan=QueuePlan)
PLACE: Final = Act("place", PlaceQueueRequest, QueueShares, "place cursors of queue {queue}")
DELIST: Final = Act("delist", PlannedQueueRequest, QueueShares, "delist queue {queue}", plan=QueuePlan)
THROTTLE: Final = Act("throttle", ThrottleQueueRequest, QueueShares, "throttle queue {queue}")
PUSH: Final = Act("push", PushReferencesRequest, ReferencesPushed, "push references into queue {queue}")
SET: Final = Act("set", SetQueueRequest, QueueShares, "change queue {queue}", plan=QueuePlan)
CLOSE: Final = Act("gaps/close", CloseGapsRequest, GapsClosed, "close gaps of queue {queue}")

QUEUE: Final = DescribedNoun(
    "queue",
    path="/admin/queues",
    key="queue",
    row=QueueShare,
    listing=QueueShares,
    one=None,
    views={"nodes": QueuesOfNodes, "cluster": Queues},
    acts=(REGISTER, SUSPEND, RESUME, CLEAR, RELEASE, PLACE, DELIST, THROTTLE, PUSH, SET, CLOSE),
)
