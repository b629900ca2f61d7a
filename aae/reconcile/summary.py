"""The totals of a run, and what its exit code is. Pure but for what it is given.

Counts are those of all chunks that were read, never of the findings that were kept, and they close: every key that was
looked at has one verdict. A run is equal only when all that it is about was looked at.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Final

from isthmus.aae.reconcile.run_directory import ChunkResult, RunDirectory, RunProgress, program_version
from isthmus.aae.reconcile.segment_plan import SegmentPlan
from isthmus.repl.model.errors import Corruption
from isthmus.repl.model.keys import SEGMENT_COUNT

SEGMENTS_NAMED_MAX: Final = 1_000
"""Ranges of segments that a summary names; all stand in the run's segments."""

FORM: Final = 1


class ReconcileOutcome(StrEnum):
    """What a run found out."""

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


def summary_of(
    directory: RunDirectory,
    plan: SegmentPlan | None,
    now: RunProgress,
    error: str,
    seconds: float,
    facts: dict[str, Any],
) -> dict[str, Any]:
    """summary.json. `plan` None: there is none, because of `error`."""
    firsts = [done for _, done in now.first.values()]
    seconds_looks = [done for _, done in now.second.values()]
    verdicts = _verdicts(firsts, seconds_looks)
    chunks = {} if plan is None else {chunk.number: chunk for chunk in plan.chunks}
    open_chunks = [chunk for number, chunk in chunks.items() if number in now.trouble or not _whole(number, now)]
    open_runs = [list(one) for chunk in open_chunks for one in chunk.runs]
    unread = sum(chunk.segments for number, chunk in chunks.items() if number not in now.first)
    if plan is None or (chunks and not now.first):
        outcome = ReconcileOutcome.ERROR
        error = error or next(iter(now.trouble.values()), "nothing could be looked at: time was over")
        if plan is None:
            open_runs = [[0, SEGMENT_COUNT]]
    elif open_chunks:
        outcome = ReconcileOutcome.INCOMPLETE
    else:
        outcome = ReconcileOutcome.DIFFER if verdicts["diverged"] else ReconcileOutcome.EQUAL
    covered = 0 if plan is None else plan.covered
    limit = facts["max_differences"]  # of those that claim loss, and of all others together
    others = sum(done.filtered + done.transient + done.unreachable for done in seconds_looks)
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
        "reasons": sorted(set(now.trouble.values()))[:20],
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
    """Of each verdict how many keys. A candidate that had no second look yet is `unreachable`."""
    looked = {done.chunk for done in seconds}
    waiting = sum(done.candidates for done in firsts if done.chunk not in looked)
    filtered = sum(done.filtered for done in firsts)
    counts = {
        "match": sum(done.match for done in firsts),
        "transient": sum(done.transient for done in seconds),
        "diverged": sum(done.diverged for done in seconds),
        "filtered": filtered,
        "unreachable": sum(done.unreachable for done in seconds) + waiting,
    }
    keys = sum(done.match + done.candidates + done.filtered for done in firsts)
    if sum(counts.values()) != keys:
        raise Corruption(f"the verdicts of the run do not add up: {counts} of {keys} keys; its work files were changed")
    return counts
