"""Apply listeners of a led partition are notified of every entry, also while its leadership is being handed over."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest

from isthmus.repl.isr.effects import ReplicaRole
from isthmus.repl.model.errors import OutcomeUnknown
from isthmus.repl.model.keys import Key, key_hash
from isthmus.repl.model.objects import Content
from isthmus.repl.model.ports import AppliedEntries
from isthmus.repl.model.requests import WriteRequest, WriteResult
from isthmus.repl.runtime.applier import RETRY_PAUSES_S
from isthmus.repl.store import leveldb
from tests.support.memory_metastore import MemoryEnsemble
from tests.support.runtime_cluster import Cluster, Node, eventually
from tests.support.waiting import PATIENCE_S

ClusterFactory = Callable[..., AbstractAsyncContextManager[Cluster]]
NodeFactory = Callable[..., AbstractAsyncContextManager[Node]]


class Listener:
    """Offsets of partition 0 that a leader was notified of, and the offset from which it leads."""

    def __init__(self) -> None:
        self.next = -1
        """-1: it does not lead."""
        self.missed: list[tuple[int, int]] = []
        self.begun = 0

    def applied(self, applied: Sequence[AppliedEntries]) -> None:
        """A leader's entries must follow on the previous notification."""
        for partition, entries, leader in applied:
            if partition == 0 and leader and self.next >= 0:
                if entries[0].offset != self.next:
                    self.missed.append((self.next, entries[0].offset))
                self.next = entries[-1].offset + 1

    def leadership(self, partition: int, leading: bool, applied_offset: int) -> None:
        """Leadership begins or ends."""
        if partition == 0:
            self.next = applied_offset if leading else -1
            self.begun += leading


class Gate:
    """Lets the store's writer through, a batch at a time, once it is shut."""

    def __init__(self, member: Node, monkeypatch: pytest.MonkeyPatch) -> None:
        self._commit = member.runtime.store.commit
        self._may_go = threading.Semaphore(0)
        self._shut = False
        self.waiting = False
        monkeypatch.setattr(member.runtime.store, "commit", self._pass)
        monkeypatch.setattr(member.runtime.store, "takes_at_once", lambda _prepared: False)

    def _pass(self, prepared: object) -> None:
        self.waiting = self._shut
        if self._shut:
            assert self._may_go.acquire(timeout=60)
        self.waiting = False
        self._commit(prepared)  # type: ignore[arg-type]

    def shut(self) -> None:
        """Hold the writer from the next batch on."""
        self._shut = True

    def let_one_through(self) -> None:
        """The batch that waits, or the next one."""
        self._may_go.release()

    def open(self) -> None:
        """Let all batches through."""
        self._shut = False
        self._may_go.release()


