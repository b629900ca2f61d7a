"""`df.write.format("isthmus").mode("append")`: write rows to a cluster, with their clocks or as new writes.

Rows with the column `object`, canonical bytes from the view `objects`, are pushed: clocks are kept, siblings merge, and
repeating changes nothing (`/batch/push`). Rows with `value` are written as by a client: a new version each, after
`clock` if given (`/batch/put`), with a request id of job and row (`RequestIds`), so that a task that runs again within
the cluster's dedup window writes nothing twice. With `on_conflict` = replace a row without `clock` has that of the
key's current version, which is read before (`/batch/get`): it replaces what is there instead of becoming a sibling.
Failed rows are retried until `give_up_after_s`; rejected rows fail the job or are counted (option `rejected`).
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from time import monotonic, sleep
from typing import Any, Final, TypeVar
from uuid import uuid4

import msgpack
import pyarrow as pa
from pyspark.sql import types as t
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from xxhash import xxh3_128_digest

from isthmus.aae.reconcile.client import Pusher, TaskRate
from isthmus.aae.reconcile.options import RunOptions
from isthmus.aae.row_stream import wire
from isthmus.repl.http.client import HttpRefused
from isthmus.repl.model.errors import BadInput, CodecError, PeerFault
from isthmus.repl.model.requests import PushOutcome

PUT_PATH: Final = "/batch/put"
GET_PATH: Final = "/batch/get"

PUSHED: Final = ("object",)
PUT: Final = ("value", "content_type", "clock")
CLOCK: Final = 5
REQUEST_ID: Final = 6
"""Places in a row to put: bucket type, bucket and key precede PUT, the row's request id follows it."""

EQUAL_ROWS_MAX: Final = 200_000
"""Rows of a task among which equal ones are counted: some 30 MB of digests. After as many the count begins again, under
request ids of its own."""

READ_BYTES_MAX: Final = 512 * 1024 * 1024
"""Largest answer with the objects that a batch replaces: a node sends at most `limits.batch_size` (64 MB unless set),
or one object."""

TEXT_OR_BYTES: Final = ("binary", "string", "void")
OPTIONAL: Final = ("bucket_type", "content_type", "clock")

BATCH_BYTES: Final = 4 * 1024 * 1024
"""A batch ends with the row that exceeds this, or at `batch_items`."""

RETRY_S: Final = 0.5
RETRY_S_MAX: Final = 8.0
"""First and longest pause before failed rows are sent again; each pause is twice the last one."""

TOO_LARGE: Final = 413
"""HTTP status of a request above a node's limits; a part of it may be accepted."""

REASONS_MAX: Final = 5
"""Reasons of rejected rows that are reported."""


Found = TypeVar("Found")


@dataclass
class WriteTaskResult(WriterCommitMessage):  # type: ignore[misc]
    """Rows that a task wrote, by outcome, and some reasons of rejected ones."""

    outcomes: dict[str, int]
    rejected: list[str]


class RowsRejected(BadInput):
    """The cluster rejected rows."""

    reason = "rows-rejected"


class RequestIds:
    """Request ids of a task's rows, from the job, the row, and how many equal rows precede it in the task.

    A task that runs again gives each row the id that it had, also if Spark gives the rows in another order, so that the
    cluster writes no row twice. Equal rows have different ids: of the values A, B, A of a key the last one is a write
    of its own. No two different rows share an id, so that none is taken for another one's repetition."""

    def __init__(self, job: bytes) -> None:
        self._job = job
        self._rows = 0
        self._equal: Counter[bytes] = Counter()

    def next_id(self, item: Sequence[Any]) -> str:
        """The id of the task's next row."""
        period, place = divmod(self._rows, EQUAL_ROWS_MAX)
        if not place:
            self._equal.clear()
        self._rows += 1
        digest = xxh3_128_digest(self._job + msgpack.packb(item))
        before = self._equal[digest]
        self._equal[digest] += 1
        return (xxh3_128_digest(msgpack.packb([digest, period, before])) if period or before else digest).hex()


def warn_of_rejected(what: str, messages: Sequence[WriterCommitMessage | None]) -> None:
    """Print, to standard error, how many rows tasks of `what` counted as rejected, with reasons. For `commit`: Spark
    shows a commit message to nobody else."""
    found = [one for one in messages if isinstance(one, WriteTaskResult) and one.outcomes.get("rejected")]
    if found:
        count = sum(one.outcomes["rejected"] for one in found)
        reasons = [reason for one in found for reason in one.rejected][:REASONS_MAX]
        print(f"isthmus: {what}: {count} rows were rejected and not written: {'; '.join(reasons)}", file=sys.stderr)


