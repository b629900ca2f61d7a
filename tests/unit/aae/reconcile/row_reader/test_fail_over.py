"""Reads when nodes fail, refuse or are busy, and their plans, without Java and without nodes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark.serializers import CloudPickleSerializer
from pyspark.sql import datasource as ds

from isthmus.aae import run_directory
from isthmus.aae.reconcile import client, row_reader
from isthmus.aae.reconcile.arrow_rows import schema_of
from isthmus.aae.reconcile.client import Credentials, PartitionPlan, ReplicaDirectory, ReplicaEndpoint, parse_plan
from isthmus.aae.reconcile.options import parse_options
from isthmus.aae.reconcile.row_reader import (
    IsthmusReader,
    RangeStream,
    RangeUnreadable,
    SegmentPartition,
    UnplannedCluster,
)
from isthmus.aae.row_stream import wire
from isthmus.aae.row_stream.wire import Consistency, Head, Rows, RowView, SkippedTo, Tail
from isthmus.aae.scrub.row_repair import _whole_replicas
from isthmus.repl.http.client import HttpRefused
from isthmus.repl.model.errors import BadInput, CodecError, PeerFault
from isthmus.repl.model.keys import SEGMENT_COUNT
from tests.support.entry_histories import CLUSTER
from tests.unit.aae.reconcile.datasource.test_source import COUNT, HEAD, PARTITION, asked, row_wire_name, sealed


def copies(*nodes: str) -> tuple[ReplicaEndpoint, ...]:
    """Copies at nodes."""
    return tuple(ReplicaEndpoint(node, f"http://{node}", False, True, 1, COUNT) for node in nodes)


def test_another_replica_continues_a_broken_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each row is returned once although the first node disconnects; the manifest has both pieces, each with its own
    offset. With `resume` off the range fails instead."""
    names = [row_wire_name(n) for n in range(4)]
    rows = [sealed(n, n)[0] for n in range(4)]
    asks: list[tuple[str, bytes]] = []

    @contextmanager
    def open_stream(
        url: str, _c: Credentials, _p: str, question: bytes, _t: int
    ) -> Iterator[tuple[Head, Iterator[Any]]]:
        after = wire.decode_rows_request(question).after
        asks.append((url, after))

        def frames() -> Iterator[Any]:
            if url == "http://n1":
                yield Rows(names[:2], rows[:2], ())
                raise PeerFault("cut off")
            yield Rows(names[2:], rows[2:], ())
            yield Tail(2)

        yield HEAD._replace(node=url[-2:], offset=COUNT if url == "http://n1" else 290), frames()

    monkeypatch.setattr(row_reader, "open_stream", open_stream)
    part = SegmentPartition(CLUSTER, PARTITION, 0, SEGMENT_COUNT, copies("n1", "n2"))
    stream = RangeStream(asked(), part, Credentials(), give_up_after_s=5)
    assert [name for _, found in stream.frames() for name in found.names] == names
    assert asks == [("http://n1", b""), ("http://n2", names[1])]
    assert [(p.node, p.offset, p.rows, p.whole) for p in stream.pieces] == [
        ("n1", COUNT, 2, False), ("n2", 290, 2, True),
    ]  # fmt: skip
    strict = RangeStream(asked(), part, Credentials(), give_up_after_s=5, resume=False)
    with pytest.raises(RangeUnreadable, match="segments 0 to 1048576: its stream broke"):
        list(strict.frames())


