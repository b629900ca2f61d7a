"""Pushes that replace writes of ours, and pushes whose clocks name writes of ours that do not exist (R-OWED,
R-FORGED)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path

from isthmus.queues.cursors import CursorPosition, CursorState
from isthmus.queues.filters import parse_filter
from isthmus.queues.origin_check import is_unreplicated
from isthmus.queues.source_queue import SourceQueue
from isthmus.queues.window_rules import Budget
from isthmus.repl.model.keys import Key
from isthmus.repl.model.objects import Content, decode_object, encode_object, write
from isthmus.repl.model.ports import AppliedEntries
from isthmus.repl.model.requests import PushItem, PushOutcome, WriteRequest
from isthmus.repl.model.vclock import actor_of, pack_counter
from tests.support.damage_reports import raising_listeners
from tests.support.memory_metastore import MemoryEnsemble

NodeFactory = Callable[..., AbstractAsyncContextManager]

WEST, NORTH = b"west-cluster-016", b"north-cluster-16"
KEY = Key(b"default", b"b", b"k")


class OriginRecorder:
    """The origin of each entry, by key, as the leader applied them."""

    def __init__(self) -> None:
        self.of: dict[bytes, list[bytes]] = {}

    def applied(self, applied: Sequence[AppliedEntries]) -> None:
        for _, entries, leader in applied:
            for entry in entries:
                if entry.key and leader:
                    self.of.setdefault(entry.key, []).append(entry.origin)

    def leadership(self, partition: int, leading: bool, applied_offset: int) -> None:
        """Ignored."""


async def test_a_push_over_an_unreplicated_local_write_counts_as_local(tmp_path: Path, start_node: NodeFactory) -> None:
    """R-OWED: while another cluster still has to get the replaced write, the result counts as ours and is sent to it;
    once it has that write, or when no write of ours was replaced, the origin is the pusher's."""

    origins = OriginRecorder()
    async with start_node(tmp_path, MemoryEnsemble()) as h:
        h.runtime.listeners.add(origins)
        asked: list[tuple[int, bytes]] = []
        owes = True

        def unreplicated(partition: int, offset: int, pusher: bytes, key: Key) -> bool:
            assert key.bucket == b"b"
            asked.append((offset, pusher))
            return owes

        h.coordinator._unreplicated = unreplicated
        for name in (b"k", b"later"):
            await h.coordinator.write(WriteRequest(Key(b"default", b"b", name), Content(b"mine")))

        async def push(name: bytes, counter: int) -> None:
            key = Key(b"default", b"b", name)
            stored = await h.coordinator.get(key)
            current = None if stored is None else decode_object(stored)
            seen = () if current is None else current.clock
            newer = write(current, seen, Content(b"theirs"), (actor_of(WEST, 1), counter), 5)
            (result,) = await h.coordinator.push([PushItem(key, WEST, encode_object(newer))])
            assert result.outcome is PushOutcome.APPLIED

        await push(b"k", 1)
        await push(b"k", 2)
        await push(b"theirs", 3)
        owes = False
        await push(b"later", 4)
        ours = h.runtime.cluster_uuid
        assert origins.of[b"k"] == [ours, ours, ours], "owed through further pushes, as long as it is owed"
        assert origins.of[b"theirs"] == [WEST]
        assert origins.of[b"later"] == [ours, WEST]
        assert {pusher for _, pusher in asked} == {WEST}
        assert len(asked) == 3, "only what replaces something of ours is asked about"


