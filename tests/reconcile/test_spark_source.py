"""The parts of `format("isthmus")` that need no Java: frames, streams of rows, columns, fail-over, options."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark.serializers import CloudPickleSerializer
from pyspark.sql import datasource as ds
from xxhash import xxh64_intdigest

from aae import row_wire
from aae.reconcile import client, reading, streaming
from aae.reconcile.client import Copy, Credentials, PartitionPlan, Plan, parse_plan
from aae.reconcile.options import Options, parse_options
from aae.reconcile.reading import IsthmusReader, Range, RangeStream, RangeUnreadable, WrongCluster
from aae.reconcile.rows import Columns, schema_of
from aae.reconcile.streaming import IsthmusStreamReader, shared
from aae.row_streams import STREAMS_MAX, Held, RowStreams
from aae.row_wire import ChangesAsked, Consistency, Frames, Head, Passed, Rows, RowsAsked, Tail, View
from repl.model.entry import NO_OFFSET, EntryKind, make_entry
from repl.model.entry import encode_key_row as row_of
from repl.model.errors import BadInput, CodecError, NotLeader, NotReady, Overloaded, PeerFault
from repl.model.keys import SEGMENT_COUNT, key_hash, segment_of
from repl.model.objects import Object, Sibling, seal
from repl.model.vclock import actor_of, pack_counter
from repl.store.leveldb import LevelStore
from repl.store.port import PartitionStep
from repl.transport.http_client import Refused
from tests.store.histories import CLUSTER, open_store

PARTITION = 3
COUNT = 300
HALF = SEGMENT_COUNT // 2


def sealed(n: int, at: int) -> tuple[bytes, bytes]:
    """(key row, object) of the n-th key, written at offset `at`."""
    dot = (actor_of(CLUSTER, PARTITION), pack_counter(1, at + 1))
    sibling = Sibling(dot, 1_000 + n, n % 10 == 0, b"" if n % 10 == 0 else b"value-%d" % n, b"text/plain")
    data, summary = seal(Object(((*dot, 7),), (sibling,)))
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


def streams_of(store: LevelStore, *, whole: bool = True, leads: bool = True) -> RowStreams:
    """Streams of the one partition, which has all segments."""

    async def confirm(_: int) -> None:
        return

    held = Held(b"default", PARTITION, (0, SEGMENT_COUNT), leads, whole)
    return RowStreams(
        store, cluster=CLUSTER, cluster_name="east", node="n1", held=lambda p: held if p == PARTITION else None,
        confirm=confirm,
    )  # fmt: skip


def asked(**other: Any) -> RowsAsked:
    """All of the partition."""
    return RowsAsked(b"default", PARTITION, 0, SEGMENT_COUNT)._replace(**other)


async def taken(streams: RowStreams, what: RowsAsked | ChangesAsked) -> tuple[Head, list[Rows], Tail]:
    """A stream, read to its end."""
    opened = await (streams.rows(what) if isinstance(what, RowsAsked) else streams.changes(what))
    frames = Frames()
    head, *rest, tail = [frame async for data in opened for frame in frames.feed(data)]
    assert isinstance(head, Head)
    assert isinstance(tail, Tail)
    assert tail.rows == sum(len(rows.names) for rows in rest if isinstance(rows, Rows))
    return head, [rows for rows in rest if isinstance(rows, Rows)], tail


def table(head: Head, frames: list[Rows], view: View = View.KEYS) -> list[dict[str, Any]]:
    """Rows as Spark would get them."""
    columns = Columns("default", schema_of(view))
    return [row for rows in frames for row in columns.batch(head, rows).to_pylist()]


def test_a_stream_is_of_the_moment_at_which_it_was_opened(store: LevelStore) -> None:
    """Every key comes once, in segment order, as of the offset in the head, whatever is written while it is read."""

    async def run() -> None:
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

    asyncio.run(run())


def test_columns_say_what_the_store_has(store: LevelStore) -> None:
    """Names, hashes, times, flags and values of each key are those that were written."""

    async def run() -> None:
        streams = streams_of(store)
        head, frames, _ = await taken(streams, asked(view=View.OBJECTS))
        rows = {(row["bucket"], row["key"]): row for row in table(head, frames, View.OBJECTS)}
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

    asyncio.run(run())


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
def test_a_node_sends_only_what_was_asked_for(store: LevelStore, other: dict[str, Any], wanted: Any) -> None:
    """Bucket, prefix, times and segments each leave exactly the rows that they mean."""

    async def run() -> None:
        streams = streams_of(store)
        head, frames, _ = await taken(streams, asked(**other))
        found = {(row["bucket"], row["key"]) for row in table(head, frames)}
        assert found == {name_of(n) for n in range(COUNT) if wanted(n)}
        await streams.close()

    asyncio.run(run())


def test_a_stream_goes_on_behind_any_row(store: LevelStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever a stream is taken up again, what comes is what was left, no row twice and none passed over."""
    monkeypatch.setattr("aae.row_streams.SLICE_ROWS", 7)
    monkeypatch.setattr("aae.row_streams.FRAME_SLICES", 1)

    async def run() -> None:
        streams = streams_of(store)
        _, frames, _ = await taken(streams, asked())
        names = [name for rows in frames for name in rows.names]
        assert len(frames) > 40
        for at in (0, 6, 7, 150, COUNT - 1):
            _, rest, _ = await taken(streams, asked(after=names[at]))
            assert [name for rows in rest for name in rows.names] == names[at + 1 :]
        await streams.close()

    asyncio.run(run())


