"""What the probes of `isthmus check` make of a node's listings: each fact with the state that a monitor gives it. Pure.

Reads the answers that `isthmus lag`, `cluster status`, `fullsync status` and `gaps` show, and adds nothing to them.
What such an answer does not tell is unknown and is never taken for right. `node.cli.check` asks, and says it in a line.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum
from typing import Any, Final, NamedTuple

from node.cli.output import cell, milliseconds

NAMED_MAX: Final = 8
"""Partitions that a sentence names; `isthmus partition list` has all."""


class State(IntEnum):
    """What a probe found; the value is its exit code, as plugins of monitoring systems have them."""

    OK = 0
    WARNING = 1
    CRITICAL = 2
    UNKNOWN = 3


RANK: Final = (State.OK, State.UNKNOWN, State.WARNING, State.CRITICAL)
"""From the least to the worst: what is known to be wrong counts more than what is not known."""


class Fact(NamedTuple):
    """One thing that a probe found, as a sentence."""

    state: State
    sentence: str


class Limits(NamedTuple):
    """A value above `warning` is a warning, above `critical` critical. Milliseconds or counts."""

    warning: int
    critical: int

    def state(self, value: float) -> State:
        """What a value is."""
        return State.CRITICAL if value > self.critical else State.WARNING if value > self.warning else State.OK


def worst(facts: Iterable[Fact]) -> State:
    """The state of all together; of nothing at all it is unknown."""
    return max((fact.state for fact in facts), key=RANK.index, default=State.UNKNOWN)


def doubts(cluster: Mapping[str, Any]) -> list[Fact]:
    """Why what the node says of its cluster may be old; nothing when it sees the cluster as it is."""
    node, metastore = cell(cluster.get("node")), cluster.get("metastore")
    if metastore != "connected":
        why = f"node {node}: its session with the metastore is {cell(metastore)}: what it shows may be old"
    elif cluster.get("read_at_ms") is None:
        why = f"node {node} has not read the metastore yet"
    else:
        return []
    return [Fact(State.UNKNOWN, why)]


def lag_facts(rows: Sequence[Mapping[str, Any]], limits: Limits) -> list[Fact]:
    """A fact for each queue and bucket type: rows of `/admin/lag`."""
    facts = []
    for row in rows:
        where = f"queue {cell(row.get('queue'))}, bucket type {cell(row.get('bucket_type'))}"
        because = f" ({row['reason']})" if row.get("reason") else ""
        seconds = _number(row.get("seconds"))
        if seconds is None:
            facts.append(Fact(State.UNKNOWN, f"{where}: how far it is behind is not known{because}"))
        else:
            waiting = f", keys that wait: {cell(row.get('objects'))}"
            sentence = f"{where}: {milliseconds(1000 * seconds)} behind{waiting}{because}"
            facts.append(Fact(limits.state(1000 * seconds), sentence))
    return facts


def isr_facts(cluster: Mapping[str, Any], limits: Limits) -> list[Fact]:
    """Replicas in sync and partitions that take writes: the answer of `/admin/cluster`. `limits`: partitions that lack
    replicas in sync are a warning above the one, partitions without leader or below min-ISR critical above the other.
    """
    counts = cluster.get("partitions")
    found = counts if isinstance(counts, dict) else {}
    total, online = _number(found.get("total")), _number(found.get("online"))
    under, below = cluster.get("under_replicated"), cluster.get("below_min_isr")
    if total is None or online is None or not isinstance(under, list) or not isinstance(below, list):
        return [Fact(State.UNKNOWN, f"node {cell(cluster.get('node'))} does not tell which partitions are in sync")]
    facts = []
    waiting = cluster.get("waiting")
    if waiting:
        facts.append(Fact(State.CRITICAL, f"bucket type default: {waiting}"))
    elif not total:
        facts.append(Fact(State.UNKNOWN, "no partition is known"))
    if online < total:
        words = {key.replace("_", "-"): n for key, n in found.items() if key not in ("total", "online") and n}
        told = ", ".join(f"{n} {word}" for word, n in words.items())
        stopped = State.CRITICAL if total - online > limits.critical else State.WARNING
        facts.append(Fact(stopped, f"{total - online} of {total} partitions are not online: {told}"))
    if below:
        stopped = State.CRITICAL if len(below) > limits.critical else State.WARNING
        facts.append(Fact(stopped, f"too few replicas are in sync to take writes (min-ISR) in {_some(below)}"))
    lacking = State.WARNING if not under or len(under) > limits.warning else State.OK
    if under:
        more = ", ..." if len(under) > NAMED_MAX else ""
        named = ", ".join(map(str, under[:NAMED_MAX]))
        facts.append(Fact(lacking, f"{len(under)} of {total} partitions lack replicas in sync: {named}{more}"))
    facts += _absent(cluster, lacking)
    if worst([Fact(State.OK, ""), *facts]) is State.OK and not under:
        facts += [Fact(State.WARNING, str(problem)) for problem in cluster.get("problems") or ()]
    return facts


def isr_fine(cluster: Mapping[str, Any]) -> str:
    """What is to be said of a cluster that lacks nothing."""
    partitions, replicas = cluster.get("partitions") or {}, cluster.get("replicas") or {}
    live = sum(1 for row in cluster.get("nodes") or () if isinstance(row, dict) and row.get("state") == "live")
    nodes = "node" if live == 1 else "nodes"
    return (
        f"{cell(partitions.get('online'))} of {cell(partitions.get('total'))} partitions online, "
        f"{cell(replicas.get('in_sync'))} of {cell(replicas.get('total'))} replicas in sync, {live} {nodes} live"
    )


def _absent(cluster: Mapping[str, Any], gone: State) -> list[Fact]:
    """Nodes that are down, and such as live and did not answer."""
    facts = []
    for row in cluster.get("nodes") or ():
        emptied = row.get("drained") and not row.get("replicas")
        if row.get("state") != "live" and not emptied:
            facts.append(Fact(gone, f"node {cell(row.get('name'))} is {cell(row.get('state'))}"))
    silent = cluster.get("silent")
    if silent is None:
        return [*facts, Fact(State.UNKNOWN, "which nodes did not answer is not told")]
    return [*facts, *(Fact(State.UNKNOWN, f"node {cell(node)} lives and did not answer") for node in silent)]


def sync_facts(
    nodes: Mapping[str, Any], limits: Limits, *, at_ms: int, queue: str | None = None
) -> tuple[list[Fact], list[str]]:
    """A fact for each queue and bucket type that full-sync compares, and the names of the queues: `nodes` and `at_ms`
    of `/admin/fullsync/nodes`. Checks of all nodes count; `queue`: of this one only."""
    facts = [
        Fact(State.UNKNOWN, f"node {node} does not answer: what its checks found is not known")
        for node, said in nodes.items()
        if said is None
    ]
    known: dict[str, dict[str, list[tuple[str, Mapping[str, Any]]]]] = {}
    for node, said in nodes.items():
        for peer in () if said is None else said.get("peers") or ():
            for bucket_type in peer.get("bucket_types") or ():
                known.setdefault(str(peer.get("queue")), {}).setdefault(bucket_type, []).append((node, peer))
    wanted = [name for name in sorted(known) if queue in (None, name)]
    facts += [
        _synced(name, bucket_type, peers, limits, at_ms)
        for name in wanted
        for bucket_type, peers in sorted(known[name].items())
    ]
    return facts, sorted(known)


def _synced(
    queue: str, bucket_type: str, peers: Sequence[tuple[str, Mapping[str, Any]]], limits: Limits, at_ms: int
) -> Fact:
    """What the nodes that compare a bucket type have found, the newest of each."""
    where = f"{cell(peers[0][1].get('name'))}, bucket type {bucket_type} (queue {queue})"
    newest, looked = _newest(peers, bucket_type, "newest"), _newest(peers, bucket_type, "newest_looked")
    proven = [_number((peer.get("proven_ms") or {}).get(bucket_type)) for _, peer in peers]
    proven_ms = max((at for at in proven if at is not None), default=None)
    notes = [f"{node} is {cell(peer.get('state'))}: {peer.get('reason')}" for node, peer in peers if _rests(peer)]
    if newest is not None and newest != looked:
        notes.append(f"the newest check, of node {newest[0]}, could not look: {newest[1].get('reason')}")
    because = f" ({'; '.join(notes)})" if notes else ""
    age = None if proven_ms is None else f"proven in sync {milliseconds(max(0, at_ms - proven_ms))} ago"
    if looked is not None and looked[1].get("verdict") != "in-sync":
        node, result = looked
        if proven_ms is None or result["began_ms"] >= proven_ms:
            queued, left = cell(result.get("queued")), cell(result.get("left"))
            state = State.WARNING if result.get("verdict") == "repaired" else State.CRITICAL
            why = f" ({result['reason']})" if result.get("reason") else ""
            ended = f"the newest check ended as {cell(result.get('verdict'))} at node {node}{why}"
            since = f"{ended}: {queued} keys queued, {left} not; {age or 'never proven in sync'}"
            state = max(state, limits.state(max(0, at_ms - (proven_ms or at_ms))), key=RANK.index)
            return Fact(state, f"{where}: {since}{because}")
    if proven_ms is None:
        return Fact(State.UNKNOWN, f"{where}: never proven in sync{because}")
    return Fact(limits.state(max(0, at_ms - proven_ms)), f"{where}: {age}{because}")


def _newest(
    peers: Sequence[tuple[str, Mapping[str, Any]]], bucket_type: str, key: str
) -> tuple[str, Mapping[str, Any]] | None:
    """(node, result) of the check that began last."""
    told = [(node, (peer.get(key) or {}).get(bucket_type)) for node, peer in peers]
    return max(((node, one) for node, one in told if one), key=lambda at: at[1]["began_ms"], default=None)


def _rests(peer: Mapping[str, Any]) -> bool:
    """Nothing is proven by this peer until somebody acts."""
    return peer.get("state") != "scheduled" or bool(peer.get("queue_delisted"))


def gap_facts(answer: Mapping[str, Any], limits: Limits) -> list[Fact]:
    """A fact for each queue with open gaps: the answer of `/admin/gaps`. `limits`: milliseconds since the oldest change
    that was given up."""
    facts = [
        Fact(State.UNKNOWN, f"node {cell(node)} does not answer: its gaps are not known")
        for node in answer.get("unknown") or ()
    ]
    untold = answer.get("unknown_partitions")
    if not isinstance(untold, dict):
        facts.append(Fact(State.UNKNOWN, "of which partitions no gaps are known is not told"))
    else:
        facts += [
            Fact(State.UNKNOWN, f"queue {cell(name)}: gaps of {_some(partitions)} are not known")
            for name, partitions in sorted(untold.items())
        ]
    rows: dict[str, list[Mapping[str, Any]]] = {}
    for row in answer.get("gaps") or ():
        rows.setdefault(cell(row.get("queue")), []).append(row)
    at_ms = _number(answer.get("at_ms"))
    for name, found in sorted(rows.items()):
        told = [_number(row.get("from_ms")) for row in found]
        since = [at for at in told if at]
        oldest = None if at_ms is None or not since else max(0, at_ms - min(since))
        old = "since when is not known" if oldest is None else f"the oldest of {milliseconds(oldest)} ago"
        dated = "" if oldest is None or len(since) == len(found) else f", {len(found) - len(since)} of unknown age"
        grows = sum(1 for row in found if row.get("upto_ms") is None)
        growing = f", {grows} still growing" if grows else ""
        state = State.WARNING if oldest is None else limits.state(oldest)
        if dated:  # as old as can be: it is no less than a warning
            state = max(state, State.WARNING, key=RANK.index)
        count = "1 gap" if len(found) == 1 else f"{len(found)} gaps"
        facts.append(Fact(state, f"queue {name}: {count} not proven yet, {old}{dated}{growing}"))
    return facts


def _number(value: Any) -> int | float | None:
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def _some(numbers: Sequence[Any]) -> str:
    noun = "partition" if len(numbers) == 1 else f"{len(numbers)} partitions:"
    return f"{noun} {', '.join(map(str, numbers[:NAMED_MAX]))}" + (", ..." if len(numbers) > NAMED_MAX else "")
