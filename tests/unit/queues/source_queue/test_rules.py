"""Single rules of a source queue: places, limits, fairness, leases, owners, gathering."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

import isthmus.queues.leases as batches_room
from isthmus.queues import backlog_count
from isthmus.queues.backlog_count import BacklogCounter
from isthmus.queues.cursors import CursorPosition, CursorState
from isthmus.queues.leases import IN_FLIGHT_BATCHES_MAX, Session
from isthmus.queues.object_reader import read_objects
from isthmus.queues.pacing import ACTIVE_MS, GATHER_COUNT, GATHER_MOST_MS, GATHER_MS, SILENCE_MS, BatchPacing, gather_ms
from isthmus.queues.source_queue import BULK_BATCH_COUNT, BULK_INTERVAL_MS, IDLE_MS, SourceQueue
from isthmus.queues.window_rules import FOLD, Budget, Item
from isthmus.repl.model.keys import Key
from isthmus.repl.model.reference import ReferenceKind
from tests.support.damage_reports import raising_listeners
from tests.support.queue_source import BUCKET, OURS, SINK, THIRD, EntryFactory, FakeStore
from tests.support.virtual_time import LoopTime

P, Q = 3, 8
SESSION = Session(SINK, "w1", b"incarnat", 0)


class QueueFixture:
    """A SourceQueue over a FakeStore; each write is added to the queue at once."""

    def __init__(
        self,
        *,
        size_limit: int = 10_000,
        object_limit: int = 1_000,
        reference_limit: int = 10_000,
        cascade: bool = False,
        partitions: tuple[int, ...] = (P,),
        life: bytes = b"lifelife",
    ) -> None:
        self.fake_store = FakeStore()
        self.factory = EntryFactory(self.fake_store)
        self.budget = Budget(size_limit, object_limit, reference_limit)
        self.queue = SourceQueue("q", OURS, cascade, 1_000, self.budget, life, raising_listeners())
        self.queue.set_owner(SINK, 1)
        self.now = 0
        for partition in partitions:
            self.queue.lead(partition, b"default", CursorPosition(0, CursorState(0, 1, SINK), 0), 0)
        self.queue.on_fetch(SESSION, None, 0)

    def write(self, key: bytes, partition: int = P, **how: object) -> None:
        entry = self.factory.data(partition, key, **how)  # type: ignore[arg-type]
        self.fake_store.put(partition, entry)
        self.queue.add(partition, [entry], self.now)

    def refill(self) -> None:
        for window, start, rows in self.queue.begin_refills():
            window.finish_refill(self.fake_store.changes(window.partition, start, rows), rows)

    def take(self, count: int = 100, size: int = 1_000_000) -> tuple[bytes, list[Item]]:
        batch = self.queue.take(SESSION, count, size, self.now)
        if batch is None or not self.queue.resolve(batch, read_objects(self.fake_store, batch.items(), size)):  # type: ignore[arg-type]
            return b"", []
        return batch.id, batch.items()

    def ack(self, batch: bytes, failed: tuple[int, ...] | None = ()) -> None:
        self.queue.acknowledge(SESSION, batch, 1, failed)

    @property
    def cursor(self) -> int:
        return self.queue.windows[P].advance()


def keys(items: list[Item]) -> list[bytes]:
    return [item[5] for item in items]


def test_a_hot_key_keeps_its_place_and_goes_once_with_its_newest_object() -> None:
    """A key that changes again while it waits is served in its old place, with the current object, and its newer rows
    are skipped (R-PLACE)."""
    fixture = QueueFixture()
    fixture.write(b"hot", time_ms=1)
    fixture.write(b"cold")
    for size in range(1, 50):
        fixture.write(b"hot", size=size, time_ms=size)
    batch, items = fixture.take()
    assert keys(items) == [b"hot", b"cold"]
    assert items[0][8] == fixture.fake_store.objects[P, b"hot"]
    assert items[0][2] == fixture.fake_store.latest[P, b"hot"]
    assert items[0][7] == 49
    assert fixture.queue.ledger().collapsed == 49
    fixture.ack(batch)
    assert fixture.cursor == fixture.fake_store.ends[P]
    assert fixture.take()[1] == []


def test_a_hot_key_is_not_starved_by_its_own_changes() -> None:
    """However often a key changes, it is in the next batch after the keys that waited before it (R-PLACE)."""
    fixture = QueueFixture()
    for round_number in range(20):
        fixture.write(b"k%d" % round_number)
        fixture.write(b"hot")
        batch, items = fixture.take(count=2)
        assert b"hot" in keys(items)
        fixture.write(b"hot")
        fixture.ack(batch)
        batch, items = fixture.take()
        assert keys(items) == [b"hot"]
        fixture.ack(batch)


def test_a_key_that_changes_in_a_stopped_window_is_still_sent_once() -> None:
    """The newer row of a reference that waited in a full window is skipped when the window reads on, whether the
    reference waits or is done."""
    fixture = QueueFixture(reference_limit=2)
    fixture.write(b"a")
    fixture.write(b"b")
    fixture.write(b"c")
    fixture.write(b"a", size=7)
    fixture.write(b"b", size=8)
    assert not fixture.queue.windows[P].contiguous
    batch, items = fixture.take(count=1)
    assert [(k, i[8]) for k, i in zip(keys(items), items, strict=True)] == [(b"a", fixture.fake_store.objects[P, b"a"])]
    fixture.ack(batch)
    fixture.refill()
    batch, items = fixture.take()
    assert keys(items) == [b"b", b"c"]
    fixture.ack(batch)
    fixture.refill()
    assert fixture.take()[1] == []
    assert fixture.cursor == fixture.fake_store.ends[P]


def test_a_key_that_changes_while_it_is_away_comes_again_at_its_new_place() -> None:
    """The acknowledgement covers the version that was sent; the newer one is offered by itself."""
    fixture = QueueFixture()
    fixture.write(b"a")
    batch, items = fixture.take()
    assert keys(items) == [b"a"]
    fixture.write(b"b")
    fixture.write(b"a", size=9)
    fixture.ack(batch)
    batch, items = fixture.take()
    assert keys(items) == [b"b", b"a"]
    assert items[1][8] == fixture.fake_store.objects[P, b"a"]


def test_when_the_lease_of_an_overtaken_change_ends_only_the_newer_one_goes() -> None:
    """An unacknowledged batch is served again, except a change whose key has a newer one waiting."""
    fixture = QueueFixture()
    fixture.write(b"a")
    fixture.write(b"b")
    fixture.take()
    fixture.write(b"a", size=9)
    fixture.now += 1_000
    assert fixture.queue.expire(fixture.now) == 1
    batch, items = fixture.take()
    assert keys(items) == [b"b", b"a"]
    assert items[1][8] == fixture.fake_store.objects[P, b"a"]
    fixture.ack(batch)
    assert fixture.cursor == fixture.fake_store.ends[P]


@pytest.mark.parametrize("away", [False, True])
def test_our_change_that_a_third_cluster_replaced_before_it_went_still_goes(away: bool) -> None:
    """A push of another cluster over a local change that was not sent must not make the sink miss the local one
    (R-OWED)."""
    fixture = QueueFixture()
    fixture.write(b"a")
    if away:
        fixture.take()
    fixture.write(b"a", origin=THIRD)
    fixture.now += 1_000
    fixture.queue.expire(fixture.now)
    batch, items = fixture.take()
    assert keys(items) == [b"a"]
    fixture.ack(batch)
    assert fixture.cursor == fixture.fake_store.ends[P]


@pytest.mark.parametrize("away", [False, True])
def test_a_change_that_the_owner_itself_replaced_needs_no_sending(away: bool) -> None:
    """A push of the owner over a waiting local change settles it: the owner has the pushed object."""
    fixture = QueueFixture()
    fixture.write(b"a")
    if away:
        fixture.take()
    fixture.write(b"a", origin=SINK)
    fixture.now += 1_000
    fixture.queue.expire(fixture.now)
    assert fixture.take()[1] == []
    assert fixture.cursor == fixture.fake_store.ends[P]


@pytest.mark.parametrize(("cascade", "expected"), [(False, [b"ours"]), (True, [b"ours", b"third's"])])
def test_rows_of_other_clusters_are_offered_only_when_cascading_and_never_to_their_origin(
    cascade: bool, expected: list[bytes]
) -> None:
    """I-Q-NOLOOP: a row is never offered to the cluster it came from, neither from memory nor from the index."""
    for through_index in (False, True):
        fixture = QueueFixture(cascade=cascade)
        if through_index:
            fixture.queue.windows[P].reset()
        fixture.write(b"ours")
        fixture.write(b"sink's", origin=SINK)
        fixture.write(b"third's", origin=THIRD)
        if through_index:
            fixture.queue.windows[P].tracking = True
            fixture.refill()
        batch, items = fixture.take()
        assert keys(items) == expected
        fixture.ack(batch)
        assert fixture.cursor == 3


def test_large_and_surplus_objects_are_kept_as_references_and_tombstones_whole() -> None:
    """Above the size limit or the object limit an object is read when it is served; a tombstone is always kept
    whole."""
    fixture = QueueFixture(size_limit=200, object_limit=2)
    fixture.write(b"large", size=500)
    for name in (b"1", b"2", b"3"):
        fixture.write(name, size=10)
    fixture.write(b"gone", delete=True)
    assert fixture.budget.objects == 2
    batch = fixture.queue.take(SESSION, 10, 1_000_000, 0)
    assert batch is not None
    assert [ReferenceKind(item[0]).name for item in batch.items()] == [
        "TO_FETCH", "OBJECT", "OBJECT", "TO_FETCH", "TOMBSTONE",
    ]  # fmt: skip
    assert fixture.budget.objects == 0
    assert fixture.queue.resolve(batch, read_objects(fixture.fake_store, batch.items(), 1_000_000))  # type: ignore[arg-type]
    for item in batch.items():
        assert item[8] == fixture.fake_store.objects[P, item[5]]


def test_tombstones_read_from_the_index_are_marked_so() -> None:
    """The kind of a reference read from the index follows from the object: a tombstone is served as one."""
    fixture = QueueFixture()
    fixture.queue.windows[P].reset()
    fixture.write(b"a")
    fixture.write(b"gone", delete=True)
    fixture.queue.windows[P].tracking = True
    fixture.refill()
    assert [item[0] for item in fixture.take()[1]] == [ReferenceKind.OBJECT, ReferenceKind.TOMBSTONE]


def test_an_object_that_vanished_is_counted_and_its_place_settled() -> None:
    """A reference whose object no longer exists is not served and does not block the cursor."""
    fixture = QueueFixture(object_limit=0)
    fixture.write(b"a")
    fixture.write(b"b")
    del fixture.fake_store.objects[P, b"a"]
    batch, items = fixture.take()
    assert keys(items) == [b"b"]
    assert fixture.queue.ledger().vanished == 1
    fixture.ack(batch)
    assert fixture.cursor == 2


def test_references_that_did_not_fit_when_read_wait_again_in_order() -> None:
    """The byte limit also holds for objects whose size was not known when they were selected, and order is kept."""
    fixture = QueueFixture(object_limit=0)
    for name in (b"1", b"2", b"3", b"4"):
        fixture.write(name, size=1_000)
    first, items = fixture.take(size=2_500)
    assert keys(items) == [b"1", b"2"]
    second, items = fixture.take(size=10)
    assert keys(items) == [b"3"], "a single larger object goes alone"
    assert keys(fixture.take(size=2_500)[1]) == [b"4"]
    fixture.ack(second)
    assert fixture.cursor == 0
    fixture.ack(first)
    assert fixture.cursor == 3


def test_order_is_kept_and_what_came_back_goes_first() -> None:
    """I-Q-FIFO: changes of a partition are served in the order of their places, repeated ones before new ones."""
    fixture = QueueFixture()
    for number in range(9):
        fixture.write(b"%d" % number)
    first, items = fixture.take(count=3)
    assert keys(items) == [b"0", b"1", b"2"]
    second, items = fixture.take(count=3)
    assert keys(items) == [b"3", b"4", b"5"]
    fixture.ack(second, failed=(1,))
    fixture.ack(first, failed=None)
    assert fixture.cursor == 0
    _, items = fixture.take()
    assert keys(items) == [b"0", b"1", b"2", b"4", b"6", b"7", b"8"]
    assert fixture.queue.counts.redelivered == 4
    assert fixture.queue.counts.acknowledged == 2


def test_a_batch_is_shared_fairly_among_partitions() -> None:
    """A partition with a large backlog leaves the others their share, and takes what they do not need."""
    fixture = QueueFixture(partitions=(P, Q))
    for number in range(200):
        fixture.write(b"p%d" % number)
    for number in range(30):
        fixture.write(b"q%d" % number, partition=Q)
    _, items = fixture.take(count=60)
    shares = [sum(1 for item in items if item[1] == partition) for partition in (P, Q)]
    assert shares == [30, 30]
    _, items = fixture.take(count=60)
    assert len(items) == 60


def test_several_fetches_hold_distinct_references() -> None:
    """Batches under lease at the same time share nothing, and an acknowledgement settles its own only."""
    fixture = QueueFixture()
    for number in range(20):
        fixture.write(b"%d" % number)
    one, first = fixture.take(count=8)
    two, second = fixture.take(count=8)
    assert not set(keys(first)) & set(keys(second))
    fixture.ack(two)
    assert fixture.cursor == 0
    fixture.ack(one)
    assert fixture.cursor == 16


def test_batches_under_lease_are_bounded() -> None:
    """Beyond the number of batches or bytes under lease a fetch gets nothing until one comes back."""
    fixture = QueueFixture()
    for number in range(IN_FLIGHT_BATCHES_MAX + 1):
        fixture.write(b"%d" % number)
    batches = [fixture.take(count=1)[0] for _ in range(IN_FLIGHT_BATCHES_MAX)]
    assert all(batches)
    assert fixture.take(count=1)[1] == []
    assert fixture.queue.due_in_ms(0) is None
    fixture.ack(batches[5])
    assert len(fixture.take(count=1)[1]) == 1


def test_bytes_under_lease_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Payload bytes under lease stop further batches once they reach the limit."""
    monkeypatch.setattr(batches_room, "IN_FLIGHT_BYTES_MAX", 500)
    fixture = QueueFixture()
    for number in range(3):
        fixture.write(b"%d" % number, size=300)
    first, _ = fixture.take(count=1)
    assert fixture.take(count=1)[1]
    assert fixture.take(count=1)[1] == []
    fixture.ack(first)
    assert fixture.take(count=1)[1]


