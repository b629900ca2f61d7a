"""Marks of the bulk references that a node holds, written before the references are accepted, so that a crash leaves a
gap."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Collection
from random import Random
from typing import Any

import pytest
from msgspec.structs import replace

from isthmus.config.settings import QueueSettings
from isthmus.queues.bulk_marks import AWAY_MS, LOWER_AFTER_MS, SWEEP_MS
from isthmus.queues.queue_documents import (
    ANY_TYPE,
    CRASHED,
    FIRST_BOUND,
    LOST_MAX,
    MARKS_MAX,
    PUBLISHING,
    TYPES_MAX,
    AuditInfo,
    BulkMark,
    LostReferences,
    QueuePaths,
    bound_for,
    bounded,
    decode_held,
    encode_held,
    path_of,
)
from isthmus.queues.queue_store import QueueStore
from isthmus.queues.window_rules import FOLD, FULL_SYNC
from isthmus.queues.wire import BatchAck
from isthmus.repl.metastore.port import ConditionalWrite, Precondition, Unavailable
from isthmus.repl.model.errors import CodecError, IsthmusError, NotReady, Overloaded
from isthmus.repl.model.keys import Key
from tests.support.memory_metastore import MemoryEnsemble, MemoryMetastore, WriteFault
from tests.support.queue_node import QueueNode
from tests.support.queue_source import BUCKET

pytestmark = pytest.mark.virtual_time


def keys(count: int, start: int = 0) -> list[Key]:
    return [Key(b"default", BUCKET, b"%06d" % n) for n in range(start, start + count)]


def marks(queue_node: QueueNode) -> list[tuple[str, int, int]]:
    (queue,) = queue_node.served()
    return sorted((mark.node, mark.priority, mark.at_most) for mark in queue.stored.held)


def gaps_of_bulk(queue_node: QueueNode) -> list[dict[str, Any]]:
    return [gap for gap in queue_node.acts.gaps("q") if gap["partition"] is None]


async def ticked(queue_node: QueueNode, later_ms: int = 0) -> None:
    """Advances the time, and waits until the tick's work is done."""
    queue_node.clock.skew_ms += later_ms
    queue_node.queues.tick()
    await queue_node.eventually(lambda: all(not m.lock.locked() for m in queue_node.queues.bulk_marks._of.values()))
    await asyncio.sleep(0.01)


async def test_references_lost_in_a_crash_are_a_gap_with_bounds_and_times() -> None:
    """A node that dies with references records at its restart their maximal number, their priority and the begin; once,
    and the mark is deleted. The next crash without references records nothing (R-HELD)."""

    async with QueueNode() as queue_node:
        began = queue_node.clock.wall_ms()
        assert await queue_node.acts.push("q", keys(300), FULL_SYNC, 0) == 300
        assert await queue_node.acts.push("q", keys(2), FOLD, 0) == 2
        assert marks(queue_node) == [("e1", FOLD, FIRST_BOUND), ("e1", FULL_SYNC, 8 * FIRST_BOUND)]
        await queue_node.crash()
        await queue_node.start()
        gaps = sorted(queue_node.acts.gaps("q"), key=lambda gap: gap["priority"])
        assert [(g["what"], g["priority"], g["count_at_least"], g["count_at_most"], g["node"]) for g in gaps] == [
            (CRASHED, FOLD, 0, FIRST_BOUND, "e1"),
            (CRASHED, FULL_SYNC, 0, 8 * FIRST_BOUND, "e1"),
        ]
        for gap in gaps:
            assert began <= gap["from_ms"] <= gap["upto_ms"] <= queue_node.clock.wall_ms()
            assert gap["partition"] is None
        await queue_node.eventually(lambda: not marks(queue_node))
        await queue_node.crash()
        await queue_node.start()
        assert len(queue_node.acts.gaps("q")) == 2


def typed(name: str, count: int = 1) -> list[Key]:
    return [Key(name.encode(), BUCKET, b"%06d" % n) for n in range(count)]


