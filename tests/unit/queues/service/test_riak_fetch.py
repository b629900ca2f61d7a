"""A queue from which Riak fetches: order, acknowledgement, owner, and changes that return to the queue."""

from __future__ import annotations

import asyncio

import pytest

from isthmus.config.settings import QueueSettings
from isthmus.queues.queue_documents import SERVING
from isthmus.queues.riak_origin import RIAK_CLUSTER
from isthmus.queues.service import EMPTY_HOLD_MS, STARTING_WAIT_MS
from isthmus.queues.window_rules import FOLD, FULL_SYNC, Item
from isthmus.queues.wire import OwnedByOther
from isthmus.repl.model.errors import CodecError, NotReady, Overloaded
from tests.support.queue_node import PARTITIONS, QueueNode, audited_node
from tests.unit.queues.admin.test_acts import ACT, audit_info, keys

pytestmark = pytest.mark.virtual_time

RIAK = QueueSettings("q", riak_fetch=True, object_limit_count=2)


async def key_of(item: Item) -> bytes:
    return item[5]


async def pop(queue_node: QueueNode) -> bytes | None:
    """The key of the next change, or None."""
    return await queue_node.queues.pop("q", key_of)


async def drained(queue_node: QueueNode) -> list[bytes]:
    found = []
    while (key := await pop(queue_node)) is not None:
        found.append(key)
    return found


async def test_changes_go_once_by_priority_and_count_as_acknowledged() -> None:
    """Real time comes first, then full-sync, then folds; the ledger adds up with all of real time acknowledged, nothing
    is under lease, the cursors have moved, and an empty queue says so."""

    async with audited_node(RIAK) as queue_node:
        queue_node.put(b"a", b"b", b"c", b"d")
        assert await pop(queue_node) == b"a"
        await queue_node.acts.push("q", keys(b"c"), FOLD, 0)
        await queue_node.acts.push("q", keys(b"b", b"gone", b"d"), FULL_SYNC, 0)
        assert await drained(queue_node) == [b"b", b"c", b"d", b"b", b"d", b"c"]
        assert await queue_node.queues.pop("q", key_of) is None
        machine = queue_node.queues.named("q").machine
        assert not machine.leases.batches
        assert (machine.counts.acknowledged, machine.ledger().acknowledged, machine.ledger().left()) == (4, 4, 0)
        window = machine.windows[PARTITIONS[0]]
        assert window.advance() == window.applied
        owner = queue_node.queues.named("q").stored.owner
        assert owner is not None
        assert (owner.cluster, owner.name) == (RIAK_CLUSTER, "riak")


async def test_the_first_fetch_is_not_answered_empty_while_changes_wait() -> None:
    """It takes the queue, and waits for the CURSOR entry of the new owner and for the change index to be read; so does
    the first one after a restart."""
    async with audited_node(RIAK) as queue_node:
        queue_node.put(*(b"%d" % number for number in range(50)))
        assert await pop(queue_node) == b"0"
        await queue_node.queues.stop()
        await queue_node.start()
        assert await pop(queue_node) == b"1"


async def test_a_slow_cursor_is_waited_for_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """A new owner's CURSOR entry may take seconds to be replicated; one that takes longer than the limit makes the
    answer empty, so that the Riak asks again."""
    async with audited_node(RIAK) as queue_node:
        queue_node.put(b"a")
        write_cursor = queue_node.write_cursor

        async def slowly(partition: int, queue: bytes, payload: bytes) -> int:
            await asyncio.sleep(1.5 * STARTING_WAIT_MS / 1000)
            return await write_cursor(partition, queue, payload)

        monkeypatch.setattr(queue_node, "write_cursor", slowly)
        began_s = asyncio.get_running_loop().time()
        assert await pop(queue_node) is None
        assert asyncio.get_running_loop().time() - began_s == pytest.approx(STARTING_WAIT_MS / 1000, abs=0.1)
        assert await pop(queue_node) == b"a"


async def test_an_empty_answer_is_held_and_a_change_ends_the_wait() -> None:
    """For as long as a Riak's own source looks again; a change that comes meanwhile is the answer, at once."""
    loop = asyncio.get_running_loop()
    async with audited_node(RIAK) as queue_node:
        queue_node.put(b"a")
        assert await pop(queue_node) == b"a"
        began_s = loop.time()
        assert await pop(queue_node) is None
        assert loop.time() - began_s == pytest.approx(EMPTY_HOLD_MS / 1000, abs=0.002)
        waiting = asyncio.create_task(pop(queue_node))
        await asyncio.sleep(0.01)
        queue_node.put(b"b")
        began_s = loop.time()
        assert await waiting == b"b"
        assert loop.time() - began_s < 0.01


