"""Findings: what is wrong in one cluster, or not known, each with its severity, its subject and what to do. Pure.

The one list behind `isthmus check`, `isthmus status`, `GET /admin/findings`, the dashboard, `/metrics` and the alerts.
The functions take the answers that `isthmus lag`, `cluster status`, `fullsync status` and `gaps` show, and return
facts. A value that an answer lacks is unknown, never OK.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum
from itertools import chain
from math import inf
from typing import Any, Final, NamedTuple

from isthmus.config.text import clause, quantity
from isthmus.config.units import parse_duration
from isthmus.node.http.answer_texts import (
    Row,
    cell,
    is_of_failing_links,
    milliseconds,
    named,
    object_in,
    objects_in,
    percent,
    silent_sentence,
    without_age,
)
from isthmus.node.services.finding_codes import CODES, Code
from isthmus.queues.riak_origin import RIAK_CLUSTER

DOCUMENTS: Final[Mapping[str, str]] = {
    "cluster": "/admin/cluster",
    "health": "/admin/nodes/health",
    "lag": "/admin/lag",
    "sinks": "/admin/sink/nodes",
    "fullsync": "/admin/fullsync/nodes",
    "gaps": "/admin/gaps",
}
"""Name of an answer that `findings_of` judges -> the request for it."""

LAG: Final = ("30s", "5m")
"""A healthy link delivers a write in well below a second; minutes mean a link or a sink that is down. A guess."""

PROVEN: Final = ("26h", "50h")
"""One check a day and two hours of its slot, and a day more; with hourly checks less will do."""

ISR: Final = (0, 0)
"""Any partition is worth a look."""

GAPS: Final = ("0s", "2h")
"""A gap is a missing change, so it is a warning at once; full-sync closes it within two hours where it can, since its
pauses are an hour at most."""

CLOCKS: Final = ("1s", "1m")
"""NTP keeps clocks within some ms, and times are shown in seconds; a minute is more than any clock drifts in a day, so
it was set wrong. A guess."""

LETTERS: Final = (0, 100)
"""A dead letter is a change that is missing until an operator acts; a hundred have a common cause. A guess."""


class ProbeState(IntEnum):
    """State of a probe; the value is its exit code, as monitoring plugins have them."""

    OK = 0
    WARNING = 1
    CRITICAL = 2
    UNKNOWN = 3


RANK: Final = (ProbeState.OK, ProbeState.UNKNOWN, ProbeState.WARNING, ProbeState.CRITICAL)
"""From best to worst: a known problem outranks an unknown state."""


class Fact(NamedTuple):
    """One finding of a probe, as a sentence; OK is a finding, too."""

    state: ProbeState
    sentence: str
    code: Code
    subject: str
    """What it is about, as "queue to-west", "node east-1", "cluster"."""
    own_remedy: str = ""
    """What to do, where it is not what CODES has for the code."""

    @property
    def remedy(self) -> str:
        """What an operator does next."""
        return self.own_remedy or CODES[self.code].remedy

    def as_dict(self) -> dict[str, str]:
        """The form of `GET /admin/findings`."""
        return {
            "code": self.code.value,
            "severity": self.state.name.lower(),
            "subject": self.subject,
            "sentence": self.sentence,
            "remedy": self.remedy,
        }


class ProbeThresholds(NamedTuple):
    """A value above `warning` is a warning, above `critical` critical. Milliseconds or counts."""

    warning: int
    critical: int

    def state(self, value: float) -> ProbeState:
        """The state of a value."""
        return (
            ProbeState.CRITICAL
            if value > self.critical
            else ProbeState.WARNING
            if value > self.warning
            else ProbeState.OK
        )


def worst(facts: Iterable[Fact]) -> ProbeState:
    """The worst state; UNKNOWN without facts."""
    return max((fact.state for fact in facts), key=RANK.index, default=ProbeState.UNKNOWN)


def staleness_facts(cluster: Mapping[str, Any]) -> list[Fact]:
    """Why the node's view of its cluster may be stale; nothing when it is current."""
    node, metastore = cell(cluster.get("node")), cluster.get("metastore")
    if metastore != "connected":
        why = f"node {node}: its session with the metastore is {cell(metastore)}: what it shows may be old"
    elif cluster.get("read_at_ms") is None:
        why = f"node {node} has not read the metastore yet"
    elif cluster.get("outdated_why"):  # earlier versions do not say
        why = f"node {node} shows what was before: {cell(cluster['outdated_why'])}"
    elif cluster.get("registered") is False:
        why = f"node {node} is not registered and takes no part: {cell(cluster.get('reason'))}"
    else:
        return []
    return [Fact(ProbeState.UNKNOWN, why, Code.METASTORE, f"node {node}")]


