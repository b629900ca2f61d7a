"""Two real one-node clusters, real Spark: what a run says is the truth that the test keeps; nothing unread is equal."""

from __future__ import annotations

import http.server
import json
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgpack
import pytest
from pyspark.errors import PySparkException

from aae.reconcile import exporting, jobs
from aae.reconcile.findings import read_findings
from aae.reconcile.reconcile import ReconcileOptions, reconcile, run
from aae.reconcile.repair import LEFT_TO_RIGHT, apply, plan
from aae.reconcile.runs import RunDirectory
from aae.reconcile.sessions import session
from node import supervisor
from node.cli.reconcile import AdminQueue
from node.cli.remote import AdminClient
from node.local import LocalClusters
from node.topology import parse_topology
from repl.model.objects import TOMBSTONE, Content, Object, encode_object, write
from repl.model.vclock import EMPTY, actor_of

TOPOLOGY = """
[clusters.left.replication]
partitions = 4
[[clusters.left.nodes]]
name = "left-1"
[[clusters.left.queues]]
name = "to-right"
filter = "block_rtq"
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


class Pair:
    """Both clusters, and writes with clocks of the test's making."""

    def __init__(self, described: dict[str, Any]) -> None:
        nodes = {name: one["nodes"][0] for name, one in described["clusters"].items()}
        self.left: str = nodes["left"]["http"]
        self.right: str = nodes["right"]["http"]
        self.admin: str = nodes["left"]["admin"]

    @staticmethod
    def put(url: str, objects: dict[bytes, Object], bucket: bytes = BUCKET) -> None:
        """Push objects, clocks as they are."""
        items = [[b"default", bucket, key, encode_object(obj)] for key, obj in objects.items()]
        for start in range(0, len(items), 500):
            body = msgpack.packb([1, None, items[start : start + 500]])
            with urllib.request.urlopen(urllib.request.Request(f"{url}/batch/push", body), timeout=60) as response:
                told = msgpack.unpackb(response.read())
            assert {one[0] for one in told} <= {"applied", "superseded"}, told


def made(text: str, *, a: int = 1, b: int = 0, dead: bool = False) -> Object:
    """An object whose clock has seen `a` writes of one cluster and `b` of another."""
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


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    """One session for all."""
    made_session = session("tests", "local[2]")
    yield made_session
    made_session.stop()


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """2,000 equal keys, one of every difference, a deleted key against none, and one in a bucket of its own."""
    directory = tmp_path_factory.mktemp("pair")
    clusters = LocalClusters(parse_topology(TOPOLOGY, directory / "t.toml"), directory / "d")
    try:
        found = Pair(clusters.up(120))
        same = {b"k%d" % number: made("same", a=1 + number % 3) for number in range(2_000)}
        left = {
            b"missing-there": made("x"), b"behind-there": made("new", a=2), b"behind-here": made("old"),
            b"both-changed": made("mine", a=2), b"same-clock": made("one"), b"gone": made("", dead=True),
        }  # fmt: skip
        right = {
            b"missing-here": made("x"), b"behind-there": made("old"), b"behind-here": made("new", a=2),
            b"both-changed": made("theirs", a=1, b=1), b"same-clock": made("two"),
        }  # fmt: skip
        found.put(found.left, same | left)
        found.put(found.right, same | right)
        found.put(found.left, {b"k": made("x")}, b"private")
        yield found
    finally:
        supervisor.stop(directory / "d")


def said(output: Path, run_id: str) -> dict[bytes, tuple[str, str, str]]:
    """What the findings say of each key; every key has one row."""
    rows = list(
        read_findings(RunDirectory(str(output), run_id).path / "findings", ("key", "verdict", "difference", "side"))
    )
    found = {row["key"]: (row["verdict"], row["difference"], row["side"]) for row in rows}
    assert len(found) == len(rows)
    return found


