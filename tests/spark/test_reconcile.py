"""Two real one-node clusters, real Spark: a run's findings equal the differences that the test planted, and nothing
unread is reported equal."""

from __future__ import annotations

import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException

from isthmus.aae.reconcile import batch_jobs, export
from isthmus.aae.reconcile.findings import read_findings
from isthmus.aae.reconcile.job import ReconcileOptions, reconcile, run
from isthmus.aae.reconcile.repair import LEFT_TO_RIGHT, apply, plan
from isthmus.aae.reconcile.spark_session import LazySession, session
from isthmus.aae.row_stream.wire import decode_rows_request
from isthmus.aae.run_directory import RunDirectory
from isthmus.aae.run_listing import list_runs
from isthmus.node.cli.admin_client import AdminClient
from isthmus.node.cli.reconcile import AdminQueue
from isthmus.repl.model.errors import BadInput, LocalFault
from tests.support.reconcile_pairs import (
    BUCKET,
    TRUTH,
    ClusterPair,
    between,
    differing_objects,
    fill,
    findings_by_key,
    garbage_server,
    i_spark_snap,
    i_spark_sum,
    made,
    silent_server,
    up,
)


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    """One session for all tests."""
    made_session = session("tests", "local[2]")
    yield made_session
    made_session.stop()


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterPair]:
    """The truth, in two clusters."""
    with up(tmp_path_factory.mktemp("pair")) as described:
        found = ClusterPair(described)
        fill(found)
        yield found


def options(output: Path, run_id: str, **more: Any) -> ReconcileOptions:
    """Quick ones."""
    return ReconcileOptions(str(output), run_id, settle_s=0.5, give_up_after_s=2)._replace(**more)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_findings_are_the_truth_by_trees_and_by_reading_all(spark: Any, pair: ClusterPair, tmp_path: Path) -> None:
    """Every difference has its verdict, by trees and with `full`; keys that the filter leaves out are `filtered`, a
    deleted key against an absent one is a match, and the counts add up."""
    truth = TRUTH | {b"k": ("filtered", "missing", "sink")}
    by_trees = run(spark, pair.left, pair.right, options(tmp_path, "trees", filter="any, !bucketname:private"))
    assert by_trees["mode"] == "trees"
    assert by_trees["coverage"]["read"] < 100
    assert findings_by_key(tmp_path, "trees") == truth
    full = reconcile(
        spark, pair.left, pair.right, options(tmp_path, "full", full=True, filter="any, !bucketname:private")
    )
    assert findings_by_key(tmp_path, "full") == truth
    assert full.count() == len(truth)
    summary = RunDirectory(str(tmp_path), "full").read("summary.json")
    assert summary is not None
    assert (summary["outcome"], summary["exit_code"]) == ("differ", 1)
    counts = {"match": 2_001, "transient": 0, "waiting": 0, "diverged": 6, "filtered": 1, "unreachable": 0}
    assert summary["verdicts"] == counts
    assert summary["keys"] == sum(summary["verdicts"].values())
    assert summary["coverage"]["segments"] == summary["coverage"]["of"] == 1 << 20
    listed = {row["run"]: row for row in list_runs(tmp_path, int(time.time() * 1000)).runs}
    assert {name: (row["state"], row["outcome"], row["error"]) for name, row in listed.items()} == {
        "trees": ("ended", "differ", ""), "full": ("ended", "differ", ""),
    }  # fmt: skip
    assert listed["full"]["clusters"] == ["left", "right"]
    progress = RunDirectory(str(tmp_path), "full").read("progress.json")
    assert progress is not None
    assert (progress["stage"], progress["counts"]) == ("ended", summary["verdicts"])
    assert sum(group["count"] for group in summary["findings"]["groups"]) == len(truth)
    i_spark_sum(RunDirectory(str(tmp_path), "trees"))
    i_spark_sum(RunDirectory(str(tmp_path), "full"))
    i_spark_snap(RunDirectory(str(tmp_path), "full"))


