"""Claims about the sink against the real source actor over HTTP: arrivals, redeliveries, and operators' views."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Callable, Coroutine
from random import Random
from typing import Any

import pytest

import isthmus.sink.worker as worker_room
from isthmus.queues.queue_documents import AuditInfo
from isthmus.repl.metastore import watched_document
from isthmus.repl.model.errors import BadInput
from isthmus.repl.model.keys import Key
from isthmus.repl.model.requests import PushItem, PushOutcome
from isthmus.sink import limits, suspensions
from isthmus.sink.dead_letters import DeadLetter
from isthmus.sink.service import Sink
from isthmus.sink.status import HELP
from isthmus.sink.worker import Slot
from tests.support.cluster_facts import FakeClusterFacts
from tests.support.queue_listings import listed_queues
from tests.support.queue_node import PARTITIONS
from tests.support.queue_source import OURS, THIRD
from tests.support.sink_listings import letters_shown, links, overview
from tests.support.sink_pair import SinkPair
from tests.support.waiting import eventually

P, Q = PARTITIONS


def slots_of(sink: Sink) -> list[Slot]:
    return [slot for slots in sink._pool._slots.values() for slot in slots]


async def test_everything_written_arrives_and_is_acknowledged() -> None:
    """Puts and deletes before and after the sink began are at the other cluster, equal in every byte."""

    async with SinkPair() as pair:
        source = pair.source
        source.put(*(b"early%d" % n for n in range(700)))
        sink = await pair.sink(poll_ms=20)
        for n in range(50):
            source.put(b"late%d" % n, b"hot", partition=Q)
            await asyncio.sleep(0.002)
        await pair.equal()
        row = links(sink)[0]
        assert row["state"] == "running"
        assert row["source_cluster"] == "east"
        assert row["applied"] == pair.cluster.outcomes[PushOutcome.APPLIED] >= 751
        assert row["rejected"] == row["failed"] == row["errors"] == 0
        await eventually(lambda: links(sink)[0]["fetches"] >= row["fetches"] + 4)
        listing = (await listed_queues(source.queues))[0]
        assert (listing["waiting"], listing["in_flight"]) == (0, 0)
        assert listing["late_acknowledgements"] == 0, "a batch was acknowledged twice"


async def test_a_node_whose_name_is_taken_fetches_nothing() -> None:
    """It reaches no leader of its cluster: what it fetched would wait until the pushes fail. It goes on when it has the
    name again."""
    facts = FakeClusterFacts()
    async with SinkPair() as pair:
        sink = await pair.sink(facts=facts, poll_ms=20)
        pair.source.put(b"a")
        await pair.equal()
        facts.taken = True
        await eventually(lambda: links(sink)[0]["running"] == 0)
        fetches = links(sink)[0]["fetches"]
        pair.source.put(b"b")
        await asyncio.sleep(1.2)
        assert links(sink)[0]["fetches"] == fetches
        facts.taken = False
        await pair.equal()


async def test_changes_that_fail_come_again_until_they_are_stored() -> None:
    """A failed change is not acknowledged; those of its batch that were stored do not come again."""

    async with SinkPair() as pair:
        pair.cluster.failing = {b"a": 3, b"b": 1}
        pair.source.put(b"a", b"b", b"c", b"d")
        sink = await pair.sink()
        await pair.equal()
        row = links(sink)[0]
        assert (row["applied"], row["failed"], row["superseded"]) == (4, 4, 0)
        assert row["errors"] >= 3
        assert row["delay_ms"] == 0, "the first success ends the delay"


@pytest.mark.timeout(120)
async def test_a_lossy_link_and_malformed_answers_lose_nothing() -> None:
    """Dropped, cut, wrong and huge answers back a link off; no worker dies, everything arrives, nothing merges."""

    async with SinkPair() as pair:
        rng = Random(5)
        bad = ["drop", "cut", "garbage", "huge", "error"]
        pair.listener.faults.extend(rng.choice([None, rng.choice(bad)]) for _ in range(60))
        sink = await pair.sink(batch_count=7)
        while pair.listener.faults:
            n = rng.randrange(40)
            pair.source.put(b"k%d" % n, b"n%d" % n, partition=PARTITIONS[n % 2])
            await asyncio.sleep(0.004)
        await pair.equal(30)
        assert all(pair.listener.seen[fault] for fault in bad)
        assert links(sink)[0]["errors"] >= 10
        pair.source.put(b"after all faults")
        await pair.equal()


async def test_a_crash_between_push_and_acknowledgement_redelivers_and_changes_nothing() -> None:
    """A sink that dies after storing gets the batch again in its next life, and applying it again is nothing."""

    async with SinkPair() as pair:
        source, cluster = pair.source, pair.cluster
        first = await pair.sink()
        source.put(b"a", b"b", b"c")
        cluster.before = first._pool.stop_fetching  # no further fetch, so no acknowledgement
        await eventually(lambda: cluster.pushed == 3)
        await eventually(lambda: not first._pool.pushing())
        for slot in slots_of(first):
            slot.fetcher.ack = None
        await first.stop()
        stored = dict(cluster.objects)
        assert source.served()[0].machine.in_flight_count() == 3
        cluster.before = None
        second = await pair.sink()
        await pair.equal()
        assert cluster.objects == stored
        row = links(second)[0]
        assert row["applied"] == 0
        assert row["superseded"] in range(3, 100, 3)  # whole batches, again if the acknowledgement is late


@pytest.mark.timing
async def test_a_stop_acknowledges_what_was_stored_and_ends_long_polls() -> None:
    """Stopping is quick while a worker waits at the source, and leaves nothing to be sent twice."""

    async with SinkPair() as pair:
        sink = await pair.sink(poll_ms=20_000)
        await eventually(lambda: pair.source.served()[0].waiters)
        pair.cluster.before = sink._stopping.set  # the stop comes while a batch is being pushed
        pair.source.put(b"a")
        await eventually(lambda: pair.cluster.pushed == 1 and not sink._pool.pushing())
        await eventually(lambda: links(sink)[0]["running"] <= 1)
        began = time.monotonic()
        await sink.stop()
        assert not sink._pool.workers
        assert time.monotonic() - began < 4
        await pair.equal()


async def test_stored_changes_are_acknowledged_although_their_slot_has_no_turn() -> None:
    """After a burst of full batches one slot polls the source for all; the other slots' stored changes are still
    acknowledged within seconds, not when their polls come, one after the other."""

    async with SinkPair() as pair:
        await pair.sink(batch_count=10, poll_ms=50_000)
        machine = pair.source.served()[0].machine
        await eventually(lambda: len(pair.source.served()[0].waiters) == 1)
        pair.cluster.stuck.clear()
        pair.source.put(*(b"%d" % number for number in range(75)))
        await eventually(lambda: machine.in_flight_count() == 40)
        pair.cluster.stuck.set()
        await eventually(lambda: machine.counts.acknowledged == 75)
        assert machine.counts.redelivered == 0


async def test_an_object_that_uses_up_the_rate_for_longer_than_its_lease_arrives_once() -> None:
    """One object of many seconds' worth of the sink's rate is acknowledged before the next fetch may begin, else its
    lease would be over each time, and it would come for ever."""

    async with SinkPair() as pair:
        machine = pair.source.served()[0].machine
        machine.leases.lease_ms = 20_000
        await pair.sink(rate_limit_bytes=1_000)
        pair.source.put(b"large", size=120_000)
        await eventually(lambda: machine.counts.acknowledged == 1)
        assert machine.counts.redelivered == 0


async def test_a_stop_waits_for_acknowledgements_on_their_way() -> None:
    """An acknowledgement that is on its way by itself when the sink stops arrives, as that of a slot at rest does."""

    async with SinkPair() as pair:
        sink, begun = await pair.sink(rate_limit_bytes=1_000), asyncio.Event()

        def slowly(slot: Slot) -> Callable[[], Coroutine[Any, Any, bool]]:
            acknowledge = slot.acknowledge

            async def acknowledge_slowly() -> bool:
                if slot.fetcher.ack is not None:
                    begun.set()
                    await asyncio.sleep(0.2)
                return await acknowledge()

            return acknowledge_slowly

        for slot in slots_of(sink):
            slot.acknowledge = slowly(slot)  # type: ignore[method-assign]
        pair.source.put(b"large", size=30_000)
        await begun.wait()
        await sink.stop()
        assert pair.source.served()[0].machine.counts.acknowledged == 1


async def test_rejected_changes_are_acknowledged_and_kept_as_dead_letters() -> None:
    """Changes that this cluster refuses for good are not sent again, and can be listed."""

    async with SinkPair() as pair:
        pair.cluster.rejecting = {b"big\xff"}
        pair.source.put(b"a", b"big\xff", b"c")
        sink = await pair.sink()
        await eventually(lambda: pair.source.served()[0].machine.counts.acknowledged == 3)
        (letter,) = letters_shown(await sink.dead_letters())
        assert letter["key"] == ["default", "bucket", "big\\xff"]
        assert (letter["reason"], letter["queue"]) == ("too-large", "q")
        assert json.dumps(letter)
        assert letters_shown(await sink.dead_letters_of(Key(b"default", b"bucket", b"big\xff"))) == [letter]
        assert await sink.dead_letters_of(Key(b"default", b"bucket", b"a")) == []
        row = links(sink)[0]
        assert (row["rejected"], row["applied"], row["failed"]) == (1, 2, 0)
        assert sink.status()["reason"] == "dead letters: 1 (isthmus sink dead-letters list)"


async def test_a_bucket_type_that_is_missing_here_waits_at_the_source_and_arrives_once_it_is_made() -> None:
    """The type's changes are neither fetched nor dead letters; the link names the type and the remedy; other changes of
    the same queue arrive. When the type is created all its changes arrive by themselves. A change that is pushed to a
    missing type fails, and is sent again."""

    async with SinkPair() as pair:
        pair.source.types[PARTITIONS[1]] = b"orders"
        await pair.source.crash()
        await pair.source.start()
        pair.cluster.types = {b"default"}
        sink = await pair.sink()
        machine = pair.source.served()[0].machine
        await eventually(lambda: machine.sink_types.known == {b"default"} and not machine.wanted_cursors(0))
        pair.source.put(b"o1", b"o2", partition=PARTITIONS[1])
        pair.source.put(b"a", b"b")
        await eventually(lambda: machine.counts.acknowledged == 2)
        await eventually(lambda: links(sink)[0]["state"] == "holding")
        row = links(sink)[0]
        assert row["held_types"] == ["orders"]
        assert "this cluster has no bucket type orders" in row["reason"]
        assert "isthmus bucket-type create orders" in row["reason"]
        assert row["rejected"] == row["failed"] == 0
        assert ("isthmus_sink_held_types", {"queue": "q", "peer": pair.listener.url}, 1) in sink.metrics()
        pair.cluster.types = {b"default", b"orders"}
        await eventually(lambda: machine.counts.acknowledged == 4)
        await eventually(lambda: links(sink)[0]["state"] == "running")
        assert await sink.dead_letters() == []


async def test_a_type_removed_between_fetch_and_push_makes_no_dead_letter() -> None:
    """The source sent its changes, and the cluster has no such type when they are pushed: they count as failed."""

    async with SinkPair() as pair:
        pair.cluster.types = {b"default"}
        sink = await pair.sink()
        pair.cluster.before = lambda: pair.cluster.types.clear()  # type: ignore[union-attr]
        pair.source.put(b"a")
        await eventually(lambda: links(sink)[0]["failed"] >= 1)
        pair.cluster.before = None
        pair.cluster.types.add(b"default")
        await eventually(lambda: pair.source.served()[0].machine.counts.acknowledged == 1)
        assert await sink.dead_letters() == []


async def test_dead_letters_beyond_the_limit_are_a_gap_at_the_source() -> None:
    """The file keeps three letters; further refused changes are acknowledged as missing, and are in the source's
    gap."""

    async with SinkPair() as pair:
        names = [b"r%d" % n for n in range(5)]
        pair.cluster.rejecting = set(names)
        sink = await pair.sink()
        pair.source.put(b"a", *names, b"z")
        await eventually(lambda: bool(pair.source.acts.gaps()))
        await eventually(lambda: pair.source.served()[0].machine.counts.acknowledged == 5)
        assert [letter["key"][2] for letter in letters_shown(await sink.dead_letters())] == ["r0", "r1", "r2"]
        assert overview(sink)["dead_letters"] == {"kept": 3, "given_up": 2}
        (gap,) = pair.source.acts.gaps()
        assert (gap["what"], gap["count_at_least"]) == ("refused", 2)
        ledger = await pair.source.acts.ledger("q")
        assert (ledger["closes"], ledger["given_up"], ledger["lost"]) == (True, 2, {})


async def test_a_superseded_dead_letter_is_dropped() -> None:
    """A newer object of the key arrived, by whichever way: the refused one is superseded. One that nothing has settled
    stays."""

    async with SinkPair() as pair:
        pair.cluster.rejecting = {b"a", b"b"}
        sink = await pair.sink()
        pair.source.put(b"a", b"b")
        await eventually(lambda: len(kept_letters(sink)) == 2)
        await sink._settle_letters()
        assert len(kept_letters(sink)) == 2
        pair.cluster.rejecting = {b"b"}
        for (_, key), payload in pair.source.fake_store.objects.items():
            if key == b"a":
                await pair.cluster.push([PushItem(Key(b"default", b"bucket", key), OURS, payload)])
        await sink._settle_letters()
        assert [letter.key.key for letter in kept_letters(sink)] == [b"b"]


def kept_letters(sink: Sink) -> list[DeadLetter]:
    """The dead letters that the sink's node keeps."""
    return sink._letters.letters()


