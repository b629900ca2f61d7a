"""Commands on queues that run concurrently, or meet something unavailable: nothing is lost, done twice, or blocked."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Collection, Sequence

import pytest

from isthmus.config.settings import QueueSettings
from isthmus.queues.admin import GapChoice
from isthmus.queues.queue_documents import (
    DEFINITIONS_PATH,
    PUBLISHING,
    SERVING,
    BulkMark,
    QueueOwner,
    QueuePaths,
)
from isthmus.queues.queue_server import QueueServer
from isthmus.queues.queue_store import QueueStore
from isthmus.queues.window_rules import FULL_SYNC
from isthmus.queues.wire import BatchAck
from isthmus.repl.coordinator.routing import LEADER_WAIT_S
from isthmus.repl.metastore.port import Ambiguous, ConditionalWrite, Precondition, Unavailable, Versioned
from isthmus.repl.model.errors import BadInput, IsthmusError, NotReady
from isthmus.repl.model.keys import Key
from isthmus.repl.model.requests import Isolation
from tests.support.memory_metastore import WriteFault
from tests.support.queue_node import PARTITIONS, QueueNode, audited_node
from tests.support.queue_source import SINK, THIRD
from tests.unit.queues.admin.test_acts import ACT, audit_info, keys, settled

pytestmark = pytest.mark.virtual_time

P = PARTITIONS[0]


async def test_a_reference_that_cannot_be_read_waits_behind_the_others() -> None:
    """A partition without a leader, or a damaged object, must not block repairs of all others: an unreadable reference
    is retried after a pause, behind readable ones, and is served once it can be read."""

    async with audited_node() as queue_node:
        queue_node.put(b"a", b"b", b"x", b"z")
        await queue_node.drain()
        read, asked, away = queue_node.get_batch, 0, {b"x", b"z"}

        async def reading(
            keys: Sequence[Key], isolation: Isolation | None, room_bytes: int, **_waits: bool
        ) -> list[bytes | IsthmusError | None]:
            nonlocal asked
            asked += 1
            found = await read(keys, isolation, room_bytes)
            return [NotReady("no leader") if k.key in away else one for k, one in zip(keys, found, strict=True)]

        queue_node.get_batch = reading  # type: ignore[method-assign]
        assert await queue_node.acts.push("q", keys(b"x", b"a", b"z", b"b"), FULL_SYNC, 0) == 4
        first = await queue_node.fetch(wait_ms=500)
        assert [item[5] for item in first.items] == [b"a", b"b"]
        bulk = queue_node.served()[0].machine.bulk_queues[0]
        assert (bulk.waiting_count, bulk.in_flight_count) == (2, 2)
        asked = 0
        acks = [BatchAck(first.batch, first.owner_version)]
        assert (await queue_node.fetch(acks=acks, wait_ms=1_500)).items == []
        assert asked <= 3
        away.clear()
        assert [item[5] for item in (await queue_node.fetch(wait_ms=5_000)).items] == [b"x", b"z"]


async def test_a_fetch_does_not_sit_where_a_partition_has_no_leader() -> None:
    """The readable references of a bulk batch are served at once, and real-time changes do not wait for the others."""

    async with audited_node() as queue_node:
        queue_node.put(b"a", b"x")
        await queue_node.drain()
        read = queue_node.get_batch

        async def reading(
            keys: Sequence[Key], isolation: Isolation | None, room_bytes: int, *, waits: bool = True
        ) -> list[bytes | IsthmusError | None]:
            if waits:
                await asyncio.sleep(LEADER_WAIT_S)
            found = await read(keys, isolation, room_bytes)
            return [NotReady("no leader") if k.key == b"x" else one for k, one in zip(keys, found, strict=True)]

        queue_node.get_batch = reading  # type: ignore[method-assign]
        began = asyncio.get_running_loop().time()
        for key in (b"a", b""):
            assert await queue_node.acts.push("q", keys(*filter(None, (b"x", key))), FULL_SYNC, 0) > 0
            fetched = asyncio.create_task(queue_node.fetch(wait_ms=5_000))
            await asyncio.sleep(0.05)
            if not key:
                queue_node.put(b"new")
            reply = await fetched
            assert [item[5] for item in reply.items] == [key or b"new"]
            await queue_node.fetch(acks=[BatchAck(reply.batch, reply.owner_version)], wait_ms=0)
        assert asyncio.get_running_loop().time() - began < LEADER_WAIT_S


async def test_definitions_are_followed_one_after_the_other() -> None:
    """A hint and a command announce a new queue at once: it is created once, or references pushed into the first one
    would be lost. A queue that is delisted during its creation does not exist, and commands for a queue meanwhile are
    executed."""

    async with audited_node() as queue_node:
        made, gate, make, begin = [], asyncio.Event(), queue_node.queues._build, queue_node.queues.bulk_marks.begin

        def making(settings: QueueSettings) -> QueueServer:
            made.append(settings.name)
            return make(settings)

        async def beginning(queue: QueueServer) -> None:
            await gate.wait()
            await begin(queue)

        async def being_made(name: str) -> None:
            await queue_node.eventually(lambda: name in made)
            await asyncio.sleep(0.05)

        queue_node.queues._build = making  # type: ignore[method-assign]
        queue_node.queues.bulk_marks.begin = beginning  # type: ignore[method-assign]
        registering = asyncio.create_task(queue_node.acts.register("x", {}, 0, audit_info(queue_node)))
        await being_made("x")
        await queue_node.queues.queue_store.suspend("x", (SERVING,), None, audit_info(queue_node))
        await asyncio.sleep(0.05)
        gate.set()
        await registering
        await queue_node.eventually(lambda: queue_node.queues.named("x").serving_suspension is not None, seconds=2)
        assert made == ["x"]
        gate.clear()
        await queue_node.queues.queue_store.register("y", {}, 0, audit_info(queue_node))
        await being_made("y")
        await queue_node.queues.queue_store.delist("y", audit_info(queue_node))
        await asyncio.sleep(0.05)
        gate.set()
        await queue_node.eventually(lambda: "y" not in queue_node.queues.machines(), seconds=2)
        await asyncio.sleep(0.05)
        assert sorted(queue_node.queues.machines()) == ["q", "x"]


@pytest.mark.parametrize("waits", [False, True])
async def test_a_clear_while_publishing_is_suspended_keeps_the_gap(waits: bool) -> None:
    """Changes left out meanwhile stay in the growing gap, from the first one on, whether the cursor has passed it or a
    change waits below it; the changes that the clear gives up are a gap of their own (R-GAP)."""

    async with audited_node() as queue_node:
        queue_node.put(b"a")
        await queue_node.drain()
        if waits:
            queue_node.put(b"b")
        await queue_node.acts.suspend("q", PUBLISHING, None, audit_info(queue_node))
        await settled(queue_node)
        queue_node.put(b"left", b"out")
        queue_node.clock.skew_ms += 2_000
        await queue_node.acts.clear("q", audit_info(queue_node))
        await settled(queue_node)
        queue_node.clock.skew_ms += 2_000
        await queue_node.acts.resume("q", PUBLISHING, None, audit_info(queue_node))
        await settled(queue_node)
        assert await queue_node.drain() == []
        rows = {row.key: row.offset for row in queue_node.store.changes(P, 0, 100)}
        shown = [
            (gap["what"], [key for key, offset in rows.items() if gap["from_offset"] <= offset < gap["upto_offset"]])
            for gap in queue_node.acts.gaps("q")
            if gap["partition"] == P
        ]
        assert shown == [("cleared", [b"b"])] * waits + [("publishing-suspended", [b"left", b"out"])]


async def test_a_clear_applied_late_records_the_end_time_of_its_gap() -> None:
    """It covers its whole second, including changes made after the command: the gap's time must include them, or a
    full-sync that began in between would close it."""

    async with audited_node() as queue_node:
        await queue_node.fetch(wait_ms=0)
        await settled(queue_node)
        queue_node.queues.leadership(P, False, 0)
        second = queue_node.clock.wall_ms() // 1000 + 2
        queue_node.clock.wall_ms = lambda: second * 1000 + 300  # type: ignore[method-assign]
        await queue_node.acts.clear("q", audit_info(queue_node))
        queue_node.clock.wall_ms = lambda: second * 1000 + 900  # type: ignore[method-assign]
        queue_node.put(b"in the second of the act")
        queue_node.clock.wall_ms = lambda: second * 1000 + 1100  # type: ignore[method-assign]
        queue_node.put(b"after it")
        queue_node.lead(P)
        await settled(queue_node)
        (gap,) = [gap for gap in queue_node.acts.gaps("q") if gap["partition"] == P]
        left_out = [
            row for row in queue_node.store.changes(P, 0, 9) if gap["from_offset"] <= row.offset < gap["upto_offset"]
        ]
        assert [row.key for row in left_out] == [b"in the second of the act"]
        assert gap["upto_ms"] >= left_out[0].time_ms


async def test_a_queue_that_is_only_beginning_takes_nothing_in() -> None:
    """Its earlier references are not known yet, so a push gets NotReady."""

    queue_node = QueueNode()
    read, gate = queue_node.metastore.get, asyncio.Event()

    async def slow(path: str) -> Versioned | None:
        await gate.wait()
        return await read(path)

    queue_node.metastore.get = slow  # type: ignore[method-assign]
    starting = asyncio.create_task(queue_node.start())
    await asyncio.sleep(0.02)
    with pytest.raises(NotReady, match="beginning"):
        await queue_node.acts.push("q", keys(b"a"), FULL_SYNC, 0)
    gate.set()
    await starting
    assert await queue_node.acts.push("q", keys(b"a"), FULL_SYNC, 0) == 1
    await queue_node.close()


@pytest.mark.logs_errors("queue.not_understood")
async def test_a_queue_that_this_version_does_not_understand_stops_no_other() -> None:
    """A later version registers a queue with a rule that this version does not know: that queue is missing here, and
    all others work, also after a restart of the node."""

    async with audited_node() as queue_node:
        rows = {name: {"filter": rule} for name, rule in (("later", "key_begins:a"), ("plain", "any"))}
        await queue_node.metastore.put(DEFINITIONS_PATH, json.dumps(rows).encode(), None)
        await queue_node.eventually(lambda: list(queue_node.queues.machines()) == ["q", "plain"])
        await queue_node.crash()
        await queue_node.start()
        assert list(queue_node.queues.machines()) == ["q", "plain"]
        with pytest.raises(BadInput, match="there is one already"):
            await queue_node.acts.register("later", {}, 0, audit_info(queue_node))


async def test_a_gap_that_grows_while_others_are_closed_stays() -> None:
    """Gaps are closed one partition after the other. An extension in the meantime, under the same id, was not part of
    the proof."""

    async with audited_node() as queue_node:
        await settled(queue_node)
        # Without a fetch the cursor stays at the end of the first clear, and the second gap joins the first.
        for partition in PARTITIONS:
            queue_node.put(b"a", partition=partition)
        await queue_node.acts.clear("q", audit_info(queue_node))
        await settled(queue_node)
        proven = queue_node.acts.gaps("q")
        write = queue_node.write_cursor

        async def writing(partition: int, queue: bytes, payload: bytes) -> int:
            queue_node.write_cursor = write  # type: ignore[method-assign]
            queue_node.clock.skew_ms += 2_000
            queue_node.put(b"b", partition=PARTITIONS[1])
            await queue_node.acts.clear("q", audit_info(queue_node))
            await queue_node.eventually(
                lambda: queue_node.queues.named("q").machine.windows[PARTITIONS[1]].state.command_version == 2
            )
            return await write(partition, queue, payload)

        queue_node.write_cursor = writing  # type: ignore[method-assign]
        chosen = GapChoice(tuple(gap["id"] for gap in proven), upto_ms=max(gap["upto_ms"] for gap in proven))
        assert await queue_node.acts.close_gaps("q", chosen, ACT) == 1
        rows = {row.key: row.offset for row in queue_node.store.changes(PARTITIONS[1], 0, 9)}
        left = [gap for gap in queue_node.acts.gaps("q") if gap["partition"] == PARTITIONS[1]]
        assert any(gap["from_offset"] <= rows[b"b"] < gap["upto_offset"] for gap in left)


async def test_a_release_and_the_position_of_the_next_owner_are_one_write(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command has the position at which the next owner begins. Removed before it, the owner would leave the queue
    to one that begins at the old position, without a gap."""

    async with audited_node() as queue_node:
        queue_node.put(b"a")
        await queue_node.drain()
        put_all = queue_node.metastore.put_all
        attempts: list[set[str]] = []

        async def refused(writes: Collection[ConditionalWrite], unmoved: Collection[Precondition] = ()) -> None:
            attempts.append({one.path for one in writes})
            raise Unavailable("the metastore is away")

        monkeypatch.setattr(queue_node.metastore, "put_all", refused)
        with pytest.raises(NotReady):
            await queue_node.acts.release("q", 0, audit_info(queue_node))
        assert attempts == [{"/queues/q/owner", "/queues/q/decree"}]
        monkeypatch.setattr(queue_node.metastore, "put_all", put_all)
        await queue_node.queues.refresh("q")
        (queue,) = queue_node.served()
        assert queue.stored.owner is not None
        assert queue.stored.owner.cluster == SINK
        assert queue.stored.command is None


