"""The source actor: cursors, owners, long polls, suspensions, restarts."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from msgspec.structs import replace

import isthmus.queues.backlog_count as counting_room
import isthmus.queues.long_poll as polls_room
import isthmus.queues.queue_server as serving_room
from isthmus.config.settings import QueueSettings
from isthmus.queues import pacing
from isthmus.queues.cursors import decode_state, position_of
from isthmus.queues.queue_documents import AuditInfo, QueueState
from isthmus.queues.status import HELP
from isthmus.queues.wire import SERVING, SUSPENDED, BatchAck, OwnCluster, OwnedByOther, UnknownQueue
from isthmus.repl.model.errors import BadConfig, BadInput, NotReady, OutcomeUnknown, Overloaded
from isthmus.repl.model.ports import AppliedEntries
from tests.support.memory_metastore import MemoryEnsemble, WriteFault
from tests.support.queue_listings import listed_queues
from tests.support.queue_node import PARTITIONS, QueueNode
from tests.support.queue_source import OURS, SINK, THIRD

pytestmark = pytest.mark.virtual_time

P, Q = PARTITIONS


def keys(reply: Any) -> list[bytes]:
    return [item[5] for item in reply.items]


async def test_a_new_queue_begins_at_the_beginning_of_every_led_partition() -> None:
    """The leader of a partition in which the queue has no position writes a CURSOR entry with start 0."""

    async with QueueNode() as queue_node:
        for partition in PARTITIONS:
            rows = queue_node.store.cursor(partition, b"q")
            assert rows.entry is not None
            assert decode_state(rows.entry).cursor == 0


async def test_writes_before_the_registration_of_a_queue_are_offered() -> None:
    """A queue registered later starts at 0 and gets what is there, each key once."""

    queue_node = QueueNode()
    await queue_node.start(lead=False)
    queue_node.put(b"a", b"b", b"a")
    for partition in PARTITIONS:
        queue_node.lead(partition)
    assert sorted(await queue_node.drain()) == [b"a", b"b"]
    await queue_node.close()


async def test_the_first_fetch_makes_its_cluster_the_owner_and_another_is_refused_by_name() -> None:
    """Ownership is one conditional write; it holds for every later fetch, also after a restart."""

    async with QueueNode() as queue_node:
        queue_node.put(b"a")
        reply = await queue_node.fetch()
        assert keys(reply) == [b"a"]
        assert (reply.cluster, reply.cluster_name, reply.owner_version) == (OURS, "east", 1)
        found = await queue_node.metastore.get("/queues/q/owner")
        assert found is not None
        owner = json.loads(found.value)
        assert (owner["owner"], owner["cluster"], owner["version"], owner["by"]) == (SINK.hex(), "west", 1, "w1")
        for partition in PARTITIONS:
            position = position_of(queue_node.store.cursor(partition, b"q"), 0)
            assert position is not None
            assert (position.state.owner, position.state.owner_version) == (SINK, 1)
        for _ in range(2):
            with pytest.raises(OwnedByOther, match=f"west.*{SINK.hex()}"):
                await queue_node.fetch(cluster=THIRD)
            await queue_node.crash()
            await queue_node.start()


async def test_one_owner_though_two_clusters_come_at_once_and_writes_are_ambiguous() -> None:
    """For any outcome of the conditional write, exactly one of two clusters owns the queue."""

    for fault in WriteFault:
        queue_node = QueueNode()
        await queue_node.start()
        queue_node.metastore.spoil(fault)
        answers = await asyncio.gather(
            queue_node.fetch(wait_ms=0), queue_node.fetch(cluster=THIRD, wait_ms=0), return_exceptions=True
        )
        assert sum(isinstance(answer, OwnedByOther) for answer in answers) == 1, answers
        queue_node.metastore.deliver_late()
        queue_node.put(b"a")
        answers = await asyncio.gather(
            queue_node.fetch(wait_ms=500), queue_node.fetch(cluster=THIRD, wait_ms=500), return_exceptions=True
        )
        assert sum(isinstance(answer, OwnedByOther) for answer in answers) == 1, answers
        assert [keys(answer) for answer in answers if not isinstance(answer, BaseException)] == [[b"a"]]
        await queue_node.close()


async def test_unknown_queues_and_a_fetch_by_the_own_cluster_are_refused() -> None:
    """An unknown queue and a fetch by the cluster that owns the data have errors of their own."""

    async with QueueNode() as queue_node:
        with pytest.raises(UnknownQueue, match="'other'"):
            await queue_node.fetch(queue="other")
        with pytest.raises(OwnCluster, match="east"):
            await queue_node.fetch(cluster=OURS)


async def test_a_waiting_fetch_is_answered_by_the_next_change() -> None:
    """The long poll ends when a change is applied, not at its time-out."""

    async with QueueNode() as queue_node:
        assert keys(await queue_node.fetch(wait_ms=0)) == []
        waiting = asyncio.ensure_future(queue_node.fetch(wait_ms=20_000))
        await queue_node.eventually(lambda: queue_node.served()[0].waiters)
        loop = asyncio.get_running_loop()
        began = loop.time()
        queue_node.put(b"a")
        assert keys(await waiting) == [b"a"]
        assert loop.time() - began < 5
        began = loop.time()
        assert keys(await queue_node.fetch(wait_ms=100)) == []
        assert loop.time() - began >= 0.09


async def test_long_polls_end_each_at_its_own_time() -> None:
    """One timer serves all waiting fetches: a short one ends before a longer one that came first, which stays; a
    cancelled one ends no other."""

    async with QueueNode() as queue_node:
        loop = asyncio.get_running_loop()
        began = loop.time()
        long = asyncio.ensure_future(queue_node.fetch(wait_ms=1_000))
        await queue_node.eventually(lambda: len(queue_node.served()[0].waiters) == 1)
        left = asyncio.ensure_future(queue_node.fetch(wait_ms=50, link=1))
        short = asyncio.ensure_future(queue_node.fetch(wait_ms=200, link=2))
        await queue_node.eventually(lambda: len(queue_node.served()[0].waiters) == 3)
        left.cancel()
        assert keys(await short) == []
        assert loop.time() - began >= 0.19
        assert not long.done()
        assert keys(await long) == []
        assert loop.time() - began >= 0.99
        assert not queue_node.served()[0].waiters


async def test_a_flood_is_gathered_and_still_arrives(monkeypatch: pytest.MonkeyPatch) -> None:
    """At a high rate a waiting fetch returns many changes, and none waits for ever."""

    async with QueueNode() as queue_node:
        await queue_node.fetch(wait_ms=0)
        waiting = asyncio.ensure_future(queue_node.fetch())
        await queue_node.eventually(lambda: queue_node.served()[0].waiters)
        machine = queue_node.served()[0].machine
        monkeypatch.setattr(pacing, "SILENCE_MS", 60_000)
        machine._pacing.arrived(0, queue_node.clock.now_ms())
        machine._pacing._gather_ms = 300  # the real 10 ms pass between two lines of a busy machine
        queue_node.put(b"a")
        assert machine.due_in_ms(queue_node.clock.now_ms()) != 0
        await asyncio.sleep(0)
        assert not waiting.done()
        queue_node.put(b"b", b"c")
        assert keys(await waiting) == [b"a", b"b", b"c"]


async def test_an_acknowledged_change_never_comes_again_and_an_unacknowledged_one_does() -> None:
    """The cursor is durable: after a crash all changes above the saved one are served again, and none below it."""

    async with QueueNode() as queue_node:
        queue_node.put(b"a", b"b")
        first = await queue_node.fetch()
        assert keys(first) == [b"a", b"b"]
        queue_node.put(b"c")
        second = await queue_node.fetch(acks=[BatchAck(first.batch, first.owner_version)])
        assert keys(second) == [b"c"]
        queue_node.queues.tick()
        await queue_node.crash()
        await queue_node.start()
        again = await queue_node.fetch(acks=[BatchAck(second.batch, second.owner_version)])
        assert keys(again) == [b"c"], "an acknowledgement from before the crash settles nothing"
        await queue_node.fetch(acks=[BatchAck(again.batch, again.owner_version)], count=0)
        await queue_node.queues.stop()
        await queue_node.start()
        assert await queue_node.drain() == [], "a stop saves the cursor"


async def test_cursors_are_saved_at_most_once_a_tick_and_only_when_they_moved() -> None:
    """Acknowledgements write nothing by themselves; an idle queue writes nothing at all."""

    async with QueueNode() as queue_node:
        for number in range(5):
            queue_node.put(b"%d" % number)
            await queue_node.drain()
        before = queue_node.soft_writes
        queue_node.queues.tick()
        assert queue_node.soft_writes <= before + len(PARTITIONS)
        saved = queue_node.soft_writes
        queue_node.queues.tick()
        assert queue_node.soft_writes == saved


async def test_failed_changes_of_a_batch_come_again_and_the_others_do_not() -> None:
    """An acknowledgement may name items that failed; the cursor waits for them."""

    async with QueueNode() as queue_node:
        queue_node.put(b"a", b"b", b"c")
        reply = await queue_node.fetch()
        reply = await queue_node.fetch(acks=[BatchAck(reply.batch, reply.owner_version, (1,))])
        assert keys(reply) == [b"b"]
        listing = (await listed_queues(queue_node.queues))[0]
        assert (listing["acknowledged"], listing["redelivered"], listing["in_flight"]) == (2, 1, 1)


async def test_a_batch_is_served_again_when_its_lease_is_over() -> None:
    """A sink that takes a batch and disappears delays its changes no longer than the lease."""

    async with QueueNode() as queue_node:
        queue_node.put(b"a")
        assert keys(await queue_node.fetch()) == [b"a"]
        assert keys(await queue_node.fetch(link=1, wait_ms=0)) == []
        waiting = asyncio.ensure_future(queue_node.fetch(link=1, wait_ms=60_000))
        await queue_node.eventually(lambda: queue_node.served()[0].waiters)
        queue_node.clock.skew_ms += QueueSettings("q").lease_ms
        queue_node.queues.tick()
        assert keys(await waiting) == [b"a"]


async def test_several_fetches_at_once_get_distinct_changes() -> None:
    """Parallel long polls share a queue without serving anything twice."""

    async with QueueNode() as queue_node:
        polls = [asyncio.ensure_future(queue_node.fetch(link=link, count=1)) for link in range(4)]
        await queue_node.eventually(lambda: len(queue_node.served()[0].waiters) == 4)
        queue_node.put(b"a", b"b")
        queue_node.put(b"c", b"d", partition=Q)
        got = [key for reply in await asyncio.gather(*polls) for key in keys(reply)]
        assert sorted(got) == [b"a", b"b", b"c", b"d"]


async def test_a_fetch_that_is_given_up_takes_nothing_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cancelling a long poll, or a fetch that reads its objects in a thread, leaves every change to the next fetch."""
    monkeypatch.setattr(serving_room, "READ_HERE_COUNT", 0)

    async with QueueNode() as queue_node:
        await queue_node.fetch(wait_ms=0)
        waiting = asyncio.ensure_future(queue_node.fetch())
        await queue_node.eventually(lambda: queue_node.served()[0].waiters)
        queue_node.put(b"a", size=1_000_000)
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        assert waiting.cancelled()
        assert keys(await queue_node.fetch(link=1)) == [b"a"]
        assert not queue_node.served()[0].waiters