async def test_a_refusing_source_is_named_and_asked_less_often() -> None:
    """For another owner, a peer that is this cluster, and an unknown queue the reason is shown and the delay grows to
    its bound."""

    async with SinkPair() as pair:
        owner = await pair.sink("q")
        await eventually(lambda: pair.source.served()[0].machine.owner)
        stranger = await pair.sink("q", uuid=THIRD)
        native = await pair.sink("q", uuid=OURS)
        lost = await pair.sink("nowhere")
        for sink, words in ((stranger, "belongs to cluster west"), (native, "points at home"), (lost, "'nowhere'")):
            await eventually(lambda: links(sink)[0]["delay_ms"] == 50)  # noqa: B023
            row = links(sink)[0]
            assert row["state"] == "failing"
            assert words in row["last_error"]
            assert sink.status()["reason"].startswith("1 of 1 link fails: ")
            assert row["running"] <= 1, "one slot probes a link that fails"
        assert links(owner)[0]["state"] != "failing"


async def test_the_status_of_a_source_is_shown_with_its_age() -> None:
    """A source that serves nothing reports it in its answers; between two answers that state may have ended."""

    async with SinkPair() as pair:
        sink = await pair.sink()
        await eventually(lambda: links(sink)[0]["fetches"])
        await pair.source.acts.suspend("q", "serving", None, AuditInfo("ann", 1, ""))
        await eventually(lambda: links(sink)[0]["state"] == "waiting")
        assert re.fullmatch(r"the source is suspended, as it answered \d+ s ago", links(sink)[0]["reason"])
        await pair.source.acts.resume("q", "serving", None, AuditInfo("ann", 2, ""))
        await eventually(lambda: links(sink)[0]["state"] == "running")


