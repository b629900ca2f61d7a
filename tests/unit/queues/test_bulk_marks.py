"""Claims about what a node holds at the lower priorities: marked before it is there, so that a crash leaves a gap."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any

import pytest

from isthmus.config.settings import QueueSettings
from isthmus.queues.bulk_marks import AWAY_MS, LOWER_AFTER_MS, SWEEP_MS
from isthmus.queues.queue_documents import (
    CRASHED,
    FIRST_BOUND,
    LOST_MAX,
    MARKS_MAX,
    PUBLISHING,
    AuditInfo,
    BulkMark,
    LostReferences,
    QueuePaths,
    bound_for,
    decode_held,
    encode_held,
    path_of,
)
from isthmus.queues.queue_store import QueueStore
from isthmus.queues.window_rules import FOLD, FULL_SYNC
from isthmus.queues.wire import BatchAck
from isthmus.repl.metastore.port import Unavailable
from isthmus.repl.model.errors import CodecError, IsthmusError, NotReady, Overloaded
from isthmus.repl.model.keys import Key
from tests.support.memory_metastore import MemoryEnsemble, MemoryMetastore, WriteFault
from tests.support.queue_node import Home
from tests.support.queue_source import BUCKET


def keys(count: int, start: int = 0) -> list[Key]:
    return [Key(b"default", BUCKET, b"%06d" % n) for n in range(start, start + count)]


def story(test: Callable[[Home], Awaitable[None]], *settings: QueueSettings) -> None:
    """Run `test` on a started home, and close it."""

    async def run() -> None:
        home = Home(*settings)
        await home.start()
        try:
            await test(home)
        finally:
            await home.close()

    asyncio.run(run())


def marks(home: Home) -> list[tuple[str, int, int]]:
    (queue,) = home.served()
    return sorted((mark.node, mark.priority, mark.at_most) for mark in queue.stored.held)


def gaps_of_lower(home: Home) -> list[dict[str, Any]]:
    return [gap for gap in home.acts.gaps("q") if gap["partition"] is None]


async def ticked(home: Home, later_ms: int = 0) -> None:
    """Time goes on, and what a tick begins is done."""
    home.clock.skew_ms += later_ms
    home.queues.tick()
    await home.until(lambda: all(not m.lock.locked() for m in home.queues.bulk_marks._of.values()))
    await asyncio.sleep(0.01)


def test_what_a_crash_takes_is_a_gap_with_its_bounds_and_times() -> None:
    """A node that dies with references and begins again puts on record how many there were at most, at which priority
    and since when; once, and the mark is gone. The next crash with nothing held leaves nothing."""

    async def test(home: Home) -> None:
        began = home.clock.wall_ms()
        assert await home.acts.push("q", keys(300), FULL_SYNC, 0) == 300
        assert await home.acts.push("q", keys(2), FOLD, 0) == 2
        assert marks(home) == [("e1", FOLD, FIRST_BOUND), ("e1", FULL_SYNC, 8 * FIRST_BOUND)]
        await home.crash()
        await home.start()
        gaps = sorted(home.acts.gaps("q"), key=lambda gap: gap["priority"])
        assert [(g["what"], g["priority"], g["count_at_least"], g["count_at_most"], g["node"]) for g in gaps] == [
            (CRASHED, FOLD, 0, FIRST_BOUND, "e1"),
            (CRASHED, FULL_SYNC, 0, 8 * FIRST_BOUND, "e1"),
        ]
        for gap in gaps:
            assert began <= gap["from_ms"] <= gap["upto_ms"] <= home.clock.wall_ms()
            assert gap["partition"] is None
        await home.until(lambda: not marks(home))
        await home.crash()
        await home.start()
        assert len(home.acts.gaps("q")) == 2

    story(test)


def test_nothing_is_taken_in_that_is_not_on_record() -> None:
    """Without the metastore whoever pushes is told to come back, unless a mark covers what comes; a mark whose write
    got no answer covers nothing."""

    async def test(home: Home) -> None:
        (queue,) = home.served()
        home.metastore.disconnect()
        with pytest.raises(NotReady):
            await home.acts.push("q", keys(1), FULL_SYNC, 0)
        assert queue.machine.bulk_queues[0].held_count == 0
        home.metastore.reconnect()
        await home.until(lambda: queue.stored is not None)
        assert await home.acts.push("q", keys(1), FULL_SYNC, 0) == 1
        home.metastore.disconnect()
        assert await home.acts.push("q", keys(FIRST_BOUND - 1, 1), FULL_SYNC, 0) == FIRST_BOUND - 1
        with pytest.raises(NotReady):
            await home.acts.push("q", keys(1, FIRST_BOUND), FULL_SYNC, 0)
        assert queue.machine.bulk_queues[0].held_count == FIRST_BOUND
        home.metastore.reconnect()

    story(test)


def test_many_references_cost_few_writes() -> None:
    """Twenty thousand references in small pushes raise the mark three times; the room of the queue bounds the mark."""

    async def test(home: Home) -> None:
        seen = set()
        for start in range(0, 20_000, 100):
            await home.acts.push("q", keys(100, start), FULL_SYNC, 0)
            seen.update(bound for _, _, bound in marks(home))
        assert sorted(seen) == [FIRST_BOUND, 8 * FIRST_BOUND, 64 * FIRST_BOUND, 20_000]
        assert await home.acts.push("q", keys(1, 20_000), FULL_SYNC, 0) == 0

    story(test, QueueSettings("q", queue_limit_count=20_000))


def test_a_full_queue_takes_what_waits_already() -> None:
    """A repeated push of keys that wait needs no room, and says that they are taken; the first new one finds none."""

    async def test(home: Home) -> None:
        assert await home.acts.push("q", keys(10), FULL_SYNC, 0) == 10
        assert await home.acts.push("q", keys(10), FULL_SYNC, 0) == 10
        assert await home.acts.push("q", keys(12), FULL_SYNC, 0) == 10
        assert await home.acts.push("q", [*keys(1, 11), *keys(5)], FULL_SYNC, 0) == 0
        assert marks(home)[0][2] == 10
        (queue,) = home.served()
        assert queue.machine.bulk_queues[0].counts.queued == 10

    story(test, QueueSettings("q", queue_limit_count=10))


def test_a_mark_goes_once_all_was_served_and_not_at_once() -> None:
    """What was acknowledged is held no longer; the mark outlives it for a while, so that bursts cost one write, and is
    lowered while less is held."""

    async def test(home: Home) -> None:
        home.put(*(key.key for key in keys(300)))
        assert len(await home.drain()) == 300
        await home.acts.push("q", keys(300), FULL_SYNC, 0)
        reply = await home.fetch(count=250)
        await home.fetch(acks=[BatchAck(reply.batch, reply.owner_version)], count=0, wait_ms=0)
        await ticked(home)
        assert marks(home) == [("e1", FULL_SYNC, 8 * FIRST_BOUND)]
        await ticked(home, LOWER_AFTER_MS)
        assert marks(home) == [("e1", FULL_SYNC, FIRST_BOUND)], "fifty are left"
        reply = await home.fetch()
        await home.fetch(acks=[BatchAck(reply.batch, reply.owner_version)], count=0, wait_ms=0)
        await ticked(home)
        assert marks(home)
        await ticked(home, LOWER_AFTER_MS)
        assert marks(home) == []
        await home.crash()
        await home.start()
        assert home.acts.gaps("q") == []

    story(test)


def test_a_stop_and_a_mark_are_one_record() -> None:
    """What is counted at a stop is not counted by its mark, too; a stop without the metastore leaves the mark, which
    the next life finds."""

    async def test(home: Home) -> None:
        await home.acts.push("q", keys(5), FULL_SYNC, 0)
        await home.queues.stop()
        await home.start()
        (gap,) = home.acts.gaps("q")
        assert (gap["what"], gap["count_at_least"], gap["count_at_most"]) == ("stopped", 5, 5)
        assert marks(home) == []
        await home.acts.push("q", keys(5), FULL_SYNC, 0)
        home.metastore.disconnect()
        await home.queues.stop()
        home.metastore.reconnect()
        await home.start()
        assert [gap["what"] for gap in home.acts.gaps("q")] == ["stopped", CRASHED]

    story(test)


async def test_what_a_node_lost_that_stays_away_is_written_down_by_another() -> None:
    """The first of the live nodes does it, after a while and not for one that lives; a node that was taken for dead and
    still holds its references marks them again."""

    ensemble = MemoryEnsemble()
    homes = [Home(ensemble=ensemble, node=name) for name in ("e1", "e2", "e3")]
    live = {"e1", "e2", "e3"}
    for home in homes:
        await home.start()
        home.facts.live = live
    one, two, three = homes
    await one.acts.push("q", keys(3), FULL_SYNC, 0)
    for home in (two, three):
        await home.until(lambda home=home: marks(home))
    await ticked(two, 10 * AWAY_MS)
    assert two.acts.gaps("q") == []
    live.discard("e1")
    for home in (three, two):
        await ticked(home)
        await ticked(home, AWAY_MS - 1_000)
    assert three.acts.gaps("q") == two.acts.gaps("q") == []
    await ticked(three, 2_000)
    assert three.acts.gaps("q") == [], "the second one leaves it to the first"
    await ticked(two, 2_000)
    await two.until(lambda: two.acts.gaps("q"))
    (gap,) = two.acts.gaps("q")
    assert (gap["what"], gap["node"], gap["count_at_most"]) == (CRASHED, "e1", FIRST_BOUND)
    await one.until(lambda: not marks(one))
    await ticked(one)
    await one.until(lambda: marks(one) == [("e1", FULL_SYNC, FIRST_BOUND)])
    for home in homes:
        await home.close()


async def left(home: Home, what: str = "held", name: str = "q") -> str:
    """What the metastore has of a queue, as text; empty when there is nothing."""
    found = await home.metastore.get(path_of(name, what))
    return "" if found is None else found.value.decode()


async def test_what_was_held_of_a_queue_that_is_delisted_goes_with_it() -> None:
    """Its marks, though the node that made them was down when it was delisted, and its records of losses; and when a
    queue of that name is registered again, it keeps what it then holds."""

    ensemble = MemoryEnsemble()
    one, two = homes = [Home(ensemble=ensemble, node=name) for name in ("e1", "e2")]
    for home in homes:
        await home.start(lead=home is one)
        home.facts.live = ("e1", "e2")
    await two.acts.push("q", keys(3), FULL_SYNC, 0)
    await two.crash()
    two.queues._queues.clear()  # its process hears of nothing any more
    one.facts.live = ("e1",)
    await one.acts.delist("q", AuditInfo("ann", one.clock.wall_ms(), "because"))
    await one.until(lambda: not one.served())
    assert "e2" in await left(one)
    await ticked(one, SWEEP_MS)
    await asyncio.sleep(0.05)
    assert (await left(one), await left(one, "lost")) == ("", "")
    await two.start(lead=False)
    await ticked(two)
    assert not two.served()
    await one.acts.register("q", {}, 0, AuditInfo("ann", one.clock.wall_ms(), "again"))
    await one.until(lambda: one.served())
    await one.acts.push("q", keys(2), FULL_SYNC, 0)
    await ticked(one, SWEEP_MS)
    assert "e1" in await left(one)
    for home in homes:
        await home.close()


def test_what_is_held_of_a_queue_that_is_delisted_while_the_metastore_fails_goes_with_it() -> None:
    """The loss could not be noted: its mark goes all the same, and this node keeps nothing of the queue."""

    async def test(home: Home) -> None:
        home.facts.live = ("e1",)
        await home.acts.push("q", keys(3), FULL_SYNC, 0)
        put = home.metastore.put

        async def refused(path: str, value: bytes, version: int | None, *rest: Any) -> int:
            if path == path_of("q", "lost"):
                raise Unavailable("for a moment")
            return await put(path, value, version, *rest)

        home.metastore.put = refused  # type: ignore[method-assign]
        with contextlib.suppress(NotReady):  # whichever comes first, the act or the hint of it
            await home.acts.delist("q", AuditInfo("ann", home.clock.wall_ms(), "because"))
        await home.until(lambda: not home.served())
        home.metastore.put = put  # type: ignore[method-assign]
        assert "e1" in await left(home)
        await ticked(home, SWEEP_MS)
        await asyncio.sleep(0.05)
        assert (await left(home), await left(home, "lost")) == ("", "")

    story(test)


async def test_a_queue_that_a_file_names_no_more_leaves_a_record_and_no_mark() -> None:
    """A node that begins again without the queue in its file writes down what its life before held, for those who have
    the queue; what one held that stays away is written down by the first of the live ones, though that has no such
    queue."""

    ensemble = MemoryEnsemble()
    homes = [Home(QueueSettings("q"), ensemble=ensemble, node=name) for name in ("e1", "e2")]
    one, two = homes
    for home in homes:
        await home.start(lead=home is one)
        home.facts.live = ("e1", "e2")
        await home.acts.push("q", keys(3), FULL_SYNC, 0)
    await one.crash()
    one.settings = (QueueSettings("other"),)
    await one.start()
    await ticked(one)
    await asyncio.sleep(0.05)
    assert "e1" not in await left(one)
    assert '"e1"' in await left(one, "lost")
    await two.until(lambda: two.acts.gaps("q"))
    (gap,) = two.acts.gaps("q")
    assert (gap["node"], gap["what"], gap["count_at_most"]) == ("e1", CRASHED, FIRST_BOUND)
    await two.crash()
    one.facts.live = ("e1",)
    await ticked(one, SWEEP_MS)
    await asyncio.sleep(0.05)
    assert "e2" in await left(one), "it may only be restarting"
    await ticked(one, SWEEP_MS)
    await asyncio.sleep(0.05)
    assert '"held": []' in await left(one)
    assert '"e2"' in await left(one, "lost")
    for home in homes:
        await home.close()


async def test_clearing_a_queue_reaches_the_lower_priorities_of_every_node() -> None:
    """One node is told; what another one holds goes, too, each as a gap of its own."""

    ensemble = MemoryEnsemble()
    one, two = homes = [Home(ensemble=ensemble, node=name) for name in ("e1", "e2")]
    for home in homes:
        await home.start(lead=home is one)
    await one.acts.push("q", keys(3), FULL_SYNC, 0)
    await two.acts.push("q", keys(4), FOLD, 0)
    await one.acts.clear("q", AuditInfo("ann", one.clock.wall_ms(), "because"))
    await two.until(lambda: len(gaps_of_lower(two)) == 2)
    gaps = gaps_of_lower(two)
    assert sorted((g["node"], g["count_at_least"], g["by"]) for g in gaps) == [("e1", 3, "ann"), ("e2", 4, "ann")]
    for home in homes:
        assert all(lower.held_count == 0 for lower in home.served()[0].machine.bulk_queues)
    for home in homes:
        await home.close()


@pytest.mark.parametrize("seed", range(4))
async def test_whatever_is_held_is_covered_however_the_metastore_fails(seed: int) -> None:
    """Pushes, fetches, ticks, crashes and lost writes in random order: at every step what is held is not more than what
    the metastore says, and a crash that takes something leaves a gap that is not smaller."""

    rng = Random(seed)
    home = Home(QueueSettings("q", queue_limit_count=3_000))
    await home.start()
    number = crashes = 0
    home.put(*(key.key for key in keys(5_000)))
    await home.drain()
    acks: list[BatchAck] = []
    for _ in range(90):
        match rng.randrange(6):
            case 0 | 1:
                count = rng.choice((1, 40, 400))
                number = (number + count) % 4_000
                if rng.random() < 0.3:
                    home.metastore.spoil(rng.choice(list(WriteFault)))
                with contextlib.suppress(IsthmusError):
                    await home.acts.push("q", keys(count, number), rng.choice((FULL_SYNC, FOLD)), 0)
            case 2 | 3:
                reply = await home.fetch(acks=acks, wait_ms=0, count=rng.choice((5, 500)))
                acks = [BatchAck(reply.batch, reply.owner_version)] if reply.items else []
            case 4:
                await ticked(home, rng.choice((0, LOWER_AFTER_MS)))
            case _:
                held = {lower.priority: lower.held_count for lower in home.served()[0].machine.bulk_queues}
                before = len(home.acts.gaps("q"))
                await home.crash()
                await home.start()
                gaps = home.acts.gaps("q")[before:]
                at_most = {gap["priority"]: gap["count_at_most"] for gap in gaps}
                assert all(at_most.get(p, 0) >= count for p, count in held.items()), (held, at_most)
                crashes += any(held.values())
                acks = []
        written = {mark.priority: mark.at_most for mark in await QueuePaths("q").held.read(home.metastore)}
        for lower in home.served()[0].machine.bulk_queues:
            assert lower.held_count <= written.get(lower.priority, 0)
    assert crashes, "the seed shows nothing"
    await home.close()


def test_bounds_rise_in_steps_up_to_the_room() -> None:
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
def test_what_is_no_list_of_marks_is_refused(value: bytes) -> None:
    """A strange value is told as such; none at all is an empty list."""
    assert QueuePaths("q").held.decode(None) == ()
    some = (BulkMark("e1", 2, 256, 7),)
    assert decode_held(encode_held(some)) == some
    with pytest.raises(CodecError):
        decode_held(value)


async def test_marks_and_records_of_losses_are_bounded() -> None:
    """More marks than there can be are refused; records beyond their number are made one, bounds added up; records of
    before there were bounds are read."""

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


def test_while_publishing_is_suspended_nothing_is_taken_in_at_any_priority() -> None:
    """Whoever pushes is told to come back, with who suspended it and why; what waited before still goes."""

    async def test(home: Home) -> None:
        home.put(b"000000")
        await home.drain()
        assert await home.acts.push("q", keys(1), FOLD, 0) == 1
        await home.acts.suspend("q", PUBLISHING, None, AuditInfo("ann", 1, "moving"))
        with pytest.raises(NotReady, match="publishing of queue q is suspended by ann: moving"):
            await home.acts.push("q", keys(1, 1), FULL_SYNC, 0)
        assert [item[5] for item in (await home.fetch()).items] == [b"000000"]
        await home.acts.resume("q", PUBLISHING, None, AuditInfo("ann", 2, ""))
        assert await home.acts.push("q", keys(1, 1), FULL_SYNC, 0) == 1

    story(test)


async def test_records_that_are_made_one_are_of_one_node_and_priority() -> None:
    """Beyond their number the oldest two of the same node and priority become one: no node is said to have lost what
    another one did."""

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
