"""The write path of one node: client -> coordinator -> core -> log -> store -> answer, and back after a restart."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest
import structlog

from isthmus.node.services.fullsync_ports import NodeReplicas
from isthmus.repl.isr import events as ev
from isthmus.repl.isr.replica_state import ReplicaOptions
from isthmus.repl.model.errors import (
    BadInput,
    Corruption,
    IsthmusError,
    NotReady,
    OutcomeUnknown,
    OutOfStorage,
    Overloaded,
    TooLarge,
)
from isthmus.repl.model.keys import Key
from isthmus.repl.model.objects import TOMBSTONE, Content, Object, decode_object, encode_object, merge, write
from isthmus.repl.model.ports import AppliedEntries
from isthmus.repl.model.requests import PushItem, PushOutcome, WriteRequest, WriteResult
from isthmus.repl.model.vclock import Clock, actor_of, decode_clock, pack_counter
from isthmus.repl.replog import writer
from isthmus.repl.store import row_codec
from isthmus.repl.store.rows import CHANGE_HEAD, bucket_head
from tests.support.memory_metastore import MemoryEnsemble
from tests.support.runtime_cluster import eventually
from tests.support.waiting import PATIENCE_S

NodeFactory = Callable[..., AbstractAsyncContextManager]

OTHER = b"west-cluster-016"


def key(name: bytes, bucket: bytes = b"b") -> Key:
    return Key(b"default", bucket, name)


def values(data: bytes | None) -> list[bytes]:
    assert data is not None
    return sorted(s.value for s in decode_object(data).live)


def foreign(current: Object | None, context: Clock, value: bytes, counter: int) -> Object:
    return write(current, context, Content(value), (actor_of(OTHER, 1), counter), 1_700_000_000_000)


async def test_acknowledged_writes_are_there_after_a_restart(tmp_path: Path, start_node: NodeFactory) -> None:
    """Written, read back, and read back again after a clean stop and after a kill, with the clock unchanged."""

    ensemble = MemoryEnsemble()
    async with start_node(tmp_path, ensemble) as h:
        first = await h.coordinator.write(WriteRequest(key(b"k"), Content(b"one")))
        await h.coordinator.write(WriteRequest(key(b"gone"), Content(b"x")))
        await h.coordinator.write(WriteRequest(key(b"gone"), TOMBSTONE))
    async with start_node(tmp_path, ensemble, stop=False) as h:
        data = await h.coordinator.get(key(b"k"))
        assert values(data) == [b"one"]
        assert decode_object(data).clock == decode_clock(first.clock)
        await h.coordinator.write(WriteRequest(key(b"k"), Content(b"two"), decode_clock(first.clock)))
        await h.coordinator.write(WriteRequest(key(b"after kill"), Content(b"y")))
    async with start_node(tmp_path, ensemble) as h:
        assert values(await h.coordinator.get(key(b"k"))) == [b"two"]
        assert values(await h.coordinator.get(key(b"after kill"))) == [b"y"]
        assert decode_object(await h.coordinator.get(key(b"gone"))).deleted
        listed = [k async for batch in h.coordinator.list_keys(b"default", b"b") for k in batch]
        assert sorted(listed) == [b"after kill", b"k"]
        assert [b async for batch in h.coordinator.list_buckets(b"default") for b in batch] == [b"b"]


async def test_replay_after_a_power_loss_passes_what_was_found_before_serving(
    tmp_path: Path, start_node: NodeFactory
) -> None:
    """After another boot the log is replayed from the floor; afterwards the store reports that no replay is needed
    (H36)."""

    ensemble = MemoryEnsemble()
    async with start_node(tmp_path, ensemble, stop=False) as h:
        for n in range(50):
            await h.coordinator.write(WriteRequest(key(b"%d" % n), Content(b"v%d" % n)))
    async with start_node(tmp_path, ensemble, boot_id="boot-2") as h:
        for n in range(50):
            assert values(await h.coordinator.get(key(b"%d" % n))) == [b"v%d" % n]
        async with asyncio.timeout(PATIENCE_S):
            while h.runtime.store.needs_replay():
                await asyncio.sleep(0.005)
        assert not h.failures


async def test_a_checkpoint_floor_is_never_above_the_synced_log(
    tmp_path: Path, start_node: NodeFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With durability async, too: no power loss leaves a store whose floor is above its log, which could not be forced
    to lead (H36)."""
    monkeypatch.setattr(writer, "ASYNC_SYNC_S", 1_000.0)
    tails: list[tuple[object, object]] = []

    async with start_node(tmp_path, MemoryEnsemble(), durability="async", stop=False) as h:
        await h.coordinator.write(WriteRequest(key(b"k"), Content(b"v")))
        tail = h.runtime.replog._tail  # type: ignore[attr-defined]
        tails.append((tail.durable, tail.end))
        h.runtime.store.checkpoint()
        tails.append((tail.durable, tail.end))
        assert max(h.runtime.store.durable_floor(p) for p in h.runtime.partitions) > 0
    (durable, end), (durable_then, end_then) = tails
    assert durable != end
    assert durable_then == end_then == end


