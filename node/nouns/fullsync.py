"""The nouns `fullsync`, what a node compares with other clusters, and `trees`, what it compares by. Pure."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import UNSET, UnsetType

from isthmus.node.nouns.description import Act, DescribedNoun, Parameter, TableColumn, means
from isthmus.node.nouns.requests import TIME_MAX_MS, AuditedRequest, Encoding, Name, OneNode, right
from isthmus.node.nouns.rows import FailedRows, SignedAct

CHECK_KINDS: Final = ("all", "day", "hour", "range", "auto")
"""What a check may look at; a slot of kind "none" has no check."""

SUPPRESSED_MAX: Final = 240
"""Most checks of kind auto that one request leaves out: the most of a day. More is a suspension."""


# --- results ---


class CheckResultRow(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What one check of one bucket type found; a node of an earlier version leaves some fields out."""

    began_ms: Annotated[int, means("When it began.", TableColumn("began", moment=True))]
    kind: Annotated[str, means("What it looked at.", TableColumn(leave=5))]
    bucket_type: Annotated[str, means("The bucket type.", TableColumn(leave=3))]
    verdict: Annotated[
        str,
        means(
            "`in-sync`, `up-to-date`, `repaired`, `differing`, `incomplete`, `timed-out` or `error`.",
            TableColumn(state=True),
        ),
    ]
    seconds: Annotated[float, means("How long it took.", TableColumn("took", leave=6))]
    proven: Annotated[bool, means("The other cluster had all of this one's writes of its begin.")]
    segments: Annotated[int, means("Segments that differed.")]
    keys: Annotated[int, means("Keys that were compared.")]
    differences: Annotated[dict[str, int], means("Kind of difference -> keys.", TableColumn(text=True))]
    queued: Annotated[int, means("Keys that were queued for repair.", TableColumn(leave=1))]
    left: Annotated[int, means("Keys that were to be repaired and were not queued.", TableColumn(leave=2))]
    transient: Annotated[int, means("Keys that differed no more when looked at again.", TableColumn(leave=4))]
    filtered: Annotated[int, means("Differing keys that the queue leaves out.")]
    by: Annotated[str, means('Who asked for it; "": the schedule.')]
    unexplained: Annotated[int, means("Segments that differ in keys that were not compared.")]
    refused: Annotated[int, means("Earlier repairs that the other cluster refused, or that had no effect.")]
    segments_ahead: Annotated[
        int | UnsetType, means("Segments outside of the range in which the other side is ahead alone.")
    ] = UNSET
    lacking: Annotated[bool, means("The other cluster lacks the bucket type.")]
    reason: Annotated[str, means("Why it ended so.", TableColumn(text=True))]


class PeerResultRow(CheckResultRow, frozen=True, kw_only=True, omit_defaults=True):
    """A result with its peer."""

    peer: Annotated[str, means("The full-sync.")]


class NodeResultRow(PeerResultRow, frozen=True, kw_only=True, omit_defaults=True):
    """A result with its peer and node."""

    node: Annotated[str, means("The node that compared.")]


class FullSyncResults(msgspec.Struct, frozen=True):
    """The newest results of all nodes, the newest first."""

    results: list[NodeResultRow]
    unknown: Annotated[dict[str, str], means("Node without an answer -> why.")]


# --- a peer ---


class DifferingKey(msgspec.Struct, frozen=True):
    """A key that differed in the newest check."""

    bucket_type: str
    bucket: str
    key: str
    difference: Annotated[str, means("What differs, and where, such as `missing@sink`.")]


class PeerSettingsRow(msgspec.Struct, frozen=True):
    """Settings of a peer that an operator set."""

    by: str
    at_ms: int
    reason: str
    values: dict[str, Any]


class CheckRetry(msgspec.Struct, frozen=True):
    """A check that could not look and is tried again."""

    tries: int
    reason: str


