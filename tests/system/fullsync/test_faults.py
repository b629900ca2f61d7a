"""Real clusters of one node each under operational faults: damaged rows, lost references, steady writes, several peers
at once, a crowd of folds."""

from __future__ import annotations

import json
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from pathlib import Path
from typing import Any

import msgpack
import pytest

from isthmus.node.local import directory as places
from isthmus.repl.model.entry import decode_key_row, encode_key_row
from isthmus.repl.model.keys import key_hash, segment_of
from isthmus.repl.model.objects import Summary
from isthmus.repl.store import rows
from isthmus.repl.store.leveldb import plyvel
from tests.system.fullsync.clusters import Clusters, drop_queues, eventually, http_request, mesh_topology


def put_many(clusters: Clusters, node: str, bucket: str, keys: list[str], value: bytes = b"x") -> None:
    """Blind writes in batches."""
    for at in range(0, len(keys), 500):
        puts = [["default", bucket.encode(), key.encode(), value, "text/plain"] for key in keys[at : at + 500]]
        status, _, _ = http_request(clusters.nodes[node]["http"] + "/batch/put", "POST", msgpack.packb(puts))
        assert status == 200


def same(clusters: Clusters, bucket: str, keys: list[str], *names: str) -> bool:
    """Whether readers of all clusters get the same for these keys."""
    return all(len({repr(clusters.read(cluster, bucket, key)) for cluster in names}) == 1 for key in keys)


def neighbour_of(bucket: str, key: str) -> str:
    """Another key of the bucket, in the same segment."""
    segment = segment_of(key_hash(bucket.encode(), key.encode()))
    return next(
        f"near {n}" for n in range(20_000_000) if segment_of(key_hash(bucket.encode(), b"near %d" % n)) == segment
    )


def damage_row(directory: Path, node: str, bucket: str, key: str) -> None:
    """Change the hash in a key row of a node that is stopped: a row that can be read, and is another one."""
    hash64 = key_hash(bucket.encode(), key.encode())
    tail = rows.segment_name(segment_of(hash64)) + rows.bucket_head(bucket.encode()) + key.encode()
    (place,) = (directory / node).rglob("rows")
    driver = plyvel.DB(str(place))
    ((name, data),) = [(name, data) for name, data in driver if name.endswith(tail)]
    row = decode_key_row(data)
    summary = Summary(row.clock, row.hash64 ^ 1, row.last_modified_ms, row.size_bytes, row.sibling_count, row.tombstone)
    driver.put(name, encode_key_row(summary, row.offset))
    driver.close()