async def test_a_suspended_link_fetches_nothing_over_restarts_until_it_is_resumed() -> None:
    """Suspension is by queue, by peer or for all, is kept in the metastore, and lets running cycles finish."""

    async with SinkPair() as pair:
        sink = await pair.sink("q", "r")
        pair.source.put(b"a")
        await pair.equal()
        await sink.suspend("q", None, "ann", "maintenance")
        await eventually(lambda: links(sink)[0]["running"] == 0)
        await sink.stop()
        again = await pair.sink("q", "r")
        rows = {row["queue"]: row for row in links(again)}
        assert rows["q"]["state"] == "suspended"
        assert (rows["q"]["suspended"]["by"], rows["q"]["suspended"]["reason"]) == ("ann", "maintenance")
        assert again.status() == {"actor": "sink", "state": "running", "reason": "1 link suspended"}
        pair.source.put(b"b")
        await eventually(lambda: {row["queue"]: row for row in links(again)}["r"]["batches"])
        assert {row["queue"]: row for row in links(again)}["q"]["fetches"] == 0
        with pytest.raises(BadInput, match="no queue 'x'"):
            await again.suspend("x", None, "ann", "")
        await again.resume("q", None)
        await pair.equal()
        await again.suspend(None, pair.listener.url, "bob", "")
        assert again.status()["state"] == "suspended"
        with pytest.raises(BadInput, match="resume that"):
            await again.resume("q", None)
        await again.resume(None, None)
        assert again.status() == {"actor": "sink", "state": "running", "reason": ""}


