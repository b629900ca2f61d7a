"""How `isthmus queue show` tells of one queue: facts in words, the three priorities as a table.

Pure: takes the document of /admin/queues and makes text of it. What is not there is said ("nobody", "none"); "unknown"
stands only for what could not be found out. What the words mean: docs/queues.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from config.texts import quantity
from node.cli.output import NOTHING, milliseconds, moment

PRIORITIES: Final = (("real_time", "real time"), ("full_sync", "full-sync"), ("fold", "fold"))
PRIORITY_COLUMNS: Final = (
    "priority", "waiting", "in flight", "queued", "acknowledged", "collapsed", "vanished", "cleared",
)  # fmt: skip

COUNTED: Final = ("served", "batches", "acknowledged", "redelivered", "collapsed", "vanished")


def queue_facts(queue: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """(name, value) of what there is to say of a queue on the node that answered."""
    limits = queue["limits"]
    at = f" (at {moment(queue['waiting_at_ms'])})" if queue["waiting"] is not None else ""
    return [
        ("name", queue["name"]),
        ("node", queue["node"]),
        ("reason", queue["reason"]),
        ("filter", queue["filter"]),
        ("cascade", queue["cascade"]),
        ("overflow", queue["overflow"]),
        ("riak fetch", queue.get("riak_fetch")),
        ("owner", _owner(queue["owner"])),
        ("publishing", queue["publishing"]),
        ("serving", queue["serving"]),
        *(("suspended", _suspension(one)) for one in queue["suspensions"]),
        ("last decree", _decree(queue["decree"])),
        (
            "limits",
            (
                f"{quantity(limits['queue'], 'reference')}, {_held(limits['objects'])}, "
                f"{limits['object_bytes']} bytes an object"
            ),
        ),
        ("throttle", _throttle(queue["throttle"])),
        ("properties differ at", [f"{node}: {_differing(queue, node)}" for node in queue["properties_differ"]]),
        ("partitions led here", queue["partitions"]),
        ("waiting", None if queue["waiting"] is None else f"{queue['waiting']}{at}"),
        ("oldest", milliseconds(queue["oldest_age_ms"]) if queue["oldest_age_ms"] is not None else NOTHING),
        ("in memory", f"{quantity(queue['references_in_memory'], 'reference')}, {_held(queue['objects_in_memory'])}"),
        ("since the node began", ", ".join(f"{queue[name]} {name}" for name in COUNTED)),
        ("acknowledgements", f"{queue['late_acknowledgements']} late, {queue['refused_acknowledgements']} refused"),
        ("gaps", queue["gaps"]),
    ]


def priority_rows(queue: Mapping[str, Any]) -> list[Sequence[Any]]:
    """A row a priority; of real time the counts of all that went stand among the facts."""
    rows: list[Sequence[Any]] = []
    for name, title in PRIORITIES:
        one = queue["priorities"][name]
        words = (column.replace(" ", "_") for column in PRIORITY_COLUMNS[1:])
        rows.append((title, *(one.get(word, "") for word in words)))
    return rows


def _differing(queue: Mapping[str, Any], node: str) -> str:
    """What differs at a sink node; a node of an older version names bucket types alone."""
    rows = queue.get("property_differences", {}).get(node)
    if rows is None:
        return ", ".join(queue["properties_differ"][node])
    return "; ".join(_difference(**row) for row in rows)


def _difference(bucket_type: str, bucket: str | None, properties: Sequence[str], **_later: Any) -> str:
    if not properties:
        return bucket_type
    place = f"bucket type {bucket_type}" if bucket is None else f"bucket {bucket_type}/{bucket}"
    return f"{place}: {', '.join(properties)}"


def _held(objects: int) -> str:
    return quantity(objects, "whole object")


def _owner(owner: Mapping[str, Any] | None) -> str:
    if owner is None:
        return "nobody: no sink cluster has fetched yet, or it was released"
    since, by = moment(owner["since_ms"]), owner["by"]
    return f"{owner['cluster']} ({owner['uuid']}) since {since}, by {by}, version {owner['version']}"


def _act(one: Mapping[str, Any]) -> str:
    """Who, when and why of an operator's act."""
    why = f": {one['reason']}" if one.get("reason") else ""
    return f"by {one['by']} at {moment(one['at_ms'])}{why}"


def _suspension(one: Mapping[str, Any]) -> str:
    where = "on all nodes" if one["node"] is None else f"on {one['node']}"
    return f"{one['what']} {where}, {_act(one)}"


def _decree(decree: Mapping[str, Any] | None) -> str:
    return "none" if decree is None else f"{decree['what']}, version {decree['version']}, {_act(decree)}"


def _throttle(throttle: Mapping[str, Any]) -> str:
    configured, achieved = throttle["configured"], throttle["achieved"]
    limits = [f"{configured[name]} {name.split('_')[0]}/s" for name in configured if configured[name] is not None]
    done = f"{achieved['bytes_per_second']:.0f} bytes/s and {achieved['objects_per_second']:.1f} objects/s achieved"
    if not limits:
        return f"none; {done}"
    binds = f"{throttle['binding']} bind" if throttle["binding"] else "nothing binds"
    set_by = "" if throttle.get("set") is None else f", set {_act(throttle['set'])}"
    held = f"{throttle['throttled_seconds']:.1f} s throttled"
    return f"{' and '.join(limits)}{set_by}; {binds}; {done}; {held}"
