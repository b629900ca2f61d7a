"""Claims about where a queue stands at a new leader, whatever that was told."""

from __future__ import annotations

from queues.cursors import encode_soft, position_of
from queues.wire import Ack
from repl.store.port import PartitionStep
from tests.queues.home import PARTITIONS, Home
from tests.queues.test_source_queues_actor import alive

P = PARTITIONS[0]


def test_a_soft_cursor_above_the_log_of_a_forced_leader_hides_no_change() -> None:
    """A follower may know a cursor above what its own log holds. Forced to lead, it writes those offsets anew: what
    stands there then is offered, and the store no longer says that it is acknowledged."""

    async def test(home: Home) -> None:
        home.put(b"a")
        reply = await home.fetch()
        await home.fetch(acks=[Ack(reply.batch, reply.owner_version)], wait_ms=0)
        home.queues.leadership(P, False, home.shelf.ends[P])
        base = home.store.cursor(P, b"q").entry_offset
        home.soft_cursor(P, b"q", encode_soft(base, home.shelf.ends[P] + 5))
        home.lead(P)
        await home.until(lambda: P in home.queues.machines()["q"].windows)
        found = position_of(home.store.cursor(P, b"q"))
        assert found is not None
        assert found.cursor == home.shelf.ends[P]
        home.put(b"b", b"c")
        assert await home.drain() == [b"b", b"c"]

    alive(test)


def test_what_a_queue_was_not_told_of_it_finds() -> None:
    """A window that knew all, and hears of a change behind some that it never heard of, reads those from the store."""

    async def test(home: Home) -> None:
        home.put(b"a")
        assert await home.drain() == [b"a"]
        silent = home.pen.data(P, b"b")
        home.shelf.put(P, silent)
        home.store.write([PartitionStep(P, [silent])])
        home.put(b"c")
        assert await home.drain() == [b"b", b"c"]

    alive(test)
