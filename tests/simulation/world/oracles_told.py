"""The oracle about what operators are told: every served answer is true, or says that it does not know.

At each look it asks one running node for one of the answers that `isthmus status`, `check`, `lag`, `gaps`, `ledger` and
`explain` read, over the network. What the world holds is noted before the request and after the answer, and an answer
must fit what was so in between: facts that did not change must be told as they are, numbers that only rise must lie
between both, and whatever is unknown may be null. Each answer is judged by a pure function.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterator, Mapping
from random import Random
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import quote_plus

from isthmus.queues.window import Window
from isthmus.repl.metastore.port import SessionState
from isthmus.repl.model.entry import decode_key_row
from isthmus.repl.model.keys import Key, key_hash
from isthmus.repl.model.record import PartitionRecord, PartitionStatus
from isthmus.repl.model.requests import PushOutcome
from isthmus.repl.model.vclock import decode_clock, descends
from isthmus.repl.store.port import Change
from isthmus.repl.store.rows import CHANGE_TAG, KEY_TAG, SEGMENT_BYTES, U32, U64, decode_change, decode_u64, split_tail
from tests.simulation.world.asking import Answer, NoAnswer, ask
from tests.simulation.world.kernel import SECOND
from tests.simulation.world.node import ADMIN_PORT
from tests.simulation.world.node_state import (
    leaders_of,
    records_of,
    registered,
    rows_of,
    running,
    services_of,
    shown,
)

if TYPE_CHECKING:
    from tests.simulation.world.clusters import WorldCluster
    from tests.simulation.world.node import WorldNode
    from tests.simulation.world.world import World

STABLE_S = 10.0
"""A fact that has been so for this virtual time is known to every node that has its session with the metastore: the
session's time-out of 6 s, and a watch."""

ASKING_MAX = 2
"""Most questions under way: a frozen node answers late."""


# -- what is so ------------------------------------------------------------------------------------------------------


class CopyTruth(NamedTuple):
    """One replica. Its offsets only rise within one life and epoch."""

    life: tuple[int, int]
    """(number of the node's process, epoch)"""
    leo: int
    hw: int
    applied: int


class WindowTruth(NamedTuple):
    """The window of a queue at a partition's leader."""

    life: tuple[str, int, int]
    """(node, number of its process, epoch)"""
    gaps: frozenset[tuple[int, int]]
    """(start, end), of those in CURSOR entries."""
    waiting: frozenset[int]
    """Offsets of the change rows that the queue offers and that are not settled."""


class QueueTruth(NamedTuple):
    """A queue on one node."""

    boots: int
    served: int
    acknowledged: int
    serving_suspended: bool


class CheckTruth(NamedTuple):
    """What a node's full-sync has found of one bucket type; times by its wall clock."""

    boots: int
    newest: tuple[int, str] | None
    """(begin in ms, verdict) of the newest check."""
    proven_ms: int | None
    equal_ms: int | None


class ReceivedTruth(NamedTuple):
    """Changes that a node's sink has fetched, and what became of them; they only rise within one process."""

    boots: int
    fetched: int
    applied: int
    merged: int
    superseded: int
    rejected: int
    failed: int


class ClockTruth(NamedTuple):
    """A node's wall clock, and how fast it runs."""

    wall_ns: int
    drift: float


class Truth(NamedTuple):
    """What is so in one cluster at one moment, and since when it has been so."""

    at_ns: int
    connected: bool
    """The asked node has its session with the metastore, is not frozen, and was not lately."""
    records: Mapping[int, PartitionRecord]
    registered: frozenset[str]
    copies: Mapping[tuple[str, int], CopyTruth]
    windows: Mapping[tuple[str, int], WindowTruth]
    queues: Mapping[tuple[str, str], QueueTruth]
    """(node, queue) -> its state there."""
    settled: frozenset[str]
    """Subjects ("partition 3", "node east-1") that have been as they are for STABLE_S."""
    checks: Mapping[tuple[str, str, str], CheckTruth] = {}
    """(node, full-sync, bucket type) -> what that node knows of it."""
    received: Mapping[tuple[str, str, str], ReceivedTruth] = {}
    """(node, uuid of a cluster in hex, queue) -> what that node's sink has fetched."""
    clocks: Mapping[str, ClockTruth] = {}
    """Node -> its clock."""


