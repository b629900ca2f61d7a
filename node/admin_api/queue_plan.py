"""The effect of an operator's change on a queue, in numbers, before it is made. Pure.

Computed from the listings of all nodes. A sum that needs the number of a silent node is unknown, never a guess.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

from isthmus.config.settings import QueueSettings
from isthmus.config.text import quantity
from isthmus.queues.filters import offers_more, parse_filter
from isthmus.queues.queue_documents import PUBLISHING

PRIORITIES: Final = ("real_time", "full_sync", "fold")

Listings = Mapping[str, Sequence[Mapping[str, Any]] | None]
"""Node -> its listing of queues; None: no answer."""


def plan_of(act: str, name: str, listings: Listings, **wish: Any) -> dict[str, Any]:
    """{"queue", "act", "owner", "waiting", "gaps", "silent", "effect", "outcome"}: the effect of `act` (clear, release,
    delist, suspend, set) on queue `name`.

    `waiting`: real_time, full_sync, fold; None: not known. `wish`: "start" of a release (0: the first change of all,
    None: now, else a wall-clock time), "what" and "node" of a suspension.
    """
    rows = {node: row for node, listed in listings.items() for row in listed or () if row["name"] == name}
    silent = sorted(node for node, listed in listings.items() if listed is None)
    waiting = {priority: _total([row["priorities"][priority] for row in rows.values()]) for priority in PRIORITIES}
    if silent:
        waiting = dict.fromkeys(PRIORITIES)
    owner = next((row["owner"]["cluster"] for row in rows.values() if row["owner"]), None)
    # Gaps of the lower priorities are in the metastore, so that each node counts them: the sum is an upper bound.
    gaps = None if silent else sum(row["gaps"] for row in rows.values())
    return {
        "queue": name,
        "act": act,
        "owner": owner,
        "waiting": waiting,
        "gaps": gaps,
        "silent": silent,
        "effect": _effect(act, waiting, gaps, owner, wish),
        "outcome": "planned",
    }


def offer_effect(
    settings: QueueSettings, wanted: QueueSettings, bucket_types: Collection[str], waiting: int | None, *, again: bool
) -> str:
    """The effect of `wanted` settings on a queue that has `settings`, in one sentence; "" when it offers the same
    changes."""
    if (settings.filter, settings.cascade) == (wanted.filter, wanted.cascade) and not again:
        return ""
    if again:
        return "offers all there is once more, from offset 0 on, as far as the filter lets it through"
    now, before = parse_filter(wanted.filter), parse_filter(settings.filter)
    foreign = wanted.cascade and not settings.cascade
    more = sorted(one for one in bucket_types if foreign or offers_more(now, before, one.encode()))
    kept = (
        f"goes on from its cursors; of {_counted(waiting, 'waiting change')} those go that it offers still, "
        "others never"
    )
    if not more:
        return f"{kept}; it offers nothing more than before, so no gap is made"
    return (
        f"{kept}; what it passed over until now of bucket types {', '.join(more)} becomes a gap of all below each "
        f"cursor, until a full-sync has proven it (--from 0 sends everything once more instead)"
    )


def _total(priorities: Sequence[Mapping[str, Any]]) -> int | None:
    """Changes that wait or are leased; leased changes come back when they are not acknowledged."""
    numbers = [one[word] for one in priorities for word in ("waiting", "in_flight")]
    return None if None in numbers else sum(numbers)


def _effect(act: str, waiting: Mapping[str, int | None], gaps: int | None, owner: str | None, wish: Any) -> str:
    """The effect in one sentence."""
    changes = _counted(waiting["real_time"], "change")
    changes_wait = f"{changes} that {'waits' if waiting['real_time'] == 1 else 'wait'}"
    full_sync, fold = (waiting[priority] for priority in PRIORITIES[1:])
    lower = f"{_counted(full_sync, 'reference')} of full-sync and {_number(fold)} of folds"
    to = "nobody yet" if owner is None else owner
    match act:
        case "clear":
            return (
                f"gives up {changes_wait} for {to}, {lower}: they are left out, as gaps, until a "
                f"full-sync has proven them"
            )
        case "delist":
            return (
                f"ends the queue on all nodes: {changes_wait} for {to}, {lower} and "
                f"{_counted(gaps, 'open gap')} go with it, and nothing remembers them"
            )
        case "set":
            told = offer_effect(
                wish["settings"], wish["wanted"], wish["bucket_types"], waiting["real_time"], again=wish["again"]
            )
            return told or "offers the same as before: its limits alone change, and no cursor moves"
        case "release":
            start = wish.get("start")
            told = (
                "begins with what comes now: what waits is left out, as a gap"
                if start is None
                else "begins with all there is"
                if start == 0
                else "begins at the time named: what was made before and waits is left out, as a gap"
            )
            waits = "waits" if waiting["real_time"] == 1 else "wait"
            return f"takes the queue, in which {changes} {waits}, from {to}; the next cluster that fetches {told}"
        case _:
            where = "on all nodes" if wish.get("node") is None else f"on node {wish['node']}"
            serving = "" if list(wish.get("what") or ()) == [PUBLISHING] else ", and gives nothing out"
            still = "still go" if not serving else "wait"
            return (
                f"makes no references {where}{serving}: what comes from now on is left out, as a gap, until a "
                f"full-sync has proven it; {changes_wait} {still}"
            )


def _counted(count: int | None, noun: str) -> str:
    return f"an unknown number of {noun}s" if count is None else quantity(count, noun)


def _number(count: int | None) -> str:
    return "an unknown number of" if count is None else f"{count:,}"