async def test_a_removed_link_can_be_resumed_by_its_name() -> None:
    """A suspension of a queue, peer or node that this node no longer knows can still be ended."""

    async with SinkPair() as pair:
        sink = await pair.sink("q", "r")
        await sink.suspend("q", pair.listener.url, "ann", "", "w2")
        await sink.stop()
        again = await pair.sink("r", nodes=["w1"])
        with pytest.raises(BadInput, match="there is no node 'w3' in this cluster; there are: w1"):
            await again.suspend(None, None, "ann", "", "w3")
        await again.resume("q", pair.listener.url, "w2")
        assert overview(again)["suspensions"] == []
        with pytest.raises(BadInput, match="from no queue 'q'; known: r"):
            await again.resume("q", None)


async def test_a_push_without_an_answer_ends_and_comes_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cluster that does not answer costs a worker a bounded time; nothing of the batch is acknowledged."""
    monkeypatch.setattr(worker_room, "PUSH_TIMEOUT_S", 0.05)

    async with SinkPair() as pair:
        pair.cluster.stuck.clear()
        sink = await pair.sink()
        pair.source.put(b"a")
        await eventually(lambda: links(sink)[0]["failed"] >= 2)
        assert pair.source.served()[0].machine.counts.acknowledged == 0
        pair.cluster.stuck.set()
        await pair.equal()


async def test_lag_is_unknown_until_something_arrived() -> None:
    """Lag is measured from the leader's clock at the source to the moment of storing; without stored changes there is
    no lag."""

    async with SinkPair() as pair:
        sink = await pair.sink()
        row = links(sink)[0]
        assert row["lag_ms_p50"] is row["recent_lag_ms_p99"] is None
        assert not any(name == "isthmus_sink_lag_seconds" for name, _, _ in sink.metrics())
        pair.source.put(b"a")
        await pair.equal()
        row = links(sink)[0]
        assert 0 <= row["lag_ms_p50"] <= row["lag_ms_p99"] < 10_000
        assert {name for name, _, _ in sink.metrics()} == {name for name in HELP if "_riak_" not in name}
        assert json.loads(json.dumps(links(sink)))


async def test_without_peers_the_actor_is_there_and_idle() -> None:
    """An unconfigured sink has no worker and reports that; one that never started can be stopped."""

    async with SinkPair() as pair:
        sink = await pair.sink(start=False)
        assert sink.status() == {"actor": "sink", "state": "idle", "reason": "not started"}
        await sink.stop()
        nothing = await pair.sink(peers=False)
        assert nothing.status() == {"actor": "sink", "state": "idle", "reason": "not configured"}
        assert links(nothing) == nothing.metrics() == await nothing.dead_letters() == []
        assert overview(nothing)["workers"]["busy"] == 0
        assert overview(nothing)["suspensions"] == []


@pytest.mark.logs_errors("sink.settings_malformed")
async def test_damaged_suspensions_hide_no_limits() -> None:
    """Unreadable suspensions keep their last value and are reported; the sink's other settings still take effect."""

    async with SinkPair() as pair:
        sink = await pair.sink("q")
        await pair.metastore.put(suspensions.PATH, b"[", None)
        entry = limits.SinkLimits(workers=3, by="ann", at_ms=5)
        await limits.DOCUMENT.change(pair.metastore, lambda before: before | {limits.ALL_NODES: entry})
        await eventually(lambda: sink._effective_limits.workers == 3)
        assert sink.status()["state"] == "running"