async def test_a_release_whose_answer_is_lost_is_made_once() -> None:
    """The write is repeated, finds itself, and the next owner begins where the first one was written to."""

    async with audited_node() as queue_node:
        queue_node.put(b"a")
        await queue_node.drain()
        queue_node.metastore.spoil(WriteFault.ANSWER_LOST)
        await queue_node.acts.release("q", 0, audit_info(queue_node))
        (queue,) = queue_node.served()
        assert queue.stored.owner is not None
        assert queue.stored.owner.cluster == b""
        assert queue.stored.command is not None
        assert queue.stored.command.version == 1
        assert await queue_node.drain(cluster=THIRD) == [b"a"]


@pytest.mark.parametrize("joined", ["settings", "bulk"])
async def test_of_two_registrations_of_a_name_the_later_one_changes_nothing(joined: str) -> None:
    """The queue of the other one may be in use by then: it keeps where it begins, its owner and its marks. A repeated
    attempt after a lost answer looks again, too."""

    async with audited_node() as queue_node:
        metastore, store = queue_node.metastore, queue_node.queues.queue_store
        await store.register("earlier", {}, 0, ACT)
        other, put_all, paths = QueueStore(metastore, {}), metastore.put_all, QueuePaths("x")
        await store.set_marks("x", "e9", [BulkMark("e9", 2, 1, 5)])  # left by an earlier queue

        async def slow(writes: Collection[ConditionalWrite], unmoved: Collection[Precondition] = ()) -> None:
            if {one.path for one in writes} & {*getattr(paths, joined).paths}:
                metastore.put_all = put_all  # type: ignore[method-assign]
                await other.register("x", {}, 7_000, ACT)
                await other.take_ownership("x", QueueOwner(SINK, "sink", 1, 9, "n3"), lambda _owner: True)
                await other.set_marks("x", "e1", [BulkMark("e1", 2, 7, 5)])
            await put_all(writes, unmoved)

        metastore.put_all = slow  # type: ignore[method-assign]
        with pytest.raises(BadInput, match="there is one already"):
            await store.register("x", {}, 9_000, ACT._replace(by="bob"))
        settings, bulk = await paths.settings.read(metastore), await paths.bulk.read(metastore)
        command, owner = settings[paths.command], settings[paths.owner]
        assert command is not None
        assert owner is not None
        assert (command.start_ms, command.by, owner.cluster) == (7_000, "ann", SINK)
        assert bulk[paths.held] == (BulkMark("e1", 2, 7, 5),)