async def test_a_backlog_is_drained_from_the_change_index_in_bounded_memory() -> None:
    """Changes that piled up unseen arrive once each, current, with few references in memory at any time."""

    async with QueueNode() as queue_node:
        number = 0
        for _ in range(30):
            queue_node.put(*(b"p%d" % (number + n) for n in range(100)))
            queue_node.put(*(b"q%d" % (number + n) for n in range(100)), partition=Q)
            number += 50
        distinct = 2 * (number + 50)
        machine = queue_node.served()[0].machine
        assert machine.budget.references == 0, "nobody fetches: nothing is kept"
        assert (await listed_queues(queue_node.queues))[0]["waiting"] == distinct
        got: list[bytes] = []
        acks: list[BatchAck] = []
        while len(got) < distinct:
            reply = await queue_node.fetch(acks=acks)
            assert machine.budget.references <= 2 * (2048 + 1024) + 512
            assert all(len(item[8]) > 0 for item in reply.items)
            got += keys(reply)
            acks = [BatchAck(reply.batch, reply.owner_version)]
        await queue_node.fetch(acks=acks, count=0)
        assert len(got) == len(set(got)) == distinct
        listing = (await listed_queues(queue_node.queues))[0]
        assert (listing["waiting"], listing["in_flight"], listing["oldest_age_ms"]) == (0, 0, None)
        assert machine.budget.references == 0


