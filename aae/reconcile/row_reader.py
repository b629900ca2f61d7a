"""Read a cluster's keys and objects: which ranges, from which nodes, and what to do when a node fails.

The driver plans one Spark partition per partition of the cluster (or part of it), with the nodes of its replicas,
followers first. A task reads its range as one stream, which has one apply offset. When a stream breaks, another replica
continues behind the last row: no key is repeated or skipped, but further rows are as of that replica's offset, and the
manifest lists both parts. With `failover = "fail"` the task fails instead, and Spark reads the range again. Each row
has its `apply_offset`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from time import monotonic, sleep
from typing import Final
from uuid import uuid4

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import datasource as ds
from pyspark.sql import types as t

from isthmus.aae.reconcile.arrow_rows import Columns
from isthmus.aae.reconcile.client import (
    STREAM_TIMEOUT_MS,
    Credentials,
    PartitionPlan,
    ReplicaDirectory,
    ReplicaEndpoint,
    TaskRate,
    fetch_plan,
    open_stream,
)
from isthmus.aae.reconcile.options import RunOptions
from isthmus.aae.row_stream import wire
from isthmus.aae.row_stream.wire import ChangesRequest, Consistency, Head, Rows, RowsRequest, RowView, SkippedTo
from isthmus.aae.run_directory import ReadRange, write_json
from isthmus.repl.http.client import HttpRefused
from isthmus.repl.model.entry import decode_key_row
from isthmus.repl.model.errors import CodecError, Overloaded, PeerFault

RETRY_S: Final = 0.5
"""Pause after all replicas of a range have refused: other streams end and leaders change within seconds."""

PLACE_S: Final = 3_600.0
"""How long a range waits at nodes whose streams are all in use."""

PLACE_RETRY_S: Final = 2.0
TROUBLE_KEPT: Final = 16
"""Errors that the final message lists."""

LEADERLESS_S: Final = 30.0
"""How long a plan waits for a partition without a usable replica: an election takes seconds."""


class SegmentPartition(ds.InputPartition):  # type: ignore[misc]
    """A Spark partition: the segments [first, end) of a partition, and its replicas. It also carries parts of the plan,
    since Spark serializes the reader before it plans: among how many tasks the rate is shared, and the path of the
    manifest."""

    def __init__(
        self, cluster: bytes, partition: int, first: int, end: int, copies: tuple[ReplicaEndpoint, ...]
    ) -> None:
        super().__init__((partition, first, end))
        self.cluster = cluster
        self.partition = partition
        self.first = first
        self.end = end
        self.copies = copies
        self.epoch = 0
        """For a range of changes: the offset that a replica must have applied to be read."""
        self.tasks = 1
        self.manifest = ""


class UnplannedCluster(PeerFault):
    """A URL is of another cluster than the plan."""

    reason = "wrong-cluster"


class RangeUnreadable(PeerFault):
    """No replica of a range could be read; the message names partition and segments."""

    reason = "range-unreadable"


def plan_ranges(
    plan: ReplicaDirectory, segments: tuple[int, int], splits: int, consistency: Consistency
) -> list[SegmentPartition]:
    """The Spark partitions of a read. Raises RangeUnreadable for a partition without a usable replica."""
    first, end = segments
    inside = [one for one in plan.partitions if one.first < end and first < one.end and one.first < one.end]
    pieces = max(1, -(-splits // len(inside))) if inside else 1
    found: list[SegmentPartition] = []
    for one in inside:
        copies = usable(one, consistency)
        if not copies:
            raise RangeUnreadable(
                f"partition {one.partition}, segments {one.first} to {one.end}: no node has a replica that may be read"
                f" ({'only the leader may be read, and there is none' if one.copies else 'no answering node has one'})"
            )
        start, stop = max(first, one.first), min(end, one.end)
        cuts = [start + (stop - start) * at // pieces for at in range(pieces + 1)]
        followers = tuple(copy for copy in copies if not copy.leads)
        leaders = tuple(copy for copy in copies if copy.leads)
        for at in range(pieces):
            if cuts[at] < cuts[at + 1]:
                turned = at % len(followers) if followers else 0
                order = followers[turned:] + followers[:turned] + leaders
                found.append(SegmentPartition(plan.cluster, one.partition, cuts[at], cuts[at + 1], order))
    return found


def usable(one: PartitionPlan, consistency: Consistency) -> tuple[ReplicaEndpoint, ...]:
    """The replicas that may be read, followers first."""
    return tuple(c for c in one.copies if c.whole and (c.leads or consistency is Consistency.ANY))


def wait_for_ranges(
    ask: Callable[[], ReplicaDirectory],
    segments: tuple[int, int],
    splits: int,
    consistency: Consistency,
    give_up_after_s: float,
) -> tuple[ReplicaDirectory, list[SegmentPartition]]:
    """A plan and the Spark partitions of a read, once each has a usable replica: a dead leader is replaced within
    seconds. Raises RangeUnreadable on time-out, and the errors of `ask`."""
    deadline_s = monotonic() + give_up_after_s
    while True:
        plan = ask()
        try:
            return plan, plan_ranges(plan, segments, splits, consistency)
        except RangeUnreadable:
            if monotonic() + RETRY_S >= deadline_s:
                raise
            sleep(RETRY_S)


class RangeStream:
    """The frames of one range, from the replicas that respond. Afterwards `pieces` lists their read points."""

    def __init__(
        self,
        asked: RowsRequest | ChangesRequest,
        part: SegmentPartition,
        credentials: Credentials,
        *,
        give_up_after_s: float,
        resume: bool = True,
        ask: Callable[[], ReplicaDirectory] | None = None,
    ) -> None:
        """`ask` fetches a new plan once all known replicas have refused."""
        self._asked = asked._replace(partition=part.partition, first=part.first, end=part.end)
        self._part = part
        self._credentials = credentials
        self._give_up_after_s = give_up_after_s
        self._resume = resume
        self._ask = ask
        self._copies = part.copies
        self.pieces: list[ReadRange] = []

    def frames(self) -> Iterator[tuple[Head, Rows]]:
        """All frames, each with its stream's head. Raises RangeUnreadable, and HttpRefused for an invalid request."""
        asked = self._asked
        failures: list[str] = []
        deadline_s = monotonic() + self._give_up_after_s
        placed_s = monotonic()
        while True:
            full = False
            for copy in self._copies:
                got = given = False
                try:
                    for head, rows in self._from(copy, asked):
                        if isinstance(rows, Rows):
                            yield head, rows
                            given = True
                        asked = _behind(asked, rows)
                        got = True
                except (PeerFault, CodecError) as error:
                    if isinstance(error, UnplannedCluster) or (isinstance(error, HttpRefused) and error.status < 500):
                        raise
                    failures = [*failures[1 - TROUBLE_KEPT :], str(error)]
                    full = full or (isinstance(error, HttpRefused) and error.reason == Overloaded.reason)
                    if got:
                        placed_s = monotonic()
                        deadline_s = monotonic() + self._give_up_after_s
                        if given and not self._resume:
                            raise self._unreadable("its stream broke", failures) from error
                else:
                    return
            if full and monotonic() < placed_s + PLACE_S:
                deadline_s = max(deadline_s, monotonic() + self._give_up_after_s)  # a busy node counts as reachable
            if monotonic() >= deadline_s:
                raise self._unreadable(f"no replica could be read for {self._give_up_after_s:.0f} s", failures)
            sleep(PLACE_RETRY_S if full else RETRY_S)
            self._refresh_plan()

    def _refresh_plan(self) -> None:
        """Update the replicas from a new plan, if one can be fetched."""
        if self._ask is None:
            return
        consistency = self._asked.consistency if isinstance(self._asked, RowsRequest) else Consistency.ANY
        try:
            plan = self._ask()
        except (PeerFault, CodecError):
            return
        found = [usable(one, consistency) for one in plan.partitions if one.partition == self._part.partition]
        if found and found[0] and plan.cluster == self._part.cluster:
            self._copies = found[0]

    def _from(
        self, copy: ReplicaEndpoint, asked: RowsRequest | ChangesRequest
    ) -> Iterator[tuple[Head, Rows | SkippedTo]]:
        part = self._part
        if isinstance(asked, RowsRequest):
            path, question, after = wire.ROWS_PATH, wire.encode_rows_request(asked), asked.after.hex()
        else:
            path, question, after = wire.CHANGES_PATH, wire.encode_changes_request(asked), ""
        timeout_ms = min(STREAM_TIMEOUT_MS, max(1_000, int(self._give_up_after_s * 1000)))
        with open_stream(copy.url, self._credentials, path, question, timeout_ms) as (head, frames):
            if head.cluster != part.cluster:
                raise UnplannedCluster(
                    f"{copy.url} answers for cluster {head.cluster_name}, uuid {head.cluster.hex()}; the plan is of"
                    f" {part.cluster.hex()}"
                )
            if head.epoch < part.epoch:
                raise PeerFault(
                    f"{copy.url} has applied epoch {head.epoch} of partition {part.partition}, not {part.epoch}"
                )
            if (head.partition, head.first, head.end) != (asked.partition, asked.first, asked.end):
                raise CodecError(f"{copy.url} answers about another range than the requested one")
            count, whole = 0, False
            try:
                for frame in frames:
                    if isinstance(frame, Rows):
                        yield head, frame
                        count += len(frame.names)
                    elif isinstance(frame, SkippedTo):
                        yield head, frame
                whole = True
            finally:
                read = (head.node, head.epoch, head.offset, count, whole)
                self.pieces.append(ReadRange(asked.partition, asked.first, asked.end, after, *read))

    def _unreadable(self, why: str, failures: Sequence[str]) -> RangeUnreadable:
        part = self._part
        of = "segments" if isinstance(self._asked, RowsRequest) else "offsets"
        last = "; ".join(dict.fromkeys(failures[-2 * len(self._copies) :]))
        return RangeUnreadable(f"partition {part.partition}, {of} {part.first} to {part.end}: {why}: {last}")