@pytest.mark.timeout(900)
def test_a_few_differences_are_found_without_a_session(pair: ClusterPair, tmp_path: Path) -> None:
    """Trees name the segments, the driver reads them: the truth comes without Java."""

    def start() -> Any:
        raise AssertionError("a session was started")

    wanted = options(tmp_path, "few", filter="any, !bucketname:private")
    summary = run(LazySession(start), pair.left, pair.right, wanted)
    assert (summary["outcome"], summary["mode"]) == ("differ", "trees")
    assert findings_by_key(tmp_path, "few") == TRUTH | {b"k": ("filtered", "missing", "sink")}


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_findings_are_a_table_of_spark(spark: Any, pair: ClusterPair, tmp_path: Path) -> None:
    """The view `findings` has the rows of a run, with their columns, from its directory and from `findings/` in it."""
    run(spark, pair.left, pair.right, options(tmp_path, "view"))
    path = RunDirectory(str(tmp_path), "view").path
    for place in (path, path / "findings"):
        table = spark.read.format("isthmus").option("view", "findings").load(str(place))
        rows = {bytes(row["key"]): row for row in table.collect()}
        assert {key: (row["verdict"], row["difference"], row["side"]) for key, row in rows.items()} == findings_by_key(
            tmp_path, "view"
        )
        assert (rows[b"missing-there"]["right_clock"], rows[b"missing-here"]["left_clock"]) == (None, None)
        assert rows[b"behind-there"]["left_clock"] != rows[b"behind-there"]["right_clock"]
        assert table.where("difference = 'corrupt'").count() == 1


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_unreadable_rows_are_never_equal(spark: Any, pair: ClusterPair, tmp_path: Path) -> None:
    """A cluster that gives garbage, is not there, or takes questions and never answers ends in 2, with all segments
    open."""
    with garbage_server() as wrong, silent_server() as silent:
        for run_id, url in (("garbage", wrong), ("nobody", "http://127.0.0.1:9"), ("silent", silent)):
            ended = run(spark, pair.left, url, options(tmp_path, run_id))
            assert (ended["exit_code"], ended["segments_open"]) == (2, [[0, 1 << 20]])
            assert ended["error"]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_part_that_cannot_be_read_is_named_and_read_by_the_next_go(
    spark: Any, pair: ClusterPair, tmp_path: Path
) -> None:
    """Rows of one partition that are garbage, or never come, make a run incomplete: exactly its segments are open, the
    rest is counted. The same run id, by another way, reads these alone; of another cluster it is refused."""
    cut = (1 << 20) // 3  # the right cluster has three partitions

    def harmed(how: Any) -> Any:
        def rule(path: str, body: bytes) -> bytes | None:
            return how() if path == "/rows" and decode_rows_request(body).partition == 1 else None

        return rule

    def never() -> bytes:
        time.sleep(4)
        raise ConnectionError("cut")

    for run_id, how in (("bad-rows", lambda: b"\x00garbage"), ("no-rows", never)):
        wanted = options(tmp_path, run_id, full=True)
        with between(pair.right, harmed(how)) as url:
            ended = run(spark, pair.left, url, wanted)
        assert (ended["outcome"], ended["exit_code"]) == ("incomplete", 3)
        assert ended["segments_open"]
        assert all(first < 2 * cut + 2 and end > cut for first, end in ended["segments_open"])
        assert ended["coverage"]["segments"] == (1 << 20) - sum(end - first for first, end in ended["segments_open"])
        assert "partition 1" in " ".join(ended["reasons"])
        i_spark_sum(RunDirectory(str(tmp_path), run_id))
        before = {path.name: path.read_bytes() for path in (tmp_path / f"run_id={run_id}" / "work").glob("*.json")}
        with pytest.raises(BadInput, match="same cluster"):
            run(spark, pair.left, pair.left, wanted)
        ended = run(spark, pair.left, pair.right, wanted)
        assert (ended["exit_code"], ended["segments_open"]) == (1, [])
        assert findings_by_key(tmp_path, run_id) == TRUTH | {b"k": ("diverged", "missing", "sink")}
        waves = {path.name: path.read_bytes() for path in (tmp_path / f"run_id={run_id}" / "work").glob("*.json")}
        assert before.items() <= waves.items()
        i_spark_sum(RunDirectory(str(tmp_path), run_id))
        with pytest.raises(BadInput, match="take another --run-id"):
            run(spark, pair.right, pair.left, wanted)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_slow_node_makes_a_slow_run_and_no_other_findings(spark: Any, pair: ClusterPair, tmp_path: Path) -> None:
    """With a delay of half a second before each answer the findings are still the planted differences."""

    def slow(_path: str, _body: bytes) -> None:
        time.sleep(0.5)

    with between(pair.right, slow) as url:
        assert run(spark, pair.left, url, options(tmp_path, "slow"))["exit_code"] == 1
    assert findings_by_key(tmp_path, "slow") == TRUTH | {b"k": ("diverged", "missing", "sink")}


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_repair_makes_good_what_one_side_can_send(spark: Any, pair: ClusterPair, tmp_path: Path) -> None:
    """A plan lists its repairs; after `apply` the keys arrive, and a second `apply` queues nothing more."""
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
    assert b"missing-there" not in findings_by_key(tmp_path, "after")
    assert findings_by_key(tmp_path, "after")[b"missing-here"] == TRUTH[b"missing-here"]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_jobs_count_copy_and_prove(spark: Any, pair: ClusterPair, tmp_path: Path) -> None:
    """Spark's trees equal the nodes', counts equal the written keys, and an export is complete and is imported with its
    clocks; a key with the same clock but other content in the target is refused by name."""
    assert batch_jobs.trees(spark, pair.left, "default") == []
    [row] = batch_jobs.stats(spark, pair.left, "default", "b").collect()
    assert (row["objects"], row["tombstones"], row["damaged"], row["age_older"]) == (2_005, 1, 0, 2_005)
    exported = export.export_objects(spark, pair.left, "default", "", str(tmp_path / "copy"))
    assert exported == 2_007
    with pytest.raises(PySparkException, match="same-clock"):
        export.import_objects(spark, str(tmp_path / "copy"), pair.right)
    assert export.export_objects(spark, pair.left, "default", "private", str(tmp_path / "private")) == 1
    for _ in range(2):
        assert export.import_objects(spark, str(tmp_path / "private"), pair.right) == 1
    run(spark, pair.left, pair.right, options(tmp_path, "copied", bucket=b"private"))
    assert findings_by_key(tmp_path, "copied") == {}


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_an_export_to_a_store_goes_on_where_it_was_broken_off(
    spark: Any, pair: ClusterPair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a path that is a Hadoop URL: finished slices stay as they are, an unfinished export is not imported, a
    finished one is not made again, and a directory that is not an export, or an unknown kind of store, is refused."""
    monkeypatch.setattr(export, "SLICE_ROWS", 500)
    url = f"file://{tmp_path}/store/copy"
    lines: list[str] = []

    def broken_off(line: str) -> None:
        lines.append(line)
        if len(lines) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        export.export_objects(spark, pair.left, "default", "b", url, progress=broken_off)
    done = {path: path.stat().st_mtime_ns for path in (tmp_path / "store" / "copy").glob("slice=*/*.parquet")}
    assert {path.parent.name for path in done} == {"slice=0000", "slice=0001"}
    with pytest.raises(BadInput, match="not finished: 2 of"):
        export.import_objects(spark, url, pair.left)
    with pytest.raises(BadInput, match="an export of something else"):
        export.export_objects(spark, pair.left, "default", "private", url)
    assert export.export_objects(spark, pair.left, "default", "b", url, progress=lines.append) == 2_006
    assert done.items() <= {path: path.stat().st_mtime_ns for path in done}.items()
    assert export.import_objects(spark, url, pair.left) == 2_006
    with pytest.raises(BadInput, match="has this export already"):
        export.export_objects(spark, pair.left, "default", "b", url)
    with pytest.raises(BadInput, match="is not an export"):
        export.export_objects(spark, pair.left, "default", "b", f"file://{tmp_path}/store")
    with pytest.raises(BadInput, match="there is no export"):
        export.import_objects(spark, f"file://{tmp_path}/nowhere", pair.left)
    with pytest.raises(LocalFault, match="nosuch"):
        export.export_objects(spark, pair.left, "default", "b", "nosuch://place/copy")


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_names_that_are_no_text_are_compared_and_repaired(spark: Any, pair: ClusterPair, tmp_path: Path) -> None:
    """Keys of arbitrary bytes have findings with these bytes, are chosen by `bucket`, and a repair brings them over."""
    bucket, keys = b"\xff\x00b", [b"\x00", b"\xfe\xff", b"a/b\xc3", "isthmós".encode()]
    pair.put(pair.left, {key: made(repr(key)) for key in keys}, bucket)
    run(spark, pair.left, pair.right, options(tmp_path, "bytes", bucket=bucket))
    assert findings_by_key(tmp_path, "bytes") == dict.fromkeys(keys, ("diverged", "missing", "sink"))
    directory = RunDirectory(str(tmp_path), "bytes")
    made_plan = plan(directory, "to-right", LEFT_TO_RIGHT)
    assert (made_plan["objects"], made_plan["left_alone"]) == (len(keys), {})
    apply(directory, made_plan["plan"], AdminQueue(AdminClient(pair.admin), "to-right", "test"))
    reader = spark.read.format("isthmus").options(urls=pair.right, bucket="0xff0062", columns="key")
    deadline = time.monotonic() + 60
    while {bytes(row["key"]) for row in reader.load().collect()} != set(keys):
        assert time.monotonic() < deadline, "never: the keys arrive"
    ended = run(spark, pair.left, pair.right, options(tmp_path, "bytes-after", bucket=bucket, full=True))
    assert (ended["exit_code"], ended["verdicts"]["match"]) == (0, len(keys))


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_full_sync_counts_the_same_differences(spark: Any, pair: ClusterPair, tmp_path: Path) -> None:
    """On the same state the daemons and Spark count the same differences of the same kinds, before full-sync's repairs
    and after them."""
    for url, objects in zip((pair.left, pair.right), differing_objects(BUCKET), strict=True):
        pair.put(url, objects, b"daemons")
    admin = AdminClient(pair.admin)
    [peer] = admin.get("/admin/fullsync")["peers"]

    def checked() -> dict[str, int]:
        begun = admin.post("/admin/fullsync/run", {"peer": peer["name"], "kind": "all", "by": "test"})
        deadline = time.monotonic() + 120
        while True:
            status = admin.get("/admin/fullsync")
            ended = [one for one in status["peers"][0]["results"] if one["began_ms"] >= begun["at_ms"]]
            if status["running"] is None and ended:
                assert ended[-1]["verdict"] in ("differing", "repaired"), ended[-1]
                return dict(ended[-1]["differences"])
            assert time.monotonic() < deadline
            time.sleep(0.2)

    def found(run_id: str) -> dict[str, int]:
        run(spark, pair.left, pair.right, options(tmp_path, run_id, full=True))
        i_spark_sum(RunDirectory(str(tmp_path), run_id))
        return dict(Counter(f"{kind}@{side}" for verdict, kind, side in diverged_rows(run_id) if verdict == "diverged"))

    def diverged_rows(run_id: str) -> list[tuple[str, str, str]]:
        rows = read_findings(tmp_path / f"run_id={run_id}" / "findings", ("verdict", "difference", "side"))
        return [(row["verdict"], row["difference"], row["side"]) for row in rows]

    first = found("first")
    assert set(first) >= {f"{kind}@{side}" for _, kind, side in TRUTH.values()}
    assert checked() == first
    deadline = time.monotonic() + 60
    while "missing@sink" in (left := found(f"after-{time.monotonic():.0f}")):
        assert time.monotonic() < deadline, "never: what full-sync queued arrives"
    assert left == checked()
