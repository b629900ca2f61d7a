"""Oracles about the state of nodes: equal contents, versions, ledgers, bounds, errors.

Each has pure parts that judge plain values, which tests call with states that must be refused.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from isthmus.aae.exchange.exchange import PROVING, ExchangeVerdict
from isthmus.aae.scheduling.history import CheckResult
from isthmus.node.services.container import NodeServices
from isthmus.queues.status import ledger
from isthmus.repl.model.entry import CHANGES, decode_key_row
from isthmus.repl.model.vclock import decode_clock, descends, parts_of
from isthmus.repl.store.rows import KEY_TAG, OBJECT_TAG, SEGMENT_BYTES, U32, split_tail
from tests.simulation.world.kernel import SECOND
from tests.simulation.world.node_state import (
    Direction,
    contents_of,
    directions,
    leaders_of,
    named,
    partition_rows,
    raw_object,
    reaped_of,
    records_of,
    rows_of,
    running,
    services_of,
    shown,
    siblings_of,
    uuid_of,
)
from tests.simulation.world.quiet import compared_types, newest_results

if TYPE_CHECKING:
    from tests.simulation.world.clusters import WorldCluster
    from tests.simulation.world.node import WorldNode
    from tests.simulation.world.world import World
    from tests.support.log_watch import LoggedError

NAMED_MAX = 5
"""Most keys that one failure names."""

LOOKS_KEPT = 180

Objects = Mapping[bytes, bytes]
"""Encoded bucket and key -> canonical object."""

Offers = Callable[[bytes], bool]
"""Whether a key, by its encoded bucket and key, is carried in a direction."""


def some(keys: Sequence[str]) -> str:
    """The first of them, and how many there are."""
    return f"{len(keys)} keys: {', '.join(keys[:NAMED_MAX])}"


# -- (b) equal contents ----------------------------------------------------------------------------------------------


def unequal(one: Objects, other: Objects, carried: Offers) -> list[bytes]:
    """The keys whose objects are not the same bytes on both sides, of those that are carried both ways. A key whose
    object has only tombstones equals one that is absent: either side may have reaped it (R-TREE)."""
    return [
        tail
        for tail in sorted(one.keys() | other.keys())
        if one.get(tail) != other.get(tail)
        and not (_absent(one.get(tail)) and _absent(other.get(tail)))
        and carried(tail)
    ]


Reaped = Mapping[tuple[bytes, bytes], bytes]
"""(bucket, key) -> encoded clock of the key's last tombstone, which was reaped."""


def lacking(source: Objects, sink: Objects, carried: Offers, reaped: Reaped) -> list[bytes]:
    """The keys of the source that the sink lacks or has an older or another object of (R-UPTODATE). `reaped`: the
    clocks of tombstones that the sink has reaped."""
    return [
        tail
        for tail, data in source.items()
        if data != sink.get(tail) and carried(tail) and not _has(sink.get(tail), data, tail, reaped)
    ]


def _absent(data: bytes | None) -> bool:
    return data is None or raw_object(data).deleted


def _has(there: bytes | None, data: bytes, tail: bytes, reaped: Reaped) -> bool:
    ours = raw_object(data)
    if there is None:
        gone = reaped.get(split_tail(tail))
        return ours.deleted or (gone is not None and descends(decode_clock(gone), ours.clock))
    theirs = raw_object(there)
    if theirs.clock == ours.clock:  # of equal bytes we would not ask
        return ours.deleted and theirs.deleted
    return descends(theirs.clock, ours.clock) or (ours.deleted and theirs.deleted)


def verdict_is_wrong(verdict: ExchangeVerdict, *, up_to_date: bool, equal: bool, every_key_equal: bool) -> str:
    """What a full-sync's verdict says that is not so; "" if it is right. `equal` and `up_to_date` are about the keys
    that its queue carries, `every_key_equal` about all keys."""
    if verdict is ExchangeVerdict.IN_SYNC and not equal:
        return "it says in-sync, and they differ"
    if verdict in PROVING and not up_to_date:
        return f"it says {verdict.value}, and the sink lacks changes"
    if every_key_equal and verdict is not ExchangeVerdict.IN_SYNC:
        return f"it says {verdict.value}, and they are equal"
    return ""


