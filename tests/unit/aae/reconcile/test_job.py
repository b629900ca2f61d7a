"""`reconcile` starts no Spark session for runs with equal trees, or with differences that the driver reads itself."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from isthmus.aae.reconcile import job, segment_plan
from isthmus.aae.reconcile.client import PartitionPlan, ReplicaDirectory, ReplicaEndpoint
from isthmus.aae.reconcile.compare_range import SideSpec
from isthmus.aae.reconcile.compare_tasks import Job
from isthmus.aae.reconcile.job import OWN_THREADS, ReconcileOptions, Waves, run
from isthmus.aae.reconcile.spark_session import LazySession
from isthmus.aae.run_directory import RunDirectory
from isthmus.repl.model.errors import BadInput, PeerFault
from isthmus.repl.model.keys import SEGMENT_COUNT

LEFT, RIGHT = "http://l:1", "http://r:1"


class Started(Exception):
    """A session was asked for."""


def no_session() -> Any:
    """Start a session."""
    raise Started


def clusters(monkeypatch: pytest.MonkeyPatch, rows: int = 10) -> None:
    """Two clusters with equal trees."""

    def plan_of(side: SideSpec) -> ReplicaDirectory:
        uuid = (b"l" if side.urls == (LEFT,) else b"r") * 16
        copy = ReplicaEndpoint("n1", side.urls[0], True, True, 1, 7)
        return ReplicaDirectory(
            uuid, uuid[:1].decode(), "default", (PartitionPlan(0, 0, SEGMENT_COUNT, rows, (copy,)),)
        )

    for module in (job, segment_plan):
        monkeypatch.setattr(module, "plan_of", plan_of)
    monkeypatch.setattr(segment_plan, "roots_of", lambda _side: np.zeros(1024, np.uint64))


def test_a_run_whose_trees_are_equal_starts_no_session(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Its summary is complete. Errors are reported without a session, too: other options under its run id, another
    cluster, or a cluster that does not answer."""
    clusters(monkeypatch)
    spark = LazySession(no_session)
    options = ReconcileOptions(str(tmp_path), "r")
    summary = run(spark, LEFT, RIGHT, options)
    assert (summary["outcome"], summary["mode"], summary["coverage"]["segments"]) == ("equal", "trees", SEGMENT_COUNT)
    assert (RunDirectory(str(tmp_path), "r").path / "_SUCCESS").exists()
    assert run(spark, LEFT, RIGHT, options) == summary
    with pytest.raises(BadInput, match="different bucket_type"):
        run(spark, LEFT, RIGHT, options._replace(bucket_type="other"))
    with pytest.raises(BadInput, match="take another --run-id"):
        run(spark, RIGHT + "1", RIGHT, options)

    def silent(side: SideSpec) -> ReplicaDirectory:
        raise PeerFault(f"{side.urls[0]} is silent")

    monkeypatch.setattr(segment_plan, "plan_of", silent)
    failed = run(spark, LEFT, RIGHT, options._replace(run_id="silent"))
    assert failed["outcome"] == "error"
    assert "http://l:1 is silent" in failed["error"]
    assert spark.parallelism() is None
    spark.stop()


def test_a_run_that_reads_everything_starts_a_session(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """With `full`, and where trees cannot answer. A session that does not start ends the run with its own error."""
    clusters(monkeypatch)
    with pytest.raises(Started):
        run(LazySession(no_session), LEFT, RIGHT, ReconcileOptions(str(tmp_path), "full", full=True))

    def no_trees(_side: SideSpec) -> Any:
        raise PeerFault("no trees")

    monkeypatch.setattr(segment_plan, "roots_of", no_trees)
    with pytest.raises(Started):
        run(LazySession(no_session), LEFT, RIGHT, ReconcileOptions(str(tmp_path), "trees"))


@pytest.mark.parametrize(("cores", "threads"), [(None, OWN_THREADS), (2, 2), (16, OWN_THREADS)])
def test_the_rate_of_a_run_is_shared_by_what_reads_at_once(cores: int | None, threads: int, tmp_path: Path) -> None:
    """Threads of the driver, at most as many as tasks, get a thread's share of the rate."""
    spark: LazySession = LazySession(no_session)
    if cores is not None:
        spark = LazySession.of(SimpleNamespace(sparkContext=SimpleNamespace(defaultParallelism=cores)))  # type: ignore[arg-type]
        assert job.parallelism(spark) == cores
    side = SideSpec((LEFT,), "default", rows_per_second=1_000)
    waves = Waves(spark, RunDirectory(str(tmp_path), "r"), Job(side, side, "default", b"", 0, 0, ""))
    assert waves._own_threads() == threads
    shared = waves._shared(threads)
    assert (shared.left.rows_per_second, shared.right.rows_per_second) == (1_000 / threads, 1_000 / threads)