def test_leases_of_a_restarted_sink_end_at_its_first_fetch() -> None:
    """A new incarnation of a node holds nothing of the old one, so its batches need not wait for their lease."""
    fixture = QueueFixture()
    fixture.write(b"a")
    fixture.take()
    fixture.queue.on_fetch(SESSION._replace(node="other", incarnation=b"12345678"), (), 0)
    assert fixture.take()[1] == []
    fixture.queue.on_fetch(SESSION._replace(incarnation=b"87654321"), (), 0)
    assert keys(fixture.take()[1]) == [b"a"]


def test_a_batch_whose_answer_was_lost_comes_back_with_the_next_fetch_of_its_link() -> None:
    """A link that no longer names a batch gives it back; another link's fetch does not touch it."""
    fixture = QueueFixture()
    fixture.write(b"a")
    batch, _ = fixture.take()
    fixture.queue.on_fetch(SESSION, (batch,), 0)
    fixture.queue.on_fetch(SESSION._replace(link=1), (), 0)
    fixture.queue.on_fetch(SESSION, None, 0)
    assert fixture.take()[1] == []
    fixture.queue.on_fetch(SESSION, (), 0)
    assert keys(fixture.take()[1]) == [b"a"]


def test_another_cluster_or_owner_version_acknowledges_nothing() -> None:
    """Acknowledgements count only from the owner under the version of the batch (R-OWNER)."""
    fixture = QueueFixture()
    fixture.write(b"a")
    batch, _ = fixture.take()
    fixture.queue.acknowledge(SESSION._replace(cluster=THIRD), batch, 1, ())
    fixture.queue.acknowledge(SESSION, batch, 2, ())
    assert fixture.cursor == 0
    assert fixture.queue.counts.refused == 2
    fixture.queue.acknowledge(SESSION, b"unknown", 1, ())
    assert fixture.queue.counts.late == 1
    fixture.ack(batch)
    assert fixture.cursor == 1


