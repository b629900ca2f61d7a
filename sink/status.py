"""Status of the sink: the state of each link for operators, samples for Prometheus."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple

from isthmus.config.text import as_it_answered, quantity
from isthmus.queues.window_rules import Item
from isthmus.queues.wire import SERVING
from isthmus.repl.histogram import Histogram
from isthmus.repl.model.requests import PushOutcome
from isthmus.repl.property_digests import differences_shown
from isthmus.repl.telemetry import Family, Sample
from isthmus.sink.discovery import PassedOver
from isthmus.sink.limits import SinkLimits
from isthmus.sink.peers import PeerEntry, QueueWorkers
from isthmus.sink.push import SourceCounters
from isthmus.sink.riak_peers import RiakPeerEntry
from isthmus.sink.scheduler import FetchScheduler, LinkName
from isthmus.sink.suspensions import SinkSuspension
from isthmus.sink.worker import Link

SHOWN_MAX: Final = 4
"""Most addresses that a sentence names."""

HELP: Final[Mapping[str, Family]] = {
    "isthmus_sink_changes_total": Family(
        "Changes fetched and pushed into this cluster, by outcome.", "changes", "sink", ("outcome", "peer", "queue")
    ),
    "isthmus_sink_fetches_total": Family("Fetches that the source answered.", "fetches", "sink", ("peer", "queue")),
    "isthmus_sink_batches_total": Family("Batches pushed.", "batches", "sink", ("peer", "queue")),
    "isthmus_sink_errors_total": Family(
        "Cycles that failed; nothing of them was acknowledged.", "cycles", "sink", ("peer", "queue")
    ),
    "isthmus_sink_lag_seconds": Family(
        "Lag of the last minute by quantile; absent when nothing was stored in it.",
        "seconds",
        "sink",
        ("peer", "quantile", "queue"),
    ),
    "isthmus_sink_delay_seconds": Family(
        "Delay of a link before its next fetch.", "seconds", "sink", ("peer", "queue")
    ),
    "isthmus_sink_peers_passed_over": Family(
        "Listed nodes of other clusters that this node does not fetch from.", "nodes", "sink"
    ),
    "isthmus_sink_suspended": Family(
        "1 while an operator has suspended the link.", "0 or 1", "sink", ("peer", "queue")
    ),
    "isthmus_sink_held_types": Family(
        "Bucket types that this cluster lacks, whose changes the source holds back.",
        "bucket types",
        "sink",
        ("peer", "queue"),
    ),
    "isthmus_sink_workers": Family("Workers that may fetch at once.", "workers", "sink"),
    "isthmus_sink_workers_busy": Family("Workers that fetch or push now.", "workers", "sink"),
    "isthmus_sink_throttled_seconds_total": Family(
        "Time in which no fetch could begin because of a rate limit.", "seconds", "sink"
    ),
    "isthmus_sink_limit_bytes_per_second": Family("Bytes a second that may be fetched; 0: no limit.", "bytes", "sink"),
    "isthmus_sink_limit_objects_per_second": Family(
        "Changes a second that may be fetched; 0: no limit.", "changes a second", "sink"
    ),
    "isthmus_sink_riak_waiting": Family(
        "Changes that wait in the queue of a Riak's node; absent while it is not known.",
        "changes",
        "sink",
        ("peer", "queue"),
    ),
    "isthmus_sink_riak_left_out_total": Family(
        "Changes of a Riak that are not taken: bucket types that its settings leave out, and reaps.",
        "changes",
        "sink",
        ("peer", "queue"),
    ),
    "isthmus_sink_riak_answers_lost_total": Family(
        "Answers of a Riak's queue that did not come whole; each may have had a change.",
        "answers",
        "sink",
        ("peer", "queue"),
    ),
    "isthmus_sink_riak_lost_total": Family(
        "Changes that were taken from a Riak's queue, and are neither stored nor dead letters.",
        "changes",
        "sink",
        ("peer", "queue"),
    ),
    "isthmus_sink_dead_letters": Family(
        "Changes that were refused for good and are kept for operators.", "changes", "sink"
    ),
    "isthmus_sink_dead_letters_given_up_total": Family(
        "Refused changes that were not kept: there were too many dead letters.", "changes", "sink"
    ),
}
"""Metric name -> its help."""


def state_of(
    link: Link, errors: int, suspended: SinkSuspension | None, ending: bool, now_ms: int, binding: str = ""
) -> tuple[str, str]:
    """(state, reason) of a link; operators' acts come before events. `binding`: the limit of the node's sink that
    delays fetches; "" for none."""
    if suspended is not None:
        return "suspended", by_whom(suspended)
    if ending:
        return "ending", "it is no longer a peer, and its cluster no longer lists it"
    if errors:
        return "failing", link.last_error or in_a_row(errors)
    silent_ms = link.unanswered_ms(now_ms)
    silent = f"no answer for {silent_ms / 1000:.0f} s to a fetch that goes on" if silent_ms else ""
    if not link.fetches:
        return "starting", silent or "no answer yet"
    if silent:
        return "running", silent
    if link.source_state != "serving":
        return "waiting", f"the source is {link.source_state}"
    if link.held:
        names = [name.decode("utf-8", "backslashreplace") for name in sorted(link.held)]
        since = f"since {(now_ms - min(link.held.values())) / 1000:.0f} s" if min(link.held.values()) <= now_ms else ""
        what = f"this cluster has no bucket type {', '.join(names)}: its changes wait at the source {since}".rstrip()
        return "holding", f"{what} (isthmus bucket-type create {names[0]})"
    if link.properties_differ:
        return "running", f"properties differ from the source's: {differences_shown(link.properties_differ)}"
    return "running", f"the node's limit of {binding} a second binds (isthmus sink show)" if binding else ""


def by_whom(suspension: SinkSuspension) -> str:
    """An operator's suspension of the link: author and reason."""
    return f"by {suspension.by}" + (f": {suspension.reason}" if suspension.reason else "")


