"""Real clusters that are compared with each other: to be written to, broken, checked and held against each other."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from isthmus.node.local.clusters import LocalClusters
from isthmus.node.local.topology import parse_topology

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
StoredValue = tuple[tuple[str, ...], Clock] | None
"""A key's values in order, and its clock; None: not there."""


def topology(*, both: bool = False) -> str:
    """Two clusters with different numbers of nodes, partitions and replicas; east compares."""
    east = "".join(f'[[clusters.east.nodes]]\nname = "east-{n}"\n' for n in (1, 2, 3))
    west = "".join(f'[[clusters.west.nodes]]\nname = "west-{n}"\n' for n in (1, 2))
    return (
        CLUSTER.format(here="east", there="west", factor=3, min_isr=2, partitions=7, nodes=east)
        + CLUSTER.format(here="west", there="east", factor=2, min_isr=1, partitions=4, nodes=west)
        + FULLSYNC.format(here="east", there="west", both=str(both).lower())
    )


def mesh_topology(names: Sequence[str], compared: Sequence[tuple[str, str]], **settings: str) -> str:
    """Clusters of one node each, each replicating to every other. In each pair of `compared` the first compares with
    the second, with these settings of [[fullsync]], written as in a file."""
    text = ""
    for here in names:
        text += f"""
[clusters.{here}.replication]
partitions = {3 + names.index(here)}
write_buffer_size = "4MB"
block_cache_size = "4MB"
[[clusters.{here}.nodes]]
name = "{here}-1"
"""
        for there in names:
            if there != here:
                text += f"""
[[clusters.{here}.queues]]
name = "to-{there}"
[[clusters.{here}.sink.peers]]
cluster = "{there}"
queue = "to-{here}"
"""
    for here, there in compared:
        more = {"auto": "0", "pause": '"300ms"', "repair_rate_limit": "0", **settings}
        text += f"""
[[clusters.{here}.fullsync]]
cluster = "{there}"
queue = "to-{there}"
peer_queue = "to-{here}"
"""
        text += "".join(f"{key} = {value}\n" for key, value in more.items())
    return text


def http_request(url: str, method: str = "GET", body: bytes | None = None, **headers: str) -> tuple[int, bytes, Any]:
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


