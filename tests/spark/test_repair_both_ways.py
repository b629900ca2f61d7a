"""Two clusters that are each behind the other, repaired in both directions, are equal afterwards."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from isthmus.aae.reconcile.job import ReconcileOptions, run
from isthmus.aae.reconcile.repair import LEFT_TO_RIGHT, RIGHT_TO_LEFT, apply, plan
from isthmus.aae.reconcile.spark_session import session
from isthmus.aae.run_directory import RunDirectory
from isthmus.node.cli.admin_client import AdminClient
from isthmus.node.cli.reconcile import AdminQueue
from tests.support.reconcile_pairs import BUCKET, TRUTH, ClusterPair, differing_objects, findings_by_key, made, up

TOPOLOGY = """
[clusters.left.replication]
partitions = 2
[[clusters.left.nodes]]
name = "left-1"
[[clusters.left.queues]]
name = "to-right"
filter = "block_rtq"
[[clusters.left.sink.peers]]
cluster = "right"
queue = "to-left"
[clusters.right.replication]
partitions = 3
[[clusters.right.nodes]]
name = "right-1"
[[clusters.right.queues]]
name = "to-left"
filter = "block_rtq"
[[clusters.right.sink.peers]]
cluster = "left"
queue = "to-right"
"""

CORRUPT = b"same-clock"
"""No repair can fix it: the clocks do not show which side is right."""


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    """A session; only tests that read whole tables, without trees, need one."""
    made_session = session("tests", "local[2]")
    yield made_session
    made_session.stop()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_clusters_that_are_each_behind_the_other_are_equal_after_both_repairs(spark: Any, tmp_path: Path) -> None:
    """`behind` is about one side. A key is `concurrent` when each side has a write that the other lacks; where some
    keys are behind on one side and some on the other, each key's finding says which. After repairs both ways everything
    has arrived, and keys changed on both sides have all siblings on both."""
    with up(tmp_path, TOPOLOGY) as described:
        pair = ClusterPair(described)
        same = {b"k%d" % number: made("same") for number in range(500)}
        for url, objects in zip((pair.left, pair.right), differing_objects(BUCKET), strict=True):
            pair.put(url, same | {key: one for key, one in objects.items() if key != CORRUPT})

        def found(run_id: str) -> dict[bytes, tuple[str, str, str]]:
            summary = run(
                spark, pair.left, pair.right, ReconcileOptions(str(tmp_path), run_id, settle_s=0.5, give_up_after_s=10)
            )
            assert summary["exit_code"] in (0, 1), summary
            return findings_by_key(tmp_path, run_id)

        assert found("before") == {key: words for key, words in TRUTH.items() if key != CORRUPT}
        directory = RunDirectory(str(tmp_path), "before")
        admins = {name: one["nodes"][0]["admin"] for name, one in described["clusters"].items()}
        for direction, queue, sender in ((LEFT_TO_RIGHT, "to-right", "left"), (RIGHT_TO_LEFT, "to-left", "right")):
            planned = plan(directory, queue, direction)
            assert (planned["objects"], planned["expected_siblings"]) == (3, 1)
            assert apply(directory, planned["plan"], AdminQueue(AdminClient(admins[sender]), queue, "test"))
        deadline_s = time.monotonic() + 120
        number = 0
        while left := found(f"after-{number}"):
            assert time.monotonic() < deadline_s, left
            number += 1
        summary = RunDirectory(str(tmp_path), f"after-{number}").read("summary.json")
        assert summary is not None
        assert summary["outcome"] == "equal"