class Moment(NamedTuple):
    """What was so before a question and after its answer."""

    before: Truth
    after: Truth

    def steady(self, subject: str) -> bool:
        """Whether the subject was as it is for long, and still is."""
        return subject in self.before.settled and subject in self.after.settled

    def record(self, partition: int) -> PartitionRecord | None:
        """A record that every connected node must know; None if it changed lately."""
        found = self.before.records.get(partition)
        same = found is not None and self.after.records.get(partition) == found
        return found if same and self.steady(f"partition {partition}") else None

    @property
    def known(self) -> bool:
        """Whether the asked node must know what is in the metastore."""
        return self.before.connected and self.after.connected


# -- judgements ------------------------------------------------------------------------------------------------------


def judge_cluster(document: Mapping[str, Any], moment: Moment) -> list[str]:
    """`GET /admin/cluster`: nodes' states, counts of partitions, and "online" without a problem."""
    if not moment.known or document["metastore"] != "connected" or document["read_at_ms"] is None:
        return []
    if document["outdated_why"]:
        return []
    wrong = []
    for row in document["nodes"]:
        name, live = row["name"], row["name"] in moment.before.registered
        if moment.steady(f"node {name}") and (row["state"] == "gone") is live:
            wrong.append(f"node {name} is {row['state']}; it is {'' if live else 'not '}registered")
    under, below = set(document["under_replicated"]), set(document["below_min_isr"])
    troubled = False
    for number in moment.before.records:
        record = moment.record(number)
        if record is None:
            continue
        lacks = len(record.isr) < record.factor
        if (number in under) is not lacks:
            wrong.append(f"partition {number} {'is' if number in under else 'is not'} said to lack replicas in sync")
        if (number in below) is not (len(record.isr) < record.effective_min_isr):
            wrong.append(f"partition {number} {'is' if number in below else 'is not'} said to be below min-ISR")
        troubled |= lacks or record.status is not PartitionStatus.ONLINE
    if troubled and not document["problems"]:
        wrong.append("no problem is told, and some partition is not online with all its replicas in sync")
    if troubled and document["state"] == "online":
        wrong.append("its state is online, and some partition is not online with all its replicas in sync")
    return wrong


NOT_READ: Final = "nothing is decided, its record cannot be read"
"""How the reason of a partition begins whose record the asked node could not read lately."""


def judge_partitions(document: Mapping[str, Any], moment: Moment) -> list[str]:
    """`GET /admin/partitions`: leader, replicas in sync, epoch and status of the records; offsets of the replicas."""
    wrong = []
    rows = {row["partition"]: row for row in document["partitions"]}
    for number, row in rows.items():
        record = moment.record(number)
        if record is not None and moment.known and not row["reason"].startswith(NOT_READ):
            leader = None if record.leader is None else record.leader.node
            members = sorted(member.node for member in record.isr)
            told = row["leader"], row["isr"], row["epoch"], row["status"]
            if told != (leader, members, record.epoch, record.status.value):
                wrong.append(f"partition {number}: {told}; its record has {(leader, members, record.epoch)}")
            if sorted(row["replicas"]) != sorted(record.replicas):
                wrong.append(f"partition {number}: replicas {row['replicas']}; its record has {record.replicas}")
        for state in row["replica_states"]:
            at = state["node"], number
            before, after = moment.before.copies.get(at), moment.after.copies.get(at)
            if before is None or after is None or before.life != after.life or state["epoch"] != after.life[1]:
                continue
            for word in ("leo", "hw", "applied"):
                low, high, value = getattr(before, word), getattr(after, word), state[word]
                if value is not None and low <= high and not low <= value <= high:
                    wrong.append(f"partition {number} at {state['node']}: {word} {value}; it went from {low} to {high}")
    if moment.known:
        wrong += [
            f"partition {number} is not told"
            for number in moment.before.records
            if number not in rows and moment.record(number) is not None
        ]
    return wrong


