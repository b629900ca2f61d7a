"""A write under a request id takes effect once, wherever and whenever it is repeated within the window (H40)."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from isthmus.repl.coordinator.coordinator import Coordinator
from isthmus.repl.coordinator.write_batch import TooManySiblings
from isthmus.repl.model.entry import decode_key_row
from isthmus.repl.model.errors import BadInput, Corruption, IsthmusError, OutcomeUnknown, Retryable, TooFewInSync
from isthmus.repl.model.keys import Key, key_hash
from isthmus.repl.model.objects import TOMBSTONE, Content, Summary, decode_object, encode_object, write
from isthmus.repl.model.requests import PushItem, PushOutcome, WriteRequest, WriteResult
from isthmus.repl.model.vclock import actor_of, pack_counter
from isthmus.repl.store.leveldb import LevelStore
from isthmus.repl.store.reaped_pushes import EntryHeader, reap_entry
from tests.support.coordinator_cluster import OTHER, UUID, Cluster, cluster, key_of, keys_of

pytestmark = pytest.mark.virtual_time

KEY = key_of(0)


def named(value: bytes, request_id: bytes = b"id-1", key: Key = KEY) -> WriteRequest:
    return WriteRequest(key, Content(value), None, request_id)


async def values(c: Cluster, key: Key = KEY, node: str = "n1") -> list[bytes]:
    data = await c.coordinators[node].get(key)
    return [] if data is None else sorted(s.value for s in decode_object(data).live)


def both(c: Cluster) -> tuple[Coordinator, ...]:
    """The leader of KEY, and a node that forwards to it."""
    return c.coordinators["n1"], c.coordinators["n2"]


async def pending(c: Cluster, count: int = 1) -> None:
    """Waits until `count` entries are pending in KEY's partition."""
    async with asyncio.timeout(5):
        while len(c.runtimes["n1"].partitions[0].pending) < count:
            await asyncio.sleep(0.001)


async def test_an_applied_request_is_known_at_every_node() -> None:
    """The repeat writes nothing, whatever its content, and is answered with the key's current state."""

    async with cluster() as c:
        first = await c.coordinators["n1"].write(named(b"one"))
        assert not first.repeated
        for asked in both(c):
            again = await asked.write(named(b"other"))
            assert again == first._replace(repeated=True, leader=again.leader)
        later = await c.coordinators["n1"].write(WriteRequest(KEY, Content(b"two")))
        again = await c.coordinators["n2"].write(named(b"one"))
        assert (again.repeated, again.clock, again.sibling_count) == (True, later.clock, 2)
        assert await values(c) == [b"one", b"two"]
        repeats = [v for n, labels, v in c.coordinators["n1"].metrics() if labels.get("kind") == "repeated"]
        assert repeats == [3]


async def test_a_request_is_its_key_and_its_id() -> None:
    """The same id under another key of the partition, and another id under the same key, are other requests."""

    async with cluster() as c:
        one, two = keys_of(0, 2)
        results = await c.coordinators["n1"].write_batch(
            [named(b"1", key=one), named(b"2", key=two), named(b"3", b"id-2", one), named(b"4", key=one)]
        )
        assert [r.repeated for r in results if isinstance(r, WriteResult)] == [False, False, False, True]
        assert await values(c, one) == [b"1", b"3"]
        assert await values(c, two) == [b"2"]


async def test_a_pending_request_is_waited_for() -> None:
    """A repeat of an unapplied request, or of one in the same batch, is answered together with the first (R-WAIT)."""

    async with cluster() as c:
        c.runtimes["n1"].hold = True
        tasks = [asyncio.create_task(both(c)[0].write(named(b"one")))]
        await pending(c)
        tasks += [asyncio.create_task(asked.write(named(b"other"))) for asked in both(c)]
        tasks.append(asyncio.create_task(both(c)[0].write_batch([named(b"a", b"id-2"), named(b"b", b"id-2")])))
        await pending(c, 2)
        await asyncio.sleep(0.01)
        assert not any(task.done() for task in tasks)
        c.runtimes["n1"].apply(c.runtimes["n1"].partitions[0])
        first, again, forwarded, batch = await asyncio.gather(*tasks)
        assert not first.repeated
        assert again.repeated
        assert forwarded.repeated
        assert [r.repeated for r in batch] == [False, True]
        assert await values(c) == [b"a", b"one"]


async def test_a_repeat_waits_for_the_uncommitted_version_that_its_answer_contains() -> None:
    """R-WAIT: the request is applied, and a later write of its key is pending. The repeat is answered with the key's
    current version, so not before that is applied; if it is dropped instead, the repeat is not answered with it."""

    for applied in (True, False):
        async with cluster() as c:
            first = await c.coordinators["n1"].write(named(b"one"))
            c.runtimes["n1"].hold = True
            later = asyncio.create_task(c.coordinators["n1"].write(WriteRequest(KEY, Content(b"two"))))
            await pending(c)
            repeats = [asyncio.create_task(asked.write(named(b"one"))) for asked in both(c)]
            await asyncio.sleep(0.01)
            assert not any(task.done() for task in (later, *repeats))
            if applied:
                c.runtimes["n1"].apply(c.runtimes["n1"].partitions[0])
                assert {(await task).clock for task in repeats} == {(await later).clock} != {first.clock}
            else:
                c.runtimes["n1"].step_down(0)
                results = await asyncio.gather(later, *repeats, return_exceptions=True)
                assert all(isinstance(result, IsthmusError) for result in results), results