class KeyState(NamedTuple):
    """What a key row says."""

    clock: bytes
    tombstone: bool
    offset: int


class Seen(NamedTuple):
    """What one look has noted, so that a later one knows what was there before a check began."""

    at_ns: int
    applied: Mapping[tuple[str, int], int]
    """(cluster, partition) -> applied offset of its leader."""
    lives: Mapping[str, Any]
    """Cluster -> what changes when some of its data may have gone: starts of its nodes, lineages of its records."""


class EqualContents:
    """Clusters are equal where they replicate to each other, replicas always, and full-sync says so if and only if it
    is so: at the end, and of each proof while the world runs."""

    name = "equal"

    def __init__(self) -> None:
        self._seen: list[Seen] = []
        self._results: dict[tuple[str, int, str], CheckResult | None] = {}
        """(node, number of its process, full-sync) -> the newest result that was judged."""
        self.proofs_judged = 0

    def look(self, world: World) -> list[str]:
        failures = []
        if self._seen:
            for node in world.nodes:
                services = services_of(node)
                if services is not None:
                    failures += self._judge_results(world, node, services)
        self._seen.append(self._note(world))
        del self._seen[:-LOOKS_KEPT]
        return failures

    @staticmethod
    def _note(world: World) -> Seen:
        applied, lives = {}, {}
        for name, cluster in world.clusters.items():
            for number, led in leaders_of(cluster).items():
                applied[name, number] = led.partition.replica.applied
            lives[name] = _lives(cluster)
        return Seen(world.kernel.now_ns, applied, lives)

    def _judge_results(self, world: World, node: WorldNode, services: NodeServices) -> Iterator[str]:
        for name, peer in services.fullsync.scheduler.peers.items():
            at = node.name, node.machine.boots, name
            first, last = at not in self._results, self._results.get(at)
            results = list(peer.history.results)
            self._results[at] = results[-1] if results else None
            if first and node.machine.boots > 1:
                continue  # they are those of earlier processes
            for result in reversed(results):
                if result is last:
                    break
                if result.verdict in PROVING:
                    yield from self._judge_proof(world, node, name, result)

    def _judge_proof(self, world: World, node: WorldNode, peer: str, result: CheckResult) -> Iterator[str]:
        """A check that ended since the last look: what was applied before it began is at the other cluster."""
        began_ns = self._seen[-1].at_ns - round(result.seconds * SECOND)
        before = next((seen for seen in reversed(self._seen) if seen.at_ns <= began_ns), None)
        direction = next(
            (one for one in directions(world) if one.source.name == node.cluster and one.peer == peer), None
        )
        if before is None or direction is None:
            return
        ends = direction.source, direction.sink
        if any(before.lives.get(each.name) != _lives(each) for each in ends):
            return  # data may have gone since
        bucket_type = result.bucket_type
        rows = {each.name: _key_rows(each, bucket_type, before.applied) for each in ends}
        source, sink = (rows[each.name] for each in ends)
        if source is None or sink is None:
            return
        self.proofs_judged += 1
        reaped = {each.name: reaped_of(each).get(bucket_type, {}) for each in ends}
        ways = [(source, sink, direction.sink)]
        if result.verdict is ExchangeVerdict.IN_SYNC:
            ways.append((sink, source, direction.source))
        for ours, theirs, there in ways:
            missing = [
                shown(named(bucket_type, tail))
                for tail, row in ours.settled.items()
                if _carries(direction, bucket_type, tail)
                and not _row_is_there(row, tail, theirs.now, reaped[there.name])
            ]
            if missing:
                yield (
                    f"{node.name}: full-sync {peer}, bucket type {bucket_type}, says {result.verdict.value}, and "
                    f"{there.name} lacks {some(missing)}"
                )

    def judge(self, world: World) -> list[str]:
        failures = [each for cluster in world.clusters.values() for each in replicas_differ(cluster)]
        contents = {name: contents_of(cluster) for name, cluster in world.clusters.items()}
        results = newest_results(world)
        every = list(directions(world))
        for one in every:
            back = next((other for other in every if other[:2] == (one.sink, one.source)), None)
            reaped = reaped_of(one.sink)
            for bucket_type in compared_types(one):
                here, there = (contents[each.name].get(bucket_type, {}) for each in one[:2])
                failures += _judge_pair(one, back, bucket_type, here, there, reaped.get(bucket_type, {}), results)
        return failures