def judge_lag(document: Mapping[str, Any], moment: Moment) -> list[str]:
    """`GET /admin/lag`: where a change waited all the time, a queue is not said to be nothing behind. Of a node that is
    cut off from the metastore, which may take another one for the leader, nothing is asked."""
    if not moment.known:
        return []
    wrong = []
    for row in document["lag"]:
        if row["objects"] != 0 and row["seconds"] != 0.0:
            continue
        for number, record in moment.before.records.items():
            before, after = (each.windows.get((row["queue"], number)) for each in moment)
            if record.bucket_type != row["bucket_type"] or before is None or after is None:
                continue
            if before.life == after.life and (waiting := before.waiting & after.waiting):
                wrong.append(
                    f"queue {row['queue']}, bucket type {row['bucket_type']}: nothing waits; in partition {number} the "
                    f"changes {sorted(waiting)[:5]} do"
                )
    return wrong


def judge_gaps(document: Mapping[str, Any], moment: Moment) -> list[str]:
    """`GET /admin/gaps`: a gap that was open all the time is told, and none that was not open at all."""
    told: dict[tuple[str, int], set[int]] = {}
    for row in document["gaps"]:
        if row["partition"] is not None:
            told.setdefault((row["queue"], row["partition"]), set()).add(row["from_offset"])
    wrong = []
    for at, before in moment.before.windows.items():
        after, (queue, number) = moment.after.windows.get(at), at
        if after is None or after.life != before.life:
            continue
        open_before, open_after = ({start for start, _ in each.gaps} for each in (before, after))
        named = told.get(at, set())
        unknown = (
            before.life[0] in document["unknown"]
            or number in document["unknown_partitions"].get(queue, ())
            or not moment.known
            or before.life[0] not in moment.before.registered & moment.after.registered
        )
        if not unknown and (missing := (open_before & open_after) - named):
            wrong.append(f"queue {queue}, partition {number}: open gaps from {sorted(missing)} are not told")
        if open_before == open_after and (more := named - open_before):
            wrong.append(f"queue {queue}, partition {number}: gaps from {sorted(more)} are told, and none is open")
    return wrong


def judge_ledger(document: Mapping[str, Any], moment: Moment) -> list[str]:
    """`GET /admin/ledger`: every ledger closes, or it is not known whether."""
    return [
        f"the ledger of {row['direction']} {row['queue']} does not close: {row}"
        for row in document["ledger"]
        if row["closes"] is False or row.get("lost")
    ]


def judge_queues(document: Mapping[str, Any], moment: Moment) -> list[str]:
    """`GET /admin/queues`: what was served and acknowledged, and whether serving is suspended."""
    wrong = []
    for row in document["queues"]:
        at = row["node"], row["name"]
        before, after = moment.before.queues.get(at), moment.after.queues.get(at)
        if before is None or after is None or before.boots != after.boots:
            continue
        for word in ("served", "acknowledged"):
            low, high = getattr(before, word), getattr(after, word)
            if not low <= row[word] <= high:
                wrong.append(f"queue {row['name']}: {word} {row[word]}; it went from {low} to {high}")
        if before.serving_suspended == after.serving_suspended != (row["suspended"] is not None):
            wrong.append(f"queue {row['name']}: suspended {row['suspended']}; it is {after.serving_suspended}")
    return wrong


def judge_findings(document: Mapping[str, Any], moment: Moment) -> list[str]:
    """`GET /admin/findings`: what has been amiss for long is found, or something is said to be unknown; and nothing is
    found of partitions that have been well for long."""
    codes = {finding["code"] for finding in document["findings"]}
    if not moment.known:
        return []
    wrong = [] if codes.isdisjoint(AMISS) else _untrue(document, moment)
    if any(finding["severity"] == "unknown" for finding in document["findings"]):
        return wrong
    for number in moment.before.records:
        record = moment.record(number)
        if record is None:
            continue
        if record.status is not PartitionStatus.ONLINE and "offline" not in codes:
            wrong.append(f"partition {number} is {record.status.value}, and no finding says so")
        elif record.status is PartitionStatus.ONLINE and len(record.isr) < record.factor and "out-of-sync" not in codes:
            wrong.append(f"partition {number} lacks replicas in sync, and no finding says so")
    if "gaps" not in codes:
        for (queue, number), before in moment.before.windows.items():
            after = moment.after.windows.get((queue, number))
            same = after is not None and (after.life, after.gaps) == (before.life, before.gaps)
            if same and before.gaps and moment.steady(f"gaps {queue} {number}"):
                wrong.append(f"queue {queue}, partition {number} has gaps, and no finding says so")
    return wrong