def test_a_stream_that_finds_nothing_says_how_far_it_is(store: LevelStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of rows that were not asked for a reader hears as often as of others, so that it neither takes the node for dead
    nor keeps the thread from other streams; behind each such mark a stream goes on."""
    monkeypatch.setattr("aae.row_streams.SLICE_ROWS", 50)
    monkeypatch.setattr("aae.row_streams.FRAME_SLICES", 1)

    async def marks(streams: RowStreams, what: RowsAsked) -> list[bytes]:
        frames = Frames()
        found = [frame async for data in await streams.rows(what) for frame in frames.feed(data)]
        return [frame.name for frame in found if isinstance(frame, Passed)]

    async def run() -> None:
        streams = streams_of(store)
        _, rows, _ = await taken(streams, asked())
        names = [name for frame in rows for name in frame.names]
        nobody = await marks(streams, asked(bucket=b"nobody"))
        assert nobody == [names[at] for at in range(49, COUNT, 50)]
        assert await marks(streams, asked(bucket=b"nobody", after=nobody[1])) == nobody[2:]
        assert await marks(streams, asked()) == []
        await streams.close()

    asyncio.run(run())


def test_streams_are_bounded_and_given_back(store: LevelStore) -> None:
    """One more than the limit is refused, and a stream that is left makes room, also before its end."""

    async def run() -> None:
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

    asyncio.run(run())


def test_a_plan_does_not_wait_for_the_frames_of_streams(store: LevelStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """A node that reads for many, and rests long since clients write, tells at once what it has: who asks for a plan
    would leave it out, and nobody could read."""
    monkeypatch.setattr("aae.row_streams.Pace.rest_s", lambda *_: 0.2)

    async def run() -> None:
        streams = streams_of(store)
        opened = [await streams.rows(asked()) for _ in range(8)]
        for one in opened:
            await anext(one)
        begun = [asyncio.ensure_future(anext(one)) for one in opened]
        await asyncio.sleep(0.01)
        async with asyncio.timeout(0.8):  # the frames take twice as long
            assert await streams.estimates([Held(b"default", PARTITION, (0, SEGMENT_COUNT), True, True)]) == [COUNT]
        assert not all(one.done() for one in begun)
        await asyncio.gather(*begun)
        for one in opened:
            await one.aclose()
        await streams.close()

    asyncio.run(run())


def test_an_estimate_is_told_again_for_a_moment_alone(store: LevelStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans that follow each other read no rows; a later one counts anew."""

    async def run() -> None:
        streams = streams_of(store)
        held = Held(b"default", PARTITION, (0, SEGMENT_COUNT), True, True)
        assert await streams.estimates([held]) == [COUNT]
        write(store, [1000], COUNT)
        assert await streams.estimates([held]) == [COUNT]
        monkeypatch.setattr("aae.row_streams.ESTIMATE_KEPT_S", 0.0)
        assert await streams.estimates([held]) == [COUNT + 1]
        await streams.close()

    asyncio.run(run())


def test_a_copy_that_may_not_answer_says_so(store: LevelStore) -> None:
    """No copy, one that is being filled, a follower asked for committed rows, other segments: each has its refusal."""

    async def run() -> None:
        with pytest.raises(NotReady, match="no copy"):
            await streams_of(store).rows(asked(partition=4))
        with pytest.raises(NotReady, match="being filled"):
            await streams_of(store, whole=False).rows(asked())
        with pytest.raises(NotLeader):
            await streams_of(store, leads=False).rows(asked(consistency=Consistency.COMMITTED))
        with pytest.raises(NotReady, match="is applied to"):
            await streams_of(store).changes(ChangesAsked(b"default", PARTITION, 0, COUNT + 1))

    asyncio.run(run())


def test_changes_come_once_in_the_range_where_they_now_are(store: LevelStore) -> None:
    """A key that changed again is in the later range alone; ranges together have every key once."""

    async def run() -> None:
        streams = streams_of(store)
        write(store, [5], COUNT, previous=5)
        early, late = ChangesAsked(b"default", PARTITION, 0, 100), ChangesAsked(b"default", PARTITION, 100, COUNT + 1)
        first = table(*(await taken(streams, early))[:2])
        second = table(*(await taken(streams, late._replace(view=View.OBJECTS)))[:2], View.OBJECTS)
        assert {row["key"] for row in first} == {name_of(n)[1] for n in range(100) if n != 5}
        assert {row["key"] for row in second} == {name_of(n)[1] for n in (5, *range(100, COUNT))}
        await streams.close()

    asyncio.run(run())


def test_damage_is_a_row_with_a_fault(store: LevelStore) -> None:
    """A key row that cannot be read, an object that is not what its row says, and one that is missing are told in
    `fault`; the sound rows beside them lose nothing."""
    names = [row_wire_name(n) for n in range(4)]
    made = [sealed(n, n) for n in range(4)]
    head = Head(CLUSTER, "east", "n1", PARTITION, 0, SEGMENT_COUNT, 1, COUNT)
    rows = Rows(names, [made[0][0][:-3], made[1][0], made[2][0], made[3][0]], [made[0][1], made[2][1], b"", made[3][1]])
    found = table(head, [rows], View.OBJECTS)
    assert "not a key row" in found[0]["fault"]
    assert found[0]["clock"] is None
    assert "its hash differs" in found[1]["fault"]
    assert "no object" in found[2]["fault"]
    assert found[3]["fault"] is None
    assert [row["key"] for row in found] == [name_of(n)[1] for n in range(4)]


def test_an_index_has_all_of_its_values() -> None:
    """An object may stand at several places of one index; a reader sees them all, in their order."""
    pairs = ((b"town_bin", b"corinth"), (b"age_int", b"7"), (b"town_bin", b"argos"))
    dot = (actor_of(CLUSTER, PARTITION), pack_counter(1, 1))
    sibling = Sibling(dot, 1_000, False, b"v", b"text/plain", indexes=pairs)
    data, summary = seal(Object(((*dot, 7),), (sibling,)))
    [row] = table(HEAD, [Rows([row_wire_name(0)], [row_of(summary, 0)], [data])], View.OBJECTS)
    assert row["fault"] is None
    assert dict(row["contents"][0]["indexes"]) == {"town_bin": ["corinth", "argos"], "age_int": ["7"]}


def test_a_damaged_row_stops_no_stream_of_changes(store: LevelStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """It comes with its fault, among the others; who goes on behind a frame with such a row passes nothing over."""
    real = store.far.snapshot

    class Damaged:
        """A moment of the store in which one key row is damaged."""

        def __init__(self, partition: int) -> None:
            self._snapshot = real(partition)

        def __getattr__(self, name: str) -> Any:
            return getattr(self._snapshot, name)

        def named_key_row(self, name: bytes) -> bytes | None:
            return b"\xc1" if name == row_wire_name(7) else self._snapshot.named_key_row(name)

    monkeypatch.setattr(store.far, "snapshot", Damaged)

    async def run() -> None:
        streams = streams_of(store)
        for view in View:
            question = ChangesAsked(b"default", PARTITION, 0, 20, view)
            head, frames, _ = await taken(streams, question)
            rows = table(head, frames, view)
            assert {row["key"] for row in rows} == {name_of(n)[1] for n in range(20)}
            assert [row["key"] for row in rows if row["fault"]] == [name_of(7)[1]]
            assert reading._behind(question, frames[-1]) == question._replace(first=20)
        await streams.close()

    asyncio.run(run())
    torn = Rows([row_wire_name(1), row_wire_name(7)], [sealed(1, 1)[0], b"\xc1"], ())
    question = ChangesAsked(b"default", PARTITION, 0, 20)
    assert reading._behind(question, torn) == question._replace(first=2)
    assert reading._behind(question, Rows(torn.names[1:], torn.key_rows[1:], ())) == question


def row_wire_name(n: int) -> bytes:
    """A name as it stands in a frame."""
    bucket, key = name_of(n)
    return segment_of(key_hash(bucket, key)).to_bytes(3, "big") + bucket.replace(b"\0", b"\0\xff") + b"\0\1" + key


def test_frames_survive_any_cut_and_no_garbage() -> None:
    """However the bytes of a stream are cut into pieces the frames are the same; what is none is CodecError."""
    rows = Rows([row_wire_name(1)], [sealed(1, 1)[0]], ())
    passed = Passed(row_wire_name(2))
    data = row_wire.encode_frame(rows) + row_wire.encode_passed(passed) + row_wire.encode_tail(Tail(1))
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
            row_wire.decode_frame(bad)
    with pytest.raises(CodecError):
        list(Frames().feed(b"\xff\xff\xff\xff"))
    for question in (asked(), asked(bucket=b"b", after=b"x", view=View.OBJECTS)):
        assert row_wire.decode_rows_asked(row_wire.encode_rows_asked(question)) == question
    with pytest.raises(CodecError):
        row_wire.decode_rows_asked(row_wire.encode_rows_asked(asked(end=SEGMENT_COUNT + 1)))


HEAD = Head(CLUSTER, "east", "n1", PARTITION, 0, SEGMENT_COUNT, 1, COUNT)


def copies(*nodes: str) -> tuple[Copy, ...]:
    """Copies at nodes."""
    return tuple(Copy(node, f"http://{node}", False, True, 1, COUNT) for node in nodes)


def test_another_copy_goes_on_where_a_stream_broke(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows come once each although the first node breaks off; both pieces stand in the manifest, as of their own
    offsets; with `resume` off the range fails instead."""
    names = [row_wire_name(n) for n in range(4)]
    rows = [sealed(n, n)[0] for n in range(4)]
    asks: list[tuple[str, bytes]] = []

    @contextmanager
    def streamed(url: str, _c: Credentials, _p: str, question: bytes, _t: int) -> Iterator[tuple[Head, Iterator[Any]]]:
        after = row_wire.decode_rows_asked(question).after
        asks.append((url, after))

        def frames() -> Iterator[Any]:
            if url == "http://n1":
                yield Rows(names[:2], rows[:2], ())
                raise PeerFault("cut off")
            yield Rows(names[2:], rows[2:], ())
            yield Tail(2)

        yield HEAD._replace(node=url[-2:], offset=COUNT if url == "http://n1" else 290), frames()

    monkeypatch.setattr(reading, "streamed", streamed)
    part = Range(CLUSTER, PARTITION, 0, SEGMENT_COUNT, copies("n1", "n2"))
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
    """Rows that a node has passed over are not looked at again by the next one, and to have passed some is progress: a
    range of which only that comes is not given up. No row came of it, so with `resume` off the range does not fail."""
    monkeypatch.setattr(reading, "RETRY_S", 0.01)
    now = [0.0]
    monkeypatch.setattr(reading, "monotonic", lambda: now[0])
    marks = [row_wire_name(n) for n in sorted(range(4), key=row_wire_name)]
    asks: list[bytes] = []

    @contextmanager
    def streamed(_u: str, _c: Credentials, _p: str, question: bytes, _t: int) -> Iterator[tuple[Head, Iterator[Any]]]:
        asks.append(row_wire.decode_rows_asked(question).after)
        now[0] += 4

        def frames() -> Iterator[Any]:
            if len(asks) > len(marks):
                yield Tail(0)
            else:
                yield Passed(marks[len(asks) - 1])
                raise PeerFault("cut off")

        yield HEAD, frames()

    monkeypatch.setattr(reading, "streamed", streamed)
    part = Range(CLUSTER, PARTITION, 0, SEGMENT_COUNT, copies("n1"))
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


def test_a_range_that_nobody_gives_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """With no copy that answers the error names partition and segments; another cluster's answer is refused at once."""
    monkeypatch.setattr(reading, "RETRY_S", 0.01)
    told = [HEAD._replace(cluster=b"\x09" * 16)]

    @contextmanager
    def streamed(url: str, *_: object) -> Iterator[tuple[Head, Iterator[Any]]]:
        if told:
            yield told[0], iter(())
        else:
            raise PeerFault(f"{url}: connection refused")

    monkeypatch.setattr(reading, "streamed", streamed)
    part = Range(CLUSTER, PARTITION, 0, SEGMENT_COUNT, copies("n1"))
    with pytest.raises(WrongCluster):
        list(RangeStream(asked(), part, Credentials(), give_up_after_s=5).frames())
    told.clear()
    with pytest.raises(RangeUnreadable, match=r"partition 3, segments 0 to 1048576: .*connection refused"):
        list(RangeStream(asked(), part, Credentials(), give_up_after_s=0.05).frames())


def test_a_range_waits_for_its_place_at_a_node_that_is_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node that serves as many streams as it may is there, and has room when one of them ends: a job of more tasks
    than that does not fail, however long ranges are. There is an end to it all the same."""
    now = [0.0]
    monkeypatch.setattr(reading, "monotonic", lambda: now[0])
    monkeypatch.setattr(reading, "sleep", lambda pause_s: now.__setitem__(0, now[0] + 10 * pause_s))
    room_s = [600.0]

    @contextmanager
    def streamed(url: str, *_: object) -> Iterator[tuple[Head, Iterator[Any]]]:
        if url == "http://n2":
            raise PeerFault(f"{url}: connection refused")
        if now[0] < room_s[0]:
            raise Refused("http://n1 answers 503: 16 streams of rows are open", 503, "overloaded")
        yield HEAD, iter([Rows([row_wire_name(0)], [sealed(0, 0)[0]], ()), Tail(1)])

    monkeypatch.setattr(reading, "streamed", streamed)
    part = Range(CLUSTER, PARTITION, 0, SEGMENT_COUNT, copies("n1", "n2"))
    stream = RangeStream(asked(), part, Credentials(), give_up_after_s=5)
    assert [name for _, found in stream.frames() for name in found.names] == [row_wire_name(0)]
    room_s[0] = float("inf")
    with pytest.raises(RangeUnreadable, match="16 streams of rows are open"):
        list(RangeStream(asked(), part, Credentials(), give_up_after_s=5).frames())
    assert now[0] < 600 + reading.PLACE_S + 60


def test_a_plan_travels_with_its_ranges(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Spark packs the reader before it plans, so a task has from its range what share of the rate is its own, and where
    the manifest of its read is; a later plan is another read."""
    held = (Copy("n1", "http://n1", False, True, 1, COUNT),)
    plan = Plan(CLUSTER, "east", "default", (PartitionPlan(PARTITION, 0, SEGMENT_COUNT, None, held),))
    monkeypatch.setattr(reading, "asked_plan", lambda *_: plan)
    given = {"urls": "http://n1:1", "splits": "4", "rows_per_second": "100", "manifest": str(tmp_path)}
    reader = IsthmusReader(parse_options(given), schema_of(View.KEYS))
    spark_packs = CloudPickleSerializer()
    packed = spark_packs.dumps(reader)
    first, second = reader.partitions(), reader.partitions()
    assert [part.tasks for part in first] == [4] * 4
    assert first[0].manifest == first[3].manifest != second[0].manifest

    @contextmanager
    def streamed(*_: object) -> Iterator[tuple[Head, Iterator[Any]]]:
        part = first[1]
        yield HEAD._replace(first=part.first, end=part.end), iter([Tail(0)])

    monkeypatch.setattr(reading, "streamed", streamed)
    paces: list[float] = []
    monkeypatch.setattr(reading, "Pace", lambda rate: paces.append(rate))
    assert list(spark_packs.loads(packed).read(spark_packs.loads(spark_packs.dumps(first[1])))) == []
    assert paces == [25]
    pieces, missing = reading.read_manifest(tmp_path)
    assert ([(piece.first, piece.end) for piece in pieces], len(missing)) == ([(first[1].first, first[1].end)], 3)


def test_filters_are_taken_as_far_as_they_are_exact() -> None:
    """A bucket and bounds of segments are the node's; a time is narrowed there and compared again by Spark."""
    from datetime import UTC, datetime

    reader = IsthmusReader(parse_options({"urls": "http://n1:1"}), schema_of(View.KEYS))
    when = ds.GreaterThan(("last_modified",), datetime(2026, 1, 1, tzinfo=UTC))
    other = ds.EqualTo(("key",), b"k")
    filters = [
        ds.EqualTo(("bucket",), b"b"),
        ds.LessThan(("segment",), 100),
        ds.GreaterThan(("segment",), 9),
        when,
        other,
    ]
    assert list(reader.pushFilters(filters)) == [when, other]
    options = reader._options
    assert (options.bucket, options.segments) == (b"b", (10, 100))
    assert options.modified_since_ms == 1_767_225_600_000 - 1
    assert list(reader.pushFilters([ds.EqualTo(("bucket",), b"c")])) == [ds.EqualTo(("bucket",), b"c")]
    reader.pushFilters([ds.LessThan(("segment",), 5)])
    assert [part.copies for part in reader.partitions()] == [()]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, "option urls is missing"),
        ({"urls": "http://n1:1", "bukcet": "b"}, "did you mean bucket"),
        ({"urls": "ftp://n1"}, "no URL of a node"),
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
        ({"urls": "http://n1:99999"}, "no URL of a node"),
        ({"urls": "http://n1:x"}, "no URL of a node"),
        ({"urls": "http://ann:secret@n1:1"}, "no URL of a node"),
        ({"urls": "http://n1:1#x"}, "no URL of a node"),
        ({"urls": "http://[::1"}, "no URL of a node"),
        ({"urls": "http://n1:1", "modified_before": "0"}, "a time after 1970"),
    ],
)
def test_every_bad_option_says_what_would_be_right(given: dict[str, str], words: str) -> None:
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
    assert found == Options()._replace(
        urls=("http://n1:1", "http://n2:2"), bucket=b"\xff\x00", segments=(3, 9), modified_before_ms=1_000
    )


