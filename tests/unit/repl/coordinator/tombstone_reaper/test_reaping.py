"""Tombstones are reaped when their time has come and nothing needs them; the status shows why others wait (R-REAP)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import msgpack
import pytest

from isthmus.config.settings import ListenSettings, QueueSettings
from isthmus.repl.coordinator import tombstone_reaper, tombstone_recall
from isthmus.repl.coordinator.tombstone_reaper import Reaper
from isthmus.repl.coordinator.tombstone_recall import TombstoneRecall
from isthmus.repl.coordinator.tombstone_writes import ReapBatch, TombstoneWrites
from isthmus.repl.model.entry import EntryKind
from isthmus.repl.model.errors import CodecError, NotReady, OutcomeUnknown, TooFewInSync
from isthmus.repl.model.keys import Key
from isthmus.repl.model.objects import TOMBSTONE, Content, Object, decode_object, encode_object, merge, write
from isthmus.repl.model.properties import DEFAULTS, Properties, TypeProperties
from isthmus.repl.model.record import Member, PartitionRecord
from isthmus.repl.model.requests import Isolation, PushItem, PushOutcome, WriteRequest
from isthmus.repl.model.vclock import actor_of, decode_clock, descends, increment, pack_counter
from isthmus.repl.runtime.partition import Partition
from isthmus.repl.store.port import REAPED
from isthmus.repl.store.reaped_keys import REMEMBERED_MAX, ReapedWindows
from isthmus.repl.unforeseen import unforeseen
from tests.support.coordinator_cluster import LIMITS, OTHER, UUID, Cluster, cluster, keys_of

pytestmark = pytest.mark.virtual_time

KEY, SECOND, THIRD = keys_of(0, 3)
THIRD_CLUSTER = b"north-clusters16"
IMMEDIATE = DEFAULTS._replace(reap_after_ms=0)
DEFAULT_TICK_S = tombstone_reaper.TICK_S


@dataclass
class FakeTombstoneBarrier:
    """The answers of the queues about tombstones."""

    offering: bool = False
    waiting: str = ""
    asked: list[int] = field(default_factory=list)

    def replicates(self, _bucket_type: bytes, _bucket: bytes) -> bool:
        return self.offering

    def blocked_by(self, _partition: int, offset: int, _bucket_type: bytes, _bucket: bytes) -> str:
        self.asked.append(offset)
        return self.waiting


@dataclass
class ReapingCluster:
    """A cluster of two nodes, each with its reaper."""

    made: Cluster
    reapers: dict[str, Reaper]
    recalls: dict[str, TombstoneRecall]
    queues: FakeTombstoneBarrier
    kind: TypeProperties = field(default_factory=lambda: TypeProperties(DEFAULTS, {}))
    different: dict[Key, str] = field(default_factory=dict)
    """UnrepairedDifferences by key."""

    def difference_of(self, key: Key) -> str:
        """See UnrepairedDifferences."""
        return self.different.get(key, "")

    def of_type(self, _bucket_type: bytes) -> TypeProperties:
        return self.kind

    async def delete(self, key: Key = KEY) -> None:
        coordinator = self.made.coordinators["n1"]
        await coordinator.write(WriteRequest(key, Content(b"v")))
        await coordinator.write(WriteRequest(key, TOMBSTONE))

    def in_store(self, key: Key = KEY) -> Object | None:
        data = self.made.store.object(0, key.bucket, key.key)
        return None if data is None else decode_object(data)

    async def wait_until_removed(self, *keys: Key) -> None:
        async with asyncio.timeout(10):
            while any(self.in_store(key) is not None for key in keys or (KEY,)):
                await asyncio.sleep(0.005)

    async def wait_for_wait_reason(self, text: str) -> None:
        async with asyncio.timeout(10):
            while not any(text in str(row["waits"]) for row in self.reapers["n1"].status()):
                await asyncio.sleep(0.005)

    def sync(self, *nodes: str) -> None:
        """Sets exactly these of n1 and n2 as in sync."""
        isr = frozenset(Member(node, 1) for node in nodes)
        record = PartitionRecord(0, "default", 0, 4, ("n1", "n2"), isr=isr)
        self.made.runtimes["n1"].partitions[0].replica.record = record


@asynccontextmanager
async def reaping_cluster(kind: Properties = DEFAULTS, **buckets: Properties) -> AsyncIterator[ReapingCluster]:
    with ThreadPoolExecutor(1) as pool:
        async with cluster() as made:
            queues = FakeTombstoneBarrier()
            found = ReapingCluster(
                made, {}, {}, queues, TypeProperties(kind, {n.encode(): p for n, p in buckets.items()})
            )
            for node, runtime in made.runtimes.items():
                writes = TombstoneWrites(runtime, LIMITS, found)  # type: ignore[arg-type]
                reaper = found.reapers[node] = Reaper(
                    runtime,  # type: ignore[arg-type]
                    writes,
                    links=made.wire.of(node),
                    routes=made.coordinators[node].routes,
                    read_pool=pool,
                    barrier=queues,
                    differences=found,
                    request_timeout_ms=1_000,
                )
                recall = found.recalls[node] = TombstoneRecall(
                    runtime,  # type: ignore[arg-type]
                    writes,
                    links=made.wire.of(node),
                    routes=made.coordinators[node].routes,
                    request_timeout_ms=1_000,
                )
                made.coordinators[node]._properties = found
                made.wire.handlers[node] = {
                    **made.wire.handlers[node],
                    **reaper.request_handlers(),
                    **recall.request_handlers(),
                }
                reaper.leadership(0, node == "n1", 0)
                reaper.start()
            found.sync("n1", "n2")
            try:
                yield found
            finally:
                for reaper in found.reapers.values():
                    await reaper.stop()


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tombstone_reaper, "TICK_S", 0.005)


async def test_a_tombstone_is_reaped_by_an_entry_of_the_log() -> None:
    """Object, key row and change row are gone, the entry's offset is recorded, and the key can be written again."""

    async with reaping_cluster(IMMEDIATE) as w:
        await w.delete()
        await w.wait_until_removed()
        assert w.made.store.changes(0, 0, 100) == []
        assert w.made.store.cursor(0, REAPED).entry_offset == 3
        assert await w.made.coordinators["n2"].get(KEY) is None
        written = await w.made.coordinators["n1"].write(WriteRequest(KEY, Content(b"again")))
        assert [s.value for s in decode_object(written.payload).siblings] == [b"again"]
        assert len(w.made.store.changes(0, 0, 100)) == 1


