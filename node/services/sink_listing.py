"""The sink of this node, its conflicts and its dead letters, as operators see them."""

from __future__ import annotations

import base64
from collections import Counter
from urllib.parse import quote

import msgspec

from isthmus.node.nouns.dead_letter import DeadLetterRow
from isthmus.node.nouns.rows import DifferingProperties, SignedAct, ThrottleRow, dot_of
from isthmus.node.nouns.sink import (
    ConflictRow,
    DeadLetterCounts,
    RiakLinkCounts,
    SeenClock,
    SetPeer,
    SetQueueWorkers,
    SinkLink,
    SinkOverview,
    SinkSource,
    SinkSuspensionRow,
    SinkWorkers,
    UnusablePeer,
)
from isthmus.node.services.separate_rows import SeparateRows
from isthmus.repl.model.keys import Key
from isthmus.repl.model.requests import PushOutcome
from isthmus.repl.model.vclock import decode_clock
from isthmus.repl.property_digests import types_of
from isthmus.sink.conflicts import SiblingConflict
from isthmus.sink.dead_letters import DeadLetter
from isthmus.sink.discovery import PassedOver
from isthmus.sink.push import SourceCounters
from isthmus.sink.service import Sink
from isthmus.sink.status import LinkState
from isthmus.sink.suspensions import SinkSuspension


def overview_of(sink: Sink, node: str) -> SinkOverview:
    """The sink of `node`, this one."""
    found, rows = sink.state(), SeparateRows({})
    links = [
        row
        for name in sink.link_names()
        for row in rows.make(f"{name.queue} {name.peer}", lambda one: _link(sink.link_state(one)), name)
    ]
    scheduler, limits = found.scheduler, found.limits_set
    return SinkOverview(
        node=node,
        actor="sink",
        state=found.state,
        reason=found.reason,
        workers=SinkWorkers(
            scheduler.workers, scheduler.running_count(), scheduler.peer_limit(), dict(scheduler.queue_limits)
        ),
        throttle=msgspec.convert(found.throttle, ThrottleRow),
        limits_set=None if limits is None else SignedAct(limits.by, limits.at_ms, limits.reason),
        sources=[_source(one) for one in found.sources],
        dead_letters=DeadLetterCounts(*(found.letters or (None, None))),
        suspensions=[_suspension(one) for one in found.suspensions],
        peers_set=[msgspec.convert(one, SetPeer, from_attributes=True) for one in found.peers_set],
        queue_workers_set=[msgspec.convert(one, SetQueueWorkers, from_attributes=True) for one in found.workers_set],
        peers_unusable=[UnusablePeer(name.queue, name.peer, why) for name, why in found.unusable.items()],
        sinks=[*links, *map(_passed_over, found.passed_over)],
        failed=rows.shown(),
    )


def _suspension(one: SinkSuspension) -> SinkSuspensionRow:
    return msgspec.convert(one, SinkSuspensionRow, from_attributes=True)


def _source(one: SourceCounters) -> SinkSource:
    return SinkSource(
        source_cluster=one.cluster_name,
        source_uuid=one.cluster.hex(),
        queue=one.queue,
        fetched=one.fetched_count,
        fetched_bytes=one.fetched_bytes,
        **_by_outcome(one.outcomes),
        under_way=one.under_way,
        last_batch_ms=one.last_batch_ms,
    )


def _by_outcome(counts: Counter[PushOutcome]) -> dict[str, int]:
    return {outcome.value: counts[outcome] for outcome in PushOutcome}


