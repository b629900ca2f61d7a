"""The parts of `format("isthmus")` that need no Java: frames, streams of rows, columns, fail-over, options."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from xxhash import xxh64_intdigest

from isthmus.aae.reconcile import row_reader, stream_reader
from isthmus.aae.reconcile.arrow_rows import Columns, schema_of
from isthmus.aae.reconcile.client import PartitionPlan, ReplicaDirectory, ReplicaEndpoint
from isthmus.aae.reconcile.options import RunOptions, parse_options
from isthmus.aae.reconcile.stream_reader import IsthmusStreamReader, shared
from isthmus.aae.row_stream import wire
from isthmus.aae.row_stream.streams import STREAMS_MAX, LocalReplica, RowStreams, StreamReplicas
from isthmus.aae.row_stream.wire import (
    ChangesRequest,
    Consistency,
    Frames,
    Head,
    Rows,
    RowsRequest,
    RowView,
    SkippedTo,
    Tail,
)
from isthmus.repl.machine import machine
from isthmus.repl.model.entry import NO_OFFSET, EntryKind, make_entry
from isthmus.repl.model.entry import encode_key_row as row_of
from isthmus.repl.model.errors import BadInput, CodecError, NotLeader, NotReady, Overloaded
from isthmus.repl.model.keys import SEGMENT_COUNT, key_hash, segment_of
from isthmus.repl.model.objects import Object, Sibling, encode_with_summary
from isthmus.repl.model.this_node import ThisNode
from isthmus.repl.model.vclock import actor_of, pack_counter
from isthmus.repl.store.leveldb import LevelStore
from isthmus.repl.store.port import PartitionStep
from tests.support.entry_histories import CLUSTER, open_store

PARTITION = 3
COUNT = 300
HALF = SEGMENT_COUNT // 2


def sealed(n: int, at: int) -> tuple[bytes, bytes]:
    """(key row, object) of the n-th key, written at offset `at`."""
    dot = (actor_of(CLUSTER, PARTITION), pack_counter(1, at + 1))
    sibling = Sibling(dot, 1_000 + n, n % 10 == 0, b"" if n % 10 == 0 else b"value-%d" % n, b"text/plain")
    data, summary = encode_with_summary(Object(((*dot, 7),), (sibling,)))
    return row_of(summary, at), data


def name_of(n: int) -> tuple[bytes, bytes]:
    """The n-th (bucket, key)."""
    return (b"a", b"bb", b"\xff\x00")[n % 3], b"key-%03d" % n


def write(store: LevelStore, numbers: list[int], first: int, previous: int = NO_OFFSET) -> None:
    """Entries of these keys from offset `first`."""
    entries = []
    for at, n in enumerate(numbers, first):
        bucket, key = name_of(n)
        row, data = sealed(n, at)
        entries.append(
            make_entry(
                EntryKind.DATA, 1, at, request_id=b"", origin=CLUSTER, time_ms=at, key_hash=key_hash(bucket, key),
                previous_offset=previous, bucket=bucket, key=key, row=row, payload=data,
            )
        )  # fmt: skip
    store.write([PartitionStep(PARTITION, entries)])


@pytest.fixture
def store(tmp_path: Path) -> Iterator[LevelStore]:
    """A store with COUNT keys of three buckets, one of them with a zero byte."""
    with closing(open_store(tmp_path)) as opened:
        write(opened, list(range(COUNT)), 0)
        yield opened


class OneReplica(StreamReplicas):
    """A node with one replica."""

    def __init__(self, replica: LocalReplica) -> None:
        self._replica = replica

    def stream_replica(self, partition: int) -> LocalReplica | None:
        """See StreamReplicas."""
        return self._replica if partition == self._replica.partition else None

    def stream_replicas(self, bucket_type: bytes) -> list[LocalReplica]:
        """See StreamReplicas."""
        return [self._replica]

    async def confirm(self, partition: int) -> None:
        """See StreamReplicas."""


def streams_of(store: LevelStore, *, whole: bool = True, leads: bool = True) -> RowStreams:
    """Streams of the one partition, which has all segments."""

    replica = LocalReplica(b"default", PARTITION, (0, SEGMENT_COUNT), leads, whole)
    return RowStreams(store, ThisNode("n1", "east", CLUSTER), OneReplica(replica))


def asked(**other: Any) -> RowsRequest:
    """All of the partition."""
    return RowsRequest(b"default", PARTITION, 0, SEGMENT_COUNT)._replace(**other)


async def taken(streams: RowStreams, what: RowsRequest | ChangesRequest) -> tuple[Head, list[Rows], Tail]:
    """A stream, read to its end."""
    opened = await (streams.rows(what) if isinstance(what, RowsRequest) else streams.changes(what))
    frames = Frames()
    head, *rest, tail = [frame async for data in opened for frame in frames.feed(data)]
    assert isinstance(head, Head)
    assert isinstance(tail, Tail)
    assert tail.rows == sum(len(rows.names) for rows in rest if isinstance(rows, Rows))
    return head, [rows for rows in rest if isinstance(rows, Rows)], tail


def table(head: Head, frames: list[Rows], view: RowView = RowView.KEYS) -> list[dict[str, Any]]:
    """Rows as Spark would get them."""
    columns = Columns("default", schema_of(view))
    return [row for rows in frames for row in columns.batch(head, rows).to_pylist()]


async def test_a_stream_is_of_the_moment_at_which_it_was_opened(store: LevelStore) -> None:
    """Every key is returned once, in segment order, as of the offset in the head, even if keys are written
    meanwhile."""

    streams = streams_of(store)
    opened = await streams.rows(asked())
    frames = Frames()
    (head,) = frames.feed(await anext(opened))
    write(store, [1000, 1001], COUNT)
    rest = [frame async for data in opened for frame in frames.feed(data)]
    assert isinstance(head, Head)
    assert (head.offset, head.node, head.cluster) == (COUNT, "n1", CLUSTER)
    rows = table(head, [frame for frame in rest if isinstance(frame, Rows)])
    assert {(row["bucket"], row["key"]) for row in rows} == {name_of(n) for n in range(COUNT)}
    assert [row["segment"] for row in rows] == sorted(row["segment"] for row in rows)
    assert streams.running == 0
    await streams.close()


async def test_columns_match_the_store(store: LevelStore) -> None:
    """Names, hashes, times, flags and values of each key are those that were written."""

    streams = streams_of(store)
    head, frames, _ = await taken(streams, asked(view=RowView.OBJECTS))
    rows = {(row["bucket"], row["key"]): row for row in table(head, frames, RowView.OBJECTS)}
    for n in range(COUNT):
        row = rows[name_of(n)]
        _, data = sealed(n, n)
        assert row["segment"] == segment_of(key_hash(*name_of(n)))
        assert row["object"] == data
        assert row["object_hash"] % (1 << 64) == xxh64_intdigest(data)
        assert row["clock_hash"] % (1 << 64) == xxh64_intdigest(row["clock"], 42)
        assert row["last_modified"].timestamp() == pytest.approx((1_000 + n) / 1000)
        assert row["tombstone"] == (n % 10 == 0)
        assert row["value"] == (None if n % 10 == 0 else b"value-%d" % n)
        assert (row["size"], row["siblings"], row["change_offset"]) == (len(data), 1, n)
        assert (row["apply_epoch"], row["apply_offset"], row["partition"]) == (1, COUNT, PARTITION)
        assert row["contents"][0]["offset"] == n + 1
        assert row["fault"] is None
    await streams.close()


@pytest.mark.parametrize(
    ("other", "wanted"),
    [
        ({"bucket": b"bb"}, lambda n: n % 3 == 1),
        ({"bucket": b"\xff\x00", "prefix": b"key-1"}, lambda n: n % 3 == 2 and 100 <= n < 200),
        ({"since_ms": 1_100, "before_ms": 1_200}, lambda n: 100 <= n < 200),
        ({"end": HALF}, lambda n: segment_of(key_hash(*name_of(n))) < HALF),
        ({"first": HALF}, lambda n: segment_of(key_hash(*name_of(n))) >= HALF),
    ],
)
async def test_a_node_sends_only_what_was_asked_for(store: LevelStore, other: dict[str, Any], wanted: Any) -> None:
    """Bucket, prefix, times and segments each select exactly the matching rows."""

    streams = streams_of(store)
    head, frames, _ = await taken(streams, asked(**other))
    found = {(row["bucket"], row["key"]) for row in table(head, frames)}
    assert found == {name_of(n) for n in range(COUNT) if wanted(n)}
    await streams.close()


async def test_a_stream_goes_on_behind_any_row(store: LevelStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream that is resumed after any row returns exactly the remaining rows."""
    monkeypatch.setattr("isthmus.aae.row_stream.streams.SLICE_ROWS", 7)
    monkeypatch.setattr("isthmus.aae.row_stream.streams.FRAME_SLICES", 1)

    streams = streams_of(store)
    _, frames, _ = await taken(streams, asked())
    names = [name for rows in frames for name in rows.names]
    assert len(frames) > 40
    for at in (0, 6, 7, 150, COUNT - 1):
        _, rest, _ = await taken(streams, asked(after=names[at]))
        assert [name for rows in rest for name in rows.names] == names[at + 1 :]
    await streams.close()