async def test_a_loss_names_the_bucket_types_of_its_references() -> None:
    """The mark names each bucket type before a reference of it is accepted; a crash's record has these types, and that
    of a clear or of a permanent refusal those of the references. Beyond TYPES_MAX types no record names any
    (R-HELD)."""

    async with QueueNode() as queue_node:
        (queue,) = queue_node.served()
        await queue_node.acts.push("q", typed("a"), FULL_SYNC, 0)
        await queue_node.acts.push("q", typed("b"), FULL_SYNC, 0)
        await queue_node.acts.push("q", typed("c"), FOLD, 0)
        queue_node.metastore.disconnect()
        await queue_node.acts.push("q", typed("a", 9), FULL_SYNC, 0)
        with pytest.raises(NotReady):
            await queue_node.acts.push("q", typed("c"), FULL_SYNC, 0)
        queue_node.metastore.reconnect()
        await queue_node.crash()
        await queue_node.start()
        await queue_node.eventually(lambda: len(gaps_of_bulk(queue_node)) == 2)
        assert {g["priority"]: g["bucket_types"] for g in gaps_of_bulk(queue_node)} == {
            FULL_SYNC: ["a", "b"], FOLD: ["c"],
        }  # fmt: skip

    async with QueueNode() as queue_node:
        await queue_node.acts.push("q", typed("d"), FULL_SYNC, 0)
        await queue_node.acts.clear("q", AuditInfo("ann", queue_node.clock.wall_ms(), ""))
        await queue_node.eventually(lambda: gaps_of_bulk(queue_node))
        assert [g["bucket_types"] for g in gaps_of_bulk(queue_node)] == [["d"]]

    async with QueueNode() as queue_node:
        many = [key for n in range(TYPES_MAX + 1) for key in typed(f"t{n}")]
        await queue_node.acts.push("q", many[:TYPES_MAX], FOLD, 0)
        (queue,) = queue_node.served()
        assert [len(mark.bucket_types) for mark in queue.stored.held] == [TYPES_MAX]
        await queue_node.acts.push("q", many[TYPES_MAX:], FOLD, 0)
        assert [mark.bucket_types for mark in queue.stored.held] == [ANY_TYPE]
        assert await queue_node.acts.push("q", typed("more"), FOLD, 0) == 1
        await queue_node.crash()
        await queue_node.start()
        await queue_node.eventually(lambda: gaps_of_bulk(queue_node))
        assert [g["bucket_types"] for g in gaps_of_bulk(queue_node)] == [None]


def test_merged_losses_have_the_types_of_both() -> None:
    """Records that become one name the types of both; those of one that names none may be any."""
    lost = [
        LostReferences("n", 2, 1, n, n, "stopped", "", n, bucket_types=types)
        for n, types in enumerate([("a",), ("b",), *[("c",)] * (LOST_MAX - 1)])
    ]
    assert bounded(lost)[0].bucket_types == ("a", "b")
    assert bounded([lost[0], replace(lost[1], bucket_types=ANY_TYPE), *lost[2:]])[0].bucket_types == ANY_TYPE


async def test_nothing_is_taken_in_that_is_not_on_record() -> None:
    """Without the metastore a push gets NotReady, unless a mark covers it; a mark whose write had no answer covers
    nothing."""

    async with QueueNode() as queue_node:
        (queue,) = queue_node.served()
        queue_node.metastore.disconnect()
        with pytest.raises(NotReady):
            await queue_node.acts.push("q", keys(1), FULL_SYNC, 0)
        assert queue.machine.bulk_queues[0].held_count == 0
        queue_node.metastore.reconnect()
        await queue_node.eventually(lambda: queue.stored is not None)
        assert await queue_node.acts.push("q", keys(1), FULL_SYNC, 0) == 1
        queue_node.metastore.disconnect()
        assert await queue_node.acts.push("q", keys(FIRST_BOUND - 1, 1), FULL_SYNC, 0) == FIRST_BOUND - 1
        with pytest.raises(NotReady):
            await queue_node.acts.push("q", keys(1, FIRST_BOUND), FULL_SYNC, 0)
        assert queue.machine.bulk_queues[0].held_count == FIRST_BOUND
        queue_node.metastore.reconnect()