def _judge_pair(
    one: Direction,
    back: Direction | None,
    bucket_type: str,
    here: Objects,
    there: Objects,
    reaped: Reaped,
    results: Mapping[tuple[str, str, str], CheckResult],
) -> Iterator[str]:
    where = f"{one.source.name} to {one.sink.name}, bucket type {bucket_type}"

    def carried(tail: bytes) -> bool:
        return _carries(one, bucket_type, tail)

    def both(tail: bytes) -> bool:
        return (
            carried(tail)
            and back is not None
            and bucket_type in back.bucket_types
            and _carries(back, bucket_type, tail)
        )

    missing = lacking(here, there, carried, reaped)
    if missing:
        yield f"{where}: not there, older or another: {some([shown(named(bucket_type, tail)) for tail in missing])}"
    differ = unequal(here, there, both)
    if differ and one.source.name < one.sink.name:
        yield f"{where}: not equal: {some([shown(named(bucket_type, tail)) for tail in differ])}"
    result = results.get((one.source.name, one.peer, bucket_type))
    if result is not None:
        wrong = verdict_is_wrong(
            result.verdict,
            up_to_date=not missing,
            equal=not unequal(here, there, carried),
            every_key_equal=not unequal(here, there, lambda _: True),
        )
        if wrong:
            yield f"{where}: full-sync {one.peer}: {wrong}"


def _carries(direction: Direction, bucket_type: str, tail: bytes) -> bool:
    """Whether the direction's queue takes repairs of the key's bucket."""
    rules = direction.queue.filter
    return rules.everything or rules.accepts_repairs(bucket_type.encode(), split_tail(tail)[0])


def _lives(cluster: WorldCluster) -> Any:
    return (
        tuple((node.name, node.machine.boots) for node in cluster.nodes.values()),
        tuple((number, record.lineage, record.incarnation) for number, record in sorted(records_of(cluster).items())),
    )


class KeyRows(NamedTuple):
    """The key rows of a bucket type: those that have not changed since some earlier look, and all as they are now."""

    settled: Mapping[bytes, KeyState]
    now: Mapping[bytes, KeyState]


def _key_rows(cluster: WorldCluster, bucket_type: str, applied: Mapping[tuple[str, int], int]) -> KeyRows | None:
    """Of the leaders; None while some partition has none, or had none before."""
    leaders = leaders_of(cluster)
    settled, now = {}, {}
    for number, record in records_of(cluster).items():
        if record.bucket_type != bucket_type:
            continue
        led = leaders.get(number)
        end = applied.get((cluster.name, number))
        if led is None or end is None:
            return None
        rows = partition_key_rows(led.services, number)
        now.update(rows)
        settled.update((tail, row) for tail, row in rows.items() if row.offset < end)
    return KeyRows(settled, now)


def partition_key_rows(services: NodeServices, partition: int) -> dict[bytes, KeyState]:
    """The key rows of a partition, by encoded bucket and key."""
    rows, start = rows_of(services), KEY_TAG + U32.pack(partition)
    at = len(start) + SEGMENT_BYTES
    found = {}
    for name in rows.irange(start, KEY_TAG + U32.pack(partition + 1), (True, False)):
        row = decode_key_row(rows[name])
        found[name[at:]] = KeyState(row.clock, row.tombstone, row.offset)
    return found