def test_a_reader_goes_on_behind_what_was_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next node does not read again the rows that the first one has skipped, and skipping counts as progress, so
    the range is not given up. The first node sent no row, so with `resume` off the range does not fail."""
    monkeypatch.setattr(row_reader, "RETRY_S", 0.01)
    now = [0.0]
    monkeypatch.setattr(row_reader, "monotonic", lambda: now[0])
    marks = [row_wire_name(n) for n in sorted(range(4), key=row_wire_name)]
    asks: list[bytes] = []

    @contextmanager
    def open_stream(
        _u: str, _c: Credentials, _p: str, question: bytes, _t: int
    ) -> Iterator[tuple[Head, Iterator[Any]]]:
        asks.append(wire.decode_rows_request(question).after)
        now[0] += 4

        def frames() -> Iterator[Any]:
            if len(asks) > len(marks):
                yield Tail(0)
            else:
                yield SkippedTo(marks[len(asks) - 1])
                raise PeerFault("cut off")

        yield HEAD, frames()

    monkeypatch.setattr(row_reader, "open_stream", open_stream)
    part = SegmentPartition(CLUSTER, PARTITION, 0, SEGMENT_COUNT, copies("n1"))
    stream = RangeStream(asked(bucket=b"x"), part, Credentials(), give_up_after_s=5, resume=False)
    assert list(stream.frames()) == []
    assert asks == [b"", *marks]
    assert [(p.after, p.rows, p.whole) for p in stream.pieces] == [
        *((mark.hex(), 0, False) for mark in [b"", *marks[:3]]), (marks[3].hex(), 0, True),
    ]  # fmt: skip
    asks.clear()
    again = [marks[0], marks[1], marks[1], marks[3]]
    marks[2] = marks[0]  # a node that goes back is not believed
    assert list(stream.frames()) == []
    assert asks == [b"", *again]


def test_a_range_without_any_replica_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """If no replica answers, the error names partition and segments; another cluster's answer is refused at once."""
    monkeypatch.setattr(row_reader, "RETRY_S", 0.01)
    told = [HEAD._replace(cluster=b"\x09" * 16)]

    @contextmanager
    def open_stream(url: str, *_: object) -> Iterator[tuple[Head, Iterator[Any]]]:
        if told:
            yield told[0], iter(())
        else:
            raise PeerFault(f"{url}: connection refused")

    monkeypatch.setattr(row_reader, "open_stream", open_stream)
    part = SegmentPartition(CLUSTER, PARTITION, 0, SEGMENT_COUNT, copies("n1"))
    with pytest.raises(UnplannedCluster):
        list(RangeStream(asked(), part, Credentials(), give_up_after_s=5).frames())
    told.clear()
    with pytest.raises(RangeUnreadable, match=r"partition 3, segments 0 to 1048576: .*connection refused"):
        list(RangeStream(asked(), part, Credentials(), give_up_after_s=0.05).frames())


def test_a_range_waits_for_its_place_at_a_node_that_is_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node that serves its maximum of streams has room when one of them ends, so a job with more tasks does not fail,
    however long the ranges are. The wait is bounded."""
    now = [0.0]
    monkeypatch.setattr(row_reader, "monotonic", lambda: now[0])
    monkeypatch.setattr(row_reader, "sleep", lambda pause_s: now.__setitem__(0, now[0] + 10 * pause_s))
    room_s = [600.0]

    @contextmanager
    def open_stream(url: str, *_: object) -> Iterator[tuple[Head, Iterator[Any]]]:
        if url == "http://n2":
            raise PeerFault(f"{url}: connection refused")
        if now[0] < room_s[0]:
            raise HttpRefused("http://n1 answers 503: 16 streams of rows are open", 503, "overloaded")
        yield HEAD, iter([Rows([row_wire_name(0)], [sealed(0, 0)[0]], ()), Tail(1)])

    monkeypatch.setattr(row_reader, "open_stream", open_stream)
    part = SegmentPartition(CLUSTER, PARTITION, 0, SEGMENT_COUNT, copies("n1", "n2"))
    stream = RangeStream(asked(), part, Credentials(), give_up_after_s=5)
    assert [name for _, found in stream.frames() for name in found.names] == [row_wire_name(0)]
    room_s[0] = float("inf")
    with pytest.raises(RangeUnreadable, match="16 streams of rows are open"):
        list(RangeStream(asked(), part, Credentials(), give_up_after_s=5).frames())
    assert now[0] < 600 + row_reader.PLACE_S + 60


def test_a_plan_travels_with_its_ranges(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Spark serializes the reader before it plans, so a task gets its share of the rate, and the manifest of its read,
    from its range; a later plan is another read."""
    held = (ReplicaEndpoint("n1", "http://n1", False, True, 1, COUNT),)
    plan = ReplicaDirectory(CLUSTER, "east", "default", (PartitionPlan(PARTITION, 0, SEGMENT_COUNT, None, held),))
    monkeypatch.setattr(row_reader, "fetch_plan", lambda *_: plan)
    given = {"urls": "http://n1:1", "splits": "4", "rows_per_second": "100", "manifest": str(tmp_path)}
    reader = IsthmusReader(parse_options(given), schema_of(RowView.KEYS))
    spark_packs = CloudPickleSerializer()
    packed = spark_packs.dumps(reader)
    first, second = reader.partitions(), reader.partitions()
    assert [part.tasks for part in first] == [4] * 4
    assert first[0].manifest == first[3].manifest != second[0].manifest

    @contextmanager
    def open_stream(*_: object) -> Iterator[tuple[Head, Iterator[Any]]]:
        part = first[1]
        yield HEAD._replace(first=part.first, end=part.end), iter([Tail(0)])

    monkeypatch.setattr(row_reader, "open_stream", open_stream)
    paces: list[float] = []
    monkeypatch.setattr(row_reader, "TaskRate", lambda rate: paces.append(rate))
    assert list(spark_packs.loads(packed).read(spark_packs.loads(spark_packs.dumps(first[1])))) == []
    assert paces == [25]
    pieces, missing = run_directory.read_manifest(tmp_path)
    assert ([(piece.first, piece.end) for piece in pieces], len(missing)) == ([(first[1].first, first[1].end)], 3)


