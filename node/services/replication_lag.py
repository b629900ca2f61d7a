"""Replication lag and change ledgers of the cluster, joined from all nodes' answers. Pure.

Numbers of nodes that do not answer are unknown, and so is every sum that needs them; no number is older than the
request. `node.services.queue_query` and `node.services.sink_query` query the nodes; `node.admin_api.replication` serves
the result.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from isthmus.config.text import quantity
from isthmus.node.http.answer_texts import without_age
from isthmus.node.nouns.sink import SinkOverview
from isthmus.queues.lag import PartitionLag, QueueLag
from isthmus.repl.model.record import PartitionRecord

NodeAnswers = Mapping[str, Any]
"""Node -> its answer; None: no answer."""

SENT: Final = (
    "found", "eligible", "acknowledged", "collapsed", "collapsed_unseen", "vanished", "given_up", "handed_on",
    "waiting", "in_flight", "passed_over", "outcomes_untold", "off_by",
)  # fmt: skip
HELD_TOLD_S: Final = 5.0
"""Lag in seconds above which leased changes are named as its cause; below it they are normally in flight. A guess."""

REASONS_TOLD: Final = 4
"""Most reasons of one queue in a lag row: as many as fit into a line or two."""

UNKNOWN_WITHOUT_SINK: Final = ("collapsed", "collapsed_unseen", "vanished")
"""Numbers of a queue from which nobody has fetched yet: nothing reads its changes, so that nobody counted which were
overtaken by later ones."""

NO_SINK: Final = "no cluster has fetched from it yet: all changes that it offers wait, none was sent"

OUTCOMES: Final = ("applied", "merged", "superseded", "rejected")
RECEIVED: Final = ("fetched", "fetched_bytes", *OUTCOMES, "failed", "under_way")


class NodeLags(msgspec.Struct, frozen=True):
    """The lag of a node's queues, and the times up to which its full-sync has proven them."""

    queues: list[QueueLag]
    proven: list[dict[str, Any]]
    """See `FullSyncStatus.proven`."""


class LagRow(msgspec.Struct, frozen=True, kw_only=True):
    """How far the cluster that owns a queue is behind in a bucket type: a row of `/admin/lag`; null: not known."""

    queue: str
    cluster: str | None
    uuid: str | None
    reason: str
    bucket_type: str
    seconds: float | None
    """The worst partition's."""
    at_least_s: float | None = None
    """Where `seconds` is not known: the worst partition's of those that are known; null where nothing waits in these. A
    node of an earlier version reports none."""
    objects: int | None
    bytes: int | None
    in_flight: int | None
    partitions: int
    unknown_partitions: list[int]
    """Those that no node reports; they make the row unknown."""
    proven_ms: int | None
    both_ways: bool
    """The clusters are to be equal, and were found so at `equal_ms`."""
    equal_ms: int | None
    """None: never."""
    proofs_unknown_at: list[str]
    """Nodes that do not answer, whose checks may have proven more: with them no proof is not "never"."""
    ledger_off: int = 0
    """Changes of the queue, of all bucket types, that disappeared without being accounted for, at the nodes that
    answer."""


def lag_rows(answers: Mapping[str, NodeLags | None], records: Mapping[int, PartitionRecord]) -> list[LagRow]:
    """One row for each queue and bucket type. `answers`: of each node; None: no answer."""
    parts: dict[str, dict[int, PartitionLag]] = {}
    owners: dict[str, tuple[str | None, str | None]] = {}
    reasons: dict[str, dict[str, list[str]]] = {}
    of_types: dict[tuple[str, str], dict[str, list[str]]] = {}
    ledgers_off: Counter[str] = Counter()
    proven: dict[tuple[str, str], int] = {}
    equal: dict[tuple[str, str], int] = {}
    for node, answer in answers.items():
        for queue in () if answer is None else answer.queues:
            name = queue.queue
            cluster, uuid = owners.get(name, (None, None))
            owners[name] = queue.cluster or cluster, queue.uuid or uuid
            ledgers_off[name] += queue.ledger_off
            reasons.setdefault(name, {}).setdefault(queue.reason, []).append(node)
            for bucket_type, why in queue.held.items():
                of_types.setdefault((name, bucket_type), {}).setdefault(why, []).append(node)
            for part in queue.partitions:
                record = records.get(part.partition)
                led_here = record is not None and record.leader is not None and record.leader.node == node
                if led_here or part.partition not in parts.setdefault(name, {}):
                    parts.setdefault(name, {})[part.partition] = part
        for one in () if answer is None else answer.proven:
            at = (one["queue"], one["bucket_type"])
            proven[at] = max(proven.get(at, 0), one["at_ms"])
            if "equal_at_ms" in one:
                equal[at] = max(equal.get(at, 0), one["equal_at_ms"] or 0)
    types: dict[str, list[PartitionRecord]] = {}
    for record in records.values():
        types.setdefault(record.bucket_type, []).append(record)
    holders = {node for record in records.values() for node in record.replicas}
    silent = sorted({node for node in holders | answers.keys() if answers.get(node) is None})
    rows = []
    for name, (cluster, uuid) in sorted(owners.items()):
        for bucket_type, of_type in sorted(types.items()):
            at = (name, bucket_type)
            causes = [joined_reasons(reasons[name]), joined_reasons(of_types.get(at, {"": []}))]
            known = parts.get(name, {})
            found = [known[record.partition] for record in of_type if record.partition in known]
            missing = [record for record in of_type if record.partition not in known]
            whole = not missing
            seconds = [part.seconds for part in found]
            late = max((one for one in seconds if one is not None), default=0.0)
            is_known = whole and None not in seconds
            rows.append(
                LagRow(
                    queue=name,
                    cluster=cluster,
                    uuid=uuid,
                    reason=_missing(name, missing[0], answers)
                    if missing
                    else "; ".join(each for each in (*causes, _held(found)) if each),
                    bucket_type=bucket_type,
                    seconds=late if is_known else None,
                    at_least_s=None if is_known else late or None,
                    objects=_sum([part.objects for part in found], whole=whole),
                    bytes=_sum([part.bytes for part in found], whole=whole),
                    in_flight=_sum([part.in_flight for part in found], whole=whole),
                    partitions=len(of_type),
                    unknown_partitions=sorted(record.partition for record in missing),
                    proven_ms=proven.get(at),
                    both_ways=at in equal,
                    equal_ms=equal.get(at) or None,
                    proofs_unknown_at=silent,
                    ledger_off=ledgers_off[name],
                )
            )
    return rows


