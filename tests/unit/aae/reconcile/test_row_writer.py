"""`df.write.format("isthmus")`: the requests for rows and the handling of a node's answers, without Java and without
nodes."""

from __future__ import annotations

from collections import Counter
from typing import Any

import msgpack
import pyarrow as pa
import pytest
from pyspark.sql import types as t

from isthmus.aae.reconcile import row_writer
from isthmus.aae.reconcile.client import Pusher
from isthmus.aae.reconcile.options import parse_options
from isthmus.aae.reconcile.row_writer import IsthmusWriter, RequestIds, RowsRejected, WriteTaskResult, send_all
from isthmus.repl.http.client import HttpRefused
from isthmus.repl.model.errors import BadInput, PeerFault

NAMES = [t.StructField("bucket", t.BinaryType()), t.StructField("key", t.BinaryType())]
PUTS = t.StructType([*NAMES, t.StructField("value", t.BinaryType())])
PUSHES = t.StructType([*NAMES, t.StructField("object", t.BinaryType())])


def writer(schema: t.StructType, **options: str) -> IsthmusWriter:
    """One for a table."""
    return IsthmusWriter(parse_options({"urls": "http://n1:1", "give_up_after_s": "1", **options}), schema, False)


def answering(monkeypatch: pytest.MonkeyPatch, *answers: Any) -> list[list[Any]]:
    """Patches nodes to give these answers to batches, in this order; returns the requests."""
    left = list(answers)
    asked: list[list[Any]] = []

    def post(_self: Pusher, _path: str, body: bytes, _limit_bytes: int = 0) -> Any:
        asked.append(msgpack.unpackb(body))
        return left.pop(0)

    monkeypatch.setattr(Pusher, "post", post)
    monkeypatch.setattr(row_writer, "RETRY_S", 0.001)
    return asked


def rows(last: str, *values: bytes | None) -> pa.RecordBatch:
    """A table with one key per value."""
    keys = [b"k%d" % at for at in range(len(values))]
    columns = {"bucket": [b"b"] * len(keys), "key": keys, last: list(values)}
    return pa.RecordBatch.from_pydict({name: pa.array(of, pa.binary()) for name, of in columns.items()})


def test_a_row_for_a_bucket_type_that_is_not_there_is_no_written_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """A delete of a missing key is answered by 404 and counts as done; a write into a missing bucket type is answered
    by 404, too, and does not."""
    unknown = (404, None, "unknown-bucket-type: there is no bucket type b'typo'")
    answering(monkeypatch, [(204, b"clock", None), (404, None, "not-found"), unknown])
    with pytest.raises(RowsRejected, match="1 rows were rejected: b'b'/b'k2': unknown-bucket-type"):
        writer(PUTS).write(iter([rows("value", b"v", None, b"v")]))
    answering(monkeypatch, [(204, b"clock", None), (404, None, "not-found"), unknown])
    told = writer(PUTS, rejected="count").write(iter([rows("value", b"v", None, b"v")]))
    assert told.outcomes == {"applied": 2, "rejected": 1}


@pytest.mark.parametrize(
    "garbage", [[[]], [[1, 2]], [["new", None, None, None]], ["yes"], [[True, None, ""]], [["lost", None]]]
)
@pytest.mark.parametrize(("schema", "column"), [(PUTS, "value"), (PUSHES, "object")])
def test_answers_that_are_none_are_asked_for_again(
    monkeypatch: pytest.MonkeyPatch, garbage: list[Any], schema: t.StructType, column: str
) -> None:
    """A batch with malformed answers is sent again, and counted by the valid ones."""
    sound: list[Any] = [(204, b"", None)] if column == "value" else [("applied", None)]
    asked = answering(monkeypatch, garbage, sound)
    assert writer(schema).write(iter([rows(column, b"v")])).outcomes == {"applied": 1}
    assert len(asked) == 2
    assert asked[0] == asked[1]


def test_a_row_without_an_object_is_rejected_like_any_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """A damaged row of a read has no object: it fails the task, or is counted, and all others are written."""
    answering(monkeypatch, [("applied", None), ("applied", None)])
    with pytest.raises(RowsRejected, match="the row of key b'k1' has no object"):
        writer(PUSHES).write(iter([rows("object", b"o", None, b"o")]))
    asked = answering(monkeypatch, [("applied", None), ("superseded", None)])
    told = writer(PUSHES, rejected="count").write(iter([rows("object", b"o", None, b"o")]))
    assert isinstance(told, WriteTaskResult)
    assert told.outcomes == {"applied": 1, "superseded": 1, "rejected": 1}
    assert "b'k1'" in told.rejected[0]
    assert [item[2] for item in asked[0][2]] == [b"k0", b"k2"]