def test_followers_share_the_splits_and_the_leader_is_asked_last() -> None:
    """With any number of splits, each piece begins at a follower, and the followers get equal numbers of pieces. A
    piece begins at the leader only if there is no follower."""
    leader = ReplicaEndpoint("n3", "http://n3", True, True, 1, COUNT)
    held = PartitionPlan(0, 0, SEGMENT_COUNT, COUNT, (*copies("n1", "n2"), leader))
    plan = ReplicaDirectory(CLUSTER, "east", "default", (held, held._replace(partition=1, copies=(leader,))))
    ranges = row_reader.plan_ranges(plan, (0, SEGMENT_COUNT), 12, Consistency.ANY)
    assert [[copy.node for copy in part.copies] for part in ranges if part.partition == 0] == [
        ["n1", "n2", "n3"],
        ["n2", "n1", "n3"],
    ] * 3
    assert [part.copies for part in ranges if part.partition == 1] == [(leader,)] * 6


def test_no_filter_is_pushed_into_a_reader() -> None:
    """Spark keeps one reader for all plans of a table: one that had taken the filters of a plan would apply them to the
    plans that have none. Spark calls `pushFilters` only where a reader has its own."""
    assert IsthmusReader.pushFilters is ds.DataSourceReader.pushFilters


def test_each_action_on_a_table_has_a_manifest_of_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Spark plans a table once for all actions on it. The pieces that one action read do not count for a later action;
    a range that an action reads twice, in two of its tasks, has the pieces of both."""
    held = (ReplicaEndpoint("n1", "http://n1", False, True, 1, COUNT),)
    plan = ReplicaDirectory(CLUSTER, "east", "default", (PartitionPlan(PARTITION, 0, SEGMENT_COUNT, None, held),))
    monkeypatch.setattr(row_reader, "fetch_plan", lambda *_: plan)
    given = {"urls": "http://n1:1", "splits": "2", "manifest": str(tmp_path)}
    reader = IsthmusReader(parse_options(given), schema_of(RowView.KEYS))
    ranges = reader.partitions()
    as_of = [10]

    @contextmanager
    def open_stream(
        _: str, __: object, ___: str, question: bytes, *____: object
    ) -> Iterator[tuple[Head, Iterator[Any]]]:
        part = wire.decode_rows_request(question)
        yield HEAD._replace(first=part.first, end=part.end, offset=as_of[0]), iter([Tail(0)])

    class FakeTaskContext:
        """A substitute for Spark's TaskContext, which tells the actions of its tasks apart."""

        execution = "0"
        number = 0

        def getLocalProperty(self, name: str) -> str:
            assert name == "spark.sql.execution.id"
            return self.execution

        def partitionId(self) -> int:
            return self.number

    task = FakeTaskContext()
    monkeypatch.setattr(row_reader, "open_stream", open_stream)
    monkeypatch.setattr(row_reader.TaskContext, "get", lambda: task)
    for one in ranges:
        assert list(reader.read(one)) == []
    pieces, missing = run_directory.read_manifest(tmp_path)
    assert ([piece.offset for piece in pieces], missing) == ([10, 10], [])
    task.execution, as_of[0] = "1", 20
    assert list(reader.read(ranges[0])) == []
    pieces, missing = run_directory.read_manifest(tmp_path)
    assert [piece.offset for piece in pieces] == [20]
    assert missing == [(PARTITION, ranges[1].first, ranges[1].end)]
    task.number, as_of[0] = 2, 21
    assert list(reader.read(ranges[0])) == []
    pieces, _ = run_directory.read_manifest(tmp_path)
    assert [piece.offset for piece in pieces] == [20, 21]
    (first,) = tmp_path.glob("read=*/action=0")
    assert [piece.offset for piece in run_directory.read_manifest(first)[0]] == [10, 10]
    with pytest.raises(BadInput, match="no manifest"):
        run_directory.read_manifest(tmp_path / "other")


