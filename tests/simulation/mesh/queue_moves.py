"""A simulation whose operators move queues: release them to another cluster, place them, register new ones late.

They act at any moment, between faults, overflows, suspensions and clears. At the end every write of a source is at each
cluster that fetches from it, or in a gap of that queue, or older than the position at which an operator had the queue
begin. This holds whatever origin its row has now, so the check covers more than the changes that a window offers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from isthmus.queues.queue_documents import PLACED, RELEASED
from isthmus.repl.model.objects import encode_object
from isthmus.repl.model.vclock import covers, descends, offset_of
from isthmus.sink.scheduler import LinkName
from tests.simulation.mesh.cluster import Link, P
from tests.simulation.mesh.discarding import DiscardingSimulation
from tests.simulation.mesh.simulator import MeshSimulation


class QueueMoveSimulation(DiscardingSimulation):
    """`late`: links that exist only once their queues are registered."""

    def __init__(self, seed: int, links: list[Link], *, gives_up: bool = False, **options: Any) -> None:
        """`gives_up`: operators also suspend publishing, and clear."""
        self.gives_up = gives_up
        self.owners: dict[tuple[str, str], tuple[bytes, int]] = {}
        """(source, queue) of released or registered queues -> owner and its version."""
        self.begins: Counter[tuple[str, str]] = Counter()
        """(source, queue) -> offset from which its owner was to have it: changes below are missing on purpose."""
        self.moves: Counter[str] = Counter()
        super().__init__(seed, links, acts=True, **options)

    def begin(self, name: str) -> None:
        """See GivingWorld: so are the queues' owners."""
        super().begin(name)
        for (source, queue), (owner, version) in self.owners.items():
            if source == name:
                self.clusters[source].queues[queue].set_owner(owner, version)

    def kinds_of_acts(self) -> list[Callable[[], None]]:
        """See GivingWorld."""
        found = super().kinds_of_acts() if self.gives_up else []
        return [*found, self.releases, self.places, self.places, self.registers]

    def claims(self) -> None:
        """See DiscardingSimulation: a queue without a position has no gaps to write."""
        cluster = self.any_cluster()
        if all(P in queue.windows for queue in cluster.queues.values()):
            super().claims()

    def suspends(self) -> None:
        """See GivingWorld."""
        if self._movable() is not None:
            super().suspends()

    def clears(self) -> None:
        """See GivingWorld."""
        if all(P in queue.windows for cluster in self.clusters.values() for queue in cluster.queues.values()):
            super().clears()

    def _movable(self) -> Link | None:
        """Any link whose queue has a position, and no CURSOR entry under way."""
        link = self.rng.choice(self.links)
        cluster = self.clusters[link.source]
        return None if link.queue in cluster.claiming or P not in cluster.queues[link.queue].windows else link

    def _start(self, link: Link) -> int:
        """0, now, or the changes of some time on."""
        cluster = self.clusters[link.source]
        applied = cluster.queues[link.queue].windows[P].applied
        kind = self.rng.random()
        if kind < 0.5:
            return 0
        return applied if kind < 0.7 else min(applied, cluster.store.offset_at(P, self.rng.randrange(self.now + 1)))

    def releases(self) -> None:
        """Release a queue: it has no owner for a moment, and then any cluster but its source, from some offset on."""
        link = self._movable()
        if link is None:
            return
        at, start, cluster = (link.source, link.queue), self._start(link), self.clusters[link.source]
        self.obeys(link, RELEASED, start)
        queue = cluster.queues[link.queue]
        queue.set_owner(b"", queue.owner_version + 1)
        owner = self.rng.choice([name for name in self.clusters if name != link.source])
        self.owners[at] = self.clusters[owner].uuid, queue.owner_version + 1
        queue.set_owner(*self.owners[at])
        if owner != link.sink:
            self.begins[at] = start
            moved = link._replace(sink=owner, moved="" if owner == link.queue else link.queue)
            self.links[self.links.index(link)] = moved
            name = LinkName(f"to-{link.queue}", link.source)
            if name not in self.rosters[owner].names():
                self.rosters[owner].add(name)
        self.moves["released"] += 1

    def places(self) -> None:
        """Place a queue at some offset; changes below are copied to its owner by other means."""
        link = self._movable()
        if link is None:
            return
        cluster, sink, start = self.clusters[link.source], self.clusters[link.sink], self._start(link)
        if start > cluster.queues[link.queue].windows[P].advance():
            for change in self.changes(cluster):
                brought = cluster.get(change.key)
                if change.offset < start and brought is not None:
                    sink.push([(change.key, encode_object(brought), False)], cluster.uuid)
        self.obeys(link, PLACED, start)
        self.moves["placed"] += 1

    def registers(self) -> None:
        """A queue is registered, from 0 or from some time on, for a cluster that did not fetch before."""
        if not self.late:
            return
        link = self.late.pop(self.rng.randrange(len(self.late)))
        cluster, at = self.clusters[link.source], (link.source, link.queue)
        start = 0 if self.rng.random() < 0.7 else cluster.store.offset_at(P, self.rng.randrange(self.now + 1))
        self.links.append(link)
        self.begins[at] = start
        self.owners[at] = self.clusters[link.sink].uuid, 1
        self.rosters[link.sink].add(LinkName(f"to-{link.queue}", link.source))
        cluster.register(link, self.clusters[link.sink].uuid, start)
        self.moves["registered"] += 1

    def drain(self) -> None:
        """See GivingWorld."""
        MeshSimulation.drain(self)  # every registered queue has a position
        super().drain()

    def only_gaps_are_missing(self) -> None:
        """See GivingWorld; and where the queue of a new owner began. Each write of a source is looked at, too."""
        for link in self.links:
            cluster, sink = self.clusters[link.source], self.clusters[link.sink]
            window, begins = cluster.queues[link.queue].windows[P], self.begins[link.source, link.queue]
            assert window.ledger_error() in (0, None)
            assert not window.ledger.unbalanced
            rows = {change.key: change for change in self.changes(cluster)}
            for change in rows.values():
                ours, theirs = cluster.get(change.key), sink.get(change.key)
                assert ours is not None
                if not window.offers_row(change) or change.offset < begins:
                    continue
                assert (theirs is not None and descends(theirs.clock, ours.clock)) or self.given_up(link, change), (
                    f"{link}: {change} is missing, and no gap says so: {self.gaps(link)}"
                )
            for made in self.made:
                if made.cluster != link.source or offset_of(made.dot[1]) < begins:
                    continue
                found = sink.get(made.key)
                assert (found is not None and covers(found.clock, made.dot)) or self.given_up(link, rows[made.key]), (
                    f"{link}: the write of {made.key!r} at {offset_of(made.dot[1])} is missing, its row is "
                    f"{rows[made.key]}, and no gap says so: {self.gaps(link)}"
                )