AMISS: Final = frozenset(("offline", "min-isr", "out-of-sync"))
"""Codes of findings about partitions that are not online with all their replicas in sync."""


def _untrue(document: Mapping[str, Any], moment: Moment) -> list[str]:
    records = [moment.record(number) for number in moment.before.records]
    for record in records:
        if record is None or record.status is not PartitionStatus.ONLINE or len(record.isr) < record.factor:
            return []
    return [
        f"all partitions are online with all replicas in sync, and a finding says: {finding['sentence']}"
        for finding in document["findings"]
        if finding["code"] in AMISS and finding["subject"] == "cluster"
    ]


def judge_fullsync(document: Mapping[str, Any], moment: Moment) -> list[str]:
    """`GET /admin/fullsync/nodes`: the newest verdict, and the times as of which clusters are proven, or equal."""
    wrong = []
    for node, report in document["nodes"].items():
        for peer in () if report is None else report["peers"]:
            for bucket_type in peer["bucket_types"]:
                at = node, peer["name"], bucket_type
                before, after = moment.before.checks.get(at), moment.after.checks.get(at)
                if before is None or before != after:
                    continue
                newest = peer["newest"][bucket_type]
                told = (
                    None if newest is None else (newest["began_ms"], newest["verdict"]),
                    peer["proven_ms"][bucket_type],
                    peer["equal_ms"][bucket_type],
                )
                if told != before[1:]:
                    wrong.append(
                        f"{node}, full-sync {peer['name']}, bucket type {bucket_type}: {told}; it is {before[1:]}"
                    )
    return wrong


def judge_sinks(document: Mapping[str, Any], moment: Moment) -> list[str]:
    """`GET /admin/sink/nodes`: what was fetched from each cluster, and what became of it."""
    wrong = []
    for row in document["nodes"]:
        for source in () if row["sink"] is None else row["sink"]["sources"]:
            at = row["node"], source["source_uuid"], source["queue"]
            before, after = moment.before.received.get(at), moment.after.received.get(at)
            if before is None or after is None or before.boots != after.boots:
                continue
            for word in ReceivedTruth._fields[1:]:
                low, high = getattr(before, word), getattr(after, word)
                if not low <= source[word] <= high:
                    wrong.append(
                        f"{row['node']}, queue {source['queue']}: {word} {source[word]}; it went from {low} to {high}"
                    )
    return wrong


CLOCK_SLACK_MS: Final = 1000.0
"""An offset from which on a clock is called wrong; a better measurement is kept while a worse one agrees with it."""

CLOCK_KEPT_S: Final = 65.0
"""A good measurement is kept for a minute, and repeated every 5 s."""


def judge_health(document: Mapping[str, Any], moment: Moment) -> list[str]:
    """`GET /admin/nodes/health`: how far the clocks of nodes are apart, where nobody has set them for long and the
    nodes reach each other."""
    wrong = []
    for node, report in document["nodes"].items():
        for row in () if report is None else report["clocks"].get("nodes", ()):
            other, clocks = row["node"], moment.after.clocks
            if not all(moment.steady(each) for each in (f"clock {node}", f"clock {other}", f"reach {node} {other}")):
                continue
            if node not in clocks or other not in clocks:
                continue
            offset_ms = (clocks[other].wall_ns - clocks[node].wall_ns) / 1_000_000
            slack_ms = CLOCK_SLACK_MS + abs(clocks[node].drift - clocks[other].drift) * CLOCK_KEPT_S * 1000
            if abs(row["offset_ms"] - offset_ms) > row["bound_ms"] + slack_ms:
                told = f"{row['offset_ms']} ms, bound {row['bound_ms']} ms"
                wrong.append(f"the clock of {other} is {offset_ms:.0f} ms ahead of that of {node}, which says {told}")
    return wrong