def _row_is_there(row: KeyState, tail: bytes, there: Mapping[bytes, KeyState], reaped: Reaped) -> bool:
    found = there.get(tail)
    if found is None:
        gone = reaped.get(split_tail(tail))
        return row.tombstone or (gone is not None and descends(decode_clock(gone), decode_clock(row.clock)))
    if found.clock == row.clock or (row.tombstone and found.tombstone):
        return True
    return descends(decode_clock(found.clock), decode_clock(row.clock))


def replicas_differ(cluster: WorldCluster) -> list[str]:
    """Replicas whose rows are not the leader's, byte for byte."""
    failures = []
    services = running(cluster)
    leaders = leaders_of(cluster)
    for number, record in records_of(cluster).items():
        led = leaders.get(number)
        if led is None:
            failures.append(f"{cluster.name}: partition {number} has no leader")
            continue
        wanted = partition_rows(led.services, number)
        for name in record.replicas:
            if name == led.node:
                continue
            if name not in services:
                failures.append(f"{name}: it does not run, and should have a copy of partition {number}")
                continue
            rows = partition_rows(services[name], number)
            if rows != wanted:
                wrong = [row for row in sorted(wanted.keys() | rows.keys()) if wanted.get(row) != rows.get(row)]
                failures.append(
                    f"{name}: partition {number} differs from its leader's at {led.node} in {len(wrong)} rows: "
                    f"{[row[:60] for row in wrong[:NAMED_MAX]]}"
                )
    return failures


# -- gaps ------------------------------------------------------------------------------------------------------------


class OpenGap(NamedTuple):
    """A gap of a queue in one partition."""

    cluster: str
    queue: str
    partition: int
    start: int
    end: int


class SeenGap(NamedTuple):
    """What a look saw of an open gap. `end`: of the changes in it; one that grows has room for all that come."""

    owner_version: int
    end: int


class ClosedGaps:
    """A gap that full-sync closes is proven: of the changes in it, those that are their keys' newest are at the other
    cluster. One that an operator closes, or that goes with its queue or owner, claims nothing; nor does one that ends
    before the cursor has reached it: all of it is offered."""

    name = "closed-gaps"

    def __init__(self) -> None:
        self._open: dict[OpenGap, SeenGap] = {}
        self._told = 0
        self._lives: dict[str, list[Any]] = {}
        """Cluster -> see `Seen.lives`, at the last looks."""
        self.closed = 0

    def look(self, world: World) -> list[str]:
        for name, cluster in world.clusters.items():
            self._lives.setdefault(name, []).append(_lives(cluster))
            del self._lives[name][:-LIVES_KEPT]
        now = dict(_open_gaps(world))
        fresh = world.story.lines[self._told :]
        self._told += len(fresh)
        by_others = {line.split()[1] for line in fresh if "queue.gaps_closed" in line and "by='full-sync'" not in line}
        failures = []
        lossy = [each for each in world.history.losses if each.until_ns > world.kernel.now_ns]
        for gap, seen in self._open.items():
            if any(each.cluster == gap.cluster and each.queue in ("", gap.queue) for each in lossy):
                continue  # its record may have gone back
            if gap not in now and not by_others & world.clusters[gap.cluster].nodes.keys():
                failures += self._judge_closed(world, gap, seen, now)
        self._open = now
        return failures

    def judge(self, world: World) -> list[str]:
        return self.look(world)

    def _judge_closed(self, world: World, gap: OpenGap, seen: SeenGap, now: Mapping[OpenGap, SeenGap]) -> Iterator[str]:
        led = leaders_of(world.clusters[gap.cluster]).get(gap.partition)
        machine = None if led is None else led.services.queues.machines().get(gap.queue)
        window = None if machine is None else machine.windows.get(gap.partition)
        if led is None or machine is None or window is None or window.owner_version != seen.owner_version:
            return
        if any(one[:3] == gap[:3] and one.start <= gap.start < one.end for one in now):
            return  # it has grown, or was merged
        sink = next(
            (each for each in world.clusters.values() if machine.owner and uuid_of(each) == machine.owner), None
        )
        if sink is None or any(one != self._lives[sink.name][-1] for one in self._lives[sink.name]):
            return
        bucket_type = led.partition.bucket_type.decode()
        theirs = _key_rows(sink, bucket_type, {(sink.name, number): 0 for number in records_of(sink)})
        if theirs is None:
            return
        self.closed += 1
        reaped = reaped_of(sink).get(bucket_type, {})
        rules = led.services.queues.named(gap.queue).filter
        missing = [
            shown(named(bucket_type, tail))
            for tail, row in partition_key_rows(led.services, gap.partition).items()
            if gap.start <= row.offset < min(seen.end, window.cursor)
            and rules.accepts_repairs(bucket_type.encode(), split_tail(tail)[0])
            and not _row_is_there(row, tail, theirs.now, reaped)
        ]
        if missing:
            yield (
                f"{gap.cluster}: queue {gap.queue}, partition {gap.partition}: the gap from {gap.start} to {seen.end} "
                f"is closed, and {sink.name} lacks {some(missing)}"
            )


