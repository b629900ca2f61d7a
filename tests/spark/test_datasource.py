"""`format("isthmus")` on a real engine against real nodes: tables and streams have the cluster's data.

One session for all tests that need none of their own. Spark gives a stream's Python worker ten seconds to come up,
which no setting changes; on a busy machine that is too little at times, and a query is restarted, as a user would: its
checkpoint loses nothing.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgpack
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import functions as F

from isthmus.aae.reconcile.spark_session import session
from isthmus.aae.reconcile.stream_reader import lag
from isthmus.aae.run_directory import read_manifest
from isthmus.node.local import directory as places
from isthmus.repl.http.client import HttpPeer
from tests.spark.engine import REPOSITORY, environment, wait_until
from tests.support.reconcile_pairs import up

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1_200)]

COUNT: Final = 5_000
STARTS: Final = 5
"""Attempts to start a query before a worker that does not start counts as a fault."""

TOPOLOGY: Final = """\
[clusters.a.replication]
factor = 2
partitions = 4
[[clusters.a.nodes]]
name = "a1"
[[clusters.a.nodes]]
name = "a2"
"""


class LiveCluster:
    """A cluster of two nodes with COUNT keys of bucket `w`."""

    def __init__(self, directory: Path, described: dict[str, Any]) -> None:
        self.directory = directory
        self.nodes: list[dict[str, Any]] = described["clusters"]["a"]["nodes"]
        self.urls = ",".join(node["http"] for node in self.nodes)
        self.put(b"w", range(COUNT))

    def put(self, bucket: bytes, numbers: range) -> None:
        """New versions of these keys."""
        items = [[b"default", bucket, b"k%05d" % n, b"v%d" % n] for n in numbers]
        peer = HttpPeer(self.nodes[0]["http"], 1)
        for at in range(0, len(items), 1_000):
            body = msgpack.packb(items[at : at + 1_000])
            answer = peer.post(
                "/batch/put", body, media_type="application/msgpack", timeout_ms=60_000, limit_bytes=10**7
            )
            assert all(status == 204 for status, *_ in msgpack.unpackb(answer))
        peer.abort()


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveCluster]:
    """The cluster."""
    directory = tmp_path_factory.mktemp("live")
    with up(directory, TOPOLOGY) as described:
        yield LiveCluster(directory / "d", described)


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    """One session for all tests."""
    made = session("tests", "local[2]")
    yield made
    made.stop()


def test_rows_read_match_the_cluster(spark: Any, live: LiveCluster, tmp_path: Path) -> None:
    """Keys, hashes, filters, consistency and splits: all counts are those of the cluster, and the manifest of the
    latest read is of that read alone."""

    def read(**options: str) -> Any:
        return spark.read.format("isthmus").options(urls=live.urls, **options).load().filter("bucket = X'77'")

    keys = read(manifest=str(tmp_path / "manifest"))
    assert keys.count() == COUNT
    pieces, missing = read_manifest(tmp_path / "manifest")
    assert (sum(piece.rows for piece in pieces), missing) == (COUNT, [])
    assert keys.filter("key = 'none'").count() == 0
    assert keys.select("bucket", "key").distinct().count() == COUNT
    assert keys.filter("clock_hash = xxhash64(clock)").count() == COUNT
    part = read(segments="1000-500000", manifest=str(tmp_path / "part"))
    first = part.count()
    assert 0 < first < COUNT
    assert keys.filter("segment >= 1000 and segment < 500000").count() == first
    pieces, _ = read_manifest(tmp_path / "part")
    assert sum(piece.rows for piece in pieces) == first
    assert all(1_000 <= piece.first < piece.end <= 500_000 for piece in pieces)
    assert read(bucket="w", prefix="k0001").count() == 10
    assert read(consistency="committed", splits="9").count() == COUNT
    objects = read(view="objects", columns="bucket,key,value")
    number = "cast(cast(substring(cast(key as string), 2) as int) as string)"
    assert objects.filter(f"cast(value as string) = concat('v', {number})").count() == COUNT


@pytest.mark.parametrize("pushdown", ["false", "true"])
def test_a_table_that_was_filtered_is_whole_in_later_actions(
    spark: Any, live: LiveCluster, pushdown: str, tmp_path: Path
) -> None:
    """Filters of earlier actions on a table do not affect later ones, with Spark's filter push-down on and off: counts,
    filters, unions, self-joins, caches and views have the rows of their own query."""
    first, second = f"one-{pushdown}", f"two-{pushdown}"
    live.put(first.encode(), range(60))
    live.put(second.encode(), range(20))
    in_first, in_second = (f"bucket = X'{name.encode().hex()}'" for name in (first, second))
    name = "spark.sql.python.filterPushdown.enabled"
    assert spark.conf.get(name) == "false", "it is the session's own, and register() leaves it alone"
    spark.conf.set(name, pushdown)
    try:
        keys = spark.read.format("isthmus").options(urls=live.urls).load()
        every = keys.count()
        one, two = keys.filter(in_first), keys.filter(in_second)
        assert (one.count(), two.count(), keys.count()) == (60, 20, every)
        assert one.union(two).count() == 80
        assert keys.union(keys).count() == 2 * every
        assert one.join(two, "key").count() == 20
        assert one.alias("a").join(keys.alias("b"), F.expr(f"a.key = b.key and b.{in_second}")).count() == 20
        low, high = keys.filter("segment < 500000"), keys.filter("segment >= 500000")
        assert low.count() + high.count() == low.union(high).count() == every
        late = keys.filter("last_modified > timestamp'2100-01-01'")
        assert (late.count(), keys.count()) == (0, every)
        kept = two.cache()
        assert (kept.count(), one.count(), keys.count(), kept.count()) == (20, 60, every, 20)
        kept.unpersist()
        keys.createOrReplaceTempView("every_key")
        sql = f"select (select count(*) from every_key where {in_first}), (select count(*) from every_key)"
        assert tuple(spark.sql(sql).first()) == (60, every)
        one.write.parquet(str(tmp_path / "one"))
        keys.write.parquet(str(tmp_path / "keys"))
        assert spark.read.parquet(str(tmp_path / "one")).count() == 60
        assert spark.read.parquet(str(tmp_path / "keys")).count() == every
        live.put(second.encode(), range(20, 25))
        assert (two.count(), keys.count()) == (25, every + 5), "a table shows the cluster as it is at each action"
    finally:
        spark.conf.set(name, "false")


def completes(table: Any, directory: Path, name: str) -> bool:
    """Whether a query finished, into a table of its own; False when Spark timed out on its own worker."""
    query = (
        table.writeStream.format("parquet").option("path", str(directory / name))
        .option("checkpointLocation", str(directory / f"checkpoint-{name}")).trigger(availableNow=True).start()
    )  # fmt: skip
    try:
        query.awaitTermination()
    except PySparkException as error:
        if "connect back" not in str(error):
            raise
        return False
    return True


@pytest.mark.parametrize("pushdown", ["false", "true"])
def test_streams_of_one_table_do_not_share_their_filters(
    spark: Any, live: LiveCluster, pushdown: str, tmp_path: Path
) -> None:
    """Two queries begun from one table, with a filter and without: each has its own rows."""
    first, second = f"st1-{pushdown}", f"st2-{pushdown}"
    live.put(first.encode(), range(30))
    live.put(second.encode(), range(10))
    in_first, in_second = (f"bucket = X'{name.encode().hex()}'" for name in (first, second))
    spark.conf.set("spark.sql.python.filterPushdown.enabled", pushdown)
    try:
        changes = spark.readStream.format("isthmus").options(urls=live.urls).load()
        tables = {"a": changes.filter(in_first), "b": changes.filter(in_second), "c": changes}
        for name, table in tables.items():
            assert any(completes(table, tmp_path, name) for _ in range(STARTS)), "Spark never had its worker up"
        found = {name: spark.read.parquet(str(tmp_path / name)) for name in tables}
        assert (found["a"].count(), found["b"].count()) == (30, 10)
        assert found["c"].filter(f"{in_first} or {in_second}").count() == 40
    finally:
        spark.conf.set("spark.sql.python.filterPushdown.enabled", "false")


def test_a_query_reports_how_far_it_is_behind(spark: Any, live: LiveCluster, tmp_path: Path) -> None:
    """The query's progress has its lag, batch by batch: less from one to the next, and zero at the end."""
    changes = spark.readStream.format("isthmus").options(urls=live.urls, rows_per_batch=str(COUNT // 2)).load()
    queries: list[Any] = []

    def ended() -> bool:
        queries.append(
            changes.writeStream.format("parquet").option("path", str(tmp_path / "keys"))
            .option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
        )  # fmt: skip
        try:
            queries[-1].awaitTermination()
        except PySparkException as error:
            if "connect back" not in str(error):
                raise
            return False
        return True

    assert any(ended() for _ in range(STARTS)), "Spark never had its worker up"
    found = [lag(progress) for query in queries for progress in query.recentProgress]
    behind = [one.changes for one in found if one is not None]
    assert len(behind) >= 2
    assert behind == sorted(behind, reverse=True)
    assert behind[0] >= COUNT // 2
    assert behind[-1] == 0
    last = lag(queries[-1])
    assert last is not None
    assert set(last.partitions) == {0, 1, 2, 3}


def test_a_manifest_is_of_one_action(spark: Any, live: LiveCluster, tmp_path: Path) -> None:
    """Two actions on one table have a manifest each, and a self-join lists the table twice."""
    keys = spark.read.format("isthmus").options(urls=live.urls, bucket="w", manifest=str(tmp_path)).load()
    keys.count()
    before = read_manifest(tmp_path)[0]
    live.put(b"w", range(COUNT))
    keys.count()
    after = read_manifest(tmp_path)[0]
    assert sum(piece.rows for piece in before) == sum(piece.rows for piece in after) == COUNT
    assert max(piece.offset for piece in before) < max(piece.offset for piece in after)
    assert len(list(tmp_path.glob("read=*/action=*"))) == 2
    assert keys.union(keys).count() == 2 * COUNT
    assert sum(piece.rows for piece in read_manifest(tmp_path)[0]) == 2 * COUNT


def test_tables_in_the_catalog_keep_their_options(spark: Any, live: LiveCluster, tmp_path: Path) -> None:
    """A table that CREATE TABLE makes with options is read and written by SQL and by DataFrames that give none; its
    rows replace those of their keys if its options ask for it. An unusable CREATE TABLE is refused and leaves no table;
    a table made with columns, or by saveAsTable, takes its options where it is used; a temporary view keeps them."""
    before = {table.name for table in spark.catalog.listTables()}
    for statement, words in (
        ("CREATE TABLE refused USING isthmus", "option urls is missing"),
        (f"CREATE TABLE refused USING isthmus OPTIONS (urls '{live.urls}', bukcet 'w')", "did you mean bucket"),
        (f"CREATE TABLE refused USING isthmus TBLPROPERTIES (urls '{live.urls}')", "option urls is missing"),
        (f"CREATE TABLE refused USING isthmus OPTIONS (urls '{live.urls}') AS SELECT 'w' bucket", "AS SELECT"),
        ("CREATE TABLE refused USING isthmus OPTIONS (view 'findings', path '/x')", "CREATE TEMPORARY VIEW"),
    ):
        with pytest.raises(PySparkException, match=words):
            spark.sql(statement).collect()
    assert {table.name for table in spark.catalog.listTables()} == before
    spark.sql(f"CREATE TEMPORARY VIEW seen USING isthmus OPTIONS (urls '{live.urls}', bucket 'w')")
    assert spark.sql("SELECT count(*) FROM seen").first()[0] == COUNT
    options = {"urls": live.urls, "bucket": "sql", "columns": "bucket,key,value", "text": "true"}
    try:
        named = ", ".join(f"{name} '{value}'" for name, value in options.items())
        spark.sql(f"CREATE TABLE towns USING isthmus OPTIONS ({named}, on_conflict 'replace')")
        spark.sql("INSERT INTO towns VALUES ('sql', 'corinth', '1'), ('sql', 'athens', '1')")
        rows = spark.createDataFrame(
            [("sql", "corinth", "2"), ("sql", "sparta", "2")], "bucket string, key string, value string"
        )
        rows.write.format("isthmus").mode("append").saveAsTable("towns")
        rows.write.insertInto("towns")
        kept = {row["key"]: row["value"] for row in spark.sql("SELECT key, value FROM towns").collect()}
        assert kept == {"corinth": "2", "athens": "1", "sparta": "2"}
        siblings = spark.read.format("isthmus").options(urls=live.urls, bucket="sql", columns="siblings").load()
        assert {row["siblings"] for row in siblings.collect()} == {1}
        with pytest.raises(PySparkException, match="on_conflict = replace"):
            spark.sql("INSERT OVERWRITE towns VALUES ('sql', 'corinth', '3')")
        assert spark.read.options(bucket="w").table("towns").count() == COUNT
        rows.write.format("isthmus").mode("append").options(urls=live.urls).saveAsTable("made")
        with pytest.raises(PySparkException, match=r"spark\.read\.options\(urls="):
            spark.table("made").count()
        assert spark.read.options(urls=live.urls, bucket="sql").table("made").count() == 3
        found = spark.sql(f"SELECT count(*) FROM made WITH (urls = '{live.urls}', bucket = 'sql')")
        assert found.first()[0] == 3
    finally:
        for name in ("towns", "made"):
            spark.sql(f"DROP TABLE IF EXISTS {name}")


def test_written_rows_keep_their_clocks_or_get_new_ones(spark: Any, live: LiveCluster, tmp_path: Path) -> None:
    """Pushing rows that were read changes nothing, not even clocks; a table of values becomes new objects."""
    read = spark.read.format("isthmus").options(urls=live.urls, bucket="w")
    read.options(view="objects", columns="bucket,key,object,clock").load().write.parquet(str(tmp_path / "x"))
    saved = spark.read.parquet(str(tmp_path / "x"))
    saved.write.format("isthmus").mode("append").options(urls=live.urls, origin="00" * 16).save()
    assert read.options(view="keys", columns="key,clock").load().join(saved, ["key", "clock"]).count() == COUNT
    text = F.col("id").cast("string")
    fresh = spark.range(100).select(F.lit("n").alias("bucket"), text.alias("key"), text.cast("binary").alias("value"))
    fresh.write.format("isthmus").mode("append").options(urls=live.urls).save()
    new = spark.read.format("isthmus").options(urls=live.urls, bucket="n", view="objects", columns="key,value").load()
    assert new.filter("key = value").count() == 100


STREAM: Final = """\
import sys
from isthmus.aae.reconcile.spark_session import session
spark = session("stream", "local[2]")
urls, lake = sys.argv[1:]
query = (
    spark.readStream.format("isthmus").options(urls=urls, rows_per_batch="2000").load().filter("bucket = X'73'")
    .writeStream.format("parquet").option("path", lake + "/keys").option("checkpointLocation", lake + "/checkpoint")
    .trigger(availableNow=True).start()
)
query.awaitTermination()
"""


def streaming(live: LiveCluster, lake: Path) -> subprocess.Popen[str]:
    """The query, under way in a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-c", STREAM, live.urls, str(lake)],
        env=environment(PYTHONPATH=str(REPOSITORY)), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip


def to_its_end(live: LiveCluster, lake: Path) -> None:
    """The query until it has all that is there, started again when Spark lost patience with its own worker."""
    for left in reversed(range(STARTS)):
        process = streaming(live, lake)
        _, err = process.communicate(timeout=400)
        if process.returncode == 0:
            return
        assert left, err[-4_000:]
        assert "connect back" in err, err[-4_000:]


def test_a_stream_goes_on_from_its_checkpoint_after_its_driver_was_killed(
    spark: Any, live: LiveCluster, tmp_path: Path
) -> None:
    """A query whose driver is killed with SIGKILL between two batches is restarted and finishes with every key once;
    the next run reads only what was written since."""
    live.put(b"s", range(2_000))
    lake = tmp_path / "lake"
    commits = lake / "checkpoint" / "commits"

    def batches() -> list[str]:
        return sorted(path.name for path in commits.glob("[0-9]*")) if commits.exists() else []

    process = streaming(live, lake)
    try:
        wait_until("a batch is done", lambda: batches() or process.poll() is not None, 300)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
    killed_after = len(batches())
    to_its_end(live, lake)
    assert len(batches()) > killed_after
    table = spark.read.parquet(str(lake / "keys"))
    assert (table.count(), table.select("key").distinct().count()) == (2_000, 2_000)
    live.put(b"s", range(1_990, 2_010))
    to_its_end(live, lake)
    table = spark.read.parquet(str(lake / "keys"))
    assert (table.count(), table.select("key").distinct().count()) == (2_020, 2_010)


def test_a_read_is_whole_though_a_node_dies(spark: Any, live: LiveCluster) -> None:
    """Every partition has another replica: with one of two nodes killed a running read, and a new one, have every key
    once."""
    slow = spark.read.format("isthmus").options(urls=live.urls, bucket="w", rows_per_second="1500", columns="key")
    counted: list[int] = []
    thread = threading.Thread(target=lambda: counted.append(slow.load().distinct().count()))
    thread.start()
    time.sleep(2)
    places.stop_node(live.directory, "a2", kill=True)
    thread.join(300)
    assert counted == [COUNT]
    assert spark.read.format("isthmus").options(urls=live.urls, bucket="w").load().count() == COUNT
    with pytest.raises(PySparkException, match="bucket_type"):
        spark.read.format("isthmus").options(urls=live.urls, bucket_type="none").load().count()