def _behind(asked: RowsRequest | ChangesRequest, rows: Rows | SkippedTo) -> RowsRequest | ChangesRequest:
    """The request for the rest of the range, behind these rows. Raises CodecError."""
    if isinstance(rows, SkippedTo):
        if not isinstance(asked, RowsRequest) or rows.name <= asked.after:
            raise CodecError("a stream of rows went backwards")
        return asked._replace(after=rows.name)
    if isinstance(asked, RowsRequest):
        return asked._replace(after=rows.names[-1])
    for row in reversed(rows.key_rows):
        with suppress(CodecError):  # a damaged row has no offset: use that of the row before it
            return asked._replace(first=min(decode_key_row(row).offset + 1, asked.end))
    return asked


class IsthmusReader(ds.DataSourceReader):  # type: ignore[misc]
    """Reads `keys` and `objects`. Created on the driver, serialized to executors.

    Spark keeps one reader and its ranges per `load()` and uses them for every query of the table. So there is no
    `pushFilters`: Spark (4.3) would also keep the reader with pushed filters, and apply them to later queries without
    them. Options select the rows, and apply to the whole table.
    """

    def __init__(self, options: RunOptions, schema: t.StructType) -> None:
        self._options = options
        self._schema = schema

    def partitions(self) -> Sequence[SegmentPartition]:
        """The ranges of a read; Spark calls this once per `load()`. Raises BadInput, PeerFault."""
        options = self._options
        plan, found = wait_for_ranges(
            self._ask, options.segments, options.splits, options.consistency, min(options.give_up_after_s, LEADERLESS_S)
        )
        manifest = str(Path(options.manifest, f"read={uuid4().hex[:16]}")) if options.manifest else ""
        for one in found:
            one.tasks, one.manifest = options.tasks_at_once or len(found), manifest
        if manifest:
            write_json(Path(manifest), "plan.json", {
                "cluster": plan.cluster_name, "cluster_uuid": plan.cluster.hex(), "bucket_type": plan.bucket_type,
                "ranges": [[one.partition, one.first, one.end] for one in found],
            })  # fmt: skip
        return found

    def _ask(self) -> ReplicaDirectory:
        options = self._options
        return fetch_plan(options.urls, options.credentials, options.bucket_type)

    def read(self, partition: SegmentPartition) -> Iterator[pa.RecordBatch]:
        """The batches of a range as of now."""
        options, part = self._options, partition
        asked = RowsRequest(
            options.bucket_type.encode(), part.partition, part.first, part.end, RowView(options.view), options.bucket,
            options.prefix, options.modified_since_ms, options.modified_before_ms, b"", options.consistency,
        )  # fmt: skip
        stream = RangeStream(
            asked, part, options.credentials,
            give_up_after_s=options.give_up_after_s, resume=options.failover == "continue", ask=self._ask,
        )  # fmt: skip
        columns = Columns(options.bucket_type, self._schema, options.not_utf8)
        pace = TaskRate(options.rows_per_second / part.tasks)
        for head, rows in stream.frames():
            yield columns.batch(head, rows)
            pace.wait_for(len(rows.names))
        if part.manifest:
            document = {"pieces": [piece._asdict() for piece in stream.pieces]}
            write_json(Path(part.manifest, _action()), _range_document(part), document)


def _action() -> str:
    """In a task: directory name of the action it belongs to; all actions on a table share one plan."""
    context = TaskContext.get()
    if context is None:
        return "action=0"
    execution = context.getLocalProperty("spark.sql.execution.id")
    return f"action={execution}" if execution is not None else f"action=stage-{context.stageId()}"


def _range_document(part: SegmentPartition) -> str:
    """In a task: document name of its range. An action may read a range several times, as when a table is joined with
    itself."""
    context = TaskContext.get()
    task = 0 if context is None else context.partitionId()
    return f"range-{part.partition}-{part.first}-{part.end}.{task}.json"
