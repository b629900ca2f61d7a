"""The report of `isthmus status` from the answers of one node of each cluster. Pure.

The judgements are those of `isthmus.node.services.findings`, at the default limits of `isthmus check`. A value that no
answer has is None, and what is not known is named among the problems (the key `amiss`), never left out.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from isthmus.config.dynamic_options import BY_FILE
from isthmus.config.text import quantity
from isthmus.config.units import parse_duration
from isthmus.node.cli.output import Row, cell, object_in, objects_in
from isthmus.node.http.answer_texts import without_age
from isthmus.node.services.finding_codes import Code
from isthmus.node.services.findings import (
    DOCUMENTS,
    LAG,
    RANK,
    Fact,
    ProbeState,
    ProbeThresholds,
    findings_of,
    lag_facts,
)

PATHS: Final[Mapping[str, str]] = {
    **DOCUMENTS,
    "queues": "/admin/queues/nodes",
    "options": "/admin/options",
    "moves": "/admin/moves",
}
"""Name of an answer -> the request for it."""

CAUSES_MAX: Final = 4
"""Causes that a link names; each is a sentence, and `isthmus sink list` has them all."""


@dataclass(frozen=True, slots=True)
class StatusAnswers:
    """The answers about one cluster, or why there are none."""

    name: str
    """As the context or the node calls it; an address while neither is known."""
    answers: Mapping[str, Row] = field(default_factory=dict)
    """By the names of PATHS; what was not answered is absent."""
    errors: Mapping[str, str] = field(default_factory=dict)
    """Name -> why it was not answered."""


def report(clusters: Sequence[StatusAnswers]) -> dict[str, Any]:
    """The document that `isthmus status -o json` prints."""
    problems = [
        {"cluster": each.name, **_finding(fact)} for each in clusters for fact in findings_of(each.answers, each.errors)
    ]
    links = links_of(clusters)
    problems += [{"cluster": link["to"], **_finding(_unasked(link))} for link in links if link["from_unasked"]]
    worst = max((ProbeState[row["state"].upper()] for row in problems), key=RANK.index, default=ProbeState.OK)
    return {
        "state": worst.name.lower(),
        "clusters": [_cluster(each) for each in clusters],
        "links": links,
        "held": [row for each in clusters for row in held_in(each)],
        "amiss": sorted(problems, key=lambda row: -RANK.index(ProbeState[row["state"].upper()])),
    }


def _unasked(link: Row) -> Fact:
    words = f"queue {link['queue']}: {link['causes'][0]}"
    return Fact(ProbeState.UNKNOWN, words, Code.LAG, f"queue {link['queue']}", "ask that cluster, too: --admin URL")


def _finding(fact: Fact) -> dict[str, Any]:
    about = {"code": fact.code.value, "subject": fact.subject, "remedy": fact.remedy}
    return {"state": fact.state.name.lower(), "sentence": fact.sentence, **about}


# --- clusters ---


def _cluster(of: StatusAnswers) -> dict[str, Any]:
    """Nodes, partitions, disks and certificates of one cluster; None where they are not known."""
    answer = of.answers.get("cluster")
    if answer is None:
        return {"cluster": of.name, "answers": False, "reason": of.errors.get("cluster", "")}
    nodes = objects_in(answer, "nodes")
    counts = object_in(answer, "partitions")
    total, online = counts.get("total"), counts.get("online")
    health = object_in(of.answers.get("health", {}), "nodes")
    under, below = answer.get("under_replicated"), answer.get("below_min_isr")
    return {
        "cluster": of.name,
        "answers": True,
        "answered_by": answer.get("node"),
        "cluster_uuid": answer.get("cluster_uuid"),
        "state": answer.get("state"),
        "nodes": {
            "total": len(nodes),
            "live": sum(row.get("state") == "live" for row in nodes),
            "not_live": [str(row.get("name")) for row in nodes if row.get("state") != "live"],
            "silent": answer.get("silent"),
        },
        "partitions": {
            "total": total,
            "online": online,
            "below_full_isr": len(under) if isinstance(under, list) else None,
            "below_min_isr": len(below) if isinstance(below, list) else None,
            "offline": total - online if isinstance(total, int) and isinstance(online, int) else None,
        },
        "versions": sorted({str(one.get("version")) for one in health.values() if isinstance(one, dict)}),
        "disks": [
            {"node": node, **{key: (one or {}).get(key) for key in ("free_bytes", "total_bytes")}}
            for node, one in health.items()
        ],
        "certificates_expire_ms": min(_expiries(health), default=None),
        "dead_letters": _dead_letters(of),
        "gaps": len(objects_in(of.answers["gaps"], "gaps")) if "gaps" in of.answers else None,
    }


def _expiries(health: Mapping[str, Any]) -> list[int]:
    found = (object_in(one, "certificates") for one in health.values() if isinstance(one, dict))
    return [at_ms for each in found for at_ms in each.values() if isinstance(at_ms, int)]


def _dead_letters(of: StatusAnswers) -> int | None:
    """Dead letters of all nodes; None as soon as one node's are not known."""
    if "sinks" not in of.answers:
        return None
    rows = objects_in(of.answers["sinks"], "nodes")
    kept = [object_in(object_in(row, "sink"), "dead_letters").get("kept") for row in rows]
    known = [count for count in kept if isinstance(count, int)]
    return sum(known) if len(known) == len(kept) else None