async def test_many_references_cost_few_writes() -> None:
    """Twenty thousand references in small pushes raise the mark three times; the room of the queue bounds the mark."""

    async with QueueNode(QueueSettings("q", queue_limit_count=20000)) as queue_node:
        seen = set()
        for start in range(0, 20_000, 100):
            await queue_node.acts.push("q", keys(100, start), FULL_SYNC, 0)
            seen.update(bound for _, _, bound in marks(queue_node))
        assert sorted(seen) == [FIRST_BOUND, 8 * FIRST_BOUND, 64 * FIRST_BOUND, 20_000]
        assert await queue_node.acts.push("q", keys(1, 20_000), FULL_SYNC, 0) == 0


async def test_a_full_queue_takes_what_waits_already() -> None:
    """A repeated push of waiting keys needs no room and is accepted; the first new key is refused."""

    async with QueueNode(QueueSettings("q", queue_limit_count=10)) as queue_node:
        assert await queue_node.acts.push("q", keys(10), FULL_SYNC, 0) == 10
        assert await queue_node.acts.push("q", keys(10), FULL_SYNC, 0) == 10
        assert await queue_node.acts.push("q", keys(12), FULL_SYNC, 0) == 10
        assert await queue_node.acts.push("q", [*keys(1, 11), *keys(5)], FULL_SYNC, 0) == 0
        assert marks(queue_node)[0][2] == 10
        (queue,) = queue_node.served()
        assert queue.machine.bulk_queues[0].counts.queued == 10


async def test_a_mark_goes_once_all_was_served_and_not_at_once() -> None:
    """Acknowledged references are not held any more. The mark stays for a while, so that bursts cost one write, and is
    lowered while less is held."""

    async with QueueNode() as queue_node:
        queue_node.put(*(key.key for key in keys(300)))
        assert len(await queue_node.drain()) == 300
        await queue_node.acts.push("q", keys(300), FULL_SYNC, 0)
        reply = await queue_node.fetch(count=250)
        await queue_node.fetch(acks=[BatchAck(reply.batch, reply.owner_version)], count=0, wait_ms=0)
        await ticked(queue_node)
        assert marks(queue_node) == [("e1", FULL_SYNC, 8 * FIRST_BOUND)]
        await ticked(queue_node, LOWER_AFTER_MS)
        assert marks(queue_node) == [("e1", FULL_SYNC, FIRST_BOUND)], "fifty are left"
        reply = await queue_node.fetch()
        await queue_node.fetch(acks=[BatchAck(reply.batch, reply.owner_version)], count=0, wait_ms=0)
        await ticked(queue_node)
        assert marks(queue_node)
        await ticked(queue_node, LOWER_AFTER_MS)
        assert marks(queue_node) == []
        await queue_node.crash()
        await queue_node.start()
        assert queue_node.acts.gaps("q") == []


async def test_a_stop_and_a_mark_are_one_record() -> None:
    """References counted at a stop are not counted by their mark as well; a stop without the metastore leaves the mark,
    which the next process finds."""

    async with QueueNode() as queue_node:
        await queue_node.acts.push("q", keys(5), FULL_SYNC, 0)
        await queue_node.queues.stop()
        await queue_node.start()
        (gap,) = queue_node.acts.gaps("q")
        assert (gap["what"], gap["count_at_least"], gap["count_at_most"]) == ("stopped", 5, 5)
        assert marks(queue_node) == []
        await queue_node.acts.push("q", keys(5), FULL_SYNC, 0)
        queue_node.metastore.disconnect()
        await queue_node.queues.stop()
        queue_node.metastore.reconnect()
        await queue_node.start()
        assert [gap["what"] for gap in queue_node.acts.gaps("q")] == ["stopped", CRASHED]