async def test_entries_applied_during_a_failed_handover_reach_the_listeners(
    tmp_path: Path, start_cluster: ClusterFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A leader that drains for a hand-over which then fails keeps leading, and its listeners have missed no entry: a
    source queue would skip entries that it was not notified of."""

    async with start_cluster(tmp_path) as t:
        leader = await t.led()
        listener = Listener()
        listener.next = leader.partition().replica.applied
        leader.runtime.listeners.add(listener)
        gate = Gate(leader, monkeypatch)
        gate.shut()
        leo, writes = leader.partition().replica.leo, []

        def waits() -> bool:
            return leader.partition().replica.leo == leo + len(writes) and gate.waiting

        for name in (b"drained", b"too-late"):
            request = WriteRequest(Key(b"default", b"b", name), Content(b"v"))
            writes.append(asyncio.create_task(leader.coordinator.write(request)))
            await eventually(waits)
        leader.runtime.hand_over(leader.partition(), None, 2_000)
        before = leader.partition().replica.applied
        gate.let_one_through()
        await eventually(lambda: leader.partition().replica.applied > before)
        assert leader.partition().replica.role is ReplicaRole.RESIGNING
        await eventually(lambda: leader.partition().replica.role is ReplicaRole.LEADER)
        gate.open()
        await asyncio.gather(*writes)
        await leader.coordinator.write(WriteRequest(Key(b"default", b"b", b"after"), Content(b"v")))
        assert listener.missed == []
        assert listener.next == leader.partition().replica.applied


class FailingListener:
    """A hook with a bug."""

    def applied(self, _applied: Sequence[AppliedEntries]) -> None:
        """Always fails."""
        raise ValueError("a bug in what apply tells")

    def leadership(self, _partition: int, _leading: bool, _applied_offset: int) -> None:
        """Nor does this."""
        raise KeyError("a bug in what is told of leadership")


@pytest.mark.logs_errors("runtime.hook_bug")
async def test_a_failing_listener_does_not_affect_the_others(tmp_path: Path, start_cluster: ClusterFactory) -> None:
    """Entries applied in the same batch, of its partition and of others, are still notified, answered and served;
    leadership continues, is handed over, and is taken."""

    async with start_cluster(tmp_path, partitions=4) as t:
        listeners = {}
        for member in t.members.values():
            member.runtime.listeners._listeners.insert(0, FailingListener())
            listeners[member.node] = Listener()
            member.runtime.listeners.add(listeners[member.node])
        for name in (b"k%d" % number for number in range(30)):
            request = WriteRequest(Key(b"default", b"b", name), Content(b"v"))
            async with asyncio.timeout(PATIENCE_S):
                await (await t.led()).coordinator.write(request)
        before = await t.led()
        before.runtime.hand_over(before.partition(), None, 5_000)
        after = await t.led_by_another(before)
        async with asyncio.timeout(PATIENCE_S):
            await after.coordinator.write(WriteRequest(Key(b"default", b"b", b"after"), Content(b"v")))
            assert await after.coordinator.get(Key(b"default", b"b", b"k1")) is not None
        await t.settled()
        assert listeners[after.node].begun == 1
        assert listeners[after.node].next == after.partition().replica.applied
        assert not any(listener.missed for listener in listeners.values())


@pytest.mark.logs_errors("apply.step_failed", "runtime.bug", "isr.role")
@pytest.mark.parametrize("times", ["once", "thrice", "always"])
async def test_an_entry_that_cannot_be_applied_stops_its_partition_alone(
    tmp_path: Path, start_node: NodeFactory, monkeypatch: pytest.MonkeyPatch, times: str
) -> None:
    """The rows of one partition's entry cannot be made: they are made again after growing pauses, and the copy goes on,
    or stops with a reason after the last one. The entries of all other partitions of the same batch are applied
    meanwhile, and a restart applies what is left (R-ALONE)."""
    ensemble = MemoryEnsemble()
    async with start_node(tmp_path, ensemble) as h:
        keys = {h.coordinator.routes.partition_of(b"default", key_hash(b"b", b"%d" % n)): b"%d" % n for n in range(60)}
        assert len(keys) == 4
        failures, most = 0, {"once": 1, "thrice": 3, "always": 2 + len(RETRY_PAUSES_S)}[times]
        make = leveldb.fill

        def fails(batch: Any, steps: Any, *args: Any) -> Any:
            nonlocal failures
            made = make(batch, steps, *args)
            if any(step.partition == 2 and step.entries for step in steps) and failures < most:
                failures += 1
                raise RuntimeError("injected")
            return made

        with monkeypatch.context() as patch:
            patch.setattr(leveldb, "fill", fails)
            writes = [WriteRequest(Key(b"default", b"b", name), Content(b"v")) for name in keys.values()]
            results = dict(zip(keys, await h.coordinator.write_batch(writes), strict=True))
        assert failures == most
        applied = [p for p, result in results.items() if isinstance(result, WriteResult)]
        assert sorted(applied) == ([0, 1, 3] if times == "always" else [0, 1, 2, 3])
        if times == "thrice":
            await h.coordinator.write(WriteRequest(Key(b"default", b"b", keys[2]), Content(b"again")))
            assert (h.runtime._storage._applier._retries, h.runtime._storage.idle) == ({}, True)
        if times == "always":
            assert isinstance(results[2], OutcomeUnknown)
            assert "injected" in h.partition(2).reason
            assert h.partition(2).replica.role is ReplicaRole.FAILED
        for partition in (0, 1, 3):
            await h.coordinator.write(WriteRequest(Key(b"default", b"b", keys[partition]), Content(b"again")))
        assert not h.failures
    async with start_node(tmp_path, ensemble) as h:
        for name in keys.values():
            assert await h.coordinator.get(Key(b"default", b"b", name)) is not None