def lag_facts(rows: Sequence[Mapping[str, Any]], limits: ProbeThresholds) -> list[Fact]:
    """A fact for each queue and bucket type: rows of `/admin/lag`. A row that is unknown as a whole is judged by the
    part that is known, where that is late."""
    facts = []
    for row in rows:
        about = Code.LAG, f"queue {cell(row.get('queue'))}"
        where = f"queue {cell(row.get('queue'))}, bucket type {cell(row.get('bucket_type'))}"
        because = f" ({row['reason']})" if row.get("reason") else ""
        seconds, least = _number(row.get("seconds")), _number(row.get("at_least_s")) or 0
        if seconds is None and (state := limits.state(1000 * least)) is not ProbeState.OK:
            sentence = f"{where}: at least {milliseconds(1000 * least)} behind, more is not known{because}"
            facts.append(Fact(state, sentence, *about))
        elif seconds is None:
            facts.append(Fact(ProbeState.UNKNOWN, f"{where}: how far it is behind is not known{because}", *about))
        else:
            waiting = f", keys that wait: {cell(row.get('objects'))}"
            sentence = f"{where}: {milliseconds(1000 * seconds)} behind{waiting}{because}"
            facts.append(Fact(limits.state(1000 * seconds), sentence, *about))
    return facts


def ledger_facts(rows: Sequence[Mapping[str, Any]]) -> list[Fact]:
    """A fact for each queue of which changes disappeared without being accounted for: rows of `/admin/lag`."""
    off: dict[str, float] = {}
    for row in rows:
        queue = f"queue {cell(row.get('queue'))}"
        off[queue] = max(off.get(queue, 0), _number(row.get("ledger_off")) or 0)  # each row has that of the queue
    return [
        Fact(ProbeState.CRITICAL, f"{queue}: {CODES[Code.LEDGER].words} by {count}: a bug", Code.LEDGER, queue)
        for queue, count in off.items()
        if count
    ]


def isr_facts(cluster: Mapping[str, Any], limits: ProbeThresholds) -> list[Fact]:
    """Facts about replicas in sync and partitions that accept writes: the answer of `/admin/cluster`.

    `limits`: the first for partitions that lack replicas in sync, the second for partitions without leader or below
    min-ISR.
    """
    counts = cluster.get("partitions")
    found = counts if isinstance(counts, dict) else {}
    total, online = _number(found.get("total")), _number(found.get("online"))
    under, below = cluster.get("under_replicated"), cluster.get("below_min_isr")
    if total is None or online is None or not isinstance(under, list) or not isinstance(below, list):
        return [
            Fact(
                ProbeState.UNKNOWN,
                f"node {cell(cluster.get('node'))} does not report which partitions are in sync",
                Code.NOT_KNOWN,
                f"node {cell(cluster.get('node'))}",
            )
        ]
    facts = []
    waiting = cluster.get("waiting")
    if waiting:
        facts.append(Fact(ProbeState.CRITICAL, f"bucket type default: {waiting}", Code.OFFLINE, "bucket type default"))
    elif not total:
        facts.append(Fact(ProbeState.UNKNOWN, "no partition is known", Code.NOT_KNOWN, "cluster"))
    if online < total:
        words = {key.replace("_", "-"): n for key, n in found.items() if key not in ("total", "online") and n}
        states = ", ".join(f"{n} {word}" for word, n in words.items())
        stopped = ProbeState.CRITICAL if total - online > limits.critical else ProbeState.WARNING
        facts.append(
            Fact(stopped, f"{total - online} of {total} {CODES[Code.OFFLINE].words}: {states}", Code.OFFLINE, "cluster")
        )
    if below:
        stopped = ProbeState.CRITICAL if len(below) > limits.critical else ProbeState.WARNING
        facts.append(
            Fact(
                stopped,
                f"{CODES[Code.MIN_ISR].words} in {_some(below)}",
                Code.MIN_ISR,
                "cluster",
            )
        )
    lacking = ProbeState.WARNING if not under or len(under) > limits.warning else ProbeState.OK
    if under:
        facts.append(
            Fact(
                lacking,
                f"{len(under)} of {total} {CODES[Code.OUT_OF_SYNC].words}: {named(under)}",
                Code.OUT_OF_SYNC,
                "cluster",
            )
        )
    facts += _absent(cluster, lacking)
    node = f"node {cell(cluster.get('node'))}"
    facts += [Fact(ProbeState.CRITICAL, str(each), Code.CERTIFICATE, node) for each in cluster.get("urgent") or ()]
    unreadable = [str(each) for each in cluster.get("unreadable") or ()]  # earlier versions do not tell them apart
    refused = {node: [str(each) for each in found] for node, found in object_in(cluster, "writes_refused").items()}
    stated = {*unreadable, *chain.from_iterable(refused.values())}
    stated.update(map(str, cluster.get("doubts") or ()))  # see `staleness_facts`
    problems = [each for each in map(str, cluster.get("problems") or ()) if each not in stated]
    well = all(fact.state is ProbeState.OK for fact in facts) and not under
    facts += [Fact(ProbeState.WARNING, each, Code.CLUSTER, "cluster") for each in problems if well]
    facts += [  # the cause of what is above, which does not name it
        Fact(ProbeState.CRITICAL, each, Code.WRITES_REFUSED, f"node {node}")
        for node, sentences in refused.items()
        for each in sentences
    ]
    facts += [Fact(ProbeState.WARNING, each, Code.DOCUMENT_UNREADABLE, "cluster") for each in unreadable]
    return facts


