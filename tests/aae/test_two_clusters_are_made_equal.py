"""Full-sync between real clusters: three nodes against two, with other partitions, differences planted with the sink
suspended and by writes to both sides; afterwards every key is compared, and what was equal is as it was."""

from __future__ import annotations

import json
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgpack
import pytest

from node import places, supervisor
from node.local import LocalClusters
from node.topology import parse_topology

FULLSYNC = """
[[clusters.{here}.fullsync]]
cluster = "{there}"
queue = "to-{there}"
auto = 0
pause = "300ms"
repair_rate_limit = 0
bidirectional = {both}
peer_queue = "to-{here}"
"""

CLUSTER = """
[clusters.{here}.replication]
factor = {factor}
min_isr = {min_isr}
partitions = {partitions}
write_buffer_size = "4MB"
block_cache_size = "4MB"
{nodes}
[[clusters.{here}.queues]]
name = "to-{there}"
[[clusters.{here}.sink.peers]]
cluster = "{there}"
queue = "to-{here}"
"""

BUCKETS = [f"bucket {n}/ä" for n in range(5)]

Clock = str
Held = tuple[tuple[str, ...], Clock] | None
"""A key's values in order, and its clock; None: not there."""


def topology(*, both: bool = False) -> str:
    """Two clusters that differ in nodes, partitions and copies; east compares."""
    east = "".join(f'[[clusters.east.nodes]]\nname = "east-{n}"\n' for n in (1, 2, 3))
    west = "".join(f'[[clusters.west.nodes]]\nname = "west-{n}"\n' for n in (1, 2))
    return (
        CLUSTER.format(here="east", there="west", factor=3, min_isr=2, partitions=7, nodes=east)
        + CLUSTER.format(here="west", there="east", factor=2, min_isr=1, partitions=4, nodes=west)
        + FULLSYNC.format(here="east", there="west", both=str(both).lower())
    )


def asked(url: str, method: str = "GET", body: bytes | None = None, **headers: str) -> tuple[int, bytes, Any]:
    """Status, body and headers of a request; errors of the server are tried again for a while."""
    deadline = time.monotonic() + 60
    while True:
        request = urllib.request.Request(url, body, headers={k.replace("_", "-"): v for k, v in headers.items()})
        request.method = method
        try:
            with urllib.request.urlopen(request, timeout=30) as response:
                return response.status, response.read(), response.headers
        except urllib.error.HTTPError as error:
            with error:
                if error.code < 500 or time.monotonic() > deadline:
                    return error.code, error.read(), error.headers
        except OSError:
            if time.monotonic() > deadline:
                raise
        time.sleep(0.3)


class World:
    """Two running clusters."""

    def __init__(self, directory: Path, text: str) -> None:
        self.directory = directory
        self.clusters = LocalClusters(parse_topology(text, directory / "t.toml"), directory, owned=True)
        found = self.clusters.up(150)["clusters"]
        self.nodes = {node["name"]: node for cluster in found.values() for node in cluster["nodes"]}

    def admin(self, node: str, path: str, wish: dict[str, Any] | None = None) -> Any:
        """A document of a node's admin listener."""
        body = None if wish is None else json.dumps({"by": "test", **wish}).encode()
        status, data, _ = asked(self.nodes[node]["admin"] + path, "GET" if wish is None else "POST", body)
        assert status < 300, (path, status, data)
        return json.loads(data)

    def url(self, cluster: str, bucket: str, key: str, node: int = 1) -> str:
        """Of an object at some node of a cluster."""
        return f"{self.nodes[f'{cluster}-{node}']['http']}/buckets/{quote(bucket, safe='')}/keys/{quote(key, safe='')}"

    def put(self, cluster: str, bucket: str, key: str, value: str, clock: Clock = "", node: int = 1) -> Clock:
        """A write with the clock that was read; the new clock."""
        context = {"X_Riak_Vclock": clock} if clock else {}
        status, data, _ = asked(
            self.url(cluster, bucket, key, node), "PUT", value.encode(), Content_Type="text/plain", **context
        )
        assert status in (200, 204), (status, data)
        return self.held(cluster, bucket, key)[1]  # type: ignore[index]

    def delete(self, cluster: str, bucket: str, key: str) -> None:
        """A deletion of all that is there."""
        found = self.held(cluster, bucket, key)
        assert found is not None
        status, _, _ = asked(self.url(cluster, bucket, key), "DELETE", X_Riak_Vclock=found[1])
        assert status in (204, 404)

    def held(self, cluster: str, bucket: str, key: str) -> Held:
        """What readers of a cluster see."""
        status, data, headers = asked(self.url(cluster, bucket, key), Accept="multipart/mixed, */*")
        if status == 404:
            return None
        assert status in (200, 300), (status, data)
        if status == 200 and "multipart" not in headers.get("Content-Type", ""):
            return (data.decode(),), headers["X-Riak-Vclock"]
        boundary = headers["Content-Type"].partition("boundary=")[2].encode()
        parts = [part.partition(b"\r\n\r\n")[2].rstrip(b"\r\n") for part in data.split(b"--" + boundary)[1:-1]]
        return tuple(sorted(part.decode() for part in parts)), headers["X-Riak-Vclock"]

    def suspended(self, on: bool) -> None:
        """Both sinks fetch, or do not."""
        for node in self.nodes:
            self.admin(node, f"/admin/sink/{'suspend' if on else 'resume'}", {})
        if on:
            until(lambda: not any(self.fetching(node) for node in self.nodes), "running fetches end")

    def fetching(self, node: str) -> int:
        """Fetches of a node's sink that run."""
        return sum(link["running"] for link in self.admin(node, "/admin/sink")["sinks"])

    def check(self, kind: str = "all", node: str = "east-1") -> dict[str, Any]:
        """Run a check and wait for its result."""
        (peer,) = self.admin(node, "/admin/fullsync")["peers"]
        begun = self.admin(node, "/admin/fullsync/run", {"peer": peer["name"], "kind": kind})
        results: list[dict[str, Any]] = []

        def ended() -> bool:
            status = self.admin(node, "/admin/fullsync")
            results[:] = [r for r in status["peers"][0]["results"] if r["began_ms"] >= begun["at_ms"]]
            return status["running"] is None and bool(results)

        until(ended, "the check ends")
        return results[-1]

    def in_sync(self, node: str = "east-1", seconds: float = 120) -> None:
        """Check until both are proven in sync; every result before says something else than that."""
        until(lambda: self.check("all", node)["verdict"] == "in-sync", "in sync", seconds)


