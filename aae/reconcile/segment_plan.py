"""Which segments a run compares, in which chunks: those that differ in both clusters' trees, or all of them.

If trees cannot be compared everything is read. The driver compares them twice; a segment that differs only once was
being replicated.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import sleep
from typing import Any, Final, NamedTuple

from xxhash import xxh64_intdigest

from isthmus.aae.reconcile.client import ReplicaDirectory
from isthmus.aae.reconcile.compare_range import SideSpec, error_line, leaves_of, plan_of, roots_of
from isthmus.aae.run_directory import SegmentChunk, runs_of
from isthmus.aae.trees.tree import LEAF_BITS, LEAF_COUNT, differing
from isthmus.repl.model.errors import BadInput, CodecError, PeerFault
from isthmus.repl.model.keys import SEGMENT_COUNT

CHUNK_ROWS: Final = 50_000
"""Approximate maximum of rows per side of a chunk: some 30 MB in a task, and a second's work."""

CHUNKS_MAX: Final = 16_384
SCATTERED: Final = 1_024
"""Segments per chunk when trees named them."""

BRANCHES_AT_ONCE: Final = 256
SAMPLE_SEGMENTS: Final = 256
"""Segments that are together in a sample, or not."""

CONFIRM_S: Final = 0.5


class SegmentPlan(NamedTuple):
    """Segments of a run, and how they were chosen.

    `mode` is "trees" or "full", `why` its reason. `segments`: number to be compared; `covered`: number that the verdict
    is for, since segments with equal leaves count as compared. `clusters`: both uuids in hexadecimal. `rows`: estimated
    rows of the larger side, None unless all partitions report them."""

    mode: str
    why: str
    segments: int
    covered: int
    clusters: tuple[str, str]
    chunks: tuple[SegmentChunk, ...]
    as_of: list[Any]
    rows: int | None = None

    def narrowed(self, chunks: Sequence[SegmentChunk]) -> int | None:
        """Estimated rows per side of chunks that trees have named; None if unknown, or everything is read."""
        if self.rows is None or self.mode != "trees":
            return None
        return -(-self.rows * sum(chunk.segments for chunk in chunks) // SEGMENT_COUNT)

    def to_json(self) -> dict[str, Any]:
        """As a JSON document."""
        return self._asdict()

    @staticmethod
    def from_json(raw: dict[str, Any]) -> SegmentPlan:
        """From a JSON document."""
        chunks = tuple(
            SegmentChunk(number, tuple((first, end) for first, end in runs)) for number, runs in raw["chunks"]
        )
        return SegmentPlan(**{**raw, "chunks": chunks, "clusters": tuple(raw["clusters"])})


def planned(left: SideSpec, right: SideSpec, full: bool, sample: float, tasks: Callable[[], int]) -> SegmentPlan:
    """The plan of a run. `tasks`: how many run at once; called only if everything is read. Raises PeerFault if a side
    has no plan of its replicas, BadInput if both sides are one cluster."""
    plans = [plan_of(left), plan_of(right)]
    if plans[0].cluster == plans[1].cluster:
        raise BadInput(f"left and right are the same cluster, {plans[0].cluster_name}")
    clusters = (plans[0].cluster.hex(), plans[1].cluster.hex())
    as_of_both = [as_of(plan) for plan in plans]
    sides = [side._replace(cluster=plan.cluster) for side, plan in zip((left, right), plans, strict=True)]
    rows = max(map(_rows, plans)) if all(map(_all_report, plans)) else None
    why = "a full comparison was requested"
    if not full:
        try:
            segments = [one for one in _differing(*sides) if _sampled(one, sample)]
        except (PeerFault, CodecError) as error:
            why = f"the trees cannot be compared: {error_line(error)}"
        else:
            parts = [segments[at : at + SCATTERED] for at in range(0, len(segments), SCATTERED)]
            chunks = tuple(SegmentChunk(at, tuple(runs_of(part))) for at, part in enumerate(parts))
            why = "trees are equal" if not segments else "trees differ there"
            covered = round(SEGMENT_COUNT * sample)
            return SegmentPlan("trees", why, len(segments), covered, clusters, chunks, as_of_both, rows)
    chunks = _everything(max(map(_rows, plans)), sample, tasks())
    count = sum(chunk.segments for chunk in chunks)
    return SegmentPlan("full", why, count, count, clusters, chunks, as_of_both, rows)


def as_of(plan: ReplicaDirectory) -> dict[str, Any]:
    """{partition: newest applied (epoch, offset) of its replicas} of a cluster."""
    partitions = {
        str(one.partition): list(max(((c.epoch, c.offset) for c in one.copies), default=(0, 0)))
        for one in plan.partitions
    }
    return {"cluster": plan.cluster_name, "cluster_uuid": plan.cluster.hex(), "applied": partitions}


def _rows(plan: ReplicaDirectory) -> int:
    """Estimated rows, as far as partitions report them."""
    return sum(one.rows_estimate or 0 for one in plan.partitions)


def _all_report(plan: ReplicaDirectory) -> bool:
    return all(one.rows_estimate is not None for one in plan.partitions if one.first < one.end)


def _everything(rows: int, sample: float, tasks: int) -> tuple[SegmentChunk, ...]:
    count = min(CHUNKS_MAX, max(4 * tasks, rows // CHUNK_ROWS + 1))
    size = -(-SEGMENT_COUNT // count)
    found: list[SegmentChunk] = []
    for first in range(0, SEGMENT_COUNT, size):
        end = min(first + size, SEGMENT_COUNT)
        if sample < 1:
            runs = tuple(runs_of([one for one in range(first, end) if _sampled(one, sample)]))
        else:
            runs = ((first, end),)
        if runs:
            found.append(SegmentChunk(len(found), runs))
    return tuple(found)


def _sampled(segment: int, sample: float) -> bool:
    """True if the segment is in a sample of that size; the same segments in every run, so that runs can be compared."""
    if sample >= 1:
        return True
    return xxh64_intdigest((segment // SAMPLE_SEGMENTS).to_bytes(4, "big")) < sample * (1 << 64)


def _differing(left: SideSpec, right: SideSpec) -> list[int]:
    found = _once(left, right, list(differing(roots_of(left), roots_of(right))))
    if found:
        sleep(CONFIRM_S)
        again = set(_once(left, right, sorted({segment >> LEAF_BITS for segment in found})))
        found = [segment for segment in found if segment in again]
    return found


def _once(left: SideSpec, right: SideSpec, branches: list[int]) -> list[int]:
    found: list[int] = []
    for start in range(0, len(branches), BRANCHES_AT_ONCE):
        part = branches[start : start + BRANCHES_AT_ONCE]
        places = differing(leaves_of(left, part), leaves_of(right, part))
        found += [(part[at >> LEAF_BITS] << LEAF_BITS) + (at & (LEAF_COUNT - 1)) for at in places]
    return found
