"""Bucket types that the sink's cluster lacks: their changes wait at the source, and do not block others."""

from __future__ import annotations

import asyncio

import pytest

from isthmus.config.settings import QueueSettings
from isthmus.queues.source_queue import SILENT_MS
from isthmus.queues.window import HELD_BACK_ROWS
from isthmus.queues.window_rules import FULL_SYNC
from isthmus.queues.wire import BatchAck
from isthmus.repl.model.errors import NotReady
from isthmus.repl.model.keys import Key
from tests.support.queue_listings import listed_queues
from tests.support.queue_node import PARTITIONS, QueueNode, audited_node
from tests.support.queue_source import BUCKET

pytestmark = pytest.mark.virtual_time

HERE, MISSING = PARTITIONS
DEFAULT = frozenset({b"default"})
BOTH = DEFAULT | {b"orders"}
MANY = [b"m%04d" % n for n in range(3 * HELD_BACK_ROWS)]


def two_types(queue_node: QueueNode) -> None:
    """Assigns partition MISSING to a bucket type that the sink lacks."""
    queue_node.types[MISSING] = b"orders"


@pytest.mark.parametrize("overflow", ["replay", "discard"])
async def test_a_type_that_the_sink_lacks_waits_and_the_others_go_on(overflow: str) -> None:
    """If it has more changes than the queue may hold, the others lose no place: its changes wait in the store, none is
    dropped, few are in memory, and the answer names the type and the time since which it waits. Once the sink has the
    type all are served, also after a restart of the source (R-TYPE)."""

    async with audited_node(QueueSettings("q", queue_limit_count=2 * HELD_BACK_ROWS, overflow=overflow)) as queue_node:
        two_types(queue_node)
        await queue_node.crash()
        await queue_node.start()
        machine = queue_node.queues.named("q").machine
        assert (await queue_node.fetch(types=DEFAULT, wait_ms=0)).held == {}
        await queue_node.eventually(lambda: not machine.wanted_cursors(0))
        queue_node.put(*MANY, partition=MISSING)
        queue_node.put(b"a", b"b", partition=HERE)
        assert sorted(await queue_node.drain(types=DEFAULT)) == [b"a", b"b"]
        reply = await queue_node.fetch(types=DEFAULT, wait_ms=0)
        assert list(reply.held or ()) == [b"orders"]
        assert machine.budget.references <= HELD_BACK_ROWS
        assert machine.windows[MISSING].cursor <= machine.windows[MISSING].applied - len(MANY)
        audit_info = next(row for row in await listed_queues(queue_node.queues) if row["name"] == "q")
        assert list(audit_info["held_types"]) == ["orders"]
        assert "west has no bucket type orders" in audit_info["reason"]
        assert audit_info["waiting"] == len(MANY)
        queue_node.queues.tick()
        await queue_node.crash()
        await queue_node.start()
        assert list((await queue_node.fetch(types=DEFAULT, wait_ms=0)).held or ()) in ([], [b"orders"])
        queue_node.queues.tick()
        await queue_node.eventually(lambda: queue_node.queues.named("q").machine.budget.references <= HELD_BACK_ROWS)
        queue_node.put(b"c", partition=HERE)
        assert await queue_node.drain(types=DEFAULT) == [b"c"]
        got = await queue_node.drain(types=BOTH)
        assert sorted(got) == MANY
        assert (await queue_node.fetch(types=BOTH, wait_ms=0)).held == {}
        assert queue_node.acts.gaps() == []


async def test_references_of_a_missing_type_leave_the_memory_once_the_sink_reports_it() -> None:
    """A sink that does not report its types gets all changes; once it reports that it lacks a type, that type's waiting
    changes leave the memory as soon as none is under lease (R-TYPE)."""

    async with audited_node() as queue_node:
        two_types(queue_node)
        await queue_node.crash()
        await queue_node.start()
        queue_node.put(*MANY, partition=MISSING)
        reply = await queue_node.fetch(count=10)
        machine = queue_node.queues.named("q").machine
        await queue_node.eventually(lambda: machine.windows[MISSING].contiguous)
        assert len(reply.items) == 10
        assert machine.budget.references > HELD_BACK_ROWS
        failed = [BatchAck(reply.batch, reply.owner_version, tuple(range(10)))]
        assert not (await queue_node.fetch(types=DEFAULT, acks=failed, wait_ms=0)).items
        queue_node.queues.tick()
        await queue_node.eventually(lambda: not machine.windows[MISSING].reading)
        assert machine.budget.references <= HELD_BACK_ROWS
        assert sorted(await queue_node.drain(types=BOTH)) == MANY


async def test_a_node_that_does_not_know_a_new_type_yet_holds_it_back_for_itself_alone() -> None:
    """Two nodes of the sink's cluster differ: the one that knows the type gets its changes, and the other waits for
    changes that it can store, without a busy loop and without a batch."""

    async with audited_node() as queue_node:
        two_types(queue_node)
        await queue_node.crash()
        await queue_node.start()
        await queue_node.fetch(types=DEFAULT, node="w2", wait_ms=0)
        await queue_node.fetch(types=BOTH, node="w1", wait_ms=0)
        queue_node.put(b"m", partition=MISSING)
        assert not (await queue_node.fetch(types=DEFAULT, node="w2", wait_ms=30)).items
        assert [item[5] for item in (await queue_node.fetch(types=BOTH, node="w1")).items] == [b"m"]


