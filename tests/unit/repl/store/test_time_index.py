"""Time marks are thinned with age, and results found from them stay correct."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from isthmus.repl.store import rows
from isthmus.repl.store.leveldb import plyvel
from isthmus.repl.store.time_index import FULL_FOR_S, MINUTES_FOR_S, excess_marks
from tests.support.entry_histories import START_MS, History, open_store

START_S = START_MS // 1000


@given(st.lists(st.integers(0, 3 * MINUTES_FOR_S), min_size=1, max_size=80).map(lambda s: sorted(set(s))))
def test_the_recent_stay_and_of_the_old_the_first_of_each_minute_or_hour(seconds: list[int]) -> None:
    """All marks of the last hour stay; each minute of the last day and each older hour keeps its first one."""
    newest = seconds[-1]
    gone = set(excess_marks(seconds, newest))
    kept = [s for s in seconds if s not in gone]
    assert newest in kept
    assert all(s in kept for s in seconds if newest - s < FULL_FOR_S)
    for second in gone:
        width_s = 60 if newest - second < MINUTES_FOR_S else 3_600
        assert any(k < second and k // width_s == second // width_s for k in kept)
    assert excess_marks(kept, newest) == []


def test_thinning_bounds_the_marks_of_two_days() -> None:
    """Two days of marks, one a second, thinned as they grow, come down to an hour, a day of minutes, and hours."""
    marks: list[int] = []
    for begun in range(0, 2 * 86_400, 1_800):
        marks.extend(range(begun, begun + 1_800))
        gone = set(excess_marks(marks, marks[-1]))
        marks = [s for s in marks if s not in gone]
    assert len(marks) <= 3_600 + 24 * 60 + 24 + 2


def test_a_checkpoint_thins_and_offset_at_stays_safe(memory_directory: Path) -> None:
    """After checkpoints over three days of marks few are left, and no time finds an offset above its changes."""
    store = open_store(memory_directory / "store")
    histories = [History(p) for p in (0, 1)]
    for history in histories:
        for n in range(3_000):
            history.put(b"b", b"%d" % n, b"x", time_ms=START_MS + n * 87_000)
    store.write([history.step(0) for history in histories])
    for _ in range(3):
        store.checkpoint()
    for history in histories:
        for asked_s in range(0, 3_000 * 87, 1_777):
            asked_ms = START_MS + asked_s * 1000
            found = store.offset_at(history.partition, asked_ms)
            exact = -(-asked_s // 87)
            assert found <= exact
            assert exact - found <= 3_600 // 87 + 1
        assert store.offset_at(history.partition, history.time_ms) == 2_999
        assert store.offset_at(history.partition, history.time_ms + 1_000) == 3_000
    store.close()
    db = plyvel.DB(str(memory_directory / "store" / "rows"))
    for history in histories:
        prefix = rows.prefixes(history.partition).mark
        left = sum(1 for _ in db.iterator(prefix=prefix))
        assert left <= 2 * 24 + 1 + 86_400 // 87 + 2
    db.close()


def test_one_mark_a_second(memory_directory: Path) -> None:
    """A thousand changes within three seconds leave three marks, each at the first change of its second."""
    store = open_store(memory_directory / "store")
    history = History()
    for n in range(1_000):
        history.put(b"b", b"%d" % n, b"x", time_ms=START_MS + n * 3)
    for at in range(0, 1_000, 64):
        store.write([history.step(at, at + 64)])
    assert [store.offset_at(3, START_MS + s * 1000) for s in range(4)] == [0, 334, 667, 1_000]
    store.close()
    db = plyvel.DB(str(memory_directory / "store" / "rows"))
    prefix = rows.prefixes(3).mark
    assert [rows.decode_u64(name[len(prefix) :]) - START_S for name, _ in db.iterator(prefix=prefix)] == [0, 1, 2]
    db.close()