@pytest.mark.parametrize("remembered", [True, False])
async def test_a_request_takes_effect_once_though_its_key_was_reaped(
    monkeypatch: pytest.MonkeyPatch, remembered: bool
) -> None:
    """H40 holds across a reap: the repeated PUT does not restore the deleted value, at any node, and is answered with
    the clock of the tombstone while that is remembered."""
    monkeypatch.setattr("isthmus.repl.store.reaped_keys.REMEMBERED_MAX", 1)

    async with reaping_cluster(IMMEDIATE) as w:
        n1, n2 = (w.made.coordinators[node] for node in ("n1", "n2"))
        request = WriteRequest(KEY, Content(b"v"), None, b"id-1")
        assert not (await n1.write(request)).repeated
        deleted = await n1.write(WriteRequest(KEY, TOMBSTONE))
        await w.wait_until_removed()
        if not remembered:
            await w.delete(SECOND)
            await w.wait_until_removed(SECOND)
        for coordinator in (n1, n2):
            again = await coordinator.write(request)
            assert again.repeated
            assert (again.payload, again.sibling_count) == (b"", 0)
            assert again.clock == (deleted.clock if remembered else b"")
        assert await n1.get(KEY) is None


@pytest.mark.parametrize("applied", [True, False])
@pytest.mark.parametrize("late", ["value", "tombstone"])
async def test_an_answer_that_depends_on_a_pending_reap_waits_for_it(applied: bool, late: str) -> None:
    """R-WAIT: a push without news is superseded by a REAP that is not applied. It is answered when the REAP is applied;
    if the entry is dropped the outcome is unknown, and the change is pushed again."""

    async with reaping_cluster(IMMEDIATE) as w:
        runtime, coordinator = w.made.runtimes["n1"], w.made.coordinators["n1"]
        value = write(None, (), Content(b"late"), (actor_of(OTHER, 0), 1), 5)
        assert (await coordinator.push([PushItem(KEY, OTHER, encode_object(value))]))[0].error is None
        w.queues.waiting = "not yet"
        await coordinator.write(WriteRequest(KEY, TOMBSTONE))
        deleted = w.in_store()
        assert deleted is not None
        runtime.hold, w.queues.waiting = True, ""
        place = runtime.partitions[0]
        async with asyncio.timeout(5):
            while not any(entry.kind == EntryKind.REAP for entry in place.pending):
                await asyncio.sleep(0.001)
        again = encode_object(value if late == "value" else deleted)
        push = asyncio.create_task(coordinator.push([PushItem(KEY, OTHER, again, late == "tombstone")]))
        await asyncio.sleep(0.01)
        assert not push.done()
        if applied:
            runtime.apply(place)
        else:
            runtime.step_down(0)
        ((result),) = await push
        assert result.outcome is (PushOutcome.SUPERSEDED if applied else PushOutcome.FAILED)


async def test_the_memory_of_reaped_keys_outlasts_every_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """A turn reaps at most REAPS_AT_ONCE of a partition. At that rate, with the defaults, the memory of reaped keys
    lasts longer than a lease and a write's time-out together: no sink pushes an older change."""
    per_s = tombstone_reaper.REAPS_AT_ONCE / DEFAULT_TICK_S
    assert REMEMBERED_MAX / per_s * 1_000 > QueueSettings("q").lease_ms + ListenSettings().request_timeout_ms
    monkeypatch.setattr(tombstone_reaper, "TICK_S", 60.0)

    keys = keys_of(0, tombstone_reaper.REAPS_AT_ONCE + 5)
    async with reaping_cluster(IMMEDIATE) as w:
        for key in keys:
            await w.delete(key)
        reaper, place = w.reapers["n1"], w.made.runtimes["n1"].partitions[0]
        reaper._reap_due(place, reaper._led[0])  # type: ignore[arg-type]
        await w.wait_until_removed(keys[0])
        assert sum(w.in_store(key) is not None for key in keys) == 5