async def test_references_lost_with_an_absent_node_are_recorded_by_another() -> None:
    """The first of the live nodes records them, after a while and not for a live node; a node that was taken for dead
    and still holds its references marks them again (R-HELD)."""

    ensemble = MemoryEnsemble()
    homes = [QueueNode(ensemble=ensemble, node=name) for name in ("e1", "e2", "e3")]
    live = {"e1", "e2", "e3"}
    for queue_node in homes:
        await queue_node.start()
        queue_node.facts.live = live
    one, two, three = homes
    await one.acts.push("q", keys(3), FULL_SYNC, 0)
    for queue_node in (two, three):
        await queue_node.eventually(lambda queue_node=queue_node: marks(queue_node))
    await ticked(two, 10 * AWAY_MS)
    assert two.acts.gaps("q") == []
    live.discard("e1")
    for queue_node in (three, two):
        await ticked(queue_node)
        await ticked(queue_node, AWAY_MS - 1_000)
    assert three.acts.gaps("q") == two.acts.gaps("q") == []
    await ticked(three, 2_000)
    assert three.acts.gaps("q") == [], "the second one leaves it to the first"
    await ticked(two, 2_000)
    await two.eventually(lambda: two.acts.gaps("q"))
    (gap,) = two.acts.gaps("q")
    assert (gap["what"], gap["node"], gap["count_at_most"]) == (CRASHED, "e1", FIRST_BOUND)
    await one.eventually(lambda: not marks(one))
    await ticked(one)
    await one.eventually(lambda: marks(one) == [("e1", FULL_SYNC, FIRST_BOUND)])
    for queue_node in homes:
        await queue_node.close()


async def left(queue_node: QueueNode, what: str = "held", name: str = "q") -> str:
    """The marks or losses of a queue in the metastore, as text; empty if there are none."""
    found = await queue_node.metastore.get(path_of(name, what))
    return "" if found is None or found.value == b'{"%s": []}' % what.encode() else found.value.decode()


async def test_marks_of_a_delisted_queue_are_deleted() -> None:
    """Its marks are deleted even if their node was down when it was delisted, and so are its records of losses; a queue
    that is registered again under that name keeps its later marks (R-HELD)."""

    ensemble = MemoryEnsemble()
    one, two = homes = [QueueNode(ensemble=ensemble, node=name) for name in ("e1", "e2")]
    for queue_node in homes:
        await queue_node.start(lead=queue_node is one)
        queue_node.facts.live = ("e1", "e2")
    await two.acts.push("q", keys(3), FULL_SYNC, 0)
    await two.crash()
    two.queues._queues.clear()  # its process gets no more notifications
    one.facts.live = ("e1",)
    await one.acts.delist("q", AuditInfo("ann", one.clock.wall_ms(), "because"))
    await one.eventually(lambda: not one.served())
    assert "e2" in await left(one)
    await ticked(one, SWEEP_MS)
    await asyncio.sleep(0.05)
    assert (await left(one), await left(one, "lost")) == ("", "")
    await two.start(lead=False)
    await ticked(two)
    assert not two.served()
    await one.acts.register("q", {}, 0, AuditInfo("ann", one.clock.wall_ms(), "again"))
    await one.eventually(lambda: one.served())
    await one.acts.push("q", keys(2), FULL_SYNC, 0)
    await ticked(one, SWEEP_MS)
    assert "e1" in await left(one)
    for queue_node in homes:
        await queue_node.close()


