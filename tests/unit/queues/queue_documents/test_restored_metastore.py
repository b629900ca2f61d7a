"""A metastore restored from an older copy, while partitions keep newer queue state."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from isthmus.queues.queue_documents import AuditInfo, next_version
from tests.support.memory_metastore import MemoryEnsemble
from tests.support.queue_node import QueueNode
from tests.support.queue_source import SINK, THIRD

pytestmark = pytest.mark.virtual_time


@asynccontextmanager
async def restorable_node() -> AsyncIterator[tuple[QueueNode, Callable[[str, bytes | None], None]]]:
    """A started node, and a way to put an older value back."""
    ensemble = MemoryEnsemble()

    def restore(what: str, value: bytes | None) -> None:
        found = ensemble.read(f"/queues/q/{what}")
        assert found is not None
        assert value is not None
        ensemble.set(f"/queues/q/{what}", value, found[1].version)

    async with QueueNode(ensemble=ensemble) as queue_node:
        yield queue_node, restore


def value_of(queue_node: QueueNode, what: str) -> bytes:
    found = queue_node.metastore._memory.ensemble.read(f"/queues/q/{what}")
    assert found is not None
    return found[0]


def audit_info(queue_node: QueueNode) -> AuditInfo:
    return AuditInfo("ann", queue_node.clock.wall_ms(), "")


async def assert_positions(queue_node: QueueNode, cluster: bytes) -> None:
    machine = queue_node.served()[0].machine
    await queue_node.eventually(lambda: all(w.state.owner == cluster for w in machine.windows.values()))


async def test_a_command_after_a_restore_is_applied_although_its_number_was_used() -> None:
    """Commands that the metastore lost were executed; the next one is a new command, and every partition executes it
    (R-DECREE)."""

    async with restorable_node() as (queue_node, restore):
        queue_node.put(b"a")
        assert await queue_node.drain() == [b"a"]
        await queue_node.acts.place("q", ((3, 0),), audit_info(queue_node))
        assert await queue_node.drain() == [b"a"]
        before = value_of(queue_node, "decree")
        queue_node.clock.skew_ms += 2_000
        await queue_node.acts.place("q", ((3, 1 << 40),), audit_info(queue_node))
        await queue_node.eventually(lambda: queue_node.served()[0].machine.windows[3].state.command_version > 1)
        restore("decree", before)
        queue_node.clock.skew_ms += 2_000
        await queue_node.acts.place("q", ((3, 0),), audit_info(queue_node))
        await asyncio.sleep(0.1)
        assert await queue_node.drain() == [b"a"]


async def test_a_queue_whose_owner_was_restored_serves_it() -> None:
    """Partitions have a later owner version than the metastore: the metastore's owner gets a newer version, and changes
    are served. It begins at the last CURSOR entry, since acknowledgements of the other owner do not count for it; so
    changes may be served again."""

    async with restorable_node() as (queue_node, restore):
        queue_node.put(b"a")
        assert await queue_node.drain() == [b"a"]
        before = value_of(queue_node, "owner")
        await queue_node.acts.release("q", 0, audit_info(queue_node))
        assert await queue_node.drain(cluster=THIRD) == [b"a"]
        await assert_positions(queue_node, THIRD)
        restore("owner", before)
        await queue_node.eventually(lambda: queue_node.served()[0].stored.owner.cluster == SINK)
        queue_node.put(b"b")
        assert await queue_node.drain() == [b"a", b"b"]
        await assert_positions(queue_node, SINK)


async def test_a_lost_and_reregistered_queue_begins_at_the_given_position() -> None:
    """Its partitions have executed later commands than the restored metastore has."""

    async with restorable_node() as (queue_node, _):
        queue_node.put(b"a")
        await queue_node.acts.register("late", {}, 0, audit_info(queue_node))
        assert await queue_node.drain(queue="late") == [b"a"]
        queue_node.clock.skew_ms += 2_000
        await queue_node.acts.clear("late", audit_info(queue_node))
        queue = queue_node.queues.named("late")
        await queue_node.eventually(
            lambda: all(w.state.command_version == queue.stored.command.version for w in queue.machine.windows.values())
        )
        ensemble = queue_node.metastore._memory.ensemble
        for path in ("/queue-definitions", "/queues/late/decree"):
            found = ensemble.read(path)
            assert found is not None
            await queue_node.metastore.delete(path, found[1].version)
        await queue_node.eventually(lambda: "late" not in queue_node.queues.machines())
        queue_node.clock.skew_ms += 2_000
        await queue_node.acts.register("late", {}, 0, audit_info(queue_node))
        assert set(await queue_node.drain(queue="late")) == {b"a"}


def test_a_version_after_a_restore_is_one_that_no_node_gave_before() -> None:
    """The partitions' entries carry a newer version than the metastore has. The one after it may have been given by
    another node, for a document that the restore lost and that some partition has not executed: the next version comes
    from the wall clock, and is above both."""
    now_ms = 1_700_000_000_000
    assert next_version(3, 7, now_ms) == now_ms
    assert next_version(3, now_ms + 5, now_ms) == now_ms + 6
    assert [next_version(7, seen, now_ms) for seen in (0, 3, 7)] == [8, 8, 8]
