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
from tests.system.replication.clusters import BUCKET, Clusters, Writers, eventually, put, queue_to
from tests.system.replication.reaps import delete, enable_reaps, reap, reaped
from tests.system.replication.test_topologies import HUB, MESH, middle

SHAPES = pytest.mark.parametrize(("arrows", "near"), [(MESH, "east"), (HUB, "west")], ids=["mesh", "hub"])
"""Topologies, each with the cluster whose link to the north is cut."""


def network_of(arrows: tuple[tuple[str, str], ...]) -> Network:
    """A host for each process."""
    names = dict.fromkeys(name for arrow in arrows for name in arrow)
    return Network([f"{name}-{host}" for name in names for host in ("zookeeper", "n1")])


def explained(clusters: Clusters, cluster: str, key: str) -> dict[str, Any]:
    """An operator's explanation of a key."""
    return clusters.see(cluster, f"/admin/explain?type=default&bucket={BUCKET}&key={key}")


def settle(clusters: Clusters, cluster_by_key: dict[str, str]) -> None:
    """Reap each key at one cluster only, until it is gone everywhere."""
    keys = tuple(cluster_by_key)

    def gone() -> bool:
        for key, name in cluster_by_key.items():
            reap(clusters, name, key)
        return all(reaped(clusters, name, keys) for name in clusters.by_name)

    eventually("every tombstone is gone everywhere", gone)


@pytest.mark.slow
@pytest.mark.root
@pytest.mark.network
@pytest.mark.timeout(400)
@SHAPES
def test_reaps_wait_for_the_link_that_is_cut(tmp_path: Path, arrows: tuple[tuple[str, str], ...], near: str) -> None:
    """I-NO-RESURRECT: no deleted key comes back after every tombstone was reaped at one cluster.

    Keys are deleted at every cluster while one link is cut: at clusters that did not write them, and at two clusters at
    once. Once the link is back, a reap at one cluster removes each key everywhere; keys that the far side wrote
    meanwhile stay. All of this still holds after every node was killed.
    """
    with network_of(arrows) as network, Clusters(tmp_path, arrows, cascade=middle(arrows), network=network) as clusters:
        enable_reaps(clusters)
        names = list(clusters.by_name)
        cluster_by_key = {f"{name}{number}": name for name in names for number in range(3)}
        cluster_by_key |= {f"both{number}": near for number in range(3)}
        for key, name in cluster_by_key.items():
            put(clusters.node(names[names.index(name) - 1]).place, key, b"old")
        put(clusters.node(near).place, "kept", b"old")
        for name in names:
            eventually(f"{name} has all", lambda t=name: clusters.contents(t).keys() == {*cluster_by_key, "kept"})
        network.cut(f"{near}-n1", "north-n1")
        for key, name in cluster_by_key.items():
            delete(clusters, name, key)
            if key.startswith("both"):
                delete(clusters, "north", key)
        delete(clusters, near, "kept")
        put(clusters.node("north").place, "kept", b"new")
        assert {reap(clusters, name, key)[0] for key, name in cluster_by_key.items()} == {"waits"}
        for key in (f"{near}0", "both0"):
            eventually(f"{key} waits", lambda k=key: queue_to("north") in reap(clusters, near, k)[1])
            told = explained(clusters, near, key)
            assert queue_to("north") in told["reap"]["waits"], told
            (row,) = (row for row in told["queues"] if row["queue"] == queue_to("north"))
            assert row["state"] in ("waiting", "in-flight", "not-read"), told
        time.sleep(3.0)
        assert {reap(clusters, near, key)[0] for key in cluster_by_key if key.startswith((near, "both"))} == {"waits"}
        network.heal()
        settle(clusters, cluster_by_key)
        clusters.check()
        for name, fault_cluster in clusters.by_name.items():
            clusters.crash(clusters.node(name), name, away_s=0.2)
            fault_cluster.wait_until_healthy(90)
        put(clusters.node("north").place, f"{near}0", b"again")
        clusters.check()
        found = clusters.contents("east")
        assert {key: values for key, (_, _, values) in found.items()} == {"kept": ["", "new"], f"{near}0": ["again"]}


class ReapOperator:
    """An operator who reaps deleted keys, at any cluster, from `start` to `stop`."""

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
        """Stop after the current operation."""
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        chance = random.Random(11)
        while not self._stopping.wait(0.02):
            deleted = [key for writer in self._writers for key in list(writer.deleted)[-40:]]
            name = chance.choice(list(self._clusters.by_name))
            if deleted and not self._clusters.by_name[name].health_problem():
                self.outcomes[reap(self._clusters, name, chance.choice(deleted))[0]] += 1


@pytest.mark.slow
@pytest.mark.root
@pytest.mark.network
@pytest.mark.timeout(500)
@SHAPES
def test_reaps_under_load_bring_nothing_back(tmp_path: Path, arrows: tuple[tuple[str, str], ...], near: str) -> None:
    """I-NO-RESURRECT, I-NO-LOST: the clusters converge, with every acknowledged write and no deleted key.

    All clusters take writes, deletes, and reaps while a link is cut and healed and nodes are killed. Afterwards every
    tombstone can be reaped."""
    with network_of(arrows) as network, Clusters(tmp_path, arrows, cascade=middle(arrows), network=network) as clusters:
        enable_reaps(clusters)
        writers = [
            Writers(name, clusters.by_name[name].places, pause_s=0.03, seed=seed)
            for seed, name in enumerate(clusters.by_name)
        ]
        reapers = ReapOperator(clusters, writers)
        for writer in writers:
            writer.start()
        reapers.start()
        chance = random.Random(5)
        try:
            for _ in range(3):
                network.cut(f"{near}-n1", "north-n1")
                time.sleep(4.0)
                name = chance.choice(list(clusters.by_name))
                clusters.crash(clusters.node(name), name)
                network.heal()
                clusters.by_name[name].wait_until_healthy(90)
                time.sleep(2.0)
        finally:
            reapers.stop()
            for writer in writers:
                writer.stop()
        clusters.check(writers)
        assert reapers.outcomes["waits"], reapers.outcomes
        assert reapers.outcomes["no-tombstone"], reapers.outcomes  # it was reaped by replication
        settle(clusters, {key: near for writer in writers for key in writer.deleted - writer.unknown})
        clusters.check(writers)