async def test_tombstones_are_kept_unless_their_bucket_reaps_them() -> None:
    """`keep` is the default; a bucket's own delete_mode counts for it alone; values are never touched."""

    (mine,) = keys_of(0, 1, b"mine")
    async with reaping_cluster(mine=IMMEDIATE) as w:
        await w.delete()
        await w.delete(mine)
        await w.made.coordinators["n1"].write(WriteRequest(mine._replace(key=b"live" + mine.key), Content(b"v")))
        await w.wait_until_removed(mine)
        found = w.in_store()
        assert found is not None
        assert found.deleted


async def test_a_tombstone_waits_for_its_delay_for_replicas_and_for_queues() -> None:
    """Each obstacle is shown by name; when the last one is gone, the tombstone is reaped."""

    async with reaping_cluster(DEFAULTS._replace(reap_after_ms=1_000)) as w:
        w.sync("n1")
        w.queues.offering, w.queues.waiting = True, "queue to-west: acknowledged below offset 1"
        await w.delete()
        await asyncio.sleep(0.05)
        assert w.reapers["n1"].status() == [{"partition": 0, "tombstones": 1, "waits": ""}], "its delay is not over"
        w.kind = TypeProperties(IMMEDIATE, {})
        await w.wait_for_wait_reason("replica n2 is not in sync")
        w.sync("n1", "n2")
        await w.wait_for_wait_reason("queue to-west: acknowledged below offset 1")
        assert set(w.queues.asked) == {2}
        assert w.in_store() is not None
        w.queues.waiting = ""
        await w.wait_until_removed()


async def test_older_tombstones_are_found_by_a_scan() -> None:
    """After a change of properties, and at a new leader, a scan finds tombstones that apply has not reported."""

    async with reaping_cluster() as w:
        for key in (KEY, SECOND, THIRD):
            await w.delete(key)
        await asyncio.sleep(0.03)
        assert w.in_store() is not None
        w.kind = TypeProperties(IMMEDIATE, {})
        await w.wait_until_removed(KEY, SECOND, THIRD)


async def test_a_bucket_that_reaps_later_than_another_has_its_older_tombstones_reaped() -> None:
    """R-REAP: after a change of properties the keys are scanned again, though the scan for another bucket's tombstones
    is over: those of a bucket that did not reap then were not noted."""
    first, second = keys_of(0, 1, b"first")[0], keys_of(0, 1, b"second")[0]

    async with reaping_cluster(first=IMMEDIATE) as w:
        await w.delete(second)
        await w.delete(first)
        await w.wait_until_removed(first)
        async with asyncio.timeout(10):
            while w.reapers["n1"]._led[0].walking:
                await asyncio.sleep(0.005)
        assert w.in_store(second) is not None
        w.kind = TypeProperties(DEFAULTS, {b"first": IMMEDIATE, b"second": IMMEDIATE})
        await w.wait_until_removed(second)


async def test_a_turn_asks_about_some_of_many_that_wait_and_each_has_its_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sink that is away for days leaves thousands of tombstones waiting. A turn checks a bounded number, so that the
    loop stays free; the next ones are checked next, and reaped if they may be. The reasons of the others stay
    visible."""
    monkeypatch.setattr(tombstone_reaper, "CHECKS_AT_ONCE", 2)

    def asks(w: ReapingCluster, offset: int, free: list[int]) -> str:
        w.queues.asked.append(offset)
        return "" if offset in free else "a queue waits"

    async with reaping_cluster(IMMEDIATE) as w:
        keys = keys_of(0, 7)
        turns: list[list[int]] = []
        reap_due = Reaper._reap_due

        def turn(reaper: Reaper, place: Partition, led: tombstone_reaper._Led) -> None:
            w.queues.asked.clear()
            reap_due(reaper, place, led)
            turns.append(list(w.queues.asked))

        monkeypatch.setattr(Reaper, "_reap_due", turn)
        free: list[int] = []
        monkeypatch.setattr(w.queues, "blocked_by", lambda _p, offset, *_: asks(w, offset, free))
        for key in keys:
            await w.delete(key)
        turns.clear()
        await w.wait_for_wait_reason("a queue waits")
        async with asyncio.timeout(5):
            while len({offset for asked in turns for offset in asked}) < len(keys):
                await asyncio.sleep(0.005)
        assert max(map(len, turns)) == 2
        offsets = {offset for asked in turns for offset in asked}
        free.append(max(offsets))
        await w.wait_until_removed(keys[-1])
        assert w.reapers["n1"].status() == [{"partition": 0, "tombstones": 6, "waits": "a queue waits"}]
        free += offsets
        await w.wait_until_removed(*keys)


async def test_more_tombstones_than_are_remembered_are_reaped_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond the limit they are left, and found by a later scan."""
    monkeypatch.setattr(tombstone_reaper, "CANDIDATES_MAX", 1)
    monkeypatch.setattr(tombstone_reaper, "WALK_PAUSE_S", 0.01)

    async with reaping_cluster(IMMEDIATE) as w:
        w.queues.waiting = "queue q: waits"
        for key in (KEY, SECOND, THIRD):
            await w.delete(key)
        assert w.reapers["n1"].status()[0]["tombstones"] == 1
        w.queues.waiting = ""
        await w.wait_until_removed(KEY, SECOND, THIRD)


