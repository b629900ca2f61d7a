"""A simulation whose clusters are restored from backups: data is lost, and with it the count of the writes made.

A cluster is copied now and then, and later goes back to the copy: its log ends where the copy's did, in the same epoch,
so that its next writes take the offsets of those that are lost. What it lost is partly in other clusters, in messages
under way, and in clients' contexts. In the end a full-sync compares everything in all directions; then every write that
any other cluster ever stored is there, unless a write replaced it whose client had seen it.
"""

from __future__ import annotations

from itertools import count
from typing import Any

from isthmus.repl.model.objects import encode_object
from isthmus.repl.model.vclock import covers
from tests.simulation.mesh.cluster import KEYS, Cluster, Link
from tests.simulation.mesh.simulator import ClientWrite, MeshSimulation


class RestoringSimulation(MeshSimulation):
    """`renewed` False: a restored cluster continues under its old actor, which must lose writes."""

    def __init__(self, seed: int, links: list[Link], *, renewed: bool = True, **options: Any) -> None:
        self.renewed = renewed
        self.copies: dict[str, int] = {}
        """Cluster -> number of entries in its newest backup."""
        self.restored = 0
        self._incarnations = count(1)
        super().__init__(seed, links, **options)

    def time_passes(self) -> None:
        """See MeshSimulation: now and then a backup is made, or one is restored."""
        super().time_passes()
        dice = self.rng.random()
        if not self.faults or dice > 0.06:
            return
        cluster = self.any_cluster()
        if dice > 0.01:
            self.copies[cluster.name] = len(cluster.history)
        elif cluster.name in self.copies:
            self.restores(cluster)

    def restores(self, cluster: Cluster) -> None:
        """The cluster goes back to its newest backup."""
        self.restored += 1
        cluster.go_back(self.copies[cluster.name], next(self._incarnations) if self.renewed else 0)
        for key in KEYS:
            found = cluster.get(key)
            known = {made.dot for made in self.made if found is not None and covers(found.clock, made.dot)}
            self.known[cluster.name, key] = known
        self.begin(cluster.name)

    def full_sync(self) -> None:
        """Every object is compared, and pushed where it is missing; until all queues are empty again."""
        for link in self.links:
            source, sink = self.clusters[link.source], self.clusters[link.sink]
            for key in KEYS:
                found = source.get(key)
                if found is not None:
                    sink.push([(key, encode_object(found), False)], source.uuid)
        self.drain()

    def forget_lost(self) -> None:
        """Leave out the writes that were lost with their cluster before any other had stored them."""
        kept: list[ClientWrite] = []
        for made in self.made:
            here = any(made.dot in self.known.get((name, made.key), ()) for name in self.clusters)
            lost = not here and not any(
                found is not None and covers(found.clock, made.dot)
                for found in (cluster.get(made.key) for cluster in self.clusters.values())
            )
            if not lost:
                kept.append(made)
        self.made = kept
