"""Clusters in virtual time that replicate to each other: real queues, rosters, back-off and proposals, a small world.

The world only carries messages, loses them, cuts roads, forgets memories and looks at every invariant after every step.
A fetch is an errand of many steps, between which anything may happen: references are taken into a batch, their objects
are read, the batch goes out, it arrives, it is pushed, the push is applied, and the next fetch acknowledges it. A seed
replays all of it.
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
from isthmus.repl.model.objects import Content, Object, decode_object
from isthmus.repl.model.reference import ReferenceKind
from isthmus.repl.model.requests import PushOutcome, PushResult
from isthmus.repl.model.vclock import Clock, Dot, covers, descends
from isthmus.sink.backoff import CycleResult, Delays
from isthmus.sink.scheduler import FetchScheduler, LinkName
from tests.simulation.mesh.cluster import KEYS, LEASE_MS, P, Road, Town

BATCH_BYTES: Final = 10_000


PATIENCE: Final = 0.02
"""A worker that is slow goes on at every fiftieth turn: its push may come after its lease and after much else."""


DRAIN_ROUNDS_MAX = 40_000
"""Rounds until all queues must be empty. Most worlds need some hundred; a hub whose queues began at 0 late needed more
than 4,000 (seed 2221 of moves)."""


class Made(NamedTuple):
    """A client's write: where, its dot, what it had seen."""

    town: str
    key: bytes
    dot: Dot
    context: Clock


@dataclass
class Errand:
    """A fetch of one slot, and how far it has come."""

    road: Road
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


