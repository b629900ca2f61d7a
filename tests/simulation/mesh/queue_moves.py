"""A world whose operators move queues: release them to another cluster, place them, register new ones late.

All that they may do happens at any moment, between faults, overflows, suspensions and clears. At the end every write of
a source is at each cluster that fetches from it, or in a gap of that queue, or older than where an operator had the
queue begin: whatever origin its row has now, so this looks at more than what a window offers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from isthmus.queues.queue_documents import PLACED, RELEASED
from isthmus.repl.model.objects import encode_object
from isthmus.repl.model.vclock import covers, descends, offset_of
from isthmus.sink.scheduler import LinkName
from tests.simulation.mesh.cluster import P, Road
from tests.simulation.mesh.discarding import GivingWorld
from tests.simulation.mesh.simulator import World


class MovingWorld(GivingWorld):
    """`late`: roads that are there only once somebody registers their queues."""

    def __init__(self, seed: int, roads: list[Road], *, gives_up: bool = False, **options: Any) -> None:
        """`gives_up`: operators also suspend publishing, and clear."""
        self.gives_up = gives_up
        self.owners: dict[tuple[str, str], tuple[bytes, int]] = {}
        """(source, queue) of what was released or registered -> who owns it, under which version."""
        self.begins: Counter[tuple[str, str]] = Counter()
        """(source, queue) -> offset from which its owner was to have it: what is below is missing on purpose."""
        self.moves: Counter[str] = Counter()
        super().__init__(seed, roads, acts=True, **options)

    def begin(self, name: str) -> None:
        """See GivingWorld: so does who owns a queue."""
        super().begin(name)
        for (source, queue), (owner, version) in self.owners.items():
            if source == name:
                self.towns[source].queues[queue].set_owner(owner, version)

    def kinds_of_acts(self) -> list[Callable[[], None]]:
        """See GivingWorld."""
        found = super().kinds_of_acts() if self.gives_up else []
        return [*found, self.releases, self.places, self.places, self.registers]

    def claims(self) -> None:
        """See GivingWorld: a queue that does not stand yet has nothing to say."""
        town = self.any_town()
        if all(P in queue.windows for queue in town.queues.values()):
            super().claims()

    def suspends(self) -> None:
        """See GivingWorld."""
        if self._movable() is not None:
            super().suspends()

    def clears(self) -> None:
        """See GivingWorld."""
        if all(P in queue.windows for town in self.towns.values() for queue in town.queues.values()):
            super().clears()

    def _movable(self) -> Road | None:
        """Any road whose queue stands, and of which no CURSOR entry is under way."""
        road = self.rng.choice(self.roads)
        town = self.towns[road.source]
        return None if road.queue in town.claiming or P not in town.queues[road.queue].windows else road

    def _start(self, road: Road) -> int:
        """0, now, or the changes of some time on."""
        town = self.towns[road.source]
        applied = town.queues[road.queue].windows[P].applied
        kind = self.rng.random()
        if kind < 0.5:
            return 0
        return applied if kind < 0.7 else min(applied, town.store.offset_at(P, self.rng.randrange(self.now + 1)))

    def releases(self) -> None:
        """A queue belongs to nobody for a moment, and then to any town but its source, from some offset on."""
        road = self._movable()
        if road is None:
            return
        at, start, town = (road.source, road.queue), self._start(road), self.towns[road.source]
        self.obeys(road, RELEASED, start)
        queue = town.queues[road.queue]
        queue.set_owner(b"", queue.owner_version + 1)
        owner = self.rng.choice([name for name in self.towns if name != road.source])
        self.owners[at] = self.towns[owner].uuid, queue.owner_version + 1
        queue.set_owner(*self.owners[at])
        if owner != road.sink:
            self.begins[at] = start
            moved = road._replace(sink=owner, moved="" if owner == road.queue else road.queue)
            self.roads[self.roads.index(road)] = moved
            name = LinkName(f"to-{road.queue}", road.source)
            if name not in self.rosters[owner].names():
                self.rosters[owner].add(name)
        self.moves["released"] += 1

    def places(self) -> None:
        """A queue is placed at some offset; what is below the offset is brought to its owner by other means."""
        road = self._movable()
        if road is None:
            return
        town, sink, start = self.towns[road.source], self.towns[road.sink], self._start(road)
        if start > town.queues[road.queue].windows[P].advance():
            for change in self.changes(town):
                brought = town.get(change.key)
                if change.offset < start and brought is not None:
                    sink.push([(change.key, encode_object(brought), False)], town.uuid)
        self.obeys(road, PLACED, start)
        self.moves["placed"] += 1

    def registers(self) -> None:
        """A queue is registered, from 0 or from some time on, for a cluster that did not fetch before."""
        if not self.late:
            return
        road = self.late.pop(self.rng.randrange(len(self.late)))
        town, at = self.towns[road.source], (road.source, road.queue)
        start = 0 if self.rng.random() < 0.7 else town.store.offset_at(P, self.rng.randrange(self.now + 1))
        self.roads.append(road)
        self.begins[at] = start
        self.owners[at] = self.towns[road.sink].uuid, 1
        self.rosters[road.sink].add(LinkName(f"to-{road.queue}", road.source))
        town.register(road, self.towns[road.sink].uuid, start)
        self.moves["registered"] += 1

    def drain(self) -> None:
        """See GivingWorld."""
        World.drain(self)  # every queue that was registered stands
        super().drain()

    def only_gaps_are_missing(self) -> None:
        """See GivingWorld; and where the queue of a new owner began. Each write of a source is looked at, too."""
        for road in self.roads:
            town, sink = self.towns[road.source], self.towns[road.sink]
            window, begins = town.queues[road.queue].windows[P], self.begins[road.source, road.queue]
            assert window.ledger_error() in (0, None)
            assert not window.ledger.unbalanced
            rows = {change.key: change for change in self.changes(town)}
            for change in rows.values():
                ours, theirs = town.get(change.key), sink.get(change.key)
                assert ours is not None
                if not window.offers_row(change) or change.offset < begins:
                    continue
                assert (theirs is not None and descends(theirs.clock, ours.clock)) or self.given_up(road, change), (
                    f"{road}: {change} is missing, and no gap says so: {self.gaps(road)}"
                )
            for made in self.made:
                if made.town != road.source or offset_of(made.dot[1]) < begins:
                    continue
                found = sink.get(made.key)
                assert (found is not None and covers(found.clock, made.dot)) or self.given_up(road, rows[made.key]), (
                    f"{road}: the write of {made.key!r} at {offset_of(made.dot[1])} is missing, its row is "
                    f"{rows[made.key]}, and no gap says so: {self.gaps(road)}"
                )