def test_a_plan_with_a_hole_is_refused() -> None:
    """Partitions that leave out a segment, or are none, are no plan: a key would be passed over."""
    good = (
        b'{"cluster":"e","cluster_uuid":"%s","bucket_type":"t","partitions":[{"partition":0,"segments":[%d,1048576],'
        b'"rows_estimate":null,"copies":[]}]}'
    )
    assert parse_plan(good % (b"00" * 16, 0)).partitions[0].end == SEGMENT_COUNT
    for bad in (
        good % (b"00" * 16, 1),
        good % (b"00" * 15, 0),
        b"{}",
        b"[",
        good.replace(b"1048576", b"9") % (b"00" * 16, 0),
    ):
        with pytest.raises(CodecError):
            parse_plan(bad)


def test_a_batch_of_changes_is_shared_out_and_never_too_large() -> None:
    """Limits are kept, nothing goes back, what is small is taken whole, and something is always taken."""
    begun, ends = {1: 10, 2: 0, 3: 5}, {1: 12, 2: 1_000, 3: 5}
    assert shared(begun, ends, 100) == {1: 12, 2: 98, 3: 5}
    assert shared(begun, ends, 10_000) == ends
    for limit in range(1, 1_200, 37):
        found = shared(begun, ends, limit)
        taken_now = sum(found[p] - begun[p] for p in begun)
        assert 0 < taken_now <= limit