# --- links ---

LAG_NUMBERS: Final = ("seconds", "at_least_s", "objects", "bytes", "proven_ms", "equal_ms")
"""Fields of a lag that a link has, and each of its bucket types."""


def links_of(clusters: Sequence[StatusAnswers]) -> list[dict[str, Any]]:
    """A row for each queue and the cluster that owns it: how far that one is behind, and why."""
    by_uuid = {each.answers["cluster"].get("cluster_uuid"): each for each in clusters if "cluster" in each.answers}
    mute = [each.name for each in clusters if "cluster" not in each.answers]
    found: list[dict[str, Any]] = []
    for source in clusters:
        queues: dict[str, list[Row]] = {}
        for row in objects_in(source.answers.get("lag", {}), "lag"):
            queues.setdefault(str(row.get("queue")), []).append(row)
        found += [_link(source, name, rows, by_uuid, mute) for name, rows in queues.items()]
    known = {(row["from_uuid"], row["queue"]) for row in found}
    for sink in clusters:
        found += _links_from_elsewhere(sink, known, {uuid for uuid in by_uuid if uuid}, mute)
    return found


def _unheard(name: str, mute: Sequence[str]) -> str:
    """Why nothing is known of a cluster. `mute`: the clusters that were asked and do not answer, as the context calls
    them; what such a cluster calls itself is not known."""
    if name in mute:
        return f"{name} does not answer"
    return f"{name} is not asked here" + (f", unless it is {' or '.join(mute)}, which does not answer" if mute else "")


def _link(
    source: StatusAnswers,
    queue: str,
    rows: Sequence[Row],
    by_uuid: Mapping[Any, StatusAnswers],
    mute: Sequence[str],
) -> dict[str, Any]:
    uuid, source_uuid = rows[0].get("uuid"), object_in(source.answers, "cluster").get("cluster_uuid")
    sink = by_uuid.get(uuid) if uuid else None
    causes = list(dict.fromkeys(str(row["reason"]) for row in rows if row.get("reason")))
    if sink is not None:
        causes = [*_causes_at(sink, queue, source_uuid), *causes]  # what is done there is why it is seen here
    elif uuid is not None and (len(by_uuid) > 1 or mute):
        causes.append(f"{_unheard(cell(rows[0].get('cluster')), mute)}: what its sinks do is not known")
    proven = [row.get("proven_ms") for row in rows]
    equal = [row.get("equal_ms") for row in rows if row.get("both_ways")]
    state = max((fact.state for fact in lag_facts(rows, ProbeThresholds(*map(parse_duration, LAG)))), key=RANK.index)
    return {
        "from": source.name,
        "from_uuid": source_uuid,
        "from_unasked": False,
        "to": rows[0].get("cluster") if sink is None else sink.name,
        "queue": queue,
        "state": state.name.lower(),
        "seconds": _most(rows, "seconds"),
        "at_least_s": _at_least(rows),
        "objects": _sum(rows, "objects"),
        "bytes": _sum(rows, "bytes"),
        "proven_ms": _earliest(proven),
        "proofs_unknown_at": sorted({str(node) for row in rows for node in row.get("proofs_unknown_at") or ()}),
        "both_ways": bool(equal),
        "equal_ms": _earliest(equal) if equal else None,
        "causes": causes[:CAUSES_MAX],
        "bucket_types": [{key: row.get(key) for key in ("bucket_type", *LAG_NUMBERS, "reason")} for row in rows],
    }


def _earliest(times: Sequence[int | None]) -> int | None:
    """The earliest of some times; None if one of them is never."""
    return None if None in times else min(at for at in times if at is not None)


def _most(rows: Sequence[Row], key: str) -> float | None:
    numbers = [row.get(key) for row in rows]
    known = [number for number in numbers if isinstance(number, int | float)]
    return max(known) if len(known) == len(numbers) else None


