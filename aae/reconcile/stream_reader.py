"""`spark.readStream.format("isthmus")`: changed keys in their newest version, partition by partition.

A stream's offset has, for each partition of the bucket type, the log offset up to which it was read. Spark keeps it in
its checkpoint, so a query continues where it ended. The change index keeps only the newest change of a key: a key that
changed a thousand times between two batches comes once, and one that changes while a batch is read comes with the next
one. Nothing is lost, and there is no retention limit. A tombstone comes as a row, until it is reaped.

A leader by force (`isthmus partition force-leader`) begins where its replica ended, and reuses offsets that this stream
may have passed; so does a partition that was put back to an earlier state, by a restored backup or the snapshots of its
machines (R-ACTOR). So an offset also has each partition's lineage, the number of elections by force, and its
incarnation, which is another one after each return: a partition with a newer lineage or another incarnation is read
again from its beginning, from replicas that have applied the leader's epoch. A partition that was put back and has no
other incarnation yet ends before the offset that was read: the query ends with an error, since it would wait until
offsets are used again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from time import monotonic, sleep
from typing import Any, Final, NamedTuple

import pyarrow as pa
from pyspark.sql import types as t
from pyspark.sql.datasource import DataSourceStreamReader
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from isthmus.aae.reconcile.arrow_rows import Columns
from isthmus.aae.reconcile.client import PartitionPlan, ReplicaDirectory, TaskRate, fetch_plan
from isthmus.aae.reconcile.options import RunOptions
from isthmus.aae.reconcile.row_reader import (
    LEADERLESS_S,
    RETRY_S,
    RangeStream,
    RangeUnreadable,
    SegmentPartition,
    UnplannedCluster,
    usable,
)
from isthmus.aae.row_stream.wire import ChangesRequest, Consistency, RowView
from isthmus.repl.model.errors import BadInput

CLUSTER: Final = "cluster"
PARTITIONS: Final = "partitions"
LINEAGES: Final = "lineages"
INCARNATIONS: Final = "incarnations"

ROWS_AT_ONCE: Final = 10_000_000
"""Changes per batch without the option rows_per_batch: after a long absence a query catches up in several batches."""


def _nothing(_: PartitionPlan) -> str:
    return ""


def _never(_: PartitionPlan) -> bool:
    return False


def _at_beginning(_: PartitionPlan) -> int:
    return 0


def _partition(one: PartitionPlan) -> str:
    return f"partition {one.partition}"


class IsthmusStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc]
    """The views `keys` and `objects` as they change."""

    def __init__(self, options: RunOptions, schema: t.StructType) -> None:
        self._options = options
        self._schema = schema
        self._target: dict[int, int] | None = None
        self._newest: dict[str, Any] | None = None
        """The offsets that replicas had applied when the newest batch was planned."""

    def prepareForTriggerAvailableNow(self) -> None:
        """End this query at the current offsets, in batches. Raises RangeUnreadable for a partition without a usable
        replica."""
        self._target = {one.partition: _applied(one) for one in self._plan(_partition).partitions}

    def initialOffset(self) -> dict[str, Any]:
        """Offset of a new query: the beginning, or (option starting) the current end. Raises RangeUnreadable for a
        partition without a usable replica."""
        latest = self._options.starting == "latest"
        plan = self._plan(_partition if latest else _nothing)
        return _offset(plan, {one.partition: _applied(one) if latest else 0 for one in plan.partitions}, {})

    def getDefaultReadLimit(self) -> ReadLimit:
        """Changes per batch."""
        return ReadMaxRows(self._options.rows_per_batch or ROWS_AT_ONCE)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """End of the next batch. Raises BadInput if the checkpoint is of another cluster or bucket type, or beyond the
        end of a partition; RangeUnreadable if a partition that must be read again has no leader."""

        def again(one: PartitionPlan) -> bool:
            return _put_back(start, one)

        def read_upto(one: PartitionPlan) -> int:
            return 0 if again(one) else _at(start, one)

        plan = self._plan(lambda one: f"{_partition(one)}: its leader" if again(one) else "", again, read_upto)
        begun = _begun(plan, start)
        begun |= {one.partition: 0 for one in plan.partitions if again(one)}
        ends = {one.partition: _applied(one) for one in plan.partitions}
        self._newest = _offset(plan, ends, start)
        if self._target is not None:  # also while a node is away: an empty batch would end the query
            ends = {partition: self._target.get(partition, 0) for partition in ends}
        ends = {partition: max(end, begun[partition]) for partition, end in ends.items()}
        if not isinstance(limit, ReadAllAvailable):
            ends = shared(begun, ends, limit.max_rows if isinstance(limit, ReadMaxRows) else ROWS_AT_ONCE)
        return _offset(plan, ends, start)

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """For the progress of a query: the end of what there was when the newest batch was planned; `lag` compares it
        with the end of that batch. None before the first."""
        return self._newest

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[SegmentPartition]:
        """The ranges of offsets with changes. Raises RangeUnreadable for one without a usable replica, BadInput for one
        beyond the end of its partition."""

        def given_up(one: PartitionPlan) -> bool:
            return _put_back(end, one)

        def again(one: PartitionPlan) -> bool:
            before, after = _incarnation(start, one), _incarnation(end, one)
            return _lineage(end, one) > _lineage(start, one) or (None not in (before, after) and before != after)

        def bounds(one: PartitionPlan) -> tuple[int, int]:
            first, last = _at(start, one), _at(end, one)
            return 0 if again(one) else first, min(last, _applied(one)) if given_up(one) else last

        def read_upto(one: PartitionPlan) -> int:
            first, last = bounds(one)
            return last if first < last and not given_up(one) else 0

        def range_of(one: PartitionPlan) -> str:
            first, last = bounds(one)
            return f"{_partition(one)}, offsets {first} to {last}" if first < last else ""

        plan = self._plan(range_of, lambda one: again(one) or given_up(one), read_upto)
        _begun(plan, start)
        _begun(plan, end)
        found = []
        for one in plan.partitions:
            first, last = bounds(one)
            if first < last:
                part = SegmentPartition(plan.cluster, one.partition, first, last, usable(one, Consistency.ANY))
                part.epoch = max((copy.epoch for copy in one.copies if copy.leads), default=0)
                found.append(part)
        for part in found:
            part.tasks = self._options.tasks_at_once or len(found)
        return found or [SegmentPartition(plan.cluster, 0, 0, 0, ())]

    def read(self, partition: SegmentPartition) -> Iterator[pa.RecordBatch]:
        """The keys whose newest change is in the range."""
        if not partition.copies:
            return
        options = self._options
        asked = ChangesRequest(options.bucket_type.encode(), 0, 0, 0, RowView(options.view))
        stream = RangeStream(
            asked, partition, options.credentials,
            give_up_after_s=options.give_up_after_s, resume=options.failover == "continue", ask=self._plan,
        )  # fmt: skip
        columns = Columns(options.bucket_type, self._schema, options.not_utf8)
        pace = TaskRate(options.rows_per_second / partition.tasks)
        for head, rows in stream.frames():
            yield columns.batch(head, rows)
            pace.wait_for(len(rows.names))

    def commit(self, end: dict[str, Any]) -> None:
        """Does nothing."""

    def stop(self) -> None:
        """Does nothing."""

    def _plan(
        self,
        needed: Callable[[PartitionPlan], str] = _nothing,
        led: Callable[[PartitionPlan], bool] = _never,
        read_upto: Callable[[PartitionPlan], int] = _at_beginning,
    ) -> ReplicaDirectory:
        """The plan, once each needed partition has a usable replica; `needed` returns what is needed of a partition, ""
        for nothing; `led`: True if it must be read from the leader; `read_upto`: an offset that its leader must have
        applied, which a new one may still be about to. On time-out raises RangeUnreadable, and BadInput for a partition
        that ends before that offset."""
        options = self._options
        deadline_s = monotonic() + min(options.give_up_after_s, LEADERLESS_S)
        while True:
            plan = fetch_plan(options.urls, options.credentials, options.bucket_type)
            away = [
                needed(one)
                for one in plan.partitions
                if needed(one) and not usable(one, Consistency.COMMITTED if led(one) else Consistency.ANY)
            ]
            short = [
                one
                for one in plan.partitions
                if any(copy.leads and copy.whole for copy in one.copies) and _applied(one) < read_upto(one)
            ]
            if not away and not short:
                return plan
            if monotonic() + RETRY_S >= deadline_s:
                if short:
                    raise BadInput(_beyond_end(plan, short[0], read_upto(short[0])))
                raise RangeUnreadable(f"{away[0]}: no node that answers has a replica that may be read")
            sleep(RETRY_S)


class StreamLag(NamedTuple):
    """How far a query was behind when its newest batch was planned: offsets that replicas had applied and the batch
    left out, in all and by partition. A key that changed several times counts as often. `timestamp`: of the batch."""

    changes: int
    partitions: dict[int, int]
    timestamp: str


def lag(query: Any) -> StreamLag | None:
    """The lag of a streaming query, or of the progress that a StreamingQueryListener receives. None before the first
    batch, and for a query without this source. Several sources are added up."""
    progress = getattr(query, "lastProgress", query)
    if progress is None:
        return None
    raw = json.loads(progress.json) if hasattr(progress, "json") else progress
    behind: dict[int, int] = {}
    found = False
    for source in raw["sources"]:
        end, latest = (_read_offset(source.get(name)) for name in ("endOffset", "latestOffset"))
        if end is None or latest is None:
            continue
        found = True
        for partition, offset in latest.items():
            behind[partition] = behind.get(partition, 0) + max(0, offset - end.get(partition, 0))
    return StreamLag(sum(behind.values()), behind, str(raw["timestamp"])) if found else None


def _read_offset(offset: Any) -> dict[int, int] | None:
    """{partition: offset} of an offset in a progress; None for one of another source."""
    raw = json.loads(offset) if isinstance(offset, str) else offset
    if not isinstance(raw, dict) or not {CLUSTER, PARTITIONS} <= raw.keys():
        return None
    return {int(partition): int(at) for partition, at in raw[PARTITIONS].items()}


def shared(begun: Mapping[int, int], ends: Mapping[int, int], limit: int) -> dict[int, int]:
    """`ends`, reduced so that at most `limit` offsets lie between: as evenly as possible, at least one in all."""
    left = {partition: end - begun[partition] for partition, end in ends.items() if end > begun[partition]}
    given = dict.fromkeys(begun, 0)
    room = max(limit, 1)
    for at, partition in enumerate(sorted(left, key=lambda one: left[one])):
        given[partition] = min(left[partition], -(-room // (len(left) - at)))
        room -= given[partition]
    return {partition: begun[partition] + given[partition] for partition in ends}


def _applied(one: PartitionPlan) -> int:
    """The leader's applied offset; without a leader the highest of the replicas."""
    led = [copy.offset for copy in one.copies if copy.whole and copy.leads]
    return max(led or [copy.offset for copy in one.copies if copy.whole], default=0)