class World:
    """Towns, roads, and one random order of events. `owing` False leaves R-OWED out, `waiting` False that a batch waits
    until its queue has heard of all that its objects were read from: each for a test that must fail. `homes`: every
    key is written at one town only."""

    def __init__(
        self,
        seed: int,
        roads: list[Road],
        *,
        faults: bool = True,
        owing: bool = True,
        waiting: bool = True,
        homes: bool = False,
        reaps: bool = False,
        repl_reap: bool = False,
        discard: bool = False,
        late: Collection[Road] = (),
        drops: bool = False,
    ) -> None:
        self.rng = Random(seed)
        self.roads = roads = list(roads)
        self.late = list(late)
        self.drops = drops
        self.faults = faults
        self.waiting = waiting
        self.homes = homes
        self.reaps = reaps
        self.now = 1_000
        self.made: list[Made] = []
        self.contents: dict[Dot, bytes] = {}
        self.known: dict[tuple[str, bytes], set[Dot]] = {}
        """(town, key) -> writes that what was ever stored there has seen."""
        self.crossed: Counter[tuple[str, str, bytes, bytes]] = Counter()
        self.outcomes: Counter[PushOutcome] = Counter()
        self.reaped = 0
        self.dropped = 0
        self.cut: set[Road] = set()
        self.errands: list[Errand] = []
        self.acks: dict[tuple[str, LinkName, int], tuple[bytes, int, tuple[int, ...]]] = {}
        names = sorted({name for road in (*roads, *self.late) for name in road[:2]})
        self.towns = {
            name: Town(name, number + 1, roads, self.look_at, owing=owing, repl_reap=repl_reap, discard=discard)
            for number, name in enumerate(names)
        }
        self.rosters: dict[str, FetchScheduler] = {}
        for name in self.towns:
            self.begin(name)

    def begin(self, name: str) -> None:
        """A town's node begins: whatever its memory held is gone."""
        self.towns[name].start(lambda queue: self.owner_of(name, queue))
        self.rosters[name] = roster = FetchScheduler(2, Delays(5, 80, 2, 20), self.rng, workers=3)
        for road in self.roads:
            if road.sink == name:
                roster.add(LinkName(f"to-{road.queue}", road.source))
        self.acks = {at: ack for at, ack in self.acks.items() if at[0] != name}

    def owner_of(self, source: str, queue: str) -> bytes:
        """The uuid of the cluster that fetches from a town's queue."""
        return next(self.towns[r.sink].uuid for r in self.roads if (r.source, r.queue) == (source, queue))

    # ---------------------------------------------------------------- what happens

    def run(self, steps: int) -> None:
        """So many events."""
        events = [self.client] * 2 + [self.fetches] * 8 + [self.goes_on] * 40 + [self.applies] * 8 + [self.hears] * 8
        events += [self.reads] * 6 + [self.time_passes] * 3 + [self.save] * 2
        if self.faults:
            events += [self.cut_or_mend] * 2 + [self.restart, self.lead_anew]
        if self.reaps:
            events += [self.reap] * 12 + [self.save] * 6
        for _ in range(steps):
            self.rng.choice(events)()

    def any_town(self) -> Town:
        """One of them."""
        return self.rng.choice(list(self.towns.values()))

    def client(self) -> None:
        """A write with what was read, blindly, or with an old context; or a delete of what was read."""
        rng, town, key = self.rng, self.any_town(), self.rng.choice(KEYS)
        if self.homes:
            town = list(self.towns.values())[KEYS.index(key) % len(self.towns)]
        current = town.get(key)
        clock: Clock = () if current is None else current.clock
        if rng.random() < (0.4 if self.reaps else 0.25) and clock:
            context, dot = clock, town.delete(key, clock)
        else:
            context = clock if rng.random() < 0.7 else ()
            if current is not None and current.deleted and not context:
                context = current.clock  # as `write` does: a deleted key can simply be written again
            dot = town.put(key, Content(b"%d" % rng.randrange(1_000_000)), context)
        self.note(town, key, context, dot)

    def note(self, town: Town, key: bytes, context: Clock, dot: Dot | None) -> None:
        """A client has written."""
        if dot is not None:
            self.made.append(Made(town.name, key, dot, context))
            self.known.setdefault((town.name, key), set()).add(dot)

    def fetches(self) -> None:
        """A slot begins a fetch, at a town whose turn it is."""
        town = self.any_town()
        turn = self.rosters[town.name].take(self.now)
        if turn is None:
            return
        name, slot, _ = turn
        known = [r for r in self.roads if (r.source, r.sink, f"to-{r.queue}") == (name.peer, town.name, name.queue)]
        if not known:  # the queue is another cluster's now, and refuses
            self.rosters[town.name].report(name, slot, CycleResult.ERROR, self.now, 0)
            return
        (road,) = known
        self.errands.append(Errand(road, name, slot, town.life, self.towns[road.source].life))

    def goes_on(self) -> None:
        """The next step of an errand."""
        if not self.errands:
            return
        errand = self.rng.choice(self.errands)
        source, sink = self.towns[errand.road.source], self.towns[errand.road.sink]
        if errand.slow and self.faults and self.rng.random() > PATIENCE:
            return
        if errand.sink_life != sink.life:
            self.errands.remove(errand)  # nobody is there any more
        elif errand.source_life != source.life and errand.step in ("asks", "looks_up", "answers"):
            self.ends(errand, CycleResult.ERROR)
        else:
            getattr(self, errand.step)(errand, source, sink)

    def ends(self, errand: Errand, result: CycleResult) -> None:
        """The slot is free again."""
        self.errands.remove(errand)
        self.rosters[errand.road.sink].report(errand.name, errand.slot, result, self.now, 0)

    def lost(self, errand: Errand) -> bool:
        """A message did not arrive."""
        if errand.road in self.cut or (self.faults and self.rng.random() < 0.05):
            self.ends(errand, CycleResult.ERROR)
            return True
        return False

    def asks(self, errand: Errand, source: Town, sink: Town) -> None:
        """The request arrives: its acknowledgement counts, and references are taken into a batch."""
        if self.lost(errand):
            return
        queue = source.queues[errand.road.queue]
        if queue.owner != sink.uuid:
            self.ends(errand, CycleResult.ERROR)
            return
        session = Session(sink.uuid, sink.name, sink.life.to_bytes(8, "big"), errand.slot)
        ack = self.acks.get((sink.name, errand.name, errand.slot))
        if ack is not None:
            queue.acknowledge(session, *ack)
        queue.on_fetch(session, (), self.now)
        source.begin_reads()
        errand.taken_ms = self.now
        errand.batch = queue.take(session, self.rng.randint(1, 5), BATCH_BYTES, self.now)
        errand.step = "answers" if errand.batch is None else "looks_up"

    def looks_up(self, errand: Errand, source: Town, _sink: Town) -> None:
        """A thread of the source reads the objects of the batch."""
        assert errand.batch is not None
        errand.resolved = read_objects(source.store, errand.batch.items(), BATCH_BYTES)
        errand.told_upto = source.store.reach(P)
        errand.step = "answers"

    def answers(self, errand: Errand, source: Town, sink: Town) -> None:
        """The answer goes out, once the source's loop has heard of all that may have been read."""
        queue = source.queues[errand.road.queue]
        if errand.batch is not None:
            assert errand.resolved is not None
            if self.waiting and not queue.caught_up(errand.batch, {P: errand.told_upto}):
                return
            if queue.resolve(errand.batch, errand.resolved):
                queue.mark_sent(errand.batch)
                errand.items = errand.batch.items()
        for item in errand.items:
            told = item[5] + b" leaves" if item[0] == ReferenceKind.LEAVING else item[5]
            self.crossed[source.name, sink.name, told, item[8]] += 1
            assert item[6] != sink.uuid, "I-Q-NOLOOP: offered to where it came from"
        errand.step = "arrives"

    def arrives(self, errand: Errand, _source: Town, sink: Town) -> None:
        """The answer is there; what was told in the request is off the slot's mind."""
        if self.lost(errand):
            return
        self.acks.pop((sink.name, errand.name, errand.slot), None)
        if not errand.items:
            self.ends(errand, CycleResult.EMPTY)
            return
        self.rosters[sink.name].fetched(errand.name, errand.slot)
        errand.step, errand.slow = "pushes", self.rng.random() < 0.2

    def pushes(self, errand: Errand, source: Town, sink: Town) -> None:
        """The batch is pushed, unless it is too old."""
        if self.drops and self.now - errand.taken_ms >= LEASE_MS:
            self.dropped += 1
            self.acknowledges(errand, source, sink, tuple(range(len(errand.items))))
            return
        changes = [(item[5], item[8], item[0] == ReferenceKind.LEAVING) for item in errand.items]
        errand.answers = sink.push(changes, source.uuid)
        for (answer, _), (again, _) in zip(errand.answers, sink.push(changes, source.uuid), strict=True):
            if isinstance(answer, PushResult):
                assert again == PushResult(PushOutcome.SUPERSEDED), "I-IDEMP"
        errand.step = "waits"

    def waits(self, errand: Errand, source: Town, sink: Town) -> None:
        """What was pushed is applied: the batch may be acknowledged."""
        if any(end > sink.replica.applied for _, end in errand.answers):
            return
        failed = []
        for number, (answer, _) in enumerate(errand.answers):
            if isinstance(answer, Retryable):
                failed.append(number)
            else:
                assert isinstance(answer, PushResult), answer
                self.outcomes[answer.outcome] += 1
        if self.faults and self.rng.random() < 0.05:
            failed = [0]
        self.acknowledges(errand, source, sink, tuple(failed))

    def acknowledges(self, errand: Errand, source: Town, sink: Town, failed: tuple[int, ...]) -> None:
        """The next fetch of the slot tells what became of the batch."""
        version = source.queues[errand.road.queue].owner_version
        assert errand.batch is not None
        self.acks[sink.name, errand.name, errand.slot] = (errand.batch.id, version, failed)
        self.ends(errand, CycleResult.FAILED if failed else CycleResult.ITEMS)

    def applies(self) -> None:
        """A writer's thread goes on."""
        self.any_town().apply(self.rng.randint(1, 4))

    def hears(self) -> None:
        """A loop hears of what is applied."""
        self.any_town().tell(self.rng.randint(1, 4))

    def reads(self) -> None:
        """A read of rows goes on."""
        town = self.any_town()
        town.begin_reads()
        if town.reads:
            town.go_on_reading(self.rng.randrange(len(town.reads)))

    def time_passes(self) -> None:
        """And leases end."""
        self.now += self.rng.choice([1, 10, 50, LEASE_MS] if self.faults else [1, 10, 20])
        for town in self.towns.values():
            town.now_ms = self.now
            for queue in town.queues.values():
                queue.expire(self.now)

    def save(self) -> None:
        """Moved cursors are written."""
        self.any_town().save_cursors()

    def cut_or_mend(self) -> None:
        """A road is closed, or opened again."""
        self.cut ^= {self.rng.choice(self.roads)}

    def restart(self) -> None:
        """A node dies and comes back: whatever was under way, and each newest cursor, is forgotten."""
        self.begin(self.any_town().name)

    def lead_anew(self) -> None:
        """Leadership of a town goes to another node and comes back, whatever is under way."""
        self.any_town().lead_anew(saved=self.rng.random() < 0.7, known=self.rng.random() < 0.8)

    def reap(self) -> None:
        """A tombstone goes, if it may."""
        town, key = self.any_town(), self.rng.choice(KEYS)
        before = town.replica.leo
        town.reap(key)
        self.reaped += town.replica.leo - before

    def drain(self) -> None:
        """Roads mended, no new writes: until every queue has given all."""
        self.cut.clear()
        self.faults = False
        for _ in range(DRAIN_ROUNDS_MAX):
            self.fetches()
            for _ in range(4):
                self.goes_on()
            self.reads()
            self.applies()
            self.hears()
            self.time_passes()
            busy = any(errand.items for errand in self.errands)
            if not busy and all(town.at_rest for town in self.towns.values()):
                return
        raise AssertionError("I-ALO: a queue does not get empty")

    def reap_all(self) -> None:
        """Until no tombstone is left anywhere."""
        for _ in range(60):
            self.drain()
            for town in self.towns.values():
                town.save_cursors()
            before = [town.replica.leo for town in self.towns.values()]
            for town in self.towns.values():
                for key in KEYS:
                    waits = town.reap(key)
                    assert not waits, f"everything is acknowledged, and {town.name} waits: {waits}"
            if before == [town.replica.leo for town in self.towns.values()]:
                return
        raise AssertionError("tombstones go round")

    # ---------------------------------------------------------------- what must hold

    def look_at(self, town: Town, key: bytes, before: Object | None, after: Object) -> None:
        """Every object that is stored anywhere."""
        if before is not None:
            assert descends(after.clock, before.clock), "I-CLOCK-STABLE, I-NO-RESURRECT: a clock forgot something"
        known = self.known.setdefault((town.name, key), set())
        mine = [made for made in self.made if made.key == key]
        for sibling in after.siblings:
            told = sibling.value + bytes([sibling.tombstone])
            assert self.contents.setdefault(sibling.dot, told) == told, "I-DOT: one dot, two contents"
            if sibling.tombstone and self.reaps:
                continue
            for made in mine:
                if made.dot != sibling.dot and covers(made.context, sibling.dot):
                    assert not covers(after.clock, made.dot), "I-NO-RESURRECT: seen and replaced, and here again"
                    assert made.dot not in known, "I-NO-RESURRECT: this town knew that it was replaced"
        known.update(made.dot for made in mine if covers(after.clock, made.dot))

    def expected(self, key: bytes, of: set[str]) -> set[Dot]:
        """Dots of the writes made in towns `of` that no write there has seen: I-NO-LOST and I-SIB in one."""
        mine = [made for made in self.made if made.key == key and made.town in of]
        return {m.dot for m in mine if not any(covers(other.context, m.dot) for other in mine if other is not m)}

    def equal(self) -> None:
        """All towns hold the same, and that is exactly what no later write has seen; where tombstones are reaped, they
        do not count."""
        for key in KEYS:
            want = self.expected(key, set(self.towns))
            if self.reaps:
                want = {dot for dot in want if not self.contents[dot].endswith(b"\1")}
            for town in self.towns.values():
                found = town.get(key)
                siblings = () if found is None else found.siblings
                dots = {s.dot for s in siblings if not (self.reaps and s.tombstone)}
                assert dots == want, (town.name, key)
        payloads = {tuple(self.values_of(town)) for town in self.towns.values()}
        assert len(payloads) == 1, "I-COMM: same pushes, other bytes"

    def objects_of(self, town: Town) -> list[Object]:
        """Of all keys that are there."""
        return [decode_object(payload) for _, payload in town.shown()]

    def values_of(self, town: Town) -> list[tuple[bytes, bytes]]:
        """Key and object of all keys; without tombstones where they are reaped."""
        return [one for one in town.shown() if not (self.reaps and decode_object(one[1]).deleted)]
