"""Full-sync between real clusters: three nodes against two, with other partitions, differences planted with the sink
suspended and by writes to both sides; afterwards every key is compared, and equal keys are unchanged."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import msgpack
import pytest

from isthmus.node.local import directory as places
from tests.system.fullsync.clusters import (
    BUCKETS,
    Clusters,
    StoredValue,
    drop_queues,
    eventually,
    fill,
    http_request,
    topology,
)


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("both", [False, True])
def test_all_that_differs_is_repaired_and_nothing_else_is_touched(directory: Path, both: bool) -> None:
    """Missing, older, concurrent and deleted keys of many buckets are equal after one run, keys that are ahead at the
    sink are left alone (or are sent back, in bidirectional checks), and every other key's clock is unchanged."""
    clusters = Clusters(directory, topology(both=both))
    clocks = fill(clusters, 100)
    names = list(clocks)
    clusters.suspend_sinks(True)
    for n, name in enumerate(names[:10]):
        clusters.put("east", *name, f"newer {n}", clocks[name])
    for n, name in enumerate(names[10:20]):
        clusters.put("west", *name, f"ahead {n}", clocks[name])
    for n, name in enumerate(names[20:30]):
        clusters.put("east", *name, f"here {n}", clocks[name])
        clusters.put("west", *name, f"there {n}", clocks[name])
    for name in names[30:40]:
        clusters.delete("east", *name)
    for name in names[40:45]:
        clusters.delete("west", *name)
    for n in range(10):
        names.append((BUCKETS[n % 5], f"missing {n}"))
        clusters.put("east", *names[-1], f"missing {n}")
    for n in range(5):  # siblings made here, absent there
        names.append((BUCKETS[n % 5], f"siblings {n}"))
        clusters.put("east", *names[-1], f"one {n}")
        clusters.put("east", *names[-1], f"two {n}")
    drop_queues(clusters, "east", "to-west")
    drop_queues(clusters, "west", "to-east")
    before = {name: (clusters.read("east", *name), clusters.read("west", *name)) for name in names}
    clusters.suspend_sinks(False)
    time.sleep(1)
    found = clusters.check()
    assert (found["verdict"], found["left"]) == ("repaired", 0), found
    assert sum(found["differences"].values()) == 10 + 10 + 10 + 10 + 10 + 5 + 5, found
    ahead = sum(found["differences"].get(kind, 0) for kind in ("missing@source", "behind@source"))
    assert ahead == 10 + 5, "counted, whether they are sent back or left alone"
    expected: dict[tuple[str, str], tuple[StoredValue, StoredValue]] = {}

    def repaired() -> bool:
        after = {name: (clusters.read("east", *name), clusters.read("west", *name)) for name in names}
        expected.update(after)
        alone = set() if both else {*names[10:20], *names[40:45]}
        concurrent = names[20:30]
        settled = all(
            after[name][0] == after[name][1] for name in names if name not in alone and name not in concurrent
        )
        # Concurrent ones become siblings at the sink; both ways or by its own queue they come back.
        met = all(len((after[name][1] or ((), ""))[0]) == 2 for name in concurrent)
        return settled and met

    eventually(repaired, "all is repaired", 60)
    for name in names[45:100]:
        assert expected[name] == before[name]
    if not both:
        for name in (*names[10:20], *names[40:45]):
            assert expected[name] == before[name]
    else:
        clusters.in_sync()


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_writes_that_go_on_are_no_differences(directory: Path) -> None:
    """While a client keeps writing, checks queue nothing that was only on its way; missing keys are found nevertheless,
    and when the writes pause both are in sync."""
    clusters = Clusters(directory, topology())
    clocks = fill(clusters, 60)
    clusters.suspend_sinks(True)
    missing = [(BUCKETS[0], f"missing {n}") for n in range(10)]
    for name in missing:
        clusters.put("east", *name, "missing")
    drop_queues(clusters, "east", "to-west")
    clusters.suspend_sinks(False)
    stopping = threading.Event()
    written: list[int] = [0]

    def write() -> None:
        while not stopping.is_set():
            n = written[0] = written[0] + 1
            puts = [
                ["default", BUCKETS[n % 5].encode(), b"busy %d" % ((20 * n + m) % 5000), b"x", "text/plain"]
                for m in range(20)
            ]
            status, _, _ = http_request(clusters.nodes["east-2"]["http"] + "/batch/put", "POST", msgpack.packb(puts))
            assert status == 200
            stopping.wait(0.02)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        queued = 0
        for _ in range(4):
            found = clusters.check()
            assert found["verdict"] in ("in-sync", "repaired"), found
            queued += found["queued"]
    finally:
        stopping.set()
        thread.join()
    assert written[0] > 20
    assert queued >= 10
    eventually(lambda: all(clusters.read("west", *name) is not None for name in missing), "what was missing is there")
    clusters.in_sync()
    assert clusters.check()["queued"] == 0
    for name in clocks:
        assert clusters.read("east", *name) == clusters.read("west", *name)


