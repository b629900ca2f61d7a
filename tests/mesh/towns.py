"""Clusters in virtual time that replicate to each other: real queues, rosters, back-off and objects, a small world.

A town is a cluster of one partition: its rows, a source queue for each town that fetches from it, a roster of links
for those that it fetches from. Everything that decides is the product's; the world only carries messages, loses them,
cuts roads, forgets memories and looks at every invariant after every step. A seed replays all of it.
"""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Final, NamedTuple

from queues.batches import Session
from queues.cursors import CursorState, encode_soft, encode_state, position_of
from queues.owing import owed
from queues.reading import read_objects
from queues.rules import Budget, Item
from queues.source_queue import SourceQueue
from repl.model.entry import NO_OFFSET, EntryKind, encode_key_row, make_entry
from repl.model.keys import Key, key_hash
from repl.model.objects import TOMBSTONE, Content, Object, decode_object, merge, seal, write
from repl.model.requests import PushOutcome
from repl.model.vclock import Clock, Dot, actor_of, counter_of, covers, descends, offset_of, pack_counter
from sink.backoff import Delays, Result
from sink.roster import LinkName, Roster
from tests.queues.source_world import BUCKET, Shelf

P: Final = 3
KEYS: Final = [b"a", b"b", b"c", b"d"]
LEASE_MS: Final = 5_000
LIMITS: Final = (300, 4, 9)
"""Object size, whole objects, references: small, so that overflow and reading from rows happen all the time."""


class Road(NamedTuple):
    """What one town fetches from another."""

    source: str
    sink: str
    cascade: bool = False


class Made(NamedTuple):
    """A client's write: where, its dot, what it had seen."""

    town: str
    key: bytes
    dot: Dot
    context: Clock


