"""Dry run of an operator's change to a queue: its effect in numbers. Pure.

Computed from the listings of all nodes. A sum that needs the number of a node that did not answer is unknown, never a
guess.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from isthmus.config.settings import QueueSettings
from isthmus.config.text import quantity
from isthmus.node.nouns.queue import PRIORITIES, QueuePlan, QueuePriority, WaitingByPriority
from isthmus.node.services.queue_summary import QueueListings, shares_by_node
from isthmus.queues.filters import includes_more, parse_filter
from isthmus.queues.queue_documents import PUBLISHING, SERVING


def plan_of(act: str, name: str, listings: QueueListings, **wish: Any) -> QueuePlan:
    """The effect of `act` (clear, release, delist, suspend, set) on queue `name`.

    `wish`: "start" of a release (0: the first change, None: now, else a wall-clock time), "what" and "node" of a
    suspension.
    """
    shares, untold = shares_by_node(name, listings)
    rows, silent = list(shares.values()), sorted(untold)
    waiting = {
        priority: None if silent else _total([getattr(row.priorities, priority) for row in rows])
        for priority in PRIORITIES
    }
    owner = next((row.owner.cluster for row in rows if row.owner), None)
    gaps = None if silent else sum(row.gaps for row in rows)
    effect = _effect(act, waiting, gaps, owner, wish)
    return QueuePlan(name, act, owner, WaitingByPriority(**waiting), gaps, silent, effect, "planned")


def offer_effect(
    settings: QueueSettings, wanted: QueueSettings, bucket_types: Collection[str], waiting: int | None, *, again: bool
) -> str:
    """The effect of changing `settings` to `wanted`, in one sentence; "" if the same changes are offered."""
    if (settings.filter, settings.cascade) == (wanted.filter, wanted.cascade) and not again:
        return ""
    if again:
        return "offers every change that its filter selects once more, from offset 0 on"
    now, before = parse_filter(wanted.filter), parse_filter(settings.filter)
    foreign = wanted.cascade and not settings.cascade
    more = sorted(one for one in bucket_types if foreign or includes_more(now, before, one.encode()))
    kept = (
        f"continues from its cursors; of {_counted(waiting, 'waiting change')} it sends only those that the new "
        "settings offer"
    )
    if not more:
        return f"{kept}; it offers nothing more than before, so no gap is recorded"
    return (
        f"{kept}; it may have skipped changes of bucket types {', '.join(more)}, so everything below each cursor "
        f"becomes a gap until a full-sync closes it (--from 0 sends everything once more instead)"
    )


def _total(priorities: Sequence[QueuePriority]) -> int | None:
    """Changes that wait or are leased; leased changes come back when they are not acknowledged."""
    numbers = [number for one in priorities for number in (one.waiting, one.in_flight)]
    known = [number for number in numbers if number is not None]
    return sum(known) if len(known) == len(numbers) else None


def _effect(act: str, waiting: Mapping[str, int | None], gaps: int | None, owner: str | None, wish: Any) -> str:
    """The effect in one sentence."""
    changes = _counted(waiting["real_time"], "change")
    changes_wait = f"{changes} that {'waits' if waiting['real_time'] == 1 else 'wait'}"
    full_sync, fold = (waiting[priority] for priority in PRIORITIES[1:])
    bulk = f"{_counted(full_sync, 'reference')} of full-sync and {_number(fold)} of folds"
    to = "no cluster yet" if owner is None else owner
    match act:
        case "clear":
            return f"discards {changes_wait} for {to}, {bulk}: they become gaps until a full-sync closes them"
        case "delist":
            return (
                f"removes the queue on all nodes: {changes_wait} for {to}, {bulk} and "
                f"{_counted(gaps, 'open gap')} are lost without a record"
            )
        case "set":
            effect = offer_effect(
                wish["settings"], wish["wanted"], wish["bucket_types"], waiting["real_time"], again=wish["again"]
            )
            return effect or "offers the same changes as before: only its limits change, and no cursor moves"
        case "release":
            start = wish.get("start")
            begins = (
                "begins with new changes: waiting changes become a gap"
                if start is None
                else "begins with the first change"
                if start == 0
                else "begins at the given time: earlier changes that wait become a gap"
            )
            waits = "waits" if waiting["real_time"] == 1 else "wait"
            return f"takes the queue, in which {changes} {waits}, from {to}; the next cluster that fetches {begins}"
        case _:
            where = "on all nodes" if wish.get("node") is None else f"on node {wish['node']}"
            what = set(wish["what"])
            if PUBLISHING not in what:
                return f"serves no changes {where}: they wait, also new ones, until serving is resumed; now {changes}"
            serving = ", and serves none" if SERVING in what else ""
            one = waiting["real_time"] == 1
            still = ("waits" if one else "wait") if serving else f"{'is' if one else 'are'} still served"
            return (
                f"publishes no changes {where}{serving}: changes from now on become a gap until a full-sync closes it; "
                f"{changes} from before {still}"
            )


def _counted(count: int | None, noun: str) -> str:
    return f"an unknown number of {noun}s" if count is None else quantity(count, noun)


def _number(count: int | None) -> str:
    return "an unknown number of" if count is None else f"{count:,}"
