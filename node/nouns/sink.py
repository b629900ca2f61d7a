"""The noun `sink`: the links of a node to the queues that it fetches from, and what came over them. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import UNSET, UnsetType

from isthmus.config.settings import SINK_WORKERS_MAX
from isthmus.node.nouns.description import Act, DescribedNoun, Parameter, TableColumn, means
from isthmus.node.nouns.requests import AuditedRequest, OneNode, Rate
from isthmus.node.nouns.rows import ClockDot, DifferingProperties, FailedRows, SignedAct, ThrottleRow


def rates_in_words(rates: Mapping[str, Any], nothing: str) -> str:
    """Rates such as "5 MB/s, 100 changes/s"; `nothing` where there are none."""
    size, objects = rates.get("bytes_per_second"), rates.get("objects_per_second")
    parts = [f"{size / 1_000_000:.3g} MB/s"] if size else []
    parts += [f"{objects:.0f} changes/s"] if objects else []
    return ", ".join(parts) or nothing


def _part(row: Mapping[str, Any], *names: str) -> Any:
    """What a row has under the names, one within the other; None where a node does not know it."""
    found: Any = row
    for name in names:
        found = found.get(name) if isinstance(found, dict) else None
    return found


def limit_in_words(row: Mapping[str, Any]) -> str | None:
    """The limits of a node's sink; None where they are not known."""
    rates = _part(row, "throttle", "configured")
    return None if rates is None else rates_in_words(rates, "none")


def achieved_in_words(row: Mapping[str, Any]) -> str | None:
    """The rates of a node's sink, lately; None where they are not known."""
    rates = _part(row, "throttle", "achieved")
    return None if rates is None else rates_in_words(rates, "0")


def worker_count(row: Mapping[str, Any]) -> Any:
    """The workers of a node's sink."""
    return _part(row, "workers", "count")


def busy_workers(row: Mapping[str, Any]) -> Any:
    """Those that fetch or push now."""
    return _part(row, "workers", "busy")


def letters_kept(row: Mapping[str, Any]) -> Any:
    """The dead letters that a node keeps."""
    return _part(row, "dead_letters", "kept")


def whole_key(row: Mapping[str, Any]) -> str | None:
    """Bucket type, bucket and key as one text."""
    return " ".join(row.get("key") or ()) or None


def binding_limit(row: Mapping[str, Any]) -> str | None:
    """The limit that holds a node's sink back, "" where none does; None where that is not known."""
    return _part(row, "throttle", "binding") or (None if _part(row, "throttle") is None else "")


def kind_of_link(row: Mapping[str, Any]) -> Any:
    """What the peer is; None where the node does not answer. Nodes of a version before Riaks have clusters alone."""
    return row.get("kind") or ("cluster" if "state" in row else None)


# --- a link ---


class SinkSuspensionRow(msgspec.Struct, frozen=True):
    """An operator's suspension of fetches; null: of every queue, from every peer, on every node."""

    queue: str | None
    peer: str | None
    by: str
    at_ms: int
    reason: str
    node: str | None


class RiakLinkCounts(msgspec.Struct, frozen=True):
    """Changes of a Riak's queue that did not arrive here, since the node began."""

    left_out: Annotated[int, means("Not taken: bucket types that the settings leave out, and reaps.")]
    answers_lost: Annotated[int, means("Answers that did not come whole; each may have had a change.")]
    lost: Annotated[int, means("Taken from the queue, and neither stored nor dead letters.")]
    waiting: Annotated[int | None, means("In its node's queue, at the last look; null: not known.")] = None
    lost_lately: Annotated[bool, means("Whether an answer or a change was lost within the last day.")] = False
    seed_fault: Annotated[
        str, means("Why the Riak's newest seed does not go on by itself; empty: it does, or there is none.")
    ] = ""