def _link(found: LinkState) -> SinkLink:
    link, entry, recent = found.link, found.entry, found.recent_lag
    counts = link.riak
    return SinkLink(
        kind="cluster" if counts is None else "riak",
        riak=None
        if counts is None
        else RiakLinkCounts(
            counts.left_out, counts.answers_lost, counts.lost, counts.waiting, found.lost_lately, found.seed_fault
        ),
        queue=link.name.queue,
        peer=link.name.peer,
        source_cluster=link.source_cluster or None,
        source_uuid=None if link.cluster is None else link.cluster.hex(),
        from_=found.origin,
        set=None if entry is None else SignedAct(entry.by, entry.at_ms, entry.reason),
        since_ms=link.since_ms,
        state=found.state,
        properties_differ=types_of(link.properties_differ),
        property_differences=[msgspec.convert(one.row(), DifferingProperties) for one in link.properties_differ],
        held_types=[name.decode("utf-8", "backslashreplace") for name in sorted(link.held or ())],
        suspended=None if found.suspension is None else _suspension(found.suspension),
        delay_ms=found.delay_ms,
        errors_in_a_row=found.errors_in_a_row,
        running=found.running,
        **_by_outcome(link.outcomes),
        fetches=link.fetches,
        batches=link.batches,
        errors=link.errors,
        lag_ms_p50=link.lag.all.quantile(0.5),
        lag_ms_p99=link.lag.all.quantile(0.99),
        recent_lag_ms_p50=recent.quantile(0.5),
        recent_lag_ms_p99=recent.quantile(0.99),
        last_answer_ms=link.last_answer_ms,
        last_batch_ms=link.last_batch_ms,
        reason=found.reason,
        last_error=link.last_error or None,
        last_error_reason=link.last_error_reason or None,
        last_error_ms=link.last_error_ms,
    )


def _passed_over(passed: PassedOver) -> SinkLink:
    return SinkLink(
        kind="cluster",
        riak=None,
        queue=passed.name.queue,
        peer=passed.name.peer,
        source_cluster=passed.cluster_name,
        source_uuid=passed.cluster.hex(),
        from_="discovery",
        set=None,
        since_ms=None,
        state="passed-over",
        properties_differ=[],
        property_differences=[],
        held_types=[],
        suspended=None,
        delay_ms=None,
        errors_in_a_row=0,
        running=0,
        **_by_outcome(Counter()),
        fetches=0,
        batches=0,
        errors=0,
        lag_ms_p50=None,
        lag_ms_p99=None,
        recent_lag_ms_p50=None,
        recent_lag_ms_p99=None,
        last_answer_ms=None,
        last_batch_ms=None,
        reason=f"{passed.reason}; name it as a peer, or set sink.discover = false if that is meant",
        last_error=None,
        last_error_reason=None,
        last_error_ms=None,
    )


def letter_row(letter: DeadLetter) -> DeadLetterRow:
    """A dead letter. In `key` bytes that are no text are escaped; in `key_encoded` names are percent-encoded."""
    bucket_type, bucket, key = (quote(part, safe="") for part in letter.key)
    return DeadLetterRow(
        id=letter.id,
        at_ms=letter.at_ms,
        queue=letter.queue,
        peer=letter.peer,
        source_cluster=letter.source_name,
        key=_readable(letter.key),
        key_encoded=(bucket_type, bucket, key),
        size_bytes=letter.size,
        object_kept=letter.payload is not None,
        tries=letter.tries,
        reason=letter.reason,
        error=letter.error,
    )


def conflict_row(one: SiblingConflict) -> ConflictRow:
    """A conflict; in its key bytes that are no text are escaped."""
    return ConflictRow(
        one.at_ms,
        one.queue,
        one.source_name,
        one.source.hex(),
        one.peer,
        _readable(one.key),
        one.siblings,
        _clock(one.ours),
        _clock(one.theirs),
    )


def _readable(key: Key) -> tuple[str, str, str]:
    bucket_type, bucket, name = (part.decode("utf-8", "backslashreplace") for part in key)
    return bucket_type, bucket, name


def _clock(encoded: bytes) -> SeenClock:
    """A clock as X-Riak-Vclock has it, and the newest write of each actor in it."""
    dots = [dot_of(actor, counter) for actor, counter, _ in decode_clock(encoded)]
    return SeenClock(base64.b64encode(encoded).decode(), dots)