def isr_fine(cluster: Mapping[str, Any]) -> str:
    """The sentence about a healthy cluster."""
    partitions, replicas = cluster.get("partitions") or {}, cluster.get("replicas") or {}
    live = sum(1 for row in cluster.get("nodes") or () if isinstance(row, dict) and row.get("state") == "live")
    nodes = "node" if live == 1 else "nodes"
    return (
        f"{cell(partitions.get('online'))} of {cell(partitions.get('total'))} partitions online, "
        f"{cell(replicas.get('in_sync'))} of {cell(replicas.get('total'))} replicas in sync, {live} {nodes} live"
    )


def _absent(cluster: Mapping[str, Any], gone: ProbeState) -> list[Fact]:
    """Facts about nodes that are down, and about live nodes that did not answer."""
    facts = []
    for row in cluster.get("nodes") or ():
        emptied = row.get("drained") and not row.get("replicas")
        if row.get("state") != "live" and not emptied:
            subject = f"node {cell(row.get('name'))}"
            facts.append(Fact(gone, f"{subject} is {cell(row.get('state'))}", Code.NODE_DOWN, subject))
    silent = cluster.get("silent")
    if silent is None:
        words = "the nodes that did not answer are not reported"
        return [*facts, Fact(ProbeState.UNKNOWN, words, Code.NOT_KNOWN, "cluster")]
    names = [f"node {cell(node)}" for node in silent]
    words = "lives and did not answer"
    return [*facts, *(Fact(ProbeState.UNKNOWN, f"{name} {words}", Code.NODE_SILENT, name) for name in names)]


def sync_facts(
    nodes: Mapping[str, Any],
    limits: ProbeThresholds,
    *,
    at_ms: int,
    queue: str | None = None,
    gone: Mapping[str, Any] | None = None,
    skew_ms: float = 0,
) -> tuple[list[Fact], list[str]]:
    """A fact for each queue and bucket type that full-sync compares, and the names of the queues.

    `nodes`, `at_ms` and `gone` (since when nodes are down) are those of `/admin/fullsync/nodes`; checks of all nodes
    count. `skew_ms`: how far a clock may be from the one of `at_ms`. `queue`: only comparisons that prove this queue,
    whichever queue their repairs use. A bucket type that a queue sends and no full-sync compares is a warning.
    """
    facts = _silent(nodes, gone or {}, at_ms, skew_ms)
    known: dict[str, dict[str, list[tuple[str, Mapping[str, Any]]]]] = {}
    for node, entry in nodes.items():
        for peer in () if entry is None else entry.get("peers") or ():
            for bucket_type in peer.get("bucket_types") or ():
                if queue is None or queue in (peer.get("queue"), *_for_queues(peer, bucket_type)):
                    known.setdefault(str(peer.get("queue")), {}).setdefault(bucket_type, []).append((node, peer))
    facts += [
        _synced(name, bucket_type, peers, limits, at_ms, silent=None in nodes.values())
        for name in sorted(known)
        for bucket_type, peers in sorted(known[name].items())
    ]
    answers = [entry for entry in nodes.values() if entry is not None]
    peers = [peer for entry in answers for peer in entry.get("peers") or ()]
    names = {str(peer.get("queue")) for peer in peers} | {name for peer in peers for name in peer.get("compares") or ()}
    sent = {str(row.get("queue")): row for entry in answers for row in entry.get("sent") or ()}
    silent = len(answers) < len(nodes)
    for name, row in sorted(sent.items()) if names else ():
        for bucket_type in row.get("bucket_types") or () if queue in (None, name) else ():
            if not any(name in _for_queues(peer, bucket_type) for peer in peers):
                words = f"queue {name} sends bucket type {bucket_type} to {cell(row.get('cluster'))}, and no full-sync"
                state = ProbeState.UNKNOWN if silent else ProbeState.WARNING
                sentence = f"{words} {'of a node that answers ' if silent else ''}compares it"
                facts.append(Fact(state, sentence, Code.FULLSYNC_LACKING, f"queue {name}"))
    return facts, sorted(names | sent.keys()) if names else []


def _for_queues(peer: Mapping[str, Any], bucket_type: str) -> list[str]:
    """Queues that a peer's comparisons of a bucket type prove complete. A node of an older version lists only the queue
    of its repairs."""
    compares = peer.get("compares")
    if not isinstance(compares, dict):
        return [str(peer.get("queue"))] if bucket_type in (peer.get("bucket_types") or ()) else []
    return [str(name) for name, types in compares.items() if bucket_type in types]


GONE_MARGIN_MS: Final = 5_000
"""How much later than a node's end a check must have begun to count as later, besides how far the clocks of both nodes
are measured to be from the one that answers."""


