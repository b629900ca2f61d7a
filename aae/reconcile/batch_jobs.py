"""Smaller batch jobs: statistics of buckets, and trees built from rows or an export to compare with the nodes'
trees."""

from __future__ import annotations

from collections.abc import Mapping
from time import time
from typing import Any, Final

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from isthmus.aae.reconcile.compare_range import SideSpec, leaves_of
from isthmus.aae.reconcile.options import parse_options
from isthmus.aae.trees.tree import BRANCH_COUNT, LEAF_BITS, LEAF_COUNT, differing
from isthmus.repl.model.entry import leaf
from isthmus.repl.model.errors import BadInput
from isthmus.repl.model.keys import SEGMENT_COUNT, key_hash, segment_of
from isthmus.repl.model.objects import summarize_encoded

DAY_S: Final = 86_400
AGES: Final = (("hour", 3_600), ("day", DAY_S), ("week", 7 * DAY_S), ("month", 30 * DAY_S), ("year", 365 * DAY_S))
"""Upper ends of the age classes; the last class has all older objects."""

BRANCHES_AT_ONCE: Final = 256

NO_OPTIONS: Final[Mapping[str, str]] = {}


def read(
    spark: SparkSession,
    urls: str,
    bucket_type: str,
    bucket: str = "",
    options: Mapping[str, str] = NO_OPTIONS,
    **more: str,
) -> DataFrame:
    """A view of a cluster as a DataFrame."""
    return spark.read.format("isthmus").options(**source_options(urls, bucket_type, bucket, options, **more)).load()


def source_options(
    urls: str, bucket_type: str, bucket: str = "", options: Mapping[str, str] = NO_OPTIONS, **more: str
) -> dict[str, str]:
    """The options of a read, validated before Spark starts. Raises BadInput."""
    found = {"urls": urls, "bucket_type": bucket_type, **options, **more} | ({"bucket": bucket} if bucket else {})
    parse_options(found)
    return found


def stats(
    spark: SparkSession, urls: str, bucket_type: str, bucket: str = "", options: Mapping[str, str] = NO_OPTIONS
) -> DataFrame:
    """One row per bucket: live objects, tombstones and damaged rows; of live objects bytes, siblings, how many have
    several, and a histogram of age."""
    columns = "bucket,last_modified,size,siblings,tombstone,fault"
    rows = read(spark, urls, bucket_type, bucket, options, columns=columns)
    live = ~F.col("tombstone") & F.col("fault").isNull()
    age_s = F.lit(int(time())) - F.unix_timestamp("last_modified")
    ages = []
    low = None
    for name, high in (*AGES, ("older", None)):
        within = live if high is None else live & (age_s < high)
        within = within if low is None else within & (age_s >= low)
        ages.append(F.count_if(within).alias(f"age_{name}"))
        low = high
    size, siblings = F.when(live, F.col("size")), F.when(live, F.col("siblings"))
    return rows.groupBy("bucket").agg(
        F.count_if(live).alias("objects"),
        F.count_if("tombstone").alias("tombstones"),
        F.count_if(F.col("fault").isNotNull()).alias("damaged"),
        F.coalesce(F.sum(size), F.lit(0)).alias("bytes"),
        F.coalesce(F.max(size), F.lit(0)).alias("bytes_max"),
        F.coalesce(F.sum(siblings), F.lit(0)).alias("siblings"),
        F.coalesce(F.max(siblings), F.lit(0)).alias("siblings_max"),
        F.count_if(siblings > 1).alias("with_siblings"),
        *ages,
    )


def trees(
    spark: SparkSession,
    urls: str,
    bucket_type: str,
    options: Mapping[str, str] = NO_OPTIONS,
    export: str = "",
) -> list[int]:
    """Segments whose leaf, built by Spark from key rows or from an export, differs from the nodes' trees. Includes
    segments written between both reads. Raises BadInput, PeerFault."""
    wanted = parse_options(source_options(urls, bucket_type, "", options))
    if wanted.bucket or wanted.modified_since_ms or wanted.modified_before_ms:
        raise BadInput("a tree has all keys of its segments: of buckets and times there is none; segments there are")
    if export:
        built = _of_objects(spark.read.parquet(export).where(F.col("bucket_type") == bucket_type))
    else:
        columns = "bucket,key,clock,object_hash,segment,tombstone,fault"
        rows = read(spark, urls, bucket_type, "", options, columns=columns)
        hashed = F.arrow_udf(_leaves, "bigint")("bucket", "key", "clock", "object_hash", "tombstone", "fault")
        built = rows.select("segment", hashed.alias("leaf"))
    first, end = wanted.segments
    inside = built.where((F.col("segment") >= first) & (F.col("segment") < end))
    mine = np.zeros(SEGMENT_COUNT, dtype=np.int64)
    for row in inside.groupBy("segment").agg(F.bit_xor("leaf").alias("leaf")).where("leaf != 0").toLocalIterator():
        mine[row["segment"]] = row["leaf"]
    side = SideSpec(wanted.urls, bucket_type, *wanted.credentials[:2])._replace(
        certificate_file=wanted.credentials.certificate_file, key_file=wanted.credentials.key_file
    )
    return [one for one in _differing(side, mine, first, end) if first <= one < end]


def _differing(side: SideSpec, mine: Any, first: int, end: int) -> list[int]:
    found: list[int] = []
    branches = range(first >> LEAF_BITS, min(BRANCH_COUNT, -(-end // LEAF_COUNT)))
    for at in range(branches.start, branches.stop, BRANCHES_AT_ONCE):
        theirs = leaves_of(side, range(at, min(at + BRANCHES_AT_ONCE, branches.stop)))
        start = at * LEAF_COUNT
        ours = mine[start : start + len(theirs)].view(np.uint64)
        found += [start + place for place in differing(ours, theirs)]
    return found


def _of_objects(rows: DataFrame) -> DataFrame:
    """(segment, leaf contribution) of exported objects, from their bytes alone."""
    made = F.arrow_udf(_exported_leaves, "struct<segment:int, leaf:bigint>")("bucket", "key", "object")
    return rows.select(made.alias("made")).select("made.segment", "made.leaf")


def _leaves(
    bucket: pa.Array, key: pa.Array, clock: pa.Array, object_hash: pa.Array, tombstone: pa.Array, fault: pa.Array
) -> pa.Array:
    """In a task: leaf contribution of each row; 0 for rows that cannot be decoded."""
    columns = (bucket, key, clock, object_hash, tombstone, fault)
    rows = zip(*(column.to_pylist() for column in columns), strict=True)
    hashes = [
        0 if wrong is not None else leaf(place, name, seen, hash64 & (1 << 64) - 1, tombstone=dead)
        for place, name, seen, hash64, dead, wrong in rows
    ]
    return pa.array(np.array(hashes, dtype=np.uint64).view(np.int64))


def _exported_leaves(bucket: pa.Array, key: pa.Array, data: pa.Array) -> pa.Array:
    """In a task: (segment, leaf contribution) of each object. Raises CodecError."""
    segments, hashes = [], []
    for place, name, one in zip(bucket.to_pylist(), key.to_pylist(), data.to_pylist(), strict=True):
        summary = summarize_encoded(one)
        segments.append(segment_of(key_hash(place, name)))
        hashes.append(leaf(place, name, summary.clock, summary.hash64, tombstone=summary.tombstone))
    arrays = [pa.array(segments, pa.int32()), pa.array(np.array(hashes, dtype=np.uint64).view(np.int64))]
    return pa.StructArray.from_arrays(arrays, ["segment", "leaf"])