LAG: Final = "/admin/lag"

EXPLAIN: Final = "/admin/explain"

Judgement = Callable[[Mapping[str, Any], Moment], list[str]]

DOCUMENTS: Final[Mapping[str, Judgement]] = {
    "/admin/cluster": judge_cluster,
    "/admin/partitions": judge_partitions,
    LAG: judge_lag,
    "/admin/gaps": judge_gaps,
    "/admin/ledger": judge_ledger,
    "/admin/queues": judge_queues,
    "/admin/findings": judge_findings,
    "/admin/fullsync/nodes": judge_fullsync,
    "/admin/sink/nodes": judge_sinks,
    "/admin/nodes/health": judge_health,
}
"""Path -> the judgement of its answer."""


# -- one key ---------------------------------------------------------------------------------------------------------


class KeyTruth(NamedTuple):
    """One key in all clusters: cluster -> encoded clock, None where it is absent or no leader serves; and what would
    change where data were lost."""

    clocks: Mapping[str, bytes | None]
    tombstones: Mapping[str, bool]
    lives: Any


def judge_key(
    document: Mapping[str, Any], own: str, before: KeyTruth, after: KeyTruth, believed: Collection[str] = ()
) -> list[str]:
    """`GET /admin/explain`: the key's clock here, its state in other clusters, and "acknowledged" only where the other
    cluster has it. `believed`: queues of which an operator has closed gaps, whose changes then count as
    acknowledged."""
    wrong = []
    clock = after.clocks.get(own)
    if before.clocks.get(own) != clock or not document["known"]:
        return []
    found = document["object"]
    said, is_so = None if found is None else found["clock"], None if clock is None else clock.hex()
    if said != is_so:
        wrong.append(f"its clock is said to be {said}, and it is {is_so}")
        return wrong
    if clock is None or before.lives != after.lives:
        return wrong
    for side in document["other_sides"]:
        there = after.clocks.get(side["fullsync"])
        if before.clocks.get(side["fullsync"]) != there or there is None:
            continue
        same = decode_clock(there) == decode_clock(clock)
        if side["state"] == "equal" and not same:
            wrong.append(f"cluster {side['fullsync']} is said to have the same, and it has {there.hex()}")
        if side["state"] == "absent" and not after.tombstones.get(side["fullsync"]):
            wrong.append(f"cluster {side['fullsync']} is said to lack it, and it has {there.hex()}")
    for queue in document["queues"] or ():
        there = after.clocks.get(str(queue["owner"]))
        if queue["state"] != "acknowledged" or there is None or queue["queue"] in believed:
            continue
        if document["dead_letters"] or after.tombstones.get(own):
            continue
        if not descends(decode_clock(there), decode_clock(clock)):
            wrong.append(f"queue {queue['queue']}: acknowledged, and {queue['owner']} has {there.hex()}")
    return wrong


# -- asking ----------------------------------------------------------------------------------------------------------


