"""Real clusters: rows that were damaged on a node's disk are fetched from another replica, during writes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from isthmus.node.local import directory as places
from isthmus.repl.model.keys import key_hash, segment_of
from isthmus.repl.store import rows
from isthmus.repl.store.leveldb import plyvel
from tests.system.fullsync.clusters import Clusters, eventually, http_request, topology
from tests.unit.aae.scrub.test_row_repair import other_hash

TAGS = (rows.OBJECT_TAG, rows.KEY_TAG, rows.CHANGE_TAG)


def open_rows(directory: Path, node: str) -> Any:
    """The database of a node that is stopped."""
    (place,) = (directory / node).rglob("rows")
    return plyvel.DB(str(place))


def changed(directory: Path, node: str, tag: bytes, key: bytes, change: Callable[[bytes], bytes]) -> None:
    """Change the row of a key of the bucket `b`."""
    tail = rows.bucket_head(b"b") + key
    driver = open_rows(directory, node)
    ((name, data),) = [(name, data) for name, data in driver.iterator(prefix=tag) if name.endswith(tail)]
    driver.put(name, change(data))
    driver.close()


def stored(directory: Path, node: str) -> dict[bytes, bytes]:
    """All objects, key rows and change rows of a node that is stopped."""
    driver = open_rows(directory, node)
    found = {name: row for name, row in driver if name[:1] in TAGS}
    driver.close()
    return found


class Writer:
    """A client that writes to one cluster until it is stopped."""

    def __init__(self, clusters: Clusters, cluster: str) -> None:
        self.processes, self.cluster = clusters, cluster
        self.ended = threading.Event()
        self.written = 0
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def run(self) -> None:
        """New keys, and some again and again."""
        clocks: dict[str, str] = {}
        while not self.ended.is_set():
            key = f"other {self.written % 7 if self.written % 3 else self.written}"
            clocks[key] = self.processes.put(self.cluster, "b", key, f"{self.written}", clocks.get(key, ""))
            self.written += 1

    def end(self) -> None:
        """Write no more."""
        self.ended.set()
        self.thread.join(60)


def in_sync(clusters: Clusters, node: str, count: int) -> None:
    """Wait until every partition has so many replicas in sync."""
    path = "/admin/partitions?bucket_type=default"
    eventually(lambda: all(len(p["isr"]) == count for p in clusters.admin(node, path)["partitions"]), "in sync", 120)


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_damaged_row_is_fetched_again_from_another_replica(directory: Path) -> None:
    """A follower's key row is damaged under a correct tree: the alarm is raised, and the row is restored. A follower's
    row is unreadable after a crash: its tree can be built. A leader's object is damaged: a fold names it, and fetches
    it again. All happens under writes; in the end the nodes' rows are equal byte for byte, and both clusters are in
    sync (R-MEND)."""
    clusters = Clusters(directory, topology())
    keys = [f"key {n}" for n in range(60)]
    for key in keys:
        clusters.put("west", "b", key, f"value of {key}")
    eventually(lambda: clusters.read("east", "b", keys[-1]) is not None, "replicated")
    clusters.in_sync()
    writer = Writer(clusters, "east")
    in_sync(clusters, "west-2", 2)
    places.stop_node(directory, "west-1")
    changed(directory, "west-1", rows.KEY_TAG, b"key 7", other_hash)
    places.start_node(directory, "west-1")
    in_sync(clusters, "west-2", 2)
    clusters.admin("west-1", "/admin/trees/rebuild", {})

    def repaired_count() -> float:
        status, data, _ = http_request(clusters.nodes["west-1"]["admin"] + "/metrics")
        assert status == 200
        (line,) = [line for line in data.decode().splitlines() if line.startswith("isthmus_tree_rows_mended_total")]
        return float(line.split()[-1])

    eventually(lambda: repaired_count() == 1, "the row is fetched again")
    (wrong,) = clusters.admin("west-1", "/admin/trees")["mismatches"]
    assert (wrong["against"], wrong["segment"]) == ("key store", segment_of(key_hash(b"b", b"key 7")))

    places.stop_node(directory, "west-1", kill=True)  # no saved trees: they are built from rows that cannot be read
    changed(directory, "west-1", rows.KEY_TAG, b"key 9", lambda data: b"\xc1" + data)
    changed(directory, "west-1", rows.OBJECT_TAG, b"key 11", lambda data: data[:-4] + b"nope")
    places.start_node(directory, "west-1")
    in_sync(clusters, "west-2", 2)
    eventually(lambda: repaired_count() == 1, "the row that cannot be read is fetched again")
    eventually(lambda: all(t["state"] == "ready" for t in clusters.admin("west-1", "/admin/trees")["trees"]), "built")
    places.stop_node(directory, "west-2")
    places.start_node(directory, "west-2")
    in_sync(clusters, "west-1", 2)

    def fold(*, dry: bool) -> tuple[list[str], int]:
        found: list[str] = []
        done = 0
        for partition in clusters.admin("west-1", "/admin/partitions?bucket_type=default")["partitions"]:
            assert partition["leader"] == "west-1"
            wish = {"kind": "repair-keys", "partition": partition["partition"], "dry_run": dry}
            page = clusters.admin("west-1", "/admin/folds", wish)
            found += [one["key"] for one in page["found"]]
            done += page["done"]
        return found, done

    assert fold(dry=True) == (["key 11"], 0)
    assert fold(dry=False) == (["key 11"], 1)
    assert fold(dry=True) == ([], 0)
    held = clusters.read("west", "b", "key 11")
    assert held is not None
    assert held[0] == ("value of key 11",)
    writer.end()
    assert writer.written > 20
    eventually(lambda: clusters.check()["verdict"] == "in-sync", "in sync")
    in_sync(clusters, "west-1", 2)
    places.stop_node(directory, "west-1")
    places.stop_node(directory, "west-2")
    assert stored(directory, "west-1") == stored(directory, "west-2")
