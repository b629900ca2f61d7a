"""`writeStream.format("isthmus")` on a real engine, from one real cluster into another: the target has the source's
objects, and a micro-batch that is written again leaves no trace."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from pyspark.errors import PySparkException

from isthmus.aae.reconcile.spark_session import session
from tests.spark.engine import end_driver, wait_until
from tests.support.reconcile_pairs import ClusterPair, made, up

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1_200)]

STARTS: Final = 5
"""Attempts to run a query: Spark gives a stream's Python worker ten seconds to start, which no setting changes."""

OBJECTS: Final = "bucket_type,bucket,key,object"


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterPair]:
    """Two clusters."""
    with up(tmp_path_factory.mktemp("pair")) as described:
        yield ClusterPair(described)


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What Spark's driver logs."""
    return tmp_path_factory.mktemp("log") / "spark.log"


@pytest.fixture(scope="module")
def spark(log: Path) -> Iterator[Any]:
    """One session for all tests."""
    end_driver()
    found = session("tests", "local[2]", log=log)
    yield found
    found.stop()


def run(table: Any, checkpoint: Path, mode: str = "append", **options: str) -> Any:
    """Run a query to its end, and return it."""
    for left in reversed(range(STARTS)):
        query = (
            table.writeStream.format("isthmus").options(**options).option("checkpointLocation", str(checkpoint))
            .outputMode(mode).trigger(availableNow=True).start()
        )  # fmt: skip
        try:
            query.awaitTermination()
        except PySparkException as error:
            if "connect back" not in str(error) or not left:
                raise
            continue
        return query
    raise AssertionError("unreachable")


def forget_newest_batch(checkpoint: Path) -> None:
    """The checkpoint of a driver that failed after a batch was written, before the checkpoint said so."""
    newest = max((path for path in (checkpoint / "commits").glob("[0-9]*")), key=lambda path: int(path.name))
    newest.unlink()
    newest.with_name(f".{newest.name}.crc").unlink()


def rows(spark: Any, url: str, bucket: str, columns: str) -> set[tuple[Any, ...]]:
    """A bucket's rows."""
    read = spark.read.format("isthmus").options(urls=url, bucket=bucket, columns=columns, text="true").load()
    found = [tuple(row) for row in read.collect()]
    assert len(set(found)) == len(found)
    return set(found)


def test_a_stream_keeps_another_cluster_equal(spark: Any, pair: ClusterPair, tmp_path: Path) -> None:
    """Objects of one cluster are written to another with their clocks, deletions and siblings included; the next run
    writes only what has changed since, and a batch that is written again changes nothing."""
    pair.put(pair.left, {b"k%d" % n: made("v", a=1 + n % 3) for n in range(300)}, b"lake")
    pair.put(pair.left, {b"gone": made("", dead=True)}, b"lake")
    changes = spark.readStream.format("isthmus").options(urls=pair.left, view="objects", columns=OBJECTS).load()
    checkpoint = tmp_path / "checkpoint"
    columns = "key,clock,object_hash,tombstone"
    run(changes, checkpoint, urls=pair.right)
    assert len(rows(spark, pair.left, "lake", columns)) == 301
    assert rows(spark, pair.right, "lake", columns) == rows(spark, pair.left, "lake", columns)
    pair.put(pair.left, {b"k1": made("new", a=4), b"k2": made("", a=4, dead=True)}, b"lake")
    query = run(changes, checkpoint, urls=pair.right)
    assert sum(one["numInputRows"] for one in query.recentProgress) == 2
    forget_newest_batch(checkpoint)
    query = run(changes, checkpoint, urls=pair.right)
    assert sum(one["numInputRows"] for one in query.recentProgress) == 2
    assert rows(spark, pair.right, "lake", columns) == rows(spark, pair.left, "lake", columns)


@pytest.mark.parametrize("on_conflict", ["sibling", "replace"])
def test_a_batch_of_values_that_is_written_again_is_written_once(
    spark: Any, pair: ClusterPair, tmp_path: Path, on_conflict: str
) -> None:
    """A batch of new writes that Spark writes again, since its checkpoint does not have the batch's end, leaves neither
    siblings nor new versions; the next batch is written."""
    bucket = f"new-{on_conflict}"
    lines = tmp_path / "lines"
    lines.mkdir()
    (lines / "1.csv").write_text("".join(f"{bucket},k{n},v{n}\n" for n in range(100)))
    table = spark.readStream.schema("bucket string, key string, value string").csv(str(lines))
    checkpoint = tmp_path / "checkpoint"
    options = {"urls": pair.right, "on_conflict": on_conflict}
    columns = "key,clock,siblings,value"
    run(table, checkpoint, **options)
    first = rows(spark, pair.right, bucket, columns)
    assert {(row[0], row[2], row[3]) for row in first} == {(f"k{n}", 1, f"v{n}") for n in range(100)}
    forget_newest_batch(checkpoint)
    query = run(table, checkpoint, **options)
    assert sum(one["numInputRows"] for one in query.recentProgress) == 100, "the batch was written again"
    assert rows(spark, pair.right, bucket, columns) == first
    (lines / "2.csv").write_text(f"{bucket},k0,again\n")
    run(table, checkpoint, **options)
    (found,) = (row for row in rows(spark, pair.right, bucket, columns) if row[0] == "k0")
    assert found[2] == (2 if on_conflict == "sibling" else 1)


def test_what_a_query_cannot_do_is_refused(spark: Any, pair: ClusterPair, tmp_path: Path) -> None:
    """A misspelled option, and the output mode that would empty the table with each batch, end the query with what
    would be right, and write nothing."""
    changes = spark.readStream.format("isthmus").options(urls=pair.left).load()
    with pytest.raises(PySparkException, match="option origi is unknown, did you mean origin"):
        run(changes, tmp_path / "a", urls=pair.right, origi="00" * 16)
    counts = changes.groupBy("bucket").count().selectExpr("bucket", "bucket key", "cast(count as string) value")
    with pytest.raises(PySparkException, match=r"outputMode\(\"complete\"\) would empty the table"):
        run(counts, tmp_path / "b", mode="complete", urls=pair.right)


def test_rows_that_were_not_written_are_named_in_the_log(
    spark: Any, log: Path, pair: ClusterPair, tmp_path: Path
) -> None:
    """With rejected = count a batch writes its other rows, and the driver's log has the number and the reason."""
    (tmp_path / "lines").mkdir()
    (tmp_path / "lines" / "1.csv").write_text("named,k,v\nnamed,,v\n")
    table = spark.readStream.schema("bucket string, key string, value string").csv(str(tmp_path / "lines"))
    run(table, tmp_path / "checkpoint", urls=pair.right, rejected="count")
    assert {row[0] for row in rows(spark, pair.right, "named", "key")} == {"k"}
    words = "isthmus: batch 0: 1 rows were rejected and not written: a row has no key"
    wait_until("the log has the row that was rejected", lambda: words in log.read_text(), 30)