class IsthmusWriter(DataSourceArrowWriter):  # type: ignore[misc]
    """Writes batches. Created on the driver, serialized to executors."""

    def __init__(self, options: RunOptions, schema: t.StructType, overwrite: bool) -> None:
        """Raises BadInput for missing columns, or columns of other types."""
        if overwrite:
            raise BadInput(
                'a table is not emptied by writing to it: use .mode("append"), with the option on_conflict = replace'
                " where rows are to replace the values of their keys"
            )
        if not options.urls:
            raise BadInput("option urls is missing: this format writes to a cluster, not findings or files")
        self._options = options
        self._job = uuid4().bytes
        names = schema.fieldNames()
        self._push = "object" in names
        wanted = {"bucket": "binary", "key": "binary", ("object" if self._push else "value"): "binary"}
        kinds = {field.name: field.dataType.simpleString() for field in schema.fields}
        for name, kind in wanted.items():
            if kinds.get(name) not in (kind, "string" if name != "object" else kind):
                raise BadInput(
                    f"column {name} ({kind}) is needed, the table has {kinds.get(name, 'none')}; needed are bucket,"
                    " key, and object (a push, clocks kept) or value (a new write), optional bucket_type,"
                    " content_type and clock"
                )
        if self._push and options.on_conflict == "replace":
            raise BadInput("option on_conflict = replace is for rows with value: those with object have a clock")
        for name in OPTIONAL:
            if kinds.get(name, "string") not in TEXT_OR_BYTES:
                raise BadInput(f"column {name} is text or bytes, the table has {kinds[name]}")

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriteTaskResult:
        """Write a task's rows."""
        return self.write_rows(self._job, iterator)

    def write_rows(self, job: bytes, iterator: Iterator[pa.RecordBatch]) -> WriteTaskResult:
        """Write a task's rows, with request ids of `job`. Raises RowsRejected, PeerFault, HttpRefused."""
        options = self._options
        ids = RequestIds(job)
        outcomes: Counter[str] = Counter()
        reasons: list[str] = []
        pace = TaskRate(options.rows_per_second / max(options.tasks_at_once, 1))
        pusher = Pusher(options.urls, options.credentials)
        put = self._replace if options.on_conflict == "replace" else self._put
        ask = partial(pushed, pusher, options.origin) if self._push else partial(put, pusher)
        try:
            for batch in iterator:
                for items in self._batches(batch, ids, outcomes, reasons):
                    send_all(items, ask, options.give_up_after_s, outcomes, reasons)
                    pace.wait_for(len(items))
        finally:
            pusher.close()
        if outcomes["rejected"] and options.rejected == "fail":
            raise RowsRejected(f"{outcomes['rejected']} rows were rejected: {'; '.join(reasons)}")
        return WriteTaskResult(dict(outcomes), reasons)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Name rejected rows; each request took effect with its response."""
        warn_of_rejected("this write", messages)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Does nothing: written rows stay, and writing them again changes nothing."""

    def _batches(
        self, batch: pa.RecordBatch, ids: RequestIds, outcomes: Counter[str], reasons: list[str]
    ) -> Iterator[list[list[Any]]]:
        items: list[list[Any]] = []
        size = 0
        default = self._options.bucket_type.encode()
        names = batch.schema.names
        count = batch.num_rows
        columns = {
            name: batch.column(name).to_pylist() for name in {"bucket_type", "bucket", "key", *PUSHED, *PUT} & {*names}
        }
        kinds = columns.get("bucket_type", [None] * count)
        fields = PUSHED if self._push else PUT
        values = [columns.get(name, [None] * count) for name in fields]
        once = self._options.on_conflict == "replace"  # what a row replaces is read before its request
        names_of_batch: set[tuple[bytes | None, ...]] = set()
        for kind, bucket, key, *rest in zip(kinds, columns["bucket"], columns["key"], *values, strict=True):
            item = [default if kind is None else _bytes(kind), _bytes(bucket), _bytes(key), *map(_bytes, rest)]
            why = ""
            if item[1] is None or item[2] is None:
                why = f"a row has no {'bucket' if item[1] is None else 'key'}"
            elif self._push and item[3] is None:
                why = f"the row of key {item[2]!r} has no object"
            if why:
                if self._options.rejected == "fail":
                    raise RowsRejected(why)
                outcomes["rejected"] += 1
                if len(reasons) < REASONS_MAX:
                    reasons.append(why)
                continue
            if once:
                name = tuple(item[:3])
                if name in names_of_batch:
                    yield items
                    items, size, names_of_batch = [], 0, set()
                names_of_batch.add(name)
            size += sum(len(part) for part in item if part is not None)
            items.append(item if self._push else [*item, ids.next_id(item)])
            if len(items) >= self._options.batch_items or size > BATCH_BYTES:
                yield items
                items, size, names_of_batch = [], 0, set()
        if items:
            yield items

    def _put(self, pusher: Pusher, items: Sequence[list[Any]]) -> list[tuple[str, str]]:
        """Write as a client does; a null value deletes."""
        return self._put_after(pusher, items, [item[CLOCK] for item in items])

    def _put_after(
        self, pusher: Pusher, items: Sequence[list[Any]], clocks: Sequence[bytes | None]
    ) -> list[tuple[str, str]]:
        """Write new versions after these clocks. The request id does not depend on the clock that was read, so that a
        row whose write took effect, unknown to this task, is not written again after its own version."""
        rows = [[*item[:CLOCK], clock, None, item[REQUEST_ID]] for item, clock in zip(items, clocks, strict=True)]
        return _outcomes(items, pusher.post(PUT_PATH, msgpack.packb(rows)), _put_outcome)

    def _replace(self, pusher: Pusher, items: Sequence[list[Any]]) -> list[tuple[str, str]]:
        """Write as a client that has just read each key; rows with a clock as they are."""
        asked = [item for item in items if item[CLOCK] is None]
        body = msgpack.packb([[*item[:3], "committed"] for item in asked])
        read = iter(_outcomes(asked, pusher.post(GET_PATH, body, READ_BYTES_MAX), _get_outcome) if asked else ())
        found = [("", item[CLOCK]) if item[CLOCK] is not None else next(read) for item in items]
        known = [(item, clock) for item, (outcome, clock) in zip(items, found, strict=True) if not outcome]
        written = iter(
            self._put_after(pusher, [item for item, _ in known], [clock for _, clock in known]) if known else ()
        )
        return [(outcome, str(reason)) if outcome else next(written) for outcome, reason in found]


