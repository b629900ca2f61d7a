"""The queue's state machine under any order of writes, fetches, acknowledgements, losses and restarts.

A seeded schedule over one queue of two partitions with tiny limits, a lossy sink, a store that is ahead of the
notifications, and reads of rows that arrive late; every claim is checked after every step. A failure names its seed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from random import Random
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import isthmus.queues.window as window_room
from isthmus.queues.cursors import CursorState, encode_soft, encode_state, position_of
from isthmus.queues.gaps import Gaps
from isthmus.queues.leases import LeasedBatch, Session
from isthmus.queues.object_reader import read_objects
from isthmus.queues.sink_shares import SHARE_PATIENCE_MS, KeyRange, TypeShare
from isthmus.queues.source_queue import IDLE_MS, SourceQueue
from isthmus.queues.window import Window
from isthmus.queues.window_rules import Budget
from isthmus.repl.model.entry import Entry, EntryKind
from isthmus.repl.model.reference import ReferenceKind
from isthmus.repl.store.port import Change
from tests.support.damage_reports import raising_listeners
from tests.support.queue_source import OURS, SINK, THIRD, EntryFactory, FakeStore
from tests.support.samples import share

NAME = b"q"
LEASE_MS = 100
OBJECT_LIMIT = 3
REFERENCE_LIMIT = 7
SIZE_LIMIT = 200
ROWS = 3
PARTITIONS = (4, 9)
KEYS = [b"a", b"b", b"c", b"d", b"e", b"f"]
NODES = ("w1", "w2", "w3")
RANGES = {partition: KeyRange(position, len(PARTITIONS)) for position, partition in enumerate(PARTITIONS)}


class Sent(NamedTuple):
    """A batch as the sink got it."""

    life: int
    version: int
    session: Session
    batch: bytes
    items: list[tuple[int, bytes, int]]


class Schedule:
    """The environment and one random order of events."""

    def __init__(self, seed: int, cascade: bool, *, drops_notifications: bool = False) -> None:
        """`drops_notifications`: the queue is not notified of some entries, so its ledger cannot count them."""
        self.rng = Random(seed)
        self.sharing = Random(f"shares {seed}")
        self.shares_are_sent = self.sharing.random() < 0.7
        self.drops_notifications = drops_notifications
        self.discard = False
        self.cascade = cascade
        self.owner, self.version = SINK, 1
        self.fake_store = FakeStore()
        self.factory = EntryFactory(self.fake_store)
        self.now = 1_000
        self.life = 0
        self.seen: Counter[str] = Counter()
        self.unnotified: dict[int, list[Entry]] = {p: [] for p in PARTITIONS}
        self.audit_info: dict[int, int] = dict.fromkeys(PARTITIONS, 0)
        self.acked: dict[tuple[int, bytes], int] = {}
        self.sent: list[Sent] = []
        self.reads: list[tuple[Window, list[Change], int]] = []
        self.unread: list[tuple[Window, int, int]] = []
        self.reading: list[tuple[LeasedBatch, int]] = []
        self.moved: dict[bytes, set[int]] = {}
        """Batch -> partitions whose leadership moved while it was away: its acknowledgement counts nothing there."""
        for partition in PARTITIONS:
            self.store(partition, self.factory.cursor(partition, NAME, encode_state(CursorState(0, 1, SINK))))
        self.start()
        self.events: list[tuple[int, Callable[[], None]]] = [
            (24, self.write),
            (20, self.notify),
            (20, self.fetch),
            (8, self.finish_reading),
            (16, self.acknowledge),
            (10, self.read_rows),
            (10, self.rows_are_read),
            (10, self.rows_arrive),
            (3, self.lose_an_answer),
            (3, self.time_passes),
            (2, self.no_longer_held),
            (2, self.barrier),
            (2, self.reap),
            (3, self.save_cursors),
            (self.rng.choice([0, 1, 4]), self.restart),
            (self.rng.choice([0, 1, 2]), self.leadership_moves_and_returns),
            (self.rng.choice([0, 0, 1]), self.another_cluster_takes_over),
            (self.rng.choice([0, 1]), self.pause_fetching),
            (self.rng.choice([0, 1]), self.a_new_base),
            (6 if drops_notifications else 0, self.drop_notifications),
        ]
        self.hot = self.rng.choice([[], [], KEYS[:1]])

    def run(self, steps: int) -> None:
        weights, events = zip(*self.events, strict=True)
        for event in self.rng.choices(events, weights, k=steps):
            event()
            self.check()
        self.drain()

    # ------------------------------------------------------------------ the world

    def start(self) -> None:
        """A restart of the node: memory is lost, and the queue is loaded from the store."""
        self.life += 1
        self.reads, self.unread, self.reading = [], [], []
        self.budget = Budget(SIZE_LIMIT, OBJECT_LIMIT, REFERENCE_LIMIT, self.discard)
        prefix = self.life.to_bytes(8, "big")
        self.queue = SourceQueue("q", OURS, self.cascade, LEASE_MS, self.budget, prefix, raising_listeners())
        self.session = Session(self.owner, "w1", b"incarnat", 0)
        self.queue.set_owner(self.owner, self.version)
        for partition in PARTITIONS:
            position = position_of(self.fake_store.cursor(partition, NAME), 0)
            assert position is not None
            self.unnotified[partition] = []
            self.audit_info[partition] = self.fake_store.ends[partition]
            self.queue.lead(partition, b"default", position, self.fake_store.ends[partition], RANGES[partition])
        self.queue.on_fetch(self.session, None, self.now)

    def store(self, partition: int, entry: Entry) -> None:
        self.fake_store.put(partition, entry)
        self.unnotified[partition].append(entry)

    def notify_some(self, partition: int, count: int) -> None:
        entries, self.unnotified[partition] = self.unnotified[partition][:count], self.unnotified[partition][count:]
        if entries:
            self.audit_info[partition] = entries[-1].offset + 1
            self.queue.add(partition, entries, self.now)

    def eligible(self, origin: bytes) -> bool:
        return origin == OURS or (self.cascade and origin != self.owner)

    # ------------------------------------------------------------------ what happens

    def write(self) -> None:
        rng = self.rng
        for _ in range(rng.choice([1, 1, 1, 4, 10])):
            key = rng.choice(self.hot or KEYS)
            origin, size = rng.choice([OURS, OURS, OURS, SINK, THIRD]), rng.choice([1, 50, 500])
            partition = rng.choice(PARTITIONS)
            entry = self.factory.data(
                partition, key, origin=origin, size=size, delete=rng.random() < 0.3, time_ms=self.now
            )
            self.store(partition, entry)

    def barrier(self) -> None:
        partition = self.rng.choice(PARTITIONS)
        self.store(partition, self.factory.barrier(partition))

    def reap(self) -> None:
        """A reap waits until every cursor has passed the key's change (a rule of the reaper)."""
        partition, key = self.rng.choice(PARTITIONS), self.rng.choice(KEYS)
        latest = self.fake_store.latest.get((partition, key), -1)
        change = self.fake_store.rows[partition].get(latest) if latest >= 0 else None
        if change is not None and change.kind == EntryKind.DATA and latest < self.queue.windows[partition].cursor:
            self.store(partition, self.factory.reap(partition, key))

    def notify(self) -> None:
        self.notify_some(self.rng.choice(PARTITIONS), self.rng.choice([1, 2, 100]))

    def drop_notifications(self) -> None:
        """A notification is lost: the queue gets only later ones. A CURSOR entry, which sets its base, is always
        notified."""
        partition = self.rng.choice(PARTITIONS)
        if len(self.unnotified[partition]) > 1:
            del self.unnotified[partition][: self.rng.randint(1, len(self.unnotified[partition]) - 1)]
            self.seen["missed"] += 1

    def fetch(self) -> None:
        node = self.sharing.choice(NODES)
        session = self.session._replace(link=self.rng.randrange(2), node=node)
        if self.shares_are_sent and self.sharing.random() < 0.9:
            total = self.sharing.choice((2, 2, 2, 3))
            share = {b"default": TypeShare(total, self.sharing.randrange(1 << total))}
            self.queue.report_share(node, share if self.sharing.random() < 0.9 else None, 100, self.now)
        elif self.sharing.random() < 0.1:
            self.queue.fetch_cut_off(session)
        self.queue.on_fetch(session, None, self.now)
        count, size = self.rng.randint(1, 6), self.rng.choice([1, 300, 10_000])
        due_ms = self.queue.due_in_ms(self.now, session)
        batch = self.queue.take(session, count, size, self.now)
        assert batch is not None or due_ms != 0, "a fetch that is due got nothing"
        if batch is None:
            self.seen["passed_over"] += self.queue.due_in_ms(self.now) is not None
            return
        assert 0 < len(batch) <= count
        assert sum(len(item[8]) for item in batch.items()) <= size or len(batch) == 1
        if any(item[0] == ReferenceKind.TO_FETCH for item in batch.items()):
            self.reading.append((batch, size))
        else:
            self.send(batch, size)

    def finish_reading(self) -> None:
        """The objects of a batch were read, at a moment when the store may have moved on."""
        ready = [one for one in self.reading if self.queue.caught_up(one[0], self.fake_store.ends)]
        if ready:
            batch, size = self.rng.choice(ready)
            self.reading.remove((batch, size))
            if self.queue.resolve(batch, read_objects(self.fake_store, batch.items(), size)):  # type: ignore[arg-type]
                self.send(batch, size)

    def send(self, batch: LeasedBatch, size: int) -> None:
        self.queue.mark_sent(batch)
        for item in batch.items():
            assert item[0] in (ReferenceKind.OBJECT, ReferenceKind.TOMBSTONE)
            assert item[8]
            assert item[6] != batch.session.cluster, "offered to the cluster that it came from"
        assert sum(len(item[8]) for item in batch.items()) <= size or len(batch) == 1
        items = [(item[1], item[5], item[2]) for item in batch.items()]
        self.sent.append(Sent(self.life, batch.owner_version, batch.session, batch.id, items))

    def acknowledge(self) -> None:
        """Acknowledges any batch that was ever sent, in whole, in part or not at all; also late, or from before a
        restart."""
        if not self.sent:
            return
        sent = self.sent.pop(self.rng.choice([0, -1, self.rng.randrange(len(self.sent))]))
        failed: tuple[int, ...] | None = self.rng.choice([(), (), (), (0,), tuple(range(0, len(sent.items), 2)), None])
        version = self.version if sent.session.cluster == self.owner else self.rng.choice([self.version, sent.version])
        before = self.queue.counts.acknowledged
        in_flight = sent.batch in self.queue.leases.batches
        self.queue.acknowledge(sent.session, sent.batch, version, failed)
        counted = self.queue.counts.acknowledged - before
        if sent.life != self.life or sent.version != self.version:
            assert not counted, "an acknowledgement of an earlier life or owner counted"
            return
        if failed is None or not in_flight:
            assert not counted
            return
        for at, (partition, key, row) in enumerate(sent.items):
            if at not in failed and partition not in self.moved.get(sent.batch, ()):
                self.acked[partition, key] = max(row, self.acked.get((partition, key), -1))
                self.seen["acknowledged"] += 1
        if self.rng.random() < 0.1:
            self.sent.append(sent)  # sent twice

    def lose_an_answer(self) -> None:
        if self.sent:
            self.sent.pop(self.rng.randrange(len(self.sent)))

    def no_longer_held(self) -> None:
        """The sink's next fetch names no batches, so those of its link are served again at once."""
        self.queue.on_fetch(self.session, (), self.now)
        assert all(batch.session != self.session for batch in self.queue.leases.batches.values())

    def time_passes(self) -> None:
        self.now += self.rng.choice([1, 30, LEASE_MS])
        self.seen["expired"] += self.queue.expire(self.now)
        assert all(batch.expires_ms > self.now for batch in self.queue.leases.batches.values())

    def read_rows(self) -> None:
        self.unread += self.queue.begin_refills()

    def rows_are_read(self) -> None:
        if self.unread:
            window, start, rows = self.unread.pop(self.rng.randrange(len(self.unread)))
            self.reads.append((window, self.fake_store.changes(window.partition, start, rows), rows))

    def rows_arrive(self) -> None:
        if self.reads:
            window, rows, limit = self.reads.pop(self.rng.randrange(len(self.reads)))
            self.seen["refilled"] += 1
            if self.rng.random() < 0.1:
                window.fail_refill()
            else:
                window.finish_refill(rows, limit)

    def save_cursors(self) -> None:
        for partition, base, cursor in self.queue.moved_cursors():
            self.fake_store.soft[partition, NAME] = encode_soft(base, cursor, 0)

    def restart(self) -> None:
        self.start()

    def leadership_moves_and_returns(self) -> None:
        partition = self.rng.choice(PARTITIONS)
        self.queue.unlead(partition)
        for batch in self.queue.leases.batches:
            self.moved.setdefault(batch, set()).add(partition)
        self.lead_again(partition)

    def lead_again(self, partition: int) -> None:
        self.unnotified[partition] = []
        self.audit_info[partition] = self.fake_store.ends[partition]
        position = position_of(self.fake_store.cursor(partition, NAME), 0)
        assert position is not None
        self.queue.lead(partition, b"default", position, self.fake_store.ends[partition], RANGES[partition])

    def another_cluster_takes_over(self) -> None:
        """A new owner version from 0 on: the conditional write, then a CURSOR entry a partition."""
        self.owner, self.version = (THIRD if self.owner == SINK else SINK), self.version + 1
        self.acked.clear()
        self.queue.set_owner(self.owner, self.version)
        assert self.queue.take(self.session, 10, 10_000, self.now) is None, "served before the owner's entry applied"
        self.session = self.session._replace(cluster=self.owner)
        assert {partition for partition, _ in self.queue.wanted_cursors(0)} == set(PARTITIONS)
        for partition in PARTITIONS:
            self.notify_some(partition, 1_000)
            state = CursorState(0, self.version, self.owner)
            entry = self.factory.cursor(partition, NAME, encode_state(state))
            self.store(partition, entry)
            self.notify_some(partition, 1)
            self.queue.cursor_applied(partition, b"default", entry.offset, state, RANGES[partition])
        assert not self.queue.wanted_cursors(0)
        self.queue.on_fetch(self.session, None, self.now)

    def pause_fetching(self) -> None:
        if not self.queue.leases.batches and not self.unread and not self.reads:
            self.now += IDLE_MS
            self.queue.drop_idle_windows(self.now)
            assert self.discard or self.budget.references == self.budget.objects == 0
            if self.rng.random() < 0.5:
                self.queue.on_fetch(self.session, None, self.now)

    def a_new_base(self) -> None:
        """A CURSOR entry of the same owner, with the cursor unchanged or moved back by its rule."""
        partition = self.rng.choice(PARTITIONS)
        self.notify_some(partition, 1_000)
        window = self.queue.windows[partition]
        state = CursorState(window.advance(), self.version, self.owner)
        entry = self.factory.cursor(partition, NAME, encode_state(state))
        self.store(partition, entry)
        self.notify_some(partition, 1)
        self.queue.cursor_applied(partition, b"default", entry.offset, state, RANGES[partition])

    # ------------------------------------------------------------------ what must hold

    def check(self) -> None:
        budget = self.budget
        assert budget.references <= REFERENCE_LIMIT + window_room.REFILL_ROWS * len(PARTITIONS)
        assert 0 <= budget.objects <= OBJECT_LIMIT
        for partition in PARTITIONS:
            window = self.queue.windows[partition]
            before = window.cursor
            cursor = window.advance()
            assert before <= cursor <= window.scan <= window.applied == self.audit_info[partition]
            position = position_of(self.fake_store.cursor(partition, NAME), 0)
            assert position is not None
            if not self.drops_notifications:
                assert window.ledger_error() in (None, 0), (window.ledger, window.waiting_count, window.in_flight_count)
                assert window.ledger.unbalanced == 0, window.ledger
            if window.contiguous and not self.unnotified[partition]:
                assert not window.find_lost(list(self.fake_store.rows[partition].values()))
            self.check_passed(partition, cursor, window.state.gaps)
            self.check_passed(partition, position.cursor, position.state.gaps)

    def check_passed(self, partition: int, cursor: int, gaps: Gaps) -> None:
        """Every change below a cursor is acknowledged or recorded as left out."""
        for offset, change in self.fake_store.rows[partition].items():
            if offset < cursor:
                assert (
                    change.kind == EntryKind.REAP
                    or not self.eligible(change.origin)
                    or self.acked.get((partition, change.key), -1) >= offset
                    or any(gap.start <= offset < gap.end for gap in gaps)
                ), ("a cursor stands above what is owed", partition, change, cursor, gaps)

    def decide(self) -> None:
        """Commands that are executed while the queue drains: none here."""

    def undecided(self) -> bool:
        """True if commands are still pending."""
        return False

    def drain(self) -> None:
        """All pending changes are served once the faults end."""
        self.now += LEASE_MS
        self.queue.expire(self.now)
        for node in NODES:
            self.queue.on_fetch(self.session._replace(node=node), (), self.now)
            self.queue.on_fetch(self.session._replace(node=node, link=1), (), self.now)
        if self.shares_are_sent:
            # Only a node fetches that leads nothing there; another one, which leads all, takes nothing.
            self.queue.report_share("w2", {b"default": TypeShare(2, 0b11)}, 100_000_000, self.now)
            self.queue.report_share("w1", {b"default": TypeShare(2, 0)}, 0, self.now)
        for window in self.queue.windows.values():
            window.fail_refill()
        for partition in PARTITIONS:
            self.notify_some(partition, 10_000)
        self.reading.clear()
        for _ in range(1_000):
            self.decide()
            for window, start, rows in self.queue.begin_refills():
                window.finish_refill(self.fake_store.changes(window.partition, start, rows), rows)
            batch = self.queue.take(self.session, 3, 10_000, self.now)
            if batch is None:
                left_ms = self.queue.due_in_ms(self.now, self.session)
                if left_ms is not None:
                    assert 0 < left_ms <= SHARE_PATIENCE_MS, "nothing is served although it is due"
                    self.now += left_ms
                elif all(window.contiguous for window in self.queue.windows.values()) and not self.undecided():
                    break
                continue
            if self.queue.resolve(batch, read_objects(self.fake_store, batch.items(), 10_000)):  # type: ignore[arg-type]
                for item in batch.items():
                    key = (item[1], item[5])
                    self.acked[key] = max(item[2], self.acked.get(key, -1))
                self.queue.acknowledge(self.session, batch.id, self.version, ())
            self.check()
        for partition in PARTITIONS:
            assert self.queue.windows[partition].advance() == self.fake_store.ends[partition], "the queue never ran dry"
        self.check()
        assert self.budget.references == self.budget.objects == 0
        assert self.queue.waiting_count() == self.queue.in_flight_count() == 0
        assert not self.queue.leases.batches
        assert self.queue.oldest_ms() is None
        assert not self.queue.incomplete_windows()