class Town:
    """One cluster."""

    def __init__(self, name: str, world: World, number: int) -> None:
        self.name = name
        self.world = world
        self.uuid = bytes([number]) * 16
        self.shelf = Shelf()
        self.actor = actor_of(self.uuid, P)
        self.queues: dict[str, SourceQueue] = {}
        self.acks: dict[tuple[LinkName, int], tuple[bytes, int]] = {}
        self.life = 0
        self.roster: Roster

    def start(self) -> None:
        """A new life: memory is gone, rows and cursors are there."""
        self.life += 1
        self.acks = {}
        self.roster = Roster(2, Delays(5, 80, 2, 20), self.world.rng, workers=3)
        for road in self.world.roads:
            if road.sink == self.name:
                self.roster.add(LinkName(f"to-{self.name}", road.source))
            if road.source == self.name:
                queue = SourceQueue(
                    f"to-{road.sink}", self.uuid, road.cascade, LEASE_MS, Budget(*LIMITS), self.life.to_bytes(8, "big")
                )
                owner = self.world.towns[road.sink].uuid
                queue.set_owner(owner, 1)
                self.queues[road.sink] = queue
                if (P, queue.name.encode()) not in self.shelf.cursor_entries:
                    self._entry(EntryKind.CURSOR, queue.name.encode(), encode_state(CursorState(0, 1, owner)))
        for queue in self.queues.values():
            position = position_of(self.shelf.cursor(P, queue.name.encode()))
            assert position is not None
            queue.lead(P, b"default", position, self.shelf.ends[P])

    def get(self, key: bytes) -> Object | None:
        payload = self.shelf.objects.get((P, key))
        return None if payload is None else decode_object(payload)

    def put(self, key: bytes, content: Content, context: Clock) -> None:
        """A client's write."""
        current = self.get(key)
        if current is not None and current.deleted and not context:
            context = current.clock  # as `write` does: a deleted key can simply be written again
        dot = (self.actor, pack_counter(1, self.shelf.ends.get(P, 0)))
        self.world.made.append(Made(self.name, key, dot, context))
        self._store(key, write(current, context, content, dot, self.world.now), self.uuid)

    def push(self, key: bytes, payload: bytes, pusher: bytes) -> PushOutcome:
        """As `repl.proposal` does it: kept as it is, or merged by causality."""
        theirs, current = decode_object(payload), self.get(key)
        if current is None:
            self._store(key, theirs, pusher)
            return PushOutcome.APPLIED
        if descends(current.clock, theirs.clock):
            return PushOutcome.SUPERSEDED
        if not descends(theirs.clock, current.clock):
            self._store(key, merge(current, theirs), self.uuid)
            return PushOutcome.MERGED
        ours = counter_of(current.clock, self.actor)
        named = Key(b"default", BUCKET, key)
        owes = ours and self.world.owing and owed(self.queues.values(), P, offset_of(ours), pusher, named)
        self._store(key, theirs, self.uuid if owes else pusher)
        return PushOutcome.APPLIED

    def _store(self, key: bytes, obj: Object, origin: bytes) -> None:
        self.world.look_at(self, key, self.get(key), obj)
        payload, summary = seal(obj)
        offset = self.shelf.ends.get(P, 0)
        self._entry(EntryKind.DATA, key, payload, origin, encode_key_row(summary, offset))

    def _entry(self, kind: EntryKind, key: bytes, payload: bytes, origin: bytes = b"", row: bytes = b"") -> None:
        data = kind is EntryKind.DATA
        entry = make_entry(
            kind,
            1,
            self.shelf.ends.get(P, 0),
            request_id=b"",
            origin=origin or self.uuid,
            time_ms=self.world.now,
            key_hash=key_hash(BUCKET, key) if data else 0,
            previous_offset=self.shelf.latest.get((P, key), NO_OFFSET) if data else NO_OFFSET,
            bucket=BUCKET if data else b"",
            key=key,
            row=row,
            payload=payload,
        )
        self.shelf.put(P, entry)
        if data:
            for queue in self.queues.values():
                queue.add(P, [entry], self.world.now)

    def refill(self) -> None:
        for queue in self.queues.values():
            for window, start, rows in queue.refills():
                window.refilled(self.shelf.changes(P, start, rows), rows)

    def save_cursors(self) -> None:
        for queue in self.queues.values():
            for _, base, cursor in queue.soft_positions():
                self.shelf.soft[P, queue.name.encode()] = encode_soft(base, cursor)

    def answer(
        self, sink: str, session: Session, ack: tuple[bytes, int] | None, failed: tuple[int, ...] | None
    ) -> list[Item]:
        """A fetch of `sink`: its acknowledgement, then the next batch; `self.given` is that batch's id."""
        queue, world = self.queues[sink], self.world
        if ack is not None:
            queue.acknowledge(session, ack[0], ack[1], failed)
        queue.heard(session, (), world.now)
        self.refill()
        batch = queue.take(session, world.rng.randint(1, 5), 10_000, world.now)
        self.given = b""
        if batch is None or not queue.settle(batch, read_objects(self.shelf, batch.items(), 10_000)):  # type: ignore[arg-type]
            return []
        queue.sent(batch)
        self.given = batch.id
        return batch.items()