async def test_another_clusters_tombstone_is_first_offered_by_our_queues() -> None:
    """With queues it is written once more, as a local write with a local dot, and reaped by that offset."""

    async with reaping_cluster(IMMEDIATE) as w:
        w.queues.offering, w.queues.waiting = True, "queue q: waits"
        dot = (actor_of(OTHER, 0), pack_counter(1, 1))
        theirs = encode_object(write(None, (), TOMBSTONE, dot, 1))
        await w.made.coordinators["n1"].push([PushItem(KEY, OTHER, theirs)])
        await w.wait_for_wait_reason("queue q")
        (change,) = w.made.store.changes(0, 0, 100)
        assert (change.origin == OTHER, change.offset) == (False, 2)
        found = w.in_store()
        assert found is not None
        assert found.siblings == decode_object(theirs).siblings
        assert [actor for actor, _, _ in found.clock] == sorted([actor_of(OTHER, 0), actor_of(UUID, 0)])
        again = w.made.store.object(0, KEY.bucket, KEY.key)
        assert again is not None
        w.queues.waiting = ""
        await w.wait_until_removed()
        (back,) = await w.made.coordinators["n1"].push([PushItem(KEY, OTHER, again)])
        assert back.outcome is PushOutcome.SUPERSEDED, "a tombstone that went round ends where it was reaped"
        assert w.in_store() is None


async def test_one_key_is_reaped_when_an_operator_asks_at_any_node() -> None:
    """The leader answers: reaped, why it waits, or that there is no tombstone."""

    async with reaping_cluster() as w:
        ask = w.reapers["n2"].ask
        assert (await ask(KEY)).outcome == "no-tombstone"
        await w.made.coordinators["n1"].write(WriteRequest(KEY, Content(b"v")))
        assert "delete it first" in (await ask(KEY)).reason
        await w.delete(SECOND)
        w.queues.waiting = "queue q: waits"
        assert await ask(SECOND) == ("waits", "queue q: waits")
        w.queues.waiting = ""
        assert (await ask(SECOND)).outcome == "reaped"
        await w.wait_until_removed(SECOND)
        w.made.wire.lost.add("n1")
        with pytest.raises(OutcomeUnknown):
            await ask(KEY)


async def test_a_tombstone_waits_while_full_sync_calls_its_key_different() -> None:
    """The other side may have an older value that only the tombstone can repair: whether requested or due, the
    tombstone stays until the newest check finds the key equal."""

    async with reaping_cluster(IMMEDIATE) as w:
        w.different[KEY] = "full-sync west: its newest check found the key different: missing@source"
        await w.delete()
        await w.delete(SECOND)
        await w.wait_until_removed(SECOND)
        await w.wait_for_wait_reason("full-sync west")
        assert (await w.reapers["n2"].ask(KEY)).outcome == "waits"
        w.different.clear()
        await w.wait_until_removed(KEY)


async def test_a_key_with_a_pending_reap_reads_as_absent() -> None:
    """While the REAP entry waits, the key reads and writes as absent, and nothing is resurrected."""

    async with reaping_cluster() as w:
        await w.delete()
        runtime = w.made.runtimes["n1"]
        runtime.hold = True
        assert (await w.reapers["n1"].ask(KEY)).outcome == "reaped"
        assert (await w.reapers["n1"].ask(KEY)).outcome == "waits"
        assert await w.made.coordinators["n1"].get(KEY, Isolation.UNCOMMITTED) is None
        asked = asyncio.ensure_future(w.made.coordinators["n1"].write(WriteRequest(KEY, Content(b"new"))))
        await asyncio.sleep(0.01)
        kinds = [entry.kind for entry in runtime.partitions[0].pending]
        assert kinds == [EntryKind.REAP, EntryKind.DATA]
        runtime.apply(runtime.partitions[0])
        await asked
        found = w.in_store()
        assert found is not None
        assert [s.value for s in found.siblings] == [b"new"]


async def test_a_push_of_a_reaped_key_is_taken_only_when_it_comes_again() -> None:
    """While the reap is remembered, a value that the tombstone has seen is superseded. Afterwards, a value that was
    fetched before the tombstone reached its source is refused as retryable, not stored; a repeated push was fetched
    again, and is accepted. Keys without local writes are accepted at once."""

    async with reaping_cluster() as w:
        coordinator = w.made.coordinators["n1"]
        written = await coordinator.write(WriteRequest(KEY, Content(b"old")))
        stale = PushItem(KEY, OTHER, written.payload)
        await coordinator.write(WriteRequest(KEY, TOMBSTONE))
        assert (await w.reapers["n1"].ask(KEY)).outcome == "reaped"
        await w.wait_until_removed()
        for _ in range(3):
            (late,) = await coordinator.push([stale])
            assert late.outcome is PushOutcome.SUPERSEDED
        w.made.store._remembered.reaped = ReapedWindows()
        (first,) = await coordinator.push([stale])
        assert (first.outcome, getattr(first.error, "reason", "")) == (PushOutcome.FAILED, "stale-push")
        assert w.in_store() is None
        (second,) = await coordinator.push([stale])
        assert second.outcome is PushOutcome.APPLIED
        dot = (actor_of(OTHER, 0), pack_counter(1, 1))
        new = PushItem(SECOND, OTHER, encode_object(write(None, (), Content(b"x"), dot, 1)))
        assert (await coordinator.push([new]))[0].outcome is PushOutcome.APPLIED