def _silent(nodes: Mapping[str, Any], gone: Mapping[str, Any], at_ms: int, skew_ms: float) -> list[Fact]:
    """A fact for each node that does not answer. The results of a node that is down no longer matter once others have
    proven everything after its end; `gone`: the latest time at which nodes went down."""
    newest: dict[tuple[str, str], float] = {}
    for peer in (peer for entry in nodes.values() if entry is not None for peer in entry.get("peers") or ()):
        for bucket_type in peer.get("bucket_types") or ():
            of, at = (str(peer.get("queue")), str(bucket_type)), (peer.get("proven_ms") or {}).get(bucket_type)
            proven_ms = _number(at) or 0
            newest[of] = max(newest.get(of, 0), proven_ms if proven_ms <= at_ms + AHEAD_MS else 0)
    facts = []
    for node in (node for node, entry in nodes.items() if entry is None):
        down_ms = _number(gone.get(node))
        if down_ms is not None and newest and min(newest.values()) > down_ms + GONE_MARGIN_MS + 2 * skew_ms:
            old = milliseconds(max(0, at_ms - down_ms))
            sentence = f"node {node} is down for {old}, and other nodes have proven all since"
            facts.append(Fact(ProbeState.OK, sentence, Code.FULLSYNC, f"node {node}"))
        else:
            sentence = f"node {node} does not answer: what its checks found is not known"
            facts.append(Fact(ProbeState.UNKNOWN, sentence, Code.NODE_SILENT, f"node {node}"))
    return facts


def _synced(
    queue: str,
    bucket_type: str,
    peers: Sequence[tuple[str, Mapping[str, Any]]],
    limits: ProbeThresholds,
    at_ms: int,
    *,
    silent: bool,
) -> Fact:
    """The fact about one queue and bucket type, from the newest results of the nodes that compare it. `silent`: not all
    nodes answer."""
    where, subject = f"{cell(peers[0][1].get('name'))}, bucket type {bucket_type} (queue {queue})", f"queue {queue}"
    newest, latest = (_newest(peers, bucket_type, key, at_ms) for key in ("newest", "newest_looked"))
    if newest is not None and newest[1].get("lacking"):
        there = cell(peers[0][1].get("cluster") or peers[0][1].get("name"))
        what = f"{there} has no such bucket type: its changes are held back until it is made there"
        sentence = f"{where}: {what} (isthmus bucket-type create {bucket_type})"
        remedy = f"at {there}: isthmus bucket-type create {bucket_type}"
        return Fact(ProbeState.WARNING, sentence, Code.BUCKET_TYPE_LACKING, subject, remedy)
    both_ways = any(_equality_asked(peer, bucket_type) for _, peer in peers)
    proof = "proven equal" if both_ways else "proven up to date"
    proven, ahead = _newest_proof([peer for _, peer in peers], bucket_type, at_ms, both_ways=both_ways)
    notes = [f"{node} is {cell(peer.get('state'))}: {peer.get('reason')}" for node, peer in peers if _rests(peer)]
    if newest is not None and newest != latest:
        notes.append(f"the newest check, of node {newest[0]}, could not look: {newest[1].get('reason')}")
    because = f" ({'; '.join(notes)})" if notes else ""
    none = f"not {proof} by a node that answers" if silent else f"never {proof}"
    age = none if proven is None else f"{proof} {milliseconds(max(0, at_ms - proven))} ago"
    if proven is None and ahead:
        clocks = f"as of a time that is {milliseconds(ahead)} ahead of this node's clock: when is not known"
        return Fact(ProbeState.UNKNOWN, f"{where}: {proof} {clocks}{because}", Code.FULLSYNC_UNPROVEN, subject)
    if latest is not None and latest[1].get("verdict") not in ("in-sync", *["up-to-date"] * (not both_ways)):
        node, result = latest
        if proven is None or result["began_ms"] >= proven:
            count, left = result.get("queued"), cell(result.get("left"))
            queued = quantity(count, "key") if isinstance(count, int) else f"{cell(count)} keys"
            mended = result.get("verdict") in ("repaired", "up-to-date")
            state = ProbeState.WARNING if mended else ProbeState.CRITICAL
            why = f" ({result['reason']})" if result.get("reason") else ""
            ended = f"the newest check ended as {cell(result.get('verdict'))} at node {node}{why}"
            since = f"{ended}: {queued} queued, {left} not; {age}"
            state = max(state, limits.state(max(0, at_ms - (proven or at_ms))), key=RANK.index)
            return Fact(state, f"{where}: {since}{because}", Code.FULLSYNC, subject)
    if proven is None:
        first = "" if silent else "; the first check may be an hour away: isthmus fullsync run all --wait compares now"
        return Fact(ProbeState.UNKNOWN, f"{where}: {age}{because}{first}", Code.FULLSYNC_UNPROVEN, subject)
    return Fact(limits.state(max(0, at_ms - proven)), f"{where}: {age}{because}", Code.FULLSYNC_UNPROVEN, subject)


AHEAD_MS: Final = 1_000
"""How far ahead of the clock of the node that answers a proof may be stamped: clocks that differ by more are a finding
of their own. A proof or gap from further ahead has no known age."""


def _equality_asked(peer: Mapping[str, Any], bucket_type: str) -> bool:
    """Whether both clusters are to have the same of this bucket type. A node of an older version does not tell bucket
    types apart."""
    return bucket_type in peer["equal_types"] if "equal_types" in peer else bool(peer.get("both_ways"))


def _newest_proof(
    peers: Iterable[Mapping[str, Any]], bucket_type: str, at_ms: float, *, both_ways: bool
) -> tuple[float | None, float]:
    """(when the newest proof of any node was made, None for none; how far the newest proof lies in the future, 0: it
    does not). Where both directions are configured, only equality is a proof. A node of an older version reports
    equality as `proven_ms`, and nothing else."""
    found = []
    for peer in peers:
        times = peer.get("equal_ms", peer.get("proven_ms")) if both_ways else peer.get("proven_ms")
        if (at := _number((times or {}).get(bucket_type))) is not None:
            found.append(at)
    known = [at for at in found if at <= at_ms + AHEAD_MS]
    return max(known, default=None), max(0.0, max(found, default=at_ms) - at_ms) if not known else 0.0


