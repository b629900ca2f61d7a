"""An operator's view of a queue: every kind of reference, the times of gaps, and whether it serves again."""

from __future__ import annotations

import pytest

from isthmus.node.admin_api.queues import reference_shown
from isthmus.queues.admin import GapChoice
from isthmus.queues.queue_documents import PUBLISHING, SERVING
from isthmus.repl.model.entry import EntryKind
from isthmus.repl.model.errors import BadInput
from isthmus.repl.model.reference import ReferenceKind
from tests.support.queue_listings import listed_queues
from tests.support.queue_node import PARTITIONS, audited_node
from tests.unit.queues.admin.test_acts import audit_info

pytestmark = pytest.mark.virtual_time


async def test_peek_shows_a_tombstone_that_is_about_to_be_reaped() -> None:
    """It has a kind of its own and can be shown, from the index or from memory."""

    async with audited_node() as queue_node:
        entry = queue_node.factory.data(PARTITIONS[0], b"a", delete=True)._replace(kind=EntryKind.LEAVING)
        queue_node.fake_store.put(PARTITIONS[0], entry)
        queue_node.apply(PARTITIONS[0], entry)
        for _ in range(2):
            (item,) = await queue_node.acts.peek("q", 10)
            assert (item[5], reference_shown(item)["kind"]) == (b"a", "leaving")
            await queue_node.fetch(count=0)
            await queue_node.eventually(lambda: queue_node.served()[0].machine.windows[PARTITIONS[0]].contiguous)


@pytest.mark.parametrize("kind", ReferenceKind)
def test_a_reference_of_each_kind_is_shown(kind: ReferenceKind) -> None:
    """`queue peek` can show every kind of reference."""
    shown = reference_shown((int(kind), 3, 7, b"t", b"b", b"k", b"\xa0", 5, b"xy"))
    assert (shown["kind"], shown["key"], shown["bytes"]) == (kind.name.lower(), "k", 2)


def test_names_that_look_alike_are_told_apart() -> None:
    """The byte FF and the text that escapes it look alike to people; percent-encoded they differ."""
    byte, text = (reference_shown((0, 3, 7, b"t", name, name, b"\xa0", 5, b"")) for name in (b"\xff", rb"\xff"))
    assert (byte["key"], byte["bucket"]) == (text["key"], text["bucket"])
    assert (byte["key_encoded"], byte["bucket_encoded"]) == ("%FF", "%FF")
    assert (text["key_encoded"], text["bucket_encoded"]) == ("%5Cxff", "%5Cxff")


@pytest.mark.parametrize("what", [SERVING, PUBLISHING])
async def test_one_node_is_not_called_resumed_while_all_are_suspended(what: str) -> None:
    """Resuming a single node while all are suspended is refused, with the operator of that suspension, and changes
    nothing; resuming all ends both."""

    async with audited_node() as queue_node:
        await queue_node.acts.suspend("q", what, None, audit_info(queue_node))
        await queue_node.acts.suspend("q", what, "e1", audit_info(queue_node))
        with pytest.raises(BadInput, match=r"suspended on all nodes \(by ann\), including e1"):
            await queue_node.acts.resume("q", what, "e1", audit_info(queue_node))
        (queue,) = await listed_queues(queue_node.queues)
        assert (queue[what], len(queue["suspensions"])) == ("suspended", 2)
        await queue_node.acts.resume("q", what, None, audit_info(queue_node))
        (queue,) = await listed_queues(queue_node.queues)
        assert (queue[what], queue["suspensions"]) == ("running", [])
        await queue_node.acts.suspend("q", what, "e1", audit_info(queue_node))
        await queue_node.acts.resume("q", what, "e1", audit_info(queue_node))
        (queue,) = await listed_queues(queue_node.queues)
        assert queue[what] == "running"


async def test_the_gap_of_a_clear_has_the_times_of_what_it_covers() -> None:
    """The gap's time begins with the first waiting change, not at time 0, and ends with the second of the command; a
    second clear begins where the first one ended."""

    async with audited_node() as queue_node:
        await queue_node.fetch(wait_ms=0)
        began = queue_node.clock.wall_ms()
        for key in (b"a", b"b"):
            queue_node.clock.skew_ms += 60_000
            queue_node.put(key)
        queue_node.clock.skew_ms += 60_000
        await queue_node.acts.clear("q", audit_info(queue_node))
        await queue_node.eventually(lambda: queue_node.served()[0].machine.windows[PARTITIONS[0]].state.gaps)
        (gap,) = [one for one in queue_node.acts.gaps("q") if one["partition"] == PARTITIONS[0]]
        assert began + 60_000 <= gap["from_ms"] < began + 120_000
        assert queue_node.clock.wall_ms() <= gap["upto_ms"] + 1_000
        assert await queue_node.acts.close_gaps("q", GapChoice(None, None, began), audit_info(queue_node)) == 1


async def test_a_clear_with_nothing_to_give_up_leaves_no_gap() -> None:
    """If nothing waits and only internal entries are above the cursor, a clear gives nothing up."""

    async with audited_node() as queue_node:
        queue_node.put(b"a", b"b")
        await queue_node.drain()
        for _ in range(2):
            await queue_node.acts.clear("q", audit_info(queue_node))
            version = queue_node.served()[0].stored.command
            assert version is not None
            await queue_node.eventually(
                lambda version=version.version: all(
                    window.state.command_version == version
                    for window in queue_node.served()[0].machine.windows.values()
                )
            )
        assert queue_node.acts.gaps("q") == []
        queue_node.put(b"c")
        assert await queue_node.drain() == [b"c"]