async def test_concurrent_writes_of_one_key_each_see_the_one_before(tmp_path: Path, start_node: NodeFactory) -> None:
    """Blind writes that arrive together become siblings, none is lost; a write with the context resolves them."""

    async with start_node(tmp_path, MemoryEnsemble()) as h:
        await asyncio.gather(*(h.coordinator.write(WriteRequest(key(b"k"), Content(b"%d" % n))) for n in range(5)))
        data = await h.coordinator.get(key(b"k"))
        assert values(data) == [b"0", b"1", b"2", b"3", b"4"]
        with pytest.raises(BadInput, match="6 siblings"):
            await h.coordinator.write(WriteRequest(key(b"k"), Content(b"5")))
        clock = decode_object(data).clock
        assert len(clock) == 1
        await h.coordinator.write(WriteRequest(key(b"k"), Content(b"all"), clock))
        assert values(await h.coordinator.get(key(b"k"))) == [b"all"]


async def test_a_batch_answers_item_by_item(tmp_path: Path, start_node: NodeFactory) -> None:
    """One bad item of a batch is refused by itself; the same key twice in a batch is written in order."""

    async with start_node(tmp_path, MemoryEnsemble()) as h:
        results = await h.coordinator.write_batch(
            [
                WriteRequest(key(b"a"), Content(b"1")),
                WriteRequest(key(b""), Content(b"1")),
                WriteRequest(Key(b"nope", b"b", b"k"), Content(b"1")),
                WriteRequest(key(b"x" * 101), Content(b"1")),
                WriteRequest(key(b"big"), Content(b"x" * 1_000_001)),
                WriteRequest(key(b"a"), Content(b"2")),
                WriteRequest(key(b"never"), TOMBSTONE),
            ]
        )
        kinds = [r.reason if isinstance(r, IsthmusError) else "written" for r in results]
        assert kinds == [
            "written",
            "bad-input",
            "unknown-bucket-type",
            "bad-input",
            "too-large",
            "written",
            "written",
        ]
        assert isinstance(results[4], TooLarge)
        last = results[-1]
        assert isinstance(last, WriteResult)
        assert not last.created
        assert values(await h.coordinator.get(key(b"a"))) == [b"1", b"2"]


async def test_a_context_from_the_future_is_refused(tmp_path: Path, start_node: NodeFactory) -> None:
    """A clock that claims writes of this cluster that were never made would make later ones vanish: 400 (R-DOT,
    H41)."""

    async with start_node(tmp_path, MemoryEnsemble()) as h:
        await h.coordinator.write(WriteRequest(key(b"k"), Content(b"1")))
        for partition in range(4):
            ahead: Clock = ((actor_of(b"east-cluster-016", partition), pack_counter(900, 5), 1),)
            results = await h.coordinator.write_batch(
                [WriteRequest(key(b"%d" % n), Content(b"x"), ahead) for n in range(40)]
            )
            refused = [r for r in results if isinstance(r, BadInput)]
            assert refused
            assert "has not made" in str(refused[0])


