"""Invariants of a source queue, by their names: the order of priorities, the content of references, writes that never
wait; and its limits, as in the source texts."""

from __future__ import annotations

import asyncio
from random import Random

import pytest

from isthmus.config.settings import QueueSettings
from isthmus.queues.cursors import CursorState, encode_state
from isthmus.queues.object_reader import read_objects
from isthmus.queues.pacing import ACTIVE_MS
from isthmus.queues.window_rules import FOLD, FULL_SYNC, REAL_TIME, Item
from isthmus.repl.model.keys import Key
from isthmus.repl.model.objects import decode_object
from isthmus.repl.model.reference import ReferenceKind
from isthmus.repl.model.vclock import descends
from tests.support.queue_node import QueueNode
from tests.support.queue_source import BUCKET, THIRD
from tests.unit.queues.source_queue.test_rules import SESSION, P, Q, QueueFixture, keys

pytestmark = pytest.mark.virtual_time

DEFAULTS = QueueSettings("q")


def named(start: bytes, numbers: range) -> list[Key]:
    return [Key(b"default", BUCKET, start + b"%d" % n) for n in numbers]


@pytest.mark.parametrize("seed", range(6))
def test_a_fetch_gives_no_lower_priority_while_a_higher_one_waits(seed: int) -> None:
    """I-Q-PRIO: over random writes, pushes, fetches and lost batches, a batch has one priority, the highest with
    waiting references; and bulk pushes neither take places of real time nor delay it."""
    rng, fixture = Random(seed), QueueFixture(reference_limit=40)
    machine = fixture.queue
    by_priority = {bulk.priority: bulk for bulk in machine.bulk_queues}
    held: list[bytes] = []
    seen = set()
    for step in range(2_000):
        fixture.now += rng.choice((0, 0, 5, ACTIVE_MS + 1))
        match rng.randrange(7):
            case 0 | 1:
                fixture.write(b"r%d" % rng.randrange(20))
            case 2:
                before = machine.budget.references
                by_priority[rng.choice((FULL_SYNC, FOLD))].offer(named(b"p", range(step, step + 60)), fixture.now)
                assert machine.budget.references == before
            case 3 if held:
                fixture.ack(held.pop(rng.randrange(len(held))), rng.choice(((), None, (0,))))
            case _:
                fixture.refill()
                ready = sum(window.ready_count for window in machine.windows.values())
                waiting = {p: bulk.waiting_count for p, bulk in by_priority.items()}
                batch = machine.take(SESSION, rng.randrange(1, 30), 1_000_000, fixture.now)
                if batch is None:
                    assert not ready, "real time waits for nothing"
                    continue
                assert (batch.priority == REAL_TIME) == bool(ready)
                if batch.priority == FOLD:
                    assert not waiting[FULL_SYNC]
                seen.add(batch.priority)
                held.append(batch.id)
    assert seen == {REAL_TIME, FULL_SYNC, FOLD}


@pytest.mark.parametrize("seed", range(4))
def test_a_served_object_is_the_referenced_version_or_newer(seed: int) -> None:
    """I-Q-REF: tombstones are served whole, never as a reference, also beyond both object limits. The object of a
    reference has a clock that has seen the reference's, or is counted as vanished."""
    rng, fixture = Random(seed), QueueFixture(size_limit=100, object_limit=3)
    clocks: dict[bytes, list[tuple[object, ...]]] = {}
    given: list[Item] = []
    deleted: set[bytes] = set()
    vanished = 0
    for _ in range(600):
        name = b"k%d" % rng.randrange(12)
        if rng.random() < 0.7:
            gone = rng.random() < 0.3
            fixture.write(name, size=rng.choice((10, 500)), delete=gone)
            (deleted.add if gone else deleted.discard)(name)
            clocks.setdefault(name, []).append(decode_object(fixture.fake_store.objects[P, name]).clock)
            continue
        if rng.random() < 0.1:
            vanished += fixture.fake_store.objects.pop((P, name), None) is not None
        batch = fixture.queue.take(SESSION, rng.randrange(1, 9), 1_000_000, fixture.now)
        if batch is None:
            continue
        for item in batch.items():
            if item[5] in deleted:
                assert ReferenceKind(item[0]) is ReferenceKind.TOMBSTONE
        wanted = {item[5]: clocks[item[5]][-1] for item in batch.items()}
        if fixture.queue.resolve(batch, read_objects(fixture.fake_store, batch.items(), 1_000_000)):  # type: ignore[arg-type]
            for item in batch.items():
                assert descends(decode_object(item[8]).clock, wanted[item[5]])  # type: ignore[arg-type]
                given.append(item)
            fixture.ack(batch.id)
    assert {ReferenceKind(item[0]) for item in given} >= {ReferenceKind.OBJECT, ReferenceKind.TOMBSTONE}
    assert fixture.queue.ledger().vanished <= vanished


