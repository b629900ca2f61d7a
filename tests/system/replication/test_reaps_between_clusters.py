"""Two clusters of real processes: deletes, replicated reaps (`repl_reap`), killed nodes, and late pushes."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest

from isthmus.repl.model.objects import Object, Sibling, encode_object
from isthmus.repl.model.vclock import decode_clock
from tests.system.faults.load import Connection
from tests.system.replication.clusters import BUCKET, Clusters, ask, eventually, key_path, put
from tests.system.replication.faulty_source import LIAR, QUEUE, FaultySource, Item, peer_lines, running_faulty_source
from tests.system.replication.reaps import delete, enable_reaps, reap, reaped

KEYS = tuple(f"key{number}" for number in range(8))
BOTH_WAYS = (("east", "west"), ("west", "east"))


def old_items(clusters: Clusters) -> list[Item]:
    """Items as a sink's worker would hold them for the keys' present state: each key as east wrote it."""
    connection = Connection(clusters.node("east").place)
    found = []
    for number, key in enumerate(KEYS):
        reply = connection.request("GET", key_path(key), {})
        clock = decode_clock(base64.b64decode(reply.headers["X-Riak-Vclock"]))
        ((actor, counter, at_s),) = clock
        old = Object(clock, (Sibling((actor, counter), at_s * 1000, False, b"old", b"text/plain", b"", (), (), ()),))
        found.append((0, 0, number, b"default", BUCKET.encode(), key.encode(), LIAR, 1, encode_object(old)))
    connection.close()
    return found


def superseded(clusters: Clusters, cluster: str) -> int:
    """How many stale pushes of the faulty source a cluster has counted."""
    nodes = clusters.by_name[cluster].nodes.values()
    rows = [row for node in nodes for row in ask(node.admin, "GET", "/admin/sink")["sinks"]]
    return sum(row["superseded"] for row in rows if row["queue"] == QUEUE)


def push_late_batch(clusters: Clusters, cluster: str, source: FaultySource, items: list[Item]) -> None:
    """A slow worker pushes a batch that it fetched long ago; every item is stale."""
    before = superseded(clusters, cluster)
    source.items, source.way = items, "items"
    eventually("the late batch is acknowledged", source.acknowledged.is_set, 60)
    assert superseded(clusters, cluster) - before >= len(items)


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_keys_reaped_on_both_sides_stay_removed(tmp_path: Path) -> None:
    """I-NO-RESURRECT: keys are deleted at east while west's sink is suspended, and no reap overtakes a delete; a node
    of east is killed with the tombstones on their way, one of west while the reaps are replicated. Then all nodes are
    killed, so that memory is lost, and old pushes arrive at both; one key is written again first. Full-sync finds no
    difference."""
    with running_faulty_source() as late_at_east, running_faulty_source() as late_at_west:
        peers = {"east": peer_lines(late_at_east), "west": peer_lines(late_at_west)}
        with Clusters(tmp_path, BOTH_WAYS, nodes=2, more_peers=peers) as clusters:
            enable_reaps(clusters)
            for key in KEYS:
                put(clusters.node("east").place, key, b"old")
            items = old_items(clusters)
            eventually("west has them", lambda: clusters.contents("west").keys() >= set(KEYS))
            clusters.suspend_sink("west")
            for key in KEYS:
                delete(clusters, "east", key)
                outcome, reason = reap(clusters, "east", key)
                assert outcome == "waits"
                assert "to-west" in reason
            clusters.crash(clusters.node("east"), "east")
            clusters.by_name["east"].wait_until_healthy(90)
            assert {reap(clusters, "east", key)[0] for key in KEYS} == {"waits"}
            clusters.resume_sink("west")
            eventually("the tombstones are there", lambda: not clusters.contents("west").keys() & set(KEYS))
            eventually(
                "all is on its way",
                lambda: all("removed automatically" in r or o != "waits" for o, r in reap_outcomes(clusters)),
            )
            clusters.crash(clusters.node("west"), "west")
            clusters.by_name["west"].wait_until_healthy(90)
            for cluster in clusters.by_name:
                eventually(f"{cluster} has reaped all", lambda c=cluster: reaped(clusters, c, KEYS))
            clusters.check()
            for cluster, fault_cluster in clusters.by_name.items():
                for node in fault_cluster.nodes.values():
                    clusters.crash(node, cluster, away_s=0.2)
                fault_cluster.wait_until_healthy(90)
            put(clusters.node("west").place, KEYS[0], b"new")
            eventually("east has it", lambda: KEYS[0] in clusters.contents("east"))
            push_late_batch(clusters, "east", late_at_east, items)
            push_late_batch(clusters, "west", late_at_west, items)
            clusters.check()
            for cluster in clusters.by_name:
                contents = clusters.contents(cluster)
                assert contents.keys() == {KEYS[0]}
                assert contents[KEYS[0]][2] == ["new"]


def reap_outcomes(clusters: Clusters) -> list[tuple[str, str]]:
    """The outcome of reaping each key at east."""
    return [reap(clusters, "east", key) for key in KEYS]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_deletes_that_went_with_their_queue_reach_the_other_cluster_by_full_sync(tmp_path: Path) -> None:
    """East deletes keys while west's sink is suspended; its queue is delisted, the tombstones are reaped, all nodes of
    east are killed, and the queue is registered again from now on. Neither side's check calls that repaired for good:
    east sends the deletes again, nothing comes back, and both sides are in sync."""
    with Clusters(tmp_path, BOTH_WAYS, nodes=2) as clusters:
        for key in KEYS:
            put(clusters.node("east").place, key, b"old")
        eventually("west has them", lambda: clusters.contents("west").keys() >= set(KEYS))
        clusters.suspend_sink("west")
        for key in KEYS[1:]:
            delete(clusters, "east", key)
        clusters.act("east", "/admin/queues/to-west/delist")
        eventually("all are reaped", lambda: {reap(clusters, "east", key)[0] for key in KEYS[1:]} <= ENDED)
        for node in clusters.by_name["east"].nodes.values():
            clusters.crash(node, "east", away_s=0.2)
        clusters.by_name["east"].wait_until_healthy(90)
        clusters.act("east", "/admin/queues/register", {"name": "to-west", "from": "now"})
        clusters.resume_sink("west")
        assert clusters.contents("west").keys() >= set(KEYS)
        found = clusters.full_sync("west", "east")
        assert (found["verdict"], found["differences"]) == ("up-to-date", {"behind@source": len(KEYS) - 1})
        found = clusters.full_sync("east", "west")
        assert (found["verdict"], found["differences"]) == ("repaired", {"behind@sink": len(KEYS) - 1})
        eventually("west has the deletes", lambda: clusters.contents("west").keys() & set(KEYS) == {KEYS[0]})
        for cluster, other in BOTH_WAYS:
            assert clusters.full_sync(cluster, other)["verdict"] == "in-sync"
            assert clusters.contents(cluster).keys() & set(KEYS) == {KEYS[0]}


ENDED = {"reaped", "no-tombstone"}
"""Outcomes of a request to reap after which no tombstone is left."""