class Told:
    """Asks and judges."""

    name = "told"

    def __init__(self, seed: int | str) -> None:
        self._chance = Random(f"{seed}/told")
        self._since: dict[tuple[str, str], tuple[Any, int]] = {}
        """(cluster, subject) -> (its state, since when it is so)."""
        self._unsure_ns: dict[str, int] = {}
        """Node -> when it was last seen frozen or without its session."""
        self._asking: set[asyncio.Task[None]] = set()
        self._wrong: list[str] = []
        self.judged: dict[str, int] = {}
        """Path -> answers that were judged."""

    def look(self, world: World) -> list[str]:
        for cluster in world.clusters.values():
            self._note(world, cluster)
        if len(self._asking) < ASKING_MAX:
            nodes = [node for node in world.nodes if services_of(node) is not None and not node.machine.frozen]
            if nodes:
                self._begin(world, self._chance.choice(nodes), self._chance.choice((*DOCUMENTS, EXPLAIN)))
        return self._taken()

    def judge(self, world: World) -> list[str]:
        """Every answer of one node of each cluster, now that all is quiet."""
        for cluster in world.clusters.values():
            self._note(world, cluster)
            nodes = [node for node in cluster.nodes.values() if services_of(node) is not None]
            for path in (*DOCUMENTS, EXPLAIN) if nodes else ():
                self._begin(world, self._chance.choice(nodes), path, quiet=True)
        world.run_until(lambda: not self._asking, 60.0, "operators get their answers")
        return self._taken()

    def _taken(self) -> list[str]:
        found, self._wrong = self._wrong, []
        return found

    def _begin(self, world: World, node: WorldNode, path: str, *, quiet: bool = False) -> None:
        work = self._explain(world, node, quiet=quiet) if path == EXPLAIN else self._ask(world, node, path, quiet=quiet)
        task = world.operators.loop.create_task(work, name=f"{path} of {node.name}")
        self._asking.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._asking.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._wrong.append(f"{task.get_name()} could not be judged: {error!r}")

    async def _ask(self, world: World, node: WorldNode, path: str, *, quiet: bool) -> None:
        waiting = path == LAG
        before = self._truth(world, node, waiting=waiting)
        answer = await _answer_of(node, path)
        if answer is None:
            return
        moment = Moment(before, self._truth(world, node, waiting=waiting))
        self.judged[path] = self.judged.get(path, 0) + 1
        wrong = DOCUMENTS[path](answer.document, moment)
        if quiet and path in AT_QUIET:
            wrong += AT_QUIET[path](answer.document, moment)
        self._wrong += [f"{node.name} answers {path}: {what}" for what in wrong]

    async def _explain(self, world: World, node: WorldNode, *, quiet: bool) -> None:
        key = _some_key(world.clusters[node.cluster], self._chance)
        if key is None:
            return
        before = key_truth(world, key)
        names = (("type", key.bucket_type), ("bucket", key.bucket), ("key", key.key))
        query = "&".join(f"{word}={quote_plus(quote_plus(name))}" for word, name in names)
        answer = await _answer_of(node, f"{EXPLAIN}?{query}")
        if answer is None:
            return
        self.judged[EXPLAIN] = self.judged.get(EXPLAIN, 0) + 1
        losses = world.history.losses
        believed = {loss.queue for loss in losses if loss.cluster == node.cluster and loss.what == "gaps-close"}
        wrong = judge_key(answer.document, node.cluster, before, key_truth(world, key), believed)
        wrong += judge_quiet_key(answer.document) if quiet else []
        self._wrong += [f"{node.name} explains {shown(key)}: {what}" for what in wrong]

    # What is so

    def _note(self, world: World, cluster: WorldCluster) -> None:
        """Note since when the facts of a cluster have been as they are."""
        now_ns = world.kernel.now_ns
        facts: dict[str, Any] = {f"partition {number}": record for number, record in records_of(cluster).items()}
        live = registered(cluster)
        facts |= {f"node {name}": name in live for name in cluster.nodes}
        for (queue, number), window in _windows(cluster).items():
            facts[f"gaps {queue} {number}"] = window.life, window.gaps
        for name, node in cluster.nodes.items():
            machine, services = node.machine, services_of(node)
            facts[f"clock {name}"] = machine.wall_offset_ns, machine.drift, machine.boots, machine.frozen
            if services is not None:
                facts |= {f"reach {name} {other}": None for other in cluster.nodes if services.runtime.reaches(other)}
        for at in [at for at in self._since if at[0] == cluster.name and at[1] not in facts]:
            del self._since[at]
        for subject, state in facts.items():
            at = cluster.name, subject
            if at not in self._since or self._since[at][0] != state:
                self._since[at] = state, now_ns
        for name, node in cluster.nodes.items():
            services = services_of(node)
            if node.machine.frozen or services is None or services.session is not SessionState.CONNECTED:
                self._unsure_ns[name] = now_ns

    def _truth(self, world: World, asked: WorldNode, *, waiting: bool) -> Truth:
        cluster = world.clusters[asked.cluster]
        self._note(world, cluster)
        now_ns = world.kernel.now_ns
        copies, queues, checks, received = {}, {}, {}, {}
        for name, services in running(cluster).items():
            boots = cluster.nodes[name].machine.boots
            for number, partition in services.runtime.partitions.items():
                replica = partition.replica
                life = boots, replica.epoch
                copies[name, number] = CopyTruth(life, replica.leo, replica.high_watermark, replica.applied)
            for queue, machine in services.queues.machines().items():
                suspended = services.queues.named(queue).serving_suspension is not None
                counts = machine.counts
                queues[name, queue] = QueueTruth(boots, counts.served, counts.acknowledged, suspended)
            for peer_name, peer in services.fullsync.scheduler.peers.items():
                history = peer.history
                for bucket_type in peer.bucket_types:
                    newest = next((one for one in reversed(history.results) if one.bucket_type == bucket_type), None)
                    checks[name, peer_name, bucket_type] = CheckTruth(
                        boots,
                        None if newest is None else (newest.began_ms, newest.verdict.value),
                        history.proven_ms.get(bucket_type),
                        history.equal_ms.get(bucket_type),
                    )
            for source in services.sink.sources():
                received[name, source.cluster.hex(), source.queue] = ReceivedTruth(
                    boots,
                    source.fetched_count,
                    *(source.outcomes[PushOutcome(word)] for word in ReceivedTruth._fields[2:]),
                )
        settled = frozenset(
            subject
            for (name, subject), (_, since_ns) in self._since.items()
            if name == cluster.name and now_ns - since_ns >= STABLE_S * SECOND
        )
        unsure_ns = self._unsure_ns.get(asked.name)
        connected = unsure_ns is None or now_ns - unsure_ns >= STABLE_S * SECOND
        return Truth(
            now_ns,
            connected,
            records_of(cluster),
            registered(cluster),
            copies,
            _windows(cluster, waiting=waiting),
            queues,
            settled,
            checks,
            received,
            {name: ClockTruth(each.machine.wall_ns(), each.machine.drift) for name, each in cluster.nodes.items()},
        )


