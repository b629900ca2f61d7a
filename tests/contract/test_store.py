"""The contract of every store: one suite, run on the memory store, on LevelDB, and on the simulated LevelDB."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from threading import Thread

import pytest

from isthmus.repl.model.entry import NO_OFFSET, EntryKind, decode_key_row
from isthmus.repl.model.keys import key_hash, segment_of
from isthmus.repl.store.port import AppliedPosition, Cursor, ListedKey, PartitionStep, Store
from tests.simulation.world.disk import WorldDisk
from tests.support.entry_histories import CLUSTER, START_MS, WINDOW_OFFSETS, History, chunks, open_store
from tests.support.memory_store import MemoryStore


@pytest.fixture(params=["memory", "level", "simulated"])
def store(request: pytest.FixtureRequest, memory_directory: Path) -> Iterator[Store]:
    """An empty store of each kind."""
    opened: Store
    if request.param == "memory":
        opened = MemoryStore(request_window_offsets=WINDOW_OFFSETS)
    else:
        simulated = {"database": WorldDisk().database} if request.param == "simulated" else {}
        opened = open_store(memory_directory / "store", **simulated)
    yield opened
    opened.close()


def test_an_empty_store_knows_nothing(store: Store) -> None:
    """A new store returns nothing for every read and needs no replay."""
    assert store.applied(5) == AppliedPosition(0, 0)
    assert store.durable_floor(5) == 0
    assert not store.needs_replay()
    assert store.key_row(5, key_hash(b"b", b"k"), b"b", b"k") is None
    assert store.object(5, b"b", b"k") is None
    assert store.changes(5, 0, 10) == []
    assert store.cursor(5, b"q") == Cursor(NO_OFFSET, None, None)
    assert store.offset_at(5, START_MS) == 0
    assert list(store.list_keys(5, None, None)) == []
    assert list(store.key_rows(5, 0, 1 << 20)) == []


def test_a_data_entry_is_found_by_every_read(store: Store) -> None:
    """Object, key row, change, listing and segment order all show a written key."""
    history = History(5)
    entry = history.put(b"bucket", b"key", b"object bytes")
    store.write([history.step(0)])
    assert store.applied(5) == AppliedPosition(1, 1)
    assert store.object(5, b"bucket", b"key") == b"object bytes"
    assert store.key_row(5, entry.key_hash, b"bucket", b"key") == entry.row
    (change,) = store.changes(5, 0, 10)
    assert change == (0, EntryKind.DATA, entry.key_hash, CLUSTER, entry.time_ms, b"bucket", b"key")
    assert list(store.list_keys(5, b"bucket", None)) == [ListedKey(b"bucket", b"key", entry.row)]
    assert list(store.key_rows(5, 0, 1 << 20)) == [(segment_of(entry.key_hash), b"bucket", b"key", entry.row)]


def test_an_overwritten_key_has_one_change_row_at_its_latest_offset(store: Store) -> None:
    """A key that changed three times is offered once, at the offset of the last change."""
    history = History()
    for n in range(3):
        history.put(b"b", b"same", b"%d" % n)
        history.put(b"b", b"other-%d" % n, b"x")
    for step in chunks(history, 2):
        store.write([step])
    assert [(c.offset, c.key) for c in store.changes(3, 0, 100)] == [
        (1, b"other-0"),
        (3, b"other-1"),
        (4, b"same"),
        (5, b"other-2"),
    ]
    row = store.key_row(3, key_hash(b"b", b"same"), b"b", b"same")
    assert row is not None
    assert decode_key_row(row).offset == 4
    assert store.object(3, b"b", b"same") == b"2"


def test_changes_begin_and_end_where_asked(store: Store) -> None:
    """`changes` respects the offset it starts at and its limit, also at both ends."""
    history = History()
    for n in range(10):
        history.put(b"b", b"%d" % n, b"x")
    store.write([history.step(0)])
    assert [c.offset for c in store.changes(3, 4, 3)] == [4, 5, 6]
    assert [c.offset for c in store.changes(3, 9, 3)] == [9]
    assert store.changes(3, 10, 3) == []
    assert store.changes(3, 0, 0) == []


def test_barriers_and_options_move_the_applied_offset_only(store: Store) -> None:
    """BARRIER and CONFIG leave no row but count as applied, in their epoch."""
    history = History()
    history.put(b"b", b"k", b"x")
    history.plain(EntryKind.BARRIER)
    history.plain(EntryKind.CONFIG, payload=b"options")
    store.write([history.step(0)])
    assert store.applied(3) == AppliedPosition(2, 3)
    assert [c.offset for c in store.changes(3, 0, 10)] == [0]


def test_cursor_entries_and_soft_cursors_are_kept_apart(store: Store) -> None:
    """The last CURSOR entry of a queue and its last soft state are both there, each under its own queue."""
    history = History()
    history.plain(EntryKind.CURSOR, key=b"west", payload=b"from 0")
    history.put(b"b", b"k", b"x")
    history.plain(EntryKind.CURSOR, key=b"west", payload=b"from 1")
    store.write(
        [
            history.step(0, 1),
        ]
    )
    store.write([PartitionStep(3, (), {b"west": b"soft 1", b"north": b"soft n"})])
    assert store.cursor(3, b"west") == Cursor(0, b"from 0", b"soft 1")
    assert store.applied(3) == AppliedPosition(1, 1)
    store.write([PartitionStep(3, history.entries[1:], {b"west": b"soft 2"})])
    assert store.cursor(3, b"west") == Cursor(2, b"from 1", b"soft 2")
    assert store.cursor(3, b"north") == Cursor(NO_OFFSET, None, b"soft n")
    assert store.cursor(4, b"west") == Cursor(NO_OFFSET, None, None)
    assert store.cursor(3, b"wes") == Cursor(NO_OFFSET, None, None)


def test_partitions_do_not_see_each_other(store: Store) -> None:
    """The same key in neighbouring partitions, the last one included, is a different row in each."""
    numbers = (0, 1, 255, 256, 2**32 - 1)
    histories = {n: History(n) for n in numbers}
    for n, history in histories.items():
        history.put(b"b", b"k", b"in %d" % n)
    store.write([history.step(0) for history in histories.values()])
    for n in numbers:
        assert store.object(n, b"b", b"k") == b"in %d" % n
        assert len(store.changes(n, 0, 10)) == 1
        assert len(list(store.list_keys(n, None, None))) == 1
        assert len(list(store.key_rows(n, 0, 1 << 20))) == 1
        assert store.offset_at(n, START_MS + 10_000) == 1
    assert store.applied(2) == AppliedPosition(0, 0)


AWKWARD = [b"\0", b"\0\0", b"\0\1", b"\0\xff", b"a", b"a\0", b"a\0\1", b"a\1", b"aa", b"b", b"\xff", b"\xff\xff"]


def test_listing_is_in_order_and_collides_nowhere(store: Store) -> None:
    """Buckets and keys of zero bytes, prefixes of each other and 0xFF list in (bucket, key) order, once each."""
    history = History()
    names = [(bucket, key) for bucket in AWKWARD for key in AWKWARD]
    for bucket, key in reversed(names):
        history.put(bucket, key, bucket + b"/" + key)
    store.write([history.step(0)])
    assert [(r.bucket, r.key) for r in store.list_keys(3, None, None)] == sorted(names)
    for bucket in AWKWARD:
        assert [r.key for r in store.list_keys(3, bucket, None)] == sorted(AWKWARD)
        assert all(r.row == history.latest[r.bucket, r.key].row for r in store.list_keys(3, bucket, None))
    for bucket, key in names:
        assert store.object(3, bucket, key) == bucket + b"/" + key
    assert list(store.list_keys(3, b"nowhere", None)) == []


def test_a_listing_resumes_behind_any_key(store: Store) -> None:
    """A listing resumed after each of its rows gives exactly the rest, also within one bucket."""
    history = History()
    names = sorted((bucket, key) for bucket in AWKWARD[:6] for key in AWKWARD[4:9])
    for bucket, key in names:
        history.put(bucket, key, b"x")
    store.write([history.step(0)])
    for at, name in enumerate(names):
        assert [(r.bucket, r.key) for r in store.list_keys(3, None, name)] == names[at + 1 :]
        in_bucket = [n for n in names if n[0] == name[0]]
        rest = [n for n in in_bucket if n > name]
        assert [(r.bucket, r.key) for r in store.list_keys(3, name[0], name)] == rest
    first = [r.key for r in store.list_keys(3, b"a", (b"\0", b"zz"))]
    assert first == sorted(AWKWARD[4:9])
    assert list(store.list_keys(3, b"\0", (b"a", b"a"))) == []


def test_a_listing_may_be_of_a_prefix_and_skip_a_bucket(store: Store) -> None:
    """With a prefix, of keys or of buckets, only names that begin with it are listed, also after a given name; a
    listing can skip a whole bucket, too."""
    history = History()
    names = sorted((bucket, key) for bucket in AWKWARD for key in AWKWARD)
    for bucket, key in names:
        history.put(bucket, key, b"x")
    store.write([history.step(0)])
    for prefix in (*AWKWARD, b"", b"a\0\xff", b"c"):
        of_buckets = [name for name in names if name[0].startswith(prefix)]
        assert [(r.bucket, r.key) for r in store.list_keys(3, None, None, prefix)] == of_buckets
        for bucket in (b"\0", b"a", b"\xff"):
            of_keys = [key for key in sorted(AWKWARD) if key.startswith(prefix)]
            assert [r.key for r in store.list_keys(3, bucket, None, prefix)] == of_keys
            for at, key in enumerate(of_keys):
                assert [r.key for r in store.list_keys(3, bucket, (bucket, key), prefix)] == of_keys[at + 1 :]
            assert [r.key for r in store.list_keys(3, bucket, (bucket, b"a\0"), prefix)] == [
                key for key in of_keys if key > b"a\0"
            ]
    for bucket in AWKWARD:
        behind = [name for name in names if name[0] > bucket]
        assert [(r.bucket, r.key) for r in store.list_keys(3, None, (bucket, None))] == behind
        assert [(r.bucket, r.key) for r in store.list_keys(3, None, (bucket, None), b"a")] == [
            name for name in behind if name[0].startswith(b"a")
        ]


def test_key_rows_come_in_segment_order_within_the_range(store: Store) -> None:
    """`key_rows` returns the requested segments, ascending; two halves together give the whole."""
    history = History()
    for n in range(300):
        history.put(b"b", b"key-%d" % n, b"x")
    store.write([history.step(0)])
    everything = list(store.key_rows(3, 0, 1 << 20))
    assert len(everything) == 300
    assert all(a[0] <= b[0] for a, b in pairwise(everything))
    middle = everything[150][0]
    low, high = list(store.key_rows(3, 0, middle)), list(store.key_rows(3, middle, 1 << 20))
    assert low + high == everything
    assert all(row[0] < middle for row in low)
    assert high[0][0] == middle
    assert list(store.key_rows(3, middle, middle)) == []
    for segment, bucket, key, row in everything:
        assert segment == segment_of(key_hash(bucket, key))
        assert row == history.latest[bucket, key].row


def test_offset_at_takes_nothing_of_before_along(store: Store) -> None:
    """`offset_at` returns the first change at or after the given time, however long before it the previous change was
    made."""
    history = History()
    for at_s in (0, 0, 0, 33, 33, 3_000):
        history.put(b"b", b"%d" % len(history.entries), b"x", time_ms=START_MS + at_s * 1000 + 500)
    store.write([history.step(0)])
    asked = [store.offset_at(3, START_MS + at_s * 1000) for at_s in (-1, 0, 1, 32, 33, 34, 2_999, 3_000, 3_001)]
    assert asked == [0, 0, 3, 3, 3, 5, 5, 5, 6]


def test_offset_at_finds_everything_since(store: Store) -> None:
    """Every change made at or after a time is at or above its `offset_at`, also if clocks run backwards."""
    history = History()
    for at_s in (0, 0, 2, 1, 5, 3, 5, 9, 9, 4, 12):
        history.put(b"b", b"%d" % len(history.entries), b"x", time_ms=START_MS + at_s * 1000 + 500)
    for step in chunks(history, 4):
        store.write([step])
    for asked_ms in range(START_MS - 1000, START_MS + 14_000, 250):
        found = store.offset_at(3, asked_ms)
        late = [e.offset for e in history.entries if e.time_ms >= asked_ms]
        assert all(offset >= found for offset in late), (asked_ms, found)
    assert store.offset_at(3, START_MS - 1000) == 0
    assert store.offset_at(3, START_MS + 2_700) == 2
    assert store.offset_at(3, START_MS + 9_000) == 7
    assert store.offset_at(3, START_MS + 13_000) == store.applied(3).offset == 11
    assert store.offset_at(3, -5) == 0


def test_seconds_around_an_offset_are_those_of_the_marks_beside_it(store: Store) -> None:
    """The time mark of a rewritten key stays, so the second of an offset is found although no change row has that
    offset any more."""
    assert store.seconds_around(3, 0) == (None, None)
    history = History()
    start_s = START_MS // 1000
    for at_s in (0, 0, 2, 1, 5, 3, 5, 9, 9, 4, 12):
        history.put(b"b", b"one", b"x", time_ms=START_MS + at_s * 1000 + 500)
    for step in chunks(history, 4):
        store.write([step])
    marks = {0: 0, 2: 2, 4: 5, 7: 9, 10: 12}
    for offset in range(14):
        below = max((second for at, second in marks.items() if at <= offset), default=None)
        above = min((second for at, second in marks.items() if at >= offset), default=None)
        wanted = tuple(None if second is None else start_s + second for second in (below, above))
        assert store.seconds_around(3, offset) == wanted, offset
    assert len(store.changes(3, 0, 100)) == 1


def test_a_gap_or_a_repeat_is_a_bug(store: Store) -> None:
    """Outside a replay, entries that do not continue exactly after the last ones are refused as a bug."""
    history = History()
    for n in range(6):
        history.put(b"b", b"%d" % n, b"x")
    store.write([history.step(0, 2)])
    for wrong in (history.step(1, 3), history.step(3, 4)):
        with pytest.raises(AssertionError):
            store.write([wrong])
    with pytest.raises(AssertionError):
        store.write([PartitionStep(3, [history.entries[2], history.entries[4]])])


def test_one_partition_may_come_twice_in_a_write(store: Store) -> None:
    """Two steps of one partition in one write are applied one after the other."""
    history = History()
    for n in range(4):
        history.put(b"b", b"same", b"%d" % n)
    store.write([history.step(0, 2), history.step(2)])
    assert store.object(3, b"b", b"same") == b"3"
    assert [c.offset for c in store.changes(3, 0, 9)] == [3]
    assert store.applied(3).offset == 4


def test_a_checkpoint_moves_the_floor_to_what_is_applied(store: Store) -> None:
    """The floor stays behind until a checkpoint, which moves it to the applied offset."""
    history = History()
    for n in range(4):
        history.put(b"b", b"%d" % n, b"x")
    store.write([history.step(0, 3)])
    assert store.durable_floor(3) == 0
    store.checkpoint()
    assert store.durable_floor(3) == 3
    store.write([history.step(3)])
    assert store.durable_floor(3) == 3
    store.checkpoint()
    store.checkpoint()
    assert store.durable_floor(3) == 4


def test_a_reader_sees_whole_steps_only(store: Store) -> None:
    """While one thread rewrites three keys per step, a listing in another always finds them of one step."""
    history = History()
    for n in range(300):
        for key in (b"a", b"b", b"c"):
            history.put(b"b", key, b"%d" % n)
    store.write([history.step(0, 3)])
    writer = Thread(target=lambda: [store.write([s]) for s in list(chunks(history, 3))[1:]])
    writer.start()
    try:
        while writer.is_alive():
            offsets = [decode_key_row(r.row).offset for r in store.list_keys(3, b"b", None)]
            assert offsets == [offsets[0], offsets[0] + 1, offsets[0] + 2]
            assert offsets[0] % 3 == 0
            assert len(store.changes(3, 0, 10)) == 3
    finally:
        writer.join()
    assert store.object(3, b"b", b"c") == b"299"


def test_an_abandoned_listing_is_closed(store: Store) -> None:
    """Closing a listing or a segment scan half-way leaves the store usable."""
    history = History()
    for n in range(50):
        history.put(b"b", b"%03d" % n, b"x")
    store.write([history.step(0, 40)])
    listing, scan = store.list_keys(3, None, None), store.key_rows(3, 0, 1 << 20)
    assert next(listing).key == b"000"
    next(scan)
    store.write([history.step(40)])
    assert len(list(listing)) == 39
    scan.close()  # type: ignore[attr-defined]
    with pytest.raises(StopIteration):
        next(scan)


def test_closing_twice_is_closing_once(store: Store) -> None:
    """`close` may be called again."""
    store.close()
    store.close()


def test_size_grows_with_the_data(store: Store) -> None:
    """`size_bytes` is at least what was stored."""
    history = History()
    history.put(b"b", b"k", bytes(50_000))
    store.write([history.step(0)])
    assert store.size_bytes() >= 50_000


def test_requests_of_the_last_offsets_are_known_by_key_and_id(store: Store) -> None:
    """A request is found by its key's hash and its id together, until the window has moved past its offset; entries
    without an id, and those of other partitions, move nothing into it."""
    history = History()
    entries = [history.put(b"b", b"%d" % n, b"x") for n in range(3)]
    store.write([history.step(0)])
    assert entries[1].request_id
    assert store.request_offset(3, entries[1].key_hash, entries[1].request_id) == 1
    assert store.request_offset(3, entries[2].key_hash, entries[1].request_id) is None
    assert store.request_offset(4, entries[1].key_hash, entries[1].request_id) is None
    assert store.request_offset(3, entries[0].key_hash, b"") is None
    for _ in range(WINDOW_OFFSETS - 2):
        history.plain(EntryKind.CURSOR, key=b"q")
    store.write([history.step(3)])
    assert store.request_offset(3, entries[1].key_hash, entries[1].request_id) == 1
    history.plain(EntryKind.CURSOR, key=b"q")
    store.write([history.step(len(history.entries) - 1)])
    assert store.request_offset(3, entries[1].key_hash, entries[1].request_id) is None
    assert store.request_offset(3, entries[2].key_hash, entries[2].request_id) == 2


def test_read_rows_are_below_the_reach(store: Store) -> None:
    """`reach` is at least what is applied, also while a batch is written that readers may see already."""
    history = History()
    history.put(b"b", b"k", b"x")
    history.put(b"b", b"k", b"y")
    assert store.reach(3) == 0
    prepared = store.prepare([history.step(0, 1)])
    assert store.reach(3) in (0, 1)
    store.commit(prepared)
    assert store.reach(3) == 1
    store.write([history.step(1)])
    assert store.reach(3) == store.applied(3).offset == 2


def test_an_idle_compaction_loses_no_row(store: Store) -> None:
    """Rows written before an idle compaction are readable after it, and more can be written."""
    history = History()
    history.put(b"b", b"one", b"1" * 6_000_000)
    store.write([history.step(0)])
    store.checkpoint()
    store.compact_when_idle(idle=True)
    assert store.object(3, b"b", b"one") == b"1" * 6_000_000
    history.put(b"b", b"two", b"2")
    store.write([history.step(1)])
    store.compact_when_idle(idle=False)
    assert store.object(3, b"b", b"two") == b"2"
    assert [change.offset for change in store.changes(3, 0, 10)] == [0, 1]