def damage_object(directory: Path, node: str, bucket: str, key: str) -> None:
    """Change a byte of the value `x` of an object of a node that is stopped."""
    (place,) = (directory / node).rglob("rows")
    driver = plyvel.DB(str(place))
    tail = rows.bucket_head(bucket.encode()) + key.encode()
    ((name, data),) = [(name, data) for name, data in driver.iterator(prefix=rows.OBJECT_TAG) if name.endswith(tail)]
    assert data.count(b"\xc4\x01x") == 1
    driver.put(name, data.replace(b"\xc4\x01x", b"\xc4\x01y"))
    driver.close()


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_damaged_row_is_named_and_never_in_sync_once_it_was_read(directory: Path) -> None:
    """Key rows are changed on disk under a correct tree: a fold names them; an exchange that reads their segments finds
    more differences than keys are missing, an alarm names the segments, and both rows are repaired automatically, one
    from its object, the other, whose object was changed, too, from the other cluster's. After a crash the tree is gone:
    a damaged key row alone is repaired once a check has found it corrupt, since both clusters have its object; while a
    key row and its object are damaged, no check is in sync, and each names the key, until it is written again."""
    clusters = Clusters(directory, mesh_topology(["east", "west"], [("east", "west")]))
    keys = [f"key {n}" for n in range(40)]
    put_many(clusters, "east-1", "b", keys)
    eventually(lambda: same(clusters, "b", keys[-3:], "east", "west"), "replicated")
    clusters.in_sync()
    places.stop_node(directory, "east-1")
    damage_row(directory, "east-1", "b", keys[7])
    damage_object(directory, "east-1", "b", keys[7])
    damage_row(directory, "east-1", "b", keys[9])
    places.start_node(directory, "east-1")
    partitions = [
        one["partition"] for one in clusters.admin("east-1", "/admin/partitions?bucket_type=default")["partitions"]
    ]

    def named() -> list[tuple[str, str]]:
        pages = (
            clusters.admin("east-1", "/admin/folds", {"kind": "repair-keys", "partition": partition})
            for partition in partitions
        )
        return sorted((one["key"], one["note"]) for page in pages for one in page["found"])

    note = "the object does not match its key row: its hash differs"
    assert named() == [(keys[7], note), (keys[9], note)]
    clusters.suspend_sinks(True)
    nears = [neighbour_of("b", key) for key in (keys[7], keys[9])]
    for near in nears:
        clusters.put("east", "b", near, "x")
    drop_queues(clusters, "east", "to-west")
    found = clusters.check()
    assert found["verdict"] in ("differing", "repaired")
    assert found["differences"]["missing@sink"] == 2
    eventually(lambda: len(clusters.admin("east-1", "/admin/trees")["mismatches"]) == 2, "the audit of what was read")
    wrong = clusters.admin("east-1", "/admin/trees")["mismatches"]
    assert {one["against"] for one in wrong} == {"key rows"}
    assert {one["segment"] for one in wrong} == {segment_of(key_hash(b"b", key.encode())) for key in (keys[7], keys[9])}
    eventually(lambda: named() == [], "both are mended")
    clusters.suspend_sinks(False)
    eventually(lambda: all(clusters.read("west", "b", near) is not None for near in nears), "repaired")
    assert same(clusters, "b", keys, "east", "west")
    clusters.in_sync()

    places.stop_node(directory, "east-1", kill=True)
    damage_row(directory, "east-1", "b", keys[11])
    damage_object(directory, "east-1", "b", keys[11])
    damage_row(directory, "east-1", "b", keys[13])
    places.start_node(directory, "east-1")
    eventually(lambda: clusters.check()["verdict"] != "incomplete", "the tree is built")
    eventually(lambda: named() == [(keys[11], note)], "the other one is mended")
    for _ in range(2):
        eventually(lambda: clusters.check()["verdict"] != "incomplete", "the tree is built")
        found = clusters.check()
        assert (found["verdict"], found["differences"]) == ("differing", {"corrupt@both": 1})
        assert "same clock and other content" in found["reason"]
    query = "/admin/explain?type=default&bucket=b&key=key%2011"
    (compared,) = clusters.admin("east-1", query)["compared"]
    assert (compared["verdict"], compared["difference"]) == ("diverged", "corrupt@both")
    held = clusters.read("east", "b", keys[11])
    assert held is not None
    clusters.put("east", "b", keys[11], "anew", held[1])
    eventually(lambda: same(clusters, "b", [keys[11]], "east", "west"), "replicated")
    clusters.in_sync()
    assert clusters.admin("east-1", query)["compared"][0]["verdict"] == "match"


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_references_lost_with_their_node_are_queued_again_by_themselves(directory: Path) -> None:
    """A node is killed with the references of a check in its memory. Without an operator all is repaired within two
    checks after its return, and soon after proven in sync."""
    clusters = Clusters(directory, mesh_topology(["east", "west"], [("east", "west")], auto="24"))
    put_many(clusters, "east-1", "b", [f"key {n}" for n in range(40)])
    eventually(lambda: clusters.read("west", "b", "key 39") is not None, "replicated")
    eventually(lambda: clusters.admin("east-1", "/admin/fullsync")["running"] is None, "no check runs")
    clusters.suspend_sinks(True)
    missing = [f"missing {n}" for n in range(100)]
    put_many(clusters, "east-1", "b", missing)
    drop_queues(clusters, "east", "to-west")
    eventually(lambda: clusters.check()["queued"], "queued")
    places.stop_node(directory, "east-1", kill=True)
    places.start_node(directory, "east-1")
    began = time.monotonic()
    clusters.suspend_sinks(False)
    eventually(lambda: same(clusters, "b", missing, "east", "west"), "all is repaired", 150)
    healed_s = time.monotonic() - began

    def proven() -> bool:
        (peer,) = clusters.admin("east-1", "/admin/fullsync")["peers"]
        return any(result["verdict"] == "in-sync" for result in peer["results"][-2:])

    eventually(proven, "in sync", 150)
    print(f"repaired {healed_s:.0f} s, proven {time.monotonic() - began:.0f} s after the node's return")


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_gap_of_a_queue_with_a_filter_is_closed(directory: Path) -> None:
    """Old keys that the queue's filter leaves out differ for ever. Changes written while publishing was suspended are
    repaired by a check of the gap's time range, and a further check of the range proves it: the gap is closed, and no
    check was incomplete because of the filtered keys."""
    text = mesh_topology(["east", "west"], [("east", "west")], auto="24")
    clusters = Clusters(directory, text.replace('name = "to-west"\n', 'name = "to-west"\nfilter = "bucketname:kept"\n'))
    put_many(clusters, "east-1", "private", [f"key {n}" for n in range(300)])
    put_many(clusters, "east-1", "kept", [f"key {n}" for n in range(30)])
    eventually(lambda: same(clusters, "kept", ["key 29"], "east", "west"), "replicated")
    eventually(lambda: clusters.admin("east-1", "/admin/fullsync")["running"] is None, "no check runs")
    clusters.in_sync()
    clusters.admin("east-1", "/admin/queues/to-west/suspend", {"what": "publishing"})
    time.sleep(2)
    began_ms = clusters.admin("east-1", "/admin/lag")["at_ms"]  # the first check that is due may only now be over
    missing = [f"missing {n}" for n in range(30)]
    put_many(clusters, "east-1", "kept", missing)
    time.sleep(2)
    clusters.admin("east-1", "/admin/queues/to-west/resume", {"what": "publishing"})
    assert clusters.admin("east-1", "/admin/gaps")["gaps"]
    eventually(lambda: not clusters.admin("east-1", "/admin/gaps")["gaps"], "the gap is closed", 240)
    assert same(clusters, "kept", missing, "east", "west")
    (peer,) = clusters.admin("east-1", "/admin/fullsync")["peers"]
    made = [result for result in peer["results"] if result["began_ms"] > began_ms]
    print([(result["kind"], result["by"], result["verdict"], result["filtered"]) for result in made])
    assert [result["verdict"] for result in made] == ["repaired", *["in-sync"] * (len(made) - 1)]
    assert {result["kind"] for result in made[:1]} == {"range"}
    assert clusters.read("west", "private", "key 1") is None


