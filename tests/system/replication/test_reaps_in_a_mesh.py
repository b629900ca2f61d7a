"""Three or four clusters of real processes that reap while links are cut and nodes die: a mesh, and a hub."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.system.faults.network import Network
from tests.system.replication.clusters import BUCKET, Clusters, Writers, put, queue_to, until
from tests.system.replication.reaps import delete, heed_reaps, reap, reaped
from tests.system.replication.test_topologies import HUB, MESH, middle

SHAPES = pytest.mark.parametrize(("arrows", "near"), [(MESH, "east"), (HUB, "west")], ids=["mesh", "hub"])
"""With the town whose link to the north is cut."""


def network_of(arrows: tuple[tuple[str, str], ...]) -> Network:
    """A host for each process."""
    towns = dict.fromkeys(town for arrow in arrows for town in arrow)
    return Network([f"{town}-{host}" for town in towns for host in ("zookeeper", "n1")])


def explained(clusters: Clusters, cluster: str, key: str) -> dict[str, Any]:
    """What an operator is told of a key."""
    return clusters.see(cluster, f"/admin/explain?type=default&bucket={BUCKET}&key={key}")


def settle(clusters: Clusters, homes: dict[str, str]) -> None:
    """Ask for each key at one town only, until it is gone everywhere."""
    keys = tuple(homes)

    def gone() -> bool:
        for key, town in homes.items():
            reap(clusters, town, key)
        return all(reaped(clusters, town, keys) for town in clusters.labs)

    until("every tombstone is gone everywhere", gone)


@pytest.mark.slow
@pytest.mark.root
@pytest.mark.network
@pytest.mark.timeout(400)
@SHAPES
def test_reaps_wait_for_the_link_that_is_cut(tmp_path: Path, arrows: tuple[tuple[str, str], ...], near: str) -> None:
    """I-NO-RESURRECT: keys are deleted at every town while one link is cut, by others than who wrote them, by two at
    once. No tombstone overtakes its queue, and `explain` names the queue. Once the link is back, one question at one
    town takes each away everywhere; what was written meanwhile on the far side stays. So it is after a kill of all."""
    with network_of(arrows) as network, Clusters(tmp_path, arrows, cascade=middle(arrows), network=network) as clusters:
        heed_reaps(clusters)
        towns = list(clusters.labs)
        homes = {f"{town}{number}": town for town in towns for number in range(3)}
        homes |= {f"both{number}": near for number in range(3)}
        for key, town in homes.items():
            put(clusters.node(towns[towns.index(town) - 1]).place, key, b"old")
        put(clusters.node(near).place, "kept", b"old")
        for town in towns:
            until(f"{town} has all", lambda t=town: clusters.contents(t).keys() == {*homes, "kept"})
        network.cut(f"{near}-n1", "north-n1")
        for key, town in homes.items():
            delete(clusters, town, key)
            if key.startswith("both"):
                delete(clusters, "north", key)
        delete(clusters, near, "kept")
        put(clusters.node("north").place, "kept", b"new")
        assert {reap(clusters, town, key)[0] for key, town in homes.items()} == {"waits"}
        for key in (f"{near}0", "both0"):
            until(f"{key} waits", lambda k=key: queue_to("north") in reap(clusters, near, k)[1])
            told = explained(clusters, near, key)
            assert queue_to("north") in told["reap"]["waits"], told
            (row,) = (row for row in told["queues"] if row["queue"] == queue_to("north"))
            assert row["state"] in ("waiting", "in-flight", "not-read"), told
        time.sleep(3.0)
        assert {reap(clusters, near, key)[0] for key in homes if key.startswith((near, "both"))} == {"waits"}
        network.heal()
        settle(clusters, homes)
        clusters.check()
        for town, lab in clusters.labs.items():
            clusters.crash(clusters.node(town), town, away_s=0.2)
            lab.wait_well(90)
        put(clusters.node("north").place, f"{near}0", b"again")
        clusters.check()
        found = clusters.contents("east")
        assert {key: values for key, (_, _, values) in found.items()} == {"kept": ["", "new"], f"{near}0": ["again"]}


class Reapers:
    """An operator who asks for the reap of what clients deleted, anywhere, from `start` to `stop`."""

    def __init__(self, clusters: Clusters, writers: list[Writers]) -> None:
        self._clusters = clusters
        self._writers = writers
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.outcomes: Counter[str] = Counter()

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End, when what was begun has ended."""
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        chance = random.Random(11)
        while not self._stopping.wait(0.02):
            deleted = [key for writer in self._writers for key in list(writer.deleted)[-40:]]
            town = chance.choice(list(self._clusters.labs))
            if deleted and not self._clusters.labs[town].unwell():
                self.outcomes[reap(self._clusters, town, chance.choice(deleted))[0]] += 1


@pytest.mark.slow
@pytest.mark.root
@pytest.mark.network
@pytest.mark.timeout(500)
@SHAPES
def test_reaps_under_load_bring_nothing_back(tmp_path: Path, arrows: tuple[tuple[str, str], ...], near: str) -> None:
    """I-NO-RESURRECT, I-NO-LOST: writes and deletes at all towns, and reaps asked for anywhere, while a link is cut and
    healed and nodes are killed: the towns end the same, with every acknowledged write and nothing that was deleted;
    and then every tombstone can go."""
    with network_of(arrows) as network, Clusters(tmp_path, arrows, cascade=middle(arrows), network=network) as clusters:
        heed_reaps(clusters)
        writers = [
            Writers(town, clusters.labs[town].places, pause_s=0.03, seed=seed)
            for seed, town in enumerate(clusters.labs)
        ]
        reapers = Reapers(clusters, writers)
        for writer in writers:
            writer.start()
        reapers.start()
        chance = random.Random(5)
        try:
            for _ in range(3):
                network.cut(f"{near}-n1", "north-n1")
                time.sleep(4.0)
                town = chance.choice(list(clusters.labs))
                clusters.crash(clusters.node(town), town)
                network.heal()
                clusters.labs[town].wait_well(90)
                time.sleep(2.0)
        finally:
            reapers.stop()
            for writer in writers:
                writer.stop()
        clusters.check(writers)
        assert reapers.outcomes["waits"], reapers.outcomes
        assert reapers.outcomes["no-tombstone"], reapers.outcomes  # it went by itself
        settle(clusters, {key: near for writer in writers for key in writer.deleted - writer.unknown})
        clusters.check(writers)
