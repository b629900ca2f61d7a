"""Status of a source queue: its reasons, its ledger, samples for Prometheus. Unknown values are None, never a guess."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict
from typing import Any, Final

from isthmus.config.text import clause
from isthmus.queues.queue_server import QueueServer
from isthmus.repl.model.ports import TimeSource
from isthmus.repl.property_digests import differences_shown
from isthmus.repl.telemetry import Family, Sample

HELP: Final[Mapping[str, Family]] = {
    "isthmus_queue_waiting_in_memory": Family(
        "Changes that wait to be fetched, as far as they are in memory.", "changes", "queues", ("queue",)
    ),
    "isthmus_queue_unread_partitions": Family(
        "Led partitions whose waiting changes are not all in memory.", "partitions", "queues", ("queue",)
    ),
    "isthmus_queue_in_flight": Family(
        "Changes given to a sink and not acknowledged yet.", "changes", "queues", ("queue",)
    ),
    "isthmus_queue_oldest_age_seconds": Family(
        "Age of the oldest change in memory that is not acknowledged; 0 when none.", "seconds", "queues", ("queue",)
    ),
    "isthmus_queue_last_fetch_age_seconds": Family(
        "Time since the cluster that owns the queue last asked for changes of the partitions led here; absent where "
        "there is no owner, or nothing is led.",
        "seconds",
        "queues",
        ("queue",),
    ),
    "isthmus_queue_objects_in_memory": Family("Whole objects that wait in memory.", "changes", "queues", ("queue",)),
    "isthmus_queue_references_in_memory": Family(
        "References in memory: waiting, in flight, or acknowledged out of order.", "changes", "queues", ("queue",)
    ),
    "isthmus_queue_suspended": Family("1 while an operator has suspended serving.", "0 or 1", "queues", ("queue",)),
    "isthmus_queue_served_total": Family("Changes given to sinks, repeats included.", "changes", "queues", ("queue",)),
    "isthmus_queue_acknowledged_total": Family("Changes acknowledged by the sink.", "changes", "queues", ("queue",)),
    "isthmus_queue_redelivered_total": Family(
        "Changes that came back (lease over, or failed at the sink) and wait again.", "changes", "queues", ("queue",)
    ),
    "isthmus_queue_batches_total": Family("Batches given to sinks.", "batches", "queues", ("queue",)),
    "isthmus_queue_collapsed_total": Family(
        "Changes for which a newer one of the same key went instead.", "changes", "queues", ("queue",)
    ),
    "isthmus_queue_vanished_total": Family(
        "Changes whose object was gone when it was to be served.", "changes", "queues", ("queue",)
    ),
    "isthmus_queue_late_acknowledgements_total": Family(
        "Acknowledgements of batches that were no longer under lease.", "changes", "queues", ("queue",)
    ),
    "isthmus_queue_publishing_suspended": Family(
        "1 while changes are not queued: suspended, or the source is off.", "0 or 1", "queues", ("queue",)
    ),
    "isthmus_queue_given_up_total": Family(
        "Real-time changes given up at a limit, by the sink, or while publishing was suspended; each lies in a gap.",
        "changes",
        "queues",
        ("queue",),
    ),
    "isthmus_queue_rows_passed_over_total": Family(
        "Rows of the change index that cannot be decoded and were not mended in time; each lies in a gap.",
        "rows",
        "queues",
        ("queue",),
    ),
    "isthmus_queue_ledger_off": Family(
        "Changes by which a ledger did not balance; anything but 0 is a bug.", "changes", "queues", ("queue",)
    ),
    "isthmus_queue_gaps": Family(
        "Gaps that no full-sync has closed: of partitions led here, and losses of this node's bulk references; on the "
        "first live node also losses of nodes that are gone. The sum over nodes counts each gap once.",
        "gaps",
        "queues",
        ("queue",),
    ),
    "isthmus_queue_throttled_seconds_total": Family(
        "How long a rate limit held serving back.", "seconds", "queues", ("queue",)
    ),
    "isthmus_queue_held_types": Family(
        "Bucket types whose changes are held back, since the sink's cluster lacks them.",
        "bucket types",
        "queues",
        ("queue",),
    ),
    "isthmus_queue_lower_waiting": Family(
        "References that wait at the full-sync and fold priorities.", "references", "queues", ("queue",)
    ),
    "isthmus_queue_refused_acknowledgements_total": Family(
        "Acknowledgements under an older owner version.", "changes", "queues", ("queue",)
    ),
}
"""Metric name -> its help."""

UNREADABLE_NAMED: Final = 3
"""Most damaged change rows that a reason names."""

NAMES_MAX: Final = 20
"""Most queues that an error message names: the line must stay readable."""


def unknown_queue(name: str, known: Iterable[str]) -> str:
    """The error message for a queue that does not exist."""
    return f"there is no queue named {name!r} here; there are: {', '.join(list(known)[:NAMES_MAX]) or 'none'}"


def gap_count(queue: QueueServer, node: str, live: Collection[str]) -> int:
    """Gaps that `node` counts so that the sum over the `live` nodes counts each gap once.

    Every node knows all loss records. A node counts its own, and the first live node those of nodes that are gone; a
    node that is not live counts none. Before a node has read which ones live (`live` is empty), it counts its own."""
    first = bool(live) and min(live) == node
    own = not live or node in live
    losses = sum((own and lost.node == node) or (first and lost.node not in live) for lost in queue.stored.lost)
    return sum(len(window.state.gaps) for window in queue.machine.windows.values()) + losses


def held_reasons(queue: QueueServer) -> dict[str, str]:
    """Bucket type that the sink's cluster lacks -> the sentence on it."""
    found = sorted(queue.machine.held_back_since())
    return {name.decode(errors="backslashreplace"): queue.lacking([name]) for name in found}


