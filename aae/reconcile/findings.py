"""Findings of a run: a row per differing key; and the encoding of candidates between the two looks.

A finding has the key, its verdict, the difference and its side, and the last row read from both sides. Candidates are
msgpack, since only the second look reads them; findings are Parquet. `read_findings` needs no Spark.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Any, Final

import msgpack
import pyarrow as pa
import pyarrow.dataset

from isthmus.aae.reconcile.verdicts import CandidateKey, KeyVerdict, ObservedKey
from isthmus.repl.model.errors import CodecError
from isthmus.repl.model.keys import key_hash, segment_of

CANDIDATES_MAX: Final = 10_000_000
"""Candidates of a chunk that are decoded."""

FINDING: Final = (
    "bucket_type string, bucket binary, key binary, segment int, verdict string, difference string, side string, "
    "left_clock binary, right_clock binary, left_hash bigint, right_hash bigint, left_modified_ms bigint, "
    "right_modified_ms bigint, left_tombstone boolean, right_tombstone boolean, left_size bigint, right_size bigint, "
    "left_siblings int, right_siblings int, left_fault string, right_fault string, first_seen_ms bigint, "
    "last_seen_ms bigint"
)
"""Columns, in Spark's notation. `side`: source is the left cluster, sink the right one. Null: that side has no row, or
did not report the value."""

COLUMNS: Final = tuple(part.split()[0] for part in FINDING.split(", "))

_SEEN: Final = ("clock", "hash", "modified_ms", "tombstone", "size", "siblings", "fault")


def encode_candidates(found: Sequence[CandidateKey], filtered: Sequence[CandidateKey], at_ms: int) -> bytes:
    """Encode the result of a first look for the second one."""
    packed: bytes = msgpack.packb([at_ms, found, filtered])
    return packed


def decode_candidates(data: bytes) -> tuple[int, list[CandidateKey], list[CandidateKey]]:
    """(time of the first look, candidates, filtered). Raises CodecError."""
    try:
        raw = msgpack.unpackb(data, max_array_len=CANDIDATES_MAX, max_map_len=0, max_ext_len=0)
        at_ms, found, filtered = raw
        return int(at_ms), [_candidate(one) for one in found], [_candidate(one) for one in filtered]
    except (ValueError, TypeError, OverflowError, msgpack.exceptions.UnpackException, RecursionError) as error:
        raise CodecError(f"not the candidates of a first look: {error}") from error


def _candidate(raw: Any) -> CandidateKey:
    bucket, key, left, right = raw
    return CandidateKey(
        bucket, key, None if left is None else ObservedKey(*left), None if right is None else ObservedKey(*right)
    )


def finding(
    bucket_type: str,
    name: CandidateKey,
    verdict: KeyVerdict,
    left: ObservedKey | None,
    right: ObservedKey | None,
    first_ms: int,
    last_ms: int,
) -> dict[str, Any]:
    """A finding as a row."""
    row: dict[str, Any] = {
        "bucket_type": bucket_type,
        "bucket": name.bucket,
        "key": name.key,
        "segment": segment_of(key_hash(name.bucket, name.key)),
        "verdict": verdict.verdict.value,
        "difference": None if verdict.kind is None else verdict.kind.value,
        "side": None if verdict.side is None else verdict.side.value,
        "first_seen_ms": first_ms,
        "last_seen_ms": last_ms,
    }
    for side, seen in (("left", left), ("right", right)):
        if seen is None:
            values: Sequence[Any] = (None,) * len(_SEEN)
        elif seen.fault:
            values = (*(None,) * (len(_SEEN) - 1), seen.fault)
        else:
            hash64 = seen.hash64 - (seen.hash64 >> 63 << 64)  # Spark's integers are signed
            values = (
                seen.clock, hash64, seen.modified_ms, seen.tombstone, seen.size_bytes, seen.siblings, None
            )  # fmt: skip
        row.update({f"{side}_{column}": value for column, value in zip(_SEEN, values, strict=True)})
    return row


def read_findings(directory: Path, columns: Sequence[str], verdict: str = "") -> Iterator[dict[str, Any]]:
    """The rows of a run's findings, of one verdict if given. Yields nothing without a directory."""
    for batch in _batches(directory, columns, verdict):
        yield from batch.to_pylist()


def _batches(directory: Path, columns: Sequence[str], verdict: str = "") -> Iterator[pa.RecordBatch]:
    if not directory.exists():
        return
    cut = pa.dataset.partitioning(pa.schema([("verdict", pa.string())]), flavor="hive")
    table = pa.dataset.dataset(directory, format="parquet", partitioning=cut)
    if not table.files:
        return
    wanted = pa.dataset.field("verdict") == verdict if verdict else None
    yield from table.to_batches(columns=list(columns), filter=wanted, batch_size=10_000)


GROUPED: Final = ("verdict", "difference", "side", "bucket")

GROUPS_MAX: Final = 100
"""Groups of findings that a summary lists, the largest ones: those of some buckets are a page, and a run may have a
bucket for each key. `counted` has all."""


def counted(directory: Path) -> list[dict[str, Any]]:
    """Number of findings by verdict, difference, side and bucket, largest first."""
    found: Counter[tuple[str, ...]] = Counter()
    for batch in _batches(directory, GROUPED):
        groups = pa.Table.from_batches([batch]).group_by(GROUPED).aggregate([([], "count_all")])
        for row in groups.to_pylist():
            bucket = row["bucket"].decode(errors="backslashreplace")
            found[row["verdict"], row["difference"], row["side"], bucket] += row["count_all"]
    names = (*GROUPED, "count")
    return [dict(zip(names, (*named, count), strict=True)) for named, count in found.most_common()]


def summarized(directory: Path) -> dict[str, Any]:
    """The largest groups of `counted`, and how many groups and findings are left out."""
    every = counted(directory)
    rest = every[GROUPS_MAX:]
    return {"groups": every[:GROUPS_MAX], "groups_left": len(rest), "findings_left": sum(row["count"] for row in rest)}


NAMED_COLUMNS: Final = (
    "bucket_type", "bucket", "key", "verdict", "difference", "side", "left_fault", "right_fault"
)  # fmt: skip


def named(directory: Path, most: int, verdicts: Sequence[str], skip: int = 0) -> list[dict[str, Any]]:
    """Up to `most` findings with their keys, those of these verdicts, in their order, without the first `skip`. Bytes
    that are not UTF-8 are shown as \\x.., and all names in hexadecimal, too."""
    found: list[dict[str, Any]] = []
    every = chain.from_iterable(read_findings(directory, NAMED_COLUMNS, verdict) for verdict in verdicts)
    for row in islice(every, skip, skip + most):
        text = {name: row[name].decode(errors="backslashreplace") for name in ("bucket", "key")}
        found.append({**row, **text, "bucket_hex": row["bucket"].hex(), "key_hex": row["key"].hex()})
    return found
