"""The early exits of a batch make what the rules behind them make."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import groupby

import pytest

from isthmus.repl.coordinator.write_batch import WriteBatch, WriteLimits
from isthmus.repl.model.conditions import Condition, object_tag
from isthmus.repl.model.entry import decode_key_row
from isthmus.repl.model.errors import IsthmusError
from isthmus.repl.model.keys import Key, key_hash
from isthmus.repl.model.objects import TOMBSTONE, Content, Object, Sibling, decode_object, encode_object
from isthmus.repl.model.properties import Properties, TypeProperties
from isthmus.repl.model.requests import PushItem, PushResult, WriteRequest, WriteResult
from isthmus.repl.model.vclock import Clock, actor_of, decode_clock, encode_clock, increment, merge
from isthmus.repl.store.port import PartitionStep
from tests.support.coordinator_cluster import OTHER, UUID, FakePartition
from tests.support.memory_store import MemoryStore
from tests.support.usual_rules import without_early_exit

LIMITS = WriteLimits(object_bytes=300, sibling_count=3, entry_bytes=700, object_warn_bytes=200)
PROPERTIES = TypeProperties(
    Properties(),
    {b"last": Properties(last_write_wins=True), b"one": Properties(allow_mult=False, max_object_bytes=100)},
)
ROUNDS = 60


class History:
    """One history, proposed with early exits and without, on one store."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.pushes = (0.0, 0.3, 0.9)[seed % 3]
        """Share of the requests that are pushes."""
        self.store = MemoryStore()
        self.place = FakePartition(0, actor_of(UUID, 0))
        self.place.replica.epoch = 3
        self.clocks: dict[Key, list[Clock]] = {}
        self.tags: dict[Key, tuple[str, ...]] = {}
        """The tag of each key's version of a while ago, or of now."""
        self.now_ms = 1_700_000_000_000

    def push(self, key: Key) -> PushItem:
        """Any push of another cluster, usual ones more often."""
        pick = self.random
        theirs = actor_of(OTHER, pick.randrange(2))
        seen = pick.choice(((), (), *self.clocks.get(key, [])[-3:]))
        counter = pick.choice(((7 << 44) + pick.randrange(1000), 5, 1 << 33))
        base = merge(seen, ((theirs, 5, 9),)) if pick.random() < 0.1 else seen
        clock = increment(base, theirs, counter, 1_700_000_000)
        value = b"" if (tombstone := pick.random() < 0.2) else pick.randbytes(pick.choice((5, 90, 400)))
        made = encode_object(Object(clock, (Sibling((theirs, counter), self.now_ms, tombstone, value, b"text/plain"),)))
        return PushItem(key, pick.choice((OTHER, OTHER, b"short")), made[: -1 if pick.random() < 0.05 else None])

    def request(self) -> WriteRequest | PushItem:
        """Any request of a client, usual ones more often; or a push."""
        pick = self.random
        if pick.random() < self.pushes:
            return self.push(Key(b"default", pick.choice((b"plain", b"one", b"away")), b"key-%d" % pick.randrange(6)))
        key = Key(b"default", pick.choice((b"plain", b"last", b"one")), b"key-%d" % pick.randrange(6))
        seen = self.clocks.get(key, [])
        context = pick.choice((None, (), *seen[-1:], *seen[-1:], *seen[-1:], *seen))
        if pick.random() < 0.05:
            context = ((actor_of(OTHER, 1), 7, 1), *(context or ())) if pick.random() < 0.5 else ((b"stranger", 9, 9),)
        content = Content(pick.randbytes(pick.choice((0, 5, 40, 90, 150, 250, 350))), b"text/plain")
        if pick.random() < 0.1:
            content = content._replace(metadata=((b"colour", b"red"),), links=((b"b", b"k", b"t"),))
        if pick.random() < 0.15:
            content = TOMBSTONE
        request_id = b"id-%d" % pick.randrange(20) if pick.random() < 0.1 else b""
        condition = Condition(if_none_match=("*",)) if pick.random() < 0.05 else None
        if pick.random() < 0.05:
            condition = Condition(if_match=self.tags.get(key, ("0" * 16,)))
        return WriteRequest(key, content, context, request_id, pick.random() < 0.5, condition)

    def batch(self) -> WriteBatch:
        return WriteBatch(self.place, self.store, UUID, LIMITS, PROPERTIES, self.now_ms, {})  # type: ignore[arg-type]

    def one_by_one(self, requests: Sequence[WriteRequest | PushItem]) -> tuple[WriteBatch, list[object], int]:
        batch = self.batch()
        results: list[object] = []
        end = 0
        for request in requests:
            hash64 = key_hash(request.key.bucket, request.key.key)
            try:
                answer, at = without_early_exit(batch, request, hash64)
            except IsthmusError as error:
                answer, at = error, 0
            results.append(answer)
            end = max(end, at)
        return batch, results, end


def comparable(result: object) -> object:
    """An answer as it can be compared."""
    return (type(result), str(result)) if isinstance(result, IsthmusError) else result


@pytest.mark.parametrize("seed", range(9))
def test_early_exits_agree_with_the_usual_rules(seed: int) -> None:
    """Over long histories of fresh keys, overwrites, siblings, deletes, limits and repeated ids, applied or not, a
    batch gives the same entries, byte for byte, and the same answers, counts and reports."""
    history = History(seed)
    usual = 0
    for _ in range(ROUNDS):
        requests = [history.request() for _ in range(history.random.randrange(1, 12))]
        expected, answers, end = history.one_by_one(requests)
        batch = history.batch()
        results: list[object] = [None] * len(requests)
        hashes = [key_hash(request.key.bucket, request.key.key) for request in requests]
        ends = [0]
        for _, run in groupby(enumerate(requests), lambda numbered: type(numbered[1])):
            slots = [slot for slot, _ in run]
            ends.append(batch.add_items(requests, slots, [hashes[slot] for slot in slots], results))
        assert max(ends) == end
        assert batch.entries == expected.entries
        assert batch.new_rows == expected.new_rows
        assert batch.new_requests == expected.new_requests
        assert list(map(comparable, results)) == list(map(comparable, answers))
        assert (batch.put_count, batch.delete_count, batch.repeated_count) == (
            expected.put_count,
            expected.delete_count,
            expected.repeated_count,
        )
        assert batch.warned == expected.warned
        assert batch.needs_confirmation == expected.needs_confirmation
        for request, result in zip(requests, results, strict=True):
            if isinstance(result, WriteResult) and result.clock:
                history.clocks.setdefault(request.key, []).append(decode_clock(result.clock))
            usual += isinstance(result, WriteResult) or (isinstance(result, PushResult) and result.error is None)
        for entry in batch.entries:
            clock = decode_clock(decode_key_row(entry.row).clock)
            name = Key(b"default", entry.bucket, entry.key)
            history.clocks.setdefault(name, []).append(clock)
            if history.random.random() < 0.8:
                stored = decode_object(entry.payload)
                history.tags[name] = (object_tag(encode_clock(stored.clock), stored.siblings),)
        history.now_ms += history.random.randrange(2_000)
        place = history.place
        place.unapplied.add_pending_rows(batch.new_rows)
        if batch.entries:
            place.replica.leo = batch.entries[-1].offset + 1
            place.pending += batch.entries
        if history.random.random() < 0.5 and place.pending:
            history.store.write([PartitionStep(0, tuple(place.pending))])
            place.replica.applied = place.replica.leo
            place.pending.clear()
            place.unapplied.clear_pending_rows()
    assert usual > ROUNDS