def until(condition: Callable[[], object], what: str, seconds: float = 60) -> None:
    """Wait until it holds."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"never: {what}"
        time.sleep(0.2)


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    """Whatever runs here at the end is stopped."""
    (tmp_path / "d").mkdir()
    yield tmp_path / "d"
    supervisor.stop(tmp_path / "d")


def drop_queues(world: World, cluster: str, queue: str) -> None:
    """Forget what a queue would send in real time."""
    time.sleep(1.1)  # what is cleared ends with the second of the act
    world.admin(f"{cluster}-1", f"/admin/queues/{queue}/clear", {"reason": "test"})

    def forgotten() -> bool:
        of_it = [node for node in world.nodes if node.startswith(cluster)]
        return all(row["waiting"] == 0 for node in of_it for row in world.admin(node, "/admin/queues")["queues"])

    until(forgotten, f"{queue} is empty")


def filled(world: World, count: int) -> dict[tuple[str, str], Clock]:
    """Keys written at east, and equal at west."""
    clocks = {}
    for n in range(count):
        bucket, key = BUCKETS[n % len(BUCKETS)], f"key {n}"
        clocks[bucket, key] = world.put("east", bucket, key, f"first {n}", node=1 + n % 3)
    last = list(clocks)[-10:]
    until(lambda: all(world.held("west", *name) is not None for name in last), "replicated")
    world.in_sync()
    return clocks


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("both", [False, True])
def test_all_that_differs_is_repaired_and_nothing_else_is_touched(directory: Path, both: bool) -> None:
    """Missing, older, concurrent and deleted keys of many buckets are equal after one run, what is ahead at the sink is
    left alone (or comes back, when both ways are wanted), and no other key has another clock than before."""
    world = World(directory, topology(both=both))
    clocks = filled(world, 100)
    names = list(clocks)
    world.suspended(True)
    for n, name in enumerate(names[:10]):
        world.put("east", *name, f"newer {n}", clocks[name])
    for n, name in enumerate(names[10:20]):
        world.put("west", *name, f"ahead {n}", clocks[name])
    for n, name in enumerate(names[20:30]):
        world.put("east", *name, f"here {n}", clocks[name])
        world.put("west", *name, f"there {n}", clocks[name])
    for name in names[30:40]:
        world.delete("east", *name)
    for name in names[40:45]:
        world.delete("west", *name)
    for n in range(10):
        names.append((BUCKETS[n % 5], f"missing {n}"))
        world.put("east", *names[-1], f"missing {n}")
    for n in range(5):  # siblings made here, absent there
        names.append((BUCKETS[n % 5], f"siblings {n}"))
        world.put("east", *names[-1], f"one {n}")
        world.put("east", *names[-1], f"two {n}")
    drop_queues(world, "east", "to-west")
    drop_queues(world, "west", "to-east")
    before = {name: (world.held("east", *name), world.held("west", *name)) for name in names}
    world.suspended(False)
    time.sleep(1)
    found = world.check()
    ahead = 15
    assert found["verdict"] == ("repaired" if both else "differing"), found
    assert sum(found["differences"].values()) == 10 + 10 + 10 + 10 + 10 + 5 + 5, found
    assert found["left"] == (0 if both else ahead), found
    expected: dict[tuple[str, str], tuple[Held, Held]] = {}

    def repaired() -> bool:
        after = {name: (world.held("east", *name), world.held("west", *name)) for name in names}
        expected.update(after)
        alone = set() if both else {*names[10:20], *names[40:45]}
        concurrent = names[20:30]
        settled = all(
            after[name][0] == after[name][1] for name in names if name not in alone and name not in concurrent
        )
        # Concurrent ones become siblings at the sink; both ways or by its own queue they come back.
        met = all(len((after[name][1] or ((), ""))[0]) == 2 for name in concurrent)
        return settled and met

    until(repaired, "all is repaired", 60)
    for name in names[45:100]:
        assert expected[name] == before[name]
    if not both:
        for name in (*names[10:20], *names[40:45]):
            assert expected[name] == before[name]
    else:
        world.in_sync()


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_writes_that_go_on_are_no_differences(directory: Path) -> None:
    """While a client goes on writing, checks queue nothing that was only on its way; what was missing is found all
    the same, and when the writes pause both are in sync."""
    world = World(directory, topology())
    clocks = filled(world, 60)
    world.suspended(True)
    missing = [(BUCKETS[0], f"missing {n}") for n in range(10)]
    for name in missing:
        world.put("east", *name, "missing")
    drop_queues(world, "east", "to-west")
    world.suspended(False)
    stopping = threading.Event()
    written: list[int] = [0]

    def write() -> None:
        while not stopping.is_set():
            n = written[0] = written[0] + 1
            puts = [
                ["default", BUCKETS[n % 5].encode(), b"busy %d" % ((20 * n + m) % 5000), b"x", "text/plain"]
                for m in range(20)
            ]
            status, _, _ = asked(world.nodes["east-2"]["http"] + "/batch/put", "POST", msgpack.packb(puts))
            assert status == 200
            stopping.wait(0.02)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        queued = 0
        for _ in range(4):
            found = world.check()
            assert found["verdict"] in ("in-sync", "repaired"), found
            queued += found["queued"]
    finally:
        stopping.set()
        thread.join()
    assert written[0] > 20
    assert queued >= 10
    until(lambda: all(world.held("west", *name) is not None for name in missing), "what was missing is there")
    world.in_sync()
    assert world.check()["queued"] == 0
    for name in clocks:
        assert world.held("east", *name) == world.held("west", *name)


@pytest.mark.slow
@pytest.mark.timeout(500)
def test_killed_nodes_and_damaged_files_never_make_a_false_proof(directory: Path) -> None:
    """The managing node, a leader, a node of the other cluster killed while a check runs: none ends in sync while keys
    are missing, and a later one repairs them. Damaged tree files are built anew; another managing node agrees."""
    world = World(directory, topology())
    filled(world, 60)
    world.suspended(True)
    missing = [(BUCKETS[n % 5], f"missing {n}") for n in range(300)]
    for n, name in enumerate(missing):
        world.put("east", *name, f"missing {n}")
    drop_queues(world, "east", "to-west")
    for victim in ("east-2", "west-2", "east-1"):
        before = {r["began_ms"] for p in world.admin("east-1", "/admin/fullsync")["peers"] for r in p["results"]}
        (peer,) = world.admin("east-1", "/admin/fullsync")["peers"]
        world.admin("east-1", "/admin/fullsync/run", {"peer": peer["name"], "kind": "all"})
        time.sleep(0.2)
        places.stop_node(directory, victim, kill=True)
        if victim != "east-1":
            until(lambda: world.admin("east-1", "/admin/fullsync")["running"] is None, "the check ends", 90)
        places.start_node(directory, victim)
        (peer,) = world.admin("east-1", "/admin/fullsync")["peers"]
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
    until(lambda: world.check()["verdict"] in ("repaired", "in-sync"), "repaired, or queued before", 90)
    world.suspended(False)
    until(lambda: world.check()["verdict"] == "in-sync", "in sync", 120)
    for name in missing:
        assert world.held("east", *name) == world.held("west", *name)
    world.in_sync("east-2")


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_lost_queue_heals_and_trees_are_rebuilt_while_they_serve(directory: Path) -> None:
    """References queued on a node that is killed are lost, and the next check queues them again; a check that runs
    while every tree is built anew ends as well, and no build finds its tree wrong."""
    world = World(directory, topology())
    filled(world, 40)
    world.suspended(True)
    missing = [(BUCKETS[n % 5], f"missing {n}") for n in range(100)]
    for n, name in enumerate(missing):
        world.put("east", *name, f"missing {n}")
    drop_queues(world, "east", "to-west")
    found = world.check()
    assert (found["verdict"], found["queued"]) == ("repaired", 100)
    places.stop_node(directory, "east-1", kill=True)
    places.start_node(directory, "east-1")
    world.suspended(False)
    assert all(world.held("west", *name) is None for name in missing[:3])
    for node in ("east-1", "east-2", "east-3", "west-1", "west-2"):
        world.admin(node, "/admin/trees/rebuild", {})
    until(lambda: world.check()["verdict"] == "in-sync", "in sync", 90)
    for name in missing:
        assert world.held("east", *name) == world.held("west", *name)
    for node in world.nodes:
        found = world.admin(node, "/admin/trees")
        assert found["mismatches"] == []
        assert all(tree["state"] == "ready" for tree in found["trees"])
