"""The early exit for common pushes makes what the rules behind it make."""

from __future__ import annotations

import random
from collections.abc import Sequence
from contextlib import suppress

import pytest

from isthmus.repl.coordinator.write_batch import WriteBatch, WriteLimits
from isthmus.repl.model.errors import IsthmusError
from isthmus.repl.model.keys import Key, key_hash
from isthmus.repl.model.objects import TOMBSTONE, Content, Object, encode_object, merge, write
from isthmus.repl.model.properties import Properties, TypeProperties
from isthmus.repl.model.requests import PushItem, PushOutcome, PushResult, WriteRequest
from isthmus.repl.model.vclock import actor_of, pack_counter
from isthmus.repl.store.port import PartitionStep
from tests.support.coordinator_cluster import OTHER, UUID, FakePartition
from tests.support.memory_store import MemoryStore
from tests.support.usual_rules import without_early_exit

LIMITS = WriteLimits(object_bytes=300, sibling_count=3, entry_bytes=600, object_warn_bytes=200)
ROUNDS = 60


class History:
    """A history of a cluster that receives pushes of two others, and writes itself."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.store = MemoryStore()
        self.place = FakePartition(0, actor_of(UUID, 0))
        self.place.replica.epoch = 3
        self.made: dict[Key, list[Object]] = {}
        self.counter = 0
        self.unreplicated = self.random.random() < 0.5

    def item(self) -> PushItem:
        """Any push of another cluster, usual ones more often."""
        pick = self.random
        key = Key(b"default", b"b", b"key-%d" % pick.randrange(6))
        origin = pick.choice((OTHER, b"third-cluster-16"))
        before = self.made.setdefault(key, [])
        self.counter += 1
        content = Content(pick.randbytes(pick.choice((0, 5, 90, 150, 350, 500))), b"text/plain")
        if pick.random() < 0.1:
            content = content._replace(metadata=((b"colour", b"red"),))
        if pick.random() < 0.15:
            content = TOMBSTONE
        seen = pick.choice((None, *before[-1:], *before[-1:], *before))
        clock = () if seen is None else seen.clock
        if pick.random() < 0.1:
            clock = tuple(sorted((*(c for c in clock if c[0] != self.place.actor), self.own_dot())))
        dot = (actor_of(origin, 0), pack_counter(1, self.counter))
        made = write(seen, clock, content, dot, 1_700_000_000_000 + self.counter * 700)
        if before and pick.random() < 0.1:
            made = merge(made, pick.choice(before))
        before.append(made)
        if pick.random() < 0.15:
            made = pick.choice(before)
        payload = encode_object(made)
        if pick.random() < 0.05:
            times = tuple((actor, counter, time_s + 1) for actor, counter, time_s in made.clock)
            payload = encode_object(Object(times, made.siblings))
        if pick.random() < 0.03:
            payload = pick.choice((payload[:-1], payload + b"x", b"", b"\x93junk"))
        return PushItem(key, origin if pick.random() > 0.03 else b"short", payload)

    def own_dot(self) -> tuple[bytes, int, int]:
        """The dot of a write of this partition, perhaps one that was never made."""
        return (self.place.actor, pack_counter(3, self.random.randrange(self.place.replica.leo + 2) + 1), 1)

    def batch(self) -> WriteBatch:
        properties = TypeProperties(Properties(), {})
        return WriteBatch(
            self.place,
            self.store,
            UUID,
            LIMITS,
            properties,
            1_700_000_000_000,
            {},
            lambda *_: self.unreplicated,  # type: ignore[arg-type]
        )

    def one_by_one(self, items: Sequence[PushItem]) -> tuple[WriteBatch, list[object], int]:
        batch = self.batch()
        results: list[object] = []
        end = 0
        for item in items:
            try:
                answer, at = without_early_exit(batch, item, key_hash(item.key.bucket, item.key.key))
            except IsthmusError as error:
                answer, at = error, 0
            results.append(answer)
            end = max(end, at)
        return batch, results, end


def comparable(result: object) -> object:
    """An answer as it can be compared."""
    return (type(result), str(result)) if isinstance(result, IsthmusError) else result


@pytest.mark.parametrize("seed", range(8))
def test_the_early_exit_of_pushes_agrees_with_the_usual_rules(seed: int) -> None:
    """Over long histories of fresh keys, newer, older, concurrent, equal, forged, too large and broken objects, with
    writes of this cluster in between, a batch gives the same entries, byte for byte, and the same answers."""
    history = History(seed)
    outcomes: set[object] = set()
    for _ in range(ROUNDS):
        items = [history.item() for _ in range(history.random.randrange(1, 12))]
        expected, answers, end = history.one_by_one(items)
        history.place.reaped_pushes = type(history.place.reaped_pushes)()
        batch = history.batch()
        results: list[object] = [None] * len(items)
        hashes = [key_hash(item.key.bucket, item.key.key) for item in items]
        assert batch.add_items(items, range(len(items)), hashes, results) == end
        assert batch.entries == expected.entries
        assert batch.new_rows == expected.new_rows
        assert list(map(comparable, results)) == list(map(comparable, answers))
        assert batch.warned == expected.warned
        outcomes |= {r.outcome if isinstance(r, PushResult) else type(r) for r in results}
        place = history.place
        place.unapplied.add_pending_rows(batch.new_rows)
        place.pending += batch.entries
        place.replica.leo += len(batch.entries)
        if history.random.random() < 0.3:
            own = history.batch()
            key = Key(b"default", b"b", b"key-%d" % history.random.randrange(6))
            with suppress(IsthmusError):
                own.write(WriteRequest(key, Content(b"ours")), key_hash(key.bucket, key.key))
            place.unapplied.add_pending_rows(own.new_rows)
            place.pending += own.entries
            place.replica.leo += len(own.entries)
        if history.random.random() < 0.5 and place.pending:
            history.store.write([PartitionStep(0, tuple(place.pending))])
            place.replica.applied = place.replica.leo
            place.pending.clear()
            place.unapplied.clear_pending_rows()
    assert outcomes >= {PushOutcome.APPLIED, PushOutcome.MERGED, PushOutcome.SUPERSEDED}
