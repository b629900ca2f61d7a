"""Real clusters of one node each under what happens in operation: damaged rows, lost references, steady writes, several
peers at once, a crowd of folds."""

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
import plyvel
import pytest

from isthmus.node.local import directory as places
from isthmus.repl.model.entry import decode_key_row, encode_key_row
from isthmus.repl.model.keys import key_hash, segment_of
from isthmus.repl.model.objects import Summary
from isthmus.repl.store import rows
from tests.system.fullsync.clusters import World, asked, drop_queues, towns, until


def put_many(world: World, node: str, bucket: str, keys: list[str], value: bytes = b"x") -> None:
    """Blind writes in batches."""
    for at in range(0, len(keys), 500):
        puts = [["default", bucket.encode(), key.encode(), value, "text/plain"] for key in keys[at : at + 500]]
        status, _, _ = asked(world.nodes[node]["http"] + "/batch/put", "POST", msgpack.packb(puts))
        assert status == 200


def same(world: World, bucket: str, keys: list[str], *clusters: str) -> bool:
    """Whether readers of all clusters see the same of these keys."""
    return all(len({repr(world.held(cluster, bucket, key)) for cluster in clusters}) == 1 for key in keys)


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
    """Key rows that were changed on disk under a right tree: a fold names them; an exchange that reads their segments
    finds more than is missing, an alarm has the segments, and both are mended by themselves, one from its object, the
    other, whose object was changed, too, from the other cluster's. After a crash there is no such tree: a key row alone
    is mended once a check has called it corrupt, since both clusters have its object; of one whose object was changed,
    too, no check is in sync, and each names it, until it is written again."""
    world = World(directory, towns(["east", "west"], [("east", "west")]))
    keys = [f"key {n}" for n in range(40)]
    put_many(world, "east-1", "b", keys)
    until(lambda: same(world, "b", keys[-3:], "east", "west"), "replicated")
    world.in_sync()
    places.stop_node(directory, "east-1")
    damage_row(directory, "east-1", "b", keys[7])
    damage_object(directory, "east-1", "b", keys[7])
    damage_row(directory, "east-1", "b", keys[9])
    places.start_node(directory, "east-1")
    partitions = [
        one["partition"] for one in world.admin("east-1", "/admin/partitions?bucket_type=default")["partitions"]
    ]

    def named() -> list[tuple[str, str]]:
        pages = (
            world.admin("east-1", "/admin/folds", {"kind": "repair-keys", "partition": partition})
            for partition in partitions
        )
        return sorted((one["key"], one["note"]) for page in pages for one in page["found"])

    note = "the object is not what its key row says: its hash differs"
    assert named() == [(keys[7], note), (keys[9], note)]
    world.suspended(True)
    nears = [neighbour_of("b", key) for key in (keys[7], keys[9])]
    for near in nears:
        world.put("east", "b", near, "x")
    drop_queues(world, "east", "to-west")
    found = world.check()
    assert found["verdict"] in ("differing", "repaired")
    assert found["differences"]["missing@sink"] == 2
    until(lambda: len(world.admin("east-1", "/admin/trees")["mismatches"]) == 2, "the audit of what was read")
    wrong = world.admin("east-1", "/admin/trees")["mismatches"]
    assert {one["against"] for one in wrong} == {"key rows"}
    assert {one["segment"] for one in wrong} == {segment_of(key_hash(b"b", key.encode())) for key in (keys[7], keys[9])}
    until(lambda: named() == [], "both are mended")
    world.suspended(False)
    until(lambda: all(world.held("west", "b", near) is not None for near in nears), "repaired")
    assert same(world, "b", keys, "east", "west")
    world.in_sync()

    places.stop_node(directory, "east-1", kill=True)
    damage_row(directory, "east-1", "b", keys[11])
    damage_object(directory, "east-1", "b", keys[11])
    damage_row(directory, "east-1", "b", keys[13])
    places.start_node(directory, "east-1")
    until(lambda: world.check()["verdict"] != "incomplete", "the tree is built")
    until(lambda: named() == [(keys[11], note)], "the other one is mended")
    for _ in range(2):
        until(lambda: world.check()["verdict"] != "incomplete", "the tree is built")
        found = world.check()
        assert (found["verdict"], found["differences"]) == ("differing", {"corrupt@both": 1})
        assert "same clock and other content" in found["reason"]
    query = "/admin/explain?type=default&bucket=b&key=key%2011"
    (compared,) = world.admin("east-1", query)["compared"]
    assert (compared["verdict"], compared["difference"]) == ("diverged", "corrupt@both")
    held = world.held("east", "b", keys[11])
    assert held is not None
    world.put("east", "b", keys[11], "anew", held[1])
    until(lambda: same(world, "b", [keys[11]], "east", "west"), "replicated")
    world.in_sync()
    assert world.admin("east-1", query)["compared"][0]["verdict"] == "match"


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_references_lost_with_their_node_are_queued_again_by_themselves(directory: Path) -> None:
    """A node is killed with the references of a check in its memory. Nobody asks for anything: within two looks of its
    return all is repaired, and soon after proven."""
    world = World(directory, towns(["east", "west"], [("east", "west")], auto="24"))
    put_many(world, "east-1", "b", [f"key {n}" for n in range(40)])
    until(lambda: world.held("west", "b", "key 39") is not None, "replicated")
    until(lambda: world.admin("east-1", "/admin/fullsync")["running"] is None, "no check runs")
    world.suspended(True)
    missing = [f"missing {n}" for n in range(100)]
    put_many(world, "east-1", "b", missing)
    drop_queues(world, "east", "to-west")
    until(lambda: world.check()["queued"], "queued")
    places.stop_node(directory, "east-1", kill=True)
    places.start_node(directory, "east-1")
    began = time.monotonic()
    world.suspended(False)
    until(lambda: same(world, "b", missing, "east", "west"), "all is repaired", 150)
    healed_s = time.monotonic() - began

    def proven() -> bool:
        (peer,) = world.admin("east-1", "/admin/fullsync")["peers"]
        return any(result["verdict"] == "in-sync" for result in peer["results"][-2:])

    until(proven, "in sync", 150)
    print(f"repaired {healed_s:.0f} s, proven {time.monotonic() - began:.0f} s after the node's return")


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_gap_of_a_queue_with_a_filter_is_closed(directory: Path) -> None:
    """Old keys that the queue's filter leaves out differ for ever. What was written while publishing was suspended is
    repaired by a check of the gap's times, and a check of these times proves it: the gap is closed, and no check was
    incomplete for what the filter leaves out."""
    text = towns(["east", "west"], [("east", "west")], auto="24")
    world = World(directory, text.replace('name = "to-west"\n', 'name = "to-west"\nfilter = "bucketname:kept"\n'))
    put_many(world, "east-1", "private", [f"key {n}" for n in range(300)])
    put_many(world, "east-1", "kept", [f"key {n}" for n in range(30)])
    until(lambda: same(world, "kept", ["key 29"], "east", "west"), "replicated")
    until(lambda: world.admin("east-1", "/admin/fullsync")["running"] is None, "no check runs")
    world.in_sync()
    world.admin("east-1", "/admin/queues/to-west/suspend", {"what": "publishing"})
    time.sleep(2)
    began_ms = world.admin("east-1", "/admin/lag")["at_ms"]  # the first check that is due may only now be over
    missing = [f"missing {n}" for n in range(30)]
    put_many(world, "east-1", "kept", missing)
    time.sleep(2)
    world.admin("east-1", "/admin/queues/to-west/resume", {"what": "publishing"})
    assert world.admin("east-1", "/admin/gaps")["gaps"]
    until(lambda: not world.admin("east-1", "/admin/gaps")["gaps"], "the gap is closed", 240)
    assert same(world, "kept", missing, "east", "west")
    (peer,) = world.admin("east-1", "/admin/fullsync")["peers"]
    made = [result for result in peer["results"] if result["began_ms"] > began_ms]
    print([(result["kind"], result["by"], result["verdict"], result["filtered"]) for result in made])
    assert [result["verdict"] for result in made] == ["repaired", *["in-sync"] * (len(made) - 1)]
    assert {result["kind"] for result in made[:1]} == {"range"}
    assert world.held("west", "private", "key 1") is None


