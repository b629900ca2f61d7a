"""Runs during writes and faults (fault matrix row 30): ten times the writes, leaders that change, logs that are
trimmed, nodes that are killed, damaged rows. A key reported lost is lost, and a key that could not be read is not
reported equal."""

from __future__ import annotations

import json
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

import msgpack
import pytest

from isthmus.aae.reconcile.client import Credentials, fetch_plan
from isthmus.aae.reconcile.job import ReconcileOptions, run
from isthmus.aae.reconcile.spark_session import session
from isthmus.aae.run_directory import RunDirectory
from isthmus.node.local import directory as places
from isthmus.node.local.clusters import LocalClusters
from isthmus.node.local.topology import parse_topology
from isthmus.repl.store.leveldb import plyvel
from isthmus.repl.store.rows import KEY_TAG, OBJECT_TAG, bucket_head
from tests.support.reconcile_pairs import (
    BUCKET,
    TRUTH,
    ClusterPair,
    differing_objects,
    findings_by_key,
    i_spark_snap,
    i_spark_sum,
    made,
)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1_200)]

TOPOLOGY = """
[clusters.left.replication]
partitions = 4
factor = 3
min_isr = 2
log_size = "4MB"
log_file_size = "512KB"
log_batch_size = "256KB"
checkpoint_interval = "2s"
write_buffer_size = "8MB"
[[clusters.left.nodes]]
name = "left-1"
[[clusters.left.nodes]]
name = "left-2"
[[clusters.left.nodes]]
name = "left-3"
[[clusters.left.queues]]
name = "to-right"
[clusters.right.replication]
partitions = 3
log_size = "4MB"
log_file_size = "512KB"
log_batch_size = "256KB"
checkpoint_interval = "2s"
[[clusters.right.nodes]]
name = "right-1"
[[clusters.right.sink.peers]]
cluster = "left"
queue = "to-right"
"""

EQUAL = 3_000
BATCH = 50
VALUE_BYTES = 2_000
HOT = b"hot"


class LoadedClusters:
    """Both clusters, and a writer of the left one."""

    def __init__(self, directory: Path, described: dict[str, Any]) -> None:
        self.directory = directory
        self.pair = ClusterPair(described)
        nodes = {name: [node["http"] for node in one["nodes"]] for name, one in described["clusters"].items()}
        self.left, self.right = ",".join(nodes["left"]), nodes["right"][0]
        self._lefts = nodes["left"]
        self.acknowledged = 0
        self.trouble = 0

    @contextmanager
    def written(self, batches_per_s: float) -> Iterator[None]:
        """Batches of new versions and new keys go into the left cluster, to whichever node takes them."""
        over = threading.Event()

        def write() -> None:
            chance = Random(30)
            while not over.wait(1 / batches_per_s):
                keys = [b"h%d" % chance.randrange(20_000) for _ in range(BATCH)]
                body = msgpack.packb([[b"default", HOT, key, chance.randbytes(VALUE_BYTES)] for key in set(keys)])
                url = f"{chance.choice(self._lefts)}/batch/put"
                try:
                    with urllib.request.urlopen(urllib.request.Request(url, body), timeout=10) as response:
                        self.acknowledged += sum(status == 204 for status, *_ in msgpack.unpackb(response.read()))
                except OSError:
                    self.trouble += 1

        thread = threading.Thread(target=write)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join(60)

    def leader(self) -> str:
        """The node that leads the most partitions of the left cluster."""
        with urllib.request.urlopen(f"{self.pair.admin}/admin/leaders", timeout=20) as response:
            leaders: dict[str, int] = json.load(response)["leaders"]
        return max(leaders, key=lambda node: leaders[node])


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    """One session for all tests."""
    made_session = session("tests", "local[2]")
    yield made_session
    made_session.stop()


@pytest.fixture(scope="module")
def clusters(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoadedClusters]:
    """Equal keys, and one of every difference, which the queue does not send: their dots name the right cluster as
    their origin."""
    directory = tmp_path_factory.mktemp("harm")
    with LocalClusters(parse_topology(TOPOLOGY, directory / "t.toml"), directory / "d", owned=True) as clusters:
        found = LoadedClusters(directory / "d", clusters.up(180))
        left, right = differing_objects(BUCKET)
        same = {b"k%d" % number: made("same") for number in range(EQUAL)}
        theirs = fetch_plan((found.right,), Credentials(), "default").cluster
        found.pair.put(found.pair.left, same | left, origin=theirs)
        found.pair.put(found.right, same | right)
        yield found


def options(output: Path, run_id: str, **more: Any) -> ReconcileOptions:
    """Options for a cluster under writes: written objects arrive within seconds."""
    return ReconcileOptions(str(output), run_id, settle_s=10, give_up_after_s=60)._replace(**more)


