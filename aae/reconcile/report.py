"""Results of a run: totals with the exit code, one row per chunk, and findings, written to its directory. Free of
Spark.

Totals count all chunks that were read, not only the findings that were kept; every compared key has one verdict. A run
is equal only if everything in its scope was compared.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from isthmus.aae.reconcile.segment_plan import SegmentPlan
from isthmus.aae.run_directory import ChunkResult, RunDirectory, RunProgress, program_version
from isthmus.repl.model.errors import Corruption
from isthmus.repl.model.keys import SEGMENT_COUNT

SEGMENTS_NAMED_MAX: Final = 1_000
"""Ranges of segments that a summary lists; the run's segments have all."""

FORM: Final = 1


class ReconcileOutcome(StrEnum):
    """Outcome of a run."""

    EQUAL = "equal"
    DIFFER = "differ"
    ERROR = "error"
    INCOMPLETE = "incomplete"


EXIT_CODES: Final = {
    ReconcileOutcome.EQUAL: 0,
    ReconcileOutcome.DIFFER: 1,
    ReconcileOutcome.ERROR: 2,
    ReconcileOutcome.INCOMPLETE: 3,
}


def summarize(
    directory: RunDirectory,
    plan: SegmentPlan | None,
    now: RunProgress,
    error: str,
    seconds: float,
    facts: dict[str, Any],
) -> dict[str, Any]:
    """The content of summary.json. `plan` None: there is none because of `error`."""
    firsts = [done for _, done in now.first.values()]
    seconds_looks = [done for _, done in now.second.values()]
    verdicts = _verdicts(firsts, seconds_looks)
    chunks = {} if plan is None else {chunk.number: chunk for chunk in plan.chunks}
    open_chunks = [chunk for number, chunk in chunks.items() if number in now.failures or not _whole(number, now)]
    open_runs = [list(one) for chunk in open_chunks for one in chunk.runs]
    unread = sum(chunk.segments for number, chunk in chunks.items() if number not in now.first)
    if plan is None or (chunks and not now.first):
        outcome = ReconcileOutcome.ERROR
        error = error or next(iter(now.failures.values()), "nothing could be looked at: time was over")
        if plan is None:
            open_runs = [[0, SEGMENT_COUNT]]
    elif open_chunks:
        outcome = ReconcileOutcome.INCOMPLETE
    else:
        outcome = ReconcileOutcome.DIFFER if verdicts["diverged"] else ReconcileOutcome.EQUAL
    covered = 0 if plan is None else plan.covered
    limit = facts["max_differences"]  # of those that claim loss, and of all others together
    others = sum(done.filtered + done.candidates - done.diverged for done in seconds_looks)
    return {
        "form": FORM,
        "run_id": directory.run_id,
        "version": program_version(),
        "options_hash": directory.options_hash(),
        "outcome": outcome.value,
        "exit_code": EXIT_CODES[outcome],
        "error": error,
        "mode": None if plan is None else plan.mode,
        "why": None if plan is None else plan.why,
        "clusters": None if plan is None else list(plan.clusters),
        "keys": sum(verdicts.values()),
        "verdicts": verdicts,
        "left_rows": sum(done.left_rows for done in firsts),
        "right_rows": sum(done.right_rows for done in firsts),
        "findings_cut": bool(limit) and max(verdicts["diverged"], others) > limit,
        "coverage": {
            "segments": covered - unread if plan is not None else 0,
            "of": SEGMENT_COUNT,
            "read": sum(chunk.segments for number, chunk in chunks.items() if number in now.first),
            "chunks_done": len(chunks) - len(open_chunks),
            "chunks": len(chunks),
        },
        "segments_open": open_runs[:SEGMENTS_NAMED_MAX],
        "segments_open_ranges": len(open_runs),
        "reasons": sorted(set(now.failures.values()))[:20],
        "bytes": sum(done.bytes for done in firsts) + sum(done.bytes for done in seconds_looks),
        "seconds": round(seconds, 3),
        **facts,
    }


def _whole(number: int, now: RunProgress) -> bool:
    if number not in now.first:
        return False
    first = now.first[number][1]
    return not (first.candidates or first.filtered) or number in now.second


def _verdicts(firsts: list[ChunkResult], seconds: list[ChunkResult]) -> dict[str, int]:
    """{verdict: number of keys}. Candidates without a second look are `unreachable`."""
    looked = {done.chunk for done in seconds}
    waiting = sum(done.candidates for done in firsts if done.chunk not in looked)
    filtered = sum(done.filtered for done in firsts)
    counts = {
        "match": sum(done.match for done in firsts),
        "transient": sum(done.transient for done in seconds),
        "waiting": sum(done.waiting for done in seconds),
        "diverged": sum(done.diverged for done in seconds),
        "filtered": filtered,
        "unreachable": sum(done.unreachable for done in seconds) + waiting,
    }
    keys = sum(done.match + done.candidates + done.filtered for done in firsts)
    if sum(counts.values()) != keys:
        raise Corruption(f"the verdicts of the run do not add up: {counts} of {keys} keys; its work files were changed")
    return counts