def reason(queue: QueueServer, now_ms: int, *, with_types: bool = True) -> str:
    """Why the queue does not serve everything; "" when it does. Without `with_types`, reasons that hold for some bucket
    types alone (`held_reasons`) are left out."""
    machine, owner, sentences = queue.machine, queue.stored.owner, []
    for what, one in (("serving", queue.serving_suspension), ("publishing", queue.publishing_suspension)):
        if one is not None:
            sentences.append(f"{what} suspended: {one.reason}" if one.reason else f"{what} suspended")
    if machine.publishing_suspended is not None and queue.publishing_suspension is None:
        sentences.append(machine.publishing_suspended.reason)
    if queue.stored.unread:
        sentences.append(f"cannot be read (metastore): {', '.join(dict.fromkeys(queue.stored.unread.values()))}")
    if owner is None or not (owner.cluster or owner.former):
        sentences += ["no sink cluster has fetched yet"] * (not queue.stored.owner_unread)
    elif not owner.cluster:
        sentences.append(f"released by {owner.by}")
    elif behind := sum(1 for w in machine.windows.values() if w.owner_version != machine.owner_version):
        sentences.append(f"{clause(behind, 'partition', 'waits', 'wait')} for the owner's cursor entry")
    elif machine.windows and queue.is_silent:
        sentences.append(f"no node of {owner.name} asks for changes here")
    elif queue.is_slow:
        sentences.append(f"{owner.name} fetches more slowly than changes come")
    if binding := queue.throttle.binding(now_ms):
        sentences.append(f"throttled: the limit of {binding} a second binds")
    if with_types and (held := machine.held_back_since()):
        sentences.append(queue.lacking(sorted(held)))
    sentences += [window.unreadable for window in machine.windows.values() if window.unreadable][:UNREADABLE_NAMED]
    if any(window.state.gaps for window in machine.windows.values()) or queue.stored.lost:
        sentences.append(f"gaps are open: isthmus gaps {queue.settings.name}")
    if queue.ledger_off:
        sentences.append(f"the ledger is off by {queue.ledger_off}: a bug")
    if queue.differing and owner is not None and owner.cluster:
        every = (one for found in queue.differing.values() for one in found)
        sentences.append(f"properties differ at {owner.name}: {differences_shown(every)}")
    return "; ".join(sentences)