async def test_a_repeat_waits_for_the_pending_removal_that_its_answer_contains() -> None:
    """R-WAIT: the key was deleted, and the first reap of its partition is pending. The repeat would be answered with
    the clock of the reaped tombstone, so not before the reap is applied."""

    async with cluster() as c:
        coordinator, runtime = c.coordinators["n1"], c.runtimes["n1"]
        await coordinator.write(named(b"one"))
        gone = await coordinator.write(WriteRequest(KEY, TOMBSTONE))
        runtime.hold = True
        partition = runtime.partitions[0]
        row = decode_key_row(c.store.key_row(0, key_hash(KEY.bucket, KEY.key), KEY.bucket, KEY.key) or b"")
        stamp = EntryHeader(partition.replica.epoch, partition.replica.leo, 1)
        reap = reap_entry(stamp, UUID, KEY, key_hash(KEY.bucket, KEY.key), row.offset, Summary(*row[:-1]))
        assert runtime.append(partition, [reap], 0) is None
        partition.unapplied.add_pending_rows({(KEY.bucket, KEY.key): reap})
        repeats = [asyncio.create_task(asked.write(named(b"one"))) for asked in both(c)]
        await asyncio.sleep(0.01)
        assert not any(task.done() for task in repeats)
        runtime.apply(partition)
        answers = await asyncio.gather(*repeats)
        assert {(answer.repeated, answer.clock, answer.payload) for answer in answers} == {(True, gone.clock, b"")}


async def test_a_request_that_was_dropped_is_unknown_and_then_free() -> None:
    """A repeat that waited for an entry which a change of leader dropped has an unknown outcome, like the first; the
    next one is written by the new leader, once."""

    async with cluster() as c:
        c.runtimes["n1"].hold = True
        tasks = [asyncio.create_task(c.coordinators["n1"].write(named(b"one")))]
        await pending(c)
        tasks += [asyncio.create_task(asked.write(named(b"one"))) for asked in both(c)]
        await asyncio.sleep(0.01)
        c.move(0, "n2")
        for task in tasks:
            with pytest.raises(OutcomeUnknown):
                await task
        assert await values(c) == []
        for repeated in (False, True):
            for asked in both(c)[: 1 + repeated]:
                assert (await asked.write(named(b"one"))).repeated == repeated
        c.runtimes["n1"].hold = False
        c.move(0, "n1")
        assert (await c.coordinators["n1"].write(named(b"one"))).repeated
        assert await values(c) == [b"one"]


async def test_a_repeat_answered_as_unknown_leaves_no_waiter() -> None:
    """Repeats wait for the entry of the first, without one of their own and so outside the window: if nothing is
    committed for hours, those of disconnected clients are dropped."""

    async with cluster(request_timeout_ms=100) as c:
        runtime = c.runtimes["n1"]
        runtime.hold = True
        for _ in range(3):
            asked = [c.coordinators["n1"].write(named(b"one")) for _ in range(20)]
            results = await asyncio.gather(*asked, return_exceptions=True)
            assert {type(result) for result in results} == {OutcomeUnknown}
            assert runtime.partitions[0].waiters.idle
        late = asyncio.create_task(c.coordinators["n1"].write(named(b"one")))
        await asyncio.sleep(0.01)
        runtime.apply(runtime.partitions[0])
        assert (await late).repeated


async def test_a_leader_that_comes_back_does_not_know_what_was_dropped() -> None:
    """A request that was pending when leadership ended, and is in no log any more, is written when it is repeated."""

    async with cluster() as c:
        await c.coordinators["n1"].write(WriteRequest(KEY, Content(b"zero")))
        c.runtimes["n1"].hold = True
        task = asyncio.create_task(c.coordinators["n1"].write(named(b"one")))
        await pending(c)
        c.move(0, "n2")
        with pytest.raises(OutcomeUnknown):
            await task
        c.runtimes["n1"].hold = False
        c.move(0, "n1")
        assert not (await c.coordinators["n1"].write(named(b"one"))).repeated
        assert await values(c) == [b"one", b"zero"]


async def test_a_refused_request_stays_free() -> None:
    """An id whose write was refused is unused: the same write takes effect afterwards. The same holds for a delete of a
    missing key."""

    async with cluster() as c:
        c.runtimes["n1"].refusal = TooFewInSync("few")
        for asked in both(c):
            with pytest.raises(TooFewInSync):
                await asked.write(named(b"one"))
        c.runtimes["n1"].refusal = None
        delete = WriteRequest(KEY, TOMBSTONE, None, b"id-2")
        assert not (await c.coordinators["n1"].write(delete)).created
        assert not (await c.coordinators["n1"].write(named(b"one"))).repeated
        gone = await c.coordinators["n1"].write(delete)
        assert (gone.created, gone.repeated) == (True, False)
        again = await c.coordinators["n1"].write(delete)
        assert (again.created, again.repeated, again.clock) == (True, True, gone.clock)