def in_a_row(errors: int) -> str:
    """The reason for a failing link whose last fetch was answered, while its batch is not stored yet."""
    return f"{quantity(errors, 'error')} in a row"


Origin = Literal["config", "operator", "discovery"]


class LinkState(NamedTuple):
    """A link as operators see it."""

    link: Link
    state: str
    reason: str
    suspension: SinkSuspension | None
    errors_in_a_row: int
    delay_ms: int
    """Until its next fetch."""
    running: int
    """Fetches and pushes under way."""
    recent_lag: Histogram[int]
    """Of the last minute."""
    origin: Origin
    """Who named the peer."""
    entry: PeerEntry | RiakPeerEntry | None
    """What an operator set; None: nothing."""
    lost_lately: bool
    """Of a link to a Riak: whether a change or an answer was lost within a day."""
    seed_fault: str
    """Why the newest seed of its Riak does not go on by itself; empty: it does, or there is none."""


class SinkState(NamedTuple):
    """The sink of a node as operators see it, without its links."""

    state: str
    reason: str
    passed_over: Sequence[PassedOver]
    scheduler: FetchScheduler
    throttle: Mapping[str, Any]
    """See Throttle.as_dict."""
    limits_set: SinkLimits | None
    sources: Sequence[SourceCounters]
    letters: tuple[int, int] | None
    """Dead letters that are kept, and that were too many; None: their file cannot be read."""
    suspensions: Sequence[SinkSuspension]
    peers_set: Sequence[PeerEntry]
    workers_set: Sequence[QueueWorkers]
    unusable: Mapping[LinkName, str]
    """Peers that this node cannot fetch from, with the reason."""


def link_state(
    link: Link,
    scheduler: FetchScheduler,
    suspended: SinkSuspension | None,
    now_ms: int,
    *,
    origin: Origin,
    entry: PeerEntry | RiakPeerEntry | None,
    binding: str,
    seed_fault: str,
) -> LinkState:
    """The state of a link at `now_ms` (wall clock); `binding` as for `state_of`."""
    name = link.name
    errors = scheduler.errors(name)
    state, reason = state_of(link, errors, suspended, scheduler.ending(name), now_ms, binding)
    if state == "waiting" and link.last_answer_ms is not None:
        reason = as_it_answered(reason, now_ms - link.last_answer_ms)
    return LinkState(
        link,
        state,
        reason,
        suspended,
        errors,
        scheduler.delay_ms(name),
        scheduler.running(name),
        link.lag.recent(now_ms),
        origin,
        entry,
        link.riak is not None and link.riak.lost_lately(now_ms),
        seed_fault,
    )


def some(names: Sequence[str]) -> str:
    """The first names of a list, with an ellipsis if there are more."""
    return ", ".join(names[:SHOWN_MAX]) + (", ..." if len(names) > SHOWN_MAX else "")


