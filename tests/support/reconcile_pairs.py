"""Two real clusters for tests of `reconcile`: writes with clocks that the test chooses, the runs' findings, nodes that
misbehave."""

from __future__ import annotations

import http.server
import json
import threading
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgpack
import pyarrow.parquet as pq

from isthmus.aae.reconcile.findings import read_findings
from isthmus.aae.run_directory import RunDirectory
from isthmus.node.local.clusters import LocalClusters
from isthmus.node.local.topology import parse_topology
from isthmus.repl.model.objects import TOMBSTONE, Content, Object, encode_object, write
from isthmus.repl.model.vclock import EMPTY, actor_of

TOPOLOGY = """
[clusters.left.replication]
partitions = 4
[[clusters.left.nodes]]
name = "left-1"
[[clusters.left.queues]]
name = "to-right"
filter = "block_rtq"
[[clusters.left.fullsync]]
cluster = "right"
queue = "to-right"
auto = 0
pause = "300ms"
[clusters.right.replication]
partitions = 3
[[clusters.right.nodes]]
name = "right-1"
[[clusters.right.sink.peers]]
cluster = "left"
queue = "to-right"
"""

A, B = actor_of(b"A" * 16, 1), actor_of(b"B" * 16, 1)
BUCKET = b"b"


class ClusterPair:
    """Both clusters, and writes with clocks that the test chooses."""

    def __init__(self, described: dict[str, Any]) -> None:
        nodes = {name: one["nodes"][0] for name, one in described["clusters"].items()}
        self.left: str = nodes["left"]["http"]
        self.right: str = nodes["right"]["http"]
        self.admin: str = nodes["left"]["admin"]

    @staticmethod
    def put(url: str, objects: dict[bytes, Object], bucket: bytes = BUCKET, origin: bytes | None = None) -> None:
        """Push objects with their clocks unchanged; with `origin`, the uuid of a cluster, its queue does not send them
        back."""
        items = [[b"default", bucket, key, encode_object(obj)] for key, obj in objects.items()]
        for start in range(0, len(items), 500):
            body = msgpack.packb([1, origin, items[start : start + 500]])
            with urllib.request.urlopen(urllib.request.Request(f"{url}/batch/push", body), timeout=60) as response:
                told = msgpack.unpackb(response.read())
            assert {one[0] for one in told} <= {"applied", "superseded"}, told


def made(text: str, *, a: int = 1, b: int = 0, dead: bool = False) -> Object:
    """An object whose clock includes `a` writes of one cluster and `b` of another."""
    found: Object | None = None
    for actor, count in ((A, a), (B, b)):
        for number in range(1, count + 1):
            content = TOMBSTONE if dead else Content(text.encode())
            found = write(found, EMPTY if found is None else found.clock, content, (actor, number), 1_000_000)
    assert found is not None
    return found


TRUTH = {
    b"missing-there": ("diverged", "missing", "sink"),
    b"missing-here": ("diverged", "missing", "source"),
    b"behind-there": ("diverged", "behind", "sink"),
    b"behind-here": ("diverged", "behind", "source"),
    b"both-changed": ("diverged", "concurrent", "both"),
    b"same-clock": ("diverged", "corrupt", "both"),
}


def differing_objects(bucket: bytes) -> tuple[dict[bytes, Object], dict[bytes, Object]]:
    """(left, right): one of every difference (TRUTH), and a deleted key against none, which is none."""
    left = {
        b"missing-there": made("x"), b"behind-there": made("new", a=2), b"behind-here": made("old"),
        b"both-changed": made("mine", a=2), b"same-clock": made("one"), b"gone": made("", dead=True),
    }  # fmt: skip
    right = {
        b"missing-here": made("x"), b"behind-there": made("old"), b"behind-here": made("new", a=2),
        b"both-changed": made("theirs", a=1, b=1), b"same-clock": made("two"),
    }  # fmt: skip
    return left, right


def fill(pair: ClusterPair, equal: int = 2_000) -> None:
    """Equal keys, one of every difference, and one in a bucket of its own."""
    same = {b"k%d" % number: made("same", a=1 + number % 3) for number in range(equal)}
    left, right = differing_objects(BUCKET)
    pair.put(pair.left, same | left)
    pair.put(pair.right, same | right)
    pair.put(pair.left, {b"k": made("x")}, b"private")