def ledger(queue: QueueServer) -> dict[str, Any]:
    """The two sides of a queue's ledger on this node, in real-time changes since the node started. "closes" is None
    while some window does not know everything that waits ("partitions_not_known")."""
    machine = queue.machine
    total, balances = machine.ledger(), {p: w.ledger_error() for p, w in machine.windows.items()}
    unknown = sorted(p for p, balance in balances.items() if balance is None)
    off = sum(abs(balance) for balance in balances.values() if balance) + total.unbalanced
    names = ("applied", "merged", "superseded", "rejected")
    outcomes = dict(zip(names, machine.counts.outcomes, strict=True))
    return {
        "name": queue.settings.name,
        **asdict(total),
        "outcomes": outcomes,
        "outcomes_untold": total.acknowledged - sum(outcomes.values()),
        "waiting": sum(window.waiting_count for window in machine.windows.values()),
        "in_flight": machine.in_flight_count(),
        "closes": False if off else None if unknown else True,
        "off_by": off,
        "partitions": sorted(machine.windows),
        "partitions_not_known": unknown,
        "fetched": queue.stored.owner is not None or queue.stored.owner_unread,
        "reason": machine.publishing_suspended.reason if machine.publishing_suspended is not None else "",
    }


def samples_of(queue: QueueServer, node: str, time: TimeSource, live: Collection[str]) -> list[Sample]:
    """The queue's samples at `node`. Waiting changes are counted as far as they are in memory: a scrape reads no store.
    `live`: the live nodes, see `gap_count`."""
    machine, budget, counts = queue.machine, queue.machine.budget, queue.machine.counts
    ledger = machine.ledger()
    labels = {"queue": queue.settings.name}
    oldest, fetch_age_ms = machine.oldest_ms(), queue.fetch_age_ms(time.now_ms())
    numbers: list[tuple[str, float]] = [
        ("isthmus_queue_waiting_in_memory", machine.waiting_count()),
        ("isthmus_queue_unread_partitions", len(machine.incomplete_windows())),
        ("isthmus_queue_in_flight", machine.in_flight_count()),
        ("isthmus_queue_oldest_age_seconds", 0.0 if oldest is None else max(0, time.wall_ms() - oldest) / 1000),
        ("isthmus_queue_objects_in_memory", budget.objects),
        ("isthmus_queue_references_in_memory", budget.references),
        ("isthmus_queue_suspended", float(queue.serving_suspension is not None)),
        ("isthmus_queue_served_total", counts.served),
        ("isthmus_queue_acknowledged_total", counts.acknowledged),
        ("isthmus_queue_redelivered_total", counts.redelivered),
        ("isthmus_queue_batches_total", counts.batches),
        ("isthmus_queue_collapsed_total", ledger.collapsed + ledger.collapsed_unseen),
        ("isthmus_queue_vanished_total", ledger.vanished),
        ("isthmus_queue_late_acknowledgements_total", counts.late),
        ("isthmus_queue_refused_acknowledgements_total", counts.refused),
        ("isthmus_queue_publishing_suspended", float(machine.publishing_suspended is not None)),
        ("isthmus_queue_given_up_total", ledger.given_up),
        ("isthmus_queue_rows_passed_over_total", counts.undecoded),
        ("isthmus_queue_ledger_off", queue.ledger_off),
        ("isthmus_queue_gaps", gap_count(queue, node, live)),
        ("isthmus_queue_throttled_seconds_total", queue.throttle.throttled_ms / 1000),
        ("isthmus_queue_held_types", len(machine.held_back_since())),
        ("isthmus_queue_lower_waiting", sum(bulk.waiting_count for bulk in machine.bulk_queues)),
    ]
    if fetch_age_ms is not None:
        numbers.append(("isthmus_queue_last_fetch_age_seconds", fetch_age_ms / 1000))
    return [(name, labels, value) for name, value in numbers]