def test_replaced_rows_are_written_after_the_version_that_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """With on_conflict = replace each row is written with the current clock of its key, be it one version, siblings or
    a deletion; a key that never existed has none. A row with a clock keeps it and is not read first. Failed reads are
    repeated and refused rows are rejected, while all others are written."""
    schema = t.StructType([*PUTS.fields, t.StructField("clock", t.BinaryType())])
    batch = rows("value", *[b"v%d" % at for at in range(6)]).append_column(
        "clock", pa.array([None, b"mine", None, None, None, None], pa.binary())
    )
    read = [
        (300, b"c0", []), (404, b"c2", []), (404, None, "not-found"), (503, None, "overloaded: later"),
        (403, None, "forbidden: no"),
    ]  # fmt: skip
    done = (204, b"new", None)
    asked = answering(monkeypatch, read, [done] * 4, [(200, b"c4", [])], [done])
    told = writer(schema, on_conflict="replace", rejected="count").write(iter([batch]))
    assert told.outcomes == {"applied": 5, "rejected": 1}
    gets, puts, again, last = asked
    assert [one[2:] for one in gets] == [[b"k%d" % at, "committed"] for at in (0, 2, 3, 4, 5)]
    assert [(one[2], one[3], one[5]) for one in puts] == [
        (b"k0", b"v0", b"c0"), (b"k1", b"v1", b"mine"), (b"k2", b"v2", b"c2"), (b"k3", b"v3", None)
    ]  # fmt: skip
    assert [one[2] for one in again] == [b"k4"]
    assert (last[0][2], last[0][5]) == (b"k4", b"c4")
    assert "forbidden: no" in told.rejected[0]