LIVES_KEPT = 20
"""Looks before a gap's end in which the sink must not have lost anything: a check, and what closes gaps, end sooner."""


def _open_gaps(world: World) -> Iterator[tuple[OpenGap, SeenGap]]:
    for name, cluster in world.clusters.items():
        for number, led in leaders_of(cluster).items():
            for queue, machine in led.services.queues.machines().items():
                window = machine.windows.get(number)
                for gap in () if window is None else window.state.gaps:
                    seen = SeenGap(window.owner_version, min(gap.end, window.applied))
                    yield OpenGap(name, queue, number, gap.start, gap.end), seen


class BegunGaps:
    """No gap begins where the queue's filter includes nothing of the bucket type: nothing is left out there, and checks
    that compare what is replicated never close one. A gap from before the filter was narrowed stays."""

    name = "begun-gaps"

    def __init__(self) -> None:
        self._seen: dict[tuple[str, str, int], tuple[Any, ...]] = {}
        """Cluster, queue, partition -> leader, its process and epoch, command, and gaps, where the filter includes
        nothing."""

    def look(self, world: World) -> list[str]:
        failures, before, self._seen = [], self._seen, {}
        for name, cluster in world.clusters.items():
            for number, led in leaders_of(cluster).items():
                for queue, machine in led.services.queues.machines().items():
                    window, rules = machine.windows.get(number), led.services.queues.named(queue).filter
                    if window is None or rules.includes_some(window.bucket_type):
                        continue
                    starts = {gap.start for gap in window.state.gaps}
                    here = (id(led.services), led.partition.replica.epoch, window.state.command_version)
                    then = before.get((name, queue, number))
                    if then is not None and then[:-1] == here and not starts <= then[-1]:
                        failures.append(
                            f"{name}: queue {queue}, partition {number}: gaps from {sorted(starts - then[-1])} began, "
                            f"and its filter {rules} includes nothing of {window.bucket_type.decode()}"
                        )
                    self._seen[name, queue, number] = (*here, starts)
        return failures

    def judge(self, world: World) -> list[str]:
        return self.look(world)


# -- (d) versions ----------------------------------------------------------------------------------------------------


class Versions:
    """What each dot stands for, over all clusters and lives. A Riak counts the writes of each key by itself, so its
    dots stand for one content a key."""

    def __init__(self) -> None:
        self._contents: dict[tuple[Any, ...], tuple[Any, ...]] = {}
        self._known: set[tuple[tuple[bytes, bytes], bytes]] = set()
        """Keys and objects that were noted."""
        self.failures: list[str] = []

    def __len__(self) -> int:
        return len(self._contents)

    def note(self, data: bytes, where: str, key: tuple[bytes, bytes] = (b"", b"")) -> None:
        """Note a canonical object that is, or was, in a store; `key` is its bucket and key."""
        if (key, data) in self._known:
            return
        self._known.add((key, data))
        for sibling in siblings_of(data):
            dot, content = sibling[:2], sibling[2:]
            version = dot if parts_of(dot[0]) is not None else (*dot, key)
            before = self._contents.setdefault(version, content)
            if before != content:
                self.failures.append(
                    f"{where}: dot {dot[0].hex()}:{dot[1]} stands for {before!r:.200} and {content!r:.200}"
                )


