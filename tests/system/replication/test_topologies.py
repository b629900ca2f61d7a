"""A mesh of three clusters, a chain of three, a hub with three around it, as real processes: writes, deletes and
siblings made everywhere."""

from __future__ import annotations

import itertools
import random
import time
from pathlib import Path

import pytest

from tests.system.replication.clusters import Clusters, Writers

CLUSTERS = ("east", "west", "north")
MESH = tuple(itertools.permutations(CLUSTERS, 2))
CHAIN = (("east", "west"), ("west", "east"), ("west", "north"), ("north", "west"))
HUB = (*CHAIN, ("west", "south"), ("south", "west"))
SHAPES = pytest.mark.parametrize("arrows", [MESH, CHAIN, HUB], ids=["mesh", "chain", "hub"])


def middle(arrows: tuple[tuple[str, str], ...]) -> tuple[str, ...]:
    """The clusters that forward received changes."""
    return () if arrows == MESH else ("west",)


@pytest.mark.slow
@pytest.mark.timeout(300)
@SHAPES
def test_clusters_end_the_same(tmp_path: Path, arrows: tuple[tuple[str, str], ...]) -> None:
    """Writes, deletes and concurrent writes to the same keys at three or four clusters, while nodes of one are killed:
    all end with the same keys, clocks and values, and with every acknowledged write; deletes stay deleted."""
    with Clusters(tmp_path, arrows, cascade=middle(arrows)) as clusters:
        writers = [
            Writers(cluster, clusters.by_name[cluster].places, pause_s=0.02, seed=seed).start()
            for seed, cluster in enumerate(clusters.by_name)
        ]
        try:
            for _ in range(2):
                time.sleep(3)
                cluster = random.Random(3).choice(list(clusters.by_name))
                clusters.crash(clusters.node(cluster), cluster)
                clusters.by_name[cluster].wait_until_healthy(90)
            time.sleep(1)
        finally:
            for writer in writers:
                writer.stop()
        clusters.check(writers)


@pytest.mark.slow
@pytest.mark.timeout(240)
@SHAPES
def test_each_change_crosses_each_link_once_at_most(tmp_path: Path, arrows: tuple[tuple[str, str], ...]) -> None:
    """Fresh keys and deletes without any fault: no reference is served twice, and no sink is sent a change that it
    already has."""
    with Clusters(tmp_path, arrows, cascade=middle(arrows)) as clusters:
        writers = [
            Writers(cluster, clusters.by_name[cluster].places, pause_s=0.01, shared=False)
            for cluster in clusters.by_name
        ]
        for writer in writers:
            writer.start()
        time.sleep(4)
        for writer in writers:
            writer.stop()
        clusters.check(writers)
        assert not any(writer.unknown for writer in writers)
        for source, receiver in arrows:
            (row,) = clusters.queue_rows(source, receiver)
            (ledger,) = clusters.ledgers(source, receiver)
            assert row["redelivered"] == 0
            assert row["served"] == row["acknowledged"] <= ledger["eligible"] + ledger["found"]
        assert any(writer.deleted for writer in writers)
        links = [link for cluster in CLUSTERS for link in clusters.see(cluster, "/admin/sink")["sinks"]]
        assert sum(link["superseded"] for link in links) == 0, links
        assert sum(link["merged"] for link in links) == 0
