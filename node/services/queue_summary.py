"""Source queues of the whole cluster, joined from all nodes' listings. Pure.

A number that needs a node that does not answer, or a partition that nobody leads, is None, with the reason in
`unknown`; what the other nodes have of it is in `at_least`. `queues.status` makes the listings,
`node.services.queue_query` gathers them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from isthmus.config.text import quantity
from isthmus.node.services.replication_lag import joined_reasons, why_uncovered
from isthmus.repl.model.record import PartitionRecord

QueueListing = Mapping[str, Any]
QueueListings = Mapping[str, Sequence[QueueListing] | None]
"""Node -> its listing of queues; None: no answer."""

PRIORITIES: Final = ("real_time", "full_sync", "fold")

SHARED: Final = (
    "filter", "cascade", "overflow", "riak_fetch", "owner", "suspensions", "decree", "limits", "changed",
)  # fmt: skip
"""Facts that are the same on all nodes, unless a node has not read the newest change yet, or their files differ."""

MIXED: Final = "mixed"
"""Publishing or serving is in different states on different nodes."""


def queue_rows(answers: QueueListings, records: Mapping[int, PartitionRecord]) -> list[dict[str, Any]]:
    """A row for each queue that some node lists, by name."""
    names = sorted({row["name"] for listed in answers.values() for row in listed or ()})
    return [_row(name, answers, records) for name in names]


def _row(name: str, answers: QueueListings, records: Mapping[int, PartitionRecord]) -> dict[str, Any]:
    rows = {node: row for node, listed in answers.items() for row in listed or () if row["name"] == name}
    every = list(rows.values())
    silent = sorted(node for node, listed in answers.items() if listed is None)
    why = f"node {silent[0]} does not answer" if silent else ""
    gap = why or _uncounted(name, rows, answers, records)
    return {
        "name": name,
        **{fact: every[0][fact] for fact in SHARED},
        "differs": [fact for fact in SHARED if any(row[fact] != every[0][fact] for row in every)],
        "lacking": sorted(node for node, listed in answers.items() if listed is not None and node not in rows),
        "publishing": _common(row["publishing"] for row in every),
        "serving": _common(row["serving"] for row in every),
        "reason": joined_reasons(_by_reason(rows)),
        "unknown": gap,
        "priorities": {
            priority: _depth([row["priorities"][priority] for row in every], gap if priority == "real_time" else why)
            for priority in PRIORITIES
        },
        "oldest_age_ms": None if gap else max(_oldest_age_ms(row) or 0 for row in every),
        "consumers": _consumers(rows),
        "rates": _rates(every, why),
        "held_types": _earliest(row["held_types"] for row in every),
        "nodes": {node: rows.get(node) for node in answers},
    }


def _uncounted(
    name: str, rows: Mapping[str, QueueListing], answers: QueueListings, records: Mapping[int, PartitionRecord]
) -> str:
    """Why changes that wait in real time are not all counted, though every node answers; "" when they are."""
    why = why_uncovered(name, {node: [{"name": name}] if node in rows else [] for node in answers}, records)
    if why:
        return why
    for node, row in sorted(rows.items()):
        led = sum(1 for record in records.values() if record.leader is not None and record.leader.node == node)
        if row["partitions"] < led:
            missing = quantity(led - row["partitions"], "partition")
            return f"node {node} does not know its cursor in {missing} yet"
        if row["waiting"] is None:
            return f"node {node} could not count what waits there: it is too much, or changes too fast"
        if _oldest_age_ms(row) is None:
            return f"node {node} does not know since when its oldest change waits"
    return ""


def _depth(parts: Sequence[QueueListing], why: str) -> dict[str, int | None]:
    """The numbers of waiting and leased changes at one priority; None with a reason `why` they are not known."""
    known = sum(part["waiting"] or 0 for part in parts)
    return {
        "waiting": None if why else known,
        "in_flight": None if why else sum(part["in_flight"] for part in parts),
        "at_least": known,
    }


def _oldest_age_ms(row: QueueListing) -> int | None:
    """Age of the oldest change of a node that is not acknowledged, 0 where there is none; None: unknown."""
    if row["waiting"] == 0 and row["in_flight"] == 0:
        return 0
    age_ms: int | None = row["oldest_age_ms"]
    return age_ms


def _consumers(rows: Mapping[str, QueueListing]) -> list[dict[str, Any]]:
    """Nodes of the sink's cluster, the newest fetch first; `waits_at`: nodes at which a fetch of theirs waits now."""
    found: dict[str, dict[str, Any]] = {}
    for node, row in sorted(rows.items()):
        for one in row.get("consumers", ()):  # a node of an earlier version does not send them
            seen = found.setdefault(
                one["node"],
                {"node": one["node"], "last_fetch_ms": 0, "at": "", "last_given_ms": None, "given": 0, "in_flight": 0,
                 "waits_at": []},
            )  # fmt: skip
            if one["last_fetch_ms"] >= seen["last_fetch_ms"]:
                seen["last_fetch_ms"], seen["at"] = one["last_fetch_ms"], node
            given = [at for at in (seen["last_given_ms"], one["last_given_ms"]) if at is not None]
            seen["last_given_ms"] = max(given, default=None)
            seen["given"] += one["given"]
            seen["in_flight"] += one["in_flight"]
            seen["waits_at"] += [node] if one["waits"] else []
    return sorted(found.values(), key=lambda one: -int(one["last_fetch_ms"]))


def _rates(every: Sequence[QueueListing], why: str) -> dict[str, Any]:
    """The rates of all nodes together, the limits that bind on some of them, and the author of the limits."""
    throttles = [row["throttle"] for row in every]
    return {
        "set": throttles[0]["set"],
        "binding": sorted({one["binding"] for one in throttles if one["binding"]}),
        "achieved": {
            word: None if why else sum(one["achieved"][word] for one in throttles)
            for word in ("bytes_per_second", "objects_per_second")
        },
        "throttled_seconds": None if why else sum(one["throttled_seconds"] for one in throttles),
    }


def _by_reason(rows: Mapping[str, QueueListing]) -> dict[str, list[str]]:
    """Reason -> the nodes that give it."""
    found: dict[str, list[str]] = {}
    for node, row in rows.items():
        found.setdefault(row["reason"], []).append(node)
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