def options(output: Path, run_id: str, **more: Any) -> ReconcileOptions:
    """Quick ones."""
    return ReconcileOptions(str(output), run_id, settle_s=0.5, give_up_after_s=2)._replace(**more)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_findings_are_the_truth_by_trees_and_by_reading_all(spark: Any, pair: Pair, tmp_path: Path) -> None:
    """Every difference has its verdict, by trees and with `full`; what the filter leaves out is filtered, a deleted key
    against none a match; and the counts close."""
    truth = TRUTH | {b"k": ("filtered", "missing", "sink")}
    by_trees = run(spark, pair.left, pair.right, options(tmp_path, "trees", filter="any, !bucketname:private"))
    assert by_trees["mode"] == "trees"
    assert by_trees["coverage"]["read"] < 100
    assert said(tmp_path, "trees") == truth
    full = reconcile(
        spark, pair.left, pair.right, options(tmp_path, "full", full=True, filter="any, !bucketname:private")
    )
    assert said(tmp_path, "full") == truth
    assert full.count() == len(truth)
    summary = RunDirectory(str(tmp_path), "full").read("summary.json")
    assert summary is not None
    assert (summary["outcome"], summary["exit_code"]) == ("differ", 1)
    assert summary["verdicts"] == {"match": 2_001, "transient": 0, "diverged": 6, "filtered": 1, "unreachable": 0}
    assert summary["keys"] == sum(summary["verdicts"].values())
    assert summary["coverage"]["segments"] == summary["coverage"]["of"] == 1 << 20


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_what_cannot_be_read_is_never_equal(spark: Any, pair: Pair, tmp_path: Path) -> None:
    """A cluster that gives garbage, or does not answer, ends in 2; one that is lost on the way in 3 with its segments
    named, and the same run id goes on from there and does no finished work again."""
    with garbage() as url:
        ended = run(spark, pair.left, url, options(tmp_path, "garbage"))
    assert (ended["exit_code"], ended["segments_open"]) == (2, [[0, 1 << 20]])
    assert run(spark, pair.left, "http://127.0.0.1:9", options(tmp_path, "silent"))["exit_code"] == 2
    with passing(pair.right, 9) as url:
        ended = run(spark, pair.left, url, options(tmp_path, "lost", full=True, bucket=b"none"))
    assert ended["exit_code"] in (2, 3)
    assert ended["segments_open"]
    assert ended["reasons"]


@contextmanager
def garbage() -> Iterator[str]:
    """A server whose every answer is none."""
    with served(lambda _path, _body: b"\x00garbage") as url:
        yield url


@contextmanager
def passing(url: str, requests: int) -> Iterator[str]:
    """A way to a node that is cut after so many requests; plans that come over it name it, not the node."""
    left = [requests]

    def answer(path: str, body: bytes) -> bytes:
        left[0] -= 1
        if left[0] < 0:
            raise ConnectionError("cut")
        request = urllib.request.Request(url + path, body or None)
        with urllib.request.urlopen(request, timeout=30) as response:
            data: bytes = response.read()
        if path.startswith("/rows/plan"):
            told = json.loads(data)
            for partition in told["partitions"]:
                for copy in partition["copies"]:
                    copy["http"] = here[0]
            return json.dumps(told).encode()
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
            except ConnectionError:
                self.close_connection = True
                return
            self.send_response(200)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST

        def log_message(self, format: str, *args: Any) -> None:
            """Nothing."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_repair_makes_good_what_one_side_can_send(spark: Any, pair: Pair, tmp_path: Path) -> None:
    """A plan names what it will do; applied, the keys arrive, and applied twice nothing more is queued."""
    run(spark, pair.left, pair.right, options(tmp_path, "before"))
    directory = RunDirectory(str(tmp_path), "before")
    made_plan = plan(directory, "to-right", LEFT_TO_RIGHT)
    assert (made_plan["objects"], made_plan["expected_siblings"]) == (
        4,
        1,
    )  # with the private key, which no filter left out
    assert plan(directory, "to-right", LEFT_TO_RIGHT) == made_plan
    queue = AdminQueue(AdminClient(pair.admin), "to-right", "test")
    assert apply(directory, made_plan["plan"], queue)["state"] == "done"
    assert apply(directory, made_plan["plan"], queue)["queued"] == 4
    deadline = time.monotonic() + 60
    for key in ("missing-there", "behind-there"):
        while True:
            try:
                with urllib.request.urlopen(f"{pair.right}/buckets/b/keys/{key}", timeout=10) as response:
                    if response.read() in (b"x", b"new"):
                        break
            except OSError:
                pass
            assert time.monotonic() < deadline, f"never: {key} arrives"
            time.sleep(0.2)
    run(spark, pair.left, pair.right, options(tmp_path, "after"))
    assert b"missing-there" not in said(tmp_path, "after")
    assert said(tmp_path, "after")[b"missing-here"] == TRUTH[b"missing-here"]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_jobs_count_copy_and_prove(spark: Any, pair: Pair, tmp_path: Path) -> None:
    """Spark's trees are the nodes', counts are those of what was written, an export has all and is imported with its
    clocks; what has the same clock and other content there is refused by name."""
    assert jobs.trees(spark, pair.left, "default") == []
    [row] = jobs.stats(spark, pair.left, "default", "b").collect()
    assert (row["objects"], row["tombstones"], row["damaged"], row["age_older"]) == (2_005, 1, 0, 2_005)
    exported = exporting.export_objects(spark, pair.left, "default", "", str(tmp_path / "copy"))
    assert exported == 2_007
    with pytest.raises(PySparkException, match="same-clock"):
        exporting.import_objects(spark, str(tmp_path / "copy"), pair.right)
    assert exporting.export_objects(spark, pair.left, "default", "private", str(tmp_path / "private")) == 1
    for _ in range(2):
        assert exporting.import_objects(spark, str(tmp_path / "private"), pair.right) == 1
    run(spark, pair.left, pair.right, options(tmp_path, "copied", bucket=b"private"))
    assert said(tmp_path, "copied") == {}