async def test_waiting_is_unknown_rather_than_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    """If too many rows would have to be read, or a partition is not loaded yet, the listing has None."""

    async with QueueNode() as queue_node:
        monkeypatch.setattr(counting_room, "ROWS_MAX", 4_000)
        queue_node.put(*(b"%d" % n for n in range(9_000)))
        assert (await listed_queues(queue_node.queues))[0]["waiting"] is None
        queue_node.queues.leadership(99, True, 0)
        assert (await listed_queues(queue_node.queues))[0]["waiting"] is None


async def test_a_suspended_queue_serves_nothing_over_restarts_until_it_is_resumed() -> None:
    """Suspensions live in the metastore with who, when and why, and reach every node of the cluster."""

    ensemble = MemoryEnsemble()
    queue_node, other = QueueNode(ensemble=ensemble), QueueNode(ensemble=ensemble)
    await queue_node.start()
    await other.start()
    queue_node.put(b"a")
    waiting = asyncio.ensure_future(queue_node.fetch(wait_ms=0))
    await waiting
    await queue_node.acts.suspend("q", "serving", None, AuditInfo("ann", 1, "maintenance"))
    await other.eventually(lambda: other.served()[0].serving_suspension is not None)
    await queue_node.crash()
    await queue_node.start()
    for house in (queue_node, other):
        listing = (await listed_queues(house.queues))[0]
        assert listing["serving"] == "suspended"
        assert (listing["suspended"]["by"], listing["suspended"]["reason"]) == ("ann", "maintenance")
        assert "maintenance" in listing["reason"]
        assert house.queues.status()["reason"] == "suspended: q"
    queue_node.put(b"b")
    reply = await queue_node.fetch(wait_ms=50)
    assert (reply.items, reply.state) == ([], SUSPENDED)
    poll = asyncio.ensure_future(queue_node.fetch(wait_ms=20_000))
    await queue_node.eventually(lambda: queue_node.served()[0].waiters)
    await other.acts.resume("q", "serving", None, AuditInfo("bob", 2, ""))
    reply = await poll
    assert b"b" in keys(reply)
    assert reply.state == SERVING
    with pytest.raises(BadInput, match="publishing"):
        await queue_node.acts.suspend("q", "everything", None, AuditInfo("ann", 3, ""))
    with pytest.raises(UnknownQueue):
        await queue_node.acts.suspend("x", "serving", None, AuditInfo("ann", 3, ""))
    await queue_node.close()
    await other.close()


