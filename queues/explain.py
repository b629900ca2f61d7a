"""Explains why a key is, or is not, at the other cluster: its state in one queue of this node, and the next step.

Compares the key's newest change in the store with the queue's filter, origin rule, gaps, cursor and references in
memory. `node.services.explain_key` finds the key and asks all nodes.
"""

from __future__ import annotations

from typing import Any, Final

from isthmus.queues.gaps import QueueGap
from isthmus.queues.queue_documents import PLACED, REGISTERED
from isthmus.queues.queue_server import QueueServer
from isthmus.queues.window import Window
from isthmus.queues.window_rules import BULK_PRIORITIES
from isthmus.repl.model.keys import Key
from isthmus.repl.store.port import Change

BULK_NAMES: Final = dict(zip(BULK_PRIORITIES, ("full_sync", "fold"), strict=True))

NEXT: Final = {
    "waiting": "the owner's next fetch takes it, once what waits before it has gone",
    "not-read": "it is read from the change index when its turn comes",
    "in-flight": "the owner acknowledges it, or it is offered again when its lease is over",
    "acknowledged": "nothing: the owner has stored it, or something newer, or keeps it as a dead letter",
    "before": "nothing in real time; isthmus queue push sends it, and so does a full-sync where it is missing",
    "gap": "a full-sync finds it and sends it; isthmus gaps shows the gap",
    "filtered": "nothing in real time; isthmus queue push sends it all the same",
    "origin": "nothing: its own cluster offers it; cascade = true would offer it here, too",
    "from-owner": "nothing: the owner is where it was written",
    "unknown": "ask again in a moment: the queue takes its place",
    "not-offered": "isthmus ledger shows whether it is lost; a full-sync finds it",
}
"""State -> the next step."""


def explained(
    queue: QueueServer, partition: int, key: Key, change: Change | None, offered: Change | None
) -> dict[str, Any]:
    """State of a key in real time: {"queue", "owner", "state", "reason", "next", "ahead", "rule", "cursor"}. `change`
    is the key's row of the change index in `partition`, which this node leads, `offered` the same as the queue would
    read it now (`object_reader.backfilled`); None when it has none."""
    machine, owner = queue.machine, queue.stored.owner
    decision = queue.filter.decide(key.bucket_type, key.bucket)
    window = machine.windows.get(partition)
    state, reason, ahead = _state(queue, window, key, change, offered)
    return {
        "queue": queue.settings.name,
        "owner": owner.name if owner is not None and owner.cluster else None,
        "filter": str(queue.filter),
        "rule": decision.reason(),
        "cursor": None if window is None else window.advance(),
        "state": state,
        "reason": reason,
        "ahead": ahead,
        "next": _next(queue, state, key),
    }


def explained_bulk(queue: QueueServer, key: Key) -> list[dict[str, Any]]:
    """Bulk references of this node that name the key: {"queue", "priority", "state", "ahead", "reason", "next"}; the
    last two are empty where nothing delays them."""
    found = []
    for bulk in queue.machine.bulk_queues:
        state, ahead = bulk.locate(key)
        if state:
            name = BULK_NAMES[bulk.priority]
            to_do = _to_do(queue, key) if state == "waiting" else None
            why = {"reason": _delay(queue, key), "next": to_do or ""}
            found.append({"queue": queue.settings.name, "priority": name, "state": state, "ahead": ahead, **why})
    return found