async def test_a_push_beside_the_first_reap_of_a_partition_is_taken_only_when_it_comes_again() -> None:
    """The REAP entry is appended and not applied, and the partition has never reaped before. A push that has seen a
    write of this cluster, and another one that the tombstone has not, may be older than the reap: it is refused once,
    as it is after the reap."""

    async with reaping_cluster() as w:
        coordinator, runtime = w.made.coordinators["n1"], w.made.runtimes["n1"]
        ours = decode_object((await coordinator.write(WriteRequest(KEY, Content(b"old")))).payload)
        theirs = write(ours, ours.clock, Content(b"theirs"), (actor_of(OTHER, 0), pack_counter(1, 1)), 2)
        await coordinator.write(WriteRequest(KEY, TOMBSTONE))
        assert w.made.store.cursor(0, REAPED).entry_offset < 0
        runtime.hold = True
        assert (await w.reapers["n1"].ask(KEY)).outcome == "reaped"
        asked = asyncio.ensure_future(coordinator.push([PushItem(KEY, OTHER, encode_object(theirs))]))
        await asyncio.sleep(0.01)
        runtime.hold = False
        runtime.apply(runtime.partitions[0])
        (first,) = await asked
        assert (first.outcome, getattr(first.error, "reason", "")) == (PushOutcome.FAILED, "stale-push")
        assert w.in_store() is None


def a_value_and_its_tombstone() -> tuple[Object, Object]:
    """An object and its tombstone, as another cluster made them."""
    dots = [(actor_of(OTHER, 0), pack_counter(1, number)) for number in (1, 2)]
    value = write(None, (), Content(b"old"), dots[0], 1)
    return value, write(value, value.clock, TOMBSTONE, dots[1], 2)


@pytest.mark.parametrize("applied", [True, False])
async def test_a_late_push_brings_nothing_back_beside_what_was_written_since(applied: bool) -> None:
    """I-NO-RESURRECT: a reaped key is written with its tombstone's clock, locally and without a context, while the REAP
    is pending or after it, so that the late push is older than the current object."""

    async with reaping_cluster() as w:
        coordinator, runtime = w.made.coordinators["n1"], w.made.runtimes["n1"]
        value, tombstone = a_value_and_its_tombstone()
        late, gone = (PushItem(KEY, OTHER, encode_object(obj)) for obj in (value, tombstone))
        await coordinator.push([late])
        await coordinator.push([gone])
        runtime.hold = not applied
        assert (await w.reapers["n1"].ask(KEY)).outcome == "reaped"
        if applied:
            await w.wait_until_removed()
        asked = asyncio.ensure_future(coordinator.write(WriteRequest(KEY, Content(b"new"))))
        await asyncio.sleep(0.01)
        runtime.hold = False
        runtime.apply(runtime.partitions[0])
        await asked
        (result,) = await coordinator.push([late])
        assert result.outcome is PushOutcome.SUPERSEDED
        found = w.in_store()
        assert found is not None
        assert [sibling.value for sibling in found.siblings] == [b"new"]
        assert descends(found.clock, tombstone.clock)


async def test_a_late_push_brings_nothing_back_beside_what_a_third_cluster_wrote() -> None:
    """I-NO-RESURRECT, I-CLOCK-STABLE: a value that has not seen the tombstone is merged as if that were still there,
    under both clocks and a local dot. This wins over the merge of a cluster that has the tombstone."""

    async with reaping_cluster() as w:
        coordinator = w.made.coordinators["n1"]
        value, tombstone = a_value_and_its_tombstone()
        late, gone = (PushItem(KEY, OTHER, encode_object(obj)) for obj in (value, tombstone))
        await coordinator.push([late])
        await coordinator.push([gone])
        assert (await w.reapers["n1"].ask(KEY)).outcome == "reaped"
        await w.wait_until_removed()
        dot = (actor_of(THIRD_CLUSTER, 0), pack_counter(1, 1))
        news = write(None, (), Content(b"third"), dot, 3)
        (taken,) = await coordinator.push([PushItem(KEY, THIRD_CLUSTER, encode_object(news))])
        assert taken.outcome is PushOutcome.MERGED
        (result,) = await coordinator.push([late])
        assert result.outcome is PushOutcome.SUPERSEDED
        found = w.in_store()
        assert found is not None
        assert [sibling.value for sibling in found.siblings] == [b"third"]
        elsewhere = merge(tombstone, news)
        assert descends(found.clock, elsewhere.clock)
        assert found.clock != elsewhere.clock
        again = await coordinator.push([PushItem(KEY, OTHER, encode_object(elsewhere))])
        assert again[0].outcome is PushOutcome.SUPERSEDED
        change = w.made.store.changes(0, 0, 10)[-1]
        assert change.origin == UUID