def judge_quiet_cluster(document: Mapping[str, Any], moment: Moment) -> list[str]:
    """Nothing is amiss."""
    if document["state"] != "online" or document["problems"]:
        return [f"it is {document['state']}: {document['state_reason']} {document['problems']}, and all is quiet"]
    return [f"it warns, and all is quiet: {each}" for each in document["warnings"]]


def judge_quiet_lag(document: Mapping[str, Any], moment: Moment) -> list[str]:
    """Nothing is behind, and it is known."""
    return [
        f"queue {row['queue']}, bucket type {row['bucket_type']}, is {row['seconds']} s and {row['objects']} objects "
        f"behind, and all is quiet: {row['reason']}"
        for row in document["lag"]
        if row["cluster"] and (row["seconds"], row["objects"], row["in_flight"]) != (0.0, 0, 0)
    ]


def judge_quiet_ledger(document: Mapping[str, Any], moment: Moment) -> list[str]:
    """Every ledger closes, and it is known."""
    return [
        f"the ledger of {row['direction']} {row['queue']} is {row['state']}: {row['reason']}, and all is quiet"
        for row in document["ledger"]
        if row["cluster"] and row["closes"] is not True
    ]


def judge_quiet_key(document: Mapping[str, Any]) -> list[str]:
    """Every other side is known."""
    return [
        f"cluster {side['fullsync']} is not known, and all is quiet: {side['reason']}"
        for side in document["other_sides"]
        if side["state"] == "unknown"
    ]


NOT_AT_QUIET: Final = frozenset(
    (
        "defect",
        "fullsync",
        "lag",
        "links-fail",
        "metastore",
        "min-isr",
        "node-silent",
        "not-known",
        "offline",
        "out-of-sync",
        "short",
        "undialled",
    )
)
"""Codes of findings that nothing is left of once all is healed and quiet. Others may stay until an operator acts."""