class _Applied:
    """An ApplyListener that notes what one process applies."""

    def __init__(self, versions: Versions, where: str) -> None:
        self._versions = versions
        self._where = where

    def applied(self, applied: Iterable[Any]) -> None:
        versions, where = self._versions, self._where
        for _, entries, _ in applied:
            for entry in entries:
                if entry.kind in CHANGES and entry.payload:
                    versions.note(entry.payload, where, (entry.bucket, entry.key))

    def leadership(self, partition: int, leading: bool, applied_offset: int) -> None:
        """Nothing."""


class OneContentPerDot:
    """No version ever stands for two contents."""

    name = "versions"

    def __init__(self) -> None:
        self.versions = Versions()
        self._listened: set[int] = set()
        self._held: list[NodeServices] = []
        """So that their ids stay theirs."""
        self._told = 0

    def look(self, world: World) -> list[str]:
        for node in world.nodes:
            services = services_of(node)
            if services is not None and id(services) not in self._listened:
                self._listened.add(id(services))
                self._held.append(services)
                services.runtime.listeners.add(_Applied(self.versions, node.name))
                self._read(node.name, services)
        fresh = self.versions.failures[self._told :]
        self._told += len(fresh)
        return fresh

    def _read(self, name: str, services: NodeServices) -> None:
        rows = rows_of(services)
        for row in rows.irange(OBJECT_TAG, b"p", (True, False)):
            self.versions.note(rows[row], name, split_tail(row[len(OBJECT_TAG) + U32.size :]))

    def judge(self, world: World) -> list[str]:
        for node in world.nodes:
            services = services_of(node)
            if services is not None:
                self._read(node.name, services)
        return self.versions.failures[self._told :]


# -- (e) ledgers, bounds, errors -------------------------------------------------------------------------------------


class Ledgers:
    """The ledger of every queue closes, and so does what sinks have received."""

    name = "ledgers"

    def look(self, world: World) -> list[str]:
        return [
            f"{node.name}: queue {name}: its ledger is off by {queue.ledger_off}"
            for node in world.nodes
            if (services := services_of(node)) is not None
            for name in services.queues.machines()
            if (queue := services.queues.named(name)).ledger_off
        ]

    def judge(self, world: World) -> list[str]:
        failures = self.look(world)
        for node in world.nodes:
            services = services_of(node)
            if services is None:
                continue
            for name in services.queues.machines():
                queue = services.queues.named(name)
                if queue.stored.owner is None or not queue.stored.owner.cluster:
                    continue
                failures += ledger_is_open(f"{node.name}: queue {name}", ledger(queue))
            failures += [
                f"{node.name}: of what it fetched from {source.cluster_name} the outcome of {source.under_way} changes "
                f"is not known"
                for source in services.sink.sources()
                if source.under_way
            ]
        return failures


def ledger_is_open(where: str, shown_ledger: Mapping[str, Any]) -> list[str]:
    """What is wrong with a ledger once all is quiet."""
    found = []
    if shown_ledger["closes"] is False:
        found.append(f"{where}: its ledger does not close: {dict(shown_ledger)}")
    for word in ("waiting", "in_flight"):
        if shown_ledger[word]:
            found.append(f"{where}: {shown_ledger[word]} {word} although all is quiet")
    return found


TASKS_MORE = 40
"""A node that is quiet has at most so many tasks more than an idle node that has just started: connections of clients
and operators, and fetches that wait, come and go."""


class Bounds:
    """Nothing that is counted grows without end: once all is quiet, a node holds as little as an idle one."""

    name = "bounds"

    def __init__(self) -> None:
        self._idle: dict[str, int] = {}
        """Node -> its tasks when the world was first looked at."""

    def look(self, world: World) -> list[str]:
        if not self._idle:
            self._idle = {node.name: _tasks(node) for node in world.nodes if node.running}
        return []

    def judge(self, world: World) -> list[str]:
        idle = max(self._idle.values(), default=0)
        failures = []
        for node in world.nodes:
            services = services_of(node)
            if services is None:
                continue
            tasks = _tasks(node)
            if self._idle and tasks > idle + TASKS_MORE:
                failures.append(f"{node.name}: {tasks} tasks, an idle node has {idle}: {_tasks_told(node)}")
            failures += [f"{node.name}: {what}" for what in held(services)]
        return failures


