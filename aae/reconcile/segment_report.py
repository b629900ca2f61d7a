"""A run's `segments/`: a row a chunk, what was counted there, and what each side was as of when it was read.

Of chunks that were read as streams each piece says its partition, epoch and offset: everything below was there, nothing
above (I-SPARK-SNAP). Scattered segments, which trees named, are asked for by question and have no such vector; for them
summary.json has how far both clusters were applied before and after. Written by the driver, without Spark.

So are findings, and candidates are taken to the second looks, as long as they are few: each of Spark's own reads and
writes costs a second before its first row, and a run that trees have narrowed has little else to do.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from isthmus.aae.reconcile.run_directory import ChunkResult, RunDirectory, RunProgress
from isthmus.aae.reconcile.segment_plan import SegmentPlan

FEW: Final = 50_000
"""Keys that differ, up to which the driver has them in its hands: some 20 MB."""

_PIECES: Final = pa.list_(
    pa.struct([("partition", pa.int64()), ("epoch", pa.int64()), ("apply_offset", pa.int64())])
)  # fmt: skip

SEGMENTS: Final = pa.schema(
    [
        ("chunk", pa.int32()),
        ("runs", pa.list_(pa.list_(pa.int32()))),
        ("segments", pa.int32()),
        ("state", pa.string()),
        ("reason", pa.string()),
        *((name, pa.int64()) for name in ("left_rows", "right_rows", "match", "filtered")),
        *((name, pa.int64()) for name in ("transient", "diverged", "unreachable")),
        ("left_as_of", _PIECES),
        ("right_as_of", _PIECES),
    ]
)
"""Columns. `state`: done, unreachable (`reason` says why), or left for a later go."""


def write_segments(directory: RunDirectory, now: RunProgress, plan: SegmentPlan) -> None:
    """The rows of all chunks, whole or not at all."""
    as_of = _as_of(directory, now)
    rows = []
    for chunk in plan.chunks:
        _, first = now.first.get(chunk.number, (0, None))
        _, second = now.second.get(chunk.number, (0, None))
        state = "unreachable" if chunk.number in now.trouble else "left" if first is None else "done"
        rows.append(
            (
                chunk.number, [list(one) for one in chunk.runs], chunk.segments, state, now.trouble.get(chunk.number),
                *((None,) * 3 if first is None else first[2:5]), None if first is None else first.filtered,
                *((0, 0, 0) if second is None else second[8:11]), *as_of.get(chunk.number, (None, None)),
            )
        )  # fmt: skip
    columns = list(zip(*rows, strict=True)) or [()] * len(SEGMENTS)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, SEGMENTS, strict=True)]
    path = directory.path / "segments"
    path.mkdir(parents=True, exist_ok=True)
    draft = path / ".segments.parquet"
    pq.write_table(pa.Table.from_arrays(arrays, schema=SEGMENTS), draft)
    draft.replace(path / "segments.parquet")


def counts_of(directory: RunDirectory, wave: int) -> list[ChunkResult]:
    """What the tasks of a wave have counted."""
    found = []
    for row in _rows(directory, wave, ChunkResult._fields):
        found += [ChunkResult(**one) for one in row.to_pylist()]
    return found


def few(looks: Mapping[int, tuple[int, ChunkResult]]) -> bool:
    """Whether what these chunks found fits into the driver."""
    return sum(done.candidates + done.filtered for _, done in looks.values()) <= FEW


def payloads_of(directory: RunDirectory, looks: Mapping[int, tuple[int, ChunkResult]]) -> list[tuple[int, bytes]]:
    """(chunk, candidates) of first looks, as they are to be looked at again."""
    found: list[tuple[int, bytes]] = []
    for wave in {wave for wave, _ in looks.values()}:
        for row in _rows(directory, wave, ("chunk", "payload")):
            pairs = ((one["chunk"], one["payload"]) for one in row.to_pylist())
            found += [(chunk, data) for chunk, data in pairs if chunk in looks and looks[chunk][0] == wave]
    return found


def write_findings(directory: RunDirectory, looks: Mapping[int, tuple[int, ChunkResult]], limit: int) -> None:
    """The findings of second looks, by verdict, in place of those that were there; of those that claim loss and of the
    others at most `limit` each, 0: all."""
    tables = []
    for wave in {wave for wave, _ in looks.values()}:
        wanted = pa.array([chunk for chunk, (its, _) in looks.items() if its == wave], pa.int32())
        for row in _rows(directory, wave, ("chunk", "findings")):
            kept = row.filter(pc.is_in(row.field("chunk"), value_set=wanted))
            tables.append(pa.Table.from_struct_array(kept.field("findings").flatten()))
    path, draft = directory.path / "findings", directory.path / ".findings"
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(parents=True)
    found = pa.concat_tables(tables) if tables else None
    if found is not None and found.num_rows:
        if limit:
            lost = pc.equal(found["verdict"], "diverged")
            found = pa.concat_tables(
                [found.filter(lost).slice(0, limit), found.filter(pc.invert(lost)).slice(0, limit)]
            )
        pq.write_to_dataset(found, draft, partition_cols=["verdict"])
    shutil.rmtree(path, ignore_errors=True)
    draft.replace(path)


def _rows(directory: RunDirectory, wave: int, fields: tuple[str, ...]) -> Iterator[pa.StructArray]:
    """Fields of the rows of a wave, a file after the other."""
    for path in sorted(Path(directory.rows_of(wave)).glob("*.parquet")):
        table = pq.ParquetFile(path).read([f"row.{name}" for name in fields])
        if table.num_rows:
            yield table.column("row").combine_chunks()


def _as_of(directory: RunDirectory, now: RunProgress) -> dict[int, list[list[dict[str, Any]]]]:
    """By chunk: the pieces of both sides, as the first look that counts read them."""
    waves: dict[int, set[int]] = {}
    for chunk, (wave, _) in now.first.items():
        waves.setdefault(wave, set()).add(chunk)
    found = {}
    for wave, chunks in waves.items():
        for path in sorted(Path(directory.rows_of(wave)).glob("*.parquet")):
            for row in pq.ParquetFile(path).read(["row.chunk", "row.as_of"]).column("row").to_pylist():
                if row["chunk"] in chunks:
                    found[row["chunk"]] = [[_piece(*one) for one in side] for side in json.loads(row["as_of"])]
    return found


def _piece(partition: int, epoch: int, offset: int) -> dict[str, Any]:
    return {"partition": partition, "epoch": epoch, "apply_offset": offset}