@pytest.mark.parametrize("overflow", ["replay", "discard"])
async def test_a_write_waits_for_no_queue(overflow: str) -> None:
    """I-Q-NOBLOCK: while real time is at its limit, bulk queues are full, a producer waits, the metastore is away and
    no sink fetches, queues accept notifications of apply without the event loop; memory stays within its limits."""

    queue_node = QueueNode(QueueSettings("q", overflow=overflow, queue_limit_count=10))
    await queue_node.start()
    await queue_node.fetch(wait_ms=0)
    assert await queue_node.acts.push("q", named(b"p", range(20)), FOLD, 20) == 10
    waiting = asyncio.ensure_future(queue_node.acts.push("q", named(b"x", range(5)), FOLD, 10_000))
    await queue_node.eventually(lambda: queue_node.served()[0]._producers)
    queue_node.metastore.disconnect()
    (queue,) = queue_node.served()
    turns: list[int] = []
    ticker = asyncio.get_running_loop().call_soon(turns.append, 1)
    for number in range(500):
        queue_node.put(b"%d" % number)
    assert not turns, "nobody gave the loop a turn meanwhile"
    ticker.cancel()
    assert queue.machine.budget.references <= 10
    assert not waiting.done()
    queue_node.metastore.reconnect()
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    await queue_node.close()


def test_the_bounds_are_those_of_the_source_texts() -> None:
    """The limits are 300,000 references per priority and 1,000 whole objects of at most 200 KB; further changes wait in
    the store."""
    assert (DEFAULTS.queue_limit_count, DEFAULTS.object_limit_count) == (300_000, 1_000)
    assert (DEFAULTS.object_size_limit_bytes, DEFAULTS.overflow) == (200_000, "replay")
    fixture = QueueFixture(size_limit=DEFAULTS.object_size_limit_bytes, object_limit=DEFAULTS.object_limit_count)
    fixture.write(b"at", size=DEFAULTS.object_size_limit_bytes - 200)
    fixture.write(b"above", size=DEFAULTS.object_size_limit_bytes + 1)
    for number in range(DEFAULTS.object_limit_count + 10):
        fixture.write(b"%d" % number, size=1)
    assert fixture.budget.objects == DEFAULTS.object_limit_count
    batch = fixture.queue.take(SESSION, 5_000, 10_000_000, 0)
    assert batch is not None
    kinds = [ReferenceKind(item[0]) for item in batch.items()]
    assert kinds[:2] == [ReferenceKind.OBJECT, ReferenceKind.TO_FETCH]
    assert kinds.count(ReferenceKind.OBJECT) == DEFAULTS.object_limit_count
    assert set(kinds[-10:]) == {ReferenceKind.TO_FETCH}


def test_a_partition_that_may_not_give_yet_holds_up_no_lower_priority() -> None:
    """The queue has a new owner, and one partition cannot write the CURSOR entry for it, since it has too few in-sync
    replicas: its changes are not served, and repairs of all others continue."""
    fixture = QueueFixture(partitions=(P, Q))
    for partition in (P, Q):
        fixture.write(b"r", partition)
    machine = fixture.queue
    machine.set_owner(THIRD, 2)
    state = CursorState(0, 2, THIRD)
    entry = fixture.factory.cursor(P, b"q", encode_state(state))
    fixture.fake_store.put(P, entry)
    machine.add(P, [entry], fixture.now)
    machine.cursor_applied(P, b"default", entry.offset, state)
    session = SESSION._replace(cluster=THIRD)
    machine.on_fetch(session, None, fixture.now)
    fixture.refill()
    machine.bulk_queues[0].offer(named(b"p", range(3)), fixture.now)
    fixture.now += ACTIVE_MS + 1
    first = machine.take(session, 10, 1_000_000, fixture.now)
    assert first is not None
    assert (first.priority, keys(first.items())) == (REAL_TIME, [b"r"])
    assert machine.due_in_ms(fixture.now, session) == 0
    second = machine.take(session, 10, 1_000_000, fixture.now)
    assert second is not None
    assert (second.priority, len(second)) == (FULL_SYNC, 3)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("discard", [False, True])
def test_at_the_bound_of_references_replay_keeps_all_and_discard_names_the_rest(discard: bool) -> None:
    """At 300,000 references, with `replay`, the window stops there, all changes are served in order, and none is
    dropped; with `discard` later changes are dropped, counted, and are exactly the range of one gap."""
    limit, more = DEFAULTS.queue_limit_count, 1_000
    fixture = QueueFixture(reference_limit=limit, object_limit=DEFAULTS.object_limit_count)
    fixture.budget.discard = discard
    for number in range(limit + more):
        fixture.write(b"%d" % number, size=1)
    assert fixture.budget.references == limit
    came: list[bytes] = []
    while True:
        fixture.refill()
        batch, items = fixture.take(count=10_000, size=100_000_000)
        if not items:
            break
        came += keys(items)
        fixture.ack(batch)
    kept = limit if discard else limit + more
    assert came == [b"%d" % number for number in range(kept)]
    assert fixture.queue.windows[P].ledger.given_up == limit + more - kept
    if discard:
        ((_, state),) = fixture.queue.wanted_cursors(0)
        (gap,) = state.gaps
        assert (gap.start, gap.end, gap.left_out) == (limit, limit + more, more)
    else:
        assert not fixture.queue.wanted_cursors(0)