def test_an_acknowledgement_from_before_a_restart_settles_nothing() -> None:
    """No two processes give out a batch id: what a sink acknowledges late, of the process before, is late, and settles
    no batch that the present one has given out."""
    before, after = QueueFixture(life=b"life-one"), QueueFixture(life=b"life-two")
    for fixture in (before, after):
        fixture.write(b"a")
    (old, _), (new, _) = before.take(), after.take()
    after.ack(old)
    assert after.queue.counts.late == 1
    assert after.cursor == 0
    after.ack(new)
    assert after.cursor == 1


def test_nothing_is_served_before_the_owners_cursor_entry_is_applied() -> None:
    """R-OWNER: an owner in the metastore alone opens no window; the partition's CURSOR entry does."""
    fixture = QueueFixture()
    fixture.write(b"a")
    fixture.queue.set_owner(THIRD, 2)
    other = SESSION._replace(cluster=THIRD)
    fixture.queue.on_fetch(other, (), 0)
    assert fixture.queue.take(other, 10, 1_000, 0) is None
    assert fixture.queue.wanted_cursors(0) == [(P, CursorState(0, 2, THIRD))]
    entry = fixture.factory.cursor(P, b"q", b"")
    fixture.fake_store.put(P, entry)
    fixture.queue.add(P, [entry], 0)
    fixture.queue.cursor_applied(P, b"default", entry.offset, CursorState(0, 2, THIRD))
    fixture.refill()
    batch = fixture.queue.take(other, 10, 1_000, 0)
    assert batch is not None
    assert keys(batch.items()) == [b"a"]