async def test_the_dedup_window_is_bounded_by_offsets() -> None:
    """Within the window a repeat is recognized; once the partition's log has advanced by that much, it is a new
    write."""

    async with cluster(window=5) as c:
        await c.coordinators["n1"].write(named(b"one"))
        fillers = keys_of(0, 6)[1:]
        for key in fillers[:4]:
            await c.coordinators["n1"].write(WriteRequest(key, Content(b"x")))
        assert (await c.coordinators["n1"].write(named(b"one"))).repeated
        await c.coordinators["n1"].write(WriteRequest(fillers[4], Content(b"x")))
        assert not (await c.coordinators["n1"].write(named(b"one"))).repeated
        assert await values(c) == [b"one", b"one"]


async def test_a_request_is_known_after_a_restart(tmp_path: Path) -> None:
    """The window is part of the store's batches: another process on the same directory recognizes applied requests."""

    def opened() -> LevelStore:
        return LevelStore.open(
            tmp_path, cluster_uuid=UUID, write_buffer_bytes=100_000, block_cache_bytes=100_000, boot_id="boot"
        )

    async def scenario(value: bytes) -> tuple[WriteResult, list[bytes]]:
        async with cluster(store=opened()) as c:
            try:
                return await c.coordinators["n1"].write(named(value)), await values(c)
            finally:
                c.store.close()

    first, _ = await scenario(b"one")
    again, found = await scenario(b"two")
    assert again == first._replace(repeated=True)
    assert found == [b"one"]


async def test_an_id_has_a_length() -> None:
    """An id longer than 64 bytes is refused for that item alone, at the leader and through forwarding."""

    async with cluster() as c:
        for asked in both(c):
            results = await asked.write_batch([named(b"x", b"i" * 65), named(b"y", b"i" * 64)])
            assert isinstance(results[0], BadInput)
            assert isinstance(results[1], WriteResult)


async def test_a_refusal_that_depends_on_a_pending_entry_waits_for_it() -> None:
    """A refusal for too many siblings that depends on unapplied entries is sent when they are applied; if they are
    dropped, the write may be retried (R-WAIT)."""

    async def scenario(applied: bool) -> IsthmusError:
        async with cluster() as c:
            c.runtimes["n1"].hold = True
            tasks = [
                asyncio.create_task(c.coordinators["n1"].write(WriteRequest(KEY, Content(b"%d" % n)))) for n in range(6)
            ]
            await pending(c, 5)
            await asyncio.sleep(0.01)
            assert not any(task.done() for task in tasks)
            if applied:
                c.runtimes["n1"].apply(c.runtimes["n1"].partitions[0])
            else:
                c.runtimes["n1"].step_down(0)
            *_, error = await asyncio.gather(*tasks, return_exceptions=True)
            assert isinstance(error, IsthmusError)
            return error

    assert isinstance(await scenario(True), TooManySiblings)
    assert isinstance(await scenario(False), Retryable)


@pytest.mark.parametrize("ending", ["applied", "dropped", "late"])
async def test_a_push_with_an_equal_clock_and_other_bytes_is_judged_by_what_is_applied_alone(ending: str) -> None:
    """Against an uncommitted entry the push waits (R-WAIT). It is rejected only once that entry is applied: if the
    entry is dropped, or stays uncertain too long, the pushed object may be the only one."""

    def pushed(value: bytes) -> PushItem:
        dot = (actor_of(OTHER, 0), pack_counter(1, 1))
        return PushItem(KEY, OTHER, encode_object(write(None, (), Content(value), dot, 1_700_000_000_000)))

    async with cluster(request_timeout_ms=100 if ending == "late" else 5_000) as c:
        runtime = c.runtimes["n1"]
        runtime.hold = True
        first = asyncio.create_task(c.coordinators["n1"].push([pushed(b"one")]))
        await pending(c, 1)
        others = [asyncio.create_task(c.coordinators["n1"].push([pushed(v)])) for v in (b"one", b"other")]
        await asyncio.sleep(0.01)
        assert not any(task.done() for task in (first, *others))
        if ending == "applied":
            runtime.apply(runtime.partitions[0])
        elif ending == "dropped":
            runtime.step_down(0)
        (_,), (same,), (other,) = await asyncio.gather(first, *others)
        if ending == "applied":
            assert (same.outcome, other.outcome) == (PushOutcome.SUPERSEDED, PushOutcome.REJECTED)
            assert isinstance(other.error, Corruption)
        else:
            assert (same.outcome, other.outcome) == (PushOutcome.FAILED, PushOutcome.FAILED)