class CheckRange(msgspec.Struct, frozen=True):
    """What the next check of kind range looks at."""

    since_ms: int
    before_ms: int
    bucket: Annotated[str | None, means("Null: all buckets.")]
    bucket_encoded: Annotated[str | None, means("Percent-encoded.")]


class FullSyncPeerRow(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A cluster that a node compares with, as a `[[fullsync]]` of the file or an operator names it; a node of an
    earlier version leaves some fields out."""

    name: Annotated[str, means("The full-sync.", TableColumn("peer"))]
    urls: Annotated[list[str], means("Nodes of the other cluster.")]
    cluster: Annotated[str | None, means("The cluster that must answer there; null: any.")]
    origin: Annotated[str, means("`file`, or `added` or `set` by an operator.")]
    set: Annotated[list[PeerSettingsRow], means("What operators set.")]
    state: Annotated[str, means("`scheduled`, `suspended` or `idle`.", TableColumn(state=True))]
    suspended: Annotated[SignedAct | None, means("The suspension in force.")]
    next_ms: Annotated[int | None, means("Null: none is due.", TableColumn("next", leave=3, moment=True, nothing=True))]
    next_kind: Annotated[str | None, means("Its kind.", TableColumn("kind", leave=4, nothing=True))]
    retry: Annotated[CheckRetry | None, means("The check that is tried again; null: none.")]
    range: Annotated[CheckRange | None, means("Null: none is set or learned.")]
    wants: Annotated[dict[str, int], means("Kind -> checks a day.")]
    auto_left_out: Annotated[int, means("Checks of kind auto that are left out next.")]
    all_window: Annotated[str, means("When auto may look at everything.")]
    cluster_slice: Annotated[int, means("The quarter of each slot; 0: the whole slot.")]
    bidirectional: Annotated[bool, means("The other cluster is asked for repairs, too.")]
    bucket_types: Annotated[list[str], means("That are compared.", TableColumn("bucket type", leave=1))]
    proven_ms: Annotated[
        dict[str, int | None],
        means("Bucket type -> as of when the other cluster has all; null: never.", TableColumn("proven as of")),
    ]
    equal_ms: Annotated[
        dict[str, int | None] | UnsetType,
        means("Bucket type -> when both were found equal; null: never.", TableColumn("equal as of", leave=5)),
    ] = UNSET
    equal_types: Annotated[list[str] | UnsetType, means("Bucket types of which both are to have the same.")] = UNSET
    both_ways: Annotated[bool | UnsetType, means("Some are to be the same in both.")] = UNSET
    compares: Annotated[dict[str, list[str]], means("Queue -> the bucket types that checks prove for it.")]
    queue: Annotated[str, means("The queue that repairs go into.", TableColumn("repairs to", leave=2))]
    queue_delisted: bool
    queue_of_other: Annotated[str | None, means("The other cluster that owns the queue; null: it is the right one.")]
    gaps_open: Annotated[int | None, means("Gaps that it is to close; null: not known.")]
    gaps_queues: Annotated[list[str], means("Their queues.")]
    gaps_uncompared: Annotated[
        int | UnsetType, means("Of them, those that may miss bucket types that are not compared.")
    ] = UNSET
    gaps_uncompared_types: list[str] | UnsetType = UNSET
    gaps_wait_s: Annotated[float | None, means("Until they are looked at again; null: not planned.")]
    gaps_closed: Annotated[int, means("Since the node began.")]
    named: Annotated[list[DifferingKey], means("The first keys that differed in the newest check.")]
    newest: Annotated[dict[str, CheckResultRow | None], means("Bucket type -> its newest result.")]
    newest_looked: Annotated[dict[str, CheckResultRow | None], means("The newest that looked at all.")]
    results: Annotated[list[CheckResultRow], means("The newest, the oldest first.")]
    shared_by: Annotated[list[str] | UnsetType, means("Nodes that compare with this cluster.")] = UNSET
    unknown: Annotated[list[str] | UnsetType, means("Nodes that do not answer.")] = UNSET
    warning: Annotated[str | UnsetType | None, means("Why that is too few; null: it is not.")] = UNSET
    reason: Annotated[str, means("Why it is as it is.", TableColumn(text=True))]


# --- a node ---


class RunningCheckRow(msgspec.Struct, frozen=True):
    """A check that runs now."""

    peer: str
    kind: str
    bucket_type: str
    began_ms: int
    by: str
    state: str
    branches_differing: int
    branches_done: int
    keys_compared: int
    differences: int
    queued: int
    estimate_s: Annotated[float | None, means("Until it ends; null: not known yet.")]


class RemovedPeer(msgspec.Struct, frozen=True):
    """A full-sync that an operator removed."""

    name: str
    by: str
    at_ms: int
    reason: str


class PeerLeftOut(msgspec.Struct, frozen=True):
    """A full-sync whose settings are not valid on this node."""

    name: str
    reason: str


class SentQueue(msgspec.Struct, frozen=True):
    """A queue that another cluster fetches."""

    queue: str
    cluster: str
    uuid: str
    bucket_types: Annotated[list[str], means("That it offers.")]


class FullSyncOfNode(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What one node compares."""

    node: str
    actor: Annotated[Literal["full-sync"], means("The component, as in the states of a node.")]
    state: str
    reason: str
    sent: Annotated[list[SentQueue], means("Queues that other clusters fetch.")]
    running: Annotated[RunningCheckRow | None, means("The check that runs now.")]
    peers: list[FullSyncPeerRow]
    removed: list[RemovedPeer]
    left_out: list[PeerLeftOut]
    failed: FailedRows = UNSET


class FullSyncChanged(FullSyncOfNode, frozen=True, kw_only=True, omit_defaults=True):
    """What one node compares, after a change."""

    acted: Annotated[dict[str, list[str] | None], means("Node -> its full-syncs that changed; null: no answer.")]
    later: Annotated[list[str] | UnsetType, means("Nodes that are down, and follow.")] = UNSET


class FullSyncSuspensionRow(msgspec.Struct, frozen=True):
    """An operator's suspension; null: of every full-sync, on every node."""

    peer: str | None
    node: str | None
    by: str
    at_ms: int
    reason: str


class AskedNodes(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of the nodes that were asked for their part."""

    gone: Annotated[dict[str, int], means("Node that is down -> since when.")]
    unknown: Annotated[dict[str, str], means("Node without an answer -> why.")]
    at_ms: int
    skew_ms: Annotated[int, means("How far any clock of the cluster may be from this node's.")]


class FullSyncNodes(AskedNodes, frozen=True, kw_only=True):
    """What all nodes compare."""

    nodes: Annotated[dict[str, FullSyncOfNode | None], means("Null: it does not answer, or is gone.")]
    suspensions: Annotated[list[FullSyncSuspensionRow] | None, means("Null: they could not be read.")]
    suspensions_error: str


# --- the day ---


class DueCheckRow(msgspec.Struct, frozen=True):
    """A check that is due."""

    at_ms: int
    kind: str


class SkippedCheck(msgspec.Struct, frozen=True):
    """A check that was left out."""

    at_ms: int
    kind: str
    reason: str


class RetryRow(msgspec.Struct, frozen=True):
    """When a check that could not look is tried again."""

    at_ms: int
    kind: str
    tries: int


class PeerDay(msgspec.Struct, frozen=True):
    """The rest of the day of one full-sync."""

    name: str
    suspended: bool
    slots: Annotated[int | None, means("Of the day; null: no checks are configured.")]
    slot_ms: int | None
    retry: RetryRow | None
    checks: list[DueCheckRow]
    skipped: list[SkippedCheck]


class DayOfNode(msgspec.Struct, frozen=True):
    """The rest of the day of one node."""

    node: str
    peers: list[PeerDay]


class DaysOfNodes(AskedNodes, frozen=True, kw_only=True):
    """The rest of the day of all nodes."""

    nodes: Annotated[dict[str, DayOfNode | None], means("Null: it does not answer, or is gone.")]


# --- trees ---


class TreeRow(msgspec.Struct, frozen=True, kw_only=True):
    """The tree of one replica."""

    partition: Annotated[int, means("The partition.", TableColumn())]
    bucket_type: Annotated[str, means("The bucket type of its keys.", TableColumn())]
    state: Annotated[str, means("Whether it can be compared by.", TableColumn())]
    offset: Annotated[int, means("It has all below.", TableColumn())]
    bytes: Annotated[int | None, means("In memory; null: there is none.", TableColumn(nothing=True))]
    built_ms: Annotated[
        int | None, means("Null: it began empty, or was read.", TableColumn("built", moment=True, nothing=True))
    ]
    building_keys: Annotated[int | None, means("Keys that a build has read; null: none runs.")]
    reason: Annotated[str, means("Why it is as it is.", TableColumn())]


class TreeMismatchRow(msgspec.Struct, frozen=True):
    """A segment that was found wrong."""

    partition: Annotated[int, means("The partition.", TableColumn())]
    segment: Annotated[int, means("The segment.", TableColumn())]
    offset: Annotated[int, means("Of the tree then.", TableColumn())]
    against: Annotated[str, means("`key store`, `key rows`, or the node whose tree differed.", TableColumn())]
    wall_ms: Annotated[int, means("When.", TableColumn("when", moment=True))]


class TreeParts(msgspec.Struct, frozen=True):
    """The trees of a node, as it answers other nodes."""

    trees: list[TreeRow]
    mismatches: Annotated[list[TreeMismatchRow], means("The newest.")]


class TreesOfNode(msgspec.Struct, frozen=True):
    """The trees of one node."""

    node: str
    trees: list[TreeRow]
    mismatches: Annotated[list[TreeMismatchRow], means("The newest.")]


class TreesOfNodes(msgspec.Struct, frozen=True):
    """The trees of all nodes."""

    nodes: Annotated[dict[str, TreeParts | None], means("Null: it does not answer, or is gone.")]


class TreesRebuilt(msgspec.Struct, frozen=True):
    """The trees that are rebuilt."""

    rebuilding: Annotated[list[int], means("Partitions.")]


# --- changes ---

_Peer = Annotated[Name, right("a name, or left out for all")]
_NamedPeer = Annotated[Name, right("a text, the name of the full-sync")]
_WhichNode = Annotated[str, msgspec.Meta(description="The node that does it; null: the one that is asked.")]
_Values = Annotated[dict[str, Any], right('an object, such as {"all": 24, "auto": 0}')]
_TimeMs = Annotated[int, msgspec.Meta(ge=0, le=TIME_MAX_MS)]


class CheckBegun(msgspec.Struct, frozen=True):
    """A check that has begun."""

    peer: Annotated[str | None, means("As it was asked for; null: all.")]
    peers: Annotated[list[str], means("Those that are compared, one after the other.")]
    node: str
    kind: str
    by: str
    at_ms: int


class RunCheckRequest(AuditedRequest, frozen=True, kw_only=True):
    """Start a check now."""

    kind: Annotated[Name, right("a text"), msgspec.Meta(extra_json_schema={"enum": list(CHECK_KINDS)})]
    peer: _Peer | None = None
    node: _WhichNode | None = None


class SuspendChecksRequest(AuditedRequest, frozen=True, kw_only=True):
    """Suspend or resume checks."""

    peer: _Peer | None = None
    node: OneNode | None = None


class RemoveFullSyncRequest(AuditedRequest, frozen=True, kw_only=True):
    """Remove a full-sync."""

    peer: _NamedPeer
    node: OneNode | None = None


class AddFullSyncRequest(RemoveFullSyncRequest, frozen=True, kw_only=True):
    """Add a full-sync that no file has."""

    values: Annotated[_Values, msgspec.Meta(description="Keys of [[fullsync]], as in a file.")] | None = None


class SetFullSyncRequest(AddFullSyncRequest, frozen=True, kw_only=True):
    """Change settings of a full-sync, or take all changes back."""

    default: Annotated[bool, msgspec.Meta(description="Take all changes back.")] = False


class SetRangeRequest(AuditedRequest, frozen=True, kw_only=True):
    """The range of checks of kind `range`."""

    since_ms: _TimeMs
    before_ms: _TimeMs
    peer: _Peer | None = None
    bucket: Annotated[Name, right("a text, or left out")] | None = None
    encoding: Encoding | None = None
    node: _WhichNode | None = None


class ClearRangeRequest(AuditedRequest, frozen=True, kw_only=True):
    """Checks of kind `range` have no range. The range of the body, if any, is ignored."""

    peer: _Peer | None = None
    since_ms: Any = None
    before_ms: Any = None
    bucket: Any = None
    node: _WhichNode | None = None


class SuppressAutoRequest(AuditedRequest, frozen=True, kw_only=True):
    """Leave out checks of kind `auto`."""

    count: Annotated[int, msgspec.Meta(ge=0, le=SUPPRESSED_MAX)]
    peer: _Peer | None = None
    node: _WhichNode | None = None


class RebuildTreesRequest(AuditedRequest, frozen=True, kw_only=True):
    """Rebuild the trees of this node."""

    partition: Annotated[int, right("a number, or left out for all")] | None = None


RUN: Final = Act("run", RunCheckRequest, CheckBegun, "run a full-sync", of_all=True, status=202)
SUSPEND: Final = Act("suspend", SuspendChecksRequest, FullSyncChanged, "suspend full-sync", of_all=True)
RESUME: Final = Act("resume", SuspendChecksRequest, FullSyncChanged, "resume full-sync", of_all=True)
SET: Final = Act("set", SetFullSyncRequest, FullSyncChanged, "change a full-sync", of_all=True)
ADD: Final = Act("peers/add", AddFullSyncRequest, FullSyncChanged, "add a full-sync", of_all=True)
REMOVE: Final = Act("peers/remove", RemoveFullSyncRequest, FullSyncChanged, "remove a full-sync", of_all=True)
SET_RANGE: Final = Act("set-range", SetRangeRequest, FullSyncChanged, "set the range of a full-sync", of_all=True)
CLEAR_RANGE: Final = Act(
    "clear-range", ClearRangeRequest, FullSyncChanged, "clear the range of a full-sync", of_all=True
)
SUPPRESS_AUTO: Final = Act(
    "suppress-auto", SuppressAutoRequest, FullSyncChanged, "suppress checks of kind auto", of_all=True
)
REBUILD: Final = Act("rebuild", RebuildTreesRequest, TreesRebuilt, "rebuild trees", of_all=True, status=202)

FULLSYNC: Final = DescribedNoun(
    "fullsync",
    path="/admin/fullsync",
    key="",
    row=FullSyncPeerRow,
    listing=FullSyncOfNode,
    one=None,
    parameters={"results": Parameter("Newest results of each full-sync.", number=True)},
    views={
        "nodes": FullSyncNodes,
        "schedule": DayOfNode,
        "schedule/nodes": DaysOfNodes,
        "results": FullSyncResults,
    },
    view_parameters={
        "results": {
            "limit": Parameter("Most of them.", number=True),
            "peer": Parameter("Only those of this full-sync."),
            "node": Parameter("Only those of this node."),
        }
    },
    acts=(RUN, SUSPEND, RESUME, SET, ADD, REMOVE, SET_RANGE, CLEAR_RANGE, SUPPRESS_AUTO),
)

TREES: Final = DescribedNoun(
    "trees",
    path="/admin/trees",
    key="",
    row=TreeRow,
    listing=TreesOfNode,
    one=None,
    views={"nodes": TreesOfNodes},
    acts=(REBUILD,),
)
