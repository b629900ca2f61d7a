"""Three nodes against three, both ways, load from three sides, and processes that are killed."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest

from tests.system.replication.clusters import Clusters, Writers

BOTH_WAYS = (("east", "west"), ("west", "east"))


@pytest.mark.slow
@pytest.mark.timeout(420)
@pytest.mark.parametrize("victims", [("east",), ("west",), ("east", "west")], ids="+".join)
def test_killed_nodes_lose_no_change(tmp_path: Path, victims: tuple[str, ...]) -> None:
    """kill -9 and restart of nodes of the source, of the sink, and of both under load: in the end both clusters hold
    every acknowledged write, nothing else, and no gap is left."""
    chance = random.Random(7)
    with Clusters(tmp_path, BOTH_WAYS, nodes=3) as clusters:
        writers = [
            Writers("e", clusters.by_name["east"].places, pause_s=0.03).start(),
            Writers("w", clusters.by_name["west"].places, pause_s=0.06, seed=50).start(),
        ]
        try:
            for _ in range(3):
                time.sleep(1.0)
                struck = [(clusters.node(cluster, chance.randrange(3)), cluster) for cluster in victims]
                for node, cluster in struck:
                    clusters.crash(node, cluster, away_s=chance.uniform(0.2, 2.0))
                for _, cluster in struck:
                    clusters.by_name[cluster].wait_until_healthy(90)
        finally:
            for writer in writers:
                writer.stop()
        clusters.check(writers)