def _lineage(offset: Mapping[str, Any], one: PartitionPlan) -> int:
    """A partition's lineage in an offset; 0 in offsets of earlier versions."""
    return int(offset.get(LINEAGES, {}).get(str(one.partition), 0))


def _incarnation(offset: Mapping[str, Any], one: PartitionPlan) -> int | None:
    """A partition's incarnation in an offset; None in offsets of earlier versions."""
    found = offset.get(INCARNATIONS, {}).get(str(one.partition))
    return None if found is None else int(found)


def _at(offset: Mapping[str, Any], one: PartitionPlan) -> int:
    """Up to where a partition was read in an offset; a new partition begins at 0."""
    return int(offset[PARTITIONS].get(str(one.partition), 0))


def _put_back(offset: Mapping[str, Any], one: PartitionPlan) -> bool:
    """Whether a partition went on from an earlier state since `offset`. A plan with an older lineage is out of date,
    and shows nothing."""
    lineage, incarnation = _lineage(offset, one), _incarnation(offset, one)
    if one.lineage != lineage:
        return one.lineage > lineage
    return None not in (incarnation, one.incarnation) and incarnation != one.incarnation


def _beyond_end(plan: ReplicaDirectory, one: PartitionPlan, offset: int) -> str:
    leader = next(copy.node for copy in one.copies if copy.whole and copy.leads)
    return (
        f"partition {one.partition} of bucket type {plan.bucket_type} in cluster {plan.cluster_name} was read up to"
        f" offset {offset}, and its leader, node {leader}, has nothing beyond {_applied(one)}: it was put back to an"
        " earlier state, as by a restored backup, and uses offsets again that this query has passed. Begin with a new"
        " checkpoint, which reads all of it again"
    )