def _newest(
    peers: Sequence[tuple[str, Mapping[str, Any]]], bucket_type: str, key: str, at_ms: float
) -> tuple[str, Mapping[str, Any]] | None:
    """(node, result) of the check that began last; one that is stamped in the future only if there is no other."""
    results = [(node, (peer.get(key) or {}).get(bucket_type)) for node, peer in peers]
    found = [(node, one) for node, one in results if one]
    known = [(node, one) for node, one in found if one["began_ms"] <= at_ms + AHEAD_MS]
    return max(known or found, key=lambda at: at[1]["began_ms"], default=None)


def _rests(peer: Mapping[str, Any]) -> bool:
    """True where this peer neither proves nor repairs anything until an operator acts."""
    return peer.get("state") != "scheduled" or bool(peer.get("queue_delisted") or peer.get("queue_of_other"))


def gap_facts(answer: Mapping[str, Any], limits: ProbeThresholds) -> list[Fact]:
    """A fact for each queue with open gaps: the answer of `/admin/gaps`. `limits`: milliseconds since the oldest change
    that was given up."""
    facts = [
        Fact(
            ProbeState.UNKNOWN,
            f"node {cell(node)} does not answer: its gaps are not known",
            Code.NODE_SILENT,
            f"node {cell(node)}",
        )
        for node in answer.get("unknown") or ()
    ]
    unknown = answer.get("unknown_partitions")
    if not isinstance(unknown, dict):
        words = "the node does not report which partitions have unknown gaps"
        facts.append(Fact(ProbeState.UNKNOWN, words, Code.NOT_KNOWN, "cluster"))
    else:
        facts += [
            Fact(
                ProbeState.UNKNOWN,
                f"queue {cell(name)}: gaps of {_some(partitions)} are not known",
                Code.NOT_KNOWN,
                f"queue {cell(name)}",
            )
            for name, partitions in sorted(unknown.items())
        ]
    rows: dict[str, list[Mapping[str, Any]]] = {}
    for row in answer.get("gaps") or ():
        rows.setdefault(cell(row.get("queue")), []).append(row)
    at_ms = _number(answer.get("at_ms"))
    latest_ms = inf if at_ms is None else at_ms + AHEAD_MS
    for name, found in sorted(rows.items()):
        since = [at for row in found if (at := _number(row.get("from_ms"))) and at <= latest_ms]
        oldest = None if at_ms is None or not since else max(0, at_ms - min(since))
        old = "since when is not known" if oldest is None else f"the oldest of {milliseconds(oldest)} ago"
        dated = "" if oldest is None or len(since) == len(found) else f", {len(found) - len(since)} of unknown age"
        grows = sum(1 for row in found if row.get("upto_ms") is None)
        growing = f", {grows} still growing" if grows else ""
        state = ProbeState.WARNING if oldest is None else limits.state(oldest)
        if dated:  # as old as can be: it is no less than a warning
            state = max(state, ProbeState.WARNING, key=RANK.index)
        count = quantity(len(found), "gap")
        sentence = f"queue {name}: {count} not proven yet, {old}{dated}{growing}"
        facts.append(Fact(state, sentence, Code.GAPS, f"queue {name}"))
    return facts


def sink_facts(nodes: Mapping[str, Any], limits: ProbeThresholds) -> list[Fact]:
    """Facts about changes that this cluster's nodes cannot accept.

    `nodes`: the entry of each node in `/admin/sink/nodes`, None for a node that did not answer. `limits`: dead letters
    of all nodes. Missing bucket types and failing links are a warning.
    """
    facts = [
        Fact(
            ProbeState.UNKNOWN,
            f"node {node} does not answer: what its sink does is not known",
            Code.NODE_SILENT,
            f"node {node}",
        )
        for node, entry in nodes.items()
        if entry is None
    ]
    kept: dict[str, int] = {}
    held: dict[str, set[str]] = {}
    links: dict[str, list[tuple[str, Mapping[str, Any]]]] = {}
    clusters = _clusters_of_peers(nodes)
    for node, entry in nodes.items():
        if entry is None:
            continue
        letters = _number((entry.get("dead_letters") or {}).get("kept"))
        if letters is None:
            words = f"node {node}: its dead letters cannot be counted"
            facts.append(Fact(ProbeState.UNKNOWN, words, Code.NOT_KNOWN, f"node {node}"))
        elif letters:
            kept[node] = int(letters)
        for row in entry.get("sinks") or ():
            peer = str(row.get("peer"))
            links.setdefault(str(row.get("source_cluster") or clusters.get(peer, peer)), []).append((node, row))
            for name in row.get("held_types") or ():
                held.setdefault(str(name), set()).add(cell(row.get("source_cluster")))
    facts += [fact for source, rows in sorted(links.items()) for fact in _link_facts(source, rows)]
    facts += [fact for source, rows in sorted(links.items()) for fact in _riak_facts(source, rows)]
    if kept:
        where = ", ".join(f"{count} at {node}" for node, count in sorted(kept.items()))
        words = f"dead letters: {where} (isthmus sink dead-letters list)"
        facts.append(Fact(limits.state(sum(kept.values())), words, Code.DEAD_LETTERS, "sink"))
    facts += [
        Fact(
            ProbeState.WARNING,
            f"bucket type {name} of {', '.join(sorted(sources))} is lacking here: its changes wait there "
            f"(isthmus bucket-type create {name})",
            Code.BUCKET_TYPE_LACKING,
            f"bucket type {name}",
            f"isthmus bucket-type create {name}",
        )
        for name, sources in sorted(held.items())
    ]
    return facts