async def test_a_delisted_queue_is_emptied_once() -> None:
    """Documents that are apart stay, with nothing in them: a later sweep has nothing to remove and to report."""
    metastore = MemoryMetastore()
    await metastore.start(lambda _state: None)
    store, act = QueueStore(metastore, {}), AuditInfo("ann", 5, "because")
    await store.register("q", {}, 0, act)
    await store.set_marks("q", "e2", [BulkMark("e2", 2, 7, 5)])
    await store.record_crash("q", "e2", 6)
    await store.set_marks("q", "e3", [BulkMark("e3", 2, 7, 5)])
    await store.delist("q", act)
    assert await store.marks_of_other("q") == ((BulkMark("e3", 2, 7, 5),), True)
    assert await metastore.get(path_of("q", "held")) is not None
    assert await store.marks_of_other("q") == ((), False)


async def test_marks_of_a_queue_delisted_while_the_metastore_fails_are_deleted() -> None:
    """The loss could not be recorded: its mark is deleted nevertheless, and this node keeps nothing of the queue."""

    async with QueueNode() as queue_node:
        queue_node.facts.live = ("e1",)
        await queue_node.acts.push("q", keys(3), FULL_SYNC, 0)
        put_all = queue_node.metastore.put_all

        async def refused(writes: Collection[ConditionalWrite], unmoved: Collection[Precondition] = ()) -> None:
            if path_of("q", "lost") in [one.path for one in writes]:
                raise Unavailable("for a moment")
            await put_all(writes, unmoved)

        queue_node.metastore.put_all = refused  # type: ignore[method-assign]
        with contextlib.suppress(NotReady):  # whichever comes first, the act or the hint of it
            await queue_node.acts.delist("q", AuditInfo("ann", queue_node.clock.wall_ms(), "because"))
        await queue_node.eventually(lambda: not queue_node.served())
        queue_node.metastore.put_all = put_all  # type: ignore[method-assign]
        assert "e1" in await left(queue_node)
        await ticked(queue_node, SWEEP_MS)
        await asyncio.sleep(0.05)
        assert (await left(queue_node), await left(queue_node, "lost")) == ("", "")


async def test_a_queue_that_a_file_names_no_more_leaves_a_record_and_no_mark() -> None:
    """A node that restarts without the queue in its file records the references that its previous process held, for
    nodes that have the queue. The first of the live nodes records those of a node that stays away, even if it has no
    such queue itself (R-HELD)."""

    ensemble = MemoryEnsemble()
    homes = [QueueNode(QueueSettings("q"), ensemble=ensemble, node=name) for name in ("e1", "e2")]
    one, two = homes
    for queue_node in homes:
        await queue_node.start(lead=queue_node is one)
        queue_node.facts.live = ("e1", "e2")
        await queue_node.acts.push("q", keys(3), FULL_SYNC, 0)
    await one.crash()
    one.settings = (QueueSettings("other"),)
    await one.start()
    await ticked(one)
    await asyncio.sleep(0.05)
    assert "e1" not in await left(one)
    assert '"e1"' in await left(one, "lost")
    await two.eventually(lambda: two.acts.gaps("q"))
    (gap,) = two.acts.gaps("q")
    assert (gap["node"], gap["what"], gap["count_at_most"]) == ("e1", CRASHED, FIRST_BOUND)
    await two.crash()
    one.facts.live = ("e1",)
    await ticked(one, SWEEP_MS)
    await asyncio.sleep(0.05)
    assert "e2" in await left(one), "it may only be restarting"
    await ticked(one, SWEEP_MS)
    await asyncio.sleep(0.05)
    assert await left(one) == ""
    assert '"e2"' in await left(one, "lost")
    for queue_node in homes:
        await queue_node.close()