def test_a_node_that_trickles_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytes that never make a frame hold a task no longer than a frame may take."""
    now = [0.0]

    def take() -> bytes:
        now[0] += 10
        return b"\0"

    @contextmanager
    def streaming(*_: object, **__: object) -> Iterator[Any]:
        data = [(4_096).to_bytes(4, "big"), row_wire.encode_head(HEAD)]
        yield lambda: data.pop() if data else take()

    monkeypatch.setattr(client, "monotonic", lambda: now[0])
    monkeypatch.setattr(client.HttpPeer, "streaming", streaming)
    with client.streamed("http://n1:1", Credentials(), "/rows", b"") as (head, frames):
        assert head == HEAD
        with pytest.raises(PeerFault, match="though bytes trickle"):
            list(frames)
    assert now[0] <= client.FRAME_TIMEOUT_S + 20


def test_a_leader_that_changes_is_found_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """When all known copies refuse, who holds the range is asked anew; rows go on behind the last one. A plan without a
    leader is asked for again, as long as there is time."""
    monkeypatch.setattr(reading, "RETRY_S", 0.01)
    rows = [sealed(n, n)[0] for n in range(2)]

    @contextmanager
    def streamed(url: str, *_: object) -> Iterator[tuple[Head, Iterator[Any]]]:
        if url == "http://n1":
            raise PeerFault(f"{url}: connection refused")
        yield HEAD._replace(node="n2"), iter([Rows([row_wire_name(0)], rows[:1], ()), Tail(1)])

    def plan(*held: Copy) -> Plan:
        return Plan(CLUSTER, "east", "default", (PartitionPlan(PARTITION, 0, SEGMENT_COUNT, None, held),))

    (first,), (second,) = copies("n1"), copies("n2")
    leads = second._replace(leads=True)
    monkeypatch.setattr(reading, "streamed", streamed)
    part = Range(CLUSTER, PARTITION, 0, SEGMENT_COUNT, (first,))
    committed = asked(consistency=Consistency.COMMITTED)
    stream = RangeStream(committed, part, Credentials(), give_up_after_s=5, ask=lambda: plan(first, leads))
    assert [name for _, found in stream.frames() for name in found.names] == [row_wire_name(0)]
    plans = [plan(first), plan(first, leads)]
    whole = (0, SEGMENT_COUNT)
    _, ranges = reading.asked_ranges(lambda: plans.pop(0), whole, 1, Consistency.COMMITTED, 5)
    assert ranges[0].copies == (leads,)
    with pytest.raises(RangeUnreadable, match="only the leader may, and there is none"):
        reading.asked_ranges(lambda: plan(first), whole, 1, Consistency.COMMITTED, 0.05)


def test_what_is_there_now_comes_in_batches_and_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """With availableNow a query goes in steps of rows_per_batch to what was applied when it began, and not beyond; what
    is applied meanwhile is for the next one, which goes on from there."""
    applied = {0: 25, 1: 3}

    def plan(*_: object) -> Plan:
        half = SEGMENT_COUNT // 2
        held = {p: (Copy("n1", "http://n1", True, True, 1, offset),) for p, offset in applied.items()}
        pieces = (PartitionPlan(0, 0, half, None, held[0]), PartitionPlan(1, half, SEGMENT_COUNT, None, held[1]))
        return Plan(CLUSTER, "east", "default", pieces)

    monkeypatch.setattr(streaming, "asked_plan", plan)
    options = parse_options({"urls": "http://n1:1", "rows_per_batch": "10"})

    def steps(start: dict[str, Any]) -> list[dict[str, int]]:
        reader = IsthmusStreamReader(options, schema_of(View.KEYS))
        reader.prepareForTriggerAvailableNow()
        found = [start]
        while True:
            end = reader.latestOffset(found[-1], reader.getDefaultReadLimit())
            if end == found[-1]:
                return [one["partitions"] for one in found]
            found.append(end)
            applied[0] += 100

    first = steps(IsthmusStreamReader(options, schema_of(View.KEYS)).initialOffset())
    assert first == [{"0": 0, "1": 0}, {"0": 7, "1": 3}, {"0": 17, "1": 3}, {"0": 25, "1": 3}]
    assert applied[0] == 325
    second = steps({"cluster": CLUSTER.hex(), "partitions": first[-1]})
    assert second[-1] == {"0": 325, "1": 3}