@contextmanager
def up(directory: Path, topology: str = TOPOLOGY) -> Iterator[dict[str, Any]]:
    """Clusters of a topology, described as `isthmus local up` does; down at the end."""
    with LocalClusters(parse_topology(topology, directory / "t.toml"), directory / "d", owned=True) as clusters:
        yield clusters.up(180)


def findings_by_key(output: Path, run_id: str) -> dict[bytes, tuple[str, str, str]]:
    """(verdict, difference, side) of each key in the findings; every key has one row."""
    rows = list(
        read_findings(RunDirectory(str(output), run_id).path / "findings", ("key", "verdict", "difference", "side"))
    )
    found = {row["key"]: (row["verdict"], row["difference"], row["side"]) for row in rows}
    assert len(found) == len(rows)
    return found


def i_spark_sum(directory: RunDirectory) -> None:
    """I-SPARK-SUM: every key has one verdict, and the counts of each segment add up to the total."""
    summary = directory.read("summary.json")
    assert summary is not None
    verdicts = summary["verdicts"]
    assert summary["keys"] == sum(verdicts.values())
    rows = list(read_findings(directory.path / "findings", ("bucket", "key", "verdict")))
    assert len({(row["bucket"], row["key"]) for row in rows}) == len(rows)
    if not summary["findings_cut"]:
        found = Counter(row["verdict"] for row in rows)
        assert {name: count for name, count in verdicts.items() if name != "match" and count} == found
    chunks = pq.read_table(directory.path / "segments").to_pylist()
    for name in ("match", "filtered", "transient", "diverged"):
        assert sum(chunk[name] or 0 for chunk in chunks) == verdicts[name]
    for name in ("left_rows", "right_rows"):
        assert sum(chunk[name] or 0 for chunk in chunks) == summary[name]


def i_spark_snap(directory: RunDirectory) -> None:
    """I-SPARK-SNAP: each piece of a manifest names its partition, epoch and offset; the offset lies between the applied
    offsets at the run's begin and end."""
    summary = directory.read("summary.json")
    assert summary is not None
    chunks = pq.read_table(directory.path / "segments").to_pylist()
    for at, side in enumerate(("left_as_of", "right_as_of")):
        begin, end = (summary["as_of"][when][at]["applied"] for when in ("begin", "end"))
        pieces = [piece for chunk in chunks for piece in chunk[side] or ()]
        assert {str(piece["partition"]) for piece in pieces} == set(end)
        for piece in pieces:
            read = [piece["epoch"], piece["apply_offset"]]
            number = str(piece["partition"])
            assert begin[number] <= read <= end[number], (side, piece, begin, end)


@contextmanager
def garbage_server() -> Iterator[str]:
    """A server that answers every request with garbage."""
    with served(lambda _path, _body: b"\x00garbage") as url:
        yield url


@contextmanager
def silent_server() -> Iterator[str]:
    """A server that takes every question and answers none."""
    over = threading.Event()

    def answer(_path: str, _body: bytes) -> bytes:
        over.wait()
        raise ConnectionError("cut")

    with served(answer) as url:
        try:
            yield url
        finally:
            over.set()


Rule = Callable[[str, bytes], bytes | None]
"""The answer to (path, body) in a node's place; None: pass on the node's own answer."""


@contextmanager
def between(url: str, rule: Rule) -> Iterator[str]:
    """A proxy in front of a node that can change answers; plans made through it name the proxy, not the node."""

    def answer(path: str, body: bytes) -> bytes:
        told = rule(path, body)
        if told is not None:
            return told
        request = urllib.request.Request(url + path, body or None)
        with urllib.request.urlopen(request, timeout=30) as response:
            data: bytes = response.read()
        if path.startswith("/rows/plan"):
            plan = json.loads(data)
            for partition in plan["partitions"]:
                for copy in partition["copies"]:
                    copy["http"] = here[0]
            return json.dumps(plan).encode()
        return data

    here = [""]
    with served(answer) as own:
        here[0] = own
        yield own


@contextmanager
def served(answer: Any) -> Iterator[str]:
    """A server of POST and GET on a free port."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
            try:
                data = answer(self.path, body)
            except OSError:
                self.close_connection = True
                return
            self.send_response(200)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST

        def log_message(self, format: str, *args: Any) -> None:
            """Logs nothing."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