def test_a_suspended_queue_gives_nothing_and_still_takes_acknowledgements() -> None:
    """Serving is suspended: the cursor stays, and changes under lease may still be acknowledged."""
    fixture = QueueFixture()
    fixture.write(b"a")
    batch, _ = fixture.take()
    fixture.write(b"b")
    fixture.queue.serving_suspended = True
    assert fixture.take()[1] == []
    assert fixture.queue.due_in_ms(0) is None
    fixture.ack(batch)
    assert fixture.cursor == 1
    fixture.queue.serving_suspended = False
    assert keys(fixture.take()[1]) == [b"b"]


def test_a_sink_that_is_away_costs_no_memory() -> None:
    """After a minute without a fetch the window is empty, and the next fetch finds everything in the index."""
    fixture = QueueFixture()
    for number in range(10):
        fixture.write(b"%d" % number)
    assert fixture.budget.references == 10
    fixture.queue.drop_idle_windows(IDLE_MS - 1)
    assert fixture.budget.references == 10
    fixture.queue.drop_idle_windows(IDLE_MS)
    assert fixture.budget.references == fixture.budget.objects == 0
    fixture.write(b"later")
    assert fixture.budget.references == 0
    fixture.queue.on_fetch(SESSION, (), IDLE_MS)
    fixture.refill()
    assert len(fixture.take()[1]) == 11


