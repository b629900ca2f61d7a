"""Reading a cluster's keys and objects: which ranges, from which nodes, and what to do when one of them goes away.

The driver plans: one Spark partition for each partition of the cluster (or piece of it), with the nodes that hold a
copy, followers first. A task reads its range as one stream, which is of one apply offset. When a stream breaks, another
copy goes on behind the last row that was handed on: no key comes twice or is passed over, but from there on the rows
are as of that copy's offset, and the manifest has both pieces; with `failover = "fail"` the task fails instead, and
Spark reads the range anew. Each row says in `apply_offset` what it is as of.
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
    asked_plan,
    streamed,
)
from isthmus.aae.reconcile.manifest import ReadRange, write_json
from isthmus.aae.reconcile.options import RunOptions
from isthmus.aae.reconcile.rate import TaskRate
from isthmus.aae.row_stream import wire
from isthmus.aae.row_stream.wire import ChangesRequest, Consistency, Head, Rows, RowsRequest, RowView, SkippedTo
from isthmus.repl.http.client import HttpRefused
from isthmus.repl.model.entry import decode_key_row
from isthmus.repl.model.errors import CodecError, Overloaded, PeerFault

RETRY_S: Final = 0.5
"""Pause after all copies of a range have refused: streams of others end, leaders change, within seconds."""

PLACE_S: Final = 3_600.0
"""How long a range waits for a place at a node that serves as many streams as it may, at most: other tasks read."""

PLACE_RETRY_S: Final = 2.0
TROUBLE_KEPT: Final = 16
"""Refusals that are remembered, to be told."""

LEADERLESS_S: Final = 30.0
"""How long a plan waits for a partition that nobody may be asked about, at most: an election takes seconds."""


class SegmentPartition(ds.InputPartition):  # type: ignore[misc]
    """A Spark partition: the segments [first, end) of a partition, and where its copies are. What the plan says of a
    read travels with it, since Spark has packed the reader before it plans: among how many tasks its rate is shared,
    and where its manifest is."""

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
        """Of changes: what a copy must have applied to be read."""
        self.tasks = 1
        self.manifest = ""


class UnplannedCluster(PeerFault):
    """A URL is of another cluster than the plan."""

    reason = "wrong-cluster"


class RangeUnreadable(PeerFault):
    """No copy of a range could be read; the message names partition and segments."""

    reason = "range-unreadable"


def ranges_of(
    plan: ReplicaDirectory, segments: tuple[int, int], splits: int, consistency: Consistency
) -> list[SegmentPartition]:
    """The Spark partitions of a read. Raises RangeUnreadable for a partition without a usable copy."""
    first, end = segments
    inside = [one for one in plan.partitions if one.first < end and first < one.end and one.first < one.end]
    pieces = max(1, -(-splits // len(inside))) if inside else 1
    found: list[SegmentPartition] = []
    for one in inside:
        copies = usable(one, consistency)
        if not copies:
            raise RangeUnreadable(
                f"partition {one.partition}, segments {one.first} to {one.end}: no node has a copy that may be read"
                f" ({'only the leader may, and there is none' if one.copies else 'no node that answers holds it'})"
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
    """The copies that may be read, followers first."""
    return tuple(c for c in one.copies if c.whole and (c.leads or consistency is Consistency.ANY))


def asked_ranges(
    ask: Callable[[], ReplicaDirectory],
    segments: tuple[int, int],
    splits: int,
    consistency: Consistency,
    give_up_after_s: float,
) -> tuple[ReplicaDirectory, list[SegmentPartition]]:
    """A plan, and the Spark partitions of a read, as soon as each has a usable copy: a leader that dies is replaced
    within seconds. Raises RangeUnreadable when none comes, and what `ask` raises."""
    deadline_s = monotonic() + give_up_after_s
    while True:
        plan = ask()
        try:
            return plan, ranges_of(plan, segments, splits, consistency)
        except RangeUnreadable:
            if monotonic() + RETRY_S >= deadline_s:
                raise
            sleep(RETRY_S)


class RangeStream:
    """The frames of one range, from whichever copies answer. `pieces` says afterwards what they are as of."""

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
        """`ask`: who holds what now, asked anew once all known copies have refused: leaders change."""
        self._asked = asked._replace(partition=part.partition, first=part.first, end=part.end)
        self._part = part
        self._credentials = credentials
        self._give_up_after_s = give_up_after_s
        self._resume = resume
        self._ask = ask
        self._copies = part.copies
        self.pieces: list[ReadRange] = []

    def frames(self) -> Iterator[tuple[Head, Rows]]:
        """All of them, each with its stream's head. Raises RangeUnreadable, and Refused for a question that is wrong
        for every node."""
        asked = self._asked
        trouble: list[str] = []
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
                    trouble = [*trouble[1 - TROUBLE_KEPT :], str(error)]
                    full = full or (isinstance(error, HttpRefused) and error.reason == Overloaded.reason)
                    if got:
                        placed_s = monotonic()
                        deadline_s = monotonic() + self._give_up_after_s
                        if given and not self._resume:
                            raise self._unreadable("its stream broke", trouble) from error
                else:
                    return
            if full and monotonic() < placed_s + PLACE_S:
                deadline_s = max(deadline_s, monotonic() + self._give_up_after_s)  # a node that is busy is there
            if monotonic() >= deadline_s:
                raise self._unreadable(f"no copy could be read for {self._give_up_after_s:.0f} s", trouble)
            sleep(PLACE_RETRY_S if full else RETRY_S)
            self._look_around()

    def _look_around(self) -> None:
        """Take the copies that there are now; those known before when nobody tells."""
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
        with streamed(copy.url, self._credentials, path, question, timeout_ms) as (head, frames):
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
                raise CodecError(f"{copy.url} answers about another range than was asked for")
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

    def _unreadable(self, why: str, trouble: Sequence[str]) -> RangeUnreadable:
        part = self._part
        of = "segments" if isinstance(self._asked, RowsRequest) else "offsets"
        last = "; ".join(dict.fromkeys(trouble[-2 * len(self._copies) :]))
        return RangeUnreadable(f"partition {part.partition}, {of} {part.first} to {part.end}: {why}: {last}")


def _behind(asked: RowsRequest | ChangesRequest, rows: Rows | SkippedTo) -> RowsRequest | ChangesRequest:
    """What is left to ask once these rows have been handed on, or passed over. Raises CodecError."""
    if isinstance(rows, SkippedTo):
        if not isinstance(asked, RowsRequest) or rows.name <= asked.after:
            raise CodecError("a stream of rows says that it is behind where it was")
        return asked._replace(after=rows.name)
    if isinstance(asked, RowsRequest):
        return asked._replace(after=rows.names[-1])
    for row in reversed(rows.key_rows):
        with suppress(CodecError):  # a damaged row does not tell where it is: that of the one before it will do
            return asked._replace(first=min(decode_key_row(row).offset + 1, asked.end))
    return asked


class IsthmusReader(ds.DataSourceReader):  # type: ignore[misc]
    """Reads `keys` and `objects`. Made on the driver, travels to the executors.

    Spark keeps one reader with its ranges for each `load()` and uses it for every plan of the table. So there is no
    `pushFilters`: Spark (4.3) keeps the reader that filters were pushed into, too, and would apply them to later
    actions that do not have them. What is to be read is said by options alone, which hold for the whole table.
    """

    def __init__(self, options: RunOptions, schema: t.StructType) -> None:
        self._options = options
        self._schema = schema

    def partitions(self) -> Sequence[SegmentPartition]:
        """The ranges of a read, which Spark keeps: it asks once for each `load()`, whatever is done with the table.
        Raises BadInput, PeerFault."""
        options = self._options
        plan, found = asked_ranges(
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
        return asked_plan(options.urls, options.credentials, options.bucket_type)

    def read(self, partition: SegmentPartition) -> Iterator[pa.RecordBatch]:
        """The batches of a range, as it is now."""
        options, part = self._options, partition
        asked = RowsRequest(
            options.bucket_type.encode(), part.partition, part.first, part.end, RowView(options.view), options.bucket,
            options.prefix, options.modified_since_ms, options.modified_before_ms, b"", options.consistency,
        )  # fmt: skip
        stream = RangeStream(
            asked, part, options.credentials,
            give_up_after_s=options.give_up_after_s, resume=options.failover == "continue", ask=self._ask,
        )  # fmt: skip
        columns = Columns(options.bucket_type, self._schema)
        pace = TaskRate(options.rows_per_second / part.tasks)
        for head, rows in stream.frames():
            yield columns.batch(head, rows)
            pace.passed(len(rows.names))
        if part.manifest:
            document = {"pieces": [piece._asdict() for piece in stream.pieces]}
            write_json(Path(part.manifest, _action()), _range_document(part), document)


def _action() -> str:
    """In a task: the directory of the action that it works for. All actions on a table have one plan."""
    context = TaskContext.get()
    if context is None:
        return "action=0"
    execution = context.getLocalProperty("spark.sql.execution.id")
    return f"action={execution}" if execution is not None else f"action=stage-{context.stageId()}"


def _range_document(part: SegmentPartition) -> str:
    """In a task: the name of what it read. An action may read a range several times: a table joined with itself."""
    context = TaskContext.get()
    task = 0 if context is None else context.partitionId()
    return f"range-{part.partition}-{part.first}-{part.end}.{task}.json"