def _clusters_of_peers(nodes: Mapping[str, Row | None]) -> dict[str, str]:
    """Peer's URL -> its cluster, as far as any node knows: a link whose first answer is still to come does not."""
    rows = [row for entry in nodes.values() if entry is not None for row in entry.get("sinks") or ()]
    return {str(row.get("peer")): str(row["source_cluster"]) for row in rows if row.get("source_cluster")}


def _link_facts(source: str, rows: Sequence[tuple[str, Mapping[str, Any]]]) -> Iterable[Fact]:
    """The fact about the links of all nodes to one source cluster, if some fail: one cause is stated once."""
    failing = [(node, row) for node, row in rows if row.get("state") == "failing"]
    if failing:
        nodes = list(dict.fromkeys(node for node, _ in failing))
        count = f"{len(failing)} of {clause(len(rows), 'link', 'fails', 'fail')}"
        where = f"node{'s' * (len(nodes) > 1)} {named(nodes)}"
        words = f"fetches from {source}: {count}, at {where}: {without_age(str(failing[0][1].get('reason')))}"
        yield Fact(ProbeState.WARNING, words, Code.LINKS_FAIL, f"cluster {source}")


def _riak_facts(source: str, rows: Sequence[tuple[str, Mapping[str, Any]]]) -> Iterable[Fact]:
    """The facts about changes of a Riak that were lost within the last day, with numbers since the nodes began, and
    about a seed that does not go on."""
    counts = [(node, object_in(row, "riak")) for node, row in rows]
    lost = [(node, one) for node, one in counts if one.get("lost_lately") is True]
    if lost:
        changes = sum(int(_number(one.get("lost")) or 0) for _, one in lost)
        answers = sum(int(_number(one.get("answers_lost")) or 0) for _, one in lost)
        where = named(list(dict.fromkeys(node for node, _ in lost)))
        words = f"Riak {source}: {changes} changes lost, and {answers} answers that may have had one, at {where}"
        yield Fact(ProbeState.WARNING, words, Code.RIAK_LOST, f"riak {source}")
    fault = next((cell(one["seed_fault"]) for _, one in counts if one.get("seed_fault")), "")
    if fault:
        again = f"isthmus riak seed {source}"
        words = f"seed of Riak {source} {fault} ({again}, or with --stop)"
        yield Fact(ProbeState.WARNING, words, Code.RIAK_SEED, f"riak {source}", again)


def _number(value: Any) -> int | float | None:
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def _some(numbers: Sequence[Any]) -> str:
    noun = "partition" if len(numbers) == 1 else f"{len(numbers)} partitions:"
    return f"{noun} {named(numbers)}"


DISK_FREE_WARNING: Final = 0.1
DISK_FREE_CRITICAL: Final = 0.03
"""Free shares of a disk below which it is a warning, and critical. A node stops taking writes at 128 MiB; a tenth
leaves time to act. A guess."""


def findings_of(answers: Mapping[str, Row], errors: Mapping[str, str]) -> list[Fact]:
    """Everything about one cluster that is not well or not known, the worst first.

    `answers`: by the names of DOCUMENTS; what was not answered is absent. `errors`: name -> why it was not answered.
    """
    if "cluster" not in answers:
        words = errors.get("cluster", "no node answers")
        return [Fact(ProbeState.UNKNOWN, words, Code.NOT_KNOWN, "cluster")]
    cluster = answers["cluster"]
    found = [Fact(ProbeState.UNKNOWN, f"{name}: {why}", Code.NOT_KNOWN, name) for name, why in errors.items()]
    found += [*staleness_facts(cluster), *isr_facts(cluster, ProbeThresholds(*ISR)), *_health_facts(answers)]
    if "lag" in answers:
        rows = objects_in(answers["lag"], "lag")
        found += [*lag_facts(rows, ProbeThresholds(*map(parse_duration, LAG))), *ledger_facts(rows)]
    fullsync = answers.get("fullsync", {})
    nodes, at_ms = fullsync.get("nodes"), fullsync.get("at_ms")
    if isinstance(nodes, dict) and isinstance(at_ms, int):
        limits = ProbeThresholds(*map(parse_duration, PROVEN))
        skew_ms = _number(fullsync.get("skew_ms")) or 0
        found += sync_facts(nodes, limits, at_ms=at_ms, gone=fullsync.get("gone"), skew_ms=skew_ms)[0]
    if "gaps" in answers:
        gaps = gap_facts(answers["gaps"], ProbeThresholds(*map(parse_duration, GAPS)))
        found += _with_remedies_of_riak(gaps, objects_in(answers.get("lag", {}), "lag"))
    if "sinks" in answers:
        rows = objects_in(answers["sinks"], "nodes")
        found += sink_facts({str(row.get("node")): row.get("sink") for row in rows}, ProbeThresholds(*LETTERS))
    return by_severity(fact for fact in dict.fromkeys(found) if fact.state is not ProbeState.OK)