def send_all(
    items: Sequence[list[Any]],
    ask: Callable[[Sequence[list[Any]]], list[tuple[str, str]]],
    give_up_after_s: float,
    outcomes: Counter[str],
    reasons: list[str],
) -> None:
    """Send items [bucket type, bucket, key, ...] until each has an outcome, which is counted; `ask` sends some and
    returns (outcome, reason) of each. A request that is too large is split. Raises PeerFault on time-out, HttpRefused
    for an invalid request."""
    deadline_s = monotonic() + give_up_after_s
    pause_s = RETRY_S
    left = [list(items)]
    while True:
        failed: list[list[Any]] = []
        why = ""
        while left:
            part = left.pop()
            try:
                answers = ask(part)
            except (PeerFault, CodecError) as error:
                if isinstance(error, HttpRefused) and error.status < 500:
                    if error.status != TOO_LARGE:
                        raise
                    half = len(part) // 2
                    if half:
                        left += [part[half:], part[:half]]
                        continue
                    answers = [("rejected", str(error))]
                else:
                    failed, why = failed + part, str(error)
                    continue
            for item, (outcome, reason) in zip(part, answers, strict=True):
                if outcome == "failed":
                    failed.append(item)
                    why = reason
                    continue
                outcomes[outcome] += 1
                if outcome == "rejected" and len(reasons) < REASONS_MAX:
                    reasons.append(f"{item[1]!r}/{item[2]!r}: {reason}")
        if not failed:
            return
        if monotonic() + pause_s > deadline_s:
            raise PeerFault(f"{len(failed)} rows could not be written in {give_up_after_s} s: {why}")
        sleep(pause_s)
        pause_s = min(2 * pause_s, RETRY_S_MAX)
        left = [failed]


def pushed(pusher: Pusher, origin: bytes, items: Sequence[list[Any]]) -> list[tuple[str, str]]:
    """Push objects with their clocks; `origin`: the cluster that they come from, b"": the receiving one."""
    body = msgpack.packb([wire.PUSH_VERSION, origin or None, items])
    return _outcomes(items, pusher.post(wire.PUSH_PATH, body), _push_outcome)


def _outcomes(
    items: Sequence[Any], answers: Sequence[Any], read: Callable[[Any], tuple[str, Found] | None]
) -> list[tuple[str, Found]]:
    """(outcome, what `read` finds in the answer) of each item. Raises CodecError."""
    if len(answers) != len(items):
        raise CodecError(f"{len(answers)} answers to {len(items)} rows")
    found = []
    for answer in answers:
        one = read(answer)
        if one is None:
            raise CodecError(f"not an answer to a row: {answer!r:.100}")
        found.append(one)
    return found


def _push_outcome(answer: Any) -> tuple[str, str] | None:
    match answer:
        case [str(outcome), str() | None as reason] if outcome in _PUSH_OUTCOMES:
            return outcome, str(reason)
    return None


_PUSH_OUTCOMES: Final = frozenset(one.value for one in PushOutcome)


def _put_outcome(answer: Any) -> tuple[str, str] | None:
    match answer:
        case [204, _, _] | [404, _, "not-found"]:  # the second: a delete of an absent key
            return "applied", ""
        case [int(status), _, reason] if 400 <= status < 600:
            return ("failed" if status >= 500 else "rejected"), str(reason)
    return None


def _get_outcome(answer: Any) -> tuple[str, Any] | None:
    """("", clock or None) of a key that was read, else (outcome, reason)."""
    match answer:
        case [200 | 300 | 404, bytes() as clock, _]:
            return "", clock
        case [404, None, "not-found"]:
            return "", None
        case [int(status), None, reason] if 400 <= status < 600:
            return ("failed" if status >= 500 else "rejected"), str(reason)
    return None


def _bytes(value: Any) -> bytes | None:
    return value.encode() if isinstance(value, str) else value