def _tasks(node: WorldNode) -> int:
    return len(asyncio.all_tasks(node.machine.loop))


def _tasks_told(node: WorldNode) -> str:
    counts: dict[str, int] = {}
    for task in asyncio.all_tasks(node.machine.loop):
        coroutine = task.get_coro()
        name = getattr(coroutine, "__qualname__", str(coroutine))
        counts[name] = counts.get(name, 0) + 1
    return ", ".join(f"{count} {name}" for name, count in sorted(counts.items(), key=lambda one: -one[1])[:8])


def held(services: NodeServices) -> Iterator[str]:
    """What a quiet node must not hold."""
    for number, partition in services.runtime.partitions.items():
        if not partition.waiters.idle:
            yield f"partition {number}: requests wait"
    for name, machine in services.queues.machines().items():
        if machine.leases.batches or machine.leases.bytes:
            yield f"queue {name}: {len(machine.leases.batches)} leases of {machine.leases.bytes} bytes"
        counted = sum(window._place_count() for window in machine.windows.values())
        if machine.budget.references != counted:
            yield f"queue {name}: its budget counts {machine.budget.references} references, its windows hold {counted}"
        if machine.budget.objects and not counted:
            yield f"queue {name}: its budget counts {machine.budget.objects} objects, and its windows hold nothing"
    if any(slot.pushing for slots in services.sink._pool._slots.values() for slot in slots):
        yield "its sink stores a batch"


GRACE_S = 30.0
"""How long after the last fault an error may still have it as its cause: time-outs of requests, of sessions, of
retries."""


class Errors:
    """No exception that nobody foresaw, at any time; and no error at all while nothing is broken."""

    name = "errors"

    def __init__(self) -> None:
        self._judged = 0
        self._disturbances = 0
        self._calm_since_ns: int | None = 0

    def look(self, world: World) -> list[str]:
        now_ns = world.kernel.now_ns
        disturbed, self._disturbances = world.disturbances != self._disturbances, world.disturbances
        if world.broken or disturbed or not all(node.running for node in world.nodes):
            self._calm_since_ns = None
        elif self._calm_since_ns is None:
            self._calm_since_ns = now_ns
        since = self._calm_since_ns
        calm = since is not None and (since == 0 or now_ns - since > GRACE_S * SECOND)
        fresh = world.story.errors[self._judged :]
        self._judged += len(fresh)
        return wrong_errors(fresh, calm=calm)

    def judge(self, world: World) -> list[str]:
        fresh = world.story.errors[self._judged :]
        self._judged += len(fresh)
        return wrong_errors(fresh, calm=False)


class Survivors:
    """No process ends because of its disk, unless the disk is broken: a shortage is waited out (R-SHORT). One that is
    asked to end while its disk is short does so, not cleanly."""

    name = "survivors"

    def __init__(self) -> None:
        self._judged = 0

    def look(self, world: World) -> list[str]:
        sound = {node.name for node in world.nodes if not node.disk.was_broken}
        fresh = world.story.errors[self._judged :]
        self._judged += len(fresh)
        return [
            f"{node}: its disk was short at most, and the process ended: {error.text}"
            for node, error in fresh
            if error.event == "node.failed" and node in sound
        ]

    def judge(self, world: World) -> list[str]:
        return self.look(world)


def wrong_errors(errors: Iterable[tuple[str, LoggedError]], *, calm: bool) -> list[str]:
    """The errors that must not be: unforeseen ones, and in calm times all."""
    return [
        f"{node}: {'unforeseen ' if error.unforeseen else ''}{error.event}: {error.text}"
        for node, error in errors
        if error.unforeseen or calm
    ]