def samples(link: Link, scheduler: FetchScheduler, suspended: bool, now_ms: int) -> list[Sample]:
    """One link's samples."""
    name = link.name
    labels = {"queue": name.queue, "peer": name.peer}
    recent = link.lag.recent(now_ms)
    result: list[Sample] = [
        ("isthmus_sink_changes_total", {**labels, "outcome": o.value}, link.outcomes[o]) for o in PushOutcome
    ]
    result += [
        ("isthmus_sink_fetches_total", labels, link.fetches),
        ("isthmus_sink_batches_total", labels, link.batches),
        ("isthmus_sink_errors_total", labels, link.errors),
        ("isthmus_sink_delay_seconds", labels, scheduler.delay_ms(name) / 1000),
        ("isthmus_sink_suspended", labels, suspended),
        ("isthmus_sink_held_types", labels, len(link.held or ())),
    ]
    if link.riak is not None:
        counts = link.riak
        result += [
            ("isthmus_sink_riak_left_out_total", labels, counts.left_out),
            ("isthmus_sink_riak_answers_lost_total", labels, counts.answers_lost),
            ("isthmus_sink_riak_lost_total", labels, counts.lost),
        ]
        result += [] if counts.waiting is None else [("isthmus_sink_riak_waiting", labels, counts.waiting)]
    for quantile in (0.5, 0.99):
        lag_ms = recent.quantile(quantile)
        if lag_ms is not None:
            result.append(("isthmus_sink_lag_seconds", {**labels, "quantile": str(quantile)}, lag_ms / 1000))
    return result


class FetchedLag(NamedTuple):
    """Changes of one bucket type that were fetched and are not stored yet, and the age of the oldest of them."""

    queue: str
    cluster: str
    bucket_type: bytes
    seconds: float = 0.0
    objects: int = 0
    size_bytes: int = 0

    def with_item(self, item: Item, now_ms: int) -> FetchedLag:
        """These and one more."""
        seconds = max(self.seconds, (now_ms - item[7]) / 1000)
        return self._replace(seconds=seconds, objects=self.objects + 1, size_bytes=self.size_bytes + len(item[8]))


def is_known(link: Link, scheduler: FetchScheduler, suspended: bool, now_ms: int) -> bool:
    """Whether this node would have what waits at the source: it answers, and serves without a limit. A Riak does not
    tell what waits."""
    if link.riak is not None:
        return False
    fails = suspended or scheduler.errors(link.name) > 0 or link.unanswered_ms(now_ms) > 0
    return not fails and link.fetches > 0 and link.source_state == SERVING


def fetched_lags(
    links: Iterable[tuple[Link, Sequence[Sequence[Item]], bool]], types: Iterable[bytes], now_ms: int
) -> list[FetchedLag]:
    """By queue, source cluster and bucket type (`types`, and those of the changes). `links`: each with its batches that
    are being stored, and `is_known`; a link that is not known leaves its queue out, and a bucket type that the source
    holds back is left out, too."""
    unknown: set[tuple[str, str]] = set()
    found: dict[tuple[str, str, bytes], FetchedLag] = {}
    for link, batches, known in links:
        queue, cluster = link.name.queue, link.source_cluster
        if not known:
            unknown.add((queue, cluster))
            continue
        for bucket_type in types:
            if bucket_type not in (link.held or ()):
                found.setdefault((queue, cluster, bucket_type), FetchedLag(queue, cluster, bucket_type))
        for batch in batches:
            for item in batch:
                at = (queue, cluster, item[3])
                found[at] = found.get(at, FetchedLag(*at)).with_item(item, now_ms)
    return [one for (queue, cluster, _), one in found.items() if not unknown & {(queue, cluster), (queue, "")}]


def overall(scheduler: FetchScheduler, throttle: Mapping[str, Any], letters: tuple[int, int] | None) -> list[Sample]:
    """The node's samples; `throttle` is `Throttle.as_dict`, `letters` the dead letters kept and not kept, None where
    that is not known."""
    configured = throttle["configured"]
    found: list[Sample] = [
        ("isthmus_sink_workers", {}, scheduler.workers),
        ("isthmus_sink_workers_busy", {}, scheduler.running_count()),
        ("isthmus_sink_throttled_seconds_total", {}, throttle["throttled_seconds"]),
        ("isthmus_sink_limit_bytes_per_second", {}, configured["bytes_per_second"] or 0),
        ("isthmus_sink_limit_objects_per_second", {}, configured["objects_per_second"] or 0),
    ]
    if letters is not None:
        names = ("isthmus_sink_dead_letters", "isthmus_sink_dead_letters_given_up_total")
        found += [(name, {}, count) for name, count in zip(names, letters, strict=True)]
    return found