async def test_pushes_are_judged_by_their_clocks(tmp_path: Path, start_node: NodeFactory) -> None:
    """A newer push is stored as it came, an older or repeated one changes nothing, a concurrent one merges (R-WAIT)."""

    async with start_node(tmp_path, MemoryEnsemble()) as h:
        one = foreign(None, (), b"one", 1)
        two = foreign(one, one.clock, b"two", 2)

        async def push(obj: Object, name: bytes = b"k") -> PushOutcome:
            (result,) = await h.coordinator.push([PushItem(key(name), OTHER, encode_object(obj))])
            assert result.error is None
            return result.outcome

        assert await push(one) is PushOutcome.APPLIED
        assert await push(one) is PushOutcome.SUPERSEDED
        assert await push(two) is PushOutcome.APPLIED
        assert await push(one) is PushOutcome.SUPERSEDED
        assert await h.coordinator.get(key(b"k")) == encode_object(two)
        mine = await h.coordinator.write(WriteRequest(key(b"m"), Content(b"mine")))
        assert await push(one, b"m") is PushOutcome.MERGED
        data = await h.coordinator.get(key(b"m"))
        assert values(data) == [b"mine", b"one"]
        assert decode_object(data) == merge(decode_object(mine.payload), one)
        (bad,) = await h.coordinator.push([PushItem(key(b"k"), OTHER, b"\x93junk")])
        assert bad.outcome is PushOutcome.REJECTED
        forged = Object(two.clock, (two.siblings[0]._replace(value=b"forged"),))
        (corrupt,) = await h.coordinator.push([PushItem(key(b"k"), OTHER, encode_object(forged))])
        assert corrupt.outcome is PushOutcome.REJECTED
        assert corrupt.error is not None
        assert corrupt.error.reason == "corruption"
        together = await h.coordinator.push(
            [PushItem(key(b"n"), OTHER, encode_object(o)) for o in (one, one, two, one)]
        )
        assert [r.outcome.value for r in together] == ["applied", "superseded", "applied", "superseded"]


async def test_a_stored_object_that_cannot_be_read_is_not_the_writers_fault(
    tmp_path: Path, start_node: NodeFactory
) -> None:
    """A write that would be merged with the damaged object is refused as corruption of this node; one whose clock
    covers it replaces it."""

    async with start_node(tmp_path, MemoryEnsemble()) as h:
        written = await h.coordinator.write(WriteRequest(key(b"k"), Content(b"one")))
        store = h.runtime.store
        (found,) = [
            (partition, row, change)
            for partition in h.runtime.partitions
            for _, _, name, row in store.key_rows(partition, 0, 1 << 20)
            for change in store.changes(partition, 0, 100)
            if name == change.key == b"k"
        ]
        partition, row, change = found
        head = CHANGE_HEAD.pack(change.kind, change.key_hash, change.time_ms) + change.origin
        broken = (change.offset, head + bucket_head(change.bucket) + change.key, row, b"\xc1")
        assert store.transfers.mend(partition, row_codec.encode([broken]), row, change.offset + 1)
        with pytest.raises(Corruption, match="b'k' cannot be read"):
            await h.coordinator.write(WriteRequest(key(b"k"), Content(b"blind")))
        await h.coordinator.write(WriteRequest(key(b"k"), Content(b"anew"), decode_object(written.payload).clock))
        assert values(await h.coordinator.get(key(b"k"))) == [b"anew"]