async def test_references_of_a_missing_type_take_no_space_from_others() -> None:
    """Waiting bulk references are set aside when their turn comes, take no room, and return once the type exists; until
    then new ones are refused with a reason (R-TYPE)."""

    async with audited_node(QueueSettings("q", queue_limit_count=3)) as queue_node:
        two_types(queue_node)
        await queue_node.crash()
        await queue_node.start()
        orders = [Key(b"orders", BUCKET, name) for name in (b"o1", b"o2", b"o3")]
        queue_node.put(b"d1", b"d2", partition=HERE)
        queue_node.put(b"o1", b"o2", b"o3", partition=MISSING)
        assert len(await queue_node.drain(types=BOTH)) == 5
        assert await queue_node.acts.push("q", orders, FULL_SYNC, 0) == 3
        bulk = queue_node.queues.named("q").machine.bulk_queues[0]
        assert bulk.free_count() == 0
        queue_node.clock.skew_ms += 61_000
        assert not (await queue_node.fetch(types=DEFAULT, wait_ms=0)).items
        assert bulk.free_count() == 3
        wanted = [Key(b"default", BUCKET, name) for name in (b"d1", b"d2")]
        assert await queue_node.acts.push("q", wanted, FULL_SYNC, 0) == 2
        with pytest.raises(NotReady, match="west has no bucket type orders"):
            await queue_node.acts.push("q", orders[:1], FULL_SYNC, 0)
        assert [item[5] for item in (await queue_node.fetch(types=DEFAULT)).items] == [b"d1", b"d2"]
        assert list((await queue_node.fetch(types=DEFAULT, wait_ms=0)).held or ()) == [b"orders"]
        assert [item[5] for item in (await queue_node.fetch(types=BOTH)).items] == [b"o1", b"o2", b"o3"]


async def test_changes_refused_and_not_stored_by_the_sink_are_a_gap() -> None:
    """Some changes of a batch are refused permanently and find no room among the sink's dead letters: they lie in a gap
    of their partition, with their times, over restarts. The others are acknowledged, and the ledger adds up. The record
    of bulk references is in the metastore (R-TYPE)."""

    async with audited_node() as queue_node:
        queue_node.put(b"a", b"b", b"c")
        reply = await queue_node.fetch()
        times, first = [item[7] for item in reply.items], reply.items[1][2]
        ack = BatchAck(reply.batch, reply.owner_version, (), (1, 0, 0, 2), (1, 2))
        await queue_node.fetch(acks=[ack], wait_ms=0)
        machine = queue_node.queues.named("q").machine
        assert machine.ledger().given_up == 2
        await queue_node.eventually(lambda: bool(queue_node.acts.gaps()))
        (gap,) = queue_node.acts.gaps()
        assert (gap["what"], gap["from_offset"], gap["upto_offset"], gap["count_at_least"]) == (
            "refused",
            first,
            first + 2,
            2,
        )
        assert times[1] == gap["from_ms"] <= gap["upto_ms"] == times[2]
        await queue_node.eventually(lambda: machine.windows[HERE].advance() == machine.windows[HERE].applied)
        queue_node.queues.tick()
        await queue_node.crash()
        await queue_node.start()
        assert [(one["from_offset"], one["upto_offset"]) for one in queue_node.acts.gaps()] == [(first, first + 2)]
        assert await queue_node.drain() == []

        await queue_node.acts.push("q", [Key(b"default", BUCKET, b"a")], FULL_SYNC, 0)
        reply = await queue_node.fetch()
        await queue_node.fetch(acks=[BatchAck(reply.batch, reply.owner_version, (), (0, 0, 0, 1), (0,))], wait_ms=0)
        queue_node.queues.tick()
        await queue_node.eventually(lambda: len(queue_node.acts.gaps()) == 2)
        (lost,) = [one for one in queue_node.acts.gaps() if one["partition"] is None]
        assert (lost["what"], lost["priority"], lost["count_at_least"]) == ("refused", FULL_SYNC, 1)
        assert lost["bucket_types"] == ["default"]


async def test_what_a_sink_said_that_does_not_ask_any_more_has_an_age() -> None:
    """While the sink asks, the reason says what it lacks; once it is silent, what it lacked and how long ago that was:
    the type may have been made there since. The reason of the queue as a whole does not name the type; that of the type
    does."""
    async with audited_node(QueueSettings("q")) as queue_node:
        two_types(queue_node)
        await queue_node.crash()
        await queue_node.start()
        queue_node.put(b"o1", partition=MISSING)
        queue_node.put(b"d1", partition=HERE)
        orders = [Key(b"orders", BUCKET, b"o1")]
        assert await queue_node.drain(types=DEFAULT) == [b"d1"]
        await queue_node.eventually(lambda: queue_node.queues.named("q").machine.held_back_since())

        async def reasons() -> tuple[str, str]:
            (row,) = [row for row in await queue_node.acts.lags() if row.queue == "q"]
            assert "orders" not in row.reason
            (listed,) = [row for row in await listed_queues(queue_node.queues) if row["name"] == "q"]
            assert row.held["orders"] in listed["reason"]
            with pytest.raises(NotReady) as refused:
                await queue_node.acts.push("q", orders, FULL_SYNC, 0)
            return row.held["orders"], str(refused.value)

        for text in await reasons():
            assert "west has no bucket type orders: its changes wait here" in text
        await asyncio.sleep(SILENT_MS / 1000 + 5)
        for text in await reasons():
            assert "west had no bucket type orders, as it answered 25 s ago: its changes wait here" in text