@pytest.mark.parametrize("damaged", [True, False])
@pytest.mark.logs_errors("sink.settings_malformed")
async def test_a_link_with_an_unknown_suspension_is_not_fetched(damaged: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sink that cannot read the suspensions at its start holds all links and shows why, until it can, or an operator
    resumes all."""
    monkeypatch.setattr(watched_document, "POLL_S", 0.5)

    async with SinkPair() as pair:
        pair.source.put(b"a")
        if damaged:
            await pair.metastore.put(suspensions.PATH, b"[", None)
        else:
            pair.metastore.disconnect()
        sink = await pair.sink("q")
        await asyncio.sleep(0.2)
        assert pair.listener.requests == 0
        row = links(sink)[0]
        assert sink.status()["state"] == row["state"] == "suspended"
        assert suspensions.PATH in sink.status()["reason"]
        assert suspensions.PATH in row["reason"]
        if damaged:
            for refused in (sink.suspend("q", None, "ann", ""), sink.resume("q", None)):
                with pytest.raises(BadInput, match=r"isthmus sink resume"):
                    await refused
            await sink.resume(None, None)
        else:
            pair.metastore.reconnect()
        await pair.equal()
        assert sink.status()["state"] == "running"


@pytest.mark.parametrize("value", [b"{", b'{"*": {"objects_per_second": -1}}'])
@pytest.mark.logs_errors("sink.settings_malformed")
async def test_a_limit_of_a_sink_that_cannot_be_read_is_not_taken_for_none(value: bytes) -> None:
    """After a restart the operators' limits of a sink are unknown: every link is suspended, and shows why, until the
    limit is set again with --default on all nodes."""

    async with SinkPair() as pair:
        await pair.metastore.put(limits.PATH, value, None)
        sink = await pair.sink()
        (row,) = links(sink)
        assert row["state"] == "suspended"
        assert limits.PATH in row["reason"]
        with pytest.raises(BadInput, match="--default, on all nodes"):
            await sink.set_limits(limits.SinkLimits(objects_per_second=5, by="ann"), None)
        await sink.set_limits(limits.SinkLimits(bytes_per_second=0, by="ann"), None, forget=True)
        assert links(sink)[0]["state"] != "suspended"