def _sum(numbers: Sequence[int | None], *, whole: bool) -> int | None:
    """The sum; None where one of them is not known, or they are not `whole`."""
    known = [number for number in numbers if number is not None]
    return sum(known) if whole and len(known) == len(numbers) else None


def joined_reasons(reasons: Mapping[str, Sequence[str]]) -> str:
    """Why a queue does not serve all of its changes, as text. `reasons`: reason -> nodes; if reasons differ, in more
    than the age of an answer, each is given with its nodes."""
    folded: dict[str, tuple[str, list[str]]] = {}
    for reason, nodes in reasons.items():
        folded.setdefault(without_age(reason), (reason, []))[1].extend(nodes)
    reasons = dict(folded.values())
    if len(reasons) == 1:
        return next(iter(reasons))
    sentences = [
        f"node{'s' if len(nodes) > 1 else ''} {', '.join(sorted(nodes))}: {reason}"
        for reason, nodes in sorted(reasons.items(), key=lambda one: min(one[1]))
        if reason
    ]
    more = [f"{len(sentences) - REASONS_TOLD} more on other nodes: isthmus queue list"]
    return "; ".join(sentences if len(sentences) <= REASONS_TOLD else sentences[:REASONS_TOLD] + more)


def _held(parts: Sequence[PartitionLag]) -> str:
    """The leased changes, if they are the cause of the worst partition's lag: fetched and not acknowledged."""
    known = [(part.seconds, part) for part in parts if part.seconds is not None]
    seconds, worst = max(known, key=lambda each: each[0], default=(0.0, None))
    if worst is None or not worst.in_flight or seconds < HELD_TOLD_S:
        return ""
    return (
        f"partition {worst.partition}: {worst.in_flight} fetched and not acknowledged, offered again when their "
        "lease is over"
    )


def _missing(queue: str, record: PartitionRecord, answers: Mapping[str, NodeLags | None]) -> str:
    """Why no node tells the lag of a partition."""
    if record.leader is None:
        return f"partition {record.partition} has no leader"
    node = record.leader.node
    answer = answers.get(node)
    if answer is not None and all(one.queue != queue for one in answer.queues):
        return (
            f"partition {record.partition}: node {node}, which leads it, has no queue {queue}: its changes are not "
            "offered (isthmus config check; isthmus queue list)"
        )
    why = "does not answer" if answer is None else "does not know its cursor yet"
    return f"partition {record.partition}: node {node} {why}"