@pytest.mark.parametrize("placed", [False, True])
async def test_a_release_whose_answer_is_lost_does_not_release_the_next_owner(placed: bool) -> None:
    """The intended next owner fetches many times a second, and takes the queue before the release is repeated: it keeps
    the queue, also if another command has followed."""

    async with audited_node() as queue_node:
        queue_node.put(b"a")
        await queue_node.drain()
        metastore, store = queue_node.metastore, queue_node.queues.queue_store
        put_all = metastore.put_all

        async def lost(writes: Collection[ConditionalWrite], unmoved: Collection[Precondition] = ()) -> None:
            metastore.put_all = put_all  # type: ignore[method-assign]
            await put_all(writes, unmoved)
            next_owner = QueueOwner(THIRD, "third", 1, 9, "n3")
            await store.take_ownership("q", next_owner, lambda owner: not owner.cluster)
            if placed:
                await store.place("q", ((P, 0),), ACT)
            raise Ambiguous("the answer was lost")

        metastore.put_all = lost  # type: ignore[method-assign]
        await queue_node.acts.release("q", 0, audit_info(queue_node))
        (queue,) = queue_node.served()
        assert queue.stored.owner is not None
        assert queue.stored.owner.cluster == THIRD
        assert queue.stored.command is not None
        assert queue.stored.command.version == 1 + placed
        await queue_node.acts.release("q", 0, ACT)  # another act, which releases the next owner
        with pytest.raises(BadInput, match="no owner"):
            await queue_node.acts.release("q", 0, ACT._replace(reason="once more"))


async def test_a_filter_and_limits_are_one_write_and_are_made_once() -> None:
    """Both are set together; after a lost answer the repeated write finds both as they are to be."""

    async with audited_node() as queue_node:
        queue_node.metastore.spoil(WriteFault.ANSWER_LOST)
        await queue_node.acts.change_settings("q", {"filter": "any", "queue_limit_count": 7}, audit_info(queue_node))
        (queue,) = queue_node.served()
        assert queue.stored.limits is not None
        assert queue.stored.limits.values == {"queue_limit_count": 7}
        assert queue.stored.command is not None
        assert queue.stored.command.version == 1