class SinkLink(msgspec.Struct, frozen=True, kw_only=True):
    """A queue that a node fetches from a peer, or (`passed-over`) one that it does not fetch though a peer lists the
    node; counters since the node began."""

    queue: Annotated[str, means("The queue of the other cluster.", TableColumn())]
    peer: Annotated[str, means("The node that it is fetched from.", TableColumn(host=True))]
    kind: Annotated[
        Literal["cluster", "riak"],
        means("What the peer is: a node of a cluster, or of a Riak.", TableColumn(leave=10, shown=kind_of_link)),
    ] = "cluster"
    riak: Annotated[RiakLinkCounts | None, means("Of a link to a Riak; null: it leads to a cluster.")] = None
    source_cluster: Annotated[str | None, means("Its cluster, or the Riak's name; null: it has not answered yet.")]
    source_uuid: Annotated[str | None, means("Null: it has not answered yet.")]
    from_: Annotated[str, means("Who named the peer: `config`, `operator` or `discovery`.", TableColumn(leave=9))] = (
        msgspec.field(name="from")
    )
    set: Annotated[SignedAct | None, means("The operator who added it; null: none did.")]
    since_ms: Annotated[int | None, means("Since when there is this link.")]
    state: Annotated[
        str,
        means(
            "`running`, `starting`, `waiting`, `holding`, `failing`, `suspended`, `ending` or `passed-over`.",
            TableColumn(state=True),
        ),
    ]
    properties_differ: Annotated[list[str], means("Bucket types whose properties differ at the source.")]
    property_differences: list[DifferingProperties]
    held_types: Annotated[list[str], means("Bucket types that this cluster lacks; their changes wait at the source.")]
    suspended: Annotated[SinkSuspensionRow | None, means("The suspension in force.")]
    delay_ms: Annotated[int | None, means("Until its next fetch.", TableColumn("delay", leave=8, duration=True))]
    errors_in_a_row: int
    running: Annotated[int, means("Fetches and pushes under way.")]
    applied: Annotated[int, means("Changes that were newer than what was here.", TableColumn(leave=2))]
    superseded: Annotated[int, means("Changes that were here already, or newer ones.", TableColumn(leave=3))]
    merged: Annotated[int, means("Changes concurrent with those here.", TableColumn(leave=4))]
    rejected: Annotated[int, means("Changes that were refused for good.", TableColumn(leave=5))]
    failed: Annotated[int, means("Changes that could not be stored; they come again.")]
    fetches: Annotated[int, means("Fetches that the source answered.")]
    batches: Annotated[int, means("Batches that were pushed.")]
    errors: Annotated[int, means("Cycles that failed.")]
    lag_ms_p50: Annotated[
        int | None, means("From the write there to its push here.", TableColumn("lag p50", leave=1, duration=True))
    ]
    lag_ms_p99: Annotated[int | None, means("The same.", TableColumn("lag p99", leave=6, duration=True))]
    recent_lag_ms_p50: Annotated[int | None, means("Of the last minute; null: nothing came in it.")]
    recent_lag_ms_p99: Annotated[int | None, means("Of the last minute; null: nothing came in it.")]
    last_answer_ms: Annotated[int | None, means("When it last answered; null: never.")]
    last_batch_ms: Annotated[int | None, means("When a batch was last stored; null: never.")]
    reason: Annotated[str, means("Why it is as it is.", TableColumn(text=True, nothing=True))]
    last_error: Annotated[str | None, means("Null: there was none.", TableColumn(leave=7, text=True, nothing=True))]
    last_error_reason: Annotated[str | None, means("Its code.")]
    last_error_ms: int | None


# --- a node's sink ---


class SinkWorkers(msgspec.Struct, frozen=True):
    """The workers of a node's sink."""

    count: int
    busy: Annotated[int, means("That fetch or push now.")]
    peer_limit: Annotated[int, means("Most at one peer.")]
    queue_limits: Annotated[dict[str, int], means("Queue -> most that may be busy with it.")]


class SinkSource(msgspec.Struct, frozen=True):
    """Changes of one queue of another cluster since the node began: fetched = applied + superseded + merged + rejected
    + failed + under way."""

    source_cluster: Annotated[str, means("The other cluster.", TableColumn("source"))]
    source_uuid: str
    queue: Annotated[str, means("Its queue.", TableColumn())]
    fetched: Annotated[int, means("Changes that came.", TableColumn())]
    fetched_bytes: int
    applied: Annotated[int, means("Newer than what was here.", TableColumn())]
    superseded: Annotated[int, means("Here already, or newer ones.", TableColumn())]
    merged: Annotated[int, means("Concurrent with those here.", TableColumn())]
    rejected: Annotated[int, means("Refused for good.", TableColumn())]
    failed: Annotated[int, means("Not stored; they come again.", TableColumn())]
    under_way: Annotated[int, means("Not stored yet.", TableColumn())]
    last_batch_ms: Annotated[int | None, means("When a batch was last stored.", TableColumn("last", moment=True))]