def test_lag_comes_first_at_low_rates_and_batches_at_high_ones() -> None:
    """A single change is served at once; a flood gathers, for a few milliseconds at most or until enough changes wait;
    a single change after the flood is served at once again."""
    fixture = QueueFixture()
    fixture.now = 1_000
    fixture.write(b"lone")
    assert fixture.queue.due_in_ms(fixture.now) == 0
    fixture.ack(fixture.take()[0])
    for number in range(2_000):
        fixture.now = 1_000 + number // 10
        fixture.write(b"%d" % number)
        fixture.ack(fixture.take()[0])
    fixture.write(b"next")
    assert fixture.queue.due_in_ms(fixture.now) == GATHER_MOST_MS
    assert fixture.queue.due_in_ms(fixture.now + GATHER_MOST_MS) == 0
    for number in range(GATHER_COUNT):
        fixture.write(b"more%d" % number)
    assert fixture.queue.due_in_ms(fixture.now) == 0
    fixture.ack(fixture.take()[0])
    fixture.now += SILENCE_MS
    fixture.write(b"alone")
    assert fixture.queue.due_in_ms(fixture.now) == 0


def test_a_burst_after_a_pause_is_not_delayed_like_a_flood() -> None:
    """At 1,000 changes a second, forty that come together after a pause of the source are served no later than
    others."""
    pace = BatchPacing()
    for now in range(1_000, 1_300):
        pace.arrived(1, now)
    pace.arrived(40, 1_340)
    for now in range(1_341, 1_361):
        pace.arrived(3, now)
        assert pace.wait_ms(1, now, now, idle=False) <= GATHER_MS


