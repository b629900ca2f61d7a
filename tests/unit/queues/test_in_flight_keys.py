"""Claims about keys that change while a reference of theirs is under lease."""

from __future__ import annotations

import pytest

from isthmus.queues.object_reader import read_objects
from tests.support.queue_source import OURS, SINK
from tests.unit.queues.source_queue.test_rules import SESSION, P, QueueFixture, keys


def test_a_newer_change_of_a_key_waits_until_the_one_under_lease_has_landed() -> None:
    """R-PLACE: two versions of one key are never under lease at the same time; other keys continue."""
    fixture = QueueFixture()
    fixture.write(b"a")
    first, items = fixture.take()
    assert keys(items) == [b"a"]
    fixture.write(b"a", size=9)
    fixture.write(b"b")
    assert fixture.queue.due_in_ms(fixture.now) is not None
    second, items = fixture.take()
    assert keys(items) == [b"b"]
    assert fixture.queue.due_in_ms(fixture.now) is None, "what is held back is nothing to give"
    fixture.write(b"a", size=11)
    fixture.ack(second)
    assert fixture.take()[1] == []
    assert fixture.cursor == 0
    fixture.ack(first)
    third, items = fixture.take()
    assert [(item[5], item[8]) for item in items] == [(b"a", fixture.fake_store.objects[P, b"a"])]
    fixture.ack(third)
    assert fixture.cursor == fixture.fake_store.ends[P]


@pytest.mark.parametrize("origin", [OURS, SINK])
def test_an_object_newer_than_its_reference_is_sent_once_and_never_to_its_origin(origin: bytes) -> None:
    """R-PLACE: the object that is read may be a version whose notification comes later: then it is served as that one.
    An object from the cluster that fetches is not served."""
    fixture = QueueFixture(size_limit=1)
    fixture.write(b"a")
    batch = fixture.queue.take(SESSION, 10, 10_000, fixture.now)
    assert batch is not None
    entry = fixture.factory.data(P, b"a", size=9, origin=origin)
    fixture.fake_store.put(P, entry)
    found = read_objects(fixture.fake_store, batch.items(), 10_000)  # type: ignore[arg-type]
    assert not fixture.queue.caught_up(batch, {P: fixture.fake_store.ends[P]})
    fixture.queue.add(P, [entry], fixture.now)
    assert fixture.queue.caught_up(batch, {P: fixture.fake_store.ends[P]})
    assert fixture.queue.resolve(batch, found) == (origin == OURS)
    if origin == OURS:
        assert [item[2] for item in batch.items()] == [entry.offset]
        fixture.ack(batch.id)
    assert fixture.take()[1] == []
    assert fixture.cursor == fixture.fake_store.ends[P]
    assert fixture.queue.windows[P].ledger_error() == 0