async def test_pushed_changes_keep_their_origin_and_merges_are_ours(tmp_path: Path, start_node: NodeFactory) -> None:
    """The origin is the pusher's when its object was stored as it came, else this cluster's."""

    class RecordingListener:
        def __init__(self) -> None:
            self.origins: list[tuple[bytes, bytes]] = []
            self.led: list[tuple[int, bool]] = []

        def applied(self, applied: list[AppliedEntries]) -> None:
            self.origins += [(e.key, e.origin) for step in applied for e in step.entries if e.key and step.leader]

        def leadership(self, partition: int, leading: bool, applied_offset: int) -> None:
            self.led.append((partition, leading))

    seen = RecordingListener()
    async with start_node(tmp_path, MemoryEnsemble()) as h:
        h.runtime.listeners.add(seen)
        await h.coordinator.write(WriteRequest(key(b"m"), Content(b"mine")))
        one = encode_object(foreign(None, (), b"one", 1))
        await h.coordinator.push([PushItem(key(b"k"), OTHER, one), PushItem(key(b"m"), OTHER, one)])
        ours = h.runtime.cluster_uuid
        assert seen.origins[0] == (b"m", ours)
        assert sorted(seen.origins[1:]) == sorted([(b"k", OTHER), (b"m", ours)])
    assert sorted(seen.led) == [(p, False) for p in range(4)]


async def test_a_full_window_refuses_writes_and_loses_none(tmp_path: Path, start_node: NodeFactory) -> None:
    """More writes in one turn than the window holds are refused as overloaded, definitely; acknowledged ones are
    there."""

    async with start_node(tmp_path, MemoryEnsemble(), options=ReplicaOptions(window_entries=20)) as h:
        results = await asyncio.gather(
            *(h.coordinator.write(WriteRequest(key(b"%d" % n), Content(b"v"))) for n in range(300)),
            return_exceptions=True,
        )
        refused = [n for n, r in enumerate(results) if isinstance(r, Overloaded)]
        assert refused
        for n, result in enumerate(results):
            data = await h.coordinator.get(key(b"%d" % n))
            assert (data is None) == isinstance(result, Overloaded), n
        await h.coordinator.write(WriteRequest(key(b"again"), Content(b"v")))