def counts_so_far(now: RunProgress) -> dict[str, int]:
    """Keys by verdict while a run goes on; those that differ and wait, for their second look or in a queue, are
    `waiting`."""
    seconds = [done for _, done in now.second.values()]
    firsts = [(chunk, done) for chunk, (_, done) in now.first.items()]
    return {
        "match": sum(done.match for _, done in firsts),
        "transient": sum(done.transient for done in seconds),
        "diverged": sum(done.diverged for done in seconds),
        "filtered": sum(done.filtered for _, done in firsts),
        "unreachable": sum(done.unreachable for done in seconds),
        "waiting": sum(done.candidates for chunk, done in firsts if chunk not in now.second)
        + sum(done.waiting for done in seconds),
    }


FEW: Final = 50_000
"""Most differing keys that the driver holds in its memory: some 20 MB."""

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
        *((name, pa.int64()) for name in ("transient", "diverged", "unreachable", "waiting")),
        ("left_as_of", _PIECES),
        ("right_as_of", _PIECES),
    ]
)
"""Columns. `state`: done, unreachable (see `reason`), or left for a later attempt."""


def write_segments(directory: RunDirectory, now: RunProgress, plan: SegmentPlan) -> None:
    """Write the rows of all chunks atomically."""
    as_of = _as_of(directory, now)
    rows = []
    for chunk in plan.chunks:
        _, first = now.first.get(chunk.number, (0, None))
        _, second = now.second.get(chunk.number, (0, None))
        state = "unreachable" if chunk.number in now.failures else "left" if first is None else "done"
        rows.append(
            (
                chunk.number, [list(one) for one in chunk.runs], chunk.segments, state, now.failures.get(chunk.number),
                *((None,) * 3 if first is None else first[2:5]), None if first is None else first.filtered,
                *((0,) * 4 if second is None else second[8:12]), *as_of.get(chunk.number, (None, None)),
            )
        )  # fmt: skip
    columns = list(zip(*rows, strict=True)) or [()] * len(SEGMENTS)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, SEGMENTS, strict=True)]
    path = directory.path / "segments"
    path.mkdir(parents=True, exist_ok=True)
    draft = path / ".segments.parquet"
    pq.write_table(pa.Table.from_arrays(arrays, schema=SEGMENTS), draft)
    draft.replace(path / "segments.parquet")


def read_counts(directory: RunDirectory, wave: int) -> list[ChunkResult]:
    """The counts that a wave wrote."""
    found = []
    for row in _rows(directory, wave, ChunkResult._fields):
        found += [ChunkResult(**one) for one in row.to_pylist()]
    return found


def fits_driver(looks: Mapping[int, tuple[int, ChunkResult]]) -> bool:
    """True if the candidates of these looks fit into the driver's memory."""
    return sum(done.candidates + done.filtered for _, done in looks.values()) <= FEW


def read_payloads(directory: RunDirectory, looks: Mapping[int, tuple[int, ChunkResult]]) -> list[tuple[int, bytes]]:
    """(chunk, candidates) of first looks, the input of second looks."""
    found: list[tuple[int, bytes]] = []
    for wave in {wave for wave, _ in looks.values()}:
        for row in _rows(directory, wave, ("chunk", "payload")):
            pairs = ((one["chunk"], one["payload"]) for one in row.to_pylist())
            found += [(chunk, data) for chunk, data in pairs if chunk in looks and looks[chunk][0] == wave]
    return found


def write_findings(directory: RunDirectory, looks: Mapping[int, tuple[int, ChunkResult]], limit: int) -> None:
    """Replace the findings by those of these second looks, partitioned by verdict; at most `limit` diverged ones and
    `limit` others, 0: all."""
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
    """Fields of a wave's rows, file by file."""
    for path in sorted(Path(directory.rows_of(wave)).glob("*.parquet")):
        table = pq.ParquetFile(path).read([f"row.{name}" for name in fields])
        if table.num_rows:
            yield table.column("row").combine_chunks()


def _as_of(directory: RunDirectory, now: RunProgress) -> dict[int, list[list[dict[str, Any]]]]:
    """{chunk: [read points of the left side, of the right side]} of its newest successful first look."""
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
