"""Other batch jobs: what is in a cluster, copies of it as Parquet, and trees built anew to be held against the nodes'.

Each is some lines over `format("isthmus")`, as a library call and as `isthmus reconcile VERB`; what the columns mean
stands in `rows`. `trees` is a proof of the daemons' work by other means: Spark hashes every key row and adds up the
leaves, and what the nodes answer must be the same.
"""

from __future__ import annotations

from time import time
from typing import Final

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from aae.reconcile.looks import SideSpec, leaves_of
from aae.tree import BRANCH_COUNT, LEAF_COUNT, differing
from repl.model.entry import leaf
from repl.model.keys import SEGMENT_COUNT

DAY_S: Final = 86_400
AGES: Final = (("hour", 3_600), ("day", DAY_S), ("week", 7 * DAY_S), ("month", 30 * DAY_S), ("year", 365 * DAY_S))
"""Upper ends of the classes of age; what is older is in the last one."""

EXPORTED: Final = "bucket_type,bucket,key,last_modified,object"
BRANCHES_AT_ONCE: Final = 256


def read(spark: SparkSession, urls: str, bucket_type: str, bucket: str = "", **more: str) -> DataFrame:
    """A view of a cluster."""
    options = {"urls": urls, "bucket_type": bucket_type, **more} | ({"bucket": bucket} if bucket else {})
    return spark.read.format("isthmus").options(**options).load()


def export_objects(spark: SparkSession, urls: str, bucket_type: str, bucket: str, path: str) -> int:
    """Write all objects with their clocks, tombstones too, as Parquet; how many. A directory that is there is refused.
    A damaged row fails the job: a copy without it would look whole."""
    rows = read(spark, urls, bucket_type, bucket, view="objects", columns=f"{EXPORTED},fault")
    damaged = F.raise_error(F.concat(F.lit("damaged: "), F.col("fault")))
    sound = rows.withColumn("object", F.when(F.col("fault").isNotNull(), damaged).otherwise(F.col("object")))
    sound.drop("fault").write.mode("errorifexists").parquet(path)
    return int(spark.read.parquet(path).count())


def import_objects(spark: SparkSession, path: str, urls: str) -> int:
    """Push an export into a cluster, clocks as they are; how many rows. Twice is as good as once."""
    rows = spark.read.parquet(path).select("bucket_type", "bucket", "key", "object")
    rows.write.format("isthmus").mode("append").option("urls", urls).save()
    return int(rows.count())


def stats(spark: SparkSession, urls: str, bucket_type: str, bucket: str = "") -> DataFrame:
    """A row a bucket: live objects, tombstones, damaged rows, bytes, siblings, and how many live ones are how old."""
    rows = read(
        spark, urls, bucket_type, bucket, columns="bucket,last_modified,size,siblings,tombstone,fault"
    )  # fmt: skip
    live = ~F.col("tombstone") & F.col("fault").isNull()
    age_s = F.lit(int(time())) - F.unix_timestamp("last_modified")
    ages = []
    low = None
    for name, high in (*AGES, ("older", None)):
        within = live if high is None else live & (age_s < high)
        within = within if low is None else within & (age_s >= low)
        ages.append(F.count_if(within).alias(f"age_{name}"))
        low = high
    return rows.groupBy("bucket").agg(
        F.count_if(live).alias("objects"),
        F.count_if("tombstone").alias("tombstones"),
        F.count_if(F.col("fault").isNotNull()).alias("damaged"),
        F.coalesce(F.sum(F.when(live, F.col("size"))), F.lit(0)).alias("bytes"),
        F.coalesce(F.sum(F.when(live, F.col("siblings"))), F.lit(0)).alias("siblings"),
        F.coalesce(F.max(F.when(live, F.col("siblings"))), F.lit(0)).alias("siblings_max"),
        *ages,
    )


def trees(spark: SparkSession, urls: str, bucket_type: str) -> list[int]:
    """Segments whose leaf, built by Spark from the key rows, is not what the nodes answer; none when all are the same.
    Under writes, those that were written between the two. Raises PeerFault."""
    rows = read(spark, urls, bucket_type, columns="bucket,key,clock,object_hash,segment,tombstone,fault")
    hashed = F.arrow_udf(_leaves, "bigint")("bucket", "key", "clock", "object_hash", "tombstone", "fault")
    built = rows.select("segment", hashed.alias("leaf")).groupBy("segment").agg(F.bit_xor("leaf").alias("leaf"))
    mine = np.zeros(SEGMENT_COUNT, dtype=np.int64)
    for row in built.where("leaf != 0").toLocalIterator():
        mine[row["segment"]] = row["leaf"]
    side = SideSpec(tuple(urls.split(",")), bucket_type)
    found: list[int] = []
    for first in range(0, BRANCH_COUNT, BRANCHES_AT_ONCE):
        theirs = leaves_of(side, range(first, first + BRANCHES_AT_ONCE))
        start = first * LEAF_COUNT
        ours = mine[start : start + len(theirs)].view(np.uint64)
        found += [start + at for at in differing(ours, theirs)]
    return found


def _leaves(
    bucket: pa.Array, key: pa.Array, clock: pa.Array, object_hash: pa.Array, tombstone: pa.Array, fault: pa.Array
) -> pa.Array:
    """In a task: what each row adds to the leaf of its segment; nothing of one that cannot be read."""
    columns = (bucket, key, clock, object_hash, tombstone, fault)
    rows = zip(*(column.to_pylist() for column in columns), strict=True)
    hashes = [
        0 if wrong is not None else leaf(place, name, seen, hash64 & (1 << 64) - 1, tombstone=dead)
        for place, name, seen, hash64, dead, wrong in rows
    ]
    return pa.array(np.array(hashes, dtype=np.uint64).view(np.int64))