async def test_an_owner_made_at_another_node_is_learned_from_the_metastore() -> None:
    """Any node of the owner may fetch at any node of the source; another cluster is refused at all of them."""

    ensemble = MemoryEnsemble()
    queue_node, other = QueueNode(ensemble=ensemble), QueueNode(ensemble=ensemble)
    await queue_node.start()
    await other.start()
    await queue_node.fetch(wait_ms=0)
    with pytest.raises(OwnedByOther):
        await other.fetch(cluster=THIRD, wait_ms=0)
    other.put(b"a")
    assert keys(await other.fetch()) == [b"a"]
    await queue_node.close()
    await other.close()


async def test_an_owner_made_during_a_read_of_the_documents_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """A read that got the documents before the first fetch, and ends after it, does not undo the take-over."""

    async with QueueNode() as queue_node:
        queue_node.put(b"a")
        queue = queue_node.queues.named("q")
        refresh, apply_state = queue.documents.refresh, queue.apply_state
        may_end = asyncio.Event()
        owners: list[str | None] = []

        async def late() -> QueueState:
            state = await refresh()
            await may_end.wait()
            return state

        def noted(state: QueueState, node: str) -> None:
            owners.append(None if state.owner is None else state.owner.name)
            apply_state(state, node)

        monkeypatch.setattr(queue.documents, "refresh", late)
        monkeypatch.setattr(queue, "apply_state", noted)
        reading = asyncio.create_task(queue_node.queues.refresh("q"))
        await asyncio.sleep(0.01)
        assert keys(await queue_node.fetch()) == [b"a"]
        may_end.set()
        await reading
        assert len(owners) > 1
        assert set(owners) == {"west"}


