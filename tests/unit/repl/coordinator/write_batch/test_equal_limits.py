"""One size limit for an object with its siblings: a cluster accepts as a push what one with the same settings
accepts."""

from __future__ import annotations

import pytest

from isthmus.repl.coordinator.write_batch import WriteBatch, WriteLimits
from isthmus.repl.model.errors import IsthmusError, TooLarge
from isthmus.repl.model.keys import Key, key_hash
from isthmus.repl.model.objects import Content
from isthmus.repl.model.properties import PLAIN
from isthmus.repl.model.requests import PushItem, WriteRequest
from isthmus.repl.model.vclock import actor_of
from tests.support.coordinator_cluster import OTHER, UUID, FakePartition
from tests.support.memory_store import MemoryStore

LIMITS = WriteLimits(object_bytes=300, sibling_count=9, entry_bytes=900)
KEY = Key(b"default", b"b", b"key")


def new_batch(uuid: bytes, store: MemoryStore, *, epoch: int, offset: int) -> WriteBatch:
    """A batch at a cluster whose log ends at `offset`."""
    place = FakePartition(0, actor_of(uuid, 0))
    place.replica.epoch, place.replica.leo = epoch, offset
    return WriteBatch(place, store, uuid, LIMITS, PLAIN, 1_700_000_000_000, {})  # type: ignore[arg-type]


@pytest.mark.parametrize("fast_write", [False, True])
@pytest.mark.parametrize("fast_push", [False, True])
def test_an_object_accepted_by_one_cluster_is_accepted_by_its_equal(fast_write: bool, fast_push: bool) -> None:
    """Concurrent writes of one key, of values up to the limit: the sink accepts every object that the source accepts,
    although its log is at offsets with the longest encoding. A larger object is refused at its source, with the limit
    that applies."""
    taken = refused = 0
    for size in range(150, 301):
        for siblings in (2, 3, 5):
            source = new_batch(OTHER, MemoryStore(), epoch=1, offset=1)
            hash64 = key_hash(KEY.bucket, KEY.key)
            for n in range(siblings):
                request = WriteRequest(KEY, Content(bytes([n]) * size), ())
                results: list[object] = [None]
                try:
                    if fast_write:
                        source.add_items([request], [0], [hash64], results)
                    else:
                        source.write(request, hash64)
                    error = results[0]
                except TooLarge as refusal:
                    error = refusal
                if isinstance(error, IsthmusError):
                    assert "limits.object_size (300)" in str(error)
                    refused += 1
                    break
            if not source.entries:
                continue
            made = source.entries[-1]
            sink = new_batch(UUID, MemoryStore(), epoch=(1 << 19) - 1, offset=(1 << 43) + 7)
            item = PushItem(KEY, OTHER, made.payload)
            answers: list[object] = [None]
            if fast_push:
                sink.add_items([item], [0], [hash64], answers)
            else:
                sink.push(item, hash64)
            assert not isinstance(answers[0], IsthmusError), answers
            assert len(sink.entries) == 1
            taken += 1
    assert taken > 100
    assert refused > 100
