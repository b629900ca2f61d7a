"""Claims about keys that change while a reference of theirs is under lease."""

from __future__ import annotations

import pytest

from isthmus.queues.object_reader import read_objects
from tests.support.queue_source import OURS, SINK
from tests.unit.queues.source_queue.test_rules import SESSION, Desk, P, keys


def test_a_newer_change_of_a_key_waits_until_the_one_under_lease_has_landed() -> None:
    """R-PLACE: nobody is given two versions of one key at a time; others go on meanwhile."""
    desk = Desk()
    desk.write(b"a")
    first, items = desk.take()
    assert keys(items) == [b"a"]
    desk.write(b"a", size=9)
    desk.write(b"b")
    assert desk.queue.due_in_ms(desk.now) is not None
    second, items = desk.take()
    assert keys(items) == [b"b"]
    assert desk.queue.due_in_ms(desk.now) is None, "what is held back is nothing to give"
    desk.write(b"a", size=11)
    desk.ack(second)
    assert desk.take()[1] == []
    assert desk.cursor == 0
    desk.ack(first)
    third, items = desk.take()
    assert [(item[5], item[8]) for item in items] == [(b"a", desk.shelf.objects[P, b"a"])]
    desk.ack(third)
    assert desk.cursor == desk.shelf.ends[P]


@pytest.mark.parametrize("origin", [OURS, SINK])
def test_an_object_that_is_newer_than_its_reference_goes_once_and_never_home(origin: bytes) -> None:
    """R-PLACE: what is read may be a version that the queue learns of later: then it goes as that one; one that came
    from the cluster that fetches does not go at all."""
    desk = Desk(size_limit=1)
    desk.write(b"a")
    batch = desk.queue.take(SESSION, 10, 10_000, desk.now)
    assert batch is not None
    entry = desk.pen.data(P, b"a", size=9, origin=origin)
    desk.shelf.put(P, entry)
    found = read_objects(desk.shelf, batch.items(), 10_000)  # type: ignore[arg-type]
    assert not desk.queue.caught_up(batch, {P: desk.shelf.ends[P]})
    desk.queue.add(P, [entry], desk.now)
    assert desk.queue.caught_up(batch, {P: desk.shelf.ends[P]})
    assert desk.queue.resolve(batch, found) == (origin == OURS)
    if origin == OURS:
        assert [item[2] for item in batch.items()] == [entry.offset]
        desk.ack(batch.id)
    assert desk.take()[1] == []
    assert desk.cursor == desk.shelf.ends[P]
    assert desk.queue.windows[P].ledger_error() == 0