def _at_least(rows: Sequence[Row]) -> float | None:
    """The largest lag that is known, where one is not; None where nothing is late in what is known."""
    if all(row.get("seconds") is not None for row in rows):
        return None
    return max(float(row.get("seconds") or row.get("at_least_s") or 0) for row in rows) or None


def _sum(rows: Sequence[Row], key: str) -> int | None:
    numbers = [row.get(key) for row in rows]
    known = [number for number in numbers if isinstance(number, int)]
    return sum(known) if len(known) == len(numbers) else None


def _causes_at(sink: StatusAnswers, queue: str, source_uuid: Any) -> list[str]:
    """Why the nodes of a receiving cluster fetch less than there is: a sentence for each state and reason."""
    if "sinks" not in sink.answers:
        return [f"{sink.name}: what its sinks do is not known"]
    nodes: dict[str, list[str]] = {}
    for row in objects_in(sink.answers["sinks"], "nodes"):
        node = str(row.get("node"))
        if not isinstance(row.get("sink"), dict):
            nodes.setdefault("what its sink does is not known", []).append(node)
            continue
        for link in objects_in(row["sink"], "sinks"):
            ours = link.get("queue") == queue and link.get("source_uuid") in (source_uuid, None)
            if ours and (link.get("state") != "running" or link.get("reason")):
                why = f": {without_age(str(link['reason']))}" if link.get("reason") else ""
                nodes.setdefault(f"{cell(link.get('state'))}{why}", []).append(node)
    return [f"at {sink.name} ({_nodes(found)}): {why}" for why, found in nodes.items()]


def _nodes(names: Sequence[str]) -> str:
    unique = list(dict.fromkeys(names))
    return unique[0] if len(unique) == 1 else quantity(len(unique), "node")


def _links_from_elsewhere(
    sink: StatusAnswers, known: set[tuple[Any, str]], asked: set[Any], mute: Sequence[str]
) -> Iterable[dict[str, Any]]:
    """Links whose source is not asked, or does not answer: their lag is known there alone."""
    rows: dict[tuple[Any, str], list[Row]] = {}
    for node in objects_in(sink.answers.get("sinks", {}), "nodes"):
        for link in objects_in(object_in(node, "sink"), "sinks") if isinstance(node.get("sink"), dict) else ():
            source = link.get("source_uuid")
            if source and source not in asked and (source, str(link.get("queue"))) not in known:
                rows.setdefault((source, str(link.get("queue"))), []).append(link)
    for (source, queue), links in rows.items():
        if links[0].get("kind") == "riak":
            yield _link_of_riak(sink, source, queue, links)
            continue
        name = next((str(link["source_cluster"]) for link in links if link.get("source_cluster")), source)
        yield {
            "from": name,
            "from_uuid": source,
            "from_unasked": name not in mute,
            "to": sink.name,
            "queue": queue,
            "state": "unknown",
            **dict.fromkeys((*LAG_NUMBERS, "proofs_unknown_at")),
            "both_ways": False,
            "causes": [
                f"{_unheard(name, mute)}: it alone knows how far {sink.name} is behind",
                *_causes_at(sink, queue, source)[: CAUSES_MAX - 1],
            ],
            "bucket_types": [],
        }


def _link_of_riak(sink: StatusAnswers, source: str, queue: str, links: Sequence[Row]) -> dict[str, Any]:
    """The link to a Riak: what waits is what its nodes told; how old that is, no Riak tells."""
    by_node: dict[str, int | None] = {}
    for link in links:  # each node of this cluster asks each of the Riak
        waiting = object_in(link, "riak").get("waiting")
        peer = str(link.get("peer"))
        by_node[peer] = waiting if isinstance(waiting, int) else by_node.get(peer)
    known = [count for count in by_node.values() if count is not None]
    objects = sum(known) if len(known) == len(by_node) else None
    late = [link.get("recent_lag_ms_p99") for link in links]
    least = max((lag / 1000 for lag in late if isinstance(lag, int | float)), default=None)
    return {
        "from": str(links[0].get("source_cluster") or source),
        "from_uuid": source,
        "from_unasked": False,
        "to": sink.name,
        "queue": queue,
        "state": "ok" if objects is not None else "unknown",
        **dict.fromkeys((*LAG_NUMBERS, "proofs_unknown_at")),
        "seconds": 0.0 if objects == 0 else None,
        "at_least_s": least if objects else None,
        "objects": objects,
        "both_ways": False,
        "causes": _causes_at(sink, queue, source)[:CAUSES_MAX],
        "bucket_types": [],
    }


# --- set by operators ---