class Writers:
    """A client that writes at a rate: most to `HOT` keys, each several times a second, the others to new ones."""

    BATCH = 50
    HOT = 200

    def __init__(self, clusters: Clusters, node: str, rate: int) -> None:
        self.processes, self.node, self.rate = clusters, node, rate
        self.written = 0
        self.began = time.monotonic()
        self.seconds = 0.0
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Writers:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()
        self.seconds = time.monotonic() - self.began

    def _run(self) -> None:
        while not self._stopping.is_set():
            due = self.began + self.written / self.rate
            self._stopping.wait(max(0.0, due - time.monotonic()))
            hot = [f"hot {(self.written + n) % self.HOT}" for n in range(self.BATCH - 5)]
            put_many(self.processes, self.node, "busy", [*hot, *(f"new {self.written + n}" for n in range(5))])
            self.written += self.BATCH


def running_state(clusters: Clusters) -> str:
    """The state of the check of east's node; "" when none runs."""
    running = clusters.admin("east-1", "/admin/fullsync")["running"]
    return "" if running is None else str(running["state"])


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_steady_writes_make_no_repair_loop_and_hide_no_difference(directory: Path) -> None:
    """A thousand writes a second while checks run one after the other: the planted differences are found and repaired
    once, and nothing else is queued, not even by a check in which the other side was held back until rows were
    compared: differences that replication resolves meanwhile are transient. When the writes pause both are in sync."""
    rate = 1_000
    clusters = Clusters(directory, mesh_topology(["east", "west"], [("east", "west")], pause='"3s"'))
    for cluster in ("east", "west"):
        url = clusters.nodes[f"{cluster}-1"]["http"] + "/buckets/busy/props"
        one_value = b'{"props": {"allow_mult": false}}'
        status, data, _ = http_request(url, "PUT", one_value, Content_Type="application/json")
        assert status in (200, 204), data
    clusters.suspend_sinks(True)
    missing = [f"missing {n}" for n in range(20)]
    put_many(clusters, "east-1", "b", missing)
    drop_queues(clusters, "east", "to-west")
    clusters.suspend_sinks(False)
    results: list[dict[str, Any]] = []
    with Writers(clusters, "east-1", rate) as writers:
        time.sleep(2)
        until_s = time.monotonic() + 40
        while time.monotonic() < until_s:
            results.append(clusters.check())
        clusters.suspend_sinks(True)
        began = clusters.admin("east-1", "/admin/fullsync/run", {"peer": "west", "kind": "all"})["at_ms"]
        eventually(lambda: running_state(clusters) == "clock-confirm", "rows were looked at")
        clusters.suspend_sinks(False)
        eventually(lambda: not running_state(clusters), "the check ends")
        held_back = clusters.admin("east-1", "/admin/fullsync")["peers"][0]["results"][-1]
    queued = [result["queued"] for result in results]
    print(
        f"{writers.written / writers.seconds:.0f} writes/s for {writers.seconds:.0f} s; {len(results)} checks, queued "
        f"{sum(queued)}, verdicts {Counter(r['verdict'] for r in results)}; held back: {held_back['transient']} "
        f"transient, {held_back['queued']} queued"
    )
    assert same(clusters, "b", missing, "east", "west")
    assert queued == [len(missing), *[0] * (len(results) - 1)]
    assert {result["verdict"] for result in results[1:]} == {"in-sync"}
    assert (held_back["began_ms"] >= began, held_back["verdict"], held_back["queued"]) == (True, "in-sync", 0)
    assert held_back["transient"] > 0
    clusters.in_sync(seconds=60)
    assert clusters.check()["queued"] == 0
    busy = [f"hot {n}" for n in range(Writers.HOT)]
    assert same(clusters, "busy", busy, "east", "west")


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_many_folds_starve_no_other_request(directory: Path) -> None:
    """Eighty clients ask for pages of every kind as fast as they are answered, far more than are read: each page is
    answered or refused for now, writes continue, the node keeps its leaderships and epochs, and a check ends in
    sync."""
    clusters = Clusters(directory, mesh_topology(["east", "west"], [("east", "west")]))
    put_many(clusters, "east-1", "b", [f"key {n}" for n in range(20_000)])
    before = clusters.admin("east-1", "/admin/partitions")["partitions"]
    partitions = [one["partition"] for one in before]
    kinds = ("object-stats", "list-buckets", "find-keys", "find-tombs", "repair-keys", "repl-keys")
    statuses: Counter[str] = Counter()
    slowest: list[float] = [0.0]
    stopping = threading.Event()

    def ask(number: int) -> None:
        while not stopping.is_set():
            number += 1
            wish = {
                "kind": kinds[number % len(kinds)],
                "partition": partitions[number % len(partitions)],
                "queue": "to-west",
                "dry_run": False,
                "by": "test",
            }
            question = urllib.request.Request(
                clusters.nodes["east-1"]["admin"] + "/admin/folds", json.dumps(wish).encode()
            )
            began = time.monotonic()
            try:
                with urllib.request.urlopen(question, timeout=60) as answer:
                    said = "page" if answer.status == 200 and json.loads(answer.read())["scanned"] else "?"
            except urllib.error.HTTPError as error:
                with error:
                    said = json.loads(error.read())["reason"]
            statuses[said] += 1
            slowest[0] = max(slowest[0], time.monotonic() - began)

    threads = [threading.Thread(target=ask, args=(n,)) for n in range(80)]
    with Writers(clusters, "east-1", 300) as writers:
        for thread in threads:
            thread.start()
        time.sleep(20)
        stopping.set()
        for thread in threads:
            thread.join()
    print(
        f"{dict(statuses)} answers in {writers.seconds:.0f} s, the slowest after {slowest[0]:.1f} s; "
        f"{writers.written / writers.seconds:.0f} writes/s"
    )
    assert set(statuses) == {"page", "overloaded"}
    assert statuses["page"] > 20
    assert writers.written > 500
    after = clusters.admin("east-1", "/admin/partitions")["partitions"]
    words = ("partition", "leader", "epoch", "status")
    assert [[one[word] for word in words] for one in after] == [[one[word] for word in words] for one in before]
    eventually(lambda: clusters.check()["verdict"] == "in-sync", "in sync", 120)