def _with_remedies_of_riak(gaps: Iterable[Fact], lags: Iterable[Row]) -> list[Fact]:
    """The facts about gaps; those of queues that a Riak fetches from are closed by no full-sync of this cluster."""
    of_riak = {str(row.get("queue")) for row in lags if row.get("uuid") == RIAK_CLUSTER.hex()}
    remedies = {
        f"queue {name}": f"once a full-sync of the Riak has ended in sync: isthmus gaps {name} --close ID, for each"
        for name in of_riak
    }
    return [
        fact._replace(own_remedy=remedies[fact.subject])
        if fact.code is Code.GAPS and fact.subject in remedies
        else fact
        for fact in gaps
    ]


def by_severity(facts: Iterable[Fact]) -> list[Fact]:
    """The facts, the worst first."""
    return sorted(facts, key=lambda fact: -RANK.index(fact.state))


def findings_document(answers: Mapping[str, Row], errors: Mapping[str, str]) -> dict[str, Any]:
    """What `GET /admin/findings` shows of the answers: {"state", "findings"}; each finding as `Fact.as_dict`."""
    found = findings_of(answers, errors)
    state = worst(found) if found else ProbeState.OK
    return {"state": state.name.lower(), "findings": [fact.as_dict() for fact in found]}


def free_share(disk: Row) -> float | None:
    """The free part of a disk, from 0 to 1; None: unknown."""
    free, total = disk.get("free_bytes"), disk.get("total_bytes")
    return free / total if isinstance(free, int) and isinstance(total, int) and total > 0 else None


_NOT_IN_FORCE: Final = "is not in force"
"""Words of the problem of a file that cannot be used, see `Credentials.problems`; the others are certificates."""


def _health_facts(answers: Mapping[str, Row]) -> Iterable[Fact]:
    """Disks that are nearly full, descriptors and inodes that are few, certificates that need an operator, and defects
    of the program."""
    cluster, health = answers["cluster"], answers.get("health", {})
    silent = {silent_sentence(str(node)) for node in cluster.get("silent") or ()}  # each is named beside its replicas
    failing = _nodes_with_failing_links(answers)  # `sink_facts` names them
    stated = {str(each) for one in object_in(health, "nodes").values() for each in (one or {}).get("problems") or ()}
    stated |= set(map(str, cluster.get("urgent") or ()))
    for each in dict.fromkeys(map(str, cluster.get("warnings") or ())):
        if each not in silent | stated and not any(is_of_failing_links(each, node) for node in failing):
            yield Fact(ProbeState.WARNING, each, Code.CLUSTER, "cluster")
    for node, one in object_in(health, "nodes").items():
        subject = f"node {node}"
        if not isinstance(one, dict):
            why = object_in(health, "unknown").get(node)
            words = f"node {node}: its disk and certificates are not known: {cell(why)}"
            yield Fact(ProbeState.UNKNOWN, words, Code.NODE_SILENT, subject)
            continue
        urgent = one.get("urgent") or ()
        for each in one.get("problems") or ():
            code = Code.CREDENTIALS if _NOT_IN_FORCE in str(each) else Code.CERTIFICATE
            state = ProbeState.CRITICAL if each in urgent else ProbeState.WARNING
            yield Fact(state, str(each), code, subject)
        for other, address in object_in(one, "undialled").items():
            words = f"node {other} cannot be dialled by {node} at {address}: as a leader it would have no followers"
            yield Fact(ProbeState.WARNING, words, Code.UNDIALLED, f"node {other}")
        for each in one.get("short") or ():
            yield Fact(ProbeState.WARNING, f"node {node}: {each}", Code.SHORT, subject)
        yield from _renewed_facts(node, objects_in(one, "renewed"))
        for each in one.get("defects") or ():
            yield Fact(ProbeState.WARNING, f"{subject}: {each}", Code.DEFECT, subject)
        share = free_share(one)
        if share is not None and share < DISK_FREE_WARNING:
            state = ProbeState.CRITICAL if share < DISK_FREE_CRITICAL else ProbeState.WARNING
            words = f"node {node}: {percent(share)} of its disk are free"
            yield Fact(state, words, Code.DISK_FREE, subject)
    yield from clock_facts(object_in(health, "nodes"), ProbeThresholds(*map(parse_duration, CLOCKS)))


class _ClockRow(NamedTuple):
    """A measurement by node `of`: `other`'s clock minus its own, in ms, and how far that may be off."""

    of: str
    other: str
    offset_ms: float
    bound_ms: float

    @property
    def least_ms(self) -> float:
        """How far the clocks differ at least."""
        return max(0.0, abs(self.offset_ms) - self.bound_ms)