def ledger_rows(
    ledgers: NodeAnswers,
    owners: Mapping[str, tuple[str | None, str | None]],
    records: Mapping[int, PartitionRecord],
) -> list[dict[str, Any]]:
    """The sent side: a row for each queue: {"direction": "sent", "queue", "cluster", "uuid", numbers, "closes",
    "state", "reason"}.

    `ledgers`: a list of `queues.status.ledger` of each node, or of a "name" and why it "failed". A partition that no
    ledger covers makes the row unknown. A queue from which no cluster has fetched yet is `no-sink`: it has nothing to
    account for.
    """
    rows = []
    for name in sorted({one["name"] for answer in ledgers.values() for one in answer or ()}):
        every = [(node, one) for node, answer in ledgers.items() for one in answer or () if one["name"] == name]
        found = [one for _, one in every if "failed" not in one]
        untold = {node: f"node {node} does not answer" for node, answer in ledgers.items() if answer is None}
        untold |= {
            node: f"node {node} cannot read its ledger: {one['failed']}" for node, one in every if "failed" in one
        }
        silent = [why for _, why in sorted(untold.items())]
        lost = sum(len(offsets) for one in found for offsets in one["lost"].values())
        open_ = sorted({p for one in found for p in one["partitions_not_known"]})
        row: dict[str, Any] = {"direction": "sent", "queue": name}
        row["cluster"], row["uuid"] = owners.get(name, (None, None))
        row |= {word: None if silent else sum(one[word] for one in found) for word in SENT}
        if open_:
            row["waiting"] = None  # the count covers only what memory holds
        row["outcomes"] = {w: None if silent else sum(one["outcomes"][w] for one in found) for w in OUTCOMES}
        row["lost"] = lost
        off = lost or any(one["closes"] is False for one in found)
        uncovered = "" if silent else why_uncovered(name, ledgers, records)
        no_sink = not any(one.get("fetched", True) for one in found)
        row["closes"] = False if off else None if silent or uncovered or open_ else True
        if off:
            row["state"] = "alarm"
            unaccounted = sum(one["off_by"] for one in found)
            row["reason"] = (
                f"{quantity(lost, 'change')} lost, {unaccounted} not accounted for: a bug; full-sync finds them"
            )
        elif silent or uncovered:
            row["state"] = "unknown"
            row["reason"] = silent[0] if silent else uncovered
        elif no_sink:
            backlog = [one.get("backlog") for one in found]
            row["waiting"] = sum(backlog) if None not in backlog else None
            row |= dict.fromkeys(UNKNOWN_WITHOUT_SINK)
            row["state"], row["reason"] = "no-sink", NO_SINK
        elif open_:
            row["state"], row["reason"] = "unknown", f"partition {open_[0]}: not all that waits is known"
        else:
            row["state"], row["reason"] = "closed", _rejected(row["outcomes"]["rejected"])
        rows.append(row)
    return rows


def why_uncovered(name: str, ledgers: NodeAnswers, records: Mapping[int, PartitionRecord]) -> str:
    """Why the answers about queue `name` do not cover every partition, though every node that was asked answers; ""
    when they do. `ledgers`: a list of each node, an item for each of its queues: its "name", and optionally the
    "partitions" whose cursor it knows."""
    having = {node: one for node, answer in ledgers.items() for one in answer or () if one["name"] == name}
    leaderless = sorted(record.partition for record in records.values() if record.leader is None)
    if leaderless:
        return f"partition {leaderless[0]} has no leader"
    for node in sorted({record.leader.node for record in records.values() if record.leader is not None}):
        led = sorted(r.partition for r in records.values() if r.leader is not None and r.leader.node == node)
        if node not in ledgers:
            return f"node {node} does not answer"
        if node not in having:
            return (
                f"node {node}, which leads {quantity(len(led), 'partition')}, has no queue {name}: its changes "
                f"are not accounted for (isthmus config check; isthmus queue list)"
            )
        known = having[node].get("partitions")
        missing = [] if known is None else sorted(set(led) - set(known))
        if missing:
            return f"partition {missing[0]}: node {node} does not know its cursor yet"
    return ""


def _rejected(count: int | None) -> str:
    """Changes that the sinks rejected for good: acknowledged here, missing there; "" for none."""
    return f"{count} rejected there for good: isthmus sink dead-letters list at its nodes" if count else ""


def received_rows(sinks: Mapping[str, SinkOverview | None]) -> list[dict[str, Any]]:
    """The received side: a row for each source cluster and queue: fetched = applied + merged + superseded + rejected +
    failed + under way. `sinks`: the answer of each node (`node.services.sink_query`)."""
    silent = sorted(node for node, answer in sinks.items() if answer is None)
    totals: dict[tuple[str, str], dict[str, Any]] = {}
    for answer in sinks.values():
        for one in () if answer is None else answer.sources:
            at = (one.source_uuid, one.queue)
            row = totals.setdefault(at, {"cluster": one.source_cluster, **dict.fromkeys(RECEIVED, 0)})
            for word in RECEIVED:
                row[word] += getattr(one, word)
    rows = []
    for (uuid, queue), row in sorted(totals.items()):
        off = row["under_way"] < 0
        state = "alarm" if off else "unknown" if silent else "closed"
        reason = "more outcomes than changes: a bug" if off else f"node {silent[0]} does not answer" if silent else ""
        closes = False if off else None if silent else True
        rows.append(
            {
                "direction": "received",
                "queue": queue,
                "uuid": uuid,
                **row,
                "closes": closes,
                "state": state,
                "reason": reason,
            }
        )
    return rows
