"""How a source queue is shown: to operators as a dict, to Prometheus as numbers.

Reads only. Unknown values are None, never a guess. The story goes on in `node` (HTTP admin, command line, metrics).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any, Final

from isthmus.config.text import clause
from isthmus.queues.backlog_count import Backlog
from isthmus.queues.queue_documents import owner_path
from isthmus.queues.queue_server import QueueServer, lacking
from isthmus.queues.wire import OFF
from isthmus.repl.model.ports import TimeSource
from isthmus.repl.property_digests import differences_shown, types_of
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
    "isthmus_queue_objects_in_memory": Family("Whole objects that wait in memory.", "changes", "queues", ("queue",)),
    "isthmus_queue_references_in_memory": Family(
        "Places of the window in memory, settled ones among them.", "changes", "queues", ("queue",)
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
        "Changes left out in real time; each lies in a gap.", "changes", "queues", ("queue",)
    ),
    "isthmus_queue_ledger_off": Family(
        "Changes by which a ledger did not close; anything but 0 is a bug.", "changes", "queues", ("queue",)
    ),
    "isthmus_queue_gaps": Family(
        "Gaps that no full-sync has closed, of partitions led here.", "gaps", "queues", ("queue",)
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
"""Name -> what it counts."""


SILENT_MS: Final = 20_000
"""Without a fetch for so long, and none that waits here, a sink is told to ask no more: beyond the usual time of a poll
and the longest delay after errors (5 s and 8 s by default)."""

UNREADABLE_NAMED: Final = 3
"""Damaged change rows that a reason names."""

NAMES_TOLD: Final = 20
"""Queues that a refusal names: a line that can be read."""


def none_such(name: str, known: Iterable[str]) -> str:
    """What is said of a queue that is not there."""
    return f"there is no queue named {name!r} here; there are: {', '.join(list(known)[:NAMES_TOLD]) or 'none'}"


def listed(queue: QueueServer, node: str, now: Backlog, time: TimeSource, held: str = "") -> dict[str, Any]:
    """One queue: settings, owner, states, how much waits (None: unknown) as of when, and since when, counters since the
    node began. `held`: why no queue of the node gives anything out, "" when they do."""
    machine, owner, suspension, word = queue.machine, queue.word.owner, queue.suspension, queue.word
    waiting, oldest = now.changes, now.oldest_ms
    wall_ms = time.wall_ms()
    counts, budget, ledger = machine.counts, machine.budget, machine.ledger()
    return {
        "name": queue.settings.name,
        "node": node,
        "filter": str(queue.filter),
        "cascade": queue.settings.cascade,
        "overflow": queue.settings.overflow,
        "riak_fetch": queue.settings.riak_fetch,
        "owner": None if owner is None or not owner.cluster else {
            "cluster": owner.name, "uuid": owner.cluster.hex(), "version": owner.version, "since_ms": owner.since_ms,
            "by": owner.by,
        },
        "publishing": _running(queue, machine.publishing_suspended is None),
        "serving": _running(queue, suspension is None and not held),
        "suspended": None if suspension is None else suspension.shown(),
        "suspensions": [one.shown() for one in word.suspensions],
        "decree": None if word.decree is None else word.decree.shown(),
        "limits": {"queue": budget.reference_limit, "objects": budget.object_limit,
                   "object_bytes": budget.object_size_limit_bytes},
        "priorities": {
            "real_time": {"waiting": waiting, "in_flight": machine.in_flight_count()},
            **{name: {"waiting": lower.waiting_count, "in_flight": lower.in_flight_count, **asdict(lower.counts)}
               for name, lower in zip(("full_sync", "fold"), machine.bulk_queues, strict=True)},
        },
        "throttle": {**queue.throttle.shown(time.now_ms()),
                     "set": None if word.rates is None else word.rates.act._asdict()},
        "changed": _changed(queue),
        "gaps": sum(len(window.state.gaps) for window in machine.windows.values()) + len(word.lost),
        "properties_differ": {node: types_of(found) for node, found in queue.differing.items()},
        "property_differences": {node: [one.row() for one in found] for node, found in queue.differing.items()},
        "held_types": {
            name.decode(errors="backslashreplace"): at for name, at in sorted(machine.held_back_since().items())
        },
        "reason": held or reason(queue, time.now_ms()),
        "partitions": len(machine.windows),
        "waiting": waiting,
        "waiting_at_ms": now.at_ms,
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


def _changed(queue: QueueServer) -> dict[str, Any]:
    """What operators have set beside the queue's definition or file, {} for nothing: `offer` (filter, cascade) and
    `limits`, each with who, when and why."""
    decree, limits = queue.word.decree, queue.word.limits
    found: dict[str, Any] = {}
    if decree is not None and (change := decree.change) is not None:
        found["offer"] = {"filter": change.filter, "cascade": change.cascade, "was": change.was}
        found["offer"] |= {"by": change.by, "at_ms": change.at_ms, "reason": change.reason}
    if limits is not None:
        found["limits"] = {**limits.values, "by": limits.by, "at_ms": limits.at_ms, "reason": limits.reason}
    return found


def _running(queue: QueueServer, well: bool) -> str:
    """What publishing, or serving, does: off where the whole source of the node is."""
    return "off" if queue.state == OFF else "running" if well else "suspended"


def reason(queue: QueueServer, now_ms: int) -> str:
    """Why the queue does not give out all it could; "" when it does."""
    machine, owner, told = queue.machine, queue.word.owner, []
    for what, one in (("serving", queue.suspension), ("publishing", queue.publishing_suspension)):
        if one is not None:
            told.append(f"{what} suspended: {one.reason}" if one.reason else f"{what} suspended")
    if machine.publishing_suspended is not None and queue.publishing_suspension is None:
        told.append(machine.publishing_suspended.reason)
    if queue.word.unread:
        told.append(f"cannot be read (metastore): {', '.join(queue.word.unread)}")
    if owner is None:
        told += ["no sink cluster has fetched yet"] * (owner_path(queue.settings.name) not in queue.word.unread)
    elif not owner.cluster:
        told.append(f"released by {owner.by}")
    elif behind := sum(1 for w in machine.windows.values() if w.owner_version != machine.owner_version):
        told.append(f"{clause(behind, 'partition', 'waits', 'wait')} for the owner's cursor entry")
    elif machine.windows and not queue.waiters and machine.not_fetched_for(SILENT_MS, now_ms):
        told.append(f"no node of {owner.name} asks for changes here")
    if binding := queue.throttle.binding(now_ms):
        told.append(f"throttled: the limit of {binding} a second binds")
    if held := machine.held_back_since():
        told.append(lacking(sorted(held), queue.word))
    told += [window.unreadable for window in machine.windows.values() if window.unreadable][:UNREADABLE_NAMED]
    if any(window.state.gaps for window in machine.windows.values()) or queue.word.lost:
        told.append(f"gaps are open: isthmus gaps {queue.settings.name}")
    if queue.ledger_off:
        told.append(f"the ledger is off by {queue.ledger_off}: a bug")
    if queue.differing and owner is not None and owner.cluster:
        every = (one for found in queue.differing.values() for one in found)
        told.append(f"properties differ at {owner.name}: {differences_shown(every)}")
    return "; ".join(told)


def ledger(queue: QueueServer) -> dict[str, Any]:
    """The two sides of a queue's ledger on this node, in changes in real time since the node began: what was eligible,
    and what became of it. `closes` is None while not all that waits is known (then `open` says where)."""
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
        "fetched": queue.word.owner is not None or owner_path(queue.settings.name) in queue.word.unread,
        "reason": machine.publishing_suspended.reason if machine.publishing_suspended is not None else "",
    }


def samples_of(queue: QueueServer, wall_ms: int) -> list[Sample]:
    """The queue's numbers; what waits is told as far as it is in memory, since a scrape reads no store."""
    machine, budget, counts = queue.machine, queue.machine.budget, queue.machine.counts
    ledger = machine.ledger()
    labels = {"queue": queue.settings.name}
    oldest = machine.oldest_ms()
    numbers: list[tuple[str, float]] = [
        ("isthmus_queue_waiting_in_memory", machine.waiting_count()),
        ("isthmus_queue_unread_partitions", len(machine.incomplete_windows())),
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
        ("isthmus_queue_publishing_suspended", float(machine.publishing_suspended is not None)),
        ("isthmus_queue_given_up_total", ledger.given_up),
        ("isthmus_queue_ledger_off", ledger.unbalanced),
        ("isthmus_queue_gaps", sum(len(w.state.gaps) for w in machine.windows.values()) + len(queue.word.lost)),
        ("isthmus_queue_throttled_seconds_total", queue.throttle.throttled_ms / 1000),
        ("isthmus_queue_held_types", len(machine.held_back_since())),
        ("isthmus_queue_lower_waiting", sum(lower.waiting_count for lower in machine.bulk_queues)),
    ]
    return [(name, labels, value) for name, value in numbers]