def _state(
    queue: QueueServer, window: Window | None, key: Key, change: Change | None, offered: Change | None
) -> tuple[str, str, int | None]:
    if change is None or offered is None:
        return "no-change", "the key was never written here, or was reaped", None
    if window is None:
        return "unknown", "the queue has no cursor in this partition yet", None
    offset = change.offset
    where, ahead = window.locate(offset)
    if where in ("waiting", "in-flight"):
        return where, _delay(queue, key), ahead
    decision = queue.filter.decide(key.bucket_type, key.bucket)
    if not decision.included:
        return "filtered", decision.reason(), None
    gap = _gap_of(window, offset)
    if gap is not None:
        because = f": {gap.reason}" if gap.reason else ""
        return "gap", f"given up ({gap.what}{f' by {gap.by}' if gap.by else ''}{because})", None
    start = _start_reason(queue, window.partition, change) if where == "acknowledged" else ""
    # What an earlier window has passed it may have passed as another cluster's, and this one would read it as ours.
    before = where == "acknowledged" and offset < window.begin
    if not window.origins.eligible(change.origin if before and not start else offered.origin):
        if change.origin == window.origins.owner:
            return "from-owner", f"it was written in {_owner_name(queue)}, to which it is not sent back", None
        unsure = "; whether it was sent for the write of this cluster that it holds is not known any more"
        why = "it was written in another cluster, and the queue does not cascade"
        return "origin", why + unsure * (offered.origin != change.origin), None
    if start:
        return "before", start, None
    if where == "acknowledged":
        return where, f"acknowledged below offset {window.cursor}; the change is at {offset}", None
    if where == "not-read":
        return where, _delay(queue, key), None
    return "not-offered", "no reference stands for it in memory though the window has passed it", None


def _start_reason(queue: QueueServer, partition: int, change: Change) -> str:
    """Why a change below the cursor may never have been offered: the queue began above it; else ""."""
    command = queue.stored.command
    if command is None or command.what not in (REGISTERED, PLACED):
        return ""
    if change.offset < dict(command.positions).get(partition, 0):
        brought = "" if command.by_time else ": a seed brought what lies below"
        return f"older than where the queue was {command.what} by {command.by}{brought}"
    if not command.positions and change.time_ms < command.start_ms:
        return f"older than the position from which the queue begins, set by {command.by}"
    return ""


def _delay(queue: QueueServer, key: Key) -> str:
    """Why waiting references are not served; "" when they are."""
    owner = queue.stored.owner
    if queue.serving_suspension is not None:
        because = f": {queue.serving_suspension.reason}" if queue.serving_suspension.reason else ""
        return f"serving is suspended by {queue.serving_suspension.by}{because}"
    if owner is None or not owner.cluster:
        return "no sink cluster has fetched from the queue"
    if queue.machine.sink_types.lacks(key.bucket_type):
        return queue.lacking([key.bucket_type])
    if queue.is_silent:
        return f"no node of {owner.name} asks for changes here"
    return f"{owner.name} fetches more slowly than changes come" if queue.is_slow else ""


def _next(queue: QueueServer, state: str, key: Key) -> str:
    if state == "no-change":
        return "nothing"
    to_do = _to_do(queue, key) if state in ("waiting", "not-read") else None
    return to_do or NEXT[state]


def _to_do(queue: QueueServer, key: Key) -> str | None:
    """The action that an operator must take before waiting references are served; None for none."""
    if queue.serving_suspension is not None:
        return f"isthmus queue resume {queue.settings.name}"
    if queue.machine.sink_types.lacks(key.bucket_type) and queue.stored.owner is not None:
        name = key.bucket_type.decode(errors="backslashreplace")
        return f"isthmus bucket-type create {name} at cluster {queue.stored.owner.name}"
    owner = queue.stored.owner
    there = f"cluster {owner.name}" if owner is not None and owner.cluster else "the other cluster"
    if queue.is_silent:
        return f"a sink must fetch: isthmus sink list at {there} shows why none does"
    if queue.is_slow:
        return f"isthmus sink show at {there} shows what limits its sink"
    return None


def _gap_of(window: Window, offset: int) -> QueueGap | None:
    for gap in (*window.state.gaps, *window.unrecorded_gaps()):
        if gap.start <= offset < gap.end:
            return gap
    return None


def _owner_name(queue: QueueServer) -> str:
    owner = queue.stored.owner
    return "the owner" if owner is None else f"cluster {owner.name}"