class World:
    """Towns, roads, and one random order of events. `owing` False leaves R-OWED out: for a test that must fail."""

    def __init__(self, seed: int, roads: list[Road], *, faults: bool = True, owing: bool = True) -> None:
        self.rng = Random(seed)
        self.roads = roads
        self.faults = faults
        self.owing = owing
        self.now = 1_000
        self.made: list[Made] = []
        self.contents: dict[Dot, bytes] = {}
        self.crossed: Counter[tuple[str, str, bytes, bytes]] = Counter()
        self.outcomes: Counter[PushOutcome] = Counter()
        self.cut: set[Road] = set()
        names = sorted({road.source for road in roads} | {road.sink for road in roads})
        self.towns = {name: Town(name, self, number + 1) for number, name in enumerate(names)}
        for town in self.towns.values():
            town.start()

    # ---------------------------------------------------------------- what happens

    def run(self, steps: int) -> None:
        events = [self.client] * 6 + [self.fetches] * 12 + [self.time_passes] * 3 + [self.save] * 2
        if self.faults:
            events += [self.cut_or_mend] * 2 + [self.restart]
        for _ in range(steps):
            self.rng.choice(events)()

    def client(self) -> None:
        """A write with what was read, blindly, or with an old context; or a delete of what was read."""
        rng = self.rng
        town, key = rng.choice(list(self.towns.values())), rng.choice(KEYS)
        current = town.get(key)
        clock: Clock = () if current is None else current.clock
        if rng.random() < 0.25 and clock:
            town.put(key, TOMBSTONE, clock)
        else:
            context = clock if rng.random() < 0.7 else ()
            town.put(key, Content(b"%d" % rng.randrange(1_000_000)), context)

    def fetches(self) -> None:
        """One cycle of whatever slot's turn it is at a town."""
        town = self.rng.choice(list(self.towns.values()))
        turn = town.roster.take(self.now)
        if turn is None:
            return
        name, slot, _ = turn
        road = next(r for r in self.roads if (r.source, r.sink) == (name.peer, town.name))
        ack = town.acks.get((name, slot))
        session = Session(town.uuid, town.name, town.life.to_bytes(8, "big"), slot)
        lost = self.faults and self.rng.random() < 0.1
        if road in self.cut or (lost and self.rng.random() < 0.5):
            town.roster.report(name, slot, Result.ERROR, self.now, 0)
            return
        source = self.towns[road.source]
        failed = (0,) if self.faults and self.rng.random() < 0.05 else ()
        items = source.answer(town.name, session, ack, failed)
        if lost:
            town.roster.report(name, slot, Result.ERROR, self.now, 0)
            return
        town.acks.pop((name, slot), None)
        if not items:
            town.roster.report(name, slot, Result.EMPTY, self.now, 0)
            return
        town.roster.fetched(name, slot)
        for item in items:
            self.crossed[road.source, road.sink, item[5], item[8]] += 1
            assert item[6] != town.uuid, "I-Q-NOLOOP: offered to where it came from"
            self.outcomes[town.push(item[5], item[8], source.uuid)] += 1
            assert town.push(item[5], item[8], source.uuid) is PushOutcome.SUPERSEDED, "I-IDEMP"
        town.acks[name, slot] = (source.given, source.queues[town.name].owner_version)
        town.roster.report(name, slot, Result.ITEMS, self.now, 0)

    def time_passes(self) -> None:
        self.now += self.rng.choice([1, 10, 50, LEASE_MS] if self.faults else [1, 10, 20])
        for town in self.towns.values():
            for queue in town.queues.values():
                queue.expire(self.now)

    def save(self) -> None:
        self.rng.choice(list(self.towns.values())).save_cursors()

    def cut_or_mend(self) -> None:
        self.cut ^= {self.rng.choice(self.roads)}

    def restart(self) -> None:
        """A node dies and comes back: whatever was under way, and each newest cursor, is forgotten."""
        self.rng.choice(list(self.towns.values())).start()

    def drain(self) -> None:
        """Roads mended, no new writes: until every queue has given all."""
        self.cut.clear()
        self.faults = False
        for _ in range(4_000):
            self.fetches()
            self.time_passes()
            quiet = all(
                window.advance() == town.shelf.ends[P]
                for town in self.towns.values()
                for queue in town.queues.values()
                for window in queue.windows.values()
            )
            if quiet:
                return
        raise AssertionError("I-ALO: a queue does not get empty")

    # ---------------------------------------------------------------- what must hold

    def look_at(self, town: Town, key: bytes, before: Object | None, after: Object) -> None:
        """Every object that is stored anywhere."""
        if before is not None:
            assert descends(after.clock, before.clock), "I-CLOCK-STABLE, I-NO-RESURRECT: a clock forgot something"
        for sibling in after.siblings:
            told = sibling.value + bytes([sibling.tombstone])
            assert self.contents.setdefault(sibling.dot, told) == told, "I-DOT: one dot, two contents"
            for made in self.made:
                if made.dot != sibling.dot and made.key == key and covers(made.context, sibling.dot):
                    assert not covers(after.clock, made.dot), "I-NO-RESURRECT: seen and replaced, and here again"

    def expected(self, key: bytes, of: set[str]) -> set[Dot]:
        """Dots of the writes made in towns `of` that no write there has seen: I-NO-LOST and I-SIB in one."""
        mine = [made for made in self.made if made.key == key and made.town in of]
        return {m.dot for m in mine if not any(covers(other.context, m.dot) for other in mine if other is not m)}

    def equal(self) -> None:
        """All towns hold the same, and that is exactly what no later write has seen."""
        for key in KEYS:
            want = self.expected(key, set(self.towns))
            for town in self.towns.values():
                found = town.get(key)
                assert (set() if found is None else {s.dot for s in found.siblings}) == want, (town.name, key)
        payloads = {tuple(sorted(town.shelf.objects.items())) for town in self.towns.values()}
        assert len(payloads) == 1, "I-COMM: same pushes, other bytes"