@pytest.mark.slow
@pytest.mark.timeout(500)
def test_killed_nodes_and_damaged_files_never_make_a_false_proof(directory: Path) -> None:
    """The managing node, a leader, or a node of the other cluster is killed while a check runs: no check ends in sync
    while keys are missing, and a later one repairs them. Damaged tree files are rebuilt; another managing node
    agrees."""
    clusters = Clusters(directory, topology())
    fill(clusters, 60)
    clusters.suspend_sinks(True)
    missing = [(BUCKETS[n % 5], f"missing {n}") for n in range(300)]
    for n, name in enumerate(missing):
        clusters.put("east", *name, f"missing {n}")
    drop_queues(clusters, "east", "to-west")
    for victim in ("east-2", "west-2", "east-1"):
        before = {r["began_ms"] for p in clusters.admin("east-1", "/admin/fullsync")["peers"] for r in p["results"]}
        (peer,) = clusters.admin("east-1", "/admin/fullsync")["peers"]
        clusters.admin("east-1", "/admin/fullsync/run", {"peer": peer["name"], "kind": "all"})
        time.sleep(0.2)
        places.stop_node(directory, victim, kill=True)
        if victim != "east-1":
            eventually(lambda: clusters.admin("east-1", "/admin/fullsync")["running"] is None, "the check ends", 90)
        places.start_node(directory, victim)
        (peer,) = clusters.admin("east-1", "/admin/fullsync")["peers"]
        new = [r for r in peer["results"] if r["began_ms"] not in before]
        assert all(r["verdict"] != "in-sync" for r in new), new
    places.stop_node(directory, "east-3")
    files = sorted((directory / "east-3").rglob("*.tree"))
    assert files
    for path in files:
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
    places.start_node(directory, "east-3")
    eventually(lambda: clusters.check()["verdict"] in ("repaired", "in-sync"), "repaired, or queued before", 90)
    clusters.suspend_sinks(False)
    eventually(lambda: clusters.check()["verdict"] == "in-sync", "in sync", 120)
    for name in missing:
        assert clusters.read("east", *name) == clusters.read("west", *name)
    clusters.in_sync("east-2")


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_lost_queue_heals_and_trees_are_rebuilt_while_they_serve(directory: Path) -> None:
    """References queued on a node that is killed are lost, and the next check queues them again; a check that runs
    while every tree is rebuilt ends, too, and no rebuild finds its tree wrong."""
    clusters = Clusters(directory, topology())
    fill(clusters, 40)
    clusters.suspend_sinks(True)
    missing = [(BUCKETS[n % 5], f"missing {n}") for n in range(100)]
    for n, name in enumerate(missing):
        clusters.put("east", *name, f"missing {n}")
    drop_queues(clusters, "east", "to-west")
    found = clusters.check()
    assert (found["verdict"], found["queued"]) == ("repaired", 100)
    places.stop_node(directory, "east-1", kill=True)
    places.start_node(directory, "east-1")
    clusters.suspend_sinks(False)
    assert all(clusters.read("west", *name) is None for name in missing[:3])
    for node in ("east-1", "east-2", "east-3", "west-1", "west-2"):
        clusters.admin(node, "/admin/trees/rebuild", {})
    eventually(lambda: clusters.check()["verdict"] == "in-sync", "in sync", 90)
    for name in missing:
        assert clusters.read("east", *name) == clusters.read("west", *name)
    for node in clusters.nodes:
        found = clusters.admin(node, "/admin/trees")
        assert found["mismatches"] == []
        assert all(tree["state"] == "ready" for tree in found["trees"])