def test_a_replaced_row_that_is_sent_again_has_the_same_request_id(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock that is read for a row changes if its write took effect without the task's knowledge; its request id
    does not, so the cluster does not write it twice."""
    first = [(503, None, "outcome unknown")]
    asked = answering(monkeypatch, [(200, b"c1", [])], first, [(200, b"c2", [])], [(204, b"c2", "repeated")])
    assert writer(PUTS, on_conflict="replace").write(iter([rows("value", b"v")])).outcomes == {"applied": 1}
    assert (asked[1][0][5], asked[3][0][5]) == (b"c1", b"c2")
    assert asked[1][0][7] == asked[3][0][7]


def test_rows_of_one_key_replace_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rows are written in their order within a task: the second is sent after the first is written, so its clock
    follows."""
    done = [(204, b"new", None)]
    asked = answering(monkeypatch, [(404, None, "not-found")], done, [(200, b"c1", [])], done)
    batch = pa.RecordBatch.from_pydict({"bucket": ["b", "b"], "key": ["k", "k"], "value": ["one", "two"]})
    text = t.StructType([t.StructField(name, t.StringType()) for name in ("bucket", "key", "value")])
    assert writer(text, on_conflict="replace").write(iter([batch])).outcomes == {"applied": 2}
    assert [(one[0][3], one[0][5]) for one in asked[1::2]] == [(b"one", None), (b"two", b"c1")]


def test_the_last_of_several_equal_rows_is_written_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the values A, B, A of a key the last A is a write of its own: its request id is not that of the first, which
    the cluster would answer as a repetition. The ids are the same when the task runs again, in another order, too."""
    one = writer(PUTS)
    ids = []
    for values in ((b"A", b"B", b"A"), (b"A", b"B", b"A"), (b"B", b"A", b"A")):
        batch = pa.RecordBatch.from_pydict({"bucket": ["b"] * 3, "key": ["k"] * 3, "value": values})
        asked = answering(monkeypatch, [(204, b"new", None)] * 3)
        one.write(iter([batch]))
        ids.append([row[7] for row in asked[0]])
    assert len(set(ids[0])) == 3
    assert ids[0] == ids[1]
    assert set(ids[2]) == set(ids[0])
    assert writer(PUTS).write_rows(b"other", iter([])).outcomes == {}


def test_equal_rows_far_apart_are_written_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only so many rows are remembered; equal rows on both sides of that limit have ids of their own all the same."""
    monkeypatch.setattr(row_writer, "EQUAL_ROWS_MAX", 2)
    ids = RequestIds(b"job")
    found = [ids.next_id([value]) for value in (b"A", b"B", b"A", b"A", b"A")]
    assert len(set(found)) == 5
    again = RequestIds(b"job")
    assert [again.next_id([value]) for value in (b"A", b"B", b"A", b"A", b"A")] == found


def test_a_bucket_is_not_emptied_by_writing() -> None:
    """mode("overwrite") is refused, with the option that replaces values; rows with clocks replace nothing else."""
    with pytest.raises(BadInput, match="on_conflict = replace"):
        IsthmusWriter(parse_options({"urls": "http://n1:1"}), PUTS, True)
    with pytest.raises(BadInput, match="those with object have a clock"):
        writer(PUSHES, on_conflict="replace")


def test_a_row_without_a_name_is_rejected_like_any_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """A row with a null bucket or key, for example from a name that is not text, writes nothing."""
    batch = pa.RecordBatch.from_pydict(
        {"bucket": ["b", None, "b"], "key": [None, "k1", "k2"], "value": ["v", "v", "v"]}
    )
    asked = answering(monkeypatch, [(204, b"new", None)])
    told = writer(PUTS, rejected="count").write(iter([batch]))
    assert told.outcomes == {"applied": 1, "rejected": 2}
    assert told.rejected == ["a row has no key", "a row has no bucket"]
    assert [one[2] for one in asked[0]] == [b"k2"]


def test_columns_of_other_types_are_refused_before_anything_is_written() -> None:
    """Optional columns must be text or bytes, too; the error names the wrong one."""
    for name in ("bucket_type", "content_type", "clock"):
        with pytest.raises(BadInput, match=f"column {name} .*bigint"):
            writer(t.StructType([*PUTS.fields, t.StructField(name, t.LongType())]))
        writer(t.StructType([*PUTS.fields, t.StructField(name, t.NullType())]))
    for name in ("bucket", "value"):
        without = t.StructType([field for field in PUTS.fields if field.name != name])
        with pytest.raises(BadInput, match=f"column {name} .*none"):
            writer(without)


def test_failed_rows_are_resent_and_given_up_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only failed rows are sent again; a permanent failure ends with an error that has the last reason."""
    monkeypatch.setattr(row_writer, "RETRY_S", 0.001)
    outcomes: Counter[str] = Counter()
    asked: list[list[Any]] = []

    def ask(items: Any) -> list[tuple[str, str]]:
        asked.append([item[2] for item in items])
        return [("failed", "not-ready: later") if item[2] == b"k1" else ("applied", "") for item in items]

    items = [[b"default", b"b", b"k%d" % at, b"v"] for at in range(3)]
    with pytest.raises(PeerFault, match=r"1 rows could not be written in 0\.02 s: not-ready: later"):
        send_all(items, ask, 0.02, outcomes, [])
    assert outcomes == {"applied": 2}
    assert asked[:2] == [[b"k0", b"k1", b"k2"], [b"k1"]]


def test_a_pusher_needs_nodes() -> None:
    """A table is written to a cluster, not to a view of something else."""
    with pytest.raises(BadInput, match="option urls is missing"):
        IsthmusWriter(parse_options({"view": "findings", "path": "/x"}), PUTS, False)


def test_a_batch_that_is_too_large_goes_in_parts() -> None:
    """If a node accepts only smaller batches, all rows are written in parts; a row that is too large by itself is
    rejected without losing the others."""
    outcomes: Counter[str] = Counter()
    reasons: list[str] = []
    taken: list[bytes] = []

    def ask(items: Any) -> list[tuple[str, str]]:
        if sum(len(item[3]) for item in items) > 10:
            raise HttpRefused("http://n1 answers 413: a body of 11 bytes or more", 413, "too-large")
        taken.extend(item[2] for item in items)
        return [("applied", "")] * len(items)

    sizes = [4, 4, 4, 11, 9, 1, 2]
    items = [[b"default", b"b", b"k%d" % at, b"v" * size] for at, size in enumerate(sizes)]
    send_all(items, ask, 1, outcomes, reasons)
    assert outcomes == {"applied": 6, "rejected": 1}
    assert sorted(taken) == [b"k0", b"k1", b"k2", b"k4", b"k5", b"k6"]
    assert reasons == ["b'b'/b'k3': http://n1 answers 413: a body of 11 bytes or more"]
    with pytest.raises(HttpRefused, match="401"):
        send_all(items, refusing(401), 1, outcomes, reasons)


def refusing(status: int) -> Any:
    """A node that takes nothing."""

    def ask(_: Any) -> list[tuple[str, str]]:
        raise HttpRefused(f"answers {status}", status, "no")

    return ask
