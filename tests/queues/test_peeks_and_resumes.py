"""Claims about what an operator is told of a queue: every kind of reference, and whether it serves again."""

from __future__ import annotations

import pytest

from node.http.queue_admin import reference_shown
from queues.decrees import PUBLISHING, SERVING
from repl.model.entry import EntryKind
from repl.model.errors import BadInput
from repl.model.reference import ReferenceKind
from tests.queues.home import PARTITIONS, Home
from tests.queues.test_queue_acts import alive, told


def test_peek_tells_a_tombstone_that_is_about_to_be_reaped() -> None:
    """It is of a kind of its own, whether it is still in the index alone or in memory, and can be shown."""

    async def test(home: Home) -> None:
        entry = home.pen.data(PARTITIONS[0], b"a", delete=True)._replace(kind=EntryKind.LEAVING)
        home.shelf.put(PARTITIONS[0], entry)
        home.apply(PARTITIONS[0], entry)
        for _ in range(2):
            (item,) = await home.acts.peek("q", 10)
            assert (item[5], reference_shown(item)["kind"]) == (b"a", "leaving")
            await home.fetch(count=0)
            await home.until(lambda: home.served()[0].machine.windows[PARTITIONS[0]].contiguous)

    alive(test)


@pytest.mark.parametrize("kind", ReferenceKind)
def test_a_reference_of_each_kind_is_shown(kind: ReferenceKind) -> None:
    """What may wait in a queue, `queue peek` can tell."""
    shown = reference_shown((int(kind), 3, 7, b"t", b"b", b"k", b"\xa0", 5, b"xy"))
    assert (shown["kind"], shown["key"], shown["bytes"]) == (kind.name.lower(), "k", 2)


@pytest.mark.parametrize("what", [SERVING, PUBLISHING])
def test_one_node_is_not_called_resumed_while_all_are_suspended(what: str) -> None:
    """Resuming a node alone under a suspension of all is refused, with who made it, and changes nothing; resuming all
    ends both."""

    async def test(home: Home) -> None:
        await home.acts.suspend("q", what, None, told(home))
        await home.acts.suspend("q", what, "e1", told(home))
        with pytest.raises(BadInput, match=r"suspended on all nodes \(by ann\), e1 among them"):
            await home.acts.resume("q", what, "e1", told(home))
        (queue,) = await home.queues.listing()
        assert (queue[what], len(queue["suspensions"])) == ("suspended", 2)
        await home.acts.resume("q", what, None, told(home))
        (queue,) = await home.queues.listing()
        assert (queue[what], queue["suspensions"]) == ("running", [])
        await home.acts.suspend("q", what, "e1", told(home))
        await home.acts.resume("q", what, "e1", told(home))
        (queue,) = await home.queues.listing()
        assert queue[what] == "running"

    alive(test)