@pytest.mark.parametrize("remembered", [True, False])
async def test_a_later_tombstone_of_a_reaped_key_is_remembered(remembered: bool) -> None:
    """I-NO-RESURRECT: a local key was deleted elsewhere, reaped here, and written and deleted there once more. The
    later tombstone is not stored, or it would circulate; values that it has seen restore nothing, even if they arrive
    late and twice. The same tombstone pushed again makes no entry."""

    async with reaping_cluster() as w:
        coordinator, runtime = w.made.coordinators["n1"], w.made.runtimes["n1"]
        dots = [(actor_of(OTHER, 0), pack_counter(1, number)) for number in (1, 2, 3, 4)]
        ours = decode_object((await coordinator.write(WriteRequest(KEY, Content(b"old")))).payload)
        first = write(ours, ours.clock, TOMBSTONE, dots[0], 2)
        value = write(first, first.clock, Content(b"again"), dots[1], 3)
        second = write(value, value.clock, TOMBSTONE, dots[2], 4)
        gone, late, more = (PushItem(KEY, OTHER, encode_object(obj)) for obj in (first, value, second))
        assert (await coordinator.push([gone]))[0].outcome is PushOutcome.APPLIED
        assert (await w.reapers["n1"].ask(KEY)).outcome == "reaped"
        await w.wait_until_removed()
        assert (await coordinator.push([late]))[0].outcome is PushOutcome.FAILED, "it would be taken next time"
        if not remembered:
            w.made.store._remembered.reaped = ReapedWindows()
        assert (await coordinator.push([more]))[0].outcome is PushOutcome.SUPERSEDED
        end = runtime.partitions[0].replica.leo
        restated = Object(increment(second.clock, *dots[3], 5), second.siblings)
        for item in (late, late, more, more._replace(payload=encode_object(restated))):
            assert (await coordinator.push([item]))[0].outcome is PushOutcome.SUPERSEDED
            assert w.in_store() is None
        assert runtime.partitions[0].replica.leo == end
        written = await coordinator.write(WriteRequest(KEY, Content(b"new")))
        assert descends(decode_object(written.payload).clock, second.clock)


async def test_a_push_that_only_has_what_is_gone_is_answered_with_the_tombstone() -> None:
    """Its clock has seen more than the reaped tombstone, and none of its values stays: the tombstone is written once
    more over both, as a change of this cluster, as it would be merged if it still existed. Otherwise the pusher would
    keep the value for ever."""

    async with reaping_cluster() as w:
        coordinator = w.made.coordinators["n1"]
        value, tombstone = a_value_and_its_tombstone()
        for obj in (value, tombstone):
            await coordinator.push([PushItem(KEY, OTHER, encode_object(obj))])
        assert (await w.reapers["n1"].ask(KEY)).outcome == "reaped"
        await w.wait_until_removed()
        more = increment(value.clock, actor_of(THIRD_CLUSTER, 0), pack_counter(1, 1), 3)
        item = PushItem(KEY, THIRD_CLUSTER, encode_object(Object(more, value.siblings)))
        assert (await coordinator.push([item]))[0].outcome is PushOutcome.MERGED
        found = w.in_store()
        assert found is not None
        assert found.deleted
        assert descends(found.clock, more)
        assert descends(found.clock, tombstone.clock)
        assert w.made.store.changes(0, 0, 10)[-1].origin == UUID
        assert (await coordinator.push([item]))[0].outcome is PushOutcome.SUPERSEDED


async def test_a_late_push_of_a_key_without_local_writes_resurrects_nothing() -> None:
    """I-NO-RESURRECT: this holds while the REAP is pending and after it, in a batch of its own or with others."""

    async with reaping_cluster() as w:
        coordinator, runtime = w.made.coordinators["n1"], w.made.runtimes["n1"]
        dots = [(actor_of(OTHER, 0), pack_counter(1, number)) for number in (1, 2, 3)]
        value = write(None, (), Content(b"old"), dots[0], 1)
        late = PushItem(KEY, OTHER, encode_object(value))
        gone = PushItem(KEY, OTHER, encode_object(write(value, value.clock, TOMBSTONE, dots[1], 2)))
        other = PushItem(SECOND, OTHER, encode_object(write(None, (), Content(b"x"), dots[2], 1)))
        outcomes = [(await coordinator.push([item]))[0].outcome for item in (late, gone)]
        assert outcomes == [PushOutcome.APPLIED] * 2
        runtime.hold = True
        assert (await w.reapers["n1"].ask(KEY)).outcome == "reaped"
        asked = asyncio.ensure_future(coordinator.push([late]))
        await asyncio.sleep(0.01)
        runtime.hold = False
        runtime.apply(runtime.partitions[0])
        assert (await asked)[0].outcome is PushOutcome.SUPERSEDED
        both = await coordinator.push([other, late])
        assert [result.outcome for result in both] == [PushOutcome.APPLIED, PushOutcome.SUPERSEDED]
        assert w.in_store() is None


