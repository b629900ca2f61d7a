"""Three real clusters, each compared with the next, both ways: differences made in one of them are repaired in all."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.system.fullsync.clusters import Clusters, StoredValue, drop_queues, eventually, mesh_topology

NAMES = ("east", "north", "west")
RING = [("east", "north"), ("north", "west"), ("west", "east")]


def everywhere(clusters: Clusters, names: list[tuple[str, str]]) -> dict[tuple[str, str], list[StoredValue]]:
    """The siblings and clocks that readers of each cluster get."""
    return {name: [clusters.read(cluster, *name) for cluster in NAMES] for name in names}


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_writes_of_one_of_three_clusters_reach_all(directory: Path) -> None:
    """With replication off: keys that only one cluster has, newer and concurrent versions, deletions, and a key that
    was deleted in one and written again from its old clock in another. Checks of each pair, both ways, until all three
    are proven in sync: every key is the same in all, concurrent ones with all of their values (a deletion among them),
    no deleted key is back, and every other key's clock is unchanged."""
    clusters = Clusters(directory, mesh_topology(NAMES, RING, bidirectional="true"))
    clocks = {}
    for n in range(40):
        name = (f"bucket {n % 3}", f"key {n}")
        clocks[name] = clusters.put(NAMES[n % 3], *name, f"first {n}")
    names = list(clocks)
    eventually(lambda: all(None not in held for held in everywhere(clusters, names[-3:]).values()), "replicated")
    for here, there in RING:
        clusters.in_sync(f"{here}-1", name=there)
    clusters.suspend_sinks(True)
    for n, cluster in enumerate(NAMES):
        only, newer, deleted, both, back = (names[6 * n + at] for at in range(1, 6))
        names.append(("only", f"of {cluster}"))
        clusters.put(cluster, *names[-1], "made here")
        clusters.put(cluster, *newer, "newer", clocks[newer])
        clusters.delete(cluster, *deleted)
        for each in NAMES:
            clusters.put(each, *both, f"of {each}", clocks[both])
        clusters.delete(cluster, *back)
        other = NAMES[(n + 1) % 3]
        clusters.put(other, *back, "again", clocks[back])
        assert only in clocks
    for cluster in NAMES:
        for other in NAMES:
            if other != cluster:
                drop_queues(clusters, cluster, f"to-{other}")
    untouched = [name for name in clocks if name not in names[:18]]
    before = everywhere(clusters, untouched)
    clusters.suspend_sinks(False)

    def all_in_sync() -> bool:
        return all(clusters.check("all", f"{here}-1", there)["verdict"] == "in-sync" for here, there in RING)

    eventually(all_in_sync, "all three are in sync", 150)
    after = everywhere(clusters, names)
    for name, held in after.items():
        assert held[0] == held[1] == held[2], (name, held)
    assert {name: after[name] for name in untouched} == before
    for n, cluster in enumerate(NAMES):
        _, newer, deleted, both, back = (names[6 * n + at] for at in range(1, 6))
        seen = [None if after[name][0] is None else after[name][0][0] for name in (newer, deleted, both, back)]  # type: ignore[index]
        assert seen == [("newer",), None, ("of east", "of north", "of west"), ("", "again")]
        assert after["only", f"of {cluster}"][0] is not None