def held_in(of: StatusAnswers) -> list[dict[str, Any]]:
    """Queues, sinks and others that operators hold back in one cluster: {"cluster", "what", "by", "at_ms", "reason",
    "next"}, the last one the command that ends it."""
    found = [*_held_queues(of), *_held_sinks(of), *_held_checks(of), *_drained(of), *_options(of)]
    unique = {tuple(row.values()): row for row in found}
    return [{"cluster": of.name, **row} for row in unique.values()]


def _held(what: str, act: Row, *command: object) -> dict[str, Any]:
    by = {"by": act.get("by"), "at_ms": act.get("at_ms"), "reason": act.get("reason") or ""}
    return {"what": what, **by, "next": shlex.join(["isthmus", *map(str, command)])}


def _scoped(act: Row, *options: str) -> list[str]:
    """The options that name what an act holds for: `--node NAME` for "node", and so on."""
    return [word for each in options if act.get(each) for word in (f"--{each}", str(act[each]))]


def _where(act: Row) -> str:
    return "" if act.get("node") is None else f" on {act['node']}"


def _held_queues(of: StatusAnswers) -> Iterable[dict[str, Any]]:
    for node in objects_in(of.answers.get("queues", {}), "nodes"):
        for queue in objects_in(node, "queues"):
            name = f"queue {queue.get('name')}"
            for act in objects_in(queue, "suspensions"):
                resume = ["queue", "resume", queue.get("name"), *["--publishing"] * (act.get("what") == "publishing")]
                what = f"{name}: {cell(act.get('what'))} suspended{_where(act)}"
                yield _held(what, act, *resume, *_scoped(act, "node"))
            throttle = object_in(queue, "throttle")
            if isinstance(throttle.get("set"), dict):
                lift = ("queue", "throttle", queue.get("name"), "--default")
                yield _held(f"{name}: throttled to {_rates(throttle)}", throttle["set"], *lift)


def _rates(throttle: Row) -> str:
    limits = object_in(throttle, "configured")
    shown = [f"{limits[key]} {key.split('_')[0]}/s" for key in limits if limits[key]]
    return " and ".join(shown) or "no limit, whatever the file says"


def _held_sinks(of: StatusAnswers) -> Iterable[dict[str, Any]]:
    throttled: dict[str, tuple[dict[str, Any], list[str]]] = {}
    for node in objects_in(of.answers.get("sinks", {}), "nodes"):
        sink = node.get("sink")
        if not isinstance(sink, dict):
            continue
        for act in objects_in(sink, "suspensions"):
            scope = [f" of queue {act['queue']}"] * bool(act.get("queue")) + [f" at {act['peer']}"] * bool(
                act.get("peer")
            )
            resume = ("sink", "resume", *_scoped(act, "queue", "peer", "node"))
            yield _held(f"sink: fetches{''.join(scope)} suspended{_where(act)}", act, *resume)
        limits = object_in(object_in(sink, "throttle"), "configured")
        if isinstance(sink.get("limits_set"), dict) and any(limits.values()):
            row = _held(f"throttled to {_rates(sink['throttle'])}", sink["limits_set"], "sink", "throttle", "--default")
            throttled.setdefault(str(row), (row, []))[1].append(str(node.get("node")))
    for row, nodes in throttled.values():
        yield {**row, "what": f"sink of {_nodes(nodes)}: {row['what']}"}


def _held_checks(of: StatusAnswers) -> Iterable[dict[str, Any]]:
    for one in object_in(of.answers.get("fullsync", {}), "nodes").values():
        for peer in objects_in(one, "peers") if isinstance(one, dict) else ():
            if isinstance(peer.get("suspended"), dict):
                resume = ("fullsync", "resume", "--peer", peer.get("name"))
                yield _held(f"full-sync {peer.get('name')}: suspended", peer["suspended"], *resume)


def _drained(of: StatusAnswers) -> Iterable[dict[str, Any]]:
    for act in objects_in(of.answers.get("moves", {}), "drained"):
        yield _held(f"node {act.get('node')}: drained", act, "node", "drain", "--undo", act.get("node"))


def _options(of: StatusAnswers) -> Iterable[dict[str, Any]]:
    for row in objects_in(of.answers.get("options", {}), "options"):
        by_file = str(row.get("by")).startswith(BY_FILE)
        if row.get("set") is not None and str(row["set"]) != str(row.get("default")) and not by_file:
            scope = "" if row.get("bucket_type") is None else f" of {row['bucket_type']}"
            what = f"option {row.get('option')}{scope} = {row['set']} (default {cell(row.get('default'))})"
            unset = ("option", "unset", row.get("option"))
            scoped = () if row.get("bucket_type") is None else ("--bucket-type", row["bucket_type"])
            yield _held(what, row, *unset, *scoped)
