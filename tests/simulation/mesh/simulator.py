"""Clusters in virtual time that replicate to each other: real queues, rosters, back-off and proposals, a small
simulation.

The simulation only carries messages, loses them, cuts links, drops the memory of nodes and checks every invariant after
every step. A fetch cycle has many steps, between which other events may occur: references are taken into a batch, their
objects are read, the batch goes out, it arrives, it is pushed, the push is applied, and the next fetch acknowledges it.
A seed replays everything.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field
from random import Random
from typing import Final, NamedTuple

from isthmus.queues.leases import LeasedBatch, Session
from isthmus.queues.object_reader import read_objects
from isthmus.queues.window_rules import Item
from isthmus.repl.model.errors import Retryable
from isthmus.repl.model.objects import Content, Object, decode_object, merge
from isthmus.repl.model.properties import DEFAULTS
from isthmus.repl.model.reference import ReferenceKind
from isthmus.repl.model.requests import PushOutcome, PushResult
from isthmus.repl.model.vclock import Clock, Dot, covers, descends
from isthmus.sink.backoff import CycleResult, Delays
from isthmus.sink.scheduler import FetchScheduler, LinkName
from tests.simulation.mesh.cluster import KEYS, LEASE_MS, Cluster, Link, P

BATCH_BYTES: Final = 10_000


PATIENCE: Final = 0.02
"""A slow worker continues at every fiftieth turn: its push may arrive after its lease and long after other events."""


SKEWS_MS: Final = (20, 50, 100, 2_000)
"""By how much wall clocks may be wrong: about the time between two writes of a key, and far more."""

KEEPING_ONE: Final = (
    DEFAULTS._replace(allow_mult=False),
    DEFAULTS._replace(last_write_wins=True),
    DEFAULTS._replace(allow_mult=False, last_write_wins=True),
    DEFAULTS,
)
"""Properties of clusters of which some keep one sibling alone; the last keeps all."""

DRAIN_ROUNDS_MAX = 40_000
"""Rounds until all queues must be empty. Most simulations need some hundred; a hub whose queues began at 0 late needed
more than 4,000 (seed 2221 of moves)."""


class ClientWrite(NamedTuple):
    """A client's write: its cluster, its dot, and its clock."""

    cluster: str
    key: bytes
    dot: Dot
    context: Clock


@dataclass
class FetchCycle:
    """A fetch of one slot, and how far it has come."""

    link: Link
    name: LinkName
    slot: int
    sink_life: int
    source_life: int
    step: str = "asks"
    batch: LeasedBatch | None = None
    resolved: list[Item | None] | None = None
    told_upto: int = 0
    taken_ms: int = 0
    slow: bool = False
    items: list[Item] = field(default_factory=list)
    answers: list[tuple[object, int]] = field(default_factory=list)