def test_nothing_gathers_at_a_moderate_rate_while_the_sinks_have_nothing_to_do() -> None:
    """Up to 1,500 changes per second, a change is served at once while no batch is under lease; while one is, changes
    gather and are served with its acknowledgement. At higher rates they always gather."""
    fixture = QueueFixture()
    for fixture.now in range(1_000, 1_200):
        fixture.write(b"%d" % fixture.now)
        fixture.ack(fixture.take()[0])
    fixture.write(b"idle")
    assert fixture.queue.due_in_ms(fixture.now) == 0
    batch, _ = fixture.take()
    fixture.write(b"busy")
    assert fixture.queue.due_in_ms(fixture.now) == GATHER_MS
    fixture.ack(batch)
    assert fixture.queue.due_in_ms(fixture.now) == 0
    for number in range(1_000):
        fixture.now += number % 8 == 0
        fixture.write(b"flood%d" % number)
        fixture.ack(fixture.take()[0])
    fixture.write(b"more")
    assert fixture.queue.due_in_ms(fixture.now) == GATHER_MOST_MS


def test_a_fetch_gathers_longer_the_more_comes_and_never_beyond_its_bound() -> None:
    """Below 300 changes a second nothing waits. Up to 1,500, where lag counts, a fetch waits 2 ms; from 2,000 on, where
    the cost of a round counts, 10 ms; in between the wait never falls as the rate rises."""
    assert [gather_ms(rate) for rate in (0.0, 0.29, 0.3, 1.0, 1.5)] == [0, 0, GATHER_MS, GATHER_MS, GATHER_MS]
    assert [gather_ms(rate) for rate in (2.0, 5.0, 1_000.0)] == [GATHER_MOST_MS] * 3
    waits = [gather_ms(rate / 100) for rate in range(400)]
    assert waits == sorted(waits)
    for per_ms, expected in ((0.1, 0), (1.0, GATHER_MS), (8.0, GATHER_MOST_MS)):
        pace, now = BatchPacing(), 5_000
        for now in range(5_000, 5_400):
            pace.arrived(int((now + 1) * per_ms) - int(now * per_ms), now)
        pace.arrived(1, now)
        assert pace.wait_ms(1, now, now, idle=False) == expected
        assert pace.wait_ms(1, now, now + expected, idle=False) == 0