async def test_a_queue_taken_over_during_each_read_keeps_its_newest_owner(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reads that are never newer than the last take-over are not applied: the caller learns that it has to retry."""

    async with QueueNode() as queue_node:
        queue_node.put(b"a")
        assert keys(await queue_node.fetch()) == [b"a"]
        queue = queue_node.queues.named("q")
        refresh, owner = queue.documents.refresh, queue.stored.owner
        assert owner is not None

        async def overtaken() -> QueueState:
            state, before = await refresh(), queue.stored
            assert before.owner is not None
            queue.stored = before._replace(owner=replace(before.owner, version=before.owner.version + 1))
            return state

        monkeypatch.setattr(queue.documents, "refresh", overtaken)
        with pytest.raises(NotReady, match="was taken over during each of 3 reads"):
            await queue_node.queues.refresh("q")
        assert queue.stored.owner == replace(owner, version=owner.version + 3)


async def test_refused_cursor_entries_are_tried_again() -> None:
    """A write path that is not ready, or whose outcome is unknown, delays a queue and loses nothing."""

    queue_node = QueueNode()
    queue_node.refusals = [NotReady("election"), OutcomeUnknown("lost"), NotReady("election")]
    await queue_node.start()
    queue_node.refusals = [NotReady("election")]
    queue_node.put(b"a")
    queue_node.put(b"b", partition=Q)
    assert sorted(await queue_node.drain()) in ([b"a", b"b"], [b"a"], [b"b"])
    queue_node.clock.skew_ms += 1_000
    queue_node.queues.tick()
    await queue_node.eventually(lambda: not queue_node.served()[0].machine.wanted_cursors(0))
    await queue_node.drain()
    for partition in PARTITIONS:
        assert queue_node.served()[0].machine.windows[partition].advance() == queue_node.fake_store.ends[partition]
    await queue_node.close()


async def test_without_the_metastore_owned_queues_serve_and_others_wait() -> None:
    """H31: source queues go on during an outage; only what needs a decision is refused, as retryable."""

    queue_node = QueueNode(QueueSettings("q"), QueueSettings("new"))
    await queue_node.start()
    await queue_node.fetch(wait_ms=0)
    queue_node.metastore.disconnect()
    queue_node.put(b"a")
    assert keys(await queue_node.fetch()) == [b"a"]
    with pytest.raises(NotReady):
        await queue_node.fetch(queue="new")
    with pytest.raises(NotReady):
        await queue_node.acts.suspend("q", "serving", None, AuditInfo("ann", 1, ""))
    queue_node.metastore.reconnect()
    assert keys(await queue_node.fetch(queue="new")) == [b"a"]
    await queue_node.close()


async def test_changes_of_an_outage_are_read_after_it() -> None:
    """A hint that came while the metastore was away is followed once it is back."""

    ensemble = MemoryEnsemble()
    queue_node, other = QueueNode(ensemble=ensemble), QueueNode(ensemble=ensemble)
    await queue_node.start()
    await other.start()
    await other.acts.suspend("q", "serving", None, AuditInfo("ann", 1, ""))
    queue_node.metastore.disconnect()
    await asyncio.sleep(0.02)
    queue_node.metastore.reconnect()
    await queue_node.eventually(lambda: queue_node.served()[0].serving_suspension is not None)
    await queue_node.close()
    await other.close()


async def test_a_partition_that_is_led_elsewhere_is_not_served_here_and_resumes_where_it_stood() -> None:
    """Losing leadership saves the cursor and drops the window; after its return no acknowledged change is served
    again."""

    async with QueueNode() as queue_node:
        queue_node.put(b"a")
        reply = await queue_node.fetch()
        await queue_node.fetch(acks=[BatchAck(reply.batch, reply.owner_version)], wait_ms=0)
        queue_node.queues.leadership(P, False, queue_node.fake_store.ends[P])
        queue_node.put(b"b")
        assert keys(await queue_node.fetch(wait_ms=50)) == []
        queue_node.lead(P)
        assert await queue_node.drain() == [b"b"]


async def test_changes_of_a_follower_are_not_offered() -> None:
    """I-Q-COMMITTED: only the leader's apply feeds the queue."""

    async with QueueNode() as queue_node:
        await queue_node.fetch(wait_ms=0)
        entry = queue_node.factory.data(P, b"a")
        queue_node.queues.applied([AppliedEntries(P, [entry], False), AppliedEntries(77, [entry], True)])
        assert keys(await queue_node.fetch(wait_ms=20)) == []


async def test_stop_answers_the_fetches_that_wait() -> None:
    """A stopping node does not block sinks: waiting fetches get an answer, later ones a refusal."""

    async with QueueNode() as queue_node:
        poll = asyncio.ensure_future(queue_node.fetch(wait_ms=30_000))
        await queue_node.eventually(lambda: queue_node.served()[0].waiters)
        await queue_node.queues.stop()
        assert (await asyncio.wait_for(poll, 5)).items == []
        with pytest.raises(NotReady):
            await queue_node.fetch()


async def test_more_waiting_fetches_than_the_limit_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The number of long polls is bounded; one more gets Overloaded."""

    async with QueueNode() as queue_node:
        monkeypatch.setattr(polls_room, "WAITING_FETCHES_MAX", 2)
        polls = [asyncio.ensure_future(queue_node.fetch(link=link, wait_ms=300)) for link in range(2)]
        await queue_node.eventually(lambda: len(queue_node.served()[0].waiters) == 2)
        with pytest.raises(Overloaded):
            await queue_node.fetch(link=2)
        queue_node.put(b"a", b"b")
        await asyncio.gather(*polls)


async def test_queues_of_one_node_are_served_apart() -> None:
    """Two queues hold their own cursors and owners over the same changes."""

    async with QueueNode(QueueSettings("q"), QueueSettings("r")) as queue_node:
        queue_node.put(b"a")
        assert keys(await queue_node.fetch(queue="q")) == [b"a"]
        assert keys(await queue_node.fetch(queue="r", cluster=THIRD)) == [b"a"]
        listing = {row["name"]: row for row in await listed_queues(queue_node.queues)}
        assert listing["q"]["owner"]["uuid"] == SINK.hex()
        assert listing["r"]["owner"]["uuid"] == THIRD.hex()


async def test_every_sample_has_a_help_line_and_the_listing_is_json() -> None:
    """Names of metrics are explained, counters only rise, and operators get plain values."""

    async with QueueNode() as queue_node:
        queue_node.put(b"a")
        reply = await queue_node.fetch()
        await queue_node.fetch(acks=[BatchAck(reply.batch, reply.owner_version)], wait_ms=0)
        samples = queue_node.queues.metrics()
        assert {name for name, _, _ in samples} == set(HELP)
        values = {name: value for name, _, value in samples}
        assert values["isthmus_queue_served_total"] == values["isthmus_queue_acknowledged_total"] == 1
        assert json.loads(json.dumps(await listed_queues(queue_node.queues)))[0]["name"] == "q"
        assert queue_node.queues.status() == {"actor": "source", "state": "running", "reason": ""}


async def test_without_queues_the_actor_is_there_and_idle() -> None:
    """An unconfigured source reports it and costs nothing."""

    queue_node = QueueNode()
    queue_node.settings = ()
    async with queue_node:
        assert queue_node.queues.status() == {"actor": "source", "state": "idle", "reason": "not configured"}
        queue_node.put(b"a")
        assert await listed_queues(queue_node.queues) == []
        assert queue_node.queues.metrics() == []
        with pytest.raises(UnknownQueue):
            await queue_node.fetch()


async def test_a_filter_that_is_not_known_stops_the_start() -> None:
    """A wrong filter is bad config, not a queue that offers the wrong things."""
    queue_node = QueueNode(QueueSettings("q", filter="bucket:x"))
    with pytest.raises(BadConfig, match="bucket:x"):
        await queue_node.start()
    queue_node.pool.shutdown()