async def test_clearing_a_queue_reaches_bulk_references_of_every_node() -> None:
    """One node gets the command; references of another node are dropped, too, each as a gap of its own."""

    ensemble = MemoryEnsemble()
    one, two = homes = [QueueNode(ensemble=ensemble, node=name) for name in ("e1", "e2")]
    for queue_node in homes:
        await queue_node.start(lead=queue_node is one)
    await one.acts.push("q", keys(3), FULL_SYNC, 0)
    await two.acts.push("q", keys(4), FOLD, 0)
    await one.acts.clear("q", AuditInfo("ann", one.clock.wall_ms(), "because"))
    await two.eventually(lambda: len(gaps_of_bulk(two)) == 2)
    gaps = gaps_of_bulk(two)
    assert sorted((g["node"], g["count_at_least"], g["by"]) for g in gaps) == [("e1", 3, "ann"), ("e2", 4, "ann")]
    for queue_node in homes:
        assert all(bulk.held_count == 0 for bulk in queue_node.served()[0].machine.bulk_queues)
    for queue_node in homes:
        await queue_node.close()


@pytest.mark.parametrize("seed", range(4))
async def test_marks_cover_all_references_whatever_metastore_writes_fail(seed: int) -> None:
    """Pushes, fetches, ticks, crashes and lost writes in random order: at every step no more is held than the metastore
    records, and a crash that loses references leaves a gap that is at least as large (R-HELD)."""

    rng = Random(seed)
    queue_node = QueueNode(QueueSettings("q", queue_limit_count=3_000))
    await queue_node.start()
    number = crashes = 0
    queue_node.put(*(key.key for key in keys(5_000)))
    await queue_node.drain()
    acks: list[BatchAck] = []
    for _ in range(90):
        match rng.randrange(6):
            case 0 | 1:
                count = rng.choice((1, 40, 400))
                number = (number + count) % 4_000
                if rng.random() < 0.3:
                    queue_node.metastore.spoil(rng.choice(list(WriteFault)))
                with contextlib.suppress(IsthmusError):
                    await queue_node.acts.push("q", keys(count, number), rng.choice((FULL_SYNC, FOLD)), 0)
            case 2 | 3:
                reply = await queue_node.fetch(acks=acks, wait_ms=0, count=rng.choice((5, 500)))
                acks = [BatchAck(reply.batch, reply.owner_version)] if reply.items else []
            case 4:
                await ticked(queue_node, rng.choice((0, LOWER_AFTER_MS)))
            case _:
                held = {bulk.priority: bulk.held_count for bulk in queue_node.served()[0].machine.bulk_queues}
                before = len(queue_node.acts.gaps("q"))
                await queue_node.crash()
                await queue_node.start()
                gaps = queue_node.acts.gaps("q")[before:]
                at_most = {gap["priority"]: gap["count_at_most"] for gap in gaps}
                assert all(at_most.get(p, 0) >= count for p, count in held.items()), (held, at_most)
                crashes += any(held.values())
                acks = []
        written = {mark.priority: mark.at_most for mark in await QueuePaths("q").held.read(queue_node.metastore)}
        for bulk in queue_node.served()[0].machine.bulk_queues:
            assert bulk.held_count <= written.get(bulk.priority, 0)
    assert crashes, "the seed shows nothing"
    await queue_node.close()


def test_bounds_rise_in_steps_up_to_the_limit() -> None:
    """A bound covers the count, five steps lead to the default limit, and none is above it."""
    assert [bound_for(n, 300_000) for n in (1, 256, 257, 2_049, 131_072, 131_073)] == [
        256, 256, 2_048, 16_384, 131_072, 300_000
    ]  # fmt: skip
    assert bound_for(10, 100) == 100


@pytest.mark.parametrize(
    "value",
    [b"", b"[]", b"{}", b'{"held": 7}', b'{"held": [{"node": "e1"}]}', b'{"held": ["x"]}',
     b'{"held": [{"node": "e1", "priority": "2", "at_most": 1, "since_ms": 2}]}'],
)  # fmt: skip
def test_malformed_marks_are_refused(value: bytes) -> None:
    """A malformed value raises a CodecError; a missing one is an empty list."""
    assert QueuePaths("q").held.decode(None) == ()
    some = (BulkMark("e1", 2, 256, 7),)
    assert decode_held(encode_held(some)) == some
    with pytest.raises(CodecError):
        decode_held(value)