async def test_a_stream_without_matches_reports_its_position(
    store: LevelStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For rows that the request excludes, the reader gets position marks as often as it gets rows of others. So it does
    not take the node for dead, and other streams get their turn. A stream can resume after each mark."""
    monkeypatch.setattr("isthmus.aae.row_stream.streams.SLICE_ROWS", 50)
    monkeypatch.setattr("isthmus.aae.row_stream.streams.FRAME_SLICES", 1)

    async def marks(streams: RowStreams, what: RowsRequest) -> list[bytes]:
        frames = Frames()
        found = [frame async for data in await streams.rows(what) for frame in frames.feed(data)]
        return [frame.name for frame in found if isinstance(frame, SkippedTo)]

    streams = streams_of(store)
    _, rows, _ = await taken(streams, asked())
    names = [name for frame in rows for name in frame.names]
    nobody = await marks(streams, asked(bucket=b"nobody"))
    assert nobody == [names[at] for at in range(49, COUNT, 50)]
    assert await marks(streams, asked(bucket=b"nobody", after=nobody[1])) == nobody[2:]
    assert await marks(streams, asked()) == []
    await streams.close()


async def test_streams_are_bounded_and_given_back(store: LevelStore) -> None:
    """One stream more than the limit is refused; closing a stream frees its slot, also before its end."""

    streams = streams_of(store)
    opened = [await streams.rows(asked()) for _ in range(STREAMS_MAX)]
    for one in opened:
        await anext(one)
    with pytest.raises(Overloaded, match="its limit"):
        await streams.rows(asked())
    for one in opened:
        await one.aclose()
    assert streams.running == 0
    await taken(streams, asked())
    streams.stop()
    with pytest.raises(NotReady, match="stopping"):
        await streams.rows(asked())
    await streams.close()


async def test_a_plan_does_not_wait_for_the_frames_of_streams(
    store: LevelStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node with many paused streams answers a plan request at once; otherwise the plan would omit the node, and its
    data could not be read."""
    rested = threading.Event()
    monkeypatch.setattr("isthmus.aae.row_stream.streams.TreeThrottle.rest_s", lambda *_: 0.2)
    monkeypatch.setattr(machine(), "sleep", lambda _: rested.wait(30))

    streams = streams_of(store)
    opened = [await streams.rows(asked()) for _ in range(8)]
    for one in opened:
        await anext(one)
    begun = [asyncio.ensure_future(anext(one)) for one in opened]
    await asyncio.sleep(0.01)
    async with asyncio.timeout(20):  # the frames take longer
        assert await streams.estimates([LocalReplica(b"default", PARTITION, (0, SEGMENT_COUNT), True, True)]) == [COUNT]
    assert not any(one.done() for one in begun)
    rested.set()
    await asyncio.gather(*begun)
    for one in opened:
        await one.aclose()
    await streams.close()


async def test_an_estimate_is_cached_for_a_moment_only(store: LevelStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans in quick succession read no rows; a later one counts again."""

    streams = streams_of(store)
    held = LocalReplica(b"default", PARTITION, (0, SEGMENT_COUNT), True, True)
    assert await streams.estimates([held]) == [COUNT]
    write(store, [1000], COUNT)
    assert await streams.estimates([held]) == [COUNT]
    monkeypatch.setattr("isthmus.aae.row_stream.streams.ESTIMATE_KEPT_S", 0.0)
    assert await streams.estimates([held]) == [COUNT + 1]
    await streams.close()


async def test_a_replica_that_may_not_answer_refuses_with_a_reason(store: LevelStore) -> None:
    """No replica, one in state transfer, a follower asked for committed rows, and wrong segments each have a reason."""

    with pytest.raises(NotReady, match="no replica"):
        await streams_of(store).rows(asked(partition=4))
    with pytest.raises(NotReady, match="being filled"):
        await streams_of(store, whole=False).rows(asked())
    with pytest.raises(NotLeader):
        await streams_of(store, leads=False).rows(asked(consistency=Consistency.COMMITTED))
    with pytest.raises(NotReady, match="is applied to"):
        await streams_of(store).changes(ChangesRequest(b"default", PARTITION, 0, COUNT + 1))


async def test_changes_come_once_in_the_range_where_they_now_are(store: LevelStore) -> None:
    """A key that changed again is only in the later range; all ranges together have every key once."""

    streams = streams_of(store)
    write(store, [5], COUNT, previous=5)
    early, late = (
        ChangesRequest(b"default", PARTITION, 0, 100),
        ChangesRequest(b"default", PARTITION, 100, COUNT + 1),
    )
    first = table(*(await taken(streams, early))[:2])
    second = table(*(await taken(streams, late._replace(view=RowView.OBJECTS)))[:2], RowView.OBJECTS)
    assert {row["key"] for row in first} == {name_of(n)[1] for n in range(100) if n != 5}
    assert {row["key"] for row in second} == {name_of(n)[1] for n in (5, *range(100, COUNT))}
    await streams.close()


def test_damage_is_a_row_with_a_fault(store: LevelStore) -> None:
    """`fault` reports a key row that cannot be read, an object that does not match its row, and a missing object; sound
    rows beside them are complete."""
    names = [row_wire_name(n) for n in range(4)]
    made = [sealed(n, n) for n in range(4)]
    head = Head(CLUSTER, "east", "n1", PARTITION, 0, SEGMENT_COUNT, 1, COUNT)
    rows = Rows(names, [made[0][0][:-3], made[1][0], made[2][0], made[3][0]], [made[0][1], made[2][1], b"", made[3][1]])
    found = table(head, [rows], RowView.OBJECTS)
    assert "not a key row" in found[0]["fault"]
    assert found[0]["clock"] is None
    assert "its hash differs" in found[1]["fault"]
    assert "no object" in found[2]["fault"]
    assert found[3]["fault"] is None
    assert [row["key"] for row in found] == [name_of(n)[1] for n in range(4)]


def test_an_index_has_all_of_its_values() -> None:
    """An object may have several values in one index; a reader gets all of them, in order."""
    pairs = ((b"town_bin", b"corinth"), (b"age_int", b"7"), (b"town_bin", b"argos"))
    dot = (actor_of(CLUSTER, PARTITION), pack_counter(1, 1))
    sibling = Sibling(dot, 1_000, False, b"v", b"text/plain", indexes=pairs)
    data, summary = encode_with_summary(Object(((*dot, 7),), (sibling,)))
    [row] = table(HEAD, [Rows([row_wire_name(0)], [row_of(summary, 0)], [data])], RowView.OBJECTS)
    assert row["fault"] is None
    assert dict(row["contents"][0]["indexes"]) == {"town_bin": ["corinth", "argos"], "age_int": ["7"]}


async def test_a_damaged_row_stops_no_stream_of_changes(store: LevelStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """The row is returned with its fault, among the others; a reader that resumes after the frame misses no row."""
    real = store.transfers.snapshot

    class DamagedSnapshot:
        """A snapshot of the store in which one key row is damaged."""

        def __init__(self, partition: int) -> None:
            self._snapshot = real(partition)

        def __getattr__(self, name: str) -> Any:
            return getattr(self._snapshot, name)

        def named_key_row(self, name: bytes) -> bytes | None:
            return b"\xc1" if name == row_wire_name(7) else self._snapshot.named_key_row(name)

    monkeypatch.setattr(store.transfers, "snapshot", DamagedSnapshot)

    streams = streams_of(store)
    for view in RowView:
        question = ChangesRequest(b"default", PARTITION, 0, 20, view)
        head, frames, _ = await taken(streams, question)
        rows = table(head, frames, view)
        assert {row["key"] for row in rows} == {name_of(n)[1] for n in range(20)}
        assert [row["key"] for row in rows if row["fault"]] == [name_of(7)[1]]
        assert row_reader._behind(question, frames[-1]) == question._replace(first=20)
    await streams.close()
    torn = Rows([row_wire_name(1), row_wire_name(7)], [sealed(1, 1)[0], b"\xc1"], ())
    question = ChangesRequest(b"default", PARTITION, 0, 20)
    assert row_reader._behind(question, torn) == question._replace(first=2)
    assert row_reader._behind(question, Rows(torn.names[1:], torn.key_rows[1:], ())) == question


def row_wire_name(n: int) -> bytes:
    """A name as it is encoded in a frame."""
    bucket, key = name_of(n)
    return segment_of(key_hash(bucket, key)).to_bytes(3, "big") + bucket.replace(b"\0", b"\0\xff") + b"\0\1" + key


def test_frames_survive_any_cut_and_no_garbage() -> None:
    """However the bytes of a stream are split, the frames are the same; invalid bytes raise CodecError."""
    rows = Rows([row_wire_name(1)], [sealed(1, 1)[0]], ())
    passed = SkippedTo(row_wire_name(2))
    data = wire.encode_frame(rows) + wire.encode_skipped_to(passed) + wire.encode_tail(Tail(1))
    for size in (1, 3, 1000):
        frames = Frames()
        found = [f for at in range(0, len(data), size) for f in frames.feed(data[at : at + size])]
        assert found == [Rows(list(rows.names), list(rows.key_rows), ()), passed, Tail(1)]
    for bad in (
        b"\x92\x04\xc4\x00",
        b"",
        b"\x90",
        b"\x93\x02\x91\x01\x91\x01",
        b"\x92\x03\xc0",
        b"\xff" * 9,
        b"\x93\x02\x90\x90",
    ):
        with pytest.raises(CodecError):
            wire.decode_frame(bad)
    with pytest.raises(CodecError):
        list(Frames().feed(b"\xff\xff\xff\xff"))
    for question in (asked(), asked(bucket=b"b", after=b"x", view=RowView.OBJECTS)):
        assert wire.decode_rows_request(wire.encode_rows_request(question)) == question
    with pytest.raises(CodecError):
        wire.decode_rows_request(wire.encode_rows_request(asked(end=SEGMENT_COUNT + 1)))


HEAD = Head(CLUSTER, "east", "n1", PARTITION, 0, SEGMENT_COUNT, 1, COUNT)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, "option urls is missing"),
        ({"urls": "http://n1:1", "bukcet": "b"}, "did you mean bucket"),
        ({"urls": "ftp://n1"}, "not the URL of a node"),
        ({"urls": "http://n1:1", "segments": "9-3"}, "FIRST-END"),
        ({"urls": "http://n1:1", "prefix": "p"}, "set the option bucket"),
        ({"urls": "http://n1:1", "modified_since": "soon"}, "a time such as"),
        ({"urls": "http://n1:1", "view": "rows"}, "one of keys, objects, findings"),
        ({"urls": "http://n1:1", "consistency": "strong"}, "any, committed"),
        ({"view": "findings"}, "option path is missing"),
        ({"urls": "http://n1:1", "rows_per_second": "-1"}, "a whole number"),
        ({"urls": "http://n1:1", "origin": "ab"}, "32 hexadecimal digits"),
        ({"urls": "http://n1:1", "bucket": "0x"}, "pairs of hexadecimal"),
        ({"urls": "http://n1:1", "bucket": "b", "prefix": "0x "}, "pairs of hexadecimal"),
        ({"urls": "http://n1:99999"}, "not the URL of a node"),
        ({"urls": "http://n1:x"}, "not the URL of a node"),
        ({"urls": "http://ann:secret@n1:1"}, "not the URL of a node"),
        ({"urls": "http://n1:1#x"}, "not the URL of a node"),
        ({"urls": "http://[::1"}, "not the URL of a node"),
        ({"urls": "http://n1:1", "modified_before": "0"}, "a time after 1970"),
    ],
)
def test_every_bad_option_is_refused_with_a_remedy(given: dict[str, str], words: str) -> None:
    """An unknown option, or a value that means nothing, is an error with the remedy."""
    with pytest.raises(BadInput, match=words):
        parse_options(given)


def test_options_read_as_they_are_meant() -> None:
    """Each spelling of bytes, times and segments has its value."""
    found = parse_options(
        {
            "urls": "http://n1:1/, http://n2:2",
            "bucket": "0xff00",
            "segments": "3-9",
            "modified_before": "1970-01-01T00:00:01Z",
        }
    )
    assert found == RunOptions()._replace(
        urls=("http://n1:1", "http://n2:2"), bucket=b"\xff\x00", segments=(3, 9), modified_before_ms=1_000
    )


def test_a_batch_of_changes_is_shared_out_and_never_too_large() -> None:
    """Limits are kept, no position goes back, small partitions are taken completely, and every batch makes progress."""
    begun, ends = {1: 10, 2: 0, 3: 5}, {1: 12, 2: 1_000, 3: 5}
    assert shared(begun, ends, 100) == {1: 12, 2: 98, 3: 5}
    assert shared(begun, ends, 10_000) == ends
    for limit in range(1, 1_200, 37):
        found = shared(begun, ends, limit)
        taken_now = sum(found[p] - begun[p] for p in begun)
        assert 0 < taken_now <= limit


def test_existing_changes_come_in_batches_and_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """With availableNow, a query advances in steps of rows_per_batch up to the offset that was applied when it began.
    Later changes are for the next query, which continues from there."""
    applied = {0: 25, 1: 3}

    def plan(*_: object) -> ReplicaDirectory:
        half = SEGMENT_COUNT // 2
        held = {p: (ReplicaEndpoint("n1", "http://n1", True, True, 1, offset),) for p, offset in applied.items()}
        pieces = (PartitionPlan(0, 0, half, None, held[0]), PartitionPlan(1, half, SEGMENT_COUNT, None, held[1]))
        return ReplicaDirectory(CLUSTER, "east", "default", pieces)

    monkeypatch.setattr(stream_reader, "fetch_plan", plan)
    options = parse_options({"urls": "http://n1:1", "rows_per_batch": "10"})

    def steps(start: dict[str, Any]) -> list[dict[str, int]]:
        reader = IsthmusStreamReader(options, schema_of(RowView.KEYS))
        reader.prepareForTriggerAvailableNow()
        found = [start]
        while True:
            end = reader.latestOffset(found[-1], reader.getDefaultReadLimit())
            if end == found[-1]:
                return [one["partitions"] for one in found]
            found.append(end)
            applied[0] += 100

    first = steps(IsthmusStreamReader(options, schema_of(RowView.KEYS)).initialOffset())
    assert first == [{"0": 0, "1": 0}, {"0": 7, "1": 3}, {"0": 17, "1": 3}, {"0": 25, "1": 3}]
    assert applied[0] == 325
    second = steps({"cluster": CLUSTER.hex(), "partitions": first[-1]})
    assert second[-1] == {"0": 325, "1": 3}
