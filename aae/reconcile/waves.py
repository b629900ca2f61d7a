"""A wave of chunks: who looks at them, Spark's tasks or the driver itself, and what they leave on disk.

Either leaves the same rows in the same place. A job costs Spark a second before its first row, and the first one of a
session several; what trees have narrowed to some thousand rows is read in less, so the driver does that in threads of
its own. What a look is stands in `compare_tasks`, the order of waves in `job`.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from isthmus.aae.reconcile.compare_tasks import FIRST_ROW, SECOND_ROW, Job, encode_chunk, first_looks, second_looks
from isthmus.aae.reconcile.run_directory import ChunkResult, RunDirectory, SegmentChunk, standing
from isthmus.aae.reconcile.segment_report import counts_of, few, payloads_of
from isthmus.aae.reconcile.spark_errors import trouble_of

OWN_ROWS: Final = 50_000
"""Rows of a side, about, that the driver reads in a wave by itself: no more than a task has at once."""

OWN_CHUNKS: Final = 64
"""Chunks likewise, each some questions."""

OWN_THREADS: Final = 4
"""At once: they wait for nodes more than they compute. No more than tasks would run, among which a rate is shared."""


class Waves:
    """Does the waves of a run. `job` is what all of them are held against."""

    def __init__(self, spark: SparkSession, directory: RunDirectory, job: Job) -> None:
        self._spark = spark
        self._directory = directory
        self._job = job

    def first(self, number: int, chunks: Sequence[SegmentChunk], rows: int | None) -> list[ChunkResult]:
        """First looks, as wave `number`. `rows`: of a side in these chunks, about; None: many, or unknown."""
        look = first_looks(self._job)
        data = [encode_chunk(chunk) for chunk in chunks]
        if self._own(len(chunks), rows):
            return self._threads(number, chunks, [partial(look, _one(each, pa.binary())) for each in data])

        def rows_of_looks() -> DataFrame:
            given = self._spark.createDataFrame([(bytearray(each),) for each in data], "chunk binary")
            return given.repartition(len(chunks)).select(F.arrow_udf(look, FIRST_ROW)("chunk").alias("row"))

        return self._tasks(number, chunks, rows_of_looks)

    def second(self, number: int, chunks: Sequence[SegmentChunk]) -> list[ChunkResult]:
        """Second looks, as wave `number`, at what the first ones have left on disk."""
        look = second_looks(self._job)
        first = standing(self._directory.waves()).first
        looks = {chunk.number: first[chunk.number] for chunk in chunks}
        small = few(looks)
        if small and self._own(len(chunks), sum(_again(chunk, looks[chunk.number][1]) for chunk in chunks)):
            payloads = payloads_of(self._directory, looks)
            acts = [partial(look, _one(at, pa.int32()), _one(data, pa.binary())) for at, data in payloads]
            return self._threads(number, chunks, acts)

        def rows_of_looks() -> DataFrame:
            if small:
                pairs = [(at, bytearray(data)) for at, data in payloads_of(self._directory, looks)]
                given = self._spark.createDataFrame(pairs, "chunk int, payload binary")
            else:
                rows = rows_of(self._spark, self._directory, looks)
                given = rows.select(F.col("row.chunk").alias("chunk"), F.col("row.payload").alias("payload"))
            arrow = F.arrow_udf(look, SECOND_ROW)
            return given.repartition(len(chunks)).select(arrow("chunk", "payload").alias("row"))

        return self._tasks(number, chunks, rows_of_looks)

    def _own(self, chunks: int, rows: int | None) -> bool:
        """Whether the driver looks itself. Objects are many bytes, and left to tasks."""
        return not self._job.bodies and chunks <= OWN_CHUNKS and rows is not None and rows <= OWN_ROWS

    def _threads(
        self, number: int, chunks: Sequence[SegmentChunk], acts: Sequence[Callable[[], pa.Array]]
    ) -> list[ChunkResult]:
        path = Path(self._directory.rows_of(number))
        pool = ThreadPoolExecutor(max(1, min(OWN_THREADS, self._spark.sparkContext.defaultParallelism)), "look")
        try:
            found = list(pool.map(lambda act: act(), acts))
            draft = path.with_name(f".{path.name}")
            for left in (draft, path):
                shutil.rmtree(left, ignore_errors=True)
            draft.mkdir(parents=True)
            pq.write_table(pa.table({"row": pa.concat_arrays(found)}), draft / "part.parquet")
            draft.replace(path)
            return self._counted(number, chunks)
        except OSError as error:
            return _lost(chunks, str(error))
        finally:
            pool.shutdown(wait=False, cancel_futures=True)

    def _tasks(self, number: int, chunks: Sequence[SegmentChunk], rows: Callable[[], DataFrame]) -> list[ChunkResult]:
        try:
            rows().write.mode("overwrite").parquet(self._directory.rows_of(number))
            return self._counted(number, chunks)
        except (PySparkException, Py4JError, OSError) as error:
            return _lost(chunks, f"spark: {trouble_of(error)}")

    def _counted(self, number: int, chunks: Sequence[SegmentChunk]) -> list[ChunkResult]:
        found = {done.chunk: done for done in counts_of(self._directory, number)}
        missing = [chunk.number for chunk in chunks if chunk.number not in found]
        assert not missing, f"chunks without a row: {missing}"
        return list(found.values())


def rows_of(spark: SparkSession, directory: RunDirectory, looks: Mapping[int, tuple[int, ChunkResult]]) -> DataFrame:
    """The rows that these chunks have in these waves."""
    by_wave: dict[int, list[int]] = {}
    for chunk, (wave, _) in looks.items():
        by_wave.setdefault(wave, []).append(chunk)
    frames = [
        spark.read.parquet(directory.rows_of(wave)).where(F.col("row.chunk").isin(numbers))
        for wave, numbers in by_wave.items()
    ]
    whole = frames[0]
    for frame in frames[1:]:
        whole = whole.unionAll(frame)
    return whole


def _again(chunk: SegmentChunk, first: ChunkResult) -> int:
    """Rows of a side, about, of the segments that a second look at a chunk reads."""
    rows = max(first.left_rows, first.right_rows)
    return min(rows, first.candidates * (rows // max(1, chunk.segments) + 1))


def _one(value: bytes | int, kind: pa.DataType) -> pa.Array:
    return pa.array([value], kind)


def _lost(chunks: Sequence[SegmentChunk], why: str) -> list[ChunkResult]:
    """A wave of which nothing is known."""
    return [ChunkResult(chunk.number, why, *(0,) * (len(ChunkResult._fields) - 2)) for chunk in chunks]