class Writers:
    """A client that writes at a rate: most to `HOT` keys, each several times a second, the others to new ones."""

    BATCH = 50
    HOT = 200

    def __init__(self, world: World, node: str, rate: int) -> None:
        self.world, self.node, self.rate = world, node, rate
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
            put_many(self.world, self.node, "busy", [*hot, *(f"new {self.written + n}" for n in range(5))])
            self.written += self.BATCH


def running_state(world: World) -> str:
    """At which state the check of east's node is; "" when none runs."""
    running = world.admin("east-1", "/admin/fullsync")["running"]
    return "" if running is None else str(running["state"])


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_steady_writes_make_no_repair_loop_and_hide_no_difference(directory: Path) -> None:
    """A thousand writes a second while checks run one after the other: what was planted is found and repaired once, and
    nothing else is queued, not even by a check in which the other side was held back until rows were looked at: what
    arrives meanwhile is transient. When the writes pause both are in sync."""
    rate = 1_000
    world = World(directory, towns(["east", "west"], [("east", "west")], pause='"3s"'))
    for cluster in ("east", "west"):
        url = world.nodes[f"{cluster}-1"]["http"] + "/buckets/busy/props"
        one_value = b'{"props": {"allow_mult": false}}'
        status, data, _ = asked(url, "PUT", one_value, Content_Type="application/json")
        assert status in (200, 204), data
    world.suspended(True)
    missing = [f"missing {n}" for n in range(20)]
    put_many(world, "east-1", "b", missing)
    drop_queues(world, "east", "to-west")
    world.suspended(False)
    results: list[dict[str, Any]] = []
    with Writers(world, "east-1", rate) as writers:
        time.sleep(2)
        until_s = time.monotonic() + 40
        while time.monotonic() < until_s:
            results.append(world.check())
        world.suspended(True)
        began = world.admin("east-1", "/admin/fullsync/run", {"peer": "west", "kind": "all"})["at_ms"]
        until(lambda: running_state(world) == "clock-confirm", "rows were looked at")
        world.suspended(False)
        until(lambda: not running_state(world), "the check ends")
        held_back = world.admin("east-1", "/admin/fullsync")["peers"][0]["results"][-1]
    queued = [result["queued"] for result in results]
    print(
        f"{writers.written / writers.seconds:.0f} writes/s for {writers.seconds:.0f} s; {len(results)} checks, queued "
        f"{sum(queued)}, verdicts {Counter(r['verdict'] for r in results)}; held back: {held_back['transient']} "
        f"transient, {held_back['queued']} queued"
    )
    assert same(world, "b", missing, "east", "west")
    assert queued == [len(missing), *[0] * (len(results) - 1)]
    assert {result["verdict"] for result in results[1:]} == {"in-sync"}
    assert (held_back["began_ms"] >= began, held_back["verdict"], held_back["queued"]) == (True, "in-sync", 0)
    assert held_back["transient"] > 0
    world.in_sync(seconds=60)
    assert world.check()["queued"] == 0
    busy = [f"hot {n}" for n in range(Writers.HOT)]
    assert same(world, "busy", busy, "east", "west")


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_crowd_of_folds_starves_nobody(directory: Path) -> None:
    """Eighty clients ask for pages of every kind as fast as they are answered, far more than are read: each page is
    answered or told to come back, writes go on, the node leads on in its epoch, and a check ends in sync."""
    world = World(directory, towns(["east", "west"], [("east", "west")]))
    put_many(world, "east-1", "b", [f"key {n}" for n in range(20_000)])
    before = world.admin("east-1", "/admin/partitions")["partitions"]
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
                world.nodes["east-1"]["admin"] + "/admin/folds", json.dumps(wish).encode()
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
    with Writers(world, "east-1", 300) as writers:
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
    after = world.admin("east-1", "/admin/partitions")["partitions"]
    words = ("partition", "leader", "epoch", "status")
    assert [[one[word] for word in words] for one in after] == [[one[word] for word in words] for one in before]
    until(lambda: world.check()["verdict"] == "in-sync", "in sync", 120)
