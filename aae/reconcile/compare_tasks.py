"""Spark tasks of `job`: a first or second look at each chunk of a batch, in Arrow columns.

A task receives chunks as bytes and returns a row per chunk. The error of a chunk is in its row, so that an unreachable
node affects no other chunk. For reads see `compare_range`, for verdicts `verdicts`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import sleep, time
from typing import Any, Final, NamedTuple

import msgpack
import pyarrow as pa

from isthmus.aae.exchange.compare import BehindSide, DifferenceKind, VerdictKind
from isthmus.aae.reconcile.client import QueuePosition
from isthmus.aae.reconcile.compare_range import (
    Joined,
    RangeRows,
    SideSpec,
    error_line,
    joined,
    places_of,
    read_runs,
    scattered,
)
from isthmus.aae.reconcile.findings import FINDING, decode_candidates, encode_candidates, finding
from isthmus.aae.reconcile.verdicts import (
    CandidateKey,
    KeyVerdict,
    Name,
    filtered_verdict,
    first_look,
    same,
    second_look,
    unreachable_verdict,
)
from isthmus.aae.run_directory import SegmentChunk, runs_of
from isthmus.queues.filters import parse_filter
from isthmus.repl.model.errors import IsthmusError
from isthmus.repl.model.keys import key_hash, segment_of

FURTHER_LOOKS_MAX: Final = 4
"""Most looks after the second one at keys that still differ. They go on while each finds that some writes have arrived:
others may be under way, too. Keys that still differ after the last look are `unreachable` rather than `diverged` if it
found arrivals, and left to the next attempt."""

STILL_ARRIVING: Final = "still-arriving: changes take longer than --settle and further looks; go on with the run later"
"""Why a chunk stays open after the last look."""

REAPED_UNREAD: Final = "reaped-keys-unread: a damaged row keeps a cluster from saying whether a missing key was deleted"
"""Why a chunk stays open although all of its rows were read."""


class Job(NamedTuple):
    """Parameters that all chunks of a run share. `rest_s`: pause before a further look. `to_right`, `to_left`: the
    queues of each side for the other one, as they were before the second look."""

    left: SideSpec
    right: SideSpec
    bucket_type: str
    bucket: bytes
    since_ms: int
    before_ms: int
    filter: str
    bodies: bool = False
    rest_s: float = 0.0
    to_right: tuple[QueuePosition, ...] = ()
    to_left: tuple[QueuePosition, ...] = ()


COUNTS: Final = (
    "chunk int, error string, left_rows bigint, right_rows bigint, match bigint, candidates bigint, filtered bigint, "
    "bytes bigint, transient bigint, diverged bigint, unreachable bigint, "
    "waiting bigint"
)
"""The fields of `run_directory.ChunkResult`, in order."""

COUNTED: Final = tuple(part.split()[0] for part in COUNTS.split(", "))

FIRST_ROW: Final = f"struct<{COUNTS.replace(' ', ':').replace(',:', ',')}, as_of:string, payload:binary>"
SECOND_ROW: Final = (
    f"struct<{COUNTS.replace(' ', ':').replace(',:', ',')}, "
    f"findings:array<struct<{FINDING.replace(' ', ':').replace(',:', ',')}>>>"
)

_ARROW: Final = {
    "string": pa.string(), "binary": pa.binary(), "int": pa.int32(), "bigint": pa.int64(), "boolean": pa.bool_()
}  # fmt: skip


def _struct(fields: str) -> list[pa.Field]:
    return [pa.field(name, _ARROW[kind]) for name, kind in (part.split() for part in fields.split(", "))]


_FIRST: Final = pa.struct([*_struct(COUNTS), pa.field("as_of", pa.string()), pa.field("payload", pa.binary())])
_SECOND: Final = pa.struct([*_struct(COUNTS), pa.field("findings", pa.list_(pa.struct(_struct(FINDING))))])


def encode_chunk(chunk: SegmentChunk) -> bytes:
    """Encode a chunk for a task."""
    packed: bytes = msgpack.packb([chunk.number, chunk.runs])
    return packed


def first_looks(job: Job) -> Callable[[pa.Array], pa.Array]:
    """A function from chunks (`encode_chunk`) to FIRST_ROW."""

    def look(chunks: pa.Array) -> pa.Array:
        return pa.array([_first(job, *msgpack.unpackb(one)) for one in chunks.to_pylist()], _FIRST)

    return look


def second_looks(job: Job) -> Callable[[pa.Array, pa.Array], pa.Array]:
    """A function from (chunk number, payload of its first look) to SECOND_ROW."""

    def look(numbers: pa.Array, payloads: pa.Array) -> pa.Array:
        pairs = zip(numbers.to_pylist(), payloads.to_pylist(), strict=True)
        return pa.array([_second(job, number, payload) for number, payload in pairs], _SECOND)

    return look


def _first(job: Job, number: int, runs: Sequence[Sequence[int]]) -> dict[str, Any]:
    row: dict[str, Any] = {**dict.fromkeys(COUNTED, 0), "chunk": number, "error": "", "as_of": "[]", "payload": b""}
    wanted = parse_filter(job.filter) if job.filter else None
    bucket_type = job.bucket_type.encode()
    segments = [(first, end) for first, end in runs]
    plain = not (job.bodies or job.bucket or job.since_ms or job.before_ms or scattered(segments))
    try:
        if plain:
            both = joined(job.left, job.right, segments)
        else:
            left = read_runs(job.left, segments, bodies=job.bodies)
            right = read_runs(job.right, segments, bodies=job.bodies)
            both = Joined(0, left, right, len(left.rows), len(right.rows))
    except IsthmusError as error:
        return {**row, "error": error_line(error)}
    left, right = both.left, both.right
    found = first_look(
        left.rows, right.rows, bucket=job.bucket, since_ms=job.since_ms, before_ms=job.before_ms,
        wanted=None if wanted is None else lambda bucket: wanted.includes(bucket_type, bucket),
    )  # fmt: skip
    differs = bool(found.candidates or found.filtered)
    return row | {
        "left_rows": both.left_rows,
        "right_rows": both.right_rows,
        "match": both.same + found.match,
        "candidates": len(found.candidates),
        "filtered": len(found.filtered),
        "bytes": left.bytes + right.bytes,
        "as_of": str([list(map(list, left.as_of)), list(map(list, right.as_of))]),
        "payload": encode_candidates(found.candidates, found.filtered, _now_ms()) if differs else b"",
    }


def _second(job: Job, number: int, payload: bytes) -> dict[str, Any]:
    first_ms, candidates, filtered = decode_candidates(payload)
    rows: list[dict[str, Any]] = []
    counts = dict.fromkeys(VerdictKind, 0)
    error = unread = ""
    size = 0

    def say(one: CandidateKey, verdict: KeyVerdict, now: CandidateKey) -> None:
        counts[verdict.verdict] += 1
        rows.append(finding(job.bucket_type, one, verdict, now.left, now.right, first_ms, _now_ms()))

    for one in filtered:
        say(one, filtered_verdict(one), one)
    left_over = candidates
    for further in range(FURTHER_LOOKS_MAX + 1):
        if not left_over:
            break
        segments = runs_of(sorted({segment_of(key_hash(one.bucket, one.key)) for one in left_over}))
        try:
            left = read_runs(job.left, segments, committed=True, bodies=job.bodies)
            right = read_runs(job.right, segments, committed=True, bodies=job.bodies)
        except IsthmusError as failures:
            error = error_line(failures)
            for one in left_over:
                say(one, unreachable_verdict(one), one)
            break
        size += left.bytes + right.bytes
        judged = []
        for one in left_over:
            name = (one.bucket, one.key)
            now = one._replace(left=left.rows.get(name), right=right.rows.get(name))
            if _may_be_deleted(now, left, right):
                say(one, unreachable_verdict(one), now)
                unread = REAPED_UNREAD
            else:
                judged.append((one, second_look(one, now.left, now.right), now))
        left_over = [one for one, _, _ in judged]
        differing = [one for one, second, _ in judged if second.verdict is VerdictKind.DIVERGED]
        arriving = len(differing) < len(left_over)
        held: dict[Name, str] = {}
        if differing and not arriving:
            try:
                held = waits(job, [second for second in judged if second[1].verdict is VerdictKind.DIVERGED])
            except IsthmusError as failures:  # that nothing waits is not known, so that nothing is called lost
                error = error_line(failures)
        for one, second, now in judged:
            if second.verdict is not VerdictKind.DIVERGED:
                say(one, second, now)
            elif not arriving and error:
                say(one, unreachable_verdict(one), now)
            elif not arriving:
                queue = held.get((one.bucket, one.key))
                say(one, second if queue is None else second._replace(verdict=VerdictKind.WAITING), now)
        if held:
            error = f"waiting: {len(held)} in {next(iter(held.values()))}"
        left_over = differing if arriving else []
        if left_over and further < FURTHER_LOOKS_MAX:
            sleep(job.rest_s)
        elif left_over:
            error = STILL_ARRIVING
            for one in left_over:
                say(one, unreachable_verdict(one), one)
    return {
        **dict.fromkeys(COUNTED, 0),
        "chunk": number,
        "error": error or unread,
        "candidates": len(candidates),
        "filtered": counts[VerdictKind.FILTERED],
        "bytes": size,
        "transient": counts[VerdictKind.TRANSIENT],
        "diverged": counts[VerdictKind.DIVERGED],
        "unreachable": counts[VerdictKind.UNREACHABLE],
        "waiting": counts[VerdictKind.WAITING],
        "findings": rows,
    }


def _may_be_deleted(now: CandidateKey, left: RangeRows, right: RangeRows) -> bool:
    """Whether a side without a row of the key may remember that it was deleted and reaped."""
    if same(now.left, now.right):
        return False
    segment = segment_of(key_hash(now.bucket, now.key))
    sides = ((now.left, left), (now.right, right))
    return any(seen is None and segment in rows.unremembered for seen, rows in sides)


def waits(job: Job, diverged: Sequence[tuple[CandidateKey, KeyVerdict, CandidateKey]]) -> dict[Name, str]:
    """Those of these keys whose newest change waits for the side that lacks it -> the queue in which it waits, with
    what holds it. Raises as `read_runs`."""
    ways = (
        (job.left, job.to_right, (BehindSide.SINK, BehindSide.BOTH)),
        (job.right, job.to_left, (BehindSide.SOURCE, BehindSide.BOTH)),
    )
    found: dict[Name, str] = {}
    for side, queues, lacking in ways:
        keys = [
            one for one, found, _ in diverged if found.side in lacking and found.kind is not DifferenceKind.CORRUPT
        ] if queues else []  # fmt: skip
        if not keys:
            continue
        segments = runs_of(sorted({segment_of(key_hash(one.bucket, one.key)) for one in keys}))
        places = places_of(side, segments)
        filters = [parse_filter(queue.filter) for queue in queues]
        for one in keys:
            if (one.bucket, one.key) not in places:
                continue
            partition, offset = places[one.bucket, one.key]
            for queue, offered in zip(queues, filters, strict=True):
                cursor = queue.cursors.get(partition)
                if (cursor is None or offset >= cursor) and offered.includes(job.bucket_type.encode(), one.bucket):
                    why = f": {queue.reason}" if queue.reason else ""
                    unknown = "" if cursor is not None else ", how far it is acknowledged is not known"
                    found[one.bucket, one.key] = f"queue {queue.queue} to {queue.cluster}{unknown}{why}"
    return found


def _now_ms() -> int:
    return int(time() * 1000)
