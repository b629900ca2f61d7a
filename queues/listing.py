"""How a source queue is shown: to operators as a dict, to Prometheus as numbers.

Reads only. Unknown values are None, never a guess. The story goes on in `node` (HTTP admin, command line, metrics).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from queues.serving import ServedQueue
from repl.telemetry import Sample

HELP: Final[Mapping[str, str]] = {
    "isthmus_queue_waiting_in_memory": "Changes that wait to be fetched, as far as they are in memory.",
    "isthmus_queue_unread_partitions": "Led partitions whose waiting changes are not all in memory.",
    "isthmus_queue_in_flight": "Changes given to a sink and not acknowledged yet.",
    "isthmus_queue_oldest_age_seconds": "Age of the oldest change in memory that is not acknowledged; 0 when none.",
    "isthmus_queue_objects_in_memory": "Whole objects that wait in memory.",
    "isthmus_queue_references_in_memory": "Places of the window in memory: waiting, in flight, or done out of order.",
    "isthmus_queue_suspended": "1 while an operator has suspended serving.",
    "isthmus_queue_served_total": "Changes given to sinks, repeats included.",
    "isthmus_queue_acknowledged_total": "Changes acknowledged by the sink.",
    "isthmus_queue_redelivered_total": "Changes that came back (lease over, or failed at the sink) and wait again.",
    "isthmus_queue_batches_total": "Batches given to sinks.",
    "isthmus_queue_collapsed_total": "Changes for which a newer one of the same key went instead.",
    "isthmus_queue_vanished_total": "Changes whose object was gone when it was to be served.",
    "isthmus_queue_late_acknowledgements_total": "Acknowledgements of batches that were no longer under lease.",
    "isthmus_queue_refused_acknowledgements_total": "Acknowledgements under an older owner version.",
}
"""Name -> what it counts."""


async def listed(queue: ServedQueue, partitions_led: int, wall_ms: int) -> dict[str, Any]:
    """One queue: settings, owner, states, how much waits (None: unknown) and since when, counters since the node
    began."""
    machine, owner, suspension = queue.machine, queue.owner, queue.suspension
    waiting, oldest = await queue.count_waiting(partitions_led)
    counts, budget, ledger = machine.counts, machine.budget, machine.ledger()
    return {
        "name": queue.settings.name,
        "filter": str(queue.filter),
        "cascade": queue.settings.cascade,
        "owner": None if owner is None else {
            "cluster": owner.name, "uuid": owner.cluster.hex(), "version": owner.version, "since_ms": owner.since_ms,
            "by": owner.by,
        },
        "publishing": "running",
        "serving": "running" if suspension is None else "suspended",
        "suspended": None if suspension is None else suspension.shown(),
        "reason": _reason(queue),
        "partitions": len(machine.windows),
        "waiting": waiting,
        "in_flight": machine.in_flight_count(),
        "oldest_age_ms": None if oldest is None else max(0, wall_ms - oldest),
        "objects_in_memory": budget.objects,
        "references_in_memory": budget.references,
        "served": counts.served,
        "acknowledged": counts.acknowledged,
        "redelivered": counts.redelivered,
        "batches": counts.batches,
        "collapsed": ledger.collapsed + ledger.collapsed_unseen,
        "vanished": ledger.vanished,
        "late_acknowledgements": counts.late,
        "refused_acknowledgements": counts.refused,
    }  # fmt: skip


def _reason(queue: ServedQueue) -> str:
    machine = queue.machine
    if queue.suspension is not None:
        return f"suspended: {queue.suspension.reason}" if queue.suspension.reason else "suspended"
    if queue.owner is None:
        return "no sink cluster has fetched yet"
    behind = sum(1 for w in machine.windows.values() if w.owner_version != machine.owner_version)
    return f"{behind} partitions wait for the owner's cursor entry" if behind else ""


def samples_of(queue: ServedQueue, wall_ms: int) -> list[Sample]:
    """The queue's numbers; what waits is told as far as it is in memory, since a scrape reads no store."""
    machine, budget, counts = queue.machine, queue.machine.budget, queue.machine.counts
    ledger = machine.ledger()
    labels = {"queue": queue.settings.name}
    oldest = machine.oldest_ms()
    numbers: list[tuple[str, float]] = [
        ("isthmus_queue_waiting_in_memory", machine.waiting_count()),
        ("isthmus_queue_unread_partitions", len(machine.unknown())),
        ("isthmus_queue_in_flight", machine.in_flight_count()),
        ("isthmus_queue_oldest_age_seconds", 0.0 if oldest is None else max(0, wall_ms - oldest) / 1000),
        ("isthmus_queue_objects_in_memory", budget.objects),
        ("isthmus_queue_references_in_memory", budget.references),
        ("isthmus_queue_suspended", float(queue.suspension is not None)),
        ("isthmus_queue_served_total", counts.served),
        ("isthmus_queue_acknowledged_total", counts.acknowledged),
        ("isthmus_queue_redelivered_total", counts.redelivered),
        ("isthmus_queue_batches_total", counts.batches),
        ("isthmus_queue_collapsed_total", ledger.collapsed + ledger.collapsed_unseen),
        ("isthmus_queue_vanished_total", ledger.vanished),
        ("isthmus_queue_late_acknowledgements_total", counts.late),
        ("isthmus_queue_refused_acknowledgements_total", counts.refused),
    ]
    return [(name, labels, value) for name, value in numbers]