def test_a_plan_with_a_hole_is_refused() -> None:
    """Partitions that leave out a segment, or an empty list, are not a plan, since a key would be missed."""
    good = (
        b'{"cluster":"e","cluster_uuid":"%s","bucket_type":"t","partitions":[{"partition":0,"segments":[%d,1048576],'
        b'"rows_estimate":null,"copies":[]}]}'
    )
    assert parse_plan(good % (b"00" * 16, 0), "http://a:1").partitions[0].end == SEGMENT_COUNT
    for bad in (
        good % (b"00" * 16, 1),
        good % (b"00" * 15, 0),
        b"{}",
        b"[",
        good.replace(b"1048576", b"9") % (b"00" * 16, 0),
    ):
        with pytest.raises(CodecError):
            parse_plan(bad, "http://a:1")


def test_replicas_are_read_with_tls_if_the_plan_was() -> None:
    """Nodes with `tls.http = "allow"` list themselves with http://: a job that connected with TLS, and its token, does
    not continue in plain text; one that connected without it does."""
    plan = json.dumps(
        {
            "cluster": "e",
            "cluster_uuid": "00" * 16,
            "bucket_type": "t",
            "partitions": [
                {
                    "partition": 0,
                    "segments": [0, SEGMENT_COUNT],
                    "rows_estimate": None,
                    "copies": [
                        {"node": "a", "http": url, "leads": True, "whole": True, "epoch": 1, "offset": 1}
                        for url in ("http://a:1", "https://b:1")
                    ],
                }
            ],
        }
    ).encode()

    def urls(asked_url: str) -> list[str]:
        return [copy.url for copy in parse_plan(plan, asked_url).partitions[0].copies]

    assert urls("https://a:1") == ["https://a:1", "https://b:1"]
    assert urls("http://a:1") == ["http://a:1", "https://b:1"]
    assert [url for _, url in _whole_replicas(plan, 7, "https://a:1")] == ["https://a:1", "https://b:1"]


def test_a_node_that_trickles_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytes that never complete a frame hold a task no longer than a frame may take."""
    now = [0.0]

    def take() -> bytes:
        now[0] += 10
        return b"\0"

    @contextmanager
    def streaming(*_: object, **__: object) -> Iterator[Any]:
        data = [(4_096).to_bytes(4, "big"), wire.encode_head(HEAD)]
        yield lambda: data.pop() if data else take()

    monkeypatch.setattr(client, "monotonic", lambda: now[0])
    monkeypatch.setattr(client.HttpPeer, "streaming", streaming)
    with client.open_stream("http://n1:1", Credentials(), "/rows", b"") as (head, frames):
        assert head == HEAD
        with pytest.raises(PeerFault, match="though bytes trickle"):
            list(frames)
    assert now[0] <= client.FRAME_TIMEOUT_S + 20


def test_a_leader_that_changes_is_found_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """When all known replicas refuse, the plan is requested again, and rows continue after the last one. A plan without
    a leader is requested again until the time is over."""
    monkeypatch.setattr(row_reader, "RETRY_S", 0.01)
    rows = [sealed(n, n)[0] for n in range(2)]

    @contextmanager
    def open_stream(url: str, *_: object) -> Iterator[tuple[Head, Iterator[Any]]]:
        if url == "http://n1":
            raise PeerFault(f"{url}: connection refused")
        yield HEAD._replace(node="n2"), iter([Rows([row_wire_name(0)], rows[:1], ()), Tail(1)])

    def plan(*held: ReplicaEndpoint) -> ReplicaDirectory:
        return ReplicaDirectory(CLUSTER, "east", "default", (PartitionPlan(PARTITION, 0, SEGMENT_COUNT, None, held),))

    (first,), (second,) = copies("n1"), copies("n2")
    leads = second._replace(leads=True)
    monkeypatch.setattr(row_reader, "open_stream", open_stream)
    part = SegmentPartition(CLUSTER, PARTITION, 0, SEGMENT_COUNT, (first,))
    committed = asked(consistency=Consistency.COMMITTED)
    stream = RangeStream(committed, part, Credentials(), give_up_after_s=5, ask=lambda: plan(first, leads))
    assert [name for _, found in stream.frames() for name in found.names] == [row_wire_name(0)]
    plans = [plan(first), plan(first, leads)]
    whole = (0, SEGMENT_COUNT)
    _, ranges = row_reader.wait_for_ranges(lambda: plans.pop(0), whole, 1, Consistency.COMMITTED, 5)
    assert ranges[0].copies == (leads,)
    with pytest.raises(RangeUnreadable, match="only the leader may be read, and there is none"):
        row_reader.wait_for_ranges(lambda: plan(first), whole, 1, Consistency.COMMITTED, 0.05)