async def test_marks_and_records_of_losses_are_bounded() -> None:
    """More marks than the limit are refused; records beyond the limit are merged, with their bounds added up; records
    without bounds, of earlier versions, can be read."""

    metastore = MemoryMetastore()
    await metastore.start(lambda state: None)
    steering = QueueStore(metastore, {})
    full = encode_held([BulkMark(f"n{n}", 2, 256, 7) for n in range(MARKS_MAX)])
    await metastore.put("/queues/q/held", full, None)
    with pytest.raises(Overloaded):
        await steering.set_marks("q", "more", [BulkMark("more", 2, 256, 7)])
    for n in range(3):
        assert await steering.record_crash("q", f"n{n}", 100) == 1
        assert await steering.record_crash("q", f"n{n}", 100) == 0
    await steering.record_lost("q", [LostReferences("m", 2, 5, n, n, "stopped", "", n) for n in range(LOST_MAX - 2)])
    lost = await QueuePaths("q").lost.read(metastore)
    assert len(lost) == LOST_MAX
    assert [(one.node, one.left_out, one.at_most) for one in lost[:4]] == [
        ("n0", 0, 256), ("n1", 0, 256), ("n2", 0, 256), ("m", 10, None),
    ]  # fmt: skip
    value = await metastore.get("/queues/q/lost")
    assert value is not None
    old = value.value.replace(b', "at_most": null', b"")
    assert old != value.value
    await metastore.put("/queues/q/lost", old, value.version)
    assert await QueuePaths("q").lost.read(metastore) == lost
    await metastore.stop()


async def test_while_publishing_is_suspended_nothing_is_taken_in_at_any_priority() -> None:
    """A push gets NotReady with the operator and the reason; references that waited before are still served."""

    async with QueueNode() as queue_node:
        queue_node.put(b"000000")
        await queue_node.drain()
        assert await queue_node.acts.push("q", keys(1), FOLD, 0) == 1
        await queue_node.acts.suspend("q", PUBLISHING, None, AuditInfo("ann", 1, "moving"))
        with pytest.raises(NotReady, match="publishing of queue q is suspended by ann: moving"):
            await queue_node.acts.push("q", keys(1, 1), FULL_SYNC, 0)
        assert [item[5] for item in (await queue_node.fetch()).items] == [b"000000"]
        await queue_node.acts.resume("q", PUBLISHING, None, AuditInfo("ann", 2, ""))
        assert await queue_node.acts.push("q", keys(1, 1), FULL_SYNC, 0) == 1


async def test_records_that_are_made_one_are_of_one_node_and_priority() -> None:
    """Beyond the limit, the two oldest records of the same node and priority are merged, so that no node's record has
    losses of another."""

    metastore = MemoryMetastore(MemoryEnsemble())
    await metastore.start(lambda state: None)
    steering = QueueStore(metastore, {"q": QueueSettings("q")})
    noted = [LostReferences("nm"[n % 2], 1 + n // 2 % 2, n, n, n, "stopped", "", n) for n in range(LOST_MAX + 9)]
    for one in noted:
        await steering.record_lost("q", [one])
    lost = await QueuePaths("q").lost.read(metastore)
    assert len(lost) == LOST_MAX
    for whose in {(one.node, one.priority) for one in noted}:
        mine = [[one for one in found if (one.node, one.priority) == whose] for found in (noted, lost)]
        assert sum(one.left_out for one in mine[0]) == sum(one.left_out for one in mine[1])
        assert min(one.from_ms for one in mine[0]) == min(one.from_ms for one in mine[1])
    await steering.record_lost("q", [LostReferences(f"n{n}", 1, 1, n, n, "stopped", "", n) for n in range(LOST_MAX)])
    assert len(await QueuePaths("q").lost.read(metastore)) == LOST_MAX, "however many nodes there are"