@pytest.mark.timeout(180)
@pytest.mark.parametrize("cascade", [False, True])
@pytest.mark.parametrize("rows", [ROWS, 1_000])
def test_every_pending_change_is_served_and_no_cursor_passes_unacknowledged_ones(
    cascade: bool, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I-Q-CURSOR, I-Q-BOUND, I-Q-NOLOOP and "all arrives" hold after every step of any schedule."""
    monkeypatch.setattr(window_room, "REFILL_ROWS", rows)
    monkeypatch.setattr(window_room, "TAIL_MAX", 5)
    seen: Counter[str] = Counter()

    @settings(max_examples=share(50), deadline=None, derandomize=True, database=None)
    @given(st.integers(0, 2**32))
    def run(seed: int) -> None:
        schedule = Schedule(seed, cascade)
        schedule.run(400)
        counts, ledger = schedule.queue.counts, schedule.queue.ledger()
        seen.update(schedule.seen)
        seen.update(
            collapsed=ledger.collapsed,
            vanished=ledger.vanished,
            redelivered=counts.redelivered,
            late=counts.late,
        )

    run()
    expected = ("acknowledged", "collapsed", "redelivered", "late", "refilled", "expired", "passed_over")
    assert all(seen[what] for what in expected), seen


@pytest.mark.timeout(180)
def test_changes_without_a_notification_are_served_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Entries without a notification, at any moment of a read of rows, are found in the change index."""
    monkeypatch.setattr(window_room, "REFILL_ROWS", ROWS)
    seen: Counter[str] = Counter()

    @settings(max_examples=share(50), deadline=None, derandomize=True, database=None)
    @given(st.integers(0, 2**32))
    def run(seed: int) -> None:
        schedule = Schedule(seed, False, drops_notifications=True)
        schedule.run(200)
        seen.update(schedule.seen)

    run()
    assert seen["missed"], seen