def judge_quiet_findings(document: Mapping[str, Any], moment: Moment) -> list[str]:
    """What was amiss is found no more."""
    return [
        f"it finds {finding['code']}, and all is quiet: {finding['sentence']}"
        for finding in document["findings"]
        if finding["code"] in NOT_AT_QUIET
    ]


AT_QUIET: Final[Mapping[str, Judgement]] = {
    "/admin/cluster": judge_quiet_cluster,
    LAG: judge_quiet_lag,
    "/admin/ledger": judge_quiet_ledger,
    "/admin/findings": judge_quiet_findings,
}


async def _answer_of(node: WorldNode, path: str) -> Answer | None:
    """A node's answer; None where it gives none, or refuses: then nothing is claimed."""
    try:
        answer = await ask(node.machine.address, ADMIN_PORT, "GET", path, credentials=node.credentials)
    except NoAnswer:
        return None
    return answer if answer.status == 200 else None


def _windows(cluster: WorldCluster, *, waiting: bool = False) -> dict[tuple[str, int], WindowTruth]:
    """Of all leaders, with what waits if `waiting`."""
    found = {}
    for number, led in leaders_of(cluster).items():
        life = led.node, cluster.nodes[led.node].machine.boots, led.partition.replica.epoch
        for name, machine in led.services.queues.machines().items():
            window = machine.windows.get(number)
            if window is not None:
                gaps = frozenset((gap.start, gap.end) for gap in window.state.gaps)
                waits = _waiting(rows_of(led.services), window) if waiting else ()
                found[name, number] = WindowTruth(life, gaps, frozenset(waits))
    return found


def _waiting(rows: Any, window: Window) -> Iterator[int]:
    return (row.offset for row in unsettled_of(rows, window))


def unsettled_of(rows: Any, window: Window) -> Iterator[Change]:
    """The change rows from the settled prefix on that the queue offers and that are not settled, nor given up."""
    settled = window._settled_places, window._settled_rows, window._skip_rows
    first = next((place for place in window._served if place not in window._settled_places), None)
    if first is None:
        first = next((place for place in window._fresh if place in window.waiting), window.scan)
    start = CHANGE_TAG + U32.pack(window.partition)
    for name in rows.irange(start + U64.pack(first), start + U64.pack(window.applied), (True, False)):
        row = decode_change(decode_u64(name[len(start) :]), rows[name])
        given_up = any(gap.start <= row.offset < gap.end for gap in window.unrecorded_gaps())
        if window.offers_row(row) and not given_up and not any(row.offset in offsets for offsets in settled):
            yield row


def _some_key(cluster: WorldCluster, chance: Random) -> Key | None:
    """A key that some leader has."""
    leaders = leaders_of(cluster)
    if not leaders:
        return None
    number = chance.choice(sorted(leaders))
    led = leaders[number]
    rows, start = rows_of(led.services), KEY_TAG + U32.pack(number)
    names = list(rows.irange(start, KEY_TAG + U32.pack(number + 1), (True, False)))
    if not names:
        return None
    bucket, key = split_tail(chance.choice(names)[len(start) + SEGMENT_BYTES :])
    return Key(led.partition.bucket_type, bucket, key)


def key_truth(world: World, key: Key) -> KeyTruth:
    """A key in all clusters, as their leaders have it."""
    clocks: dict[str, bytes | None] = {}
    tombstones: dict[str, bool] = {}
    lives = []
    hash64 = key_hash(key.bucket, key.key)
    for name, cluster in world.clusters.items():
        lives += [(node.name, node.machine.boots) for node in cluster.nodes.values()]
        clocks[name] = None
        for number, led in leaders_of(cluster).items():
            if led.partition.bucket_type != key.bucket_type:
                continue
            found = led.services.store.key_row(number, hash64, key.bucket, key.key)
            if found is not None:
                row = decode_key_row(found)
                clocks[name], tombstones[name] = row.clock, row.tombstone
    return KeyTruth(clocks, tombstones, tuple(lives))