class DeadLetterCounts(msgspec.Struct, frozen=True):
    """Changes that were refused for good; null: their file cannot be read."""

    kept: int | None
    given_up: Annotated[int | None, means("That were too many to be kept.")]


class SetPeer(msgspec.Struct, frozen=True):
    """A peer that an operator added, or (`removed`) removed though a file lists it."""

    queue: str
    url: str
    cluster: str
    token_file: str | None
    removed: bool
    by: str
    at_ms: int
    reason: str


class SetQueueWorkers(msgspec.Struct, frozen=True):
    """A limit of the workers that are busy with a queue at once, which an operator set."""

    queue: str
    node: Annotated[str | None, means("Null: on all nodes.")]
    workers: int
    by: str
    at_ms: int
    reason: str


class UnusablePeer(msgspec.Struct, frozen=True):
    """A peer that this node cannot fetch from."""

    queue: str
    url: str
    reason: str


class SinkOverview(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The sink of one node: its links, workers, limits, and what came from each cluster."""

    node: Annotated[str, means("The node.", TableColumn())]
    actor: Annotated[Literal["sink"], means("The component, as in the states of a node.")]
    state: Annotated[str, means("`running`, `failing`, `suspended` or `idle`.", TableColumn(state=True))]
    workers: Annotated[
        SinkWorkers,
        means(
            "Who fetches and pushes.",
            TableColumn(shown=worker_count),
            TableColumn("busy", leave=2, shown=busy_workers),
        ),
    ]
    throttle: Annotated[
        ThrottleRow,
        means(
            "Limits of what is fetched.",
            TableColumn("limit", shown=limit_in_words),
            TableColumn("binding", leave=3, shown=binding_limit),
            TableColumn("achieved", shown=achieved_in_words),
        ),
    ]
    limits_set: Annotated[SignedAct | None, means("Who set limits; null: they are the file's.")]
    sources: list[SinkSource]
    dead_letters: Annotated[
        DeadLetterCounts,
        means("Changes refused for good.", TableColumn("dead", shown=letters_kept)),
    ]
    suspensions: Annotated[list[SinkSuspensionRow], means("All suspensions, on this and other nodes.")]
    peers_set: Annotated[list[SetPeer], means("Peers that operators added or removed.")]
    queue_workers_set: list[SetQueueWorkers]
    peers_unusable: list[UnusablePeer]
    reason: Annotated[str, means("Why it is as it is.", TableColumn(text=True, nothing=True))]
    sinks: list[SinkLink]
    failed: FailedRows = UNSET
    notes: Annotated[list[str] | UnsetType, means("What else to know of the change.")] = UNSET


class SinkOfNode(msgspec.Struct, frozen=True):
    """The sink of one node of several."""

    node: str
    sink: Annotated[SinkOverview | None, means("Null: it does not answer, or is gone.")]


class SinksOfNodes(msgspec.Struct, frozen=True):
    """The sinks of all nodes."""

    nodes: list[SinkOfNode]
    unknown: Annotated[dict[str, str], means("Node without an answer -> why.")]


# --- conflicts and checks ---


class SeenClock(msgspec.Struct, frozen=True):
    """What one side had seen."""

    clock: Annotated[str, means("As X-Riak-Vclock has it.")]
    seen: Annotated[list[ClockDot], means("The newest write of each actor.")]


class ConflictRow(msgspec.Struct, frozen=True):
    """A change that was fetched and was concurrent with what was here."""

    at_ms: Annotated[int, means("When.", TableColumn("at", moment=True))]
    queue: Annotated[str, means("The queue.", TableColumn())]
    source_cluster: Annotated[str, means("Where it came from.", TableColumn("source"))]
    source_uuid: str
    peer: Annotated[str, means("The node that it was fetched from.", TableColumn())]
    key: Annotated[
        tuple[str, str, str],
        means("Bucket type, bucket and key.", TableColumn(shown=whole_key)),
    ]
    siblings: Annotated[int, means("That the object had then.", TableColumn())]
    ours: Annotated[SeenClock, means("What this cluster had seen.", TableColumn("ours had seen"))]
    theirs: Annotated[SeenClock, means("What the other one had seen.", TableColumn("theirs had seen"))]


class ConflictList(msgspec.Struct, frozen=True):
    """The newest conflicts that a node's sink fetched, the newest first."""

    node: str
    conflicts: list[ConflictRow]
    noted: Annotated[int, means("Since the node began.")]
    dropped: Annotated[int, means("Of them, that were too many to be kept.")]
    limit: Annotated[int, means("That are kept.")]


class CheckedLine(msgspec.Struct, frozen=True):
    """One line of a link's check."""

    what: Annotated[str, means("What was checked.", TableColumn("check"))]
    state: Annotated[str, means("`ok`, `warn`, `fail` or `unknown`.", TableColumn())]
    found: Annotated[str, means("What was found.", TableColumn())]
    right: Annotated[str, means("What would be right.", TableColumn())]


class LinkChecked(msgspec.Struct, frozen=True):
    """Whether a link would work, as one node sees it."""

    node: str
    queue: str
    url: str
    checks: list[CheckedLine]


# --- changes ---

_Workers = Annotated[int, msgspec.Meta(ge=1, le=SINK_WORKERS_MAX)]


class SuspendSinkRequest(AuditedRequest, frozen=True, kw_only=True):
    """Suspend or resume fetches of a queue, from a peer, or all."""

    queue: str | None = None
    peer: str | None = None
    node: OneNode | None = None


class SinkLimitsRequest(AuditedRequest, frozen=True, kw_only=True):
    """Limits of a node's sink, or the workers of one queue."""

    queue: Annotated[str, msgspec.Meta(description="The workers of this queue alone.")] | None = None
    node: OneNode | None = None
    workers: _Workers | None = None
    per_peer: Annotated[int, msgspec.Meta(ge=0, le=SINK_WORKERS_MAX)] | None = None
    bytes_per_second: Rate | None = None
    objects_per_second: Rate | None = None
    forget: Annotated[bool, msgspec.Meta(description="The named limits are the config's again.")] = False


class RemoveSinkPeerRequest(AuditedRequest, frozen=True, kw_only=True):
    """A queue of another cluster, as one of its nodes serves it."""

    queue: str | None = None
    url: str | None = None


class SinkPeerRequest(RemoveSinkPeerRequest, frozen=True, kw_only=True):
    """A queue of another cluster, and the credentials for it."""

    cluster: str | None = None
    token_file: Annotated[str, msgspec.Meta(description="An absolute path, the same on every node.")] | None = None


SUSPEND: Final = Act("suspend", SuspendSinkRequest, SinkOverview, "suspend the sink", of_all=True)
RESUME: Final = Act("resume", SuspendSinkRequest, SinkOverview, "resume the sink", of_all=True)
LIMIT: Final = Act("limits", SinkLimitsRequest, SinkOverview, "limit the sink", of_all=True)
CHECK: Final = Act("check", SinkPeerRequest, LinkChecked, "", of_all=True)
ADD_PEER: Final = Act("peers/add", SinkPeerRequest, SinkOverview, "add a sink's peer", of_all=True)
REMOVE_PEER: Final = Act("peers/remove", RemoveSinkPeerRequest, SinkOverview, "remove a sink's peer", of_all=True)

SINK: Final = DescribedNoun(
    "sink",
    path="/admin/sink",
    key="",
    row=SinkLink,
    listing=SinkOverview,
    one=None,
    views={"nodes": SinksOfNodes, "conflicts": ConflictList},
    view_parameters={"conflicts": {"count": Parameter("Most of them.", number=True)}},
    acts=(SUSPEND, RESUME, LIMIT, CHECK, ADD_PEER, REMOVE_PEER),
)