class Clusters:
    """Two running clusters."""

    def __init__(self, directory: Path, text: str) -> None:
        self.directory = directory
        self.processes = LocalClusters(parse_topology(text, directory / "t.toml"), directory, owned=True)
        found = self.processes.up(150)["clusters"]
        self.nodes = {node["name"]: node for cluster in found.values() for node in cluster["nodes"]}

    def admin(self, node: str, path: str, wish: dict[str, Any] | None = None) -> Any:
        """A document of a node's admin listener."""
        body = None if wish is None else json.dumps({"by": "test", **wish}).encode()
        status, data, _ = http_request(self.nodes[node]["admin"] + path, "GET" if wish is None else "POST", body)
        assert status < 300, (path, status, data)
        return json.loads(data)

    def url(self, cluster: str, bucket: str, key: str, node: int = 1) -> str:
        """The URL of an object at a node of a cluster."""
        return f"{self.nodes[f'{cluster}-{node}']['http']}/buckets/{quote(bucket, safe='')}/keys/{quote(key, safe='')}"

    def put(self, cluster: str, bucket: str, key: str, value: str, clock: Clock = "", node: int = 1) -> Clock:
        """A write with the clock that was read; the new clock."""
        context = {"X_Riak_Vclock": clock} if clock else {}
        status, data, _ = http_request(
            self.url(cluster, bucket, key, node), "PUT", value.encode(), Content_Type="text/plain", **context
        )
        assert status in (200, 204), (status, data)
        return self.read(cluster, bucket, key)[1]  # type: ignore[index]

    def delete(self, cluster: str, bucket: str, key: str) -> None:
        """A deletion of all that is there."""
        found = self.read(cluster, bucket, key)
        assert found is not None
        status, _, _ = http_request(self.url(cluster, bucket, key), "DELETE", X_Riak_Vclock=found[1])
        assert status in (204, 404)

    def read(self, cluster: str, bucket: str, key: str) -> StoredValue:
        """The siblings and the clock that readers of a cluster get; None when the key does not exist."""
        status, data, headers = http_request(self.url(cluster, bucket, key), Accept="multipart/mixed, */*")
        if status == 404:
            return None
        assert status in (200, 300), (status, data)
        if status == 200 and "multipart" not in headers.get("Content-Type", ""):
            return (data.decode(),), headers["X-Riak-Vclock"]
        boundary = headers["Content-Type"].partition("boundary=")[2].encode()
        parts = [part.partition(b"\r\n\r\n")[2].rstrip(b"\r\n") for part in data.split(b"--" + boundary)[1:-1]]
        return tuple(sorted(part.decode() for part in parts)), headers["X-Riak-Vclock"]

    def suspend_sinks(self, on: bool) -> None:
        """Suspend or resume both sinks."""
        for node in self.nodes:
            self.admin(node, f"/admin/sink/{'suspend' if on else 'resume'}", {})
        if on:
            eventually(lambda: not any(self.fetching(node) for node in self.nodes), "running fetches end")

    def fetching(self, node: str) -> int:
        """Fetches of a node's sink that run."""
        return sum(link["running"] for link in self.admin(node, "/admin/sink")["sinks"])

    def check(self, kind: str = "all", node: str = "east-1", name: str = "") -> dict[str, Any]:
        """Run a check of a peer, or of the only one, and wait for its result."""
        peers = self.admin(node, "/admin/fullsync")["peers"]
        name = name or peers[0]["name"]
        begun = self.admin(node, "/admin/fullsync/run", {"peer": name, "kind": kind})
        results: list[dict[str, Any]] = []

        def ended() -> bool:
            status = self.admin(node, "/admin/fullsync")
            (peer,) = (one for one in status["peers"] if one["name"] == name)
            results[:] = [r for r in peer["results"] if r["began_ms"] >= begun["at_ms"]]
            return status["running"] is None and bool(results)

        eventually(ended, "the check ends")
        return results[-1]

    def in_sync(self, node: str = "east-1", seconds: float = 120, name: str = "") -> None:
        """Run checks until one proves both in sync."""
        eventually(lambda: self.check("all", node, name)["verdict"] == "in-sync", "in sync", seconds)


def eventually(condition: Callable[[], object], what: str, seconds: float = 60) -> None:
    """Wait until it holds."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"never: {what}"
        time.sleep(0.2)


def drop_queues(clusters: Clusters, cluster: str, queue: str) -> None:
    """Discard the real-time changes that wait in a queue."""
    time.sleep(1.1)  # `clear` covers changes up to the end of its second
    clusters.admin(f"{cluster}-1", f"/admin/queues/{queue}/clear", {"reason": "test"})

    def forgotten() -> bool:
        of_it = [node for node in clusters.nodes if node.startswith(cluster)]
        listed = (row for node in of_it for row in clusters.admin(node, "/admin/queues")["queues"])
        return all(row["waiting"] == 0 for row in listed if row["name"] == queue)

    eventually(forgotten, f"{queue} is empty")


def fill(clusters: Clusters, count: int) -> dict[tuple[str, str], Clock]:
    """Keys written at east, and equal at west."""
    clocks = {}
    for n in range(count):
        bucket, key = BUCKETS[n % len(BUCKETS)], f"key {n}"
        clocks[bucket, key] = clusters.put("east", bucket, key, f"first {n}", node=1 + n % 3)
    last = list(clocks)[-10:]
    eventually(lambda: all(clusters.read("west", *name) is not None for name in last), "replicated")
    clusters.in_sync()
    return clocks