async def test_a_full_disk_refuses_writes_and_serves_reads(
    tmp_path: Path, start_node: NodeFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without room for the log, writes are refused before anything happens; reads are served; with space again writes
    are, too (H38)."""

    async with start_node(tmp_path, MemoryEnsemble()) as h:
        await h.coordinator.write(WriteRequest(key(b"k"), Content(b"v")))
        with monkeypatch.context() as patch:
            patch.setattr(h.runtime.replog, "has_space", lambda _size: False)
            with pytest.raises(OutOfStorage):
                await h.coordinator.write(WriteRequest(key(b"k2"), Content(b"v")))
            assert values(await h.coordinator.get(key(b"k"))) == [b"v"]
        await h.coordinator.write(WriteRequest(key(b"k2"), Content(b"v")))


async def test_nothing_is_served_without_a_leader(tmp_path: Path, start_node: NodeFactory) -> None:
    """After the session expired and until a new epoch is led, reads and writes are refused as not ready (R-READ)."""

    async with start_node(tmp_path, MemoryEnsemble()) as h:
        await h.coordinator.write(WriteRequest(key(b"k"), Content(b"v")))
        await h.controller.stop()
        h.runtime.dispatch_all(ev.SessionExpired())
        for ask in (h.coordinator.get(key(b"k")), h.coordinator.write(WriteRequest(key(b"k"), Content(b"w")))):
            with pytest.raises(NotReady):
                await ask


async def test_a_write_without_an_outcome_in_time_is_unknown(
    tmp_path: Path, start_node: NodeFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When the store does not answer in time the write's outcome is unknown, and it takes effect anyway."""

    async with start_node(tmp_path, MemoryEnsemble()) as h:
        h.coordinator._timeouts._timeout_s = 0.3
        held = threading.Event()
        commit = h.runtime.store.commit

        def slow(prepared: object) -> None:
            held.wait(60)
            commit(prepared)

        with monkeypatch.context() as patch:
            patch.setattr(h.runtime.store, "commit", slow)
            patch.setattr(h.runtime.store, "takes_at_once", lambda _prepared: False)
            with pytest.raises(OutcomeUnknown):
                await h.coordinator.write(WriteRequest(key(b"k"), Content(b"v")))
            held.set()
        async with asyncio.timeout(PATIENCE_S):
            while await h.coordinator.get(key(b"k")) is None:
                await asyncio.sleep(0.005)


async def test_an_answer_that_depends_on_a_pending_entry_waits_for_it(
    tmp_path: Path, start_node: NodeFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R-WAIT: a push that a pending write supersedes, and a delete of a key that is being deleted, are answered only
    once the entry that they were judged against is applied."""

    async with start_node(tmp_path, MemoryEnsemble()) as h:
        one = foreign(None, (), b"one", 1)
        await h.coordinator.push([PushItem(key(b"k"), OTHER, encode_object(one))])
        held = threading.Event()
        commit = h.runtime.store.commit

        def slow(prepared: object) -> None:
            held.wait(60)
            commit(prepared)

        with monkeypatch.context() as patch:
            patch.setattr(h.runtime.store, "commit", slow)
            patch.setattr(h.runtime.store, "takes_at_once", lambda _prepared: False)
            first = asyncio.create_task(h.coordinator.write(WriteRequest(key(b"k"), TOMBSTONE)))
            await asyncio.sleep(0.05)
            second = asyncio.create_task(h.coordinator.write(WriteRequest(key(b"k"), TOMBSTONE)))
            push = asyncio.create_task(h.coordinator.push([PushItem(key(b"k"), OTHER, encode_object(one))]))
            await asyncio.sleep(0.1)
            assert not first.done()
            assert not second.done()
            assert not push.done()
            held.set()
            assert (await first).created
            assert not (await second).created
            assert [r.outcome for r in await push] == [PushOutcome.SUPERSEDED]


async def test_a_replay_ends_once_the_last_copy_is_opened(tmp_path: Path, start_node: NodeFactory) -> None:
    """After another boot the records of some partitions come later, as on a restored directory: the store notes the end
    of the replay when these are replayed, too, not before, and nothing of the node fails meanwhile. The partitions
    whose own replay has ended have all of their rows, so full-sync may compare them: the others' may never come
    (H36)."""

    def named(n: int) -> bytes:
        return b"%d" % n

    ensemble = MemoryEnsemble()
    async with start_node(tmp_path, ensemble, stop=False) as h:
        for n in range(50):
            await h.coordinator.write(WriteRequest(key(named(n)), Content(b"v%d" % n)))
        assert all(h.runtime.store.applied(p).offset > 1 for p in range(4))
    hidden = {path: ensemble._nodes.pop(path) for path in ("/p/2", "/p/3")}
    with structlog.testing.capture_logs() as lines:
        async with start_node(tmp_path, ensemble, boot_id="boot-2", wait=False) as h:
            await eventually(lambda: all(p in h.runtime.partitions and h.partition(p).serves for p in (0, 1)))
            await asyncio.sleep(0.2)
            assert h.runtime.store.needs_replay()
            replicas = NodeReplicas(h.runtime, h.runtime.store)
            assert {one.partition: one.whole for one in replicas.snapshots()} == {0: True, 1: True}
            assert [h.runtime.store.lacks_rows(p) for p in range(4)] == [False, False, True, True]
            for path, node in hidden.items():
                ensemble.create(path, node.value)
            await eventually(lambda: len(h.runtime.partitions) == 4 and h.ready)
            await eventually(lambda: not h.runtime.store.needs_replay())
            for n in range(50):
                assert values(await h.coordinator.get(key(named(n)))) == [b"v%d" % n]
            assert not h.failures
    assert [line["event"] for line in lines if line["log_level"] in ("error", "critical")] == []