def _offset(plan: ReplicaDirectory, offsets: Mapping[int, int], before: Mapping[str, Any]) -> dict[str, Any]:
    lineages, incarnations = {}, {}
    for one in plan.partitions:
        lineages[str(one.partition)] = max(one.lineage, _lineage(before, one))
        known = _incarnation(before, one)
        if one.incarnation is not None and (known is None or _put_back(before, one)):
            known = one.incarnation
        if known is not None:
            incarnations[str(one.partition)] = known
    found = {
        CLUSTER: plan.cluster.hex(),
        PARTITIONS: {str(one): offset for one, offset in offsets.items()},
        LINEAGES: lineages,
    }
    return {**found, INCARNATIONS: incarnations} if incarnations else found


def _begun(plan: ReplicaDirectory, offset: Mapping[str, Any]) -> dict[int, int]:
    """{partition: offset}; a new partition begins at 0. Raises UnplannedCluster, BadInput."""
    if offset.get(CLUSTER) != plan.cluster.hex():
        raise UnplannedCluster(
            f"this query's checkpoint is of cluster {offset.get(CLUSTER)}; {plan.cluster_name} is {plan.cluster.hex()}:"
            " begin with a new checkpoint"
        )
    offsets = {int(partition): int(at) for partition, at in offset[PARTITIONS].items()}
    gone = offsets.keys() - {one.partition for one in plan.partitions}
    if gone:
        raise BadInput(
            f"this query's checkpoint has partition {min(gone)}, which bucket type {plan.bucket_type} has no more:"
            " begin with a new checkpoint"
        )
    return {one.partition: offsets.get(one.partition, 0) for one in plan.partitions}