class MeshSimulation:
    """Clusters, links, and one random order of events.

    `unreplicated_check` False disables R-OWED. `waiting` False sends a batch before its queue was notified of the
    entries that its objects were read from. Each is for a test that must fail. `homes`: every key is written at one
    cluster only. `locking`: there are clients, too, that read and write later by the tag alone. `keeps_one`: clusters
    have properties of KEEPING_ONE, in half of the seeds all the same, and leaders whose wall clocks step back and
    forth by up to one of SKEWS_MS."""

    def __init__(
        self,
        seed: int,
        links: list[Link],
        *,
        faults: bool = True,
        unreplicated_check: bool = True,
        waiting: bool = True,
        homes: bool = False,
        reaps: bool = False,
        repl_reap: bool = False,
        keeps_one: bool = False,
        discard: bool = False,
        late: Collection[Link] = (),
        drops: bool = False,
        locking: bool = False,
    ) -> None:
        self.rng = Random(seed)
        self.locking = locking
        self.read: list[tuple[Cluster, bytes, Clock, str]] = []
        """Reads of locking clients that are not used yet: cluster, key, clock and tag."""
        self.locked = Counter[bool]()
        """Writes of locking clients, by whether they were carried out."""
        self.links = links = list(links)
        self.late = list(late)
        self.drops = drops
        self.faults = faults
        self.waiting = waiting
        self.homes = homes
        self.reaps = reaps
        self.skew_ms = self.rng.choice(SKEWS_MS) if keeps_one else 0
        self.emptied = 0
        """Merges of objects that had dropped all of each other's siblings."""
        self.now = 1_000_000 if keeps_one else 1_000
        self.made: list[ClientWrite] = []
        self.contents: dict[Dot, bytes] = {}
        self.known: dict[tuple[str, bytes], set[Dot]] = {}
        """(cluster, key) -> writes in the clocks of all objects ever stored there."""
        self.crossed: Counter[tuple[str, str, bytes, bytes]] = Counter()
        self.outcomes: Counter[PushOutcome] = Counter()
        self.reaped = 0
        self.dropped = 0
        self.cut: set[Link] = set()
        self.cycles: list[FetchCycle] = []
        self.acks: dict[tuple[str, LinkName, int], tuple[bytes, int, tuple[int, ...]]] = {}
        names = sorted({name for link in (*links, *self.late) for name in link[:2]})
        properties = {name: DEFAULTS._replace(repl_reap=repl_reap) for name in names}
        if keeps_one:
            equal = self.rng.choice((None, *KEEPING_ONE[:2]))
            properties = {name: equal or self.rng.choice(KEEPING_ONE) for name in names}
        self.clusters = {
            name: Cluster(
                name,
                number + 1,
                links,
                self.look_at,
                unreplicated_check=unreplicated_check,
                properties=properties[name],
                discard=discard,
            )
            for number, name in enumerate(names)
        }
        if keeps_one:
            for cluster in self.clusters.values():
                cluster.now_ms = self.now
        self.rosters: dict[str, FetchScheduler] = {}
        for name in self.clusters:
            self.begin(name)

    def begin(self, name: str) -> None:
        """A cluster's node starts: its memory is lost."""
        self.clusters[name].start(lambda queue: self.owner_of(name, queue))
        self.rosters[name] = roster = FetchScheduler(2, Delays(5, 80, 2, 20), self.rng, workers=3)
        for link in self.links:
            if link.sink == name:
                roster.add(LinkName(f"to-{link.queue}", link.source))
        self.acks = {at: ack for at, ack in self.acks.items() if at[0] != name}

    def owner_of(self, source: str, queue: str) -> bytes:
        """The uuid of the cluster that fetches from a cluster's queue."""
        return next(self.clusters[r.sink].uuid for r in self.links if (r.source, r.queue) == (source, queue))

    # ---------------------------------------------------------------- events

    def run(self, steps: int) -> None:
        """Run this many events."""
        events = (
            [self.client] * 2
            + [self.fetches] * 8
            + [self.goes_on] * 40
            + [self.applies] * 8
            + [self.notify_applied] * 8
        )
        events += [self.reads] * 6 + [self.time_passes] * 3 + [self.save] * 2
        if self.faults:
            events += [self.cut_or_mend] * 2 + [self.restart, self.reelect]
        if self.locking:
            events += [self.client_reads] * 2 + [self.client_replaces] * 2
        if self.skew_ms:
            events += [self.wall_steps] * 3
        if self.reaps:
            events += [self.reap] * 12 + [self.save] * 6
        for _ in range(steps):
            self.rng.choice(events)()

    def any_cluster(self) -> Cluster:
        """A random cluster."""
        return self.rng.choice(list(self.clusters.values()))

    def client(self) -> None:
        """A write with the clock of a read, blindly, or with an old context; or a delete of a read object."""
        rng, cluster, key = self.rng, self.any_cluster(), self.rng.choice(KEYS)
        if self.homes:
            cluster = list(self.clusters.values())[KEYS.index(key) % len(self.clusters)]
        current = cluster.get(key)
        clock: Clock = () if current is None else current.clock
        if rng.random() < (0.4 if self.reaps else 0.25) and clock:
            context, dot = clock, cluster.delete(key, clock)
        else:
            context = clock if rng.random() < 0.7 else ()
            if current is not None and current.deleted and not context:
                context = current.clock  # as `write` does: a deleted key can simply be written again
            dot = cluster.put(key, Content(b"%d" % rng.randrange(1_000_000)), context)
        self.note(cluster, key, context, dot)

    def client_reads(self) -> None:
        """A locking client reads a key that exists, and keeps its tag."""
        cluster, key = self.any_cluster(), self.rng.choice(KEYS)
        current = cluster.get(key)
        if current is not None and not current.deleted:
            self.read.append((cluster, key, current.clock, cluster.tag(key)))

    def client_replaces(self) -> None:
        """A locking client writes by a tag that it read some time ago, with no clock (If-Match).

        It is carried out exactly if the key still holds the object that the client read, and then counts as a write
        whose clock includes just that: if it replaced more, `equal` misses a write, if less, there is one too many.
        """
        if not self.read:
            return
        cluster, key, clock, tag = self.read.pop(self.rng.randrange(len(self.read)))
        unchanged = cluster.tag(key) == tag
        dot = cluster.put_if(key, Content(b"%d" % self.rng.randrange(1_000_000)), tag)
        assert (dot is not None) == unchanged, "a condition was misjudged"
        self.locked[unchanged] += 1
        self.note(cluster, key, clock, dot)

    def note(self, cluster: Cluster, key: bytes, context: Clock, dot: Dot | None) -> None:
        """A client has written."""
        if dot is not None:
            self.made.append(ClientWrite(cluster.name, key, dot, context))
            self.known.setdefault((cluster.name, key), set()).add(dot)

    def fetches(self) -> None:
        """A slot begins a fetch, from the cluster whose turn it is."""
        cluster = self.any_cluster()
        turn = self.rosters[cluster.name].take(self.now)
        if turn is None:
            return
        name, slot, _ = turn
        known = [r for r in self.links if (r.source, r.sink, f"to-{r.queue}") == (name.peer, cluster.name, name.queue)]
        if not known:  # the queue is another cluster's now, and refuses
            self.rosters[cluster.name].report(name, slot, CycleResult.ERROR, self.now, 0)
            return
        (link,) = known
        self.cycles.append(FetchCycle(link, name, slot, cluster.life, self.clusters[link.source].life))

    def goes_on(self) -> None:
        """The next step of an fetch cycle."""
        if not self.cycles:
            return
        cycle = self.rng.choice(self.cycles)
        source, sink = self.clusters[cycle.link.source], self.clusters[cycle.link.sink]
        if cycle.slow and self.faults and self.rng.random() > PATIENCE:
            return
        if cycle.sink_life != sink.life:
            self.cycles.remove(cycle)  # the process has ended meanwhile
        elif cycle.source_life != source.life and cycle.step in ("asks", "looks_up", "answers"):
            self.ends(cycle, CycleResult.ERROR)
        else:
            getattr(self, cycle.step)(cycle, source, sink)

    def ends(self, cycle: FetchCycle, result: CycleResult) -> None:
        """The slot is free again."""
        self.cycles.remove(cycle)
        self.rosters[cycle.link.sink].report(cycle.name, cycle.slot, result, self.now, 0)

    def lost(self, cycle: FetchCycle) -> bool:
        """A message did not arrive."""
        if cycle.link in self.cut or (self.faults and self.rng.random() < 0.05):
            self.ends(cycle, CycleResult.ERROR)
            return True
        return False

    def asks(self, cycle: FetchCycle, source: Cluster, sink: Cluster) -> None:
        """The request arrives: its acknowledgement counts, and references are taken into a batch."""
        if self.lost(cycle):
            return
        queue = source.queues[cycle.link.queue]
        if queue.owner != sink.uuid:
            self.ends(cycle, CycleResult.ERROR)
            return
        session = Session(sink.uuid, sink.name, sink.life.to_bytes(8, "big"), cycle.slot)
        ack = self.acks.get((sink.name, cycle.name, cycle.slot))
        if ack is not None:
            queue.acknowledge(session, *ack)
        queue.on_fetch(session, (), self.now)
        source.begin_reads()
        cycle.taken_ms = self.now
        cycle.batch = queue.take(session, self.rng.randint(1, 5), BATCH_BYTES, self.now)
        cycle.step = "answers" if cycle.batch is None else "looks_up"

    def looks_up(self, cycle: FetchCycle, source: Cluster, _sink: Cluster) -> None:
        """A thread of the source reads the objects of the batch."""
        assert cycle.batch is not None
        cycle.resolved = read_objects(source.store, cycle.batch.items(), BATCH_BYTES)
        cycle.told_upto = source.store.reach(P)
        cycle.step = "answers"

    def answers(self, cycle: FetchCycle, source: Cluster, sink: Cluster) -> None:
        """Send the answer, once the source's loop has been notified of all entries that may have been read."""
        queue = source.queues[cycle.link.queue]
        if cycle.batch is not None:
            assert cycle.resolved is not None
            if self.waiting and not queue.caught_up(cycle.batch, {P: cycle.told_upto}):
                return
            if queue.resolve(cycle.batch, cycle.resolved):
                queue.mark_sent(cycle.batch)
                cycle.items = cycle.batch.items()
        for item in cycle.items:
            told = item[5] + b" leaves" if item[0] == ReferenceKind.LEAVING else item[5]
            self.crossed[source.name, sink.name, told, item[8]] += 1
            assert item[6] != sink.uuid, "I-Q-NOLOOP: offered to where it came from"
        cycle.step = "arrives"

    def arrives(self, cycle: FetchCycle, _source: Cluster, sink: Cluster) -> None:
        """The answer has arrived; the acknowledgement in its request is settled for the slot."""
        if self.lost(cycle):
            return
        self.acks.pop((sink.name, cycle.name, cycle.slot), None)
        if not cycle.items:
            self.ends(cycle, CycleResult.EMPTY)
            return
        self.rosters[sink.name].fetched(cycle.name, cycle.slot)
        cycle.step, cycle.slow = "pushes", self.rng.random() < 0.2

    def pushes(self, cycle: FetchCycle, source: Cluster, sink: Cluster) -> None:
        """The batch is pushed, unless it is too old."""
        if self.drops and self.now - cycle.taken_ms >= LEASE_MS:
            self.dropped += 1
            self.acknowledges(cycle, source, sink, tuple(range(len(cycle.items))))
            return
        changes = [(item[5], item[8], item[0] == ReferenceKind.LEAVING) for item in cycle.items]
        if self.skew_ms:
            self.emptied += sum(self.keeps_nothing(sink.get(key), payload) for key, payload, _ in changes)
        cycle.answers = sink.push(changes, source.uuid)
        for (answer, _), (again, _) in zip(cycle.answers, sink.push(changes, source.uuid), strict=True):
            if isinstance(answer, PushResult):
                assert again == PushResult(PushOutcome.SUPERSEDED), "I-IDEMP"
        cycle.step = "waits"

    @staticmethod
    def keeps_nothing(current: Object | None, payload: bytes) -> bool:
        """Whether a plain merge with a pushed object would have no sibling."""
        return current is not None and not merge(current, decode_object(payload)).siblings

    def waits(self, cycle: FetchCycle, source: Cluster, sink: Cluster) -> None:
        """The pushed objects are applied: the batch may be acknowledged."""
        if any(end > sink.replica.applied for _, end in cycle.answers):
            return
        failed = []
        for number, (answer, _) in enumerate(cycle.answers):
            if isinstance(answer, Retryable):
                failed.append(number)
            else:
                assert isinstance(answer, PushResult), answer
                self.outcomes[answer.outcome] += 1
        if self.faults and self.rng.random() < 0.05:
            failed = [0]
        self.acknowledges(cycle, source, sink, tuple(failed))

    def acknowledges(self, cycle: FetchCycle, source: Cluster, sink: Cluster, failed: tuple[int, ...]) -> None:
        """The slot's next fetch acknowledges the batch."""
        version = source.queues[cycle.link.queue].owner_version
        assert cycle.batch is not None
        self.acks[sink.name, cycle.name, cycle.slot] = (cycle.batch.id, version, failed)
        self.ends(cycle, CycleResult.FAILED if failed else CycleResult.ITEMS)

    def applies(self) -> None:
        """A writer's thread continues."""
        self.any_cluster().apply(self.rng.randint(1, 4))

    def notify_applied(self) -> None:
        """A loop is notified of applied entries."""
        self.any_cluster().notify(self.rng.randint(1, 4))

    def reads(self) -> None:
        """A read of rows continues."""
        cluster = self.any_cluster()
        cluster.begin_reads()
        if cluster.reads:
            cluster.go_on_reading(self.rng.randrange(len(cluster.reads)))

    def time_passes(self) -> None:
        """Advance the time; leases end."""
        self.now += self.rng.choice([1, 10, 50, LEASE_MS] if self.faults else [1, 10, 20])
        for cluster in self.clusters.values():
            cluster.now_ms = self.now
            for queue in cluster.queues.values():
                queue.expire(self.now)

    def wall_steps(self) -> None:
        """Another node leads a cluster, whose wall clock is ahead or behind."""
        self.any_cluster().skew_ms = self.rng.randint(-self.skew_ms, self.skew_ms)

    def save(self) -> None:
        """Moved cursors are written."""
        self.any_cluster().save_cursors()

    def cut_or_mend(self) -> None:
        """A link is closed, or opened again."""
        self.cut ^= {self.rng.choice(self.links)}

    def restart(self) -> None:
        """A node dies and restarts: operations under way, and each newest cursor, are lost."""
        self.begin(self.any_cluster().name)

    def reelect(self) -> None:
        """The leadership of a cluster moves to another node and back, whatever is under way."""
        self.any_cluster().reelect(saved=self.rng.random() < 0.7, known=self.rng.random() < 0.8)

    def reap(self) -> None:
        """A tombstone goes, if it may."""
        cluster, key = self.any_cluster(), self.rng.choice(KEYS)
        before = cluster.replica.leo
        cluster.reap(key)
        self.reaped += cluster.replica.leo - before

    def drain(self) -> None:
        """Links restored, no new writes: run until every queue is empty."""
        self.cut.clear()
        self.faults = False
        for _ in range(DRAIN_ROUNDS_MAX):
            self.fetches()
            for _ in range(4):
                self.goes_on()
            self.reads()
            self.applies()
            self.notify_applied()
            self.time_passes()
            busy = any(cycle.items for cycle in self.cycles)
            if not busy and all(cluster.at_rest for cluster in self.clusters.values()):
                return
        raise AssertionError("I-ALO: a queue does not get empty")

    def reap_all(self) -> None:
        """Reap until no tombstone is left anywhere."""
        for _ in range(60):
            self.drain()
            for cluster in self.clusters.values():
                cluster.save_cursors()
            before = [cluster.replica.leo for cluster in self.clusters.values()]
            for cluster in self.clusters.values():
                for key in KEYS:
                    waits = cluster.reap(key)
                    assert not waits, f"everything is acknowledged, and {cluster.name} waits: {waits}"
            if before == [cluster.replica.leo for cluster in self.clusters.values()]:
                return
        raise AssertionError("tombstones go round")

    # ---------------------------------------------------------------- invariants

    def look_at(self, cluster: Cluster, key: bytes, before: Object | None, after: Object) -> None:
        """Every object that is stored anywhere."""
        if before is not None:
            assert descends(after.clock, before.clock), "I-CLOCK-STABLE, I-NO-RESURRECT: a clock forgot something"
        known = self.known.setdefault((cluster.name, key), set())
        mine = [made for made in self.made if made.key == key]
        for sibling in after.siblings:
            told = sibling.value + bytes([sibling.tombstone])
            assert self.contents.setdefault(sibling.dot, told) == told, "I-DOT-UNIQUE: one dot, two contents"
            if sibling.tombstone and self.reaps:
                continue
            for made in mine:
                if made.dot != sibling.dot and covers(made.context, sibling.dot):
                    assert not covers(after.clock, made.dot), "I-NO-RESURRECT: seen and replaced, and here again"
                    assert made.dot not in known, "I-NO-RESURRECT: this cluster knew that it was replaced"
        known.update(made.dot for made in mine if covers(after.clock, made.dot))

    def expected(self, key: bytes, of: set[str]) -> set[Dot]:
        """Dots of the writes made in clusters `of` that no later write there includes in its clock: I-NO-LOST and I-SIB
        in one."""
        mine = [made for made in self.made if made.key == key and made.cluster in of]
        return {m.dot for m in mine if not any(covers(other.context, m.dot) for other in mine if other is not m)}

    def equal(self) -> None:
        """All clusters hold the same siblings: exactly the writes that no later write includes in its clock; where
        tombstones are reaped, they do not count."""
        for key in KEYS:
            want = self.expected(key, set(self.clusters))
            if self.reaps:
                want = {dot for dot in want if not self.contents[dot].endswith(b"\1")}
            for cluster in self.clusters.values():
                found = cluster.get(key)
                siblings = () if found is None else found.siblings
                dots = {s.dot for s in siblings if not (self.reaps and s.tombstone)}
                assert dots == want, (cluster.name, key)
        payloads = {tuple(self.values_of(cluster)) for cluster in self.clusters.values()}
        assert len(payloads) == 1, "I-COMM: same pushes, other bytes"

    def agree(self) -> None:
        """Where clusters keep one sibling alone: all hold the same bytes, no key that was ever written is without an
        object, and each value is one that a client has written."""
        for key in KEYS:
            held = {cluster.store.object(P, b"b", key) for cluster in self.clusters.values()}
            assert len(held) == 1, "I-COMM: same pushes, other bytes"
            (payload,) = held
            written = any(made.key == key for made in self.made)
            assert (payload is not None) == written, "R-KEEP"
            if payload is not None:
                assert decode_object(payload).siblings, "R-KEEP"

    def objects_of(self, cluster: Cluster) -> list[Object]:
        """The objects of all existing keys."""
        return [decode_object(payload) for _, payload in cluster.shown()]

    def values_of(self, cluster: Cluster) -> list[tuple[bytes, bytes]]:
        """Key and object of all keys; without tombstones where they are reaped."""
        return [one for one in cluster.shown() if not (self.reaps and decode_object(one[1]).deleted)]