async def test_other_clusters_are_notified_before_a_tombstone_is_removed() -> None:
    """`repl_reap`: a LEAVING entry comes first, once every queue has passed the tombstone; the REAP follows when every
    queue has passed that entry. Without queues, no notification is needed."""

    async with reaping_cluster(IMMEDIATE._replace(repl_reap=True)) as w:
        w.queues.offering, w.queues.waiting = True, "queue west waits"
        await w.delete()
        await w.wait_for_wait_reason("queue west waits")
        row = w.made.store.changes(0, 0, 100)[-1]
        assert row.kind == EntryKind.DATA
        w.queues.waiting = ""
        reaper = w.reapers["n1"]
        async with asyncio.timeout(10):
            while not reaper.announced_count:
                await asyncio.sleep(0.001)
        await w.wait_until_removed()
        assert reaper.reaped_count == reaper.announced_count == 1
        asked = sorted(set(w.queues.asked))
        assert asked == [row.offset, row.offset + 1], "the second wait is for the entry that tells"
        w.queues.offering = False
        await w.delete(SECOND)
        await w.wait_until_removed(SECOND)
        assert reaper.announced_count == 1


@pytest.mark.parametrize("taken", [True, False])
async def test_a_tombstone_that_leaves_elsewhere_leaves_here(taken: bool) -> None:
    """A tombstone announced by another cluster, over which nothing newer is stored here, is reaped by the local rules,
    and shown while it waits; with `repl_reap` off it stays. After a later write, and for an unknown key, nothing is
    stored."""

    async with reaping_cluster(DEFAULTS._replace(repl_reap=taken)) as w:
        coordinator = w.made.coordinators["n1"]
        dots = [(actor_of(OTHER, 0), pack_counter(1, number)) for number in (1, 2, 3)]
        value = write(None, (), Content(b"old"), dots[0], 1)
        gone = write(value, value.clock, TOMBSTONE, dots[1], 2)
        leaving = PushItem(KEY, OTHER, encode_object(gone), True)
        later = encode_object(write(gone, gone.clock, Content(b"new"), dots[2], 3))
        assert [r.outcome for r in await coordinator.push([PushItem(KEY, OTHER, leaving.payload)])] == ["applied"]
        w.sync("n1")
        outcomes = [(await coordinator.push([leaving]))[0].outcome for _ in range(2)]
        assert outcomes == ["applied" if taken else "superseded", "superseded"]
        if taken:
            await w.wait_for_wait_reason("replica n2 is not in sync")
            w.sync("n1", "n2")
            await w.wait_until_removed()
        assert w.reapers["n1"].announced_count == taken
        assert w.reapers["n1"].reaped_count == taken
        assert [r.outcome for r in await coordinator.push([PushItem(KEY, OTHER, later)])] == ["applied"]
        assert [r.outcome for r in await coordinator.push([leaving])] == ["superseded"]
        unknown = leaving._replace(key=SECOND)
        assert [r.outcome for r in await coordinator.push([unknown])] == ["superseded" if taken else "applied"]


async def reaped(w: ReapingCluster, *keys: Key) -> list[bytes]:
    """Writes, deletes and reaps keys; returns the clocks of their values."""
    clocks = []
    for key in keys:
        clocks.append((await w.made.coordinators["n1"].write(WriteRequest(key, Content(b"v")))).clock)
        await w.made.coordinators["n1"].write(WriteRequest(key, TOMBSTONE))
        assert (await w.reapers["n1"].ask(key)).outcome == "reaped"
        await w.wait_until_removed(key)
    return clocks


@pytest.mark.parametrize("node", ["n1", "n2"])
async def test_the_tombstone_of_a_reaped_key_is_written_once_more_when_full_sync_needs_it(node: str) -> None:
    """At any node, once: it has seen all that the removed one had, is applied when the call returns, and counts as this
    cluster's change, so that every queue offers it. A key that was written again, that never was, and one that is
    forgotten are passed over."""

    async with reaping_cluster() as w:
        (clock,) = await reaped(w, KEY)
        await reaped(w, SECOND)
        await w.made.coordinators["n1"].write(WriteRequest(SECOND, Content(b"again")))
        assert await w.recalls[node].recall([KEY, SECOND, THIRD]) == {KEY}
        found = w.in_store()
        assert found is not None
        assert found.deleted
        assert descends(found.clock, decode_clock(clock))
        change = w.made.store.changes(0, 0, 100)[-1]
        assert (change.origin, change.kind, change.key) == (UUID, EntryKind.DATA, KEY.key)
        end = w.made.runtimes["n1"].partitions[0].replica.leo
        assert await w.recalls[node].recall([KEY]) == set(), "it is there already"
        assert w.made.runtimes["n1"].partitions[0].replica.leo == end
        assert w.recalls["n1"].recalled_count == 1
        assert (await w.reapers["n1"].ask(KEY)).outcome == "reaped", "it goes again by the rules of every tombstone"
        await w.wait_until_removed()
        w.made.store._remembered.reaped = ReapedWindows()
        assert await w.recalls[node].recall([KEY]) == set()


