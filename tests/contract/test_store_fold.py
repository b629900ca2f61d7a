"""The store is a fold of its log: after any entries, each row is what the latest entries say."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from isthmus.repl.model.entry import NO_OFFSET, EntryKind
from isthmus.repl.model.keys import segment_of
from isthmus.repl.store.port import Store
from tests.support.entry_histories import START_MS, WINDOW_OFFSETS, ExpectedRows, History, open_store, stored_rows
from tests.support.memory_store import MemoryStore
from tests.support.samples import share

NAMES = st.lists(st.sampled_from([b"\0", b"\1", b"\xff", b"a", b"b"]), min_size=1, max_size=3).map(b"".join)


@dataclass(frozen=True)
class Put:
    """A key is written at this many seconds after the start."""

    bucket: bytes
    key: bytes
    at_s: int


@dataclass(frozen=True)
class Other:
    """An entry that changes no key."""

    kind: EntryKind
    queue: bytes = b""


OPERATIONS = st.lists(
    st.one_of(
        st.builds(Put, NAMES, NAMES, st.integers(0, 20)),
        st.builds(Put, st.just(b"a"), st.sampled_from([b"a", b"b"]), st.integers(0, 20)),
        st.builds(Other, st.just(EntryKind.CURSOR), st.sampled_from([b"west", b"north"])),
        st.builds(Other, st.sampled_from([EntryKind.BARRIER, EntryKind.CONFIG])),
    ),
    min_size=1,
    max_size=40,
)


def history_of(operations: list[Put | Other]) -> History:
    """The entries that a leader would make of them."""
    history = History()
    for number, operation in enumerate(operations):
        payload = b"payload %d" % number
        if isinstance(operation, Put):
            time_ms = START_MS + operation.at_s * 1000
            history.put(operation.bucket, operation.key, payload, time_ms=time_ms)
        else:
            history.plain(operation.kind, key=operation.queue, payload=payload)
    return history


def check_fold(store: Store, history: History) -> None:
    """Checks that every read agrees with the latest entries."""
    p = history.partition
    latest = history.latest
    changes = store.changes(p, 0, 1_000)
    by_offset = sorted(latest.values(), key=lambda e: e.offset)
    assert [(c.offset, c.bucket, c.key, c.key_hash, c.time_ms) for c in changes] == [
        (e.offset, e.bucket, e.key, e.key_hash, e.time_ms) for e in by_offset
    ]
    for (bucket, key), entry in latest.items():
        assert store.object(p, bucket, key) == entry.payload
        assert store.key_row(p, entry.key_hash, bucket, key) == entry.row
    assert [(r.bucket, r.key, r.row) for r in store.list_keys(p, None, None)] == [
        (*name, latest[name].row) for name in sorted(latest)
    ]
    assert list(store.key_rows(p, 0, 1 << 20)) == sorted(
        (segment_of(e.key_hash), e.bucket, e.key, e.row) for e in latest.values()
    )
    for queue in (b"west", b"north"):
        moves = [e for e in history.entries if e.kind == EntryKind.CURSOR and e.key == queue]
        cursor = store.cursor(p, queue)
        assert (cursor.entry_offset, cursor.entry) == (
            (moves[-1].offset, moves[-1].payload) if moves else (NO_OFFSET, None)
        )
    assert store.applied(p) == (history.entries[-1].epoch, len(history.entries))
    for e in history.entries:
        remembered = bool(e.request_id) and e.offset >= len(history.entries) - WINDOW_OFFSETS
        assert store.request_offset(p, e.key_hash, e.request_id or b"-") == (e.offset if remembered else None)


def check_times(store: Store, history: History) -> None:
    """Checks that `offset_at` never skips a change, and is exact where the leaders' clocks rose."""
    p = history.partition
    puts = [e for e in history.entries if e.kind == EntryKind.DATA]
    for at_s in range(-1, 22):
        asked_ms = START_MS + at_s * 1000
        found = store.offset_at(p, asked_ms)
        first = min((e.offset for e in puts if e.time_ms >= asked_ms), default=None)
        assert first is None or found <= first
        if first is None:
            assert found == store.applied(p).offset


@settings(max_examples=share(40), suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(operations=OPERATIONS, size=st.integers(1, 7))
def test_rows_are_the_fold_of_the_entries(operations: list[Put | Other], size: int, memory_directory: Path) -> None:
    """There is exactly one change row per key, at its latest offset. Key rows, objects, cursors and times are those of
    the log's entries. The memory store and the reopened database have the same rows."""
    history = history_of(operations)
    directory = memory_directory / "store"
    shutil.rmtree(directory, ignore_errors=True)
    level, memory, expected_rows = (
        open_store(directory),
        MemoryStore(request_window_offsets=WINDOW_OFFSETS),
        ExpectedRows(),
    )
    for at in range(0, len(history.entries), size):
        steps = [history.step(at, at + size)]
        for store in (level, memory, expected_rows):
            store.write(steps)
    for store in (level, memory):
        check_fold(store, history)
        check_times(store, history)
    for asked_s in range(-1, 22):
        asked_ms = START_MS + asked_s * 1000
        assert level.offset_at(3, asked_ms) == memory.offset_at(3, asked_ms)
    level.close()
    assert stored_rows(directory) == expected_rows.rows
    level = open_store(directory, boot_id="another boot")
    check_fold(level, history)
    check_times(level, history)
    level.close()


@settings(max_examples=share(25), suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(operations=OPERATIONS, floor=st.integers(0, 40), sizes=st.tuples(st.integers(1, 7), st.integers(1, 7)))
def test_a_replay_from_any_floor_changes_nothing(
    operations: list[Put | Other], floor: int, sizes: tuple[int, int], memory_directory: Path
) -> None:
    """Entries from any floor on written again, in steps of another size, leave every row as it was."""
    history = history_of(operations)
    floor = min(floor, len(history.entries))
    directory = memory_directory / "store"
    shutil.rmtree(directory, ignore_errors=True)
    shutil.rmtree(memory_directory / "copy", ignore_errors=True)
    store, expected_rows = open_store(directory), ExpectedRows()
    for at in range(0, floor, sizes[0]):
        store.write([history.step(at, min(at + sizes[0], floor))])
    store.checkpoint()
    for at in range(floor, len(history.entries), sizes[0]):
        store.write([history.step(at, at + sizes[0])])
    shutil.copytree(directory, memory_directory / "copy")
    store.close()
    expected_rows.write([history.step(0)])
    store = open_store(memory_directory / "copy", boot_id="another boot")
    assert store.needs_replay() == (floor < len(history.entries))
    assert store.durable_floor(3) == floor
    for at in range(floor, len(history.entries), sizes[1]):
        store.write([history.step(at, at + sizes[1])])
    if store.needs_replay():
        store.replay_finished()
    assert store.durable_floor(3) == len(history.entries)
    check_fold(store, history)
    store.close()
    assert stored_rows(memory_directory / "copy") == expected_rows.rows