def i_spark_nofalse(output: Path, run_id: str, truth: dict[bytes, tuple[str, str, str]]) -> None:
    """I-SPARK-NOFALSE: the `diverged` keys are those that the test made differ for good; all other differences were
    still being replicated."""
    found = findings_by_key(output, run_id)
    lost = {key: words for key, words in found.items() if words[0] == "diverged"}
    assert lost == truth
    assert {words[0] for words in found.values()} <= {"diverged", "transient"}


def during(act: Callable[[], None], after_s: float) -> threading.Thread:
    """Do something soon."""

    def later() -> None:
        time.sleep(after_s)
        act()

    thread = threading.Thread(target=later)
    thread.start()
    return thread


@pytest.mark.parametrize("full", [False, True], ids=["trees", "full"])
def test_i_spark_nofalse_while_the_left_cluster_is_written_to(
    spark: Any, clusters: LoadedClusters, tmp_path: Path, full: bool
) -> None:
    """Under live writes the findings equal the planted differences, by trees and by reading all; counts add up, and
    each piece is as of one offset."""
    with clusters.written(10):
        time.sleep(1)
        ended = run(spark, clusters.left, clusters.right, options(tmp_path, "live", full=full))
    assert ended["exit_code"] == 1, ended
    i_spark_nofalse(tmp_path, "live", TRUTH)
    i_spark_sum(RunDirectory(str(tmp_path), "live"))
    if full:
        i_spark_snap(RunDirectory(str(tmp_path), "live"))
    assert clusters.acknowledged > 100


def test_i_spark_nofalse_while_a_leader_is_killed_logs_are_trimmed_and_writes_are_ten_times_as_many(
    spark: Any, clusters: LoadedClusters, tmp_path: Path
) -> None:
    """Fault matrix row 30: a leader dies during the first look and comes back, another during settling, and the log is
    much shorter than the writes. The run is complete, or it lists the open segments and the second run is complete; no
    key is reported lost that is not."""
    first = clusters.leader()

    def harm() -> None:
        places.stop_node(clusters.directory, first, kill=True)
        time.sleep(4)
        places.start_node(clusters.directory, first, timeout_s=None)

    wanted = options(tmp_path, "harm", full=True, rows_per_second=2_000)
    acknowledged = clusters.acknowledged
    with clusters.written(100):
        thread = during(harm, 2)
        try:
            ended = run(spark, clusters.left, clusters.right, wanted)
        finally:
            thread.join()
        for _ in range(3):
            if ended["exit_code"] != 3:
                break
            assert ended["segments_open"]
            ended = run(spark, clusters.left, clusters.right, wanted)
    assert clusters.acknowledged - acknowledged > 1_000
    assert ended["exit_code"] == 1, ended
    i_spark_nofalse(tmp_path, "harm", TRUTH)
    i_spark_sum(RunDirectory(str(tmp_path), "harm"))


def test_damage_is_corrupt_and_ends_nothing(spark: Any, clusters: LoadedClusters, tmp_path: Path) -> None:
    """An unreadable key row whose object is damaged, too, so that the node cannot repair it by itself, and an object
    that does not match its row, are `corrupt` on their side, the latter where bodies are read; all other keys have
    their verdicts."""
    places.stop_node(clusters.directory, "right-1")
    rows = clusters.directory / "right-1" / "data" / "store" / "rows"
    with_damage(rows, {b"k7": (KEY_TAG, OBJECT_TAG), b"k8": (OBJECT_TAG,)})
    places.start_node(clusters.directory, "right-1")
    run(spark, clusters.left, clusters.right, options(tmp_path, "rows", full=True, bucket=BUCKET))
    row = TRUTH | {b"k7": ("diverged", "corrupt", "sink")}
    i_spark_nofalse(tmp_path, "rows", row)
    i_spark_sum(RunDirectory(str(tmp_path), "rows"))
    ended = run(spark, clusters.left, clusters.right, options(tmp_path, "bodies", bodies=True, bucket=BUCKET))
    i_spark_nofalse(tmp_path, "bodies", row | {b"k8": ("diverged", "corrupt", "sink")})
    assert ended["verdicts"]["match"] == EQUAL - 2 + 1


def with_damage(rows: Path, keys: dict[bytes, tuple[bytes, ...]]) -> None:
    """Damage each key's rows of the given tags: the first byte of a key row, the last one of an object."""
    database = plyvel.DB(str(rows))
    try:
        for key, tag in ((key, tag) for key, tags in keys.items() for tag in tags):
            tail = bucket_head(BUCKET) + key
            [(name, value)] = [(name, value) for name, value in database.iterator(prefix=tag) if name.endswith(tail)]
            damaged = b"\xc1" + value[1:] if tag == KEY_TAG else value[:-1] + bytes((value[-1] ^ 1,))
            database.put(name, damaged)
    finally:
        database.close()