async def test_a_recalled_tombstone_is_announced_where_reaps_are() -> None:
    """With `repl_reap` the other cluster learns with the tombstone that it is leaving."""

    async with reaping_cluster(DEFAULTS._replace(repl_reap=True)) as w:
        await reaped(w, KEY)
        w.queues.offering, w.queues.waiting = True, "queue west waits"
        assert await w.recalls["n2"].recall([KEY]) == {KEY}
        assert w.made.store.changes(0, 0, 100)[-1].kind == EntryKind.LEAVING
        w.queues.waiting = ""
        await w.wait_until_removed()


async def test_a_recall_that_is_not_applied_is_not_reported_as_done() -> None:
    """Refused by the core, dropped by a change of leader, too slow, or at a node that cannot be reached or does not
    know the request: the key is left for the next check, and other keys are recalled."""

    async with reaping_cluster() as w:
        other = keys_of(2, 1)[0]
        for key in (KEY, other):
            await reaped_in(w, key)
        runtime = w.made.runtimes["n1"]
        w.made.wire.down.add("n1")
        assert await w.recalls["n2"].recall([KEY]) == set()
        w.made.wire.down.clear()
        handlers = w.made.wire.handlers["n1"]
        known = handlers.pop(tombstone_recall.RECALL)
        handlers[tombstone_recall.RECALL] = unknown_request
        assert await w.recalls["n2"].recall([KEY]) == set()
        handlers[tombstone_recall.RECALL] = known
        runtime.refusal = TooFewInSync("few")
        assert await w.recalls["n2"].recall([KEY]) == set()
        runtime.refusal = None
        runtime.hold = True
        assert await w.recalls["n1"].recall([KEY]) == set(), "nothing is applied within the time-out"
        runtime.partitions[0].unapplied.clear_pending_rows()
        asked = asyncio.ensure_future(w.recalls["n1"].recall([KEY, other]))
        await asyncio.sleep(0.01)
        runtime.apply(runtime.partitions[2])
        runtime.step_down(0)
        assert await asked == {other}


async def test_no_tombstone_is_written_under_an_overtaken_actor() -> None:
    """R-ACTOR: another cluster holds writes of the partition's actor that its log lacks. A tombstone that is written
    once more would claim to have seen them, and replace them there: it waits for the new actor, as writes do."""

    async with reaping_cluster() as w:
        await reaped(w, KEY)
        await w.delete(SECOND)
        partition = w.made.runtimes["n1"].partitions[0]
        end = partition.replica.leo
        partition.overtaken_actor = partition.actor
        assert await w.recalls["n1"].recall([KEY]) == set()
        with pytest.raises(NotReady, match="until it has a new actor"):
            await w.reapers["n1"].ask(SECOND)
        assert partition.replica.leo == end
        partition.actor = actor_of(UUID, 0, 7)
        assert await w.recalls["n1"].recall([KEY]) == {KEY}
        found = w.in_store()
        assert found is not None
        assert actor_of(UUID, 0, 7) in {actor for actor, _, _ in found.clock}


@pytest.mark.logs_errors("reap.recall_bug")
async def test_a_key_whose_recall_meets_a_defect_holds_up_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """An exception that nobody foresaw ends the recall of one key; the other one is written again."""

    async with reaping_cluster() as w:
        await reaped(w, KEY, SECOND)
        sound = ReapBatch.recall

        def recall(self: ReapBatch, key: Key, hash64: int) -> bool:
            if key == KEY:
                raise ValueError("nobody foresaw this")
            return sound(self, key, hash64)

        monkeypatch.setattr(ReapBatch, "recall", recall)
        assert await w.recalls["n1"].recall([KEY, SECOND]) == {SECOND}
        assert "reap.recall_bug" in {defect.event for defect in unforeseen.recent()}


async def unknown_request(_node: str, _body: bytes) -> bytes:
    """The answer of a version that does not know a request."""
    raise CodecError("not a request that this node knows")


async def reaped_in(w: ReapingCluster, key: Key) -> None:
    """Writes, deletes and reaps a key of any partition that n1 leads."""
    w.reapers["n1"].leadership(2, True, 0)
    runtime = w.made.runtimes["n1"]
    runtime.partitions[2].replica.record = runtime.partitions[0].replica.record
    await w.made.coordinators["n1"].write(WriteRequest(key, Content(b"v")))
    await w.made.coordinators["n1"].write(WriteRequest(key, TOMBSTONE))
    assert (await w.reapers["n1"].ask(key)).outcome == "reaped"
    await asyncio.sleep(0.01)


@pytest.mark.parametrize(
    "body",
    [b"", b"\xc1", msgpack.packb({}), msgpack.packb([[b"t", b"b"]]), msgpack.packb([[b"t", b"b", "k"]]),
     msgpack.packb([[b"t", b"b", b"k"]] * (tombstone_recall.RECALLS_AT_ONCE + 1))],
    ids=["empty", "no msgpack", "a map", "no key", "a text", "too many"],
)  # fmt: skip
async def test_a_recall_of_a_wrong_shape_is_refused(body: bytes) -> None:
    """Other nodes may be of another version, or not what they say."""

    async with reaping_cluster() as w:
        with pytest.raises(CodecError, match=r"not a kv\.recall request"):
            await w.made.wire.handlers["n1"][tombstone_recall.RECALL]("n2", body)