async def test_a_local_write_that_comes_back_counts_as_local(tmp_path: Path, start_node: NodeFactory) -> None:
    """R-OWED: after a loss another cluster may push a write that it got from us. Whether a third one has it is unknown,
    so it is sent again: when the key is absent here, and when the push replaces a row without that write."""

    origins = OriginRecorder()
    async with start_node(tmp_path, MemoryEnsemble()) as h:
        h.runtime.listeners.add(origins)
        h.coordinator._unreplicated = lambda _partition, _offset, pusher, _key: pusher == WEST
        await h.coordinator.write(WriteRequest(KEY, Content(b"mine")))
        place = h.partition()
        lost = (place.actor, pack_counter(place.replica.epoch, 0))
        from_west = write(None, (), Content(b"of west"), (actor_of(WEST, 1), 1), 5)

        async def push(name: bytes, value: object, pusher: bytes = WEST) -> None:
            item = PushItem(Key(b"default", b"b", name), pusher, encode_object(value))
            (result,) = await h.coordinator.push([item])
            assert result.outcome is PushOutcome.APPLIED

        back = write(None, (), Content(b"ours once"), lost, 5)
        await push(b"gone", back)
        await push(b"replaced", from_west)
        await push(b"replaced", write(from_west, from_west.clock, Content(b"over it"), lost, 6))
        await push(b"not-owed", back, NORTH)
        ours = h.runtime.cluster_uuid
        assert origins.of[b"gone"] == [ours]
        assert origins.of[b"replaced"] == [WEST, ours]
        assert origins.of[b"not-owed"] == [NORTH]


def test_unreplicated_writes_follow_owners_and_cursors() -> None:
    """A queue of the pusher's own cluster need not send the write; a queue of another cluster must, if the write is at
    or above its cursor; cascading queues, queues whose filter excludes the key, and queues without an owner are judged
    by what they would send."""

    def queue(owner: bytes, cursor: int, *, cascade: bool = False, led: bool = True, rules: str = "any") -> SourceQueue:
        budget, filter_ = Budget(1, 1, 1), parse_filter(rules)
        made = SourceQueue("q", b"o" * 16, cascade, 1_000, budget, b"lifelife", raising_listeners(), filter_)
        if owner:
            made.set_owner(owner, 1)
        if led:
            made.lead(3, b"default", CursorPosition(0, CursorState(cursor, 1, owner), cursor), cursor)
        return made

    assert not is_unreplicated([], 3, 5, WEST, KEY)
    assert not is_unreplicated([queue(WEST, 0)], 3, 5, WEST, KEY)
    assert is_unreplicated([queue(WEST, 0), queue(NORTH, 5)], 3, 5, WEST, KEY)
    assert not is_unreplicated([queue(NORTH, 6)], 3, 5, WEST, KEY)
    assert is_unreplicated([queue(NORTH, 6, led=False)], 3, 5, WEST, KEY), (
        "a cursor that is not known yet may be anywhere"
    )
    assert not is_unreplicated([queue(NORTH, 0, cascade=True)], 3, 5, WEST, KEY)
    assert is_unreplicated([queue(b"", 0)], 3, 5, WEST, KEY), "whoever takes it begins at its cursor"
    assert not is_unreplicated([queue(NORTH, 0, rules="bucketname:other")], 3, 5, WEST, KEY), (
        "it would never offer the key"
    )
    assert is_unreplicated([queue(NORTH, 0, rules="bucketname:b")], 3, 5, WEST, KEY)
    assert not is_unreplicated([queue(NORTH, 0, led=False, rules="!bucketname:b")], 3, 5, WEST, KEY)


async def test_a_pushed_clock_with_future_local_writes_is_refused(tmp_path: Path, start_node: NodeFactory) -> None:
    """R-FORGED: such a clock would make our next writes look old; it is rejected by name, and later writes are
    unaffected."""

    async with start_node(tmp_path, MemoryEnsemble()) as h:
        key = Key(b"default", b"b", b"k")
        await h.coordinator.write(WriteRequest(key, Content(b"mine")))
        stored = decode_object(await h.coordinator.get(key))
        ((actor, counter, _),) = stored.clock
        for ahead in (counter + 1, pack_counter(900, 7)):
            forged = write(None, ((actor, ahead, 5),), Content(b"x"), (actor_of(WEST, 1), 1), 5)
            (result,) = await h.coordinator.push([PushItem(key, WEST, encode_object(forged))])
            assert result.outcome is PushOutcome.REJECTED
            assert result.error is not None
            assert result.error.reason == "forged-clock"
        assert encode_object(stored) == await h.coordinator.get(key)
        written = await h.coordinator.write(WriteRequest(key, Content(b"next"), stored.clock))
        assert [s.value for s in decode_object(written.payload).live] == [b"next"]