async def test_a_fetch_whose_client_leaves_takes_nothing() -> None:
    """The wait ends with it, and the next fetch gets the change."""
    async with audited_node(RIAK) as queue_node:
        assert await pop(queue_node) is None

        async def leaves(waiter: asyncio.Future[None]) -> None:
            raise NotReady("the client has left")

        with pytest.raises(NotReady):
            await queue_node.queues.pop("q", key_of, leaves)
        queue_node.put(b"a")
        assert await pop(queue_node) == b"a"


async def test_a_stop_keeps_what_was_handed_out_away() -> None:
    """After an orderly stop and start the queue continues after the last change that it served."""

    async with audited_node(RIAK) as queue_node:
        queue_node.put(b"a", b"b", b"c")
        assert [await pop(queue_node), await pop(queue_node)] == [b"a", b"b"]
        await queue_node.queues.stop()
        await queue_node.start()
        assert await drained(queue_node) == [b"c"]


async def test_a_change_that_could_not_be_sent_is_served_again() -> None:
    """A change whose answer could not be encoded for lack of space returns to the queue and is served next; nothing is
    acknowledged."""

    async with audited_node(RIAK) as queue_node:
        queue_node.put(b"a", b"b")
        assert await pop(queue_node) == b"a"

        async def refuse_encoding(item: Item) -> bytes:
            raise Overloaded("no room")

        with pytest.raises(Overloaded):
            await queue_node.queues.pop("q", refuse_encoding)
        assert queue_node.queues.named("q").machine.counts.acknowledged == 1
        assert await drained(queue_node) == [b"b"]


@pytest.mark.logs_errors("queue.object_unreadable")
async def test_a_change_that_cannot_be_encoded_becomes_a_gap_and_blocks_nothing() -> None:
    """The same request returns the next change."""

    async with audited_node(RIAK) as queue_node:
        queue_node.put(b"a", b"broken", b"c")
        assert await pop(queue_node) == b"a"

        async def refuse_broken(item: Item) -> bytes:
            if item[5] == b"broken":
                raise CodecError("not an object")
            return item[5]

        assert await queue_node.queues.pop("q", refuse_broken) == b"c"
        window = queue_node.queues.named("q").machine.windows[PARTITIONS[0]]
        await queue_node.eventually(lambda: window.advance() == window.applied)
        assert queue_node.queues.named("q").machine.counts.acknowledged == 2
        queue_node.queues.tick()
        await queue_node.eventually(lambda: queue_node.acts.gaps("q"))
        (gap,) = queue_node.acts.gaps("q")
        assert (gap["id"], gap["count_at_least"]) == (f"{PARTITIONS[0]}:2", 1)


async def test_a_queue_for_a_riak_refuses_sinks_and_a_sinks_queue_refuses_a_riak() -> None:
    """Both refusals have the reason: the setting, before the queue has an owner, and otherwise the owner."""

    async with audited_node(RIAK) as queue_node:
        queue_node.put(b"a")
        with pytest.raises(OwnedByOther, match="riak_fetch"):
            await queue_node.fetch()
        assert queue_node.acts.link("q")["owner"]["cluster"] == "riak"
        await queue_node.acts.change_settings("q", {"riak_fetch": False}, ACT)
        assert not queue_node.queues.is_for_riak("q")
        (item,) = (await queue_node.fetch()).items
        assert item[5] == b"a"
        await queue_node.acts.change_settings("q", {"riak_fetch": True}, ACT)
        assert queue_node.queues.is_for_riak("q")
        with pytest.raises(OwnedByOther, match="belongs to cluster west"):
            await queue_node.queues.pop("q", key_of)
        await queue_node.acts.release("q", 0, audit_info(queue_node))
        assert await drained(queue_node) == [b"a"]


async def test_a_suspended_queue_answers_like_an_empty_one() -> None:
    """Waiting changes are served after `resume`."""

    async with audited_node(RIAK) as queue_node:
        queue_node.put(b"a", b"b")
        assert await pop(queue_node) == b"a"
        await queue_node.acts.suspend("q", SERVING, None, ACT)
        assert await queue_node.queues.pop("q", key_of) is None
        await queue_node.acts.resume("q", SERVING, None, ACT)
        assert await drained(queue_node) == [b"b"]