def _clock_rows(nodes: Mapping[str, Any], kind: str, name: str) -> list[_ClockRow]:
    """What the nodes have measured; the best measurement of each pair of nodes comes first."""
    rows = []
    for node, one in nodes.items():
        for row in objects_in(object_in(one, "clocks"), kind) if isinstance(one, dict) else ():
            offset, bound = _number(row.get("offset_ms")), _number(row.get("bound_ms"))
            if offset is not None and bound is not None:
                rows.append(_ClockRow(node, str(row.get(name)), offset, bound))
    return sorted(rows, key=lambda row: row.bound_ms)


def clock_facts(nodes: Mapping[str, Any], limits: ProbeThresholds) -> list[Fact]:
    """A fact for each clock that is wrong, from the nodes of `/admin/nodes/health`. `limits`: milliseconds.

    Within the cluster a clock that differs from most others is the wrong one; of two nodes it is not known which one
    is. Clocks at the other ends of links are compared with those of nodes that are not wrong."""
    pairs: dict[frozenset[str], _ClockRow] = {}
    for row in _clock_rows(nodes, "nodes", "node"):
        pairs.setdefault(frozenset((row.of, row.other)), row)
    left = {pair: row for pair, row in pairs.items() if len(pair) == 2 and limits.state(row.least_ms) > ProbeState.OK}
    facts, wrong = [], set[str]()
    while left:
        worst_node, count = Counter(node for pair in left for node in sorted(pair)).most_common(1)[0]
        mine = [row for pair, row in left.items() if worst_node in pair]
        row = max(mine, key=lambda row: row.least_ms)
        if count > 1:
            wrong.add(worst_node)
            offset_ms = row.offset_ms if row.other == worst_node else -row.offset_ms
            others = named(sorted({node for row in mine for node in (row.of, row.other)} - {worst_node}))
            sentence = f"node {worst_node}: its clock is {_apart(offset_ms)} the clocks of {others}"
            facts.append(Fact(limits.state(row.least_ms), sentence, Code.CLOCK, f"node {worst_node}"))
        else:
            sentence = f"node {row.other}: its clock is {_apart(row.offset_ms)} the one of node {row.of}"
            facts.append(Fact(limits.state(row.least_ms), sentence, Code.CLOCK, f"node {row.other}"))
        left = {pair: row for pair, row in left.items() if worst_node not in pair}
    peers: dict[str, _ClockRow] = {}
    for row in _clock_rows(nodes, "peers", "peer"):
        before = peers.get(row.other)
        if before is None or (before.of in wrong and row.of not in wrong):
            peers[row.other] = row
    for peer, row in sorted(peers.items()):
        if limits.state(row.least_ms) > ProbeState.OK:
            sentence = f"peer {peer}: its clock is {_apart(row.offset_ms)} the one of node {row.of}"
            facts.append(Fact(limits.state(row.least_ms), sentence, Code.CLOCK, f"peer {peer}"))
    return facts


def clocks_unknown(nodes: Mapping[str, Any], unknown: Mapping[str, Any]) -> list[Fact]:
    """A fact for each node whose measurements are not known: it does not answer, or is of an earlier version."""
    facts = []
    for node, one in nodes.items():
        if not isinstance(one, dict):
            why = f"node {node}: what it has measured is not known: {cell(unknown.get(node))}"
            facts.append(Fact(ProbeState.UNKNOWN, why, Code.NODE_SILENT, f"node {node}"))
        elif not one.get("clocks"):
            why = f"node {node} does not report clocks: it runs an earlier version"
            facts.append(Fact(ProbeState.UNKNOWN, why, Code.NOT_KNOWN, f"node {node}"))
    return facts


def clocks_fine(nodes: Mapping[str, Any]) -> str:
    """The sentence about clocks that are right."""
    rows = [*_clock_rows(nodes, "nodes", "node"), *_clock_rows(nodes, "peers", "peer")]
    others = len({row.other for row in rows})
    if not others:
        return "no other clock is known here: no other node, and no link has answered"
    return f"{clause(others, 'clock', 'is', 'are')} at most {milliseconds(max(row.least_ms for row in rows))} apart"


def _apart(offset_ms: float) -> str:
    return f"{milliseconds(abs(offset_ms))} {'ahead of' if offset_ms > 0 else 'behind'}"


def _renewed_facts(node: str, renewed: Sequence[Row]) -> Iterable[Fact]:
    """Partitions that took another actor: their cluster went back to an earlier state."""
    by_cluster: dict[str, list[Any]] = {}
    for row in renewed:
        by_cluster.setdefault(str(row.get("cluster")), []).append(row.get("partition"))
    for cluster, partitions in sorted(by_cluster.items()):
        words = (
            f"{cluster} holds writes of this cluster that it has lost, in {_some(sorted(set(partitions)))}: it went "
            "back to an earlier state, and writes under another actor since"
        )
        yield Fact(ProbeState.CRITICAL, words, Code.ACTOR_RENEWED, f"node {node}")


def _nodes_with_failing_links(answers: Mapping[str, Row]) -> list[str]:
    rows = objects_in(answers.get("sinks", {}), "nodes")
    links = {str(row.get("node")): objects_in(object_in(row, "sink"), "sinks") for row in rows}
    return [node for node, found in links.items() if any(link.get("state") == "failing" for link in found)]
