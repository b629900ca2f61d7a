"""Source queues of the whole cluster, joined from all nodes' listings. Pure.

A number that needs a node that does not answer, or a partition that nobody leads, is None, with the reason in
`unknown`; what the other nodes have of it is in `at_least`. `node.services.queue_listing` makes the shares,
`node.services.queue_query` gathers them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from isthmus.config.text import quantity
from isthmus.node.nouns.queue import (
    ClusterConsumer,
    PriorityDepth,
    PriorityDepths,
    QueueConsumer,
    QueuePriority,
    QueueRates,
    QueueRow,
    QueueShare,
    QueueShares,
)
from isthmus.node.nouns.rows import AchievedRates
from isthmus.node.services.replication_lag import joined_reasons, why_uncovered
from isthmus.node.services.separate_rows import failed_in
from isthmus.repl.model.record import PartitionRecord

QueueListings = Mapping[str, QueueShares | None]
"""Node -> its shares of the queues; None: no answer."""

SHARED: Final = (
    "filter", "cascade", "overflow", "riak_fetch", "owner", "suspensions", "decree", "limits", "changed",
)  # fmt: skip
"""Facts that are the same on all nodes, unless a node has not read the newest change yet, or their files differ."""

MIXED: Final = "mixed"
"""Publishing or serving is in different states on different nodes."""


def queue_rows(answers: QueueListings, records: Mapping[int, PartitionRecord]) -> list[QueueRow]:
    """A row for each queue that some node lists, by name."""
    names = sorted({row.name for listed in answers.values() if listed is not None for row in listed.queues})
    return [_row(name, answers, records) for name in names]


def _row(name: str, answers: QueueListings, records: Mapping[int, PartitionRecord]) -> QueueRow:
    rows, untold = shares_by_node(name, answers)
    every = list(rows.values())
    why = next((reason for _, reason in sorted(untold.items())), "")
    gap = why or _uncounted(name, rows, answers, records)
    shared = {fact: getattr(every[0], fact) for fact in SHARED}
    return QueueRow(
        name=name,
        **shared,
        differs=[fact for fact in SHARED if any(getattr(row, fact) != shared[fact] for row in every)],
        lacking=sorted(answers.keys() - rows.keys() - untold.keys()),
        publishing=_common(row.publishing for row in every),
        serving=_common(row.serving for row in every),
        reason=joined_reasons(_by_reason(rows)),
        unknown=gap,
        priorities=PriorityDepths(
            _depth([row.priorities.real_time for row in every], gap),
            _depth([row.priorities.full_sync for row in every], why),
            _depth([row.priorities.fold for row in every], why),
        ),
        oldest_age_ms=None if gap else max(_oldest_age_ms(row) or 0 for row in every),
        consumers=_consumers(rows),
        rates=_rates(every, why),
        held_types=_earliest(row.held_types for row in every),
        nodes={node: rows.get(node) for node in answers},
    )


def shares_by_node(name: str, answers: QueueListings) -> tuple[dict[str, QueueShare], dict[str, str]]:
    """(node -> its share of a queue, node whose share is not known -> why)."""
    shares: dict[str, QueueShare] = {}
    untold: dict[str, str] = {}
    for node, listed in answers.items():
        if listed is None:
            untold[node] = f"node {node} does not answer"
        elif name in failed_in(listed.failed):
            untold[node] = f"node {node} cannot show its share: {failed_in(listed.failed)[name]}"
        else:
            shares.update((node, row) for row in listed.queues if row.name == name)
    return shares, untold


def _uncounted(
    name: str, rows: Mapping[str, QueueShare], answers: QueueListings, records: Mapping[int, PartitionRecord]
) -> str:
    """Why changes that wait in real time are not all counted, though every node answers; "" when they are."""
    why = why_uncovered(name, {node: [{"name": name}] if node in rows else [] for node in answers}, records)
    if why:
        return why
    for node, row in sorted(rows.items()):
        led = sum(1 for record in records.values() if record.leader is not None and record.leader.node == node)
        if row.partitions < led:
            missing = quantity(led - row.partitions, "partition")
            return f"node {node} does not know its cursor in {missing} yet"
        if row.waiting is None:
            return f"node {node} could not count what waits there: it is too much, or changes too fast"
        if _oldest_age_ms(row) is None:
            return f"node {node} does not know since when its oldest change waits"
    return ""


def _depth(parts: Sequence[QueuePriority], why: str) -> PriorityDepth:
    """The numbers of waiting and leased changes at one priority; None with a reason `why` they are not known."""
    known = sum(part.waiting or 0 for part in parts)
    return PriorityDepth(
        None if why else known,
        None if why else sum(part.in_flight for part in parts),
        known,
    )


def _oldest_age_ms(row: QueueShare) -> int | None:
    """Age of the oldest change of a node that is not acknowledged, 0 where there is none; None: unknown."""
    return 0 if row.waiting == 0 and row.in_flight == 0 else row.oldest_age_ms


def _consumers(rows: Mapping[str, QueueShare]) -> list[ClusterConsumer]:
    """Nodes of the sink's cluster, the newest fetch first."""
    fetches: dict[str, list[tuple[str, QueueConsumer]]] = {}
    for node, row in sorted(rows.items()):
        for one in row.consumers:
            fetches.setdefault(one.node, []).append((node, one))
    found = []
    for consumer, at in fetches.items():
        newest_node, newest = max(reversed(at), key=lambda each: each[1].last_fetch_ms)
        given_ms = [one.last_given_ms for _, one in at if one.last_given_ms is not None]
        found.append(
            ClusterConsumer(
                node=consumer,
                last_fetch_ms=newest.last_fetch_ms,
                at=newest_node,
                last_given_ms=max(given_ms, default=None),
                given=sum(one.given for _, one in at),
                in_flight=sum(one.in_flight for _, one in at),
                waits_at=[node for node, one in at if one.waits],
            )
        )
    return sorted(found, key=lambda one: -one.last_fetch_ms)


def _rates(every: Sequence[QueueShare], why: str) -> QueueRates:
    """The rates of all nodes together, the limits that bind on some of them, and the author of the limits."""
    throttles = [row.throttle for row in every]
    return QueueRates(
        set=throttles[0].set,
        binding=sorted({one.binding for one in throttles if one.binding}),
        achieved=AchievedRates(
            None if why else sum(one.achieved.bytes_per_second or 0.0 for one in throttles),
            None if why else sum(one.achieved.objects_per_second or 0.0 for one in throttles),
        ),
        throttled_seconds=None if why else sum(one.throttled_seconds for one in throttles),
    )


def _by_reason(rows: Mapping[str, QueueShare]) -> dict[str, list[str]]:
    """Reason -> the nodes that give it."""
    found: dict[str, list[str]] = {}
    for node, row in rows.items():
        found.setdefault(row.reason, []).append(node)
    return found


def _common(words: Iterable[str]) -> str:
    """The state of all nodes, or MIXED."""
    found = set(words)
    return found.pop() if len(found) == 1 else MIXED


def _earliest(times: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """The earliest time of each name."""
    found: dict[str, int] = {}
    for one in times:
        for name, at_ms in one.items():
            found[name] = min(at_ms, found.get(name, at_ms))
    return found