async def test_waiting_rows_are_counted_from_the_index_within_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counting reads rows in steps and returns unknown rather than read without limit."""
    fixture = QueueFixture()
    for number in range(10):
        fixture.write(b"%d" % number, time_ms=100 + number, origin=OURS if number else SINK)
    fixture.queue.windows[P].reset()
    assert [(w.partition, w.scan) for w in fixture.queue.incomplete_windows()] == [(P, 1)]

    async def counted() -> tuple[int | None, int | None]:
        with ThreadPoolExecutor(1) as pool:
            counter = BacklogCounter(fixture.queue, fixture.fake_store, pool, LoopTime())  # type: ignore[arg-type]
            return (await counter.count(1))[:2]

    for step in (3, 4_096):
        monkeypatch.setattr(backlog_count, "STEP_ROWS", step)
        assert await counted() == (9, 101)
    monkeypatch.setattr(backlog_count, "STEP_ROWS", 3)
    monkeypatch.setattr(backlog_count, "ROWS_MAX", 5)
    assert await counted() == (None, 101)


def test_while_changes_come_a_sink_holds_one_small_batch_of_bulk_references() -> None:
    """Its other fetches then wait for real-time changes. Another node's sink gets its own batch after a pause; after a
    while without changes, batches are as large and as many as requested."""
    fixture = QueueFixture()
    other = SESSION._replace(node="w2")
    second = SESSION._replace(link=1)
    fixture.queue.bulk_queues[1].offer([Key(b"default", BUCKET, b"%d" % n) for n in range(1_000)], 0)
    fixture.write(b"now")
    fixture.ack(fixture.take()[0])
    batch = fixture.queue.take(SESSION, 500, 1_000_000, fixture.now)
    assert batch is not None
    assert (batch.priority, len(batch)) == (FOLD, BULK_BATCH_COUNT)
    assert fixture.queue.due_in_ms(fixture.now) == BULK_INTERVAL_MS
    assert fixture.queue.take(other, 500, 1_000_000, fixture.now) is None
    fixture.now += BULK_INTERVAL_MS
    assert fixture.queue.due_in_ms(fixture.now) == 0, "for others"
    for link in (SESSION, second):
        assert fixture.queue.due_in_ms(fixture.now, link) is None
        assert fixture.queue.take(link, 500, 1_000_000, fixture.now) is None
    assert fixture.queue.due_in_ms(fixture.now, other) == 0
    fixture.write(b"then")
    assert fixture.queue.due_in_ms(fixture.now, second) == 0
    change = fixture.queue.take(second, 500, 1_000_000, fixture.now)
    assert change is not None
    assert keys(change.items()) == [b"then"]
    fixture.ack(batch.id)
    fixture.now += ACTIVE_MS
    for link in (SESSION, second):
        large = fixture.queue.take(link, 400, 1_000_000, fixture.now)
        assert large is not None
        assert len(large) == 400


def test_rows_read_before_the_window_was_dropped_are_not_taken_for_newer_ones() -> None:
    """A read of the change index is in progress when an idle window is dropped and the sink returns: its rows were read
    before later changes, and must not hide them."""
    fixture = QueueFixture()
    fixture.write(b"a")
    fixture.now += IDLE_MS
    fixture.queue.drop_idle_windows(fixture.now)
    fixture.queue.on_fetch(SESSION, None, fixture.now)
    ((window, start, limit),) = fixture.queue.begin_refills()
    late = fixture.fake_store.changes(P, start, limit)
    fixture.now += IDLE_MS
    fixture.queue.drop_idle_windows(fixture.now)
    fixture.write(b"b")
    fixture.queue.on_fetch(SESSION, None, fixture.now)
    under_way = fixture.queue.begin_refills()
    window.finish_refill(late, limit)
    for again, start, limit in (*under_way, *fixture.queue.begin_refills()):
        again.finish_refill(fixture.fake_store.changes(P, start, limit), limit)
    batch, items = fixture.take()
    assert keys(items) == [b"a", b"b"]
    fixture.ack(batch)
    assert fixture.cursor == fixture.fake_store.ends[P]
